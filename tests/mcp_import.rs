//! `toolhost mcp import`, `list` and `remove`: files of every client, hostile ones, and what is left
//! when something fails.

use crate::prelude::*;
use nix::sys::stat::Mode;

const SECRETS: [&str; 5] = [
    "ecretOfTheTest",
    "brave-key-of-the-test",
    "context7-key-of-the-test",
    "an-id-of-the-test",
    "token-of-the-test",
];

/// A host, with the home and the project of a person who has these clients.
fn person() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for name in ["home", "project"] {
        let from = repository("tests/mcp_import").join(name);
        copy(&from, &playground.path(name));
    }
    let package = r#"{"name": "installed", "version": "2.0.1", "bin": {"installed": "run.js"}}"#;
    let files = [
        ("docs/a.txt", "a"),
        // A client that has no servers.
        (".vscode/mcp.json", ""),
        ("server/main.js", "require('node:fs')"),
        ("node_modules/installed/package.json", package),
        ("node_modules/installed/run.js", "#!/usr/bin/env node\n"),
        ("node_modules/.bin/other", ""),
    ];
    for (name, text) in files {
        let path = playground.path("project").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let link = playground.path("project/node_modules/.bin/installed");
    symlink("../installed/run.js", link).unwrap();
    // As a person has it whose documents lie elsewhere.
    symlink("../project/docs", playground.path("home/notes")).unwrap();
    playground.settle();
    playground
}

fn mcp(playground: &Playground, arguments: &[&str]) -> Ended {
    let mut command = playground.host();
    command.current_dir(playground.path("home"));
    command.arg("mcp").args(arguments);
    finish(command, b"")
}

/// A line for each server: what becomes of it, and what it may touch.
fn lines(ended: &Ended, playground: &Playground) -> String {
    let servers = ended.out["servers"].as_array();
    let servers = servers.unwrap_or_else(|| panic!("{}", ended.stderr));
    let mut text = String::new();
    for server in servers {
        let fields = server.as_object().unwrap().iter();
        let fields = fields.filter(|(name, value)| {
            *name != "locked" && **value != json!([]) && **value != json!("")
        });
        let fields: Vec<String> = fields
            .map(|(name, value)| format!("{name}: {}", value.to_string().replace('"', "")))
            .collect();
        text += &format!("{}\n", fields.join(" | "));
    }
    let files = repository("tests/mcp_import");
    let text = text.replace(files.to_str().unwrap(), "FILES");
    text.replace(playground.base.to_str().unwrap(), "BASE")
}

#[test]
fn every_form_of_a_client_is_read_and_nothing_is_written() {
    let playground = person();
    let before = playground.state(&[]);
    let mut command = playground.host();
    command.current_dir(playground.path("project"));
    let ended = finish_import(command, &["--json"]);
    // What a project brings is read where it is named, and gets no variable of the person unseen.
    assert!(
        ended.stderr.contains(".mcp.json is not read"),
        "{}",
        ended.stderr
    );
    let mut command = playground.host();
    command.current_dir(playground.path("project"));
    let named = [".mcp.json", "opencode.jsonc", ".vscode/mcp.json"];
    let brought = finish_import(command, &[&["--json"][..], &named].concat());
    let weather = repository("tests/mcp_import/server.json");
    let weather = ["import", "--json", "--dry-run", weather.to_str().unwrap()];
    let read = lines(&ended, &playground)
        + &lines(&brought, &playground)
        + &lines(&mcp(&playground, &weather), &playground);
    let expected = fs::read_to_string(repository("tests/mcp_import/read.txt")).unwrap();
    assert!(read == expected, "{read}");
    let shown = mcp(&playground, &["import"]);
    let table = shown.text();
    let all = [&read, &table, &shown.stderr];
    for hidden in SECRETS.iter().chain(&["\u{1b}"]) {
        assert!(all.iter().all(|text| !text.contains(hidden)), "{hidden}");
    }
    let secret = "BRAVE_API_KEY (file:secrets/mcp-brave-search.BRAVE_API_KEY): the server has it";
    assert!(table.contains(secret), "{table}");
    assert_eq!(playground.state(&[]), before);
}

