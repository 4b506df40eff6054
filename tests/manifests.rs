//! Bad manifests as data: text → exact code, pointer and line. Good ones too.

use crate::prelude::*;
use serde_json::Map;
use toolhost::manifest::{self, Code, Problem, Severity, schema};
use toolhost::schemas;

/// A good manifest. Cases replace one piece of it.
pub const GOOD: &str = include_str!("manifests/good.tool.json");

fn with(old: &str, new: &str) -> String {
    let old = old.replace('⏎', "\n");
    assert!(GOOD.contains(&old), "{old} is not in the good manifest");
    GOOD.replacen(&old, new, 1)
}

/// The rows of what is refused: code, line, pointer, what to replace, by what, a piece of the
/// message.
fn refused() -> impl Iterator<Item = [&'static str; 6]> {
    let rows = include_str!("manifests/refused.txt")
        .lines()
        .filter(|row| !row.starts_with('#'));
    rows.map(|row| row.split(" ¦ ").collect::<Vec<_>>().try_into().unwrap())
}

/// What the reader refuses by shape or for safety, the published schema refuses too, as far as a
/// schema can.
#[test]
fn every_bad_manifest_says_what_where_and_the_fix_and_the_published_schema_refuses_it() {
    // JSON Schema cannot check what is inside a tool's schemas.
    let beyond = "not a valid JSON Schema|not a type: did you mean 'integer'?|does not fit its own \
        schema|inside its own schema|leads \
        to nothing|linear time";
    let (schema, mut refused_too) = (published(), 0);
    for [code, line, pointer, old, new, message] in refused() {
        let text = with(old, new);
        let Err(found) = manifest::read(text.as_bytes()) else {
            panic!("{old} → {new}: was accepted")
        };
        let hit = found.iter().any(|p| {
            let place = [&format!("{:?}", p.code), &p.line.to_string(), &p.pointer];
            let told = p.severity == Severity::Error && p.column > 0 && p.message.contains(message);
            told && place == [code, line, pointer]
        });
        assert!(hit, "{old} → {new}\n{found:#?}");
        if ["Schema", "Security"].contains(&code)
            && !beyond.split('|').any(|beyond| beyond == message)
        {
            let flaws = schema.flaws(&serde_json::from_str(&text).expect("JSON"));
            assert!(
                !flaws.is_empty(),
                "the published schema lets pass: {pointer}: {new}"
            );
            refused_too += 1;
        }
    }
    assert!(refused_too > 45, "{refused_too}");
}

#[test]
fn hosts_and_their_ports_are_bounded() {
    let asking = |hosts: Vec<String>| {
        let text = with(
            "\"allowHosts\": []",
            &format!("\"allowHosts\": {}", json!(hosts)),
        );
        manifest::read(text.as_bytes()).map(|(manifest, _)| manifest.requested.hosts.len())
    };
    let named = |n: u16| (0..n).map(|n| format!("h{n}.com")).collect::<Vec<_>>();
    let ports = |n: u16| (1..=n).map(|n| format!("x.com:{n}")).collect::<Vec<_>>();
    assert_eq!((asking(named(200)), asking(ports(25))), (Ok(200), Ok(25)));
    for (hosts, message) in [
        (named(201), "more than 200 entries"),
        (ports(26), "names 26 ports, and a call has at most 25"),
    ] {
        let found = asking(hosts).expect_err("too many");
        assert_eq!(
            (found.len(), found[0].pointer.as_str()),
            (1, "/securityContext/networkAccess/allowHosts")
        );
        assert!(found[0].message.contains(message), "{found:?}");
    }
    assert!(
        asking([ports(24), named(1)].concat()).is_err(),
        "without a port: 80 and 443"
    );
}

