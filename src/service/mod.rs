//! The service: every call, from any transport, enters by `Service::call` and takes one pipeline.
//! Events go to a `Sink` while the tool runs; a `Report` always comes last.
//!
//! This file only names the parts. They import each other by their own names, and form no circle.

pub mod alerts;
pub mod arguments;
pub mod artifacts;
pub mod audit;
pub mod background;
mod breaker;
mod call_advice;
mod call_ended;
mod callers;
mod calls;
mod catalog;
mod client_call;
mod confining;
mod confirmation;
mod decision_cache;
mod denials;
mod early_ends;
pub mod endpoint;
mod entry;
mod exposition;
mod files;
mod found;
mod grant_advice;
pub mod helper_program;
pub mod ledger;
mod left_files;
mod lists;
mod meters;
pub mod metrics;
mod nested;
pub mod output;
mod own_tools;
pub mod packages;
mod parent;
mod pipeline;
mod quota;
mod ran;
pub mod readiness;
mod reading;
pub mod ready;
mod record;
mod redact;
mod redaction;
mod refusals;
mod report;
mod request;
pub mod requirements;
pub mod runlog;
pub mod script;
pub mod search;
mod secrets;
mod session_turn;
mod sessions;
pub mod skills;
pub mod source_orders;
mod speakers;
pub mod state_file;
pub mod stops;
mod streamed;
mod target;
pub mod tool_audit;
pub mod tool_files;
pub mod tool_stubs;
mod traces;
pub mod upload;

pub use arguments::Arguments;
pub use artifacts::Artifacts;
pub use breaker::BreakerState;
pub use calls::{CallState, Calls, Phase};
pub use catalog::{Effects, Executors, OfferKey, Reread, offered};
pub use client_call::{ClientCall, ClientRuns};
pub use confirmation::changed as changed_meanwhile;
pub use decision_cache::Rules;
pub use denials::LIMIT;
pub use early_ends::{EarlyEnds, FILE as EARLY_ENDS};
pub use entry::{Components, Service, Settings};
pub use exposition::Exposition;
pub use grant_advice::{is_open_to_all, is_plain};
pub use lists::Lists;
pub use own_tools::OwnTools;
pub use quota::{FULL_OF_FILES, Limiter, MAX_QUEUED, MAX_RUNNING, Slot};
pub use report::{CallResult, Digests, Report, Verbose};
pub use request::{
    Answer, Approver, Ask, BroughtFile, CallRequest, Caller, Charged, Event, MAX_NAME_BYTES,
    Question, RateCharge, Reporting, Sink, label, new_id, user_name,
};
pub use script::digest_of_script;
pub use secrets::{TOO_SHORT, credential};
pub use speakers::{CONCURRENCY, Show, Speakers, Stage, StageEvent};
pub use traces::Collector;
pub use traces::context::TraceContext;
