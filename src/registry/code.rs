//! The code of tools as it lies on the disk, and the copies of it that were approved.
//!
//! The code is read below the tool's own folder without following a link, and the copy is compared
//! with what was approved before it is used, at each look. Paths outside of that folder which the
//! tool reads (a policy's absolute paths, the interpreter, the machine's modules) are not part of
//! it. What tools write below the folder is shown as it is: the guard keeps it from being loaded,
//! and a script that reads it and runs it as code does so. Whoever may change `approved/` of the
//! state folder, the policies or this binary may run what they like.

use crate::base::files::{self, Stamps};
use crate::base::store::{self, ContentStore, Limits, RecordKind, Tree};
use crate::base::{lock, text};
use crate::manifest;
use crate::manifest::skill::{OUTPUT, SKILL_FILE};
use crate::policy::{
    self, ApprovalRecord, ApprovedCode, Area, Code, CodeFolders, CodePlaces, CopiedTree, LookedAt,
    WritablePath, WritablePaths,
};
use crate::quantity::MAX_DEFINITION_BYTES;
use crate::sandbox::identity;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use walkdir::{DirEntry, WalkDir};

/// The folder of the copies, beside the records of this host.
pub const APPROVED: &str = "approved";
/// Most files and bytes of the code of one tool.
const MAX_FILES: usize = 5_000;
const MAX_BYTES: u64 = 64 << 20;
/// Most files and folders that are looked at for it.
const MAX_ENTRIES: usize = 20_000;
/// Caches of interpreters: what lies there is made again.
const CACHE: &str = "__pycache__";
/// Where a tree is made, in the folder of its work.
const MADE: &str = "code";
const TOO_LARGE: &str = "more than 5,000 files or 64 MiB cannot be approved: move data, which people \
    edit, into a folder outside (a policy grants it by its path), packages into a lock, and the rest \
    into tools of their own";
const VENV: &str = "a virtual environment cannot be approved: remove it, and put a lock beside the \
    script (`toolhost deps lock TOOL`)";
const MEANWHILE: &str = "it changed while it was copied: try again";
const COPY: RecordKind = RecordKind {
    mark: b"thcopy1\n",
    ending: ".copy",
    max_bytes: 64 << 10,
    has_tree: true,
};
const DETAILS: RecordKind = RecordKind {
    mark: b"thappr1\n",
    ending: ".approval",
    max_bytes: 16 << 20,
    has_tree: false,
};
static KINDS: [RecordKind; 2] = [COPY, DETAILS];
const LIMITS: Limits = Limits {
    bytes: 8 << 30,
    files: 500_000,
};

/// What the record of a copy says.
#[derive(Serialize, Deserialize)]
struct CopyRecord {
    tree: String,
    bytes: u64,
    files: usize,
}

/// Values that are each made once.
type Once<K, T> = Mutex<BTreeMap<K, Arc<OnceLock<T>>>>;
/// What the last look found. `None`: nobody looked.
type LastLook = Mutex<Option<Result<LookedAt, String>>>;

/// The folders of one state of the registry.
#[derive(Debug)]
pub(super) struct Folders {
    /// Where tools write, or could.
    written: WritablePaths,
    /// `None`: this host keeps no records.
    store: Option<PathBuf>,
    looked: Mutex<BTreeMap<CodePlaces, Arc<LastLook>>>,
    /// By their keys.
    copies: Once<String, Result<Kept, String>>,
}

impl CodeFolders for Folders {
    fn look(&self, places: &CodePlaces) -> Result<LookedAt, String> {
        let last = lock(&self.looked)
            .entry(places.clone())
            .or_default()
            .clone();
        let mut last = lock(&last);
        let found = match last.take() {
            // What cannot be read is read again with the next state of the registry.
            Some(Err(why)) => Err(why),
            Some(Ok(looked)) if looked.stamps.are_unchanged() => Ok(looked),
            _ => self.read(places),
        };
        last.insert(found).clone()
    }

