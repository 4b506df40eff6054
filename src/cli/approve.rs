//! `toolhost approve`: shows what a tool is, may do, and what changed since it was approved last, and
//! records that a person agrees. `approvals.toml` beside the policies has the records.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{allow, audit, diff, host, words};
use crate::base::files::Folder;
use crate::base::text::{self, printable};
use crate::manifest::Selector;
use crate::policy::{self, APPROVALS_FILE, ApprovalRecord, ToolNow};
use crate::registry::{Filter, Tool};
use crate::service::tool_approval::{Between, Change, Moment, is_builtin};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

/// What a new file begins with.
const HEAD: &str = "# Written by `toolhost approve`: what a person agreed to run.\n\n";
const TABLE: &str = "approval";
const LOCK: &str = ".approvals.lock";
const LISTED: [words::Table; 1] = [("approvals", &["of", "by", "at", "why"], &[])];
const VERIFIED: [words::Table; 1] = [(
    "approvals",
    &["of", "state", "by", "at", "why"],
    &["changed"],
)];
const OTHER_PIN: &str = "its manifest names another digest";
/// Most changed files that are shown of one tool.
const MAX_LINES: usize = 40;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    #[arg(required_unless_present_any = ["all_of", "list", "verify"])]
    pub tool: Option<String>,
    /// Every tool of a namespace (`ns:*`), and the set of their names: a tool that is new there
    /// later is a change
    #[arg(long, value_name = "SET", conflicts_with = "tool")]
    pub all_of: Option<String>,
    /// Why you approve it; without it nothing is recorded
    #[arg(long, value_name = "TEXT")]
    pub why: Option<String>,
    /// Record without asking
    #[arg(long)]
    pub yes: bool,
    /// Remove the approval
    #[arg(long, conflicts_with_all = ["why", "list", "verify"])]
    pub revoke: bool,
    /// Show what was approved, by whom, when and why
    #[arg(long, conflicts_with = "verify")]
    pub list: bool,
    /// Compare everything that was approved with what it is now; exit status 3 if something differs
    #[arg(long)]
    pub verify: bool,
    /// Print JSON (with --list or --verify)
    #[arg(long)]
    pub json: bool,
}

struct Approving<'a> {
    settings: &'a Settings,
    known: host::Tools,
    /// The same host, as it is where nothing waits for an approval: what a tool would have.
    met: host::Tools,
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let approving = Approving::load(settings)?;
    let name = args.all_of.as_ref().or(args.tool.as_ref());
    if args.list || args.verify {
        return approving.report(name, args);
    }
    if args.json {
        return Err(refused("--json is for --list and --verify").into());
    }
    let name = name.map(String::as_str).unwrap_or_default();
    if args.revoke {
        return approving.revoke(name);
    }
    let (tools, set) = approving.chosen(name, args.all_of.is_some())?;
    for tool in &tools {
        approving.show(tool);
    }
    approving.record(&tools, set.as_deref(), args)
}

/// Records that the person who runs this approves a tool, which was shown already.
pub(super) fn record(settings: &Settings, tool: &str, why: &str) -> anyhow::Result<()> {
    let approving = Approving::load(settings)?;
    let args = Args {
        why: Some(why.to_owned()),
        yes: true,
        ..Args::default()
    };
    let (tools, set) = approving.chosen(tool, false)?;
    approving.record(&tools, set.as_deref(), &args).map(drop)
}

/// Removes the record of a tool that is gone, if there is one.
pub(super) fn forget(settings: &Settings, tool: &str) -> anyhow::Result<()> {
    let approving = Approving::load(settings)?;
    let mut records = approving.known.policies.approvals.list.iter();
    match records.any(|record| record.is_of(tool)) {
        true => approving.revoke(tool).map(drop),
        false => Ok(()),
    }
}

