//! What clients' files, and the registry's `server.json`, say of servers: every form becomes one kind
//! of entry. The files are hostile, and nothing that they name is run.

use super::clients::{CLIENTS, Client, REFERENCES, Syntax};
use crate::base::files;
use crate::base::json::{self, Dialect};
use crate::base::text;
use crate::cli::settings;
use nix::fcntl::OFlag;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest file: a client may keep its history beside its servers.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Most servers of one file.
const MAX_SERVERS: usize = 200;
/// Most arguments, and most variables, of one server.
const MAX_WORDS: usize = 64;
const MAX_WORD_BYTES: usize = 4096;
/// What stands in an argument that a client replaces.
const OPENINGS: [&str; 3] = ["${", "{env:", "{file:"];

/// Members that name the place of a remote server.
const URLS: [&str; 3] = ["url", "serverUrl", "httpUrl"];
const REMOTE: &str = "a remote server: its code runs elsewhere, where nothing here confines it";

/// One server as a client has it.
pub struct Entry {
    pub name: String,
    pub file: PathBuf,
    /// Where relative paths start, if the entry or the place of its file says so.
    pub folder: Option<PathBuf>,
    /// A file of the user has it for one project.
    pub is_of_project: bool,
    /// Its members that say nothing here.
    pub unread: Vec<String>,
    /// The error says why the entry is not taken.
    pub command: Result<Command, String>,
}

impl Entry {
    /// Whether two clients have the same server. A relative word means another file in another folder.
    pub fn is_same(&self, other: &Entry) -> bool {
        self.name == other.name && self.folder == other.folder && self.command == other.command
    }
}

#[derive(PartialEq)]
pub struct Command {
    /// The program and its arguments.
    pub words: Vec<String>,
    pub variables: BTreeMap<String, Variable>,
    /// The entry itself says in which folder it starts.
    pub has_folder: bool,
}

/// Where the value of a server's variable comes from.
#[derive(Clone, PartialEq)]
pub enum Variable {
    /// The file has it. It counts as a secret.
    Text(String),
    /// The registry says that it is a setting.
    Setting(String),
    /// The client passes on a variable of its own.
    Host(String),
    /// The client, or the registry, asks the person for it.
    Asked,
}

/// An entry in the words of all clients.
struct Said {
    command: Program,
    args: Vec<String>,
    env: BTreeMap<String, Value>,
    /// opencode names them so.
    environment: BTreeMap<String, Value>,
    env_vars: Vec<Passed>,
    kind: String,
    /// Zed says whether an extension brings the command.
    source: String,
    cwd: Option<PathBuf>,
    disabled: bool,
    enabled: Option<bool>,
    /// All other members.
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Program {
    Word(String),
    Words(Vec<String>),
    /// An older form of Zed.
    Parts {
        path: String,
        args: Option<Vec<String>>,
        env: Option<BTreeMap<String, Value>>,
    },
}

impl Default for Program {
    fn default() -> Program {
        Program::Words(Vec::new())
    }
}

/// A variable that Codex passes on.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Passed {
    Local(String),
    From {
        name: String,
        source: Option<String>,
    },
}

/// A package of a `server.json`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Published {
    registry_type: String,
    identifier: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    registry_base_url: String,
    #[serde(default)]
    runtime_arguments: Vec<Value>,
    #[serde(default)]
    transport: BTreeMap<String, Value>,
    #[serde(default)]
    package_arguments: Vec<PublishedValue>,
    #[serde(default)]
    environment_variables: Vec<PublishedValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PublishedValue {
    r#type: String,
    name: String,
    value: Option<String>,
    default: Option<String>,
    is_required: bool,
    is_secret: Option<bool>,
    variables: Value,
}

pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The entries of one file. The error names the place.
pub fn read(file: &Path) -> Result<Vec<Entry>, String> {
    let shown = text::path(file);
    let ending = file.extension().unwrap_or_default();
    if ending == "yaml" || ending == "yml" {
        return Err(format!(
            "{shown}: YAML is not read: write its servers as `mcpServers` into a JSON file"
        ));
    }
    let opened = files::open(file, OFlag::empty());
    let bytes = files::checked(opened, MAX_FILE_BYTES, |facts| {
        files::trustworthy(facts.mode(), facts.uid()).err()
    });
    let bytes = bytes.map_err(|why| format!("{shown}: {why}"))?;
    let syntax = match ending == "toml" {
        true => Syntax::Toml,
        false => Syntax::Json,
    };
    let document = parse(syntax, &bytes).map_err(|why| format!("{shown}:{why}"))?;
    let found = of(&document, file);
    match found.len() {
        0..=MAX_SERVERS => Ok(found),
        many => Err(format!("{shown}: {many} servers, more than {MAX_SERVERS}")),
    }
}

