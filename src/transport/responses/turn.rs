//! The tool calls of one turn of a model, told one after the other.

use super::call::ToolCall;
use super::ended::Ended;
use super::stream::Stream;
use super::told::{Told, tell_client};
use crate::executor::Showing;
use crate::fault::{Fault, Kind};
use std::collections::HashMap;

/// One step of a call: what responses show of its stages.
#[derive(Clone, Debug)]
pub enum Step {
    Begins,
    Part(String),
    Shown(Showing),
    /// Nothing that a response shows.
    Untold,
    Ended(Ended),
}

/// The calls of a turn that run, in their order; the one that is shown, and how others ended.
pub struct Telling {
    calls: Vec<ToolCall>,
    told: Option<Told>,
    ended: HashMap<String, Ended>,
}

impl Telling {
    pub fn new(calls: Vec<ToolCall>) -> Telling {
        Telling {
            calls,
            told: None,
            ended: HashMap::new(),
        }
    }

    /// Tells one step of the call with this id. A call that is hidden is not told, but ends.
    pub fn step(&mut self, id: &str, step: Step, stream: &mut Stream) {
        match (step, &mut self.told) {
            (Step::Begins, _) => {
                let mut calls = self.calls.iter();
                let call = calls.find(|call| call.id == id && !call.is_hidden);
                self.told = call.cloned().map(Told::new);
            }
            (Step::Part(text), Some(told)) => told.part(&text, stream),
            (Step::Shown(shown), Some(told)) => told.shown(shown, stream),
            (Step::Part(_) | Step::Shown(_) | Step::Untold, _) => {}
            (Step::Ended(ended), told) => {
                // What the client runs follows once all else has ended.
                if let Some(told) = told.take().filter(|_| ended.client.is_none()) {
                    told.completed(&ended, stream);
                }
                self.ended.insert(id.to_owned(), ended);
            }
        }
    }

    /// The calls that have not ended.
    pub fn left(&self) -> impl Iterator<Item = &ToolCall> {
        let calls = self.calls.iter();
        calls.filter(|call| !self.ended.contains_key(&call.id))
    }

    /// Ends the call that is shown where its response ends before it.
    pub fn leave(&mut self, stream: &mut Stream) {
        if let Some(told) = &self.told {
            let (call, ended) = (told.call.id.clone(), left(&told.call));
            self.step(&call, Step::Ended(ended), stream);
        }
    }

    /// Tells the calls that nobody has told yet in the same way. `has_begun`: whether a call was made.
    pub fn break_off(self, has_begun: impl Fn(&str) -> bool, stream: &mut Stream) {
        for call in &self.calls {
            let is_told = self.ended.contains_key(&call.id) || call.is_hidden;
            if !is_told && has_begun(&call.id) {
                Told::new(call.clone()).completed(&left(call), stream);
            }
        }
    }

    /// Tells the calls that the client runs. Returns all in their order, each with how it ended.
    pub fn finish(mut self, stream: &mut Stream) -> Vec<(ToolCall, Ended)> {
        let both = |call: ToolCall| self.ended.remove(&call.id).map(|end| (call, end));
        let all: Vec<_> = self.calls.into_iter().filter_map(both).collect();
        for (call, ended) in &all {
            if let Some(client) = &ended.client {
                tell_client(call, client, stream);
            }
        }
        all
    }
}

fn left(call: &ToolCall) -> Ended {
    let words = "The response ended before this call did; it may have run.";
    let fault = Fault::new(Kind::CancelledError, words);
    Ended::failed(&call.tool, &fault)
}
