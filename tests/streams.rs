//! Scripts that stream: each value of a generator, and each line of the documented form, is told as
//! it comes; and how a stream ends.

use crate::http::calls::events;
use crate::http::{Web, exchanged, heard};
use crate::prelude::*;

const STREAM: &str = "Accept: text/event-stream";
const LANGUAGES: [&str; 3] = ["python", "nodejs", "bun"];

/// A tool of one generator, which is a function of `streams/tools.py` and of `tools.js`.
fn put(playground: &Playground, name: &str, language: &str, mut more: Value) {
    more["handler"] = json!({"entryPoint": name});
    let script = if language == "python" {
        include_str!("streams/tools.py")
    } else {
        include_str!("streams/tools.js")
    };
    playground.tool(&format!("{name}-{language}"), language, script, more);
}

/// A test of each language, all at once.
fn side_by_side(test: impl Fn(&str, &Playground) + Sync) {
    let of = |language| {
        as_ours_with(language, |who| {
            test(language, &Playground::new(who, "/var/tmp"))
        })
    };
    std::thread::scope(|scope| LANGUAGES.map(|language| drop(scope.spawn(move || of(language)))));
}

fn parts(told: &[(String, Value)]) -> Vec<String> {
    let chunks = told.iter().filter(|(name, _)| name == "chunk");
    chunks
        .map(|(_, data)| data["text"].as_str().unwrap().to_owned())
        .collect()
}

fn kind(outcome: &Value) -> (&str, String) {
    let error = &outcome["error"];
    (
        error["type"].as_str().unwrap_or("none"),
        format!("{} {}", error["message"], error["details"]),
    )
}

/// The first value is there while the tool waits for a file that is made only once it was seen.
#[test]
fn a_yielded_value_is_told_at_once() {
    side_by_side(|language, playground| {
        put(playground, "waits", language, json!({}));
        playground.settle();
        let web = Web::start(playground, &[]);
        let tool = format!("esc:waits-{language}");
        let mut stream = web.send("POST", &format!("/v1/tools/{tool}/calls"), &[STREAM], "{}");
        let first = heard(&mut stream, "\"one\"");
        assert!(!first.contains("event: end"), "{first}");
        fs::write(
            playground.path(&format!("user_scripts/waits-{language}/made")),
            "",
        )
        .unwrap();
        let rest = String::from_utf8(exchanged(stream, b"")).unwrap();
        assert!(rest.contains("event: end"), "{rest}");
        // The control, and the same whole answer for whoever takes no stream.
        let told = events(&web.call(&tool, &json!({}), &[STREAM]).body);
        let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["start", "chunk", "chunk", "end"], "{language}");
        assert_eq!(parts(&told), ["one", "{\"n\":2}"]);
        assert_eq!(told[3].1["outputData"], json!(["one", {"n": 2}]));
        assert_eq!(
            web.call(&tool, &json!({}), &[]).json()["outputData"],
            json!(["one", {"n": 2}])
        );
        playground.expect(&tool, "{}", r#"ok ["one",{"n":2}]"#);
    });
}

