//! A worker serves one call after another: what one leaves, the next must not find.

use super::playground::{Playground, Who, is_root, processes_of};
use super::server::Server;
use serde_json::{Value, json};
use std::time::Duration;

/// (name, wall, promises) of the tests below.
pub const NAMES: &[(&str, &str, &str)] = &[
    ("a call sets the times of its scratch, and the next reads them", "scratch", "P18"),
    ("a call makes folders, whose number the next reads from its own", "scratch", "P18"),
    ("a worker writes the program that it runs", "view", "P3"),
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
const FOLDERS: &str = "(drop (call $make (local.get $tmp) (i32.const 3000) (i32.const 1)))
  (drop (call $remove (local.get $tmp) (i32.const 3000) (i32.const 1)))";

struct Warm {
    server: Server,
    playground: Playground,
}

impl Warm {
    fn start() -> Warm {
        Warm::start_as(if is_root() { Who::Root } else { Who::User })
    }

    fn start_as(who: Who) -> Warm {
        let playground = Playground::new(who, "/var/tmp");
        for (name, body) in [("times", TIMES), ("folders", FOLDERS), ("nothing", "")] {
            playground.tool(name, "wasm", &module(body), json!({}));
        }
        playground.settle();
        Warm { server: Server::start(&playground), playground }
    }

    /// When scratch was changed, as the guest read it before and after its work; and the worker that served it.
    fn call(&mut self, tool: &str) -> ((u64, u64), Vec<u32>) {
        let id = self.server.call(tool, 0);
        let answer = self.server.answers(&[id], Duration::from_secs(30)).remove(&id).unwrap_or_default();
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
fn times_that_a_call_sets_are_not_there_for_the_next() {
    let mut warm = Warm::start();
    let ((_, set), first) = warm.call("times");
    assert_eq!(set, MARK, "control: a call does set them, and reads what it set");
    let ((found, _), second) = warm.call("times");
    assert_ne!(found, MARK);
    assert_eq!((first.len(), &first), (1, &second), "the same worker: that is what this is about");
}

#[test]
fn a_worker_whose_guest_made_a_file_serves_no_other_call() {
    let mut warm = Warm::start();
    let (_, first) = warm.call("nothing");
    let (_, second) = warm.call("nothing");
    assert_eq!((first.len(), &first), (1, &second), "control: one worker serves calls that leave nothing");
    let (_, first) = warm.call("folders");
    let (_, second) = warm.call("folders");
    assert!(first.iter().all(|pid| !second.contains(pid)), "{first:?}, then {second:?}");
}

#[test]
fn the_program_of_a_worker_cannot_be_written_through_it() {
    for who in [Who::Root, Who::User].into_iter().filter(|who| who.possible()) {
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
