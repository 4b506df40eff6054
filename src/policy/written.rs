//! What tools may write, asked about one path: nothing in there is ever loaded or run as a tool.
//!
//! For: registry (what is loaded), service (scripts that a call names). In: decisions. Out: who may write a path.
//! Never: looks at the file system.

use super::area::Area;
use super::decide::SCRIPT_FOLDER;
use super::verdict::Decision;
use super::{Access, Opening};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The write grants of many tools.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Trees, with the words for who may write them.
    trees: BTreeMap<PathBuf, String>,
    /// Files of one folder.
    names: BTreeMap<PathBuf, Vec<(Area, String)>>,
    /// Trees below the folder of whatever script a builtin tool runs.
    anywhere: BTreeMap<PathBuf, String>,
}

impl Written {
    pub fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Written {
        let mut written = Written::default();
        for decision in decisions {
            for grant in decision.grants.iter().filter(|grant| grant.access == Access::Write) {
                written.add(&grant.opening, &format!("{} may write", decision.tool));
            }
        }
        written
    }

    /// A tree that a tool could write in an earlier call, whatever it may now.
    pub fn before(&mut self, tree: PathBuf, tool: &str) {
        self.trees.entry(tree).or_insert_with(|| format!("{tool} could write in an earlier call"));
    }

    /// What these may write, and what was known before.
    pub fn since(mut self, earlier: &Written) -> Written {
        for (tree, tool) in &earlier.trees {
            self.trees.entry(tree.clone()).or_insert_with(|| tool.clone());
        }
        self
    }

    fn add(&mut self, opening: &Opening, who: &str) {
        let area = Area::of(opening);
        match (&area, area.folder().strip_prefix(SCRIPT_FOLDER)) {
            (Area::Tree(_), Ok(below)) if !below.as_os_str().is_empty() => {
                self.anywhere.insert(below.to_path_buf(), who.to_owned());
            }
            (_, Ok(_)) => {}
            (Area::Tree(path), Err(_)) => {
                self.trees.insert(path.clone(), who.to_owned());
            }
            (_, Err(_)) => {
                self.names.entry(area.folder().to_path_buf()).or_default().push((area.clone(), who.to_owned()));
            }
        }
    }

    /// Who may write this path: `ops:x may write`.
    pub fn by(&self, path: &Path) -> Option<&str> {
        let named = path.parent().and_then(|folder| self.names.get(folder)).into_iter().flatten();
        let named = named.filter(|(area, _)| area.holds(path)).map(|(_, tool)| tool);
        let trees = path.ancestors().filter_map(|ancestor| self.trees.get(ancestor));
        let anywhere = self.anywhere.iter().filter(|(tree, _)| path.ancestors().any(|a| a.ends_with(tree)));
        trees.chain(named).chain(anywhere.map(|(_, tool)| tool)).next().map(String::as_str)
    }
}
