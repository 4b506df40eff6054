//! Secrets: those that a manifest asks for (`secret:NAME`) ∩ the entries of the policy ∩ the names in the cap.
//!
//! A policy says where each lies and how it is used. A header goes to one exact name; a tool uses no secret in two ways, and
//! has none that the relay adds.

use super::area::{self, Area};
use super::capability::{self, Kind};
use super::document::Document;
use super::file::Policy;
use super::files::plain_path;
use super::grantable::{Entry, Grantable, Narrowing};
use super::verdict::{Narrower, RequestKind, Verdict, wall};
use super::{Grant, HeaderRule, HostGrant, SecretGrant, SecretSource};
use crate::base::text;
use crate::manifest::host::{self, Host};
use crate::manifest::shape::did_you_mean;
use crate::manifest::{Manifest, environment};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// The port at which a host is reached by TLS where a policy names none.
const HTTPS: u16 = 443;
/// Most words of a command, and headers of a request that are named.
const MOST: usize = 64;
/// Longest name of a file, bytes.
const LONGEST_FILE: usize = 255;
/// Longest name or text of a header, bytes.
const LONGEST: usize = 1000;
/// Stands for the name of the caller.
pub const CALLER: &str = "{caller}";
/// Headers that say how a message is read or where it goes: no secret is one of them.
#[rustfmt::skip]
const FRAMING: [&str; 14] = [
    "host", "connection", "content-length", "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive",
    "proxy-connection", "proxy-authorization", "accept-encoding", "expect", "http2-settings",
];

#[derive(Deserialize)]
struct HeaderEntry {
    host: String,
    name: String,
    value: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    query: Option<Vec<String>>,
    request_headers: Option<Vec<String>>,
}

/// The entries of `[secrets] grant`; `policy`: the policy's name, `folder`: of its file, where relative paths start.
pub(super) fn read(document: &mut Document<'_>, policy: &str, folder: &Path) -> Vec<Entry<SecretGrant>> {
    let mut found: Vec<Entry<SecretGrant>> = Vec::new();
    for (pointer, entry) in document.list::<Value>("/secrets/grant") {
        let written = |key: &str| entry[key].as_str().map(str::to_owned);
        let at = |key: &str| format!("{pointer}/{key}");
        // An entry with another fault still says what no tool may write.
        let from = written("from").map(|from| document.parsed(&at("from"), source(&from, folder)));
        let Some(from) = from.flatten() else { continue };
        let (name, why) = (written("name").unwrap_or_default(), written("why").unwrap_or_default());
        if let Some(complaint) = environment::refused(&name, "").filter(|_| entry["name"].is_string()) {
            let shown = text::printable(&text::head(&name, 60));
            document.fault(&at("name"), format!("`{shown}` is no name of a secret: it {complaint}"));
        } else if found.iter().any(|entry| entry.grant.name == name) {
            document.conflict(&at("name"), format!("`{name}` is named twice"));
        }
        let header = document.get(&at("header")).and_then(|written| header(document, &at("header"), written));
        if let Some(other) = header.as_ref().and_then(|header| clash(header, &found)) {
            document.conflict(&at("header"), other);
        }
        let rule = format!("{policy}: {name}");
        found.push(Entry { grant: SecretGrant { name, from, header, rule, why }, at: document.at(&at("name")) });
    }
    found
}

impl Policy {
    /// The secrets whose header has methods or paths, and no word on queries.
    pub(super) fn secrets_without_query(&self) -> impl Iterator<Item = &Entry<SecretGrant>> {
        let written = |grant: &SecretGrant| {
            let entries = self.source["secrets"]["grant"].as_array().into_iter().flatten();
            entries.filter(|entry| entry["name"] == *grant.name).any(|entry| entry["header"]["query"].is_array())
        };
        let is_limited = |grant: &SecretGrant| grant.header.as_ref().is_some_and(HeaderRule::is_limited);
        self.secrets.iter().filter(move |entry| is_limited(&entry.grant) && !written(&entry.grant))
    }
}

