//! `disable` and `enable`: no call of a disabled tool begins, whichever way it comes, and `--now` ends
//! those that run. Each refusal has a control before and after it in which the same call runs.

use crate::http::mcp::Client;
use crate::http::{GATE, Reply, Web, caller, exchanged, gated, open_gate, write_callers};
use crate::prelude::*;
use crate::shipped;

/// What the tool of these tests answers, and what its refusal says.
const WORKED: &str = "it-worked";
const OFF: &str = "The operator disabled";

/// A host with `esc:mark`, `easy:mark`, which is its alias, and `esc:parent`, whose code calls it.
fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    mark(&playground, "esc:mark", "mark");
    let alias = manifest(
        "easy:mark",
        json!({"type": "alias", "tool": "esc:mark"}),
        json!({}),
    );
    fs::write(
        playground.path("tool-defs/easy.tool.json"),
        alias.to_string(),
    )
    .unwrap();
    let calls = "import json, toolhost\ntry:\n    print(json.dumps(toolhost.call('esc:mark', {})))\n\
                 except toolhost.ToolError as e:\n    print(json.dumps(e.type + ': ' + e.message))\n";
    playground.tool("parent", "python", calls, json!({"calls": ["esc:mark"]}));
    playground.policy(
        "parent",
        "esc:parent",
        "[calls]\nallow = [{ tool = \"esc:mark\", why = \"w\" }]\n",
    );
    playground.allow_builtin_tools();
    playground.settle();
    playground
}

fn mark(playground: &Playground, id: &str, folder: &str) {
    let script = format!("import json\nprint(json.dumps('{WORKED}'))\n");
    playground.tool_at(
        id,
        "python",
        &format!("{folder}/main.py"),
        &script,
        json!({}),
    );
}

#[track_caller]
fn done(playground: &Playground, words: &[&str]) -> Ended {
    let ended = playground.cli(words);
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended
}

fn disable(playground: &Playground, tools: &str) -> Ended {
    done(playground, &["disable", tools, "--why", "the-reason"])
}

fn end_now(playground: &Playground, tools: &str) -> Ended {
    done(
        playground,
        &["disable", tools, "--why", "the-reason", "--now"],
    )
}

fn enable(playground: &Playground, tools: &str) -> Ended {
    done(playground, &["enable", tools])
}

fn by_http(web: &Web, tool: &str) -> String {
    web.call(tool, &json!({}), &[]).body
}

/// The end of a call in the background.
fn in_background(web: &Web) -> String {
    let receipt = web.call("esc:mark", &json!({"mode": "async", "arguments": {}}), &[]);
    let Some(place) = receipt.header("location").map(str::to_owned) else {
        return receipt.body;
    };
    let mut body = String::new();
    wait_for("it ends", || {
        let reply = web.get(&place, &[]);
        body = reply.body.clone();
        reply.json()["phase"] == "ended"
    });
    body
}

/// Every way in which a call comes, and what its caller reads.
fn ways(playground: &Playground, web: &Web, server: &mut Server) -> Vec<(&'static str, String)> {
    let action = "<ACTION>\n<tool_id>esc:mark</tool_id>\n</ACTION>\n";
    let act = || {
        let mut command = playground.host();
        command.arg("act");
        finish(command, action.as_bytes()).text()
    };
    let post = |path: &str, body: Value| web.ask("POST", path, &[], &body.to_string()).body;
    let by_path = json!({"scriptPath": "mark/main.py"}).to_string();
    let function =
        json!({"type": "function_call", "call_id": "c", "name": "esc__mark", "arguments": "{}"});
    let mut client = Client::new(web, false, &[]);
    let named = json!({"name": "esc__mark", "arguments": {}});
    let text = |ended: Ended| ended.out.to_string();
    vec![
        ("one call", text(playground.call("esc:mark", "{}"))),
        ("an action", act()),
        (
            "its path",
            text(playground.call("core:execute-python-script", &by_path)),
        ),
        ("stdio", server.called("esc:mark", json!({})).to_string()),
        ("MCP over HTTP", client.ask("tools/call", named).body),
        ("HTTP", by_http(web, "esc:mark")),
        ("an alias", by_http(web, "easy:mark")),
        ("code", by_http(web, "esc:parent")),
        (
            "a batch",
            post(
                "/v1/calls",
                json!({"calls": [{"tool": "esc:mark", "arguments": {}}]}),
            ),
        ),
        (
            "Responses",
            post("/v1/tool-batches", json!({"calls": [function]})),
        ),
        (
            "a run",
            post(
                "/v1/runs",
                json!({"calls": [{"name": "esc__mark"}], "store": true}),
            ),
        ),
        ("background", in_background(web)),
    ]
}

