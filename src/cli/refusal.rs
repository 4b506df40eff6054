//! Exit codes, and the error of the command line that carries one.

use crate::fault::{self, Fault, Kind};
use std::fmt;
use std::process::ExitCode;

/// 0 ok, 1 tool, 2 caller, 3 policy, 4 host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Tool = 1,
    Caller = 2,
    Policy = 3,
    Host = 4,
}

impl Exit {
    pub fn for_origin(origin: fault::Origin) -> Exit {
        match origin {
            fault::Origin::Caller => Exit::Caller,
            fault::Origin::Policy => Exit::Policy,
            fault::Origin::Tool => Exit::Tool,
            fault::Origin::Host => Exit::Host,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error of the command line: its text for the person, and the exit code.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub exit: Exit,
    words: String,
    /// The fault behind the words, if there is one: programs read it.
    fault: Option<Box<Fault>>,
}

impl Refusal {
    pub fn new(exit: Exit, words: impl Into<String>) -> Refusal {
        Refusal {
            exit,
            words: words.into(),
            fault: None,
        }
    }

    /// What a fault says to the person at this machine. What it says to others is left out where the
    /// person's text has it, too.
    pub fn from_fault(fault: &Fault) -> Refusal {
        let person = fault.person.as_deref().unwrap_or_default();
        let details = fault.details.as_deref().unwrap_or_default().lines();
        let lines = details.filter(|line| !person.contains(line));
        let lines = lines.chain(person.lines());
        let lines = lines.filter(|line| !fault.message.contains(line));
        let more: String = lines.map(|line| format!("\n  {line}")).collect();
        let words = format!("{}{more}", fault.message);
        Refusal {
            exit: Exit::for_origin(fault.origin),
            words,
            fault: Some(Box::new(fault.clone())),
        }
    }

    /// This refusal as a `Fault`, for programs. Its text names no path of this host.
    pub fn fault(&self) -> Fault {
        if let Some(fault) = &self.fault {
            return (**fault).clone();
        }
        match self.exit {
            Exit::Ok | Exit::Tool | Exit::Host => Fault::new(
                Kind::InternalError,
                "This host could not begin the call; standard error says why.",
            ),
            Exit::Caller => {
                let message = "The command line or the settings of this call cannot be used; \
                    standard error says why.";
                Fault::new(Kind::ParameterValidationError, message)
            }
            Exit::Policy => {
                let message = "The policies of this host cannot be used, so nothing runs until \
                    they are corrected.";
                Fault::new(Kind::SecurityError, message)
            }
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::from_fault(&fault)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}
