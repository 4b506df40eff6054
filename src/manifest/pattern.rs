//! The patterns of `allowRead` and `allowWrite`. One that could not be enforced exactly is refused.

use crate::base::text;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One requested file pattern, parsed. A pattern that cannot be enforced exactly was refused
/// before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// As written in the manifest.
    pub text: String,
    /// `base:`: relative to the scripts base and not to the script's folder.
    pub from_base: bool,
    pub shape: PatternShape,
}

/// `path` is relative to the tool's own folder, or absolute. Plain components only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatternShape {
    /// `self`: the script file.
    SelfScript,
    /// `./*`, `.`, `dir/`, `dir/**`: a live subtree.
    Tree { path: PathBuf },
    /// `data/in.csv`: one file. Reading: expanded at launch. Writing: staged.
    File { path: PathBuf },
    /// `data/*.csv`: names within one folder; `*` and `?` occur in the last component only.
    Names { folder: PathBuf, names: String },
}

/// Longest pattern, bytes: the kernel's own limit for a path.
const MAX_PATTERN_BYTES: usize = 4096;
/// Most folders in a pattern: comparing it with each folder above it takes the time for reading it,
/// times a constant.
const MAX_FOLDERS: usize = 64;

/// Parses one pattern, or says why it cannot be enforced and what to write instead.
pub fn parse(written: &str) -> Result<Pattern, String> {
    let from_base = written.strip_prefix("base:");
    let shape = match from_base {
        None => shape(written),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Err("names nothing below the scripts base: write `base:lib/**`".to_owned())
        }
        // With `./` in front, `self` is the name of a file.
        Some(rest) => shape(&format!("./{rest}")),
    };
    let shape = match shape {
        Ok(PatternShape::Tree { path }) if from_base.is_some() && path.as_os_str().is_empty() => {
            Err("names the whole scripts base: name a folder in it (`base:lib/**`)".to_owned())
        }
        shape => shape,
    };
    let shape =
        shape.map_err(|why| format!("'{}' {why}", text::printable(&text::head(written, 120))))?;
    Ok(Pattern {
        text: written.to_owned(),
        from_base: from_base.is_some(),
        shape,
    })
}

fn shape(written: &str) -> Result<PatternShape, String> {
    refuse_characters(written)?;
    if written == "self" {
        return Ok(PatternShape::SelfScript);
    }
    let mut components = Vec::new();
    for component in written.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                return Err("leads upwards: '..' is not allowed; name the folder itself".to_owned());
            }
            plain => components.push(plain),
        }
    }
    if components.len() > MAX_FOLDERS {
        return Err(format!("has more than {MAX_FOLDERS} folders"));
    }
    let root = if written.starts_with('/') { "/" } else { "" };
    // `dir/`, `dir/.` and `.` name a folder, and so all of it.
    let names_folder = written.ends_with('/') || written.ends_with("/.") || written == ".";
    let last = if names_folder { None } else { components.pop() };
    for middle in &components {
        if middle.contains(['*', '?']) {
            return Err(format!(
                "has '{middle}' in the middle: '*' and '?' are allowed in the last part only, '**' \
                at the end"
            ));
        }
    }
    let folder: PathBuf = std::iter::once(root)
        .filter(|r| !r.is_empty())
        .chain(components.iter().copied())
        .collect();
    Ok(match last {
        None | Some("**") => PatternShape::Tree { path: folder },
        // `./*` means the script's folder and everything below it.
        Some("*") if components.is_empty() && root.is_empty() => {
            PatternShape::Tree { path: folder }
        }
        Some(name) if name.contains("**") => {
            return Err(
                "has '**' next to other characters: '**' must be alone, after the last '/'"
                    .to_owned(),
            );
        }
        Some(name) if name.contains(['*', '?']) => PatternShape::Names {
            folder,
            names: name.to_owned(),
        },
        Some(name) => PatternShape::File {
            path: folder.join(name),
        },
    })
}

fn refuse_characters(written: &str) -> Result<(), String> {
    if written.is_empty() {
        return Err("is empty: name a file or a folder, or remove it".to_owned());
    }
    let is_odd = written.len() > MAX_PATTERN_BYTES
        || !text::is_printable(written)
        || written.contains(['\\', '[', ']', '{', '}'])
        || written.starts_with(['~', '!'])
        || written.starts_with("file:")
        || written.contains("://");
    if is_odd {
        let why = "is not a plain path: no URL, no ~ or ! in front, no control or invisible \
            character, none of \\ [ ] { }";
        return Err(format!("{why}, at most {MAX_PATTERN_BYTES} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn shapes() {
        let tree = |p: &str| PatternShape::Tree { path: PathBuf::from(p) };
        let file = |p: &str| PatternShape::File { path: PathBuf::from(p) };
        let names = |f: &str, n: &str| PatternShape::Names { folder: PathBuf::from(f), names: n.to_owned() };
        for (text, path) in [
            (".", ""), ("./", ""), ("./*", ""), ("*", ""), ("**", ""), ("./**", ""), (".cache/**", ".cache"),
            ("dir/", "dir"), ("a/./b//c/**", "a/b/c"), ("/srv/exports/**", "/srv/exports"), ("/", "/"), ("/**", "/"),
        ] {
            assert_eq!(parse(text).map(|p| (p.shape, p.from_base)), Ok((tree(path), false)), "{text}");
        }
        let cases = [
            ("self", PatternShape::SelfScript, false), ("data/in.csv", file("data/in.csv"), false),
            ("./in.csv", file("in.csv"), false), ("*.csv", names("", "*.csv"), false),
            ("data/*.csv", names("data", "*.csv"), false), ("data/*", names("data", "*"), false),
            ("/srv/a.txt", file("/srv/a.txt"), false), ("/srv/*.txt", names("/srv", "*.txt"), false),
            ("base:lib/**", tree("lib"), true), ("base:lib/self", file("lib/self"), true),
            ("base:self", file("self"), true), ("base:lib/*.py", names("lib", "*.py"), true),
        ];
        for (text, shape, from_base) in cases {
            assert_eq!(parse(text).map(|p| (p.shape, p.from_base)), Ok((shape, from_base)), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        #[rustfmt::skip]
        let refused = [
            "", "..", "../x", "a/../b", "~", "~/x", "~root/x", "a\0b", "a\nb", "a\\b", "**/x", "a/**/b", "*/x",
            "a/b*/c", "a?/c", "a**", "[ab]", "{a,b}", "a/[!x].py", "!a", "file:///etc/passwd", "http://x/y",
            "\u{202e}a", "base:", "base:/lib", "base:**", "base:./*", "base:../lib",
        ];
        for written in refused {
            assert!(parse(written).is_err(), "{written:?}");
        }
    }
}
