//! Secrets: which requests get the header of a secret, and how they go out with it.
//!
//! For: http. In: the rules of a lease, the values of a call, a request that is for the rules' host. Out: the request as
//! that host gets it, or why it is refused. Never: lets a request out without its header; keeps a value for another call.
//!
//! What is refused could reach the host as another request than the one that a rule allows: paths that may be read in two
//! ways, another protocol. Headers by which some servers take another method or path go (`OVERRIDES`).

use super::call::quoted;
use super::http::{Wrong, in_connection, not_by_rule, rewrite, wrong};
use super::masking::Mask;
use crate::base::hidden::Hidden;
use crate::base::messages;
use crate::egress::protocol::Served;
use crate::manifest::host::Host;
use crate::policy::HeaderRule;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Version};
use percent_encoding::percent_decode;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Longest text of all values, bytes.
const VALUES: u64 = 4 * 1024 * 1024;
/// Other spellings of a method or a path.
const OVERRIDES: [&str; 8] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
    "x-forwarded-uri",
];
/// The same as a field of the query.
const METHOD_FIELD: &str = "_method";
/// A part of an answer, or an answer in another encoding, could hold a secret unseen; what follows the body is no place
/// for headers.
const UNWANTED: [&str; 7] = ["range", "if-range", "request-range", "accept-charset", "a-im", "trailer", "expect"];

/// How often a path may be encoded.
const DECODED: usize = 4;

/// The values of a call's secrets, by name.
#[derive(Default)]
pub struct Secrets {
    values: Hidden<BTreeMap<String, String>>,
    mask: OnceLock<Option<Arc<Mask>>>,
}

impl Secrets {
    /// From a memory file. Errors say nothing of what is in it.
    pub fn read(file: Option<OwnedFd>) -> io::Result<Secrets> {
        let Some(file) = file else { return Ok(Secrets::default()) };
        let text = Hidden(messages::read_memory_file(file, VALUES)?);
        let values = serde_json::from_slice(&text).map_err(|_| io::Error::other("the secrets cannot be read"))?;
        Ok(Secrets { values: Hidden(values), mask: OnceLock::new() })
    }

    /// Hides all of them; `None`: they cannot be hidden.
    pub fn mask(&self) -> Option<Arc<Mask>> {
        let made = || Mask::of(self.values.values().map(String::as_str)).map(Arc::new);
        self.mask.get_or_init(made).clone()
    }
}

/// Whether this host speaks TLS at this port with the relay alone, because it gets a secret.
pub fn keeps(lease: &Served, host: &Host, port: u16) -> bool {
    lease.headers.iter().any(|(_, rule)| is_for(rule, host) && (port == 443 || port == rule.port))
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
    pub mask: Arc<Mask>,
    /// Headers of the tool that were replaced.
    pub replaced: Vec<HeaderName>,
}

impl Guard {
    pub fn of(lease: &Served, host: &Host) -> Option<Guard> {
        let rules: Vec<_> = lease.headers.iter().filter(|(_, rule)| is_for(rule, host)).cloned().collect();
        Some(Guard { name: rules.first()?.1.host.clone(), rules })
    }

