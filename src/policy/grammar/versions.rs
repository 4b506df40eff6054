//! Names, versions and ranges of packages, as each ecosystem writes them. No name or version that
//! is read here can be taken for an option, a path or an address by an installer.

use crate::manifest::Language;
use pep440_rs::{Operator, VersionSpecifiers};
use pep508_rs::PackageName;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Where packages come from, and who installs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecosystem {
    Python,
    Node,
}

impl Ecosystem {
    pub const ALL: [Ecosystem; 2] = [Ecosystem::Python, Ecosystem::Node];

    /// The key of a policy, and of an index in the host's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Ecosystem::Python => "python",
            Ecosystem::Node => "node",
        }
    }

    /// `None`: scripts of this language have no packages.
    pub fn for_language(language: Language) -> Option<Ecosystem> {
        match language {
            Language::Python => Some(Ecosystem::Python),
            Language::Nodejs | Language::Bun => Some(Ecosystem::Node),
            Language::Wasm | Language::Bash => None,
        }
    }
}

/// Longest name, version or range, bytes (npm's own bound for names).
const MAX_NAME_BYTES: usize = 214;
/// The largest part of a version of Node (`Number.MAX_SAFE_INTEGER`).
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The name in the form in which its index compares names. `None`: not the name of a package.
pub fn name(ecosystem: Ecosystem, text: &str) -> Option<String> {
    match ecosystem {
        Ecosystem::Python if text.is_empty() || text.len() > MAX_NAME_BYTES => None,
        Ecosystem::Python => PackageName::from_str(text)
            .ok()
            .map(|name| name.to_string()),
        Ecosystem::Node => node_name(text).then(|| text.to_owned()),
    }
}

/// `name` or `@scope/name`; old names may have capitals.
fn node_name(text: &str) -> bool {
    fn part(part: &str) -> bool {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
            && !part.eq_ignore_ascii_case("node_modules")
    }
    text.len() <= MAX_NAME_BYTES
        && match text.strip_prefix('@') {
            Some(scoped) => scoped
                .split_once('/')
                .is_some_and(|(scope, name)| part(scope) && part(name)),
            None => part(text),
        }
}

/// The version in its normal form. `None`: not a version.
pub fn version(ecosystem: Ecosystem, text: &str) -> Option<String> {
    if text.len() > MAX_NAME_BYTES || !text.is_ascii() {
        return None;
    }
    match ecosystem {
        Ecosystem::Python => pep440_rs::Version::from_str(text)
            .ok()
            .map(|version| version.to_string()),
        Ecosystem::Node => semver::Version::parse(text)
            .ok()
            .map(|version| version.to_string()),
    }
}

/// Whether two texts are one version: to Python `1.0` is `1.0.0`.
pub fn are_same(ecosystem: Ecosystem, one: &str, other: &str) -> bool {
    fn read(text: &str) -> Option<pep440_rs::Version> {
        pep440_rs::Version::from_str(text).ok()
    }
    one == other
        || (ecosystem == Ecosystem::Python && read(one).is_some_and(|one| Some(one) == read(other)))
}

pub fn is_range(ecosystem: Ecosystem, text: &str) -> bool {
    match ecosystem {
        Ecosystem::Python => python_range(text).is_some(),
        Ecosystem::Node => node_range(text).is_some(),
    }
}

/// Whether the version lies in the range; `None` where one of them is not a version or range.
pub fn holds(ecosystem: Ecosystem, range: &str, version: &str) -> Option<bool> {
    match ecosystem {
        Ecosystem::Python => {
            let version = pep440_rs::Version::from_str(version).ok()?;
            Some(python_range(range)?.contains(&version))
        }
        Ecosystem::Node => {
            let version = nodejs_semver::Version::parse(version).ok()?;
            Some(node_range(range)?.satisfies(&version))
        }
    }
}

