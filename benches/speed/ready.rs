//! Ready processes: beside a bare cold start, with packages that take long to load, and in bursts.

use super::Plan;
use super::board::{Board, Gate, Series};
use super::calls::{Bare, run, told};
use super::cases::in_turn;
use super::house::{House, Tool};
use anyhow::ensure;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolhost::executor::process::Scripts;
use toolhost::executor::{CallDeadline, Ending, Executor, Outcome};
use toolhost::manifest::Language;
use toolhost::policy::{InputFile, ReadyGrant};

/// What the processes were started for.
const DIGEST: &str = "bench";
/// From one burst to the next.
const SECOND: Duration = Duration::from_secs(1);
const AT_ONCE: usize = 4;
/// Time for a process to load what it loads.
const LOADS: Duration = Duration::from_millis(60);
const LOADS_PANDAS: Duration = Duration::from_secs(3);
const PLOT: &str = "import io, json
import pandas
import matplotlib.pyplot as plt
frame = pandas.read_csv('/tmp/call/input/data.csv')
frame.groupby('day')['amount'].sum().plot()
picture = io.BytesIO()
plt.savefig(picture, format='png')
print(json.dumps(len(picture.getvalue())))
";

pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("ready processes, Python");
    if house.version(Language::Python).is_none() {
        board.skip("Python", "none was found");
        return Ok(());
    }
    let cold = house.tool("python")?;
    let ready = waiting(cold.clone(), AT_ONCE, &[]);
    let bare = Bare::of(&cold.confinement.shape)?;
    let input = json!({"message": "hello"});
    let text = input.to_string();
    let series = in_turn(
        plan.rounds(200),
        Duration::from_millis(2),
        vec![
            ("bare spawn", Box::new(|| bare.call(text.as_bytes()))),
            ("toolhost, cold", Box::new(|| house.cold(&cold, &input))),
            (
                "toolhost, ready",
                Box::new(|| one(house, &ready, &input, LOADS)),
            ),
        ],
    )?;
    board.base(&series[0]);
    board.beside(&series[1], &series[0], Gate::None);
    board.beside(&series[2], &series[0], Gate::AtMost(0.30));
    bursts(house, plan, board, &ready, &cold)?;
    plots(house, plan, board)
}

/// The tool with processes that wait for its calls.
fn waiting(mut tool: Tool, processes: usize, imports: &[&str]) -> Tool {
    Arc::make_mut(&mut tool.confinement.shape).ready = Some(ReadyGrant {
        processes,
        imports: imports.iter().map(|name| (*name).to_owned()).collect(),
        idle_ms: 600_000,
        rule: String::new(),
        why: String::new(),
    });
    tool.confinement.per_call.ready = Some(DIGEST.to_owned());
    tool
}

/// Starts what is missing of the processes.
async fn start(scripts: &Scripts, tool: &Tool) -> anyhow::Result<()> {
    let mut confinement = tool.confinement.clone();
    if confinement.shape.script.is_some() {
        let deadline = CallDeadline::usual("", None);
        let script = scripts.read(&confinement.shape, &deadline).await;
        confinement.per_call.script = Some(Arc::new(script.map_err(told)?));
    }
    let started = scripts.ready().start(&confinement, DIGEST, None);
    started.await.map_err(told)
}

async fn answered(
    executor: &dyn Executor,
    tool: &Tool,
    input: &Value,
) -> anyhow::Result<(Duration, Outcome)> {
    let (took, ended) = run(executor, tool, input).await;
    let outcome = ended.map_err(told)?;
    ensure!(matches!(outcome.ending, Ending::Answered(_)), "{outcome:?}");
    Ok((took, outcome))
}

/// One call of a process that waited for it.
fn one(house: &House, tool: &Tool, input: &Value, loads: Duration) -> anyhow::Result<Duration> {
    let (scripts, tool, input) = (house.scripts.clone(), tool.clone(), input.clone());
    house.task(async move {
        start(&scripts, &tool).await?;
        tokio::time::sleep(loads).await;
        let (took, outcome) = answered(&*scripts, &tool, &input).await?;
        ensure!(outcome.usage.started.is_some(), "it started cold");
        Ok(took)
    })
}

