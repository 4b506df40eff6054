//! Limits (E-006, E-009, A-029) as the worker holds them: time, memory, output, handles, and which worker may be used
//! again. The verdicts that a script shares stand in `tests/engines`.

use super::*;

fn within(elapsed: Duration, limit_ms: u64) {
    // A busy test machine may be late; the bench holds the real gate of 1.10.
    let most = Duration::from_millis(limit_ms * 2);
    assert!(elapsed >= Duration::from_millis(limit_ms) && elapsed < most, "{elapsed:?} for {limit_ms} ms");
}

#[tokio::test]
async fn endless_loops_and_sleeps_end_at_the_limit() {
    let sleep = "(i32.store8 (i32.const 108) (i32.const 0)) (i32.store (i32.const 116) (i32.const 1))
        (i64.store (i32.const 124) (i64.const 60000000000))
        (drop (call $poll (i32.const 100) (i32.const 200) (i32.const 1) (i32.const 300)))";
    let start =
        r#"(module (memory (export "memory") 1) (func $s (loop $l (br $l))) (start $s) (func (export "_start")))"#;
    let spin = format!("{SPIN} (unreachable)");
    for module in [command("", SPIN), command("", sleep), start.to_owned(), typed(&spin)] {
        let tool = Tool::new(module);
        tool.wasm.prepare(&tool.shape).await.expect("compiled");
        // The first call also starts a worker, which is not the tool's time.
        let outcome = tool.call_for(json!({}), 200).await.expect("an outcome");
        assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 200 });
        within(Duration::from_millis(outcome.usage.wall_ms), 200);
        assert_eq!(tool.wasm.idle_workers(), 0, "a worker is not used again after a timeout");
    }
}

#[tokio::test]
async fn memory_has_a_limit_and_a_peak() {
    let grow = "(if (i32.eq (memory.grow (i32.const 16384)) (i32.const -1)) (then (unreachable))) (call $echo)";
    let allowed = 64 * MIB;
    let tool = Tool::new(command("", grow)).limit(Limit::MemoryBytes, allowed);
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::OverLimit { limit: Limit::MemoryBytes, allowed });
    assert!(outcome.usage.peak_memory_bytes.is_some_and(|peak| peak < allowed));
    assert_eq!(tool.wasm.idle_workers(), 0);

    // Also where it could have gone on without: as natively (E-006, P16).
    let unasked = "(drop (memory.grow (i32.const 16384))) (call $echo)";
    let tool = Tool::new(command("", unasked)).limit(Limit::MemoryBytes, allowed);
    assert_eq!(tool.ending(json!(1)).await, Ending::OverLimit { limit: Limit::MemoryBytes, allowed });

    let small = Tool::new(command("", grow)).limit(Limit::MemoryBytes, 2048 * MIB);
    let outcome = small.call(json!(1)).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::answer(&json!(1)));
    assert!(outcome.usage.peak_memory_bytes.is_some_and(|peak| peak >= 1024 * MIB));

    let minimum = r#"(module (memory (export "memory") 16384) (func (export "_start")))"#;
    let tool = Tool::new(minimum).limit(Limit::MemoryBytes, allowed);
    assert_eq!(tool.ending(json!({})).await, Ending::OverLimit { limit: Limit::MemoryBytes, allowed });
}

#[tokio::test]
async fn output_and_log_have_limits() {
    let flood = |fd: u32| {
        format!(
            "(loop $l (call $write (i32.const {fd}) (i32.const 4096) (i32.const 60000))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $l (i32.lt_u (local.get $i) (i32.const 100)))) (call $echo)"
        )
    };
    let tool = Tool::new(command("", &flood(1)));
    let allowed = Limit::OutputBytes.house_default();
    assert_eq!(tool.ending(json!({})).await, Ending::OverLimit { limit: Limit::OutputBytes, allowed });
    assert_eq!(tool.wasm.idle_workers(), 0);

    let outcome = Tool::new(command("", &flood(2))).call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::answer(&json!({})));
    assert!(outcome.logs.iter().any(|line| line.contains("bytes cut …]")));
    let kept: usize = outcome.logs.iter().map(|line| line.len()).sum();
    assert!(kept as u64 <= Limit::LogBytes.house_default() + 100);

    // A typed answer that is too long, by a little and by more than may be copied at once.
    for pages in [20, 100] {
        let bytes = pages * 65536;
        let long = typed(&format!(
            "(drop (memory.grow (i32.const {pages}))) (call $answer (i32.const 0) (i32.const 0) (i32.const {bytes}))"
        ));
        let ending = Tool::new(long).ending(json!({})).await;
        assert_eq!(ending, Ending::OverLimit { limit: Limit::OutputBytes, allowed });
    }
}

#[tokio::test]
async fn handles_are_capped() {
    let open = "(loop $l
        (local.set $i (call $open (i32.const 3) (i32.const 1024) (i32.const 1) (i32.const 0) (i64.const 2)))
        (br_if $l (i32.eqz (local.get $i)))) (call $number (local.get $i))";
    let tool = Tool::new(command(r#"(data (i32.const 1024) ".")"#, open)).limit(Limit::OpenFiles, 100);
    // The table of handles ends the call, or the adapter's own smaller table says "too many open files" (33) or
    // "no memory" (48).
    match tool.ending(json!({})).await {
        Ending::OverLimit { limit: Limit::OpenFiles, allowed: 100 } => {}
        Ending::Answered(errno) => assert!(errno == json!(33) || errno == json!(48), "{errno}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_that_blocks_for_ever_ends_at_the_limit() {
    let open = "(drop (call $open (i32.const 3) (i32.const 1024) (i32.const 4) (i32.const 0) (i64.const 2)))
        (drop (call $fd_read (i32.load (i32.const 600)) (i32.const 0) (i32.const 1) (i32.const 8))) (loop $l (br $l))";
    let tool = Tool::new(command(r#"(data (i32.const 1024) "pipe")"#, open));
    nix::unistd::mkfifo(&tool.folder().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    let outcome = tool.call_for(json!({}), 300).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 300 });
    within(Duration::from_millis(outcome.usage.wall_ms), 300);
    gone(&tool.plain);
}

#[tokio::test]
async fn endless_recursion_is_a_trap() {
    let tool = Tool::new(command("", "(call $main)"));
    let ending = tool.ending(json!({})).await;
    assert!(matches!(&ending, Ending::Raised { message } if message.contains("call stack exhausted")), "{ending:?}");
}
