//! The documents are right: every `toolhost …` in docs/ runs as written, or at least is a command that there is;
//! every example of a manifest and a policy loads.

use crate::prelude::*;
use crate::shipped;

/// Lines of `sh` blocks that no test runs, by how they begin, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("umask 077", "network::secrets follows that page"),
    ("mkdir -p sandbox-policies user_scripts/rates", "network::secrets follows that page"),
    ("printf %s 'paste-the-key-here'", "network::secrets follows that page"),
    ("chmod 600 sandbox-policies/rates.key", "network::secrets follows that page"),
    ("cargo build", "builds this repository"),
    ("sudo install", "changes the machine"),
    ("sudo apparmor_parser", "changes the machine"),
    ("python3 -m venv /opt/reports-venv", "fetches packages from the network"),
];

/// What stands for something of the reader's, and what it is here.
fn filled(line: &str, playground: &Playground, call: &str) -> String {
    let base = playground.base.display().to_string();
    let known = "data:csv-summary";
    let mut line = line.to_owned();
    for (word, value) in [
        ("/srv/tools", base.as_str()),
        ("TOOL@VERSION", "data:csv-summary@1.0.0"),
        ("TOOL", known),
        ("ID", call),
        ("OLD", "sandbox-policies"),
        ("NEW", "sandbox-policies"),
        ("/ABS/PATH", &format!("{base}/user_scripts")),
    ] {
        line = line.replace(word, value);
    }
    line
}

/// Command lines from `toolhost` on, from `sh` blocks and from text, each with a document that has it.
fn commands() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(repository("docs")).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap().replace("\\\n", " ");
        let mut block: Option<String> = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), &block) {
                (Some(kind), None) => block = Some(kind.to_owned()),
                (Some(_), Some(_)) => block = None,
                (None, Some(kind)) if kind == "sh" && !line.trim().is_empty() => {
                    match line.find("toolhost ").filter(|at| *at == 0 || line[..*at].ends_with(' ')) {
                        // Whatever starts it: docker, systemd-run.
                        Some(at) if !line.starts_with("sudo ") => {
                            drop(found.insert(line[at..].to_owned(), name.clone()))
                        }
                        _ => assert!(
                            NOT_RUN.iter().any(|(start, _)| line.starts_with(start)),
                            "{name} has a command that no test tries: {line}"
                        ),
                    }
                }
                (None, Some(_)) => {}
                (None, None) => {
                    let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("toolhost "));
                    found.extend(spans.map(|span| (span.to_owned(), name.clone())));
                }
            }
        }
    }
    found
}

#[test]
fn every_command_of_the_documents_is_one() {
    let commands = commands();
    assert!(commands.len() >= 15, "{commands:?}");
    let playground = shipped::playground(Who::ours());
    fs::write(playground.path("reply.txt"), &blocks("ACTION.md", "xml")[0]).unwrap();
    playground.settle();
    let call = playground.call("data:csv-summary", "{}").out["id"].as_str().unwrap().to_owned();
    let mut tried = BTreeSet::new();
    for (command, document) in &commands {
        let line = filled(command, &playground, &call);
        let mut words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).skip(1).collect();
        // The host is started with this very root.
        if words[0] == "--root" {
            words.drain(..2);
        }
        // `toolhost call` and the like: the verb is meant, not a command. It must be there.
        if words.len() == 1
            && ["call", "serve", "test", "schema", "new", "ps", "kill", "status", "approvals"].contains(&words[0])
        {
            words.push("--help");
        }
        if !tried.insert(words.join(" ")) {
            continue;
        }
        let ended = playground.cli(&words);
        let told = ended.text();
        // `doctor` says by its status what this machine lacks.
        let good = ended.code == Some(0) || (words[0] == "doctor" && matches!(ended.code, Some(3 | 4)));
        assert!(good, "{document}: {command} ({words:?}): {:?}\n{told}\n{}", ended.code, ended.stderr);
        if words.contains(&"--json") {
            assert!(!ended.out.is_null(), "{document}: {command}: {told}");
        }
    }
    // The control: what is no command is told.
    assert_eq!(playground.cli(&["audit", "data:csv-summary", "--no-such-flag"]).code, Some(2));
}

/// The blocks of one language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(repository("docs").join(document)).unwrap();
    let fence = format!("```{language}\n");
    let starts = text.split(&fence).skip(1);
    starts.map(|rest| rest.split("\n```").next().unwrap().to_owned() + "\n").collect()
}

