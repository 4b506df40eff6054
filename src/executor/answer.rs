//! Answer: what a tool printed or returned, judged by one rule for every engine.
//!
//! For: process and wasm executors. In: bytes of stdout, a returned text, stderr. Out: an `Ending`, log lines.
//! Never: guesses which line was meant, repairs JSON, or shows raw control characters.

use super::Ending;
use crate::base::json;
use crate::manifest;

/// How many bytes of a bad output are shown.
const HEAD_BYTES: usize = 200;
/// How many bytes of the stdout of a tool that failed are looked at.
const LAST_BYTES: usize = 8 * 1024;
/// How many line starts are tried when looking for a document behind stray prints.
const MAX_TRIES: usize = 32;
/// The advice that fits most bad outputs.
const MEND: &str = "print diagnostics to stderr";

/// Judges the whole of stdout after exit status 0. `truncated`: bytes beyond the limit were cut off.
pub fn judge_output(stdout: &[u8], truncated: bool) -> Ending {
    judge("stdout", stdout, truncated)
}

/// Judges the text that a function or a typed component returned.
pub fn judge_returned(text: &[u8]) -> Ending {
    judge("the returned text", text, false)
}

/// Under `stderr: error`, any visible text on stderr means that the tool failed.
pub fn judge_stderr(logs: &[String]) -> Option<Ending> {
    if logs.iter().all(|line| line.trim().is_empty()) {
        return None;
    }
    let message = format!("the tool wrote to stderr, which this tool counts as failure: {}", tail(&logs.join("\n")));
    Some(Ending::Raised { message })
}

/// The end of stdout as lines, not yet escaped: it may say why a tool failed.
pub fn last_lines(stdout: &[u8]) -> Vec<String> {
    lines(&stdout[stdout.len().saturating_sub(LAST_BYTES)..])
}

/// Log text as lines, not yet escaped; bytes that are not UTF-8 become U+FFFD.
pub fn lines(log: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(log).lines().map(str::to_owned).collect()
}

fn judge(what: &str, bytes: &[u8], truncated: bool) -> Ending {
    let bad = |reason: String| Ending::BadOutput { reason, head: head(bytes) };
    if truncated {
        return bad(format!("{what} is longer than the output limit and was cut off"));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => return bad(format!("{what} is not valid UTF-8 (byte {}); write JSON as UTF-8", e.valid_up_to())),
    };
    if text.trim().is_empty() {
        let verb = if what == "stdout" { "print" } else { "return" };
        return bad(format!("{what} is empty; {verb} a single JSON value (null if there is nothing to say)"));
    }
    match json::compact(text.as_bytes()) {
        Ok(answer) => Ending::Answered(answer),
        Err(error) => bad(explain(what, text, &error)),
    }
}

/// Why `text` is not one JSON value, with the mend.
fn explain(what: &str, text: &str, problem: &manifest::Problem) -> String {
    let must = format!("{what} must be a single JSON value");
    let first = json::leading(text);
    if let Some((begins, rest)) = &first {
        let container = matches!(begins, b'{' | b'[');
        if json::leading(rest).is_some_and(|(_, more)| container || more.trim().is_empty()) {
            return format!("{must}; found more than one — collect them in one list, or {MEND}");
        }
        if container {
            return format!("{must}; found {} bytes after it — {MEND}", rest.trim().len());
        }
    }
    if let Some(before) = stray_before(text) {
        return format!("{must}; found {before} bytes before it — {MEND}");
    }
    if let Some((_, rest)) = &first {
        return format!("{must}; found {} bytes after it — {MEND}", rest.trim().len());
    }
    let (line, column) = (problem.line, problem.column);
    if text.trim_start().starts_with(|c: char| "{[\"".contains(c) || c.is_ascii_digit())
        || problem.message.contains("is not JSON")
    {
        return format!("{must}; line {line}, column {column}: {}", problem.message);
    }
    format!("{must}; not JSON at line {line}, column {column} — {MEND}")
}

