//! The script that a call names or holds: the arguments of `executeScript` and `runCode` under the
//! method's own names, its language, and its digest for reports and records. Arguments are checked
//! here, whatever the tool's schema allows.

use crate::base::json;
use crate::executor::method::ScriptMethod;
use crate::executor::process::grants;
use crate::fault::{Fault, Kind};
use crate::manifest::{Language, Skill, ToolPaths};
use crate::quantity;
use crate::registry::Tool;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default)]
pub(super) struct ScriptArguments {
    pub script: String,
    pub language: Option<Language>,
    pub input: Value,
    pub timeout_ms: Option<u64>,
    /// The tools that the code may call.
    pub tools: Vec<String>,
    /// The name of the session in which the code goes on.
    pub session: Option<String>,
    /// Literals for the environment of this run.
    pub env: BTreeMap<String, String>,
}

impl ScriptArguments {
    /// Reads all arguments and reports all faults at once.
    pub fn read(method: ScriptMethod, arguments: Value) -> Result<ScriptArguments, Fault> {
        let Value::Object(fields) = arguments else {
            return Err(Fault::new(
                Kind::ParameterValidationError,
                "Input must be a JSON object.",
            ));
        };
        let needed = match method {
            ScriptMethod::Execute => "scriptPath",
            ScriptMethod::RunCode => "code",
        };
        fn text(value: Value) -> Option<String> {
            serde_json::from_value::<String>(value).ok()
        }
        let at_least = format!("an integer of at least {}", quantity::MIN_TIMEOUT_MS);
        let mut fields = Fields {
            fields,
            flaws: Vec::new(),
        };
        let script = fields.take(needed, "a non-empty string", |value| {
            text(value).filter(|text| !text.is_empty())
        });
        if script.is_none() && fields.flaws.is_empty() {
            fields
                .flaws
                .push(format!("Input parameter '{needed}' is required."));
        }
        fields.take("toolId", "a string", text);
        // The files themselves were taken out already.
        fields.take("files", "a list of files", |value| {
            value.is_array().then_some(())
        });
        let read = ScriptArguments {
            script: script.unwrap_or_default(),
            language: fields.take(
                "language",
                "one of: python, nodejs, bun, wasm",
                |value: Value| Language::from_word(value.as_str()?),
            ),
            input: fields
                .take("inputData", "an object", |value| {
                    value.is_object().then_some(value)
                })
                .unwrap_or_else(|| Value::Object(Map::new())),
            timeout_ms: fields.take("timeoutMs", &at_least, |value: Value| {
                json::whole(&value).filter(|ms| *ms >= quantity::MIN_TIMEOUT_MS)
            }),
            tools: match method {
                ScriptMethod::Execute => None,
                ScriptMethod::RunCode => fields.take("tools", "a list of toolIds", |tools| {
                    serde_json::from_value(tools).ok()
                }),
            }
            .unwrap_or_default(),
            session: match method {
                ScriptMethod::Execute => None,
                ScriptMethod::RunCode => fields.take("session", SESSION_NAME, |name| {
                    text(name).filter(|name| is_session_name(name))
                }),
            },
            env: match method {
                ScriptMethod::Execute => fields.take("env", "an object of strings", |env| {
                    serde_json::from_value(env).ok()
                }),
                ScriptMethod::RunCode => None,
            }
            .unwrap_or_default(),
        };
        let Fields { fields, mut flaws } = fields;
        flaws.extend(fields.keys().map(|name: &String| {
            format!(
                "Input parameter '{}' is not a known parameter.",
                name.escape_debug()
            )
        }));
        if flaws.is_empty() {
            Ok(read)
        } else {
            Err(Fault::of_flaws(Kind::ParameterValidationError, flaws))
        }
    }
}

/// A script of a skill.
#[derive(Clone, Debug)]
pub struct SkillScript {
    /// In the folder of the skill.
    pub path: String,
    pub language: Language,
}

impl SkillScript {
    pub fn site_in(&self, skill: &Tool) -> ToolPaths {
        ToolPaths {
            script: Some(skill.site.folder.join(&self.path)),
            ..skill.site.clone()
        }
    }
}

