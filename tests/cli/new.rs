//! `new --script`: what is named is written, nothing is guessed, and the next command that is
//! printed works.

use crate::prelude::*;
#[test]
fn what_cannot_be_written_is_refused_and_nothing_is_made() {
    let host = host();
    let script = &host.put("add.py", "def add(a):\n    return a\n");
    let module = &host.put("m.wat", "(module)\n");
    let link = host.path("link.py");
    symlink(script, &link).unwrap();
    let link = link.to_str().unwrap();
    for (more, why) in [
        (
            &["--script", script, "--parameter", "a:integr"][..],
            "did you mean 'integer'?",
        ),
        (
            &["--script", script, "--parameter", "a:"],
            "known: string, integer, number, boolean, array, object",
        ),
        (
            &["--script", script, "--parameter", ":integer"],
            "write NAME, NAME:integer or NAME:integer?",
        ),
        (
            &[
                "--script",
                script,
                "--parameter",
                "a",
                "--parameter",
                "a:integer",
            ],
            "given twice",
        ),
        (
            &["--script", script, "--entry", "no name"],
            "name of one function",
        ),
        (&["--script", module, "--entry", "run"], "leave --entry out"),
        (&["--entry", "run"], "--script"),
        (&["--script", link], "add.py: name that file itself"),
        (&["--from", link], "add.py: name that file itself"),
    ] {
        let (code, _, err) = host.run(&[&["new", "x"], more].concat());
        assert!(code == 2 && err.contains(why), "{more:?}: {err}");
        assert!(!host.path("user_scripts/x").exists(), "{more:?}");
    }
}

/// (language, ending, entry point, script): each takes a text and a number, and gives both back.
const WAYS: [(&str, &str, &str, &str); 4] = [
    (
        "nodejs",
        "mjs",
        "both",
        "export const both = async ({ text, n }) => ({ text, n });\n",
    ),
    (
        "nodejs",
        "cjs",
        "both",
        "module.exports = { both({ text, n }) { return { text, n }; } };\n",
    ),
    (
        "python",
        "py",
        "both",
        "def both(text, n):\n    return {\"text\": text, \"n\": n}\n",
    ),
    (
        "python",
        "py",
        "",
        "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n",
    ),
];

#[test]
fn the_next_command_works_every_language_keeps_the_parameters_and_nothing_is_written_through_a_link()
 {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (at, (language, ending, entry, text)) in WAYS.iter().enumerate() {
        if !has(language, 1) {
            continue;
        }
        let script = playground.path(&format!("n{at}.{ending}"));
        fs::write(&script, text).unwrap();
        playground.settle();
        let mut command = playground.host();
        command.args([
            "new",
            &format!("n{at}"),
            "--parameter",
            "text",
            "--parameter",
            "n:integer",
        ]);
        command.arg("--script").arg(&script);
        if !entry.is_empty() {
            command.args(["--entry", entry]);
        }
        let said = finish(command, b"").text();
        let next = said.lines().find_map(|line| line.strip_prefix("Next: "));
        let next = next.unwrap_or_else(|| panic!("{text}: {said}"));
        assert!(next.ends_with("text=text n=1"), "{next}");
        playground.settle();
        let mut shell = playground.outside("/bin/sh");
        let next = next.replacen("toolhost", &binary().display().to_string(), 1);
        shell
            .env("XDG_STATE_HOME", playground.path("state"))
            .args(["-c", &format!("{next} --json")]);
        let ended = finish(shell, b"");
        assert_eq!(
            ended.out["outputData"],
            json!({ "text": "text", "n": 1 }),
            "{text}: {ended:?}"
        );
    }
    for (language, program) in [
        ("python", "python3"),
        ("nodejs", "node"),
        ("bun", "bun"),
        ("wasm", "sh"),
    ] {
        let parameters = ["--parameter", "n:integer", "--parameter", "note?"];
        let made =
            playground.cli(&[&["new", language, "--language", language], &parameters[..]].concat());
        assert_eq!(made.code, Some(0), "{language}: {made:?}");
        let file = playground.path(&format!("user_scripts/{language}/{language}.tool.json"));
        let manifest: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(
            manifest["parameters"]["properties"]["n"]["type"], "integer",
            "{language}"
        );
        assert_eq!(
            manifest["parameters"]["required"],
            json!(["n"]),
            "{language}"
        );
        playground.settle();
        if found(program).is_some() {
            playground.expect(&format!("custom:{language}"), "{\"n\": 1}", "ok {\"n\": 1}");
        }
    }
    let (scripts, elsewhere) = (
        playground.path("user_scripts"),
        playground.path("elsewhere"),
    );
    fs::rename(&scripts, &elsewhere).unwrap();
    symlink(&elsewhere, &scripts).unwrap();
    let refused = playground.cli(&["new", "through"]);
    assert!(
        refused.code != Some(0) && refused.stderr.contains("is a link"),
        "{refused:?}"
    );
    assert!(!elsewhere.join("through").exists());
}
