//! The door: what a caller may not call is not there for it, what it may not bring is refused, and
//! no label is an identity unless the file says so.

use super::{BY_PATH, labelled, me, playground, put, script};
use crate::prelude::*;

const FILE: &str = include_str!("door.policy.toml");

fn as_alice(playground: &Playground, tool: &str, input: &Value) -> Ended {
    playground.call_with(tool, &input.to_string(), &["--user", "alice"])
}

#[test]
fn a_tool_that_a_caller_may_not_call_is_not_there() {
    let playground = playground(Who::ours(), FILE);
    playground.expect("b:one", "{}", "ok {}");
    let hidden = as_alice(&playground, "b:one", &json!({}));
    assert_eq!(
        (hidden.code, hidden.kind()),
        (Some(2), "ToolNotFoundError"),
        "{hidden:?}"
    );
    assert_eq!(
        as_alice(&playground, "b:one@^9", &json!({})).kind(),
        "ToolNotFoundError"
    );
    assert!(
        hidden
            .stderr
            .contains("the caller alice may not call b:one"),
        "{}",
        hidden.stderr
    );
    let near = as_alice(&playground, "a:on", &json!({}));
    assert!(
        near.error().1.contains("'a:one'") && !near.error().1.contains("a:two"),
        "{:?}",
        near.error()
    );
    let last = &playground.records()[1];
    assert_eq!(
        (&last["user"], &last["through"]),
        (&json!("alice"), &json!(me(playground.who)))
    );
    assert_eq!(
        (&last["decision"], &last["rule"]),
        (&json!("refused"), &json!("callers.policy.toml: alice"))
    );

    let list = |caller: &[&str]| {
        let told = playground.cli(&[&["list", "--json"], caller].concat());
        let ids = told
            .out
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["toolId"].as_str().unwrap().to_owned());
        ids.filter(|id| !id.starts_with("core:"))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&["--caller", "alice"]), ["a:one"]);
    assert_eq!(list(&[]), ["a:one", "a:two", "b:one"], "control");
    assert_eq!(list(&["--caller", "eve"]), [""; 0], "no entry, no tool");

    // Reports read what decides.
    let told = playground.cli(&["audit", "a:one", "--json"]).out["callers"][1].clone();
    assert_eq!(
        (&told["name"], &told["rule"]),
        (&json!("alice"), &json!("callers.policy.toml: alice")),
        "{told}"
    );
    assert!(
        told["parameters"][0].is_object() && told["through"][0].is_string(),
        "{told}"
    );
    let json = playground.cli(&["audit", "b:one", "--json"]).out;
    let names: Vec<&Value> = json["callers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|caller| &caller["name"])
        .collect();
    assert_eq!(names, [&json!(me(playground.who))]);
    let who_can = |question: &str| playground.cli(&["audit", "--who-can", question]).text();
    assert!(
        who_can("call:a:one").contains("a:one@1.0.0: alice (alice, also through"),
        "{}",
        who_can("call:a:one")
    );
    let ranged = who_can("call:a:one@^1");
    assert!(
        ranged.starts_with("These can call a:one@1.0.0:\n  a:one@1.0.0: "),
        "the control: {ranged}"
    );
    assert_eq!(
        who_can("call:a:one@1.0.0"),
        ranged,
        "a range means the version that it finds"
    );
    let missing = playground.cli(&["audit", "--who-can", "call:a:none"]);
    let told = missing.stderr.contains("Unknown tool 'a:none'") && missing.text().is_empty();
    assert!(missing.code == Some(2) && told, "{missing:?}");

    fs::remove_dir_all(playground.path("user_scripts/bob")).unwrap();
    let missing = as_alice(&playground, "b:one", &json!({}));
    assert_eq!(
        hidden.out["error"], missing.out["error"],
        "nothing tells it from one that is missing"
    );
    // Nor does the work that each takes.
    assert!(
        missing
            .stderr
            .contains("the caller alice may not call b:one"),
        "{}",
        missing.stderr
    );

    // Links and pipes would tell which folders of others there are.
    let two = playground.path("user_scripts/alice/two");
    symlink("main.py", two.join("link.py")).unwrap();
    nix::unistd::mkfifo(&two.join("pipe.py"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, told) in [("link", "is a symbolic link"), ("pipe", "is a pipe")] {
        let input = |folder: &str| json!({"scriptPath": format!("alice/{folder}/{name}.py")});
        let [there, missing] =
            ["two", "twx"].map(|folder| as_alice(&playground, BY_PATH, &input(folder)));
        assert_eq!(missing.kind(), "ParameterValidationError", "{missing:?}");
        let same = there.out["error"].to_string().replace("two", "twx");
        assert_eq!(same, missing.out["error"].to_string(), "{name}");
        assert!(there.stderr.contains(told), "{}", there.stderr);
        // An operator is told.
        playground.expect(BY_PATH, &input("two").to_string(), "SecurityError");
    }
}

#[test]
fn without_the_file_a_label_changes_nothing_and_whom_no_entry_names_calls_nothing() {
    let playground = playground(Who::ours(), FILE);
    let labelled = |label: &str| {
        let ended = playground.call_with("a:two", "{\"n\": 99}", &["--user", label]);
        let last = playground.records().pop().unwrap();
        assert_eq!(
            (&last["user"], &last["label"]),
            (&json!(me(playground.who)), &json!(label))
        );
        assert_eq!(last["through"], Value::Null);
        ended
    };
    fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
    assert_eq!(labelled("alice").out["outputData"], json!({"n": 99}));
    let told = playground.cli(&["audit", "--who-can", "call:a:one"]).text();
    assert!(told.contains("anybody whom this host serves"), "{told}");

    let alone = "[[caller]]\nname = \"somebody-else\"\nwhy = \"w\"\ntools = [\"*\"]\n";
    put(&playground, alone);
    playground.expect("a:one", "{}", "ToolNotFoundError: no entry of");
    put(
        &playground,
        &format!("{alone}[[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"a:one\"]\n"),
    );
    playground.expect("a:one", "{}", "ok {}");
    playground.expect("a:two", "{}", "ToolNotFoundError");
    // A label is no identity here: the caller has no act_as.
    assert_eq!(labelled("somebody-else").kind(), "ToolNotFoundError");
}

#[test]
fn a_value_that_a_caller_may_not_bring_is_refused_by_its_name_alone() {
    let playground = playground(Who::ours(), FILE);
    for n in [json!(1), json!(3), json!(10), json!(10.0)] {
        let told = as_alice(&playground, "a:one", &json!({"n": n}));
        assert_eq!(told.out["success"], true, "{n}: {told:?}");
    }
    let why = "callers.policy.toml:14: for alice, `n` is a number from 1 to 3";
    for input in [json!({"n": 4}), json!({"n": 0.5}), json!({"s": "x"})] {
        let told = as_alice(&playground, "a:one", &input);
        assert_eq!(
            (told.code, told.kind()),
            (Some(3), "AuthorizationError"),
            "{input}: {told:?}"
        );
        let words = told.out["error"].to_string();
        assert!(
            words.contains("'n'") && !words.contains("callers") && !words.contains("from 1"),
            "{words}"
        );
        assert!(told.stderr.contains(why), "{}", told.stderr);
    }
    playground.expect("a:one", "{\"n\": 4}", "ok");
    // The script's own tools answer too, whatever calls it.
    for (n, kind) in [(2, "none"), (4, "AuthorizationError")] {
        let input = json!({"scriptPath": "alice/one/main.py", "inputData": {"n": n}});
        assert_eq!(as_alice(&playground, BY_PATH, &input).kind(), kind);
    }
    let run = |path: &str| as_alice(&playground, BY_PATH, &script(path));
    for path in [
        "bob/one/main.py",
        "alice/../bob/one/main.py",
        "alice//one/main.py",
        "./alice/one/main.py",
        "/alice/one/main.py",
        "aliceX/main.py",
        "alice",
    ] {
        let told = run(path);
        assert_eq!(told.kind(), "AuthorizationError", "{path}: {told:?}");
    }
    // The tool a:two is not for alice, so neither its script is there nor its folder.
    for (ending, told) in [
        ("/main.py", "may not call a:two"),
        ("", "no script 'alice/two'"),
    ] {
        let [hidden, missing] = ["two", "twx"].map(|name| run(&format!("alice/{name}{ending}")));
        let same = |ended: &Ended| ended.out["error"].to_string().replace("twx", "two");
        assert_eq!(same(&hidden), same(&missing));
        assert!(hidden.stderr.contains(told), "{}", hidden.stderr);
    }
    let rule = &playground.records().pop().unwrap()["rule"];
    assert_eq!(
        rule, "parameters",
        "control: what is missing is refused by no caller's rule"
    );
}

#[test]
fn agents_are_shown_what_their_caller_may_call() {
    let playground = playground(Who::ours(), FILE);
    let start = |label: &[&str]| {
        let mut host = playground.host();
        host.args(["serve", "--stdio"]).args(label);
        Server::with(host)
    };
    let own = |names: Vec<String>| {
        names
            .into_iter()
            .filter(|name| !name.starts_with("core__"))
            .collect::<Vec<_>>()
    };
    let mut operator = start(&[]);
    assert_eq!(
        own(operator.names()),
        ["a__one", "a__two", "b__one"],
        "control"
    );
    let mut alice = start(&["--user", "alice"]);
    assert_eq!(own(alice.names()), ["a__one"]);
    let [hidden, missing] =
        ["b:one", "c:one"].map(|tool| alice.called(tool, json!({}))["error"].to_string());
    assert!(hidden.contains("Unknown tool"), "{hidden}");
    assert_eq!(hidden, missing.replace("c__one", "b__one"));
    let words = words(&alice.called("a:one", json!({"n": 7})));
    assert!(
        words.contains("AuthorizationError")
            && words.contains("'n'")
            && !words.contains("policy.toml"),
        "{words}"
    );

    // A request's own label: an identity only by `act_as`.
    let mut labelled = |label: &str| labelled(&mut operator, label, "b:one", json!({"n": 1}));
    assert!(
        labelled("alice")["error"]
            .to_string()
            .contains("Unknown tool")
    );
    assert_eq!(
        labelled("eve")["result"]["structuredContent"]["n"],
        1,
        "control"
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["user"], &record["label"]),
        (&json!(me(playground.who)), &json!("eve"))
    );

    // A change counts at a HUP, for the list and for calls.
    put(
        &playground,
        &FILE.replace("[\"a:one\", \"core", "[\"a:one\", \"b:*\", \"core"),
    );
    alice.reload("the list has b:one", |server| {
        own(server.names()) == ["a__one", "b__one"]
    });
    assert!(alice.called("b:one", json!({}))["result"]["isError"] != true);
    put(&playground, "broken");
    alice.reload("calls stop", |server| {
        kind(&server.called("b:one", json!({}))) == "SecurityError"
    });
}
