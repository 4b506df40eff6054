//! From a shape to what the sandbox runs: its `Spec`.

use super::grants;
use crate::base::mask::Hidden;
use crate::manifest::Language;
use crate::packages::store::FONT_LISTS;
use crate::policy::{FILES_VARIABLE, Program, Shape};
use crate::quantity::Limit;
use crate::runtimes::{self, Guard};
use crate::sandbox::{
    self, CALL_FOLDER, CALL_OUTPUT, Executable, Serves, Spec, Stage, environment, probe, role_name,
};
use std::path::{Path, PathBuf};

/// What a launcher needs beyond the shape: its principal, and what our own roles need.
#[derive(Clone, Debug, Default)]
pub struct RoleNeeds {
    /// Whose calls the launcher serves: no other principal's calls get it, since its share of the
    /// CPU is theirs.
    pub principal: String,
    pub memory: u64,
    pub processes: u64,
    pub outlives_calls: bool,
    /// It runs the cells of a session.
    pub cells: bool,
    /// How many descriptors from 3 on its calls bring.
    pub inherited: usize,
    /// Of a script that calls tools, or runs like one: what they take, shown to it as a file.
    pub stubs: Option<String>,
    /// The script comes with the call.
    pub own_source: bool,
    /// The role where the program is ourselves: its name for `sandbox::reenter`.
    pub role: Option<&'static str>,
}

/// The name under which a call's own source lies in its scratch.
pub fn source_name(language: Language, source: &str) -> &'static str {
    fn module(line: &str) -> bool {
        line.starts_with("import ") || line.starts_with("import{") || line.starts_with("export ")
    }
    match language {
        Language::Python => "main.py",
        // Node 20 recognises an ES module by the file's name alone.
        Language::Nodejs if source.lines().any(|l| module(l.trim_start())) => "main.mjs",
        Language::Nodejs => "main.js",
        Language::Bun => "main.ts",
        Language::Wasm => "main.wat",
        Language::Bash => "main.sh",
    }
}

/// What the sandbox runs for this shape.
pub fn spec(shape: &Shape, resolved: grants::ResolvedGrants, extra: &RoleNeeds) -> Spec {
    let language = shape.runtime.language;
    let guard = runtimes::guard(shape);
    let (executable, arguments) = match (&shape.runtime.program, &extra.role) {
        (Program::Path(path), None) => (
            Executable::Path(path.clone()),
            arguments(shape, path, &guard, extra),
        ),
        (_, role) => (
            Executable::Ourselves,
            vec![role_name(role.unwrap_or(probe::ROLE))],
        ),
    };
    let mut limits = shape.limits.clone();
    for (limit, more) in [
        (Limit::Processes, extra.processes),
        (Limit::MemoryBytes, extra.memory),
    ] {
        limits.set(limit, limits.get(limit).saturating_add(more));
    }
    // The time limit comes with each call.
    limits.set(Limit::TimeoutMs, 0);
    let mut variables = shape_lines(shape);
    runtimes::set_variables(shape, &mut variables);
    let mut files = guard.files;
    let mut scratch = font_lists(shape, &mut variables);
    let calls = runtimes::calls_shim(language).filter(|_| extra.stubs.is_some() || extra.cells);
    for (path, text) in calls.into_iter().chain(shim(shape, extra)) {
        let name = path.rsplit('/').next().unwrap_or(path);
        files.push((name.to_owned(), text.to_owned()));
    }
    if let (Some(stubs), Some(_)) = (&extra.stubs, calls) {
        let name = runtimes::stubs_name(language);
        variables.push(format!("TOOL_STUBS={CALL_FOLDER}/{name}"));
        scratch.push((Path::new("call").join(name), stubs.clone()));
    }
    if !resolved.authorities.is_empty() {
        files.extend(authorities(resolved.authorities, &mut variables));
    }
    let built = shape.built.iter().filter_map(|built| built.link.clone());
    let mut stages: Vec<Stage> = resolved.stages.into_iter().map(Stage::Folder).collect();
    if extra.role.is_none() && shape.takes_files() {
        stages.push(Stage::Store);
        variables.push(format!("{FILES_VARIABLE}=[]"));
        variables.push(format!("TOOL_OUTPUT={CALL_OUTPUT}"));
    }
    Spec {
        program: sandbox::Program {
            executable,
            arguments,
            // A module has no working folder: its paths start at the folders opened for it, and it
            // may have no grant.
            folder: if language == Language::Wasm {
                "/".into()
            } else {
                shape.folder.clone()
            },
            inherited: extra.inherited,
            serves: if extra.outlives_calls {
                Serves::Calls
            } else if extra.cells || shape.mcp.is_some() {
                Serves::Session
            } else {
                Serves::Call
            },
        },
        roots: shape.runtime.roots.clone(),
        mounts: resolved.mounts,
        stages,
        masks: resolved.masks,
        links: built.chain(guard.links).collect(),
        files,
        scratch,
        output: shape.output.clone(),
        variables: Hidden(variables),
        network: shape.network.is_relayed().then(|| shape.network.ports()),
        local_sockets: shape.local_sockets,
        limits,
        principal: extra.principal.clone(),
        recorded: shape.observe && extra.role.is_none(),
    }
}

