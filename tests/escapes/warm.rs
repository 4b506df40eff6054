//! A worker serves one call after another: what one leaves, the next must not find.

#![cfg_attr(not(feature = "wasi"), allow(dead_code, unused_imports, reason = "its tests need WASI"))]

use super::Attack;
use crate::prelude::*;

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "a call sets the times of its scratch, and the next reads them", wall: "scratch", promises: "P18" },
    Attack { name: "a call leaves a folder in its scratch", wall: "scratch", promises: "P18" },
    Attack { name: "a call makes folders, whose number the next reads from its own", wall: "scratch", promises: "P18" },
    Attack { name: "a worker writes the program that it runs", wall: "view", promises: "P3" },
    Attack {
        name: "a file outside gets a second name in a write grant whose worker waits",
        wall: "view",
        promises: "P2",
    },
    Attack { name: "the folder of a write grant is moved away while its worker waits", wall: "view", promises: "P2" },
    Attack { name: "a call sets variables, and the next looks for them", wall: "environment", promises: "P18" },
];

/// Prints when its /tmp was changed, before and after `body`; /tmp is the last folder that it was given.
fn module(body: &str) -> String {
    format!(
        r#"(module
 (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_filestat_get" (func $get (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "path_create_directory" (func $make (param i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "path_remove_directory" (func $remove (param i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "path_filestat_set_times"
   (func $set (param i32 i32 i32 i32 i64 i64 i32) (result i32)))
 (import "wasi_snapshot_preview1" "path_filestat_get" (func $stat (param i32 i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
 (memory (export "memory") 1)
 (data (i32.const 3000) "x") (data (i32.const 3100) ".") (data (i32.const 3200) "[") (data (i32.const 3201) ",")
 (data (i32.const 3202) "]")
 (func $say (param $at i32) (param $length i32)
  (i32.store (i32.const 0) (local.get $at))
  (i32.store (i32.const 4) (local.get $length))
  (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16))))
 (func $number (param $v i64) (local $at i32)
  (local.set $at (i32.const 900))
  (loop $digit
   (local.set $at (i32.sub (local.get $at) (i32.const 1)))
   (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $v) (i64.const 10)))))
   (local.set $v (i64.div_u (local.get $v) (i64.const 10)))
   (br_if $digit (i64.ne (local.get $v) (i64.const 0))))
  (call $say (local.get $at) (i32.sub (i32.const 900) (local.get $at))))
 (func $changed (param $tmp i32)
  (drop (call $get (local.get $tmp) (i32.const 1000)))
  (call $number (i64.load (i32.const 1048))))
 (func (export "_start") (local $tmp i32)
  (local.set $tmp (i32.const 3))
  (loop $next
   (local.set $tmp (i32.add (local.get $tmp) (i32.const 1)))
   (br_if $next (i32.eqz (call $prestat (local.get $tmp) (i32.const 2000)))))
  (local.set $tmp (i32.sub (local.get $tmp) (i32.const 1)))
  (call $say (i32.const 3200) (i32.const 1))
  (call $changed (local.get $tmp))
  {body}
  (call $say (i32.const 3201) (i32.const 1))
  (call $changed (local.get $tmp))
  (call $say (i32.const 3202) (i32.const 1))))"#
    )
}

const MARK: u64 = 424_242_424_242;
const TIMES: &str = "(drop (call $set (local.get $tmp) (i32.const 0) (i32.const 3100) (i32.const 1)
   (i64.const 424242424242) (i64.const 424242424242) (i32.const 5)))";
const LEAVES: &str = "(drop (call $make (local.get $tmp) (i32.const 3000) (i32.const 1)))";
/// Makes a folder, and says its inode number before the second time.
const NUMBER: &str = "(drop (call $make (local.get $tmp) (i32.const 3000) (i32.const 1)))
  (drop (call $stat (local.get $tmp) (i32.const 0) (i32.const 3000) (i32.const 1) (i32.const 1000)))
  (call $say (i32.const 3201) (i32.const 1)) (call $number (i64.load (i32.const 1008)))
  (drop (call $remove (local.get $tmp) (i32.const 3000) (i32.const 1)))";

struct Warm {
    server: Server,
    playground: Playground,
}

impl Warm {
    fn start() -> Warm {
        Warm::start_as(Who::ours())
    }

    fn start_as(who: Who) -> Warm {
        let playground = Playground::new(who, "/var/tmp");
        for (name, body) in [("times", TIMES), ("leaves", LEAVES), ("number", NUMBER), ("nothing", "")] {
            playground.tool(name, "wasm", &module(body), json!({}));
        }
        playground.settle();
        Warm { server: Server::start(&playground), playground }
    }

