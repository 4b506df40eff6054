//! A tool call of a model.

use crate::manifest::ClientTool;
use serde_json::{Map, Value};

/// A call as its model asked for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// The id of the call here.
    pub id: String,
    /// The id by which the model knows it.
    pub call_id: String,
    /// The name by which the model knows the tool, and the tool's id.
    pub name: String,
    pub tool: String,
    /// JSON text, as the model wrote it.
    pub arguments: String,
    /// The code that the arguments hold, where the tool runs such.
    pub code: Option<String>,
    /// The tool's text is the answer to the person.
    pub is_final: bool,
    /// Nothing of it is shown.
    pub is_hidden: bool,
    /// For what kind of tool its model wrote it: what the model reads of it has the same form.
    pub form: ClientTool,
    /// Members that come back as they are (`caller`, `namespace`), where its item has none of the
    /// name.
    pub passed_on: Map<String, Value>,
}
