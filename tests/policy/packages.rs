//! Packages: what a policy and its cap allow, what is never installed, and the reports of it.

use super::*;
use toolhost::manifest::Code;
use toolhost::policy::packages::{
    Ecosystem, Package, PackageRequirements, PackageRules, Required, SourceFile,
};
use toolhost::policy::{Ages, Narrower, RequestKind, refused_packages};

fn with(table: &str) -> Policy {
    parsed(&format!("{HEAD}[packages]\n{table}\n"))
}

fn cap(table: &str) -> Policy {
    parsed_host(&format!("name = \"h\"\nwhy = \"w\"\n[packages]\n{table}\n"))
}

fn knowing(indexes: &[&str]) -> Machine {
    let known = indexes.iter().map(|name| {
        (
            (Ecosystem::Python, (*name).to_owned()),
            "https://x/".to_owned(),
        )
    });
    Machine {
        indexes: known.collect(),
        ..machine()
    }
}

fn package(name: &str, version: &str) -> Package {
    Package {
        name: name.into(),
        version: version.into(),
        hashes: vec!["sha256:00".into()],
    }
}

/// What a lock of these says, or requirements where there are none.
fn wanted(packages: &[(&str, &str)]) -> PackageRequirements {
    let [name, versions, place] = ["six", ">=1", "requirements.txt:1"].map(str::to_owned);
    let required = Required {
        name,
        versions,
        pinned: false,
        place,
    };
    PackageRequirements {
        ecosystem: Ecosystem::Python,
        sources: vec![SourceFile {
            path: PathBuf::from("/t/user_scripts/demo/requirements.txt"),
            sha256: "ab".into(),
        }],
        packages: packages
            .iter()
            .map(|(name, version)| package(name, version))
            .collect(),
        lock_file: "requirements.lock".to_owned(),
        locked: !packages.is_empty(),
        inputs: Vec::new(),
        requires: vec![required],
    }
}

fn decided(policy: Policy, cap: Option<Policy>, wanted: PackageRequirements) -> Decision {
    let machine = knowing(&["default", "inner"]);
    let mut decision = policy::decide(
        &tool("demo:one"),
        &site(),
        &under(vec![policy], cap),
        &machine,
    );
    decision.add_requirements(Ok(Some(wanted)), None, &machine);
    decision
}

fn row(decision: &Decision) -> &policy::Verdict {
    decision
        .verdicts
        .iter()
        .find(|verdict| verdict.what == RequestKind::Package)
        .expect("a row")
}

const PLAIN: &str = "python = { index = \"default\", why = \"w\" }";
const OPEN: &str =
    "python = { index = \"default\", lock = \"relaxed\", builds = true, why = \"w\" }";
const AGED: &str = "python = { index = \"default\", why = \"w\" }\nmin_age_days = 3";

/// index, lock required, builds, names denied, age
type Left = (
    &'static str,
    bool,
    bool,
    &'static [&'static str],
    Option<u32>,
);

/// policy, cap ("-": none), and what is left, or who allows none.
#[rustfmt::skip]
const OVERLAPS: &[(&str, &str, Result<Left, Narrower>)] = &[
    (PLAIN, "-", Ok(("default", true, false, &[], None))),
    (OPEN, "-", Ok(("default", false, true, &[], None))),
    ("", "-", Err(Narrower::Policy)),
    ("node = { index = \"default\", why = \"w\" }", "-", Err(Narrower::Policy)),
    ("deny = [{ name = \"a\", why = \"w\" }]", "-", Err(Narrower::Policy)),
    (OPEN, PLAIN, Ok(("default", true, false, &[], None))),
    (PLAIN, OPEN, Ok(("default", true, false, &[], None))),
    (OPEN, "", Err(Narrower::Host)),
    (OPEN, "deny = [{ name = \"a\", why = \"w\" }]", Err(Narrower::Host)),
    ("python = { index = \"inner\", why = \"w\" }", PLAIN, Err(Narrower::Host)),
    ("python = { index = \"elsewhere\", why = \"w\" }", "-", Err(Narrower::Machine)),
    ("python = { index = \"default\", why = \"w\" }\ndeny = \
        [{ name = \"a\", why = \"w\" }]\nmin_age_days = 3",
     "python = { index = \"default\", why = \"w\" }\ndeny = \
     [{ name = \"b\", why = \"w\" }]\nmin_age_days = 9",
     Ok(("default", true, false, &["a", "b"], Some(9)))),
    (AGED, PLAIN, Ok(("default", true, false, &[], Some(3)))),
    (PLAIN, AGED, Ok(("default", true, false, &[], Some(3)))),
];

