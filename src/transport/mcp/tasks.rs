//! Calls that a client of the newer era does not wait for, but asks after. A task is its caller's, and ends with the
//! server.

use super::asking::{self, requests};
use super::listed::Lists;
use super::results;
use crate::base::lock;
use crate::base::places::Place;
use crate::service::{CallRequest, Service, Sink};
use crate::transport::answers::Payer;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, Task};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::Map;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long one is remembered once it has ended.
const KEPT: Duration = Duration::from_secs(600);

pub struct Tasks {
    manager: TaskManager,
    /// Whose they are, and until when that is known.
    owners: Mutex<HashMap<String, (String, Instant)>>,
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks { manager: TaskManager::new(), owners: Mutex::default() }
    }
}

impl Tasks {
    /// The manager, where the task is this caller's.
    pub fn find(&self, user: &str, id: &str) -> Result<&TaskManager, ErrorData> {
        let is_own = lock(&self.owners).get(id).is_some_and(|(owner, _)| owner == user);
        let words = "You have no such task. Tasks end with the server, and are forgotten a while after their end.";
        is_own.then_some(&self.manager).ok_or_else(|| ErrorData::invalid_params(words, None))
    }

    /// Begins one. It ends with the server. `user`: who it counts as; `kept`: its part of what its principal may have.
    pub fn begin(
        &self,
        host: (Arc<Service>, Arc<Lists>),
        (user, kept): (String, Place),
        (call, payer): (CallRequest, Payer),
        closing: CancellationToken,
    ) -> Task {
        let longest = Duration::from_millis(crate::quantity::Limit::TimeoutMs.house_default()).max(asking::PATIENCE);
        let options = TaskOptions::new().with_ttl_ms(crate::base::millis(longest + KEPT));
        let task = self.manager.spawn(options, move |context| {
            Box::pin(async move {
                let ended = tokio::select! {
                    biased;
                    ended = run(host, call, &payer, &context) => ended,
                    () = context.cancelled() => Err(TaskExit::Cancelled),
                    () = closing.cancelled() => Err(TaskExit::Cancelled),
                };
                // What it holds in memory counts until it is forgotten.
                tokio::spawn(async move {
                    tokio::time::sleep(KEPT).await;
                    drop(kept);
                });
                ended
            })
        });
        let mut owners = lock(&self.owners);
        owners.retain(|_, (_, until)| *until > Instant::now());
        owners.insert(task.task_id.clone(), (user, Instant::now() + longest + KEPT));
        task
    }
}

/// The call, again with each round of answers.
async fn run(
    (service, lists): (Arc<Service>, Arc<Lists>),
    mut call: CallRequest,
    payer: &Payer,
    context: &TaskContext,
) -> Result<CallToolResult, TaskExit> {
    let caller = service.who(&call.caller, call.label.as_deref());
    for round in 0..asking::ROUNDS {
        let (tool, again) = (call.tool.clone(), call.clone());
        let mut report = service.call(call, Sink::none()).await;
        let questions = match report.asks.take() {
            Some(questions) if report.error.is_none() => questions,
            _ => {
                lists.find(&service, caller).rename(&mut report);
                return Ok(results::whole(report, payer).await);
            }
        };
        call = again;
        // The arguments take memory while the client is asked.
        let _held = report.asks_on();
        let mut answers = Map::new();
        let asked = requests(&tool, questions.requests)?;
        // All are open at once; each key stands for one question of the task.
        let keyed = |key: &str| if round == 0 { key.to_owned() } else { format!("{key}.{round}") };
        let asked = asked.into_iter().map(|(key, request)| {
            let answer = context.request_input(keyed(&key), request);
            async move { answer.await.map(|answer| (key, answer)) }
        });
        for answer in futures_util::future::join_all(asked).await {
            let (key, answer) = answer?;
            answers.insert(key, answer);
        }
        (call.client.answers, call.client.state) = (answers, questions.state);
    }
    Err(ErrorData::internal_error("The tool asked too often.", None).into())
}