#[test]
fn what_is_not_understood_refuses_its_server_by_name() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let package = json!({"registryType": "npm", "identifier": "x"});
    let with = |name: &str, value: Value| {
        let mut package = package.clone();
        package[name] = value;
        json!({"name": "a/x", "packages": [package]})
    };
    let npx = json!({"command": "npx", "args": ["x"]});
    let fetching = json!({"command": "npx", "args": ["x"], "env": {"npm_config_registry": "http://h.example/"}});
    // As large as programs of Go are.
    let large = playground.path("large");
    fs::File::create(&large).unwrap().set_len(17 << 20).unwrap();
    let files = ["@modelcontextprotocol/server-filesystem", "/etc"];
    let entries = [
        (json!("npx x"), "must be an object"),
        (
            json!({"command": "npx", "args": 5}),
            "`args` must be a list",
        ),
        (json!({"type": "sse"}), "its type is `sse`"),
        (json!({"source": "extension"}), "an extension"),
        (
            json!({"url": "https://h.example", "httpUrl": "https://h.example"}),
            "a remote server",
        ),
        (
            json!({"command": "npx", "args": ["x"], "enabled_tools": ["t2"]}),
            "`enabled_tools` restricts",
        ),
        (
            json!({"command": "npx", "args": ["x"], "excludeTools": ["t1"]}),
            "`excludeTools` restricts",
        ),
        (
            json!({"command": "npx", "args": ["x"], "env_vars": [{"name": "X", "source": "remote"}]}),
            "X is one of another machine",
        ),
        (
            json!({"command": {"path": "npx", "args": ["x"], "cwd": "/"}}),
            "`command` must be",
        ),
        (json!({"command": large}), "neither Node nor Python"),
        (json!({"command": binary(), "args": ["serve"]}), "this host"),
        (
            json!({"command": "npx", "args": files}),
            "its argument /etc (read): ",
        ),
    ];
    let entries = entries.map(|(entry, says)| (json!({"mcpServers": {"x": entry}}), says));
    let others = [
        (
            json!({"name": "a/x", "remotes": [{"url": "https://h.example"}]}),
            "a remote server",
        ),
        (
            with("registryBaseUrl", json!("https://h.example")),
            "another registry",
        ),
        (
            with("packageArguments", json!([{"value": "{repo}"}])),
            "has variables",
        ),
        (
            with(
                "environmentVariables",
                json!([{"name": "X", "isRequired": true, "isSecret": false}]),
            ),
            "setting X has no value",
        ),
        (
            json!({"mcpServers": {"x": fetching}}),
            "NPM_CONFIG_REGISTRY",
        ),
        (
            json!({"mcpServers": {"x": {"command": {}}}}),
            "`command` must be",
        ),
        (
            json!({"mcpServers": {"y": npx}, "servers": {"x": {"url": "h"}}}),
            "a remote server",
        ),
    ];
    for (document, says) in entries.into_iter().chain(others) {
        let file = playground.path("odd.json");
        fs::write(&file, document.to_string()).unwrap();
        let ended = mcp(&playground, &["import", "--json", file.to_str().unwrap()]);
        let rows = ended.out["servers"].as_array().unwrap();
        let row = rows.iter().find(|row| row["server"] == "x").unwrap();
        assert!(
            row["status"] == "not taken" && row["why"].to_string().contains(says),
            "{row}"
        );
        // There is nothing yet that another verb could show.
        assert!(!row.to_string().contains("toolhost audit"), "{row}");
    }
}

/// What is planned for the servers of this document, with this folder first on the search path.
fn planned(playground: &Playground, document: &Value, programs: &Path) -> Vec<Value> {
    let file = playground.path("document.json");
    fs::write(&file, document.to_string()).unwrap();
    let mut command = playground.host();
    command.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    let ended = finish_import(command, &["--json", file.to_str().unwrap()]);
    let rows = ended.out["servers"].as_array();
    rows.unwrap_or_else(|| panic!("{}", ended.stderr)).clone()
}

