//! Receipts: at once, for the caller alone, and with the result later; what is refused leaves none.

use super::{Scene, begin, ended, place, state, waits};
use crate::http::{GATE, Reply, Web, exchanged, heard, open_gate, private, request};
use crate::prelude::*;
use std::os::unix::fs::chown;

#[test]
fn a_receipt_comes_at_once_and_the_result_later_for_the_caller_alone() {
    let scene = Scene::new(Who::ours(), "");
    let web = scene.serve();
    let (alice, bob, ops) = (scene.alice.as_str(), scene.bob.as_str(), scene.ops.as_str());
    // The tool waits for its gate, and the receipt does not wait for the tool.
    let receipt = begin(&web, alice, "esc:gate", &json!({"file": "go"}), json!({}));
    let place = place(&receipt);
    let told = receipt.json();
    assert_eq!((&told["mode"], &told["caller"], &told["phase"]), (&json!("async"), &json!("alice"), &json!("waiting")));
    assert_eq!(told["tool"], "esc:gate@1.0.0");
    wait_for("it runs", || state(&web, alice, &place)["phase"] != "waiting");
    // The connection that asked is closed, and the tool runs on.
    assert_eq!(state(&web, alice, &place)["phase"], "running");
    let absent = |method: &str| web.ask(method, "/v1/calls/00000000-0000-7000-8000-000000000000", &[bob], "").body;
    for method in ["GET", "DELETE"] {
        let other = web.ask(method, &place, &[bob], "");
        assert_eq!((other.status, &other.body), (404, &absent(method)));
    }
    let ids = |caller: &str| -> Vec<Value> {
        let calls = web.get("/v1/calls", &[caller]).json()["calls"].as_array().unwrap().clone();
        calls.iter().map(|call| call["id"].clone()).collect()
    };
    assert_eq!((ids(alice), ids(bob), ids(ops)), (vec![told["id"].clone()], vec![], vec![told["id"].clone()]));
    // Its end is waited for without asking again and again.
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| web.get(&place, &[alice, "Prefer: wait=50"]).json());
        open_gate(&scene.playground, "go");
        waits.join().unwrap()
    });
    assert_eq!((&waited["phase"], &waited["outcome"]), (&json!("ended"), &json!("success")), "{waited}");
    assert_eq!(waited["result"]["outputData"], "through");
    assert_eq!((&waited["result"]["id"], waited["result"].get("walls")), (&told["id"], None));
    assert_eq!(ids(alice).len(), 1, "it stands there once");
    let record = &scene.playground.records()[0];
    assert_eq!((&record["call"], &record["user"]), (&told["id"], &json!("alice")));
    for method in ["GET", "DELETE"] {
        assert_eq!(web.ask(method, &place, &[bob], "").body, absent(method));
    }
    assert_eq!(web.ask("DELETE", &place, &[alice], "").status, 404, "it is over");
    // Sent twice under one key it runs once, and both receipts lead to the one result.
    let body = json!({"mode": "async", "arguments": {"a": 1, "b": 2}});
    let twice = [(); 2].map(|()| super::place(&web.call("esc:add", &body, &[alice, "Idempotency-Key: k"])));
    let [first, second] = twice.each_ref().map(|place| ended(&web, alice, place));
    assert_eq!(first["result"], second["result"]);
    let decisions: Vec<_> = scene.playground.records()[1..].iter().map(|record| record["decision"].clone()).collect();
    assert_eq!(decisions, ["allowed", "replayed"]);
}

