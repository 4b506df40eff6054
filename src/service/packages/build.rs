//! Builds environments: behind the walls, under limits of their own, one build for everybody who needs the same. A
//! build goes on when its callers leave.

use super::installer::{Installer, Need, Recorder, Report, program, unusable};
use crate::base::files::{self, Lock};
use crate::base::places::Places;
use crate::base::shared::{NoResult, Shared};
use crate::base::{lock, text};
use crate::executor::Executor;
use crate::fault::{Fault, Kind};
use crate::packages::installed::Vendored;
use crate::packages::store::{self, BuildInfo, LockedEntry, Store};
use crate::packages::tree::TreeError;
use crate::packages::{self, Index, PackageRequirements};
use crate::policy::packages::{Ecosystem, Package};
use crate::policy::{self, Built, Program, Runtime, Shape};
use jiff::Timestamp;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The layout of entries, and how they are made: another number builds all of them again.
const FORMAT: u32 = 3;
/// Installs that begin at once, each for another tool; each may use all cores for a while. Those that may run build
/// steps have places of their own, and one that takes long gives its place back and goes on.
const BUILDERS: usize = 2;
const LONG_BUILD: Duration = Duration::from_secs(20);
/// Fetches at once, and most of one index, which may hang.
const FETCHERS: usize = 8;
const FETCHERS_OF_ONE: usize = 4;
/// How long a failed build is not tried again.
const FAILED: Duration = Duration::from_secs(60);
const MOST_FAILED: usize = 1000;
/// Most builds under way or waiting.
const UNDER_WAY: usize = 32;
/// How often it is looked whether another process is done with a key.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for another process: no build takes longer.
const LONGEST_WAIT: Duration = Duration::from_secs(3 * 15 * 60 + 60);

/// Finds what runs npm, and where that lies; or why there is none.
pub type FindNpm = Arc<dyn Fn() -> Result<(Runtime, PathBuf), String> + Send + Sync>;

/// What a host needs to build packages. Nothing of it is looked for or made before a tool requires some.
#[derive(Clone)]
pub struct Parts {
    /// The folder of the store; `Err`: why there is none, for the person.
    pub store: Result<PathBuf, String>,
    pub indexes: Vec<Index>,
    pub npm: FindNpm,
    /// A call waits for its build however long that takes.
    pub waits: bool,
}

impl Parts {
    /// For a host without packages.
    pub fn none(why: &'static str) -> Parts {
        let npm: FindNpm = Arc::new(|| Err("a host without packages".to_owned()));
        Parts { store: Err(why.to_owned()), indexes: Vec::new(), npm, waits: false }
    }
}

pub struct Packages {
    pub(super) parts: Parts,
    store: Mutex<Option<Arc<Store>>>,
    npm: OnceLock<Result<(Runtime, PathBuf), String>>,
    recorder: Recorder,
    building: Shared<Result<(), Fault>>,
    fetchers: Arc<Places>,
    /// Without build steps, and with them.
    builders: [Arc<Places>; 2],
    /// One install for each tool.
    tools: Arc<Places>,
    /// Builds that failed, by what they were for.
    failed: Mutex<HashMap<String, (Instant, Fault)>>,
    /// The last line of each build under way.
    progress: Mutex<HashMap<String, watch::Sender<String>>>,
    /// Builds that ended well, and others.
    ended: [AtomicU64; 2],
}

/// An environment.
pub struct Ready {
    pub held: LockedEntry,
    /// It was waited for.
    pub built: bool,
}

impl Packages {
    pub fn new(parts: Parts, process: Option<Arc<dyn Executor>>, audit: crate::service::audit::Log) -> Arc<Packages> {
        Arc::new(Packages {
            parts,
            store: Mutex::default(),
            npm: OnceLock::new(),
            recorder: Recorder { process, audit },
            building: Shared::new(UNDER_WAY),
            fetchers: Places::new(FETCHERS, FETCHERS_OF_ONE),
            builders: [Places::new(BUILDERS, 1), Places::new(BUILDERS, 1)],
            tools: Places::new(UNDER_WAY, 1),
            failed: Mutex::default(),
            progress: Mutex::default(),
            ended: Default::default(),
        })
    }

