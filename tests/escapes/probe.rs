//! Runs rows of probes: all of one tool in one call, and all controls in one process outside.

use crate::prelude::*;
use serde::Deserialize;
use std::sync::LazyLock;

/// All probes of `probes.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probes {
    pub files: Vec<Row>,
    pub node: Vec<Row>,
    pub kernel: Vec<Row>,
    pub tests: Vec<Attack>,
}

/// The probes that ship with the binary (`toolhost doctor --attacks`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shipped {
    /// What the file says of itself.
    #[serde(rename = "about")]
    _about: Vec<String>,
    pub shared: Vec<Row>,
    /// Those that are tried there only.
    pub alone: Vec<Value>,
}

pub static SHIPPED: LazyLock<Shipped> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../scoreboard/probes.json"))
        .unwrap_or_else(|e| panic!("probes.json: {e}"))
});

/// The attack of a separate test: the layer that it attacks, and the promises.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    pub name: String,
    pub layer: String,
    pub promises: String,
}

pub static PROBES: LazyLock<Probes> = LazyLock::new(|| {
    toml::from_str(include_str!("probes.toml")).unwrap_or_else(|e| panic!("probes.toml: {e}"))
});

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    pub layer: String,
    pub promises: String,
    does: String,
    with: Vec<Value>,
    inside: Inside,
    pub outside: Outside,
}

/// One word, or any of several.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum Wanted {
    Word(String),
    AnyOf(Vec<String>),
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Inside {
    Always(Wanted),
    Counted { cgroup: Wanted, sampled: Wanted },
    Placed { tmp: Wanted, elsewhere: Wanted },
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum Outside {
    Everybody(Wanted),
    Root { root: Wanted },
    Boxed { boxed: Wanted },
    Nowhere { nowhere: String },
}

impl Wanted {
    pub fn all(&self) -> &[String] {
        match self {
            Wanted::Word(word) => std::slice::from_ref(word),
            Wanted::AnyOf(all) => all,
        }
    }

    /// The expected words, unless `got` is one of them.
    fn missed(&self, words: &Words, got: &str) -> Option<String> {
        let all: Vec<String> = self.all().iter().map(|word| words.fill(word)).collect();
        (!all.iter().any(|word| word == got)).then(|| all.join(" or "))
    }
}

impl Row {
    /// Whether it succeeds without layers, for everybody.
    pub fn succeeds(&self) -> bool {
        matches!(&self.outside, Outside::Everybody(Wanted::Word(word)) if word == "ok")
    }
}

/// Values of the placeholders, inside a call or outside.
struct Words(Vec<(String, String)>);

impl Words {
    fn of(playground: &Playground, own: &str) -> Words {
        let base = playground.base.display().to_string();
        let (tcp, udp) = playground.listeners.ports();
        // Where the playground lies below /tmp, its first folder is shown inside scratch.
        let top = playground
            .base
            .strip_prefix("/tmp")
            .ok()
            .and_then(|below| below.iter().next());
        let words = [
            ("{tmpfile}", format!("{base}-tmp")),
            ("{own}", format!("{base}/user_scripts/{own}")),
            ("{tcp}", tcp.to_string()),
            ("{udp}", udp.to_string()),
            ("{abstract}", playground.listeners.abstract_name.clone()),
            ("{canary}", playground.canary.id().to_string()),
            ("{secret}", playground.secret.clone()),
            ("{secret-part}", format!("SECRET={}", playground.secret)),
            ("{pid}", playground.mark()),
            (
                "{hostname}",
                fs::read_to_string("/proc/sys/kernel/hostname")
                    .unwrap()
                    .trim()
                    .to_owned(),
            ),
            (
                "{tmptop}",
                top.map_or("-".into(), |top| top.to_string_lossy().into_owned()),
            ),
            ("{binary}", binary().display().to_string()),
            ("{base}", base),
        ];
        let mut words: Vec<_> = words
            .into_iter()
            .map(|(word, value)| (word.to_owned(), value))
            .collect();
        for kind in ["pid", "mnt", "user", "net", "ipc", "uts", "cgroup"] {
            let link = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            words.push((format!("{{ns-{kind}}}"), link.display().to_string()));
        }
        Words(words)
    }

    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (word, value)| {
            text.replace(word, value)
        })
    }
}

fn asked<'r>(rows: impl IntoIterator<Item = &'r Row>, words: &Words) -> String {
    let filled = |argument: &Value| match argument.as_str() {
        Some(number @ ("{tcp}" | "{udp}" | "{canary}")) => {
            words.fill(number).parse::<u64>().unwrap().into()
        }
        Some(text) => Value::String(words.fill(text)),
        None => argument.clone(),
    };
    let probes: Vec<Value> = rows
        .into_iter()
        .map(|row| json!({"name": row.name, "do": row.does, "args": row.with.iter().map(filled).collect::<Vec<_>>()}))
        .collect();
    json!({"probes": probes}).to_string()
}

