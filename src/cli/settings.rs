//! Settings: where tools, scripts and policies lie, and which flag, variable or file said so.
//!
//! A flag overrides `TOOLHOST_*`, which overrides the config file, which overrides the places under
//! the root. A config file in the current folder is not used, one that others write refused.

use super::refusal::{Exit, Refusal};
use crate::base::files::resolved;
use crate::base::text;
use crate::manifest::host::{self, Host};
use crate::packages::Index;
use crate::sandbox::identity;
use crate::service::alerts::AlertSettings;
use crate::service::artifacts;
use crate::service::audit::Retention;
use crate::service::runlog::Style;
use crate::transport::{announced, http};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// The usual folder of policies, under the root.
pub const POLICIES: &str = "sandbox-policies";
/// The folder of built packages, beside the audit log.
const PACKAGES: &str = "packages";
/// The heading of these flags in the help.
const HEADING: &str = "Options of every verb";

/// The flags every verb takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Folder that holds tool-defs, user_scripts and sandbox-policies (else the current folder;
    /// `serve` needs it named)
    #[arg(long, global = true, help_heading = HEADING, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Folder scanned for *.tool.json; may be given again
    #[arg(long, global = true, help_heading = HEADING, value_name = "PATH")]
    pub tools: Vec<PathBuf>,
    /// Base folder of scripts, scanned too; may be given again
    #[arg(long, global = true, help_heading = HEADING, value_name = "PATH")]
    pub scripts: Vec<PathBuf>,
    /// Folder of skills (SKILL.md); may be given again
    #[arg(long, global = true, help_heading = HEADING, value_name = "DIR")]
    pub skills: Vec<PathBuf>,
    /// Folder of *.policy.toml, or one such file
    #[arg(long, global = true, help_heading = HEADING, value_name = "PATH")]
    pub policies: Option<PathBuf>,
    /// Config file (TOML)
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Audit log: one line per call or refusal
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// Run log on standard error: off, error, warn, info, debug or trace, with ",json" for JSON
    /// lines
    #[arg(long, global = true, help_heading = HEADING, value_name = "LEVEL")]
    pub log: Option<String>,
}

/// The values of `said_by` for a setting that a flag set, that nothing set, and that has its usual
/// place.
pub const FLAG: &str = "flag";
const BUILT_IN: &str = "built in";
const UNDER_ROOT: &str = "under the root";

#[derive(Clone, Debug)]
pub struct Settings {
    pub root: PathBuf,
    /// Folders that are scanned, explicit ones or `tool-defs` under the root.
    pub tools: Vec<PathBuf>,
    /// Base folders of scripts (scanned too), explicit ones or `user_scripts` under the root.
    pub scripts: Vec<PathBuf>,
    /// Folders of skills, explicit ones or `skills` under the root.
    pub skills: Vec<PathBuf>,
    /// `None`: the built-in policies.
    pub policies: Option<PathBuf>,
    /// `None`: this user has no folder for it, and calls are refused until one is named.
    pub audit_log: Option<PathBuf>,
    /// Where built packages are kept; `None`: this user has no folder for it.
    pub packages: Option<PathBuf>,
    /// When a file of that log is closed, and how many closed ones are kept.
    pub audit_retention: Retention,
    /// Where heads of its chain are appended.
    pub log_heads: Option<PathBuf>,
    /// How much of artifacts is kept, and for how long.
    pub artifacts: artifacts::Retention,
    pub log: Option<(LevelFilter, bool)>,
    /// The config file in use, and the paths where one would be used if it existed.
    pub configs: Vec<PathBuf>,
    /// What only the config file says; its paths are absolute.
    pub config: Config,
    /// Ids that tools get where this process is real root.
    pub tool_ids: std::ops::Range<u32>,
    /// Where spans of calls are sent.
    pub traces: Option<String>,
    /// The package indexes, by the names that policies use.
    pub indexes: Vec<Index>,
    /// Over which brokers tool services are called.
    pub tool_services: Vec<BrokerServices>,
    /// Where tools are served over a broker.
    pub brokers: Vec<Broker>,
    /// The model server and the embedding server, with the files of their keys.
    pub servers: Servers,
    /// Colour on standard output.
    pub colour: bool,
    /// For each setting where its value came from: a flag, a variable, a file, or the place under
    /// the root.
    pub said_by: BTreeMap<&'static str, String>,
}

