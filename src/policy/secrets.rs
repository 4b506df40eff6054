//! Secrets: `[secrets]` of a policy: where each comes from, and how a tool may use it.
//!
//! For: `policy/file.rs`, which reads policies. In: a TOML table. Out: `SecretRule`s. Never: reads a secret; lets a header
//! go to more than one exact name.

use super::area::{self, Area};
use super::rules::plain_path;
use super::source::{At, Placed, Reader, Table, did_you_mean};
use super::{HeaderRule, SecretGrant, SecretSource};
use crate::base::text;
use crate::manifest::host::{self, Host};
use crate::manifest::{Code, environment};
use serde::Deserialize;
use std::fmt;
use std::path::Path;

/// The port at which a host is reached by TLS where a policy names none.
const HTTPS: u16 = 443;
/// Most secrets, words of a command, and methods and paths of a header.
pub(super) const MOST: usize = 64;
/// Longest name of a file, bytes.
const LONGEST_FILE: usize = 255;
/// Longest name or text of a header, and longest path, bytes.
pub(super) const LONGEST: usize = 1000;
/// Stands for the name of the caller.
pub const CALLER: &str = "{caller}";
/// Headers that say how a message is read or where it goes: no secret is one of them.
#[rustfmt::skip]
pub(super) const FRAMING: [&str; 14] = [
    "host", "connection", "content-length", "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive",
    "proxy-connection", "proxy-authorization", "accept-encoding", "expect", "http2-settings",
];

/// One entry of `[secrets] grant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRule {
    pub name: String,
    pub from: SecretSource,
    /// Added by the relay; `None`: a variable of the tool.
    pub header: Option<HeaderRule>,
    pub why: String,
    pub at: At,
}

/// `folder`: of the policy file, where relative paths start.
pub(super) fn read(reader: &mut Reader<'_>, top: &Table<'_, '_>, folder: &Path) -> Vec<SecretRule> {
    let mut found: Vec<SecretRule> = Vec::new();
    let Some(table) = reader.table(top, "secrets") else { return found };
    reader.only(&table, &["grant"]);
    let entries = reader.tables(&table, "grant", "{ name = \"API_KEY\", from = \"file:api.key\", why = \"…\" }");
    few(reader, table.pointer_to("grant"), table.at, entries.len());
    for entry in entries.into_iter().take(MOST) {
        let mends = ["name the secret, as the tool asks for it (`secret:NAME`)", "say why the tool may use it"];
        let named = reader.reasoned_with(&entry, "name", &["from", "header"], mends);
        let from =
            reader.said(&entry, "from", "say where it lies: \"file:PATH\", \"env:NAME\" or \"command:/PROGRAM WORDS\"");
        let from = from.and_then(|from| placed(reader, &entry, "from", &from, |text| source(text, folder)));
        let header = entry.get("header").map(|_| header(reader, &entry));
        let (Some((name, why)), Some(from)) = (named, from) else { continue };
        let pointer = entry.pointer_to("name");
        if let Some(complaint) = environment::refused(&name.value, "") {
            let shown = text::printable(&text::head(&name.value, 60));
            reader.schema(pointer, name.at, format!("`{shown}` is no name of a secret: it {complaint}"));
        } else if found.iter().any(|rule| rule.name == name.value) {
            reader.complain(Code::Conflict, pointer, name.at, format!("`{}` is named twice", name.value));
        } else if let Some(other) = header.iter().flatten().find_map(|header| clash(header, &found)) {
            reader.complain(Code::Conflict, entry.pointer_to("header"), name.at, other);
        } else if header != Some(None) {
            found.push(SecretRule { name: name.value, from, header: header.flatten(), why, at: name.at });
        }
    }
    found
}

/// Why no second header can go there: one request has one header of a name, and one host that it goes to.
fn clash(header: &HeaderRule, found: &[SecretRule]) -> Option<String> {
    let of_host = |rule: &&SecretRule| rule.header.as_ref().is_some_and(|other| other.host == header.host);
    found.iter().filter(of_host).find_map(|rule| {
        let (HeaderRule { host, port, name, .. }, other) = (header, rule.header.as_ref()?);
        if other.name == *name {
            return Some(format!("`{}` is already the header `{name}` of {host}: keep one", rule.name));
        }
        let message = format!(
            "{host} gets it at port {port}, and `{}` at port {}: write one port, since requests for one name go to one place",
            rule.name, other.port
        );
        (other.port != *port).then_some(message)
    })
}

fn few(reader: &mut Reader<'_>, pointer: String, at: At, count: usize) {
    if count > MOST {
        reader.schema(pointer, at, format!("more than {MOST} entries"));
    }
}

