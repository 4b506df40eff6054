//! A server that the operator names and this host asks: one origin, no redirect, its key a secret
//! that is read for each request.

use super::secrets::credential;
use crate::egress::{self, Dialler, PostError, Posted};
use crate::manifest::host::HostPattern;
use crate::policy::{CallbackUrl, HostGrant, SecretSource};
use http::{HeaderMap, HeaderValue, header};
use ipnet::IpNet;

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub url: CallbackUrl,
    pub key: Option<SecretSource>,
    /// The non-public addresses that its host may have.
    pub ranges: Vec<IpNet>,
    pub proxy: Option<String>,
}

/// The beginning of an answer.
pub struct Answered {
    pub posted: Posted,
    /// The key that was sent; empty: none was.
    pub key: String,
}

/// Why nothing was answered.
pub enum EndpointError {
    /// What is wrong with the key, for a person.
    Key(String),
    Unreached(PostError),
}

impl EndpointError {
    /// For a person.
    pub fn words(self) -> String {
        match self {
            EndpointError::Key(why) => why,
            EndpointError::Unreached(PostError::Broken(why)) => why,
            EndpointError::Unreached(PostError::Refused(refusal)) => refusal
                .detail()
                .map_or_else(|| refusal.to_string(), str::to_owned),
        }
    }
}

impl Endpoint {
    /// Sends JSON. `principal`: who pays for the connection. `what`: the server, in one word.
    pub async fn post(
        &self,
        principal: &str,
        what: &str,
        body: String,
    ) -> Result<Answered, EndpointError> {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let mut key = String::new();
        if let Some(from) = &self.key {
            key = credential(from.clone()).await.map_err(EndpointError::Key)?;
            let words = "it cannot stand in a header";
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| EndpointError::Key(words.to_owned()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let grant = HostGrant {
            pattern: HostPattern {
                host: self.url.host.clone(),
                port: Some(self.url.port),
            },
            ranges: self.ranges.clone(),
            asked: String::new(),
            rule: format!("[{what}]"),
            why: "the operator's server".to_owned(),
        };
        let dialler = Dialler {
            payer: [principal.to_owned(), what.to_owned()],
            grants: vec![grant],
            headers: Vec::new(),
            proxy: self.proxy.clone(),
        };
        let posted = egress::post(&dialler, &self.url, headers, body.into()).await;
        let posted = posted.map_err(EndpointError::Unreached)?;
        Ok(Answered { posted, key })
    }
}
