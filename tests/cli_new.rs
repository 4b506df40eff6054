//! `new --script`: the function that is chosen, and that it is said.

use crate::cli_call::host;
use crate::escapes::{Playground, Who, is_root, skipped};
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_script_with_a_function_gets_an_entry_point_and_both_ways_are_said() {
    let host = host();
    let add = "def run(a: int, b: int = 2):\n    return {\"sum\": a + b}\n";
    let own = format!("{add}if __name__ == \"__main__\":\n    print(run(1))\n");
    for (name, text, entry, said) in [
        ("add", add, json!("run"), "entryPoint: run(a, b) is called with the arguments"),
        ("own", own.as_str(), Value::Null, "write \"entryPoint\": \"run\" into \"handler\""),
        ("plain", "print(1)\n", Value::Null, "write \"entryPoint\": \"NAME\" into \"handler\""),
    ] {
        let script = host.folder.path().join(format!("{name}.py"));
        fs::write(&script, text).unwrap();
        let (code, out, err) = host.run(&["new", name, "--script", script.to_str().unwrap()]);
        assert!(code == 0 && out.contains(said), "{name}: {out}{err}");
        let manifest = host.folder.path().join(format!("user_scripts/{name}/{name}.tool.json"));
        let manifest: Value = serde_json::from_str(&fs::read_to_string(manifest).unwrap()).unwrap();
        assert_eq!(manifest["handler"]["entryPoint"], entry, "{name}");
        if name == "add" {
            assert_eq!(manifest["parameters"]["required"], json!(["a"]));
            assert_eq!(manifest["parameters"]["properties"]["b"]["type"], "integer");
            assert!(out.contains("call custom:add a='1'"), "{out}");
        }
    }
    let (code, out, _) = host.run(&["check", "--strict"]);
    assert!(code == 0 && out.contains("3 good"), "what is made is in order: {out}");
}

/// (ending, script): each exports a function that takes `{ text }`.
const EXPORTED: [(&str, &str); 11] = [
    ("mjs", "export const run = async ({ text }) => ({ text });\n"),
    ("mjs", "function run({ text }) { return { text }; }; export { run };\n"),
    ("mjs", "function inner({ text }) { return { text }; }\nexport { inner as run };\n"),
    ("mjs", "export default async function main({ text }) { return { text }; }\n"),
    ("js", "exports.run = function ({ text }) { return { text }; };\n"),
    ("js", "module.exports.run = async ({ text }) => ({ text });\n"),
    ("js", "function run({ text }) { return { text }; }\nmodule.exports = { run };\n"),
    ("js", "module.exports = { async run({ text }) { return { text }; } };\n"),
    ("cjs", "function handle({ text }) { return { text }; }\nmodule.exports = handle;\n"),
    ("cjs", "const run = ({ text }) => ({ text });\nexports.run = run;\n"),
    (
        "py",
        "\"\"\"For example:\n\ndef run(fake):\n    pass\n\"\"\"\n\n\ndef main(text):\n    return {\"text\": text}\n",
    ),
];

/// Each way to export a function is recognised, and the command that is printed next works.
#[test]
fn the_next_command_works_for_every_way_to_export() {
    if !["/usr/bin/node", "/usr/bin/python3"].iter().all(|program| std::path::Path::new(program).exists()) {
        return skipped(EXPORTED.len(), "no node and python3 in /usr/bin");
    }
    let playground = Playground::new(if is_root() { Who::Root } else { Who::User }, "/var/tmp");
    for (at, (ending, text)) in EXPORTED.iter().enumerate() {
        let script = playground.path(&format!("n{at}.{ending}"));
        fs::write(&script, text).unwrap();
        playground.settle();
        let output = playground.host().args(["new", &format!("n{at}"), "--script"]).arg(&script).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let next =
            said.lines().find_map(|line| line.strip_prefix("Next: ")).unwrap_or_else(|| panic!("{text}: {said}"));
        assert!(
            said.contains("(text) is called with the arguments") && next.ends_with("text='text'"),
            "{text}: {said}"
        );
        playground.settle();
        let mut shell = playground.outside("/bin/sh");
        shell.env("XDG_STATE_HOME", playground.path("state")).args(["-c", &format!("bin/{next} --json")]);
        let output = shell.output().unwrap();
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(outcome["outputData"], json!({ "text": "text" }), "{text}: {outcome}");
    }
}
