//! Services: `[services]` of a policy: which tool services elsewhere a tool may call, over which queues.
//!
//! For: `policy/file.rs`, `decide`, the reports. In: a TOML table; a tool of a service, two policies, the brokers of this
//! host. Out: `ServiceRule`s; a verdict, and a grant. Never: lets a descriptor choose a queue that no policy names.

use super::Machine;
use super::document::{At, Document};
use super::file::Policy;
use super::grantable::Grantable;
use super::needs::Need;
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::text;
use crate::manifest::{Manifest, ServiceDescriptor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One entry of `[services] call`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ServiceRule {
    pub service: String,
    pub request: Vec<String>,
    pub response: String,
    /// The name of the caller is sent too.
    #[serde(default)]
    pub user: bool,
    pub why: String,
    #[serde(skip)]
    pub at: At,
}

/// What calls of a tool go to, and what leaves this host with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceGrant {
    pub service: String,
    pub request: Vec<String>,
    pub response: String,
    /// In words; `None`: nothing says over which.
    pub broker: Option<String>,
    pub config: Map<String, Value>,
    pub user: bool,
    /// `policy-name: service`
    pub rule: String,
    pub why: String,
}

impl ServiceGrant {
    /// Where its requests go.
    pub fn place(&self) -> String {
        let (to, broker) = (self.request.join(", "), self.broker.as_deref().unwrap_or("no broker"));
        format!("{} at {to} of {broker}", self.service)
    }
}

impl Grantable for ServiceGrant {
    fn kind(&self) -> &'static str {
        "service"
    }
    fn text(&self) -> String {
        let config = match self.config.is_empty() {
            true => String::new(),
            false => format!(" and {}", Value::Object(self.config.clone())),
        };
        let user = if self.user { "so does the caller's name" } else { "the caller's name does not" };
        let (place, from) = (self.place(), &self.response);
        format!("{place}, answers from {from}; the arguments{config} and the trace of the call leave this host, {user}")
    }
    fn covers(&self, other: &ServiceGrant) -> bool {
        let same = (&self.service, &self.response, &self.broker, &self.config)
            == (&other.service, &other.response, &other.broker, &other.config);
        same && other.request.iter().all(|queue| self.request.contains(queue)) && (self.user || !other.user)
    }
    fn is_near(&self, other: &ServiceGrant) -> bool {
        self.service == other.service
    }
}

pub(super) fn read(document: &mut Document<'_>) -> Vec<ServiceRule> {
    let mut found: Vec<ServiceRule> = Vec::new();
    for (pointer, rule) in document.list::<ServiceRule>("/services/call") {
        let pointer = format!("{pointer}/service");
        if found.iter().any(|other| other.service == rule.service) {
            let shown = text::printable(&text::head(&rule.service, 80));
            document.conflict(&pointer, format!("`{shown}` is named twice"));
        }
        found.push(ServiceRule { at: document.at(&pointer), ..rule });
    }
    found
}

impl ServiceRule {
    /// Why calls of this service are not what the rule allows.
    fn refuses(&self, service: &ServiceDescriptor) -> Option<String> {
        let other = service.requests.iter().find(|queue| !self.request.contains(queue));
        let (queue, key) = match other {
            Some(queue) => (queue, "request"),
            None if service.response != self.response => (&service.response, "response"),
            None => return None,
        };
        Some(format!("its descriptor says {key} queue `{queue}`, which `{key}` of the entry does not name"))
    }
}

/// What the configuration may call a service by, the nearest first: its id, all of a namespace, all.
pub fn names(id: &str) -> [String; 3] {
    let namespace = id.split('.').next().unwrap_or_default();
    [id.to_owned(), format!("{namespace}.*"), "*".to_owned()]
}

/// The grant of a tool whose work a service does; `None` where it gets none, or needs none.
pub(super) fn judge(
    manifest: &Manifest,
    policy: &Policy,
    cap: Option<&Policy>,
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
    lacks: &mut Vec<Need>,
) -> Option<ServiceGrant> {
    let remote = manifest.remote()?;
    let service = remote.found.as_ref()?;
    let broker = names(&service.id).iter().find_map(|name| machine.brokers.get(name)).cloned();
    if broker.is_none() {
        let words = format!(
            "a broker over which the service '{}' is called ([[tool_services]] of the configuration)",
            service.id
        );
        lacks.push(Need::new(&*remote.at.0, words));
    }
    let asked = format!("{} at {}, answers from {}", service.id, service.requests.join(", "), service.response);
    let entry = |policy: &Policy| -> Result<ServiceRule, String> {
        let listed = policy.services.iter().find(|rule| rule.service == service.id);
        let rule =
            listed.ok_or_else(|| format!("no entry of [services] call in policy {} names it", policy.called()))?;
        rule.refuses(service).map_or(Ok(rule.clone()), |why| Err(format!("policy {}: {why}", policy.called())))
    };
    let capped = cap.map(entry).transpose().map_err(|why| (Narrower::Host, why));
    let judged = capped.and_then(|cap| Ok((entry(policy).map_err(|why| (Narrower::Policy, why))?, cap)));
    let (verdict, grant) = match judged {
        Err((narrower, why)) => (Verdict::denied(RequestKind::Service, asked, narrower, why, &[]), None),
        Ok((rule, cap)) => {
            let grant = ServiceGrant {
                service: service.id.clone(),
                request: service.requests.clone(),
                response: service.response.clone(),
                broker,
                config: remote.sent(),
                user: rule.user && cap.is_none_or(|cap| cap.user),
                rule: format!("{}: {}", policy.name, service.id),
                why: rule.why.clone(),
            };
            let met = Verdict::met(RequestKind::Service, asked, grant.text(), &[]);
            (met.because(&grant.rule, &rule.why, policy.place(rule.at)), Some(grant))
        }
    };
    verdicts.push(verdict);
    grant
}
