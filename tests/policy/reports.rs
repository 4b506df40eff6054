//! Audit, suggestion, who-can, diff, and their verbs.

use super::*;

#[test]
fn a_suggested_policy_loads_as_it_is_and_grants_all() {
    let mut tool = asking(None, &["out/*.csv", "/data/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.asks.capabilities = vec!["env:TOKEN".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::suggest::policy(&tool, &site(), &decision, Path::new("/t"));
    let file = Path::new("/t/p/demo.policy.toml");
    let loaded = policy::parse(&text, file, false, Path::new("/t")).unwrap_or_else(|p| panic!("{p:?}\n{text}"));
    let machine = Machine {
        environment: BTreeMap::from([("TOKEN".to_string(), policy::Variable::Host("x".into()))]),
        ..machine()
    };
    let decision = policy::decide(&tool, &site(), &under(vec![loaded], None), &machine);
    assert!(decision.denied().next().is_none() && decision.shape.is_ok(), "{:?}", decision.verdicts);
}

fn powers(tool: &Manifest, policies: &Policies) -> policy::diff::Powers {
    let entry = policy::audit::json(&decide(tool, policies), tool);
    policy::diff::Powers::from_json(entry).unwrap()
}

#[test]
fn a_diff_lists_what_could_newly_be_done_and_nothing_else() {
    use policy::diff::{Change, Diff, between, of_policies};
    use toolhost::cli::diff::text;
    let set = |text: &str| under(vec![parsed(text)], None);
    let small = policy_text(&["./**"], &["./out/**"], "");
    let wide = policy_text(&["./**", "/data/**"], &["./out/**"], "[limits]\ntimeout_ms = 60000");
    let (before, after) = (asking(Some(&["./*"]), &["out/*.csv"]), asking(Some(&["./*", "/data/x/**"]), &["out/**"]));
    let (old, new) = ([powers(&before, &set(&small))], [powers(&after, &set(&wide))]);
    let lines = |changes: &[Change]| {
        changes.iter().map(|c| format!("{} {}", c.kind, c.now.clone().unwrap_or_default())).collect::<Vec<_>>()
    };
    let more = ["read read /data/x/**", "write write /t/user_scripts/demo/out/**", "limit timeoutMs up to 60000"];
    let there = between(&old, &new);
    assert_eq!(lines(&there.newly), more, "{there:?}");
    assert!(there.no_longer.is_empty(), "{there:?}");
    let back = between(&new, &old);
    assert!(back.newly.is_empty(), "{back:?}");
    let lost: Vec<String> =
        back.no_longer.iter().map(|l| format!("{} {}", l.kind, l.before.clone().unwrap_or_default())).collect();
    assert_eq!(lost, more, "{back:?}");
    let only = text(&Diff { different: Vec::new(), ..back.clone() });
    assert!(only.starts_with("Nothing new can be done.") && only.contains("timeoutMs up to 60000"), "{only}");
    assert_eq!(serde_json::to_value(&back).unwrap()["noLonger"][0]["before"], "read /data/x/**");
    // A tool that was refused and now runs.
    assert_eq!(between(&[powers(&after, &set(&small))], &new).newly[0].kind, "run");
    // Policies by themselves.
    let [old, new] = of_policies(&set(&small), &set(&wide));
    let found = between(&old, &new);
    let places: Vec<String> = found.different.iter().map(|d| format!("{}: {}", d.subject, d.place)).collect();
    assert_eq!(places, ["x.policy.toml: /files/read/~1data~1**", "x.policy.toml: /limits"]);
    assert!(found.newly.is_empty() && found.no_longer.is_empty());
}

#[test]
fn what_has_no_order_is_different_and_a_confinement_that_differs_is_never_passed_over() {
    use policy::diff::{Powers, between};
    let one = [powers(&tool("demo:one"), &Policies::built_in())];
    assert_eq!(between(&one, &one), policy::diff::Diff::default());
    let mut entry = policy::audit::json(&decide(&tool("demo:one"), &Policies::built_in()), &tool("demo:one"));
    entry["digests"]["confinement"] = "another".into();
    let found = between(&one, &[Powers::from_json(entry).unwrap()]).different;
    assert_eq!((found.len(), found[0].place.as_str()), (1, "/digests/confinement"), "{found:?}");
    // A fact that this version does not know yet, in a list and below it.
    let mut entry = policy::audit::json(&decide(&tool("demo:one"), &Policies::built_in()), &tool("demo:one"));
    entry["later"] = serde_json::json!([1, { "a/b": "\u{202e}" }]);
    let later = Powers::from_json(entry).unwrap();
    let diff = between(&one, &[later]);
    assert_eq!(diff.different[0].place, "/later", "{diff:?}");
    let text = toolhost::cli::diff::text(&diff);
    assert!(text.starts_with("No grant, limit or capability is new.") && !text.contains('\u{202e}'), "{text}");
}