    /// The ports at which that host speaks TLS.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.rules.iter().map(|(_, rule)| rule.port)
    }

    /// Judges a request, and makes it the one that the host gets. The first rule for it says at which port; of several rules
    /// for one header the first counts.
    pub fn admit<B>(&self, request: &mut Request<B>, secrets: &Secrets) -> Result<Admitted, Wrong> {
        self.judge(request)?;
        let rules = self.matching(request)?;
        let (port, mut added) = (rules[0].1.port, HeaderMap::new());
        for (secret, rule) in rules.iter().filter(|(_, rule)| rule.port == port) {
            let (name, value) = header_of(secret, rule, secrets)?;
            added.entry(name).or_insert(value);
        }
        let mask = secrets.mask().ok_or_else(|| {
            wrong(
                StatusCode::BAD_GATEWAY,
                "the secrets of this call are together too long to be hidden in an answer: fewer or shorter ones",
            )
        })?;
        let replaced = self.write(request, port, added)?;
        Ok(Admitted { port, mask, replaced })
    }

    fn judge<B>(&self, request: &Request<B>) -> Result<(), Wrong> {
        let headers = request.headers();
        let refused = |why: &str| Err(wrong(StatusCode::FORBIDDEN, why));
        if request.version() != Version::HTTP_11 {
            return Err(wrong(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "a secret is added to HTTP/1.1 alone"));
        }
        if headers.contains_key(header::UPGRADE) || headers.contains_key("http2-settings") {
            return refused("a host that gets a secret switches to no other protocol");
        }
        let named = |name: HeaderName| self.rules.iter().any(|(_, rule)| alike(&name, &rule.name));
        if in_connection(headers).any(named) {
            return refused("the Connection header names the header that is added");
        }
        let sane = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        if !headers.get_all(header::EXPECT).iter().all(sane) {
            return Err(wrong(StatusCode::EXPECTATION_FAILED, "the only Expect is 100-continue"));
        }
        if !is_plain(request.uri().path()) {
            return refused(
                "a path to a host that gets a secret has no `.` or `..`, `//`, `\\`, encoded `/` or the like",
            );
        }
        Ok(())
    }

    /// The rules for this request; never none.
    fn matching<B>(&self, request: &Request<B>) -> Result<Vec<&(String, HeaderRule)>, Wrong> {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let applies = |rule: &HeaderRule| {
            (rule.methods.is_empty() || rule.methods.iter().any(|allowed| allowed == method))
                && (rule.paths.is_empty() || rule.paths.iter().any(|pattern| is_in(path, pattern)))
        };
        let rules: Vec<_> = self.rules.iter().filter(|(_, rule)| applies(rule)).collect();
        if rules.is_empty() {
            let (method, path) = (quoted(method.as_bytes()), quoted(path.as_bytes()));
            let why = format!("{method} {path} is not among the requests that get the secret of {}", self.name);
            return Err(not_by_rule(why));
        }
        let limited = self.rules.iter().any(|(_, rule)| !rule.methods.is_empty());
        if limited && request.uri().query().is_some_and(|query| query.to_ascii_lowercase().contains(METHOD_FIELD)) {
            return Err(not_by_rule(format!("a query of a host with limited methods has no `{METHOD_FIELD}`")));
        }
        Ok(rules)
    }

    fn write<B>(&self, request: &mut Request<B>, port: u16, added: HeaderMap) -> Result<Vec<HeaderName>, Wrong> {
        let host = if port == 443 { self.name.clone() } else { format!("{}:{port}", self.name) };
        let host = HeaderValue::try_from(host).map_err(|_| wrong(StatusCode::BAD_REQUEST, "the host has no name"))?;
        rewrite(request, false);
        let headers = request.headers_mut();
        let own = |name: &&HeaderName| self.rules.iter().any(|(_, rule)| alike(name, &rule.name));
        let replaced: Vec<HeaderName> = headers.keys().filter(own).cloned().collect();
        let gone = |name: &&HeaderName| OVERRIDES.iter().chain(&UNWANTED).any(|other| alike(name, other));
        let gone: Vec<HeaderName> = headers.keys().filter(gone).cloned().collect();
        replaced.iter().chain(&gone).for_each(|name| drop(headers.remove(name)));
        headers.insert(header::HOST, host);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.extend(added);
        Ok(replaced)
    }
}

/// Whether servers could take one name for the other: some read `_` as `-`.
fn alike(name: &HeaderName, other: &str) -> bool {
    name.as_str().replace('_', "-") == other.replace('_', "-")
}

