//! Who a request is from, and what that caller may see and send, by `callers.policy.toml`. A label
//! is an identity only where the file says so; a tool that a caller may not call does not exist for
//! it.
//!
//! The decision is made again after every wait (`pipeline`; tests/callers/waits.rs), so a right
//! that was taken back meanwhile counts. The path of a script leads around nothing: a script is
//! absent with its tools.

use super::decision_cache::DecisionCache;
use super::request::Caller;
use crate::base::text::{head, printable};
use crate::fault::{Fault, Kind};
use crate::policy::{
    Breaker, CALLERS_FILE, CallbackRule, CallbackUrl, CallerRule, Callers, SecretSource, ToolLimit,
};
use crate::registry::Tool;
use serde_json::Value;
use std::sync::Arc;

/// What one caller may do, under the rules of one moment.
#[derive(Clone, Debug)]
pub(super) struct Rights {
    pub callers: Option<Arc<Callers>>,
    /// The caller, and whether it is an operator.
    pub caller: Caller,
    pub principal: String,
}

impl Rights {
    pub fn new(callers: Option<&Arc<Callers>>, caller: &Caller, label: Option<&str>) -> Rights {
        let counts_as = |callers: &Arc<Callers>| {
            let user = callers.acts_as(&caller.user, label);
            // A principal that acts as another caller has that caller's tools, not its operator
            // role.
            let operator =
                user == caller.user && callers.rule(user).is_some_and(|rule| rule.operator);
            Caller {
                user: user.to_owned(),
                operator,
                proof: caller.proof.clone(),
            }
        };
        let principal = caller.user.clone();
        let caller = callers.map_or_else(|| caller.clone(), counts_as);
        Rights {
            callers: callers.cloned(),
            caller,
            principal,
        }
    }

    fn rule(&self) -> Option<&CallerRule> {
        self.callers.as_ref()?.rule(&self.caller.user)
    }

    pub fn may_act_as_others(&self) -> bool {
        self.rule().is_some_and(|rule| !rule.act_as.is_empty())
    }

    /// The name of the caller's entry.
    pub fn entry_name(&self) -> Option<String> {
        self.rule().map(|rule| rule.name.clone())
    }

    pub fn may_call(&self, id: &str) -> bool {
        self.callers
            .as_ref()
            .is_none_or(|callers| callers.may_call(&self.caller.user, id))
    }

    /// Whether some tools may be hidden from it.
    pub fn are_limited(&self) -> bool {
        self.callers.is_some() && !self.caller.operator
    }

    /// Says, for the person, why the caller may not call this tool.
    pub fn withheld(&self, id: &str) -> String {
        let user = printable(&self.caller.user);
        let id = printable(&head(id, 100));
        let place = self.callers.as_ref().map(|callers| match self.rule() {
            Some(rule) => format!(
                "its entry, {}, does not name it in `tools`",
                callers.place(rule.at)
            ),
            None => format!(
                "no entry of {} names it",
                crate::base::text::path(&callers.file)
            ),
        });
        format!(
            "the caller {user} may not call {id}: {}",
            place.unwrap_or_default()
        )
    }

    /// Refuses arguments with a value that the caller may not use.
    pub fn accepts(&self, id: &str, arguments: &Value) -> Result<(), Fault> {
        let refused = self.rule().and_then(|rule| rule.refuses(id, arguments));
        let (Some(refused), Some(callers)) = (refused, &self.callers) else {
            return Ok(());
        };
        let name = printable(&refused.name);
        let message = format!("You may not call this tool with this value of '{name}'.");
        let words = format!(
            "{}: for {}, `{name}` {}",
            callers.place(refused.at),
            self.caller.user,
            refused.takes.text()
        );
        let details = "Other values may be allowed; the operator knows which.";
        Err(Fault::new(Kind::AuthorizationError, message)
            .details(details)
            .person(printable(&words)))
    }

    /// The principal, and the caller that it acts as, each with its entry.
    pub fn entries(&self) -> impl Iterator<Item = (&String, Option<&CallerRule>)> {
        let other = Some(&self.caller.user).filter(|caller| **caller != self.principal);
        let names = [&self.principal].into_iter().chain(other);
        names.map(|name| {
            (
                name,
                self.callers.as_ref().and_then(|callers| callers.rule(name)),
            )
        })
    }

    /// The limit of a tool.
    pub fn limit(&self, id: &str) -> Option<&ToolLimit> {
        self.callers.as_ref()?.limit(id)
    }

    /// The entry that allows this callback URL for the caller, and the source of the signing key.
    pub fn callback(&self, url: &CallbackUrl) -> Result<(&CallbackRule, &SecretSource), Fault> {
        let found = self
            .rule()
            .and_then(|rule| Some((rule.callback(url)?, rule.callback_secret.as_ref()?)));
        found.ok_or_else(|| {
            // A query may hold a secret.
            let url = CallbackUrl {
                query: None,
                ..url.clone()
            };
            let user = printable(&self.caller.user);
            let person = format!(
                "{}: no entry of `callbacks` for {user} is for {url}",
                self.name()
            );
            Fault::new(
                Kind::AuthorizationError,
                "Policy does not allow this callback URL.",
            )
            .person(person)
        })
    }

    pub fn breaker(&self) -> Breaker {
        self.callers
            .as_ref()
            .map_or_else(Breaker::default, |callers| callers.breaker)
    }

    /// The name of the rule that refused, for the record.
    pub fn name(&self) -> String {
        format!(
            "{CALLERS_FILE}: {}",
            self.rule().map_or("no entry", |rule| &rule.name)
        )
    }
}

impl DecisionCache {
    pub fn rights(&self, caller: &Caller, label: Option<&str>) -> Rights {
        Rights::new(self.rules.policies.callers(), caller, label)
    }

    /// Whether a caller may call the tools of this id.
    pub fn may_call(&self, rights: &Rights, id: &str) -> bool {
        self.snapshot.opens(id, |id| rights.may_call(id))
    }

    /// Finds the requested tool. One that the caller may not call does not exist for it.
    pub fn find(&self, reference: &str, rights: &Rights) -> Result<Arc<Tool>, Fault> {
        self.snapshot
            .find_among(reference, &|id| self.may_call(rights, id))
            .map_err(|fault| {
                let id = reference.split('@').next().unwrap_or(reference);
                // The same work for a tool that does not exist, so that the time reveals nothing.
                let withheld = rights.withheld(id);
                let own = fault
                    .person
                    .clone()
                    .map_or_else(String::new, |own| own + "; ");
                if self.may_call(rights, id) {
                    fault
                } else {
                    fault.person(format!("{own}{withheld}, if there is such a tool"))
                }
            })
    }
}
