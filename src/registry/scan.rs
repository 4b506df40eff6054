//! Finds the files in the base folders that look like manifests, and warns of those that somebody
//! else can change. A link is followed only directly in a base, where nobody else can make it lead
//! elsewhere: its folder is opened once, and all that is loaded has its real path.
//!
//! Files of a depth that could not be looked at as a whole are not listed: a tool that fills its
//! folder must not hide the manifest which says that it may write there.

use super::open_beneath::Base;
use super::tool::{Discovery, ENDING, FileReport, is_manifest_file, is_nearly_manifest_file};
use crate::base::{files, text};
use crate::manifest::{Code, Problem, SKILL_FILE, Severity, ToolPaths};
use crate::quantity::{MAX_SCAN_DEPTH, MAX_SCAN_ENTRIES};
use std::collections::HashSet;
use std::fs::{DirEntry, read_dir};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders that package managers and interpreters fill; hidden folders are skipped anyway.
pub(super) const SKIPPED_FOLDERS: &[&str] =
    &["node_modules", "__pycache__", "venv", "site-packages"];

/// One file that looks like a manifest.
pub(super) struct Candidate {
    pub base: Arc<Base>,
    pub relative: PathBuf,
}

impl Candidate {
    pub fn is_skill(&self) -> bool {
        self.relative.ends_with(SKILL_FILE)
    }
}

/// Lists base folders. A folder given twice, or inside another, gives each file once.
pub(super) fn scan<'a>(
    bases: impl Iterator<Item = &'a PathBuf>,
    discovery: &mut Discovery,
) -> Vec<Candidate> {
    scan_at_most(MAX_SCAN_ENTRIES, bases, discovery)
}

/// One file, whatever else lies in its folder.
pub(super) fn single(file: &Path) -> Option<Candidate> {
    let base = Arc::new(Base::open(file.parent()?).ok()?);
    let path = files::as_listed(&base.path, file.file_name()?.as_ref());
    Some(Candidate {
        base,
        relative: path.file_name()?.into(),
    })
}

fn scan_at_most<'a>(
    most: usize,
    bases: impl Iterator<Item = &'a PathBuf>,
    discovery: &mut Discovery,
) -> Vec<Candidate> {
    let mut scan = Scan {
        most,
        seen: HashSet::new(),
        candidates: Vec::new(),
        links: Vec::new(),
        discovery,
    };
    let bases: Vec<Arc<Base>> = bases.filter_map(|base| scan.open(base)).collect();
    let paths = bases.iter().map(|base| base.path.clone());
    scan.discovery.bases.extend(paths);
    bases.iter().for_each(|base| scan.base(base));
    scan.links.sort();
    for link in std::mem::take(&mut scan.links) {
        scan.linked(&link, &bases);
    }
    let mut candidates = scan.candidates;
    candidates.sort_by_cached_key(|it: &Candidate| {
        (
            it.base.path.as_os_str().to_owned(),
            it.relative.as_os_str().to_owned(),
        )
    });
    candidates
}

struct Scan<'d> {
    /// Most files and folders that are looked at in one base.
    most: usize,
    seen: HashSet<PathBuf>,
    candidates: Vec<Candidate>,
    /// Links to folders, directly in a base.
    links: Vec<PathBuf>,
    discovery: &'d mut Discovery,
}

