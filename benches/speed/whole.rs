//! Killing, loading, and the command line.

use super::board::{Board, Gate, Series};
use super::calls::{Bare, run, told};
use super::cases::{Way, in_turn};
use super::house::{BINARY, House, write_tool};
use super::{Plan, modules};
use anyhow::ensure;
use serde_json::json;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolhost::executor::Ending;
use toolhost::manifest::Language;
use toolhost::quantity::Limit;
use toolhost::registry;

/// Time enough to start 500 processes.
const UP: Duration = Duration::from_millis(600);
const HOSTILE: &str = "bench-hostile";
const MANIFESTS: usize = 10_000;

/// From the limit to the answer, which comes when the whole tree is reaped.
pub fn kill(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("timeout to reaped, SIGTERM ignored");
    let mut tool = match house.static_tool(HOSTILE, modules::HOSTILE_C) {
        Ok(tool) => tool.with_timeout(UP),
        Err(why) => {
            board.skip("killing", &format!("{why:#}"));
            return Ok(());
        }
    };
    Arc::make_mut(&mut tool.confinement.shape)
        .limits
        .set(Limit::Processes, 2000);
    for children in [0, 50, 500] {
        let mut series = Series::new(format!("{children} children"));
        for _ in 0..if plan.quick { 3 } else { 12 } {
            let (scripts, tool) = (house.scripts.clone(), tool.clone());
            let took = house.task(async move {
                let (took, ended) = run(&*scripts, &tool, &json!({"children": children})).await;
                let outcome = ended.map_err(told)?;
                ensure!(
                    matches!(outcome.ending, Ending::TimedOut { .. }),
                    "it was to time out: {:?}",
                    outcome.ending
                );
                ensure!(
                    outcome.logs == [format!("{children} up")],
                    "the children: {:?}",
                    outcome.logs
                );
                Ok(took)
            })?;
            let left = alive(HOSTILE);
            ensure!(left == 0, "{left} processes outlived the answer");
            series.push(took.saturating_sub(UP));
        }
        board.base(&series);
        if children == 50 {
            board.number(
                "50 children, p50, ms",
                series.p50() * 1e3,
                Gate::AtMost(50.0),
            );
        }
    }
    Ok(())
}

/// Processes of this name, zombies included.
fn alive(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is = |folder: &Path| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    entries.filter(|entry| is(&entry.path())).count()
}

pub fn load(house: &House, _plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section(&format!("load {MANIFESTS} manifests, a folder each"));
    let folder = tempfile::tempdir_in(&house.root)?;
    let base = folder.path().canonicalize()?;
    for number in 0..MANIFESTS {
        write_tool(
            &base,
            &format!("tool-{number}"),
            "python",
            "main.py",
            modules::PYTHON.as_bytes(),
        )?;
    }
    let mut series = Series::new("scan, check and index");
    for _ in 0..3 {
        let started = Instant::now();
        let registry = registry::Registry::new();
        let loader = registry::DirectToolLoader::new(Vec::new(), vec![base.clone()]);
        registry
            .add_source(Arc::new(loader))
            .map_err(anyhow::Error::msg)?;
        series.push(started.elapsed());
        let found = registry.snapshot().list(&registry::Filter::default()).len();
        ensure!(found == MANIFESTS, "{found} of {MANIFESTS} were loaded");
    }
    board.base(&series);
    board.number("10,000 manifests, p50, s", series.p50(), Gate::AtMost(0.5));
    Ok(())
}

/// One whole life of the program: settings, scan, launcher, call, farewell.
pub fn cli(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("one-shot command line");
    let mut tools = vec![("typed", "toolhost call, typed WASI (compiled)", Gate::None)];
    if house.version(Language::Python).is_some() {
        tools.insert(0, ("python", "toolhost call, Python", Gate::AtMost(1.4)));
    }
    let surroundings = cli_surroundings(house)?;
    let words = |words: &[&str]| -> Vec<OsString> {
        let root = [OsString::from("--root"), house.root.clone().into()];
        root.into_iter()
            .chain(words.iter().map(OsString::from))
            .collect()
    };
    let program = Path::new(BINARY);
    let list = surroundings.instead(program, &words(&["list"]));
    let calls: Vec<_> = tools
        .iter()
        .map(|(tool, title, _)| {
            let name = format!("bench:{tool}");
            (
                *title,
                surroundings.instead(program, &words(&["call", &name, "message=hello"])),
            )
        })
        .collect();
    let python = house
        .tool("python")
        .ok()
        .map(|tool| Bare::of(&tool.confinement.shape))
        .transpose()?;
    let mut ways: Vec<(&str, Way)> = Vec::new();
    if let Some(python) = &python {
        ways.push((
            "bare Python",
            Box::new(|| python.call(br#"{"message":"hello"}"#)),
        ));
    }
    ways.push(("toolhost list", Box::new(|| list.call(b""))));
    for (title, call) in &calls {
        ways.push((title, Box::new(|| call.call(b""))));
    }
    let series = in_turn(plan.rounds(40), Duration::from_millis(2), ways)?;
    board.base(&series[0]);
    for other in &series[1..] {
        let gate = tools
            .iter()
            .find(|(_, title, _)| *title == other.name)
            .map_or(Gate::None, |(_, _, gate)| *gate);
        board.beside(other, &series[0], gate);
    }
    Ok(())
}

/// A home of its own, so that no log or cache of this user is touched; the search path is ours.
fn cli_surroundings(house: &House) -> anyhow::Result<Bare> {
    let home = house.root.join("home");
    std::fs::create_dir_all(&home)?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(Bare::plain(
        &home,
        [
            ("PATH", path.as_str()),
            ("HOME", &home.to_string_lossy()),
            ("LANG", "C.UTF-8"),
        ],
    ))
}
