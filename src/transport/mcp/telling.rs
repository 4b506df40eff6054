//! What a tool tells while it runs, as notifications to the client that asked for them: progress that grows, where the
//! request brought a token for it, and messages from the level on that the client wants.

#![allow(deprecated, reason = "messages are deprecated, and clients of both eras ask for them")]

use crate::executor::{Level, Progress};
use crate::service::Event;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer, SubscriptionContext, SubscriptionSendError};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Progress is told at most so often; what is left out the next one makes up for.
const PAUSE: Duration = Duration::from_millis(20);
/// Most messages of one call.
const MOST: usize = 1000;

pub struct Telling {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    level: Option<LoggingLevel>,
    tool: String,
    far: f64,
    told: Option<Instant>,
    left: usize,
}

impl Telling {
    /// `session`: the level that an older client has set.
    pub fn of(context: &RequestContext<RoleServer>, tool: &str, session: LoggingLevel) -> Telling {
        // Newer clients say it with each request that wants any.
        let older = context.meta.protocol_version().is_none();
        let level = context.meta.log_level().or(older.then_some(session));
        let (peer, token) = (context.peer.clone(), context.meta.get_progress_token());
        Telling { peer, token, level, tool: tool.to_owned(), far: f64::NEG_INFINITY, told: None, left: MOST }
    }

    /// Tells until nothing more comes.
    pub async fn all(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            self.tell(event).await;
        }
    }

    async fn tell(&mut self, event: Event) {
        match event {
            Event::Progress(told) => self.progress(told).await,
            Event::Message(level, text) => self.message(level, json!(text)).await,
            Event::Preparing(text) => self.message(Level::Info, json!(text)).await,
            // The outcome holds them.
            Event::Log(_) | Event::Part(_) => {}
        }
    }

    async fn progress(&mut self, told: Progress) {
        let ready = self.told.is_none_or(|last| last.elapsed() >= PAUSE) || told.total == Some(told.progress);
        let Some(token) = self.token.clone().filter(|_| ready && told.progress > self.far) else { return };
        (self.far, self.told) = (told.progress, Some(Instant::now()));
        let mut params = ProgressNotificationParam::new(token, told.progress);
        params.total = told.total;
        params.message = told.message;
        let _ = self.peer.notify_progress(params).await;
    }

    async fn message(&mut self, level: Level, data: Value) {
        // Both have the words of syslog.
        let level = serde_json::from_value(json!(level)).unwrap_or(LoggingLevel::Info);
        if self.left == 0 || self.level.is_none_or(|least| (level as u8) < (least as u8)) {
            return;
        }
        self.left -= 1;
        let params = LoggingMessageNotificationParam::new(level, data).with_logger(self.tool.clone());
        let _ = self.peer.notify_logging_message(params).await;
    }
}

/// Tells a client of what it subscribed to.
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
