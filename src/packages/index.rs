//! Where packages come from, by the host's configuration: an address, the hosts that serve its
//! files, and the credential for its requests.

use crate::base::text;
use crate::manifest::host::{self, Host, HostPattern};
use crate::policy::packages::Ecosystem;
use crate::policy::{HeaderRule, HostGrant, SecretGrant, SecretSource};
use ipnet::IpNet;
use std::path::{Path, PathBuf};

/// The name that stands for the public index, unless the configuration says otherwise.
pub const DEFAULT: &str = "default";

/// Headers that installers send beside the standard ones.
#[rustfmt::skip]
const OF_INSTALLERS: [&str; 9] = [
    "npm-auth-type", "npm-command", "npm-in-ci", "npm-scope", "npm-session", "pacote-integrity", "pacote-pkg-id",
    "pacote-req-type", "pacote-version",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub name: String,
    pub ecosystem: Ecosystem,
    /// Ends with a slash; holds no user and no password.
    pub url: String,
    /// The index's own host, and those that it sends installers to.
    pub hosts: Vec<HostGrant>,
    /// The credential that the relay adds to requests for the index's own host.
    pub credential: Option<SecretGrant>,
    /// The file of CA certificates (PEM) for these hosts, used instead of the machine's, and its
    /// content.
    pub ca: Option<(PathBuf, String)>,
}

/// A credential as configured: where it lies, the header, and its value with `{}` in place of the
/// secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub from: SecretSource,
    pub header: String,
    pub value: String,
}

impl Index {
    /// What `default` means unless configured.
    pub fn built_in(ecosystem: Ecosystem) -> Index {
        let (url, hosts) = match ecosystem {
            Ecosystem::Python => (
                "https://pypi.org/simple/",
                vec!["files.pythonhosted.org".to_owned()],
            ),
            Ecosystem::Node => ("https://registry.npmjs.org/", Vec::new()),
        };
        Index::new(DEFAULT, ecosystem, url, &hosts, &[], None, None)
            .expect("a public index is an index")
    }

    /// `hosts`: other hosts that serve the index's files. `ranges`: the non-public addresses that
    /// all of them may have.
    pub fn new(
        name: &str,
        ecosystem: Ecosystem,
        url: &str,
        hosts: &[String],
        ranges: &[IpNet],
        credential: Option<Credential>,
        ca: Option<(PathBuf, String)>,
    ) -> Result<Index, String> {
        let (url, HostPattern { host, port }) = address(url)?;
        let usual = if url.starts_with("https:") { 443 } else { 80 };
        let rule = format!("indexes.{name}: {}", ecosystem.name());
        let grant = |pattern: HostPattern| HostGrant {
            ranges: match pattern.host {
                Host::Address(address) => ranges
                    .iter()
                    .filter(|range| range.contains(&address))
                    .copied()
                    .collect(),
                _ => ranges.to_vec(),
            },
            asked: pattern.to_string(),
            pattern,
            rule: rule.clone(),
            why: "packages are fetched from there".to_owned(),
        };
        let mut grants = vec![grant(HostPattern {
            host: host.clone(),
            port: Some(port.unwrap_or(usual)),
        })];
        for written in hosts {
            let pattern = host::parse_pattern(written).map_err(|why| format!("hosts: {why}"))?;
            if pattern.host == Host::Any {
                return Err(
                    "hosts: `*` is every host: name those that serve the index's files".to_owned(),
                );
            }
            // A host without a port gets that of the index's scheme.
            grants.push(grant(HostPattern {
                port: Some(pattern.port.unwrap_or(usual)),
                ..pattern
            }));
        }
        let credential = credential
            .map(
                |Credential {
                     from,
                     header,
                     value,
                 }| {
                    let (Host::Name(host), true) = (&host, url.starts_with("https:")) else {
                        return Err(
                            "it can be added only if `url` is https:// with a host name".to_owned()
                        );
                    };
                    let header = HeaderRule {
                        ca: ca.as_ref().map(|(path, _)| path.clone()),
                        host: host.clone(),
                        port: port.unwrap_or(usual),
                        name: crate::policy::header_name(&header)?,
                        value: crate::policy::header_value(value)?,
                        methods: ["GET", "HEAD"].map(str::to_owned).to_vec(),
                        paths: Vec::new(),
                        query: Vec::new(),
                        request_headers: OF_INSTALLERS.map(str::to_owned).to_vec(),
                    };
                    let name = "INDEX_CREDENTIAL".to_owned();
                    let why = "the index asks for it".to_owned();
                    Ok(SecretGrant {
                        name,
                        from,
                        header: Some(header),
                        rule: rule.clone(),
                        why,
                    })
                },
            )
            .transpose()
            .map_err(|why| format!("credential: {why}"))?;
        if credential.is_some() {
            // An installer speaks HTTP to the relay, and the relay TLS to the host.
            grants.push(grant(HostPattern {
                host,
                port: Some(80),
            }));
        }
        Ok(Index {
            name: name.to_owned(),
            ecosystem,
            url,
            hosts: grants,
            credential,
            ca,
        })
    }

