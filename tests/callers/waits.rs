//! A call that waited is decided about again: under the rights, tools and policies of the moment
//! when it goes on.

use super::{entry, me, playground, put};
use crate::harness::fake::{request, world_of};
use crate::http::Web;
use crate::prelude::*;
use toolhost::fault::Kind;
use toolhost::service::{CallRequest, Caller, Settings, Sink};

const BOTH: &str = "[[caller]]\nname = \"ME\"\nwhy = \"w\"\nact_as = [\"alice\"]\ntools = [\"*\"]\n\
    [[caller]]\nname = \"alice\"\nwhy = \"w\"\ntools = [\"*\"]\nat_once = 1\n";

/// A call that runs until a file `go` lies beside its script.
const SLOW: &str = "import os, time\nwhile not os.path.exists(os.path.dirname(__file__) + '/go'): \
    time.sleep(0.01)\nprint(1)\n";

/// One call runs, and another one of the same caller waits for its turn until the server has read
/// what `meanwhile` changed.
fn waited(
    playground: &Playground,
    server: &mut Server,
    what: &str,
    meanwhile: impl FnOnce(),
) -> String {
    let ask = |server: &mut Server, tool: &str| {
        server.ask(
            "tools/call",
            json!({"name": tool, "arguments": {}, "_meta": {"dev.toolhost/user": "alice"}}),
        )
    };
    let go = playground.path("user_scripts/slow/go");
    let _ = fs::remove_file(&go);
    let slow = ask(server, "esc__slow");
    playground.runs("user_scripts/slow/main.py", 1);
    let next = ask(server, "a__one");
    // What is asked later is answered, so this request was read; it is decided about within
    // moments.
    server.names();
    let (idle, began) = (Stopwatch::start(), Instant::now());
    while idle.elapsed() < Duration::from_secs(1) && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    meanwhile();
    read_again(playground, server, what);
    fs::write(&go, "").unwrap();
    let answers = server.answers(&[slow, next]);
    assert_eq!(words(&answers[&slow]), "1", "what runs is left alone");
    words(&answers[&next])
}

/// Waits until the server has read all that is there now: it lists a tool that came last. Callers
/// are read before tools, so only the second of two proves it for them.
fn read_again(playground: &Playground, server: &mut Server, what: &str) {
    for name in [format!("{what}-1"), format!("{what}-2")] {
        playground.tool(&name, "python", "print(1)\n", json!({}));
        playground.settle();
        server.reload(what, |server| {
            server.names().contains(&format!("esc__{name}"))
        });
    }
}

#[test]
fn a_call_that_waited_for_its_turn_runs_under_the_rights_of_now() {
    let playground = playground(Who::ours(), BOTH);
    playground.tool("slow", "python", SLOW, json!({}));
    playground.settle();
    let mut server = Server::start(&playground);
    assert_eq!(
        waited(&playground, &mut server, "nothing", || ()),
        "{}",
        "control: nothing changed"
    );
    let fewer = BOTH.replacen("act_as = [\"alice\"]\n", "", 1);
    let refused = waited(&playground, &mut server, "rights", || {
        put(&playground, &fewer)
    });
    assert!(
        refused.contains("AuthorizationError") && refused.contains("may no longer be used"),
        "{refused}"
    );
    let record = playground
        .records()
        .into_iter()
        .find(|record| record["outcome"] == "AuthorizationError")
        .unwrap();
    assert_eq!(
        (&record["user"], &record["through"]),
        (&json!("alice"), &json!(me(playground.who))),
        "{record}"
    );
    put(&playground, BOTH);
    read_again(&playground, &mut server, "restored");
    let script = playground.path("user_scripts/alice/one/main.py");
    let ran = waited(&playground, &mut server, "script", || {
        fs::write(&script, "print('\"new\"')\n").unwrap()
    });
    assert_eq!(ran, "new");
}

