//! A running server sees by itself that its tools and policies changed, and nothing else.

use crate::http::Web;
use crate::prelude::*;

fn listed(web: &Web) -> Vec<String> {
    let tools = web.get("/v1/tools?namespace=esc", &[]).json()["tools"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    tools
        .iter()
        .map(|tool| {
            tool["toolId"]
                .as_str()
                .or(tool["id"].as_str())
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
}

fn output(web: &Web, tool: &str) -> Value {
    web.call(tool, &json!({}), &[]).json()["outputData"].clone()
}

fn reloads(web: &Web) -> usize {
    web.said().matches("toolhost: reloaded").count()
}

fn status(web: &Web) -> Value {
    web.get("/v1/status", &[]).json()
}

fn stale(web: &Web) -> String {
    status(web)["stale"].to_string()
}

/// Nothing more is read for a while.
fn at_rest(web: &Web) -> usize {
    let mut seen = reloads(web);
    loop {
        std::thread::sleep(Duration::from_millis(1200));
        if reloads(web) == seen {
            return seen;
        }
        seen = reloads(web);
    }
}

fn file_of(playground: &Playground, name: &str) -> PathBuf {
    playground.path(&format!("user_scripts/{name}/{name}.tool.json"))
}

#[test]
fn what_changes_is_read_and_what_is_broken_stays_as_it_was() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool(
        "one",
        "python",
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(1)\n",
        json!({}),
    );
    playground.policy("one", "esc:one", "[limits]\ntimeout_ms = 120_000\n");
    playground.settle();
    let web = Web::start(&playground, &[]);
    assert_eq!(listed(&web), ["esc:one"]);

    // A new tool, in a new folder.
    playground.tool("two", "python", "print(2)\n", json!({}));
    playground.settle();
    wait_for("the tool that came", || {
        listed(&web) == ["esc:one", "esc:two"]
    });
    assert_eq!(output(&web, "esc:two"), 2);

    // A call that runs keeps its definition; the next has the new one.
    let text = fs::read_to_string(file_of(&playground, "one")).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| web.call("esc:one", &json!({}), &[]).json());
        playground.runs("user_scripts/one/main.py", 1);
        fs::write(playground.path("user_scripts/one/next.py"), "print(10)\n").unwrap();
        let next = text.replace("1.0.0", "2.0.0").replace("main.py", "next.py");
        fs::write(file_of(&playground, "one"), next).unwrap();
        wait_for("the new version", || {
            web.get("/v1/tools/esc:one@2", &[]).status == 200
        });
        let next = web.call("esc:one", &json!({}), &[]).json();
        fs::write(playground.path("user_scripts/one/go"), "").unwrap();
        for (outcome, version, answer) in
            [(next, "2.0.0", 10), (running.join().unwrap(), "1.0.0", 1)]
        {
            assert_eq!(
                (&outcome["version"], &outcome["outputData"]),
                (&json!(version), &json!(answer)),
                "{outcome}"
            );
        }
    });

    // A manifest that is broken leaves its tool as it was, and that is said.
    fs::write(file_of(&playground, "one"), &text[..text.len() / 2]).unwrap();
    wait_for("it is told", || {
        stale(&web).contains("is broken, and its old definition stays")
    });
    assert_eq!(
        web.call("esc:one", &json!({}), &[]).json()["version"],
        "2.0.0"
    );
    web.says("its old definition stays", 1);
    fs::write(file_of(&playground, "one"), text.replace("1.0.0", "3.0.0")).unwrap();
    wait_for("the repaired one", || {
        web.get("/v1/tools/esc:one@3", &[]).status == 200
    });
    assert_eq!(stale(&web), "[]");

    // Policies: obeyed at once, and whole or not at all.
    let policy = playground.path("sandbox-policies/two.policy.toml");
    playground.policy("two", "esc:two", "confirm = \"w\"\n");
    playground.settle();
    let asks = || web.get("/v1/tools/esc:two/audit", &[]).json()["confirm"] != json!([]);
    wait_for("the policy that came", asks);
    fs::write(&policy, "name = 7\n").unwrap();
    wait_for("it is told", || stale(&web).contains("the old ones hold"));
    assert!(asks(), "the old one holds");
    assert_eq!(web.get("/readyz", &[]).status, 200);
    web.says("two.policy.toml", 1);
    fs::remove_file(&policy).unwrap();
    wait_for("the policy that went", || !asks());
    assert_eq!(
        (stale(&web).as_str(), output(&web, "esc:two")),
        ("[]", json!(2))
    );

    // What is taken away is gone; sources are counted.
    assert_eq!(in_folders(&web), 2);
    fs::remove_dir_all(playground.path("user_scripts/one")).unwrap();
    wait_for("the tool that went", || {
        listed(&web) == ["esc:two"] && in_folders(&web) == 1
    });
    // Who comes in its place is seen, too.
    playground.tool("one", "python", "print(11)\n", json!({}));
    playground.settle();
    wait_for("the tool that came again", || listed(&web).len() == 2);
    fs::write(file_of(&playground, "one"), text.replace("1.0.0", "4.0.0")).unwrap();
    wait_for("a change in a folder that came again", || {
        web.get("/v1/tools/esc:one@4", &[]).status == 200
    });
}

