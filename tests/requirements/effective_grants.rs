//! P2, P3, P29: a grant that is said to be effective works, and one that cannot says the true reason.

use crate::harness::{PYTHON, Playground, Who, as_everyone_with, finish, fits, has, is_root};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const READS: &str = "import json, sys\nfrom pathlib import Path\n\
    print(json.dumps([Path(p).read_text().strip() for p in json.load(sys.stdin).get('paths', [])]))\n";

/// A tool that reads these, under a policy that allows just them.
fn reader(playground: &Playground, name: &str, read: &[&str], more: &str) {
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": read}},
        "parameters": {"type": "object", "properties": {"paths": {"type": "array", "items": {"type": "string"}}}}});
    playground.tool_at(&format!("req:{name}"), "python", &format!("{name}/main.py"), READS, asks);
    let rules: Vec<_> = read.iter().map(|path| format!("{{ path = \"{path}\", why = \"t\" }}")).collect();
    let rest = format!("[files]\nread = [{}]\n{more}", rules.join(", "));
    playground.policy(name, &format!("req:{name}"), &rest);
}

/// The interpreter and its libraries are shown at their own places, also where a grant shows them already.
#[test]
fn a_grant_may_hold_the_interpreter_itself() {
    as_everyone_with("python", "a grant over an interpreter", |who| {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let venv = playground.path("venv");
            let mut make = playground.outside(PYTHON);
            make.args(["-I", "-m", "venv", "--without-pip"]).arg(&venv);
            playground.settle();
            if finish(make, b"").code != Some(0) {
                return crate::harness::skipped(1, "this Python cannot make virtual environments");
            }
            fs::write(venv.join("note.txt"), "seen\n").unwrap();
            let named =
                format!("[runtimes]\npython = {{ path = \"{}\", why = \"t\" }}\n", venv.join("bin/python").display());
            reader(&playground, "own", &[&format!("{}/**", venv.display())], &named);
            playground.settle();
            let input = json!({"paths": [venv.join("note.txt")]}).to_string();
            fits(r#"ok ["seen"]"#, &playground.call("req:own", &input))
                .unwrap_or_else(|why| panic!("{who:?} {below}: {why}"));
        }
    });
}

/// Where `check` and `audit` say that a call is refused, it is, with the same reason.
#[test]
fn what_cannot_be_granted_says_why() {
    as_everyone_with("python", "grants that cannot be", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let real = playground.path("real");
        fs::create_dir(&real).unwrap();
        fs::write(real.join("a"), "a\n").unwrap();
        symlink(&real, playground.path("link")).unwrap();
        let link = format!("{}/**", playground.path("link").display());
        for (name, read) in [("passwd", "/etc/passwd"), ("hosts", "/etc/hosts"), ("etc", "/etc/**")] {
            reader(&playground, name, &[read], "");
        }
        reader(&playground, "link", &[&link], "");
        reader(&playground, "folder", &[&real.display().to_string()], "");
        reader(&playground, "hostname", &["/usr/lib/os-release"], "");
        playground.settle();
        for name in ["passwd", "hosts", "etc"] {
            let ended = playground.call(&format!("req:{name}"), "{}");
            fits("SecurityError: every call has its own /etc/", &ended)
                .unwrap_or_else(|why| panic!("{who:?} {name}: {why}"));
            let audit = playground.cli(&["audit", &format!("req:{name}")]).text();
            assert!(audit.contains("every call has its own /etc/"), "{name}: {audit}");
        }
        fits("SecurityError: is a symbolic link", &playground.call("req:link", "{}")).unwrap();
        fits("SecurityError: is a folder; for the folder", &playground.call("req:folder", "{}")).unwrap();
        // The control: a system file that is the machine's own, not made up for each call.
        fits("ok []", &playground.call("req:hostname", "{}")).unwrap();
    });
}

/// The mount points of the machine lie in the same folder, and are no part of the grant.
#[test]
fn a_single_file_below_the_root_can_be_granted() {
    if !has("python", 1) || !is_root() {
        return crate::harness::skipped(1, "only root can put a file there");
    }
    struct File(String);
    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    let file = File(format!("/toolhost-test-{}.txt", std::process::id()));
    fs::write(&file.0, "seen\n").unwrap();
    reader(&playground, "top", &[&file.0], "");
    playground.settle();
    let input = json!({"paths": [&file.0]}).to_string();
    fits(r#"ok ["seen"]"#, &playground.call("req:top", &input)).unwrap();
    let foretold = String::from_utf8(playground.cli(&["check"]).stdout).unwrap();
    assert!(!foretold.contains("refused"), "what is foretold is what happens: {foretold}");
    let audit = String::from_utf8(playground.cli(&["audit", "req:top"]).stdout).unwrap();
    assert!(!audit.contains("a call is refused"), "{audit}");
    // The control: the folder itself is still never granted.
    reader(&playground, "all", &["/bin/../etc"], "");
    assert_ne!(playground.cli(&["check"]).code, Some(0));
}

/// A broken manifest speaks for the script that it names, and for no other beside it.
#[test]
fn a_broken_manifest_stops_only_what_it_names() {
    as_everyone_with("python", "a broken manifest", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.path("user_scripts/d");
        fs::create_dir(&folder).unwrap();
        for name in ["id", "named"] {
            fs::write(folder.join(format!("{name}.py")), "print('{}')\n").unwrap();
        }
        let broken = |script: &str| json!({"toolId": "x:evil", "handler": {"scriptPath": script}}).to_string();
        for (text, id, named, when) in [
            (broken("d/named.py"), true, false, "it names one that is there"),
            (broken("named.py"), true, false, "by a path beside it"),
            (broken("d/gone.py"), true, true, "it names one that is gone"),
            (broken("../d/named.py"), false, false, "by a path that cannot be used"),
            ("{".to_owned(), false, false, "it cannot be read"),
        ] {
            fs::write(folder.join("evil.tool.json"), text).unwrap();
            playground.settle();
            for (name, runs) in [("id", id), ("named", named)] {
                let input = json!({"scriptPath": format!("d/{name}.py")}).to_string();
                let wanted = if runs { "ok" } else { "SecurityError: it belongs to a tool that is not loaded" };
                let ended = playground.call("core:execute-python-script", &input);
                fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {when}: {name}: {why}"));
            }
        }
    });
}

