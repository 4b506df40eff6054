//! One MCP server: its process behind all layers, whose pipes a task of its own serves. Whatever goes
//! wrong with the process as a whole ends it, and the calls that it serves.

use super::dialogue::{
    Answered, Ask, Dialogue, MAX_NOTICE, NewAsk, OpenAsk, Reply, ServerEnd, Unsent,
};
use super::wire::{self, Few, Lines};
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::process::call::Ready;
use crate::executor::process::recorded::RecordedCall;
use crate::executor::{CallDeadline, Layers};
use crate::packages::store::EnvironmentLease;
use crate::policy::Limits;
use crate::quantity::{KIB, LARGE_TEXT_BYTES, Limit};
use crate::sandbox::protocol::{Exited, ToLauncher};
use crate::sandbox::{LauncherNews, Pipes};
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, BufReader, copy, sink};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::{consume_budget, unconstrained};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long a server may go on once its stdin is closed.
const CLOSED: Duration = Duration::from_secs(2);
/// How many buffers a pipe that is full takes to read, and more.
const PIPE_BUFFERS: usize = 16;
/// What a message has beside the answer of a tool, bytes.
const OVERHEAD: u64 = 64 * KIB;
/// The time of its launcher, which begins again with each call: the host ends it earlier.
const FOR_EVER_MS: u64 = u32::MAX as u64;

enum Command {
    Ask(NewAsk),
    Settle(oneshot::Sender<()>),
    Gone(u64),
    Notify(&'static str),
    End,
}

/// A server that runs. It ends once all of these are dropped.
#[derive(Clone, Debug)]
pub struct Server {
    commands: mpsc::UnboundedSender<Command>,
    next: Arc<AtomicU64>,
    pub seen: Arc<Seen>,
    ready: Weak<Ready>,
    pub layers: Layers,
}

/// What is seen of a server from outside its task.
#[derive(Debug, Default)]
pub struct Seen {
    /// How often it said that its tools changed.
    pub changes: AtomicU64,
    /// Since when it serves no call.
    pub idle_since: Mutex<Option<Instant>>,
    /// What was recorded of it, once it has ended.
    pub recorded: Mutex<Option<RecordedCall>>,
    /// What it did with its network outside of calls, once it has ended.
    pub traffic: Mutex<Traffic>,
    /// How it ended, once it takes no more calls.
    end: OnceLock<ServerEnd>,
    over: CancellationToken,
}

impl Seen {
    /// Whether nothing of the server is left.
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Waits until nothing of it is left.
    pub async fn ended(&self) {
        self.over.cancelled().await;
    }
}

/// Says when nobody waits for a request any more.
struct Waiting<'s>(u64, &'s Server);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let _ = self.1.commands.send(Command::Gone(self.0));
    }
}

/// A process that was started, and what it is held to.
pub struct Started {
    pub ready: Ready,
    pub pipes: Pipes,
    pub limits: Limits,
    pub idle: Duration,
    pub principal: String,
    /// Keeps its packages in the store.
    pub environment: Option<EnvironmentLease>,
}

impl Server {
    /// Serves the pipes of a process.
    pub fn serve(started: Started) -> Server {
        let (commands, queue) = mpsc::unbounded_channel();
        let seen = Arc::<Seen>::default();
        let ready = Arc::new(started.ready);
        let server = Server {
            commands,
            next: Arc::default(),
            seen: seen.clone(),
            ready: Arc::downgrade(&ready),
            layers: ready.launcher.layers.clone(),
        };
        let most = started.limits.get(Limit::OutputBytes);
        let most = usize::try_from(most.saturating_add(OVERHEAD)).unwrap_or(usize::MAX);
        let task = ServerTask {
            dialogue: Dialogue::default(),
            most,
            limits: started.limits,
            idle: started.idle,
            traffic: Arc::new(Mutex::new(Traffic {
                principal: started.principal,
                ..Traffic::default()
            })),
            leaving: VecDeque::new(),
            refused: Vec::new(),
            seen,
        };
        let pipes = OpenPipes {
            to: started.pipes.input,
            lines: Lines::new(BufReader::new(started.pipes.output), most),
            log: Some(Lines::of_log(BufReader::new(started.pipes.log), MAX_NOTICE)),
        };
        let environment = started.environment;
        tokio::spawn(async move {
            task.run(&ready, pipes, queue).await;
            drop((ready, environment));
        });
        server
    }

