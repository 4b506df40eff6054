//! The host, built from the settings: registry, policies, machine, executors, service.

use super::refusal::{Exit, Refusal};
use super::settings::{BrokerServices, Settings};
use super::{process, words};
use crate::base::files;
use crate::base::text;
use crate::executor::method::Methods;
use crate::executor::process::{Launchers, Scripts};
use crate::executor::remote::Remote;
#[cfg(feature = "wasi")]
use crate::executor::wasm;
use crate::fault::{Fault, Kind};
use crate::sandbox::identity;
use crate::service::alerts::Alert;
use crate::service::runlog;
use crate::service::search::Embedder;
use crate::service::stops::StopFile;
use crate::service::{
    self, Artifacts, Collector, Components, Executors, Service, TraceContext, audit,
    readiness::{self, Readiness},
};
use crate::{executor, manifest, policy, registry, runtimes};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;

/// The builtin tools and everything below the folders of the settings.
pub fn registry(
    settings: &Settings,
    policies: &Arc<policy::Policies>,
    machine: &Arc<policy::Machine>,
) -> anyhow::Result<Arc<registry::Registry>> {
    let registry = registry::Registry::new();
    registry.set_policies(policies.clone(), machine.clone());
    load_ledger(settings, &registry)?;
    for source in [Arc::new(registry::Builtin), files(settings)?] {
        registry
            .add_source(source)
            .map_err(|why| Refusal::new(Exit::Host, why))?;
    }
    Ok(Arc::new(registry))
}

/// The tools in the folders of the settings.
fn files(settings: &Settings) -> anyhow::Result<Arc<dyn registry::Source>> {
    let files = registry::DirectToolLoader::new(settings.tools.clone(), settings.scripts.clone());
    let files = files.and_skills(settings.skills.clone());
    Ok(Arc::new(files.stricter(manifest_schema(settings)?)))
}

/// Tells the registry where tools could write in earlier calls: nothing there is loaded.
pub fn load_ledger(settings: &Settings, registry: &registry::Registry) -> anyhow::Result<()> {
    let ledger = ledger(settings).map_err(|why| Refusal::new(Exit::Host, why))?;
    registry.add_earlier_writes(&ledger);
    Ok(())
}

pub fn ledger(settings: &Settings) -> Result<policy::WritablePaths, String> {
    let Some(log) = &settings.audit_log else {
        return Ok(policy::WritablePaths::default());
    };
    let fix = "correct that, or name another log with --audit-log (it will not know what tools \
        wrote before)";
    service::ledger::read(log).map_err(|fault: Fault| {
        format!(
            "{}; {fix}",
            text::printable(fault.person.as_deref().unwrap_or(&fault.message))
        )
    })
}

/// The stricter schema of the settings. If it cannot be used the host does not start: its rules
/// would be missing.
pub fn manifest_schema(settings: &Settings) -> anyhow::Result<Option<manifest::schema::Schema>> {
    let Some(file) = &settings.config.manifest_schema else {
        return Ok(None);
    };
    let refuse = |why: String| {
        Refusal::new(
            Exit::Host,
            format!("manifest_schema {}: {why}", text::path(file)),
        )
    };
    let text = super::settings::guarded_text(file).map_err(refuse)?;
    let document = crate::base::json::parse(text.as_bytes(), crate::base::json::Dialect::Strict);
    let document = document.map_err(|bad| refuse(format!("line {}: {}", bad.line, bad.message)))?;
    let schema = manifest::schema::Schema::compile(&document.value)
        .map_err(|fault| refuse(format!("{}: {}", fault.pointer, fault.message)))?;
    Ok(Some(schema))
}

/// The operator's policies. If one cannot be read the host does not start: a missing rule must not
/// widen anything.
pub fn policies(settings: &Settings) -> anyhow::Result<Arc<policy::Policies>> {
    let mut loaded = match &settings.policies {
        Some(path) => loaded_policies(settings, path)?,
        None => policy::Policies::built_in(),
    };
    protect(settings, &mut loaded);
    Ok(Arc::new(loaded))
}