#[test]
fn a_call_that_waited_for_a_person_is_charged_once() {
    let limit = "[[limit]]\ntools = [\"a:one\"]\nwhy = \"w\"\ncalls_per_minute = 1\n";
    let playground = playground(
        Who::ours(),
        &(entry("ME", "\"*\"", "role = \"operator\"\n") + limit),
    );
    playground.policy(
        "one",
        "a:one",
        "confirm = \"w\"\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n",
    );
    playground.settle();
    let web = Web::start(&playground, &[]);
    let open = || {
        web.get("/v1/approvals", &[]).json()["approvals"]
            .as_array()
            .unwrap()
            .clone()
    };
    let call = || {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| web.call("a:one", &json!({}), &[]).json());
            wait_for("the question", || open().len() == 1);
            let path = format!("/v1/approvals/{}", open()[0]["call"].as_str().unwrap());
            assert_eq!(
                web.ask("POST", &path, &[], "{\"approve\": true}").status,
                200
            );
            call.join().unwrap()
        })
    };
    let ended = [call(), call()].map(|ended| ended["error"]["type"].clone());
    assert_eq!(ended, [Value::Null, json!("RateLimitError")]);
}

#[tokio::test]
async fn what_was_cancelled_while_it_ran_is_not_made_again_by_itself() {
    let world = world_of(
        Settings {
            max_running: 1,
            ..Settings::default()
        },
        |_, _| {},
    );
    let begin = |id: &str| {
        let slow = request("fake:user", json!({"n": 1, "delay": 20_000}));
        let (service, call) = (
            world.service.clone(),
            CallRequest {
                id: Some(id.into()),
                ..slow
            },
        );
        tokio::spawn(async move { service.call(call, Sink::none()).await })
    };
    let running = begin("c1");
    until("it runs", || world.runs() == 1).await;
    let waiting = begin("c2");
    let alice = Caller::named("alice");
    until("it waits", || {
        world.service.calls.state(&alice, "c2").is_some()
    })
    .await;
    for (id, call, again) in [("c2", waiting, true), ("c1", running, false)] {
        assert!(world.service.calls.cancel(&alice, id));
        let fault = call.await.unwrap().outcome.into_fault().expect("cancelled");
        assert_eq!(
            (fault.kind, fault.retryable),
            (Kind::CancelledError, again),
            "{id}: {fault}"
        );
        assert_eq!(
            fault.message.contains("how far it came is not known"),
            !again,
            "{id}: {fault}"
        );
    }
}

/// A key that clients bring is nothing to this host: no call gets what another one left.
#[test]
fn each_request_has_its_own_outcome_whatever_key_it_brings() {
    let head = entry("ME", "\"*\"", "act_as = [\"bob\"]\n") + &entry("bob", "\"*\"", "");
    let playground = playground(Who::ours(), &head);
    let mut server = Server::start(&playground);
    let mut call = |n: u32, user: Value| {
        let meta = json!({"dev.toolhost/idempotencyKey": "k", "dev.toolhost/user": user});
        server.asked(
            "tools/call",
            json!({"name": "a__one", "arguments": {"n": n}, "_meta": meta}),
        )
    };
    let ids = [(1, json!("bob")), (1, Value::Null), (2, Value::Null)].map(|(n, user)| {
        let answer = call(n, user);
        assert_eq!(
            answer["result"]["structuredContent"],
            json!({ "n": n }),
            "{answer}"
        );
        answer["result"]["_meta"]["dev.toolhost/callId"].clone()
    });
    let records: Vec<Value> = playground
        .records()
        .iter()
        .map(|record| record["call"].clone())
        .collect();
    assert_eq!(records, ids, "three calls that ran");
    // A name is whole, or refused.
    let (longest, label) = ("é".repeat(128), |name: &str| json!(format!("{name}x")));
    call(1, json!(longest));
    assert_eq!(
        playground.records().pop().unwrap()["label"],
        longest,
        "control"
    );
    let refused = call(1, label(&longest));
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("at most 256 bytes"),
        "{refused}"
    );
    // A user that is not text would be the caller itself.
    let refused = call(1, json!(1234));
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .ends_with("must be a string."),
        "{refused}"
    );
}
