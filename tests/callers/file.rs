//! `callers.policy.toml`: what is wrong, where, and the mend; what is refused on disk; what `check`
//! and `diff` say.

use super::{entry, playground, put};
use crate::prelude::*;
use toolhost::policy::{CALLERS_FILE, FileProblem, Policies};
use toolhost::schemas;

const HEAD: &str = "[[caller]]\nname = \"a\"\nwhy = \"w\"\ntools = [\"x:*\"]\n";

/// Line, place, who refuses it (the published schema does, or the reader alone), and the text after
/// the head, where ` ; ` ends a line.
const REFUSED: &str = include_str!("refused.txt");

#[test]
fn what_is_wrong_has_its_place_and_a_mend() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join(CALLERS_FILE);
    let schema = jsonschema::validator_for(&schemas::CALLERS.json).expect("the published schema");
    let published = |text: &str| schema.is_valid(&toml::from_str::<Value>(text).unwrap());
    let load = |text: &str| {
        fs::write(&file, text).unwrap();
        Policies::load(folder.path(), folder.path())
    };
    let good = "role = \"operator\"\nact_as = [\"b\", \"*\"]\nparameters = \
                [{ tool = \"x:b\", name = \"p\", values = [1, \"a\", true, 1.5], why = \"w\" }]\n[[limit]]\ntools \
                = [\"*\"]\nwhy = \"w\"\nat_once = 2\n[breaker]\nwhy = \"w\"\nwait_seconds = 1\n";
    let text = format!("{HEAD}{good}");
    assert!(
        load(&text).is_ok() && published(&text),
        "control: {:?}",
        load(&text)
    );
    for row in REFUSED.lines() {
        let [line, pointer, by, more] = row.splitn(4, '|').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let place = format!("{line}|{pointer}");
        let more = more.replace(
            "PARAMETER ",
            "parameters = [{ tool = \"x:b\", name = \"p\", ",
        );
        let more = more
            .replace("SECRET ", "callback_secret = \"file:k\"\n")
            .replace(" WHY", ", why = \"w\" }]");
        let text = format!("{HEAD}{}\n", more.replace(" ; ", "\n"));
        let problems = load(&text).expect_err(row);
        let at = |found: &&FileProblem| {
            format!("{}|{}", found.problem.line, found.problem.pointer) == place
        };
        let found = problems
            .iter()
            .find(at)
            .unwrap_or_else(|| panic!("{row}: {problems:?}"));
        assert!(found.to_string().contains(CALLERS_FILE), "{found}");
        assert_eq!(
            published(&text),
            by == "reader",
            "the published schema: {row}"
        );
    }
    for (text, word) in [
        ("", "nobody could call anything"),
        ("[breaker]\nwhy = \"w\"\n", "nobody could call anything"),
        ("[[caller\n", "not TOML"),
    ] {
        let problems = load(text).expect_err(text);
        assert!(
            problems.iter().any(|p| p.problem.message.contains(word)),
            "{text}: {problems:?}"
        );
    }
    fs::write(&file, HEAD).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
    let problems = Policies::load(folder.path(), folder.path()).expect_err("others can write it");
    assert!(
        problems[0].to_string().contains("chmod go-w"),
        "{problems:?}"
    );
}

