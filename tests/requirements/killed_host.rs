//! P30 when the host itself is killed: its calls leave their records all the same, and those of other hosts leave one.

use crate::prelude::*;
const WAITER: &str = "import sys, time\nprint(sys.stdin.read(), file=sys.stderr)\ntime.sleep(60)\n";

fn records(playground: &Playground, tool: &str) -> Vec<Value> {
    playground.records().into_iter().filter(|record| record["tool"] == tool).collect()
}

#[test]
fn a_killed_host_leaves_the_records_of_its_calls() {
    as_everyone("a killed host", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let secret =
            json!({"parameters": {"type": "object", "properties": {"n": {"type": "integer", "x-secret": true}}}});
        playground.tool_at("esc:waiter", "python", "waiter/main.py", WAITER, secret);
        playground.tool_at("esc:other", "python", "other/main.py", WAITER, json!({}));
        playground.tool_at("esc:good", "python", "good/main.py", "print(1)\n", json!({}));
        playground.settle();
        let (mut dies, mut lives) = (Server::start(&playground), Server::start(&playground));
        dies.called("esc:good", json!({"n": 1}));
        for _ in 0..2 {
            dies.call_n("waiter", 424_242);
        }
        lives.call_n("other", 1);
        playground.runs("user_scripts/waiter/main.py", 2);
        playground.runs("user_scripts/other/main.py", 1);
        dies.child.kill().unwrap();
        dies.child.wait().unwrap();
        assert_eq!(records(&playground, "esc:waiter"), Vec::<Value>::new(), "{who:?}: no host could write them yet");

        // Whoever opens the log next adds them, once; a call whose host lives is not touched.
        for round in 0..2 {
            fits("ok", &playground.call("esc:good", "{}")).unwrap();
            let found = records(&playground, "esc:waiter");
            assert_eq!(found.len(), 2, "{who:?} in round {round}: {found:?}");
            for record in &found {
                assert_eq!((&record["decision"], &record["outcome"]), (&json!("allowed"), &json!("InternalError")));
                assert!(record["message"].as_str().unwrap().starts_with("The host ended before this call did"));
                assert!(
                    !record["digests"]["confinement"].is_null() && !record.to_string().contains("424242"),
                    "{record}"
                );
            }
            assert_eq!(records(&playground, "esc:other"), Vec::<Value>::new(), "{who:?}");
            assert_eq!(records(&playground, "esc:good").len(), 2 + round, "{who:?}: an ended call has its one record");
        }
        drop(lives.to.take());
        lives.child.wait().unwrap();
        assert_eq!(records(&playground, "esc:other").len(), 1, "{who:?}: the living host wrote its own");
        let left = || fs::read_dir(playground.path("state/begun")).unwrap().count();
        fits("ok", &playground.call("esc:good", "{}")).unwrap();
        assert_eq!(left(), 0, "{who:?}: nothing is left beside the log");
    });
}
