//! Reads the tree of a build as hostile input, and sets its modes; the tree is checked again before
//! each use.

use crate::base::files::{self, is, names_in, open_at};
use crate::base::store::{self, Limits};
use crate::base::{sha256_hex, text};
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{io, iter};

/// Deepest folder, and longest path from the root, bytes.
const MAX_DEPTH: usize = 64;
const MAX_PATH_BYTES: usize = 1024;
/// Most threads that look for changes, and the fewest items for each.
const MAX_THREADS: usize = 4;
const MIN_PART_FILES: usize = 400;

/// A file or folder of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// From the root of the tree, with `/` between.
    pub path: String,
    pub bytes: u64,
    /// A file of the build; false: see `new`.
    pub is_file: bool,
    pub stamp: TreeStamp,
}

impl Item {
    /// A folder, or what the host itself adds to an entry: its stamp alone tells whether it was
    /// changed.
    pub fn new(path: &str) -> Item {
        Item {
            path: path.to_owned(),
            bytes: 0,
            is_file: false,
            stamp: TreeStamp::default(),
        }
    }
}

/// Shows whether a file or folder changed: inode, size, and the times of content and inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStamp(u64, i64, (i64, i64), (i64, i64));

impl TreeStamp {
    /// The stamp of an open file or folder.
    pub fn now(file: BorrowedFd) -> io::Result<TreeStamp> {
        Ok(TreeStamp::from_stat(&fstat(file)?))
    }

    fn from_stat(stat: &FileStat) -> TreeStamp {
        let modified = (stat.st_mtime, stat.st_mtime_nsec);
        TreeStamp(
            stat.st_ino,
            stat.st_size,
            modified,
            (stat.st_ctime, stat.st_ctime_nsec),
        )
    }
}

