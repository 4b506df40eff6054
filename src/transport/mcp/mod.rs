//! MCP over standard input and output and over HTTP, with or without an `initialize` handshake. Only this folder names `rmcp`.
//!
//! For: agents. In: `tools/list`, `tools/call` and what belongs to them. Out: the tools of the registry that can be called
//! here; results of `Service::call`. Never: a call that outlives its client; another caller's session.

mod asked;
mod asking;
mod documents;
mod face;
mod frames;
mod message;
mod offered;
mod open;
mod person;
mod results;
mod resume;
mod sessions;
mod stdio;
mod streamable;
mod tasks;
mod telling;
mod tools;

pub use stdio::{HungUp, serve};
pub use streamable::{Replies, Streamable};

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

/// The member of a request's `_meta` that says on whose behalf it comes.
const LABEL: &str = "dev.toolhost/user";

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
            service,
            lists: offered::Lists::default(),
            seal: asking::Seal::new(),
            questions: Arc::default(),
            tasks: tasks::Tasks::default(),
        })
    }

    /// Whether calls of a tool are asked after.
    fn task_use(&self, id: &str) -> Option<TaskUse> {
        self.service.registry().snapshot().find(id).ok()?.manifest.execution.task
    }
}