/// The first tool of docs/MANIFEST.md is two files that work.
#[test]
fn the_documents_tool_works() {
    let (manifest, script) = (blocks("MANIFEST.md", "json"), blocks("MANIFEST.md", "python"));
    let document: Value = serde_json::from_str(&manifest[0]).unwrap();
    let (id, path) = (document["toolId"].as_str().unwrap(), document["handler"]["scriptPath"].as_str().unwrap());
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let file = playground.path("user_scripts").join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, &script[0]).unwrap();
    fs::write(file.with_file_name("x.tool.json"), &manifest[0]).unwrap();
    playground.settle();
    playground.expect(id, r#"{"text":"to be or not to be"}"#, r#"ok {"words":6}"#);
    let checked = playground.cli(&["check", "--strict"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.text(), checked.stderr);
    let context: Value = serde_json::from_str(&format!("{{{}}}", manifest[1])).unwrap();
    assert_eq!(context["securityContext"]["fileAccess"]["allowWrite"], json!(["out/*.csv"]));
}

/// Each action of docs/ACTION.md has the observation that stands below it.
#[test]
fn the_documents_actions_are_answered() {
    let taught = &blocks("ACTION.md", "text")[0];
    let taught = taught.replace("the id of the tool", "data:csv-summary").replace("the name of a parameter", "file");
    let blocks = blocks("ACTION.md", "xml");
    let playground = shipped::playground(Who::ours());
    let mut command = playground.host();
    command.arg("act");
    let told = finish(command, taught.replace("its value; an object or a list as JSON", "sales.csv").as_bytes());
    assert!(told.text().contains("data:csv-summary executed successfully"), "{told:?}");
    for pair in blocks.chunks(2) {
        let mut command = playground.host();
        command.arg("act");
        let told = finish(command, pair[0].as_bytes()).text();
        let call = told.split('"').nth(1).unwrap_or_default();
        assert_eq!(told.replace(call, "…"), pair[1], "{}", pair[0]);
    }
    assert_eq!(blocks.len(), 6);
}

/// docs/STATE.md has every field of a record, and says which are always there.
#[test]
fn the_documents_record_is_that_of_a_call() {
    let text = fs::read_to_string(repository("docs/STATE.md")).unwrap();
    let rows = text.split("## A line of the log").nth(1).unwrap().lines().filter(|line| line.starts_with("| `"));
    let cells = rows.flat_map(|row| row.split('|').nth(1).unwrap().trim().split(", "));
    let told: Vec<(&str, bool)> = cells.map(|cell| (cell.split('`').nth(1).unwrap(), !cell.ends_with('°'))).collect();
    let playground = shipped::playground(Who::ours());
    playground.call("data:csv-summary", "{}");
    playground.call("no:such", "{}");
    playground.call("core:execute-python-script", r#"{"scriptPath": "../x.py"}"#);
    let records = playground.records();
    assert_eq!(records.len(), 3);
    for record in records {
        let record = record.as_object().unwrap();
        let unknown: Vec<&String> = record.keys().filter(|key| told.iter().all(|(name, _)| name != key)).collect();
        let missing = told.iter().filter(|(name, always)| *always && !record.contains_key(*name)).collect::<Vec<_>>();
        assert!(unknown.is_empty() && missing.is_empty(), "{unknown:?} {missing:?}: {record:?}");
    }
}

/// The policy of docs/POLICY.md loads as it stands, and governs the tool that it names.
#[test]
fn the_documents_policy_loads() {
    let policy = &blocks("POLICY.md", "toml")[0];
    let playground = shipped::playground(Who::ours());
    fs::write(playground.path("sandbox-policies/reports.policy.toml"), policy).unwrap();
    playground.settle();
    let audit = playground.cli(&["audit", "reports:write", "--json"]);
    assert_eq!(audit.out["policy"], "reports", "{}", audit.stderr);
    // The interpreter that it names is not on this machine; without it the tool runs.
    let (without, _) = policy.split_once("[runtimes]").unwrap();
    fs::write(playground.path("sandbox-policies/reports.policy.toml"), without).unwrap();
    let input = json!({"name": "x", "rows": [{"a": 1}]}).to_string();
    playground.expect("reports:write", &input, r#"ok {"file":"out/x.csv","rows":1,"columns":["a"]}"#);
    // The control: an unknown key refuses to start.
    fs::write(playground.path("sandbox-policies/reports.policy.toml"), format!("surprise = 1\n{without}")).unwrap();
    let ended = playground.call("reports:write", &input);
    assert!(ended.code == Some(3) && ended.stderr.contains("surprise"), "{ended:?}");
    let settings = &blocks("SETUP.md", "toml")[0];
    let playground = shipped::playground(Who::ours());
    fs::write(playground.path("config.toml"), settings).unwrap();
    playground.settle();
    let mut command = playground.host();
    command.arg("--config").arg(playground.path("config.toml")).args(["call", "examples:echo", "message=m"]);
    let ended = finish(command, b"");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
