//! Audit, suggestion, diff: what each reads of a decision.

use super::*;
use policy::diff::{Diff, between, of_policies};
use toolhost::cli::diff::text;

#[test]
fn a_suggested_policy_loads_as_it_is_and_grants_all() {
    let mut tool = asking(None, &["out/*.csv", "/data/**"]);
    tool.limits.insert(Limit::MemoryBytes, 8 << 30);
    tool.requested.capabilities = vec!["env:TOKEN".into()];
    let decision = decide(&tool, &Policies::built_in());
    let text = policy::suggest::policy(&tool, &site(), &decision, &places());
    let decision = policy::decide(&tool, &site(), &ruled(&text), &offering("x"));
    assert!(
        decision.denied().next().is_none() && decision.shape.is_ok(),
        "{:?}\n{text}",
        decision.verdicts
    );
}

#[test]
fn a_diff_lists_what_could_newly_be_done_and_nothing_else() {
    let small = ruled(&policy_text(&["./**"], &["./out/**"], ""));
    let wide = ruled(&policy_text(
        &["./**", "/data/**"],
        &["./out/**"],
        "[limits]\ntimeout_ms = 60000",
    ));
    let (before, after) = (
        asking(Some(&["./*"]), &["out/*.csv"]),
        asking(Some(&["./*", "/data/x/**"]), &["out/**"]),
    );
    let (old, new) = (|| powers(&before, &small), || powers(&after, &wide));
    let more = [
        "read read /data/x/**",
        "write write /t/user_scripts/demo/out/**",
        "limit timeoutMs up to 60000",
    ];
    assert_eq!(
        changes(old(), new()),
        [more.map(str::to_owned).to_vec(), Vec::new()]
    );
    assert_eq!(
        changes(new(), old()),
        [Vec::new(), more.map(str::to_owned).to_vec()]
    );
    let back = between(&[new()], &[old()]);
    let only = text(&Diff {
        different: Vec::new(),
        ..back.clone()
    });
    assert!(
        only.starts_with("The change allows nothing new.")
            && only.contains("timeoutMs up to 60000"),
        "{only}"
    );
    assert_eq!(
        serde_json::to_value(&back).unwrap()["noLonger"][0]["before"],
        "read /data/x/**"
    );
    // A tool that was refused and now runs.
    assert_eq!(
        between(&[powers(&after, &small)], &[new()]).newly[0].kind,
        "run"
    );
    // Policies by themselves.
    let [old, new] = of_policies(&small, &wide);
    let found = between(&old, &new);
    let places: Vec<String> = found
        .different
        .iter()
        .map(|d| format!("{}: {}", d.subject, d.place))
        .collect();
    assert_eq!(
        places,
        [
            "x.policy.toml: /files/read/~1data~1**",
            "x.policy.toml: /limits"
        ]
    );
    assert!(found.newly.is_empty() && found.no_longer.is_empty());
}

#[test]
fn what_has_no_order_is_different_and_a_confinement_that_differs_is_never_passed_over() {
    let tool = tool("demo:one");
    let one = [powers(&tool, &Policies::built_in())];
    let with = |change: &dyn Fn(&mut Value)| {
        let mut entry = policy::audit::json(&decide(&tool, &Policies::built_in()), &tool);
        change(&mut entry);
        between(&one, &[Powers::from_json(entry).unwrap()])
    };
    assert_eq!(between(&one, &one), Diff::default());
    let found = with(&|entry| entry["digests"]["confinement"] = json!("another")).different;
    assert_eq!(
        (found.len(), found[0].place.as_str()),
        (1, "/digests/confinement"),
        "{found:?}"
    );
    // A fact that this version does not know yet, in a list and below it.
    let diff = with(&|entry| entry["later"] = json!([1, { "a/b": "\u{202e}" }]));
    assert_eq!(diff.different[0].place, "/later", "{diff:?}");
    let text = text(&diff);
    assert!(
        text.starts_with("No grant, limit or capability is new.") && !text.contains('\u{202e}'),
        "{text}"
    );
}