fn refused(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

impl Approving<'_> {
    fn load(settings: &Settings) -> anyhow::Result<Approving<'_>> {
        let known = host::Tools::load(settings)?;
        Ok(Approving {
            settings,
            met: known.under(known.policies.without_approvals()),
            known,
        })
    }

    /// The tools that are meant, and the name of their set.
    fn chosen(&self, name: &str, is_set: bool) -> anyhow::Result<(Vec<Arc<Tool>>, Option<String>)> {
        if !is_set && !name.ends_with('*') {
            let tool = self.known.snapshot.find(name);
            let tool = tool.map_err(|fault| Refusal::from_fault(&fault))?;
            if is_builtin(&tool) {
                return Err(refused(format!(
                    "{} comes with this binary and needs no approval: a script that it runs is approved \
                     with its own tool, and source text is allowed by policy",
                    tool.manifest.id
                ))
                .into());
            }
            if tool.manifest.mcp_tool().is_some() {
                let (id, server) = (&tool.manifest.id, &tool.manifest.of_process().id);
                let why = format!("{id} is approved with its server: `toolhost approve {server}`");
                return Err(refused(why).into());
            }
            return Ok((vec![tool], None));
        }
        let set = Selector::try_from(name.to_owned()).map_err(refused)?;
        let tools: Vec<Arc<Tool>> = self.of_set(&set).collect();
        if tools.is_empty() {
            return Err(refused(format!("no tool is of {}", printable(name))).into());
        }
        Ok((tools, Some(set.text())))
    }

    /// The tools of a set. What this binary brings needs no approval, and the tools of a server are
    /// approved with it.
    fn of_set(&self, set: &Selector) -> impl Iterator<Item = Arc<Tool>> {
        let tools = self.known.snapshot.list(&Filter::default()).into_iter();
        let of_set = tools.filter(|tool| set.matches(&tool.manifest.id));
        of_set.filter(|tool| !is_builtin(tool) && tool.manifest.mcp_tool().is_none())
    }

    fn moment(&self) -> Moment<'_> {
        Moment {
            snapshot: &self.known.snapshot,
            policies: &self.known.policies,
            machine: &self.known.machine,
        }
    }

    /// What the tool is now. The error says why it cannot be approved.
    fn look(&self, tool: &Tool) -> Result<ToolNow, String> {
        self.moment().look(tool)
    }

    /// Prints what the tool may do, and how it differs from what was approved last.
    fn show(&self, tool: &Tool) {
        let approval = self.known.decide(tool).approval;
        let mut shown = audit::of_tool(self.settings, &self.met, tool);
        if approval.is_some_and(|it| !it.is_met()) {
            shown.insert_str(0, "No call of it begins. Once it is approved:\n");
        }
        match self.look(tool) {
            Err(why) => shown += &format!("  cannot be approved: {}\n", printable(&why)),
            Ok(now) => {
                if let Some(tools) = now.details["tools"].as_object().filter(|it| !it.is_empty()) {
                    let names: Vec<&str> = tools.keys().map(String::as_str).collect();
                    shown += &format!("  {} tools: {}\n", names.len(), names.join(", "));
                }
                if let Some(skill) = tool.manifest.skill() {
                    for (path, bytes) in &skill.files {
                        shown += &format!("  file  {} ({bytes} bytes)\n", printable(path));
                    }
                }
                shown += &self.change(tool, &now);
                if tool.manifest.skill().is_none() {
                    shown += &format!("  Its manifest can name it: {}\n", now.digests.pin());
                }
            }
        }
        words::show(format!("{shown}\n").as_bytes());
    }

    fn change(&self, tool: &Tool, now: &ToolNow) -> String {
        match self.moment().change(tool, now) {
            Change::OtherPin => {
                let pin = now.digests.pin();
                format!("  Its manifest names another digest; if you agree, let it name {pin}\n")
            }
            Change::NoRecord => "  No approval of it is in force here.\n".to_owned(),
            Change::Unchanged { record } => format!("  It is as it was approved {record}\n"),
            Change::Changed {
                record,
                parts,
                between,
            } => {
                let parts = parts.join(", ");
                let between = between.as_ref().map_or_else(
                    || {
                        "  This host does not have what was approved, only its digests.\n"
                            .to_owned()
                    },
                    text_of,
                );
                let texts = self.moment().texts(tool, now);
                let lines: String = texts
                    .iter()
                    .map(|(name, texts)| lines_of(name, texts))
                    .collect();
                format!("  Changed since it was approved {record}: {parts}\n{between}{lines}")
            }
        }
    }

    /// Records what was shown, if the person agrees and it is the same still.
    fn record(
        &self,
        tools: &[Arc<Tool>],
        set: Option<&str>,
        args: &Args,
    ) -> anyhow::Result<ExitCode> {
        let Some(why) = &args.why else {
            words::note("Nothing was recorded: --why TEXT records that you approve this.");
            return Ok(Exit::Ok.into());
        };
        if why.trim().is_empty() {
            return Err(refused("--why is empty: say why you approve this").into());
        }
        let mut records = Vec::new();
        for tool in tools {
            let now = self.look(tool);
            let now = now.map_err(|why| refused(format!("{}: {why}", tool.reference())))?;
            if now.differs_from_pin(&tool.manifest) {
                let of = tool.reference();
                let pin = now.digests.pin();
                let why = format!(
                    "{of}: its manifest names another digest: let `approval.sha256` be {pin} first"
                );
                return Err(refused(why).into());
            }
            records.push((new_record(tool.reference(), why, Some(&now)), now));
        }
        if !args.yes && !allow::is_agreed()? {
            return Err(refused("not agreed").into());
        }
        for (record, now) in &records {
            self.keep(record, now)?;
        }
        let mut records: Vec<ApprovalRecord> = records.into_iter().map(|it| it.0).collect();
        records.extend(set.map(|set| ApprovalRecord {
            names: tools.iter().map(|tool| tool.reference()).collect(),
            ..new_record(set.to_owned(), why, None)
        }));
        self.write("approved", &records, |document| {
            for record in &records {
                remove(document, &|of| {
                    of == record.of || self.is_replaced(of, record)
                });
                add(document, record)?;
            }
            Ok(())
        })?;
        Ok(Exit::Ok.into())
    }

    /// Whether a record is of another version of the same tool, which is gone.
    fn is_replaced(&self, of: &str, by: &ApprovalRecord) -> bool {
        let id = by.of.split('@').next().unwrap_or_default();
        let version = of.strip_prefix(id).filter(|rest| rest.starts_with('@'));
        version.is_some() && self.known.snapshot.find(of).is_err()
    }

    /// Copies the code, and remembers what was approved.
    fn keep(&self, record: &ApprovalRecord, now: &ToolNow) -> Result<(), Refusal> {
        let policies = &self.known.policies;
        now.copy(policies)
            .map_err(|why| refused(format!("{}: {why}", record.of)))?;
        let folders = policies.code.as_ref();
        let kept = folders.map(|folders| folders.remember(record, &now.details));
        kept.unwrap_or(Ok(())).map_err(refused)
    }

    fn revoke(&self, name: &str) -> anyhow::Result<ExitCode> {
        let all = self.known.policies.approvals.list.iter();
        let gone: Vec<ApprovalRecord> = all.filter(|it| it.is_of(name)).cloned().collect();
        if gone.is_empty() {
            return Err(refused(format!("{} is not approved", printable(name))).into());
        }
        self.write("revoked", &gone, |document| {
            remove(document, &|of| gone.iter().any(|record| record.of == of));
            Ok(())
        })?;
        Ok(Exit::Ok.into())
    }

    /// Changes the file as it is now, after the change is on record.
    fn write(
        &self,
        what: &str,
        records: &[ApprovalRecord],
        change: impl Fn(&mut DocumentMut) -> Result<(), Refusal>,
    ) -> anyhow::Result<()> {
        let folder = self.settings.policy_path();
        if folder.is_file() {
            let words = "this host has one file of policies: approvals lie in a folder of policies";
            return Err(refused(words).into());
        }
        let path: PathBuf = std::path::absolute(&folder)?.join(APPROVALS_FILE);
        let cannot = |error: std::io::Error| {
            let uid = nix::unistd::geteuid();
            refused(format!(
                "{}: user {uid} cannot change it: {error}",
                text::path(&path)
            ))
        };
        // Others change the file at the same time, too.
        let open = Folder::make(&folder).map_err(cannot)?;
        let _lock = open.wait_for_lock(LOCK).map_err(cannot)?;
        let before = path
            .exists()
            .then(|| std::fs::read_to_string(&path))
            .transpose()?;
        let text = before.as_deref().unwrap_or_default();
        let mut document: DocumentMut = text.parse().map_err(refused)?;
        change(&mut document)?;
        let head = if before.is_none() { HEAD } else { "" };
        let after = format!("{head}{document}");
        host::audit_log(self.settings)?.open()?.write(&json!({
            "time": jiff::Timestamp::now(),
            (what): records,
            "uid": nix::unistd::getuid().as_raw(),
            "user": host::login(),
        }));
        words::write_file(&path, &after, before.is_some())?;
        for record in records {
            words::note(&format!("{}: {} in {}", record.of, what, text::path(&path)));
        }
        Ok(())
    }

    /// The records, and with --verify what became of them.
    fn report(&self, name: Option<&String>, args: &Args) -> anyhow::Result<ExitCode> {
        let all = self.known.policies.approvals.list.iter();
        let shown = all.filter(|record| name.is_none_or(|name| record.is_of(name)));
        let mut lines: Vec<Value> = shown.map(|record| self.line(record, args.verify)).collect();
        if args.verify {
            lines.extend(self.without_record(name));
        }
        let good = |line: &&Value| !args.verify || line["state"] == "unchanged";
        let is_good = lines.iter().filter(good).count() == lines.len();
        let is_none = lines.is_empty();
        let mut report = json!({ "approvals": lines });
        if args.verify {
            report["unchanged"] = json!(is_good && !is_none);
        }
        if args.verify && self.runs_source_text() {
            words::note(policy::SOURCE_TEXT);
        }
        if is_none {
            let file = self.settings.policy_path().join(APPROVALS_FILE);
            let of = name.map_or_else(String::new, |name| format!(" of {}", printable(name)));
            words::note(&format!(
                "Nothing{of} is approved here: {} has no record.",
                text::path(&file)
            ));
            host::say_root(self.settings);
        }
        let tables = if args.verify { VERIFIED } else { LISTED };
        words::answer(&report, args.json, || words::render(&report, &tables));
        let is_good = is_good && !(is_none && args.verify);
        let exit = if is_good { Exit::Ok } else { Exit::Policy };
        Ok(exit.into())
    }

    /// Whether an agent may run source text on a host that requires approval of it.
    fn runs_source_text(&self) -> bool {
        let tool = self.known.snapshot.find(policy::RUN_CODE);
        tool.is_ok_and(|tool| {
            let rule = self
                .known
                .policies
                .approval_rule(&tool.manifest, &tool.site.manifest);
            rule.is_some() && self.known.decide(&tool).refused().is_none()
        })
    }

    fn line(&self, record: &ApprovalRecord, verify: bool) -> Value {
        let mut line = json!(record);
        if verify {
            let (state, changed) = match self.compared(record) {
                Ok(changed) if changed.is_empty() => ("unchanged", changed),
                Ok(changed) => ("changed", changed),
                Err(why) => ("gone", vec![why]),
            };
            line["state"] = json!(state);
            line["changed"] = json!(changed);
        }
        line
    }

    /// What differs now. The error: there is nothing to compare.
    fn compared(&self, record: &ApprovalRecord) -> Result<Vec<String>, String> {
        if record.names.is_empty() {
            let tool = self.known.snapshot.find(&record.of);
            let gone = |_| {
                format!(
                    "not loaded: `toolhost check` says why; if it is gone for good, `toolhost approve {} \
                     --revoke` takes this back",
                    record.of
                )
            };
            let tool = tool.map_err(gone)?;
            return Ok(match self.look(&tool) {
                Err(why) => vec![why],
                Ok(now) => {
                    let parts = record.digests.changed(&now.digests).into_iter();
                    let pin = now.differs_from_pin(&tool.manifest).then_some(OTHER_PIN);
                    parts.chain(pin).map(str::to_owned).collect()
                }
            });
        }
        let set = Selector::try_from(record.of.clone())?;
        let now: BTreeSet<String> = self.of_set(&set).map(|tool| tool.reference()).collect();
        let new = now
            .difference(&record.names)
            .map(|name| format!("new: {name}"));
        let gone = record
            .names
            .difference(&now)
            .map(|name| format!("gone: {name}"));
        Ok(new.chain(gone).collect())
    }

    /// The tools that need an approval, or name their own digest, and have no record.
    fn without_record(&self, name: Option<&String>) -> Vec<Value> {
        let policies = &self.known.policies;
        let tools = self.of_set(&Selector::Any).filter(|tool| {
            let of = tool.reference();
            let id = &tool.manifest.id;
            policies.approvals.find(&of).is_none()
                && name.is_none_or(|name| {
                    let set = Selector::try_from(name.clone());
                    of == *name || set.is_ok_and(|set| set.matches(id))
                })
        });
        let lines = tools.filter_map(|tool| {
            let rule = policies.approval_rule(&tool.manifest, &tool.site.manifest);
            let pinned = tool.manifest.approval.is_some();
            let changed = match self
                .look(&tool)
                .map(|now| now.differs_from_pin(&tool.manifest))
            {
                Err(why) => vec![why],
                Ok(true) => vec![OTHER_PIN.to_owned()],
                Ok(false) => Vec::new(),
            };
            let state = match rule {
                Some(_) => "not approved",
                None if !pinned => return None,
                None if changed.is_empty() => "unchanged",
                None => "changed",
            };
            let changed = if pinned { changed } else { Vec::new() };
            Some(json!({ "of": tool.reference(), "state": state, "changed": changed }))
        });
        lines.collect()
    }
}

