//! The store for what the host builds once and keeps on disk: a private folder of records, each
//! with a key, and of folder trees that records name.
//!
//! A record is a file that begins with the mark of its kind and the SHA-256 of its content. Records
//! and trees appear whole, by rename. A record of another kind, a link, or a file that others may
//! read or write does not open. Each kind of content has its own folder and limits, so that none is
//! evicted for another.

use super::files::{self, Folder, Lock, is, names_in, open_at};
use nix::fcntl::{AtFlags, OFlag, RenameFlags, renameat2};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmod, fchmodat, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where the content of a record starts: after the mark and the digest.
const HEADER_BYTES: u64 = 8 + 32;
/// Precision of the time of last use.
const USE_PRECISION: Duration = Duration::from_secs(60);
/// An unfinished record of this age, seconds, belongs to no host that still runs.
const ABANDONED_AFTER_SECONDS: i64 = 3600;
/// Fewest characters of a key: lower-case hexadecimal digits.
const MIN_KEY_CHARS: usize = 32;

/// A kind of records in the store.
#[derive(Debug)]
pub struct RecordKind {
    pub mark: &'static [u8; 8],
    /// What follows the key in the name of a record.
    pub ending: &'static str,
    pub max_bytes: u64,
    /// Each record names a tree, and is useless without it.
    pub has_tree: bool,
}

/// Limits for all records and trees together. Beyond them, those unused for longest are removed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    pub files: usize,
}

/// The tree that a record names, and its size.
pub struct Tree {
    pub name: String,
    pub bytes: u64,
    pub files: usize,
}

/// A record, open for reading.
#[derive(Clone, Debug)]
pub struct Content {
    pub file: Arc<File>,
    pub offset: u64,
    pub bytes: u64,
}

impl Content {
    /// Whether the content is as its digest says.
    pub fn is_intact(&self) -> bool {
        self.digest().is_ok_and(|(found, bytes)| {
            bytes == self.bytes && self.stated().is_ok_and(|stated| stated == found)
        })
    }

    /// The whole content, if it is intact.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader().read_to_end(&mut bytes).ok()?;
        (digest(&*bytes).ok()? == (self.stated().ok()?, self.bytes)).then_some(bytes)
    }

    /// The digest and the size of the content as it is.
    pub fn digest(&self) -> io::Result<([u8; 32], u64)> {
        digest(self.reader())
    }

    /// The digest that the record begins with.
    pub fn stated(&self) -> io::Result<[u8; 32]> {
        let mut stated = [0; 32];
        self.file
            .read_exact_at(&mut stated, HEADER_BYTES - 32)
            .map(|()| stated)
    }

    /// Leaves the position of the file alone: others may read the same one now.
    fn reader(&self) -> impl Read {
        Reader {
            file: &self.file,
            at: self.offset,
        }
        .take(self.bytes)
    }
}

struct Reader<'f> {
    file: &'f File,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(into, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// A record that is being written. Dropped unfinished, it is removed.
pub struct Writer {
    folder: Arc<Folder>,
    kind: &'static RecordKind,
    file: File,
    temporary: String,
    name: String,
    sum: Sha256,
    bytes: u64,
}

impl Writer {
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.bytes + piece.len() as u64 > self.kind.max_bytes {
            return Err(io::Error::other(format!(
                "it is larger than {} bytes",
                self.kind.max_bytes
            )));
        }
        self.sum.update(piece);
        self.file.write_all_at(piece, HEADER_BYTES + self.bytes)?;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// What was written until now.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        let at = HEADER_BYTES;
        let reader = Reader {
            file: &self.file,
            at,
        };
        reader.take(self.bytes).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Gives the record its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.write_all_at(self.kind.mark, 0)?;
        self.file
            .write_all_at(&self.sum.finalize_reset(), HEADER_BYTES - 32)?;
        fchmod(&self.file, Mode::S_IRUSR)?;
        self.folder.rename(&self.temporary, &self.name)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Already gone if it was finished.
        let _ = self.folder.remove(&self.temporary);
    }
}

