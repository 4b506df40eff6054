//! The documents are right: every `toolhost …` in docs/ runs as written, or at least is a command
//! that there is; every example of a manifest and a policy loads.

use super::put;
use crate::prelude::*;
use crate::shipped;

/// Lines of `sh` blocks that no test runs, by how they begin, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("umask 077", "network::secrets follows that page"),
    (
        "mkdir -p sandbox-policies user_scripts/rates",
        "network::secrets follows that page",
    ),
    (
        "printf %s 'paste-the-key-here'",
        "network::secrets follows that page",
    ),
    (
        "chmod 600 sandbox-policies/rates.key",
        "network::secrets follows that page",
    ),
    ("cargo build", "builds this repository"),
    ("sudo install", "changes the machine"),
    ("sudo apparmor_parser", "changes the machine"),
    (
        "python3 -m venv /opt/reports-venv",
        "fetches packages from the network",
    ),
];

/// What stands for something of the reader's, and what it is here.
fn filled(line: &str, playground: &Playground, call: &str) -> String {
    let base = playground.base.to_str().unwrap();
    let words = [
        ("/srv/tools", base),
        ("TOOL@VERSION", "data:csv-summary@1.0.0"),
        ("TOOL", "data:csv-summary"),
        ("ID", call),
        ("OLD", "sandbox-policies"),
        ("NEW", "sandbox-policies"),
        ("/ABS/PATH", &format!("{base}/user_scripts")),
    ];
    words.iter().fold(line.to_owned(), |line, (word, value)| {
        line.replace(word, value)
    })
}

/// Command lines from `toolhost` on, from `sh` blocks and from text, each with a document that has
/// it.
fn commands() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in pages_of_docs() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap().replace("\\\n", " ");
        let mut block: Option<&str> = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), block) {
                (Some(kind), None) => block = Some(kind),
                (Some(_), Some(_)) => block = None,
                (None, Some("sh")) if !line.trim().is_empty() => {
                    // Whatever starts it: docker, systemd-run.
                    let start = line
                        .find("toolhost ")
                        .filter(|at| *at == 0 || line[..*at].ends_with(' '));
                    let known = NOT_RUN.iter().any(|(start, _)| line.starts_with(start));
                    match start.filter(|_| !line.starts_with("sudo ")) {
                        Some(at) => drop(found.insert(line[at..].to_owned(), name.clone())),
                        None => assert!(known, "{name} has a command that no test tries: {line}"),
                    }
                }
                (None, Some(_)) => {}
                (None, None) => {
                    let spans = line
                        .split('`')
                        .skip(1)
                        .step_by(2)
                        .filter(|span| span.starts_with("toolhost "));
                    found.extend(spans.map(|span| (span.to_owned(), name.clone())));
                }
            }
        }
    }
    found
}

#[test]
fn every_command_of_the_documents_is_one() {
    /// Alone, the verb is meant, not a command. It must be there.
    const VERBS: [&str; 11] = [
        "call",
        "artifact",
        "serve",
        "test",
        "schema",
        "new",
        "ps",
        "kill",
        "status",
        "approvals",
        "disable",
    ];
    let commands = commands();
    assert!(commands.len() >= 15, "{commands:?}");
    let playground = shipped::playground(Who::ours());
    put(
        &playground,
        "reply.txt",
        &blocks("reference/ACTION.md", "xml")[0],
    );
    put(&playground, "sales.csv", "a,b\n1,2\n");
    playground.settle();
    let call = playground.call("data:csv-summary", "{}").out["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut tried = BTreeSet::new();
    for (command, document) in &commands {
        let line = filled(command, &playground, &call);
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        // The host is started with this very root.
        if words[0] == "--root" {
            words.drain(..2);
        }
        if words.len() == 1 && VERBS.contains(&words[0]) {
            words.push("--help");
        }
        if !tried.insert(words.join(" ")) {
            continue;
        }
        let ended = playground.cli(&words);
        // `doctor` says by its status what this machine lacks.
        let good =
            ended.code == Some(0) || (words[0] == "doctor" && matches!(ended.code, Some(3 | 4)));
        assert!(
            good && !(words.contains(&"--json") && ended.out.is_null()),
            "{document}: {command}: {ended:?}"
        );
    }
    // The control: what is no command is told.
    assert_eq!(
        playground
            .cli(&["audit", "data:csv-summary", "--no-such-flag"])
            .code,
        Some(2)
    );
}

/// The blocks of one language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(repository("docs").join(document)).unwrap();
    let fence = format!("```{language}\n");
    let starts = text.split(&fence).skip(1);
    starts
        .map(|rest| rest.split("\n```").next().unwrap().to_owned() + "\n")
        .collect()
}

