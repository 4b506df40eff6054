//! Approvals: a call that a person must agree to, its question, and who may answer.

use super::{Reply, Web, exchanged, token_of};
use crate::prelude::*;

/// A tool that leaves a mark when it runs, and which a policy has a person agree to.
fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let script = "import json, sys\nopen('out/ran', 'a').write('x')\nprint(json.dumps(json.load(sys.stdin)))\n";
    let text = json!({"type": "string", "description": "d"});
    let key = json!({"type": "string", "description": "d", "writeOnly": true});
    let more = json!({
        "parameters": {"type": "object", "properties": {"to": text, "key": key}},
        "securityContext": {"fileAccess": {"allowWrite": ["out/"]}},
    });
    let folder = playground.tool("pay", "python", script, more);
    fs::create_dir_all(folder.join("out")).unwrap();
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n";
    playground.policy("pay", "esc:pay", &format!("confirm = \"it spends money\"\n{files}"));
    playground.settle();
    playground
}

fn ran(playground: &Playground) -> usize {
    fs::read(playground.path("user_scripts/pay/out/ran")).map_or(0, |marks| marks.len())
}

struct Asked<'a> {
    web: &'a Web,
    playground: &'a Playground,
}

impl Asked<'_> {
    /// A call that waits for its answer.
    fn call(&self, headers: &[&str], body: &Value) -> TcpStream {
        self.web.send("POST", "/v1/tools/esc:pay/calls", headers, &body.to_string())
    }

    fn open(&self, headers: &[&str]) -> Vec<Value> {
        self.web.get("/v1/approvals", headers).json()["approvals"].as_array().unwrap().clone()
    }

    /// The one question there is.
    fn question(&self, headers: &[&str]) -> Value {
        wait_for("somebody is asked", || self.open(headers).len() == 1);
        assert_eq!(ran(self.playground), 0, "nothing runs before");
        self.open(headers).remove(0)
    }

    fn answer(&self, question: &Value, headers: &[&str], body: &str) -> Reply {
        let path = format!("/v1/approvals/{}", question["call"].as_str().unwrap());
        self.web.ask("POST", &path, headers, body)
    }
}

fn ended(stream: TcpStream) -> Reply {
    let bytes = exchanged(stream, b"");
    Reply::of(&bytes).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&bytes)))
}

const YES: &str = "{\"approve\": true}";
const NO: &str = "{\"approve\": false}";

