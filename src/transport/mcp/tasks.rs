//! Calls that a client of the newer era does not wait for, but polls. A task is its caller's, and
//! ends with the server.

use super::asking::{self, requests};
use super::listed::ToolLists;
use super::results;
use crate::base::lock;
use crate::base::semaphore::Permit;
use crate::service::{CallRequest, CallResult, Service, Sink};
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, Task};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::Map;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// How long a task is remembered once it has ended.
const TASK_TTL: Duration = Duration::from_secs(600);

/// Tasks by their ids.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<HashMap<String, OwnedTask>>>);

/// A task in a manager of its own. Both are removed together, which frees the principal's slot for
/// a task.
struct OwnedTask {
    user: String,
    manager: TaskManager,
    _kept: Permit,
}

impl Tasks {
    /// The manager of a task, where that is this caller's.
    pub fn find(&self, user: &str, id: &str) -> Result<TaskManager, ErrorData> {
        let words = "You have no such task. Tasks end with the server, and are forgotten a while \
            after their end.";
        let known = lock(&self.0);
        let own = known
            .get(id)
            .filter(|task| task.user == user)
            .map(|task| task.manager.clone());
        own.ok_or_else(|| ErrorData::invalid_params(words, None))
    }

    /// Begins a task. It ends with the server. `user`: who it counts as; `kept`: the slot of its
    /// principal.
    pub fn begin(
        &self,
        host: (Arc<Service>, Arc<ToolLists>),
        user: String,
        kept: Permit,
        call: CallRequest,
        closing: CancellationToken,
    ) -> Task {
        // It ends with its call, or with a question that is not answered in time; `Tasks` forgets
        // it.
        let options = TaskOptions::new().with_ttl_ms(None);
        let (ends, ended) = oneshot::channel::<()>();
        let manager = TaskManager::new();
        let task = manager.spawn(options, move |context| {
            Box::pin(async move {
                // Dropped when the task ends, however.
                let _ends = ends;
                tokio::select! {
                    biased;
                    ended = run(host, call, &context) => ended,
                    () = context.cancelled() => Err(TaskExit::Cancelled),
                    () = closing.cancelled() => Err(TaskExit::Cancelled),
                }
            })
        });
        let id = task.task_id.clone();
        lock(&self.0).insert(
            id.clone(),
            OwnedTask {
                user,
                manager,
                _kept: kept,
            },
        );
        let tasks = self.clone();
        tokio::spawn(async move {
            let _ = ended.await;
            tokio::time::sleep(TASK_TTL).await;
            lock(&tasks.0).remove(&id);
        });
        task
    }
}

/// The call, again with each round of answers.
async fn run(
    host: (Arc<Service>, Arc<ToolLists>),
    mut call: CallRequest,
    context: &TaskContext,
) -> Result<CallToolResult, TaskExit> {
    let (service, lists) = host;
    let caller = service.catalog.who(&call.caller, call.label.as_deref());
    for round in 0..asking::ROUNDS {
        let tool = call.tool.clone();
        let again = call.again();
        let mut report = service.call(call, Sink::none()).await;
        let questions = match std::mem::take(&mut report.outcome) {
            CallResult::Questions(questions) => questions,
            other => {
                report.outcome = other;
                lists.find(&service, &caller).rename(&mut report);
                return Ok(results::whole(report).await);
            }
        };
        call = again;
        // The arguments take memory while the client is asked.
        let _held = report.release_slot_only();
        let mut answers = Map::new();
        let asked = requests(&tool, questions.requests)?;
        // All are open at once; each key identifies one question of the task.
        fn keyed(key: &str, round: usize) -> String {
            if round == 0 {
                key.to_owned()
            } else {
                format!("{key}.{round}")
            }
        }
        let asked = asked.into_iter().map(|(key, request)| {
            let answer = context.request_input(keyed(&key, round), request);
            async move { answer.await.map(|answer| (key, answer)) }
        });
        let answered = tokio::time::timeout(
            asking::ANSWER_TIMEOUT,
            futures_util::future::join_all(asked),
        )
        .await;
        for answer in answered
            .map_err(|_| ErrorData::internal_error("The client did not answer in time.", None))?
        {
            let (key, answer) = answer?;
            answers.insert(key, answer);
        }
        (call.client.answers, call.client.state) = (answers, questions.state);
    }
    Err(ErrorData::internal_error("The tool asked too often.", None).into())
}
