//! The sessions of a host: each belongs to one caller of one principal, and serves one call at a
//! time.

use super::cells::SessionState;
use super::idle_memory::HeldMemory;
use super::session::{Session, Signals};
use super::waiting::{MAX_SERVERS, MAX_WAITING, ReadyKey};
use crate::base::{lock, millis};
use crate::executor::{Ending, SessionId};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::SessionGrant;
use crate::quantity::GIB;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Mutex as Turns, OwnedMutexGuard};

/// Most sessions of a host, and of one principal under whatever names it acts.
const MAX_SESSIONS: usize = 64;
const MAX_OF_PRINCIPAL: usize = 32;
/// Most names of which is known why their session ended.
const MAX_NAMES: usize = 1024;
/// Most memory of all that wait, unless the host's configuration says otherwise.
const IDLE_BYTES: u64 = 2 * GIB;

const CHANGED: &str = "its tool, a policy, a secret or what it may use changed";
const KILLED: &str = "it was ended on request";
const GONE: &str = "its process ended";
const FAILED: &str = "its last call failed, or was cancelled and ran on";

/// A session, for its caller and for operators.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenSession {
    pub id: String,
    /// In lists, beside the phases of calls.
    pub phase: &'static str,
    pub session: String,
    pub caller: String,
    #[serde(skip)]
    pub principal: String,
    pub tool: String,
    pub language: Language,
    pub began: String,
    pub is_running: bool,
    /// Of one that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The place of a name.
#[derive(Debug)]
struct Place {
    id: String,
    began: String,
    signals: Signals,
    kept: Arc<Turns<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    session: Option<Session>,
    /// Why it has none.
    ended_because: Option<String>,
}

impl Kept {
    fn end(&mut self, why: impl Into<String>) {
        (self.session, self.ended_because) = (None, Some(why.into()));
    }
}

impl Place {
    fn new(ended_because: Option<String>) -> Arc<Place> {
        let kept = Kept {
            session: None,
            ended_because,
        };
        Arc::new(Place {
            id: uuid::Uuid::now_v7().to_string(),
            began: jiff::Timestamp::now().to_string(),
            signals: Signals::default(),
            kept: Arc::new(Turns::new(kept)),
        })
    }

    /// Whether it has a session, or serves a call.
    fn is_taken(&self) -> bool {
        let kept = self.kept.try_lock();
        kept.map_or(true, |kept| kept.session.is_some())
    }
}

/// All sessions of this host.
#[derive(Debug)]
pub struct Sessions {
    /// `None`: this host keeps none.
    places: Mutex<Option<BTreeMap<SessionId, Arc<Place>>>>,
    /// Most memory of all that wait.
    pub max_bytes: u64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions {
            places: Mutex::default(),
            max_bytes: IDLE_BYTES,
        }
    }
}

/// The turn of one call at its session. Until this is dropped, others wait.
pub struct Turn {
    pub id: SessionId,
    place: Arc<Place>,
    kept: OwnedMutexGuard<Kept>,
}

impl Sessions {
    /// From now on this host keeps sessions.
    pub fn open(&self) {
        lock(&self.places).get_or_insert_default();
    }

    /// Ends all that wait, and keeps none any more. One that serves a call ends with it.
    pub fn close(&self) {
        let all = lock(&self.places).take();
        drop(all);
    }

    /// How many sessions, servers and ready processes this host has at most: none if it ends with its
    /// call.
    pub fn most_waiting(&self) -> usize {
        let places = lock(&self.places);
        places
            .as_ref()
            .map_or(0, |_| MAX_SESSIONS + MAX_SERVERS + MAX_WAITING)
    }

    /// Waits until no other call uses the session.
    pub async fn turn(&self, id: &SessionId) -> Result<Turn, Fault> {
        loop {
            let place = self.place(id)?;
            let kept = place.kept.clone().lock_owned().await;
            // Its session may have been ended meanwhile, and the name has another place.
            if Arc::ptr_eq(&place, &self.place(id)?) {
                let id = id.clone();
                return Ok(Turn { id, place, kept });
            }
        }
    }

    /// The place of a name, which is made if there is none.
    fn place(&self, id: &SessionId) -> Result<Arc<Place>, Fault> {
        let mut places = lock(&self.places);
        let places = places.as_mut().ok_or_else(no_sessions)?;
        if places.len() >= MAX_NAMES && !places.contains_key(id) {
            places.retain(|_, place| place.is_taken());
        }
        let place = places.entry(id.clone());
        Ok(place.or_insert_with(|| Place::new(None)).clone())
    }

    /// Refuses one more session where there are as many as there may be.
    pub fn check_room(&self, id: &SessionId, grant: &SessionGrant) -> Result<(), Fault> {
        let places = lock(&self.places);
        let taken = places.iter().flatten();
        let taken = taken.filter(|(other, place)| *other != id && place.is_taken());
        let taken: Vec<_> = taken.collect();
        let of_principal = |other: &SessionId| other.principal == id.principal;
        let is_own = |other: &SessionId| {
            of_principal(other) && other.caller == id.caller && other.tool == id.tool
        };
        let own: Vec<_> = taken.iter().filter(|(other, _)| is_own(other)).collect();
        let all = taken
            .iter()
            .filter(|(other, _)| of_principal(other))
            .count();
        if own.len() < grant.max && all < MAX_OF_PRINCIPAL && taken.len() < MAX_SESSIONS {
            return Ok(());
        }
        let idle = own
            .iter()
            .filter(|(_, place)| place.kept.try_lock().is_ok());
        let idle: Vec<_> = idle.map(|(other, _)| other.name.as_str()).collect();
        let message = format!(
            "There are as many sessions as there may be ({} of yours); these wait: {}. Use one of \
            them, or end it.",
            own.len(),
            if idle.is_empty() {
                "none".to_owned()
            } else {
                idle.join(", ")
            }
        );
        Err(Fault::new(Kind::RateLimitError, message).retry_after(Duration::from_secs(1)))
    }