#[test]
fn a_call_is_cancelled_with_all_its_processes() {
    let scene = Scene::new(Who::ours(), "");
    let web = scene.serve();
    let alice = scene.alice.as_str();
    // The same by a header, and by the operator's verbs.
    let asked = web.call("esc:sleep", &json!({}), &[alice, "Prefer: respond-async, wait=5"]);
    assert_eq!(asked.header("preference-applied"), Some("respond-async"));
    let places = [place(&begin(&web, alice, "esc:sleep", &json!({}), json!({}))), place(&asked)];
    scene.playground.runs("user_scripts/sleep/main.py", 4);
    let verb = |words: &[&str]| {
        let mut command = scene.playground.host();
        command.args(words).env("TOOLHOST_HTTP", &web.address).env("TOOLHOST_TOKEN", &scene.token);
        finish(command, b"")
    };
    let id = places[1].rsplit('/').next().unwrap();
    let seen = verb(&["ps"]).text();
    assert!(seen.contains(id) && seen.contains("running"), "{seen}");
    assert_eq!(verb(&["status", "--json"]).out["background"]["open"], 2);
    assert_eq!(web.ask("DELETE", &places[0], &[alice], "").status, 202);
    assert_eq!(verb(&["kill", id]).code, Some(0));
    for place in &places {
        let over = ended(&web, alice, place);
        let ends = [&over["outcome"], &over["result"]["error"]["type"]];
        assert_eq!(ends, ["CancelledError"; 2]);
    }
    scene.playground.runs("user_scripts/sleep/main.py", 0);
    assert!(verb(&["ps"]).text().contains("No call runs.") && verb(&["ps", "--all"]).text().contains(id));
}

/// The names of a stream's events, and the data of the last.
fn told(web: &Web, caller: &str, place: &str) -> (Vec<String>, Value) {
    told_by(&web.get(place, &[caller, "Accept: text/event-stream"]))
}

fn told_by(reply: &Reply) -> (Vec<String>, Value) {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{reply:?}");
    let names = reply.body.lines().filter_map(|line| line.strip_prefix("event: ").map(str::to_owned)).collect();
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    (names, serde_json::from_str(data).unwrap())
}

#[test]
fn whoever_waits_is_told_of_the_end_once_with_the_result() {
    let scene = Scene::new(Who::ours(), "");
    let web = scene.serve();
    let (alice, bob) = (scene.alice.as_str(), scene.bob.as_str());
    let nap = waits(&web, alice, "go");
    let other = web.get(&nap, &[bob, "Accept: text/event-stream"]);
    assert_eq!(other.status, 404, "another's: {other:?}");
    let mut stream = web.send("GET", &nap, &[alice, "Accept: text/event-stream"], "");
    let first = heard(&mut stream, "event: state");
    open_gate(&scene.playground, "go");
    let whole = [first.as_bytes(), &exchanged(stream, b"")].concat();
    let (names, end) = told_by(&Reply::of(&whole).unwrap());
    assert_eq!((names[0].as_str(), names.iter().filter(|name| *name == "end").count()), ("state", 1), "{names:?}");
    assert_eq!(names.last().map(String::as_str), Some("end"));
    assert_eq!((&end["phase"], &end["outcome"]), (&json!("ended"), &json!("success")));
    assert_eq!(end, ended(&web, alice, &nap), "as whoever asks later is told");
    assert_eq!(told(&web, alice, &nap), (vec!["end".to_owned()], end), "one that is over has its end alone");
    // It is told how the call ended whichever way that was.
    let sleeps = place(&begin(&web, alice, "esc:sleep", &json!({}), json!({})));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| told(&web, alice, &sleeps));
        scene.playground.runs("user_scripts/sleep/main.py", 2);
        assert_eq!(web.ask("DELETE", &sleeps, &[alice], "").status, 202);
        let (names, end) = waits.join().unwrap();
        assert_eq!((names.last().map(String::as_str), &end["outcome"]), (Some("end"), &json!("CancelledError")));
    });
}

/// A server that stops does not wait for those who wait.
#[test]
fn a_stream_that_waits_holds_up_no_server_that_stops() {
    let scene = Scene::new(Who::ours(), "");
    let mut web = scene.serve();
    let alice = scene.alice.as_str();
    let nap = waits(&web, alice, "go");
    let mut stream = web.send("GET", &nap, &[alice, "Accept: text/event-stream"], "");
    heard(&mut stream, "event: ");
    web.signal(nix::sys::signal::Signal::SIGTERM);
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(!rest.contains("event: end"), "it says nothing of the end that it did not see: {rest}");
    open_gate(&scene.playground, "go");
    assert_eq!(web.ended(Duration::from_secs(60)), Some(143));
    let web = scene.serve();
    assert_eq!(ended(&web, alice, &nap)["outcome"], "success", "which is there later");
}

