//! `toolhost doctor --attacks`: tries the shipped probes on this machine.
//!
//! Each runs confined and, as its control, as it is. `scoreboard/judge.py` starts them and sees from
//! outside what they did. It is a program of ours, run without layers by the interpreter that tools
//! get. The exit code is 0 only if every probe that was judged was held.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, terminal, words};
use crate::manifest::Language;
use crate::policy;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

const JUDGE: &str = include_str!("../../scoreboard/judge.py");
const PROBES: &str = include_str!("../../scoreboard/probes.json");
const SCRIPT: &str = include_str!("../../scoreboard/probes.py");
const PEER: &str = include_str!("../../scoreboard/peers/toolhost.py");

const TABLES: [words::Table; 1] = [("probes", &["name", "layer", "verdict"], &["effects", "why"])];

/// How the probes are shown.
pub struct Shown {
    pub json: bool,
    /// Also those that were held.
    pub all: bool,
}

pub fn run(settings: &Settings, shown: Shown) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let given = json!({
        "probes": PROBES, "script": SCRIPT, "peer": PEER, "settings": { "program": program },
    });
    let probes = verdicts(settings, &given)?;
    let count = |verdict: &str| {
        let same = probes.iter().filter(|probe| probe["verdict"] == verdict);
        same.count()
    };
    let (held, escaped) = (count("held"), count("escaped"));
    let failed = escaped + count("notTried");
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": nix::sys::utsname::uname()?.release().to_string_lossy(),
        "held": held, "judged": held + escaped, "of": probes.len(), "probes": probes,
    });
    words::answer(&report, shown.json, || {
        let rows = probes
            .iter()
            .filter(|probe| shown.all || probe["verdict"] != "held");
        let rows = json!({ "probes": rows.collect::<Vec<_>>() });
        let head = format!(
            "{held} of {} probes were held, of {} that ship.",
            held + escaped,
            probes.len()
        );
        format!("{head}\n{}", words::render(&rows, &TABLES))
    });
    // A machine on which nothing could be judged has shown nothing.
    let is_good = failed == 0 && held > 0;
    Ok(if is_good { Exit::Ok } else { Exit::Host }.into())
}

/// What became of each probe, in the order in which they ship.
fn verdicts(settings: &Settings, given: &Value) -> anyhow::Result<Vec<Value>> {
    let mut judge = Command::new(interpreter(settings)?)
        .args(["-I", "-S", "-B", "-c", JUDGE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It reads all of this before it writes.
    let input = judge.stdin.take();
    input
        .map(|mut input| write!(input, "{given}"))
        .transpose()?;
    let output = judge.stdout.take();
    let mut told = Vec::new();
    for line in output
        .into_iter()
        .flat_map(|output| BufReader::new(output).lines())
    {
        told.push(serde_json::from_str::<Value>(&line?)?);
        terminal::progress(&format!("{} probes judged", told.len()));
    }
    let ended = judge.wait()?;
    if !ended.success() {
        let words = format!("the probes could not be judged: their program ended with {ended}");
        return Err(Refusal::new(Exit::Host, words).into());
    }
    Ok(told)
}

/// The Python of this host, which runs the judge and the probes.
fn interpreter(settings: &Settings) -> anyhow::Result<PathBuf> {
    let found = host::discovered(settings)
        .runtimes
        .remove(&Language::Python);
    let program = found.and_then(|runtime| match runtime.program {
        policy::Program::Path(path) => Some(path),
        policy::Program::Ourselves { .. } => None,
    });
    program.ok_or_else(|| {
        let words = "the probes are Python, and no interpreter was found: install python3; \
                     `toolhost doctor` says which were passed over";
        Refusal::new(Exit::Host, words).into()
    })
}
