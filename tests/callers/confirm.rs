//! `confirm` in a policy, on the command line: who is asked, and what is refused where nobody can
//! be.

use super::{entry, me, put};
use crate::harness::fake::{World, request, world_of};
use crate::prelude::*;
use crate::requirements::mapped_scripts::Holder;
use nix::pty::openpty;
use std::fs::File;
use toolhost::fault::Kind;
use toolhost::service::{Answer, Approver, Ask, CallRequest, Caller, Question, Settings, Sink};

const FILES: &str = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let any = json!({"parameters": {"type": "object", "properties": {"s": {"type": "string", "description": "d"}}}});
    playground.tool("pay", "python", "print('{\"paid\": 1}')\n", any);
    playground.tool("free", "python", "print('{\"free\": 1}')\n", json!({}));
    playground.policy("core", "core:execute-python-script", FILES);
    playground.policy(
        "pay",
        "esc:pay",
        &format!("confirm = \"it spends money\"\n{FILES}"),
    );
    playground.settle();
    playground
}

#[test]
fn where_nobody_can_be_asked_nothing_runs() {
    let playground = playground(Who::ours());
    let refused = playground.expect("esc:pay", "{}", "AuthorizationError: it spends money");
    let words = refused.error().1;
    assert!(
        words.contains("only once a person has agreed") && !words.contains("money"),
        "{words}"
    );
    assert!(
        refused.code == Some(3) && refused.stderr.contains(" call` in a terminal"),
        "{refused:?}"
    );
    let record = playground.records().pop().unwrap();
    assert_eq!(
        (&record["decision"], &record["rule"]),
        (&json!("refused"), &json!("confirm: nobody to ask"))
    );
    playground.expect("esc:free", "{}", "ok {\"free\": 1}");
    // Nor by the builtin tool that runs scripts, for a script that belongs to that tool.
    let script = |path: &str, wanted: &str| {
        playground.expect(
            "core:execute-python-script",
            &json!({"scriptPath": path}).to_string(),
            wanted,
        );
    };
    script("pay/main.py", "AuthorizationError");
    script("free/main.py", "ok");

    // The reports say so; what the cap of the host says no policy takes back.
    let audit = playground.cli(&["audit", "esc:pay"]).text();
    assert!(
        audit.contains("a person is asked before each call (policy pay: it spends money)"),
        "{audit}"
    );
    let who_can = playground
        .cli(&["audit", "--who-can", "call:esc:pay"])
        .text();
    assert!(
        who_can.contains("a person agrees to each call"),
        "{who_can}"
    );
    fs::remove_file(playground.path("sandbox-policies/pay.policy.toml")).unwrap();
    playground.expect("esc:pay", "{}", "ok {\"paid\": 1}");
    let cap = format!("name = \"cap\"\nwhy = \"w\"\nconfirm = \"this host is watched\"\n{FILES}");
    fs::write(playground.path("sandbox-policies/host.policy.toml"), cap).unwrap();
    playground.settle();
    playground.expect("esc:free", "{}", "AuthorizationError: this host is watched");
    playground.policy("x", "esc:x", "confirm = \" \"\n");
    playground.settle();
    let check = playground.cli(&["check"]);
    assert!(
        check.code != Some(0) && check.text().contains("`confirm` is blank"),
        "{check:?}"
    );
}

/// What a person sees and types, and the answer on standard output.
fn at_a_terminal(
    mut call: Command,
    early: &str,
    meanwhile: impl FnOnce(),
    typed: &str,
) -> (String, Value) {
    let pty = openpty(None, None).unwrap();
    let slave = File::from(pty.slave);
    let mut master = File::from(pty.master);
    master.write_all(early.as_bytes()).unwrap();
    let mut child = call
        .stdin(slave.try_clone().unwrap())
        .stderr(slave)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(call);
    let mut reader = master.try_clone().unwrap();
    let seen = Arc::new(Mutex::new(String::new()));
    let heard = seen.clone();
    let reading = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut piece) {
            heard
                .lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    });
    wait_for("the question", || {
        seen.lock().unwrap().contains("anything else refuses it")
    });
    meanwhile();
    // The terminal is read from a moment later.
    std::thread::sleep(Duration::from_millis(100));
    master.write_all(typed.as_bytes()).unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    child.wait().unwrap();
    drop(master);
    reading.join().unwrap();
    let seen = seen.lock().unwrap().clone();
    (seen, serde_json::from_str(&out).unwrap_or_default())
}

