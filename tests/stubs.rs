//! Other ways to run a tool fit the same trait: a container that is started and ended for a script,
//! and a function behind an address.

use crate::harness::fake::{define, outcome, request, world_with};
use crate::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolhost::executor::{Call, Context, Ending, Executor, Running, ToolSender};
use toolhost::fault::{Fault, Kind};
use toolhost::service::Sink;

/// Counts what runs, as an engine of containers would, and takes from the confinement what it would
/// mount.
#[derive(Default)]
struct Containers(Arc<AtomicUsize>);

struct Container<'a>(&'a AtomicUsize);

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Executor for Containers {
    fn run<'a>(&'a self, _: &'a Context, call: Call, events: &'a ToolSender) -> Running<'a> {
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::SeqCst);
            let _container = Container(&self.0);
            let shape = call.confinement.expect("scripts are confined").shape;
            events.log("started".into());
            tokio::time::sleep(Duration::from_millis(
                call.input["ms"].as_u64().unwrap_or(0),
            ))
            .await;
            let mounts: Vec<_> = shape.grants.iter().map(|grant| &grant.asked).collect();
            let answer = json!({"mounts": mounts, "got": call.input});
            Ok(outcome(Ending::answer(&answer), Vec::new()))
        })
    }
}

/// Sends the input as one line, and takes the rest as the answer.
struct Function(std::net::SocketAddr);

impl Executor for Function {
    fn run<'a>(&'a self, _: &'a Context, call: Call, _: &'a ToolSender) -> Running<'a> {
        Box::pin(async move {
            let exchange = async {
                let mut stream = tokio::net::TcpStream::connect(self.0).await?;
                stream
                    .write_all(format!("{}\n", call.input).as_bytes())
                    .await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.map(|_| answer)
            };
            let answer = exchange.await.map_err(|why: std::io::Error| {
                Fault::new(Kind::ServiceError, "The function is away.")
                    .person(why.to_string())
                    .retryable()
            })?;
            let value = serde_json::from_str(&answer).unwrap_or(Value::Null);
            Ok(outcome(Ending::answer(&value), Vec::new()))
        })
    }
}

#[tokio::test]
async fn a_container_and_a_remote_function_are_executors_like_any_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let containers = Containers::default();
    let running = containers.0.clone();
    let world = world_with(|root, executors| {
        executors.process = Some(Arc::new(containers));
        let remote = json!({"type": "x-function"});
        define(root, "t:remote", remote, json!({}));
        let function = Arc::new(Function(address));
        executors.extensions.insert("x-function".into(), function);
    });
    let answer = world.call("fake:echo", json!({"a": 1})).await.output();
    let answer = answer.expect("an answer");
    assert_eq!(answer["got"], json!({"a": 1}), "{answer}");
    assert!(
        answer["mounts"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    );
    let late = request("fake:echo", json!({"ms": 60_000}));
    let mut late = Box::pin(world.service.call(late, Sink::none()));
    while running.load(Ordering::SeqCst) == 0 {
        let moment = tokio::time::sleep(Duration::from_millis(1));
        tokio::select! { _ = &mut late => break, () = moment => {} }
    }
    assert_eq!(running.load(Ordering::SeqCst), 1, "the control");
    drop(late);
    assert_eq!(
        running.load(Ordering::SeqCst),
        0,
        "what was started is ended"
    );
    assert_eq!(world.records().last().unwrap()["outcome"], "CancelledError");

    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        lines.read_line(&mut line).unwrap();
        write!(stream, "{{\"echo\": {line}}}").unwrap();
    });
    let answer = world.call("t:remote", json!({"b": 2})).await.output();
    assert_eq!(answer, Some(json!({"echo": {"b": 2}})));
    served.join().unwrap();
    let fault = world.call("t:remote", json!({})).await.outcome.into_fault();
    assert!(fault.is_some_and(|fault| fault.kind == Kind::ServiceError && fault.retryable));
}
