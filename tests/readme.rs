//! Every command of the README runs as written, in a copy of the repository's tools.

use crate::prelude::*;
use crate::shipped;

#[test]
fn every_command_runs_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    shipped::copy_to(&folder);
    let text = fs::read_to_string(shipped::repository().join("README.md")).unwrap();
    let blocks = text
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap());
    let lines: Vec<&str> = blocks
        .flat_map(str::lines)
        .filter(|line| !line.is_empty())
        .collect();
    assert!(lines.len() >= 8, "{lines:?}");
    for line in lines
        .into_iter()
        .filter(|line| !line.starts_with("cargo test "))
    {
        let arguments = line.strip_prefix("cargo run -- ");
        let arguments = arguments
            .unwrap_or_else(|| panic!("the README has a command this test cannot run: {line}"));
        let mut shell = Command::new("/bin/sh");
        shell.args([
            "-c",
            &format!("exec {} {arguments}", env!("CARGO_BIN_EXE_toolhost")),
        ]);
        shell.current_dir(&folder).stdin(Stdio::null());
        shell
            .env("XDG_STATE_HOME", folder.join("state"))
            .env("XDG_CACHE_HOME", folder.join("cache"));
        let done = shell.output().unwrap();
        // A line may say that it is refused, and how it then exits.
        let wanted = line
            .split_once("# refused: exit ")
            .map_or(0, |(_, code)| code.parse().unwrap());
        assert_eq!(done.status.code(), Some(wanted), "{line}\n{done:?}");
        if arguments.starts_with("call ") && wanted == 0 {
            serde_json::from_slice::<Value>(&done.stdout)
                .unwrap_or_else(|e| panic!("{line}\n{e}: {done:?}"));
        }
    }
}