    /// Sends a request, and waits for its answer. Where this is dropped, a call is cancelled.
    pub async fn ask(&self, ask: Ask) -> Result<Reply, Unsent> {
        let (to, answer) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(number, self);
        let ask = Box::new(ask);
        let new = NewAsk { number, ask, to };
        if let Err(SendError(Command::Ask(new))) = self.commands.send(Command::Ask(new)) {
            match self.seen.end.get() {
                Some(ServerEnd::Unanswered) => new.give_back(),
                Some(end) => return Ok(Reply::Ended(end.clone())),
                None => {}
            }
        }
        answer.await.unwrap_or(Ok(Reply::Ended(ServerEnd::Ended)))
    }

    /// Waits until it has answered all calls that were cancelled. False: it takes no calls any more.
    pub async fn settled(&self) -> bool {
        let (to, settled) = oneshot::channel();
        let _ = self.commands.send(Command::Settle(to));
        settled.await.is_ok()
    }

    pub fn notify(&self, method: &'static str) {
        let _ = self.commands.send(Command::Notify(method));
    }

    /// Closes its stdin, and waits until it has ended.
    pub async fn end(&self) {
        self.begin_end();
        self.seen.ended().await;
    }

    pub fn begin_end(&self) {
        let _ = self.commands.send(Command::End);
    }

    /// Whether it takes calls.
    pub fn runs(&self) -> bool {
        !self.commands.is_closed()
    }

    pub fn memory_bytes(&self) -> u64 {
        let ready = self.ready.upgrade();
        ready.map_or(0, |ready| ready.launcher.memory_bytes())
    }
}

struct OpenPipes {
    to: Sender,
    lines: Lines<BufReader<Receiver>>,
    /// `None`: it was closed.
    log: Option<Lines<BufReader<Receiver>>>,
}

/// The task of one server.
struct ServerTask {
    dialogue: Dialogue,
    /// Longest line of the server, bytes.
    most: usize,
    limits: Limits,
    idle: Duration,
    /// What it did with its network since the last time that calls took that.
    traffic: Arc<Mutex<Traffic>>,
    /// Calls that were answered, and wait for what the launcher has seen meanwhile.
    leaving: VecDeque<Answered>,
    /// The ports that it was refused so far.
    refused: Vec<SocketAddr>,
    seen: Arc<Seen>,
}

impl ServerTask {
    async fn run(
        mut self,
        ready: &Ready,
        mut pipes: OpenPipes,
        mut queue: mpsc::UnboundedReceiver<Command>,
    ) {
        let _over = self.seen.over.clone().drop_guard();
        let end = self.attend(ready, &mut pipes, &mut queue).await;
        let _ = self.seen.end.set(end.clone());
        queue.close();
        while let Ok(command) = queue.try_recv() {
            match command {
                Command::Ask(late) if !self.dialogue.is_settled() => late.give_back(),
                Command::Ask(late) => {
                    let _ = late.to.send(Ok(Reply::Ended(end.clone())));
                }
                _ => {}
            }
        }
        // What it wrote last says why.
        self.catch_up(&mut pipes.log);
        if matches!(end, ServerEnd::Ended)
            && let Some((exited, staged)) = close(ready, pipes).await
        {
            self.exited(&exited, staged);
        }
        ready.end(&self.traffic).await;
        self.share();
        *lock(&self.seen.traffic) = lock(&self.traffic).take();
        for (open, result) in self.leaving {
            let cpu_ms = None;
            open.reply(Reply::Answer { result, cpu_ms });
        }
        for open in self.dialogue.open {
            open.reply(Reply::Ended(end.clone()));
        }
    }

