//! The entries of `[secrets]`: where a secret lies, and how it is used: as a variable of the tool, or
//! in a header that the relay adds for one exact host name. The tool never has a secret that the
//! relay adds.

use super::area::{self, Area};
use super::document::PolicyEntry;
use super::files::plain_path;
use super::grantable::Grantable;
use crate::base::{files, text};
use crate::manifest::environment;
use crate::manifest::host::{self, Host, HostPattern};
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};

/// The port at which a host is reached by TLS where a policy names none.
const HTTPS: u16 = 443;
/// The port at which the relay adds headers.
pub const HTTP: u16 = 80;
const MAX_WORDS: usize = 64;
const MAX_FILE_NAME_BYTES: usize = 255;
const MAX_HEADER_BYTES: usize = 1000;
/// Stands for the name of the caller.
pub const CALLER: &str = "{caller}";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretGrant {
    pub name: String,
    pub from: SecretSource,
    /// The header in which the relay adds the secret. `None`: the tool gets a variable of the
    /// secret's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderRule>,
    pub rule: String,
    pub why: String,
}

impl SecretGrant {
    pub fn is_same_use(&self, other: &SecretGrant) -> bool {
        (&self.name, &self.from, &self.header) == (&other.name, &other.from, &other.header)
    }
}

/// Where the value of a secret lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretSource {
    Env(String),
    File(PathBuf),
    /// A file for each caller, absolute; `{caller}` occurs once, in its name.
    #[serde(rename = "callerFile")]
    CallerFile(PathBuf),
    /// The output of a program. The words are its path and arguments; no shell is involved.
    Command(Vec<String>),
}

impl fmt::Display for SecretSource {
    /// As a policy writes it; a file with its whole path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "env:{name}"),
            SecretSource::File(path) | SecretSource::CallerFile(path) => {
                write!(f, "file:{}", path.display())
            }
            SecretSource::Command(words) => write!(f, "command:{}", words.join(" ")),
        }
    }
}

impl SecretSource {
    /// If each caller has a file: its folder, and the name of this caller's file in it, or why it
    /// cannot have one.
    pub fn own_file(&self, caller: &str) -> Option<(&Path, Result<String, String>)> {
        let SecretSource::CallerFile(path) = self else {
            return None;
        };
        let plain = !caller.is_empty() && !caller.starts_with('.') && !caller.contains(['/', '\0']);
        let name = path
            .file_name()?
            .to_string_lossy()
            .replacen(CALLER, caller, 1);
        let name =
            if plain && name.len() <= MAX_FILE_NAME_BYTES && !name.chars().any(char::is_control) {
                Ok(name)
            } else {
                Err(format!(
                    "`{}` cannot be the name of a file",
                    text::printable(&text::head(caller, 60))
                ))
            };
        Some((path.parent()?, name))
    }

    /// The files that could be some caller's, in the folder and in its real path.
    pub fn all_files(&self) -> Vec<Area> {
        let SecretSource::CallerFile(path) = self else {
            return Vec::new();
        };
        let (Some(folder), Some(name)) = (
            path.parent(),
            path.file_name().and_then(|name| name.to_str()),
        ) else {
            return Vec::new();
        };
        let names = name
            .split(CALLER)
            .map(area::escape)
            .collect::<Vec<_>>()
            .join("*");
        let folders = [folder.to_owned(), files::resolved(folder)];
        folders
            .into_iter()
            .map(|folder| Area::Names {
                folder,
                names: names.clone(),
            })
            .collect()
    }

    /// The file that the secret is read from, or the program that prints it.
    pub fn file(&self) -> Option<&Path> {
        match self {
            SecretSource::Env(_) | SecretSource::CallerFile(_) => None,
            SecretSource::File(path) => Some(path),
            SecretSource::Command(words) => words.first().map(Path::new),
        }
    }

    pub fn is_program(&self, file: &Path) -> bool {
        matches!(self, SecretSource::Command(words) if words.first().is_some_and(|word| Path::new(word) == file))
    }

    /// All files that the source names. Whoever can change one of them decides what the secret is.
    pub fn named_files(&self) -> Vec<&Path> {
        match self {
            SecretSource::Command(words) => words
                .iter()
                .map(Path::new)
                .filter(|word| word.is_absolute())
                .collect(),
            // Whoever can make a file in that folder decides what some caller's secret is.
            SecretSource::CallerFile(path) => path.parent().into_iter().collect(),
            other => other.file().into_iter().collect(),
        }
    }
}