    /// The URL, and whether a credential is added, in words for people.
    pub fn describe(&self) -> String {
        let added = if self.credential.is_some() {
            ", with a credential that toolhost adds"
        } else {
            ""
        };
        format!("{}{added}", text::printable(&self.url))
    }

    /// The URL that an installer gets. With a credential it is http://: the relay adds the credential, and speaks TLS.
    pub fn installer_url(&self) -> String {
        self.origins().map_or_else(
            || self.url.clone(),
            |(ours, theirs)| self.url.replacen(&ours, &theirs, 1),
        )
    }

    /// A lock as an installer wrote it, with the https:// addresses of the index put back: another
    /// installer with a credential of its own would send it to the http:// ones in clear text.
    pub fn with_own_addresses(&self, lock: &str) -> String {
        self.origins().map_or_else(
            || lock.to_owned(),
            |(ours, theirs)| lock.replace(&format!("\"{theirs}"), &format!("\"{ours}")),
        )
    }

    /// The origin of the index, and the one that installers get instead. `None`: without a
    /// credential to add.
    fn origins(&self) -> Option<(String, String)> {
        let header = self.credential.as_ref()?.header.as_ref()?;
        let own = self.url.split('/').nth(2)?;
        Some((
            format!("https://{own}/"),
            format!("http://{}/", header.host),
        ))
    }

    /// The files that its credential and its certificates are read from.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        let credential = self
            .credential
            .iter()
            .flat_map(|credential| credential.from.named_files());
        credential
            .chain(self.ca.iter().map(|(path, _)| path.as_path()))
            .map(Path::to_path_buf)
    }

    pub fn find<'i>(indexes: &'i [Index], ecosystem: Ecosystem, name: &str) -> Option<&'i Index> {
        indexes
            .iter()
            .find(|index| index.ecosystem == ecosystem && index.name == name)
    }
}

/// The address as an installer gets it, and the host that it names.
fn address(written: &str) -> Result<(String, HostPattern), String> {
    // Checked first, so that no message shows a password. An address has no other use for `@`.
    if written.contains('@') {
        let fix = "write credential = { from = \"file:…\" }";
        return Err(format!(
            "url: it holds a user or password, which everybody could read: {fix}"
        ));
    }
    let shown = text::printable(&text::head(written, 100));
    fn bad(why: &str, shown: &str) -> String {
        format!("url `{shown}`: {why}")
    }
    let uri: http::Uri = written.parse().map_err(|_| bad("not a URL", &shown))?;
    let scheme = uri
        .scheme_str()
        .filter(|scheme| ["https", "http"].contains(scheme));
    let scheme = scheme.ok_or_else(|| bad("it must begin with https:// or http://", &shown))?;
    let authority = uri
        .authority()
        .ok_or_else(|| bad("it names no host", &shown))?;
    if uri.query().is_some()
        || written.contains('#')
        || !uri
            .path()
            .bytes()
            .all(|b: u8| b.is_ascii_alphanumeric() || b"-._~/%+".contains(&b))
    {
        return Err(bad(
            "only a path of plain characters may follow the host",
            &shown,
        ));
    }
    let pattern = host::parse_pattern(authority.as_str()).map_err(|why| bad(&why, &shown))?;
    if !matches!(pattern.host, Host::Name(_) | Host::Address(_)) {
        return Err(bad("it must name one host", &shown));
    }
    Ok((
        format!("{scheme}://{pattern}{}/", uri.path().trim_end_matches('/')),
        pattern,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_an_address_and_the_hosts_of_its_files() {
        let patterns = |index: &Index| {
            index
                .hosts
                .iter()
                .map(|grant| grant.pattern.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            patterns(&Index::built_in(Ecosystem::Python)),
            ["pypi.org:443", "files.pythonhosted.org:443"]
        );
        let (from, header) = (
            SecretSource::Env("TOKEN".to_owned()),
            "Authorization".to_owned(),
        );
        let credential = Some(Credential {
            from,
            header,
            value: "Bearer {}".to_owned(),
        });
        let (url, hosts) = (
            "https://PyPI.example:8443/simple",
            ["files.example".to_owned()],
        );
        let ranges = ["10.1.0.0/16".parse().expect("a range")];
        let inner = Index::new(
            "inner",
            Ecosystem::Python,
            url,
            &hosts,
            &ranges,
            credential,
            None,
        )
        .expect("good");
        assert_eq!(inner.url, "https://pypi.example:8443/simple/");
        assert_eq!(
            patterns(&inner),
            ["pypi.example:8443", "files.example:443", "pypi.example:80"]
        );
        assert!(inner.hosts.iter().all(|grant| grant.ranges.len() == 1));
        assert_eq!(inner.installer_url(), "http://pypi.example/simple/");
        let lock =
            "url = \"http://pypi.example/files/a.whl\"; url = \"http://pypi.example.org/a.whl\"";
        let want = "url = \"https://pypi.example:8443/files/a.whl\"; url = \
            \"http://pypi.example.org/a.whl\"";
        assert_eq!(inner.with_own_addresses(lock), want);
        let header = inner
            .credential
            .and_then(|credential| credential.header)
            .expect("a header");
        assert_eq!(
            (header.name.as_str(), header.port, header.host.as_str()),
            ("authorization", 8443, "pypi.example")
        );
    }
}
