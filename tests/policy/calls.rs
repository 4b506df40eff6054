//! Limits, runtimes, capabilities, scripts run by core, and the last step before a call.

use super::*;

/// A policy of this tool that grants a capability.
fn granting(id: &str, capability: &str) -> Policy {
    let grant = format!("[capabilities]\ngrant = [{{ name = \"{capability}\", why = \"w\" }}]");
    let text = policy_text(&["./**"], &[], &grant);
    parsed(&text.replace("demo:one", id).replace("name = \"p\"", &format!("name = \"{id}\"")))
}

/// A machine whose environment has this `TOKEN`.
fn offering(token: &str) -> Machine {
    let variable = policy::Variable::Host(token.into());
    Machine { environment: BTreeMap::from([("TOKEN".to_owned(), variable)]), ..machine() }
}

#[test]
fn limits_are_the_smallest_and_clamps_are_said() {
    let text = policy_text(&["./**"], &[], "[limits]\ntimeout_ms = 5_000\nmemory_bytes = 2_147_483_648");
    let mut tool = tool("demo:one");
    tool.execution.timeout_ms = Some(60_000);
    tool.limits.insert(Limit::Processes, 4);
    let decision = decide(&tool, &under(vec![parsed(&text)], None));
    let time = decision.limit(Limit::TimeoutMs).unwrap();
    assert_eq!((time.asked, time.ceiling, time.effective, time.clamped), (Some(60_000), 5_000, 5_000, true));
    assert!(decision.notes.all.iter().any(|n| n.contains("clamped: timeoutMs asked 60000, gets 5000")));
    assert_eq!(shape(&decision).limits.get(Limit::MemoryBytes), 2_147_483_648);
    assert_eq!(shape(&decision).limits.get(Limit::Processes), 4);
    let cap = parsed_host(
        "name = \"h\"\nwhy = \"w\"\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 1000\n",
    );
    let decision = decide(&tool, &under(vec![parsed(&text)], Some(cap)));
    assert_eq!(decision.limit(Limit::TimeoutMs).unwrap().effective, 1_000);
    // What the cap does not say is the built-in default.
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
    let notes = policy::call_notes(&decision, Some(999_999));
    assert_eq!(notes.all, ["clamped: timeoutMs asked 999999, gets 30000 (set by the built-in default)"]);
    assert_eq!(notes.told, ["clamped: timeoutMs asked 999999, gets 30000"], "a caller reads no place");
    assert_eq!(policy::call_notes(&decision, Some(20_000)), policy::Notes::default());
    let fault = time(Some(50)).unwrap_err();
    assert_eq!(fault.kind, Kind::ParameterValidationError);
    assert!(fault.message.contains("timeoutMs") && fault.message.contains("100"), "{}", fault.message);
    // Without a request of the manifest a call has the default, also where the policy allows more.
    let long = policy_text(&["./**"], &[], "[limits]\ntimeout_ms = 60_000");
    let decision = decide(&self::tool("demo:one"), &under(vec![parsed(&long)], None));
    let times = [None, Some(50_000), Some(90_000)]
        .map(|asked| policy::confine(&decision, asked, None).unwrap().per_call.timeout_ms);
    assert_eq!(times, [30_000, 50_000, 60_000]);
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
    assert!(notes[0].words.contains("exact"), "{notes:?}");
    assert_eq!(policies.governing("demo:two", manifest).0.name, "ns");
    assert_eq!(policies.governing("demonstration:two", manifest).0.name, "any");
}

#[test]
fn runtimes_come_from_the_policy_first_and_missing_ones_are_named() {
    let text =
        policy_text(&["./**"], &[], "[runtimes]\npython = { path = \"/opt/venv/bin/python\", why = \"pandas\" }");
    let policies = under(vec![parsed(&text)], None);
    assert_eq!(policies.named_runtimes(), [(Language::Python, PathBuf::from("/opt/venv/bin/python"))]);
    assert_eq!(refused(&decide(&tool("demo:one"), &policies)).0, Kind::CapabilityError);
    let mut machine = machine();
    machine.named_runtimes.insert("/opt/venv/bin/python".into(), Err("it is a directory".into()));
    let decision = policy::decide(&tool("demo:one"), &site(), &policies, &machine);
    let reason = decision.denied().next().and_then(|verdict| verdict.reason.clone()).unwrap_or_default();
    assert!(reason.ends_with("cannot be used here: it is a directory"), "{reason}");
    machine.named_runtimes.insert("/opt/venv/bin/python".into(), Ok(python("/opt/venv/bin/python")));
    let decision = policy::decide(&tool("demo:one"), &site(), &policies, &machine);
    assert_eq!(shape(&decision).runtime.program, Program::Path("/opt/venv/bin/python".into()));
    let none = policy::decide(&tool("demo:one"), &site(), &Policies::built_in(), &Machine::default());
    let fault = none.shape.unwrap_err();
    assert_eq!(fault.kind, Kind::CapabilityError);
    assert!(fault.message.contains("the runtime 'python': not found on this host's PATH"), "{}", fault.message);
    let mut wasm = tool("demo:one");
    wasm.handler = Handler::Script { script_path: "a.wasm".into(), language: Language::Wasm, entry_point: None };
    let decision = policy::decide(&wasm, &site(), &Policies::built_in(), &Machine::default());
    match cfg!(feature = "wasi") {
        true => assert_eq!(shape(&decision).runtime.program, Program::Ourselves { role: "wasm-worker".into() }),
        false => assert!(
            decision.shape.unwrap_err().message.contains("the runtime 'wasm': this toolhost was built without WASI")
        ),
    }
}