/// A header that the relay adds to the requests for one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderRule {
    pub host: String,
    /// The port at which the host speaks TLS.
    pub port: u16,
    pub name: String,
    /// The header's value, with `{}` in place of the secret.
    pub value: String,
    /// Empty: all.
    pub methods: Vec<String>,
    /// `/exact` or `/below/**`. Empty: all.
    pub paths: Vec<String>,
    /// With methods or paths: the names that a query may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<String>,
    /// With methods or paths: the headers that a request may have beside the standard ones, in
    /// lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<String>,
    /// A file of CA certificates by which the host is verified, instead of the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl HeaderRule {
    /// Whether the header is added to only some of the requests for its host.
    pub fn is_limited(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }
}

impl HeaderRule {
    /// True if it is added to all the requests that `other` is added to, in the same way.
    pub fn covers(&self, other: &HeaderRule) -> bool {
        let same = (&self.host, self.port, &self.name, &self.value)
            == (&other.host, other.port, &other.name, &other.value);
        let same = same && self.ca == other.ca;
        fn all(ours: &[String], theirs: &[String], holds: &dyn Fn(&str, &str) -> bool) -> bool {
            ours.is_empty()
                || !theirs.is_empty()
                    && theirs
                        .iter()
                        .all(|their| ours.iter().any(|our| holds(our, their)))
        }
        fn all_of(ours: &[String], theirs: &[String]) -> bool {
            theirs.iter().all(|their| ours.contains(their))
        }
        let extras = all_of(&self.query, &other.query)
            && all_of(&self.request_headers, &other.request_headers);
        let requests = all(&self.methods, &other.methods, &|a, b| a == b)
            && all(&self.paths, &other.paths, &|wide: &str, path: &str| {
                wide == path
                    || wide
                        .strip_suffix("**")
                        .is_some_and(|folder| path.starts_with(folder))
            });
        same && requests && (extras || !self.is_limited())
    }
}

#[derive(Deserialize)]
struct HeaderLine {
    host: String,
    name: String,
    value: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    query: Vec<String>,
    #[serde(default)]
    request_headers: Vec<String>,
}

/// The entries of `[secrets] grant`; `policy`: the policy's name, `folder`: of its file, where
/// relative paths start.
pub fn read(
    document: &mut Reader<'_>,
    policy: &str,
    folder: &Path,
) -> Vec<PolicyEntry<SecretGrant>> {
    let mut found: Vec<PolicyEntry<SecretGrant>> = Vec::new();
    for (pointer, entry) in document.list::<Value>("/secrets/grant") {
        fn written(key: &str, entry: &Value) -> String {
            entry[key].as_str().unwrap_or_default().to_owned()
        }
        fn at(key: &str, pointer: &str) -> String {
            format!("{pointer}/{key}")
        }
        // The file of a secret is protected from tools also where its entry has another fault.
        let from = entry["from"]
            .as_str()
            .and_then(|from| document.parsed(&at("from", &pointer), source(from, folder)));
        let Some(from) = from else { continue };
        let name = written("name", &entry);
        let why = written("why", &entry);
        if !name.is_empty() && environment::refusal_reason(&name, "").is_some() {
            document.fault(
                &at("name", &pointer),
                "name the secret as a variable that a tool may have",
            );
        } else if found.iter().any(|entry| entry.grant.name == name) {
            document.conflict(&at("name", &pointer), format!("`{name}` is named twice"));
        }
        let header = document
            .get(&at("header", &pointer))
            .and_then(|line| header(document, &at("header", &pointer), line));
        if header.as_ref().is_some_and(|header: &HeaderRule| {
            let others = found.iter().filter_map(|entry| entry.grant.header.as_ref());
            others
                .filter(|other| other.host == header.host)
                .any(|o| o.name == header.name || o.port != header.port)
        }) {
            let message = "another entry adds this header for this host, or has another port for \
                           the host: keep one header of each name, and one port";
            document.conflict(&at("header", &pointer), message);
        }
        let rule = format!("{policy}: {name}");
        found.push(PolicyEntry {
            grant: SecretGrant {
                name,
                from,
                header,
                rule,
                why,
            },
            at: document.at(&at("name", &pointer)),
        });
    }
    found
}

/// Where a secret lies. `folder`: where relative paths start. What is written may be the secret: it
/// is not repeated.
pub fn source(written: &str, folder: &Path) -> Result<SecretSource, String> {
    parse_source(written, folder).ok_or_else(|| {
        format!(
            "a secret lies in \"file:PATH\" (`{CALLER}` once, in its name: a file for each \
             caller), \"env:NAME\" or \"command:/PROGRAM WORDS\""
        )
    })
}