/// Whether a deny list's range has the version: by the ecosystem's own rule, or by plain order,
/// which also puts pre-releases, post-releases and local versions below or above a bound. True for
/// what cannot be read.
pub fn may_hold(ecosystem: Ecosystem, range: &str, version: &str) -> bool {
    if holds(ecosystem, range, version).unwrap_or(true) {
        return true;
    }
    match ecosystem {
        Ecosystem::Python => {
            let Some(range) = python_range(range) else {
                return true;
            };
            let Ok(version) = pep440_rs::Version::from_str(version) else {
                return true;
            };
            range.iter().all(|one| match one.operator() {
                Operator::LessThan => version < *one.version(),
                Operator::GreaterThan => version > *one.version(),
                _ => one.contains(&version),
            })
        }
        Ecosystem::Node => {
            let (Some(range), Ok(version)) = (node_range(range), semver::Version::parse(version))
            else {
                return true;
            };
            // A pre-release comes right before its release, and right after the greatest version
            // below that.
            let major = version.major;
            let minor = version.minor;
            let patch = version.patch;
            let before = match (major, minor, patch) {
                (_, _, 1..) => Some((major, minor, patch - 1)),
                (_, 1.., 0) => Some((major, minor - 1, MAX_SAFE_INTEGER)),
                (1.., 0, 0) => Some((major - 1, MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)),
                (0, 0, 0) => None,
            };
            let near = [Some((major, minor, patch)), before].into_iter().flatten();
            !version.pre.is_empty() && near.into_iter().any(|near| range.satisfies(&near.into()))
        }
    }
}

/// Whether one version at most lies in the range.
pub fn pins(ecosystem: Ecosystem, range: &str) -> bool {
    match ecosystem {
        Ecosystem::Python => python_range(range).is_some_and(|range| {
            range
                .iter()
                .any(|one| matches!(one.operator(), Operator::Equal | Operator::ExactEqual))
        }),
        Ecosystem::Node => {
            version(ecosystem, range.trim().trim_start_matches(['=', 'v'])).is_some()
        }
    }
}

fn python_range(text: &str) -> Option<VersionSpecifiers> {
    let plain =
        text.len() <= MAX_NAME_BYTES * 4 && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    VersionSpecifiers::from_str(text).ok().filter(|_| plain)
}

fn node_range(text: &str) -> Option<nodejs_semver::Range> {
    let plain =
        text.len() <= MAX_NAME_BYTES * 4 && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    // The library ignores an operator without a version.
    fn operator(word: &str, all: bool) -> bool {
        let signs = word.bytes().filter(|b| b"<>=~^".contains(b)).count();
        if all {
            signs == word.len()
        } else {
            word.starts_with(['<', '>', '=', '~', '^'])
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let broken = words
        .windows(2)
        .any(|pair| operator(pair[0], true) && operator(pair[1], false));
    (plain && !broken)
        .then(|| nodejs_semver::Range::parse(text).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecosystem::{Node, Python};

    #[test]
    fn a_range_that_is_denied_has_its_pre_releases() {
        for (ecosystem, range, denied, other) in [
            (Node, "<2", "1.9.0-beta.1", "2.0.1-a"),
            (Node, "<2", "2.0.0-rc.1", "2.0.0"),
            (Node, "1.2.3", "1.2.3-a", "1.2.4"),
            (Node, "^1", "1.0.1-a", "3.0.0-a"),
            (Node, ">=2", "3.0.0-a", "1.9.0-a"),
            (Python, "<2", "2.0rc1", "2.0"),
            (Python, "<2", "2.0.dev3", "2.1"),
            (Python, ">1.0", "1.0.post1", "1.0"),
            (Python, ">1.0", "1.0+local", "0.9"),
            (Python, "==1.0", "1.0+local", "1.0.post1"),
            (Python, ">=1,<2,!=1.5", "1.6a1", "1.5"),
        ] {
            assert!(may_hold(ecosystem, range, denied), "{range} {denied}");
            assert!(!may_hold(ecosystem, range, other), "{range} {other}");
        }
    }

    #[test]
    fn no_name_or_version_is_an_option_a_path_or_an_address() {
        assert_eq!(
            name(Python, "Flask_SQL.Alchemy").as_deref(),
            Some("flask-sql-alchemy")
        );
        assert_eq!(
            name(Node, "@scope/JSONStream").as_deref(),
            Some("@scope/JSONStream")
        );
        for text in ["-e", "a-", "a b", "a/b", "", "../x", "http:x"] {
            assert_eq!(
                (
                    name(Python, text),
                    name(Node, text).filter(|_| text != "a-")
                ),
                (None, None),
                "{text}"
            );
        }
        for text in ["@a/../x", "@a/b/c", "node_modules"] {
            assert_eq!(name(Node, text), None, "{text}");
        }
        for text in ["--index-url", "git+ssh://x", "latest", "file:../x", "> > 1"] {
            for ecosystem in Ecosystem::ALL {
                assert!(
                    version(ecosystem, text).is_none() && !is_range(ecosystem, text),
                    "{text}"
                );
            }
        }
        assert_eq!(version(Python, "1.0RC1").as_deref(), Some("1.0rc1"));
        assert!(
            pins(Python, "==1.0")
                && !pins(Python, "==1.*")
                && pins(Node, "=1.2.3")
                && !pins(Node, "^1.2.3")
        );
    }
}
