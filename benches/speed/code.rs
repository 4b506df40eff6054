//! Code that calls tools: one of its calls beside a direct one, and a task of many look-ups as one
//! program and as as many calls.

use super::Plan;
use super::board::{Board, Gate};
use super::calls::told;
use super::cases::in_turn;
use super::house::House;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolhost::manifest::Language;
use toolhost::service::{Arguments, CallRequest, Caller, Service, Sink};

/// Look-ups of one task.
const LOOKUPS: u32 = 20;
/// What one look-up gives.
const ROW_BYTES: usize = 2000;
const POLICY: &str = "name = \"bench\"
why = \"a bench\"
tools = [\"bench:*\"]
[calls]
allow = [{ tool = \"bench:python\", why = \"look-ups\" }]
";
/// Gives what it found in short, and the mean time of its calls in seconds.
pub const LOOKS_UP: &str = "import json, sys, time
given = json.load(sys.stdin)
took, found = 0, 0
for _ in range(given['n']):
    began = time.perf_counter()
    row = await bench_python(message=given['message'])
    took += time.perf_counter() - began
    found += len(row['message'])
print(json.dumps({'message': str(found), 'mean': took / given['n']}))
";

pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("code that calls tools, Python");
    if house.version(Language::Python).is_none() {
        board.skip("Python", "none was found");
        return Ok(());
    }
    let service = house.service_with(POLICY)?;
    let message = "x".repeat(ROW_BYTES);
    let program = json!({"message": message, "n": LOOKUPS});
    let row = json!({"message": message});
    let series = in_turn(
        plan.rounds(60),
        Duration::from_millis(2),
        vec![
            (
                "a direct call",
                Box::new(|| {
                    let began = Instant::now();
                    for _ in 0..LOOKUPS {
                        call(house, &service, "bench:python", &row)?;
                    }
                    Ok(began.elapsed() / LOOKUPS)
                }),
            ),
            (
                "a call from code",
                Box::new(|| {
                    let answer = call(house, &service, "bench:code", &program)?;
                    let answer: Value = serde_json::from_str(&answer)?;
                    let mean = answer["mean"].as_f64().context("no mean")?;
                    Ok(Duration::from_secs_f64(mean))
                }),
            ),
            (
                "20 look-ups by one program",
                Box::new(|| {
                    let began = Instant::now();
                    call(house, &service, "bench:code", &program)?;
                    Ok(began.elapsed())
                }),
            ),
        ],
    )?;
    board.base(&series[0]);
    board.beside(&series[1], &series[0], Gate::AtMost(1.1));
    board.base(&series[2]);
    let rows = call(house, &service, "bench:python", &row)?.len() * LOOKUPS as usize;
    let found = call(house, &service, "bench:code", &program)?.len();
    for (name, trips, bytes) in [
        ("20 calls of a model", LOOKUPS, rows),
        ("one program", 1, found),
    ] {
        board.number(&format!("{name}: round trips"), trips.into(), Gate::None);
        board.number(
            &format!("{name}: bytes of answers"),
            bytes as f64,
            Gate::None,
        );
    }
    Ok(())
}

/// The answer of one call, as JSON.
fn call(
    house: &House,
    service: &Arc<Service>,
    tool: &str,
    input: &Value,
) -> anyhow::Result<String> {
    let arguments = Arguments::Value(input.clone());
    let request = CallRequest::new(Caller::operator("bench"), tool, arguments);
    let service = service.clone();
    house.task(async move {
        let report = service.call(request, Sink::none()).await;
        match report.outcome.answer() {
            Some(answer) => Ok(answer.head(usize::MAX).to_string()),
            None => Err(told(report.outcome.into_fault().context("no answer")?)),
        }
    })
}
