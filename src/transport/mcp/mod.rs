//! MCP over standard input and output and over HTTP, with or without an `initialize` handshake. Only this folder names `rmcp`.

mod asked;
mod asking;
mod documents;
mod events;
mod face;
mod frames;
mod http;
mod ids;
mod message;
mod offered;
mod person;
mod results;
mod sessions;
mod stdio;
mod tasks;
mod telling;
mod tools;

pub use http::{Replies, Streamable};
pub use message::Message;
pub use stdio::{HungUp, serve};

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

/// The member that makes the same request run once.
const KEY: &str = "dev.toolhost/idempotencyKey";

/// What all clients of one server share.
pub struct Mcp {
    service: Arc<Service>,
    lists: offered::Lists,
    seal: asking::Seal,
    /// Questions to the persons of clients that make a call again with the answer.
    questions: Arc<person::Open>,
    tasks: tasks::Tasks,
}

impl Mcp {
    pub fn new(service: Arc<Service>) -> Arc<Mcp> {
        Arc::new(Mcp {
            lists: offered::Lists::default(),
            seal: asking::Seal::new(),
            questions: Arc::new(person::Open::new(service.limiter().clone())),
            tasks: tasks::Tasks::default(),
            service,
        })
    }

    /// Whether calls of a tool are asked after. Where a person must agree, the client waits, and is asked there.
    fn task_use(&self, id: &str) -> Option<TaskUse> {
        let tool = self.service.registry().snapshot().find(id).ok()?;
        tool.manifest.execution.task.filter(|_| !self.service.confirms(&tool))
    }
}
