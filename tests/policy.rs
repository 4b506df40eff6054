//! The decision: what is asked ∩ what is allowed, by table and by property.

use proptest::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolhost::fault::Kind;
use toolhost::manifest::{
    Asks, Execution, Handler, Language, Manifest, Metadata, Pattern, PatternShape, Site, StderrRule,
};
use toolhost::policy::{
    self, Access, Area, Decision, Grant, Machine, Opening, Policies, Policy, Program, RunTarget, Runtime, Shape,
};
use toolhost::quantity::Limit;

fn tool(id: &str) -> Manifest {
    Manifest {
        id: id.into(),
        display_name: id.into(),
        description: "a tool of the tests".into(),
        version: semver::Version::new(1, 0, 0),
        handler: Handler::Script { script_path: "demo/run.py".into(), language: Language::Python, entry_point: None },
        parameters: None,
        output: None,
        asks: Asks::default(),
        execution: Execution::default(),
        limits: BTreeMap::new(),
        is_final: false,
        hidden: false,
        metadata: Metadata::default(),
        requires: BTreeMap::new(),
        examples: Vec::new(),
        tags: Vec::new(),
        raw: Value::Null,
        digest: String::new(),
    }
}

fn site() -> Site {
    Site {
        manifest: "/t/tool-defs/demo/demo.tool.json".into(),
        base: "/t/user_scripts".into(),
        script: Some("/t/user_scripts/demo/run.py".into()),
        folder: "/t/user_scripts/demo".into(),
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
    }
}

fn machine() -> Machine {
    Machine { runtimes: BTreeMap::from([(Language::Python, python("/usr/bin/python3"))]), ..Machine::default() }
}

/// A pattern as a manifest would write it: `self`, `dir/**`, `dir/*.csv`, `file`.
fn pattern(text: &str) -> Pattern {
    let shape = if text == "self" {
        PatternShape::SelfScript
    } else if text == "./*" {
        PatternShape::Tree { path: PathBuf::new() }
    } else if let Some(tree) = text.strip_suffix("/**").or(text.strip_suffix('/')) {
        PatternShape::Tree { path: if tree.is_empty() { "/".into() } else { tree.into() } }
    } else if text.contains(['*', '?']) {
        let (folder, names) = text.rsplit_once('/').unwrap_or(("", text));
        PatternShape::Names { folder: folder.into(), names: names.into() }
    } else {
        PatternShape::File { path: text.into() }
    };
    Pattern { text: text.into(), shape }
}

fn asking(read: Option<&[&str]>, write: &[&str]) -> Manifest {
    let mut tool = tool("demo:one");
    tool.asks.read = read.map(|r| r.iter().map(|p| pattern(p)).collect());
    tool.asks.write = write.iter().map(|p| pattern(p)).collect();
    tool
}

fn parsed(text: &str) -> Policy {
    policy::parse(text, Path::new("/t/p/x.policy.toml"), false, Path::new("/t")).expect("the policy loads")
}

fn parsed_host(text: &str) -> Policy {
    policy::parse(text, Path::new("/t/p/host.policy.toml"), true, Path::new("/t")).expect("the cap loads")
}

fn policy_text(read: &[&str], write: &[&str], more: &str) -> String {
    let list = |paths: &[&str]| {
        paths.iter().map(|p| format!("{{ path = \"{p}\", why = \"test\" }}")).collect::<Vec<_>>().join(", ")
    };
    format!(
        "name = \"p\"\nwhy = \"test\"\ntools = [\"demo:one\"]\n{more}\n[files]\nread = [{}]\nwrite = [{}]\n",
        list(read),
        list(write)
    )
}

fn under(policies: Vec<Policy>, host: Option<Policy>) -> Policies {
    Policies::from_parts(policies, host).expect("no conflict")
}

fn decide(tool: &Manifest, policies: &Policies) -> Decision {
    policy::decide(tool, &site(), policies, &machine())
}

fn shape(decision: &Decision) -> &Shape {
    decision.shape.as_ref().unwrap_or_else(|f| panic!("refused: {f} {:?}", f.person))
}

fn refused(decision: &Decision) -> (Kind, String) {
    let fault = decision.shape.as_ref().expect_err("should be refused");
    assert!(!fault.message.contains("/t/"), "an agent reads no host path: {}", fault.message);
    (fault.kind, fault.person.clone().unwrap_or_default())
}

fn live(path: &str) -> Opening {
    Opening::Live { path: path.into() }
}

#[test]
fn a_bare_manifest_reads_its_own_folder_and_nothing_else() {
    let decision = decide(&tool("demo:one"), &Policies::built_in());
    let shape = shape(&decision);
    assert_eq!(shape.grants.len(), 1);
    assert_eq!((shape.grants[0].access, &shape.grants[0].opening), (Access::Read, &live("/t/user_scripts/demo")));
    assert_eq!(shape.limits.get(Limit::TimeoutMs), 30_000);
    assert!(shape.env.is_empty() && !shape.require_cgroup && !shape.stderr_is_error);
    assert_eq!(shape.tool, "demo:one@1.0.0");
}

#[test]
fn a_script_directly_in_a_base_folder_reads_only_itself() {
    let flat = Site { folder: "/t/user_scripts".into(), script: Some("/t/user_scripts/run.py".into()), ..site() };
    let decision = policy::decide(&tool("demo:one"), &flat, &Policies::built_in(), &machine());
    let only = Opening::Snapshot { folder: "/t/user_scripts".into(), names: "run.py".into() };
    assert_eq!(shape(&decision).grants.iter().map(|g| &g.opening).collect::<Vec<_>>(), [&only]);
}

