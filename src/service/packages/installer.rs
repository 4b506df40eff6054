//! Runs pip or npm in the sandbox, each run recorded like a call: once with only the index in reach
//! and no package code running, once without a network. An installer gets no file of the tool and
//! no setting of this machine's user.

use super::need::{LineSink, Need, Published, program, unusable, use_built};
use crate::base::{lock, text};
use crate::executor::{self, Ending, Executor};
use crate::fault::{Fault, Kind};
use crate::manifest::{self, Manifest, ToolPaths};
use crate::packages::Index;
use crate::packages::installed::Vendored;
use crate::packages::store::{ENTRY, Layout};
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use crate::policy::{
    Access, Area, Confinement, Grant, Network, PerCall, Runtime, Shape, WritablePaths,
};
use crate::quantity::{GIB, Limit, MAX_TREE_BYTES, MIB};
use crate::service::arguments::Arguments;
use crate::service::audit::log::Log;
use crate::service::ledger::Ledger;
use crate::service::record::{CallRecord, RecordSinks, traffic};
use crate::service::redact::{Masked, RecordArguments};
use crate::service::redaction::Redaction;
use crate::service::report::CallResult;
use crate::service::request::{CallRequest, Caller, new_id};
use crate::service::traces::spans::CallSpan;
use crate::service::{denials, ledger, output, secrets};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The caller and the tool in the records of installers.
const CALLER: &str = "toolhost";
const TOOL: &str = "toolhost:packages";
/// Longest run, milliseconds.
const TIMEOUT_MS: u64 = 15 * 60 * 1000;
/// Last lines of an installer that a fault shows, and longest of them, characters.
const LAST_LINES: usize = 12;
const MAX_LINE_CHARS: usize = 300;
/// How often to check whether a connection was refused.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const PYTHON: &str = include_str!("install.py");
const NODE: &str = include_str!("install.cjs");
const LIST: &str = include_str!("list.py");
const FONTS: &str = include_str!("fonts.py");

/// What runs installers, and where that is recorded.
pub(super) struct InstallerHost {
    pub process: Option<Arc<dyn Executor>>,
    pub audit: Log,
    pub ledger: Arc<Ledger>,
}

pub(super) struct Installer<'a> {
    pub host: &'a InstallerHost,
    pub need: &'a Need,
    pub index: &'a Index,
    pub runtime: &'a Runtime,
    pub npm: Option<&'a Path>,
    /// The folder of the build. Its path is removed from what the installer prints.
    pub work: &'a Path,
    pub report: LineSink<'a>,
}

