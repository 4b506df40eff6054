//! The chain of the audit log: what was changed, removed, moved, repeated or added in it shows, what
//! hosts and the machine do by themselves holds, and what only a head elsewhere shows.

use super::audit_segments::echo;
use super::{put, set_mode};
use crate::prelude::*;
use nix::fcntl::{Flock, FlockArg};
use toolhost::base::sha256_hex;

const LOG: &str = "state/audit.jsonl";
const HEADS: &str = "elsewhere/heads.jsonl";

/// A host that writes heads, and closes a file of its log at 1 MiB.
fn playground() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    echo(&playground, "echo", json!({}));
    let heads = playground.path(HEADS).display().to_string();
    let config = format!(
        "audit_segment_bytes = 1048576\naudit_segments = 3\n[log]\nhead_to = \"{heads}\"\n"
    );
    put(&playground, "home/.config/toolhost/config.toml", config);
    fs::create_dir(playground.path("elsewhere")).unwrap();
    playground.settle();
    playground
}

/// A server, and calls of it one after the other.
fn calls(server: &mut Server, count: usize) {
    for _ in 0..count {
        assert_eq!(kind(&server.called("esc:echo", json!({"a": 1}))), "none");
    }
}

/// Waits until it has ended by itself.
fn end(mut server: Server) {
    drop(server.to.take());
    server.child.wait().unwrap();
}

fn lines(playground: &Playground) -> Vec<String> {
    let text = fs::read_to_string(playground.path(LOG)).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Writes the log in place: its owner and mode stay.
fn write(playground: &Playground, lines: &[String]) {
    fs::write(playground.path(LOG), lines.join("\n") + "\n").unwrap();
}

fn verify(playground: &Playground) -> Ended {
    let ended = playground.cli(&["log", "verify", "--json"]);
    assert_eq!(
        ended.code,
        Some(if ended.out["holds"] == true { 0 } else { 4 }),
        "{ended:?}"
    );
    ended
}

/// Each breach: what, and of which records.
fn breaches(playground: &Playground) -> Vec<String> {
    named(&verify(playground).out["breaches"])
}

fn named(found: &Value) -> Vec<String> {
    let found = found.as_array().unwrap().iter();
    found
        .map(|it| {
            format!(
                "{} {}-{}",
                it["what"].as_str().unwrap(),
                it["from"],
                it["to"]
            )
        })
        .collect()
}

#[track_caller]
fn holds(playground: &Playground, from: u64, to: u64) {
    let out = verify(playground).out;
    assert_eq!(
        (&out["holds"], &out["from"]["n"], &out["to"]["n"]),
        (&json!(true), &json!(from), &json!(to)),
        "{out:#}"
    );
}

/// The record `n` of a line without its chain.
fn unlinked(line: &str) -> String {
    format!("{}}}", line.rsplit_once(",\"chain\":").unwrap().0)
}

/// A line of the chain as its writers make it, behind `previous`.
fn linked(record: &str, n: u64, at: &str, previous: Option<&str>) -> String {
    let previous = previous.map(|line| sha256_hex(line.as_bytes()));
    let chain = json!({"n": n, "at": at, "previous": previous});
    format!("{},\"chain\":{chain}}}", record.strip_suffix('}').unwrap())
}

const NOW: &str = "2026-11-29T00:00:00Z";

/// Records of nobody, in a chain that claims that its beginning was removed.
fn others() -> Vec<String> {
    let removed = "f".repeat(64);
    let chain = json!({"n": 9, "at": NOW, "previous": removed});
    let first = format!("{{\"removed\":\"{removed}\",\"chain\":{chain}}}");
    let second = linked("{\"call\":\"forged\"}", 10, NOW, Some(&first));
    vec![first, second]
}

/// The same records, linked again after the third was changed: what somebody can do who may write
/// the log.
fn made_again(lines: &[String]) -> Vec<String> {
    let mut made: Vec<String> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let mut record = unlinked(line);
        if index == 2 {
            record = record.replace("success", "SUCCESS");
        }
        let at = serde_json::from_str::<Value>(line).unwrap()["chain"]["at"].clone();
        let previous = made.last().map(String::as_str);
        made.push(linked(
            &record,
            index as u64 + 1,
            at.as_str().unwrap(),
            previous,
        ));
    }
    made
}

