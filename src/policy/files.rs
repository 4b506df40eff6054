//! Files: the paths that a manifest asks for ∩ the rules of the policy ∩ those of the cap, exactly.
//!
//! A rule is an exact file or `dir/**`; a path that could be read in two ways is refused. Two rules are never joined into a
//! wider one, and no tool writes what is later run or read as a policy.

use super::area::{self, Area};
use super::base_view::KERNEL;
use super::document::{At, Document};
use super::file::Policy;
use super::grantable::{Grantable, Narrowing, least};
use super::verdict::{Narrower, RequestKind, Verdict, wall};
use super::writable::hard_denials::HardDenials;
use super::{Access, Grant, Opening};
use crate::manifest::{Pattern, PatternShape, Site};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// One line of `[files]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As written.
    pub text: String,
    /// The path is below the tool's own folder.
    pub relative: bool,
    /// A tree or one file; if `relative`, `area_at` puts the tool's folder before it.
    pub area: Area,
    pub why: String,
    pub at: At,
}

impl Rule {
    /// The rule for a tool that lies in `folder`.
    pub fn area_at(&self, folder: &Path) -> Area {
        match (&self.area, self.relative) {
            (Area::Tree(path), true) if path.as_os_str().is_empty() => Area::Tree(folder.to_path_buf()),
            (Area::Tree(path), true) => Area::Tree(folder.join(path)),
            (Area::File(path), true) => Area::File(folder.join(path)),
            (area, _) => area.clone(),
        }
    }
}

/// One entry of `read` or `write`.
#[derive(Deserialize)]
struct Entry {
    path: String,
    why: String,
}

/// The rules for reading, and those for writing.
pub(super) fn read(document: &mut Document<'_>) -> (Vec<Rule>, Vec<Rule>) {
    let own_folder = Rule {
        text: "./** (default)".to_owned(),
        relative: true,
        area: Area::Tree(PathBuf::new()),
        why: "its own folder, read-only: the policy has no `[files] read`".to_owned(),
        at: At::default(),
    };
    let is_written = document.value.pointer("/files/read").is_some();
    let read = if is_written { list(document, "/files/read") } else { vec![own_folder] };
    (read, list(document, "/files/write"))
}

fn list(document: &mut Document<'_>, pointer: &str) -> Vec<Rule> {
    let mut found = Vec::new();
    for (pointer, Entry { path, why }) in document.list(pointer) {
        let pointer = format!("{pointer}/path");
        let Some((relative, area)) = document.parsed(&pointer, area(&path)) else { continue };
        found.push(Rule { text: path, relative, area, why, at: document.at(&pointer) });
    }
    found
}

/// Parses a rule's path: whether it is relative, and its area.
fn area(text: &str) -> Result<(bool, Area), String> {
    let shown = crate::base::text::printable(text);
    if text == "self" {
        return Err(
            "`self` needs no rule: the script itself can always be read (a file of that name is `./self`)".into()
        );
    }
    if text.starts_with('/') && text.trim_end_matches(['/', '*']).is_empty() {
        return Err("the whole file system is never granted; name the folders".into());
    }
    let tree = text.strip_suffix("/**").or(if text == "**" { Some(".") } else { None });
    let path = match tree {
        Some("." | "") => PathBuf::new(),
        Some(folder) => plain_path(folder)?,
        None if text == "." || text == "./" => {
            return Err("for the tool's own folder and all below write `./**`".into());
        }
        None if text.ends_with('/') => {
            let folder = shown.trim_end_matches('/');
            let mend = if folder.ends_with("/**") { folder.to_owned() } else { format!("{folder}/**") };
            // The mend is offered only if it would load; else its own fault is the answer.
            return area(&mend).and_then(|_| Err(format!("for the folder and all below write `{mend}`")));
        }
        None => plain_path(text)?,
    };
    if let Some(kernel) = KERNEL.iter().find(|kernel| path.starts_with(kernel)) {
        return Err(format!("nothing below {kernel} is ever granted: a tool has its own, made for it"));
    }
    let relative = !path.is_absolute();
    Ok((relative, if tree.is_some() { Area::Tree(path) } else { Area::File(path) }))
}

