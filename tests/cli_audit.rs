//! `audit` as a person meets it: past calls, questions about relative paths, what no policy can grant.

use crate::harness::{Playground, Who, host};
use serde_json::Value;

#[test]
fn a_past_call_is_readable_and_json_has_it_whole() {
    let host = host();
    let (_, out, _) = host.run(&["call", "core:execute-python-script", "--json", "scriptPath=/abs.py"]);
    let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
    let (code, text, err) = host.run(&["audit", "--call", &id]);
    assert_eq!(code, 0, "{err}");
    assert!(!text.lines().any(|line| line.trim().starts_with(['{', '"'])), "it is no JSON: {text}");
    for part in [&format!("call {id}"), "core:execute-python-script@1.0.0", "SecurityError", "nothing was started"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let (_, json, _) = host.run(&["audit", "--call", &id, "--json"]);
    let recalled: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(recalled["record"]["call"], Value::from(id));
}

#[test]
fn a_question_about_a_relative_path_starts_at_the_current_folder() {
    let host = host();
    let here = host.folder.path().canonicalize().unwrap();
    let scripts = here.join("user_scripts");
    for (question, meant) in [
        ("write:out/x.csv", scripts.join("out/x.csv")),
        ("write:./out", scripts.join("out")),
        ("write:../tool-defs", here.join("tool-defs")),
        ("write:/srv/x", "/srv/x".into()),
    ] {
        let output = host.command().current_dir(&scripts).args(["audit", "--who-can", question]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&format!("write {}", meant.display())), "{question}: {text}");
    }
    // Grants hold no links: what is asked about is what the path leads to, also where that is not there yet.
    std::os::unix::fs::symlink(&scripts, here.join("link")).unwrap();
    let (_, text, _) = host.run(&["audit", "--who-can", &format!("write:{}/link/new/x", here.display())]);
    assert!(text.contains(&format!("write {}", scripts.join("new/x").display())), "{text}");
    let (code, _, err) = host.run(&["audit", "--who-can", "write:a/../b"]);
    assert!(code == 2 && err.contains("`..`"), "{err}");
}

/// The builtin tools write `.cache` beside the script that a call names: that can be in any folder below a base.
#[test]
fn who_can_counts_every_folder_a_script_may_lie_in() {
    let host = host();
    let root = host.folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("sandbox-policies")).unwrap();
    std::fs::copy("sandbox-policies/core.policy.toml", root.join("sandbox-policies/core.policy.toml")).unwrap();
    std::fs::create_dir_all(root.join("user_scripts/demo/.cache/deep")).unwrap();
    std::fs::write(root.join("user_scripts/demo/s.py"), "").unwrap();
    std::os::unix::fs::symlink(root.join("user_scripts"), root.join("link")).unwrap();
    let whole = "if the script it is told to run lies in a folder above it";
    let part = "a part of it, if the script it is told to run lies there or below";
    for (question, how) in [
        ("write:user_scripts", Some(part)),
        ("write:user_scripts/demo", Some(part)),
        ("write:user_scripts/demo/not-there-yet", None),
        ("write:user_scripts/demo/.cache", Some(whole)),
        ("write:user_scripts/demo/.cache/deep/x", Some(whole)),
        ("write:user_scripts/.cache/x", Some(whole)),
        ("write:link/demo", Some(part)),
        ("write:", Some(part)),
        ("write:user_scripts/demo/s.py", None),
        ("write:elsewhere", None),
        ("write:state", None),
        ("read:user_scripts/demo", Some(whole)),
        ("read:link", Some(whole)),
    ] {
        let asked = question.replace(':', &format!(":{}/", root.display()));
        let (code, out, err) = host.run(&["audit", "--who-can", &asked, "--json"]);
        let answers: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {code} {out}{err}"));
        let answers = answers["answers"].as_array().unwrap();
        let found = answers.iter().find(|answer| answer["tool"] == "core:execute-python-script@1.0.0");
        assert_eq!(found.map(|answer| answer["how"].as_str().unwrap()), how, "{question}: {out}");
    }
    // The same where the folder of scripts is named through a link.
    let asked = format!("write:{}/user_scripts/demo", root.display());
    let link = root.join("link");
    let output = host.command().args(["--scripts", link.to_str().unwrap(), "audit", "--who-can", &asked]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("core:execute-python-script") && text.contains(part), "{text}");
}