#[test]
fn what_restricts_nothing_is_named_and_no_variable_is_lost() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let bin = playground.path("venv/bin");
    let info = playground.path("venv/lib/python3.12/site-packages/acme_x-1.2.0.dist-info");
    for folder in [&bin, &info] {
        fs::create_dir_all(folder).unwrap();
    }
    symlink(PYTHON, bin.join("python")).unwrap();
    fs::write(info.join("RECORD"), "acme_x/__init__.py,sha256=,1\n").unwrap();
    let of = |entry: Value| {
        let document = json!({"context_servers": {"x": entry}});
        let row = planned(&playground, &document, &bin).remove(0);
        assert_eq!(row["status"], "would be written", "{row}");
        row
    };
    let row = of(
        json!({"command": "npx", "args": ["@acme/x"], "env": null, "tools": ["*"], "disabled_tools": [], "timeout": 60}),
    );
    assert_eq!(row["leftOut"], json!(["its `timeout`: not read here"]));
    let row = of(
        json!({"command": {"path": "npx", "args": ["@acme/x"], "env": {"ACME_KEY": "key-of-the-test"}}}),
    );
    assert!(row["secrets"][0].to_string().contains("ACME_KEY"), "{row}");
    // As most READMEs have it.
    for arguments in [&["-m", "acme_x"][..], &["-u", "-m", "acme_x"]] {
        let row = of(json!({"command": "python", "args": arguments}));
        assert_eq!([&row["program"], &row["version"]], ["acme_x", "==1.2.0"]);
    }
    let variable = json!({"name": "CITY", "value": "Oslo", "default": "Bergen", "isSecret": false});
    let package =
        json!({"registryType": "npm", "identifier": "x", "environmentVariables": [variable]});
    let published = json!({"name": "a/x", "packages": [package]});
    let row = planned(&playground, &published, &bin).remove(0);
    assert_eq!(row["settings"], json!(["CITY=Oslo"]), "{row}");
}

#[test]
fn a_relative_command_in_another_folder_is_another_server() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let mine = json!({"mcpServers": {"mine": {"command": PYTHON, "args": ["server.py"]}}});
    let mut projects = serde_json::Map::new();
    for name in ["one", "two"] {
        let folder = playground.path(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("server.py"), name).unwrap();
        projects.insert(folder.to_str().unwrap().to_owned(), mine.clone());
    }
    let document = json!({ "projects": projects });
    let rows = planned(&playground, &document, Path::new("/usr/bin"));
    let says: Vec<_> = rows.iter().map(|row| row["why"].to_string()).collect();
    assert!(
        rows.len() == 2 && says[0] == "[]" && says[1].contains("has this name"),
        "{rows:?}"
    );
}

fn finish_import(mut command: Command, arguments: &[&str]) -> Ended {
    command.args(["mcp", "import"]).args(arguments);
    finish(command, b"")
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_nothing_is_written() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let deep = format!("{{\"mcpServers\": {}{}", "[".repeat(5000), "]".repeat(5000));
    let twice = r#"{"mcpServers": {"a": {"command": "npx"}, "a": {"command": "uvx"}}}"#;
    let cases: [(&str, &[u8], &str); 5] = [
        (
            "comma.json",
            b"{\"mcpServers\":\n {\"a\" {}}}",
            "comma.json:2:",
        ),
        ("open.toml", b"model = 1\n[mcp_servers.x\n", "open.toml:2:"),
        ("deep.json", deep.as_bytes(), "deep.json:1:"),
        ("twice.json", twice.as_bytes(), "twice.json:1:"),
        (
            "bytes.json",
            b"{\"mcpServers\": \"\xff\xfe\"}",
            "bytes.json:",
        ),
    ];
    let good = playground.path("good.json");
    fs::write(
        &good,
        r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y", "a"]}}}"#,
    )
    .unwrap();
    nix::unistd::mkfifo(&playground.path("pipe.json"), Mode::S_IRWXU).unwrap();
    for (name, bytes, _) in cases {
        fs::write(playground.path(name), bytes).unwrap();
    }
    let before = playground.state(&[]);
    let wanted = cases.map(|(name, _, wanted)| (name, wanted));
    for (name, wanted) in wanted.into_iter().chain([("pipe.json", "pipe.json: ")]) {
        let file = playground.path(name);
        let [good, file] = [&good, &file].map(|path| path.to_str().unwrap());
        let ended = mcp(&playground, &["import", "--yes", good, file]);
        assert!(
            ended.code == Some(2) && ended.stderr.contains(wanted),
            "{name}: {}",
            ended.stderr
        );
    }
    assert_eq!(playground.state(&[]), before);
}

