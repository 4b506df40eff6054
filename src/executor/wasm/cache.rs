//! Compiled code on disk: private, owner-checked, keyed by content, opened once, handed over open.
//!
//! An entry is a magic word, the SHA-256 of what follows, and the code; its name is the key. A link, or a file that others
//! may write, counts as missing. An entry is seen only when it is complete, and is never held in memory.

use crate::base::files::{self, Folder, Lock};
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, fchmod, fstat};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Largest compiled module: the largest interpreter measured is 261 MB.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
/// Most bytes of all entries together; beyond that the oldest are removed.
const MAX_CACHE_BYTES: u64 = 4 << 30;
/// A half-written entry that is this old belongs to no host that still runs, seconds.
const ABANDONED: i64 = 3600;
const MAGIC: &[u8; 8] = b"thwasm1\n";
/// Where the code starts in an entry.
const CODE_AT: u64 = 8 + 32;
/// Longest text of a refusal.
const MAX_REFUSAL_BYTES: u64 = 64 << 10;

/// One verified entry, open for reading.
#[derive(Clone, Debug)]
pub struct Code {
    pub file: Arc<File>,
    pub offset: u64,
    pub bytes: u64,
}

/// A private folder, held open.
#[derive(Debug)]
pub struct Cache {
    folder: Arc<Folder>,
    /// Bytes of all entries together.
    most: u64,
    /// Kept so that a temporary cache goes with its owner.
    _temporary: Option<tempfile::TempDir>,
}

/// An entry that is being written. If it is dropped unfinished, nothing is left of it.
pub struct New {
    folder: Arc<Folder>,
    file: File,
    name: String,
    sum: Sha256,
    at: u64,
    kept: bool,
}

impl New {
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.sum.update(piece);
        self.file.write_all_at(piece, self.at)?;
        self.at += piece.len() as u64;
        Ok(())
    }

    /// Gives the entry its name, and returns it read-only.
    pub fn finish(mut self, cache: &Cache, key: &str) -> io::Result<Code> {
        self.file.write_all_at(MAGIC, 0)?;
        self.file.write_all_at(&self.sum.finalize_reset(), MAGIC.len() as u64)?;
        fchmod(&self.file, Mode::S_IRUSR)?;
        self.folder.rename(&self.name, key)?;
        self.kept = true;
        let code = cache.get(key).ok_or_else(|| io::Error::other("the entry does not read back"))?;
        cache.tidy(ABANDONED);
        Ok(code)
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.kept {
            let _ = self.folder.remove(&self.name);
        }
    }
}

