//! The entries of `[services]`: which remote tool services may be called, over which queues.

use super::grantable::Grantable;
use crate::manifest::At;
use crate::manifest::reader::Reader;
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

pub fn read(document: &mut Reader<'_>) -> Vec<ServiceRule> {
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
