//! Workers and the cache: who is started, and what is kept.

use super::*;

#[tokio::test]
async fn calls_at_once_get_workers_of_their_own() {
    let tool = Tool::new(typed_echo());
    let calls = (0..16).map(|n| tool.call_for(json!(n), 60_000));
    for (n, call) in futures_util::future::join_all(calls)
        .await
        .into_iter()
        .enumerate()
    {
        assert_eq!(call.expect("an outcome").ending, Ending::answer(&json!(n)));
    }
    assert_eq!(tool.entries().len(), 1, "compiled once for all");
    let most = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    assert!((1..=most).contains(&tool.idle()), "{}", tool.idle());
    tool.wasm.close();
    assert_eq!(tool.idle(), 0);
}

#[tokio::test]
async fn another_shape_never_gets_the_worker() {
    let mut tool = Tool::new(typed_echo());
    tool.ending(json!(1)).await;
    tool.shape.limits.set(Limit::OutputBytes, 1000);
    tool.ending(json!(1)).await;
    assert_eq!(tool.idle(), 2);
}

#[tokio::test]
async fn a_cancelled_call_ends_with_its_worker() {
    let tool = Tool::new(command("", SPIN));
    tool.wasm.prepare(&tool.shape).await.expect("compiled");
    let context = context();
    let events = ToolSender::unheard();
    let cancel = context.cancel.clone();
    let order = tool.order(json!({}), 60_000).await.unwrap();
    let (outcome, ()) = tokio::join!(tool.wasm.run(&context, order, &events), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    });
    assert_eq!(
        (outcome.expect("an outcome").ending, tool.idle()),
        (Ending::Cancelled, 0)
    );
}

#[tokio::test]
async fn compiled_code_is_kept_by_content_and_only_while_it_is_sound() {
    let tool = Tool::new(command_echo());
    let prepared = async || {
        wasm(tool.base.path())
            .prepare(&tool.shape)
            .await
            .expect("prepared")
    };
    prepared().await;
    let first = tool.entries();
    prepared().await;
    assert_eq!(tool.entries(), first);
    let [(entry, _)] = first.as_slice() else {
        panic!("{first:?}")
    };
    // Damaged, then readable by others: built anew, and replaced.
    use std::os::unix::fs::PermissionsExt;
    let chmod = |mode| {
        std::fs::set_permissions(entry, std::fs::Permissions::from_mode(mode)).expect("chmod")
    };
    chmod(0o600);
    let mut bytes = std::fs::read(entry).expect("entry");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(entry, bytes).expect("damaged");
    prepared().await;
    let second = tool.entries();
    assert!(second != first && second.len() == 1, "{second:?}");
    chmod(0o644);
    prepared().await;
    assert!(tool.entries() != second);
    // A changed module has another digest.
    std::fs::write(tool.shape.script.as_ref().expect("script"), typed_echo()).expect("changed");
    prepared().await;
    assert_eq!(tool.entries().len(), 2);
    assert_eq!(
        tool.ending(json!("typed now")).await,
        Ending::answer(&json!("typed now"))
    );
}

#[tokio::test]
async fn a_module_behind_a_link_is_not_read() {
    let mut tool = Tool::new(typed_echo());
    let link = tool.folder().join("link.wat");
    std::os::unix::fs::symlink(tool.folder().join("tool.wat"), &link).expect("link");
    tool.shape.script = Some(link);
    let message = tool.refusal().await;
    assert!(
        message.contains("cannot be read") && !message.contains("link.wat"),
        "{message}"
    );
}

/// Where no folder may keep compiled code, a call still runs, and `doctor` says why.
#[test]
fn without_a_cache_folder_a_module_is_compiled_for_this_run_alone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool_at("esc:echo", "wasm", "echo/main.wasm", "", json!({}));
    std::fs::write(playground.path("user_scripts/echo/main.wasm"), typed_echo()).expect("module");
    playground.settle();
    let run = |arguments: &[&str]| {
        let mut command = playground.host();
        command
            .env("XDG_CACHE_HOME", "/proc/version")
            .args(arguments);
        finish(command, b"")
    };
    assert_eq!(
        fits(
            "ok {\"a\":1}",
            &run(&["call", "esc:echo", "--json", "--input", "{\"a\": 1}"])
        ),
        Ok(())
    );
    let cache = run(&["doctor", "--json"]).out["wasm"]["cache"].to_string();
    assert!(
        cache.contains("compiled wasm is not kept between runs: "),
        "{cache}"
    );
}

#[tokio::test]
async fn nothing_leaks_from_call_to_call() {
    // O_CREAT|O_EXCL: a second call that found the first one's file would say 20 (exists).
    let exclusive = command(
        r#"(data (i32.const 1024) "left")"#,
        "(call $number (call $open (i32.const 3) (i32.const 1024) (i32.const 4) (i32.const 5) \
        (i64.const 64)))",
    );
    let tool = Tool::new(exclusive);
    for _ in 0..2 {
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(0)));
        assert_eq!(tool.idle(), 0, "its worker is not used again");
    }
    // Counts in memory; every call must see a fresh one.
    let count = "(i32.store (i32.const 700) (i32.add (i32.load (i32.const 700)) (i32.const 1)))
        (call $number (i32.load (i32.const 700)))";
    let tool = Tool::new(command("", count));
    for _ in 0..3 {
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(1)));
        assert_eq!(tool.idle(), 1, "one worker serves all");
    }
}
