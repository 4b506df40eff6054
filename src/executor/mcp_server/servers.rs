//! The MCP servers of a host: one process for each caller of one principal, or one for all.

use super::server::{Seen, Server};
use crate::base::mask::Mask;
use crate::base::{lock, millis};
use crate::egress::Traffic;
use crate::executor::process::idle_memory::HeldMemory;
use crate::executor::process::sessions::OpenSession;
use crate::executor::process::waiting::{MAX_SERVERS, ReadyKey};
use crate::fault::{Fault, Kind};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Mutex as Turns;
use tokio::time::timeout;

/// Most servers of one principal under whatever names it acts.
const MAX_OF_PRINCIPAL: usize = 32;

/// How long the host waits for servers that end by themselves.
const MAX_CLOSING: Duration = Duration::from_secs(3);

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
    pub tools: Mutex<LiveTools>,
}

/// The tools of a server that runs.
#[derive(Debug, Default)]
pub struct LiveTools {
    /// The digest of each, by name.
    pub digests: BTreeMap<String, String>,
    /// How often the server had said that they changed when they were asked for.
    pub changes: u64,
}

/// The place of one id.
#[derive(Debug)]
pub struct Place {
    id: String,
    began: String,
    /// Held while its server is started, also when the call that wanted it has ended; and by a call
    /// that reads its list.
    pub turn: Arc<Turns<()>>,
    running: Mutex<Option<Arc<RunningServer>>>,
}

impl Place {
    /// The server that runs here, also one that has not ended yet.
    pub fn running(&self) -> Option<Arc<RunningServer>> {
        let running = lock(&self.running).clone();
        running.filter(|it| !it.server.seen.is_over())
    }

    /// Whether it is there, or is being started.
    fn is_taken(&self) -> bool {
        self.running().is_some() || self.turn.try_lock().is_err()
    }

    pub fn put(&self, running: Arc<RunningServer>) {
        *lock(&self.running) = Some(running);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Account").field(&self.id).finish()
    }
}

/// What a server did with its network that no call of it has in its record.
#[derive(Debug)]
pub struct Unclaimed {
    pub id: ServerId,
    /// Its secrets are hidden.
    pub traffic: Traffic,
}

/// A server that was started, until what it did is recorded.
struct Account {
    id: ServerId,
    seen: Arc<Seen>,
    /// Hides its secrets.
    mask: Mask,
}

/// All MCP servers of this host.
#[derive(Debug, Default)]
pub struct Servers {
    places: Mutex<BTreeMap<ServerId, Arc<Place>>>,
    accounts: Mutex<Vec<Account>>,
    /// What could not be recorded yet.
    unclaimed: Mutex<Vec<Unclaimed>>,
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
                turn: Arc::default(),
                running: Mutex::default(),
            })
        });
        place.clone()
    }

    /// A server was started: what it does outside of calls is this caller's.
    pub fn started(&self, id: ServerId, server: &Server, mask: Mask) {
        let seen = server.seen.clone();
        lock(&self.accounts).push(Account { id, seen, mask });
    }

    /// What servers that have ended did with their network outside of calls.
    pub fn take_unclaimed(&self) -> Vec<Unclaimed> {
        let mut all = std::mem::take(&mut *lock(&self.unclaimed));
        let mut accounts = lock(&self.accounts);
        let ended = accounts.extract_if(.., |account| account.seen.is_over());
        all.extend(ended.map(|account| Unclaimed {
            traffic: lock(&account.seen.traffic).take().hidden(&account.mask),
            id: account.id,
        }));
        all.retain(|it| !it.traffic.events.is_empty());
        all
    }

    /// It could not be recorded now.
    pub fn give_back(&self, unclaimed: Unclaimed) {
        lock(&self.unclaimed).push(unclaimed);
    }

    fn all(&self) -> Vec<(ServerId, Arc<Place>, Arc<RunningServer>)> {
        let places = lock(&self.places);
        let all = places.iter();
        all.filter_map(|(id, place)| Some((id.clone(), place.clone(), place.running()?)))
            .collect()
    }

    /// Makes room for one more server, whose place is taken already: where there are as many as there
    /// may be, the one ends that was idle longest of the principal that has most. Refuses it where none
    /// is idle.
    pub async fn make_room(&self, id: &ServerId) -> Result<(), Fault> {
        let mut owners: BTreeMap<String, usize> = BTreeMap::new();
        let taken: Vec<ServerId> = {
            let places = lock(&self.places);
            let taken = places.iter().filter(|(_, place)| place.is_taken());
            taken.map(|(id, _)| id.clone()).collect()
        };
        for ServerId { principal, .. } in &taken {
            *owners.entry(principal.clone()).or_default() += 1;
        }
        let own = owners.get(&id.principal).copied().unwrap_or_default();
        if own <= MAX_OF_PRINCIPAL && taken.len() <= MAX_SERVERS {
            return Ok(());
        }
        let most = owners.iter().max_by_key(|(_, count)| **count);
        let most = match most {
            Some((owner, _)) if own <= MAX_OF_PRINCIPAL => owner,
            _ => &id.principal,
        };
        let all = self.all().into_iter();
        let idle = all.filter_map(|(other, _, running)| {
            let since = (*lock(&running.server.seen.idle_since))?;
            (other.principal == *most).then_some((since, running))
        });
        let Some((_, oldest)) = idle.min_by_key(|(since, _)| *since) else {
            let message = "There are as many MCP servers as there may be, and none is idle.";
            let fault = Fault::new(Kind::RateLimitError, message);
            return Err(fault.retry_after(Duration::from_secs(1)));
        };
        oldest.server.end().await;
        Ok(())
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

    fn accounted(&self) -> Vec<Arc<Seen>> {
        let accounts = lock(&self.accounts);
        accounts.iter().map(|it| it.seen.clone()).collect()
    }

    /// Ends all, each within 2 s.
    pub async fn close(&self) {
        let all = self.all();
        let ends = all.iter().map(|(.., running)| running.server.end());
        join_all(ends).await;
        // One whose command was interrupted ends by itself.
        let seen = self.accounted();
        let over = join_all(seen.iter().map(|it| it.ended()));
        let _ = timeout(MAX_CLOSING, over).await;
    }
}
