//! Builds package environments: in the sandbox, under limits of their own, one build for all calls
//! that need the same. A build continues when its callers leave.

use super::installer::{Installer, InstallerHost};
use super::need::{LineSink, Need, Published, program, unusable, use_built};
use crate::base::files::{self, Lock};
use crate::base::semaphore::FairSemaphore;
use crate::base::single_flight::{NoResult, SingleFlight};
use crate::base::{lock, text};
use crate::executor::Executor;
use crate::fault::{Fault, Kind};
use crate::packages::installed::Vendored;
use crate::packages::store::{self, BuildInfo, EnvironmentLease, Examined, Store};
use crate::packages::tree::TreeError;
use crate::packages::{self, Index, PackageRequirements};
use crate::policy::packages::{Ecosystem, Package};
use crate::policy::versions::are_same;
use crate::policy::{self, Runtime, Shape};
use crate::service::audit::log::Log;
use crate::service::ledger::Ledger;
use jiff::Timestamp;
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::broadcast;

/// The layout of entries, and how they are made: another number builds all of them again.
const FORMAT: u32 = 6;
/// Installs at once, each for another tool; each may use all cores for a while. Installs with build
/// steps have slots of their own. An install that takes longer than `LONG_BUILD` returns its slot
/// and continues.
const BUILDERS: usize = 2;
const LONG_BUILD: Duration = Duration::from_secs(20);
/// Fetches at once: in all, and from one index, which may hang.
const FETCHERS: usize = 8;
const FETCHERS_PER_INDEX: usize = 4;
/// How long a failed build is not tried again.
const FAILURE_TTL: Duration = Duration::from_secs(60);
const MAX_FAILURES: usize = 1000;
/// Most builds under way or waiting.
const UNDER_WAY: usize = 32;
/// Lines of installers that are buffered for their readers.
const LINES: usize = 64;
/// How often to check whether another process is done with a key.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for another process: no build takes longer.
const MAX_WAIT: Duration = Duration::from_secs(3 * 15 * 60 + 60);

/// What a host needs to build packages. None of it is looked for or made before a tool requires
/// packages.
#[derive(Clone)]
pub struct BuildSettings {
    /// The folder of the store; `Err`: why there is none, for the person.
    pub store: Result<PathBuf, String>,
    pub indexes: Vec<Index>,
    /// Finds the runtime of npm, and the path of npm; `Err`: why there is none.
    pub npm: Arc<dyn Fn() -> Result<(Runtime, PathBuf), String> + Send + Sync>,
    /// A call waits for its build however long that takes.
    pub waits: bool,
}

impl BuildSettings {
    /// For a host without packages.
    pub fn none(why: &'static str) -> BuildSettings {
        let store = Err(why.to_owned());
        BuildSettings {
            store,
            indexes: Vec::new(),
            npm: Arc::new(|| Err("this host has no npm".to_owned())),
            waits: false,
        }
    }
}

pub struct Packages {
    pub(super) settings: BuildSettings,
    host: InstallerHost,
    store: Mutex<Option<Arc<Store>>>,
    npm: OnceLock<Result<(Runtime, PathBuf), String>>,
    building: SingleFlight<Result<(), Fault>>,
    fetchers: Arc<FairSemaphore>,
    /// For installs without build steps, and with them.
    builders: [Arc<FairSemaphore>; 2],
    /// One install for each tool.
    tools: Arc<FairSemaphore>,
    /// Builds that failed, by what they were for.
    failed: Mutex<HashMap<String, (Instant, Fault)>>,
    /// What installers print, each line with the key of its build.
    progress: broadcast::Sender<(String, String)>,
    /// Numbers of builds that succeeded, and that failed.
    ended: [AtomicU64; 2],
}

/// An environment.
pub struct Ready {
    pub lease: EnvironmentLease,
    /// The call had to wait for the build.
    pub built: bool,
}

impl Packages {
    pub fn new(
        settings: BuildSettings,
        process: Option<Arc<dyn Executor>>,
        audit: Log,
        ledger: Arc<Ledger>,
    ) -> Arc<Packages> {
        Arc::new(Packages {
            settings,
            host: InstallerHost {
                process,
                audit,
                ledger,
            },
            store: Mutex::default(),
            npm: OnceLock::new(),
            building: SingleFlight::new(UNDER_WAY),
            fetchers: FairSemaphore::new(FETCHERS, FETCHERS_PER_INDEX),
            builders: [
                FairSemaphore::new(BUILDERS, 1),
                FairSemaphore::new(BUILDERS, 1),
            ],
            tools: FairSemaphore::new(UNDER_WAY, 1),
            failed: Mutex::default(),
            progress: broadcast::Sender::new(LINES),
            ended: Default::default(),
        })
    }