#[test]
fn what_somebody_did_to_the_log_shows() {
    let playground = playground();
    let mut server = Server::start(&playground);
    calls(&mut server, 8);
    end(server);
    let good = lines(&playground);
    assert_eq!(good.len(), 8);
    let control = verify(&playground).out;
    assert_eq!(
        (
            &control["holds"],
            &control["from"]["n"],
            &control["to"]["n"]
        ),
        (&json!(true), &json!(1), &json!(8))
    );
    assert_eq!(control["heads"]["same"], 1, "one at the end: {control:#}");
    assert_eq!(
        control["heads"]["newest"]["digest"],
        sha256_hex(good[7].as_bytes())
    );
    let text = playground.cli(&["log", "verify"]).text();
    assert!(text.starts_with("PASS: the chain holds"), "{text}");

    let edited = |index: usize, from: &str, to: &str| {
        let mut lines = good.clone();
        assert!(lines[index].contains(from), "{}", lines[index]);
        lines[index] = lines[index].replace(from, to);
        lines
    };
    let without = |from: usize, to: usize| [&good[..from], &good[to..]].concat();
    let with = |line: &str, at: usize| [&good[..at], &[line.to_owned()], &good[at..]].concat();
    let mut swapped = good.clone();
    swapped.swap(3, 4);
    let attacks: [(&str, Vec<String>, &[&str]); 13] = [
        (
            "an edited byte",
            edited(2, "success", "Success"),
            &["changed 3-3"],
        ),
        (
            "an edited number",
            edited(2, "\"n\":3", "\"n\":7"),
            &["changed 3-3", "changed 3-3"],
        ),
        (
            "a line that is not JSON any more",
            edited(2, "}}", "}"),
            &["missing 3-3"],
        ),
        ("one removed", without(3, 4), &["missing 4-4"]),
        ("some removed", without(2, 5), &["missing 3-5"]),
        ("the first removed", without(0, 2), &["missing 1-2"]),
        ("the last removed", without(5, 8), &["missing 6-8"]),
        ("two swapped", swapped, &["outOfOrder 4-4"]),
        ("one repeated", with(&good[1], 8), &["repeated 2-2"]),
        (
            "one of our own added",
            with("{\"call\":\"mine\"}", 4),
            &["foreign 4-4", "changed 4-4"],
        ),
        ("all made again", made_again(&good), &["changed 8-8"]),
        ("one before the first", with("{}", 0), &["before 1-1"]),
        (
            "another log, as if files were removed",
            others(),
            &["missing 8-8"],
        ),
    ];
    for (attack, lines, expected) in attacks {
        write(&playground, &lines);
        assert_eq!(breaches(&playground), expected, "{attack}");
    }
    write(&playground, &without(3, 4));
    let gap = verify(&playground).out["breaches"][0]["place"].clone();
    assert_eq!(gap, "audit.jsonl line 4");
    // Heads that are named are there, and are heads.
    let heads = playground.path(HEADS);
    fs::rename(&heads, heads.with_extension("away")).unwrap();
    write(&playground, &good);
    for text in [None, Some("{}\n")] {
        text.iter()
            .for_each(|text| fs::write(&heads, text).unwrap());
        let ended = playground.cli(&["log", "verify"]);
        assert!(
            ended.code == Some(4) && ended.stderr.contains("heads.jsonl"),
            "{ended:?}"
        );
    }
    // Without a head elsewhere, the end can be removed and all can be made again.
    let config = playground.path("home/.config/toolhost/config.toml");
    let named = fs::read_to_string(&config).unwrap();
    fs::write(&config, named.split("[log]").next().unwrap()).unwrap();
    for nothing in [vec![], vec!["{}".to_owned()]] {
        write(&playground, &nothing);
        let ended = playground.cli(&["log", "verify"]);
        assert!(
            ended.code == Some(4) && ended.stderr.contains("audit.jsonl: it has no record"),
            "{ended:?}"
        );
    }
    write(&playground, &without(5, 8));
    holds(&playground, 1, 5);
    write(&playground, &made_again(&good));
    holds(&playground, 1, 8);
    let text = playground.cli(&["log", "verify"]).text();
    assert!(text.contains("No heads were compared"), "{text}");
    fs::write(&config, named).unwrap();
    fs::rename(heads.with_extension("away"), &heads).unwrap();
    let other = heads.display().to_string();
    let ended = playground.cli(&["log", "verify", "--heads", &other]);
    assert!(
        ended.code == Some(4) && ended.text().starts_with("FAIL"),
        "{ended:?}"
    );
    write(&playground, &good);
    holds(&playground, 1, 8);
    let gone = playground.cli(&["log", "verify", "--heads", "/nowhere/heads"]);
    assert_eq!(gone.code, Some(4), "{gone:?}");
}

