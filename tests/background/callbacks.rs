//! Callbacks: signed, to what the file lists, by the address check of tools, at least once and
//! under one id.

use super::{SLEEPER, SOON, Scene, adds, place, sleeps, state};
use crate::http::{Receiver, Web, private};
use crate::prelude::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const LOOPBACK: &str = "\"127.0.0.0/8\"";

fn header<'h>(head: &'h str, name: &str) -> &'h str {
    head.lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")))
        .unwrap_or_else(|| panic!("{name}: {head}"))
}

/// The event's id, where the signature is good.
fn event((head, body): &(String, String)) -> String {
    let (id, time) = (
        header(head, "webhook-id"),
        header(head, "webhook-timestamp"),
    );
    let signature = STANDARD
        .decode(
            header(head, "webhook-signature")
                .strip_prefix("v1,")
                .unwrap(),
        )
        .unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes());
    hmac::verify(&key, format!("{id}.{time}.{body}").as_bytes(), &signature).expect("signed");
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().unwrap();
    assert!((-5..60).contains(&age), "{age}");
    id.to_owned()
}

fn at(receiver: &Receiver) -> String {
    format!("http://127.0.0.1:{}/hooks", receiver.port)
}

/// A scene in which alice has these callbacks: addresses, and the ranges that each may lie in.
fn scene(entries: &[(&str, &str)]) -> Scene {
    let scene = Scene::new(Who::ours(), "");
    list(&scene, entries);
    scene
}

fn list(scene: &Scene, entries: &[(&str, &str)]) {
    let key = private(&scene.playground, "state/hook.key", &format!("{KEY}\n"));
    let entry = |(url, ranges): &(&str, &str)| {
        format!("{{ url = \"{url}\", ranges = [{ranges}], why = \"a test\" }}")
    };
    let all = entries.iter().map(entry).collect::<Vec<_>>().join(",");
    let told = format!("callbacks = [{all}]\ncallback_secret = \"file:{key}\"\n");
    let told = if entries.is_empty() { "" } else { &told };
    fs::write(
        scene
            .playground
            .path("sandbox-policies/callers.policy.toml"),
        super::callers(told),
    )
    .unwrap();
}

/// What a call says of its callback, once that is in this state.
fn told(web: &Web, caller: &str, place: &str, wanted: &str) -> Value {
    let callback = || state(web, caller, place)["callback"].clone();
    within(SOON, &format!("the callback is {wanted}"), || {
        callback()["state"] == wanted
    });
    callback()
}

/// The same, once it was tried in vain.
fn tried(web: &Web, caller: &str, place: &str) -> String {
    let callback = || state(web, caller, place)["callback"].clone();
    within(SOON, "it was tried", || {
        callback()["attempts"].as_u64() > Some(0)
    });
    callback()["error"].as_str().unwrap().to_owned()
}