    /// Builds under way, those that ended well, and those that failed.
    pub fn builds(&self) -> (usize, u64, u64) {
        let [built, failed] = self
            .ended
            .each_ref()
            .map(|many| many.load(Ordering::Relaxed));
        (self.building.running(), built, failed)
    }

    /// The store, opened when it is first needed.
    pub fn store(&self) -> Result<Arc<Store>, Fault> {
        let mut opened = lock(&self.store);
        if let Some(store) = &*opened {
            return Ok(Arc::clone(store));
        }
        let store = self
            .settings
            .store
            .as_ref()
            .map_err(String::clone)
            .and_then(|path| Store::open(path));
        let store = store.map_err(|why| {
            let message = "this host has no place for packages, so nothing was run";
            let person = format!("the store of packages: {}", text::printable(&why));
            Fault::new(Kind::CapabilityError, message).person(person)
        });
        Ok(Arc::clone(opened.insert(store?)))
    }

    /// The environment of a script. Waits for its build: as long as that takes, or `within` this
    /// time. `report` gets what the installer prints meanwhile.
    pub async fn ready(
        self: &Arc<Self>,
        need: Need,
        within: Duration,
        report: impl FnMut(String),
    ) -> Result<Ready, Fault> {
        if let Some(fault) = policy::unlocked(&need.wanted, &need.rules, &need.id()) {
            return Err(fault);
        }
        let key = self.key(&need)?;
        let found = self.hold(&key).await?;
        let built = found.is_none();
        let lease = match found {
            Some(lease) => lease,
            None => {
                self.join_build(&need, &key, within, report).await?;
                self.hold(&key).await?.ok_or_else(|| {
                    let message = "this tool's packages were built and then removed; try again";
                    Fault::new(Kind::ServiceError, message).retryable()
                })?
            }
        };
        // The policy may have changed since the build.
        check_built(&need, &lease.entry.about)?;
        Ok(Ready { lease, built })
    }

    /// Waits for the build of a key, and starts it if needed. Remembers a failure that another
    /// attempt would not fix.
    async fn join_build(
        self: &Arc<Self>,
        need: &Need,
        key: &str,
        within: Duration,
        mut report: impl FnMut(String),
    ) -> Result<(), Fault> {
        // A failure can come from the rules, so only tools with equal rules share it.
        let name = format!("{key} {}", json!(need.rules));
        if let Some((_, fault)) = lock(&self.failed)
            .get(&name)
            .filter(|(when, _)| when.elapsed() < FAILURE_TTL)
        {
            return Err(fault.clone());
        }
        let mut progress = self.progress.subscribe();
        let within = if self.settings.waits {
            Duration::MAX
        } else {
            within
        };
        let mut building = std::pin::pin!(tokio::time::timeout(
            within,
            self.building.join(&name, || {
                let this = Arc::clone(self);
                let key = key.to_owned();
                let need = need.clone();
                async move {
                    let built = this.build(&need, &key).await;
                    this.ended[usize::from(built.is_err())].fetch_add(1, Ordering::Relaxed);
                    built
                }
            })
        ));
        let built = loop {
            tokio::select! {
                built = &mut building => break built,
                // A slow reader misses some lines.
                line = progress.recv() => match line {
                    Ok((of, line)) if of == key => report(line),
                    _ => {}
                },
            }
        };
        let built = built.map_err(|_| under_way())?.map_err(|missed| {
            let (kind, message) = match missed {
                NoResult::Full => (
                    Kind::RateLimitError,
                    "too many packages wait to be built in this host; try again",
                ),
                NoResult::Panicked => (
                    Kind::InternalError,
                    "this tool's packages could not be built",
                ),
            };
            Fault::new(kind, message).retryable()
        })?;
        built.inspect_err(|fault| {
            let mut failed = lock(&self.failed);
            failed.retain(|_, (when, _)| when.elapsed() < FAILURE_TTL);
            if !fault.retryable && failed.len() < MAX_FAILURES {
                failed
                    .entry(name.clone())
                    .or_insert_with(|| (Instant::now(), fault.clone()));
            }
        })
    }

