//! The code of tools as it lies on the disk, and the copies of it that were approved.

use crate::base::store::{self, ContentStore, Limits, RecordKind, Tree};
use crate::base::{files, lock, text};
use crate::manifest;
use crate::policy::{
    self, ApprovalRecord, ApprovedCode, Area, Code, CodeFolders, CodePlaces, CopiedArea,
    WritablePath, WritablePaths,
};
use crate::quantity::MAX_DEFINITION_BYTES;
use crate::sandbox::identity;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};
use walkdir::{DirEntry, WalkDir};

/// The folder of the copies, beside the records of this host.
pub const APPROVED: &str = "approved";
/// Most files and bytes of the code of one tool.
const MAX_FILES: usize = 5_000;
const MAX_BYTES: u64 = 64 << 20;
/// Caches of interpreters: what lies there is made again.
const CACHE: &str = "__pycache__";
/// Where a tree is made, in the folder of its work.
const MADE: &str = "code";
/// Most entries that are looked at, so that a folder without end is refused.
const MAX_ENTRIES: usize = 4 * MAX_FILES;
const TOO_LARGE: &str = "more than 5,000 files or 64 MiB cannot be approved: move data, which people \
    edit, into a folder outside (a policy grants it by its path), packages into a lock, and the rest \
    into tools of their own";
const VENV: &str = "a virtual environment cannot be approved: remove it, and put a lock beside the \
    script (`toolhost deps lock`)";
const MEANWHILE: &str = "it changed while it was copied: try again";
/// How long to wait for another host that makes the same copy.
const PATIENCE: Duration = Duration::from_secs(60);

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
type LookedAt = Arc<Result<Code, String>>;

/// The folders of one state of the registry.
#[derive(Debug)]
pub(super) struct Folders {
    /// Where tools write, or could.
    written: WritablePaths,
    /// `None`: this host keeps no records.
    store: Option<PathBuf>,
    looked: Once<CodePlaces, LookedAt>,
    /// By their keys.
    copies: Once<String, Result<Kept, String>>,
}

impl CodeFolders for Folders {
    fn look(&self, places: &CodePlaces) -> Arc<Result<Code, String>> {
        let cell = lock(&self.looked)
            .entry(places.clone())
            .or_default()
            .clone();
        cell.get_or_init(|| Arc::new(self.read(places))).clone()
    }

    fn copy(&self, places: &CodePlaces, code: &Code) -> Result<Arc<ApprovedCode>, String> {
        let points = self.written_in(places)?;
        let names = points.iter().map(|it| places.portable(&it.area()));
        let areas = places.areas.iter().map(|area| places.portable(area));
        let key = (
            &code.files,
            areas.collect::<Vec<_>>(),
            names.collect::<BTreeSet<_>>(),
        );
        let key = policy::digest(&key)[..32].to_owned();
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
        kept.as_ref()
            .map(|(copy, _)| copy.clone())
            .map_err(String::clone)
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

    fn read(&self, places: &CodePlaces) -> Result<Code, String> {
        let written = self.written_in(places)?;
        let mut reader = Reader {
            places,
            written: &written,
            code: Code::default(),
            bytes: 0,
        };
        for area in &places.areas {
            reader.area(area, area.path())?;
        }
        Ok(reader.code)
    }

    /// Where tools write in these places. What lies there is not code.
    fn written_in(&self, places: &CodePlaces) -> Result<Vec<WritablePath>, String> {
        let mut found = Vec::new();
        for area in &places.areas {
            for point in self.written.around(area.folder()) {
                if point.names.is_none() && area.folder() == point.tree {
                    let folder = text::path(area.folder());
                    let who = point.writer();
                    return Err(format!("{folder}: {who} here, so nothing here is approved"));
                }
                found.push(point);
            }
        }
        Ok(found)
    }
}

/// Reads the files of some areas.
struct Reader<'a> {
    places: &'a CodePlaces,
    written: &'a [WritablePath],
    code: Code,
    bytes: u64,
}

