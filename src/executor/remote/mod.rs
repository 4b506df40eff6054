//! Tools whose work a tool service elsewhere does, behind a broker.
//!
//! A request is sent once, and only to a queue that policy granted. No call delays others.
//!
//! A service is called only where a policy names it with its queues, over the broker that the
//! configuration names for it. The caller's name goes along only where that policy says so. At most
//! `outputBytes` of an answer are kept. The queues are the broker's: whoever may listen there reads
//! every request and reply, and whoever may publish there and sees the `id` of a request can answer
//! it.

mod connection;

use super::{Call, Context, Ending, Executor, Outcome, Running, ToolAnswer, ToolSender};
use crate::base::json::Text;
use crate::base::{json, lock, millis, text};
use crate::broker::{LinkState, PublishError, Terms, ToolServiceRequest, Topic};
use crate::fault::{Fault, Kind};
use crate::manifest::{Manifest, ServiceDescriptor};
use crate::policy::{self, ServiceGrant};
use crate::quantity::{LARGE_TEXT_BYTES, Limit};
use connection::{ServiceConnection, ServiceMessage, Waiter};
use futures_util::future::select_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a call waits for a broker that is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that is kept of a service's error, bytes.
const MAX_ERROR_BYTES: usize = 8192;
const LOST: &str = "The broker went away while the service worked: it may have done its work, and \
    its answer is lost.";

/// Which services are called over a broker: their ids, `NAMESPACE.*`, or `*` for those that no
/// other broker names.
#[derive(Clone, Debug)]
pub struct RemoteServices {
    pub services: Vec<String>,
    pub terms: Terms,
}

/// The executor. Connections are made at the first call, and kept.
pub struct Remote {
    brokers: Vec<RemoteServices>,
    services: Mutex<BTreeMap<ConnectionKey, Service>>,
}

/// Id, request queues and response queue.
type ConnectionKey = (String, Vec<String>, String);

/// The instances of one service, and how many calls there were.
struct Service {
    connections: Vec<Arc<ServiceConnection>>,
    calls: usize,
}

impl Remote {
    pub fn new(brokers: Vec<RemoteServices>) -> Remote {
        Remote {
            brokers,
            services: Mutex::default(),
        }
    }

    /// The instances of a service, rotated by one with each call.
    fn connections(&self, grant: &ServiceGrant) -> Result<Vec<Arc<ServiceConnection>>, Fault> {
        let mut services = lock(&self.services);
        let key = (
            grant.service.clone(),
            grant.request.clone(),
            grant.response.clone(),
        );
        if !services.contains_key(&key) {
            let terms = self.terms(&grant.service)?;
            let topic = |queue: &String| Topic::parse(queue).map_err(|why| no_topic(queue, &why));
            let answers = topic(&grant.response)?;
            let connections = grant
                .request
                .iter()
                .map(|queue| {
                    Ok(Arc::new(ServiceConnection::open(
                        terms.clone(),
                        topic(queue)?,
                        answers.clone(),
                    )))
                })
                .collect::<Result<Vec<_>, Fault>>()?;
            // Drops the connections of the descriptor's previous version, which are not used again.
            services.retain(|(service, ..), _| *service != grant.service);
            services.insert(
                key.clone(),
                Service {
                    connections,
                    calls: 0,
                },
            );
        }
        let Some(service) = services.get_mut(&key) else {
            return Ok(Vec::new());
        };
        let mut connections = service.connections.clone();
        let turn = service.calls % connections.len().max(1);
        connections.rotate_left(turn);
        service.calls = service.calls.wrapping_add(1);
        Ok(connections)
    }

    fn terms(&self, service: &str) -> Result<&Terms, Fault> {
        let found = policy::service_names(service).iter().find_map(|name| {
            self.brokers
                .iter()
                .find(|broker| broker.services.iter().any(|it| it == name))
        });
        found.map(|broker| &broker.terms).ok_or_else(|| {
            let message =
                "This host knows no broker over which the service of this tool is called.";
            Fault::new(Kind::CapabilityError, message)
        })
    }

