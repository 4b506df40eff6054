//! Tools and policies change under a running server, at a HUP.

use super::files;
use crate::prelude::*;

/// Tries to write where only a policy may let it.
const WRITER: &str = "import json\nfrom pathlib import Path\ntry:\n    (Path(__file__).parent / \
    'out' / 'x').write_text('x')\n    print('\"wrote\"')\nexcept OSError as e:\n    \
    print(json.dumps(e.errno))\n";

fn names(server: &mut Server) -> Vec<String> {
    server
        .names()
        .into_iter()
        .filter(|name| name.starts_with("esc__"))
        .collect()
}

#[test]
fn a_hangup_reads_tools_and_policies_again() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("writer", "python", WRITER, files(&["self"], &["out/**"]));
    fs::create_dir(folder.join("out")).unwrap();
    let going = playground.tool(
        "going",
        "python",
        "import os, time\nwhile not os.path.exists(os.path.dirname(__file__) + '/go'):\n    \
            time.sleep(0.01)\nprint(7)\n",
        json!({}),
    );
    let policy = |write: &str| {
        playground.allow("w", "esc:writer", &["./**"], &[write]);
        playground.settle();
    };
    let rest =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 110_000\n";
    playground.policy("going", "esc:going", rest);
    policy("./out/**");
    let mut server = Server::start(&playground);
    let told = |server: &mut Server, tool: &str| words(&server.called(tool, json!({"n": 1})));
    assert_eq!(names(&mut server), ["esc__going", "esc__writer"]);
    assert_eq!(told(&mut server, "esc:writer"), "wrote");

    // A call that runs finishes, though its tool is gone; a new tool is there.
    let running = server.call_n("going", 1);
    playground.runs("user_scripts/going/main.py", 1);
    fs::remove_file(going.join("going.tool.json")).unwrap();
    playground.tool("fresh", "python", "print(8)\n", json!({}));
    playground.settle();
    server.reload("the tools are those of the folder", |s| {
        names(s) == ["esc__fresh", "esc__writer"]
    });
    fs::write(going.join("go"), "").unwrap();
    assert_eq!(words(&server.answers(&[running])[&running]), "7");
    assert_eq!(told(&mut server, "esc:fresh"), "8");

    // A grant that is taken away is gone; so is everything while a policy is broken.
    fs::remove_file(folder.join("out/x")).unwrap();
    policy("./other/**");
    server.reload("the writer cannot be called", |s| {
        !names(s).contains(&"esc__writer".to_owned())
    });
    assert_eq!(
        kind(&server.called("esc:writer", json!({"n": 1}))),
        "SecurityError"
    );
    fs::write(
        playground.path("sandbox-policies/w.policy.toml"),
        "name = 7\n",
    )
    .unwrap();
    server.reload("a broken policy leaves nothing to call", |s| {
        names(s).is_empty()
    });
    let refused = server.called("esc:fresh", json!({"n": 1}));
    let why = "SecurityError. Message: This host's policies cannot be read";
    let text = words(&refused);
    assert!(
        kind(&refused) != "none" && text.contains(why) && !text.contains("/var/tmp"),
        "{text}"
    );
    assert!(
        !folder.join("out/x").exists(),
        "nothing was written meanwhile"
    );
    policy("./out/**");
    server.reload("a repaired policy is obeyed", |s| {
        names(s) == ["esc__fresh", "esc__writer"]
    });
    assert_eq!(told(&mut server, "esc:writer"), "wrote");
}
