//! Names to addresses, by this machine's hosts file and name servers. Both files are read again
//! when they change.

use crate::base::{files, lock};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use std::collections::HashMap;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// Longest lookup of one name.
const LOOKUP: Duration = Duration::from_secs(5);
/// Most addresses of a name that are looked at: each needs a look at the routes.
const MAX_ADDRESSES: usize = 64;
/// Longest wait for one answer of a name server.
const ONE_ANSWER: Duration = Duration::from_millis(1500);
const HOSTS: &str = "/etc/hosts";
const SERVERS: &str = "/etc/resolv.conf";
/// Longest such file, bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Both files as they were read.
struct Machine {
    stamps: [Option<files::Stamp>; 2],
    hosts: Result<HashMap<String, Vec<IpAddr>>, String>,
    servers: Result<(ResolverConfig, ResolverOpts), String>,
}

static MACHINE: Mutex<Option<Arc<Machine>>> = Mutex::new(None);

impl Machine {
    /// Blocks while files are read.
    fn current() -> Arc<Machine> {
        fn stamp(path: &str) -> Option<files::Stamp> {
            files::Stamp::from_file(&std::fs::File::open(path).ok()?).ok()
        }
        let stamps = [stamp(HOSTS), stamp(SERVERS)];
        let cached = &mut *lock(&MACHINE);
        match cached {
            Some(machine) if machine.stamps == stamps => Arc::clone(machine),
            _ => Arc::clone(
                cached.insert(Arc::new(Machine {
                    stamps,
                    hosts: read(Path::new(HOSTS)).map(|text| named(&text)),
                    servers: read(Path::new(SERVERS))
                        .and_then(|text| parse_resolv_conf(text).map_err(|e| e.to_string())),
                })),
            ),
        }
    }
}

/// The text of such a file; empty if it does not exist.
fn read(path: &Path) -> Result<String, String> {
    fn failed(e: &dyn std::fmt::Display, path: &Path) -> String {
        format!("{}: {e}", path.display())
    }
    let file = match std::fs::File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened.map_err(|e| failed(&e, path))?,
    };
    let mut bytes = Vec::new();
    let length = file
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| failed(&e, path))?;
    if length as u64 > MAX_FILE_BYTES {
        Err(failed(
            &format!("longer than {} MiB", MAX_FILE_BYTES >> 20),
            path,
        ))
    } else {
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The addresses of each name of a hosts file (hosts(5)).
fn named(text: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut found: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else {
            continue;
        };
        for name in words {
            found
                .entry(name.trim_end_matches('.').to_ascii_lowercase())
                .or_default()
                .push(address);
        }
    }
    found
}

/// All addresses of a canonical name, IPv4 first; no search list is applied.
pub async fn resolve(name: &str) -> Result<Vec<IpAddr>, String> {
    let machine = tokio::task::spawn_blocking(Machine::current)
        .await
        .map_err(|e| e.to_string())?;
    let hosts = machine.hosts.as_ref().map_err(Clone::clone)?;
    if let Some(addresses) = hosts.get(name) {
        let mut addresses = addresses.clone();
        addresses.sort_by_key(IpAddr::is_ipv6);
        return Ok(addresses);
    }
    let (servers, mut options) = machine.servers.clone()?;
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = 0;
    // A server that does not answer to one of the two types of address must not take the time of
    // the other.
    (options.timeout, options.attempts) = (ONE_ANSWER, 2);
    let mut builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    let resolver = builder.build().map_err(|e| e.to_string())?;
    // The final dot: this name and no other.
    match timeout(LOOKUP, resolver.lookup_ip(format!("{name}."))).await {
        Ok(Ok(found)) => Ok(found.iter().take(MAX_ADDRESSES).collect()),
        Ok(Err(e)) if e.is_nx_domain() => Err("the name does not exist".to_owned()),
        Ok(Err(e)) if e.is_no_records_found() => Err("it has no address".to_owned()),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("no answer in {} s", LOOKUP.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_file_names_addresses() {
        let found = named(
            "127.0.0.1 localhost A.test. # b.test\n::1\tlocalhost\nnot.an.address x\n10.0.0.1\n",
        );
        assert_eq!(
            (found.len(), found["localhost"].len(), found["a.test"].len()),
            (2, 2, 1)
        );
    }
}
