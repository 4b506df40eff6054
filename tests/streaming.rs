//! A tool that streams, and its answer in parts. (Only tools of this process can: a script answers once.)

use crate::harness::fake::{request, world_with, written};
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use toolhost::executor::Events;
use toolhost::executor::method::{Answering, MethodCall, ServiceMethod};
use toolhost::fault::Kind;
use toolhost::service::{Event, Report, Sink};

/// Sends `n` parts, then does what `then` says. Counts how many of its calls are under way.
struct Streamer(Arc<AtomicUsize>);

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ServiceMethod for Streamer {
    fn call<'a>(&'a self, _: &'a MethodCall, arguments: Value, events: &'a Events) -> Answering<'a> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(self.0.clone());
        Box::pin(async move {
            let _under_way = under_way;
            for n in 0..arguments["n"].as_u64().unwrap_or(0) {
                let part = if n % 2 == 0 { json!({"part": n}) } else { json!(format!("part {n}")) };
                events.log(format!("before part {n}: {}", arguments["token"].as_str().unwrap_or_default()));
                events.chunk(part).await;
            }
            match arguments["then"].as_str() {
                Some("hang") => std::future::pending().await,
                _ => Ok(json!("all")),
            }
        })
    }
}

/// One plain function beside it: a handler that does not stream fits the same road.
fn world(calls: &Arc<AtomicUsize>) -> crate::harness::fake::World {
    world_with(|root, executors| {
        executors.methods.register("Streams", "stream", Arc::new(Streamer(calls.clone())));
        executors.methods.register_sync("Streams", "once", |_| Ok(json!({"n": 1})));
        for method in ["stream", "once"] {
            let manifest = json!({
                "toolId": format!("streams:{method}"), "displayName": "d", "description": "d", "version": "1.0.0",
                "handler": {"type": "service-method", "serviceName": "Streams", "methodName": method},
                "execution": {"timeoutMs": 300},
                "parameters": {"type": "object", "additionalProperties": true, "properties": {
                    "token": {"type": "string", "description": "d", "writeOnly": true}}},
            });
            fs::write(root.join(format!("tool-defs/{method}.tool.json")), manifest.to_string()).unwrap();
        }
    })
}

async fn replies(world: &crate::harness::fake::World, tool: &str, arguments: Value) -> (Vec<String>, Report) {
    let (mut events, mut call) = world.start(written("alice", tool, &arguments));
    let mut parts = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(20), events.recv()).await {
        if let Event::Part(part) = event {
            parts.push(part);
        }
    }
    (parts, call.join_next().await.expect("an end").expect("one end, after all parts"))
}

#[tokio::test]
async fn parts_come_in_order_and_then_one_end() {
    let calls = Arc::default();
    let world = world(&calls);
    let (parts, report) = replies(&world, "streams:stream", json!({"n": 5})).await;
    assert_eq!(parts, [r#"{"part":0}"#, "part 1", r#"{"part":2}"#, "part 3", r#"{"part":4}"#]);
    assert_eq!((report.output(), report.error), (Some(json!("all")), None));
    let (parts, report) = replies(&world, "streams:once", json!({})).await;
    assert_eq!((parts.len(), report.output()), (0, Some(json!({"n": 1}))));
    // Whoever does not want the parts gets the answer.
    let report = world.service.call(request("streams:stream", json!({"n": 5})), Sink::none()).await;
    assert_eq!(report.output(), Some(json!("all")));
}

/// Lines of the log and parts of the answer reach the sink while the tool runs, in order and without its secrets; a
/// reader that is slow stops neither the tool nor its clock.
#[tokio::test]
async fn the_sink_hears_the_log_and_the_parts_while_the_tool_runs() {
    let calls: Arc<AtomicUsize> = Arc::default();
    let world = world(&calls);
    let arguments = json!({"n": 2, "then": "hang", "token": "hunter2-secret"});
    let (sink, mut events) = Sink::new(1);
    let call = world.service.call(request("streams:stream", arguments), sink);
    let (report, heard) = tokio::join!(call, async {
        let mut heard = Vec::new();
        while let Some(event) = events.recv().await {
            heard.push((event, calls.load(Ordering::SeqCst)));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        heard
    });
    let log = |n: u64| Event::Log(format!("before part {n}: ***"));
    // Of a text so much stays back as a secret is long.
    let expected =
        [(log(0), 1), (Event::Part(r#"{"part":0}"#.into()), 1), (log(1), 1), (Event::Part("part 1".into()), 0)];
    assert_eq!(heard, expected, "while it runs");
    assert_eq!(report.error.map(|fault| fault.kind), Some(Kind::TimeoutError));
    assert_eq!(report.logs, ["before part 0: ***", "before part 1: ***"]);

    let arguments = json!({"n": 300});
    let (sink, mut events) = Sink::new(1);
    let call = world.service.call(request("streams:stream", arguments), sink);
    let (report, parts) = tokio::join!(call, async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let mut parts = 0;
        while let Some(event) = events.recv().await {
            parts += usize::from(matches!(event, Event::Part(_)));
        }
        parts
    });
    assert_eq!((report.output(), parts), (Some(json!("all")), 300), "a reader that comes after the time limit");
}
