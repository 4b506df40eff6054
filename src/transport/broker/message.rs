//! Handles one message: makes a call of the request, and publishes the answer. A request that comes
//! again runs again only where that does no harm. Every request is answered, or reported in the run
//! log.

use super::server::{BrokerServer, Identity, Redelivery};
use crate::base::json::Text;
use crate::base::text::{head, printable};
use crate::broker::{
    Delivery, LinkState, MAX_ID_BYTES, PublishError, ToolServiceRequest, ToolServiceResponse,
};
use crate::fault::{Fault, Kind};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::{
    self, Arguments, CallRequest, CallResult, Event, Report, Sink, TraceContext, arguments, output,
};
use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The least memory that a waiting request counts as, KiB. So at most 1,024 wait.
const MIN_REQUEST_KIB: u32 = 64;
/// Longest config, bytes. It comes from a descriptor, and is read before the request has a slot.
const MAX_CONFIG_BYTES: usize = 64 * 1024;
/// How long an answer waits for a broker that is away.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);
/// How long callers may take to reconnect after this host has reconnected.
const CALLER_RECONNECT_TIME: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const NO_LISTENER: &str = "no client listens for replies";

/// Handles one message until it is answered, put back or set aside.
pub async fn handle(broker: Arc<BrokerServer>, delivery: Delivery) {
    let request = Identity::new(&delivery);
    let delivery = if delivery.redelivered {
        match broker.open.known(&request, delivery) {
            Redelivery::Running => return,
            Redelivery::Ended(delivery) => {
                let words = shown(&delivery.id);
                tracing::info!(target: "toolhost::broker", "request {words} comes again; it was \
                    answered");
                return done(delivery).await;
            }
            Redelivery::No(delivery) => delivery,
        }
    } else {
        delivery
    };
    broker.open.begin(&request);
    let ended = answer(&broker, delivery).await;
    let is_answered = !matches!(ended, Ended::PutBack);
    let again = broker.open.end(request, is_answered);
    if let Ended::Answered(Some(delivery)) = ended {
        done(delivery).await;
    }
    for delivery in again {
        if is_answered {
            done(delivery).await
        } else {
            Box::pin(handle(broker.clone(), delivery)).await
        }
    }
}

enum Ended {
    /// The delivery, if it is still to be acknowledged.
    Answered(Option<Delivery>),
    /// The request is back in its queue, and will be delivered again.
    PutBack,
}

async fn done(delivery: Delivery) {
    if let Err(why) = delivery.done().await {
        // The broker delivers it again, and `known` finds it then.
        tracing::info!(target: "toolhost::broker", "a message could not be acknowledged: {why}");
    }
}

async fn answer(broker: &Arc<BrokerServer>, mut delivery: Delivery) -> Ended {
    let body = std::mem::take(&mut delivery.body);
    let waits = broker
        .waiting
        .clone()
        .try_acquire_many_owned(kib(body.len()))
        .ok();
    let (body, read) = read(broker, body, waits.is_none()).await;
    if delivery.redelivered {
        delivery.body = body;
        return handle_redelivery(broker, delivery, read, waits).await;
    }
    drop(body);
    run(broker, &delivery.id, with_trace(&delivery, read), waits).await;
    Ended::Answered(Some(delivery))
}

/// A request that a host received before and did not answer. It runs again only if that does no
/// harm.
async fn handle_redelivery(
    broker: &Arc<BrokerServer>,
    delivery: Delivery,
    read: BrokerCall,
    waits: Waits,
) -> Ended {
    // A body that was not read, because memory is short, can be of any tool.
    let harmless =
        waits.is_some() && (read.call.refused.is_some() || may_run_again(broker, &read.call));
    let last = delivery.attempt > 0;
    if harmless && !last {
        let words = shown(&delivery.id);
        tracing::warn!(target: "toolhost::broker", "request {words} was left unanswered by a host; \
            it is run again");
        if let Err(why) = delivery.again().await {
            // The request is still in the queue: the next connection brings it.
            tracing::warn!(target: "toolhost::broker", "request {words} could not be put back: \
                {why}");
        }
        return Ended::PutBack;
    }
    let words = if last {
        "This request was lost twice while it ran, and is not run again."
    } else {
        "A host that received this request before was lost, and may have run it. The tool can \
         change something, so it is not run again: look at what was done, then ask again."
    };
    let mut read = with_trace(&delivery, read);
    read.call.refused = Some(Fault::new(Kind::ServiceError, words));
    run(broker, &delivery.id, read, waits).await;
    if !last {
        return Ended::Answered(Some(delivery));
    }
    if let Err(why) = delivery.dead_letter().await {
        tracing::error!(target: "toolhost::broker", "a request that was lost twice could not be \
            set aside: {why}");
    }
    Ended::Answered(None)
}

