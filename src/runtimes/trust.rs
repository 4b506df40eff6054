//! Places that no interpreter is taken from: folders of tools, trees that a tool could ever write,
//! and what others than root and we ourselves can change. A path is judged before anything of it is
//! opened or run.

use crate::base::files::{self, every_id_is_mapped};
use crate::base::place::Mounts;
use crate::policy::{self, WritablePaths};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const STICKY: u32 = 0o1000;

/// Folders that are never bound as a whole for an interpreter.
#[rustfmt::skip]
const TOO_WIDE: [&str; 17] = [
    "/", "/usr", "/usr/local", "/etc", "/var", "/opt", "/home", "/root", "/tmp", "/srv", "/mnt", "/media", "/run",
    "/dev", "/proc", "/sys", "/boot",
];

/// Refuses `path` where it, a link on its way, its end, or a folder above one of them can be
/// changed by others than root and us.
pub(super) fn path(path: &Path) -> Result<(), String> {
    for place in files::steps(path).iter().flat_map(|step| step.ancestors()) {
        let facts = place
            .symlink_metadata()
            .map_err(|e| format!("{}: {e}", place.display()))?;
        if !files::is_of_system(facts.uid(), place) {
            return Err(format!(
                "{} belongs to another user (uid {})",
                place.display(),
                facts.uid()
            ));
        }
        if facts.file_type().is_symlink() {
            // A link has no mode of its own: its folder's mode counts.
            continue;
        }
        // In a sticky folder (/tmp) others can add names, but not replace those of root or us.
        let sticky_folder = facts.is_dir() && facts.mode() & STICKY != 0;
        if !sticky_folder && files::others_may_write(facts.mode(), facts.uid(), facts.gid()) {
            return Err(format!(
                "others can write to {0}; `chmod go-w {0}` corrects it",
                place.display()
            ));
        }
    }
    Ok(())
}

/// Refuses a folder whose binding would open a home or a whole system folder.
pub(super) fn narrow(path: &Path) -> Result<(), String> {
    let is_home = path.parent() == Some(Path::new("/home"))
        || std::env::var_os("HOME")
            .is_some_and(|home| !home.is_empty() && Path::new(&home) == path);
    if is_home || TOO_WIDE.iter().any(|wide| Path::new(wide) == path) {
        return Err(format!(
            "it needs the whole of {}, which holds more than an interpreter",
            path.display()
        ));
    }
    Ok(())
}

/// Under real root tools have ids of their own and interpreters keep their modes: others must be
/// able to read them.
pub(super) fn readable_by_tools(path: &Path) -> Result<(), String> {
    if !(nix::unistd::geteuid().is_root() && every_id_is_mapped() == Some(true)) {
        return Ok(());
    }
    let facts = path
        .metadata()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let needed = if facts.is_dir() { 0o005 } else { 0o004 };
    if facts.mode() & needed == needed {
        return Ok(());
    }
    Err(format!(
        "tools never run as root and could not read {0}; `chmod -R o+rX {0}` corrects it",
        path.display()
    ))
}

/// The paths that no interpreter is taken from, each as it was named and with links resolved.
#[derive(Clone, Debug, Default)]
pub struct OffLimits {
    /// Folders of tools, scripts and policies.
    tools: BTreeSet<PathBuf>,
    /// Where tools could write.
    written: WritablePaths,
}

impl OffLimits {
    /// Folders of tools, scripts and policies, and the places where tools could write in earlier
    /// calls.
    pub fn new(tools: &[PathBuf], written: WritablePaths) -> OffLimits {
        let tools = tools
            .iter()
            .flat_map(|folder| [files::resolved(folder), folder.clone()])
            .collect();
        OffLimits { tools, written }
    }

    /// Refuses `path` if its name, a link that leads on from it, or the file at its end lies in
    /// such a place.
    pub(super) fn check(&self, path: &Path) -> Result<(), String> {
        let mounts = Mounts::current();
        for step in files::steps(path) {
            if let Some(tools) = self.tools.iter().find(|tools| mounts.holds(tools, &step)) {
                return Err(format!(
                    "{} lies in the tool folder {}",
                    step.display(),
                    tools.display()
                ));
            }
        }
        match self.written.writer_on_path(path) {
            None => Ok(()),
            Some((step, who)) => Err(format!("{} lies where {who}", step.display())),
        }
    }

