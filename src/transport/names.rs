//! Tool ids and the names that MCP clients and model APIs accept, one to one: `ns:name` and
//! `ns__name`, or the name that the author chose. Where two ids would share a name neither is
//! offered: a new file must not take over the name of a tool.

use crate::base::suggest;
use std::collections::{BTreeMap, BTreeSet};

/// Longest name that the strictest client takes: `^[a-zA-Z][a-zA-Z0-9_-]{0,63}$`.
const MAX_NAME_CHARS: usize = 64;
/// Characters of the hash that keeps changed names apart.
const HASH: usize = 6;

/// Both directions, for one snapshot.
#[derive(Debug, Default)]
pub struct Names {
    ids: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
}

impl Names {
    /// Ids, each with the name that its author chose. A chosen name holds no `__`, so it is never
    /// derived from an id.
    pub fn new<'a>(ids: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Names {
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        let mut shared = BTreeSet::new();
        for (id, chosen) in ids {
            let name = chosen.map_or_else(|| name_of(id), str::to_owned);
            match named.get(&name) {
                Some(other) if other != id => {
                    shared.insert(name);
                }
                _ => drop(named.insert(name, id.to_owned())),
            }
        }
        named.retain(|name, _| !shared.contains(name));
        let names = named
            .iter()
            .map(|(name, id)| (id.clone(), name.clone()))
            .collect();
        Names { ids: named, names }
    }

    /// The id behind a name.
    pub fn id(&self, name: &str) -> Option<&str> {
        self.ids.get(name).map(String::as_str)
    }

    /// The name of an id.
    pub fn name(&self, id: &str) -> Option<String> {
        self.names.get(id).cloned()
    }

    /// A text for a model, with names in place of ids.
    pub fn in_text(&self, text: &str) -> String {
        fn in_id(c: char) -> bool {
            c.is_ascii_alphanumeric() || "._:-".contains(c)
        }
        fn word(word: &str, names: &BTreeMap<String, String>) -> String {
            let id = word.trim_end_matches(['.', ':', '-']);
            names.get(id).map_or_else(
                || word.to_owned(),
                |name| format!("{name}{}", &word[id.len()..]),
            )
        }
        let mut named = String::new();
        for part in text.split_inclusive(|c| !in_id(c)) {
            let end = part.trim_end_matches(|c| !in_id(c)).len();
            named += &word(&part[..end], &self.names);
            named += &part[end..];
        }
        named
    }

    /// The offered name most similar to this one, if one is similar.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        suggest::nearest(name, self.ids.keys().map(String::as_str))
    }
}

/// A name that clients accept for a tool that may be unknown here: the id of one, or a name already.
pub fn safe(tool: &str) -> String {
    if is_allowed(tool) {
        tool.to_owned()
    } else {
        name_of(tool)
    }
}

fn is_allowed(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// The name of one id: the same on every host, whatever else is loaded. A plain id keeps its
/// letters and has `__` once and no `___`; any other id is changed and gets `___` and a hash at its
/// end, so that the two kinds never collide.
fn name_of(id: &str) -> String {
    let (space, name) = id.split_once(':').unwrap_or(("", id));
    fn plain(part: &str) -> bool {
        !part.is_empty()
            && !part.contains("__")
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    }
    let joined = format!("{space}__{name}");
    let is_plain = plain(space)
        && plain(name)
        && space.starts_with(|c: char| c.is_ascii_alphabetic())
        && !space.ends_with('_')
        && !name.starts_with('_')
        && joined.len() <= MAX_NAME_CHARS;
    if is_plain {
        joined
    } else {
        changed(&joined, id)
    }
}

fn changed(joined: &str, id: &str) -> String {
    let mut safe: String = joined
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
                c
            } else {
                '-'
            }
        })
        .collect();
    if !safe.starts_with(|c: char| c.is_ascii_alphabetic()) {
        safe.insert_str(0, "t-");
    }
    safe.truncate(MAX_NAME_CHARS - HASH - 3);
    let hash: String = crate::base::sha256_hex(id.as_bytes())
        .chars()
        .take(HASH)
        .collect();
    format!("{safe}___{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_its_own_allowed_name_and_comes_back() {
        let long = format!("reports:{}", "x".repeat(100));
        let longer = format!("reports:{}y", "x".repeat(100));
        let plain = "a.b:c a-b:c a_b:c 3d:render t-3d:render a_:b a:b_ a:b-c a:b.c core:run-code \
            no-colon :x ü:ö";
        let ids: Vec<&str> = plain.split(' ').chain([long.as_str(), &longer]).collect();
        let names = Names::new(ids.iter().map(|id| (*id, None)));
        for id in ids {
            let name = names.name(id).unwrap_or_else(|| panic!("{id} has no name"));
            assert!(is_allowed(&name), "{id} → {name}");
            assert_eq!(names.id(&name), Some(id));
        }
        let spaced = Names::new([(&*format!("{}:x", "n".repeat(70)), None)].into_iter());
        let taken = spaced
            .ids
            .keys()
            .next()
            .expect("a name")
            .replacen("__", ":", 1);
        assert_ne!(
            name_of(&taken),
            *spaced.ids.keys().next().expect("a name"),
            "a plain id cannot have a changed name"
        );
        assert_eq!(
            names.name("core:run-code").as_deref(),
            Some("core__run-code"),
            "a plain id keeps its letters"
        );
        assert_eq!(names.nearest("core__run_code"), Some("core__run-code"));
        assert_eq!(names.nearest("zzz"), None);
        let chosen = Names::new(
            [
                ("a:b", Some("short")),
                ("a:c", Some("twice")),
                ("a:d", Some("twice")),
            ]
            .into_iter(),
        );
        assert_eq!(
            (chosen.id("short"), chosen.name("a:b").as_deref()),
            (Some("a:b"), Some("short"))
        );
        assert_eq!(
            chosen.in_text("Use a:b. Not a:bc, (a:b)"),
            "Use short. Not a:bc, (short)"
        );
        assert_eq!(
            (chosen.id("twice"), chosen.name("a:c"), chosen.id("a__b")),
            (None, None, None)
        );
    }
}