impl Scan<'_> {
    fn open(&mut self, base: &Path) -> Option<Arc<Base>> {
        match Base::open(base) {
            Ok(base) => {
                // Who can rename in a folder above can replace this one.
                if let Some(warning) = base.path.ancestors().find_map(changeable) {
                    self.discovery.reports.push(FileReport::loaded(
                        base.path.clone(),
                        None,
                        vec![warning],
                    ));
                }
                Some(Arc::new(base))
            }
            Err(error) => {
                // A project may have only one of the two folders; the other may come while a server
                // runs.
                if error.kind() == std::io::ErrorKind::NotFound {
                    self.incomplete(base, "this folder is not there");
                    return None;
                }
                let message = format!("this folder cannot be read: {error}");
                self.report(base, Severity::Error, message.clone());
                self.discovery.unlisted.push(base.to_path_buf());
                self.incomplete(base, &message);
                None
            }
        }
    }

    /// Level by level, so that a folder of any size hides nothing that lies above it.
    fn base(&mut self, base: &Arc<Base>) {
        let mut level = vec![base.path.clone()];
        let mut looked_at = 0;
        for depth in 1..=MAX_SCAN_DEPTH {
            let before = self.candidates.len();
            let mut below = Vec::new();
            for folder in &level {
                if !self.folder(folder, base, &mut looked_at, &mut below) {
                    // Which tools may write at this depth or deeper is not known, so nothing from
                    // there is loaded. A smaller folder that is named beside this one finds the
                    // file again.
                    for left in self.candidates.split_off(before) {
                        self.seen.remove(&left.base.path.join(left.relative));
                    }
                    let shown = text::path(folder);
                    let message = format!(
                        "more than {} files and folders: nothing {depth} folders down, or deeper, \
                         was loaded; remove what fills {shown}, or name a smaller folder",
                        self.most
                    );
                    let severity = if base.links.is_empty() {
                        Severity::Error
                    } else {
                        Severity::Warning
                    };
                    self.discovery.unlisted.extend(level.iter().cloned());
                    self.report(&base.path, severity, message.clone());
                    return self.incomplete(&base.path, &message);
                }
            }
            if below.is_empty() {
                return;
            }
            below.sort();
            level = below;
        }
        let more = level.len().saturating_sub(1);
        if let Some(folder) = level.first() {
            let others = if more > 0 {
                format!(", and {more} more,")
            } else {
                String::new()
            };
            let message = format!(
                "this folder{others} lies more than {} folders down: nothing in it was looked at; \
                 name it, or one near it, with --tools or --scripts",
                MAX_SCAN_DEPTH - 1
            );
            self.report(folder, Severity::Warning, message);
        }
        self.discovery.unlisted.extend(level);
    }

    /// Looks at the entries of one folder; false = too many.
    fn folder(
        &mut self,
        folder: &Path,
        base: &Arc<Base>,
        looked_at: &mut usize,
        below: &mut Vec<PathBuf>,
    ) -> bool {
        let unread = |scan: &mut Self, error: std::io::Error| {
            if folder == base.path {
                scan.incomplete(folder, &error.to_string());
            }
            scan.discovery.unlisted.push(folder.to_path_buf());
            scan.report(folder, Severity::Error, format!("cannot be read: {error}"));
        };
        let entries = match read_dir(folder) {
            Ok(entries) => {
                self.discovery.folders.push(folder.to_path_buf());
                entries
            }
            Err(error) => {
                unread(self, error);
                return true;
            }
        };
        for entry in entries {
            *looked_at += 1;
            if *looked_at > self.most {
                return false;
            }
            match entry {
                Ok(entry) => below.extend(self.entry(&entry, base)),
                Err(error) => unread(self, error),
            }
        }
        true
    }

    /// Returns a folder to look into. Hidden entries and folders that programs fill are skipped.
    fn entry(&mut self, entry: &DirEntry, base: &Arc<Base>) -> Option<PathBuf> {
        let name = entry.file_name();
        let path = entry.path();
        let name = name.to_string_lossy();
        let kind = entry.file_type().ok()?;
        if name.starts_with('.') || (kind.is_dir() && SKIPPED_FOLDERS.contains(&name.as_ref())) {
            return None;
        }
        if is_manifest_file(&name) || name == SKILL_FILE {
            if let Ok(relative) = path.strip_prefix(&base.path)
                && self.seen.insert(path.clone())
            {
                self.candidates.push(Candidate {
                    base: Arc::clone(base),
                    relative: relative.to_path_buf(),
                });
            }
        } else if kind.is_file() && is_nearly_manifest_file(&name) && self.seen.insert(path.clone())
        {
            let message =
                format!("is ignored: the name of a manifest ends with {ENDING}, in lower case");
            self.report(&path, Severity::Warning, message);
        } else if kind.is_symlink() && path.is_dir() && self.seen.insert(path.clone()) {
            if base.links.is_empty() && path.parent() == Some(&base.path) {
                self.links.push(path);
            } else {
                self.not_entered(&path, "it does not lie directly in a base folder");
            }
            return None;
        }
        Some(path).filter(|_| kind.is_dir())
    }

    /// Looks into the folder that a link in a base leads to.
    fn linked(&mut self, link: &Path, bases: &[Arc<Base>]) {
        let found = match Base::linked(link) {
            Ok(found) => Arc::new(found),
            Err(why) => return self.not_entered(link, &why.to_string()),
        };
        // Such a folder would be one tool's own.
        let home = std::env::home_dir().map(|home| files::resolved(&home));
        let wide = bases.iter().map(|base| &base.path).chain(&home);
        if let Some(wide) = wide.into_iter().find(|it| it.starts_with(&found.path)) {
            return self.not_entered(link, &format!("it leads to {}", text::path(wide)));
        }
        if !bases.iter().any(|base| found.path.starts_with(&base.path)) {
            let message = format!("a link: its tools are those of {}", text::path(&found.path));
            let note = Problem::new(Severity::Note, Code::Security, "", message);
            let report = FileReport::loaded(link.to_path_buf(), None, vec![note]);
            self.discovery.reports.push(report);
            let listed = self.discovery.unlisted.len();
            let complete = self.discovery.incomplete.len();
            self.base(&found);
            // A link can lead to data of any size. Its manifests name scripts of that folder alone,
            // so those that are not read deny nothing elsewhere.
            self.discovery.unlisted.truncate(listed);
            self.discovery.incomplete.truncate(complete);
        }
    }

    /// Users are often surprised that nothing below a linked folder is found.
    fn not_entered(&mut self, link: &Path, why: &str) {
        let message = format!(
            "this folder is a symbolic link and is not entered ({why}): move the folder itself \
             here, and leave a link to it in its old place"
        );
        self.report(link, Severity::Warning, message);
    }

    fn report(&mut self, path: &Path, severity: Severity, message: String) {
        let problem = Problem::new(severity, Code::Unreadable, "", message);
        self.discovery
            .reports
            .push(FileReport::skipped(path.to_path_buf(), problem));
    }

    fn incomplete(&mut self, path: &Path, why: &str) {
        self.discovery
            .incomplete
            .push(format!("{}: {why}", text::path(path)));
    }
}

