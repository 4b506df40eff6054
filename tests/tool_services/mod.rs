//! Tool services elsewhere: their descriptors, what policy says of them, and calls over a broker.

mod announced;
mod away;
mod called;
mod described;
mod joke;
mod peer;
#[cfg(feature = "pulsar")]
mod pulsar;

pub use peer::Peer;

use crate::harness::{Playground, Who};
use serde_json::{Value, json};
use std::fs;
use toolhost::broker::Terms;

pub fn terms(url: &str) -> Terms {
    Terms::new(url, None, None, false).unwrap()
}

/// A playground in which one tool, `NAME:ask`, is a service's.
pub fn playground(who: Who, name: &str, url: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let (request, response) = queues(name);
    describe(&playground, name, json!(request), json!([{"name": "style", "required": false}]));
    let rest = format!(
        "[services]\ncall = [{{ service = \"{name}\", request = [\"{request}\"], response = \"{response}\", why = \"w\" }}]\n"
    );
    playground.policy("remote", &format!("{name}:*"), &rest);
    let config = format!("[[tool_services]]\nservices = [\"*\"]\nurl = \"{url}\"\n");
    fs::write(playground.path("config.toml"), config).unwrap();
    playground.settle();
    playground
}

fn queues(name: &str) -> (String, String) {
    (format!("request:tg:{name}"), format!("response:tg:{name}"))
}

fn describe(playground: &Playground, name: &str, requests: Value, params: Value) {
    let service =
        json!({"id": name, "request-queue": requests, "response-queue": queues(name).1, "config-params": params});
    let tool = json!({
        "type": "tool-service", "name": "ask", "description": "Asks the peer.", "service": name, "style": "pun",
        "arguments": [{"name": "what", "type": "string", "description": "What it does."}],
    });
    fs::create_dir_all(playground.path("tool-defs/remote")).unwrap();
    let put = |file: &str, text: Value| fs::write(playground.path("tool-defs/remote").join(file), text.to_string());
    put("peer.tool-service.json", service).unwrap();
    put("ask.tool.json", tool).unwrap();
}

pub fn configured(playground: &Playground) -> [String; 2] {
    ["--config".to_owned(), playground.path("config.toml").display().to_string()]
}
