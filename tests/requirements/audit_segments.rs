//! The audit log in its files: closed by size, the newest kept, written by several hosts at once,
//! read as one.

use super::{put, set_mode};
use crate::prelude::*;

/// The least size of a file that a configuration may name, bytes.
const LEAST: usize = 1024 * 1024;

/// Quick to call: gives its input back.
pub fn echo(playground: &Playground, name: &str, more: Value) {
    let module = include_str!("languages.wat")
        .replace("DATA", "")
        .replace("BODY", "(call $echo)");
    match has("wasm", 0) {
        true => playground.tool(name, "wasm", &module, more),
        false => playground.tool(name, "python", "print(1)\n", more),
    };
}

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    echo(&playground, "echo", json!({}));
    let config = format!("audit_segment_bytes = {LEAST}\naudit_segments = 3\n");
    put(&playground, "home/.config/toolhost/config.toml", config);
    playground.settle();
    playground
}

/// The files of the log.
fn files(playground: &Playground) -> Vec<PathBuf> {
    let files = fs::read_dir(playground.path("state"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("audit.jsonl")
        })
        .collect()
}

/// The lines of all of them.
fn lines(playground: &Playground) -> Vec<String> {
    let texts = files(playground)
        .into_iter()
        .map(|file| fs::read_to_string(file).unwrap());
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Adds so many bytes of old records, as they come together over a long time.
fn fill(playground: &Playground, bytes: usize) {
    let log = playground.path("state/audit.jsonl");
    let old = "{\"time\":\"t\",\"call\":\"old\",\"tool\":\"x\"}\n";
    fs::write(
        &log,
        fs::read_to_string(&log).unwrap_or_default() + &old.repeat(bytes / old.len() + 1),
    )
    .unwrap();
    set_mode(&log, 0o600);
    std::os::unix::fs::chown(&log, playground.who.uid(), playground.who.uid()).unwrap();
}

#[test]
fn a_full_log_is_closed_and_a_call_is_found_in_all_its_files() {
    as_everyone("closed files", |who| {
        let playground = playground(who);
        let called = || {
            playground.expect("esc:echo", "{}", "ok").out["id"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let first = called();
        assert_eq!(
            files(&playground).len(),
            1,
            "{who:?}: the control: a small log is one file"
        );
        let later: Vec<String> = (1..=4)
            .map(|round| {
                fill(&playground, LEAST);
                let id = called();
                assert_eq!(
                    files(&playground).len(),
                    1 + round.min(3),
                    "{who:?} in round {round}"
                );
                id
            })
            .collect();
        let recall = |id: &str| playground.cli(&["audit", "--call", id, "--json"]);
        // The first was in the oldest file, which is removed; each later one is in a file of its
        // own.
        let gone = recall(&first);
        let told = gone
            .stderr
            .contains("or in its 3 closed files (older ones are removed)");
        assert!(gone.code == Some(2) && told, "{who:?}: {}", gone.stderr);
        for id in &later {
            let here = recall(id);
            assert_eq!(
                (here.code, &here.out["record"]["call"]),
                (Some(0), &json!(id)),
                "{who:?}: {}",
                here.stderr
            );
            assert!(!here.out["confinement"].is_null(), "{who:?}");
        }
        // No tool writes there, whatever it is granted: neither the log nor what will be its closed
        // files.
        let state = playground.path("state").display().to_string();
        echo(
            &playground,
            "forger",
            super::files(&["self"], &[&format!("{state}/audit.jsonl.000009")]),
        );
        playground.allow("forger", "esc:forger", &[], &[&format!("{state}/**")]);
        playground.expect(
            "esc:forger",
            "{}",
            "SecurityError: a file of this host could be written",
        );
    });
}

#[test]
fn several_hosts_share_a_log_and_one_that_is_killed_loses_nothing() {
    let playground = playground(Who::ours());
    for round in 0..3 {
        fill(&playground, LEAST - 20_000);
        let mut hosts: Vec<Server> = (0..3).map(|_| Server::start(&playground)).collect();
        let (mut asked, mut answered) = (0, Vec::new());
        // Records of some kilobytes, so that the file is full soon, by several at once. Their
        // number is bounded: a quick machine that calls for a time fills more files than are kept,
        // and the oldest are removed.
        let large = json!({"text": "x".repeat(3000)});
        for _ in 0..10 {
            for host in &mut hosts {
                let calls: Vec<u64> = (0..4)
                    .map(|_| host.call("esc:echo", large.clone()))
                    .collect();
                asked += calls.len();
                let id = |answer: Value| {
                    answer["result"]["_meta"]["dev.toolhost/callId"]
                        .as_str()
                        .unwrap()
                        .to_owned()
                };
                answered.extend(host.answers(&calls).into_values().map(id));
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
        // The kernel may end a write between two pages when its process is killed, and the next
        // writer begins a line of its own. Any other line that is no JSON fails.
        let (mut calls, mut torn) = (BTreeMap::<String, usize>::new(), Vec::new());
        for line in lines(&playground) {
            match serde_json::from_str::<Value>(&line) {
                Ok(record) => {
                    *calls
                        .entry(record["call"].as_str().unwrap().to_owned())
                        .or_default() += 1
                }
                Err(e) if e.is_eof() => torn.push(line),
                Err(e) => panic!("{e}: {line}"),
            }
        }
        assert!(
            torn.len() <= 1,
            "one host was killed, and these lines are not whole: {torn:?}"
        );
        calls.remove("old");
        assert!(
            calls.values().all(|times| *times == 1),
            "a record stands twice"
        );
        assert_eq!(asked, answered.len(), "one answer each");
        let lost: Vec<_> = answered
            .iter()
            .filter(|id| !calls.contains_key(*id))
            .collect();
        assert!(
            lost.is_empty(),
            "round {round}: answered without a whole record: {lost:?}"
        );
        assert!(
            calls.len() > asked,
            "round {round}: {asked} answered, {} recorded",
            calls.len()
        );
        let kept = files(&playground);
        assert!(
            (2..=3).contains(&kept.len()),
            "{kept:?}: never full, or the oldest may have been removed"
        );
        kept.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}

/// Where there is no room for a record no call runs, and every call that ran has its record once
/// there is room again: what could not be written comes first.
#[test]
fn a_full_disk_loses_no_record() {
    /// Unmounted when it goes.
    struct Small(PathBuf);

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    if !Who::Root.possible() {
        return skipped(1, "mounting a small file system needs root");
    }
    let playground = playground(Who::Root);
    let state = playground.path("state");
    let mount = |options: &[&str]| {
        let mut mount = Command::new("mount");
        mount
            .args(options)
            .arg(&state)
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=400k,mode=0755", "small"]) {
        return skipped(1, "a small file system cannot be mounted here");
    }
    let _small = Small(state.clone());
    playground.settle();
    let mut hosts: Vec<Server> = (0..2).map(|_| Server::start(&playground)).collect();
    let (mut good, mut refused) = (0, 0);
    let ask = |host: &mut Server| {
        kind(&host.called("esc:echo", json!({"text": "x".repeat(3000)}))) == "none"
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
    assert!(
        good > 20 && refused > 20,
        "{good} ran, {refused} were refused"
    );
    assert!(mount(&["-o", "remount,size=64m"]));
    good += hosts
        .iter_mut()
        .filter_map(|host| ask(host).then_some(()))
        .count();
    drop(hosts);
    playground.expect("esc:echo", "{}", "ok");
    let lines = lines(&playground);
    let records = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ran = records
        .filter(|record| record["outcome"] == "success")
        .count();
    assert_eq!(ran, good + 1, "each call that ran has its record");
    assert!(
        fs::read_dir(state.join("begun")).unwrap().next().is_none(),
        "no call is left that began"
    );
}
