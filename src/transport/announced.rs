//! Announced tools: on a topic of a broker hosts announce what they serve. This host listens, and
//! announces its own.
//!
//! Only announcers that the operator lists count, until their `ttl` is over. A right to call comes
//! from policy alone.
//!
//! An announcement counts only where it is signed with the key that the operator lists for its
//! host, new and in time. The id of its tool is in the namespace that the operator gave the host,
//! never one that a file has. Announcements are bounded in size, number and rate.

use super::broker;
pub use super::broker::Announcing;
use crate::base::lock;
use crate::base::text::{head, printable};
use crate::broker::{
    Announcement, AnnouncerKey, Link, LinkState, Secret, Subscription, Terms, Topic,
};
use crate::registry::Announced;
use crate::service::{Caller, Service};
use jiff::Timestamp;
use serde_json::{Map, Value, json, map};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The topic of announcements unless configured.
pub const TOPIC: &str = "notify:tg:tool-services";
/// How long an announcement is valid, unless configured, and at most, seconds.
pub const TTL: i64 = 60;
pub const MAX_TTL: i64 = 300;
/// How far the clock of an announcer may be ahead of ours, milliseconds.
const MAX_CLOCK_SKEW_MS: i64 = 10_000;
/// Longest pause between two announcements: a host that is started later waits for the next.
const MAX_ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a host that stops tries to withdraw its announcement.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest time between two logged refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// `announced` of a `[[tool_services]]`: whose announcements count, and where they are made.
#[derive(Clone, Debug)]
pub struct AnnouncementSettings {
    pub terms: Terms,
    pub topic: Topic,
    pub from: Vec<Announcer>,
}

#[derive(Clone, Debug)]
pub struct Announcer {
    pub name: String,
    /// The first part of the ids of its services.
    pub namespace: String,
    pub key: Secret,
}

/// The listeners for announcements, while this host serves.
#[derive(Default)]
pub struct Announcements(Vec<Arc<Listener>>);

struct Listener {
    service: Arc<Service>,
    link: Link,
    /// The topic and its broker, for people.
    at: String,
    from: BTreeMap<String, AnnouncerState>,
    /// The names under which this host announces.
    own: BTreeSet<String>,
}

struct AnnouncerState {
    name: String,
    key: AnnouncerKey,
    source: Arc<Announced>,
    standing: Mutex<AnnouncerStatus>,
}

#[derive(Default)]
struct AnnouncerStatus {
    /// The time of the last announcement that was accepted.
    last: i64,
    until: Option<(Instant, Timestamp)>,
}

