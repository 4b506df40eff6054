//! What a call adds to the folders that it may write live: counted while it runs and at its end, and looked at outside.

use super::Attack;
use crate::prelude::*;

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "a live folder is filled", wall: "limits", promises: "P16" },
    Attack { name: "space is taken faster than it is counted", wall: "seccomp", promises: "P16" },
];

const MIB: u64 = 1 << 20;
/// Each makes what `n` says below the working folder's `out`.
const SCRIPT: &str = r#"
import errno, json, os, sys, time
asked = json.load(sys.stdin)
os.chdir("out")
what, n = asked["what"], asked["n"]
block = os.urandom(1 << 20)
said = 0
if what == "bytes":
    with open("big", "wb") as f:
        for _ in range(n): f.write(block)
elif what == "many files":
    for i in range(n): open("f%d" % i, "w").close()
elif what == "folders":
    for i in range(n): os.mkdir("d%d" % i)
elif what == "deep":
    for i in range(n):
        os.mkdir("d" * 200); os.chdir("d" * 200)
    with open("big", "wb") as f: f.write(block)
    time.sleep(1)
elif what == "nameless":
    held = []
    for _ in range(n):
        f = open("big", "wb"); os.unlink("big"); f.write(block); f.flush(); held.append(f)
    time.sleep(2)
elif what == "second thread":
    import ctypes, threading
    def hold():
        time.sleep(0.2)
        held = []
        for _ in range(n):
            f = open("big", "wb"); os.unlink("big"); f.write(block); f.flush(); held.append(f)
        time.sleep(2); os.write(1, b"0"); os._exit(0)
    threading.Thread(target=hold).start(); ctypes.CDLL(None).syscall(60, 0)
elif what == "moving":
    os.makedirs("P0/Q0/R0")
    at = [os.open(p, os.O_RDONLY | os.O_DIRECTORY) for p in (".", "P0", "P0/Q0", "P0/Q0/R0")]
    for i in range(3600): os.mkdir("d%d" % i, dir_fd=at[i % 3])
    movers = []
    for folder, name in zip(at, "PQR"):
        pid = os.fork()
        if pid == 0:
            k = 0
            while True:
                os.rename(name + str(k), name + str(k + 1), src_dir_fd=folder, dst_dir_fd=folder); k += 1
        movers.append(pid)
    for i in range(n // 8):
        f = os.open("f%d" % i, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at[3])
        for _ in range(8): os.write(f, block)
        os.close(f)
    for pid in movers: os.kill(pid, 9)
elif what == "again and again":
    for _ in range(n):
        with open("same", "wb") as f: f.write(block)
elif what == "append":
    with open("old", "ab") as f: f.write(block * n)
elif what == "reserve":
    fd = os.open("held", os.O_RDWR | os.O_CREAT)
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(n << 20)): said = errno.errorcode[ctypes.get_errno()]
    os.posix_fallocate(fd, 0, 1 << 20)
print(json.dumps(said))
"#;

fn below(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |all| {
        all.flatten()
            .map(|entry| {
                let meta = entry.metadata().unwrap();
                meta.blocks() * 512 + if meta.is_dir() { below(&entry.path()) } else { 0 }
            })
            .sum()
    })
}

