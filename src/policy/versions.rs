//! Versions: names, versions and ranges of packages, as each ecosystem writes them.
//!
//! For: `[packages]` of a policy, and who reads requirements. In: text. Out: whether it is one; whether a version lies in
//! a range. Never: a name or version that an installer could take for an option, a path or an address.

use super::packages::Ecosystem;
use pep440_rs::{Operator, VersionSpecifiers};
use semver::VersionReq;
use std::str::FromStr;

/// Longest name, version or range, bytes (npm's own bound for names).
const LONGEST: usize = 214;

/// The name as its index spells it when it compares names; `None`: it is none.
pub fn name(ecosystem: Ecosystem, text: &str) -> Option<String> {
    match ecosystem {
        Ecosystem::Python => python_name(text),
        Ecosystem::Node => node_name(text).then(|| text.to_owned()),
    }
}

/// PEP 503: lower case, runs of `-`, `_` and `.` as one `-`.
fn python_name(text: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let bytes = || text.bytes();
    if text.len() > LONGEST || !bytes().all(plain) || !ends(bytes().next()) || !ends(bytes().last()) {
        return None;
    }
    let parts = text.split(['-', '_', '.']).filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join("-").to_ascii_lowercase())
}

/// `name` or `@scope/name`; capitals stand in old names.
fn node_name(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
            && !part.eq_ignore_ascii_case("node_modules")
    };
    text.len() <= LONGEST
        && match text.strip_prefix('@') {
            Some(scoped) => scoped.split_once('/').is_some_and(|(scope, name)| part(scope) && part(name)),
            None => part(text),
        }
}

/// The version in its plain spelling; `None`: it is none.
pub fn version(ecosystem: Ecosystem, text: &str) -> Option<String> {
    if text.len() > LONGEST || !text.is_ascii() {
        return None;
    }
    match ecosystem {
        Ecosystem::Python => pep440_rs::Version::from_str(text).ok().map(|version| version.to_string()),
        Ecosystem::Node => semver::Version::parse(text).ok().map(|version| version.to_string()),
    }
}

pub fn is_range(ecosystem: Ecosystem, text: &str) -> bool {
    match ecosystem {
        Ecosystem::Python => python_range(text).is_some(),
        Ecosystem::Node => node_range(text).is_some(),
    }
}

/// Whether the version lies in the range; `None` where one of them is no version or range.
pub fn holds(ecosystem: Ecosystem, range: &str, version: &str) -> Option<bool> {
    match ecosystem {
        Ecosystem::Python => {
            let version = pep440_rs::Version::from_str(version).ok()?;
            Some(python_range(range)?.contains(&version))
        }
        Ecosystem::Node => {
            let version = semver::Version::parse(version).ok()?;
            Some(node_range(range)?.iter().any(|range| range.matches(&version)))
        }
    }
}

/// Whether a version lies in the range or, as a pre-release, right before or at a version that does. True for what
/// cannot be read.
pub fn may_hold(ecosystem: Ecosystem, range: &str, version: &str) -> bool {
    if holds(ecosystem, range, version).unwrap_or(true) {
        return true;
    }
    let Ok(read) = semver::Version::parse(version) else { return false };
    if ecosystem != Ecosystem::Node || read.pre.is_empty() {
        return false;
    }
    let (major, minor, patch) = (read.major, read.minor, read.patch);
    let before = match (major, minor, patch) {
        (_, _, 1..) => Some((major, minor, patch - 1)),
        (_, 1.., 0) => Some((major, minor - 1, u64::MAX)),
        (1.., 0, 0) => Some((major - 1, u64::MAX, u64::MAX)),
        (0, 0, 0) => None,
    };
    let near = [Some((major, minor, patch)), before].into_iter().flatten();
    let near = near.map(|(major, minor, patch)| semver::Version::new(major, minor, patch));
    let ranges = node_range(range).unwrap_or_default();
    near.into_iter().any(|version| ranges.iter().any(|range| range.matches(&version)))
}

/// Whether one version at most lies in the range.
pub fn pins(ecosystem: Ecosystem, range: &str) -> bool {
    match ecosystem {
        Ecosystem::Python => python_range(range).is_some_and(|range| {
            range.iter().any(|one| matches!(one.operator(), Operator::Equal | Operator::ExactEqual))
        }),
        Ecosystem::Node => version(ecosystem, range.trim().trim_start_matches(['=', 'v'])).is_some(),
    }
}

fn python_range(text: &str) -> Option<VersionSpecifiers> {
    let plain = text.len() <= LONGEST * 4 && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    VersionSpecifiers::from_str(text).ok().filter(|_| plain)
}

/// A range as npm reads it: sets between `||`, comparators that all hold between spaces, `a - b`, and a bare version
/// that stands for itself.
fn node_range(text: &str) -> Option<Vec<VersionReq>> {
    if text.len() > LONGEST * 4 {
        return None;
    }
    text.split("||").map(|set| node_set(set.trim())).collect()
}

fn node_set(set: &str) -> Option<VersionReq> {
    if let Some((from, to)) = set.split_once(" - ") {
        let both = [comparator(">=", from.trim())?, comparator("<=", to.trim())?];
        return requirement(&both);
    }
    let (mut found, mut operator) = (Vec::new(), "");
    for word in set.split_whitespace() {
        let at = word.find(|c: char| !"<>=~^".contains(c)).unwrap_or(word.len());
        let (sign, version) = word.split_at(at);
        if !sign.is_empty() && !operator.is_empty() {
            return None;
        }
        operator = if sign.is_empty() { operator } else { sign };
        if !version.is_empty() {
            found.push(comparator(operator, version)?);
            operator = "";
        }
    }
    if operator.is_empty() { requirement(&found) } else { None }
}

