//! Escapes as data, judged from outside, each with a control in which the same probe succeeds.
//!
//! Probes that can share one confinement share one call (`probes.toml`, and `scoreboard/probes.json`,
//! which ships); what ends a call, or needs one of its own, stands in `calls.toml`; what both engines
//! must refuse alike, in `tests/engines`.
//! When root, everything runs again as an ordinary user and as root of a user namespace, from a
//! world-readable copy.

use crate::prelude::*;
mod attacks;
mod calls;
mod held;
mod init;
mod judged;
mod looks;
mod places;
mod probe;
mod sampled;
mod staggered;
#[cfg(feature = "wasi")]
mod warm;
mod written;

use probe::{PROBES, Row, SHIPPED};

/// As `fits`, but of an error the message alone counts: a script can write into its details and
/// standard error.
fn ends(wanted: &str, ended: &Ended) -> Result<(), String> {
    let part = wanted.split_once(": ").map_or("", |(_, part)| part);
    if !wanted.starts_with("ok") && !ended.error().1.contains(part) {
        return Err(format!("wanted {wanted}, got {:?}", ended.error()));
    }
    fits(wanted, ended)
}

const PROBES_PY: &str = include_str!("../../scoreboard/probes.py");
const PROBES_JS: &str = include_str!("probes.js");
/// Layers that are set up otherwise for root of a user namespace.
pub const AGAIN: [&str; 3] = ["identity", "view", "seccomp"];
const PROMISES: [&str; 22] = [
    "P1", "P2", "P3", "P4", "P5", "P6", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P16",
    "P17", "P18", "P23", "P24", "P29", "P30", "P7", "P8",
];

fn every_row() -> impl Iterator<Item = &'static Row> {
    PROBES
        .files
        .iter()
        .chain(&PROBES.node)
        .chain(&PROBES.kernel)
        .chain(&SHIPPED.shared)
}

/// The name, the layer and the promises of everything that is tried.
fn everything() -> Vec<[&'static str; 3]> {
    let rows = every_row().map(|row| [&*row.name, &row.layer, &row.promises]);
    let calls = calls::CALLS
        .iter()
        .map(|call| [&*call.name, &call.layer, &call.promises]);
    let cases = crate::engines::cases().map(|case| [case.name, case.layer, case.promises]);
    let tests = PROBES
        .tests
        .iter()
        .map(|test| [&*test.name, &test.layer, &test.promises]);
    let alone = SHIPPED.alone.iter().map(|probe| {
        ["name", "layer", "promises"].map(|part| probe[part].as_str().expect("a text"))
    });
    rows.chain(calls)
        .chain(cases)
        .chain(tests)
        .chain(alone)
        .collect()
}

#[test]
fn every_layer_and_every_promise_is_attacked_by_a_case_of_its_own_name() {
    let all = everything();
    let layers = toolhost::sandbox::LAYERS.map(|row| row.layer.name());
    for layer in layers {
        assert!(
            all.iter().any(|case| case[1] == layer),
            "nothing attacks the layer {layer}"
        );
    }
    // P7 and P8 speak of named hosts, which no tool of this version can have: asking makes it
    // unavailable.
    for promise in PROMISES {
        assert!(
            all.iter()
                .any(|case| case[2].split(' ').any(|p| p == promise)),
            "nothing tries {promise}"
        );
    }
    let names: BTreeSet<_> = all.iter().map(|case| case[0]).collect();
    assert_eq!(names.len(), all.len(), "two cases of one name");
    for [name, layer, _] in all {
        assert!(layers.contains(&layer), "{name}: no such layer as {layer}");
    }
}

/// One playground with both tools of the probes. `recorded`: what they are refused is kept.
fn world(who: Who, below: &str, recorded: bool) -> Playground {
    let playground = Playground::new(who, below);
    let base = playground.base.display().to_string();
    for (name, language, script) in [
        ("files", "python", PROBES_PY),
        ("nodes", "nodejs", PROBES_JS),
    ] {
        let asks = json!({"securityContext": {"fileAccess": {
            "allowRead": ["./**", format!("{base}/granted/ro/**")], "allowWrite": ["out/**"]}}});
        let folder = playground.tool(name, language, script, asks);
        fs::create_dir_all(folder.join("out/empty")).unwrap();
        for file in [
            "out/kept.txt",
            "out/replacer.txt",
            "out/moved.txt",
            "doomed.py",
            "swapped.py",
        ] {
            fs::write(folder.join(file), "kept\n").unwrap();
        }
    }
    playground.tool(
        "kernel",
        "python",
        PROBES_PY,
        json!({"securityContext": {"fileAccess": {"allowRead": ["self"]}}}),
    );
    let rest = format!(
        "observe = {recorded}\n[files]\nread = [{{ path = \"./**\", why = \"a test\" }}, {{ path = \
         \"{base}/granted/ro/**\", why = \"a test\" }}]\nwrite = [{{ path = \"./out/**\", why = \
         \"a test\" }}]\n[limits]\ntimeout_ms = 110_000\n"
    );
    playground.policy("escapes", "esc:*", &rest);
    fs::write(format!("{base}-tmp"), "host\n").unwrap();
    fs::write(playground.path("state/audit.jsonl"), "").unwrap();
    playground.settle();
    playground
}

