//! `[indexes.NAME]` of a config file: the package index for a name that policies use.
//!
//! Where the file says `machine`, the settings of pip, uv and npm are read. Those programs are not
//! started.

use super::brokers::one_for_all;
use super::source::{Variables, folder, guarded_text, home};
use crate::packages::{Credential, Index};
use crate::policy::packages::Ecosystem;
use crate::policy::{host_range, index_name};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `[indexes]` of a config file.
pub(super) type IndexesConfig = BTreeMap<String, Meanings>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Meanings {
    /// The word `machine`, or an `IndexConfig`.
    python: Option<toml::Value>,
    node: Option<toml::Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexConfig {
    url: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    ranges: Vec<String>,
    credential: Option<CredentialConfig>,
    ca: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialConfig {
    from: String,
    #[serde(default = "authorization")]
    header: String,
    #[serde(default = "bearer")]
    value: String,
}

fn authorization() -> String {
    "Authorization".to_owned()
}

fn bearer() -> String {
    "Bearer {}".to_owned()
}

/// All indexes: those of the file, and the public ones as `default` if the file has no `default`.
pub(super) fn all(
    written: IndexesConfig,
    folder: &Path,
    variable: Variables<'_>,
) -> Result<Vec<Index>, String> {
    let mut found: Vec<Index> = Vec::new();
    for (name, Meanings { python, node }) in written {
        index_name(&name).map_err(|why| format!("[indexes]: {why}"))?;
        for (ecosystem, meaning) in [(Ecosystem::Python, python), (Ecosystem::Node, node)] {
            let Some(meaning) = meaning else { continue };
            found.push(
                one(&name, ecosystem, meaning, folder, variable).map_err(|why: String| {
                    format!("[indexes.{name}] {}: {why}", ecosystem.name())
                })?,
            );
        }
    }
    for ecosystem in Ecosystem::ALL {
        if Index::find(&found, ecosystem, crate::packages::DEFAULT).is_none() {
            found.push(Index::built_in(ecosystem));
        }
    }
    Ok(found)
}

fn one(
    name: &str,
    of: Ecosystem,
    meaning: toml::Value,
    folder: &Path,
    variable: Variables<'_>,
) -> Result<Index, String> {
    if meaning.as_str() == Some("machine") {
        let usual = Index::built_in(of);
        return match machine(of, variable)? {
            // Only the public index has known hosts for its files. For another one the operator
            // names them.
            Some(url) if url.trim_end_matches('/') != usual.url.trim_end_matches('/') => {
                Index::new(name, of, &url, &[], &[], None, None)
            }
            _ => Ok(Index {
                name: name.to_owned(),
                ..usual
            }),
        };
    }
    if !meaning.is_table() {
        return Err("write \"machine\" or { url = \"https://…\" }".to_owned());
    }
    let IndexConfig {
        url,
        hosts,
        ranges,
        credential,
        ca,
    } = meaning
        .try_into()
        .map_err(|why: toml::de::Error| why.message().to_owned())?;
    let ranges = ranges
        .iter()
        .map(|range| host_range(range))
        .collect::<Result<Vec<_>, _>>();
    let ranges = ranges.map_err(|why| format!("ranges: {why}"))?;
    let credential = credential.map(
        |CredentialConfig {
             from,
             header,
             value,
         }| {
            let from = one_for_all(&from, folder, "an index has one credential")?;
            Ok(Credential {
                from,
                header,
                value,
            })
        },
    );
    let credential = credential
        .transpose()
        .map_err(|why: String| format!("credential: {why}"))?;
    let ca = ca.map(|path| folder.join(path)).map(|path| {
        let text = guarded_text(&path).map_err(|why| format!("ca {}: {why}", path.display()))?;
        if text.contains("-----BEGIN CERTIFICATE-----") {
            Ok((path, text))
        } else {
            Err(format!(
                "ca {}: it holds no certificate in PEM",
                path.display()
            ))
        }
    });
    Index::new(name, of, &url, &hosts, &ranges, credential, ca.transpose()?)
}

/// The index of this machine's own installers: a variable of this host, then a file of its user,
/// then one of the machine.
fn machine(ecosystem: Ecosystem, variable: Variables<'_>) -> Result<Option<String>, String> {
    let (variables, files): (&[&str], Vec<PathBuf>) = match ecosystem {
        Ecosystem::Python => (
            &["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"],
            python_files(variable),
        ),
        Ecosystem::Node => (
            &["NPM_CONFIG_REGISTRY", "npm_config_registry"],
            node_files(variable),
        ),
    };
    if let Some(name) = OTHERS.iter().find(|name: &&&str| {
        variable(name).is_some_and(|value| !value.is_empty() && value != "/dev/null")
    }) {
        return Err(format!(
            "{name} is set, which is not read here: write the address into [indexes]"
        ));
    }
    let said = variables.iter().find_map(|name| {
        variable(name)?
            .into_string()
            .ok()
            .filter(|text| !text.is_empty())
    });
    if said.is_some() {
        return Ok(said);
    }
    for file in files.into_iter().filter(|file| file.exists()) {
        let text = guarded_text(&file).map_err(|why| format!("{}: {why}", file.display()))?;
        let found = if file.extension().is_some_and(|ending| ending == "toml") {
            of_uv(&text)
        } else {
            of_lines(&text, ecosystem)
        };
        let found = found.map_err(|why| format!("{}: {why}", file.display()))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn python_files(variable: Variables<'_>) -> Vec<PathBuf> {
    let home = home(variable);
    let below =
        |name: &str| folder(variable, "XDG_CONFIG_HOME", ".config").map(|folder| folder.join(name));
    let own = [
        below("pip/pip.conf"),
        home.map(|home| home.join(".pip/pip.conf")),
        below("uv/uv.toml"),
    ];
    let machine = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "/etc/uv/uv.toml"].map(PathBuf::from);
    own.into_iter().flatten().chain(machine).collect()
}

fn node_files(variable: Variables<'_>) -> Vec<PathBuf> {
    let own = home(variable).map(|home| home.join(".npmrc"));
    let machine = ["/etc/npmrc", "/usr/local/etc/npmrc", "/usr/etc/npmrc"].map(PathBuf::from);
    own.into_iter().chain(machine).collect()
}

/// Variables that name further places of packages, or other files of settings.
#[rustfmt::skip]
const OTHERS: [&str; 13] = [
    "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE",
    "PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_NO_INDEX", "UV_FIND_LINKS",
    "NPM_CONFIG_USERCONFIG", "npm_config_userconfig", "NPM_CONFIG_GLOBALCONFIG", "npm_config_globalconfig",
];

/// The index that a file sets: in pip.conf as Python's configparser reads it (`=` or `:`, `-` or
/// `_`, values on further lines), in .npmrc as `key=value`. A second index is refused, because a
/// package could come from either.
fn of_lines(text: &str, ecosystem: Ecosystem) -> Result<Option<String>, String> {
    let python = ecosystem == Ecosystem::Python;
    let wanted = if python { "index-url" } else { "registry" };
    let mut settings: Vec<(String, String)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with(['#', ';']))
    {
        if python && line.starts_with([' ', '\t']) {
            if let Some((_, value)) = settings.last_mut() {
                *value = format!("{value} {}", line.trim());
            }
            continue;
        }
        let split = if python {
            line.split_once(['=', ':'])
        } else {
            line.split_once('=')
        };
        if let Some((key, value)) = split {
            let key = key.trim().to_lowercase();
            let key = if python { key.replace('_', "-") } else { key };
            settings.push((key, value.to_owned()));
        }
    }
    let mut found = None;
    for (key, value) in settings {
        let value = value.trim().trim_matches('"');
        if !value.is_empty() && (key == "extra-index-url" || key.ends_with(":registry")) {
            return Err(format!(
                "it names more than one index ({key}), and a package could come from either: write \
                out one in [indexes]"
            ));
        }
        if ["no-index", "find-links"].contains(&&*key) {
            return Err(format!(
                "{key} is not supported: write out one index in [indexes]"
            ));
        }
        if key == wanted {
            if value.contains("${") {
                return Err(format!(
                    "{key} holds a variable: write the address into [indexes]"
                ));
            }
            found = Some(value.to_owned()).filter(|value| !value.is_empty());
        }
    }
    Ok(found)
}

#[derive(Deserialize)]
struct Uv {
    #[serde(rename = "index-url")]
    index_url: Option<String>,
    #[serde(default)]
    index: Vec<UvIndex>,
    #[serde(rename = "extra-index-url")]
    extra: Option<serde::de::IgnoredAny>,
    #[serde(rename = "no-index")]
    no_index: Option<serde::de::IgnoredAny>,
    #[serde(rename = "find-links")]
    find_links: Option<serde::de::IgnoredAny>,
    pip: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct UvIndex {
    url: String,
    #[serde(default)]
    default: bool,
}

fn of_uv(text: &str) -> Result<Option<String>, String> {
    let uv: Uv = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    if uv.no_index.is_some() || uv.find_links.is_some() {
        return Err(
            "no-index and find-links are not supported: write out one index in [indexes]"
                .to_owned(),
        );
    }
    if uv.extra.is_some() || uv.pip.is_some() || uv.index.iter().any(|index| !index.default) {
        return Err(
            "it names more than one index, and a package could come from either: write out one"
                .to_owned(),
        );
    }
    Ok(uv
        .index
        .into_iter()
        .next()
        .map(|index| index.url)
        .or(uv.index_url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_settings_are_read_as_its_installers_read_them() {
        let python = |text: &str| of_lines(text, Ecosystem::Python);
        let own = Ok(Some("https://own/simple".to_owned()));
        for text in [
            "index-url = https://own/simple",
            "[global]\nindex_url: https://own/simple",
            "Index-URL =\n  https://own/simple\n",
        ] {
            assert_eq!(python(text), own, "{text}");
        }
        for text in [
            "extra-index-url = http://b",
            "extra_index_url: http://b",
            "extra-index-url =\n  http://b\n",
        ] {
            assert!(
                python(text).is_err_and(|why| why.contains("more than one index")),
                "{text}"
            );
        }
        let node = |text: &str| of_lines(text, Ecosystem::Node);
        assert_eq!(
            node("registry=https://own/"),
            Ok(Some("https://own/".to_owned()))
        );
        assert!(node("@acme:registry=https://b/").is_err_and(|why| why.contains("@acme:registry")));
        assert!(of_uv("extra-index-url = [\"http://b\"]").is_err());
    }
}
