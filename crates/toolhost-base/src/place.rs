//! Places: a file system, and a path inside it. A folder that is mounted at two paths is one place,
//! so what may be written, read or obeyed is compared by places.
//!
//! A place is found by going down the mount table as the kernel does, also for what does not exist
//! yet. It is never stored, because it holds only until a mount changes.
//!
//! Where a file system takes several spellings of a name, scripts, requests and published files are
//! spelt as their folder lists them. Not known is a second path that the mount table does not show:
//! one network export mounted from two roots, the layers of an overlay, a FUSE mirror. What was
//! written at a path that is not mounted any more is not known at the others.

use super::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Written as one path: the device of the file system, then the path from its root
/// (`8:1/srv/data`). Of a mount the table says the device: that of a file differs between the
/// subvolumes of one file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(PathBuf);

impl Deref for Place {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Borrow<Path> for Place {
    fn borrow(&self) -> &Path {
        &self.0
    }
}

#[derive(Debug)]
struct Mount {
    point: PathBuf,
    place: Place,
}

impl Mount {
    fn place_of(&self, path: &Path) -> Place {
        Place(
            self.place
                .0
                .components()
                .chain(path.strip_prefix(&self.point).unwrap_or(path).components())
                .collect(),
        )
    }
}

/// The mounts that this process sees.
#[derive(Debug)]
pub struct Mounts {
    mounts: Vec<Mount>,
    /// By the index of a mount: the points below it at which others are mounted.
    children: HashMap<usize, HashMap<PathBuf, usize>>,
    by_point: BTreeMap<PathBuf, Vec<usize>>,
    /// Components of the longest mount point.
    depth: usize,
}

/// Stands for the file system above all mounts in the table, which a process in a chroot(2) does
/// not see.
const UNSEEN: usize = 0;

impl Mounts {
    /// The mounts as they are now. Without a table (no /proc), every path is a place of its own.
    pub fn current() -> Arc<Mounts> {
        Mounts::read().unwrap_or_else(|_| Arc::new(Mounts::parse(b"")))
    }

    /// As `current`. Reading the table takes long, so it is read again only when poll(2) says that
    /// it changed (proc_pid_mountinfo(5)).
    pub fn read() -> io::Result<Arc<Mounts>> {
        static KEPT: Mutex<Option<(File, Arc<Mounts>)>> = Mutex::new(None);
        let mut kept = lock(&KEPT);
        if let Some((file, mounts)) = kept.as_ref()
            && poll(
                &mut [PollFd::new(file.as_fd(), PollFlags::POLLPRI)],
                PollTimeout::ZERO,
            ) == Ok(0)
        {
            return Ok(Arc::clone(mounts));
        }
        let mut file = match kept.take() {
            Some((file, _)) => file,
            None => File::open("/proc/self/mountinfo")?,
        };
        // In large pieces, because the kernel makes the text again for every read.
        let mut text = Vec::with_capacity(64 * 1024);
        let mut piece = vec![0u8; 64 * 1024];
        file.rewind()?;
        while let length @ 1.. = file.read(&mut piece)? {
            text.extend_from_slice(&piece[..length]);
        }
        let mounts = Arc::new(Mounts::parse(&text));
        if mounts.by_point.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *kept = Some((file, Arc::clone(&mounts)));
        Ok(mounts)
    }

