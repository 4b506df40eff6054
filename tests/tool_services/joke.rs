//! The example: a tool service of a few lines, called by a host.

use crate::prelude::*;
#[path = "../../examples/joke.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod example;

use super::{call, output, playground, send_user, terms};
use crate::brokers::{self, Node, Raw};
use lapin::types::AMQPValue;
use toolhost::broker::{ReplyStream, ServiceRequest, ToolService, Topic, serve};

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn the_joke_service_is_short_and_answers() {
    assert!(include_str!("../../examples/joke.rs").lines().count() <= 30);
    let Some(mq) = Node::shared() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (requests, replies) = Topic::of_service("joke").unwrap();
    runtime.spawn(serve(
        terms(&mq.url()),
        requests,
        replies,
        "joke-service",
        8,
        example::Joke,
    ));
    let host = playground(Who::ours(), "joke", &mq.url());
    let said = |input: Value| output(&call(&host, "joke:ask", &input, &[]));
    // It may be connected after the first call is made.
    wait_for("the service is there", || {
        call(&host, "joke:ask", &json!({}), &[]).out["success"] == true
    });
    assert!(said(json!({"topic": "llama"})).starts_with("Here's a pun for you:\n\nWhy do llamas"));
    assert!(said(json!({"topic": "tea"})).ends_with("I knew one about tea. It has not come back."));
    let llama = json!({"config": {"style": "dad-joke"}, "arguments": {"topic": "llama"}});
    let asked = json!([llama, {"arguments": {"topic": "tea"}}]);
    for release in ["2.7.13", "2.11.1"] {
        let broker = format!("amqp:{}", mq.port);
        let Some(told) = brokers::called(&host, release, &broker, "joke", "client", &asked) else {
            break;
        };
        let starts = |n: usize, words: &str| {
            told[n]["answer"]
                .as_str()
                .is_some_and(|it| it.starts_with(words))
        };
        assert!(
            starts(0, "Here's a dad-joke for you:\n\nWhy do llamas"),
            "{release}: {}",
            told[0]
        );
        assert!(
            starts(1, "Here's a pun for you:\n\nI knew one about tea."),
            "{release}: {}",
            told[1]
        );
    }
    send_user(&host);
    let joke = said(json!({}));
    assert!(
        joke.starts_with("Hey ") && joke.contains("! Here's a pun for you:\n\n"),
        "{joke}"
    );
    runtime.shutdown_background();
}

/// Answers with so many letters, and counts how often it is asked.
struct Long(Arc<AtomicUsize>);

impl ToolService for Long {
    async fn invoke(&self, asked: ServiceRequest, _: &ReplyStream) -> Result<Value, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let long = asked
            .arguments
            .get("long")
            .and_then(Value::as_u64)
            .unwrap_or_default();
        Ok(json!("x".repeat(usize::try_from(long).unwrap())))
    }
}

/// What was being answered when a connection was lost has two answers, of which clients take the
/// first.
async fn ask(raw: &mut Raw, id: &str, long: usize) -> Value {
    raw.ask(id, &json!({}), &json!({"long": long})).await;
    loop {
        let (told, body) = raw.reply().await;
        if told == id.as_bytes() {
            return body;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn what_a_service_cannot_answer_does_not_come_again() {
    let Some(node) = Node::start() else { return };
    node.stop();
    node.limit(100_000);
    node.again();
    let asked = Arc::<AtomicUsize>::default();
    let (requests, replies) = Topic::of_service("long").unwrap();
    let service = Long(asked.clone());
    let served = tokio::spawn(serve(
        terms(&node.url()),
        requests,
        replies,
        "long-service",
        2,
        service,
    ));
    // The exchanges are the service's.
    let mut raw = loop {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let (url, asks) = (node.url(), async |url: &str| Raw::to(url, "long").await);
        if let Ok(raw) = tokio::spawn(async move { asks(&url).await }).await {
            break raw;
        }
    };
    assert_eq!(
        ask(&mut raw, "fits", 50_000).await["response"]
            .as_str()
            .unwrap()
            .len(),
        50_000,
        "the control"
    );
    let body = ask(&mut raw, "large", 200_000).await;
    assert_eq!(
        body["error"]["message"], "The answer is larger than the broker takes.",
        "{body}"
    );
    assert_eq!(ask(&mut raw, "fits again", 5).await["response"], "xxxxx");
    // Neither a reply nor an id that no message may have is an answer's cause.
    raw.send(
        Some(AMQPValue::LongString("r".into())),
        br#"{"response": "", "end_of_stream": true}"#,
    )
    .await;
    raw.send(Some(AMQPValue::LongString("i".repeat(2000).into())), b"{}")
        .await;
    assert_eq!(ask(&mut raw, "last", 1).await["response"], "x");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        5,
        "once, and what was too large once more"
    );
    served.abort();
}
