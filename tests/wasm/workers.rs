//! Workers, compilers and the cache: who is started, who is believed, what is kept.

use super::*;

#[tokio::test]
async fn calls_at_once_get_workers_of_their_own() {
    let tool = Tool::new(typed_echo());
    let calls: Vec<_> = (0..16).map(|n| tool.call(json!(n))).collect();
    for (n, call) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(call.expect("an outcome").ending, Ending::answer(&json!(n)));
    }
    assert_eq!(tool.plain.compilers.load(Ordering::SeqCst), 1, "compiled once for all");
    let most = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    assert!(tool.plain.workers.load(Ordering::SeqCst) <= most);
    tool.wasm.close();
    assert_eq!(tool.idle(), 0);
    gone(&tool.plain);
}

#[tokio::test]
async fn another_shape_never_gets_the_worker() {
    let mut tool = Tool::new(typed_echo());
    tool.ending(json!(1)).await;
    tool.shape.limits.set(Limit::OutputBytes, 1000);
    tool.ending(json!(1)).await;
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 2);
    assert_eq!(tool.idle(), 2);
}

/// HOME, TMPDIR, LANG and MODE; what a call sets besides is gone for the next one, in the same worker.
#[tokio::test]
async fn variables_of_a_call_are_gone_with_it() {
    let count = "(drop (call $environ (i32.const 16) (i32.const 20))) (call $number (i32.load (i32.const 16)))";
    let mut tool = Tool::new(command("", count));
    tool.shape.env.insert("MODE".into(), policy::Variable::Literal("m".into()));
    for (own, all) in [(&[][..], 4), (&["MODE", "TOKEN", "KEY"][..], 6), (&["MODE"][..], 4), (&[][..], 4)] {
        let mut order = tool.order(json!({}), 10_000);
        let env = own.iter().map(|name| ((*name).to_owned(), "x".repeat(10_000))).collect();
        order.confinement.as_mut().expect("one").per_call.env.0 = env;
        let events = toolhost::executor::Events::unheard();
        let outcome = tool.wasm.run(&context(), order, &events).await.expect("an outcome");
        assert_eq!(outcome.ending, Ending::answer(&json!(all)), "{own:?}");
    }
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn dropping_and_cancelling_kill_the_worker() {
    let tool = Tool::new(command("", SPIN));
    tool.wasm.prepare(&tool.shape).await.expect("compiled");
    let dropped = tokio::time::timeout(Duration::from_millis(500), tool.call_for(json!({}), 60_000)).await;
    assert!(dropped.is_err());
    gone(&tool.plain);

    let context = context();
    let events = Events::unheard();
    let cancel = context.cancel.clone();
    let (outcome, ()) = tokio::join!(tool.wasm.run(&context, tool.order(json!({}), 60_000), &events), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    });
    assert_eq!(outcome.expect("an outcome").ending, Ending::Cancelled);
    gone(&tool.plain);
}

#[tokio::test]
async fn an_idle_worker_that_died_is_replaced() {
    let tool = Tool::new(typed_echo());
    assert_eq!(tool.ending(json!(1)).await, Ending::answer(&json!(1)));
    let pid = *tool.plain.pids.lock().expect("pids").last().expect("a worker");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(tool.ending(json!(2)).await, Ending::answer(&json!(2)));
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 2);
}

fn instead(role: Role, script: String) -> Plain {
    Plain { instead: Some((role, Box::leak(script.into_boxed_str()))), ..Plain::default() }
}

/// The head of an answer with five bytes of output.
fn answer(id: u64) -> Value {
    let answer = json!({"id": id, "end": "returned", "cpuMs": 0, "peakMemory": 0, "clean": false, "moreDenied": 0});
    json!({"message": {"answer": answer}, "bytes": 5})
}

/// The head of a report that a file was refused.
fn denied(path: &str, why: &str) -> Value {
    json!({"message": {"denied": {"file": {"write": false, "path": path, "why": why}}}, "bytes": 0})
}

/// The head of an answer that names a limit.
fn over(limit: &str) -> Value {
    let mut head = answer(1);
    head["message"]["answer"]["end"] = json!({"overLimit": {"limit": limit}});
    head
}