/// What a config file may say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    root: Option<PathBuf>,
    tools: Option<Vec<PathBuf>>,
    scripts: Option<Vec<PathBuf>>,
    skills: Option<Vec<PathBuf>>,
    policies: Option<PathBuf>,
    audit_log: Option<PathBuf>,
    audit_segment_bytes: Option<u64>,
    audit_segments: Option<usize>,
    log: Option<LogConfig>,
    /// Capabilities the operator says this host offers: `env:NAME`.
    pub capabilities: BTreeSet<String>,
    /// A JSON Schema that every manifest must fit too.
    pub manifest_schema: Option<PathBuf>,
    pub running_calls: Option<usize>,
    /// Most memory of all processes together that wait for their calls.
    pub ready_bytes: Option<u64>,
    tool_ids: Option<ToolIds>,
    /// `host:port` of the proxy by which this machine reaches the internet: hosts of tools are then
    /// reached by CONNECT.
    pub proxy: Option<String>,
    indexes: indexes::IndexesConfig,
    tool_services: Vec<brokers::ToolServicesConfig>,
    pub http: Http,
    traces: Traces,
    artifacts: ArtifactsConfig,
    pub alerts: Option<AlertSettings>,
    pub advice: Option<AdviceConfig>,
    broker: Vec<brokers::BrokerConfig>,
    model: Option<model::ModelConfig>,
    search: Option<model::SearchConfig>,
}

/// `[advice]`: who proposes better texts for manifests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceConfig {
    /// The path of a program, and its arguments.
    pub command: Vec<String>,
}

/// `log = "LEVEL"`, or `[log]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
#[serde(expecting = "log must be a level, or a table with `level` and `head_to`")]
enum LogConfig {
    Level(String),
    Table {
        level: Option<String>,
        head_to: Option<PathBuf>,
    },
}

impl LogConfig {
    /// The level, and the file for heads of the audit log.
    fn parts(self) -> (Option<String>, Option<PathBuf>) {
        match self {
            LogConfig::Level(level) => (Some(level), None),
            LogConfig::Table { level, head_to } => (level, head_to),
        }
    }
}

/// `[artifacts]`: what is kept of the files that calls leave for their callers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ArtifactsConfig {
    bytes_per_caller: Option<u64>,
    hours: Option<u64>,
}

impl From<&ArtifactsConfig> for artifacts::Retention {
    fn from(config: &ArtifactsConfig) -> artifacts::Retention {
        let usual = artifacts::Retention::default();
        let hours = config
            .hours
            .map(|hours| Duration::from_secs(hours.saturating_mul(3600)));
        artifacts::Retention {
            bytes: config.bytes_per_caller.unwrap_or(usual.bytes),
            age: hours.unwrap_or(usual.age),
        }
    }
}

/// `[http]`: settings of `serve --http`; flags go before.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    pub hosts: Vec<String>,
    pub origins: Vec<String>,
    pub token_file: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub jwt: Option<http::Terms>,
    /// Whether there is a page for operators; else there is.
    pub page: Option<bool>,
}

impl Http {
    /// The files that it names.
    pub fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let keys = self.jwt.as_mut().map(|jwt| &mut jwt.keys);
        [
            self.token_file.as_mut(),
            self.tls_cert.as_mut(),
            self.tls_key.as_mut(),
            keys,
        ]
        .into_iter()
        .flatten()
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolIds {
    first: u32,
    count: u32,
}

/// `http://host:port` as `host:port`.
fn proxy_address(written: &str) -> Result<String, String> {
    let address = written
        .strip_prefix("http://")
        .unwrap_or(written)
        .trim_end_matches('/');
    let pattern = host::parse_pattern(address)?;
    match (&pattern.host, pattern.port) {
        (Host::Name(_) | Host::Address(_), Some(_)) => Ok(pattern.to_string()),
        _ => Err("write \"http://host:port\"".to_owned()),
    }
}

impl Settings {
    /// Settings from the real environment.
    pub fn resolve(flags: &Flags) -> anyhow::Result<Settings> {
        Settings::from(flags, &|name| std::env::var_os(name))
    }

