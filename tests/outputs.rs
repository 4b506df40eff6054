//! Outputs as data: what a script may print or how it may end → the exact type, and a part of the
//! message.

use crate::harness::fake;
use crate::http::Web;
use crate::prelude::*;

#[test]
fn every_output_ends_as_it_says() {
    let playground = Playground::new(Who::ours(), "/tmp");
    playground.without_breaker();
    let script = "import os, sys, time, json\nexec(json.load(sys.stdin)['does'])\n";
    let more = json!({"limits": {"outputBytes": 262_144}, "execution": {"timeoutMs": 10_000}});
    playground.tool("prints", "python", script, more);
    playground.tool("unread", "python", "print((\n", json!({}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let unread = web.call("esc:unread", &json!({}), &[]).json()["error"].clone();
    assert!(
        unread["type"] == "ScriptError" && unread.to_string().contains("SyntaxError"),
        "{unread}"
    );
    let mut wrong = Vec::new();
    for case in include_str!("outputs/cases.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let [name, does, wanted] = case.split(" ¦ ").collect::<Vec<_>>().try_into().unwrap();
        let outcome = web
            .call("esc:prints", &json!({"does": does.replace('⏎', "\n")}), &[])
            .json();
        let (error, answer) = (&outcome["error"], &outcome["outputData"]);
        let good = match wanted.split_once("Error: ") {
            None => {
                outcome["success"] == true
                    && *answer == serde_json::from_str::<Value>(wanted).unwrap()
            }
            Some((wanted, part)) => {
                let told = format!("{} {}", error["message"], error["details"]);
                answer.is_null() && error["type"] == format!("{wanted}Error") && told.contains(part)
            }
        };
        if !good {
            wrong.push(format!("{name}: wanted {wanted}: {error} {answer}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} outputs:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn text_and_null_are_answers_where_the_manifest_says_so() {
    let playground = Playground::new(Who::ours(), "/tmp");
    // A module that prints a line which is not JSON.
    let module = PRINTS_ONE
        .replace("\"1\"", "\"hi there\\0a\"")
        .replace("\\01\\00", "\\09\\00");
    let chunks = "print('@toolhost {\"chunk\": \"a\"}\\n@toolhost {\"chunk\": \"b\"}";
    let own = format!("{chunks}\\nmine')");
    let list = format!("{chunks}\\n@toolhost {{\"end\": true}}')");
    let text = json!({"execution": {"output": "text"}});
    let nullable = json!({"output": {"type": ["integer", "null"]}});
    let cases = [
        (
            "line",
            "python",
            "print('hi there')",
            &text,
            json!("hi there"),
            "ScriptError",
        ),
        ("nothing", "python", "pass", &text, json!(""), "ScriptError"),
        (
            "module",
            "wasm",
            &module,
            &text,
            json!("hi there"),
            "ScriptError",
        ),
        (
            "chunks",
            "python",
            &own,
            &text,
            json!("mine"),
            "ScriptError",
        ),
        (
            "null",
            "python",
            "print('null')",
            &nullable,
            json!(null),
            "OutputValidationError",
        ),
        // Chunks of text are one text.
        ("list", "python", &list, &text, json!("ab"), "none"),
    ];
    for (name, language, script, with, wanted, kind) in cases {
        playground.tool(name, language, script, with.clone());
        playground.tool(&format!("{name}-control"), language, script, json!({}));
        playground.settle();
        playground.expect(&format!("esc:{name}"), "{}", &format!("ok {wanted}"));
        playground.expect(&format!("esc:{name}-control"), "{}", kind);
    }
}

/// A tool may give back a secret that it was given: it is hidden in the answer too, and the notes
/// say so.
#[tokio::test]
async fn a_secret_argument_is_hidden_in_a_successful_answer() {
    let parameters = json!({ "type": "object", "properties": {
        "token": { "type": "string", "description": "d", "writeOnly": true },
        "plain": { "type": "string", "description": "d" },
    }});
    let world = fake::world_with(|root, _| {
        let more = json!({ "parameters": parameters });
        fake::define(
            root,
            "fake:confided",
            script("examples/whole.py", "python"),
            more,
        );
    });
    let report = world
        .call(
            "fake:confided",
            json!({ "token": "hunter2-hunter2", "plain": "say hunter2-hunter2" }),
        )
        .await;
    assert_eq!(
        report.output(),
        Some(json!({ "token": "***", "plain": "say ***" }))
    );
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("held a secret argument")),
        "{:?}",
        report.notes
    );
    assert!(
        !serde_json::to_string(&report).unwrap().contains("hunter2"),
        "{report:?}"
    );
    assert!(
        !report.observation().contains("hunter2") && report.outcome.is_success(),
        "{}",
        report.observation()
    );
    let report = world
        .call(
            "fake:confided",
            json!({ "token": "another-one", "plain": "hunter2" }),
        )
        .await;
    assert_eq!(
        report.output(),
        Some(json!({ "token": "***", "plain": "hunter2" })),
        "the control"
    );
    // One that is too short to be searched for is hidden where it is a whole value, and nowhere
    // else.
    let report = world
        .call("fake:confided", json!({ "token": "Pin7", "plain": "pin7" }))
        .await;
    assert_eq!(
        report.output(),
        Some(json!({ "token": "***", "plain": "***" }))
    );
    let report = world
        .call(
            "fake:confided",
            json!({ "token": "Pin7", "plain": "a pin7" }),
        )
        .await;
    assert_eq!(
        report.output(),
        Some(json!({ "token": "***", "plain": "a pin7" })),
        "the control"
    );
    // For a script that a call names, the script's own manifest says what is secret.
    let input =
        json!({ "scriptPath": "examples/whole.py", "inputData": { "token": "hunter2-hunter2" } });
    let report = world.call("core:execute-python-script", input).await;
    assert!(
        !serde_json::to_string(&report).unwrap().contains("hunter2"),
        "{report:?}"
    );
}
