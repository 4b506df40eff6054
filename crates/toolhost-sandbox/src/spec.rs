//! Spec: what runs behind the layers, and all that it may touch. Plain data: whoever makes one has
//! decided already.

use crate::layers::environment;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, SFlag, fstat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toolhost_base::files::{Stamp, is, without_links};
use toolhost_base::mask::Hidden;
use toolhost_base::names::name_matches;
use toolhost_base::quantity::Limits;

/// One program with all that it may touch; nothing else exists for it but the base view.
/// Also the key under which an idle launcher is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub program: Program,
    /// Files and folders that the program needs to run, shown read-only.
    pub roots: Vec<PathBuf>,
    pub mounts: Vec<Mount>,
    pub stages: Vec<Stage>,
    /// Files and folders that are hidden in each call, each covered by an empty file or folder.
    pub masks: Vec<PathBuf>,
    /// Links of the view: where each lies, and where it leads.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Files of our own, shown below /.toolhost: name and text.
    pub files: Vec<(String, String)>,
    /// Files that lie in the scratch of each call, which may change them: path below /tmp, and text.
    pub scratch: Vec<(PathBuf, String)>,
    /// Where `CALL_OUTPUT` is shown, too: a folder that the mounts hold.
    pub output: Option<PathBuf>,
    /// `NAME=value` lines.
    pub variables: Hidden<Vec<String>>,
    /// Ports at which the launcher's network namespace listens, beside the stub's; `None`: an empty
    /// namespace.
    pub network: Option<Vec<u16>>,
    /// The program may have sockets of its own: servers on loopback, socket files in scratch.
    pub local_sockets: bool,
    pub limits: Limits,
    /// Whose calls the launcher serves; only the host reads it.
    #[serde(skip)]
    pub principal: String,
    /// The files and system calls that the call is refused are recorded.
    pub recorded: bool,
}

impl Spec {
    /// A program that may touch nothing, with the built-in limits.
    pub fn new(program: Program) -> Spec {
        let path = match &program.executable {
            Executable::Path(path) => Some(path.as_path()),
            Executable::Ourselves => None,
        };
        Spec {
            variables: Hidden(environment::usual_lines(path)),
            program,
            roots: Vec::new(),
            mounts: Vec::new(),
            stages: Vec::new(),
            masks: Vec::new(),
            links: Vec::new(),
            files: Vec::new(),
            scratch: Vec::new(),
            output: None,
            network: None,
            local_sockets: false,
            limits: Limits::built_in(),
            principal: String::new(),
            recorded: false,
        }
    }

    /// Whether the call has `CALL_FOLDER`, with its files and a folder for results.
    pub fn has_call_folder(&self) -> bool {
        self.stages.contains(&Stage::Store)
    }

    /// The folders of which the call gets a private copy.
    pub fn staged_folders(&self) -> impl Iterator<Item = &StagedFolder> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Folder(folder) => Some(folder),
            Stage::Store => None,
        })
    }

    /// The folders that are written directly, not through a copy that is published.
    pub fn live_folders(&self) -> impl Iterator<Item = &Mount> {
        self.mounts
            .iter()
            .filter(|mount| mount.folder && mount.access == Access::Write)
    }
}

/// What is executed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    pub executable: Executable,
    /// argv, the name included.
    pub arguments: Vec<String>,
    /// The working folder.
    pub folder: PathBuf,
    /// How many descriptors from 3 on the program gets: a worker's compiled code, the pipes of a
    /// script that calls tools.
    pub inherited: usize,
    pub serves: Serves,
}

/// What a program is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Serves {
    /// One call.
    Call,
    /// The calls of one session, one after the other: each has a time and a CPU time of its own.
    Session,
    /// A worker, which outlives calls and counts their time and CPU itself.
    Calls,
}

impl Program {
    /// A program of this machine. `arguments`: those after its name.
    pub fn new(path: &str, arguments: &[&str]) -> Program {
        let all = std::iter::once(&path).chain(arguments);
        Program {
            executable: Executable::Path(path.into()),
            arguments: all.map(|text| (*text).to_owned()).collect(),
            folder: "/tmp".into(),
            inherited: 0,
            serves: Serves::Call,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Executable {
    Path(PathBuf),
    /// The executable beside `ToLauncher::Setup`.
    Ourselves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// One existing file or folder that is shown at its own path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub path: PathBuf,
    pub access: Access,
    pub folder: bool,
    /// The file at the path when the grant was resolved; the launcher refuses any other.
    pub device: u64,
    pub inode: u64,
    /// The owner of the files, which is mapped to the tool's id if the host is real root.
    pub uid: u32,
    pub gid: u32,
    /// Nothing in it is executed or mapped as a library: tools wrote it.
    pub no_exec: bool,
    /// Where it lies, if not at the path where it is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
}

impl Mount {
    /// The file or folder that lies at this path now. No link is followed.
    pub fn at(path: &Path, access: Access) -> nix::Result<Mount> {
        let stat = fstat(without_links(path, OFlag::O_PATH)?)?;
        Ok(Mount::from_stat(path, access, &stat))
    }

    pub fn from_stat(path: &Path, access: Access, stat: &FileStat) -> Mount {
        Mount {
            path: path.to_owned(),
            access,
            folder: is(stat.st_mode, SFlag::S_IFDIR),
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: stat.st_uid,
            gid: stat.st_gid,
            no_exec: false,
            source: None,
        }
    }

    /// Where that lies which is shown at a path in it.
    pub fn place_of(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix(&self.path).unwrap_or(Path::new(""));
        let top = self.source.as_ref().unwrap_or(&self.path);
        top.components().chain(below.components()).collect()
    }
}

/// A folder of the call's scratch whose files leave the call after success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// They are published to the folder itself.
    Folder(StagedFolder),
    /// They go from `CALL_OUTPUT` to the host's store of artifacts.
    Store,
}

/// By name: the files that a staged folder had when it was copied.
pub type Originals = BTreeMap<String, Stamp>;

/// One folder of which the call gets a private copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedFolder {
    pub folder: PathBuf,
    pub names: Vec<String>,
    pub device: u64,
    pub inode: u64,
    /// A grant shows the folder itself too, so files that are not copied stay visible.
    pub show_rest: bool,
    /// Where `show_rest` is false: what is granted below the folder, and stays visible beside the
    /// copies.
    pub shown: Vec<PathBuf>,
}

impl StagedFolder {
    /// Whether a file of this name is copied.
    pub fn copies(&self, name: &str) -> bool {
        self.names.iter().any(|names| name_matches(names, name))
    }

    /// Whether the file at this path is copied.
    pub fn copies_at(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(&self.folder) && name.is_some_and(|name| self.copies(name))
    }
}
