//! What a tool printed or returned, judged by one rule for every engine: one JSON value is the answer, and text is one
//! where the manifest says so. Nothing is guessed or repaired.

use super::Ending;
use crate::base::json;
use crate::base::problem::Problem;

/// How many bytes of a bad output are looked at: more than are shown, since secrets beside the cut are hidden.
const HEAD_BYTES: usize = 4096;
/// Of a tool that wrote to stderr where that is failure; the end of stderr is added once its secrets are hidden.
pub const NOISY: &str = "the tool wrote to stderr, which this tool counts as failure";
/// How many bytes of the stdout of a tool that failed are looked at.
const LAST_BYTES: usize = 8 * 1024;

/// Judges all of stdout (`what`) after exit status 0, or the text that a function or a typed component returned.
/// `is_text`: what is not one JSON value is the answer as text, without the line breaks at its end.
pub fn judge(what: &str, bytes: &[u8], is_text: bool) -> Ending {
    let bad = |reason: String| Ending::BadOutput { reason, head: head(bytes) };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => return bad(format!("{what} is not valid UTF-8 (byte {}); write UTF-8", e.valid_up_to())),
    };
    match json::compact(bytes) {
        Ok(answer) => Ending::Answered(answer),
        Err(_) if is_text => Ending::answer(&text.trim_end_matches(['\r', '\n']).into()),
        Err(_) if text.trim().is_empty() => bad(format!("{what} is empty; it must be a single JSON value")),
        Err(Problem { line, column, message, .. }) => bad(format!(
            "{what} must be a single JSON value; not JSON at line {line}, column {column}: {message} — print diagnostics to \
             stderr"
        )),
    }
}

/// Under `stderr: error`, any visible text on stderr means that the tool failed.
pub fn judge_stderr(logs: &[String]) -> Option<Ending> {
    if logs.iter().all(|line| line.trim().is_empty()) {
        return None;
    }
    Some(Ending::Raised { message: NOISY.to_owned() })
}

/// The end of stdout as lines, not yet escaped: it may say why a tool failed.
pub fn last_lines(stdout: &[u8]) -> Vec<String> {
    let from = stdout.len().saturating_sub(LAST_BYTES);
    let mut lines = lines(&stdout[from..]);
    if from > 0 {
        lines.iter_mut().take(1).for_each(|first| first.insert(0, '…'));
    }
    lines
}

/// Log text as lines, not yet escaped; bytes that are not UTF-8 become U+FFFD.
pub fn lines(log: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(log).lines().map(str::to_owned).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_json_value_is_the_answer_and_text_is_one_where_it_is_said() {
        let values = [
            ("{\"a\":1}\n", json!({"a":1})),
            (" [1, 2] ", json!([1, 2])),
            ("\"x\"", json!("x")),
            ("null", json!(null)),
        ];
        for (text, value) in values {
            assert_eq!(judge("stdout", text.as_bytes(), false), Ending::answer(&value));
            assert_eq!(judge("stdout", text.as_bytes(), true), Ending::answer(&value));
        }
        let texts = [
            ("", "", "stdout is empty"),
            ("hello\r\n\n", "hello", "line 1, column 1"),
            (" a\nb ", " a\nb ", "line 1, column 2"),
            ("{\"a\":1}\n{}", "{\"a\":1}\n{}", "more than one"),
            ("{\"a\":", "{\"a\":", "the text ends"),
            ("{\"a\": 1, \"a\": 2}", "{\"a\": 1, \"a\": 2}", "stands twice"),
            ("123456789012345678901234567890", "123456789012345678901234567890", "send it as a string"),
            ("[1, NaN]", "[1, NaN]", "NaN is not JSON"),
        ];
        for (printed, text, why) in texts {
            let ending = judge("stdout", printed.as_bytes(), false);
            assert!(matches!(&ending, Ending::BadOutput { reason, .. } if reason.contains(why)), "{ending:?}");
            assert_eq!(judge("stdout", printed.as_bytes(), true), Ending::answer(&json!(text)));
        }
        assert!(matches!(judge("stdout", b"\xff{}", true), Ending::BadOutput { .. }));
    }

    #[test]
    fn the_head_is_short_and_harmless() {
        let Ending::BadOutput { head, .. } = judge("stdout", b"\x1b[31mred\x07\xff", false) else { panic!() };
        assert_eq!(head, "\\u{1b}[31mred\\u{7}\\xff");
        let Ending::BadOutput { head, .. } = judge("stdout", &[b'x'; 5000], false) else { panic!() };
        assert!(head.len() < HEAD_BYTES + 20);
    }

    #[test]
    fn stderr_text_is_failure_only_where_it_is_text() {
        assert_eq!(judge_stderr(&[" ".into()]), None);
        assert_eq!(judge_stderr(&["boom".into()]), Some(Ending::Raised { message: NOISY.to_owned() }));
    }
}