    async fn call(
        &self,
        context: &Context,
        call: Call,
        events: &ToolSender,
    ) -> Result<Outcome, Fault> {
        let began = Instant::now();
        let message = "No policy grants the service of this tool.";
        let grant = call
            .service
            .ok_or_else(|| Fault::new(Kind::InternalError, message))?;
        let room = call.output_bytes;
        let request = ToolServiceRequest {
            user: if grant.user {
                context.user.clone()
            } else {
                String::new()
            },
            config: Value::Object(grant.config.clone()).to_string(),
            arguments: call.input.to_string(),
            ..ToolServiceRequest::default()
        };
        let connections = self.connections(&grant)?;
        let tool = &call.manifest.id;
        let asked = RemoteRequest {
            context,
            events,
            body: request.encode(),
            room,
        };
        let Some((waiter, since)) = send(&connections, &asked, tool).await? else {
            let ending = Ending::OverLimit {
                limit: Limit::InputBytes,
                allowed: crate::broker::MAX_BODY_BYTES as u64,
            };
            return Ok(Outcome::new(ending, millis(began.elapsed())));
        };
        let mut answer = String::new();
        let mut logs = Vec::new();
        let mut parts = false;
        let mut output_bytes = 0;
        let ending = loop {
            let heard = tokio::select! {
                biased;
                heard = waiter.next() => heard,
                // Replies that were published meanwhile are lost.
                () = waiter.connection.link.wait_for_change(&since) => return Err(Fault::new(Kind::ServiceError, LOST)),
            };
            match heard {
                ServiceMessage::Part(part) => {
                    answer.push_str(&part);
                    events.chunk(Value::String(part)).await;
                }
                ServiceMessage::End(last) => {
                    parts = !answer.is_empty();
                    answer.push_str(&last);
                    if parts && !last.is_empty() {
                        events.chunk(Value::String(last)).await;
                    }
                    output_bytes = answer.len() as u64;
                    let manifest = call.manifest.clone();
                    let deadline = &context.deadline;
                    let text = deadline
                        .run(output_bytes > LARGE_TEXT_BYTES as u64, move || {
                            answered(&manifest, answer)
                        })
                        .await?;
                    break Ending::Answered(ToolAnswer::new(text, deadline));
                }
                ServiceMessage::Error { kind, message } => {
                    if !kind.is_empty() {
                        logs.push(format!(
                            "The error type of the service: {}.",
                            text::head(&kind, 200)
                        ));
                    }
                    break raised(&message);
                }
                ServiceMessage::Unreadable(why) => {
                    break raised(&format!(
                        "The service sent an invalid reply: {}.",
                        text::head(&why, 300)
                    ));
                }
                ServiceMessage::TooMuch => {
                    break Ending::OverLimit {
                        limit: Limit::OutputBytes,
                        allowed: room,
                    };
                }
            }
        };
        let mut outcome = Outcome {
            logs,
            parts,
            ..Outcome::new(ending, millis(began.elapsed()))
        };
        outcome.usage.output_bytes = output_bytes;
        Ok(outcome)
    }
}

fn raised(message: &str) -> Ending {
    let message = if message.trim().is_empty() {
        "The service failed, and does not say why."
    } else {
        message
    };
    Ending::Raised {
        message: text::head(message, MAX_ERROR_BYTES),
    }
}

/// A service answers with a text. If its tool declares an output of another type, the answer is the
/// JSON in the text.
fn answered(manifest: &Manifest, answer: String) -> Text {
    let takes_text = match manifest.output.as_ref().map(|schema| &schema.raw["type"]) {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    };
    let json = (!takes_text)
        .then(|| json::compact(answer.as_bytes()).ok())
        .flatten();
    json.unwrap_or_else(|| Text::from(&Value::String(answer)))
}

