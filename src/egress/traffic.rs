//! What one call did with its network, as its relay and its dials report it, bounded.

use super::protocol::{EVENTS, Event, Refusal, TEXT, Totals, TrafficKind};
use crate::base::{mask, text};
use crate::quantity::Limit;
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Who authenticated: the call's dials count against them.
    #[serde(skip)]
    pub principal: String,
    /// The first `EVENTS` that were served, and as many that were refused.
    pub events: Vec<Event>,
    /// Where `counted` is false, what the host saw until then: at least so much.
    pub totals: Totals,
    /// The relay told its counts when the call ended.
    pub counted: bool,
    /// The limit that it passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Limit>,
}

impl Traffic {
    /// An event that the relay tells.
    pub(super) fn told(&mut self, event: Event) {
        let known = event.refused.as_ref().is_none_or(|refusal| refusal.is_of_the_relay());
        if known {
            self.saw(event);
        }
    }

    /// What was refused before it came to a relay, or where there is none.
    pub fn refused(&mut self, what: TrafficKind, target: &str, refusal: Refusal) {
        self.totals.refuse(what);
        self.saw(Event { what, target: target.to_owned(), refused: Some(refusal) });
    }

    /// An event that the host itself knows of.
    pub(super) fn saw(&mut self, mut event: Event) {
        let alike = self.events.iter().filter(|other| other.refused.is_some() == event.refused.is_some()).count();
        if alike < EVENTS || event.refused == Some(Refusal::RelayEnded) {
            event.target = bounded(&event.target);
            event.refused = event.refused.map(|refusal| refusal.with_text(bounded));
            self.events.push(event);
        }
    }
}

/// The first `TEXT` bytes, on one line.
fn bounded(text: &str) -> String {
    text::printable(&mask::head(text, TEXT + mask::CUT.len()))
}
