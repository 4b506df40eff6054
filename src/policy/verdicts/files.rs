//! Files: the paths that a manifest requests ∩ the rules of the policy ∩ those of the cap, exactly.

use super::ceiling::{Ceiling, narrowed};
use super::verdict::{Narrower, RequestKind, Verdict};
use super::writable;
use crate::base::layer::Layer;
use crate::base::text;
use crate::manifest::{Pattern, PatternShape, ToolPaths};
use crate::policy::grammar::area::{self, Access, Area};
use crate::policy::grammar::file::Policy;
use crate::policy::grammar::files::{Grant, Rule};
use crate::policy::grammar::grantable::Grantable;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The path of the call's own scratch.
const SCRATCH: &str = "/tmp";
const LAYERS: [Layer; 2] = [Layer::View, Layer::Landlock];

pub struct Judge<'a> {
    pub site: &'a ToolPaths,
    pub ceilings: &'a [Ceiling<'a>],
    /// Why no policy can grant an area.
    pub denial: &'a dyn Fn(Access, &Area) -> Option<String>,
}

/// Whether the area belongs to other tools, too: the tool is a guest, or the area holds a whole
/// script base folder. Only a rule with an absolute path opens it, not a relative one ("its own
/// folder").
pub fn is_shared(site: &ToolPaths, area: &Area) -> bool {
    let base = &site.base;
    site.is_guest()
        || (!base.as_os_str().is_empty()
            && matches!(area, Area::Tree(tree) if base.starts_with(tree)))
}

