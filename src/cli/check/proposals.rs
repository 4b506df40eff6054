//! Better texts for a manifest, by the operator's own program (`[advice]`). They are shown as
//! differences, and never applied.

use crate::base::json::{self, Dialect};
use crate::base::text;
use crate::manifest::{self, Code, Problem, Severity};
use crate::service::helper_program;
use serde_json::{Value, json};
use std::time::Duration;

/// Most bytes that the program reads, which a pipe holds, and prints.
const MAX_BYTES: usize = 64 << 10;
const SHOWN_CHARACTERS: usize = 2000;
/// Longest run of the program: it may ask a model.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn proposals(command: &[String], manifest: &Value, found: &[Problem]) -> Vec<Problem> {
    let proposed = asked(command, json!({ "manifest": manifest, "advice": found })).await;
    let proposed = match proposed {
        Ok(proposed) => proposed,
        Err(why) => return vec![note("", &format!("[advice] command: {why}"))],
    };
    let differences = proposed.as_object().into_iter().flatten();
    let differences = differences.map(|(pointer, new)| {
        let mut changed = manifest.clone();
        let place = changed.pointer_mut(pointer);
        let old = place.map_or(Value::Null, |place| std::mem::replace(place, new.clone()));
        let loads = manifest::read(changed.to_string().as_bytes()).is_ok();
        let flaw = if loads {
            ""
        } else {
            " (with it the manifest would not load)"
        };
        note(pointer, &format!("proposed: - {old} + {new}{flaw}"))
    });
    differences.collect()
}

fn note(pointer: &str, message: &str) -> Problem {
    let message = text::printable(&text::head(message, SHOWN_CHARACTERS));
    Problem::new(Severity::Note, Code::Schema, pointer, message)
}

/// The object of pointers and values that the program prints.
async fn asked(command: &[String], question: Value) -> Result<Value, String> {
    let question = question.to_string();
    if question.len() > MAX_BYTES {
        return Err("the manifest is too large for it".to_owned());
    }
    let running = helper_program::run(command, question.as_bytes(), MAX_BYTES as u64);
    let printed = tokio::time::timeout(RUN_TIMEOUT, running).await;
    let printed = printed.map_err(|_| "it ran too long".to_owned())??;
    let document = json::parse(&printed, Dialect::Strict).map_err(|problem| problem.message)?;
    let members = document.value.as_object();
    if members.is_none_or(|all| all.keys().any(|name| !name.starts_with('/'))) {
        return Err(
            "it prints something else than an object of JSON pointers and values".to_owned(),
        );
    }
    Ok(document.value)
}
