//! Which interpreter runs a tool.

use super::machine::{Machine, Need};
use super::shape::{Program, Runtime};
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::layer::Layer;
use crate::manifest::Language;
use crate::policy::grammar::document::Origin;
use crate::policy::grammar::file::NamedRuntime;
use std::path::Path;

const WITHOUT_WASI: &str = "this toolhost was built without WASI (its cargo feature `wasi`)";

/// The interpreter of a language, by the policy if that names one; `Err`: why there is none.
pub fn runtime(
    language: Language,
    named: Option<&NamedRuntime>,
    policy: Origin<'_>,
    machine: &Machine,
) -> (Verdict, Result<Runtime, Need>) {
    let name = language.name();
    let layers = [Layer::View, Layer::Landlock];
    let found = match (language, named) {
        (Language::Wasm, _) if cfg!(feature = "wasi") => Ok(Runtime::ourselves("wasm-worker")),
        (Language::Wasm, _) => Err((WITHOUT_WASI.to_owned(), WITHOUT_WASI)),
        (_, Some(named)) => named_runtime(language, &named.path, machine).map_err(|why| {
            let place = policy.place(named.at);
            let reason = format!(
                "{} ({place}) cannot be used here: {why}",
                named.path.display()
            );
            (
                reason,
                "the interpreter that its policy names cannot be used here",
            )
        }),
        (_, None) => machine.runtimes.get(&language).cloned().ok_or_else(|| {
            let reason = format!(
                "{name} is not on PATH outside the tool folders: install it, or name one in a \
                policy under [runtimes]"
            );
            (reason, "not found on this host's PATH")
        }),
    };
    let runtime = match found {
        Ok(runtime) => runtime,
        Err((reason, words)) => {
            let need = Need::new(
                "/handler/language",
                format!("the runtime '{name}': {words}"),
            );
            return (
                Verdict::denied(
                    RequestKind::Runtime,
                    name,
                    Narrower::Machine,
                    reason,
                    &layers,
                ),
                Err(need),
            );
        }
    };
    let program = match &runtime.program {
        Program::Path(path) => path.display().to_string(),
        Program::Ourselves { role } => format!("toolhost ({role})"),
    };
    let verdict = Verdict::met(
        RequestKind::Runtime,
        name,
        format!("{program} {}", runtime.version),
        &layers,
    );
    let verdict = match named {
        Some(named) => {
            let rule = format!("{}: {}", policy.name, named.path.display());
            verdict.because(rule, &named.why, policy.place(named.at))
        }
        None => verdict.because(
            format!("found: {}", runtime.found),
            "the language the handler names",
            "machine",
        ),
    };
    (verdict, Ok(runtime))
}

fn named_runtime(language: Language, path: &Path, machine: &Machine) -> Result<Runtime, String> {
    let found = machine
        .named_runtimes
        .get(path)
        .ok_or("this path was not inspected at startup")?;
    let runtime = found.as_ref().map_err(String::clone)?;
    if runtime.language == language {
        Ok(runtime.clone())
    } else {
        Err(format!("it runs {}", runtime.language.name()))
    }
}