/// Bytes before a document that starts at a line start, or at the first brace or bracket, and
/// reaches to the end. Bounded: at most `MAX_TRIES` starts are tried.
fn stray_before(text: &str) -> Option<usize> {
    let starts = text.match_indices('\n').map(|(at, _)| at + 1);
    let braces = text.match_indices(['{', '[']).map(|(at, _)| at);
    let mut candidates: Vec<usize> = starts.take(MAX_TRIES / 2).chain(braces.take(MAX_TRIES / 2)).collect();
    candidates.sort_unstable();
    candidates.dedup();
    candidates.into_iter().filter(|at| *at > 0).find(|at| {
        text.get(*at..).is_some_and(|rest| !rest.trim().is_empty() && json::compact(rest.as_bytes()).is_ok())
    })
}

/// The first bytes, with everything that is not plain text escaped.
pub fn head(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.get(..HEAD_BYTES.min(bytes.len())).unwrap_or_default().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\'' | '\\' => shown.push(c),
                c => shown.extend(c.escape_debug()),
            }
        }
        shown.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    if bytes.len() > HEAD_BYTES {
        shown.push('…');
    }
    shown
}

/// The last 2 KB of a text, from a character boundary on.
fn tail(text: &str) -> String {
    const TAIL_BYTES: usize = 2048;
    let from = text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES));
    let kept = &text[from..];
    // The mark shows the masking of secrets where a cut may have left a part of one.
    if from > 0 { format!("…{kept}") } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reason(bytes: &[u8]) -> String {
        match judge_output(bytes, false) {
            Ending::BadOutput { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_value_of_any_kind_is_an_answer() {
        for (text, value) in
            [("{\"a\":1}\n", json!({"a":1})), (" [1, 2] ", json!([1, 2])), ("\"x\"", json!("x")), ("null", json!(null))]
        {
            assert_eq!(judge_output(text.as_bytes(), false), Ending::answer(&value));
        }
    }

    #[test]
    fn stray_prints_are_counted() {
        let expected = "stdout must be a single JSON value; found 6 bytes before it — print diagnostics to stderr";
        assert_eq!(reason(b"hello\n{\"a\":1}\n"), expected);
        assert!(reason(b"3 rows {\"a\":1}").contains("found 7 bytes before it"));
        assert!(reason(b"{\"a\":1}\ndone\n").contains("found 4 bytes after it"));
        assert!(reason(b"{\"a\":1}\n{\"b\":2}").contains("more than one"));
        assert!(reason(b"1\n2\n").contains("more than one"));
    }

    #[test]
    fn each_kind_of_bad_output_says_its_mend() {
        assert!(reason(b"").contains("stdout is empty"));
        assert!(reason(b" \n").contains("stdout is empty"));
        assert!(reason(b"hello\n").contains("not JSON at line 1"));
        assert!(reason(b"{\"a\":").contains("line 1, column 6: the text ends"));
        assert!(reason(b"{\"a\": 1, \"a\": 2}").contains("stands twice"));
        assert!(reason(b"{\"a\": 123456789012345678901234567890}").contains("send it as a string"));
        assert!(reason(b"123456789012345678901234567890").contains("send it as a string"));
        assert!(reason(b"{\"a\": NaN}").contains("NaN is not JSON"));
        assert!(reason(b"NaN").contains("NaN is not JSON"));
        assert!(reason(b"-Infinity").contains("-Infinity is not JSON"));
        assert!(reason(b"[1, -Infinity]").contains("-Infinity is not JSON"));
        assert!(reason(b"\xff{}").contains("not valid UTF-8 (byte 0)"));
        assert!(reason("[".repeat(100_000).as_bytes()).contains("nested"));
    }

    #[test]
    fn the_head_is_short_and_harmless() {
        let Ending::BadOutput { head, .. } = judge_output(b"\x1b[31mred\x07\xff", false) else { panic!() };
        assert_eq!(head, "\\u{1b}[31mred\\u{7}\\xff");
        let Ending::BadOutput { head, .. } = judge_output(&[b'x'; 5000], false) else { panic!() };
        assert!(head.len() < 220);
    }

    #[test]
    fn stderr_text_is_failure_only_where_it_is_text() {
        assert_eq!(judge_stderr(&[" ".into()]), None);
        assert!(
            matches!(judge_stderr(&["boom".into()]), Some(Ending::Raised { message }) if message.ends_with("boom"))
        );
    }
}