/// What is new, what is gone, and which files and words of the manifest changed.
fn text_of(between: &Between) -> String {
    let Between {
        new,
        gone,
        parts,
        manifest,
    } = between;
    let mut lines: Vec<String> = new.iter().map(|it| format!("new: {it}")).collect();
    if new.is_empty() {
        lines.push("No grant, limit or capability is new.".to_owned());
    }
    lines.extend(gone.iter().map(|it| format!("no longer: {it}")));
    lines.extend(parts.iter().take(MAX_LINES).cloned());
    if let Some(more) = parts.len().checked_sub(MAX_LINES + 1) {
        lines.push(format!("and {} files or tools more", more + 1));
    }
    let text: String = lines
        .iter()
        .map(|it| format!("    {}\n", printable(it)))
        .collect();
    text + &diff::tables(manifest)
}

/// The lines of a file that changed.
fn lines_of(name: &str, [old, new]: &[String; 2]) -> String {
    let changed = words::changed_lines(old, new);
    let mut lines = vec![format!("{name}:{}", changed.first)];
    lines.extend(changed.lines.iter().take(MAX_LINES).cloned());
    if let Some(more) = changed.lines.len().checked_sub(MAX_LINES + 1) {
        lines.push(format!("and {} lines more", more + 1));
    }
    let lines = lines.iter().map(|it| format!("    {}\n", printable(it)));
    lines.collect()
}

