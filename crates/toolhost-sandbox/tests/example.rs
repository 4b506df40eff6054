//! The example of the README is `examples/confine.rs`, and does what the README says.

use std::process::Command;
use toolhost_sandbox::LAYERS;

const README: &str = include_str!("../README.md");
const EXAMPLE: &str = include_str!("../examples/confine.rs");

#[test]
fn the_example_confines_a_script_of_another_program() {
    assert!(README.contains(EXAMPLE) && EXAMPLE.lines().count() <= 40);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("figures.csv"), "1,2\n").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    // Cargo builds the examples of a package before it runs the tests.
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/confine");
    let ran = Command::new(example).arg(folder.path()).output().unwrap();
    let printed = String::from_utf8(ran.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    let log = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(lines.len(), 3 + LAYERS.len(), "{printed}{log}");
    assert_eq!(lines[0], "['figures.csv']");
    assert!(lines[1].contains("[Errno 2]"), "not there: {}", lines[1]);
    assert!(lines[2].contains("[Errno 30]"), "read-only: {}", lines[2]);
    assert!(!folder.path().join("new").exists());
    assert!(printed.contains("landlock: active\nseccomp: active\n"));
}
