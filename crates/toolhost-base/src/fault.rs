//! Faults: how *we* refused or failed. How a *tool* ended is another type, `executor::Outcome`.
//!
//! `message` and `details` never hold a host path, errno or policy text; those go to `person`.

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// Makes `Kind` and what is said of each kind from one list.
macro_rules! kinds {
    ($($kind:ident: $origin:ident),+ $(,)?) => {
        /// The closed list of error types, explained in docs/reference/CALLS.md.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($kind),+
        }

        impl Kind {
            pub const ALL: [Kind; 17] = [$(Kind::$kind),+];

            /// Each kind has one origin, which also gives the exit status
            /// (docs/reference/CALLS.md).
            pub fn origin(self) -> Origin {
                match self {
                    $(Kind::$kind => Origin::$origin),+
                }
            }
        }
    };
}

kinds! {
    ToolNotFoundError: Caller,
    ActionParseError: Caller,
    ParameterValidationError: Caller,
    AuthorizationError: Policy,
    RateLimitError: Policy,
    CircuitOpenError: Host,
    VersionMismatchError: Caller,
    CapabilityError: Host,
    SecurityError: Policy,
    DependencyError: Host,
    TimeoutError: Tool,
    ResourceLimitError: Tool,
    ScriptError: Tool,
    OutputValidationError: Tool,
    ServiceError: Host,
    CancelledError: Caller,
    InternalError: Host,
}

/// Who must act for the same call to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Caller,
    Policy,
    Tool,
    Host,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One refusal or failure of ours.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Fault {
    pub kind: Kind,
    /// For anybody, an agent included: no host path, errno or policy text.
    pub message: String,
    pub details: Option<String>,
    /// Of arguments with several flaws: a sentence for each, where `message` has all of them in one
    /// line.
    pub flaws: Vec<String>,
    /// For the person at the command line and the log: path, place and fix.
    pub person: Option<String>,
    pub origin: Origin,
    pub retryable: bool,
    /// When it may, milliseconds from now.
    pub retry_after_ms: Option<u64>,
    /// The caller can fix this fault although its kind has another origin: by another path, or by
    /// better code.
    pub by_caller: bool,
    /// An operator reads it over a network: its JSON has `person`.
    pub shows_person: bool,
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut json = to.serialize_map(None)?;
        json.serialize_entry("type", &self.kind)?;
        json.serialize_entry("message", &self.message)?;
        self.details
            .iter()
            .try_for_each(|details| json.serialize_entry("details", details))?;
        json.serialize_entry("origin", &self.origin)?;
        json.serialize_entry("retryable", &self.retryable)?;
        self.retry_after_ms
            .iter()
            .try_for_each(|wait| json.serialize_entry("retryAfterMs", wait))?;
        let mut person = self.person.iter().filter(|_| self.shows_person);
        person.try_for_each(|person| json.serialize_entry("person", person))?;
        json.end()
    }
}

impl Fault {
    pub fn new(kind: Kind, message: impl Into<String>) -> Fault {
        Fault {
            kind,
            message: message.into(),
            details: None,
            flaws: Vec::new(),
            person: None,
            origin: kind.origin(),
            retryable: false,
            retry_after_ms: None,
            by_caller: false,
            shows_person: false,
        }
    }
    /// One fault of several sentences. None of them may hold a line break.
    pub fn of_flaws(kind: Kind, flaws: Vec<String>) -> Fault {
        Fault {
            flaws: flaws.clone(),
            ..Fault::new(kind, flaws.join(" "))
        }
    }
    pub fn details(mut self, details: impl Into<String>) -> Fault {
        self.details = Some(details.into());
        self
    }
    pub fn person(mut self, person: impl Into<String>) -> Fault {
        self.person = Some(person.into());
        self
    }
    pub fn for_operator(mut self) -> Fault {
        self.shows_person = true;
        self
    }
    pub fn by_caller(mut self) -> Fault {
        self.by_caller = true;
        self
    }
    pub fn retryable(mut self) -> Fault {
        self.retryable = true;
        self
    }
    /// The same call may succeed after this time.
    pub fn retry_after(mut self, wait: std::time::Duration) -> Fault {
        self.retry_after_ms = Some(
            u64::try_from(wait.as_nanos().div_ceil(1_000_000))
                .unwrap_or(u64::MAX)
                .max(1),
        );
        self.retryable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_list_is_documented() {
        let document = include_str!("../../../docs/reference/CALLS.md");
        let rows: Vec<&str> = document
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(rows.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            let origin = kind.origin();
            let code = match origin {
                Origin::Tool => 1,
                Origin::Caller => 2,
                Origin::Policy => 3,
                Origin::Host => 4,
            };
            let head = format!(
                "| `{kind}` | {} | {code} |",
                format!("{origin:?}").to_lowercase()
            );
            assert!(rows.iter().any(|row| row.starts_with(&head)), "{head}");
        }
    }
}