/// A folder in which a tree is built. Dropped, it is removed.
pub struct Work {
    folder: Arc<Folder>,
    name: String,
    pub path: PathBuf,
    /// The name that the tree gets.
    pub tree: String,
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = remove_tree(self.folder.as_fd(), &self.name);
    }
}

/// What a name in the folder stands for.
enum Part {
    Record(&'static RecordKind),
    Tree,
    Unfinished,
    /// A lock, a folder of work, or what an older version left.
    Leftover,
}

#[derive(Debug)]
pub struct ContentStore {
    folder: Arc<Folder>,
    path: PathBuf,
    kinds: &'static [RecordKind],
    limits: Limits,
}

impl ContentStore {
    /// Opens the folder, and makes it where it is missing. The error is for the person.
    pub fn open(
        path: &Path,
        kinds: &'static [RecordKind],
        limits: Limits,
    ) -> Result<ContentStore, String> {
        let folder =
            Folder::make(path).map_err(|e| format!("{} cannot be used: {e}", path.display()))?;
        let path = path
            .canonicalize()
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let store = ContentStore {
            folder: Arc::new(folder),
            path,
            kinds,
            limits,
        };
        store.check_private().map(|()| store)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder is still closed to others.
    pub fn check_private(&self) -> Result<(), String> {
        if self.folder.is_private() {
            return Ok(());
        }
        let path = self.path.display();
        Err(format!(
            "{path} must belong to the user who runs toolhost and be closed to others: chmod 700 \
            it, or remove it"
        ))
    }

    /// Opens a record, and marks it as used now. Does not verify its content.
    pub fn open_record(&self, key: &str, kind: &RecordKind) -> Option<Content> {
        let content = self.peek(key, kind)?;
        let used = content.file.metadata().ok()?.modified().ok()?;
        if SystemTime::now()
            .duration_since(used)
            .map_or(true, |since| since > USE_PRECISION)
        {
            content.file.set_modified(SystemTime::now()).ok()?;
        }
        Some(content)
    }

    /// Opens a record without marking it as used.
    pub fn peek(&self, key: &str, kind: &RecordKind) -> Option<Content> {
        let file = self
            .folder
            .file(&format!("{key}{}", kind.ending), OFlag::O_RDONLY)
            .ok()?;
        let stat = fstat(&file).ok()?;
        let is_private =
            files::is_me(stat.st_uid) && stat.st_mode & 0o077 == 0 && stat.st_nlink == 1;
        let bytes = u64::try_from(stat.st_size)
            .ok()?
            .checked_sub(HEADER_BYTES)?;
        if !is(stat.st_mode, SFlag::S_IFREG) || !is_private || bytes > kind.max_bytes {
            return None;
        }
        let mut mark = [0; 8];
        file.read_exact_at(&mut mark, 0).ok()?;
        (mark == *kind.mark).then(|| Content {
            file: Arc::new(file),
            offset: HEADER_BYTES,
            bytes,
        })
    }

    /// Opens a record whose content fits its digest. Any other record counts as missing.
    pub fn get(&self, key: &str, kind: &RecordKind) -> Option<Content> {
        self.open_record(key, kind).filter(Content::is_intact)
    }

    pub fn write(&self, key: &str, kind: &'static RecordKind) -> io::Result<Writer> {
        let temporary = format!(".{key}.{}", uuid::Uuid::now_v7());
        let file = self
            .folder
            .file(&temporary, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
        let folder = Arc::clone(&self.folder);
        let name = format!("{key}{}", kind.ending);
        Ok(Writer {
            folder,
            kind,
            file,
            temporary,
            name,
            sum: Sha256::new(),
            bytes: 0,
        })
    }

    pub fn put(&self, key: &str, kind: &'static RecordKind, content: &[u8]) -> io::Result<()> {
        let mut writer = self.write(key, kind)?;
        writer.write(content)?;
        writer.finish()
    }

    /// The lock of a key, between processes: `None` while another holds it.
    pub fn lock(&self, key: &str) -> io::Result<Option<Lock<'_>>> {
        self.folder.lock(&format!("{key}.lock"))
    }

    /// A folder in which the tree of a key is built. The caller holds the key's lock.
    pub fn begin_tree(&self, key: &str) -> io::Result<Work> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let name = format!("work.{key}.{id}");
        drop(self.folder.below(&name)?);
        let path = self.path.join(&name);
        let tree = format!("{key}-{}", &id[24..]);
        Ok(Work {
            folder: Arc::clone(&self.folder),
            name,
            path,
            tree,
        })
    }

