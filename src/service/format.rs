//! Endings and answers as words: one mapping from how a tool ended to an error, without a catch-all, and the texts that an
//! agent reads, without a path of this host.

use super::shapes::{self, Shape};
use crate::base::json::Text;
use crate::base::text;
use crate::quantity::Limit;
use crate::{executor, fault};
use executor::Ending;
use executor::output::NOISY;
use fault::{Fault, Kind};
use serde_json::Value;

/// How much of stderr a failure carries, bytes.
const TAIL: usize = 2048;

/// What the ending means: the output, or the error. `printed`: the end of stdout. The record of the call masks and
/// escapes the fault's words.
pub fn judge(ending: Ending, logs: &[String], printed: &[String]) -> Result<Text, Fault> {
    match ending {
        Ending::Answered(answer) => Ok(answer),
        Ending::Exited { code } => {
            let fault = Fault::new(Kind::ScriptError, format!("Script exited with code {code}."));
            Err(told(fault, logs, printed, "It wrote nothing to stderr: let it print there why it fails."))
        }
        Ending::Signalled { signal } => {
            let message = format!("Script was killed by signal {}.", signal_name(signal));
            Err(told(Fault::new(Kind::ScriptError, message), logs, printed, cause(signal)))
        }
        Ending::TimedOut { limit_ms } => {
            let fault = Fault::new(Kind::TimeoutError, "Script execution timed out.");
            Err(told(fault.details(format!("The limit timeoutMs was {limit_ms} ms.")), logs, printed, ""))
        }
        Ending::OverLimit { limit, allowed } => Err(over_limit(limit, allowed)),
        Ending::BadOutput { reason, head } => {
            let mut fault = Fault::new(Kind::ScriptError, reason);
            // An empty answer began with nothing; the reason says so.
            fault.details = (!head.is_empty()).then(|| format!("InvalidOutput: it began with: {head}"));
            Err(told(fault, logs, &[], ""))
        }
        Ending::Raised { message } if message == NOISY => {
            let message = format!("{message}: {}", tail(logs));
            Err(told(Fault::new(Kind::ScriptError, message), &[], &[], ""))
        }
        Ending::Raised { message } | Ending::Trapped { message } => {
            Err(told(Fault::new(Kind::ScriptError, message), logs, &[], ""))
        }
        Ending::Cancelled => Err(cancelled()),
        Ending::Envelope { told, output } => opened(&told, output),
    }
}

/// The error of a call that was cancelled, whoever noticed it first.
pub fn cancelled() -> Fault {
    Fault::new(Kind::CancelledError, "The call was cancelled.").retryable()
}

/// The same where something of the call ran.
pub fn cancelled_midway(fault: Fault) -> Fault {
    let message = format!("{} It ran already; how far it came is not known.", fault.message);
    Fault { message, retryable: false, retry_after_ms: None, ..fault }
}

/// The error of a limit that was reached, naming it and its value.
pub fn over_limit(limit: Limit, allowed: u64) -> Fault {
    let message = match limit {
        Limit::TimeoutMs => return Fault::new(Kind::TimeoutError, "Script execution timed out."),
        // The caller can mend this, so it is a caller's error with the exit code of one.
        Limit::InputBytes => {
            let message = format!("The input is over the limit {} ({}).", limit.name(), amount(limit, allowed));
            return Fault::new(Kind::ParameterValidationError, message);
        }
        _ => format!("Script exceeded the limit {} ({}).", limit.name(), amount(limit, allowed)),
    };
    Fault::new(Kind::ResourceLimitError, message)
}

fn amount(limit: Limit, value: u64) -> String {
    match limit {
        Limit::TimeoutMs | Limit::CpuMs => format!("{value} ms"),
        Limit::MemoryBytes
        | Limit::ScratchBytes
        | Limit::FileBytes
        | Limit::WrittenBytes
        | Limit::InputBytes
        | Limit::OutputBytes
        | Limit::LogBytes
        | Limit::SentBytes
        | Limit::ReceivedBytes => format!("{value} bytes"),
        Limit::Processes => format!("{value} processes and threads"),
        Limit::OpenFiles => format!("{value} open files"),
        Limit::WrittenFiles => format!("{value} new files and folders"),
        Limit::Connections => format!("{value} connections at one time"),
    }
}

fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => format!("{} ({signal})", known.as_str()),
        Err(_) => signal.to_string(),
    }
}

