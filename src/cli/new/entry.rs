//! Which function of a script looks made to be called: `run`, `main` or `handle`, with parameters.
//!
//! For: `new --script`. In: the text of a script. Out: a function and its parameters, as far as their text shows them.
//! Never: runs the script; chooses one that the script calls itself or that cannot be called by name.

use super::{exports, text};
use crate::manifest::Language;
use serde_json::{Map, Value, json};

/// In this order.
const NAMES: [&str; 3] = ["run", "main", "handle"];
/// A script with these does its own reading, or starts itself.
const OWN_START: [&str; 6] = ["__main__", "sys.stdin", "input(", "process.stdin", "Bun.stdin", "/dev/stdin"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// Takes further names.
    pub open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub required: bool,
    /// Its JSON type, where an annotation says so.
    pub kind: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Chosen(Entry),
    /// There is one, and it may not be meant.
    Possible(String),
    Nothing,
}

pub fn find(source: &str, language: Language) -> Found {
    let code = text::code(source, language);
    let found = NAMES.iter().find_map(|name| Some((*name, parameters_of(&code, name, language)?)));
    let Some((name, text)) = found.filter(|(_, text)| !text.trim().is_empty()) else { return Found::Nothing };
    let entry = match language {
        Language::Python => python(name, &text),
        Language::Nodejs | Language::Bun => javascript(name, &text),
        Language::Wasm => return Found::Nothing,
    };
    let own_start = OWN_START.iter().any(|word| source.contains(word));
    match entry.filter(|_| !own_start) {
        Some(entry) => Found::Chosen(entry),
        None => Found::Possible(name.to_owned()),
    }
}

/// The text between the parentheses of a function at the outermost level. `code`: without what strings and comments say.
fn parameters_of(code: &str, name: &str, language: Language) -> Option<String> {
    if language != Language::Python {
        return exports::parameters_of(code, name).map(str::to_owned);
    }
    let mut start = 0;
    for line in code.split_inclusive('\n') {
        let head = line.strip_prefix("async ").unwrap_or(line).strip_prefix("def ");
        if let Some(rest) = head.and_then(|rest| rest.strip_prefix(name)).and_then(|rest| rest.strip_prefix('(')) {
            let (inside, _) = split(code.get(start + line.len() - rest.len()..)?, ')')?;
            return Some(inside.to_owned());
        }
        start += line.len();
    }
    None
}

/// `text` before and after the first `end` that stands outside of brackets and quotes.
pub(super) fn split(text: &str, end: char) -> Option<(&str, &str)> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, _) if depth == 0 && c == end => return Some((&text[..at], &text[at + c.len_utf8()..])),
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.checked_sub(1)?,
            (None, _) => {}
        }
    }
    None
}

/// The parts between commas.
pub(super) fn parts(mut text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((part, rest)) = split(text, ',') {
        found.push(part.trim());
        text = rest;
    }
    found.push(text.trim());
    found.retain(|part| !part.is_empty());
    found
}

