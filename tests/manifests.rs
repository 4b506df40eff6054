//! Bad manifests as data: text → exact code, pointer and line. Good ones too.

use crate::prelude::*;
use serde_json::Map;
use toolhost::manifest::Code::{Dependency, Schema, Security, Syntax};
use toolhost::manifest::{self, Code, Problem, Severity, schema};

/// A good manifest, one field a line. Cases replace one piece of it.
pub const GOOD: &str = r#"{
  "toolId": "custom:demo",
  "displayName": "Demo",
  "description": "Adds numbers.",
  "version": "1.2.3",
  "handler": { "type": "external-script", "scriptPath": "demo/demo.py", "language": "python" },
  "parameters": { "type": "object",
    "properties": { "n": { "type": "integer", "description": "A number." } } },
  "output": { "type": "object" },
  "securityContext": { "fileAccess": { "allowRead": ["self"], "allowWrite": [] },
    "networkAccess": { "allowHosts": [] }, "requiredCapabilities": [] },
  "examples": [ { "description": "d", "input": { "n": 1 }, "expectedOutput": {} } ],
  "tags": ["a"],
  "execution": { "timeoutMs": 5000, "stderr": "log", "mode": "sync", "env": { "MODE": "x" }, "warm": false },
  "limits": { "memoryBytes": 268435456 },
  "presentation": { "final": false, "hidden": false },
  "metadata": { "category": "c", "author": "me", "permissions": ["p"] },
  "requires": { "custom:other": "^1" }
}"#;

fn problems(text: &str) -> Vec<Problem> {
    match manifest::read(text.as_bytes()) {
        Ok((_, problems)) | Err(problems) => problems,
    }
}

fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old} is not in the good manifest");
    GOOD.replacen(old, new, 1)
}

/// (what to replace, by what, code, pointer, line, a piece of the message)
type Case = (&'static str, &'static str, Code, &'static str, usize, &'static str);