    fn parse(text: &[u8]) -> Mounts {
        let unseen = Mount {
            point: PathBuf::from("/"),
            place: Place(PathBuf::from("unseen")),
        };
        let mut all = Mounts {
            mounts: vec![unseen],
            children: HashMap::new(),
            by_point: BTreeMap::new(),
            depth: 0,
        };
        let mut indexes = HashMap::new();
        let mut parents = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b' ').map(unescape);
            let mut next = || fields.next();
            let (Some(id), Some(parent), Some(device), Some(root), Some(point)) =
                (next(), next(), next(), next(), next())
            else {
                continue;
            };
            let place = Place(
                device
                    .components()
                    .chain(root.strip_prefix("/").unwrap_or(&root).components())
                    .collect(),
            );
            indexes.insert(id, all.mounts.len());
            parents.push(parent);
            all.depth = all.depth.max(point.components().count());
            all.by_point
                .entry(point.clone())
                .or_default()
                .push(all.mounts.len());
            all.mounts.push(Mount { point, place });
        }
        for (index, parent) in (1..).zip(parents) {
            let parent = indexes
                .get(&parent)
                .copied()
                .filter(|parent| *parent != index)
                .unwrap_or(UNSEEN);
            all.children
                .entry(parent)
                .or_default()
                .insert(all.mounts[index].point.clone(), index);
        }
        all
    }

    pub fn points(&self) -> impl Iterator<Item = &Path> {
        self.by_point.keys().map(PathBuf::as_path)
    }

    /// The place of a path, and those of the mount points on the way to it: whoever can move one of
    /// these decides what the path leads to.
    pub fn way(&self, path: &Path) -> Vec<Place> {
        let mut at = UNSEEN;
        let mut passed = Vec::new();
        // No mount lies deeper.
        let folders: Vec<&Path> = path.ancestors().collect();
        for folder in folders.into_iter().rev().take(self.depth) {
            while let Some(next) = self.children.get(&at).and_then(|points| points.get(folder)) {
                // Nobody can move the root folder.
                passed.extend(folder.parent().map(|_| self.mounts[at].place_of(folder)));
                at = *next;
            }
        }
        passed.push(self.mounts[at].place_of(path));
        passed.reverse();
        passed
    }

    pub fn place(&self, path: &Path) -> Place {
        self.way(path).swap_remove(0)
    }

    /// Every place by which a change reaches the path, or what is mounted below it.
    pub fn places(&self, path: &Path) -> Vec<Place> {
        let below = self.by_point.range::<Path, _>((Excluded(path), Unbounded));
        let below = below.take_while(|(point, _)| point.starts_with(path));
        let mounted = below
            .flat_map(|(_, mounts)| mounts)
            .map(|mount| self.mounts[*mount].place.clone());
        self.way(path).into_iter().chain(mounted).collect()
    }

    /// Whether the second path lies in the first, or is it, by any path.
    pub fn holds(&self, outer: &Path, inner: &Path) -> bool {
        let tree = self.place(outer);
        self.way(inner)
            .iter()
            .any(|place| place.starts_with(&*tree))
    }
}

/// What is escaped in the table, as three octal digits (proc_pid_mountinfo(5)).
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, more @ ..] = rest {
        let digits = more
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &more[3..] } else { more };
    }
    OsString::from_vec(out).into()
}

/// A value that is made of places. It is made again after a mount changed.
#[derive(Debug)]
pub struct Placed<T>(Mutex<Option<(Arc<Mounts>, Arc<T>)>>);

impl<T> Default for Placed<T> {
    fn default() -> Placed<T> {
        Placed(Mutex::new(None))
    }
}

/// A copy makes its own value: what that is made of may differ soon.
impl<T> Clone for Placed<T> {
    fn clone(&self) -> Placed<T> {
        Placed::default()
    }
}

impl<T: Clone> Placed<T> {
    pub fn get(&self, make: impl FnOnce(&Mounts) -> T) -> (Arc<Mounts>, Arc<T>) {
        let mounts = Mounts::current();
        let mut kept = lock(&self.0);
        match kept.as_ref() {
            Some((of, value)) if Arc::ptr_eq(of, &mounts) => (mounts, Arc::clone(value)),
            _ => kept
                .insert((Arc::clone(&mounts), Arc::new(make(&mounts))))
                .clone(),
        }
    }

    /// Changes a value that was made already.
    pub fn update(&mut self, change: impl FnOnce(&Mounts, &mut T)) {
        if let Some((mounts, value)) = self
            .0
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
        {
            change(mounts, Arc::make_mut(value));
        }
    }
}
