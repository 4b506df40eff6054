//! Limits, runtimes, capabilities, scripts run by core, and the last step before a call.

use super::*;

/// A policy of this tool that grants a capability.
fn granting(id: &str, capability: &str) -> Policy {
    let grant = format!("[capabilities]\ngrant = [{{ name = \"{capability}\", why = \"w\" }}]");
    let text = policy_text(&["./**"], &[], &grant);
    parsed(
        &text
            .replace("demo:one", id)
            .replace("name = \"p\"", &format!("name = \"{id}\"")),
    )
}

#[test]
fn limits_are_the_smallest_and_clamps_are_said() {
    let text = policy_text(
        &["./**"],
        &[],
        "[limits]\ntimeout_ms = 5_000\nmemory_bytes = 2_147_483_648",
    );
    let mut tool = tool("demo:one");
    tool.execution.timeout_ms = Some(60_000);
    tool.limits.insert(Limit::Processes, 4);
    let decision = decide(&tool, &ruled(&text));
    let time = decision.limit(Limit::TimeoutMs).unwrap();
    assert_eq!(
        (time.asked, time.ceiling, time.effective, time.clamped),
        (Some(60_000), 5_000, 5_000, true)
    );
    assert!(
        decision
            .notes
            .all
            .iter()
            .any(|n| n.contains("clamped: timeoutMs asked 60000, gets 5000"))
    );
    let limits = |decision: &Decision| {
        [Limit::MemoryBytes, Limit::Processes].map(|it| shape(decision).limits.get(it))
    };
    assert_eq!(limits(&decision), [2_147_483_648, 4]);
    let cap = parsed_host("name = \"h\"\nwhy = \"w\"\n[limits]\ntimeout_ms = 1000\n");
    let decision = decide(&tool, &under(vec![parsed(&text)], Some(cap)));
    assert_eq!(decision.limit(Limit::TimeoutMs).unwrap().effective, 1_000);
    assert_eq!(
        limits(&decision),
        [1 << 30, 4],
        "what the cap does not say is the built-in default"
    );
}

#[test]
fn a_call_may_ask_for_time_up_to_the_ceiling_only() {
    let mut slow = tool("demo:one");
    slow.execution.timeout_ms = Some(10_000);
    let decision = decide(&slow, &Policies::built_in());
    let time = |decision: &Decision, asked| {
        policy::confine(decision, asked, None).map(|c| c.per_call.timeout_ms)
    };
    let times =
        [None, Some(20_000), Some(100), Some(999_999)].map(|asked| time(&decision, asked).unwrap());
    assert_eq!(times, [10_000, 20_000, 100, 30_000]);
    let notes = policy::call_notes(&decision, Some(999_999));
    assert_eq!(
        notes.all,
        ["clamped: timeoutMs asked 999999, gets 30000 (set by the built-in default)"]
    );
    assert_eq!(
        notes.for_caller,
        ["clamped: timeoutMs asked 999999, gets 30000"],
        "a caller reads no place"
    );
    assert_eq!(
        policy::call_notes(&decision, Some(20_000)),
        policy::Notes::default()
    );
    let fault = time(&decision, Some(50)).unwrap_err();
    assert_eq!(fault.kind, Kind::ParameterValidationError);
    assert!(
        fault.message.contains("timeoutMs") && fault.message.contains("100"),
        "{}",
        fault.message
    );
    // Without a request of the manifest a call has what the policy says.
    let decision = decide(
        &tool("demo:one"),
        &ruled(&policy_text(
            &["./**"],
            &[],
            "[limits]\ntimeout_ms = 60_000",
        )),
    );
    assert_eq!(
        [None, Some(50_000), Some(90_000)].map(|it| time(&decision, it).unwrap()),
        [60_000, 50_000, 60_000]
    );
}