impl Announcements {
    /// Begins to listen, until the host stops.
    pub async fn open(
        entries: &[AnnouncementSettings],
        own: BTreeSet<String>,
        service: &Arc<Service>,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Result<Arc<Announcements>, String> {
        let mut listeners = Vec::new();
        for AnnouncementSettings { terms, topic, from } in entries.iter().cloned() {
            let mut known = BTreeMap::new();
            for Announcer {
                name,
                namespace,
                key,
            } in from
            {
                let key = AnnouncerKey::read(&key)
                    .await
                    .map_err(|why| format!("the key of announcer {name}: {why}"))?;
                let source = Arc::new(Announced::new(&name, &namespace));
                service.catalog.add_source(source.clone())?;
                known.insert(
                    name.clone(),
                    AnnouncerState {
                        name,
                        key,
                        source,
                        standing: Mutex::default(),
                    },
                );
            }
            let at = format!("{topic} of {terms}");
            let (link, mut came) = Link::open(
                terms,
                Subscription::All {
                    topic: topic.clone(),
                },
                topic,
            );
            let listener = Arc::new(Listener {
                service: service.clone(),
                link,
                at,
                from: known,
                own: own.clone(),
            });
            listeners.push(listener.clone());
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = listener.listen(&mut came) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
        Ok(Arc::new(Announcements(listeners)))
    }

    /// The announcers, as `status` shows them.
    pub fn status(&self) -> Vec<Value> {
        self.0.iter().flat_map(|listener: &Arc<Listener>| {
            let connected = matches!(listener.link.state(), LinkState::Connected { .. });
            listener.from.values().map(|known: &AnnouncerState| {
                let name = &known.name;
 let tools = known.source.tools();
                let mut status = json!({"announcer": name, "at": listener.at, "connected": connected, "tools": tools});
                lock(&known.standing)
                    .until
                    .iter()
                    .for_each(|(_, until)| status["until"] = json!(until.to_string()));
                status
            }).collect::<Vec<_>>()
        }).collect()
    }
}

impl Listener {
    async fn listen(&self, came: &mut mpsc::Receiver<crate::broker::Delivery>) {
        let mut quiet = Instant::now();
        let mut unsaid = 0_u64;
        loop {
            let ends = self
                .from
                .values()
                .filter_map(|known| lock(&known.standing).until);
            let next = ends.map(|(at, _)| at).min();
            let over = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let delivery = tokio::select! {
                biased;
                () = over => {
                    self.expire().await;
                    continue;
                }
                delivery = came.recv() => delivery,
            };
            let Some(delivery) = delivery else { return };
            let Err(why) = self.receive(&delivery.body).await else {
                continue;
            };
            // Anybody who may publish on the topic could fill the log.
            if Instant::now() < quiet {
                unsaid += 1;
                continue;
            }
            tracing::warn!(target: "toolhost::announced", unsaid, "an announcement at {} is \
                refused: {why}", self.at);
            (quiet, unsaid) = (Instant::now() + LOG_INTERVAL, 0);
        }
    }

    async fn receive(&self, body: &[u8]) -> Result<(), String> {
        let signed = crate::broker::SignedAnnouncement::read(body)?;
        let name = printable(&head(&signed.announcer, 80));
        let known = self.from.get(&signed.announcer);
        if known.is_none() && self.own.contains(&signed.announcer) {
            return Ok(());
        }
        let known =
            known.ok_or_else(|| format!("'{name}' is not an announcer of the configuration"))?;
        self.believed(known, signed)
            .await
            .map_err(|why| format!("'{name}': {why}"))
    }

    async fn believed(
        &self,
        known: &AnnouncerState,
        signed: crate::broker::SignedAnnouncement,
    ) -> Result<(), String> {
        let Announcement {
            time,
            ttl,
            descriptors,
        } = signed.verify(&known.key)?;
        if !(1..=MAX_TTL).contains(&ttl) {
            return Err(format!("its ttl is not from 1 to {MAX_TTL} seconds"));
        }
        let now = Timestamp::now().as_millisecond();
        if time > now.saturating_add(MAX_CLOCK_SKEW_MS) {
            return Err(
                "it is dated in the future: the clock of one of the two hosts is wrong".to_owned(),
            );
        }
        let until = time.saturating_add(ttl * 1000);
        let left = u64::try_from(until.saturating_sub(now))
            .ok()
            .filter(|left| *left > 0);
        let left = Duration::from_millis(
            left.ok_or("its ttl has passed: it is old, or a clock is wrong")?,
        );
        {
            let mut standing = lock(&known.standing);
            if time <= standing.last {
                return Err("it, or a later one, was received before".to_owned());
            }
            standing.last = time;
        }
        let is_other = known.source.update(&descriptors)?;
        let until = Timestamp::from_millisecond(until).map_err(|why| why.to_string())?;
        lock(&known.standing).until =
            (!descriptors.is_empty()).then(|| (Instant::now() + left, until));
        if is_other {
            self.changed(known).await;
        }
        Ok(())
    }

    async fn expire(&self) {
        for known in self.from.values() {
            let over = lock(&known.standing)
                .until
                .take_if(|until: &mut (Instant, Timestamp)| until.0 <= Instant::now())
                .is_some();
            if over && known.source.update(&Map::new()) == Ok(true) {
                self.changed(known).await;
            }
        }
    }

    /// Updates the registry with what an announcer offers now, and logs the result.
    async fn changed(&self, known: &AnnouncerState) {
        let service = self.service.clone();
        let source = known.source.clone();
        let work = tokio::task::spawn_blocking(move || {
            service.catalog.refresh_source(registry_id(&source))
        });
        if let Err(why) = work.await {
            return tracing::error!(target: "toolhost::announced", "the registry failed; please \
                report it: {why}");
        }
        let name = &known.name;
        let tools = known.source.tools();
        if tools.is_empty() {
            return tracing::info!(target: "toolhost::announced", "{name} announces nothing any \
                more");
        }
        let grants = known.source.grants().join(", ");
        let all = tools.join(", ");
        let rule = format!("a policy's [services] that allows them: call = [{grants}]");
        tracing::info!(target: "toolhost::announced", "{name} announces {all}; {rule}");
        let snapshot = self.service.catalog.registry.snapshot();
        for id in tools {
            let why = match snapshot.find(&id) {
                Ok(tool) if tool.source == registry_id(&known.source) => continue,
                Ok(_) => "a file of this host has its namespace".to_owned(),
                Err(fault) => fault.person.unwrap_or(fault.message),
            };
            tracing::warn!(target: "toolhost::announced", "{id} of {name} is not loaded: {}", printable(&why));
        }
    }
}

fn registry_id(source: &Announced) -> &str {
    crate::registry::Source::id(source)
}

/// Announces the tools of each entry that has `announce`, until the host stops.
pub async fn announce(
    entries: &[broker::BrokerSettings],
    service: &Arc<Service>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Result<(), String> {
    for entry in entries.iter().cloned() {
        let Some(announcing) = entry.announce.clone() else {
            continue;
        };
        let key = AnnouncerKey::read(&announcing.key).await;
        let key = key
            .map_err(|why| format!("[[broker]] announce: the key of {}: {why}", announcing.name))?;
        let topic = announcing.topic.clone();
        let (link, came) = Link::open(
            entry.terms.clone(),
            Subscription::All {
                topic: topic.clone(),
            },
            topic,
        );
        let voice = AnnouncementSender {
            entry,
            announcing,
            key,
            link,
            service: service.clone(),
            last: 0,
        };
        tasks.spawn(voice.speak(came, stop.clone()));
    }
    Ok(())
}

struct AnnouncementSender {
    entry: broker::BrokerSettings,
    announcing: Announcing,
    key: AnnouncerKey,
    link: Link,
    service: Arc<Service>,
    last: i64,
}

impl AnnouncementSender {
    async fn speak(
        mut self,
        mut came: mpsc::Receiver<crate::broker::Delivery>,
        stop: CancellationToken,
    ) {
        let pause = Duration::from_millis(
            u64::try_from(self.announcing.ttl * 1000 / 3).unwrap_or_default(),
        )
        .min(MAX_ANNOUNCE_INTERVAL);
        let mut changes = self.service.catalog.changes();
        loop {
            tokio::select! {
                () = self.link.connected() => {}
                () = stop.cancelled() => return,
            }
            changes.mark_unchanged();
            self.says(false).await;
            let again = Instant::now() + pause;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(again) => break,
                    // The tools of this host may have changed.
                    Ok(()) = changes.changed() => break,
                    () = stop.cancelled() => {
                        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.says(true)).await;
                        return;
                    }
                    // Messages on the topic are not read here.
                    Some(_) = came.recv() => {}
                }
            }
        }
    }