#[tokio::test]
async fn hostile_workers_are_not_believed() {
    let ready = r#"echo '{"message":"ready","bytes":0}'"#;
    let scripts = [
        // Lengths of 4 GiB, at once and after a good start; garbage; an answer cut short; one to another call; nothing;
        // the wrong answer.
        r#"echo '{"message":"ready","bytes":4294967295}'; sleep 5"#.to_owned(),
        format!(r#"{ready}; echo '{{"message":"log","bytes":4294967295}}'; sleep 5"#),
        format!(r"{ready}; head -c 100000 /dev/zero | tr '\0' x; sleep 5"),
        format!(r#"{ready}; echo '{{"message":"log","bytes":100}}'; printf short"#),
        format!(r#"{ready}; printf '{{"message":{{"answer"'"#),
        format!(r#"{ready}; echo '{}'; sleep 5"#, answer(2)),
        format!("{ready}; exit 0"),
        "exit 0".to_owned(),
        format!("{ready}; {ready}; sleep 5"),
        // A limit that the host holds, which would make the call one that never ran.
        format!("{ready}; echo '{}'; echo null; sleep 5", over("inputBytes")),
        // More refusals than it may tell, a longer path, a reason of its own; before and instead of its answer.
        format!(
            "{ready}; for i in $(seq 51); do echo '{}'; done; echo '{}'; echo null; sleep 5",
            denied("x", "link"),
            answer(1)
        ),
        format!("{ready}; echo '{}'; sleep 5", denied(&"x".repeat(513), "link")),
        format!("{ready}; echo '{}'; sleep 5", denied("x", "because")),
        format!("echo '{}'; sleep 5", denied("x", "link")),
    ];
    for script in scripts {
        let plain = instead(Role::Worker, script.clone());
        let tool = Tool::with(typed_echo(), plain);
        let fault = tool.call(json!({})).await.expect_err("a fault");
        assert_eq!(fault.kind, Kind::InternalError, "{script}: {fault:?}");
        gone(&tool.plain);
    }
    let limited = Tool::with(
        typed_echo(),
        instead(Role::Worker, format!("{ready}; echo '{}'; echo null; sleep 5", over("cpuMs"))),
    );
    assert!(matches!(limited.ending(json!({})).await, Ending::OverLimit { limit: Limit::CpuMs, .. }), "the control");
    let told = denied("\u{1b}x", "link");
    let control =
        format!("{ready}; for i in $(seq 50); do echo '{told}'; done; echo '{}'; echo null; sleep 5", answer(1));
    let outcome = Tool::with(typed_echo(), instead(Role::Worker, control)).call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::answer(&json!(null)));
    assert_eq!((outcome.attempts.len(), outcome.attempts[0].target.as_str()), (50, "\\u{1b}x"));
    let tool = Tool::with(typed_echo(), instead(Role::Worker, format!("{ready}; exec sleep 60")));
    let outcome = tool.call_for(json!({}), 200).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 200 });
    gone(&tool.plain);
}

#[tokio::test]
async fn hostile_compilers_are_not_believed_and_leave_nothing_in_the_cache() {
    // Lengths of 4 GiB; garbage; an answer cut short; nothing.
    for script in [
        r#"echo '{"message":"code","bytes":4294967295}'; sleep 5"#,
        r"head -c 100000 /dev/zero | tr '\0' x; sleep 5",
        r#"echo '{"message":"code","bytes":64}'; printf short"#,
        "exit 0",
    ] {
        let tool = Tool::with(typed_echo(), instead(Role::Compile, script.to_owned()));
        let fault = tool.call(json!({})).await.expect_err("a fault");
        assert_eq!(fault.kind, Kind::InternalError, "{script}: {fault:?}");
        assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 0, "{script}: no worker is started");
        let entries = std::fs::read_dir(tool.base.path().join("cache")).expect("cache").count();
        assert_eq!(entries, 0, "{script}");
        gone(&tool.plain);
    }
}

#[tokio::test]
async fn compiled_code_is_kept_by_content_and_only_while_it_is_sound() {
    let tool = Tool::new(command_echo());
    let entries = || -> Vec<PathBuf> {
        std::fs::read_dir(tool.base.path().join("cache")).expect("cache").map(|e| e.expect("entry").path()).collect()
    };
    let compiles = |n: usize| {
        let (plain, shape, base) = (Arc::clone(&tool.plain), tool.shape.clone(), tool.base.path().to_owned());
        async move {
            let cache = Cache::open(&base.join("cache")).expect("cache");
            let fresh = Wasm::new(Arc::clone(&plain) as Arc<dyn Workers>, cache);
            fresh.prepare(&shape).await.expect("prepared");
            assert_eq!(plain.compilers.load(Ordering::SeqCst), n);
        }
    };
    compiles(1).await;
    compiles(1).await;
    let [entry] = entries().try_into().expect("one entry");
    // Damaged, then readable by others: built anew, and replaced.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut bytes = std::fs::read(&entry).expect("entry");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&entry, bytes).expect("damaged");
    compiles(2).await;
    compiles(2).await;
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    compiles(3).await;
    compiles(3).await;
    // A changed module is another content.
    std::fs::write(tool.shape.script.as_ref().expect("script"), typed_echo()).expect("changed");
    compiles(4).await;
    assert_eq!(entries().len(), 2);
    assert_eq!(tool.ending(json!("typed now")).await, Ending::answer(&json!("typed now")));
}

#[tokio::test]
async fn a_module_behind_a_link_is_not_read() {
    let mut tool = Tool::new(typed_echo());
    let link = tool.folder().join("link.wat");
    std::os::unix::fs::symlink(tool.folder().join("tool.wat"), &link).expect("link");
    tool.shape.script = Some(link);
    let message = tool.refusal().await;
    assert!(message.contains("cannot be read") && !message.contains("link.wat"), "{message}");
}

/// P15 holds before the first call too, and what was begun is not begun again.
#[tokio::test]
async fn a_compile_goes_on_without_its_caller_and_the_retry_finds_it() {
    let tool = Tool::with(typed_echo(), Plain { slow: Duration::from_millis(1500), ..Plain::default() });
    let started = Instant::now();
    let calls: Vec<_> = (0..3).map(|n| tool.call_for(json!(n), 100)).collect();
    for call in join_all(calls).await {
        let fault = call.expect_err("too early");
        assert_eq!((fault.kind, fault.retryable), (Kind::TimeoutError, true), "{fault:?}");
        assert!(fault.message.contains("the tool is still being compiled; try again"), "{fault:?}");
    }
    assert!(started.elapsed() < Duration::from_millis(1100), "{:?}", started.elapsed());
    assert_eq!(tool.ending(json!(7)).await, Ending::answer(&json!(7)));
    assert_eq!(tool.plain.compilers.load(Ordering::SeqCst), 1, "one for all of them");
}