    /// When scratch was changed, as the guest read it before and after its work; and the worker that served it.
    fn call(&mut self, tool: &str) -> ((u64, u64), Vec<u32>) {
        let answer = self.server.called(&format!("esc:{tool}"), json!({"n": 0}));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let read: Vec<u64> = serde_json::from_str::<Value>(text)
            .ok()
            .and_then(|value| serde_json::from_value(value).ok())
            .unwrap_or_else(|| panic!("{answer}"));
        let mine = self.playground.base.join("user_scripts").join(tool).display().to_string();
        let workers = processes_of("toolhost-wasm-worker").into_iter().map(|(pid, _)| pid);
        // Others may test workers at the same time: ours is the one that has this tool's folder mounted.
        let of_tool = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|text| text.contains(&mine))
        };
        ((read[0], read[1]), workers.filter(of_tool).collect())
    }
}

#[test]
#[cfg(feature = "wasi")]
fn times_that_a_call_sets_are_not_there_for_the_next() {
    let mut warm = Warm::start();
    let ((_, set), first) = warm.call("times");
    assert_eq!(set, MARK, "control: a call does set them, and reads what it set");
    let ((found, _), second) = warm.call("times");
    assert_ne!(found, MARK);
    assert_eq!((first.len(), &first), (1, &second), "the same worker: that is what this is about");
}

#[test]
#[cfg(feature = "wasi")]
fn a_worker_whose_guest_left_a_file_serves_no_other_call() {
    let mut warm = Warm::start();
    let (_, first) = warm.call("nothing");
    let (_, second) = warm.call("nothing");
    assert_eq!((first.len(), &first), (1, &second), "control: one worker serves calls that leave nothing");
    let (_, first) = warm.call("leaves");
    let (_, second) = warm.call("leaves");
    assert!(first.iter().all(|pid| !second.contains(pid)), "{first:?}, then {second:?}");
}

#[test]
#[cfg(feature = "wasi")]
fn the_program_of_a_worker_cannot_be_written_through_it() {
    for who in Who::both() {
        let mut warm = Warm::start_as(who);
        let (_, workers) = warm.call("nothing");
        let [worker] = workers[..] else { panic!("{who:?}: one worker: {workers:?}") };
        let read_only = |pid: u32| {
            let flags = nix::sys::statvfs::statvfs(format!("/proc/{pid}/exe").as_str()).expect("its program").flags();
            flags.contains(nix::sys::statvfs::FsFlags::ST_RDONLY)
        };
        assert!(!read_only(warm.server.child.id()), "{who:?}: control: the host runs the same program as it lies");
        assert!(read_only(worker), "{who:?}");
    }
}

/// The inode number of a file in scratch counts the files ever made there, so a guest is told another number.
#[test]
#[cfg(feature = "wasi")]
fn numbers_of_files_tell_nothing_of_calls_before() {
    let mut warm = Warm::start();
    let ((_, first), worker) = warm.call("number");
    let ((_, second), same) = warm.call("number");
    assert_eq!((worker.len(), &worker), (1, &same), "the same worker: that is what this is about");
    // The control: outside, inode numbers of one file system lie close together.
    let folder = tempfile::tempdir().unwrap();
    let number = |name: &str| {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::metadata(folder.path().join(name)).unwrap().ino()
    };
    assert!(number("a").abs_diff(number("b")) < 1 << 32);
    assert!(first.abs_diff(second) > 1 << 32, "{first} and {second} lie close together");
}

/// Writes `out/a` and says which error there was.
fn writer(playground: &Playground) -> PathBuf {
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}}});
    let folder = playground.tool("writer", "wasm", include_str!("../engines/probe.wat"), asks);
    playground.allow("writer", "esc:writer", &["./**"], &["./out/**"]);
    std::fs::create_dir_all(folder.join("out")).unwrap();
    std::fs::write(folder.join("out/a"), "old").unwrap();
    folder
}

/// What a call is granted is looked at again by each, also where a worker waits: nothing outside is reached through a
/// name that came after the worker did.
#[test]
#[cfg(feature = "wasi")]
fn an_idle_worker_is_used_only_while_its_grants_are_what_they_were() {
    for who in Who::both() {
        for below in ["/var/tmp", "/tmp"] {
            idle_worker(who, below);
        }
    }
}

