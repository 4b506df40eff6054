//! Built environments on disk, each known by the digest of everything that it was built from.
//!
//! A record lists each file of its tree with its stamp. Another record holds what
//! requirements without a lock were resolved to.

use super::installed::{self, Vendored};
use super::tree::{self, Item, TreeError, TreeStamp};
use crate::base::files::{self, Lock};
use crate::base::lock;
use crate::base::store::{ContentStore, Limits, RecordKind, Tree, Work};
use crate::policy::packages::{Ecosystem, Package};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Where the tree of an entry is made, in the folder of its build.
pub const ENTRY: &str = "entry";
/// The folder of an entry for the list of fonts that matplotlib makes.
pub const FONT_LISTS: &str = "matplotlib";
const MAX_FONT_LIST_BYTES: usize = 4 << 20;
const RECORD: RecordKind = RecordKind {
    mark: b"thpkgs1\n",
    ending: ".entry",
    max_bytes: 64 << 20,
    has_tree: true,
};
const LOCK: RecordKind = RecordKind {
    mark: b"thlock1\n",
    ending: ".resolved",
    max_bytes: 4 << 20,
    has_tree: false,
};
static KINDS: [RecordKind; 2] = [RECORD, LOCK];
const LIMITS: Limits = Limits {
    bytes: 20 << 30,
    files: 2_000_000,
};
/// The limits of one entry.
const MAX_TREE: Limits = Limits {
    files: 100_000,
    bytes: 4 << 30,
};
/// Most files in all lists that are cached in memory.
const MAX_LISTED: usize = 300_000;

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
    pub vendored: Vec<Vendored>,
    /// When each file (by digest) and each copy (`name version`) was published, if a policy has a
    /// minimum age.
    pub published: BTreeMap<String, String>,
    /// RFC 3339.
    pub made: String,
}

/// One built environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuiltEnvironment {
    pub key: String,
    /// The folder of its tree.
    pub name: String,
    pub about: BuildInfo,
    pub bytes: u64,
    /// The bytes that its files occupy on disk.
    disk: u64,
    /// Files that the interpreter runs before the script, relative to the tree.
    pub starts: Vec<PathBuf>,
    root: TreeStamp,
    items: Vec<Item>,
    /// Of all of it: what shows that a copy, or an image of another file system, is the same.
    digest: String,
}

impl BuiltEnvironment {
    pub fn files(&self) -> usize {
        self.items.iter().filter(|item| item.is_file).count()
    }
}

/// Keeps an entry until this is dropped.
#[derive(Clone, Debug)]
pub struct EnvironmentLease {
    pub entry: Arc<BuiltEnvironment>,
    /// The root of its tree, absolute.
    pub path: PathBuf,
    _root: Arc<File>,
}

#[derive(Debug)]
pub struct Store {
    content: ContentStore,
    /// By key, and the digest that the record states.
    known: Mutex<HashMap<String, Arc<BuiltEnvironment>>>,
}

impl Store {
    /// Opens (and makes) the store. The error names what is wrong with it, for the person.
    pub fn open(path: &Path) -> Result<Arc<Store>, String> {
        Ok(Arc::new(Store {
            content: ContentStore::open(path, &KINDS, LIMITS)?,
            known: Mutex::default(),
        }))
    }

    pub fn path(&self) -> &Path {
        self.content.path()
    }

    /// The entry of a key, if it is as it was built. A changed entry is removed, and `report` gets
    /// the changed path.
    pub fn hold(
        &self,
        key: &str,
        report: impl FnOnce(&str),
    ) -> io::Result<Option<EnvironmentLease>> {
        self.content.check_private().map_err(io::Error::other)?;
        let Some(mut entry) = self.entry(key) else {
            return Ok(None);
        };
        let root = self.content.hold_tree(&entry.name)?;
        let changed = root
            .as_ref()
            .map_or(Some("its folder"), |root| first_changed(root, &entry));
        // Another host may have removed it, or built it again, before its tree was locked.
        if self.entry(key).is_none_or(|now| now.name != entry.name) {
            return Ok(None);
        }
        if let Some(path) = changed {
            let Some(copy) = root.as_ref().and_then(|root| self.take_copy(root, &entry)) else {
                report(path);
                drop(root);
                self.remove(key)?;
                return Ok(None);
            };
            entry = Arc::new(copy);
        }
        // Mark the entry as used now.
        self.content.open_record(key, &RECORD);
        let path = self.path().join(&entry.name);
        Ok(root.map(|root| EnvironmentLease {
            path,
            entry,
            _root: Arc::new(root),
        }))
    }

