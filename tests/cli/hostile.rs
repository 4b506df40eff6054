//! No verb prints what a terminal would obey, nor lets a name from outside begin a line of its own.

use crate::prelude::*;
/// Reorders, clears, hides, drives, and breaks the line.
const EVIL: &str = "x\u{202e}\u{9b}31m\u{e0041}\u{1b}]0;t\u{7}\nFORGED y";

fn raw(text: &str) -> bool {
    let obeyed = [
        '\u{202e}',
        '\u{9b}',
        '\u{e0041}',
        '\u{1b}',
        '\u{7}',
        '\r',
        '\t',
    ];
    text.contains(obeyed)
        || text
            .lines()
            .any(|line| line.trim_start().starts_with("FORGED"))
}

struct Watched(Host, Vec<String>);

impl Watched {
    fn run(&mut self, arguments: &[&str], input: &str) {
        let output = self
            .0
            .command()
            .args(arguments)
            .write_stdin(input)
            .output()
            .unwrap();
        for (stream, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
            let text = String::from_utf8(bytes).unwrap();
            if raw(&text) {
                self.1.push(format!("{arguments:?} on {stream}: {text:?}"));
            }
        }
    }

    /// Commands, a `;` between them, in which words in capitals stand for these.
    fn run_all(&mut self, commands: &str, words: &[(&str, &str)]) {
        for command in commands.split(';') {
            let fill = |word: &str| {
                words
                    .iter()
                    .fold(word.to_owned(), |word, (from, to)| word.replace(from, to))
            };
            let command: Vec<String> = command.split_whitespace().map(fill).collect();
            self.run(&command.iter().map(String::as_str).collect::<Vec<_>>(), "");
        }
    }
}

/// A TOML string that means these characters.
fn toml(text: &str) -> String {
    format!(
        "\"{}\"",
        text.chars()
            .map(|c| format!("\\U{:08X}", u32::from(c)))
            .collect::<String>()
    )
}

/// Tools that load with hostile words in them, and files that do not load for theirs.
fn tools(host: &Host) {
    let manifests =
        include_str!("hostile.json").replace("EVIL", json!(EVIL).to_string().trim_matches('"'));
    for (name, more) in serde_json::from_str::<BTreeMap<String, Value>>(&manifests).unwrap() {
        host.tool(&format!("t:{name}"), more);
    }
    let own = format!("user_scripts/{EVIL}");
    let files = json!({ "allowRead": ["./**", "/srv/**"], "allowWrite": ["out/**"] });
    let more = json!({ "securityContext": { "fileAccess": files } });
    let beside = manifest("t:beside", script("main.py", "python"), more);
    let rule = |path: &str| format!("[{{ path = \"{path}\", why = {} }}]", toml(EVIL));
    let policy = |name: &str, tools: &str, write: &str| {
        let head = format!(
            "name = \"{name}\"\nwhy = {}\ntools = [{tools}]\n",
            toml(EVIL)
        );
        format!(
            "{head}[files]\nread = {}\n{write} {}\n",
            rule("./**"),
            rule("./out/**")
        )
    };
    for (file, text) in [
        (format!("{own}/main.py"), "print(1)\n".to_owned()),
        (format!("{own}/out/node_modules"), String::new()),
        (format!("{own}/{EVIL}.tool.json"), beside.to_string()),
        (
            format!("user_scripts/left/out/{EVIL}/node_modules/x"),
            String::new(),
        ),
        (
            format!("user_scripts/plain/{EVIL}.tool.json"),
            "{\"x\": }".to_owned(),
        ),
        (
            format!("sandbox-policies/{EVIL}.policy.toml"),
            policy("hostile", "\"t:beside\", \"t:left\"", "write ="),
        ),
        (format!("sandbox-policies/ignored {EVIL}"), String::new()),
        (
            "sandbox-policies/default.policy.toml".to_owned(),
            policy("default", "\"*\"", "#"),
        ),
    ] {
        host.put(&file, text);
    }
    host.put(
        &format!("user_scripts/plain/z{EVIL}.tool.json"),
        b"\xff\xfe{}",
    );
}

