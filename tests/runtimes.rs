//! Interpreters: found only where nobody else can put one, and described by exactly what they need.

use crate::prelude::*;
use toolhost::manifest::Language;
use toolhost::policy::{Program, Runtime};
use toolhost::runtimes::{self, OffLimits};

fn program(runtime: &Runtime) -> PathBuf {
    match &runtime.program {
        Program::Path(path) => path.clone(),
        Program::Ourselves { .. } => panic!("an interpreter is a path: {runtime:?}"),
    }
}

/// An ELF file that plays an interpreter: enough for everything that only looks at files.
fn pretend(folder: &Path, name: &str) -> PathBuf {
    std::fs::create_dir_all(folder).expect("folder");
    let file = folder.join(name);
    std::fs::write(&file, b"\x7fELF not really").expect("file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("mode");
    file
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let real = folder.path().canonicalize().expect("real");
    (folder, real)
}

/// `prefix/bin/python3 -> python3.12`, a standard library, one shared library and a file that has no part in it.
fn pretend_python(prefix: &Path) -> PathBuf {
    let real = pretend(&prefix.join("bin"), "python3.12");
    symlink("python3.12", prefix.join("bin/python3")).expect("link");
    std::fs::create_dir_all(prefix.join("lib/python3.12")).expect("library");
    std::fs::write(prefix.join("lib/python3.12/os.py"), "").expect("os.py");
    std::fs::write(prefix.join("lib/libpython3.12.so.1.0"), "").expect("so");
    symlink("libpython3.12.so.1.0", prefix.join("lib/libpython3.12.so")).expect("link");
    std::fs::create_dir_all(prefix.join("lib/private")).expect("neighbour");
    real
}

#[test]
fn roots_are_narrow() {
    let (_keep, base) = folder();
    let real = pretend_python(&base.join("local"));
    let found = runtimes::discover(base.join("local/bin").as_os_str(), &OffLimits::default());
    let python = &found.runtimes[&Language::Python];
    assert_eq!(program(python), real);
    assert_eq!(python.version, "3.12");
    let local: Vec<_> = python.roots.iter().filter_map(|root| root.strip_prefix(base.join("local")).ok()).collect();
    let expected = ["bin/python3.12", "lib/python3.12", "lib/libpython3.12.so", "lib/libpython3.12.so.1.0"];
    assert_eq!(local, expected.map(Path::new), "{:?}", python.roots);
}

#[test]
fn nothing_from_tool_folders_or_relative_entries() {
    let (_keep, base) = folder();
    pretend_python(&base.join("user_scripts/x"));
    symlink(base.join("user_scripts/x/bin"), base.join("bin")).expect("link");
    let outside = base.join("outside");
    std::fs::create_dir(&outside).expect("folder");
    symlink(base.join("user_scripts/x/bin/python3.12"), outside.join("python3")).expect("link");
    let entries = ["user_scripts/x/bin", "bin", "outside"].map(|name| base.join(name));
    let search = std::env::join_paths(entries.iter().chain([&PathBuf::from("relative/bin")])).expect("no colon");
    let found = runtimes::discover(&search, &OffLimits::new(&[base.join("user_scripts")], Default::default()));
    assert!(found.runtimes.is_empty(), "{:?}", found.runtimes);
    assert_eq!(found.notes.len(), 4, "{:?}", found.notes);
    let control = runtimes::discover(&search, &OffLimits::default());
    assert!(control.runtimes.contains_key(&Language::Python), "{:?}", control.notes);
}

#[test]
fn a_runtime_that_would_open_a_tool_folder_is_refused() {
    let (_keep, base) = folder();
    let prefix = base.join("conda");
    pretend_python(&prefix);
    std::fs::create_dir(prefix.join("conda-meta")).expect("conda");
    let search = prefix.join("bin");
    let control = runtimes::discover(search.as_os_str(), &OffLimits::default());
    assert_eq!(control.runtimes[&Language::Python].roots, [prefix.as_path()]);
    let found = runtimes::discover(
        search.as_os_str(),
        &OffLimits::new(&[prefix.join("project/user_scripts")], Default::default()),
    );
    assert!(found.runtimes.is_empty() && found.notes[0].contains("holds the tool folder"), "{:?}", found.notes);
}

#[test]
fn what_others_can_change_is_passed_over() {
    let (_keep, base) = folder();
    let real = pretend_python(&base.join("local"));
    for place in [real.as_path(), &base.join("local/bin"), &base.join("local")] {
        let before = place.metadata().expect("facts").permissions();
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o777)).expect("mode");
        let found = runtimes::discover(base.join("local/bin").as_os_str(), &OffLimits::default());
        assert!(found.runtimes.is_empty(), "{}", place.display());
        assert!(found.notes[0].contains("others can write"), "{:?}", found.notes);
        std::fs::set_permissions(place, before).expect("mode");
    }
    assert!(!runtimes::discover(base.join("local/bin").as_os_str(), &OffLimits::default()).runtimes.is_empty());
}

