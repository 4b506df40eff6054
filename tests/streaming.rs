//! A tool of this process that streams: what its caller hears while it runs.

use crate::harness::fake::{define, request, world_with};
use crate::prelude::*;
use toolhost::executor::ToolSender;
use toolhost::executor::method::{Answering, MethodCall, ServiceMethod};
use toolhost::fault::Kind;
use toolhost::service::{Event, Sink};

/// Sends `n` parts, then does what `then` says. Whoever else holds what it holds is a call under
/// way.
struct Streamer(Arc<()>);

impl ServiceMethod for Streamer {
    fn call<'a>(
        &'a self,
        _: &'a MethodCall,
        arguments: Value,
        events: &'a ToolSender,
    ) -> Answering<'a> {
        let under_way = self.0.clone();
        Box::pin(async move {
            let _under_way = under_way;
            for n in 0..arguments["n"].as_u64().unwrap_or(0) {
                let part = if n % 2 == 0 {
                    json!({"part": n})
                } else {
                    json!(format!("part {n}"))
                };
                events.log(format!(
                    "before part {n}: {}",
                    arguments["token"].as_str().unwrap_or_default()
                ));
                events.chunk(part).await;
            }
            match arguments["then"].as_str() {
                Some("hang") => std::future::pending().await,
                _ => Ok(json!("all")),
            }
        })
    }
}

/// Lines of the log and parts of the answer reach the sink while the tool runs, in order and
/// without its secrets; a reader that is slow stops neither the tool nor its clock.
#[tokio::test]
async fn the_sink_hears_the_log_and_the_parts_while_the_tool_runs() {
    let calls = Arc::new(());
    let world = world_with(|root, executors| {
        executors
            .methods
            .register("Streams", "stream", Arc::new(Streamer(calls.clone())));
        let handler =
            json!({"type": "service-method", "serviceName": "Streams", "methodName": "stream"});
        let secret = json!({"token": {"type": "string", "description": "d", "writeOnly": true}});
        let parameters =
            json!({"type": "object", "additionalProperties": true, "properties": secret});
        let more = json!({"execution": {"timeoutMs": 1500}, "parameters": parameters});
        define(root, "streams:stream", handler, more);
    });
    let arguments = json!({"n": 2, "then": "hang", "token": "hunter2-secret"});
    let (sink, mut events) = Sink::new(1);
    let call = world
        .service
        .call(request("streams:stream", arguments), sink);
    let (report, heard) = tokio::join!(call, async {
        let mut heard = Vec::new();
        while let Some(event) = events.recv().await {
            heard.push((event, Arc::strong_count(&calls) - 2));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        heard
    });
    let log = |n: u64| Event::Log(format!("before part {n}: ***"));
    // Of a text so much stays back as a secret is long.
    let expected = [
        (log(0), 1),
        (Event::Part(r#"{"part":0}"#.into()), 1),
        (log(1), 1),
        (Event::Part("part 1".into()), 0),
    ];
    assert_eq!(heard, expected, "while it runs");
    assert_eq!(
        report.outcome.into_fault().map(|fault| fault.kind),
        Some(Kind::TimeoutError)
    );
    assert_eq!(report.logs, ["before part 0: ***", "before part 1: ***"]);

    let arguments = json!({"n": 300});
    let (sink, mut events) = Sink::new(1);
    let call = world
        .service
        .call(request("streams:stream", arguments), sink);
    let (report, parts) = tokio::join!(call, async {
        tokio::time::sleep(Duration::from_millis(1600)).await;
        let mut parts = 0;
        while let Some(event) = events.recv().await {
            parts += usize::from(matches!(event, Event::Part(_)));
        }
        parts
    });
    assert_eq!(
        (report.output(), parts),
        (Some(json!("all")), 300),
        "a reader that comes after the time limit"
    );
}
