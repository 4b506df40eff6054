//! What is said between this host and one MCP server: requests that are open side by side, each under
//! a number, and what the server says beside its answers. It reads and writes nothing itself.

use super::wire::{self, Few, Received, Refusal};
use crate::base::json::Text;
use crate::egress::Traffic;
use crate::executor::{Event, Level, Progress, ToolSender};
use crate::quantity::{KIB, Limit};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a cancelled call may stay unanswered.
pub const CANCELLED: Duration = Duration::from_secs(2);
/// How long a call stands still while its caller is asked.
const ASKED: Duration = Duration::from_secs(300);
/// Most open requests, those that stand still included.
const MAX_OPEN: usize = 64;
/// Most messages that the server has not read. Meanwhile nothing is read from it.
const MAX_UNREAD: usize = 64;
/// Longest line of its log, and longest notification that is read, bytes.
pub const MAX_NOTICE: usize = 16 * KIB as usize;
/// How much of its log is read between two requests, bytes.
const MAX_LOG_BYTES: usize = 256 * KIB as usize;
/// Most lines of its log that wait for a call.
pub const MAX_LOG_LINES: usize = 64;

/// How a server ended.
#[derive(Clone, Debug)]
pub enum ServerEnd {
    /// By itself, or by a limit of its launcher.
    Exited(crate::sandbox::protocol::Exited),
    Over(Limit),
    /// It closed its stdin or stdout, and did not end.
    Closed,
    /// It wrote something else than a message, which begins so.
    Printed(String),
    /// It did not answer a call that was cancelled.
    Unanswered,
    /// Nobody needs it, or may use it any more.
    Ended,
}

/// What a call gets from its server.
#[derive(Debug)]
pub enum Reply {
    Answer {
        result: Result<Text, Refusal>,
        /// CPU time of the server meanwhile.
        cpu_ms: Option<u64>,
    },
    /// It asks a person, and its call stands still, under this name.
    Question {
        name: String,
        params: Text,
    },
    Ended(ServerEnd),
}

/// A call that was not sent, because its server may be about to end.
#[derive(Debug)]
pub struct Unsent {
    pub params: Value,
}

/// To whom the reply goes.
pub type Asker = oneshot::Sender<Result<Reply, Unsent>>;

/// A request that comes, and who waits for it.
pub struct NewAsk {
    /// Its number for its caller.
    pub number: u64,
    pub ask: Box<Ask>,
    pub to: Asker,
}

impl NewAsk {
    pub fn give_back(self) {
        let params = self.ask.params;
        let _ = self.to.send(Err(Unsent { params }));
    }
}

/// A request to a server.
pub struct Ask {
    pub method: &'static str,
    pub params: Value,
    pub events: ToolSender,
    /// Of a call: what the server does with its network meanwhile. Only calls are cancelled.
    pub traffic: Option<Arc<Mutex<Traffic>>>,
    /// Its caller can be asked.
    pub is_askable: bool,
    /// The name of a call that stands still, and what its caller answered.
    pub answered: Option<(String, Value)>,
    /// How much more of the server's log it takes.
    pub log_bytes: u64,
}

impl Ask {
    fn log(&mut self, line: &str) {
        let bytes = line.len() as u64 + 1;
        match self.log_bytes.checked_sub(bytes) {
            Some(left) => {
                self.log_bytes = left;
                self.events.log(line.to_owned());
            }
            None => self.log_bytes = 0,
        }
    }
}

/// A request that is open.
pub struct OpenAsk {
    /// Its number for its caller, and for the server.
    number: u64,
    wire: u64,
    /// The tool that it calls.
    tool: Value,
    pub cpu_before: Option<u64>,
    pub state: AskState,
}

pub enum AskState {
    Asked(Box<Ask>, Asker),
    StandsStill {
        name: String,
        /// What the server waits for.
        request: Text,
        until: Instant,
    },
    Cancelled {
        until: Instant,
    },
}

impl OpenAsk {
    fn until(&self) -> Option<Instant> {
        match &self.state {
            AskState::Asked(..) => None,
            AskState::StandsStill { until, .. } | AskState::Cancelled { until } => Some(*until),
        }
    }

    /// What somebody waits for.
    pub fn ask(&self) -> Option<&Ask> {
        match &self.state {
            AskState::Asked(ask, _) => Some(ask),
            _ => None,
        }
    }

    /// Where its traffic is noted.
    pub fn traffic(&self) -> Option<&Mutex<Traffic>> {
        self.ask()?.traffic.as_deref()
    }

    pub fn reply(self, reply: Reply) {
        if let AskState::Asked(_, to) = self.state {
            let _ = to.send(Ok(reply));
        }
    }
}

