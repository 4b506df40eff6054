//! Who calls: proved by the connection or the `Authorization` header, and by nothing else in a
//! request.

use super::jwt::{Jwt, Metadata};
use super::tokens::Tokens;
use crate::service::Caller;
use http::{HeaderMap, header};
use std::sync::Arc;

/// How callers prove who they are.
pub enum Callers {
    /// By the connection: its other end belongs to the user who runs the host, of this name.
    Own(String),
    /// Everybody presents a token of one of these kinds.
    Presented {
        tokens: Option<Arc<Tokens>>,
        jwt: Option<Box<Jwt>>,
    },
}

/// Why a request has no caller.
#[derive(Debug, PartialEq, Eq)]
pub enum CallerError {
    Absent,
    /// With the reason for the log.
    Refused(String),
}

impl Callers {
    /// Says for whom the server is.
    pub fn describe(&self) -> String {
        match self {
            Callers::Own(name) => format!("for {name} (uid {}) alone", nix::unistd::geteuid()),
            Callers::Presented {
                tokens: Some(tokens),
                jwt: None,
            } if tokens.is_empty() => {
                "for no caller yet: the token file has no line (`toolhost token NAME` makes one)"
                    .to_owned()
            }
            Callers::Presented { .. } => "for every caller that presents a token".to_owned(),
        }
    }

    /// The operators by the settings of this server; `callers.policy.toml` may say otherwise.
    pub fn operators(&self) -> Vec<Caller> {
        match self {
            Callers::Own(name) => vec![Caller::operator(name)],
            Callers::Presented { tokens, jwt } => {
                let tokens = tokens.iter().flat_map(|tokens| tokens.operators());
                tokens
                    .chain(jwt.iter().flat_map(|jwt| jwt.operators()))
                    .collect()
            }
        }
    }

    /// Whether connections are for one user alone.
    pub fn is_own(&self) -> bool {
        matches!(self, Callers::Own(_))
    }

    /// Who issues the tokens, where that can be said.
    pub fn metadata(&self) -> Option<&Metadata> {
        match self {
            Callers::Presented { jwt: Some(jwt), .. } => jwt.metadata.as_ref(),
            _ => None,
        }
    }

    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, CallerError> {
        fn refused(why: &str) -> CallerError {
            CallerError::Refused(why.to_owned())
        }
        let mut presented = headers.get_all(header::AUTHORIZATION).iter();
        let (tokens, jwt, value) = match (self, presented.next()) {
            (Callers::Own(name), None) => return Ok(Caller::operator(name)),
            // A request with a token is made as its owner, not as the operator.
            (Callers::Own(_), Some(_)) => {
                return Err(refused("a token, and this server knows none"));
            }
            (Callers::Presented { .. }, None) => return Err(CallerError::Absent),
            (Callers::Presented { tokens, jwt }, Some(value)) => (tokens, jwt, value),
        };
        let words = value
            .to_str()
            .map_err(|_| refused("the header is not text"))?;
        let token = words
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let (_, token) = token.ok_or_else(|| refused("the scheme is not Bearer"))?;
        if presented.next().is_some() {
            return Err(refused("the header occurs twice"));
        }
        let token = token.trim();
        match (tokens.as_ref().and_then(|tokens| tokens.caller(token)), jwt) {
            (Some(caller), _) => Ok(caller),
            (None, Some(jwt)) if token.contains('.') => {
                jwt.caller(token).map_err(CallerError::Refused)
            }
            _ => Err(refused("no such token")),
        }
    }
}
