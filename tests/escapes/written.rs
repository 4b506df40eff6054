//! What a call adds to the folders that it may write live: counted while it runs and at its end,
//! and looked at outside.

use super::{called_by, ends};
use crate::prelude::*;

const MIB: u64 = 1 << 20;
const SCRIPT: &str = include_str!("written.py");
const RULES: &str = "[files]\nread = [{ path = \"./**\", why = \"t\" }]\nwrite = \
    [{ path = \"./out/**\", why = \"t\" }]\n[limits]\ntimeout_ms = 110_000\n";

/// Bytes on the disk.
fn below(folder: &Path) -> u64 {
    let all = walkdir::WalkDir::new(folder)
        .min_depth(1)
        .into_iter()
        .flatten();
    all.map(|entry| entry.metadata().unwrap().blocks() * 512)
        .sum()
}

fn asks(write: &str, limits: &Value) -> Value {
    let files = json!({"allowRead": ["./**"], "allowWrite": [write]});
    json!({"securityContext": {"fileAccess": files}, "limits": limits})
}

#[test]
fn what_a_call_adds_is_limited() {
    const BYTES: &str = "ResourceLimitError: writtenBytes";
    const FILES: &str = "ResourceLimitError: writtenFiles";
    let cases = [
        ("bytes", 4, "ok 0"),
        ("bytes", 12, BYTES),
        ("bytes", 2048, BYTES),
        ("many files", 90, "ok 0"),
        ("many files", 150, FILES),
        ("many files", 200_000, FILES),
        ("folders", 20_000, FILES),
        ("deep", 30, FILES),
        ("deep", 3, "ok 0"),
        ("nameless", 40, BYTES),
        ("second thread", 40, BYTES),
        ("again and again", 64, "ok 0"),
        ("append", 4, "ok 0"),
        ("append", 10, BYTES),
        // 256 MiB take fallocate(2) a third of a millisecond, which no count comes in time for.
        ("reserve", 2, "ok \"ENOTSUP\""),
    ];
    let few = json!({"writtenBytes": 8 * MIB, "writtenFiles": 100, "fileBytes": 4096 * MIB, "openFiles": 64});
    let bytes = |bytes: u64| json!({"writtenBytes": bytes, "writtenFiles": 5000});
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let tool = |name: &str, asks: Value| {
            let out = playground.tool(name, "python", SCRIPT, asks).join("out");
            fs::create_dir(&out).unwrap();
            out
        };
        let out = tool("fills", asks("out/**", &few));
        tool("staged", asks("out/*", &json!({})));
        let [moves, wide] = [("moves", 64), ("wide", 256)]
            .map(|(name, mib)| tool(name, asks("out/**", &bytes(mib * MIB))));
        let rules = format!("{RULES}file_bytes = 4_294_967_296\n");
        playground.policy("written", "esc:*", &rules);
        let call = |tool: &str, what: &str, n: u64, wanted: &str| {
            let ended = playground.call(
                &format!("esc:{tool}"),
                &json!({"what": what, "n": n}).to_string(),
            );
            ends(wanted, &ended).unwrap_or_else(|why| panic!("{who:?} {tool} {what} {n}: {why}"));
        };
        for (what, n, wanted) in cases {
            // What lies there already counts nothing.
            let _ = fs::remove_dir_all(&out);
            fs::create_dir(&out).unwrap();
            fs::write(out.join("old"), vec![1; 16 * MIB as usize]).unwrap();
            playground.settle();
            call("fills", what, n, wanted);
            if n > 1000 {
                let (bytes, files) = (below(&out), fs::read_dir(&out).unwrap().count());
                assert!(
                    bytes < n * MIB / 2 && (files as u64) < n / 2,
                    "{who:?} {what}: {bytes} bytes, {files} files"
                );
            }
        }
        assert_eq!(
            fs::metadata(out.join("held")).unwrap().len(),
            MIB,
            "by writing"
        );
        // The control: what is staged may be reserved.
        call("staged", "reserve", 2, "ok 0");
        // A folder whose name changes all the time is missed by a count that goes by names.
        call("moves", "moving", 2048, BYTES);
        assert!(
            below(&moves) < 1024 * MIB,
            "{who:?}: {} MiB",
            below(&moves) / MIB
        );
        // The controls: that much is allowed, or nothing limits it.
        call("wide", "moving", 200, "ok 0");
        assert!(below(&wide) >= 200 * MIB);
        let free = playground.path("free");
        fs::create_dir_all(free.join("out")).unwrap();
        let mut bare = Command::new(PYTHON);
        bare.args(["-c", SCRIPT]).current_dir(&free);
        assert_eq!(finish(bare, br#"{"what": "bytes", "n": 12}"#).out, 0);
        assert!(below(&free) >= 12 * MIB);
    }
}

/// A file system of its own, for what free space decides: other tests write, too.
struct OwnDisk(PathBuf);

impl OwnDisk {
    fn mount() -> OwnDisk {
        // Named as what `Playground::mounts` leaves out.
        let folder = PathBuf::from(format!(
            "/var/tmp/toolhost-test-disk-{}",
            std::process::id()
        ));
        fs::create_dir_all(&folder).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3g,mode=1777", "tmpfs"])
            .arg(&folder)
            .status();
        assert!(mount.unwrap().success());
        OwnDisk(folder)
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// Removed files that are mapped, and descriptors in sockets, take space that no descriptor shows.
#[test]
fn what_no_descriptor_shows_is_limited_by_free_space() {
    if !is_root() {
        return skipped(8, "a file system of its own needs root");
    }
    let disk = OwnDisk::mount();
    for who in Who::both() {
        let playground = Playground::new(who, disk.0.to_str().unwrap());
        for (name, mib) in [("narrow", 8), ("wide", 512)] {
            let limits = json!({"writtenBytes": mib * MIB, "openFiles": 128});
            let out = playground
                .tool(name, "python", SCRIPT, asks("out/**", &limits))
                .join("out");
            fs::create_dir(out).unwrap();
        }
        playground.policy("written", "esc:*", RULES);
        playground.settle();
        for (what, n) in [("mapped", 400), ("sent", 50)] {
            let input = json!({"what": what, "n": n}).to_string();
            let ended = playground.call("esc:narrow", &input);
            assert_eq!(
                ends("ResourceLimitError: writtenBytes", &ended),
                Ok(()),
                "{who:?} {what}"
            );
            // The control: as much is allowed.
            playground.expect("esc:wide", &input, "ok 0");
        }
    }
}

/// Space that a neighbour takes is not the call's, however the call is counted.
#[test]
fn what_others_write_ends_no_call() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let few = json!({"writtenBytes": 8 * MIB});
    let folder = playground.tool("waits", "python", SCRIPT, asks("out/**", &few));
    let out = folder.join("out");
    fs::create_dir(&out).unwrap();
    playground.policy("waits", "esc:waits", RULES);
    playground.settle();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| playground.call("esc:waits", r#"{"what": "wait", "n": 0}"#));
        wait_for("it waits", || out.join("waits").exists());
        for _ in 0..4 {
            let neighbour = playground.path("neighbour");
            fs::write(&neighbour, vec![1; 64 * MIB as usize]).unwrap();
            fs::File::open(&neighbour)
                .and_then(|file| file.sync_all())
                .unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::remove_file(out.join("waits")).unwrap();
        assert_eq!(fits("ok 0", &call.join().unwrap()), Ok(()));
    });
}

/// Of a group that the tool's user namespace does not have, a folder that the tool closes is closed
/// to its launcher, too.
#[test]
fn what_cannot_be_counted_ends_the_call() {
    const GROUP: u32 = 54321;
    if !is_root() {
        return skipped(1, "a group beside the user's own needs root");
    }
    let script = "import json, os, sys, time\nos.mkdir('out/d')\n\
                  os.chmod('out/d', json.load(sys.stdin)['mode'])\ntime.sleep(0.3)\nprint(1)\n";
    let playground = Playground::new(Who::User, "/var/tmp");
    let out = playground
        .tool("closes", "python", script, asks("out/**", &json!({})))
        .join("out");
    playground.policy("closes", "esc:closes", RULES);
    for (mode, wanted) in [(0o755, "ok 1"), (0, "ResourceLimitError")] {
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        playground.settle();
        std::os::unix::fs::chown(&out, None, Some(GROUP)).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o2775)).unwrap();
        let uid = Who::User.uid().unwrap();
        let mut grouped = Command::new("/usr/bin/setpriv");
        grouped.args([
            format!("--reuid={uid}"),
            format!("--regid={uid}"),
            format!("--groups={GROUP}"),
        ]);
        grouped
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", playground.path("home"));
        let ended = called_by(
            &playground,
            grouped,
            "esc:closes",
            &json!({"mode": mode}).to_string(),
        );
        assert_eq!(fits(wanted, &ended), Ok(()));
    }
}

/// POSIX semaphores are made by link(2), which is refused elsewhere where a folder is written live.
#[test]
fn python_multiprocessing_works_whatever_is_written() {
    let script = "import json, multiprocessing, concurrent.futures as f\ndef square(n): return n * \
        n\ndef put(q): q.put(7)\nif __name__ == '__main__':\n\x20   with multiprocessing.Pool(2) \
        as pool: a = pool.map(square, [1, 2, 3])\n\x20   q = multiprocessing.Queue(); p = \
        multiprocessing.Process(target=put, args=(q,)); p.start(); b = q.get(); p.join()\n\x20   \
        with f.ProcessPoolExecutor(2) as pool: c = list(pool.map(square, [4]))\n\x20   \
        print(json.dumps([a, b, c]))\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("none", "python", script, json!({}));
        let live = playground.tool("live", "python", script, asks("out/**", &json!({})));
        fs::create_dir_all(live.join("out")).unwrap();
        playground.policy("written", "esc:*", RULES);
        playground.settle();
        playground.expect("esc:none", "{}", "ok [[1, 4, 9], 7, [16]]");
        playground.expect("esc:live", "{}", "ok [[1, 4, 9], 7, [16]]");
    }
}
