//! Files, by the WASI layer alone: there are no walls here. With them, and for scripts alike: `tests/engines`.

use super::*;

/// Opens a path and prints the error number: 0, 63 (not permitted), 44 (no such file), 76 (not capable) …
fn open_and_tell(dir: u32, path: &str, create: bool) -> String {
    let (oflags, rights) = if create { (1, 64) } else { (0, 2) };
    command(
        &format!(r#"(data (i32.const 1024) "{path}")"#),
        &format!(
            "(call $number (call $open (i32.const {dir}) (i32.const 1024) (i32.const {}) (i32.const {oflags}) (i64.const {rights})))",
            path.len()
        ),
    )
}

#[tokio::test]
async fn outside_the_grants_there_is_only_an_error_number() {
    for (path, errno) in
        [("/etc/passwd", 63), ("../../../../etc/passwd", 63), ("../cache", 63), ("..", 63), ("x/../../..", 44)]
    {
        let ending = Tool::new(open_and_tell(3, path, false)).ending(json!({})).await;
        assert_eq!(ending, Ending::answer(&json!(errno)), "{path}");
    }
    // There is no fourth folder.
    assert_eq!(Tool::new(open_and_tell(4, "x", true)).ending(json!({})).await, Ending::answer(&json!(8)));
    // A link inside a granted folder that leads out of it.
    let tool = Tool::new(open_and_tell(3, "link/passwd", false));
    let folder = tool.out();
    std::os::unix::fs::symlink("/etc", folder.join("link")).expect("link");
    let tool = tool.grant(Access::Write, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(63)));
}

#[tokio::test]
async fn read_grants_read_and_write_grants_write() {
    // Control: the same module, with the right that it needs.
    let tool = Tool::new(open_and_tell(3, "new.txt", true));
    let folder = tool.out();
    let tool = tool.grant(Access::Write, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(0)));
    assert!(folder.join("new.txt").exists());

    let tool = Tool::new(open_and_tell(3, "new.txt", true));
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(63)));
    assert!(!folder.join("new.txt").exists());

    let tool = Tool::new(open_and_tell(3, "tool.wat", false));
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(0)));
}

#[tokio::test]
async fn nothing_leaks_through_scratch_from_call_to_call() {
    // O_CREAT|O_EXCL: a second call that found the first one's file would say 20 (exists).
    let exclusive = command(
        r#"(data (i32.const 1024) "left")"#,
        "(call $number (call $open (i32.const 3) (i32.const 1024) (i32.const 4) (i32.const 5) (i64.const 64)))",
    );
    let tool = Tool::new(exclusive);
    for _ in 0..2 {
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(0)));
        assert_eq!(tool.idle(), 0, "its worker is not used again");
    }
}

#[tokio::test]
async fn nothing_leaks_through_memory_either() {
    // Counts in memory; every call must see a fresh one.
    let count = "(i32.store (i32.const 700) (i32.add (i32.load (i32.const 700)) (i32.const 1)))
        (call $number (i32.load (i32.const 700)))";
    let tool = Tool::new(command("", count));
    for _ in 0..3 {
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!(1)));
    }
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 1, "one worker served all");
}
