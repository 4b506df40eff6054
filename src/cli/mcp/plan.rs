//! What `mcp import` would write for a server: its policy, of a shipped template where there is one,
//! its settings and its secrets.

use super::entries::{Command, Entry, Variable};
use super::launch::{self, Launch, Package, Program};
use super::target::Target;
use crate::base::mask::MIN_SECRET_BYTES;
use crate::base::text;
use crate::manifest::environment;
use crate::policy::packages::Ecosystem;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
/// What a server has that no template knows.
const UNKNOWN: &str = include_str!("../../../sandbox-policies/mcp/unknown.toml");
const NOT_TAKEN: &str = include_str!("../../../sandbox-policies/mcp/not-taken.toml");
/// Longest name: tools have it in their ids.
const MAX_NAME_CHARS: usize = 40;

/// How variables begin that the programs obey which fetch packages.
const INSTALLERS: [&str; 3] = ["NPM_CONFIG_", "PIP_", "UV_"];
/// What makes a pattern of a path.
const WILD: [char; 6] = ['*', '?', '[', ']', '{', '}'];

/// What one server would be.
pub struct Plan {
    /// The namespace of its tools, and the name of its folder.
    pub name: String,
    pub launch: Launch,
    /// As TOML has it.
    pub policy: Value,
    pub settings: BTreeMap<String, String>,
    /// The files of secrets, below the policies, and their values; `None`: the person writes it.
    pub secrets: BTreeMap<String, Option<String>>,
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
        true if name == "toolhost" => {
            Err("this name is the host's own: name it otherwise".to_owned())
        }
        true => Ok(name),
        false => Err(format!(
            "no namespace can be made of its name: 1 to {MAX_NAME_CHARS} ASCII letters and digits"
        )),
    }
}

fn parsed(text: &str) -> Value {
    toml::from_str(text).expect("a shipped file is TOML")
}

/// The entries of a list.
pub fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Where the path begins in `PATH`, `--option=PATH` and `-o/PATH`.
fn path_start(word: &str) -> usize {
    match word.find(['=', '/', '~']) {
        _ if !word.starts_with('-') => 0,
        Some(at) => at + usize::from(word[at..].starts_with('=')),
        None => word.len(),
    }
}

impl Plan {
    /// `settings`: the variables of which the person says that they are settings.
    pub fn new(
        entry: &Entry,
        command: &Command,
        target: &Target,
        settings: &[String],
    ) -> Result<Plan, String> {
        let launch = launch::read(entry, command)?;
        let key = launch.package().map(Package::key).unwrap_or_default();
        if let Some(why) = parsed(NOT_TAKEN)[&key].as_str() {
            return Err(why.to_owned());
        }
        let mut all = TEMPLATES.iter().map(|text| parsed(text));
        // What stands beside a package gets nothing of what that one was given.
        let is_alone = launch.package().is_some_and(Package::is_alone);
        let template = all.find(|it| is_alone && it["server"]["package"] == *key);
        let mut policy = template.unwrap_or_else(|| parsed(UNKNOWN));
        let [server, shipped] = ["server", "secrets"].map(|table| {
            let removed = policy.as_object_mut().and_then(|it| it.remove(table));
            removed.unwrap_or_default()
        });
        let name = name_of(&entry.name)?;
        let folder = target.folder(&name);
        policy["name"] = json!(format!("mcp-{name}"));
        // By its exact id, so that `allow` adds to this policy.
        policy["tools"] = json!([format!("{name}:server"), format!("{name}:*")]);
        let mut plan = Plan {
            name,
            launch,
            policy,
            settings: BTreeMap::new(),
            secrets: BTreeMap::new(),
            left_out: Vec::new(),
        };
        let grants = plan.variables(&server, &shipped, command, &folder, settings)?;
        if !grants.is_empty() {
            plan.policy["secrets"] = json!({ "grant": grants });
        }
        if server["paths"].is_object() {
            plan.add_paths(&server["paths"], entry)?;
        } else if command.has_folder {
            let why = "its `cwd`: the server starts in its own folder";
            plan.left_out.push(why.to_owned());
        }
        let unread = entry.unread.iter().map(|name| text::printable(name));
        let unread = unread.map(|name| format!("its `{name}`: not read here"));
        plan.left_out.extend(unread);
        plan.add_packages();
        Ok(plan)
    }