#[test]
fn several_hosts_write_one_chain() {
    let playground = playground();
    let began = Instant::now();
    let mut hosts: Vec<Server> = (0..2).map(|_| Server::start(&playground)).collect();
    for _ in 0..5 {
        let asked: Vec<u64> = (0..2)
            .map(|index| hosts[index].call("esc:echo", json!({})))
            .collect();
        playground.expect("esc:echo", "{}", "ok");
        for (host, id) in hosts.iter_mut().zip(asked) {
            host.answers(&[id]);
        }
        calls(&mut hosts[0], 2);
    }
    playground.expect("esc:none", "{}", "ToolNotFoundError");
    hosts.into_iter().for_each(end);
    holds(&playground, 1, 26);
    let out = verify(&playground).out;
    assert_eq!(out["notes"], json!([]), "{out:#}");
    let heads = out["heads"]["same"].as_u64().unwrap();
    // A server leaves one more after each minute.
    let may_be_more = began.elapsed() > Duration::from_secs(60);
    assert!(
        heads == 8 || (heads > 8 && may_be_more),
        "each host left one: {out:#}"
    );
}

#[test]
fn what_is_removed_under_a_running_host_shows() {
    let playground = playground();
    let mut command = playground.host();
    command.args(["serve", "--stdio"]);
    let (mut server, err) = Server::heard(command);
    calls(&mut server, 4);
    let good = lines(&playground);
    write(&playground, &good[..2]);
    calls(&mut server, 2);
    end(server);
    let mut said = String::new();
    BufReader::new(err).read_to_string(&mut said).unwrap();
    assert!(said.contains("records 3 to 4: missing"), "{said}");
    assert_eq!(breaches(&playground), ["missing 3-4"]);
    // A file that somebody put in its place is one of the same chain, or shows.
    let mut server = Server::start(&playground);
    calls(&mut server, 2);
    let now = lines(&playground);
    fs::remove_file(playground.path(LOG)).unwrap();
    calls(&mut server, 1);
    end(server);
    assert_eq!(breaches(&playground), ["missing 1-8"]);
    write(&playground, &[now, lines(&playground)].concat());
    assert_eq!(breaches(&playground), ["missing 3-4"], "the control");
}

#[test]
fn a_line_that_was_cut_off_is_closed_and_stays_as_it_is() {
    let playground = playground();
    playground.expect("esc:echo", "{}", "ok");
    let log = || {
        fs::File::options()
            .append(true)
            .open(playground.path(LOG))
            .unwrap()
    };
    log().write_all(b"{\"time\":\"to").unwrap();
    let out = verify(&playground).out;
    assert_eq!(
        (&out["holds"], named(&out["notes"])),
        (&json!(true), vec!["torn 1-1".to_owned()])
    );
    playground.expect("esc:echo", "{}", "ok");
    holds(&playground, 1, 2);
    let good = lines(&playground);
    assert_eq!((good.len(), good[1].as_str()), (3, "{\"time\":\"to"));
    write(
        &playground,
        &[&good[..1], &["{\"time\":\"no".to_owned()], &good[2..]].concat(),
    );
    assert_eq!(breaches(&playground), ["changed 1-1"]);
    write(&playground, &[&good[..1], &good[2..]].concat());
    assert_eq!(breaches(&playground), ["changed 1-1"]);
}

#[test]
fn the_chain_begins_in_a_log_from_before_it() {
    let playground = playground();
    let old = vec!["{\"time\":\"t\",\"call\":\"old\",\"tool\":\"x\"}".to_owned(); 3];
    write(&playground, &old);
    set_mode(playground.path(LOG), 0o600);
    std::os::unix::fs::chown(
        playground.path(LOG),
        playground.who.uid(),
        playground.who.uid(),
    )
    .unwrap();
    playground.expect("esc:echo", "{}", "ok");
    playground.expect("esc:echo", "{}", "ok");
    let good = lines(&playground);
    assert_eq!(good[..3], old);
    holds(&playground, 1, 2);
    let text = playground.cli(&["log", "verify"]).text();
    assert!(text.contains("lines before"), "{text}");
    write(&playground, &good[1..]);
    assert_eq!(breaches(&playground), ["before 1-1"]);
    write(&playground, &[&good[..3], &good[4..]].concat());
    assert_eq!(breaches(&playground), ["before 2-2", "missing 1-1"]);
}

