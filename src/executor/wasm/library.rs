//! The library: from a script file to compiled code, once per content.
//!
//! For: the executor. In: a confinement's script, or source that came with the call. Out: verified compiled code.
//! Never: compiles what is cached, compiles twice at once, or reads a file through a link.

use super::cache::{Cache, Code};
use super::compile::{self, Failure, MAX_MODULE_BYTES};
use super::{Workers, engine};
use crate::{fault, policy};
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::hash::Hash;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Most things remembered per map; then it starts anew, since all can be found again. Keeps the
/// number of open cache entries below the usual limit of descriptors.
const MAX_REMEMBERED: usize = 256;
/// Compilers at once; each may use several threads.
const COMPILERS: usize = 2;

/// Compiled code, and the key it is known by.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub key: String,
    pub code: Code,
}

pub struct Library {
    cache: Cache,
    fingerprint: OnceLock<Result<[u8; 32], String>>,
    /// File as it was seen → SHA-256 of its content.
    files: Remembered<PathBuf, (Stamp, String, String)>,
    opened: Remembered<String, Code>,
    /// Modules that will never run, and why.
    refused: Remembered<(String, Option<String>), String>,
    under_way: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    compilers: Arc<tokio::sync::Semaphore>,
}

/// Tells whether a file is the one that was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

/// A module on its way: what it is, and its bytes if they were read already.
pub struct Found {
    /// SHA-256 in hex.
    pub digest: String,
    /// The name of its compiled code.
    key: String,
    bytes: Option<Vec<u8>>,
}

impl Library {
    pub fn new(cache: Cache) -> Library {
        Library {
            cache,
            fingerprint: OnceLock::new(),
            files: Remembered::default(),
            opened: Remembered::default(),
            refused: Remembered::default(),
            under_way: Mutex::default(),
            compilers: Arc::new(tokio::sync::Semaphore::new(COMPILERS)),
        }
    }

    /// Compiled code of a module; compiles only what no cache entry holds. A compiler that runs already
    /// goes on when its caller does not wait for it, so that the next one finds what it made.
    pub async fn prepare(
        self: &Arc<Self>,
        workers: &Arc<dyn Workers>,
        shape: &policy::Shape,
        found: Found,
    ) -> Result<Prepared, fault::Fault> {
        if let Some(known) = self.known(&found.key, shape) {
            return known;
        }
        let turn = Arc::clone(lock(&self.under_way).entry(found.key.clone()).or_default());
        let turn = turn.lock_owned().await;
        let prepared = match self.known(&found.key, shape) {
            Some(known) => known,
            None => self.obtain(workers, shape, found, turn).await,
        };
        lock(&self.under_way).retain(|_, turn| Arc::strong_count(turn) > 1);
        prepared
    }

    /// What this process found out before.
    fn known(&self, key: &str, shape: &policy::Shape) -> Option<Result<Prepared, fault::Fault>> {
        if let Some(code) = self.opened.get(key) {
            return Some(Ok(Prepared { key: key.to_owned(), code }));
        }
        self.refused.get(&(key.to_owned(), shape.entry_point.clone())).map(|why| Err(refusal(&why)))
    }

    /// `turn`: nobody else is at this module.
    async fn obtain(
        self: &Arc<Self>,
        workers: &Arc<dyn Workers>,
        shape: &policy::Shape,
        found: Found,
        turn: tokio::sync::OwnedMutexGuard<()>,
    ) -> Result<Prepared, fault::Fault> {
        let Found { digest, key, bytes } = found;
        let (this, name) = (Arc::clone(self), key.clone());
        // An entry may be large, and is read whole to be verified.
        if let Ok(Some(code)) = tokio::task::spawn_blocking(move || this.cache.get(&name)).await {
            self.opened.put(key.clone(), code.clone());
            return Ok(Prepared { key, code });
        }
        let module = match (bytes, &shape.script) {
            (Some(bytes), _) => bytes,
            (None, Some(script)) => match read(script).await {
                Ok((_, now, bytes)) if now == digest => bytes,
                Ok(_) => return Err(unreadable(script, &changed())),
                Err(e) => return Err(unreadable(script, &e)),
            },
            (None, None) => Vec::new(),
        };
        // Before the task, so that no more of them go on by themselves than there may be compilers.
        let place = Arc::clone(&self.compilers).acquire_owned().await;
        let (this, workers, shape) = (Arc::clone(self), Arc::clone(workers), shape.clone());
        let compiling = tokio::spawn(async move {
            let compiled = this.compile(&*workers, &shape, module, &key).await;
            drop((place, turn));
            match compiled {
                Ok(code) => Ok(Prepared { key, code }),
                Err(Failure::Refused(why)) => Err(refusal(&why)),
                Err(Failure::Failed(fault)) => Err(fault),
            }
        });
        compiling.await.unwrap_or_else(|e| {
            let fault = fault::Fault::new(fault::Kind::InternalError, "the tool could not be compiled").retryable();
            Err(fault.person(e.to_string()))
        })
    }

