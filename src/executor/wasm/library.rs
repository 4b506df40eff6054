//! From a script file to compiled code, once per content.
//!
//! Processes share one cache and compile a module one at a time. No module is held in memory. A
//! module that exceeded a limit is not tried again for an hour, and one tool cannot occupy all
//! compilers.
//!
//! One host at a time compiles a module, with two compilers, two more for modules that take longer
//! than 2 s, and four readers, each for another tool. Compiling may take 256 MiB and 24 bytes for
//! each byte of the module (at most 1 GiB, or `memoryBytes` where that is more), and 20 s of
//! processor time and 5 s more for each MiB (at most 300 s); on a busy machine four times that by
//! the clock, after which the call is a `TimeoutError` and may be made again. A module is at most
//! 256 MiB, its text form 16 MiB. The compiled code takes at most 4 GiB of the cache.

use super::compile::{
    self, Failure, MAX_CODE_BYTES, MAX_MODULE_BYTES, MAX_TEXT_BYTES, Module, ModuleRefusal, QUICK,
    WALL_TIME_FACTOR, not_stored,
};
use super::engine;
use super::session::wasmtime_fault;
use crate::base::files::{self, Stamp};
use crate::base::lock;
use crate::base::mask::Hidden;
use crate::base::messages::memory_file;
use crate::base::semaphore::FairSemaphore;
use crate::base::single_flight::{NoResult, SingleFlight};
use crate::base::store::{self, Content, ContentStore, Limits, RecordKind as Record, Writer};
use crate::executor::CallDeadline;
use crate::executor::process::Launchers;
use crate::fault::{Fault, Kind};
use crate::policy::{self, ReadFile, Script};
use nix::fcntl::OFlag;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;

/// Most entries of each map; a full map is emptied, since all can be found again. Keeps the
/// number of open cache entries below the usual limit of descriptors.
const MAX_REMEMBERED: usize = 256;
/// Compilers at once, each for another tool; each may use several threads.
const COMPILERS: usize = 2;
/// Additional compilers, for modules that take longer than `QUICK`: only such modules wait for one
/// another.
const SLOW_COMPILERS: usize = 2;
/// Longest wait for a compiler that says neither that it is done nor that it is slow.
const PROBATION: Duration = QUICK.saturating_mul(WALL_TIME_FACTOR);
/// Modules that are read at once for their digests, each for another tool.
const READERS: usize = 4;
/// Most modules that are compiled or wait for a compiler.
const UNDER_WAY: usize = 64;
/// How long a module that exceeded a limit is not tried again.
const REFUSAL_TTL: Duration = Duration::from_secs(3600);
/// How often a call checks whether another process is done with a module.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const LIMITS: Limits = Limits {
    bytes: 4 << 30,
    files: 1_000_000,
};
pub const CODE: Record = Record {
    mark: b"thwasm1\n",
    ending: "",
    max_bytes: MAX_CODE_BYTES,
    has_tree: false,
};
const REFUSAL: Record = Record {
    mark: b"thwref1\n",
    ending: ".refused",
    max_bytes: 64 << 10,
    has_tree: false,
};
static KINDS: [Record; 2] = [CODE, REFUSAL];

/// Compiled code on disk, and why a module has none.
#[derive(Debug)]
pub struct Cache {
    pub(super) store: ContentStore,
    /// Removes a temporary cache together with its owner.
    _temporary: Option<tempfile::TempDir>,
}

impl Cache {
    /// Opens (and makes) the cache folder. The error names what is wrong with it, for the person.
    pub fn open(path: &Path) -> Result<Cache, String> {
        let cache = Cache {
            store: ContentStore::open(path, &KINDS, LIMITS)?,
            _temporary: None,
        };
        let _ = cache.store.tidy(&|_| None);
        Ok(cache)
    }

    /// A cache that lives as long as its owner, where the usual one cannot be used.
    pub fn temporary() -> Result<Cache, String> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new()
            .prefix("toolhost-wasm-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|e| format!("no temporary folder: {e}"))?;
        let cache = Cache::open(folder.path())?;
        Ok(Cache {
            _temporary: Some(folder),
            ..cache
        })
    }

    /// `$XDG_CACHE_HOME/toolhost/wasm`, or `~/.cache/toolhost/wasm`; relative values do not count.
    pub fn usual_folder(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        files::cache_folder(environment).map(|folder| folder.join("wasm"))
    }

