//! Warns of tools that somebody else can change. No tool is refused for it: a shared folder may be intended,
//! and its tools get no more than policy grants them.

use crate::base::text;
use crate::manifest::{Code, Problem, Severity, Site};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const WORLD_WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A tool's own files and folder.
pub(super) fn tool(site: &Site) -> Option<Problem> {
    let own = [Some(site.manifest.as_path()), site.script.as_deref(), Some(site.folder.as_path())];
    own.into_iter().flatten().find_map(|place| warning(place, &["chown", "chown -R"]))
}

/// A base folder, and those above it: whoever can rename there puts other tools in its place.
pub(super) fn base(folder: &Path) -> Option<Problem> {
    // Without `-R`: in and above a base folder lie other files than tools.
    folder.ancestors().find_map(|above| warning(above, &["chown", "chown"]))
}

/// `take`: the commands that take over a file and a folder.
fn warning(place: &Path, take: &[&str; 2]) -> Option<Problem> {
    let facts = place.symlink_metadata().ok().filter(|facts| !facts.is_symlink())?;
    let shown = text::path(place);
    // In a sticky folder (/tmp) others can add names, not replace those that are there.
    let sticky = facts.is_dir() && facts.mode() & STICKY != 0;
    let message = if !sticky && facts.mode() & WORLD_WRITABLE != 0 {
        format!("everybody on this machine may write {shown}, and so change what runs here: `chmod o-w '{shown}'`")
    } else if !crate::base::files::is_of_system(facts.uid(), place) {
        let (uid, me) = (facts.uid(), nix::unistd::geteuid());
        let named = nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|user| format!("{} ", user.name));
        let take = take[usize::from(facts.is_dir())];
        format!(
            "{shown} belongs to another user ({}uid {uid}), who can so change what runs here: run this host as that \
             user, or `{take} {me} '{shown}'`",
            named.unwrap_or_default()
        )
    } else {
        return None;
    };
    Some(Problem::new(Severity::Warning, Code::Security, "", message))
}