#[test]
fn the_narrowest_policy_governs_where_its_folders_hold_the_manifest() {
    let named = |(name, tools, more): (&str, &str, &str)| {
        parsed(&format!(
            "name = \"{name}\"\nwhy = \"w\"\ntools = [\"{tools}\"]\n{more}"
        ))
    };
    let folders = "folders = [\"tool-defs/demo\"]";
    let policies = [
        ("any", "*", ""),
        ("ns", "demo:*", ""),
        ("exact", "demo:one", folders),
    ]
    .map(named);
    let policies = under(policies.into(), None);
    let inside = Path::new("/t/tool-defs/demo/x.tool.json");
    let elsewhere = Path::new("/t/tool-defs/demo2/x.tool.json");
    for (id, manifest, name) in [
        ("demo:one", inside, "exact"),
        ("demo:one", elsewhere, "ns"),
        ("demo:two", inside, "ns"),
        ("demonstration:two", inside, "any"),
    ] {
        assert_eq!(
            policies.governing(id, manifest).0.name,
            name,
            "{id} {manifest:?}"
        );
    }
    let notes = policies.governing("demo:one", elsewhere).1;
    assert!(notes[0].words.contains("exact"), "{notes:?}");
}

#[test]
fn runtimes_come_from_the_policy_first_and_missing_ones_are_named() {
    let path = "/opt/venv/bin/python";
    let named = format!("[runtimes]\npython = {{ path = \"{path}\", why = \"pandas\" }}");
    let policies = ruled(&policy_text(&["./**"], &[], &named));
    assert_eq!(
        policies.named_runtimes(),
        [(Language::Python, PathBuf::from(path))]
    );
    assert_eq!(
        refused(&decide(&tool("demo:one"), &policies)).0,
        Kind::CapabilityError
    );
    let having = |runtime| {
        let named_runtimes = [(path.into(), runtime)].into();
        policy::decide(
            &tool("demo:one"),
            &site(),
            &policies,
            &Machine {
                named_runtimes,
                ..machine()
            },
        )
    };
    let decision = having(Err("it is a directory".into()));
    let reason = decision
        .denied()
        .next()
        .and_then(|verdict| verdict.reason.clone())
        .unwrap_or_default();
    assert!(
        reason.ends_with("cannot be used here: it is a directory"),
        "{reason}"
    );
    assert_eq!(
        shape(&having(Ok(python(path)))).runtime.program,
        Program::Path(path.into())
    );
    let none = |tool: &Manifest| {
        policy::decide(tool, &site(), &Policies::built_in(), &Machine::default()).shape
    };
    let fault = none(&tool("demo:one")).unwrap_err();
    assert_eq!(fault.kind, Kind::CapabilityError);
    assert!(
        fault
            .message
            .contains("the runtime 'python': not found on this host's PATH"),
        "{}",
        fault.message
    );
    let handler = Handler::Script(ScriptReference {
        path: "a.wasm".into(),
        language: Language::Wasm,
        entry_point: None,
    });
    let wasm = none(&Manifest {
        handler,
        ..tool("demo:one")
    });
    match cfg!(feature = "wasi") {
        true => assert_eq!(
            wasm.unwrap().runtime.program,
            Program::Ourselves {
                role: "wasm-worker".into()
            }
        ),
        false => {
            let words = "the runtime 'wasm': this toolhost was built without WASI";
            assert!(wasm.unwrap_err().message.contains(words));
        }
    }
}

#[test]
fn capabilities_need_the_policy_and_the_machine() {
    let (none, has_it) = (machine(), offering("hunter2"));
    let (built_in, granted) = (
        Policies::built_in(),
        under(vec![granting("demo:one", "env:TOKEN")], None),
    );
    let declares = Machine {
        declared: ["gpu".to_owned()].into(),
        ..machine()
    };
    let lacking = "env:LD_PRELOAD gpu long-running telepathy";
    for (words, policies, machine, expected) in [
        ("gpu", &built_in, &declares, None),
        ("subprocess", &built_in, &none, None),
        // What policy says does not depend on the shell of the host.
        ("env:TOKEN", &built_in, &none, Some(Kind::SecurityError)),
        ("env:OTHER", &granted, &has_it, Some(Kind::SecurityError)),
        ("env:TOKEN", &granted, &none, Some(Kind::CapabilityError)),
        ("env:TOKEN", &built_in, &has_it, Some(Kind::SecurityError)),
        ("env:TOKEN", &granted, &has_it, None),
        (lacking, &granted, &has_it, Some(Kind::CapabilityError)),
        ("secret:KEY", &granted, &has_it, Some(Kind::SecurityError)),
    ] {
        for word in words.split(' ') {
            let decision = policy::decide(&requiring(&[word]), &site(), policies, machine);
            assert_eq!(decision.shape.err().map(|f| f.kind), expected, "{word}");
        }
    }
}

