//! Executors: a `Call` in, an `Outcome` (how the tool ended) or a `Fault` (how we failed) out.
//!
//! An executor does not decide who may call, does not widen a confinement, and leaves no process
//! behind.

mod answer;
mod deadline;
pub mod document;
mod frame;
mod from_tool;
mod idle;
pub mod mcp_server;
pub mod method;
mod outcome;
pub mod output;
mod pauses;
pub mod process;
pub mod remote;
mod session;
#[cfg(feature = "wasi")]
pub mod wasm;
pub use answer::{ContentPlaces, Part, ToolAnswer};
pub use deadline::CallDeadline;
pub use from_tool::{
    Event, FromTool, ImageStage, LeftFile, Level, NestedAnswer, NestedCall, Progress, Reply,
    Showing, ToolReceiver, ToolSender, channel,
};
pub use outcome::*;
pub use pauses::{Asking, Pauses};
pub use session::{SessionCall, SessionId};

use crate::egress::Traffic;
use crate::packages::store::EnvironmentLease;
use crate::quantity::{Limit, OVERDUE};
use crate::{broker, fault, manifest, policy};
use futures_util::future::BoxFuture;
use process::grants;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Who calls, until when, and how to stop it.
#[derive(Clone, Debug)]
pub struct Context {
    /// UUID v7 of the call.
    pub id: String,
    pub user: String,
    /// Who authenticated, and pays for the call.
    pub principal: String,
    /// Cancelling it kills and reaps; so does dropping the future.
    pub cancel: CancellationToken,
    /// The time of the call, which began when it was admitted to run.
    pub deadline: CallDeadline,
    /// The network traffic of the call, as it becomes known.
    pub traffic: Arc<Mutex<Traffic>>,
    /// The trace that the call is part of, for whatever it calls.
    pub trace: broker::Trace,
}

impl Context {
    /// A call that begins now, without a trace.
    pub fn new(
        id: impl Into<String>,
        user: impl Into<String>,
        traffic: Arc<Mutex<Traffic>>,
    ) -> Context {
        let user = user.into();
        Context {
            id: id.into(),
            principal: user.clone(),
            user,
            cancel: CancellationToken::new(),
            deadline: CallDeadline::usual("", None),
            traffic,
            trace: broker::Trace::default(),
        }
    }
}

/// One requested execution.
pub struct Call {
    pub manifest: Arc<manifest::Manifest>,
    pub site: manifest::ToolPaths,
    /// Arguments, already checked against the schema, defaults filled in.
    pub input: Value,
    /// `None` for what runs in this process (service methods, extensions).
    pub confinement: Option<policy::Confinement>,
    /// Set for a tool whose work a service elsewhere does.
    pub service: Option<policy::ServiceGrant>,
    /// Most bytes of an answer. (A confinement has a limit of its own.)
    pub output_bytes: u64,
    /// The session that serves the call.
    pub session: Option<SessionCall>,
    /// Its packages, for what goes on after it.
    pub environment: Option<crate::packages::store::EnvironmentLease>,
}

impl Call {
    /// The input as a tool reads it. `Ok(Err)`: the input, or the source that came with it, is over
    /// the limit.
    fn input_within(
        &self,
        confinement: &policy::Confinement,
    ) -> Result<Result<Vec<u8>, Ending>, fault::Fault> {
        // A script of a skill reads the text as it is.
        let text = self
            .input
            .as_str()
            .filter(|_| self.manifest.skill().is_some());
        let input = text.map_or_else(|| serde_json::to_vec(&self.input), |it| Ok(it.into()));
        let input = input.map_err(|e| {
            fault::Fault::new(fault::Kind::InternalError, "the input cannot be written")
                .person(e.to_string())
        })?;
        let allowed = confinement.shape.limits.get(Limit::InputBytes);
        let source = confinement.per_call.source.as_ref().map_or(0, String::len);
        let fits = input.len().max(source) as u64 <= allowed;
        Ok(if fits {
            Ok(input)
        } else {
            Err(Ending::OverLimit {
                limit: Limit::InputBytes,
                allowed,
            })
        })
    }
}

pub type Reading<'a> = BoxFuture<'a, Result<policy::Script, fault::Fault>>;
pub type Running<'a> = BoxFuture<'a, Result<Outcome, fault::Fault>>;