/// Why no second header can go there: one request has one header of a name, and one host that it goes to.
fn clash(header: &HeaderRule, found: &[Entry<SecretGrant>]) -> Option<String> {
    found.iter().find_map(|Entry { grant, .. }| {
        let (HeaderRule { host, port, name, .. }, other) = (header, grant.header.as_ref()?);
        if other.host != *host {
            return None;
        }
        if other.name == *name {
            return Some(format!("`{}` is already the header `{name}` of {host}: keep one", grant.name));
        }
        let message = format!(
            "{host} gets it at port {port}, and `{}` at port {}: write one port, since requests for one name go to one place",
            grant.name, other.port
        );
        (other.port != *port).then_some(message)
    })
}

/// `folder`: where relative paths start.
pub fn source(written: &str, folder: &Path) -> Result<SecretSource, String> {
    match written.split_once(':') {
        Some(("file", path)) if path.contains(CALLER) => caller_file(path, folder),
        _ if written.contains(CALLER) => {
            Err(format!("`{CALLER}` stands in the name of a file alone, never in a variable or a command"))
        }
        Some(("env", name)) => {
            let plain = name.bytes().all(|b| b.is_ascii_graphic() && b != b'=');
            match plain && !name.is_empty() {
                true => Ok(SecretSource::Env(name.to_owned())),
                false => Err("`env:` is followed by the name of a variable of the host".to_owned()),
            }
        }
        Some(("file", path)) => plain_path(path).map(|path| SecretSource::File(folder.join(path))),
        Some(("command", words)) => {
            let words: Vec<String> = words.split_ascii_whitespace().map(str::to_owned).collect();
            let plain = |program: &String| plain_path(program).is_ok_and(|path| path.is_absolute());
            let many = words.len() > MOST || words.iter().any(|word| word.chars().any(char::is_control));
            match words.first() {
                Some(program) if plain(program) && !many => Ok(SecretSource::Command(words)),
                _ => Err("`command:` is followed by an absolute program and its words; no shell reads them".to_owned()),
            }
        }
        // It may be the secret itself: it is not repeated.
        _ => Err(format!(
            "what stands there is no source: \"file:PATH\", \"env:NAME\" or \"command:/PROGRAM WORDS\"{}",
            did_you_mean(written.split(':').next().unwrap_or_default(), &["file", "env", "command"])
        )),
    }
}

/// One file for each caller, all in one folder.
fn caller_file(written: &str, folder: &Path) -> Result<SecretSource, String> {
    // Judged as a path in which the name of a caller stands.
    plain_path(&written.replace(CALLER, "caller"))?;
    let path = folder.join(written.strip_prefix("./").unwrap_or(written));
    let named = path.file_name().and_then(|name| name.to_str()).filter(|name| name.contains(CALLER));
    match named.is_some() && written.matches(CALLER).count() == 1 && path.parent().is_some_and(|p| p.parent().is_some())
    {
        true => Ok(SecretSource::CallerFile(path)),
        false => Err(format!("`{CALLER}` stands once, and in the last part of the path: `file:secrets/{CALLER}.key`")),
    }
}

fn header(document: &mut Document<'_>, pointer: &str, written: HeaderEntry) -> Option<HeaderRule> {
    let HeaderEntry { host, name, value, methods, paths, query, request_headers } = written;
    let at = |key: &str| format!("{pointer}/{key}");
    let limited = !methods.is_empty() || !paths.is_empty();
    for (key, list) in [("query", &query), ("request_headers", &request_headers)] {
        if list.is_some() && !limited {
            let message =
                format!("`{key}` is for a header with `methods` or `paths`; without them every request gets it");
            document.fault(&at(key), message);
        }
    }
    let names = request_headers.unwrap_or_default().into_iter().take(MOST).enumerate();
    let names = names
        .map(|(at_name, name)| document.parsed(&format!("{pointer}/request_headers/{at_name}"), header_name(&name)));
    let (request_headers, query) = (names.collect::<Option<_>>(), query.unwrap_or_default());
    let value = document.parsed(&at("value"), header_value(value.unwrap_or_else(|| "{}".to_owned())));
    let name = document.parsed(&at("name"), header_name(&name));
    let (host, port) = document.parsed(&at("host"), exact(&host))?;
    let (name, value, request_headers) = (name?, value?, request_headers?);
    Some(HeaderRule { host, port, name, value, methods, paths, query, request_headers, ca: None })
}

