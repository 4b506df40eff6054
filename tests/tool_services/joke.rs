//! The example: a tool service of a few lines, called by a host.

#[path = "../../examples/joke.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod example;

use super::{configured, playground, terms};
use crate::brokers::{self, Node};
use crate::harness::{Who, finish};
use serde_json::json;
use std::fs;
use toolhost::broker::{Topic, serve};

#[test]
fn the_joke_service_is_short_and_answers() {
    assert!(include_str!("../../examples/joke.rs").lines().count() <= 30);
    let Some(mq) = Node::shared() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (requests, replies) = Topic::of_service("joke").unwrap();
    runtime.spawn(serve(terms(&mq.url()), requests, replies, "joke-service", 8, example::Joke));
    let host = playground(Who::ours(), "joke", &mq.url());
    let told = |input: &str| {
        let mut command = host.host();
        command.args(configured(&host)).args(["call", "joke:ask", "--json", "--input", input]);
        let ended = finish(command, b"");
        ended.out["outputData"].as_str().unwrap_or_else(|| panic!("{ended:?}")).to_owned()
    };
    // It may be connected after the first call is made: nobody is there then.
    crate::harness::wait_for("the service is there", || {
        let mut command = host.host();
        command.args(configured(&host)).args(["call", "joke:ask", "--json"]);
        finish(command, b"").out["success"] == true
    });
    assert!(told("{\"topic\": \"llama\"}").starts_with("Here's a pun for you:\n\nWhy do llamas"));
    assert!(told("{\"topic\": \"tea\"}").ends_with("I knew one about tea. It has not come back."));
    let asked =
        json!([{"config": {"style": "dad-joke"}, "arguments": {"topic": "llama"}}, {"arguments": {"topic": "tea"}}]);
    for release in ["2.7.13", "2.11.1"] {
        let broker = format!("amqp:{}", mq.port);
        let Some(told) = brokers::called(&host, release, &broker, "joke", "client", &asked) else { break };
        let starts = |n: usize, words: &str| told[n]["answer"].as_str().is_some_and(|it| it.starts_with(words));
        assert!(starts(0, "Here's a dad-joke for you:\n\nWhy do llamas"), "{release}: {}", told[0]);
        assert!(starts(1, "Here's a pun for you:\n\nI knew one about tea."), "{release}: {}", told[1]);
    }
    let policy = host.path("sandbox-policies/remote.policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, text.replace("why = \"w\" }]", "user = true, why = \"w\" }]")).unwrap();
    assert!(told("{}").starts_with("Hey ") && told("{}").contains("! Here's a pun for you:\n\n"));
    runtime.shutdown_background();
}