#[test]
fn a_stream_ends_once_and_its_parts_come_before() {
    // Name, what its manifest says, parts, type of the error, words of it, the answer. `*`: any
    // parts.
    let integers = json!({"output": {"type": "array", "items": {"type": "integer"}}});
    let cases: [(_, _, &[&str], _, _, _); 9] = [
        (
            "text",
            json!({"output": {"type": "string"}}),
            &["a", "b"],
            "none",
            "",
            json!("ab"),
        ),
        (
            "whole",
            json!({"output": {"type": "object"}}),
            &["1"],
            "none",
            "",
            json!({"sum": 1}),
        ),
        ("none", json!({}), &[], "none", "", json!([])),
        (
            "breaks",
            json!({}),
            &["1"],
            "ScriptError",
            "in the middle",
            json!(null),
        ),
        (
            "odd",
            json!({}),
            &["1"],
            "ScriptError",
            "chunk 2 is a ",
            json!(null),
        ),
        (
            "long",
            json!({}),
            &["1"],
            "ScriptError",
            "longer than 256 KiB",
            json!(null),
        ),
        (
            "much",
            json!({"limits": {"outputBytes": 20000}}),
            &["*"],
            "ResourceLimitError",
            "outputBytes",
            json!(null),
        ),
        (
            "unfit",
            integers,
            &["1", "two"],
            "OutputValidationError",
            "integer",
            json!(null),
        ),
        (
            "endless",
            json!({"execution": {"timeoutMs": 4000}}),
            &["1"],
            "TimeoutError",
            "",
            json!(null),
        ),
    ];
    side_by_side(|language, playground| {
        playground.without_breaker();
        cases
            .iter()
            .for_each(|(name, more, ..)| put(playground, name, language, more.clone()));
        playground.settle();
        let web = Web::start(playground, &[]);
        for (name, _, wanted, error, words, answer) in &cases {
            let call = || {
                let tool = format!("esc:{name}-{language}");
                events(&web.call(&tool, &json!({}), &[STREAM]).body)
            };
            let (began, mut told) = (Instant::now(), call());
            // The machine is busy: the tool did not begin within its time limit.
            while *error == "TimeoutError" && parts(&told).is_empty() && began.elapsed() < PATIENCE
            {
                told = call();
            }
            let (last, end) = told.last().unwrap();
            let (seen, (kind, said)) = (parts(&told), kind(end));
            assert!(
                wanted == &["*"] || seen == *wanted,
                "{language} {name}: {seen:.200?}"
            );
            let ended = (last.as_str(), kind, &end["outputData"]);
            assert_eq!(ended, ("end", *error, answer), "{language} {name}: {end}");
            assert!(said.contains(words), "{language} {name}: {said}");
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
    playground.tool(
        "lines",
        "python",
        &(chunk.clone() + &line("{\"end\": true}")),
        json!({}),
    );
    playground.tool(
        "own",
        "python",
        &(chunk.clone() + "print('{\"own\": 1}')\n"),
        json!({}),
    );
    playground.tool("open", "python", &chunk, json!({}));
    playground.tool(
        "late",
        "python",
        &format!("print('hello')\n{chunk}"),
        json!({}),
    );
    playground.settle();
    let web = Web::start(&playground, &[]);
    for (name, chunks, answer, words) in [
        ("lines", 1, json!(["a"]), ""),
        ("own", 1, json!({"own": 1}), ""),
        ("open", 1, Value::Null, "the stream has no end"),
        ("late", 0, Value::Null, "must be a single JSON value"),
    ] {
        let told = events(&web.call(&format!("esc:{name}"), &json!({}), &[STREAM]).body);
        let end = &told.last().unwrap().1;
        assert_eq!(
            (parts(&told).len(), &end["outputData"]),
            (chunks, &answer),
            "{name}: {end}"
        );
        assert!(kind(end).1.contains(words), "{name}: {end}");
    }
}

/// A tool whose reader does not read stands still in the middle; of one that reads it comes to its
/// end.
#[test]
fn a_slow_reader_makes_the_tool_wait() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let allowed = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n[limits]\noutput_bytes \
        = 67108864\n";
    playground.policy("much", "*", allowed);
    fs::remove_file(playground.path("sandbox-policies/default.policy.toml")).unwrap();
    let more = json!({"limits": {"outputBytes": 67_108_864}, "execution": {"timeoutMs": 120_000}});
    put(&playground, "pours", "python", more);
    playground.settle();
    let web = Web::start(&playground, &[]);
    let script = playground
        .path("user_scripts/pours-python/main.py")
        .display()
        .to_string();
    // It never sleeps by itself: asleep in many looks, it waits for whoever takes what it prints.
    let stands_still = || {
        let asleep = || {
            processes_of(&script).iter().any(|(pid, _)| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|rest| rest.starts_with('S'))
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
    assert!(
        answer.contains("\"outputData\":\"all\""),
        "{:.1000} … {}",
        answer,
        answer.len()
    );
    assert_eq!(answer.matches("event: chunk").count(), 120);
}
