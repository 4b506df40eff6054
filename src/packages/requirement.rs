//! One requirement of Python (PEP 508): a name, a range and a marker, never an address.

use super::files::shown;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use pep508_rs::{MarkerEnvironment, MarkerEnvironmentBuilder, MarkerTree, VersionOrUrl};
use std::cell::RefCell;
use std::collections::HashSet;
use std::str::FromStr;

/// Longest requirement or marker, bytes; most comparisons of a marker, most of them with `in`, and most markers of one
/// file: the library builds a decision diagram of each and keeps it for good.
const LONGEST: usize = 4000;
const MOST_COMPARISONS: usize = 16;
const MOST_IN: usize = 4;
const MOST_MARKERS: usize = 200;

#[derive(Clone, Debug)]
pub(super) struct Requirement {
    pub name: String,
    /// Empty: any version.
    pub versions: String,
    /// As the resolver gets it.
    pub text: String,
    /// False where its marker does not hold for the interpreter.
    pub here: bool,
    /// Where it stands.
    pub line: usize,
}

impl Requirement {
    /// The one version that fits.
    pub fn pin(&self) -> Option<String> {
        let only = self.versions.strip_prefix("==")?.trim_start_matches('=');
        versions::version(Ecosystem::Python, only)
    }
}

/// What markers are compared with: an interpreter of this machine.
pub(super) struct Environment {
    here: Option<MarkerEnvironment>,
    /// The markers that were read.
    markers: RefCell<HashSet<String>>,
}

impl Environment {
    /// `version`: of the interpreter; without one every marker is taken to hold.
    pub fn new(version: Option<&str>) -> Environment {
        let uname = nix::sys::utsname::uname().ok();
        let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let release = part(uname.as_ref().map(|uname| uname.release()));
        let build = part(uname.as_ref().map(|uname| uname.version()));
        let version = version.and_then(|version| version.split_whitespace().next());
        let minor = version.map(|version| version.split('.').take(2).collect::<Vec<_>>().join("."));
        let here = version.zip(minor.as_deref()).and_then(|(full, minor)| {
            let environment = MarkerEnvironmentBuilder {
                implementation_name: "cpython",
                implementation_version: full,
                os_name: "posix",
                platform_machine: std::env::consts::ARCH,
                platform_python_implementation: "CPython",
                platform_release: &release,
                platform_system: "Linux",
                platform_version: &build,
                python_full_version: full,
                python_version: minor,
                sys_platform: "linux",
            };
            MarkerEnvironment::try_from(environment).ok()
        });
        Environment { here, markers: RefCell::default() }
    }

    /// Whether a marker holds; `None`, there is none.
    pub fn marker(&self, text: Option<&str>) -> Result<bool, String> {
        let Some(text) = text else { return Ok(true) };
        self.bounded(text)?;
        let marker =
            MarkerTree::from_str(text).map_err(|error| format!("its marker: {}", shown(&error.message.to_string())))?;
        Ok(self.holds(&marker))
    }

    fn holds(&self, marker: &MarkerTree) -> bool {
        self.here.as_ref().is_none_or(|environment| marker.evaluate(environment, &[]))
    }

    pub fn requirement(&self, text: &str, line: usize) -> Result<Requirement, String> {
        let (text, whole) = (text.trim(), shown(text.trim()));
        let (wanted, marker) = text.split_once(';').unwrap_or((text, ""));
        let is_file = |end: &&str| wanted.trim_end().ends_with(end);
        let is_path = wanted.starts_with(['.', '/', '~']) || [".whl", ".tar.gz", ".zip"].iter().any(is_file);
        // The library would read a path with dashes as a name; a version holds none of these signs.
        if wanted.contains(['@', ':']) || wanted.starts_with("git+") || is_path {
            let what = if wanted.contains("git+") { "a git reference" } else { "a URL or a path" };
            let index = "packages come from the policy's index alone: write a name and versions of it";
            return Err(format!("`{whole}` is {what}, and {index}"));
        }
        self.bounded(marker).map_err(|why| format!("`{whole}`: {why}"))?;
        if text.len() > LONGEST {
            return Err(format!("`{whole}` is longer than {LONGEST} bytes"));
        }
        let bad = |why: &str| format!("`{whole}` is not a requirement ({why}): write for example `name>=1.2,<2`");
        let read = pep508_rs::Requirement::<pep508_rs::VerbatimUrl>::from_str(text)
            .map_err(|error| bad(&shown(&error.message.to_string())))?;
        let name = read.name.to_string();
        let range: Vec<String> = match &read.version_or_url {
            Some(VersionOrUrl::VersionSpecifier(range)) => range.iter().map(ToString::to_string).collect(),
            Some(VersionOrUrl::Url(_)) => return Err(bad("it is a URL")),
            None => Vec::new(),
        };
        let extras: Vec<&str> = read.extras.iter().map(AsRef::as_ref).collect();
        let extras = if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
        let versions = range.join(",");
        let marker = read.marker.try_to_string().map_or_else(String::new, |marker| format!(" ; {marker}"));
        let text = format!("{name}{extras}{versions}{marker}");
        Ok(Requirement { name, versions, text, here: self.holds(&read.marker), line })
    }

    fn bounded(&self, marker: &str) -> Result<(), String> {
        let texts = marker.matches(['"', '\'']).count() / 2;
        let inside = marker.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| *word == "in").count();
        let is_plain = marker.bytes().all(|b| (b' '..=b'~').contains(&b));
        if marker.len() > LONGEST || texts > MOST_COMPARISONS || inside > MOST_IN || !is_plain {
            return Err(format!(
                "its marker is too long: at most {MOST_COMPARISONS} comparisons, {MOST_IN} of them with `in`"
            ));
        }
        let mut markers = self.markers.borrow_mut();
        markers.insert(marker.to_owned());
        match markers.len() <= MOST_MARKERS {
            true => Ok(()),
            false => Err(format!("more than {MOST_MARKERS} different markers: lock for fewer environments")),
        }
    }
}
