//! Needs: what a tool needs that is not built yet, not known, or not on this machine, whatever a policy says.
//!
//! For: `decide` and the registry. In: a manifest. Out: needs, in words for anybody. Never: starts anything to find
//! out.

use super::capability;
use crate::base::text;
use crate::manifest::{Handler, Manifest};

/// One thing that a tool needs and does not have here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The words after "it needs", for anybody to read.
    pub words: String,
    /// JSON pointer of the ask in the manifest; empty where no field of it asks.
    pub pointer: String,
    /// The manifest is wrong (it names something unknown, say), rather than this machine or version lacking something.
    pub mistake: bool,
}

impl Need {
    pub fn new(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need { words: words.into(), pointer: pointer.into(), mistake: false }
    }

    pub fn mistaken(pointer: impl Into<String>, words: impl Into<String>) -> Need {
        Need { mistake: true, ..Need::new(pointer, words) }
    }
}

/// Lets `join` work on a list of needs.
impl std::borrow::Borrow<str> for Need {
    fn borrow(&self) -> &str {
        &self.words
    }
}

/// Needs that the manifest alone shows: features that are not built yet, and unknown capabilities.
pub fn of_manifest(manifest: &Manifest) -> Vec<Need> {
    let mut needs = Vec::new();
    let client = "a client that runs the tool (handler.type definition-only): not built yet";
    match &manifest.handler {
        Handler::DefinitionOnly => needs.push(Need::new("/handler/type", client)),
        Handler::Script { .. } | Handler::ServiceMethod { .. } | Handler::Extension { .. } => {}
        Handler::ToolService(_) | Handler::Document(_) => {}
    }
    for (index, word) in manifest.asks.capabilities.iter().enumerate() {
        let Some(why) = capability::unknown(word) else { continue };
        let word = text::printable(&text::head(word, 60));
        let words = format!("the capability '{word}' (requiredCapabilities), which nobody knows{why}");
        needs.push(Need::mistaken(format!("/securityContext/requiredCapabilities/{index}"), words));
    }
    needs
}
