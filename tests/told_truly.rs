//! Failures that are not the tool's are told by their cause: a removed file, a limit of this process, a new folder.

use crate::harness::{Host, Playground, Server, Who, finish, host, is_root, kind};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

/// What a call of this tool says.
fn said(server: &mut Server, tool: &str) -> String {
    let answer = server.called(tool, json!({}));
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn a_path_that_went_is_no_policy_and_no_missing_wall() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let data = playground.path("data");
    fs::create_dir_all(&data).unwrap();
    let reads = json!({ "securityContext": { "fileAccess": { "allowRead": [format!("{}/**", data.display())] } } });
    playground.tool("data", "python", "print(1)\n", reads);
    let script = playground.tool("script", "python", "print(1)\n", json!({})).join("main.py");
    playground.tool("interpreter", "python", "print(1)\n", json!({}));
    let one = "(module (import \"wasi_snapshot_preview1\" \"fd_write\" (func $w (param i32 i32 i32 i32) (result i32)))\
        (memory (export \"memory\") 1) (data (i32.const 0) \"\\08\\00\\00\\00\\01\\00\\00\\001\")\
        (func (export \"_start\") (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))";
    let module = playground.tool("module", "wasm", one, json!({})).join("main.wat");
    // An interpreter of its own, so that it can go.
    let venv = playground.path("venv");
    let made = Command::new("/usr/bin/python3").args(["-m", "venv", "--copies", "--without-pip"]).arg(&venv).output();
    assert!(made.unwrap().status.success());
    let python = venv.join("bin/python");
    let rules = format!(
        "[files]\nread = [{{ path = \"./**\", why = \"w\" }}, {{ path = \"{}/**\", why = \"w\" }}]\n",
        data.display()
    );
    let named = format!("{rules}[runtimes]\npython = {{ path = \"{}\", why = \"w\" }}\n", python.display());
    playground.policy("data", "esc:data", &rules);
    playground.policy("interpreter", "esc:interpreter", &named);
    playground.settle();
    for program in fs::read_dir(venv.join("bin")).unwrap() {
        fs::set_permissions(program.unwrap().path(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut server = Server::start(&playground);
    let here = |tool: &str| cfg!(feature = "wasi") || tool != "esc:module";
    for tool in ["esc:data", "esc:script", "esc:interpreter", "esc:module"].into_iter().filter(|tool| here(tool)) {
        assert_eq!(said(&mut server, tool), "1", "{tool}: the control");
    }
    fs::remove_dir_all(&data).unwrap();
    fs::remove_file(&script).unwrap();
    fs::remove_file(&module).unwrap();
    fs::remove_file(&python).unwrap();
    for (tool, words) in [
        ("esc:data", "a granted path does not exist"),
        ("esc:script", "the tool's script is not there any more"),
        ("esc:module", "the tool's script is not there any more"),
        ("esc:interpreter", "the interpreter of this tool is not there any more"),
    ]
    .into_iter()
    .filter(|(tool, _)| here(tool))
    {
        let told = said(&mut server, tool);
        assert!(told.contains("DependencyError") && told.contains(words), "{tool}: {told}");
        assert!(!told.contains("wall") && !told.contains("policy"), "{tool}: {told}");
    }
    fs::create_dir(&script).unwrap();
    let told = said(&mut server, "esc:script");
    assert!(told.contains("DependencyError") && told.contains("not a regular file any more"), "{told}");
}

/// Scripts may lie where this host may not write, also directly in a base folder: it runs without a folder for results.
#[test]
fn a_script_that_lies_where_this_host_may_not_write_runs_without_its_cache() {
    if !is_root() {
        return;
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    playground.allow_builtin_tools();
    for script in ["user_scripts/plain.py", "user_scripts/other/plain.py"] {
        fs::write(playground.path(script), "print('{\"a\": 1}')\n").unwrap();
    }
    playground.settle();
    let run =
        |script: &str| playground.call("core:execute-python-script", &json!({ "scriptPath": script }).to_string()).out;
    for script in ["plain.py", "other/plain.py"] {
        let outcome = run(script);
        assert_eq!(outcome["success"], true, "the control: {outcome}");
        let cache = playground.path("user_scripts").join(script).with_file_name(".cache");
        assert!(fs::remove_dir(cache).is_ok(), "the control: it is made where it can be");
    }
    for folder in ["user_scripts", "user_scripts/other"] {
        std::os::unix::fs::chown(playground.path(folder), Some(0), Some(0)).unwrap();
    }
    for script in ["plain.py", "other/plain.py"] {
        let outcome = run(script);
        assert_eq!(outcome["outputData"], json!({ "a": 1 }), "{outcome}");
        let notes = outcome["notes"].to_string();
        assert!(notes.contains("write .cache/**: it is not there, and cannot be made"), "{outcome}");
    }
}

impl Host {
    /// A shell that sets something, and then runs the host with these words.
    fn after(&self, set: &str, words: &str, state: &str) -> (i32, String, String) {
        let root = self.folder.path().to_str().unwrap();
        let run = format!("{set}; exec {} --root {root} {words}", env!("CARGO_BIN_EXE_toolhost"));
        let output = Command::new("/bin/bash")
            .args(["-c", &run])
            .env("XDG_STATE_HOME", self.folder.path().join(state))
            .env("HOME", self.folder.path().join(state))
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }
}

#[test]
fn limits_of_the_process_are_told_as_what_they_are() {
    let host = host();
    host.tool("t:one", json!({}));
    let call = "call t:one --input '{}'";
    // The host is not ended by SIGXFSZ, and the tool's own limit on files is not touched.
    let (code, _, err) = host.after("ulimit -f 0", call, "s1");
    assert!(code == 4 && err.contains("File too large"), "{code} {err}");
    let (code, _, err) = host.after("ulimit -n 20", call, "s2");
    assert!(code == 4 && err.contains("may have 20 open files") && err.contains("ulimit -n"), "{code} {err}");
    assert!(!err.contains("wall"), "{err}");
    for words in [call, "list", "call t:one --json --input '{}'"] {
        let (code, _, err) = host.after("exec 1>&-", words, "s3");
        assert!(code == 4 && err.contains("standard output cannot be written"), "{words}: {code} {err}");
    }
    let (code, _, err) = host.after("exec 1>&-", "serve --stdio", "s3");
    assert!(code == 4 && err.contains("standard output is closed"), "{code} {err}");
    let (code, ..) = host.after("exec 1>/dev/null", "list", "s3");
    assert_eq!(code, 0, "the control: it is open, and nobody reads it");
}

#[test]
fn what_this_host_makes_its_owner_can_open_whatever_the_umask() {
    let host = host();
    fs::create_dir(host.folder.path().join("made")).unwrap();
    let (_, _, err) = host.after("umask 777", "call no:such", "made");
    assert!(err.contains("ToolNotFoundError"), "{err}");
    let mut seen = 0;
    for entry in walkdir::WalkDir::new(host.folder.path().join("made")).min_depth(1) {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o600, 0o600, "{}: {mode:o}", entry.path().display());
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

/// As many policies as tools: four times as many take some four times as long.
#[test]
fn check_does_not_grow_with_tools_times_policies() {
    let took = |count: usize| {
        let host = host();
        fs::create_dir_all(host.folder.path().join("sandbox-policies")).unwrap();
        for n in 0..count {
            host.tool(&format!("t:n{n}"), json!({}));
            let own = format!("tools = [\"t:n{n}\"]\nfolders = [\"user_scripts/n{n}\"]\n");
            let text =
                format!("name = \"p{n}\"\nwhy = \"w\"\n{own}[files]\nread = [{{ path = \"./**\", why = \"w\" }}]\n");
            fs::write(host.folder.path().join(format!("sandbox-policies/p{n}.policy.toml")), text).unwrap();
        }
        let times = (0..2).map(|_| {
            let began = Instant::now();
            let (code, out, _) = host.run(&["check"]);
            assert!(code == 0 && out.contains(&format!("{} good", 2 * count)), "{out}");
            began.elapsed()
        });
        times.min().unwrap()
    };
    let (few, many) = (took(150), took(600));
    assert!(many < few * 10, "{few:?}, then {many:?}");
}

/// With some calls at a time it has descriptors enough, with many not: whatever is missing them is told as that.
#[test]
fn a_host_with_few_descriptors_blames_no_path_and_no_wall() {
    let who = Who::ours();
    let playground = Playground::new(who, "/var/tmp");
    playground.without_breaker();
    playground.tool("slow", "python", "import time\ntime.sleep(0.5)\nprint(1)\n", json!({}));
    playground.settle();
    let mut few = playground.outside("/usr/bin/prlimit");
    few.arg("--nofile=100:100");
    let mut server = Server::of(playground.host_by(few));
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..3 {
        let calls: Vec<u64> = (0..40).map(|_| server.call("esc:slow", json!({}))).collect();
        for answer in server.answers(&calls).values() {
            let told = answer.to_string();
            match kind(answer).as_str() {
                "none" => answered += 1,
                "InternalError" if told.contains("descriptors") => refused += 1,
                // It could not look at the files beside the script, and says why.
                _ if told.contains("DependencyError") && told.contains("Too many open files") => refused += 1,
                other => panic!("{who:?}: {other}: {told}"),
            }
        }
    }
    assert!(answered > 0 && refused > 0, "{who:?}: {answered} answered, {refused} refused");
}

/// A tool gives way to its host, however nice that one is itself.
#[test]
fn tools_are_nicer_than_their_host() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("nice", "python", "import os\nprint(os.getpriority(os.PRIO_PROCESS, 0))\n", json!({}));
        playground.settle();
        for (host, wanted) in [(0, 10), (5, 15), (11, 19), (19, 19)] {
            let mut nice = playground.outside("/usr/bin/nice");
            nice.args(["-n", &host.to_string()]);
            let mut call = playground.host_by(nice);
            call.args(["call", "esc:nice", "--json"]);
            let ended = finish(call, b"");
            assert_eq!(ended.out["outputData"], json!(wanted), "{who:?}: host {host}: {ended:?}");
        }
    }
}

/// A link that leads nowhere is not the same as no policies.
#[test]
fn a_dangling_link_in_the_place_of_the_policies_refuses() {
    let host = host();
    host.tool("t:one", json!({}));
    let (_, audit, _) = host.run(&["audit", "t:one"]);
    assert!(audit.contains("built-in default"), "the control: {audit}");
    std::os::unix::fs::symlink("/nowhere", host.folder.path().join("sandbox-policies")).unwrap();
    let (code, _, err) = host.run(&["call", "t:one"]);
    assert!(code == 3 && err.contains("sandbox-policies: is a symbolic link"), "{code} {err}");
}
