//! Callers: callers.policy.toml says who may call what, and every transport enforces it.

use crate::prelude::*;
mod confirm;
mod confirm_mcp;
mod door;
mod file;
mod often;
mod secrets;
mod waits;

/// The name by which the command line's user authenticates.
pub fn me(who: Who) -> String {
    let uid = who
        .uid()
        .map_or_else(nix::unistd::getuid, nix::unistd::Uid::from_raw);
    nix::unistd::User::from_uid(uid)
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}

/// A host with tools of two namespaces; `ME` in the text is the command line's user.
fn playground(who: Who, callers: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let echo = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
    let any = json!({"parameters": {"type": "object", "properties": {
        "n": {"type": "number", "description": "d"}, "s": {"type": "string", "description": "d"}}}});
    for (id, file) in [
        ("a:one", "alice/one/main.py"),
        ("a:two", "alice/two/main.py"),
        ("b:one", "bob/one/main.py"),
    ] {
        playground.tool_at(id, "python", file, echo, any.clone());
    }
    let rules = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                 [limits]\ntimeout_ms = 120_000\n";
    playground.policy("default", "*", rules);
    playground.policy("core", BY_PATH, rules);
    put(&playground, callers);
    playground.settle();
    playground
}

/// An entry of a caller who may call these tools.
fn entry(name: &str, tools: &str, more: &str) -> String {
    format!("[[caller]]\nname = \"{name}\"\nwhy = \"w\"\ntools = [{tools}]\n{more}")
}

const BY_PATH: &str = "core:execute-python-script";

/// The arguments with which that tool runs this script.
fn script(path: &str) -> Value {
    json!({"scriptPath": path, "inputData": {}})
}

/// A call that says for whom it is made.
fn labelled(server: &mut Server, label: &str, tool: &str, arguments: Value) -> Value {
    let meta = json!({"dev.toolhost/user": label});
    server.asked(
        "tools/call",
        json!({"name": tool.replace(':', "__"), "arguments": arguments, "_meta": meta}),
    )
}

fn put(playground: &Playground, callers: &str) {
    let text = callers.replace("ME", &me(playground.who));
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        text,
    )
    .unwrap();
}
