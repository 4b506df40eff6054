//! `callers.policy.toml`: who may call which tools, with which values, how often, how many at once.
//! A caller that no entry names may call nothing.

use super::callbacks::{self, CallbackGrant, CallbackRule, CallbackUrl};
use super::document::{Origin, TomlDocument};
use super::files::plain_path;
use super::grantable::Grantable;
use super::secrets::{self, SecretSource};
use crate::base::text::printable;
use crate::manifest::Selector;
use crate::manifest::reader::{Reader, TOML};
use crate::manifest::{At, Problem};
use crate::schemas::CALLERS;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const CALLERS_FILE: &str = "callers.policy.toml";
/// As a caller's name: every caller that no other entry names. In `act_as`: every name.
pub const EVERYBODY: &str = "*";
const MAX_NAME_BYTES: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub struct Callers {
    pub file: PathBuf,
    pub list: Vec<CallerRule>,
    pub limits: Vec<ToolLimit>,
    pub breaker: Breaker,
    pub source: Value,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CallerRule {
    pub name: String,
    pub why: String,
    #[serde(default)]
    pub tools: Vec<Selector>,
    #[serde(skip)]
    pub parameters: Vec<ParameterRule>,
    pub calls_per_minute: Option<u32>,
    pub at_once: Option<u32>,
    /// Sees audits, metrics and the calls of others.
    #[serde(skip)]
    pub operator: bool,
    /// The callers that this caller may act as, by their name in a request.
    #[serde(default)]
    pub act_as: Vec<String>,
    /// The URLs that may be notified when background calls of this caller end.
    #[serde(skip)]
    pub callbacks: Vec<CallbackRule>,
    #[serde(skip)]
    pub callback_secret: Option<SecretSource>,
    #[serde(skip)]
    pub at: At,
}

/// The values that one parameter of a tool may have. If a parameter has several rules, one of them
/// must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterRule {
    pub tool: Selector,
    pub name: String,
    #[serde(flatten)]
    pub takes: AllowedValue,
    pub why: String,
    #[serde(skip)]
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllowedValue {
    Values(Vec<Value>),
    Prefix(String),
    /// A path of plain parts below this folder.
    Under(String),
    /// A number, both ends included.
    Range {
        min: Option<f64>,
        max: Option<f64>,
    },
}

/// One `[[limit]]`. It limits each tool that it names, for all callers together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ToolLimit {
    pub tools: Vec<Selector>,
    pub why: String,
    pub calls_per_minute: Option<u32>,
    pub at_once: Option<u32>,
}

/// The circuit breaker: after how many failures in a row calls are refused, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    pub failures: u32,
    pub wait: Duration,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            failures: 5,
            wait: Duration::from_secs(60),
        }
    }
}

/// What one caller may do with one tool, as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerGrant {
    pub name: String,
    /// For `*`: the callers with entries of their own, to which `*` does not apply.
    pub except: Vec<String>,
    /// Callers that may act as this caller.
    pub through: Vec<String>,
    pub parameters: Vec<ParameterRule>,
    pub calls_per_minute: Option<u32>,
    pub at_once: Option<u32>,
    #[serde(default)]
    pub callbacks: Vec<CallbackGrant>,
    pub rule: String,
    pub why: String,
}

impl Callers {
    pub fn rule(&self, name: &str) -> Option<&CallerRule> {
        let named = |name: &str| self.list.iter().find(|rule| rule.name == name);
        // A caller with the name `*` gets the entry for everybody, too.
        named(name).or_else(|| named(EVERYBODY))
    }

    pub fn may_call(&self, name: &str, id: &str) -> bool {
        self.rule(name).is_some_and(|rule| rule.may_call(id))
    }

    /// Who a request counts as: the name in its label, if `caller` may act as that one, else
    /// `caller`.
    pub fn acts_as<'n>(&self, caller: &'n str, label: Option<&'n str>) -> &'n str {
        label
            .filter(|label: &&str| {
                is_name(label) && self.rule(caller).is_some_and(|rule| rule.may_act_as(label))
            })
            .unwrap_or(caller)
    }

