//! Stages: when each stage of a call's road began.
//!
//! For: the record of a call. In: each stage as it begins. Out: how long each took. Never: decides anything.

use std::time::{Duration, Instant};

/// What a call goes through, in this order; some calls skip some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for its place among the calls that run.
    Turn,
    /// The tool is found, arguments are checked, policy decides.
    Decide,
    /// A person is asked.
    Confirm,
    /// Packages, grants and secrets are made ready.
    Prepare,
    Run,
    /// The answer is checked and the record written.
    Answer,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Turn => "turn",
            Stage::Decide => "decide",
            Stage::Confirm => "confirm",
            Stage::Prepare => "prepare",
            Stage::Run => "run",
            Stage::Answer => "answer",
        }
    }
}

#[derive(Debug)]
pub(super) struct Stages {
    began: Instant,
    entered: Vec<(Stage, Instant)>,
}

impl Stages {
    /// A call comes, and waits.
    pub fn begin() -> Stages {
        let now = Instant::now();
        Stages { began: now, entered: vec![(Stage::Turn, now)] }
    }

    pub fn enters(&mut self, stage: Stage) {
        self.entered.push((stage, Instant::now()));
    }

    /// From the call's coming to now.
    pub fn all(&self) -> Duration {
        self.began.elapsed()
    }

    /// Each stage: when it began, counted from the call's coming, and how long it took until now.
    pub fn parts(&self) -> impl Iterator<Item = (Stage, Duration, Duration)> + '_ {
        let now = Instant::now();
        let ends = self.entered.iter().skip(1).map(|(_, began)| *began).chain([now]);
        self.entered.iter().zip(ends).map(|((stage, began), end)| (*stage, *began - self.began, end - *began))
    }
}
