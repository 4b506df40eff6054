//! Approvals: a call that a person must agree to, its question, and who may answer.

use super::{GATE, Reply, Web, exchanged, gated, open_gate, private, served, served_to};
use crate::prelude::*;

/// A tool that leaves a mark when it runs, and which a policy has a person agree to.
fn payer(playground: &Playground) {
    let script = "import json, sys\nopen('out/ran', \
        'a').write('x')\nprint(json.dumps(json.load(sys.stdin)))\n";
    let properties =
        json!({"to": {"type": "string"}, "key": {"type": "string", "writeOnly": true}});
    let more = json!({
        "parameters": {"type": "object", "properties": properties},
        "securityContext": {"fileAccess": {"allowWrite": ["out/"]}},
    });
    let folder = playground.tool("pay", "python", script, more);
    fs::create_dir_all(folder.join("out")).unwrap();
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = \
        [{ path = \"./out/**\", why = \"w\" }]\n";
    playground.policy(
        "pay",
        "esc:pay",
        &format!("confirm = \"it spends money\"\n{files}"),
    );
}

fn ran(playground: &Playground) -> usize {
    fs::read(playground.path("user_scripts/pay/out/ran")).map_or(0, |marks| marks.len())
}

/// A call that waits for its answer.
fn call(web: &Web, headers: &[&str], body: &Value) -> TcpStream {
    web.send(
        "POST",
        "/v1/tools/esc:pay/calls",
        headers,
        &body.to_string(),
    )
}

fn open(web: &Web, headers: &[&str]) -> Vec<Value> {
    web.get("/v1/approvals", headers).json()["approvals"]
        .as_array()
        .unwrap()
        .clone()
}

/// The one question there is.
fn question(playground: &Playground, web: &Web, headers: &[&str]) -> Value {
    wait_for("somebody is asked", || open(web, headers).len() == 1);
    assert_eq!(ran(playground), 0, "nothing runs before");
    open(web, headers).remove(0)
}

fn answer(web: &Web, question: &Value, headers: &[&str], body: &str) -> Reply {
    web.ask(
        "POST",
        &format!("/v1/approvals/{}", question["call"].as_str().unwrap()),
        headers,
        body,
    )
}

fn ended(stream: TcpStream) -> Reply {
    let bytes = exchanged(stream, b"");
    Reply::of(&bytes).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&bytes)))
}

const YES: &str = "{\"approve\": true}";
const NO: &str = "{\"approve\": false}";

