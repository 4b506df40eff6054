//! Brokers: `[[broker]]` of a config file: which tools are served where, for whom.
//!
//! For: `settings`. In: the config file. Out: `Broker`s. Never: a credential in the file itself; one caller's secret for all.

use super::guarded_text;
use super::tool_services::{announcer_key, one_for_all, plain, secret};
use crate::broker::{Terms, Topic};
use crate::policy::SecretSource;
use crate::registry::MOST_ANNOUNCED;
use crate::transport::announced::{self, Announcing};
use crate::transport::broker::Entry;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Calls at once where the file does not say.
const AT_ONCE: u16 = 8;
const MOST_AT_ONCE: u16 = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    url: String,
    service: Option<String>,
    request: Option<String>,
    response: Option<String>,
    id: Option<String>,
    tools: Vec<String>,
    #[serde(default)]
    idempotent: Vec<String>,
    caller: String,
    user: Option<String>,
    credentials: Option<String>,
    ca: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
    at_once: Option<u16>,
    announce: Option<Announce>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announce {
    announcer: String,
    key: String,
    topic: Option<String>,
    ttl: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Broker {
    pub entry: Entry,
    /// Certificates that vouch for it.
    ca: Option<PathBuf>,
    credentials: Option<SecretSource>,
    /// Of the key by which it announces.
    key: Option<PathBuf>,
}

impl Broker {
    /// The files that it names: no tool may write them.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        let credentials = self.credentials.as_ref().and_then(|from| from.file());
        self.ca.clone().into_iter().chain(credentials.map(Path::to_owned)).chain(self.key.clone())
    }

    /// As it is served, with the certificates as they are now.
    pub fn ready(&self) -> Result<Entry, String> {
        let mut entry = self.entry.clone();
        if let Some(path) = &self.ca {
            let text = guarded_text(path).map_err(|why| format!("[[broker]] ca {}: {why}", path.display()))?;
            entry.terms.ca = Some(text);
        }
        Ok(entry)
    }
}

/// All entries; `folder`: where relative paths start.
pub(super) fn all(given: Vec<Given>, folder: &Path) -> Result<Vec<Broker>, String> {
    let mut found: Vec<Broker> = Vec::new();
    for (index, given) in given.into_iter().enumerate() {
        let bad = |why: String| format!("[[broker]] number {}: {why}", index + 1);
        let broker = one(given, folder).map_err(bad)?;
        let queue = |it: &Broker| (it.entry.terms.to_string(), it.entry.request.clone(), it.entry.subscription.clone());
        if found.iter().any(|other| queue(other) == queue(&broker)) {
            return Err(bad("another one has the same requests: write all tools into one".to_owned()));
        }
        // A reply that comes in as a request is answered by one more, for ever.
        let circles = |one: &Broker, other: &Broker| {
            let (replies, requests) = (&one.entry.response, &other.entry.request);
            // Other parts may be the same name at RabbitMQ.
            one.entry.terms.to_string() == other.entry.terms.to_string() && replies.exchange() == requests.exchange()
        };
        if found.iter().chain([&broker]).any(|other| circles(other, &broker) || circles(&broker, other)) {
            let why =
                "replies would come in as requests: no topic of requests is one of replies, of this entry or another";
            return Err(bad(why.to_owned()));
        }
        let name = |it: &Broker| it.entry.announce.as_ref().map(|announce| announce.name.clone());
        if found.iter().any(|other| name(other).is_some() && name(other) == name(&broker)) {
            return Err(bad("announce: another one announces under this name: write all tools into one".to_owned()));
        }
        found.push(broker);
    }
    Ok(found)
}

fn one(given: Given, folder: &Path) -> Result<Broker, String> {
    let credentials = given.credentials.map(|from| one_for_all(&from, folder, "a broker has one credential"));
    let credentials = credentials.transpose().map_err(|why| format!("credentials: {why}"))?;
    let terms = Terms::new(&given.url, given.user, credentials.clone().map(secret), given.insecure)
        .map_err(|why| format!("url: {why}"))?;
    let (request, response) = match (given.service, given.request, given.response) {
        (Some(service), None, None) => Topic::of_service(&service).map_err(|why| format!("service: {why}"))?,
        (None, Some(request), Some(response)) => (
            Topic::parse(&request).map_err(|why| format!("request: {why}"))?,
            Topic::parse(&response).map_err(|why| format!("response: {why}"))?,
        ),
        _ => return Err("name the topics: `service = \"NAME\"`, or `request` and `response` in full".to_owned()),
    };
    let id = given.id.unwrap_or_else(|| "toolhost".to_owned());
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
        return Err("id: letters, digits, `-` and `_`, at most 64: hosts of one id share the requests".to_owned());
    }
    if given.tools.is_empty() {
        return Err("tools: name the tools that answer here, such as [\"custom:joke\"]".to_owned());
    }
    let id_of = |tool: &String| tool.split('@').next().unwrap_or_default().to_owned();
    let ids: Vec<String> = given.tools.iter().map(id_of).collect();
    if let Some(twice) = ids.iter().enumerate().find_map(|(at, id)| ids[..at].contains(id).then_some(id)) {
        let twice = twice.escape_debug();
        return Err(format!(
            "tools: '{twice}' is named twice: a message means a tool by its id, and gets one version of it"
        ));
    }
    if let Some(other) = given.idempotent.iter().find(|id| !ids.contains(id)) {
        return Err(format!("idempotent: '{}' is no id of a tool in `tools`", other.escape_debug()));
    }
    if given.caller.is_empty() {
        return Err("caller: name whom these calls count as in callers.policy.toml and in records".to_owned());
    }
    let at_once = given.at_once.unwrap_or(AT_ONCE);
    if !(1..=MOST_AT_ONCE).contains(&at_once) {
        return Err(format!("at_once: from 1 to {MOST_AT_ONCE} calls at once"));
    }
    let subscription = format!("{id}-request");
    let (tools, idempotent, caller) = (given.tools, given.idempotent, given.caller);
    if given.announce.is_some() && tools.len() > MOST_ANNOUNCED {
        return Err(format!("announce: no host takes more than {MOST_ANNOUNCED} tools of one announcer"));
    }
    let announce = given.announce.map(|announce| announcing(announce, folder)).transpose();
    let (announce, key) = announce.map_err(|why| format!("announce: {why}"))?.unzip();
    let entry = Entry { terms, request, response, subscription, tools, idempotent, caller, at_once, announce };
    Ok(Broker { entry, ca: given.ca.map(|path| folder.join(path)), credentials, key: key.flatten() })
}

fn announcing(announce: Announce, folder: &Path) -> Result<(Announcing, Option<PathBuf>), String> {
    let Announce { announcer, key, topic, ttl } = announce;
    if !plain(&announcer) {
        return Err("announcer: small letters, digits and `-`, at most 32".to_owned());
    }
    let ttl = ttl.unwrap_or(announced::TTL);
    if !(1..=announced::LONGEST_TTL).contains(&ttl) {
        return Err(format!("ttl: from 1 to {} seconds", announced::LONGEST_TTL));
    }
    let topic = Topic::parse(topic.as_deref().unwrap_or(announced::TOPIC)).map_err(|why| format!("topic: {why}"))?;
    let (key, file) = announcer_key(&key, folder)?;
    Ok((Announcing { name: announcer, topic, key, ttl }, file))
}
