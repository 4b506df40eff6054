//! What a call has of its packages: the versions of its own lock, found where interpreters look.

use super::{FLAT, IndexedHost, PLAIN, rules};
use crate::http::Web;
use crate::prelude::*;
use std::net::ToSocketAddrs;

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn two_tools_have_their_own_versions_and_an_edited_lock_builds_again() {
    as_everyone("packages", |who| {
        let shop = IndexedHost::new(who);
        // The control: without requirements there is no such package.
        shop.playground.tool("none", "python", PLAIN, json!({}));
        shop.expect("none", "ScriptError: No module named 'plain'");
        shop.python("one", &["plain==1.0"], PLAIN);
        let folder = shop.python("two", &["plain==2.0"], PLAIN);
        shop.expect("one", "ok \"1.0\"");
        shop.expect("two", "ok \"2.0\"");
        let asked = shop.log().len();
        shop.expect("one", "ok \"1.0\"");
        assert_eq!(
            shop.log().len(),
            asked,
            "what is built is not fetched again"
        );
        // Both at once, each with its own.
        std::thread::scope(|scope| {
            let calls = ["esc:one", "esc:two"].map(|tool| scope.spawn(|| shop.call(tool)));
            let said = calls.map(|call| call.join().unwrap().out["outputData"].clone());
            assert_eq!(said, ["1.0", "2.0"]);
        });
        shop.put(folder.join("requirements.txt"), shop.locked("plain==1.0"));
        shop.expect("two", "ok \"1.0\"");
        assert_eq!(shop.log().len(), asked, "another tool has the same already");
        let runs: Vec<_> = shop
            .playground
            .records()
            .into_iter()
            .filter(|r| r["tool"] == "toolhost:packages")
            .collect();
        assert_eq!(
            runs.len(),
            6,
            "each run of an installer is recorded like a call"
        );
        assert!(runs.iter().all(|run| run["outcome"] == "success" && run["digests"]["confinement"].is_string()));
        let logged = shop.cli(&["call", "esc:one", "--log", "info,json", "--input", "{}"]);
        let used = r#""dependencies":"plain 1.0""#;
        assert!(logged.stderr.contains(used), "{}", logged.stderr);
        // What is recorded of a call says nothing of what its packages look for.
        let asks = "\ntry:\n    open('/srv/none')\nexcept OSError:\n    pass\nprint";
        shop.python("asks", &["plain==1.0"], &PLAIN.replace("print", asks));
        shop.deps_good(&["clean"]);
        for (tool, wanted) in [("esc:one", Vec::new()), ("esc:asks", vec!["/srv/none"])] {
            let ended = shop.cli(&["call", tool, "--json", "--explain", "--input", "{}"]);
            fits("ok \"1.0\"", &ended).unwrap();
            let told = ended.out["denials"]["observed"].as_array().unwrap();
            assert_eq!(
                told.iter()
                    .map(|denial| &denial["target"])
                    .collect::<Vec<_>>(),
                wanted,
                "{who:?}: {tool}"
            );
        }
    });
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn node_and_bun_find_packages_last_so_that_what_lies_beside_a_script_wins() {
    if !has("nodejs", 1) {
        return;
    }
    let shop = IndexedHost::new(Who::ours());
    shop.node("common", "nodejs", &["flat@1.0.0"], FLAT);
    shop.expect("common", "ok \"1.0.0\"");
    let module = "import flat from 'flat';\nconsole.log(JSON.stringify(flat));\n";
    let folder = shop.node("module", "nodejs", &["flat@2.0.0"], module);
    fs::rename(folder.join("main.js"), folder.join("main.mjs")).unwrap();
    let manifest = fs::read_to_string(folder.join("module.tool.json"))
        .unwrap()
        .replace("main.js", "main.mjs");
    fs::write(folder.join("module.tool.json"), manifest).unwrap();
    shop.expect("module", "ok \"2.0.0\"");
    let folder = shop.node(
        "beside",
        "nodejs",
        &["flat@1.0.0"],
        "console.log(JSON.stringify(require('./flat')))",
    );
    shop.put(folder.join("flat.js"), "module.exports = 'beside'");
    shop.expect("beside", "ok \"beside\"");
    if has("bun", 1) {
        shop.node("bun", "bun", &["flat@2.0.0"], FLAT);
        shop.expect("bun", "ok \"2.0.0\"");
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_lock_is_asked_for_made_and_kept() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.requiring("loose", "plain<2\n", PLAIN);
    shop.expect(
        "loose",
        "DependencyError: `toolhost deps lock esc:loose` writes the lock",
    );
    assert!(shop.log().is_empty(), "nothing is asked of an index before");
    let said = shop.deps_good(&["lock", "esc:loose"]);
    assert!(
        said.contains("1 packages, written to") && said.contains("plain 1.0"),
        "{said}"
    );
    shop.expect("loose", "ok \"1.0\"");
    // A requirement that changed is told, and the same command locks it again.
    fs::write(folder.join("requirements.txt"), "plain>=2\n").unwrap();
    let stale = "DependencyError: requirements.txt:1: `plain>=2` is required, and pylock.toml \
        holds 1.0: lock again";
    shop.expect("loose", stale);
    shop.deps_good(&["lock", "esc:loose"]);
    shop.expect("loose", "ok \"2.0\"");
    let pinned = shop.python("pinned", &["plain==1.0"], PLAIN);
    let locked = shop.deps(&["lock", "esc:pinned"]);
    assert!(
        locked.code == Some(2) && locked.stderr.contains("is locked already"),
        "{}",
        locked.stderr
    );
    assert!(!pinned.join("pylock.toml").exists());
    // Relaxed: what the first call resolved stays, whatever the index offers later.
    fs::remove_file(folder.join("pylock.toml")).unwrap();
    fs::write(folder.join("requirements.txt"), "plain\n").unwrap();
    shop.policy("default", "relaxed", false, "");
    let kept = || shop.cli(&["audit", "esc:loose", "--json"]).out["keptPackages"].clone();
    assert_eq!(kept(), json!({"resolved": null, "built": null}));
    shop.expect("loose", "ok \"2.0\"");
    assert_eq!(
        (
            &kept()["resolved"][0]["name"],
            &kept()["resolved"][0]["version"]
        ),
        (&json!("plain"), &json!("2.0"))
    );
    let asked = shop.log().len();
    shop.expect("loose", "ok \"2.0\"");
    assert_eq!(shop.log().len(), asked);
    for verb in ["lock", "build", "list", "clean"] {
        let unknown = shop.deps(&[verb, "esc:lose"]);
        assert!(
            unknown.code == Some(2) && unknown.stderr.contains("Unknown tool 'esc:lose'"),
            "{verb}: {unknown:?}"
        );
        assert!(
            verb == "lock" || shop.deps(&[verb, "esc:loose"]).code == Some(0),
            "{verb}, the control"
        );
    }
    shop.expect("loose", "ok \"2.0\""); // Cleaned, and built again.
    // A policy that denies it later counts for what was resolved before, and so does a vulnerability
    // that becomes known.
    let record = json!({
        "id": "GHSA-x",
        "affected": [{
            "package": { "ecosystem": "PyPI", "name": "Plain" },
            "ranges": [{ "type": "ECOSYSTEM", "events": [{ "introduced": "2.0" }] }],
        }],
    });
    let export = shop.playground.path("sandbox-policies/osv.json");
    shop.put(export, record.to_string());
    for (rule, wanted) in [
        ("advisories = \"osv.json\"\n", "ok \"2.0\""),
        (
            "advisories = \"osv.json\"\nadvisories_refuse = true\n",
            "DependencyError: plain 2.0 is vulnerable (GHSA-x)",
        ),
        (
            "deny = [{ name = \"plain\", versions = \">=2\", why = \"new\" }]\n",
            "DependencyError: plain 2.0 is denied: new",
        ),
        (
            "min_age_days = 3650\n",
            "DependencyError: must be at least 3650",
        ),
        ("min_age_days = 30\n", "ok \"2.0\""),
    ] {
        shop.policy("default", "relaxed", false, rule);
        shop.expect("loose", wanted);
        let audited = shop.deps(&["audit", "esc:loose"]);
        let exit = i32::from(rule.starts_with("advisories"));
        assert_eq!(audited.code, Some(exit), "{rule}: {audited:?}");
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn scripts_of_one_folder_have_locks_of_their_own() {
    let shop = IndexedHost::new(Who::ours());
    let block = |asks: &str| format!("# /// script\n# dependencies = [\"{asks}\"]\n# ///\n{PLAIN}");
    let folder = shop.playground.path("user_scripts/pair");
    for (name, path, asks) in [
        ("one", "pair/one.py", "plain==1.0"),
        ("two", "pair/two.v2.py", "plain==2.0"),
        ("flat", "flat.py", "plain<2"),
    ] {
        shop.playground.tool_at(
            &format!("esc:{name}"),
            "python",
            path,
            &block(asks),
            json!({}),
        );
    }
    // What the folder requires and has locked is for those that say nothing themselves.
    shop.playground
        .tool_at("esc:both", "python", "pair/both.py", PLAIN, json!({}));
    shop.playground
        .tool_at("esc:also", "python", "pair/also.py", PLAIN, json!({}));
    shop.put(folder.join("requirements.txt"), "plain>1\n");
    for (name, file, version) in [
        ("one", "pylock.one.toml", "1.0"),
        ("two", "pylock.two-v2.toml", "2.0"),
        ("both", "pylock.toml", "2.0"),
        ("flat", "../pylock.flat.toml", "1.0"),
    ] {
        shop.expect(name, "DependencyError: `toolhost deps lock");
        shop.deps_good(&["lock", &format!("esc:{name}")]);
        assert!(folder.join(file).is_file(), "{name}");
        shop.expect(name, &format!("ok \"{version}\""));
    }
    shop.expect("also", "ok \"2.0\""); // One lock for what both of them require.
    // A lock of its own that does not hold what the script asks for is no lock of the other's.
    fs::copy(
        folder.join("pylock.two-v2.toml"),
        folder.join("pylock.one.toml"),
    )
    .unwrap();
    let stale = "DependencyError: one.py:1: `plain==1.0` is required, and pylock.one.toml holds \
        2.0: lock again";
    shop.expect("one", stale);
    shop.expect("two", "ok \"2.0\"");
    // Two tools of Node in one folder have its one package.json.
    if has("nodejs", 1) {
        shop.node("first", "nodejs", &["flat@1.0.0"], FLAT);
        shop.playground
            .tool_at("esc:second", "nodejs", "first/second.js", FLAT, json!({}));
        shop.settle();
        ["first", "second"]
            .iter()
            .for_each(|name| drop(shop.expect(name, "ok \"1.0.0\"")));
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn many_callers_wait_for_one_build() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("slow", "required", false, "");
    let folder = shop.python("one", &["plain==1.0"], PLAIN);
    let calls = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| shop.call("esc:one")))
            .collect();
        // A lock that is edited while it is built is another build: whoever waited gets that one.
        wait_for("a build", || shop.was_asked("/files/"));
        fs::write(folder.join("requirements.txt"), shop.locked("plain==2.0")).unwrap();
        calls
            .into_iter()
            .map(|call| call.join().unwrap())
            .collect::<Vec<_>>()
    });
    calls
        .iter()
        .for_each(|call| fits("ok \"2.0\"", call).unwrap());
    for version in ["plain-1.0-py3", "plain-2.0-py3"] {
        let fetched = shop
            .log()
            .iter()
            .filter(|line| line.contains(version))
            .count();
        assert_eq!(fetched, 1, "{version}: {:?}", shop.log());
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_policy_that_changes_while_packages_are_built_counts_for_the_call_that_waits() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("slow", "required", false, "");
    shop.python("one", &["plain==1.0"], PLAIN);
    let mut server = Server::of(shop.host(&[]));
    let waiting = server.call("esc:one", json!({}));
    wait_for("a build", || shop.was_asked("/files/"));
    shop.policy(
        "slow",
        "required",
        false,
        "deny = [{ name = \"plain\", why = \"a hole\" }]\n",
    );
    server.hang_up();
    let told = server.answers(&[waiting])[&waiting].to_string();
    assert!(
        told.contains("plain 1.0 is denied: a hole"),
        "it runs under the policy of now: {told}"
    );
    // The same for a call of the command line, whose build takes as long.
    shop.policy("slow", "required", false, "");
    shop.python("two", &["plain==2.0"], PLAIN);
    let by_hand = std::thread::scope(|scope| {
        let call = scope.spawn(|| shop.call("esc:two"));
        wait_for("another build", || {
            shop.log()
                .iter()
                .any(|line| line.contains("/files/plain-2.0"))
        });
        shop.policy(
            "slow",
            "required",
            false,
            "deny = [{ name = \"plain\", why = \"a hole\" }]\n",
        );
        call.join().unwrap()
    });
    assert_eq!(
        fits("DependencyError: plain 2.0 is denied: a hole", &by_hand),
        Ok(())
    );
    // The control: the build was good, and is used by whoever may.
    shop.policy("slow", "required", false, "");
    let asked = shop.log().len();
    server.hang_up();
    wait_for("the old policy", || {
        server
            .called("esc:one", json!({}))
            .to_string()
            .contains("1.0")
    });
    assert_eq!(shop.log().len(), asked);
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_is_for_other_machines_stands_in_the_lock_and_is_not_fetched() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.python("one", &["plain==1.0", "elsewhere==1.0"], PLAIN);
    // The control: without a marker it is required here, too, and there is no file for this
    // machine.
    shop.expect(
        "one",
        "DependencyError: No matching distribution found for elsewhere",
    );
    let file = folder.join("requirements.txt");
    let lock = fs::read_to_string(&file).unwrap();
    shop.put(
        file,
        lock.replace("elsewhere==1.0", "elsewhere==1.0 ; sys_platform == 'win32'"),
    );
    shop.expect("one", "ok \"1.0\"");
    assert!(!shop.was_asked("/files/elsewhere"), "{:?}", shop.log());
    // A lock that is written here has the files of all machines.
    let folder = shop.requiring("two", "many\n", &PLAIN.replace("plain", "many"));
    shop.deps_good(&["lock", "esc:two"]);
    let lock = fs::read_to_string(folder.join("pylock.toml")).unwrap();
    for name in [
        "many-1.0-py3-none-any.whl",
        "many-1.0-py3-none-win_amd64.whl",
    ] {
        assert!(
            lock.contains(name) && lock.contains(&shop.hash(name)["sha256:".len()..]),
            "{name}: {lock}"
        );
    }
    shop.expect("two", "ok \"1.0\"");
    assert!(!shop.was_asked("win_amd64"), "{:?}", shop.log());
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn small_packages_of_the_public_indexes_work() {
    // Their addresses are public where the tests reach them, or the machine says otherwise.
    let shop = IndexedHost::new(Who::ours());
    let python = "import idna, json\nprint(json.dumps(idna.encode('bücher.example').decode()))\n";
    shop.requiring("idna", "idna==3.10\n", python);
    let node = "console.log(JSON.stringify(require('is-number')(3)))";
    let other = shop.playground.tool("number", "nodejs", node, json!({}));
    fs::write(
        other.join("package.json"),
        "{\"dependencies\": {\"is-number\": \"7.0.0\"}}",
    )
    .unwrap();
    use_public_indexes(&shop);
    shop.policy("default", "relaxed", false, "");
    for (host, tool, answer) in [
        ("pypi.org:443", "idna", "ok \"xn--bcher-kva.example\""),
        ("registry.npmjs.org:443", "number", "ok true"),
    ] {
        if is_reached(host) {
            shop.expect(tool, answer);
        }
    }
}

/// A configuration with the indexes that everybody uses.
pub fn public_indexes() -> String {
    let ranges = "ranges = [\"203.0.113.0/24\"]";
    format!(
        "[indexes.default]\npython = {{ url = \"https://pypi.org/simple/\", hosts = \
         [\"files.pythonhosted.org\"], {ranges} }}\nnode = {{ url = \
         \"https://registry.npmjs.org/\", {ranges} }}\n"
    )
}

fn use_public_indexes(shop: &IndexedHost) {
    fs::write(shop.playground.path("config.toml"), public_indexes()).unwrap();
}

/// False is said as a skipped check.
pub fn is_reached(host: &str) -> bool {
    let address = host.to_socket_addrs().ok().and_then(|mut all| all.next());
    let is_reached =
        address.is_some_and(|it| TcpStream::connect_timeout(&it, Duration::from_secs(3)).is_ok());
    if !is_reached {
        skipped(1, &format!("{host} is not reached from here"));
    }
    is_reached
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn one_command_locks_and_builds_the_packages_for_data_work() {
    if !is_reached("pypi.org:443") {
        return;
    }
    let shop = IndexedHost::new(Who::ours());
    use_public_indexes(&shop);
    let rest = "[packages]\npython = { index = \"default\", lock_file = \
                \"run-code.pylock.toml\", why = \"a test\" }\n[limits]\ntimeout_ms = 100_000\n";
    shop.playground.policy("run", "core:run-code", rest);
    shop.settle();
    let code = "import io, json, numpy, openpyxl, pandas, PIL, pypdf\n\
                import matplotlib.pyplot as plt\n\
                pandas.DataFrame({'a': [1, 2]}).plot()\nplt.savefig('/tmp/a.png')\n\
                print(json.dumps(PIL.Image.open('/tmp/a.png').size))\n";
    let input = json!({"language": "python", "code": code, "timeoutMs": 90_000}).to_string();
    let call = || shop.cli(&["call", "core:run-code", "--json", "--input", &input]);
    assert!(call().text().contains("does not exist"), "the control");
    let made = shop.deps_good(&["lock", "core:run-code", "--preset", "data-python"]);
    assert!(made.contains("15 packages"), "{made}");
    let ended = call();
    assert_eq!(fits("ok [640,480]", &ended), Ok(()));
    assert_eq!(ended.out["logs"], json!([]), "no warning: {ended:?}");
    let listed = shop.cli(&["list", "--json"]).text();
    assert!(listed.contains("pandas 3."), "{listed}");
}

/// A process that waits with other packages than its lock has now serves no call.
#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_ready_process_is_not_used_after_its_packages_changed() {
    let shop = IndexedHost::new(Who::ours());
    let waits = "import json, sys, plain\nsys.stdin.read()\nprint(json.dumps(plain.version))\n";
    let folder = shop.playground.tool(
        "own",
        "python",
        waits,
        json!({"execution": {"ready": true}}),
    );
    let table = "[ready]\nwhy = \"a test\"\n";
    let own = rules("default", "required", false, table);
    shop.playground.policy("own", "esc:own", &own);
    let code = "[packages]\npython = { index = \"default\", lock_file = \"run-code.pylock.toml\", \
                why = \"a test\" }\n[ready]\nimports = [\"plain\"]\nwhy = \"a test\"\n";
    shop.playground.policy("code", "core:run-code", code);
    let pin = |package: &str| {
        shop.put(folder.join("requirements.txt"), shop.locked(package));
        shop.deps_good(&["lock", "core:run-code", package]);
        shop.settle();
    };
    pin("plain==1.0");
    shop.deps_good(&["build"]);
    let serve = shop.host(&["serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(serve, shop.playground.who.uid()).unwrap();
    let source = "import json, plain\nprint(json.dumps(plain.version))";
    let tools = [
        ("esc:own", json!({})),
        (
            "core:run-code",
            json!({"language": "python", "code": source}),
        ),
    ];
    for (tool, arguments) in &tools {
        wait_for("it waits", || {
            let listed = web.get("/v1/calls", &[]).json()["ready"].to_string();
            listed.contains(tool)
        });
        let answer = web
            .call(tool, &json!({ "arguments": arguments }), &[])
            .json();
        assert_eq!(answer["usage"]["started"], "ready", "{tool}: {answer}");
        assert!(
            answer.to_string().contains("1.0"),
            "the control of {tool}: {answer}"
        );
    }
    wait_for("others wait", || {
        let listed = web.get("/v1/calls", &[]).json()["ready"].to_string();
        tools.iter().all(|(tool, _)| listed.contains(tool))
    });
    pin("plain==2.0");
    for (tool, arguments) in &tools {
        let answer = web
            .call(tool, &json!({ "arguments": arguments }), &[])
            .json();
        let found = answer["outputData"].to_string();
        assert!(found.contains("2.0"), "{tool}: {answer}");
    }
}
