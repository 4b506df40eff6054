//! Tools that the client of a call runs: what the client is handed, and whether it takes any.
//!
//! Nothing of such a tool runs here, and only a run hands out its calls, to the caller for whom
//! they were decided. What a client submits as output is not checked: it is the client's word, and
//! is recorded with its digest before it counts. A run or response, its steps, events and outputs
//! are for the caller and principal that made it, and not for operators; they are on the disk (mode
//! 600) only if the request says `store`, for 24 hours, with the secrets of its calls hidden.

use crate::fault::{Fault, Kind};
use crate::manifest::{ClientTool, INPUT};
use crate::registry::Tool;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A call that the client runs, and whose output it submits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCall {
    /// The call's id, to which its output refers.
    pub id: String,
    /// The tool's id; of a tool that the request brought: its name.
    pub tool: String,
    /// The name by which the model knows the tool.
    pub name: String,
    #[serde(flatten)]
    pub what: ClientTool,
    /// Checked, with defaults filled in, and in the form that clients take.
    pub arguments: Map<String, Value>,
}

impl ClientCall {
    /// The text of a custom tool.
    pub fn input(&self) -> &str {
        self.arguments
            .get(INPUT)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// Which tools the client of a call runs.
#[derive(Clone, Debug, Default)]
pub enum ClientRuns {
    /// It cannot be handed a call.
    #[default]
    Nothing,
    /// Those of this host that are for clients. `name`: by which its model knows the tool of the
    /// call.
    Registered { name: String },
    /// The tool of the call, which the request itself brought.
    Own(Arc<Tool>),
}

impl ClientRuns {
    /// The name of the tool, if the client can be handed the call.
    pub(super) fn name_of(&self, tool: &Tool) -> Result<String, Fault> {
        match self {
            ClientRuns::Nothing => {
                let details = "Only a run over HTTP and Responses hand it out.";
                Err(client_runs().details(details))
            }
            ClientRuns::Registered { name } => Ok(name.clone()),
            ClientRuns::Own(_) => Ok(tool.manifest.id.clone()),
        }
    }
}

/// The fault of a call for which nothing can be run here.
pub(super) fn client_runs() -> Fault {
    Fault::new(Kind::CapabilityError, "The client runs this tool.")
}
