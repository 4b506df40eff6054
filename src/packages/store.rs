//! The store: built environments on disk, each known by the digest of everything that it was built from.
//!
//! In its folder, for a key: `KEY.json` (the entry: what it is, and each file with digest and stamp; written last),
//! `NAME` (its tree, under a name of this build alone, so that nothing kept of an older build is taken for it),
//! `KEY.use` (locked while it is used; its time is that of the last use), `KEY.lock` (while it is built),
//! `KEY.resolved` (what was resolved for requirements without a lock), `work.…` (a build under way).

use super::installed::{self, Vendored};
use super::tree::{self, Item, Stamp, TreeError, TreeLimits};
use crate::base::files::{self, Folder, Lock};
use crate::base::lock;
use crate::policy::packages::{Ecosystem, Package};
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Most bytes on disk, and most files and folders, of all entries together; beyond that the ones that were not used for
/// longest go.
const MOST_BYTES: u64 = 20 << 30;
const MOST_FILES: usize = 2_000_000;
/// Largest list of an entry, and largest lock that was resolved, that is written and read, bytes.
const LARGEST_LIST: u64 = 64 << 20;
const LARGEST_LOCK: u64 = 4 << 20;
/// How long a file under a name of its writer alone may be written.
const WRITING: Duration = Duration::from_secs(3600);
/// Most of one entry.
pub const MOST: TreeLimits = TreeLimits { files: 100_000, bytes: 4 << 30 };
/// Files of all lists that are kept in memory.
const REMEMBERED: usize = 300_000;
/// Characters of a key.
const KEY: usize = 32;
const WORK: &str = "work.";
const RESOLVED: &str = ".resolved";

/// What an entry was built from, and how: for people, and for the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    pub ecosystem: Ecosystem,
    /// The tool for which it was built first, `id@version`.
    pub tool: String,
    /// The name of the index.
    pub index: String,
    pub runtime: String,
    pub builds: bool,
    pub packages: Vec<Package>,
    /// Copies of packages inside others.
    #[serde(default)]
    pub vendored: Vec<Vendored>,
    /// When each was published (`name version`), where a policy asked for that.
    pub published: BTreeMap<String, String>,
    /// RFC 3339.
    pub made: String,
}

/// One built environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub key: String,
    /// The folder of its tree.
    pub name: String,
    pub about: BuildInfo,
    pub bytes: u64,
    /// What its files occupy.
    #[serde(default)]
    disk: u64,
    /// What the interpreter runs before the script, below the tree.
    pub starts: Vec<PathBuf>,
    root: Stamp,
    items: Vec<Item>,
}

impl Entry {
    pub fn files(&self) -> usize {
        self.items.iter().filter(|item| item.sha256.is_some()).count()
    }
}

/// An entry, held until this is dropped.
#[derive(Clone, Debug)]
pub struct LockedEntry {
    pub entry: Arc<Entry>,
    /// The root of its tree, absolute.
    pub path: PathBuf,
    _use: Arc<Flock<File>>,
}

/// Folders for one build. Dropped, they are removed.
pub struct Work {
    store: Arc<Store>,
    name: String,
    pub path: PathBuf,
    /// The name that its tree gets.
    pub entry: String,
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = tree::remove(self.store.folder.as_fd(), &self.name);
    }
}

/// A private folder, held open.
#[derive(Debug)]
pub struct Store {
    folder: Folder,
    path: PathBuf,
    /// By the stamp of the file of an entry.
    known: Mutex<HashMap<(String, files::Stamp), Arc<Entry>>>,
}

