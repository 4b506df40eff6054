//! Which manifests a script belongs to, and which files were written by tools.
//!
//! A script belongs to the manifests of the nearest folder, its own or above, that holds any: to
//! those that name it, else to all of them. Only where no such folder exists does it belong to
//! every manifest that names it. A manifest that is not loaded still owns. Nothing is loaded from a
//! tree that a tool may or could write: a tool cannot make tools.

use super::conflicts::{Incumbents, Refused, written_by};
use super::tool::{Claim, Tool};
use crate::base::text;
use crate::manifest::{Code, Skill};
use crate::policy;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Where a manifest names its script.
const POINTER: &str = "/handler/scriptPath";

#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// By folder: the manifests in it whose script lies there or below.
    homes: HashMap<PathBuf, BTreeSet<PathBuf>>,
    /// By script: the manifests that name it. By folder: those that may own any script in it.
    named: HashMap<PathBuf, BTreeSet<PathBuf>>,
    /// Base folders of tools and scripts. No tool owns a base, even if its manifest lies directly
    /// in it.
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
            scripts
                .clone()
                .unwrap_or_else(|| vec![manifest.parent().unwrap_or(manifest).to_path_buf()])
                .iter()
                .for_each(|script| all.add(manifest, script));
        }
        all
    }

    fn add(&mut self, manifest: &Path, script: &Path) {
        self.named
            .entry(script.to_path_buf())
            .or_default()
            .insert(manifest.to_path_buf());
        if let Some(folder) = manifest
            .parent()
            .filter(|folder| script.starts_with(folder))
        {
            self.homes
                .entry(folder.to_path_buf())
                .or_default()
                .insert(manifest.to_path_buf());
        }
    }

    /// The manifests that a script below this base belongs to.
    fn owners(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let folder = script.parent().unwrap_or(base);
        let naming: BTreeSet<&Path> = self.naming(script).collect();
        let home = folder
            .ancestors()
            .take_while(|folder: &&Path| {
                folder.starts_with(base) && *folder != base && !self.bases.contains(*folder)
            })
            .find_map(|folder| self.homes.get(folder));
        let near: BTreeSet<&Path> = match home {
            Some(home) => naming
                .iter()
                .copied()
                .filter(|manifest| home.contains(*manifest))
                .collect(),
            // Directly in a base, where scripts of all tools may lie.
            None => naming
                .iter()
                .copied()
                .filter(|manifest| manifest.parent() == Some(folder))
                .collect(),
        };
        match home {
            _ if !near.is_empty() => near,
            Some(home) => home.iter().map(PathBuf::as_path).collect(),
            None => naming,
        }
    }

    /// The manifests that bound a call of the script: its owners and, if none of those names it,
    /// all that name it.
    pub(super) fn bounding_manifests(&self, script: &Path, base: &Path) -> BTreeSet<&Path> {
        let mut manifests = self.owners(script, base);
        if !manifests.iter().any(|owner| self.names(owner, script)) {
            manifests.extend(self.naming(script));
        }
        manifests
    }

    /// Does this manifest name the script, or may any script of that folder be its own?
    pub(super) fn names(&self, manifest: &Path, script: &Path) -> bool {
        self.naming(script).any(|naming| naming == manifest)
    }

    fn naming<'s>(&'s self, script: &Path) -> impl Iterator<Item = &'s Path> + use<'s> {
        let names =
            [Some(script), script.parent()].map(|name| name.and_then(|name| self.named.get(name)));
        names.into_iter().flatten().flatten().map(PathBuf::as_path)
    }

    /// Takes out the tools that name a script which belongs to others.
    pub(super) fn refuse_foreign_scripts(&self, tools: &mut Vec<Tool>) -> Vec<Refused> {
        take_out(tools, |tool: &Tool| {
            let script = tool.site.script.as_ref()?;
            // A linked folder lies in no base.
            let base = if tool.site.links.is_empty() {
                &tool.site.base
            } else {
                Path::new("/")
            };
            let owners = self.owners(script, base);
            (!owners.contains(tool.site.manifest.as_path())).then(|| {
                let message = format!(
                    "it names {}, which belongs to {}: scripts belong to the manifests of their \
                     folder; put this manifest there, or give it a script of its own",
                    text::path(script),
                    list(&owners)
                );
                foreign_refusal(tool, message)
            })
        })
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

fn foreign_refusal(tool: &Tool, message: String) -> Refused {
    let summary = format!("{}: {message}", text::path(&tool.site.manifest));
    Refused {
        summary,
        pointer: POINTER.into(),
        ..Refused::new(tool.clone(), Code::Security, message)
    }
}

fn list(manifests: &BTreeSet<&Path>) -> String {
    let named: Vec<String> = manifests
        .iter()
        .take(3)
        .map(|path| text::path(path))
        .collect();
    let more = manifests.len().saturating_sub(named.len());
    if more > 0 {
        format!("{} and {more} more", named.join(", "))
    } else {
        named.join(", ")
    }
}

/// Takes out the tools whose manifest or script some tool could write.
pub(super) fn withhold(tools: &mut Vec<Tool>, written: &policy::WritablePaths) -> Vec<Refused> {
    take_out(tools, |tool| {
        let writer = definition(tool).find_map(|file| written.by(&file))?;
        Some(Refused::new(
            tool.clone(),
            Code::Security,
            written_by(&writer),
        ))
    })
}

/// The write trees in tools' own folders: nothing below one is registered. Outer trees are judged
/// first. A tree does not count if it holds a tool of `standing` or one whose tree counts, or if
/// its own tool lies below one that counts. A tree elsewhere keeps nothing from being loaded:
/// policy refuses to grant it while it holds a tool.
pub(super) fn own_trees(
    tools: &[Tool],
    policies: &policy::Policies,
    machine: &policy::Machine,
    standing: &Incumbents,
) -> policy::WritablePaths {
    let mut trees: Vec<(&Tool, policy::WritablePath)> = Vec::new();
    for tool in tools
        .iter()
        .filter(|tool| writes(tool) && tool.site.folder != tool.site.base)
    {
        let grants = policy::decide(&tool.manifest, &tool.site, policies, machine)
            .grants
            .files;
        let places = policy::WritablePath::of_grants(&grants, &tool.reference()).into_iter();
        trees.extend(
            places
                .filter(|place| place.tree.starts_with(&tool.site.folder))
                .map(|place| (tool, place)),
        );
    }
    let mut all = policy::WritablePaths::default();
    if trees.is_empty() {
        return all;
    }
    trees.sort_by_key(|(_, place)| (place.tree.components().count(), place.tree.clone()));
    let mut registered: BTreeSet<PathBuf> = tools
        .iter()
        .filter(|tool| standing.has(tool))
        .flat_map(definition)
        .collect();
    for (tool, place) in trees {
        let holds = registered
            .range(place.tree.clone()..)
            .next()
            .is_some_and(|file| file.starts_with(&place.tree));
        if !holds && definition(tool).all(|file| all.by(&file).is_none()) {
            registered.extend(definition(tool));
            all.add(place);
        }
    }
    all
}

fn writes(tool: &Tool) -> bool {
    let manifest = &tool.manifest;
    // What its server writes, a tool writes. What a skill writes is for its policy alone to say.
    manifest.skill().is_some()
        || !manifest.requested.write.is_empty() && manifest.mcp_tool().is_none()
}

pub(super) fn writable_paths<'t>(
    tools: impl Iterator<Item = &'t Tool>,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> policy::WritablePaths {
    let writers = tools.filter(|tool| writes(tool));
    let decisions: Vec<_> = writers
        .map(|tool| policy::decide(&tool.manifest, &tool.site, policies, machine))
        .collect();
    policy::WritablePaths::of_tools(
        decisions
            .iter()
            .map(|it| (it.identity.tool.as_str(), it.grants.files.as_slice())),
    )
}

/// What makes the tool: its manifest and its script, if they are files, and the links that lead to
/// its folder.
fn definition(tool: &Tool) -> impl Iterator<Item = PathBuf> + use<> {
    let files = [Some(tool.site.manifest.clone()), tool.site.script.clone()];
    let files = files.into_iter().flatten().chain(tool.site.links.clone());
    files.filter(|path| !path.as_os_str().is_empty())
}

/// That, and the scripts of a skill: one that lies where the skill may write is data, and no script.
pub(super) fn files(tool: &Tool) -> impl Iterator<Item = PathBuf> + use<> {
    let scripts = tool.manifest.skill().into_iter().flat_map(Skill::scripts);
    let scripts: Vec<PathBuf> = scripts.map(|it| tool.site.folder.join(it.0)).collect();
    definition(tool).chain(scripts)
}
