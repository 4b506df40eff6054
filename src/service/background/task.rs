//! The tool `core:task-status`, by which an agent asks for its own calls in the background and for
//! their results.

use super::calls::Background;
use crate::base::json;
use crate::base::text;
use crate::executor::method::CALL_STATUS;
use crate::executor::{self, CallDeadline, Ending, Executor, Outcome, ToolAnswer};
use crate::fault::{Fault, Kind};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::calls::Phase;
use crate::service::output::OutputKind;
use crate::service::request::Caller;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Registers the executor of the tool.
pub(super) fn register(background: &Arc<Background>) {
    let status = Arc::new(Status(Arc::downgrade(background)));
    background
        .service
        .catalog
        .methods()
        .register_executor(CALL_STATUS.0, CALL_STATUS.1, status);
}

struct Status(Weak<Background>);

/// Most bytes of an answer beside the result.
const MAX_ENVELOPE_BYTES: u64 = 1024;

impl Executor for Status {
    fn run<'a>(
        &'a self,
        context: &'a executor::Context,
        call: executor::Call,
        _: &'a executor::ToolSender,
    ) -> executor::Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let background = self.0.upgrade().ok_or_else(|| {
                Fault::new(Kind::CancelledError, "The server was stopped.").retryable()
            })?;
            let who = Caller::named(&context.user);
            let id = call.input["id"].as_str().unwrap_or_default();
            let answer =
                answer_about(&background, &who, id, call.output_bytes, &context.deadline).await?;
            Ok(Outcome::new(
                Ending::Answered(answer),
                crate::base::millis(started.elapsed()),
            ))
        })
    }
}

/// `room`: the longest answer, bytes.
async fn answer_about(
    background: &Background,
    who: &Caller,
    id: &str,
    room: u64,
    deadline: &CallDeadline,
) -> Result<ToolAnswer, Fault> {
    let Some(receipt) = background.receipt(who, id) else {
        background.ready().await?;
        let none =
            "You have no background call with this id; ended calls are kept for a day at most.";
        return Err(Fault::new(Kind::ParameterValidationError, none));
    };
    let status = match (receipt.call.phase, receipt.call.outcome.as_deref()) {
        (Phase::Waiting, _) => "waiting",
        (Phase::Running, _) => "running",
        (Phase::Ended, Some("success")) => "done",
        (Phase::Ended, _) => "failed",
    };
    // The size of the result is checked before it is read into memory.
    let fits = background.size(id) as u64 <= room.saturating_sub(MAX_ENVELOPE_BYTES);
    let kept = match receipt.call.phase {
        Phase::Ended if fits => background.result(who, id).await?,
        _ => None,
    };
    let is_long = kept
        .as_ref()
        .is_some_and(|kept| kept.len() > LARGE_TEXT_BYTES);
    let text = deadline.run(is_long, move || {
        let call = &receipt.call;
        let mut told =
            json!({"id": call.id, "tool": call.tool, "status": status, "began": call.began});
        receipt
            .ended
            .iter()
            .for_each(|ended| told["ended"] = json!(ended));
        if !fits {
            // The result is larger than an answer may be.
            told["resultLeftOut"] = json!(true);
        }
        let told = kept.map_or_else(|| told.to_string(), |result| with_result(&told, &result));
        json::compact(told.as_bytes()).map_err(|problem| problem.message)
    });
    text.await?
        .map(|text| ToolAnswer::new(text, deadline))
        .map_err(|why: String| {
            Fault::new(
                Kind::InternalError,
                "The outcome of this call cannot be read.",
            )
            .person(why)
        })
}

/// The state of a call with its result. Blocks of content in that are blocks of this answer, too.
fn with_result(told: &Value, result: &str) -> String {
    let output = json::member(result, "/outputData").unwrap_or_default();
    let Ok(OutputKind::Content(content)) = OutputKind::read(output, false) else {
        return text::with_field(told, "result", result);
    };
    let structured = content.structured.map_or("null", RawValue::get);
    let result = result.replacen(output, structured, 1);
    let told = text::with_field(told, "result", &result);
    let blocks = content.blocks.get();
    format!("{{\"$content\":{blocks},\"structured\":{told}}}")
}
