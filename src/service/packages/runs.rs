//! One run of an installer in the sandbox, recorded like a call.

use super::installer::Tell;
use crate::base::lock;
use crate::base::mask::Mask;
use crate::base::text;
use crate::broker::Trace;
use crate::executor::{self, Ending, Event, Executor};
use crate::fault::{Fault, Kind};
use crate::manifest::{self, Manifest, Site};
use crate::policy::{Confinement, PerCall, Shape};
use crate::service::record::CallRecord;
use crate::service::redact::RecordArguments;
use crate::service::traces::CallSpan;
use crate::service::{Arguments, CallRequest, Caller, audit, denials, format, secrets};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Who is said to have called, and what.
const WHO: &str = "toolhost";
const WHAT: &str = "toolhost:packages";
/// Last lines of an installer that a fault shows, and longest of them, characters.
const LAST_LINES: usize = 12;
const LONGEST_LINE: usize = 300;

/// How often it is looked whether a connection was refused.
const LOOK: Duration = Duration::from_millis(100);

/// What runs and records.
pub struct Recorder {
    pub process: Option<Arc<dyn Executor>>,
    pub audit: audit::Log,
}

pub struct Run<'a> {
    /// `fetch`, `install`, `resolve`, `translate` or `ages`.
    pub what: &'a str,
    pub tool: &'a str,
    pub shape: Shape,
    pub source: &'a str,
    pub order: Value,
    pub timeout_ms: u64,
    /// A folder of this host that no word of the installer tells.
    pub hidden: &'a Path,
}

impl Recorder {
    pub async fn run(&self, run: Run<'_>, tell: Tell<'_>) -> Result<Value, Fault> {
        let request = CallRequest::new(Caller::named(WHO), WHAT, Arguments::Value(Value::Null));
        let mut record = CallRecord::begin(&request, CallSpan::none());
        let result = self.recorded(run, tell, &mut record).await;
        let told = result.as_ref().map(|_| crate::base::json::Text::from(&Value::Null)).map_err(Clone::clone);
        // A run that left no record counts as failed.
        match record.finish(told).report.error {
            Some(fault) => Err(fault),
            None => result,
        }
    }

    async fn recorded(&self, run: Run<'_>, tell: Tell<'_>, record: &mut CallRecord) -> Result<Value, Fault> {
        record.entry = Some(self.audit.open()?);
        record.given((Mask::default(), RecordArguments::Tree(json!({"run": run.what, "tool": run.tool}))));
        let process = self.process.as_ref().ok_or_else(|| {
            Fault::new(Kind::CapabilityError, "this host runs no scripts, and so no installer of packages")
        })?;
        let mut per_call =
            PerCall { timeout_ms: run.timeout_ms, source: Some(run.source.to_owned()), ..PerCall::default() };
        let values = secrets::values(&run.shape.secrets, "", Duration::from_secs(10)).await?;
        for (grant, value) in run.shape.secrets.iter().zip(values) {
            record.hide(&value);
            per_call.secrets.0.insert(grant.name.clone(), value);
        }
        let hidden = run.hidden.display().to_string();
        let shape = Arc::new(run.shape);
        let digest = shape.digest();
        self.audit.keep(&shape, &digest)?;
        let confinement = Confinement { shape, per_call };
        record.confined(&confinement, digest, None);
        let site = Site { manifest: PathBuf::new(), base: PathBuf::new(), script: None, folder: "/tmp".into() };
        let (input, confinement) = (run.order, Some(confinement));
        let call =
            executor::Call { manifest: nobody(), site, input, confinement, service: None, output_bytes: u64::MAX };
        let cancel = CancellationToken::new();
        let _cancels = cancel.clone().drop_guard();
        let context = executor::Context {
            id: record.id.clone(),
            user: WHO.to_owned(),
            cancel,
            came: Instant::now(),
            ran: Arc::default(),
            traffic: record.traffic(),
            trace: Trace::default(),
            // What a build can write is looked at before anything uses it, and is written by no other run.
            ledger: None,
            gate: executor::Gate::default(),
        };
        record.running()?;
        let (ended, refused) = watched(process.as_ref(), &context, call, (&hidden, tell), record).await;
        let traffic = lock(&record.traffic()).clone();
        let failed = |words: &str| {
            let words: Vec<String> = denials::words(&traffic).into_iter().chain([words.to_owned()]).collect();
            Fault { person: denials::mend(&traffic, &[]), ..failed(run.what, &words.join("\n")) }
        };
        let mut outcome = match ended {
            Err(_) if refused => return Err(failed("")),
            ended => ended?,
        };
        outcome.logs.iter_mut().for_each(|line| *line = line.replace(&hidden, ""));
        let (logs, _) = record.took(&mut outcome);
        match outcome.ending {
            Ending::Answered(answer) => {
                answer.tree(crate::quantity::MAX_TREE_BYTES).map_err(|_| failed("its answer is too long"))
            }
            Ending::Exited { .. } | Ending::Raised { .. } | Ending::Trapped { .. } => Err(failed(&last(logs))),
            ending => {
                let why = format::judge(ending, logs, &[]).err().map_or_else(String::new, |fault| fault.message);
                Err(failed(&format!("{why}\n{}", last(logs))))
            }
        }
    }
}

/// One run, with its lines as they come; true if it was ended because a connection was refused.
async fn watched(
    process: &dyn Executor,
    context: &executor::Context,
    call: executor::Call,
    (hidden, tell): (&str, Tell<'_>),
    record: &mut CallRecord,
) -> (Result<executor::Outcome, Fault>, bool) {
    let (events, mut heard) = executor::events();
    let (mut refused, mut looks) = (false, tokio::time::interval(LOOK));
    let ended = {
        let mut running = process.run(context, call, &events);
        loop {
            tokio::select! {
                // An installer would try again for minutes: it learns that a connection was reset, and not why.
                _ = looks.tick(), if !refused => {
                    refused = lock(&context.traffic).events.iter().any(|event| event.refused.is_some());
                    if refused {
                        context.cancel.cancel();
                    }
                }
                Some(event) = heard.next() => {
                    if let Event::Log(line) = event {
                        tell(&record.log(&line.replace(hidden, "")));
                    }
                }
                ended = &mut running => break ended,
            }
        }
    };
    record.ended(&ended, heard.lost(), None);
    (ended, refused)
}

/// The end of a log, bounded.
fn last(logs: &[String]) -> String {
    let lines = logs.iter().skip(logs.len().saturating_sub(LAST_LINES));
    lines.map(|line| text::printable(&text::head(line, LONGEST_LINE))).collect::<Vec<_>>().join("\n")
}

fn failed(what: &str, why: &str) -> Fault {
    let message = match what {
        "fetch" => "this tool's packages could not be fetched, so nothing was run",
        "resolve" | "translate" => "this tool's requirements could not be resolved, so nothing was run",
        _ => "this tool's packages could not be installed, so nothing was run",
    };
    Fault::new(Kind::DependencyError, message).details(why.trim().to_owned())
}

/// The executor of scripts looks at no manifest.
fn nobody() -> Arc<Manifest> {
    static NOBODY: LazyLock<Arc<Manifest>> = LazyLock::new(|| {
        let handler = json!({ "type": "definition-only" });
        let words =
            json!({ "toolId": WHAT, "displayName": WHAT, "description": WHAT, "version": "1.0.0", "handler": handler });
        Arc::new(manifest::read(words.to_string().as_bytes()).expect("a manifest").0)
    });
    Arc::clone(&NOBODY)
}
