//! `toolhost test TOOL | --all`: the examples of manifests, each run as a call and compared. Exit
//! code 1 if one fails.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{call, host, terminal, words};
use crate::base::json::Text;
use crate::base::text;
use crate::manifest::Example;
use crate::registry;
use crate::service::{Arguments, Report, Service, Sink};
use serde_json::Value;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub tool: Option<String>,
    /// Every tool of the folders; those that cannot run here are named and counted (builtin tools:
    /// by name)
    #[arg(long)]
    pub all: bool,
    /// Also show the command, its input, output and log, what it could touch, and how long each
    /// stage took, on standard error
    #[arg(long)]
    pub verbose: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let ended = host::with_service(settings, None, async |service| {
        let tools = choose_tools(service, &args)?;
        // Manifest files that could not be loaded.
        let unread = if args.all {
            service.catalog.registry.snapshot().skipped()
        } else {
            0
        };
        anyhow::Ok((examples(service, &tools, &args).await, unread))
    });
    let (count, unread) = match ended? {
        Ok(counted) => counted?,
        Err(signal) => return Ok(signal),
    };
    if unread > 0 {
        words::note(&format!(
            "{unread} file(s) could not be loaded: `toolhost check` says why"
        ));
    }
    let skipped = if count.skipped > 0 {
        format!(", {} skipped", count.skipped)
    } else {
        String::new()
    };
    words::say(&format!(
        "{} passed, {} failed{skipped}",
        count.passed, count.failed
    ));
    Ok(if count.failed + unread > 0 {
        Exit::Tool
    } else {
        Exit::Ok
    }
    .into())
}

fn choose_tools(service: &Service, args: &Args) -> anyhow::Result<Vec<Arc<registry::Tool>>> {
    let snapshot = service.catalog.registry.snapshot();
    let Some(reference) = &args.tool else {
        // The builtin tools' examples run scripts that the shipped folders hold, and only where a
        // policy lets them: they are tested by name.
        let files = registry::Filter {
            source: Some("files".to_owned()),
            ..registry::Filter::default()
        };
        return Ok(snapshot.list(&files));
    };
    Ok(vec![
        snapshot
            .find(reference)
            .map_err(|fault| Refusal::from_fault(&fault))?,
    ])
}

async fn examples(service: &Arc<Service>, tools: &[Arc<registry::Tool>], args: &Args) -> Count {
    let mut count = Count::default();
    let all: usize = tools.iter().map(|it| it.manifest.examples.len()).sum();
    for tool in tools {
        if tool.manifest.client_tool().is_some() {
            let reference = tool.reference();
            words::say(&format!("skip {reference}: the client of a call runs it"));
            count.skipped += 1;
            continue;
        }
        let needs = service.catalog.readiness(tool).lacks();
        if args.all && !needs.is_empty() {
            words::say(&format!(
                "skip {}: needs {}",
                tool.reference(),
                needs.join(", ")
            ));
            count.skipped += 1;
            continue;
        }
        if tool.manifest.examples.is_empty() {
            words::say(&format!("none {}: no examples to try", tool.reference()));
        }
        for example in &tool.manifest.examples {
            let what = text::printable(&format!("{}: {}", tool.reference(), example.description));
            let tried = count.passed + count.failed;
            terminal::progress(&format!("[{}/{all}] {what}", tried + 1));
            let began = Instant::now();
            let tried = try_example(service, tool, example, args.verbose).await;
            let what = format!("{what} ({} ms)", began.elapsed().as_millis());
            match tried {
                Ok(()) => {
                    words::say(&format!("ok   {what}"));
                    count.passed += 1;
                }
                Err(why) => {
                    words::say(&format!(
                        "FAIL {what}\n     {}",
                        why.replace('\n', "\n     ")
                    ));
                    count.failed += 1;
                }
            }
        }
    }
    count
}

