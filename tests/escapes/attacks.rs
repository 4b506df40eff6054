//! `doctor --attacks`, and its judge where nothing is held.

use super::probe::SHIPPED;
use crate::prelude::*;

/// The names of everything that ships, and what a report says of each.
fn verdicts(probes: &Value) -> BTreeMap<String, Value> {
    let shared = SHIPPED.shared.iter().map(|row| row.name.clone());
    let alone = SHIPPED.alone.iter();
    let alone = alone.map(|probe| probe["name"].as_str().expect("a name").to_owned());
    let probes = probes.as_array().expect("a list of probes");
    let told = probes
        .iter()
        .map(|probe| (probe["name"].as_str().expect("a name").to_owned(), probe));
    let told: BTreeMap<_, _> = told.map(|(name, probe)| (name, probe.clone())).collect();
    let names: BTreeSet<_> = shared.chain(alone).collect();
    assert_eq!(told.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert_eq!(probes.len(), names.len(), "each of them once");
    told
}

/// Those without this verdict, but for those whose control fails here.
fn without<'v>(verdict: &str, told: &'v BTreeMap<String, Value>) -> Vec<&'v Value> {
    let others = told.values().filter(|probe| {
        let has_control = probe["verdict"] != "notJudged";
        assert_eq!(
            has_control && probe["verdict"] != "notOffered",
            probe["control"] != json!([]),
            "{probe}"
        );
        has_control && probe["verdict"] != verdict
    });
    others.collect()
}

/// The exit code and the report. A judge that is bounded itself (`LONGEST_SECONDS`) is waited for.
fn judged(mut command: Command) -> (Option<i32>, Value) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|why| panic!("{why}: {output:?}"));
    (output.status.code(), report)
}

#[test]
fn what_ships_is_held_on_this_machine() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let mut command = playground.host();
        command.args(["doctor", "--attacks", "--json"]);
        let (code, report) = judged(command);
        let told = verdicts(&report["probes"]);
        let others = json!(without("held", &told));
        assert!(others == json!([]), "{who:?}: {others}");
        assert_eq!(code, Some(0), "{who:?}: {report}");
        let held = &report["held"];
        assert_eq!(held, &report["judged"], "{who:?}");
        // Device nodes are made by root.
        let unjudged = if who == Who::Root { 0 } else { 2 };
        assert!(
            held.as_u64() >= Some((told.len() - unjudged) as u64),
            "{who:?}: {report}"
        );
        // The same user's judge in another test has its own for a while.
        wait_for(&format!("{who:?}: its folders are gone"), || {
            let left = fs::read_dir("/var/tmp").unwrap().map(Result::unwrap);
            let mut left = left.filter(|entry| {
                let is_ours = entry.metadata().is_ok_and(|it| Some(it.uid()) == who.uid());
                is_ours && entry.file_name().to_string_lossy().contains("attacks")
            });
            left.next().is_none()
        });
    }
}

/// The control of the whole: the same judge, and no sandbox.
#[test]
fn without_a_sandbox_every_probe_escapes() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let mut command = playground.outside(PYTHON);
    command
        .arg(repository("scoreboard/run"))
        .args(["bare", "--json"]);
    let (_, report) = judged(command);
    let told = verdicts(&report[0]["verdicts"]);
    assert_eq!(without("escaped", &told), Vec::<&Value>::new());
    assert!(told.values().any(|probe| probe["verdict"] == "escaped"));
}

/// A host that confines nothing runs nothing, which proves nothing.
#[test]
fn a_host_that_cannot_confine_has_held_nothing() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let mut command = playground.outside("/usr/bin/unshare");
    let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    command.args(["-Ur", "/bin/sh", "-c", line, "sh"]);
    let mut command = playground.host_by(command);
    command.args(["doctor", "--attacks", "--json"]);
    let (code, report) = judged(command);
    assert_eq!(code, Some(4), "{report}");
    assert_eq!(report["held"], 0, "{report}");
    let told = verdicts(&report["probes"]);
    assert_eq!(without("notTried", &told), Vec::<&Value>::new());
    assert!(told.values().any(|probe| {
        let why = probe["why"].as_str().unwrap_or_default();
        why.contains("namespace")
    }));
}
