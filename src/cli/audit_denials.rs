//! The last denials of a tool, as `audit TOOL` shows them.
//!
//! For: `audit`. In: what the audit log says. Out: text, or the value of a field. Never: a word of a record unescaped;
//! silence where the log cannot be read, or a part of it was not.

use super::host;
use super::settings::Settings;
use crate::base::text::printable;
use crate::service::audit::last::{Denied, LastDenials};
use crate::{policy, registry};
use serde_json::{Value, json};

/// What the tool was refused in its last calls; or why the log cannot be read.
pub type Last = Result<LastDenials, String>;

pub fn of(settings: &Settings, tool: &registry::Tool, decision: &policy::Decision) -> Last {
    host::audit_log(settings).map_err(|why| why.to_string())?.last_denials(tool, decision)
}

pub fn value(last: &Last) -> Value {
    last.as_ref().map_or_else(|why| json!({ "unreadable": why }), |last| json!(last))
}

pub fn text(last: &Last) -> String {
    let lead = "\n  last denials";
    let last = match last {
        Ok(last) => last,
        Err(why) => return format!("{lead}: the audit log cannot be read: {}\n", printable(why)),
    };
    let mut out = match (last.calls, last.denials.is_empty()) {
        (0, _) => format!("{lead}: no call of this tool is recorded\n"),
        (calls, true) => format!("{lead}: none (recorded calls: {calls})\n"),
        (calls, false) => format!("{lead} (recorded calls: {calls}; the newest first)\n"),
    };
    last.denials.iter().for_each(|denied| out += &line(denied));
    if last.more > 0 {
        out += &format!("    - and {} of older calls, or that their records had no room for\n", last.more);
    }
    for what in &last.not_looked_at {
        out += &format!("    not looked at: {}\n", printable(what));
    }
    out
}

fn line(denied: &Denied) -> String {
    let Denied { time, call, operation, target, rule, narrower, calls, changed } = denied;
    let narrower = narrower.as_ref().map(|by| format!("; {by}")).unwrap_or_default();
    let calls = if *calls > 1 { format!(", the newest of {calls} calls") } else { String::new() };
    let changed = if changed.is_empty() { String::new() } else { format!("; changed since: {}", changed.join(", ")) };
    let (what, when) =
        (format!("{operation} {target}: {rule}{narrower}"), format!("{time}, call {call}{calls}{changed}"));
    format!("    - {}\n      {}\n", printable(&what), printable(&when))
}
