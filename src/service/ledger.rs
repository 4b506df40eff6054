//! Ledger: where tools could ever write. What lies there is never loaded or run as a tool, a module of another script,
//! or an interpreter, also after the tool or its grant is gone or a folder above was renamed.
//!
//! For: the audit log, which adds the places of a call when its walls stand and before it runs; the road, the registry
//! and the search for interpreters, which read them. In: a shape. Out: one line of JSON per place, once.
//! Never: follows a link, or lets a call run whose places it could not keep.

use super::audit::segments::{self, ascii};
use crate::base::files::{self, Folder, trustworthy};
use crate::base::lock;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::policy::{self, FolderId, Place};
use crate::registry;
use nix::fcntl::OFlag;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The file beside the audit log.
pub const LEDGER: &str = "written.jsonl";
/// Longest ledger that is read, bytes.
const LONGEST: u64 = 64 * 1024 * 1024;

/// The ledger beside an audit log. Without the file nothing was written yet. A file that cannot be read, or that others
/// may write, is an error: it decides what is loaded.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// What was read so far; other hosts add to the same file.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Device and inode of the file, and how much of it was read: whole lines.
    file: (u64, u64),
    until: u64,
    places: BTreeMap<PathBuf, BTreeSet<Place>>,
}

/// All that the ledger beside a log holds.
pub fn read(log: &Path) -> Result<BTreeSet<Place>, String> {
    Ledger::beside(log).read(|known| known.places.values().flatten().cloned().collect())
}

impl Ledger {
    pub fn beside(log: &Path) -> Ledger {
        Ledger { path: segments::folder(log).join(LEDGER), known: Mutex::default() }
    }

    /// The places above and below a folder, as the file says now. The cost grows with the number of places found.
    pub fn around(&self, folder: &Path) -> Result<Vec<Place>, String> {
        self.read(|known| {
            let above = folder.ancestors().skip(1).filter_map(|above| known.places.get(above));
            let below = known.places.range(folder.to_path_buf()..).take_while(|(tree, _)| tree.starts_with(folder));
            above.chain(below.map(|(_, places)| places)).flatten().cloned().collect()
        })
    }

    /// The places of earlier calls above and below a path, under the names that they have by now. `moved`: those that
    /// were renamed since.
    pub fn near(&self, path: &Path, moved: &[Place]) -> Result<Vec<Place>, Fault> {
        let mut places = self.around(path).map_err(|why| {
            Fault::new(Kind::InternalError, "The call was refused: where tools wrote before is not known.")
                .person(format!("where tools wrote before is not known: {why}"))
                .retryable()
        })?;
        let near = |place: &&Place| place.tree.starts_with(path) || path.starts_with(&place.tree);
        places.extend(moved.iter().filter(near).cloned());
        Ok(places)
    }

    /// Leaves out of a view what tools could write before; the notes say how much that is. No more than a look at one
    /// file where no tool ever wrote above or below the script's folder.
    pub fn leave_out(&self, shape: &mut Arc<policy::Shape>, moved: &[Place]) -> Result<policy::Notes, Fault> {
        let places = match shape.script {
            Some(_) => self.near(&shape.folder, moved)?,
            None => Vec::new(),
        };
        if places.is_empty() {
            return Ok(policy::Notes::default());
        }
        let (past, notes) = shape.past(&places).map_err(|who| planted(&who))?;
        if past != shape.past {
            Arc::make_mut(shape).past = past;
        }
        Ok(notes)
    }

    /// Narrows a decision by what tools could write before, as a call is narrowed.
    pub fn looks_back(&self, decision: &mut policy::Decision, moved: &[Place]) {
        let Ok(shape) = &mut decision.shape else { return };
        match self.leave_out(shape, moved) {
            Ok(notes) => decision.notes.extend(notes),
            Err(fault) => decision.shape = Err(fault),
        }
    }

    /// Refuses a script that lies where a tool may write, or could in an earlier call.
    pub fn is_planted(&self, script: &Path, snapshot: &registry::Snapshot) -> Result<(), Fault> {
        let places = self.near(script, &snapshot.moved)?;
        let before = || places.iter().find_map(|place| place.writer_of(script));
        let who = snapshot.written.by(script).map(str::to_owned).or_else(before);
        who.map_or(Ok(()), |who| Err(planted(&who)))
    }

    fn read<T>(&self, take: impl FnOnce(&Known) -> T) -> Result<T, String> {
        let mut known = lock(&self.known);
        known.refresh(&self.path).map_err(|e| format!("{}: {e}", self.path.display()))?;
        Ok(take(&known))
    }