    pub fn from(flags: &Flags, variables: Variables<'_>) -> anyhow::Result<Settings> {
        let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
        let (mut config, config_file) = config(flags, &variable)?;
        let in_config = |why: String| {
            let file = config_file.as_deref().map_or_else(String::new, text::path);
            Refusal::new(Exit::Host, format!("config file {file}: {why}"))
        };
        let mut sources = Sources {
            variables: &variable,
            config_file: config_file.clone(),
            said_by: BTreeMap::new(),
        };
        let root = match sources.one("root", flags.root.as_ref(), config.root.take())? {
            Some(root) => root,
            None => std::env::current_dir().map_err(|e| {
                let words = format!(
                    "the current folder cannot be used as root ({e}); name one with --root"
                );
                Refusal::new(Exit::Host, words)
            })?,
        };
        let usual = root.join("tool-defs");
        let tools = sources.many("tools", &flags.tools, config.tools.take(), &usual)?;
        let usual = root.join("user_scripts");
        let scripts = sources.many("scripts", &flags.scripts, config.scripts.take(), &usual)?;
        let usual = root.join("skills");
        let skills = sources.many("skills", &flags.skills, config.skills.take(), &usual)?;
        let skills = apart(skills, &usual, &union(&tools, &scripts))
            .map_err(|why| Refusal::new(Exit::Caller, why))?;
        let policies = sources
            .one("policies", flags.policies.as_ref(), config.policies.take())?
            .or_else(|| {
                // A link counts as found, also one that leads nowhere: loading it fails and says
                // why.
                let usual =
                    Some(root.join(POLICIES)).filter(|usual| usual.symlink_metadata().is_ok())?;
                sources.said_by.insert("policies", UNDER_ROOT.to_owned());
                Some(usual)
            });
        let (audit_log, packages) = kept(&mut sources, flags, config.audit_log.take())?;
        let (level, log_heads) = config.log.take().map(LogConfig::parts).unzip();
        let log = log(&mut sources, flags, level.flatten())?;
        let tool_ids = match &config.tool_ids {
            Some(ids) => identity::pool(ids.first, ids.count)
                .map_err(|why| in_config(format!("[tool_ids]: {why}")))?,
            None => identity::POOL,
        };
        let audit_retention =
            Retention::new(config.audit_segment_bytes, config.audit_segments).map_err(in_config)?;
        let proxy = config.proxy.as_deref().map(proxy_address).transpose();
        config.proxy = proxy.map_err(|why| in_config(format!("proxy: {why}")))?;
        let folder = config_file
            .as_deref()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/"));
        config
            .http
            .files()
            .chain(&mut config.manifest_schema)
            .for_each(|path| *path = folder.join(&path));
        let indexes = indexes::all(std::mem::take(&mut config.indexes), folder, &variable)
            .map_err(in_config)?;
        let services = std::mem::take(&mut config.tool_services);
        let tool_services = brokers::services(services, folder).map_err(in_config)?;
        let brokers =
            brokers::all(std::mem::take(&mut config.broker), folder).map_err(in_config)?;
        let (model, search) = (config.model.take(), config.search.take());
        let servers = model::servers(model, search, folder, config.proxy.as_ref());
        let servers = servers.map_err(in_config)?;
        check(&config).map_err(in_config)?;
        Ok(Settings {
            root,
            tools,
            scripts,
            skills,
            policies,
            audit_log,
            packages,
            audit_retention,
            log_heads: log_heads.flatten().map(|path| folder.join(path)),
            artifacts: (&config.artifacts).into(),
            log,
            traces: collector(config.traces.endpoint.take(), &variable),
            config,
            configs: usual_configs(&variable)
                .into_iter()
                .chain(config_file)
                .collect(),
            tool_ids,
            indexes,
            tool_services,
            brokers,
            servers,
            colour: is_coloured(&variable),
            said_by: sources.said_by,
        })
    }

    /// What other hosts may announce to this one.
    pub fn announced(&self) -> Vec<announced::AnnouncementSettings> {
        self.tool_services
            .iter()
            .filter_map(|called| called.announced.clone())
            .collect()
    }