/// Adds the trace and the id, which stand beside the body of the message.
fn with_trace(delivery: &Delivery, mut asked: BrokerCall) -> BrokerCall {
    let parent = delivery.trace.parent.as_deref();
    let state = delivery.trace.state.as_deref();
    asked.call.reporting.trace = parent.and_then(|parent| TraceContext::parse(parent, state));
    asked.call.reporting.transaction = Some(shown(&delivery.id));
    asked
}

/// True if policy leaves the tool nothing to write and no host to reach, or if the manifest and the
/// operator's entry both call it idempotent.
fn may_run_again(broker: &BrokerServer, call: &CallRequest) -> bool {
    let who = broker
        .service
        .catalog
        .who(&call.caller, call.label.as_deref());
    let Ok(tool) = broker.service.catalog.find(&who, &call.tool) else {
        return false;
    };
    let effects = broker.service.catalog.effects(&tool);
    effects.is_some_and(|effects| !effects.writes && !effects.hosts)
        || tool.manifest.idempotent && broker.entry.idempotent.contains(&tool.manifest.id)
}

/// A request's share of `waiting`, until it has a slot to run. `None`: too many wait.
type Waits = Option<OwnedSemaphorePermit>;

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024))
        .unwrap_or(u32::MAX)
        .max(MIN_REQUEST_KIB)
}

/// The call that a body requests.
struct BrokerCall {
    /// Its `refused` may be set already.
    call: CallRequest,
    /// The client wants the answer in parts.
    streams: bool,
    /// The message is itself a reply: nobody answers it.
    is_reply: bool,
}

impl BrokerCall {
    fn refused(broker: &BrokerServer, tool: &str, fault: Fault) -> BrokerCall {
        BrokerCall {
            call: CallRequest::refused(broker.caller(), tool, fault),
            streams: false,
            is_reply: false,
        }
    }
}

/// Reads a body, a long one on another thread. If too many requests wait, refuses it unread.
async fn read(broker: &Arc<BrokerServer>, body: Vec<u8>, too_many: bool) -> (Vec<u8>, BrokerCall) {
    if too_many {
        let fault = Fault::new(
            Kind::RateLimitError,
            "Too many requests wait for this service.",
        )
        .retryable();
        return (body, BrokerCall::refused(broker, "", fault));
    }
    if body.len() <= LARGE_TEXT_BYTES {
        let read = parse_request(broker, &body);
        return (body, read);
    }
    let broker = broker.clone();
    let work = tokio::task::spawn_blocking(move || {
        let read = parse_request(&broker, &body);
        (body, read)
    });
    work.await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

fn parse_request(broker: &BrokerServer, body: &[u8]) -> BrokerCall {
    let mut meant = String::new();
    match ToolServiceRequest::decode(body) {
        Err(why) => BrokerCall::refused(broker, "", wrong(printable(&why))),
        Ok(request) if request.is_reply => BrokerCall {
            is_reply: true,
            ..BrokerCall::refused(
                broker,
                "",
                wrong("This is a reply; a request is needed here."),
            )
        },
        Ok(request) => call(broker, request, &mut meant)
            .unwrap_or_else(|fault| BrokerCall::refused(broker, &meant, fault)),
    }
}

fn wrong(words: impl Into<String>) -> Fault {
    Fault::new(Kind::ParameterValidationError, words)
}

/// Sets `meant` to the tool's id once that is known.
fn call(
    broker: &BrokerServer,
    request: ToolServiceRequest,
    meant: &mut String,
) -> Result<BrokerCall, Fault> {
    if request.config.len() > MAX_CONFIG_BYTES {
        return Err(wrong(format!(
            "The config is longer than {MAX_CONFIG_BYTES} bytes."
        )));
    }
    let config = arguments::config(&request.config)?;
    *meant = tool(&broker.entry.tools, config.get("tool"))?;
    let timeout_ms = arguments::timeout_ms(&config)?;
    let streams = match config.get("stream") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(streams)) => *streams,
        Some(_) => return Err(wrong("The config's 'stream' must be true or false.")),
    };
    let label = service::label(Some(request.user))?;
    let call = CallRequest::new(
        broker.caller(),
        meant.as_str(),
        Arguments::Text(request.arguments),
    );
    Ok(BrokerCall {
        call: CallRequest {
            label,
            timeout_ms,
            ..call
        },
        streams,
        is_reply: false,
    })
}