/// A path of plain components; a leading `./` is taken off.
pub(super) fn plain_path(text: &str) -> Result<PathBuf, String> {
    let shown = crate::base::text::printable(text);
    if text.is_empty() {
        return Err("a path is missing".into());
    }
    if text.contains('\0') || text.chars().any(char::is_control) {
        return Err(format!("`{shown}` holds a control character"));
    }
    if text.starts_with('~') || text.starts_with("base:") {
        return Err(format!("`{shown}`: a policy does not expand `~` or `base:`; write the absolute path"));
    }
    if text.contains(['*', '?', '[', ']', '{', '}']) {
        return Err(format!(
            "`{shown}`: a policy names an exact file or `dir/**`; no other pattern, so that it can be compared exactly"
        ));
    }
    let (lead, rest) = match text.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => ("", text.strip_prefix("./").unwrap_or(text)),
    };
    for part in rest.split('/') {
        match part {
            ".." => return Err(format!("`{shown}`: `..` is not allowed; write the path it leads to")),
            "" | "." => {
                return Err(format!(
                    "`{shown}` is not a clean path: write each folder once, without `//`, `/./` or a last `/`"
                ));
            }
            _ => {}
        }
    }
    Ok(Path::new(lead).join(rest))
}

/// The path of the call's own scratch.
const SCRATCH: &str = "/tmp";

/// What is needed to judge one tool's file asks.
pub(super) struct Judge<'a> {
    pub site: &'a Site,
    /// The script lies among other tools' scripts and the manifest does not: nothing relative to its folder is granted.
    pub guest: bool,
    pub policy: &'a Policy,
    pub host: Option<&'a Policy>,
    pub denials: HardDenials<'a>,
}

/// A part of an ask that policy and host both allow, by a rule of the policy.
struct Piece<'a> {
    area: Area,
    rule: &'a Rule,
}

#[derive(Default)]
pub(super) struct FileVerdicts {
    pub verdicts: Vec<Verdict>,
    pub grants: Vec<Grant>,
}

impl<'a> Judge<'a> {
    pub fn files(&self, read: Option<&[Pattern]>, write: &[Pattern]) -> FileVerdicts {
        let mut judged = FileVerdicts::default();
        match read {
            Some(patterns) => patterns.iter().for_each(|p| self.pattern(Access::Read, p, &mut judged)),
            None => self.own_folder(&mut judged),
        }
        write.iter().for_each(|p| self.pattern(Access::Write, p, &mut judged));
        judged.grants = least(std::mem::take(&mut judged.grants));
        judged
    }

    /// Without `allowRead`: the tool's own folder, as far as the policy allows. A tool that asked for nothing is not
    /// refused: where it gets less it gets its script, and the verdict says why.
    fn own_folder(&self, judged: &mut FileVerdicts) {
        let shared = self.guest || self.site.folder == self.site.base;
        let own = Area::Tree(self.site.folder.clone());
        if !shared {
            self.area(Access::Read, "(default)", &own, judged);
            match judged.verdicts.last_mut() {
                Some(verdict) if verdict.allowed => return,
                // A part of the folder is granted; the script is added below.
                Some(verdict) if verdict.effective.is_some() => verdict.allowed = true,
                _ => judged.verdicts.clear(),
            }
        }
        self.own_script("(default)", judged);
        if let Some(verdict) = judged.verdicts.last_mut() {
            verdict.reason = Some(if self.guest {
                self.guest_reason()
            } else if shared {
                "the script lies directly in a base folder, so it has no folder of its own; give it one".to_string()
            } else {
                self.reason(Access::Read, &own)
            });
        }
    }

    fn own_script(&self, asked: &str, judged: &mut FileVerdicts) {
        let Some(script) = &self.site.script else {
            judged.verdicts.push(Verdict::met(
                RequestKind::Read,
                asked,
                "the script itself",
                &[wall::VIEW, wall::LANDLOCK],
            ));
            return;
        };
        let verdict = Verdict::met(
            RequestKind::Read,
            asked,
            format!("{} (the script itself)", script.display()),
            &[wall::VIEW, wall::LANDLOCK],
        );
        let why = "a tool can always read its own script";
        judged.verdicts.push(verdict.because("house: self", why, "house"));
        judged.grants.push(Grant {
            access: Access::Read,
            opening: Area::File(script.clone()).for_reading(),
            asked: asked.to_string(),
            rule: "house: self".into(),
            why: why.into(),
        });
    }

