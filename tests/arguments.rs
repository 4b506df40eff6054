//! Arguments: conversion, unknown names, defaults, all faults at once.

use crate::prelude::*;
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
