//! Other ways to run a tool fit the same seam: a container that is started and ended, a function behind an address.

use crate::harness::fake::world;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolhost::executor::{Call, Context, Ending, Events, Executor, Outcome, Running};
use toolhost::fault::{Fault, Kind};

/// Counts what runs, as an engine of containers would.
#[derive(Default)]
struct Containers(Arc<AtomicUsize>);

struct Started(Arc<AtomicUsize>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Executor for Containers {
    fn run<'a>(&'a self, _: &'a Context, call: Call, events: &'a Events) -> Running<'a> {
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::SeqCst);
            let _ended = Started(self.0.clone());
            events.log("started".to_owned());
            tokio::time::sleep(Duration::from_millis(call.input["ms"].as_u64().unwrap_or(0))).await;
            Ok(Outcome::new(
                Ending::answer(&json!({"image": call.manifest.raw["handler"]["type"], "got": call.input})),
                1,
            ))
        })
    }
}

/// Sends the input as one line, and takes one line as the answer.
struct Function(SocketAddr);

impl Executor for Function {
    fn run<'a>(&'a self, _: &'a Context, call: Call, _: &'a Events) -> Running<'a> {
        Box::pin(async move {
            let away = |why: std::io::Error| {
                Fault::new(Kind::ServiceError, "The function is away.").person(why.to_string()).retryable()
            };
            let mut stream = tokio::net::TcpStream::connect(self.0).await.map_err(away)?;
            stream.write_all(format!("{}\n", call.input).as_bytes()).await.map_err(away)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map_err(away)?;
            let value: Value = serde_json::from_str(&answer).unwrap_or(Value::Null);
            Ok(Outcome::new(Ending::answer(&value), 1))
        })
    }
}

fn document(id: &str) -> Value {
    json!({"toolId": id, "description": "d", "parameters": {"type": "object", "additionalProperties": true}})
}

#[tokio::test]
async fn a_container_and_a_remote_function_are_executors_like_any_other() {
    let world = world();
    let containers = Containers::default();
    let running = containers.0.clone();
    world.service.register(document("t:container"), "x-container", Arc::new(containers)).unwrap();
    let report = world.call("t:container", json!({"a": 1})).await;
    assert_eq!(report.output_data.unwrap(), json!({"image": "x-container", "got": {"a": 1}}));
    let request = crate::harness::fake::request("t:container", json!({"ms": 60_000}));
    let request = toolhost::service::CallRequest { timeout_ms: Some(200), ..request };
    let report = world.service.call(request, toolhost::service::Sink::none()).await;
    assert_eq!(report.error.unwrap().kind, Kind::TimeoutError);
    assert_eq!(running.load(Ordering::SeqCst), 0, "what was started is ended");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        write!(stream, "{{\"echo\": {line}}}").unwrap();
    });
    world.service.register(document("t:function"), "x-function", Arc::new(Function(address))).unwrap();
    assert_eq!(world.call("t:function", json!({"b": 2})).await.output_data.unwrap(), json!({"echo": {"b": 2}}));
    let report = world.call("t:function", json!({})).await;
    assert!(report.error.is_some_and(|fault| fault.kind == Kind::ServiceError && fault.retryable));
}