    /// Builds under way, those that ended well, and those that failed.
    pub fn builds(&self) -> (usize, u64, u64) {
        let [built, failed] = self.ended.each_ref().map(|many| many.load(Ordering::Relaxed));
        (self.building.under_way(), built, failed)
    }

    /// The store, opened when it is first needed.
    pub fn store(&self) -> Result<Arc<Store>, Fault> {
        let mut opened = lock(&self.store);
        if let Some(store) = opened.as_ref() {
            return Ok(Arc::clone(store));
        }
        let store = self.parts.store.as_ref().map_err(String::clone).and_then(|path| Store::open(path));
        let store = store.map_err(|why| {
            let message = "this host has no place for packages, so nothing was run";
            Fault::new(Kind::CapabilityError, message)
                .person(format!("the store of packages: {}", text::printable(&why)))
        })?;
        *opened = Some(Arc::clone(&store));
        Ok(store)
    }

    fn npm(&self) -> Result<&(Runtime, PathBuf), Fault> {
        self.npm.get_or_init(|| (self.parts.npm)()).as_ref().map_err(|why| {
            let message = "this host has no npm, by which this tool's packages are installed";
            Fault::new(Kind::CapabilityError, message).person(text::printable(why))
        })
    }

    /// The environment of a script. Waits for its build: as long as that takes, or `within` this time. `report` gets
    /// what the installer prints meanwhile.
    pub async fn ready(
        self: &Arc<Self>,
        need: Need,
        within: Duration,
        mut report: impl FnMut(String),
    ) -> Result<Ready, Fault> {
        if need.rules.lock_required && !need.wanted.locked {
            return Err(no_lock(&need));
        }
        let key = self.key(&need)?;
        if let Some(held) = self.hold(&key).await? {
            // The policy may be another than when it was built.
            check_built(&need, &held.entry.about)?;
            return Ok(Ready { held, built: false });
        }
        let mut progress = self.progress_of(&key);
        let work = || {
            let (this, key, need) = (Arc::clone(self), key.clone(), need.clone());
            async move {
                let built = this.build(&need, &key).await;
                this.ended[usize::from(built.is_err())].fetch_add(1, Ordering::Relaxed);
                built
            }
        };
        // Tools with other rules for the same packages do not share what those rules refuse.
        let name = format!("{key} {:?}", need.rules);
        if let Some((_, fault)) = lock(&self.failed).get(&name).filter(|(when, _)| when.elapsed() < FAILED) {
            return Err(fault.clone());
        }
        let within = if self.parts.waits { Duration::MAX } else { within };
        let building = tokio::time::timeout(within, self.building.join(&name, work));
        tokio::pin!(building);
        let built = loop {
            tokio::select! {
                built = &mut building => break built,
                Ok(()) = progress.changed() => report(progress.borrow_and_update().clone()),
            }
        };
        drop(progress);
        lock(&self.progress).retain(|_, told| told.receiver_count() > 0);
        match built {
            Err(_) => Err(under_way()),
            Ok(Err(missed)) => Err(missing(missed)),
            Ok(Ok(built)) => {
                built.inspect_err(|fault| self.remember(&name, fault))?;
                let held = self.hold(&key).await?.ok_or_else(|| {
                    let message = "this tool's packages were built, and are gone already; try again";
                    Fault::new(Kind::ServiceError, message).retryable()
                })?;
                check_built(&need, &held.entry.about)?;
                Ok(Ready { held, built: true })
            }
        }
    }

    /// Keeps a failure that another try will not fix.
    fn remember(&self, name: &str, fault: &Fault) {
        let mut failed = lock(&self.failed);
        failed.retain(|_, (when, _)| when.elapsed() < FAILED);
        if !fault.retryable && failed.len() < MOST_FAILED {
            failed.entry(name.to_owned()).or_insert_with(|| (Instant::now(), fault.clone()));
        }
    }

    /// The lines of a build, from now on.
    fn progress_of(&self, key: &str) -> watch::Receiver<String> {
        let mut progress = lock(&self.progress);
        progress.entry(key.to_owned()).or_insert_with(|| watch::channel(String::new()).0).subscribe()
    }

