//! Publishes staged files that match, after success, by temporary file and rename in the real
//! folder. A file takes the place of the one that was copied for its call, and of no other: of two
//! calls that change one file at once the second fails, and nothing of the first is lost.
//!
//! A host that is killed meanwhile can leave a `.toolhost-<uuid>`; the next publishing into that
//! folder removes it once it is an hour old. Files that were renamed before stay.

use super::spec::source_name;
use crate::base::files::{self, Stamp, names_in, open_at};
use crate::base::messages::read_memory_file;
use crate::base::text;
use crate::executor::{Artifact, LeftFile, WriteFailure};
use crate::policy::{self, Shape};
use crate::quantity::Limit;
use crate::runtimes;
use crate::sandbox::{self, CALL_FOLDER, CALL_OUTPUT, Originals, StagedFolder};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fchown, unlinkat};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Most files in one staged folder.
const MAX_FILES: usize = 1000;
const PIECE: usize = 64 * 1024;
/// The output folder of a call, as an outcome names it.
const OUTPUT: &str = "output";
const REPLACED: &str = "the folder was replaced during the call";
/// Longest text of the originals of all staged folders, bytes.
const MAX_ORIGINALS: u64 = 64 << 20;
/// A temporary file of ours that is this old belongs to no call that still runs, seconds.
const ABANDONED_AFTER_SECONDS: i64 = 3600;
const PREFIX: &str = ".toolhost-";
/// How often, and how long each time, a call waits at one folder for others that give files their
/// places.
const MAX_WAITS: u32 = 500;
const WAIT: Duration = Duration::from_millis(2);

/// Why a file is not published: a rule, or this host could not write it.
struct PublishRefusal {
    text: String,
    failed: Option<WriteFailure>,
}

impl PublishRefusal {
    /// Another changed what was copied for the call.
    fn overtaken() -> PublishRefusal {
        let why = "it was changed by another while the call ran, so it was left; call again";
        PublishRefusal {
            text: why.to_owned(),
            failed: Some(WriteFailure::Overtaken),
        }
    }
}

impl From<&str> for PublishRefusal {
    fn from(rule: &str) -> PublishRefusal {
        PublishRefusal {
            text: rule.to_owned(),
            failed: None,
        }
    }
}

impl From<std::io::Error> for PublishRefusal {
    fn from(error: std::io::Error) -> PublishRefusal {
        PublishRefusal {
            text: error.to_string(),
            failed: Some(WriteFailure::Host),
        }
    }
}

impl From<Errno> for PublishRefusal {
    fn from(errno: Errno) -> PublishRefusal {
        PublishRefusal {
            text: errno.desc().to_owned(),
            failed: Some(WriteFailure::Host),
        }
    }
}

fn artifact(path: String, bytes: u64, why: Option<PublishRefusal>) -> Artifact {
    let published = why.is_none();
    let failed = why.as_ref().and_then(|why| why.failed);
    Artifact {
        path,
        bytes,
        published,
        dropped_because: why.map(|why| why.text),
        failed,
        over: None,
        stored: None,
        inlined: None,
    }
}

