//! `audit` as a person meets it: past calls, questions about relative paths, what no policy can grant.

use crate::harness::host;
use serde_json::Value;

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
    let whole = "if the script that it runs lies in a folder above it";
    let part = "a part of it, if the script that it runs lies there or below";
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