    /// Each variable of the client and of the template is a setting or a secret. Returns the grants
    /// of the secrets.
    fn variables(
        &mut self,
        server: &Value,
        shipped: &Value,
        command: &Command,
        folder: &Path,
        named: &[String],
    ) -> Result<Vec<Value>, String> {
        let mut variables = command.variables.clone();
        let upper = variables.keys().map(|name| name.to_ascii_uppercase());
        let mut fetching = upper.filter(|name| INSTALLERS.iter().any(|it| name.starts_with(it)));
        if let (Some(name), Some(_)) = (fetching.next(), self.launch.package()) {
            return Err(format!(
                "its variable {name} changes what is fetched: `[indexes]` of config.toml does"
            ));
        }
        for grant in entries(&shipped["grant"]).filter(|grant| grant["optional"] != true) {
            let name = grant["name"].as_str().unwrap_or_default().to_owned();
            variables.entry(name).or_insert(Variable::Asked);
        }
        let mut known = named.to_vec();
        for setting in entries(&server["settings"]) {
            let name = setting["name"].as_str().unwrap_or_default().to_owned();
            let is_meant = setting["with"]
                .as_str()
                .is_none_or(|with| variables.contains_key(with));
            match setting["value"].as_str() {
                Some(value) if is_meant => {
                    let value = value.replace("{folder}", &folder.to_string_lossy());
                    self.settings.insert(name, value);
                }
                _ => known.push(name),
            }
        }
        let mut grants = Vec::new();
        for (name, variable) in variables {
            let grant = entries(&shipped["grant"]).find(|grant| grant["name"] == *name);
            if let Some(why) = environment::refusal_reason(&name, "") {
                let is_named = why.contains(&name);
                let why = if is_named {
                    why
                } else {
                    format!("{name}: {why}")
                };
                self.left_out.push(why);
                continue;
            }
            match (variable, grant) {
                (variable, None) if self.settings.contains_key(&name) => {
                    let set = &self.settings[&name];
                    let taken = match variable {
                        Variable::Text(old) if old.starts_with('/') => {
                            format!(" to {set}: copy {old} there to go on with what it holds")
                        }
                        _ => String::new(),
                    };
                    let why = format!("{name}: the shipped policy sets it{taken}");
                    self.left_out.push(why);
                }
                (Variable::Setting(value), None) => drop(self.settings.insert(name, value)),
                (Variable::Text(value), None) if known.contains(&name) => {
                    self.settings.insert(name, value);
                }
                (variable, grant) => {
                    let why = "a variable of the server: each is a secret unless you say otherwise";
                    let mut grant = grant.cloned().unwrap_or_else(|| json!({ "why": why }));
                    grant
                        .as_object_mut()
                        .and_then(|grant| grant.remove("optional"));
                    grant["from"] = json!(self.source(&name, variable)?);
                    grant["name"] = json!(name);
                    grants.push(grant);
                }
            }
        }
        Ok(grants)
    }

    /// Where a secret lies.
    fn source(&mut self, name: &str, variable: Variable) -> Result<String, String> {
        let file = Target::secret(&self.name, name);
        let from = format!("file:{file}");
        match variable {
            Variable::Host(host) => return Ok(format!("env:{host}")),
            Variable::Asked => drop(self.secrets.insert(file, None)),
            Variable::Text(value) | Variable::Setting(value) => {
                if value.len() < MIN_SECRET_BYTES {
                    return Err(format!(
                        "its variable {name} has fewer than {MIN_SECRET_BYTES} bytes, too few to be \
                         hidden as a secret: `--setting {name}` says that it may be read"
                    ));
                }
                self.secrets.insert(file, Some(value));
            }
        }
        Ok(from)
    }

    /// Grants the paths among the arguments, which the template says are the server's, and writes them
    /// as the server would find them.
    fn add_paths(&mut self, rule: &Value, entry: &Entry) -> Result<(), String> {
        let mut paths = Vec::new();
        for word in &mut self.launch.arguments {
            let (option, path) = word.split_at(path_start(word));
            if path.is_empty() {
                continue;
            }
            let place = launch::place_of(path, entry)?;
            let tree = if place.is_file() { "" } else { "/**" };
            let text = place
                .to_str()
                .filter(|text| !text.contains(WILD) && *text != "/");
            let text = text.ok_or_else(|| {
                let shown = text::path(&place);
                format!("{shown} cannot be granted: name a folder below `/`, without * ? [ ] {{ }}")
            })?;
            paths.push(json!({ "path": format!("{text}{tree}"), "why": rule["why"] }));
            *word = format!("{option}{text}");
        }
        if paths.is_empty() {
            return Err("it names no folder: write the absolute path as an argument".to_owned());
        }
        for access in entries(&rule["access"]).filter_map(Value::as_str) {
            let list = &mut self.policy["files"][access];
            *list = entries(list).chain(&paths).cloned().collect();
        }
        Ok(())
    }

    fn add_packages(&mut self) {
        let name = match Ecosystem::for_language(self.launch.language()) {
            Some(Ecosystem::Python) => "python",
            _ => "node",
        };
        let why = "what the server runs on";
        let rule = json!({ "index": "default", "lock": "required", "builds": false, "why": why });
        self.policy["packages"] = json!({ name: rule });
    }

    /// The package, or the script, for people.
    pub fn runs(&self) -> String {
        match &self.launch.program {
            Program::Package(package) => package.name().to_owned(),
            Program::Script { file, .. } => file.to_string_lossy().into_owned(),
        }
    }

    /// All packages that it requires, its own first, or its script.
    pub fn packages(&self) -> String {
        let required = self
            .launch
            .package()
            .map(|package| &package.required.requires);
        let names = required.into_iter().flatten().map(|it| it.name.clone());
        let names: Vec<String> = names.collect();
        match names.is_empty() {
            true => self.runs(),
            false => names.join(" "),
        }
    }

    /// The versions that the client wants.
    pub fn wanted(&self) -> &str {
        let package = self.launch.package();
        let first = package.and_then(|package| package.required.requires.first());
        match first.map(|required| required.versions.as_str()) {
            Some("" | "*") => "newest",
            versions => versions.unwrap_or(""),
        }
    }

    /// The version of the server among locked packages, as manifests write versions.
    pub fn version(&self, packages: &Value) -> String {
        let name = self.runs();
        let own = entries(packages).find(|package| package["name"] == *name);
        let version = own.and_then(|it| it["version"].as_str()).unwrap_or("1");
        let numbers = version.split(|c: char| !c.is_ascii_digit());
        let numbers = numbers.map(|number| number.parse::<u64>().unwrap_or(0));
        let numbers: Vec<String> = numbers
            .chain([0; 3])
            .take(3)
            .map(|it| it.to_string())
            .collect();
        let exact = semver::Version::parse(version).map(|version| version.to_string());
        exact.unwrap_or_else(|_| numbers.join("."))
    }
}