/// What a tool finds at the places that no grant speaks of is what `audit` names, and nothing else.
#[test]
fn audit_names_what_every_tool_sees() {
    let playground = Playground::new(Who::ours(), "/tmp");
    let script = "import json, os\nprint(json.dumps({p: os.listdir(p) for p in ['/', '/etc', '/dev', '/run', '/var', '/var/tmp']}))\n";
    playground.tool("lists", "python", script, serde_json::json!({}));
    playground.settle();
    let seen = playground.call("esc:lists", "{}").out["outputData"].clone();
    let output = playground.host().args(["audit", "esc:lists", "--json"]).output().unwrap();
    let audit: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let everywhere = &audit["everywhere"];
    let lists = [
        &audit["system"],
        &audit["runtime"]["roots"],
        &everywhere["madeUp"],
        &everywhere["devices"],
        &everywhere["scratch"],
        &everywhere["empty"],
    ];
    let mut named: Vec<String> = lists
        .iter()
        .flat_map(|list| list.as_array().unwrap_or_else(|| panic!("{audit}")))
        .chain([&everywhere["proc"], &everywhere["toolhost"], &audit["folder"]])
        .map(|path| path.as_str().unwrap().to_owned())
        .collect();
    named.push("/etc".into());
    for (folder, entries) in seen.as_object().unwrap_or_else(|| panic!("{seen}")) {
        for entry in entries.as_array().unwrap() {
            let path = format!("{}/{}", folder.trim_end_matches('/'), entry.as_str().unwrap());
            let known = named.iter().any(|named| *named == path || named.starts_with(&format!("{path}/")));
            assert!(known, "{path} is in view, and audit does not name it: {named:?}");
        }
    }
    // And the other way round: what audit names of these is there.
    for (list, folder) in [("madeUp", "/etc/"), ("devices", "/dev/")] {
        for path in everywhere[list].as_array().unwrap() {
            let name = path.as_str().unwrap().strip_prefix(folder).unwrap();
            let entries = seen[folder.trim_end_matches('/')].as_array().unwrap();
            assert!(entries.contains(&Value::from(name)), "{path} is named, and not in view: {entries:?}");
        }
    }
    let (text, empty) =
        (playground.host().args(["audit", "esc:lists", "--all"]).output().unwrap().stdout, "/run /var/tmp");
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(empty) && text.contains("/.toolhost") && text.contains("/etc/passwd"), "{text}");
}

/// The report of a large registry is printed as it is made: it takes no more memory than the list of its tools.
#[test]
fn a_report_of_every_tool_is_not_held_in_memory() {
    let host = host();
    for n in 0..600 {
        host.tool(&format!("t:many{n}"), serde_json::json!({}));
    }
    let root = host.folder.path().to_str().unwrap();
    let peak = |arguments: &[&str]| -> u64 {
        let python = "import resource, subprocess, sys\nsubprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n\
                      print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n";
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.args(["-c", python, env!("CARGO_BIN_EXE_toolhost"), "--root", root]).args(arguments);
        let output = command.env("XDG_STATE_HOME", host.folder.path().join("state")).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap_or_else(|e| panic!("{e}: {arguments:?}"))
    };
    let (list, audit) = (peak(&["list"]), peak(&["audit", "--all", "--json"]));
    assert!(audit < list + 15 * 1024, "KiB: list {list}, audit {audit}");
    let (_, out, _) = host.run(&["audit", "--all", "--json"]);
    let whole: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(whole["tools"].as_array().unwrap().len(), 605, "the builtin ones too");
}
