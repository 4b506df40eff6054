//! The events of one response. Their rules hold whatever is sent: one item is open at a time, its
//! index is its place in the output, and numbers have no gap.

use crate::service;
use jiff::Timestamp;
use serde_json::{Value, json};

/// One event, as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    pub name: String,
    pub data: Value,
}

/// How a response ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseStatus {
    Completed,
    /// A bound of it was reached: which.
    Incomplete(&'static str),
    /// Its code and message.
    Failed {
        code: String,
        message: String,
    },
}

/// A response that grows, and the events that were not sent yet.
pub struct Stream {
    response: Value,
    output: Vec<Value>,
    /// The item whose events are sent, as it was added.
    open: Option<Value>,
    sequence: u64,
    events: Vec<StreamEvent>,
}

/// The members of a response that stay as they are.
pub fn head(model: &str) -> Value {
    let id: String = service::new_id().replace('-', "");
    // Every member that the schema of Open Responses requires.
    json!({"id": format!("resp_{id}"), "created_at": Timestamp::now().as_second(),
        "completed_at": null, "model": model, "error": null, "incomplete_details": null,
        "instructions": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "store": false, "background": false, "temperature": 1,
        "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0,
        "tool_choice": "auto", "tools": [], "truncation": "disabled",
        "text": {"format": {"type": "text"}}, "reasoning": null, "user": null, "usage": null,
        "max_output_tokens": null, "max_tool_calls": null, "service_tier": "default",
        "safety_identifier": null, "prompt_cache_key": null})
}

impl Stream {
    /// `head`: the members of the response that do not change.
    pub fn new(head: Value) -> Stream {
        let mut stream = Stream {
            response: head,
            output: Vec::new(),
            open: None,
            sequence: 0,
            events: Vec::new(),
        };
        stream.response["object"] = json!("response");
        stream.response["status"] = json!("in_progress");
        stream.response["output"] = json!([]);
        for name in ["response.created", "response.in_progress"] {
            let data = json!({"response": stream.response});
            stream.push(name, data);
        }
        stream
    }

    /// One that said this already.
    pub fn continued(head: Value, output: Vec<Value>) -> Stream {
        Stream {
            output,
            ..Stream::new(head)
        }
    }

    fn push(&mut self, name: &str, more: Value) {
        let mut data = json!({"type": name, "sequence_number": self.sequence});
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        self.sequence += 1;
        self.events.push(StreamEvent {
            name: name.to_owned(),
            data,
        });
    }

    /// Begins an item, as it is before its first event.
    pub fn open(&mut self, item: Value) {
        debug_assert!(self.open.is_none(), "{item}");
        let index = self.output.len();
        self.push(
            "response.output_item.added",
            json!({"output_index": index, "item": item}),
        );
        self.open = Some(item);
    }

    /// An event of the open item.
    pub fn tell(&mut self, name: &str, more: Value) {
        let id = self.open.as_ref().map(|item| &item["id"]);
        let mut data = json!({"item_id": id, "output_index": self.output.len()});
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        self.push(name, data);
    }

    /// Ends the open item, which has this form for good.
    pub fn close(&mut self, item: Value) {
        let index = self.output.len();
        self.push(
            "response.output_item.done",
            json!({"output_index": index, "item": item}),
        );
        self.open = None;
        self.output.push(item);
    }

    /// Ends the response. `more`: members that it has from now on.
    pub fn end(&mut self, status: ResponseStatus, more: Value) {
        let response = &mut self.response;
        if let (Value::Object(response), Value::Object(more)) = (&mut *response, more) {
            response.extend(more);
        }
        let word = match status {
            ResponseStatus::Completed => "completed",
            ResponseStatus::Incomplete(reason) => {
                response["incomplete_details"] = json!({"reason": reason});
                "incomplete"
            }
            ResponseStatus::Failed { code, message } => {
                response["error"] = json!({"code": code, "message": message});
                // Flat as the hosted API has it, and as Open Responses has it.
                let error = json!({"code": code, "message": message, "param": null,
                    "error": {"type": "server_error", "code": code, "message": message,
                        "param": null}});
                self.push("error", error);
                "failed"
            }
        };
        self.response["status"] = json!(word);
        if word == "completed" {
            self.response["completed_at"] = json!(Timestamp::now().as_second());
        }
        self.response["output"] = Value::Array(std::mem::take(&mut self.output));
        let data = json!({"response": self.response});
        self.push(&format!("response.{word}"), data);
    }

    /// Whether an item has not ended.
    pub fn has_open_item(&self) -> bool {
        self.open.is_some()
    }

    pub fn response(&self) -> &Value {
        &self.response
    }

    pub fn take_events(&mut self) -> Vec<StreamEvent> {
        std::mem::take(&mut self.events)
    }
}