#[rustfmt::skip]
const REFUSED: &[Case] = &[
    ("\"toolId\": \"custom:demo\",", "", Schema, "", 1, "`toolId` is missing"),
    ("\"displayName\": \"Demo\",", "", Schema, "", 1, "`displayName` is missing"),
    ("\"description\": \"Adds numbers.\",", "", Schema, "", 1, "`description` is missing"),
    ("\"version\": \"1.2.3\",", "", Schema, "", 1, "`version` is missing"),
    ("\"handler\": { \"type\": \"external-script\", \"scriptPath\": \"demo/demo.py\", \"language\": \"python\" },", "", Schema, "", 1, "`handler` is missing"),
    ("\"type\": \"external-script\", ", "", Schema, "/handler", 6, "`type` is missing"),
    ("\"scriptPath\": \"demo/demo.py\", ", "", Schema, "/handler", 6, "`scriptPath` is missing"),
    (", \"language\": \"python\"", "", Schema, "/handler", 6, "`language` is missing"),
    ("\"python\"", "\"ruby\"", Schema, "/handler/language", 6, "one of: \"python\", \"nodejs\""),
    ("\"python\"", "\"pyhton\"", Schema, "/handler/language", 6, "did you mean `python`"),
    ("demo/demo.py", "demo/demo.js", Schema, "/handler/scriptPath", 6, "python script ends in .py"),
    ("external-script", "external-scrpt", Schema, "/handler/type", 6, "external-script, service-method"),
    ("\"language\"", "\"shell\": true, \"language\"", Schema, "/handler/shell", 6, "unknown key `shell`"),
    ("\"language\"", "\"entryPoint\": \"a;b\", \"language\"", Schema, "/handler/entryPoint", 6, "one function"),
    ("\"type\": \"external-script\", \"scriptPath\": \"demo/demo.py\", \"language\": \"python\"", "\"type\": \"service-method\", \"methodName\": \"m\"", Schema, "/handler", 6, "`serviceName` is missing"),
    ("custom:demo", "demo", Schema, "/toolId", 2, "namespace:tool-name"),
    ("custom:demo", "custom:../demo", Schema, "/toolId", 2, "namespace:tool-name"),
    ("custom:demo", "custom:a__b", Schema, "/toolId", 2, "namespace:tool-name"),
    ("custom:demo", "custom:dem\u{43e}", Schema, "/toolId", 2, "namespace:tool-name"),
    ("\"Adds numbers.\"", "\" \"", Schema, "/description", 4, "is blank"),
    ("1.2.3", "1.0", Schema, "/version", 5, "three numbers"),
    ("\"parameters\": { \"type\": \"object\"", "\"parameters\": { \"type\": \"array\"", Schema, "/parameters/type", 7, "`type` must be \"object\""),
    ("\"parameters\": { \"type\": \"object\",", "\"parameters\": {", Schema, "/parameters", 7, "always one object"),
    ("\"type\": \"integer\"", "\"type\": \"int\"", Schema, "/parameters/properties/n/type", 8, "not a valid JSON Schema"),
    ("\"type\": \"integer\"", "\"type\": \"integer\", \"default\": \"x\"", Schema, "/parameters/properties/n/default", 8, "does not fit its own schema"),
    ("\"type\": \"integer\"", "\"$ref\": \"https://example.com/s.json\"", Security, "/parameters/properties/n/$ref", 8, "inside its own schema"),
    ("\"type\": \"integer\"", "\"$ref\": \"#/$defs/none\"", Schema, "/parameters/properties/n/$ref", 8, "leads to nothing"),
    ("\"type\": \"integer\"", "\"pattern\": \"(?=a)b\"", Schema, "/parameters/properties/n/pattern", 8, "linear time"),
    ("\"type\": \"integer\"", "\"pattern\": \"(\"", Schema, "/parameters/properties/n/pattern", 8, "not a valid JSON Schema"),
    ("\"output\": { \"type\": \"object\" }", "\"output\": null", Schema, "/output", 9, "not null"),
    // A wall that is not understood refuses the manifest (P5).
    ("\"securityContext\": { \"fileAccess\": { \"allowRead\": [\"self\"], \"allowWrite\": [] },\n    \"networkAccess\": { \"allowHosts\": [] }, \"requiredCapabilities\": [] }", "\"securityContext\": null", Schema, "/securityContext", 10, "not null"),
    ("\"fileAccess\"", "\"fileAcess\"", Security, "/securityContext/fileAcess", 10, "did you mean `fileAccess`"),
    ("\"allowRead\"", "\"allowread\"", Security, "/securityContext/fileAccess/allowread", 10, "did you mean `allowRead`"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": null", Schema, "/securityContext/fileAccess/allowRead", 10, "not null"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": \"self\"", Schema, "/securityContext/fileAccess/allowRead", 10, "must be an array"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": [\"self\", \"../x\"]", Security, "/securityContext/fileAccess/allowRead/1", 10, "upwards"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": [\"**/x\"]", Security, "/securityContext/fileAccess/allowRead/0", 10, "in the middle"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": [\"\"]", Security, "/securityContext/fileAccess/allowRead/0", 10, "is empty"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": [\"~/x\"]", Security, "/securityContext/fileAccess/allowRead/0", 10, "no ~ or !"),
    ("\"allowRead\": [\"self\"]", "\"allowRead\": [\"a\\u0000b\"]", Security, "/securityContext/fileAccess/allowRead/0", 10, "invisible"),
    ("\"allowWrite\": []", "\"allowWrite\": [\"self\"]", Security, "/securityContext/fileAccess/allowWrite/0", 10, "own file"),
    ("\"allowHosts\": []", "\"allowHosts\": [\"https://x.com/y\"]", Schema, "/securityContext/networkAccess/allowHosts/0", 11, "URL"),
    ("\"allowHosts\": []", "\"allowHosts\": [\"a.*.com\"]", Schema, "/securityContext/networkAccess/allowHosts/0", 11, "middle"),
    ("\"allowHosts\"", "\"allowHost\"", Security, "/securityContext/networkAccess/allowHost", 11, "did you mean"),
    ("\"input\": { \"n\": 1 }", "\"input\": 1", Schema, "/examples/0/input", 12, "must be an object"),
    ("5000", "99", Schema, "/execution/timeoutMs", 14, "must be >= 100"),
    ("5000", "\"5000\"", Schema, "/execution/timeoutMs", 14, "must be an integer"),
    ("\"MODE\"", "\"LD_PRELOAD\"", Security, "/execution/env/LD_PRELOAD", 14, "may not be set"),
    ("\"MODE\"", "\"PYTHONPATH\"", Security, "/execution/env/PYTHONPATH", 14, "may not be set"),
    ("\"MODE\"", "\"PATH\"", Security, "/execution/env/PATH", 14, "may not be set"),
    ("\"MODE\"", "\"A=B\"", Security, "/execution/env/A=B", 14, "variable name"),
    ("\"MODE\": \"x\"", "\"MODE\": \"a\\u0000\"", Security, "/execution/env/MODE", 14, "NUL"),
    ("\"MODE\": \"x\"", "\"MODE\": 1", Schema, "/execution/env/MODE", 14, "must be a string"),
    ("\"execution\": {", "\"execution\": null, \"x\": {", Schema, "/execution", 14, "not null"),
    ("\"memoryBytes\"", "\"memorybytes\"", Schema, "/limits/memorybytes", 15, "did you mean `memoryBytes`"),
    ("\"memoryBytes\"", "\"timeoutMs\"", Schema, "/limits/timeoutMs", 15, "known here: cpuMs"),
    ("268435456", "1", Schema, "/limits/memoryBytes", 15, "must be >= "),
    ("\"^1\"", "\"banana\"", Schema, "/requires/custom:other", 18, "version range"),
    ("custom:other", "other", Schema, "/requires/other", 18, "namespace:tool-name"),
    ("custom:other", "custom:demo", Dependency, "/requires/custom:demo", 18, "itself"),
    // The reader below the fields.
    ("\"tags\": [\"a\"]", "\"tags\": [\"a\"], \"tags\": []", Syntax, "/tags", 13, "twice"),
    ("\"allowWrite\": []", "\"allowRead\": [\"/\"]", Syntax, "/securityContext/fileAccess/allowRead", 10, "twice"),
    ("\"requires\": { \"custom:other\": \"^1\" }\n}", "\"requires\": { \"custom:ot", Syntax, "/requires", 18, "not closed"),
    ("5000", "NaN", Syntax, "/execution/timeoutMs", 14, "a JSON value is needed"),
    ("5000", "99999999999999999999", Syntax, "/execution/timeoutMs", 14, "64 bits"),
    ("\"Demo\"", "\"\\ud800\"", Syntax, "/displayName", 3, "surrogate"),
];

