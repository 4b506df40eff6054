//! What would let the code of a tool call another one, for the person who reads a refusal.

use super::callers::Rights;
use super::decision_cache::DecisionCache;
use super::parent::not_allowed;
use super::tool_stubs::is_function_of;
use crate::base::text::{head, path, printable};
use crate::fault::Fault;
use crate::policy;
use crate::registry::{self, Tool};
use std::sync::Arc;

/// The tool whose code calls, for whom, and the rules of this moment.
#[derive(Clone)]
pub(super) struct CallAdvice {
    pub tool: Arc<Tool>,
    pub decisions: Arc<DecisionCache>,
    pub rights: Rights,
    /// The tools that the arguments of source text name.
    pub named: Vec<String>,
}

/// What lets code use the function of a tool, for whoever can write it.
pub(super) enum MissingCall {
    OfCaller(String),
    OfPerson(String),
}

impl CallAdvice {
    /// Refuses a call, and says all that is missing, each as it is written and where.
    pub fn refuse(&self, id: &str) -> Fault {
        let missing = self.missing(id).join("\n  ");
        let id = printable(&head(id, 128));
        not_allowed(&id).person(format!("its code may call {id} with all of:\n  {missing}"))
    }

    /// For code that uses the function of a tool without saying that it calls it: what is missing,
    /// for everybody, or for the person. Only tools of the caller are named.
    pub fn for_undefined(&self, words: &str) -> Option<MissingCall> {
        let (before, _) = words.split_once(" is not defined")?;
        let name = before.split_whitespace().next_back()?.trim_matches('\'');
        let tools = self.decisions.snapshot.list(&registry::Filter::default());
        let ids = tools.iter().map(|tool| &tool.manifest.id);
        let mut ids = ids.filter(|id| self.decisions.may_call(&self.rights, id));
        let id = ids.find(|id| is_function_of(id, name))?;
        let what = format!("{name} is the function of the tool {id}");
        Some(match &self.missing(id)[..] {
            [one] if self.tool.manifest.id == policy::RUN_CODE => {
                MissingCall::OfCaller(format!("{what}: the call needs {one}."))
            }
            missing => MissingCall::OfPerson(format!(
                "{what}, which code may call with all of:\n  {}",
                missing.join("\n  ")
            )),
        })
    }

    fn missing(&self, id: &str) -> Vec<String> {
        let DecisionCache {
            snapshot,
            policies,
            rules,
            ..
        } = &*self.decisions;
        let callee = match snapshot.find(id) {
            Ok(callee) => callee,
            Err(fault) => return vec![fault.person.unwrap_or(fault.message)],
        };
        let id = &callee.manifest.id;
        let own = &self.tool.manifest;
        let place = &self.tool.site.manifest;
        let mut missing = Vec::new();
        if own.id == policy::RUN_CODE {
            let is_named = self.named.contains(id);
            missing.extend((!is_named).then(|| format!("\"tools\": [\"{id}\"] in its arguments")));
        } else if !own.calls.iter().any(|named| named.matches(id)) {
            missing.push(format!("\"calls\": [\"{id}\"] in {}", path(place)));
        }
        let decision = policy::decide(&callee.manifest, &callee.site, policies, &rules.machine);
        let has_effects = decision.has_effects();
        let (governing, _) = policies.governing(&own.id, place);
        for policy in std::iter::once(governing).chain(&policies.host) {
            let mut entries = policy.calls.iter();
            if !entries.any(|entry| entry.grant.allows(id, has_effects)) {
                let file = match path(&policy.file) {
                    file if file.is_empty() => format!("a policy of {}", own.id),
                    file => file,
                };
                missing.push(format!(
                    "{{ tool = \"{id}\", why = \"…\" }} in `allow` of [calls] in {file}"
                ));
            }
        }
        let is_withheld = !self.rights.may_call(id);
        missing.extend(is_withheld.then(|| self.rights.withheld(id)));
        missing
    }
}