impl Installer<'_> {
    /// Fetches what the lock names. Returns when each file was published, if the rules need that
    /// and the index knows.
    pub async fn fetch(&self) -> Result<Published, Fault> {
        let ages = self.need.rules.min_age_days.is_some();
        let answer = self.run("fetch", ("ages", json!(ages))).await?;
        Ok(serde_json::from_value(answer["published"].clone()).unwrap_or_default())
    }

    /// Installs what was fetched into `built`. `shown`: where the packages will lie.
    pub async fn install(&self, shown: &Path) -> Result<(), Fault> {
        self.run("install", ("shown", json!(shown))).await.map(drop)
    }

    /// The distributions that the interpreter of the built environment finds, also in archives.
    pub async fn list(&self) -> Result<Vec<Vendored>, Fault> {
        let found =
            serde_json::from_value::<Vec<Vendored>>(self.run("list", ("into", Value::Null)).await?);
        let found =
            found.map_err(|_| failed("list", "the environment did not say what it holds"))?;
        Ok(found
            .into_iter()
            .filter_map(|found: Vendored| {
                let name = versions::name(Ecosystem::Python, &found.name)?;
                let version =
                    versions::version(Ecosystem::Python, &found.version).unwrap_or(found.version);
                Some(Vendored {
                    name,
                    version,
                    path: text::printable(&found.path),
                })
            })
            .collect())
    }

    /// The list of fonts that matplotlib makes when it is first imported: the name of its file, and
    /// its text. `None`: this matplotlib makes none.
    pub async fn font_list(&self) -> Result<Option<(String, String)>, Fault> {
        let answer = self.run("fonts", ("into", Value::Null)).await?;
        Ok(serde_json::from_value(answer).unwrap_or_default())
    }

    /// When the copies of packages that lie inside others were published, as far as the index
    /// knows.
    pub async fn ages(&self, copies: &[Vendored]) -> Result<Published, Fault> {
        let answer = self.run("ages", ("packages", json!(copies))).await?;
        Ok(serde_json::from_value(answer["published"].clone()).unwrap_or_default())
    }

    /// Resolves requirements to a lock, or translates the lock of another format that lies beside
    /// them. `before`: the latest moment at which a version may have been published.
    pub async fn resolve(&self, before: Option<String>) -> Result<String, Fault> {
        let what = if self.need.wanted.inputs.len() > 1 {
            "translate"
        } else {
            "resolve"
        };
        let answer = self.run(what, ("before", json!(before))).await?;
        let lock = answer["lock"]
            .as_str()
            .ok_or_else(|| failed(what, "the installer named no lock"))?;
        Ok(self.index.with_own_addresses(lock))
    }

    /// Runs the installer once; it may write one folder of the work. `more`: a further member of
    /// its order.
    async fn run(&self, what: &str, more: (&str, Value)) -> Result<Value, Fault> {
        let wanted = &self.need.wanted;
        let (into, from) = match what {
            "fetch" => ("fetched", None),
            "install" => ("built", Some(self.work.join("fetched"))),
            _ => ("resolving", None),
        };
        let into = self.work.join(into);
        let network = !["install", "translate", "list", "fonts"].contains(&what);
        // A client gets each message, so these do not grow with the packages.
        match what {
            "resolve" | "translate" => (self.report)("choosing the versions"),
            "fetch" => {
                let packages = wanted.packages.len();
                (self.report)(&format!("fetching and installing {packages} package(s)"));
            }
            _ => {}
        }
        std::fs::create_dir_all(&into).map_err(unusable)?;
        let mut order = json!({
            "do": what,
            "inputs": wanted.inputs,
            "packages": wanted.packages,
            "builds": self.need.rules.builds,
            "index": self.index.installer_url(),
            "ca": self.index.ca.as_ref().map(|(_, text)| text),
            "into": into,
            "from": from,
            "npm": self.npm,
        });
        order[more.0] = more.1;
        let mut shape = self.shape(&into, from.as_deref(), network);
        if ["list", "fonts"].contains(&what) {
            use_built(&mut shape, self.work.join(ENTRY), Ecosystem::Python);
        }
        let request = CallRequest::new(Caller::named(CALLER), TOOL, Arguments::Value(Value::Null));
        let sinks = RecordSinks::of_entry(CallSpan::none(), self.host.audit.open()?);
        let mut record = CallRecord::begin(new_id(), &request, sinks);
        let result = self.run_recorded(what, shape, order, &mut record).await;
        let ended = match &result {
            Ok(_) => CallResult::Output(executor::ToolAnswer::from(&Value::Null)),
            Err(fault) => CallResult::Failed(fault.clone()),
        };
        // A run that left no record counts as failed.
        record
            .end(ended)
            .report
            .outcome
            .into_fault()
            .map_or(result, Err)
    }

    /// What a run may touch: its interpreter, one folder to write, one to read, and the index or
    /// nothing.
    fn shape(&self, into: &Path, from: Option<&Path>, network: bool) -> Shape {
        let mut runtime = self.runtime.clone();
        // The folder of npm, from its program in `bin`.
        runtime.roots.extend(
            self.npm
                .and_then(|npm| Some(npm.parent()?.parent()?.to_path_buf())),
        );
        let mut shape = Shape::bare("toolhost:packages@1.0.0", runtime);
        fn grant(access: Access, path: &Path, tool: &str) -> Grant {
            Grant {
                access,
                area: Area::Tree(path.to_owned()),
                asked: "(packages)".to_owned(),
                rule: "packages".to_owned(),
                why: format!("packages of {tool}"),
            }
        }
        shape
            .grants
            .push(grant(Access::Write, into, &self.need.tool));
        shape
            .grants
            .extend(from.map(|from| grant(Access::Read, from, &self.need.tool)));
        if network {
            shape.network = Network::Hosts(self.index.hosts.clone());
            shape.secrets = self.index.credential.iter().cloned().collect();
        }
        for (limit, most) in [
            (Limit::TimeoutMs, TIMEOUT_MS),
            (Limit::CpuMs, 4 * TIMEOUT_MS),
            (Limit::MemoryBytes, 4 * GIB),
            (Limit::Processes, 256),
            (Limit::OpenFiles, 4096),
            (Limit::FileBytes, 2 * GIB),
            (Limit::WrittenBytes, 8 * GIB),
            (Limit::WrittenFiles, 200_000),
            (Limit::InputBytes, 64 * MIB),
            (Limit::OutputBytes, 64 * MIB),
            (Limit::LogBytes, MIB),
            (Limit::ReceivedBytes, 4 * GIB),
        ] {
            shape.limits.set(limit, most);
        }
        shape
    }

    /// What an entry is made of: a virtual environment of which the host makes all but the
    /// packages, or a folder.
    pub fn layout(&self) -> Result<Layout, Fault> {
        if self.need.wanted.ecosystem == Ecosystem::Node {
            let from = "built/project/node_modules".into();
            let site = "node_modules".to_owned();
            return Ok(Layout {
                from,
                site,
                environment: None,
            });
        }
        let program = program(self.runtime)?;
        let version = &self.runtime.version;
        let [major, minor, ..] = version.split('.').collect::<Vec<_>>()[..] else {
            let why = format!("its version is {}", text::printable(version));
            return Err(Fault::new(
                Kind::DependencyError,
                "the version of the interpreter is not known",
            )
            .person(why));
        };
        let site = format!("lib/python{major}.{minor}/site-packages");
        let home = program.parent().unwrap_or(Path::new("/")).display();
        let text =
            format!("home = {home}\ninclude-system-site-packages = false\nversion = {version}\n");
        Ok(Layout {
            from: "built/site".into(),
            site,
            environment: Some((text, program)),
        })
    }

    async fn run_recorded(
        &self,
        what: &str,
        shape: Shape,
        order: Value,
        record: &mut CallRecord,
    ) -> Result<Value, Fault> {
        let audit = &self.host.audit;
        let mut redaction = Redaction::default();
        redaction.take(Masked {
            shown: RecordArguments::Tree(json!({"run": what, "tool": self.need.tool})),
            ..Masked::default()
        });
        record.redacts(&Arc::new(redaction.clone()));
        let process = self.host.process.as_ref().ok_or_else(|| {
            Fault::new(
                Kind::CapabilityError,
                "this host runs no scripts, and so no installer of packages",
            )
        })?;
        let source = match self.need.wanted.ecosystem {
            Ecosystem::Python if what == "list" => LIST,
            Ecosystem::Python if what == "fonts" => FONTS,
            Ecosystem::Python => PYTHON,
            Ecosystem::Node => NODE,
        };
        let per_call = PerCall {
            timeout_ms: TIMEOUT_MS,
            source: Some(source.to_owned()),
            ..PerCall::default()
        };
        let mut confinement = Confinement {
            shape: Arc::new(shape),
            per_call,
        };
        // What tools may write now is compared when the configuration is read: these files are the
        // host's own.
        let trusted: Vec<PathBuf> = self.index.files().collect();
        ledger::check_unwritten(
            trusted.iter().map(PathBuf::as_path),
            &self.host.ledger,
            &WritablePaths::default(),
        )?;
        let within = Duration::from_secs(10);
        secrets::provide(&mut confinement, CALLER, within, &mut redaction).await?;
        redaction.hide_variables(&confinement.shape);
        let redaction = Arc::new(redaction);
        record.redacts(&redaction);
        let digest = confinement.shape.digest();
        audit.keep(&confinement.shape, &digest)?;
        record.confined(&confinement, digest);
        let call = installer_call(order, confinement);
        // Without a ledger: what a build wrote is checked before anything uses it, and no other run
        // writes there.
        let context = executor::Context::new(record.id(), CALLER, traffic(CALLER));
        record.admitted(&context.traffic);
        let _cancels = context.cancel.clone().drop_guard();
        record.running()?;
        let ended = self
            .run_watched(process.as_ref(), &context, call, record)
            .await;
        let traffic = lock(&context.traffic).clone();
        let failed = |words: &str| {
            let words: Vec<String> = denials::words(&traffic)
                .into_iter()
                .chain([words.to_owned()])
                .collect();
            Fault {
                person: denials::joined(denials::network_hints(&traffic, &[])),
                ..failed(what, &words.join("\n"))
            }
        };
        let mut outcome = ended?;
        let hidden = self.work.display().to_string();
        outcome
            .logs
            .iter_mut()
            .for_each(|line| *line = line.replace(&hidden, ""));
        redaction.apply(&mut outcome);
        record.observed(&mut outcome);
        let logs = &outcome.logs;
        match outcome.ending {
            Ending::Answered(answer) => {
                let tree = answer.read(false, |text| text.tree(MAX_TREE_BYTES)).await?;
                tree.map_err(|_| failed("its answer is too long"))
            }
            // Only a refused connection cancels it, which the message names already.
            Ending::Exited { .. }
            | Ending::Raised { .. }
            | Ending::Trapped { .. }
            | Ending::Cancelled => Err(failed(&last(logs))),
            ending => {
                let why = output::answer_of(ending, logs, &[])
                    .err()
                    .map_or_else(String::new, |fault| fault.message);
                Err(failed(&format!("{why}\n{}", last(logs))))
            }
        }
    }

    /// One run. It is cancelled when a connection is refused.
    async fn run_watched(
        &self,
        process: &dyn Executor,
        context: &executor::Context,
        call: executor::Call,
        record: &mut CallRecord,
    ) -> Result<executor::Outcome, Fault> {
        let (events, mut heard) = executor::channel(context.deadline.clone());
        let mut refused = false;
        let mut looks = tokio::time::interval(POLL_INTERVAL);
        let ended = {
            let mut running = process.run(context, call, &events);
            loop {
                tokio::select! {
                    // An installer would try again for minutes: it learns that a connection was
                    // reset, and not why.
                    _ = looks.tick(), if !refused => {
                        refused = lock(&context.traffic).events.iter().any(|event| event.refused.is_some());
                        if refused {
                            context.cancel.cancel();
                        }
                    }
                    // Its lines stand in the outcome, for a failure.
                    Some(_) = heard.next_event() => {}
                    ended = &mut running => break ended,
                }
            }
        };
        record.ended(&ended);
        ended
    }
}

