//! `toolhost disable` and `enable`: work on the file that every host of this state folder reads,
//! with or without a server, and whatever is wrong with tools and policies.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::{files, text};
use crate::policy::{Selector, Stop, stop_selector};
use crate::service::stops::StopFile;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

#[derive(Clone, Debug, clap::Args)]
pub struct DisableArgs {
    /// The tools: ns:name, ns:name@1.2.0, ns:* or *
    // `tools` is a flag of every verb.
    #[arg(value_name = "TOOLS", value_parser = stop_selector, requires = "why")]
    pub named: Option<Selector>,
    /// Why, for operators
    #[arg(long, requires = "named", value_parser = NonEmptyStringValueParser::new())]
    pub why: Option<String>,
    /// End their calls that run, too
    #[arg(long, requires = "named")]
    pub now: bool,
    /// Print what is disabled as JSON
    #[arg(long, conflicts_with = "named")]
    pub json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct EnableArgs {
    /// The tools, as they were disabled
    #[arg(value_name = "TOOLS", value_parser = stop_selector)]
    pub named: Selector,
}

/// The file that the hosts of this user obey.
fn file(settings: &Settings) -> anyhow::Result<StopFile> {
    let file = StopFile::beside(&host::audit_log(settings)?);
    check_owner(&file.file.path)?;
    Ok(file)
}

/// Refuses a file that the hosts of another user obey.
pub(super) fn check_owner(file: &Path) -> anyhow::Result<()> {
    if let Some(owner) = file.parent().and_then(other_owner) {
        let path = text::path(file);
        let words = format!("hosts of user {owner} obey {path}: run this as that user");
        return Err(Refusal::new(Exit::Host, words).into());
    }
    Ok(())
}

/// The user to whom a folder belongs, if it is neither this one nor root.
fn other_owner(folder: &Path) -> Option<u32> {
    let owner = folder.metadata().ok()?.uid();
    (!files::is_trusted(owner)).then_some(owner)
}

fn failed(file: &StopFile, why: &io::Error) -> Refusal {
    let path = text::path(&file.file.path);
    let refuses = if file.all().is_err() {
        ", and every call is refused until it is corrected (`toolhost disable '*'` puts it aside)"
    } else {
        ""
    };
    let words = format!("{path}: {why}; nothing was changed{refuses}");
    Refusal::new(Exit::Host, words)
}

/// Adds to the audit log who ordered what.
pub(super) fn record(settings: &Settings, what: &str, told: &impl Serialize) -> anyhow::Result<()> {
    host::audit_log(settings)?.open()?.write(&json!({
        "time": Timestamp::now(),
        (what): told,
        "uid": nix::unistd::getuid().as_raw(),
        "user": host::login(),
    }));
    Ok(())
}

pub fn disable(settings: &Settings, args: DisableArgs) -> anyhow::Result<ExitCode> {
    let DisableArgs { named, why, .. } = args;
    let (Some(tools), Some(why)) = (named, why) else {
        return list(settings, args.json);
    };
    let second = Timestamp::from_second(Timestamp::now().as_second());
    let stop = Stop {
        tools,
        by: host::login(),
        at: second.unwrap_or_default(),
        why,
        ends_calls: args.now,
        root: None,
    };
    let file = file(settings)?;
    file.order(&stop).map_err(|why| failed(&file, &why))?;
    let path = text::path(&file.file.path);
    let running = if args.now {
        "end"
    } else {
        "go on (--now ends them)"
    };
    let tools = stop.tools.text();
    words::say(&format!(
        "'{tools}' is disabled in {path}; calls that run {running}"
    ));
    // A log that cannot be written holds up no order.
    if let Err(why) = record(settings, "disabled", &stop) {
        words::note(&format!("toolhost: it is not recorded: {why:#}"));
    }
    say_unknown(settings, &stop);
    Ok(Exit::Ok.into())
}

/// Warns where no tool has such a name, or the hosts of another user run it. The order holds all
/// the same.
fn say_unknown(settings: &Settings, stop: &Stop) {
    if let Some(owner) = other_owner(&settings.root) {
        let root = text::path(&settings.root);
        words::note(&format!(
            "toolhost: {root} belongs to user {owner}, whose hosts obey another file: run this as that \
             user, too"
        ));
    }
    let tools = stop.tools.text();
    match host::Tools::load(settings) {
        Ok(known) => {
            let mut all = known.tools().into_iter();
            if !all.any(|tool| stop.covers(&tool.reference())) {
                words::note(&format!(
                    "toolhost: no tool that is loaded now is '{tools}' (`toolhost list` shows their \
                     names); one that comes will be disabled"
                ));
            }
        }
        Err(why) => words::note(&format!(
            "toolhost: whether '{tools}' names a tool is not known: {why:#}"
        )),
    }
}

fn list(settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    let stops = StopFile::beside(&host::audit_log(settings)?).all()?;
    words::answer(&json!(stops), json, || {
        let lines: Vec<String> = stops.iter().map(Stop::text).collect();
        if lines.is_empty() {
            "Nothing is disabled.".to_owned()
        } else {
            lines.join("\n")
        }
    });
    Ok(Exit::Ok.into())
}

pub fn enable(settings: &Settings, args: &EnableArgs) -> anyhow::Result<ExitCode> {
    let file = file(settings)?;
    // What cannot be recorded is not enabled.
    host::audit_log(settings)?.open()?;
    let stops = &file.file;
    let changed = stops.change(|stops| stops.remove(|stop| stop.tools == args.named));
    let (was_disabled, stops) = changed.map_err(|why| failed(&file, &why))?;
    let tools = args.named.text();
    let others: String = stops
        .meeting(&args.named)
        .map(|stop| {
            format!(
                "\n  {}: `toolhost enable '{}'`",
                stop.text(),
                stop.tools.text()
            )
        })
        .collect();
    if !was_disabled {
        let words = format!("'{tools}' itself is not disabled; nothing was changed{others}");
        return Err(Refusal::new(Exit::Caller, words).into());
    }
    record(settings, "enabled", &tools)?;
    words::say(&format!(
        "'{tools}' is enabled in {}",
        text::path(&file.file.path)
    ));
    if !others.is_empty() {
        words::note(&format!("toolhost: still disabled:{others}"));
    }
    Ok(Exit::Ok.into())
}