/// The first tool of docs/reference/MANIFEST.md is two files that work.
#[test]
fn the_documents_tool_works() {
    let (manifest, script) = (
        blocks("reference/MANIFEST.md", "json"),
        blocks("reference/MANIFEST.md", "python"),
    );
    let document: Value = serde_json::from_str(&manifest[0]).unwrap();
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let path = document["handler"]["scriptPath"].as_str().unwrap();
    let file = put(&playground, format!("user_scripts/{path}"), &script[0]);
    put(
        &playground,
        file.with_file_name("x.tool.json"),
        &manifest[0],
    );
    playground.settle();
    let id = document["toolId"].as_str().unwrap();
    playground.expect(id, r#"{"text":"to be or not to be"}"#, r#"ok {"words":6}"#);
    let checked = playground.cli(&["check", "--strict"]);
    assert_eq!(
        checked.code,
        Some(0),
        "{}{}",
        checked.text(),
        checked.stderr
    );
    let context = manifest
        .iter()
        .find(|block| block.starts_with("\"securityContext\""));
    let context: Value = serde_json::from_str(&format!("{{{}}}", context.unwrap())).unwrap();
    assert_eq!(
        context["securityContext"]["fileAccess"]["allowWrite"],
        json!(["out/*.csv"])
    );
}

#[test]
fn records_actions_policies_and_settings_are_as_the_documents_say() {
    // docs/reference/STATE.md has every field of a record, and says which are always there.
    let text = fs::read_to_string(repository("docs/reference/STATE.md")).unwrap();
    let rows = text
        .split("## A line of the log")
        .nth(1)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| `"));
    let cells = rows.flat_map(|row| row.split('|').nth(1).unwrap().trim().split(", "));
    let told: Vec<(&str, bool)> = cells
        .map(|cell| (cell.split('`').nth(1).unwrap(), !cell.ends_with('°')))
        .collect();
    let playground = shipped::playground(Who::ours());
    playground.call("data:csv-summary", "{}");
    playground.call("no:such", "{}");
    playground.call("core:execute-python-script", r#"{"scriptPath": "../x.py"}"#);
    let records = playground.records();
    assert_eq!(records.len(), 3);
    for record in records.iter().map(|record| record.as_object().unwrap()) {
        let unknown: Vec<&String> = record
            .keys()
            .filter(|key| told.iter().all(|(name, _)| name != key))
            .collect();
        let missing: Vec<_> = told
            .iter()
            .filter(|(name, always)| *always && !record.contains_key(*name))
            .collect();
        assert!(
            unknown.is_empty() && missing.is_empty(),
            "{unknown:?} {missing:?}: {record:?}"
        );
    }
    // Each action of docs/reference/ACTION.md has the observation that stands below it.
    let act = |text: &str| {
        let mut command = playground.host();
        command.arg("act");
        finish(command, text.as_bytes()).text()
    };
    let taught =
        blocks("reference/ACTION.md", "text")[0].replace("the id of the tool", "data:csv-summary");
    let taught = taught.replace("the name of a parameter", "file");
    let told = act(&taught.replace("its value; an object or a list as JSON", "sales.csv"));
    assert!(
        told.contains("data:csv-summary executed successfully"),
        "{told}"
    );
    let actions = blocks("reference/ACTION.md", "xml");
    assert_eq!(actions.len(), 6);
    for pair in actions.chunks(2) {
        let told = act(&pair[0]);
        assert_eq!(
            told.replace(told.split('"').nth(1).unwrap_or_default(), "…"),
            pair[1],
            "{}",
            pair[0]
        );
    }
    // The settings of docs/SETUP.md are read.
    let config = put(&playground, "config.toml", &blocks("SETUP.md", "toml")[0]);
    playground.settle();
    let config = config.to_str().unwrap();
    let ended = playground.cli(&["--config", config, "call", "examples:echo", "message=m"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The policy of docs/reference/POLICY.md loads as it stands, and governs the tool that it
    // names.
    let policy = &blocks("reference/POLICY.md", "toml")[0];
    let write = |text: &str| {
        put(&playground, "sandbox-policies/reports.policy.toml", text);
        playground.settle();
    };
    write(policy);
    let audit = playground.cli(&["audit", "reports:write", "--json"]);
    assert_eq!(audit.out["policy"], "reports", "{}", audit.stderr);
    // The interpreter that it names is not on this machine; without it the tool runs.
    let (without, _) = policy.split_once("[runtimes]").unwrap();
    write(without);
    let input = json!({"name": "x", "rows": [{"a": 1}]}).to_string();
    playground.expect(
        "reports:write",
        &input,
        r#"ok {"file":"out/x.csv","rows":1,"columns":["a"]}"#,
    );
    // The control: an unknown key refuses to start.
    write(&format!("surprise = 1\n{without}"));
    let ended = playground.call("reports:write", &input);
    assert!(
        ended.code == Some(3) && ended.stderr.contains("surprise"),
        "{ended:?}"
    );
}
