//! Code that calls tools: what it may call, what each call is held to, and what it leaves, judged
//! from outside.

use crate::http::Web;
use crate::prelude::*;
use crate::requirements::says;

const NAMED: &str = "[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }]\n";
const QUERY: &str = "import json, sys\nasked = json.load(sys.stdin)\nif asked.get('table') == 'none':\n    \
                     sys.exit(3)\nprint(json.dumps([asked.get('table'), asked.get('n', 0) + 1]))\n";

fn any() -> Value {
    json!({"type": "object", "properties": {
        "table": {"type": "string", "description": "d"}, "n": {"type": "integer", "description": "d"}}})
}

/// A host with `data:query`, `data:write`, which may write, and `other:query`, and a policy that lets
/// `esc:*` call `data:*`.
fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let more = json!({"parameters": any()});
    playground.tool_at(
        "data:query",
        "python",
        "data/query/main.py",
        QUERY,
        more.clone(),
    );
    playground.tool_at("other:query", "python", "other/query/main.py", QUERY, more);
    let writes = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["./out/"]}}});
    let script = "open('out/x', 'w').write('x')\nprint(1)\n";
    let folder = playground.tool_at("data:write", "python", "data/write/main.py", script, writes);
    fs::create_dir_all(folder.join("out")).unwrap();
    playground.allow("writes", "data:write", &["./**"], &["./out/**"]);
    playground.policy("esc", "esc:*", NAMED);
    playground
}

/// A tool `esc:NAME` with this code, which calls these tools.
fn caller(playground: &Playground, name: &str, calls: &[&str], code: &str) {
    playground.tool(
        name,
        "python",
        code,
        json!({"calls": calls, "parameters": any()}),
    );
    playground.settle();
}

/// Prints the result of an expression, or the type of the error.
fn tries(expression: &str) -> String {
    format!(
        "import json, toolhost\ntry:\n    print(json.dumps({expression}))\nexcept toolhost.ToolError as e:\n    \
         print(json.dumps(e.type))\n"
    )
}

