//! The built-in programs for `entryPoint`, in the tool's own language, that call one function of its script. A shim
//! runs inside the walls with the tool's rights; nothing trusts it.
//!
//! Called as `<runtime> <arguments> /.toolhost/entry.py SCRIPT ENTRY`: arguments on stdin as one JSON object, the
//! return value on stdout as one JSON document, everything printed goes to stderr. On failure the exit status is not 0
//! and the last line of stderr starts with `toolhost: ` and names the fix.

use crate::manifest::Language;

/// Source text of the built-in shim; `None` where entry points need none (wasm exports a function itself).
pub fn entry_point(language: Language) -> Option<&'static str> {
    match language {
        Language::Python => Some(include_str!("shims/entry.py")),
        Language::Nodejs | Language::Bun => Some(include_str!("shims/entry.mjs")),
        Language::Wasm => None,
    }
}

/// Where the shim is shown inside the walls.
pub fn guest_path(language: Language) -> Option<&'static str> {
    match language {
        Language::Python => Some("/.toolhost/entry.py"),
        Language::Nodejs | Language::Bun => Some("/.toolhost/entry.mjs"),
        Language::Wasm => None,
    }
}

/// The reason that a shim gave: the last line of stderr that starts with `toolhost: `.
pub fn reason<'a>(logs: impl DoubleEndedIterator<Item = &'a str>) -> Option<&'a str> {
    logs.rev().find_map(|line| line.strip_prefix("toolhost: "))
}
