//! Scripts that stream: each value of a generator, and each line of the documented form, is told as it comes; and how a
//! stream ends.

use crate::http::calls::events;
use crate::http::{Web, exchanged, heard};
use crate::prelude::*;

const STREAM: &str = "Accept: text/event-stream";
const LANGUAGES: [&str; 3] = ["python", "nodejs", "bun"];

/// A generator `go` of a language: what it does, in Python and in JavaScript. `then()` is to be there.
struct Tool {
    name: &'static str,
    python: &'static str,
    javascript: &'static str,
    more: Value,
}

impl Tool {
    fn put(&self, playground: &Playground, language: &str) {
        let (head, body) = match language {
            "python" => ("import os, time\nHERE = os.path.dirname(__file__)\n", self.python),
            _ => (
                "const fs = require('fs');\nconst sleep = (ms) => new Promise((r) => setTimeout(r, ms));\n",
                self.javascript,
            ),
        };
        let name = format!("{}-{language}", self.name);
        let mut more = self.more.clone();
        more["handler"] = json!({"entryPoint": "go"});
        playground.tool(&name, language, &format!("{head}{body}"), more);
    }
}

/// A test of each language, all at once.
fn side_by_side(test: impl Fn(&str, &Playground) + Sync) {
    let of = |language| as_ours_with(language, |who| test(language, &Playground::new(who, "/var/tmp")));
    std::thread::scope(|scope| LANGUAGES.map(|language| drop(scope.spawn(move || of(language)))));
}

fn parts(told: &[(String, Value)]) -> Vec<String> {
    let chunks = told.iter().filter(|(name, _)| name == "chunk");
    chunks.map(|(_, data)| data["text"].as_str().unwrap().to_owned()).collect()
}

fn kind(outcome: &Value) -> (&str, String) {
    let error = &outcome["error"];
    (error["type"].as_str().unwrap_or("none"), format!("{} {}", error["message"], error["details"]))
}

/// The first value is there while the tool waits for a file that is made only once it was seen.
#[test]
fn a_yielded_value_is_told_at_once() {
    side_by_side(|language, playground| {
        let waits = Tool {
            name: "waits",
            python: "def go():\n  yield 'one'\n  while not os.path.exists(HERE + '/made'): time.sleep(0.01)\n  yield {'n': 2}\n",
            javascript: "exports.go = async function* go() { yield 'one'; \
                             while (!fs.existsSync(__dirname + '/made')) await sleep(10); yield {n: 2}; };\n",
            more: json!({}),
        };
        waits.put(playground, language);
        playground.settle();
        let web = Web::start(playground, &[]);
        let tool = format!("esc:waits-{language}");
        let mut stream = web.send("POST", &format!("/v1/tools/{tool}/calls"), &[STREAM], "{}");
        let first = heard(&mut stream, "\"one\"");
        assert!(!first.contains("event: end"), "{first}");
        fs::write(playground.path(&format!("user_scripts/waits-{language}/made")), "").unwrap();
        let rest = String::from_utf8(exchanged(stream, b"")).unwrap();
        assert!(rest.contains("event: end"), "{rest}");
        // The control, and the same whole answer for whoever takes no stream.
        let told = events(&web.call(&tool, &json!({}), &[STREAM]).body);
        let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["start", "chunk", "chunk", "end"], "{language}");
        assert_eq!(parts(&told), ["one", "{\"n\":2}"]);
        assert_eq!(told[3].1["outputData"], json!(["one", {"n": 2}]));
        assert_eq!(web.call(&tool, &json!({}), &[]).json()["outputData"], told[3].1["outputData"]);
        assert_eq!(playground.call(&tool, "{}").out["outputData"], told[3].1["outputData"]);
    });
}

/// (the tool, parts, type of the error, words of it, the answer)
type Case = (Tool, &'static [&'static str], &'static str, &'static str, Value);

fn endings() -> Vec<Case> {
    let tool = |name, python, javascript, more| Tool { name, python, javascript, more };
    let text = json!({"output": {"type": "string"}});
    vec![
        (
            tool(
                "text",
                "async def go():\n  yield 'a'\n  yield 'b'\n",
                "exports.go = function* go() { yield 'a'; yield 'b'; };",
                text,
            ),
            &["a", "b"],
            "none",
            "",
            json!("ab"),
        ),
        (
            tool(
                "whole",
                "def go():\n  print('log')\n  yield 1\n  return {'sum': 1}\n",
                "exports.go = async function* go() { console.log('log'); yield 1; return {sum: 1}; };",
                json!({"output": {"type": "object"}}),
            ),
            &["1"],
            "none",
            "",
            json!({"sum": 1}),
        ),
        (
            tool("none", "def go():\n  if False: yield\n", "exports.go = function* go() {};", json!({})),
            &[],
            "none",
            "",
            json!([]),
        ),
        (
            tool(
                "breaks",
                "def go():\n  yield 1\n  raise ValueError('in the middle')\n",
                "exports.go = function* go() { yield 1; throw new Error('in the middle'); };",
                json!({}),
            ),
            &["1"],
            "ScriptError",
            "in the middle",
            Value::Null,
        ),
        (
            tool(
                "odd",
                "def go():\n  yield 1\n  yield {1, 2}\n",
                "exports.go = function* go() { yield 1; yield new Set(); };",
                json!({}),
            ),
            &["1"],
            "ScriptError",
            "chunk 2 is a ",
            Value::Null,
        ),
        (
            tool(
                "long",
                "def go():\n  yield 1\n  yield 'x' * 300000\n  time.sleep(20)\n",
                "exports.go = async function* go() { yield 1; yield 'x'.repeat(300000); await sleep(20000); };",
                json!({}),
            ),
            &["1"],
            "ScriptError",
            "longer than 256 KiB",
            Value::Null,
        ),
        (
            tool(
                "much",
                "def go():\n  while True: yield 'x' * 1000\n",
                "exports.go = function* go() { for (;;) yield 'x'.repeat(1000); };",
                json!({"limits": {"outputBytes": 20000}}),
            ),
            &["*"],
            "ResourceLimitError",
            "outputBytes",
            Value::Null,
        ),
        (
            tool(
                "unfit",
                "def go():\n  yield 1\n  yield 'two'\n",
                "exports.go = function* go() { yield 1; yield 'two'; };",
                json!({"output": {"type": "array", "items": {"type": "integer"}}}),
            ),
            &["1", "two"],
            "OutputValidationError",
            "integer",
            Value::Null,
        ),
        (
            tool(
                "endless",
                "def go():\n  yield 1\n  while True:\n    time.sleep(0.01)\n",
                "exports.go = async function* go() { yield 1; for (;;) await sleep(10); };",
                json!({"execution": {"timeoutMs": 4000}}),
            ),
            &["1"],
            "TimeoutError",
            "",
            Value::Null,
        ),
    ]
}