    /// The entry with the stamps that its tree has now, if all that it holds is as it was built.
    fn take_copy(&self, root: &File, entry: &BuiltEnvironment) -> Option<BuiltEnvironment> {
        let stamp = TreeStamp::now(root.as_fd()).ok()?;
        let (items, _) = tree::add_stamps(root.as_fd(), entry.items.clone()).ok()?;
        let copy = BuiltEnvironment {
            root: stamp,
            items,
            ..entry.clone()
        };
        if tree::digest(root.as_fd(), &copy.items).ok()? != copy.digest {
            return None;
        }
        // Where it cannot be written the next call compares again.
        let text = serde_json::to_vec(&copy).ok()?;
        let _ = self.content.put(&copy.key, &RECORD, &text);
        Some(copy)
    }

    /// The entry of a key, as its record has it. `None`: no record, or one that cannot be read.
    pub fn entry(&self, key: &str) -> Option<Arc<BuiltEnvironment>> {
        let record = self.content.peek(key, &RECORD)?;
        let stamp = format!("{key} {}", crate::base::hex(&record.stated().ok()?));
        if let Some(entry) = lock(&self.known).get(&stamp) {
            return Some(entry.clone());
        }
        let entry = serde_json::from_slice::<BuiltEnvironment>(&record.read()?).ok()?;
        let is_ours = entry.key == key
            && entry
                .name
                .strip_prefix(key)
                .is_some_and(|rest| rest.starts_with('-'));
        let entry = Some(entry)
            .filter(|entry| is_ours && !entry.name.contains('/'))
            .map(Arc::new)?;
        let mut known = lock(&self.known);
        if known.values().map(|known| known.items.len()).sum::<usize>() + entry.items.len()
            > MAX_LISTED
        {
            known.clear();
        }
        known.insert(stamp, entry.clone());
        Some(entry)
    }

