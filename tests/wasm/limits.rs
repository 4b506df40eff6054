//! Limits as the worker holds them: time, memory, output, handles, and which worker may be used
//! again. The verdicts that a script shares stand in `tests/engines`.

use super::*;

#[tokio::test]
async fn endless_loops_and_sleeps_end_at_the_limit() {
    let sleep =
        "(i32.store8 (i32.const 108) (i32.const 0)) (i32.store (i32.const 116) (i32.const 1))
        (i64.store (i32.const 124) (i64.const 60000000000))
        (drop (call $poll (i32.const 100) (i32.const 200) (i32.const 1) (i32.const 300)))";
    let start = r#"(module (memory (export "memory") 1) (func $s (loop $l (br $l))) (start $s) (func (export "_start")))"#;
    let spin = format!("{SPIN} (unreachable)");
    for module in [
        command("", SPIN),
        command("", sleep),
        start.to_owned(),
        typed(&spin),
    ] {
        let tool = Tool::new(module);
        tool.wasm.prepare(&tool.shape).await.expect("compiled");
        // The first call also starts a worker, which is not the tool's time.
        // A busy test machine may be late, also with the worker, which shortens the tool's time; the
        // bench holds the real gate of 1.10.
        let mut seen: Vec<u64> = Vec::new();
        while !seen.last().is_some_and(|ms| (200..400).contains(ms)) {
            assert!(seen.len() < 5, "{seen:?} ms");
            match tool.call_for(json!({}), 200).await {
                Ok(outcome) => {
                    assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 200 });
                    seen.push(outcome.usage.wall_ms);
                }
                Err(late) => {
                    assert!(late.retryable, "{late:?}");
                    seen.push(0);
                }
            }
        }
        assert_eq!(tool.idle(), 0, "a worker is not used again after a timeout");
    }
}

#[tokio::test]
async fn memory_has_a_limit_and_a_peak() {
    let grow = "(if (i32.eq (memory.grow (i32.const 16384)) (i32.const -1)) (then (unreachable))) \
        (call $echo)";
    let allowed = 64 * MIB;
    let over = Ending::OverLimit {
        limit: Limit::MemoryBytes,
        allowed,
    };
    let tool = Tool::new(command("", grow)).limit(Limit::MemoryBytes, allowed);
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, over);
    assert!(
        outcome
            .usage
            .peak_memory_bytes
            .is_some_and(|peak| peak < allowed)
    );
    assert_eq!(tool.idle(), 0);

    // Also where the guest would go on without the memory (a script over its limit ends, too: P16),
    // or begins with more.
    let unasked = command("", "(drop (memory.grow (i32.const 16384))) (call $echo)");
    let minimum = r#"(module (memory (export "memory") 16384) (func (export "_start")))"#;
    for module in [&unasked, minimum] {
        assert_eq!(
            Tool::new(module)
                .limit(Limit::MemoryBytes, allowed)
                .ending(json!(1))
                .await,
            over
        );
    }

    let small = Tool::new(command("", grow)).limit(Limit::MemoryBytes, 2048 * MIB);
    let outcome = small.call(json!(1)).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::answer(&json!(1)));
    assert!(
        outcome
            .usage
            .peak_memory_bytes
            .is_some_and(|peak| peak >= 1024 * MIB)
    );
}

#[tokio::test]
async fn a_typed_answer_has_a_limit() {
    let allowed = Limit::OutputBytes.built_in_default();
    // By a little and by more than may be copied at once.
    for pages in [20, 100] {
        let bytes = pages * 65536;
        let long = typed(&format!(
            "(drop (memory.grow (i32.const {pages}))) (call $answer (i32.const 0) (i32.const 0) \
            (i32.const {bytes}))"
        ));
        let ending = Tool::new(long).ending(json!({})).await;
        assert_eq!(
            ending,
            Ending::OverLimit {
                limit: Limit::OutputBytes,
                allowed
            }
        );
    }
}

/// Text that is passed to the host in one go is no output, and is refused under its own name.
#[tokio::test]
async fn a_call_to_the_host_passes_so_much_and_no_more() {
    let tool = |pages: &str| Tool::new(include_str!("passes.wat").replace("PAGES", pages));
    assert_eq!(
        tool("3").ending(json!({})).await,
        Ending::answer(&json!(1)),
        "control"
    );
    let message = "the module trapped: one call to the host passes more than 1114112 bytes; pass \
        them in several calls";
    assert_eq!(
        tool("40").ending(json!({})).await,
        Ending::Trapped {
            message: message.to_owned()
        }
    );
}

#[tokio::test]
async fn endless_recursion_is_a_trap() {
    let tool = Tool::new(command("", "(call $main)"));
    let ending = tool.ending(json!({})).await;
    assert!(
        matches!(&ending, Ending::Trapped { message } if message.contains("call stack exhausted")),
        "{ending:?}"
    );
}

/// A worker lasts for several calls; each has the limit to itself.
#[tokio::test]
async fn what_a_call_adds_to_a_live_folder_is_counted_for_it_alone() {
    let body =
        "(if (call $open (i32.const 3) (i32.const 1024) (i32.const 1) (i32.const 1) (i64.const 64))
          (then (unreachable)))
        (loop $l (call $write (i32.load (i32.const 600)) (i32.const 4096) (i32.const 60000))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $l (i32.lt_u (local.get $i) (i32.const 10))))
        (call $echo)";
    let out = tempfile::tempdir_in("/var/tmp").expect("tempdir");
    let module = command(r#"(data (i32.const 1024) "f")"#, body);
    let tool = |bytes: u64| {
        Tool::new(&module)
            .grant(Access::Write, out.path())
            .limit(Limit::WrittenBytes, bytes)
    };
    let enough = tool(MIB);
    for n in 0..3 {
        assert_eq!(enough.ending(json!(n)).await, Ending::answer(&json!(n)));
        fs::rename(out.path().join("f"), out.path().join(n.to_string())).expect("it was written");
    }
    assert_eq!(enough.idle(), 1, "one worker wrote 1.8 MB");
    let allowed = MIB / 2;
    let over = Ending::OverLimit {
        limit: Limit::WrittenBytes,
        allowed,
    };
    assert_eq!(tool(allowed).ending(json!(1)).await, over);
}