    fn report(&self, key: &str, line: &str) {
        if let Some(line_of_key) = lock(&self.progress).get(key) {
            line_of_key.send_replace(text::printable(line));
        }
    }

    async fn hold(&self, key: &str) -> Result<Option<LockedEntry>, Fault> {
        let (store, key) = (self.store()?, key.to_owned());
        let look = move || {
            store.hold(&key, |what| {
                let what = text::printable(what);
                tracing::warn!(target: "toolhost::packages", "an environment was changed since it was built, and is built anew: {what}");
            })
        };
        tokio::task::spawn_blocking(look).await.map_err(std::io::Error::other).flatten().map_err(|e| unusable(&e))
    }

    /// The digest of everything that an environment is built from.
    pub fn key(&self, need: &Need) -> Result<String, Fault> {
        let runtime = self.installs(need)?;
        let file = program(&runtime)?;
        let stamp = |file: &Path| files::Stamp::at(file).map(|stamp| format!("{stamp:?}")).map_err(|e| unusable(&e));
        let platform = (std::env::consts::OS, std::env::consts::ARCH);
        let installer = match need.wanted.ecosystem {
            Ecosystem::Python => stamp(&file)?,
            Ecosystem::Node => stamp(&self.npm()?.1)?,
        };
        let parts = json!([
            FORMAT,
            need.wanted.ecosystem,
            need.wanted.inputs,
            need.rules.index,
            self.index(need)?.url,
            need.rules.builds,
            need.rules.min_age_days.is_some(),
            (file, &runtime.version, installer),
            // What is built for one version of Node, or by one, may not run in another.
            (need.runtime.language, &need.runtime.version),
            platform
        ]);
        Ok(store::key_of(parts.to_string().as_bytes()))
    }

    /// The key of what is resolved for requirements without a lock: another interpreter gets the same versions.
    pub(super) fn resolved_key(&self, need: &Need) -> Result<String, Fault> {
        let Need { wanted, rules, .. } = need;
        let index = (&rules.index, &self.index(need)?.url);
        let parts = json!([FORMAT, wanted.ecosystem, wanted.inputs, index, rules.min_age_days]);
        Ok(store::key_of(parts.to_string().as_bytes()))
    }

    /// The interpreter that runs the installer.
    fn installs(&self, need: &Need) -> Result<Runtime, Fault> {
        match need.wanted.ecosystem {
            Ecosystem::Python => Ok(need.runtime.clone()),
            Ecosystem::Node => Ok(self.npm()?.0.clone()),
        }
    }

    fn index(&self, need: &Need) -> Result<&Index, Fault> {
        let wanted = |index: &&Index| index.ecosystem == need.wanted.ecosystem && index.name == need.rules.index;
        self.parts.indexes.iter().find(wanted).ok_or_else(|| {
            let message = "this host does not say where this tool's packages come from";
            let name = text::printable(&need.rules.index);
            let mend =
                format!("[indexes.{name}] is missing in the configuration file for {}", need.wanted.ecosystem.name());
            Fault::new(Kind::CapabilityError, message).person(mend)
        })
    }

