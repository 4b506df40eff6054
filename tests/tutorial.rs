//! The tutorial, the tour and the recipes run as written, from their first line to their last.

use crate::packages::{is_reached, public_indexes};
use crate::prelude::*;
use crate::shipped;

/// The blocks of these kinds of a page, as one program that ends at the first failure.
fn program(page: &str, kinds: &[&str]) -> String {
    let text = fs::read_to_string(shipped::repository().join(page)).unwrap();
    let mut program = "set -euo pipefail\n".to_owned();
    for rest in text.split("```bash").skip(1) {
        let (kind, rest) = rest.split_once('\n').unwrap();
        let (block, _) = rest.split_once("\n```").unwrap();
        if kinds.contains(&kind.trim()) {
            program += block;
            program.push('\n');
        }
    }
    program.replace("8787", &free_port().to_string())
}

/// What a page printed, in this folder.
fn run(page: &str, folder: &Path, kinds: &[&str], search_path: &[&Path]) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_toolhost")).parent().unwrap();
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let usual: Vec<PathBuf> = std::env::split_paths(&usual).collect();
    let all = [binary].into_iter().chain(search_path.iter().copied());
    let search_path = std::env::join_paths(all.chain(usual.iter().map(PathBuf::as_path))).unwrap();
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &program(page, kinds)]);
    shell.current_dir(folder);
    shell.env("PATH", search_path).env("HOME", folder);
    for name in ["STATE", "CACHE", "CONFIG"] {
        shell.env_remove(format!("XDG_{name}_HOME"));
    }
    let done = shell.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn it_runs_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("docs/TUTORIAL.md", folder.path(), &[""], &[]);
    let made = folder.path().join("shop");
    let lines: Vec<&str> = printed.lines().collect();
    for line in ["\"3 items, 15 sold\"", "32", "3", "'pear'"] {
        assert!(lines.contains(&line), "{line}: {printed}");
    }
    let read = |name: &str| fs::read_to_string(made.join(name)).unwrap();
    assert_eq!(read("results/total.json"), "{\"total\": 15}");
    let worth = "{\"apple\": 6, \"pear\": 21, \"plum\": 5}";
    assert_eq!(read("results/worth.json"), worth);
    assert_eq!(read("first.txt"), "item,sold\n");
}

#[test]
fn the_tour_is_refused_and_then_granted() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("docs/TOUR.md", folder.path(), &[""], &[]);
    let refusals = printed.lines().filter(|line| *line == "exit 1").count();
    assert_eq!(refusals, 3, "{printed}");
    for line in ["\"15 sold\"", "15 sold", "0.088"] {
        assert!(printed.lines().any(|it| it == line), "{line}: {printed}");
    }
    let total = folder.path().join("tour/user_scripts/total/out/total.txt");
    assert_eq!(fs::read_to_string(total).unwrap(), "15 sold\n");
}

#[test]
fn the_recipes_run_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("docs/RECIPES.md", folder.path(), &[""], &[]);
    let lines: Vec<&str> = printed.lines().collect();
    for line in [
        r#"{"a":2,"rose":2}"#,
        r#""2 to""#,
        r#"["first.txt"]"#,
        "\"a dot\"",
    ] {
        assert!(lines.contains(&line), "{line}: {printed}");
    }
    let kitchen = folder.path().join("kitchen");
    let picture = fs::read(kitchen.join("pictures/dot.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
    let read = |name: &str| fs::read_to_string(kitchen.join(name)).unwrap();
    assert!(read("allowed.json").contains(r#""success":true"#));
    assert!(read("hidden.json").contains("ToolNotFoundError"));
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index and the client"]
fn its_packages_and_its_client_run_as_written() {
    if !is_reached("pypi.org:443") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join(".config/toolhost");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), public_indexes()).unwrap();
    let python = std::env::var_os("TOOLHOST_TEST_VENV").map(PathBuf::from);
    let python = python.expect("the environment of the tests").join("bin");
    let kinds = ["", "packages", "mcp"];
    let printed = run("docs/TUTORIAL.md", folder.path(), &kinds, &[&python]);
    let made = folder.path().join("shop");
    assert!(printed.contains("\"pear\""), "{printed}");
    assert!(printed.contains("'15 sold'"), "{printed}");
    let answer = fs::read_to_string(made.join("answer.json")).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let pictures: Vec<_> = answer["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["mediaType"])
        .collect();
    assert_eq!(pictures, ["image/png"], "{answer}");
    let picture = fs::read(made.join("results/plot.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 4000);
    let shown = |line: &str| line.trim_end() == "image";
    assert!(printed.lines().any(shown), "{printed}");
}
