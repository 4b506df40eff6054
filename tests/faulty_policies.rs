//! A policy with a fault stops the tools that it names and no others; one without `[files] read`
//! leaves the own folder.

use crate::prelude::*;

const READER: &str = "import json, os\nprint(json.dumps(sorted(os.listdir('.'))))\n";

#[test]
fn a_faulty_policy_stops_its_tools_and_no_others() {
    as_everyone("faulty policies", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.allow_builtin_tools();
        for id in ["bad:tool", "good:tool"] {
            playground.tool_at(
                id,
                "python",
                &format!("{}/main.py", &id[..id.len() - 5]),
                "print(1)\n",
                json!({}),
            );
        }
        playground.policy("bad", "bad:tool", "[limits]\ntimeout_ms = 90_000\n");
        playground.settle();
        let mut server = Server::start(&playground);
        assert_eq!(
            server.called("bad:tool", json!({}))["result"]["isError"],
            false,
            "{who:?}"
        );
        playground.expect("bad:tool", "{}", "ok 1");
        playground.policy("bad", "bad:tool", "[limits]\ntimeout = 9000\n");
        playground.settle();
        let run = |script: &str, wanted: &str| {
            playground.expect(
                "core:execute-python-script",
                &json!({"scriptPath": script}).to_string(),
                wanted,
            );
        };
        let ended = playground.expect(
            "bad:tool",
            "{}",
            "SecurityError: the policy for this tool has a fault",
        );
        assert!(
            ended.stderr.contains("bad.policy.toml:") && ended.stderr.contains("/limits/timeout"),
            "{ended:?}"
        );
        run("bad/main.py", "SecurityError: has a fault");
        // Others run, also by the path of a script.
        playground.expect("good:tool", "{}", "ok 1");
        run("good/main.py", "ok 1");
        let told = playground.cli(&["check"]);
        assert!(
            told.code != Some(0) && told.text().contains("unknown key `timeout`"),
            "{who:?}: {}",
            told.text()
        );
        // At a reload the same holds.
        let faulty = |server: &mut Server| {
            words(&server.called("bad:tool", json!({}))).contains("has a fault")
        };
        server.reload("the fault is seen", faulty);
        assert_eq!(
            server.called("good:tool", json!({}))["result"]["isError"],
            false,
            "{who:?}"
        );
        // What cannot be read as far as its tools, and the cap, stop everything.
        for (name, text) in [
            ("bad", "name = \"bad\"\nwhy = \"t\"\ntools = [\"bad*\"]\n"),
            ("bad", "name = \"bad\nwhy"),
            (
                "host",
                "name = \"host\"\nwhy = \"t\"\n[limits]\ntimeout = 1\n",
            ),
        ] {
            let file = playground
                .path("sandbox-policies")
                .join(format!("{name}.policy.toml"));
            let kept = fs::read(&file).ok();
            fs::write(&file, text).unwrap();
            playground.settle();
            assert_eq!(
                playground.call("good:tool", "{}").code,
                Some(3),
                "{who:?}: {text}"
            );
            kept.map_or_else(
                || fs::remove_file(&file).unwrap(),
                |kept| fs::write(&file, kept).unwrap(),
            );
        }
    });
}

/// A policy with a fault still says where its secrets lie, and a folder that cannot be read is
/// every folder.
#[test]
fn a_fault_gives_no_tool_more_than_before() {
    as_everyone("faults and secrets", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let keys = playground.path("keys");
        fs::create_dir_all(&keys).unwrap();
        let key = keys.join("k");
        fs::write(&key, "a secret of 8 bytes").unwrap();
        let tree = format!("{}/**", keys.display());
        let write = json!({"securityContext": {"fileAccess": {"allowWrite": [tree]}}});
        let script = format!(
            "open('{}', 'w').write('a planted secret')\nprint(1)\n",
            key.display()
        );
        playground.tool_at("w:w", "python", "w/main.py", &script, write);
        let asks = json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}});
        playground.tool_at("s:s", "python", "s/main.py", "print(1)\n", asks);
        let grant = format!(
            "{{ name = \"KEY\", from = \"file:{}\", why = \"t\" }}",
            key.display()
        );
        let secret = format!("[secrets]\ngrant = [{grant}]\n");
        playground.policy(
            "w",
            "w:w",
            &format!("[files]\nwrite = [{{ path = \"{tree}\", why = \"t\" }}]\n"),
        );
        let settle = || {
            playground.settle();
            std::os::unix::fs::chown(&key, who.uid(), who.uid()).unwrap();
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        };
        for fault in ["", "[limits]\ntimeout = 1\n"] {
            playground.policy("s", "s:s", &format!("{secret}{fault}"));
            settle();
            playground.expect("w:w", "{}", "SecurityError: could be written");
        }
        playground.policy("s", "s:s", &secret);
        settle();
        playground.expect("s:s", "{}", "ok 1");
        // A tool writes there while no policy names the file; afterwards it is no source of a
        // secret.
        fs::remove_file(playground.path("sandbox-policies/s.policy.toml")).unwrap();
        playground.settle();
        playground.expect("w:w", "{}", "ok 1");
        fs::remove_file(playground.path("sandbox-policies/w.policy.toml")).unwrap();
        playground.policy("s", "s:s", &secret);
        settle();
        playground.expect(
            "s:s",
            "{}",
            "SecurityError: comes from a file that a tool could write",
        );
        // The wider policy is for no tool that a faulty one may govern.
        for (folders, wanted) in [
            ("[\"user_scripts/w\"]", "ok 1"),
            ("[\"user_scripts/s/**\"]", "SecurityError: has a fault"),
        ] {
            playground.tool_at("p:p", "python", "p/main.py", "print(1)\n", json!({}));
            playground.policy("p", "p:p", &format!("folders = {folders}\n"));
            playground.settle();
            playground.expect("p:p", "{}", wanted);
        }
    });
}

#[test]
fn a_policy_without_read_leaves_the_tool_its_own_folder() {
    as_everyone("own folders", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.tool_at("own:list", "python", "own/main.py", READER, json!({}));
        fs::write(folder.join("data.txt"), "1").unwrap();
        let flat = playground.tool_at("own:flat", "python", "flat.py", READER, json!({}));
        let list = |rest: &str, wanted: &str| {
            playground.policy("own", "own:*", rest);
            playground.settle();
            playground.expect("own:list", "{}", &format!("ok {wanted}"));
        };
        let (whole, script) = (
            r#"["data.txt","main.py","own-list.tool.json"]"#,
            r#"["main.py"]"#,
        );
        let limits = "[limits]\ntimeout_ms = 20000\n";
        list(limits, whole);
        let audit = playground.cli(&["audit", "own:list", "--all"]).text();
        assert!(
            audit.contains("own: ./** (default)") && audit.contains("has no `[files] read`"),
            "{who:?}: {audit}"
        );
        // A script directly in the base folder sees itself.
        assert!(flat.ends_with("user_scripts"));
        playground.expect("own:flat", "{}", r#"ok ["flat.py"]"#);
        list("[files]\nread = []\n", script);
        let write = "[files]\nwrite = [{ path = \"./out/**\", why = \"t\" }]\n";
        list(write, whole);
        // The cap of every tool alike.
        for (rest, wanted) in [("", whole), ("[files]\nread = []\n", script)] {
            let cap = format!("name = \"cap\"\nwhy = \"t\"\n{rest}");
            fs::write(playground.path("sandbox-policies/host.policy.toml"), cap).unwrap();
            [limits, write]
                .into_iter()
                .for_each(|own| list(own, wanted));
        }
    });
}
