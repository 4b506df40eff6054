//! What `mcp import` would write for a server: its policy, of a shipped template where there is one,
//! its settings and its secrets.

use super::entries::{Entry, Variable};
use super::launch::{Launch, Package, Program, package_key};
use super::target::{SECRETS, Target};
use crate::base::mask::MIN_SECRET_BYTES;
use crate::manifest::environment;
use crate::policy::packages::Ecosystem;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Policies of well-known servers, by their package: data, which no host reads as its own policies.
const TEMPLATES: [&str; 10] = [
    include_str!("../../../sandbox-policies/mcp/brave-search.toml"),
    include_str!("../../../sandbox-policies/mcp/context7.toml"),
    include_str!("../../../sandbox-policies/mcp/fetch.toml"),
    include_str!("../../../sandbox-policies/mcp/filesystem.toml"),
    include_str!("../../../sandbox-policies/mcp/git.toml"),
    include_str!("../../../sandbox-policies/mcp/memory.toml"),
    include_str!("../../../sandbox-policies/mcp/notion.toml"),
    include_str!("../../../sandbox-policies/mcp/sequential-thinking.toml"),
    include_str!("../../../sandbox-policies/mcp/tavily.toml"),
    include_str!("../../../sandbox-policies/mcp/time.toml"),
];
const NOT_TAKEN: &str = include_str!("../../../sandbox-policies/mcp/not-taken.toml");
const LEAST: &str = "An MCP server that a client had: no network and no files, until a first run shows \
                     what it needs.";
const OF_CLIENT: &str =
    "a variable of the server in its client: each is a secret unless you say otherwise";
/// Longest name, characters: tools have it in their ids.
const MAX_NAME_CHARS: usize = 40;

/// What one server would be.
pub struct Plan {
    /// The namespace of its tools, and the name of its folder.
    pub name: String,
    pub launch: Launch,
    /// The policy, as TOML has it.
    pub policy: Value,
    pub environment: BTreeMap<String, String>,
    /// The files of secrets that are written: names and values.
    pub secrets: BTreeMap<String, String>,
    /// The files of secrets that the person writes.
    pub missing: Vec<String>,
    /// What the client says and the server does not get, with the reason.
    pub left_out: Vec<String>,
}

/// A name for the namespace, the folder and the files of a server: ASCII letters and digits, with
/// `-` for all else.
pub fn name_of(written: &str) -> Result<String, String> {
    let parts = written.split(|c: char| !c.is_ascii_alphanumeric());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let name = parts.join("-").to_ascii_lowercase();
    match (1..=MAX_NAME_CHARS).contains(&name.len()) {
        true => Ok(name),
        false => Err(format!(
            "no namespace can be made of its name: 1 to {MAX_NAME_CHARS} ASCII letters and digits"
        )),
    }
}

fn parsed(text: &str) -> Map<String, Value> {
    toml::from_str(text).expect("a shipped file is TOML")
}

/// The template of a package; else what grants nothing but the own folder.
fn template(package: Option<&Package>) -> Map<String, Value> {
    let key = package.map(Package::key).unwrap_or_default();
    let mut all = TEMPLATES.iter().map(|text| parsed(text));
    let own = all.find(|template| template["server"]["package"] == *key);
    own.unwrap_or_else(|| {
        let least = json!({
            "why": LEAST,
            "files": { "read": [{ "path": "./**", "why": "its own folder" }] },
        });
        least.as_object().cloned().unwrap_or_default()
    })
}

/// The entries of a list.
pub fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

impl Plan {
    /// `settings`: the variables of which the person says that they are settings.
    pub fn new(
        entry: &Entry,
        launch: Launch,
        target: &Target,
        settings: &[String],
    ) -> Result<Plan, String> {
        let package = launch.package();
        let key = package.map(Package::key).unwrap_or_default();
        if let Some(why) = parsed(NOT_TAKEN).get(&key).and_then(Value::as_str) {
            return Err(why.to_owned());
        }
        let mut template = template(package);
        let server = template.remove("server").unwrap_or_default();
        let name = name_of(&entry.name)?;
        let folder = target.folder(&name);
        let below = folder.strip_prefix(&target.root).unwrap_or(&folder);
        let mut policy = json!({
            "name": format!("mcp-{name}"),
            "why": template["why"],
            "tools": [format!("{name}:*")],
            "folders": [below.to_string_lossy()],
        });
        for (key, value) in template {
            if policy[&key].is_null() {
                policy[key] = value;
            }
        }
        let mut plan = Plan {
            name,
            launch,
            policy,
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
            missing: Vec::new(),
            left_out: Vec::new(),
        };
        plan.add_settings(&server, entry, &folder, settings);
        plan.add_secrets(&server, entry)?;
        plan.add_paths(&server["paths"]);
        plan.add_packages();
        Ok(plan)
    }

    /// The variables that are settings: by the template, by the registry, or by the person's word.
    fn add_settings(&mut self, server: &Value, entry: &Entry, folder: &Path, named: &[String]) {
        let mut known: BTreeSet<&str> = named.iter().map(String::as_str).collect();
        for setting in entries(&server["settings"]) {
            let name = setting["name"].as_str().unwrap_or_default();
            let Some(value) = setting["value"].as_str() else {
                known.insert(name);
                continue;
            };
            let with = setting["with"].as_str();
            if with.is_none_or(|with| entry.variables.contains_key(with)) {
                let value = value.replace("{folder}", &folder.to_string_lossy());
                self.environment.insert(name.to_owned(), value);
            }
        }
        for (name, variable) in &entry.variables {
            let value = match variable {
                Variable::Setting(value) => value,
                Variable::Text(value) if known.contains(name.as_str()) => value,
                _ => continue,
            };
            if environment::refusal_reason(name, value).is_none() {
                let known = self.environment.entry(name.clone());
                known.or_insert_with(|| value.clone());
            }
        }
    }

