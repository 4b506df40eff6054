//! C-021, C-042: one outcome in each of its shapes.

use crate::prelude::*;
use toolhost::transport::responses::{Ended, Kind, Media, ToolCall, function_output, item};

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall {
        id: "0190-1".to_owned(),
        call_id: "call_1".to_owned(),
        name: name.replace(':', "__"),
        tool: name.to_owned(),
        arguments: arguments.to_string(),
        ..ToolCall::default()
    }
}

fn ended(media: Vec<Media>) -> Ended {
    Ended {
        media,
        is_success: true,
        is_streamed: false,
        stored_pictures: Vec::new(),
        client: None,
    }
}

fn text(text: &str) -> Media {
    Media::Text(text.to_owned())
}

#[test]
fn a_function_code_and_a_search_fill_their_own_shapes() {
    let sum = call("custom:sum", json!({"numbers": [1, 2, 3]}));
    let six = ended(vec![text("{\"sum\":6}")]);
    assert_eq!(
        item(&sum, &Kind::Call, Some(&six)),
        json!({
        "type": "mcp_call", "id": "mcp_01901", "server_label": "toolhost", "name": "custom:sum",
        "arguments": "{\"numbers\":[1,2,3]}", "output": "{\"sum\":6}", "error": null,
        "approval_request_id": null, "status": "completed"})
    );

    let run = call("core:run-code", json!({"code": "print(6)"}));
    let code = Kind::Code("print(6)".to_owned());
    let printed = ended(vec![
        text("6"),
        Media::Image {
            media_type: "image/png".to_owned(),
            data: "aGk=".to_owned(),
        },
    ]);
    let outputs = json!([{"type": "logs", "logs": "6"}, {"type": "image", "url": "data:image/png;base64,aGk="}]);
    assert_eq!(
        item(&run, &code, Some(&printed)),
        json!({
        "type": "code_interpreter_call", "id": "ci_01901", "container_id": "0190-1", "code": "print(6)",
        "outputs": outputs, "status": "completed",
        "tool_call": {"name": "core__run-code", "arguments": "{\"code\":\"print(6)\"}", "output": "6\n[image/png, 3 bytes]"}})
    );

    let find = call("docs:find", json!({"q": "stars"}));
    let search = Kind::Search(vec!["stars".to_owned()]);
    let found = ended(vec![text(
        "[{\"file_id\":\"f1\",\"filename\":\"a.txt\",\"score\":0.5,\"text\":\"Sirius\"}]",
    )]);
    assert_eq!(
        item(&find, &search, Some(&found))["results"],
        json!([
        {"file_id": "f1", "filename": "a.txt", "score": 0.5, "text": "Sirius", "attributes": {}}])
    );
}

/// What the model reads, and what a failure is.
#[test]
fn media_are_parts_and_a_failure_is_its_sentence() {
    let sum = call("custom:sum", json!({}));
    let media = ended(vec![
        text("a"),
        Media::Image {
            media_type: "image/png".to_owned(),
            data: "aGk=".to_owned(),
        },
        Media::File {
            name: "b.pdf".to_owned(),
            media_type: "application/pdf".to_owned(),
            data: "aGk=".to_owned(),
        },
    ]);
    assert_eq!(
        function_output(&sum, &media),
        json!({"type": "function_call_output", "call_id": "call_1", "output": [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
        {"type": "input_file", "filename": "b.pdf", "file_data": "data:application/pdf;base64,aGk="}]})
    );
    let fault = toolhost::fault::Fault::new(
        toolhost::fault::Kind::TimeoutError,
        "Script execution timed out.",
    );
    let failed = Ended::failed("custom:sum", &fault);
    let words =
        "Tool custom:sum failed. Error type: TimeoutError. Message: Script execution timed out.";
    assert_eq!(function_output(&sum, &failed)["output"], words);
    let item = item(&sum, &Kind::Call, Some(&failed));
    assert_eq!(
        (&item["status"], &item["output"], &item["error"]),
        (
            &json!("failed"),
            &Value::Null,
            &json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": words}]})
        )
    );
    assert!(
        Ended {
            media: vec![text("1"), text("x")],
            ..failed.clone()
        }
        .value()
        .is_none()
    );
}
