//! Misplaced: fields that do nothing where they stand: where each belongs, or what it is called here.
//!
//! For: `reader`. In: the name of an unknown member, and the place it stands at. Out: the mend.
//! Never: takes an unknown name for a mistake: manifests may carry fields of their own.

use super::{asks, blocks, handler};
use crate::quantity::Limit;

/// The names that other formats use for fields of ours.
const CALLED: [(&str, &str); 7] = [
    ("inputSchema", "parameters"),
    ("input_schema", "parameters"),
    ("outputSchema", "output"),
    ("output_schema", "output"),
    ("dependencies", "requires"),
    ("timeout_ms", "timeoutMs"),
    ("entrypoint", "entryPoint"),
];

/// The mend for `key`, which is not known at `pointer`; `None` where the name is unknown everywhere.
pub(super) fn mend(key: &str, pointer: &str) -> Option<String> {
    let called = CALLED.iter().find(|(other, _)| *other == key).map(|(_, ours)| *ours);
    let name = called.unwrap_or(key);
    let renamed = called.map(|ours| format!("it is called '{ours}' here"));
    match (home(name), renamed) {
        (Some(home), renamed) if home != pointer => {
            let renamed = renamed.map_or_else(String::new, |renamed| format!("{renamed}, and "));
            Some(format!("{renamed}it belongs in {}", if home.is_empty() { "the top level" } else { home }))
        }
        (_, renamed) => renamed,
    }
}

/// The one place where a field of this name is read.
fn home(name: &str) -> Option<&'static str> {
    let is_limit = Limit::ALL.iter().any(|limit| *limit != Limit::TimeoutMs && limit.name() == name);
    let places: [(&[&str], &'static str); 9] = [
        (super::file::FIELDS, ""),
        (blocks::EXECUTION_FIELDS, "/execution"),
        (blocks::PRESENTATION_FIELDS, "/presentation"),
        (blocks::METADATA_FIELDS, "/metadata"),
        (handler::SCRIPT_FIELDS, "/handler"),
        (handler::METHOD_FIELDS, "/handler"),
        (asks::FIELDS, "/securityContext"),
        (asks::FILE_FIELDS, "/securityContext/fileAccess"),
        (asks::NETWORK_FIELDS, "/securityContext/networkAccess"),
    ];
    let of_block = places.into_iter().find(|(fields, _)| fields.contains(&name)).map(|(_, place)| place);
    of_block.or(is_limit.then_some("/limits"))
}