/// A file as a value, or `LINE:COLUMN: ` and why it cannot be read.
pub fn parse(syntax: Syntax, bytes: &[u8]) -> Result<Value, String> {
    if bytes.trim_ascii().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    if syntax == Syntax::Toml {
        let text = text::decode(bytes)?;
        return toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let (line, column) = json::line_and_column(text, start);
            format!("{line}:{column}: {}", error.message())
        });
    }
    json::parse(bytes, Dialect::Commented)
        .map(|document| document.value)
        .map_err(|bad| format!("{}:{}: {}", bad.line, bad.column, bad.message))
}

/// The entries of what this file holds.
pub fn of(document: &Value, file: &Path) -> Vec<Entry> {
    let folder = project_of(file);
    let own = lists(document, file)
        .into_iter()
        .flat_map(Value::as_object)
        .flatten();
    let own = own.map(|(name, said)| entry(name, said, file, folder.clone()));
    let mut found: Vec<Entry> = published(document, file).into_iter().chain(own).collect();
    for (folder, it) in document["projects"].as_object().into_iter().flatten() {
        let servers = it["mcpServers"].as_object().into_iter().flatten();
        found.extend(servers.map(|(name, said)| Entry {
            is_of_project: true,
            ..entry(name, said, file, Some(PathBuf::from(folder)))
        }));
    }
    found
}

/// The list of the client whose file this is; else what any client would find in it.
fn lists<'d>(document: &'d Value, file: &Path) -> Vec<&'d Value> {
    // The newest form stands last, in what the older one had.
    let of_client = |client: &Client| {
        let forms = client.servers.iter();
        let mut found =
            forms.filter_map(|path| path.iter().try_fold(document, |at, it| at.get(*it)));
        found.next_back()
    };
    if let Some(own) = Client::of(file).and_then(of_client) {
        return vec![own];
    }
    let readable = CLIENTS.iter().filter(|it| it.syntax != Syntax::Yaml);
    let mut found: Vec<&Value> = Vec::new();
    for list in readable.filter_map(of_client) {
        if !found.iter().any(|known| std::ptr::eq(*known, list)) {
            found.push(list);
        }
    }
    found
}

/// The folder of a project's file; `None` for a user's.
pub fn project_of(file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    let mut users = CLIENTS.iter().filter_map(|it| it.user_file(&variable));
    if users.any(|user| user == file) {
        return None;
    }
    let mut names = CLIENTS.iter().flat_map(|client| client.project);
    let name = names.find(|name| file.ends_with(name))?;
    let depth = Path::new(name).components().count();
    file.ancestors().nth(depth).map(Path::to_path_buf)
}

fn entry(name: &str, said: &Value, file: &Path, folder: Option<PathBuf>) -> Entry {
    let said = Said::from_value(said);
    let own = said.as_ref().ok().and_then(|said| said.cwd.clone());
    let folder = own.or(folder);
    let rest = said.iter().flat_map(|said| said.rest.keys());
    Entry {
        name: name.to_owned(),
        file: file.to_path_buf(),
        is_of_project: false,
        unread: rest.filter(|name| !is_of_tools(name)).cloned().collect(),
        command: said.and_then(|said| said.command(folder.as_deref(), file)),
        folder,
    }
}

/// Takes a member out; one that is missing has its usual value. `wanted`: what it must be.
fn take<T: DeserializeOwned + Default>(
    members: &mut Map<String, Value>,
    name: &str,
    wanted: &str,
) -> Result<T, String> {
    let taken = members.remove(name).map(T::deserialize).transpose();
    let taken = taken.map_err(|_| format!("its `{name}` must be {wanted}"))?;
    Ok(taken.unwrap_or_default())
}

/// Whether a member is about single tools of its server. Clients name them so: `disabled_tools`,
/// `includeTools`.
fn is_of_tools(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("tools")
}

/// Whether a member keeps tools from its client: a list that takes all, or excludes none, does not.
fn restricts_tools(name: &str, value: &Value) -> bool {
    let lower = name.to_ascii_lowercase();
    let excludes = lower.starts_with("exclude") || lower.starts_with("disable");
    let harmless = if excludes { json!([]) } else { json!(["*"]) };
    is_of_tools(name) && *value != harmless
}