fn new_record(of: String, why: &str, now: Option<&ToolNow>) -> ApprovalRecord {
    let second = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    ApprovalRecord {
        of,
        names: BTreeSet::new(),
        digests: now.map(|now| now.digests.clone()).unwrap_or_default(),
        runtime: now.and_then(|now| now.runtime.clone()),
        by: host::login(),
        at: second.unwrap_or_default().to_string(),
        why: why.to_owned(),
    }
}

fn remove(document: &mut DocumentMut, gone: &dyn Fn(&str) -> bool) {
    let list = document
        .get_mut(TABLE)
        .and_then(Item::as_array_of_tables_mut);
    if let Some(list) = list {
        list.retain(|table| !table.get("of").and_then(Item::as_str).is_some_and(gone));
    }
}

fn add(document: &mut DocumentMut, record: &ApprovalRecord) -> Result<(), Refusal> {
    let text = record.to_toml().map_err(refused)?;
    let said: DocumentMut = text.parse().map_err(refused)?;
    let mut table = Table::new();
    for (name, item) in said.iter() {
        let value = item.clone().into_value();
        table.insert(name, Item::Value(value.unwrap_or_else(|_| "".into())));
    }
    let list = document.entry(TABLE);
    let list = list.or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    let list = list.as_array_of_tables_mut();
    let list = list.ok_or_else(|| refused("`approval` must be a list of tables"))?;
    list.push(table);
    Ok(())
}
