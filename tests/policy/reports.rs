//! Audit, suggestion, who-can, diff, and their verbs.

use super::*;

#[test]
fn the_report_says_all_of_it_and_escapes_outside_text() {
    let mut tool = asking(None, &["/da\u{1b}[31mta/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.asks.capabilities = vec!["sub\u{202e}process".into()];
    tool.metadata.permissions = vec!["everything".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::explain::text(&decision);
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    for word in
        ["asked", "allowed", "effective", "enforced by", "(clamped)", "not defended", "SecurityError", "memoryBytes"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = policy::explain::json(&decision);
    assert!(text.contains("labels   everything (metadata.permissions: not enforced)"), "{text}");
    assert_eq!(json["labels"]["permissions"][0], "everything");
    assert_eq!(json["refused"]["type"], "SecurityError");
    assert_eq!(json["asks"][0]["allowed"], true);
    assert_eq!(json["limits"].as_array().unwrap().len(), Limit::ALL.len());
    for key in ["grants", "network", "digests", "notDefended", "policy", "runtime"] {
        assert!(json.get(key).is_some(), "{key}");
    }
}

#[test]
fn a_suggested_policy_does_not_load_until_each_why_is_filled_in_and_then_grants_all() {
    let mut tool = asking(None, &["out/*.csv", "/data/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.asks.capabilities = vec!["env:TOKEN".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::suggest::policy(&tool, &site(), &decision);
    let file = Path::new("/t/p/demo.policy.toml");
    assert!(policy::parse(&text, file, false, Path::new("/t")).is_err(), "{text}");
    let filled = text.replace("why = \"\"", "why = \"because\"");
    let loaded = policy::parse(&filled, file, false, Path::new("/t")).unwrap_or_else(|p| panic!("{p:?}\n{filled}"));
    let machine = Machine {
        environment: BTreeMap::from([("TOKEN".to_string(), policy::Variable::Host("x".into()))]),
        ..machine()
    };
    let decision = policy::decide(&tool, &site(), &under(vec![loaded], None), &machine);
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
    let both = ["demo:one@1.0.0", "core:execute-python-script@1.0.0"];
    assert_eq!(who("read:/usr/lib/x"), both, "system files are every tool's");
    assert_eq!(who("read:/usr"), both);
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
    let lost = policy::diff::no_longer(&powers(&after, &wide), &powers(&before, &small));
    let lines: Vec<String> = lost.iter().map(|l| format!("{} {}", l.kind, l.before)).collect();
    assert_eq!(
        lines,
        ["read read /data/x/**", "write write /t/user_scripts/demo/out/**", "limit timeoutMs up to 60000"],
        "{lost:?}"
    );
    assert!(policy::diff::no_longer(&powers(&before, &small), &powers(&after, &wide)).is_empty());
    let text = policy::diff::text(&back, &lost);
    assert!(
        text.starts_with("Nothing new can be done.\nWhat can no longer be done:\n  demo:one@1.0.0\n    - read"),
        "{text}"
    );
    assert!(text.contains("- limit      timeoutMs up to 60000   (now: 30000)"), "{text}");
    assert_eq!(policy::diff::json(&back, &lost)["noLonger"][0]["before"], "read /data/x/**");
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
        protect: &|policies| policies,
    };
    let run = |old: &str, new: &str| {
        toolhost::cli::diff::report(&host, &toolhost::cli::diff::Args { old: old.into(), new: new.into(), json: false })
    };
    let text = run(&old, &new).unwrap();
    assert!(text.contains("demo:one\n    + read       read /data/**"), "{text}");
    assert!(text.contains("demo:one@1.0.0\n    + run        can be called   (before: could not run before)"), "{text}");
    let back = run(&new, &old).unwrap();
    assert!(back.starts_with("Nothing new can be done.\nWhat can no longer be done:\n"), "{back}");
    assert!(back.contains("    - run        can be called   (now: cannot run now)"), "{back}");
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

#[test]
fn every_enforcer_is_a_wall_and_the_document_has_them_all() {
    let known = policy::wall::ALL;
    let decision = decide(&asking(Some(&["./*", "data/*.csv"]), &["out/*.csv", "keep/**"]), &Policies::built_in());
    for wall in decision.verdicts.iter().flat_map(|v| &v.enforced_by) {
        assert!(known.contains(&wall.as_str()), "{wall}");
    }
    for limit in &decision.limits {
        assert!(known.contains(&limit.enforced_by.as_str()), "{}", limit.enforced_by);
    }
    let document = include_str!("../../docs/SECURITY.md");
    let rows: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "| wall | stops |")
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(rows, known);
}
