//! `[project] dependencies` of a pyproject.toml, and the block of a script that says the same (PEP 723).

use super::files::{MOST, Text};
use super::requirement::{Environment, Requirement};
use crate::policy::packages::Ecosystem;
use crate::policy::{FileProblem, versions};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Spanned, Value};

#[derive(Deserialize)]
struct Document {
    project: Option<Project>,
    /// Of a block in a script.
    dependencies: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    tool: Tool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tool {
    uv: Settings,
    poetry: Settings,
    pdm: Settings,
}

type Settings = BTreeMap<String, Spanned<Value>>;

#[derive(Deserialize)]
struct Project {
    name: Option<String>,
    dependencies: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    dynamic: Vec<String>,
}

/// Keys of `[tool.uv]` that change nothing of what is required; every other one is refused.
#[rustfmt::skip]
const HARMLESS: [&str; 17] = [
    "build-backend", "cache-keys", "compile-bytecode", "default-groups", "dependency-groups", "dev-dependencies",
    "environments", "exclude-newer", "fork-strategy", "link-mode", "managed", "package", "preview",
    "python-downloads", "python-preference", "required-environments", "required-version",
];

pub(super) struct ProjectRequirements {
    /// The project's own name, which a lock lists, too.
    pub name: Option<String>,
    pub requirements: Vec<Requirement>,
}

/// Of a pyproject.toml; `None`: it names no requirement.
pub(super) fn read(file: &Text, environment: &Environment) -> Result<Option<ProjectRequirements>, FileProblem> {
    let Document { project, tool, .. } = file.toml(&file.text, 0)?;
    let (name, listed, dynamic) = project.map(|p| (p.name, p.dependencies, p.dynamic)).unwrap_or_default();
    if dynamic.iter().any(|word| word == "dependencies") {
        let why = "`dependencies` is dynamic, so a build would say what is required: list them in [project]";
        return Err(file.problem(0, why));
    }
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        return match tool.poetry.get("dependencies") {
            None => Ok(None),
            Some(value) => {
                let why = "[tool.poetry] is not read: list the requirements in [project] dependencies";
                Err(file.problem(file.line(value.span().start), why))
            }
        };
    };
    let name = name.and_then(|name| versions::name(Ecosystem::Python, &name));
    asked(file, &listed, &tool, |offset| file.line(offset), environment)
        .map(|requirements| Some(ProjectRequirements { name, requirements }))
}

fn asked<'t>(
    file: &Text,
    listed: &[Spanned<String>],
    tool: &'t Tool,
    line: impl Fn(usize) -> usize,
    environment: &Environment,
) -> Result<Vec<Requirement>, FileProblem> {
    let uv = tool.uv.iter().find(|(key, _)| !HARMLESS.contains(&key.as_str())).map(|found| ("uv", found));
    let source = |name, table: &'t Settings| Some((name, table.get_key_value("source")?));
    if let Some((name, (key, value))) = uv.or(source("poetry", &tool.poetry)).or(source("pdm", &tool.pdm)) {
        let why = format!(
            "[tool.{name}] `{key}` says where packages come from or how they are resolved: the policy names the index, and \
             this host's configuration its address; take it out"
        );
        return Err(file.problem(line(value.span().start), why));
    }
    if listed.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} requirements")));
    }
    let one = |written: &Spanned<String>| {
        let line = line(written.span().start);
        environment.requirement(written.get_ref(), line).map_err(|why| file.problem(line, why))
    };
    listed.iter().map(one).collect()
}

/// The block of a script, `# /// script` to `# ///`; `None`: it has none.
pub(super) fn block(script: &Text, environment: &Environment) -> Result<Option<Vec<Requirement>>, FileProblem> {
    let lines: Vec<&str> = script.text.lines().collect();
    let (mut found, mut number): (Option<(usize, String)>, usize) = (None, 0);
    while number < lines.len() {
        if lines[number].trim_end() != "# /// script" {
            number += 1;
            continue;
        }
        let rest = lines[number + 1..].iter();
        let body: Vec<&str> = rest.take_while(|line| **line == "#" || line.starts_with("# ")).copied().collect();
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
    let document: Document = script.toml(&text, line)?;
    let Some(listed) = document.dependencies.filter(|listed| !listed.is_empty()) else { return Ok(None) };
    asked(script, &listed, &document.tool, |_| line, environment).map(Some)
}
