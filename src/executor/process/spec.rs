//! From a shape to what the sandbox runs: its `Spec`.

use super::grants;
use crate::base::mask::Hidden;
use crate::manifest::Language;
use crate::policy::{Program, Shape};
use crate::quantity::Limit;
use crate::runtimes::{self, Guard};
use crate::sandbox::{self, Executable, Spec, environment, probe, role_name};
use std::path::Path;

/// What a launcher needs beyond the shape: its principal, and what our own roles need.
#[derive(Clone, Debug, Default)]
pub struct RoleNeeds {
    /// Whose calls the launcher serves: no other principal's calls get it, since its share of the
    /// CPU is theirs.
    pub principal: String,
    pub memory: u64,
    pub processes: u64,
    pub outlives_calls: bool,
    pub keeps_fd3: bool,
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
    }
}

/// What the sandbox runs for this shape.
pub fn spec(shape: &Shape, resolved: grants::ResolvedGrants, extra: &RoleNeeds) -> Spec {
    let language = shape.runtime.language;
    let guard = runtimes::guard(shape);
    let (executable, arguments) = match (&shape.runtime.program, &extra.role) {
        (Program::Path(path), None) => (
            Executable::Path(path.clone()),
            arguments(shape, path, &guard),
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
    if shape.entry_point.is_some()
        && let (Some(text), Some(path)) = (
            runtimes::shim_source(language),
            runtimes::shim_path(language),
        )
    {
        let name = path.rsplit('/').next().unwrap_or(path);
        files.push((name.to_owned(), text.to_owned()));
    }
    if !resolved.authorities.is_empty() {
        files.extend(authorities(resolved.authorities, &mut variables));
    }
    let built = shape.built.iter().filter_map(|built| built.link.clone());
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
            keeps_third: extra.keeps_fd3,
            lasting: extra.outlives_calls,
        },
        roots: shape.runtime.roots.clone(),
        mounts: resolved.mounts,
        stages: resolved.stages,
        masks: resolved.masks,
        links: built.chain(guard.links).collect(),
        files,
        variables: Hidden(variables),
        network: (!shape.network.hosts().is_empty()).then(|| shape.network.ports()),
        local_sockets: shape.local_sockets,
        limits,
        principal: extra.principal.clone(),
        recorded: shape.observe && extra.role.is_none(),
    }
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

fn arguments(shape: &Shape, program: &Path, guard: &Guard) -> Vec<String> {
    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }
    let mut out = vec![text(guard.program.as_deref().unwrap_or(program))];
    out.extend(shape.runtime.arguments.iter().cloned());
    out.extend(guard.arguments.iter().map(|option| (*option).to_owned()));
    match (&shape.script, &shape.entry_point) {
        (Some(script), Some(entry)) => {
            out.extend(runtimes::shim_path(shape.runtime.language).map(str::to_owned));
            out.push(text(script));
            out.push(entry.clone());
        }
        (Some(script), None) => out.push(text(script)),
        (None, _) => {}
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
