//! Which manifests a script belongs to. A folder that holds a manifest belongs to its tools, with all below
//! it down to the next such folder; a script in no such folder belongs to all manifests that name it, and stays theirs
//! when a manifest that does not name it is put into a folder above it.
//!
//! A manifest elsewhere never takes, blocks or disables a tool that lies with its script.

use super::conflicts::{Incumbents, Refused};
use super::{Claim, Claimed, Tool, position};
use crate::base::text;
use crate::manifest::{Code, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where a manifest names its script.
const POINTER: &str = "/handler/scriptPath";

#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// By folder: the manifests in it whose script lies there or below.
    homes: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// By script: the manifests that name it. By folder: those that do not say which script in it is their own.
    named: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// Base folders of tools and scripts: one belongs to no tool, even if a manifest lies directly in it.
    bases: BTreeSet<PathBuf>,
    /// Scripts that a manifest elsewhere named before their folder became that of manifests which do not name them.
    kept: BTreeSet<PathBuf>,
}

impl Ownership {
    /// `claims`: of the manifests that cannot be loaded; `earlier`: the ownership until now.
    pub(super) fn new(tools: &[Tool], claims: &[Claim], earlier: &Ownership) -> Ownership {
        let mut all = Ownership::default();
        for tool in tools {
            if let Some(script) = &tool.site.script {
                all.bases.insert(tool.site.base.clone());
                all.add(&tool.site.manifest, script);
            }
        }
        for Claim { manifest, what } in claims {
            match what {
                Claimed::Scripts(scripts) => scripts.iter().for_each(|script| all.add(manifest, script)),
                Claimed::Beside(folder) => all.add(manifest, folder),
                Claimed::Any => all.add(manifest, manifest.parent().unwrap_or(manifest)),
            }
        }
        let found = tools.iter().filter_map(|tool| Some((tool.site.script.as_deref()?, &tool.site)));
        let below_home = |script: &Path| script.ancestors().any(|folder| all.homes.contains_key(folder));
        let kept = found.filter(|(script, _)| below_home(script)).filter(|(script, site)| {
            let owners = all.owners(script, &site.base);
            let manifest = site.manifest.as_path();
            let kept = || earlier.owners(script, &site.base).contains(manifest) || is_older(manifest, &owners);
            !owners.contains(manifest) && !owners.iter().any(|owner| all.names(owner, script)) && kept()
        });
        all.kept = kept.map(|(script, _)| script.to_path_buf()).collect();
        all
    }

    fn add(&mut self, manifest: &Path, names: &Path) {
        self.named.entry(names.to_path_buf()).or_default().insert(manifest.to_path_buf());
        if let Some(folder) = manifest.parent().filter(|folder| names.starts_with(folder)) {
            self.homes.entry(folder.to_path_buf()).or_default().insert(manifest.to_path_buf());
        }
    }

    /// The manifests that a script below this base belongs to.
    pub(super) fn owners(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let folder = script.parent().unwrap_or(base);
        let naming: BTreeSet<&Path> = self.naming(script).collect();
        let below_base = |folder: &&Path| folder.starts_with(base) && *folder != base && !self.bases.contains(*folder);
        let mut homes = folder.ancestors().take_while(below_base).filter_map(|folder| self.homes.get(folder));
        let home = match self.kept.contains(script) {
            true => homes.find(|home| home.iter().any(|manifest| naming.contains(manifest.as_path()))),
            false => homes.next(),
        };
        let near = |manifest: &&Path| match home {
            Some(home) => home.contains(*manifest),
            // Directly in a base, where scripts of all tools may lie.
            None => manifest.parent() == Some(folder),
        };
        let both: BTreeSet<&Path> = naming.iter().copied().filter(near).collect();
        match home {
            Some(home) if both.is_empty() => home.iter().map(PathBuf::as_path).collect(),
            None if both.is_empty() => naming,
            _ => both,
        }
    }

    /// The manifests that a call of the script answers to: its owners and, if none of those names it, all that do.
    pub(super) fn answers_to(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let mut manifests = self.owners(script, base);
        if !manifests.iter().any(|owner| self.names(owner, script)) {
            manifests.extend(self.naming(script));
        }
        manifests
    }

