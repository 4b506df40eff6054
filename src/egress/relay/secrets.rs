//! Which requests get the header of a secret, and how they go out with it.
//!
//! What is refused could reach the host as another request than the one that a rule allows: a path
//! that may be read in two ways, another protocol, a field or a header that names another method or
//! path.

use super::message::{RequestError, in_connection, not_by_rule, reject, rewrite};
use super::stream::quoted;
use crate::base::mask::{Finder, Hidden, MIN_SECRET_BYTES, Mask};
use crate::base::messages;
use crate::egress::protocol::Served;
use crate::manifest::host::Host;
use crate::policy::{HeaderRule, headers};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Version};
use percent_encoding::{percent_decode, percent_decode_str};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Longest text of all values, bytes.
const VALUES: u64 = 4 * 1024 * 1024;

/// The values of a call's secrets, by name.
#[derive(Default)]
pub struct Secrets {
    values: Hidden<BTreeMap<String, String>>,
    mask: Mask,
}

impl Secrets {
    /// From a memory file. Errors say nothing of what is in it.
    pub fn read(file: Option<OwnedFd>) -> io::Result<Secrets> {
        let Some(file) = file else {
            return Ok(Secrets::default());
        };
        let text = Hidden(messages::read_memory_file(file, VALUES)?);
        let values: BTreeMap<String, String> = serde_json::from_slice(&text)
            .map_err(|_| io::Error::other("the secrets cannot be read"))?;
        let mut mask = Mask::default();
        values.values().for_each(|value| mask.add(value));
        Ok(Secrets {
            values: Hidden(values),
            mask,
        })
    }

    /// The finder of all secrets. `None`: they cannot be masked.
    pub fn finder(&self) -> Option<Arc<Finder>> {
        self.values
            .values()
            .all(|value| value.len() >= MIN_SECRET_BYTES)
            .then(|| self.mask.finder())?
    }
}

/// Whether only the relay may speak TLS with this host at this port, because the host gets a
/// secret.
pub fn is_relay_only(lease: &Served, host: &Host, port: u16) -> bool {
    lease
        .headers
        .iter()
        .any(|(_, rule)| is_for(rule, host) && (port == 443 || port == rule.port))
}

fn is_for(rule: &HeaderRule, host: &Host) -> bool {
    matches!(host, Host::Name(name) if *name == rule.host)
}

/// The rules of one host.
pub struct Guard {
    pub name: String,
    rules: Vec<(String, HeaderRule)>,
}

/// A request that may go out.
pub struct Admitted {
    /// Where the host speaks TLS.
    pub port: u16,
    pub finder: Arc<Finder>,
    /// Headers of the tool that were replaced.
    pub replaced: Vec<HeaderName>,
}

impl Guard {
    pub fn for_host(lease: &Served, host: &Host) -> Option<Guard> {
        let rules: Vec<_> = lease
            .headers
            .iter()
            .filter(|(_, rule)| is_for(rule, host))
            .cloned()
            .collect();
        Some(Guard {
            name: rules.first()?.1.host.clone(),
            rules,
        })
    }

    /// Checks a request, and rewrites it for the host. The first matching rule determines the port;
    /// of several rules for one header the first counts.
    pub fn admit<B>(
        &self,
        request: &mut Request<B>,
        secrets: &Secrets,
    ) -> Result<Admitted, RequestError> {
        self.check_protocol(request)?;
        let rules = self.matching(request)?;
        let port = rules[0].1.port;
        let mut added = HeaderMap::new();
        for (secret, rule) in rules.iter().filter(|(_, rule)| rule.port == port) {
            let (name, value) = header_of(secret, rule, secrets)?;
            added.entry(name).or_insert(value);
        }
        let unfit = "the secrets of this call are too short, or together too long, to be hidden in \
            an answer";
        let finder = secrets
            .finder()
            .ok_or_else(|| reject(StatusCode::BAD_GATEWAY, unfit))?;
        let replaced = self.write(request, port, added)?;
        Ok(Admitted {
            port,
            finder,
            replaced,
        })
    }

