//! `toolhost mcp install`: one entry in the configuration of an MCP client, in the client's own
//! format, so that the client starts this host.
//!
//! All other text of the file stays as it is. What the edit makes of the file is read again and
//! compared before anything is written.

use super::clients::{CLIENTS, Client, Syntax};
use super::entries::{self, variable};
use super::plan::{Plan, name_of};
use super::target::Target;
use crate::base::files::{self, Folder};
use crate::base::text::{self, printable};
use crate::cli::refusal::{Exit, Refusal};
use crate::cli::settings::{self, Settings};
use crate::cli::{allow, host, words};
use crate::service::readiness::Readiness;
use clap::builder::PossibleValuesParser;
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObjectProp, CstRootNode};
use nix::fcntl::OFlag;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use toml_edit::{DocumentMut, Item, Table};

/// Largest file of a client that is edited: Claude Code keeps its history beside its servers.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// The file of a project that two clients read: one wants to know which tools it may use.
const SHARED: &str = ".mcp.json";
/// Longest name of an entry.
const MAX_NAME_BYTES: usize = 64;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The client whose configuration gets the entry
    #[arg(long, value_name = "CLIENT", value_parser = PossibleValuesParser::new(CLIENTS.map(|client| client.name)))]
    pub client: String,
    /// The client's file for this user, or for the project in the current folder
    #[arg(long, value_enum, default_value_t = Scope::User)]
    pub scope: Scope,
    /// The name of the entry
    #[arg(long, default_value = "toolhost", value_parser = entry_name)]
    pub name: String,
    /// Print the entry, and write nothing
    #[arg(long, conflicts_with = "yes")]
    pub print: bool,
    /// Take the servers out of the client's file that were imported and are ready here
    #[arg(long)]
    pub replace: bool,
    /// Write without asking
    #[arg(long)]
    pub yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scope {
    User,
    Project,
}

fn entry_name(name: &str) -> Result<String, String> {
    let is_plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if is_plain && (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "a name has 1 to {MAX_NAME_BYTES} letters, digits, - and _"
    ))
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let client = CLIENTS.iter().find(|client| client.name == args.client);
    let client = client.ok_or_else(|| refuse("no such client"))?;
    let place = Place::find(client, args.scope)?;
    let is_shared = place.path.ends_with(SHARED);
    let form = if is_shared { SHARED } else { client.name };
    let mut entry = Entry {
        client,
        name: &args.name,
        members: members(form, &command(settings)?),
        replacing: None,
    };
    if args.print || client.syntax == Syntax::Yaml {
        words::note(&format!(
            "For {}, which was not changed:",
            text::path(&place.path)
        ));
        words::say(entry.printed()?.trim_end());
        return Ok(Exit::Ok.into());
    }
    if args.replace {
        entry.replacing = Some(Replacing {
            known: host::Tools::load(settings)?,
            target: Target::new(settings).map_err(refuse)?,
        });
    }
    let edit = Edit::plan(&place, &entry)?;
    let shown = text::path(&edit.path);
    edit.staying.iter().for_each(|line| words::note(line));
    if edit.lines.is_empty() {
        let name = &args.name;
        words::note(&format!(
            "{shown}: {name} is there already: nothing to write"
        ));
        return Ok(Exit::Ok.into());
    }
    words::note(&format!("{shown}:\n{}", edit.lines.join("\n")));
    if !args.yes && !io::stdin().is_terminal() {
        words::note("Nothing was written: --yes writes it.");
        return Ok(Exit::Ok.into());
    }
    if !args.yes && !allow::is_agreed()? {
        return Err(refuse("not agreed").into());
    }
    if Edit::plan(&place, &entry)? != edit {
        return Err(refuse(format!("{shown} changed meanwhile: try again")).into());
    }
    let backup = edit
        .write()
        .map_err(|why| refuse(format!("{shown}: {why}")))?;
    let backup = backup.map_or_else(String::new, |name| {
        format!("; what it was, with all values, is kept beside it as {name}")
    });
    words::note(&format!(
        "{shown}: written{backup}. Start {} again.",
        client.name
    ));
    Ok(Exit::Ok.into())
}

fn refuse(why: impl Display) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

/// This program with the settings of this process, all paths absolute: a client starts it in a
/// folder of its own.
fn command(settings: &Settings) -> Result<Vec<String>, Refusal> {
    if settings.root_is_assumed() && settings.policies.is_none() {
        return Err(refuse(
            "the current folder has no sandbox-policies: name the root with --root DIR",
        ));
    }
    let program = std::env::current_exe().ok().filter(|path| path.is_file());
    let program = program.and_then(|path| path.into_os_string().into_string().ok());
    let mut command = vec![program.ok_or_else(|| refuse("this program's file has no name"))?];
    let given = words::settings();
    if !given.iter().any(|word| word == "--root") {
        let root = std::path::absolute(&settings.root).map_err(refuse)?;
        command.extend(["--root".to_owned(), root.to_string_lossy().into_owned()]);
    }
    command.extend(given.iter().cloned());
    command.extend(["serve", "--stdio"].map(str::to_owned));
    Ok(command)
}