#[test]
fn a_person_at_the_terminal_is_asked() {
    let playground = playground(Who::ours());
    let me = me(playground.who);
    let call = |early: &str, meanwhile: &dyn Fn(), typed: &str| {
        let mut command = playground.host();
        command.args(["call", "esc:pay", "s=a\u{1b}[2Jb", "--json"]);
        at_a_terminal(command, early, meanwhile, typed)
    };
    let (seen, outcome) = call("", &|| (), "y\n");
    assert_eq!(
        outcome["outputData"],
        json!({"paid": 1}),
        "{seen} {outcome}"
    );
    for word in [
        "esc:pay@1.0.0: may this call run?",
        "it spends money (policy pay)",
        "\\u001b[2Jb",
        &me,
        "read ",
    ] {
        assert!(seen.contains(word), "{word}: {seen}");
    }
    // A slow start shows a line that the question replaces.
    let shown = seen.replace("\r\u{1b}[K", "");
    assert!(!shown.contains('\u{1b}'), "{seen:?}");
    let by = format!("{me} (terminal)");
    assert_eq!(playground.records().pop().unwrap()["approvedBy"], json!(by));
    for (early, typed) in [("", "n\n"), ("", "\n"), ("", "yesterday\n"), ("y\n", "n\n")] {
        let (seen, outcome) = call(early, &|| (), typed);
        assert_eq!(
            outcome["error"]["type"], "AuthorizationError",
            "{early:?} {typed:?}: {seen} {outcome}"
        );
        let record = playground.records().pop().unwrap();
        assert_eq!(
            record["rule"],
            json!(format!("confirm: denied by {by}")),
            "{early:?} {typed:?}"
        );
    }
    // What changes while the person thinks is read again; the control is above.
    let more = || {
        fs::write(
            playground.path("user_scripts/pay/main.py"),
            "print('{\"paid\": 2}')\n",
        )
        .unwrap()
    };
    let wider = || {
        playground.policy(
            "pay",
            "esc:pay",
            &format!("confirm = \"for another reason\"\n{FILES}"),
        )
    };
    let callers = playground.path("sandbox-policies/callers.policy.toml");
    let fewer = || {
        put(&playground, &entry("ME", "\"esc:free\"", ""));
        playground.settle();
    };
    let broken = || {
        fs::write(
            playground.path("sandbox-policies/pay.policy.toml"),
            "name = ",
        )
        .unwrap()
    };
    let cases: [(&dyn Fn(), &str, &str); 4] = [
        (&more, "ServiceError", "changed while a person was asked"),
        (&wider, "ServiceError", "changed while a person was asked"),
        (&fewer, "ToolNotFoundError", "esc:pay"),
        (&broken, "SecurityError", "policies cannot be read"),
    ];
    for (change, kind, words) in cases {
        let (seen, outcome) = call("", change, "y\n");
        assert_eq!(outcome["error"]["type"], kind, "{seen} {outcome}");
        assert!(
            outcome["error"]["message"]
                .as_str()
                .unwrap()
                .contains(words),
            "{outcome}"
        );
        let _ = fs::remove_file(&callers);
        playground.policy(
            "pay",
            "esc:pay",
            &format!("confirm = \"it spends money\"\n{FILES}"),
        );
        playground.settle();
    }
}

#[test]
fn a_person_agrees_to_bytes_not_to_times() {
    let playground = Playground::new(Who::ours(), "/dev/shm");
    let script = playground
        .tool("pay", "python", "print('\"old\"')\n", json!({}))
        .join("main.py");
    playground.policy(
        "pay",
        "esc:pay",
        &format!("confirm = \"it spends money\"\n{FILES}"),
    );
    playground.settle();
    let mut holder = Holder::of(&script);
    let mut call = |stores: &[&str]| {
        let mut command = playground.host();
        command.args(["call", "esc:pay", "--json"]);
        at_a_terminal(
            command,
            "",
            || stores.iter().for_each(|word| holder.store(word)),
            "y\n",
        )
        .1
    };
    assert_eq!(call(&[])["outputData"], json!("old"));
    let refused = call(&["new"]);
    assert!(
        refused["error"]["message"]
            .as_str()
            .is_some_and(|why| why.contains("changed")),
        "{refused}"
    );
    // The control: a store that is taken back is none.
    assert_eq!(call(&["old", "new"])["outputData"], json!("new"));
}

