//! Capabilities: the words a manifest may require, and who must agree to each.
//!
//! For: policy files (which words may be granted), settings (which a host offers) and `decide` (which asks are met).
//! In: a word. Out: its kind, or why it is refused. Never: lets an unknown word pass in silence.

use crate::manifest::environment;
use crate::manifest::shape::did_you_mean;

/// How a capability is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Every tool has it, within its limits and walls.
    Free,
    /// `env:NAME`: this host must offer that variable, and a policy must grant it.
    Env(&'a str),
    /// `secret:NAME`: a policy must say in `[secrets]` where it lies and how it is used.
    Secret(&'a str),
    /// `ask:WHAT`: a policy must grant that the tool asks its client.
    Ask(Ask),
    /// What this host's configuration says that the machine has (`capabilities`). It opens nothing.
    Declared,
    /// Known, not built yet.
    Later,
    Unknown,
}

const KNOWN: [&str; 9] = [
    "subprocess",
    "env:NAME",
    "secret:NAME",
    "ask:elicitation",
    "ask:sampling",
    "ask:roots",
    "gpu",
    "long-running",
    "files:input",
];

/// What a tool may ask of the client that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A form for the person behind the client.
    Elicitation,
    /// An answer of the client's model.
    Sampling,
    /// The folders that the client works in.
    Roots,
}

impl Ask {
    pub const ALL: [Ask; 3] = [Ask::Elicitation, Ask::Sampling, Ask::Roots];

    pub fn word(self) -> &'static str {
        match self {
            Ask::Elicitation => "elicitation",
            Ask::Sampling => "sampling",
            Ask::Roots => "roots",
        }
    }

    /// MCP's name of the request.
    pub fn method(self) -> &'static str {
        match self {
            Ask::Elicitation => "elicitation/create",
            Ask::Sampling => "sampling/createMessage",
            Ask::Roots => "roots/list",
        }
    }

    pub fn of_method(method: &str) -> Option<Ask> {
        Ask::ALL.into_iter().find(|ask| ask.method() == method)
    }
}

pub fn kind(word: &str) -> Kind<'_> {
    match word {
        "subprocess" => Kind::Free,
        // Nothing in this version provides these, so none of them is granted.
        "long-running" | "files:input" => Kind::Later,
        "gpu" => Kind::Declared,
        _ => match word.split_once(':') {
            Some(("ask", what)) => Ask::ALL.into_iter().find(|ask| ask.word() == what).map_or(Kind::Unknown, Kind::Ask),
            Some(("env", name)) if environment::refused(name, "").is_none() => Kind::Env(name),
            Some(("secret", name)) if environment::refused(name, "").is_none() => Kind::Secret(name),
            _ => Kind::Unknown,
        },
    }
}

/// Why no host could ever meet this word: the text after "which nobody knows"; `None` = some host may.
pub fn unknown(word: &str) -> Option<String> {
    let variable = || {
        let name = word.strip_prefix("env:").or_else(|| word.strip_prefix("secret:"))?;
        environment::refused(name, "")
    };
    let why = || match variable() {
        Some(why) => format!(": {why}"),
        None => format!("{}; known: {}", did_you_mean(word, &KNOWN), KNOWN.join(", ")),
    };
    (kind(word) == Kind::Unknown).then(why)
}

/// May a config name this word?
pub fn offerable(word: &str) -> Result<(), String> {
    if kind(word) == Kind::Declared { Ok(()) } else { grantable(word) }
}

/// May a policy grant this word?
pub fn grantable(word: &str) -> Result<(), String> {
    let shown = crate::base::text::printable(word);
    match kind(word) {
        Kind::Free | Kind::Env(_) | Kind::Ask(_) => Ok(()),
        Kind::Secret(_) => Err(format!(
            "`{shown}` is granted by an entry of [secrets] grant in the tool's policy, which says where it lies: write it there"
        )),
        Kind::Declared => {
            Err(format!("`{shown}` needs no grant: `capabilities` in the host's configuration declares it; remove it"))
        }
        Kind::Later => Err(format!("`{shown}` is not built yet; remove it")),
        Kind::Unknown => Err(format!("unknown capability `{shown}`{}", unknown(word).unwrap_or_default())),
    }
}
