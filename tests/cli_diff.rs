//! `diff`: every field of both languages that changes is spoken of, and what lies in the granted folders counts.

use crate::harness::{Host, host};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

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

fn published(host: &Host, what: &str) -> BTreeSet<String> {
    let (_, out, _) = host.run(&["schema", what]);
    let mut found = BTreeSet::new();
    fields(&serde_json::from_str(&out).unwrap(), "", &mut found);
    found
}

impl Host {
    fn diff(&self, old: &str, new: &str) -> String {
        let (code, out, err) = self.run(&["diff", old, new]);
        assert_eq!(code, 0, "{old} {new}: {out}{err}");
        out
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// Everything of the manifest of a script, a service method, a prompt and two resources, and another value for each field.
fn changed_manifests() -> (Vec<Value>, Vec<(&'static str, Value)>) {
    let script = json!({
        "$schema": "a", "toolId": "t:whole", "displayName": "whole", "description": "d", "version": "1.0.0",
        "handler": { "type": "external-script", "scriptPath": "whole/main.py", "language": "python", "entryPoint": "run" },
        "parameters": { "type": "object", "properties": { "a": { "type": "string", "description": "d" } } },
        "output": { "type": "object" },
        "securityContext": {
            "fileAccess": { "allowRead": ["self"], "allowWrite": ["out/*.csv"] },
            "networkAccess": { "allowHosts": [] }, "requiredCapabilities": [],
        },
        "execution": { "timeoutMs": 5000, "stderr": "log", "output": "json", "mode": "sync", "task": "optional", "env": { "A": "1" }, "warm": false },
        "limits": {
            "cpuMs": 5000, "memoryBytes": 50_000_000, "processes": 5, "openFiles": 50, "scratchBytes": 500_000,
            "fileBytes": 500_000, "writtenBytes": 500_000, "writtenFiles": 500, "inputBytes": 5000, "outputBytes": 5000, "logBytes": 5000,
            "connections": 5, "sentBytes": 5000, "receivedBytes": 5000,
        },
        "presentation": { "final": false, "hidden": false, "modelName": "whole", "schemaAsWritten": false },
        "metadata": { "category": "c", "author": "a", "permissions": ["p"] }, "idempotent": false,
        "requires": {}, "tags": ["t"],
        "examples": [{ "description": "e", "input": { "a": "x" }, "expectedOutput": {} }],
    });
    let mut method = script.clone();
    method["handler"] = json!({
        "type": "service-method", "serviceName": "ExternalScriptExecutionService", "methodName": "executeScript",
        "language": "python", "parameterMap": {},
    });
    let document = |handler: Value| {
        let mut document = script.clone();
        document["handler"] = handler;
        document["securityContext"].as_object_mut().unwrap().remove("fileAccess");
        document
    };
    let content = json!({ "type": "text", "text": "hi" });
    let ask = json!({ "q": { "method": "roots/list" } });
    let prompt = json!({ "type": "prompt", "messages": [{ "role": "user", "content": content }], "ask": ask });
    let resource = json!({ "type": "resource", "uri": "t://x", "mimeType": "text/plain", "text": "one" });
    let file = json!({ "type": "resource", "uri": "t://x", "file": "x.md" });
    let documents = [prompt, resource, file].map(document);
    // A service elsewhere is not confined here.
    let mut service = script.clone();
    service["handler"] = json!({ "type": "tool-service", "service": "far", "config": { "style": "pun" } });
    for confining in ["securityContext", "execution", "limits"] {
        service.as_object_mut().unwrap().remove(confining);
    }
    let changes = vec![
        ("/$schema", json!("b")),
        ("/toolId", json!("t:other")),
        ("/displayName", json!("other")),
        ("/description", json!("other")),
        ("/version", json!("1.0.1")),
        ("/handler/type", json!("x-mine")),
        ("/handler/scriptPath", json!("whole/other.py")),
        ("/handler/language", json!("py")),
        ("/handler/entryPoint", json!("other")),
        ("/handler/serviceName", json!("Other")),
        ("/handler/methodName", json!("runCode")),
        ("/handler/parameterMap", json!({ "a": "scriptPath" })),
        ("/handler/messages/*/role", json!("assistant")),
        ("/handler/messages/*/content/type", json!("image")),
        ("/handler/ask", json!({})),
        ("/handler/uri", json!("t://y")),
        ("/handler/mimeType", json!("text/html")),
        ("/handler/text", json!("two")),
        ("/handler/file", json!("y.md")),
        ("/handler/service", json!("farther")),
        ("/handler/config", json!({ "style": "limerick" })),
        ("/parameters/type", Value::Null),
        ("/output", json!({ "type": "array" })),
        ("/securityContext/fileAccess/allowRead", json!(["./**"])),
        ("/securityContext/fileAccess/allowWrite", json!([])),
        ("/securityContext/networkAccess/allowHosts", json!(["example.com"])),
        ("/securityContext/requiredCapabilities", json!(["subprocess"])),
        ("/execution/timeoutMs", json!(6000)),
        ("/execution/stderr", json!("error")),
        ("/execution/output", json!("text")),
        ("/execution/mode", json!("async")),
        ("/execution/task", json!("required")),
        ("/execution/env", json!({ "A": "2" })),
        ("/execution/warm", json!(true)),
        ("/limits/cpuMs", json!(4000)),
        ("/limits/memoryBytes", json!(60_000_000)),
        ("/limits/processes", json!(6)),
        ("/limits/openFiles", json!(40)),
        ("/limits/scratchBytes", json!(400_000)),
        ("/limits/fileBytes", json!(400_000)),
        ("/limits/writtenBytes", json!(400_000)),
        ("/limits/writtenFiles", json!(400)),
        ("/limits/inputBytes", json!(4000)),
        ("/limits/outputBytes", json!(4000)),
        ("/limits/logBytes", json!(4000)),
        ("/limits/connections", json!(4)),
        ("/limits/sentBytes", json!(4096)),
        ("/limits/receivedBytes", json!(4096)),
        ("/presentation/final", json!(true)),
        ("/presentation/hidden", json!(true)),
        ("/idempotent", json!(true)),
        ("/presentation/modelName", json!("other")),
        ("/presentation/schemaAsWritten", json!(true)),
        ("/metadata/category", json!("o")),
        ("/metadata/author", json!("o")),
        ("/metadata/permissions", json!(["o"])),
        ("/requires", json!({ "t:x": "^1" })),
        ("/tags", json!(["o"])),
        ("/examples/*/description", json!("o")),
        ("/examples/*/input", json!({ "a": "y" })),
        ("/examples/*/expectedOutput", json!({ "b": 1 })),
    ];
    ([vec![script, method, service], documents.to_vec()].concat(), changes)
}

#[test]
fn every_field_of_a_manifest_that_changes_is_told() {
    let host = host();
    host.tool("t:whole", json!({}));
    fs::write(host.folder.path().join("user_scripts/whole/other.py"), "print(2)\n").unwrap();
    fs::remove_file(host.folder.path().join("user_scripts/whole/whole.tool.json")).unwrap();
    let writes = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = [{ path = \"./out/**\", why = \"w\" }]\n";
    host.policy(&format!("name = \"p\"\nwhy = \"w\"\ntools = [\"t:whole\", \"t:other\"]\n{writes}"));
    let (bases, changes) = changed_manifests();
    let script = &bases[0];
    // A field with fields of its own is covered by those.
    let leaf = |field: &str| changes.iter().any(|(place, _)| place.starts_with(&format!("{field}/")));
    let unknown: Vec<String> = published(&host, "manifest")
        .into_iter()
        .filter(|field| !leaf(field) && !changes.iter().any(|(place, _)| place == field))
        .collect();
    assert!(unknown.is_empty(), "a field that this test does not change: {unknown:?}");
    assert_eq!(
        host.diff(
            &host.put("a/whole.tool.json", &script.to_string()),
            &host.put("b/whole.tool.json", &format!("{script:#}"))
        ),
        SILENT,
        "the control"
    );
    for (place, value) in changes {
        let pointer = place.replace('*', "0");
        let base = bases.iter().find(|base| base.pointer(&pointer).is_some()).unwrap_or(&bases[1]);
        let mut new = base.clone();
        match &value {
            // Arguments are always an object; what is below it changes.
            Value::Null => new["parameters"]["properties"]["a"]["maxLength"] = json!(3),
            value => *new.pointer_mut(&pointer).unwrap_or_else(|| panic!("{place}")) = value.clone(),
        }
        if place == "/handler/type" {
            new["handler"] = json!({ "type": value });
        }
        let old = host.put("a/whole.tool.json", &base.to_string());
        let new = host.put("b/whole.tool.json", &new.to_string());
        for (from, to) in [(&old, &new), (&new, &old)] {
            let told = host.diff(from, to);
            assert!(told.contains("t:") && told != SILENT, "{place}: {told}");
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
hosts = [{ host = "x.com", ranges = ["10.0.0.0/8"], why = "host why" }, { host = "*.x", ca = "one.pem", why = "its CA" }]
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

/// (field, what is written, what is written then)
const CHANGES: [(&str, &str, &str); 79] = [
    ("/name", "\"p\"", "\"q\""),
    ("/why", "its why", "other"),
    ("/tools", "\"t:one\"", "\"t:two\""),
    ("/folders", "[\"user_scripts\"]", "[\"user_scripts/one\"]"),
    ("/mode", "reject", "narrow"),
    ("/stderr", "\"log\"", "\"error\""),
    ("/require", "[]", "[\"cgroup\"]"),
    ("/observe", "observe = false", "observe = true"),
    ("/confirm", "asks why", "other"),
    ("/confirm_by_client", "clients why", "other"),
    ("/files/read/*/path", "path = \"./**\"", "path = \"./a/**\""),
    ("/files/read/*/why", "reads why", "other"),
    ("/files/write/*/path", "./out/**", "./else/**"),
    ("/files/write/*/why", "writes why", "other"),
    ("/limits/timeout_ms", "= 5000\n", "= 6000\n"),
    ("/limits/cpu_ms", "5001", "6001"),
    ("/limits/memory_bytes", "50000000", "60000000"),
    ("/limits/processes", "processes = 5", "processes = 6"),
    ("/limits/open_files", "= 50\n", "= 60\n"),
    ("/limits/scratch_bytes", "500001", "600001"),
    ("/limits/file_bytes", "500002", "600002"),
    ("/limits/written_bytes", "700002", "800002"),
    ("/limits/written_files", "702", "802"),
    ("/limits/input_bytes", "5003", "6003"),
    ("/limits/output_bytes", "5004", "6004"),
    ("/limits/log_bytes", "5005", "6005"),
    ("/limits/connections", "57", "58"),
    ("/limits/sent_bytes", "5006", "6006"),
    ("/limits/received_bytes", "5007", "6007"),
    ("/runtimes/python/path", "/opt/p", "/opt/q"),
    ("/runtimes/python/why", "python why", "other"),
    ("/runtimes/nodejs/path", "/opt/n", "/opt/q"),
    ("/runtimes/nodejs/why", "node why", "other"),
    ("/runtimes/bun/path", "/opt/b", "/opt/q"),
    ("/runtimes/bun/why", "bun why", "other"),
    ("/capabilities/grant/*/name", "env:TOKEN", "env:OTHER"),
    ("/capabilities/grant/*/why", "token why", "other"),
    ("/network/hosts/*/host", "x.com", "y.com"),
    ("/network/hosts/*/ranges", "10.0.0.0/8", "10.1.0.0/16"),
    ("/network/hosts/*/why", "host why", "other"),
    ("/network/hosts/*/ca", "one.pem", "two.pem"),
    ("/network/hosts/*/ca", "ca = \"one.pem\", ", ""),
    (
        "/network",
        "[network]\nhosts = [{ host = \"x.com\", ranges = [\"10.0.0.0/8\"], why = \"host why\" }, { host = \"*.x\", ca = \"one.pem\", why = \"its CA\" }]\n",
        "",
    ),
    ("/secrets/grant/*/name", "A_KEY", "B_KEY"),
    ("/secrets/grant/*/from", "env:A_SOURCE", "file:/a.key"),
    ("/secrets/grant/*/why", "key why", "other"),
    ("/secrets/grant/*/header/host", "key.x", "key.x:8443"),
    ("/secrets/grant/*/header/name", "X-Key", "X-Other"),
    ("/secrets/grant/*/header/value", "Bearer {}", "Basic {}"),
    ("/secrets/grant/*/header/methods", "[\"GET\"]", "[\"GET\", \"POST\"]"),
    ("/secrets/grant/*/header/paths", "/v1/**", "/v1/a"),
    ("/secrets/grant/*/header/query", "[\"q\"]", "[\"q\", \"page\"]"),
    ("/secrets/grant/*/header/request_headers", "[\"x-a\"]", "[\"x-b\"]"),
    ("/packages/python/index", "\"py\"", "\"other\""),
    ("/packages/python/lock", "\"py\", lock = \"required\"", "\"py\", lock = \"relaxed\""),
    ("/packages/python/builds", "\"required\", builds = false", "\"required\", builds = true"),
    ("/packages/python/lock_file", "a.pylock.toml", "b.pylock.toml"),
    ("/packages/python/why", "py why", "other"),
    ("/packages/node/index", "\"js\"", "\"other\""),
    ("/packages/node/lock", "\"js\", lock = \"relaxed\"", "\"js\", lock = \"required\""),
    ("/packages/node/builds", "\"relaxed\", builds = true", "\"relaxed\", builds = false"),
    ("/packages/node/lock_file", "a.package-lock.json", "b.package-lock.json"),
    ("/packages/node/why", "js why", "other"),
    (
        "/packages/node",
        "node = { index = \"js\", lock = \"relaxed\", builds = true, lock_file = \"a.package-lock.json\", why = \"js why\" }\n",
        "",
    ),
    ("/packages/deny/*/name", "\"bad\"", "\"worse\""),
    ("/packages/deny/*/versions", "<2", "<3"),
    ("/packages/deny/*/why", "bad why", "other"),
    ("/packages/deny", "deny = [{ name = \"bad\", versions = \"<2\", why = \"bad why\" }]\n", ""),
    ("/packages/min_age_days", "71", "72"),
    ("/packages/min_age_days", "min_age_days = 71\n", ""),
    ("/services/call/*/service", "service = \"far\"", "service = \"near\""),
    ("/services/call/*/request", "[\"request:tg:far\"]", "[\"request:tg:far\", \"request:tg:two\"]"),
    ("/services/call/*/response", "response:tg:far", "response:tg:two"),
    ("/services/call/*/user", "user = false", "user = true"),
    ("/services/call/*/why", "far why", "other"),
    // Tools that lie elsewhere are governed differently then.
    ("/folders", "[\"user_scripts\"]", "[\"elsewhere\"]"),
    ("/folders", "folders = [\"user_scripts\"]\n", ""),
    ("/files/read", "read = [{ path = \"./**\", why = \"reads why\" }]\n", ""),
    ("/limits", "log_bytes = 5005\n", ""),
];

#[test]
fn every_field_of_a_policy_that_changes_is_told() {
    let host = host();
    let of_schema = published(&host, "policy");
    let known =
        |field: &&String| CHANGES.iter().any(|(place, ..)| place == field || place.starts_with(&format!("{field}/")));
    let unknown: Vec<&String> = of_schema.iter().filter(|field| !known(field)).collect();
    assert!(unknown.is_empty(), "a field that this test does not change: {unknown:?}");
    for name in ["a/one.pem", "b/one.pem", "b/two.pem"] {
        host.put(name, "-----BEGIN CERTIFICATE-----\n");
    }
    let old = host.put("a/x.policy.toml", POLICY);
    assert_eq!(host.diff(&old, &host.put("b/x.policy.toml", &format!("# a remark\n{POLICY}"))), SILENT, "the control");
    for (field, from, to) in CHANGES {
        assert_eq!(POLICY.matches(from).count(), 1, "{field}");
        let new = host.put("b/x.policy.toml", &POLICY.replace(from, to));
        let (there, back) = (host.diff(&old, &new), host.diff(&new, &old));
        for told in [&there, &back] {
            assert_ne!(told, SILENT, "{field}");
        }
        assert!(
            !(there.starts_with(SILENT) && back.starts_with(SILENT)),
            "{field} is new in one of them: {there}{back}"
        );
    }
    // The cap of the host is read as well.
    let cap = "name = \"cap\"\nwhy = \"w\"\nstderr = \"log\"\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    for (at, text) in
        [cap.replace("\"log\"", "\"error\""), cap.replace("why = \"w\" }", "why = \"v\" }")].iter().enumerate()
    {
        let old = host.put(&format!("c{at}/host.policy.toml"), cap);
        let new = host.put(&format!("d{at}/host.policy.toml"), text);
        let of = |file: &str| file.trim_end_matches("/host.policy.toml").to_owned();
        let told = host.diff(&of(&old), &of(&new));
        assert!(told.contains("host.policy.toml") || told.contains("stderr"), "{told}");
    }
}

/// A policy that grants a folder whose content refuses every call lets nothing new be done.
#[test]
fn what_lies_in_the_granted_folder_decides() {
    let host = host();
    host.tool("t:out", json!({ "securityContext": { "fileAccess": { "allowWrite": ["out/**"] } } }));
    let rules = |write: &str| {
        format!(
            "name = \"p\"\nwhy = \"w\"\ntools = [\"t:out\"]\n[files]\nread = [{{ path = \"./**\", why = \"w\" }}]\n{write}"
        )
    };
    let old = host.put("a/x.policy.toml", &rules(""));
    let new = host.put("b/x.policy.toml", &rules("write = [{ path = \"./out/**\", why = \"w\" }]\n"));
    assert!(host.diff(&old, &new).contains("can be called"), "the control");
    let code = host.folder.path().join("user_scripts/out/out/x.py");
    fs::create_dir_all(code.parent().unwrap()).unwrap();
    fs::write(code, "").unwrap();
    let told = host.diff(&old, &new);
    assert!(!told.contains("can be called") && told.contains("write"), "{told}");
}

/// Saved audits are compared whole: also the bytes of a script, which no grant speaks of.
#[test]
fn a_script_whose_bytes_changed_is_told() {
    let host = host();
    host.tool("t:one", json!({}));
    let saved = |name: &str| host.put(name, &host.run(&["audit", "--all", "--json"]).1);
    let old = saved("old.json");
    assert_eq!(host.diff(&old, &saved("same.json")), SILENT, "the control");
    fs::write(host.folder.path().join("user_scripts/one/main.py"), "print(2)\n").unwrap();
    for new in [saved("new.json"), "t:one".to_owned()] {
        let told = host.diff(&old, &new);
        assert!(told.contains("/scriptBytes"), "{told}");
    }
    let one = host.put("one.json", &host.run(&["audit", "t:one", "--json"]).1);
    assert_eq!(host.diff(&one, "t:one"), SILENT);
    for (bad, why) in [("{}", "missing field `tool`"), ("[3]", "not an object"), ("oops", "expected")] {
        let (code, _, err) = host.run(&["diff", &host.put("bad.json", bad), "t:one"]);
        assert!(code == 2 && err.contains(why), "{bad}: {err}");
    }
}

/// An older copy elsewhere answers to the policy of the tool that is loaded, whatever `folders` say.
#[test]
fn a_copy_of_a_manifest_is_compared_as_if_it_lay_in_its_place() {
    let host = host();
    host.tool("t:one", json!({ "securityContext": { "fileAccess": { "allowRead": ["./**"] } } }));
    let folders = "name = \"p\"\nwhy = \"w\"\ntools = [\"t:one\"]\nfolders = [\"user_scripts/one\"]\n";
    host.policy(&format!(
        "{folders}[limits]\ntimeout_ms = 60000\n[files]\nread = [{{ path = \"./**\", why = \"w\" }}]\n"
    ));
    let own = host.folder.path().join("user_scripts/one/one.tool.json");
    let copy = host.put("copy.tool.json", &fs::read_to_string(&own).unwrap());
    assert_eq!(host.diff(&copy, own.to_str().unwrap()), SILENT);
    assert_eq!(host.diff("t:one", &copy), SILENT);
}
