//! Never: places from which no interpreter is taken: folders of tools, and every tree that a tool could ever write.
//!
//! For: this room; the cli fills it, from the settings and from the ledger of written trees. In: paths.
//! Out: why a path is not taken, before anything of it is run. Never: opens or runs a path that it judges.

use super::roots;
use crate::policy;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Each place, as it was named and without links, with its description in words.
#[derive(Clone, Debug, Default)]
pub struct Never {
    places: BTreeMap<PathBuf, String>,
    /// The places that tools could write.
    written: Vec<PathBuf>,
    /// The same places by their identity, so that renamed ones are still known.
    past: policy::Written,
}

impl Never {
    /// Folders of tools, scripts and policies.
    pub fn tools(folders: &[PathBuf]) -> Never {
        let mut never = Never::default();
        folders.iter().for_each(|folder| never.add(folder, format!("the tool folder {}", folder.display())));
        never
    }

    /// Adds a place where a tool could write in an earlier call, even if it may not now.
    pub fn written(&mut self, place: &policy::Place) {
        let (tree, tool) = (&place.tree, &place.tool);
        let words = format!("{}, where {tool} could write in an earlier call", tree.display());
        self.add(tree, words);
        self.written.extend([tree.to_owned(), resolved(tree)]);
        self.past.before(place);
    }

    fn add(&mut self, place: &Path, words: String) {
        for path in [resolved(place), place.to_owned()] {
            self.places.entry(path).or_insert_with(|| words.clone());
        }
    }

    /// The place that holds this path, without following links.
    pub(super) fn over(&self, path: &Path) -> Option<&str> {
        path.ancestors().find_map(|above| self.places.get(above)).map(String::as_str)
    }

    /// The place that lies below this folder, or is it.
    pub(super) fn below(&self, folder: &Path) -> Option<&str> {
        self.places.iter().find(|(place, _)| place.starts_with(folder)).map(|(_, words)| words.as_str())
    }

    /// Refuses `path` if its name, a link that leads on from it, or the file at its end lies in such a place.
    pub(super) fn passes(&self, path: &Path) -> Result<(), String> {
        let (links, end) = roots::way(path);
        let steps = [path.to_owned(), end].into_iter().chain(links);
        for step in steps {
            let moved = || Some(format!("a folder where {}", self.past.over(&step)?));
            if let Some(words) = self.over(&step).map(str::to_owned).or_else(moved) {
                return Err(format!("{} lies in {words}", step.display()));
            }
        }
        Ok(())
    }

    /// Refuses a launcher that may read what a tool could write. What it reads is not known: its installation, and the
    /// settings that programs keep in a home, are taken for that.
    pub(super) fn near_a_launcher(&self, launcher: &Path, home: &OsStr) -> Result<(), String> {
        let home = Some(Path::new(home)).filter(|home| home.parent().is_some());
        let installation = launcher.parent().and_then(Path::parent);
        let installation = installation.filter(|above| above.parent().is_some() && Some(*above) != home);
        let reads = |tree: &PathBuf| {
            let inside = installation.is_some_and(|above| tree.starts_with(above));
            inside || home.is_some_and(|home| is_setting(tree, home) || resolved(home).starts_with(tree))
        };
        match self.written.iter().find(|tree| reads(tree)) {
            None => Ok(()),
            Some(tree) => Err(format!("a launcher may read what lies in {}", self.over(tree).unwrap_or_default())),
        }
    }
}

/// A path in a home below a name that starts with a dot: settings of programs.
fn is_setting(path: &Path, home: &Path) -> bool {
    let name = path.strip_prefix(home).ok().and_then(|below| below.components().next());
    name.is_some_and(|name| name.as_os_str().as_encoded_bytes().starts_with(b"."))
}

/// The path without links; of one that is not there yet, without links in the part that is.
pub fn resolved(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there.and_then(|(above, real)| Some((real, path.strip_prefix(above).ok()?))) {
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_step_to_a_file_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().canonicalize().expect("real");
        let at = |name: &str| base.join(name);
        for name in ["tree/bin", "own/bin"] {
            std::fs::create_dir_all(at(name)).expect("made");
        }
        std::fs::write(at("own/bin/python3"), "").expect("made");
        // Its end lies outside, a step on the way does not.
        symlink(at("own/bin/python3"), at("tree/step")).expect("linked");
        symlink(at("tree/step"), at("own/through")).expect("linked");
        symlink(at("tree/not/yet"), at("own/later")).expect("linked");
        symlink(at("tree/bin"), at("own/folder")).expect("linked");
        symlink(at("own/bin/python3"), at("own/good")).expect("linked");
        let mut never = Never::default();
        never.written(&policy::Place { tree: at("tree"), tool: "a:b@1.0.0".into(), names: None, folder: None });
        for name in ["own/through", "own/later", "own/folder/python3", "tree/step", "tree/bin/x"] {
            let why = never.passes(&at(name)).expect_err(name);
            assert!(why.contains("a:b@1.0.0 could write in an earlier call"), "{why}");
        }
        for name in ["own/good", "own/bin/python3", "tree2/x"] {
            assert_eq!(never.passes(&at(name)), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_launcher_is_not_asked_where_a_tool_could_write_what_it_reads() {
        for (tree, good) in [
            ("/opt/asdf/installs", false),
            ("/home/u/.config", false),
            ("/home", false),
            ("/home/u/results", true),
            ("/opt/results", true),
        ] {
            let mut never = Never::default();
            never.written(&policy::Place { tree: tree.into(), tool: "a:b@1.0.0".into(), names: None, folder: None });
            let asked = never.near_a_launcher(Path::new("/opt/asdf/shims/python3"), OsStr::new("/home/u"));
            assert_eq!(asked.is_ok(), good, "{tree}: {asked:?}");
        }
    }
}
