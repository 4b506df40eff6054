//! A worker serves one call after another: what one leaves, the next must not find.

use crate::prelude::*;
use nix::sys::statvfs::{FsFlags, statvfs};

fn module(does: &str) -> String {
    include_str!("warm.wat").replace("BODY", does)
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

/// What the guest read: when scratch was changed before and after its work; and the worker that
/// served it.
fn call(playground: &Playground, server: &mut Server, tool: &str) -> (Vec<u64>, Vec<u32>) {
    let answer = server.called(&format!("esc:{tool}"), json!({"n": 0}));
    let read = serde_json::from_str(&words(&answer)).unwrap_or_else(|e| panic!("{e}: {answer}"));
    let mine = playground
        .path("user_scripts")
        .join(tool)
        .display()
        .to_string();
    let workers = processes_of("toolhost-wasm-worker")
        .into_iter()
        .map(|(pid, _)| pid);
    // Others may test workers at the same time: ours is the one that has this tool's folder
    // mounted.
    let of_tool = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|text| text.contains(&mine))
    };
    (read, workers.filter(of_tool).collect())
}

#[test]
fn what_a_call_does_to_its_scratch_or_worker_is_not_there_for_the_next() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        for (name, does) in [
            ("times", TIMES),
            ("leaves", LEAVES),
            ("number", NUMBER),
            ("nothing", ""),
        ] {
            playground.tool(name, "wasm", &module(does), json!({}));
        }
        playground.settle();
        let mut server = Server::start(&playground);
        let mut twice = |tool: &str| [(); 2].map(|()| call(&playground, &mut server, tool));
        let same = |first: &[u32], second: &[u32]| first.len() == 1 && first == second;

        let [(set, first), (found, second)] = twice("times");
        assert_eq!(
            set[1], MARK,
            "{who:?}: control: a call does set them, and reads what it set"
        );
        assert_ne!(found[0], MARK, "{who:?}");
        assert!(
            same(&first, &second),
            "{who:?}: the same worker: that is what this is about"
        );

        let [(_, first), (_, second)] = twice("leaves");
        assert!(
            first.iter().all(|pid| !second.contains(pid)),
            "{who:?}: {first:?}, then {second:?}"
        );
        let [(_, first), (_, second)] = twice("nothing");
        assert!(
            same(&first, &second),
            "{who:?}: control: one worker serves calls that leave nothing"
        );

        // Nor can it write the program that it runs.
        let read_only = |pid| {
            statvfs(format!("/proc/{pid}/exe").as_str())
                .unwrap()
                .flags()
                .contains(FsFlags::ST_RDONLY)
        };
        assert!(read_only(first[0]), "{who:?}");

        // The inode number of a file in scratch counts the files ever made there, so a guest is
        // told another number.
        let [(one, first), (two, second)] = twice("number");
        assert!(
            same(&first, &second),
            "{who:?}: the same worker: that is what this is about"
        );
        assert!(
            one[1].abs_diff(two[1]) > 1 << 32,
            "{who:?}: {one:?} and {two:?} lie close together"
        );

        assert!(
            !read_only(server.child.id()),
            "{who:?}: control: the host runs the same program as it lies"
        );
        // The control: outside, inode numbers of one file system lie close together.
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::metadata(folder.path().join(name)).unwrap().ino()
        });
        assert!(a.abs_diff(b) < 1 << 32);
    }
}

/// What a call is granted is looked at again by each, also where a worker waits: nothing outside is
/// reached through a name that came after the worker did.
#[test]
fn an_idle_worker_is_used_only_while_its_grants_are_what_they_were() {
    for (who, below) in Who::both().flat_map(|who| [(who, "/var/tmp"), (who, "/tmp")]) {
        let playground = Playground::new(who, below);
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}}});
        let folder = playground.tool("writer", "wasm", include_str!("../engines/probe.wat"), asks);
        playground.allow("writer", "esc:writer", &["./**"], &["./out/**"]);
        let (out, file, outside) = (
            folder.join("out"),
            folder.join("out/a"),
            playground.path("secret/outside"),
        );
        fs::create_dir(&out).unwrap();
        fs::write(&file, "old").unwrap();
        fs::write(&outside, "outside").unwrap();
        playground.settle();
        let mut server = Server::start(&playground);
        let mut call =
            || words(&server.called("esc:writer", json!({"do": "write", "path": "out/a"})));
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(call(), "{\n  \"did\": \"ok\"\n}", "{who:?} {below}");
        assert_eq!(
            text(&file),
            "new\n",
            "control: it writes, and its worker waits"
        );
        // A file outside gets a second name in the folder.
        fs::remove_file(&file).unwrap();
        fs::hard_link(&outside, &file).unwrap();
        let said = call();
        assert!(said.contains("EIO"), "{who:?} {below}: {said}");
        assert_eq!(
            text(&outside),
            "outside",
            "{who:?} {below}: written through a hard link"
        );
        fs::remove_file(&file).unwrap();
        // The folder moves away, and another takes its place.
        fs::write(&file, "moved").unwrap();
        playground.settle();
        assert!(call().contains("ok"), "{who:?} {below}");
        fs::write(&file, "moved").unwrap();
        fs::rename(&out, playground.path("secret/moved")).unwrap();
        fs::create_dir(&out).unwrap();
        playground.settle();
        assert!(call().contains("ok"), "{who:?} {below}");
        assert_eq!(
            text(&playground.path("secret/moved/a")),
            "moved",
            "{who:?} {below}: written where it was moved to"
        );
        assert_eq!(
            text(&file),
            "new\n",
            "{who:?} {below}: and this is where it should be"
        );
    }
}

/// Asking for less, or lying below /tmp, is no reason to start a worker for each call.
#[test]
fn one_worker_serves_the_calls_of_a_tool_whatever_it_asks_for() {
    let asks = |read: &[&str]| json!({"securityContext": {"fileAccess": {"allowRead": read}}});
    let all = [
        ("own", json!({})),
        ("itself", asks(&["self"])),
        ("none", asks(&[])),
        ("files", asks(&["*.txt"])),
    ];
    for below in ["/var/tmp", "/tmp"] {
        let playground = Playground::new(Who::ours(), below);
        for (name, more) in &all {
            let folder = playground.tool(name, "wasm", &module(""), more.clone());
            fs::write(folder.join("a.txt"), "").unwrap();
        }
        playground.settle();
        let mut server = Server::start(&playground);
        for (name, _) in &all {
            let mut call = || {
                let answer = server.called(&format!("esc:{name}"), json!({"n": 0}));
                assert_eq!(
                    answer["result"]["isError"],
                    json!(false),
                    "{below} {name}: {answer}"
                );
                children_of(server.child.id())
            };
            let first = call();
            for _ in 0..3 {
                let now = call();
                assert!(
                    !now.is_empty() && now.is_subset(&first),
                    "{below} {name}: another worker was started: {first:?}, then {now:?}"
                );
            }
        }
    }
}

/// Processes that this one started and that still run.
fn children_of(pid: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    children
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