/// The tool of the entry that the request names.
fn tool(offered: &[String], asked: Option<&Value>) -> Result<String, Fault> {
    fn id(reference: &str) -> String {
        reference.split('@').next().unwrap_or_default().to_owned()
    }
    fn refuse(words: &str) -> Result<String, Fault> {
        Err(Fault::new(Kind::ToolNotFoundError, words))
    }
    match (asked, offered) {
        (None | Some(Value::Null), [only]) => Ok(only.clone()),
        (None | Some(Value::Null), _) => {
            refuse("This service has several tools: the config must name one of them in \"tool\".")
        }
        (Some(Value::String(asked)), _) => {
            match offered.iter().find(|offered| id(offered) == id(asked)) {
                Some(offered) if asked == offered || !offered.contains('@') => Ok(asked.clone()),
                Some(offered) if !asked.contains('@') => Ok(offered.clone()),
                // The request names a version outside of the operator's range.
                Some(offered) => {
                    let words = format!("This service offers that tool only as '{offered}'.");
                    Err(Fault::new(Kind::VersionMismatchError, words))
                }
                None => refuse("This service does not have the tool that the config names."),
            }
        }
        _ => refuse("The config's \"tool\" must be a text."),
    }
}

/// Runs the call once it has a slot, and publishes its result.
async fn run(
    broker: &Arc<BrokerServer>,
    id: &[u8],
    BrokerCall {
        call,
        streams,
        is_reply,
    }: BrokerCall,
    waits: Waits,
) {
    let call = CallRequest {
        id: Some(service::new_id()),
        ..call
    };
    let came = broker.link.state();
    if is_reply {
        let report = broker.service.call(call, Sink::none()).await;
        return lost(broker, &report.id, id, "it is a reply itself");
    }
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        let refused = Some(wrong(
            "The request has no id by which it could be answered.",
        ));
        let report = broker
            .service
            .call(CallRequest { refused, ..call }, Sink::none())
            .await;
        return lost(
            broker,
            &report.id,
            id,
            "it has no id by which it could be answered",
        );
    }
    let _place = match call.refused {
        Some(_) => None,
        None => Some(broker.running.enter("").await),
    };
    drop(waits);
    let (sink, events) = Sink::patient(1);
    let parts = async {
        if streams {
            forward(broker, id, events).await
        } else {
            drop(events);
            Ok(0)
        }
    };
    let over = async {
        broker.kill.cancelled().await;
        output::stopped()
    };
    let (report, parts) = tokio::join!(broker.service.call_unless(call, sink, over), parts);
    let reply = match parts {
        Ok(parts) => reply(&report, parts > 0).await,
        Err(()) => ToolServiceResponse::failed(
            "A part of the answer was lost on its way. Ask again if the call may run twice.",
        )
        .encode(),
    };
    waits_for_listeners(broker, &came, id).await;
    match publish(broker, id, reply).await {
        Ok(()) => _ = broker.answered.fetch_add(1, Ordering::Relaxed),
        Err(why) => lost(broker, &report.id, id, &why),
    }
}

/// Publishes the parts of an answer as they come. Returns how many. An error: a part was lost,
/// which ends the stream.
async fn forward(
    broker: &BrokerServer,
    id: &[u8],
    mut events: mpsc::Receiver<Event>,
) -> Result<usize, ()> {
    let mut parts = 0;
    while let Some(event) = events.recv().await {
        let Event::Part(text) = event else { continue };
        let Some(body) = ToolServiceResponse::part(text).encode() else {
            return Err(());
        };
        let sent = tokio::time::timeout(REPLY_TIMEOUT, broker.link.publish(id, &body)).await;
        sent.map_err(|_| ())?.map_err(|_| ())?;
        parts += 1;
    }
    Ok(parts)
}

/// The last reply; `None`: it is larger than a message may be. `told`: parts were sent before it.
/// Their content is not repeated. If the tool ended with a document of its own, that is the last
/// part.
async fn reply(report: &Report, told: bool) -> Option<Vec<u8>> {
    let failed =
        |fault: &Fault| ToolServiceResponse::failed(failure_text(fault, &report.id)).encode();
    match &report.outcome {
        CallResult::Unaskable(_, fault) | CallResult::Failed(fault) => failed(fault),
        CallResult::Output(output) if !(told && report.delivery.streamed) => output
            .read(false, |text: &Text| {
                ToolServiceResponse::whole(output::response(text.as_str())).encode()
            })
            .await
            .unwrap_or_else(|late| failed(&late)),
        _ => ToolServiceResponse::whole(String::new()).encode(),
    }
}

