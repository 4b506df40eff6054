//! A host of its own in a temporary folder, seen from outside: binary, tools, policies, secrets, listeners.

use crate::common::copy_program;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The interpreters of both sides.
pub const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
pub const PYTHON: &str = "/usr/bin/python3";
/// An ordinary user that owns nothing else.
const ORDINARY: u32 = 12345;
/// No call of these suites may take longer.
const PATIENCE: Duration = Duration::from_secs(40);

/// Who runs the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    User,
    /// Root of a user namespace: an ordinary user in disguise.
    MappedRoot,
}

impl Who {
    /// The test names who it needs; without real root only the user who runs the tests is there.
    pub fn possible(self) -> bool {
        self == Who::User || is_root()
    }

    pub fn name(self) -> &'static str {
        match self {
            Who::Root => "root",
            Who::User => "user",
            Who::MappedRoot => "mapped",
        }
    }

    fn uid(self) -> Option<u32> {
        (is_root() && self != Who::Root).then_some(ORDINARY)
    }
}

pub fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    fs::metadata("/proc/self").unwrap().uid() == 0 && map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Names what could not be run here, and how much it was.
pub fn skipped(count: usize, why: &str) {
    // Past the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "SKIPPED {count}: {why}");
}

/// The same for a missing program: CI installs all of them, so there it is a failure.
pub fn missing(count: usize, program: &str) {
    assert!(std::env::var_os("TOOLHOST_CI").is_none(), "CI must have it: {program}");
    skipped(count, &format!("no {program} on this machine"));
}

/// Where others may knock, and whether they did.
pub struct Listeners {
    tcp: TcpListener,
    udp: UdpSocket,
    streams: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    pipe: fs::File,
    pub abstract_name: String,
}

impl Listeners {
    fn open(folder: &Path) -> Listeners {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("toolhost-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let address = |text: &str| SocketAddr::from_abstract_name(text).unwrap();
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&pipe).unwrap();
        let listeners = Listeners {
            pipe: reader,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            streams: vec![
                UnixListener::bind_addr(&address(&name)).unwrap(),
                UnixListener::bind(folder.join("stream.sock")).unwrap(),
            ],
            datagrams: vec![
                UnixDatagram::bind_addr(&address(&format!("{name}-d"))).unwrap(),
                UnixDatagram::bind(folder.join("dgram.sock")).unwrap(),
            ],
            abstract_name: name,
        };
        for socket in ["stream.sock", "dgram.sock", "pipe"] {
            fs::set_permissions(folder.join(socket), fs::Permissions::from_mode(0o777)).unwrap();
        }
        listeners.tcp.set_nonblocking(true).unwrap();
        listeners.udp.set_nonblocking(true).unwrap();
        listeners.streams.iter().for_each(|l| l.set_nonblocking(true).unwrap());
        listeners.datagrams.iter().for_each(|l| l.set_nonblocking(true).unwrap());
        listeners
    }

    pub fn ports(&self) -> (u16, u16) {
        (self.tcp.local_addr().unwrap().port(), self.udp.local_addr().unwrap().port())
    }

    /// How many knocked since the last look.
    pub fn heard(&self) -> usize {
        let mut count = 0;
        while self.tcp.accept().is_ok() {
            count += 1;
        }
        while self.udp.recv(&mut [0; 64]).is_ok() {
            count += 1;
        }
        count += usize::from((&self.pipe).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0));
        for listener in &self.streams {
            while listener.accept().is_ok() {
                count += 1;
            }
        }
        for socket in &self.datagrams {
            while socket.recv(&mut [0; 64]).is_ok() {
                count += 1;
            }
        }
        count
    }
}

/// How one call ended, seen from outside.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: Value,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub took: Duration,
}

impl Ended {
    pub fn error(&self) -> (&str, &str) {
        (self.out["error"]["type"].as_str().unwrap_or("none"), self.out["error"]["message"].as_str().unwrap_or("none"))
    }