#[test]
fn the_rules_of_a_call_are_what_policy_and_cap_allow() {
    for (table, most, left) in OVERLAPS {
        let decision = decided(
            with(table),
            (*most != "-").then(|| cap(most)),
            wanted(&[("six", "1.16")]),
        );
        match left {
            Ok((index, lock, builds, denied, age)) => {
                let grant = decision
                    .grants
                    .packages
                    .as_ref()
                    .unwrap_or_else(|| panic!("{table}: {:?}", decision.verdicts));
                let rules = &grant.rules;
                let names: Vec<&str> = rules.deny.iter().map(|d| d.name.as_str()).collect();
                let got = (
                    rules.index.as_str(),
                    rules.lock_required,
                    rules.builds,
                    &*names,
                    rules.min_age_days,
                );
                assert_eq!(got, (*index, *lock, *builds, *denied, *age), "{table}");
                assert_eq!(
                    shape(&decision).packages,
                    decision.grants.packages,
                    "what audit prints is what a call has"
                );
                assert!(row(&decision).allowed);
            }
            Err(narrower) => {
                assert_eq!(refused(&decision).0, Kind::CapabilityError, "{table}");
                assert_eq!(row(&decision).narrower, Some(*narrower), "{table}");
                let need = &decision.lacks[0].words;
                let says = need.contains("`[packages]` and, on a line below, `python = {")
                    || *narrower == Narrower::Machine;
                assert!(says && decision.grants.packages.is_none(), "{need}");
            }
        }
    }
}

#[test]
fn a_script_that_a_builtin_tool_runs_has_the_narrower_of_both() {
    let core = |table: &str| parsed(&format!("{CORE}[packages]\n{table}\n"));
    for (ours, theirs, lock) in [
        (OPEN, PLAIN, Some(true)),
        (OPEN, OPEN, Some(false)),
        (OPEN, "", None),
        ("", OPEN, None),
    ] {
        let (policies, machine) = (
            under(vec![core(ours), with(theirs)], None),
            knowing(&["default"]),
        );
        let mut decision = run_by(&execute(), vec![tool("demo:one")], &policies, &machine);
        decision.add_requirements(Ok(Some(wanted(&[]))), None, &machine);
        assert_eq!(
            decision
                .grants
                .packages
                .as_ref()
                .map(|grant| grant.rules.lock_required),
            lock,
            "{ours} {theirs}"
        );
    }
}

#[test]
fn a_table_that_cannot_be_enforced_is_refused_with_its_place() {
    for (pointer, tables) in [
        ("pyton", &["pyton = {}"][..]),
        (
            "python",
            &[
                "python = \"default\"",
                "python = { why = \"w\" }",
                "python = { index = \"default\" }",
            ],
        ),
        (
            "python/why",
            &["python = { index = \"default\", why = \" \" }"],
        ),
        (
            "python/index",
            &["python = { index = \"https://pypi.org/simple\", why = \"w\" }"],
        ),
        (
            "python/index",
            &["python = { index = \"-x\", why = \"w\" }"],
        ),
        (
            "python/lock",
            &["python = { index = \"default\", lock = \"none\", why = \"w\" }"],
        ),
        (
            "python/builds",
            &["python = { index = \"default\", builds = \"yes\", why = \"w\" }"],
        ),
        (
            "python/extra",
            &["python = { index = \"default\", extra = 1, why = \"w\" }"],
        ),
        (
            "deny/0",
            &["deny = [\"left-pad\"]", "deny = [{ name = \"left-pad\" }]"],
        ),
        ("deny/0/name", &["deny = [{ name = \"-x\", why = \"w\" }]"]),
        (
            "deny/0/versions",
            &["deny = [{ name = \"x\", versions = \"git\", why = \"w\" }]"],
        ),
        (
            "min_age_days",
            &["min_age_days = 0", "min_age_days = \"7\""],
        ),
    ] {
        for table in tables {
            let text = format!("{HEAD}[packages]\n{table}\n");
            let problems =
                policy::parse(&text, Path::new("x"), false, Path::new("/t")).expect_err(table);
            let found = problems
                .iter()
                .find(|p| p.pointer == format!("/packages/{pointer}"));
            assert_eq!(
                found.map(|p| (p.line, p.code)),
                Some((5, Code::Schema)),
                "{table}: {problems:?}"
            );
        }
    }
}

