//! A host of its own in a temporary folder, seen from outside: tools, policies, secrets, listeners.

use super::listeners::Listeners;
use super::{
    Ended, PATIENCE, PYTHON, SEARCH_PATH, Who, binary, finish, fits, manifest, processes_of,
    repository, wait_for, within,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub struct Playground {
    pub base: PathBuf,
    pub who: Who,
    pub listeners: Listeners,
    pub canary: Child,
    pub secret: String,
    _folder: tempfile::TempDir,
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.canary.kill();
        let _ = self.canary.wait();
    }
}

impl Playground {
    /// `below`: a tool is shown /tmp in another way than other folders.
    pub fn new(who: Who, below: &str) -> Playground {
        let folder = tempfile::Builder::new()
            .prefix("toolhost-test-")
            .tempdir_in(below)
            .unwrap();
        let base = folder.path().canonicalize().unwrap();
        let folders = "bin home state secret granted/ro granted/ro-sibling tool-defs \
            user_scripts/other sandbox-policies";
        for name in folders.split(' ') {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        let secret = format!(
            "s3cret-{}",
            &base.display().to_string()[base.as_os_str().len() - 6..]
        );
        let put = |name: &str, text: &str| fs::write(base.join(name), text).unwrap();
        put("secret/secret.txt", &secret);
        put("granted/ro-sibling/secret.txt", &secret);
        put("user_scripts/other/main.py", "pass\n");
        "file.txt a b c d e f g h"
            .split(' ')
            .for_each(|name| put(&format!("granted/ro/{name}"), "granted\n"));
        let link =
            |name, target: &Path| symlink(target, base.join("granted/ro").join(name)).unwrap();
        link("link", Path::new("../../secret/secret.txt"));
        link("abs", &base.join("secret/secret.txt"));
        link("up", Path::new("../ro-sibling"));
        let listeners = Listeners::open(&base.join("granted/ro"));
        let mut canary = Command::new("/bin/sleep");
        canary.arg("600");
        who.uid().map(|uid| canary.uid(uid).gid(uid));
        let canary = canary.spawn().unwrap();
        let playground = Playground {
            base,
            who,
            listeners,
            canary,
            secret,
            _folder: folder,
        };
        playground.allow("default", "*", &["./**"], &[]);
        playground.settle();
        playground
    }

    /// With these tools: name, language, script, what else the manifest says.
    pub fn with(who: Who, tools: &[(&str, &str, &str, Value)]) -> Playground {
        let playground = Playground::new(who, "/var/tmp");
        for (name, language, script, more) in tools {
            playground.tool(name, language, script, more.clone());
        }
        playground.settle();
        playground
    }

    /// Gives all files to the user who runs the host; everybody may read.
    pub fn settle(&self) {
        for entry in walkdir::WalkDir::new(&self.base)
            .into_iter()
            .map(Result::unwrap)
        {
            if let Some(uid) = self.who.uid() {
                std::os::unix::fs::lchown(entry.path(), Some(uid), Some(uid)).unwrap();
            }
            let kind = entry.file_type();
            let runs = entry.path().starts_with(self.base.join("bin")) || kind.is_dir();
            let mode = if runs { 0o755 } else { 0o644 };
            if kind.is_dir() || kind.is_file() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }

    /// Part of every name that a probe makes in shared folders.
    pub fn mark(&self) -> String {
        let own = self.base.file_name().unwrap_or_default().to_string_lossy();
        format!("{}-{}", self.who.name(), own)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    pub fn policy(&self, name: &str, tools: &str, rest: &str) {
        let text = format!("name = \"{name}\"\nwhy = \"a test\"\ntools = [\"{tools}\"]\n{rest}");
        fs::write(
            self.path(&format!("sandbox-policies/{name}.policy.toml")),
            text,
        )
        .unwrap();
    }

    /// A policy that allows these tools files and nothing else.
    pub fn allow(&self, name: &str, tools: &str, read: &[&str], write: &[&str]) {
        let mut rest = "[files]\n".to_owned();
        for (access, paths) in [("read", read), ("write", write)]
            .into_iter()
            .filter(|(_, paths)| !paths.is_empty())
        {
            let rules: Vec<_> = paths
                .iter()
                .map(|path| format!("{{ path = \"{path}\", why = \"a test\" }}"))
                .collect();
            rest += &format!("{access} = [{}]\n", rules.join(", "));
        }
        self.policy(name, tools, &rest);
    }

    /// The policy that is shipped for the builtin tools.
    pub fn allow_builtin_tools(&self) {
        let name = "sandbox-policies/core.policy.toml";
        fs::copy(repository(name), self.path(name)).unwrap();
    }

    /// Sets a breaker that does not open, however often tools fail.
    pub fn without_breaker(&self) {
        let text = "[[caller]]\nname = \"*\"\nwhy = \"a test\"\ntools = [\"*\"]\n\
                    [breaker]\nfailures = 1_000_000\nwhy = \"a test of failures\"\n";
        fs::write(self.path("sandbox-policies/callers.policy.toml"), text).unwrap();
    }

    /// A tool `esc:NAME` in a folder of its own; returns the folder.
    pub fn tool(&self, name: &str, language: &str, script: &str, more: Value) -> PathBuf {
        let file = match language {
            "python" => "main.py",
            "wasm" => "main.wat",
            _ => "main.js",
        };
        self.put_tool(
            name,
            &format!("esc:{name}"),
            language,
            &format!("{name}/{file}"),
            script,
            more,
        )
    }

    /// A script `user_scripts/FILE` and its manifest beside it; returns the script's folder.
    pub fn tool_at(
        &self,
        id: &str,
        language: &str,
        file: &str,
        script: &str,
        more: Value,
    ) -> PathBuf {
        self.put_tool(&id.replace(':', "-"), id, language, file, script, more)
    }

    fn put_tool(
        &self,
        name: &str,
        id: &str,
        language: &str,
        file: &str,
        script: &str,
        more: Value,
    ) -> PathBuf {
        let path = self.path("user_scripts").join(file);
        let folder = path.parent().unwrap().to_owned();
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, script).unwrap();
        let handler = json!({"type": "external-script", "scriptPath": file, "language": language});
        fs::write(
            folder.join(format!("{name}.tool.json")),
            manifest(id, handler, more).to_string(),
        )
        .unwrap();
        folder
    }

    /// A command of the host, run by its user: with a secret in its environment, and descriptors 7
    /// and 200 open on the secret file, as a careless parent would leave them.
    pub fn host(&self) -> Command {
        let leak = "import \
                    os,sys\nfd=os.open(sys.argv[1],os.O_RDWR)\nos.dup2(fd,7)\nos.dup2(fd,200)\nos.close(fd) \
                    if fd not in (7,200) else None\nos.execv(sys.argv[2],sys.argv[2:])\n";
        let mut command = self.outside(PYTHON);
        command
            .args(["-I", "-S", "-c", leak])
            .arg(self.path("secret/secret.txt"));
        if self.who == Who::MappedRoot {
            command.args(["/usr/bin/unshare", "-Ur"]);
        }
        self.arguments(&mut command);
        command
    }

    /// The host, started by a program that executes its arguments, as `unshare` and a shell do.
    pub fn host_by(&self, mut program: Command) -> Command {
        self.arguments(&mut program);
        program
    }

    fn arguments(&self, command: &mut Command) {
        command
            .arg(binary())
            .arg("--root")
            .arg(&self.base)
            .arg("--audit-log")
            .arg(self.path("state/audit.jsonl"));
    }

    /// How its hosts write a command for a person.
    pub fn program(&self) -> String {
        let log = self.path("state/audit.jsonl");
        let (root, log) = (self.base.display(), log.display());
        format!("toolhost --root {root} --audit-log {log}")
    }

    /// Any other program as the same user, without layers.
    pub fn outside(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("HOME", self.path("home"))
            .env("SECRET", &self.secret);
        command.current_dir(&self.base);
        self.who.uid().map(|uid| command.uid(uid).gid(uid));
        command
    }

    /// A call of the real binary: the whole outcome, as JSON.
    pub fn call(&self, tool: &str, input: &str) -> Ended {
        self.call_with(tool, input, &[])
    }

    /// A call that ends as `fits` says.
    #[track_caller]
    pub fn expect(&self, tool: &str, input: &str, wanted: &str) -> Ended {
        let ended = self.call(tool, input);
        fits(wanted, &ended)
            .unwrap_or_else(|why| panic!("{tool} {input} as {:?}: {why}", self.who));
        ended
    }

    pub fn call_with(&self, tool: &str, input: &str, more: &[&str]) -> Ended {
        let began = Instant::now();
        loop {
            let mut command = self.host();
            command
                .args(["call", tool, "--json", "--input", "-"])
                .args(more);
            let ended = finish(command, input.as_bytes());
            // The machine is busy: the tool did not begin within its time limit.
            let (_, why) = ended.error();
            let is_early =
                why.ends_with("; try again") || why.contains("before the tool could be started");
            if !is_early || began.elapsed() > PATIENCE {
                return ended;
            }
        }
    }

    /// A verb of the real binary.
    pub fn cli(&self, arguments: &[&str]) -> Ended {
        let mut command = self.host();
        command.args(arguments);
        finish(command, b"")
    }

    /// Waits until `wanted` calls of a script run.
    pub fn runs(&self, script: &str, wanted: usize) {
        let script = self.path(script).display().to_string();
        wait_for(&format!("{wanted} calls of {script} run"), || {
            processes_of(&script).len() == wanted
        });
    }

    /// Every file of the playground that nobody may change: what it is and what it holds.
    pub fn state(&self, writable: &[&Path]) -> BTreeMap<PathBuf, String> {
        self.state_below(&self.base, writable)
    }

    /// The same of one folder.
    pub fn state_below(&self, folder: &Path, writable: &[&Path]) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let skipped = [self.path("state"), self.path("home")];
        let walk = walkdir::WalkDir::new(folder)
            .into_iter()
            .filter_entry(|entry| {
                !skipped.iter().any(|s| s == entry.path()) && !writable.contains(&entry.path())
            });
        for entry in walk.map(Result::unwrap) {
            let facts = entry.metadata().unwrap();
            let content = if facts.is_file() && facts.len() < 1 << 20 {
                fs::read(entry.path()).unwrap()
            } else {
                Vec::new()
            };
            let own = format!("{:o} {}:{}", facts.mode(), facts.uid(), facts.gid());
            let sizes = format!("links {} size {}", facts.nlink(), facts.len());
            // ctime changes with every change, also if an attribute or a mode is restored.
            let times = [
                facts.mtime(),
                facts.mtime_nsec(),
                facts.ctime(),
                facts.ctime_nsec(),
            ];
            let text = format!(
                "{own} {sizes} times {times:?} {:?}",
                String::from_utf8_lossy(&content)
            );
            found.insert(entry.path().to_path_buf(), text);
        }
        found
    }

    /// What a writable folder must never hold afterwards: anything but plain files and folders with
    /// plain modes.
    pub fn strange_files(&self, folder: &Path) -> Vec<String> {
        let walk = walkdir::WalkDir::new(folder)
            .into_iter()
            .map(Result::unwrap);
        let facts = walk.map(|entry| {
            (
                entry.path().display().to_string(),
                entry.metadata().unwrap(),
            )
        });
        let strange = facts.filter(|(_, facts)| {
            let plain = facts.is_dir() || (facts.is_file() && facts.nlink() == 1);
            !plain || facts.mode() & 0o7000 != 0
        });
        strange
            .map(|(path, facts)| {
                format!("{path}: {:?}, mode {:o}", facts.file_type(), facts.mode())
            })
            .collect()
    }

    /// Processes whose command line names this playground.
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of(&self.base.display().to_string())
    }

    /// The mounts of this machine, without those that other tests made in their own folders.
    pub fn mounts(&self) -> Vec<String> {
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = self.base.display().to_string();
        let others = |line: &str| line.contains("/toolhost-test-") && !line.contains(&own);
        text.lines()
            .filter(|line| !others(line))
            .map(str::to_owned)
            .collect()
    }

    /// Nothing of a call outlives it. Ten seconds, for a machine that does more than this.
    pub fn assert_quiet(&self, what: &str) {
        within(
            Duration::from_secs(10),
            &format!("{what}: nothing of it is left"),
            || self.processes().is_empty(),
        );
    }

    pub fn canary_lives(&mut self) -> bool {
        self.canary.try_wait().unwrap().is_none()
    }

    pub fn records(&self) -> Vec<Value> {
        let mut text = String::new();
        wait_for("the last record is whole", || {
            text = fs::read_to_string(self.path("state/audit.jsonl")).unwrap_or_default();
            text.is_empty() || text.ends_with('\n')
        });
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }
}