#[test]
fn every_bad_manifest_says_what_where_and_the_fix() {
    for (old, new, code, pointer, line, message) in REFUSED {
        let found = manifest::read(with(old, new).as_bytes()).err();
        let Some(found) = found else { panic!("{old} → {new}: was accepted") };
        let hit = found.iter().any(|p| {
            p.severity == Severity::Error
                && p.code == *code
                && p.pointer == *pointer
                && p.line == *line
                && p.column > 0
                && p.message.contains(message)
        });
        assert!(hit, "{old} → {new}\n{found:#?}");
    }
}

#[test]
fn hosts_and_their_ports_are_bounded() {
    let list = "/securityContext/networkAccess/allowHosts";
    let asking = |hosts: Vec<String>| {
        let text = with("\"allowHosts\": []", &format!("\"allowHosts\": {}", json!(hosts)));
        manifest::read(text.as_bytes()).map(|(manifest, _)| manifest.asks.hosts.len())
    };
    let named = |n: u16| (0..n).map(|n| format!("h{n}.com")).collect::<Vec<_>>();
    let ports = |n: u16| (1..=n).map(|n| format!("x.com:{n}")).collect::<Vec<_>>();
    assert_eq!((asking(named(200)), asking(ports(25))), (Ok(200), Ok(25)));
    for (hosts, message) in
        [(named(201), "more than 200 entries"), (ports(26), "names 26 ports, and a call has at most 25")]
    {
        let found = asking(hosts).expect_err("too many");
        assert!(found.len() == 1 && found[0].pointer == list && found[0].message.contains(message), "{found:?}");
    }
    assert!(asking([ports(24), named(1)].concat()).is_err(), "without a port: 80 and 443");
}