#[test]
fn a_disabled_tool_is_refused_whichever_way_it_is_called() {
    let playground = playground(Who::ours());
    let web = Web::start(&playground, &[]);
    let mut server = Server::start(&playground);
    let all = |server: &mut Server, wanted: &str, other: &str| {
        for (way, said) in ways(&playground, &web, server) {
            assert!(
                said.contains(wanted) && !said.contains(other),
                "{way}: {said}"
            );
            let is_agent = ["an action", "stdio", "MCP over HTTP", "Responses"].contains(&way);
            assert!(
                !is_agent || !said.contains("the-reason"),
                "for operators: {way}: {said}"
            );
        }
    };
    all(&mut server, WORKED, OFF);
    let is_offered = |server: &mut Server| server.names().contains(&"esc__mark".to_owned());
    for tools in ["esc:mark", "*"] {
        disable(&playground, tools);
        all(&mut server, OFF, WORKED);
        assert!(!is_offered(&mut server));
        enable(&playground, tools);
        assert!(is_offered(&mut server));
    }
    all(&mut server, WORKED, OFF);
    disable(&playground, "esc:mark@1.0.0");
    assert!(by_http(&web, "esc:mark").contains(OFF));
    enable(&playground, "esc:mark@1.0.0");
    // What is disabled names these tools, and no others.
    disable(&playground, "easy:*");
    disable(&playground, "esc:mark@2.0.0");
    assert!(by_http(&web, "easy:mark").contains(OFF));
    assert!(by_http(&web, "esc:mark").contains(WORKED));
    let refused = playground.records();
    let refused = refused
        .iter()
        .rfind(|it| it["outcome"] == "AuthorizationError")
        .unwrap();
    assert_eq!(
        [&refused["decision"], &refused["tool"]],
        ["refused", "esc:mark"],
        "{refused}"
    );
}

/// A restart changes nothing, and the operator reads who disabled what, when and why.
#[test]
fn operators_see_it_and_it_survives_a_restart() {
    let playground = playground(Who::ours());
    let web = Web::start(&playground, &[]);
    let ended = disable(&playground, "esc:*");
    assert!(ended.text().contains("state/disabled.json"), "{ended:?}");
    disable(&playground, "esc:mark");
    let status = web.get("/v1/status", &[]).json();
    assert_eq!(status["disabled"][0]["tools"], "esc:*", "{status}");
    drop(web);
    let web = Web::start(&playground, &[]);
    assert!(by_http(&web, "esc:mark").contains(OFF));
    let listed = done(&playground, &["disable"]).text();
    let json = done(&playground, &["disable", "--json"]).out;
    assert_eq!(json[1]["tools"], "esc:mark", "the widest first: {json}");
    let by = json[0]["by"].as_str().unwrap();
    for words in [by, "the-reason", "'esc:*'", "'esc:mark'"] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    let refused = playground.call("esc:mark", "{}");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("the-reason") && refused.stderr.contains("enable 'esc:*'"));
    let record = playground.records().pop().unwrap();
    let rule = record["rule"].as_str().unwrap();
    assert!(rule.starts_with("'esc:*' is disabled since "), "{record}");
    for verb in [&["audit", "esc:mark"][..], &["list"], &["check"]] {
        let shown = done(&playground, verb).text();
        assert!(shown.contains(OFF), "{verb:?}: {shown}");
    }
    let question = format!("read:{}", playground.path("user_scripts/mark").display());
    let who_can = done(&playground, &["audit", "--who-can", &question]).text();
    assert!(who_can.contains("esc:mark@1.0.0"), "{who_can}");
    // Of two orders each is taken back for itself.
    let narrow = enable(&playground, "esc:mark");
    assert!(narrow.stderr.contains("still disabled:"), "{narrow:?}");
    // Who did what is in the log.
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let orders: Vec<Value> = lines
        .filter(|line: &Value| line["disabled"].is_object() || line["enabled"].is_string())
        .collect();
    assert_eq!(orders.len(), 3, "{orders:?}");
    assert_eq!(orders[0]["disabled"]["tools"], "esc:*", "{orders:?}");
    assert_eq!(orders[0]["disabled"]["why"], "the-reason", "{orders:?}");
    assert_eq!(
        (&orders[2]["enabled"], &orders[2]["user"]),
        (&json!("esc:mark"), &json!(by))
    );
    let again = playground.cli(&["enable", "esc:mark"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("enable 'esc:*'"), "{again:?}");
    enable(&playground, "esc:*");
    assert!(by_http(&web, "esc:mark").contains(WORKED));
    assert_eq!(
        done(&playground, &["disable"]).text().trim(),
        "Nothing is disabled."
    );
}

