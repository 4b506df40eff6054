//! What the operator disabled: tools of which no call begins until they are enabled again.

use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::manifest::Selector;
use jiff::Timestamp;
use semver::Version;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// One order to stop tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stop {
    /// As `named` reads it.
    #[serde(deserialize_with = "read_named")]
    pub tools: Selector,
    pub by: String,
    pub at: Timestamp,
    pub why: String,
    /// Calls that run end, too.
    pub ends_calls: bool,
    /// Only hosts of this root obey: an operator ordered it over HTTP. `None`: all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// What an order may name: `ns:name`, one version of it (`ns:name@1.2.0`), `ns:*` or `*`.
pub fn named(text: &str) -> Result<Selector, String> {
    let selector = Selector::try_from(text.to_owned())?;
    match text.split_once('@') {
        _ if text != "*" && !text.contains(':') => Err(format!(
            "a tool is named ns:name, all of a namespace {text}:*"
        )),
        Some((_, version)) if Version::parse(version).is_err() => {
            Err("name one version, as in ns:name@1.2.0".to_owned())
        }
        _ => Ok(selector),
    }
}

fn read_named<'d, D: Deserializer<'d>>(from: D) -> Result<Selector, D::Error> {
    named(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Whether a selector names a tool, `id@version`.
fn names(selector: &Selector, tool: &str) -> bool {
    let id = tool.split('@').next().unwrap_or_default();
    selector.matches(id) || selector.matches(tool)
}

impl Stop {
    pub fn covers(&self, tool: &str) -> bool {
        names(&self.tools, tool)
    }

    /// In words, for the operator.
    pub fn text(&self) -> String {
        let Stop { by, at, why, .. } = self;
        let tools = self.tools.text();
        let root = self.root.as_ref().map(|root| format!(" in {root}"));
        let root = root.unwrap_or_default();
        printable(&format!(
            "'{tools}' is disabled{root} since {at} by {by}: {why}"
        ))
    }

    /// The fault of every call of this tool. The reason is for the operator alone.
    pub fn fault(&self, tool: &str) -> Fault {
        let tool = printable(tool);
        let message = format!("The operator disabled {tool} at {}.", self.at);
        let tools = printable(&self.tools.text());
        let person = format!("{}; `toolhost enable '{tools}'` ends that", self.text());
        Fault::new(Kind::AuthorizationError, message).person(person)
    }
}

/// All orders, the widest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stops(Vec<Stop>);

impl Stops {
    pub fn iter(&self) -> impl Iterator<Item = &Stop> {
        self.0.iter()
    }

    /// Those that stop a tool, `id@version`.
    pub fn of(&self, tool: &str) -> impl Iterator<Item = &Stop> {
        self.iter().filter(move |stop| stop.covers(tool))
    }

    /// Those that stop a tool which these selectors both name.
    pub fn meeting(&self, tools: &Selector) -> impl Iterator<Item = &Stop> {
        self.iter().filter(|stop| {
            let text = stop.tools.text();
            stop.tools.meets(tools) || stop.covers(&tools.text()) || names(tools, &text)
        })
    }

    /// Those that hosts of a root obey.
    pub fn for_root(&self, root: &str) -> Stops {
        let obeyed = self.iter();
        let obeyed = obeyed.filter(|stop| stop.root.as_ref().is_none_or(|of| of == root));
        Stops(obeyed.cloned().collect())
    }

    /// Adds an order, in place of an earlier one about the same tools and root.
    pub fn put(&mut self, stop: Stop) {
        self.remove(|known| known.tools == stop.tools && known.root == stop.root);
        self.0.push(stop);
        self.0.sort_by(|a, b| a.tools.cmp(&b.tools));
    }

    /// Whether there was such an order.
    pub fn remove(&mut self, is_it: impl Fn(&Stop) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|stop| !is_it(stop));
        self.0.len() < before
    }
}