impl Executor for Remote {
    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a ToolSender) -> Running<'a> {
        Box::pin(self.call(context, call, events))
    }

    fn connections(&self) -> Vec<Value> {
        let services = lock(&self.services);
        let connections = services.iter().flat_map(|((id, ..), service)| {
            service
                .connections
                .iter()
                .map(move |connection| (id, connection))
        });
        connections
            .map(|(id, connection)| {
                let mut shown = connection.status();
                shown["service"] = json!(id);
                shown
            })
            .collect()
    }
}

/// Checks that each queue of a descriptor is a valid topic.
pub fn queues(service: &ServiceDescriptor) -> Result<(), Fault> {
    let all = service.requests.iter().chain([&service.response]);
    all.clone().try_for_each(|queue| {
        Topic::parse(queue)
            .map(drop)
            .map_err(|why| no_topic(queue, &why))
    })
}

fn no_topic(queue: &str, why: &str) -> Fault {
    let message = "A queue of this tool's service is not a valid topic: its author must correct \
        the descriptor.";
    Fault::new(Kind::DependencyError, message).person(format!(
        "{}: {why}",
        text::printable(&text::head(queue, 120))
    ))
}

struct RemoteRequest<'a> {
    context: &'a Context,
    events: &'a ToolSender,
    body: Vec<u8>,
    /// Bytes that its answer may have.
    room: u64,
}

/// The waiter for the reply, and the state of the connection when the request was sent.
type Sent = (Waiter, LinkState);

/// Sends the request to the first connected instance with a reader, else waits for one that is not
/// connected yet: its broker may be starting. If an instance may have the request, no other is
/// tried. `None`: the request is too large.
async fn send(
    connections: &[Arc<ServiceConnection>],
    asked: &RemoteRequest<'_>,
    tool: &str,
) -> Result<Option<Sent>, Fault> {
    let (ready, mut away): (Vec<_>, Vec<_>) = connections
        .iter()
        .cloned()
        .partition(|connection| connection.is_connected());
    for connection in &ready {
        if let Some(sent) = put(connection, asked).await? {
            return Ok(sent);
        }
    }
    let until = tokio::time::Instant::now() + CONNECT_TIMEOUT;
    while !away.is_empty() {
        let connected = away
            .iter()
            .map(|connection| Box::pin(connection.link.connected()));
        let Ok((_, index, _)) = tokio::time::timeout_at(until, select_all(connected)).await else {
            break;
        };
        if let Some(sent) = put(&away.remove(index), asked).await? {
            return Ok(sent);
        }
    }
    let why = if away.is_empty() {
        "No instance reads its requests."
    } else {
        "Its broker is away."
    };
    let person: Vec<String> = connections
        .iter()
        .map(|connection| connection.failure())
        .collect();
    let fault = Fault::new(
        Kind::ServiceError,
        format!("No instances available for tool {tool}"),
    );
    Err(fault
        .details(why.to_owned())
        .person(person.join("; "))
        .retryable())
}

/// `None`: this instance has no reader. `Some(None)`: the request is too large.
async fn put(
    connection: &Arc<ServiceConnection>,
    asked: &RemoteRequest<'_>,
) -> Result<Option<Option<Sent>>, Fault> {
    asked.events.recheck().await?;
    let waiter = Waiter::new(connection, asked.room);
    match connection
        .link
        .ask(waiter.id.as_bytes(), &asked.body, &asked.context.trace)
        .await
    {
        Ok(since) => Ok(Some(Some((waiter, since)))),
        Err(PublishError::NoListener) => Ok(None),
        Err(PublishError::TooLarge) => Ok(Some(None)),
        Err(PublishError::Failed(why)) => {
            let message = "The connection failed while the request was sent: it may have arrived.";
            Err(Fault::new(Kind::ServiceError, message)
                .person(text::printable(&text::head(&why, 300))))
        }
    }
}