/// The entry's members, in the form of a client, or of the file that two clients read.
fn members(form: &str, command: &[String]) -> Value {
    let [program, arguments @ ..] = command else {
        return json!({});
    };
    match form {
        SHARED => {
            json!({"type": "stdio", "command": program, "args": arguments, "env": {}, "tools": ["*"]})
        }
        "claude-code" | "vscode" => {
            json!({"type": "stdio", "command": program, "args": arguments, "env": {}})
        }
        "codex" => json!({"command": program, "args": arguments}),
        "copilot" => {
            json!({"type": "local", "command": program, "args": arguments, "env": {}, "tools": ["*"]})
        }
        "goose" => json!({"type": "stdio", "enabled": true, "cmd": program, "args": arguments,
                          "envs": {}, "env_keys": [], "timeout": 300}),
        "opencode" => {
            json!({"type": "local", "command": command, "environment": {}, "enabled": true})
        }
        _ => json!({"command": program, "args": arguments, "env": {}}),
    }
}

/// What a client's file gets.
struct Entry<'a> {
    client: &'a Client,
    name: &'a str,
    members: Value,
    /// Where the servers leave that this host has.
    replacing: Option<Replacing>,
}

/// What a client can call this host for instead.
struct Replacing {
    known: host::Tools,
    target: Target,
}

impl Replacing {
    /// The namespace of a server that was imported as its client starts it, and is ready here. The
    /// error says why it stays.
    fn namespace(&self, entry: &entries::Entry) -> Result<String, String> {
        if entry.is_of_project {
            return Err("it is for one project: take it out by hand".to_owned());
        }
        let command = entry.command.as_ref().map_err(Clone::clone)?;
        let name = name_of(&entry.name)?;
        let manifest = settings::regular_file(&self.target.manifest(&name), MAX_FILE_BYTES);
        let manifest = manifest.map_err(|_| "it was not imported".to_owned())?;
        let manifest = entries::parse(Syntax::Json, &manifest)?;
        let named = manifest["execution"]["env"]
            .as_object()
            .into_iter()
            .flatten();
        let named: Vec<String> = named.map(|(name, _)| name.clone()).collect();
        let plan = Plan::new(entry, command, &self.target, &named)?;
        if !plan.is_written(&self.target, &manifest) {
            let why = "it differs from what was imported, or that was changed since";
            return Err(why.to_owned());
        }
        let tools = self.known.tools().into_iter();
        let mut own = tools.filter(|tool| {
            let namespace = tool.manifest.id.split(':').next();
            namespace == Some(&name) && tool.manifest.mcp_tool().is_some()
        });
        let is_ready = own.any(|tool| {
            let decision = self.known.decide(&tool);
            matches!(Readiness::shipped(&tool, &decision), Readiness::Ready)
        });
        match is_ready {
            true => Ok(name),
            false => Err("its tools are not ready here: `toolhost list` says why".to_owned()),
        }
    }
}

impl Entry<'_> {
    /// The entry below the members that lead to it, as a person adds it by hand.
    fn printed(&self) -> Result<String, Refusal> {
        let mut whole = json!({self.name: self.members});
        for member in self.client.servers[0].iter().rev() {
            whole = json!({*member: whole});
        }
        Ok(match self.client.syntax {
            Syntax::Json => text::json(&whole, true),
            Syntax::Toml => toml::to_string(&whole).map_err(refuse)?,
            Syntax::Yaml => {
                let mut lines = vec![
                    format!("{}:", self.client.servers[0].join(".")),
                    format!("  {}:", self.name),
                    format!("    name: {}", self.name),
                ];
                // A value of JSON is one of YAML.
                let members = self.members.as_object().into_iter().flatten();
                lines.extend(members.map(|(name, value)| format!("    {name}: {value}")));
                lines.join("\n")
            }
        })
    }

    /// The members that lead to the servers in this file: the newest form that it has, or the first.
    fn path(&self, file: &Value) -> &'static [&'static str] {
        let forms = self.client.servers.iter().rev();
        let mut used = forms.filter(|form| {
            let found = form.iter().try_fold(file, |at, member| at.get(member));
            found.is_some_and(Value::is_object)
        });
        used.next().unwrap_or(&self.client.servers[0])
    }
}

