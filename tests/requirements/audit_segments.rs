//! The audit log in its files: closed by size, the newest kept, written by several hosts at once, read as one.

use crate::prelude::*;
/// Quick to call: gives its input back.
const ECHO: &str = r#"(component
  (core module $m
    (memory (export "memory") 2)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 64))
    (func (export "run") (param i32 i32) (result i32)
      (i32.store (i32.const 4) (local.get 0)) (i32.store (i32.const 8) (local.get 1)) (i32.const 0)))
  (core instance $i (instantiate $m))
  (func $run (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (export "run" (func $run)))"#;

/// The least size of a file that a configuration may name, bytes.
const LEAST: usize = 1024 * 1024;

fn echo(playground: &Playground, id: &str, more: Value) {
    match has("wasm", 0) {
        true => playground.tool_at(id, "wasm", &format!("{}/main.wat", &id[4..]), ECHO, more),
        false => playground.tool_at(id, "python", &format!("{}/main.py", &id[4..]), "print(1)\n", more),
    };
}

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    echo(&playground, "esc:echo", json!({}));
    let config = format!("audit_segment_bytes = {LEAST}\naudit_segments = 3\n");
    fs::create_dir_all(playground.path("home/.config/toolhost")).unwrap();
    fs::write(playground.path("home/.config/toolhost/config.toml"), config).unwrap();
    playground.settle();
    playground
}

/// The files of the log, oldest first.
fn files(playground: &Playground) -> Vec<PathBuf> {
    let entries = fs::read_dir(playground.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut found: Vec<PathBuf> = entries.filter(|path| name(path).starts_with("audit.jsonl.")).collect();
    found.sort();
    found.push(playground.path("state/audit.jsonl"));
    found
}

/// How often each call is recorded, and the lines that end too early: the kernel may end a write between two pages
/// when its process is killed, and the next writer begins a line of its own. Any other line that is no JSON fails.
fn recorded(playground: &Playground) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut calls, mut torn) = (BTreeMap::new(), Vec::new());
    for file in files(playground) {
        for line in fs::read_to_string(&file).unwrap_or_default().lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(record) => *calls.entry(record["call"].as_str().unwrap().to_owned()).or_default() += 1,
                Err(e) if e.is_eof() => torn.push(line.to_owned()),
                Err(e) => panic!("{file:?}: {e}: {line}"),
            }
        }
    }
    (calls, torn)
}

/// Adds so many bytes of old records, as they come together over a long time.
fn fill(playground: &Playground, bytes: usize) {
    let log = playground.path("state/audit.jsonl");
    let old = "{\"time\":\"t\",\"call\":\"old\",\"tool\":\"x\"}\n";
    fs::write(&log, fs::read_to_string(&log).unwrap_or_default() + &old.repeat(bytes / old.len() + 1)).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).unwrap();
    if playground.who == Who::User && crate::harness::is_root() {
        std::os::unix::fs::chown(&log, Some(12345), Some(12345)).unwrap();
    }
}

#[test]
fn a_full_log_is_closed_and_a_call_is_found_in_all_its_files() {
    as_everyone("closed files", |who| {
        let playground = playground(who);
        let id = |ended: &crate::harness::Ended| ended.out["id"].as_str().unwrap().to_owned();
        let first = playground.expect("esc:echo", "{}", "ok");
        assert_eq!(files(&playground).len(), 1, "{who:?}: the control: a small log is one file");
        let mut ids = vec![id(&first)];
        for round in 1..=4 {
            fill(&playground, LEAST);
            let ended = playground.expect("esc:echo", "{}", "ok");
            ids.push(id(&ended));
            assert_eq!(files(&playground).len(), 1 + round.min(3), "{who:?} in round {round}");
        }
        let recall = |id: &str| playground.cli(&["audit", "--call", id, "--json"]);
        // The first was in the oldest file, which is removed; each later one is in a file of its own.
        let gone = recall(&ids[0]);
        assert_eq!(gone.code, Some(2), "{who:?}");
        assert!(gone.stderr.contains("or in its 3 closed files (older ones are removed)"), "{}", gone.stderr);
        for id in &ids[1..] {
            let here = recall(id);
            assert_eq!((here.code, &here.out["record"]["call"]), (Some(0), &json!(id)), "{who:?}: {}", here.stderr);
            assert!(!here.out["confinement"].is_null(), "{who:?}");
        }
        // No tool writes there, whatever it is granted: neither the log nor what will be its closed files.
        let state = playground.path("state").display().to_string();
        let asks = json!({"securityContext": {"fileAccess": {"allowWrite": [format!("{state}/audit.jsonl.000009")]}}});
        echo(&playground, "esc:forger", asks);
        playground.allow("forger", "esc:forger", &[], &[&format!("{state}/**")]);
        playground.expect("esc:forger", "{}", "SecurityError: a file of this host could be written");
    });
}