impl Said {
    fn from_value(said: &Value) -> Result<Said, String> {
        let mut rest = said.as_object().cloned().ok_or("it must be an object")?;
        rest.retain(|_, member| !member.is_null());
        let it = &mut rest;
        let [texts, variables] = ["a list of texts", "an object of variables"];
        Ok(Said {
            command: take(it, "command", "a text, or a list of texts")?,
            args: take(it, "args", texts)?,
            env: take(it, "env", variables)?,
            environment: take(it, "environment", variables)?,
            env_vars: take(it, "env_vars", "a list of names")?,
            kind: take(it, "type", "a text")?,
            source: take(it, "source", "a text")?,
            cwd: take(it, "cwd", "a folder")?,
            disabled: take(it, "disabled", "true or false")?,
            enabled: take(it, "enabled", "true or false")?,
            rest,
        })
    }

    /// Why nothing is taken of it: what it says beside its command.
    fn refusal(&self) -> Option<String> {
        let mut names = self.rest.iter();
        if self.disabled || self.enabled == Some(false) {
            return Some("its client has it disabled".to_owned());
        }
        if URLS.iter().any(|name| self.rest.contains_key(*name)) {
            return Some(REMOTE.to_owned());
        }
        if !["", "stdio", "local"].contains(&&*self.kind) {
            let kind = text::printable(&self.kind);
            return Some(format!("its type is `{kind}`: only `stdio` is read"));
        }
        if !["", "custom"].contains(&&*self.source) {
            let why = "its command is that of an extension, and not in this file";
            return Some(why.to_owned());
        }
        if self.rest.contains_key("envFile") {
            return Some("its variables lie in an `envFile`: write them in `env`".to_owned());
        }
        let (name, _) = names.find(|(name, value)| restricts_tools(name, value))?;
        Some(format!(
            "its `{}` restricts its tools, and an import offers all of them: take that out of the \
             entry, and then `toolhost disable` takes single tools away here",
            text::printable(name)
        ))
    }

    fn command(self, folder: Option<&Path>, file: &Path) -> Result<Command, String> {
        if let Some(why) = self.refusal() {
            return Err(why);
        }
        let (mut words, inner) = match self.command {
            Program::Word(word) => (vec![word], None),
            Program::Words(words) => (words, None),
            Program::Parts { path, args, env } => {
                ([vec![path], args.unwrap_or_default()].concat(), env)
            }
        };
        words.extend(self.args);
        let inner = inner.into_iter().flatten();
        let values = inner.chain(self.environment).chain(self.env);
        let variables = variables(values, self.env_vars, file)?;
        let words = words.into_iter().map(|word| in_place(word, folder));
        Command {
            words: words.collect::<Result<_, _>>()?,
            variables,
            has_folder: self.cwd.is_some(),
        }
        .bounded()
    }
}

fn variables(
    values: impl Iterator<Item = (String, Value)>,
    passed: Vec<Passed>,
    file: &Path,
) -> Result<BTreeMap<String, Variable>, String> {
    let mut variables = BTreeMap::new();
    let references = Client::of(file).map_or(REFERENCES, |client| client.references);
    for (name, value) in values {
        let value = value_of(value, references);
        let value = value.map_err(|why| format!("its variable {name} {why}"))?;
        variables.insert(name, value);
    }
    for passed in passed {
        let (name, source) = match passed {
            Passed::Local(name) => (name, None),
            Passed::From { name, source } => (name, source),
        };
        if source.is_some_and(|source| source != "local") {
            return Err(format!(
                "its variable {name} is one of another machine (`source`): write its value in `env`"
            ));
        }
        variables.insert(name.clone(), Variable::Host(name));
    }
    Ok(variables)
}

fn is_plain(word: &str) -> bool {
    word.len() <= MAX_WORD_BYTES && text::is_printable(word)
}

impl Command {
    fn bounded(self) -> Result<Command, String> {
        let is_named = self.words.first().is_some_and(|word| !word.is_empty());
        if !is_named {
            return Err("it has no command".to_owned());
        }
        if self.words.len().max(self.variables.len()) > MAX_WORDS {
            return Err(format!(
                "it has more than {MAX_WORDS} arguments or variables"
            ));
        }
        match self.words.iter().all(|word| is_plain(word)) {
            true => Ok(self),
            false => Err(format!(
                "a word of its command has control characters, or more than {MAX_WORD_BYTES} bytes"
            )),
        }
    }
}

/// A word with the folder of the project and the home in the places of their names. Another name
/// stays unknown.
fn in_place(mut word: String, folder: Option<&Path>) -> Result<String, String> {
    let home = settings::home(&variable);
    let known = [
        ("${workspaceFolder}", folder),
        ("${userHome}", home.as_deref()),
        ("${env:HOME}", home.as_deref()),
        ("${HOME}", home.as_deref()),
    ];
    for (name, path) in known {
        if let Some(path) = path {
            word = word.replace(name, &path.to_string_lossy());
        }
    }
    match OPENINGS.iter().any(|opening| word.contains(opening)) {
        true => Err("an argument names a variable of the client: write its value".to_owned()),
        false => Ok(word),
    }
}

