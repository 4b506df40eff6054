//! The trace that a call is part of, and the spans of it for a collector.
//!
//! No call waits for a collector, and no span holds arguments, answers, secrets or paths of this
//! host.

mod collector;

pub use collector::Collector;

use super::Service;
use super::call_ended::CallEnded;
use crate::base::lock;
use crate::base::text::printable;
use crate::broker::Trace;
use http::HeaderMap;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Spans that may wait for the collector; further ones are lost, and counted.
const QUEUE: usize = 4096;
/// Longest `traceparent` and `tracestate`, bytes.
const MAX_HEADER_BYTES: (usize, usize) = (128, 512);
/// The lengths of the parts of a `traceparent`: version, trace, span, flags.
const PARTS: [usize; 4] = [2, 32, 16, 2];

/// What a request says of the trace that it is part of (W3C Trace Context).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// `None` if `parent` is not a valid `traceparent`. A `tracestate` that cannot be read is
    /// ignored.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<TraceContext> {
        let parent = parent.trim_matches([' ', '\t']);
        let parts: Vec<&str> = parent.splitn(PARTS.len() + 1, '-').collect();
        let whole = parts.iter().zip(PARTS).all(|(part, length)| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        let [version, trace, span, flags, more @ ..] = &parts[..] else {
            return None;
        };
        // A later version may say more (W3C Trace Context, section 4.3).
        if parent.len() > MAX_HEADER_BYTES.0
            || !whole
            || *version == "ff"
            || *version == "00" && !more.is_empty()
        {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok()?;
        let span = SpanId::from_hex(span).ok()?;
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
        let state = state.filter(|state| {
            state.len() <= MAX_HEADER_BYTES.1 && state.bytes().all(|b| (b' '..=b'~').contains(&b))
        });
        let state = state
            .and_then(|state| state.parse().ok())
            .unwrap_or_default();
        let context = SpanContext::new(trace, span, flags, true, state);
        context.is_valid().then_some(TraceContext(context))
    }

    /// Reads the context from the headers of a request.
    pub fn from_headers(headers: &HeaderMap) -> Option<TraceContext> {
        fn texts<'h>(name: &str, headers: &'h HeaderMap) -> Option<Vec<&'h str>> {
            headers
                .get_all(name)
                .iter()
                .map(|text| text.to_str().ok())
                .collect()
        }
        let parents = texts("traceparent", headers)?;
        let [parent] = parents[..] else { return None };
        // Several lines are one list (W3C Trace Context, section 3.3.1).
        TraceContext::parse(
            parent,
            texts("tracestate", headers)
                .map(|lines| lines.join(","))
                .as_deref(),
        )
    }

    /// 32 hex digits.
    pub fn id(&self) -> String {
        self.0.trace_id().to_string()
    }

    pub fn parent(&self) -> String {
        let sampled = self.0.trace_flags() & TraceFlags::SAMPLED;
        format!(
            "00-{}-{}-{:02x}",
            self.0.trace_id(),
            self.0.span_id(),
            sampled
        )
    }

    /// The text of `tracestate`; empty if there is none.
    pub fn state(&self) -> String {
        self.0.trace_state().header()
    }

    /// The context as the properties of a broker message.
    pub fn sent(&self) -> Trace {
        Trace {
            parent: Some(self.parent()),
            state: Some(self.state()).filter(|state| !state.is_empty()),
        }
    }
}

/// The queue of spans for the collector. Without a collector no spans are made.
#[derive(Debug, Default)]
pub(super) struct Traces {
    sending: Mutex<Option<Sending>>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Sending {
    spans: mpsc::Sender<SpanData>,
    task: JoinHandle<()>,
}

impl Traces {
    /// Starts sending spans to this collector.
    fn begin(&self, collector: Collector) {
        let (spans, waiting) = mpsc::channel(QUEUE);
        let task = tokio::spawn(collector.send_all(waiting, self.lost.clone()));
        *lock(&self.sending) = Some(Sending { spans, task });
    }

    /// Sends the queued spans. Waits at most this long.
    async fn finish(&self, within: Duration) {
        let Some(Sending { spans, mut task }) = lock(&self.sending).take() else {
            return;
        };
        let waiting = spans.max_capacity() - spans.capacity();
        drop(spans);
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
            tracing::warn!(target: "toolhost::traces", "the collector took too long: some \
                {waiting} spans are lost");
        }
    }

    fn send(&self, span: SpanData) {
        if lock(&self.sending)
            .as_ref()
            .is_some_and(|sending: &Sending| sending.spans.try_send(span).is_err())
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The span of a call that begins now. `parent`: the context that its request named.
    pub fn of_call(self: &Arc<Self>, parent: Option<TraceContext>) -> CallSpan {
        let sampled = parent.as_ref().is_none_or(|parent| parent.0.is_sampled());
        let own = (sampled && lock(&self.sending).is_some()).then(|| {
            let ids = RandomIdGenerator::default();
            let trace = parent
                .as_ref()
                .map_or_else(|| ids.new_trace_id(), |parent| parent.0.trace_id());
            let state = parent
                .as_ref()
                .map_or_else(TraceState::default, |parent| parent.0.trace_state().clone());
            TraceContext(SpanContext::new(
                trace,
                ids.new_span_id(),
                TraceFlags::SAMPLED,
                false,
                state,
            ))
        });
        CallSpan {
            traces: own.is_some().then(|| self.clone()),
            parent,
            own,
            began: SystemTime::now(),
        }
    }
}

#[derive(Debug)]
pub(super) struct CallSpan {
    traces: Option<Arc<Traces>>,
    parent: Option<TraceContext>,
    /// The context of the call's own span, if spans are sent to a collector.
    own: Option<TraceContext>,
    began: SystemTime,
}

impl CallSpan {
    /// For work that is part of no trace.
    pub fn none() -> CallSpan {
        CallSpan {
            traces: None,
            parent: None,
            own: None,
            began: SystemTime::now(),
        }
    }

