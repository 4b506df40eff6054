//! Which interpreter runs a tool.

use super::machine::Machine;
use super::shape::{Program, Runtime};
use super::verdict::{Answers, Narrower, Need, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::manifest::{Language, ToolPaths};
use crate::policy::grammar::{NamedRuntime, Policy};

const WITHOUT_WASI: &str = "this toolhost was built without WASI (its cargo feature `wasi`)";
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
    policy: &Policy,
    machine: &Machine,
    answers: &mut Answers,
) -> Option<Runtime> {
    let name = language.name();
    let named = policy.runtimes.get(&language);
    let runtime = match find(language, named, policy, machine) {
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
    let effective = format!("{program} {}", runtime.version);
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