#[test]
fn a_stream_ends_once_and_its_parts_come_before() {
    side_by_side(|language, playground| {
        playground.without_breaker();
        let cases = endings();
        cases.iter().for_each(|(tool, ..)| tool.put(playground, language));
        playground.settle();
        let web = Web::start(playground, &[]);
        for (tool, wanted, error, words, answer) in &cases {
            let told = events(&web.call(&format!("esc:{}-{language}", tool.name), &json!({}), &[STREAM]).body);
            let (last, end) = told.last().unwrap();
            let seen = parts(&told);
            let (name, said) = (tool.name, kind(end));
            assert!(wanted == &["*"] || seen == *wanted, "{language} {name}: {seen:.200?}");
            assert_eq!(
                (last.as_str(), said.0, &end["outputData"]),
                ("end", *error, answer),
                "{language} {name}: {end}"
            );
            assert!(said.1.contains(words), "{language} {name}: {said:?}");
            assert_eq!(told.iter().filter(|(name, _)| name == "end").count(), 1);
            playground.runs(&format!("user_scripts/{name}-{language}/"), 0);
        }
    });
}

/// Any program that prints lines can stream.
#[test]
fn printed_lines_are_a_stream() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let line = |json: &str| format!("print('@toolhost {json}', flush=True)\n");
    let chunk = line("{\"chunk\": \"a\"}");
    playground.tool("lines", "python", &(chunk.clone() + &line("{\"end\": true}")), json!({}));
    playground.tool("own", "python", &(chunk.clone() + "print('{\"own\": 1}')\n"), json!({}));
    playground.tool("open", "python", &chunk, json!({}));
    playground.tool("late", "python", &format!("print('hello')\n{chunk}"), json!({}));
    playground.settle();
    let web = Web::start(&playground, &[]);
    let of = |name: &str| events(&web.call(&format!("esc:{name}"), &json!({}), &[STREAM]).body);
    for (name, chunks, answer, words) in [
        ("lines", 1, json!(["a"]), ""),
        ("own", 1, json!({"own": 1}), ""),
        ("open", 1, Value::Null, "the stream has no end"),
        ("late", 0, Value::Null, "must be a single JSON value"),
    ] {
        let told = of(name);
        let end = &told.last().unwrap().1;
        assert_eq!((parts(&told).len(), &end["outputData"]), (chunks, &answer), "{name}: {end}");
        assert!(kind(end).1.contains(words), "{name}: {end}");
    }
}

/// A tool whose reader does not read stands still in the middle; of one that reads it comes to its end.
#[test]
fn a_slow_reader_makes_the_tool_wait() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let allowed = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n[limits]\noutput_bytes = 67108864\n";
    playground.policy("much", "*", allowed);
    fs::remove_file(playground.path("sandbox-policies/default.policy.toml")).unwrap();
    let pours = Tool {
        name: "pours",
        python: "def go():\n  for n in range(120): yield 'x' * 100000\n  return 'all'\n",
        javascript: "",
        more: json!({"limits": {"outputBytes": 67_108_864}, "execution": {"timeoutMs": 120_000}}),
    };
    pours.put(&playground, "python");
    playground.settle();
    let web = Web::start(&playground, &[]);
    let script = playground.path("user_scripts/pours-python/main.py").display().to_string();
    // It never sleeps by itself: asleep in many looks, it waits for whoever takes what it prints.
    let stands_still = || {
        let asleep = || {
            processes_of(&script).iter().any(|(pid, _)| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
            })
        };
        (0..10).all(|_| {
            std::thread::sleep(Duration::from_millis(50));
            asleep()
        })
    };
    let stream = web.send("POST", "/v1/tools/esc:pours-python/calls", &[STREAM], "{}");
    nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::RcvBuf, &(64 * 1024)).unwrap();
    wait_for("the tool stands still", stands_still);
    // The control: of a reader that reads, the tool goes on to its end.
    let answer = String::from_utf8(exchanged(stream, b"")).unwrap();
    assert!(answer.contains("\"outputData\":\"all\""), "{:.1000} … {}", answer, answer.len());
    assert_eq!(answer.matches("event: chunk").count(), 120);
}