#[test]
fn a_policy_without_files_leaves_the_script_and_does_not_refuse() {
    let text = "name = \"p\"\nwhy = \"w\"\ntools = [\"demo:one\"]\n[limits]\ntimeout_ms = 500\n";
    let decision = decide(&tool("demo:one"), &under(vec![parsed(text)], None));
    let shape = shape(&decision);
    assert_eq!(shape.grants.len(), 1);
    assert!(matches!(&shape.grants[0].opening, Opening::Snapshot { names, .. } if names == "run.py"));
    assert_eq!(shape.limits.get(Limit::TimeoutMs), 500);
    // But an explicit ask is refused.
    let decision = decide(&asking(Some(&["./*"]), &[]), &under(vec![parsed(text)], None));
    assert_eq!(refused(&decision).0, Kind::SecurityError);
}

#[test]
fn an_ask_is_no_grant() {
    let decision = decide(&asking(None, &["/data/**"]), &Policies::built_in());
    let (kind, person) = refused(&decision);
    assert_eq!(kind, Kind::SecurityError);
    assert!(person.contains("write /data/**") && person.contains("no write rule"), "{person}");
    let verdict = decision.verdicts.iter().find(|v| v.asked == "/data/**").unwrap();
    assert!(!verdict.allowed && verdict.effective.is_none() && verdict.reason.is_some());
}

/// ask, rule (both for reading), what is left of it under `narrow`.
#[test]
fn asks_meet_rules_exactly() {
    let home = "/t/user_scripts/demo";
    let table: &[(&str, &str, Option<&str>)] = &[
        ("/data/pub/**", "/data/pub/**", Some("/data/pub/**")),
        ("/data/pub/", "/data/pub/**", Some("/data/pub/**")),
        ("/data/pub/x/**", "/data/pub/**", Some("/data/pub/x/**")),
        ("/data/public/**", "/data/pub/**", None),
        ("/data/public.csv", "/data/pub/**", None),
        ("/data/**", "/data/pub/**", Some("/data/pub/**")),
        ("/data/**", "/data/a.csv", Some("/data/a.csv")),
        ("/data/a.csv", "/data/a.csv", Some("/data/a.csv")),
        ("/data/a.csv", "/data/a.csv.bak", None),
        ("/data/a.csv", "/data/**", Some("/data/a.csv")),
        ("/data/*.csv", "/data/**", Some("/data/*.csv")),
        ("/data/*.csv", "/data/a.csv", Some("/data/a.csv")),
        ("/data/*.csv", "/data/a.txt", None),
        ("/data/*.csv", "/data/sub/**", None),
        ("/data/pub/**", "/data/pub", None),
        ("./*", "./data/**", Some("data/**")),
        ("data/in.csv", "./**", Some("data/in.csv")),
        ("data/in.csv", "./data/in.csv", Some("data/in.csv")),
        ("/t/user_scripts/demo/data/**", "./data/**", Some("data/**")),
        ("/t/user_scripts/other/**", "./**", None),
        ("/", "/data/**", Some("/data/**")),
        ("/proc/**", "/data/**", None),
    ];
    for (ask, rule, left) in table {
        let left = left.map(|l| if l.starts_with('/') { l.to_string() } else { format!("{home}/{l}") });
        let whole = pattern(ask);
        let text = policy_text(&[rule], &[], "mode = \"narrow\"");
        let decision = decide(&asking(Some(&[ask]), &[]), &under(vec![parsed(&text)], None));
        let got: Vec<String> = shape(&decision).grants.iter().map(|g| Area::of(&g.opening).text()).collect();
        assert_eq!(got, left.clone().into_iter().collect::<Vec<_>>(), "{ask} under {rule}");
        let strict = decide(&asking(Some(&[ask]), &[]), &under(vec![parsed(&policy_text(&[rule], &[], ""))], None));
        let verdict = &strict.verdicts[0];
        assert_eq!(strict.shape.is_ok(), verdict.allowed, "{ask} under {rule}");
        assert_eq!(verdict.asked, whole.text);
    }
}

#[test]
fn reject_refuses_and_narrow_runs_with_less_and_says_so() {
    let tool = asking(Some(&["./*"]), &["out/**", "/data/**"]);
    let strict = policy_text(&["./**"], &["./out/**"], "");
    assert_eq!(refused(&decide(&tool, &under(vec![parsed(&strict)], None))).0, Kind::SecurityError);
    let narrow = policy_text(&["./**"], &["./out/**"], "mode = \"narrow\"");
    let decision = decide(&tool, &under(vec![parsed(&narrow)], None));
    let writes: Vec<&Grant> = shape(&decision).grants.iter().filter(|g| g.access == Access::Write).collect();
    assert_eq!(writes.iter().map(|g| &g.opening).collect::<Vec<_>>(), [&live("/t/user_scripts/demo/out")]);
    assert!(decision.notes.iter().any(|n| n.contains("/data/**")), "{:?}", decision.notes);
    assert!(policy::explain::text(&decision).contains("narrowed: write /data/**"));
}

#[test]
fn write_implies_read_and_staging_is_for_names() {
    let rules = policy_text(&["./**"], &["./out/**", "./.cache/**"], "");
    let tool = asking(Some(&["self", ".cache/**", "out/*.csv"]), &[".cache/**", "out/*.csv", "out/one.txt"]);
    let decision = decide(&tool, &under(vec![parsed(&rules)], None));
    let home = PathBuf::from("/t/user_scripts/demo");
    let staged = |names: &str| Opening::Staged { folder: home.join("out"), names: names.into() };
    let openings: BTreeSet<Opening> = shape(&decision).grants.iter().map(|g| g.opening.clone()).collect();
    let expected = BTreeSet::from([
        Opening::Snapshot { folder: home.clone(), names: "run.py".into() },
        live("/t/user_scripts/demo/.cache"),
        staged("*.csv"),
        staged("one.txt"),
    ]);
    assert_eq!(openings, expected, "reads inside a write are not given twice");
    assert!(decision.verdicts.iter().all(|v| v.allowed));
}