    fn report(&self, key: &str, line: &str) {
        // An error means that no caller waits.
        let _ = self.progress.send((key.to_owned(), text::printable(line)));
    }

    async fn hold(&self, key: &str) -> Result<Option<EnvironmentLease>, Fault> {
        let store = self.store()?;
        let key = key.to_owned();
        apart(move || {
            Ok(store.hold(&key, |what: &str| {
            let what = text::printable(what);
            tracing::warn!(target: "toolhost::packages", "an environment was changed and is built \
                again: {what}");
        })?)
        })
        .await
    }

    /// The digest of everything that an environment is built from.
    pub fn key(&self, need: &Need) -> Result<String, Fault> {
        let (runtime, npm) = self.tools(need)?;
        let file = program(runtime)?;
        let installer = files::Stamp::at(npm.unwrap_or(&file)).map_err(unusable)?;
        let parts = json!([
            FORMAT,
            need.wanted.ecosystem,
            need.wanted.inputs,
            need.rules.index,
            self.index(need)?.url,
            need.rules.builds,
            need.rules.min_age_days.is_some(),
            // No inode and no time of it: each container has others for the same file.
            (&file, &runtime.version),
            (installer.size, installer.modified.0),
            // What is built for one version of Node, or by one, may not run in another.
            (need.runtime.language, &need.runtime.version),
            (std::env::consts::OS, std::env::consts::ARCH)
        ]);
        Ok(store::key_of(parts.to_string().as_bytes()))
    }

    /// The key of the lock that requirements were resolved to. The same for all interpreters.
    pub(super) fn resolved_key(&self, need: &Need) -> Result<String, Fault> {
        let Need { wanted, rules, .. } = need;
        let index = (&rules.index, &self.index(need)?.url);
        let parts = json!([
            FORMAT,
            wanted.ecosystem,
            wanted.inputs,
            index,
            rules.min_age_days
        ]);
        Ok(store::key_of(parts.to_string().as_bytes()))
    }