/// It does not depend on tools and policies that can be read, or on a name that is known.
#[test]
fn whatever_is_named_is_recorded_also_by_many_at_once() {
    let playground = playground(Who::ours());
    let unknown = disable(&playground, "later:tool");
    assert!(
        unknown.stderr.contains("no tool that is loaded now"),
        "{unknown:?}"
    );
    let known = disable(&playground, "easy:mark");
    assert!(!known.stderr.contains("no tool"), "{known:?}");
    mark(&playground, "later:tool", "later");
    playground.settle();
    playground.expect("later:tool", "{}", &format!("AuthorizationError: {OFF}"));
    enable(&playground, "later:tool");
    playground.expect("later:tool", "{}", &format!("ok \"{WORKED}\""));
    for tools in ["esc:mark@^1", "esc*", "a:b:*", ""] {
        let refused = playground.cli(&["disable", tools, "--why", "w"]);
        assert_eq!(refused.code, Some(2), "{tools}: {refused:?}");
    }
    assert_eq!(
        playground.cli(&["disable", "esc:mark"]).code,
        Some(2),
        "no reason"
    );
    let manifest = playground.path("user_scripts/later/later-tool.tool.json");
    fs::write(manifest, "{").unwrap();
    fs::write(playground.path("sandbox-policies/x.policy.toml"), "name = ").unwrap();
    playground.settle();
    let broken = disable(&playground, "later:tool");
    assert!(broken.stderr.contains("is not known"), "{broken:?}");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let playground = &playground;
            scope.spawn(move || disable(playground, &format!("many:n{n}")));
        }
    });
    let all = done(&playground, &["disable", "--json"]).out;
    assert_eq!(all.as_array().unwrap().len(), 10, "{all}");
}