/// A gauge in the metrics of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    pub name: &'static str,
    pub what: &'static str,
    pub value: usize,
}

/// One way to run tools. Dropping the future cancels, kills and reaps.
pub trait Executor: Send + Sync {
    fn run<'a>(
        &'a self,
        context: &'a Context,
        call: Call,
        from_tool: &'a ToolSender,
    ) -> Running<'a>;

    /// Reads the script of a shape for one call.
    fn read<'a>(&'a self, shape: &'a policy::Shape, deadline: &'a CallDeadline) -> Reading<'a> {
        let place = shape.script_place();
        let path = shape.script.clone().unwrap_or_default();
        Box::pin(async move {
            let read = move || grants::read_script(&place);
            let mut script = deadline.run_on_files(&shape.tool, read).await??;
            script.file.path = path;
            Ok(script)
        })
    }

    /// Does work ahead of a call, if there is any, so that it does not count against the call's
    /// time limit.
    fn prepare<'a>(&'a self, _shape: &'a policy::Shape) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Starts an MCP server for the list of its tools alone, which is its answer.
    fn list_tools<'a>(
        &'a self,
        _confinement: &'a policy::Confinement,
        _environment: Option<EnvironmentLease>,
        _traffic: &'a Mutex<Traffic>,
    ) -> Running<'a> {
        let message = "This host starts no MCP servers.";
        Box::pin(async move { Err(fault::Fault::new(fault::Kind::CapabilityError, message)) })
    }

    /// Gauges of what the executor holds now.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    /// The executor's open connections, each as `status` shows it.
    fn connections(&self) -> Vec<Value> {
        Vec::new()
    }
}

/// Time to prepare that does not shorten the tool's own time.
const FREE_PREPARATION: Duration = Duration::from_millis(500);

/// The deadlines of one call: preparing included, it ends within its limit and a second.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started_at: Instant,
    limit: Duration,
}

impl Clock {
    pub fn new(started_at: Instant, limit_ms: u64) -> Clock {
        Clock {
            started_at,
            limit: Duration::from_millis(limit_ms),
        }
    }

    /// The tool's own time, if it starts now: its limit, unless preparing took what there was to
    /// spare.
    pub fn left(&self) -> Duration {
        self.limit.min(self.until(FREE_PREPARATION))
    }

    /// As `left`, in whole milliseconds.
    pub fn left_ms(&self) -> u64 {
        u64::try_from(self.left().as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
    }

    /// The time left until the host gives up on the call, which has stood still for so long.
    pub fn overdue(&self, stood: Duration) -> Duration {
        self.until(OVERDUE + stood)
    }

    /// Within what time an answer is read.
    pub fn reading(&self, call: &CallDeadline) -> CallDeadline {
        CallDeadline {
            began: self.started_at,
            limit: self.limit + OVERDUE,
            ..call.clone()
        }
    }

    fn until(&self, beyond: Duration) -> Duration {
        self.limit
            .saturating_add(beyond)
            .saturating_sub(self.started_at.elapsed())
    }

    /// Runs one step of preparing. If it is not done in time, it is dropped, and the fault says
    /// `under_way`.
    pub async fn prepare<T, E: From<fault::Fault>>(
        &self,
        under_way: &str,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if self.until(FREE_PREPARATION).is_zero() {
            let message = "the time limit of the call passed before the tool could be started";
            return Err(fault::Fault::new(fault::Kind::TimeoutError, message)
                .retryable()
                .into());
        }
        let late = || {
            fault::Fault::new(fault::Kind::TimeoutError, format!("{under_way}; try again"))
                .retryable()
                .into()
        };
        tokio::time::timeout(self.until(FREE_PREPARATION), step)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_preparing_is_taken_from_the_tools_time() {
        let ago = |ms| {
            Instant::now()
                .checked_sub(Duration::from_millis(ms))
                .expect("up for longer")
        };
        let left = |ms| Clock::new(ago(ms), 2000).left().as_millis();
        assert_eq!(left(0), 2000);
        assert_eq!(left(300), 2000);
        assert!((1..=1000).contains(&left(1500)), "{}", left(1500));
        assert_eq!(left(3000), 0);
        assert_eq!(
            Clock::new(Instant::now(), u64::MAX).left(),
            Duration::from_millis(u64::MAX)
        );
    }
}
