//! What a host that was stopped or killed says of its calls once it is back.

use super::{SLEEPER, STREAM, Scene, adds, begin, ended, place, sleeps, state, waits};
use crate::http::{heard, open_gate, rest};
use crate::prelude::*;

#[test]
fn a_killed_host_tells_the_truth_of_each_call() {
    let (scene, mut web) = Scene::served("at_once = 1\n");
    let alice = scene.alice.as_str();
    let over = place(&adds(&web, alice, json!({})));
    ended(&web, alice, &over);
    let ran = place(&begin(
        &web,
        alice,
        "esc:sleep",
        &json!({"note": "marker-4711"}),
        json!({}),
    ));
    wait_for("it runs", || state(&web, alice, &ran)["phase"] == "running");
    let waited = place(&adds(&web, alice, json!({})));
    assert_eq!(state(&web, alice, &waited)["phase"], "waiting");
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
    scene.playground.runs(SLEEPER, 0);
    let kept = fs::read(scene.playground.path("state/background.redb")).unwrap();
    assert!(
        !String::from_utf8_lossy(&kept).contains("marker-4711"),
        "arguments are not kept"
    );

    let web = scene.serve();
    assert_eq!(
        state(&web, alice, &over)["result"]["outputData"],
        json!({"sum": 3}),
        "a result outlives its host"
    );
    for (place, words, retryable) in [
        (&ran, "how far the call came is not known", false),
        (&waited, "no record that anything of it ran", true),
    ] {
        let told = state(&web, alice, place);
        assert_eq!(
            [&told["phase"], &told["outcome"]],
            ["ended", "InternalError"],
            "{told}"
        );
        let error = &told["result"]["error"];
        assert!(
            error["message"].as_str().unwrap().contains(words) && error["retryable"] == retryable,
            "{told}"
        );
        assert_eq!(web.get(place, &[&scene.bob]).status, 404);
    }
    assert_eq!(web.calls(&[alice]).len(), 3);
    // Nothing of it is run again.
    scene.playground.runs(SLEEPER, 0);
    assert_eq!(
        scene.playground.records().len(),
        2,
        "the one that waited left none"
    );
    assert_eq!(
        super::status::asked(&web, alice, &ran)["outputData"]["status"],
        "failed",
        "as an agent is told"
    );
}

/// Whoever waits for an end does not hold it up; and the disk changes a byte of one result.
#[test]
fn a_stopped_host_ends_its_calls_and_keeps_that_and_a_damaged_result_is_told_as_such() {
    let (scene, mut web) = Scene::served("");
    let alice = scene.alice.as_str();
    let sums = [0, 1].map(|n| {
        place(&begin(
            &web,
            alice,
            "esc:add",
            &json!({"a": 4000, "b": n}),
            json!({}),
        ))
    });
    sums.iter()
        .for_each(|place| drop(ended(&web, alice, place)));
    let (short, long) = (waits(&web, alice, "go"), sleeps(&web, alice, json!({})));
    wait_for("both run", || {
        [&short, &long]
            .iter()
            .all(|place| state(&web, alice, place)["phase"] == "running")
    });
    let mut stream = web.send("GET", &short, &[alice, STREAM], "");
    heard(&mut stream, "event: ");
    web.signal(Signal::SIGTERM);
    let told = rest(stream);
    assert!(
        !told.contains("event: end"),
        "it says nothing of an end that it did not see: {told}"
    );
    open_gate(&scene.playground, "go");
    // The first one ends by itself meanwhile. Told again, the host waits no longer.
    wait_for("its record", || scene.playground.records().len() == 3);
    web.signal(Signal::SIGTERM);
    assert_eq!(web.ended(Duration::from_secs(20)), Some(143));
    let mut web = scene.serve();
    assert_eq!(state(&web, alice, &short)["outcome"], "success");
    let told = state(&web, alice, &long);
    let error = &told["result"]["error"];
    assert_eq!(
        (&told["outcome"], &error["retryable"]),
        (&json!("CancelledError"), &json!(false)),
        "{told}"
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("The server was stopped. It ran already"),
        "{told}"
    );
    web.signal(Signal::SIGTERM);
    web.ended(Duration::from_secs(20));
    let path = scene.playground.path("state/background.redb");
    let mut kept = fs::read(&path).unwrap();
    let at: Vec<usize> = (0..kept.len())
        .filter(|at| kept[*at..].starts_with(b"\"sum\":4001"))
        .collect();
    assert!(!at.is_empty());
    at.into_iter().for_each(|at| kept[at] = b'!');
    fs::write(&path, kept).unwrap();
    let web = scene.serve();
    assert_eq!(
        state(&web, alice, &sums[0])["result"]["outputData"],
        json!({"sum": 4000}),
        "control"
    );
    web.get(&sums[1], &[alice]).is(500, "InternalError");
}