#[test]
fn a_state_that_cannot_be_read_refuses_every_call() {
    let playground = playground(Who::ours());
    let (web, [alice]) = Web::for_callers(&playground, ["alice"]);
    let by_http = || web.call("esc:mark", &json!({}), &[&alice]).body;
    disable(&playground, "later:tool");
    let file = playground.path("state/disabled.json");
    let good = fs::read_to_string(&file).unwrap();
    let works = || {
        fs::remove_file(&file)
            .or_else(|_| fs::remove_dir(&file))
            .unwrap();
        fs::write(&file, &good).unwrap();
        playground.expect("esc:mark", "{}", &format!("ok \"{WORKED}\""));
        assert!(by_http().contains(WORKED));
    };
    let refuses = |what: &str, words: &str| {
        let ended = playground.call("esc:mark", "{}");
        assert_eq!(
            (ended.code, ended.kind()),
            (Some(3), "SecurityError"),
            "{what}: {ended:?}"
        );
        assert!(
            ended.stderr.contains("disabled.json") && ended.stderr.contains(words),
            "{what}: {ended:?}"
        );
        let said = by_http();
        assert!(
            said.contains("SecurityError") && !said.contains("disabled.json"),
            "{what}: {said}"
        );
    };
    works();
    let unknown = good.replacen("\"why\"", "\"whom\"", 1);
    let range = good.replacen("later:tool", "later:tool@^1", 1);
    for text in ["", "{}", "[{}]", &good[1..], &unknown, &range] {
        fs::write(&file, text).unwrap();
        refuses(text, "line");
    }
    // Nothing is written over it, and the reports say what is wrong.
    let changed = playground.cli(&["disable", "esc:mark", "--why", "w"]);
    assert_eq!(changed.code, Some(4), "{changed:?}");
    let checked = playground.cli(&["check"]);
    assert!(
        checked.code == Some(2) && checked.text().contains("disabled.json"),
        "{checked:?}"
    );
    assert!(
        changed.stderr.contains("every call is refused"),
        "{changed:?}"
    );
    assert_eq!(playground.cli(&["list"]).code, Some(3));
    // What stops everything needs nothing of it.
    let ended = done(&playground, &["disable", "*", "--why", "w", "--now"]);
    assert!(by_http().contains(OFF), "{ended:?}");
    let names = fs::read_dir(playground.path("state")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        names.filter(|it| it.starts_with("disabled.json.")).count(),
        1
    );
    works();
    let long = "x".repeat(100_000);
    let orders = (0..12).map(|n| {
        let tools = format!("later:tool{n}");
        playground.cli(&["disable", &tools, "--why", &long]).code
    });
    let orders: Vec<_> = orders.collect();
    assert_eq!((orders[0], orders[11]), (Some(0), Some(4)), "1 MiB");
    works();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    refuses("others may write it", "others may write it");
    works();
    fs::remove_file(&file).unwrap();
    symlink(playground.path("state/elsewhere.json"), &file).unwrap();
    refuses("a link", "");
    works();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refuses("a folder", "");
    works();
    if let Some(uid) = playground.who.uid().or_else(|| is_root().then_some(0)) {
        std::os::unix::fs::chown(&file, Some(uid + 1), None).unwrap();
        refuses("somebody else's", "another user");
        works();
    }
}

/// A call that waits while its tool is disabled was admitted before, and does not run.
#[test]
fn a_call_that_waits_is_refused_once_its_tool_is_disabled() {
    let playground = playground(Who::ours());
    gated(&playground);
    playground.policy("paid", "esc:paid", "confirm = \"it costs\"\n");
    mark(&playground, "esc:paid", "paid");
    let callers = caller("alice", "at_once = 1\n") + &caller("ops", "role = \"operator\"\n");
    write_callers(&playground, &callers);
    let (web, [alice, ops]) = Web::for_callers(&playground, ["alice", "ops"]);
    let send = |tool: &str, body: Value| {
        let path = format!("/v1/tools/{tool}/calls");
        web.send("POST", &path, &[&alice], &body.to_string())
    };
    for (round, wanted) in [WORKED, OFF].into_iter().enumerate() {
        let gate = format!("go{round}");
        let first = send("esc:gate", json!({ "file": gate }));
        playground.runs(GATE, 1);
        let second = send("esc:mark", json!({}));
        wait_for("it waits for its slot", || {
            let metrics = web.get("/metrics", &[&ops]).body;
            metrics
                .lines()
                .any(|line| line == "toolhost_calls_queued 1")
        });
        if wanted == OFF {
            disable(&playground, "esc:mark");
        }
        open_gate(&playground, &gate);
        assert!(
            said(first).body.contains("through"),
            "what runs is left alone"
        );
        let second = said(second);
        assert!(second.body.contains(wanted), "{second:?}");
    }
    // A person agrees too late.
    for wanted in [WORKED, OFF] {
        let waits = send("esc:paid", json!({}));
        let open = || web.get("/v1/approvals", &[&ops]).json()["approvals"].clone();
        wait_for("a person is asked", || {
            open().as_array().is_some_and(|all| all.len() == 1)
        });
        if wanted == OFF {
            disable(&playground, "esc:paid");
        }
        let path = format!("/v1/approvals/{}", open()[0]["call"].as_str().unwrap());
        web.ask("POST", &path, &[&ops], "{\"approve\": true}");
        let waits = said(waits);
        assert!(waits.body.contains(wanted), "{waits:?}");
        assert!(!waits.body.contains("the-reason"), "{waits:?}");
    }
}

