//! The spans of calls, for a collector.
//!
//! No call waits for a collector, and no span holds arguments, answers, secrets or paths of this
//! host.

use super::collector::Collector;
use super::context::TraceContext;
use crate::base::lock;
use crate::base::text::printable;
use crate::service::call_ended::CallEnded;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Spans that may wait for the collector; further ones are lost, and counted.
const QUEUE: usize = 4096;

/// The queue of spans for the collector. Without a collector no spans are made.
#[derive(Debug, Default)]
pub struct Traces {
    sending: Mutex<Option<Sending>>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Sending {
    spans: mpsc::Sender<SpanData>,
    task: JoinHandle<()>,
}

impl Traces {
    /// Starts sending spans to this collector. Must be called within a tokio runtime.
    pub fn begin(&self, collector: Collector) {
        let (spans, waiting) = mpsc::channel(QUEUE);
        let task = tokio::spawn(collector.send_all(waiting, self.lost.clone()));
        *lock(&self.sending) = Some(Sending { spans, task });
    }

    /// Sends the queued spans, waiting at most this long, and stops tracing.
    pub async fn finish(&self, within: Duration) {
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
    pub(in crate::service) fn of_call(self: &Arc<Self>, parent: Option<TraceContext>) -> CallSpan {
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
pub struct CallSpan {
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
    pub(in crate::service) fn end(&self, ended: &CallEnded) {
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
        let denials = i64::try_from(report.observed.denials.observed.len()).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("toolhost.denials", denials));
        let name = format!("execute_tool {id}");
        let status = error.map_or(Status::Unset, Status::error);
        let parent = self
            .parent
            .as_ref()
            .map_or(SpanId::INVALID, |parent| parent.0.span_id());
        let times = self.began..self.began + ended.took;
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
            let times = self.began + *began..self.began + *began + *took;
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
    times: Range<SystemTime>,
) -> SpanData {
    let scope = InstrumentationScope::builder("toolhost").with_version(env!("CARGO_PKG_VERSION"));
    SpanData {
        span_context,
        parent_span_id,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: times.start,
        end_time: times.end,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: scope.build(),
    }
}