    /// The namespaces of the tools that they may announce.
    pub fn announced_namespaces(&self) -> BTreeSet<String> {
        self.announced()
            .into_iter()
            .flat_map(|listened| listened.from)
            .map(|from| from.namespace)
            .collect()
    }

    /// The note of a verb that receives no announcements, if other hosts may announce tools.
    pub fn unheard(&self) -> Option<String> {
        let from = self.announced().into_iter().flat_map(|entry| entry.from);
        let tools: Vec<String> = from.map(|from| format!("{}.*", from.namespace)).collect();
        let words = "only a running server receives what other hosts announce (`toolhost status` \
                     lists it, `toolhost audit TOOL --http ADDRESS` shows one)";
        (!tools.is_empty())
            .then(|| format!("This command does not know {}: {words}.", tools.join(", ")))
    }

    /// True if no root was named, so that the current folder is the root.
    pub fn root_is_assumed(&self) -> bool {
        self.said_by["root"] == BUILT_IN
    }

    /// The same, with policies that have since appeared under their usual name.
    pub fn again(&self) -> Settings {
        let usual = self.root.join(POLICIES);
        let came = self.policies.is_none() && usual.symlink_metadata().is_ok();
        Settings {
            policies: if came {
                Some(usual)
            } else {
                self.policies.clone()
            },
            ..self.clone()
        }
    }

    /// Where policies lie, or would.
    pub fn policy_path(&self) -> PathBuf {
        self.policies
            .clone()
            .unwrap_or_else(|| self.root.join(POLICIES))
    }

    /// Folders that are scanned for manifests and skills.
    pub fn scanned(&self) -> Vec<PathBuf> {
        union(&union(&self.tools, &self.scripts), &self.skills)
    }

    /// Base folders of scripts: both kinds, the scripts' own first.
    pub fn bases(&self) -> Vec<PathBuf> {
        union(&self.scripts, &self.tools)
    }

    /// How this process logs; `usual` where it is not set.
    pub fn log_style(&self, usual: LevelFilter) -> Style {
        let (level, json) = self.log.unwrap_or((usual, false));
        Style {
            level,
            json,
            colour: self.colour && std::io::stderr().is_terminal() && !json,
        }
    }
}

/// Whether standard output is a terminal that shows colours.
fn is_coloured(variable: Variables<'_>) -> bool {
    std::io::stdout().is_terminal()
        && variable("NO_COLOR").is_none()
        && variable("TERM").is_none_or(|term| term != "dumb")
}

fn union(first: &[PathBuf], second: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = first.to_vec();
    all.extend(second.iter().filter(|path| !first.contains(path)).cloned());
    all
}

/// Looks in flags, then variables, then the config file, and notes where each setting was found.
struct Sources<'a> {
    variables: Variables<'a>,
    config_file: Option<PathBuf>,
    said_by: BTreeMap<&'static str, String>,
}