    /// Compiles, stores and remembers.
    async fn compile(
        self: &Arc<Self>,
        workers: &dyn Workers,
        shape: &policy::Shape,
        module: Vec<u8>,
        key: &str,
    ) -> Result<Code, Failure> {
        let compiled = compile::ask(workers, shape, &module, shape.entry_point.as_deref()).await;
        if let Err(Failure::Refused(why)) = &compiled {
            self.refused.put((key.to_owned(), shape.entry_point.clone()), why.clone());
        }
        let compiled = compiled?;
        drop(module);
        let (this, name) = (Arc::clone(self), key.to_owned());
        let stored = tokio::task::spawn_blocking(move || this.cache.put(&name, &compiled)).await;
        let stored = stored.map_err(io::Error::other).and_then(|stored| stored);
        let code = stored.map_err(|e| {
            let fault = fault::Fault::new(fault::Kind::InternalError, "the compiled tool cannot be stored").retryable();
            Failure::Failed(fault.person(format!("the wasm cache cannot be written: {e}")))
        })?;
        self.opened.put(key.to_owned(), code.clone());
        Ok(code)
    }

    /// The tool's module: source that came with the call, or what its file holds now, read only if it changed.
    pub async fn find(&self, shape: &policy::Shape, source: Option<&str>) -> Result<Found, fault::Fault> {
        let script = match (source, &shape.script) {
            (Some(source), _) => {
                let digest = crate::manifest::sha256_hex(source.as_bytes());
                return Ok(Found { key: self.key(&digest)?, digest, bytes: Some(source.as_bytes().to_vec()) });
            }
            (None, Some(script)) => script,
            (None, None) => {
                return Err(fault::Fault::new(fault::Kind::InternalError, "a wasm tool without a module"));
            }
        };
        // Looked at, not opened: the stamp tells the file that was read before, whichever way the path leads to it.
        let now = script.symlink_metadata().and_then(|facts| Stamp::of(&facts)).map_err(|e| unreadable(script, &e))?;
        match self.files.get(script) {
            Some((stamp, digest, key)) if stamp == now => Ok(Found { digest, key, bytes: None }),
            _ => {
                let (stamp, digest, bytes) = read(script).await.map_err(|e| unreadable(script, &e))?;
                let key = self.key(&digest)?;
                self.files.put(script.clone(), (stamp, digest.clone(), key.clone()));
                Ok(Found { digest, key, bytes: Some(bytes) })
            }
        }
    }

    fn key(&self, digest: &str) -> Result<String, fault::Fault> {
        let fingerprint =
            self.fingerprint.get_or_init(|| engine::fingerprint().map_err(|e| format!("{e:#}"))).as_ref().map_err(
                |e| {
                    fault::Fault::new(fault::Kind::InternalError, "wasm cannot run on this machine")
                        .person(format!("wasmtime does not start: {e}"))
                },
            )?;
        Ok(crate::manifest::sha256_hex(&[digest.as_bytes(), fingerprint].concat()))
    }
}

impl Stamp {
    fn of(data: &Metadata) -> io::Result<Stamp> {
        if !data.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Stamp {
            device: data.dev(),
            inode: data.ino(),
            size: data.len(),
            changed: (data.ctime(), data.ctime_nsec()),
            modified: (data.mtime(), data.mtime_nsec()),
        })
    }
}

/// Opens a module; no component of the path may be a link.
fn open(path: &Path) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(File::from(openat2(AT_FDCWD, path, how)?))
}

/// Reads a module whole, off the runtime's threads: it may be large.
async fn read(path: &Path) -> io::Result<(Stamp, String, Vec<u8>)> {
    let file = open(path)?;
    let reading = move || {
        let stamp = Stamp::of(&file.metadata()?)?;
        let mut bytes = Vec::new();
        (&file).take(MAX_MODULE_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_MODULE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 256 MiB"));
        }
        if Stamp::of(&file.metadata()?)? != stamp {
            return Err(changed());
        }
        Ok((stamp, crate::manifest::sha256_hex(&bytes), bytes))
    };
    tokio::task::spawn_blocking(reading).await.map_err(io::Error::other)?
}

fn changed() -> io::Error {
    io::Error::other("it changed while it was read")
}

fn unreadable(path: &Path, error: &io::Error) -> fault::Fault {
    fault::Fault::new(fault::Kind::ScriptError, "the tool's module cannot be read")
        .person(format!("{}: {error}", path.display()))
}

fn refusal(why: &str) -> fault::Fault {
    fault::Fault::new(fault::Kind::ScriptError, format!("not a module this host can run: {why}"))
}

/// A small map that forgets everything rather than grow.
struct Remembered<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Remembered(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        lock(&self.0).get(key).cloned()
    }
    fn put(&self, key: K, value: V) {
        let mut map = lock(&self.0);
        if map.len() >= MAX_REMEMBERED {
            map.clear();
        }
        map.insert(key, value);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
