//! Areas: exact sets of absolute, plain paths, with their overlap and inclusion by components. No
//! file access.

use crate::base::names::{Part, parts, plain};
pub use crate::base::names::{escape, glob_of_pattern, literal, name_matches};
use crate::base::text;
pub use crate::sandbox::Access;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// A set of paths whose overlap with another can be computed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// A folder and everything below it.
    Tree(PathBuf),
    File(PathBuf),
    /// Files of one folder whose names match a glob.
    Names {
        folder: PathBuf,
        names: String,
    },
}

impl Area {
    /// The paths in both areas. Two different globs give `None`: the result can be too small, never
    /// too large.
    pub fn overlap(&self, other: &Area) -> Option<Area> {
        match (self, other) {
            (Area::Tree(tree), inner) | (inner, Area::Tree(tree)) if inner.lies_in(tree) => {
                Some(inner.clone())
            }
            (names, Area::File(file)) | (Area::File(file), names) if names.names(file) => {
                Some(Area::File(file.clone()))
            }
            (one, other) if one == other => Some(one.clone()),
            _ => None,
        }
    }

    fn lies_in(&self, tree: &Path) -> bool {
        match self {
            Area::File(file) => file != tree && file.starts_with(tree),
            Area::Tree(folder) | Area::Names { folder, .. } => folder.starts_with(tree),
        }
    }

    pub fn within(&self, other: &Area) -> bool {
        self.overlap(other).as_ref() == Some(self)
    }

    /// True if `self` holds `path` or a folder above it, or lies at or below `path`.
    pub fn touches(&self, path: &Path) -> bool {
        match self {
            Area::Tree(tree) => path.starts_with(tree) || tree.starts_with(path),
            Area::File(file) => file.starts_with(path) || path.starts_with(file),
            Area::Names { folder, .. } => {
                folder.starts_with(path) || path.ancestors().any(|p| self.names(p))
            }
        }
    }

    pub fn holds(&self, path: &Path) -> bool {
        match self {
            Area::Tree(tree) => path.starts_with(tree),
            Area::File(file) => file == path,
            Area::Names { .. } => self.names(path),
        }
    }

    fn names(&self, file: &Path) -> bool {
        let Area::Names { folder, names } = self else {
            return false;
        };
        file.parent() == Some(folder.as_path())
            && file
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| name_matches(names, n))
    }

    /// The tree itself, or the folder that holds the files.
    pub fn folder(&self) -> &Path {
        match self {
            Area::Tree(path) => path,
            Area::File(path) => path.parent().unwrap_or(path),
            Area::Names { folder, .. } => folder,
        }
    }

    /// The path of the tree, of the one file, or of the folder of the names.
    pub fn path(&self) -> &Path {
        match self {
            Area::Tree(path) | Area::File(path) => path,
            Area::Names { folder, .. } => folder,
        }
    }

    /// The area with the folder `to` in place of `from`. `None`: the area does not lie in `from`.
    pub fn moved(&self, from: &Path, to: &Path) -> Option<Area> {
        // `join` would add a slash at the end where nothing is left.
        let place = |path: &Path| {
            path.strip_prefix(from)
                .ok()
                .map(|rest| to.components().chain(rest.components()).collect())
        };
        Some(match self {
            Area::Tree(path) => Area::Tree(place(path)?),
            Area::File(path) => Area::File(place(path)?),
            Area::Names { folder, names } => Area::Names {
                folder: place(folder)?,
                names: names.clone(),
            },
        })
    }

    /// The area as a person would write it in a policy.
    pub fn text(&self) -> String {
        match self {
            Area::Tree(path) if path.parent().is_none() => "/**".to_string(),
            Area::Tree(path) => format!("{}/**", text::path(path)),
            Area::File(path) => text::path(path),
            Area::Names { folder, names } => text::path(&folder.join(plain(names))),
        }
    }

    /// A regular expression of the paths that it holds, as both Python and JavaScript read it.
    pub fn as_regex(&self) -> String {
        let folder = text_as_regex(&self.path().to_string_lossy());
        let Area::Names { names, .. } = self else {
            return folder
                + if matches!(self, Area::Tree(_)) {
                    "(?:/.*)?"
                } else {
                    ""
                };
        };
        let start = if names.starts_with('.') {
            "/"
        } else {
            r"/(?!\.)"
        };
        let parts = parts(names).map(|part| match part {
            Part::Any => "[^/]*".to_owned(),
            Part::One => "[^/]".to_owned(),
            Part::Plain(c) => text_as_regex(&c.to_string()),
        });
        folder + start + &parts.collect::<String>()
    }

    /// How the area is opened: a tree live, files as a snapshot at call start or, to write, as a
    /// private copy.
    pub fn opening(&self, access: Access) -> Opening {
        let (folder, names) = match self {
            Area::Tree(path) => return Opening::Live { path: path.clone() },
            Area::Names { folder, names } => (folder.clone(), names.clone()),
            Area::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (self.folder().to_path_buf(), escape(&name))
            }
        };
        match access {
            Access::Read => Opening::Snapshot { folder, names },
            Access::Write => Opening::Staged { folder, names },
        }
    }
}