fn parse_source(written: &str, folder: &Path) -> Option<SecretSource> {
    let (kind, text) = written.split_once(':')?;
    match (kind, text.matches(CALLER).count()) {
        ("file", 0) => Some(SecretSource::File(folder.join(plain_path(text).ok()?))),
        ("file", 1) => {
            // Checked with a caller's name in place of `{caller}`.
            plain_path(&text.replace(CALLER, "caller")).ok()?;
            let path = folder.join(text.strip_prefix("./").unwrap_or(text));
            let is_in_name =
                path.file_name()?.to_str()?.contains(CALLER) && path.parent()?.parent().is_some();
            is_in_name.then_some(SecretSource::CallerFile(path))
        }
        ("env", 0) => {
            let is_name =
                !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'=');
            is_name.then(|| SecretSource::Env(text.to_owned()))
        }
        ("command", 0) => {
            let words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
            let is_absolute = plain_path(words.first()?).is_ok_and(|path| path.is_absolute());
            let is_plain = !words.iter().any(|word| word.chars().any(char::is_control));
            (is_absolute && is_plain && words.len() <= MAX_WORDS)
                .then_some(SecretSource::Command(words))
        }
        _ => None,
    }
}

fn header(document: &mut Reader<'_>, pointer: &str, line: HeaderLine) -> Option<HeaderRule> {
    fn at(key: &str, pointer: &str) -> String {
        format!("{pointer}/{key}")
    }
    let names = line.request_headers.iter().enumerate();
    let names = names.map(|(index, name)| {
        document.parsed(
            &format!("{pointer}/request_headers/{index}"),
            header_name(name),
        )
    });
    let request_headers = names.collect::<Option<_>>();
    let value = document.parsed(
        &at("value", pointer),
        header_value(line.value.unwrap_or_else(|| "{}".to_owned())),
    );
    let name = document.parsed(&at("name", pointer), header_name(&line.name));
    let (host, port) = document.parsed(&at("host", pointer), exact(&line.host))?;
    let name = name?;
    let value = value?;
    let request_headers = request_headers?;
    let HeaderLine {
        methods,
        paths,
        query,
        ..
    } = line;
    Some(HeaderRule {
        host,
        port,
        name,
        value,
        methods,
        paths,
        query,
        request_headers,
        ca: None,
    })
}

/// The text of a header with `{}` where the secret stands.
pub fn header_value(written: String) -> Result<String, String> {
    let printable =
        written.bytes().all(|b| (b' '..=b'~').contains(&b)) && written.len() <= MAX_HEADER_BYTES;
    if written.matches("{}").count() == 1 && printable && written.trim() == written {
        Ok(written)
    } else {
        Err(
            "`value` is ASCII with one `{}`, where the secret stands, and no space at its ends"
                .to_owned(),
        )
    }
}

fn exact(written: &str) -> Result<(String, u16), String> {
    let HostPattern { host, port } = host::parse_pattern(written)?;
    match host {
        Host::Name(name) if port != Some(HTTP) => Ok((name, port.unwrap_or(HTTPS))),
        _ => Err(
            "a secret goes to one exact name, with the port at which that speaks TLS (443, not 80)"
                .to_owned(),
        ),
    }
}

/// A token (RFC 9110, section 5.6.2) that does not frame a message, in lower case.
pub fn header_name(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    let is_token = !name.is_empty()
        && name.len() <= MAX_HEADER_BYTES
        && name
            .bytes()
            .all(|b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    if is_token && !super::headers::is_framing(&name) {
        Ok(name)
    } else {
        Err(
            "not the name of a header that may be set (those that frame a message may not)"
                .to_owned(),
        )
    }
}

/// How a secret is used, for people.
pub fn used(name: &str, header: Option<&HeaderRule>) -> String {
    let Some(HeaderRule {
        host,
        port,
        name,
        value,
        methods,
        paths,
        query,
        request_headers,
        ca,
    }) = header
    else {
        return format!("the variable {name} (never shown)");
    };
    let port = if *port == HTTPS {
        String::new()
    } else {
        format!(":{port}")
    };
    let what = if value == "{}" {
        String::new()
    } else {
        format!(" (`{value}`)")
    };
    fn list(words: &str, list: &[String]) -> String {
        if list.is_empty() {
            String::new()
        } else {
            format!(", {words} {}", list.join(" "))
        }
    }
    let only = list("only", methods) + &list("at", paths) + &list("with query", query);
    let only = only + &list("with request headers", request_headers);
    let only = only
        + &ca.as_ref().map_or_else(String::new, |ca| {
            format!(", trusting {} alone", ca.display())
        });
    format!("header {name}{what} of {host}{port}{only}, added by toolhost (never shown)")
}

/// How a tool uses a secret, and where the secret comes from, as reports show it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Secret {
    pub name: String,
    pub from: String,
    pub header: Option<HeaderRule>,
}

impl Secret {
    pub fn new(grant: &SecretGrant) -> Secret {
        Secret {
            name: grant.name.clone(),
            from: grant.from.to_string(),
            header: grant.header.clone(),
        }
    }
}

impl Grantable for Secret {
    fn kind(&self) -> &'static str {
        "secret"
    }
    fn text(&self) -> String {
        format!(
            "{}: {}, from {}",
            self.name,
            used(&self.name, self.header.as_ref()),
            self.from
        )
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
