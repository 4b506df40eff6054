//! `diff`: every field of both languages that changes is spoken of, and what lies in the granted
//! folders counts.

use crate::prelude::*;
use toolhost::manifest::{Manifest, ToolPaths};
use toolhost::policy::diff::{Powers, between, of_policies};
use toolhost::policy::{self, Machine, Policies, Policy};
use toolhost::schemas;

const SILENT: &str = "The change allows nothing new.\n";

/// The members of a published schema, as pointers; `*` is any item of a list.
fn fields(schema: &Value, place: &str, found: &mut BTreeSet<String>) {
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{place}/{name}"));
        fields(member, &format!("{place}/{name}"), found);
    }
    if schema["items"].is_object() {
        fields(&schema["items"], &format!("{place}/*"), found);
    }
    for part in ["oneOf", "anyOf", "allOf"]
        .iter()
        .filter_map(|word| schema[*word].as_array())
        .flatten()
    {
        fields(part, place, found);
    }
}

/// The places of all texts, numbers and flags in a value.
fn leaves(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members
            .iter()
            .for_each(|(name, it)| leaves(it, format!("{place}/{name}"), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, it)| leaves(it, format!("{place}/{at}"), found)),
        _ => found.push(place),
    }
}

/// The value with another text, number or flag in each place, and without that place.
fn changed(value: &Value) -> Vec<(String, Value)> {
    let mut places = Vec::new();
    leaves(value, String::new(), &mut places);
    let change = |place: &String, with: fn(&Value) -> Value| {
        let mut other = value.clone();
        let at = other.pointer_mut(place).expect("a place");
        *at = with(at);
        (place.clone(), other)
    };
    let other = |value: &Value| match value {
        Value::String(text) => json!(format!("{text}x")),
        Value::Bool(flag) => json!(!flag),
        number => json!(number.as_i64().unwrap_or_default() + 1),
    };
    places
        .iter()
        .flat_map(|place| [change(place, other), change(place, |_| Value::Null)])
        .collect()
}

#[test]
fn every_field_of_a_manifest_that_changes_is_reported() {
    let tool = made_of("t:one", script("one/main.py", "python"), json!({}));
    let raw: Value = serde_json::from_str(include_str!("every_field.tool.json")).unwrap();
    let place = |name: &str| PathBuf::from("/t").join(name);
    let (path, folder) = (Some(place("one/main.py")), place("one"));
    let site = ToolPaths {
        manifest: place("x.tool.json"),
        base: place(""),
        script: path,
        folder,
        links: Vec::new(),
    };
    let powers = |raw: &Value| {
        let tool = Manifest {
            raw: raw.clone(),
            ..tool.clone()
        };
        let decision = policy::decide(&tool, &site, &Policies::built_in(), &Machine::default());
        [Powers::from_json(policy::audit::json(&decision, &tool)).expect("an audit")]
    };
    let old = powers(&raw);
    assert_eq!(
        between(&old, &powers(&raw.clone())),
        Default::default(),
        "the control"
    );
    for (place, new) in changed(&raw) {
        for diff in [between(&old, &powers(&new)), between(&powers(&new), &old)] {
            assert!(
                diff.different
                    .iter()
                    .any(|it| it.place == format!("/manifest{place}")),
                "{place}: {diff:?}"
            );
        }
    }
}

const POLICY: &str = include_str!("every_field.policy.toml");

#[test]
fn every_field_of_a_policy_that_changes_is_reported() {
    let (file, root) = (Path::new("/p/x.policy.toml"), Path::new("/p"));
    let read = |text: &str| policy::parse(text, file, false, root).expect("a policy");
    let whole = read(POLICY);
    let mut known = BTreeSet::new();
    fields(&schemas::POLICY.json, "", &mut known);
    let written = |field: &&String| {
        let below = |places: Vec<_>, name: &str| match name {
            "*" => places
                .into_iter()
                .filter_map(Value::as_array)
                .flatten()
                .collect(),
            name => places
                .into_iter()
                .filter_map(|it: &Value| it.get(name))
                .collect(),
        };
        !field
            .split('/')
            .skip(1)
            .fold(vec![&whole.source], below)
            .is_empty()
    };
    let unknown: Vec<&String> = known.iter().filter(|field| !written(field)).collect();
    assert!(
        unknown.is_empty(),
        "a field that this test does not change: {unknown:?}"
    );
    let differs = |source: &Value| {
        let [old, new] = [&whole.source, source].map(|source| {
            let policy = Policy {
                source: source.clone(),
                ..whole.clone()
            };
            Policies::from_parts(vec![policy], None).expect("no conflict")
        });
        let [old, new] = of_policies(&old, &new);
        !between(&old, &new).different.is_empty()
    };
    assert!(
        !differs(&whole.source) && !differs(&read(&format!("# a remark\n{POLICY}")).source),
        "the control"
    );
    for (place, new) in changed(&whole.source) {
        assert!(differs(&new), "{place}");
    }
}

