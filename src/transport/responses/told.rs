//! The stages of one call as the events of its item.

use super::call::ToolCall;
use super::ended::Ended;
use super::items::{Kind, client_item, client_text, item};
use super::stream::Stream;
use crate::executor::{ImageStage, Showing};
use crate::manifest::ClientTool;
use crate::quantity::MAX_OBSERVATION_BYTES;
use crate::service::ClientCall;
use serde_json::{Value, json};

/// A call that is shown. Its first event decides what it is shown as.
pub struct Told {
    pub call: ToolCall,
    kind: Option<Kind>,
    /// The text of a message until now.
    text: String,
    /// Partial pictures until now.
    pictures: u64,
}

impl Told {
    pub fn new(call: ToolCall) -> Told {
        Told {
            call,
            kind: None,
            text: String::new(),
            pictures: 0,
        }
    }

    /// A part of the answer.
    pub fn part(&mut self, text: &str, to: &mut Stream) {
        let usual = self.usual(true);
        if *self.begin(usual, to) == Kind::Message {
            self.say(text, to);
        } else {
            to.tell("toolhost:output.delta", json!({"delta": text}));
        }
    }

    /// What the tool shows of its work. What does not fit its item is shown as the tool's own.
    pub fn shown(&mut self, shown: Showing, to: &mut Stream) {
        let kind = match &shown {
            Showing::Image(_) => Kind::Image,
            Showing::Search(queries) if !self.call.is_final => Kind::Search(queries.clone()),
            Showing::Search(_) | Showing::Custom(_) => self.usual(true),
        };
        let is_first = self.kind.is_none();
        match (self.begin(kind, to), shown) {
            (Kind::Image, Showing::Image(ImageStage::Generating)) => {
                to.tell("response.image_generation_call.generating", json!({}))
            }
            (Kind::Image, Showing::Image(ImageStage::Partial(data))) => {
                let index = self.pictures;
                self.pictures += 1;
                to.tell(
                    "response.image_generation_call.partial_image",
                    json!({"partial_image_b64": data, "partial_image_index": index}),
                );
            }
            (Kind::Search(known), Showing::Search(more)) => {
                if !is_first {
                    known.extend(more);
                }
                to.tell("response.file_search_call.searching", json!({}));
            }
            (_, shown) => to.tell("toolhost:event", json!({"event": shown})),
        }
    }

    /// Ends the item. Returns what it was shown as.
    pub fn completed(mut self, ended: &Ended, to: &mut Stream) -> Kind {
        let usual = self.usual(ended.is_success);
        let mut done = match self.begin(usual, to) {
            Kind::Message => {
                if !(ended.is_streamed && ended.is_success) {
                    let break_ = if self.text.is_empty() { "" } else { "\n" };
                    self.say(&format!("{break_}{}", ended.text()), to);
                }
                self.end_message(to)
            }
            kind => {
                if let Some(event) = last_event(kind, ended.is_success) {
                    to.tell(event, json!({}));
                }
                Value::Null
            }
        };
        let kind = self.kind.unwrap_or(Kind::Call);
        let mut whole = item(&self.call, &kind, Some(ended));
        if kind == Kind::Message {
            whole["content"] = json!([done.take()]);
        }
        to.close(whole);
        kind
    }

    /// What it is shown as if the tool shows nothing. A final tool that failed has no message.
    fn usual(&self, is_success: bool) -> Kind {
        match &self.call.code {
            _ if self.call.is_final && is_success => Kind::Message,
            Some(code) => Kind::Code(code.clone()),
            None => Kind::Call,
        }
    }

    /// What it is shown as; its item is added, if it was not yet.
    fn begin(&mut self, kind: Kind, to: &mut Stream) -> &mut Kind {
        if self.kind.is_none() {
            to.open(item(&self.call, &kind, None));
            first_events(&self.call, &kind, to);
        }
        self.kind.get_or_insert(kind)
    }

    /// As much as is kept of a message.
    fn say(&mut self, text: &str, to: &mut Stream) {
        let room = MAX_OBSERVATION_BYTES.saturating_sub(self.text.len());
        let text = &text[..text.floor_char_boundary(room)];
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        text_delta(text, to);
    }