#[test]
fn several_hosts_share_a_log_and_one_that_is_killed_loses_nothing() {
    let playground = playground(Who::ours());
    for round in 0..3 {
        fill(&playground, LEAST - 20_000);
        let mut hosts: Vec<Server> = (0..3).map(|_| Server::start(&playground)).collect();
        let (mut asked, mut answered) = (0, Vec::new());
        // Records of some kilobytes, so that the file is full soon, by several at once. Their number is bounded:
        // a quick machine that calls for a time fills more files than are kept, and the oldest are removed.
        let large = json!({"text": "x".repeat(3000)});
        for _ in 0..10 {
            for host in &mut hosts {
                let calls: Vec<u64> = (0..4).map(|_| host.call("esc:echo", large.clone())).collect();
                asked += calls.len();
                answered.extend(
                    host.answers(&calls)
                        .into_values()
                        .map(|answer| answer["result"]["_meta"]["dev.toolhost/callId"].as_str().unwrap().to_owned()),
                );
            }
        }
        // One dies with calls under way, which may have an answer or not.
        let mut dies = hosts.pop().unwrap();
        for _ in 0..20 {
            dies.call("esc:echo", large.clone());
        }
        std::thread::sleep(Duration::from_millis(round * 4));
        dies.child.kill().unwrap();
        dies.child.wait().unwrap();
        drop(hosts);
        playground.expect("esc:echo", "{}", "ok");
        let (calls, torn) = recorded(&playground);
        assert!(torn.len() <= 1, "one host was killed, and these lines are not whole: {torn:?}");
        assert!(calls.iter().all(|(id, n)| id == "old" || *n == 1), "a record stands twice");
        let found = calls.keys().filter(|id| *id != "old").count();
        assert_eq!(asked, answered.len(), "one answer each");
        let lost: Vec<_> = answered.iter().filter(|id| !calls.contains_key(*id)).collect();
        assert!(lost.is_empty(), "round {round}: answered without a whole record: {lost:?}");
        assert!(found > asked, "round {round}: {asked} answered, {found} recorded");
        let kept = files(&playground).len();
        assert!((2..=3).contains(&kept), "{kept} files: never full, or the oldest may have been removed");
        for file in files(&playground) {
            fs::remove_file(file).unwrap();
        }
    }
}

/// Mounts a small file system for the log, and unmounts it.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Where there is no room for a record no call runs, and every call that ran has its record once there is room again:
/// what could not be written comes first.
#[test]
fn a_full_disk_loses_no_record() {
    if !Who::Root.possible() {
        return skipped(1, "mounting a small file system needs root");
    }
    let playground = playground(Who::Root);
    let state = playground.path("state");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=400k,mode=0755", "small"]).arg(&state).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skipped(1, "a small file system cannot be mounted here");
    }
    let _small = Small(state.clone());
    playground.settle();
    let mut hosts: Vec<Server> = (0..2).map(|_| Server::start(&playground)).collect();
    let (mut good, mut refused) = (0, 0);
    let ask = |host: &mut Server| {
        let id = host.call("esc:echo", json!({"text": "x".repeat(3000)}));
        host.answers(&[id]).remove(&id).unwrap()["result"]["isError"] != true
    };
    for _ in 0..300 {
        for host in &mut hosts {
            match ask(host) {
                true => good += 1,
                false => refused += 1,
            }
        }
        if refused > 20 {
            break;
        }
    }
    assert!(good > 20 && refused > 20, "{good} ran, {refused} were refused");
    let bigger = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&state).status().unwrap();
    assert!(bigger.success());
    good += hosts.iter_mut().filter_map(|host| ask(host).then_some(())).count();
    drop(hosts);
    playground.expect("esc:echo", "{}", "ok");
    let text: String = files(&playground).iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ran = records.iter().filter(|record| record["outcome"] == "success").count();
    assert_eq!(ran, good + 1, "each call that ran has its record");
    assert!(fs::read_dir(state.join("begun")).unwrap().next().is_none(), "no call is left that began");
}