fn said(stream: TcpStream) -> Reply {
    let bytes = exchanged(stream, b"");
    Reply::of(&bytes).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&bytes)))
}

/// Calls that run in a server, in the background and in a process of their own.
#[test]
fn now_ends_the_calls_that_run_and_without_it_they_go_on() {
    let playground = playground(Who::ours());
    gated(&playground);
    // A call by its path has the time of both policies.
    let core = playground.path("sandbox-policies/core.policy.toml");
    let text = fs::read_to_string(&core).unwrap();
    fs::write(core, text + "[limits]\ntimeout_ms = 120_000\n").unwrap();
    playground.settle();
    let web = Web::start(&playground, &[]);
    let path = "/v1/tools/esc:gate/calls";
    let send = |file: &str| web.send("POST", path, &[], &json!({ "file": file }).to_string());
    let goes_on = send("goes-on");
    let ends = send("never");
    let receipt = web.call(
        "esc:gate",
        &json!({"mode": "async", "arguments": {"file": "never"}}),
        &[],
    );
    let place = receipt.header("location").unwrap().to_owned();
    let mut once = playground.host();
    once.args([
        "call",
        "esc:gate",
        "--json",
        "--input",
        "{\"file\": \"never\"}",
    ]);
    let once = std::thread::spawn(move || finish(once, b""));
    let by_path = json!({"scriptPath": "gate/main.py", "inputData": {"file": "never"}});
    let path = "/v1/tools/core:execute-python-script/calls";
    let by_path = web.send("POST", path, &[], &by_path.to_string());
    playground.runs(GATE, 5);
    // The control.
    disable(&playground, "esc:gate");
    assert!(by_http(&web, "esc:gate").contains(OFF));
    open_gate(&playground, "goes-on");
    assert!(said(goes_on).body.contains("through"));
    playground.runs(GATE, 4);
    end_now(&playground, "esc:*");
    let [ends, by_path] = [ends, by_path].map(|stream| said(stream).json());
    assert_eq!(ends["error"]["type"], "AuthorizationError", "{ends}");
    assert_eq!(by_path["error"]["type"], "AuthorizationError", "{by_path}");
    wait_for("the call in the background ends", || {
        web.get(&place, &[]).json()["outcome"] == "AuthorizationError"
    });
    let once = once.join().unwrap();
    assert_eq!(once.kind(), "AuthorizationError", "{once:?}");
    playground.runs(GATE, 0);
    let records = playground.records();
    let record = records.iter().rfind(|it| it["call"] == ends["id"]).unwrap();
    assert_eq!(
        record["decision"], "allowed",
        "something of it ran: {record}"
    );
}

const SESSIONS: &str = "sessions = { max = 2, idle_ms = 600_000, why = \"a test\" }\n\
    [limits]\ntimeout_ms = 110_000\n";

