//! Which manifests a script belongs to, and which files were written by tools.
//!
//! A script belongs to the manifests of the nearest folder, its own or above, that holds any: to those that name it,
//! else to all of them. Only where no such folder exists does it belong to every manifest that names it. A manifest
//! that is not loaded still owns. Nothing is loaded from a tree that a tool may or could write: a tool cannot make
//! tools.

use super::conflicts::{Incumbents, Refused, written_by};
use super::tool::{Claim, Tool};
use crate::base::text;
use crate::manifest::{Code, ToolPaths};
use crate::policy;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where a manifest names its script.
const POINTER: &str = "/handler/scriptPath";

#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// By folder: the manifests in it whose script lies there or below.
    homes: HashMap<PathBuf, BTreeSet<PathBuf>>,
    /// By script: the manifests that name it. By folder: those that may own any script in it.
    named: HashMap<PathBuf, BTreeSet<PathBuf>>,
    /// Base folders of tools and scripts. No tool owns a base, even if its manifest lies directly in it.
    bases: BTreeSet<PathBuf>,
}

impl Ownership {
    pub(super) fn new(tools: &[Tool], claims: &[Claim]) -> Ownership {
        let mut all = Ownership::default();
        for tool in tools {
            if let Some(script) = &tool.site.script {
                all.bases.insert(tool.site.base.clone());
                all.add(&tool.site.manifest, script);
            }
        }
        for Claim { manifest, scripts } in claims {
            let folder = || vec![manifest.parent().unwrap_or(manifest).to_path_buf()];
            scripts.clone().unwrap_or_else(folder).iter().for_each(|script| all.add(manifest, script));
        }
        all
    }

    fn add(&mut self, manifest: &Path, script: &Path) {
        self.named.entry(script.to_path_buf()).or_default().insert(manifest.to_path_buf());
        if let Some(folder) = manifest.parent().filter(|folder| script.starts_with(folder)) {
            self.homes.entry(folder.to_path_buf()).or_default().insert(manifest.to_path_buf());
        }
    }

    /// The manifests that a script below this base belongs to.
    fn owners(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let folder = script.parent().unwrap_or(base);
        let naming: BTreeSet<&Path> = self.naming(script).collect();
        let below_base = |folder: &&Path| folder.starts_with(base) && *folder != base && !self.bases.contains(*folder);
        let home = folder.ancestors().take_while(below_base).find_map(|folder| self.homes.get(folder));
        let near: BTreeSet<&Path> = match home {
            Some(home) => naming.iter().copied().filter(|manifest| home.contains(*manifest)).collect(),
            // Directly in a base, where scripts of all tools may lie.
            None => naming.iter().copied().filter(|manifest| manifest.parent() == Some(folder)).collect(),
        };
        match home {
            _ if !near.is_empty() => near,
            Some(home) => home.iter().map(PathBuf::as_path).collect(),
            None => naming,
        }
    }

    /// The manifests that bound a call of the script: its owners and, if none of those names it, all that name it.
    pub(super) fn bounding_manifests(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let mut manifests = self.owners(script, base);
        if !manifests.iter().any(|owner| self.names(owner, script)) {
            manifests.extend(self.naming(script));
        }
        manifests
    }