#[test]
fn an_end_is_told_signed_and_again_under_one_id_where_that_failed() {
    let good = Receiver::new(&["204 No Content"]);
    let weak = Receiver::new(&["500 Oops", "503 Busy", "200 OK"]);
    let other = Receiver::new(&["200 OK"]);
    let leads =
        Receiver::new(vec![&*format!("302 Found\r\nLocation: {}", at(&other)).leak()].leak());
    let all = [&good, &weak, &other, &leads].map(at);
    let scene = scene(&all.each_ref().map(|url| (url.as_str(), LOOPBACK)));
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let call = |url: String| place(&adds(&web, alice, json!({"callback": url})));
    let away = call(at(&leads));
    let path = call(format!("{}/a?b=c", at(&good)));
    let first = good.waited(1)[0].clone();
    assert!(
        first.0.starts_with("POST /hooks/a?b=c HTTP/1.1\r\n"),
        "{first:?}"
    );
    assert_eq!(header(&first.0, "host"), format!("127.0.0.1:{}", good.port));
    let message: Value = serde_json::from_str(&first.1).unwrap();
    assert_eq!(message["type"], "call.ended");
    assert_eq!(
        format!("/v1/calls/{}", message["data"]["id"].as_str().unwrap()),
        path
    );
    assert_eq!(message["data"]["result"]["outputData"], json!({"sum": 3}));
    let seen = told(&web, alice, &path, "delivered");
    assert_eq!(
        (&seen["event"], &seen["attempts"]),
        (&json!(event(&first)), &json!(1))
    );
    assert_eq!(web.get(&path, &[&scene.bob]).status, 404);

    let path = call(at(&weak));
    let all = weak.waited(3);
    let seen = told(&web, alice, &path, "delivered");
    assert_eq!((&seen["attempts"], all.len()), (&json!(3), 3));
    for message in &all {
        assert_eq!(
            (json!(event(message)), &message.1),
            (seen["event"].clone(), &all[0].1)
        );
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(
        (good.heard().len(), weak.heard().len()),
        (1, 3),
        "once it was taken it is not sent again"
    );
    web.says("the receiver answered 500; again in 1 s", 1);
    assert!(!web.said().contains(KEY));
    leads.waited(2);
    let seen = tried(&web, alice, &away);
    assert!(
        seen.contains("302: redirects are not followed") && other.heard().is_empty(),
        "{seen}"
    );
}

#[test]
fn what_is_not_listed_or_not_public_is_not_told() {
    let inside = Receiver::new(&["200 OK"]);
    let port = inside.port;
    let named = format!("http://localhost:{port}/");
    let listed = format!("http://127.0.0.1:{port}/hooks/");
    let scene = scene(&[(&named, ""), (&listed, LOOPBACK)]);
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let call = |caller: &str, url: &str| adds(&web, caller, json!({"callback": url}));
    for (url, status, kind) in [
        (
            "https://elsewhere.test/".to_owned(),
            403,
            "AuthorizationError",
        ),
        (
            format!("http://127.0.0.1:{port}/other"),
            403,
            "AuthorizationError",
        ),
        (
            format!("http://127.0.0.1:{port}/hooksy"),
            403,
            "AuthorizationError",
        ),
        (
            format!("https://127.0.0.1:{port}/hooks/"),
            403,
            "AuthorizationError",
        ),
        (
            format!("http://127.0.0.1:{}/hooks/", port ^ 1),
            403,
            "AuthorizationError",
        ),
        (
            format!("http://127.0.0.1:{port}/hooks/../other"),
            422,
            "ParameterValidationError",
        ),
        (
            format!("http://x@127.0.0.1:{port}/hooks/"),
            422,
            "ParameterValidationError",
        ),
        (
            format!("http://2130706433:{port}/hooks/"),
            422,
            "ParameterValidationError",
        ),
    ] {
        call(alice, &url).is(status, kind);
    }
    assert_eq!(call(&scene.bob, &listed).status, 403, "it is alice's");
    assert!(
        scene
            .playground
            .records()
            .iter()
            .all(|record| record["decision"] == "refused")
    );
    // A listed name that leads to an address of this machine.
    let path = place(&call(alice, &named));
    let seen = tried(&web, alice, &path);
    assert!(
        seen.contains("only to addresses that are not public") && !seen.contains("127."),
        "{seen}"
    );
    web.says("127.0.0.1 is loopback", 1);
    let seen = state(&web, alice, &path);
    assert_eq!(
        [&seen["phase"], &seen["outcome"]],
        ["ended", "success"],
        "the call is not touched"
    );
    assert!(inside.heard().is_empty());
    // The control: the same receiver, by the entry that may.
    told(&web, alice, &place(&call(alice, &listed)), "delivered");
    assert_eq!(inside.heard().len(), 1);
}

#[test]
fn https_is_with_whom_the_machine_trusts_alone() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let receiver = Receiver::by(&["200 OK"], move |stream| {
        Box::new(StreamOwned::new(
            ServerConnection::new(config.clone()).unwrap(),
            stream,
        ))
    });
    let url = format!("https://127.0.0.1:{}/hooks", receiver.port);
    let scene = scene(&[(&url, LOOPBACK)]);
    let web = scene.serve();
    let path = place(&adds(&web, &scene.alice, json!({"callback": url})));
    let seen = tried(&web, &scene.alice, &path);
    assert!(
        seen.contains("no trusted TLS") && receiver.heard().is_empty(),
        "{seen}"
    );
    drop(web);
    // The control: the same, where the machine's roots have it.
    fs::write(scene.playground.path("root.pem"), made.cert.pem()).unwrap();
    let mut command = scene.playground.host();
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--token-file",
        &scene.file,
    ]);
    command.env("SSL_CERT_FILE", scene.playground.path("root.pem"));
    let web = Web::run(command, scene.playground.who.uid()).unwrap();
    told(&web, &scene.alice, &path, "delivered");
    event(&receiver.heard()[0]);
}

#[test]
fn what_is_owed_is_told_after_a_restart_if_it_still_may() {
    let receiver = Receiver::new(&["500 Oops", "500 Oops", "200 OK"]);
    let url = at(&receiver);
    let scene = scene(&[(&url, LOOPBACK)]);
    let web = scene.serve();
    let alice = scene.alice.as_str();
    let done = place(&adds(&web, alice, json!({"callback": url})));
    let first = event(&receiver.waited(2)[0]);
    let lost = sleeps(&web, alice, json!({"callback": url}));
    scene.playground.runs(SLEEPER, 2);
    // It is killed.
    drop(web);
    let before = receiver.heard().len();
    let web = scene.serve();
    told(&web, alice, &done, "delivered");
    told(&web, alice, &lost, "delivered");
    let later: Vec<_> = receiver.heard().split_off(before);
    assert!(
        later.iter().any(|message| event(message) == first),
        "the same event, under the same id"
    );
    let ends = later
        .iter()
        .find(|message| event(message) != first)
        .expect("the lost call's end is told");
    assert!(
        ends.1.contains("InternalError") && ends.1.contains("how far the call came is not known"),
        "{ends:?}"
    );
    // What the file does not list any more is not told.
    let slow = sleeps(&web, alice, json!({"callback": url}));
    scene.playground.runs(SLEEPER, 2);
    list(&scene, &[]);
    let count = receiver.heard().len();
    web.signal(Signal::SIGHUP);
    within(SOON, "the policies are read", || {
        web.said().contains("reloaded")
    });
    assert_eq!(web.ask("DELETE", &slow, &[alice], "").status, 202);
    let seen = told(&web, alice, &slow, "failed");
    assert_eq!(
        (&seen["attempts"], receiver.heard().len()),
        (&json!(1), count),
        "{seen}"
    );
    web.says(
        "failed for good: Policy does not allow this callback URL",
        1,
    );
}
