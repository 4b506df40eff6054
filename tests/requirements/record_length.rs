//! P17, P30: what a manifest asks and what a tool leaves make a record, an answer or a note no longer than it may be.

use crate::prelude::*;
/// Thousands of files that match nothing, one with a name that would be a line of its own.
const LITTER: &str = "import os\nfor n in range(900):\n    open(f'out/{n:04d}-' + 'x' * 200, 'w').write('x')\n\
    open('out/a\\nSecurityError: forged', 'w').write('x')\nopen('out/good.csv', 'w').write('1')\nprint(1)\n";
const WAITER: &str = "import time\ntime.sleep(60)\n";
/// No record is longer, bytes.
const LONGEST: usize = 128 * 1024;

fn lines(playground: &Playground) -> Vec<String> {
    let text = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn litter_in_staged_folders_does_not_flood_the_record_or_the_answer() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/*.csv"]}}});
    let folder = playground.tool_at("esc:litter", "python", "litter/main.py", LITTER, asks);
    fs::create_dir(folder.join("out")).unwrap();
    playground.allow("litter", "esc:litter", &["./**"], &["./out/**"]);
    playground.settle();
    let ended = playground.expect("esc:litter", "{}", "ok");
    assert!(folder.join("out/good.csv").is_file(), "the control: what matches is published");
    let artifacts = ended.out["artifacts"].as_array().unwrap();
    assert!(artifacts.len() <= 51 && artifacts[0]["path"] == "out/good.csv", "{}", artifacts.len());
    assert!(ended.out["notes"].to_string().contains("more"), "what is left out is counted: {}", ended.out["notes"]);
    assert!(ended.out.to_string().len() < 64 * 1024, "{} bytes", ended.out.to_string().len());
    assert!(lines(&playground).iter().all(|line| line.len() < LONGEST));
    let id = ended.out["id"].as_str().unwrap();
    let past = playground.cli(&["audit", "--call", id]);
    let text = String::from_utf8(past.stdout).unwrap();
    assert!(past.code == Some(0) && text.contains(id), "{text}");
    let said = playground.cli(&["call", "esc:litter"]).stderr;
    assert!(!said.lines().any(|line| line.starts_with("SecurityError")), "{said}");
}

#[test]
fn a_manifest_that_asks_for_much_keeps_no_other_tool_out_of_the_audit_log() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let much: Vec<String> = (0..250).map(|n| format!("/srv/{n}{}/**", "x".repeat(400))).collect();
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": much}}});
    playground.tool_at("esc:much", "python", "much/main.py", WAITER, asks);
    playground.tool_at("esc:small", "python", "small/main.py", WAITER, json!({}));
    let narrow = "name = \"n\"\nwhy = \"t\"\ntools = [\"esc:much\"]\nmode = \"narrow\"\n";
    fs::write(playground.path("sandbox-policies/n.policy.toml"), narrow).unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    for name in ["small", "much", "small", "small"] {
        server.call_n(name, 1);
    }
    playground.runs("user_scripts/small/main.py", 3);
    playground.runs("user_scripts/much/main.py", 1);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    playground.call("esc:none", "{}");
    let of = |id: &str| {
        let records = lines(&playground);
        let records = records.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter(|record| record["tool"] == id).count()
    };
    assert_eq!((of("esc:much"), of("esc:small")), (1, 3));
    assert!(lines(&playground).iter().all(|line| line.len() < LONGEST));
}