/// The text of a header with `{}` where the secret stands.
pub fn header_value(written: String) -> Result<String, String> {
    let printable = written.bytes().all(|b| (b' '..=b'~').contains(&b)) && written.len() <= LONGEST;
    match written.matches("{}").count() == 1 && printable && written.trim() == written {
        true => Ok(written),
        false => Err("`value` is ASCII with one `{}`, where the secret stands, and no space at its ends".to_owned()),
    }
}

/// One name, and the port of TLS there.
fn exact(written: &str) -> Result<(String, u16), String> {
    let pattern = host::pattern(written)?;
    match pattern.host {
        Host::Name(_) if pattern.port == Some(80) => {
            Err("the port is where the host speaks TLS (443), not where the tool asks: leave `:80` out".to_owned())
        }
        Host::Name(name) => Ok((name, pattern.port.unwrap_or(HTTPS))),
        _ => Err("a secret goes to one exact name: no wildcard, no address".to_owned()),
    }
}

/// A token (RFC 9110, section 5.6.2) that is none of `FRAMING`, in lower case.
pub fn header_name(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > LONGEST || !name.bytes().all(token) {
        return Err(format!("`{}` is not the name of a header", text::printable(&text::head(written, 60))));
    }
    if FRAMING.contains(&name.as_str()) {
        return Err(format!("`{name}` says how a message is read or where it goes: leave it out"));
    }
    Ok(name)
}

impl fmt::Display for SecretSource {
    /// As a policy says it; a file with its whole path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "env:{name}"),
            SecretSource::File(path) | SecretSource::CallerFile(path) => write!(f, "file:{}", path.display()),
            SecretSource::Command(words) => write!(f, "command:{}", words.join(" ")),
        }
    }
}

impl SecretSource {
    /// The folder of a secret of each caller, and the name of this one's file in it; or why nobody has that name.
    pub fn own_file(&self, caller: &str) -> Option<(&Path, Result<String, String>)> {
        let SecretSource::CallerFile(path) = self else { return None };
        let plain = !caller.is_empty() && !caller.starts_with('.') && !caller.contains(['/', '\0']);
        let name = path.file_name()?.to_string_lossy().replacen(CALLER, caller, 1);
        let name = match plain && name.len() <= LONGEST_FILE && !name.chars().any(char::is_control) {
            true => Ok(name),
            false => Err(format!("`{}` is no name of a file", text::printable(&text::head(caller, 60)))),
        };
        Some((path.parent()?, name))
    }

    /// All files of that folder which could be some caller's.
    pub(super) fn all_files(&self) -> Option<Area> {
        let SecretSource::CallerFile(path) = self else { return None };
        let names = path.file_name()?.to_str()?.split(CALLER).map(area::escape).collect::<Vec<_>>().join("*");
        Some(Area::Names { folder: path.parent()?.to_owned(), names })
    }

    /// The file that it is read from, or the program that tells it.
    pub fn file(&self) -> Option<&Path> {
        match self {
            SecretSource::Env(_) | SecretSource::CallerFile(_) => None,
            SecretSource::File(path) => Some(path),
            SecretSource::Command(words) => words.first().map(Path::new),
        }
    }

    /// All files that its text names: who may change one of them says what the secret is.
    pub fn named_files(&self) -> Vec<&Path> {
        match self {
            SecretSource::Command(words) => words.iter().map(Path::new).filter(|word| word.is_absolute()).collect(),
            // Whoever makes a file in that folder says what somebody's secret is.
            SecretSource::CallerFile(path) => path.parent().into_iter().collect(),
            other => other.file().into_iter().collect(),
        }
    }
}