/// The arguments of a call of a skill, which fit its schema.
pub(super) struct SkillCall {
    pub script: SkillScript,
    pub words: Vec<String>,
    pub stdin: String,
}

impl SkillCall {
    pub fn read(skill: &Skill, given: &Value) -> Result<SkillCall, Fault> {
        // As the skill's own text writes it.
        let path = given["script"].as_str().unwrap_or_default();
        let path = path.strip_prefix("./").unwrap_or(path).to_owned();
        let refuse = |why| {
            let message = format!("Input parameter 'script': {why}.");
            Fault::new(Kind::ParameterValidationError, message)
        };
        if given["skill"].as_str().is_some_and(|it| it != skill.name) {
            let message = "Input parameter 'skill' names another skill than this tool is.";
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        let language = skill.script(&path).map_err(refuse)?;
        let words = given["args"].as_array().into_iter().flatten();
        Ok(SkillCall {
            script: SkillScript { path, language },
            words: words.filter_map(Value::as_str).map(str::to_owned).collect(),
            stdin: given["stdin"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

const SESSION_NAME: &str = "1 to 64 letters, digits, `_` or `-`";

fn is_session_name(name: &str) -> bool {
    let takes = |it: u8| it.is_ascii_alphanumeric() || it == b'_' || it == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(takes)
}

/// Arguments that are not read yet, and what is wrong with the others.
struct Fields {
    fields: Map<String, Value>,
    flaws: Vec<String>,
}

impl Fields {
    fn take<T>(
        &mut self,
        name: &str,
        must: &str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Option<T> {
        let read = read(self.fields.remove(name)?);
        if read.is_none() {
            self.flaws
                .push(format!("Input parameter '{name}' must be {must}."));
        }
        read
    }
}

/// The language by handler, then input, then file name. Where two disagree the call is refused: a
/// script must not run under another interpreter than the one that was named, and an interpreter
/// that is given a file of data prints lines of it.
pub(super) fn language_of(
    fixed: Option<Language>,
    asked: Option<Language>,
    path: &str,
) -> Result<Language, Fault> {
    let named = Language::of_file_name(path);
    let wanted = one_language(fixed, asked)?;
    let found = named
        .iter()
        .find(|language| wanted.is_none_or(|wanted| **language == wanted));
    found.copied().ok_or_else(|| {
        let what = match (named.first(), wanted) {
            (Some(other), Some(language)) => {
                format!(
                    "a {} script, but this call runs {}",
                    other.name(),
                    language.name()
                )
            }
            (None, Some(language)) => {
                format!(
                    "no {} script: the name of one ends in {}",
                    language.name(),
                    language.endings()
                )
            }
            (_, None) => {
                "no script: its name does not end as one in python, nodejs, bun or wasm".to_owned()
            }
        };
        Fault::new(
            Kind::ParameterValidationError,
            format!("Input parameter 'scriptPath' names {what}."),
        )
    })
}

/// The language of source text, which has no file name to tell it.
pub(super) fn language_of_source(
    fixed: Option<Language>,
    asked: Option<Language>,
) -> Result<Language, Fault> {
    one_language(fixed, asked)?.ok_or_else(|| {
        let message = "Input parameter 'language' is needed (python, nodejs or bun).";
        Fault::new(Kind::ParameterValidationError, message)
    })
}

/// The language that handler and input name.
fn one_language(
    fixed: Option<Language>,
    asked: Option<Language>,
) -> Result<Option<Language>, Fault> {
    match (fixed, asked) {
        (Some(fixed), Some(asked)) if fixed != asked => Err(Fault::new(
            Kind::ParameterValidationError,
            format!(
                "Input parameter 'language' is '{}', but this tool runs {} only. Leave it out, or \
                 use core:execute-script.",
                asked.name(),
                fixed.name()
            ),
        )),
        _ => Ok(fixed.or(asked)),
    }
}

/// The digest of the file as it is now. `None` where it cannot be read, or is too large.
pub fn digest_of_script(script: &Path) -> Option<String> {
    grants::read_script(script)
        .ok()
        .map(|script| script.file.digest)
}