/// A tool that is there and not loaded is not told as absent: the person hears its fault, an agent only that there is
/// one.
#[test]
fn what_cannot_be_loaded_is_not_absent() {
    as_everyone_with("python", "a faulty manifest", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool_at("x:there", "python", "there/main.py", "print(1)\n", json!({}));
        let file = folder.join("x-there.tool.json");
        let good = fs::read_to_string(&file).unwrap();
        for text in [good.replace("\"version\"", "\"versio\""), good.replace("1.0.0", "one"), format!("{good}}}")] {
            assert_ne!(text, good);
            fs::write(&file, text).unwrap();
            playground.settle();
            let ended = playground.call("x:there", "{}");
            fits("ToolNotFoundError", &ended).unwrap();
            let message = ended.out["error"]["message"].as_str().unwrap();
            assert!(message.contains("is not loaded: its manifest has a fault"), "{who:?}: {message}");
            assert!(!message.contains(&folder.display().to_string()), "{who:?}: {message}");
            assert!(ended.stderr.contains(&file.display().to_string()), "{who:?}: {}", ended.stderr);
        }
        fs::write(&file, good).unwrap();
        playground.settle();
        fits("ok 1", &playground.call("x:there", "{}")).unwrap();
    });
}

/// The home that the environment names, also where it leads through a link; the account's, which may be another; and,
/// where the host is root, everybody's.
#[test]
fn no_tool_writes_the_settings_of_a_home() {
    as_everyone_with("python", "homes", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let (real, link) = (playground.path("people/u"), playground.path("link"));
        fs::create_dir_all(real.join(".config/app")).unwrap();
        fs::create_dir_all(real.join("results")).unwrap();
        symlink(&real, &link).unwrap();
        let mut homes = vec![real.join(".config/app"), real.join(".config"), real.clone(), playground.path("people")];
        if who == Who::Root {
            homes.extend(["/root/.config".into(), "/root/.ssh".into(), "/root".into()]);
            let more = fs::read_dir("/home").into_iter().flatten().flatten();
            homes.extend(more.flat_map(|home| [home.path(), home.path().join(".config")]));
        }
        const WRITES: &str = "import json, sys\nopen(json.load(sys.stdin)['path'], 'w').write('x')\nprint(1)\n";
        let attempt = |folder: &Path| {
            let pattern = format!("{}/**", folder.display());
            let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": [pattern]}}});
            playground.tool_at("req:home", "python", "home/main.py", WRITES, asks);
            let rule = format!("[files]\nwrite = [{{ path = \"{pattern}\", why = \"t\" }}]\n");
            playground.policy("home", "req:home", &rule);
            playground.settle();
            let mut command = playground.host();
            command.env("HOME", &link).args(["call", "req:home", "--json", "--input", "-"]);
            crate::harness::finish(command, json!({"path": folder.join("planted")}).to_string().as_bytes())
        };
        for folder in homes {
            let ended = attempt(&folder);
            fits("SecurityError: whose names start with a dot", &ended)
                .unwrap_or_else(|why| panic!("{who:?}: {}: {why}", folder.display()));
            assert!(!folder.join("planted").exists(), "{}", folder.display());
        }
        fits("ok 1", &attempt(&real.join("results"))).unwrap();
        assert!(real.join("results/planted").is_file(), "the control");
    });
}

/// Places that a refused call never got are not recorded as written.
#[test]
fn a_refused_call_leaves_nothing_in_the_ledger() {
    as_everyone_with("python", "the ledger", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let writes = |name: &str, path: &Path| {
            let pattern = format!("{}/**", path.display());
            let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": [pattern]}}});
            playground.tool_at(&format!("req:{name}"), "python", &format!("{name}/main.py"), "print(1)\n", asks);
            let rule = format!("[files]\nwrite = [{{ path = \"{pattern}\", why = \"t\" }}]\n");
            playground.policy(name, &format!("req:{name}"), &rule);
        };
        let (good, bad) = (playground.path("good"), playground.path("bad"));
        fs::create_dir_all(&good).unwrap();
        fs::create_dir_all(bad.join("node_modules")).unwrap();
        writes("good", &good);
        writes("locks", Path::new("/run/toolhost"));
        writes("bad", &bad);
        playground.settle();
        fits("SecurityError", &playground.call("req:bad", "{}")).unwrap();
        // The locks of the ids that tools get are not granted either.
        fits("SecurityError: /run/toolhost/ids", &playground.call("req:locks", "{}")).unwrap();
        fits("ok", &playground.call("req:good", "{}")).unwrap();
        let ledger = fs::read_to_string(playground.path("state/written.jsonl")).unwrap();
        assert!(ledger.contains(&good.display().to_string()), "the control: {who:?}: {ledger}");
        assert!(!ledger.contains(&bad.display().to_string()), "{who:?}: {ledger}");
    });
}
