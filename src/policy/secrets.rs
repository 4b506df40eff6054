//! Secrets: `[secrets]` of a policy: where each comes from, and how a tool may use it.
//!
//! For: `policy/file.rs`, which reads policies. In: a TOML table. Out: `SecretRule`s. Never: reads a secret; lets a header
//! go to more than one exact name.

use super::source::{At, Placed, Reader, Table, did_you_mean};
use super::{HeaderRule, SecretSource};
use crate::base::text;
use crate::manifest::host::{self, Host};
use crate::manifest::{Code, environment};
use std::path::Path;

/// The port at which a host is reached by TLS where a policy names none.
const HTTPS: u16 = 443;
/// Most words of a command, and most methods and paths of a header.
const MOST: usize = 64;
/// Headers that say how a message is read or where it goes: no secret is one of them.
const FRAMING: [&str; 10] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
    "accept-encoding",
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
    for entry in reader.tables(&table, "grant", "{ name = \"API_KEY\", from = \"file:api.key\", why = \"…\" }") {
        let mends = ["name the secret, as the tool asks for it (`secret:NAME`)", "say why the tool may use it"];
        let named = reader.reasoned_with(&entry, "name", &["from", "header"], mends);
        let from =
            reader.said(&entry, "from", "say where it lies: \"file:PATH\", \"env:NAME\" or \"command:PROGRAM WORDS\"");
        let from = from.and_then(|from| placed(reader, &entry, "from", &from, |text| source(text, folder)));
        let header = entry.get("header").map(|_| header(reader, &entry));
        let (Some((name, why)), Some(from)) = (named, from) else { continue };
        let pointer = entry.pointer_to("name");
        if let Some(complaint) = environment::refused(&name.value, "") {
            reader.schema(pointer, name.at, format!("`{}` {complaint}", text::printable(&name.value)));
        } else if found.iter().any(|rule| rule.name == name.value) {
            reader.complain(Code::Conflict, pointer, name.at, format!("`{}` is named twice", name.value));
        } else if header != Some(None) {
            found.push(SecretRule { name: name.value, from, header: header.flatten(), why, at: name.at });
        }
    }
    found
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

fn source(written: &str, folder: &Path) -> Result<SecretSource, String> {
    match written.split_once(':') {
        Some(("env", name)) => match name.is_empty() || name.contains(['=', '\0']) {
            true => Err("`env:` is followed by the name of a variable of the host".to_owned()),
            false => Ok(SecretSource::Env(name.to_owned())),
        },
        Some(("file", path)) if !path.is_empty() => Ok(SecretSource::File(folder.join(path))),
        Some(("command", words)) => {
            let words: Vec<String> = words.split_ascii_whitespace().map(str::to_owned).collect();
            match words.first() {
                Some(program) if program.starts_with('/') && words.len() <= MOST => Ok(SecretSource::Command(words)),
                _ => Err("`command:` is followed by an absolute program and its words; no shell reads them".to_owned()),
            }
        }
        _ => Err(format!(
            "`{}` is no source: \"file:PATH\", \"env:NAME\" or \"command:/PROGRAM WORDS\"{}",
            text::printable(written),
            did_you_mean(written.split(':').next().unwrap_or_default(), &["file", "env", "command"])
        )),
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
    let good = |c: char| c == '\t' || (' '..='\u{7e}').contains(&c);
    if value.value.matches("{}").count() != 1 || !value.value.chars().all(good) {
        reader.schema(table.pointer_to("value"), value.at, "`value` is ASCII with one `{}`, where the secret stands");
        return None;
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
    Some(HeaderRule { host, port, name: name?, value: value.value, methods: texts(methods), paths: texts(paths) })
}

/// One name, and the port of TLS there.
fn exact(written: &str) -> Result<(String, u16), String> {
    let pattern = host::pattern(written)?;
    match pattern.host {
        Host::Name(name) => Ok((name, pattern.port.unwrap_or(HTTPS))),
        _ => Err("a secret goes to one exact name: no wildcard, no address".to_owned()),
    }
}

/// A token (RFC 9110, section 5.6.2) that is none of `FRAMING`, in lower case.
fn header_name(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if !name.bytes().all(token) {
        return Err("is not the name of a header".to_owned());
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
        && !stem.contains("//")
        && !stem.split('/').any(|part| part == "." || part == "..");
    if plain { Ok(()) } else { Err("a path is \"/exact\" or \"/below/**\", without `.`, `..`, `%` or `?`".to_owned()) }
}
