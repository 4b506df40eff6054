//! What a tool needs and does not have here, whatever a policy says, in words for anybody.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The words after "it needs".
    pub words: String,
    /// JSON pointer of the request in the manifest; empty where no field of it asks.
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
