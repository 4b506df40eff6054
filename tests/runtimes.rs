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

fn put(file: &Path, mode: u32, text: impl AsRef<[u8]>) -> PathBuf {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    file.to_owned()
}

/// What is found in these folders, with those off limits.
fn discover(folders: &[&Path], off_limits: &[PathBuf]) -> runtimes::Discovered {
    runtimes::discover(
        &std::env::join_paths(folders).unwrap(),
        &OffLimits::new(off_limits, Default::default()),
    )
}

/// A folder of its own; in `local/` a Python: `bin/python3 -> python3.12`, a standard library, one
/// shared library and a folder that has no part in it.
fn local() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    let real = pretend_python(&base.join("local"));
    (folder, base, real)
}

fn pretend_python(prefix: &Path) -> PathBuf {
    for folder in ["bin", "lib/python3.12", "lib/private"] {
        fs::create_dir_all(prefix.join(folder)).unwrap();
    }
    put(&prefix.join("lib/python3.12/os.py"), 0o644, "");
    put(&prefix.join("lib/libpython3.12.so.1.0"), 0o644, "");
    symlink("libpython3.12.so.1.0", prefix.join("lib/libpython3.12.so")).unwrap();
    symlink("python3.12", prefix.join("bin/python3")).unwrap();
    // An ELF file that plays an interpreter: enough for everything that only looks at files.
    put(&prefix.join("bin/python3.12"), 0o755, b"\x7fELF not really")
}

#[test]
fn roots_are_narrow_and_what_others_can_change_is_passed_over() {
    let (_keep, base, real) = local();
    let bin = base.join("local/bin");
    let found = discover(&[&bin], &[]);
    let python = &found.runtimes[&Language::Python];
    assert_eq!(
        (program(python), python.version.as_str()),
        (real.clone(), "3.12")
    );
    let local: Vec<_> = python
        .roots
        .iter()
        .filter_map(|root| root.strip_prefix(base.join("local")).ok())
        .collect();
    let expected = [
        "bin/python3.12",
        "lib/python3.12",
        "lib/libpython3.12.so",
        "lib/libpython3.12.so.1.0",
    ];
    assert_eq!(local, expected.map(Path::new), "{:?}", python.roots);
    for place in [real.as_path(), &bin, &base.join("local")] {
        let before = place.metadata().unwrap().permissions();
        fs::set_permissions(place, fs::Permissions::from_mode(0o777)).unwrap();
        let found = discover(&[&bin], &[]);
        assert!(
            found.runtimes.is_empty() && found.notes[0].contains("others can write"),
            "{place:?}: {:?}",
            found.notes
        );
        fs::set_permissions(place, before).unwrap();
    }
    assert!(!discover(&[&bin], &[]).runtimes.is_empty(), "the control");
}

#[test]
fn nothing_is_taken_from_tool_folders_or_relative_entries_nor_opens_them() {
    let (_keep, base, _) = local();
    symlink(base.join("local/bin"), base.join("bin")).unwrap();
    fs::create_dir(base.join("outside")).unwrap();
    symlink(
        base.join("local/bin/python3.12"),
        base.join("outside/python3"),
    )
    .unwrap();
    let entries = ["local/bin", "bin", "outside"].map(|name| base.join(name));
    let search: Vec<_> = entries
        .iter()
        .map(PathBuf::as_path)
        .chain([Path::new("relative/bin")])
        .collect();
    let found = discover(&search, &[base.join("local")]);
    assert!(
        found.runtimes.is_empty() && found.notes.len() == 4,
        "{found:?}"
    );
    let control = discover(&search, &[]);
    assert!(
        control.runtimes.contains_key(&Language::Python),
        "{:?}",
        control.notes
    );
    // A conda needs its whole prefix.
    fs::create_dir(base.join("local/conda-meta")).unwrap();
    let control = discover(&search[..1], &[]);
    assert_eq!(
        control.runtimes[&Language::Python].roots,
        [base.join("local")]
    );
    let found = discover(&search[..1], &[base.join("local/project/user_scripts")]);
    assert!(
        found.runtimes.is_empty() && found.notes[0].contains("holds the tool folder"),
        "{:?}",
        found.notes
    );
}

#[test]
fn an_environment_keeps_its_own_path_and_every_link_on_the_way() {
    let (_keep, base, real) = local();
    symlink("local", base.join("uv")).unwrap();
    let (venv, home) = (base.join("venv"), base.join("uv/bin"));
    for folder in ["bin", "lib/python3.12/site-packages", "project-notes"] {
        fs::create_dir_all(venv.join(folder)).unwrap();
    }
    symlink(home.join("python3"), venv.join("bin/python")).unwrap();
    let settings = format!("home = {}\nversion_info = 3.12.5\n", home.display());
    put(&venv.join("pyvenv.cfg"), 0o644, settings);
    let python = runtimes::named(
        Language::Python,
        &venv.join("bin/python"),
        &OffLimits::default(),
    )
    .unwrap();
    assert_eq!(program(&python), venv.join("bin/python"));
    let has = |path: &Path| python.roots.iter().any(|root| root == path);
    for path in [
        venv.join("pyvenv.cfg"),
        venv.join("bin"),
        venv.join("lib"),
        real,
        base.join("uv"),
    ] {
        assert!(has(&path), "{path:?} is not among {:?}", python.roots);
    }
    assert!(
        !has(&venv.join("project-notes")) && !has(&venv),
        "{:?}",
        python.roots
    );
}

#[test]
fn a_named_path_must_be_an_interpreter_and_a_launcher_is_asked_once_where_it_leads() {
    let (_keep, base, real) = local();
    let script = put(
        &base.join("shim.sh"),
        0o755,
        format!("#!/bin/sh\necho {}\n", real.display()),
    );
    let (shim, node) = (base.join("python3"), base.join("node"));
    copy_program(script, &shim);
    copy_program("/bin/true", &node);
    for (language, path, part) in [
        (Language::Python, Path::new("bin/python"), "not absolute"),
        (Language::Python, shim.as_path(), "launcher"),
        (
            Language::Python,
            Path::new("/usr/bin"),
            "not a regular file",
        ),
        (Language::Python, Path::new("/nowhere/python3"), "/nowhere"),
        (
            Language::Nodejs,
            Path::new("/usr/bin/env"),
            "is not a nodejs interpreter",
        ),
        (
            Language::Python,
            Path::new("/etc/passwd"),
            "name the interpreter",
        ),
        (
            Language::Python,
            node.as_path(),
            "is not a python interpreter",
        ),
    ] {
        let why = runtimes::named(language, path, &OffLimits::default()).expect_err("refused");
        assert!(why.contains(part), "{path:?}: {why}");
    }
    let found = discover(&[&base, Path::new("/usr/bin"), Path::new("/bin")], &[]);
    assert_eq!(
        program(&found.runtimes[&Language::Python]),
        real,
        "{:?}",
        found.notes
    );
}
