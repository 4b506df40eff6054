//! Tools whose calls run in the background, as agents call them: a receipt at once, the result as
//! an observation with a later turn.

use super::{SOON, Scene};
use crate::http::Web;
use crate::http::mcp::Client;
use crate::prelude::*;

const PENDING: &str = "/v1/observations";

/// A scene whose tool `esc:later` answers with a picture once a gate is open.
fn scene() -> Scene {
    let scene = Scene::new(Who::ours(), "");
    let script = "import base64, json, os, sys, time\ngate = json.load(sys.stdin)['gate']\n\
        while not os.path.exists(os.path.dirname(__file__) + '/' + gate):\n    time.sleep(0.01)\n\
        png = base64.b64encode(b'\\x89PNG' + bytes(996)).decode()\nprint(json.dumps({'$content': \
        [{'type': 'image', 'mimeType': 'image/png', 'data': png}], 'structured': {'n': 7}}))\n";
    let gate = json!({"type": "object", "properties": {"gate": {"type": "string"}}});
    let object = json!({"type": "object", "required": ["n"]});
    let more = json!({"parameters": gate, "output": object,
        "execution": {"mode": "async", "timeoutMs": 120_000}});
    scene.playground.tool("later", "python", script, more);
    let rest =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 120_000\n";
    scene.playground.policy("later", "esc:later", rest);
    scene.playground.settle();
    fs::set_permissions(&scene.file, fs::Permissions::from_mode(0o600)).unwrap();
    scene
}

fn open(scene: &Scene, gate: &str) {
    fs::write(
        scene.playground.path(&format!("user_scripts/later/{gate}")),
        "",
    )
    .unwrap();
}

fn action(gate: &str) -> String {
    format!(
        "<ACTION><tool_id>esc:later</tool_id><inputs><input name=\"gate\">{gate}</input></inputs>\
         </ACTION>"
    )
}

/// The id of the call that an action begins.
fn act(web: &Web, caller: &str, gate: &str) -> String {
    let body = json!({"text": action(gate)}).to_string();
    let answer = web.ask("POST", "/v1/actions", &[caller], &body).json();
    let id = answer["receipt"]["id"].as_str().unwrap().to_owned();
    let observation = answer["observation"].as_str().unwrap();
    let receipt = format!("<OBSERVATION call_id=\"{id}\" status=\"accepted\">");
    assert!(observation.starts_with(&receipt), "{answer}");
    assert!(observation.contains("core:task-status"), "{answer}");
    id
}