/// The outcome that an envelope tells: its output, or its error under its own type.
fn opened(envelope: &Value, output: Option<Text>) -> Result<Text, Fault> {
    if envelope["success"] == true {
        return Ok(output.unwrap_or_else(|| Text::from(&Value::Null)));
    }
    let error = &envelope["error"];
    let words = |key: &str| error[key].as_str().map(str::to_owned);
    // A type that is not on the closed list is the method's own word: the service failed.
    let kind = serde_json::from_value(error["type"].clone()).unwrap_or(Kind::ServiceError);
    let mut fault = Fault::new(kind, words("message").unwrap_or_else(|| "The service reported a failure.".into()));
    fault.details = words("details");
    // An envelope does not say `retryable`: only a cancelled call is taken to be.
    fault.retryable = kind == Kind::CancelledError;
    Err(fault)
}

/// What a signal that no limit sent most likely means.
fn cause(signal: i32) -> &'static str {
    use nix::sys::signal::Signal;
    match Signal::try_from(signal) {
        Ok(Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGILL | Signal::SIGFPE | Signal::SIGABRT | Signal::SIGTRAP) => {
            "It crashed in native code (an extension module, or the interpreter)."
        }
        Ok(Signal::SIGKILL) => {
            "It ended itself so, or was ended from outside, for example by a machine that ran out of memory."
        }
        Ok(Signal::SIGTERM) => "It ended itself so, or was ended from outside.",
        _ => "",
    }
}

/// Adds the tail of stderr, which is what mends most scripts, and that of `printed`; `silent` where nothing else is
/// known.
fn told(mut fault: Fault, logs: &[String], printed: &[String], silent: &str) -> Fault {
    // A line of our own shim is the message already.
    let said = format!("toolhost: {}", fault.message);
    let logs: Vec<String> = logs.iter().filter(|line| **line != said).cloned().collect();
    let (stderr, stdout) = (tail(&logs), tail(printed));
    let stdout = Some(format!("stdout: {stdout}")).filter(|_| !stdout.is_empty());
    let alone = fault.details.is_none() && stdout.is_none();
    let stderr = Some(if alone { stderr.clone() } else { format!("stderr: {stderr}") }).filter(|_| !stderr.is_empty());
    let silent = Some(silent.to_owned()).filter(|words| alone && stderr.is_none() && !words.is_empty());
    let all = [fault.details.take(), stderr, stdout, silent].into_iter().flatten();
    fault.details = all.reduce(|all, more| all + "\n" + &more);
    fault
}

/// The last lines that fit; of a longer last line, its end.
fn tail(logs: &[String]) -> String {
    let mut lines = Vec::new();
    let mut room = TAIL;
    for line in logs.iter().rev() {
        if line.len() > room {
            if lines.is_empty() {
                let start = line.ceil_char_boundary(line.len() - room + '…'.len_utf8());
                lines.push(format!("…{}", &line[start..]));
            }
            break;
        }
        room = room.saturating_sub(line.len() + 1);
        lines.push(line.clone());
    }
    lines.reverse();
    lines.join("\n").trim().to_owned()
}

/// The observation of a success: `Tool <id> executed successfully. Output: <json>`. Of media in it only the size.
pub fn succeeded(tool: &str, output: &Text) -> String {
    let media = matches!(shapes::of(output.as_str()), Ok(Shape::Content(_)));
    let output = if media { &Text::from(&shapes::without_media(output.value())) } else { output };
    format!("Tool {tool} executed successfully. Output: {output}")
}

/// A fault as a model reads it: a line for each flaw, without the lines that say the same to programs.
pub fn for_model(fault: &Fault) -> Fault {
    let message = if fault.flaws.is_empty() { fault.message.clone() } else { fault.flaws.join("\n") };
    let lines = fault.details.iter().flat_map(|details| details.lines());
    let details = lines.filter(|line| !line.starts_with("pointer '")).collect::<Vec<_>>().join("\n");
    Fault { message, details: Some(details).filter(|details| !details.is_empty()), ..fault.clone() }
}

/// The observation of a failure. A message that ends in a full stop is not given a second one.
pub fn failed(tool: &str, fault: &Fault) -> String {
    let message = fault.message.strip_suffix('.').unwrap_or(&fault.message);
    let end = if message.ends_with('?') { "" } else { "." };
    let mut text = format!("Tool {tool} failed. Error type: {}. Message: {message}{end}", fault.kind);
    if let Some(details) = fault.details.as_deref().filter(|details| !details.is_empty()) {
        text.push_str(" Details: ");
        text.push_str(details);
    }
    text
}