impl Sources<'_> {
    /// The values of a setting, from the first source that has it. Paths of the config file start
    /// at its folder.
    fn values(
        &mut self,
        name: &'static str,
        flags: &[PathBuf],
        config: &[PathBuf],
    ) -> Vec<PathBuf> {
        let variable = format!("TOOLHOST_{}", name.replace('-', "_").to_uppercase());
        let (values, said_by) = match ((self.variables)(&variable), &self.config_file) {
            _ if !flags.is_empty() => (flags.to_vec(), FLAG.to_owned()),
            (Some(value), _) if ["tools", "scripts", "skills"].contains(&name) => {
                let paths =
                    std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty());
                (paths.collect(), variable)
            }
            (Some(value), _) => (vec![PathBuf::from(value)], variable),
            (None, Some(file)) if !config.is_empty() => {
                let folder = file
                    .parent()
                    .filter(|_| name != "log")
                    .unwrap_or(Path::new(""));
                (
                    config.iter().map(|path| folder.join(path)).collect(),
                    text::path(file),
                )
            }
            _ => (Vec::new(), BUILT_IN.to_owned()),
        };
        self.said_by.insert(name, said_by);
        values
    }

    /// One path that must exist.
    fn one(
        &mut self,
        name: &'static str,
        flag: Option<&PathBuf>,
        config: Option<PathBuf>,
    ) -> anyhow::Result<Option<PathBuf>> {
        let value = self
            .values(name, flag.cloned().as_slice(), config.as_slice())
            .pop();
        value.map(|path| self.existing(name, &path)).transpose()
    }

    /// Several paths that must exist; the usual one, which need not, where none is set.
    fn many(
        &mut self,
        name: &'static str,
        flags: &[PathBuf],
        config: Option<Vec<PathBuf>>,
        usual: &Path,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let values = self.values(name, flags, config.as_deref().unwrap_or_default());
        // An empty list in the config file says that there are none.
        if self.said_by[name] == BUILT_IN && config.is_none() {
            self.said_by.insert(name, UNDER_ROOT.to_owned());
            return Ok(vec![
                usual.canonicalize().unwrap_or_else(|_| usual.to_path_buf()),
            ]);
        }
        let mut found: Vec<PathBuf> = Vec::new();
        for path in values {
            let path = self.existing(name, &path)?;
            if !found.contains(&path) {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// An explicit path that is missing is an error, not an empty folder.
    fn existing(&self, name: &str, path: &Path) -> anyhow::Result<PathBuf> {
        let refuse = |why: String| {
            Refusal::new(
                Exit::Caller,
                format!(
                    "{name} ({}): {}: {why}",
                    self.said_by[name],
                    text::path(path)
                ),
            )
        };
        let real = path.canonicalize().map_err(|e| refuse(e.to_string()))?;
        // Policies may be one file.
        if name != "policies" && !real.is_dir() {
            return Err(refuse("it is not a folder".to_owned()).into());
        }
        Ok(real)
    }
}

impl Config {
    /// The operator's programs that this host runs: the table of each, and its words.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &[String])> {
        let alerts = self.alerts.iter().map(|it| ("alerts", &*it.command));
        let advice = self.advice.iter().map(|it| ("advice", &*it.command));
        alerts.chain(advice)
    }
}

/// Refuses a folder of skills in or above one of tools or scripts: there a script would run that
/// nobody approved with its skill. The usual folder does not count where it would, and is not there.
fn apart(skills: Vec<PathBuf>, usual: &Path, others: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut kept = Vec::new();
    for folder in skills {
        let own = resolved(&folder);
        let mut known = others.iter().map(|other| resolved(other));
        let other: Option<PathBuf> =
            known.find(|other| own.starts_with(other) || other.starts_with(&own));
        match other {
            None => kept.push(folder),
            Some(_) if folder == usual && !folder.exists() => {}
            Some(other) => {
                let (own, other) = (text::path(&folder), text::path(&other));
                return Err(format!(
                    "{own} is a folder of skills, and {other} one of tools or scripts: move one of \
                     them, neither may lie in the other"
                ));
            }
        }
    }
    Ok(kept)
}

/// What of a config file cannot be used.
fn check(config: &Config) -> Result<(), String> {
    for word in &config.capabilities {
        crate::policy::offerable(word).map_err(|why| format!("capabilities: {why}"))?;
    }
    for (table, command) in config.programs() {
        if command.first().is_none_or(|path| !path.starts_with('/')) {
            return Err(format!(
                "[{table}] command: begin with the absolute path of a program"
            ));
        }
    }
    Ok(())
}

/// The config file: named, else the user's, else the system's.
fn config(flags: &Flags, variable: Variables<'_>) -> anyhow::Result<(Config, Option<PathBuf>)> {
    let named = flags
        .config
        .clone()
        .or_else(|| variable("TOOLHOST_CONFIG").map(PathBuf::from));
    let file = match named {
        Some(file) => Some(std::path::absolute(file)?),
        None => usual_configs(variable)
            .into_iter()
            .find(|file| file.symlink_metadata().is_ok()),
    };
    let Some(file) = file else {
        return Ok((Config::default(), None));
    };
    let refuse_as =
        |exit, why: String| Refusal::new(exit, format!("config file {}: {why}", text::path(&file)));
    let refuse = |why: String| refuse_as(Exit::Host, why);
    // A named file that is missing is the caller's error, as every other path is.
    file.metadata()
        .map_err(|e| refuse_as(Exit::Caller, e.to_string()))?;
    let text = guarded_text(&file).map_err(refuse)?;
    let config = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
    Ok((config, Some(file)))
}

/// Where calls are recorded, and where built packages are kept.
fn kept(
    sources: &mut Sources<'_>,
    flags: &Flags,
    config: Option<PathBuf>,
) -> anyhow::Result<(Option<PathBuf>, Option<PathBuf>)> {
    let Some(path) = sources
        .values("audit-log", flags.audit_log.as_slice(), config.as_slice())
        .pop()
    else {
        let usual = |system: &str, name: &str| usual_state(sources.variables, system, name);
        // Logs are often kept where nothing may be run, and packages hold native code.
        return Ok((
            usual("/var/log/toolhost", "audit.jsonl"),
            usual("/var/lib/toolhost", PACKAGES),
        ));
    };
    // The file may be new. Its folder must exist, so that a typing mistake makes no new folder.
    let path = std::path::absolute(path)?;
    sources.existing("audit-log", path.parent().unwrap_or(&path))?;
    // Another log is another host, with a store of its own.
    let beside = path.parent().map(|folder| folder.join(PACKAGES));
    Ok((Some(path), beside))
}

/// The usual config files: the user's, then the system's.
fn usual_configs(variable: Variables<'_>) -> Vec<PathBuf> {
    let own = folder(variable, "XDG_CONFIG_HOME", ".config")
        .map(|folder| folder.join("toolhost/config.toml"));
    own.into_iter()
        .chain([PathBuf::from("/etc/toolhost/config.toml")])
        .collect()
}

/// The usual path of a state file: for real root below the folder `system`, for every other user
/// (also root of a user namespace) below the home folder.
fn usual_state(variable: Variables<'_>, system: &str, name: &str) -> Option<PathBuf> {
    if identity::real_root() && variable("XDG_STATE_HOME").is_none() {
        return Some(Path::new(system).join(name));
    }
    Some(
        folder(variable, "XDG_STATE_HOME", ".local/state")?
            .join("toolhost")
            .join(name),
    )
}

/// `[traces]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Traces {
    endpoint: Option<String>,
}

