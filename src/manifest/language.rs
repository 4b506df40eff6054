//! The languages a script may be written in, and their spellings.

use serde::{Deserialize, Serialize};

/// What a script is written in. `py`, `node`, `js` are accepted spellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Nodejs,
    Bun,
    Wasm,
}

impl Language {
    pub const ALL: [Language; 4] = [Language::Python, Language::Nodejs, Language::Bun, Language::Wasm];

    /// The name in manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Nodejs => "nodejs",
            Language::Bun => "bun",
            Language::Wasm => "wasm",
        }
    }

    /// From a manifest's or a caller's word; `py`, `node` and `js` are accepted spellings.
    pub fn from_word(word: &str) -> Option<Language> {
        match word {
            "python" | "py" => Some(Language::Python),
            "nodejs" | "node" | "js" => Some(Language::Nodejs),
            "bun" => Some(Language::Bun),
            "wasm" => Some(Language::Wasm),
            _ => None,
        }
    }

    /// The languages a script of this name can be in, the likeliest first; empty where the name does not tell. Bun runs
    /// what Node runs. (The schema of manifests says the same.)
    pub fn of_file_name(name: &str) -> &'static [Language] {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("py") => &[Language::Python],
            Some("js" | "mjs" | "cjs") => &[Language::Nodejs, Language::Bun],
            Some("ts" | "mts" | "cts" | "tsx" | "jsx") => &[Language::Bun],
            Some("wasm" | "wat") => &[Language::Wasm],
            _ => &[],
        }
    }

    /// The endings of such scripts, for messages.
    pub fn endings(self) -> &'static str {
        match self {
            Language::Python => ".py",
            Language::Nodejs => ".js, .mjs or .cjs",
            Language::Bun => ".ts, .js and their like",
            Language::Wasm => ".wasm or .wat",
        }
    }
}