/// How a secret is used, for people.
pub(super) fn used(name: &str, header: Option<&HeaderRule>) -> String {
    let Some(HeaderRule { host, port, name, value, methods, paths, query, request_headers, ca }) = header else {
        return format!("the variable {name} (never shown)");
    };
    let port = if *port == HTTPS { String::new() } else { format!(":{port}") };
    let what = if value == "{}" { String::new() } else { format!(" (`{value}`)") };
    let list = |words: &str, list: &[String]| match list.is_empty() {
        true => String::new(),
        false => format!(", {words} {}", list.join(" ")),
    };
    let only = list("only", methods) + &list("at", paths) + &list("with query", query);
    let only = only + &list("with request headers", request_headers);
    let only = only + &ca.as_ref().map_or_else(String::new, |ca| format!(", trusting {} alone", ca.display()));
    format!("header {name}{what} of {host}{port}{only}, added by toolhost (never shown)")
}

/// What a tool can do with a secret, and where that comes from, as reports say it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Secret {
    pub name: String,
    /// As a policy says it.
    pub from: String,
    pub header: Option<HeaderRule>,
}

impl Secret {
    pub fn of(grant: &SecretGrant) -> Secret {
        Secret { name: grant.name.clone(), from: grant.from.to_string(), header: grant.header.clone() }
    }
}

