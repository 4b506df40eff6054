//! Artifacts: files that calls left for their callers, in an instance of the one content store.
//!
//! An artifact is two records under one key, its id: what it holds, and what is known of it. Ids
//! are UUIDs of version 7, so their order is the order of time. Only its owner can use an artifact:
//! to anybody else it does not exist.
//!
//! It is compared with its digest whenever it is read, and never served as a page. Secrets in it
//! are hidden as they stand, not in compressed files.

use super::callers::Rights;
use super::request::BroughtFile;
use crate::base::lock;
use crate::base::mask::{Finder, Search};
use crate::base::store::{Content, ContentStore, Limits, RecordKind, Writer};
use crate::executor::{Artifact, Inlined, LeftFile, StoredFile, WriteFailure, is_picture};
use crate::fault::{Fault, Kind};
use crate::policy::InputFile;
use crate::quantity::{GIB, KIB};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// The folder beside the audit log.
pub const FOLDER: &str = "artifacts";
/// Most artifacts of one principal.
const MAX_ARTIFACTS: usize = 10_000;
/// How much of a file is read at a time, and how much of it shows its type.
const PIECE: usize = 256 * KIB as usize;
/// What was stored this long ago without what is known of it, was left by a host that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Most bytes of the pictures that an answer itself shows.
const MAX_PICTURE_BYTES: u64 = 1024 * KIB;
const UNSTORED: &str = "this host could not store it";
const STORES_NOTHING: &str = "this host stores no files of calls";

const CONTENT: RecordKind = RecordKind {
    mark: b"thfile1\n",
    ending: "",
    max_bytes: u64::MAX,
    has_tree: false,
};
const ENTRY: RecordKind = RecordKind {
    mark: b"thown01\n",
    ending: ".owner",
    max_bytes: 16 * KIB,
    has_tree: false,
};
static KINDS: [RecordKind; 2] = [CONTENT, ENTRY];

/// How much of artifacts is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Most bytes of one principal, under whatever names it acts. The oldest go first. 0: nothing is
    /// stored, and answers hold their small pictures.
    pub bytes: u64,
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            bytes: GIB,
            age: Duration::from_secs(24 * 3600),
        }
    }
}

/// Whose an artifact is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub(super) principal: String,
    caller: String,
}

impl Owner {
    pub fn principal(&self) -> &str {
        &self.principal
    }

    pub fn caller(&self) -> &str {
        &self.caller
    }
}

impl From<&Rights> for Owner {
    fn from(rights: &Rights) -> Owner {
        Owner {
            principal: rights.principal.clone(),
            caller: rights.caller.user.clone(),
        }
    }
}

/// What is known of an artifact.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    owner: Owner,
    #[serde(flatten)]
    listed: ListedArtifact,
}

/// An artifact as lists show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedArtifact {
    pub bytes: u64,
    #[serde(flatten)]
    pub file: StoredFile,
}

/// A file that a call brings or left, as its record shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FileRecord {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// An artifact whose answer is not decided yet. Dropped, it is removed.
pub(super) struct Received {
    name: String,
    media_type: String,
    id: String,
    bytes: u64,
    writer: Writer,
}

/// An artifact, open for reading.
#[derive(Clone, Debug)]
pub struct OpenArtifact {
    pub file: StoredFile,
    pub content: Content,
}

struct Opened {
    store: ContentStore,
    entries: Mutex<BTreeMap<String, Entry>>,
}

pub struct Artifacts {
    /// `None`: this host stores none.
    folder: Option<PathBuf>,
    retention: Retention,
    opened: OnceLock<Option<Opened>>,
}

impl Artifacts {
    pub fn new(folder: Option<PathBuf>, retention: Retention) -> Artifacts {
        Artifacts {
            folder,
            retention,
            opened: OnceLock::new(),
        }
    }