/// Taken away from this host, not taken away: no tool of a folder goes because the folder cannot be
/// listed.
#[test]
fn tools_in_a_folder_that_cannot_be_listed_stay_as_they_were() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let one = playground.tool("one", "python", "print(1)\n", json!({}));
    let two = playground.tool("two", "python", "print(1)\n", json!({}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let mode = |bits| fs::set_permissions(&one, fs::Permissions::from_mode(bits)).unwrap();
    mode(0);
    // At once: a HUP ends no server that has only just said that it serves.
    web.signal(Signal::SIGHUP);
    wait_for("it is told", || {
        stale(&web).contains("user_scripts/one cannot be listed, and the tools in it stay")
    });
    assert_eq!(in_folders(&web), 2);
    let refused = web.call("esc:one", &json!({}), &[]).json()["error"].clone();
    let words = "this tool's packages cannot be read, so it was not started";
    assert_eq!(
        (&refused["type"], &refused["message"]),
        (&json!("DependencyError"), &json!(words))
    );
    // The others go on, and are read again.
    fs::remove_dir_all(two).unwrap();
    wait_for("the tool that went", || in_folders(&web) == 1);
    mode(0o755);
    web.signal(Signal::SIGHUP);
    wait_for("it is there again", || stale(&web) == "[]");
    assert_eq!(
        (listed(&web), output(&web, "esc:one")),
        (vec!["esc:one".to_owned()], json!(1))
    );
    // The control: what is gone is gone.
    fs::remove_dir_all(&one).unwrap();
    wait_for("the other that went", || in_folders(&web) == 0);
}

#[test]
fn every_kind_of_definition_is_watched_and_what_running_tools_write_is_not() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import os\nos.makedirs('out/deep', exist_ok=True)\nfor n in range(50):\n    \
            open(f'out/{n}.txt', 'w').write('x')\n    open(f'out/deep/{n}.json', \
            'w').write('x')\n    open(f'r{n}.csv', 'w').write('x')\nprint(50)\n";
    let asks = json!({"securityContext": {"fileAccess": {"allowWrite": ["out/", "*.csv"]}}});
    let folder = playground.tool("busy", "python", script, asks);
    playground.allow("busy", "esc:busy", &["./**"], &["./**"]);
    let names = [
        "notes.json",
        "a.prompt.json",
        "a.resource.json",
        "a.tool-service.json",
    ];
    let write =
        |name: &str, text: &str| fs::write(playground.path("tool-defs").join(name), text).unwrap();
    names.iter().for_each(|name| write(name, "{}"));
    playground.settle();
    // Both ways of watching, at the same time.
    let webs = ["auto", "poll"].map(|watch| Web::start(&playground, &["--watch", watch]));
    let mut before = webs.each_ref().map(at_rest);
    for web in webs.iter().chain(&webs) {
        assert_eq!(output(web, "esc:busy"), 50, "{:?}", web.said());
    }
    assert!(folder.join("r7.csv").exists() && folder.join("out/deep").exists());
    // What is no definition.
    write("notes.json", "{\"a\": 1}");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(webs.each_ref().map(at_rest), before);
    // The controls: definitions, and a manifest beside what was written.
    let file = file_of(&playground, "busy");
    for name in &names[1..] {
        write(name, "{\"a\": 1}");
        wait_for(name, || {
            webs.iter()
                .zip(before)
                .all(|(web, before)| reloads(web) > before)
        });
        before = webs.each_ref().map(at_rest);
    }
    fs::write(
        &file,
        fs::read_to_string(&file).unwrap().replace("1.0.0", "1.0.1"),
    )
    .unwrap();
    wait_for("a manifest", || {
        webs.iter()
            .zip(before)
            .all(|(web, before)| reloads(web) > before)
    });
}