    pub fn list(&self) -> Vec<OpenSession> {
        let places = lock(&self.places);
        let taken = places
            .iter()
            .flatten()
            .filter(|(_, place)| place.is_taken());
        let shown = taken.map(|(id, place)| {
            let kept = place.kept.try_lock().ok();
            let idle: Option<&Session> = kept.as_ref().and_then(|kept| kept.session.as_ref());
            OpenSession {
                id: place.id.clone(),
                phase: "session",
                session: id.name.clone(),
                caller: id.caller.clone(),
                principal: id.principal.clone(),
                tool: id.tool.clone(),
                language: id.language,
                began: place.began.clone(),
                is_running: kept.is_none(),
                waited_ms: idle.map(|session| millis(session.since.elapsed())),
                memory_bytes: idle.map(Session::memory_bytes),
            }
        });
        shown.collect()
    }

    /// Ends a session, and the call that it serves.
    pub fn end(&self, place: &str) {
        let mut places = lock(&self.places);
        let mut all = places.iter_mut().flatten();
        if let Some((_, ended)) = all.find(|(_, other)| other.id == place) {
            ended.signals.end.cancel();
            *ended = Place::new(Some(KILLED.to_owned()));
        }
    }

    /// Interrupts the cell that a session runs.
    pub fn interrupt(&self, place: &str) {
        let places = lock(&self.places);
        let mut all = places.iter().flatten();
        if let Some((_, place)) = all.find(|(_, other)| other.id == place) {
            place.signals.interrupt.notify_waiters();
        }
    }

    /// Ends those of which this is false. Returns whether none served a call, which was not looked
    /// at.
    pub fn keep(&self, goes_on: impl Fn(&SessionId, &str) -> bool) -> bool {
        self.each_idle(|id, _, kept| {
            let session = kept.session.as_ref();
            if session.is_some_and(|it| !goes_on(id, &it.key.digest)) {
                kept.end(CHANGED);
            }
        })
    }

    /// Ends what waited long enough or has ended by itself. Returns the memory of the rest that waits,
    /// by the ids of the places.
    pub fn end_overdue(&self) -> Vec<HeldMemory<String>> {
        let mut waits = Vec::new();
        self.each_idle(|id, place, kept| {
            let Some(session) = &kept.session else {
                return;
            };
            let grant = session.key.shape.sessions.as_ref();
            let idle_ms = grant.map_or(0, |grant| grant.idle_ms);
            if !session.ready.waits() {
                kept.end(GONE);
            } else if millis(session.since.elapsed()) >= idle_ms {
                kept.end(format!("no call came for {idle_ms} ms"));
            } else {
                waits.push(HeldMemory {
                    owner: id.principal.clone(),
                    since: session.since,
                    bytes: session.memory_bytes(),
                    what: place.to_owned(),
                });
            }
        });
        waits
    }

    /// Ends a session that waits, for its memory.
    pub fn end_idle(&self, ended: &str) {
        self.each_idle(|_, place, kept| {
            if place == ended {
                kept.end("what waits on this host had too much memory");
            }
        });
    }

    /// Looks at those that serve no call. Returns whether these are all.
    fn each_idle(&self, mut look: impl FnMut(&SessionId, &str, &mut Kept)) -> bool {
        let mut is_all = true;
        for (id, place) in lock(&self.places).iter().flatten() {
            match place.kept.try_lock() {
                Ok(mut kept) => look(id, &place.id, &mut kept),
                Err(_) => is_all = false,
            }
        }
        is_all
    }
}

/// The fault of a call whose host keeps no sessions.
pub fn no_sessions() -> Fault {
    let message = "Only a host that goes on running keeps sessions.";
    let person = "`toolhost serve` does; leave `session` out to run code once";
    Fault::new(Kind::CapabilityError, message).person(person)
}

impl Turn {
    pub fn signals(&self) -> &Signals {
        &self.place.signals
    }

    /// Ends a session that was started for anything else. Returns whether it goes on.
    pub fn compare(&mut self, key: &ReadyKey) -> bool {
        match &self.kept.session {
            Some(session) if !session.ready.waits() => self.kept.end(GONE),
            Some(session) if session.key != *key => self.kept.end(CHANGED),
            Some(_) => return true,
            None => {}
        }
        false
    }

    /// The session that serves this call, and what its answer says of it. Until it is put back, it
    /// counts as ended.
    pub fn take(&mut self, started: Option<Session>) -> Option<(Session, SessionState)> {
        let state = SessionState {
            name: self.id.name.clone(),
            new: started.is_some(),
            ended_because: self.kept.ended_because.take(),
        };
        let session = started.or_else(|| self.kept.session.take())?;
        self.kept.end(FAILED);
        Some((session, state))
    }

    pub fn put(&mut self, session: Session) {
        *self.kept = Kept {
            session: Some(session),
            ended_because: None,
        };
    }

    /// The session that was taken has ended.
    pub fn ended(&mut self, ending: &Ending) {
        self.kept.end(match ending {
            Ending::TimedOut { .. } => "it ran on beyond its time limit".to_owned(),
            Ending::OverLimit { limit, .. } => format!("it exceeded {}", limit.name()),
            Ending::Cancelled => KILLED.to_owned(),
            _ => GONE.to_owned(),
        });
    }
}