    /// The usual folder, or a temporary one and the reason, for `doctor` and the log.
    pub fn usual(
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<(Cache, Option<String>), String> {
        let lasting = match Cache::usual_folder(environment) {
            Some(folder) => Cache::open(&folder),
            None => Err("neither XDG_CACHE_HOME nor HOME is an absolute path".to_owned()),
        };
        match lasting {
            Ok(cache) => Ok((cache, None)),
            Err(why) => Ok((
                Cache::temporary()?,
                Some(format!("compiled wasm is not kept between runs: {why}")),
            )),
        }
    }

    /// Publishes a written entry under its key, and opens it.
    pub fn finish(&self, key: &str, written: Writer) -> io::Result<Content> {
        written.finish()?;
        let code = self
            .store
            .get(key, &CODE)
            .ok_or_else(|| io::Error::other("the entry cannot be read back"))?;
        // An entry that is removed stays readable for those who have it open.
        let _ = self.store.tidy(&|_| None);
        Ok(code)
    }

    /// Why a key has no code, and how long ago that was stored.
    pub fn refused(&self, key: &str) -> Option<(Vec<u8>, Duration)> {
        let refusal = self.store.peek(key, &REFUSAL)?;
        let stored = refusal.file.metadata().ok()?.modified().ok()?;
        Some((
            refusal.read()?,
            SystemTime::now().duration_since(stored).unwrap_or_default(),
        ))
    }
}

/// Compiled code, and its cache key.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub key: String,
    pub code: Content,
}

pub struct Library {
    cache: Cache,
    fingerprint: OnceLock<Result<u64, String>>,
    files: Mutex<HashMap<PathBuf, ReadFile>>,
    opened: Mutex<HashMap<String, Content>>,
    /// Modules that will not run, and why; by `refusal_key`.
    refused: Mutex<HashMap<String, (ModuleRefusal, Instant)>>,
    compiling: SingleFlight<Result<Prepared, Fault>>,
    /// Each tool has one module compiled at a time.
    compilers: Arc<FairSemaphore>,
    slow_compilers: Arc<FairSemaphore>,
    readers: Arc<FairSemaphore>,
}

/// A module to be compiled, and its text if that came with the call.
#[derive(Clone)]
pub struct SourceModule {
    /// SHA-256 in hex.
    pub digest: String,
    /// The name of its compiled code.
    key: String,
    text: Option<Vec<u8>>,
}

impl ModuleRefusal {
    fn fault(&self) -> Fault {
        if self.too_much {
            Fault::new(Kind::ResourceLimitError, self.why.clone()).person(
                "it is not tried again for an hour; this refusal is stored in the cache of \
                    compiled modules",
            )
        } else {
            let message = format!("not a module this host can run: {}", self.why);
            Fault::new(Kind::ScriptError, message)
        }
    }

    fn is_valid(&self, since: Duration) -> bool {
        !self.too_much || since < REFUSAL_TTL
    }
}

impl Library {
    pub fn new(cache: Cache) -> Library {
        Library {
            cache,
            fingerprint: OnceLock::new(),
            files: Mutex::default(),
            opened: Mutex::default(),
            refused: Mutex::default(),
            compiling: SingleFlight::new(UNDER_WAY),
            compilers: FairSemaphore::new(COMPILERS, 1),
            slow_compilers: FairSemaphore::new(SLOW_COMPILERS, 1),
            readers: FairSemaphore::new(READERS, 1),
        }
    }

    /// Compiled code of a module; compiles only what no cache entry holds. Compiling goes on when
    /// its callers leave, so that the next caller finds the result.
    pub async fn prepare(
        self: &Arc<Self>,
        launchers: &Arc<Launchers>,
        shape: &policy::Shape,
        found: SourceModule,
    ) -> Result<Prepared, Fault> {
        if let Some(code) = lock(&self.opened).get(&found.key).cloned() {
            return Ok(Prepared {
                key: found.key,
                code,
            });
        }
        // A refusal may be due to entry point or memory, so it has a key of its own.
        let name = refusal_key(&found.key, shape);
        if let Some((refusal, _)) = lock(&self.refused)
            .get(&name)
            .filter(|(why, since)| why.is_valid(since.elapsed()))
        {
            return Err(refusal.fault());
        }
        let this = Arc::clone(self);
        let launchers = Arc::clone(launchers);
        let shape = shape.clone();
        self.compiling
            .join(&name, || {
                let name = name.clone();
                async move { this.obtain(&launchers, &shape, found, &name).await }
            })
            .await
            .unwrap_or_else(|missed| Err(missing(missed)))
    }