    /// Gives a folder of the work the name of its tree.
    pub fn keep_tree(&self, work: &Work, built: &str) -> io::Result<()> {
        self.folder
            .rename(&format!("{}/{built}", work.name), &work.tree)
    }

    pub fn remove_tree(&self, name: &str) -> io::Result<()> {
        remove_tree(self.folder.as_fd(), name)
    }

    pub fn open_tree(&self, name: &str) -> nix::Result<OwnedFd> {
        open_at(&self.folder, name, OFlag::O_DIRECTORY)
    }

    /// Opens a tree. It is not removed while the result is open. `None`: it does not exist.
    pub fn hold_tree(&self, name: &str) -> io::Result<Option<File>> {
        let Ok(root) = self.open_tree(name).map(File::from) else {
            return Ok(None);
        };
        root.lock_shared()?;
        // It may have been removed meanwhile.
        Ok(Some(root).filter(|root| fstat(root).is_ok_and(|stat| stat.st_nlink > 0)))
    }

    /// The keys of this kind that have a record.
    pub fn names(&self, kind: &RecordKind) -> io::Result<Vec<String>> {
        let names = self.folder.names()?;
        let keys = names
            .iter()
            .filter_map(|name| name.strip_suffix(kind.ending))
            .filter(|name| is_key(name));
        Ok(keys.map(str::to_owned).collect())
    }

    /// The keys of this kind that have a record, and when each was used last.
    pub fn keys(&self, kind: &RecordKind) -> io::Result<Vec<(String, SystemTime)>> {
        fn used(key: &str, this: &ContentStore, kind: &RecordKind) -> Option<SystemTime> {
            this.peek(key, kind)?.file.metadata().ok()?.modified().ok()
        }
        let keys = self.names(kind)?.into_iter();
        Ok(keys
            .filter_map(|key| Some((key.clone(), used(&key, self, kind)?)))
            .collect())
    }

    /// Removes a record and the tree that it names. False: the record or tree is in use or being
    /// built.
    pub fn remove(&self, key: &str, kind: &RecordKind, tree: Option<&str>) -> io::Result<bool> {
        // The record goes first: if this process ends in between, the remaining tree belongs to no
        // record.
        let names: Vec<_> = [&*format!("{key}{}", kind.ending)]
            .into_iter()
            .chain(tree)
            .map(str::to_owned)
            .collect();
        self.discard(key, &names, &|| false)
    }

