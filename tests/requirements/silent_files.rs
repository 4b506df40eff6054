//! A granted folder on a file system that stops answering, as one over a network can. Only the
//! calls that read it wait until their limit.

use crate::prelude::*;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// More than the threads for calls, and than the concurrent checks of one tool's grants.
const CALLS: usize = 12;
const LIMIT: Duration = Duration::from_millis(1000);

struct Silent {
    server: Child,
    at: PathBuf,
}

impl Drop for Silent {
    /// Ends the server. Processes that wait for its answer get an error.
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_its_own_calls_alone() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped(1, "a silent file system needs root and /dev/fuse");
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    let far = playground.path("far");
    fs::create_dir(&far).unwrap();
    let pattern = format!("{}/**", far.display());
    playground.allow("far", "esc:far", &["./**", &pattern], &[]);
    let mut asks = super::files(&["self", &pattern], &[]);
    asks["execution"] = json!({"timeoutMs": LIMIT.as_millis() as u64});
    let script = format!(
        "import json\nprint(json.dumps(open('{}/text').read()))\n",
        far.display()
    );
    playground.tool("far", "python", &script, asks);
    playground.allow("spin", "esc:spin", &["./**"], &[&pattern]);
    let mut writes = super::files(&["self"], &[&pattern]);
    writes["execution"] = json!({"timeoutMs": 3 * LIMIT.as_millis() as u64});
    playground.tool(
        "spin",
        "wasm",
        "(module (memory (export \"memory\") 1) (func (export \"_start\") (loop (br 0))))",
        writes,
    );
    // The launcher makes links in /dev/shm for a call that writes live. Their names lie in memory
    // of the tool, here in a file that does not answer. What another process of it writes meanwhile is counted.
    let names = format!(
        "import ctypes, os, time\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         libc.mmap.restype = ctypes.c_void_p\nfd = os.open('{}/text', os.O_RDONLY)\n\
         at = libc.mmap(None, 4096, 1, 2, fd, 0)\nos.close(fd)\nopen('out/mapped', 'w').close()\n\
         while os.path.exists('out/mapped'): time.sleep(0.01)\n\
         if os.fork() == 0:\n    libc.link(ctypes.c_void_p(at), b'/dev/shm/b')\n    os._exit(0)\n\
         time.sleep(0.3)\n\
         open('out/x', 'wb').write(bytes(1 << 24))\ntime.sleep(20)\n",
        far.display()
    );
    let rest = format!(
        "[files]\nread = [{{ path = \"./**\", why = \"t\" }}, {{ path = \"{pattern}\", why = \"t\" }}]\n\
         write = [{{ path = \"./out/**\", why = \"t\" }}]\n[limits]\ntimeout_ms = 110_000\n"
    );
    playground.policy("links", "esc:links", &rest);
    let mut asks = super::files(&["self", &pattern], &["out/**"]);
    asks["limits"] = json!({"writtenBytes": 1 << 20});
    let folder = playground.tool("links", "python", &names, asks);
    fs::create_dir(folder.join("out")).unwrap();
    let mapped = folder.join("out/mapped");
    playground.tool("near", "python", "print(1)\n", json!({}));
    playground.without_breaker();
    playground.settle();
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/requirements/silent_files.py"
    );
    let mut silent = Command::new(PYTHON);
    let server = silent
        .arg(program)
        .arg(&far)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut silent = Silent { server, at: far };
    let mut line = String::new();
    BufReader::new(silent.server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let mut server = Server::start(&playground);
    wait_for("the control", || {
        let control = server.called("esc:far", json!({}));
        kind(&control) == "none" && control.to_string().contains("hello")
    });
    assert_eq!(kind(&server.called("esc:near", json!({}))), "none");
    // The host counts what a WASI tool writes while it runs.
    assert_eq!(
        kind(&server.called("esc:spin", json!({}))),
        "TimeoutError",
        "the control"
    );
    let linking = server.call("esc:links", json!({}));
    wait_for("the control has its name", || mapped.exists());
    fs::remove_file(&mapped).unwrap();
    assert_eq!(
        kind(&server.answers(&[linking])[&linking]),
        "ResourceLimitError",
        "the control"
    );
    let linking = server.call("esc:links", json!({}));
    wait_for("it has its name", || mapped.exists());
    let spinning = server.call("esc:spin", json!({}));
    std::thread::sleep(LIMIT);
    kill(
        Pid::from_raw(silent.server.id().try_into().unwrap()),
        Signal::SIGUSR1,
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let late = |answer: &Value| assert_eq!(kind(answer), "TimeoutError", "{answer}");
    let began = Stopwatch::start();
    fs::remove_file(&mapped).unwrap();
    let calls: Vec<u64> = (0..CALLS)
        .map(|_| server.call("esc:far", json!({})))
        .collect();
    // While they wait, other calls are answered. They end at their limit.
    let near = server.call("esc:near", json!({}));
    let mut all = server.answers(&[calls, vec![near, spinning, linking]].concat());
    assert_eq!(kind(&all.remove(&near).unwrap()), "none");
    assert_eq!(
        kind(&all.remove(&linking).unwrap()),
        "ResourceLimitError",
        "the launcher does not wait for the name of a link"
    );
    all.values().for_each(late);
    assert!(
        began.elapsed() < LIMIT * 2 + Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    // They do not add up: a second round of calls has the same result.
    let calls: Vec<u64> = (0..CALLS)
        .map(|_| server.call("esc:far", json!({})))
        .collect();
    server.answers(&calls).values().for_each(late);
    let began = Stopwatch::start();
    assert_eq!(kind(&server.called("esc:near", json!({}))), "none");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    // A server whose threads wait for the file system ends after it.
    drop(silent);
}