    /// The secrets: those of the template, and each variable of the client that is not a setting.
    fn add_secrets(&mut self, server: &Value, entry: &Entry) -> Result<(), String> {
        let policy = self.policy.as_object_mut();
        let shipped = policy.and_then(|policy| policy.remove("secrets"));
        let shipped = shipped.unwrap_or_default();
        let mut grants: Vec<Value> = Vec::new();
        for grant in entries(&shipped["grant"]) {
            let name = grant["name"].as_str().unwrap_or_default();
            let variable = entry.variables.get(name);
            if variable.is_some() || !entries(&server["optional"]).any(|it| it == name) {
                let mut grant = grant.clone();
                grant["from"] = json!(self.source(name, variable.unwrap_or(&Variable::Asked))?);
                grants.push(grant);
            }
        }
        for (name, variable) in &entry.variables {
            let is_granted = grants.iter().any(|grant| grant["name"] == **name);
            if let Some(why) = environment::refusal_reason(name, "") {
                self.left_out.push(format!("{name}: {why}"));
            } else if let Some(set) = self.environment.get(name).filter(|_| !is_granted) {
                let is_same =
                    matches!(variable, Variable::Text(it) | Variable::Setting(it) if it == set);
                let differs = format!("{name}: the shipped policy sets it to {set}");
                self.left_out.extend((!is_same).then_some(differs));
            } else if !is_granted {
                let from = self.source(name, variable)?;
                grants.push(json!({ "name": name, "from": from, "why": OF_CLIENT }));
            }
        }
        if !grants.is_empty() {
            self.policy["secrets"] = json!({ "grant": grants });
        }
        Ok(())
    }

    /// Where a secret lies.
    fn source(&mut self, name: &str, variable: &Variable) -> Result<String, String> {
        let file = format!("{}{name}", Target::secret_start(&self.name));
        let from = format!("file:{SECRETS}/{file}");
        match variable {
            Variable::Host(host) => return Ok(format!("env:{host}")),
            Variable::Asked => self.missing.push(file),
            Variable::Text(value) | Variable::Setting(value) => {
                if value.len() < MIN_SECRET_BYTES {
                    return Err(format!(
                        "its variable {name} has fewer than {MIN_SECRET_BYTES} bytes, too few to be \
                         hidden as a secret: `--setting {name}` says that it may be read"
                    ));
                }
                self.secrets.insert(file, value.clone());
            }
        }
        Ok(from)
    }

    /// Grants the paths among the arguments, where the template says that they are the server's.
    fn add_paths(&mut self, rule: &Value) {
        let lists: &[&str] = match rule["access"].as_str() {
            Some("write") => &["read", "write"],
            Some(_) => &["read"],
            None => return,
        };
        let arguments = self.launch.arguments.iter();
        let paths = arguments.filter(|word| word.starts_with('/')).map(|word| {
            let tree = if Path::new(word).is_file() { "" } else { "/**" };
            json!({ "path": format!("{}{tree}", word.trim_end_matches('/')), "why": rule["why"] })
        });
        let paths: Vec<Value> = paths.collect();
        for name in lists {
            let list = &mut self.policy["files"][name];
            let all = entries(list).chain(&paths).cloned();
            *list = all.collect();
        }
    }

    fn add_packages(&mut self) {
        let name = match self.launch.ecosystem() {
            Ecosystem::Node => "node",
            Ecosystem::Python => "python",
        };
        let entry = json!({
            "index": "default", "lock": "required", "builds": false, "why": "what the server runs on",
        });
        self.policy["packages"] = json!({ name: entry });
    }

    /// The package, or the script, for people.
    pub fn runs(&self) -> String {
        match &self.launch.program {
            Program::Package(package) => package.name().to_owned(),
            Program::Script { file, .. } => file.to_string_lossy().into_owned(),
        }
    }

    /// The versions that the client wants.
    pub fn wanted(&self) -> &str {
        let package = self.launch.package();
        let versions = package.map_or("", |package| &package.required[0].versions);
        if versions.is_empty() {
            "newest"
        } else {
            versions
        }
    }

    /// The version of the server among locked packages, as manifests write versions.
    pub fn version(&self, packages: &Value) -> String {
        let own = self.launch.package().and_then(|package| {
            let mut all = entries(packages);
            all.find(|it| {
                let name = it["name"].as_str().unwrap_or_default();
                package_key(package.ecosystem, name) == package.key()
            })
        });
        let version = own.and_then(|it| it["version"].as_str()).unwrap_or("1");
        let numbers = version.split(|c: char| !c.is_ascii_digit());
        let mut numbers = numbers.map(|number| number.parse::<u64>().unwrap_or(0));
        let first = [0; 3].map(|zero| numbers.next().unwrap_or(zero));
        match semver::Version::parse(version) {
            Ok(version) => version.to_string(),
            Err(_) => first.map(|number| number.to_string()).join("."),
        }
    }
}