    fn copy(&self, places: &CodePlaces, code: &Code) -> Result<Arc<ApprovedCode>, String> {
        let points = self.written_in(places)?;
        let names: BTreeSet<String> = points
            .iter()
            .map(|it| places.portable(&it.area()))
            .collect();
        let trees = places.trees.iter().cloned().map(Area::Tree);
        let trees: Vec<String> = trees.map(|tree| places.portable(&tree)).collect();
        let key = policy::digest(&(&code.files, trees, names))[..32].to_owned();
        let cell = lock(&self.copies).entry(key.clone()).or_default().clone();
        let kept = cell.get_or_init(|| {
            let making = Making {
                places,
                code,
                points: &points,
                key: &key,
            };
            making.kept(&self.open()?)
        });
        let copy = kept.as_ref().map(|(copy, _)| copy.clone());
        copy.map_err(String::clone)
    }

    fn recall(&self, record: &ApprovalRecord) -> Option<Value> {
        let content = self.open().ok()?.get(&key_of(record), &DETAILS)?;
        serde_json::from_slice(&content.read()?).ok()
    }

    fn remember(&self, record: &ApprovalRecord, details: &Value) -> Result<(), String> {
        let store = self.open()?;
        let text = serde_json::to_vec(details).map_err(|e| e.to_string())?;
        let kept = store.put(&key_of(record), &DETAILS, &text);
        kept.and_then(|()| store.tidy(&|key| tree_of(&store, key)))
            .map_err(|e| e.to_string())
    }
}

fn key_of(record: &ApprovalRecord) -> String {
    policy::digest(&(&record.of, &record.digests))[..32].to_owned()
}

fn copy_record(store: &ContentStore, key: &str) -> Option<CopyRecord> {
    let record = store.get(key, &COPY)?.read()?;
    serde_json::from_slice(&record).ok()
}

fn tree_of(store: &ContentStore, key: &str) -> Option<Tree> {
    let CopyRecord { tree, bytes, files } = copy_record(store, key)?;
    Some(Tree {
        name: tree,
        bytes,
        files,
    })
}

impl Folders {
    pub fn new(written: WritablePaths, records: Option<&Path>) -> Folders {
        Folders {
            written,
            store: records.map(|records| records.join(APPROVED)),
            looked: Mutex::default(),
            copies: Mutex::default(),
        }
    }

    fn open(&self) -> Result<ContentStore, String> {
        let path = self.store.as_ref();
        let path = path.ok_or("this host has no folder for its records: name an --audit-log")?;
        ContentStore::open(path, &KINDS, LIMITS)
    }

    fn read(&self, places: &CodePlaces) -> Result<LookedAt, String> {
        let written = self.written_in(places)?;
        let mut reader = Reader::new(places, &written);
        for tree in &places.trees {
            reader.tree(tree, tree)?;
        }
        Ok(LookedAt {
            code: Arc::new(reader.code),
            stamps: Arc::new(reader.stamps),
        })
    }

    /// Where tools write in these places: what lies there is data.
    fn written_in(&self, places: &CodePlaces) -> Result<Vec<WritablePath>, String> {
        let mut found = Vec::new();
        for tree in &places.trees {
            let around = self.written.around(tree);
            if let Some(all) = around
                .iter()
                .find(|it| it.names.is_none() && it.tree == *tree)
            {
                let tree = text::path(tree);
                return Err(format!(
                    "{tree}: {} here, so nothing here is approved",
                    all.writer()
                ));
            }
            found.extend(around);
        }
        Ok(found)
    }
}

/// Reads the files of some trees.
struct Reader<'a> {
    places: &'a CodePlaces,
    written: &'a [WritablePath],
    code: Code,
    /// Of all files and folders so far, each from before it was read.
    stamps: Stamps,
    entries: usize,
    bytes: u64,
}

/// A file or folder, and the path by which it is known.
struct Found {
    entry: DirEntry,
    path: PathBuf,
}

impl Found {
    fn new(entry: &DirEntry, tree: &Path, at: &Path) -> Found {
        let below = entry.path().strip_prefix(at).unwrap_or(Path::new(""));
        Found {
            path: tree.components().chain(below.components()).collect(),
            entry: entry.clone(),
        }
    }

