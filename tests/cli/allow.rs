//! `allow` and `init`: a manifest and a policy get what a call was refused, or neither does.

use crate::prelude::*;

const WRITES: &str =
    "import os\nos.makedirs('logs', exist_ok=True)\nopen('logs/a.txt', 'w')\nprint(1)\n";

fn allow(playground: &Playground, more: &[&str], says: &str) -> Ended {
    let mut command = playground.host();
    command.args(["allow", "esc:writes"]).args(more);
    finish(command, says.as_bytes())
}

/// The texts of all files that `allow` could touch.
fn files(playground: &Playground) -> BTreeMap<PathBuf, String> {
    ["user_scripts/writes", "sandbox-policies"]
        .iter()
        .flat_map(|folder| fs::read_dir(playground.path(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

fn playground(who: Who) -> Playground {
    let playground = Playground::with(who, &[("writes", "python", WRITES, json!({}))]);
    let manifest = playground.path("user_scripts/writes/writes.tool.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replacen('{', "{ // kept\n", 1)).unwrap();
    playground
}

#[test]
fn what_a_call_was_refused_is_written_into_both_files() {
    for who in Who::both() {
        let playground = playground(who);
        playground.policy(
            "writes",
            "esc:writes",
            "# kept\n[limits]\ntimeout_ms = 90_000\n",
        );
        playground.settle();
        playground.call_with("esc:writes", "{}", &["--explain"]);
        let before = files(&playground);
        for (more, says) in [
            (&[][..], "n\n"),
            (&[], ""),
            (&["--write", "main.py", "--yes"], ""),
        ] {
            let ended = allow(&playground, more, says);
            assert_ne!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
            assert_eq!(files(&playground), before, "{more:?}");
        }
        let ended = allow(&playground, &[], "y\n");
        assert_eq!(ended.code, Some(0), "{who:?}: {}", ended.stderr);
        let record = playground.records().pop().unwrap();
        playground.expect("esc:writes", "{}", "ok");
        let after = files(&playground);
        assert_eq!(after.len(), before.len(), "no file beside them");
        let kept = after.values().filter(|text| text.contains("kept"));
        assert_eq!(kept.count(), 2, "{after:#?}");
        assert!(
            record["allowed"] == "esc:writes" && record["uid"].is_u64(),
            "{record}"
        );
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert!(
            after
                .keys()
                .all(|path| owner(path) == owner(&playground.path("home")))
        );
        let again = allow(&playground, &["--yes"], "");
        assert_eq!(
            (again.code, files(&playground)),
            (Some(0), after),
            "{}",
            again.stderr
        );
    }
}

#[test]
fn a_wide_policy_stays_as_it_is_and_no_risk_is_accepted_unasked() {
    let playground = playground(Who::ours());
    playground.settle();
    let before = files(&playground);
    let home = playground.path("home").display().to_string() + "/";
    for risky in [
        ["--host", "169.254.169.254", "--yes"],
        ["--read", &home, "--yes"],
        ["--capability", "env:A_TOKEN", "--yes"],
    ] {
        let ended = allow(&playground, &risky, "");
        assert!(
            ended.code != Some(0) && ended.stderr.contains("high risk: "),
            "{risky:?}: {}",
            ended.stderr
        );
        assert_eq!(files(&playground), before);
    }
    let ended = allow(&playground, &["--write", "logs/", "--yes"], "");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    playground.expect("esc:writes", "{}", "ok");
    let after = files(&playground);
    let new: Vec<_> = after
        .keys()
        .filter(|path| !before.contains_key(*path))
        .collect();
    assert_eq!(new.len(), 1, "{after:#?}");
    assert!(
        after[new[0]].contains("tools = [\"esc:writes\"]"),
        "{after:#?}"
    );
    let wide = playground.path("sandbox-policies/default.policy.toml");
    assert_eq!(after[&wide], before[&wide]);
    // What the wide policy demands is not lost without a person's yes.
    fs::remove_file(new[0]).unwrap();
    let metadata = json!({"metadata": {"permissions": ["files"]}});
    let folder = playground.tool("writes", "python", WRITES, metadata);
    let hash = "0".repeat(64);
    let locked = format!("other==1.0 --hash=sha256:{hash}\n");
    fs::write(folder.join("requirements.txt"), locked).unwrap();
    let packages = "[packages]\npython = { index = \"default\", why = \"t\" }\n";
    let denies = format!("{packages}deny = [{{ name = \"bad\", why = \"t\" }}]\n");
    for (above, below, lost) in [
        ("confirm = \"a person looks\"\n", packages, true),
        ("require = [\"permission:files\"]\n", packages, true),
        ("", denies.as_str(), true),
        ("", packages, false),
    ] {
        fs::write(&wide, format!("{above}{}{below}", before[&wide])).unwrap();
        playground.settle();
        let ended = allow(&playground, &["--write", "other/", "--yes"], "");
        let is_asked = ended.stderr.contains("high risk: ");
        let code = ended.code == Some(0);
        assert_eq!(
            (is_asked, code),
            (lost, !lost),
            "{above}{below}: {}",
            ended.stderr
        );
    }
}

/// Callers have a say in what stands in the log, and none in what is granted: a place counts where it
/// stands as a string in the script, never as a pattern, and nobody agrees unasked.
#[test]
fn a_caller_does_not_choose_what_is_granted() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, logging, sys\nfrom urllib.request import urlopen\n\
        logger = logging.getLogger()\nlogger.info(2 * 3)\ndata = json.load(sys.stdin)\n\
        try:\n    open(data['to'], 'w') if 'to' in data else urlopen(data['url'])\n\
        except OSError:\n    pass\nfor name in ['own.txt']:\n    try:\n        open(name, 'w')\n    \
        except OSError:\n        pass\nprint(1)\n";
    playground.tool("writes", "python", script, json!({}));
    playground.policy("writes", "esc:writes", "observe = true\n");
    playground.settle();
    let before = files(&playground);
    for input in [
        json!({"to": "rates/*"}),
        json!({"to": "data"}),
        json!({"url": "https://logger.info/"}),
    ] {
        playground.call("esc:writes", &input.to_string());
        let ended = allow(&playground, &["--yes"], "");
        assert_eq!(
            (ended.code, files(&playground)),
            (Some(0), before.clone()),
            "{input}"
        );
        let shown = allow(&playground, &[], "n\n").stderr;
        let added = shown.lines().filter(|line| line.starts_with("+ "));
        let added: String = added.collect();
        for other in ["rates", "\"data", "./data", "logger.info"] {
            assert!(!added.contains(other), "{input} {other}: {shown}");
        }
        // The control: what the script says is proposed, as a risk.
        assert!(
            added.contains("own.txt") && shown.contains("high risk: write own.txt"),
            "{shown}"
        );
        assert_eq!(files(&playground), before);
    }
}

/// One file of policy can govern several tools: what is added for one is not given to another unasked.
#[test]
fn a_tool_under_the_same_policy_gets_nothing_unasked() {
    let playground = playground(Who::ours());
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    playground.tool("other", "python", "print(1)\n", asks);
    let limits = "[limits]\ntimeout_ms = 9000\n";
    playground.policy("shared", "esc:writes\", \"esc:other", limits);
    playground.settle();
    let before = files(&playground);
    let ended = allow(&playground, &["--host", "api.example.com", "--yes"], "");
    assert!(
        ended.code != Some(0) && ended.stderr.contains("high risk: esc:other"),
        "{}",
        ended.stderr
    );
    assert_eq!(files(&playground), before);
    // The control: another host concerns one tool alone.
    let ended = allow(&playground, &["--host", "www.example.com", "--yes"], "");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_root_is_made_from_nothing_and_only_once() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.path("granted/new");
    let folder = folder.to_str().unwrap();
    let run = |more: &[&str]| {
        let mut command = playground.outside(binary().to_str().unwrap());
        command.args(more);
        finish(command, b"")
    };
    let made = run(&["init", folder]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let called = run(&["--root", folder, "call", "custom:hello", "text=a b"]);
    assert_eq!(
        (called.code, &called.out["words"]),
        (Some(0), &json!(2)),
        "{}",
        called.stderr
    );
    let ran = run(&["--root", folder, "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.text());
    let again = run(&["init", folder]);
    assert_eq!(again.code, Some(2), "{}", again.stderr);
}