/// The list of fonts that was made with the packages. matplotlib looks for fonts again where it
/// cannot write the folder of its list.
fn font_lists(shape: &Shape, variables: &mut Vec<String>) -> Vec<(PathBuf, String)> {
    let Some(built) = &shape.built else {
        return Vec::new();
    };
    let lists = std::fs::read_dir(built.path.join(FONT_LISTS));
    let lists = lists.into_iter().flatten().flatten().filter_map(|list| {
        let text = std::fs::read_to_string(list.path()).ok()?;
        Some((Path::new(".config/matplotlib").join(list.file_name()), text))
    });
    let lists: Vec<_> = lists.collect();
    if !lists.is_empty()
        && !variables
            .iter()
            .any(|line| line.starts_with("MPLCONFIGDIR="))
    {
        variables.push("MPLCONFIGDIR=/tmp/.config/matplotlib".to_owned());
    }
    lists
}

/// Where Linux systems keep the certificates of the machine in one file.
const MACHINE_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The files with which a tool trusts more certificates, and the variables that name them, each
/// unless the manifest sets it. Node and Bun add their file to what they trust; others trust what
/// is in theirs alone.
fn authorities(own: String, variables: &mut Vec<String>) -> [(String, String); 2] {
    for (name, file) in [
        ("NODE_EXTRA_CA_CERTS", "authority.pem"),
        ("SSL_CERT_FILE", "authorities.pem"),
        ("REQUESTS_CA_BUNDLE", "authorities.pem"),
        ("CURL_CA_BUNDLE", "authorities.pem"),
    ] {
        let begin = format!("{name}=");
        if !variables.iter().any(|line| line.starts_with(&begin)) {
            variables.push(format!("{begin}/.toolhost/{file}"));
        }
    }
    let machine = MACHINE_AUTHORITIES
        .iter()
        .find_map(|file| std::fs::read_to_string(file).ok())
        .unwrap_or_default();
    [
        ("authorities.pem".to_owned(), format!("{machine}\n{own}")),
        ("authority.pem".to_owned(), own),
    ]
}

/// `NAME=value` lines of every call of a shape: what all tools get, then literals of the shape and
/// granted host variables.
pub fn shape_lines(shape: &Shape) -> Vec<String> {
    // A WASI module gets its variables in a message: its worker is our own program and must not
    // obey them.
    let Program::Path(program) = &shape.runtime.program else {
        return environment::usual_lines(None);
    };
    let mut lines = environment::usual_lines(Some(program));
    let own = shape.env.iter();
    lines.extend(own.map(|(name, value)| format!("{name}={}", value.text())));
    lines
}

/// The shim through which a script runs, if any: its path, and its text.
fn shim(shape: &Shape, extra: &RoleNeeds) -> Option<(&'static str, &'static str)> {
    if extra.cells {
        runtimes::cells_shim(shape.runtime.language)
    } else {
        runtimes::shim(shape)
    }
}

fn arguments(shape: &Shape, program: &Path, guard: &Guard, extra: &RoleNeeds) -> Vec<String> {
    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }
    let mut out = vec![text(guard.program.as_deref().unwrap_or(program))];
    out.extend(shape.runtime.arguments.iter().cloned());
    out.extend(guard.arguments.iter().map(|option| (*option).to_owned()));
    let calls = runtimes::calls_shim(shape.runtime.language).filter(|_| extra.stubs.is_some());
    let no_tools = calls.filter(|_| extra.inherited == 0);
    out.extend(calls.map(|(path, _)| path.to_owned()));
    out.extend(no_tools.map(|_| runtimes::NO_TOOLS.to_owned()));
    let shim = shim(shape, extra);
    out.extend(shim.map(|(path, _)| path.to_owned()));
    out.extend(shape.script.as_deref().map(text));
    out.extend(shape.entry_point.clone());
    out.extend(shape.args.iter().cloned());
    // A shim that is started before its call loads these while it waits.
    if let (Some(_), Some(ready)) = (shim, &shape.ready) {
        out.push(runtimes::READY.to_owned());
        out.extend(ready.imports.iter().cloned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::process::examine;
    use crate::policy::Variable;

    #[test]
    fn our_own_programs_obey_no_variable_of_a_manifest() {
        let mut shape = examine::bare(examine::ourselves());
        shape
            .env
            .insert("RUST_MIN_STACK".into(), Variable::Literal("1".into()));
        let set = |shape: &Shape| shape_lines(shape).contains(&"RUST_MIN_STACK=1".to_owned());
        assert!(!set(&shape));
        shape.runtime.program = Program::Path("/usr/bin/python3".into());
        assert!(set(&shape), "the control");
    }
}