/// Keeps tools from the files of this host.
pub fn protect(settings: &Settings, policies: &mut policy::Policies) {
    policies.protect(protected_files(settings));
    policies.set_records_folder(
        settings
            .audit_log
            .as_deref()
            .map(|log| files::resolved(service::audit::segments::folder(log))),
    );
}

/// Files that this host obeys, runs or records, also those that are not there yet: no policy lets a
/// tool write them.
fn protected_files(settings: &Settings) -> impl Iterator<Item = PathBuf> {
    let log = settings.audit_log.clone();
    let records = [
        audit::CONFINEMENTS,
        audit::BEGUN,
        service::ledger::LEDGER,
        service::background::FILE,
        service::artifacts::FOLDER,
        service::EARLY_ENDS,
        service::stops::FILE,
        service::source_orders::FILE,
        registry::APPROVED,
    ]
    .map(|name| {
        log.as_deref()
            .and_then(Path::parent)
            .map(|folder| folder.join(name))
    })
    .into_iter()
    .flatten();
    // Compiled modules, and what was found out about interpreters.
    let caches = files::cache_folder(|name| std::env::var_os(name));
    let policies = settings
        .policies
        .clone()
        .or_else(|| Some(settings.root.join(super::settings::POLICIES)));
    let one = [
        settings.config.manifest_schema.clone(),
        log.clone(),
        caches,
        settings.packages.clone(),
        settings.log_heads.clone(),
        policies,
    ];
    let mut found: Vec<PathBuf> = records
        .chain(one.into_iter().flatten())
        .chain(std::env::current_exe())
        .collect();
    found.extend(settings.configs.clone());
    let programs = settings.config.programs();
    let words = programs.flat_map(|(_, command)| command.iter().map(PathBuf::from));
    found.extend(words.filter(|word| word.is_absolute()));
    found.extend(settings.indexes.iter().flat_map(|index| index.files()));
    found.extend(
        settings
            .tool_services
            .iter()
            .flat_map(|called| called.files.clone()),
    );
    found.extend(
        settings
            .brokers
            .iter()
            .flat_map(|broker| broker.files.clone()),
    );
    found.extend(
        settings
            .config
            .http
            .clone()
            .files()
            .map(|path| path.clone()),
    );
    let model = settings.servers.model.iter();
    found.extend(model.flat_map(|(_, files)| files.clone()));
    let embeddings = settings.servers.embeddings.iter();
    found.extend(embeddings.flat_map(|(_, files)| files.clone()));
    found.push(PathBuf::from(identity::LOCKS));
    found.into_iter().flat_map(|path| {
        let real = Some(files::resolved(&path)).filter(|real| *real != path);
        std::iter::once(path).chain(real)
    })
}

fn loaded_policies(settings: &Settings, path: &Path) -> anyhow::Result<policy::Policies> {
    let (policies, problems) = read_policies(settings, path);
    if problems.is_empty() {
        return Ok(policies);
    }
    let lines: String = problems
        .iter()
        .map(|problem| format!("\n  {problem}"))
        .collect();
    let words = "the policies cannot be used; nothing runs until this is corrected";
    Err(Refusal::new(Exit::Policy, format!("{words}{lines}")).into())
}

/// Prints which policies have a fault: the tools they name do not run.
fn say_faults(policies: &policy::Policies) {
    for fault in policies.faults() {
        words::note(&format!(
            "toolhost: the tools of this policy do not run until it is corrected: {fault}"
        ));
    }
}

/// The policies at a path that can be read, and the faults of the others. If a tool could have
/// written the path, that is a fault, too.
pub fn read_policies(
    settings: &Settings,
    path: &Path,
) -> (policy::Policies, Vec<policy::FileProblem>) {
    let message = match ledger(settings).map(|written| written.writer_on_path(path)) {
        Ok(None) => return policy::Policies::look(path, &settings.root),
        Ok(Some((_, who))) => {
            format!("lies where {who}, and a tool cannot make policies: move it elsewhere")
        }
        Err(why) => why,
    };
    let problem = manifest::Problem::new(
        manifest::Severity::Error,
        manifest::Code::Security,
        "",
        message,
    );
    (
        policy::Policies::built_in(),
        vec![policy::FileProblem {
            path: path.to_path_buf(),
            problem,
        }],
    )
}

