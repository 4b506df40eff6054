//! Ids of the requests that are open on one connection of lines. rmcp gets an id of our own for each: a client may use an
//! id again that it has just cancelled, and rmcp would give the answer of one request to the other.

use super::asked::McpRequest;
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
    pub asked: Arc<McpRequest>,
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
pub struct Ids {
    requests: Arc<Mutex<Requests>>,
    calls: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for Ids {
    fn default() -> Ids {
        let places = |most| Arc::new(Semaphore::new(most));
        Ids { requests: Arc::default(), calls: places(CALLS), others: places(OTHERS) }
    }
}

impl Ids {
    /// Waits until there is a place for one more.
    pub async fn place(&self, call: bool) -> Option<OwnedSemaphorePermit> {
        let places = if call { &self.calls } else { &self.others };
        places.clone().acquire_owned().await.ok()
    }

    /// Opens a request, and gives our id for it. `None`: one with the client's id is open.
    pub fn begin(&self, exchange: Exchange) -> Option<RequestId> {
        let mut requests = lock(&self.requests);
        if requests.ours.contains_key(&exchange.client) {
            return None;
        }
        requests.last += 1;
        let ours = RequestId::Number(requests.last);
        requests.ours.insert(exchange.client.clone(), ours.clone());
        requests.open.insert(ours.clone(), exchange);
        Some(ours)
    }

    /// The client's id of an open request.
    pub fn client(&self, ours: &RequestId) -> Option<RequestId> {
        lock(&self.requests).open.get(ours).map(|exchange| exchange.client.clone())
    }

    /// Closes a request that is about to be answered. `None`: it was cancelled, and gets no answer.
    pub fn end(&self, ours: &RequestId) -> Option<Exchange> {
        let mut requests = lock(&self.requests);
        let exchange = requests.open.remove(ours)?;
        requests.ours.remove(&exchange.client);
        Some(exchange)
    }

    /// Closes a request that the client cancelled, and gives our id for it. The client's id is free again.
    pub fn cancel(&self, client: &RequestId) -> Option<RequestId> {
        let ours = lock(&self.requests).ours.get(client).cloned()?;
        self.end(&ours).map(|_| ours)
    }
}