/// Agrees to everything, and keeps what it was asked.
#[derive(Default)]
struct Yes(Mutex<Vec<Question>>);

impl Ask for Yes {
    fn ask<'a>(
        &'a self,
        question: &'a Question,
    ) -> std::pin::Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        self.0.lock().unwrap().push(question.clone());
        Box::pin(async {
            Answer::Approved {
                by: "a test".into(),
            }
        })
    }
}

fn settings() -> Settings {
    Settings {
        max_running: 1,
        confirmation_timeout: Duration::from_millis(400),
        ..Settings::default()
    }
}

fn asks(root: &Path) {
    let text =
        format!("name = \"asks\"\nwhy = \"w\"\ntools = [\"fake:echo\"]\nconfirm = \"w\"\n{FILES}");
    fs::write(root.join("sandbox-policies/asks.policy.toml"), text).unwrap();
}

#[tokio::test]
async fn a_question_ends_unanswered_and_holds_up_nobody() {
    let world = world_of(settings(), |root, _| asks(root));
    let call = |world: &World| {
        let approver = Approver::Operators { not_own: false };
        let asked = CallRequest {
            approver,
            ..request("fake:echo", json!({"message": 1}))
        };
        let service = world.service.clone();
        tokio::spawn(async move { service.call(asked, Sink::none()).await })
    };
    let waiting = call(&world);
    until("somebody is asked", || {
        world.service.confirmations.list().len() == 1
    })
    .await;
    // One call runs at once here, and one that waits for a person is none.
    assert!(
        world
            .call("fake:user", json!({"n": 1}))
            .await
            .outcome
            .is_success()
    );
    assert_eq!(world.runs(), 1);
    let fault = waiting.await.unwrap().outcome.into_fault().unwrap();
    assert!(
        fault.kind == Kind::AuthorizationError
            && fault.retryable
            && fault.message.contains("did not answer")
    );
    assert!(world.service.confirmations.list().is_empty());
    let told = world.records().pop().unwrap();
    assert_eq!(
        (&told["decision"], &told["outcome"]),
        (&json!("refused"), &json!("AuthorizationError"))
    );

    // Only so many wait, and of one caller fewer.
    let patient = Settings {
        confirmation_timeout: PATIENCE,
        ..settings()
    };
    let world = world_of(patient, |root, _| asks(root));
    let confirmations = &world.service.confirmations;
    let many = [0; 40].map(|_| call(&world));
    until("as many as may, and the others are refused", || {
        let refused = many.iter().filter(|call| call.is_finished()).count();
        (confirmations.list().len(), refused) == (32, 8)
    })
    .await;
    let ops = Caller::operator("ops");
    assert!(confirmations.answer(&ops, "none", true).is_none());
    for question in confirmations.list() {
        let answered = confirmations.answer(&ops, &question.call, false);
        assert!(answered.is_some_and(|answered| answered.is_ok()));
    }
    let mut kinds = Vec::new();
    for call in many {
        kinds.push(call.await.unwrap().outcome.into_fault().unwrap().kind);
    }
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| **kind == Kind::RateLimitError)
            .count(),
        8,
        "{kinds:?}"
    );
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_face_asks_about_exactly_what_runs() {
    let world = world_of(settings(), |root, _| asks(root));
    let yes = Arc::new(Yes::default());
    let call = async |message: Value, user: &str| {
        let asked = CallRequest {
            approver: Approver::Transport(yes.clone()),
            caller: Caller::named(user),
            ..request("fake:echo", json!({ "message": message }))
        };
        world.service.call(asked, Sink::none()).await
    };
    for (message, user) in [
        (json!(1), "alice"),
        (json!(1), "alice"),
        (json!(2), "alice"),
        (json!(1), "bob"),
    ] {
        assert!(call(message, user).await.outcome.is_success());
    }
    let digests: Vec<String> = yes
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|question| question.digest.clone())
        .collect();
    assert_eq!(digests[0], digests[1], "the same call of the same caller");
    assert!(
        digests[0] != digests[2] && digests[0] != digests[3] && digests[2] != digests[3],
        "{digests:?}"
    );
    assert_eq!(world.records()[0]["approvedBy"], "a test");
}
