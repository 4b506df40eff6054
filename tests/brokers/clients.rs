//! TrustGraph's own clients, unmodified, of the release before its runtime changed and of the
//! newest one.

use super::{Node, Served, unique, world};
use crate::prelude::*;

/// Releases, each with the layers that work there: upstream's own agents cannot call tool services
/// in later ones.
const RELEASES: [(&str, &[&str]); 2] = [("2.7.13", &["client", "agent"]), ("2.11.1", &["client"])];

/// A program of a release.
pub fn program(release: &str, name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TOOLHOST_TEST_TRUSTGRAPH").map(PathBuf::from);
    let found = folder
        .map(|folder| folder.join(release).join("bin").join(name))
        .filter(|path| path.exists());
    if found.is_none() {
        missing(
            1,
            &format!("TrustGraph {release} (tests/brokers/install.sh, TOOLHOST_TEST_TRUSTGRAPH)"),
        );
    }
    found
}

/// What a release says to each of these calls.
pub fn called(
    playground: &Playground,
    release: &str,
    broker: &str,
    service: &str,
    layer: &str,
    calls: &Value,
) -> Option<Vec<Value>> {
    // As who runs the tests: the environment is that one's.
    let mut command = std::process::Command::new(program(release, "python")?);
    command
        .current_dir(playground.path("home"))
        .arg(repository("tests/brokers/call.py"));
    command.args([broker, service, layer]);
    let ended = finish(command, calls.to_string().as_bytes());
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    let mut found: Vec<Value> = told
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    found.sort_by_key(|told| told["call"].as_u64());
    assert_eq!(
        found.len(),
        calls.as_array().unwrap().len(),
        "{release} {layer}: {told}\n{}",
        ended.stderr
    );
    Some(found)
}

/// All that a client of TrustGraph asks of a service.
pub fn served(playground: &Playground, broker: &str, service: &str) {
    let call = |arguments: Value| json!({"config": {"tool": "esc:echo"}, "arguments": arguments});
    let mut calls: Vec<Value> = (0..30)
        .map(|n| call(json!({"n": n, "text": "größer 😀"})))
        .collect();
    calls.push(json!({"config": {"tool": "esc:nothing"}}));
    calls.push(call(json!({"long": 5_500_000})));
    for (release, layers) in RELEASES {
        for layer in layers {
            let Some(told) = called(playground, release, broker, service, layer, &json!(calls))
            else {
                return;
            };
            for (n, told) in told[..30].iter().enumerate() {
                let answer = format!("{{\"n\":{n},\"text\":\"größer 😀\"}}");
                assert_eq!(told["answer"], answer, "{release} {layer}: {told}");
            }
            for (at, words) in [
                (30, "does not have the tool"),
                (31, "larger than a message may be"),
            ] {
                let error = told[at]["error"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{release} {layer}: {}", told[at]));
                assert!(
                    error.starts_with("RuntimeError: ") && error.contains(words),
                    "{release} {layer}: {error}"
                );
            }
        }
        let streams = |tool: &str, arguments: Value| json!({"config": {"tool": tool, "stream": true}, "arguments": arguments, "stream": true});
        // At once, so that parts of one could come to another.
        let mut calls: Vec<Value> = (0..8)
            .map(|n| streams("esc:count", json!({"upto": n * 10})))
            .collect();
        calls.push(streams("esc:echo", json!({"n": 1})));
        calls.push(json!({"config": {"tool": "esc:count"}, "arguments": {"upto": 3}}));
        calls.push(streams("esc:count", json!({"upto": "many"})));
        calls.push(streams("esc:both", json!({})));
        let Some(told) = called(
            playground,
            release,
            broker,
            service,
            "client",
            &json!(calls),
        ) else {
            return;
        };
        for (n, told) in told[..8].iter().enumerate() {
            let parts: Vec<String> = (0..n * 10)
                .map(|n| format!("{n} "))
                .chain(["done".to_owned()])
                .collect();
            assert_eq!(
                (&told["parts"], &told["answer"]),
                (&json!(parts), &json!(parts.concat())),
                "{release}"
            );
        }
        assert_eq!(
            told[8]["answer"], "{\"n\":1}",
            "{release}, of a tool without parts: {}",
            told[8]
        );
        assert_eq!(
            told[9]["answer"], "0 1 2 done",
            "{release}, in one: {}",
            told[9]
        );
        assert_eq!(
            told[11]["answer"], "one two{\"rows\":3}",
            "{release}, with a document: {}",
            told[11]
        );
        assert!(
            told[10]["error"]
                .as_str()
                .is_some_and(|it| it.contains("ParameterValidationError")),
            "{}",
            told[10]
        );
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn clients_of_trustgraph_call_tools_over_rabbitmq() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("clients"));
    let host = Served::serve(&playground, "one", &node.url(), &service);
    served(&playground, &format!("amqp:{}", node.port), &service);
    drop(host);
}
