//! The `entryPoint` shims, run by the real interpreters outside the walls: answers, and messages that name the fix.

use crate::prelude::*;
use Expect::{Answer, Fix};
use std::ffi::OsString;
use toolhost::manifest::Language;
use toolhost::policy::{Program, Runtime};
use toolhost::runtimes;

/// This machine's interpreter, or `None` after saying so; in CI a missing one fails.
fn interpreter(language: Language) -> Option<Runtime> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found = runtimes::discover(&path, &runtimes::OffLimits::default()).runtimes.remove(&language);
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
    /// The last line of stderr, which is the fix.
    fn fix(&self) -> &str {
        self.err.lines().next_back().unwrap_or("").strip_prefix("toolhost: ").unwrap_or("")
    }
}

/// Runs `entry` of a script called `name` with that text.
fn run(runtime: &Runtime, name: &str, text: &str, entry: &str, input: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join(name);
    std::fs::write(&script, text).expect("script");
    std::fs::write(folder.path().join("helper.py"), HELPER_PY).expect("sibling");
    std::fs::write(folder.path().join("helper.mjs"), HELPER_MJS).expect("sibling");
    std::fs::write(folder.path().join("helper.cjs"), HELPER_CJS).expect("sibling");
    let guest = runtimes::shim_path(runtime.language).expect("a shim");
    let own = tempfile::tempdir().expect("a temporary folder");
    let shim = own.path().join(Path::new(guest).file_name().expect("a name"));
    std::fs::write(&shim, runtimes::shim_source(runtime.language).expect("a shim")).expect("shim");
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

/// What is expected: the exact answer, or a part of the fix.
enum Expect {
    Answer(&'static str),
    Fix(&'static str),
}

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
            Fix(part) => {
                assert!(ran.fix().contains(part), "{text}\nwanted: {part}\ngot: {}\n{}", ran.fix(), ran.err);
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
fn python_names_the_fix() {
    let cyclic = "def f():\n  x = []\n  x.append(x)\n  return x";
    table(
        Language::Python,
        "py",
        &[
            (
                "def analyze(): pass\nimport os",
                "analyse",
                "{}",
                Fix("has no function 'analyse'; did you mean 'analyze'?"),
            ),
            ("X = 1", "X", "{}", Fix("'X' in analyzer.py is an int, not a function")),
            ("def f(a): pass", "f", r#"{"b":1}"#, Fix("f() has no parameter 'b'; it takes: a")),
            ("def f(a): pass", "f", "{}", Fix("f() needs 'a', which was not given")),
            (
                "def f(): return {'a': [1, float('nan')]}",
                "f",
                "{}",
                Fix("the return value['a'][1] is nan, which is not JSON; return None or a string"),
            ),
            ("def f(): return 2**64", "f", "{}", Fix("more than 64 bits")),
            ("def f(): return '\\ud800'", "f", "{}", Fix("half a surrogate pair")),
            (cyclic, "f", "{}", Fix("holds itself")),
            ("def f():\n  return 1/0", "f", "{}", Fix("ZeroDivisionError: division by zero (analyzer.py, line 2)")),
            ("def f(:", "f", "{}", Fix("SyntaxError")),
            ("import sys\ndef f(): sys.exit(1)", "f", "{}", Fix("called sys.exit() before f() returned")),
            ("def f(): pass", "f", "[1]", Fix("one JSON object, not a list")),
        ],
    );
}

/// What lies beside the script in the tests of `own`.
const HELPER_PY: &str = "import functools\nNAME = 'sibling'\ndef run(**k): return 'imported'\n\
    def bare(f):\n  def inner(**k): return f(**k)\n  return inner\n\
    def wraps(f):\n  @functools.wraps(f)\n  def inner(**k): return f(**k)\n  return inner\n\
    class Base:\n  @staticmethod\n  def go(): return 'inherited'\n\
    class Kept:\n  def __init__(self, f): self.f = f\n  def __call__(self, **k): return self.f(**k)\n";

/// An entry point is something that the script itself defines: what it only imports is nobody's to call.
#[test]
fn python_calls_only_what_the_script_defines() {
    const NOT_ITS_OWN: &str = "is not defined in analyzer.py, which only has it from elsewhere";
    const NONE: &str = "has no function";
    let own = |text, entry| (text, entry, "{}", Answer("1"));
    let not = |text, entry| (text, entry, "{}", Fix(NOT_ITS_OWN));
    let none = |text, entry| (text, entry, "{}", Fix(NONE));
    table(
        Language::Python,
        "py",
        &[
            none("import os\ndef f(): pass", "os.system"),
            none("import os\nrun = os", "run.system"),
            not("from os import system", "system"),
            not("import os\nx = os.system", "x"),
            not("import os\nglobals()['x'] = os.system", "x"),
            not("x = eval", "x"),
            not("from helper import run", "run"),
            not("from helper import *", "run"),
            own("from helper import *\ndef run(): return 1", "run"),
            own("x = lambda: 1", "x"),
            // Decorated, whatever the decorator made of it.
            own("import helper\n@helper.bare\ndef run(): return 1", "run"),
            own("import helper\n@helper.bare\n@helper.wraps\n@helper.bare\ndef run(): return 1", "run"),
            own("import helper\n@helper.Kept\ndef run(): return 1", "run"),
            own("import functools\n@functools.lru_cache\ndef run(): return 1", "run"),
            not("import helper\ndef log(): pass\nrun = helper.bare(log)", "run"),
            own("import functools\ndef g(a): return a\nrun = functools.partial(g, a=1)", "run"),
            not("import functools, os\nrun = functools.partial(os.system, 'true')", "run"),
            // Classes and their methods.
            own("class T:\n  def __call__(self): return 1\nrun = T()", "run"),
            own("class T:\n  def go(self): return 1\nrun = T().go", "run"),
            own("class A:\n  class B:\n    @classmethod\n    def go(cls): return 1", "A.B.go"),
            none("import helper\nclass T(helper.Base): pass", "T.go"),
            not("import helper\nclass T:\n  go = helper.run", "T.go"),
            not("import subprocess\nclass T(subprocess.Popen): pass", "T"),
            none("class T: pass", "T.__init__"),
            none("class T: pass", "T.mro"),
            none("def f(): pass", "f.__globals__"),
            none("def f(): pass", "__builtins__.exec"),
            none("def f(): pass", "__import__"),
            none("def __getattr__(name):\n  import os\n  return os.system", "system"),
        ],
    );
}

#[test]
fn python_script_named_like_a_library() {
    let Some(runtime) = interpreter(Language::Python) else { return };
    let text = "def f():\n  import asyncio\n  return __name__";
    let ran = run(&runtime, "json.py", text, "f", "{}");
    assert_eq!(ran.out, "\"script_json\"\n", "{}", ran.err);
}

const JAVASCRIPT_ANSWERS: [(&str, &str, &str, Expect); 11] = [
    (
        "export function f({numbers}) { return {sum: numbers.length} }",
        "f",
        r#"{"numbers":[1,2]}"#,
        Answer(r#"{"sum":2}"#),
    ),
    ("export const f = async (i) => i.x", "f", r#"{"x":"ä"}"#, Answer("\"ä\"")),
    ("export default function f() { return 1 }", "f", "{}", Answer("1")),
    ("export default () => 2", "default", "{}", Answer("2")),
    ("class P { x = 1 }; export const f = () => new P()", "f", "{}", Answer(r#"{"x":1}"#)),
    ("export const f = () => Object.create(null)", "f", "{}", Answer("{}")),
    ("export const f = () => new URL('http://a/')", "f", "{}", Answer("\"http://a/\"")),
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

const JAVASCRIPT_FAULTS: [(&str, &str, &str, Expect); 11] = [
    ("export function g() {}", "f", "{}", Fix("exports no function 'f'; it exports: g")),
    ("export const f = 1", "f", "{}", Fix("'f' in analyzer.mjs is a number, not a function")),
    (
        "export const f = () => ({a: [NaN]})",
        "f",
        "{}",
        Fix("the return value.a[0] is NaN, which is not JSON; return null or a string"),
    ),
    (
        "export const f = () => ({a: (function* () { yield 1 })()})",
        "f",
        "{}",
        Fix("the return value.a is a Generator, which JSON cannot carry; return [...it]"),
    ),
    (
        "class P { #x = 1 }; export const f = () => new P()",
        "f",
        "{}",
        Fix("is a P, which JSON cannot carry; return a plain object"),
    ),
    ("export const f = () => 1n", "f", "{}", Fix("is a BigInt")),
    ("export const f = () => { const x = {}; x.x = x; return x }", "f", "{}", Fix("holds itself")),
    ("export const f = () => '\\ud800'", "f", "{}", Fix("half a surrogate pair")),
    (
        "\nexport const f = () => { throw new RangeError('no') }",
        "f",
        "{}",
        Fix("RangeError: no (analyzer.mjs, line 2)"),
    ),
    ("export const f = () => new Promise(() => {})", "f", "{}", Fix("never settled")),
    ("export const f = () => 1", "f", "[1]", Fix("one JSON object, not an array")),
];

const HELPER_MJS: &str = "import { execSync } from 'node:child_process'; export { execSync };\n\
    export function run(i) { return 'imported' }\nexport const ns = { deep: { run(i) { return 'deep' } } };\n\
    export class K { static go(i) { return 2 } }\nexport default function (i) { return 'default' }\n";
const HELPER_CJS: &str = "exports.run = function (i) { return 'imported' }; exports.os = require('os');\n";

/// The same for Node and Bun: re-exports, what is inherited, what the language brings.
#[test]
fn node_and_bun_call_only_what_the_script_defines() {
    const NOT_ITS_OWN: &str = "only has it from elsewhere; write a function of its own";
    let own = |text, entry| (text, entry, "{}", Answer("1"));
    let not = |text, entry| (text, entry, "{}", Fix(NOT_ITS_OWN));
    let modules = [
        not("export { execSync as run } from 'child_process'", "run"),
        not("import { execSync } from 'node:child_process'; export const run = execSync", "run"),
        not("import { execSync } from 'node:child_process'; export const run = execSync.bind(null)", "run"),
        not("import * as cp from 'node:child_process'; export default cp", "execSync"),
        not("import cp from 'child_process'; export default { ...cp, own: (i) => 1 }", "execSync"),
        own("import cp from 'child_process'; export default { ...cp, own: (i) => 1 }", "own"),
        not("export * from './helper.mjs'", "run"),
        not("export * from './helper.mjs'", "execSync"),
        not("export { default } from './helper.mjs'", "default"),
        not("import { ns } from './helper.mjs'; export const run = ns.deep.run", "run"),
        not("import { K } from './helper.mjs'; export const run = K.go", "run"),
        not("export const { run } = await import('./helper.mjs')", "run"),
        not("export default (i) => 1", "constructor"),
        not("export default (i) => 1", "call"),
        not("export default { a: 1 }", "hasOwnProperty"),
        not("export const run = eval", "run"),
        not("export const run = fetch", "run"),
        own("const f = async (i) => 1; export { f as run }", "run"),
        own("class A { run(i) { return 1 } }\nexport default new A()", "run"),
        own("export function run(i) { return typeof process.env.NODE_ENV === 'string' ? 1 : 1 }", "run"),
    ];
    let common = [
        not("module.exports = require('child_process')", "execSync"),
        not("module.exports.run = require('child_process').execSync", "run"),
        not("exports.run = require('./helper.cjs').run", "run"),
        not("exports.run = require('./helper.cjs').os.platform", "run"),
        own("exports.run = function (i) { return require('os').platform() ? 1 : 2 }", "run"),
        own("module.exports = { get run() { return (i) => 1 } }", "run"),
    ];
    for language in [Language::Nodejs, Language::Bun] {
        table(language, "mjs", &modules);
        table(language, "cjs", &common);
    }
    let typed = [
        not("import { run as r } from './helper.mjs'; export const run: any = r;", "run"),
        own("enum E { One = 1 }\nexport const run = (i: { x?: number }): number => i.x ?? E.One;", "run"),
    ];
    table(Language::Bun, "ts", &typed);
}

#[test]
fn node_answers_and_names_the_fix() {
    table(Language::Nodejs, "mjs", &JAVASCRIPT_ANSWERS);
    table(Language::Nodejs, "mjs", &JAVASCRIPT_FAULTS);
    table(
        Language::Nodejs,
        "cjs",
        &[
            ("exports.f = () => 1", "f", "{}", Answer("1")),
            ("module.exports = function f() { return 2 }", "f", "{}", Answer("2")),
            ("const o = {}; o['f'] = () => 3; module.exports = o", "f", "{}", Answer("3")),
            ("process.exit(3)", "f", "{}", Fix("called process.exit(3) before f() returned")),
        ],
    );
    table(Language::Nodejs, "js", &[("export const f = () => 1", "g", "{}", Fix("f"))]);
}

#[test]
fn bun_answers_and_names_the_fix() {
    table(Language::Bun, "mjs", &JAVASCRIPT_ANSWERS);
    table(Language::Bun, "mjs", &JAVASCRIPT_FAULTS);
    table(Language::Bun, "ts", &[("export const f = (i: {x: number}): number => i.x", "f", r#"{"x":5}"#, Answer("5"))]);
}

#[test]
fn the_reason_is_the_last_marked_line() {
    let logs = ["toolhost: forged", "x", "toolhost: the fix", ""];
    assert_eq!(runtimes::shim_reason(logs.into_iter()), Some("the fix"));
    assert_eq!(runtimes::shim_reason(["x"].into_iter()), None);
}
