//! Alerts: what somebody should look at goes to a program of the operator's, as one JSON object on
//! standard input. No call waits for it. Alerts of one kind about one tool are sent once a minute
//! at most, with their number. None has arguments, answers or messages.

use super::helper_program;
use super::ledger::{self, Ledger};
use crate::base::lock;
use crate::base::text::printable;
use crate::policy::WritablePaths;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Alerts of one kind about one tool are sent once in this time.
const WINDOW: Duration = Duration::from_secs(60);
/// Longest run of the program.
const RUN_TIMEOUT: Duration = Duration::from_secs(10);
/// Waits before each attempt, seconds.
const DELAYS: [u64; 3] = [0, 1, 5];
/// So many calls may end in one way in a minute.
const USUAL_RATE: u64 = 20;
/// Most alerts that wait; others are only counted.
const MAX_ALERTS: usize = 256;
/// Most that the program may print.
const MAX_PRINTED_BYTES: u64 = 64 * 1024;

/// `[alerts]` of the host's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertSettings {
    /// The path of a program, and its arguments.
    pub command: Vec<String>,
    #[serde(default)]
    pub per_minute: Rates,
}

impl AlertSettings {
    /// Why no alert would be sent.
    pub fn fault(&self) -> Option<String> {
        let why = helper_program::check(&self.command).err()?;
        Some(format!(
            "[alerts] command: no alert can be sent: {}",
            printable(&why)
        ))
    }
}

/// How many calls may end so in a minute without an alert; `USUAL_RATE` where it is not said.
pub type Rates = BTreeMap<Ended, u64>;

/// How calls end that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    Refusals,
    Crashes,
    Timeouts,
    Limits,
}

/// What somebody should look at.
#[derive(Debug, Serialize)]
#[serde(
    tag = "alert",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Alert {
    /// A tool or a call requested more than it may have.
    SecurityError(AlertedCall),
    /// This host failed.
    HostFailed(AlertedCall),
    /// A call ended so: more of them in a minute than the configuration allows are sent.
    TooMany {
        what: Ended,
        #[serde(flatten)]
        last: AlertedCall,
    },
    /// What a person approved is not what lies there.
    ApprovalChanged {
        tool: String,
    },
    ChainBroken {
        log: PathBuf,
        finding: String,
    },
    HeadNotWritten {
        file: PathBuf,
        why: String,
    },
    /// Tools or policies cannot be read: the run log says why.
    NotReloaded,
}

/// The call behind an alert; `toolhost audit --call ID` shows it.
#[derive(Debug, Serialize)]
pub struct AlertedCall {
    pub call: String,
    pub tool: Option<String>,
    pub caller: String,
}

/// The queue of alerts for the program. Without one they are dropped.
#[derive(Debug, Default)]
pub struct Alerts {
    state: Mutex<AlertState>,
}

#[derive(Debug, Default)]
struct AlertState {
    sending: Option<Sending>,
    lost: u64,
}

#[derive(Debug)]
struct Sending {
    alerts: mpsc::Sender<Value>,
    task: JoinHandle<()>,
}

/// The alerts of one kind about one tool that were not sent.
#[derive(Debug)]
struct Window {
    until: Instant,
    is_sent: bool,
    count: u64,
    /// So many are not worth an alert.
    allowed: u64,
    last: Value,
}

impl Alerts {
    /// Starts the task that runs the program. Must be called within a tokio runtime.
    pub fn begin(self: &Arc<Alerts>, settings: AlertSettings, ledger: Arc<Ledger>) {
        let (alerts, waiting) = mpsc::channel(MAX_ALERTS);
        let program = AlertProgram {
            settings,
            ledger,
            alerts: self.clone(),
        };
        let task = tokio::spawn(program.send_all(waiting));
        lock(&self.state).sending = Some(Sending { alerts, task });
    }

    /// Sends what waits, for at most this long.
    pub(super) async fn finish(&self, within: Duration) {
        let Some(Sending {
            alerts, mut task, ..
        }) = lock(&self.state).sending.take()
        else {
            return;
        };
        drop(alerts);
        if timeout(within, &mut task).await.is_err() {
            task.abort();
            tracing::warn!(target: "toolhost::alert", "the alert program took too long: alerts \
                are lost");
        }
    }