/// Publishes from each staged copy to its folder. What cannot be published is listed with the
/// reason; no failure here hides a file that is already published. Where the files pass
/// `scratchBytes`, none is published.
pub async fn all(stages: &[StagedFolder], copies: &[OwnedFd], shape: &Shape) -> Vec<Artifact> {
    if stages.is_empty() {
        return Vec::new();
    }
    // The folder as an outcome names it.
    let own = &shape.folder;
    let shown = |stage: &StagedFolder| {
        stage
            .folder
            .strip_prefix(own)
            .unwrap_or(&stage.folder)
            .to_owned()
    };
    let failed = |why: &str| {
        stages
            .iter()
            .map(|stage| {
                artifact(
                    shown(stage).display().to_string(),
                    0,
                    Some(PublishRefusal {
                        text: why.to_owned(),
                        failed: Some(WriteFailure::Host),
                    }),
                )
            })
            .collect()
    };
    let staged = stages
        .iter()
        .zip(copies)
        .map(|(stage, copy)| Ok((stage.clone(), shown(stage), copy.try_clone()?)));
    let Ok(staged) = staged.collect::<std::io::Result<Vec<_>>>() else {
        return failed("the host has no descriptors left");
    };
    let Some(originals) = originals(copies.get(stages.len())) else {
        return failed("what was copied for the call cannot be read");
    };
    let most = shape.limits.get(Limit::FileBytes);
    let most_bytes = shape.limits.get(Limit::ScratchBytes);
    // File work, so not on the threads that other calls run on.
    let done = tokio::task::spawn_blocking(move || {
        fn bytes(copy: &OwnedFd) -> u64 {
            names(copy, |name| size(copy, name) > 0)
                .unwrap_or_default()
                .iter()
                .fold(0, |sum, name| sum.saturating_add(size(copy, name)))
        }
        let sums: Vec<u64> = staged.iter().map(|(.., copy)| bytes(copy)).collect();
        let all = sums
            .iter()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        // Half a result would look like a whole one. Holes count, since a published file has none.
        if all > most_bytes {
            let why =
                format!("the files to publish have {all} bytes, scratchBytes allows {most_bytes}");
            let dropped = staged
                .iter()
                .zip(sums)
                .map(|((_, shown, _), bytes)| Artifact {
                    over: Some(Limit::ScratchBytes),
                    ..artifact(
                        shown.display().to_string(),
                        bytes,
                        Some(why.as_str().into()),
                    )
                });
            return dropped.collect();
        }
        let mut artifacts = Vec::new();
        for ((stage, shown, copy), originals) in staged.iter().zip(&originals) {
            if let Err(why) = one(stage, copy, originals, shown, most, &mut artifacts) {
                artifacts.push(artifact(shown.display().to_string(), 0, Some(why)));
            }
        }
        artifacts
    });
    done.await
        .unwrap_or_else(|_| failed("the host failed while publishing"))
}

