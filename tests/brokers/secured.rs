//! RabbitMQ with TLS, a virtual host and a password: with them tools are served there and services
//! called, and what is wrong is told as what it is.

use super::held::status;
use super::{Node, Raw, Served, unique, world};
use crate::prelude::*;
use crate::tool_services::{self, Peer};
use toolhost::broker::{Secret, Terms};

const PASSWORD: &str = "se:sa/me@";

/// A file that only this user reads.
pub fn private(folder: &Path, who: Who, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&path, who.uid(), None).unwrap();
    path.display().to_string()
}

/// A call of a service by each of these entries: this answer where no reason is given, else nobody
/// is reached for that reason.
pub fn called(who: Who, name: &str, answer: &str, entries: &[(String, Option<&str>)]) {
    let host = tool_services::playground(who, name, "amqp://localhost");
    for (entry, reason) in entries {
        fs::write(
            host.path("config.toml"),
            format!("[[tool_services]]\nservices = [\"*\"]\n{entry}"),
        )
        .unwrap();
        host.settle();
        let ended = tool_services::call(
            &host,
            &format!("{name}:ask"),
            &json!({"what": "stream"}),
            &[],
        );
        match reason {
            None => assert_eq!(ended.out["outputData"], answer, "{ended:?}"),
            Some(reason) => {
                let none = format!("No instances available for tool {name}:ask");
                assert_eq!(ended.error(), ("ServiceError", none.as_str()), "{ended:?}");
                assert!(
                    format!("{}{}", ended.stderr, ended.text()).contains(reason),
                    "{reason}: {ended:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn tls_a_virtual_host_and_a_password_are_used_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let [authority, certificate, key] = certificates();
    let at = |name: &str, text: &str| private(folder.path(), Who::ours(), name, text);
    let port = free_port();
    let settings = format!(
        "listeners.ssl.local = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile \
         = {}\nssl_options.keyfile = {}\nssl_options.verify = verify_none\ndefault_vhost = \
         of/agents\ndefault_user = agent\ndefault_pass = {PASSWORD}\n",
        at("ca.pem", &authority),
        at("certificate.pem", &certificate),
        at("key.pem", &key)
    );
    let Some(node) = Node::with(&settings) else {
        return;
    };
    wait_for("it speaks TLS", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let who = Who::ours();
    let playground = world(who);
    // Of the host's user alone, beside the playground, whose files everybody may read.
    let own = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| private(own.path(), who, name, text);
    let (password, other_password) = (&put("password", PASSWORD), &put("other-password", "guess"));
    let (ca, other_ca) = (
        &put("ca.pem", &authority),
        &put("other-ca.pem", &certificates()[0]),
    );
    std::os::unix::fs::chown(own.path(), who.uid(), None).unwrap();
    let entry = |port: u16, vhost: &str, password: &str, ca: &str| {
        format!(
            "url = \"amqps://127.0.0.1:{port}/{vhost}\"\nuser = \"agent\"\ncredentials = \
             \"file:{password}\"\nca = \"{ca}\"\n"
        )
    };
    let service = unique("secured");
    let host = Served::of(
        &playground,
        "one",
        &entry(port, "of%2fagents", password, ca),
        &service,
        &[],
    );
    host.says("is connected", 1);
    assert!(!host.said().contains("is away: "), "{}", host.said());
    let url = format!(
        "amqp://agent:se%3Asa%2Fme%40@127.0.0.1:{}/of%2Fagents",
        node.port
    );
    let mut raw = Raw::to(&url, &service).await;
    raw.call("1", "echo", json!({"a": 1})).await;
    assert_eq!(raw.answer("1").await["response"], "{\"a\":1}");
    drop(host);
    let secret = Secret::new(|| Box::pin(std::future::ready(Ok(PASSWORD.to_owned()))));
    let plain = format!("amqp://127.0.0.1:{}/of%2fagents", node.port);
    let peer = Terms::new(&plain, Some("agent".to_owned()), Some(secret), false).unwrap();
    let name = unique("called");
    let entries = [
        (entry(port, "of%2fagents", password, ca), None),
        (
            entry(port, "of%2fagents", other_password, ca),
            Some("ACCESS_REFUSED"),
        ),
        (
            entry(port, "of%2fagents", password, other_ca),
            Some("invalid peer certificate: BadSignature"),
        ),
    ];
    tokio::task::block_in_place(|| {
        let _peer = Peer::of(peer, &name, &format!("request:tg:{name}"));
        called(who, &name, "one two three", &entries);
    });
    for (entry, reason) in [
        (
            entry(port, "of%2fagents", other_password, ca),
            "ACCESS_REFUSED",
        ),
        (entry(port, "of%2fothers", password, ca), "NOT_ALLOWED"),
        (
            entry(port, "of%2fagents", password, other_ca),
            "invalid peer certificate: BadSignature",
        ),
        (
            entry(node.port, "of%2fagents", password, ca),
            "InvalidContentType",
        ),
    ] {
        let socket = format!("unix:{}", playground.path("state/socket").display());
        let host = Served::of(
            &playground,
            "one",
            &entry,
            &unique("secured"),
            &["--http", &socket],
        );
        host.says("is away: ", 1);
        wait_for(&format!("{reason}: {}", host.said()), || {
            let (told, ready) = status(&playground, &socket);
            !ready
                && told["connected"] == false
                && told["why"].as_str().is_some_and(|why| why.contains(reason))
        });
        assert!(!host.said().contains(PASSWORD), "{}", host.said());
    }
}
