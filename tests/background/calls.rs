//! Receipts: at once, for the caller alone, and with the result later; what is refused leaves none.

use super::status::asked;
use super::{SLEEPER, STREAM, Scene, UNKNOWN, adds, begin, ended, place, sleeps, state};
use crate::http::mcp::Client;
use crate::http::{GATE, Reply, Web, exchanged, heard, open_gate, private, rest};
use crate::prelude::*;
use std::os::unix::fs::chown;

/// The names of a stream's events, and the data of the last.
fn events(reply: &Reply) -> (Vec<String>, Value) {
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/event-stream")),
        "{reply:?}"
    );
    let names = reply
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("event: ").map(str::to_owned))
        .collect();
    let data = reply
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .next_back()
        .unwrap();
    (names, serde_json::from_str(data).unwrap())
}

#[test]
fn a_receipt_comes_at_once_and_the_result_later_for_the_caller_alone() {
    let (scene, web) = Scene::served("");
    let (alice, bob, ops) = (scene.alice.as_str(), scene.bob.as_str(), scene.ops.as_str());
    // The tool waits for its gate, and the receipt does not wait for the tool.
    let receipt = begin(&web, alice, "esc:gate", &json!({"file": "go"}), json!({}));
    let nap = place(&receipt);
    let told = receipt.json();
    let wanted = ["async", "alice", "waiting", "esc:gate@1.0.0"];
    assert_eq!(
        ["mode", "caller", "phase", "tool"].map(|part| &told[part]),
        wanted
    );
    // The connection that asked is closed, and the tool runs on.
    wait_for("it runs", || state(&web, alice, &nap)["phase"] == "running");
    let absent = || {
        for method in ["GET", "DELETE"] {
            let [other, none] = [&nap, UNKNOWN].map(|place| web.ask(method, place, &[bob], ""));
            assert_eq!((other.status, other.body), (404, none.body));
        }
    };
    absent();
    let ids = |caller: &str| {
        web.calls(&[caller])
            .iter()
            .map(|call| call["id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(alice), ids(bob), ids(ops)),
        (vec![told["id"].clone()], vec![], vec![told["id"].clone()])
    );
    // An agent asks for its own calls.
    let seen = &asked(&web, alice, &nap)["outputData"];
    assert_eq!(
        [&seen["status"], &seen["tool"]],
        ["running", "esc:gate@1.0.0"],
        "{seen}"
    );
    assert_eq!(
        (seen.get("ended"), seen.get("result")),
        (None, None),
        "{seen}"
    );
    // To others it is not there, as if there were no such id.
    let never = asked(&web, alice, UNKNOWN)["error"].clone();
    assert_eq!(never["type"], "ParameterValidationError", "{never}");
    for other in [bob, ops] {
        assert_eq!(asked(&web, other, &nap)["error"], never);
    }
    // Whoever waits is told of the end once, unless its token is taken away.
    assert_eq!(web.get(&nap, &[bob, STREAM]).status, 404, "another's");
    let [(first, kept), (_, lost)] = [alice, ops].map(|who| {
        let mut stream = web.send("GET", &nap, &[who, STREAM], "");
        (heard(&mut stream, "event: state"), stream)
    });
    let tokens = fs::read_to_string(&scene.file).unwrap();
    let others: String = tokens
        .lines()
        .filter(|line| !line.contains("ops"))
        .map(|line| format!("{line}\n"))
        .collect();
    private(&scene.playground, "state/tokens", &others);
    wait_for("the token is gone", || {
        web.get("/v1/tools", &[ops]).status == 401
    });
    // Its end is waited for without asking again and again.
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| web.get(&nap, &[alice, "Prefer: wait=50"]).json());
        open_gate(&scene.playground, "go");
        waits.join().unwrap()
    });
    let result = &waited["result"];
    assert_eq!(
        [&waited["phase"], &waited["outcome"], &result["outputData"]],
        ["ended", "success", "through"]
    );
    assert_eq!((&result["id"], result.get("layers")), (&told["id"], None));
    assert_eq!(
        ids(alice).iter().filter(|id| **id == told["id"]).count(),
        1,
        "it stands there once"
    );
    let record = scene
        .playground
        .records()
        .into_iter()
        .find(|record| record["tool"] == "esc:gate")
        .unwrap();
    assert_eq!(
        [&record["call"], &record["user"]],
        [&told["id"], &json!("alice")]
    );
    absent();
    assert_eq!(
        web.ask("DELETE", &nap, &[alice], "").status,
        404,
        "it is over"
    );
    let lost = rest(lost);
    assert!(
        !lost.contains("event: end") && !lost.contains("outputData"),
        "{lost}"
    );
    let (names, end) =
        events(&Reply::of(&[first.as_bytes(), &exchanged(kept, b"")].concat()).unwrap());
    assert_eq!(
        (
            names[0].as_str(),
            names.iter().filter(|name| *name == "end").count()
        ),
        ("state", 1),
        "{names:?}"
    );
    assert_eq!(names.last().map(String::as_str), Some("end"));
    assert_eq!(
        [&end["phase"], &end["outcome"], &end["result"]["outputData"]],
        ["ended", "success", "through"]
    );
    assert_eq!(
        end,
        ended(&web, alice, &nap),
        "as whoever asks later is told"
    );
    let again = events(&web.get(&nap, &[alice, STREAM]));
    assert_eq!(
        again,
        (vec!["end".to_owned()], end),
        "one that is over has its end alone"
    );
    let told = asked(&web, alice, &nap)["outputData"].clone();
    assert_eq!(
        [&told["status"], &told["result"]["outputData"]],
        ["done", "through"],
        "{told}"
    );
    assert_eq!(told["result"], state(&web, alice, &nap)["result"]);
    private(&scene.playground, "state/tokens", &tokens);
    wait_for("its token is there again", || {
        web.get("/v1/tools", &[ops]).status == 200
    });
    for other in [bob, ops] {
        assert_eq!(
            asked(&web, other, &nap)["error"],
            never,
            "also once there is a result"
        );
    }
    // A tool whose manifest says so is called in the background, too.
    let late = place(&web.call("esc:late", &json!({}), &[alice]));
    assert_eq!(ended(&web, alice, &late)["result"]["outputData"], 7);
    let waited = web.call(
        "esc:late",
        &json!({"mode": "sync", "arguments": {}}),
        &[alice],
    );
    assert_eq!(waited.is(200, "none").json()["outputData"], 7);
    // It is told how the call ended whichever way that was.
    let slow = sleeps(&web, alice, json!({}));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| events(&web.get(&slow, &[alice, STREAM])));
        scene.playground.runs(SLEEPER, 2);
        assert_eq!(web.ask("DELETE", &slow, &[alice], "").status, 202);
        let (names, end) = waits.join().unwrap();
        assert_eq!(
            (names.last().map(String::as_str), &end["outcome"]),
            (Some("end"), &json!("CancelledError"))
        );
    });
    // What would be longer than the tool's own answer may be is left out, and is there over HTTP.
    let large = place(&begin(&web, alice, "esc:large", &json!({}), json!({})));
    let whole = ended(&web, alice, &large);
    assert_eq!(
        whole["result"]["outputData"].as_str().unwrap().len(),
        1_048_500,
        "control"
    );
    let told = asked(&web, alice, &large)["outputData"].clone();
    assert_eq!(
        (&told["status"], &told["resultLeftOut"]),
        (&json!("done"), &json!(true)),
        "{told}"
    );
    assert_eq!(told.get("result"), None);
    // An operator's own tool of this method has the parameter under another name.
    let id = nap.rsplit('/').next();
    let told = web
        .call("own:status", &json!({"arguments": {"call": id}}), &[alice])
        .json();
    assert_eq!(told["outputData"]["status"], "done", "{told}");
    // An MCP client of the same server has the tool, and is told that it changes nothing.
    let mut client = Client::new(&web, true, &[alice]);
    let listed = client.asked("tools/list", json!({}))["result"]["tools"].clone();
    let tool = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["name"] == "core__task-status")
        .unwrap();
    assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
    let (answer, _) = client.call("core__task-status", json!({ "id": id }));
    assert_eq!(
        answer["result"]["structuredContent"]["status"], "done",
        "{answer}"
    );
}