#[test]
fn no_verb_prints_what_a_terminal_would_obey() {
    let host = host();
    tools(&host);
    let root = host.folder.path().canonicalize().unwrap();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (own, policies) = (at(&format!("user_scripts/{EVIL}")), at("sandbox-policies"));
    let mut watched = Watched(host, Vec::new());
    let (evil_file, evil_policy) = (
        format!("{own}/{EVIL}.tool.json"),
        format!("{policies}/{EVIL}.policy.toml"),
    );
    let input = json!({ EVIL: EVIL }).to_string();
    let words = [
        ("MANIFEST", &evil_file[..]),
        ("HOSTILE", &evil_policy),
        ("POLICIES", &policies),
        ("SCRIPTS", &at("user_scripts")),
        ("FOLDER", &own),
        ("INPUT", &input),
        ("EVIL", EVIL),
    ];
    for id in [
        "t:plain",
        "t:words",
        "t:beside",
        "t:left",
        "t:caps",
        "t:method",
        "t:type",
        "core:run-code",
        EVIL,
    ] {
        let commands = "audit ID --suggest-policy; call ID --verbose --log debug --input INPUT; \
                        call ID --json --log debug,json EVIL=1; diff ID t:plain";
        watched.run_all(commands, &[&[("ID", id)], &words[..]].concat());
    }
    watched.run_all(
        "list; list --json; list --namespace EVIL; check; check --json; check FOLDER/nothing; \
         check MANIFEST; check POLICIES; audit --all; audit --all --json; audit t:beside --probe; \
         audit --who-can read:SCRIPTS; audit --who-can write:/EVIL; audit --who-can reach:EVIL; \
         audit --who-can EVIL; audit --call EVIL; audit EVIL; audit EVIL --json; call t:plain \
         EVIL; call t:plain --xEVIL; call t:plain --timeout-ms EVIL; call t:plain --input \
         @/noEVIL; call t:plain --input EVIL; call core:execute-script scriptPath=EVIL; diff \
         MANIFEST t:words; diff HOSTILE POLICIES/default.policy.toml; diff /no/EVIL t:plain; new \
         EVIL; new n --language EVIL; new n --script /no/EVIL.py; doctor --json; schema EVIL; \
         EVIL; test EVIL; test --all",
        &words,
    );
    let log = fs::read_to_string(root.join("state/toolhost/audit.jsonl")).unwrap();
    assert!(!raw(&log) && log.lines().count() > 20, "{log}");
    for record in log.lines().take(12) {
        let id = serde_json::from_str::<Value>(record).unwrap()["call"]
            .as_str()
            .unwrap()
            .to_owned();
        watched.run(&["audit", "--call", &id], "");
    }
    let client = json!({ "name": EVIL, "version": "1" });
    let messages = [
        (
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
        ),
        ("tools/list", json!({})),
        (
            "tools/call",
            json!({ "name": "t__words", "arguments": { EVIL: EVIL } }),
        ),
        (EVIL, json!({})),
        ("tools/call", json!({ "name": EVIL })),
    ];
    let request = |(id, (method, params)): (usize, &(&str, Value))| {
        format!(
            "{}\n",
            json!({ "jsonrpc": "2.0", "id": id + 1, "method": method, "params": params })
        )
    };
    let input: String = messages.iter().enumerate().map(request).collect();
    watched.run(&["serve", "--stdio", "--log", "debug"], &input);
    let there = "\u{202e}";
    for broken in [
        format!(
            "{0} = 1\nname = {0}\n[files]\nread = [{{ path = {0}, why = \"\" }}]\n",
            toml(EVIL)
        ),
        format!("name = \"x{}", EVIL.replace('\n', " ")),
        format!(
            "name = \"z\"\nwhy = \"w\"\ntools = [{0}]\nfolders = [{0}]\nmode = {0}\n",
            toml(EVIL)
        ),
        format!(
            "name = \"z\"\nwhy = \"w\"\ntools = [\"t:plain\"]\nfolders = [\"no{there}\"]\n\
             [files]\nread = [{{ path = \"/opt/{there}\", why = \"{there}\" }}]\n\
             [runtimes]\npython = {{ path = \"/opt/{there}\", why = \"w\" }}\n"
        ),
    ] {
        watched.0.put("sandbox-policies/z.policy.toml", broken);
        watched.run_all(
            "check; call t:plain --log debug; audit t:plain; doctor; diff POLICIES t:plain",
            &words,
        );
    }
    assert!(watched.1.is_empty(), "{}", watched.1.join("\n"));
}
