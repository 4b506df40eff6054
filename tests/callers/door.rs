//! The door: what a caller may not call is not there for it, what it may not bring is refused, and no label is an
//! identity unless the file says so.

use super::{me, playground, put};
use crate::prelude::*;

const FILE: &str = r#"
[[caller]]
name = "ME"
why = "runs this host"
tools = ["*"]
role = "operator"
act_as = ["alice", "bob"]

[[caller]]
name = "alice"
why = "a test"
tools = ["a:one", "core:execute-python-script"]
parameters = [
  { tool = "core:execute-python-script", name = "scriptPath", under = "alice/", why = "her own" },
  { tool = "a:one", name = "n", min = 1, max = 3, why = "small" },
  { tool = "a:one", name = "n", values = [10], why = "or ten" },
]
"#;

fn as_alice(playground: &crate::harness::Playground, tool: &str, input: &Value) -> Ended {
    playground.call_with(tool, &input.to_string(), &["--user", "alice"])
}

#[test]
fn without_the_file_a_label_changes_nothing() {
    let who = Who::ours();
    let playground = playground(who, FILE);
    std::fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
    let told = as_alice(&playground, "b:one", &json!({"n": 99}));
    assert_eq!(told.out["outputData"], json!({"n": 99}), "{who:?}: {told:?}");
    let record = &playground.records()[0];
    assert_eq!((&record["user"], &record["label"]), (&json!(me(who)), &json!("alice")), "{who:?}");
    assert_eq!(record["through"], Value::Null);
}

#[test]
fn a_tool_that_a_caller_may_not_call_is_not_there() {
    let who = Who::ours();
    let playground = playground(who, FILE);
    assert_eq!(playground.call("b:one", "{}").out["success"], true, "{who:?}: control");
    let hidden = as_alice(&playground, "b:one", &json!({}));
    assert_eq!((hidden.code, hidden.kind()), (Some(2), "ToolNotFoundError"), "{who:?}: {hidden:?}");
    let versions = as_alice(&playground, "b:one@^9", &json!({}));
    assert_eq!(versions.kind(), "ToolNotFoundError", "{who:?}");
    assert!(hidden.stderr.contains("the caller alice may not call b:one"), "{who:?}: {}", hidden.stderr);
    let near = as_alice(&playground, "a:on", &json!({}));
    assert!(near.error().1.contains("'a:one'") && !near.error().1.contains("a:two"), "{who:?}: {:?}", near.error());
    let records = playground.records();
    let last = &records[1];
    assert_eq!(last["user"], "alice", "{who:?}");
    assert_eq!(last["through"], json!(me(who)), "{who:?}");
    assert_eq!((&last["decision"], &last["rule"]), (&json!("refused"), &json!("callers.policy.toml: alice")));

    let list = |caller: &[&str]| {
        let told = playground.cli(&[&["list", "--json"], caller].concat());
        let ids = told.out.as_array().unwrap().iter().map(|tool| tool["toolId"].as_str().unwrap().to_owned());
        ids.filter(|id| !id.starts_with("core:")).collect::<Vec<_>>()
    };
    assert_eq!(list(&["--caller", "alice"]), ["a:one"], "{who:?}");
    assert_eq!(list(&[]), ["a:one", "a:two", "b:one"], "{who:?}: control");
    assert_eq!(list(&["--caller", "eve"]), [""; 0], "{who:?}: no entry, no tool");
    std::fs::remove_dir_all(playground.path("user_scripts/bob")).unwrap();
    let missing = as_alice(&playground, "b:one", &json!({}));
    assert_eq!(hidden.out["error"], missing.out["error"], "{who:?}: nothing tells it from one that is missing");
    // Nor does the work that each takes.
    assert!(missing.stderr.contains("the caller alice may not call b:one"), "{who:?}: {}", missing.stderr);
}

