use super::*;
use proptest::prelude::*;

fn strict(text: &str) -> Result<Value, String> {
    parse(text.as_bytes(), Dialect::Strict).map(|d| d.value).map_err(|p| p.message)
}

#[test]
fn what_strict_json_refuses() {
    let deep = "[".repeat(MAX_JSON_DEPTH + 1) + &"]".repeat(MAX_JSON_DEPTH + 1);
    let endless = "[".repeat(1 << 20);
    #[rustfmt::skip]
    let refused = [
        "", " ", "{", "[", "[1", "[1,", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "[1,]", "{\"a\":1,}", "[,1]",
        "{,}", "1 2", "{} {}", "nul", "truefalse", "NaN", "Infinity", "-Infinity", "[NaN]", "-", "01", "-01", "1.",
        ".5", "1e", "1e+", "+1", "0x10", "1e999", "18446744073709551616", "-9223372036854775809", "\"", "\"a",
        "\"\u{1}\"", "\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"",
        "\"\\ud800\\u0041\"", "\"\\ud800x\"", "'a'", "{a:1}", "// c\n1", "/* c */1", "1 // c", "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "[1 2]", "]", "}", "\u{feff}\u{feff}1", &deep,
        &endless,
    ];
    for text in refused {
        let problem = parse(text.as_bytes(), Dialect::Strict).expect_err(text);
        assert_eq!(compact(text.as_bytes()).expect_err("the same"), problem);
    }
}

