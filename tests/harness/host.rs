//! The binary on folders of its own, for what needs no walls: settings, input, output, exit codes.

use assert_cmd::Command;
use std::fs;
use std::path::PathBuf;

pub struct Host {
    pub folder: tempfile::TempDir,
}

pub fn host() -> Host {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tool-defs", "user_scripts/examples", "state", "config"] {
        fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    Host { folder }
}

impl Host {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same for who holds its streams.
    pub fn process(&self) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_toolhost"));
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        for name in ["ROOT", "TOOLS", "SCRIPTS", "POLICIES", "CONFIG", "LOG"] {
            command.env_remove(format!("TOOLHOST_{name}"));
        }
        command.arg("--root").arg(self.folder.path());
        command
    }

    pub fn command(&self) -> Command {
        Command::from_std(self.process())
    }

    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command().args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}
