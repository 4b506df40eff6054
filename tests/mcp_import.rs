//! `toolhost mcp import`, `list` and `remove`: files of every client, hostile ones, and what is left
//! when something fails.

use crate::prelude::*;
use nix::sys::stat::Mode;

const SECRETS: [&str; 4] = [
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
    let weather = repository("tests/mcp_import/server.json");
    let weather = ["import", "--json", "--dry-run", weather.to_str().unwrap()];
    let read = lines(&ended, &playground) + &lines(&mcp(&playground, &weather), &playground);
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
    assert!(!said.contains("key-of-the-test"), "{said}");
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

/// The index answers nothing: what was begun is taken back.
#[test]
fn a_failure_in_the_middle_leaves_nothing() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let config = "[indexes.default]\npython = { url = \"http://127.0.0.1:9/simple/\", ranges = [\"127.0.0.0/8\"] }\n";
    fs::write(playground.path("config.toml"), config).unwrap();
    let server =
        json!({"command": "uvx", "args": ["mcp-server-time"], "env": {"KEY": "key-of-the-test"}});
    fs::write(
        playground.path("mcp.json"),
        json!({"mcpServers": {"time": server}}).to_string(),
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
    let row = &ended.out["servers"][0];
    assert_eq!(
        (ended.code, &row["status"]),
        (Some(1), &json!("failed")),
        "{row} {}",
        ended.stderr
    );
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        playground.state(&[]).keys().collect::<Vec<_>>()
    );
}