    fn pattern(&self, access: Access, pattern: &Pattern, judged: &mut FileVerdicts) {
        let from = if pattern.from_base { &self.site.base } else { &self.site.folder };
        let ask = match &pattern.shape {
            PatternShape::SelfScript if access == Access::Read => return self.own_script(&pattern.text, judged),
            PatternShape::SelfScript => self.site.script.clone().map(Area::File),
            PatternShape::Tree { path } => area::join(from, path).map(Area::Tree),
            PatternShape::File { path } => area::join(from, path).map(Area::File),
            PatternShape::Names { folder, names } => {
                area::join(from, folder).map(|folder| Area::Names { folder, names: area::glob_of_pattern(names) })
            }
        };
        match ask {
            Some(ask) => self.area(access, &pattern.text, &ask, judged),
            None => {
                let reason = "not a path of plain components".to_string();
                judged.verdicts.push(denied(access, &pattern.text, Narrower::House, reason));
            }
        }
    }

    fn area(&self, access: Access, asked: &str, ask: &Area, judged: &mut FileVerdicts) {
        if *ask == Area::Tree(PathBuf::from(SCRATCH)) {
            let verdict = Verdict::met(what(access), asked, "/tmp (the call's own scratch)", &[wall::SCRATCH]);
            let why = "every call has its own, empty at the start and gone at the end";
            judged.verdicts.push(verdict.because("house: /tmp", why, "house"));
            return;
        }
        let fenced = self.denials.reason(access, ask);
        let pieces = self.pieces(access, ask);
        let allowed = pieces.iter().any(|p| p.area == *ask);
        let effective: Vec<String> = pieces.iter().map(|p| effective_text(access, &p.area)).collect();
        let (narrower, reason) = match fenced {
            Some(reason) => (Narrower::House, reason),
            None => (self.narrower(access, ask), self.reason(access, ask)),
        };
        let mut verdict = match pieces.first() {
            None => denied(access, asked, narrower, reason.clone()),
            Some(first) => {
                let walls: &[&str] =
                    if matches!((access, &first.area), (Access::Write, Area::File(_) | Area::Names { .. })) {
                        &[wall::SCRATCH, wall::VIEW, wall::LANDLOCK]
                    } else {
                        &[wall::VIEW, wall::LANDLOCK]
                    };
                let (policy, rule) = (self.policy, first.rule);
                Verdict::met(what(access), asked, effective.join(", "), walls).because(
                    format!("{}: {}", policy.name, rule.text),
                    &rule.why,
                    policy.place(rule.at),
                )
            }
        };
        if !allowed && verdict.allowed {
            verdict = verdict.only_in_part(narrower, &reason);
        }
        verdict.area = Some(ask.clone());
        judged.verdicts.push(verdict);
        judged.grants.extend(pieces.into_iter().map(|piece| Grant {
            access,
            opening: if access == Access::Read { piece.area.for_reading() } else { piece.area.for_writing() },
            asked: asked.to_string(),
            rule: format!("{}: {}", self.policy.name, piece.rule.text),
            why: piece.rule.why.clone(),
        }));
    }

    /// The request, narrowed by the rules of the policy and then by those of the cap: the largest parts, each with the rule
    /// of the policy. What is never granted goes at each step, since a cap could narrow it to something that passes.
    fn pieces(&self, access: Access, ask: &Area) -> Vec<Piece<'a>> {
        let mut parts: Vec<(Area, Option<&'a Rule>)> = vec![(ask.clone(), None)];
        for bound in std::iter::once(self.policy).chain(self.host) {
            let narrowed = parts.iter().flat_map(|(area, by)| {
                rules(bound, access).filter_map(move |rule| {
                    let part = area.overlap(&rule.area_at(&self.site.folder))?;
                    let other = by.is_none() && rule.relative && (self.guest || self.holds_the_base(&part));
                    let is_open = !other && self.denials.reason(access, &part).is_none();
                    is_open.then(|| (part, by.or(Some(rule))))
                })
            });
            parts = narrowed.collect();
        }
        let mut greatest: Vec<Piece<'a>> = Vec::new();
        for piece in parts.into_iter().filter_map(|(area, rule)| Some(Piece { area, rule: rule? })) {
            if !greatest.iter().any(|g| piece.area.within(&g.area)) {
                greatest.retain(|g| !g.area.within(&piece.area));
                greatest.push(piece);
            }
        }
        greatest.retain(|g| g.area != Area::Tree(PathBuf::from(SCRATCH)));
        greatest
    }

    /// Whether the area holds a whole script base folder, other tools' files included. A relative rule ("its own
    /// folder") does not open that, only a rule with an absolute path.
    fn holds_the_base(&self, area: &Area) -> bool {
        let base = &self.site.base;
        !base.as_os_str().is_empty() && matches!(area, Area::Tree(tree) if base.starts_with(tree))
    }

    fn guest_reason(&self) -> String {
        let folder = self.site.folder.display();
        format!(
            "scripts of other tools lie in {folder}, and the manifest does not: put it there, or give the tool a script in a folder of its own (only a rule with an absolute path could open this one)"
        )
    }

