//! Tools and policies change under a running server, at a HUP.

use crate::prelude::*;
/// Tries to write where only a policy may let it.
const WRITER: &str = "import json\nfrom pathlib import Path\ntry:\n    (Path(__file__).parent / 'out' / 'x').write_text('x')\n    \
    print('\"wrote\"')\nexcept OSError as e:\n    print(json.dumps(e.errno))\n";

fn names(server: &mut Server) -> Vec<String> {
    server.names().into_iter().filter(|name| name.starts_with("esc__")).collect()
}

fn result(server: &mut Server, tool: &str) -> Value {
    server.called(tool, json!({"n": 1}))["result"].clone()
}

#[test]
fn a_hangup_reads_tools_and_policies_again() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/**"]}}});
    let folder = playground.tool_at("esc:writer", "python", "writer/main.py", WRITER, asks);
    fs::create_dir(folder.join("out")).unwrap();
    let slow = "import time\ntime.sleep(3)\nprint(7)\n";
    let going = playground.tool_at("esc:going", "python", "going/main.py", slow, json!({}));
    playground.allow("w", "esc:writer", &["./**"], &["./out/**"]);
    playground.settle();
    let mut server = Server::start(&playground);
    assert_eq!(names(&mut server), ["esc__going", "esc__writer"]);
    assert_eq!(result(&mut server, "esc:writer")["content"][0]["text"], "wrote");

    // A call that runs finishes, though its tool is gone; a new tool is there.
    let running = server.call_n("going", 1);
    playground.runs("user_scripts/going/main.py", 1);
    fs::remove_file(going.join("esc-going.tool.json")).unwrap();
    playground.tool_at("esc:fresh", "python", "fresh/main.py", "print(8)\n", json!({}));
    playground.settle();
    server.hang_up();
    let answers = server.answers(&[running]);
    assert_eq!(answers[&running]["result"]["content"][0]["text"], "7", "{answers:?}");
    server.reload("the tools are those of the folder", |s| names(s) == ["esc__fresh", "esc__writer"]);
    assert_eq!(result(&mut server, "esc:fresh")["content"][0]["text"], "8");

    // A grant that is taken away is gone; so is everything while a policy is broken.
    let policies = playground.path("sandbox-policies/w.policy.toml");
    fs::remove_file(folder.join("out/x")).unwrap();
    playground.allow("w", "esc:writer", &["./**"], &["./other/**"]);
    playground.settle();
    server.reload("the writer cannot be called", |s| !names(s).contains(&"esc__writer".to_owned()));
    let refused = result(&mut server, "esc:writer");
    assert!(refused["isError"] == true && refused.to_string().contains("SecurityError"), "{refused}");
    fs::write(&policies, "name = 7\n").unwrap();
    server.reload("a broken policy leaves nothing to call", |s| names(s).is_empty());
    let refused = result(&mut server, "esc:fresh");
    let text = refused["content"][0]["text"].as_str().unwrap();
    let why = "SecurityError. Message: This host's policies cannot be read";
    assert!(refused["isError"] == true && text.contains(why) && !text.contains("/var/tmp"), "{text}");
    assert!(!folder.join("out/x").exists(), "nothing was written meanwhile");

    playground.allow("w", "esc:writer", &["./**"], &["./out/**"]);
    playground.settle();
    server.reload("a repaired policy is obeyed", |s| names(s) == ["esc__fresh", "esc__writer"]);
    assert_eq!(result(&mut server, "esc:writer")["content"][0]["text"], "wrote");
}