    /// The store, opened when it is first used.
    fn opened(&self) -> Option<&Opened> {
        let open = || {
            let limits = Limits {
                bytes: u64::MAX,
                files: usize::MAX,
            };
            let folder = self.folder.as_deref()?;
            let opened = ContentStore::open(folder, &KINDS, limits).and_then(|store| {
                let entries = Opened::read(&store).map_err(|e| e.to_string())?;
                let entries = Mutex::new(entries);
                Ok(Opened { store, entries })
            });
            opened
                .inspect_err(|why| tracing::warn!(target: "toolhost::artifacts", "{why}"))
                .ok()
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// Copies what a call left, with the secrets of this host hidden in it. Also returns what could
    /// not be stored.
    pub(super) fn receive(
        &self,
        files: Vec<LeftFile>,
        secrets: Option<&Arc<Finder>>,
    ) -> (Vec<Received>, Vec<Artifact>) {
        let mut received = Vec::new();
        let mut failed = Vec::new();
        for left in files {
            let name = left.name.clone();
            let bytes = left.bytes;
            match self.receive_one(left, secrets) {
                Ok(one) => received.push(one),
                Err(e) => {
                    tracing::warn!(target: "toolhost::artifacts", "a file cannot be stored: {e}");
                    failed.push(unstored(&name, bytes));
                }
            }
        }
        (received, failed)
    }

    fn receive_one(&self, left: LeftFile, secrets: Option<&Arc<Finder>>) -> io::Result<Received> {
        let opened = self.opened().ok_or(io::ErrorKind::NotFound)?;
        let id = Uuid::now_v7().simple().to_string();
        let mut writer = opened.store.write(&id, &CONTENT)?;
        let mut search = secrets.map(|finder| Search::new(Arc::clone(finder), true));
        let mut from = left.file.take(left.bytes);
        let mut piece = vec![0; PIECE];
        let (mut head, mut bytes) = (Vec::new(), 0);
        loop {
            let length = from.read(&mut piece)?;
            let read = &piece[..length];
            let shown = match &mut search {
                Some(search) if length == 0 => &search.finish(),
                Some(search) => &search.push(read),
                None => read,
            };
            if head.len() < PIECE {
                head.extend_from_slice(shown);
            }
            writer.write(shown)?;
            bytes += shown.len() as u64;
            if length == 0 {
                break;
            }
        }
        Ok(Received {
            name: left.name,
            media_type: media_type(&head),
            id,
            bytes,
            writer,
        })
    }

    /// Gives the artifacts of a good answer to their owner. Beyond the owner's bytes, its oldest
    /// are removed once the new ones are stored.
    pub(super) fn keep(&self, owner: &Owner, received: Vec<Received>) -> Vec<Artifact> {
        let Some(opened) = self.opened().filter(|_| !received.is_empty()) else {
            return Vec::new();
        };
        if self.retention.bytes == 0 {
            return inline(received);
        }
        let all: u64 = received.iter().map(|one| one.bytes).sum();
        let kept = received.into_iter().map(|one| {
            let name = one.name.clone();
            let bytes = one.bytes;
            // Its owner may not have that much at all.
            if all > self.retention.bytes {
                return unstored(&name, bytes);
            }
            opened.keep(owner, one).unwrap_or_else(|e| {
                tracing::warn!(target: "toolhost::artifacts", "a file cannot be stored: {e}");
                unstored(&name, bytes)
            })
        });
        let kept = kept.collect();
        opened.evict(&owner.principal, self.retention);
        kept
    }

    /// The small pictures among these, as far as they are small together.
    pub(super) fn pictures(&self, kept: &[Artifact]) -> Vec<OpenArtifact> {
        let Some(opened) = self.opened() else {
            return Vec::new();
        };
        let mut left = MAX_PICTURE_BYTES;
        let stored = kept.iter().filter_map(|artifact| {
            let file = artifact.stored.clone()?;
            left = left
                .checked_sub(artifact.bytes)
                .filter(|_| is_picture(&file.media_type))?;
            let content = opened.store.peek(&file.id, &CONTENT)?;
            Some(OpenArtifact { file, content })
        });
        stored.collect()
    }

    /// An artifact of this owner, as it was stored. `None`: there is none, or it is somebody
    /// else's.
    pub fn open(&self, owner: &Owner, id: &str) -> Option<OpenArtifact> {
        let opened = self.opened()?;
        let made = made(id)?;
        let entry = opened.entry(id)?;
        let content = (entry.owner == *owner && made.elapsed().ok()? <= self.retention.age)
            .then(|| opened.store.get(id, &CONTENT))??;
        Some(OpenArtifact {
            file: entry.listed.file,
            content,
        })
    }

    /// The name of an artifact of this owner.
    pub(super) fn name(&self, owner: &Owner, id: &str) -> Result<String, Fault> {
        let entry = self.opened().and_then(|opened| opened.entry(id));
        let own = entry.filter(|entry| entry.owner == *owner);
        own.map(|entry| entry.listed.file.name).ok_or_else(unknown)
    }

    /// The artifacts of this owner, the newest first.
    pub fn list(&self, owner: &Owner) -> Vec<ListedArtifact> {
        let Some(opened) = self.opened() else {
            return Vec::new();
        };
        opened.evict(&owner.principal, self.retention);
        let entries = lock(&opened.entries);
        let own = entries.values().rev().filter(|entry| entry.owner == *owner);
        own.map(|entry| entry.listed.clone()).collect()
    }

    /// What a call brings, as its tool gets it: artifacts by their ids too. Nothing of it is read
    /// before it is known to be within `most` files and bytes.
    pub(super) fn bring(
        &self,
        owner: &Owner,
        brought: Vec<BroughtFile>,
        most: MostFiles,
    ) -> Result<(Vec<InputFile>, Vec<FileRecord>), Fault> {
        if brought.len() as u64 > most.files {
            let (count, most) = (brought.len(), most.files);
            return Err(refused(format!(
                "The call brings {count} files; artifactFiles allows {most}."
            )));
        }
        let mut files: Vec<InputFile> = Vec::new();
        for one in brought {
            let file = match one {
                BroughtFile::Content { file, .. } => file,
                BroughtFile::Stored(id) => self.stored(owner, &id)?,
            };
            check_name(&file.name)?;
            if files.iter().any(|other| other.name == file.name) {
                return Err(refused(format!("Two files are named '{}'.", file.name)));
            }
            files.push(file);
        }
        let bytes = files.iter().map(|file| file.bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        if bytes > most.bytes {
            let most = most.bytes;
            return Err(refused(format!(
                "The files of the call have {bytes} bytes; artifactBytes allows {most}."
            )));
        }
        let records = files.iter().map(record).collect::<io::Result<_>>();
        let records = records.map_err(|e| {
            let message = "The files of the call cannot be read.";
            Fault::new(Kind::InternalError, message).person(e.to_string())
        })?;
        Ok((files, records))
    }

    fn stored(&self, owner: &Owner, id: &str) -> Result<InputFile, Fault> {
        let OpenArtifact { file, content } = self.open(owner, id).ok_or_else(unknown)?;
        Ok(InputFile {
            name: file.name,
            content: content.file,
            offset: content.offset,
            bytes: content.bytes,
        })
    }
}

fn record(file: &InputFile) -> io::Result<FileRecord> {
    let content = Content {
        file: file.content.clone(),
        offset: file.offset,
        bytes: file.bytes,
    };
    let (digest, bytes) = content.digest()?;
    Ok(FileRecord {
        name: file.name.clone(),
        bytes,
        sha256: hex(&digest),
    })
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Most files of a call, and most bytes of them together.
#[derive(Clone, Copy)]
pub(super) struct MostFiles {
    pub files: u64,
    pub bytes: u64,
}

impl Opened {
    /// What is known of all artifacts. Removes what killed hosts left.
    fn read(store: &ContentStore) -> io::Result<BTreeMap<String, Entry>> {
        store.tidy(&|_| None)?;
        let keys = store.keys(&ENTRY)?;
        let entries = keys.into_iter().filter_map(|(id, _)| {
            let entry = read_entry(store, &id)?;
            Some((id, entry))
        });
        let entries: BTreeMap<String, Entry> = entries.collect();
        for (id, used) in store.keys(&CONTENT)? {
            let is_old = used.elapsed().is_ok_and(|age| age > ABANDONED);
            if is_old && !entries.contains_key(&id) {
                store.remove(&id, &CONTENT, None)?;
            }
        }
        Ok(entries)
    }

    fn keep(&self, owner: &Owner, received: Received) -> io::Result<Artifact> {
        let Received {
            name,
            media_type,
            id,
            bytes,
            writer,
        } = received;
        writer.finish()?;
        let content = self.store.peek(&id, &CONTENT);
        let digest = content.ok_or(io::ErrorKind::NotFound)?.stated()?;
        let entry = Entry {
            owner: owner.clone(),
            listed: ListedArtifact {
                bytes,
                file: StoredFile {
                    id: id.clone(),
                    name,
                    media_type,
                    sha256: hex(&digest),
                },
            },
        };
        self.store.put(&id, &ENTRY, &serde_json::to_vec(&entry)?)?;
        let artifact = Artifact::stored(entry.listed.file.clone(), bytes);
        lock(&self.entries).insert(id, entry);
        Ok(artifact)
    }

    /// Also one that another process stored.
    fn entry(&self, id: &str) -> Option<Entry> {
        let known = lock(&self.entries).get(id).cloned();
        known.or_else(|| read_entry(&self.store, id))
    }

    /// Removes what is too old, and the oldest of a principal that has too much. Other processes
    /// use this store, too: what they stored counts, and what they removed is forgotten.
    fn evict(&self, principal: &str, retention: Retention) {
        let mut entries = lock(&self.entries);
        if let Ok(names) = self.store.names(&ENTRY) {
            let names: BTreeSet<String> = names.into_iter().collect();
            entries.retain(|id, _| names.contains(id));
            for id in names {
                if !entries.contains_key(&id) {
                    let entry = read_entry(&self.store, &id);
                    entries.extend(entry.map(|entry| (id, entry)));
                }
            }
        }
        let own = entries
            .values()
            .filter(|entry| entry.owner.principal == principal);
        let (mut bytes, mut count) = own.fold((0u64, 0), |(bytes, count), entry| {
            (bytes.saturating_add(entry.listed.bytes), count + 1)
        });
        entries.retain(|id, entry| {
            let is_own = entry.owner.principal == principal;
            let is_old = made(id)
                .and_then(|made| made.elapsed().ok())
                .is_none_or(|age| age > retention.age);
            let is_kept =
                !is_old && (!is_own || bytes <= retention.bytes && count <= MAX_ARTIFACTS);
            if !is_kept {
                if is_own {
                    (bytes, count) = (bytes - entry.listed.bytes, count - 1);
                }
                for kind in [&ENTRY, &CONTENT] {
                    if let Err(e) = self.store.remove(id, kind, None) {
                        tracing::warn!(target: "toolhost::artifacts", "{id} stays: {e}");
                    }
                }
            }
            is_kept
        });
    }
}

fn read_entry(store: &ContentStore, id: &str) -> Option<Entry> {
    serde_json::from_slice(&store.peek(id, &ENTRY)?.read()?).ok()
}

/// When an artifact was made, as its id says. `None`: that cannot be an id.
fn made(id: &str) -> Option<SystemTime> {
    let uuid = Uuid::try_parse(id).ok()?;
    let time = uuid
        .get_timestamp()
        .filter(|_| uuid.simple().to_string() == id)?;
    let (seconds, nanos) = time.to_unix();
    Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// Whether a text has the form of an artifact's id.
pub(super) fn is_id(text: &str) -> bool {
    made(text).is_some()
}

/// The media type that these first bytes of a file show.
fn media_type(head: &[u8]) -> String {
    let known = infer::get(head).map(|found| found.mime_type().to_owned());
    known.unwrap_or_else(|| {
        let is_text = match std::str::from_utf8(head) {
            Ok(text) => !text.contains('\0'),
            // The last character may be cut.
            Err(e) => e.error_len().is_none() && !head.contains(&0),
        };
        let media_type = if is_text {
            "text/plain"
        } else {
            "application/octet-stream"
        };
        media_type.to_owned()
    })
}

/// The small pictures among these stand in the answer. The others are gone.
fn inline(received: Vec<Received>) -> Vec<Artifact> {
    let mut left = MAX_PICTURE_BYTES;
    let inlined = received.into_iter().map(|one| {
        let rest = left.checked_sub(one.bytes);
        let rest = rest.filter(|_| is_picture(&one.media_type));
        let content = rest.and_then(|_| one.writer.read().ok());
        left = rest.filter(|_| content.is_some()).unwrap_or(left);
        Artifact {
            dropped_because: Some(STORES_NOTHING.to_owned()),
            failed: None,
            inlined: content.map(|content| Inlined {
                media_type: one.media_type,
                b64: STANDARD.encode(content),
            }),
            ..unstored(&one.name, one.bytes)
        }
    });
    inlined.collect()
}

fn unstored(name: &str, bytes: u64) -> Artifact {
    Artifact {
        path: format!("output/{name}"),
        bytes,
        published: false,
        dropped_because: Some(UNSTORED.to_owned()),
        failed: Some(WriteFailure::Host),
        over: None,
        stored: None,
        inlined: None,
    }
}

fn refused(message: String) -> Fault {
    Fault::new(Kind::ParameterValidationError, message)
}

fn unknown() -> Fault {
    let message = "There is no such artifact of yours: ids are listed with the answer that left \
        them, and end after some hours.";
    Fault::new(Kind::ParameterValidationError, message)
}

/// The name of a file in the one folder of a call's files.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let is_name = (1..=255).contains(&name.len())
        && !name.contains('/')
        && ![".", ".."].contains(&name)
        && crate::base::text::is_printable(name);
    if is_name {
        return Ok(());
    }
    Err(refused(format!(
        "'{}' cannot name a file: use at most 255 bytes, without '/' and control characters.",
        crate::base::text::head(&crate::base::text::printable(name), 60)
    )))
}