impl Grantable for Secret {
    fn kind(&self) -> &'static str {
        "secret"
    }
    fn text(&self) -> String {
        format!("{}: {}, from {}", self.name, used(&self.name, self.header.as_ref()), self.from)
    }
    fn covers(&self, other: &Secret) -> bool {
        let used = match (&self.header, &other.header) {
            (Some(ours), Some(theirs)) => ours.covers(theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        used && (&self.name, &self.from) == (&other.name, &other.from)
    }
    fn is_near(&self, other: &Secret) -> bool {
        self.name == other.name
    }
}

impl HeaderRule {
    /// True if it is added to all the requests that `other` is added to, in the same way.
    pub(super) fn covers(&self, other: &HeaderRule) -> bool {
        let same =
            (&self.host, self.port, &self.name, &self.value) == (&other.host, other.port, &other.name, &other.value);
        let same = same && self.ca == other.ca;
        let below = |wide: &String, path: &String| {
            wide == path || wide.strip_suffix("**").is_some_and(|folder| path.starts_with(folder))
        };
        let all = |ours: &[String], theirs: &[String], holds: &dyn Fn(&String, &String) -> bool| {
            ours.is_empty() || !theirs.is_empty() && theirs.iter().all(|their| ours.iter().any(|our| holds(our, their)))
        };
        let all_of = |ours: &[String], theirs: &[String]| theirs.iter().all(|their| ours.contains(their));
        let extras = all_of(&self.query, &other.query) && all_of(&self.request_headers, &other.request_headers);
        let requests = all(&self.methods, &other.methods, &|a, b| a == b) && all(&self.paths, &other.paths, &below);
        same && requests && (extras || !self.is_limited())
    }
}

/// The port at which the relay adds headers.
const HTTP: u16 = 80;

/// The grants, in order of name; `hosts` and `files`: what the tool reaches and opens.
pub(super) fn judge(
    manifest: &Manifest,
    policy: &Policy,
    cap: Option<&Policy>,
    hosts: &[HostGrant],
    files: &[Grant],
    verdicts: &mut Vec<Verdict>,
) -> Vec<SecretGrant> {
    let (mut grants, mut seen): (Vec<SecretGrant>, BTreeSet<&str>) = Default::default();
    for word in &manifest.asks.capabilities {
        let Kind::Secret(name) = capability::kind(word) else { continue };
        if !seen.insert(name) {
            continue;
        }
        let listed = policy.secrets.iter().find(|entry| entry.grant.name == name);
        let added = listed.is_some_and(|entry| entry.grant.header.is_some());
        let wall = if added { wall::NETWORK } else { wall::ENVIRONMENT };
        let nowhere = || format!("no entry of [secrets] grant in policy {} names it", policy.called());
        let judged = listed.ok_or_else(|| (Narrower::Policy, nowhere())).and_then(|entry| {
            capped(word, cap).or_else(|| conflict(manifest, &entry.grant, hosts, files)).map_or(Ok(entry), Err)
        });
        verdicts.push(match judged {
            Ok(Entry { grant, at }) => {
                grants.push(grant.clone());
                let verdict = Verdict::met(RequestKind::Capability, word, used(name, grant.header.as_ref()), &[wall]);
                verdict.because(&grant.rule, &grant.why, policy.place(*at))
            }
            Err((narrower, reason)) => Verdict::denied(RequestKind::Capability, word, narrower, reason, &[wall]),
        });
    }
    grants.sort_by(|a, b| a.name.cmp(&b.name));
    grants
}

impl Narrowing for SecretGrant {
    /// A secret is used in the same way, or not at all.
    fn intersection(&self, other: &SecretGrant) -> Option<SecretGrant> {
        let same = (&self.name, &self.from, &self.header) == (&other.name, &other.from, &other.header);
        same.then(|| self.clone())
    }
}

fn capped(word: &str, cap: Option<&Policy>) -> Option<(Narrower, String)> {
    let cap = cap.filter(|cap| !cap.capabilities.iter().any(|capability| capability.name == word))?;
    let reason = format!("no entry of [capabilities] grant in policy {} names {word}", cap.called());
    Some((Narrower::Host, reason))
}

/// Why a secret that both allow cannot be used by this tool, with the mend.
fn conflict(
    manifest: &Manifest,
    rule: &SecretGrant,
    hosts: &[HostGrant],
    files: &[Grant],
) -> Option<(Narrower, String)> {
    let name = &rule.name;
    if let Some(all) = rule.from.all_files()
        && let Some(open) = files.iter().find(|grant| Area::of(&grant.opening).overlap(&all).is_some())
    {
        let reason = format!(
            "the secrets of all callers lie in {}, and the tool could read them there ({}): put them elsewhere",
            text::path(all.folder()),
            open.rule
        );
        return Some((Narrower::Policy, reason));
    }
    let Some(header) = &rule.header else {
        let other = match manifest.execution.env.contains_key(name) {
            true => "sets a variable of that name itself (execution.env)".to_owned(),
            false => {
                let asked = manifest.asks.capabilities.iter().find(|word| **word == format!("env:{name}"))?;
                format!("asks for `{asked}`, too")
            }
        };
        let reason =
            format!("the secret is the variable {name}, and the manifest {other}: take that out of the manifest");
        return Some((Narrower::House, reason));
    };
    if let SecretSource::File(file) = &rule.from
        && let spellings = [Some(file.clone()), file.canonicalize().ok()]
        && let Some(open) =
            files.iter().find(|grant| spellings.iter().flatten().any(|file| Area::of(&grant.opening).holds(file)))
    {
        let reason = format!(
            "toolhost adds it so that the tool never has it, and the tool could read the file where it lies ({}): put that file elsewhere",
            open.rule
        );
        return Some((Narrower::Policy, reason));
    }
    if let SecretSource::Env(variable) = &rule.from
        && manifest.asks.capabilities.contains(&format!("env:{variable}"))
    {
        let reason = format!(
            "toolhost adds it so that the tool never has it, and the manifest asks for the same text as `env:{variable}`: take that out"
        );
        return Some((Narrower::House, reason));
    }
    let host = Host::Name(header.host.clone());
    if hosts.iter().any(|grant| grant.reaches(&host, HTTP)) {
        return None;
    }
    let asks = manifest.asks.hosts.iter().any(|ask| ask.host.covers(&host) && ask.ports().contains(&HTTP));
    let narrower = if asks { Narrower::Policy } else { Narrower::Manifest };
    let at = format!("{}:{HTTP}", header.host);
    let reason = format!(
        "its header goes to http://{0}, which this tool does not reach: the manifest must ask for `{at}` (allowHosts) and the policy grant it ([network] hosts); the tool speaks http://{0}, and toolhost speaks TLS to the host",
        header.host
    );
    Some((narrower, reason))
}
