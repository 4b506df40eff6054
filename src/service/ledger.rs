//! The ledger of all places where tools could ever write. This host loads no file from there, even
//! after the tool or its grant is gone. A call's places are added once its sandbox is set up,
//! before it runs: each one line of JSON.
//!
//! Where the ledger cannot be read, no interpreter is taken and no script runs. A folder that a
//! person renames, moves or copies does not count any more, and a host with another log knows none
//! of them: hosts that share folders name one log.

use super::audit::segments::{self, ascii, refusal};
use crate::base::files::{Folder, trustworthy};
use crate::base::lock;
use crate::base::text::{self, printable};
use crate::fault::{Fault, Kind};
use crate::policy::{self, WritablePath, WritablePaths};
use crate::runtimes;
use nix::fcntl::OFlag;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub const LEDGER: &str = "written.jsonl";
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Most that all versions of one tool may add.
const MAX_TOOL_BYTES: usize = 4 * 1024 * 1024;

/// The ledger beside an audit log. No file: nothing was written yet. A file that cannot be read, or
/// that others may write, is an error, because the ledger decides what is loaded.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// The audit log beside it.
    log: PathBuf,
    /// What was read so far; other hosts add to the same file.
    known: Mutex<KnownPlaces>,
}

#[derive(Debug, Default)]
struct KnownPlaces {
    /// Device and inode of the file, and how much of it was read: whole lines.
    file: (u64, u64),
    until: u64,
    places: WritablePaths,
    /// Every line that was read, so that the same place of the same tool is added once.
    lines: BTreeSet<LedgerKey>,
    /// How long the lines of each tool are together.
    bytes: BTreeMap<String, usize>,
}

/// Tree, names, and tool without its version.
type LedgerKey = (PathBuf, Option<String>, String);

fn line(place: &WritablePath) -> LedgerKey {
    (
        place.tree.clone(),
        place.names.clone(),
        id(&place.tool).to_owned(),
    )
}

fn id(tool: &str) -> &str {
    tool.split('@').next().unwrap_or_default()
}

/// All that the ledger beside a log holds.
pub fn read(log: &Path) -> Result<WritablePaths, Fault> {
    Ledger::open_beside(log).read(|known| known.places.clone())
}

impl Ledger {
    pub fn open_beside(log: &Path) -> Ledger {
        Ledger {
            path: segments::folder(log).join(LEDGER),
            log: log.to_owned(),
            known: Mutex::default(),
        }
    }

    /// Refuses a script that lies where a tool may write, or could in an earlier call.
    pub fn refuse_planted(&self, script: &Path, granted: &WritablePaths) -> Result<(), Fault> {
        let earlier = self.read(|known| known.places.by(script))?;
        granted
            .by(script)
            .or(earlier)
            .map_or(Ok(()), |who| Err(planted(&who)))
    }

    /// Whether the ledger can be read, which each call must do.
    pub fn check(&self) -> Result<(), Fault> {
        self.read(|_| ())
    }

    fn read<T>(&self, take: impl FnOnce(&KnownPlaces) -> T) -> Result<T, Fault> {
        let mut known = lock(&self.known);
        known.refresh(&self.path).map_err(|e| {
            Fault::new(
                Kind::InternalError,
                "The call was refused: where tools wrote before is not known.",
            )
            .person(format!(
                "where tools wrote before is not known: {}: {e}",
                self.path.display()
            ))
            .retryable()
        })?;
        Ok(take(&known))
    }

    /// Records what a call of this shape can write, before its tool starts. An error refuses the
    /// call.
    pub fn record(&self, shape: &policy::Shape) -> Result<(), Fault> {
        self.add(shape).map_err(|e| {
            let why = format!("the call's confinement cannot be stored beside it: {e}");
            refusal(&self.log, &why)
        })
    }

