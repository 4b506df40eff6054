//! Idempotency keys, and the list of calls: each for its caller alone.

use super::{entry, playground};
use crate::harness::fake::{World, request, world, world_of};
use crate::prelude::*;
use toolhost::fault::Kind;
use toolhost::service::{CallRequest, Caller, Phase, Settings, Sink};

fn keyed(key: &str, tool: &str, arguments: Value) -> CallRequest {
    CallRequest { idempotency_key: Some(key.to_owned()), ..request(tool, arguments) }
}

async fn call(world: &World, request: CallRequest) -> toolhost::service::Report {
    world.service.call(request, Sink::none()).await
}

#[test]
fn a_request_that_is_sent_twice_runs_once() {
    let who = Who::ours();
    let head = entry("ME", "\"*\"", "act_as = [\"bob\"]\n") + &entry("bob", "\"*\"", "");
    let playground = playground(who, &head);
    let count = "import os\nwith open('out/n', 'ab') as f:\n    f.write(b'x')\n    n = f.tell()\nprint(n)\n";
    let folder =
        playground.tool("count", "python", count, json!({"securityContext": {"fileAccess": {"allowWrite": ["out/"]}}}));
    playground.allow("count", "esc:count", &["./**"], &["./out/**"]);
    fs::create_dir_all(folder.join("out")).unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    let call = |server: &mut Server, key: &str, user: Option<&str>, arguments: Value| {
        let meta = json!({"dev.toolhost/idempotencyKey": key, "dev.toolhost/user": user});
        server.asked("tools/call", json!({"name": "esc__count", "arguments": arguments, "_meta": meta}))
    };
    let text = |answer: &Value| crate::harness::words(answer);
    let id = |answer: &Value| answer["result"]["_meta"]["dev.toolhost/callId"].clone();
    let first = call(&mut server, "k1", None, json!({}));
    let again = call(&mut server, "k1", None, json!({}));
    assert_eq!((text(&first), text(&again)), ("1".into(), "1".into()), "{who:?}: {first} {again}");
    assert_eq!(id(&first), id(&again), "{who:?}: the same outcome");
    let record = playground.records().pop().unwrap();
    let rule = format!("idempotency key of call {}", id(&first).as_str().unwrap());
    assert_eq!((&record["decision"], &record["rule"]), (&json!("replayed"), &json!(rule)), "{who:?}");
    assert_ne!(record["call"], id(&first), "{who:?}: with a record of its own");
    assert_eq!(text(&call(&mut server, "k2", None, json!({}))), "2", "{who:?}: control: another key");
    assert_eq!(text(&call(&mut server, "k1", Some("bob"), json!({}))), "3", "{who:?}: and another caller's");
    let other = text(&call(&mut server, "k1", None, json!({"n": 1})));
    assert!(other.contains("ParameterValidationError") && other.contains("another request"), "{who:?}: {other}");
    // A key that is not text would run the tool twice, and a user that is not text would be the caller itself.
    for (key, user) in [(json!(42), json!(null)), (json!("k3"), json!(1234))] {
        let meta = json!({"dev.toolhost/idempotencyKey": key, "dev.toolhost/user": user});
        let refused = server.asked("tools/call", json!({"name": "esc__count", "arguments": {}, "_meta": meta}));
        assert!(refused["error"]["message"].as_str().unwrap().ends_with("must be a string."), "{refused}");
        let record = playground.records().pop().unwrap();
        assert_eq!((&record["decision"], &record["rule"]), (&json!("refused"), &json!("parameters")), "{record}");
    }
    assert_eq!(fs::read(folder.join("out/n")).unwrap(), b"xxx", "{who:?}");
}

