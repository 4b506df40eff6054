//! What this repository ships: tests look at a copy of it, since a clone also holds what its user
//! made in it.

use crate::prelude::*;
/// Every file below `tool-defs`, `user_scripts` and `sandbox-policies` that is ours.
pub const FILES: &str = include_str!("shipped.txt");

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .canonicalize()
        .unwrap()
}

/// Copies what is shipped into this folder.
pub fn copy_to(folder: &Path) {
    for file in FILES.lines() {
        let target = folder.join(file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(repository().join(file), &target).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

/// A host of its own with what is shipped.
pub fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    for name in ["tool-defs", "user_scripts", "sandbox-policies"] {
        fs::remove_dir_all(playground.path(name)).unwrap();
    }
    copy_to(&playground.base);
    playground.settle();
    playground
}

/// A new file that is shipped is in the list. (An archive has no index to ask.)
#[test]
fn the_list_is_what_the_repository_has() {
    let folders = ["tool-defs", "user_scripts", "sandbox-policies"];
    let listed = Command::new("git")
        .arg("ls-files")
        .args(folders)
        .current_dir(repository())
        .output();
    let Some(listed) = listed
        .ok()
        .filter(|listed| listed.status.success() && !listed.stdout.is_empty())
    else {
        return;
    };
    let text = String::from_utf8(listed.stdout).unwrap();
    let tracked: BTreeSet<&str> = text.lines().collect();
    assert_eq!(tracked, FILES.lines().collect());
}

/// What users copy from is right as it stands.
#[test]
fn check_finds_no_fault_in_what_is_shipped() {
    let checked = playground(Who::ours()).cli(&["check", "--json"]);
    let files = checked.out.as_array().unwrap();
    let severe = |problem: &Value| problem["severity"] != "note";
    let faults = files
        .iter()
        .flat_map(|file| file["problems"].as_array().unwrap())
        .filter(|problem| severe(problem));
    assert_eq!(faults.count(), 0, "{}", checked.text());
}