#[test]
fn a_call_is_cancelled_with_all_its_processes_and_waits_for_a_person_without_its_client() {
    let scene = Scene::new(Who::ours(), "");
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    scene.playground.policy(
        "ask",
        "esc:add",
        &format!("confirm = \"it matters\"\n{files}"),
    );
    let web = scene.serve();
    let (alice, ops) = (scene.alice.as_str(), scene.ops.as_str());
    // The same by a header, and by the operator's verbs.
    let asked = web.call(
        "esc:sleep",
        &json!({}),
        &[alice, "Prefer: respond-async, wait=5"],
    );
    assert_eq!(asked.header("preference-applied"), Some("respond-async"));
    let places = [sleeps(&web, alice, json!({})), place(&asked)];
    scene.playground.runs(SLEEPER, 4);
    let verb = |words: &[&str]| web.verb(&scene.playground, words, ops);
    let id = places[1].rsplit('/').next().unwrap();
    let seen = verb(&["ps"]).text();
    assert!(seen.contains(id) && seen.contains("running"), "{seen}");
    assert_eq!(verb(&["status", "--json"]).out["background"]["open"], 2);
    assert_eq!(web.ask("DELETE", &places[0], &[alice], "").status, 202);
    assert_eq!(verb(&["kill", id]).code, Some(0));
    for place in &places {
        let over = ended(&web, alice, place);
        assert_eq!(
            [&over["outcome"], &over["result"]["error"]["type"]],
            ["CancelledError"; 2]
        );
    }
    scene.playground.runs(SLEEPER, 0);
    assert!(
        verb(&["ps"]).text().contains("No call runs.")
            && verb(&["ps", "--all"]).text().contains(id)
    );

    for (answer, outcome) in [(true, "success"), (false, "AuthorizationError")] {
        let place = place(&adds(&web, alice, json!({})));
        let id = place.rsplit('/').next().unwrap();
        wait_for("a person is asked", || {
            web.get("/v1/approvals", &[ops]).body.contains(id)
        });
        assert_eq!(state(&web, alice, &place)["phase"], "waiting");
        let body = json!({"approve": answer}).to_string();
        web.ask("POST", &format!("/v1/approvals/{id}"), &[ops], &body)
            .is(200, "none");
        assert_eq!(ended(&web, alice, &place)["outcome"], outcome);
    }
}

