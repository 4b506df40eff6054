//! `audit --suggest-policy`: what it prints, filled in, is what the refusal that pointed to it asked for.

use crate::harness::{Host, host};
use serde_json::{Value, json};
use std::fs;

const DEFAULT: &str = include_str!("../sandbox-policies/default.policy.toml");

impl Host {
    fn rule(&self, name: &str, text: &str) {
        fs::create_dir_all(self.folder.path().join("sandbox-policies")).unwrap();
        fs::write(self.folder.path().join("sandbox-policies").join(name), text).unwrap();
    }

    fn suggested(&self, id: &str) -> String {
        let (code, out, err) = self.run(&["audit", id, "--suggest-policy"]);
        assert_eq!(code, 0, "{err}");
        out
    }
}

#[test]
fn what_is_refused_for_want_of_a_name_is_given_one() {
    let host = host();
    host.rule("default.policy.toml", DEFAULT);
    let code = ["call", "core:run-code", "--input", r#"{"language": "python", "code": "print(1)"}"#];
    let (exit, _, err) = host.run(&code);
    assert!(
        exit == 3 && err.contains("`toolhost audit core:run-code --suggest-policy` prints what would grant it"),
        "{err}"
    );
    let text = host.suggested("core:run-code");
    assert!(text.contains("tools = [\"core:run-code\"]") && !text.contains("none is suggested"), "{text}");
    host.rule("run-code.policy.toml", &text);
    let audit: Value = serde_json::from_str(&host.run(&["audit", "core:run-code", "--json"]).1).unwrap();
    assert_eq!((&audit["refused"], &audit["policy"]), (&Value::Null, &json!("core-run-code")), "{audit}");
    let (_, _, err) = host.run(&code);
    assert!(!err.contains("SecurityError"), "{err}");
}

/// `--out` writes a new file, whole, that loads as it stands; what is there is not written over.
#[test]
fn a_suggestion_is_written_to_a_new_file() {
    let host = host();
    host.tool("t:own", json!({ "securityContext": { "fileAccess": { "allowWrite": ["out/*.csv"] } } }));
    host.rule("default.policy.toml", DEFAULT);
    let file = host.folder.path().join("sandbox-policies/t-own.policy.toml");
    let printed = host.suggested("t:own");
    let out = || host.run(&["audit", "t:own", "--suggest-policy", "--out", file.to_str().unwrap()]).0;
    assert_eq!((out(), fs::read_to_string(&file).unwrap()), (0, printed.clone()));
    let audit: Value = serde_json::from_str(&host.run(&["audit", "t:own", "--json"]).1).unwrap();
    assert_eq!((&audit["refused"], &audit["policy"]), (&Value::Null, &json!("t-own")), "{audit}");
    assert!(out() != 0 && fs::read_to_string(&file).unwrap() == printed);
}

/// A second policy that names the tool would stop everything, so the mend is in the first one's `folders`.
#[test]
fn a_policy_that_is_for_another_folder_is_named_with_its_mend() {
    let host = host();
    host.rule("default.policy.toml", DEFAULT);
    host.tool("t:moved", json!({ "securityContext": { "fileAccess": { "allowWrite": ["out/**"] } } }));
    let rules = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n";
    let at = |folder: &str| {
        format!("name = \"mine\"\nwhy = \"w\"\ntools = [\"t:moved\"]\nfolders = [\"{folder}\"]\n{rules}")
    };
    host.rule("mine.policy.toml", &at("user_scripts/old"));
    let scripts = host.folder.path().canonicalize().unwrap().join("user_scripts");
    let folder = scripts.join("moved").display().to_string();
    let parts = ["`mine`", "mine.policy.toml:4", "user_scripts/old", &folder, "to `folders` there"];
    let (_, audit, _) = host.run(&["audit", "t:moved"]);
    let (code, _, refusal) = host.run(&["call", "t:moved"]);
    let suggested = host.suggested("t:moved");
    let (_, check, _) = host.run(&["check"]);
    assert_eq!(code, 3, "{refusal}");
    for text in [&audit, &refusal, &suggested, &check] {
        parts.iter().for_each(|part| assert!(text.contains(part), "{part} is missing: {text}"));
    }
    assert!(suggested.lines().all(|line| line.starts_with('#') || line.is_empty()), "{suggested}");
    // The mend works.
    host.rule("mine.policy.toml", &at("user_scripts/moved"));
    let audit: Value = serde_json::from_str(&host.run(&["audit", "t:moved", "--json"]).1).unwrap();
    assert_eq!(audit["refused"], Value::Null, "{audit}");
    let (_, check, _) = host.run(&["check"]);
    assert!(!check.contains("`folders` are for tools"), "{check}");
}
