//! `toolhost log`: the audit log itself.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::text::{self, printable};
use crate::service::audit::Walk;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
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
    let Verb::Verify(VerifyArgs { heads, json }) = args.verb;
    let log = host::audit_log(settings)?;
    let verified = log.verify(heads.as_deref().or(log.heads()));
    let verified = verified.map_err(|why| Refusal::new(Exit::Host, printable(&why)))?;
    let holds = verified.breaches.is_empty();
    let mut told = json!(verified);
    told["holds"] = json!(holds);
    told["log"] = json!(log.path());
    words::answer(&told, json, || report(&verified, log.path()));
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
    let log = text::path(log);
    format!(
        "{verdict}: {log}\n{found}{}{unseen}",
        words::render(&rest, &[])
    )
}