/// What each staged folder had when it was copied, as the launcher tells it after the copies.
fn originals(told: Option<&OwnedFd>) -> Option<Vec<Originals>> {
    let text = read_memory_file(told?.try_clone().ok()?, MAX_ORIGINALS).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The names in a copy that count, at most one more than is allowed.
fn names(copy: &OwnedFd, counts: impl Fn(&CStr) -> bool) -> Result<Vec<CString>, Errno> {
    let counted = names_in(copy)?.filter(|name| name.as_ref().map_or(true, |name| counts(name)));
    let mut names: Vec<CString> = counted.take(MAX_FILES + 1).collect::<Result<_, _>>()?;
    names.sort();
    Ok(names)
}

/// The size of a regular file; 0 for anything else.
fn size(copy: &OwnedFd, name: &CStr) -> u64 {
    let stat = fstatat(copy, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    let regular = stat
        .ok()
        .filter(|stat| files::is(stat.st_mode, SFlag::S_IFREG));
    regular.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// What a call left for its caller, and what of it is not taken.
#[derive(Default)]
pub struct LeftFiles {
    pub files: Vec<LeftFile>,
    pub refused: Vec<Artifact>,
}

/// The files in the output folder of a call, whose processes are all gone. Beyond a limit of the
/// call, none is taken.
pub fn left(output: &OwnedFd, shape: &Shape) -> LeftFiles {
    let mut left = LeftFiles::default();
    let names = match names(output, |_| true) {
        Ok(names) => names,
        Err(errno) => {
            left.refused
                .push(artifact(OUTPUT.to_owned(), 0, Some(errno.into())));
            return left;
        }
    };
    for name in &names {
        let shown = crate::base::text::printable(&name.to_string_lossy());
        match plain_file(output, name) {
            Ok((name, file, stat)) => left.files.push(LeftFile {
                name: name.to_owned(),
                file,
                bytes: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            }),
            Err(why) => {
                let path = format!("{OUTPUT}/{shown}");
                left.refused
                    .push(artifact(path, size(output, name), Some(why)));
            }
        }
    }
    let bytes = left.files.iter().map(|file| file.bytes);
    let bytes = bytes.fold(0, u64::saturating_add);
    // Everything counts: also what would not be taken was left.
    for (limit, count) in [
        (Limit::ArtifactFiles, names.len() as u64),
        (Limit::ArtifactBytes, bytes),
    ] {
        if count > shape.limits.get(limit) {
            let over = Some(limit);
            let why = Some(
                format!("there is more than {} allows", limit.name())
                    .as_str()
                    .into(),
            );
            let refused = vec![Artifact {
                over,
                ..artifact(OUTPUT.to_owned(), bytes, why)
            }];
            return LeftFiles {
                files: Vec::new(),
                refused,
            };
        }
    }
    left
}

/// The files that a call left in its working folder, beside the folder of results. They are gone
/// with the call, and its caller may have meant them as results.
pub fn outside(output: &OwnedFd, shape: &Shape) -> Vec<Artifact> {
    if shape.folder != Path::new(CALL_FOLDER) {
        return Vec::new();
    }
    let Ok((folder, names)) = working_folder(output) else {
        return Vec::new();
    };
    // The code itself, and what says which tools it may call.
    let stubs = runtimes::stubs_name(shape.runtime.language);
    let code = shape.script.as_ref().and_then(|path| path.file_name());
    let code = code.and_then(|name| name.to_str());
    // Source text that came to a process that waited has no place of its own in the shape.
    let source = source_name(shape.runtime.language, "");
    let ours = [Some(stubs), Some(source), code];
    let files = names.iter().filter_map(|name| {
        let bytes = size(&folder, name);
        let path = text::printable(&name.to_string_lossy());
        let is_result = bytes > 0 && !path.starts_with('.') && !ours.contains(&Some(&path));
        let why = format!("it lies outside {CALL_OUTPUT}; write results there");
        is_result.then(|| artifact(path, bytes, Some(why.as_str().into())))
    });
    files.collect()
}

/// The folder around that of the results, and the names in it: none where the code put another
/// folder in the place of the results.
fn working_folder(output: &OwnedFd) -> Result<(OwnedFd, Vec<CString>), Errno> {
    let folder = open_at(output, "..", OFlag::O_DIRECTORY)?;
    let within = fstatat(&folder, OUTPUT, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let own = fstat(output)?;
    if (within.st_dev, within.st_ino) != (own.st_dev, own.st_ino) {
        return Ok((folder, Vec::new()));
    }
    let names = names(&folder, |_| true)?;
    Ok((folder, names))
}

/// Opens an entry that is a plain file of one name, which text can show.
fn plain_file<'n>(
    copy: &OwnedFd,
    name: &'n CStr,
) -> Result<(&'n str, std::fs::File, FileStat), PublishRefusal> {
    let text = name
        .to_str()
        .ok()
        .filter(|text| crate::base::text::is_printable(text));
    let text = text.ok_or("its name is not UTF-8, or holds characters that do not print")?;
    let source = open_at(copy, name, OFlag::O_RDONLY).map_err(|e| match e {
        Errno::ELOOP => "it is a symbolic link".into(),
        e => PublishRefusal {
            failed: None,
            ..e.into()
        },
    })?;
    let stat = fstat(&source)?;
    if !files::is(stat.st_mode, SFlag::S_IFREG) {
        return Err("it is not a regular file".into());
    }
    if stat.st_nlink != 1 {
        return Err("it has more than one hard link".into());
    }
    Ok((text, source.into(), stat))
}

/// Publishes one staged folder. `most`: most bytes of a file.
fn one(
    stage: &StagedFolder,
    copy: &OwnedFd,
    originals: &Originals,
    shown: &Path,
    most: u64,
    out: &mut Vec<Artifact>,
) -> Result<(), PublishRefusal> {
    let to = files::without_links(&stage.folder, OFlag::O_DIRECTORY).map_err(|e| match e {
        Errno::ELOOP | Errno::ENOENT | Errno::ENOTDIR => REPLACED.into(),
        e => PublishRefusal::from(e),
    })?;
    let stat = fstat(&to)?;
    if (stat.st_dev, stat.st_ino) != (stage.device, stage.inode) {
        return Err(REPLACED.into());
    }
    let owner = (stat.st_uid, stat.st_gid);
    // A later call may remove what cannot be removed now.
    let _ = files::as_owner(owner, || {
        sweep(&to, stat.st_uid, ABANDONED_AFTER_SECONDS);
        Ok(())
    });
    // A mount point, at which a neighbour of the staged files is shown, holds nothing.
    let is_shown = |name: &CStr| {
        let copied = name.to_str().is_ok_and(|text| stage.copies(text))
            && open_at(&to, name, OFlag::O_DIRECTORY).is_err();
        !copied && size(copy, name) == 0 && open_at(&to, name, OFlag::O_PATH).is_ok()
    };
    let names = names(copy, |name| !is_shown(name))?;
    if names.len() > MAX_FILES {
        // All or nothing, as with too many bytes.
        return Err(format!("it holds more than {MAX_FILES} files")
            .as_str()
            .into());
    }
    let waits = Cell::new(MAX_WAITS);
    for name in names {
        let original = name.to_str().ok().and_then(|name| originals.get(name));
        let place = Place {
            to: &to,
            name: &name,
            original,
            waits: &waits,
        };
        let outcome = file(copy, &place, stage, most, owner);
        // Escaped for the report.
        let path = crate::base::text::printable(
            &shown
                .join(name.to_string_lossy().as_ref())
                .to_string_lossy(),
        );
        match outcome {
            Ok(Some(bytes)) => out.push(artifact(path, bytes, None)),
            Ok(None) => {}
            Err(why) => out.push(artifact(path, size(copy, &name), Some(why))),
        }
    }
    Ok(())
}

/// Publishes one entry, and returns its size. `None`: the file is unchanged. An error: why it is
/// dropped.
fn file(
    copy: &OwnedFd,
    place: &Place,
    stage: &StagedFolder,
    most: u64,
    owner: (u32, u32),
) -> Result<Option<u64>, PublishRefusal> {
    let Place { to, name, .. } = *place;
    let (text, source, stat) = plain_file(copy, name)?;
    let globs: Vec<&String> = stage
        .names
        .iter()
        .filter(|glob| policy::name_matches(glob, text))
        .collect();
    let size = stat.st_size as u64;
    let refused = if globs.is_empty() {
        Some(format!(
            "its name matches none of {}",
            stage.names.join(", ")
        ))
    } else if files::as_listed(&stage.folder, text.as_ref()) != stage.folder.join(text) {
        Some("its folder lists a file under another spelling of that name".to_owned())
    } else if size > most {
        Some(format!("it is larger than fileBytes ({most} bytes)"))
    } else {
        None
    };
    if let Some(why) = refused {
        return Err(why.as_str().into());
    }
    if files::as_owner(owner, || Ok(same(to, name, &source, size))).is_ok_and(|same| same) {
        return Ok(None);
    }
    if policy::is_definition(text) {
        return Err("a tool may not make tools or policies".into());
    }
    if policy::is_obeyed(text) {
        return Err("other programs run or obey a file of that name".into());
    }
    if policy::leads_modules(text) {
        return Err(
            "interpreters find modules, or this host packages, by a file of that name".into(),
        );
    }
    let mode = stat.st_mode & 0o644;
    let is_ours = files::as_owner(owner, || place.write(&source, size, mode))?;
    is_ours
        .then_some(Some(size))
        .ok_or_else(PublishRefusal::overtaken)
}

/// Where a file is published.
struct Place<'p> {
    to: &'p OwnedFd,
    name: &'p CStr,
    /// What was there when the call got its copies.
    original: Option<&'p Stamp>,
    /// How often its call may still wait at this folder.
    waits: &'p Cell<u32>,
}

impl Place<'_> {
    /// Whether what lies there now is the original.
    fn is_original(&self) -> std::io::Result<bool> {
        let now = match fstatat(self.to, self.name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(now) if files::is(now.st_mode, SFlag::S_IFDIR) => return Err(Errno::EISDIR.into()),
            Ok(now) => Some(Stamp::from(&now)),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(match (now, self.original) {
            (Some(now), Some(original)) => now.has_content_of(original),
            (now, original) => now.is_none() && original.is_none(),
        })
    }

    /// False: another changed it meanwhile, and nothing is written.
    fn write(&self, source: &std::fs::File, size: u64, mode: u32) -> std::io::Result<bool> {
        if !self.is_original()? {
            return Ok(false);
        }
        let temporary = CString::new(format!("{PREFIX}{}", uuid::Uuid::now_v7()))?;
        let made = open_at(
            self.to,
            temporary.as_c_str(),
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL,
        )?;
        let mut file = std::fs::File::from(made);
        let written = (|| {
            inherit_access(&file, self.to, self.name, mode)?;
            if std::io::copy(&mut source.take(size), &mut file)? < size {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let _locked = lock_out_hosts(self.to, self.waits)?;
            let is_original = self.is_original()?;
            if is_original {
                renameat(self.to, temporary.as_c_str(), self.to, self.name)?;
            }
            Ok(is_original)
        })();
        if !matches!(written, Ok(true)) {
            let _ = unlinkat(self.to, temporary.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }
}

/// Keeps other hosts from giving files their places in a folder (flock(2)). That takes an instant: a
/// lock that is held longer is a stranger's, and ignored, as where a file system has none.
fn lock_out_hosts(
    folder: &OwnedFd,
    waits: &Cell<u32>,
) -> std::io::Result<Option<Flock<std::fs::File>>> {
    let mut file = std::fs::File::from(open_at(folder, ".", OFlag::O_DIRECTORY)?);
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(Some(locked)),
            Err((back, Errno::EWOULDBLOCK)) if waits.get() > 0 => back,
            Err(_) => return Ok(None),
        };
        waits.set(waits.get() - 1);
        std::thread::sleep(WAIT);
    }
}

/// Gives a new file the access of the one that it replaces, or what its folder gives to new files:
/// the access list, or none, and then the mode, whose group bits are the mask of a list. `mode`: at
/// most these bits.
fn inherit_access(
    file: &std::fs::File,
    to: &OwnedFd,
    name: &CStr,
    mut mode: u32,
) -> std::io::Result<()> {
    let old = match open_at(to, name, OFlag::O_PATH) {
        Ok(old) => Some(old),
        Err(Errno::ENOENT) => None,
        Err(errno) => return Err(errno.into()),
    };
    let (from, list) = old
        .as_ref()
        .map_or((to, c"system.posix_acl_default"), |old| {
            (old, sandbox::ACCESS_LIST)
        });
    if sandbox::copy_access_list(from.as_fd(), list, file.as_fd())? {
        mode &= fstat(file)?.st_mode;
    }
    if let Some(old) = old {
        let stat = fstat(&old)?;
        mode &= stat.st_mode;
        // Its group bits are for its own group: another gets what everybody has.
        if fchown(file, None, Some(stat.st_gid.into())).is_err() {
            mode &= !0o070 | (mode & 0o007) << 3;
        }
    }
    Ok(fchmod(file, Mode::from_bits_truncate(mode))?)
}

/// Whether the real file has the same content. Read in pieces, so that large files do not fill the
/// host's memory.
fn same(to: &OwnedFd, name: &CStr, source: &std::fs::File, size: u64) -> bool {
    let Ok(old) = open_at(to, name, OFlag::O_RDONLY) else {
        return false;
    };
    let old = std::fs::File::from(old);
    if !old.metadata().is_ok_and(|m| m.is_file() && m.len() == size) {
        return false;
    }
    let mut ours = vec![0u8; PIECE];
    let mut theirs = vec![0u8; PIECE];
    let mut at = 0;
    while at < size {
        let length = PIECE.min(usize::try_from(size - at).unwrap_or(PIECE));
        let read = old
            .read_exact_at(&mut ours[..length], at)
            .and(source.read_exact_at(&mut theirs[..length], at));
        if read.is_err() || ours[..length] != theirs[..length] {
            return false;
        }
        at += length as u64;
    }
    true
}

/// Removes temporary files of a host that was killed between making and renaming them.
fn sweep(to: &OwnedFd, owner: u32, age: i64) {
    fn ours(name: &CStr) -> bool {
        let rest = name
            .to_str()
            .ok()
            .and_then(|name| name.strip_prefix(PREFIX));
        let id = rest.and_then(|rest| uuid::Uuid::try_parse(rest).ok());
        id.is_some_and(|id| id.get_version_num() == 7 && rest == Some(id.to_string().as_str()))
    }
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
    for name in names_in(to)
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .filter(|name| ours(name))
    {
        let name = name.as_c_str();
        let Ok(stat) = fstatat(to, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let regular = files::is(stat.st_mode, SFlag::S_IFREG);
        // Only the kernel sets a ctime.
        let made = files::is_me(stat.st_uid) || stat.st_uid == owner;
        if regular && made && stat.st_nlink == 1 && now - stat.st_ctime >= age {
            let _ = unlinkat(to, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::messages::memory_file;
    use crate::executor::process::examine;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    struct World {
        base: tempfile::TempDir,
        shape: Shape,
    }

    impl World {
        fn new() -> World {
            let base = tempfile::tempdir().expect("a folder");
            for name in ["tool/out", "tool/more", "copy", "copy2"] {
                fs::create_dir_all(base.path().join(name)).expect("made");
            }
            let folder = base.path().canonicalize().expect("a path").join("tool");
            let shape = Shape {
                folder,
                ..examine::bare(examine::ourselves())
            };
            World { base, shape }
        }

        fn stage(&self, name: &str, names: &str) -> StagedFolder {
            let folder = self.shape.folder.join(name);
            let facts = fs::metadata(&folder).expect("there");
            let (device, inode) = (facts.dev(), facts.ino());
            StagedFolder {
                folder,
                names: vec![names.to_owned()],
                device,
                inode,
                show_rest: false,
                shown: Vec::new(),
            }
        }

        fn copy(&self, name: &str) -> OwnedFd {
            fs::File::open(self.base.path().join(name))
                .expect("there")
                .into()
        }

        async fn publish(&self, stages: &[StagedFolder]) -> Vec<(String, bool, String)> {
            let mut copies = vec![self.copy("copy"), self.copy("copy2")];
            copies.truncate(stages.len());
            let originals = serde_json::to_vec(&vec![Originals::new(); stages.len()]);
            let originals = memory_file(&originals.expect("text")).expect("memory");
            copies.push(originals);
            let all = all(stages, &copies, &self.shape).await;
            all.into_iter()
                .map(|a| (a.path, a.published, a.dropped_because.unwrap_or_default()))
                .collect()
        }
    }

    #[tokio::test]
    async fn only_plain_files_that_match_are_published() {
        let world = World::new();
        let (copy, out) = (
            world.base.path().join("copy"),
            world.shape.folder.join("out"),
        );
        fs::write(world.base.path().join("secret"), "secret").expect("made");
        fs::write(copy.join("a.json"), "1").expect("made");
        fs::set_permissions(copy.join("a.json"), fs::Permissions::from_mode(0o4777))
            .expect("chmod");
        fs::write(copy.join("x.tool.json"), "{}").expect("made");
        fs::write(copy.join("note.txt"), "x").expect("made");
        fs::write(copy.join("twice.json"), "x").expect("made");
        fs::hard_link(copy.join("twice.json"), copy.join("again.json")).expect("linked");
        symlink(world.base.path().join("secret"), copy.join("link.json")).expect("linked");
        nix::unistd::mkfifo(&copy.join("pipe.json"), Mode::S_IRWXU).expect("a pipe");
        let told = world.publish(&[world.stage("out", "*.json")]).await;
        for (name, why) in [
            ("x.tool.json", "may not make tools"),
            ("note.txt", "matches none of *.json"),
            ("twice.json", "more than one hard link"),
            ("again.json", "more than one hard link"),
            ("link.json", "symbolic link"),
            ("pipe.json", "not a regular file"),
        ] {
            let found = told
                .iter()
                .find(|(path, ..)| *path == format!("out/{name}"));
            assert!(
                found.is_some_and(|(_, out, said)| !out && said.contains(why)),
                "{name}: {told:?}"
            );
        }
        assert!(
            told.contains(&("out/a.json".to_owned(), true, String::new())),
            "{told:?}"
        );
        let names: Vec<_> = fs::read_dir(&out)
            .expect("there")
            .map(|e| e.expect("an entry").file_name())
            .collect();
        assert_eq!(names, ["a.json"]);
        let facts = fs::metadata(out.join("a.json")).expect("published");
        assert_eq!(facts.mode() & 0o7777, 0o644);
        assert_eq!(facts.uid(), fs::metadata(&out).expect("there").uid());
    }

    #[tokio::test]
    async fn what_a_killed_host_left_goes_and_nothing_else() {
        let world = World::new();
        let out = world.shape.folder.join("out");
        let own = format!("{PREFIX}{}", uuid::Uuid::now_v7());
        let upper = own.to_uppercase().replace("TOOLHOST", "toolhost");
        let link = format!("{PREFIX}{}", uuid::Uuid::now_v7());
        let folder = format!("{PREFIX}{}", uuid::Uuid::now_v7());
        let others = [
            format!("{PREFIX}notes"),
            format!("{own}.bak"),
            upper,
            format!("x{own}"),
            link,
            folder,
        ];
        for name in others.iter().take(4).chain([&own]) {
            fs::write(out.join(name), "x").expect("made");
        }
        symlink("/etc/hostname", out.join(&others[4])).expect("linked");
        fs::create_dir(out.join(&others[5])).expect("made");
        world.publish(&[world.stage("out", "*.csv")]).await;
        assert!(
            out.join(&own).exists(),
            "it is young: its call may still run"
        );
        let to = OwnedFd::from(fs::File::open(&out).expect("there"));
        sweep(&to, nix::unistd::geteuid().as_raw(), 0);
        assert!(!out.join(&own).exists());
        for name in &others {
            assert!(fs::symlink_metadata(out.join(name)).is_ok(), "{name}");
        }
    }
}
