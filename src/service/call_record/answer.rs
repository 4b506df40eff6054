//! Answer: what a tool answers, with the secrets of its call hidden: a tool may give back what it was given.
//!
//! For: the road. In: an answer, or its parts as they come. Out: the same as its reader may see it. Never: without a note
//! where something was hidden.

use super::CallRecord;
use crate::base::json::{self, Text};
use crate::service::redact::{HIDDEN, Held};
use serde_json::json;

impl CallRecord {
    pub fn hidden(&mut self, answer: Text) -> Text {
        let Some(shown) = self.masked(answer.as_str()) else { return answer };
        self.hid();
        json::compact(shown.as_bytes()).unwrap_or_else(|_| Text::from(&json!(HIDDEN)))
    }

    /// `None`: there is nothing to hide.
    pub(super) fn masked(&self, answer: &str) -> Option<String> {
        let mask = &self.arguments.mask;
        let joined = if self.seen.streamed { mask.list(answer) } else { None };
        joined.or_else(|| mask.answer(answer))
    }

    /// A text of an answer that comes in several, as far as it can be told now; `None`: what stayed back of them.
    pub fn piece(&mut self, held: &mut Held, text: Option<&str>) -> String {
        let mask = &self.arguments.mask;
        let shown = match text {
            Some(text) => mask.piece(held, text),
            None => mask.rest(held),
        };
        if held.hid {
            self.hid();
        }
        shown
    }

    fn hid(&mut self) {
        let words = format!("the answer held a secret argument or variable: it is shown as {HIDDEN}");
        if !self.notes.told.contains(&words) {
            self.notes.narrowed(words);
        }
    }
}
