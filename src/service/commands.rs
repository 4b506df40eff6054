//! Commands that operators of a running host read and run on its machine.

use super::entry::Service;
use crate::base::text::{self, quote};
use serde_json::{Value, json};

/// The options of `allow`, by the operation that was refused.
const OPTIONS: [(&str, &str); 5] = [
    ("read", "--read"),
    ("write", "--write"),
    ("resolve", "--host"),
    ("connect", "--host"),
    ("call", "--call"),
];

impl Service {
    /// A command of toolhost, with the settings of this host.
    pub fn command(&self, words: &str) -> String {
        format!("{} {words}", self.program)
    }

    /// Adds to each denial of a tool the command that would grant it (`fix`), where one would.
    pub fn add_fixes(&self, tool: &str, denials: &mut Value) {
        for denial in denials.as_array_mut().into_iter().flatten() {
            if let Some(words) = grant(tool, denial) {
                denial["fix"] = json!(self.command(&words));
            }
        }
    }
}

/// `allow` asks before it writes, and refuses what is never granted.
fn grant(tool: &str, denial: &Value) -> Option<String> {
    let id = quote(tool.split('@').next().unwrap_or_default());
    let is_whole = |member: &str| denial[member] == "SecurityError";
    if is_whole("kind") || is_whole("target") {
        // `allow` looks at what the last call was refused.
        return Some(format!("allow {id}"));
    }
    let (operation, target) = (denial["operation"].as_str()?, denial["target"].as_str()?);
    let (_, option) = OPTIONS.iter().find(|(of, _)| *of == operation)?;
    let is_grantable = matches!(
        denial["narrower"].as_str(),
        None | Some("manifest" | "policy")
    );
    // A system call has no option, and a name with unseen characters is granted by nobody.
    let is_named = operation != "call" || target.contains(':');
    let is_plain = target.starts_with(|c: char| c.is_alphanumeric() || "/._*".contains(c))
        && text::is_printable(target);
    (is_grantable && is_named && is_plain).then(|| format!("allow {id} {option} {}", quote(target)))
}
