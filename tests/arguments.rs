//! Arguments: conversion, unknown names, defaults, all faults at once.

use crate::harness::manifest;
use serde_json::{Value, json};
use toolhost::fault::Kind;
use toolhost::manifest::{self, Manifest, arguments};

fn tool(parameters: Value) -> Manifest {
    let text = manifest(
        "custom:t",
        json!({ "type": "x-test" }),
        json!({"parameters": parameters, "output": { "type": "object", "properties": { "sum": { "type": "number" } }, "required": ["sum"] }}),
    );
    manifest::read(text.to_string().as_bytes()).unwrap_or_else(|p| panic!("{p:#?}")).0
}

fn seed() -> Manifest {
    manifest::read(include_bytes!("../tool-defs/core/execute-python-script.tool.json")).expect("seed").0
}

#[test]
fn text_becomes_what_the_schema_asks_for() {
    let m = tool(json!({ "type": "object", "properties": {
        "i": { "type": "integer" }, "n": { "type": "number" }, "b": { "type": "boolean" }, "o": { "type": "object" },
        "a": { "type": "array", "items": { "type": "integer" } }, "s": { "type": "string" }, "z": { "type": ["integer", "null"] },
        "e": { "enum": [1, 2, 3] }, "m": { "enum": ["auto", "4", 3, 4, null, true, [1]] },
        "mt": { "type": ["string", "integer"], "enum": ["all", 3] }, "mo": { "anyOf": [{ "const": "x" }, { "const": 7 }] }, "r": { "$ref": "#/$defs/x" }, "any": {} }, "$defs": { "x": { "type": "integer" } } }));
    #[rustfmt::skip]
    let good = [
        ("i", "30000", json!(30000)), ("i", "-5", json!(-5)), ("i", " 7\n", json!(7)), ("i", "3.0", json!(3)),
        ("n", "1.5e3", json!(1500.0)), ("n", "2", json!(2)), ("b", "true", json!(true)), ("b", "TRUE", json!(true)),
        ("b", "False", json!(false)), ("o", "{\"a\":[1]}", json!({"a":[1]})), ("a", "[1,2]", json!([1, 2])), ("s", "123", json!("123")),
        ("s", "true", json!("true")), ("z", "null", Value::Null), ("e", "2", json!(2)), ("m", "3", json!(3)),
        ("m", "3.0", json!(3)), ("m", "auto", json!("auto")), ("m", "4", json!("4")), ("m", "null", Value::Null),
        ("m", "true", json!(true)), ("m", "[1]", json!([1])), ("mt", "3", json!(3)), ("mt", "all", json!("all")),
        ("mo", "7", json!(7)), ("r", "9", json!(9)), ("any", "{}", json!("{}")),
    ];
    for (name, text, value) in good {
        assert_eq!(arguments::check(&m, json!({ name: text }), true), Ok(json!({ name: value })), "{name}={text}");
    }
    let bad = [
        ("i", "abc", "Input parameter 'i' must be an integer."),
        ("i", "3.5", "Input parameter 'i' must be an integer."),
        ("i", "0x10", "Input parameter 'i' must be an integer."),
        ("i", "", "Input parameter 'i' must be an integer."),
        ("i", "99999999999999999999", "Input parameter 'i' must be an integer."),
        ("n", "NaN", "Input parameter 'n' must be a number."),
        ("n", "true", "Input parameter 'n' must be a number."),
        ("b", "yes", "Input parameter 'b' must be a boolean."),
        ("o", "[]", "Input parameter 'o' must be an object."),
        ("a", "[1,\"x\"]", "Input parameter 'a' at '/1' must be an integer."),
        ("m", "5", "Input parameter 'm' must be one of: \"auto\", \"4\", 3, 4, null, true, [1]."),
        ("z", "x", "Input parameter 'z' must be an integer or null."),
    ];
    for (name, text, message) in bad {
        let fault = arguments::check(&m, json!({ name: text }), true).expect_err(text);
        assert_eq!((fault.kind, fault.message.as_str()), (Kind::ParameterValidationError, message), "{name}={text}");
    }
    for (name, text, words) in [
        ("o", "{\"a\":", "not JSON at line 1, column 6"),
        ("n", "123456789012345678901234567890", "64 bits"),
        ("n", "1e400", "64 bits"),
    ] {
        let fault = arguments::check(&m, json!({ name: text }), true).expect_err(text);
        assert!(fault.message.contains(words), "{}", fault.message);
    }
}