    /// Removes files of a key. False: they stay, because the key is being built, a tree is in use,
    /// or they are needed.
    fn discard(
        &self,
        key: &str,
        names: &[String],
        are_needed: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let Some(_lock) = self.lock(key)? else {
            return Ok(false);
        };
        let trees: Vec<_> = names
            .iter()
            .filter_map(|name| self.open_tree(name).map(File::from).ok())
            .collect();
        for tree in &trees {
            match tree.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(false),
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        if are_needed() {
            return Ok(false);
        }
        for name in names {
            match self.folder.stat(name) {
                None => {}
                Some(stat) if is(stat.st_mode, SFlag::S_IFDIR) => self.remove_tree(name)?,
                Some(_) => self.folder.remove(name)?,
            }
        }
        Ok(true)
    }

    /// Removes leftovers of killed hosts, records without a tree, and trees without a record.
    /// Beyond the limits it also removes what was unused longest. `tree_of`: the tree that the
    /// record of a key names, if it can be read. Files that cannot be removed stay for the next
    /// time.
    pub fn tidy(&self, tree_of: &dyn Fn(&str) -> Option<Tree>) -> io::Result<()> {
        let mut records = Vec::new();
        for name in self.folder.names()? {
            let Some((key, part)) = self.part(&name) else {
                continue;
            };
            let is_needed = || self.is_needed(&name, key, &part, tree_of);
            if !is_needed() {
                // `discard` itself locks the key, which removes a lock file. Other files may be
                // needed by now.
                let names = if name.ends_with(".lock") {
                    Vec::new()
                } else {
                    vec![name.clone()]
                };
                if let Err(e) = self.discard(key, &names, &is_needed) {
                    let store = self.path.display();
                    tracing::warn!(target: "toolhost::store", "{name} in {store} cannot be \
                        removed: {e}");
                }
            } else if let (Part::Record(kind), Some(stat)) = (&part, self.folder.stat(&name)) {
                let own = u64::try_from(stat.st_size).unwrap_or(0).max(4096);
                let tree = tree_of(key).filter(|_| kind.has_tree);
                let (bytes, files) = tree
                    .as_ref()
                    .map_or((own, 1), |tree| (own + tree.bytes, 1 + tree.files));
                let tree = tree.map(|tree| tree.name);
                records.push((
                    (stat.st_mtime, stat.st_mtime_nsec),
                    key.to_owned(),
                    *kind,
                    tree,
                    bytes,
                    files,
                ));
            }
        }
        records.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let sizes = records.iter().map(|(.., bytes, files)| (*bytes, *files));
        let (mut bytes, mut files) = sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        for (_, key, kind, tree, its_bytes, its_files) in records {
            if bytes <= self.limits.bytes && files <= self.limits.files {
                break;
            }
            if self.remove(&key, kind, tree.as_deref()).unwrap_or(false) {
                (bytes, files) = (bytes - its_bytes, files - its_files);
            }
        }
        Ok(())
    }

    fn part<'n>(&self, name: &'n str) -> Option<(&'n str, Part)> {
        let temporary = name.strip_prefix('.');
        let work = name.strip_prefix("work.");
        let rest = temporary.or(work).unwrap_or(name);
        let ending = rest.trim_start_matches(|c| matches!(c, '0'..='9' | 'a'..='f'));
        let key = &rest[..rest.len() - ending.len()];
        let kind = self.kinds.iter().find(|kind| kind.ending == ending);
        let part = match (temporary, work, kind) {
            (Some(_), ..) if ending.starts_with('.') => Part::Unfinished,
            (None, Some(_), _) => Part::Leftover,
            (None, None, Some(kind)) => Part::Record(kind),
            (None, None, None) if ending.starts_with('-') => Part::Tree,
            (None, None, None) if ending.starts_with('.') => Part::Leftover,
            _ => return None,
        };
        is_key(key).then_some((key, part))
    }