#[test]
fn what_is_refused_leaves_no_receipt() {
    let (scene, web) = Scene::served("calls_per_minute = 8\n");
    let began = Instant::now();
    let alice = scene.alice.as_str();
    let (good, url) = (json!({"a": 1, "b": 2}), "https://a.test/");
    for (tool, body, status, kind) in [
        (
            "esc:none",
            json!({"mode": "async", "arguments": {}}),
            404,
            "ToolNotFoundError",
        ),
        (
            "esc:add",
            json!({"mode": "later", "arguments": {}}),
            400,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"mode": "async", "arguments": {}, "callback": "x"}),
            422,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"mode": "async", "arguments": {}, "callback": url}),
            403,
            "AuthorizationError",
        ),
        // The end of these would be told to no place.
        (
            "esc:add",
            json!({"mode": "sync", "arguments": {}, "callback": url}),
            422,
            "ParameterValidationError",
        ),
        (
            "esc:add",
            json!({"arguments": good, "callback": url}),
            422,
            "ParameterValidationError",
        ),
    ] {
        let before = scene.playground.records().len();
        web.call(tool, &body, &[alice]).is(status, kind);
        assert_eq!(
            scene.playground.records().len(),
            before + 1,
            "{body}: it left its record"
        );
    }
    // Arguments are the tool's to judge: the receipt's call says so.
    let wrong = place(&begin(
        &web,
        alice,
        "esc:add",
        &json!({"a": "x"}),
        json!({}),
    ));
    assert_eq!(
        ended(&web, alice, &wrong)["outcome"],
        "ParameterValidationError"
    );
    // Of eight a minute two were left; what is refused, and the making of a receipt, count once.
    place(&adds(&web, alice, json!({})));
    // One comes back with each eighth of a minute.
    let mut more = 0;
    let refused = loop {
        let reply = adds(&web, alice, json!({}));
        if reply.status != 202 {
            break reply;
        }
        more += 1;
        let back = began.elapsed().as_millis() / 7500;
        assert!(more as u128 <= back, "{more} more, {back} came back");
    };
    assert!(
        refused
            .is(429, "RateLimitError")
            .header("retry-after")
            .is_some()
    );
    assert_eq!(
        web.calls(&[alice])
            .iter()
            .filter(|call| call["mode"] == "async")
            .count(),
        2 + more
    );
}