#[test]
fn a_caller_that_no_entry_names_calls_nothing() {
    let who = Who::ours();
    let alone = "[[caller]]\nname = \"somebody-else\"\nwhy = \"w\"\ntools = [\"*\"]\n";
    let playground = playground(who, alone);
    let told = playground.call("a:one", "{}");
    assert_eq!(told.kind(), "ToolNotFoundError", "{who:?}: {told:?}");
    assert!(told.stderr.contains("no entry of"), "{who:?}: {}", told.stderr);
    put(&playground, &format!("{alone}[[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"a:one\"]\n"));
    assert_eq!(playground.call("a:one", "{}").out["success"], true, "{who:?}: everybody else");
    assert_eq!(playground.call("a:two", "{}").kind(), "ToolNotFoundError", "{who:?}");
    // A label is no identity here: the caller has no act_as.
    let told = playground.call_with("a:two", "{}", &["--user", "somebody-else"]);
    assert_eq!(told.kind(), "ToolNotFoundError", "{who:?}: {told:?}");
    let last = playground.records().pop().unwrap();
    assert_eq!((&last["user"], &last["label"]), (&json!(me(who)), &json!("somebody-else")), "{who:?}");
}

#[test]
fn a_value_that_a_caller_may_not_bring_is_refused_by_its_name_alone() {
    let who = Who::ours();
    let playground = playground(who, FILE);
    for (n, good) in [
        (json!(1), true),
        (json!(3), true),
        (json!(10), true),
        (json!(10.0), true),
        (json!(4), false),
        (json!(0.5), false),
        (Value::Null, false),
    ] {
        let input = if n.is_null() { json!({"s": "x"}) } else { json!({"n": n}) };
        let told = as_alice(&playground, "a:one", &input);
        assert_eq!(told.out["success"], good, "{who:?}: {n}: {told:?}");
        if !good {
            assert_eq!((told.code, told.kind()), (Some(3), "AuthorizationError"), "{who:?}: {n}");
            let words = told.out["error"].to_string();
            assert!(words.contains("'n'") && !words.contains("callers") && !words.contains("from 1"), "{words}");
            assert!(
                told.stderr.contains("callers.policy.toml:15: for alice, `n` is a number from 1 to 3"),
                "{}",
                told.stderr
            );
        }
    }
    assert_eq!(playground.call("a:one", "{\"n\": 4}").out["success"], true, "{who:?}: control");
    let run = |path: &str, input: Value| {
        as_alice(&playground, "core:execute-python-script", &json!({"scriptPath": path, "inputData": input}))
    };
    assert_eq!(run("alice/one/main.py", json!({"n": 2})).out["success"], true, "{who:?}: control");
    for path in [
        "bob/one/main.py",
        "alice/../bob/one/main.py",
        "alice//one/main.py",
        "./alice/one/main.py",
        "/alice/one/main.py",
        "aliceX/main.py",
        "alice",
    ] {
        let told = run(path, json!({}));
        assert_eq!(told.kind(), "AuthorizationError", "{who:?}: {path}: {told:?}");
    }
    // The script's own tools answer too, by whatever road it is called.
    let told = run("alice/one/main.py", json!({"n": 4}));
    assert_eq!(told.kind(), "AuthorizationError", "{who:?}: {told:?}");
    let [hidden, missing] = ["alice/two/main.py", "alice/twx/main.py"].map(|path| run(path, json!({})));
    let same = |ended: &Ended| ended.out["error"].to_string().replace("twx", "two");
    assert_eq!(same(&hidden), same(&missing), "{who:?}: a:two is not for alice, so its script is not there");
    assert!(hidden.stderr.contains("may not call a:two"), "{who:?}: {}", hidden.stderr);
    let [folder, missing] = ["alice/two", "alice/twx"].map(|path| run(path, json!({})));
    assert_eq!(same(&folder), same(&missing), "{who:?}: nor is the folder of a:two");
    assert!(folder.stderr.contains("no script 'alice/two'"), "{who:?}: {}", folder.stderr);
    let rule = &playground.records().pop().unwrap()["rule"];
    assert_eq!(rule, "parameters", "{who:?}: control: what is missing is refused by no caller's rule");
}

