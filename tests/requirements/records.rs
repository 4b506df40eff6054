//! P17, P30: calls leave their records also when the host itself is killed, and those of other
//! hosts leave one. What a manifest asks and what a tool leaves make a record, an answer or a note
//! no longer than it may be.

use super::files;
use crate::prelude::*;

const WAITER: &str =
    "import sys, time\nprint(sys.stdin.read(), file=sys.stderr)\ntime.sleep(600)\n";
const LONG: &str = "[limits]\ntimeout_ms = 120_000\n";
/// Thousands of files that match nothing, one with a name that would be a line of its own.
const LITTER: &str = "import os\nfor n in range(900):\n    open(f'out/{n:04d}-' + 'x' * 200, \
    'w').write('x')\nopen('out/a\\nSecurityError: forged', 'w').write('x')\nopen('out/good.csv', \
    'w').write('1')\nprint(1)\n";
/// No record is longer, bytes.
const LONGEST: usize = 128 * 1024;

fn records_are_short(playground: &Playground) {
    let text = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    assert!(text.lines().all(|line| line.len() < LONGEST) && text.ends_with('\n'));
}

/// Also beside a tool whose manifest asks for much.
#[test]
fn a_killed_host_leaves_the_records_of_its_calls() {
    as_everyone("a killed host", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let secret =
            json!({"type": "object", "properties": {"n": {"type": "integer", "x-secret": true}}});
        playground.tool("waiter", "python", WAITER, json!({"parameters": secret}));
        let much: Vec<String> = (0..250)
            .map(|n| format!("/srv/{n}{}/**", "x".repeat(400)))
            .collect();
        playground.tool(
            "much",
            "python",
            WAITER,
            json!({"securityContext": {"fileAccess": {"allowRead": much}}}),
        );
        playground.policy("n", "esc:much", &format!("mode = \"narrow\"\n{LONG}"));
        playground.policy("waiter", "esc:waiter", LONG);
        playground.policy("other", "esc:other", LONG);
        playground.tool("other", "python", WAITER, json!({}));
        playground.tool("good", "python", "print(1)\n", json!({}));
        playground.settle();
        let records = |tool: &str| -> Vec<Value> {
            playground
                .records()
                .into_iter()
                .filter(|record| record["tool"] == tool)
                .collect()
        };
        let (mut dies, mut lives) = (Server::start(&playground), Server::start(&playground));
        dies.called("esc:good", json!({"n": 1}));
        for name in ["waiter", "much", "waiter"] {
            dies.call_n(name, 424_242);
        }
        lives.call_n("other", 1);
        for (name, calls) in [("waiter", 2), ("much", 1), ("other", 1)] {
            playground.runs(&format!("user_scripts/{name}/main.py"), calls);
        }
        dies.child.kill().unwrap();
        dies.child.wait().unwrap();
        assert_eq!(
            records("esc:waiter"),
            Vec::<Value>::new(),
            "{who:?}: no host could write them yet"
        );

        // Whoever opens the log next adds them, once; a call whose host lives is not touched.
        for round in 0..2 {
            playground.expect("esc:good", "{}", "ok");
            let found = records("esc:waiter");
            assert_eq!(
                (found.len(), records("esc:much").len()),
                (2, 1),
                "{who:?} in round {round}: {found:?}"
            );
            for record in &found {
                assert_eq!(
                    (&record["decision"], &record["outcome"]),
                    (&json!("allowed"), &json!("InternalError"))
                );
                assert!(
                    record["message"]
                        .as_str()
                        .unwrap()
                        .starts_with("The host ended before this call did")
                );
                assert!(!record["digests"]["confinement"].is_null(), "{record}");
                assert!(!record.to_string().contains("424242"), "{record}");
            }
            assert_eq!(records("esc:other"), Vec::<Value>::new(), "{who:?}");
            assert_eq!(
                records("esc:good").len(),
                2 + round,
                "{who:?}: an ended call has its one record"
            );
        }
        drop(lives.to.take());
        lives.child.wait().unwrap();
        assert_eq!(
            records("esc:other").len(),
            1,
            "{who:?}: the living host wrote its own"
        );
        playground.expect("esc:good", "{}", "ok");
        let left = fs::read_dir(playground.path("state/begun"))
            .unwrap()
            .count();
        assert_eq!(left, 0, "{who:?}: nothing is left beside the log");
        records_are_short(&playground);
    });
}

#[test]
fn litter_in_staged_folders_does_not_flood_the_record_or_the_answer() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("litter", "python", LITTER, files(&["self"], &["out/*.csv"]));
    fs::create_dir(folder.join("out")).unwrap();
    playground.allow("litter", "esc:litter", &["./**"], &["./out/**"]);
    playground.settle();
    let ended = playground.expect("esc:litter", "{}", "ok");
    assert!(
        folder.join("out/good.csv").is_file(),
        "the control: what matches is published"
    );
    let artifacts = ended.out["artifacts"].as_array().unwrap();
    assert!(
        artifacts.len() <= 51 && artifacts[0]["path"] == "out/good.csv",
        "{}",
        artifacts.len()
    );
    assert!(
        ended.out["notes"].to_string().contains("more"),
        "what is left out is counted: {}",
        ended.out["notes"]
    );
    assert!(
        ended.out.to_string().len() < 64 * 1024,
        "{} bytes",
        ended.out.to_string().len()
    );
    records_are_short(&playground);
    let id = ended.out["id"].as_str().unwrap();
    let past = playground.cli(&["audit", "--call", id]);
    assert!(past.code == Some(0) && past.text().contains(id), "{past:?}");
    let said = playground.cli(&["call", "esc:litter"]).stderr;
    assert!(
        !said.lines().any(|line| line.starts_with("SecurityError")),
        "{said}"
    );
}
