//! What clients' files, and the registry's `server.json`, say of servers: every form becomes one kind
//! of entry. The files are hostile, and nothing that they name is run.

use super::clients::{CLIENTS, Syntax};
use crate::base::json::{self, Dialect};
use crate::base::text;
use crate::cli::settings;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Longest file: a client may keep its history beside its servers.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Most servers of one file.
const MAX_SERVERS: usize = 200;
/// Most arguments, and most variables, of one server.
const MAX_WORDS: usize = 64;
const MAX_WORD_BYTES: usize = 4096;
/// How a text begins that a client replaces.
const OPENINGS: [&str; 3] = ["${", "{env:", "{file:"];

/// One server as a client has it.
#[derive(Debug)]
pub struct Entry {
    pub name: String,
    pub file: PathBuf,
    /// The command and its arguments, or why the entry is not taken.
    pub words: Result<Vec<String>, String>,
    pub variables: BTreeMap<String, Variable>,
    /// Where relative paths start, if the entry or the place of its file says so.
    pub folder: Option<PathBuf>,
}

/// Where the value of a server's variable comes from.
#[derive(Clone, Debug)]
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

/// A list of servers, and the folder where relative paths of it start.
struct List<'d> {
    folder: Option<PathBuf>,
    servers: &'d Map<String, Value>,
}

pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The entries of one file. The error names the place.
pub fn read(file: &Path) -> Result<Vec<Entry>, String> {
    let shown = text::path(file);
    let bytes = settings::regular_file(file, MAX_FILE_BYTES);
    let bytes = bytes.map_err(|why| format!("{shown}: {why}"))?;
    let document = if file.extension().is_some_and(|end| end == "toml") {
        parse_toml(&bytes)
    } else {
        json::parse(&bytes, Dialect::Commented)
            .map(|document| document.value)
            .map_err(|bad| format!("{}:{}: {}", bad.line, bad.column, bad.message))
    };
    let document = document.map_err(|why| format!("{shown}:{why}"))?;
    let mut found: Vec<Entry> = published(&document, file).into_iter().collect();
    for List { folder, servers } in lists(&document, file) {
        let entries = servers
            .iter()
            .map(|(name, said)| Entry::new(name, said, file, &folder));
        found.extend(entries);
    }
    match found.len() {
        0..=MAX_SERVERS => Ok(found),
        many => Err(format!("{shown}: more than {MAX_SERVERS} servers ({many})")),
    }
}

fn parse_toml(bytes: &[u8]) -> Result<Value, String> {
    let text = text::decode(bytes)?;
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let (line, column) = json::line_and_column(text, start);
        format!("{line}:{column}: {}", error.message())
    })
}

/// The folder of a project's file; `None` for a user's.
fn project_of(file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    let mut users = CLIENTS
        .iter()
        .filter_map(|client| client.user_file(&variable));
    if users.any(|user| user == file) {
        return None;
    }
    let mut names = CLIENTS.iter().flat_map(|client| client.project);
    let name = names.find(|name| file.ends_with(name))?;
    let depth = Path::new(name).components().count();
    file.ancestors().nth(depth).map(Path::to_path_buf)
}

fn lists<'d>(document: &'d Value, file: &Path) -> Vec<List<'d>> {
    let readable = CLIENTS.iter().filter(|it| it.syntax != Syntax::Yaml);
    let mut paths: Vec<&[&str]> = readable
        .flat_map(|client| client.servers)
        .copied()
        .collect();
    // The older form of a client can hold the newer one, whose path is longer.
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    let own = paths.into_iter().find_map(|path| {
        let list = path.iter().try_fold(document, |at, name| at.get(name));
        list?.as_object()
    });
    let own = own.map(|servers| List {
        folder: project_of(file),
        servers,
    });
    let projects = document["projects"].as_object().into_iter().flatten();
    let projects = projects.filter_map(|(folder, project)| {
        Some(List {
            folder: Some(PathBuf::from(folder)),
            servers: project["mcpServers"].as_object()?,
        })
    });
    own.into_iter().chain(projects).collect()
}

impl Entry {
    fn new(name: &str, said: &Value, file: &Path, folder: &Option<PathBuf>) -> Entry {
        let own = said["cwd"].as_str().map(PathBuf::from);
        let folder = own.or_else(|| folder.clone());
        let variables = variables(said);
        let words = variables.as_ref().map_err(Clone::clone);
        let words = words.and_then(|_| words_of(said, folder.as_deref()));
        Entry {
            name: name.to_owned(),
            file: file.to_path_buf(),
            words,
            variables: variables.unwrap_or_default(),
            folder,
        }
    }
}

/// The command and its arguments.
fn words_of(said: &Value, folder: Option<&Path>) -> Result<Vec<String>, String> {
    if said["disabled"] == true || said["enabled"] == false {
        return Err("its client has it disabled".to_owned());
    }
    let is_remote = ["url", "serverUrl", "httpUrl"]
        .iter()
        .any(|member| !said[*member].is_null());
    if is_remote {
        let why = "a remote server: its code runs elsewhere, where nothing here confines it";
        return Err(why.to_owned());
    }
    // An older form of Zed has all of it in one object.
    let [command, args] = match &said["command"] {
        Value::Object(_) => [&said["command"]["path"], &said["command"]["args"]],
        command => [command, &said["args"]],
    };
    let mut words = list(command)?;
    words.extend(list(args)?);
    if words.is_empty() || words.len() > MAX_WORDS {
        return Err(format!(
            "it has no command, or more than {MAX_WORDS} arguments"
        ));
    }
    words
        .into_iter()
        .map(|word| in_place(word, folder))
        .collect()
}