#[test]
fn an_operator_answers_for_one_call_and_no_other_caller_does() {
    let (playground, web, callers) = served_to(["alice", "ops!", "boss!"], payer);
    let [alice, ops, boss] = callers.each_ref().map(|header| [header.as_str()]);

    // The question says all that the answer is for, and no secret.
    let body =
        json!({"user": "carol", "arguments": {"to": "bob\u{1b}[2J", "key": "hunter2-hunter2"}});
    let waits = call(&web, &alice, &body);
    let asked = question(&playground, &web, &ops);
    assert_eq!(
        ["tool", "caller", "label"].map(|part| &asked[part]),
        ["esc:pay@1.0.0", "alice", "carol"]
    );
    assert_eq!(asked["through"], Value::Null);
    assert_eq!(
        asked["why"],
        json!([{"policy": "pay", "why": "it spends money"}])
    );
    let arguments: Value = serde_json::from_str(asked["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"to": "bob\u{1b}[2J", "key": "***"}));
    assert!(!asked["arguments"].as_str().unwrap().contains('\u{1b}'));
    let touches = asked["touches"].to_string();
    assert!(
        touches.contains("write ") && touches.contains("/user_scripts/pay/out/**"),
        "{touches}"
    );
    assert_eq!(asked["digest"].as_str().unwrap().len(), 64);
    assert_eq!(web.get("/v1/status", &ops).json()["approvals"], 1);

    // Whoever is no operator neither sees nor answers it.
    assert_eq!(web.get("/v1/approvals", &alice).status, 403);
    assert_eq!(answer(&web, &asked, &alice, YES).status, 403);
    for body in [
        "",
        "{}",
        "true",
        "{\"approve\": 1}",
        "{\"approve\": true, \"all\": true}",
        "[true]",
    ] {
        assert_eq!(answer(&web, &asked, &ops, body).status, 400, "{body}");
    }
    let other = json!({"call": "00000000-0000-7000-8000-000000000000"});
    assert_eq!(answer(&web, &other, &ops, YES).status, 404);
    assert_eq!(ran(&playground), 0);
    assert_eq!(answer(&web, &asked, &ops, YES).status, 200);
    assert_eq!(ended(waits).is(200, "none").json()["success"], true);
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (ran(&playground), [&record["approvedBy"], &record["user"]]),
        (1, [&json!("ops"), &json!("alice")])
    );
    // One answer is for one call: the same call again is another.
    assert_eq!(answer(&web, &asked, &ops, YES).status, 404);
    fs::remove_file(playground.path("user_scripts/pay/out/ran")).unwrap();
    let waits = call(&web, &alice, &body);
    let again = question(&playground, &web, &ops);
    assert!(again["digest"] == asked["digest"] && again["call"] != asked["call"]);
    assert_eq!(answer(&web, &again, &ops, NO).status, 200);
    ended(waits).is(
        403,
        "AuthorizationError: A person was asked about this call and did not agree",
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        [&record["decision"], &record["rule"]],
        ["refused", "confirm: denied by ops"]
    );

    // An operator's own call is for another operator to answer.
    let waits = call(&web, &ops, &json!({"to": "x"}));
    let own = question(&playground, &web, &ops);
    answer(&web, &own, &ops, YES).is(403, "AuthorizationError: another operator must answer");
    assert_eq!((ran(&playground), open(&web, &boss).len()), (0, 1));
    // From the command line, too.
    let verb = |words: &[&str]| web.verb(&playground, words, boss[0]);
    let label = "root, through ops\u{3164}\u{fe0f}\n  may        nothing";
    let named = call(
        &web,
        &alice,
        &json!({"user": label, "arguments": {"to": "x"}}),
    );
    wait_for("it is asked", || open(&web, &boss).len() == 2);
    let seen = verb(&["approvals"]).text();
    let line = r#"  for        "alice", which calls itself "root, through ops\u3164\ufe0f\n  may        nothing""#;
    assert!(
        seen.lines().any(|other| other == line),
        "what a caller chose is one quoted text: {seen}"
    );
    drop(named);
    wait_for("its client is gone", || open(&web, &boss).len() == 1);
    let seen = verb(&["approvals"]).text();
    let id = own["call"].as_str().unwrap();
    for word in [
        "esc:pay@1.0.0: may this call run?",
        "it spends money",
        "ops",
        id,
    ] {
        assert!(seen.contains(word), "{word}: {seen}");
    }
    assert_eq!(verb(&["approvals", id, "--yes"]).code, Some(0));
    assert_eq!(ended(waits).status, 200);
    assert_eq!(
        (
            ran(&playground),
            &playground.records().pop().unwrap()["approvedBy"]
        ),
        (1, &json!("boss"))
    );
    assert!(
        verb(&["approvals"])
            .text()
            .contains("No call waits for an answer")
    );
    assert_eq!(
        verb(&["approvals", id, "--no"]).code,
        Some(2),
        "it is not there any more"
    );
    assert_eq!(
        verb(&["approvals", id]).code,
        Some(2),
        "an answer is yes or no"
    );
}

#[test]
fn what_changes_while_a_person_is_asked_does_not_run() {
    let (playground, web) = served(payer);
    let begun = || {
        let waits = call(&web, &[], &json!({"to": "x"}));
        (waits, question(&playground, &web, &[]))
    };
    // Without tokens there is one user, who runs the host.
    let (waits, asked) = begun();
    assert_eq!(answer(&web, &asked, &[], YES).status, 200);
    assert_eq!(ended(waits).status, 200, "control: nothing changed");
    fs::remove_file(playground.path("user_scripts/pay/out/ran")).unwrap();
    let (waits, asked) = begun();
    let script = playground.path("user_scripts/pay/main.py");
    fs::write(&script, fs::read_to_string(&script).unwrap() + "# more\n").unwrap();
    assert_eq!(answer(&web, &asked, &[], YES).status, 200);
    let reply = ended(waits);
    assert!(
        reply.status == 503 && reply.body.contains("changed while a person was asked"),
        "{reply:?}"
    );
    assert_eq!(ran(&playground), 0);
    // A client that leaves takes its question along.
    let (waits, asked) = begun();
    drop(waits);
    wait_for("the question is gone", || open(&web, &[]).is_empty());
    assert_eq!(answer(&web, &asked, &[], YES).status, 404);
    assert_eq!(
        playground.records().pop().unwrap()["outcome"],
        "CancelledError"
    );
    assert_eq!(ran(&playground), 0);
}

/// A token counts as long as its line is there: also of a call that waits.
#[test]
fn a_token_that_is_withdrawn_while_a_person_is_asked_runs_nothing() {
    let (playground, web, [ops, alice]) = served_to(["ops!", "alice"], payer);
    let waits = call(&web, &[&alice], &json!({"to": "x"}));
    let asked = question(&playground, &web, &[&ops]);
    let file = playground.path("state/tokens");
    let lines = fs::read_to_string(&file).unwrap();
    let kept = lines.lines().find(|line| !line.contains("alice")).unwrap();
    private(&playground, "state/tokens", &format!("{kept}\n"));
    wait_for("the token is gone", || {
        web.get("/v1/tools", &[&alice]).status == 401
    });
    assert_eq!(answer(&web, &asked, &[&ops], YES).status, 200);
    ended(waits).is(
        403,
        "AuthorizationError: token of this call is not accepted",
    );
    assert_eq!(ran(&playground), 0);
}

#[test]
fn a_stop_takes_answers_and_is_held_up_by_what_runs_and_not_by_questions() {
    for runs in [true, false] {
        let (playground, mut web, callers) = served_to(["alice", "ops!"], |it| {
            payer(it);
            gated(it);
        });
        let [alice, ops] = callers.each_ref().map(|header| [header.as_str()]);
        let running = runs.then(|| {
            web.send(
                "POST",
                "/v1/tools/esc:gate/calls",
                &alice,
                "{\"file\": \"end\"}",
            )
        });
        playground.runs(GATE, usize::from(runs));
        let waits = call(&web, &alice, &json!({"to": "x"}));
        let asked = question(&playground, &web, &ops);
        web.signal(Signal::SIGTERM);
        if let Some(running) = running {
            wait_for("it drains", || web.get("/readyz", &[]).status == 503);
            let refused = ended(call(&web, &alice, &json!({"to": "x"})));
            refused.is(503, "ServiceError: The server is being stopped.");
            assert_eq!(open(&web, &ops).len(), 1, "nobody is asked any more");
            assert_eq!(
                answer(&web, &asked, &ops, YES).status,
                200,
                "the control: what runs holds it up"
            );
            assert_eq!(ended(waits).is(200, "none").json()["success"], true);
            open_gate(&playground, "end");
            assert_eq!(ended(running).status, 200);
        } else {
            ended(waits).is(200, "CancelledError: The server was stopped");
        }
        assert_eq!(
            (web.ended(Duration::from_secs(15)), ran(&playground)),
            (Some(143), usize::from(runs))
        );
    }
}

/// What a caller brings as secret is hidden where it stands, and hides nothing else from the person
/// who is asked.
#[test]
fn a_caller_hides_nothing_but_its_secret_from_the_person_who_is_asked() {
    let (playground, web, callers) = served_to(["alice", "ops!"], payer);
    let [alice, ops] = callers.each_ref().map(|header| [header.as_str()]);
    let body = json!({"to": "mallory, 1000 coins", "key": "mallory, 1000 coins"});
    let waits = call(&web, &alice, &body);
    let asked = question(&playground, &web, &ops);
    let shown = r#"{"to":"mallory, 1000 coins","key":"***"}"#;
    assert_eq!(asked["arguments"], shown);
    assert_eq!(answer(&web, &asked, &ops, YES).status, 200);
    // In what the tool says back it is searched for.
    assert_eq!(
        ended(waits).json()["outputData"],
        json!({"to": "***", "key": "***"})
    );
    assert_eq!(playground.records().pop().unwrap()["arguments"], shown);
}