    /// The lock of a key between processes.
    async fn lock_key<'s>(&self, store: &'s Store, key: &str) -> Result<Lock<'s>, Fault> {
        let until = Instant::now() + LONGEST_WAIT;
        loop {
            match store.lock(key).map_err(|e| unusable(&e))? {
                Some(lock) => return Ok(lock),
                None if Instant::now() > until => return Err(under_way()),
                None => {
                    self.report(key, "another process of this host builds the packages");
                    tokio::time::sleep(LOOK).await;
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
        let tidied = tokio::task::spawn_blocking(move || tidied.tidy()).await.map_err(std::io::Error::other).flatten();
        tidied.map_err(|e| unusable(&e))?;
        let work = Arc::new(store.begin(key).map_err(|e| unusable(&e))?);
        let report = |line: &str| self.report(key, line);
        let wanted = match need.wanted.locked {
            true => Arc::clone(&need.wanted),
            false => Arc::new(self.resolve_once(need, &work.path, &report).await?.wanted),
        };
        let need = Need { wanted, ..need.clone() };
        check_allowed(&need, &need.wanted.packages, None)?;
        let installer = self.installer(&need, &work.path, &report)?;
        let published = installer.fetch().await?;
        check_allowed(&need, &need.wanted.packages, Some(&published))?;
        drop(fetching);
        let _alone = self.tools.enter(&need.tool).await;
        let building = self.builders[usize::from(need.rules.builds)].enter(&need.tool).await;
        {
            let place = store.place(&work);
            let mut installing = std::pin::pin!(installer.install(&place));
            let early = tokio::time::timeout(LONG_BUILD, &mut installing).await;
            drop(building);
            match early {
                Ok(done) => done?,
                Err(_) => installing.await?,
            }
        }
        let layout = Arc::new(installer.layout()?);
        let mut about = BuildInfo {
            ecosystem: need.wanted.ecosystem,
            tool: need.tool.clone(),
            index: need.rules.index.clone(),
            runtime: format!("{} {}", program(&installer.runtime)?.display(), installer.runtime.version),
            builds: need.rules.builds,
            packages: need.wanted.packages.clone(),
            vendored: Vec::new(),
            published,
            made: jiff::Timestamp::now().to_string(),
        };
        report("looking at what the build left");
        let look = {
            let (store, work, layout) = (Arc::clone(&store), Arc::clone(&work), Arc::clone(&layout));
            let (ecosystem, places) = (need.wanted.ecosystem, need.wanted.places());
            move || store.examine(&work, ecosystem, &places, &layout)
        };
        let examined = apart(look).await?;
        about.vendored.clone_from(&examined.vendored);
        if need.rules.min_age_days.is_some() && !about.vendored.is_empty() {
            about.published.extend(installer.ages(&about.vendored).await?);
        }
        check_built(&need, &about)?;
        let (kept, key) = (Arc::clone(&store), key.to_owned());
        apart(move || kept.keep(&work, &key, about, &layout, examined)).await?;
        let (tool, took) = (text::printable(&need.tool), began.elapsed().as_secs_f64());
        tracing::info!(target: "toolhost::packages", "built {} packages for {tool} in {took:.1} s", need.wanted.packages.len());
        Ok(())
    }

    /// What is required, locked: what was resolved before, or is now.
    async fn resolve_once(&self, need: &Need, work: &Path, report: Report<'_>) -> Result<Resolved, Fault> {
        let (store, key) = (self.store()?, self.resolved_key(need)?);
        if let Some(text) = store.resolved(&key) {
            return read_lock(need, text);
        }
        let resolved = self.resolve(need, work, report).await?;
        store.keep_resolved(&key, &resolved.text).map_err(|e| unusable(&e))?;
        Ok(resolved)
    }

    pub(super) async fn resolve(&self, need: &Need, work: &Path, report: Report<'_>) -> Result<Resolved, Fault> {
        read_lock(need, self.installer(need, work, report)?.resolve(latest(need)).await?)
    }

    fn installer<'a>(&'a self, need: &'a Need, work: &'a Path, report: Report<'a>) -> Result<Installer<'a>, Fault> {
        let npm = match need.wanted.ecosystem {
            Ecosystem::Python => None,
            Ecosystem::Node => Some(self.npm()?.1.as_path()),
        };
        let (index, runtime) = (self.index(need)?, self.installs(need)?);
        Ok(Installer { need, index, runtime, npm, recorder: &self.recorder, work, report })
    }
}

/// Runs work on a tree off the threads that serve others.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, TreeError> + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| TreeError::Io(std::io::Error::other(e))).flatten();
    done.map_err(|wrong| match wrong {
        TreeError::Hostile(what) => hostile(&what),
        TreeError::Io(e) => unusable(&e),
    })
}

/// Shows a call its environment, and starts its interpreter in it.
pub fn furnish(shape: &mut Shape, environment: &LockedEntry) {
    let path = environment.path.clone();
    let link = match environment.entry.about.ecosystem {
        Ecosystem::Python => {
            shape.runtime.program = Program::Path(path.join("bin/python"));
            None
        }
        // The last folder in which Node and Bun look, so that what lies beside the script comes first.
        Ecosystem::Node => Some(("/node_modules".into(), path.join("node_modules"))),
    };
    shape.built = Some(Built { path, link });
}

