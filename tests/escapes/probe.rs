//! Runs rows of probes: all of one tool in one call, and all controls in one process outside.

use super::playground::{Ended, PYTHON, Playground, SEARCH_PATH, Who, finish, missing};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// (name, wall, promises, probe, arguments, inside, control)
///
/// Inside: the word that is expected, `a|b` where either will do, `@cgroup=x @sampled=y` where it depends on
/// how limits are counted, `@tmp=x @elsewhere=y` on whether the tool lies below /tmp. Control: the same outside, where
/// the thing must be possible: `word` for everybody, `root word` where only root can, `box word` in namespaces of its
/// own (`unshare -Urmpif`), `none why` where there is nothing to be seen outside.
pub type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

/// What probes speak of, in one world: inside a call or outside.
pub struct Words(Vec<(&'static str, String)>);

impl Words {
    pub fn of(playground: &Playground, own: &str) -> Words {
        let base = playground.base.display().to_string();
        let own = format!("{base}/user_scripts/{own}");
        let (tcp, udp) = playground.listeners.ports();
        let mut words = vec![
            ("{tmpfile}", format!("{base}-tmp")),
            ("{own}", own),
            ("{tcp}", tcp.to_string()),
            ("{udp}", udp.to_string()),
            ("{abstract}", playground.listeners.abstract_name.clone()),
            ("{canary}", playground.canary.id().to_string()),
            ("{secret}", playground.secret.clone()),
            ("{secret-part}", format!("SECRET={}", playground.secret)),
            ("{pid}", playground.mark()),
            ("{hostname}", fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()),
            // Where the playground lies below /tmp, its first folder is shown inside scratch.
            (
                "{tmptop}",
                playground.base.strip_prefix("/tmp").map_or_else(
                    |_| "-".to_owned(),
                    |below| {
                        below
                            .components()
                            .next()
                            .map_or_else(String::new, |c| c.as_os_str().to_string_lossy().into_owned())
                    },
                ),
            ),
        ];
        for (word, kind) in [
            ("{ns-pid}", "pid"),
            ("{ns-mnt}", "mnt"),
            ("{ns-user}", "user"),
            ("{ns-net}", "net"),
            ("{ns-ipc}", "ipc"),
            ("{ns-uts}", "uts"),
            ("{ns-cgroup}", "cgroup"),
        ] {
            words.push((word, fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string()));
        }
        words.push(("{base}", base));
        Words(words)
    }

    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
    }
}

fn asked(rows: &[&Row], words: &Words) -> String {
    let probes: Vec<Value> = rows
        .iter()
        .map(|(name, _, _, act, arguments, _, _)| {
            let arguments: Value =
                serde_json::from_str(&words.fill(arguments)).unwrap_or_else(|e| panic!("{name}: {e}"));
            json!({"name": name, "do": act, "args": arguments})
        })
        .collect();
    json!({"probes": probes}).to_string()
}

/// Fits `got` one of the words of `wanted`?
fn fits(wanted: &str, facts: &[&str], got: &str) -> bool {
    let holds = |part: &&str| facts.iter().any(|fact| part.starts_with(&format!("@{fact}=")));
    let chosen = wanted.split(' ').find(holds).and_then(|part| Some(part.split_once('=')?.1)).unwrap_or(wanted);
    chosen.split('|').any(|word| word == got)
}

/// Runs all rows in one call of `tool`; every row that did not end as it says is told.
pub fn inside(playground: &Playground, tool: &str, rows: &[Row]) -> (Ended, Vec<String>) {
    let words = Words::of(playground, tool);
    let every: Vec<&Row> = rows.iter().collect();
    let ended = playground.call(&format!("esc:{tool}"), &asked(&every, &words), &[]);
    if ended.out["success"] != true {
        let told = format!("{tool}: no answer: {} {}\n{}", ended.out["error"], ended.out["logs"], ended.stderr);
        return (ended, vec![told]);
    }
    let place = if playground.base.starts_with("/tmp") { "tmp" } else { "elsewhere" };
    let facts = [ended.counted().to_owned(), place.to_owned()];
    let facts = facts.each_ref().map(String::as_str);
    let mut wrong = Vec::new();
    for (name, wall, promises, _, _, wanted, _) in rows {
        let got = ended.out["outputData"][name].as_str().unwrap_or("no answer");
        let wanted = words.fill(wanted);
        if !fits(&wanted, &facts, got) {
            wrong.push(format!("{tool}: {name} ({wall}; {promises}): wanted {wanted}, got {got}"));
        }
    }
    (ended, wrong)
}

/// Runs the controls: the same script and interpreter, no walls, on a copy of the playground.
pub fn outside(playground: &Playground, tool: &str, script: &str, rows: &[Row]) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<(&Row, &str)>> = BTreeMap::new();
    for row in rows {
        let (kind, wanted) = row
            .6
            .split_once(' ')
            .filter(|(kind, _)| ["root", "box", "none"].contains(kind))
            .unwrap_or(("plain", row.6));
        groups.entry(kind).or_default().push((row, wanted));
    }
    groups.remove("none");
    if playground.who != Who::Root {
        groups.remove("root");
    }
    let words = Words::of(playground, tool);
    let mut wrong = Vec::new();
    for (kind, rows) in groups {
        let every: Vec<&Row> = rows.iter().map(|(row, _)| *row).collect();
        let Some(command) = unwalled(playground, kind, &playground.path(&format!("user_scripts/{tool}/{script}")))
        else {
            missing(every.len(), "unshare(1) that makes all namespaces");
            continue;
        };
        let ended = finish(command, asked(&every, &words).as_bytes());
        let out: Value = serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null);
        if out.is_null() {
            wrong.push(format!("controls ({kind}): no answer: {}", ended.stderr));
        }
        for (row, wanted) in rows {
            let got = out[row.0].as_str().unwrap_or("no answer");
            let wanted = words.fill(wanted);
            if !fits(&wanted, &[], got) {
                wrong.push(format!(
                    "control of {} ({kind}): wanted {wanted}, got {got}: the probe proves nothing",
                    row.0
                ));
            }
        }
    }
    wrong
}

/// The interpreter on the script, with the same environment and leaked descriptors as the host has.
fn unwalled(playground: &Playground, kind: &str, script: &Path) -> Option<Command> {
    let interpreter = match script.extension().is_some_and(|e| e == "py") {
        true => PYTHON.to_owned(),
        false => found("node")?,
    };
    let leak = "import os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nos.dup2(fd,7)\nos.dup2(fd,200)\nos.execv(sys.argv[2],sys.argv[2:])\n";
    let mut command = playground.outside(PYTHON);
    command.current_dir(script.parent()?);
    command.args(["-I", "-S", "-c", leak]).arg(playground.path("secret/secret.txt"));
    if kind == "box" {
        let unshare = found("unshare")?;
        let works = playground.outside(&unshare).args(["-Urmpif", "--mount-proc", "true"]).output().ok()?;
        if !works.status.success() {
            return None;
        }
        command.args([unshare.as_str(), "-Urmpif", "--mount-proc"]);
    }
    command.arg(interpreter).arg(script);
    Some(command)
}

/// A program of this machine, below the folders both sides use.
pub fn found(program: &str) -> Option<String> {
    SEARCH_PATH.split(':').map(|folder| format!("{folder}/{program}")).find(|path| Path::new(path).exists())
}
