//! MCP over standard input and output and over HTTP, with or without an `initialize` handshake. Only this folder names `rmcp`.

mod asking;
mod documents;
mod frontend;
mod http;
mod listed;
mod message;
mod notify;
mod person;
mod request;
mod results;
mod sessions;
mod stdio;
mod tasks;

pub use http::{Replies, Streamable};
pub use message::Message;
pub use stdio::serve;

use crate::manifest::TaskUse;
use crate::service::{Caller, Service};
use std::sync::Arc;

/// Who speaks to us.
#[derive(Clone, Debug)]
pub struct Client {
    pub caller: Caller,
    /// On whose behalf its requests come, where they do not say so themselves.
    pub label: Option<String>,
}

/// What all clients of one server share.
pub struct Mcp {
    service: Arc<Service>,
    lists: listed::Lists,
    seal: asking::Seal,
    /// Questions to the persons of clients that make a call again with the answer.
    questions: Arc<person::OpenQuestions>,
    tasks: tasks::Tasks,
}

impl Mcp {
    pub fn new(service: Arc<Service>) -> Arc<Mcp> {
        Arc::new(Mcp {
            lists: listed::Lists::default(),
            seal: asking::Seal::new(),
            questions: Arc::new(person::OpenQuestions::new(service.limiter().clone())),
            tasks: tasks::Tasks::default(),
            service,
        })
    }

    /// Whether calls of a tool are made tasks. Where a person must agree, the client waits, and is asked there.
    fn task_use(&self, id: &str) -> Option<TaskUse> {
        let tool = self.service.registry().snapshot().find(id).ok()?;
        tool.manifest.execution.task.filter(|_| !self.service.confirms(&tool))
    }
}