    /// The context to pass on: the call's own span, else the context that its request named.
    pub fn context(&self) -> Option<&TraceContext> {
        self.own.as_ref().or(self.parent.as_ref())
    }

    /// Sends the spans of a call that is over, and of its stages.
    pub fn end(&self, ended: &CallEnded) {
        let (Some(traces), Some(own)) = (&self.traces, &self.own) else {
            return;
        };
        let CallEnded { report, line, .. } = ended;
        let id = if line.version.is_some() {
            line.tool.as_str()
        } else {
            ""
        };
        let error = report.outcome.fault().map(|fault| fault.kind.to_string());
        let texts = [
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", id),
            ("gen_ai.tool.call.id", &line.call),
            (
                "toolhost.tool.version",
                line.version.as_deref().unwrap_or_default(),
            ),
            ("toolhost.caller", &printable(&line.user)),
            ("toolhost.policy", &ended.policy),
            ("toolhost.outcome", error.as_deref().unwrap_or("success")),
            ("error.type", error.as_deref().unwrap_or_default()),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let mut attributes: Vec<_> = texts
            .map(|(name, text)| KeyValue::new(name, text.to_owned()))
            .collect();
        let denials = i64::try_from(report.denials.observed.len()).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("toolhost.denials", denials));
        let name = format!("execute_tool {id}");
        let status = error.map_or(Status::Unset, Status::error);
        let parent = self
            .parent
            .as_ref()
            .map_or(SpanId::INVALID, |parent| parent.0.span_id());
        let times = (self.began, self.began + ended.took);
        traces.send(SpanData {
            parent_span_is_remote: self.parent.is_some(),
            attributes,
            status,
            ..span(own.0.clone(), parent, name.trim_end().to_owned(), times)
        });
        for (stage, began, took) in &ended.stages {
            let id = RandomIdGenerator::default().new_span_id();
            let state = own.0.trace_state().clone();
            let context = SpanContext::new(own.0.trace_id(), id, TraceFlags::SAMPLED, false, state);
            let times = (self.began + *began, self.began + *began + *took);
            traces.send(span(
                context,
                own.0.span_id(),
                stage.name().to_owned(),
                times,
            ));
        }
    }
}

/// A span of this process.
fn span(
    span_context: SpanContext,
    parent_span_id: SpanId,
    name: String,
    (start_time, end_time): (SystemTime, SystemTime),
) -> SpanData {
    let scope = InstrumentationScope::builder("toolhost").with_version(env!("CARGO_PKG_VERSION"));
    SpanData {
        span_context,
        parent_span_id,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time,
        end_time,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: scope.build(),
    }
}

impl Service {
    /// Starts sending the spans of all calls to this collector. Must be called within a tokio
    /// runtime.
    pub fn trace_to(&self, collector: Collector) {
        self.traces.begin(collector);
    }

    /// Sends the queued spans, waiting at most this long, and stops tracing.
    pub async fn flush_traces(&self, within: Duration) {
        self.traces.finish(within).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_and_written_and_what_is_none_is_left_alone() {
        let read = TraceContext::parse(PARENT, Some("a=1,b=2")).expect("a context");
        assert_eq!(
            (read.parent(), read.state()),
            (PARENT.to_owned(), "a=1,b=2".to_owned())
        );
        assert_eq!(read.id(), "0af7651916cd43dd8448eb211c80319c");
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-may-come";
        assert_eq!(
            TraceContext::parse(later, None)
                .expect("of a later version")
                .parent(),
            PARENT
        );
        let (start, end) = (
            "00-0af7651916cd43dd8448eb211c80319c-",
            "-b7ad6b7169203331-01",
        );
        for bad in [
            "",
            &PARENT[..52],
            &format!("{PARENT}-more"),
            &format!("{PARENT}-"),
            &format!("{PARENT}\n"),
            &format!("ff{}", &PARENT[2..]),
            &PARENT.to_uppercase(),
            &PARENT.replace("-0af", "-+af"),
            &format!("00-{}{end}", "0".repeat(32)),
            &format!("{start}{}-01", "0".repeat(16)),
        ] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad:?}");
        }
        assert_eq!(
            TraceContext::parse(&format!("cc{}-{}", &PARENT[2..], "x".repeat(200)), None),
            None,
            "too long"
        );
        for state in ["a", "a=\u{1}", "é=1", &"a=1,".repeat(200)] {
            assert_eq!(
                TraceContext::parse(PARENT, Some(state))
                    .expect("a context")
                    .state(),
                "",
                "{state:?}"
            );
        }
    }
}