    async fn obtain(
        self: &Arc<Self>,
        launchers: &Arc<Launchers>,
        shape: &policy::Shape,
        found: SourceModule,
        name: &str,
    ) -> Result<Prepared, Fault> {
        if let Some(cached) = self.cached(&found.key, name).await {
            return cached;
        }
        let until = Instant::now() + compile::MAX_TIME;
        let _lock = loop {
            match self.cache.store.lock(&found.key) {
                Ok(Some(lock)) => break Some(lock),
                Ok(None) if Instant::now() < until => tokio::time::sleep(POLL_INTERVAL).await,
                // Without locks, several processes may compile the same module.
                Ok(None) | Err(_) => break None,
            }
        };
        // Another process may have compiled it meanwhile.
        if let Some(cached) = self.cached(&found.key, name).await {
            return cached;
        }
        let place = self.compilers.enter(&shape.tool).await;
        let key = found.key.clone();
        let again = found.clone();
        let (slow, is_slow) = oneshot::channel();
        let mut compiling = Box::pin(self.compile(launchers, shape, found, slow));
        let quick = tokio::select! {
            compiled = &mut compiling => Some(compiled),
            // CPU time, since on a busy machine every module takes long.
            Ok(()) = is_slow => None,
            () = tokio::time::sleep(PROBATION) => None,
        };
        let compiled = match quick {
            Some(compiled) => compiled,
            None => {
                let free = self.slow_compilers.try_enter(&shape.tool, 1);
                if free.is_none() {
                    // Start over once there is a place: dropping the future ends its compiler.
                    let (slow, _) = oneshot::channel();
                    compiling = Box::pin(self.compile(launchers, shape, again, slow));
                }
                drop(place);
                let _place = match free {
                    Some(place) => place,
                    None => self.slow_compilers.enter(&shape.tool).await,
                };
                compiling.await
            }
        };
        match compiled {
            Ok(code) => Ok(Prepared { key, code }),
            Err(Failure::Failed(fault)) => Err(fault),
            Err(Failure::Unreadable(e)) => {
                let script = shape.script_place();
                // Its bytes changed, perhaps without its times.
                lock(&self.files).remove(&script);
                Err(unreadable(&script, &e))
            }
            Err(Failure::Refused(refusal)) => {
                // If the refusal cannot be stored, another process tries for itself.
                if let Ok(text) = serde_json::to_vec(&refusal) {
                    let _ = self.cache.store.put(name, &REFUSAL, &text);
                }
                put(
                    &self.refused,
                    name.to_owned(),
                    (refusal.clone(), Instant::now()),
                );
                Err(refusal.fault())
            }
        }
    }

    /// What the cache has of a module: its code, or why it was refused.
    async fn cached(self: &Arc<Self>, key: &str, name: &str) -> Option<Result<Prepared, Fault>> {
        let this = Arc::clone(self);
        let key = key.to_owned();
        let name = name.to_owned();
        // An entry may be large, and is read whole to be verified.
        tokio::task::spawn_blocking(move || {
            if let Some(code) = this.cache.store.get(&key, &CODE) {
                put(&this.opened, key.clone(), code.clone());
                return Some(Ok(Prepared { key, code }));
            }
            let (text, since) = this.cache.refused(&name)?;
            let refusal: ModuleRefusal = serde_json::from_slice(&text).ok()?;
            refusal.is_valid(since).then(|| Err(refusal.fault()))
        })
        .await
        .ok()
        .flatten()
    }

    /// Compiles, stores and remembers.
    async fn compile(
        self: &Arc<Self>,
        launchers: &Arc<Launchers>,
        shape: &policy::Shape,
        found: SourceModule,
        slow: oneshot::Sender<()>,
    ) -> Result<Content, Failure> {
        let SourceModule { digest, key, text } = found;
        let file = match &text {
            Some(text) => memory_file(text).map(File::from),
            None => open(&shape.script_place()),
        };
        let module = file.and_then(|file| {
            Ok(Module {
                bytes: Stamp::from_file(&file)?.size,
                file,
                digest,
            })
        });
        let into = self
            .cache
            .store
            .write(&key, &CODE)
            .map_err(|e| not_stored(&e))?;
        let module = module.map_err(Failure::Unreadable)?;
        let new = compile::run(launchers, shape, module, into, slow).await?;
        let this = Arc::clone(self);
        let name = key.clone();
        let finished = tokio::task::spawn_blocking(move || this.cache.finish(&name, new)).await;
        let code = finished
            .map_err(io::Error::other)
            .flatten()
            .map_err(|e| not_stored(&e))?;
        put(&self.opened, key, code.clone());
        Ok(code)
    }