    /// Adds the places that a call of this shape can write, unless they are known.
    pub fn add(&self, shape: &policy::Shape) -> io::Result<()> {
        let mut places = WritablePath::of_grants(&shape.grants, &shape.tool);
        if places.is_empty() {
            return Ok(());
        }
        let mut known = lock(&self.known);
        known.refresh(&self.path)?;
        places.retain(|place| !known.lines.contains(&line(place)));
        if places.is_empty() {
            return Ok(());
        }
        let file = open(&self.path, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
        let lines: Vec<String> = places
            .iter()
            .map(ascii)
            .collect::<serde_json::Result<_>>()?;
        // Each begins with a newline: a writer that was cut off may have left half a line.
        let text: String = lines.iter().map(|line| format!("\n{line}\n")).collect();
        if known.bytes.get(id(&shape.tool)).unwrap_or(&0) + text.len() > MAX_TOOL_BYTES {
            return Err(io::Error::other(format!(
                "the places where versions of {} could write fill {MAX_TOOL_BYTES} bytes; remove \
                 the lines of those that are gone, or let it write in fewer folders",
                id(&shape.tool)
            )));
        }
        (&file).write_all(text.as_bytes())?;
        known.refresh(&self.path)
    }
}

/// Lists in a shape the places from which the call loads no code: of those of the ledger, as its
/// file is now, and those of `written`. Costs one lstat(2) if no tool wrote near what the tool
/// reads.
pub fn look_back(
    shape: &mut Arc<policy::Shape>,
    ledger: Option<&Ledger>,
    written: &WritablePaths,
) -> Result<(), Fault> {
    fn near(
        all: &WritablePaths,
        shape: &Arc<policy::Shape>,
    ) -> (Option<String>, Vec<WritablePath>) {
        let writer = shape
            .script
            .as_deref()
            .and_then(|script| all.writer_of_place(script));
        let folders = shape.grants.iter().map(|grant| grant.area.folder());
        (
            writer,
            folders.flat_map(|folder| all.around(folder)).collect(),
        )
    }
    let (mut writer, mut places) = near(written, shape);
    if let Some(ledger) = ledger {
        let (earlier, more) = ledger.read(|known| near(&known.places, shape))?;
        writer = writer.or(earlier);
        places.extend(more);
    }
    if let Some(who) = writer {
        return Err(planted(&who));
    }
    let written = policy::written_areas(shape, &places);
    if let Some(place) = written.first()
        && let Some(needed) = runtimes::lacks_guard(&shape.runtime)
    {
        let message = "this tool reads what tools write, and its interpreter cannot be kept from \
            loading that as code";
        let person = format!(
            "{}: use {needed}, or let the tools write elsewhere",
            place.text()
        );
        return Err(Fault::new(Kind::SecurityError, message).person(person));
    }
    if written != shape.written {
        Arc::make_mut(shape).written = written;
    }
    Ok(())
}

/// Refuses a source of a secret that a tool can write now, or could in an earlier call.
pub fn check_unwritten<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    ledger: &Ledger,
    written: &WritablePaths,
) -> Result<(), Fault> {
    for file in files {
        let writer = written.writer_on_path(file).map_or_else(
            || ledger.read(|known| known.places.writer_on_path(file)),
            |known| Ok(Some(known)),
        )?;
        if let Some((path, who)) = writer {
            let message = "a secret of this tool comes from a file that a tool could write, so \
                nothing was run";
            let person = format!(
                "{}: {who}; move the source to a folder that no tool writes",
                text::path(&path)
            );
            return Err(Fault::new(Kind::SecurityError, message).person(person));
        }
    }
    Ok(())
}

impl KnownPlaces {
    /// Reads what was added since the last look; everything, if the file was replaced or shortened.
    fn refresh(&mut self, path: &Path) -> io::Result<()> {
        let facts = match path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                *self = KnownPlaces::default();
                return Ok(());
            }
            facts => facts?,
        };
        fn file(facts: &Metadata) -> (u64, u64) {
            (facts.dev(), facts.ino())
        }
        trustworthy(facts.mode(), facts.uid()).map_err(io::Error::other)?;
        if file(&facts) == self.file && facts.len() == self.until {
            return Ok(());
        }
        let mut opened = open(path, OFlag::O_RDONLY)?;
        let facts = opened.metadata()?;
        if facts.len() > MAX_FILE_BYTES {
            // Places beyond the bound would count as never written.
            return Err(io::Error::other(format!(
                "it is longer than {MAX_FILE_BYTES} bytes; remove the lines of tools that are gone"
            )));
        }
        if file(&facts) != self.file || facts.len() < self.until {
            *self = KnownPlaces {
                file: file(&facts),
                ..KnownPlaces::default()
            };
        }
        opened.seek(SeekFrom::Start(self.until))?;
        let mut text = Vec::new();
        opened.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        // Another host may still be writing the last line.
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        for written in text[..whole].split(|byte| *byte == b'\n') {
            if let Ok(place) = serde_json::from_slice::<WritablePath>(written) {
                *self.bytes.entry(id(&place.tool).to_owned()).or_default() += written.len();
                self.lines.insert(line(&place));
                self.places.add(place);
            }
        }
        self.until += whole as u64;
        Ok(())
    }
}