#[test]
fn a_job_is_decided_about_again_and_a_full_store_refuses_before_anything_runs() {
    let (scene, web) = Scene::served("at_once = 1\nact_as = [\"bob\"]\n");
    // A job that waited is refused where its caller may not be that one any more.
    let nap = |file: &str| {
        place(&begin(
            &web,
            &scene.alice,
            "esc:gate",
            &json!({ "file": file }),
            json!({"user": "bob"}),
        ))
    };
    let outcome = |place: &str| ended(&web, &scene.alice, place)["outcome"].clone();
    assert_eq!(
        outcome(&nap("main.py")),
        "success",
        "the control: as long as it may"
    );
    let (running, waiting) = (nap("go"), nap("main.py"));
    scene.playground.runs(GATE, 1);
    fs::write(
        scene
            .playground
            .path("sandbox-policies/callers.policy.toml"),
        super::callers("at_once = 1\n"),
    )
    .unwrap();
    web.signal(Signal::SIGHUP);
    wait_for("the policies are read", || web.said().contains("reloaded"));
    open_gate(&scene.playground, "go");
    assert_eq!(
        [outcome(&running), outcome(&waiting)],
        ["success", "AuthorizationError"]
    );

    let first = sleeps(&web, &scene.alice, json!({}));
    for _ in 1..128 {
        sleeps(&web, &scene.alice, json!({}));
    }
    let full =
        begin(&web, &scene.alice, "esc:sleep", &json!({}), json!({})).is(429, "RateLimitError");
    assert!(full.header("retry-after").is_some() && full.header("location").is_none());
    scene.playground.runs(SLEEPER, 2);
    // Others have their share, and one that ends makes room.
    place(&adds(&web, &scene.bob, json!({})));
    assert_eq!(web.ask("DELETE", &first, &[&scene.alice], "").status, 202);
    ended(&web, &scene.alice, &first);
    sleeps(&web, &scene.alice, json!({}));
}

#[test]
fn a_store_that_others_could_touch_is_refused_and_used_once_it_is_closed_to_them() {
    as_everyone("the store's file", |who| {
        let scene = Scene::new(who, "");
        let alice = scene.alice.as_str();
        let file = scene.playground.path("state/background.redb");
        let web = scene.serve();
        wait_for("it is made", || file.exists());
        drop(web);
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600,
            "as it is made"
        );
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let refused = |web: &Web| adds(web, alice, json!({})).is(501, "CapabilityError").body;
        mode(0o644);
        let web = scene.serve();
        assert!(
            !refused(&web).contains("background.redb"),
            "no path for an agent"
        );
        wait_for("the person reads it", || {
            web.said().contains("background.redb: others may read it")
        });
        assert_eq!(
            web.call("esc:add", &json!({"a": 1, "b": 2}), &[alice])
                .status,
            200,
            "other calls run"
        );
        assert_eq!(
            web.get(UNKNOWN, &[alice]).status,
            503,
            "whether it is there is not known"
        );
        mode(0o600);
        let place = place(&adds(&web, alice, json!({})));
        assert_eq!(
            ended(&web, alice, &place)["result"]["outputData"],
            json!({"sum": 3}),
            "it is used"
        );
        assert_eq!(web.get(UNKNOWN, &[alice]).status, 404);
        // Another server of the same state cannot have it, and says so.
        let second = scene.serve();
        refused(&second);
        wait_for("the person reads it", || {
            second.said().contains("another toolhost")
        });
        drop((web, second));
        if who.uid().is_some() {
            chown(&file, Some(65_534), Some(65_534)).unwrap();
            refused(&scene.serve());
        }
        fs::remove_file(&file).unwrap();
        symlink("elsewhere", &file).unwrap();
        refused(&scene.serve());
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
    let mount = |program: &str, arguments: &[&str]| {
        let done = Command::new(program)
            .args(arguments)
            .arg(&state)
            .status()
            .unwrap();
        assert!(done.success(), "{program}");
    };
    mount(
        "/bin/mount",
        &["-t", "tmpfs", "-o", "size=12m,mode=755", "tmpfs"],
    );
    private(&scene.playground, "state/tokens", &tokens);
    let web = scene.serve();
    let large = || begin(&web, &scene.alice, "esc:large", &json!({}), json!({}));
    let first = place(&large());
    assert_eq!(
        ended(&web, &scene.alice, &first)["outcome"],
        "success",
        "the control: there is room"
    );
    let filler = state.join("filler");
    let _ = fs::write(&filler, vec![0; 16 << 20]);
    // It may fit into what the store has already, for a while.
    assert!(
        (0..20).any(|_| large().status != 202),
        "a full disk refuses"
    );
    fs::remove_file(&filler).unwrap();
    let mut again = large();
    wait_for("calls begin again", || {
        again = large();
        again.status == 202
    });
    assert_eq!(
        ended(&web, &scene.alice, &place(&again))["outcome"],
        "success"
    );
    assert!(
        web.get(&first, &[&scene.alice]).json()["result"]["outputData"].is_string(),
        "what was kept is there"
    );
    drop(web);
    mount("/bin/umount", &["-l"]);
}