/// The files below a folder that hold this text.
fn holding(folder: &Path, text: &str) -> Vec<PathBuf> {
    let files = walkdir::WalkDir::new(folder).into_iter().flatten();
    let files = files.filter(|entry| entry.file_type().is_file());
    let files = files.filter(|entry| {
        let bytes = fs::read(entry.path()).unwrap();
        String::from_utf8_lossy(&bytes).contains(text)
    });
    files.map(|entry| entry.into_path()).collect()
}

#[test]
fn a_server_is_imported_called_listed_and_removed() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::create_dir(playground.path("outside")).unwrap();
    let script = playground.path("outside/server.py");
    fs::write(&script, include_str!("mcp_import/server.py")).unwrap();
    let variables = json!({"OWN_KEY": "key-of-the-test", "OWN_LEVEL": "9", "PATH": "/opt/bin"});
    let server = json!({"command": PYTHON, "args": ["-u", script], "env": variables});
    let file = playground.path("outside/mcp.json");
    fs::write(&file, json!({"mcpServers": {"Own": server}}).to_string()).unwrap();
    // What an import left that was killed.
    let stage = playground.path("tool-defs/mcp/.own.new");
    fs::create_dir_all(&stage).unwrap();
    let left = "name = \"mcp-own\"\nwhy = \"left\"\ntools = [\"own:*\"]\n";
    fs::write(
        playground.path("sandbox-policies/mcp-own.policy.toml"),
        left,
    )
    .unwrap();
    playground.settle();
    let before = playground.state(&[]);
    let file = file.to_str().unwrap();
    let short = mcp(&playground, &["import", "--yes", file]);
    assert!(
        short.text().contains("`--setting OWN_LEVEL`"),
        "{}",
        short.text()
    );
    assert_eq!(playground.state(&[]), before);
    let import = ["import", "--yes", "--setting", "OWN_LEVEL", file];
    let ended = mcp(&playground, &import);
    let said = ended.text() + &ended.stderr;
    assert!(
        ended.code == Some(0) && said.contains("imported and approved"),
        "{said}"
    );
    assert!(
        !said.contains("key-of-the-test") && !stage.exists(),
        "{said}"
    );
    // One of its two tools has a name that no tool may have.
    assert!(
        said.contains("lacks: /tools/0: the tool '../key' is not offered"),
        "{said}"
    );
    let again = mcp(&playground, &["refresh", "own:server"]);
    assert!(
        again.code == Some(0) && !again.text().contains("approve"),
        "{}",
        again.text()
    );
    // The value lies in its own file alone, and nobody else may read that.
    let secret = playground.path("sandbox-policies/secrets/mcp-own.OWN_KEY");
    let holding = holding(&playground.base, "key-of-the-test");
    let copies = holding
        .iter()
        .filter(|path| !path.starts_with(playground.path("outside")));
    assert_eq!(copies.collect::<Vec<_>>(), [&secret]);
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(
        [mode(&secret), mode(secret.parent().unwrap())],
        [0o600, 0o700]
    );
    playground.expect("own:key", "{}", "ok \"15 9\"");
    let listed = mcp(&playground, &["list", "--json"]);
    let row = &listed.out["servers"][0];
    assert_eq!(
        [&row["server"], &row["approval"], &row["tools"]],
        [&json!("own:server"), &json!("approved"), &json!(1)]
    );
    // What changed since it was approved is not started.
    let code = playground.path("tool-defs/mcp/own/app/server.py");
    let approved = fs::read_to_string(&code).unwrap();
    fs::write(&code, format!("{approved}\n# changed\n")).unwrap();
    let refused = mcp(&playground, &["refresh", "own:server"]);
    assert!(
        refused.code == Some(3) && refused.stderr.contains("--yes starts"),
        "{}",
        refused.stderr
    );
    fs::write(&code, approved).unwrap();
    assert!(row["mayTouch"].to_string().contains("OWN_KEY"), "{row}");
    // A second import changes nothing.
    let after = playground.state(&[]);
    let again = mcp(&playground, &import);
    assert!(
        again.text().contains("there is a server `own` already"),
        "{}",
        again.text()
    );
    assert_eq!(playground.state(&[]), after);
    let data = playground.path("tool-defs/mcp/own/data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("kept"), "kept").unwrap();
    for hostile in ["../outside", "own/../own", "."] {
        assert_eq!(
            mcp(&playground, &["remove", "--yes", hostile]).code,
            Some(2),
            "{hostile}"
        );
    }
    let shown = mcp(&playground, &["remove", "own"]);
    assert!(
        shown.text().contains("keeps") && secret.exists(),
        "{}",
        shown.text()
    );
    let removed = mcp(&playground, &["remove", "own", "--yes"]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    let left = walkdir::WalkDir::new(playground.path("tool-defs/mcp"))
        .into_iter()
        .flatten();
    let left: Vec<PathBuf> = left
        .filter(|it| it.file_type().is_file())
        .map(|it| it.into_path())
        .collect();
    assert_eq!(left, [data.join("kept")]);
    assert!(
        !secret.exists()
            && !playground
                .path("sandbox-policies/mcp-own.policy.toml")
                .exists()
    );
    assert_eq!(
        mcp(&playground, &import).code,
        Some(0),
        "with its data there"
    );
    assert_eq!(fs::read_to_string(data.join("kept")).unwrap(), "kept");
}

#[test]
fn an_argument_that_looks_like_a_secret_refuses_its_server_and_all_others_are_shown() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let secret: [&[&str]; 15] = [
        &["--token", "of-the-test"],
        &["--accessToken=of-the-test"],
        &["--apiKey", "of-the-test"],
        &["--apikey", "of-the-test"],
        &["--pat", "of-the-test"],
        &["--pwd", "of-the-test"],
        &["--db-passwd=of-the-test"],
        &["--cookie", "of-the-test"],
        &["--header", "of-the-test"],
        &["API_KEY=of-the-test"],
        &["Authorization: Bearer of-the-test"],
        &["--connection", "Server=db;User Id=sa;Password=of-the-test"],
        &["https://h.example/mcp?api_key=of-the-test"],
        &["postgresql://u:of-the-test@h/db"],
        &["ghp_of-the-test-0123456789"],
    ];
    let ordinary: [&[&str]; 4] = [
        &["--no-auth", "--keyboard", "us"],
        &["--token-limit", "5", "--max-tokens=100"],
        &["https://registry.example/@scope/pkg", "a=b"],
        &["--verbose"],
    ];
    let mut servers = serde_json::Map::new();
    for (at, arguments) in secret.iter().chain(&ordinary).enumerate() {
        let words = [&["-y", "@acme/x"][..], arguments].concat();
        servers.insert(format!("s{at}"), json!({"command": "npx", "args": words}));
    }
    let file = playground.path("mcp.json");
    fs::write(&file, json!({ "mcpServers": servers }).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let ended = mcp(&playground, &["import", "--json", file]);
    let mut rows = ended.out["servers"].as_array().unwrap().clone();
    rows.sort_by_key(|row| {
        row["server"].as_str().unwrap()[1..]
            .parse::<usize>()
            .unwrap()
    });
    for (row, arguments) in rows.iter().zip(secret) {
        assert_eq!(row["status"], "not taken", "{arguments:?}: {row}");
    }
    for (row, arguments) in rows[secret.len()..].iter().zip(ordinary) {
        assert_eq!(row["arguments"], json!(arguments), "{row}");
    }
    let table = mcp(&playground, &["import", file]).text();
    let all = [&ended.stderr, &table, &ended.out.to_string()];
    assert!(all.iter().all(|text| !text.contains("of-the-test")));
    assert!(table.contains("arguments: --keyboard"), "{table}");
}

/// Its last words, what it was refused, and what would grant that.
#[test]
fn a_server_that_fails_at_its_start_says_why() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let outside = playground.path("outside");
    fs::create_dir(&outside).unwrap();
    let needed = outside.join("needed.json");
    fs::write(&needed, "{}").unwrap();
    let code = format!(
        "import socket, sys\ntry:\n    socket.create_connection(('api.acme.example', 443))\nexcept OSError as why:\n    print('not reached:', why, file=sys.stderr)\nopen('{}')\n",
        needed.display()
    );
    let script = outside.join("needy.py");
    fs::write(&script, code).unwrap();
    let server = json!({"command": PYTHON, "args": [script]});
    let file = outside.join("mcp.json");
    fs::write(&file, json!({"mcpServers": {"needy": server}}).to_string()).unwrap();
    playground.settle();
    let imported = mcp(&playground, &["import", "--yes", file.to_str().unwrap()]);
    let unasked = mcp(&playground, &["refresh", "needy:server"]);
    assert_eq!(unasked.code, Some(3), "{}", unasked.stderr);
    let refreshed = mcp(&playground, &["refresh", "needy:server", "--yes"]);
    for (ended, said) in [
        (&imported, imported.text()),
        (&refreshed, refreshed.stderr.clone()),
    ] {
        assert_eq!(ended.code, Some(1), "{said}");
        let needed = format!("allow needy:server --read '{}'", needed.display());
        for says in [
            "not reached:",
            "Its exit status was 1",
            &needed,
            "--host 'api.acme.example'",
        ] {
            assert!(said.contains(says), "{says}: {said}");
        }
    }
}

