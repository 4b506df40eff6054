//! Pyproject: `[project] dependencies` of a pyproject.toml, and the block of a script that says the same (PEP 723).
//!
//! For: `python`. In: a text. Out: requirements. Never: reads `[tool]` for more than to refuse what says where from.

use super::files::{MOST, Text};
use super::requirement::{self, Requirement};
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Spanned, Value};

#[derive(Deserialize, Default)]
struct Document {
    project: Option<Project>,
    /// Of a block in a script.
    dependencies: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    tool: Tool,
}

#[derive(Deserialize)]
struct Project {
    name: Option<String>,
    dependencies: Option<Vec<Spanned<String>>>,
    dynamic: Option<Spanned<Vec<String>>>,
}

#[derive(Deserialize, Default)]
struct Tool {
    #[serde(default)]
    uv: BTreeMap<String, Spanned<Value>>,
    #[serde(default)]
    poetry: BTreeMap<String, Spanned<Value>>,
    #[serde(default)]
    pdm: BTreeMap<String, Spanned<Value>>,
}

/// Keys of `[tool.uv]` that change nothing of what is required; every other one is refused.
#[rustfmt::skip]
const HARMLESS: [&str; 17] = [
    "build-backend", "cache-keys", "compile-bytecode", "default-groups", "dependency-groups", "dev-dependencies",
    "environments", "exclude-newer", "fork-strategy", "link-mode", "managed", "package", "preview",
    "python-downloads", "python-preference", "required-environments", "required-version",
];

pub(super) struct Asked {
    /// The project's own name, which a lock lists, too.
    pub name: Option<String>,
    pub requirements: Vec<Requirement>,
}

/// Of a pyproject.toml; `None`: it names no requirement.
pub(super) fn read(file: &Text) -> Result<Option<Asked>, FileProblem> {
    let document: Document = file.toml()?;
    let listed = document.project.as_ref().and_then(|project| project.dependencies.as_ref());
    let dynamic = document.project.as_ref().and_then(|project| project.dynamic.as_ref());
    if let Some(dynamic) = dynamic.filter(|dynamic| dynamic.get_ref().iter().any(|word| word == "dependencies")) {
        let line = file.line(dynamic.span().start);
        return Err(file.problem(
            line,
            "`dependencies` is dynamic, so a build would say what is required: list them in [project]",
        ));
    }
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        let others = [("poetry", &document.tool.poetry)];
        let elsewhere = others.iter().find_map(|(tool, table)| Some((tool, table.get("dependencies")?)));
        return match elsewhere {
            None => Ok(None),
            Some((tool, value)) => Err(file.problem(
                file.line(value.span().start),
                format!("[tool.{tool}] is not read: list the requirements in [project] dependencies"),
            )),
        };
    };
    settings(file, &document.tool, 0)?;
    let requirements = requirements(file, listed, 0)?;
    let name = document.project.as_ref().and_then(|project| project.name.as_deref());
    let name = name.and_then(|name| versions::name(Ecosystem::Python, name));
    Ok(Some(Asked { name, requirements }))
}

fn requirements(file: &Text, listed: &[Spanned<String>], above: usize) -> Result<Vec<Requirement>, FileProblem> {
    if listed.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} requirements")));
    }
    let one = |written: &Spanned<String>| {
        // In a block, offsets count from its first line.
        let line = match above {
            0 => file.line(written.span().start),
            _ => above,
        };
        requirement::parse(written.get_ref(), line).map_err(|why| file.problem(line, why))
    };
    listed.iter().map(one).collect()
}

fn settings(file: &Text, tool: &Tool, above: usize) -> Result<(), FileProblem> {
    let refused =
        tool.uv.iter().filter(|(key, _)| !HARMLESS.contains(&key.as_str())).map(|(key, value)| ("uv", key, value));
    let sources = |name, table: &'_ BTreeMap<String, Spanned<Value>>| {
        table.get_key_value("source").map(|(key, value)| (name, key.clone(), value.span().start))
    };
    let first = refused.map(|(name, key, value)| (name, key.clone(), value.span().start)).next();
    let first = first.or_else(|| sources("poetry", &tool.poetry)).or_else(|| sources("pdm", &tool.pdm));
    let Some((name, key, at)) = first else { return Ok(()) };
    let line = if above == 0 { file.line(at) } else { above };
    Err(file.problem(
        line,
        format!(
            "[tool.{name}] `{key}` says where packages come from or how they are resolved: the policy names the index, and \
             this host's configuration its address; take it out"
        ),
    ))
}

/// The block of a script, `# /// script` to `# ///`; `None`: it has none.
pub(super) fn block(script: &Text) -> Result<Option<Asked>, FileProblem> {
    let mut found: Option<(usize, String)> = None;
    let lines: Vec<&str> = script.text.lines().map(|line| line.trim_end_matches('\r')).collect();
    let mut number = 0;
    while number < lines.len() {
        if lines[number].trim_end() != "# /// script" {
            number += 1;
            continue;
        }
        let body: Vec<&str> =
            lines[number + 1..].iter().take_while(|line| **line == "#" || line.starts_with("# ")).copied().collect();
        // The last closing line of the comment counts (PEP 723).
        let Some(end) = body.iter().rposition(|line| line.trim_end() == "# ///") else {
            return Err(script.problem(number + 1, "the block `# /// script` has no end: close it with a line `# ///`"));
        };
        if found.is_some() {
            return Err(script.problem(number + 1, "a second block `# /// script`: keep one"));
        }
        let text: Vec<&str> = body[..end].iter().map(|line| line.strip_prefix("# ").unwrap_or_default()).collect();
        found = Some((number + 1, text.join("\n")));
        number += end + 2;
    }
    let Some((line, text)) = found else { return Ok(None) };
    let document: Document = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        script.problem(line + at, format!("the block `# /// script` cannot be read: {}", error.message()))
    })?;
    let Some(listed) = document.dependencies.filter(|listed| !listed.is_empty()) else { return Ok(None) };
    settings(script, &document.tool, line)?;
    Ok(Some(Asked { name: None, requirements: requirements(script, &listed, line)? }))
}