/// The refusal of a script that lies where a tool may or could write.
fn planted(who: &str) -> Fault {
    let message =
        "The script may not be run: it lies where a tool may write, and a tool cannot make tools.";
    let fix = format!(
        "it lies where {}: if you know who made it, move it elsewhere",
        printable(who)
    );
    Fault::new(Kind::SecurityError, message).person(fix)
}

/// Whoever writes it makes its folder, too.
fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder = match flags.contains(OFlag::O_CREAT) {
        true => Folder::make(folder),
        false => Folder::open(folder),
    };
    folder?.trusted(LEDGER, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_cannot_be_read_whole_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join(LEDGER);
        let ledger = Ledger::open_beside(&folder.path().join("audit.jsonl"));
        let known = || {
            ledger.read(|known| {
                known
                    .places
                    .places()
                    .map(|place| place.tree.clone())
                    .collect::<Vec<_>>()
            })
        };
        let refused = |words: &str| {
            known().is_err_and(|why| why.person.is_some_and(|why| why.contains(words)))
        };
        assert_eq!(known(), Ok(Vec::new()), "nothing was written yet");
        let line = |tree: &str| format!("\n{{\"tree\":\"{tree}\",\"tool\":\"a:x@1.0.0\"}}\n");
        std::fs::write(&path, format!("{}{{\"tree\":\"/t/o", line("/t/out"))).expect("written");
        let mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode")
        };
        mode(0o600);
        assert_eq!(
            known(),
            Ok(vec!["/t/out".into()]),
            "the control; half a line does not count"
        );
        mode(0o666);
        assert!(refused("others may write it"));
        mode(0o600);
        // Another host adds to it, and its person takes lines away.
        let mut more = File::options().append(true).open(&path).expect("open");
        more.write_all(format!("ther\",\"tool\":\"a:y@1.0.0\"}}\n{}", line("/z")).as_bytes())
            .expect("written");
        assert_eq!(
            known(),
            Ok(["/t/other", "/t/out", "/z"].map(PathBuf::from).into())
        );
        std::fs::write(&path, line("/z")).expect("written");
        assert_eq!(known(), Ok(vec!["/z".into()]));
        more.set_len(MAX_FILE_BYTES + 1).expect("longer");
        assert!(refused("longer than"));
    }
    #[test]
    fn one_tool_cannot_fill_it() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open_beside(&folder.path().join("audit.jsonl"));
        let shape = |tool: &str, trees: &mut dyn Iterator<Item = String>| {
            let grant = |tree: String| policy::Grant {
                access: policy::Access::Write,
                area: policy::Area::Tree(tree.into()),
                asked: String::new(),
                rule: String::new(),
                why: String::new(),
            };
            let grants = trees.map(grant).collect();
            policy::Shape {
                grants,
                ..policy::Shape::bare(tool, policy::Runtime::ourselves("x"))
            }
        };
        let known = || {
            ledger
                .read(|known| known.places.places().count())
                .expect("known")
        };
        let add = |version: usize, count: usize| {
            let mut trees = (0..count).map(|n| format!("/t/{version}/{}{n}", "d".repeat(4000)));
            ledger.add(&shape(&format!("a:many@{version}.0.0"), &mut trees))
        };
        add(0, 64).expect("the control: each is kept");
        assert_eq!(known(), 64);
        add(1, 65).expect("one folder for all");
        assert!(
            known() == 65
                && ledger
                    .read(|known| known.places.by("/t/1/x".as_ref()))
                    .expect("known")
                    .is_some()
        );
        let refused = (2..100)
            .find_map(|version| add(version, 64).err())
            .expect("a bound")
            .to_string();
        assert!(refused.contains("versions of a:many"), "{refused}");
        let length = folder.path().join(LEDGER).metadata().expect("there").len();
        assert!(length <= MAX_TOOL_BYTES as u64, "{length}");
        ledger
            .add(&shape(
                "a:other@1.0.0",
                &mut ["/t/other".to_owned()].into_iter(),
            ))
            .expect("others go on");
    }
}