#[test]
fn a_diff_lists_every_way_to_allow_more() {
    let powers = |decision: Decision| {
        [Powers::from_json(policy::audit::json(&decision, &tool("demo:one"))).expect("an audit")]
    };
    let holding =
        |table: &str, version: &str| decided(with(table), None, wanted(&[("six", version)]));
    let with_deny = format!("{PLAIN}\ndeny = [{{ name = \"a\", why = \"w\" }}]\nmin_age_days = 7");
    for (old, new, newly, lost) in [
        (PLAIN, OPEN, true, false),
        (OPEN, PLAIN, false, true),
        (PLAIN, with_deny.as_str(), false, true),
        (with_deny.as_str(), PLAIN, true, false),
        (
            PLAIN,
            "python = { index = \"inner\", why = \"w\" }",
            true,
            true,
        ),
        (PLAIN, PLAIN, false, false),
    ] {
        let [old, new] = [old, new].map(|table| powers(holding(table, "1.16.0")));
        let diff = policy::diff::between(&old, &new);
        assert_eq!(
            diff.newly.iter().any(|c| c.kind == "packages"),
            newly,
            "{diff:?}"
        );
        assert_eq!(
            diff.no_longer.iter().any(|l| l.kind == "packages"),
            lost,
            "{diff:?}"
        );
    }
    let [old, new] = ["1.16.0", "1.17.0"].map(|version| powers(holding(PLAIN, version)));
    let diff = policy::diff::between(&old, &new);
    assert!(
        diff.different
            .iter()
            .any(|d| d.place.starts_with("/packages/holds/six")),
        "{diff:?}"
    );
    let [old, new] = policy::diff::of_policies(
        &under(vec![with(PLAIN)], None),
        &under(vec![with(OPEN)], None),
    );
    let diff = policy::diff::between(&old, &new);
    assert!(
        diff.different
            .iter()
            .any(|d| d.place == "/packages/python/lock"),
        "{diff:?}"
    );
    // An audit that was kept before there were packages.
    let mut saved = policy::audit::json(&holding(PLAIN, "1"), &tool("demo:one"));
    saved
        .as_object_mut()
        .expect("an object")
        .shift_remove("packages");
    assert!(Powers::from_json(saved).is_ok());
}

#[test]
fn what_is_denied_is_never_installed() {
    let rules = |deny: &str, age: &str| -> PackageRules {
        let decision = decided(
            with(&format!("{PLAIN}\ndeny = [{deny}]\n{age}")),
            None,
            wanted(&[("other", "1")]),
        );
        decision.grants.packages.expect("granted").rules
    };
    for (deny, ecosystem, name, version, denied) in [
        (
            "{ name = \"left-pad\", why = \"w\" }",
            Ecosystem::Node,
            "left-pad",
            "1.0.0",
            true,
        ),
        (
            "{ name = \"left-pad\", why = \"w\" }",
            Ecosystem::Node,
            "left-padding",
            "1.0.0",
            false,
        ),
        (
            "{ name = \"left-pad\", versions = \"<2\", why = \"w\" }",
            Ecosystem::Node,
            "left-pad",
            "1.9.9",
            true,
        ),
        (
            "{ name = \"left-pad\", versions = \"<2\", why = \"w\" }",
            Ecosystem::Node,
            "left-pad",
            "2.0.0",
            false,
        ),
        (
            "{ name = \"Some_Thing\", why = \"w\" }",
            Ecosystem::Python,
            "some-thing",
            "1",
            true,
        ),
        (
            "{ name = \"a\", versions = \">=1,<2\", why = \"w\" }",
            Ecosystem::Python,
            "a",
            "2.0",
            false,
        ),
        // A range of the other ecosystem denies every version of this one.
        (
            "{ name = \"a\", versions = \"^1.0\", why = \"w\" }",
            Ecosystem::Python,
            "a",
            "9",
            true,
        ),
    ] {
        let found = refused_packages(&rules(deny, ""), ecosystem, &[package(name, version)], None);
        assert_eq!(
            !found.is_empty(),
            denied,
            "{deny} {name} {version}: {found:?}"
        );
    }
    let aged = rules("", "min_age_days = 7");
    let ages = |days: &[u64]| -> Ages { days.iter().map(|d| (package("a", "1"), *d)).collect() };
    for (ages, word) in [
        (Some(ages(&[6])), "6 days old"),
        (Some(ages(&[7])), ""),
        (Some(ages(&[])), "not known"),
        (None, ""),
    ] {
        let found = refused_packages(
            &aged,
            Ecosystem::Python,
            &[package("a", "1")],
            ages.as_ref(),
        );
        assert_eq!(found.is_empty(), word.is_empty(), "{found:?}");
        assert!(word.is_empty() || found[0].contains(word), "{found:?}");
    }
}

#[test]
fn a_tool_without_packages_is_decided_as_before() {
    let digest =
        |policy: Policy| shape(&decide(&tool("demo:one"), &under(vec![policy], None))).digest();
    assert_eq!(
        digest(with("")),
        digest(with(OPEN)),
        "a policy's packages change nothing for who requires none"
    );
    let bare = decide(&tool("demo:one"), &under(vec![with("")], None));
    let text = serde_json::to_string(shape(&bare)).expect("a shape is plain data");
    assert!(!text.contains("packages"), "{text}");
    let with_some = decided(with(OPEN), None, wanted(&[("six", "1.16")]));
    assert_ne!(shape(&with_some).digest(), digest(with(OPEN)), "control");
    let mut edited = wanted(&[("six", "1.16")]);
    edited.sources[0].sha256 = "cd".into();
    assert_ne!(
        shape(&decided(with(OPEN), None, edited)).digest(),
        shape(&with_some).digest(),
        "an edit of the lock"
    );
}