    fn narrower(&self, access: Access, ask: &Area) -> Narrower {
        let holds = |r: &Rule| {
            ask.within(&r.area_at(&self.site.folder)) && !(r.relative && (self.guest || self.holds_the_base(ask)))
        };
        let by_policy = rules(self.policy, access).any(holds);
        if by_policy { Narrower::Host } else { Narrower::Policy }
    }

    fn reason(&self, access: Access, ask: &Area) -> String {
        let folder = &self.site.folder;
        let verb = what(access).name();
        let policy = match (self.narrower(access, ask), self.host) {
            (Narrower::Host, Some(host)) => host,
            _ => self.policy,
        };
        let name = policy.called();
        let near = rules(policy, access)
            .find(|r| matches!((r.area_at(folder), ask), (Area::File(f), Area::Tree(t)) if f == *t));
        let readable = access == Access::Write && rules(policy, Access::Read).any(|r| ask.within(&r.area_at(folder)));
        if policy.name == self.policy.name && self.guest && ask.path().starts_with(folder) {
            return self.guest_reason();
        }
        if policy.name == self.policy.name && self.holds_the_base(ask) {
            return format!(
                "the script lies directly in the base folder {}, where other tools' files lie too: give the tool its own folder (only a rule with an absolute path could open this one)",
                self.site.base.display()
            );
        }
        let mut reason = format!("no {verb} rule of policy {name} holds {}", ask.text());
        if let Some(rule) = near {
            reason.push_str(&format!("; its rule `{0}` is one file, for the folder write `{0}/**`", rule.text));
        } else if readable {
            reason.push_str("; it is allowed for reading only");
        } else if ask.path().starts_with(SCRATCH) && !folder.starts_with(SCRATCH) {
            reason.push_str(
                "; /tmp inside a call is its own scratch and needs no asking, a path below it asks for the host's",
            );
        }
        reason
    }
}

pub(super) fn rules(policy: &Policy, access: Access) -> impl Iterator<Item = &Rule> {
    // Write implies read of the same path.
    let read: &[Rule] = if access == Access::Read { &policy.read } else { &[] };
    read.iter().chain(&policy.write)
}

pub(super) fn what(access: Access) -> RequestKind {
    match access {
        Access::Read => RequestKind::Read,
        Access::Write => RequestKind::Write,
    }
}

fn denied(access: Access, asked: &str, narrower: Narrower, reason: String) -> Verdict {
    Verdict::denied(what(access), asked, narrower, reason, &[wall::VIEW, wall::LANDLOCK])
}

fn effective_text(access: Access, area: &Area) -> String {
    let how = match (access, area) {
        (_, Area::Tree(_)) => "live",
        (Access::Read, _) => "as found at call start",
        (Access::Write, _) => "staged: published after success",
    };
    format!("{} ({how})", area.text())
}

impl Narrowing for Grant {
    fn intersection(&self, other: &Grant) -> Option<Grant> {
        let area = Area::of(&self.opening).overlap(&Area::of(&other.opening))?;
        let access = self.access.min(other.access);
        // A staged grant stays staged: only two live grants give a live write.
        let live = [&self.opening, &other.opening].iter().all(|opening| matches!(opening, Opening::Live { .. }));
        let opening = match (access, &area) {
            (Access::Read, _) => area.for_reading(),
            (Access::Write, Area::Tree(_)) if !live => return None,
            (Access::Write, _) => area.for_writing(),
        };
        Some(Grant { access, opening, ..self.clone() })
    }
}

impl Grantable for Grant {
    fn kind(&self) -> &'static str {
        what(self.access).name()
    }
    fn text(&self) -> String {
        let staged = if matches!(self.opening, Opening::Staged { .. }) { " (staged)" } else { "" };
        format!("{} {}{staged}", self.kind(), Area::of(&self.opening).text())
    }
    fn covers(&self, other: &Grant) -> bool {
        // A tree that is read by `base:` is known as such to the rules for code.
        if self.access < other.access || other.base_tree().is_some() && self.base_tree().is_none() {
            return false;
        }
        let live = matches!(self.opening, Opening::Live { .. });
        let (wide, narrow) = (Area::of(&self.opening), Area::of(&other.opening));
        if live { narrow.within(&wide) } else { narrow == wide }
    }
    fn is_near(&self, other: &Grant) -> bool {
        Area::of(&self.opening).overlap(&Area::of(&other.opening)).is_some()
    }
}