/// Where a client's file lies.
struct Place {
    path: PathBuf,
    /// Links may not lead out of it.
    within: PathBuf,
}

impl Place {
    fn find(client: &Client, scope: Scope) -> Result<Place, Refusal> {
        if scope == Scope::Project {
            let within = std::env::current_dir().map_err(refuse)?;
            let files: Vec<_> = client.project_files(&within).collect();
            let known = files.iter().find(|path| path.exists());
            let Some(path) = known.or(files.first()).cloned() else {
                let name = client.name;
                return Err(refuse(format!("{name} has no file for one project")));
            };
            return Ok(Place { path, within });
        }
        let path = client.user_file(&variable);
        let path = path.ok_or_else(|| refuse("HOME does not name a folder"))?;
        let home = settings::home(&variable).filter(|home| path.starts_with(home));
        let above = path.parent().unwrap_or(&path).to_owned();
        Ok(Place {
            within: home.unwrap_or(above),
            path,
        })
    }

    /// The file itself. A link is followed only to a file below the folder of its scope: a project
    /// does not say which file of its user is edited.
    fn resolve(&self) -> Result<PathBuf, Refusal> {
        let shown = text::path(&self.path);
        for above in self.path.ancestors() {
            let Ok(real) = above.canonicalize() else {
                if above.symlink_metadata().is_ok() {
                    return Err(refuse(format!(
                        "{} is a link to nothing",
                        text::path(above)
                    )));
                }
                continue;
            };
            // What is missing between them has no links yet.
            let within = self.within.canonicalize();
            let within = within.ok().filter(|_| above.starts_with(&self.within));
            if let Some(within) = within.filter(|within| !real.starts_with(within)) {
                let within = text::path(&within);
                return Err(refuse(format!(
                    "{shown} is a link that leads out of {within}"
                )));
            }
            let rest = self.path.strip_prefix(above).unwrap_or(Path::new(""));
            return Ok(real.components().chain(rest.components()).collect());
        }
        Err(refuse(format!("{shown} has no folder")))
    }
}

/// `None`: it does not exist. Refuses a file that others could have written.
fn read(path: &Path) -> io::Result<Option<String>> {
    let opened = Folder::open(path.parent().unwrap_or(path))
        .and_then(|folder| folder.trusted(&file_name(path)?, OFlag::O_RDONLY));
    let file = match opened {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let bytes = files::whole(file, MAX_FILE_BYTES)?;
    let bytes = bytes
        .ok_or_else(|| io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")))?;
    String::from_utf8(bytes).map(Some).map_err(io::Error::other)
}

fn file_name(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| io::Error::other("its name is not UTF-8"))
}

/// One edit of a file.
#[derive(PartialEq)]
struct Edit {
    path: PathBuf,
    /// `None`: the file is new.
    before: Option<String>,
    after: String,
    /// What a person sees of it. Empty: there is nothing to write.
    lines: Vec<String>,
    /// The servers that do not leave, and why.
    staying: Vec<String>,
}

impl Edit {
    fn plan(place: &Place, entry: &Entry) -> Result<Edit, Refusal> {
        let path = place.resolve()?;
        Edit::of(&path, entry).map_err(|why| refuse(format!("{}: {why}", text::path(&path))))
    }

    fn of(path: &Path, entry: &Entry) -> Result<Edit, String> {
        let before = read(path).map_err(|why| why.to_string())?;
        let old = before.as_deref().unwrap_or_default();
        let syntax = entry.client.syntax;
        let mut file = entries::parse(syntax, old.as_bytes())?;
        let members = entry.path(&file);
        let mut lines = Vec::new();
        let mut staying = Vec::new();
        let mut leaving = Vec::new();
        if let Some(replacing) = &entry.replacing {
            for own in entries::of(&file, path) {
                let name = printable(&own.name);
                match replacing.namespace(&own) {
                    Ok(namespace) => {
                        lines.push(format!("- {name}: its tools are those of {namespace} here"));
                        leaving.push(own.name);
                    }
                    Err(_) if own.name == entry.name => {}
                    Err(why) => staying.push(format!("stays: {name}: {}", printable(&why))),
                }
            }
        }
        let servers = servers(&mut file, members)?;
        for name in &leaving {
            servers.remove(name);
        }
        let former = servers.insert(entry.name.to_owned(), entry.members.clone());
        if former.as_ref() != Some(&entry.members) {
            let former = former.iter().map(shown);
            lines.extend(former.map(|former| format!("- {}: {former}", entry.name)));
            lines.push(format!(
                "+ {}: {}",
                entry.name,
                text::json(&entry.members, false)
            ));
        }
        let after = match syntax {
            _ if lines.is_empty() => old.to_owned(),
            Syntax::Toml => toml_with(old, members, entry, &leaving)?,
            Syntax::Json | Syntax::Yaml => json_with(old, members, entry, &leaving)?,
        };
        // Whatever an editor does with an odd file, only the entry changes.
        if !lines.is_empty() && entries::parse(syntax, after.as_bytes()).ok() != Some(file) {
            let words = "the entry cannot be added without a change of something else: --print \
                         prints it";
            return Err(words.to_owned());
        }
        Ok(Edit {
            path: path.to_owned(),
            before,
            after,
            lines,
            staying,
        })
    }

    /// Writes the file whole, with the mode and owner that it has. Its former self gets another
    /// name, which is returned.
    fn write(&self) -> io::Result<Option<String>> {
        let name = file_name(&self.path)?;
        let folder = Folder::make(self.path.parent().unwrap_or(&self.path))?;
        if self.before.is_none() {
            folder.put(&name, self.after.as_bytes())?;
            return Ok(None);
        }
        let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S-%f");
        let backup = format!("{name}.before-toolhost-{now}");
        let kept = self.path.with_file_name(&backup);
        std::fs::hard_link(&self.path, &kept)?;
        let written = words::write_file(&self.path, &self.after, true);
        written.inspect_err(|_| drop(std::fs::remove_file(kept)))?;
        Ok(Some(backup))
    }
}

/// An entry that stood there, on one line: what it starts, and the names of all else.
fn shown(entry: &Value) -> String {
    let mut entry = entry.clone();
    for (name, member) in entry.as_object_mut().into_iter().flatten() {
        let names = member.as_object().filter(|inner| !inner.is_empty());
        let hidden = names.map(|inner| inner.keys().map(|name| (name.clone(), json!("…"))));
        *member = match hidden {
            Some(hidden) => hidden.collect(),
            None if ["type", "command"].contains(&name.as_str()) => continue,
            None => json!("…"),
        };
    }
    text::json(&entry, false)
}

/// The object of the servers, made where it is missing.
fn servers<'v>(
    file: &'v mut Value,
    members: &[&str],
) -> Result<&'v mut Map<String, Value>, String> {
    let mut at = file.as_object_mut();
    for member in members {
        at = at.and_then(|object| {
            let inner = object.entry(*member).or_insert_with(|| json!({}));
            inner.as_object_mut()
        });
    }
    at.ok_or_else(|| format!("`{}` is not an object", members.join(".")))
}

