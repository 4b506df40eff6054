//! `callers.policy.toml`: what is wrong, where, and the mend; what is refused on disk; what `check` and `diff` say.

use super::{entry, playground, put};
use crate::prelude::*;
use toolhost::policy::{CALLERS_FILE, FileProblem, Policies, callers};

const HEAD: &str = "[[caller]]\nname = \"a\"\nwhy = \"w\"\ntools = [\"x:*\"]\n";

/// Line, place, who refuses it (the published schema does, or the reader alone), and the text after the head, where ` ;
/// ` ends a line.
const REFUSED: &str = r#"
5|/caller/0/tolls|schema|tolls = []
5|/callr|schema|[[callr]]
5|/caller/1|schema|[[caller]] ; name = "b"
5|/caller/1|schema|[[caller]] ; why = "w"
6|/caller/1/name|reader|[[caller]] ; name = "a" ; why = "w"
6|/caller/1/name|schema|[[caller]] ; name = "a b" ; why = "w"
6|/caller/1/name|schema|[[caller]] ; name = "a*" ; why = "w"
5|/caller/0/role|schema|role = "root"
5|/caller/0/calls_per_minute|schema|calls_per_minute = 0
5|/caller/0/at_once|schema|at_once = "many"
5|/caller/0/act_as/0|schema|act_as = ["b*"]
5|/caller/0/parameters/0/tool|reader|parameters = [{ tool = "y:b", name = "p", prefix = "q" WHY
5|/caller/0/parameters/0|schema|PARAMETER why = "w" }]
5|/caller/0/parameters/0|schema|PARAMETER prefix = "q", max = 3 WHY
5|/caller/0/parameters/0/under|reader|PARAMETER under = "../q" WHY
5|/caller/0/parameters/0/values/0|schema|PARAMETER values = [[1]] WHY
5|/caller/0/parameters/0/values|schema|PARAMETER values = [] WHY
5|/caller/0/parameters/0/min|reader|PARAMETER min = 4, max = 3 WHY
1|/caller/0|schema|callbacks = [{ url = "https://a.test/" WHY
1|/caller/0|schema|callback_secret = "file:k"
5|/caller/0/callback_secret|schema|callback_secret = "k" ; callbacks = [{ url = "https://a.test/" WHY
6|/caller/0/callbacks/0|schema|SECRET callbacks = ["https://a.test/"]
6|/caller/0/callbacks/0|schema|SECRET callbacks = [{ url = "https://a.test/" }]
6|/caller/0/callbacks/0/url|reader|SECRET callbacks = [{ url = "https://*.a.test/" WHY
6|/caller/0/callbacks/0/url|schema|SECRET callbacks = [{ url = "https://a.test/?x" WHY
6|/caller/0/callbacks/0/url|reader|SECRET callbacks = [{ url = "http://10.1.2.3/" WHY
5|/caller/0/parameters/0|schema|PARAMETER prefix = "q" }]
5|/limit/0|schema|[[limit]] ; tools = ["x:b"] ; why = "w"
6|/limit/0/tools|schema|[[limit]] ; tools = [] ; why = "w" ; at_once = 1
5|/breaker|schema|[breaker] ; failures = 2
6|/breaker/failures|schema|[breaker] ; failures = 0 ; why = "w"
"#;

#[test]
fn what_is_wrong_has_its_place_and_a_mend() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join(CALLERS_FILE);
    let schema = jsonschema::validator_for(callers::schema()).expect("the published schema");
    let published = |text: &str| {
        let document: Value = serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap();
        schema.is_valid(&document)
    };
    let load = |text: &str| {
        fs::write(&file, text).unwrap();
        Policies::load(folder.path(), folder.path())
    };
    let good = "role = \"operator\"\nact_as = [\"b\", \"*\"]\n\
                parameters = [{ tool = \"x:b\", name = \"p\", values = [1, \"a\", true, 1.5], why = \"w\" }]\n\
                [[limit]]\ntools = [\"*\"]\nwhy = \"w\"\nat_once = 2\n[breaker]\nwhy = \"w\"\nwait_seconds = 1\n";
    let text = format!("{HEAD}{good}");
    assert!(load(&text).is_ok() && published(&text), "control: {:?}", load(&text));
    for row in REFUSED.trim().lines() {
        let [line, pointer, by, more] = row.splitn(4, '|').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let more = more.replace("PARAMETER ", "parameters = [{ tool = \"x:b\", name = \"p\", ");
        let more = more.replace("SECRET ", "callback_secret = \"file:k\"\n").replace(" WHY", ", why = \"w\" }]");
        let text = format!("{HEAD}{}\n", more.replace(" ; ", "\n"));
        let problems = load(&text).expect_err(row);
        let at =
            |p: &&FileProblem| (p.problem.line.to_string().as_str(), p.problem.pointer.as_str()) == (line, pointer);
        let found = problems.iter().find(at).unwrap_or_else(|| panic!("{row}: {problems:?}"));
        assert!(found.to_string().contains(CALLERS_FILE), "{found}");
        assert_eq!(published(&text), by == "reader", "the published schema: {row}");
    }
    for (text, word) in [
        ("", "nobody could call anything"),
        ("[breaker]\nwhy = \"w\"\n", "nobody could call anything"),
        ("[[caller\n", "not TOML"),
    ] {
        let problems = load(text).expect_err(text);
        assert!(problems.iter().any(|p| p.problem.message.contains(word)), "{text}: {problems:?}");
    }
    fs::write(&file, HEAD).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
    let problems = Policies::load(folder.path(), folder.path()).expect_err("others can write it");
    assert!(problems[0].to_string().contains("chmod go-w"), "{problems:?}");
}

#[test]
fn a_file_that_cannot_be_used_stops_every_call_and_check_says_where() {
    let playground = playground(Who::User, "[[caller]]\nname = \"ME\"\nwhy = \"w\"\ntools = [\"a:*\"]\n");
    assert_eq!(playground.call("a:one", "{}").out["success"], true, "control");
    put(&playground, "[[caller]]\nname = \"ME\"\nwhy = \"w\"\ntoolz = [\"a:*\"]\n");
    let refused = playground.call("a:one", "{}");
    assert_eq!((refused.code, refused.kind()), (Some(3), "SecurityError"), "{refused:?}");
    assert!(refused.stderr.contains("callers.policy.toml:4:1: /caller/0/toolz: unknown key"), "{}", refused.stderr);
    let checked = playground.cli(&["check"]);
    assert!(checked.code != Some(0) && checked.text().contains("callers.policy.toml:4:1"), "{checked:?}");
    let parameters = "parameters = [{ tool = \"b:one\", name = \"m\", max = 3, why = \"w\" }]\n";
    put(&playground, &entry("ME", "\"a:onne\", \"b:one\"", parameters));
    let checked = playground.cli(&["check"]);
    for word in ["'a:onne'", "did you mean 'a:one'", "b:one@1.0.0 has no parameter `m`"] {
        assert!(checked.text().contains(word), "{word}: {checked:?}");
    }
}

#[test]
fn diff_says_who_may_newly_call_what() {
    let eve = "[[caller]]\nname = \"eve\"\nwhy = \"w\"\n";
    let old = &format!("{}{eve}{}", entry("ME", "\"a:one\"", ""), entry("*", "\"b:one\"", ""));
    let playground = playground(Who::User, old);
    let side = |name: &str, text: Option<&str>| {
        let folder = playground.path(name);
        fs::create_dir_all(&folder).unwrap();
        let policy = "name = \"d\"\nwhy = \"w\"\ntools = [\"*\"]\n";
        fs::write(folder.join("d.policy.toml"), policy).unwrap();
        if let Some(text) = text {
            fs::write(folder.join(CALLERS_FILE), text).unwrap();
        }
        folder.display().to_string()
    };
    let before = side("before", Some(old));
    let told = "tools = [\"a:one\"]\ncallback_secret = \"file:k\"\n\
                callbacks = [{ url = \"https://a.test/\", why = \"w\" }]";
    let cases = [
        ("more", Some(old.replace("\"a:one\"", "\"a:*\"")), json!([["a:two@1.0.0", "caller"]])),
        ("fewer", Some(old.replace("tools = [\"a:one\"]\n", "")), json!([])),
        // Eve's entry gave her nothing; without it she is one of everybody.
        ("eve", Some(old.replace(eve, "")), json!([["b:one@1.0.0", "caller"]])),
        (
            "as",
            Some(old.replace("name = \"eve\"\nwhy", "name = \"eve\"\nact_as = [\"ME\"]\nwhy")),
            json!([["a:one@1.0.0", "caller"]]),
        ),
        ("told", Some(old.replace("tools = [\"a:one\"]", told)), json!([["a:one@1.0.0", "caller"]])),
        ("rate", Some(old.replace("tools = [\"a:one\"]", "tools = [\"a:one\"]\nat_once = 1")), json!([])),
    ];
    for (name, text, expected) in cases {
        let after = side(name, text.as_deref());
        playground.settle();
        let found = playground.cli(&["diff", &before, &after, "--json"]);
        let pairs = |key: &str| {
            let list = found.out[key].as_array().unwrap_or_else(|| panic!("{found:?}")).iter();
            Value::Array(
                list.filter(|c| !c["subject"].as_str().unwrap().starts_with("core:"))
                    .map(|c| json!([c["subject"], c["kind"]]))
                    .collect(),
            )
        };
        assert_eq!(pairs("newly"), expected, "{name}: {}", found.text());
        let different = found.out["different"].as_array().unwrap();
        assert!(different.iter().any(|d| d["subject"] == CALLERS_FILE), "{name}: {}", found.text());
    }
    let all = side("none", None);
    playground.settle();
    let found = playground.cli(&["diff", &before, &all]);
    assert!(found.text().contains("anybody whom this host serves"), "{}", found.text());
}

#[test]
fn a_policy_file_that_is_named_alone_passes_over_no_narrower_one_beside_it() {
    let who = Who::ours();
    let playground = playground(who, "[[caller]]\nname = \"somebody-else\"\nwhy = \"w\"\ntools = [\"*\"]\n");
    let file = playground.path("sandbox-policies/core.policy.toml").display().to_string();
    let call = || playground.call_with("a:one", "{}", &["--policies", &file]);
    let refused = call();
    assert_eq!(refused.code, Some(3), "{who:?}: {refused:?}");
    let words = &refused.stderr;
    assert!(words.contains(CALLERS_FILE) && words.contains("name its folder"), "{who:?}: {words}");
    fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
    assert_eq!(call().out["success"], true, "{who:?}: control: {:?}", call());
    fs::write(playground.path("sandbox-policies/host.policy.toml"), "name = \"cap\"\nwhy = \"w\"\n").unwrap();
    playground.settle();
    assert!(call().stderr.contains("host.policy.toml"), "{who:?}");
}