#[test]
fn tmp_is_always_the_calls_own() {
    let decision = decide(&asking(Some(&[]), &["/tmp/**", "/tmp/"]), &Policies::built_in());
    assert!(shape(&decision).grants.is_empty());
    let rules = policy_text(&[], &["/tmp/**"], "");
    let decision = decide(&asking(Some(&[]), &["/tmp/**"]), &under(vec![parsed(&rules)], None));
    assert!(shape(&decision).grants.is_empty(), "the host's /tmp is not bound over scratch");
}

#[test]
fn what_is_run_or_obeyed_is_never_written() {
    let everything = ["./**", "/t/**", "/usr/**", "/srv/**", "/opt/venv/**", "/p/policies/**"];
    let mut policies = under(vec![parsed(&policy_text(&[], &everything, ""))], None);
    policies.protect([PathBuf::from("/p/policies"), PathBuf::from("/srv/other/tool.py")]);
    let mut machine = machine();
    machine.named_runtimes.insert("/opt/venv/bin/python".into(), python("/opt/venv/bin/python"));
    for ask in [
        "./*",
        "run.py",
        "*.py",
        "r*",
        "*",
        "x.p?",
        "helper.py",
        "lib*",
        "/t/**",
        "/t/tool-defs/demo/**",
        "/t/tool-defs/demo/*.json",
        "/t/tool-defs/demo/demo.tool.json",
        "out/x.tool.json",
        "out/*.tool.json",
        "out/*.policy.toml",
        "node_modules/**",
        ".venv/**",
        "lib/__pycache__/**",
        "/usr/lib/**",
        "/usr/**",
        "/opt/venv/**",
        "/opt/venv/lib/**",
        "/srv/**",
        "/srv/other/*",
        "/srv/other/tool.py",
        "/p/policies/**",
        "/p/policies/sub/x.txt",
        "/proc/**",
        "/sys/x",
        "/dev/**",
        "/",
        "self",
    ] {
        let decision = policy::decide(&asking(Some(&[]), &[ask]), &site(), &policies, &machine);
        assert_eq!(refused(&decision).0, Kind::SecurityError, "{ask}");
        assert!(decision.grants.is_empty(), "{ask}: {:?}", decision.grants);
    }
    for ask in
        ["out/**", ".cache/**", "*.csv", "out/*", "result.json", "out/a.py", "/srv/data/**", "/srv/other/data/**"]
    {
        let decision = policy::decide(&asking(Some(&[]), &[ask]), &site(), &policies, &machine);
        assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape);
    }
    let decision = policy::decide(&asking(Some(&[]), &["out/*.json"]), &site(), &policies, &machine);
    assert!(decision.may_write(Path::new("/t/user_scripts/demo/out/x.tool.json")), "and so it is never loaded");
    assert!(!decision.may_write(Path::new("/t/user_scripts/demo/x.tool.json")));
}

#[test]
fn kernel_trees_are_never_read() {
    for ask in ["/", "/proc/**", "/proc/self/environ", "/sys/**", "/dev/**", "/dev/mem"] {
        let decision = decide(&asking(Some(&[ask]), &[]), &Policies::built_in());
        assert_eq!(refused(&decision).0, Kind::SecurityError, "{ask}");
    }
}

#[test]
fn limits_are_the_smallest_and_clamps_are_said() {
    let text = policy_text(&["./**"], &[], "")
        .replace("[files]", "[limits]\ntimeout_ms = 5_000\nmemory_bytes = 2_147_483_648\n[files]");
    let mut tool = tool("demo:one");
    tool.execution.timeout_ms = Some(60_000);
    tool.limits.insert(Limit::Processes, 4);
    let decision = decide(&tool, &under(vec![parsed(&text)], None));
    let time = decision.limit(Limit::TimeoutMs).unwrap();
    assert_eq!((time.asked, time.ceiling, time.effective, time.clamped), (Some(60_000), 5_000, 5_000, true));
    assert!(decision.notes.iter().any(|n| n.contains("clamped: timeoutMs asked 60000, gets 5000")));
    assert_eq!(shape(&decision).limits.get(Limit::MemoryBytes), 2_147_483_648);
    assert_eq!(shape(&decision).limits.get(Limit::Processes), 4);
    let cap = parsed_host(
        "name = \"h\"\nwhy = \"w\"\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 1000\n",
    );
    let decision = decide(&tool, &under(vec![parsed(&text)], Some(cap)));
    assert_eq!(decision.limit(Limit::TimeoutMs).unwrap().effective, 1_000);
    // What the cap does not say is the house default.
    assert_eq!(shape(&decision).limits.get(Limit::MemoryBytes), 1 << 30);
}

#[test]
fn a_call_may_ask_for_time_up_to_the_ceiling_only() {
    let mut tool = tool("demo:one");
    tool.execution.timeout_ms = Some(10_000);
    let decision = decide(&tool, &Policies::built_in());
    let time = |asked| policy::confine(&decision, asked, None).map(|c| c.per_call.timeout_ms);
    assert_eq!(time(None).unwrap(), 10_000);
    assert_eq!(time(Some(20_000)).unwrap(), 20_000);
    assert_eq!(time(Some(100)).unwrap(), 100);
    assert_eq!(time(Some(999_999)).unwrap(), 30_000);
    assert!(policy::timeout_clamp(&decision, Some(999_999)).unwrap().contains("asked 999999, gets 30000"));
    assert_eq!(policy::timeout_clamp(&decision, Some(20_000)), None);
    let fault = time(Some(50)).unwrap_err();
    assert_eq!(fault.kind, Kind::ParameterValidationError);
    assert!(fault.message.contains("timeoutMs") && fault.message.contains("100"), "{}", fault.message);
}