/// Saved audits are compared whole: also the bytes of a script, which no grant speaks of.
#[test]
fn a_script_whose_bytes_changed_is_reported() {
    let host = host();
    host.tool("t:one", json!({}));
    let diff = |old: &str, new: &str| {
        let (code, out, err) = host.run(&["diff", old, new]);
        assert_eq!(code, 0, "{old} {new}: {out}{err}");
        out
    };
    let saved = |name: &str, what: &str| host.put(name, host.run(&["audit", what, "--json"]).1);
    let old = saved("old.json", "--all");
    assert_eq!(
        diff(&old, &saved("same.json", "--all")),
        SILENT,
        "the control"
    );
    host.put("user_scripts/one/main.py", "print(2)\n");
    for new in [&saved("new.json", "--all"), "t:one"] {
        let said = diff(&old, new);
        assert!(said.contains("/scriptBytes"), "{said}");
    }
    assert_eq!(diff(&saved("one.json", "t:one"), "t:one"), SILENT);
    let rule = "name = \"a\"\nwhy = \"w\"\ntools = [\"t:one\"]\n";
    host.put("others/a.policy.toml", rule);
    let policies = host.path("others").display().to_string();
    let (code, _, err) = host.run(&["diff", &policies, "t:one"]);
    assert!(code == 2 && err.contains("two states of one"), "{err}");
    for (bad, why) in [
        ("{}", "missing field `tool`"),
        ("[3]", "not an object"),
        ("oops", "expected"),
    ] {
        let (code, _, err) = host.run(&["diff", &host.put("bad.json", bad), "t:one"]);
        assert!(code == 2 && err.contains(why), "{bad}: {err}");
    }
}

/// A copy of policies elsewhere says the same: relative paths are compared as they are written.
#[test]
fn an_unchanged_copy_of_policies_differs_in_nothing() {
    let host = host();
    let keyed = "[[secrets.grant]]\nname = \"RATES\"\nwhy = \"w\"\n";
    let policy = |file: &str| {
        format!(
            "name = \"x\"\nwhy = \"w\"\ntools = [\"t:one\"]\n\
             [files]\nread = [{{ path = \"./**\", why = \"w\" }}]\n{keyed}from = \"file:{file}\"\n"
        )
    };
    host.tool(
        "t:one",
        json!({"securityContext": {"requiredCapabilities": ["secret:RATES"]}}),
    );
    host.policy(&policy("rates.key"));
    let locked = "name = \"code\"\nwhy = \"w\"\ntools = [\"core:run-code\"]\n[packages]\n\
        python = { index = \"default\", lock_file = \"run-code.pylock.toml\", why = \"w\" }\n";
    host.put("sandbox-policies/code.policy.toml", locked);
    let lock = "lock-version = \"1.0\"\ncreated-by = \"toolhost\"\npackages = []\n";
    host.put("sandbox-policies/run-code.pylock.toml", lock);
    let key = host.put("sandbox-policies/rates.key", "a-secret-of-its-own");
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    let folder = host.path("sandbox-policies").display().to_string();
    let diff = |name: &str, change: &dyn Fn()| {
        let old = host.path(name).display().to_string();
        let copied = Command::new("/bin/cp")
            .args(["-rp", &folder, &old])
            .status();
        assert!(copied.unwrap().success());
        change();
        let (code, out, err) = host.run(&["diff", &old, &folder]);
        assert_eq!(code, 0, "{out}{err}");
        out
    };
    assert_eq!(diff("copy", &|| {}), SILENT);
    let other = diff("other", &|| {
        fs::write(
            host.path("sandbox-policies/rates.key"),
            "another-one-of-its-own",
        )
        .unwrap();
    });
    assert!(
        other.contains("rates.key") && !other.contains("-its-own"),
        "{other}"
    );
    let moved = diff("moved", &|| host.policy(&policy("others.key")));
    assert!(
        moved.contains("file:others.key") && moved.contains("file:rates.key"),
        "{moved}"
    );
    let heads = moved.lines().filter(|line| line.contains("BEFORE"));
    for head in heads {
        assert!(head.find("BEFORE") < head.find("NOW"), "{moved}");
    }
    let relocked = diff("relocked", &|| {
        host.put(
            "sandbox-policies/code.policy.toml",
            locked.replace("run-code.", "other."),
        );
        host.put("sandbox-policies/other.pylock.toml", lock);
    });
    assert!(relocked.contains("other.pylock.toml"), "{relocked}");
}
