//! This machine as decisions see it, and which interpreter runs a tool.

use super::confinement::{Program, Runtime, Variable};
use super::grantable::Origin;
use super::verdict::{Narrower, RequestKind, Verdict, layer};
use super::versions::Ecosystem;
use super::writable::MachinePlaces;
use crate::base::place::Placed;
use crate::manifest::{At, Language};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Plain facts of this machine, found by `runtimes` and `sandbox::probe`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub runtimes: BTreeMap<Language, Runtime>,
    /// The interpreters that policies name (`Policies::named_runtimes`), by their path, or why one
    /// cannot be used.
    pub named_runtimes: BTreeMap<PathBuf, Result<Runtime, String>>,
    /// Paths that the search for interpreters relies on, each with the reason in words: no tool
    /// writes there.
    pub relied_on: BTreeMap<PathBuf, String>,
    /// The homes of the user that runs this host, as named and with links resolved; if that is
    /// root, of all users.
    pub homes: BTreeSet<PathBuf>,
    /// The variables that this host offers to tools (`env:NAME`) and has set, by name.
    pub environment: BTreeMap<String, Variable>,
    pub declared: BTreeSet<String>,
    /// The indexes that the host's configuration names, and where each leads, in words.
    pub indexes: BTreeMap<(Ecosystem, String), String>,
    /// The broker of each service, in words. The keys are ids of services, `namespace.*` and `*`.
    pub brokers: BTreeMap<String, String>,
    /// True where memory, CPU and processes are counted by a cgroup.
    pub cgroup: bool,
    /// Made of the paths above.
    pub places: Placed<MachinePlaces>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NamedRuntime {
    pub path: PathBuf,
    pub why: String,
    #[serde(skip)]
    pub at: At,
}

const WITHOUT_WASI: &str = "this toolhost was built without WASI (its cargo feature `wasi`)";

/// The interpreter of a language, by the policy if that names one; `Err`: why there is none.
pub(super) fn runtime(
    language: Language,
    named: Option<&NamedRuntime>,
    policy: Origin<'_>,
    machine: &Machine,
) -> (Verdict, Result<Runtime, Need>) {
    let name = language.name();
    let layers = [layer::VIEW, layer::LANDLOCK];
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

/// What a tool needs and no grant can give it on this host. Any caller may read the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The words after "it needs".
    pub words: String,
    /// JSON pointer of the request in the manifest; empty where no field of it asks.
    pub pointer: String,
    /// The manifest is wrong (it names something unknown, say), rather than this machine or version
    /// lacking something.
    pub mistake: bool,
    /// Policy requires it.
    pub by_policy: bool,
}

impl Need {
    pub fn new(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            words: words.into(),
            pointer: pointer.into(),
            mistake: false,
            by_policy: false,
        }
    }

    pub fn by_policy(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            by_policy: true,
            ..Need::new(pointer, words)
        }
    }

    pub fn mistaken(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need {
            mistake: true,
            ..Need::new(pointer, words)
        }
    }
}

/// Lets `join` work on a list of needs.
impl std::borrow::Borrow<str> for Need {
    fn borrow(&self) -> &str {
        &self.words
    }
}