impl Cache {
    /// Opens (and makes) the cache folder. The error names what is wrong with it, for the person.
    pub fn open(path: &Path) -> Result<Cache, String> {
        let folder = Arc::new(Folder::make(path).map_err(|e| format!("{} cannot be used: {e}", path.display()))?);
        if !folder.is_private() {
            return Err(format!(
                "{} must belong to the user who runs toolhost and be closed to others: chmod 700 it, or remove it",
                path.display()
            ));
        }
        let cache = Cache { folder, most: MAX_CACHE_BYTES, _temporary: None };
        cache.tidy(ABANDONED);
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

    /// The verified entry. `None` where it is missing, foreign or damaged: the caller then builds it anew.
    pub fn get(&self, key: &str) -> Option<Code> {
        let mut file = self.folder.file(key, OFlag::O_RDONLY).ok()?;
        let stat = fstat(&file).ok()?;
        let regular = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        let private = files::is_me(stat.st_uid) && stat.st_mode & 0o077 == 0;
        let size = u64::try_from(stat.st_size).ok()?;
        if !regular || !private || stat.st_nlink != 1 || !(CODE_AT..=MAX_CODE_BYTES + CODE_AT).contains(&size) {
            return None;
        }
        let mut head = [0; 40];
        file.read_exact(&mut head).ok()?;
        let (magic, expected) = head.split_at(MAGIC.len());
        let (found, bytes) = sum((&file).take(size - CODE_AT)).ok()?;
        let sound = magic == MAGIC && found == expected && bytes == size - CODE_AT;
        sound.then(|| Code { file: Arc::new(file), offset: CODE_AT, bytes: size - CODE_AT })
    }

    pub fn begin(&self, key: &str) -> io::Result<New> {
        let name = format!(".{key}.{}", uuid::Uuid::now_v7());
        let file = self.folder.file(&name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        Ok(New { folder: Arc::clone(&self.folder), file, name, sum: Sha256::new(), at: CODE_AT, kept: false })
    }

    /// The lock of a key, between processes: `None` while another holds it.
    pub fn lock(&self, key: &str) -> io::Result<Option<Lock<'_>>> {
        self.folder.lock(&format!("{key}.lock"))
    }

    /// Stores why there is no code for a key.
    pub fn refuse(&self, key: &str, why: &str) -> io::Result<()> {
        self.folder.put(&format!("{key}.refused"), why.as_bytes())
    }

    /// Why there is no code for a key, and how long ago that was stored.
    pub fn refused(&self, key: &str) -> Option<(String, Duration)> {
        let file = self.folder.trusted(&format!("{key}.refused"), OFlag::O_RDONLY).ok()?;
        let since = SystemTime::now().duration_since(file.metadata().ok()?.modified().ok()?).unwrap_or_default();
        let mut why = String::new();
        file.take(MAX_REFUSAL_BYTES).read_to_string(&mut why).ok()?;
        Some((why, since))
    }

    /// Removes what a host left that was killed while writing, and the oldest entries beyond the cache's size.
    /// A removed entry stays readable for those who have it open.
    fn tidy(&self, age: i64) {
        let Ok(names) = self.folder.names() else { return };
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        let mut entries = Vec::new();
        for name in names {
            let Some(stat) = self.folder.stat(&name) else { continue };
            let regular = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
            if !regular || !files::is_me(stat.st_uid) {
                continue;
            }
            if is_key(name.strip_suffix(".refused").unwrap_or(&name)) {
                entries.push((stat.st_mtime, u64::try_from(stat.st_size).unwrap_or(0).max(4096), name));
            } else if is_half_written(&name) && now - stat.st_ctime >= age {
                let _ = self.folder.remove(&name);
            }
        }
        entries.sort();
        let mut bytes: u64 = entries.iter().map(|(_, size, _)| size).sum();
        for (_, size, name) in entries {
            if bytes <= self.most {
                break;
            }
            let _ = self.folder.remove(&name);
            bytes -= size;
        }
    }
}

/// SHA-256 of what is left to read, taken a piece at a time, and how many bytes that was.
pub fn sum(mut from: impl Read) -> io::Result<([u8; 32], u64)> {
    let (mut sum, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        match from.read(&mut piece)? {
            0 => return Ok((sum.finalize().into(), bytes)),
            length => {
                sum.update(&piece[..length]);
                bytes += length as u64;
            }
        }
    }
}

/// The name of an entry: a SHA-256 as we write it.
fn is_key(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Whether this is the name of an unfinished entry or of a lock. A killed host leaves both behind.
fn is_half_written(name: &str) -> bool {
    if name.strip_suffix(".lock").is_some_and(is_key) {
        return true;
    }
    let Some((key, id)) = name.strip_prefix('.').and_then(|rest| rest.split_once('.')) else { return false };
    is_key(key) && uuid::Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

    impl Cache {
        fn put(&self, key: &str, code: &[u8]) -> io::Result<Code> {
            let mut new = self.begin(key)?;
            code.chunks(3).try_for_each(|piece| new.write(piece))?;
            new.finish(self, key)
        }
    }

    fn text(code: &Code) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(code.bytes).expect("small")];
        code.file.read_exact_at(&mut bytes, code.offset).expect("readable");
        bytes
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn an_entry_comes_back_and_only_as_it_was() {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().join("a/b");
        let cache = Cache::open(&folder).expect("made");
        assert!(cache.get("k").is_none());
        assert_eq!(text(&cache.put("k", b"code").expect("written")), b"code");
        assert_eq!(text(&cache.get("k").expect("there")), b"code");
        let file = folder.join("k");
        assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o400);
        chmod(&file, 0o604);
        assert!(cache.get("k").is_none(), "others may read it");
        chmod(&file, 0o600);
        let mut bytes = std::fs::read(&file).expect("readable");
        *bytes.last_mut().expect("some") ^= 1;
        std::fs::write(&file, bytes).expect("writable");
        assert!(cache.get("k").is_none(), "damaged");
        assert_eq!(text(&cache.put("k", b"new").expect("replaced")), b"new");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
            assert!(cache.get("k").is_none(), "somebody else's");
            std::os::unix::fs::chown(&file, Some(0), None).expect("chown");
            assert!(cache.get("k").is_some(), "ours again");
        }
        std::fs::hard_link(&file, base.path().join("second")).expect("linked");
        assert!(cache.get("k").is_none(), "a second name");
        std::fs::remove_file(&file).expect("removed");
        symlink(base.path().join("second"), &file).expect("linked");
        assert!(cache.get("k").is_none(), "a link");
    }

    #[test]
    fn it_does_not_grow_and_keeps_no_leftovers() {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().join("c");
        let mut cache = Cache::open(&folder).expect("made");
        cache.most = 12_500;
        let key = |digit: &str| digit.repeat(64);
        for (at, digit) in ["a", "b", "c"].into_iter().enumerate() {
            cache.put(&key(digit), &[0; 5000]).expect("written");
            let made = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + at as u64);
            let file = File::open(folder.join(key(digit))).expect("there");
            file.set_modified(made).expect("older");
        }
        assert!(cache.get(&key("a")).is_none(), "the oldest made room");
        assert!(cache.get(&key("b")).is_some() && cache.get(&key("c")).is_some());
        cache.refuse(&key("e"), "a bomb").expect("written");
        assert!(cache.refused(&key("e")).is_some_and(|(why, since)| why == "a bomb" && since.as_secs() < 60));
        assert!(cache.refused(&key("f")).is_none());
        let half = format!(".{}.{}", key("d"), uuid::Uuid::now_v7());
        let others = ["notes".to_owned(), ".hidden".to_owned(), format!(".{}.x", key("d")), format!("x{half}")];
        for name in others.iter().chain([&half]) {
            std::fs::write(folder.join(name), "x").expect("made");
        }
        drop(Cache::open(&folder).expect("opened again"));
        assert!(folder.join(&half).exists(), "it is young: somebody may still write it");
        cache.tidy(0);
        assert!(!folder.join(&half).exists());
        assert!(others.iter().all(|name| folder.join(name).exists()));
    }

    #[test]
    fn without_a_usual_folder_there_is_a_temporary_one() {
        let (cache, note) = Cache::usual(|_| None).expect("a cache");
        assert!(note.is_some_and(|n| n.contains("not kept between runs")));
        assert_eq!(text(&cache.put("k", b"code").expect("written")), b"code");
        let base = tempfile::tempdir().expect("tempdir");
        let home = |name: &str| (name == "HOME").then(|| base.path().into());
        let (_, note) = Cache::usual(home).expect("a cache");
        assert_eq!(note, None);
        assert!(base.path().join(".cache/toolhost/wasm").is_dir());
        assert_eq!(Cache::usual_folder(|_| Some("relative".into())), None);
    }

    #[test]
    fn a_folder_open_to_others_is_refused() {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().join("open");
        std::fs::create_dir(&folder).expect("made");
        chmod(&folder, 0o755);
        assert!(Cache::open(&folder).expect_err("open to others").contains("chmod 700"));
        chmod(&folder, 0o700);
        Cache::open(&folder).expect("private");
        symlink(&folder, base.path().join("link")).expect("linked");
        Cache::open(&base.path().join("link")).expect("our own link");
    }
}