    async fn says(&mut self, leaves: bool) {
        self.last = Timestamp::now().as_millisecond().max(self.last + 1);
        let descriptors = if leaves {
            Map::new()
        } else {
            self.descriptors()
        };
        let announcement = Announcement {
            time: self.last,
            ttl: self.announcing.ttl,
            descriptors,
        };
        let sent = match announcement.sign(&self.announcing.name, &self.key) {
            Ok(body) => self
                .link
                .publish(b"", &body)
                .await
                .map_err(|why| format!("{why:?}")),
            Err(why) => Err(why),
        };
        if let Err(why) = sent {
            tracing::warn!(target: "toolhost::announced", "the tools of this host were not \
                announced: {why}");
        }
    }

    /// Descriptors of the tools that the entry's caller can call now.
    fn descriptors(&self) -> Map<String, Value> {
        let broker::BrokerSettings {
            request,
            response,
            tools,
            caller,
            ..
        } = &self.entry;
        let caller = Caller::named(caller.clone());
        let mut found = Map::new();
        for reference in tools {
            let tool = self
                .service
                .catalog
                .find(&caller, reference)
                .ok()
                .filter(|tool| self.service.catalog.can_call(&caller, tool));
            let Some(tool) = tool else { continue };
            let own = broker::descriptors(&tool.manifest, request.name(), request, response);
            found.insert(format!("tool-service/{}", own.service_key), own.service);
            match found.entry(format!("tool/{}", own.tool_key)) {
                map::Entry::Vacant(place) => _ = place.insert(own.tool),
                map::Entry::Occupied(_) => {
                    let id = &tool.manifest.id;
                    let key = &own.tool_key;
                    let words = "is not announced: another tool of its [[broker]] has its name,";
                    tracing::warn!(target: "toolhost::announced", "{id} {words} {key}");
                }
            }
        }
        found
    }
}