    /// What a person reads why it is refused.
    fn why(&self, why: impl Display) -> String {
        text::printable(&format!("{}: {why}", text::path(&self.path)))
    }
}

impl<'a> Reader<'a> {
    fn new(places: &'a CodePlaces, written: &'a [WritablePath]) -> Reader<'a> {
        Reader {
            places,
            written,
            code: Code::default(),
            stamps: Stamps::begin(),
            entries: 0,
            bytes: 0,
        }
    }

    /// Reads a tree, or its copy at `at`.
    fn tree(&mut self, tree: &Path, at: &Path) -> Result<(), String> {
        let (places, written) = (self.places, self.written);
        let is_skill = places.manifest.ends_with(SKILL_FILE);
        let results = is_skill.then(|| places.folder.join(OUTPUT));
        let walk = WalkDir::new(at).into_iter().filter_entry(|entry| {
            let path = Found::new(entry, tree, at).path;
            entry.file_name() != CACHE
                // A link does not belong to a skill: what it leads to was not approved.
                && !(is_skill && entry.path_is_symlink())
                && results.as_ref() != Some(&path)
                && !written.iter().any(|point| point.takes(&path))
        });
        for entry in walk {
            let entry = entry.map_err(|why| text::printable(&why.to_string()))?;
            self.stamps.add(entry.path().to_owned());
            self.add(&Found::new(&entry, tree, at))?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES || self.code.files.len() > MAX_FILES {
                return Err(format!("{}: {TOO_LARGE}", text::path(tree)));
            }
        }
        Ok(())
    }

    fn add(&mut self, found: &Found) -> Result<(), String> {
        let Found { entry, path } = found;
        if entry.file_type().is_dir() {
            let is_venv = entry.path().join("pyvenv.cfg").symlink_metadata().is_ok();
            return (!is_venv).then_some(()).ok_or_else(|| found.why(VENV));
        }
        if !path.to_str().is_some_and(text::is_printable) {
            return Err(found.why("rename it: its name is not plain text"));
        }
        let facts = if entry.path_is_symlink() {
            let target = fs::read_link(entry.path()).map_err(|e| found.why(e))?;
            format!("link to {}", target.to_string_lossy())
        } else {
            let opened = open(entry.path()).map_err(|why| found.why(why))?;
            let digest = self.digest(&opened, path).map_err(|e| found.why(e))?;
            let runs = if opened.runs { ", may be run" } else { "" };
            digest + runs
        };
        let name = self.places.portable(&Area::File(path.to_owned()));
        self.code.files.insert(name, facts);
        Ok(())
    }

    fn digest(&mut self, opened: &Opened, path: &Path) -> io::Result<String> {
        if path == self.places.manifest {
            return of_manifest(&opened.file);
        }
        // One that grows meanwhile is read no further, and is another one in the copy.
        let length = opened.file.metadata()?.len();
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > MAX_BYTES {
            return Err(io::Error::other(TOO_LARGE));
        }
        let (digest, _) = store::digest((&opened.file).take(length))?;
        Ok(crate::base::hex(&digest))
    }
}

/// The digest of what a manifest says; of one that says nothing, that of its bytes.
fn of_manifest(file: &File) -> io::Result<String> {
    let bytes = files::whole(file.try_clone()?, MAX_DEFINITION_BYTES)?;
    let bytes = bytes.ok_or(io::ErrorKind::FileTooLarge)?;
    Ok(match manifest::read(&bytes) {
        Ok((manifest, _)) => policy::digest(&policy::definition(&manifest)),
        Err(_) => crate::base::sha256_hex(&bytes),
    })
}

struct Opened {
    file: File,
    runs: bool,
}

