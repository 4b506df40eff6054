//! The list of tools that callers with the same rights are offered, as it is sent.

use crate::base::{lock, text};
use crate::registry::Tool;
use crate::service::{Caller, Service};
use crate::transport::export::{self, Format};
use crate::transport::names::Names;
use axum::body::Bytes;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The tools that callers with the same rights are offered, their names, and each text that was
/// made of them.
pub struct OfferedTools {
    pub tools: Vec<Arc<Tool>>,
    pub names: Names,
    texts: Mutex<HashMap<TextKey, Arc<OnceLock<Bytes>>>>,
}

/// Which tools a text has, and how.
#[derive(PartialEq, Eq, Hash)]
struct TextKey {
    format: Option<Format>,
    namespace: Option<String>,
}

impl OfferedTools {
    pub fn new(service: &Service, caller: &Caller) -> OfferedTools {
        let tools = service.catalog.offered(caller);
        OfferedTools {
            names: export::names(&tools),
            tools,
            texts: Mutex::default(),
        }
    }

    /// The tool with this name or id.
    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        let id = self.names.id(name).unwrap_or(name);
        self.tools.iter().find(|tool| tool.manifest.id == id)
    }

    /// The list as it is sent.
    pub fn text(&self, format: Option<Format>, namespace: Option<String>) -> Bytes {
        let listed: Vec<_> = self
            .tools
            .iter()
            .filter(|tool| {
                namespace
                    .as_ref()
                    .is_none_or(|namespace| tool.manifest.namespace() == namespace)
            })
            .cloned()
            .collect();
        let make = || match format.map(|format| export::tools(&listed, &self.names, format)) {
            Some(Value::String(text)) => text.into(),
            Some(value) => text::json(&value, false).into(),
            None => {
                let listed: Vec<Value> = listed.iter().map(|tool| export::describe(tool)).collect();
                text::json(&json!({ "tools": listed }), false).into()
            }
        };
        // Only namespaces that exist are kept.
        if listed.is_empty() {
            return make();
        }
        let text = lock(&self.texts)
            .entry(TextKey { format, namespace })
            .or_default()
            .clone();
        text.get_or_init(make).clone()
    }
}
