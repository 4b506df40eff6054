//! Orders from an operator of a running host: to disable and enable tools, in the same file and with
//! the same records as those of `toolhost disable` and `enable`; and the records of those about what
//! another runs.

use super::background::Background;
use super::entry::Service;
use super::request::Caller;
use super::stops::StopFile;
use crate::base::text::path;
use crate::fault::{Fault, Kind};
use crate::policy::{Selector, Stop, stop_selector};
use crate::registry::Filter;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io;

/// Longest reason, bytes.
const MAX_WHY_BYTES: usize = 1024;

/// What an operator orders.
pub struct StopOrder {
    pub operator: String,
    /// As `toolhost disable` takes them.
    pub tools: String,
    pub why: String,
    /// Calls that run end, too.
    pub ends_calls: bool,
}

/// Disables tools. Returns the order, and the loaded tools that it is about. A log that cannot be
/// written holds up no order: `recorded` says so.
pub fn disable(service: &Service, order: StopOrder) -> Result<Value, Fault> {
    let StopOrder {
        operator,
        tools,
        why,
        ends_calls,
    } = order;
    if why.trim().is_empty() || why.len() > MAX_WHY_BYTES {
        let words = format!("why: say why, in at most {MAX_WHY_BYTES} bytes.");
        return Err(Fault::new(Kind::ParameterValidationError, words));
    }
    let second = Timestamp::from_second(Timestamp::now().as_second());
    let stop = Stop {
        tools: selector(&tools)?,
        by: operator,
        at: second.unwrap_or_default(),
        why,
        ends_calls,
        root: service.catalog.stops.root.clone(),
    };
    let ordered = service.catalog.stops.order(&stop);
    ordered.map_err(|why| unchanged(service, &why))?;
    let permit = service.audit.open();
    let recorded = permit.is_ok();
    if let Ok(permit) = permit {
        permit.write(&json!({"time": Timestamp::now(), "disabled": stop, "user": stop.by}));
    }
    let snapshot = service.catalog.registry.snapshot();
    let tools = snapshot.list(&Filter::default()).into_iter();
    let tools = tools.map(|tool| tool.reference());
    let covered: Vec<String> = tools.filter(|tool| stop.covers(tool)).collect();
    Ok(json!({"disabled": stop, "covers": covered, "recorded": recorded}))
}

/// Enables what operators of this root disabled under this name. What was ordered on the command line
/// is taken back there alone. Returns the orders that still stop some of it.
pub fn enable(service: &Service, operator: &str, tools: &str) -> Result<Value, Fault> {
    let selector = selector(tools)?;
    // What cannot be recorded is not enabled.
    let permit = service.audit.open()?;
    let StopFile { file, root } = &service.catalog.stops;
    let changed =
        file.change(|stops| stops.remove(|stop| stop.tools == selector && stop.root == *root));
    let (was_disabled, _) = changed.map_err(|why| unchanged(service, &why))?;
    let stops = service.catalog.stops.now()?;
    let others: Vec<&Stop> = stops.meeting(&selector).collect();
    if !was_disabled {
        let others: String = others
            .iter()
            .map(|stop| format!("{}. ", stop.text()))
            .collect();
        let words = format!(
            "'{}' itself is not disabled over HTTP. Nothing was changed.",
            selector.text()
        );
        let fault = Fault::new(Kind::ToolNotFoundError, words);
        return Err(match others.is_empty() {
            true => fault,
            false => fault.person(others.trim_end()),
        });
    }
    let enabled = selector.text();
    permit.write(&json!({"time": Timestamp::now(), "enabled": enabled, "user": operator}));
    Ok(json!({"enabled": enabled, "stillDisabled": others}))
}

fn selector(tools: &str) -> Result<Selector, Fault> {
    stop_selector(tools).map_err(|why| {
        let words = format!("The path names no tools: {why}.");
        Fault::new(Kind::ParameterValidationError, words)
    })
}

fn unchanged(service: &Service, why: &io::Error) -> Fault {
    let message = "What is disabled on this host cannot be changed; nothing was changed.";
    let file = path(&service.catalog.stops.file.path);
    Fault::new(Kind::InternalError, message).person(format!("{file}: {why}"))
}

/// An open call or session that this caller may end and another began. A call in the background may
/// not have entered the pipeline yet.
pub fn of_another(background: &Background, who: &Caller, id: &str) -> Option<Value> {
    let service = &background.service;
    let receipt = || background.receipt(who, id).map(|receipt| receipt.call);
    let call = service.calls.state(who, id).or_else(receipt);
    let call = call.map(|call| (call.tool, call.caller, call.principal));
    let mut sessions = service.sessions.of(who).into_iter();
    let session = || {
        sessions
            .find(|it| it.id == id)
            .map(|it| (it.tool, it.caller, it.principal))
    };
    let (tool, caller, principal) = call.or_else(session)?;
    let is_own = [&caller, &principal].contains(&&who.user);
    (!is_own).then(|| json!({"id": id, "tool": tool, "caller": caller}))
}

/// Records what an operator did (`order`) about that. As with `disable`, a log that cannot be written
/// holds up no order.
pub fn record(service: &Service, who: &Caller, order: &str, about: Option<Value>) {
    let Some(about) = about else { return };
    if let Ok(permit) = service.audit.open() {
        permit.write(&json!({"time": Timestamp::now(), (order): about, "user": who.user}));
    }
}
