//! The `entryPoint` shims, run by the real interpreters outside the walls: answers, and messages that name the mend.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use toolhost::manifest::Language;
use toolhost::policy::{Program, Runtime};
use toolhost::runtimes;

/// This machine's interpreter, or `None` after saying so; in CI a missing one fails.
fn interpreter(language: Language) -> Option<Runtime> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found = runtimes::discover(&path, &runtimes::Never::default()).runtimes.remove(&language);
    if found.is_none() {
        assert!(std::env::var_os("TOOLHOST_CI").is_none(), "{language:?} is missing; .ci/run installs it");
        eprintln!("SKIPPED: {language:?} is not on this machine");
    }
    found
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    /// The last line of stderr, which is the mend.
    fn mend(&self) -> &str {
        self.err.lines().next_back().unwrap_or("").strip_prefix("toolhost: ").unwrap_or("")
    }
}

/// Runs `entry` of a script called `name` with that text.
fn run(runtime: &Runtime, name: &str, text: &str, entry: &str, input: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join(name);
    std::fs::write(&script, text).expect("script");
    std::fs::write(folder.path().join("helper.py"), "NAME = 'sibling'\n").expect("sibling");
    let guest = runtimes::shims::guest_path(runtime.language).expect("a shim");
    let own = tempfile::tempdir().expect("a temporary folder");
    let shim = own.path().join(Path::new(guest).file_name().expect("a name"));
    std::fs::write(&shim, runtimes::shims::entry_point(runtime.language).expect("a shim")).expect("shim");
    let Program::Path(program) = &runtime.program else { panic!("{runtime:?}") };
    let mut child = Command::new(program)
        .args(&runtime.arguments)
        .args([&shim, &script])
        .arg(entry)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter starts");
    child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("input");
    let done = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

/// What is expected: the exact answer, or a part of the mend.
enum Expect {
    Answer(&'static str),
    Mend(&'static str),
}
use Expect::{Answer, Mend};

fn table(language: Language, extension: &str, rows: &[(&str, &str, &str, Expect)]) {
    let Some(runtime) = interpreter(language) else { return };
    for (text, entry, input, expect) in rows {
        let ran = run(&runtime, &format!("analyzer.{extension}"), text, entry, input);
        match expect {
            Answer(answer) => {
                assert_eq!(
                    (ran.code, ran.out.as_str()),
                    (Some(0), format!("{answer}\n").as_str()),
                    "{text}\n{}",
                    ran.err
                );
            }
            Mend(part) => {
                assert!(ran.mend().contains(part), "{text}\nwanted: {part}\ngot: {}\n{}", ran.mend(), ran.err);
                assert!(
                    ran.code.is_some_and(|code| code != 0) && ran.out.is_empty(),
                    "{text}: {:?} {}",
                    ran.code,
                    ran.out
                );
                assert!(!ran.err.contains("entry.py\"") && !ran.err.contains("entry.mjs:"), "shim frames: {}", ran.err);
            }
        }
    }
}

#[test]
fn python_answers() {
    table(
        Language::Python,
        "py",
        &[
            ("def f(numbers): return {'sum': sum(numbers)}", "f", r#"{"numbers":[1,2,3]}"#, Answer(r#"{"sum":6}"#)),
            ("async def f(x): return x", "f", r#"{"x":"ä"}"#, Answer("\"ä\"")),
            ("def f(**k): return sorted(k)", "f", r#"{"max-rows":1,"b":2}"#, Answer(r#"["b","max-rows"]"#)),
            ("def f(): pass", "f", "{}", Answer("null")),
            ("class T:\n  @staticmethod\n  def go(a=1): return a", "T.go", "{}", Answer("1")),
            ("import helper\ndef f(): return helper.NAME", "f", "{}", Answer("\"sibling\"")),
            ("import sys\ndef f(): return [__name__, len(sys.argv)]", "f", "{}", Answer(r#"["analyzer",1]"#)),
            ("def f(x): return x", "f", r#"{"x":9007199254740993}"#, Answer("9007199254740993")),
            (
                "from dataclasses import dataclass, asdict\n@dataclass\nclass P:\n  x: int\ndef f(): return asdict(P(1))",
                "f",
                "{}",
                Answer(r#"{"x":1}"#),
            ),
            // All that is printed is log, also by a child process and by a raw descriptor.
            (
                "import os, subprocess\ndef f():\n  print('one'); os.write(1, b'two'); subprocess.run(['echo', 'three']); return 1",
                "f",
                "{}",
                Answer("1"),
            ),
        ],
    );
}

#[test]
fn python_mends() {
    let cyclic = "def f():\n  x = []\n  x.append(x)\n  return x";
    table(
        Language::Python,
        "py",
        &[
            (
                "def analyze(): pass\nimport os",
                "analyse",
                "{}",
                Mend("has no function 'analyse'; did you mean 'analyze'?"),
            ),
            ("X = 1", "X", "{}", Mend("'X' in analyzer.py is an int, not a function")),
            ("X = 1", "f", "{}", Mend("defines no function at all")),
            ("def f(a): pass", "f", r#"{"b":1}"#, Mend("f() has no parameter 'b'; it takes: a")),
            ("def f(a): pass", "f", "{}", Mend("f() needs 'a', which was not given")),
            ("def f(a, /): pass", "f", r#"{"a":1}"#, Mend("by position only")),
            (
                "def f(): return {'a': [1, float('nan')]}",
                "f",
                "{}",
                Mend("the return value['a'][1] is nan, which is not JSON; return None or a string"),
            ),
            (
                "def f(): return {'when': __import__('datetime').date(2026, 1, 2)}",
                "f",
                "{}",
                Mend("the return value['when'] is a date, which JSON cannot carry; return it.isoformat()"),
            ),
            ("def f(): return {1: 2}", "f", "{}", Mend("has the key 1, an int")),
            ("def f(): return 2**64", "f", "{}", Mend("more than 64 bits")),
            ("def f(): return '\\ud800'", "f", "{}", Mend("half a surrogate pair")),
            (
                "def f(): return (i for i in [1])",
                "f",
                "{}",
                Mend("is a generator, which JSON cannot carry; return list(it)"),
            ),
            (cyclic, "f", "{}", Mend("holds itself")),
            ("def f():\n  return 1/0", "f", "{}", Mend("ZeroDivisionError: division by zero (analyzer.py, line 2)")),
            ("def f():\n  raise ValueError('a\\nb')", "f", "{}", Mend("ValueError: a b")),
            ("def f(:", "f", "{}", Mend("SyntaxError")),
            ("import pandazz", "f", "{}", Mend("No module named 'pandazz'")),
            ("import sys\ndef f(): sys.exit(1)", "f", "{}", Mend("called sys.exit() before f() returned")),
            ("import sys\nsys.exit(0)", "f", "{}", Mend("called sys.exit() before f() returned")),
            ("def f(): pass", "f", "[1]", Mend("one JSON object, not a list")),
        ],
    );
}

#[test]
fn python_traceback_starts_at_the_tool() {
    let Some(runtime) = interpreter(Language::Python) else { return };
    let ran = run(&runtime, "analyzer.py", "def f():\n  print('noise')\n  return 1/0", "f", "{}");
    assert!(ran.err.starts_with("noise\nTraceback (most recent call last):\n"), "{}", ran.err);
    assert!(ran.err.contains("analyzer.py\", line 3, in f"), "{}", ran.err);
}

#[test]
fn python_script_named_like_a_library() {
    let Some(runtime) = interpreter(Language::Python) else { return };
    let text = "def f():\n  import asyncio\n  return __name__";
    let ran = run(&runtime, "json.py", text, "f", "{}");
    assert_eq!(ran.out, "\"script_json\"\n", "{}", ran.err);
}

const JAVASCRIPT_ANSWERS: [(&str, &str, &str, Expect); 8] = [
    (
        "export function f({numbers}) { return {sum: numbers.length} }",
        "f",
        r#"{"numbers":[1,2]}"#,
        Answer(r#"{"sum":2}"#),
    ),
    ("export const f = async (i) => i.x", "f", r#"{"x":"ä"}"#, Answer("\"ä\"")),
    ("export default function f() { return 1 }", "f", "{}", Answer("1")),
    ("export default () => 2", "default", "{}", Answer("2")),
    ("export function f() { }", "f", "{}", Answer("null")),
    ("export function f() { return new Date(0) }", "f", "{}", Answer("\"1970-01-01T00:00:00.000Z\"")),
    ("export function f() { setInterval(() => {}, 1000); return process.argv.length }", "f", "{}", Answer("2")),
    (
        "import fs from 'node:fs'; import {spawnSync} from 'node:child_process';\n\
         export function f() { console.log('one'); process.stdout.write('two'); fs.writeSync(1, 'three');\n\
         spawnSync('echo', ['four'], {stdio: 'inherit'}); return 1 }",
        "f",
        "{}",
        Answer("1"),
    ),
];

const JAVASCRIPT_MENDS: [(&str, &str, &str, Expect); 14] = [
    ("export function g() {}", "f", "{}", Mend("exports no function 'f'; it exports: g")),
    ("function f() {}", "f", "{}", Mend("write: export function f(input)")),
    ("export const f = 1", "f", "{}", Mend("'f' in analyzer.mjs is a number, not a function")),
    (
        "export const f = () => ({a: [NaN]})",
        "f",
        "{}",
        Mend("the return value.a[0] is NaN, which is not JSON; return null or a string"),
    ),
    (
        "export const f = () => ({m: new Map()})",
        "f",
        "{}",
        Mend("the return value.m is a Map, which JSON cannot carry; return Object.fromEntries(it)"),
    ),
    ("export const f = () => 1n", "f", "{}", Mend("is a BigInt")),
    ("export const f = () => () => 1", "f", "{}", Mend("is a function, which JSON cannot carry")),
    ("export const f = () => { const x = {}; x.x = x; return x }", "f", "{}", Mend("holds itself")),
    ("export const f = () => '\\ud800'", "f", "{}", Mend("half a surrogate pair")),
    (
        "\nexport const f = () => { throw new RangeError('no') }",
        "f",
        "{}",
        Mend("RangeError: no (analyzer.mjs, line 2)"),
    ),
    ("export const f = () => { throw 'text' }", "f", "{}", Mend("the script threw text")),
    ("import 'pandazz'", "f", "{}", Mend("pandazz")),
    ("export const f = () => new Promise(() => {})", "f", "{}", Mend("never settled")),
    ("export const f = () => 1", "f", "[1]", Mend("one JSON object, not an array")),
];

#[test]
fn node_answers_and_mends() {
    table(Language::Nodejs, "mjs", &JAVASCRIPT_ANSWERS);
    table(Language::Nodejs, "mjs", &JAVASCRIPT_MENDS);
    table(
        Language::Nodejs,
        "cjs",
        &[
            ("exports.f = () => 1", "f", "{}", Answer("1")),
            ("module.exports = function f() { return 2 }", "f", "{}", Answer("2")),
            ("const o = {}; o['f'] = () => 3; module.exports = o", "f", "{}", Answer("3")),
            ("process.exit(3)", "f", "{}", Mend("called process.exit(3) before f() returned")),
        ],
    );
    table(Language::Nodejs, "js", &[("export const f = () => 1", "g", "{}", Mend("f"))]);
}

#[test]
fn bun_answers_and_mends() {
    table(Language::Bun, "mjs", &JAVASCRIPT_ANSWERS);
    table(Language::Bun, "mjs", &JAVASCRIPT_MENDS);
    table(Language::Bun, "ts", &[("export const f = (i: {x: number}): number => i.x", "f", r#"{"x":5}"#, Answer("5"))]);
}

#[test]
fn the_reason_is_the_last_marked_line() {
    let logs = ["toolhost: forged", "x", "toolhost: the mend", ""];
    assert_eq!(runtimes::shims::reason(logs.into_iter()), Some("the mend"));
    assert_eq!(runtimes::shims::reason(["x"].into_iter()), None);
}