    /// `cgroup` or `sampled`: how the memory, CPU and processes of the call were counted.
    pub fn counted(&self) -> &str {
        let walls = self.out["walls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let state = walls.iter().find(|wall| wall["name"] == "cgroup").and_then(|wall| wall["state"].as_str());
        state.unwrap_or("unknown")
    }
}

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
    /// `below`: /tmp and everywhere else are shown to a tool by different roads.
    pub fn new(who: Who, below: &str) -> Playground {
        let folder = tempfile::Builder::new().prefix("toolhost-test-").tempdir_in(below).unwrap();
        let base = folder.path().canonicalize().unwrap();
        let make = |name: &str| fs::create_dir_all(base.join(name)).unwrap();
        for name in [
            "bin",
            "home",
            "state",
            "secret",
            "granted/ro",
            "granted/ro-sibling",
            "tool-defs",
            "user_scripts/other",
            "sandbox-policies",
        ] {
            make(name);
        }
        let binary = base.join("bin/toolhost");
        // Hard links are quick, but a folder that only root may enter hides the binary from others.
        copy_program(env!("CARGO_BIN_EXE_toolhost"), &binary);
        let secret = format!("s3cret-{}", tail_of(&base));
        let put = |name: &str, text: &str| fs::write(base.join(name), text).unwrap();
        put("secret/secret.txt", &secret);
        put("granted/ro-sibling/secret.txt", &secret);
        put("user_scripts/other/main.py", "pass\n");
        for name in ["file.txt", "a", "b", "c", "d", "e", "f", "g", "h"] {
            put(&format!("granted/ro/{name}"), "granted\n");
        }
        for (name, target) in [
            ("link", PathBuf::from("../../secret/secret.txt")),
            ("abs", base.join("secret/secret.txt")),
            ("up", PathBuf::from("../ro-sibling")),
        ] {
            std::os::unix::fs::symlink(target, base.join("granted/ro").join(name)).unwrap();
        }
        let listeners = Listeners::open(&base.join("granted/ro"));
        let mut canary = Command::new("/bin/sleep");
        canary.arg("600");
        who.uid().map(|uid| canary.uid(uid).gid(uid));
        let canary = canary.spawn().unwrap();
        let playground = Playground { base, who, listeners, canary, secret, _folder: folder };
        playground.policy("default", "*", "[files]\nread = [{ path = \"./**\", why = \"its own folder\" }]\n");
        playground.settle();
        playground
    }

