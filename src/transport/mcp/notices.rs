//! Events of a running tool as notifications: progress that grows, where the request brought a token for it, and messages of
//! the level that the client wants and above.

#![allow(deprecated, reason = "messages are deprecated, and clients of both eras ask for them")]

use crate::executor::{Level, Progress};
use crate::service::Event;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer, SubscriptionContext, SubscriptionSendError};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Progress is sent at most so often; the next one makes up for what is left out.
const PAUSE: Duration = Duration::from_millis(20);
/// Most messages of one call.
const MOST: usize = 1000;

pub struct Notifier {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    level: Option<LoggingLevel>,
    tool: String,
    /// The last progress, and when it was sent.
    progress: f64,
    sent: Option<Instant>,
    messages_left: usize,
}

impl Notifier {
    /// `session`: the level that an older client has set.
    pub fn new(context: &RequestContext<RoleServer>, tool: &str, session: LoggingLevel) -> Notifier {
        // Newer clients say it with each request that wants any.
        let older = context.meta.protocol_version().is_none();
        let level = context.meta.log_level().or(older.then_some(session));
        let (peer, token) = (context.peer.clone(), context.meta.get_progress_token());
        Notifier {
            peer,
            token,
            level,
            tool: tool.to_owned(),
            progress: f64::NEG_INFINITY,
            sent: None,
            messages_left: MOST,
        }
    }

    pub async fn send_all(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            self.send(event).await;
        }
    }

    async fn send(&mut self, event: Event) {
        match event {
            Event::Progress(progress) => self.progress(progress).await,
            Event::Message(level, text) => self.message(level, json!(text)).await,
            Event::Preparing(text) => self.message(Level::Info, json!(text)).await,
            // The outcome holds them.
            Event::Log(_) | Event::Part(_) => {}
        }
    }

    async fn progress(&mut self, now: Progress) {
        let is_due = self.sent.is_none_or(|sent| sent.elapsed() >= PAUSE) || now.total == Some(now.progress);
        let Some(token) = self.token.clone().filter(|_| is_due && now.progress > self.progress) else { return };
        (self.progress, self.sent) = (now.progress, Some(Instant::now()));
        let mut params = ProgressNotificationParam::new(token, now.progress);
        (params.total, params.message) = (now.total, now.message);
        let _ = self.peer.notify_progress(params).await;
    }

    async fn message(&mut self, level: Level, data: Value) {
        // Both have the words of syslog.
        let level = serde_json::from_value(json!(level)).unwrap_or(LoggingLevel::Info);
        if self.messages_left == 0 || self.level.is_none_or(|least| (level as u8) < (least as u8)) {
            return;
        }
        self.messages_left -= 1;
        let params = LoggingMessageNotificationParam::new(level, data).with_logger(self.tool.clone());
        let _ = self.peer.notify_logging_message(params).await;
    }
}

/// Notifies a client of what it subscribed to.
pub async fn changed(context: &SubscriptionContext) -> Result<(), SubscriptionSendError> {
    let (accepted, sink) = (context.accepted(), context.sink());
    if accepted.tools_list_changed == Some(true) {
        sink.notify_tool_list_changed().await?;
    }
    if accepted.prompts_list_changed == Some(true) {
        sink.notify_prompt_list_changed().await?;
    }
    if accepted.resources_list_changed == Some(true) {
        sink.notify_resource_list_changed().await?;
    }
    for uri in accepted.resource_subscriptions.iter().flatten() {
        sink.notify_resource_updated(uri.clone()).await?;
    }
    Ok(())
}
