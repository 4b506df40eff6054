//! The MCP servers of a host: one process for each caller of one principal, or one for all.

use super::server::Server;
use crate::base::{lock, millis};
use crate::executor::process::idle_memory::HeldMemory;
use crate::executor::process::sessions::OpenSession;
use crate::executor::process::waiting::{MAX_SERVERS, ReadyKey};
use crate::fault::{Fault, Kind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Mutex as Turns;

/// Most servers of one principal under whatever names it acts.
const MAX_OF_PRINCIPAL: usize = 32;

/// Whose server it is, and which (`id@version`). Without names: everybody's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerId {
    pub principal: String,
    pub caller: String,
    pub tool: String,
}

/// A server that runs, and what it was started for.
#[derive(Debug)]
pub struct RunningServer {
    pub server: Server,
    pub key: ReadyKey,
    /// It speaks the revision without a handshake.
    pub is_modern: bool,
    /// Its tools now: the digest of each, by name.
    pub tools: Mutex<BTreeMap<String, String>>,
}

/// The place of one id.
#[derive(Debug)]
pub struct Place {
    id: String,
    began: String,
    /// Held by the call that starts its server, or reads the list of that.
    pub turn: Turns<()>,
    running: Mutex<Option<Arc<RunningServer>>>,
}

impl Place {
    pub fn running(&self) -> Option<Arc<RunningServer>> {
        let running = lock(&self.running).clone();
        running.filter(|it| it.server.runs())
    }

    pub fn put(&self, running: Arc<RunningServer>) {
        *lock(&self.running) = Some(running);
    }
}

/// All MCP servers of this host.
#[derive(Debug, Default)]
pub struct Servers {
    places: Mutex<BTreeMap<ServerId, Arc<Place>>>,
}

impl Servers {
    /// The place of an id, which is made if there is none.
    pub fn place(&self, id: &ServerId) -> Arc<Place> {
        let mut places = lock(&self.places);
        // Those that nobody has, and whose server has ended, are forgotten.
        places.retain(|_, place| Arc::strong_count(place) > 1 || place.running().is_some());
        let place = places.entry(id.clone()).or_insert_with(|| {
            Arc::new(Place {
                id: uuid::Uuid::now_v7().to_string(),
                began: jiff::Timestamp::now().to_string(),
                turn: Turns::default(),
                running: Mutex::default(),
            })
        });
        place.clone()
    }

    fn all(&self) -> Vec<(ServerId, Arc<Place>, Arc<RunningServer>)> {
        let places = lock(&self.places);
        let all = places.iter();
        all.filter_map(|(id, place)| Some((id.clone(), place.clone(), place.running()?)))
            .collect()
    }

    /// Refuses one more server where there are as many as there may be.
    pub fn check_room(&self, id: &ServerId) -> Result<(), Fault> {
        let all = self.all();
        let own = all
            .iter()
            .filter(|(other, ..)| other.principal == id.principal);
        if own.count() < MAX_OF_PRINCIPAL && all.len() < MAX_SERVERS {
            return Ok(());
        }
        let message = "There are as many MCP servers as there may be: try again once one is idle.";
        Err(Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(1)))
    }

    pub fn list(&self) -> Vec<OpenSession> {
        let all = self.all().into_iter();
        let shown = all.map(|(id, place, running)| {
            let since = *lock(&running.server.seen.idle_since);
            OpenSession {
                id: place.id.clone(),
                phase: "server",
                session: String::new(),
                caller: id.caller,
                principal: id.principal,
                tool: id.tool,
                language: running.key.shape.runtime.language,
                began: place.began.clone(),
                is_running: since.is_none(),
                waited_ms: since.map(|since| millis(since.elapsed())),
                memory_bytes: since.map(|_| running.server.memory_bytes()),
            }
        });
        shown.collect()
    }

    /// Ends a server, and the calls that it serves.
    pub fn end(&self, place: &str) {
        let all = self.all().into_iter();
        let ended = all.filter(|(_, other, _)| other.id == place);
        ended.for_each(|(.., running)| running.server.begin_end());
    }

    /// Ends those of which this is false. Returns whether none served a call, which was not looked
    /// at.
    pub fn keep(&self, goes_on: impl Fn(&ServerId, &str) -> bool) -> bool {
        let mut is_all = true;
        for (id, _, running) in self.all() {
            let is_idle = lock(&running.server.seen.idle_since).is_some();
            is_all &= is_idle;
            if is_idle && !goes_on(&id, &running.key.digest) {
                running.server.begin_end();
            }
        }
        is_all
    }

    /// The memory of those that serve no call.
    pub fn idle(&self) -> Vec<HeldMemory<String>> {
        let all = self.all().into_iter();
        let idle = all.filter_map(|(id, place, running)| {
            Some(HeldMemory {
                owner: id.principal,
                since: (*lock(&running.server.seen.idle_since))?,
                bytes: running.server.memory_bytes(),
                what: place.id.clone(),
            })
        });
        idle.collect()
    }

    /// Ends all, each within 2 s.
    pub async fn close(&self) {
        let all = self.all();
        let ends = all.iter().map(|(.., running)| running.server.end());
        futures_util::future::join_all(ends).await;
    }
}
