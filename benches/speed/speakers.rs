//! Calls that stream, shown to one reader one after the other, beside as many that each have a
//! reader of their own.

use super::Plan;
use super::board::{Board, Gate, Series};
use super::calls::told;
use super::house::House;
use serde_json::json;
use std::time::{Duration, Instant};
use toolhost::manifest::Language;
use toolhost::service::{Arguments, CallRequest, Caller, Event, Show, Sink, Speakers, Stage};

/// A hundred parts, and its input back.
pub const STREAMS: &str = "import sys\ntext = sys.stdin.read()\nfor n in range(100):\n    \
                           print('@toolhost {\"chunk\": ' + str(n) + '}', \
                           flush=True)\nprint(text)\n";
const AT_ONCE: usize = 8;
const PARTS: usize = 100;

fn request() -> CallRequest {
    CallRequest::new(
        Caller::operator("bench"),
        "bench:streams",
        Arguments::Value(json!({"message": "hello"})),
    )
}

async fn apart(service: std::sync::Arc<toolhost::service::Service>) -> anyhow::Result<usize> {
    let (sink, mut events) = Sink::new(16);
    let reading = async {
        let mut parts = 0;
        while let Some(event) = events.recv().await {
            parts += usize::from(matches!(event, Event::Part(_)));
        }
        parts
    };
    let (report, parts) = tokio::join!(service.call(request(), sink), reading);
    report
        .outcome
        .into_fault()
        .map_or(Ok(parts), |fault| Err(told(fault)))
}

fn round(house: &House, together: bool) -> anyhow::Result<Duration> {
    let service = house.service.clone();
    house.task(async move {
        let started = Instant::now();
        let mut parts = 0;
        if together {
            let calls = (0..AT_ONCE).map(|_| (request(), Show::All)).collect();
            let mut speakers = Speakers::new(calls, AT_ONCE, move |request, sink| {
                let service = service.clone();
                async move { service.call(request, sink).await }
            });
            while let Some(next) = speakers.next().await {
                match next.stage {
                    Stage::Output(_) => parts += 1,
                    Stage::Completed(report) => report
                        .outcome
                        .into_fault()
                        .map_or(Ok(()), |fault| Err(told(fault)))?,
                    Stage::Prepare | Stage::Processing(_) => {}
                }
            }
        } else {
            let tasks: Vec<_> = (0..AT_ONCE)
                .map(|_| tokio::spawn(apart(service.clone())))
                .collect();
            for task in tasks {
                parts += task.await??;
            }
        }
        anyhow::ensure!(parts == AT_ONCE * PARTS, "{parts} parts");
        Ok(started.elapsed())
    })
}

pub fn shown(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("Python, 8 that stream at once: one reader or eight");
    if house.version(Language::Python).is_none() {
        board.skip("streams", "not found on PATH");
        return Ok(());
    }
    let (mut apart, mut together) = (Series::new("a reader each"), Series::new("one reader"));
    for _ in 0..3 {
        round(house, false)?;
    }
    for _ in 0..plan.rounds(60) {
        apart.push(round(house, false)?);
        together.push(round(house, true)?);
    }
    board.base(&apart);
    board.with_ratio(&together, apart.p50() / together.p50(), Gate::AtLeast(0.9));
    board.note("ratio: throughput, one reader / a reader each");
    Ok(())
}