#[test]
fn a_granted_variable_reaches_the_tool_and_is_shown_nowhere() {
    let asks = requiring(&["env:TOKEN"]);
    let policies = under(vec![granting("demo:one", "env:TOKEN")], None);
    let decision = policy::decide(&asks, &site(), &policies, &offering("hunter2"));
    assert_eq!(shape(&decision).env["TOKEN"].text(), "hunter2");
    let (audit, whole) = (
        policy::audit::json(&decision, &asks),
        serde_json::to_string(shape(&decision)).unwrap(),
    );
    let shown = format!("{decision:?} {} {audit} {whole}", report(&decision));
    assert!(
        !shown.contains("hunter2") && shown.contains("never shown"),
        "{shown}"
    );
    let other = policy::decide(&asks, &site(), &policies, &offering("swordfish"));
    assert_eq!(
        shape(&decision).digest(),
        shape(&other).digest(),
        "a digest is no oracle for it"
    );

    // A builtin that was granted the variable does not lend it to a script whose own tool was not.
    let mut core = execute();
    core.requested.capabilities = asks.requested.capabilities;
    let policies = under(
        vec![granting("core:execute-python-script", "env:TOKEN")],
        None,
    );
    assert!(
        shape(&run_by(&core, vec![], &policies, &offering("hunter2")))
            .env
            .contains_key("TOKEN")
    );
    let met = run_by(
        &core,
        vec![tool("demo:one")],
        &policies,
        &offering("hunter2"),
    );
    assert!(
        !shape(&met).env.contains_key("TOKEN")
            && met.notes.for_caller.iter().any(|n| n.contains("env:TOKEN"))
    );
}

#[test]
fn a_script_run_by_core_asks_a_client_only_if_its_own_tool_may() {
    let policies =
        ["core:execute-python-script", "demo:two"].map(|id| granting(id, "ask:elicitation"));
    let policies = under(policies.into(), None);
    let (mut core, mut may) = (execute(), tool("demo:two"));
    core.requested.capabilities = vec!["ask:elicitation".into()];
    may.requested.capabilities = core.requested.capabilities.clone();
    let run = |namers| run_by(&core, namers, &policies, &machine()).may_ask();
    assert!(run(vec![]));
    assert!(run(vec![may.clone()]));
    assert!(!run(vec![may, tool("demo:one")]));
}

/// Names that nobody but the host sets: one table for manifests, policies and calls
/// (tests/service.rs reads it too).
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
    let with = |name: &str| {
        let mut tool = tool("demo:one");
        tool.execution.env.insert(name.into(), "hi".into());
        decide(&tool, &Policies::built_in())
    };
    for name in REFUSED_NAMES {
        assert_eq!(refused(&with(name)).0, Kind::SecurityError, "{name}");
        assert!(
            policy::grantable(&format!("env:{name}")).is_err(),
            "env:{name}"
        );
    }
    assert_eq!(shape(&with("GREETING")).env["GREETING"].text(), "hi");
}

#[test]
fn what_a_policy_requires_and_is_missing_refuses() {
    let needing = |what: &str| {
        ruled(&format!(
            "{HEAD}require = [\"{what}\"]\nstderr = \"error\"\n"
        ))
    };
    let mut tool = tool("demo:one");
    assert_eq!(
        refused(&decide(&tool, &needing("cgroup"))).0,
        Kind::CapabilityError
    );
    let decision = policy::decide(
        &tool,
        &site(),
        &needing("cgroup"),
        &Machine {
            cgroup: true,
            ..machine()
        },
    );
    assert!(shape(&decision).require_cgroup && shape(&decision).stderr_is_error);
    let fault = decide(&tool, &needing("permission:orders"))
        .shape
        .unwrap_err();
    assert!(
        fault.kind == Kind::CapabilityError && fault.message.contains("the permission 'orders'"),
        "{fault:?}"
    );
    tool.metadata.permissions = vec!["orders".into()];
    assert!(decide(&tool, &needing("permission:orders")).shape.is_ok());
}