/// What a value is to the client that has it. `references`: as in `Client`.
fn value_of(value: Value, references: &[&str]) -> Result<Variable, String> {
    let text = match value {
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => return Err("is not a text".to_owned()),
    };
    if text.starts_with("${input:") && text.ends_with('}') {
        return Ok(Variable::Asked);
    }
    let mut named = references.iter().filter_map(|opening| {
        let rest = text.strip_prefix(opening)?;
        let name = match *opening {
            // The client keeps the text where no variable has the name: it may be a password.
            "$" => Some(rest).filter(|name| variable(name).is_some()),
            _ => rest.strip_suffix('}'),
        };
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        name.filter(|name| !name.is_empty() && name.bytes().all(is_part))
    });
    match named.next() {
        Some(name) => Ok(Variable::Host(name.to_owned())),
        None if !references.is_empty() && OPENINGS.iter().any(|it| text.contains(it)) => {
            Err("mixes a text with variables: write the whole value".to_owned())
        }
        None => Ok(Variable::Text(text)),
    }
}

/// The server of a `server.json`: by its first package that is taken, else by its first.
fn published(document: &Value, file: &Path) -> Option<Entry> {
    // The registry's own answers hold it in `server`.
    let server = document.get("server").unwrap_or(document);
    let [packages, remotes] = ["packages", "remotes"].map(|name| server[name].as_array());
    packages.or(remotes)?;
    let packages = packages.into_iter().flatten();
    let mut commands: Vec<_> = packages.map(published_command).collect();
    let taken = commands.iter().position(Result::is_ok);
    let name = server["name"].as_str()?;
    let command = commands.drain(taken.unwrap_or(0)..).next();
    Some(Entry {
        name: name.rsplit('/').next().unwrap_or(name).to_owned(),
        file: file.to_path_buf(),
        folder: None,
        is_of_project: false,
        unread: Vec::new(),
        command: command.unwrap_or_else(|| Err(REMOTE.to_owned())),
    })
}

fn published_command(said: &Value) -> Result<Command, String> {
    let said = Published::deserialize(said).map_err(|error| error.to_string())?;
    let usual = ["", "https://registry.npmjs.org", "https://pypi.org"];
    let registry = said.registry_base_url.trim_end_matches('/');
    if !usual.contains(&registry) || !said.runtime_arguments.is_empty() {
        return Err("it names another registry, or arguments of its interpreter".to_owned());
    }
    let start = match said.registry_type.as_str() {
        "npm" => "npx",
        "pypi" => "uvx",
        kind => {
            return Err(format!(
                "a package of the kind `{kind}`: npm and pypi are taken"
            ));
        }
    };
    if said
        .transport
        .get("type")
        .is_some_and(|kind| *kind != "stdio")
    {
        return Err("it is not spoken to over stdio".to_owned());
    }
    let version = match said.version.as_str() {
        "" => "latest",
        version => version,
    };
    let mut words = vec![start.to_owned(), format!("{}@{version}", said.identifier)];
    for mut argument in said.package_arguments {
        argument.value = argument.value.or(argument.default);
        if argument.value.is_none() && argument.is_required {
            return Err(
                "it needs an argument of yours: write it as an entry of `mcpServers`".to_owned(),
            );
        }
        let value = argument.value.as_deref().unwrap_or_default();
        if !argument.variables.is_null() || value.contains('{') {
            return Err(
                "an argument has variables: write it as an entry of `mcpServers`".to_owned(),
            );
        }
        let is_named = argument.r#type == "named" && argument.value.is_some();
        words.extend(is_named.then_some(argument.name));
        words.extend(argument.value);
    }
    let mut variables = BTreeMap::new();
    for PublishedValue {
        name,
        value,
        default,
        is_required,
        is_secret,
        ..
    } in said.environment_variables
    {
        let value = match value.or(default) {
            Some(value) if is_secret == Some(false) => Variable::Setting(value),
            Some(value) => Variable::Text(value),
            None if !is_required => continue,
            None if is_secret == Some(false) => {
                return Err(format!(
                    "its setting {name} has no value: write it as an entry of `mcpServers`"
                ));
            }
            None => Variable::Asked,
        };
        variables.insert(name, value);
    }
    Command {
        words,
        variables,
        has_folder: false,
    }
    .bounded()
}