#[test]
fn what_it_takes() {
    #[rustfmt::skip]
    let taken = [
        "null", " true\r\n", "0", "-0", "-0.0", "1e2", "1.5E-3", "18446744073709551615", "-9223372036854775808",
        "9007199254740993", "\"\\ud83d\\ude42 \\u00e9 \\/ \\b\\f\\n\\r\\t\\\"\\\\\"", "{}", "[]",
        "{\"b\":1,\"a\":[{},[],null]}", "\"\u{2028}\"",
    ];
    for text in taken {
        let ours = strict(text).expect(text);
        let theirs: Value = serde_json::from_str(text).expect(text);
        assert_eq!(ours.to_string(), theirs.to_string(), "{text}");
        assert_eq!(compact(text.as_bytes()).expect(text), theirs);
    }
    let spelled = compact(br#" { "\u00e9\u0022\u0007" : [ 1e9 , -0, 1.50 ,"\/\t" ] } "#).unwrap();
    assert_eq!(spelled.as_str(), r#"{"é\"\u0007":[1e9,-0,1.50,"/\t"]}"#, "a number stays as it was written");
    assert_eq!(strict("\u{feff}1"), Ok(Value::from(1)), "a byte order mark is stripped");
    let deep = "[".repeat(MAX_JSON_DEPTH) + &"]".repeat(MAX_JSON_DEPTH);
    assert!(strict(&deep).is_ok());
    assert_eq!(compact(deep.as_bytes()).unwrap().as_str(), deep);
}

#[test]
fn a_tree_is_only_made_where_there_is_room_for_it() {
    let text = compact(format!("[{}{{\"a\": {{}}}}]", "1, ".repeat(1000)).as_bytes()).unwrap();
    assert_eq!(text.tree(1000 * size_of::<Value>()), Err(TooMuch));
    assert!(text.tree(1100 * size_of::<Value>()).is_ok());
    assert!(compact(format!("\"{}\"", "[,".repeat(1000)).as_bytes()).unwrap().tree(3000).is_ok(), "one string");
}

#[test]
fn comments_are_noted_once() {
    let text = b"// a\n{\n  \"a\": \"//no\", /* b */\n  \"b\": [1, 2,],\n}\n// end";
    let document = parse(text, Dialect::Commented).expect("commented JSON");
    assert_eq!(document.value.to_string(), r#"{"a":"//no","b":[1,2]}"#);
    let notes: Vec<_> = document.notes.iter().map(|n| (n.line, n.column)).collect();
    assert_eq!(notes, [(1, 1), (4, 13)]);
    for open in ["/*", "/* *", "/", "1 /"] {
        assert!(parse(open.as_bytes(), Dialect::Commented).is_err(), "{open}");
    }
}

#[test]
fn places() {
    let text = "\u{feff}{\n  \"ü\": {\"a/b\": [1, {\"x~\": true}]},\n\t\"z\": \"s\"\n}";
    let document = parse(text.as_bytes(), Dialect::Strict).expect("JSON");
    #[rustfmt::skip]
    let cases = [
        ("", (1, 1)), ("/ü", (2, 8)), ("/ü/a~1b", (2, 16)), ("/ü/a~1b/1", (2, 20)), ("/ü/a~1b/1/x~0", (2, 27)),
        ("/z", (3, 7)), ("/no", (0, 0)), ("/ü/a~1b/2", (0, 0)), ("/z/0", (0, 0)),
    ];
    for (pointer, place) in cases {
        assert_eq!(document.place(pointer), place, "{pointer}");
    }
    assert_eq!(document.place_of_key("/z"), (3, 2));
    for (bytes, code, pointer, place) in [
        (&b"{\n \"a\": {\"b\": 1,\n  \"b\": 2}}"[..], Code::Syntax, "/a/b", (3, 3)),
        (b"{\n \"a\xff\"}", Code::Encoding, "", (2, 4)),
        (b"\xff\xfe{\0}\0", Code::Encoding, "", (1, 1)),
    ] {
        let bad = parse(bytes, Dialect::Strict).expect_err("bad");
        assert_eq!((bad.code, bad.pointer.as_str(), (bad.line, bad.column)), (code, pointer, place));
    }
    // Of a text with faults elsewhere, too: arguments are read apart from their message.
    let twice = r#"{"a": {"b": 1, "b": NaN}, "c": {"d": 1, "d": [2]} x"#;
    assert_eq!((member(twice, "/c"), member(twice, "/c/d")), (Some(r#"{"d": 1, "d": [2]}"#), Some("1")));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every pointer into a value, with the part that it leads to.
fn pointers(value: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().enumerate().map(|(i, v)| (format!("{pointer}/{i}"), v))),
            Value::Object(map) => open.extend(map.iter().map(|(k, v)| (format!("{pointer}/{}", escape_segment(k)), v))),
            _ => {}
        }
        found.push((pointer, value));
    }
    found
}

proptest! {
    #[test]
    fn reads_what_serde_json_writes(value in any_value()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("text")] {
            let document = parse(text.as_bytes(), Dialect::Strict).expect("own text");
            prop_assert_eq!(document.value.to_string(), value.to_string());
            let copied = compact(text.as_bytes()).expect("own text");
            prop_assert_eq!(copied.as_str(), value.to_string());
            prop_assert_eq!(Indented(copied.as_str()).to_string(), serde_json::to_string_pretty(&value).expect("text"));
            for (pointer, there) in pointers(&value) {
                let (at, _) = find(&text, &pointer).expect("every value has a place");
                let mut rest = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
                prop_assert_eq!(rest.next().expect("a value").expect("JSON").to_string(), there.to_string());
            }
        }
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for dialect in [Dialect::Strict, Dialect::Commented] {
            if let Ok(document) = parse(&bytes, dialect) {
                document.place("/a/0");
            }
            let _ = compact(&bytes);
        }
    }

    /// Text that is nearly JSON reaches more cases than noise does; serde_json takes whatever strict mode takes.
    #[test]
    fn agrees_with_serde_json(text in r#"[\[\]{}",:0-9aeEnulltrfs\-+.\\u /*\n]{0,24}"#) {
        let _ = parse(text.as_bytes(), Dialect::Commented);
        let whole = parse(text.as_bytes(), Dialect::Strict).map(|document| document.value);
        prop_assert_eq!(whole, compact(text.as_bytes()).map(|copied| copied.value()));
        if let Ok(document) = parse(text.as_bytes(), Dialect::Strict) {
            let theirs = serde_json::from_str::<Value>(&text);
            prop_assert_eq!(theirs.expect("serde_json agrees").to_string(), document.value.to_string());
        }
    }
}
