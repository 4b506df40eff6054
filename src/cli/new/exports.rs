//! The functions that a JavaScript or TypeScript file exports under a name, as `entry.mjs` will find them.
//!
//! For: `new --script`. In: code without strings and comments, a name. Out: the text between the parentheses of that function.
//! Never: takes a function that the file keeps to itself, or one that is exported under another name.

use super::entry::{parts, split};

pub fn parameters_of<'c>(code: &'c str, name: &str) -> Option<&'c str> {
    statements(code)
        .into_iter()
        .find_map(|statement| exported(code, statement, name).or_else(|| assigned(code, statement, name)))
}

/// What begins at the outermost level, each to the end of the text.
fn statements(code: &str) -> Vec<&str> {
    let (mut depth, mut begins, mut found) = (0usize, true, Vec::new());
    for (at, c) in code.char_indices() {
        if begins && depth == 0 && !c.is_whitespace() {
            found.push(&code[at..]);
            begins = false;
        }
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                begins |= depth == 0 && c == '}';
            }
            ';' | '\n' => begins = true,
            _ => {}
        }
    }
    found
}

/// `export function NAME`, `export default function NAME`, `export const NAME = …`, `export { NAME }`.
fn exported<'c>(code: &'c str, statement: &'c str, name: &str) -> Option<&'c str> {
    let rest = word(statement, "export")?;
    if let Some(listed) = rest.strip_prefix('{') {
        let (listed, _) = split(listed, '}')?;
        return parts(listed).into_iter().find_map(|part| {
            let (own, outside) = part.split_once(" as ").unwrap_or((part, part));
            let (own, outside) = (own.trim(), outside.trim());
            // A default export is found by the name of its function.
            (outside == name || (outside == "default" && own == name)).then(|| local(code, own)).flatten()
        });
    }
    declared(word(rest, "default").unwrap_or(rest), name)
}

/// `exports.NAME = …`, `module.exports.NAME = …`, `module.exports = …`.
fn assigned<'c>(code: &'c str, statement: &'c str, name: &str) -> Option<&'c str> {
    let exports = word(statement, "module").and_then(|rest| rest.strip_prefix('.')).unwrap_or(statement);
    let rest = word(exports, "exports")?;
    if let Some(member) = rest.strip_prefix('.') {
        return value(code, equals(word(member, name)?)?);
    }
    let whole = equals(rest).filter(|_| exports.len() < statement.len())?;
    let Some(members) = whole.strip_prefix('{') else {
        return declared(whole, name).or_else(|| word(whole, name).and_then(|_| local(code, name)));
    };
    let (members, _) = split(members, '}')?;
    parts(members).into_iter().find_map(|member| {
        let after = word(word(member, "async").unwrap_or(member), name)?;
        match after.chars().next() {
            None => local(code, name),
            Some(':') => value(code, after[1..].trim_start()),
            Some('(') => parenthesis(after),
            Some(_) => None,
        }
    })
}

/// A function of the file, whether it is exported or not.
fn local<'c>(code: &'c str, name: &str) -> Option<&'c str> {
    statements(code).into_iter().find_map(|statement| declared(word(statement, "export").unwrap_or(statement), name))
}

/// `[async] function NAME(…)`, `const NAME = …`.
fn declared<'c>(text: &'c str, name: &str) -> Option<&'c str> {
    if let Some(rest) = word(word(text, "async").unwrap_or(text), "function") {
        return parenthesis(word(rest, name)?);
    }
    let rest = ["const", "let", "var"].iter().find_map(|how| word(text, how))?;
    function(equals(word(rest, name)?)?)
}

/// A function, or the name of one of this file.
fn value<'c>(code: &'c str, text: &'c str) -> Option<&'c str> {
    function(text).or_else(|| {
        let end = text.find(|c| !in_a_name(c)).unwrap_or(text.len());
        local(code, &text[..end])
    })
}

/// `[async] function [name](…)`, `[async] (…) =>`, `[async] name =>`.
fn function(text: &str) -> Option<&str> {
    let text = word(text, "async").unwrap_or(text);
    if let Some(rest) = word(text, "function") {
        return parenthesis(rest.trim_start_matches(in_a_name).trim_start());
    }
    if let Some(inside) = text.strip_prefix('(') {
        let (inside, after) = split(inside, ')')?;
        // TypeScript says between the two what comes back.
        return after.trim_start().starts_with(['=', ':']).then_some(inside);
    }
    let end = text.find(|c| !in_a_name(c))?;
    (end > 0 && text[end..].trim_start().starts_with("=>")).then(|| &text[..end])
}

fn parenthesis(text: &str) -> Option<&str> {
    split(text.strip_prefix('(')?, ')').map(|(inside, _)| inside)
}

/// What stands after this word, if the text begins with it.
fn word<'c>(text: &'c str, word: &str) -> Option<&'c str> {
    let rest = text.strip_prefix(word)?;
    (!rest.starts_with(in_a_name)).then(|| rest.trim_start())
}

fn equals(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('=')?;
    (!rest.starts_with(['=', '>'])).then(|| rest.trim_start())
}

fn in_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}