#[test]
fn warnings_leave_the_tool_loaded() {
    let cases = [
        ("\"securityContext\"", "\"securtyContext\"", "/securtyContext", "did you mean `securityContext`"),
        ("\"description\": \"A number.\"", "\"title\": \"n\"", "/parameters/properties/n", "no description"),
        ("\"n\": 1 }", "\"n\": \"x\" }", "/examples/0/input", "does not fit the parameters"),
        (
            "\"parameters\": { \"type\": \"object\",",
            "\"parameters\": { \"type\": \"object\", \"anyOf\": [{}],",
            "/parameters/anyOf",
            "model APIs",
        ),
        ("\"Adds numbers.\"", "\"Adds\u{202e} numbers\u{e0041}.\"", "/description", "\\u{202e}"),
        ("\"warm\": false", "\"warm\": true", "/execution/warm", "not built yet"),
        ("\"warm\": false", "\"timeout\": 1", "/execution/timeout", "does nothing"),
    ];
    for (old, new, pointer, message) in cases {
        let (_, problems) = manifest::read(with(old, new).as_bytes()).unwrap_or_else(|p| panic!("{new}: {p:#?}"));
        let hit = problems
            .iter()
            .any(|p| p.severity == Severity::Warning && p.pointer == pointer && p.message.contains(message));
        assert!(hit, "{new}\n{problems:#?}");
    }
    let (manifest, problems) =
        manifest::read(with("\"tags\"", "\"x-vendor\": 1, \"configSchema\": {}, \"tags\"").as_bytes()).expect("good");
    assert_eq!(problems, []);
    assert_eq!(manifest.raw["x-vendor"], 1, "unknown fields are kept");
}

fn published() -> schema::Schema {
    schema::Schema::compile(&manifest::SCHEMA).expect("compiles")
}

#[test]
fn every_shipped_manifest_fits_the_published_schema() {
    let schema = published();
    let mut texts = vec![("GOOD".to_owned(), GOOD.as_bytes().to_vec())];
    let shipped = tempfile::tempdir().expect("a folder");
    crate::shipped::copy_to(shipped.path());
    for entry in walkdir::WalkDir::new(shipped.path()).into_iter().flatten() {
        if entry.file_name().to_string_lossy().ends_with(".tool.json") {
            texts.push((entry.path().display().to_string(), std::fs::read(entry.path()).expect("file")));
        }
    }
    assert!(texts.len() > 1, "no shipped manifest was found");
    for (name, text) in texts {
        let document = toolhost::base::json::parse(&text, toolhost::base::json::Dialect::Commented).expect(&name);
        assert_eq!(schema.flaws(&document.value), [], "{name}");
    }
}

/// Bad manifests that JSON Schema cannot tell (what is inside the schemas of a tool), by a piece of their message.
const BEYOND_A_SCHEMA: &[&str] = &[
    "not a valid JSON Schema",
    "does not fit its own schema",
    "inside its own schema",
    "leads to nothing",
    "linear time",
];

/// What the reader refuses by shape or for safety, the published schema refuses too, as far as a schema can.
#[test]
fn the_published_schema_refuses_what_the_reader_refuses() {
    let schema = published();
    let (mut passed, mut refused) = (Vec::new(), 0);
    for (old, new, code, pointer, _, message) in REFUSED {
        if !matches!(code, Schema | Security) {
            continue;
        }
        let value: Value = serde_json::from_str(&with(old, new)).expect("JSON");
        match (schema.flaws(&value).is_empty(), BEYOND_A_SCHEMA.contains(message)) {
            (true, false) => passed.push(format!("{pointer}: {new}")),
            (false, false) => refused += 1,
            (_, true) => {}
        }
    }
    assert!(passed.is_empty(), "the published schema lets pass:\n{}", passed.join("\n"));
    assert!(refused > 45, "{refused}");
}

