//! Every command of the README runs as written, in a copy of the repository's tools.

use std::path::Path;
use std::process::Command;

/// The words of a shell line: spaces part them, quotes hold them together, `$PWD` is the folder.
fn words(line: &str, folder: &Path) -> Vec<String> {
    let line = line.replace("$PWD", &folder.to_string_lossy());
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, any) = (!quoted, true),
            ' ' if !quoted => {
                if any {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            '#' if !quoted && !any => break,
            c => {
                word.push(c);
                any = true;
            }
        }
    }
    if any {
        words.push(word);
    }
    words
}

/// The lines of the fenced `sh` blocks.
fn commands(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside && !line.is_empty() => found.push(line),
            _ => {}
        }
    }
    found
}

#[test]
fn every_command_runs_as_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path().canonicalize().expect("real");
    crate::shipped::copy_to(&folder);
    let text = std::fs::read_to_string(crate::shipped::repository().join("README.md")).expect("README.md");
    let commands = commands(&text);
    assert!(commands.len() >= 8, "{commands:?}");
    for line in commands {
        let words = words(line, &folder);
        let arguments = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["cargo", "test"] => continue,
            ["cargo", "run", "--", ..] => words.get(3..).unwrap_or_default().to_vec(),
            other => panic!("the README has a command this test cannot run: {other:?}"),
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolhost"));
        command.args(&arguments).current_dir(&folder).stdin(std::process::Stdio::null());
        command.env("XDG_STATE_HOME", folder.join("state")).env("XDG_CACHE_HOME", folder.join("cache"));
        let done = command.output().expect("toolhost starts");
        let out = String::from_utf8_lossy(&done.stdout);
        // A line may say that it is refused, and how it then exits.
        let wanted = line.split_once("# refused: exit ").map_or(0, |(_, code)| code.parse().expect("an exit code"));
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(wanted), "{line}\n{out}\n{err}");
        if arguments.first().is_some_and(|verb| verb == "call") && wanted == 0 {
            serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap_or_else(|e| panic!("{line}\n{out}\n{e}"));
        }
    }
}
