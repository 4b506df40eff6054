//! Manifests that this host cannot see or read: what they would deny is not known, and their scripts are not run by path.

use super::script_ownership::{PY, good, owned};
use crate::harness::{Who, as_everyone_with, fits, has, is_root, manifest, skipped};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What lies in a folder that can be entered and not listed may belong to manifests which nobody saw.
#[test]
fn a_script_in_a_folder_that_cannot_be_listed_is_not_run_by_its_path() {
    if !is_root() {
        return skipped(1, "a folder of somebody else needs root");
    }
    if !has("python", 1) {
        return;
    }
    let playground = owned(Who::User);
    let folder = playground.path("user_scripts/vic");
    std::os::unix::fs::chown(&folder, Some(0), Some(0)).unwrap();
    let run = |script: &str| {
        let input = json!({"scriptPath": script, "inputData": {"n": 9}});
        playground.call(PY, &input.to_string())
    };
    let mode = |bits| fs::set_permissions(&folder, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    let scripts = ["vic/main.py", "vic/lib/deep.py"];
    for script in scripts {
        fits("ParameterValidationError: must be <= 3", &run(script)).unwrap();
    }
    mode(0o711);
    for script in scripts {
        let ended = run(script);
        fits("SecurityError: it belongs to a tool that is not loaded", &ended).unwrap();
        assert!(ended.stderr.contains("user_scripts/vic is not loaded"), "{ended:?}");
        assert_eq!(playground.records().pop().unwrap()["rule"], "script", "no policy refused it");
    }
    mode(0o755);
    // A manifest that nobody sees may name a script elsewhere, but not one that has its own manifest beside it.
    let free = playground.path("user_scripts/free");
    fs::create_dir_all(&free).unwrap();
    fs::write(free.join("x.py"), "print('{}')\n").unwrap();
    fits("ok {}", &run("free/x.py")).unwrap();
    let closed = playground.path("tool-defs/closed");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = run("free/x.py");
    fits("SecurityError: it belongs to a tool that is not loaded", &ended).unwrap();
    assert!(ended.stderr.contains("tool-defs/closed is not loaded"), "{ended:?}");
    good(&playground, "with a closed folder elsewhere");
    fs::remove_dir(&closed).unwrap();
    fits("ok {}", &run("free/x.py")).unwrap();
    let unread = playground.path("tool-defs/unread.tool.json");
    fs::write(&unread, "{}").unwrap();
    fs::set_permissions(&unread, fs::Permissions::from_mode(0o600)).unwrap();
    let ended = run("free/x.py");
    fits("SecurityError: it belongs to a tool that is not loaded", &ended).unwrap();
    assert!(ended.stderr.contains("unread.tool.json is not loaded"), "{ended:?}");
    good(&playground, "with a closed file elsewhere");
    fits("SecurityError: it must not lead upwards", &run("vic/../main.py")).unwrap();
    assert_eq!(playground.records().pop().unwrap()["rule"], "script");
}

/// What is broken elsewhere still speaks for the script that its text names, and for no other.
#[test]
fn a_manifest_elsewhere_that_is_broken_keeps_its_script() {
    as_everyone_with("python", "broken elsewhere", |who| {
        let playground = owned(who);
        let free = playground.path("user_scripts/free");
        fs::create_dir_all(&free).unwrap();
        for name in ["x.py", "y.py"] {
            fs::write(free.join(name), "print('{}')\n").unwrap();
        }
        let handler = json!({"type": "external-script", "scriptPath": "free/x.py", "language": "python"});
        let must = json!({"type": "object", "properties": {"must": {"type": "string"}}, "required": ["must"]});
        let good = manifest("far:x", handler, json!({"parameters": must})).to_string();
        let write = |text: &str| {
            fs::write(playground.path("tool-defs/x.tool.json"), text).unwrap();
            playground.settle();
        };
        let run = |name: &str| playground.call(PY, &json!({"scriptPath": format!("free/{name}")}).to_string());
        write(&good);
        fits("ParameterValidationError: 'must' is required", &run("x.py")).unwrap();
        fits("ok {}", &run("y.py")).unwrap();
        for broken in [
            &good[..good.len() - 1],
            &good.replacen('{', "{\"version\": \"1\",", 1),
            &good.replace("\"handler\"", "\"handlr\""),
            "{handler: {scriptPath : \"free\\/x.py\"}}",
        ] {
            write(broken);
            fits("SecurityError: it belongs to a tool that is not loaded", &run("x.py")).unwrap();
            fits("ok {}", &run("y.py")).unwrap();
        }
    });
}