    /// Sends an alert. Waits for nothing.
    pub fn send(&self, alert: Alert) {
        let mut state = lock(&self.state);
        let sending = state.sending.as_ref();
        let sent = sending.is_none_or(|sending| sending.alerts.try_send(json!(alert)).is_ok());
        state.lost += u64::from(!sent);
    }
}

/// What runs the program.
struct AlertProgram {
    settings: AlertSettings,
    ledger: Arc<Ledger>,
    alerts: Arc<Alerts>,
}

impl AlertProgram {
    /// Sends alerts until the channel is closed: the first of its kind at once, others of that kind
    /// together when their window is over.
    async fn send_all(self, mut waiting: mpsc::Receiver<Value>) {
        let mut windows = HashMap::<String, Window>::new();
        loop {
            let due = windows.values().map(|window| window.until).min();
            let received = tokio::select! {
                received = waiting.recv() => received,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    Some(Value::Null)
                }
            };
            let now = Instant::now();
            let is_last = received.is_none();
            if let Some(alert) = received.filter(|alert| !alert.is_null()) {
                let window = self.window(&mut windows, &alert);
                (window.count, window.last) = (window.count + 1, alert);
            }
            for window in windows.values_mut() {
                let is_due = is_last || !window.is_sent || window.until <= now;
                if is_due && window.count > window.allowed {
                    self.deliver(window.last.take(), window.count).await;
                    (window.count, window.allowed) = (0, 0);
                    (window.until, window.is_sent) = (now + WINDOW, true);
                }
            }
            windows.retain(|_, window| window.until > now);
            if is_last {
                return;
            }
        }
    }

    fn window<'w>(
        &self,
        windows: &'w mut HashMap<String, Window>,
        alert: &Value,
    ) -> &'w mut Window {
        let rate = Ended::deserialize(&alert["what"]).ok().map(|what| {
            let rates = &self.settings.per_minute;
            rates.get(&what).copied().unwrap_or(USUAL_RATE)
        });
        let about = if rate.is_some() { "what" } else { "tool" };
        let key = format!("{} {}", alert["alert"], alert[about]);
        windows.entry(key).or_insert_with(|| Window {
            until: Instant::now() + WINDOW,
            is_sent: false,
            count: 0,
            allowed: rate.unwrap_or(0),
            last: Value::Null,
        })
    }

    /// Runs the program, several times if it fails.
    async fn deliver(&self, mut alert: Value, count: u64) {
        let host = nix::unistd::gethostname().unwrap_or_default();
        alert["time"] = json!(jiff::Timestamp::now());
        alert["host"] = json!(host.to_string_lossy());
        alert["count"] = json!(count);
        alert["lost"] = json!(std::mem::take(&mut lock(&self.alerts.state).lost));
        let alert = format!("{alert}\n");
        let mut failed = String::new();
        for delay in DELAYS {
            sleep(Duration::from_secs(delay)).await;
            match self.run(alert.as_bytes()).await {
                Ok(()) => return,
                Err(why) => failed = printable(&why),
            }
        }
        lock(&self.alerts.state).lost += count;
        tracing::error!(target: "toolhost::alert", "an alert was not delivered: {failed}");
    }

    async fn run(&self, alert: &[u8]) -> Result<(), String> {
        let command = &self.settings.command;
        let files = command.iter().map(Path::new);
        let files = files.filter(|word| word.is_absolute());
        ledger::check_unwritten(files, &self.ledger, &WritablePaths::default())
            .map_err(|fault| fault.person.unwrap_or(fault.message))?;
        let run = helper_program::run(command, alert, MAX_PRINTED_BYTES);
        let ran = timeout(RUN_TIMEOUT, run).await;
        ran.unwrap_or_else(|_| Err(format!("it runs longer than {} s", RUN_TIMEOUT.as_secs())))
            .map(drop)
    }
}