#[test]
fn a_clock_that_was_set_back_is_shown() {
    let playground = playground();
    let future = linked("{\"call\":\"future\"}", 1, "2099-01-01T00:00:00Z", None);
    write(&playground, &[future]);
    set_mode(playground.path(LOG), 0o600);
    std::os::unix::fs::chown(
        playground.path(LOG),
        playground.who.uid(),
        playground.who.uid(),
    )
    .unwrap();
    for _ in 0..2 {
        playground.expect("esc:echo", "{}", "ok");
    }
    let out = verify(&playground).out;
    let notes = named(&out["notes"]);
    assert_eq!(
        (&out["holds"], notes),
        (&json!(true), vec!["clockSetBack 2-2".to_owned()])
    );
    assert_eq!(out["to"]["n"], 3, "calls go on");
}

/// Fills the log with a MiB of records.
fn fill(playground: &Playground) {
    let mut lines = lines(playground);
    let text = "x".repeat(100_000);
    for _ in 0..11 {
        let last = lines.last().unwrap();
        let n = serde_json::from_str::<Value>(last).unwrap()["chain"]["n"]
            .as_u64()
            .unwrap();
        let record = json!({"call": "large", "text": text}).to_string();
        lines.push(linked(&record, n + 1, NOW, Some(last)));
    }
    write(playground, &lines);
}

#[test]
fn the_chain_goes_on_across_files_and_those_that_were_removed() {
    let playground = playground();
    playground.expect("esc:echo", "{}", "ok");
    let closed = |number: u32| playground.path(&format!("{LOG}.{number:06}"));
    for round in 1..=3_u32 {
        fill(&playground);
        playground.expect("esc:echo", "{}", "ok");
        assert!(closed(round).exists() && lines(&playground).len() == 1);
        holds(&playground, 1, 1 + 12 * u64::from(round));
    }
    // A file that somebody removed, in the middle or the oldest, shows.
    for number in [1, 2] {
        fs::rename(closed(number), playground.path("away")).unwrap();
        let missing = format!("missing {}-{}", 12 * number - 11, 12 * number);
        assert_eq!(breaches(&playground), [missing]);
        fs::rename(playground.path("away"), closed(number)).unwrap();
    }
    holds(&playground, 1, 37);
    // One that the host removed has left its digest.
    for round in 4..=5_u32 {
        fill(&playground);
        playground.expect("esc:echo", "{}", "ok");
        assert!(!closed(round - 3).exists() && closed(round).exists());
        assert_eq!(
            lines(&playground).len(),
            2,
            "the record of that, and the call's"
        );
    }
    let before = verify(&playground).out;
    assert_eq!(
        (&before["holds"], &before["from"]["n"]),
        (&json!(true), &json!(25)),
        "{before:#}"
    );
    let now = lines(&playground);
    write(&playground, &now[1..]);
    assert_eq!(
        breaches(&playground).len(),
        2,
        "the first record stands behind nothing"
    );
    write(&playground, &now);
    assert_eq!(verify(&playground).out, before);
}

#[test]
fn no_call_runs_while_another_process_keeps_the_log_locked() {
    let playground = playground();
    playground.expect("esc:echo", "{}", "ok");
    let log = fs::File::open(playground.path(LOG)).unwrap();
    let lock = Flock::lock(log, FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .unwrap();
    // The end of a call that ran waits in memory, and no other one starts.
    let mut server = Server::start(&playground);
    calls(&mut server, 1);
    let refused = server.called("esc:echo", json!({}));
    assert_eq!(kind(&refused), "InternalError", "{refused:?}");
    drop(lock);
    calls(&mut server, 1);
    end(server);
    let ran = lines(&playground)
        .iter()
        .filter(|line| line.contains("\"outcome\":\"success\""))
        .count();
    assert_eq!(ran, 3, "no record was lost");
    let to = verify(&playground).out["to"]["n"].as_u64().unwrap();
    holds(&playground, 1, to);
}