/// The header that this rule adds.
fn header_of(secret: &str, rule: &HeaderRule, secrets: &Secrets) -> Result<(HeaderName, HeaderValue), Wrong> {
    let unfit = |what: &str| wrong(StatusCode::FORBIDDEN, format!("the secret {secret} {what}"));
    let value = secrets.values.get(secret).ok_or_else(|| unfit("is not there in this call"))?;
    let name = HeaderName::from_bytes(rule.name.as_bytes()).map_err(|_| unfit("has no header"))?;
    let value = HeaderValue::try_from(rule.value.replacen("{}", value, 1));
    let mut value = value.map_err(|_| unfit("cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Whether a path is in `/exact`, or below `/below/**`: what begins with `/below/`, not `/below` itself.
fn is_in(path: &str, pattern: &str) -> bool {
    match pattern.strip_suffix("**") {
        Some(below) => path.starts_with(below),
        None => path == pattern,
    }
}

/// Whether all servers read the same path, however often they decode it.
fn is_plain(path: &str) -> bool {
    let mut text = path.as_bytes().to_ascii_lowercase();
    for _ in 0..DECODED {
        if !is_clear(&text) {
            return false;
        }
        let decoded = percent_decode(&text).collect::<Vec<u8>>().to_ascii_lowercase();
        if decoded == text {
            return path.is_ascii() && std::str::from_utf8(&text).is_ok();
        }
        text = decoded;
    }
    // Encoded more often than anybody means.
    false
}

fn is_clear(path: &[u8]) -> bool {
    let holds = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    let ambiguous = [&b"//"[..], b"\\", b"%2f", b"%5c", b"%u"].into_iter().any(holds);
    // Some servers leave out what follows `;`.
    let name = |part: &[u8]| part.split(|b| *b == b';').next().is_some_and(|name| name == b"." || name == b"..");
    let dots = path.split(|b| *b == b'/').any(name);
    path.first() == Some(&b'/') && !ambiguous && !dots && !path.iter().any(|b| b.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_or_exact() {
        for (path, pattern, expected) in [
            ("/v1/a", "/v1/**", true),
            ("/v1/", "/v1/**", true),
            ("/v1", "/v1/**", false),
            ("/v12", "/v1/**", false),
            ("/V1/a", "/v1/**", false),
            ("/", "/**", true),
            ("/v1", "/v1", true),
            ("/v1/", "/v1", false),
            ("/%76%31", "/v1", false),
        ] {
            assert_eq!(is_in(path, pattern), expected, "{path} in {pattern}");
        }
    }

    #[test]
    fn a_path_that_could_be_another_is_refused() {
        for good in ["/", "/v1/a.b", "/v1/..a", "/v1/...", "/v1/%20x", "/v1/a;b=c", "/v1/%c3%a9"] {
            assert!(is_plain(good), "{good}");
        }
        #[rustfmt::skip]
        let bad = [
            "*", "", "/v1/../a", "/v1/..", "/.", "/v1/%2e%2E/a", "/v1/.%2e", "/v1/%252e%252e/a", "/v1/a%2fb", "/v1/a%2Fb",
            "/v1/a%5Cb", "/v1/a%255cb", "/v1/a\\b", "//v1", "/v1//a", "/v1/..;/a", "/v1/%2e.;x=y/a", "/v1/%00", "/v1/.%09./a",
            "/v1/é", "/v1/%25252e%25252e/a", "/v1/%c0%ae%c0%ae/a", "/v1/%u002e%u002e/a",
        ];
        for bad in bad {
            assert!(!is_plain(bad), "{bad}");
        }
    }

    #[test]
    fn debug_and_errors_show_no_value() {
        let file = messages::memory_file(b"{\"KEY\": [\"s3cret-value\"]}").expect("a file");
        let error = Secrets::read(Some(file)).err().expect("not an object of texts");
        assert_eq!(format!("{error} {error:?}").find("s3cret"), None);
        let (name, methods, paths) = ("a".to_owned(), Vec::new(), Vec::new());
        let rule = HeaderRule { host: "a.test".into(), port: 443, name, value: "{}".into(), methods, paths };
        let secrets =
            Secrets { values: Hidden(BTreeMap::from([("KEY".into(), "s3cret-value".into())])), ..Default::default() };
        let (name, value) = header_of("KEY", &rule, &secrets).expect("a header");
        assert_eq!(format!("{name}: {value:?}"), "a: Sensitive");
        let bad =
            Secrets { values: Hidden(BTreeMap::from([("KEY".into(), "s3cret\nvalue".into())])), ..Default::default() };
        let wrong = header_of("KEY", &rule, &bad).expect_err("it cannot stand in a header");
        assert_eq!(format!("{wrong:?}").find("s3cret"), None);
    }
}
