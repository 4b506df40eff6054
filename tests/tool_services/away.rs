//! A broker that goes while services are called over it: each call ends with its reason, and the
//! next ones are served again.

use super::peer::Peer;
use super::{playground, queues, terms};
use crate::brokers::Node;
use crate::http::Web;
use crate::prelude::*;

/// What a call ends with: its answer; or the type, message and details of its error.
fn told(web: &Web, what: &str, timeout_ms: u64) -> Result<Value, [String; 3]> {
    let body = json!({"config": {"timeoutMs": timeout_ms}, "arguments": {"what": what}});
    let reply = web.call("dying:ask", &body, &[]).json();
    let text = |key: &str| reply["error"][key].as_str().unwrap_or_default().to_owned();
    match reply["success"] == true {
        true => Ok(reply["outputData"].clone()),
        false => Err(["type", "message", "details"].map(text)),
    }
}

fn link(web: &Web) -> Value {
    web.get("/v1/status", &[]).json()["toolServices"].clone()
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn a_call_whose_broker_dies_ends_and_later_ones_are_served() {
    let Some(node) = Node::start() else { return };
    let host = playground(Who::ours(), "dying", &node.url());
    let callers = "[[caller]]\nname = \"*\"\nrole = \"operator\"\nwhy = \"a test\"\ntools = \
                   [\"*\"]\n[breaker]\nfailures = 1_000_000\nwhy = \"a test of failures\"\n";
    fs::write(host.path("sandbox-policies/callers.policy.toml"), callers).unwrap();
    let peer = Peer::of(terms(&node.url()), "dying", &queues("dying").0);
    let mut command = super::host(&host);
    command.args(["serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(command, host.who.uid()).unwrap();
    assert_eq!(link(&web), json!([]), "connected at the first call");
    let answers = || told(&web, "stream", 20_000) == Ok(json!("one two three"));
    assert!(answers(), "the control");
    // Three replies to nobody, and two that came after the last.
    wait_for("strays are counted", || link(&web)[0]["strays"] == 5);
    let status = link(&web);
    let at = format!("request:tg:dying of {}", node.url());
    let service = ["service", "at", "connected"].map(|key| &status[0][key]);
    assert_eq!(service, [&json!("dying"), &json!(at), &json!(true)]);
    let ended = std::thread::scope(|scope| {
        // Half an answer has come.
        let call = scope.spawn(|| told(&web, "half", 60_000));
        wait_for("it is asked", || peer.calls() == 2);
        std::thread::sleep(Duration::from_millis(300));
        let began = Stopwatch::start();
        node.stop();
        let ended = call.join().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
        ended
    });
    let lost = "The broker went away while the service worked: it may have done its work, and its \
        answer is lost.";
    let [kind, message, _] = ended.unwrap_err();
    assert_eq!((kind.as_str(), message.as_str()), ("ServiceError", lost));
    let status = link(&web);
    assert!(
        status[0]["connected"] == false && status[0]["why"].is_string(),
        "{status}"
    );
    // Other tools are there, and so is the host.
    assert_eq!(web.get("/readyz", &[]).json()["status"], "ready");
    let [kind, message, details] = told(&web, "stream", 20_000).unwrap_err();
    let none = "No instances available for tool dying:ask";
    assert_eq!(
        (kind.as_str(), message.as_str(), details.as_str()),
        ("ServiceError", none, "Its broker is away.")
    );
    node.again();
    wait_for("it is served again", answers);
    assert_eq!(link(&web)[0]["connected"], true);
    // One that is there and silent: only the call's own time ends it.
    node.signal(Signal::SIGSTOP);
    let began = Stopwatch::start();
    let ended = told(&web, "stream", 1500);
    let took = began.elapsed();
    node.signal(Signal::SIGCONT);
    assert_eq!(ended.unwrap_err()[0], "TimeoutError");
    assert!(took < Duration::from_secs(5), "{took:?}");
    wait_for("it is served again", answers);
}
