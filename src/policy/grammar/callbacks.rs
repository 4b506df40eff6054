//! Callbacks: the URLs at which a caller may be notified that its background call ended.

use super::hosts;
use crate::base::text::printable;
use crate::manifest::host::{self, Host, HostPattern};
use crate::manifest::reader::Reader;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

const MAX_URL_BYTES: usize = 2000;

#[derive(Deserialize)]
struct CallbackLine {
    url: String,
    why: String,
}

pub fn read(document: &mut Reader<'_>, list: &str) -> Vec<CallbackRule> {
    let mut found: Vec<CallbackRule> = Vec::new();
    for (entry, CallbackLine { url, why }) in document.list(list) {
        let ranges = hosts::ranges(document, &entry);
        let pointer = format!("{entry}/url");
        let read = CallbackUrl::parse(&url).and_then(|read| {
            let pattern = HostPattern {
                host: read.host.clone(),
                port: Some(read.port),
            };
            match hosts::unreachable(&pattern, &ranges) {
                Some(message) => Err(message),
                None if read.query.is_some() => {
                    Err("an entry must have no query: each call adds its own".to_owned())
                }
                None => Ok(read),
            }
        });
        let read = read.map_err(|why| format!("`{}`: {why}", printable(&url)));
        let Some(url) = document.parsed(&pointer, read) else {
            continue;
        };
        if found.iter().any(|rule| rule.url == url) {
            document.conflict(&pointer, "another entry names this URL: write one entry");
        }
        found.push(CallbackRule { url, ranges, why });
    }
    found
}

/// One entry of a caller's `callbacks`: this URL and everything below its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackRule {
    pub url: CallbackUrl,
    /// The non-public addresses that the host may have.
    pub ranges: Vec<IpNet>,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackGrant {
    pub url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<IpNet>,
}

/// `https://host[:port]/path[?query]`, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackUrl {
    /// False: plain HTTP.
    pub https: bool,
    /// An exact name or an address.
    pub host: Host,
    pub port: u16,
    /// Begins with `/`.
    pub path: String,
    pub query: Option<String>,
}

impl CallbackUrl {
    pub fn parse(written: &str) -> Result<CallbackUrl, String> {
        if written.len() > MAX_URL_BYTES || !written.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!(
                "it must have at most {MAX_URL_BYTES} characters, of ASCII and without spaces"
            ));
        }
        let (https, rest) = match written.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => {
                return Err(
                    "it must begin with https:// (or http://, if its entry does)".to_owned(),
                );
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let pattern = host::parse_pattern(authority)?;
        let plain = matches!(pattern.host, Host::Name(_) | Host::Address(_));
        if !plain || pattern.to_string() != authority {
            return Err(
                "its host must be one name or address in lower case, such as hooks.example.com"
                    .to_owned(),
            );
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (rest, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        // Servers read such paths in different ways, so they are refused.
        if path
            .split('/')
            .any(|part: &str| part == "." || part == ".." || part.contains(['\\', '%', '#', ';']))
            || path.contains("//")
            || query.as_ref().is_some_and(|query| query.contains('#'))
        {
            return Err(
                "its path must have plain parts: no `.`, `..`, `//`, `%`, `;`, `#` or backslash"
                    .to_owned(),
            );
        }
        let port = pattern.port.unwrap_or(if https { 443 } else { 80 });
        Ok(CallbackUrl {
            https,
            host: pattern.host,
            port,
            path: path.to_owned(),
            query,
        })
    }

    /// Whether a URL is this one, or one below its path.
    pub fn covers(&self, other: &CallbackUrl) -> bool {
        let folder = self.path.trim_end_matches('/');
        let below = other
            .path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port) && below
    }

    /// As in a request: `name`, `name:8443`.
    pub fn authority(&self) -> String {
        let usual = if self.https { 443 } else { 80 };
        let port = Some(self.port).filter(|port| *port != usual);
        HostPattern {
            host: self.host.clone(),
            port,
        }
        .to_string()
    }

    pub fn name(&self) -> String {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => address.to_string(),
            host => HostPattern {
                host: host.clone(),
                port: None,
            }
            .to_string(),
        }
    }
}

impl fmt::Display for CallbackUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)?;
        self.query
            .as_ref()
            .map_or(Ok(()), |query| write!(f, "?{query}"))
    }
}

impl CallbackRule {
    pub fn grant(&self) -> CallbackGrant {
        CallbackGrant {
            url: self.url.to_string(),
            ranges: self.ranges.clone(),
        }
    }
}

impl CallbackGrant {
    /// Whether this grant allows every URL and address that `other` allows.
    pub fn covers(&self, other: &CallbackGrant) -> bool {
        let urls = (
            CallbackUrl::parse(&self.url),
            CallbackUrl::parse(&other.url),
        );
        let wide = matches!(&urls, (Ok(own), Ok(theirs)) if own.covers(theirs));
        wide && other
            .ranges
            .iter()
            .all(|range| self.ranges.iter().any(|own| own.contains(range)))
    }

    pub fn text(&self) -> String {
        let ranges: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        if ranges.is_empty() {
            format!("notified at {}", self.url)
        } else {
            format!(
                "notified at {} (also where its address is in {})",
                self.url,
                ranges.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_one_reading_or_none() {
        for good in [
            "https://a.test/",
            "https://a.test:8443/x/y?z=1%2F",
            "http://127.0.0.1:9/x",
            "https://[2001:db8::1]/x",
        ] {
            let url = CallbackUrl::parse(good).unwrap_or_else(|why| panic!("{good}: {why}"));
            assert_eq!(url.to_string(), good);
        }
        assert_eq!(
            CallbackUrl::parse("https://a.test").map(|url| url.to_string()),
            Ok("https://a.test/".to_owned())
        );
        #[rustfmt::skip]
        let bad = [
            "ftp://a.test/", "https:/a.test/", "https://", "https://u:p@a.test/", "https://A.test/",
            "https://a.test./", "https://a.test:443x/", "https://*.a.test/", "https://*/", "https://127.1/",
            "https://0x7f.1/", "https://2130706433/", "https://a.test/x/../y", "https://a.test/./y",
            "https://a.test/%2e%2e/y", "https://a.test//y", "https://a.test/x\\y", "https://a.test/x#y",
            "https://a.test/x?y#z", "https://a.test/ x", "https://a.test\\@b.test/", "HTTPS://a.test/",
            "https://a.test/x;y", "https://\u{e4}.test/",
        ];
        for bad in bad {
            assert!(CallbackUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