fn list(value: &Value) -> Result<Vec<String>, String> {
    let words = match value {
        Value::Null => &[],
        Value::Array(words) => words.as_slice(),
        word => std::slice::from_ref(word),
    };
    let words = words.iter().map(|word| match word.as_str() {
        Some(word) if word.len() <= MAX_WORD_BYTES && text::is_printable(word) => {
            Ok(word.to_owned())
        }
        _ => Err(format!(
            "a word of its command is not a text of one line with at most {MAX_WORD_BYTES} bytes"
        )),
    });
    words.collect()
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
    if OPENINGS.iter().any(|opening| word.contains(opening)) {
        let why = "an argument names a variable or a question of the client: write its value";
        return Err(why.to_owned());
    }
    Ok(word)
}

fn variables(said: &Value) -> Result<BTreeMap<String, Variable>, String> {
    if !said["envFile"].is_null() {
        return Err("its variables lie in an `envFile`: write them in `env`".to_owned());
    }
    let listed = ["env", "environment"].map(|member| said[member].as_object());
    let mut found = BTreeMap::new();
    for (name, value) in listed.into_iter().flatten().flatten() {
        let value = value_of(value).map_err(|why| format!("its variable {name} {why}"))?;
        found.insert(name.clone(), value);
    }
    // Codex passes these on.
    for name in list(&said["env_vars"])? {
        found.insert(name.clone(), Variable::Host(name));
    }
    if found.len() > MAX_WORDS {
        return Err(format!("it has more than {MAX_WORDS} variables"));
    }
    Ok(found)
}

fn value_of(value: &Value) -> Result<Variable, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => return Err("is not a text".to_owned()),
    };
    if text.starts_with("${input:") && text.ends_with('}') {
        return Ok(Variable::Asked);
    }
    let forms = [("${env:", "}"), ("{env:", "}"), ("${", "}"), ("$", "")];
    let named = forms
        .iter()
        .find_map(|(open, close)| text.strip_prefix(open)?.strip_suffix(close));
    match named {
        Some(name) if is_variable(name) => Ok(Variable::Host(name.to_owned())),
        _ if OPENINGS.iter().any(|opening| text.contains(opening)) => {
            Err("mixes a text with variables: write the whole value".to_owned())
        }
        _ => Ok(Variable::Text(text)),
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The server of a `server.json`: its first package that can be taken, else its first.
fn published(document: &Value, file: &Path) -> Option<Entry> {
    // The registry's own answers hold it in `server`.
    let server = document.get("server").unwrap_or(document);
    let packages = server["packages"].as_array()?;
    let name = server["name"].as_str()?;
    let mut entries = packages.iter().map(|package| {
        let variables = published_variables(package);
        let words = variables.as_ref().map_err(Clone::clone);
        Entry {
            name: name.rsplit('/').next().unwrap_or(name).to_owned(),
            file: file.to_path_buf(),
            words: words.and_then(|_| published_words(package)),
            variables: variables.unwrap_or_default(),
            folder: None,
        }
    });
    let first = entries.next()?;
    let taken = std::iter::once(&first).any(|it| it.words.is_ok());
    let other = entries.find(|entry| !taken && entry.words.is_ok());
    Some(other.unwrap_or(first))
}

fn published_words(package: &Value) -> Result<Vec<String>, String> {
    let [kind, name, version] =
        ["registryType", "identifier", "version"].map(|it| package[it].as_str().unwrap_or(""));
    let start: &[&str] = match kind {
        "npm" => &["npx", "-y"],
        "pypi" => &["uvx"],
        _ => {
            return Err(format!(
                "a package of the kind `{kind}`: npm and pypi are taken"
            ));
        }
    };
    let transport = package["transport"]["type"].as_str().unwrap_or("stdio");
    if transport != "stdio" {
        return Err(format!("it speaks {transport}, and not over stdio"));
    }
    let mut words: Vec<String> = start.iter().map(|word| (*word).to_owned()).collect();
    words.push(format!("{name}@{version}"));
    for argument in package["packageArguments"].as_array().into_iter().flatten() {
        let value = ["value", "default"].map(|member| argument[member].as_str());
        let value = value.into_iter().flatten().next();
        if value.is_none() && argument["isRequired"] == true {
            let why = "it needs an argument of yours: write it as an entry of `mcpServers`";
            return Err(why.to_owned());
        }
        let is_named = argument["type"] == "named";
        let option = argument["name"].as_str().filter(|_| is_named);
        words.extend(option.filter(|_| value.is_some()).map(str::to_owned));
        words.extend(value.map(str::to_owned));
    }
    list(&words.into())
}

fn published_variables(package: &Value) -> Result<BTreeMap<String, Variable>, String> {
    let mut found = BTreeMap::new();
    let listed = package["environmentVariables"].as_array();
    for said in listed.into_iter().flatten().take(MAX_WORDS) {
        let name = said["name"].as_str().unwrap_or_default();
        let value = ["value", "default"].map(|member| said[member].as_str());
        let value = match value.into_iter().flatten().next() {
            Some(value) if said["isSecret"] == false => Variable::Setting(value.to_owned()),
            Some(value) => Variable::Text(value.to_owned()),
            None if said["isRequired"] == true => Variable::Asked,
            None => continue,
        };
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}
