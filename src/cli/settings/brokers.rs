//! `[[broker]]` of a config file: which tools are served over which broker, for whom; and
//! `[[tool_services]]`: over which broker the services of descriptors are called. The file holds no
//! credential.

use super::source::guarded_text;
use crate::broker::{Secret, Terms, Topic};
use crate::executor::remote::RemoteServices;
use crate::policy::{SecretSource, secret_source};
use crate::registry::MAX_ANNOUNCED_TOOLS;
use crate::service;
use crate::transport::announced::{self, Announcer, Announcing};
use crate::transport::broker::BrokerSettings;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Calls at once where the file does not say.
const DEFAULT_CONCURRENCY: u16 = 8;
const MAX_CONCURRENCY: u16 = 1000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BrokerConfig {
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
    at_once: Option<i64>,
    announce: Option<Announce>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announce {
    announcer: String,
    key: String,
    topic: Option<String>,
    ttl: Option<i64>,
}

/// What is served over one broker, and the files that its entry names: no tool may write them.
#[derive(Clone, Debug)]
pub struct Broker {
    pub entry: BrokerSettings,
    pub files: Vec<PathBuf>,
}

/// The connection of an entry: its address, user, credential and certificates. Adds the files that
/// the entry names to `files`.
fn connection(
    url: &str,
    user: Option<String>,
    credentials: Option<&str>,
    ca: Option<PathBuf>,
    insecure: bool,
    folder: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<Terms, String> {
    let credentials =
        credentials.map(|from| shared_secret(from, folder, "a broker has one credential", files));
    let credentials = credentials
        .transpose()
        .map_err(|why| format!("credentials: {why}"))?;
    let mut terms =
        Terms::new(url, user, credentials, insecure).map_err(|why| format!("url: {why}"))?;
    if let Some(path) = ca.map(|path| folder.join(path)) {
        let text = guarded_text(&path).map_err(|why| format!("ca {}: {why}", path.display()))?;
        files.push(path);
        terms.ca = Some(text);
    }
    Ok(terms)
}

/// All entries; `folder`: where relative paths start.
pub(super) fn all(given: Vec<BrokerConfig>, folder: &Path) -> Result<Vec<Broker>, String> {
    let mut found: Vec<Broker> = Vec::new();
    for (index, given) in given.into_iter().enumerate() {
        let bad = |why: String| format!("[[broker]] number {}: {why}", index + 1);
        let broker = one(given, folder).map_err(bad)?;
        fn queue(it: &Broker) -> (String, Topic, String) {
            (
                it.entry.terms.to_string(),
                it.entry.request.clone(),
                it.entry.subscription.clone(),
            )
        }
        if found.iter().any(|other| queue(other) == queue(&broker)) {
            return Err(bad(
                "another [[broker]] reads the same requests: list all tools in one entry"
                    .to_owned(),
            ));
        }
        // If a reply arrived as a request, it would be answered by another reply, without end.
        fn circles(one: &Broker, other: &Broker) -> bool {
            let replies = &one.entry.response;
            let requests = &other.entry.request;
            // Different topics may have the same exchange name at RabbitMQ.
            one.entry.terms.to_string() == other.entry.terms.to_string()
                && replies.exchange() == requests.exchange()
        }
        if found
            .iter()
            .chain([&broker])
            .any(|other| circles(other, &broker) || circles(&broker, other))
        {
            let why = "replies would arrive as requests: name topics of requests that no entry \
                names for replies";
            return Err(bad(why.to_owned()));
        }
        fn name(it: &Broker) -> Option<String> {
            it.entry
                .announce
                .as_ref()
                .map(|announce| announce.name.clone())
        }
        if found
            .iter()
            .any(|other| name(other).is_some() && name(other) == name(&broker))
        {
            return Err(bad(
                "announce: another [[broker]] has this announcer: list all tools in one entry"
                    .to_owned(),
            ));
        }
        found.push(broker);
    }
    Ok(found)
}

fn one(given: BrokerConfig, folder: &Path) -> Result<Broker, String> {
    let mut files = Vec::new();
    let credentials = given.credentials.as_deref();
    let terms = connection(
        &given.url,
        given.user,
        credentials,
        given.ca,
        given.insecure,
        folder,
        &mut files,
    )?;
    let (request, response) = match (given.service, given.request, given.response) {
        (Some(service), None, None) => {
            Topic::of_service(&service).map_err(|why| format!("service: {why}"))?
        }
        (None, Some(request), Some(response)) => (
            Topic::parse(&request).map_err(|why| format!("request: {why}"))?,
            Topic::parse(&response).map_err(|why| format!("response: {why}"))?,
        ),
        _ => {
            return Err(
                "name the topics: `service = \"NAME\"`, or `request` and `response` in full"
                    .to_owned(),
            );
        }
    };
    let id = given.id.unwrap_or_else(|| "toolhost".to_owned());
    if id.is_empty()
        || id.len() > 64
        || !id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    {
        return Err(
            "id: letters, digits, `-` and `_`, at most 64: hosts of one id share the requests"
                .to_owned(),
        );
    }
    check_tools(&given.tools, &given.idempotent)?;
    if !(1..=service::MAX_NAME_BYTES).contains(&given.caller.len()) {
        return Err(
            "caller: name who these calls count as, in callers.policy.toml and in records"
                .to_owned(),
        );
    }
    let at_once = given
        .at_once
        .map_or(Ok(DEFAULT_CONCURRENCY), u16::try_from)
        .ok();
    let at_once = at_once.filter(|at_once| (1..=MAX_CONCURRENCY).contains(at_once));
    let at_once =
        at_once.ok_or_else(|| format!("at_once: from 1 to {MAX_CONCURRENCY} calls at once"))?;
    let subscription = format!("{id}-request");
    let tools = given.tools;
    let idempotent = given.idempotent;
    let caller = given.caller;
    if given.announce.is_some() && tools.len() > MAX_ANNOUNCED_TOOLS {
        return Err(format!(
            "announce: hosts accept at most {MAX_ANNOUNCED_TOOLS} tools of one announcer"
        ));
    }
    let announce = given
        .announce
        .map(|announce| announcing(announce, folder, &mut files))
        .transpose();
    let announce = announce.map_err(|why| format!("announce: {why}"))?;
    let entry = BrokerSettings {
        terms,
        request,
        response,
        subscription,
        tools,
        idempotent,
        caller,
        at_once,
        announce,
    };
    Ok(Broker { entry, files })
}

fn check_tools(tools: &[String], idempotent: &[String]) -> Result<(), String> {
    if tools.is_empty() {
        return Err("tools: name the tools that answer here, such as [\"custom:joke\"]".to_owned());
    }
    let mut ids = BTreeSet::new();
    for tool in tools {
        let id = tool.split('@').next().unwrap_or_default();
        if !ids.insert(id) {
            return Err(format!(
                "tools: '{}' is listed twice: a message names a tool by its id, so list each id \
                once",
                id.escape_debug()
            ));
        }
    }
    match idempotent.iter().find(|id| !ids.contains(id.as_str())) {
        Some(other) => Err(format!(
            "idempotent: '{}' is not the id of a tool in `tools`",
            other.escape_debug()
        )),
        None => Ok(()),
    }
}

fn announcing(
    announce: Announce,
    folder: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<Announcing, String> {
    let Announce {
        announcer,
        key,
        topic,
        ttl,
    } = announce;
    if !plain(&announcer) {
        return Err("announcer: small letters, digits and `-`, at most 32".to_owned());
    }
    let ttl = ttl.unwrap_or(announced::TTL);
    if !(1..=announced::MAX_TTL).contains(&ttl) {
        return Err(format!("ttl: from 1 to {} seconds", announced::MAX_TTL));
    }
    let topic = Topic::parse(topic.as_deref().unwrap_or(announced::TOPIC))
        .map_err(|why| format!("topic: {why}"))?;
    Ok(Announcing {
        name: announcer,
        topic,
        key: announcer_key(&key, folder, files)?,
        ttl,
    })
}

/// An entry of `[[tool_services]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolServicesConfig {
    #[serde(default)]
    services: Vec<String>,
    announced: Option<Announced>,
    url: String,
    user: Option<String>,
    credentials: Option<String>,
    ca: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
}

/// What other hosts may announce there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    topic: Option<String>,
    from: Vec<AnnouncerConfig>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnnouncerConfig {
    announcer: String,
    namespace: String,
    key: String,
}

/// Services of one broker, and the files that its entry names: no tool may write them.
#[derive(Clone, Debug)]
pub struct BrokerServices {
    pub reached: RemoteServices,
    pub announced: Option<announced::AnnouncementSettings>,
    pub files: Vec<PathBuf>,
}

/// `folder`: of the config file, where its relative paths start.
pub(super) fn services(
    written: Vec<ToolServicesConfig>,
    folder: &Path,
) -> Result<Vec<BrokerServices>, String> {
    let mut found: Vec<BrokerServices> = Vec::new();
    for (number, mut entry) in written.into_iter().enumerate() {
        let at = |why: String| format!("[[tool_services]] {}: {why}", number + 1);
        let from = entry
            .announced
            .as_ref()
            .map_or_else(Default::default, |announced| announced.from.as_slice());
        // Announced services are called over the broker on which they are announced.
        entry
            .services
            .extend(from.iter().map(|from| format!("{}.*", from.namespace)));
        if entry.services.is_empty() {
            return Err(at(
                "`services` names none: write ids of descriptors, or [\"*\"] for all others"
                    .to_owned(),
            ));
        }
        if let Some(twice) = entry.services.iter().find(|id: &&String| {
            found
                .iter()
                .any(|other| other.reached.services.contains(id))
        }) {
            return Err(at(format!(
                "the service '{}' is called over another broker already",
                twice.escape_debug()
            )));
        }
        let mut files = Vec::new();
        let credentials = entry.credentials.as_deref();
        let terms = connection(
            &entry.url,
            entry.user,
            credentials,
            entry.ca,
            entry.insecure,
            folder,
            &mut files,
        );
        let terms = terms.map_err(at)?;
        let announced = entry
            .announced
            .map(|announced| announced_entry(announced, &terms, folder, &mut files));
        let announced = announced
            .transpose()
            .map_err(|why| at(format!("announced: {why}")))?;
        fn names(entry: &announced::AnnouncementSettings) -> Vec<String> {
            entry
                .from
                .iter()
                .map(|from| from.name.clone())
                .collect::<Vec<_>>()
        }
        let mut earlier = found
            .iter()
            .filter_map(|called| called.announced.as_ref())
            .flat_map(names);
        if let Some(twice) =
            earlier.find(|name| announced.iter().any(|entry| names(entry).contains(name)))
        {
            return Err(at(format!(
                "announced: the announcer '{twice}' is listed already: one host has one entry"
            )));
        }
        found.push(BrokerServices {
            reached: RemoteServices {
                services: entry.services,
                terms,
            },
            announced,
            files,
        });
    }
    Ok(found)
}

fn announced_entry(
    announced: Announced,
    terms: &Terms,
    folder: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<announced::AnnouncementSettings, String> {
    let topic = announced.topic.as_deref().unwrap_or(announced::TOPIC);
    let topic = Topic::parse(topic).map_err(|why| format!("topic: {why}"))?;
    let mut from: Vec<Announcer> = Vec::new();
    for AnnouncerConfig {
        announcer,
        namespace,
        key,
    } in announced.from
    {
        if !plain(&announcer) || !plain(&namespace) {
            let words =
                "an announcer and its namespace have small letters, digits and `-`, at most 32";
            return Err(format!("'{}': {words}", announcer.escape_debug()));
        }
        if from
            .iter()
            .any(|other| other.name == announcer || other.namespace == namespace)
        {
            return Err(format!(
                "'{announcer}': another one has this name or this namespace"
            ));
        }
        from.push(Announcer {
            name: announcer,
            namespace,
            key: announcer_key(&key, folder, files)?,
        });
    }
    if from.is_empty() {
        return Err("`from` lists no announcer: { announcer, namespace, key }".to_owned());
    }
    Ok(announced::AnnouncementSettings {
        terms: terms.clone(),
        topic,
        from,
    })
}

/// Whether an announcer or a namespace may have this name. It may have no dot, because a dot ends a
/// namespace.
fn plain(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
}

/// A secret source that is the same for every caller; `what` says so in the error.
pub(super) fn one_for_all(
    written: &str,
    folder: &Path,
    what: &str,
) -> Result<SecretSource, String> {
    match secret_source(written, folder)? {
        SecretSource::CallerFile(_) => Err(format!("{what}, the same for every caller")),
        from => Ok(from),
    }
}

/// A secret that is read at each use. Adds its file to `files`.
fn shared_secret(
    written: &str,
    folder: &Path,
    what: &str,
    files: &mut Vec<PathBuf>,
) -> Result<Secret, String> {
    let from = one_for_all(written, folder, what)?;
    files.extend(from.named_files().into_iter().map(Path::to_path_buf));
    Ok(Secret::new(move || {
        Box::pin(service::credential(from.clone()))
    }))
}

fn announcer_key(from: &str, folder: &Path, files: &mut Vec<PathBuf>) -> Result<Secret, String> {
    shared_secret(from, folder, "an announcer has one key", files)
        .map_err(|why| format!("key: {why}"))
}