/// The text as `read` understands it; what it says is wrong stands at the text's own place.
fn placed<T>(
    reader: &mut Reader<'_>,
    of: &Table<'_, '_>,
    key: &str,
    text: &Placed<String>,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    read(&text.value).map_err(|why| reader.schema(of.pointer_to(key), text.at, why)).ok()
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

fn header(reader: &mut Reader<'_>, entry: &Table<'_, '_>) -> Option<HeaderRule> {
    let table = reader.table(entry, "header")?;
    reader.only(&table, &["host", "name", "value", "methods", "paths"]);
    let host = reader.said(&table, "host", "name the one host that gets it");
    let name = reader.said(&table, "name", "name the header, such as \"Authorization\"");
    let value = reader.text(&table, "value").unwrap_or_else(|| Placed { value: "{}".to_owned(), at: table.at });
    let (methods, paths) = (reader.texts(&table, "methods"), reader.texts(&table, "paths"));
    let host = host.and_then(|host| placed(reader, &table, "host", &host, exact));
    let name = name.and_then(|name| placed(reader, &table, "name", &name, header_name));
    let at = value.at;
    let value = header_value(value.value).map_err(|why| reader.schema(table.pointer_to("value"), at, why)).ok()?;
    few(reader, table.pointer_to("methods"), table.at, methods.len());
    few(reader, table.pointer_to("paths"), table.at, paths.len());
    for key in ["methods", "paths"] {
        if table.get(key).and_then(|value| value.get_ref().as_array()).is_some_and(|list| list.is_empty()) {
            reader.schema(
                table.pointer_to(key),
                table.at,
                format!("`{key}` is empty: leave it out where all are meant"),
            );
            return None;
        }
    }
    for (pointer, method) in &methods {
        let refused = ["TRACE", "CONNECT"].contains(&method.value.as_str());
        if refused || !method.value.bytes().all(|b| b.is_ascii_uppercase()) || method.value.is_empty() {
            reader.schema(pointer, method.at, "a method is written in capitals, and is neither TRACE nor CONNECT");
            return None;
        }
    }
    for (pointer, path) in &paths {
        if let Err(why) = path_pattern(&path.value) {
            reader.schema(pointer, path.at, why);
            return None;
        }
    }
    let texts = |list: Vec<(String, Placed<String>)>| list.into_iter().map(|(_, text)| text.value).collect();
    let (host, port) = host?;
    Some(HeaderRule { host, port, name: name?, value, methods: texts(methods), paths: texts(paths) })
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
        return Err(format!("`{name}` says how a message is read or where it goes: no secret stands there"));
    }
    Ok(name)
}

/// `/exact` or `/below/**`.
fn path_pattern(written: &str) -> Result<(), String> {
    let stem = written.strip_suffix("/**").unwrap_or(written);
    let plain = written.starts_with('/')
        && stem.bytes().all(|b| (0x21..0x7F).contains(&b) && !b"*?#%\\".contains(&b))
        && !written.contains("//")
        && written.len() <= LONGEST
        && !stem.split('/').any(|part| part == "." || part == "..");
    if plain {
        Ok(())
    } else {
        Err("a path is \"/exact\" or \"/below/**\", without `//`, `.` and `..` as parts, `%`, `?`, `#`, `\\`"
            .to_owned())
    }
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
    pub(super) fn named_files(&self) -> Vec<&Path> {
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
    let Some(HeaderRule { host, port, name, value, methods, paths }) = header else {
        return format!("the variable {name} (never shown)");
    };
    let port = if *port == HTTPS { String::new() } else { format!(":{port}") };
    let what = if value == "{}" { String::new() } else { format!(" (`{value}`)") };
    let list = |words: &str, list: &[String]| match list.is_empty() {
        true => String::new(),
        false => format!(", {words} {}", list.join(" ")),
    };
    let only = list("only", methods) + &list("at", paths);
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

    pub fn covers(&self, other: &Secret) -> bool {
        let used = match (&self.header, &other.header) {
            (Some(ours), Some(theirs)) => ours.covers(theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        used && (&self.name, &self.from) == (&other.name, &other.from)
    }

    pub fn text(&self) -> String {
        format!("{}: {}, from {}", self.name, used(&self.name, self.header.as_ref()), self.from)
    }
}

impl HeaderRule {
    /// True if it is added to all the requests that `other` is added to, in the same way.
    pub(super) fn covers(&self, other: &HeaderRule) -> bool {
        let same =
            (&self.host, self.port, &self.name, &self.value) == (&other.host, other.port, &other.name, &other.value);
        let below = |wide: &String, path: &String| {
            wide == path || wide.strip_suffix("**").is_some_and(|folder| path.starts_with(folder))
        };
        let all = |ours: &[String], theirs: &[String], holds: &dyn Fn(&String, &String) -> bool| {
            ours.is_empty() || !theirs.is_empty() && theirs.iter().all(|their| ours.iter().any(|our| holds(our, their)))
        };
        same && all(&self.methods, &other.methods, &|a, b| a == b) && all(&self.paths, &other.paths, &below)
    }
}
