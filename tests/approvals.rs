//! Approvals: what a person approved is what runs, and nothing else. Each attack has a control in
//! which the same tool runs, or the same change goes through.

use crate::prelude::*;

/// Says what its helper, its data and its results hold, and tries to change its own code.
const TOOL: &str = r#"
import json, os, sys
import helper
def tried(what):
    try:
        what()
        return "done"
    except OSError as e:
        return type(e).__name__
def write(name):
    with open(name, "w") as file:
        file.write("WORD = 'evil'\n")
here = os.path.dirname(os.path.abspath(__file__))
given = json.load(sys.stdin)
out = os.path.join(here, "out")
said = {"word": helper.WORD}
if given.get("attack"):
    said["own"] = tried(lambda: write(os.path.join(here, "helper.py")))
    said["new"] = tried(lambda: write(os.path.join(here, "json.py")))
    said["link"] = tried(lambda: os.link(os.path.join(here, "helper.py"), os.path.join(out, "helper.py")))
    said["move"] = tried(lambda: os.rename(os.path.join(here, "helper.py"), os.path.join(out, "h.py")))
    said["out"] = tried(lambda: write(os.path.join(out, "late.py")))
    said["before"] = sorted(os.listdir(out))
print(json.dumps(said))
"#;

const RULES: &str = "[approval]\nrequired = true\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
                     write = [{ path = \"./out/**\", why = \"w\" }]\n";

/// A host with the tool `esc:one`, and a policy that requires its approval.
fn strict(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/"]}},
                      "execution": {"timeoutMs": 30_000}});
    let folder = playground.tool("one", "python", TOOL, asks);
    fs::write(folder.join("helper.py"), "WORD = 'good'\n").unwrap();
    fs::create_dir(folder.join("out")).unwrap();
    fs::create_dir(folder.join("data")).unwrap();
    fs::write(folder.join("data/table.csv"), "1,2\n").unwrap();
    playground.policy("strict", "esc:*", RULES);
    playground.settle();
    playground
}

#[track_caller]
fn approve(playground: &Playground, tool: &[&str]) -> Ended {
    let ended = playground.cli(&[&["approve"], tool, &["--why", "a test", "--yes"]].concat());
    assert_eq!(
        ended.code,
        Some(0),
        "{tool:?}: {}{}",
        ended.text(),
        ended.stderr
    );
    ended
}

