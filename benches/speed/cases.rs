//! Cold calls, WASI calls and timeouts.

use super::bare::BareLoop;
use super::board::{Board, Gate, Series};
use super::calls::{Bare, answered, run, told};
use super::house::{House, Tool};
use super::{Plan, bwrap, modules};
use anyhow::ensure;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use toolhost::executor::{Ending, Executor};
use toolhost::manifest::Language;

/// Between two calls, so that the work one leaves behind (a scratch to make, namespaces to free) is
/// not charged to the next.
const PAUSE: Duration = Duration::from_millis(2);
/// Calls of a few microseconds are made this many in a row, and count as their mean.
const IN_A_ROW: u32 = 10;
const LIMIT: Duration = Duration::from_millis(200);

/// A way of making one call.
pub type Way<'a> = Box<dyn Fn() -> anyhow::Result<Duration> + 'a>;

/// Calls each way once a round, in an order that changes from round to round: no way always follows
/// the same other.
pub fn in_turn(
    rounds: usize,
    pause: Duration,
    ways: Vec<(&str, Way<'_>)>,
) -> anyhow::Result<Vec<Series>> {
    let mut series: Vec<Series> = ways.iter().map(|(name, _)| Series::new(*name)).collect();
    for _ in 0..3 {
        for (_, way) in &ways {
            way()?;
        }
    }
    let mut order: Vec<usize> = (0..ways.len()).collect();
    // Any fixed sequence will do (xorshift); the same one in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..rounds {
        for at in (1..order.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(at, (state % (at as u64 + 1)) as usize);
        }
        for &at in &order {
            std::thread::sleep(pause);
            series[at].push((ways[at].1)()?);
        }
    }
    Ok(series)
}