/// Warns of a tool whose own files or folder somebody else can change. It is not refused: a shared
/// folder may be intended, and its tools get no more than policy grants them.
pub(super) fn writable_by_others(site: &ToolPaths) -> Option<Problem> {
    let own = [
        Some(site.manifest.as_path()),
        site.script.as_deref(),
        Some(site.folder.as_path()),
    ];
    own.into_iter().flatten().find_map(changeable)
}

fn changeable(place: &Path) -> Option<Problem> {
    const WORLD_WRITABLE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let facts = place
        .symlink_metadata()
        .ok()
        .filter(|facts| !facts.is_symlink())?;
    let shown = text::path(place);
    let uid = facts.uid();
    // In a sticky folder (/tmp) others can add names, not replace those that are there.
    let sticky = facts.is_dir() && facts.mode() & STICKY != 0;
    let message = if !sticky && facts.mode() & WORLD_WRITABLE != 0 {
        format!(
            "everybody on this machine may write {shown}, and so change what runs here: `chmod o-w \
            '{shown}'`"
        )
    } else if !files::is_of_system(uid, place) {
        let me = nix::unistd::geteuid();
        format!(
            "{shown} belongs to another user (uid {uid}), who can so change what runs here: run \
             this host as that user, or `chown {me} '{shown}'`"
        )
    } else {
        return None;
    };
    Some(Problem::new(Severity::Warning, Code::Security, "", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_full_or_deep_folder_hides_what_lies_as_deep_or_deeper_and_nothing_above_it() {
        let root = tempfile::tempdir().expect("folder");
        let base = root.path().canonicalize().expect("root");
        let file = |relative: &str| {
            let path = base.join(relative);
            fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            fs::write(path, "").expect("file");
        };
        let found = |bases: &[PathBuf], most| {
            let mut discovery = Discovery::default();
            let found = scan_at_most(most, bases.iter(), &mut discovery);
            let found: Vec<_> = found
                .iter()
                .map(|c| c.relative.display().to_string())
                .collect();
            (
                found.join(" "),
                discovery.incomplete.len(),
                discovery.reports.len(),
            )
        };
        for relative in [
            "top.tool.json",
            "x/x.tool.json",
            "x/out/plant.tool.json",
            "zz/deep/late.tool.json",
        ] {
            file(relative);
        }
        let only = [base.clone()];
        let all = "top.tool.json x/out/plant.tool.json x/x.tool.json zz/deep/late.tool.json";
        assert_eq!(
            found(&only, 100),
            (all.to_owned(), 0, 0),
            "the control: all is looked at"
        );
        for n in 0..100 {
            file(&format!("x/out/a{n}"));
        }
        let known = "top.tool.json x/x.tool.json";
        assert_eq!(
            found(&only, 100),
            (known.to_owned(), 1, 1),
            "the writer, and nothing that it may have written"
        );
        let (names, ..) = found(&[base.clone(), base.join("zz")], 100);
        assert_eq!(
            names,
            format!("{known} deep/late.tool.json"),
            "a smaller folder that is named"
        );
        let deep = root
            .path()
            .join("d")
            .canonicalize()
            .unwrap_or(base.join("d"));
        let at =
            |depth: usize| (0..depth).fold("d".to_owned(), |path, _| path + "/d") + "/x.tool.json";
        file(&at(MAX_SCAN_DEPTH - 1));
        assert_eq!(found(std::slice::from_ref(&deep), 1000).2, 0, "the control");
        file(&at(MAX_SCAN_DEPTH));
        let (names, _, reports) = found(&[deep], 1000);
        assert_eq!((names.matches("x.tool.json").count(), reports), (1, 1));
    }
}