/// What `--verify` says of one record: its state, and what changed.
fn verified(playground: &Playground, of: &str) -> (Option<i32>, String, String) {
    let ended = playground.cli(&["approve", "--verify", "--json"]);
    let all = ended.out["approvals"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", ended.stderr));
    let line = all
        .iter()
        .find(|line| line["of"] == of)
        .cloned()
        .unwrap_or_default();
    let state = line["state"].as_str().unwrap_or_default().to_owned();
    (ended.code, state, line["changed"].to_string())
}

fn unchanged(playground: &Playground, of: &str) -> bool {
    verified(playground, of) == (Some(0), "unchanged".to_owned(), "[]".to_owned())
}

const GOOD: &str = "ok {\"word\":\"good\"}";
const CHANGED: &str = "SecurityError: changed since approval";

#[test]
fn only_what_was_approved_runs_and_one_byte_is_a_change() {
    if !has("python", 1) {
        return;
    }
    as_everyone("approvals", |who| {
        let playground = strict(who);
        let refused = playground.expect("esc:one", "{}", "SecurityError: not approved");
        assert!(
            refused.stderr.contains(" approve esc:one`"),
            "{}",
            refused.stderr
        );
        let (code, state, _) = verified(&playground, "esc:one@1.0.0");
        assert_eq!((code, &*state), (Some(3), "not approved"));
        // Without a reason nothing is recorded.
        let shown = playground.cli(&["approve", "esc:one"]);
        assert!(
            shown.text().contains("No call of it begins."),
            "{}",
            shown.text()
        );
        assert!(
            shown.text().contains("No approval of it is in force"),
            "{}",
            shown.text()
        );
        assert!(!playground.path("sandbox-policies/approvals.toml").exists());

        // Nobody says yes.
        let asked = playground.cli(&["approve", "esc:one", "--why", "a test"]);
        assert_eq!(asked.code, Some(2), "{}", asked.stderr);
        playground.expect("esc:one", "{}", "SecurityError: not approved");
        approve(&playground, &["esc:one"]);
        playground.expect("esc:one", "{}", GOOD);
        let record = playground.records().pop().unwrap();
        assert_eq!(record["digests"]["script"].as_str().map(str::len), Some(64));
        assert!(unchanged(&playground, "esc:one@1.0.0"));
        let unknown = playground.cli(&["audit", "--who-can", "approved:esc:none"]);
        assert_eq!(unknown.code, Some(2), "{}", unknown.text());
        let audit = playground.cli(&["audit", "esc:one", "--json"]);
        assert_eq!(audit.out["approval"]["state"], "approved", "{}", audit.out);
        let listed = playground.cli(&["approve", "--list", "--json"]);
        let record = &listed.out["approvals"][0];
        assert_eq!(record["why"], "a test");
        assert_eq!(record["digests"]["code"].as_str().unwrap().len(), 64);
        let records = playground.records();
        let script = |line: &Value| line["digests"]["script"].as_str().map(str::len);
        assert!(records.iter().any(|line| script(line) == Some(64)));
        assert!(
            records
                .iter()
                .any(|line| line["approved"][0]["of"] == "esc:one@1.0.0")
        );

        // One byte of a module, of data, of the manifest, of the policy; each back again.
        let below = |name: &str| playground.path(&format!("user_scripts/one/{name}"));
        let policy = playground.path("sandbox-policies/strict.policy.toml");
        let changes = [
            (below("helper.py"), "good", "gooD", "code"),
            (below("data/table.csv"), "1,2", "1,3", "code"),
            (below("one.tool.json"), "30000", "20000", "definition"),
            (
                policy,
                "[files]",
                "[limits]\nprocesses = 3\n[files]",
                "grants",
            ),
        ];
        for (file, from, to, parts) in changes {
            let before = fs::read_to_string(&file).unwrap();
            let after = before.replacen(from, to, 1);
            assert_ne!(before, after, "{}", file.display());
            fs::write(&file, after).unwrap();
            playground.expect("esc:one", "{}", CHANGED);
            let (code, state, changed) = verified(&playground, "esc:one@1.0.0");
            assert_eq!((code, &*state), (Some(3), "changed"), "{changed}");
            assert!(changed.contains(parts), "{changed} for {}", file.display());
            // The person reads the lines of its code before the yes.
            let shown = playground.cli(&["approve", "esc:one"]).text();
            let lines = ["- WORD = 'good'", "+ WORD = 'gooD'"].map(|it| shown.contains(it));
            assert_eq!(lines, [to == "gooD"; 2], "{shown}");
            fs::write(&file, before).unwrap();
            playground.expect("esc:one", "{}", GOOD);
        }
    });
}

#[test]
fn the_difference_is_shown_before_it_is_approved_again_and_an_approval_can_be_taken_back() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    approve(&playground, &["esc:one"]);
    let helper = playground.path("user_scripts/one/helper.py");
    fs::write(&helper, "WORD = 'better'\n").unwrap();
    fs::write(playground.path("user_scripts/one/more.py"), "").unwrap();
    let shown = playground.cli(&["approve", "esc:one"]).text();
    assert!(
        shown.contains("./helper.py") || shown.contains("helper.py"),
        "{shown}"
    );
    assert!(shown.contains("more.py"), "{shown}");
    assert!(!shown.contains("table.csv"), "{shown}");
    playground.expect("esc:one", "{}", CHANGED);
    approve(&playground, &["esc:one"]);
    playground.expect("esc:one", "{}", "ok {\"word\":\"better\"}");
    let text = fs::read_to_string(playground.path("sandbox-policies/approvals.toml")).unwrap();
    assert_eq!(text.matches("[[approval]]").count(), 1, "{text}");

    let revoked = playground.cli(&["approve", "esc:one", "--revoke"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    playground.expect("esc:one", "{}", "SecurityError: not approved");
    assert_eq!(
        playground.cli(&["approve", "esc:one", "--revoke"]).code,
        Some(2)
    );
}

/// Files that are written in place are no event of their folder.
#[test]
fn a_server_sees_code_that_is_edited_in_place_and_runs_none_of_it() {
    if !has("python", 1) {
        return;
    }
    as_everyone("a swap between look and run", |who| {
        let playground = strict(who);
        let helper = playground.path("user_scripts/one/helper.py");
        let main = playground.path("user_scripts/one/main.py");
        approve(&playground, &["esc:one"]);
        let mut server = Server::start(&playground);
        let word = |server: &mut Server| server.called("esc:one", json!({})).to_string();
        let refused = "has changed since approval";
        assert!(word(&mut server).contains("good"));
        // Each of both files is changed under a host that looked at it, and put back.
        let script = fs::read_to_string(&main).unwrap();
        let texts = [
            (&helper, "WORD = 'good'\n", "WORD = 'evil'\n"),
            (&main, &script, "print('\"evil\"')\n"),
        ];
        for (file, good, evil) in texts {
            fs::write(file, evil).unwrap();
            let said = word(&mut server);
            assert!(said.contains(refused) && !said.contains("evil"), "{said}");
            fs::write(file, good).unwrap();
            assert!(word(&mut server).contains("good"));
        }
        fs::write(&helper, "WORD = 'evil'\n").unwrap();
        assert!(word(&mut server).contains(refused));
        // A one-shot call looks at its start.
        playground.expect("esc:one", "{}", CHANGED);
        server.reload("the tool is gone", |server| {
            !server.names().iter().any(|name| name.contains("one"))
        });
        // The control: put back, it is there again.
        fs::write(&helper, "WORD = 'good'\n").unwrap();
        server.reload("the tool is back", |server| {
            server.names().iter().any(|name| name.contains("one"))
        });
        assert!(word(&mut server).contains("good"));
        // A running host sees by itself that an approval is taken back.
        let revoked = playground.cli(&["approve", "esc:one", "--revoke"]);
        assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
        wait_for("a tool that is not approved any more is gone", || {
            !server.names().iter().any(|name| name.contains("one"))
        });
    });
}

#[test]
fn a_tool_cannot_change_its_approved_code_and_its_results_are_no_code() {
    if !has("python", 1) {
        return;
    }
    as_everyone("an approved tool that edits itself", |who| {
        let playground = strict(who);
        // The first call makes the folder of the results.
        fs::remove_dir(playground.path("user_scripts/one/out")).unwrap();
        approve(&playground, &["esc:one"]);
        let ended = playground.call("esc:one", "{\"attack\": true}");
        let said = &ended.out["outputData"];
        for attack in ["own", "new", "link", "move"] {
            assert!(
                said[attack].as_str().is_some_and(|it| it != "done"),
                "{attack}: {}",
                ended.out
            );
        }
        assert_eq!(said["out"], "done", "the control: {}", ended.out);
        assert!(playground.path("user_scripts/one/out/late.py").is_file());
        // What it left is shown to the next call, and nothing of the approval changed.
        let again = playground.call("esc:one", "{\"attack\": true}");
        assert_eq!(
            again.out["outputData"]["before"],
            json!(["late.py"]),
            "{}",
            again.out
        );
        assert!(unchanged(&playground, "esc:one@1.0.0"));
        playground.expect("esc:one", "{}", GOOD);
    });
}

#[test]
fn links_and_second_names_lead_to_no_other_code() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    let helper = playground.path("user_scripts/one/helper.py");
    let elsewhere = playground.path("granted/helper.py");
    approve(&playground, &["esc:one"]);
    let mut server = Server::start(&playground);
    assert!(words(&server.called("esc:one", json!({}))).contains("good"));
    // A second name outside of the folder, through which the file is written.
    fs::hard_link(&helper, &elsewhere).unwrap();
    playground.expect("esc:one", "{}", GOOD);
    fs::write(&elsewhere, "WORD = 'evil'\n").unwrap();
    let refused = "has changed since approval";
    assert!(words(&server.called("esc:one", json!({}))).contains(refused));
    playground.expect("esc:one", "{}", CHANGED);
    // A link to a file with the approved bytes is another thing, too.
    fs::remove_file(&helper).unwrap();
    fs::write(&elsewhere, "WORD = 'good'\n").unwrap();
    symlink(&elsewhere, &helper).unwrap();
    assert!(words(&server.called("esc:one", json!({}))).contains(refused));
    playground.expect("esc:one", "{}", CHANGED);
    fs::remove_file(&helper).unwrap();
    fs::write(&helper, "WORD = 'good'\n").unwrap();
    playground.expect("esc:one", "{}", GOOD);
    assert!(words(&server.called("esc:one", json!({}))).contains("good"));
}

#[test]
fn code_behind_a_wide_pattern_or_in_a_shared_folder_is_part_of_it() {
    if !has("python", 1) {
        return;
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import os, sys\nhere = os.path.dirname(__file__)\n\
                  exec(open(here + '/data/x.txt').read())\n\
                  exec(open(here + '/../lib/shared.py').read())\n";
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/*", "base:lib/**"]}}});
    let folder = playground.tool("wide", "python", script, asks);
    fs::create_dir_all(folder.join("data")).unwrap();
    fs::create_dir_all(folder.join("rest")).unwrap();
    fs::create_dir_all(playground.path("user_scripts/lib")).unwrap();
    let hidden = folder.join("data/x.txt");
    let shared = playground.path("user_scripts/lib/shared.py");
    fs::write(&hidden, "word = 'good'\n").unwrap();
    fs::write(&shared, "print('\"%s\"' % word)\n").unwrap();
    fs::write(folder.join("rest/unread.py"), "").unwrap();
    let base = playground.path("user_scripts").display().to_string();
    for (name, asked) in [("abs", "lib/**"), ("above", "**")] {
        let asked = format!("{base}/{asked}");
        let asks =
            json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/*", asked]}}});
        let folder = playground.tool(name, "python", script, asks);
        fs::create_dir_all(folder.join("data")).unwrap();
        fs::write(folder.join("data/x.txt"), "word = 'good'\n").unwrap();
    }
    let rules = format!(
        "[approval]\nrequired = true\n[files]\nread = [{{ path = \"./**\", why = \"w\" }}, {{ path = \
         \"{base}/**\", why = \"w\" }}]\n"
    );
    playground.policy("strict", "esc:*", &rules);
    playground.settle();
    approve(&playground, &["esc:wide"]);
    playground.expect("esc:wide", "{}", "ok \"good\"");
    for file in [&hidden, &shared, &folder.join("rest/unread.py")] {
        let before = fs::read_to_string(file).unwrap();
        fs::write(file, format!("{before}# more\n")).unwrap();
        playground.expect("esc:wide", "{}", CHANGED);
        fs::write(file, before).unwrap();
        playground.expect("esc:wide", "{}", "ok \"good\"");
    }
    // An absolute path leads to the same code, and one above it to a mount that others could move.
    approve(&playground, &["esc:abs"]);
    playground.expect("esc:abs", "{}", "ok \"good\"");
    let before = fs::read_to_string(&shared).unwrap();
    fs::write(&shared, "print('\"evil\"')").unwrap();
    playground.expect("esc:abs", "{}", CHANGED);
    fs::write(&shared, before).unwrap();
    let above = playground.cli(&["approve", "esc:above", "--why", "w", "--yes"]);
    let words = "which holds its code: grant the parts";
    assert!(above.stderr.contains(words), "{}", above.stderr);
    // What an interpreter caches is no code of the tool, and is not shown to it.
    fs::create_dir(folder.join("data/__pycache__")).unwrap();
    fs::write(folder.join("data/__pycache__/x.pyc"), "x").unwrap();
    playground.expect("esc:wide", "{}", "ok \"good\"");
    // (Another tool of this host is not approved.)
    assert_eq!(verified(&playground, "esc:wide@1.0.0").1, "unchanged");
}

#[test]
fn a_renamed_or_new_tool_is_a_change_of_its_set() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    playground.tool("two", "python", "print(2)\n", json!({}));
    playground.settle();
    approve(&playground, &["--all-of", "esc:*"]);
    playground.expect("esc:two", "{}", "ok 2");
    assert!(unchanged(&playground, "esc:*"));
    // The same file under another name.
    let file = playground.path("user_scripts/two/two.tool.json");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, before.replace("esc:two", "esc:too")).unwrap();
    playground.expect("esc:too", "{}", "SecurityError: not approved");
    let (code, state, changed) = verified(&playground, "esc:*");
    assert_eq!((code, &*state), (Some(3), "changed"));
    assert!(
        changed.contains("new: esc:too@1.0.0") && changed.contains("gone: esc:two@1.0.0"),
        "{changed}"
    );
    assert_eq!(verified(&playground, "esc:two@1.0.0").1, "gone");
    // The others run on.
    playground.expect("esc:one", "{}", GOOD);
    fs::write(&file, before).unwrap();
    playground.expect("esc:two", "{}", "ok 2");
    assert!(unchanged(&playground, "esc:*"));
    let revoked = playground.cli(&["approve", "esc:*", "--revoke"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    playground.expect("esc:one", "{}", "SecurityError: not approved");
}

#[test]
fn approvals_that_others_can_write_or_that_cannot_be_read_stop_everything() {
    if !has("python", 1) {
        return;
    }
    as_everyone("a list of approvals of somebody else", |who| {
        let playground = strict(who);
        approve(&playground, &["esc:one"]);
        let file = playground.path("sandbox-policies/approvals.toml");
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let refused = |words: &str| {
            let ended = playground.call("esc:one", "{}");
            let told = format!("{}{}", ended.stderr, ended.out);
            assert_eq!(ended.code, Some(3), "{told}");
            assert!(told.contains(words), "{told}");
        };
        mode(0o666);
        refused("can be written by others");
        mode(0o644);
        playground.expect("esc:one", "{}", GOOD);
        if who == Who::User && is_root() {
            std::os::unix::fs::chown(&file, Some(54321), None).unwrap();
            refused("chown");
            std::os::unix::fs::chown(&file, Some(who.uid().unwrap()), None).unwrap();
            playground.expect("esc:one", "{}", GOOD);
        }
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("[[approval]]", "[[approvals]]")).unwrap();
        refused("not a list of approvals");
        // A record that was edited approves nothing else.
        let code = text.find("code = \"").unwrap() + 8;
        let other = if &text[code..=code] == "0" { "1" } else { "0" };
        fs::write(
            &file,
            format!("{}{other}{}", &text[..code], &text[code + 1..]),
        )
        .unwrap();
        playground.expect("esc:one", "{}", CHANGED);
        fs::write(&file, text).unwrap();
        playground.expect("esc:one", "{}", GOOD);
    });
}

#[test]
fn what_is_too_large_or_no_plain_code_is_refused_and_says_how_to_go_on() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    let folder = playground.path("user_scripts/one");
    let refused = |what: &str, words: &str| {
        let ended = playground.cli(&["approve", "esc:one", "--why", "w", "--yes"]);
        assert_eq!(ended.code, Some(2), "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{what}: {}", ended.stderr);
    };
    let large = folder.join("data/large.bin");
    fs::File::create(&large).unwrap().set_len(65 << 20).unwrap();
    refused("64 MiB", "into a folder outside");
    // However large it is, no more than that is read.
    let endless = fs::File::options().write(true).open(&large).unwrap();
    endless.set_len(1 << 40).unwrap();
    refused("1 TiB", "into a folder outside");
    fs::remove_file(&large).unwrap();
    let many = folder.join("many");
    fs::create_dir(&many).unwrap();
    (0..5000).for_each(|n| fs::write(many.join(n.to_string()), "").unwrap());
    refused("5,000 files", "into tools of their own");
    fs::remove_dir_all(&many).unwrap();
    fs::create_dir(folder.join(".venv")).unwrap();
    fs::write(folder.join(".venv/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    refused("a venv", " deps lock ");
    fs::remove_dir_all(folder.join(".venv")).unwrap();
    let pipe = folder.join("data/pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    refused("a pipe", "remove it");
    fs::remove_file(&pipe).unwrap();
    playground.tool_at("esc:flat", "python", "flat.py", "print(1)\n", json!({}));
    playground.settle();
    let flat = playground.cli(&["approve", "esc:flat", "--why", "w", "--yes"]);
    assert!(
        flat.stderr.contains("a folder of its own"),
        "{}",
        flat.stderr
    );
    // As much in the folder that it writes is no code.
    let results = folder.join("out/large.bin");
    fs::File::create(&results)
        .unwrap()
        .set_len(65 << 20)
        .unwrap();
    approve(&playground, &["esc:one"]);
    playground.expect("esc:one", "{}", GOOD);
}

#[test]
fn a_manifest_names_its_own_digest_without_a_record() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    playground.allow("strict", "esc:*", &["./**"], &["./out/**"]);
    let file = playground.path("user_scripts/one/one.tool.json");
    playground.expect("esc:one", "{}", GOOD);
    let shown = playground.cli(&["approve", "esc:one"]).text();
    let pin = shown
        .split("can name it: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let mut pinned = |pin: &str| {
        manifest["approval"] = json!({"sha256": pin});
        fs::write(&file, manifest.to_string()).unwrap();
    };
    pinned(&"0".repeat(64));
    let refused = playground.expect("esc:one", "{}", CHANGED);
    assert!(
        refused.stderr.contains("`approval.sha256`"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("--why"), "{}", refused.stderr);
    let (code, state, changed) = verified(&playground, "esc:one@1.0.0");
    assert_eq!((code, &*state), (Some(3), "changed"), "{changed}");
    // A record would not make it run.
    let recorded = playground.cli(&["approve", "esc:one", "--why", "w", "--yes"]);
    assert_eq!(recorded.code, Some(2), "{}", recorded.stderr);
    assert!(recorded.stderr.contains(pin), "{}", recorded.stderr);
    pinned(pin);
    playground.expect("esc:one", "{}", GOOD);
    assert!(unchanged(&playground, "esc:one@1.0.0"));
    fs::write(
        playground.path("user_scripts/one/helper.py"),
        "WORD = 'evil'\n",
    )
    .unwrap();
    playground.expect("esc:one", "{}", CHANGED);
}

#[test]
fn the_records_hold_on_another_machine() {
    if !has("python", 1) {
        return;
    }
    let (first, second) = (
        strict(Who::ours()),
        Playground::new(Who::ours(), "/var/tmp"),
    );
    approve(&first, &["esc:one"]);
    for name in ["user_scripts", "sandbox-policies"] {
        fs::remove_dir_all(second.path(name)).unwrap();
        copy(&first.path(name), &second.path(name));
    }
    second.settle();
    assert!(unchanged(&second, "esc:one@1.0.0"));
    // It makes its own copy of what was approved.
    second.expect("esc:one", "{}", GOOD);
    fs::write(second.path("user_scripts/one/helper.py"), "WORD = 'evil'\n").unwrap();
    second.expect("esc:one", "{}", CHANGED);
}

#[test]
fn what_builtin_tools_run_is_approved_code_and_source_text_is_for_policies() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    playground.allow_builtin_tools();
    fs::create_dir_all(playground.path("user_scripts/free")).unwrap();
    fs::write(playground.path("user_scripts/free/main.py"), "print(1)\n").unwrap();
    fs::write(
        playground.path("sandbox-policies/host.policy.toml"),
        "name = \"cap\"\nwhy = \"a test\"\n[approval]\nrequired = true\n[files]\nread = [{ path = \"./**\", \
         why = \"w\" }]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n",
    )
    .unwrap();
    playground.settle();
    let run = |script: &str, wanted: &str| {
        let input = json!({"scriptPath": script, "inputData": {}}).to_string();
        let ended = playground.call("core:execute-python-script", &input);
        let told = format!("{} {}", ended.out, ended.stderr);
        assert!(told.contains(wanted), "{script}: {told}");
    };
    run("one/main.py", "refuse");
    approve(&playground, &["esc:one"]);
    run("one/main.py", "good");
    run(
        "free/main.py",
        "free/main.py belongs to no tool: give it a manifest",
    );
    fs::write(
        playground.path("user_scripts/one/helper.py"),
        "WORD = 'evil'\n",
    )
    .unwrap();
    run("one/main.py", "changed since approval");
}

#[cfg(feature = "wasi")]
#[test]
fn a_module_and_tools_without_code_are_approved_too() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let more = json!({"execution": {"timeoutMs": 60_000}});
    playground.tool("module", "wasm", PRINTS_ONE, more);
    let alias = manifest(
        "esc:name",
        json!({"type": "alias", "tool": "esc:module"}),
        json!({}),
    );
    let mut alias = alias;
    for field in ["parameters", "securityContext", "execution"] {
        alias.as_object_mut().unwrap().remove(field);
    }
    fs::write(
        playground.path("tool-defs/name.tool.json"),
        alias.to_string(),
    )
    .unwrap();
    playground.policy("strict", "esc:*", "[approval]\nrequired = true\n");
    playground.settle();
    playground.expect("esc:module", "{}", "SecurityError: not approved");
    approve(&playground, &["esc:module"]);
    playground.expect("esc:module", "{}", "ok 1");
    playground.expect("esc:name", "{}", "SecurityError: not approved");
    approve(&playground, &["esc:name"]);
    playground.expect("esc:name", "{}", "ok 1");
    let module = playground.path("user_scripts/module/main.wat");
    let text = fs::read_to_string(&module).unwrap();
    fs::write(&module, format!("{text}\n;; more")).unwrap();
    playground.expect("esc:module", "{}", CHANGED);
    playground.expect("esc:name", "{}", CHANGED);
    fs::write(&module, text).unwrap();
    playground.expect("esc:name", "{}", "ok 1");
    // A resource shows the file that was approved.
    let handler = json!({"type": "resource", "uri": "doc://page", "file": "page.txt"});
    let mut resource = manifest("esc:page", handler, json!({}));
    resource.as_object_mut().unwrap().remove("parameters");
    let folder = playground.path("user_scripts/page");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("page.resource.json"), resource.to_string()).unwrap();
    fs::write(folder.join("page.txt"), "good").unwrap();
    approve(&playground, &["esc:page"]);
    let shown = playground.call("esc:page", "{}");
    assert!(
        shown.out.to_string().contains("good"),
        "{}{}",
        shown.out,
        shown.stderr
    );
    fs::write(folder.join("page.txt"), "evil").unwrap();
    playground.expect("esc:page", "{}", CHANGED);
}

#[test]
fn what_is_new_is_said_from_the_value_that_is_compared() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    approve(&playground, &["esc:one"]);
    let policy = playground.path("sandbox-policies/strict.policy.toml");
    let manifest = playground.path("user_scripts/one/one.tool.json");
    let shown = || playground.cli(&["approve", "esc:one"]).text();
    // The control: other bytes, and no new grant.
    fs::write(playground.path("user_scripts/one/more.py"), "").unwrap();
    let said = shown();
    assert!(
        said.contains("No grant, limit or capability is new."),
        "{said}"
    );
    assert!(said.contains("new file: ./more.py"), "{said}");
    let rules = fs::read_to_string(&policy).unwrap();
    let asks = fs::read_to_string(&manifest).unwrap();
    let more = rules.replace("./out/**", "./**");
    fs::write(&policy, more).unwrap();
    fs::write(&manifest, asks.replace("\"out/\"", "\"out/\", \"more/\"")).unwrap();
    let said = shown();
    assert!(said.contains("new: write ./more/**"), "{said}");
    assert!(!said.contains("is new."), "{said}");
    // A larger limit, by its ceiling.
    fs::write(&manifest, asks).unwrap();
    fs::write(
        &policy,
        rules.replace("[approval]", "[limits]\ntimeout_ms = 400_000\n[approval]"),
    )
    .unwrap();
    let said = shown();
    assert!(!said.contains("is new."), "{said}");
    assert!(said.contains("new: timeoutMs 400000"), "{said}");
}

#[test]
fn how_a_secret_is_used_is_part_of_what_was_approved() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    let asks = json!({"securityContext": {"requiredCapabilities": ["secret:KEY"],
        "networkAccess": {"allowHosts": ["api.example.org"]}}});
    playground.tool("web", "python", "print(1)\n", asks);
    let rules = |from: &str, paths: &str| {
        let rules = format!(
            "[approval]\nrequired = true\n[network]\nhosts = [{{ host = \"api.example.org\", why = \"w\" }}]\n\
             [secrets]\ngrant = [{{ name = \"KEY\", from = \"{from}\", why = \"w\", header = {{ host = \
             \"api.example.org\", name = \"authorization\"{paths} }} }}]\n"
        );
        playground.policy("web", "esc:web", &rules);
    };
    let narrow = ", methods = [\"GET\"], paths = [\"/repos/**\"]";
    rules("env:ONE", narrow);
    playground.settle();
    approve(&playground, &["esc:web"]);
    assert_eq!(verified(&playground, "esc:web@1.0.0").1, "unchanged");
    for (from, paths) in [("env:ONE", ""), ("env:TWO", narrow)] {
        rules(from, paths);
        let (code, state, changed) = verified(&playground, "esc:web@1.0.0");
        assert_eq!((code, &*state), (Some(3), "changed"), "{from} {paths}");
        assert!(changed.contains("grants"), "{changed}");
        let said = playground.cli(&["approve", "esc:web"]).text();
        assert!(said.contains("new: KEY"), "{said}");
    }
    rules("env:ONE", narrow);
    assert_eq!(verified(&playground, "esc:web@1.0.0").1, "unchanged");
}

#[test]
fn where_nothing_is_approved_nothing_is_verified() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.settle();
    let verify = playground.cli(&["approve", "--verify", "--json"]);
    assert_eq!(verify.code, Some(3), "{}", verify.stderr);
    assert_eq!(verify.out["unchanged"], false, "{}", verify.out);
    assert!(
        verify.stderr.contains("Nothing is approved here"),
        "{}",
        verify.stderr
    );
    assert!(
        verify.stderr.contains("sandbox-policies/approvals.toml"),
        "{}",
        verify.stderr
    );
    let list = playground.cli(&["approve", "--list"]);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    // What comes with this binary has no code that a person could approve.
    playground.allow_builtin_tools();
    let own = playground.cli(&[
        "approve",
        "core:execute-python-script",
        "--why",
        "w",
        "--yes",
    ]);
    assert_eq!(own.code, Some(2), "{}", own.stderr);
    assert!(own.stderr.contains("needs no approval"), "{}", own.stderr);
    assert!(!playground.path("sandbox-policies/approvals.toml").exists());
}

#[test]
fn approvals_at_the_same_time_lose_nothing() {
    if !has("python", 1) {
        return;
    }
    let playground = strict(Who::ours());
    let names: Vec<String> = (0..6).map(|n| format!("t{n}")).collect();
    for name in &names {
        playground.tool(name, "python", "print(1)\n", json!({}));
    }
    playground.settle();
    let all = |words: &[&str]| {
        std::thread::scope(|scope| {
            let runs: Vec<_> = names
                .iter()
                .map(|name| {
                    let of = format!("esc:{name}");
                    let playground = &playground;
                    scope.spawn(move || {
                        let run = || playground.cli(&[&["approve", &of], words].concat());
                        let mut ended = run();
                        // Who waited for the lock in vain has changed nothing.
                        while ended
                            .stderr
                            .contains("another process changes it; try again")
                        {
                            ended = run();
                        }
                        ended.code
                    })
                })
                .collect();
            for run in runs {
                assert_eq!(run.join().unwrap(), Some(0));
            }
        });
    };
    let count = || {
        let text = fs::read_to_string(playground.path("sandbox-policies/approvals.toml")).unwrap();
        text.matches("[[approval]]").count()
    };
    all(&["--why", "w", "--yes"]);
    assert_eq!(count(), names.len());
    all(&["--revoke"]);
    assert_eq!(count(), 0);
}
