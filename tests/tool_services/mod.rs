//! Tool services elsewhere: their descriptors, what policy says of them, and calls over a broker.

use crate::prelude::*;
mod announced;
mod away;
mod called;
mod described;
mod joke;
mod peer;
#[cfg(feature = "pulsar")]
mod pulsar;

pub use peer::Peer;

use crate::brokers::Node;
use toolhost::broker::Terms;

pub fn terms(url: &str) -> Terms {
    Terms::new(url, None, None, false).unwrap()
}

/// A playground in which one tool, `NAME:ask`, is a service's.
pub fn playground(who: Who, name: &str, url: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let (request, response) = queues(name);
    describe(
        &playground,
        name,
        json!(request),
        json!([{"name": "style", "required": false}]),
    );
    playground.policy(
        "remote",
        &format!("{name}:*"),
        &granted(name, &request, &response),
    );
    let config = format!("[[tool_services]]\nservices = [\"*\"]\nurl = \"{url}\"\n");
    fs::write(playground.path("config.toml"), config).unwrap();
    playground.settle();
    playground
}

/// The same over the broker that is shared, and the service.
fn served(name: &str) -> Option<(Arc<Node>, Playground, Peer)> {
    let mq = Node::shared()?;
    let host = playground(Who::ours(), name, &mq.url());
    let peer = Peer::of(terms(&mq.url()), name, &queues(name).0);
    Some((mq, host, peer))
}

fn granted(name: &str, request: &str, response: &str) -> String {
    let queues = format!("request = [\"{request}\"], response = \"{response}\"");
    format!("[services]\ncall = [{{ service = \"{name}\", {queues}, why = \"w\" }}]\n")
}

fn queues(name: &str) -> (String, String) {
    (format!("request:tg:{name}"), format!("response:tg:{name}"))
}

fn describe(playground: &Playground, name: &str, requests: Value, params: Value) {
    let answers = queues(name).1;
    let service = json!({"id": name, "request-queue": requests, "response-queue": answers, "config-params": params});
    let tool = json!({
        "type": "tool-service", "name": "ask", "description": "Asks the peer.", "service": name, "style": "pun",
        "arguments": [{"name": "what", "type": "string", "description": "What it does."}],
    });
    fs::create_dir_all(playground.path("tool-defs/remote")).unwrap();
    let put = |file: &str, text: Value| {
        fs::write(
            playground.path("tool-defs/remote").join(file),
            text.to_string(),
        )
    };
    put("peer.tool-service.json", service).unwrap();
    put("ask.tool.json", tool).unwrap();
}

/// A command of the host with its configuration.
pub fn host(playground: &Playground) -> Command {
    let mut command = playground.host();
    command.arg("--config").arg(playground.path("config.toml"));
    command
}

pub fn call(playground: &Playground, tool: &str, input: &Value, more: &[&str]) -> Ended {
    let mut command = host(playground);
    command
        .args(["call", tool, "--json", "--input", "-"])
        .args(more);
    finish(command, input.to_string().as_bytes())
}

/// The text that a call ends with.
fn output(ended: &Ended) -> String {
    ended.out["outputData"]
        .as_str()
        .unwrap_or_else(|| panic!("{ended:?}"))
        .to_owned()
}

const POLICY: &str = "sandbox-policies/remote.policy.toml";

/// Puts other words into a file; its text before.
fn change(playground: &Playground, file: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(playground.path(file)).unwrap();
    fs::write(playground.path(file), text.replace(from, to)).unwrap();
    text
}

/// The policy sends the caller's name, too.
fn send_user(playground: &Playground) -> String {
    change(
        playground,
        POLICY,
        "why = \"w\" }]",
        "user = true, why = \"w\" }]",
    )
}