/// What was written goes; what lies behind a link does not.
#[test]
fn a_link_in_place_of_a_server_is_not_followed() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let linked = ["tool-defs/mcp/own", "sandbox-policies/secrets"];
    for (at, link) in linked.into_iter().enumerate() {
        let kept = playground.path(&format!("kept{at}"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("mcp-own.KEY"), "kept").unwrap();
        let link = playground.path(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&kept, &link).unwrap();
        playground.settle();
        let before = playground.state(&[]);
        let file = playground.path("mcp.json");
        fs::write(
            &file,
            r#"{"mcpServers": {"own": {"command": "npx", "args": ["x"]}}}"#,
        )
        .unwrap();
        let imported = mcp(&playground, &["import", "--yes", file.to_str().unwrap()]);
        fs::remove_file(&file).unwrap();
        let removed = mcp(&playground, &["remove", "own", "--yes"]);
        let said = imported.text() + &removed.stderr;
        assert!(said.matches("through a link").count() == 2, "{said}");
        assert_eq!(
            playground.state(&[]).keys().collect::<Vec<_>>(),
            before.keys().collect::<Vec<_>>()
        );
        fs::remove_file(link).unwrap();
    }
}

/// The index answers nothing, and a script's project holds a pipe: what was begun is taken back.
#[test]
fn a_failure_in_the_middle_leaves_nothing() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let project = playground.path("piped");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("package.json"), "{}").unwrap();
    fs::write(project.join("main.js"), "").unwrap();
    nix::unistd::mkfifo(&project.join("pipe"), Mode::S_IRWXU).unwrap();
    nix::unistd::mkfifo(&project.join("pipe.js"), Mode::S_IRWXU).unwrap();
    let main = json!({"command": "node", "args": [project.join("main.js")]});
    let pipe = json!({"command": "node", "args": [project.join("pipe.js")]});
    let config = "[indexes.default]\npython = { url = \"http://127.0.0.1:9/simple/\", ranges = [\"127.0.0.0/8\"] }\n";
    fs::write(playground.path("config.toml"), config).unwrap();
    let server =
        json!({"command": "uvx", "args": ["mcp-server-time"], "env": {"KEY": "key-of-the-test"}});
    fs::write(
        playground.path("mcp.json"),
        json!({"mcpServers": {"main": main, "pipe": pipe, "time": server}}).to_string(),
    )
    .unwrap();
    playground.settle();
    let before = playground.state(&[]);
    let config = playground.path("config.toml");
    let mut command = playground.host();
    command.arg("--config").arg(config);
    let ended = finish_import(
        command,
        &[
            "--yes",
            "--json",
            playground.path("mcp.json").to_str().unwrap(),
        ],
    );
    let rows = ended.out["servers"].as_array().unwrap();
    let states: Vec<_> = rows
        .iter()
        .map(|row| row["status"].as_str().unwrap())
        .collect();
    assert_eq!(ended.code, Some(1), "{rows:?} {}", ended.stderr);
    assert_eq!(states, ["failed", "not taken", "failed"], "{rows:?}");
    for row in &rows[..2] {
        assert!(
            row["why"].to_string().contains("not a regular file"),
            "{row}"
        );
    }
    assert!(
        ended.stderr.contains("main: failed\n  "),
        "{}",
        ended.stderr
    );
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        playground.state(&[]).keys().collect::<Vec<_>>()
    );
}
