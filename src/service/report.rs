//! The report: everything about one call that a caller may know (DESIGN §7).
//!
//! For: every transport. In: what the road found out. Out: plain data; its JSON is the outcome of
//! DESIGN §7, field for field, and `notes`. Never: a host path or policy text in what an agent reads.

use super::format;
use crate::{executor, fault, manifest};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// How one call ended. `success` is false exactly when there is an `error`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub id: String,
    /// The tool's id; where no tool was found, what was asked for.
    pub tool: String,
    pub version: Option<String>,
    pub success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<fault::Fault>,
    pub logs: Vec<String>,
    pub usage: executor::Usage,
    #[serde(serialize_with = "as_list")]
    pub walls: executor::Walls,
    pub denials: executor::Denials,
    pub artifacts: Vec<executor::Artifact>,
    pub digests: Digests,
    /// Where the call got less than was asked: beside the fields of DESIGN §7, and only where there is something to say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The tool's own definition, for faces that show more of it.
    #[serde(skip)]
    pub manifest: Option<Arc<manifest::Manifest>>,
    /// True where the tool's answer is the envelope (Q14).
    #[serde(skip)]
    pub speaks_envelope: bool,
}

/// SHA-256 of what the call stood on; `None` where there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Digests {
    pub manifest: Option<String>,
    pub script: Option<String>,
    pub policy: Option<String>,
    pub confinement: Option<String>,
}

fn as_list<S: serde::Serializer>(walls: &executor::Walls, to: S) -> Result<S::Ok, S::Error> {
    walls[..].serialize(to)
}

impl Report {
    /// The outcome of a call of which nothing but its failure is known.
    pub fn of_fault(id: String, tool: &str, mut fault: fault::Fault) -> Report {
        fault.message = manifest::text::printable(&fault.message);
        Report {
            id,
            tool: manifest::text::printable(tool),
            version: None,
            success: false,
            output_data: None,
            error: Some(fault),
            logs: Vec::new(),
            usage: executor::Usage::default(),
            walls: executor::Walls::default(),
            denials: executor::Denials::default(),
            artifacts: Vec::new(),
            digests: Digests::default(),
            notes: Vec::new(),
            manifest: None,
            speaks_envelope: false,
        }
    }

    /// The whole outcome as JSON.
    pub fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_else(|e| json!({"id": self.id, "success": false, "error": e.to_string()}))
    }

    /// The seed's result shape: `{success, outputData?, error?, logs?}`.
    pub fn envelope(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("success".into(), Value::Bool(self.success));
        if let Some(output) = &self.output_data {
            fields.insert("outputData".into(), output.clone());
        }
        if let Some(fault) = &self.error {
            let mut error = json!({"type": fault.kind.to_string(), "message": fault.message});
            if let Some(details) = &fault.details {
                error["details"] = Value::String(details.clone());
            }
            fields.insert("error".into(), error);
        }
        if !self.logs.is_empty() {
            fields.insert("logs".into(), json!(self.logs));
        }
        Value::Object(fields)
    }

    /// What a tool's `output` schema and `expectedOutput` speak of: the envelope where the tool
    /// speaks envelopes, else the output itself; after a failure always the envelope.
    pub fn answer(&self) -> Value {
        match &self.output_data {
            Some(output) if self.success && !self.speaks_envelope => output.clone(),
            _ => self.envelope(),
        }
    }

    /// The observation text.
    pub fn observation(&self) -> String {
        match &self.error {
            Some(fault) => format::failed(&self.tool, fault),
            None => format::succeeded(&self.tool, self.output_data.as_ref().unwrap_or(&Value::Null)),
        }
    }
}