/// Runs all rows in one call of `tool`; returns a line for each unexpected result.
pub fn inside(playground: &Playground, tool: &str, rows: &[Row]) -> Vec<String> {
    let words = Words::of(playground, tool);
    let ended = playground.call(&format!("esc:{tool}"), &asked(rows, &words));
    if ended.out["success"] != true {
        return vec![format!(
            "{tool}: no answer: {} {}\n{}",
            ended.out["error"], ended.out["logs"], ended.stderr
        )];
    }
    let (counted, below_tmp) = (
        ended.counted() == "cgroup",
        playground.base.starts_with("/tmp"),
    );
    let mut wrong = Vec::new();
    for row in rows {
        let wanted = match &row.inside {
            Inside::Always(wanted) => wanted,
            Inside::Counted { cgroup: wanted, .. } if counted => wanted,
            Inside::Counted {
                sampled: wanted, ..
            } => wanted,
            Inside::Placed { tmp: wanted, .. } if below_tmp => wanted,
            Inside::Placed {
                elsewhere: wanted, ..
            } => wanted,
        };
        let got = ended.out["outputData"][&row.name]
            .as_str()
            .unwrap_or("no answer");
        if let Some(wanted) = wanted.missed(&words, got) {
            let (name, layer, promises) = (&row.name, &row.layer, &row.promises);
            wrong.push(format!(
                "{tool}: {name} ({layer}; {promises}): wanted {wanted}, got {got}"
            ));
        }
    }
    wrong
}

/// Runs the controls: the same script and interpreter, no layers, on a copy of the playground.
pub fn outside(playground: &Playground, tool: &str, script: &str, rows: &[Row]) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<(&Row, &Wanted)>> = BTreeMap::new();
    for row in rows {
        let (kind, wanted) = match &row.outside {
            Outside::Everybody(wanted) => ("plain", wanted),
            Outside::Root { root } if playground.who == Who::Root => ("root", root),
            Outside::Boxed { boxed } => ("box", boxed),
            Outside::Root { .. } => continue,
            Outside::Nowhere { nowhere } => {
                assert!(!nowhere.is_empty(), "{}: it says why", row.name);
                continue;
            }
        };
        groups.entry(kind).or_default().push((row, wanted));
    }
    let words = Words::of(playground, tool);
    let mut wrong = Vec::new();
    for (kind, rows) in groups {
        let Some(command) = unlayered(
            playground,
            kind,
            &playground.path(&format!("user_scripts/{tool}/{script}")),
        ) else {
            missing(rows.len(), "unshare(1) that makes all namespaces");
            continue;
        };
        let ended = finish(
            command,
            asked(rows.iter().map(|(row, _)| *row), &words).as_bytes(),
        );
        if ended.out.is_null() {
            wrong.push(format!("controls ({kind}): no answer: {}", ended.stderr));
        }
        for (row, wanted) in rows {
            let got = ended.out[&row.name].as_str().unwrap_or("no answer");
            if let Some(wanted) = wanted.missed(&words, got) {
                let name = &row.name;
                wrong.push(format!(
                    "control of {name} ({kind}): wanted {wanted}, got {got}: the \
                    probe proves nothing"
                ));
            }
        }
    }
    wrong
}

/// The interpreter on the script, with the same environment and leaked descriptors as the host has.
fn unlayered(playground: &Playground, kind: &str, script: &Path) -> Option<Command> {
    let interpreter = match script.extension().is_some_and(|e| e == "py") {
        true => PYTHON.to_owned(),
        false => found("node")?.display().to_string(),
    };
    let leak = "import \
        os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nos.dup2(fd,7)\nos.dup2(fd,200)\nos.execv(sys.argv[2],sys.argv[2:])\n";
    let mut command = playground.outside(PYTHON);
    command.current_dir(script.parent()?);
    command
        .args(["-I", "-S", "-c", leak])
        .arg(playground.path("secret/secret.txt"));
    if kind == "box" {
        let unshare = found("unshare")?.display().to_string();
        let works = playground
            .outside(&unshare)
            .args(["-Urmpif", "--mount-proc", "true"])
            .output()
            .ok()?;
        if !works.status.success() {
            return None;
        }
        command.args([unshare.as_str(), "-Urmpif", "--mount-proc"]);
    }
    command.arg(interpreter).arg(script);
    Some(command)
}
