//! One request and its answer, as plain data that a report prints.

use crate::base::layer::Layer;
use crate::policy::grammar::{Area, Policy};
use crate::quantity::Limit;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    Read,
    Write,
    Host,
    Capability,
    Env,
    Runtime,
    Package,
    Service,
    Call,
}

impl RequestKind {
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Host => "reach",
            RequestKind::Capability => "capability",
            RequestKind::Env => "env",
            RequestKind::Runtime => "runtime",
            RequestKind::Package => "packages",
            RequestKind::Service | RequestKind::Call => "call",
        }
    }
}

/// Who denied a request or narrowed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Narrower {
    Manifest,
    /// Another tool with this script, which has less. Reports call it `manifest`, too.
    #[serde(rename = "manifest")]
    Owner,
    Policy,
    /// `host.policy.toml`
    Host,
    /// A built-in rule, which no policy can lift.
    #[serde(rename = "built-in")]
    BuiltIn,
    Machine,
}

impl Narrower {
    pub fn name(self) -> &'static str {
        match self {
            Narrower::Manifest | Narrower::Owner => "manifest",
            Narrower::Policy => "policy",
            Narrower::Host => "host",
            Narrower::BuiltIn => "built-in",
            Narrower::Machine => "machine",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub what: RequestKind,
    /// As written in the manifest, or `(default)`.
    pub asked: String,
    /// What a call gets, in words; `None` = nothing.
    pub effective: Option<String>,
    /// The request is granted in full.
    pub allowed: bool,
    /// `policy: rule`; empty if none.
    pub rule: String,
    pub why: String,
    /// `file:line` of the rule, or the policy's name.
    pub place: String,
    pub reason: Option<String>,
    pub narrower: Option<Narrower>,
    /// Layers; empty for what is checked before a call starts.
    pub enforced_by: Vec<Layer>,
    /// The requested files. `None`: another kind of request, or one that needs no rule.
    #[serde(skip)]
    pub area: Option<Area>,
}

impl Verdict {
    pub fn met(
        what: RequestKind,
        asked: impl Into<String>,
        effective: impl Into<String>,
        layers: &[Layer],
    ) -> Verdict {
        let asked = asked.into();
        let effective = Some(effective.into());
        let enforced_by = layers.to_vec();
        let (rule, why, place, reason, narrower, area) = Default::default();
        Verdict {
            what,
            asked,
            effective,
            allowed: true,
            rule,
            why,
            place,
            reason,
            narrower,
            enforced_by,
            area,
        }
    }

    pub fn denied(
        what: RequestKind,
        asked: impl Into<String>,
        narrower: Narrower,
        reason: impl Into<String>,
        layers: &[Layer],
    ) -> Verdict {
        let reason = Some(reason.into());
        let narrower = Some(narrower);
        Verdict {
            effective: None,
            allowed: false,
            reason,
            narrower,
            ..Verdict::met(what, asked, "", layers)
        }
    }

    /// Whether calls are refused or narrowed because this request is not granted in full. A missing
    /// runtime, denied packages or another lack of this machine make the tool unavailable instead.
    pub fn refuses(&self) -> bool {
        !self.allowed
            && ![RequestKind::Runtime, RequestKind::Package].contains(&self.what)
            && self.narrower != Some(Narrower::Machine)
    }

    /// The words for a caller where this is not granted in full.
    pub fn narrowing(&self) -> String {
        let kind = self.what.name();
        let asked = &self.asked;
        match (self.narrower, &self.reason) {
            // The word of a capability says its kind.
            (Some(Narrower::Owner), Some(reason)) if self.what == RequestKind::Capability => {
                format!("narrowed: {asked}: {reason}")
            }
            (Some(Narrower::Owner), Some(reason)) => format!("narrowed: {kind} {asked}: {reason}"),
            _ => format!("narrowed: {kind} {asked} is not granted in full"),
        }
    }

    /// Refused by a built-in rule, which no policy can lift.
    pub fn never(&self) -> bool {
        self.refuses() && self.narrower == Some(Narrower::BuiltIn)
    }

    /// The verdict for a request of which only a part is granted.
    pub fn only_in_part(self, Refusal { narrower, reason }: Refusal) -> Verdict {
        Verdict {
            allowed: false,
            narrower: Some(narrower),
            reason: Some(format!("only a part is allowed: {reason}")),
            ..self
        }
    }

    pub fn because(
        self,
        rule: impl Into<String>,
        why: impl Into<String>,
        at: impl Into<String>,
    ) -> Verdict {
        Verdict {
            rule: rule.into(),
            why: why.into(),
            place: at.into(),
            ..self
        }
    }
}

/// Who does not grant a request, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub narrower: Narrower,
    pub reason: String,
}

