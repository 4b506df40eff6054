//! Idempotency keys, and the list of calls: each for its caller alone.

use super::{entry, playground};
use crate::harness::fake::{World, request, world, world_of};
use crate::prelude::*;
use tokio::task::JoinHandle;
use toolhost::fault::Kind;
use toolhost::service::{CallRequest, Caller, Phase, Report, Settings, Sink};

fn keyed(key: &str, tool: &str, arguments: Value) -> CallRequest {
    CallRequest { idempotency_key: Some(key.to_owned()), ..request(tool, arguments) }
}

async fn call(world: &World, request: CallRequest) -> Report {
    world.service.call(request, Sink::none()).await
}

/// A call under way.
fn begin(world: &World, request: CallRequest) -> JoinHandle<Report> {
    let service = world.service.clone();
    tokio::spawn(async move { service.call(request, Sink::none()).await })
}

/// A call that takes longer than a test waits.
fn slow() -> CallRequest {
    request("fake:user", json!({"n": 1, "delay": 20_000}))
}

#[test]
fn a_request_that_is_sent_twice_runs_once() {
    let head = entry("ME", "\"*\"", "act_as = [\"bob\"]\n") + &entry("bob", "\"*\"", "");
    let playground = playground(Who::ours(), &head);
    let count = "import os\nwith open('out/n', 'ab') as f:\n    f.write(b'x')\n    n = f.tell()\nprint(n)\n";
    let writes = json!({"securityContext": {"fileAccess": {"allowWrite": ["out/"]}}});
    let folder = playground.tool("count", "python", count, writes);
    playground.allow("count", "esc:count", &["./**"], &["./out/**"]);
    fs::create_dir_all(folder.join("out")).unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    let mut call = |key: Value, user: Value| {
        let meta = json!({"dev.toolhost/idempotencyKey": key, "dev.toolhost/user": user});
        server.asked("tools/call", json!({"name": "esc__count", "arguments": {}, "_meta": meta}))
    };
    let (first, again) = (call(json!("k1"), Value::Null), call(json!("k1"), Value::Null));
    assert_eq!(words(&first), words(&again), "{first} {again}");
    let id = &first["result"]["_meta"]["dev.toolhost/callId"];
    assert_eq!(id, &again["result"]["_meta"]["dev.toolhost/callId"], "the same outcome");
    let record = playground.records().pop().unwrap();
    let rule = format!("idempotency key of call {}", id.as_str().unwrap());
    assert_eq!((&record["decision"], &record["rule"]), (&json!("replayed"), &json!(rule)));
    assert_ne!(&record["call"], id, "with a record of its own");
    assert_ne!(words(&call(json!("k2"), Value::Null)), words(&first), "control: another key");
    assert_ne!(words(&call(json!("k1"), json!("bob"))), words(&first), "and another caller's");
    // A key that is not text would run the tool twice, and a user that is not text would be the caller itself.
    for (key, user) in [(json!(42), json!(null)), (json!("k3"), json!(1234))] {
        let refused = call(key, user);
        assert!(refused["error"]["message"].as_str().unwrap().ends_with("must be a string."), "{refused}");
        let record = playground.records().pop().unwrap();
        assert_eq!((&record["decision"], &record["rule"]), (&json!("refused"), &json!("parameters")), "{record}");
    }
    assert_eq!(playground.records().iter().filter(|record| record["decision"] == "allowed").count(), 3);
    assert_eq!(fs::read(folder.join("out/n")).unwrap(), b"xxx");
    let meta = json!({"dev.toolhost/idempotencyKey": "k1"});
    let other = server.asked("tools/call", json!({"name": "esc__count", "arguments": {"n": 1}, "_meta": meta}));
    let other = words(&other);
    assert!(other.contains("ParameterValidationError") && other.contains("another request"), "{other}");
}

#[tokio::test]
async fn who_comes_while_the_first_runs_waits_for_it() {
    let world = world();
    let slow = || keyed("k", "fake:user", json!({"n": 1, "delay": 300}));
    let others = [0; 5].map(|_| begin(&world, slow()));
    let first = call(&world, slow()).await;
    for other in others {
        let other = other.await.unwrap();
        assert_eq!((other.success, &other.id, other.output()), (true, &first.id, first.output()));
    }
    assert_eq!((world.runs(), world.records().len()), (1, 6));
    // A refusal before anything ran frees the key.
    assert_eq!(call(&world, keyed("f", "fake:greedy", json!({}))).await.error.unwrap().kind, Kind::SecurityError);
    assert!(call(&world, keyed("f", "fake:echo", json!({"message": 1}))).await.success);
    // A failure of the tool is its outcome.
    let failed = call(&world, keyed("g", "fake:fails", json!({}))).await;
    let again = call(&world, keyed("g", "fake:fails", json!({}))).await;
    assert_eq!((failed.id, failed.error), (again.id, again.error));
    let odd = call(&world, keyed("a b", "fake:echo", json!({}))).await;
    assert_eq!(odd.error.unwrap().kind, Kind::ParameterValidationError);
}