    /// The module of a call: its source, or the code of the digest that was read for it.
    pub fn module(
        &self,
        script: Option<&Script>,
        source: Option<&str>,
    ) -> Result<SourceModule, Fault> {
        let text = source.map(|source| source.as_bytes().to_vec());
        let digest = text.as_deref().map(crate::base::sha256_hex);
        let digest = digest.or_else(|| script.map(|script| script.file.digest.clone()));
        let digest = digest
            .ok_or_else(|| Fault::new(Kind::InternalError, "a wasm tool without a module"))?;
        Ok(SourceModule {
            key: self.key(&digest)?,
            digest,
            text,
        })
    }

    /// Reads a module for its digest, unless its times say that it is the one that was read before.
    /// (Code is found by the digest, so what was stored without a change of times does not run.)
    pub async fn read(
        self: &Arc<Self>,
        shape: &policy::Shape,
        deadline: &CallDeadline,
    ) -> Result<Script, Fault> {
        let this = Arc::clone(self);
        let path = shape.script_place();
        let file = match self.known(&path)? {
            Some(file) => file,
            None => {
                deadline
                    .run_apart(&self.readers, &shape.tool, move || this.read_now(&path))
                    .await??
            }
        };
        Ok(Script {
            file,
            bytes: Hidden(Vec::new()),
        })
    }

    fn known(&self, path: &Path) -> Result<Option<ReadFile>, Fault> {
        // Not opened: the stamp identifies the file that was read before, even if the path contains
        // links.
        let now = Stamp::at(path).map_err(|e| unreadable(path, &e))?;
        Ok(lock(&self.files)
            .get(path)
            .filter(|file| file.stamp == now)
            .cloned())
    }

    fn read_now(&self, path: &Path) -> Result<ReadFile, Fault> {
        if let Some(file) = self.known(path)? {
            return Ok(file);
        }
        let file = read(path).map_err(|e| unreadable(path, &e))?;
        put(&self.files, path.to_owned(), file.clone());
        Ok(file)
    }

    fn key(&self, digest: &str) -> Result<String, Fault> {
        let fingerprint = self
            .fingerprint
            .get_or_init(|| engine::fingerprint().map_err(|e| format!("{e:#}")))
            .as_ref();
        let fingerprint = fingerprint.map_err(|e| wasmtime_fault(e))?;
        Ok(crate::base::sha256_hex(
            format!("{digest} {fingerprint}").as_bytes(),
        ))
    }
}

/// The key of a refusal: with another entry point or more memory, the module may not be refused.
fn refusal_key(key: &str, shape: &policy::Shape) -> String {
    let memory = shape.limits.get(crate::quantity::Limit::MemoryBytes);
    crate::base::sha256_hex(format!("{key} {:?} {memory}", shape.entry_point).as_bytes())
}

fn missing(missed: NoResult) -> Fault {
    match missed {
        NoResult::Full => {
            let message = "too many modules wait to be compiled in this host; try again";
            Fault::new(Kind::RateLimitError, message).retryable()
        }
        NoResult::Panicked => {
            let message = "the tool could not be compiled";
            Fault::new(Kind::InternalError, message).retryable()
        }
    }
}

/// Opens a module; no component of the path may be a link.
fn open(path: &Path) -> io::Result<File> {
    Ok(files::without_links(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?.into())
}

/// Reads a module for its digest, a piece at a time.
fn read(path: &Path) -> io::Result<ReadFile> {
    let mut file = open(path)?;
    let stamp = Stamp::from_file(&file)?;
    let mut magic = [0; 4];
    let is_text = (&file).take(4).read(&mut magic)? < 4 || magic != *b"\0asm";
    let (most, what) = if is_text {
        (MAX_TEXT_BYTES, " as text")
    } else {
        (MAX_MODULE_BYTES, "")
    };
    if stamp.size > most {
        let why = format!("larger than {} MiB{what}", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    file.rewind()?;
    let (digest, bytes) = store::digest((&file).take(stamp.size))?;
    if bytes != stamp.size || Stamp::from_file(&file)? != stamp {
        return Err(io::Error::other("it changed while it was read"));
    }
    Ok(ReadFile {
        path: path.to_owned(),
        digest: crate::base::hex(&digest),
        mode: 0,
        stamp,
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    let shown = crate::base::text::path(path);
    if error.kind() == io::ErrorKind::NotFound {
        return Fault::new(Kind::DependencyError, "the tool's script no longer exists").person(
            format!("{shown}: does not exist; restore it, or remove the manifest"),
        );
    }
    Fault::new(Kind::ScriptError, "the tool's module cannot be read")
        .person(format!("{shown}: {error}"))
}

/// Remembers; a full map is emptied first.
fn put<K: Eq + std::hash::Hash, V>(map: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut map = lock(map);
    if map.len() >= MAX_REMEMBERED {
        map.clear();
    }
    map.insert(key, value);
}