#[test]
fn the_seeds_sentence_is_exact() {
    for text in ["abc", "3.5", "0x10", ""] {
        let fault =
            arguments::check(&seed(), json!({ "scriptPath": "a.py", "timeoutMs": text }), true).expect_err(text);
        assert_eq!(fault.message, "Input parameter 'timeoutMs' must be an integer.");
    }
    let fault = arguments::check(&seed(), json!({ "scriptPath": "a.py", "timeoutMs": 50 }), false).expect_err("50");
    assert_eq!(fault.message, "Input parameter 'timeoutMs' must be >= 100.");
    assert_eq!(fault.details.as_deref(), Some("pointer '/timeoutMs': minimum"));
}

#[test]
fn all_faults_of_one_call_in_one_answer() {
    let fault = arguments::check(&seed(), json!({ "scritpPath": 1, "timeoutMs": "x", "inputData": [] }), false)
        .expect_err("bad");
    for piece in [
        "Input parameter 'scritpPath' is not a known parameter. Did you mean 'scriptPath'?",
        "Input parameter 'scriptPath' is required.",
        "Input parameter 'timeoutMs' must be an integer.",
        "Input parameter 'inputData' must be an object.",
    ] {
        assert!(fault.message.contains(piece), "{piece}\n{}", fault.message);
    }
}

#[test]
fn each_rule_names_itself() {
    let m = tool(json!({ "type": "object", "required": ["s"], "properties": {
        "s": { "type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a" }, "e": { "enum": ["x", "y"] },
        "f": { "type": "string", "format": "email" }, "n": { "type": "integer", "minimum": 1, "maximum": 9 },
        "l": { "type": "array", "items": { "type": "object", "required": ["k"], "properties": { "k": { "type": "string" } } }, "maxItems": 2 } } }));
    let cases = [
        (json!({ "s": "a" }), "minLength", "is shorter than 2 characters"),
        (json!({ "s": "abbbb" }), "maxLength", "is longer than 4 characters"),
        (json!({ "s": "bb" }), "pattern", "does not match \"^a\""),
        (json!({}), "required", "'s' is required"),
        (json!({ "s": "ab", "e": "z" }), "enum", "one of: \"x\", \"y\""),
        (json!({ "s": "ab", "f": "nope" }), "format", "is not a \"email\""),
        (json!({ "s": "ab", "n": 0 }), "minimum", ">= 1"),
        (json!({ "s": "ab", "n": 3.5 }), "type", "an integer"),
        (json!({ "s": "ab", "l": [{}, {}, {}] }), "maxItems", "has more than 2 items"),
        (json!({ "s": "ab", "l": [{ "k": 1 }] }), "type", "'l' at '/0/k' must be a string"),
        (json!({ "s": "ab", "l": [{}] }), "required", "must have the member 'k'"),
    ];
    for (given, rule, piece) in cases {
        let fault = arguments::check(&m, given.clone(), false).expect_err(rule);
        assert!(fault.message.contains(piece), "{given}: {}", fault.message);
        assert!(fault.details.as_deref().unwrap_or_default().contains(rule), "{given}: {:?}", fault.details);
    }
    assert!(arguments::check(&m, json!({ "s": "ab", "n": 3.0 }), false).is_ok(), "3.0 is an integer to JSON Schema");
}