    /// The lock of a key, between processes: `None` while another builds it.
    pub fn lock(&self, key: &str) -> io::Result<Option<Lock<'_>>> {
        self.content.lock(key)
    }

    /// A folder for a build. The caller holds the key's lock.
    pub fn begin(&self, key: &str) -> io::Result<Work> {
        self.content.begin_tree(key)
    }

    /// Checks what a build left in its work folder: only packages on the approved list may be
    /// there.
    pub fn examine(
        work: Work,
        layout: Layout,
        ecosystem: Ecosystem,
        approved: &BTreeMap<String, Package>,
    ) -> Result<Examined, TreeError> {
        let made = work.path.join(ENTRY);
        let site = made.join(&layout.site);
        std::fs::create_dir_all(site.parent().unwrap_or(&made))?;
        std::fs::rename(work.path.join(&layout.from), &site)?;
        let root = files::without_links(&made, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let built = tree::read_tree(root.as_fd(), MAX_TREE)?;
        let vendored = installed::compare(root.as_fd(), &built, &layout.site, ecosystem, approved)?;
        if let Some((settings, program)) = &layout.environment {
            let bin = made.join("bin");
            std::fs::write(made.join("pyvenv.cfg"), settings)?;
            std::fs::create_dir(&bin)?;
            std::fs::set_permissions(&bin, Permissions::from_mode(0o755))?;
            symlink(program, bin.join("python"))?;
        }
        Ok(Examined {
            work,
            layout,
            root,
            built,
            vendored,
            fonts: Vec::new(),
        })
    }

    /// Keeps an examined build as the entry of a key.
    pub fn keep(&self, key: &str, about: BuildInfo, examined: Examined) -> Result<(), TreeError> {
        let Examined {
            work,
            layout,
            root,
            built,
            fonts,
            ..
        } = examined;
        let own = layout
            .environment
            .iter()
            .flat_map(|_| ["pyvenv.cfg", "bin", "bin/python"].map(Item::new));
        let own = own.chain(fonts.iter().map(|name| Item::new(name)));
        self.content.keep_tree(&work, ENTRY)?;
        let bytes = built.iter().map(|item| item.bytes).sum();
        let starts = tree::startup_files(&built, &layout.site);
        let (items, disk) = tree::add_stamps(root.as_fd(), built.into_iter().chain(own).collect())?;
        let digest = tree::digest(root.as_fd(), &items)?;
        let root = TreeStamp::now(root.as_fd())?;
        let entry = BuiltEnvironment {
            key: key.to_owned(),
            name: work.tree.clone(),
            about,
            bytes,
            disk,
            starts,
            root,
            items,
            digest,
        };
        let text = serde_json::to_vec(&entry).map_err(io::Error::from)?;
        let kept = self.content.put(key, &RECORD, &text);
        if kept.is_err() {
            let _ = self.content.remove_tree(&work.tree);
        }
        Ok(kept?)
    }

    /// All entries that can be read, and when each was used last, oldest first.
    pub fn list(&self) -> io::Result<Vec<(Arc<BuiltEnvironment>, SystemTime)>> {
        let keys = self.content.keys(&RECORD)?.into_iter();
        let mut all: Vec<_> = keys
            .filter_map(|(key, used)| Some((self.entry(&key)?, used)))
            .collect();
        all.sort_by_key(|(_, used)| *used);
        Ok(all)
    }

    /// Removes an entry; false: it is in use.
    pub fn remove(&self, key: &str) -> io::Result<bool> {
        let entry = self.entry(key);
        self.content
            .remove(key, &RECORD, entry.as_ref().map(|entry| &*entry.name))
    }

    /// Removes files of no entry and, beyond the limits, the entries that were not used for
    /// longest.
    pub fn tidy(&self) -> io::Result<()> {
        self.content.tidy(&|key| {
            let entry = self.entry(key)?;
            let name = entry.name.clone();
            let bytes = entry.disk.max(entry.bytes);
            Some(Tree {
                name,
                bytes,
                files: entry.items.len(),
            })
        })
    }

    /// What was resolved for these requirements before.
    pub fn resolved(&self, key: &str) -> Option<String> {
        String::from_utf8(self.content.open_record(key, &LOCK)?.read()?).ok()
    }

    pub fn keep_resolved(&self, key: &str, text: &str) -> io::Result<()> {
        self.content.put(key, &LOCK, text.as_bytes())
    }

    pub fn forget(&self, key: &str) -> io::Result<()> {
        self.content.remove(key, &LOCK, None).map(drop)
    }

    pub fn forget_resolved(&self) -> io::Result<()> {
        self.content
            .keys(&LOCK)?
            .iter()
            .try_for_each(|(key, _)| self.forget(key))
    }
}

/// The first path of a tree whose stamp changed since the entry was made.
fn first_changed<'e>(root: &impl AsFd, entry: &'e BuiltEnvironment) -> Option<&'e str> {
    if TreeStamp::now(root.as_fd()).ok() == Some(entry.root) {
        tree::first_changed(root.as_fd(), &entry.items)
    } else {
        Some("its folder")
    }
}

/// What a build left, read and checked.
pub struct Examined {
    work: Work,
    layout: Layout,
    root: OwnedFd,
    built: Vec<Item>,
    /// Copies of packages inside others.
    pub vendored: Vec<Vendored>,
    /// What `add_font_list` added.
    fonts: Vec<String>,
}

impl Examined {
    /// Adds the list of fonts that the packages made. `name`: of its file, as code of the packages
    /// chose it.
    pub fn add_font_list(&mut self, name: &str, text: &str) -> io::Result<()> {
        let is_name = name.starts_with("fontlist-") && !name.contains('/');
        if !is_name || text.len() > MAX_FONT_LIST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let made = self.work.path.join(ENTRY);
        let folder = made.join(FONT_LISTS);
        std::fs::create_dir(&folder)?;
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        std::fs::write(folder.join(name), text)?;
        self.fonts = vec![FONT_LISTS.to_owned(), format!("{FONT_LISTS}/{name}")];
        Ok(())
    }
}

/// Where in an entry a build's result goes, and what the host adds.
pub struct Layout {
    /// Relative to the work folder.
    pub from: PathBuf,
    /// Relative to the entry, with `/` between names.
    pub site: String,
    /// For Python: the text of `pyvenv.cfg`, and the interpreter.
    pub environment: Option<(String, PathBuf)>,
}

/// The key for a text: the first half of its SHA-256, in hex.
pub fn key_of(text: &[u8]) -> String {
    crate::base::sha256_hex(text)[..32].to_owned()
}