#[test]
fn warnings_leave_the_tool_loaded() {
    let cases = [
        (
            "\"securityContext\"",
            "\"securtyContext\"",
            "/securtyContext",
            "did you mean `securityContext`",
        ),
        (
            "\"description\": \"A number.\"",
            "\"title\": \"n\"",
            "/parameters/properties/n",
            "no description",
        ),
        (
            "\"n\": 1 }",
            "\"n\": \"x\" }",
            "/examples/0/input",
            "does not fit the parameters",
        ),
        (
            "\"parameters\": {",
            "\"parameters\": { \"anyOf\": [{}],",
            "/parameters/anyOf",
            "model APIs",
        ),
        (
            "\"Adds numbers.\"",
            "\"Adds\u{202e} numbers\u{e0041}.\"",
            "/description",
            "\\u{202e}",
        ),
        (
            "\"ready\": false",
            "\"timeout\": 1",
            "/execution/timeout",
            "does nothing",
        ),
    ];
    for (old, new, pointer, message) in cases {
        let (_, problems) =
            manifest::read(with(old, new).as_bytes()).unwrap_or_else(|p| panic!("{new}: {p:#?}"));
        let mut warned = problems
            .iter()
            .filter(|p| p.severity == Severity::Warning && p.pointer == pointer);
        assert!(
            warned.any(|p| p.message.contains(message)),
            "{new}\n{problems:#?}"
        );
    }
    let unknown = with(
        "\"tags\"",
        "\"x-vendor\": 1, \"configSchema\": {}, \"tags\"",
    );
    let (manifest, problems) = manifest::read(unknown.as_bytes()).expect("good");
    assert_eq!(problems, []);
    assert_eq!(manifest.raw["x-vendor"], 1, "unknown fields are kept");
}

fn published() -> schema::Schema {
    schema::Schema::compile(&schemas::MANIFEST.json).expect("compiles")
}

#[test]
fn every_shipped_manifest_fits_the_published_schema() {
    let schema = published();
    let mut texts = vec![("GOOD".to_owned(), GOOD.as_bytes().to_vec())];
    for file in crate::shipped::FILES
        .lines()
        .filter(|file| file.ends_with(".tool.json"))
    {
        texts.push((file.to_owned(), fs::read(repository(file)).expect("file")));
    }
    assert!(texts.len() > 1, "no shipped manifest was found");
    for (name, text) in texts {
        let document = toolhost::base::json::parse(&text, toolhost::base::json::Dialect::Commented)
            .expect(&name);
        assert_eq!(schema.flaws(&document.value), [], "{name}");
    }
}

/// The published schema is never stricter than the reader: no editor marks a good manifest.
#[test]
fn the_published_schema_takes_what_the_reader_takes() {
    let schema = published();
    let mut texts = Vec::new();
    for (piece, place, values) in [
        (
            "[\"self\"]",
            "[%]",
            ". ¦ ./ ¦ ./* ¦ * ¦ ** ¦ ./** ¦ .cache/** ¦ dir/ ¦ a/./b//c/** ¦ data/in.csv ¦ *.csv ¦ \
             data/*.c?v ¦ data/* ¦ /srv/exports/** ¦ / ¦ /** ¦ a..b/c ¦ a b ¦ über/ä*.txt ¦ x:y ¦ \
             ..a ¦ a!b~",
        ),
        (
            "\"allowHosts\": []",
            "\"allowHosts\": [%]",
            "API.Example.COM ¦ example.com. ¦ *.example.com ¦ * ¦ *:443 ¦ example.com:443 ¦ \
             127.0.0.1:8080 ¦ ::1 ¦ [2001:DB8::1]:443 ¦ localhost ¦ ::ffff:1.2.3.4 ¦ xn--a-b.c",
        ),
        (
            "\"^1\"",
            "%",
            "* ¦ 1 ¦ 1.2 ¦ ^1.2.3 ¦ ~1 ¦ >=1.2, <2 ¦ =1.2.3-beta.1+x ¦ >1 ¦ 1.* ¦ 1.x ¦  ^1 ",
        ),
        (
            "\"MODE\"",
            "%",
            "MODE_2 ¦ _x ¦ PYTHO ¦ MY_PATH ¦ PATHS ¦ LANGUAGE ¦ ld",
        ),
    ] {
        texts.extend(
            values
                .split(" ¦ ")
                .map(|value| with(piece, &place.replace('%', &json!(value).to_string()))),
        );
    }
    for (script, language) in [
        ("a/b.mjs", "bun"),
        ("a/b.ts", "node"),
        ("a/b.PY", "python"),
        ("a/b.wat", "wasm"),
        ("b.py", "py"),
    ] {
        let handler = "\"scriptPath\": \"demo/demo.py\", \"language\": \"python\"";
        texts.push(with(
            handler,
            &format!("\"scriptPath\": \"{script}\", \"language\": \"{language}\""),
        ));
    }
    for text in texts {
        manifest::read(text.as_bytes()).unwrap_or_else(|p| panic!("{text}\n{p:#?}"));
        assert_eq!(
            schema.flaws(&serde_json::from_str(&text).expect("JSON")),
            [],
            "{text}"
        );
    }
}