/// Empty where every version fits.
fn comparator(operator: &str, version: &str) -> Option<String> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let mut parts: Vec<&str> = version.splitn(3, '.').collect();
    let wild = |part: &&str| matches!(*part, "*" | "x" | "X");
    if let Some(at) = parts.iter().position(wild) {
        if !parts[at..].iter().all(wild) {
            return None;
        }
        parts.truncate(at);
    }
    let operator = match operator {
        "" | "=" => "=",
        "~>" => "~",
        "<" | ">" | "<=" | ">=" | "~" | "^" => operator,
        _ => return None,
    };
    match (parts.is_empty(), operator) {
        (true, "<" | ">") => None,
        (true, _) => Some(String::new()),
        (false, _) => Some(format!("{operator}{}", parts.join("."))),
    }
}

fn requirement(comparators: &[String]) -> Option<VersionReq> {
    let told: Vec<&str> = comparators.iter().map(String::as_str).filter(|one| !one.is_empty()).collect();
    if told.is_empty() { Some(VersionReq::STAR) } else { VersionReq::parse(&told.join(", ")).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_denied_has_its_pre_releases() {
        let denied = |range, version| may_hold(Ecosystem::Node, range, version);
        for (range, version) in
            [("<2", "1.9.0-beta.1"), ("<2", "2.0.0-rc.1"), ("1.2.3", "1.2.3-a"), ("^1", "1.0.1-a"), ("*", "3.0.0-a")]
        {
            assert!(denied(range, version), "{range} {version}");
        }
        for (range, version) in [("<2", "2.0.1-a"), ("<2", "3.0.0-a"), ("<2", "2.0.0"), (">=2", "1.9.0-a")] {
            assert!(!denied(range, version), "{range} {version}");
        }
    }

    use Ecosystem::{Node, Python};

    #[test]
    fn names_are_those_of_an_index() {
        for (ecosystem, text, want) in [
            (Python, "Flask_SQL.Alchemy", Some("flask-sql-alchemy")),
            (Python, "a", Some("a")),
            (Python, "-e", None),
            (Python, "a-", None),
            (Python, "a b", None),
            (Python, "a/b", None),
            (Python, "", None),
            (Node, "left-pad", Some("left-pad")),
            (Node, "@scope/x", Some("@scope/x")),
            (Node, "JSONStream", Some("JSONStream")),
            (Node, "-x", None),
            (Node, "../x", None),
            (Node, "@a/../x", None),
            (Node, "a/b", None),
            (Node, "@a/b/c", None),
            (Node, "node_modules", None),
            (Node, "http:x", None),
        ] {
            assert_eq!(name(ecosystem, text).as_deref(), want, "{text}");
        }
        for (ecosystem, text, want) in [
            (Python, "1.0RC1", Some("1.0rc1")),
            (Python, "--index-url", None),
            (Node, "1.2.3-rc.1", Some("1.2.3-rc.1")),
            (Node, "1.2", None),
            (Node, "git+ssh://x", None),
        ] {
            assert_eq!(version(ecosystem, text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn ranges_are_those_of_the_installer() {
        for (ecosystem, range, version, want) in [
            (Python, ">=1,<2", "1.5", Some(true)),
            (Python, ">=1,<2", "2.0", Some(false)),
            (Python, "==1.*", "1.9", Some(true)),
            (Python, "~=1.4", "2.0", Some(false)),
            (Python, "", "9", Some(true)),
            (Python, "^1", "1", None),
            (Node, "1.2.3", "1.2.3", Some(true)),
            (Node, "1.2.3", "1.2.4", Some(false)),
            (Node, "1.2", "1.2.9", Some(true)),
            (Node, "1", "2.0.0", Some(false)),
            (Node, "^1.2.3", "1.9.0", Some(true)),
            (Node, "^0.2.3", "0.3.0", Some(false)),
            (Node, ">= 1.2 < 2", "1.9.0", Some(true)),
            (Node, ">=1.2 <2", "2.0.0", Some(false)),
            (Node, "1.x || >=3.1.0", "3.2.0", Some(true)),
            (Node, "1.2.3 - 2", "2.9.0", Some(true)),
            (Node, "1.2.3 - 2", "3.0.0", Some(false)),
            (Node, "", "7.0.0", Some(true)),
            (Node, "*", "7.0.0", Some(true)),
            (Node, "<2", "1.9.9", Some(true)),
            (Node, "v1.0.0", "1.0.0", Some(true)),
            (Node, "^2.0.0-beta.1", "2.0.0-beta.2", Some(true)),
            (Node, "latest", "1.0.0", None),
            (Node, "git+https://x", "1.0.0", None),
            (Node, "file:../x", "1.0.0", None),
            (Node, "> > 1", "1.0.0", None),
        ] {
            assert_eq!(holds(ecosystem, range, version), want, "{range} {version}");
        }
        assert!(pins(Python, "==1.0") && !pins(Python, "==1.*") && pins(Node, "=1.2.3") && !pins(Node, "^1.2.3"));
    }
}