    /// Adds the places that a call of this shape can write, unless they are known.
    pub fn add(&self, shape: &policy::Shape) -> io::Result<()> {
        let mut places = Place::of(shape);
        if places.is_empty() {
            return Ok(());
        }
        for place in &mut places {
            let folder = files::without_links(&place.tree, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
            place.folder = Some(FolderId::of(&File::from(folder).metadata()?));
        }
        let mut known = lock(&self.known);
        known.refresh(&self.path)?;
        let same = |place: &Place, known: &Place| {
            (&known.names, &known.folder) == (&place.names, &place.folder) && known.is_of(&place.tool)
        };
        let there = |place: &Place| known.places.get(&place.tree).is_some_and(|all| all.iter().any(|k| same(place, k)));
        places.retain(|place| !there(place));
        if places.is_empty() {
            return Ok(());
        }
        let file = open(&self.path, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
        let lines: Vec<String> = places.iter().map(ascii).collect::<serde_json::Result<_>>()?;
        // Each begins with a newline: a writer that was cut off may have left half a line.
        let text: String = lines.iter().map(|line| format!("\n{line}\n")).collect();
        (&file).write_all(text.as_bytes())?;
        known.refresh(&self.path)
    }
}

impl Known {
    /// Reads what was added since the last look; everything, if the file was replaced or shortened.
    fn refresh(&mut self, path: &Path) -> io::Result<()> {
        let facts = match path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                *self = Known::default();
                return Ok(());
            }
            facts => facts?,
        };
        let file = |facts: &Metadata| (facts.dev(), facts.ino());
        trustworthy(facts.mode(), facts.uid()).map_err(io::Error::other)?;
        if file(&facts) == self.file && facts.len() == self.until {
            return Ok(());
        }
        let mut opened = open(path, OFlag::O_RDONLY)?;
        let facts = opened.metadata()?;
        if facts.len() > LONGEST {
            // Places beyond the bound would count as never written.
            return Err(io::Error::other(format!(
                "it is longer than {LONGEST} bytes; take away the lines of what is gone"
            )));
        }
        if file(&facts) != self.file || facts.len() < self.until {
            *self = Known { file: file(&facts), ..Known::default() };
        }
        opened.seek(SeekFrom::Start(self.until))?;
        let mut text = Vec::new();
        opened.take(LONGEST).read_to_end(&mut text)?;
        // Another host may still be writing the last line.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in text[..whole].split(|byte| *byte == b'\n') {
            if let Ok(place) = serde_json::from_slice::<Place>(line) {
                self.places.entry(place.tree.clone()).or_default().insert(place);
            }
        }
        self.until += whole as u64;
        Ok(())
    }
}

/// The refusal of a script that lies where a tool may or could write.
fn planted(who: &str) -> Fault {
    let message = "The script may not be run: it lies where a tool may write, and a tool cannot make tools.";
    let mend = format!("it lies where {}: if you know who made it, move it elsewhere", printable(who));
    Fault::new(Kind::SecurityError, message).person(mend)
}

fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    Folder::open(path.parent().unwrap_or(Path::new("/")))?.trusted(LEDGER, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_cannot_be_read_whole_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let (log, path) = (folder.path().join("audit.jsonl"), folder.path().join(LEDGER));
        let ledger = Ledger::beside(&log);
        let known = || ledger.read(|known| known.places.keys().cloned().collect::<Vec<_>>());
        assert_eq!(known(), Ok(Vec::new()), "nothing was written yet");
        let line = |tree: &str| format!("\n{{\"tree\":\"{tree}\",\"tool\":\"a:x@1.0.0\"}}\n");
        std::fs::write(&path, format!("{}{{\"tree\":\"/t/o", line("/t/out"))).expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        mode(0o600);
        assert_eq!(known(), Ok(vec!["/t/out".into()]), "the control; half a line is none");
        mode(0o666);
        assert!(known().is_err_and(|why| why.contains("others may write it")));
        mode(0o600);
        // Another host adds to it, and its person takes lines away.
        let mut more = File::options().append(true).open(&path).expect("open");
        more.write_all(format!("ther\",\"tool\":\"a:y@1.0.0\"}}\n{}", line("/z")).as_bytes()).expect("written");
        assert_eq!(known(), Ok(["/t/other", "/t/out", "/z"].map(PathBuf::from).into()));
        std::fs::write(&path, line("/z")).expect("written");
        assert_eq!(known(), Ok(vec!["/z".into()]));
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(known(), Ok(Vec::new()));
        std::fs::write(&path, "").expect("written");
        mode(0o600);
        File::options().write(true).open(&path).and_then(|file| file.set_len(LONGEST + 1)).expect("longer");
        assert!(known().is_err_and(|why| why.contains("longer than")));
    }
}
