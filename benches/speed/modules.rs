//! The guests: small programs that do the least a tool can do, so that the cost of the host shows.

use std::fmt::Write;

/// Longer input than this makes the late guests stay.
pub const SHORT: usize = 40;

pub const PYTHON: &str = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
pub const NODE: &str = "const text = require('fs').readFileSync(0, \
    'utf8');\nconsole.log(JSON.stringify(JSON.parse(text)));\n";
pub const BUN: &str =
    "const text = await Bun.stdin.text();\nconsole.log(JSON.stringify(JSON.parse(text)));\n";
pub const PYTHON_SPINS: &str =
    "import sys\ntext = sys.stdin.read()\nwhile len(text) > 40:\n    pass\nprint(text)\n";
pub const PYTHON_SLEEPS: &str = "import sys, time\ntext = sys.stdin.read()\nif len(text) > \
    40:\n    time.sleep(60)\nprint(text)\n";

/// Reads all, writes all.
pub const ECHO_C: &str = r#"
#include <unistd.h>
int main(void) {
    char buffer[65536];
    ssize_t length;
    while ((length = read(0, buffer, sizeof buffer)) > 0)
        if (write(1, buffer, length) != length) return 1;
    return 0;
}
"#;

/// As many children as the digits of the input say, each in a session of its own and deaf to
/// SIGTERM. None ends.
pub const HOSTILE_C: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    char buffer[4096];
    int wanted = 0, up = 0;
    ssize_t length = read(0, buffer, sizeof buffer);
    for (ssize_t i = 0; i < length; i++)
        if (buffer[i] >= '0' && buffer[i] <= '9') wanted = wanted * 10 + buffer[i] - '0';
    signal(SIGTERM, SIG_IGN);
    for (; up < wanted; up++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) {
            setsid();
            for (;;) pause();
        }
    }
    dprintf(2, "%d up\n", up);
    for (;;) pause();
}
"#;

/// The typed component: `run` gives its input back.
pub const TYPED: &str = r#"(component
  (core module $m
    (memory (export "memory") 2)
    (global $next (mut i32) (i32.const 64))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $next)
      (global.set $next (i32.add (global.get $next) (local.get 3))))
    (func (export "run") (param $at i32) (param $length i32) (result i32)
      (i32.store8 (i32.const 0) (i32.const 0))
      (i32.store (i32.const 4) (local.get $at))
      (i32.store (i32.const 8) (local.get $length))
      (i32.const 0)))
  (core instance $i (instantiate $m))
  (func $run (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (export "run" (func $run)))"#;

const SPIN: &str = "(loop $for_ever (br $for_ever))";
/// One subscription: the monotonic clock, a minute.
const SLEEP: &str =
    "(i32.store (i32.const 116) (i32.const 1)) (i64.store (i32.const 124) (i64.const 60000000000))
    (drop (call $poll (i32.const 100) (i32.const 200) (i32.const 1) (i32.const 300)))";

/// A preview 1 command that reads once and writes that; before it, `late` runs on long input.
/// `more`: functions.
fn command(late: &str, more: &str) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  {more}
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 4096))
    (i32.store (i32.const 4) (i32.const 60000))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
    (if (i32.gt_u (i32.load (i32.const 4)) (i32.const {SHORT})) (then {late}))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#
    )
}

pub fn echo() -> String {
    command("", "")
}

pub fn spins() -> String {
    command(SPIN, "")
}

pub fn sleeps() -> String {
    command(SLEEP, "")
}

/// The same command as a `wasi:cli/run` component, made as a compiler would make it.
pub fn component() -> anyhow::Result<Vec<u8>> {
    use wasi_preview1_component_adapter_provider as adapter;
    wit_component::ComponentEncoder::default()
        .module(&wat::parse_str(echo())?)?
        .adapter(
            adapter::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
            adapter::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
        )?
        .encode()
}

/// A command of more than a megabyte of code.
pub fn large() -> anyhow::Result<Vec<u8>> {
    let mut more = String::new();
    for function in 0..1100 {
        writeln!(
            more,
            "(func (export \"f{function}\") (param i32 i32) (result i32)"
        )?;
        for step in 0..100 {
            let number = 1_000_000 + function * 100 + step;
            let sum =
                format!("(i32.add (i32.mul (local.get 0) (i32.const {number})) (local.get 1))");
            writeln!(more, "(local.set {} {sum})", step % 2)?;
        }
        more.push_str("(local.get 0))\n");
    }
    Ok(wat::parse_str(command("", &more))?)
}
