//! Secrets in reports: audit, who-can, suggested policies, differences.

use super::secrets::{allowing, asks, capping, granted};
use super::*;

#[test]
fn every_report_speaks_of_secrets() {
    let policies = under(vec![allowing(&["A+", "B"], "reject")], None);
    let tool = asks(&["A", "B"], &["api.x.com"]);
    let decision = decide(&tool, &policies);
    let (text, json) = (report(&decision), policy::audit::json(&decision, &tool));
    let header = "A: header x-a (`Bearer {}`) of api.x.com, added by toolhost (never shown), from \
        file:/t/p/keys/A";
    let variable = "B: the variable B (never shown), from file:/t/p/keys/B";
    for words in [
        header,
        variable,
        "rule p: B, why for B",
        "returns it transformed",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let entry = json!({"name": "B", "use": "the variable B (never shown)", "from": "file:/t/p/keys/B", "header": null,
        "rule": "p: B", "why": "for B"});
    assert_eq!(
        (&json["secrets"][1], &json["secrets"][0]["header"]["host"]),
        (&entry, &json!("api.x.com"))
    );
    assert!(!report(&decide(&asks(&["B"], &[]), &policies)).contains("returns it transformed"));
    let who = |question: &str| {
        let question = policy::who_can::question(question).expect("a question");
        policy::who_can::text(
            &question,
            &policy::who_can::answer(std::slice::from_ref(&decision), &question, &[]),
        )
    };
    assert!(
        who("secret:A").contains(&format!("demo:one@1.0.0: without having it ({header})")),
        "{}",
        who("secret:A")
    );
    assert!(who("secret:B").contains("and has it") && who("secret:C").starts_with("No tool"));
    assert!(
        ["secret:", "secret:A-B", "secret:PATH"]
            .iter()
            .all(|bad| policy::who_can::question(bad).is_err())
    );
    let suggested = policy::suggest::policy(
        &tool,
        &site(),
        &decide(&tool, &Policies::built_in()),
        &places(),
    );
    assert_eq!(granted(&decide(&tool, &ruled(&suggested))), ["A", "B"]);
}

#[test]
fn a_diff_reads_where_a_secret_lies_and_how_it_is_used() {
    let entry = |from: &str, header: &str| {
        let header = if header.is_empty() {
            String::new()
        } else {
            format!("header = {{ {header} }}, ")
        };
        format!("[secrets]\ngrant = [{{ name = \"A\", from = \"{from}\", {header}why = \"w\" }}]\n")
    };
    let header = |more: &str| {
        entry(
            "env:A",
            &format!("host = \"api.x.com\", name = \"k\"{more}"),
        )
    };
    let of = |secrets: &str| {
        let hosts = "[network]\nhosts = [{ host = \"api.x.com\", why = \"w\" }, \
            { host = \"b.x.com\", why = \"w\" }]\n";
        ruled(&format!("{HEAD}mode = \"narrow\"\n{hosts}{secrets}"))
    };
    let tool = asks(&["A"], &["api.x.com", "b.x.com"]);
    let lines = |old: Powers, new: Powers| {
        changes(old, new).map(|lines| {
            lines
                .iter()
                .filter_map(|it| it.strip_prefix("secret "))
                .collect::<Vec<_>>()
                .join("; ")
        })
    };
    let (get, v1) = (
        header(", methods = [\"GET\"]"),
        header(", paths = [\"/v1/**\"]"),
    );
    let (two, deep) = (
        header(", methods = [\"PUT\", \"GET\"]"),
        header(", paths = [\"/v1/a/**\", \"/v1/b\"]"),
    );
    let with = |more: &str| {
        format!("A: header k of api.x.com{more}, added by toolhost (never shown), from env:A")
    };
    let variable = |from: &str| format!("A: the variable A (never shown), from {from}");
    let [nothing, env, file, plain] = [
        String::new(),
        entry("env:A", ""),
        entry("file:a", ""),
        header(""),
    ];
    let query = header(", paths = [\"/v1/**\"], query = [\"q\"]");
    let asked = header(", paths = [\"/v1/**\"], request_headers = [\"X-A\"]");
    let dressed = header(", value = \"Bearer {}\"");
    for (old, new, more, less) in [
        (&nothing, &plain, with(""), String::new()),
        (&nothing, &env, variable("env:A"), String::new()),
        (&env, &file, variable("file:a"), variable("env:A")),
        (&env, &plain, with(""), variable("env:A")),
        (&plain, &get, String::new(), with("")),
        (&get, &two, with(", only PUT GET"), String::new()),
        (&get, &v1, with(", at /v1/**"), with(", only GET")),
        (&v1, &deep, String::new(), with(", at /v1/**")),
        (
            &v1,
            &query,
            with(", at /v1/**, with query q"),
            String::new(),
        ),
        (
            &v1,
            &asked,
            with(", at /v1/**, with request headers x-a"),
            String::new(),
        ),
        (
            &plain,
            &dressed,
            with("").replace("r k ", "r k (`Bearer {}`) "),
            with(""),
        ),
    ] {
        assert_eq!(
            lines(powers(&tool, &of(old)), powers(&tool, &of(new))),
            [more, less],
            "{old} {new}"
        );
    }
    // An audit that was saved before there were secrets has none.
    let mut saved = policy::audit::json(&decide(&tool, &of(&plain)), &tool);
    saved
        .as_object_mut()
        .expect("an object")
        .shift_remove("secrets");
    assert_eq!(Powers::from_json(saved).expect("an audit").secrets, []);
    // A cap that takes a secret away takes it from every tool.
    let tool = asks(&["A"], &[]);
    let capped = |names: &[&str]| {
        powers(
            &tool,
            &under(vec![allowing(&["A"], "narrow")], Some(capping(names))),
        )
    };
    assert_eq!(
        lines(capped(&[]), capped(&["A"]))[0],
        variable("file:keys/A")
    );
}