impl Reader<'_> {
    /// Reads an area, or its copy at `at`.
    fn area(&mut self, area: &Area, at: &Path) -> Result<(), String> {
        let depth = match area {
            Area::Names { .. } => 1,
            _ => usize::MAX,
        };
        let shown = |entry: &DirEntry| -> PathBuf {
            let below = entry.path().strip_prefix(at).unwrap_or(Path::new(""));
            area.path().components().chain(below.components()).collect()
        };
        let counts = |entry: &DirEntry| {
            let path = shown(entry);
            entry.file_name() != CACHE && !self.written.iter().any(|point| point.takes(&path))
        };
        let walk = WalkDir::new(at).max_depth(depth).into_iter();
        let entries: Vec<_> = walk.filter_entry(counts).take(MAX_ENTRIES).collect();
        for entry in entries {
            match entry {
                Ok(entry) => self.add(&entry, &shown(&entry), area)?,
                // A missing file is left out.
                Err(why) if why.depth() == 0 && is_missing(&why) => {}
                Err(why) => return Err(text::printable(&why.to_string())),
            }
        }
        Ok(())
    }

    fn digest(&mut self, opened: &Opened, path: &Path) -> io::Result<String> {
        if path == self.places.manifest {
            return of_manifest(&opened.file);
        }
        let (digest, bytes) = store::digest(&opened.file)?;
        self.bytes += bytes;
        Ok(crate::base::hex(&digest))
    }

    fn add(&mut self, entry: &DirEntry, path: &Path, area: &Area) -> Result<(), String> {
        let failed = |why: &str| format!("{}: {why}", text::path(path));
        if entry.file_type().is_dir() {
            let is_venv = entry.path().join("pyvenv.cfg").symlink_metadata().is_ok();
            return (!is_venv).then_some(()).ok_or_else(|| failed(VENV));
        }
        if !area.holds(path) {
            return Ok(());
        }
        if !path.to_str().is_some_and(text::is_printable) {
            return Err(failed("rename it: its name is not plain text"));
        }
        let facts = if entry.path_is_symlink() {
            let target = fs::read_link(entry.path()).map_err(|e| failed(&e.to_string()))?;
            format!("link to {}", target.to_string_lossy())
        } else {
            let opened = open(entry.path(), area.folder()).map_err(|why| failed(&why))?;
            let read = self.digest(&opened, path);
            let digest = read.map_err(|e| failed(&e.to_string()))?;
            let runs = if opened.runs { ", may be run" } else { "" };
            digest + runs
        };
        let name = self.places.portable(&Area::File(path.to_owned()));
        self.code.files.insert(name, facts);
        if self.code.files.len() > MAX_FILES || self.bytes > MAX_BYTES {
            return Err(format!("{}: {TOO_LARGE}", text::path(area.folder())));
        }
        Ok(())
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

fn is_missing(why: &walkdir::Error) -> bool {
    why.io_error()
        .is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
}

struct Opened {
    file: File,
    runs: bool,
}

/// Opens a file as a tool could read it: root could read every file, but a tool reads those of its
/// folder's owner, and those that all may read.
fn open(path: &Path, folder: &Path) -> Result<Opened, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = files::without_links(path, flags).map_err(|errno| errno.desc().to_owned())?;
    let file = File::from(file);
    let facts = file.metadata().map_err(|e| e.to_string())?;
    if !facts.is_file() {
        return Err("neither a file, a folder nor a link: remove it".to_owned());
    }
    let is_open = facts.mode() & 0o4 != 0 || !identity::real_root();
    if !is_open && folder.metadata().map_or(true, |it| it.uid() != facts.uid()) {
        return Err("only its owner may read it: `chmod o+r` it, or move it elsewhere".to_owned());
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
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.find(store) {
                return Ok(found);
            }
            let made = store.lock(self.key).and_then(|lock| match lock {
                Some(_lock) => self.make(store).map(|()| true),
                None => Ok(false),
            });
            match made {
                Ok(true) => return self.find(store).ok_or_else(|| MEANWHILE.to_owned()),
                Ok(false) if Instant::now() < until => sleep(Duration::from_millis(20)),
                Ok(false) => return Err("another host copies it for too long".to_owned()),
                Err(why) => return Err(format!("it cannot be copied: {why}")),
            }
        }
    }

    /// The copy that is there, if it is what was approved.
    fn find(&self, store: &ContentStore) -> Option<Kept> {
        let record = copy_record(store, self.key)?;
        let lease = store.hold_tree(&record.tree).ok()??;
        let code = self.code_at(&store.path().join(&record.tree));
        let mut reader = Reader {
            places: self.places,
            written: &[],
            code: Code::default(),
            bytes: 0,
        };
        for CopiedArea { area, copy } in &code.copies {
            reader.area(area, copy).ok()?;
        }
        (reader.code == *self.code).then(|| (Arc::new(code), lease))
    }

    /// The copy in this folder. Areas of one folder lie together, so that files find each other.
    fn code_at(&self, tree: &Path) -> ApprovedCode {
        let areas = &self.places.areas;
        let copies = areas.iter().map(|area| {
            let first = areas.iter().position(|it| it.folder() == area.folder());
            let folder = tree.join(first.unwrap_or_default().to_string());
            let below = area.path().strip_prefix(area.folder());
            let parts = below.unwrap_or(Path::new("")).components();
            CopiedArea {
                area: area.clone(),
                copy: folder.components().chain(parts).collect(),
            }
        });
        let live = self.points.iter().filter(|point| point.names.is_none());
        ApprovedCode {
            copies: copies.collect(),
            live: live.map(|point| point.tree.clone()).collect(),
        }
    }

    /// Copies every file, with an empty folder where tools write.
    fn make(&self, store: &ContentStore) -> io::Result<()> {
        let work = store.begin_tree(self.key)?;
        let top = work.path.join(MADE);
        fs::create_dir(&top)?;
        let mut bytes = 0;
        for CopiedArea { area, copy } in self.code_at(&top).copies {
            let to = |path: &Path| -> PathBuf {
                let below = path.strip_prefix(area.path()).unwrap_or(Path::new(""));
                copy.components().chain(below.components()).collect()
            };
            let trees = self.points.iter().map(|point| &point.tree);
            let trees = trees.filter(|tree| tree.starts_with(area.path()));
            let folder = matches!(area, Area::File(_)).then(|| copy.parent());
            fs::create_dir_all(folder.flatten().unwrap_or(&copy))?;
            trees
                .map(|tree| to(tree))
                .try_for_each(fs::create_dir_all)?;
            let paths = self.code.files.keys().map(|name| self.places.path(name));
            for path in paths.filter(|path| area.holds(path)) {
                bytes += copy_file(&path, &to(&path), area.folder())?;
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
fn copy_file(from: &Path, to: &Path, folder: &Path) -> io::Result<u64> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    if from.is_symlink() {
        return symlink(fs::read_link(from)?, to).map(|()| 0);
    }
    let mut opened = open(from, folder).map_err(io::Error::other)?;
    let mut copy = OpenOptions::new().write(true).create_new(true).open(to)?;
    let bytes = io::copy(&mut opened.file, &mut copy)?;
    let mode = if opened.runs { 0o555 } else { 0o444 };
    copy.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(bytes)
}
