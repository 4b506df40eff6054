//! Files: the paths that a manifest requests ∩ the rules of the policy ∩ those of the cap, exactly.

use super::ceiling::{Ceiling, Ceilings};
use super::hard_denials::HardDenials;
use super::verdict::{Answers, Narrower, Refusal, RequestKind, Verdict};
use super::writable;
use crate::base::layer::Layer;
use crate::base::place::Mounts;
use crate::base::text;
use crate::manifest::{Manifest, Pattern, PatternShape, ToolPaths};
use crate::policy::grammar::{Access, Area, Grant, Grantable, Policy, Rule, area};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The path of the call's own scratch.
const SCRATCH: &str = "/tmp";
const LAYERS: [Layer; 2] = [Layer::View, Layer::Landlock];

/// Whether the area belongs to other tools, too: the tool is a guest, or the area holds a whole
/// script base folder. Only a rule with an absolute path opens it, not a relative one ("its own
/// folder").
pub fn is_shared(site: &ToolPaths, area: &Area) -> bool {
    let base = &site.base;
    site.is_guest()
        || (!base.as_os_str().is_empty()
            && matches!(area, Area::Tree(tree) if base.starts_with(tree)))
}

/// What decides about the files that a tool requests.
pub struct FileRequests<'a> {
    pub site: &'a ToolPaths,
    pub ceilings: &'a Ceilings<'a>,
    pub denials: &'a HardDenials<'a>,
}

/// The answer to one request.
struct FileAnswer {
    verdict: Verdict,
    grants: Vec<Grant>,
}

/// A part of a request that is granted, and by which rule of the policy.
#[derive(Clone)]
struct Part<'a> {
    area: Area,
    rule: Option<&'a Rule>,
}