#[test]
fn a_tool_whose_manifest_says_so_is_called_in_the_background() {
    let scene = Scene::new(Who::ours(), "");
    let script = "print(7)\n";
    scene.playground.tool("late", "python", script, json!({"execution": {"mode": "async"}}));
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let place = place(&web.call("esc:late", &json!({}), &[alice]));
    assert_eq!(ended(&web, alice, &place)["result"]["outputData"], 7);
    let waited = web.call("esc:late", &json!({"mode": "sync", "arguments": {}}), &[alice]);
    assert_eq!((waited.status, &waited.json()["outputData"]), (200, &json!(7)));
}

#[test]
fn a_call_that_needs_a_persons_agreement_waits_for_it_without_its_client() {
    let scene = Scene::new(Who::ours(), "");
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    scene.playground.policy("ask", "esc:add", &format!("confirm = \"it matters\"\n{files}"));
    let web = scene.serve();
    let (alice, ops) = (scene.alice.as_str(), scene.ops.as_str());
    for (answer, outcome) in [(true, "success"), (false, "AuthorizationError")] {
        let place = place(&begin(&web, alice, "esc:add", &json!({"a": 1, "b": 2}), json!({})));
        let asked = place.replace("/calls/", "/approvals/");
        wait_for("a person is asked", || {
            web.get("/v1/approvals", &[ops]).body.contains(place.rsplit('/').next().unwrap())
        });
        assert_eq!(state(&web, alice, &place)["phase"], "waiting");
        let answered = web.ask("POST", &asked, &[ops], &json!({"approve": answer}).to_string());
        assert_eq!(answered.status, 200, "{answered:?}");
        assert_eq!(ended(&web, alice, &place)["outcome"], outcome);
    }
}

#[test]
fn what_is_refused_leaves_no_receipt() {
    let scene = Scene::new(Who::ours(), "calls_per_minute = 8\n");
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let (good, url) = (json!({"a": 1, "b": 2}), "https://a.test/");
    for (tool, body, status) in [
        ("esc:none", json!({"mode": "async", "arguments": {}}), 404),
        ("esc:add", json!({"mode": "later", "arguments": {}}), 400),
        ("esc:add", json!({"mode": "async", "arguments": {}, "callback": "x"}), 422),
        ("esc:add", json!({"mode": "async", "arguments": {}, "callback": url}), 403),
        // Nobody would be told of the end of these.
        ("esc:add", json!({"mode": "sync", "arguments": {}, "callback": url}), 422),
        ("esc:add", json!({"arguments": good, "callback": url}), 422),
    ] {
        let kind = match status {
            404 => "ToolNotFoundError",
            403 => "AuthorizationError",
            _ => "ParameterValidationError",
        };
        let before = scene.playground.records().len();
        let reply = web.call(tool, &body, &[alice]);
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (status, &json!(kind)), "{body}: {reply:?}");
        assert_eq!(scene.playground.records().len(), before + 1, "{body}: it left its record");
    }
    // Arguments are the tool's to judge: the receipt's call says so.
    let wrong = place(&begin(&web, alice, "esc:add", &json!({"a": "x"}), json!({})));
    assert_eq!(ended(&web, alice, &wrong)["outcome"], "ParameterValidationError");
    // Of eight a minute two were left; what is refused, and the making of a receipt, count once.
    place(&begin(&web, alice, "esc:add", &json!({"a": 1, "b": 2}), json!({})));
    let many = begin(&web, alice, "esc:add", &json!({}), json!({}));
    assert_eq!((many.status, many.header("retry-after").is_some()), (429, true), "{many:?}");
    let calls = web.get("/v1/calls", &[alice]).json()["calls"].as_array().unwrap().clone();
    assert_eq!(calls.iter().filter(|call| call["mode"] == "async").count(), 2);
}

