//! `ExternalScriptExecutionService`: `executeScript` and `runCode`, and the envelope they answer with.
//!
//! For: the builtin `core:*` tools and any manifest that names the service. In: arguments, checked
//! again here because a method can be called directly. Out: `{success, outputData?, error?, logs?}`
//! and nothing else. Never: decides a grant; `Runner` asks policy.

use super::{Answering, Facts, MethodContext, Ran, Script, ServiceMethod, What};
use crate::manifest::{Handler, Language, json};
use crate::{executor, fault, quantity};
use fault::{Fault, Kind};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The two methods of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptExecution {
    /// `executeScript {toolId?, scriptPath, language?, inputData?, timeoutMs?, env?}`
    Execute,
    /// `runCode {toolId?, language, code, inputData?, timeoutMs?}`
    RunCode,
}

impl ServiceMethod for ScriptExecution {
    fn call<'a>(
        &'a self,
        context: &'a MethodContext,
        arguments: Value,
        channel: &'a executor::Events,
    ) -> Answering<'a> {
        Box::pin(async move {
            let ran = match self.prepare(context, arguments) {
                Ok(script) => match context.runner() {
                    Ok(runner) => runner.run(context, script, channel).await,
                    Err(fault) => refused(fault),
                },
                Err(fault) => refused(fault),
            };
            let answer = envelope(&ran);
            context.note(Facts { output: ran.result.ok(), ..ran.facts });
            Ok(answer)
        })
    }

    fn speaks_envelope(&self) -> bool {
        true
    }

    fn keeps_time(&self) -> bool {
        true
    }
}

impl ScriptExecution {
    /// Arguments → the script to run. The path is judged before anything else about the script.
    fn prepare(self, context: &MethodContext, arguments: Value) -> Result<Script, Fault> {
        let given = Given::read(self, arguments)?;
        let fixed = match &context.manifest.handler {
            Handler::ServiceMethod { language, .. } => *language,
            _ => None,
        };
        let what = match self {
            ScriptExecution::Execute => {
                let site = context.runner()?.locate(&given.script_path)?;
                let language = language_of(fixed, given.language, &given.script_path)?;
                What::File { site, language }
            }
            ScriptExecution::RunCode => {
                let language = one_language(fixed, given.language)?.ok_or_else(|| {
                    let message = "Input parameter 'language' is needed (python, nodejs or bun).";
                    Fault::new(Kind::ParameterValidationError, message)
                })?;
                What::Source { language, code: given.code }
            }
        };
        Ok(Script { what, input: given.input, timeout_ms: given.timeout_ms, env: given.env })
    }
}

/// The arguments, taken apart.
#[derive(Default)]
struct Given {
    script_path: String,
    code: String,
    language: Option<Language>,
    input: Value,
    timeout_ms: Option<u64>,
    env: BTreeMap<String, String>,
}

impl Given {
    /// Reads all arguments and reports all faults at once.
    fn read(method: ScriptExecution, arguments: Value) -> Result<Given, Fault> {
        let Value::Object(mut fields) = arguments else {
            return Err(Fault::new(Kind::ParameterValidationError, "Input must be a JSON object."));
        };
        let mut faults = Vec::new();
        let mut given = Given { input: Value::Object(Map::new()), ..Given::default() };
        let needed = match method {
            ScriptExecution::Execute => "scriptPath",
            ScriptExecution::RunCode => "code",
        };
        match fields.remove(needed) {
            Some(Value::String(text)) if !text.is_empty() => match method {
                ScriptExecution::Execute => given.script_path = text,
                ScriptExecution::RunCode => given.code = text,
            },
            Some(_) => faults.push(format!("Input parameter '{needed}' must be a non-empty string.")),
            None => faults.push(format!("Input parameter '{needed}' is required.")),
        }
        given.read_options(method, fields, &mut faults);
        match faults.len() {
            0 => Ok(given),
            1 => Err(Fault::new(Kind::ParameterValidationError, faults.remove(0))),
            _ => {
                let first = faults.remove(0);
                Err(Fault::new(Kind::ParameterValidationError, first).details(faults.join("\n")))
            }
        }
    }

    fn read_options(&mut self, method: ScriptExecution, fields: Map<String, Value>, faults: &mut Vec<String>) {
        for (name, value) in fields {
            match name.as_str() {
                "toolId" if value.is_string() => {}
                "language" => match value.as_str().and_then(Language::from_word) {
                    Some(language) => self.language = Some(language),
                    None => faults.push("Input parameter 'language' must be one of python, nodejs, bun, wasm.".into()),
                },
                "inputData" if value.is_object() => self.input = value,
                "inputData" => faults.push("Input parameter 'inputData' must be an object.".into()),
                "timeoutMs" => match json::whole(&value) {
                    Some(ms) if ms >= quantity::MIN_TIMEOUT_MS => self.timeout_ms = Some(ms),
                    _ => faults.push(format!(
                        "Input parameter 'timeoutMs' must be an integer of at least {}.",
                        quantity::MIN_TIMEOUT_MS
                    )),
                },
                "env" if method == ScriptExecution::Execute => match texts(&value) {
                    Some(env) => self.env = env,
                    None => faults.push("Input parameter 'env' must be an object of strings.".into()),
                },
                _ => faults.push(format!("Unknown input parameter '{}'.", name.escape_debug())),
            }
        }
    }
}