#[test]
fn a_file_that_cannot_be_used_or_is_passed_over_stops_every_call_and_check_says_where() {
    let good = entry("ME", "\"a:*\"", "");
    let playground = playground(Who::User, &good);
    playground.expect("a:one", "{}", "ok {}");
    put(&playground, &good.replace("tools", "toolz"));
    let place = "callers.policy.toml:4:1: /caller/0/toolz: unknown key";
    let refused = playground.expect("a:one", "{}", &format!("SecurityError: {place}"));
    assert_eq!(refused.code, Some(3));
    let checked = playground.cli(&["check"]);
    assert!(
        checked.code != Some(0) && checked.text().contains("  4:1: error"),
        "{checked:?}"
    );
    let named = checked.text().matches("callers.policy.toml").count();
    assert_eq!(named, 1, "{checked:?}");
    let parameters = "parameters = [{ tool = \"b:one\", name = \"m\", max = 3, why = \"w\" }]\n";
    put(
        &playground,
        &entry("ME", "\"a:onne\", \"b:one\"", parameters),
    );
    let checked = playground.cli(&["check"]);
    for word in [
        "'a:onne'",
        "did you mean 'a:one'",
        "b:one@1.0.0 has no parameter `m`",
    ] {
        assert!(checked.text().contains(word), "{word}: {checked:?}");
    }
    // A policy file that is named alone passes over no narrower one beside it.
    put(&playground, &entry("somebody-else", "\"*\"", ""));
    let file = playground
        .path("sandbox-policies/core.policy.toml")
        .display()
        .to_string();
    let call = || playground.call_with("a:one", "{}", &["--policies", &file]);
    let refused = call();
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains(CALLERS_FILE) && refused.stderr.contains("name its folder"),
        "{refused:?}"
    );
    fs::remove_file(playground.path("sandbox-policies/callers.policy.toml")).unwrap();
    assert_eq!(call().out["success"], true, "control: {:?}", call());
    fs::write(
        playground.path("sandbox-policies/host.policy.toml"),
        "name = \"cap\"\nwhy = \"w\"\n",
    )
    .unwrap();
    playground.settle();
    assert!(call().stderr.contains("host.policy.toml"));
}

#[test]
fn diff_says_who_may_newly_call_what() {
    let eve = "[[caller]]\nname = \"eve\"\nwhy = \"w\"\n";
    let old = format!(
        "{}{eve}{}",
        entry("ME", "\"a:one\"", ""),
        entry("*", "\"b:one\"", "")
    );
    let playground = playground(Who::User, &old);
    let side = |name: &str, text: Option<&str>| {
        let folder = playground.path(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("d.policy.toml"),
            "name = \"d\"\nwhy = \"w\"\ntools = [\"*\"]\n",
        )
        .unwrap();
        text.iter()
            .for_each(|text| fs::write(folder.join(CALLERS_FILE), text).unwrap());
        playground.settle();
        folder.display().to_string()
    };
    let before = side("before", Some(&old));
    let told = "tools = [\"a:one\"]\ncallback_secret = \"file:k\"\n\
                callbacks = [{ url = \"https://a.test/\", why = \"w\" }]";
    for (name, from, to, newly) in [
        ("more", "\"a:one\"", "\"a:*\"", "a:two@1.0.0 caller"),
        ("fewer", "tools = [\"a:one\"]\n", "", ""),
        // Eve's entry gave her nothing; without it she is one of everybody.
        ("eve", eve, "", "b:one@1.0.0 caller"),
        (
            "as",
            "name = \"eve\"\nwhy",
            "name = \"eve\"\nact_as = [\"ME\"]\nwhy",
            "a:one@1.0.0 caller",
        ),
        ("told", "tools = [\"a:one\"]", told, "a:one@1.0.0 caller"),
        (
            "rate",
            "tools = [\"a:one\"]",
            "tools = [\"a:one\"]\nat_once = 1",
            "",
        ),
    ] {
        let found = playground.cli(&[
            "diff",
            &before,
            &side(name, Some(&old.replace(from, to))),
            "--json",
        ]);
        let list = found.out["newly"]
            .as_array()
            .unwrap_or_else(|| panic!("{found:?}"))
            .iter();
        let line = |it: &Value| {
            format!(
                "{} {}",
                it["subject"].as_str().unwrap(),
                it["kind"].as_str().unwrap()
            )
        };
        let lines: Vec<String> = list
            .map(line)
            .filter(|line| !line.starts_with("core:"))
            .collect();
        assert_eq!(lines.join(", "), newly, "{name}: {}", found.text());
        let different = found.out["different"].as_array().unwrap();
        assert!(
            different.iter().any(|d| d["subject"] == CALLERS_FILE),
            "{name}: {}",
            found.text()
        );
    }
    let found = playground.cli(&["diff", &before, &side("none", None)]);
    assert!(
        found.text().contains("anybody whom this host serves"),
        "{}",
        found.text()
    );
}