    /// Everything belongs to who runs the host, and everybody may look.
    pub fn settle(&self) {
        for entry in walkdir::WalkDir::new(&self.base).into_iter().map(Result::unwrap) {
            if let Some(uid) = self.who.uid() {
                std::os::unix::fs::lchown(entry.path(), Some(uid), Some(uid)).unwrap();
            }
            let kind = entry.file_type();
            let mode = match entry.path().starts_with(self.base.join("bin")) || kind.is_dir() {
                true => 0o755,
                false => 0o644,
            };
            if kind.is_dir() || kind.is_file() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }

    /// Part of every name that a probe makes in folders which all share.
    pub fn mark(&self) -> String {
        let own = self.base.file_name().unwrap_or_default().to_string_lossy();
        format!("{}-{}", self.who.name(), own)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    pub fn policy(&self, name: &str, tools: &str, rest: &str) {
        let text = format!("name = \"{name}\"\nwhy = \"a test\"\ntools = [\"{tools}\"]\n{rest}");
        fs::write(self.path(&format!("sandbox-policies/{name}.policy.toml")), text).unwrap();
    }

    /// A tool in a folder of its own; returns the folder.
    pub fn tool(&self, name: &str, language: &str, script: &str, more: Value) -> PathBuf {
        let folder = self.path(&format!("user_scripts/{name}"));
        fs::create_dir_all(&folder).unwrap();
        let file = match language {
            "python" => "main.py",
            "wasm" => "main.wat",
            _ => "main.js",
        };
        fs::write(folder.join(file), script).unwrap();
        let mut manifest = json!({
            "toolId": format!("esc:{name}"), "displayName": name, "description": format!("Tries {name}."),
            "version": "1.0.0",
            "handler": {"type": "external-script", "scriptPath": format!("{name}/{file}"), "language": language},
        });
        for (field, value) in more.as_object().cloned().unwrap_or_default() {
            match (field.as_str(), value) {
                ("handler", Value::Object(more)) => manifest["handler"].as_object_mut().unwrap().extend(more),
                (_, value) => manifest[field] = value,
            }
        }
        fs::write(folder.join(format!("{name}.tool.json")), manifest.to_string()).unwrap();
        folder
    }

    /// A command of the host, as who runs it: with a secret in its environment, and descriptors 7 and 200
    /// open on the secret file, as a careless parent would leave them.
    pub fn host(&self) -> Command {
        let leak = "import os,sys\nfd=os.open(sys.argv[1],os.O_RDWR)\nos.dup2(fd,7)\nos.dup2(fd,200)\n\
                    os.close(fd) if fd not in (7,200) else None\nos.execv(sys.argv[2],sys.argv[2:])\n";
        let mut command = self.outside(PYTHON);
        command.args(["-I", "-S", "-c", leak]).arg(self.path("secret/secret.txt"));
        if self.who == Who::MappedRoot {
            command.args(["/usr/bin/unshare", "-Ur"]);
        }
        command.arg(self.path("bin/toolhost")).arg("--root").arg(&self.base);
        command.arg("--audit-log").arg(self.path("state/audit.jsonl"));
        command
    }

    /// Any other program as the same user, without walls.
    pub fn outside(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", SEARCH_PATH).env("HOME", self.path("home")).env("SECRET", &self.secret);
        command.current_dir(&self.base);
        self.who.uid().map(|uid| command.uid(uid).gid(uid));
        command
    }

    pub fn call(&self, tool: &str, input: &str, more: &[&str]) -> Ended {
        let mut command = self.host();
        command.args(["call", tool, "--json", "--input", "-"]).args(more);
        let mut ended = finish(command, input.as_bytes());
        ended.out = serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null);
        ended
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
            .filter_entry(|entry| !skipped.iter().any(|s| s == entry.path()) && !writable.contains(&entry.path()));
        for entry in walk.map(Result::unwrap) {
            let facts = entry.metadata().unwrap();
            let content =
                if facts.is_file() && facts.len() < 1 << 20 { fs::read(entry.path()).unwrap() } else { Vec::new() };
            let text = format!(
                "{:o} {}:{} links {} size {} times {}.{} {}.{} {:?}",
                facts.mode(),
                facts.uid(),
                facts.gid(),
                facts.nlink(),
                facts.len(),
                facts.mtime(),
                facts.mtime_nsec(),
                // Moves with every change, an attribute or a mode that was put back included.
                facts.ctime(),
                facts.ctime_nsec(),
                String::from_utf8_lossy(&content)
            );
            found.insert(entry.path().to_path_buf(), text);
        }
        found
    }

    /// What a writable folder must never hold afterwards: anything but plain files and folders with plain modes.
    pub fn strange_files(&self, folder: &Path) -> Vec<String> {
        let walk = walkdir::WalkDir::new(folder).into_iter().map(Result::unwrap);
        let facts = walk.map(|entry| (entry.path().display().to_string(), entry.metadata().unwrap()));
        let strange = facts.filter(|(_, facts)| {
            let plain = facts.is_dir() || (facts.is_file() && facts.nlink() == 1);
            !plain || facts.mode() & 0o7000 != 0
        });
        strange.map(|(path, facts)| format!("{path}: {:?}, mode {:o}", facts.file_type(), facts.mode())).collect()
    }

    /// Processes that have to do with this playground, by command line.
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of(&self.base.display().to_string())
    }

    /// What is mounted on this machine, but for what tests that run beside this one mount in their own folders.
    pub fn mounts(&self) -> Vec<String> {
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = self.base.display().to_string();
        let others = |line: &str| line.contains("/toolhost-test-") && !line.contains(&own);
        text.lines().filter(|line| !others(line)).map(str::to_owned).collect()
    }

    /// Nothing of a call outlives it by a second.
    pub fn assert_quiet(&self, what: &str) {
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "{what}: still there after 1 s: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn canary_lives(&mut self) -> bool {
        self.canary.try_wait().unwrap().is_none()
    }

    pub fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("state/audit.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }
}

fn tail_of(base: &Path) -> String {
    base.file_name().unwrap().to_string_lossy().chars().rev().take(6).collect()
}

pub fn processes_of(marker: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(marker) {
            found.push((pid, line));
        }
    }
    found
}

/// Runs a command to its end with this input; kills it when patience is over.
pub fn finish(mut command: Command, input: &[u8]) -> Ended {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
    });
    let logger = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
    });
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{command:?} still runs after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let took = started.elapsed();
    writer.join().unwrap();
    let (stdout, stderr) = (reader.join().unwrap(), String::from_utf8_lossy(&logger.join().unwrap()).into_owned());
    Ended { code: status.code(), out: Value::Null, stdout, stderr, took }
}