impl Judge<'_> {
    pub fn files(
        &self,
        read: Option<&[Pattern]>,
        write: &[Pattern],
        verdicts: &mut Vec<Verdict>,
    ) -> Vec<Grant> {
        let mut answers = match read {
            Some(patterns) => patterns
                .iter()
                .map(|pattern| self.pattern(Access::Read, pattern))
                .collect(),
            None => self.own_folder(),
        };
        answers.extend(
            write
                .iter()
                .map(|pattern| self.pattern(Access::Write, pattern)),
        );
        let (more, grants): (Vec<Verdict>, Vec<Vec<Grant>>) = answers.into_iter().unzip();
        verdicts.extend(more);
        let mut grants = least(grants.into_iter().flatten().collect());
        if let Some(folder) = writable::common_folder(&grants)
            && let Some(why) = (self.denial)(Access::Write, &Area::Tree(folder.clone()))
        {
            let reason = format!(
                "of more than {} places the folder above them counts: {why}",
                writable::MAX_PLACES
            );
            let asked = text::path(&folder);
            verdicts.push(Verdict::denied(
                RequestKind::Write,
                asked,
                Narrower::BuiltIn,
                reason,
                &LAYERS,
            ));
            grants.retain(|grant| grant.access == Access::Read);
        }
        grants
    }

    /// Without `allowRead`: the tool's own folder, as far as the policy allows. A tool without a
    /// request is not refused: where it gets less it gets its script, and the verdict says why.
    fn own_folder(&self) -> Vec<(Verdict, Vec<Grant>)> {
        let own = Area::Tree(self.site.folder.clone());
        let shared = self.site.folder == self.site.base;
        let mut answers = Vec::new();
        if !self.site.is_guest() && !shared {
            let (mut verdict, grants) = self.area(Access::Read, "(default)", &own);
            if verdict.allowed {
                return vec![(verdict, grants)];
            }
            // Where another tool that names this script narrows it, the verdict names that tool.
            verdict.allowed = verdict.narrower != Some(Narrower::Owner);
            answers.extend(verdict.effective.is_some().then_some((verdict, grants)));
        }
        let (mut script, grants) = self.own_script("(default)");
        script.reason = Some(if shared {
            "the script lies directly in a base folder: give it a folder of its own".to_owned()
        } else {
            self.refusal(Access::Read, &own).1
        });
        answers.push((script, grants));
        answers
    }

    fn own_script(&self, requested: &str) -> (Verdict, Vec<Grant>) {
        let why = "a tool can always read its own script";
        let Some(script) = &self.site.script else {
            return (
                Verdict::met(RequestKind::Read, requested, "the script itself", &LAYERS),
                Vec::new(),
            );
        };
        let effective = format!("{} (the script itself)", script.display());
        let verdict = Verdict::met(RequestKind::Read, requested, effective, &LAYERS);
        let grant = Grant {
            access: Access::Read,
            area: Area::File(script.clone()),
            asked: requested.to_owned(),
            rule: "built-in: self".into(),
            why: why.into(),
        };
        (
            verdict.because("built-in: self", why, "built-in"),
            vec![grant],
        )
    }

    fn pattern(&self, access: Access, pattern: &Pattern) -> (Verdict, Vec<Grant>) {
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
        match request {
            Some(request) => self.area(access, &pattern.text, &request),
            None => {
                let reason = "not a path of plain components";
                (
                    Verdict::denied(
                        kind(access),
                        &pattern.text,
                        Narrower::BuiltIn,
                        reason,
                        &LAYERS,
                    ),
                    Vec::new(),
                )
            }
        }
    }

    fn area(&self, access: Access, requested: &str, request: &Area) -> (Verdict, Vec<Grant>) {
        if *request == Area::Tree(PathBuf::from(SCRATCH)) {
            let why = "every call has its own, empty at the start and gone at the end";
            let verdict = Verdict::met(
                kind(access),
                requested,
                "/tmp (the call's own scratch)",
                &[Layer::Scratch],
            );
            return (
                verdict.because("built-in: /tmp", why, "built-in"),
                Vec::new(),
            );
        }
        let parts = self.parts(access, request);
        let is_whole = parts.iter().any(|(part, _)| part == request);
        let (narrower, reason) = match (self.denial)(access, request) {
            Some(reason) => (Narrower::BuiltIn, reason),
            None => self.refusal(access, request),
        };
        let mut verdict = match (parts.first(), self.ceilings.first()) {
            (Some((first, rule)), Some(Ceiling { policy, .. })) => {
                let staged = access == Access::Write && !matches!(first, Area::Tree(_));
                let layers: &[Layer] = if staged {
                    &[Layer::Scratch, Layer::View, Layer::Landlock]
                } else {
                    &LAYERS
                };
                let effective: Vec<String> = parts
                    .iter()
                    .map(|(part, _)| effective(access, part))
                    .collect();
                let verdict = Verdict::met(kind(access), requested, effective.join(", "), layers);
                let verdict =
                    verdict.because(rule_name(policy, rule), &rule.why, policy.place(rule.at));
                if is_whole {
                    verdict
                } else {
                    verdict.only_in_part(narrower, &reason)
                }
            }
            _ => Verdict::denied(kind(access), requested, narrower, reason, &LAYERS),
        };
        verdict.area = Some(request.clone());
        (
            verdict,
            parts
                .into_iter()
                .map(|(part, rule): (Area, &Rule)| Grant {
                    access,
                    area: part,
                    asked: requested.to_owned(),
                    rule: self
                        .ceilings
                        .first()
                        .map_or_else(String::new, |ceiling| rule_name(ceiling.policy, rule)),
                    why: rule.why.clone(),
                })
                .collect(),
        )
    }

    /// The request, narrowed by the rules of each ceiling: the largest parts, each with the rule of
    /// the policy. At each ceiling what is never granted is dropped, because the next one could
    /// narrow it to something that passes.
    fn parts(&self, access: Access, request: &Area) -> Vec<(Area, &Rule)> {
        let whole = (request.clone(), None::<&Rule>);
        let parts = narrowed(
            whole,
            self.ceilings,
            |policy| policy.files.allowing(access),
            |(area, by), rule| {
                let part = area.overlap(&rule.area_at(&self.site.folder))?;
                let foreign = by.is_none() && rule.relative && is_shared(self.site, &part);
                let is_open = !foreign && (self.denial)(access, &part).is_none();
                is_open.then(|| (part, by.or(Some(rule))))
            },
            |(wide, _), (area, _)| area.within(wide),
        );
        let known = parts
            .into_iter()
            .filter_map(|(area, rule)| Some((area, rule?)));
        known
            .filter(|(area, _)| *area != Area::Tree(PathBuf::from(SCRATCH)))
            .collect()
    }

    fn refusal(&self, access: Access, request: &Area) -> (Narrower, String) {
        let folder = &self.site.folder;
        let allows = |ceiling: &Ceiling<'_>| {
            let foreign = ceiling.narrower == Narrower::Policy && is_shared(self.site, request);
            let mut rules = ceiling
                .policy
                .files
                .allowing(access)
                .filter(|rule| !(rule.relative && foreign));
            rules.any(|rule| request.within(&rule.area_at(folder)))
        };
        let Some(ceiling) = self
            .ceilings
            .iter()
            .find(|ceiling| !allows(ceiling))
            .or(self.ceilings.first())
        else {
            return (Narrower::Policy, String::new());
        };
        let mut reason =
            ceiling.lacks_entry(&format!("[files] {}", kind(access).name()), &request.text());
        if is_shared(self.site, request) && ceiling.narrower == Narrower::Policy {
            reason.push_str(
                "; it is not the tool's own folder (its manifest lies elsewhere, or it is a base \
                 folder), so only an absolute path opens it: give the tool a folder of its own",
            );
        }
        (ceiling.narrower, reason)
    }
}

/// The grants that no other covers, in their order. Sorted by path, what a tree covers comes after
/// it, so that each is compared only with the trees above it and the grants of the same files.
fn least(grants: Vec<Grant>) -> Vec<Grant> {
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
    let (mut near, mut kept): (Vec<usize>, _) = (Vec::new(), BTreeSet::new());
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
        if !near.iter().any(|wide| grants[*wide].covers(&grants[at])) {
            near.push(at);
            kept.insert(at);
        }
    }
    grants
        .into_iter()
        .enumerate()
        .filter(|(at, _)| kept.contains(at))
        .map(|(_, grant)| grant)
        .collect()
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
