//! Arguments: conversion, unknown names, defaults, all faults at once.

use crate::prelude::*;
use toolhost::fault::Kind;
use toolhost::manifest::{Manifest, arguments};

fn tool(parameters: Value) -> Manifest {
    let output = json!({ "type": "object", "properties": { "sum": { "type": "number" } }, "required": ["sum"] });
    made_of(
        "custom:t",
        json!({ "type": "x-test" }),
        json!({ "parameters": parameters, "output": output }),
    )
}

#[test]
fn defaults_are_filled_in_at_every_depth() {
    let m = tool(json!({ "type": "object", "properties": {
        "mode": { "type": "string", "default": "fast" },
        "options": { "type": "object", "default": {}, "properties": { "depth": { "type": "integer", "default": 3 } } },
        "rows": { "type": "array", "items": { "type": "object", "properties": { "k": { "default": null } } } },
        "none": { "type": "string" } } }));
    let filled = arguments::check(&m, json!({ "rows": [{}, { "k": 1 }] }), false);
    assert_eq!(
        filled,
        Ok(
            json!({ "rows": [{ "k": null }, { "k": 1 }], "mode": "fast", "options": { "depth": 3 } })
        )
    );
    // A default that asks for itself ends.
    let endless = tool(
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": {
        "type": "object", "default": {}, "properties": { "l": { "$ref": "#/$defs/n", "default": {} }, "r": { "$ref": "#/$defs/n", "default": {} } } } } }),
    );
    assert!(arguments::check(&endless, json!({}), false).is_err());
}

#[test]
fn unknown_names() {
    let none = made_of("custom:t", json!({ "type": "x-t" }), json!({}));
    let anything = json!({ "a": 1, "b": { "c": [] } });
    assert_eq!(
        arguments::check(&none, anything.clone(), false),
        Ok(anything.clone())
    );
    let open = json!({ "type": "object", "properties": { "x": {} }, "additionalProperties": true });
    for open in [json!({ "type": "object" }), open] {
        assert_eq!(
            arguments::check(&tool(open), anything.clone(), false),
            Ok(anything.clone())
        );
    }
    let closed =
        tool(json!({ "type": "object", "properties": { "x": {} }, "additionalProperties": false }));
    let fault = |arguments| arguments::check(&closed, arguments, false).expect_err("closed");
    assert!(
        fault(anything)
            .message
            .contains("'a' is not a known parameter")
    );
    for no_object in [json!(null), json!([]), json!("x"), json!(1)] {
        assert_eq!(fault(no_object).kind, Kind::ParameterValidationError);
    }
    let shown = fault(json!({ "\u{1b}[31m\u{202e}": 1 })).message;
    assert!(shown.contains("\\u{1b}[31m\\u{202e}") && !shown.contains('\u{1b}'));
}

#[test]
fn output_is_checked_and_kept() {
    let m = tool(json!({ "type": "object" }));
    assert_eq!(m.check_output(&json!({ "sum": 6 })), Ok(()));
    let fault = m
        .check_output(&json!({ "sum": "six" }))
        .expect_err("wrong type");
    let told = (fault.kind, fault.message.as_str());
    assert_eq!(
        told,
        (
            Kind::OutputValidationError,
            "Output at '/sum' must be a number."
        )
    );
    assert_eq!(
        fault.details.as_deref(),
        Some("pointer '/sum': type\nOutput: {\"sum\":\"six\"}")
    );
    assert_eq!(
        m.check_output(&json!([])).expect_err("list").message,
        "Output must be an object."
    );
}