#[test]
fn it_can_look_by_itself_or_not_at_all() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for folder in ["tool-defs", "user_scripts", "sandbox-policies"] {
        fs::remove_dir_all(playground.path(folder)).unwrap();
    }
    let [off, poll, auto] =
        ["off", "poll", "auto"].map(|mode| Web::start(&playground, &["--watch", mode]));
    fs::create_dir_all(playground.path("sandbox-policies")).unwrap();
    playground.tool("came", "python", "print(1)\n", json!({}));
    playground.allow("came", "esc:came", &["./**"], &[]);
    playground.settle();
    for web in [&auto, &poll] {
        wait_for("folders that came", || listed(web) == ["esc:came"]);
        wait_for("policies that came", || {
            web.get("/v1/tools/esc:came/audit", &[]).json()["policy"] == "came"
        });
    }
    // A second folder of tools.
    fs::create_dir(playground.path("tool-defs")).unwrap();
    fake::define(
        &playground.base,
        "esc:two",
        script("two.py", "python"),
        json!({}),
    );
    fs::write(playground.path("tool-defs/two.py"), "print(2)\n").unwrap();
    playground.settle();
    for web in [&auto, &poll] {
        wait_for("the tool of the second folder", || {
            listed(web) == ["esc:came", "esc:two"]
        });
        assert_eq!(output(web, "esc:two"), 2);
    }
    assert_eq!((listed(&off).len(), reloads(&off)), (0, 0));
    off.signal(Signal::SIGHUP);
    wait_for("at a HUP it is read", || listed(&off).len() == 2);
}

/// The kernel counts them for each user namespace, too.
#[test]
fn where_the_kernel_takes_no_more_watches_it_looks_by_itself() {
    let limited = |most: u32| {
        let playground =
            Playground::with(Who::ours(), &[("first", "python", "print(1)\n", json!({}))]);
        let words = format!("echo {most} > /proc/sys/user/max_inotify_watches && exec \"$@\"");
        let mut program = playground.outside("/usr/bin/unshare");
        program.args(["-Ur", "/bin/sh", "-c", &words, "sh"]);
        let mut host = playground.host_by(program);
        host.args(["serve", "--http", "127.0.0.1:0"]);
        Web::run(host, playground.who.uid()).map(|web| (playground, web))
    };
    let (scarce, plenty) = match (limited(2), limited(1000)) {
        (Ok(scarce), Ok(plenty)) => (scarce, plenty),
        (Err(said), _) | (_, Err(said)) => {
            return skipped(1, &format!("no limit in a user namespace: {said}"));
        }
    };
    let words = "this user's inotify watches are used up: folders are compared instead";
    wait_for("it says so", || scarce.1.said().contains(words));
    for (playground, web) in [&scarce, &plenty] {
        playground.tool("came", "python", "print(2)\n", json!({}));
        playground.settle();
        wait_for("what came is read", || {
            listed(web) == ["esc:came", "esc:first"]
        });
    }
    assert!(
        !plenty.1.said().contains(words),
        "control: {}",
        plenty.1.said()
    );
}