#[test]
fn values_come_back_and_errors_are_raised() {
    let playground = playground(Who::ours());
    let code = "import asyncio, json, sys, toolhost\nasked = json.load(sys.stdin)\nrows = await \
                data_query(table='orders')\nall = await asyncio.gather(*[data_query(n=n) for n in range(10)])\n\
                more = [toolhost.call('data:query', {'n': 4}), await tools.call('data:query@1.0.0', n=6)]\ntry:\n    \
                await data_query(table='none')\nexcept toolhost.ToolError as e:\n    \
                more += [e.type, e.retryable]\ntry:\n    await data_query(n='x')\nexcept toolhost.ToolError as e:\n    \
                more += [e.type]\nprint(json.dumps([asked, rows, [n for _, n in all], more, __name__, sys.argv]))\n";
    let limits = "[limits]\ntimeout_ms = 120_000\n";
    playground.policy("parent", "esc:parent", &format!("{limits}{NAMED}"));
    caller(&playground, "parent", &["data:*"], code);
    let ended = playground.call("esc:parent", r#"{"n": 1}"#);
    let script = playground.path("user_scripts/parent/main.py");
    let output = &ended.out["outputData"];
    let numbers: Vec<u64> = (1..=10).collect();
    assert_eq!(output[0], json!({"n": 1}), "{ended:?}");
    assert_eq!(output[1], json!(["orders", 1]));
    assert_eq!(output[2], json!(numbers));
    let more = json!([
        [null, 5],
        [null, 7],
        "ScriptError",
        false,
        "ParameterValidationError"
    ]);
    assert_eq!(output[3], more);
    assert_eq!(
        (&output[4], &output[5]),
        (&json!("__main__"), &json!([script]))
    );
    let records = playground.records();
    let parent = records
        .iter()
        .rfind(|it| it["tool"] == "esc:parent")
        .unwrap();
    let nested: Vec<_> = records
        .iter()
        .filter(|it| it["tool"] == "data:query")
        .collect();
    assert!(nested.len() >= 15, "{records:?}");
    assert!(
        nested
            .iter()
            .all(|it| it["parent"] == parent["call"] && it["user"] == parent["user"])
    );
    playground.assert_quiet("the call");
}

#[test]
fn an_entry_point_and_threads_call_too_and_a_traceback_shows_no_frame_of_ours() {
    let playground = playground(Who::ours());
    let code = "import threading, toolhost\nasync def run(table):\n    got = []\n    threads = \
                [threading.Thread(target=lambda n=n: got.append(toolhost.call('data:query', n=n)[1])) for n in \
                range(3)]\n    [thread.start() for thread in threads]\n    [thread.join() for thread in threads]\n    \
                toolhost.progress(1)\n    return [sorted(got), await data_query(table=table)]\n";
    let more =
        json!({"calls": ["data:query"], "handler": {"entryPoint": "run"}, "parameters": any()});
    playground.tool("entry", "python", code, more);
    caller(
        &playground,
        "fails",
        &["data:query"],
        "async def ask():\n    await data_query(table='none')\nawait ask()\n",
    );
    playground.expect("esc:entry", r#"{"table": "t"}"#, r#"ok [[1,2,3],["t",1]]"#);
    let ended = playground.call("esc:fails", "{}");
    let logs = ended.out["logs"].to_string();
    assert!(
        logs.contains("line 3, in <module>") && logs.contains("line 2, in ask"),
        "{logs}"
    );
    assert!(
        logs.contains("ToolError: ScriptError") && !logs.contains("/.toolhost/"),
        "{logs}"
    );
}

#[test]
fn code_of_a_caller_calls_the_tools_that_it_names() {
    let playground = playground(Who::ours());
    let core =
        "[limits]\nnested_calls = 3\n[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }]\n";
    playground.policy("core", "core:run-code", core);
    playground.settle();
    let run = |tools: Value, code: &str| {
        let input = json!({"language": "python", "code": code, "tools": tools});
        playground.call("core:run-code", &input.to_string())
    };
    let ended = run(json!(["data:query"]), "print((await data_query(n=2))[1])");
    assert_eq!(ended.out["outputData"], 3, "{ended:?}");
    // A model knows the tool by another name, and may use that, too.
    for (name, function) in [
        ("data__query", "data__query"),
        ("data__query", "data_query"),
        ("data:query", "data__query"),
    ] {
        let ended = run(json!([name]), &format!("print((await {function}(n=2))[1])"));
        assert_eq!(ended.out["outputData"], 3, "{ended:?}");
    }
    // Code that uses a tool without naming it is told what is missing, for tools that it may call.
    for code in ["await data_query(n=2)", "print(data__query)"] {
        let error = run(json!([]), code).out["error"].to_string();
        assert!(error.contains("tools\\\": [\\\"data:query"), "{error}");
    }
    let error = run(json!([]), "await other_query(n=2)").out["error"].to_string();
    assert!(!error.contains("other:query"), "{error}");
    let node = json!({"language": "nodejs", "tools": ["data__query"],
        "code": "console.log((await data__query({ n: 2 }))[1], (await data_query({ n: 3 }))[1]);"});
    playground.expect("core:run-code", &node.to_string(), "ok \"3 4\"");
    let node = json!({"language": "nodejs", "code": "data_query({ n: 2 });"});
    let error = playground.call("core:run-code", &node.to_string());
    assert!(error.out.to_string().contains("data:query"), "{error:?}");
    let flood = "import toolhost\nkinds = []\nfor n in range(6):\n    try:\n        \
                 kinds.append(toolhost.call('data:query', n=n)[1])\n    except toolhost.ToolError as e:\n        \
                 kinds.append(e.type)\nprint(kinds)\n";
    let ended = run(json!(["data:query"]), flood);
    let refused = "'ResourceLimitError', 'ResourceLimitError', 'ResourceLimitError'";
    let output = ended.out["outputData"].to_string();
    assert!(
        output.contains(&format!("[1, 2, 3, {refused}]")),
        "{output}"
    );
    for (tools, kind) in [
        (json!(["other:query"]), "SecurityError"),
        (json!(["data:missing"]), "SecurityError"),
        (json!("data:query"), "ParameterValidationError"),
    ] {
        assert_eq!(run(tools.clone(), "print(1)").error().0, kind, "{tools}");
    }
    let narrowed = run(json!(["data:query"]), &tries("toolhost.call('data:write')"));
    assert_eq!(narrowed.out["outputData"], "SecurityError");
    let stubs = "import os\nprint(open(os.environ['TOOL_STUBS']).read())";
    let stubs = run(json!(["data:query"]), stubs).out["outputData"].to_string();
    let typed =
        |stubs: &str| stubs.contains("async def data_query(*, ") && stubs.contains("n: int = ...");
    assert!(typed(&stubs), "{stubs}");
    let place = "import os\nprint(sorted(os.listdir('/tmp/call')), os.environ['TOOL_STUBS'])";
    let place = run(json!(["data:query"]), place).out["outputData"].to_string();
    assert!(
        place.contains("'tools.pyi'] /tmp/call/tools.pyi"),
        "{place}"
    );
    // The same for the text that a model reads.
    for (format, wanted) in [
        ("python-stubs", "async def data_query(*, "),
        ("typescript-stubs", "declare function data_query(given: {"),
    ] {
        let list = ["list", "--namespace", "data", "--format", format];
        let listed = playground.cli(&list).text();
        assert!(listed.contains(wanted), "{listed}");
        assert!(!listed.contains("other_query"), "{listed}");
    }
    // Each call that lacks a package is told the command that adds some.
    let lacks = run(json!([]), "import not_here");
    assert!(
        lacks.out["error"]
            .to_string()
            .contains("toolhost deps lock core:run-code --preset data-python"),
        "{lacks:?}"
    );
    // Without names there is no channel: the descriptors of a tool are the three. `await` works all
    // the same, and `toolhost` says what is missing.
    let open = "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])";
    let shown = format!("import toolhost\n{open}");
    for code in [open, &shown] {
        assert_eq!(run(json!([]), code).out["outputData"], json!([0, 1, 2]));
    }
    let awaits = "import asyncio\nawait asyncio.sleep(0)\nprint(1)";
    assert_eq!(run(json!([]), awaits).out["outputData"], 1);
    let none = tries("toolhost.call('data:query')");
    assert_eq!(run(json!([]), &none).out["outputData"], "SecurityError");
    let node = "const { call } = require('toolhost');\nawait null;\ntry {\n  await call('data:query');\n} \
                catch (e) {\n  console.log(JSON.stringify([e.type, e.message.includes('`tools`')]));\n}\n";
    let node = json!({"language": "nodejs", "code": node});
    playground.expect(
        "core:run-code",
        &node.to_string(),
        r#"ok ["SecurityError",true]"#,
    );
    let open = "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])";
    assert_eq!(run(json!([]), open).out["outputData"], json!([0, 1, 2]));
    assert_eq!(
        run(json!(["data:query"]), open).out["outputData"],
        json!([0, 1, 2, 3, 4])
    );
}

#[test]
fn a_script_that_does_not_say_which_tools_it_calls_is_told_what_to_write() {
    let playground = playground(Who::ours());
    caller(&playground, "silent", &[], "print(data_query)");
    let ended = playground.cli(&["call", "esc:silent", "--json"]);
    fits("ScriptError: not defined", &ended).unwrap();
    let wanted = "\"calls\": [\"data:query\"] in ";
    assert!(ended.stderr.contains(wanted), "{ended:?}");
}

#[test]
fn nothing_is_widened() {
    for who in Who::all() {
        let playground = playground(who);
        for (name, expression) in [
            ("outside", "toolhost.call('other:query')"),
            ("missing", "toolhost.call('no:such')"),
            ("writes", "toolhost.call('data:write')"),
            ("allowed", "toolhost.call('data:query')"),
        ] {
            caller(&playground, name, &["data:*"], &tries(expression));
        }
        let refused = r#"ok "SecurityError""#;
        playground.expect("esc:outside", "{}", refused);
        playground.expect("esc:missing", "{}", refused);
        playground.expect("esc:writes", "{}", refused);
        playground.expect("esc:allowed", "{}", "ok [null,1]");
        let written = playground.path("user_scripts/data/write/out/x");
        assert!(!written.exists(), "{who:?}");
        // A manifest that asks for more than the policy allows is refused as a whole.
        caller(&playground, "greedy", &["data:*", "other:*"], &tries("1"));
        assert_eq!(
            playground.call("esc:greedy", "{}").error().0,
            "SecurityError"
        );
        // Control: by its exact id.
        let named = "[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }, { tool = \"data:write\", why = \"w\" }]\n";
        playground.policy("esc", "esc:*", named);
        caller(
            &playground,
            "writes",
            &["data:*"],
            &tries("toolhost.call('data:write')"),
        );
        playground.expect("esc:writes", "{}", "ok 1");
        assert!(written.exists(), "{who:?}");
        // Nobody's code calls what its caller may not call, or what nobody can agree to.
        let own = "[[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"esc:*\", \"data:write\"]\n";
        fs::write(playground.path("sandbox-policies/callers.policy.toml"), own).unwrap();
        playground.settle();
        playground.expect("esc:allowed", "{}", refused);
        let none = own.replace(", \"data:write\"", "");
        fs::write(
            playground.path("sandbox-policies/callers.policy.toml"),
            none,
        )
        .unwrap();
        playground.settle();
        playground.expect("esc:allowed", "{}", refused);
        fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
        playground.policy("asks", "data:query", "confirm = \"w\"\n");
        playground.settle();
        playground.expect("esc:allowed", "{}", r#"ok "AuthorizationError""#);
    }
}

/// Does to the letter what the newest refusal says. Returns the tools that its arguments must name.
fn follow(playground: &Playground) -> Vec<Value> {
    let records = playground.records();
    let mut notes = records.iter().rev().map(|it| it["notes"].clone());
    let advice = notes.find(|it| it.to_string().contains(" with all of:"));
    let advice = advice.unwrap_or_else(|| panic!("no advice: {records:?}"));
    let mut parts = advice
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap().trim());
    assert!(parts.any(|it| it.ends_with(" with all of:")));
    let mut tools = Vec::new();
    for part in parts {
        if let Some((entry, file)) = part.split_once(" in `allow` of [calls] in ") {
            let mut text = fs::read_to_string(file).unwrap();
            if !text.contains("[calls]") {
                text += "[calls]\nallow = []\n";
            }
            let at = text.find("allow = [").unwrap() + "allow = [".len();
            text.insert_str(at, &format!("{entry}, "));
            fs::write(file, text).unwrap();
        } else if let Some((list, file)) = part.split_once(" in /") {
            let file = format!("/{file}");
            let list: Value = serde_json::from_str(&format!("{{{list}}}")).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let mut manifest: Value = serde_json::from_str(&text).unwrap();
            let calls = manifest["calls"].as_array_mut().unwrap();
            calls.extend(list["calls"].as_array().unwrap().clone());
            fs::write(&file, manifest.to_string()).unwrap();
        } else {
            let list = part
                .strip_suffix(" in its arguments")
                .unwrap_or_else(|| panic!("{advice}"));
            let list: Value = serde_json::from_str(&format!("{{{list}}}")).unwrap();
            tools.extend(list["tools"].as_array().unwrap().clone());
        }
    }
    playground.settle();
    tools
}

#[test]
fn the_advice_for_a_refused_call_works_as_printed() {
    let playground = playground(Who::ours());
    let allow = |tool: &str| format!("[calls]\nallow = [{{ tool = \"{tool}\", why = \"w\" }}]\n");
    let host = playground.path("sandbox-policies/host.policy.toml");
    // What the policy, the host's own and the manifest say.
    for (own, cap, calls) in [
        ("data:*", None, "data:*"),
        ("data:*", None, "data:query"),
        ("data:query", None, "data:query"),
        ("data:write", Some("*"), "data:write"),
        ("data:*", Some("data:*"), "data:query"),
    ] {
        playground.policy("esc", "esc:*", &allow(own));
        let _ = fs::remove_file(&host);
        if let Some(cap) = cap {
            let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./**\", why = \"w\" }]\n";
            let text = format!("name = \"host\"\nwhy = \"w\"\n{files}{}", allow(cap));
            fs::write(&host, text).unwrap();
        }
        caller(
            &playground,
            "writes",
            &[calls],
            &tries("toolhost.call('data:write')"),
        );
        playground.expect("esc:writes", "{}", r#"ok "SecurityError""#);
        assert_eq!(follow(&playground), [] as [Value; 0]);
        playground.expect("esc:writes", "{}", "ok 1");
    }
    fs::remove_file(&host).unwrap();
    // Source text: a tool that it does not name, and one that it names and policy does not allow.
    let run = |tools: &[Value]| {
        let code = tries("toolhost.call('data:write')");
        let input = json!({"language": "python", "code": code, "tools": tools});
        playground.call("core:run-code", &input.to_string())
    };
    playground.policy("core", "core:run-code", &allow("data:*"));
    playground.settle();
    assert_eq!(
        run(&[json!("data:query")]).out["outputData"],
        "SecurityError"
    );
    let tools = follow(&playground);
    assert_eq!(run(&tools).out["outputData"], 1, "{tools:?}");
    playground.policy("core", "core:run-code", &allow("data:query"));
    playground.settle();
    let refused = run(&tools);
    assert_eq!(refused.error().0, "SecurityError");
    assert!(
        refused.stderr.contains("{ tool = \"data:write\", why = "),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains("in its arguments"), "{refused:?}");
}

/// A host of one slot, where a person is asked about `data:pay`, which `esc:*` may call.
fn asking(limit_ms: u64) -> (Playground, Web) {
    let playground = playground(Who::ours());
    let more = json!({"parameters": any()});
    playground.tool_at("data:pay", "python", "data/pay/main.py", QUERY, more);
    playground.policy("pay", "data:pay", "confirm = \"it spends money\"\n");
    let limits = format!("[limits]\ntimeout_ms = {limit_ms}\n");
    playground.policy("esc", "esc:*", &(limits.clone() + NAMED));
    let outer = "[calls]\nallow = [{ tool = \"esc:buys\", why = \"w\" }]\n";
    playground.policy("outer", "esc:outer", &(limits + outer));
    fs::write(playground.path("one.toml"), "running_calls = 1\n").unwrap();
    let buys = "import json\nprint(json.dumps([(await data_pay(n=n))[1] for n in (1, 2)]))\n";
    caller(&playground, "buys", &["data:pay"], buys);
    let outer = "import json\nprint(json.dumps(await esc_buys()))\n";
    caller(&playground, "outer", &["esc:buys"], outer);
    caller(&playground, "sleeps", &[], "import time\ntime.sleep(600)\n");
    let many = "import json, toolhost\ngot = []\nfor n in range(22):\n    try:\n        \
                got.append((await data_pay(n=n))[1])\n    except toolhost.ToolError as e:\n        \
                got.append(e.type)\nprint(json.dumps(got))\n";
    caller(&playground, "many", &["data:pay"], many);
    let mut host = playground.host();
    let config = playground.path("one.toml").display().to_string();
    host.args(["--config", &config, "serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(host, playground.who.uid()).unwrap();
    (playground, web)
}

fn questions(web: &Web) -> Vec<Value> {
    let answer = web.get("/v1/approvals", &[]).json();
    answer["approvals"].as_array().unwrap().clone()
}

/// Calls a tool. Each question about its code gets the next answer, after `meanwhile`.
fn answered(web: &Web, tool: &str, answers: &[bool], meanwhile: impl Fn(&Value)) -> Value {
    std::thread::scope(|scope| {
        let call = scope.spawn(|| web.call(tool, &json!({}), &[]).json());
        for yes in answers {
            wait_for("a question", || questions(web).len() == 1);
            let question = questions(web).remove(0);
            meanwhile(&question);
            let path = format!("/v1/approvals/{}", question["call"].as_str().unwrap());
            let body = json!({"approve": yes}).to_string();
            assert_eq!(web.ask("POST", &path, &[], &body).status, 200);
            wait_for("it counts", || {
                questions(web)
                    .iter()
                    .all(|it| it["call"] != question["call"])
            });
        }
        call.join().unwrap()
    })
}

#[test]
fn while_a_person_is_asked_the_code_stands_still_and_its_slot_is_free() {
    let (playground, web) = asking(20_000);
    let stopped = |script: &str| {
        let script = playground.path(script).display().to_string();
        let all = processes_of(&script);
        let state = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !all.is_empty() && all.iter().all(|(pid, _)| state(*pid).contains(") T "))
    };
    let all = || {
        ["buys", "outer"]
            .iter()
            .all(|name| stopped(&format!("user_scripts/{name}/main.py")))
    };
    let ended = answered(&web, "esc:outer", &[true], |question| {
        let code = &question["code"];
        assert_eq!(
            (&code["tool"], &code["calls"]),
            (&json!("esc:buys@1.0.0"), &json!(20)),
            "{question}"
        );
        let script = fs::read(playground.path("user_scripts/buys/main.py")).unwrap();
        assert_eq!(code["digest"], toolhost::base::sha256_hex(&script));
        assert_eq!(question["arguments"], "{\"n\":1}");
        wait_for("its code and that before it are stopped", all);
        // The control: a call of the same limit, in the one slot of this host.
        let other = web.call("esc:sleeps", &json!({}), &[]).json();
        assert_eq!(other["error"]["type"], "TimeoutError", "{other}");
        assert!(all());
    });
    assert_eq!(ended["outputData"], json!([2, 3]), "{ended}");
    let audit = web.get("/v1/tools/esc:outer/audit", &[]).json();
    assert!(
        audit["reaches"].to_string().contains("through data:pay"),
        "{audit}"
    );
    let records = playground.records();
    let paid = records.iter().filter(|it| it["tool"] == "data:pay");
    assert!(
        paid.clone().all(|it| it["approvedBy"].is_string()),
        "{records:?}"
    );
    assert_eq!(paid.count(), 2);
}

/// A session stands still, too, and goes on after the answer and where its call is cancelled.
#[test]
fn while_a_person_is_asked_a_session_stands_still() {
    let (playground, web) = asking(20_000);
    let sessions = "sessions = { max = 2, idle_ms = 600_000, why = \"w\" }\n";
    let named = NAMED.replace("data:*", "data:pay");
    playground.policy("core", "core:run-code", &format!("{sessions}{named}"));
    playground.settle();
    web.signal(Signal::SIGHUP);
    let body = |code: &str| {
        let input = json!({"language": "python", "session": "a", "timeoutMs": 5_000,
            "tools": ["data:pay"], "code": code});
        json!({ "arguments": input })
    };
    let run = |code: &str| web.call("core:run-code", &body(code), &[]).json();
    wait_for("it may have sessions", || run("x = 1")["success"] == true);
    let answer = |call: &Value| {
        let path = format!("/v1/approvals/{}", call.as_str().unwrap());
        let yes = json!({"approve": true}).to_string();
        assert_eq!(web.ask("POST", &path, &[], &yes).status, 200);
    };
    std::thread::scope(|scope| {
        let call = scope.spawn(|| run("x = await data_pay(n=1)\nx"));
        wait_for("a question", || questions(&web).len() == 1);
        // Longer than its time, and its slot is free.
        std::thread::sleep(Duration::from_secs(6));
        let other = web.call("data:query", &json!({}), &[]).json();
        assert_eq!(other["success"], true, "the control: {other}");
        answer(&questions(&web)[0]["call"]);
        let paid = call.join().unwrap();
        let shown = &paid["outputData"]["results"][0]["text"];
        assert_eq!(shown, "[None, 2]", "{paid}");
    });
    let path = "/v1/tools/core:run-code/calls";
    let cancelled = web.send("POST", path, &[], &body("await data_pay(n=2)").to_string());
    wait_for("a question", || questions(&web).len() == 1);
    drop(cancelled);
    wait_for("nobody is asked", || questions(&web).is_empty());
    let kept = run("x");
    assert_eq!(
        kept["outputData"]["results"][0]["text"], "[None, 2]",
        "{kept}"
    );
    assert_eq!(kept["outputData"]["session"]["new"], false, "{kept}");
}

#[test]
fn a_person_is_asked_once_for_each_program_and_again_beyond_the_bound() {
    let (playground, web) = asking(300_000);
    let paid: Vec<u64> = (1..=22).collect();
    let ended = answered(&web, "esc:many", &[true, true], |_| {});
    assert_eq!(ended["outputData"], json!(paid), "{ended}");
    let ended = answered(&web, "esc:many", &[false], |_| {});
    assert_eq!(
        ended["outputData"],
        json!(["AuthorizationError"].repeat(22)),
        "{ended}"
    );
    // Whoever waits for a person ends with its host.
    let _client = web.send("POST", "/v1/tools/esc:buys/calls", &[], "{}");
    wait_for("a question", || questions(&web).len() == 1);
    web.signal(Signal::SIGKILL);
    playground.assert_quiet("a host that was killed");
}

/// Code that writes to its channel itself. `{}`: what it writes, an expression of bytes.
fn forger(written: &str) -> String {
    format!(
        "import os, sys, time\nsent = {written}\nwhile sent:\n    sent = sent[os.write(4, sent):]\ntime.sleep(25)\n\
         print('\"went on\"')\n"
    )
}

#[test]
fn forged_frames_end_the_call_and_nothing_else() {
    let playground = playground(Who::ours());
    let good = "b'{\"message\": {\"id\": 1, \"tool\": \"data:query\"}, \"bytes\": 2}\\n{}'";
    for (name, written) in [
        ("garbage", "b'\\x00\\xff' * 50 + b'\\n'"),
        ("endless", "b'x' * 10_000_000"),
        (
            "huge",
            "b'{\"message\": {\"id\": 1, \"tool\": \"data:query\"}, \"bytes\": 1073741824}\\n'",
        ),
        (
            "negative",
            "b'{\"message\": {\"id\": 1, \"tool\": \"data:query\"}, \"bytes\": -1}\\n'",
        ),
        (
            "another",
            "b'{\"message\": {\"id\": 1, \"tool\": \"data:query\", \"user\": \"root\"}, \"bytes\": 2}\\n{}'",
        ),
        (
            "bytes",
            "b'{\"message\": {\"id\": 1, \"tool\": \"data:query\"}, \"bytes\": 2}\\n\\xff\\xff'",
        ),
    ] {
        caller(&playground, name, &["data:*"], &forger(written));
        let began = Stopwatch::start();
        playground.expect(
            &format!("esc:{name}"),
            "{}",
            "ScriptError: its call of a tool cannot be read",
        );
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{name}: it went on"
        );
        playground.assert_quiet(name);
    }
    // What is not forged goes on: half a frame, a closed channel, a frame of a child process.
    let code = forger("b'{\"message\":'").replace("sleep(25)", "sleep(0.3)");
    caller(&playground, "half", &["data:*"], &code);
    playground.expect("esc:half", "{}", r#"ok "went on""#);
    caller(
        &playground,
        "closed",
        &["data:*"],
        "import os\nos.close(4)\nos.close(3)\nprint(1)\n",
    );
    playground.expect("esc:closed", "{}", "ok 1");
    let child = format!(
        "import os, sys\nif os.fork() == 0:\n    os.write(4, {good})\n    os._exit(0)\nos.wait()\n\
                         print(1)\n"
    );
    caller(&playground, "child", &["data:*"], &child);
    playground.expect("esc:child", "{}", "ok 1");
}

/// A tool that calls itself with one more, and gathers as many.
const TREE: &str = "import asyncio, json, sys, toolhost\nasked = json.load(sys.stdin)\nn = asked['n']\ntry:\n    \
                    below = await asyncio.gather(*[esc_tree(n=n + 1) for _ in range(10 if n == 0 else 1)])\n\
                    except toolhost.ToolError as e:\n    below = [e.type]\nprint(json.dumps([n, below]))\n";

#[test]
fn a_host_of_one_slot_runs_calls_four_deep_and_ten_at_once() {
    let playground = playground(Who::ours());
    let limits =
        "[limits]\ntimeout_ms = 120_000\n[calls]\nallow = [{ tool = \"esc:tree\", why = \"w\" }]\n";
    playground.policy("tree", "esc:tree", limits);
    caller(&playground, "tree", &["esc:tree"], TREE);
    fs::write(playground.path("one.toml"), "running_calls = 1\n").unwrap();
    playground.settle();
    let config = playground.path("one.toml").display().to_string();
    let mut host = playground.host();
    host.args([
        "--config",
        &config,
        "call",
        "esc:tree",
        "--json",
        "--input",
        r#"{"n": 0}"#,
    ]);
    let ended = finish(host, b"");
    let output = &ended.out["outputData"];
    assert_eq!(output[1].as_array().map(Vec::len), Some(10), "{ended:?}");
    let deepest = output.pointer("/1/9/1/0/1/0/1/0").unwrap_or(&Value::Null);
    assert_eq!(*deepest, json!([4, ["ResourceLimitError"]]), "{output}");
    playground.assert_quiet("the tree");
}

#[test]
fn a_nested_call_ends_with_its_parent() {
    for who in Who::both() {
        let playground = playground(who);
        let slow = "import time\ntime.sleep(60)\nprint(1)\n";
        playground.tool_at("data:slow", "python", "data/slow/main.py", slow, json!({}));
        caller(&playground, "waits", &["data:slow"], "await data_slow()\n");
        let limits = format!("[limits]\ntimeout_ms = 1_500\n{NAMED}");
        playground.policy("late", "esc:late", &limits);
        // What its code would make of the answer does not count: its time is over.
        let code = "import toolhost\ntry:\n    await data_slow()\nexcept toolhost.ToolError as e:\n    print(1)\n";
        caller(&playground, "late", &["data:slow"], code);
        let began = Stopwatch::start();
        playground.expect("esc:late", "{}", "TimeoutError");
        assert!(began.elapsed() < Duration::from_secs(6));
        playground.assert_quiet("a call that was late");
        // The tool itself is killed, the client gives up, the host is killed.
        let slow = || {
            let mut records = playground.records();
            records.retain(|it| it["tool"] == "data:slow");
            records
        };
        let before = slow().len();
        let mut server = Server::start(&playground);
        let id = server.call("esc:waits", json!({}));
        playground.runs("user_scripts/data/slow/main.py", 1);
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
        within(Duration::from_secs(10), "the nested call is gone", || {
            processes_of(&playground.path("user_scripts").display().to_string()).is_empty()
        });
        wait_for("its record", || slow().len() > before);
        let nested = slow().pop().unwrap();
        assert_eq!(nested["outcome"], "CancelledError", "{nested}");
        server.call("esc:waits", json!({}));
        playground.runs("user_scripts/data/slow/main.py", 1);
        drop(server);
        playground.assert_quiet("a host that was killed");
    }
}

#[test]
fn limits_of_callers_and_tools_hold_for_nested_calls() {
    let playground = playground(Who::ours());
    let rules = format!(
        "[[caller]]\nname = \"{}\"\nwhy = \"w\"\ntools = [\"*\"]\ncalls_per_minute = 30\n[[limit]]\ntools = [\"data:query\"]\nwhy = \
         \"w\"\ncalls_per_minute = 1\n[[limit]]\ntools = [\"data:one\"]\nwhy = \"w\"\nat_once = 1\n",
        crate::callers::me(playground.who)
    );
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        rules,
    )
    .unwrap();
    let counts = "import os, time\nbegan = time.time()\ntime.sleep(0.4)\nimport json\nprint(json.dumps([began, \
                  time.time()]))\n";
    playground.tool_at("data:one", "python", "data/one/main.py", counts, json!({}));
    let code = "import json, toolhost\nkinds = []\nfor n in range(5):\n    try:\n        toolhost.call('data:query')\n    \
                except toolhost.ToolError as e:\n        kinds.append([e.type, e.retryable])\nprint(json.dumps(kinds))\n";
    caller(&playground, "often", &["data:*"], code);
    let code = "import asyncio, json\nprint(json.dumps(sorted(await asyncio.gather(*[data_one() for _ in \
                range(3)]))))\n";
    caller(&playground, "once", &["data:*"], code);
    let code = "import toolhost\nfor n in range(40):\n    try:\n        toolhost.call('other:query')\n    \
                except toolhost.ToolError as e:\n        kind = e.type\nprint(f'\"{kind}\"')\n";
    caller(&playground, "asks", &["data:*"], code);
    let mut server = Server::start(&playground);
    // What it may not call uses up nothing of its caller's.
    let told = words(&server.called("esc:asks", json!({})));
    assert!(told.contains("SecurityError"), "{told}");
    let refused = Value::Array(vec![json!(["RateLimitError", true]); 4]);
    let told = words(&server.called("esc:often", json!({})));
    assert_eq!(
        serde_json::from_str::<Value>(&told).ok(),
        Some(refused),
        "{told}"
    );
    let direct = words(&server.called("data:query", json!({})));
    assert!(
        direct.contains("RateLimitError"),
        "one count for both ways: {direct}"
    );
    let told = words(&server.called("esc:once", json!({})));
    let times: Vec<[f64; 2]> =
        serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}"));
    assert!(
        times.windows(2).all(|pair| pair[0][1] <= pair[1][0]),
        "one at a time: {told}"
    );
}

#[test]
fn reports_show_what_code_reaches_through_other_tools() {
    let playground = playground(Who::ours());
    let named = "[calls]\nallow = [{ tool = \"esc:middle\", why = \"w\" }, { tool = \"data:write\", why = \"w\" }]\n";
    playground.policy("esc", "esc:*", named);
    caller(&playground, "middle", &["data:write"], "print(1)\n");
    caller(&playground, "outer", &["esc:middle"], "print(1)\n");
    caller(&playground, "asks", &["other:query"], "print(1)\n");
    let out = playground
        .path("user_scripts/data/write/out")
        .display()
        .to_string();
    let who = playground
        .cli(&["audit", "--who-can", &format!("write:{out}")])
        .text();
    for tool in ["data:write@", "esc:middle@", "esc:outer@"] {
        assert!(who.contains(tool), "{who}");
    }
    assert!(!who.contains("data:query@"), "{who}");
    let callers = playground
        .cli(&["audit", "--who-can", "call:data:write"])
        .text();
    for line in [
        "esc:middle@1.0.0: from its code (",
        "esc:outer@1.0.0: from its code, through esc:middle@1.0.0 (",
    ] {
        assert!(callers.contains(line), "{callers}");
    }
    let both = json!({"calls": ["data:*", "data:write"], "parameters": any()});
    let allowed = format!("{NAMED}# {{ tool = \"data:write\", why = \"w\" }}\n");
    let allowed = allowed.replace("}]\n# ", "}, ") + "]\n";
    playground.policy("both", "esc:both", &allowed);
    playground.tool("both", "python", "print(1)\n", both);
    playground.settle();
    let audit = playground.cli(&["audit", "esc:both"]).text();
    let times = audit.matches("data:write from its code").count();
    assert_eq!(times, 1, "each once: {audit}");
    let audit = playground.cli(&["audit", "esc:outer"]).text();
    assert!(
        audit.contains("esc:middle from its code") && audit.contains(&out),
        "{audit}"
    );
    let suggested = playground
        .cli(&["audit", "esc:asks", "--suggest-policy"])
        .text();
    assert!(
        suggested.contains("{ tool = \"other:query\", why ="),
        "{suggested}"
    );
    let before = playground.cli(&["audit", "--all", "--json"]).text();
    fs::write(playground.path("before.json"), before).unwrap();
    playground.policy(
        "esc",
        "esc:*",
        &format!("{named}[files]\nread = []\n").replace("esc:middle", "esc:none"),
    );
    playground.settle();
    let after = playground.cli(&["audit", "--all", "--json"]).text();
    fs::write(playground.path("after.json"), after).unwrap();
    let diff = playground
        .cli(&["diff", "after.json", "before.json"])
        .text();
    assert!(diff.contains("esc:middle from its code"), "{diff}");
}

#[test]
fn allow_writes_calls_and_its_risk_is_what_the_called_tool_does() {
    let playground = playground(Who::ours());
    let allow = |more: &[&str], says: &str| {
        let mut command = playground.host();
        command.arg("allow").args(more);
        finish(command, says.as_bytes())
    };
    for name in ["query", "write"] {
        let code = tries(&format!("toolhost.call('data:{name}')"));
        caller(&playground, name, &[], &code);
    }
    let run = |name: &str| {
        let code = tries(&format!("toolhost.call('data:{name}')"));
        let input = json!({"language": "python", "code": code, "tools": [format!("data:{name}")]});
        playground.call("core:run-code", &input.to_string())
    };
    assert_eq!(run("query").error().0, "SecurityError");
    for tool in ["esc:query", "core:run-code"] {
        let ended = allow(&[tool, "--call", "data:query", "--yes"], "");
        assert_eq!(ended.code, Some(0), "{tool}: {}", ended.stderr);
    }
    playground.expect("esc:query", "{}", "ok [null,1]");
    assert_eq!(run("query").out["outputData"], json!([null, 1]));
    let out = playground
        .path("user_scripts/data/write/out")
        .display()
        .to_string();
    for tool in ["esc:write", "core:run-code"] {
        let ended = allow(&[tool, "--call", "data:write", "--yes"], "");
        let risk = ended
            .stderr
            .lines()
            .find(|line| line.contains("high risk: call data:write: "));
        assert!(
            risk.is_some_and(|line| line.contains(&out)),
            "{tool}: {}",
            ended.stderr
        );
        assert_ne!(ended.code, Some(0));
        let ended = allow(&[tool, "--call", "data:write"], "y\n");
        assert_eq!(ended.code, Some(0), "{tool}: {}", ended.stderr);
    }
    playground.expect("esc:write", "{}", "ok 1");
    assert_eq!(run("write").out["outputData"], 1);
}

#[test]
fn a_misspelt_tool_that_code_would_call_is_named() {
    let playground = playground(Who::ours());
    caller(&playground, "good", &["data:query"], "print(1)\n");
    let check = || {
        let ended = playground.cli(&["check"]);
        ended.text().matches("did you mean").count()
    };
    assert_eq!(check(), 0, "the control");
    caller(&playground, "bad", &["data:*", "data:querry"], "print(1)\n");
    let named = "[calls]\nallow = [{ tool = \"data:*\", why = \"w\" }, { tool = \"data:wriet\", why = \"w\" }]\n";
    playground.policy("esc", "esc:*", named);
    playground.settle();
    let told = playground.cli(&["check"]).text();
    for (name, meant, place) in [
        ("data:querry", "data:query", "bad.tool.json:"),
        ("data:wriet", "data:write", "esc.policy.toml:"),
    ] {
        let mut lines = lines_of_check(&told).into_iter();
        let line = lines.find(|line| line.contains(name) && line.contains(place));
        assert!(line.is_some_and(|line| line.contains(meant)), "{told}");
    }
    // A namespace that nobody has.
    caller(&playground, "bad", &["dta:*"], "print(1)\n");
    says(&playground, &["check"], &["'dta:*' names no loaded tool"]);
}

#[test]
fn node_calls_tools_too() {
    let playground = playground(Who::ours());
    playground.policy("core", "core:run-code", NAMED);
    playground.settle();
    let code = "const fs = require('node:fs');\nconst asked = JSON.parse(fs.readFileSync(0, 'utf8'));\nconst rows = \
                await data_query({ table: asked.table });\nconst all = await Promise.all([...Array(10).keys()].map((n) \
                => data_query({ n })));\nconst { call, ToolError } = require('toolhost');\nconst more = [await \
                tools.call('data:query', { n: 4 }), require.main === module];\ntry {\n  await data_query({ table: \
                'none' });\n} catch (e) {\n  more.push(e instanceof ToolError, e.type, e.retryable);\n}\ntry {\n  \
                await call('other:query');\n} catch (e) {\n  more.push(e.type);\n}\n\
                console.log(JSON.stringify([rows, all.map(([, n]) => n), more]));\n";
    let more = json!({"calls": ["data:query"], "parameters": any()});
    let limits = "[limits]\ntimeout_ms = 120_000\n";
    playground.policy("node", "esc:node", &format!("{limits}{NAMED}"));
    playground.tool("node", "nodejs", code, more.clone());
    let module = "import { readFileSync } from 'node:fs';\nconst { n } = JSON.parse(readFileSync(0, \
                  'utf8'));\nconsole.log(JSON.stringify(await toolhost.call('data:query', { n })));\n";
    playground.tool_at(
        "esc:module",
        "nodejs",
        "module/main.mjs",
        module,
        more.clone(),
    );
    let entry = "exports.run = async ({ n }) => (await data_query({ n }))[1];\n";
    let named =
        json!({"calls": ["data:query"], "parameters": any(), "handler": {"entryPoint": "run"}});
    playground.tool("entry", "nodejs", entry, named);
    playground.tool(
        "fails",
        "nodejs",
        "async function ask() {\n  await data_query({ table: 'none' });\n}\nawait \
                                        ask();\n",
        more,
    );
    playground.settle();
    let wanted = r#"[["t",1],[1,2,3,4,5,6,7,8,9,10],[[null,5],true,true,"ScriptError",false,"SecurityError"]]"#;
    playground.expect("esc:node", r#"{"table": "t"}"#, &format!("ok {wanted}"));
    playground.expect("esc:module", r#"{"n": 2}"#, "ok [null,3]");
    playground.expect("esc:entry", r#"{"n": 2}"#, "ok 3");
    let logs = playground.expect("esc:fails", "{}", "ScriptError").out["logs"].to_string();
    assert!(
        logs.contains("main.js:2") && !logs.contains("/.toolhost/"),
        "{logs}"
    );
    let code = "console.log((await data_query({ n: 1 }))[1])";
    let input = json!({"language": "nodejs", "code": code, "tools": ["data:query"]});
    playground.expect("core:run-code", &input.to_string(), "ok 2");
    let input = json!({"language": "bun", "code": "1", "tools": ["data:query"]});
    playground.expect(
        "core:run-code",
        &input.to_string(),
        "ParameterValidationError",
    );
}

/// A secret that code passes on stands in no record, log or answer.
#[test]
fn what_code_passes_on_stays_hidden() {
    let playground = playground(Who::ours());
    let grant = "[secrets]\ngrant = [{ name = \"SECRET\", from = \"env:SECRET\", why = \"w\" }]\n";
    playground.policy("secret", "esc:secret", &format!("{grant}{NAMED}"));
    let echo = "import json, sys\nasked = json.load(sys.stdin)\nprint(asked, file=sys.stderr)\nprint(json.dumps(asked))\n";
    playground.tool_at(
        "data:echo",
        "python",
        "data/echo/main.py",
        echo,
        json!({"parameters": any()}),
    );
    let code = "import json, os\ngot = await data_echo(table=os.environ['SECRET'])\nprint(json.dumps(len(got)))\n";
    let more = json!({"calls": ["data:echo"], "securityContext": {"requiredCapabilities": ["secret:SECRET"]}});
    playground.tool("secret", "python", code, more);
    playground.settle();
    playground.expect("esc:secret", "{}", "ok 1");
    let records = playground.records();
    let nested = records.iter().find(|it| it["tool"] == "data:echo").unwrap();
    assert!(
        nested["arguments"].to_string().contains("table"),
        "{nested}"
    );
    assert!(
        !json!(records).to_string().contains(&playground.secret),
        "{records:?}"
    );
}

#[test]
fn the_cap_of_the_host_narrows_calls_too() {
    let playground = playground(Who::ours());
    let named = "[calls]\nallow = [{ tool = \"data:query\", why = \"w\" }, { tool = \"data:write\", why = \"w\" }]\n";
    playground.policy("esc", "esc:*", named);
    caller(
        &playground,
        "reads",
        &["data:query"],
        &tries("toolhost.call('data:query')"),
    );
    caller(
        &playground,
        "writes",
        &["data:write"],
        &tries("toolhost.call('data:write')"),
    );
    let cap = |calls: &str| {
        let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./**\", why = \"w\" }]\n";
        let text = format!("name = \"host\"\nwhy = \"w\"\n{files}{calls}");
        fs::write(playground.path("sandbox-policies/host.policy.toml"), text).unwrap();
        playground.settle();
        ["reads", "writes"].map(|name| {
            let ended = playground.call(&format!("esc:{name}"), "{}");
            format!("{} {}", ended.kind(), ended.out["outputData"])
        })
    };
    let refused = "SecurityError null";
    assert_eq!(cap(""), [refused; 2]);
    let all = "[calls]\nallow = [{ tool = \"*\", why = \"w\" }]\n";
    assert_eq!(cap(all), ["none [null,1]", "none \"SecurityError\""]);
    assert_eq!(cap(named), ["none [null,1]", "none 1"], "control");
}
