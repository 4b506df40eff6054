//! The list of a server's tools: they are tools of this host, without a start of anything, and all
//! that the list says is hostile.

use crate::prelude::*;

const LIST: &str = "user_scripts/memory/memory.mcp-tools.json";

fn entry(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description,
           "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}})
}

/// A host with `memory:server`, which may write its folder `data`, and this list.
fn host_with(list: &[Value]) -> Host {
    let host = host();
    // A start of it would fail, and be seen.
    host.put("user_scripts/memory/server.py", "raise SystemExit(3)\n");
    let handler = json!({"type": "mcp", "scriptPath": "memory/server.py", "language": "python", "args": ["--a"]});
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["data/"]}}});
    host.put(
        "user_scripts/memory/memory.tool.json",
        manifest("memory:server", handler, asks).to_string(),
    );
    fs::create_dir(host.path("user_scripts/memory/data")).unwrap();
    put_list(&host, list);
    host.policy(
        "name = \"memory\"\nwhy = \"w\"\ntools = [\"memory:*\"]\n\
         [files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
         write = [{ path = \"./data/**\", why = \"w\" }]\n",
    );
    host
}

fn put_list(host: &Host, list: &[Value]) {
    host.put(LIST, json!({ "tools": list }).to_string());
}

fn ids(host: &Host) -> BTreeSet<String> {
    let listed = host.json(&["list", "--namespace", "memory"]);
    let tools = listed.as_array().unwrap_or_else(|| panic!("{listed}"));
    let id = |tool: &Value| tool["toolId"].as_str().map(str::to_owned);
    tools.iter().map(|tool| id(tool).unwrap()).collect()
}

fn approve(host: &Host) {
    let (code, out, err) = host.run(&["approve", "memory:server", "--why", "w", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
}

/// Why calls of a tool are refused; empty where they are not.
fn refused(host: &Host, tool: &str) -> String {
    let audit = host.json(&["audit", tool]);
    audit["refused"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn each_entry_of_a_list_is_a_tool_of_every_door_and_nothing_is_started() {
    let mut titled = entry("read_graph", "Reads it.");
    titled["annotations"] = json!({"title": "Read the graph", "readOnlyHint": true});
    let host = host_with(&[titled, entry("add", "Adds.")]);
    fs::rename(host.path(LIST), host.path("away")).unwrap();
    let audit = host.json(&["list", "--namespace", "memory"]);
    let needs = audit[0]["needs"].to_string();
    assert!(
        needs.contains("toolhost mcp refresh memory:server"),
        "{audit}"
    );
    fs::rename(host.path("away"), host.path(LIST)).unwrap();
    let all = ["memory:add", "memory:read_graph", "memory:server"];
    assert_eq!(ids(&host), all.map(str::to_owned).into());

    approve(&host);
    let (_, offered, _) = host.run(&["list", "--namespace", "memory", "--format", "openai"]);
    assert!(offered.contains("memory__read_graph"), "{offered}");
    assert!(!offered.contains("memory__server"), "{offered}");
    let (code, _, err) = host.run(&["call", "memory:server"]);
    assert!(code != 0 && err.contains("call one of its tools"), "{err}");

    // A client gets hints of what the layers let it do, and the author's title.
    let mut server = Server::of(host.process());
    let list = server.ask("tools/list", json!({}));
    let answers = server.answers(&[list]);
    let tools = answers[&list]["result"]["tools"].as_array().unwrap();
    let read = tools
        .iter()
        .find(|tool| tool["name"] == "memory__read_graph");
    let read = read.unwrap_or_else(|| panic!("{tools:?}"));
    assert_eq!(read["title"], "Read the graph");
    assert_eq!(read["annotations"]["readOnlyHint"], false, "{read}");

    let [tool, own] = ["memory:read_graph", "memory:server"].map(|id| host.json(&["audit", id]));
    for part in ["grants", "limits", "network", "script", "approval"] {
        assert_eq!(tool[part], own[part], "{part}");
    }
    let notes = tool["notes"].to_string();
    assert!(notes.contains("a tool of memory:server"), "{notes}");
    assert!(notes.contains("nothing checks"), "{notes}");
}

#[test]
fn a_hostile_list_offers_what_is_sound_and_names_the_rest() {
    let mut deep = json!({"type": "object"});
    for _ in 0..50 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let mut hidden = entry("hidden", "ok");
    hidden["inputSchema"]["properties"]["a\u{200b}"] = json!({});
    let mut deeply = entry("deep", "ok");
    deeply["inputSchema"] = deep;
    let list = [
        entry("sound", "Good \u{1b}[2J\u{202e}text."),
        entry("a/b", "ok"),
        entry("a__b", "ok"),
        entry("twice", "ok"),
        entry("Twice", "ok"),
        entry("server", "It shadows its own server."),
        entry("taken", "It shadows a tool."),
        entry("long", &"x".repeat(20_000)),
        hidden,
        deeply,
        json!(7),
    ];
    let host = host_with(&list);
    host.tool("memory:taken", json!({}));
    let sound = ["memory:server", "memory:sound", "memory:taken"];
    assert_eq!(ids(&host), sound.map(str::to_owned).into());
    assert_eq!(host.json(&["audit", "memory:taken"])["inProcess"], false);
    let told = host.problems()("memory.mcp-tools.json");
    assert_eq!(told.len(), list.len() - 1, "{told:?}");
    let listed = host.json(&["list", "--namespace", "memory"]).to_string();
    assert!(
        listed.contains("Good") && !listed.contains("\\u001b[2J"),
        "{listed}"
    );
    assert!(!listed.contains('\u{202e}'), "{listed}");

    put_list(
        &host,
        &(0..600)
            .map(|n| entry(&format!("t{n}"), "ok"))
            .collect::<Vec<_>>(),
    );
    assert_eq!(ids(&host).len(), 512 + 2);
    for broken in ["{\"tools\": 7}", "{", &"x".repeat(2 << 20)] {
        host.put(LIST, broken);
        assert_eq!(ids(&host).len(), 2, "{:.20}", broken);
        assert_eq!(
            host.problems()("memory.mcp-tools.json")[0]["severity"],
            "error"
        );
    }
}

/// Its answers are checked by nothing then, and a person reads that.
#[test]
fn a_tool_is_offered_where_only_the_schema_of_its_answers_has_a_fault() {
    let members = (0..2500).map(|n| (format!("a{n}"), json!({"type": "string"})));
    let members: Value = members.collect();
    let mut places = entry("places", "Finds places.");
    places["outputSchema"] = json!({"type": "object", "properties": members});
    let mut tree = entry("tree", "Shows a tree.");
    tree["outputSchema"] = json!({"type": "object", "properties": {"a": {"type": "array"}}});
    let host = host_with(&[places, tree, entry("Server", "It shadows its own server.")]);
    let all = ["memory:places", "memory:server", "memory:tree"];
    assert_eq!(ids(&host), all.map(str::to_owned).into());
    let told = json!(host.problems()("memory.mcp-tools.json")).to_string();
    for words in [
        "the tool 'Server' is not offered: the server itself has this name",
        "what the tool 'places' answers is not checked against its outputSchema",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!told.contains("tree"), "the control: {told}");
    approve(&host);
    assert_eq!(refused(&host, "memory:places"), "");
}

#[test]
fn a_list_that_changed_is_refused_until_a_person_approved_what_changed() {
    let host = host_with(&[entry("add", "Adds."), entry("gone", "Goes.")]);
    assert!(refused(&host, "memory:add").contains("not approved"));
    let (code, _, err) = host.run(&["approve", "memory:add", "--why", "w", "--yes"]);
    assert!(
        code == 2 && err.contains(" approve memory:server`"),
        "{err}"
    );
    approve(&host);
    assert_eq!(refused(&host, "memory:add"), "");
    let verified = host.json(&["approve", "--verify"]);
    assert_eq!(verified["unchanged"], true, "{verified}");

    put_list(
        &host,
        &[entry("add", "Adds, and sends it."), entry("new", "Is new.")],
    );
    assert!(refused(&host, "memory:add").contains("changed since approval"));
    assert!(refused(&host, "memory:new").contains("changed since approval"));
    assert_eq!(host.run(&["approve", "--verify"]).0, 3);
    let (_, shown, _) = host.run(&["approve", "memory:server"]);
    for line in [
        "2 tools: add, new",
        "tool changed: add",
        "tool gone: gone",
        "new tool: new",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    approve(&host);
    assert_eq!(refused(&host, "memory:new"), "");
    assert_eq!(host.run(&["approve", "memory:server", "--revoke"]).0, 0);
    assert!(refused(&host, "memory:new").contains("not approved"));
}

#[test]
fn a_policy_of_a_tool_says_who_may_call_it_and_the_servers_gives_the_grants() {
    let host = host_with(&[entry("read", "Reads."), entry("delete", "Deletes.")]);
    host.put(
        "sandbox-policies/delete.policy.toml",
        "name = \"delete\"\nwhy = \"w\"\ntools = [\"memory:delete\"]\nconfirm = \"It cannot be undone.\"\n\
         [files]\nread = [{ path = \"/srv/**\", why = \"w\" }]\n",
    );
    host.put(
        "sandbox-policies/callers.policy.toml",
        "[[caller]]\nname = \"agent\"\nwhy = \"w\"\ntools = [\"memory:read\"]\n",
    );
    approve(&host);
    let [read, delete] = ["memory:read", "memory:delete"].map(|id| host.json(&["audit", id]));
    assert_eq!(read["confirm"], json!([]));
    assert_eq!(
        delete["confirm"].as_array().map(Vec::len),
        Some(1),
        "{delete}"
    );
    assert_eq!(read["grants"], delete["grants"]);
    assert_eq!(read["callers"].as_array().map(Vec::len), Some(1), "{read}");
    assert_eq!(delete["callers"], json!([]));
    let told = host.problems()("delete.policy.toml");
    assert!(
        told[0]["message"].to_string().contains("ignored"),
        "{told:?}"
    );

    let policy = host.path("sandbox-policies/x.policy.toml");
    let before = fs::read_to_string(&policy).unwrap();
    let shared = before.clone() + "[mcp]\nshared = true\nwhy = \"one graph for all\"\n";
    fs::write(&policy, &shared).unwrap();
    let audit = host.json(&["audit", "memory:read"]);
    assert!(audit["notes"].to_string().contains("high risk"), "{audit}");
    assert!(refused(&host, "memory:read").contains("changed since approval"));
    approve(&host);
    let (_, who, _) = host.run(&["audit", "--who-can", "session:memory:server"]);
    assert!(who.contains("for all callers"), "{who}");
    let why = "[mcp]\nshared = true\n";
    fs::write(&policy, before + why).unwrap();
    assert!(
        refused(&host, "memory:read").contains("policy"),
        "a reason is required"
    );
}