    /// The limit of a tool: the narrowest that names it.
    pub fn limit(&self, id: &str) -> Option<&ToolLimit> {
        fn width(limit: &ToolLimit, id: &str) -> Option<Selector> {
            limit
                .tools
                .iter()
                .filter(|tool| tool.matches(id))
                .max()
                .cloned()
        }
        self.limits
            .iter()
            .filter(|limit| width(limit, id).is_some())
            .max_by_key(|limit| width(limit, id))
    }

    /// Everybody who may call a tool, as the file says it.
    pub fn grants(&self, id: &str) -> Vec<CallerGrant> {
        self.list
            .iter()
            .filter(|rule| rule.may_call(id))
            .map(|rule| self.grant(rule, id))
            .collect()
    }

    fn grant(&self, rule: &CallerRule, id: &str) -> CallerGrant {
        let others = |keep: &dyn Fn(&&CallerRule) -> bool| -> Vec<String> {
            let others = self
                .list
                .iter()
                .filter(|other| other.name != rule.name && keep(other));
            others.map(|other| other.name.clone()).collect()
        };
        CallerGrant {
            name: rule.name.clone(),
            except: if rule.name == EVERYBODY {
                others(&|_| true)
            } else {
                Vec::new()
            },
            through: others(&|other| match rule.name.as_str() {
                // A name with an entry of its own does not fall under `*`.
                EVERYBODY => other.act_as.iter().any(|name| {
                    name == EVERYBODY || !self.list.iter().any(|rule| rule.name == *name)
                }),
                name => other.may_act_as(name),
            }),
            parameters: rule
                .parameters
                .iter()
                .filter(|parameter| parameter.tool.matches(id))
                .cloned()
                .collect(),
            calls_per_minute: rule.calls_per_minute,
            at_once: rule.at_once,
            callbacks: rule.callbacks.iter().map(CallbackRule::grant).collect(),
            rule: format!("{CALLERS_FILE}: {}", rule.name),
            why: rule.why.clone(),
        }
    }

    pub fn place(&self, at: At) -> String {
        Origin {
            name: CALLERS_FILE,
            file: &self.file,
        }
        .place(at)
    }
}

impl CallerRule {
    fn may_call(&self, id: &str) -> bool {
        self.tools.iter().any(|tool| tool.matches(id))
    }

    fn may_act_as(&self, name: &str) -> bool {
        self.act_as
            .iter()
            .any(|own| own == name || own == EVERYBODY)
    }

    /// The rule that lets this URL be notified; of several, the one with the longest path.
    pub fn callback(&self, url: &CallbackUrl) -> Option<&CallbackRule> {
        self.callbacks
            .iter()
            .filter(|rule| rule.url.covers(url))
            .max_by_key(|rule| rule.url.path.len())
    }

    /// A rule for the first parameter whose value this caller may not use. An argument that is left
    /// out fits no rule, because the tool would then choose the value.
    pub fn refuses(&self, id: &str, arguments: &Value) -> Option<&ParameterRule> {
        let rules = || self.parameters.iter().filter(|rule| rule.tool.matches(id));
        let fits = |name: &str| {
            let argument = arguments.get(name);
            rules()
                .filter(|rule| rule.name == name)
                .any(|rule| argument.is_some_and(|argument| rule.takes.fits(argument)))
        };
        rules().find(|rule| !fits(&rule.name))
    }
}

impl AllowedValue {
    fn fits(&self, argument: &Value) -> bool {
        match (self, argument) {
            (AllowedValue::Values(values), _) => values.iter().any(|value| same(value, argument)),
            (AllowedValue::Prefix(prefix), Value::String(text)) => text.starts_with(prefix),
            (AllowedValue::Under(folder), Value::String(path)) => is_below(path, folder),
            (AllowedValue::Range { min, max }, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| {
                    min.is_none_or(|min| number >= min) && max.is_none_or(|max| number <= max)
                })
            }
            _ => false,
        }
    }

    pub fn text(&self) -> String {
        fn end(number: &Option<f64>) -> String {
            number.map_or_else(|| "…".to_owned(), |number| number.to_string())
        }
        match self {
            AllowedValue::Values(values) => {
                format!(
                    "is one of {}",
                    values
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            }
            AllowedValue::Prefix(prefix) => format!("begins with {prefix:?}"),
            AllowedValue::Under(folder) => format!("is a path under {folder:?}"),
            AllowedValue::Range { min, max } => {
                format!("is a number from {} to {}", end(min), end(max))
            }
        }
    }
}