    fn check_protocol<B>(&self, request: &Request<B>) -> Result<(), RequestError> {
        let headers = request.headers();
        fn refused(why: &str) -> Result<(), RequestError> {
            Err(reject(StatusCode::FORBIDDEN, why))
        }
        if request.version() != Version::HTTP_11 {
            return Err(reject(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "a secret is added only to HTTP/1.1",
            ));
        }
        if headers.contains_key(header::UPGRADE) || headers.contains_key("http2-settings") {
            return refused("a host that gets a secret switches to no other protocol");
        }
        if in_connection(headers).any(|name| self.adds(&name)) {
            return refused("the Connection header names the header that is added");
        }
        if !headers
            .get_all(header::EXPECT)
            .iter()
            .all(|value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
        {
            return Err(reject(
                StatusCode::EXPECTATION_FAILED,
                "the only supported Expect is 100-continue",
            ));
        }
        Ok(())
    }

    /// The rules for this request, at least one.
    fn matching<B>(
        &self,
        request: &Request<B>,
    ) -> Result<Vec<&(String, HeaderRule)>, RequestError> {
        let method = request.method().as_str();
        let path = decode_path(request.uri().path());
        let reaches = |rule: &HeaderRule| {
            (rule.methods.is_empty() || rule.methods.iter().any(|allowed| allowed == method))
                && (rule.paths.is_empty()
                    || path.as_ref().is_some_and(|path: &String| {
                        rule.paths.iter().any(|pattern| is_in(path, pattern))
                    }))
        };
        let mut rules = Vec::new();
        let mut extra = None;
        for named in self.rules.iter().filter(|(_, rule)| reaches(rule)) {
            match self.extra(request, &named.1) {
                None => rules.push(named),
                Some(what) => extra = extra.or(Some(what)),
            }
        }
        let by_path = self.rules.iter().any(|(_, rule)| !rule.paths.is_empty());
        if rules.is_empty() && extra.is_none() && by_path && path.is_none() {
            let why = "the policy limits this secret by `paths`: send a path without `.` or `..` \
                       parts, `//`, `\\`, or an encoded `/`, `\\`, `?`, `#` or `%`";
            return Err(not_by_rule(why.to_owned()));
        }
        if rules.is_empty() {
            let path = request.uri().path();
            let method = quoted(method.as_bytes());
            let path = quoted(path.as_bytes());
            let which = extra.map_or_else(
                || format!("{method} {path}"),
                |what| format!("{method} {path} with {what}"),
            );
            let why = format!(
                "{which} is not among the requests that get the secret of {}",
                self.name
            );
            return Err(not_by_rule(why));
        }
        Ok(rules)
    }

    /// A query field or a header that is not allowed, because the rule has methods or paths; with
    /// the fix.
    fn extra<B>(&self, request: &Request<B>, rule: &HeaderRule) -> Option<String> {
        if !rule.is_limited() {
            return None;
        }
        // A server may decode these before it looks for the query.
        if percent_decode_str(request.uri().path()).any(|byte| b"?%".contains(&byte)) {
            return Some("an encoded `?` or `%` in its path".to_owned());
        }
        let fields = request
            .uri()
            .query()
            .unwrap_or_default()
            .split(['&', ';'])
            .filter(|field| !field.is_empty());
        let names = fields.map(|field| {
            field
                .split('=')
                .next()
                .unwrap_or_default()
                .replace('+', " ")
        });
        let mut names = names.map(|name| percent_decode(name.as_bytes()).collect::<Vec<u8>>());
        if let Some(name) =
            names.find(|name| !rule.query.iter().any(|allowed| allowed.as_bytes() == name))
        {
            return Some(format!(
                "the query field `{}` (`query` of the policy does not list it)",
                quoted(&name)
            ));
        }
        fn known(name: &str, rule_request_headers: &[String]) -> bool {
            headers::is_allowed(name) || rule_request_headers.iter().any(|allowed| allowed == name)
        }
        let mut headers = request.headers().keys().filter(|name| !self.adds(name));
        let header = headers.find(|name| !known(name.as_str(), &rule.request_headers))?;
        Some(format!(
            "the header `{}` (`request_headers` of the policy does not list it)",
            quoted(header.as_str().as_bytes())
        ))
    }

    /// Whether servers could take this header for one that is added.
    fn adds(&self, name: &HeaderName) -> bool {
        self.rules.iter().any(|(_, rule)| alike(name, &rule.name))
    }

    fn write<B>(
        &self,
        request: &mut Request<B>,
        port: u16,
        added: HeaderMap,
    ) -> Result<Vec<HeaderName>, RequestError> {
        let host = if port == 443 {
            self.name.clone()
        } else {
            format!("{}:{port}", self.name)
        };
        let host = HeaderValue::try_from(host)
            .map_err(|_| reject(StatusCode::BAD_REQUEST, "the host has no name"))?;
        let replaced: Vec<HeaderName> = request
            .headers()
            .keys()
            .filter(|name| self.adds(name) || headers::is_removed(name.as_str()))
            .cloned()
            .collect();
        rewrite(request, false, host);
        let headers = request.headers_mut();
        replaced.iter().for_each(|name| drop(headers.remove(name)));
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        headers.extend(added);
        Ok(replaced)
    }
}

/// Whether servers could take one name for the other: some read `_` as `-`.
fn alike(name: &HeaderName, other: &str) -> bool {
    name.as_str().replace('_', "-") == other.replace('_', "-")
}

/// The header that this rule adds.
fn header_of(
    secret: &str,
    rule: &HeaderRule,
    secrets: &Secrets,
) -> Result<(HeaderName, HeaderValue), RequestError> {
    fn unfit(what: &str, secret: &str) -> RequestError {
        reject(StatusCode::FORBIDDEN, format!("the secret {secret} {what}"))
    }
    let value = secrets
        .values
        .get(secret)
        .ok_or_else(|| unfit("has no value in this call", secret))?;
    let name =
        HeaderName::from_bytes(rule.name.as_bytes()).map_err(|_| unfit("has no header", secret))?;
    let value = HeaderValue::try_from(rule.value.replacen("{}", value, 1));
    let mut value = value.map_err(|_| unfit("cannot be sent in a header", secret))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Whether a path is in `/exact`, or below `/below/**`: what begins with `/below/`, not `/below`
/// itself.
fn is_in(path: &str, pattern: &str) -> bool {
    match pattern.strip_suffix("**") {
        Some(below) => path.starts_with(below),
        None => path == pattern,
    }
}

/// The path as every server reads it; `None`: servers could differ, or decode it once more.
fn decode_path(path: &str) -> Option<String> {
    let parts = path.is_ascii().then(|| path.strip_prefix('/'))??.split('/');
    let count = parts.clone().count();
    let mut whole = String::new();
    for (index, part) in parts.enumerate() {
        let part = percent_decode_str(part).decode_utf8().ok()?;
        // Some servers leave out what follows `;`, or spaces.
        let name: String = part.split(';').next()?.split_whitespace().collect();
        let is_last = index + 1 == count;
        if name == "."
            || name == ".."
            || (part.is_empty() && !is_last)
            || part.contains(|c: char| {
                if c.is_ascii() {
                    c.is_control() || "/\\%?#".contains(c)
                } else {
                    !c.is_alphanumeric()
                }
            })
        {
            return None;
        }
        whole = whole + "/" + &part;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_once_or_refused() {
        for (path, read) in [
            ("/", "/"),
            ("/v1/a.b/..a/...", "/v1/a.b/..a/..."),
            ("/%76%31/%20x;b=c", "/v1/ x;b=c"),
            ("/v1/%c3%a9/", "/v1/é/"),
        ] {
            assert_eq!(decode_path(path).as_deref(), Some(read));
        }
        #[rustfmt::skip]
        let bad = [
            "*", "", "/v1/../a", "/v1/..", "/.", "/v1/%2e%2E/a", "/v1/.%2e", "/v1/%252e%252e/a", "/v1/a%2fb",
            "/v1/a%2Fb", "/v1/a%5Cb", "/v1/a%255cb", "/v1/a\\b", "//v1", "/v1//a", "/v1/..;/a", "/v1/%2e.;x=y/a",
            "/v1/%00", "/v1/.%09./a", "/v1/é", "/v1/%25252e%25252e/a", "/v1/%c0%ae%c0%ae/a", "/v1/%u002e%u002e/a",
            "/v1/..%20/x", "/v1/%20../x", "/v1/.%20./x", "/v1/..%c2%a0/x", "/v1/..%3b/x", "/v1/%ef%bc%8e%ef%bc%8e/x",
            "/v1/a%3fb", "/v1/a%23b", "/v1/%7f", "/v1/%",
        ];
        for bad in bad {
            assert_eq!(decode_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_and_errors_show_no_value() {
        let file = messages::memory_file(b"{\"KEY\": [\"s3cret-value\"]}").expect("a file");
        let error = Secrets::read(Some(file))
            .err()
            .expect("not an object of texts");
        assert_eq!(format!("{error} {error:?}").find("s3cret"), None);
        let rule = serde_json::json!({"host": "a.test", "port": 443, "name": "a", "value": "{}", "methods": [], "paths": []});
        let rule: HeaderRule = serde_json::from_value(rule).expect("a rule");
        let secrets = Secrets {
            values: Hidden(BTreeMap::from([("KEY".into(), "s3cret-value".into())])),
            ..Default::default()
        };
        let (name, value) = header_of("KEY", &rule, &secrets).expect("a header");
        assert_eq!(format!("{name}: {value:?}"), "a: Sensitive");
        let bad = Secrets {
            values: Hidden(BTreeMap::from([("KEY".into(), "s3cret\nvalue".into())])),
            ..Default::default()
        };
        let wrong = header_of("KEY", &rule, &bad).expect_err("it cannot stand in a header");
        assert_eq!(format!("{wrong:?}").find("s3cret"), None);
    }
}
