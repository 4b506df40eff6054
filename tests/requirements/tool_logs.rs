//! What is kept of a tool's log, and the run log of a call.

use super::files;
use crate::prelude::*;

/// Floods stderr between a first and a last word.
const FLOOD: &str = "import json, os, sys\nsize = json.load(sys.stdin)['bytes']\nos.write(2, \
    b'FIRST WORD\\n')\nleft = size\nwhile left > 0:\n    left -= os.write(2, (b'x' * 99 + b'\\n') \
    * 600)\nos.write(2, b'LAST WORD\\n')\nsys.stderr.flush()\nprint(size - left)\n";

/// What this host keeps by default. (A limit of the manifest's own: `engines/limits.rs`.)
#[test]
fn a_flooded_log_keeps_its_head_and_its_tail() {
    const KEPT: u64 = 65_536;
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("flood", "python", FLOOD, json!({}));
    playground.settle();
    let ended = playground.expect("esc:flood", r#"{"bytes":10000000}"#, "ok");
    let wrote = ended.out["outputData"].as_u64().unwrap() + "FIRST WORD\nLAST WORD\n".len() as u64;
    let lines: Vec<String> = serde_json::from_value(ended.out["logs"].clone()).unwrap();
    let marks: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("bytes cut"))
        .collect();
    assert_eq!(
        (&*lines[0], &**lines.last().unwrap(), marks.len()),
        ("FIRST WORD", "LAST WORD", 1)
    );
    let cut: u64 = marks[0]
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap();
    assert_eq!(wrote - cut, KEPT, "{wrote} written, {cut} cut");
    // The mark itself stands beside what is kept.
    let kept = lines.join("\n").len() as u64;
    assert!(
        (KEPT / 2..=KEPT + 64).contains(&kept),
        "{kept} bytes are kept"
    );
    // The control: what fits is whole, without a mark.
    let ended = playground.call("esc:flood", r#"{"bytes":0}"#);
    assert_eq!(ended.out["logs"], json!(["FIRST WORD", "LAST WORD"]));
}

const SECRET: &str = "hunter2-very-secret";
/// Tells its secret to everybody, with a forged line of log after it.
const TALKER: &str = "import json, sys\ngiven = json.load(sys.stdin)\nprint('the token is', \
    given['token'], \
    file=sys.stderr)\nprint('{\"level\":\"ERROR\",\"forged\":true}\\n\\x1b[31mred', \
    file=sys.stderr)\nprint(json.dumps({'token': given['token'], 'n': given['n']}))\n";

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// One line for each call, with all its parts and nothing secret; the level decides whether it is
/// written.
#[test]
fn an_allowed_call_leaves_one_masked_line() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let secret = json!({"parameters": {"type": "object", "properties": {
        "token": {"type": "string", "description": "d", "writeOnly": true}, "n": {"type": "integer", "description": "d"}}}});
    let folder = playground.tool("talker", "python", TALKER, secret);
    playground.tool(
        "greedy",
        "python",
        "print(1)\n",
        files(&["/var/lib/none/**"], &[]),
    );
    playground.settle();
    let input = json!({"token": SECRET, "n": 7}).to_string();
    let call = |level: &str, tool: &str, input: &str| {
        let mut command = playground.host();
        command.args(["--log", level, "call", tool, "--input", input]);
        let ended = finish(command, b"");
        let of_calls = lines(&ended.stderr)
            .into_iter()
            .filter(|line| line["target"] == "toolhost::call")
            .collect();
        (ended, of_calls)
    };
    let (ended, of_calls): (Ended, Vec<Value>) = call("info,json", "esc:talker", &input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        !ended.text().contains(SECRET) && ended.text().contains("***"),
        "nor in the answer: {}",
        ended.text()
    );
    assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
    let [line] = &of_calls[..] else {
        panic!("{}", ended.stderr)
    };
    for (field, wanted) in [
        ("level", "INFO"),
        ("tool", "esc:talker@1.0.0"),
        ("result", "success"),
        ("parameters", r#"{"token":"***","n":7}"#),
        ("dependencies", ""),
        ("stdout", r#"{"token":"***","n":7}"#),
    ] {
        assert_eq!(line[field], wanted, "{field}: {line}");
    }
    assert!(
        line["command"]
            .as_str()
            .unwrap()
            .ends_with(&format!("{}/main.py", folder.display())),
        "{line}"
    );
    let heard = line["stderr"].as_str().unwrap();
    assert!(
        heard.starts_with("the token is ***") && heard.contains("forged"),
        "{heard}"
    );
    assert!(
        !heard.contains('\u{1b}') && !heard.contains('\n'),
        "{heard:?}"
    );
    assert!(
        line["duration_ms"].as_u64().is_some_and(|ms| ms > 0),
        "{line}"
    );
    let record = playground.records().pop().unwrap();
    assert!(
        line["call"] == record["call"] && !record.to_string().contains(SECRET),
        "{record}"
    );
    // (level of the log, tool, input, level of its line).
    for (level, tool, input, wanted) in [
        ("warn,json", "esc:talker", &*input, None),
        // A traceback, since it has no token: the tool's own fault, and none of the operator's.
        ("info,json", "esc:talker", r#"{"n":1}"#, Some("INFO")),
        ("warn,json", "esc:talker", r#"{"n":1}"#, None),
        ("error,json", "esc:greedy", "{}", Some("ERROR")),
        ("off,json", "esc:greedy", "{}", None),
    ] {
        let (ended, found) = call(level, tool, input);
        let levels: Vec<&str> = found
            .iter()
            .filter_map(|line| line["level"].as_str())
            .collect();
        assert_eq!(
            levels,
            Vec::from_iter(wanted),
            "{level} {tool} {input}: {}",
            ended.stderr
        );
        // Under `serve` the operator reads the fix here and nowhere else.
        let person = |line: &Value| line["person"].as_str().is_some_and(|text| !text.is_empty());
        assert!(
            found
                .iter()
                .all(|line| line["level"] == "INFO" || person(line)),
            "{}",
            ended.stderr
        );
    }
    // As text it is one line as well.
    let (ended, _) = call("info", "esc:talker", &input);
    let about: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.contains("toolhost::call"))
        .collect();
    assert!(
        about.len() == 1 && about[0].contains("***") && !ended.stderr.contains(SECRET),
        "{}",
        ended.stderr
    );
}