/// 1 and 1.0 are one number; two integers are compared exactly.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        _ => one == other,
    }
}

/// Whether a path lies below a folder. A path with `.`, `..`, an empty part or NUL never does.
fn is_below(path: &str, folder: &str) -> bool {
    let rest = path
        .strip_prefix(folder.trim_end_matches('/'))
        .and_then(|rest| rest.strip_prefix('/'));
    path.split('/')
        .all(|part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0'))
        && rest.is_some()
}

impl CallerGrant {
    /// The grant of everybody where `callers.policy.toml` does not exist.
    pub fn anybody() -> CallerGrant {
        let name = "anybody whom this host serves".to_owned();
        let rule = "built-in".to_owned();
        CallerGrant {
            name,
            rule,
            why: format!("there is no {CALLERS_FILE}"),
            ..CallerGrant::default()
        }
    }
}

impl Grantable for CallerGrant {
    fn kind(&self) -> &'static str {
        "caller"
    }
    fn text(&self) -> String {
        fn list(before: &str, names: &[String]) -> String {
            if names.is_empty() {
                String::new()
            } else {
                format!("{before}{}", names.join(", "))
            }
        }
        let rules = self
            .parameters
            .iter()
            .map(|rule| format!("`{}` {}", rule.name, rule.takes.text()));
        let rate = self
            .calls_per_minute
            .map(|calls| format!("{calls} calls a minute"));
        let at_once = self.at_once.map(|calls| format!("{calls} at once"));
        let conditions: Vec<String> = rules
            .chain(rate)
            .chain(at_once)
            .chain(self.callbacks.iter().map(CallbackGrant::text))
            .collect();
        let except = list(" but not ", &self.except);
        let through = list(", also through ", &self.through);
        format!("{}{except}{through}{}", self.name, list(": ", &conditions))
    }
    fn covers(&self, other: &CallerGrant) -> bool {
        let anybody = *self == CallerGrant::anybody();
        fn wide(ours: Option<u32>, theirs: Option<u32>) -> bool {
            ours.is_none_or(|o| theirs.is_some_and(|t| t <= o))
        }
        // For each parameter with rules in `self`, `other` has rules, and each of these is in
        // `self`.
        let parameters = self.parameters.iter().all(|rule| {
            let theirs: Vec<_> = other
                .parameters
                .iter()
                .filter(|their| their.name == rule.name)
                .collect();
            !theirs.is_empty()
                && theirs.iter().all(|their: &&ParameterRule| {
                    self.parameters
                        .iter()
                        .any(|our| our.name == their.name && our.takes == their.takes)
                })
        });
        (anybody
            || self.name == other.name
                && other.through.iter().all(|name| self.through.contains(name)))
            && self.except.iter().all(|name| other.except.contains(name))
            && other
                .callbacks
                .iter()
                .all(|their| self.callbacks.iter().any(|our| our.covers(their)))
            && parameters
            && wide(self.calls_per_minute, other.calls_per_minute)
            && wide(self.at_once, other.at_once)
    }
    fn is_near(&self, other: &CallerGrant) -> bool {
        self.name == other.name
    }
}

fn is_name(name: &str) -> bool {
    let plain =
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_whitespace);
    plain && printable(name) == name && (name == EVERYBODY || !name.contains('*'))
}

#[derive(Deserialize)]
struct ParameterLine {
    tool: Selector,
    name: String,
    why: String,
    values: Option<Vec<Value>>,
    prefix: Option<String>,
    under: Option<String>,
    min: Option<f64>,
    max: Option<f64>,
}