    fn end_message(&mut self, to: &mut Stream) -> Value {
        end_text(&std::mem::take(&mut self.text), to)
    }
}

/// The item of a call that the client runs, whole.
pub fn tell_client(call: &ToolCall, client: &ClientCall, to: &mut Stream) {
    to.open(client_item(call, client, false));
    let text = client_text(client);
    match (&client.what, text) {
        (ClientTool::Custom { .. }, Some(input)) => pieces(
            "response.custom_tool_call_input",
            json!({"input": input}),
            &input,
            to,
        ),
        (_, Some(arguments)) => pieces(
            "response.function_call_arguments",
            json!({"arguments": arguments, "name": client.name}),
            &arguments,
            to,
        ),
        (_, None) => {}
    }
    to.close(client_item(call, client, true));
}

/// A message of the model, which grows.
pub struct Message {
    id: String,
    text: String,
}

impl Message {
    pub fn begin(id: String, to: &mut Stream) -> Message {
        let message = Message {
            id,
            text: String::new(),
        };
        to.open(message.item("in_progress", json!([])));
        begin_text(to);
        message
    }

    pub fn say(&mut self, text: &str, to: &mut Stream) {
        self.text.push_str(text);
        text_delta(text, to);
    }

    pub fn end(self, to: &mut Stream) {
        self.close("completed", to);
    }

    /// Ends it where the model did not.
    pub fn break_off(self, to: &mut Stream) {
        self.close("incomplete", to);
    }

    fn close(self, status: &str, to: &mut Stream) {
        let part = end_text(&self.text, to);
        to.close(self.item(status, json!([part])));
    }

    fn item(&self, status: &str, content: Value) -> Value {
        json!({"type": "message", "id": self.id, "role": "assistant", "status": status,
            "content": content})
    }
}

/// The last events of the text of a message, and the part with the whole text.
fn end_text(text: &str, to: &mut Stream) -> Value {
    let part = text_part(text);
    to.tell(
        "response.output_text.done",
        json!({"content_index": 0, "text": text, "logprobs": []}),
    );
    to.tell(
        "response.content_part.done",
        json!({"content_index": 0, "part": part}),
    );
    part
}

fn text_delta(text: &str, to: &mut Stream) {
    to.tell(
        "response.output_text.delta",
        json!({"content_index": 0, "delta": text, "logprobs": []}),
    );
}

fn begin_text(to: &mut Stream) {
    to.tell(
        "response.content_part.added",
        json!({"content_index": 0, "part": text_part("")}),
    );
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn first_events(call: &ToolCall, kind: &Kind, to: &mut Stream) {
    match kind {
        Kind::Call => {
            to.tell("response.mcp_call.in_progress", json!({}));
            pieces(
                "response.mcp_call_arguments",
                json!({"arguments": call.arguments}),
                &call.arguments,
                to,
            );
        }
        Kind::Code(code) => {
            to.tell("response.code_interpreter_call.in_progress", json!({}));
            pieces(
                "response.code_interpreter_call_code",
                json!({"code": code}),
                code,
                to,
            );
            to.tell("response.code_interpreter_call.interpreting", json!({}));
        }
        Kind::Message => begin_text(to),
        Kind::Image => to.tell("response.image_generation_call.in_progress", json!({})),
        Kind::Search(_) => to.tell("response.file_search_call.in_progress", json!({})),
    }
}

/// A text as one delta, and whole.
fn pieces(event: &str, whole: Value, text: &str, to: &mut Stream) {
    if !text.is_empty() {
        to.tell(&format!("{event}.delta"), json!({"delta": text}));
    }
    to.tell(&format!("{event}.done"), whole);
}

/// The event before an item is done, where there is one.
fn last_event(kind: &Kind, is_success: bool) -> Option<&'static str> {
    match (kind, is_success) {
        (Kind::Call, true) => Some("response.mcp_call.completed"),
        (Kind::Call, false) => Some("response.mcp_call.failed"),
        (Kind::Code(_), true) => Some("response.code_interpreter_call.completed"),
        (Kind::Image, true) => Some("response.image_generation_call.completed"),
        (Kind::Search(_), true) => Some("response.file_search_call.completed"),
        (Kind::Message | Kind::Code(_) | Kind::Image | Kind::Search(_), _) => None,
    }
}
