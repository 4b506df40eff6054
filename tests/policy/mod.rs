//! Policies: what is asked ∩ what is allowed, by table and by property; files; reports.

use crate::prelude::*;
pub mod calls;
mod files;
mod grants;
mod hosts;
mod packages;
mod properties;
mod reports;
mod secret_reports;
mod secrets;

use toolhost::fault::Kind;
use toolhost::manifest::{
    Handler, Language, Manifest, Pattern, PatternShape, ScriptReference, StderrRule, ToolPaths,
};
use toolhost::policy::diff::Powers;
use toolhost::policy::{
    self, Access, Decision, Machine, Opening, Policies, Policy, Program, RunTarget, Runtime, Shape,
};
use toolhost::quantity::Limit;

/// The text of a report, as `audit --all` prints it.
fn report(decision: &Decision) -> String {
    toolhost::cli::audit::one(decision, &tool("demo:one"), false)
}

/// The head of a policy of this tool.
const HEAD: &str = "name = \"p\"\nwhy = \"w\"\ntools = [\"demo:one\"]\n";

fn tool(id: &str) -> Manifest {
    let script =
        json!({"type": "external-script", "scriptPath": "demo/run.py", "language": "python"});
    Manifest {
        raw: Value::Null,
        digest: String::new(),
        ..made_of(id, script, json!({}))
    }
}

/// A tool that requires these capabilities.
fn requiring(words: &[&str]) -> Manifest {
    let mut tool = tool("demo:one");
    tool.requested.capabilities = words.iter().map(|word| (*word).into()).collect();
    tool
}

fn places() -> policy::suggest::Places<'static> {
    policy::suggest::Places {
        root: Path::new("/t"),
        policies: Path::new("/t/sandbox-policies"),
    }
}

fn site() -> ToolPaths {
    ToolPaths {
        manifest: "/t/tool-defs/demo/demo.tool.json".into(),
        base: "/t/user_scripts".into(),
        script: Some("/t/user_scripts/demo/run.py".into()),
        folder: "/t/user_scripts/demo".into(),
        links: Vec::new(),
    }
}

fn python(path: &str) -> Runtime {
    Runtime {
        language: Language::Python,
        program: Program::Path(path.into()),
        arguments: vec!["-s".into(), "-E".into(), "-B".into()],
        roots: vec![Path::new(path).ancestors().nth(2).unwrap().into()],
        version: "3.11.2".into(),
        found: "PATH".into(),
        environment: None,
    }
}

fn machine() -> Machine {
    Machine {
        runtimes: BTreeMap::from([(Language::Python, python("/usr/bin/python3"))]),
        ..Machine::default()
    }
}

/// A machine whose environment has this `TOKEN`.
fn offering(token: &str) -> Machine {
    Machine {
        environment: BTreeMap::from([("TOKEN".to_owned(), policy::Variable::Host(token.into()))]),
        ..machine()
    }
}

/// A pattern as a manifest would write it: `self`, `dir/**`, `dir/*.csv`, `file`.
fn pattern(text: &str) -> Pattern {
    let shape = if text == "self" {
        PatternShape::SelfScript
    } else if text == "./*" {
        PatternShape::Tree {
            path: PathBuf::new(),
        }
    } else if let Some(tree) = text.strip_suffix("/**").or(text.strip_suffix('/')) {
        PatternShape::Tree {
            path: if tree.is_empty() {
                "/".into()
            } else {
                tree.into()
            },
        }
    } else if text.contains(['*', '?']) {
        let (folder, names) = text.rsplit_once('/').unwrap_or(("", text));
        PatternShape::Names {
            folder: folder.into(),
            names: names.into(),
        }
    } else {
        PatternShape::File { path: text.into() }
    };
    Pattern {
        text: text.into(),
        from_base: false,
        shape,
    }
}

fn asking(read: Option<&[&str]>, write: &[&str]) -> Manifest {
    let mut tool = tool("demo:one");
    tool.requested.read = read.map(|r| r.iter().map(|p| pattern(p)).collect());
    tool.requested.write = write.iter().map(|p| pattern(p)).collect();
    tool
}

fn parsed(text: &str) -> Policy {
    policy::parse(
        text,
        Path::new("/t/p/x.policy.toml"),
        false,
        Path::new("/t"),
    )
    .expect("the policy loads")
}