#[test]
fn a_link_that_leads_elsewhere_is_followed_again() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, answer) in [("one", 1), ("two", 2)] {
        let folder = playground.tool("own", "python", &format!("print({answer})\n"), json!({}));
        fs::rename(folder, playground.path(name)).unwrap();
    }
    let [link, next] = ["user_scripts/own", "next"].map(|at| playground.path(at));
    symlink(playground.path("one"), &link).unwrap();
    symlink(playground.path("two"), &next).unwrap();
    playground.settle();
    let web = Web::start(&playground, &[]);
    assert_eq!(output(&web, "esc:own"), 1);
    fs::rename(&next, &link).unwrap();
    wait_for("the other folder", || output(&web, "esc:own") == 2);
    fs::remove_file(&link).unwrap();
    wait_for("no folder", || listed(&web).is_empty());
}

/// How many tools came from folders.
fn in_folders(web: &Web) -> u64 {
    let sources = status(web)["sources"].as_array().unwrap().clone();
    let folders = sources.iter().filter(|it| it["kind"] == "folder");
    folders.map(|it| it["tools"].as_u64().unwrap()).sum()
}

#[test]
fn an_operator_adds_a_folder_to_a_server_that_runs_until_it_ends() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("one", "python", "print(1)\n", json!({}));
    let more = playground.path("more");
    fs::create_dir_all(more.join("two")).unwrap();
    fs::write(more.join("two/main.py"), "print(2)\n").unwrap();
    let two = manifest("esc:two", script("two/main.py", "python"), json!({}));
    fs::write(more.join("two/two.tool.json"), two.to_string()).unwrap();
    fs::write(more.join("bad.tool.json"), "{").unwrap();
    playground.settle();
    let folder = more.to_str().unwrap();
    let sources = |words: &[&str]| playground.cli(&[&["sources"], words].concat());
    let web = Web::start(&playground, &[]);
    assert_eq!(listed(&web), ["esc:one"]);
    assert_eq!(sources(&["add", folder]).code, Some(0));
    wait_for("the tool", || listed(&web) == ["esc:one", "esc:two"]);
    assert_eq!(output(&web, "esc:two"), 2);
    let counts = json!({"id": folder, "kind": "folder", "tools": 1, "skipped": 1});
    let known = status(&web)["sources"].clone();
    assert!(known.as_array().unwrap().contains(&counts), "{known}");
    assert!(sources(&[]).text().contains("tool-defs"));
    let inner = sources(&["add", more.join("two").to_str().unwrap()]);
    assert!(inner.stderr.contains("no file counts twice"), "{inner:?}");
    assert_eq!(sources(&["remove", folder]).code, Some(0));
    wait_for("it is gone", || listed(&web) == ["esc:one"]);
    assert_eq!(sources(&["remove", folder]).code, Some(2));
    sources(&["add", folder]);
    wait_for("it is back", || listed(&web).len() == 2);
    drop(web);

    // The order was for the server that ran.
    let web = Web::start(&playground, &[]);
    sources(&["refresh"]);
    wait_for("all is read again", || reloads(&web) > 0);
    assert_eq!(listed(&web), ["esc:one"]);
    for bad in ["tool-defs", "user_scripts/one", ""] {
        let refused = sources(&["add", playground.path(bad).to_str().unwrap()]);
        assert!(
            refused.stderr.contains("no file counts twice"),
            "{refused:?}"
        );
    }
    fs::set_permissions(&more, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = sources(&["add", folder]);
    assert!(refused.stderr.contains("others may write"), "{refused:?}");
    // The order from before stands: nothing was written.
    let kept = fs::read_to_string(playground.path("state/sources.json")).unwrap();
    assert!(kept.contains(folder), "{kept}");
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    let orders = ["sourceAdded", "sourceRemoved", "sourcesRefreshed"];
    assert!(orders.iter().all(|order| log.contains(order)), "{log}");
}