fn texts(value: &Value) -> Option<BTreeMap<String, String>> {
    let fields = value.as_object()?;
    fields.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// The language by handler, then input, then file name. Where two disagree the call is refused: a script must not run
/// under another interpreter than the one that was named, and an interpreter that is given a file of data prints lines
/// of it.
pub fn language_of(fixed: Option<Language>, asked: Option<Language>, script_path: &str) -> Result<Language, Fault> {
    let conflict = |message: String| Err(Fault::new(Kind::ParameterValidationError, message));
    let named = Language::of_file_name(script_path);
    match (one_language(fixed, asked)?, named.first()) {
        (Some(language), _) if named.contains(&language) => Ok(language),
        (Some(language), Some(other)) => conflict(format!(
            "Input parameter 'scriptPath' names a {0} script, but this call runs {1}. Use the tool for {0} scripts.",
            other.name(),
            language.name(),
        )),
        (Some(language), None) => conflict(format!(
            "Input parameter 'scriptPath' names no {} script: the name of one ends in {}.",
            language.name(),
            language.endings()
        )),
        (None, Some(language)) => Ok(*language),
        (None, None) => conflict(
            "Input parameter 'scriptPath' names no script: its name does not end as one in python, nodejs, bun or wasm."
                .to_owned(),
        ),
    }
}

/// The language that handler and input name.
fn one_language(fixed: Option<Language>, asked: Option<Language>) -> Result<Option<Language>, Fault> {
    match (fixed, asked) {
        (Some(fixed), Some(asked)) if fixed != asked => Err(Fault::new(
            Kind::ParameterValidationError,
            format!(
                "Input parameter 'language' is '{}', but this tool runs {} only. Leave it out, or use core:execute-script.",
                asked.name(),
                fixed.name()
            ),
        )),
        _ => Ok(fixed.or(asked)),
    }
}

fn refused(fault: Fault) -> Ran {
    Ran { result: Err(fault.clone()), facts: Facts { refused: Some(fault), ..Facts::default() } }
}

/// `{success, error{type, message, details?}?, logs?}`; the `outputData` stays text, in `Facts`.
fn envelope(ran: &Ran) -> Value {
    let mut fields = Map::new();
    match &ran.result {
        Ok(_) => {
            fields.insert("success".into(), Value::Bool(true));
        }
        Err(fault) => {
            fields.insert("success".into(), Value::Bool(false));
            let mut error = json!({"type": fault.kind.to_string(), "message": fault.message});
            if let Some(details) = &fault.details {
                error["details"] = Value::String(details.clone());
            }
            fields.insert("error".into(), error);
        }
    }
    if !ran.facts.logs.is_empty() {
        fields.insert("logs".into(), json!(ran.facts.logs));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_wins_then_the_input_then_the_name() {
        let cases = [
            (Some(Language::Python), None, "a.py", Ok(Language::Python)),
            (Some(Language::Python), None, "a.js", Err("names a nodejs script")),
            (Some(Language::Python), Some(Language::Nodejs), "a.py", Err("this tool runs python only")),
            (None, Some(Language::Bun), "a.js", Ok(Language::Bun)),
            (None, Some(Language::Nodejs), "a.ts", Err("names a bun script")),
            (None, None, "a.mjs", Ok(Language::Nodejs)),
            (None, None, "a.wat", Ok(Language::Wasm)),
            (None, None, "run", Err("names no script")),
            (None, Some(Language::Python), "run", Err("names no python script: the name of one ends in .py")),
            (Some(Language::Nodejs), None, "data.csv", Err("ends in .js, .mjs or .cjs")),
        ];
        for (fixed, asked, path, expected) in cases {
            match (language_of(fixed, asked, path), expected) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{path}"),
                (Err(fault), Err(words)) => assert!(fault.message.contains(words), "{}", fault.message),
                (found, wanted) => panic!("{path}: {found:?} instead of {wanted:?}"),
            }
        }
    }

    #[test]
    fn all_faults_are_named_at_once() {
        let fault = Given::read(
            ScriptExecution::Execute,
            json!({"timeoutMs": 50, "inputData": 3, "language": "ruby", "sudo": true}),
        )
        .err()
        .expect("four things are wrong");
        let text = format!("{}\n{}", fault.message, fault.details.unwrap_or_default());
        for word in ["'scriptPath' is required", "at least 100", "'inputData'", "'language'", "'sudo'"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert!(Given::read(ScriptExecution::RunCode, json!({"code": "1", "env": {}})).is_err(), "run-code has no env");
    }

    #[test]
    fn the_envelope_has_the_seeds_shape_and_no_more() {
        let good = Ran { result: Ok((&json!({"sum": 6})).into()), facts: Facts::default() };
        assert_eq!(envelope(&good), json!({"success": true}));
        let bad = Ran {
            result: Err(Fault::new(Kind::TimeoutError, "Script execution timed out.")),
            facts: Facts { logs: vec!["line".into()], ..Facts::default() },
        };
        let expected = json!({
            "success": false,
            "error": {"type": "TimeoutError", "message": "Script execution timed out."},
            "logs": ["line"],
        });
        assert_eq!(envelope(&bad), expected);
        assert!(super::super::is_envelope(&envelope(&good)) && super::super::is_envelope(&envelope(&bad)));
    }
}
