//! `toolhost approve`: shows what a tool is, may do, and what changed since it was approved last, and
//! records that a person agrees. `approvals.toml` beside the policies has the records.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{allow, audit, diff, host, words};
use crate::base::text::{self, printable};
use crate::manifest::Selector;
use crate::policy::{self, APPROVALS_FILE, ApprovalRecord, ToolNow};
use crate::registry::{Filter, Tool};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

/// What a new file begins with.
const HEAD: &str = "# Written by `toolhost approve`: what a person agreed to run.\n\n";
const TABLE: &str = "approval";
const STATES: [words::Table; 1] = [(
    "approvals",
    &["of", "state", "by", "at", "why"],
    &["changed"],
)];

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
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let approving = Approving {
        settings,
        known: host::Tools::load(settings)?,
    };
    let name = args.all_of.as_ref().or(args.tool.as_ref());
    if args.list || args.verify {
        return approving.report(name, args);
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

fn refused(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

impl Approving<'_> {
    /// The tools that are meant, and the name of their set.
    fn chosen(&self, name: &str, is_set: bool) -> anyhow::Result<(Vec<Arc<Tool>>, Option<String>)> {
        if !is_set && !name.ends_with('*') {
            let tool = self.known.snapshot.find(name);
            let tool = tool.map_err(|fault| Refusal::from_fault(&fault))?;
            return Ok((vec![tool], None));
        }
        let set = Selector::try_from(name.to_owned()).map_err(refused)?;
        let tools: Vec<Arc<Tool>> = self.of_set(&set).collect();
        if tools.is_empty() {
            return Err(refused(format!("no tool is of {}", printable(name))).into());
        }
        Ok((tools, Some(set.text())))
    }

    /// The tools of a set. What this binary brings needs no approval.
    fn of_set(&self, set: &Selector) -> impl Iterator<Item = Arc<Tool>> {
        let tools = self.known.snapshot.list(&Filter::default()).into_iter();
        let of_set = tools.filter(|tool| set.matches(&tool.manifest.id));
        of_set.filter(|tool| !tool.site.manifest.as_os_str().is_empty())
    }

    /// What the tool is now. The error says why it cannot be approved.
    fn look(&self, tool: &Tool) -> Result<ToolNow, String> {
        let policies = &self.known.policies;
        // An alias has a definition of its own, and nothing else.
        let decision = match tool.manifest.alias() {
            Some(_) => policy::decide(&tool.manifest, &tool.site, policies, &self.known.machine),
            None => self.known.decide(tool),
        };
        ToolNow::new(&decision, &tool.manifest, &tool.site, policies)
    }

    /// The newest record of the tool, in whatever version.
    fn last(&self, tool: &Tool) -> Option<&ApprovalRecord> {
        let all = self.known.policies.approvals.list.iter();
        let of_id = all.filter(|record| record.is_of(&tool.manifest.id));
        of_id.max_by_key(|record| &record.at)
    }

    /// Prints what the tool may do, and how it differs from what was approved last.
    fn show(&self, tool: &Tool) {
        let mut shown = audit::of_tool(self.settings, &self.known, tool);
        match self.look(tool) {
            Err(why) => shown += &format!("  cannot be approved: {}\n", printable(&why)),
            Ok(now) => {
                shown += &self.change(tool, &now);
                shown += &format!("  Its manifest can name it: {}\n", now.digests.pin());
            }
        }
        words::show(format!("{shown}\n").as_bytes());
    }

    fn change(&self, tool: &Tool, now: &ToolNow) -> String {
        let Some(record) = self.last(tool) else {
            return "  It was not approved before.\n".to_owned();
        };
        let changed = record.digests.changed(&now.digests);
        if changed.is_empty() {
            return format!("  It is as it was approved {}\n", record.text());
        }
        let parts = changed.join(", ");
        let folders = self.known.policies.code.as_ref();
        let before = folders.and_then(|folders| folders.recall(record));
        let between = before.map_or_else(
            || "  This host does not have what was approved, only its digests.\n".to_owned(),
            |before| {
                let between = policy::diff::of_documents(&tool.reference(), &before, &now.details);
                diff::text(&between)
            },
        );
        format!(
            "  Changed since it was approved {}: {parts}\n{between}",
            record.text()
        )
    }

    /// Records what was shown, if the person agrees and it is the same still.
    fn record(
        &self,
        tools: &[Arc<Tool>],
        set: Option<&str>,
        args: &Args,
    ) -> anyhow::Result<ExitCode> {
        let Some(why) = args.why.as_ref().filter(|why| !why.trim().is_empty()) else {
            words::note("Nothing was recorded: --why TEXT records that you approve this.");
            return Ok(Exit::Ok.into());
        };
        let mut records = Vec::new();
        for tool in tools {
            let now = self.look(tool);
            let now = now.map_err(|why| refused(format!("{}: {why}", tool.reference())))?;
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
        let path: PathBuf = std::path::absolute(folder)?.join(APPROVALS_FILE);
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
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
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
            lines.extend(self.unapproved(name));
        }
        let good = |line: &&Value| !args.verify || line["state"] == "unchanged";
        let is_good = lines.iter().filter(good).count() == lines.len();
        let mut report = json!({ "approvals": lines });
        if args.verify {
            report["unchanged"] = json!(is_good);
        }
        words::answer(&report, args.json, || words::render(&report, &STATES));
        let exit = if is_good { Exit::Ok } else { Exit::Policy };
        Ok(exit.into())
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
            let tool = tool.map_err(|fault| fault.message)?;
            return Ok(match self.look(&tool) {
                Err(why) => vec![why],
                Ok(now) => {
                    let parts = record.digests.changed(&now.digests).into_iter();
                    parts.map(str::to_owned).collect()
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

    /// The tools that need an approval, and have no record.
    fn unapproved(&self, name: Option<&String>) -> Vec<Value> {
        let policies = &self.known.policies;
        let tools = self.of_set(&Selector::Any).filter(|tool| {
            let rule = policies.approval_rule(&tool.manifest.id, &tool.site.manifest);
            rule.is_some() && policies.approvals.find(&tool.reference()).is_none()
        });
        let names = tools.map(|tool| tool.reference());
        let meant = names
            .filter(|of| name.is_none_or(|name| of == name || of.starts_with(&format!("{name}@"))));
        meant
            .map(|of| json!({ "of": of, "state": "not approved" }))
            .collect()
    }
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