impl FileRequests<'_> {
    pub fn grants_of(&self, manifest: &Manifest, answers: &mut Answers) -> Vec<Grant> {
        let requested = &manifest.requested;
        let mut found = match &requested.read {
            Some(patterns) => self.patterns(Access::Read, patterns).collect(),
            None => self.own_folder(),
        };
        found.extend(self.patterns(Access::Write, &requested.write));
        let mut grants = Vec::new();
        for answer in found {
            answers.verdicts.push(answer.verdict);
            grants.extend(answer.grants);
        }
        let mut grants = least(grants);
        if let Some(folder) = writable::common_folder(&grants)
            && let Some(why) =
                self.denials
                    .reason(Access::Write, &Area::Tree(folder.clone()), false)
        {
            let refusal = Refusal {
                narrower: Narrower::BuiltIn,
                reason: format!(
                    "of more than {} places the folder above them counts: {why}",
                    writable::MAX_PLACES
                ),
            };
            let verdict = refusal.verdict(RequestKind::Write, text::path(&folder), &LAYERS);
            answers.verdicts.push(verdict);
            grants.retain(|grant| grant.access == Access::Read);
        }
        grants
    }

    fn patterns(&self, access: Access, patterns: &[Pattern]) -> impl Iterator<Item = FileAnswer> {
        patterns
            .iter()
            .map(move |pattern| self.pattern(access, pattern))
    }

    /// Without `allowRead`: the tool's own folder, as far as the policy allows. A tool without a
    /// request is not refused: where it gets less it gets its script, and the verdict says why.
    fn own_folder(&self) -> Vec<FileAnswer> {
        let own = Area::Tree(self.site.folder.clone());
        let shared = self.site.folder == self.site.base;
        let mut found = Vec::new();
        if !self.site.is_guest() && !shared {
            let mut answer = self.area(Access::Read, "(default)", &own);
            if answer.verdict.allowed {
                return vec![answer];
            }
            // Where another tool that names this script narrows it, the verdict names that tool.
            answer.verdict.allowed = answer.verdict.narrower != Some(Narrower::Owner);
            if answer.verdict.effective.is_some() {
                found.push(answer);
            }
        }
        let mut script = self.own_script("(default)");
        script.verdict.reason = Some(if shared {
            "the script lies directly in a base folder: give it a folder of its own".to_owned()
        } else {
            self.unmet(Access::Read, &own).reason
        });
        found.push(script);
        found
    }

    fn own_script(&self, requested: &str) -> FileAnswer {
        let Some(script) = &self.site.script else {
            return FileAnswer {
                verdict: met(Access::Read, requested, "the script itself", &LAYERS),
                grants: Vec::new(),
            };
        };
        let rule = "built-in: self";
        let why = "a tool can always read its own script";
        let effective = format!("{} (the script itself)", script.display());
        FileAnswer {
            verdict: met(Access::Read, requested, &effective, &LAYERS)
                .because(rule, why, "built-in"),
            grants: vec![Grant {
                access: Access::Read,
                area: Area::File(script.clone()),
                asked: requested.to_owned(),
                rule: rule.into(),
                why: why.into(),
            }],
        }
    }

    fn pattern(&self, access: Access, pattern: &Pattern) -> FileAnswer {
        let from = if pattern.from_base {
            &self.site.base
        } else {
            &self.site.folder
        };
        let request = match &pattern.shape {
            PatternShape::SelfScript if access == Access::Read => {
                return self.own_script(&pattern.text);
            }
            PatternShape::SelfScript => self.site.script.clone().map(Area::File),
            PatternShape::Tree { path } => area::join(from, path).map(Area::Tree),
            PatternShape::File { path } => area::join(from, path).map(Area::File),
            PatternShape::Names { folder, names } => {
                area::join(from, folder).map(|folder| Area::Names {
                    folder,
                    names: area::glob_of_pattern(names),
                })
            }
        };
        if let Some(request) = request {
            return self.area(access, &pattern.text, &request);
        }
        let refusal = Refusal {
            narrower: Narrower::BuiltIn,
            reason: "not a path of plain components".to_owned(),
        };
        FileAnswer {
            verdict: refusal.verdict(kind(access), &pattern.text, &LAYERS),
            grants: Vec::new(),
        }
    }

    fn area(&self, access: Access, requested: &str, request: &Area) -> FileAnswer {
        if is_scratch(request) {
            let why = "every call has its own, empty at the start and gone at the end";
            let effective = "/tmp (the call's own scratch)";
            return FileAnswer {
                verdict: met(access, requested, effective, &[Layer::Scratch]).because(
                    "built-in: /tmp",
                    why,
                    "built-in",
                ),
                grants: Vec::new(),
            };
        }
        let parts: Vec<Part<'_>> = self.parts(access, request).collect();
        let mut verdict = self.verdict(access, requested, request, &parts);
        verdict.area = Some(request.clone());
        let grants = parts.into_iter().filter_map(|part| {
            let rule = part.rule?;
            Some(Grant {
                access,
                area: part.area,
                asked: requested.to_owned(),
                rule: rule_name(self.ceilings.policy, rule),
                why: rule.why.clone(),
            })
        });
        FileAnswer {
            verdict,
            grants: grants.collect(),
        }
    }

    fn verdict(
        &self,
        access: Access,
        requested: &str,
        request: &Area,
        parts: &[Part<'_>],
    ) -> Verdict {
        let policy = self.ceilings.policy;
        let Some(Part {
            area,
            rule: Some(rule),
        }) = parts.first()
        else {
            let refusal = self.refusal(access, request);
            return refusal.verdict(kind(access), requested, &LAYERS);
        };
        let staged = access == Access::Write && !matches!(area, Area::Tree(_));
        let layers: &[Layer] = if staged {
            &[Layer::Scratch, Layer::View, Layer::Landlock]
        } else {
            &LAYERS
        };
        let effective: Vec<String> = parts
            .iter()
            .map(|part| effective(access, &part.area))
            .collect();
        let verdict = met(access, requested, &effective.join(", "), layers).because(
            rule_name(policy, rule),
            &rule.why,
            policy.place(rule.at),
        );
        if parts.iter().any(|part| part.area == *request) {
            return verdict;
        }
        verdict.only_in_part(self.refusal(access, request))
    }

    /// The request, narrowed by the rules of each ceiling: the largest parts, each with the rule of
    /// the policy. At each ceiling what is never granted is dropped, because the next one could
    /// narrow it to something that passes.
    fn parts(&self, access: Access, request: &Area) -> impl Iterator<Item = Part<'_>> {
        let whole = Part {
            area: request.clone(),
            rule: None,
        };
        let parts = self.ceilings.narrowed(
            whole,
            |policy| policy.files.allowing(access),
            |part, rule| {
                let area = part.area.overlap(&rule.area_at(&self.site.folder))?;
                let foreign = part.rule.is_none() && rule.relative && is_shared(self.site, &area);
                let rule = part.rule.unwrap_or(rule);
                let is_exact = rule.area_at(&self.site.folder) == area;
                let is_open = !foreign && self.denials.reason(access, &area, is_exact).is_none();
                let rule = Some(rule);
                is_open.then_some(Part { area, rule })
            },
            |wide, part| part.area.within(&wide.area),
        );
        parts.into_iter().filter(|part| !is_scratch(&part.area))
    }

    /// Why a request is not granted, or not in full.
    fn refusal(&self, access: Access, request: &Area) -> Refusal {
        match self.denials.reason(access, request, false) {
            Some(reason) => Refusal {
                narrower: Narrower::BuiltIn,
                reason,
            },
            None => self.unmet(access, request),
        }
    }

    /// The ceiling that does not allow the request.
    fn unmet(&self, access: Access, request: &Area) -> Refusal {
        let ceiling = self
            .ceilings
            .refusing(|ceiling| self.allows(ceiling, access, request));
        let table = format!("[files] {}", access.name());
        let mut refusal = ceiling.refusal(&table, &request.text());
        if self.is_foreign(&ceiling, request) {
            refusal.reason.push_str(
                "; it is not the tool's own folder (its manifest lies elsewhere, or it is a base \
                 folder), so only an absolute path opens it: give the tool a folder of its own",
            );
        }
        refusal
    }

    fn allows(&self, ceiling: &Ceiling<'_>, access: Access, request: &Area) -> bool {
        let foreign = self.is_foreign(ceiling, request);
        let mut rules = ceiling.policy.files.allowing(access);
        rules.any(|rule| {
            !(rule.relative && foreign) && request.within(&rule.area_at(&self.site.folder))
        })
    }

    /// Whether only an absolute rule of this policy opens the request.
    fn is_foreign(&self, ceiling: &Ceiling<'_>, request: &Area) -> bool {
        ceiling.narrower == Narrower::Policy && is_shared(self.site, request)
    }
}

