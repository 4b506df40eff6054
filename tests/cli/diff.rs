//! `diff`: every field of both languages that changes is spoken of, and what lies in the granted folders counts.

use crate::prelude::*;
use toolhost::manifest::{Manifest, Site};
use toolhost::policy::diff::{Powers, between, of_policies};
use toolhost::policy::{self, Machine, Policies, Policy};

const SILENT: &str = "Nothing new can be done.\n";

/// The members of a published schema, as pointers; `*` is any item of a list.
fn fields(schema: &Value, place: &str, found: &mut BTreeSet<String>) {
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{place}/{name}"));
        fields(member, &format!("{place}/{name}"), found);
    }
    if schema["items"].is_object() {
        fields(&schema["items"], &format!("{place}/*"), found);
    }
    for part in ["oneOf", "anyOf", "allOf"].iter().filter_map(|word| schema[*word].as_array()).flatten() {
        fields(part, place, found);
    }
}

/// The places of all texts, numbers and flags in a value.
fn leaves(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, it)| leaves(it, format!("{place}/{name}"), found)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, it)| leaves(it, format!("{place}/{at}"), found)),
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
    places.iter().flat_map(|place| [change(place, other), change(place, |_| Value::Null)]).collect()
}

#[test]
fn every_field_of_a_manifest_that_changes_is_reported() {
    let handler = json!({ "type": "external-script", "scriptPath": "one/main.py", "language": "python" });
    let tool = made_of("t:one", handler, json!({}));
    let raw = json!({
        "$schema": "a", "toolId": "t:one", "version": "1.0.0", "idempotent": false, "tags": ["t"],
        "handler": {
            "type": "external-script", "entryPoint": "run", "config": { "style": "pun" },
            "messages": [{ "role": "user" }],
        },
        "parameters": { "properties": { "a": { "type": "string", "maxLength": 3 } } },
        "securityContext": {
            "fileAccess": { "allowRead": ["self"] }, "networkAccess": { "allowHosts": ["x.com"] },
            "requiredCapabilities": ["gpu"],
        },
        "execution": { "timeoutMs": 5000, "env": { "A": "1" } }, "limits": { "cpuMs": 5000 },
        "metadata": { "author": "a" },
        "unknown": { "to": ["this version"] },
    });
    let site = Site {
        manifest: "/t/x.tool.json".into(),
        base: "/t".into(),
        script: Some("/t/one/main.py".into()),
        folder: "/t/one".into(),
    };
    let powers = |raw: &Value| {
        let tool = Manifest { raw: raw.clone(), ..tool.clone() };
        let decision = policy::decide(&tool, &site, &Policies::built_in(), &Machine::default());
        [Powers::from_json(policy::audit::json(&decision, &tool)).expect("an audit")]
    };
    let old = powers(&raw);
    assert_eq!(between(&old, &powers(&raw.clone())), Default::default(), "the control");
    for (place, new) in changed(&raw) {
        for diff in [between(&old, &powers(&new)), between(&powers(&new), &old)] {
            assert!(diff.different.iter().any(|it| it.place == format!("/manifest{place}")), "{place}: {diff:?}");
        }
    }
}

const POLICY: &str = r#"name = "p"
why = "its why"
tools = ["t:one"]
folders = ["user_scripts"]
mode = "reject"
stderr = "log"
require = []
observe = false
confirm = "asks why"
confirm_by_client = "clients why"
[files]
read = [{ path = "./**", why = "reads why" }]
write = [{ path = "./out/**", why = "writes why" }]
[limits]
timeout_ms = 5000
cpu_ms = 5001
memory_bytes = 50000000
processes = 5
open_files = 50
scratch_bytes = 500001
file_bytes = 500002
written_bytes = 700002
written_files = 702
input_bytes = 5003
output_bytes = 5004
log_bytes = 5005
connections = 57
sent_bytes = 5006
received_bytes = 5007
[runtimes]
python = { path = "/opt/p", why = "python why" }
nodejs = { path = "/opt/n", why = "node why" }
bun = { path = "/opt/b", why = "bun why" }
[capabilities]
grant = [{ name = "env:TOKEN", why = "token why" }]
[network]
hosts = [
  { host = "x.com", ranges = ["10.0.0.0/8"], why = "host why" },
  { host = "*.x", ca = "one.pem", why = "its CA" },
]
[secrets]
grant = [
  { name = "A_KEY", from = "env:A_SOURCE", why = "key why", header = { host = "key.x", name = "X-Key", value = "Bearer {}", methods = ["GET"], paths = ["/v1/**"], query = ["q"], request_headers = ["x-a"] } },
]
[packages]
python = { index = "py", lock = "required", builds = false, lock_file = "a.pylock.toml", why = "py why" }
node = { index = "js", lock = "relaxed", builds = true, lock_file = "a.package-lock.json", why = "js why" }
deny = [{ name = "bad", versions = "<2", why = "bad why" }]
min_age_days = 71
[services]
call = [
  { service = "far", request = ["request:tg:far"], response = "response:tg:far", user = false, why = "far why" },
]
"#;

#[test]
fn every_field_of_a_policy_that_changes_is_reported() {
    let read =
        |text: &str| policy::parse(text, Path::new("/p/x.policy.toml"), false, Path::new("/p")).expect("a policy");
    let whole = read(POLICY);
    let mut known = BTreeSet::new();
    fields(policy::schema(), "", &mut known);
    let written = |field: &&String| {
        let mut places = vec![&whole.source];
        for name in field.split('/').skip(1) {
            places = match name {
                "*" => places.into_iter().filter_map(Value::as_array).flatten().collect(),
                name => places.into_iter().filter_map(|it| it.get(name)).collect(),
            };
        }
        !places.is_empty()
    };
    let unknown: Vec<&String> = known.iter().filter(|field| !written(field)).collect();
    assert!(unknown.is_empty(), "a field that this test does not change: {unknown:?}");
    let differs = |source: &Value| {
        let with = |source: &Value| {
            let policy = Policy { source: source.clone(), ..whole.clone() };
            Policies::from_parts(vec![policy], None).expect("no conflict")
        };
        let [old, new] = of_policies(&with(&whole.source), &with(source));
        !between(&old, &new).different.is_empty()
    };
    assert!(!differs(&whole.source) && !differs(&read(&format!("# a remark\n{POLICY}")).source), "the control");
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
    assert_eq!(diff(&old, &saved("same.json", "--all")), SILENT, "the control");
    host.put("user_scripts/one/main.py", "print(2)\n");
    for new in [&saved("new.json", "--all"), "t:one"] {
        let said = diff(&old, new);
        assert!(said.contains("/scriptBytes"), "{said}");
    }
    assert_eq!(diff(&saved("one.json", "t:one"), "t:one"), SILENT);
    for (bad, why) in [("{}", "missing field `tool`"), ("[3]", "not an object"), ("oops", "expected")] {
        let (code, _, err) = host.run(&["diff", &host.put("bad.json", bad), "t:one"]);
        assert!(code == 2 && err.contains(why), "{bad}: {err}");
    }
}