#[test]
fn the_narrowest_policy_governs_where_its_folders_hold_the_manifest() {
    let named = |name: &str, tools: &str, more: &str| {
        parsed(&format!("name = \"{name}\"\nwhy = \"w\"\ntools = [\"{tools}\"]\n{more}"))
    };
    let policies = under(
        vec![
            named("any", "*", ""),
            named("ns", "demo:*", ""),
            named("exact", "demo:one", "folders = [\"tool-defs/demo\"]"),
        ],
        None,
    );
    let manifest = Path::new("/t/tool-defs/demo/x.tool.json");
    assert_eq!(policies.governing("demo:one", manifest).0.name, "exact");
    let (elsewhere, notes) = policies.governing("demo:one", Path::new("/t/tool-defs/demo2/x.tool.json"));
    assert_eq!(elsewhere.name, "ns");
    assert!(notes[0].contains("exact"), "{notes:?}");
    assert_eq!(policies.governing("demo:two", manifest).0.name, "ns");
    assert_eq!(policies.governing("demonstration:two", manifest).0.name, "any");
}

#[test]
fn runtimes_come_from_the_policy_first_and_missing_ones_are_named() {
    let text = policy_text(&["./**"], &[], "")
        .replace("[files]", "[runtimes]\npython = { path = \"/opt/venv/bin/python\", why = \"pandas\" }\n[files]");
    let policies = under(vec![parsed(&text)], None);
    assert_eq!(policies.named_runtimes(), [(Language::Python, PathBuf::from("/opt/venv/bin/python"))]);
    assert_eq!(refused(&decide(&tool("demo:one"), &policies)).0, Kind::CapabilityError);
    let mut machine = machine();
    machine.named_runtimes.insert("/opt/venv/bin/python".into(), python("/opt/venv/bin/python"));
    let decision = policy::decide(&tool("demo:one"), &site(), &policies, &machine);
    assert_eq!(shape(&decision).runtime.program, Program::Path("/opt/venv/bin/python".into()));
    let none = policy::decide(&tool("demo:one"), &site(), &Policies::built_in(), &Machine::default());
    let fault = none.shape.unwrap_err();
    assert_eq!(fault.kind, Kind::CapabilityError);
    assert!(fault.message.contains("python, which is not on this machine"), "{}", fault.message);
    let mut wasm = tool("demo:one");
    wasm.handler = Handler::Script { script_path: "a.wasm".into(), language: Language::Wasm, entry_point: None };
    let decision = policy::decide(&wasm, &site(), &Policies::built_in(), &Machine::default());
    assert_eq!(shape(&decision).runtime.program, Program::Ourselves { role: "wasm-worker".into() });
}

#[test]
fn capabilities_need_the_policy_and_the_machine() {
    let granting = policy_text(&["./**"], &[], "").replace(
        "[files]",
        "[capabilities]\ngrant = [{ name = \"gpu\", why = \"w\" }, { name = \"long-running\", why = \"w\" }]\n[files]",
    );
    let with_gpu = Machine { capabilities: BTreeSet::from(["gpu".to_string()]), ..machine() };
    let granted = || under(vec![parsed(&granting)], None);
    let table: [(&str, Policies, &Machine, Option<Kind>); 9] = [
        ("subprocess", Policies::built_in(), &machine(), None),
        ("gpu", Policies::built_in(), &machine(), Some(Kind::CapabilityError)),
        ("gpu", granted(), &machine(), Some(Kind::CapabilityError)),
        ("gpu", Policies::built_in(), &with_gpu, Some(Kind::SecurityError)),
        ("gpu", granted(), &with_gpu, None),
        ("long-running", Policies::built_in(), &machine(), Some(Kind::SecurityError)),
        ("long-running", granted(), &machine(), None),
        ("secret:KEY", granted(), &with_gpu, Some(Kind::CapabilityError)),
        ("telepathy", granted(), &with_gpu, Some(Kind::CapabilityError)),
    ];
    for (word, policies, machine, expected) in table {
        let mut tool = tool("demo:one");
        tool.asks.capabilities = vec![word.into()];
        let decision = policy::decide(&tool, &site(), &policies, machine);
        assert_eq!(decision.shape.as_ref().err().map(|f| f.kind), expected, "{word}");
    }
}

#[test]
fn hosts_async_and_later_handlers_are_unavailable() {
    let mut network = tool("demo:one");
    network.asks.hosts = vec!["example.com".into()];
    let mut later = tool("demo:one");
    later.execution.asynchronous = true;
    let mut service = tool("demo:one");
    service.handler = Handler::ToolService;
    for tool in [network, later, service] {
        assert_eq!(refused(&decide(&tool, &Policies::built_in())).0, Kind::CapabilityError);
    }
}

#[test]
fn env_that_steers_the_loader_is_refused() {
    for name in ["LD_PRELOAD", "ld_preload", "PYTHONPATH", "NODE_OPTIONS", "BUN_CONFIG", "A=B", ""] {
        let mut tool = tool("demo:one");
        tool.execution.env.insert(name.into(), "x".into());
        assert_eq!(refused(&decide(&tool, &Policies::built_in())).0, Kind::SecurityError, "{name}");
    }
    let mut tool = tool("demo:one");
    tool.execution.env.insert("GREETING".into(), "hi".into());
    assert_eq!(shape(&decide(&tool, &Policies::built_in())).env["GREETING"], "hi");
}