/// The observations that a caller has not taken, by the ids of their calls.
fn pending(web: &Web, method: &str, caller: &str) -> Vec<(String, String)> {
    let answer = web.ask(method, PENDING, &[caller], "").json();
    let all = answer["observations"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter()
        .map(|it| (text(&it["id"]), text(&it["observation"])))
        .collect()
}

#[test]
fn an_action_in_the_background_is_answered_at_once_and_observed_once_by_its_caller() {
    let scene = scene();
    let mut web = scene.serve();
    let [alice, bob, ops] = [&scene.alice, &scene.bob, &scene.ops].map(String::as_str);
    let id = act(&web, alice, "one");
    assert_eq!(pending(&web, "POST", alice), []);
    open(&scene, "one");
    within(SOON, "it ends", || pending(&web, "GET", alice).len() == 1);
    assert_eq!(pending(&web, "POST", bob), [], "not his");
    assert_eq!(
        pending(&web, "POST", ops),
        [],
        "an operator started nothing"
    );
    let taken = pending(&web, "POST", alice);
    let [(of, observation)] = &taken[..] else {
        panic!("{taken:?}")
    };
    assert_eq!(*of, id);
    for words in [
        "status=\"success\" version=\"",
        "<tool_id>esc:later</tool_id>",
        "executed successfully",
        "\"bytes\":1000",
        "\"structured\":{\"n\":7}",
    ] {
        assert!(observation.contains(words), "{words}: {observation}");
    }
    assert_eq!(pending(&web, "GET", alice), [], "once");

    // The same by the command line. A call that cannot run is refused at once.
    let verb = |words: &[&str]| web.verb(&scene.playground, words, alice);
    let text = scene.playground.path("action.xml").display().to_string();
    fs::write(&text, action("two")).unwrap();
    let begun = verb(&["act", "--http", &web.address, "--text", &text]);
    assert_eq!(begun.code, Some(0), "{begun:?}");
    assert!(begun.text().contains("status=\"accepted\""), "{begun:?}");
    assert_eq!(verb(&["act", "--pending"]).text(), "");
    open(&scene, "two");
    within(SOON, "it ends", || pending(&web, "GET", alice).len() == 1);
    let taken = verb(&["act", "--pending"]).text();
    assert!(
        taken.starts_with("<OBSERVATION") && taken.contains("\"n\":7"),
        "{taken}"
    );
    assert_eq!(verb(&["act", "--pending"]).text(), "");
    fs::write(&text, action("two").replace("later", "nothing")).unwrap();
    let refused = verb(&["act", "--http", &web.address, "--text", &text]);
    assert!(
        refused.code == Some(2) && refused.text().contains("ToolNotFoundError"),
        "{refused:?}"
    );

    // A host that is killed says so, and nothing runs again.
    let lost = act(&web, alice, "three");
    wait_for("it runs", || {
        web.get(&format!("/v1/calls/{lost}"), &[alice]).json()["phase"] == "running"
    });
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
    let web = scene.serve();
    let taken = pending(&web, "POST", alice);
    let [(of, observation)] = &taken[..] else {
        panic!("{taken:?}")
    };
    assert!(
        *of == lost && observation.contains("status=\"failed\""),
        "{taken:?}"
    );
    assert!(
        observation.contains("how far the call came is not known"),
        "{observation}"
    );
}

/// A client without tasks reads a receipt; the tool that it asks later has the picture.
#[test]
fn an_mcp_client_without_tasks_gets_a_receipt_and_asks_for_the_result() {
    let scene = scene();
    let web = scene.serve();
    let mut client = Client::new(&web, true, &[&scene.alice]);
    let listed = client.asked("tools/list", json!({}))["result"]["tools"].clone();
    let tool = |name: &str| {
        let mut all = listed.as_array().unwrap().iter();
        all.find(|tool| tool["name"] == name).unwrap()
    };
    let _ = tool("core__task-status");
    assert_eq!(
        tool("esc__later")["outputSchema"],
        Value::Null,
        "a receipt has no such form"
    );
    let (answer, _) = client.call("esc__later", json!({"gate": "one"}));
    let words = words(&answer);
    assert!(words.contains("core__task-status"), "{answer}");
    let id = words
        .split("call ")
        .nth(1)
        .unwrap()
        .split('.')
        .next()
        .unwrap();
    let mut status = || client.call("core__task-status", json!({ "id": id })).0["result"].clone();
    let open_now = status();
    assert!(
        open_now["structuredContent"]["status"] != "done",
        "{open_now}"
    );
    open(&scene, "one");
    within(SOON, "it ends", || {
        status()["structuredContent"]["status"] == "done"
    });
    let done = status();
    assert_eq!(done["content"][0]["type"], "image", "{done}");
    let output = &done["structuredContent"]["result"]["outputData"];
    assert_eq!(*output, json!({"n": 7}), "{done}");
    assert_eq!(pending(&web, "GET", &scene.alice), [], "it was no action");
    let (refused, _) = client.call("esc__none", json!({}));
    assert!(refused["error"].is_object(), "{refused}");
}

/// A server on standard input keeps calls as long as it runs, and lists the tool that asks for them
/// where some tool runs so.
#[test]
fn a_client_on_standard_input_gets_a_receipt_too() {
    let scene = scene();
    fs::remove_file(
        scene
            .playground
            .path("sandbox-policies/callers.policy.toml"),
    )
    .unwrap();
    let mut server = Server::start(&scene.playground);
    assert!(server.names().contains(&"core__task-status".to_owned()));
    let began = Stopwatch::start();
    let answer = server.called("esc:later", json!({"gate": "never"}));
    assert!(
        words(&answer).contains("started in the background"),
        "{answer}"
    );
    assert!(began.elapsed() < SOON);
    scene.playground.runs("user_scripts/later/main.py", 1);
    drop(server.to.take());
    assert!(server.child.wait().unwrap().success());
    scene.playground.runs("user_scripts/later/main.py", 0);
    let record = scene.playground.records().pop().unwrap();
    assert_eq!(record["outcome"], "CancelledError", "{record}");
}