#[test]
fn a_full_store_refuses_before_anything_runs() {
    let scene = Scene::new(Who::ours(), "at_once = 1\n");
    let web = scene.serve();
    let sleeps = || begin(&web, &scene.alice, "esc:sleep", &json!({}), json!({}));
    let first = place(&sleeps());
    for n in 1..128 {
        let reply = sleeps();
        assert_eq!(reply.status, 202, "{n}: {reply:?}");
    }
    let full = sleeps();
    assert_eq!((full.status, full.json()["error"]["type"].as_str()), (429, Some("RateLimitError")), "{full:?}");
    assert!(full.header("retry-after").is_some() && full.header("location").is_none());
    scene.playground.runs("user_scripts/sleep/main.py", 2);
    // Others have their share, and one that ends makes room.
    place(&begin(&web, &scene.bob, "esc:add", &json!({"a": 1, "b": 2}), json!({})));
    assert_eq!(web.ask("DELETE", &first, &[&scene.alice], "").status, 202);
    ended(&web, &scene.alice, &first);
    place(&sleeps());
}

#[test]
fn a_store_that_others_could_touch_is_refused_and_a_mended_one_used() {
    as_everyone("the store's file", |who| {
        let scene = Scene::new(who, "");
        let file = scene.playground.path("state/background.redb");
        let web = scene.serve();
        wait_for("it is made", || file.exists());
        drop(web);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "as it is made");
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let good = json!({"a": 1, "b": 2});
        mode(0o644);
        let web = scene.serve();
        let refused = begin(&web, &scene.alice, "esc:add", &good, json!({}));
        let kind = refused.json()["error"]["type"].clone();
        assert_eq!((refused.status, kind), (501, json!("CapabilityError")), "{refused:?}");
        assert!(!refused.body.contains("background.redb"), "no path for an agent: {refused:?}");
        wait_for("the person is told", || web.said().contains("background.redb: others may read it"));
        assert_eq!(web.call("esc:add", &good, &[&scene.alice]).status, 200, "other calls run");
        let unknown = "/v1/calls/00000000-0000-7000-8000-000000000000";
        assert_eq!(web.get(unknown, &[&scene.alice]).status, 503, "nobody knows whether it is there");
        mode(0o600);
        let place = place(&begin(&web, &scene.alice, "esc:add", &good, json!({})));
        assert_eq!(ended(&web, &scene.alice, &place)["result"]["outputData"], json!({"sum": 3}), "mended");
        assert_eq!(web.get(unknown, &[&scene.alice]).status, 404);
        // Another server of the same state cannot have it, and says so.
        let second = scene.serve();
        assert_eq!(begin(&second, &scene.alice, "esc:add", &good, json!({})).status, 501);
        wait_for("the person is told", || second.said().contains("another toolhost"));
        drop((web, second));
        if who.uid().is_some() {
            chown(&file, Some(65_534), Some(65_534)).unwrap();
            let web = scene.serve();
            assert_eq!(begin(&web, &scene.alice, "esc:add", &good, json!({})).status, 501);
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        let web = scene.serve();
        assert_eq!(begin(&web, &scene.alice, "esc:add", &good, json!({})).status, 501);
        assert!(!scene.playground.path("state/elsewhere").exists());
    });
}