#[test]
fn capabilities_need_the_policy_and_the_machine() {
    let has_it = offering("hunter2");
    let granted = || under(vec![granting("demo:one", "env:TOKEN")], None);
    let declares = Machine { declared: ["gpu".to_owned()].into(), ..machine() };
    let table: [(&str, Policies, &Machine, Option<Kind>); 12] = [
        ("gpu", Policies::built_in(), &declares, None),
        ("subprocess", Policies::built_in(), &machine(), None),
        ("env:TOKEN", Policies::built_in(), &machine(), Some(Kind::CapabilityError)),
        ("env:TOKEN", granted(), &machine(), Some(Kind::CapabilityError)),
        ("env:TOKEN", Policies::built_in(), &has_it, Some(Kind::SecurityError)),
        ("env:TOKEN", granted(), &has_it, None),
        ("env:OTHER", granted(), &has_it, Some(Kind::CapabilityError)),
        ("env:LD_PRELOAD", granted(), &has_it, Some(Kind::CapabilityError)),
        ("gpu", granted(), &has_it, Some(Kind::CapabilityError)),
        ("long-running", granted(), &has_it, Some(Kind::CapabilityError)),
        ("secret:KEY", granted(), &has_it, Some(Kind::SecurityError)),
        ("telepathy", granted(), &has_it, Some(Kind::CapabilityError)),
    ];
    for (word, policies, machine, expected) in table {
        let mut tool = tool("demo:one");
        tool.asks.capabilities = vec![word.into()];
        let decision = policy::decide(&tool, &site(), &policies, machine);
        assert_eq!(decision.shape.as_ref().err().map(|f| f.kind), expected, "{word}");
    }
}

#[test]
fn a_granted_variable_reaches_the_tool_and_is_shown_nowhere() {
    let mut asks = tool("demo:one");
    asks.asks.capabilities = vec!["env:TOKEN".into()];
    let policies = under(vec![granting("demo:one", "env:TOKEN")], None);
    let decision = policy::decide(&asks, &site(), &policies, &offering("hunter2"));
    assert_eq!(shape(&decision).env["TOKEN"].text(), "hunter2");
    let shown = format!(
        "{decision:?} {} {} {}",
        report(&decision),
        policy::audit::json(&decision, &asks),
        serde_json::to_string(shape(&decision)).unwrap()
    );
    assert!(!shown.contains("hunter2") && shown.contains("never shown"), "{shown}");
    let other = policy::decide(&asks, &site(), &policies, &offering("swordfish"));
    assert_eq!(shape(&decision).digest(), shape(&other).digest(), "a digest is no oracle for it");

    // A builtin that was granted the variable does not lend it to a script whose own tool was not.
    let mut core = execute();
    core.asks.capabilities = vec!["env:TOKEN".into()];
    let policies = under(vec![granting("core:execute-python-script", "env:TOKEN")], None);
    let namer = vec![(Arc::new(tool("demo:one")), site())];
    let alone = policy::decide_run(&target(), &core, &[], &policies, &offering("hunter2"));
    assert!(shape(&alone).env.contains_key("TOKEN"));
    let met = policy::decide_run(&target(), &core, &namer, &policies, &offering("hunter2"));
    assert!(!shape(&met).env.contains_key("TOKEN") && met.notes.told.iter().any(|n| n.contains("env:TOKEN")));
}

#[test]
fn a_script_run_by_core_asks_a_client_only_if_its_own_tool_may() {
    let policies =
        under(vec![granting("core:execute-python-script", "ask:sampling"), granting("demo:two", "ask:sampling")], None);
    let (mut core, mut may) = (execute(), tool("demo:two"));
    core.asks.capabilities = vec!["ask:sampling".into()];
    may.asks.capabilities = core.asks.capabilities.clone();
    let run = |namers: &[_]| policy::decide_run(&target(), &core, namers, &policies, &machine()).asks();
    assert_eq!(run(&[]), [policy::Ask::Sampling]);
    assert_eq!(run(&[(Arc::new(may.clone()), site())]), [policy::Ask::Sampling]);
    assert!(run(&[(Arc::new(may), site()), (Arc::new(tool("demo:one")), site())]).is_empty());
}