    /// The manifests of guests: tools that see only their script. Such a manifest lies neither with its script nor in
    /// the folder of the same path in another base, and the script's folder holds scripts of other such tools.
    pub(super) fn guests<'s>(&self, sites: impl Iterator<Item = &'s ToolPaths>) -> BTreeSet<PathBuf> {
        // By folder: the folders of manifests elsewhere that own a script in it or below.
        let mut from: HashMap<&Path, BTreeSet<&Path>> = HashMap::new();
        for (script, manifests) in &self.named {
            let lies_with = |manifest: &Path| manifest.parent().is_some_and(|folder| script.starts_with(folder));
            if manifests.iter().all(|manifest| lies_with(manifest)) {
                continue;
            }
            let base = script.ancestors().find(|folder| self.bases.contains(*folder)).unwrap_or(Path::new("/"));
            let owners = self.owners(script, base).into_iter().filter(|owner| !lies_with(owner));
            let owners: BTreeSet<&Path> = owners.filter_map(Path::parent).collect();
            for folder in script.ancestors().skip(1).take_while(|folder| *folder != base) {
                from.entry(folder).or_default().extend(&owners);
            }
        }
        let guest = |site: &&ToolPaths| {
            let (Some(script), Some(folder)) = (&site.script, site.manifest.parent()) else { return false };
            let others = from.get(site.folder.as_path()).is_some_and(|from| from.iter().any(|other| *other != folder));
            others && !script.starts_with(folder) && !mirrors(folder, script, &site.base)
        };
        sites.filter(guest).map(|site| site.manifest.clone()).collect()
    }

    /// Does this manifest name the script, or may any script of that folder be its own?
    pub(super) fn names(&self, manifest: &Path, script: &Path) -> bool {
        self.naming(script).any(|naming| naming == manifest)
    }

    fn naming<'s>(&'s self, script: &Path) -> impl Iterator<Item = &'s Path> + use<'s> {
        let names = [Some(script), script.parent()].map(|name| name.and_then(|name| self.named.get(name)));
        names.into_iter().flatten().flatten().map(PathBuf::as_path)
    }

    /// Takes out the tools that name a script which belongs to others, by its path or by a hard link.
    pub(super) fn refuse_foreign_scripts(&self, tools: &mut Vec<Tool>, incumbents: &Incumbents) -> Vec<Refused> {
        let foreign = |tool: &Tool| {
            let script = tool.site.script.as_ref()?;
            let owners = self.owners(script, &tool.site.base);
            (!owners.contains(tool.site.manifest.as_path())).then(|| {
                let message = format!(
                    "it names {}, which belongs to {}: scripts belong to the manifests of their folder; put this \
                     manifest there, or give it a script of its own",
                    text::path(script),
                    list(&owners)
                );
                foreign_refusal(tool, message)
            })
        };
        let mut refused = take_out(tools, foreign);
        let owner = linked_owners(tools, incumbents);
        refused.extend(take_out(tools, |tool| {
            let script = tool.site.script.as_ref()?;
            let own = owner.get(&linked_file_id(script)?)?;
            let is_own = own.script == tool.site.script || own.manifest.parent() == tool.site.manifest.parent();
            (!is_own).then(|| {
                let (script, manifest) = (text::path(script), text::path(&own.manifest));
                let message =
                    format!("{script} is a hard link of a script which belongs to {manifest}: copy the file instead");
                foreign_refusal(tool, message)
            })
        }));
        refused
    }
}

fn take_out(tools: &mut Vec<Tool>, why: impl Fn(&Tool) -> Option<Refused>) -> Vec<Refused> {
    let mut refused = Vec::new();
    tools.retain(|tool| {
        let why = why(tool);
        let stays = why.is_none();
        refused.extend(why);
        stays
    });
    refused
}

/// By script with hard links: its owner. Of two tools the owner is the one that was loaded before, else the
/// one with the older manifest: making a link disables no other tool.
fn linked_owners(tools: &[Tool], incumbents: &Incumbents) -> BTreeMap<(u64, u64), ToolPaths> {
    let born = |site: &ToolPaths| {
        let facts = site.manifest.metadata();
        facts.and_then(|facts| facts.created().or_else(|_| facts.modified())).unwrap_or_else(|_| SystemTime::now())
    };
    let mut first: BTreeMap<(u64, u64), (bool, SystemTime, &ToolPaths)> = BTreeMap::new();
    for tool in tools {
        if let Some(file) = tool.site.script.as_deref().and_then(linked_file_id) {
            let claim = (!incumbents.has(tool), born(&tool.site), &tool.site);
            let own = first.entry(file).or_insert(claim);
            if (claim.0, claim.1) < (own.0, own.1) {
                *own = claim;
            }
        }
    }
    first.into_iter().map(|(file, (.., site))| (file, site.clone())).collect()
}

/// Device and inode of a file that has several names.
pub(super) fn linked_file_id(file: &Path) -> Option<(u64, u64)> {
    let facts = file.symlink_metadata().ok().filter(|facts| facts.nlink() > 1)?;
    Some((facts.dev(), facts.ino()))
}