/// As many calls at once as processes may wait, once a second, and at what rate calls become cold.
fn bursts(
    house: &House,
    plan: &Plan,
    board: &mut Board,
    ready: &Tool,
    cold: &Tool,
) -> anyhow::Result<()> {
    let mut rate = 0;
    for (name, tool) in [
        ("bursts of 4 a second, cold", cold),
        ("bursts of 4 a second, ready", ready),
    ] {
        let mut series = Series::new(name);
        for _ in 0..if plan.quick { 3 } else { 20 } {
            burst(house, tool, 1)?
                .into_iter()
                .for_each(|(took, _)| series.push(took));
        }
        let tail = series.percent(95);
        board.base(&series);
        board.number(
            &format!("{name}, p95, ms"),
            tail.as_secs_f64() * 1e3,
            Gate::None,
        );
    }
    for bursts in [1, 2, 4, 8] {
        let all = burst(house, ready, bursts)?;
        if all.iter().all(|(_, was_ready)| *was_ready) {
            rate = bursts * AT_ONCE;
        }
    }
    board.number("calls a second, none of them cold", rate as f64, Gate::None);
    Ok(())
}

/// Some bursts in one second, behind each of which processes are started.
fn burst(house: &House, tool: &Tool, bursts: usize) -> anyhow::Result<Vec<(Duration, bool)>> {
    let (scripts, tool) = (house.scripts.clone(), tool.clone());
    house.task(async move {
        start(&scripts, &tool).await?;
        tokio::time::sleep(LOADS).await;
        let mut all = Vec::new();
        for _ in 0..bursts {
            let began = Instant::now();
            let calls = (0..AT_ONCE)
                .map(async |_| answered(&*scripts, &tool, &json!({"message": "hello"})).await);
            for ended in futures_util::future::join_all(calls).await {
                let (took, outcome) = ended?;
                all.push((took, outcome.usage.started.is_some()));
            }
            start(&scripts, &tool).await?;
            let next = SECOND / u32::try_from(bursts)?;
            tokio::time::sleep(next.saturating_sub(began.elapsed())).await;
        }
        Ok(all)
    })
}

/// The first picture of a table of 1 MiB that the call brings, by source text.
fn plots(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let mut tool = house.tool("python")?;
    let shape = Arc::make_mut(&mut tool.confinement.shape);
    (shape.script, shape.folder) = (None, "/tmp".into());
    shape.grants.clear();
    tool.confinement.per_call.source = Some(PLOT.to_owned());
    let mut csv = "day,region,amount\n".to_owned();
    let mut row = 0;
    while csv.len() < 1 << 20 {
        row += 1;
        csv += &format!("{},north,{}\n", row % 365, row * 7919 % 1000);
    }
    let mut file = tempfile::tempfile()?;
    file.write_all(csv.as_bytes())?;
    tool.confinement.per_call.bring(vec![InputFile {
        name: "data.csv".to_owned(),
        content: Arc::new(file),
        offset: 0,
        bytes: csv.len() as u64,
    }]);
    let input = json!({});
    let ready = waiting(tool.clone(), 1, &["pandas", "matplotlib.pyplot"]);
    let mut series = [
        Series::new("pandas and first plot, cold"),
        Series::new("pandas and first plot, ready"),
    ];
    for _ in 0..if plan.quick { 2 } else { 10 } {
        match house.cold(&tool, &input) {
            Ok(took) => series[0].push(took),
            Err(why) => {
                board.skip(
                    "pandas and first plot",
                    &format!("it does not run here: {why:#}"),
                );
                return Ok(());
            }
        }
        series[1].push(one(house, &ready, &input, LOADS_PANDAS)?);
    }
    board.base(&series[0]);
    board.base(&series[1]);
    board.number(
        "pandas and first plot, ready, p50, ms",
        series[1].p50() * 1e3,
        Gate::AtMost(150.0),
    );
    Ok(())
}
