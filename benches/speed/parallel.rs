//! Many calls at once: calls a second and times, bare and behind the layers, in slices that take
//! turns.

use super::board::{Board, Gate, Series};
use super::calls::{Bare, answered};
use super::house::{House, Tool};
use super::{Plan, modules};
use serde_json::json;
use std::time::{Duration, Instant};
use toolhost::manifest::Language;

const AT_ONCE: [usize; 4] = [1, 2, 8, 32];

/// One side's calls and the time they took together.
struct Side {
    series: Series,
    busy: Duration,
}

impl Side {
    fn new(name: String) -> Side {
        Side {
            series: Series::new(name),
            busy: Duration::ZERO,
        }
    }

    fn add(&mut self, (times, busy): (Vec<Duration>, Duration)) {
        times.into_iter().for_each(|time| self.series.push(time));
        self.busy += busy;
    }

    fn rate(&self) -> f64 {
        self.series.len() as f64 / self.busy.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The same series, its rate in its name.
    fn shown(&self) -> Series {
        let mut named = self.series.clone();
        named.name = format!("{} {:>7.0} calls/s", self.series.name, self.rate());
        named
    }
}

fn bare_slice(
    bare: &Bare,
    at_once: usize,
    length: Duration,
) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let text = json!({"message": "hello"}).to_string();
    let started = Instant::now();
    let worker = || -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        while started.elapsed() < length {
            times.push(bare.call(text.as_bytes())?);
        }
        Ok(times)
    };
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok((times.concat(), started.elapsed()))
}

fn held_slice(
    house: &House,
    tool: &Tool,
    at_once: usize,
    length: Duration,
) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let started = Instant::now();
    let worker = || {
        let (scripts, tool) = (house.scripts.clone(), tool.clone());
        async move {
            let input = json!({"message": "hello"});
            let mut times = Vec::new();
            while started.elapsed() < length {
                times.push(answered(&*scripts, &tool, &input).await?);
            }
            anyhow::Ok(times)
        }
    };
    let tasks: Vec<_> = (0..at_once)
        .map(|_| house.runtime.spawn(worker()))
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(house.runtime.block_on(task)??);
    }
    Ok((times, started.elapsed()))
}

fn at_once(
    house: &House,
    plan: &Plan,
    board: &mut Board,
    tool: &Tool,
    slice: Duration,
    gates: (f64, Option<f64>),
) -> anyhow::Result<()> {
    let bare = Bare::of(&tool.confinement.shape)?;
    let (rate_gate, tail_gate) = gates;
    for count in AT_ONCE {
        let mut sides = (
            Side::new(format!("{count:>2} at once, bare    ")),
            Side::new(format!("{count:>2} at once, toolhost")),
        );
        // So that the launchers are up.
        held_slice(house, tool, count, Duration::from_millis(300))?;
        for _ in 0..if plan.quick { 1 } else { 4 } {
            sides.0.add(bare_slice(&bare, count, slice)?);
            sides.1.add(held_slice(house, tool, count, slice)?);
        }
        let gate = if count == 8 {
            Gate::AtLeast(rate_gate)
        } else {
            Gate::None
        };
        board.base(&sides.0.shown());
        board.with_ratio(&sides.1.shown(), sides.1.rate() / sides.0.rate(), gate);
        if let (8, Some(most), false) = (count, tail_gate, plan.quick) {
            let tail = sides.1.series.percent(99).as_secs_f64() / sides.1.series.p50();
            board.number("tail: p99 / p50, 8 at once", tail, Gate::AtMost(most));
        }
    }
    board.note("ratio: calls a second, toolhost / bare");
    Ok(())
}

pub fn static_binary(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("static binary, many at once");
    match house.static_tool("echo", modules::ECHO_C) {
        Ok(tool) => at_once(
            house,
            plan,
            board,
            &tool,
            Duration::from_millis(400),
            (0.40, Some(4.0)),
        ),
        Err(why) => {
            board.skip("static binaries at once", &format!("{why:#}"));
            Ok(())
        }
    }
}

pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("Python, many at once");
    if house.version(Language::Python).is_none() {
        board.skip("Python at once", "not found on PATH");
        return Ok(());
    }
    at_once(
        house,
        plan,
        board,
        &house.tool("python")?,
        Duration::from_millis(1200),
        (0.85, None),
    )
}
