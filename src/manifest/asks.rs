//! Asks: the `securityContext` block. A request, never a grant.
//!
//! For: `file`. In: the manifest's object. Out: `Asks`. Never: ignores an unknown key, a null or a wrong type: a
//! misspelt ask refuses the manifest (P5).

use super::reader::{Object, Reader, Unknown};
use super::{Asks, Code, Pattern, PatternShape, host, pattern};

pub(super) const FIELDS: &[&str] = &["fileAccess", "networkAccess", "requiredCapabilities"];
pub(super) const FILE_FIELDS: &[&str] = &["allowRead", "allowWrite"];
pub(super) const NETWORK_FIELDS: &[&str] = &["allowHosts"];

/// Most patterns in one list.
const MAX_PATTERNS: usize = 256;

pub(super) fn read<'d>(reader: &mut Reader<'d>, top: &'d Object) -> Asks {
    let mut asks = Asks::default();
    let Some(context) = reader.member(top, "", "securityContext") else { return asks };
    let at = "/securityContext";
    reader.unknown_keys(context, at, FIELDS, Unknown::Refused, Code::Security);
    if let Some(files) = reader.member(context, at, "fileAccess") {
        let at = "/securityContext/fileAccess";
        reader.unknown_keys(files, at, FILE_FIELDS, Unknown::Refused, Code::Security);
        asks.read = patterns(reader, files, at, "allowRead").map(|found| found.into_iter().map(|(_, p)| p).collect());
        for (pointer, pattern) in patterns(reader, files, at, "allowWrite").unwrap_or_default() {
            if pattern.shape == PatternShape::SelfScript {
                reader.error(
                    Code::Security,
                    &pointer,
                    "a script never writes its own file: name a folder for its results",
                );
            }
            asks.write.push(pattern);
        }
    }
    if let Some(network) = reader.member(context, at, "networkAccess") {
        let at = "/securityContext/networkAccess";
        reader.unknown_keys(network, at, NETWORK_FIELDS, Unknown::Refused, Code::Security);
        for (pointer, written) in reader.strings(network, at, "allowHosts").unwrap_or_default() {
            match host::canonical(written) {
                Ok(host) => asks.hosts.push(host),
                // Not `Security`: the text is no host name at all.
                Err(why) => reader.error(Code::Schema, &pointer, why),
            }
        }
    }
    for (pointer, word) in reader.strings(context, at, "requiredCapabilities").unwrap_or_default() {
        if word.trim().is_empty() {
            reader.error(Code::Security, &pointer, "an empty capability asks for nothing: take it away");
        }
        asks.capabilities.push(word.to_owned());
    }
    asks
}

fn patterns<'d>(reader: &mut Reader<'d>, map: &'d Object, at: &str, key: &str) -> Option<Vec<(String, Pattern)>> {
    let written = reader.strings(map, at, key)?;
    if written.len() > MAX_PATTERNS {
        let message = format!("more than {MAX_PATTERNS} patterns: name folders instead of files");
        reader.error(Code::Security, &format!("{at}/{key}"), message);
    }
    let mut found = Vec::new();
    for (pointer, text) in written.into_iter().take(MAX_PATTERNS) {
        match pattern::parse(text) {
            Ok(pattern) => found.push((pointer, pattern)),
            Err(why) => reader.error(Code::Security, &pointer, why),
        }
    }
    Some(found)
}
