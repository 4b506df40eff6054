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
    let more = json!({"limits": {"outputBytes": 262_144}});
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
    let number = json!({"execution": {"output": "text"}, "output": {"type": "number"}});
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
        // A number that clients write otherwise is a word.
        (
            "version",
            "python",
            "print('1.10')",
            &text,
            json!("1.10"),
            "ok 1.10",
        ),
        // Where the output schema asks for one, it is the number.
        (
            "number",
            "python",
            "print('3.0')",
            &number,
            json!(3.0),
            "ok 3.0",
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

/// A picture is a picture from every tool: a block to a model, its size in an observation and on a
/// terminal, and a file where that is asked for.
#[test]
fn content_is_parts_from_every_tool_on_every_transport() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    let code = "import base64, json\npng = base64.b64encode(b'\\x89PNG' + bytes(9996)).decode()\n\
        print(json.dumps({'$content': [{'type': 'text', 'text': 'a plot'}, \
        {'type': 'image', 'mimeType': 'image/png', 'data': png}, {'type': 'resource', \
        'resource': {'uri': 'x://../../evil.csv', 'mimeType': 'text/csv', 'text': 'a,b'}}]})[:-1] \
        + MORE + '}')\n";
    let code = |more: &str| code.replace("MORE", more);
    let plain = json!({"language": "python", "code": code("''")});
    let both = json!({"language": "python", "code": code("', \"structured\": {\"n\": 1}'")});
    let mut server = Server::start(&playground);
    let answer = server.called("core:run-code", plain.clone())["result"].clone();
    let kinds: Vec<_> = answer["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["text", "text", "image", "resource"], "{answer}");
    let envelope = |answer: &Value| answer["structuredContent"].clone();
    let ours = json!({"success": true, "outputData": null});
    assert_eq!(envelope(&answer), ours);
    // Who reads one text reads ours, whatever the tool's says.
    assert_eq!(answer["content"][0]["text"], ours.to_string());
    let answer = server.called("core:run-code", both.clone())["result"].clone();
    let with = json!({"success": true, "outputData": {"n": 1}});
    assert_eq!(envelope(&answer), with);
    assert_eq!(answer["content"][0]["text"], with.to_string());
    let wrong = code("''").replace("'data': png", "'data': 'no'");
    let wrong = server.called(
        "core:run-code",
        json!({"language": "python", "code": wrong}),
    );
    assert!(kind(&wrong) == "OutputValidationError", "{wrong}");
    // What asks a client asks nobody here: it is data.
    let asks = json!({"language": "python", "code": "print('{\"$ask\": 1}')"});
    let asks = server.called("core:run-code", asks)["result"]["structuredContent"].clone();
    assert_eq!(asks["outputData"], json!({"$ask": 1}), "{asks}");

    let action = format!(
        "<ACTION><tool_id>core:run-code</tool_id><inputs><input name=\"language\">python</input>\
         <input name=\"code\"><![CDATA[{}]]></input></inputs></ACTION>",
        code("''")
    );
    let text = playground.path("action.xml").display().to_string();
    fs::write(&text, action).unwrap();
    let observed = playground.cli(&["act", "--text", &text]).text();
    assert!(
        observed.contains("\"bytes\":10000") && observed.len() < 1000,
        "{observed}"
    );

    let whole = playground.call("core:run-code", &plain.to_string()).out;
    let data = whole["outputData"]["$content"][1]["data"].as_str();
    assert_eq!(data.map(str::len), Some(13336), "--json has the data");
    // Names are the host's, and a name that exists is passed over, also if it is a link.
    let folder = playground.path("parts");
    fs::create_dir(&folder).unwrap();
    let secret = playground.path("elsewhere");
    symlink(&secret, folder.join("run-code-1.png")).unwrap();
    let input = both.to_string();
    let words = ["call", "core:run-code", "--input", &input];
    let save = ["--save", folder.to_str().unwrap()];
    let shown = playground.cli(&words).text();
    assert_eq!(
        shown,
        "a plot\nimage/png 10 KB\ntext/csv 3 bytes\n{\"n\":1}\n"
    );
    let shown = playground.cli(&[&words[..], &save].concat()).text();
    let files = ["run-code-2.png", "run-code-1.csv"].map(|name| folder.join(name));
    let line = |line: &str, file: &Path| format!("{line}  {}\n", file.display());
    let lines = line("image/png 10 KB", &files[0]) + &line("text/csv 3 bytes", &files[1]);
    assert_eq!(shown, format!("a plot\n{lines}{{\"n\":1}}\n"));
    assert!(fs::read(&files[0]).unwrap().starts_with(b"\x89PNG") && !secret.exists());
    assert_eq!(fs::read_to_string(&files[1]).unwrap(), "a,b");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}