/// Schemas made to take forever are refused, or cost little (P21).
/// What is compiled of tools that nobody calls is let go: a folder of strangers is loaded before
/// anybody has approved it.
#[test]
fn large_patterns_of_many_tools_are_not_kept() {
    const PEAK: &str = "import resource, subprocess, sys\n\
        subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n";
    let [usual, large] = [1, 64].map(|times| {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        for tool in 0..120 {
            let pattern = |n: u32| format!("^(a|b|c{tool}x{n}){{{times}}}$");
            let properties: Map<String, Value> = (0..32)
                .map(|n| (format!("p{n}"), json!({ "pattern": pattern(n) })))
                .collect();
            let parameters = json!({"parameters": {"type": "object", "properties": properties}});
            playground.tool(&format!("t{tool}"), "python", "print(1)\n", parameters);
        }
        playground.settle();
        let mut command = playground.outside(PYTHON);
        command.args(["-c", PEAK]);
        let mut command = playground.host_by(command);
        command.arg("list");
        finish(command, b"").out.as_u64().unwrap()
    });
    // Kept, they took 220 MB.
    assert!(
        large < usual + 120_000,
        "{large} KiB, {usual} KiB with usual ones"
    );
}

#[test]
fn hostile_schemas_cost_little() {
    let bound = Duration::from_secs(10); // a debug build on a busy machine; the attacks take years
    let started = Stopwatch::start();
    let tags = vec!["1"; 100_000].join(",");
    let problems =
        manifest::read(with("\"tags\": [\"a\"]", &format!("\"tags\": [{tags}]")).as_bytes())
            .unwrap_err();
    assert!((1..=200).contains(&problems.len()), "many problems are cut");
    let head = "\"parameters\": { \"type\": \"object\",";
    let put = |text: &str, parameters: Value| {
        text.replacen(
            head,
            &format!("\"old\": {{}}, \"parameters\": {parameters}, \"older\": {{"),
            1,
        )
    };
    let schema = |parameters: Value| put(GOOD, parameters);
    let loads = |parameters: Value| manifest::read(schema(parameters).as_bytes()).is_ok();
    let shown = |parameters: &Value| parameters.to_string().chars().take(120).collect::<String>();
    // An object with one property.
    let one = |a: Value| json!({ "type": "object", "properties": { "a": a } });
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "not": inner }));
    let twice = |n: usize| vec![json!({ "$ref": format!("#/$defs/d{}", n + 1) }); 2];
    let doubling = (0..40).map(|n| (format!("d{n}"), json!({ "allOf": twice(n) })));
    let doubling: Map<String, Value> = doubling.chain([("d40".to_owned(), json!({}))]).collect();
    let looked_at_by_all_above =
        |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false });
    let many: Map<String, Value> = (0..30_000).map(|n| (format!("p{n}"), json!({}))).collect();
    let regexes: Map<String, Value> = (0..200)
        .map(|n| (format!("p{n}"), json!({ "pattern": "a" })))
        .collect();
    let chain: Map<String, Value> = (0..3000)
        .map(|n| {
            (
                format!("d{n}"),
                json!({ "$ref": format!("#/$defs/d{}", (n + 1) % 3000) }),
            )
        })
        .collect();
    let refused = [
        one(deep),
        json!({ "type": "object", "$ref": "#/$defs/d0", "$defs": doubling }),
        json!({ "type": "object", "properties": many }),
        json!({ "type": "object", "properties": regexes }),
        json!({ "type": "object", "$ref": "#/$defs/d0", "$defs": chain }),
        one(json!({ "pattern": "((a{0,1000}){0,1000}){0,1000}" })),
        one(json!({ "pattern": r"\s".repeat(100) })),
        one((0..24).fold(json!({}), looked_at_by_all_above)),
        // A cycle that never descends into the value.
        json!({ "type": "object", "properties": {}, "not": { "anyOf": [{ "$ref": "#" }] } }),
        // References that mean something harmless to us, and something else to a checker that
        // follows names or escapes.
        json!({ "type": "object", "properties": { "a": { "$id": "http://x.test/y", "$ref": "#/$defs/d" } },
            "$defs": { "d": {} } }),
        json!({ "type": "object", "x-a": { "$id": "http://x.test/y", "t": {} },
            "properties": { "a": { "$ref": "#/x-a/t" } } }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "type": "object",
            "properties": { "a": { "id": "http://x.test/y" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d%25" } }, "$defs": { "d%25": {}, "d%": {} } }),
    ];
    for parameters in refused {
        assert!(!loads(parameters.clone()), "{}", shown(&parameters));
    }
    // What the patterns of one manifest cost is bounded for all of them together, and plain ones
    // load.
    let crowd = |pattern: &dyn Fn(usize) -> String| {
        let field = |n: usize| {
            (
                format!("p{n}"),
                json!({"type": "string", "description": "d", "pattern": pattern(n)}),
            )
        };
        let half = |from: usize| json!({"type": "object", "properties": (from..from + 30).map(field).collect::<Map<_, _>>()});
        put(
            &with(
                "\"output\": { \"type\": \"object\" }",
                &format!("\"output\": {}", half(30)),
            ),
            half(0),
        )
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
        let mut heavy = problems
            .iter()
            .filter(|p| p.message.contains("too costly to compile: repeat less"));
        let place = |p: &Problem| {
            p.code == Code::Schema && p.pointer.starts_with("/parameters/properties/p")
        };
        assert!(heavy.next().is_some_and(place), "{problems:#?}");
    }
    let plain = |n: usize| match n % 4 {
        0 => r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$".to_owned(),
        1 => r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$".to_owned(),
        2 => format!("^[A-Za-z][A-Za-z0-9_-]{{0,63}}{n}$"),
        _ => r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$".to_owned(),
    };
    manifest::read(crowd(&plain).as_bytes()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    // A default is checked against its schema, whose references are not compiled each time.
    let wide = |count: usize, default: &str| {
        let field = json!({ "$ref": "#/$defs/a/b", "description": "d", "default": default });
        let fields: Map<_, _> = (0..count)
            .map(|n| (format!("p{n} é"), field.clone()))
            .collect();
        json!({ "type": "object", "properties": fields, "$defs": { "a": { "b": { "pattern": "^[a-z]{1,900}[0-9]$" } } } })
    };
    let nested = |depth: usize| {
        let innermost =
            json!({ "type": "object", "properties": { "p": { "pattern": "^[a-z]{1,900}$" } } });
        let outer = |inner, _| json!({ "type": "object", "default": {}, "description": "d", "properties": { "a": inner } });
        (0..depth).fold(innermost, outer)
    };
    let wanted = [
        (wide(10, "x1"), true),
        (wide(2000, "x1"), false),
        (wide(3, "no digit"), false),
        (nested(28), true),
    ];
    for (parameters, wanted) in wanted {
        assert_eq!(loads(parameters.clone()), wanted, "{}", shown(&parameters));
    }
    // As deep as allowed, in a thread of ordinary size.
    let deepest = (0..55).fold(json!({}), |inner, _| json!({ "not": inner }));
    let text = schema(one(deepest));
    let reading = std::thread::spawn(move || {
        manifest::read(text.as_bytes())
            .map(|_| ())
            .expect("as deep as allowed")
    });
    reading.join().expect("no overflow");
    // Recursion that visits one place twice: accepted, answered, never explained.
    let branching = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": { "anyOf": [
        { "type": "array", "items": { "$ref": "#/$defs/n" } }, { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/n" } } ] } } });
    let all: Vec<_> = (0..12)
        .map(|m| json!({ "items": { "$ref": format!("#/$defs/c{m}") } }))
        .collect();
    let crowd: Map<_, _> = (0..12)
        .map(|n| (format!("c{n}"), json!({ "type": "array", "anyOf": all })))
        .collect();
    let crowded = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/c0" } }, "$defs": crowd });
    let mut itself = one(json!({ "type": "array" }));
    itself["allOf"] = json!([{ "$ref": "#" }, { "$ref": "#" }]);
    let groups: String = (0..80_000).map(|n| format!("(?<a{n}>)")).collect();
    let copied =
        one(json!({ "items": { "anyOf": vec![json!({ "const": "a".repeat(100_000) }); 9] } }));
    let nest = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    for (parameters, value) in [
        (branching, nest(100)),
        (crowded, nest(40)),
        (itself, nest(100)),
        (
            one(json!({ "type": "string", "pattern": "^(a+)+$" })),
            json!("a".repeat(100_000) + "!"),
        ),
        (
            one(json!({ "type": "string", "format": "regex" })),
            json!(groups),
        ),
        (copied, json!(vec![1; 5000])),
    ] {
        let (head, here) = (shown(&parameters), Instant::now());
        if let Ok((manifest, _)) = manifest::read(schema(parameters).as_bytes()) {
            let _ = manifest::arguments::check(&manifest, json!({ "a": value }), false);
        }
        println!("{:?} {head}", here.elapsed());
    }
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
}

/// The published schema accepts 100.0 as an integer, and so does the reader.
#[test]
fn a_whole_number_may_be_written_with_a_point() {
    let document = with("5000", "5000.0").replace("268435456", "268435456.0");
    let (manifest, problems) = manifest::read(document.as_bytes()).expect("loads");
    assert_eq!(
        (manifest.execution.timeout_ms, problems),
        (Some(5000), Vec::new())
    );
    for bad in ["5000.5", "-1.0", "1e300", "\"5000\""] {
        assert!(
            manifest::read(with("5000", bad).as_bytes()).is_err(),
            "{bad}"
        );
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
        let found: Vec<&str> = versions
            .into_iter()
            .filter(|v| range.matches(&v.parse().unwrap()))
            .collect();
        assert_eq!(found, fits, "{range}");
    }
}

/// A text is matched against a pattern once for each reference to the pattern.
#[test]
fn a_pattern_counts_for_each_reference() {
    let fits = |references: usize| {
        let alternatives = vec![json!({"$ref": "#/$defs/p"}); references];
        let parameters = json!({"type": "object", "$defs": {"p": {"pattern": "a[ab]{250}[cd]"}},
            "properties": {"t": {"description": "d", "anyOf": alternatives}}});
        let schema = schema::Schema::compile(&parameters).expect("a schema");
        let flaws = schema.flaws(&json!({"t": "ab".repeat(500_000)}));
        assert!(!flaws.is_empty(), "it does not match");
        !format!("{flaws:?}").contains("would take too long")
    };
    assert!(fits(1), "the control");
    assert!(!fits(400));
}
