//! What a host that was stopped or killed says of its calls once it is back.

use super::{Scene, begin, ended, place, state, waits};
use crate::http::open_gate;
use crate::prelude::*;

#[test]
fn a_killed_host_tells_the_truth_of_each_call() {
    let scene = Scene::new(Who::ours(), "at_once = 1\n");
    let mut web = scene.serve();
    let alice = scene.alice.as_str();
    let good = json!({"a": 1, "b": 2});
    let over = place(&begin(&web, alice, "esc:add", &good, json!({})));
    ended(&web, alice, &over);
    let ran = place(&begin(&web, alice, "esc:sleep", &json!({"note": "marker-4711"}), json!({})));
    wait_for("it runs", || state(&web, alice, &ran)["phase"] == "running");
    let waited = place(&begin(&web, alice, "esc:add", &good, json!({})));
    assert_eq!(state(&web, alice, &waited)["phase"], "waiting");
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
    scene.playground.runs("user_scripts/sleep/main.py", 0);
    let kept = std::fs::read(scene.playground.path("state/background.redb")).unwrap();
    assert!(!String::from_utf8_lossy(&kept).contains("marker-4711"), "arguments are not kept");

    let web = scene.serve();
    assert_eq!(state(&web, alice, &over)["result"]["outputData"], json!({"sum": 3}), "a result outlives its host");
    for (place, words, retryable) in
        [(&ran, "how far the call came is not known", false), (&waited, "no record that anything of it ran", true)]
    {
        let told = state(&web, alice, place);
        assert_eq!((&told["phase"], &told["outcome"]), (&json!("ended"), &json!("InternalError")), "{told}");
        let error = &told["result"]["error"];
        assert!(error["message"].as_str().unwrap().contains(words), "{told}");
        assert_eq!(error["retryable"], retryable, "{told}");
        let other = web.get(place, &[&scene.bob]);
        assert_eq!(other.status, 404);
    }
    let calls = web.get("/v1/calls", &[alice]).json();
    assert_eq!(calls["calls"].as_array().unwrap().len(), 3);
    // Nothing of it is run again.
    scene.playground.runs("user_scripts/sleep/main.py", 0);
    assert_eq!(scene.playground.records().len(), 2, "the one that waited left none");
    assert_eq!(super::status::asked(&web, alice, &ran)["outputData"]["status"], "failed", "as an agent is told");
}

#[test]
fn a_stopped_host_ends_its_calls_and_keeps_that() {
    let scene = Scene::new(Who::ours(), "");
    let mut web = scene.serve();
    let alice = scene.alice.as_str();
    let short = waits(&web, alice, "go");
    let long = place(&begin(&web, alice, "esc:sleep", &json!({}), json!({})));
    wait_for("both run", || [&short, &long].iter().all(|place| state(&web, alice, place)["phase"] == "running"));
    web.signal(Signal::SIGTERM);
    open_gate(&scene.playground, "go");
    // The first one ends by itself meanwhile. Told again, the host waits no longer.
    wait_for("its record", || scene.playground.records().len() == 1);
    web.signal(Signal::SIGTERM);
    web.ended(Duration::from_secs(20));
    let web = scene.serve();
    assert_eq!(state(&web, alice, &short)["outcome"], "success");
    let told = state(&web, alice, &long);
    assert_eq!(told["outcome"], "CancelledError", "{told}");
    let error = &told["result"]["error"];
    assert!(error["message"].as_str().unwrap().starts_with("The server was stopped. It ran already"), "{told}");
    assert_eq!(error["retryable"], false, "{told}");
}

/// The disk changes a byte of one result.
#[test]
fn a_damaged_result_is_told_as_such() {
    let scene = Scene::new(Who::ours(), "");
    let alice = scene.alice.as_str();
    let mut web = scene.serve();
    let places: Vec<String> =
        (0..2).map(|n| place(&begin(&web, alice, "esc:add", &json!({"a": 4000, "b": n}), json!({})))).collect();
    places.iter().for_each(|place| drop(ended(&web, alice, place)));
    web.signal(Signal::SIGTERM);
    web.ended(Duration::from_secs(20));
    let path = scene.playground.path("state/background.redb");
    let mut kept = std::fs::read(&path).unwrap();
    let sum = b"\"sum\":4001";
    let at: Vec<usize> = (0..kept.len()).filter(|at| kept[*at..].starts_with(sum)).collect();
    assert!(!at.is_empty());
    at.into_iter().for_each(|at| kept[at] = b'!');
    std::fs::write(&path, kept).unwrap();
    let web = scene.serve();
    assert_eq!(state(&web, alice, &places[0])["result"]["outputData"], json!({"sum": 4000}), "control");
    let damaged = web.get(&places[1], &[alice]);
    assert_eq!((damaged.status, &damaged.json()["error"]["type"]), (500, &json!("InternalError")), "{damaged:?}");
}
