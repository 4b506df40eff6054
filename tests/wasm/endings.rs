//! Endings, and which of them a worker survives. Bad output and stderr stand in `tests/engines`.

use super::*;

#[tokio::test]
async fn traps_exit_codes_and_errors_are_told_apart() {
    let tool = Tool::new(command("", "(unreachable)"));
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert!(
        matches!(&outcome.ending, Ending::Trapped { message } if message.contains("trapped") && message.contains("unreachable")),
        "{:?}",
        outcome.ending
    );
    assert!(
        outcome.logs.iter().any(|line| line.contains("main")),
        "where it happened: {:?}",
        outcome.logs
    );
    assert_eq!(tool.idle(), 0, "a worker is not used again after a trap");

    let tool = Tool::new(command("", "(call $exit (i32.const 3))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.idle(), 1, "an exit code harms no worker");
    let tool = Tool::new(command("", "(call $echo) (call $exit (i32.const 0))"));
    assert_eq!(tool.ending(json!(7)).await, Ending::answer(&json!(7)));

    let tool = Tool::new(typed(
        "(call $answer (i32.const 1) (i32.const 1024) (i32.const 11))",
    ));
    assert_eq!(
        tool.ending(json!({})).await,
        Ending::Raised {
            message: "no such row".into()
        }
    );
    assert_eq!(tool.idle(), 1);
}

/// What a module logged is kept also where its worker is ended from outside.
#[tokio::test]
async fn a_blocked_module_keeps_its_log() {
    let body = "(call $write (i32.const 2) (i32.const 1030) (i32.const 8))
        (drop (call $open (i32.const 3) (i32.const 1024) (i32.const 4) (i32.const 0) (i64.const 2)))
        (drop (call $fd_read (i32.load (i32.const 600)) (i32.const 0) (i32.const 1) (i32.const 8)))";
    let tool = Tool::new(command(
        r#"(data (i32.const 1024) "pipe") (data (i32.const 1030) "started\n")"#,
        body,
    ));
    nix::unistd::mkfifo(&tool.folder().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    // One that did not begin in its time is called again, with more of it.
    let mut limit_ms = 5000;
    let mut outcome = tool.call_for(json!({}), limit_ms).await;
    let has_begun = outcome.as_ref().is_ok_and(|it| !it.logs.is_empty());
    if !has_begun {
        limit_ms = 60_000;
        outcome = tool.call_for(json!({}), limit_ms).await;
    }
    let outcome = outcome.expect("an outcome");
    assert_eq!(
        (outcome.ending, outcome.logs),
        (Ending::TimedOut { limit_ms }, vec!["started".into()])
    );
}

/// The same of a part of its answer, and of one that cannot be read.
#[tokio::test]
async fn a_part_is_heard_while_the_module_runs() {
    let body = "(call $write (i32.const 1) (i32.const 1030) (i32.const 23))
        (loop $l (br_if $l (call $open (i32.const 3) (i32.const 1024) (i32.const 2) (i32.const 0) (i64.const 2))))
        (call $write (i32.const 1) (i32.const 1100) (i32.const 23))";
    let data = |last: &str| {
        format!(
            r#"(data (i32.const 1024) "go") (data (i32.const 1030) "@toolhost {{\"chunk\": 1}}\n") (data (i32.const 1100) "{last}")"#
        )
    };
    let bad = Ending::BadOutput {
        reason: String::new(),
        head: String::new(),
    };
    for (last, wanted) in [
        (r#"@toolhost {\"end\": true}"#, Ending::answer(&json!([1]))),
        (
            r#"{\"a\":\n           \n   1}"#,
            Ending::answer(&json!({"a": 1})),
        ),
        (r#"@toolhost {\"chunk\": x}\n"#, bad),
    ] {
        let tool = Tool::new(command(&data(last), body));
        let folder = tool.folder();
        let tool = tool.grant(Access::Read, &folder);
        let context = context();
        let (events, mut heard) = toolhost::executor::channel(context.deadline.clone());
        let listening = async {
            let first = tokio::time::timeout(Duration::from_secs(50), heard.next_event()).await;
            std::fs::write(folder.join("go"), "").expect("the file");
            first.ok().flatten()
        };
        let order = tool.order(json!(1), 60_000).await.unwrap();
        let (outcome, first) = tokio::join!(tool.wasm.run(&context, order, &events), listening);
        assert!(
            matches!(&first, Some(Event::Chunk(part)) if part.as_str() == "1"),
            "{first:?}"
        );
        let outcome = outcome.expect("an outcome");
        match (&outcome.ending, &wanted) {
            (Ending::BadOutput { reason, .. }, Ending::BadOutput { .. }) => {
                assert!(reason.contains("line 2 of the stream"), "{reason}")
            }
            (seen, wanted) => assert_eq!(seen, wanted, "{last}"),
        }
        assert_eq!(outcome.parts, last.contains("end"));
    }
}