/// What the operator disabled.
pub fn stops(settings: &Settings) -> Result<Arc<policy::Stops>, Refusal> {
    let log = audit_log(settings).ok();
    let stops = log.map(|log| StopFile::beside(&log).now()).transpose()?;
    Ok(stops.unwrap_or_default())
}

/// What the verbs that run nothing need: tools, policies and facts of the machine.
pub struct Tools {
    pub snapshot: Arc<registry::Snapshot>,
    /// With the files of the snapshot protected, as for a call.
    pub policies: Arc<policy::Policies>,
    pub machine: Arc<policy::Machine>,
    pub launchers: Arc<Launchers>,
}

impl Tools {
    pub fn load(settings: &Settings) -> anyhow::Result<Tools> {
        let policies = policies(settings)?;
        say_faults(&policies);
        let launchers = Arc::new(launchers(settings)?);
        let machine = Arc::new(machine(settings, &policies, launchers.sandbox.counted()));
        let snapshot = registry(settings, &policies, &machine)?.snapshot();
        let mut policies = snapshot.protect(&policies);
        policies.stops = stops(settings)?;
        let policies = Arc::new(policies);
        Ok(Tools {
            snapshot,
            policies,
            machine,
            launchers,
        })
    }

    pub fn tools(&self) -> Vec<Arc<registry::Tool>> {
        self.snapshot.list(&registry::Filter::default())
    }

    /// The same tools under other policies.
    pub fn under(&self, policies: policy::Policies) -> Tools {
        Tools {
            snapshot: self.snapshot.clone(),
            policies: Arc::new(policies),
            machine: self.machine.clone(),
            launchers: self.launchers.clone(),
        }
    }

    pub fn decide(&self, tool: &registry::Tool) -> policy::Decision {
        service::requirements::decide(tool, &self.snapshot, &self.policies, &self.machine)
    }

    /// The decision. If every call would be refused, the fault that says why replaces its shape.
    pub fn foreseen(
        &self,
        tool: &registry::Tool,
        policies: &policy::Policies,
        machine: &policy::Machine,
    ) -> policy::Decision {
        let mut decision = service::requirements::decide(tool, &self.snapshot, policies, machine);
        let ready = Readiness::shipped(tool, &decision);
        readiness::foresee(tool, &mut decision, ready, None, &self.snapshot.written);
        decision
    }

    /// What the code of a tool reaches through others.
    pub fn reached(
        &self,
        decision: &policy::Decision,
        policies: &policy::Policies,
        machine: &policy::Machine,
    ) -> Vec<String> {
        if decision.grants.calls.is_empty() {
            return Vec::new();
        }
        let tools = self.tools();
        let decide = |tool: &Arc<registry::Tool>| {
            service::requirements::decide(tool, &self.snapshot, policies, machine)
        };
        policy::audit::reached(decision, &tools.iter().map(decide).collect::<Vec<_>>())
    }
}

/// What this machine has: interpreters on PATH or named by a policy, and what the operator says it
/// offers.
pub fn machine(settings: &Settings, policies: &policy::Policies, cgroup: bool) -> policy::Machine {
    let mut found = discovered(settings);
    for (_, path) in policies.named_runtimes() {
        runtimes::relies_on(&path, &mut found.relied_on);
    }
    policy::Machine {
        named_runtimes: named_runtimes(settings, policies),
        runtimes: found.runtimes,
        relied_on: found.relied_on,
        homes: homes(),
        environment: offered_variables(&settings.config.capabilities),
        declared: settings.config.capabilities.clone(),
        indexes: settings
            .indexes
            .iter()
            .map(|i| ((i.ecosystem, i.name.clone()), i.describe()))
            .collect(),
        brokers: brokers(settings),
        cgroup,
        ..policy::Machine::default()
    }
}

