//! Open requests: those of one connection that are handed on and not answered yet.
//!
//! For: `frames` and the face. In: a request's id, its arguments, later the content of its answer. Out: an id of our
//! own for each: a client may use an id again that it has just cancelled, and rmcp would confuse the two requests.
//! Never: two requests under one id; the answer of one for another; more open requests than the bounds below.

use super::results::Answer;
use crate::base::lock;
use crate::service;
use rmcp::model::RequestId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most open calls: those that run or wait, and some that are being refused. Beyond, nothing is read until one of them
/// is answered.
const CALLS: usize = service::RUNNING + service::WAITING + OTHERS;
/// Most other open requests: a list of tools is long, and waits in memory for a client that does not read.
const OTHERS: usize = 16;

/// One request.
pub struct Exchange {
    /// The id the client gave it.
    pub client: RequestId,
    /// The arguments of a call, as text.
    arguments: Option<String>,
    cancelled: bool,
    pub answer: Option<Answer>,
    /// Given back when the answer is written.
    pub place: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Requests {
    last: i64,
    /// By our ids.
    open: HashMap<RequestId, Exchange>,
    /// Our ids by the client's.
    ours: HashMap<RequestId, RequestId>,
}

#[derive(Clone)]
pub struct Open {
    requests: Arc<Mutex<Requests>>,
    calls: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for Open {
    fn default() -> Open {
        let places = |most| Arc::new(Semaphore::new(most));
        Open { requests: Arc::default(), calls: places(CALLS), others: places(OTHERS) }
    }
}

impl Open {
    /// Waits until there is a place for one more.
    pub async fn place(&self, call: bool) -> Option<OwnedSemaphorePermit> {
        let places = if call { &self.calls } else { &self.others };
        places.clone().acquire_owned().await.ok()
    }

    /// Opens a request, and gives our id for it. `None`: one with the client's id is open.
    pub fn begin(
        &self,
        client: &RequestId,
        arguments: Option<String>,
        place: OwnedSemaphorePermit,
    ) -> Option<RequestId> {
        let mut requests = lock(&self.requests);
        if requests.ours.contains_key(client) {
            return None;
        }
        requests.last += 1;
        let ours = RequestId::Number(requests.last);
        requests.ours.insert(client.clone(), ours.clone());
        requests.open.insert(
            ours.clone(),
            Exchange { client: client.clone(), arguments, cancelled: false, answer: None, place },
        );
        Some(ours)
    }

    /// Takes the arguments of a call, also of one that was cancelled before its handler ran: its record shows them.
    pub fn arguments(&self, ours: &RequestId) -> Option<String> {
        let mut requests = lock(&self.requests);
        let exchange = requests.open.get_mut(ours)?;
        let arguments = exchange.arguments.take();
        if exchange.cancelled {
            requests.open.remove(ours);
        }
        arguments
    }

    /// Keeps the content of an answer until the answer is sent; one that was cancelled meanwhile is not sent.
    pub fn answered(&self, ours: &RequestId, answer: Answer) {
        if let Some(exchange) = lock(&self.requests).open.get_mut(ours).filter(|exchange| !exchange.cancelled) {
            exchange.answer = Some(answer);
        }
    }

    /// Closes a request that is about to be answered. `None`: it was cancelled, and gets no answer.
    pub fn end(&self, ours: &RequestId) -> Option<Exchange> {
        let mut requests = lock(&self.requests);
        let exchange = requests.open.remove(ours).filter(|exchange| !exchange.cancelled)?;
        requests.ours.remove(&exchange.client);
        Some(exchange)
    }

    /// Closes a request that the client cancelled, and gives our id for it. The client's id is free again.
    pub fn cancel(&self, client: &RequestId) -> Option<RequestId> {
        let mut requests = lock(&self.requests);
        let ours = requests.ours.remove(client)?;
        match requests.open.get_mut(&ours) {
            // Its handler has yet to take the arguments.
            Some(exchange) if exchange.arguments.is_some() => exchange.cancelled = true,
            _ => drop(requests.open.remove(&ours)),
        }
        Some(ours)
    }
}