/// What lies beside the playground goes with it.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// All rows of one tool, and every judgement from outside.
fn attack(playground: &mut Playground, tool: &str, rows: &[Row]) -> Vec<String> {
    let own = playground.path(&format!("user_scripts/{tool}"));
    let out = own.join("out");
    let writable: Vec<&Path> = vec![&out];
    let before = playground.state(&writable);
    playground.listeners.heard();
    let mut wrong = probe::inside(playground, tool, rows);
    let after = playground.state(&writable);
    for (path, was) in &before {
        if after.get(path) != Some(was) {
            wrong.push(format!("{tool}: changed from inside: {}", path.display()));
        }
    }
    if after.len() != before.len() {
        wrong.push(format!(
            "{tool}: a file came or went outside of the write grant"
        ));
    }
    let heard = playground.listeners.heard();
    if heard > 0 {
        wrong.push(format!("{tool}: {heard} knocks at listeners of the host"));
    }
    if !playground.canary_lives() {
        wrong.push(format!("{tool}: a process of the host was killed"));
    }
    for leak in ["/tmp", "/dev/shm"] {
        let name = format!("{leak}/toolhost-scratch-{}", playground.mark());
        if Path::new(&name).exists() {
            wrong.push(format!("{tool}: {name} reached the host"));
        }
    }
    if out.exists() {
        wrong.extend(
            playground
                .strange_files(&out)
                .into_iter()
                .map(|file| format!("{tool}: made in a write grant: {file}")),
        );
    }
    playground.assert_quiet(tool);
    wrong
}

/// A call by another program that executes the host.
fn called_by(playground: &Playground, program: Command, tool: &str, input: &str) -> Ended {
    let mut command = playground.host_by(program);
    command.args(["call", tool, "--json", "--input", input]);
    finish(command, b"")
}

/// The script of a tool as outside, without layers.
fn unlayered(playground: &Playground, tool: &str, input: &str) -> Ended {
    let mut command = playground.outside(PYTHON);
    command
        .args(["-s", "-E", "-B"])
        .arg(playground.path(&format!("user_scripts/{tool}/main.py")));
    finish(command, input.as_bytes())
}

/// What the tool with grants tries: what ships, and the rest.
fn file_rows() -> Vec<Row> {
    let all = PROBES.files.iter().chain(&SHIPPED.shared);
    all.cloned().collect()
}

/// As mapped root only what such a host does otherwise is tried again.
fn rows(who: Who, rows: &[Row]) -> Vec<Row> {
    let again = |row: &&Row| who != Who::MappedRoot || AGAIN.contains(&row.layer.as_str());
    rows.iter().filter(again).cloned().collect()
}

fn probes(who: Who, below: &str, recorded: bool) {
    if !who.possible() {
        return skipped(every_row().count(), "the suite as root needs root");
    }
    let mut playground = world(who, below, recorded);
    let _beside = Beside(PathBuf::from(format!("{}-tmp", playground.base.display())));
    let mut wrong = attack(&mut playground, "files", &rows(who, &file_rows()));
    wrong.extend(attack(
        &mut playground,
        "kernel",
        &rows(who, &PROBES.kernel),
    ));
    match found("node") {
        Some(_) => wrong.extend(attack(&mut playground, "nodes", &rows(who, &PROBES.node))),
        None => missing(PROBES.node.len(), "node"),
    }
    assert!(
        wrong.is_empty(),
        "{} of the probes, as {}:\n{}",
        wrong.len(),
        who.name(),
        wrong.join("\n")
    );
}

/// The same probes without layers must see and do what inside they could not.
fn controls(who: Who) {
    if !who.possible() {
        return skipped(every_row().count(), "controls as root need root");
    }
    let mut wrong = Vec::new();
    for (tool, script, rows) in [
        ("files", "main.py", &file_rows()),
        ("kernel", "main.py", &PROBES.kernel),
        ("nodes", "main.js", &PROBES.node),
    ] {
        if script == "main.js" && found("node").is_none() {
            missing(rows.len(), "node");
            continue;
        }
        // Each gets a new playground: without layers the probes spoil it.
        let playground = world(who, "/var/tmp", false);
        let _beside = Beside(PathBuf::from(format!("{}-tmp", playground.base.display())));
        let writable = playground.path(&format!("user_scripts/{tool}/out"));
        let before = playground.state(&[&writable]);
        wrong.extend(probe::outside(&playground, tool, script, rows));
        // The judges see what the probes did.
        let knocks = rows
            .iter()
            .any(|row| row.layer == "network" && row.succeeds());
        if knocks && playground.listeners.heard() == 0 {
            wrong.push(format!("{tool}: the listeners hear nothing"));
        }
        let changes = rows
            .iter()
            .any(|row| row.promises.contains("P4") && row.succeeds());
        if changes && playground.state(&[&writable]) == before {
            wrong.push(format!("{tool}: the changes are not seen"));
        }
    }
    for name in ["true", "scratch", "link"] {
        for folder in ["/tmp", "/dev/shm"] {
            let _ = fs::remove_file(format!(
                "{folder}/toolhost-{name}-{}-{}",
                std::process::id(),
                who.name()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} controls, as {}:\n{}",
        wrong.len(),
        who.name(),
        wrong.join("\n")
    );
}

#[test]
fn probes_as_root() {
    probes(Who::Root, "/var/tmp", false);
}

#[test]
fn probes_as_an_ordinary_user() {
    probes(Who::User, "/tmp", false);
}

/// A recorder that answers refused calls, and lets the others go on to the layers, opens nothing.
#[test]
fn probes_of_recorded_calls_as_root() {
    probes(Who::Root, "/var/tmp", true);
}

#[test]
fn probes_of_recorded_calls_as_an_ordinary_user() {
    probes(Who::User, "/var/tmp", true);
}

#[test]
fn probes_as_root_of_a_user_namespace() {
    if !is_root() {
        return skipped(
            every_row().count(),
            "the suite as mapped root needs root to become an ordinary user first",
        );
    }
    probes(Who::MappedRoot, "/var/tmp", false);
}

#[test]
fn controls_as_root() {
    controls(Who::Root);
}

#[test]
fn controls_as_an_ordinary_user() {
    controls(Who::User);
}