fn json_with(
    text: &str,
    members: &[&str],
    entry: &Entry,
    leaving: &[String],
) -> Result<String, String> {
    if text.starts_with('\u{feff}') {
        return Err("save it without a byte order mark".to_owned());
    }
    let root = CstRootNode::parse(text, &ParseOptions::default()).map_err(|why| why.to_string())?;
    let mut at = root.object_value_or_create();
    for member in members {
        at = at.and_then(|object| object.object_value_or_create(member));
    }
    let servers = at.ok_or("its servers are not an object")?;
    let value = input(&entry.members);
    let leaving = leaving.iter().filter_map(|name| servers.get(name));
    leaving.for_each(CstObjectProp::remove);
    match servers.get(entry.name) {
        Some(former) => former.set_value(value),
        None => drop(servers.append(entry.name, value)),
    }
    Ok(root.to_string())
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(is) => CstInputValue::Bool(*is),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(members) => {
            let members = members.iter();
            CstInputValue::Object(
                members
                    .map(|(name, it)| (name.clone(), input(it)))
                    .collect(),
            )
        }
    }
}

fn toml_with(
    text: &str,
    members: &[&str],
    entry: &Entry,
    leaving: &[String],
) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|_| "it is not TOML")?;
    // Line ends of Windows and a byte order mark would be lost.
    if document.to_string() != text {
        return Err("save it with the line ends of Unix and no byte order mark".to_owned());
    }
    let mut at = document.as_table_mut() as &mut dyn toml_edit::TableLike;
    for member in members {
        let mut table = Table::new();
        table.set_implicit(true);
        let inner = at.entry(member).or_insert(Item::Table(table));
        at = inner
            .as_table_like_mut()
            .ok_or("its servers are not a table")?;
    }
    for name in leaving {
        at.remove(name);
    }
    let made = toml::to_string(&entry.members).map_err(|why| why.to_string())?;
    let made: DocumentMut = made.parse().map_err(|_| "the entry is not TOML")?;
    let made = made
        .iter()
        .map(|(name, value)| (name.to_owned(), value.clone()));
    let mut made: Table = made.collect();
    if let Some(former) = at.get(entry.name).and_then(Item::as_table) {
        *made.decor_mut() = former.decor().clone();
        made.set_position(former.position());
    }
    at.insert(entry.name, Item::Table(made));
    Ok(document.to_string())
}
