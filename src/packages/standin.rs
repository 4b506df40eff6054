//! Stand-in.
use super::{Place, Wanted};
use crate::policy::packages::Ecosystem;
pub fn stand_in(
    script: &std::path::Path,
    language: crate::manifest::Language,
) -> Result<Option<Wanted>, crate::policy::FileProblem> {
    super::find(&Place { script, language, alone: false, writer: &|_| None })
}

pub fn stand_in_indexes() -> Vec<super::Index> {
    let of = |ecosystem, url: &str, names: &[&str]| super::Index {
        name: "default".to_owned(),
        ecosystem,
        url: url.to_owned(),
        credential: None,
        hosts: names
            .iter()
            .map(|name| crate::policy::HostGrant {
                pattern: crate::manifest::host::pattern(name).expect("host"),
                ranges: vec!["203.0.113.80/32".parse().expect("range")],
                asked: (*name).to_owned(),
                rule: "index default".to_owned(),
                why: "packages".to_owned(),
            })
            .collect(),
    };
    vec![
        of(Ecosystem::Python, "https://pypi.org/simple/", &["pypi.org", "files.pythonhosted.org"]),
        of(Ecosystem::Node, "https://registry.npmjs.org/", &["registry.npmjs.org"]),
    ]
}