#[test]
fn an_environment_keeps_its_own_path_and_every_link_on_the_way() {
    let (_keep, base) = folder();
    let real = pretend_python(&base.join("uv/cpython-3.12.5"));
    symlink("cpython-3.12.5", base.join("uv/cpython-3.12")).expect("link");
    let venv = base.join("venv");
    std::fs::create_dir_all(venv.join("bin")).expect("bin");
    std::fs::create_dir_all(venv.join("lib/python3.12/site-packages")).expect("lib");
    std::fs::create_dir_all(venv.join("project-notes")).expect("neighbour");
    let home = base.join("uv/cpython-3.12/bin");
    symlink(home.join("python3"), venv.join("bin/python")).expect("link");
    std::fs::write(venv.join("pyvenv.cfg"), format!("home = {}\nversion_info = 3.12.5\n", home.display()))
        .expect("cfg");
    let python = runtimes::named(Language::Python, &venv.join("bin/python"), &OffLimits::default()).expect("a runtime");
    assert_eq!(program(&python), venv.join("bin/python"));
    let has = |path: PathBuf| python.roots.contains(&path);
    for path in [venv.join("pyvenv.cfg"), venv.join("bin"), venv.join("lib"), real, base.join("uv/cpython-3.12")] {
        assert!(has(path.clone()), "{} is not among {:?}", path.display(), python.roots);
    }
    assert!(!has(venv.join("project-notes")) && !has(venv.clone()), "{:?}", python.roots);
}

#[test]
fn a_named_path_must_be_an_interpreter() {
    let (_keep, base) = folder();
    let script = base.join("python3");
    std::fs::write(&script, "#!/bin/sh\n").expect("script");
    let node = base.join("node");
    crate::harness::copy_program("/bin/true", &node);
    for (language, path, part) in [
        (Language::Python, Path::new("bin/python"), "not absolute"),
        (Language::Python, script.as_path(), "launcher"),
        (Language::Python, Path::new("/usr/bin"), "not a regular file"),
        (Language::Python, Path::new("/nowhere/python3"), "/nowhere"),
        (Language::Nodejs, Path::new("/usr/bin/env"), "is not a nodejs interpreter"),
        (Language::Python, Path::new("/etc/passwd"), "name the interpreter"),
        (Language::Python, node.as_path(), "is not a python interpreter"),
    ] {
        let why = runtimes::named(language, path, &OffLimits::default()).expect_err("refused");
        assert!(why.contains(part), "{}: {why}", path.display());
    }
}

#[test]
fn a_launcher_is_asked_once_and_led_to_the_interpreter() {
    let (_keep, base) = folder();
    let real = pretend_python(&base.join("installs/python"));
    let shims = base.join("shims");
    std::fs::create_dir(&shims).expect("shims");
    let shim = shims.join("python3");
    std::fs::write(&shim, format!("#!/bin/sh\necho {}\n", real.display())).expect("shim");
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let search = std::env::join_paths([shims.as_path(), Path::new("/usr/bin"), Path::new("/bin")]).expect("no colon");
    let found = runtimes::discover(&search, &OffLimits::default());
    assert_eq!(program(&found.runtimes[&Language::Python]), real, "{:?}", found.notes);
}