fn no_lock(need: &Need) -> Fault {
    let id = need.tool.split('@').next().unwrap_or(&need.tool);
    let message = "this tool's packages are not locked, so nothing was run";
    let mend = format!("`toolhost deps lock {id}` writes the lock, and shows what it holds");
    Fault::new(Kind::DependencyError, message).details(text::printable(&mend))
}

pub(super) fn under_way() -> Fault {
    Fault::new(Kind::ServiceError, "this tool's packages are still being built; try again").retryable()
}

fn missing(missed: NoResult) -> Fault {
    match missed {
        NoResult::Full => {
            Fault::new(Kind::RateLimitError, "too many packages wait to be built in this host; try again").retryable()
        }
        NoResult::Broken => Fault::new(Kind::InternalError, "this tool's packages could not be built").retryable(),
    }
}

fn hostile(what: &str) -> Fault {
    let message = "this tool's packages left what this host does not take over, so nothing was run";
    Fault::new(Kind::DependencyError, message).details(what.to_owned())
}

const SECONDS_OF_A_DAY: i64 = 24 * 3600;

pub struct Resolved {
    pub wanted: PackageRequirements,
    /// The lock.
    pub text: String,
}

/// Whether policy lets these packages in. `published`: when each was, where that is known by now.
pub(super) fn check_allowed(
    need: &Need,
    packages: &[Package],
    published: Option<&BTreeMap<String, String>>,
) -> Result<(), Fault> {
    let now = Timestamp::now();
    let ages = published.map(|published| {
        let age = |package: &Package| {
            let time = published.get(&format!("{} {}", package.name, package.version))?;
            let seconds = now.as_second().checked_sub(time.parse::<Timestamp>().ok()?.as_second())?;
            let days = u64::try_from(seconds / SECONDS_OF_A_DAY).ok()?;
            Some(((package.name.clone(), package.version.clone()), days))
        };
        packages.iter().filter_map(age).collect()
    });
    let refused = policy::refused_packages(&need.rules, need.wanted.ecosystem, packages, ages.as_ref());
    if refused.is_empty() {
        return Ok(());
    }
    let mut details = refused.join("\n");
    if !need.wanted.locked {
        let id = text::printable(need.tool.split('@').next().unwrap_or_default());
        details
            .push_str(&format!("\n`toolhost deps clean {id}` forgets what was resolved, so that it is resolved anew"));
    }
    let message = "this tool requires packages that this host never installs, so nothing was run";
    Err(Fault::new(Kind::DependencyError, message).details(details))
}

/// Whether policy lets in what was built: what was approved, and the copies inside it as far as their age is known.
pub(super) fn check_built(need: &Need, about: &BuildInfo) -> Result<(), Fault> {
    check_allowed(need, &about.packages, Some(&about.published))?;
    let copies: Vec<Package> = about.vendored.iter().map(Vendored::package).collect();
    check_allowed(need, &copies, None)?;
    let known = |package: &Package| about.published.contains_key(&format!("{} {}", package.name, package.version));
    check_allowed(need, &copies.into_iter().filter(known).collect::<Vec<_>>(), Some(&about.published))
}

/// The latest moment at which a version may have been published.
pub(super) fn latest(need: &Need) -> Option<String> {
    let days = i64::from(need.rules.min_age_days?);
    let second = Timestamp::now().as_second() - days * SECONDS_OF_A_DAY;
    Timestamp::from_second(second).ok().map(|time| time.to_string())
}

/// A lock that was resolved, read like one that lies beside a script.
pub(super) fn read_lock(need: &Need, text: String) -> Result<Resolved, Fault> {
    let wanted = packages::of_lock(&need.wanted, &text, &need.runtime.version).map_err(|problem| {
        let message = "what this tool's requirements resolve to cannot be used, so nothing was run";
        Fault::new(Kind::DependencyError, message).details(text::printable(&problem.problem.message))
    })?;
    Ok(Resolved { wanted, text })
}