#[tokio::test]
async fn who_waits_for_the_first_counts_among_those_that_wait() {
    let world = world_of(Settings { max_running: 2, max_queued: 3, ..Settings::default() }, |_, _| {});
    // A report has a place until it is dropped.
    let asked = || {
        let call = begin(&world, CallRequest { idempotency_key: Some("k".into()), ..slow() });
        tokio::spawn(async move { call.await.map(|report| (report.id.clone(), report.error.clone())).unwrap() })
    };
    let first = asked();
    until("it runs", || world.runs() == 1).await;
    let others = [asked(), asked(), asked()];
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Of five places one tool has at most four.
    let more = tokio::time::timeout(Duration::from_secs(15), asked()).await.expect("at once").unwrap();
    assert_eq!(more.1.expect("refused").kind, Kind::RateLimitError);
    let echo = call(&world, request("fake:echo", json!({"message": 1}))).await;
    assert!(echo.success, "control: they hold no place to run: {echo:?}");
    let alice = Caller::named("alice");
    let running = world.service.calls(&alice).into_iter().find(|state| state.phase == Phase::Running).unwrap();
    assert!(world.service.cancel(&alice, &running.id));
    let id = first.await.unwrap().0;
    for other in others {
        assert_eq!(other.await.unwrap().0, id);
    }
}

#[tokio::test]
async fn an_outcome_that_is_told_again_has_a_place_until_it_is_taken() {
    let world = world_of(Settings { max_running: 2, ..Settings::default() }, |_, _| {});
    let echo = || call(&world, keyed("e", "fake:echo", json!({"message": 1})));
    let within = Duration::from_millis(500);
    drop(echo().await);
    let held = [echo().await, echo().await];
    assert!(held.iter().all(|report| report.success) && world.records().len() == 3, "{held:?}");
    assert!(tokio::time::timeout(within, echo()).await.is_err(), "two answers wait for their readers");
    drop(held);
    assert!(echo().await.success, "the control: they were taken");
    // The same of those that waited for the first.
    let (tell, mut told) = tokio::sync::mpsc::channel(4);
    for _ in 0..4 {
        let (service, tell) = (world.service.clone(), tell.clone());
        let asked = keyed("u", "fake:user", json!({"n": 1, "delay": 200}));
        tokio::spawn(async move { tell.send(service.call(asked, Sink::none()).await).await });
    }
    let held = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    assert_eq!(held[0].id, held[1].id);
    assert!(tokio::time::timeout(within, told.recv()).await.is_err(), "two answers wait for their readers");
    drop(held);
    for _ in 0..2 {
        assert!(told.recv().await.unwrap().success, "the control: they were taken");
    }
}

#[tokio::test]
async fn what_was_cancelled_while_it_ran_is_not_made_again_by_itself() {
    let world = world_of(Settings { max_running: 1, ..Settings::default() }, |_, _| {});
    let asked = |id: &str| begin(&world, CallRequest { id: Some(id.into()), ..slow() });
    let running = asked("c1");
    until("it runs", || world.runs() == 1).await;
    let waiting = asked("c2");
    let alice = Caller::named("alice");
    until("it waits", || world.service.call_state(&alice, "c2").is_some()).await;
    for (id, call, again) in [("c2", waiting, true), ("c1", running, false)] {
        assert!(world.service.cancel(&alice, id));
        let fault = call.await.unwrap().error.expect("cancelled");
        assert_eq!((fault.kind, fault.retryable), (Kind::CancelledError, again), "{id}: {fault}");
        assert_eq!(fault.message.contains("how far it came is not known"), !again, "{id}: {fault}");
    }
    // A call whose client left while it ran answers for its key, and does not run again.
    let keyed = || CallRequest { idempotency_key: Some("k".into()), ..slow() };
    let running = begin(&world, keyed());
    until("it runs", || world.runs() == 2).await;
    running.abort();
    let again = call(&world, keyed()).await.error.expect("cancelled");
    assert_eq!((again.kind, world.runs()), (Kind::CancelledError, 2), "{again}");
}