/// The `response` text of the tool-service contract: a string untouched, else compact JSON.
pub fn response(output: &Text) -> String {
    output.string().unwrap_or_else(|| output.to_string())
}

/// What the caller can do about a failure, for a reader that is a model.
pub fn advice(fault: &Fault) -> Option<&'static str> {
    match fault.kind {
        Kind::CancelledError => None,
        _ if fault.retryable => Some(
            "Wait a little, then make the same call again. If it fails again, tell the operator, naming the call ID.",
        ),
        Kind::ToolNotFoundError => Some("List the tools and use one of those names."),
        Kind::ParameterValidationError | Kind::ActionParseError => Some("Correct the arguments and call again."),
        Kind::VersionMismatchError => Some("Ask for a version that exists, or for none."),
        Kind::ScriptError if fault.by_caller => Some(
            "The code failed: mend it as the details say and call again. It has an empty /tmp of its own, and no other files \
             or network.",
        ),
        Kind::SecurityError if fault.by_caller => Some("Correct the arguments and call again."),
        Kind::SecurityError | Kind::AuthorizationError => {
            Some("Do not retry: the operator's policy does not allow this. Ask the operator, naming the call ID.")
        }
        Kind::CapabilityError | Kind::DependencyError => {
            Some("Do not retry: this host lacks what the tool needs. Ask the operator, naming the call ID.")
        }
        Kind::TimeoutError => Some("Give it less to do, or a larger time limit if the tool takes one."),
        Kind::ResourceLimitError => Some("Give it less to do in one call."),
        Kind::ScriptError | Kind::OutputValidationError => Some(
            "The tool itself failed: if the details do not show a wrong argument, do not repeat the same call. \
                  If they speak of a file that it cannot open, ask the operator, naming the call ID.",
        ),
        Kind::RateLimitError | Kind::CircuitOpenError => {
            Some("Do not retry: calls of this tool are held back. Ask the operator, naming the call ID.")
        }
        Kind::ServiceError | Kind::InternalError => Some("Report it to the operator, naming the call ID."),
    }
}

