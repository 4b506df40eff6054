//! Programs: the one copy of the binary, how a command ended, and waiting for what can be seen.

use super::{PATIENCE, Stopwatch};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

/// Copies what is to be run. Another process does it: the children that other tests start meanwhile
/// would inherit a descriptor that writes there, and what somebody writes cannot be run (execve(2),
/// ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("/bin/cp")
        .arg(from.as_ref())
        .arg(to.as_ref())
        .status()
        .unwrap();
    assert!(copied.success(), "{}", to.as_ref().display());
}

/// The copy of the binary that all hosts of this run are: a build folder may be closed to other
/// users. Everybody may execute it, nobody may write it, and its folder belongs to who runs the
/// tests.
pub fn binary() -> &'static Path {
    static SHARED: LazyLock<(PathBuf, Child)> = LazyLock::new(|| {
        let folder = tempfile::Builder::new()
            .prefix("toolhost-test-")
            .tempdir_in("/var/tmp")
            .unwrap()
            .keep();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        let binary = folder.join("toolhost");
        copy_program(env!("CARGO_BIN_EXE_toolhost"), &binary);
        mode(&binary, 0o555);
        mode(&folder, 0o755);
        // What is static is never dropped: a shell that waits for the end of this process takes the
        // copy away.
        let mut cleaner = Command::new("/bin/sh");
        cleaner
            .args(["-c", "read -r _; rm -rf \"$1\"", "sh"])
            .arg(&folder)
            .process_group(0);
        let cleaner = cleaner
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        (binary, cleaner)
    });
    &SHARED.0
}

/// How a program ended, seen from outside.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    /// What it printed, where that is JSON.
    pub out: Value,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub took: Duration,
}

impl Ended {
    pub fn error(&self) -> (&str, &str) {
        (
            self.kind(),
            self.out["error"]["message"].as_str().unwrap_or("none"),
        )
    }

    pub fn kind(&self) -> &str {
        self.out["error"]["type"].as_str().unwrap_or("none")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// `cgroup` or `sampled`: how the memory, CPU and processes of the call were counted.
    pub fn counted(&self) -> &str {
        let layers = self.out["layers"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let state = layers
            .iter()
            .find(|layer| layer["name"] == "cgroup")
            .and_then(|layer| layer["state"].as_str());
        state.unwrap_or("unknown")
    }
}

/// The lines of `check`, each with the line of its file before it.
pub fn lines_of_check(said: &str) -> Vec<String> {
    let mut file = "";
    let with_file = said.lines().map(|line| {
        if !line.starts_with(' ') {
            file = line;
        }
        format!("{file} {line}")
    });
    with_file.collect()
}

/// `ok`, `ok JSON` or `Kind: part of message, details or what the person is told`.
pub fn fits(wanted: &str, ended: &Ended) -> Result<(), String> {
    let kind = ended.kind();
    let error = &ended.out["error"];
    let told = format!("{} {} {}", error["message"], error["details"], ended.stderr);
    let good = match wanted.strip_prefix("ok") {
        Some(value) => {
            let value = value.trim();
            ended.code == Some(0)
                && ended.out["success"] == true
                && (value.is_empty()
                    || serde_json::from_str::<Value>(value).unwrap() == ended.out["outputData"])
        }
        None => {
            let (wanted, part) = wanted.split_once(": ").unwrap_or((wanted, ""));
            wanted == kind && told.contains(part)
        }
    };
    if good {
        return Ok(());
    }
    let output = ended.out["outputData"].to_string();
    Err(format!(
        "wanted {wanted}, got {kind}: {told}; output {output}; logs {}",
        ended.out["logs"]
    ))
}

/// Runs a command to its end with this input; kills it when patience is over.
pub fn finish(mut command: Command, input: &[u8]) -> Ended {
    let (started, idle) = (Instant::now(), Stopwatch::start());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let (stdout, stderr) = (
        read(child.stdout.take().unwrap()),
        read(child.stderr.take().unwrap()),
    );
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
    let took = idle.elapsed();
    writer.join().unwrap();
    let (stdout, stderr) = (
        stdout.join().unwrap(),
        String::from_utf8_lossy(&stderr.join().unwrap()).into_owned(),
    );
    let out = serde_json::from_slice(&stdout).unwrap_or(Value::Null);
    Ended {
        code: status.code(),
        out,
        stdout,
        stderr,
        took,
    }
}

/// A host that runs, and all that it said on standard error so far.
pub struct Hosted {
    pub child: Child,
    said: Arc<Mutex<String>>,
}

impl Hosted {
    pub fn start(mut command: Command) -> Hosted {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (from, to) = (BufReader::new(child.stderr.take().unwrap()), said.clone());
        std::thread::spawn(move || {
            from.lines()
                .map_while(Result::ok)
                .for_each(|line| *to.lock().unwrap() += &(line + "\n"));
        });
        Hosted { child, said }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it said this so many times.
    pub fn says(&self, words: &str, times: usize) {
        wait_for(&format!("{times} × {words}"), || {
            self.said().matches(words).count() >= times
        });
    }

    /// Whether it ended, with all that it said read.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some() && Arc::strong_count(&self.said) == 1
    }

    pub fn signal(&self, signal: Signal) {
        self::signal(self.child.id(), signal);
    }

    /// Waits for its end; the exit code.
    pub fn ended(&mut self, time: Duration) -> Option<i32> {
        within(time, "the host ends", || self.is_over());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)
            .map(|_| bytes)
            .unwrap_or_default()
    })
}

/// Waits until it is so, for as long as patience lasts.
pub fn wait_for(what: &str, seen: impl FnMut() -> bool) {
    within(PATIENCE, what, seen);
}

/// Waits until it is so, and fails when this time is over.
pub fn within(time: Duration, what: &str, mut seen: impl FnMut() -> bool) {
    let (idle, began) = (Stopwatch::start(), Instant::now());
    while !seen() {
        let late = idle.elapsed() > time || began.elapsed() > time.max(3 * PATIENCE);
        assert!(!late, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same inside a test's own runtime.
pub async fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let over = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < over, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Processes whose command line holds this.
pub fn processes_of(marker: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(marker) {
            found.push((pid, line));
        }
    }
    found
}

/// The control groups that toolhost made for these processes, in every hierarchy.
pub fn groups_of(pids: &[u32]) -> BTreeSet<PathBuf> {
    let listed = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let text: String = pids.iter().map(listed).collect();
    let ours = text
        .lines()
        .filter(|line| line.contains("/toolhost/"))
        .filter_map(|line| line.split_once(':'));
    let folder = |(_, line): (&str, &str)| {
        PathBuf::from(format!("/sys/fs/cgroup/{}", line.replacen(':', "", 1)))
    };
    ours.map(folder).collect()
}

pub fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Sends it to all that are still there.
pub fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid as i32), signal);
    }
}

/// Judges up to five times what hangs on when somebody looks: one run of a machine that stood still
/// proves nothing.
#[track_caller]
pub fn in_time_once(mut judge: impl FnMut() -> Result<(), String>) {
    let mut late = Vec::new();
    while let Err(why) = judge() {
        late.push(why);
        assert!(late.len() < 5, "{late:#?}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A port of loopback where nobody listens. No bind to port 0 takes it: those begin at 32768
/// (ip(7), ip_local_port_range).
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = std::iter::repeat_with(|| {
        let next = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        20_000 + (next % 12_000) as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).unwrap()
}

/// Sends it to a process that is there.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).unwrap();
}