impl Store {
    /// Opens (and makes) the store. The error names what is wrong with it, for the person.
    pub fn open(path: &Path) -> Result<Arc<Store>, String> {
        let folder = Folder::make(path).map_err(|e| format!("{} cannot be used: {e}", path.display()))?;
        if !folder.is_private() {
            return Err(open_to_others(path));
        }
        let path = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Arc::new(Store { folder, path, known: Mutex::default() }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entry of a key, if it is there and nobody changed it. What was changed is removed, and `tell` hears of it.
    pub fn hold(&self, key: &str, tell: impl FnOnce(&str)) -> io::Result<Option<LockedEntry>> {
        if !self.folder.is_private() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, open_to_others(&self.path)));
        }
        loop {
            let name = format!("{key}.use");
            if self.folder.stat(&format!("{key}.json")).is_none() {
                return Ok(None);
            }
            let file = self.folder.trusted(&name, OFlag::O_RDWR | OFlag::O_CREAT)?;
            let held = Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| io::Error::from(errno))?;
            // Whoever removed the entry meanwhile removed this file too.
            if held.metadata()?.nlink() == 0 {
                continue;
            }
            let Some(entry) = self.entry(key) else { return Ok(None) };
            if let Some(what) = self.changed(&entry) {
                tell(&what);
                drop(held);
                self.remove(key)?;
                return Ok(None);
            }
            held.set_modified(SystemTime::now())?;
            return Ok(Some(LockedEntry { path: self.path.join(&entry.name), entry, _use: Arc::new(held) }));
        }
    }

    /// The entry of a key, as it says of itself; one that cannot be read is as none.
    pub fn entry(&self, key: &str) -> Option<Arc<Entry>> {
        let file = self.folder.trusted(&format!("{key}.json"), OFlag::O_RDONLY).ok()?;
        let stamp = (key.to_owned(), files::Stamp::of(&file).ok()?);
        if let Some(entry) = lock(&self.known).get(&stamp) {
            return Some(entry.clone());
        }
        let text = files::whole(file, LARGEST_LIST).ok()??;
        let entry = serde_json::from_slice::<Entry>(&text).ok()?;
        let entry = Some(entry).filter(|entry| entry.key == key && is_tree(&entry.name)).map(Arc::new)?;
        let mut known = lock(&self.known);
        if known.values().map(|known| known.items.len()).sum::<usize>() + entry.items.len() > REMEMBERED {
            known.clear();
        }
        known.insert(stamp, entry.clone());
        Some(entry)
    }

    /// What is not as it was when the entry was made.
    fn changed(&self, entry: &Entry) -> Option<String> {
        let root = match files::open_at(&self.folder, entry.name.as_str(), OFlag::O_DIRECTORY) {
            Ok(root) => root,
            Err(errno) => return Some(format!("{}: {}", entry.name, errno.desc())),
        };
        if Stamp::now(root.as_fd()).ok() != Some(entry.root) {
            return Some("its folder".to_owned());
        }
        tree::changed(root.as_fd(), &entry.items).map(str::to_owned)
    }

    /// The lock of a key, between processes: `None` while another builds it.
    pub fn lock(&self, key: &str) -> io::Result<Option<Lock<'_>>> {
        self.folder.lock(&format!("{key}.lock"))
    }

    /// Folders for a build. The caller holds the key's lock.
    pub fn begin(self: &Arc<Self>, key: &str) -> io::Result<Work> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let name = format!("{WORK}{key}.{id}");
        let entry = format!("{key}-{}", &id[24..]);
        drop(self.folder.below(&name)?);
        let work = Work { path: self.path.join(&name), store: Arc::clone(self), name, entry };
        for folder in ["fetched", "built"] {
            std::fs::create_dir(work.path.join(folder))?;
        }
        Ok(work)
    }

    /// Where the tree of a build will lie.
    pub fn place(&self, work: &Work) -> PathBuf {
        self.path.join(&work.entry)
    }

    /// Looks at what a build left in `from`, a folder of its work, as `site` of a new entry: only what is in the list
    /// of the approved may be there. Returns the copies of packages inside others.
    pub fn examine(
        &self,
        work: &Work,
        ecosystem: Ecosystem,
        approved: &BTreeMap<String, Package>,
        layout: &Layout,
    ) -> Result<Examined, TreeError> {
        let made = work.path.join("entry");
        let site = made.join(&layout.site);
        std::fs::create_dir_all(site.parent().unwrap_or(&made))?;
        std::fs::rename(work.path.join(&layout.from), &site)?;
        let root = files::without_links(&made, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let built = tree::taken(root.as_fd(), MOST)?;
        let vendored = installed::compared(root.as_fd(), &built, &layout.site, ecosystem, approved)?;
        Ok(Examined { made, root, built, vendored })
    }

    /// Takes over what was examined as an entry.
    pub fn keep(
        &self,
        work: &Work,
        key: &str,
        about: BuildInfo,
        layout: &Layout,
        from: Examined,
    ) -> Result<(), TreeError> {
        let Examined { made, root, built, .. } = from;
        for (path, text) in &layout.files {
            std::fs::write(made.join(path), text)?;
        }
        let mut own: Vec<Item> = layout.files.iter().map(|(path, _)| Item::own(path)).collect();
        for (path, target) in &layout.links {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            std::fs::create_dir_all(made.join(folder))?;
            std::fs::set_permissions(made.join(folder), Permissions::from_mode(0o755))?;
            symlink(target, made.join(path))?;
            own.extend([Item::own(folder), Item::own(path)]);
        }
        self.folder.rename(&format!("{}/entry", work.name), &work.entry)?;
        let bytes = built.iter().map(|item| item.bytes).sum();
        let starts = tree::starts(&built, &layout.site);
        let (items, disk) = tree::stamped(root.as_fd(), built.into_iter().chain(own).collect())?;
        let root = Stamp::now(root.as_fd())?;
        let (key, name) = (key.to_owned(), work.entry.clone());
        let entry = Entry { key: key.clone(), name, about, bytes, disk, starts, root, items };
        let text = serde_json::to_vec(&entry).map_err(io::Error::from)?;
        let kept = match text.len() as u64 <= LARGEST_LIST {
            true => self.folder.put(&format!("{key}.json"), &text),
            false => Err(io::Error::other("the names of the packages' files are too long to be listed")),
        };
        if kept.is_err() {
            let _ = tree::remove(self.folder.as_fd(), &entry.name);
        }
        Ok(kept?)
    }

    /// All entries that can be read, and when each was used last.
    pub fn list(&self) -> io::Result<Vec<(Arc<Entry>, SystemTime)>> {
        let mut all = Vec::new();
        for name in self.folder.names()? {
            let Some(key) = name.strip_suffix(".json").filter(|key| is_key(key)) else { continue };
            if let Some(entry) = self.entry(key) {
                let used = self.folder.file(&format!("{key}.use"), OFlag::O_RDONLY).and_then(|file| file.metadata());
                all.push((entry, used.and_then(|facts| facts.modified()).unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        all.sort_by_key(|(_, used)| *used);
        Ok(all)
    }

    /// What is not as it was built, by whole digests: a path, or `None`.
    pub fn altered(&self, entry: &Entry) -> Option<String> {
        if let Some(path) = self.changed(entry) {
            return Some(path);
        }
        let root = files::open_at(&self.folder, entry.name.as_str(), OFlag::O_DIRECTORY).ok()?;
        tree::altered(root.as_fd(), &entry.items).map(str::to_owned)
    }

    /// Removes an entry; false: it is in use.
    pub fn remove(&self, key: &str) -> io::Result<bool> {
        let Some(_alone) = self.unused(key)? else { return Ok(false) };
        let entry = self.entry(key);
        // First what makes it an entry: what is left if this process ends now is no entry.
        let _ = self.folder.remove(&format!("{key}.json"));
        if let Some(entry) = entry {
            match tree::remove(self.folder.as_fd(), &entry.name) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        let _ = self.folder.remove(&format!("{key}.use"));
        Ok(true)
    }

    /// Keeps calls from a key; `None`: one uses it.
    fn unused(&self, key: &str) -> io::Result<Option<Flock<File>>> {
        let file = self.folder.trusted(&format!("{key}.use"), OFlag::O_RDWR | OFlag::O_CREAT)?;
        Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
    }

    /// Removes what hosts left that were killed, entries that cannot be read, and the entries and resolved locks not used
    /// for longest beyond the limits. What cannot be removed stays for the next time.
    pub fn tidy(&self) -> io::Result<()> {
        let all = self.list()?;
        let named: BTreeSet<&str> = all.iter().map(|(entry, _)| entry.name.as_str()).collect();
        let keys: BTreeSet<&str> = all.iter().map(|(entry, _)| entry.key.as_str()).collect();
        for name in self.folder.names()? {
            let key = match name.strip_prefix(WORK) {
                Some(rest) => rest.split('.').next(),
                // The tree of an entry that was never finished, or is half removed; an entry that cannot be read.
                None if is_tree(&name) => Some(key_of_tree(&name)).filter(|_| !named.contains(&*name)),
                None => match name.rsplit_once('.') {
                    Some((key, "json" | "use")) if !keys.contains(key) => Some(key),
                    Some((key, "lock")) => Some(key),
                    _ => None,
                },
            };
            if let Some(key) = key.filter(|key| is_key(key))
                && let Err(e) = self.tidy_one(&name, key)
            {
                tracing::warn!(target: "toolhost::packages", "{name} in the store cannot be removed: {e}");
            }
        }
        // By last use: a key or the name of a lock, bytes on disk, files.
        let mut sizes: Vec<(SystemTime, String, u64, usize)> = self.locks()?;
        let size = |entry: &Entry| (entry.disk.max(entry.bytes), entry.items.len());
        sizes.extend(all.iter().map(|(entry, used)| (*used, entry.key.clone(), size(entry).0, size(entry).1)));
        sizes.sort();
        let mut bytes: u64 = sizes.iter().map(|(.., bytes, _)| bytes).sum();
        let mut files: usize = sizes.iter().map(|(.., files)| files).sum();
        for (_, name, its_bytes, its_files) in sizes {
            if bytes <= MOST_BYTES && files <= MOST_FILES {
                break;
            }
            let removed = match name.ends_with(RESOLVED) {
                true => self.folder.remove(&name).is_ok(),
                false => self.remove(&name).unwrap_or(false),
            };
            if removed {
                (bytes, files) = (bytes - its_bytes, files - its_files);
            }
        }
        Ok(())
    }

    /// The locks that were resolved, by last use, each with its bytes on disk; removes those whose writing never ended.
    fn locks(&self) -> io::Result<Vec<(SystemTime, String, u64, usize)>> {
        let mut found = Vec::new();
        for name in self.folder.names()? {
            let facts = || self.folder.file(&name, OFlag::O_RDONLY).and_then(|file| file.metadata()).ok();
            let age = |facts: &std::fs::Metadata| facts.modified().ok()?.elapsed().ok();
            if name.starts_with('.') && facts().is_some_and(|facts| age(&facts).is_some_and(|age| age > WRITING)) {
                self.folder.remove(&name)?;
            }
            if name.ends_with(RESOLVED)
                && let Some(facts) = facts()
            {
                found.push((facts.modified()?, name, facts.blocks() * 512, 1));
            }
        }
        Ok(found)
    }

    fn tidy_one(&self, name: &str, key: &str) -> io::Result<()> {
        // Whoever builds holds the lock of the key.
        let Some(_lock) = self.lock(key)? else { return Ok(()) };
        if name.starts_with(WORK) {
            return tree::remove(self.folder.as_fd(), name);
        }
        // A call that began before somebody changed it uses it still.
        let Some(_alone) = self.unused(key)? else { return Ok(()) };
        let entry = self.entry(key);
        // It may have become an entry's since the list was made.
        if is_tree(name) && entry.as_ref().is_none_or(|entry| entry.name != name) {
            tree::remove(self.folder.as_fd(), name)?;
        }
        if entry.is_none() {
            let listed = format!("{key}.json");
            if self.folder.remove(&listed).is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
                tree::remove(self.folder.as_fd(), &listed)?;
            }
            let _ = self.folder.remove(&format!("{key}.use"));
        }
        Ok(())
    }

    /// What was resolved for these requirements before.
    pub fn resolved(&self, key: &str) -> Option<String> {
        let file = self.folder.trusted(&format!("{key}{RESOLVED}"), OFlag::O_RDWR).ok()?;
        file.set_modified(SystemTime::now()).ok()?;
        String::from_utf8(files::whole(file, LARGEST_LOCK).ok()??).ok()
    }

    pub fn keep_resolved(&self, key: &str, text: &str) -> io::Result<()> {
        if text.len() as u64 > LARGEST_LOCK {
            return Err(io::Error::other(format!("what was resolved is larger than {LARGEST_LOCK} bytes")));
        }
        self.folder.put(&format!("{key}{RESOLVED}"), text.as_bytes())
    }

    pub fn forget(&self, key: &str) -> io::Result<()> {
        match self.folder.remove(&format!("{key}{RESOLVED}")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    pub fn forget_resolved(&self) -> io::Result<()> {
        let names = self.folder.names()?;
        names.iter().filter(|name| name.ends_with(RESOLVED)).try_for_each(|name| self.folder.remove(name))
    }
}

/// What a build left, read whole.
pub struct Examined {
    made: PathBuf,
    root: std::os::fd::OwnedFd,
    built: Vec<Item>,
    pub vendored: Vec<Vendored>,
}

/// Where in an entry a build's result goes, and what the host adds.
pub struct Layout {
    /// Below the work.
    pub from: PathBuf,
    /// Below the entry, with `/` between.
    pub site: String,
    pub files: Vec<(String, String)>,
    pub links: Vec<(String, PathBuf)>,
}

fn open_to_others(path: &Path) -> String {
    let path = path.display();
    format!("{path} must belong to the user who runs toolhost and be closed to others: chmod 700 it, or remove it")
}

/// The key for a text: the first half of its SHA-256, in hex.
pub fn key_of(text: &[u8]) -> String {
    crate::base::sha256_hex(text)[..KEY].to_owned()
}

fn is_key(name: &str) -> bool {
    name.len() == KEY && is_hex(name)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The key that the name of a tree begins with.
fn key_of_tree(name: &str) -> &str {
    name.split_once('-').map_or(name, |(key, _)| key)
}

/// The name of a tree, as `begin` makes it.
fn is_tree(name: &str) -> bool {
    name.split_once('-').is_some_and(|(key, id)| is_key(key) && id.len() == 8 && is_hex(id))
}