#[test]
fn an_operator_answers_for_one_call_and_nobody_else_does() {
    let playground = playground(Who::ours());
    let (web, callers) = Web::for_callers(&playground, ["alice", "ops!", "boss!"]);
    let [alice, ops, boss] = callers.each_ref().map(|header| [header.as_str()]);
    let asked = Asked { web: &web, playground: &playground };

    // The question says all that the answer is for, and no secret.
    let body = json!({"user": "carol", "arguments": {"to": "bob\u{1b}[2J", "key": "hunter2-hunter2"}});
    let call = asked.call(&alice, &body);
    let question = asked.question(&ops);
    assert_eq!((&question["tool"], &question["caller"]), (&json!("esc:pay@1.0.0"), &json!("alice")));
    assert_eq!((&question["label"], &question["through"]), (&json!("carol"), &Value::Null));
    assert_eq!(question["why"], json!([{"policy": "pay", "why": "it spends money"}]));
    let arguments: Value = serde_json::from_str(question["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"to": "bob\u{1b}[2J", "key": "***"}));
    assert!(!question["arguments"].as_str().unwrap().contains('\u{1b}'));
    let touches = question["touches"].to_string();
    assert!(touches.contains("write ") && touches.contains("/user_scripts/pay/out/**"), "{touches}");
    assert_eq!(question["digest"].as_str().unwrap().len(), 64);
    assert_eq!(web.get("/v1/status", &ops).json()["approvals"], 1);

    // Whoever is no operator neither sees nor answers it.
    assert_eq!(web.get("/v1/approvals", &alice).status, 403);
    assert_eq!(asked.answer(&question, &alice, YES).status, 403);
    for body in ["", "{}", "true", "{\"approve\": 1}", "{\"approve\": true, \"all\": true}", "[true]"] {
        assert_eq!(asked.answer(&question, &ops, body).status, 400, "{body}");
    }
    let other = json!({"call": "00000000-0000-7000-8000-000000000000"});
    assert_eq!(asked.answer(&other, &ops, YES).status, 404);
    assert_eq!(ran(&playground), 0);
    assert_eq!(asked.answer(&question, &ops, YES).status, 200);
    let reply = ended(call);
    assert_eq!((reply.status, &reply.json()["success"]), (200, &json!(true)), "{reply:?}");
    assert_eq!(ran(&playground), 1);
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["approvedBy"], &record["user"]), (&json!("ops"), &json!("alice")));
    // One answer is for one call: the same call again is another.
    assert_eq!(asked.answer(&question, &ops, YES).status, 404);
    fs::remove_file(playground.path("user_scripts/pay/out/ran")).unwrap();
    let call = asked.call(&alice, &body);
    let again = asked.question(&ops);
    assert!(again["digest"] == question["digest"] && again["call"] != question["call"]);
    assert_eq!(asked.answer(&again, &ops, NO).status, 200);
    let reply = ended(call);
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["type"]), (403, &json!("AuthorizationError")), "{reply:?}");
    assert!(error["message"].as_str().unwrap().contains("A person was asked about this call and did not agree"));
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["decision"], &record["rule"]), (&json!("refused"), &json!("confirm: denied by ops")));

    // An operator's own call is for another operator to answer.
    let call = asked.call(&ops, &json!({"to": "x"}));
    let own = asked.question(&ops);
    let refused = asked.answer(&own, &ops, YES);
    assert!(refused.status == 403 && refused.body.contains("another operator must answer"), "{refused:?}");
    assert_eq!((ran(&playground), asked.open(&boss).len()), (0, 1));
    // From the command line, too.
    let verb = |words: &[&str]| {
        let mut command = playground.host();
        command.args(words).env("TOOLHOST_HTTP", &web.address).env("TOOLHOST_TOKEN", token_of(boss[0]));
        finish(command, b"")
    };
    let seen = verb(&["approvals"]).text();
    let id = own["call"].as_str().unwrap();
    for word in ["esc:pay@1.0.0: may this call run?", "it spends money", "ops", id] {
        assert!(seen.contains(word), "{word}: {seen}");
    }
    let done = verb(&["approvals", id, "--yes"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(ended(call).status, 200);
    assert_eq!((ran(&playground), &playground.records().pop().unwrap()["approvedBy"]), (1, &json!("boss")));
    assert!(verb(&["approvals"]).text().contains("No call waits for an answer"));
    assert_eq!(verb(&["approvals", id, "--no"]).code, Some(2), "it is not there any more");
    assert_eq!(verb(&["approvals", id]).code, Some(2), "an answer is yes or no");
}

#[test]
fn what_changes_while_a_person_is_asked_does_not_run() {
    let playground = playground(Who::ours());
    let web = Web::start(&playground, &[]);
    let asked = Asked { web: &web, playground: &playground };
    // Without tokens there is one user, who runs the host.
    let call = asked.call(&[], &json!({"to": "x"}));
    let question = asked.question(&[]);
    assert_eq!(asked.answer(&question, &[], YES).status, 200);
    assert_eq!(ended(call).status, 200, "control: nothing changed");
    fs::remove_file(playground.path("user_scripts/pay/out/ran")).unwrap();

    let script = playground.path("user_scripts/pay/main.py");
    let call = asked.call(&[], &json!({"to": "x"}));
    let question = asked.question(&[]);
    fs::write(&script, fs::read_to_string(&script).unwrap() + "# more\n").unwrap();
    assert_eq!(asked.answer(&question, &[], YES).status, 200);
    let reply = ended(call);
    assert!(reply.status == 503 && reply.body.contains("changed while a person was asked"), "{reply:?}");
    assert_eq!(ran(&playground), 0);

    // A client that leaves takes its question along.
    let call = asked.call(&[], &json!({"to": "x"}));
    let question = asked.question(&[]);
    drop(call);
    wait_for("the question is gone", || asked.open(&[]).is_empty());
    assert_eq!(asked.answer(&question, &[], YES).status, 404);
    assert_eq!(playground.records().pop().unwrap()["outcome"], "CancelledError");
    assert_eq!(ran(&playground), 0);
}