/// Where spans are sent: as the standard variables say, else as the config file does. `None`:
/// nowhere.
fn collector(config: Option<String>, variable: Variables<'_>) -> Option<String> {
    let said = |name: &str| variable(name).and_then(|text| text.into_string().ok());
    let is =
        |name: &str, wanted: &str| said(name).is_some_and(|text| text.eq_ignore_ascii_case(wanted));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return None;
    }
    let whole = said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    whole
        .or_else(|| {
            said("OTEL_EXPORTER_OTLP_ENDPOINT")
                .map(|base| format!("{}/v1/traces", base.trim_end_matches('/')))
        })
        .or(config)
}

/// The level of the log, and whether its lines are JSON.
fn log(
    sources: &mut Sources<'_>,
    flags: &Flags,
    config: Option<String>,
) -> anyhow::Result<Option<(LevelFilter, bool)>> {
    let flag = flags.log.as_ref().map(PathBuf::from);
    let config = config.map(PathBuf::from);
    let words = sources.values("log", flag.as_slice(), config.as_slice());
    words
        .last()
        .map(|words| log_words(&words.to_string_lossy()))
        .transpose()
}

/// Parses the log setting: `debug`, `json`, `debug,json`.
fn log_words(words: &str) -> anyhow::Result<(LevelFilter, bool)> {
    let mut level = LevelFilter::INFO;
    let mut json = false;
    for word in words.split(',').map(str::trim) {
        match word {
            "json" => json = true,
            "text" => json = false,
            _ => {
                level = word.parse().ok().filter(|level: &LevelFilter| level.to_string() == word).ok_or_else(|| {
                    let message =
                        "log level must be off, error, warn, info, debug or trace (with \",json\" \
                        for JSON lines)";
                    Refusal::new(Exit::Caller, format!("'{}': {message}", word.escape_debug()))
                })?;
            }
        }
    }
    Ok((level, json))
}

mod brokers;
mod indexes;
mod model;
mod source;

