//! One table of policy cases, run on both engines, with one verdict.
//!
//! Each row is a manifest, a policy and a probe. A Python script (`probe.py`) and a WASI module
//! (`probe.c`, kept as text in `probe.wat`; for sockets, which preview 1 lacks, a component) try
//! the same thing behind the same layers; the outcome, the files outside and the record must be the
//! same. The word for "no" is the mechanism's own: a kernel and a WASI library number their errors
//! differently, so a row names both. Where an engine lacks the mechanism the row says in `wasi`
//! what it does instead, and docs/reference/MANIFEST.md says so too. The control is the same probe
//! where it may succeed. One server makes all calls of a table, so that each is decided beside the
//! others and after them.

use crate::prelude::*;
mod files;
mod limits;
mod network;
mod refusals;

use crate::http::Web;
use crate::network::World;

const ENGINES: &[(&str, &str)] = &[
    ("python", include_str!("probe.py")),
    #[cfg(feature = "wasi")]
    ("wasm", include_str!("probe.wat")),
];

pub struct Case {
    pub name: &'static str,
    pub layer: &'static str,
    pub promises: &'static str,
    /// What the manifest says besides its names: JSON, with `{base}` and `{file}`, the script's own
    /// name.
    manifest: &'static str,
    /// What the policy says besides its names; empty = the one that reads the tool's folder and
    /// writes its `out/`.
    policy: &'static str,
    /// What becomes of the folder before the call; `false` = this machine or user cannot.
    spoil: fn(&Playground, &Path) -> bool,
    /// Puts back what would stay behind.
    restore: fn(&Path),
    probe: &'static str,
    /// Bytes of padding in the input.
    padding: usize,
    held: Verdict,
    /// The verdict on the WASI engine where it lacks the mechanism.
    wasi: Option<Verdict>,
    /// What is new, changed or gone outside, below the tool's folder.
    changes: &'static [&'static str],
    artifacts: &'static str,
    /// What the outcome says was refused, of the script and of the module: `operation target: rule;
    /// narrower`. Of a script's files nobody keeps it unless that is asked for.
    denials: (&'static str, &'static str),
    control: Control,
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// It ran, and says this word.
    Says(&'static str),
    /// It ran and was refused the thing: the word of the script, of the module.
    Denied(&'static str, &'static str),
    /// It answers with so many characters.
    Text(usize),
    /// It ran, and this stands in its log.
    Logs(&'static str),
    /// It ended with an error: type, part of the message of the script, of the module.
    Ends(&'static str, &'static str, &'static str),
    /// It never started: type, part of what the person reads.
    Refused(&'static str, &'static str),
    /// Its manifest does not load, so there is no such tool; part of what `check` says of it.
    Unloaded(&'static str),
    /// It says this word where a cgroup counts, and is refused so where nothing does.
    WhereCounted(&'static str, &'static str, &'static str),
}

enum Control {
    /// The same probe under another manifest and policy.
    Granted {
        manifest: &'static str,
        policy: &'static str,
        ends: Verdict,
        changes: &'static [&'static str],
    },
    /// The same tool and probe, before its folder was spoilt.
    Unspoilt,
    /// The same tool without that ask or deed: it runs (one call for all these rows).
    Quiet,
    /// None, and why.
    None(&'static str),
}

/// Layers that root of a user namespace could pass in another way than an ordinary user.
const OF_MAPPED_ROOT: [&str; 6] = [
    "namespaces",
    "view",
    "landlock",
    "scratch",
    "identity",
    "seccomp",
];

const CASE: Case = Case {
    name: "",
    layer: "view",
    promises: "",
    manifest: "{}",
    policy: "",
    spoil: |_, _| true,
    restore: |_| (),
    probe: r#"{"do":"nothing"}"#,
    padding: 0,
    held: Verdict::Says("ok"),
    wasi: None,
    changes: &[],
    artifacts: "",
    denials: ("", ""),
    control: Control::Quiet,
};

pub fn cases() -> impl Iterator<Item = &'static Case> {
    in_folders().chain(network::NETWORK)
}

/// Those that need no world outside.
fn in_folders() -> impl Iterator<Item = &'static Case> {
    files::FILES
        .iter()
        .chain(limits::LIMITS)
        .chain(refusals::REFUSALS)
}

/// Who makes the calls of a table.
#[derive(Clone, Copy)]
enum Host<'a> {
    Server(&'a Web),
    /// A server in a world with hosts, at a socket of this name.
    World(&'a World, &'a str),
}

/// The outcome of a call, and what the call changed outside: files of its folder, or who came to
/// the hosts of the world.
struct Seen {
    outcome: Value,
    changes: Vec<String>,
}

impl Seen {
    fn error(&self) -> (&str, &str) {
        let error = &self.outcome["error"];
        (
            error["type"].as_str().unwrap_or("none"),
            error["message"].as_str().unwrap_or_default(),
        )
    }
}

/// One row on one engine: the tool that is held and, with grants of its own, the tool that is not.
struct Row<'a> {
    case: &'static Case,
    playground: &'a Playground,
    engine: usize,
    number: usize,
    /// Whether a cgroup counts here.
    counted: bool,
    /// What `toolhost check` says of the manifests that do not load.
    problems: String,
}

impl Row<'_> {
    fn tool(&self, role: &str) -> String {
        format!("c{}-{role}-{}", self.number, ENGINES[self.engine].0)
    }

    fn fill(&self, text: &str) -> String {
        let file = if self.engine == 0 {
            "main.py"
        } else {
            "main.wat"
        };
        // The guest's own /tmp is open to it: files of the host's /tmp are not found there.
        let outside = if self.playground.base.starts_with("/tmp") {
            "ENOENT"
        } else {
            "EPERM"
        };
        let text = text.replace("{base}", &self.playground.base.display().to_string());
        text.replace("{file}", file).replace("{outside}", outside)
    }

    fn own(&self, role: &str) -> PathBuf {
        self.playground
            .path(&format!("user_scripts/{}", self.tool(role)))
    }

    fn make(&self, role: &str, manifest: &str, policy: &str) {
        let (language, script) = ENGINES[self.engine];
        let manifest: Value = serde_json::from_str(&self.fill(manifest))
            .unwrap_or_else(|e| panic!("{manifest}: {e}"));
        let script = self.sockets().unwrap_or_else(|| script.to_owned());
        let own = self
            .playground
            .tool(&self.tool(role), language, &script, manifest);
        for (name, text) in [
            ("data/in.csv", "in\n"),
            ("data/other.txt", "other\n"),
            ("data/secret.txt", "not yet\n"),
            ("data/up/secret.txt", "not yet\n"),
            ("private.txt", "private\n"),
            ("out/kept.txt", "kept\n"),
            ("out/old.csv", "old\n"),
            ("out/deep/kept.txt", "kept\n"),
            ("deep/inner/in.txt", "in\n"),
        ] {
            fs::create_dir_all(own.join(name).parent().unwrap()).unwrap();
            fs::write(own.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("in.csv", own.join("data/near")).unwrap();
        if !policy.is_empty() {
            self.playground.policy(
                &self.tool(role),
                &format!("esc:{}", self.tool(role)),
                &self.fill(policy),
            );
        }
    }

    /// The module of a probe of sockets.
    fn sockets(&self) -> Option<String> {
        #[cfg(feature = "wasi")]
        if self.engine == 1 {
            return crate::harness::components::sockets(
                &serde_json::from_str(self.case.probe).unwrap(),
            );
        }
        None
    }

    fn prepare(&self) {
        self.make("held", self.case.manifest, self.case.policy);
        match self.case.control {
            Control::Granted {
                manifest, policy, ..
            } => self.make("free", manifest, policy),
            Control::Quiet | Control::Unspoilt | Control::None(_) => {}
        }
    }

    fn call(&self, host: Host, role: &str, probe: &str) -> Seen {
        let (own, tool) = (self.own(role), format!("esc:{}", self.tool(role)));
        let mut input: Value =
            serde_json::from_str(&self.fill(probe)).unwrap_or_else(|e| panic!("{probe}: {e}"));
        if self.case.padding > 0 {
            input["padding"] = Value::String("x".repeat(self.case.padding));
        }
        let web = match host {
            Host::Server(web) => web,
            Host::World(world, socket) => {
                let mut outcome = Value::Null;
                let mut changes = world.heard(|| outcome = self.call_at(socket, &tool, &input));
                changes.retain(|line| !line.starts_with("dns"));
                return Seen { outcome, changes };
            }
        };
        let before = self.playground.state_below(&own, &[]);
        let outcome = web.call(&tool, &input, &[]).json();
        let after = self.playground.state_below(&own, &[]);
        let paths: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
        let changed = paths
            .into_iter()
            .filter(|path| before.get(*path) != after.get(*path));
        let changes = changed
            .map(|path| {
                path.strip_prefix(&own)
                    .unwrap_or(path)
                    .display()
                    .to_string()
            })
            .collect();
        Seen { outcome, changes }
    }

    fn call_at(&self, socket: &str, tool: &str, input: &Value) -> Value {
        let mut curl = self.playground.outside("/usr/bin/curl");
        curl.args([
            "-gsS",
            "--unix-socket",
            socket,
            "-H",
            "Content-Type: application/json",
            "--data-binary",
            "@-",
        ]);
        curl.arg(format!("http://localhost/v1/tools/{tool}/calls"));
        let ended = finish(curl, input.to_string().as_bytes());
        assert!(ended.out.is_object(), "{ended:?}");
        ended.out
    }

    fn judged(&self, wanted: Verdict, changes: &[&str], seen: &Seen) -> Result<(), String> {
        if !self.fits(wanted, seen) {
            let about: String = seen.outcome.to_string().chars().take(900).collect();
            return Err(format!("wanted {wanted:?}, got {about}"));
        }
        if seen.changes != changes {
            return Err(format!(
                "wanted {changes:?} changed outside, found {:?}",
                seen.changes
            ));
        }
        Ok(())
    }

    fn fits(&self, wanted: Verdict, seen: &Seen) -> bool {
        let ((kind, message), outcome) = (seen.error(), &seen.outcome);
        let (ended_well, answer) = (outcome["success"] == true, &outcome["outputData"]);
        let more = |name: &str| outcome["error"][name].as_str().unwrap_or_default();
        let of = |script, module| if self.engine == 0 { script } else { module };
        match wanted {
            Verdict::Says(word) => ended_well && *answer == json!({"did": self.fill(word)}),
            Verdict::Denied(script, module) => self.fits(Verdict::Says(of(script, module)), seen),
            Verdict::Text(length) => {
                ended_well && answer.as_str().is_some_and(|text| text.len() == length)
            }
            Verdict::Logs(part) => {
                self.fits(Verdict::Says("ok"), seen) && outcome["logs"].to_string().contains(part)
            }
            Verdict::Ends(wanted, script, module) => {
                let part = of(script, module);
                kind == wanted
                    && answer.is_null()
                    && (message.contains(part) || more("details").contains(part))
            }
            Verdict::Refused(wanted, part) => {
                let record = self.playground.records().pop().unwrap_or_default();
                kind == wanted
                    && answer.is_null()
                    && (&record["call"], &record["decision"]) == (&outcome["id"], &json!("refused"))
                    && !message.contains(&self.playground.base.display().to_string())
                    && (message.contains(part) || more("person").contains(part))
            }
            Verdict::Unloaded(part) => {
                let refused = Verdict::Refused(
                    "ToolNotFoundError",
                    "is not loaded: its manifest has a fault",
                );
                let manifest = format!("{}:", self.manifest());
                let is_said = |line: &str| line.contains(&manifest) && line.contains(part);
                let lines = lines_of_check(&self.problems);
                self.fits(refused, seen) && lines.iter().any(|line| is_said(line))
            }
            Verdict::WhereCounted(word, kind, part) => self.fits(
                if self.counted {
                    Verdict::Says(word)
                } else {
                    Verdict::Refused(kind, part)
                },
                seen,
            ),
        }
    }

    fn manifest(&self) -> String {
        format!("{}.tool.json", self.tool("held"))
    }

    /// The denials that are wanted. What the host has below its /tmp is no file of anybody's in the
    /// module's own /tmp.
    fn denials(&self) -> String {
        let in_scratch = matches!(self.case.held, Verdict::Denied(_, "{outside}"));
        match self.engine {
            0 => self.fill(self.case.denials.0),
            _ if in_scratch && self.playground.base.starts_with("/tmp") => String::new(),
            _ => self.fill(self.case.denials.1),
        }
    }

    /// What a call did, and what is wrong with it. What hangs on the time of the host's looks (a
    /// timeout, a sample), and what the host says may be tried again, is judged again: the machine
    /// may have stood still.
    fn tried(
        &self,
        host: Host,
        role: &str,
        wanted: Verdict,
        changes: &[&str],
    ) -> (Seen, Result<(), String>) {
        let mut seen = self.call(host, role, self.case.probe);
        for _ in 0..5 {
            let is_sampled =
                !self.counted && matches!(wanted, Verdict::Ends("ResourceLimitError", ..));
            let may_be_late = is_sampled
                || seen.error().0 == "TimeoutError"
                || seen.outcome["error"]["retryable"] == true;
            if !may_be_late || self.judged(wanted, changes, &seen).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
            seen = self.call(host, role, self.case.probe);
        }
        let judged = self.judged(wanted, changes, &seen);
        (seen, judged)
    }

    /// Control and case; what went wrong.
    fn run(&self, host: Host) -> Vec<String> {
        let case = self.case;
        let mut wrong = Vec::new();
        let mut note = |what: &str, result: Result<(), String>| {
            if let Err(why) = result {
                wrong.push(format!(
                    "{} ({}; {}): {what}{why}",
                    case.name, ENGINES[self.engine].0, case.promises
                ));
            }
        };
        let ok = Verdict::Says("ok");
        match case.control {
            Control::Granted { ends, changes, .. } => {
                note("control: ", self.tried(host, "free", ends, changes).1);
            }
            Control::Unspoilt => note("control: ", self.tried(host, "held", ok, &[]).1),
            Control::Quiet => {}
            Control::None(why) => assert!(!why.is_empty()),
        }
        if (case.spoil)(self.playground, &self.own("held")) {
            let wanted = if self.engine == 1 {
                case.wasi.unwrap_or(case.held)
            } else {
                case.held
            };
            let (seen, judged) = self.tried(host, "held", wanted, case.changes);
            note("", judged);
            let published = artifacts(&seen.outcome["artifacts"]);
            if published != case.artifacts {
                note(
                    "",
                    Err(format!(
                        "artifacts: wanted {:?}, got {published:?}",
                        case.artifacts
                    )),
                );
            }
            let (wanted, refused) = (self.denials(), denials(&seen.outcome));
            if refused != wanted {
                note(
                    "",
                    Err(format!("denials: wanted {wanted:?}, got {refused:?}")),
                );
            }
        } else {
            skipped(1, case.name);
        }
        (case.restore)(&self.own("held"));
        wrong
    }
}

/// `path published`, `path dropped`.
fn artifacts(list: &Value) -> String {
    let word = |artifact: &Value| {
        if artifact["published"] == true {
            "published"
        } else {
            "dropped"
        }
    };
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    // What a call leaves in its scratch is told of scripts alone.
    let in_scratch = |a: &&Value| a["path"].as_str().is_some_and(|it| it.starts_with("/tmp/"));
    all.iter()
        .filter(|a| !in_scratch(a))
        .map(|a| format!("{} {}", a["path"].as_str().unwrap_or("?"), word(a)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// What was refused. A limit that ended the call is left out: the verdict names it.
fn denials(outcome: &Value) -> String {
    let all = outcome["denials"]["observed"]
        .as_array()
        .into_iter()
        .flatten();
    let all = all.filter(|denial| denial["operation"] != "limit");
    let text = |denial: &Value| {
        let [operation, target, rule, narrower] = ["operation", "target", "rule", "narrower"]
            .map(|name| denial[name].as_str().unwrap_or("?").to_owned());
        format!("{operation} {target}: {rule}; {narrower}")
    };
    all.map(text).collect::<Vec<_>>().join(", ")
}

fn both_engines(who: Who, below: &str) {
    if !who.possible() {
        return skipped(
            in_folders().count() * 2,
            "the table as root or mapped root needs root",
        );
    }
    let cases: Vec<_> = in_folders()
        .filter(|case| who != Who::MappedRoot || OF_MAPPED_ROOT.contains(&case.layer))
        .collect();
    let wrong: Vec<String> = (0..ENGINES.len())
        .flat_map(|engine| one_playground(who, below, engine, &cases))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} rows, as {}:\n{}",
        wrong.len(),
        who.name(),
        wrong.join("\n")
    );
}

/// What went wrong in the rows on one engine.
fn one_playground(who: Who, below: &str, engine: usize, cases: &[&'static Case]) -> Vec<String> {
    let mut playground = Playground::new(who, below);
    playground.allow("engines", "esc:*", &["./**"], &["./out/**"]);
    let row = |case, number| Row {
        case,
        playground: &playground,
        engine,
        number,
        counted: false,
        problems: String::new(),
    };
    let quiet = row(&CASE, 0);
    quiet.make("quiet", "{}", "");
    let mut rows: Vec<_> = cases
        .iter()
        .copied()
        .zip(1..)
        .map(|(case, number)| row(case, number))
        .collect();
    rows.iter().for_each(Row::prepare);
    playground.settle();
    let web = Web::start(&playground, &[]);
    let host = Host::Server(&web);
    let (seen, control) = quiet.tried(host, "quiet", Verdict::Says("ok"), &[]);
    let mut wrong: Vec<String> = control
        .err()
        .map(|why| format!("control of {}: {why}", ENGINES[engine].0))
        .into_iter()
        .collect();
    let mut layers = seen.outcome["layers"].as_array().into_iter().flatten();
    let counted = layers.any(|layer| layer["name"] == "cgroup" && layer["state"] == "cgroup");
    let unloaded = rows
        .iter()
        .filter(|row| matches!(row.case.held, Verdict::Unloaded(_)));
    let manifests: Vec<_> = unloaded
        .map(|row| row.own("held").join(row.manifest()).display().to_string())
        .collect();
    let check: Vec<&str> = ["check"]
        .into_iter()
        .chain(manifests.iter().map(String::as_str))
        .collect();
    let problems = if manifests.is_empty() {
        String::new()
    } else {
        playground.cli(&check).text()
    };
    for row in &mut rows {
        (row.counted, row.problems) = (counted, problems.clone());
    }
    let tools = playground.path("user_scripts");
    let before = playground.state(&[&tools]);
    wrong.extend(rows.iter().flat_map(|row| row.run(host)));
    drop(web);
    // Spoiling a folder may make one in the secret's folder; the files there stay as they were.
    let files = |state: BTreeMap<PathBuf, String>| -> Vec<_> {
        state
            .into_iter()
            .filter(|(path, _)| path.is_file() && !path.starts_with(playground.path("secret")))
            .collect()
    };
    if files(before) != files(playground.state(&[&tools])) {
        wrong.push("a call changed a file of the playground".into());
    }
    let secret = fs::read_to_string(playground.path("secret/secret.txt")).unwrap();
    if secret != playground.secret {
        wrong.push("the secret was changed".into());
    }
    if !playground.canary_lives() {
        wrong.push("a process of the host was killed".into());
    }
    playground.assert_quiet("the table");
    wrong
}

#[test]
fn one_verdict_on_both_engines_as_root() {
    both_engines(Who::Root, "/var/tmp");
}

#[test]
fn one_verdict_on_both_engines_as_an_ordinary_user() {
    both_engines(Who::User, "/tmp");
}

#[test]
fn one_verdict_on_both_engines_as_root_of_a_user_namespace() {
    if !is_root() {
        return skipped(
            in_folders().count() * 2,
            "mapped root needs root to become an ordinary user first",
        );
    }
    both_engines(Who::MappedRoot, "/var/tmp");
}