/// A part of the file system that a grant opens, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Opening {
    Live {
        path: PathBuf,
    },
    /// Files in one folder whose names match, bound read-only at call start.
    /// `names` is a glob over one path component (a literal name is escaped).
    Snapshot {
        folder: PathBuf,
        names: String,
    },
    /// A private copy of the folder's matching files; published after success, only what matches.
    Staged {
        folder: PathBuf,
        names: String,
    },
}

impl From<Opening> for Area {
    fn from(opening: Opening) -> Area {
        match opening {
            Opening::Live { path } => Area::Tree(path),
            Opening::Snapshot { folder, names } | Opening::Staged { folder, names } => {
                match literal(&names) {
                    Some(name) => Area::File(folder.join(name)),
                    None => Area::Names { folder, names },
                }
            }
        }
    }
}

/// `folder` joined with a path of plain components, or `None` if it holds `..` or the result is not
/// absolute.
pub fn join(folder: &Path, path: &Path) -> Option<PathBuf> {
    let mut whole = if path.is_absolute() {
        PathBuf::new()
    } else {
        folder.to_path_buf()
    };
    for component in path.components() {
        match component {
            Component::RootDir | Component::Normal(_) => whole.push(component),
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    whole.is_absolute().then_some(whole)
}

fn text_as_regex(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_alphanumeric() || !c.is_ascii() {
                c.to_string()
            } else {
                format!(r"\x{:02x}", c as u32)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(text: &str) -> Area {
        let (folder, names) = text.rsplit_once('/').unwrap_or_default();
        match names {
            "**" => Area::Tree(folder.into()),
            names if names.contains('*') => Area::Names {
                folder: folder.into(),
                names: names.into(),
            },
            _ => Area::File(text.into()),
        }
    }

    #[test]
    fn areas_meet_exactly_and_by_component() {
        for (one, other, both) in [
            ("/data/pub/**", "/data/public/**", None),
            ("/data/pub/x/**", "/data/pub/**", Some("/data/pub/x/**")),
            ("/d/a.csv", "/d/**", Some("/d/a.csv")),
            ("/d", "/d/**", None),
            ("/d/*.csv", "/d/**", Some("/d/*.csv")),
            ("/d/*.csv", "/d/a.csv", Some("/d/a.csv")),
            ("/d/*.csv", "/d/sub/a.csv", None),
            ("/d/*.csv", "/d/sub/**", None),
            ("/d/*.csv", "/d/a*", None),
        ] {
            let both = both.map(area);
            assert_eq!(area(one).overlap(&area(other)), both, "{one} {other}");
            assert_eq!(area(other).overlap(&area(one)), both, "{other} {one}");
        }
        assert!(Area::Tree("/data/pub/".into()).within(&area("/data/pub/**")));
    }

    #[test]
    fn literal_names_stay_literal() {
        for odd in [
            "a[b].csv",
            "a{b,c}.csv",
            "a*b",
            "back\\slash",
            "a?b",
            "plain.csv",
            "][",
        ] {
            assert!(name_matches(&escape(odd), odd), "{odd}");
            let area = Area::File(Path::new("/d").join(odd));
            assert_eq!(Area::from(area.opening(Access::Write)), area, "{odd}");
        }
        for (names, yes, no) in [
            ("a[*]b", "a*b", "axb"),
            (&*glob_of_pattern("{a,b}*.csv"), "{a,b}1.csv", "a1.csv"),
            ("?.csv", "漢.csv", "ab.csv"),
            ("a*b*c", "abcbc", "acb"),
            ("*", "🙂", ".hidden"),
            (".h*", ".hidden", "hidden"),
            ("r?pört-*", "répört-", "rpört-"),
            ("[?][*]?", "?*ä", "a*x"),
        ] {
            assert!(
                name_matches(names, yes) && !name_matches(names, no),
                "{names}"
            );
        }
        // Many stars take no more steps than pattern length times name length.
        assert!(!name_matches(
            &"a*".repeat(2000),
            &format!("{}b", "a".repeat(250))
        ));
    }
}