pub use brokers::{Broker, BrokerServices};
pub use model::Servers;
pub use source::{Variables, folder, guarded_text, home, regular_file};

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;

    fn settings(flags: &Flags, variables: &[(&str, &Path)]) -> anyhow::Result<Settings> {
        let variables: BTreeMap<String, OsString> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_os_str().to_owned()))
            .collect();
        Settings::from(flags, &|name| variables.get(name).cloned())
    }

    fn folders(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        folder
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_config_beats_the_root() {
        let folder = folders(&[
            "tool-defs",
            "user_scripts",
            "sandbox-policies",
            "a",
            "b",
            "c",
            "home",
        ]);
        let at = |name: &str| folder.path().join(name).canonicalize().unwrap();
        let config = folder.path().join("config.toml");
        std::fs::write(
            &config,
            "tools = [\"c\"]\nlog = \"debug,json\"\ncapabilities = [\"env:TOKEN\"]\n",
        )
        .unwrap();
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
        let home = at("home");
        let base = Flags {
            root: Some(at(".")),
            ..Flags::default()
        };

        let plain = settings(&base, &[("HOME", &home)]).unwrap();
        assert_eq!(
            (plain.tools.clone(), plain.scripts.clone()),
            (vec![at("tool-defs")], vec![at("user_scripts")])
        );
        assert_eq!(plain.policies, Some(at("sandbox-policies")));
        let skills = plain.root.join("skills");
        assert_eq!(
            plain.scanned(),
            [at("tool-defs"), at("user_scripts"), skills]
        );
        assert_eq!(plain.bases(), [at("user_scripts"), at("tool-defs")]);
        assert_eq!(plain.said_by["tools"], UNDER_ROOT);

        let flags = Flags {
            config: Some(config.clone()),
            ..base.clone()
        };
        let configured = settings(&flags, &[("HOME", &home)]).unwrap();
        assert_eq!(
            (configured.tools, configured.log),
            (vec![at("c")], Some((LevelFilter::DEBUG, true)))
        );
        assert!(configured.config.capabilities.contains("env:TOKEN"));
        let varied = settings(&flags, &[("HOME", &home), ("TOOLHOST_TOOLS", &at("b"))]).unwrap();
        assert_eq!(
            (varied.tools.clone(), varied.said_by["tools"].as_str()),
            (vec![at("b")], "TOOLHOST_TOOLS")
        );
        let flagged = Flags {
            tools: vec![at("a")],
            ..flags
        };
        assert_eq!(
            settings(&flagged, &[("TOOLHOST_TOOLS", &at("b"))])
                .unwrap()
                .tools,
            [at("a")]
        );
    }

    #[test]
    fn what_is_named_must_be_there_and_be_ours() {
        let folder = folders(&["home"]);
        let missing = folder.path().join("missing");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for flags in [
            Flags {
                root: Some(missing.clone()),
                ..Flags::default()
            },
            Flags {
                tools: vec![missing.clone()],
                ..Flags::default()
            },
            Flags {
                policies: Some(missing.clone()),
                ..Flags::default()
            },
            Flags {
                root: Some(file.clone()),
                ..Flags::default()
            },
            Flags {
                scripts: vec![file.clone()],
                ..Flags::default()
            },
            Flags {
                config: Some(missing.clone()),
                ..Flags::default()
            },
            Flags {
                log: Some("loud".into()),
                ..Flags::default()
            },
        ] {
            assert!(settings(&flags, &[]).is_err(), "{flags:?}");
        }
        let flags = Flags {
            config: Some(file.clone()),
            ..Flags::default()
        };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(
            settings(&flags, &[])
                .unwrap_err()
                .to_string()
                .contains("others can write it")
        );
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        for (text, wanted) in [
            ("[tool_ids]\nfirst = 200000\ncount = 16\n", None),
            (
                "[tool_ids]\nfirst = 1000\ncount = 16\n",
                Some("[tool_ids]: first must be at least 65536"),
            ),
            (
                "capabilities = [\"long-running\"]\n",
                Some("`long-running` is not built yet"),
            ),
            ("rot = \"/\"\n", Some("rot")),
        ] {
            std::fs::write(&file, text).unwrap();
            match (settings(&flags, &[]), wanted) {
                (Ok(found), None) => assert_eq!(found.tool_ids, 200_000..200_016),
                (Err(why), Some(wanted)) => assert!(why.to_string().contains(wanted), "{why}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
    }
}
