//! Stand-in.
use super::Wanted;
use crate::policy::packages::{Ecosystem, Package};
pub fn of_lock(wanted: &Wanted, text: &str) -> Result<Wanted, String> {
    let mut packages: Vec<Package> = Vec::new();
    let mut inputs = wanted.inputs.clone();
    match wanted.ecosystem {
        Ecosystem::Python => {
            for line in text.lines() {
                let line = line.trim().trim_end_matches('\\').trim();
                if let Some(hash) = line.strip_prefix("--hash=") {
                    packages.last_mut().ok_or("hash")?.hashes.push(hash.to_owned());
                } else if let Some((name, version)) = line.split_once("==") {
                    packages.push(Package { name: name.to_owned(), version: version.to_owned(), hashes: vec![] });
                }
            }
            inputs = vec![("requirements.txt".to_owned(), text.to_owned())];
        }
        Ecosystem::Node => {
            let mut lock: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
            for (name, package) in lock["packages"].as_object_mut().ok_or("packages")? {
                let Some(package) = package.as_object_mut() else { continue };
                package.remove("resolved");
                if let Some((_, name)) = name.rsplit_once("node_modules/") {
                    let version = package["version"].as_str().unwrap_or_default().to_owned();
                    let hashes = vec![package["integrity"].as_str().unwrap_or_default().to_owned()];
                    packages.push(Package { name: name.to_owned(), version, hashes });
                }
            }
            inputs.retain(|(name, _)| name != "package-lock.json");
            inputs.push(("package-lock.json".to_owned(), lock.to_string()));
        }
    }
    Ok(Wanted { locked: true, packages, inputs, ..wanted.clone() })
}
pub fn stand_in(folder: &std::path::Path, language: crate::manifest::Language) -> Option<Wanted> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let ecosystem = Ecosystem::of(language)?;
    let base = Wanted { ecosystem, sources: vec![], packages: vec![], locked: false, inputs: vec![], requires: vec![] };
    match ecosystem {
        Ecosystem::Python => {
            let text = read("requirements.txt")?;
            let base = Wanted { inputs: vec![("requirements.txt".to_owned(), text.clone())], ..base };
            if text.contains("--hash") { of_lock(&base, &text).ok() } else { Some(base) }
        }
        Ecosystem::Node => {
            let base = Wanted { inputs: vec![("package.json".to_owned(), read("package.json")?)], ..base };
            match read("package-lock.json") {
                Some(lock) => of_lock(&base, &lock).ok(),
                None => Some(base),
            }
        }
    }
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