/// Why a tree is refused.
#[derive(Debug)]
pub enum TreeError {
    /// The path, and what is wrong with it, in words.
    Hostile(String),
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for TreeError {
    fn from(error: E) -> TreeError {
        TreeError::Io(error.into())
    }
}

pub(super) fn hostile<T>(path: &str, what: &str) -> Result<T, TreeError> {
    Err(TreeError::Hostile(format!("{}: {what}", shown(path))))
}

/// A part of a tree in a message: printable, and not long.
pub(super) fn shown(part: &str) -> String {
    text::printable(&text::head(part, 200))
}

/// Reads a whole tree, and gives every file and folder the mode it keeps. Stamps are taken later,
/// by `add_stamps`.
pub fn read_tree(root: BorrowedFd, most: Limits) -> Result<Vec<Item>, TreeError> {
    let mut taking = TreeReader {
        items: Vec::new(),
        bytes: 0,
        most,
    };
    taking.folder(root, "", 0)?;
    Ok(taking.items)
}

struct TreeReader {
    items: Vec<Item>,
    bytes: u64,
    most: Limits,
}

impl TreeReader {
    fn folder(&mut self, folder: BorrowedFd, at: &str, depth: usize) -> Result<(), TreeError> {
        if depth > MAX_DEPTH {
            return hostile(at, &format!("lies deeper than {MAX_DEPTH} folders"));
        }
        fchmod(folder, Mode::from_bits_truncate(0o755))?;
        let mut folded = HashSet::new();
        for name in names_in(folder)? {
            let name = name?;
            let path = printable_path(at, &name)?;
            if !folded.insert(path.to_lowercase()) {
                return hostile(&path, "two names differ in case alone");
            }
            let most = self.most.files;
            if self.items.len() >= most {
                return hostile(
                    at,
                    &format!("more than {most} files and folders: require fewer packages"),
                );
            }
            let stat = fstatat(folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if is(stat.st_mode, SFlag::S_IFDIR) {
                let below = open_at(folder, name.as_c_str(), OFlag::O_DIRECTORY)?;
                self.items.push(Item::new(&path));
                self.folder(below.as_fd(), &path, depth + 1)?;
            } else {
                self.file(folder, &name, path, &stat)?;
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        folder: BorrowedFd,
        name: &CString,
        path: String,
        stat: &FileStat,
    ) -> Result<(), TreeError> {
        check_plain_file(&path, stat)?;
        let file = File::from(open_at(folder, name.as_c_str(), OFlag::O_RDONLY)?);
        let stat = fstat(&file)?;
        // Checked again on the descriptor that is read, although no process is left that could
        // replace the file.
        check_plain_file(&path, &stat)?;
        let runs = stat.st_mode & 0o111 != 0;
        fchmod(
            &file,
            Mode::from_bits_truncate(if runs { 0o755 } else { 0o644 }),
        )?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
        let most = self.most.bytes;
        if self.bytes > most {
            return hostile(
                &path,
                &format!("all files together have more than {most} bytes: require fewer packages"),
            );
        }
        self.items.push(Item {
            path,
            bytes,
            is_file: true,
            stamp: TreeStamp::default(),
        });
        Ok(())
    }
}

/// Accepts only a regular file of ours with one hard link.
fn check_plain_file(path: &str, stat: &FileStat) -> Result<(), TreeError> {
    let reasons = [
        (is(stat.st_mode, SFlag::S_IFLNK), "is a link"),
        (
            !is(stat.st_mode, SFlag::S_IFREG),
            "is neither a file nor a folder",
        ),
        (stat.st_mode & 0o7000 != 0, "has a set-id mode"),
        (stat.st_nlink != 1, "has more than one name (hard links)"),
        (!files::is_trusted(stat.st_uid), "belongs to another user"),
    ];
    reasons
        .into_iter()
        .find(|(holds, _)| *holds)
        .map_or(Ok(()), |(_, what)| hostile(path, what))
}

/// The path of a name in a folder of the tree, if the name is one that can be shown and listed.
fn printable_path(at: &str, name: &CString) -> Result<String, TreeError> {
    let shown = String::from_utf8_lossy(name.as_bytes());
    let path = if at.is_empty() {
        shown.clone().into_owned()
    } else {
        format!("{at}/{shown}")
    };
    if name.to_str().is_err() || !text::is_printable(&shown) {
        return hostile(&path, "is a name with characters that no package needs");
    }
    if path.len() > MAX_PATH_BYTES {
        return hostile(
            &path,
            &format!("is a path of more than {MAX_PATH_BYTES} bytes"),
        );
    }
    Ok(path)
}

/// The items with their present stamps, and the disk space that they occupy, bytes.
pub fn add_stamps(root: BorrowedFd, items: Vec<Item>) -> io::Result<(Vec<Item>, u64)> {
    let mut disk = 0;
    let items = items
        .into_iter()
        .map(|item: Item| -> io::Result<Item> {
            let stat = fstatat(root, item.path.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            disk += u64::try_from(stat.st_blocks).unwrap_or_default() * 512;
            Ok(Item {
                stamp: TreeStamp::from_stat(&stat),
                ..item
            })
        })
        .collect::<io::Result<_>>()?;
    Ok((items, disk))
}

/// The digest of what the items are: names, modes and content. A copy of the tree has the same, and
/// other stamps.
pub fn digest(root: BorrowedFd, items: &[Item]) -> io::Result<String> {
    let mut all = Vec::new();
    for path in iter::once(".").chain(items.iter().map(|item| &*item.path)) {
        let stat = fstatat(root, path, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if !files::is_trusted(stat.st_uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        all.extend(format!("{path}\0{:o}\0", stat.st_mode).bytes());
        if is(stat.st_mode, SFlag::S_IFLNK) {
            all.extend(readlinkat(root, path)?.as_bytes());
        } else if is(stat.st_mode, SFlag::S_IFDIR) {
            let folder = open_at(root, path, OFlag::O_DIRECTORY)?;
            let mut names = names_in(folder)?.collect::<nix::Result<Vec<_>>>()?;
            names.sort();
            all.extend(names.iter().flat_map(|name| name.to_bytes_with_nul()));
        } else {
            let file = File::from(open_at(root, path, OFlag::O_RDONLY)?);
            all.extend(store::digest(file)?.0);
        }
        all.push(0);
    }
    Ok(sha256_hex(&all))
}

/// The first path with another stamp now. Adding or removing a name changes the stamp of its
/// folder.
pub fn first_changed<'i>(root: BorrowedFd, items: &'i [Item]) -> Option<&'i str> {
    let same = |item: &&Item| {
        let stat = fstatat(root, item.path.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| TreeStamp::from_stat(&stat) == item.stamp)
    };
    let first = |part: &'i [Item]| {
        part.iter()
            .find(|item| !same(item))
            .map(|item| item.path.as_str())
    };
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS);
    let mut parts = items.chunks(items.len().div_ceil(threads).max(MIN_PART_FILES));
    let ours = parts.next()?;
    // A call waits for this, and large packages have thousands of files.
    std::thread::scope(|scope| {
        let others: Vec<_> = parts
            .map(|part| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || first(part))
                    .map_err(|_| part)
            })
            .collect();
        let ours = first(ours);
        // Join all threads: the scope panics if a thread that was not joined panicked.
        let others = others.into_iter().filter_map(|other| match other {
            Ok(other) => other.join().unwrap_or(Some("(not looked at)")),
            Err(part) => first(part),
        });
        ours.into_iter().chain(others.collect::<Vec<_>>()).next()
    })
}

/// Paths at which an interpreter runs code before the script: `.pth` files and the customisation
/// modules.
pub fn startup_files(items: &[Item], site: &str) -> Vec<PathBuf> {
    let names = items
        .iter()
        .filter_map(|item| Some((item, item.path.strip_prefix(site)?.strip_prefix('/')?)));
    let first = names.filter(|(_, name)| {
        !name.contains('/')
            && (name.ends_with(".pth")
                || ["sitecustomize", "usercustomize"]
                    .contains(&name.split('.').next().unwrap_or(name)))
    });
    first.map(|(item, _)| PathBuf::from(&item.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn read(folder: &Path, files: usize) -> Result<Vec<Item>, TreeError> {
        let root =
            files::without_links(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY).expect("a folder");
        let built = read_tree(
            root.as_fd(),
            Limits {
                files,
                bytes: 10_000,
            },
        )?;
        Ok(add_stamps(root.as_fd(), built)?.0)
    }

    #[test]
    fn only_plain_files_and_folders_are_taken() {
        let file = |path: PathBuf| std::fs::write(path, "1").expect("made");
        let special = |path: PathBuf| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o4755)).expect("set")
        };
        type Case<'a> = (&'a str, &'a dyn Fn(&Path));
        let cases: [Case; 7] = [
            ("is a link", &|at| {
                symlink("good.py", at.join("link")).expect("made")
            }),
            ("has more than one name", &|at| {
                std::fs::hard_link(at.join("good.py"), at.join("more")).expect("made")
            }),
            ("neither a file nor a folder", &|at| {
                nix::unistd::mkfifo(&at.join("x"), Mode::S_IRUSR).expect("made")
            }),
            ("neither a file nor a folder", &|at| {
                drop(std::os::unix::net::UnixListener::bind(at.join("socket")))
            }),
            ("a set-id mode", &|at| special(at.join("good.py"))),
            ("characters that no package needs", &|at| {
                file(at.join("a\u{202e}b"))
            }),
            ("more than 10000 bytes", &|at| {
                std::fs::write(at.join("big"), [0; 10_001]).expect("made")
            }),
        ];
        for (words, make) in cases {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::create_dir(folder.path().join("a")).expect("made");
            file(folder.path().join("a/good.py"));
            assert!(read(folder.path(), 100).is_ok(), "the control of {words}");
            make(&folder.path().join("a"));
            match read(folder.path(), 100) {
                Err(TreeError::Hostile(why)) => {
                    assert!(why.contains(words), "{why} instead of {words}")
                }
                other => panic!("{other:?} instead of {words}"),
            }
        }
    }

    #[test]
    fn every_change_is_seen_in_every_part_of_a_tree() {
        let folder = tempfile::tempdir().expect("a folder");
        let top = folder.path();
        (0..3 * MIN_PART_FILES)
            .for_each(|n| std::fs::write(top.join(n.to_string()), "one").expect("made"));
        std::fs::set_permissions(top.join("0"), std::fs::Permissions::from_mode(0o777))
            .expect("set");
        let root =
            files::without_links(top, OFlag::O_RDONLY | OFlag::O_DIRECTORY).expect("a folder");
        for n in [0, MIN_PART_FILES, 3 * MIN_PART_FILES - 1].map(|n| n.to_string()) {
            let items = read(top, 10_000).expect("taken");
            assert_eq!(first_changed(root.as_fd(), &items), None, "the control");
            std::fs::write(top.join(&n), "two").expect("written");
            assert_eq!(first_changed(root.as_fd(), &items), Some(n.as_str()));
        }
        let mode = std::fs::metadata(top.join("0"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755, "others may not write what is kept");
    }
}