    fn is_needed(
        &self,
        name: &str,
        key: &str,
        part: &Part,
        tree_of: &dyn Fn(&str) -> Option<Tree>,
    ) -> bool {
        match part {
            Part::Record(kind) => !kind.has_tree || tree_of(key).is_some(),
            Part::Tree => tree_of(key).is_some_and(|tree| tree.name == name),
            Part::Unfinished => {
                let now = jiff::Timestamp::now().as_second();
                self.folder
                    .stat(name)
                    .is_none_or(|stat| now.saturating_sub(stat.st_mtime) < ABANDONED_AFTER_SECONDS)
            }
            Part::Leftover => false,
        }
    }
}

fn is_key(name: &str) -> bool {
    name.len() >= MIN_KEY_CHARS && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads to the end. Returns the SHA-256 of the bytes, and how many there were.
pub fn digest(mut from: impl Read) -> io::Result<([u8; 32], u64)> {
    let mut sum = Sha256::new();
    let mut bytes = 0;
    let mut piece = vec![0; 256 << 10];
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

/// Removes a tree, however deep: every folder below is first moved up to the top.
fn remove_tree(parent: BorrowedFd, name: &str) -> io::Result<()> {
    // A build may take away the rights to its own folders. No process is left that could put a link
    // there meanwhile.
    fn unlock(folder: BorrowedFd, name: &CStr) -> Result<(), nix::errno::Errno> {
        let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if is(stat.st_mode, SFlag::S_IFDIR) {
            fchmodat(folder, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
        }
        Ok::<_, nix::errno::Errno>(())
    }
    fn open(
        folder: BorrowedFd,
        name: &CStr,
        unlock: &impl Fn(BorrowedFd<'_>, &CStr) -> Result<(), nix::errno::Errno>,
    ) -> Result<OwnedFd, nix::errno::Errno> {
        unlock(folder, name)?;
        open_at(folder, name, OFlag::O_DIRECTORY)
    }
    let top = open(parent, &CString::new(name)?, &unlock)?;
    let mut moved = 0_u64;
    loop {
        let names: Vec<CString> = names_in(&top)?.collect::<nix::Result<_>>()?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if unlinkat(&top, name.as_c_str(), UnlinkatFlags::NoRemoveDir).is_ok() {
                continue;
            }
            let below = open(top.as_fd(), &name, &unlock)?;
            for inner in names_in(&below)?.collect::<nix::Result<Vec<_>>>()? {
                if unlinkat(&below, inner.as_c_str(), UnlinkatFlags::NoRemoveDir).is_ok() {
                    continue;
                }
                unlock(below.as_fd(), &inner)?;
                loop {
                    moved += 1;
                    let aside = CString::new(format!(".{moved}"))?;
                    match renameat2(
                        &below,
                        inner.as_c_str(),
                        &top,
                        aside.as_c_str(),
                        RenameFlags::RENAME_NOREPLACE,
                    ) {
                        Err(nix::errno::Errno::EEXIST) => {}
                        done => break done?,
                    }
                }
            }
            unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        }
    }
    Ok(unlinkat(parent, name, UnlinkatFlags::RemoveDir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const CODE: RecordKind = RecordKind {
        mark: b"thcode1\n",
        ending: "",
        max_bytes: 6000,
        has_tree: false,
    };
    const LIST: RecordKind = RecordKind {
        mark: b"thlist1\n",
        ending: ".list",
        max_bytes: 6000,
        has_tree: true,
    };
    static KINDS: [RecordKind; 2] = [CODE, LIST];
    const LIMITS: Limits = Limits {
        bytes: 12_500,
        files: 100,
    };

    fn key(digit: &str) -> String {
        digit.repeat(64)
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn a_record_comes_back_and_only_as_it_was() {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().join("a/b");
        let store = ContentStore::open(&folder, &KINDS, LIMITS).expect("made");
        let get = || {
            store
                .get(&key("a"), &CODE)
                .and_then(|content| content.read())
        };
        let file = folder.join(key("a"));
        assert!(get().is_none());
        store.put(&key("a"), &CODE, b"code").expect("written");
        assert_eq!(get().as_deref(), Some(&b"code"[..]));
        assert_eq!(
            std::fs::metadata(&file)
                .expect("there")
                .permissions()
                .mode()
                & 0o777,
            0o400
        );
        std::fs::copy(&file, folder.join(format!("{}.list", key("a")))).expect("copied");
        assert!(store.get(&key("a"), &LIST).is_none(), "another kind");
        chmod(&file, 0o604);
        assert!(get().is_none(), "others may read it");
        chmod(&file, 0o600);
        assert!(get().is_some(), "the control");
        let mut bytes = std::fs::read(&file).expect("readable");
        *bytes.last_mut().expect("some") ^= 1;
        std::fs::write(&file, bytes).expect("writable");
        assert!(get().is_none(), "damaged");
        store.put(&key("a"), &CODE, b"new").expect("replaced");
        assert_eq!(get().as_deref(), Some(&b"new"[..]));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
            assert!(get().is_none(), "somebody else's");
            std::os::unix::fs::chown(&file, Some(0), None).expect("chown");
            assert!(get().is_some(), "ours again");
        }
        std::fs::hard_link(&file, base.path().join("second")).expect("linked");
        assert!(get().is_none(), "a second name");
        std::fs::remove_file(&file).expect("removed");
        symlink(base.path().join("second"), &file).expect("linked");
        assert!(get().is_none(), "a link");
        assert!(
            store.put(&key("a"), &CODE, &[0; 6001]).is_err(),
            "too large"
        );
        chmod(&folder, 0o755);
        assert!(
            ContentStore::open(&folder, &KINDS, LIMITS)
                .expect_err("open to others")
                .contains("chmod 700")
        );
    }

    #[test]
    fn it_does_not_grow_and_keeps_no_leftovers() {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().canonicalize().expect("there").join("c");
        let store = ContentStore::open(&folder, &KINDS, LIMITS).expect("made");
        let used = |name: String, seconds: u64| {
            let file = File::open(folder.join(name)).expect("there");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
                .expect("older");
        };
        for (at, digit) in [1, 2, 3].into_iter().zip(["a", "b", "c"]) {
            store.put(&key(digit), &CODE, &[0; 5000]).expect("written");
            used(key(digit), 1000 * at);
        }
        store.get(&key("a"), &CODE).expect("the oldest is used");
        store.tidy(&|_| None).expect("tidied");
        assert!(
            store.peek(&key("b"), &CODE).is_none(),
            "not used for longest"
        );
        assert!(store.peek(&key("a"), &CODE).is_some() && store.peek(&key("c"), &CODE).is_some());

        store.remove(&key("a"), &CODE, None).expect("removed");
        let make = |digit: &str| {
            let work = store.begin_tree(&key(digit)).expect("begun");
            std::fs::create_dir(work.path.join("built")).expect("made");
            store.keep_tree(&work, "built").expect("kept");
            store
                .put(&key(digit), &LIST, work.tree.as_bytes())
                .expect("written");
            work.tree.clone()
        };
        let (first, second, stray) = (make("d"), make("e"), make("f"));
        std::fs::remove_file(folder.join(format!("{}.list", key("f")))).expect("removed");
        let tree_of = |key: &str| {
            let name = String::from_utf8(store.peek(key, &LIST)?.read()?).ok()?;
            Some(Tree {
                name,
                bytes: 0,
                files: 1,
            })
        };
        let half = format!(".{}.x", key("d"));
        let gone = [
            format!("work.{}.x", key("d")),
            format!("{}.lock", key("a")),
            format!("{}.json", key("d")),
        ];
        let others = ["notes".to_owned(), ".hidden".to_owned(), format!("x{half}")];
        for name in gone.iter().chain(&others).chain([&half]) {
            std::fs::write(folder.join(name), "x").expect("made");
        }
        let held = store.hold_tree(&stray).expect("looked at").expect("there");
        store.tidy(&tree_of).expect("tidied");
        assert!(folder.join(&stray).exists(), "somebody uses it");
        drop(held);
        store.tidy(&tree_of).expect("tidied");
        assert!(
            !folder.join(&stray).exists() && gone.iter().all(|name| !folder.join(name).exists())
        );
        assert!(others.iter().all(|name| folder.join(name).exists()));
        assert!(
            folder.join(&half).exists(),
            "it is young: somebody may still write it"
        );
        assert!(
            folder.join(&first).exists() && folder.join(&second).exists(),
            "the control"
        );

        let held = store.hold_tree(&first).expect("looked at").expect("there");
        assert!(
            !store.remove(&key("d"), &LIST, Some(&first)).expect("tried"),
            "somebody uses it"
        );
        drop(held);
        assert!(
            store
                .remove(&key("d"), &LIST, Some(&first))
                .expect("removed")
                && !folder.join(&first).exists()
        );
        std::fs::remove_dir(folder.join(&second)).expect("removed");
        assert!(store.hold_tree(&second).expect("looked at").is_none());
    }

    #[test]
    fn a_tree_is_removed_however_deep_and_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut at = folder.path().join("top");
        std::fs::create_dir(&at).expect("made");
        for _ in 0..40 {
            at = at.join("d".repeat(90));
            std::fs::create_dir(&at).expect("made");
        }
        chmod(&at, 0o000);
        let parent = files::without_links(folder.path(), OFlag::O_RDONLY | OFlag::O_DIRECTORY)
            .expect("a folder");
        remove_tree(parent.as_fd(), "top").expect("removed");
        assert!(!folder.path().join("top").exists());
    }
}