/// Over which broker each tool service is called.
fn brokers(settings: &Settings) -> BTreeMap<String, String> {
    settings
        .tool_services
        .iter()
        .flat_map(|BrokerServices { reached, .. }: &BrokerServices| {
            let broker = reached.terms.to_string();
            reached
                .services
                .iter()
                .map(move |service| (service.clone(), broker.clone()))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The home folders that `HOME` and the account name, which may differ. For root, whose tools write
/// as the owner of a folder, the homes of all users. Each is listed as written and with its links
/// resolved.
fn homes() -> BTreeSet<PathBuf> {
    let named = std::env::var_os("HOME").map(PathBuf::from);
    let account = nix::unistd::User::from_uid(nix::unistd::geteuid())
        .ok()
        .flatten()
        .map(|user| user.dir);
    let mut homes: BTreeSet<PathBuf> = named.into_iter().chain(account).collect();
    if identity::real_root() {
        // An account without a login may have any folder as its home (`/`, `/var/www`).
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = accounts
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>());
        let people = fields.filter(|f| {
            f.get(6).is_some_and(|shell| {
                !["nologin", "false", "sync"]
                    .iter()
                    .any(|no| shell.ends_with(no))
            })
        });
        homes.extend(people.filter_map(|f| f.get(5).map(PathBuf::from)));
        homes.extend(
            std::fs::read_dir("/home")
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
    }
    homes.retain(|home| home.is_absolute());
    let resolved: Vec<PathBuf> = homes.iter().map(|home| files::resolved(home)).collect();
    homes.extend(resolved);
    homes
}

/// The interpreters on PATH; none if the ledger of what tools could write cannot be read.
pub fn discovered(settings: &Settings) -> runtimes::Discovered {
    let search = std::env::var_os("PATH").unwrap_or_default();
    match off_limits(settings) {
        Ok(off_limits) => runtimes::discover(&search, &off_limits),
        Err(why) => runtimes::Discovered {
            notes: vec![why],
            ..runtimes::Discovered::default()
        },
    }
}

/// The variables that the operator offers to tools, as far as this process has them.
fn offered_variables(capabilities: &BTreeSet<String>) -> BTreeMap<String, policy::Variable> {
    let names = capabilities
        .iter()
        .filter_map(|word| word.strip_prefix("env:"));
    let texts = names.filter_map(|name| {
        Some((
            name.to_owned(),
            policy::Variable::Host(std::env::var(name).ok()?),
        ))
    });
    texts.collect()
}

pub fn named_runtimes(
    settings: &Settings,
    policies: &policy::Policies,
) -> BTreeMap<PathBuf, Result<policy::Runtime, String>> {
    let off_limits = off_limits(settings);
    let folders: Vec<_> = settings
        .scanned()
        .iter()
        .map(|it| files::resolved(it))
        .collect();
    // Those beside scripts are looked at with their tools.
    let named = policies.named_runtimes().into_iter().filter(|(_, path)| {
        let is_beside = policy::ENVIRONMENTS.iter().any(|name| {
            path.parent()
                .is_some_and(|bin| bin.ends_with(format!("{name}/bin")))
        });
        !(is_beside && folders.iter().any(|folder| path.starts_with(folder)))
    });
    let named = named.map(|(language, path)| {
        let runtime = off_limits.as_ref().map_err(String::clone);
        let runtime = runtime.and_then(|off_limits| runtimes::named(language, &path, off_limits));
        if let Err(why) = &runtime {
            let why = text::printable(why);
            tracing::warn!(target: "toolhost::host", "an interpreter named by a policy cannot be \
                used: {why}");
        }
        (path, runtime)
    });
    named.collect()
}

/// Where no interpreter is taken from: folders of tools, scripts and policies, and what tools could
/// ever write.
fn off_limits(settings: &Settings) -> Result<runtimes::OffLimits, String> {
    let mut folders = settings.scanned();
    folders.extend(settings.policies.clone());
    Ok(runtimes::OffLimits::new(&folders, ledger(settings)?))
}

/// The ways this host runs tools.
fn executors(
    settings: &Settings,
    launchers: &Arc<Launchers>,
    waits: Option<fn(&str)>,
) -> Executors {
    let scripts = Scripts::new(launchers.clone());
    Executors {
        ready: Some(scripts.ready().clone()),
        process: Some(Arc::new(scripts)),
        wasm: wasm_executor(launchers, waits),
        remote: Some(Arc::new(Remote::new(
            settings
                .tool_services
                .iter()
                .map(|called| called.reached.clone())
                .collect(),
        ))),
        methods: Arc::new(Methods::new()),
        extensions: BTreeMap::new(),
    }
}

/// Without the feature this executor is missing. The reports call every WASI tool unavailable.
#[cfg(not(feature = "wasi"))]
fn wasm_executor(_: &Arc<Launchers>, _: Option<fn(&str)>) -> Option<Arc<dyn executor::Executor>> {
    None
}

/// `None` where compiled code can be kept nowhere: wasm tools are then unavailable, and the log
/// says why.
#[cfg(feature = "wasi")]
fn wasm_executor(
    launchers: &Arc<Launchers>,
    waits: Option<fn(&str)>,
) -> Option<Arc<dyn executor::Executor>> {
    match wasm::Cache::usual(|name| std::env::var_os(name)) {
        Ok((cache, note)) => {
            note.iter().for_each(
                |note| tracing::info!(target: "toolhost::host", "{}", text::printable(note)),
            );
            let executor = wasm::Wasm::new(launchers.clone(), cache);
            Some(Arc::new(match waits {
                Some(tell) => executor.waiting(tell),
                None => executor,
            }))
        }
        Err(why) => {
            tracing::warn!(target: "toolhost::host", "wasm tools are unavailable: {}", text::printable(&why));
            None
        }
    }
}

/// The factory of launchers, which are this same binary.
pub fn launchers(settings: &Settings) -> anyhow::Result<Launchers> {
    let own = std::fs::File::open("/proc/self/exe").map_err(|e| {
        Refusal::new(
            Exit::Host,
            format!("this binary cannot be opened to start launchers: {e}"),
        )
    })?;
    let mut launchers = Launchers::new(own.into(), settings.tool_ids.clone());
    launchers.proxy.clone_from(&settings.config.proxy);
    if let Some(bytes) = settings.config.ready_bytes {
        launchers.waiting.max_bytes = bytes;
    }
    launchers.sandbox.slots = settings
        .config
        .running_calls
        .unwrap_or(service::MAX_RUNNING);
    Ok(launchers)
}

pub fn audit_log(settings: &Settings) -> anyhow::Result<audit::Log> {
    let path = settings.audit_log.clone().ok_or_else(|| {
        Refusal::new(
            Exit::Host,
            "this user has no home folder for the audit log; name a file with --audit-log",
        )
    })?;
    let log = audit::Log::with_retention(path, settings.audit_retention);
    let log = log.with_root(&settings.root);
    Ok(log.with_heads(settings.log_heads.clone()))
}

/// The settings for building packages. `waits`: a call waits for its build however long that takes.
pub fn packages(
    settings: &Settings,
    machine: &policy::Machine,
    waits: bool,
) -> service::packages::BuildSettings {
    let store = settings
        .packages
        .clone()
        .ok_or_else(|| "this user has no home folder for it".to_owned());
    let store =
        store.and_then(|path| {
            match settings.scanned().iter().find(|folder| {
                path.starts_with(folder) || path.starts_with(files::resolved(folder))
            }) {
                Some(folder) => Err(format!(
                    "{} lies in the tool folder {}",
                    path.display(),
                    folder.display()
                )),
                None => Ok(path),
            }
        });
    let node = machine.runtimes.get(&manifest::Language::Nodejs).cloned();
    let own = settings.clone();
    service::packages::BuildSettings {
        store,
        indexes: settings.indexes.clone(),
        npm: Arc::new(move || {
            let node = node.clone().ok_or_else(|| "no Node on PATH".to_owned())?;
            let search = std::env::var_os("PATH").unwrap_or_default();
            let npm = runtimes::npm(&node, &search, &off_limits(&own)?)?;
            Ok((node, npm))
        }),
        waits,
    }
}

/// Does a verb's work with a service of its own. If a signal comes first, returns the exit code for
/// that signal.
pub fn with_service<T>(
    settings: &Settings,
    waits: Option<fn(&str)>,
    work: impl AsyncFnOnce(&Arc<Service>) -> T,
) -> anyhow::Result<Result<T, ExitCode>> {
    start_verb(settings);
    let runtime = process::runtime()?;
    let done = runtime.block_on(async {
        let service = service_of_one_call(settings, launchers(settings)?, waits)?;
        let done = process::unless_stopped(work(&service)).await;
        service.close().await;
        // This process goes on with other servers.
        service.sessions.end_launchers();
        anyhow::Ok(done)
    });
    runtime.shutdown_timeout(process::SHUTDOWN_TIMEOUT);
    done
}

/// Makes a service that is ready for calls. `waits` is called when a call waits for a compiler.
pub fn service(
    settings: &Settings,
    launchers: Launchers,
    waits: Option<fn(&str)>,
) -> anyhow::Result<Arc<Service>> {
    let launchers = &Arc::new(launchers);
    let audit = audit_log(settings)?;
    let rules = rules(settings, launchers.sandbox.counted())?;
    let packages = packages(settings, &rules.machine, waits.is_some());
    let service = Service::new(Components {
        packages,
        registry: registry(settings, &rules.policies, &rules.machine)?,
        rules,
        executors: executors(settings, launchers, waits),
        artifacts: artifacts(settings),
        audit,
        scripts: settings.bases(),
        settings: service::Settings {
            max_running: launchers.sandbox.slots,
            program: words::program_at(&settings.root),
            ..service::Settings::default()
        },
    });
    start_traces(settings, &service);
    if let Some(embedder) = embedder(settings, &Handle::current())? {
        service.search.embed_by(embedder);
    }
    if let Some(alerts) = settings.config.alerts.clone() {
        if let Some(why) = alerts.fault() {
            tracing::error!(target: "toolhost::alert", "{why}");
        }
        service.audit.alerts().begin(alerts, service.ledger.clone());
    }
    Ok(service)
}

/// What makes embeddings for searches, if it is configured.
pub fn embedder(settings: &Settings, runtime: &Handle) -> anyhow::Result<Option<Embedder>> {
    let configured = settings.servers.embeddings.clone();
    let made = configured.map(|(settings, _)| Embedder::new(settings, runtime.clone()));
    made.transpose()
        .map_err(|why| anyhow::anyhow!("[search] model: {why}"))
}

/// The store of artifacts, beside the audit log.
fn artifacts(settings: &Settings) -> Artifacts {
    let folder = settings.audit_log.as_deref().and_then(Path::parent);
    let folder = folder.map(|folder| folder.join(service::artifacts::FOLDER));
    Artifacts::new(folder, settings.artifacts)
}

/// Makes a service for one call, which reads its files again after each wait.
pub fn service_of_one_call(
    settings: &Settings,
    launchers: Launchers,
    waits: Option<fn(&str)>,
) -> anyhow::Result<Arc<Service>> {
    let (settings, cgroup, service) = (
        settings.clone(),
        launchers.sandbox.counted(),
        service(settings, launchers, waits)?,
    );
    let read = move || -> anyhow::Result<_> {
        let rules = rules(&settings.again(), cgroup)?;
        let registry = registry(&settings, &rules.policies, &rules.machine)?;
        Ok((rules, registry))
    };
    service
        .catalog
        .set_reload(Arc::new(move || read().map_err(|why| unread(&why))));
    Ok(service)
}

fn unread(why: &anyhow::Error) -> Fault {
    let message =
        "This host's policies cannot be read: no tool runs until the operator corrects them.";
    Fault::new(Kind::SecurityError, message).person(why.to_string())
}

fn rules(settings: &Settings, cgroup: bool) -> anyhow::Result<service::Rules> {
    let policies = policies(settings)?;
    say_faults(&policies);
    let machine = Arc::new(machine(settings, &policies, cgroup));
    Ok(service::Rules { policies, machine })
}

/// Why tools and policies are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The operator requested it (SIGHUP), so the files as they are now apply.
    Requested,
    /// A file changed, perhaps in the middle of an edit.
    FileChanged,
}

/// Reads tools and policies again, for a server that runs. The configuration stays what it was at
/// the start.
pub fn reload(settings: &Settings, service: &Service, because: Reload) {
    let settings = &settings.again();
    // Another process may have run a tool since: what that tool could write is not loaded here
    // either.
    let read = load_ledger(settings, &service.catalog.registry)
        .and_then(|()| rules(settings, service.catalog.counted));
    let read = read.and_then(|rules| {
        let rules = service.catalog.check_replacement(rules);
        let rules = rules.map_err(anyhow::Error::msg)?;
        // An operator may have added a folder, or removed one.
        service.catalog.registry.replace_source(files(settings)?);
        Ok(rules)
    });
    if read.is_err() {
        service.audit.alerts().send(Alert::NotReloaded);
    }
    if let (Err(why), Reload::FileChanged) = (&read, because)
        && service.catalog.ready().is_ok()
    {
        let why = format!("the policies changed and cannot be read, so the old ones hold: {why:#}");
        words::fail(&format!("toolhost: reload: {why}"));
        let failed = service.catalog.keep_rules(why);
        return failed
            .iter()
            .for_each(|why| words::fail(&format!("toolhost: reload: {why}")));
    }
    let rules = read.map_err(|why| {
        words::fail(&format!("toolhost: reload: {why}"));
        unread(&why)
    });
    let obeyed = rules.is_ok();
    for why in service.catalog.reload(rules) {
        words::fail(&format!("toolhost: reload: {why}"));
    }
    if obeyed {
        let snapshot = service.catalog.registry.snapshot();
        let tools = snapshot.list(&registry::Filter::default()).len();
        let skipped = snapshot.skipped();
        let why = if skipped > 0 {
            " (`toolhost check` says why)"
        } else {
            ""
        };
        words::note(&format!(
            "toolhost: reloaded: {tools} tools, {skipped} files skipped{why}"
        ));
    }
}

/// Begins a verb that calls tools, which logs only what the settings ask for.
pub fn start_verb(settings: &Settings) {
    runlog::init(settings.log_style(LevelFilter::OFF), false);
}

/// Says that no manifest was found at all, and which folder was used as the root.
pub fn say_nothing_found(settings: &Settings, snapshot: &registry::Snapshot) {
    if let Some(why) = snapshot.nothing_found() {
        words::note(&format!("toolhost: {why}"));
        say_root(settings);
    }
}

/// Says that the current folder is used as the root, if none was named.
pub fn say_root(settings: &Settings) {
    if settings.root_is_assumed() {
        let root = text::path(&settings.root);
        words::note(&format!(
            "toolhost: the root is the current folder, {root}; --root DIR names another"
        ));
    }
}

/// Sends the spans of calls to the collector, if one is named. A collector that cannot be used
/// stops no call.
fn start_traces(settings: &Settings, service: &Service) {
    let Some(address) = &settings.traces else {
        return;
    };
    match Collector::at(address) {
        Ok(collector) => service.traces.begin(collector),
        Err(why) => {
            // The text before an `@` may be a password.
            let place = text::printable(address.rsplit('@').next().unwrap_or_default());
            words::note(&format!("toolhost: no traces are sent to {place}: {why}"));
        }
    }
}

/// The trace that the environment of this process names.
pub fn trace() -> Option<TraceContext> {
    let parent = std::env::var("TRACEPARENT").ok()?;
    TraceContext::parse(&parent, std::env::var("TRACESTATE").ok().as_deref())
}

/// The login of the user who runs this process.
pub fn login() -> String {
    let me = nix::unistd::getuid();
    let known = nix::unistd::User::from_uid(me).ok().flatten();
    known.map_or_else(|| me.to_string(), |user| user.name)
}