#[test]
fn what_a_call_adds_is_limited() {
    // (what, how much, the limit that ends it)
    let cases = [
        ("bytes", 4, None),
        ("bytes", 12, Some("writtenBytes")),
        ("bytes", 2048, Some("writtenBytes")),
        ("many files", 90, None),
        ("many files", 150, Some("writtenFiles")),
        ("many files", 200_000, Some("writtenFiles")),
        ("folders", 20_000, Some("writtenFiles")),
        ("deep", 30, Some("writtenFiles")),
        ("deep", 3, None),
        ("nameless", 40, Some("writtenBytes")),
        ("second thread", 40, Some("writtenBytes")),
        ("again and again", 64, None),
        ("append", 4, None),
        ("append", 10, Some("writtenBytes")),
    ];
    let limits = json!({"writtenBytes": 8 * MIB, "writtenFiles": 100, "fileBytes": 4096 * MIB, "openFiles": 64});
    let policy = "[files]\nread = [{ path = \"./**\", why = \"t\" }]\nwrite = [{ path = \"./out/**\", why = \"t\" }]\n[limits]\nfile_bytes = 4_294_967_296\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let asks = json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}});
        let tool = playground.tool("fills", "python", SCRIPT, json!({"limits": limits, "securityContext": asks}));
        playground.policy("fills", "esc:fills", policy);
        playground.settle();
        let out = tool.join("out");
        for (what, n, limit) in cases {
            // What lies there already counts nothing.
            let _ = fs::remove_dir_all(&out);
            fs::create_dir(&out).unwrap();
            fs::write(out.join("old"), vec![1; 16 * MIB as usize]).unwrap();
            playground.settle();
            let ended = playground.call("esc:fills", &json!({"what": what, "n": n}).to_string());
            let Some(limit) = limit else {
                assert_eq!(ended.out["outputData"], json!(0), "{who:?} {what} {n}: {ended:?}");
                continue;
            };
            assert_eq!(ended.error().0, "ResourceLimitError", "{who:?} {what} {n}: {ended:?}");
            assert!(ended.error().1.contains(limit), "{who:?} {what} {n}: {ended:?}");
            if n > 1000 {
                let (bytes, files) = (below(&out), fs::read_dir(&out).unwrap().count());
                assert!(bytes < n * MIB / 2 && (files as u64) < n / 2, "{who:?} {what}: {bytes} bytes, {files} files");
            }
        }
        // The control: nobody limits it.
        let free = playground.path("free");
        fs::create_dir_all(free.join("out")).unwrap();
        let mut bare = std::process::Command::new(PYTHON);
        bare.args(["-c", SCRIPT]).current_dir(&free).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut bare = bare.spawn().unwrap();
        serde_json::to_writer(bare.stdin.take().unwrap(), &json!({"what": "bytes", "n": 12})).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&bare.wait_with_output().unwrap().stdout).unwrap(), json!(0));
        assert!(below(&free) >= 12 * MIB);
    }
}

/// Of a group that the tool's user namespace does not have, a folder that the tool closes is closed to its launcher,
/// too.
#[test]
fn what_cannot_be_counted_ends_the_call() {
    const GROUP: u32 = 54321;
    if !is_root() {
        return skipped(1, "a group beside the user's own needs root");
    }
    let script = "import json, os, sys, time\nos.mkdir('out/d')\n\
                  os.chmod('out/d', json.load(sys.stdin)['mode'])\ntime.sleep(0.3)\nprint(1)\n";
    let playground = Playground::new(Who::User, "/var/tmp");
    let asks = json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}});
    let tool = playground.tool("closes", "python", script, json!({"securityContext": asks}));
    playground.allow("closes", "esc:closes", &["./**"], &["./out/**"]);
    for (mode, wanted) in [(0o755, "none"), (0, "ResourceLimitError")] {
        let out = tool.join("out");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        playground.settle();
        std::os::unix::fs::chown(&out, None, Some(GROUP)).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o2775)).unwrap();
        let uid = Who::User.uid().unwrap();
        let mut grouped = std::process::Command::new("/usr/bin/setpriv");
        grouped.args([format!("--reuid={uid}"), format!("--regid={uid}"), format!("--groups={GROUP}")]);
        grouped.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", playground.path("home"));
        let mut call = playground.host_by(grouped);
        call.args(["call", "esc:closes", "--json", "--input", &json!({"mode": mode}).to_string()]);
        let ended = finish(call, b"");
        assert_eq!(ended.error().0, wanted, "{ended:?}");
    }
}

