//! `new --script`: what is named is written, nothing is guessed, and the next command that is printed works.

use crate::harness::{Playground, Who, binary, host, skipped};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn what_cannot_be_written_is_refused_and_nothing_is_made() {
    let host = host();
    let script = host.folder.path().join("add.py");
    fs::write(&script, "def add(a):\n    return a\n").unwrap();
    let module = host.folder.path().join("m.wat");
    fs::write(&module, "(module)\n").unwrap();
    let (script, module) = (script.to_str().unwrap(), module.to_str().unwrap());
    for (more, why) in [
        (&["--script", script, "--parameter", "a:integr"][..], "did you mean 'integer'?"),
        (&["--script", script, "--parameter", "a:"], "known: string, integer, number, boolean, array, object"),
        (&["--script", script, "--parameter", ":integer"], "write NAME, NAME:integer or NAME:integer?"),
        (&["--script", script, "--parameter", "a", "--parameter", "a:integer"], "given twice"),
        (&["--script", script, "--entry", "no name"], "name of one function"),
        (&["--script", module, "--entry", "run"], "leave --entry out"),
        (&["--entry", "run"], "--script"),
    ] {
        let (code, _, err) = host.run(&[&["new", "x"], more].concat());
        assert!(code == 2 && err.contains(why), "{more:?}: {err}");
        assert!(!host.folder.path().join("user_scripts/x").exists(), "{more:?}");
    }
}

/// However a script is written, it is only copied: its size is all that costs.
#[test]
fn a_script_of_a_megabyte_is_not_read_for_what_it_means() {
    let host = host();
    for (at, part) in ["export{x as run};", "/*", "(", "def run(", "`${", "'''\\"].iter().enumerate() {
        let script = host.folder.path().join(format!("long{at}.mjs"));
        fs::write(&script, part.repeat((1 << 20) / part.len())).unwrap();
        let began = Instant::now();
        let (code, _, err) = host.run(&["new", &format!("n{at}"), "--script", script.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        assert!(began.elapsed() < Duration::from_secs(10), "{part}: {:?}", began.elapsed());
    }
}

/// (ending, entry point, script): each takes a text and a number, and gives both back.
const WAYS: [(&str, &str, &str); 4] = [
    ("mjs", "both", "export const both = async ({ text, n }) => ({ text, n });\n"),
    ("cjs", "both", "module.exports = { both({ text, n }) { return { text, n }; } };\n"),
    ("py", "both", "def both(text, n):\n    return {\"text\": text, \"n\": n}\n"),
    ("py", "", "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n"),
];

/// The command that is printed next works, and a number that is declared arrives as one.
#[test]
fn the_next_command_works() {
    if !["/usr/bin/node", "/usr/bin/python3"].iter().all(|program| std::path::Path::new(program).exists()) {
        return skipped(WAYS.len(), "no node and python3 in /usr/bin");
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (at, (ending, entry, text)) in WAYS.iter().enumerate() {
        let script = playground.path(&format!("n{at}.{ending}"));
        fs::write(&script, text).unwrap();
        playground.settle();
        let mut command = playground.host();
        command.args(["new", &format!("n{at}"), "--parameter", "text", "--parameter", "n:integer"]);
        command.arg("--script").arg(&script);
        if !entry.is_empty() {
            command.args(["--entry", entry]);
        }
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let next =
            said.lines().find_map(|line| line.strip_prefix("Next: ")).unwrap_or_else(|| panic!("{text}: {said}"));
        assert!(next.ends_with("text=text n=1"), "{next}");
        playground.settle();
        let mut shell = playground.outside("/bin/sh");
        let next = next.replacen("toolhost", &binary().display().to_string(), 1);
        shell.env("XDG_STATE_HOME", playground.path("state")).args(["-c", &format!("{next} --json")]);
        let output = shell.output().unwrap();
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(outcome["outputData"], json!({ "text": "text", "n": 1 }), "{text}: {outcome}");
    }
}

#[test]
fn every_language_keeps_the_parameters_and_nothing_is_written_through_a_link() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for language in ["python", "nodejs", "bun", "wasm"] {
        let mut command = playground.host();
        command.args(["new", language, "--language", language, "--parameter", "n:integer", "--parameter", "note?"]);
        let made = command.output().unwrap();
        assert!(made.status.success(), "{language}: {made:?}");
        let file = playground.path(&format!("user_scripts/{language}/{language}.tool.json"));
        let manifest: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(manifest["parameters"]["properties"]["n"]["type"], "integer", "{language}");
        assert_eq!(manifest["parameters"]["required"], json!(["n"]), "{language}");
        playground.settle();
        if language == "python"
            || crate::harness::found(language.trim_end_matches("js")).is_some()
            || language == "wasm"
        {
            let ended = playground.call(&format!("custom:{language}"), "{\"n\": 1}");
            assert_eq!(ended.out["outputData"], json!({"n": 1}), "{language}: {}", ended.stderr);
        }
    }
    let (scripts, elsewhere) = (playground.path("user_scripts"), playground.path("elsewhere"));
    fs::rename(&scripts, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &scripts).unwrap();
    let refused = playground.host().args(["new", "through"]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("is a link"), "{refused:?}");
    assert!(!elsewhere.join("through").exists());
}