/// Whether the path of `folder` in a base beside this one is that of the script's folder, or one above, in this base.
fn mirrors(folder: &Path, script: &Path, base: &Path) -> bool {
    let beside = folder.ancestors().find(|top| top.parent() == base.parent());
    let same = beside.and_then(|top| folder.strip_prefix(top).ok()).filter(|same| !same.as_os_str().is_empty());
    same.is_some_and(|same| script.starts_with(base.join(same)))
}

fn foreign_refusal(tool: &Tool, message: String) -> Refused {
    let summary = format!("{}: {message}", text::path(&tool.site.manifest));
    Refused { summary, pointer: POINTER.into(), ..Refused::new(tool.clone(), Code::Security, message) }
}

fn list(manifests: &BTreeSet<&Path>) -> String {
    let named: Vec<String> = manifests.iter().take(3).map(|path| text::path(path)).collect();
    let more = manifests.len().saturating_sub(named.len());
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

/// Takes out the tools whose manifest or script some tool could write.
pub(super) fn withhold(tools: &mut Vec<Tool>, written: &policy::WritablePaths) -> Vec<Refused> {
    take_out(tools, |tool| {
        let writer = files(tool).find_map(|file| written.by(&file))?;
        Some(Refused::new(tool.clone(), Code::Security, written_by(&writer)))
    })
}

/// The write trees in tools' own folders: nothing below one is registered. Outer trees are judged first. A tree does
/// not count if it holds a tool of `standing` or one whose tree counts, or if its own tool lies below one that counts.
/// A tree elsewhere keeps nothing from being loaded: policy refuses to grant it while it holds a tool.
pub(super) fn own_trees(
    tools: &[Tool],
    policies: &policy::Policies,
    machine: &policy::Machine,
    standing: &Incumbents,
) -> policy::WritablePaths {
    let mut trees: Vec<(&Tool, policy::WritablePath)> = Vec::new();
    for tool in tools.iter().filter(|tool| writes(tool) && tool.site.folder != tool.site.base) {
        let grants = policy::decide(&tool.manifest, &tool.site, policies, machine).grants;
        let places = policy::WritablePath::of_grants(&grants, &tool.reference()).into_iter();
        trees.extend(places.filter(|place| place.tree.starts_with(&tool.site.folder)).map(|place| (tool, place)));
    }
    let mut all = policy::WritablePaths::default();
    if trees.is_empty() {
        return all;
    }
    trees.sort_by_key(|(_, place)| (place.tree.components().count(), place.tree.clone()));
    let mut registered: BTreeSet<PathBuf> = tools.iter().filter(|tool| standing.has(tool)).flat_map(files).collect();
    for (tool, place) in trees {
        let holds = registered.range(place.tree.clone()..).next().is_some_and(|file| file.starts_with(&place.tree));
        if !holds && files(tool).all(|file| all.by(&file).is_none()) {
            registered.extend(files(tool));
            all.add(place);
        }
    }
    all
}

fn writes(tool: &Tool) -> bool {
    !tool.manifest.requested.write.is_empty()
}

/// The trees that these tools are granted to read by `base:`.
pub(super) fn base_trees<'t>(
    tools: impl Iterator<Item = &'t Tool>,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> BTreeSet<PathBuf> {
    let readers = tools.filter(|tool| tool.manifest.requested.read.iter().flatten().any(|read| read.from_base));
    let grants = readers.flat_map(|tool| policy::decide(&tool.manifest, &tool.site, policies, machine).grants);
    grants.filter_map(|grant| grant.base_tree().map(PathBuf::from)).collect()
}

pub(super) fn writable_paths<'t>(
    tools: impl Iterator<Item = &'t Tool>,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> policy::WritablePaths {
    let writers = tools.filter(|tool| writes(tool));
    let decisions: Vec<_> = writers.map(|tool| policy::decide(&tool.manifest, &tool.site, policies, machine)).collect();
    policy::WritablePaths::of_tools(decisions.iter().map(|it| (it.tool.as_str(), it.grants.as_slice())))
}

/// The tool's manifest and script, if they are files.
pub(super) fn files(tool: &Tool) -> impl Iterator<Item = PathBuf> + use<> {
    let files = [Some(tool.site.manifest.clone()), tool.site.script.clone()];
    files.into_iter().flatten().filter(|path| !path.as_os_str().is_empty())
}