#[tokio::test]
async fn who_comes_while_the_first_runs_waits_for_it() {
    let world = Arc::new(world());
    let slow = || keyed("k", "fake:user", json!({"n": 1, "delay": 300}));
    let others: Vec<_> = (0..5)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { call(&world, slow()).await })
        })
        .collect();
    let first = call(&world, slow()).await;
    for other in others {
        let other = other.await.unwrap();
        assert_eq!((other.success, &other.id, other.output()), (true, &first.id, first.output()));
    }
    assert_eq!((world.runs(), world.records().len()), (1, 6));
    // A refusal before anything ran frees the key.
    let bad = call(&world, keyed("f", "fake:greedy", json!({}))).await;
    assert_eq!(bad.error.unwrap().kind, Kind::SecurityError);
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
    let settings = Settings { running: 2, waiting: 3, ..Settings::default() };
    let world = Arc::new(world_of(settings, |_, _| {}));
    let asked = || {
        let (world, slow) = (world.clone(), keyed("k", "fake:user", json!({"n": 1, "delay": 20_000})));
        tokio::spawn(async move {
            let report = call(&world, slow).await;
            (report.id.clone(), report.error.clone())
        })
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
    let world = Arc::new(world_of(Settings { running: 2, ..Settings::default() }, |_, _| {}));
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
        let (world, tell) = (world.clone(), tell.clone());
        tokio::spawn(async move {
            tell.send(call(&world, keyed("u", "fake:user", json!({"n": 1, "delay": 200}))).await).await
        });
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
    let world = Arc::new(world_of(Settings { running: 1, ..Settings::default() }, |_, _| {}));
    let asked = |id: &str| {
        let slow = CallRequest { id: Some(id.into()), ..request("fake:user", json!({"n": 1, "delay": 20_000})) };
        let world = world.clone();
        tokio::spawn(async move { call(&world, slow).await.error.expect("cancelled") })
    };
    let running = asked("c1");
    until("it runs", || world.runs() == 1).await;
    let waiting = asked("c2");
    let alice = Caller::named("alice");
    until("it waits", || world.service.call_state(&alice, "c2").is_some()).await;
    for (id, call, again) in [("c2", waiting, true), ("c1", running, false)] {
        assert!(world.service.cancel(&alice, id));
        let fault = call.await.unwrap();
        assert_eq!((fault.kind, fault.retryable), (Kind::CancelledError, again), "{id}: {fault}");
        assert_eq!(fault.message.contains("how far it came is not known"), !again, "{id}: {fault}");
    }
}

/// A call whose client left while it ran answers for its key, and does not run again.
#[tokio::test]
async fn what_ran_and_was_dropped_is_not_run_again_under_its_key() {
    let world = Arc::new(world());
    let input = || json!({"n": 1, "delay": 20_000});
    let keyed = || CallRequest { idempotency_key: Some("k".into()), ..request("fake:user", input()) };
    let running = {
        let (world, keyed) = (world.clone(), keyed());
        tokio::spawn(async move { call(&world, keyed).await })
    };
    until("it runs", || world.runs() == 1).await;
    running.abort();
    let again = call(&world, keyed()).await.error.expect("cancelled");
    assert_eq!((again.kind, world.runs()), (Kind::CancelledError, 1), "{again}");
}

#[tokio::test]
async fn calls_are_seen_and_cancelled_by_their_caller_alone() {
    let world = Arc::new(world());
    let running = {
        let world = world.clone();
        let slow = CallRequest { id: Some("c1".into()), ..request("fake:user", json!({"n": 1, "delay": 20_000})) };
        tokio::spawn(async move { call(&world, slow).await })
    };
    until("it runs", || world.runs() == 1).await;
    let (alice, eve, operator) = (Caller::named("alice"), Caller::named("eve"), Caller::operator("ops"));
    let state = world.service.call_state(&alice, "c1").expect("her own");
    assert_eq!((state.phase, state.tool.as_str(), state.outcome), (Phase::Running, "fake:user@1.0.0", None));
    assert!(world.service.calls(&eve).is_empty() && world.service.call_state(&eve, "c1").is_none());
    assert!(!world.service.cancel(&eve, "c1") && !world.service.cancel(&alice, "c2"));
    assert!(world.service.call_state(&operator, "c1").is_some());
    assert!(!running.is_finished());
    assert!(world.service.cancel(&alice, "c1"));
    let report = running.await.unwrap();
    assert_eq!(report.error.unwrap().kind, Kind::CancelledError);
    assert_eq!(world.fake.dropped.load(std::sync::atomic::Ordering::SeqCst), 1, "and what ran is gone");
    assert_eq!(world.records()[0]["outcome"], "CancelledError");
    let state = world.service.call_state(&alice, "c1").expect("for a while");
    assert_eq!((state.phase, state.outcome.as_deref()), (Phase::Ended, Some("CancelledError")));
    assert!(!world.service.cancel(&alice, "c1"), "it ended");
}