#[test]
fn a_required_cgroup_that_is_missing_refuses() {
    let text = policy_text(&["./**"], &[], "require = [\"cgroup\"]\nstderr = \"error\"");
    let policies = under(vec![parsed(&text)], None);
    assert_eq!(refused(&decide(&tool("demo:one"), &policies)).0, Kind::CapabilityError);
    let decision = policy::decide(&tool("demo:one"), &site(), &policies, &Machine { cgroup: true, ..machine() });
    assert!(shape(&decision).require_cgroup && shape(&decision).stderr_is_error);
}

const CORE: &str = "name = \"core\"\nwhy = \"w\"\ntools = [\"core:run-code\", \"core:execute-python-script\"]\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./.cache/**\", why = \"w\" }]\n";

fn execute() -> Manifest {
    let mut tool = asking(Some(&["self", "./*", ".cache/**"]), &[".cache/**"]);
    tool.id = "core:execute-python-script".into();
    tool.handler = Handler::ServiceMethod {
        service: "ExternalScriptExecutionService".into(),
        method: "executeScript".into(),
        language: None,
        parameter_map: BTreeMap::new(),
    };
    tool
}

fn target() -> RunTarget {
    RunTarget { site: Site { manifest: PathBuf::new(), ..site() }, language: Language::Python, entry_point: None }
}

#[test]
fn a_script_run_by_core_answers_to_every_manifest_that_names_it() {
    let core = || parsed(CORE);
    let alone = policy::decide_run(&target(), &execute(), &[], &under(vec![core()], None), &machine());
    let cache = live("/t/user_scripts/demo/.cache");
    assert!(shape(&alone).grants.iter().any(|g| g.opening == cache && g.access == Access::Write));
    assert_eq!(shape(&alone).script.as_deref(), Some(Path::new("/t/user_scripts/demo/run.py")));

    // A manifest names the script and has only its own folder for reading.
    let namer = vec![(Arc::new(tool("demo:one")), site())];
    let met = policy::decide_run(&target(), &execute(), &namer, &under(vec![core()], None), &machine());
    assert!(shape(&met).grants.iter().all(|g| g.access == Access::Read), "{:?}", met.grants);
    assert!(shape(&met).grants.iter().any(|g| g.opening == live("/t/user_scripts/demo")));
    assert!(met.notes.iter().any(|n| n.contains("demo:one@1.0.0 names this script")), "{:?}", met.notes);

    // It reads one folder only, and its policy has little time.
    let few = vec![(Arc::new(asking(Some(&["data/**"]), &[])), site())];
    let brief = parsed(&policy_text(&["./**"], &[], "").replace("[files]", "[limits]\ntimeout_ms = 700\n[files]"));
    let met = policy::decide_run(&target(), &execute(), &few, &under(vec![core(), brief], None), &machine());
    let areas: Vec<String> = shape(&met).grants.iter().map(|g| Area::of(&g.opening).text()).collect();
    assert!(areas.contains(&"/t/user_scripts/demo/data/**".to_string()), "{areas:?}");
    assert!(!areas.contains(&"/t/user_scripts/demo/**".to_string()), "{areas:?}");
    assert_eq!(policy::confine(&met, Some(5_000), None).unwrap().per_call.timeout_ms, 700);

    // It is refused itself.
    let greedy = vec![(Arc::new(asking(Some(&["/data/**"]), &[])), site())];
    let met = policy::decide_run(&target(), &execute(), &greedy, &under(vec![core()], None), &machine());
    assert_eq!(refused(&met).0, Kind::SecurityError);
}

#[test]
fn run_code_has_scratch_only_and_exists_only_where_a_policy_names_it() {
    let mut tool = execute();
    tool.id = policy::RUN_CODE.into();
    let source = RunTarget { site: Site { script: None, ..target().site }, ..target() };
    let decision = policy::decide_run(&source, &tool, &[], &under(vec![parsed(CORE)], None), &machine());
    assert!(shape(&decision).grants.is_empty());
    assert_eq!(shape(&decision).folder, Path::new("/tmp"));
    assert_eq!(shape(&decision).script, None);
    assert!(policy::confine(&decision, None, Some("print(1)".into())).is_ok());
    assert_eq!(policy::confine(&decision, None, None).unwrap_err().kind, Kind::InternalError);
    let gone = policy::decide_run(&source, &tool, &[], &Policies::built_in(), &machine());
    assert_eq!(refused(&gone).0, Kind::SecurityError);
}

