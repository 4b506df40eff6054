//! Secrets in reports: audit, who-can, suggested policies, differences.

use super::secrets::{HEAD, allowing, asks, capping, granted};
use super::*;

#[test]
fn every_report_speaks_of_secrets() {
    let policies = under(vec![allowing(&["A+", "B"], "reject")], None);
    let tool = asks(&["A", "B"], &["api.x.com"]);
    let decision = decide(&tool, &policies);
    let (text, json) = (report(&decision), policy::audit::json(&decision, &tool));
    let header = "A: header x-a (`Bearer {}`) of api.x.com, added by toolhost (never shown), from file:/t/p/keys/A";
    for words in [
        header,
        "B: the variable B (never shown), from file:/t/p/keys/B",
        "rule p: B, why for B",
        "returns it transformed",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let entry = json!({"name": "B", "use": "the variable B (never shown)", "from": "file:/t/p/keys/B", "header": null,
        "rule": "p: B", "why": "for B"});
    assert_eq!((&json["secrets"][1], &json["secrets"][0]["header"]["host"]), (&entry, &json!("api.x.com")));
    assert!(!report(&decide(&asks(&["B"], &[]), &policies)).contains("returns it transformed"));
    let who = |question: &str| {
        let question = policy::who_can::question(question).expect("a question");
        policy::who_can::text(&question, &policy::who_can::answer(std::slice::from_ref(&decision), &question, &[]))
    };
    assert!(who("secret:A").contains(&format!("demo:one@1.0.0: without having it ({header})")), "{}", who("secret:A"));
    assert!(who("secret:B").contains("and has it") && who("secret:C").starts_with("No tool"));
    assert!(["secret:", "secret:A-B", "secret:PATH"].iter().all(|bad| policy::who_can::question(bad).is_err()));
    let suggested = policy::suggest::policy(&tool, &site(), &decide(&tool, &Policies::built_in()), Path::new("/t"));
    let loaded =
        policy::parse(&suggested, Path::new("/t/p/demo.policy.toml"), false, Path::new("/t")).expect("a policy");
    assert_eq!(granted(&decide(&tool, &under(vec![loaded], None))), ["A", "B"]);
}

#[test]
fn a_diff_reads_where_a_secret_lies_and_how_it_is_used() {
    use policy::diff::{Change, Powers, between};
    let entry = |from: &str, header: &str| {
        let header = if header.is_empty() { String::new() } else { format!("header = {{ {header} }}, ") };
        format!("[secrets]\ngrant = [{{ name = \"A\", from = \"{from}\", {header}why = \"w\" }}]\n")
    };
    let header = |more: &str| entry("env:A", &format!("host = \"api.x.com\", name = \"k\"{more}"));
    let of = |secrets: &str| {
        let hosts = "[network]\nhosts = [{ host = \"api.x.com\", why = \"w\" }, { host = \"b.x.com\", why = \"w\" }]\n";
        under(vec![parsed(&format!("{HEAD}mode = \"narrow\"\n{hosts}{secrets}"))], None)
    };
    let tool = asks(&["A"], &["api.x.com", "b.x.com"]);
    let lines = |changes: &[Change]| {
        changes.iter().filter(|c| c.kind == "secret").filter_map(|c| c.now.clone()).collect::<Vec<_>>()
    };
    let (get, v1) = (header(", methods = [\"GET\"]"), header(", paths = [\"/v1/**\"]"));
    let (two, deep) = (header(", methods = [\"PUT\", \"GET\"]"), header(", paths = [\"/v1/a/**\", \"/v1/b\"]"));
    let with = |more: &str| format!("A: header k of api.x.com{more}, added by toolhost (never shown), from env:A");
    let variable = |from: &str| format!("A: the variable A (never shown), from {from}");
    let nothing = || String::new();
    for (old, new, more, less) in [
        (nothing(), header(""), vec![with("")], vec![]),
        (nothing(), entry("env:A", ""), vec![variable("env:A")], vec![]),
        (entry("env:A", ""), entry("file:a", ""), vec![variable("file:/t/p/a")], vec![variable("env:A")]),
        (entry("env:A", ""), header(""), vec![with("")], vec![variable("env:A")]),
        (header(""), get.clone(), vec![], vec![with("")]),
        (get.clone(), two, vec![with(", only PUT GET")], vec![]),
        (get, v1.clone(), vec![with(", at /v1/**")], vec![with(", only GET")]),
        (v1.clone(), deep, vec![], vec![with(", at /v1/**")]),
        (
            v1.clone(),
            header(", paths = [\"/v1/**\"], query = [\"q\"]"),
            vec![with(", at /v1/**, with query q")],
            vec![],
        ),
        (
            v1,
            header(", paths = [\"/v1/**\"], request_headers = [\"X-A\"]"),
            vec![with(", at /v1/**, with request headers x-a")],
            vec![],
        ),
        (
            header(""),
            header(", value = \"Bearer {}\""),
            vec![with("").replace("r k ", "r k (`Bearer {}`) ")],
            vec![with("")],
        ),
    ] {
        let powers = |secrets: &str| {
            Powers::from_json(policy::audit::json(&decide(&tool, &of(secrets)), &tool)).expect("an audit")
        };
        let (before, after) = ([powers(&old)], [powers(&new)]);
        let (there, back) = (between(&before, &after), between(&after, &before));
        assert_eq!((lines(&there.newly), lines(&back.newly)), (more, less), "{old} {new}");
    }
    // An audit that was saved before there were secrets has none.
    let mut saved = policy::audit::json(&decide(&tool, &of(&header(""))), &tool);
    saved.as_object_mut().expect("an object").shift_remove("secrets");
    assert_eq!(Powers::from_json(saved).expect("an audit").secrets, []);
    // A cap that takes a secret away takes it from every tool.
    let tool = asks(&["A"], &[]);
    let capped = |names: &[&str]| {
        let policies = under(vec![allowing(&["A"], "narrow")], Some(capping(names)));
        [Powers::from_json(policy::audit::json(&decide(&tool, &policies), &tool)).expect("an audit")]
    };
    assert_eq!(lines(&between(&capped(&[]), &capped(&["A"])).newly), [variable("file:/t/p/keys/A")]);
}