/// Runs one example as a call. `Err`: why it failed.
async fn try_example(
    service: &Arc<Service>,
    tool: &registry::Tool,
    example: &Example,
    verbose: bool,
) -> Result<(), String> {
    service.catalog.prepare(&tool.reference()).await;
    let exactly = format!("{}@={}", tool.manifest.id, tool.manifest.version);
    let mut request = call::request(&exactly, Arguments::Value(example.input.clone()));
    request.reporting.verbose = verbose;
    let report = service.call(request, Sink::none()).await;
    if verbose {
        let what = text::printable(&format!("{}: {}", tool.reference(), example.description));
        words::note(&format!("{what}\n{}", call::background(&report, &[])));
    }
    let told = || {
        report.outcome.fault().map_or_else(String::new, |fault| {
            format!("{}: {}", fault.kind, Refusal::from_fault(fault))
        })
    };
    let failed = !report.outcome.is_success();
    match &example.expected_output {
        None if !failed => Ok(()),
        None => Err(told()),
        // A failed call fails its example, unless the tool answers with envelopes and a failure is
        // expected.
        Some(expected)
            if failed && !(report.delivery.speaks_envelope && expected["success"] == false) =>
        {
            Err(format!("the call failed; expected {expected}\n{}", told()))
        }
        Some(expected) => {
            difference(expected, &answer(&report).await, "").map_or(Ok(()), |place| {
                let told = told();
                Err(if told.is_empty() {
                    place
                } else {
                    format!("{place}\n{told}")
                })
            })
        }
    }
}

/// What `expectedOutput` is compared with: the envelope where the tool answers with envelopes, else
/// the output itself.
async fn answer(report: &Report) -> Value {
    let output = match report.outcome.answer() {
        Some(answer) => answer.read(false, Text::value).await.ok(),
        None => None,
    };
    if !report.delivery.speaks_envelope {
        return output.unwrap_or_default();
    }
    let mut report = report.clone();
    report.take_answer();
    let mut envelope = serde_json::to_value(report.envelope()).unwrap_or_default();
    output
        .into_iter()
        .for_each(|output| envelope["outputData"] = output);
    envelope
}

/// The first place where the answer is not what was expected; more than was expected is fine.
fn difference(expected: &Value, found: &Value, place: &str) -> Option<String> {
    let here = if place.is_empty() {
        "the answer"
    } else {
        place
    };
    match (expected, found) {
        (Value::Object(wanted), Value::Object(fields)) => {
            wanted.iter().find_map(|(name, value)| {
                let place = format!("{place}/{name}");
                match fields.get(name) {
                    Some(field) => difference(value, field, &place),
                    None => Some(format!("{place} is missing; expected {value}")),
                }
            })
        }
        (Value::Array(wanted), Value::Array(items)) if wanted.len() == items.len() => wanted
            .iter()
            .zip(items)
            .enumerate()
            .find_map(|(at, (value, item))| difference(value, item, &format!("{place}/{at}"))),
        // 1 and 1.0 are one number; two integers are compared exactly below.
        (Value::Number(wanted), Value::Number(number))
            if (wanted.is_f64() || number.is_f64()) && wanted.as_f64() == number.as_f64() =>
        {
            None
        }
        _ if expected == found => None,
        _ => Some(format!("{here} is {found}; expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_subset_passes_and_a_difference_is_placed() {
        let found =
            json!({"success": true, "outputData": {"rows": [1, {"a": 1, "b": 2}], "n": 1.0}});
        assert_eq!(
            difference(
                &json!({"outputData": {"rows": [1, {"a": 1}], "n": 1}}),
                &found,
                ""
            ),
            None
        );
        for (expected, place) in [
            (
                json!({"success": false}),
                "/success is true; expected false",
            ),
            (json!({"outputData": {"rows": [1]}}), "/outputData/rows is"),
            (json!({"outputData": {"x": 1}}), "/outputData/x is missing"),
            (json!([1]), "the answer is"),
        ] {
            let told = difference(&expected, &found, "").unwrap();
            assert!(told.contains(place), "{told}");
        }
    }
}