#[test]
fn the_report_says_all_of_it_and_escapes_outside_text() {
    let mut tool = asking(None, &["/da\u{1b}[31mta/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.asks.capabilities = vec!["sub\u{202e}process".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::explain::text(&decision);
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    for word in
        ["asked", "allowed", "effective", "enforced by", "(clamped)", "not defended", "SecurityError", "memoryBytes"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = policy::explain::json(&decision);
    assert_eq!(json["refused"]["type"], "SecurityError");
    assert_eq!(json["asks"][0]["allowed"], true);
    assert_eq!(json["limits"].as_array().unwrap().len(), 10);
    for key in ["grants", "network", "digests", "notDefended", "policy", "runtime"] {
        assert!(json.get(key).is_some(), "{key}");
    }
}

#[test]
fn a_suggested_policy_does_not_load_until_each_why_is_filled_in_and_then_grants_all() {
    let mut tool = asking(None, &["out/*.csv", "/data/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.asks.capabilities = vec!["long-running".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::suggest::policy(&tool, &site(), &decision);
    let file = Path::new("/t/p/demo.policy.toml");
    assert!(policy::parse(&text, file, false, Path::new("/t")).is_err(), "{text}");
    let filled = text.replace("why = \"\"", "why = \"because\"");
    let policy = policy::parse(&filled, file, false, Path::new("/t")).unwrap_or_else(|p| panic!("{p:?}\n{filled}"));
    let decision = decide(&tool, &under(vec![policy], None));
    assert!(decision.denied().next().is_none() && decision.shape.is_ok(), "{:?}", decision.verdicts);
}

#[test]
fn who_can_answers_for_every_decision() {
    let rules = policy_text(&["./**", "/data/pub/**"], &["./out/**"], "");
    let policies = under(vec![parsed(&rules), parsed(&CORE.replace("\"core\"", "\"core2\""))], None);
    let tools = vec![
        (Arc::new(asking(Some(&["./*", "/data/pub/**"]), &["out/**"])), site()),
        (
            Arc::new(execute()),
            Site { manifest: PathBuf::new(), base: PathBuf::new(), script: None, folder: PathBuf::new() },
        ),
    ];
    let decisions = policy::decide_all(&tools, &policies, &machine());
    let bases = [PathBuf::from("/t/user_scripts")];
    let who = |question: &str| {
        let question = policy::who_can::question(question).unwrap();
        let mut found: Vec<String> =
            policy::who_can::answer(&decisions, &question, &bases).into_iter().map(|a| a.tool).collect();
        found.dedup();
        found
    };
    assert_eq!(who("read:/data/pub/x.csv"), ["demo:one@1.0.0"]);
    assert!(who("read:/data/public/x.csv").is_empty());
    assert!(who("write:/data/pub/x.csv").is_empty());
    assert_eq!(who("write:/t/user_scripts/demo/out/a"), ["demo:one@1.0.0"]);
    assert_eq!(who("write:/t/user_scripts/other/.cache/a"), ["core:execute-python-script@1.0.0"]);
    assert_eq!(who("read:/usr/lib/x"), ["demo:one@1.0.0"]);
    assert!(who("reach:example.com").is_empty());
    for bad in ["read", "read:", "read:../x", "eat:/x", "read:/a/../b"] {
        assert!(policy::who_can::question(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_diff_lists_what_could_newly_be_done_and_nothing_else() {
    use policy::diff::{Powers, newly};
    let powers = |tool: &Manifest, text: &str| vec![Powers::of(&decide(tool, &under(vec![parsed(text)], None)))];
    let small = policy_text(&["./**"], &["./out/**"], "");
    let wide = policy_text(&["./**", "/data/**"], &["./out/**"], "")
        .replace("[files]", "[limits]\ntimeout_ms = 60000\n[files]");
    let (before, after) = (asking(Some(&["./*"]), &["out/*.csv"]), asking(Some(&["./*", "/data/x/**"]), &["out/**"]));
    let changes = newly(&powers(&before, &small), &powers(&after, &wide));
    let lines: Vec<String> = changes.iter().map(|c| format!("{} {}", c.kind, c.now)).collect();
    assert_eq!(
        lines,
        ["read read /data/x/**", "write write /t/user_scripts/demo/out/**", "limit timeoutMs up to 60000"],
        "{changes:?}"
    );
    let back = newly(&powers(&after, &wide), &powers(&before, &small));
    assert!(back.is_empty(), "{back:?}");
    assert_eq!(policy::diff::text(&back), "Nothing new can be done.\n");
    // A tool that was refused and now runs.
    let changes = newly(&powers(&after, &small), &powers(&after, &wide));
    assert_eq!(changes[0].kind, "run");
    // Policies by themselves.
    let set = |text: &str| under(vec![parsed(text)], None);
    let (old, new) = policy::diff::of_policies(&set(&small), &set(&wide));
    let lines: Vec<String> = newly(&old, &new).iter().map(|c| format!("{}: {} {}", c.subject, c.kind, c.now)).collect();
    assert_eq!(lines, ["demo:one: read read /data/**", "demo:one: limit timeoutMs up to 60000"]);
    let (old, new) = policy::diff::of_policies(&set(&wide), &set(&small));
    assert!(newly(&old, &new).is_empty());
}

#[test]
fn a_saved_audit_is_read_back() {
    let decision = decide(&tool("demo:one"), &Policies::built_in());
    let json = policy::explain::json(&decision);
    let text = serde_json::json!({ "tools": [json] }).to_string();
    let saved: Value = serde_json::from_str(&text).unwrap();
    let powers = policy::diff::Powers::from_audit(&saved).unwrap();
    assert_eq!(powers, [policy::diff::Powers::of(&decision)]);
    assert!(policy::diff::Powers::from_audit(&serde_json::json!({ "x": 1 })).is_err());
}

#[test]
fn the_verbs_take_what_the_issue_says() {
    #[derive(clap::Parser)]
    struct Audit {
        #[command(flatten)]
        args: toolhost::cli::audit::Args,
    }
    let parse = |line: &str| <Audit as clap::Parser>::try_parse_from(line.split(' ')).map(|a| a.args);
    for good in [
        "audit demo:one",
        "audit --all --json",
        "audit demo:one --probe",
        "audit demo:one --suggest-policy",
        "audit --who-can read:/data",
        "audit --call 0192",
        "audit --diff old.json new.json",
    ] {
        assert!(parse(good).is_ok(), "{good}");
    }
    for bad in
        ["audit", "audit demo:one --all", "audit --all --suggest-policy", "audit --probe", "audit --diff old.json"]
    {
        assert!(parse(bad).is_err(), "{bad}");
    }
    let tools = [(Arc::new(tool("demo:one")), site())];
    let (policies, machine) = (Policies::built_in(), machine());
    let host = toolhost::cli::audit::Host { tools: &tools, policies: &policies, machine: &machine };
    let whole: Value = serde_json::from_str(&toolhost::cli::audit::all(&host, true)).unwrap();
    assert_eq!(whole["tools"][0]["tool"], "demo:one@1.0.0");
    println!("{}", toolhost::cli::audit::one(&host, &tools[0].0, &tools[0].1, false));
    assert!(toolhost::cli::audit::who_can(&host, &[], "nonsense", false).is_err());
}

#[test]
fn diff_compares_policies_audits_and_tools() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        path.display().to_string()
    };
    let old = put("old.policy.toml", &policy_text(&["./**"], &[], ""));
    let new = put("new.policy.toml", &policy_text(&["./**", "/data/**"], &[], ""));
    let tools = [(Arc::new(asking(Some(&["./*", "/data/**"]), &[])), site())];
    let policies = Policies::built_in();
    let lost = || toolhost::fault::Fault::new(Kind::ToolNotFoundError, "no such tool");
    let host = toolhost::cli::diff::Host {
        tools: &tools,
        policies: &policies,
        machine: &|_| machine(),
        find: &|reference| if reference == "demo:one@1.0.0" { Ok(tools[0].clone()) } else { Err(lost()) },
        read: &|_| Err(lost()),
        root: folder.path(),
    };
    let run = |old: &str, new: &str| {
        toolhost::cli::diff::report(&host, &toolhost::cli::diff::Args { old: old.into(), new: new.into(), json: false })
    };
    let text = run(&old, &new).unwrap();
    assert!(text.contains("demo:one\n    + read       read /data/**"), "{text}");
    assert!(text.contains("demo:one@1.0.0\n    + run        can be called   (before: could not run before)"), "{text}");
    assert_eq!(run(&new, &old).unwrap(), "Nothing new can be done.\n");
    let saved = put(
        "audit.json",
        &serde_json::json!({ "tools": [policy::explain::json(&decide(&tools[0].0, &policies))] }).to_string(),
    );
    assert_eq!(run(&saved, "demo:one@1.0.0").unwrap(), "Nothing new can be done.\n");
    assert!(run(&saved, &new).unwrap().contains("can be called"));
    assert_eq!(run("demo:two", &new).unwrap_err().kind, Kind::ToolNotFoundError);
    let broken = put("broken.policy.toml", "oops");
    assert!(run(&broken, &new).unwrap_err().person.unwrap().contains("broken.policy.toml:1:"));
}

/// Every field of a policy is named here with what reads it; a new field does not compile until it is.
#[test]
fn every_policy_field_is_read_by_what_enforces_it() {
    let Policy {
        name: _,         // decide: Verdict::rule, Decision::policy
        why: _,          // file: blank refuses to load; for people
        file: _,         // decide: Verdict::place
        tools: _,        // load: governing
        folders: _,      // load: governing
        mode,            // decide: refused or dropped
        stderr,          // decide: Shape::stderr_is_error
        require_cgroup,  // decide: Shape::require_cgroup
        read: _,         // judge
        write: _,        // judge
        limits: _,       // limits
        runtimes: _,     // decide: runtime
        capabilities: _, // decide: capabilities
        digest,          // decide: Decision::digest
    } = Policy::built_in();
    assert_eq!((mode, stderr, require_cgroup), (policy::Mode::Reject, StderrRule::Log, false));
    assert_eq!(digest.len(), 64);
}

// ---- properties -------------------------------------------------------------------------------

const PLACES: [&str; 6] = ["/data", "/data/pub", "/data/public", "/data/pub/x", "/srv", "/t/user_scripts/demo"];

fn path() -> impl Strategy<Value = String> {
    let place = prop::sample::select(PLACES.to_vec());
    let end = prop::sample::select(vec!["/**", "/a.csv", "/out/**", "/out/b.csv"]);
    (place, end).prop_map(|(p, e)| format!("{p}{e}"))
}

fn ask() -> impl Strategy<Value = String> {
    let names = prop::sample::select(PLACES.to_vec()).prop_map(|p| format!("{p}/out/*.csv"));
    prop_oneof![3 => path(), 1 => names, 1 => Just("out/**".to_string()), 1 => Just("./*".to_string())]
}

fn rule_lists() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    (prop::collection::vec(path(), 0..4), prop::collection::vec(path(), 0..3))
}

fn text_of(read: &[String], write: &[String], timeout: u64, host: bool) -> String {
    let list =
        |p: &[String]| p.iter().map(|p| format!("{{ path = \"{p}\", why = \"w\" }}")).collect::<Vec<_>>().join(", ");
    let head = if host {
        "name = \"h\"\nwhy = \"w\""
    } else {
        "name = \"p\"\nwhy = \"w\"\ntools = [\"demo:one\"]\nmode = \"narrow\""
    };
    format!("{head}\n[files]\nread = [{}]\nwrite = [{}]\n[limits]\ntimeout_ms = {timeout}\n", list(read), list(write))
}

/// Every path of a small world that a decision lets the tool read or write: the meaning, not the form.
fn reach(decision: &Decision, access: Access) -> BTreeSet<PathBuf> {
    let mut world = BTreeSet::new();
    for place in PLACES.iter().chain(&["/t", "/t/user_scripts", "/other"]) {
        for end in ["a.csv", "b.csv", "out/b.csv", "out/c.csv", "out/c.txt", "out/deep/d.csv", "run.py", "z"] {
            world.insert(Path::new(place).join(end));
        }
    }
    let holds = |path: &PathBuf| decision.grants.iter().any(|g| g.access >= access && Area::of(&g.opening).holds(path));
    world.into_iter().filter(holds).collect()
}

fn holds_any(texts: &[String], access_texts: &[String], path: &Path) -> bool {
    texts.iter().chain(access_texts).any(|t| match t.strip_suffix("/**") {
        Some(tree) => path.starts_with(tree) && path != Path::new(tree),
        None => Path::new(t) == path,
    })
}

fn asked_holds(asks: &[String], path: &Path) -> bool {
    let home = Path::new("/t/user_scripts/demo");
    asks.iter().any(|a| match (a.strip_suffix("/**"), a.strip_suffix("/*.csv")) {
        _ if a == "./*" => path.starts_with(home),
        (Some(tree), _) => path.starts_with(home.join(tree)),
        (None, Some(folder)) => {
            path.parent() == Some(Path::new(folder)) && path.extension().is_some_and(|e| e == "csv")
        }
        _ => home.join(a) == path,
    })
}

fn made(read: &[String], write: &[String]) -> Manifest {
    let refs = |v: &[String]| v.iter().map(|p| pattern(p)).collect::<Vec<_>>();
    let mut tool = tool("demo:one");
    tool.asks.read = Some(refs(read));
    tool.asks.write = refs(write);
    tool
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn effective_is_within_manifest_policy_and_cap(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(), (hr, hw) in rule_lists(), capped: bool,
        asked in prop::option::of(100u64..90_000), ceiling in 100u64..90_000, cap in 100u64..90_000,
    ) {
        let mut tool = made(&read, &write);
        tool.execution.timeout_ms = asked;
        let host = capped.then(|| parsed_host(&text_of(&hr, &hw, cap, true)));
        let decision = decide(&tool, &under(vec![parsed(&text_of(&pr, &pw, ceiling, false))], host));
        for path in reach(&decision, Access::Read) {
            prop_assert!(asked_holds(&read, &path) || asked_holds(&write, &path), "read {path:?} was not asked");
            prop_assert!(holds_any(&pr, &pw, &path), "read {path:?} is not in the policy");
            prop_assert!(!capped || holds_any(&hr, &hw, &path), "read {path:?} is not in the cap");
        }
        for path in reach(&decision, Access::Write) {
            prop_assert!(asked_holds(&write, &path), "write {path:?} was not asked");
            prop_assert!(holds_any(&pw, &[], &path), "write {path:?} is not in the policy");
            prop_assert!(!capped || holds_any(&hw, &[], &path), "write {path:?} is not in the cap");
            prop_assert!(path != Path::new("/t/user_scripts/demo/run.py"), "its own script");
        }
        let time = decision.limit(Limit::TimeoutMs).unwrap();
        prop_assert!(time.effective <= ceiling && time.ceiling <= ceiling);
        prop_assert!(!capped || time.ceiling <= cap);
        prop_assert!(asked.is_none_or(|a| time.effective <= a));
        for limit in &decision.limits {
            prop_assert!(limit.effective <= limit.ceiling);
            prop_assert!(limit.limit == Limit::TimeoutMs || limit.ceiling <= limit.limit.house_default());
        }
    }

    #[test]
    fn more_text_never_shrinks_and_a_narrower_cap_never_widens(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(), (more_read, more_write) in rule_lists(),
        (hr, hw) in rule_lists(), drop_from in 0usize..4, ceiling in 100u64..50_000, more in 0u64..50_000,
    ) {
        let tool = made(&read, &write);
        let run = |r: &[String], w: &[String], ms: u64, host: Option<Policy>| {
            decide(&tool, &under(vec![parsed(&text_of(r, w, ms, false))], host))
        };
        let joined = |a: &[String], b: &[String]| [a, b].concat();
        let small = run(&pr, &pw, ceiling, None);
        let big = run(&joined(&pr, &more_read), &joined(&pw, &more_write), ceiling + more, None);
        for access in [Access::Read, Access::Write] {
            prop_assert!(reach(&small, access).is_subset(&reach(&big, access)), "adding a rule took something away");
        }
        let time = |d: &Decision| d.limit(Limit::TimeoutMs).unwrap().effective;
        prop_assert!(time(&small) <= time(&big));
        let cap = |n: usize, ms| parsed_host(&text_of(&hr[..n.min(hr.len())], &hw[..n.min(hw.len())], ms, true));
        let wide = run(&pr, &pw, ceiling, Some(cap(9, ceiling + more)));
        let narrow = run(&pr, &pw, ceiling, Some(cap(drop_from, ceiling)));
        for access in [Access::Read, Access::Write] {
            prop_assert!(reach(&narrow, access).is_subset(&reach(&wide, access)), "narrowing the cap widened");
            prop_assert!(reach(&wide, access).is_subset(&reach(&small, access)), "a cap widened");
        }
        prop_assert!(time(&narrow) <= time(&wide) && time(&wide) <= time(&small));
    }

    #[test]
    fn a_script_run_by_core_never_gets_more_than_either(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(),
    ) {
        let tool = made(&read, &write);
        let policies = under(vec![parsed(CORE), parsed(&text_of(&pr, &pw, 5_000, false))], None);
        let own = decide(&tool, &policies);
        let alone = policy::decide_run(&target(), &execute(), &[], &policies, &machine());
        let both = policy::decide_run(&target(), &execute(), &[(Arc::new(tool), site())], &policies, &machine());
        let script = PathBuf::from("/t/user_scripts/demo/run.py");
        for access in [Access::Read, Access::Write] {
            let mut got = reach(&both, access);
            got.remove(&script);
            prop_assert!(got.is_subset(&reach(&own, access)));
            prop_assert!(got.is_subset(&reach(&alone, access)));
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}", noise in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = policy::parse(&text, Path::new("x"), false, Path::new("/"));
        let _ = policy::parse(&String::from_utf8_lossy(&noise), Path::new("x"), true, Path::new("/"));
        let path = format!("name=\"n\"\nwhy=\"w\"\ntools=[\"a:b\"]\n[files]\nread=[{{path={}, why=\"w\"}}]", toml::Value::String(text));
        let _ = policy::parse(&path, Path::new("x"), false, Path::new("/"));
    }
}
