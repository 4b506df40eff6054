//! Pyenv: its shims, followed by their files: running a shim takes 60 ms and tells no more.
//!
//! For: this room. In: a candidate path. Out: the interpreter the shim would start.
//! Never: looks at the current folder (`.python-version`), which anybody may have written.

use super::binary::small_text;
use std::path::{Path, PathBuf};

/// `<root>/shims/python3` → `<root>/versions/<version>/bin/python3`; `None` if this is no pyenv shim.
pub(super) fn interpreter(shim: &Path) -> Result<Option<PathBuf>, String> {
    let (Some(folder), Some(name)) = (shim.parent(), shim.file_name()) else { return Ok(None) };
    let Some(root) = folder.parent().filter(|root| folder.ends_with("shims") && root.join("versions").is_dir()) else {
        return Ok(None);
    };
    // asdf and mise also keep `shims`; only pyenv keeps interpreters right below `versions`.
    let of = |version: &str| root.join("versions").join(version).join("bin").join(name);
    for version in chosen(root)? {
        if version == "system" {
            return Err("pyenv hands this on to the system's interpreter".to_owned());
        }
        if of(&version).is_file() {
            return Ok(Some(of(&version)));
        }
    }
    let mut installed: Vec<(Vec<u32>, String)> = root
        .join("versions")
        .read_dir()
        .map_err(|e| format!("{}: {e}", root.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|version| Some((numbers(&version)?, version)))
        .filter(|(numbers, version)| numbers.first() >= Some(&3) && of(version).is_file())
        .collect();
    installed.sort();
    Ok(installed.pop().map(|(_, version)| of(&version)))
}

/// The versions that `pyenv global` chose, plain names only.
fn chosen(root: &Path) -> Result<Vec<String>, String> {
    let file = root.join("version");
    let text = match small_text(&file) {
        Some(text) => text,
        None if file.symlink_metadata().is_err() => String::new(),
        None => return Err(format!("{} cannot be read", file.display())),
    };
    let plain = |word: &&str| !word.contains('/') && !word.starts_with('.');
    Ok(text.split_whitespace().filter(plain).map(str::to_owned).collect())
}

/// `3.11.7` → 3, 11, 7; `None` for other names (an environment, a pre-release), which are never a default.
fn numbers(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(versions: &[&str], chosen: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for version in versions {
            let bin = root.path().join("versions").join(version).join("bin");
            std::fs::create_dir_all(&bin).expect("bin");
            std::fs::write(bin.join("python3"), "").expect("python3");
        }
        std::fs::create_dir_all(root.path().join("shims")).expect("shims");
        if let Some(chosen) = chosen {
            std::fs::write(root.path().join("version"), chosen).expect("version");
        }
        root
    }

    fn resolved(root: &tempfile::TempDir) -> Result<Option<String>, String> {
        let shim = root.path().join("shims/python3");
        let relative = |p: PathBuf| p.strip_prefix(root.path()).expect("below the root").display().to_string();
        interpreter(&shim).map(|found| found.map(relative))
    }

    #[test]
    fn the_chosen_version_then_the_newest() {
        let all = ["2.7.18", "3.9.18", "3.10.1", "3.13.0rc1"];
        let at = |v: &str| Ok(Some(format!("versions/{v}/bin/python3")));
        assert_eq!(resolved(&root_with(&all, Some("3.9.18\n"))), at("3.9.18"));
        assert_eq!(resolved(&root_with(&all, Some("9.9.9\n"))), at("3.10.1"));
        assert_eq!(resolved(&root_with(&all, Some("../../evil"))), at("3.10.1"));
        assert_eq!(resolved(&root_with(&all, None)), at("3.10.1"));
        assert!(resolved(&root_with(&all, Some("system"))).is_err());
        assert_eq!(interpreter(Path::new("/usr/bin/python3")), Ok(None));
    }
}
