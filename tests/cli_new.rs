//! `new --script`: the function that is chosen, and that it is said.

use crate::cli_call::host;
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
