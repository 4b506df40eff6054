//! What clients' files, and the registry's `server.json`, say of servers: every form becomes one kind
//! of entry. The files are hostile, and nothing that they name is run.

use super::clients::{CLIENTS, Client, REFERENCES, Syntax};
use crate::base::files;
use crate::base::json::{self, Dialect};
use crate::base::text;
use crate::cli::settings;
use nix::fcntl::OFlag;
use serde::Deserialize;
use serde_json::{Map, Value};
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

const REMOTE: &str = "a remote server: its code runs elsewhere, where nothing here confines it";

/// One server as a client has it.
pub struct Entry {
    pub name: String,
    pub file: PathBuf,
    /// Where relative paths start, if the entry or the place of its file says so.
    pub folder: Option<PathBuf>,
    /// A file of the user has it for one project.
    pub is_of_project: bool,
    /// The error says why the entry is not taken.
    pub command: Result<Command, String>,
}

impl Entry {
    /// Whether two clients have the same server.
    pub fn is_same(&self, other: &Entry) -> bool {
        self.name == other.name && self.command == other.command
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
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Said {
    command: Program,
    args: Vec<String>,
    #[serde(alias = "environment")]
    env: BTreeMap<String, Value>,
    /// Codex passes these on.
    #[serde(rename = "env_vars")]
    env_vars: Vec<Value>,
    env_file: Value,
    #[serde(alias = "serverUrl", alias = "httpUrl")]
    url: Value,
    cwd: Option<PathBuf>,
    disabled: bool,
    enabled: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
#[serde(expecting = "its `command` must be a text, or a list of texts")]
enum Program {
    Word(String),
    Words(Vec<String>),
    /// An older form of Zed.
    Parts {
        path: String,
        args: Vec<String>,
    },
}

impl Default for Program {
    fn default() -> Program {
        Program::Words(Vec::new())
    }
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
    #[serde(alias = "default")]
    value: Option<String>,
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
    let opened = files::open(file, OFlag::empty());
    let bytes = files::checked(opened, MAX_FILE_BYTES, |facts| {
        files::trustworthy(facts.mode(), facts.uid()).err()
    });
    let bytes = bytes.map_err(|why| format!("{shown}: {why}"))?;
    let syntax = match file.extension().is_some_and(|end| end == "toml") {
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
    let said = Said::deserialize(said).map_err(|error| error.to_string());
    let own = said.as_ref().ok().and_then(|said| said.cwd.clone());
    let folder = own.or(folder);
    Entry {
        name: name.to_owned(),
        file: file.to_path_buf(),
        is_of_project: false,
        command: said.and_then(|said| said.command(folder.as_deref(), file)),
        folder,
    }
}

impl Said {
    fn command(self, folder: Option<&Path>, file: &Path) -> Result<Command, String> {
        if self.disabled || self.enabled == Some(false) {
            return Err("its client has it disabled".to_owned());
        }
        if !self.url.is_null() {
            return Err(REMOTE.to_owned());
        }
        if !self.env_file.is_null() {
            return Err("its variables lie in an `envFile`: write them in `env`".to_owned());
        }
        let mut words = match self.command {
            Program::Word(word) => vec![word],
            Program::Words(words) => words,
            Program::Parts { path, args } => [vec![path], args].concat(),
        };
        words.extend(self.args);
        let words = words.into_iter().map(|word| in_place(word, folder));
        let mut variables = BTreeMap::new();
        let references = Client::of(file).map_or(REFERENCES, |client| client.references);
        for (name, value) in self.env {
            let value = value_of(value, references);
            let value = value.map_err(|why| format!("its variable {name} {why}"))?;
            variables.insert(name, value);
        }
        for passed in self.env_vars {
            let name = passed.as_str().or(passed["name"].as_str());
            let name = name.ok_or("its `env_vars` are not names")?.to_owned();
            variables.insert(name.clone(), Variable::Host(name));
        }
        let words = words.collect::<Result<_, _>>()?;
        Command {
            words,
            variables,
            has_folder: self.cwd.is_some(),
        }
        .bounded()
    }
}

fn is_plain(word: &str) -> bool {
    word.len() <= MAX_WORD_BYTES && text::is_printable(word)
}

impl Command {
    fn bounded(self) -> Result<Command, String> {
        let is_named = self.words.first().is_some_and(|word| !word.is_empty());
        if !is_named || self.words.len().max(self.variables.len()) > MAX_WORDS {
            return Err(format!(
                "it has no command, or more than {MAX_WORDS} arguments or variables"
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
    for argument in said.package_arguments {
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
        is_required,
        is_secret,
        ..
    } in said.environment_variables
    {
        let value = match value {
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