/// The text of an error reply, which the agent reads.
fn failure_text(fault: &Fault, call: &str) -> String {
    let advice = output::advice(fault).map(|advice| {
        if advice.contains("call ID") {
            format!("{advice} Call ID: {call}.")
        } else {
            advice.to_owned()
        }
    });
    let mut words = format!("{}: {}", fault.kind, fault.message);
    for more in [fault.details.as_deref(), advice.as_deref()]
        .into_iter()
        .flatten()
        .filter(|more| !more.is_empty())
    {
        if !words.ends_with(['.', '!', '?', ':', '\n']) {
            words.push('.');
        }
        words.push(' ');
        words.push_str(more);
    }
    words
}

/// Publishes the last reply, again after each loss of the connection: a caller that has it already
/// ignores a second one.
async fn publish(broker: &BrokerServer, id: &[u8], reply: Option<Vec<u8>>) -> Result<(), String> {
    fn large() -> Option<Vec<u8>> {
        ToolServiceResponse::failed(
            "The answer is larger than a message may be. Ask for less of it.",
        )
        .encode()
    }
    let mut body = reply.or_else(large).unwrap_or_default();
    let began = Instant::now();
    loop {
        let left = REPLY_TIMEOUT.saturating_sub(began.elapsed());
        let why = match tokio::time::timeout(left, broker.link.publish(id, &body)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(PublishError::NoListener)) if !is_returning(broker) => {
                return Err(NO_LISTENER.to_owned());
            }
            // The broker's own limit may be lower.
            Ok(Err(PublishError::TooLarge)) => match large() {
                Some(words) if words.len() < body.len() => {
                    body = words;
                    continue;
                }
                _ => return Err("it is larger than a message may be".to_owned()),
            },
            Ok(Err(PublishError::NoListener)) => NO_LISTENER.to_owned(),
            Ok(Err(PublishError::Failed(why))) => why,
            Err(_) => return Err("the broker did not come back in time".to_owned()),
        };
        tracing::info!(target: "toolhost::broker", "a reply is published again: {}", printable(&head(&why, 300)));
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// After an outage of a broker that does not report a missing listener, an answer waits until
/// callers had time to come back.
async fn waits_for_listeners(broker: &BrokerServer, came: &LinkState, id: &[u8]) {
    if !broker.entry.terms.keeps_nothing() || broker.link.state() == *came {
        return;
    }
    if tokio::time::timeout(REPLY_TIMEOUT, broker.link.connected())
        .await
        .is_ok()
        && let LinkState::Connected { since } = broker.link.state()
    {
        let id = shown(id);
        let words = "is answered after an outage: a caller that is not back by then misses it";
        tracing::warn!(target: "toolhost::broker", "request {id} {words}");
        tokio::time::sleep(
            CALLER_RECONNECT_TIME
                .saturating_sub(Timestamp::now().duration_since(since).unsigned_abs()),
        )
        .await;
    }
}

/// Whether the connection is so new that callers may not have reconnected yet.
fn is_returning(broker: &BrokerServer) -> bool {
    match broker.link.state() {
        LinkState::Connected { since } => {
            Timestamp::now().duration_since(since).unsigned_abs() < CALLER_RECONNECT_TIME
        }
        LinkState::Away { .. } => true,
    }
}

/// Counts a request that stays unanswered, and writes it to the run log.
fn lost(broker: &BrokerServer, call: &str, id: &[u8], why: &str) {
    broker.unanswered.fetch_add(1, Ordering::Relaxed);
    let id = shown(id);
    let why = printable(&head(why, 300));
    tracing::error!(target: "toolhost::broker", call, "request {id} is left unanswered: {why}");
}

/// The id of a message, for records.
fn shown(id: &[u8]) -> String {
    printable(&head(&String::from_utf8_lossy(id), 200))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_chooses_among_the_tools_of_its_entry_alone() {
        let offered = ["a:one".to_owned(), "a:two@1".to_owned()];
        let of = |offered: &[String], asked: Option<Value>| tool(offered, asked.as_ref()).ok();
        assert_eq!(of(&offered[..1], None).as_deref(), Some("a:one"));
        assert_eq!(of(&offered, None), None);
        assert_eq!(
            of(&offered, Some(json!("a:one@^2"))).as_deref(),
            Some("a:one@^2")
        );
        for asked in ["a:two", "a:two@1"] {
            assert_eq!(
                of(&offered, Some(json!(asked))).as_deref(),
                Some("a:two@1"),
                "the operator's range"
            );
        }
        for wrong in [
            json!("a:three"),
            json!("a:two@2"),
            json!(["a:one"]),
            json!(""),
        ] {
            assert_eq!(of(&offered, Some(wrong.clone())), None, "{wrong}");
        }
    }
}
