//! The binary on folders of its own, for what needs no layers: settings, input, output, exit codes.

use super::{manifest, script};
use assert_cmd::Command;
use serde_json::{Value, json};
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

    /// Writes a file and the folders above it; its path.
    pub fn put(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// A Python tool in a folder of its own.
    pub fn tool(&self, id: &str, more: Value) {
        let name = id.split_once(':').unwrap().1;
        let mut manifest = manifest(id, script(format!("{name}/main.py"), "python"), json!({}));
        manifest
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.put(&format!("user_scripts/{name}/main.py"), "print(1)\n");
        self.put(
            &format!("user_scripts/{name}/{name}.tool.json"),
            format!("{manifest:#}"),
        );
    }

    pub fn policy(&self, text: &str) {
        self.put("sandbox-policies/x.policy.toml", text);
    }

    /// The same for who holds its streams.
    pub fn process(&self) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_toolhost"));
        command
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CONFIG_HOME", self.path("config"));
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
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    /// What a verb prints as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let (code, out, err) = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&out)
            .unwrap_or_else(|e| panic!("{arguments:?}: {e}: {code} {out}{err}"))
    }

    /// What `check` says of each file: the ending of a path → its problems.
    pub fn problems(&self) -> impl Fn(&str) -> Vec<Value> {
        let files = self.json(&["check"]);
        move |ending| {
            let files = files.as_array().unwrap();
            let file = files
                .iter()
                .find(|file| file["path"].as_str().unwrap().ends_with(ending));
            file.unwrap_or_else(|| panic!("{ending}: {files:#?}"))["problems"]
                .as_array()
                .unwrap()
                .clone()
        }
    }
}
