//! Remote tool services: which ones the tools of a policy may call, over which queues.

use super::grantable::{Ceiling, Grantable, granted};
use super::machine::{Machine, Need};
use super::verdict::{RequestKind, Verdict};
use crate::manifest::reader::Reader;
use crate::manifest::{At, Manifest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// The tool service that does the work of a tool, and what each call sends to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceGrant {
    pub service: String,
    pub request: Vec<String>,
    pub response: String,
    /// The broker, in words. `None`: the configuration names none for this service.
    pub broker: Option<String>,
    pub config: Map<String, Value>,
    pub user: bool,
    pub rule: String,
    pub why: String,
}

impl ServiceGrant {
    pub fn place(&self) -> String {
        let to = self.request.join(", ");
        let broker = self.broker.as_deref().unwrap_or("no broker");
        format!("{} at {to} of {broker}", self.service)
    }
}

impl Grantable for ServiceGrant {
    fn kind(&self) -> &'static str {
        "service"
    }
    fn text(&self) -> String {
        let config = if self.config.is_empty() {
            String::new()
        } else {
            format!(" and {}", Value::Object(self.config.clone()))
        };
        let user = if self.user {
            "so does the caller's name"
        } else {
            "the caller's name does not"
        };
        let place = self.place();
        let from = &self.response;
        format!(
            "{place}, answers from {from}; the arguments{config} and the trace of the call leave \
            this host, {user}"
        )
    }
    fn covers(&self, other: &ServiceGrant) -> bool {
        let same = (&self.service, &self.response, &self.broker, &self.config)
            == (
                &other.service,
                &other.response,
                &other.broker,
                &other.config,
            );
        same && other
            .request
            .iter()
            .all(|queue| self.request.contains(queue))
            && (self.user || !other.user)
    }
    fn is_near(&self, other: &ServiceGrant) -> bool {
        self.service == other.service
    }
}

pub(super) fn read(document: &mut Reader<'_>) -> Vec<ServiceRule> {
    let mut found: Vec<ServiceRule> = Vec::new();
    for (pointer, rule) in document.list::<ServiceRule>("/services/call") {
        let pointer = format!("{pointer}/service");
        if found.iter().any(|other| other.service == rule.service) {
            document.conflict(
                &pointer,
                "another entry names this service: write one entry",
            );
        }
        found.push(ServiceRule {
            at: document.at(&pointer),
            ..rule
        });
    }
    found
}

/// The names that a service can have in the configuration, the narrowest first: its id, its
/// namespace, `*`.
pub fn names(id: &str) -> [String; 3] {
    let namespace = id.split('.').next().unwrap_or_default();
    [id.to_owned(), format!("{namespace}.*"), "*".to_owned()]
}

/// Judges the service that does a tool's work: its grant, and what this machine lacks. No service:
/// no verdict.
pub(super) fn judge(
    manifest: &Manifest,
    ceilings: &[Ceiling<'_>],
    machine: &Machine,
    verdicts: &mut Vec<Verdict>,
) -> (Option<ServiceGrant>, Option<Need>) {
    let remote = manifest.remote();
    let Some((remote, service)) =
        remote.and_then(|remote| Some((remote, remote.descriptor.as_ref()?)))
    else {
        return (None, None);
    };
    let broker = names(&service.id)
        .iter()
        .find_map(|name| machine.brokers.get(name))
        .cloned();
    let need = broker.is_none().then(|| {
        let words = format!(
            "a broker for the service '{}' ([[tool_services]] of the configuration)",
            service.id
        );
        Need::new(&*remote.pointers.0, words)
    });
    let queues = format!(
        "{} at {}, answers from {}",
        service.id,
        service.requests.join(", "),
        service.response
    );
    let allows = |rule: &&ServiceRule| {
        let named = service
            .requests
            .iter()
            .all(|queue| rule.request.contains(queue));
        rule.service == service.id && rule.response == service.response && named
    };
    let granted = granted(ceilings, "[services] call", &queues, |policy| {
        policy.services.iter().find(allows)
    });
    let (rule, policy) = match granted {
        Ok(granted) => granted,
        Err((narrower, reason)) => {
            verdicts.push(Verdict::denied(
                RequestKind::Service,
                queues,
                narrower,
                reason,
                &[],
            ));
            return (None, need);
        }
    };
    let mut rules = ceilings
        .iter()
        .filter_map(|ceiling| ceiling.policy.services.iter().find(allows));
    let grant = ServiceGrant {
        service: service.id.clone(),
        request: service.requests.clone(),
        response: service.response.clone(),
        broker,
        config: remote.sent(),
        user: rules.all(|rule| rule.user),
        rule: format!("{}: {}", policy.name, service.id),
        why: rule.why.clone(),
    };
    let verdict = Verdict::met(RequestKind::Service, queues, grant.text(), &[]);
    verdicts.push(verdict.because(&grant.rule, &rule.why, policy.place(rule.at)));
    (Some(grant), need)
}
