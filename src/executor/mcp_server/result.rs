//! The answer of a server's tool, in the form that answers have here. What the server sent is cut to
//! what that form knows.

use super::wire::Refusal;
use crate::base::json::{Object, Text};
use crate::executor::{CallDeadline, Ending, ToolAnswer};
use crate::quantity::MAX_TREE_BYTES;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Members of a block of content, and of the file that it may hold.
const BLOCK: [&str; 9] = [
    "type",
    "text",
    "data",
    "mimeType",
    "uri",
    "name",
    "title",
    "description",
    "resource",
];
const RESOURCE: [&str; 4] = ["uri", "mimeType", "text", "blob"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    structured_content: Option<&'a RawValue>,
    #[serde(default)]
    is_error: bool,
    /// What it asks its client, and wants back beside the answers.
    input_requests: Option<Map<String, Value>>,
    #[serde(borrow)]
    request_state: Option<&'a RawValue>,
}

/// The ending of a call that was answered.
pub fn ending(answer: Result<Text, Refusal>, deadline: &CallDeadline) -> Result<Ending, String> {
    let text = match answer {
        Ok(text) => text,
        Err(Refusal { message }) => return Ok(Ending::Raised { message }),
    };
    let Object(result) = serde_json::from_str::<Object<ToolResult>>(text.as_str())
        .map_err(|e| format!("its answer is not the result of a tool: {e}"))?;
    if let Some(requests) = result.input_requests {
        let state = json!({"requestState": result.request_state});
        return Ok(Ending::answer(&json!({"$ask": requests, "$state": state})));
    }
    if let (Some(value), false) = (result.structured_content, result.is_error) {
        let value = Text::checked(value.get()).ok_or("its answer cannot be read")?;
        return Ok(Ending::Answered(ToolAnswer::new(value, deadline)));
    }
    let content = Text::checked(result.content.map_or("[]", RawValue::get));
    let content = content.and_then(|it| it.tree(MAX_TREE_BYTES).ok());
    let Some(Value::Array(mut blocks)) = content else {
        return Err("the content of its answer is not a list, or holds too many values".to_owned());
    };
    for block in &mut blocks {
        keep(block, &BLOCK);
        if let Some(resource) = block.get_mut("resource") {
            keep(resource, &RESOURCE);
        }
    }
    if result.is_error {
        let texts = blocks.iter().filter_map(|block| block["text"].as_str());
        let message = texts.collect::<Vec<_>>().join("\n");
        return Ok(Ending::Raised { message });
    }
    let value = match blocks.as_mut_slice() {
        [block] if block["type"] == "text" && block["text"].is_string() => block["text"].take(),
        _ => json!({ "$content": blocks }),
    };
    let answer = ToolAnswer::new(Text::from(&value), deadline);
    Ok(Ending::Answered(answer))
}

fn keep(value: &mut Value, members: &[&str]) {
    if let Value::Object(all) = value {
        all.retain(|name, value| members.contains(&name.as_str()) && !value.is_null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_value_its_text_or_its_blocks() {
        let read = |result: Value| {
            let deadline = CallDeadline::usual("", None);
            ending(Ok(Text::from(&result)), &deadline)
        };
        let answered = |result: Value| match read(result).unwrap() {
            Ending::Answered(answer) => serde_json::from_str(answer.small().unwrap()).unwrap(),
            other => panic!("{other:?}"),
        };
        let text = |text: &str| json!({"type": "text", "text": text, "_meta": {"x": 1}});
        let cases = [
            (json!({"content": [text("a")]}), json!("a")),
            (
                json!({"content": [text("a")], "structuredContent": {"n": 1}}),
                json!({"n": 1}),
            ),
            (
                json!({"content": [text("a"), {"type": "resource", "resource": {"uri": "x:y", "text": "t", "_meta": {}}}]}),
                json!({"$content": [{"type": "text", "text": "a"}, {"type": "resource", "resource": {"uri": "x:y", "text": "t"}}]}),
            ),
            (json!({}), json!({"$content": []})),
            (
                json!({"inputRequests": {"q": {"method": "elicitation/create"}}, "requestState": "s"}),
                json!({"$ask": {"q": {"method": "elicitation/create"}}, "$state": {"requestState": "s"}}),
            ),
        ];
        for (result, wanted) in cases {
            let answer: Value = answered(result.clone());
            assert_eq!(answer, wanted, "{result}");
        }
        let failed = json!({"content": [text("no"), text("way")], "isError": true});
        let Ending::Raised { message } = read(failed).unwrap() else {
            panic!("it answered");
        };
        assert_eq!(message, "no\nway");
        for wrong in [json!([]), json!({"content": 3}), json!("x")] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