pub fn parse(source: &str, file: &Path) -> Result<Callers, Vec<Problem>> {
    let document = TomlDocument::parse(source)?;
    let mut it = Reader::new(&document.value, &document, &TOML);
    it.check_schema(&CALLERS, &document.value, "");
    let mut list: Vec<CallerRule> = Vec::new();
    for (pointer, entry) in it.list("/caller") {
        let rule = caller(
            &mut it,
            &pointer,
            entry,
            file.parent().unwrap_or(Path::new("")),
        );
        if list.iter().any(|other| other.name == rule.name) {
            it.conflict(
                &format!("{pointer}/name"),
                "another entry names this caller: write one entry",
            );
        }
        list.push(rule);
    }
    let mut limits: Vec<ToolLimit> = Vec::new();
    for (pointer, limit) in it.list::<ToolLimit>("/limit") {
        if limits
            .iter()
            .any(|other| other.tools.iter().any(|tool| limit.tools.contains(tool)))
        {
            it.conflict(
                &format!("{pointer}/tools"),
                "another entry limits one of these tools: write one entry",
            );
        }
        limits.push(limit);
    }
    let usual = Breaker::default();
    let breaker = Breaker {
        failures: it.get("/breaker/failures").unwrap_or(usual.failures),
        wait: it
            .get("/breaker/wait_seconds")
            .map_or(usual.wait, Duration::from_secs),
    };
    let callers = Callers {
        file: file.to_path_buf(),
        list,
        limits,
        breaker,
        source: document.value.clone(),
    };
    it.finish(Some(callers)).map(|(callers, _)| callers)
}

/// `folder`: the folder of the file, where relative paths start.
fn caller(document: &mut Reader<'_>, pointer: &str, rule: CallerRule, folder: &Path) -> CallerRule {
    fn at(key: &str, pointer: &str) -> String {
        format!("{pointer}/{key}")
    }
    let names = rule
        .act_as
        .iter()
        .enumerate()
        .map(|(index, name)| (format!("{}/{index}", at("act_as", pointer)), name));
    for (pointer, name) in names.chain([(at("name", pointer), &rule.name)]) {
        if !is_name(name) {
            document.fault(
                &pointer,
                "a caller has the name by which it authenticates (alice, uid:1000), or \"*\"",
            );
        }
    }
    let mut parameters = Vec::new();
    for (pointer, line) in document.list::<ParameterLine>(&at("parameters", pointer)) {
        // A misspelt id would leave the intended tool without its rule.
        if !rule.tools.iter().any(|own| own.meets(&line.tool)) {
            document.fault(
                &format!("{pointer}/tool"),
                "not among this caller's `tools`: write the same id in both",
            );
        }
        let tool = line.tool.clone();
        let name = line.name.clone();
        let why = line.why.clone();
        let Some(takes) = allowed_value(document, &pointer, line) else {
            continue;
        };
        parameters.push(ParameterRule {
            tool,
            name,
            takes,
            why,
            at: document.at(&format!("{pointer}/name")),
        });
    }
    let callbacks = callbacks::read(document, &at("callbacks", pointer));
    let secret = document
        .get(&at("callback_secret", pointer))
        .map(|secret: String| secrets::source(&secret, folder));
    let callback_secret =
        secret.and_then(|secret| document.parsed(&at("callback_secret", pointer), secret));
    let operator = document.value.pointer(&at("role", pointer)).is_some();
    CallerRule {
        parameters,
        callbacks,
        callback_secret,
        operator,
        at: document.at(&at("name", pointer)),
        ..rule
    }
}

fn allowed_value(
    document: &mut Reader<'_>,
    pointer: &str,
    line: ParameterLine,
) -> Option<AllowedValue> {
    Some(match line {
        ParameterLine {
            values: Some(values),
            ..
        } => AllowedValue::Values(values),
        ParameterLine {
            prefix: Some(prefix),
            ..
        } => AllowedValue::Prefix(prefix),
        ParameterLine {
            under: Some(folder),
            ..
        } => {
            let path = document.parsed(
                &format!("{pointer}/under"),
                plain_path(folder.trim_end_matches('/')),
            )?;
            AllowedValue::Under(path.to_string_lossy().into_owned())
        }
        ParameterLine { min, max, .. } => {
            if min.zip(max).is_some_and(|(min, max)| min > max) {
                document.fault(
                    &format!("{pointer}/min"),
                    "`min` is above `max`: no number fits",
                );
            }
            AllowedValue::Range { min, max }
        }
    })
}