/// A name that can be an argument.
fn plain(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Called with keyword arguments; so it can have no positional ones.
fn python(name: &str, text: &str) -> Option<Entry> {
    let mut entry = Entry { name: name.to_owned(), parameters: Vec::new(), open: false };
    for part in parts(text) {
        if part == "*" {
            continue;
        }
        if part.starts_with("**") {
            entry.open = true;
            continue;
        }
        let (declared, default) = split(part, '=').map_or((part, None), |(name, default)| (name, Some(default)));
        let (own, kind) = declared.split_once(':').unwrap_or((declared, ""));
        // `argv` is a command line, and a comment or `/` is more than is read here.
        if !plain(own.trim()) || ["argv", "args"].contains(&own.trim()) {
            return None;
        }
        let kind = match kind.trim() {
            "str" => Some("string"),
            "int" => Some("integer"),
            "float" => Some("number"),
            "bool" => Some("boolean"),
            kind if kind.starts_with("list") => Some("array"),
            kind if kind.starts_with("dict") => Some("object"),
            _ => None,
        };
        entry.parameters.push(Parameter { name: own.trim().to_owned(), required: default.is_none(), kind });
    }
    Some(entry)
}

/// Called with one object: its names show where it is taken apart at once.
fn javascript(name: &str, text: &str) -> Option<Entry> {
    let [one] = parts(text)[..] else { return None };
    let mut entry = Entry { name: name.to_owned(), parameters: Vec::new(), open: false };
    let Some(inner) = one.strip_prefix('{') else {
        entry.open = true;
        return Some(entry);
    };
    let (inner, _) = split(inner, '}')?;
    for part in parts(inner) {
        if part.starts_with("...") {
            entry.open = true;
            continue;
        }
        let (declared, default) = split(part, '=').map_or((part, None), |(name, default)| (name, Some(default)));
        let own = declared.split(':').next().unwrap_or_default().trim();
        if !plain(own) {
            return None;
        }
        entry.parameters.push(Parameter { name: own.to_owned(), required: default.is_none(), kind: None });
    }
    Some(entry)
}

impl Entry {
    /// The schema of its arguments.
    pub fn schema(&self) -> Value {
        let mut properties = Map::new();
        for parameter in &self.parameters {
            let mut about = json!({ "description": format!("Say here what {} is.", parameter.name) });
            if let Some(kind) = parameter.kind {
                about["type"] = json!(kind);
            }
            properties.insert(parameter.name.clone(), about);
        }
        let required: Vec<&String> = self.parameters.iter().filter(|p| p.required).map(|p| &p.name).collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if self.open {
            schema["additionalProperties"] = json!(true);
        }
        schema
    }

    /// `run(text, n)`
    pub fn text(&self) -> String {
        let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        format!("{}({})", self.name, names.join(", "))
    }

    /// Arguments for a first try.
    pub fn example(&self) -> String {
        let value = |parameter: &Parameter| match parameter.kind {
            Some("integer" | "number") => "1",
            Some("boolean") => "true",
            Some("array") => "[]",
            Some("object") => "{}",
            _ => "text",
        };
        let required = self.parameters.iter().filter(|p| p.required);
        let pairs: Vec<String> = required.map(|p| format!("{}='{}'", p.name, value(p))).collect();
        if pairs.is_empty() { "--input '{}'".to_owned() } else { pairs.join(" ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(source: &str, language: Language) -> String {
        match find(source, language) {
            Found::Chosen(entry) => {
                let one = |p: &Parameter| {
                    format!("{}{}{}", p.name, if p.required { "" } else { "?" }, p.kind.map_or("", |kind| &kind[..1]))
                };
                let all: Vec<String> = entry.parameters.iter().map(one).collect();
                format!("{}({}){}", entry.name, all.join(","), if entry.open { "+" } else { "" })
            }
            Found::Possible(name) => format!("{name}?"),
            Found::Nothing => String::new(),
        }
    }

    #[test]
    fn a_function_is_chosen_only_where_it_can_be_called_by_name() {
        for (source, found) in [
            ("def run(text: str, n: int = 3, *, flag=True):\n    return n\n", "run(texts,n?i,flag?)"),
            ("import x\n\nasync def handle(\n    a,\n    b=(1, ')'),\n    **rest,\n):\n    pass\n", "handle(a,b?)+"),
            ("def main():\n    pass\n", ""),
            ("def helper(x):\n    pass\n", ""),
            ("class A:\n    def run(self, x):\n        pass\n", ""),
            ("def main(argv):\n    pass\n", "main?"),
            ("def main(a, /):\n    pass\n", "main?"),
            ("def main(*values):\n    pass\n", "main?"),
            ("import sys\ndef run(a):\n    pass\nif __name__ == '__main__':\n    run(sys.argv)\n", "run?"),
            ("def run(a", ""),
            ("\"\"\"Example:\n\ndef run(fake):\n    pass\n\"\"\"\ndef main(real):\n    pass\n", "main(real)"),
            ("X = '''\ndef run(fake): \\''' \n'''\n", ""),
            ("def run(\n    a,  # it's (the first\n    b=')',\n):\n    pass\n", "run(a,b?)"),
        ] {
            assert_eq!(chosen(source, Language::Python), found, "{source}");
        }
        for (source, found) in [
            ("export function run({ text, n = 3 }) {}\n", "run(text,n?)"),
            ("export async function main({ a: b, ...rest }: { a: string }) {}\n", "main(a)+"),
            ("export function handle(input) {}\n", "handle()+"),
            ("export function handle(a, b) {}\n", "handle?"),
            ("function run(a) {}\n", ""),
            ("export const run = async ({ text }) => text;\n", "run(text)"),
            (
                "export const run = async ({ text, n = 2 }: { text: string }): Promise<string> => text;\n",
                "run(text,n?)",
            ),
            ("export const main = input => input;\n", "main()+"),
            ("export let run = function ({ a }) { return a }\n", "run(a)"),
            ("exports.run = function(input){ return input }\n", "run()+"),
            ("function run({ a }) {}\nexports.run = run;\n", "run(a)"),
            ("const run = ({ a }) => a\nmodule.exports = { other, run }\n", "run(a)"),
            ("module.exports = { run: async ({ a }) => a };\n", "run(a)"),
            ("module.exports = { async run({ a }) { return a } };\n", "run(a)"),
            ("module.exports.run = async function named({ a }) {};\n", "run(a)"),
            ("function main({ a }) {}\nmodule.exports = main;\n", "main(a)"),
            ("function run({ a }) { return a }; export { run };\n", "run(a)"),
            ("function inner({ a }) {}\nexport { inner as run };\n", "run(a)"),
            ("export default async function main({ text }) {}\n", "main(text)"),
            ("function run({ a }) {}\nexport { run as other };\n", ""),
            ("// export function run(a) {}\n/*\nexport function run(a) {}\n*/\n`\nexport function run(a) {}`\n", ""),
            ("if (x) { exports.run = function(input){} }\n", ""),
            ("export function runner(a) {}\nexport const run = 3;\nmodule.exports.run == f;\n", ""),
            ("const f = require('x'); exports.run = f;\n", ""),
        ] {
            assert_eq!(chosen(source, Language::Bun), found, "{source}");
        }
    }
}