/// And it is never stricter: what the reader takes, an editor does not mark.
#[test]
fn the_published_schema_takes_what_the_reader_takes() {
    let schema = published();
    let read = "\"allowRead\": [\"self\"]";
    #[rustfmt::skip]
    let paths = [
        ".", "./", "./*", "*", "**", "./**", ".cache/**", "dir/", "a/./b//c/**", "data/in.csv", "*.csv", "data/*.c?v", "data/*",
        "/srv/exports/**", "/", "/**", "a..b/c", "a b", "über/ä*.txt", "x:y", "..a", "a!b~",
    ];
    let mut texts: Vec<String> =
        paths.iter().map(|path| with(read, &format!("\"allowRead\": [{}]", json!(path)))).collect();
    #[rustfmt::skip]
    let hosts = [
        "API.Example.COM", "example.com.", "*.example.com", "*", "*:443", "example.com:443", "127.0.0.1:8080", "::1",
        "[2001:DB8::1]:443", "localhost", "::ffff:1.2.3.4", "xn--a-b.c",
    ];
    for host in hosts {
        texts.push(with("\"allowHosts\": []", &format!("\"allowHosts\": [{}]", json!(host))));
    }
    for range in ["*", "1", "1.2", "^1.2.3", "~1", ">=1.2, <2", "=1.2.3-beta.1+x", ">1", "1.*", "1.x", " ^1 "] {
        texts.push(with("\"^1\"", &json!(range).to_string()));
    }
    for name in ["MODE_2", "_x", "PYTHO", "MY_PATH", "PATHS", "LANGUAGE", "ld"] {
        texts.push(with("\"MODE\"", &json!(name).to_string()));
    }
    for (script, language) in
        [("a/b.mjs", "bun"), ("a/b.ts", "node"), ("a/b.PY", "python"), ("a/b.wat", "wasm"), ("b.py", "py")]
    {
        let handler = "\"scriptPath\": \"demo/demo.py\", \"language\": \"python\"";
        texts.push(with(handler, &format!("\"scriptPath\": \"{script}\", \"language\": \"{language}\"")));
    }
    for text in texts {
        manifest::read(text.as_bytes()).unwrap_or_else(|p| panic!("{text}\n{p:#?}"));
        assert_eq!(schema.flaws(&serde_json::from_str(&text).expect("JSON")), [], "{text}");
    }
}