#[test]
fn a_session_gets_no_further_cell_and_ends() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.policy("core", "core:run-code", SESSIONS);
    playground.settle();
    let web = Web::start(&playground, &[]);
    let body = |code: &str| {
        let input = json!({"language": "python", "code": code, "session": "a"});
        json!({ "arguments": input })
    };
    let ran = |code: &str| web.call("core:run-code", &body(code), &[]).json();
    let open = || {
        let answer = web.get("/v1/calls", &[]).json();
        answer["sessions"].as_array().unwrap().len()
    };
    assert_eq!(ran("x = 41")["success"], true);
    let again = ran("x + 1");
    assert_eq!(again["outputData"]["results"][0]["text"], "42", "{again}");
    disable(&playground, "core:*");
    let refused = ran("x + 1");
    assert_eq!(refused["error"]["type"], "AuthorizationError", "{refused}");
    wait_for("the session ends", || open() == 0);
    enable(&playground, "core:*");
    let empty = ran("x");
    assert_eq!(empty["outputData"]["error"]["name"], "NameError", "{empty}");
    // Code that takes no interruption ends with its session.
    let code = "import time\nopen('/tmp/call/output/runs', 'w').close()\nwhile True:\n    try:\n        \
                time.sleep(600)\n    except BaseException:\n        pass\n";
    let path = "/v1/tools/core:run-code/calls";
    let stream = web.send("POST", path, &[], &body(code).to_string());
    let runs = || {
        let answer = web.get("/v1/calls", &[]).json();
        let calls = answer["calls"].as_array().unwrap();
        calls.iter().any(|call| call["phase"] == "running")
    };
    wait_for("it runs", runs);
    disable(&playground, "core:run-code");
    assert!(runs(), "the control: it goes on");
    end_now(&playground, "core:run-code");
    let ended = said(stream).json();
    assert_eq!(ended["error"]["type"], "AuthorizationError", "{ended}");
    wait_for("its session ends", || open() == 0);
}

#[test]
fn a_process_that_waits_for_its_call_is_gone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = format!("import json, sys\nsys.stdin.read()\nprint(json.dumps('{WORKED}'))\n");
    playground.tool(
        "mark",
        "python",
        &script,
        json!({"execution": {"ready": true}}),
    );
    playground.policy("mark", "esc:mark", "[ready]\nwhy = \"a test\"\n");
    playground.settle();
    let web = Web::start(&playground, &[]);
    let waiting = |count: usize| {
        wait_for(&format!("{count} processes wait"), || {
            let answer = web.get("/v1/calls", &[]).json();
            answer["ready"].as_array().unwrap().len() == count
        });
    };
    waiting(1);
    playground.runs("user_scripts/mark/main.py", 1);
    disable(&playground, "esc:mark");
    waiting(0);
    playground.runs("user_scripts/mark/main.py", 0);
    assert!(by_http(&web, "esc:mark").contains(OFF));
    enable(&playground, "esc:mark");
    waiting(1);
    assert!(by_http(&web, "esc:mark").contains(WORKED));
}

/// Every command of docs/TROUBLESHOOTING.md runs as written, in a copy of what is shipped.
#[test]
fn the_steps_of_the_document_run_as_written() {
    let playground = shipped::playground(Who::ours());
    let text = section_of("docs/TROUBLESHOOTING.md", "A tool did what it should not");
    let mut program =
        "set -euo pipefail\ntoolhost call reports:write name=a rows='[{\"a\": 1}]'\n".to_owned();
    for rest in text.split("```bash\n").skip(1) {
        program += rest.split_once("\n```").unwrap().0;
        program += "\necho =====\n";
    }
    let mut shell = playground.outside("/bin/bash");
    let path = format!("{}:{SEARCH_PATH}", binary().parent().unwrap().display());
    shell.args(["-c", &program]).env("PATH", path);
    shell.env("TOOLHOST_ROOT", &playground.base);
    shell.env("TOOLHOST_AUDIT_LOG", playground.path("state/audit.jsonl"));
    let ended = finish(shell, b"");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = ended.text();
    let steps: Vec<&str> = text.split("=====\n").collect();
    assert_eq!(steps.len(), 7, "{text}");
    assert!(steps[0].contains("until we know what happened"), "{text}");
    assert!(
        steps[1].contains(OFF) && steps[1].contains("\"success\""),
        "{text}"
    );
    assert!(steps[2].contains("unavailable here now"), "{text}");
    assert!(steps[5].contains("its token is not changed yet"), "{text}");
    assert!(!steps[5].contains("what happened"), "{text}");
}