fn met(access: Access, requested: &str, effective: &str, layers: &[Layer]) -> Verdict {
    Verdict::met(kind(access), requested, effective, layers)
}

fn is_scratch(area: &Area) -> bool {
    *area == Area::Tree(PathBuf::from(SCRATCH))
}

/// The grants that no other covers, in their order. Sorted by path, what a tree covers comes after
/// it, so that each is compared only with the trees above it and the grants of the same files.
fn least(grants: Vec<Grant>) -> Vec<Grant> {
    let mounts = Mounts::current();
    let mut order: Vec<usize> = (0..grants.len()).collect();
    order.sort_by_cached_key(|at| {
        let Grant { access, area, .. } = &grants[*at];
        (
            area.path().to_path_buf(),
            !matches!(area, Area::Tree(_)),
            area.clone(),
            Reverse(*access),
            grants[*at].base_tree().is_none(),
        )
    });
    let mut near: Vec<usize> = Vec::new();
    let mut widest = BTreeSet::new();
    for at in order {
        let this = &grants[at].area;
        while near
            .last()
            .is_some_and(|last: &usize| match &grants[*last].area {
                Area::Tree(tree) => !this.path().starts_with(tree),
                other => other != this,
            })
        {
            near.pop();
        }
        if !near.iter().any(|wide| {
            grants[*wide].covers(&grants[at])
                && !is_mounted_between(grants[*wide].area.path(), this.path(), &mounts)
        }) {
            near.push(at);
            widest.insert(at);
        }
    }
    grants
        .into_iter()
        .enumerate()
        .filter(|(at, _)| widest.contains(at))
        .map(|(_, grant)| grant)
        .collect()
}

/// Whether the path lies in what is mounted in the folder, which is left out where that is shown.
fn is_mounted_between(folder: &Path, path: &Path, mounts: &Mounts) -> bool {
    path.ancestors()
        .take_while(|above| *above != folder)
        .any(|above| mounts.points().any(|point| point == above))
}

fn rule_name(policy: &Policy, rule: &Rule) -> String {
    format!("{}: {}", policy.name, rule.text)
}

fn kind(access: Access) -> RequestKind {
    match access {
        Access::Read => RequestKind::Read,
        Access::Write => RequestKind::Write,
    }
}

fn effective(access: Access, area: &Area) -> String {
    let how = match (access, area) {
        (_, Area::Tree(_)) => "live",
        (Access::Read, _) => "as found at call start",
        (Access::Write, _) => "staged: published after success",
    };
    format!("{} ({how})", area.text())
}