/// The mean of some calls in a row.
fn in_a_row(mut call: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<Duration> {
    let times = (0..IN_A_ROW)
        .map(|_| call())
        .collect::<Result<Vec<_>, _>>()?;
    Ok(times.iter().sum::<Duration>() / IN_A_ROW)
}

/// An error of wasmtime, which is none of the standard library's.
fn said(error: wasmtime::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

fn message() -> Value {
    json!({"message": "hello"})
}

/// Bare, behind all layers, and behind bubblewrap.
fn cold(
    house: &House,
    board: &mut Board,
    tool: &Tool,
    rounds: usize,
    service: Option<&str>,
    gate: f64,
) -> anyhow::Result<Vec<Series>> {
    let input = message();
    let text = serde_json::to_vec(&input)?;
    let bare = Bare::of(&tool.confinement.shape)?;
    let wrapped = bwrap().map(|bwrap| bare.behind_bwrap(&bwrap, &tool.confinement.shape));
    let usable = wrapped.as_ref().map(|wrapped| wrapped.call(&text));
    let mut ways: Vec<(&str, Way)> = vec![
        ("bare spawn", Box::new(|| bare.call(&text))),
        ("toolhost, cold", Box::new(|| house.cold(tool, &input))),
    ];
    if let Some(name) = service {
        ways.push((
            "toolhost, cold, the whole service",
            Box::new(move || house.through_service(name, &message(), 1)),
        ));
    }
    if let (Some(wrapped), Some(Ok(_))) = (&wrapped, &usable) {
        ways.push((
            "bubblewrap, the same view",
            Box::new(|| wrapped.call(&text)),
        ));
    }
    let series = in_turn(rounds, PAUSE, ways)?;
    board.base(&series[0]);
    board.beside(&series[1], &series[0], Gate::AtMost(gate));
    for other in &series[2..] {
        board.beside(other, &series[0], Gate::None);
    }
    if let Some(Err(why)) = usable {
        board.skip("bubblewrap", &format!("it does not run here: {why:#}"));
    }
    Ok(series)
}

pub fn static_binary(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("static binary");
    let tool = match house.static_tool("echo", modules::ECHO_C) {
        Ok(tool) => tool,
        Err(why) => {
            board.skip("a static binary", &format!("{why:#}"));
            return Ok(());
        }
    };
    let series = cold(house, board, &tool, plan.rounds(400), None, 2.5)?;
    let (mine, bare) = (&series[1], &series[0]);
    let more = (mine.p50() - bare.p50()) * 1e3;
    board.number("the layers add, ms", more, Gate::AtMost(1.3));
    if let Some(bwrap) = series.get(2) {
        board.number(
            "toolhost / bubblewrap",
            mine.p50() / bwrap.p50(),
            Gate::AtMost(0.30),
        );
    }
    if !plan.quick {
        let tail = mine.percent(99).as_secs_f64() / mine.p50();
        board.number("tail: p99 / p50, one at a time", tail, Gate::AtMost(8.0));
    }
    Ok(())
}

fn language(
    house: &House,
    plan: &Plan,
    board: &mut Board,
    language: Language,
    name: &str,
    gate: f64,
) -> anyhow::Result<()> {
    let Some(version) = house.version(language) else {
        board.section(name);
        board.skip(name, "not found on PATH");
        return Ok(());
    };
    board.section(&format!("{name} {version}"));
    let tool = house.tool(name)?;
    cold(house, board, &tool, plan.rounds(120), Some(name), gate)?;
    Ok(())
}

pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    language(house, plan, board, Language::Python, "python", 1.06)
}

pub fn node(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    language(house, plan, board, Language::Nodejs, "node", 1.06)
}

pub fn bun(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    language(house, plan, board, Language::Bun, "bun", 1.15)
}

/// The three shapes, each beside a bare wasmtime loop of the same guest on the same engine
/// settings.
pub fn wasi(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let component = modules::component()?;
    let below_tmp = House::below(Path::new("/tmp"))?;
    let shapes = [
        (
            "typed",
            "typed component",
            modules::TYPED.as_bytes(),
            Gate::AtMost(8.0),
        ),
        (
            "preview1",
            "preview 1 module",
            modules::echo().as_bytes(),
            Gate::AtMost(4.0),
        ),
        (
            "component",
            "wasi:cli component",
            &component,
            Gate::AtMost(4.0),
        ),
    ]
    .map(|(tool, title, module, gate)| (tool, title, module.to_vec(), gate));
    for (tool, title, module, gate) in shapes {
        board.section(&format!("WASI, {title}"));
        let bare = BareLoop::new(&module).map_err(said)?;
        let (input, text) = (message(), message().to_string());
        let confined = house.tool(tool)?;
        let executor = |tool: &Tool| {
            let (wasm, tool, input) = (house.wasm.clone(), tool.clone(), input.clone());
            house.task(async move {
                let mut sum = Duration::ZERO;
                for _ in 0..IN_A_ROW {
                    sum += answered(&*wasm, &tool, &input).await?;
                }
                Ok(sum / IN_A_ROW)
            })
        };
        let (itself, nothing) = (format!("{tool}-self"), format!("{tool}-nothing"));
        let mut ways: Vec<(&str, Way)> = vec![
            (
                "bare wasmtime loop",
                Box::new(|| in_a_row(|| bare.call(&text).map_err(said))),
            ),
            ("toolhost, warm worker", Box::new(|| executor(&confined))),
            (
                "toolhost, the whole service",
                Box::new(|| house.through_service(tool, &input, IN_A_ROW)),
            ),
        ];
        if tool != "typed" {
            ways.push((
                "the service, reads `self`",
                Box::new(|| house.through_service(&itself, &input, IN_A_ROW)),
            ));
            ways.push((
                "the service, reads nothing",
                Box::new(|| house.through_service(&nothing, &input, IN_A_ROW)),
            ));
            ways.push((
                "the service, root below /tmp",
                Box::new(|| below_tmp.through_service(tool, &input, IN_A_ROW)),
            ));
        }
        let series = in_turn(plan.rounds(150), Duration::from_micros(200), ways)?;
        board.base(&series[0]);
        board.beside(&series[1], &series[0], Gate::None);
        for service in &series[2..] {
            board.beside(service, &series[0], gate);
        }
    }
    compiled(plan, board)
}

fn compiled(plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let module = modules::large()?;
    board.section(&format!(
        "WASI, a module of {:.1} MB",
        module.len() as f64 / 1e6
    ));
    let (mut compile, mut load) = (
        Series::new("compile"),
        Series::new("load what was compiled"),
    );
    for _ in 0..if plan.quick { 1 } else { 3 } {
        let bare = BareLoop::new(&module).map_err(said)?;
        compile.push(bare.compiled_in);
        load.push(bare.loaded_in);
    }
    board.base(&compile);
    board.beside(&load, &compile, Gate::AtMost(0.01));
    Ok(())
}

/// How long after its limit a call that does not end comes back.
pub fn timeout(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section(&format!(
        "timeout of {} ms, to the answer",
        LIMIT.as_millis()
    ));
    let python = house.version(Language::Python).is_some();
    for (tool, title) in [
        ("python-spins", "Python, a busy loop"),
        ("python-sleeps", "Python, asleep"),
        ("wasm-spins", "WASI, a busy loop"),
        ("wasm-sleeps", "WASI, asleep"),
    ] {
        let wasm = tool.starts_with("wasm");
        if !wasm && !python {
            board.skip(title, "no Python on PATH");
            continue;
        }
        let executor: Arc<dyn Executor> = if wasm {
            house.wasm.clone()
        } else {
            house.scripts.clone()
        };
        let confined = house.tool(tool)?;
        let late = confined.clone().with_timeout(LIMIT);
        let mut series = Series::new(title);
        for _ in 0..plan.rounds(20).min(if plan.quick { 5 } else { 20 }) {
            let (executor, confined, late) = (executor.clone(), confined.clone(), late.clone());
            let took = house.task(async move {
                // An answer first, so that launcher or worker is up: its start is not the tool's
                // time.
                answered(&*executor, &confined, &message()).await?;
                let long = json!({"message": "x".repeat(modules::SHORT)});
                let (took, ended) = run(&*executor, &late, &long).await;
                let ending = ended.map_err(told)?.ending;
                ensure!(
                    matches!(ending, Ending::TimedOut { .. }),
                    "it was to time out: {ending:?}"
                );
                Ok(took)
            })?;
            series.push(took);
        }
        board.with_ratio(
            &series,
            series.p50() / LIMIT.as_secs_f64(),
            Gate::AtMost(1.10),
        );
    }
    Ok(())
}