    /// The interpreter that runs the installer, and the path of npm if that is the installer.
    fn installer<'a>(
        &'a self,
        need: &'a Need,
        work: &'a Path,
        report: LineSink<'a>,
    ) -> Result<Installer<'a>, Fault> {
        let (runtime, npm) = self.tools(need)?;
        Ok(Installer {
            host: &self.host,
            need,
            index: self.index(need)?,
            runtime,
            npm,
            work,
            report,
        })
    }

    fn tools<'a>(&'a self, need: &'a Need) -> Result<(&'a Runtime, Option<&'a Path>), Fault> {
        if need.wanted.ecosystem == Ecosystem::Python {
            return Ok((&need.runtime, None));
        }
        let npm = self
            .npm
            .get_or_init(|| (self.settings.npm)())
            .as_ref()
            .map_err(|why| {
                let message = "this host has no npm, by which this tool's packages are installed";
                Fault::new(Kind::CapabilityError, message).person(text::printable(why))
            })?;
        Ok((&npm.0, Some(&npm.1)))
    }

    fn index(&self, need: &Need) -> Result<&Index, Fault> {
        let ecosystem = need.wanted.ecosystem;
        let name = &need.rules.index;
        Index::find(&self.settings.indexes, ecosystem, name).ok_or_else(|| {
            let message = "this host has no index configured for this tool's packages";
            let name = text::printable(name);
            let ecosystem = ecosystem.name();
            let fix =
                format!("[indexes.{name}] is missing in the configuration file for {ecosystem}");
            Fault::new(Kind::CapabilityError, message).person(fix)
        })
    }

    /// The lock of a key between processes.
    async fn lock_key<'s>(&self, store: &'s Store, key: &str) -> Result<Lock<'s>, Fault> {
        let until = Instant::now() + MAX_WAIT;
        loop {
            match store.lock(key).map_err(unusable)? {
                Some(lock) => return Ok(lock),
                None if Instant::now() > until => return Err(under_way()),
                None => {
                    self.report(key, "another process of this host builds the packages");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// One build, from the lock between processes to the entry.
    async fn build(self: &Arc<Self>, need: &Need, key: &str) -> Result<(), Fault> {
        let store = self.store()?;
        let _lock = self.lock_key(&store, key).await?;
        // Another process may have built it meanwhile.
        if self.hold(key).await?.is_some() {
            return Ok(());
        }
        let fetching = self.fetchers.enter(&need.rules.index).await;
        let began = Instant::now();
        let tidied = Arc::clone(&store);
        apart(move || Ok(tidied.tidy()?)).await?;
        let work = store.begin(key).map_err(unusable)?;
        let folder = work.path.clone();
        let tree = store.path().join(&work.tree);
        let report = |line: &str| self.report(key, line);
        let wanted = if need.wanted.locked {
            Arc::clone(&need.wanted)
        } else {
            Arc::new(self.resolve_once(need, &folder, &report).await?.wanted)
        };
        let need = Need {
            wanted,
            ..need.clone()
        };
        check_allowed(&need, &need.wanted.packages, None)?;
        let installer = self.installer(&need, &folder, &report)?;
        let mut published = installer.fetch().await?;
        check_allowed(&need, &need.wanted.packages, Some(&published))?;
        drop(fetching);
        let _alone = self.tools.enter(&need.tool).await;
        let building = self.builders[usize::from(need.rules.builds)]
            .enter(&need.tool)
            .await;
        let layout = installer.layout()?;
        let shown = tree.join(&layout.site);
        let mut installing = Box::pin(installer.install(&shown));
        let early = tokio::time::timeout(LONG_BUILD, &mut installing).await;
        drop(building);
        match early {
            Ok(done) => done?,
            Err(_) => installing.await?,
        }
        let ecosystem = need.wanted.ecosystem;
        let places = need.wanted.places();
        let mut examined = apart(move || Store::examine(work, layout, ecosystem, &places)).await?;
        let mut vendored = examined.vendored.clone();
        if ecosystem == Ecosystem::Python {
            for said in installer.list().await? {
                let same = |name: &str, version: &str| {
                    name == said.name && are_same(ecosystem, version, &said.version)
                };
                let in_lock = need
                    .wanted
                    .packages
                    .iter()
                    .any(|it| same(&it.name, &it.version));
                if !in_lock && !vendored.iter().any(|it| same(&it.name, &it.version)) {
                    vendored.push(said);
                }
            }
        }
        add_font_list(&installer, &need, &mut examined).await;
        if need.rules.min_age_days.is_some() && !vendored.is_empty() {
            published.extend(installer.ages(&vendored).await?);
        }
        let about = BuildInfo {
            ecosystem,
            tool: need.tool.clone(),
            index: need.rules.index.clone(),
            runtime: format!(
                "{} {}",
                program(installer.runtime)?.display(),
                installer.runtime.version
            ),
            builds: need.rules.builds,
            packages: need.wanted.packages.clone(),
            vendored,
            published,
            made: Timestamp::now().to_string(),
        };
        check_built(&need, &about)?;
        let kept = Arc::clone(&store);
        let key = key.to_owned();
        apart(move || kept.keep(&key, about, examined)).await?;
        let tool = text::printable(&need.tool);
        let took = began.elapsed().as_secs_f64();
        let count = need.wanted.packages.len();
        tracing::info!(target: "toolhost::packages", "built {count} packages for {tool} in \
            {took:.1} s");
        Ok(())
    }

    /// The lock of the requirements: resolved before, or now.
    async fn resolve_once(
        &self,
        need: &Need,
        work: &Path,
        report: LineSink<'_>,
    ) -> Result<ResolvedLock, Fault> {
        let store = self.store()?;
        let key = self.resolved_key(need)?;
        if let Some(text) = store.resolved(&key) {
            return read_lock(need, text);
        }
        let resolved = self.resolve(need, work, report).await?;
        store
            .keep_resolved(&key, &resolved.text)
            .map_err(unusable)?;
        Ok(resolved)
    }

    pub(super) async fn resolve(
        &self,
        need: &Need,
        work: &Path,
        report: LineSink<'_>,
    ) -> Result<ResolvedLock, Fault> {
        read_lock(
            need,
            self.installer(need, work, report)?
                .resolve(latest(need))
                .await?,
        )
    }
}

/// Without this list calls look for fonts themselves.
async fn add_font_list(installer: &Installer<'_>, need: &Need, examined: &mut Examined) {
    let mut names = need.wanted.packages.iter().map(|package| &*package.name);
    if names.any(|name| name == "matplotlib")
        && let Ok(Some((name, text))) = installer.font_list().await
        && let Err(e) = examined.add_font_list(&name, &text)
    {
        tracing::warn!(target: "toolhost::packages", "no list of fonts: {e}");
    }
}

/// Runs blocking work on a tree on another thread.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TreeError> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| TreeError::Io(std::io::Error::other(e)))
        .flatten();
    done.map_err(|wrong| match wrong {
        TreeError::Hostile(what) => {
            let message = "this tool's packages left files that this host does not accept, so \
                nothing was run";
            Fault::new(Kind::DependencyError, message).details(what)
        }
        TreeError::Io(e) => unusable(e),
    })
}

/// Adds an environment to a shape, and takes the interpreter from it.
pub fn use_environment(shape: &mut Shape, environment: &EnvironmentLease) {
    use_built(
        shape,
        environment.path.clone(),
        environment.entry.about.ecosystem,
    );
}

pub(super) fn under_way() -> Fault {
    Fault::new(
        Kind::ServiceError,
        "this tool's packages are still being built; try again",
    )
    .retryable()
}

const SECONDS_OF_A_DAY: i64 = 24 * 3600;

/// A lock that was made for a tool.
pub struct ResolvedLock {
    pub wanted: PackageRequirements,
    /// The text of the lock file.
    pub text: String,
}

/// Refuses packages that policy does not allow. `published`: when each was published, if that is
/// known yet.
pub(super) fn check_allowed(
    need: &Need,
    packages: &[Package],
    published: Option<&Published>,
) -> Result<(), Fault> {
    let now = Timestamp::now().as_second();
    let ages = published.map(|published| {
        packages
            .iter()
            .filter_map(|package: &Package| {
                let days = (now - youngest(package, published)?.as_second()) / SECONDS_OF_A_DAY;
                Some((package.clone(), u64::try_from(days).ok()?))
            })
            .collect()
    });
    let refused =
        policy::refused_packages(&need.rules, need.wanted.ecosystem, packages, ages.as_ref());
    if refused.is_empty() {
        return Ok(());
    }
    let mut details = refused.join("\n");
    if !need.wanted.locked {
        // Other tools with the same requirements get this fault too, so it names no tool.
        details
            .push_str("\nrun `toolhost deps clean` with the tool's id to have them resolved again");
    }
    let message = "this tool requires packages that this host never installs, so nothing was run";
    Err(Fault::new(Kind::DependencyError, message).details(details))
}

/// When the youngest file that a package was taken from was published. `None`: of one of them that
/// is not known.
fn youngest(package: &Package, published: &Published) -> Option<Timestamp> {
    let copy = [format!("{} {}", package.name, package.version)];
    let keys = if package.hashes.is_empty() {
        &copy[..]
    } else {
        &package.hashes
    };
    let times = keys
        .iter()
        .filter_map(|key| published.get(key))
        .map(|time| time.parse().ok());
    times.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

/// Refuses what was built if policy does not allow it: the packages, and the copies of others
/// inside them.
pub(super) fn check_built(need: &Need, about: &BuildInfo) -> Result<(), Fault> {
    check_allowed(need, &about.packages, Some(&about.published))?;
    fn package(Vendored { name, version, .. }: Vendored) -> Package {
        Package {
            name,
            version,
            hashes: Vec::new(),
        }
    }
    let copies: Vec<Package> = about.vendored.iter().cloned().map(package).collect();
    check_allowed(need, &copies, None)?;
    check_allowed(
        need,
        &copies
            .into_iter()
            .filter(|package: &Package| {
                about
                    .published
                    .contains_key(&format!("{} {}", package.name, package.version))
            })
            .collect::<Vec<_>>(),
        Some(&about.published),
    )
}

/// The latest moment at which a version may have been published.
fn latest(need: &Need) -> Option<String> {
    let days = i64::from(need.rules.min_age_days?);
    let second = Timestamp::now().as_second() - days * SECONDS_OF_A_DAY;
    Timestamp::from_second(second)
        .ok()
        .map(|time| time.to_string())
}

/// A lock that was resolved, read like one that lies beside a script.
pub(super) fn read_lock(need: &Need, text: String) -> Result<ResolvedLock, Fault> {
    let PackageRequirements {
        ecosystem,
        sources,
        requires,
        lock_file,
        ..
    } = (*need.wanted).clone();
    let locked = packages::read_lock(
        Path::new(&lock_file),
        &text,
        ecosystem,
        &need.runtime.version,
    );
    let locked = locked.map_err(|problem| {
        let message = "what this tool's requirements resolve to cannot be used, so nothing was run";
        Fault::new(Kind::DependencyError, message)
            .details(text::printable(&problem.problem.message))
    })?;
    let wanted = PackageRequirements {
        sources,
        requires,
        lock_file,
        ..locked
    };
    Ok(ResolvedLock { wanted, text })
}