/// A text from a tool, fit to be shown: several lines stay several lines.
pub fn shown(words: &str) -> String {
    text::printable_block(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fault_of(ending: Ending, logs: &[&str]) -> Fault {
        let logs: Vec<String> = logs.iter().map(|line| (*line).to_owned()).collect();
        judge(ending, &logs, &[]).expect_err("a failure")
    }

    #[test]
    fn each_ending_has_its_error() {
        let fault = fault_of(Ending::Exited { code: 3 }, &["Traceback", "ZeroDivisionError"]);
        assert_eq!((fault.kind, fault.message.as_str()), (Kind::ScriptError, "Script exited with code 3."));
        assert_eq!(fault.details.as_deref(), Some("Traceback\nZeroDivisionError"));
        assert!(fault_of(Ending::Signalled { signal: 11 }, &[]).message.contains("SIGSEGV (11)"));
        let fault = fault_of(Ending::TimedOut { limit_ms: 100 }, &[]);
        assert_eq!((fault.kind, fault.message.as_str()), (Kind::TimeoutError, "Script execution timed out."));
        let printed = |ending, logs: &[&str]| {
            let logs: Vec<String> = logs.iter().map(|line| (*line).to_owned()).collect();
            judge(ending, &logs, &["usage: x".to_owned()]).expect_err("a failure").details.unwrap_or_default()
        };
        assert_eq!(printed(Ending::Exited { code: 3 }, &[]), "stdout: usage: x");
        assert_eq!(printed(Ending::Exited { code: 3 }, &["why"]), "stderr: why\nstdout: usage: x");
        let late = printed(Ending::TimedOut { limit_ms: 100 }, &["step 3"]);
        assert_eq!(late, "The limit timeoutMs was 100 ms.\nstderr: step 3\nstdout: usage: x");
        let fault = fault_of(Ending::OverLimit { limit: Limit::MemoryBytes, allowed: 209_715_200 }, &[]);
        assert_eq!(fault.kind, Kind::ResourceLimitError);
        assert!(fault.message.contains("limit memoryBytes (209715200 bytes)"), "{}", fault.message);
        let fault = fault_of(Ending::BadOutput { reason: "not JSON".into(), head: "hello".into() }, &["note"]);
        assert_eq!(fault.message, "not JSON");
        assert_eq!(fault.details.as_deref(), Some("InvalidOutput: it began with: hello\nstderr: note"));
        let fault = fault_of(Ending::BadOutput { reason: "stdout is empty".into(), head: String::new() }, &[]);
        assert_eq!(fault.details, None, "said once");
        assert!(fault_of(Ending::Exited { code: 1 }, &[]).details.is_some_and(|mend| mend.contains("print there why")));
        let ours = fault_of(Ending::Raised { message: "it is nan".into() }, &["debug", "", "toolhost: it is nan"]);
        assert_eq!(ours.details.as_deref(), Some("debug"), "said once");
        let crash = fault_of(Ending::Signalled { signal: 11 }, &[]).details;
        assert!(crash.is_some_and(|cause| cause.contains("native code")));
        assert_eq!(fault_of(Ending::Cancelled, &[]).kind, Kind::CancelledError);
        assert_eq!(fault_of(Ending::Raised { message: "boom".into() }, &[]).message, "boom");
    }

    #[test]
    fn advice_and_the_word_retryable_agree() {
        for kind in Kind::ALL {
            let advised = |fault: &Fault| advice(fault).unwrap_or_default();
            let fault = Fault::new(kind, "m");
            assert!(!advised(&fault).contains("same call again"), "{kind}");
            let again = advised(&fault.retryable()).contains("same call again");
            assert_eq!(again, kind != Kind::CancelledError, "{kind}");
        }
    }

    #[test]
    fn an_envelope_is_the_outcome() {
        let envelope = |told: Value| Ending::Envelope { told, output: None };
        let output = Some(Text::from(&json!({"a": 1})));
        let good = Ending::Envelope { told: json!({"success": true}), output };
        assert_eq!(judge(good, &[], &[]).unwrap(), json!({"a": 1}));
        assert_eq!(judge(envelope(json!({"success": true})), &[], &[]).unwrap(), json!(null));
        let bad = json!({"success": false, "error": {"type": "DependencyError", "message": "m", "details": "d"}});
        let fault = fault_of(envelope(bad), &[]);
        assert_eq!((fault.kind, fault.details.as_deref()), (Kind::DependencyError, Some("d")));
        let gone = json!({"success": false, "error": {"type": "CancelledError", "message": "m"}});
        assert_eq!(fault_of(envelope(gone), &[]).retryable, cancelled().retryable);
        let own = json!({"success": false, "error": {"type": "Odd", "message": "m"}});
        assert_eq!(fault_of(envelope(own), &[]).kind, Kind::ServiceError);
    }

    #[test]
    fn the_tail_of_stderr_is_bounded_and_whole_characters() {
        let long = "ö".repeat(4000);
        let fault = fault_of(Ending::Exited { code: 1 }, &["first", &long]);
        let details = fault.details.unwrap();
        assert!(details.len() <= TAIL && details.chars().skip(1).all(|c| c == 'ö'));
        let many: Vec<String> = (0..1000).map(|n| format!("line {n}")).collect();
        let text = tail(&many);
        assert!(text.ends_with("line 999") && text.len() <= TAIL && text.starts_with("line "));
    }

    #[test]
    fn the_texts_an_agent_reads_are_exact() {
        let output = Text::from(&json!({"processed_items": 10, "report_url": "/r.html"}));
        assert_eq!(
            succeeded("a:b", &output),
            r#"Tool a:b executed successfully. Output: {"processed_items":10,"report_url":"/r.html"}"#
        );
        let fault = Fault::new(Kind::ScriptError, "Division by zero in script").details("Traceback");
        assert_eq!(
            failed("a:b", &fault),
            "Tool a:b failed. Error type: ScriptError. Message: Division by zero in script. Details: Traceback"
        );
        let fault = Fault::new(Kind::ParameterValidationError, "Input parameter 'timeoutMs' must be an integer.");
        assert_eq!(
            failed("a:b", &fault),
            "Tool a:b failed. Error type: ParameterValidationError. \
             Message: Input parameter 'timeoutMs' must be an integer."
        );
        let hidden = json!({"a": "x\u{202e}y\u{7f}\u{e0041}ö"});
        let shown = text::escaped_json(&hidden.to_string());
        assert_eq!(shown, r#"{"a":"x\u202ey\u007f\udb40\udc41ö"}"#);
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), hidden);
        assert_eq!(response(&(&json!("as is")).into()), "as is");
        assert_eq!(response(&(&json!({"a": 1})).into()), r#"{"a":1}"#);
    }
}