/// Schemas made to cost for ever are refused, or answer at once (P21).
#[test]
fn hostile_schemas_cost_little() {
    let bound = Duration::from_secs(10); // a debug build on a busy machine; the attacks take years
    let started = Instant::now();
    let head = "\"parameters\": { \"type\": \"object\",";
    let put = |text: &str, parameters: Value| {
        text.replacen(head, &format!("\"old\": {{}}, \"parameters\": {parameters}, \"older\": {{"), 1)
    };
    let schema = |parameters: Value| put(GOOD, parameters);
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "not": inner }));
    let doubling: Map<String, Value> = (0..40)
        .map(|n| (format!("d{n}"), json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", n + 1) }, { "$ref": format!("#/$defs/d{}", n + 1) }] })))
        .chain([("d40".to_owned(), json!({}))])
        .collect();
    let many: Map<String, Value> = (0..30_000).map(|n| (format!("p{n}"), json!({}))).collect();
    let regexes: Map<String, Value> = (0..200).map(|n| (format!("p{n}"), json!({ "pattern": "a" }))).collect();
    let chain: Map<String, Value> =
        (0..3000).map(|n| (format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", (n + 1) % 3000) }))).collect();
    let refused = [
        json!({ "type": "object", "properties": { "a": deep } }),
        json!({ "type": "object", "$ref": "#/$defs/d0", "$defs": doubling }),
        json!({ "type": "object", "properties": many }),
        json!({ "type": "object", "properties": regexes }),
        json!({ "type": "object", "$ref": "#/$defs/d0", "$defs": chain }),
        json!({ "type": "object", "properties": { "a": { "pattern": "((a{0,1000}){0,1000}){0,1000}" } } }),
        json!({ "type": "object", "properties": { "a": { "pattern": r"\s".repeat(100) } } }),
        // Each level is looked at again by all above.
        json!({ "type": "object", "properties": { "a": (0..24).fold(json!({}), |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false })) } }),
        // A circle that goes into no part of the value.
        json!({ "type": "object", "properties": {}, "not": { "anyOf": [{ "$ref": "#" }] } }),
        // References that mean something harmless to us, and something else to a checker that follows names or escapes.
        json!({ "type": "object", "properties": { "a": { "$id": "http://x.test/y", "$ref": "#/$defs/d" } }, "$defs": { "d": {} } }),
        json!({ "type": "object", "x-a": { "$id": "http://x.test/y", "t": {} }, "properties": { "a": { "$ref": "#/x-a/t" } } }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "properties": { "a": { "id": "http://x.test/y" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d%25" } }, "$defs": { "d%25": {}, "d%": {} } }),
    ];
    for parameters in refused {
        let head: String = parameters.to_string().chars().take(120).collect();
        assert!(manifest::read(schema(parameters).as_bytes()).is_err(), "{head}");
    }
    // What the patterns of one manifest cost is bounded for all of them together, and plain ones load.
    let crowd = |pattern: &dyn Fn(usize) -> String| {
        let field = |n: usize| (format!("p{n}"), json!({"type": "string", "description": "d", "pattern": pattern(n)}));
        let half =
            |from: usize| json!({"type": "object", "properties": (from..from + 30).map(field).collect::<Map<_, _>>()});
        put(&with("\"output\": { \"type\": \"object\" }", &format!("\"output\": {}", half(30))), half(0))
    };
    let hostile: [&dyn Fn(usize) -> String; 5] = [
        &|n| format!(r"(?i)\pL{{30}}{n}"),
        &|n| format!(r"(?i)\PL{}{n}", r"\pN".repeat(20)),
        &|n| format!(r"(?i)[\x{{80}}-\x{{10FFFF}}]{n}"),
        &|n| r"\cA".repeat(300) + &n.to_string(),
        &|n| "a".repeat(5000) + &n.to_string(),
    ];
    for pattern in hostile {
        let problems = manifest::read(crowd(pattern).as_bytes()).expect_err("too much");
        let heavy = problems.iter().find(|p| p.message.contains("too costly to compile: repeat less"));
        let heavy = heavy.unwrap_or_else(|| panic!("{problems:#?}"));
        assert!(heavy.code == Schema && heavy.pointer.starts_with("/parameters/properties/p"), "{heavy:?}");
    }
    let plain = |n: usize| match n % 4 {
        0 => r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$".to_owned(),
        1 => r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$".to_owned(),
        2 => format!("^[A-Za-z][A-Za-z0-9_-]{{0,63}}{n}$"),
        _ => r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$".to_owned(),
    };
    manifest::read(crowd(&plain).as_bytes()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    // A default is held to its own schema; what that one leads to is not compiled again and again.
    let wide = |count: usize, default: &str| {
        let field = json!({ "$ref": "#/$defs/a/b", "description": "d", "default": default });
        let fields: Map<_, _> = (0..count).map(|n| (format!("p{n} é"), field.clone())).collect();
        json!({ "type": "object", "properties": fields, "$defs": { "a": { "b": { "pattern": "^[a-z]{1,900}[0-9]$" } } } })
    };
    let nested = |depth: usize| {
        let innermost = json!({ "type": "object", "properties": { "p": { "pattern": "^[a-z]{1,900}$" } } });
        let outer =
            |inner, _| json!({ "type": "object", "default": {}, "description": "d", "properties": { "a": inner } });
        (0..depth).fold(innermost, outer)
    };
    for (parameters, loads) in
        [(wide(10, "x1"), true), (wide(2000, "x1"), false), (wide(3, "no digit"), false), (nested(28), true)]
    {
        let head: String = parameters.to_string().chars().take(120).collect();
        assert_eq!(manifest::read(schema(parameters).as_bytes()).is_ok(), loads, "{head}");
    }
    // As deep as allowed, in a thread of ordinary size.
    let deepest = (0..55).fold(json!({}), |inner, _| json!({ "not": inner }));
    let text = schema(json!({ "type": "object", "properties": { "a": deepest } }));
    std::thread::spawn(move || manifest::read(text.as_bytes()).map(|_| ()).expect("as deep as allowed"))
        .join()
        .expect("no overflow");
    // Recursion that visits one place twice: accepted, answered, never explained.
    let branching = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": { "anyOf": [
        { "type": "array", "items": { "$ref": "#/$defs/n" } }, { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/n" } } ] } } });
    let crowd: Map<String, Value> = (0..12)
        .map(|n| {
            let all: Vec<_> = (0..12).map(|m| json!({ "items": { "$ref": format!("#/$defs/c{m}") } })).collect();
            (format!("c{n}"), json!({ "type": "array", "anyOf": all }))
        })
        .collect();
    let crowded = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/c0" } }, "$defs": crowd });
    let itself = json!({ "type": "object", "properties": { "a": { "type": "array" } }, "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
    let regex = json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "^(a+)+$" } } });
    let format = json!({ "type": "object", "properties": { "a": { "type": "string", "format": "regex" } } });
    let groups: String = (0..80_000).map(|n| format!("(?<a{n}>)")).collect();
    let copied = json!({ "type": "object", "properties": { "a": { "items": { "anyOf": vec![json!({ "const": "a".repeat(100_000) }); 9] } } } });
    let nest = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    for (parameters, value) in [
        (branching, nest(100)),
        (crowded, nest(40)),
        (itself, nest(100)),
        (regex, json!("a".repeat(100_000) + "!")),
        (format, json!(groups)),
        (copied, json!(vec![1; 5000])),
    ] {
        let head: String = parameters.to_string().chars().take(120).collect();
        let here = Instant::now();
        if let Ok((manifest, _)) = manifest::read(schema(parameters).as_bytes()) {
            let _ = manifest::arguments::check(&manifest, json!({ "a": value }), false);
        }
        println!("{:?} {head}", here.elapsed());
    }
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
}

#[test]
fn many_problems_are_cut_not_slow() {
    let tags = vec!["1"; 100_000].join(",");
    let started = Instant::now();
    let found = problems(&with("\"tags\": [\"a\"]", &format!("\"tags\": [{tags}]")));
    assert!((1..=200).contains(&found.len()));
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// The schema that is printed takes 100.0 for an integer, and so does the reader.
#[test]
fn a_whole_number_may_be_written_with_a_point() {
    let document = with("5000", "5000.0").replace("268435456", "268435456.0");
    let (manifest, problems) = manifest::read(document.as_bytes()).expect("loads");
    assert_eq!((manifest.execution.timeout_ms, problems), (Some(5000), Vec::new()));
    for bad in ["5000.5", "-1.0", "1e300", "\"5000\""] {
        assert!(manifest::read(with("5000", bad).as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_range_of_numbers_alone_is_what_a_version_begins_with() {
    let versions = ["1.2.0", "1.2.9", "1.10.0", "2.0.0"];
    for (range, fits) in [
        ("1.2", &versions[..2]),
        ("1", &versions[..3]),
        ("1.2.0", &versions[..1]),
        ("1.2.*", &versions[..2]),
        ("^1.2", &versions[..3]),
        (">=1.2, <2", &versions[..3]),
        ("*", &versions[..]),
    ] {
        let range = manifest::version_range(range).unwrap();
        let found: Vec<&str> = versions.into_iter().filter(|v| range.matches(&v.parse().unwrap())).collect();
        assert_eq!(found, fits, "{range}");
    }
}

/// A text is held against a pattern once for each reference that leads to the pattern.
#[test]
fn a_pattern_counts_for_each_reference() {
    let fits = |references: usize| {
        let alternatives = vec![json!({"$ref": "#/$defs/p"}); references];
        let parameters = json!({"type": "object", "$defs": {"p": {"pattern": "a[ab]{250}[cd]"}},
            "properties": {"t": {"description": "d", "anyOf": alternatives}}});
        let schema = schema::Schema::compile(&parameters).expect("a schema");
        let flaws = schema.flaws(&json!({"t": "ab".repeat(500_000)}));
        let told = format!("{flaws:?}");
        assert!(!flaws.is_empty(), "it does not match");
        !told.contains("would take too long")
    };
    assert!(fits(1), "the control");
    assert!(!fits(400));
}