/// A folder whose name changes all the time is missed by a count that goes by names.
#[test]
fn what_moves_while_it_is_counted_is_counted() {
    let asks = json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}});
    let policy = "[files]\nread = [{ path = \"./**\", why = \"t\" }]\nwrite = [{ path = \"./out/**\", why = \"t\" }]\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let tool = |name: &str, bytes: u64| {
            let limits = json!({"writtenBytes": bytes, "writtenFiles": 5000});
            let folder = playground.tool(name, "python", SCRIPT, json!({"limits": limits, "securityContext": asks}));
            fs::create_dir(folder.join("out")).unwrap();
            folder.join("out")
        };
        let (out, wide) = (tool("moves", 64 * MIB), tool("wide", 256 * MIB));
        playground.policy("moves", "esc:*", policy);
        playground.settle();
        let ended = playground.call("esc:moves", r#"{"what": "moving", "n": 2048}"#);
        assert!(ended.error().1.contains("writtenBytes"), "{who:?}: {ended:?}");
        assert!(below(&out) < 1024 * MIB, "{who:?}: {} MiB", below(&out) / MIB);
        let ended = playground.call("esc:wide", r#"{"what": "moving", "n": 200}"#);
        assert_eq!(ended.out["outputData"], json!(0), "control: {who:?}: {ended:?}");
        assert!(below(&wide) >= 200 * MIB);
    }
}

/// 256 MiB take fallocate(2) a third of a millisecond, which no count comes in time for.
#[test]
fn space_is_not_reserved_in_a_live_folder() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let asks =
            |write: Value| json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": write}}});
        let live = playground.tool("live", "python", SCRIPT, asks(json!(["out/**"])));
        let staged = playground.tool("staged", "python", SCRIPT, asks(json!(["out/*"])));
        for (name, path) in [("live", "./out/**"), ("staged", "./out/**")] {
            let rest = format!(
                "[files]\nread = [{{ path = \"./**\", why = \"t\" }}]\nwrite = [{{ path = \"{path}\", why = \"t\" }}]\n"
            );
            playground.policy(name, &format!("esc:{name}"), &rest);
        }
        for tool in [&live, &staged] {
            fs::create_dir_all(tool.join("out")).unwrap();
        }
        playground.settle();
        let input = json!({"what": "reserve", "n": 2}).to_string();
        let ended = playground.call("esc:live", &input);
        assert_eq!(ended.out["outputData"], json!("ENOTSUP"), "{who:?}: {ended:?}");
        assert_eq!(fs::metadata(live.join("out/held")).unwrap().len(), MIB, "by writing");
        let control = playground.call("esc:staged", &input);
        assert_eq!(control.out["outputData"], json!(0), "{who:?}: {control:?}");
    }
}

/// POSIX semaphores are made by link(2).
#[test]
fn python_multiprocessing_works_without_live_writes() {
    let script = "import json, multiprocessing, concurrent.futures as f\n\
        def square(n): return n * n\n\
        def put(q): q.put(7)\n\
        if __name__ == '__main__':\n\
        \x20   with multiprocessing.Pool(2) as pool: a = pool.map(square, [1, 2, 3])\n\
        \x20   q = multiprocessing.Queue(); p = multiprocessing.Process(target=put, args=(q,)); p.start(); b = q.get(); p.join()\n\
        \x20   with f.ProcessPoolExecutor(2) as pool: c = list(pool.map(square, [4]))\n\
        \x20   print(json.dumps([a, b, c]))\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let asks = json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}});
        playground.tool("none", "python", script, json!({}));
        let live = playground.tool("live", "python", script, json!({"securityContext": asks}));
        fs::create_dir_all(live.join("out")).unwrap();
        playground.allow("live", "esc:live", &["./**"], &["./out/**"]);
        playground.settle();
        let ended = playground.call("esc:none", "{}");
        assert_eq!(ended.out["outputData"], json!([[1, 4, 9], 7, [16]]), "{who:?}: {ended:?}");
        let ended = playground.call("esc:live", "{}");
        assert_eq!(ended.error().0, "ScriptError", "{who:?}: {ended:?}");
    }
}