/// Names that nobody but the host sets: one table for manifests, policies and calls (tests/service.rs reads it too).
pub const REFUSED_NAMES: [&str; 14] = [
    "LD_PRELOAD",
    "ld_preload",
    "PYTHONPATH",
    "NODE_OPTIONS",
    "BUN_CONFIG",
    "TOOLHOST_ROOT",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "PATH",
    "LANG",
    "A=B",
    "1A",
    "Ä",
    "",
];

#[test]
fn env_that_steers_the_loader_is_refused_for_manifests_and_policies_alike() {
    for name in REFUSED_NAMES {
        let mut tool = tool("demo:one");
        tool.execution.env.insert(name.into(), "x".into());
        assert_eq!(refused(&decide(&tool, &Policies::built_in())).0, Kind::SecurityError, "{name}");
        assert!(policy::grantable(&format!("env:{name}")).is_err(), "env:{name}");
    }
    let mut tool = tool("demo:one");
    tool.execution.env.insert("GREETING".into(), "hi".into());
    assert_eq!(shape(&decide(&tool, &Policies::built_in())).env["GREETING"].text(), "hi");
}

#[test]
fn what_a_policy_requires_and_is_missing_refuses() {
    let requiring = |what: &str| {
        under(vec![parsed(&policy_text(&["./**"], &[], &format!("require = [\"{what}\"]\nstderr = \"error\"")))], None)
    };
    let mut tool = tool("demo:one");
    assert_eq!(refused(&decide(&tool, &requiring("cgroup"))).0, Kind::CapabilityError);
    let has_it = Machine { cgroup: true, ..machine() };
    let decision = policy::decide(&tool, &site(), &requiring("cgroup"), &has_it);
    assert!(shape(&decision).require_cgroup && shape(&decision).stderr_is_error);
    let fault = decide(&tool, &requiring("permission:orders")).shape.unwrap_err();
    assert!(fault.kind == Kind::CapabilityError && fault.message.contains("the permission 'orders'"), "{fault:?}");
    tool.metadata.permissions = vec!["orders".into()];
    assert!(decide(&tool, &requiring("permission:orders")).shape.is_ok());
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
    assert!(met.notes.all.iter().any(|n| n.contains("demo:one@1.0.0 names this script")), "{:?}", met.notes);

    // It reads one folder only, and its policy has little time.
    let few = vec![(Arc::new(asking(Some(&["data/**"]), &[])), site())];
    let brief = parsed(&policy_text(&["./**"], &[], "[limits]\ntimeout_ms = 700"));
    let met = policy::decide_run(&target(), &execute(), &few, &under(vec![core(), brief], None), &machine());
    let areas: Vec<String> = shape(&met).grants.iter().map(|g| Area::from_opening(&g.opening).text()).collect();
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

/// Every field of a policy is named here with what reads it; a new field does not compile until it is.
#[test]
fn every_policy_field_is_read_by_what_enforces_it() {
    let Policy {
        name: _,                // decide: Verdict::rule, Decision::policy
        why: _,                 // file: blank refuses to load; for people
        file: _,                // decide: Verdict::place
        tools: _,               // load: governing
        folders: _,             // load: governing
        mode,                   // decide: refused or dropped
        stderr,                 // decide: Shape::stderr_is_error
        require_cgroup,         // decide: Shape::require_cgroup
        require_permissions: _, // decide: permissions
        observe,                // decide: Shape::observe
        confirm,                // decide: Decision::confirm, for which the road asks a person
        confirm_by_client,      // decide: Confirm::by_client, by which the road chooses whom it asks
        files: _,               // files::Judge
        limits: _,              // limits
        runtimes: _,            // decide: runtime
        capabilities: _,        // decide: capabilities
        hosts: _,               // reach: Shape::network, which egress serves
        secrets: _,             // uses: Shape::secrets, whose values the road reads
        packages: _,            // package_use: Shape::packages
        services: _,            // services::judge → Decision::service
        digest,                 // decide: Decision::digest
        source: _,              // reports: diff
        fault: _,               // decide: every call is refused
    } = Policy::built_in();
    assert_eq!((mode, stderr, require_cgroup, observe), (policy::Mode::Reject, StderrRule::Log, false, false));
    assert_eq!((confirm, confirm_by_client), (None, None));
    assert_eq!(digest.len(), 64);
}