/// Opens a file as a tool could read it: root could read every file, but a tool reads those of its
/// folder's owner, and those that all may read.
fn open(path: &Path) -> io::Result<Opened> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(files::without_links(path, flags)?);
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other(
            "neither a file, a folder nor a link: remove it",
        ));
    }
    let owner = path.parent().unwrap_or(path).metadata()?.uid();
    if facts.mode() & 0o4 == 0 && identity::real_root() && owner != facts.uid() {
        return Err(io::Error::other(
            "another user than the folder's owner owns it, who alone may read it: run toolhost as that \
             user, or move it out",
        ));
    }
    let runs = facts.mode() & 0o111 != 0;
    Ok(Opened { file, runs })
}

/// A copy that is looked for, or made.
struct Making<'a> {
    places: &'a CodePlaces,
    code: &'a Code,
    points: &'a [WritablePath],
    key: &'a str,
}

/// A copy; the open folder keeps it from being removed.
type Kept = (Arc<ApprovedCode>, File);

impl Making<'_> {
    fn kept(&self, store: &ContentStore) -> Result<Kept, String> {
        if let Some(found) = self.find(store) {
            return Ok(found);
        }
        let failed = |why: io::Error| format!("it cannot be copied: {why}");
        // Held by whoever copies it at the same moment, too, which loses nothing.
        let _lock = store.lock(self.key).map_err(failed)?;
        self.make(store).map_err(failed)?;
        self.find(store).ok_or_else(|| MEANWHILE.to_owned())
    }

    /// The copy that is there, if it is what was approved.
    fn find(&self, store: &ContentStore) -> Option<Kept> {
        let record = copy_record(store, self.key)?;
        let lease = store.hold_tree(&record.tree).ok()??;
        let code = self.code_at(&store.path().join(&record.tree));
        let mut reader = Reader::new(self.places, &[]);
        for CopiedTree { tree, copy } in &code.copies {
            reader.tree(tree, copy).ok()?;
        }
        (reader.code == *self.code).then(|| (Arc::new(code), lease))
    }

    /// The copy in this folder.
    fn code_at(&self, top: &Path) -> ApprovedCode {
        let trees = self.places.trees.iter().enumerate();
        let live = self.points.iter().filter(|point| point.names.is_none());
        ApprovedCode {
            copies: trees
                .map(|(number, tree)| CopiedTree {
                    tree: tree.clone(),
                    copy: top.join(number.to_string()),
                })
                .collect(),
            live: live.map(|point| point.tree.clone()).collect(),
        }
    }

    /// Copies every file, with an empty folder where tools write.
    fn make(&self, store: &ContentStore) -> io::Result<()> {
        let work = store.begin_tree(self.key)?;
        let top = work.path.join(MADE);
        let mut bytes = 0;
        for copied in self.code_at(&top).copies {
            fs::create_dir_all(&copied.copy)?;
            let points = self.points.iter().map(|point| &point.tree);
            let points = points.filter_map(|tree| copied.copy_of(tree));
            points.into_iter().try_for_each(fs::create_dir_all)?;
            if self.places.manifest.ends_with(SKILL_FILE) {
                // Where its scripts find the folder of results.
                fs::create_dir_all(copied.copy.join(OUTPUT))?;
            }
            let paths = self.code.files.keys().map(|name| self.places.path(name));
            for path in paths {
                if let Some(to) = copied.copy_of(&path) {
                    bytes += copy_file(&path, &to)?;
                }
            }
        }
        store.keep_tree(&work, MADE)?;
        let record = CopyRecord {
            tree: work.tree.clone(),
            bytes,
            files: self.code.files.len(),
        };
        store.put(self.key, &COPY, &serde_json::to_vec(&record)?)
    }
}

/// Copies one file or link. Returns its bytes.
fn copy_file(from: &Path, to: &Path) -> io::Result<u64> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    if from.is_symlink() {
        return symlink(fs::read_link(from)?, to).map(|()| 0);
    }
    let opened = open(from)?;
    let mut copy = File::create_new(to)?;
    let bytes = io::copy(&mut (&opened.file).take(MAX_BYTES), &mut copy)?;
    let mode = if opened.runs { 0o555 } else { 0o444 };
    copy.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(bytes)
}
