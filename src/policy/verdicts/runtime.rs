//! Which interpreter runs a tool.

use super::machine::Machine;
use super::shape::{Program, Runtime};
use super::verdict::{Answers, Narrower, Need, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::manifest::{Language, ToolPaths};
use crate::policy::grammar::{Ecosystem, NamedRuntime, Policy};
use std::path::{Path, PathBuf};

const WITHOUT_WASI: &str = "this toolhost was built without WASI (its cargo feature `wasi`)";
/// How a virtual environment beside a script is called.
pub const ENVIRONMENTS: [&str; 2] = [".venv", "venv"];
const LAYERS: [Layer; 2] = [Layer::View, Layer::Landlock];

/// Why a language has no interpreter here.
struct Missing {
    reason: String,
    /// For callers, too.
    words: &'static str,
}

/// The interpreter of a language, by the policy if that names one.
pub fn runtime_of(
    language: Language,
    site: &ToolPaths,
    policy: &Policy,
    machine: &Machine,
    answers: &mut Answers,
) -> Option<Runtime> {
    let name = language.name();
    let named = policy.runtimes.get(&language);
    let beside = environment_beside(site, policy).filter(|_| language == Language::Python);
    let found = match &beside {
        Some(environment) => with_environment(environment, policy, machine),
        None => find(language, named, policy, machine),
    };
    let runtime = match found {
        Ok(runtime) => runtime,
        Err(Missing { reason, words }) => {
            let words = format!("the runtime '{name}': {words}");
            answers.lacks.push(Need::new("/handler/language", words));
            let narrower = Narrower::Machine;
            let verdict = Verdict::denied(RequestKind::Runtime, name, narrower, reason, &LAYERS);
            answers.verdicts.push(verdict);
            return None;
        }
    };
    let program = match &runtime.program {
        Program::Path(path) => path.display().to_string(),
        Program::Ourselves { role } => format!("toolhost ({role})"),
    };
    let packages = match (&runtime.environment, &beside) {
        (Some(_), _) => {
            ", with the virtual environment beside the script: packages of the author, not checked"
        }
        (None, Some(_)) => {
            ", without the virtual environment beside the script: it is of another Python"
        }
        (None, None) => "",
    };
    let effective = format!("{program} {}{packages}", runtime.version);
    let verdict = Verdict::met(RequestKind::Runtime, name, effective, &LAYERS);
    answers.verdicts.push(match named {
        Some(named) => {
            let rule = format!("{}: {}", policy.name, named.path.display());
            verdict.because(rule, &named.why, policy.place(named.at))
        }
        None => {
            let rule = format!("found: {}", runtime.found);
            verdict.because(rule, "the language the handler names", "machine")
        }
    });
    Some(runtime)
}

/// The virtual environment in the tool's own folder, which a policy names, or which counts because
/// the policy names neither an interpreter nor packages. Nothing of it is read or run here.
fn environment_beside(site: &ToolPaths, policy: &Policy) -> Option<PathBuf> {
    let named = policy.runtimes.get(&Language::Python);
    let counts = |folder: &PathBuf| match named {
        Some(named) => named.path.parent() == Some(&folder.join("bin")),
        None => folder.join("pyvenv.cfg").is_file(),
    };
    let is_own = site.manifest.parent().is_some() && !site.is_guest() && site.folder != site.base;
    let has_packages = policy.packages.contains_key(&Ecosystem::Python);
    ENVIRONMENTS
        .map(|name| site.folder.join(name))
        .into_iter()
        .find(counts)
        .filter(|_| is_own && (named.is_some() || !has_packages))
}

/// The machine's own interpreter, which finds the packages of this environment.
fn with_environment(
    environment: &Path,
    policy: &Policy,
    machine: &Machine,
) -> Result<Runtime, Missing> {
    let named = policy.runtimes.get(&Language::Python);
    let runtime = find(Language::Python, None, policy, machine)?;
    let minor: Vec<&str> = runtime.version.split('.').take(2).collect();
    let packages = environment.join(format!("lib/python{}", minor.join(".")));
    match named {
        Some(_) if !packages.is_dir() => Err(Missing {
            reason: format!(
                "{} was made for another Python than {}, which runs here: make it again",
                environment.display(),
                runtime.version
            ),
            words: "the virtual environment beside the script is of another Python",
        }),
        named => Ok(Runtime {
            environment: packages.is_dir().then(|| environment.to_owned()),
            found: named.map_or(runtime.found, |_| "policy".to_owned()),
            ..runtime
        }),
    }
}

fn find(
    language: Language,
    named: Option<&NamedRuntime>,
    policy: &Policy,
    machine: &Machine,
) -> Result<Runtime, Missing> {
    if language == Language::Wasm {
        return if cfg!(feature = "wasi") {
            Ok(Runtime::ourselves("wasm-worker"))
        } else {
            Err(Missing {
                reason: WITHOUT_WASI.to_owned(),
                words: WITHOUT_WASI,
            })
        };
    }
    if let Some(named) = named {
        return named_runtime(language, named, machine).map_err(|why| Missing {
            reason: format!(
                "{} ({}) cannot be used here: {why}",
                named.path.display(),
                policy.place(named.at)
            ),
            words: "the interpreter that its policy names cannot be used here",
        });
    }
    let found = machine.runtimes.get(&language).cloned();
    found.ok_or_else(|| Missing {
        reason: format!(
            "{} is not on PATH outside the tool folders: install it, or name one in a \
            policy under [runtimes]",
            language.name()
        ),
        words: "not found on this host's PATH",
    })
}

/// TypeScript needs a Node that strips types by itself (nodejs.org/api/typescript.html, "Type
/// stripping").
pub fn missing_types(runtime: &Runtime, site: &ToolPaths) -> Option<Need> {
    let script = site.script.as_deref()?.to_str()?;
    let is_typescript = Language::of_file_name(script) == [Language::Bun];
    if runtime.language != Language::Nodejs || !is_typescript {
        return None;
    }
    let version = semver::Version::parse(runtime.version.trim_start_matches('v'));
    let strips =
        version.is_ok_and(|v| (v.major, v.minor) >= (23, 6) || (v.major == 22 && v.minor >= 18));
    (!strips).then(|| {
        let words = format!(
            "Node 22.18, 23.6 or later (here {}), or \"language\": \"bun\", to run TypeScript",
            runtime.version
        );
        Need::new("/handler/language", words)
    })
}

fn named_runtime(
    language: Language,
    named: &NamedRuntime,
    machine: &Machine,
) -> Result<Runtime, String> {
    let found = machine
        .named_runtimes
        .get(&named.path)
        .ok_or("this path was not inspected at startup")?;
    let runtime = found.as_ref().map_err(String::clone)?;
    let is_bun = language == Language::Nodejs && runtime.language == Language::Bun;
    if runtime.language == language || is_bun {
        Ok(runtime.clone())
    } else {
        Err(format!("it runs {}", runtime.language.name()))
    }
}
