//! A granted folder on a file system that stops answering, as one over a network does. It costs the calls that read it
//! their time, and no other call anything.

use crate::prelude::*;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::kill;
use nix::unistd::Pid;

const FAR: &str = "import json\nfrom pathlib import Path\nprint(json.dumps(Path('FAR/text').read_text()))\n";
/// More than there are threads for calls, and than may look at the grants of one tool at a time.
const CALLS: usize = 12;
const LIMIT: Duration = Duration::from_millis(1000);

struct Silent {
    server: Child,
    at: PathBuf,
}

impl Silent {
    fn mounted(at: PathBuf) -> Silent {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requirements/silent_files.py");
        let mut server = Command::new(PYTHON).arg(program).arg(&at).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Silent { server, at }
    }

    fn hush(&self) {
        kill(Pid::from_raw(self.server.id().try_into().unwrap()), Signal::SIGUSR1).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Silent {
    /// Whoever waits for an answer is told that there will be none.
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_its_own_calls_alone() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        return skipped(1, "a silent file system needs root and /dev/fuse");
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    let far = playground.path("far");
    std::fs::create_dir(&far).unwrap();
    let pattern = format!("{}/**", far.display());
    playground.allow("far", "esc:far", &["./**", &pattern], &[]);
    let asks = json!({
        "securityContext": {"fileAccess": {"allowRead": ["self", pattern]}},
        "execution": {"timeoutMs": LIMIT.as_millis() as u64},
    });
    playground.tool("far", "python", &FAR.replace("FAR", &far.display().to_string()), asks);
    playground.tool("near", "python", "print(1)\n", json!({}));
    playground.without_breaker();
    playground.settle();
    let silent = Silent::mounted(far);
    let mut server = Server::start(&playground);
    let control = server.called("esc:far", json!({}));
    assert!(kind(&control) == "none" && control.to_string().contains("hello"), "{control}");
    assert_eq!(kind(&server.called("esc:near", json!({}))), "none");
    silent.hush();
    let began = Instant::now();
    let calls: Vec<u64> = (0..CALLS).map(|_| server.call("esc:far", json!({}))).collect();
    // While all of them wait, others are answered, and they at their limit.
    let near = server.call("esc:near", json!({}));
    let mut all = server.answers(&[calls, vec![near]].concat());
    assert_eq!(kind(&all.remove(&near).unwrap()), "none");
    let took = began.elapsed();
    for answer in all.values() {
        assert_eq!(kind(answer), "TimeoutError", "{answer}");
    }
    assert!(took < LIMIT * 2 + Duration::from_secs(2), "{took:?}");
    // They do not add up: what a second round of calls meets is the same.
    let calls: Vec<u64> = (0..CALLS).map(|_| server.call("esc:far", json!({}))).collect();
    assert!(server.answers(&calls).values().all(|answer| kind(answer) == "TimeoutError"));
    let began = Instant::now();
    assert_eq!(kind(&server.called("esc:near", json!({}))), "none");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    drop(silent);
}