/// Links and pipes would tell which folders of others there are.
#[test]
fn what_lies_beside_a_withheld_tool_is_not_told() {
    let who = Who::ours();
    let playground = playground(who, FILE);
    let two = playground.path("user_scripts/alice/two");
    std::os::unix::fs::symlink("main.py", two.join("link.py")).unwrap();
    nix::unistd::mkfifo(&two.join("pipe.py"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, told) in [("link", "is a symbolic link"), ("pipe", "is a pipe")] {
        let input = |folder: &str| json!({"scriptPath": format!("alice/{folder}/{name}.py")});
        let run = |folder: &str| as_alice(&playground, "core:execute-python-script", &input(folder));
        let [there, missing] = ["two", "twx"].map(run);
        assert_eq!(missing.kind(), "ParameterValidationError", "{who:?}: {missing:?}");
        let same = there.out["error"].to_string().replace("two", "twx");
        assert_eq!(same, missing.out["error"].to_string(), "{who:?}: {name}");
        assert!(there.stderr.contains(told), "{who:?}: {}", there.stderr);
        let control = playground.call("core:execute-python-script", &input("two").to_string());
        assert_eq!(control.kind(), "SecurityError", "{who:?}: an operator is told: {control:?}");
    }
}

#[test]
fn agents_are_shown_what_their_caller_may_call() {
    let playground = playground(Who::ours(), FILE);
    let start = |label: Option<&str>| {
        let mut host = playground.host();
        host.args(["serve", "--stdio"]).args(label.map(|label| ["--user", label]).iter().flatten());
        Server::with(host)
    };
    let own = |names: Vec<String>| names.into_iter().filter(|name| !name.starts_with("core__")).collect::<Vec<_>>();
    let mut operator = start(None);
    assert_eq!(own(operator.names()), ["a__one", "a__two", "b__one"], "control");
    let mut alice = start(Some("alice"));
    assert_eq!(own(alice.names()), ["a__one"]);
    let [hidden, missing] = ["b:one", "c:one"].map(|tool| alice.called(tool, json!({}))["error"].to_string());
    assert!(hidden.contains("Unknown tool"), "{hidden}");
    assert_eq!(hidden, missing.replace("c__one", "b__one"));
    let refused = alice.called("a:one", json!({"n": 7}));
    let words = refused["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(words.contains("AuthorizationError") && words.contains("'n'") && !words.contains("policy.toml"), "{words}");

    // A request's own label: an identity only by `act_as`.
    let labelled = |server: &mut Server, label: &str, tool: &str| {
        let params = json!({"name": tool, "arguments": {"n": 1}, "_meta": {"dev.toolhost/user": label}});
        server.asked("tools/call", params)
    };
    assert!(labelled(&mut operator, "alice", "b__one")["error"].to_string().contains("Unknown tool"));
    assert_eq!(labelled(&mut operator, "eve", "b__one")["result"]["structuredContent"]["n"], 1, "control");
    let record = playground.records().pop().unwrap();
    assert_eq!((&record["user"], &record["label"]), (&json!(me(playground.who)), &json!("eve")));

    // A change counts at a HUP, for the list and for calls.
    put(&playground, &FILE.replace("[\"a:one\", \"core", "[\"a:one\", \"b:*\", \"core"));
    alice.reload("the list has b:one", |server| own(server.names()) == ["a__one", "b__one"]);
    assert!(alice.called("b:one", json!({}))["result"]["isError"] != true);
    put(&playground, "broken");
    alice.reload("calls stop", |server| {
        server.called("b:one", json!({}))["result"].to_string().contains("SecurityError")
    });
}

#[test]
fn reports_read_what_decides() {
    let playground = playground(Who::ours(), FILE);
    let told = playground.cli(&["audit", "a:one", "--json"]).out["callers"][1].clone();
    assert_eq!((&told["name"], &told["rule"]), (&json!("alice"), &json!("callers.policy.toml: alice")), "{told}");
    assert!(told["parameters"][0].is_object() && told["through"][0].is_string(), "{told}");
    let json = playground.cli(&["audit", "b:one", "--json"]).out;
    let names: Vec<&Value> = json["callers"].as_array().unwrap().iter().map(|caller| &caller["name"]).collect();
    assert_eq!(names, [&json!(me(playground.who))]);
    let who = playground.cli(&["audit", "--who-can", "call:a:one"]).text();
    assert!(who.contains("a:one@1.0.0: alice (alice, also through"), "{who}");
    assert_eq!(playground.cli(&["audit", "--who-can", "call:a:none"]).text(), "Nobody can call a:none.\n");
    std::fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
    let told = playground.cli(&["audit", "--who-can", "call:a:one"]).text();
    assert!(told.contains("anybody whom this host serves"), "{told}");
}
