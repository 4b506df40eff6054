//! Compiled code on disk, and why a module has none: a content store of this executor's own.

use crate::base::files;
use crate::base::store::{Content, ContentStore, Kind, Limits, Writer};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Largest compiled module: the largest interpreter measured is 261 MB.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
const LIMITS: Limits = Limits { bytes: 4 << 30, files: 1_000_000 };
pub const CODE: Kind = Kind { mark: b"thwasm1\n", ending: "", max_bytes: MAX_CODE_BYTES, has_tree: false };
pub const REFUSAL: Kind = Kind { mark: b"thwref1\n", ending: ".refused", max_bytes: 64 << 10, has_tree: false };
static KINDS: [Kind; 2] = [CODE, REFUSAL];

#[derive(Debug)]
pub struct Cache {
    pub(super) store: ContentStore,
    /// Kept so that a temporary cache goes with its owner.
    _temporary: Option<tempfile::TempDir>,
}

impl Cache {
    /// Opens (and makes) the cache folder. The error names what is wrong with it, for the person.
    pub fn open(path: &Path) -> Result<Cache, String> {
        let cache = Cache { store: ContentStore::open(path, &KINDS, LIMITS)?, _temporary: None };
        let _ = cache.store.tidy(&|_| None);
        Ok(cache)
    }

    /// A cache that lives as long as its owner, where no lasting one may be had.
    pub fn temporary() -> Result<Cache, String> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new()
            .prefix("toolhost-wasm-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|e| format!("no temporary folder: {e}"))?;
        let cache = Cache::open(folder.path())?;
        Ok(Cache { _temporary: Some(folder), ..cache })
    }

    /// `$XDG_CACHE_HOME/toolhost/wasm`, or `~/.cache/toolhost/wasm`; relative values do not count.
    pub fn usual_folder(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        files::cache_folder(environment).map(|folder| folder.join("wasm"))
    }

    /// The usual folder; where it cannot be had, a temporary one, and why, for `doctor` and the log.
    pub fn usual(environment: impl Fn(&str) -> Option<OsString>) -> Result<(Cache, Option<String>), String> {
        let lasting = match Cache::usual_folder(environment) {
            Some(folder) => Cache::open(&folder),
            None => Err("neither XDG_CACHE_HOME nor HOME is an absolute path".to_owned()),
        };
        match lasting {
            Ok(cache) => Ok((cache, None)),
            Err(why) => Ok((Cache::temporary()?, Some(format!("compiled wasm is not kept between runs: {why}")))),
        }
    }

    /// Gives what was written its name.
    pub fn finish(&self, key: &str, written: Writer) -> io::Result<Content> {
        written.finish()?;
        let code = self.store.get(key, &CODE).ok_or_else(|| io::Error::other("the entry does not read back"))?;
        // An entry that is removed stays readable for those who have it open.
        let _ = self.store.tidy(&|_| None);
        Ok(code)
    }

    /// Why there is no code for a key, and how long ago that was stored.
    pub fn refused(&self, key: &str) -> Option<(Vec<u8>, Duration)> {
        let refusal = self.store.peek(key, &REFUSAL)?;
        let stored = refusal.file.metadata().ok()?.modified().ok()?;
        Some((refusal.read()?, SystemTime::now().duration_since(stored).unwrap_or_default()))
    }
}