#[test]
fn a_script_run_by_core_answers_to_every_manifest_that_names_it() {
    let run = |namers, more: Option<Policy>| {
        run_by(
            &execute(),
            namers,
            &under([parsed(CORE)].into_iter().chain(more).collect(), None),
            &machine(),
        )
    };
    let alone = run(vec![], None);
    let cache = live("/t/user_scripts/demo/.cache");
    assert!(
        shape(&alone)
            .grants
            .iter()
            .any(|g| g.opening() == cache && g.access == Access::Write)
    );
    assert_eq!(
        shape(&alone).script.as_deref(),
        Some(Path::new("/t/user_scripts/demo/run.py"))
    );

    // A manifest names the script and has only its own folder for reading.
    let met = run(vec![tool("demo:one")], None);
    assert!(
        shape(&met).grants.iter().all(|g| g.access == Access::Read),
        "{:?}",
        met.grants
    );
    assert!(
        shape(&met)
            .grants
            .iter()
            .any(|g| g.opening() == live("/t/user_scripts/demo"))
    );
    assert!(
        met.notes
            .all
            .iter()
            .any(|n| n.contains("demo:one@1.0.0 names this script")),
        "{:?}",
        met.notes
    );

    // It reads one folder only, and its policy has little time.
    let brief = parsed(&policy_text(&["./**"], &[], "[limits]\ntimeout_ms = 700"));
    let met = run(vec![asking(Some(&["data/**"]), &[])], Some(brief));
    let areas = areas(&met);
    assert!(
        areas.contains(&"/t/user_scripts/demo/data/**".to_string()),
        "{areas:?}"
    );
    assert!(
        !areas.contains(&"/t/user_scripts/demo/**".to_string()),
        "{areas:?}"
    );
    assert_eq!(
        policy::confine(&met, Some(5_000), None)
            .unwrap()
            .per_call
            .timeout_ms,
        700
    );

    // It is refused itself.
    assert_eq!(
        refused(&run(vec![asking(Some(&["/data/**"]), &[])], None)).0,
        Kind::SecurityError
    );
}

#[test]
fn run_code_has_scratch_only_and_exists_only_where_a_policy_names_it() {
    let decision = run_code(execute(), &ruled(CORE));
    assert!(shape(&decision).grants.is_empty());
    assert_eq!(
        (&*shape(&decision).folder, &shape(&decision).script),
        (Path::new("/tmp/call"), &None)
    );
    assert!(policy::confine(&decision, None, Some("print(1)".into())).is_ok());
    assert_eq!(
        policy::confine(&decision, None, None).unwrap_err().kind,
        Kind::InternalError
    );
    assert_eq!(
        refused(&run_code(execute(), &Policies::built_in())).0,
        Kind::SecurityError
    );
}

/// Every field of a policy is named here with what reads it; a new field does not compile until it
/// is.
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
        approval_required,      // load: requires_approval → decide: Decision::approval
        observe,                // decide: Shape::observe
        confirm,                // decide: Decision::confirm, for which the road asks a person
        confirm_by_client, // decide: Confirm::by_client, by which the road chooses whom it asks
        files: _,          // files::Judge
        limits: _,         // limits
        runtimes: _,       // decide: runtime
        capabilities: _,   // decide: capabilities
        hosts: _,          // reach: Shape::network, which egress serves
        secrets: _,        // uses: Shape::secrets, whose values the road reads
        packages: _,       // package_use: Shape::packages
        services: _,       // services::judge → Decision::service
        calls: _,          // calls: Shape::calls; service: Parent
        ready: _,          // ready::grant_of → Shape::ready, by which processes are started ahead
        sessions: _,       // sessions::grant_of → Shape::sessions, by which sessions are kept
        mcp: _,            // mcp::grant_of → Shape::mcp, by which servers are kept
        digest,            // decide: Decision::digest
        source: _,         // reports: diff
        authorities: _,    // spec: certificates in the view, and variables that name them
        fault: _,          // decide: every call is refused
    } = Policy::built_in();
    assert_eq!(
        (mode, stderr, require_cgroup, observe, approval_required),
        (policy::Mode::Reject, StderrRule::Log, false, false, false)
    );
    assert_eq!((confirm, confirm_by_client), (None, None));
    assert_eq!(digest.len(), 64);
}