/// A disk that was full for a while is no reason to start the server anew.
#[test]
fn a_store_that_could_not_be_written_is_opened_again() {
    if !is_root() {
        return skipped(1, "a small disk of its own needs root");
    }
    let scene = Scene::new(Who::Root, "");
    let state = scene.playground.path("state");
    let tokens = fs::read_to_string(&scene.file).unwrap();
    let mount = |arguments: &[&str]| {
        let done = std::process::Command::new(arguments[0]).args(&arguments[1..]).arg(&state).status().unwrap();
        assert!(done.success(), "{arguments:?}");
    };
    mount(&["/bin/mount", "-t", "tmpfs", "-o", "size=12m,mode=755", "tmpfs"]);
    fs::write(&scene.file, tokens).unwrap();
    fs::set_permissions(&scene.file, fs::Permissions::from_mode(0o600)).unwrap();
    let web = scene.serve();
    let large = || begin(&web, &scene.alice, "esc:large", &json!({}), json!({}));
    let first = place(&large());
    assert_eq!(ended(&web, &scene.alice, &first)["outcome"], "success", "the control: there is room");
    let filler = state.join("filler");
    let fill = || drop(fs::write(&filler, vec![0; 16 << 20]));
    fill();
    // It may fit into what the store has already, for a while.
    let refused = (0..20).any(|_| large().status != 202);
    assert!(refused, "a full disk refuses");
    fs::remove_file(&filler).unwrap();
    let mut again = None;
    wait_for("calls begin again", || {
        let reply = large();
        again = (reply.status == 202).then(|| place(&reply));
        again.is_some()
    });
    let again = again.unwrap();
    assert_eq!(ended(&web, &scene.alice, &again)["outcome"], "success");
    assert!(web.get(&first, &[&scene.alice]).json()["result"]["outputData"].is_string(), "what was kept is there");
    drop(web);
    mount(&["/bin/umount", "-l"]);
}

/// Whom a call counts as is decided once: a job that waited is refused where its caller may not be that one any more.
#[test]
fn a_job_whose_caller_may_not_act_as_another_any_more_is_refused() {
    let scene = Scene::new(Who::ours(), "at_once = 1\nact_as = [\"bob\"]\n");
    let web = scene.serve();
    let nap = |file: &str| begin(&web, &scene.alice, "esc:gate", &json!({ "file": file }), json!({"user": "bob"}));
    let control = place(&nap("main.py"));
    assert_eq!(ended(&web, &scene.alice, &control)["outcome"], "success", "the control: as long as it may");
    let (running, waiting) = (place(&nap("go")), place(&nap("main.py")));
    scene.playground.runs(GATE, 1);
    let file = scene.playground.path("sandbox-policies/callers.policy.toml");
    let text = fs::read_to_string(&file).unwrap().replace("act_as = [\"bob\"]\n", "");
    fs::write(&file, text).unwrap();
    web.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the policies are read", || web.said().contains("reloaded"));
    open_gate(&scene.playground, "go");
    assert_eq!(ended(&web, &scene.alice, &running)["outcome"], "success");
    assert_eq!(ended(&web, &scene.alice, &waiting)["outcome"], "AuthorizationError");
}

#[test]
fn a_token_that_is_taken_away_gets_no_result_for_which_it_waits() {
    let scene = Scene::new(Who::ours(), "");
    let web = scene.serve();
    let place = waits(&web, &scene.alice, "go");
    let waiting = |who: &str| {
        let mut stream = web.connect();
        let ask = request("GET", &place, &web.address, &[who, "Accept: text/event-stream"], "");
        stream.write_all(ask.as_bytes()).unwrap();
        heard(&mut stream, "event: state");
        stream
    };
    let [kept, lost] = [&scene.alice, &scene.ops].map(|who| waiting(who));
    let tokens = fs::read_to_string(&scene.file).unwrap();
    let rest: String = tokens.lines().filter(|line| !line.contains("ops")).map(|line| format!("{line}\n")).collect();
    private(&scene.playground, "state/tokens", &rest);
    wait_for("the token is gone", || web.get("/v1/tools", &[&scene.ops]).status == 401);
    open_gate(&scene.playground, "go");
    let [kept, lost] = [kept, lost].map(|stream| String::from_utf8_lossy(&exchanged(stream, b"")).into_owned());
    assert!(kept.contains("event: end") && kept.contains("outputData"), "the control: {kept}");
    assert!(!lost.contains("event: end") && !lost.contains("outputData"), "{lost}");
}