impl Refusal {
    pub fn verdict(self, what: RequestKind, asked: impl Into<String>, layers: &[Layer]) -> Verdict {
        Verdict::denied(what, asked, self.narrower, self.reason, layers)
    }
}

/// One limit: what was requested, the ceiling, and what a call gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitVerdict {
    pub limit: Limit,
    pub asked: Option<u64>,
    pub ceiling: u64,
    /// What a call gets by default. (A call itself can request only `timeoutMs`.)
    pub effective: u64,
    /// The manifest asked for more than the ceiling.
    pub clamped: bool,
    /// Who set the ceiling: `file:line`, a policy's name, or `BUILT_IN`.
    pub from: String,
    pub enforced_by: Layer,
    /// Measured every few milliseconds during the call: CPU and memory without a cgroup, live
    /// writes always.
    pub sampled: bool,
}

impl LimitVerdict {
    /// `from` where no file sets the limit. Programs read this text.
    pub const BUILT_IN: &str = "built-in default";

    /// The most that any call can have.
    pub fn most(&self) -> u64 {
        match self.limit {
            Limit::TimeoutMs => self.ceiling,
            _ => self.effective,
        }
    }

    /// Takes over the ceiling of another decision about the same call, where a file sets it and it is
    /// smaller.
    pub fn narrow(&mut self, other: &LimitVerdict) {
        if other.from != LimitVerdict::BUILT_IN && other.ceiling < self.ceiling {
            self.ceiling = other.ceiling;
            self.effective = self.effective.min(other.ceiling);
            self.clamped = self.asked.is_some_and(|asked| asked > other.ceiling);
            self.from.clone_from(&other.from);
        }
    }

    /// Who set the ceiling, in words for people.
    pub fn set_by(&self) -> &str {
        if self.from == LimitVerdict::BUILT_IN {
            "the built-in default"
        } else {
            &self.from
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// For the person and the record: clamps, narrowings, policies passed over, a folder that is
    /// shared.
    pub all: Vec<String>,
    /// The narrowings and clamps among them, worded for a caller too: without places and policy
    /// text.
    pub for_caller: Vec<String>,
}

impl Notes {
    /// Notes a request that is not granted in full.
    pub fn narrowed(&mut self, words: String) {
        self.all.push(words.clone());
        self.for_caller.push(words);
    }

    pub fn extend(&mut self, more: Notes) {
        self.all.extend(more.all);
        self.for_caller.extend(more.for_caller);
    }

    /// Notes a limit that is smaller than what was requested.
    pub fn clamped(&mut self, limit: &LimitVerdict, asked: u64, gets: u64) {
        let words = format!("clamped: {} asked {asked}, gets {gets}", limit.limit.name());
        self.all
            .push(format!("{words} (set by {})", limit.set_by()));
        self.for_caller.push(words);
    }
}

/// Why a person is asked before each call, and the name of the policy that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Confirm {
    pub policy: String,
    pub why: String,
    /// If set, the calling MCP client may ask its own person. All policies of a call must set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_client: Option<String>,
}

impl Confirm {
    pub fn of_policy(policy: &Policy) -> Option<Confirm> {
        Some(Confirm {
            policy: policy.name.clone(),
            why: policy.confirm.clone()?,
            by_client: policy.confirm_by_client.clone(),
        })
    }
}

/// What a tool needs and no grant can give it on this host. Any caller may read the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The words after "it needs".
    pub words: String,
    /// JSON pointer of the request in the manifest; empty where no field of it asks.
    pub pointer: String,
    /// The manifest is wrong (it names something unknown, say), rather than this machine or version
    /// lacking something.
    pub mistake: bool,
    /// Policy requires it.
    pub by_policy: bool,
}

impl Need {
    pub fn new(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            words: words.into(),
            pointer: pointer.into(),
            mistake: false,
            by_policy: false,
        }
    }

    pub fn by_policy(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            by_policy: true,
            ..Need::new(pointer, words)
        }
    }

    pub fn mistaken(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            mistake: true,
            ..Need::new(pointer, words)
        }
    }
}

/// Lets `join` work on a list of needs.
impl std::borrow::Borrow<str> for Need {
    fn borrow(&self) -> &str {
        &self.words
    }
}

/// What is answered to the requests of one tool, in their order.
#[derive(Default)]
pub struct Answers {
    pub verdicts: Vec<Verdict>,
    pub lacks: Vec<Need>,
}