#[test]
fn defaults_are_filled_in_at_every_depth() {
    let m = tool(json!({ "type": "object", "properties": {
        "mode": { "type": "string", "default": "fast" },
        "options": { "type": "object", "default": {}, "properties": { "depth": { "type": "integer", "default": 3 } } },
        "rows": { "type": "array", "items": { "type": "object", "properties": { "k": { "default": null } } } },
        "none": { "type": "string" } } }));
    let filled = arguments::check(&m, json!({ "rows": [{}, { "k": 1 }] }), false);
    assert_eq!(filled, Ok(json!({ "rows": [{ "k": null }, { "k": 1 }], "mode": "fast", "options": { "depth": 3 } })));
    // A default that asks for itself ends.
    let endless = tool(json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": {
        "type": "object", "default": {}, "properties": { "l": { "$ref": "#/$defs/n", "default": {} }, "r": { "$ref": "#/$defs/n", "default": {} } } } } }));
    assert!(arguments::check(&endless, json!({}), false).is_err());
}

#[test]
fn unknown_names() {
    let none = manifest::read(manifest("custom:t", json!({ "type": "x-t" }), json!({})).to_string().as_bytes());
    let anything = json!({ "a": 1, "b": { "c": [] } });
    assert_eq!(arguments::check(&none.expect("good").0, anything.clone(), false), Ok(anything.clone()));
    for open in [
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": { "x": {} }, "additionalProperties": true }),
    ] {
        assert_eq!(arguments::check(&tool(open), anything.clone(), false), Ok(anything.clone()));
    }
    let closed = tool(json!({ "type": "object", "properties": { "x": {} }, "additionalProperties": false }));
    assert!(
        arguments::check(&closed, anything, false)
            .expect_err("closed")
            .message
            .contains("'a' is not a known parameter")
    );
    for no_object in [json!(null), json!([]), json!("x"), json!(1)] {
        assert_eq!(
            arguments::check(&closed, no_object, false).expect_err("no object").kind,
            Kind::ParameterValidationError
        );
    }
    let shown = arguments::check(&closed, json!({ "\u{1b}[31m\u{202e}": 1 }), false).expect_err("unknown").message;
    assert!(shown.contains("\\u{1b}[31m\\u{202e}") && !shown.contains('\u{1b}'));
}

#[test]
fn output_is_checked_and_kept() {
    let m = tool(json!({ "type": "object" }));
    assert_eq!(m.check_output(&json!({ "sum": 6 })), Ok(()));
    let fault = m.check_output(&json!({ "sum": "six" })).expect_err("wrong type");
    assert_eq!(fault.kind, Kind::OutputValidationError);
    assert_eq!(fault.message, "Output at '/sum' must be a number.");
    assert_eq!(fault.details.as_deref(), Some("pointer '/sum': type\nOutput: {\"sum\":\"six\"}"));
    assert_eq!(m.check_output(&json!([])).expect_err("list").message, "Output must be an object.");
}

/// Generators of schemas write an optional text as alternatives; a fault in a large value still names its place.
#[test]
fn a_large_value_is_told_where_it_breaks_a_schema_with_alternatives() {
    let kind = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    let row = json!({"type": "object", "properties": {"id": {"type": "integer"}, "kind": kind}});
    let manifest = tool(json!({
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}, "s": {"type": "string", "maxLength": 5}},
        "$defs": {"row": row},
    }));
    let rows = |bad: Value| {
        let mut rows = vec![json!({"id": 1, "kind": null}); 3000];
        rows[1500] = bad;
        json!({"rows": rows})
    };
    assert!(arguments::check(&manifest, rows(json!({"id": 2})), false).is_ok());
    for (bad, place) in
        [(json!({"id": "x"}), "'rows' at '/1500/id' must be an integer"), (json!({"kind": 7}), "'/1500/kind'")]
    {
        let fault = arguments::check(&manifest, rows(bad), false).expect_err("broken");
        assert!(fault.message.contains(place), "{}", fault.message);
    }
    let mut long = rows(json!({"id": 2}));
    long["s"] = json!("x".repeat(10_000));
    let fault = arguments::check(&manifest, long, false).expect_err("too long");
    assert!(fault.message.contains("'s' is longer than 5 characters"), "{}", fault.message);
}
