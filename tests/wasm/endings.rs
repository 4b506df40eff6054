//! Endings: traps, exit codes, errors, bad output, stderr.

use super::*;

#[tokio::test]
async fn traps_exit_codes_and_errors_are_told_apart() {
    let tool = Tool::new(command("", "(unreachable)"));
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert!(
        matches!(&outcome.ending, Ending::Raised { message } if message.contains("trapped") && message.contains("unreachable")),
        "{:?}",
        outcome.ending
    );
    assert!(outcome.logs.iter().any(|line| line.contains("main")), "where it happened: {:?}", outcome.logs);
    assert_eq!(tool.wasm.idle_workers(), 0, "a worker is not used again after a trap");

    let tool = Tool::new(command("", "(call $exit (i32.const 3))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 1, "an exit code harms no worker");
    let tool = Tool::new(command("", "(call $echo) (call $exit (i32.const 0))"));
    assert_eq!(tool.ending(json!(7)).await, Ending::Answered(json!(7)));

    let tool = Tool::new(typed("(call $answer (i32.const 1) (i32.const 1024) (i32.const 11))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Raised { message: "no such row".into() });
    assert_eq!(tool.wasm.idle_workers(), 1);
}

#[tokio::test]
async fn bad_output_says_the_mend() {
    let print = |text: &str| {
        command(
            &format!(r#"(data (i32.const 1024) "{text}")"#),
            "(call $write (i32.const 1) (i32.const 1024) (i32.const 6)) (call $echo)",
        )
    };
    match Tool::new(print("hello\\n")).ending(json!({"a": 1})).await {
        Ending::BadOutput { reason, head } => {
            assert_eq!(
                reason,
                "stdout must be a single JSON value; found 6 bytes before it — print diagnostics to stderr"
            );
            assert!(head.starts_with("hello\\n"), "{head}");
        }
        other => panic!("{other:?}"),
    }
    match Tool::new(command("", "")).ending(json!({})).await {
        Ending::BadOutput { reason, .. } => assert!(reason.contains("empty")),
        other => panic!("{other:?}"),
    }
    match Tool::new(typed("(call $answer (i32.const 0) (i32.const 1024) (i32.const 11))")).ending(json!({})).await {
        Ending::BadOutput { reason, .. } => assert!(reason.starts_with("the returned text"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn stderr_goes_to_the_log_or_fails_the_call_where_that_is_asked() {
    let complain = command(
        r#"(data (i32.const 1024) "careful")"#,
        "(call $write (i32.const 2) (i32.const 1024) (i32.const 7)) (call $echo)",
    );
    let mut tool = Tool::new(complain);
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert_eq!((outcome.ending, outcome.logs), (Ending::Answered(json!({})), vec!["careful".to_owned()]));
    tool.shape.stderr_is_error = true;
    assert!(matches!(tool.ending(json!({})).await, Ending::Raised { message } if message.ends_with("careful")));
}
