//! Callbacks: signed, to what the file lists, by the address check of tools, at least once and under one id.

use super::{SOON, Scene, begin, place, state};
use crate::http::{Receiver, Web, private};
use crate::prelude::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn header<'h>(head: &'h str, name: &str) -> &'h str {
    head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_else(|| panic!("{name}: {head}"))
}

/// The event's id, where the signature is good.
fn event((head, body): &(String, String)) -> String {
    let (id, time) = (header(head, "webhook-id"), header(head, "webhook-timestamp"));
    let signature = STANDARD.decode(header(head, "webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes());
    hmac::verify(&key, format!("{id}.{time}.{body}").as_bytes(), &signature).expect("signed");
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().unwrap();
    assert!((-5..60).contains(&age), "{age}");
    id.to_owned()
}

fn scene(who: Who, entries: &str) -> Scene {
    // The path is known once the scene is made.
    let scene = Scene::new(who, "");
    list(&scene, entries);
    scene
}

/// Gives alice these callbacks.
fn list(scene: &Scene, entries: &str) {
    let key = private(&scene.playground, "state/hook.key", &format!("{KEY}\n"));
    let file = scene.playground.path("sandbox-policies/callers.policy.toml");
    let told = format!("callbacks = [{entries}]\ncallback_secret = \"file:{key}\"\n");
    let told = if entries.is_empty() { String::new() } else { told };
    std::fs::write(file, super::callers(&told)).unwrap();
}

fn entry(url: &str, ranges: &str) -> String {
    format!("{{ url = \"{url}\", ranges = [{ranges}], why = \"a test\" }}")
}

const LOOPBACK: &str = "\"127.0.0.0/8\"";

fn told(web: &Web, caller: &str, place: &str, wanted: &str) -> Value {
    let mut last = Value::Null;
    within(SOON, &format!("the callback is {wanted}"), || {
        last = state(web, caller, place)["callback"].clone();
        last["state"] == wanted
    });
    last
}

#[test]
fn an_end_is_told_signed_and_again_under_one_id_where_that_failed() {
    let good = Receiver::new(&["204 No Content"]);
    let weak = Receiver::new(&["500 Oops", "503 Busy", "200 OK"]);
    let at = |receiver: &Receiver| format!("http://127.0.0.1:{}/hooks", receiver.port);
    let scene = scene(Who::ours(), &[entry(&at(&good), LOOPBACK), entry(&at(&weak), LOOPBACK)].join(","));
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let call = |url: String| place(&begin(&web, alice, "esc:add", &json!({"a": 1, "b": 2}), json!({"callback": url})));
    let path = call(format!("{}/a?b=c", at(&good)));
    let first = good.waited(1)[0].clone();
    assert!(first.0.starts_with("POST /hooks/a?b=c HTTP/1.1\r\n"), "{first:?}");
    assert_eq!(header(&first.0, "host"), format!("127.0.0.1:{}", good.port));
    let message: Value = serde_json::from_str(&first.1).unwrap();
    assert_eq!(message["type"], "call.ended");
    assert_eq!(format!("/v1/calls/{}", message["data"]["id"].as_str().unwrap()), path);
    assert_eq!(message["data"]["result"]["outputData"], json!({"sum": 3}));
    let seen = told(&web, alice, &path, "delivered");
    assert_eq!((&seen["event"], &seen["attempts"]), (&json!(event(&first)), &json!(1)));
    assert!(web.get(&path, &[&scene.bob]).status == 404);

    let path = call(at(&weak));
    let all = weak.waited(3);
    let seen = told(&web, alice, &path, "delivered");
    assert_eq!((&seen["attempts"], all.len()), (&json!(3), 3));
    for message in &all {
        assert_eq!((json!(event(message)), &message.1), (seen["event"].clone(), &all[0].1));
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((good.heard().len(), weak.heard().len()), (1, 3), "once it was taken it is not sent again");
    assert!(web.said().contains("the receiver answered 500; again in 1 s"), "{}", web.said());
    assert!(!web.said().contains(KEY));
}

#[test]
fn what_is_not_listed_or_not_public_is_not_told() {
    let inside = Receiver::new(&["200 OK"]);
    let named = format!("http://localhost:{}/", inside.port);
    let listed = format!("http://127.0.0.1:{}/hooks/", inside.port);
    let scene = scene(Who::ours(), &[entry(&named, ""), entry(&listed, LOOPBACK)].join(","));
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let good = json!({"a": 1, "b": 2});
    let call = |caller: &str, url: &str| begin(&web, caller, "esc:add", &good, json!({"callback": url}));
    let port = inside.port;
    for url in [
        "https://elsewhere.test/".to_owned(),
        format!("http://127.0.0.1:{port}/other"),
        format!("http://127.0.0.1:{port}/hooksy"),
        format!("https://127.0.0.1:{port}/hooks/"),
        format!("http://127.0.0.1:{}/hooks/", port ^ 1),
    ] {
        let refused = call(alice, &url);
        let kind = refused.json()["error"]["type"].clone();
        assert_eq!((refused.status, kind), (403, json!("AuthorizationError")), "{url}: {refused:?}");
    }
    for url in [
        format!("http://127.0.0.1:{port}/hooks/../other"),
        format!("http://x@127.0.0.1:{port}/hooks/"),
        format!("http://2130706433:{port}/hooks/"),
    ] {
        assert_eq!(call(alice, &url).status, 422, "{url}");
    }
    assert_eq!(call(&scene.bob, &listed).status, 403, "it is alice's");
    assert!(scene.playground.records().iter().all(|record| record["decision"] == "refused"));
    // A listed name that leads to an address of this machine.
    let path = place(&call(alice, &named));
    within(SOON, "it was tried", || state(&web, alice, &path)["callback"]["attempts"].as_u64() > Some(0));
    let seen = state(&web, alice, &path);
    let words = seen["callback"]["error"].as_str().unwrap();
    assert!(words.contains("only addresses that are not public") && !words.contains("127."), "{seen}");
    assert!(web.said().contains("127.0.0.1 is loopback"), "{}", web.said());
    assert_eq!((&seen["phase"], &seen["outcome"]), (&json!("ended"), &json!("success")), "the call is not touched");
    assert!(inside.heard().is_empty());
    // The control: the same receiver, by the entry that may.
    let path = place(&call(alice, &listed));
    told(&web, alice, &path, "delivered");
    assert_eq!(inside.heard().len(), 1);
}

#[test]
fn https_is_with_whom_the_machine_trusts_alone() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let receiver = Receiver::by(&["200 OK"], move |stream| {
        Box::new(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream))
    });
    let url = format!("https://127.0.0.1:{}/hooks", receiver.port);
    let scene = scene(Who::ours(), &entry(&url, LOOPBACK));
    let call =
        |web: &Web| place(&begin(web, &scene.alice, "esc:add", &json!({"a": 1, "b": 2}), json!({"callback": url})));
    let mut web = scene.serve();
    let path = call(&web);
    within(SOON, "it was tried", || state(&web, &scene.alice, &path)["callback"]["attempts"].as_u64() > Some(0));
    let seen = &state(&web, &scene.alice, &path)["callback"];
    assert!(seen["error"].as_str().unwrap().contains("no trusted TLS"), "{seen}");
    assert!(receiver.heard().is_empty());
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
    // The control: the same, where the machine's roots have it.
    std::fs::write(scene.playground.path("root.pem"), made.cert.pem()).unwrap();
    let mut command = scene.playground.host();
    command.args(["serve", "--http", "127.0.0.1:0", "--token-file", &scene.file]);
    command.env("SSL_CERT_FILE", scene.playground.path("root.pem"));
    let web = Web::run(command, scene.playground.who.uid()).unwrap();
    told(&web, &scene.alice, &path, "delivered");
    event(&receiver.heard()[0]);
}

#[test]
fn a_redirect_is_not_followed() {
    let other = Receiver::new(&["200 OK"]);
    let to = format!("302 Found\r\nLocation: http://127.0.0.1:{}/hooks", other.port);
    let first = Receiver::new(vec![&*to.leak()].leak());
    let at = |receiver: &Receiver| format!("http://127.0.0.1:{}/hooks", receiver.port);
    let scene = scene(Who::ours(), &[entry(&at(&first), LOOPBACK), entry(&at(&other), LOOPBACK)].join(","));
    let web = scene.serve();
    let path = place(&begin(&web, &scene.alice, "esc:add", &json!({}), json!({"callback": at(&first)})));
    first.waited(2);
    let seen = &state(&web, &scene.alice, &path)["callback"];
    assert!(seen["error"].as_str().unwrap().contains("302: redirects are not followed"), "{seen}");
    assert!(other.heard().is_empty());
}

#[test]
fn what_is_owed_is_told_after_a_restart_if_it_still_may() {
    let receiver = Receiver::new(&["500 Oops", "500 Oops", "200 OK"]);
    let url = format!("http://127.0.0.1:{}/hooks", receiver.port);
    let entries = entry(&url, LOOPBACK);
    let scene = scene(Who::ours(), &entries);
    let mut web = scene.serve();
    let alice = scene.alice.as_str();
    let done = place(&begin(&web, alice, "esc:add", &json!({"a": 1, "b": 2}), json!({"callback": url})));
    let first = event(&receiver.waited(2)[0]);
    let lost = place(&begin(&web, alice, "esc:sleep", &json!({}), json!({"callback": url})));
    scene.playground.runs("user_scripts/sleep/main.py", 2);
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
    let before = receiver.heard().len();
    let mut web = scene.serve();
    told(&web, alice, &done, "delivered");
    told(&web, alice, &lost, "delivered");
    let later: Vec<_> = receiver.heard().split_off(before);
    let of = |id: &str| later.iter().filter(|message| event(message) == id).count();
    assert!(of(&first) >= 1, "the same event, under the same id");
    let ends = later.iter().find(|message| event(message) != first).expect("the lost call's end is told");
    assert!(ends.1.contains("InternalError") && ends.1.contains("how far the call came is not known"), "{ends:?}");
    // What the file does not list any more is not told.
    let slow = place(&begin(&web, alice, "esc:sleep", &json!({}), json!({"callback": url})));
    scene.playground.runs("user_scripts/sleep/main.py", 2);
    list(&scene, "");
    let count = receiver.heard().len();
    web.signal(Signal::SIGHUP);
    within(SOON, "the policies are read", || web.said().contains("reloaded"));
    assert_eq!(web.ask("DELETE", &slow, &[alice], "").status, 202);
    let seen = told(&web, alice, &slow, "failed");
    assert_eq!((&seen["attempts"], receiver.heard().len()), (&json!(1), count), "{seen}");
    assert!(web.said().contains("failed for good: You may not have the ends of calls told there"), "{}", web.said());
    web.signal(Signal::SIGKILL);
    web.ended(Duration::from_secs(10));
}