fn idle_worker(who: Who, below: &str) {
    let playground = Playground::new(who, below);
    let folder = writer(&playground);
    let outside = playground.path("secret/outside");
    std::fs::write(&outside, "outside").unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    let mut call = || {
        let answer = server.called("esc:writer", json!({"do": "write", "path": "out/a"}));
        crate::harness::words(&answer)
    };
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(call(), "{\n  \"did\": \"ok\"\n}", "{who:?} {below}");
    assert_eq!(text(&folder.join("out/a")), "new\n", "control: it writes, and its worker waits");
    // A file outside gets a second name in the folder.
    std::fs::remove_file(folder.join("out/a")).unwrap();
    std::fs::hard_link(&outside, folder.join("out/a")).unwrap();
    let said = call();
    assert!(said.contains("SecurityError") && said.contains("hard-linked"), "{who:?} {below}: {said}");
    assert_eq!(text(&outside), "outside", "{who:?} {below}: written through a hard link");
    std::fs::remove_file(folder.join("out/a")).unwrap();
    // The folder moves away, and another takes its place.
    std::fs::write(folder.join("out/a"), "moved").unwrap();
    playground.settle();
    assert!(call().contains("ok"), "{who:?} {below}");
    std::fs::write(folder.join("out/a"), "moved").unwrap();
    std::fs::rename(folder.join("out"), playground.path("secret/moved")).unwrap();
    std::fs::create_dir(folder.join("out")).unwrap();
    playground.settle();
    assert!(call().contains("ok"), "{who:?} {below}");
    assert_eq!(text(&playground.path("secret/moved/a")), "moved", "{who:?} {below}: written where it was moved to");
    assert_eq!(text(&folder.join("out/a")), "new\n", "{who:?} {below}: and this is where it should be");
}

/// Asking for less, or lying below /tmp, is no reason to start a worker for each call.
#[test]
#[cfg(feature = "wasi")]
fn one_worker_serves_the_calls_of_a_tool_whatever_it_asks_for() {
    let asks = |read: Value| json!({"securityContext": {"fileAccess": {"allowRead": read}}});
    let all = [
        ("own", json!({})),
        ("itself", asks(json!(["self"]))),
        ("none", asks(json!([]))),
        ("files", asks(json!(["*.txt"]))),
    ];
    for below in ["/var/tmp", "/tmp"] {
        let who = Who::ours();
        let playground = Playground::new(who, below);
        for (name, more) in &all {
            let folder = playground.tool(name, "wasm", &module(""), more.clone());
            std::fs::write(folder.join("a.txt"), "").unwrap();
        }
        playground.settle();
        let mut server = Server::start(&playground);
        for (name, _) in &all {
            let mut call = || {
                let answer = server.called(&format!("esc:{name}"), json!({"n": 0}));
                assert_eq!(answer["result"]["isError"], json!(false), "{below} {name}: {answer}");
                children_of(server.child.id())
            };
            let first = call();
            assert!(!first.is_empty());
            for _ in 0..3 {
                assert_eq!(call(), first, "{below} {name}: another worker was started");
            }
        }
    }
}

/// Processes that this one started and that still run.
fn children_of(pid: u32) -> BTreeSet<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// How long its own TOKEN is, and which variables there are besides.
const VARIABLES: &str = "import json, os
token = os.environ.pop('TOKEN', 'none')
print(json.dumps({'length': len(token), 'names': sorted(os.environ)}))
";

#[test]
fn variables_of_a_call_are_gone_with_it() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool("vars", "python", VARIABLES, json!({"execution": {"env": {"TOKEN": "none"}}}));
    let text = json!({"type": "string", "description": "d"});
    let runs = json!({
        "toolId": "esc:runs", "displayName": "runs", "description": "d", "version": "1.0.0",
        "handler": {"type": "service-method", "serviceName": "ExternalScriptExecutionService", "methodName": "executeScript"},
        "parameters": {"type": "object", "properties": {"scriptPath": text, "language": text,
            "env": {"type": "object", "description": "d", "additionalProperties": {"type": "string"}}}},
        "securityContext": {"fileAccess": {"allowRead": ["self"]}},
    });
    std::fs::write(playground.path("tool-defs/runs.tool.json"), runs.to_string()).unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    let mut names = BTreeSet::new();
    // The longest fits neither a message nor a pipe.
    for length in [4, 1000, 4, 32_000, 4] {
        let mut arguments = json!({"scriptPath": "vars/main.py", "language": "python"});
        if length != 4 {
            arguments["env"] = json!({"TOKEN": "\u{1}".repeat(length)});
        }
        let id = server.ask("tools/call", json!({"name": "esc__runs", "arguments": arguments}));
        let answer = server.answers(&[id]).remove(&id).unwrap_or_default();
        let told = &answer["result"]["structuredContent"]["outputData"];
        assert_eq!(told["length"], length, "{answer}");
        names.insert(told["names"].to_string());
        assert_eq!(server.holds_at_rest().1, 1, "one launcher serves them all");
    }
    assert_eq!(names.len(), 1, "{names:?}");
}