fn parsed_host(text: &str) -> Policy {
    policy::parse(
        text,
        Path::new("/t/p/host.policy.toml"),
        true,
        Path::new("/t"),
    )
    .expect("the cap loads")
}

fn policy_text(read: &[&str], write: &[&str], more: &str) -> String {
    let list = |paths: &[&str]| {
        paths
            .iter()
            .map(|p| format!("{{ path = \"{p}\", why = \"test\" }}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    format!(
        "name = \"p\"\nwhy = \"test\"\ntools = [\"demo:one\"]\n{more}\n[files]\nread = [{}]\nwrite \
        = [{}]\n",
        list(read),
        list(write)
    )
}

/// The policies of this one alone.
fn ruled(text: &str) -> Policies {
    under(vec![parsed(text)], None)
}

fn under(policies: Vec<Policy>, host: Option<Policy>) -> Policies {
    Policies::from_parts(policies, host).expect("no conflict")
}

fn decide(tool: &Manifest, policies: &Policies) -> Decision {
    policy::decide(tool, &site(), policies, &machine())
}

fn shape(decision: &Decision) -> &Shape {
    decision
        .shape
        .as_ref()
        .unwrap_or_else(|f| panic!("refused: {f} {:?}", f.person))
}

/// What it may read or write.
fn areas(decision: &Decision) -> Vec<String> {
    shape(decision)
        .grants
        .iter()
        .map(|grant| grant.area.text())
        .collect()
}

fn refused(decision: &Decision) -> (Kind, String) {
    let fault = decision.shape.as_ref().expect_err("should be refused");
    assert!(
        !fault.message.contains("/t/"),
        "an agent reads no host path: {}",
        fault.message
    );
    (fault.kind, fault.person.clone().unwrap_or_default())
}

/// What a diff of two audits reads.
fn powers(tool: &Manifest, policies: &Policies) -> Powers {
    Powers::from_json(policy::audit::json(&decide(tool, policies), tool)).expect("an audit")
}

/// What could newly be done and what no longer, each with its kind.
fn changes(old: Powers, new: Powers) -> [Vec<String>; 2] {
    let diff = policy::diff::between(&[old], &[new]);
    let line =
        |kind: &str, what: &Option<String>| format!("{kind} {}", what.clone().unwrap_or_default());
    let lost = diff
        .no_longer
        .iter()
        .map(|lost| line(lost.kind, &lost.before))
        .collect();
    [
        diff.newly
            .iter()
            .map(|new| line(new.kind, &new.now))
            .collect(),
        lost,
    ]
}

fn live(path: &str) -> Opening {
    Opening::Live { path: path.into() }
}

const CORE: &str = "name = \"core\"\nwhy = \"w\"\ntools = [\"core:run-code\", \
    \"core:execute-python-script\"]\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = \
    [{ path = \"./.cache/**\", why = \"w\" }]\n";

fn execute() -> Manifest {
    let handler = Handler::ServiceMethod {
        service: "ExternalScriptExecutionService".into(),
        method: "executeScript".into(),
        language: None,
        parameter_map: BTreeMap::new(),
    };
    let asks = asking(Some(&["self", "./*", ".cache/**"]), &[".cache/**"]);
    Manifest {
        id: "core:execute-python-script".into(),
        handler,
        ..asks
    }
}

/// A run by the builtin tool, of a script that these tools name.
fn run_by(
    core: &Manifest,
    namers: Vec<Manifest>,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let namers: Vec<_> = namers
        .into_iter()
        .map(|tool| (Arc::new(tool), site()))
        .collect();
    policy::decide_run(&target(), core, &namers, policies, machine)
}

/// A run of source text.
fn run_code(core: Manifest, policies: &Policies) -> Decision {
    let target = RunTarget {
        site: ToolPaths {
            script: None,
            ..target().site
        },
        ..target()
    };
    policy::decide_run(
        &target,
        &Manifest {
            id: policy::RUN_CODE.into(),
            ..core
        },
        &[],
        policies,
        &machine(),
    )
}

fn target() -> RunTarget {
    RunTarget {
        site: ToolPaths {
            manifest: PathBuf::new(),
            ..site()
        },
        language: Language::Python,
    }
}
