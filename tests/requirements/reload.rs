//! Tools and policies change under a running server, at a HUP.

use super::{as_everyone, has, tool};
use crate::escapes::{Playground, Server};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Tries to write where only a policy may let it.
const WRITER: &str = "import json\nfrom pathlib import Path\ntry:\n    (Path(__file__).parent / 'out' / 'x').write_text('x')\n    \
    print('\"wrote\"')\nexcept OSError as e:\n    print(json.dumps(e.errno))\n";

fn policy(path: &str) -> String {
    format!(
        "name = \"w\"\nwhy = \"w\"\ntools = [\"esc:writer\"]\n[files]\nread = [{{ path = \"./**\", why = \"its own\" }}]\n\
         write = [{{ path = \"{path}\", why = \"results\" }}]\n"
    )
}

fn names(server: &mut Server) -> Vec<String> {
    let id = server.ask("tools/list", json!({}));
    let answers = server.answers(&[id], PATIENCE);
    let tools = answers[&id]["result"]["tools"].as_array().unwrap().clone();
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .filter(|name| name.starts_with("esc__"))
        .collect()
}

fn result(server: &mut Server, tool: &str) -> Value {
    let id = server.call(tool, 1);
    server.answers(&[id], PATIENCE)[&id]["result"].clone()
}

/// Sends the signal and waits for what it leads to.
fn reload(server: &mut Server, until: impl Fn(&mut Server) -> bool, what: &str) {
    let host = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
    nix::sys::signal::kill(host, nix::sys::signal::Signal::SIGHUP).unwrap();
    let end = Instant::now() + PATIENCE;
    while !until(server) {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hangup_reads_tools_and_policies_anew() {
    if !has("python", 2) {
        return;
    }
    as_everyone("a reload", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/**"]}}});
        let folder = tool(&playground, "esc:writer", "python", "writer/main.py", WRITER, asks);
        fs::create_dir(folder.join("out")).unwrap();
        let slow = "import time\ntime.sleep(3)\nprint(7)\n";
        let going = tool(&playground, "esc:going", "python", "going/main.py", slow, json!({}));
        fs::write(playground.path("sandbox-policies/w.policy.toml"), policy("./out/**")).unwrap();
        playground.settle();
        let mut server = Server::start(&playground);
        assert_eq!(names(&mut server), ["esc__going", "esc__writer"]);
        assert_eq!(result(&mut server, "writer")["content"][0]["text"], "wrote");

        // A call that runs finishes, though its tool is gone; a new tool is there.
        let running = server.call("going", 1);
        std::thread::sleep(Duration::from_millis(300));
        fs::remove_file(
            fs::read_dir(&going).unwrap().flatten().find(|e| e.path().extension().unwrap() == "json").unwrap().path(),
        )
        .unwrap();
        tool(&playground, "esc:fresh", "python", "fresh/main.py", "print(8)\n", json!({}));
        playground.settle();
        let host = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
        nix::sys::signal::kill(host, nix::sys::signal::Signal::SIGHUP).unwrap();
        let answers = server.answers(&[running], PATIENCE);
        assert_eq!(answers[&running]["result"]["content"][0]["text"], "7", "{who:?}: {answers:?}");
        reload(&mut server, |s| names(s) == ["esc__fresh", "esc__writer"], "the tools are those of the folder");
        assert_eq!(result(&mut server, "fresh")["content"][0]["text"], "8");

        // A grant that is taken away is gone; so is everything while a policy is broken.
        let policies = playground.path("sandbox-policies/w.policy.toml");
        fs::remove_file(folder.join("out/x")).unwrap();
        fs::write(&policies, policy("./other/**")).unwrap();
        playground.settle();
        reload(&mut server, |s| !names(s).contains(&"esc__writer".to_owned()), "the writer cannot be called");
        let refused = result(&mut server, "writer");
        assert!(refused["isError"] == true && refused.to_string().contains("SecurityError"), "{who:?}: {refused}");
        fs::write(&policies, "name = 7\n").unwrap();
        reload(&mut server, |s| names(s).is_empty(), "a broken policy leaves nothing to call");
        let refused = result(&mut server, "fresh");
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(
            refused["isError"] == true
                && text.contains("SecurityError. Message: This host's policies cannot be read")
                && !text.contains("/var/tmp"),
            "{text}"
        );
        assert!(!folder.join("out/x").exists(), "{who:?}: nothing was written meanwhile");

        fs::write(&policies, policy("./out/**")).unwrap();
        playground.settle();
        reload(&mut server, |s| names(s) == ["esc__fresh", "esc__writer"], "a mended policy is obeyed");
        assert_eq!(result(&mut server, "writer")["content"][0]["text"], "wrote", "{who:?}");
    });
}
