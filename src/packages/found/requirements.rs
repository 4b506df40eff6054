//! Requirements: `requirements.txt`: requirements, or a lock where every entry is pinned and has a hash.
//!
//! For: `python`. In: its text. Out: requirements with hashes. Never: obeys an option; reads another file.

use super::files::{MOST, Text, shown};
use super::requirement::{self, Requirement};
use crate::policy::FileProblem;

pub(super) struct Entry {
    pub requirement: Requirement,
    pub hashes: Vec<String>,
}

/// Options that say where from, or what else is read or run; of others only `--hash` counts.
const REFUSED: [(&[&str], &str); 5] = [
    (&["-e", "--editable"], "installs a folder in place: name a package of the index instead"),
    (
        &["-r", "--requirement", "-c", "--constraint"],
        "reads another file: write its lines here (`uv pip compile` does)",
    ),
    (
        &[
            "-i",
            "--index-url",
            "--extra-index-url",
            "-f",
            "--find-links",
            "--no-index",
            "--trusted-host",
            "--pypi-url",
            "--proxy",
            "--cert",
            "--client-cert",
        ],
        "says where packages come from: the policy names the index, and this host's configuration its address; take the line out",
    ),
    (
        &[
            "--no-binary",
            "--only-binary",
            "--prefer-binary",
            "--use-feature",
            "--config-settings",
            "--global-option",
            "--build-option",
            "-C",
        ],
        "says how packages are built: the policy says whether they may be; take it out",
    ),
    (&["--pre"], "is not read: write a range that names a pre-release (`>=2.0rc1`)"),
];

pub(super) fn read(file: &Text) -> Result<Vec<Entry>, FileProblem> {
    let mut found = Vec::new();
    for (line, text) in logical_lines(&file.text) {
        if text.is_empty() || text == "--require-hashes" {
            continue;
        }
        found.push(entry(&text, line).map_err(|why| file.problem(line, why))?);
        if found.len() > MOST {
            return Err(file.problem(line, format!("more than {MOST} requirements")));
        }
    }
    Ok(found)
}

/// Lines without comments, those that end with `\` joined with the next; each with the number of its first.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut open): (Vec<(usize, String)>, bool) = Default::default();
    for (number, line) in text.lines().enumerate() {
        let plain = match line.trim_start().starts_with('#') {
            true => "",
            false => line.split(" #").next().and_then(|line| line.split("\t#").next()).unwrap_or_default().trim_end(),
        };
        let continues = plain.ends_with('\\');
        let plain = plain.strip_suffix('\\').unwrap_or(plain);
        match lines.last_mut().filter(|_| open) {
            Some((_, last)) => {
                last.push(' ');
                last.push_str(plain.trim());
            }
            None => lines.push((number + 1, plain.trim().to_owned())),
        }
        open = continues;
    }
    lines.into_iter().map(|(number, line)| (number, line.trim().to_owned())).collect()
}

fn entry(line: &str, number: usize) -> Result<Entry, String> {
    if line.contains("${") {
        return Err("a variable of the environment stands here, and none is read: write the text itself".to_owned());
    }
    if line.starts_with('-') {
        return Err(option(line.split([' ', '=']).next().unwrap_or_default()));
    }
    let at = line.find(" -").unwrap_or(line.len());
    let requirement = requirement::parse(&line[..at], number)?;
    let mut hashes = Vec::new();
    let mut words = line[at..].split_whitespace();
    while let Some(word) = words.next() {
        let hash = match word.strip_prefix("--hash") {
            Some("") => words.next().unwrap_or_default(),
            Some(joined) if joined.starts_with('=') => &joined[1..],
            _ => return Err(option(word.split('=').next().unwrap_or_default())),
        };
        hashes.push(self::hash(hash)?);
    }
    hashes.sort();
    hashes.dedup();
    Ok(Entry { requirement, hashes })
}

fn option(name: &str) -> String {
    let known = REFUSED.iter().find(|(names, _)| names.iter().any(|known| *known == name || stuck(name, known)));
    let why = known.map_or("is no option that is read here: take it out", |(_, why)| why);
    format!("`{}` {why}", shown(name))
}

/// `-rother.txt`
fn stuck(name: &str, known: &str) -> bool {
    known.len() == 2 && name.starts_with(known) && !name.starts_with("--")
}

/// `sha256:` and as many hexadecimal digits as that has.
pub(super) fn hash(text: &str) -> Result<String, String> {
    let digits = |name: &str| match name {
        "sha256" => Some(64),
        "sha384" => Some(96),
        "sha512" => Some(128),
        _ => None,
    };
    let good = text.split_once(':').is_some_and(|(name, hex)| {
        digits(name) == Some(hex.len())
            && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b.to_ascii_lowercase()))
    });
    if good {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("`{}` is no hash: sha256, sha384 or sha512 and its digits", shown(text)))
    }
}
