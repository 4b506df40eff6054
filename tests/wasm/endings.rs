//! Endings, and which of them a worker survives. Bad output and stderr stand in `tests/engines`.

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
    assert_eq!(tool.ending(json!(7)).await, Ending::answer(&json!(7)));

    let tool = Tool::new(typed("(call $answer (i32.const 1) (i32.const 1024) (i32.const 11))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Raised { message: "no such row".into() });
    assert_eq!(tool.wasm.idle_workers(), 1);
}

#[tokio::test]
async fn a_bad_typed_answer_is_told_as_what_was_returned() {
    match Tool::new(typed("(call $answer (i32.const 0) (i32.const 1024) (i32.const 11))")).ending(json!({})).await {
        Ending::BadOutput { reason, .. } => assert!(reason.starts_with("the returned text"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
