//! A `[[broker]]` of the configuration, as it is served, and its descriptors.

use crate::base::semaphore::FairSemaphore;
use crate::base::{lock, sha256_hex, text};
use crate::broker::{Delivery, Link, MAX_ID_BYTES, Secret, Terms, Topic};
use crate::manifest::Manifest;
use crate::service::{Caller, Service};
use crate::transport::export;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Memory for requests without a slot, KiB. Pulsar sends all at once, and RabbitMQ no more than may
/// run.
pub const MAX_QUEUED_KIB: usize = 64 << 10;
/// How many answered requests are remembered.
const ENDED: usize = 4096;

/// One `[[broker]]` of the configuration.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    pub terms: Terms,
    pub request: Topic,
    pub response: Topic,
    /// Hosts of one name share the requests.
    pub subscription: String,
    /// `id` or `id@range`.
    pub tools: Vec<String>,
    /// Ids of tools that may run again for a request that a lost host had, if their manifests say
    /// `idempotent`.
    pub idempotent: Vec<String>,
    /// Who all calls count as.
    pub caller: String,
    /// Calls that run at once.
    pub at_once: u16,
    /// How the tools are announced; `None`: not.
    pub announce: Option<Announcing>,
}

/// `announce` of a `[[broker]]`.
#[derive(Clone, Debug)]
pub struct Announcing {
    pub name: String,
    pub topic: Topic,
    pub key: Secret,
    pub ttl: i64,
}

/// One `[[broker]]` while it is served.
pub struct BrokerServer {
    pub service: Arc<Service>,
    pub entry: BrokerSettings,
    pub link: Link,
    /// For calls that run.
    pub running: Arc<FairSemaphore>,
    /// Memory for requests without a slot to run, KiB.
    pub waiting: Arc<Semaphore>,
    pub open: OpenRequests,
    pub answered: AtomicU64,
    pub unanswered: AtomicU64,
    pub kill: CancellationToken,
}

impl BrokerServer {
    pub fn caller(&self) -> Caller {
        Caller::named(self.entry.caller.clone())
    }
}

/// Requests that run here, and those that were answered lately. A request that is delivered again
/// is recognized by its id and its whole body.
#[derive(Default)]
pub struct OpenRequests(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    running: HashMap<Identity, RunningRequest>,
    ended: VecDeque<Identity>,
}

/// One request. Clients choose ids, and may use one twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    id: Vec<u8>,
    /// SHA-256 of its body.
    body: String,
}

impl Identity {
    pub fn new(delivery: &Delivery) -> Identity {
        Identity {
            id: delivery.id.clone(),
            body: sha256_hex(&delivery.body),
        }
    }
}

#[derive(Default)]
struct RunningRequest {
    count: usize,
    /// Redeliveries of the message, after a connection was lost. Acknowledged when the call ends.
    again: Vec<Delivery>,
}

/// What a redelivered message is.
pub enum Redelivery {
    /// Its call runs here, and the delivery is kept with that call.
    Running,
    /// This host has answered it.
    Ended(Delivery),
    /// Another host received it, or this host before a restart.
    No(Delivery),
}

impl OpenRequests {
    pub fn len(&self) -> usize {
        lock(&self.0)
            .running
            .values()
            .map(|running| running.count)
            .sum()
    }

    pub fn begin(&self, request: &Identity) {
        lock(&self.0)
            .running
            .entry(request.clone())
            .or_default()
            .count += 1;
    }

    pub fn known(&self, request: &Identity, delivery: Delivery) -> Redelivery {
        let mut requests = lock(&self.0);
        if let Some(running) = requests.running.get_mut(request) {
            running.again.push(delivery);
            return Redelivery::Running;
        }
        if requests.ended.contains(request) {
            Redelivery::Ended(delivery)
        } else {
            Redelivery::No(delivery)
        }
    }

    /// Ends a request. Returns its redeliveries.
    pub fn end(&self, request: Identity, is_answered: bool) -> Vec<Delivery> {
        let mut requests = lock(&self.0);
        let Some(running) = requests.running.get_mut(&request) else {
            return Vec::new();
        };
        running.count -= 1;
        if running.count > 0 {
            return Vec::new();
        }
        let again = requests
            .running
            .remove(&request)
            .map(|running| running.again)
            .unwrap_or_default();
        // A request with a longer id is never answered: remembering it has no use.
        if is_answered && request.id.len() <= MAX_ID_BYTES {
            requests.ended.push_back(request);
        }
        while requests.ended.len() > ENDED {
            requests.ended.pop_front();
        }
        again
    }
}

/// The descriptors of a service and of a tool, as TrustGraph's configuration takes them (`toolhost
/// trustgraph export`), each under its key.
pub struct Descriptors {
    pub service_key: String,
    pub service: Value,
    pub tool_key: String,
    pub tool: Value,
}

/// `service`: the key of the service. The tool's own id goes into the fixed `config` of each
/// message, so that a service with several tools knows which is meant.
pub fn descriptors(
    manifest: &Manifest,
    service: &str,
    request: &Topic,
    response: &Topic,
) -> Descriptors {
    let schema = export::input_schema(manifest);
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let arguments = properties.into_iter().flatten().map(|(name, property)| {
        // TrustGraph knows one word for the type, and shows it to the model.
        let kind = property["type"].as_str().unwrap_or("string");
        let described = text::printable_block(property["description"].as_str().unwrap_or_default());
        let mut argument = json!({ "name": name, "type": kind, "description": described });
        // TrustGraph ignores this member; other toolhosts read it.
        if !required.contains(&name.as_str()) {
            argument["required"] = json!(false);
        }
        argument
    });
    let name: String = manifest
        .model_name
        .clone()
        .unwrap_or_else(|| manifest.id.replace(':', "-"));
    Descriptors {
        service_key: service.to_owned(),
        service: json!({
            "id": service,
            "request-queue": request.to_string(),
            "response-queue": response.to_string(),
            // TrustGraph sends no other values than these.
            "config-params": [{ "name": "tool", "required": true }, { "name": "timeoutMs", "required": false }],
        }),
        tool_key: name.clone(),
        tool: json!({
            "type": "tool-service",
            "name": name,
            "description": export::description(manifest),
            "service": service,
            "tool": manifest.id,
            "arguments": arguments.collect::<Vec<_>>(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_length() {
        let open = OpenRequests::default();
        for number in 0..ENDED + 10 {
            let good = number.to_string().into_bytes();
            let long = [good.clone(), vec![b'x'; MAX_ID_BYTES]].concat();
            for id in [good, long] {
                let request = Identity {
                    id,
                    body: sha256_hex(b"{}"),
                };
                open.begin(&request);
                assert!(open.end(request, true).is_empty());
            }
        }
        let requests = lock(&open.0);
        assert!(requests.running.is_empty() && requests.ended.len() == ENDED);
        assert!(
            requests
                .ended
                .iter()
                .all(|request| request.id.len() <= MAX_ID_BYTES)
        );
    }
}
