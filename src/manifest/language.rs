//! The languages a script may be written in, and their spellings.
//!
//! For: manifest reader, service methods, runtimes, cli. In: a word or a file name. Out: a `Language`.
//! Never: guesses where two languages are possible.

use super::Language;

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

    /// From a script's file name (Q15).
    pub fn from_file_name(name: &str) -> Option<Language> {
        match name.rsplit_once('.')?.1 {
            "py" => Some(Language::Python),
            "js" | "mjs" | "cjs" => Some(Language::Nodejs),
            "ts" => Some(Language::Bun),
            "wasm" | "wat" => Some(Language::Wasm),
            _ => None,
        }
    }

    /// Can this language run that file? Names that say nothing fit every language; Bun runs what Node runs,
    /// and newer Nodes run plain TypeScript.
    pub fn fits_file_name(self, name: &str) -> bool {
        match Language::from_file_name(name) {
            None => true,
            Some(Language::Nodejs | Language::Bun) => matches!(self, Language::Nodejs | Language::Bun),
            Some(of_file) => of_file == self,
        }
    }
}