/// A request, and what the server answered.
pub type Answered = (OpenAsk, Result<Text, Refusal>);

#[derive(Default)]
pub struct Dialogue {
    pub open: Vec<OpenAsk>,
    /// Who waits until no cancelled call is open.
    settling: Vec<oneshot::Sender<()>>,
    unread: VecDeque<Vec<u8>>,
    /// How much of the first was sent.
    sent: usize,
    last_wire: u64,
    /// Bytes that came since the last answer.
    unasked: usize,
    log: VecDeque<String>,
    /// Bytes of its log since the last request.
    logged: usize,
    /// The server said that its tools changed.
    pub has_changed: bool,
}

impl Dialogue {
    /// What is to be sent next.
    pub fn next_bytes(&self) -> &[u8] {
        self.unread.front().map_or(&[], |line| &line[self.sent..])
    }

    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.next_bytes().is_empty() {
            self.unread.pop_front();
            self.sent = 0;
        }
    }

    pub fn may_read(&self) -> bool {
        self.unread.len() < MAX_UNREAD
    }

    /// Whether the server has answered all that was cancelled. If not, it may end soon, and all that
    /// it serves with it.
    pub fn is_settled(&self) -> bool {
        let mut open = self.open.iter();
        !open.any(|it| matches!(it.state, AskState::Cancelled { .. }))
    }

    /// Says when it has. Where it ends before, `to` is dropped.
    pub fn settle(&mut self, to: oneshot::Sender<()>) {
        self.settling.push(to);
        self.settled();
    }

    fn settled(&mut self) {
        if self.is_settled() {
            for to in self.settling.drain(..) {
                let _ = to.send(());
            }
        }
    }

    /// Sends a request, or the answer that a call stands still for.
    pub fn ask(&mut self, new: NewAsk, cpu: Option<u64>) {
        let NewAsk {
            number,
            mut ask,
            to,
        } = new;
        self.log.drain(..).for_each(|line| ask.log(&line));
        self.logged = 0;
        let tool = ask.params["name"].clone();
        let answered = ask.answered.take();
        let resumed = answered.and_then(|(name, answer)| self.resume(&name, &tool, &answer));
        let wire = match resumed {
            Some(wire) => wire,
            None if self.open.len() >= MAX_OPEN => {
                let message = "its server has too many open calls".to_owned();
                let result = Err(Refusal { message });
                let _ = to.send(Ok(Reply::Answer {
                    result,
                    cpu_ms: None,
                }));
                return;
            }
            None => {
                self.last_wire += 1;
                if ask.traffic.is_some() {
                    ask.params["_meta"]["progressToken"] = json!(self.last_wire);
                }
                let params = std::mem::take(&mut ask.params);
                let line = wire::request(self.last_wire, ask.method, &params);
                self.unread.push_back(line);
                self.last_wire
            }
        };
        self.open.push(OpenAsk {
            number,
            wire,
            tool,
            cpu_before: cpu,
            state: AskState::Asked(ask, to),
        });
    }

    /// Answers what a call of this tool stands still for.
    fn resume(&mut self, name: &str, tool: &Value, answer: &Value) -> Option<u64> {
        let at = self.open.iter().position(|it| {
            let stands =
                matches!(&it.state, AskState::StandsStill { name: own, .. } if own == name);
            stands && it.tool == *tool
        });
        let before = self.open.swap_remove(at?);
        if let AskState::StandsStill { request, .. } = &before.state {
            self.unread.push_back(wire::answer(request, answer));
        }
        Some(before.wire)
    }

    /// Nobody waits for the request any more.
    pub fn gone(&mut self, number: u64) {
        let Some(at) = self.open.iter().position(|it| it.number == number) else {
            return;
        };
        if self.open[at].traffic().is_some() {
            self.cancel(at);
        } else if self.open[at].ask().is_some() {
            self.open.swap_remove(at);
        }
    }

    fn cancel(&mut self, at: usize) {
        let until = Instant::now() + CANCELLED;
        self.open[at].state = AskState::Cancelled { until };
        let params = json!({"requestId": self.open[at].wire, "reason": "nobody waits for it"});
        let line = wire::notification("notifications/cancelled", &params);
        self.unread.push_back(line);
    }

    /// Sends a notification.
    pub fn notify(&mut self, method: &str) {
        self.unread
            .push_back(wire::notification(method, &json!({})));
    }

    /// When the first of what stands still or was cancelled is over.
    pub fn until(&self) -> Option<Instant> {
        self.open.iter().filter_map(OpenAsk::until).min()
    }

    /// Cancels what stood still for too long. False: a cancelled call was not answered in time.
    pub fn expire(&mut self) -> bool {
        let now = Instant::now();
        for at in 0..self.open.len() {
            if let AskState::StandsStill { request, until, .. } = &self.open[at].state
                && *until <= now
            {
                let line = wire::answer(request, &json!({"action": "cancel"}));
                self.unread.push_back(line);
                self.cancel(at);
            }
        }
        self.until().is_none_or(|until| until > now)
    }

    /// The one request that somebody waits for, if it is a call: what names no call can only mean that.
    fn only(&self) -> Option<usize> {
        let mut asked = (0..self.open.len()).filter(|at| self.open[*at].ask().is_some());
        let only = asked.next().filter(|_| asked.next().is_none())?;
        self.open[only].traffic().map(|_| only)
    }

    /// Whether nobody waits for anything: what stands still waits itself.
    pub fn is_idle(&self) -> bool {
        let mut open = self.open.iter();
        open.all(|it| matches!(it.state, AskState::StandsStill { .. }))
    }

    /// Counts what comes, before anything is done with it.
    pub fn count(&mut self, bytes: usize) {
        self.unasked = self.unasked.saturating_add(bytes);
    }

    /// How many bytes came since the last answer.
    pub fn unasked(&self) -> usize {
        self.unasked
    }

    /// Takes a message of the server. Returns what it answers, with the answer.
    pub fn take(&mut self, received: Received) -> Option<Answered> {
        match received {
            Received::Answer(wire, result) => {
                // One to nothing that is open is late, or was never asked for.
                if let Some(at) = self.open.iter().position(|it| it.wire == wire) {
                    self.unasked = 0;
                    let open = self.open.swap_remove(at);
                    self.settled();
                    return Some((open, result));
                }
            }
            Received::Request { id, method, params } => match method.as_str() {
                "ping" => self.unread.push_back(wire::answer(&id, &json!({}))),
                "elicitation/create" => self.question(id, params),
                _ => self.unread.push_back(wire::unserved(&id)),
            },
            Received::Notification { method, params } => self.notice(&method, &params),
        }
        None
    }

    /// Hands on a question to a person, or declines it.
    fn question(&mut self, request: Text, params: Text) {
        let is_askable = |at: &usize| self.open[*at].ask().is_some_and(|ask| ask.is_askable);
        let Some(at) = self.only().filter(is_askable) else {
            let declined = wire::answer(&request, &json!({"action": "decline"}));
            self.unread.push_back(declined);
            return;
        };
        let name = uuid::Uuid::new_v4().to_string();
        let stands = AskState::StandsStill {
            name: name.clone(),
            request,
            until: Instant::now() + ASKED,
        };
        if let AskState::Asked(_, to) = std::mem::replace(&mut self.open[at].state, stands) {
            let _ = to.send(Ok(Reply::Question { name, params }));
        }
    }

    fn notice(&mut self, method: &str, params: &Text) {
        self.has_changed |= method == "notifications/tools/list_changed";
        if params.as_str().len() > MAX_NOTICE {
            return;
        }
        let mut params = params.value();
        if method == "notifications/progress" {
            let wire = params["progressToken"].as_u64();
            let of = self.open.iter().find(|it| Some(it.wire) == wire);
            if let Some(members) = params.as_object_mut() {
                members.retain(|name, _| ["progress", "total", "message"].contains(&name.as_str()));
            }
            if let Some(ask) = of.and_then(OpenAsk::ask)
                && let Ok(progress) = serde_json::from_value::<Progress>(params)
            {
                ask.events.send(Event::Progress(progress));
            }
        } else if method == "notifications/message"
            && let Some(ask) = self.only().and_then(|at| self.open[at].ask())
        {
            let level = serde_json::from_value(params["level"].take()).unwrap_or(Level::Info);
            let text = params["data"].as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| params["data"].to_string());
            ask.events.send(Event::Message(level, text));
        }
    }

    /// Lines of its log go to the requests that are open, else to the next one. What is more than
    /// anybody reads is dropped.
    pub fn log(&mut self, few: Few) {
        self.logged = self.logged.saturating_add(few.bytes);
        if self.logged <= MAX_LOG_BYTES {
            few.lines.iter().for_each(|line| self.log_line(line));
        }
    }

    fn log_line(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).into_owned();
        let mut has_listener = false;
        for open in &mut self.open {
            let AskState::Asked(ask, _) = &mut open.state else {
                continue;
            };
            ask.log(&line);
            has_listener = true;
        }
        if !has_listener {
            let beyond = (self.log.len() + 1).saturating_sub(MAX_LOG_LINES);
            self.log.drain(..beyond);
            self.log.push_back(line);
        }
    }
}