    /// Serves the pipes until the server ends, or must end.
    async fn attend(
        &mut self,
        ready: &Ready,
        pipes: &mut OpenPipes,
        queue: &mut mpsc::UnboundedReceiver<Command>,
    ) -> ServerEnd {
        let traffic = Arc::clone(&self.traffic);
        let cpu_limit = self.limits.get(Limit::CpuMs);
        let dialling = ready.dial(&traffic);
        let overusing = ready.exceeded_cpu(cpu_limit);
        tokio::pin!(dialling, overusing);
        loop {
            let until = self.until();
            let OpenPipes { to, lines, log } = &mut *pipes;
            tokio::select! {
                biased;
                // Before its end, so that who asked learns how it ended.
                command = queue.recv() => match command {
                    Some(Command::Ask(new)) if self.must_wait(&new) => new.give_back(),
                    Some(Command::Ask(new)) => {
                        // What it used before is not this call's.
                        overusing.set(ready.exceeded_cpu(cpu_limit));
                        let begun = ready.launcher.begin(FOR_EVER_MS, &[]).await;
                        self.share();
                        self.dialogue.ask(new, ready.launcher.cpu_ms());
                        if begun.is_err() {
                            return self.closed(ready).await;
                        }
                    }
                    Some(Command::Settle(to)) => self.dialogue.settle(to),
                    Some(Command::Gone(number)) => self.dialogue.gone(number),
                    Some(Command::Notify(method)) => self.dialogue.notify(method),
                    Some(Command::End) | None => return ServerEnd::Ended,
                },
                news = ready.launcher.news() => match news {
                    Ok(LauncherNews::Refused(all)) => self.leave(ready, all),
                    Ok(LauncherNews::Exited(exited, staged)) => {
                        self.exited(&exited, staged);
                        // What it wrote before its end counts.
                        let _ = timeout(CLOSED, self.last_words(ready, lines, log)).await;
                        return ServerEnd::Exited(exited);
                    }
                    Err(_) => return ServerEnd::Ended,
                },
                () = &mut dialling => {
                    let over = lock(&traffic).over;
                    return ServerEnd::Over(over.unwrap_or(Limit::Connections));
                }
                () = &mut overusing => return ServerEnd::Over(Limit::CpuMs),
                () = sleep_until(until.into()) => {
                    if self.dialogue.open.is_empty() && self.is_idle() {
                        return ServerEnd::Ended;
                    }
                    if !self.dialogue.expire() {
                        return ServerEnd::Unanswered;
                    }
                }
                sent = to.write(self.dialogue.next_bytes()), if !self.dialogue.next_bytes().is_empty() => match sent {
                    Ok(bytes) => self.dialogue.sent(bytes),
                    Err(_) => return self.closed(ready).await,
                },
                few = lines.next(), if self.may_read(lines.held()) => match few {
                    Ok(Some(few)) => {
                        self.catch_up(log);
                        if let Err(end) = self.take_few(ready, few).await {
                            return end;
                        }
                    }
                    Ok(None) => return self.closed(ready).await,
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                        return ServerEnd::Over(Limit::OutputBytes);
                    }
                    Err(_) => return ServerEnd::Ended,
                },
                few = next_of_log(log) => self.log(log, few),
            }
            self.note();
            // A server that writes without end leaves time for all others.
            consume_budget().await;
        }
    }

    /// Reads what is left in the pipes of a process that has ended.
    async fn last_words(
        &mut self,
        ready: &Ready,
        lines: &mut Lines<BufReader<Receiver>>,
        log: &mut Option<Lines<BufReader<Receiver>>>,
    ) {
        while let Ok(Some(few)) = lines.next().await {
            self.catch_up(log);
            if self.take_few(ready, few).await.is_err() {
                return;
            }
        }
        self.catch_up(log);
    }

    /// Reads the log as far as it was written: what a server wrote before an answer is of its call.
    fn catch_up(&mut self, log: &mut Option<Lines<BufReader<Receiver>>>) {
        for _ in 0..PIPE_BUFFERS {
            match unconstrained(next_of_log(log)).now_or_never() {
                Some(few) => self.log(log, few),
                None => return,
            }
        }
    }

    fn log(&mut self, log: &mut Option<Lines<BufReader<Receiver>>>, few: Option<Few>) {
        match few {
            Some(few) => self.dialogue.log(few),
            None => *log = None,
        }
    }

    /// Calls would die with a server that does not answer a cancelled one.
    fn must_wait(&self, new: &NewAsk) -> bool {
        new.ask.traffic.is_some() && !self.dialogue.is_settled()
    }

    fn is_idle(&self) -> bool {
        self.dialogue.is_idle() && self.leaving.is_empty()
    }

    /// A line that nobody asked for waits in its pipe: it would be nobody's memory.
    fn may_read(&self, held: usize) -> bool {
        self.dialogue.may_read() && (held < MAX_NOTICE || !self.dialogue.open.is_empty())
    }

    /// When something is to be done although nothing comes.
    fn until(&self) -> Instant {
        let idle = lock(&self.seen.idle_since).map(|since| since + self.idle);
        let never = Instant::now() + Duration::from_millis(FOR_EVER_MS);
        self.dialogue.until().or(idle).unwrap_or(never)
    }

    /// Notes what others see.
    fn note(&mut self) {
        if std::mem::take(&mut self.dialogue.has_changed) {
            self.seen.changes.fetch_add(1, Ordering::Relaxed);
        }
        let is_idle = self.is_idle();
        let since = &mut *lock(&self.seen.idle_since);
        if since.is_some() != is_idle {
            *since = is_idle.then(Instant::now);
        }
    }

    /// Takes what the server wrote.
    async fn take_few(&mut self, ready: &Ready, few: Few) -> Result<(), ServerEnd> {
        self.dialogue.count(few.bytes);
        for line in few.lines {
            self.take(ready, line).await?;
        }
        if self.dialogue.unasked() > self.most {
            return Err(ServerEnd::Over(Limit::OutputBytes));
        }
        Ok(())
    }

    async fn take(&mut self, ready: &Ready, line: Vec<u8>) -> Result<(), ServerEnd> {
        let principal = lock(&self.traffic).principal.clone();
        let deadline = CallDeadline::usual(&principal, None);
        let is_long = line.len() > LARGE_TEXT_BYTES;
        let reading = deadline.run(is_long, move || wire::read(&line));
        let received = reading.await.map_err(|_| ServerEnd::Ended)?;
        let received = received.map_err(ServerEnd::Printed)?;
        let Some((open, result)) = self.dialogue.take(received) else {
            return Ok(());
        };
        if open.traffic().is_none() {
            open.reply(Reply::Answer {
                result,
                cpu_ms: None,
            });
            return Ok(());
        }
        self.leaving.push_back((open, result));
        // A launcher that has gone says so itself.
        let _ = ready.launcher.send(&ToLauncher::Refused, &[]);
        Ok(())
    }

    /// The launcher said which ports the server was refused: the first call that waits for that leaves.
    fn leave(&mut self, ready: &Ready, refused: Vec<SocketAddr>) {
        self.refuse(refused);
        self.share();
        if let Some((open, result)) = self.leaving.pop_front() {
            let now = ready.launcher.cpu_ms();
            let cpu_ms = now.zip(open.cpu_before).map(|(now, before)| now - before);
            open.reply(Reply::Answer { result, cpu_ms });
        }
    }

    fn refuse(&mut self, all: Vec<SocketAddr>) {
        let new = all.iter().filter(|address| !self.refused.contains(address));
        new.for_each(|address| lock(&self.traffic).refused_port(*address));
        self.refused = all;
    }

    fn exited(&mut self, exited: &Exited, mut staged: Vec<OwnedFd>) {
        self.refuse(exited.refused.clone());
        let lost = exited.recorder_lost;
        *lock(&self.seen.recorded) = lost.and_then(|lost| {
            let found = staged.pop()?;
            Some(RecordedCall::read(found, lost))
        });
    }

    /// The calls that run take what was seen of the network. Where none runs, the next one does.
    fn share(&self) {
        let leaving = self.leaving.iter().map(|(open, _)| open);
        let running = leaving.chain(&self.dialogue.open);
        let mut running = running.filter_map(OpenAsk::traffic).peekable();
        if running.peek().is_some() {
            let seen = lock(&self.traffic).take();
            running.for_each(|traffic| lock(traffic).add(&seen));
        }
    }

    /// The end of a server that closed a pipe.
    async fn closed(&mut self, ready: &Ready) -> ServerEnd {
        match timeout(CLOSED, ready.launcher.wait()).await {
            Ok(Ok((exited, staged))) => {
                self.exited(&exited, staged);
                ServerEnd::Exited(exited)
            }
            Ok(Err(_)) => ServerEnd::Ended,
            Err(_) => ServerEnd::Closed,
        }
    }
}

/// The next lines of a log that is read.
async fn next_of_log(log: &mut Option<Lines<BufReader<Receiver>>>) -> Option<Few> {
    match log {
        Some(log) => log.next().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Closes the stdin of a server, and waits for its end.
async fn close(ready: &Ready, pipes: OpenPipes) -> Option<(Exited, Vec<OwnedFd>)> {
    let OpenPipes { to, lines, log } = pipes;
    drop(to);
    // One whose pipes are full would not end.
    let mut lines = lines.from;
    tokio::spawn(async move { copy(&mut lines, &mut sink()).await });
    if let Some(mut log) = log {
        tokio::spawn(async move { copy(&mut log.from, &mut sink()).await });
    }
    timeout(CLOSED, ready.launcher.wait()).await.ok()?.ok()
}