fn installer_call(order: Value, confinement: Confinement) -> executor::Call {
    executor::Call {
        manifest: Arc::clone(&NO_MANIFEST),
        site: ToolPaths {
            manifest: PathBuf::new(),
            base: PathBuf::new(),
            script: None,
            folder: "/tmp".into(),
            links: Vec::new(),
        },
        input: order,
        confinement: Some(confinement),
        service: None,
        output_bytes: u64::MAX,
        session: None,
        environment: None,
    }
}

/// The last lines of a log.
fn last(logs: &[String]) -> String {
    let lines = logs.iter().skip(logs.len().saturating_sub(LAST_LINES));
    lines
        .map(|line| text::printable(&text::head(line, MAX_LINE_CHARS)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn failed(what: &str, why: &str) -> Fault {
    let message = match what {
        "fetch" => "this tool's packages could not be fetched, so nothing was run",
        "resolve" | "translate" => {
            "this tool's requirements could not be resolved, so nothing was run"
        }
        _ => "this tool's packages could not be installed, so nothing was run",
    };
    Fault::new(Kind::DependencyError, message).details(why.trim().to_owned())
}

/// A placeholder: the executor of scripts does not read the manifest.
static NO_MANIFEST: LazyLock<Arc<Manifest>> = LazyLock::new(|| {
    let version = "1.0.0";
    let handler = json!({ "type": "definition-only" });
    let words = json!({ "toolId": TOOL, "displayName": TOOL, "description": TOOL, "version": version, "handler": handler });
    Arc::new(
        manifest::read(words.to_string().as_bytes())
            .expect("a manifest")
            .0,
    )
});