    /// The manifests of those tools that do not lie with their script, and in whose script's folder scripts of other
    /// such tools lie too.
    pub(super) fn guests<'s>(&self, sites: impl Iterator<Item = &'s Site>) -> BTreeSet<PathBuf> {
        // By folder: the folders of manifests elsewhere that own a script in it or below.
        let mut from: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (script, manifests) in &self.named {
            let folders = manifests.iter().filter_map(|manifest| manifest.parent());
            if folders.clone().all(|folder| script.starts_with(folder)) {
                continue;
            }
            let base = script.ancestors().find(|folder| self.bases.contains(*folder)).unwrap_or(Path::new("/"));
            let owners = self.owners(script, base);
            let owners = owners.iter().filter_map(|owner| owner.parent()).filter(|folder| !script.starts_with(folder));
            let owners: BTreeSet<&Path> = owners.collect();
            for folder in script.ancestors().skip(1).take_while(|folder| *folder != base) {
                from.entry(folder).or_default().extend(&owners);
            }
        }
        let guest = |site: &&Site| {
            let (Some(script), Some(folder)) = (&site.script, site.manifest.parent()) else { return false };
            let others =
                || from.get(site.folder.as_path()).is_some_and(|from| from.iter().any(|other| *other != folder));
            !script.starts_with(folder) && !mirrors(folder, script, &site.base) && others()
        };
        sites.filter(guest).map(|site| site.manifest.clone()).collect()
    }

    /// Does this manifest name the script, or may it mean it, since it does not say which script beside it is its own?
    pub(super) fn names(&self, manifest: &Path, script: &Path) -> bool {
        self.naming(script).any(|naming| naming == manifest)
    }

    fn naming<'s>(&'s self, script: &Path) -> impl Iterator<Item = &'s Path> + use<'s> {
        let names = [Some(script), script.parent()].map(|name| name.and_then(|name| self.named.get(name)));
        names.into_iter().flatten().flatten().map(PathBuf::as_path)
    }

    /// Takes out the tools that name a script which belongs to others, by its path or by a hard link.
    pub(super) fn turn_away(&self, tools: &mut Vec<Tool>, held: &Incumbents) -> Vec<Refused> {
        let mut refused = Vec::new();
        tools.retain(|tool| {
            let Some(script) = &tool.site.script else { return true };
            let owners = self.owners(script, &tool.site.base);
            let own = owners.contains(tool.site.manifest.as_path());
            if !own {
                let message = format!(
                    "it names {}, which belongs to {}: a folder that holds a manifest is its tools' own; put this manifest \
                     there, or give it a script of its own",
                    text::path(script),
                    list(&owners)
                );
                refused.push(stranger(tool, message));
            }
            own
        });
        let links = links(tools, held);
        let mut index = 0;
        tools.retain(|tool| {
            let message = links.get(&index);
            index += 1;
            refused.extend(message.map(|message| stranger(tool, message.clone())));
            message.is_none()
        });
        refused
    }
}

/// Has `folder` in a base beside this one the path that the script's folder, or one above, has in this base?
fn mirrors(folder: &Path, script: &Path, base: &Path) -> bool {
    let beside = folder.ancestors().find(|top| top.parent() == base.parent());
    let same = beside.and_then(|top| folder.strip_prefix(top).ok()).filter(|same| !same.as_os_str().is_empty());
    same.is_some_and(|same| script.starts_with(base.join(same)))
}

/// Was the manifest made before the first of these?
fn is_older(manifest: &Path, others: &BTreeSet<&Path>) -> bool {
    let made = |manifest: &Path| manifest.metadata().and_then(|facts| facts.created()).ok();
    let before = |made_then| others.iter().all(|other| made(other).is_some_and(|later| made_then < later));
    made(manifest).is_some_and(before)
}

/// By index of the tool: why its script is a hard link of another tool's. Of two tools in two folders the file belongs
/// to the one that was loaded before, else to the one with the older manifest: making a link disables no other tool.
fn links(tools: &[Tool], held: &Incumbents) -> BTreeMap<usize, String> {
    let mut files: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
    for (index, tool) in tools.iter().enumerate() {
        if let Some(file) = tool.site.script.as_deref().and_then(linked) {
            files.entry(file).or_default().push(index);
        }
    }
    let age = |tool: &Tool| {
        let born = tool.site.manifest.metadata().and_then(|facts| facts.created().or_else(|_| facts.modified()));
        (!held.has(tool), born.unwrap_or_else(|_| SystemTime::now()))
    };
    let mut found = BTreeMap::new();
    for same in files.values().filter(|same| same.len() > 1) {
        let Some(owner) = same.iter().filter_map(|index| tools.get(*index)).min_by_key(|tool| age(tool)) else {
            continue;
        };
        for index in same {
            let site = &tools[*index].site;
            if site.script != owner.site.script && site.manifest.parent() != owner.site.manifest.parent() {
                let (script, own) = (site.script.as_deref(), owner.site.script.as_deref());
                let message = format!(
                    "{} is a hard link of {}, which belongs to {}: copy the file instead",
                    text::path(script.unwrap_or(Path::new(""))),
                    text::path(own.unwrap_or(Path::new(""))),
                    text::path(&owner.site.manifest)
                );
                found.insert(*index, message);
            }
        }
    }
    found
}

/// Device and inode of a file that has several names.
pub(super) fn linked(file: &Path) -> Option<(u64, u64)> {
    let facts = file.symlink_metadata().ok().filter(|facts| facts.nlink() > 1)?;
    Some((facts.dev(), facts.ino()))
}

fn stranger(tool: &Tool, message: String) -> Refused {
    let at = position(&tool.site.manifest, POINTER);
    let told = format!("{}: {message}", text::path(&tool.site.manifest));
    Refused { at, told, pointer: POINTER.into(), ..Refused::new(tool.clone(), Code::Security, message) }
}

fn list(manifests: &BTreeSet<&Path>) -> String {
    let named: Vec<String> = manifests.iter().take(3).map(|path| text::path(path)).collect();
    let more = manifests.len().saturating_sub(named.len());
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}
