//! `toolhost log`: past and running calls, one call, and the audit log itself.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, terminal, words};
use crate::base;
use crate::base::text::printable;
use crate::manifest::Selector;
use crate::service::audit::{self, CallFilter, PastCalls, Walk};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How often a log is looked at that grows.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Show the record of this call, by its id or the beginning of it
    #[arg(value_name = "CALL", conflicts_with_all = ["follow", "limit"])]
    call: Option<String>,
    /// Only calls of this tool, of ns:* or of *
    #[arg(long, value_name = "TOOL", value_parser = |text: &str| Selector::try_from(text.to_owned()))]
    tool: Option<Selector>,
    /// Only calls of this caller
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Only calls that were refused before anything ran
    #[arg(long)]
    refused: bool,
    /// Only calls that ran and failed (with --refused: and those)
    #[arg(long)]
    failed: bool,
    /// Only calls since then: 90s, 2h30m, 2026-11-29 (UTC), or a time as 2026-11-29T10:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<Timestamp>,
    /// Most calls to show, the newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Go on: show each call as it ends
    #[arg(long)]
    follow: bool,
    /// Print JSON: a record on each line
    #[arg(long)]
    json: bool,
}

fn since(text: &str) -> Result<Timestamp, String> {
    let time = if let Ok(span) = text.parse::<SignedDuration>() {
        Timestamp::now().saturating_sub(span)
    } else if let Ok(time) = text.parse() {
        Ok(time)
    } else {
        let date = text.parse::<Date>();
        date.and_then(|date| date.to_zoned(TimeZone::UTC).map(|day| day.timestamp()))
    };
    time.map_err(|_| "write 90s, 2h30m, 2026-11-29, or a time as 2026-11-29T10:00:00Z".to_owned())
}

impl Args {
    fn wanted(&self) -> CallFilter {
        CallFilter {
            tool: self.tool.clone(),
            caller: self.caller.clone(),
            root: None,
            refused: self.refused,
            failed: self.failed,
            since: self.since,
            after: None,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Check that no record of the audit log was changed, removed, moved or repeated
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// File of heads, as `[log] head_to` has them written (else the configured one, if it exists)
    #[arg(long, value_name = "FILE")]
    heads: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let log = host::audit_log(settings)?;
    match (&args.verb, &args.call) {
        (Some(Verb::Verify(verify)), _) => self::verify(&log, verify),
        (None, Some(call)) => {
            let past = log.recall(call).map(|past| past.record);
            let found = past.or_else(|why| log.running_call(call).ok_or(why));
            let record = found.map_err(|why| Refusal::new(Exit::Caller, printable(&why)))?;
            words::answer(&record, args.json, || words::render(&record, &[]));
            Ok(Exit::Ok.into())
        }
        (None, None) => list(&log, &args).map_err(|why| {
            let shown = base::text::path(log.path());
            Refusal::new(Exit::Host, format!("{shown}: {why}")).into()
        }),
    }
}

/// The newest calls, those that run, and, where that is asked for, each that ends from now on.
fn list(log: &audit::Log, args: &Args) -> io::Result<ExitCode> {
    let mut follower = args.follow.then(|| log.follow()).transpose()?;
    let wanted = args.wanted();
    let PastCalls { ended, running, .. } = log.calls(args.limit.into(), &wanted)?;
    if args.json {
        ended.iter().chain(&running).for_each(words::say_json);
    } else if ended.is_empty() && running.is_empty() {
        words::say("No such call is recorded.");
    } else {
        let all = ended.iter().chain(&running);
        let rows: Vec<Value> = all.map(row).collect();
        let is_narrow = terminal::columns().is_some_and(|columns| columns < WIDE_COLUMNS);
        let columns = COLUMNS.iter().filter(|name| !is_narrow || **name != "call");
        let columns: Vec<&str> = columns.copied().collect();
        let below: &[&str] = match is_narrow {
            true => &["call", "message"],
            false => &["message"],
        };
        words::show(words::table(&rows, &columns, below).as_bytes());
    }
    // A record that was written meanwhile was shown already.
    let last = ended.back().and_then(audit::number);
    while let Some(follower) = &mut follower {
        match follower.next_call()? {
            Some(record) if !wanted.fits(&record) || audit::number(&record) <= last => {}
            Some(record) if args.json => words::say_json(&record),
            Some(record) => words::say(&line(&row(&record))),
            None => std::thread::sleep(LOOK_INTERVAL),
        }
        if words::lost() {
            break;
        }
    }
    Ok(Exit::Ok.into())
}

fn text<'r>(record: &'r Value, member: &str) -> &'r str {
    record[member].as_str().unwrap_or_default()
}

/// A terminal of fewer columns shows the ids of calls below their rows.
const WIDE_COLUMNS: usize = 110;
const COLUMNS: [&str; 6] = ["time", "call", "caller", "tool", "outcome", "ms"];

/// What the table says of a call.
fn row(record: &Value) -> Value {
    let time = text(record, "time").split('.').next().unwrap_or_default();
    let tool = [text(record, "tool"), text(record, "version")].join("@");
    json!({
        "time": time, "call": record["call"], "caller": record["user"],
        "tool": tool.trim_end_matches('@'),
        "outcome": record["outcome"], "ms": record["usage"]["wallMs"], "message": record["message"],
    })
}

fn line(row: &Value) -> String {
    let cells = COLUMNS.iter().chain(&["message"]);
    let cells = cells.filter(|column| !row[**column].is_null());
    let cells: Vec<String> = cells.map(|column| words::flat(&row[*column])).collect();
    printable(&cells.join("  "))
}

fn verify(log: &audit::Log, args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let VerifyArgs { heads, json } = args;
    let verified = log.verify(heads.as_deref().or(log.heads()));
    let verified = verified.map_err(|why| Refusal::new(Exit::Host, printable(&why)))?;
    let holds = verified.breaches.is_empty();
    let mut told = json!(verified);
    told["holds"] = json!(holds);
    told["log"] = json!(log.path());
    words::answer(&told, *json, || report(&verified, log.path()));
    Ok(if holds { Exit::Ok } else { Exit::Host }.into())
}

fn report(verified: &Walk, log: &Path) -> String {
    let verdict = if verified.breaches.is_empty() {
        "PASS: the chain holds"
    } else {
        "FAIL: the chain is broken"
    };
    let found = verified.breaches.iter().chain(&verified.notes);
    let found: String = found
        .map(|it| format!("  {}\n", printable(&it.to_string())))
        .collect();
    let mut rest = json!(verified);
    (rest["breaches"], rest["notes"]) = (json!([]), json!([]));
    let unseen = if verified.heads.is_none() {
        "No heads were compared (--heads FILE): records that were removed at the end are not \
            missed, nor a chain that was made again.\n"
    } else {
        ""
    };
    let log = base::text::path(log);
    format!(
        "{verdict}: {log}\n{found}{}{unseen}",
        words::render(&rest, &[])
    )
}
