//! Never: what no policy grants, on any machine or on this one: system folders, programs that the host runs, files that
//! a view makes up.
//!
//! For: `judge`. In: an area that is asked for, facts of the machine. Out: the reason, or `None`.
//! Never: looks at the file system, or at a policy.

use super::area::Area;
use super::shown::{MADE_ETC, OURS, SCRATCH, SYSTEM_ETC, SYSTEM_FOLDERS};
use super::{Access, Machine};
use crate::manifest::text;
use std::path::{Path, PathBuf};

/// Programs, libraries and settings of the machine, which every other program runs or obeys.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/etc", "/boot"];

/// `base`: the tool's script base folder, or empty.
pub(super) fn granted(access: Access, ask: &Area, base: &Path, machine: &Machine) -> Option<String> {
    let own = !base.as_os_str().is_empty() && ask.folder().starts_with(base);
    match access {
        Access::Read => made_up(ask),
        Access::Write => system(ask).or_else(|| run_on_the_host(ask, own.then_some(base), machine)).or_else(|| {
            // A script base below a home has fences of its own; one that is or holds a home is not exempt.
            let other = |home: &&PathBuf| !(own && base.starts_with(home) && base != home.as_path());
            machine.homes.iter().filter(other).find_map(|home| settings_of_a_home(ask, home))
        }),
    }
}

/// The view makes its own of these for each call, so the host's could not be shown in their place.
fn made_up(ask: &Area) -> Option<String> {
    let path = MADE_ETC.iter().chain([&OURS]).find(|made| ask.touches(Path::new(made)))?;
    Some(format!(
        "every call has its own {path}, made for it, and need not ask; name the files that are needed beside it"
    ))
}

fn system(ask: &Area) -> Option<String> {
    if !matches!(ask, Area::Tree(_)) && ask.folder().parent().is_none() {
        let folder = match ask {
            Area::File(path) if SCRATCH.iter().any(|scratch| path == Path::new(scratch)) => {
                let own = text::path(path);
                return Some(format!(
                    "{own} inside a call is its own scratch: it is always yours and needs no asking; take it away here"
                ));
            }
            Area::File(path) => format!(" (`{0}` is one file; as a folder it is written `{0}/**`)", text::path(path)),
            _ => String::new(),
        };
        return Some(format!(
            "nothing is written directly below /; name a folder that holds nothing but results{folder}"
        ));
    }
    let all = SYSTEM.iter().chain(&SYSTEM_FOLDERS).chain(&SYSTEM_ETC);
    let folder = all.into_iter().find(|folder| ask.touches(Path::new(folder)))?;
    Some(format!(
        "{folder} holds programs, libraries or settings of the machine, which no tool writes; name a folder elsewhere"
    ))
}

/// `own`: the script base folder, where the ask lies in it.
fn run_on_the_host(ask: &Area, own: Option<&Path>, machine: &Machine) -> Option<String> {
    // A folder of PATH above the script base does not count: a file in the base is no program of that folder.
    let far = |place: &Path| own.and_then(Path::parent).is_some_and(|above| above.starts_with(place));
    let (place, words) = machine.relied_on.iter().find(|(place, _)| ask.touches(place) && !far(place))?;
    Some(format!("{} could be written: {words}; name a folder that holds nothing but results", place.display()))
}

/// `.bashrc`, `.config`, `.ssh` and their like: the user's programs, and launchers of interpreters, obey them.
fn settings_of_a_home(ask: &Area, home: &Path) -> Option<String> {
    let hidden = match (ask, ask.path().strip_prefix(home)) {
        (Area::Tree(tree), _) if home.starts_with(tree) => true,
        (Area::Names { names, .. }, Ok(below)) if below.as_os_str().is_empty() => names.starts_with('.'),
        (_, Ok(below)) => below.components().next().is_some_and(|c| c.as_os_str().as_encoded_bytes().starts_with(b".")),
        (_, Err(_)) => false,
    };
    hidden.then(|| {
        format!(
            "programs obey the files of a home whose names start with a dot ({}/.config and its like), which no tool writes; name a folder beside them",
            home.display()
        )
    })
}