    /// Describes a path that is off limits and lies in this folder, or is this folder.
    pub(super) fn below(&self, folder: &Path) -> Option<String> {
        let mounts = Mounts::current();
        let tools = self.tools.iter().find(|tools| mounts.holds(folder, tools));
        let words = tools.map(|tools| format!("the tool folder {}", tools.display()));
        words.or_else(|| {
            self.written
                .places()
                .find(|place| mounts.holds(folder, &place.tree))
                .map(|place| format!("{}, where {}", place.tree.display(), place.writer()))
        })
    }

    /// Refuses a launcher that may read what a tool could write. What it reads is not known;
    /// assumed are its installation and the settings that programs keep in a home.
    pub(super) fn check_launcher(&self, launcher: &Path, home: &OsStr) -> Result<(), String> {
        let home = Some(Path::new(home)).filter(|home| home.parent().is_some());
        let installation = launcher.parent().and_then(Path::parent);
        let installation =
            installation.filter(|above| above.parent().is_some() && Some(*above) != home);
        let mounts = Mounts::current();
        let reads = |tree: &Path| {
            let inside = installation.is_some_and(|above| mounts.holds(above, tree));
            inside
                || home.is_some_and(|home| {
                    is_setting(&mounts.place(tree), &mounts.place(home))
                        || mounts.holds(tree, &files::resolved(home))
                })
        };
        let Some(place) = self.written.places().find(|place| reads(&place.tree)) else {
            return Ok(());
        };
        Err(format!(
            "a launcher may read what lies in {}, where {}",
            place.tree.display(),
            place.writer()
        ))
    }
}

/// Refuses a runtime whose files lie in a place that is off limits, or whose view would open such a
/// place, a home or a whole system folder.
pub fn outside(runtime: &policy::Runtime, off_limits: &OffLimits) -> Result<(), String> {
    let program = match &runtime.program {
        policy::Program::Path(path) => Some(path),
        policy::Program::Ourselves { .. } => None,
    };
    for root in runtime.roots.iter().chain(program) {
        let real = root
            .canonicalize()
            .map_err(|e| format!("{}: {e}", root.display()))?;
        off_limits.check(root)?;
        if Some(root) == program {
            continue;
        }
        for path in [root, &real] {
            narrow(path)?;
            if let Some(place) = off_limits.below(path) {
                return Err(format!("it needs {}, which holds {place}", path.display()));
            }
        }
    }
    Ok(())
}

/// A path in a home below a name that starts with a dot: settings of programs.
fn is_setting(path: &Path, home: &Path) -> bool {
    let name = path
        .strip_prefix(home)
        .ok()
        .and_then(|below| below.components().next());
    name.is_some_and(|name| name.as_os_str().as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn writable(tree: &Path) -> OffLimits {
        let mut all = WritablePaths::default();
        all.add(policy::WritablePath {
            tree: tree.into(),
            tool: "a:b@1.0.0".into(),
            names: None,
            granted: false,
        });
        OffLimits::new(&[], all)
    }

    #[test]
    fn every_step_to_a_file_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().canonicalize().expect("real").join(name);
        for name in ["tree/bin", "own/bin"] {
            std::fs::create_dir_all(at(name)).expect("made");
        }
        std::fs::write(at("own/bin/python3"), "").expect("made");
        // The end of the second lies outside, a step on the way does not.
        for (target, link) in [
            ("own/bin/python3", "tree/step"),
            ("tree/step", "own/through"),
            ("tree/not/yet", "own/later"),
            ("tree/bin", "own/folder"),
            ("own/bin/python3", "own/good"),
        ] {
            symlink(at(target), at(link)).expect("linked");
        }
        let off_limits = writable(&at("tree"));
        for name in [
            "own/through",
            "own/later",
            "own/folder/python3",
            "tree/step",
            "tree/bin/x",
        ] {
            let why = off_limits.check(&at(name)).expect_err(name);
            assert!(
                why.contains("a:b@1.0.0 could write in an earlier call"),
                "{why}"
            );
        }
        for name in ["own/good", "own/bin/python3", "tree2/x"] {
            assert_eq!(off_limits.check(&at(name)), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_launcher_is_not_asked_where_a_tool_could_write_what_it_reads() {
        let asked = |tree: &str| {
            writable(Path::new(tree))
                .check_launcher(Path::new("/opt/asdf/shims/python3"), OsStr::new("/home/u"))
        };
        for tree in ["/opt/asdf/installs", "/home/u/.config", "/home"] {
            assert!(asked(tree).is_err(), "{tree}");
        }
        assert_eq!(
            (asked("/home/u/results"), asked("/opt/results")),
            (Ok(()), Ok(()))
        );
    }
}
