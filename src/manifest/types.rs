//! The values that a manifest file becomes.

use super::client::ClientTool;
use super::command_line::CommandLine;
use super::document::Document;
use super::host::HostPattern;
use super::listed::ListedTool;
use super::pattern::Pattern;
use super::schema::Schema;
use super::selector::Selector;
use crate::base::problem::Problem;
use crate::base::text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// How a tool is run.
#[derive(Clone, Debug)]
pub enum Handler {
    /// `external-script`
    Script(ScriptReference),
    /// `mcp`: a script that speaks the Model Context Protocol on stdin and stdout.
    McpServer(McpServer),
    /// One tool of such a server. No manifest has this type: the registry derives the tool from the
    /// server and its list.
    McpTool(McpTool),
    /// `service-method`; `parameter_map` renames inputs (left) for the method (right); `language`
    /// is a fixed argument.
    ServiceMethod {
        service: String,
        method: String,
        language: Option<Language>,
        parameter_map: BTreeMap<String, String>,
    },
    /// `tool-service`: a service behind a broker does the work.
    ToolService(Box<ServiceReference>),
    /// `definition-only`: the client of a call runs the tool.
    Client(ClientTool),
    /// `alias`: another tool under this name.
    Alias(Alias),
    /// `x-…`: a type an embedding program registered an executor for. Its fields are in
    /// `Manifest::raw`.
    Extension { kind: String },
    /// `prompt`, `resource`: shown, not run.
    Document(Document),
    /// A folder with a `SKILL.md`, whose scripts calls name. No manifest has this type.
    Skill(Skill),
}

impl Handler {
    /// The script that runs. `None`: this process, a remote service, the client or another tool does
    /// the work.
    pub fn script(&self) -> Option<&ScriptReference> {
        match self {
            Handler::Script(script) => Some(script),
            Handler::McpServer(server) => Some(&server.script),
            Handler::McpTool(tool) => tool.server.handler.script(),
            _ => None,
        }
    }

    /// The language of the script, if one runs.
    pub fn language(&self) -> Option<Language> {
        self.script().map(|script| script.language)
    }
}

/// A script, and what runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReference {
    /// As written: relative to a base of scripts or to the manifest's folder.
    pub path: String,
    pub language: Language,
    /// The function that is called. `None`: the script is run as a whole.
    pub entry_point: Option<String>,
}

/// A server, as its manifest describes it.
#[derive(Clone, Debug)]
pub struct McpServer {
    /// The name in its own id, which none of its tools can have.
    pub own_name: String,
    pub script: ScriptReference,
    /// Literal texts that follow the script on its command line.
    pub args: Vec<String>,
    /// The tools of its list, by their names. `None`: no list lies beside the manifest.
    pub listed: Option<Arc<BTreeMap<String, ListedTool>>>,
}

/// One tool of a server, derived from the server's manifest and its list.
#[derive(Clone, Debug)]
pub struct McpTool {
    /// Its name at the server, and in its list.
    pub name: String,
    pub server: Arc<Manifest>,
}

/// What a folder holds beside the text of its `SKILL.md`.
#[derive(Clone, Debug)]
pub struct Skill {
    pub name: String,
    /// All that stands above the text, control characters made visible.
    pub front: Map<String, Value>,
    /// The size of each file, bytes, by its path in the folder.
    pub files: BTreeMap<String, u64>,
    /// SHA-256 of each file, hex, once somebody asked.
    pub digests: Arc<OnceLock<BTreeMap<String, String>>>,
}

impl Skill {
    /// The scripts that can run here, each with its language.
    pub fn scripts(&self) -> impl Iterator<Item = (&String, Language)> {
        let files = self.files.keys();
        files.filter_map(|path| Some((path, language_of(path)?)))
    }

    /// The language of a script, by its path. `Err`: why it cannot be run.
    pub fn script(&self, path: &str) -> Result<Language, String> {
        let shown = text::printable(&text::head(path, 200));
        if !self.files.contains_key(path) {
            return Err(format!("the skill has no file '{shown}'"));
        }
        language_of(path).ok_or_else(|| {
            format!(
                "'{shown}' is not a script that runs here: Python, Node.js, Bun, WASI and bash do"
            )
        })
    }
}

fn language_of(path: &str) -> Option<Language> {
    let ending = Path::new(path).extension()?.to_str()?;
    match ending {
        "sh" | "bash" => Some(Language::Bash),
        _ => Language::of_file_name(path).first().copied(),
    }
}

/// Another tool under the name of this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Alias {
    /// `id` or `id@range`.
    pub tool: String,
    /// Arguments that callers do not see.
    pub arguments: Map<String, Value>,
}

impl Alias {
    /// The id of the tool.
    pub fn id(&self) -> &str {
        self.tool.split('@').next().unwrap_or_default()
    }
}

/// A service behind a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    pub id: String,
    /// The request queues, one for each instance of the service.
    pub requests: Vec<String>,
    pub response: String,
    /// The parameters that its tools may set, and whether each is required.
    pub params: Vec<(String, bool)>,
    /// SHA-256 of its text, hex.
    pub digest: String,
    pub pointer: String,
}

/// The service that a tool's manifest names.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceReference {
    pub service: String,
    /// Sent with every call.
    pub config: Map<String, Value>,
    /// The service checks the arguments: the host passes them on unchecked.
    pub untyped: bool,
    /// JSON pointers to the service's id and to the object of values.
    pub pointers: (String, String),
    /// The descriptor, once the registry found it.
    pub descriptor: Option<Arc<ServiceDescriptor>>,
}

impl ServiceReference {
    /// The values that are sent: those that the service declares.
    pub fn sent(&self) -> Map<String, Value> {
        let declared = |name: &String| {
            self.descriptor
                .as_ref()
                .is_some_and(|service| service.params.iter().any(|(param, _)| param == name))
        };
        let mut sent = self.config.clone();
        sent.retain(|name, _| declared(name));
        sent
    }
}

/// `securityContext`: a request, never a grant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedAccess {
    /// `None`: not written, so the script's own folder (or `self`, if the script lies directly in a
    /// base folder).
    pub read: Option<Vec<Pattern>>,
    pub write: Vec<Pattern>,
    pub hosts: Vec<HostPattern>,
    pub capabilities: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StderrRule {
    /// Exit code and stdout decide; stderr goes to the log.
    #[default]
    Log,
    /// Any text on stderr makes the call a failure.
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskUse {
    Optional,
    Required,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    pub timeout_ms: Option<u64>,
    pub stderr: StderrRule,
    /// The arguments come as words of the script's command line, and not as JSON.
    pub command_line: Option<CommandLine>,
    /// Output that is not one JSON value becomes the answer, as text.
    pub text_output: bool,
    /// Exit statuses by which the script answers as by 0.
    pub answers: BTreeSet<i32>,
    /// The variable `TOOL_CONTEXT` tells the script of its call.
    pub context: bool,
    /// `mode: async`: where a server keeps calls, one that does not say otherwise runs in the
    /// background.
    pub asynchronous: bool,
    /// Whether an MCP client may, or must, poll for the result of a call as an MCP task instead of
    /// waiting.
    pub task: Option<TaskUse>,
    /// The script may be started before its input arrives.
    pub ready: bool,
    pub env: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub category: Option<String>,
    pub author: Option<String>,
    /// Labels, shown as not enforced.
    pub permissions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Example {
    #[serde(default)]
    pub description: String,
    pub input: Value,
    pub expected_output: Option<Value>,
}

/// A manifest with its warnings, or the errors.
pub type ManifestResult = Result<(Manifest, Vec<Problem>), Vec<Problem>>;

/// One validated manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub id: String,
    pub display_name: String,
    pub description: String,
    pub version: semver::Version,
    pub handler: Handler,
    /// Schemas as written, and compiled once at load.
    pub parameters: Option<Schema>,
    pub output: Option<Schema>,
    pub requested: RequestedAccess,
    pub execution: Execution,
    /// Only the limits that were written.
    pub limits: BTreeMap<crate::quantity::Limit, u64>,
    /// The author's claim: a second call with the same arguments changes nothing more.
    pub idempotent: bool,
    pub is_final: bool,
    /// Its output is kept from the reader of a stream.
    pub hidden: bool,
    /// Agents are offered it.
    pub is_listed: bool,
    /// The name by which models know the tool, where the author chose one.
    pub model_name: Option<String>,
    /// Models get the schema of the arguments as it is written.
    pub schema_as_written: bool,
    pub metadata: Metadata,
    /// Other tools this one needs: id → range.
    pub requires: BTreeMap<String, semver::VersionReq>,
    /// Tools that its code calls.
    pub calls: Vec<Selector>,
    /// The digest of definition and code with which alone it runs.
    pub approval: Option<String>,
    pub examples: Vec<Example>,
    pub tags: Vec<String>,
    /// The document as written, unknown fields included.
    pub raw: Value,
    /// SHA-256 of the file's bytes, hex.
    pub digest: String,
}

impl Manifest {
    /// The id, and the name that the author chose for models.
    pub fn named(&self) -> (&str, Option<&str>) {
        (&self.id, self.model_name.as_deref())
    }

    /// The tool's service, if the tool has one.
    pub fn remote(&self) -> Option<&ServiceReference> {
        match &self.handler {
            Handler::ToolService(remote) => Some(remote),
            _ => None,
        }
    }

    /// What the client is handed, if it runs the tool.
    pub fn client_tool(&self) -> Option<&ClientTool> {
        match &self.handler {
            Handler::Client(tool) => Some(tool),
            _ => None,
        }
    }

    pub fn alias(&self) -> Option<&Alias> {
        match &self.handler {
            Handler::Alias(alias) => Some(alias),
            _ => None,
        }
    }

    /// The document, if this is a prompt or a resource.
    pub fn document(&self) -> Option<&Document> {
        match &self.handler {
            Handler::Document(document) => Some(document),
            _ => None,
        }
    }

    /// What its folder holds, if this is a skill.
    pub fn skill(&self) -> Option<&Skill> {
        match &self.handler {
            Handler::Skill(skill) => Some(skill),
            _ => None,
        }
    }

    /// The server, if this is one or one of its tools.
    pub fn mcp_server(&self) -> Option<&McpServer> {
        match &self.of_process().handler {
            Handler::McpServer(server) => Some(server),
            _ => None,
        }
    }

    /// Which tool of an MCP server this is, if it is one.
    pub fn mcp_tool(&self) -> Option<&McpTool> {
        match &self.handler {
            Handler::McpTool(tool) => Some(tool),
            _ => None,
        }
    }

    /// The manifest that says what runs, and what that may request: of a server's tool, the
    /// server's.
    pub fn of_process(&self) -> &Manifest {
        self.mcp_tool().map_or(self, |tool| &tool.server)
    }

    /// The parameters that hold a file (`"format": "file"`), or a list of files (`true`).
    pub fn file_parameters(&self) -> impl Iterator<Item = (&String, bool)> {
        let parameters = self.parameters.as_ref();
        let properties = parameters.and_then(|schema| schema.raw["properties"].as_object());
        properties
            .into_iter()
            .flatten()
            .filter_map(|(name, schema)| {
                let is_list = schema["items"]["format"] == "file";
                (is_list || schema["format"] == "file").then_some((name, is_list))
            })
    }

    pub fn namespace(&self) -> &str {
        self.id.split_once(':').map_or("", |(ns, _)| ns)
    }
}

/// Where a tool lies on this machine: made by the registry, judged by policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolPaths {
    /// The manifest file, absolute. Empty for a tool with no file (builtin, in-process).
    pub manifest: PathBuf,
    /// The script base folder the script was found under, absolute and without symlinks.
    pub base: PathBuf,
    /// The script, absolute; `None` for tools without a script.
    pub script: Option<PathBuf>,
    /// The script's folder, or that of a manifest above it: relative patterns start here.
    pub folder: PathBuf,
    /// Where a link in a base folder led here: the link, and those behind it.
    pub links: Vec<PathBuf>,
}

impl ToolPaths {
    /// Whether the tool sees its script and nothing else of the script's folder: its manifest lies
    /// neither with the script or above it, nor in the folder of the same path beside the script
    /// base.
    pub fn is_guest(&self) -> bool {
        let (Some(script), Some(folder)) = (&self.script, self.manifest.parent()) else {
            return false;
        };
        !script.starts_with(folder) && !self.mirrors(folder, script)
    }

    /// Whether the path of `folder` in a base beside this one is that of the script's folder, or
    /// one above, in this base.
    fn mirrors(&self, folder: &Path, script: &Path) -> bool {
        let beside = folder
            .ancestors()
            .find(|top| top.parent() == self.base.parent());
        let same = beside
            .and_then(|top| folder.strip_prefix(top).ok())
            .filter(|same| !same.as_os_str().is_empty());
        same.is_some_and(|same| script.starts_with(self.base.join(same)))
    }
}

/// Longest toolId, bytes.
const MAX_ID: usize = 128;

/// Why this is not a toolId (`namespace:tool-name`). `__` is kept free for the names of other
/// protocols (`ns__tool`).
pub fn id_fault(id: &str) -> Option<String> {
    fn part(part: &str) -> bool {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !part.contains("__")
    }
    let good = id.len() <= MAX_ID
        && id
            .split_once(':')
            .is_some_and(|(namespace, name)| part(namespace) && part(name));
    (!good).then(|| {
        format!(
            "'{}' is not a toolId: write namespace:tool-name, for example custom:my-tool (ASCII \
             letters, digits, '.', '-', single '_'; at most {MAX_ID} characters)",
            text::printable(&text::head(id, 80))
        )
    })
}

/// `x-` and a name: a type that an embedding program registered an executor for.
pub fn extension_kind(kind: &str) -> bool {
    kind.len() <= 64
        && kind.strip_prefix("x-").is_some_and(|name| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

/// A range of versions. Bare numbers are a prefix: 1.2 is any 1.2.x, 1 is any 1.x, 1.2.3 is itself;
/// operators mean what they mean to Cargo (`^1.2`, `~1.2`, `>=1.2, <2`).
pub fn version_range(text: &str) -> Result<semver::VersionReq, semver::Error> {
    let mut range = semver::VersionReq::parse(text)?;
    let bare = text.trim_start().starts_with(|c: char| c.is_ascii_digit());
    if let ([only], true) = (&mut range.comparators[..], bare)
        && only.op == semver::Op::Caret
    {
        only.op = if only.patch.is_some() {
            semver::Op::Exact
        } else {
            semver::Op::Tilde
        };
    }
    Ok(range)
}

/// The language of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Nodejs,
    Bun,
    Wasm,
    /// Of skills alone.
    Bash,
}

impl Language {
    /// Those that a manifest can name.
    pub const ALL: [Language; 4] = [
        Language::Python,
        Language::Nodejs,
        Language::Bun,
        Language::Wasm,
    ];

    /// The name in manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Nodejs => "nodejs",
            Language::Bun => "bun",
            Language::Wasm => "wasm",
            Language::Bash => "bash",
        }
    }

    /// Parses the name in a manifest or a call; `py`, `node`, `js` and `javascript`, too.
    pub fn from_word(word: &str) -> Option<Language> {
        match word {
            "python" | "py" => Some(Language::Python),
            "nodejs" | "node" | "js" | "javascript" => Some(Language::Nodejs),
            "bun" => Some(Language::Bun),
            "wasm" => Some(Language::Wasm),
            _ => None,
        }
    }

    /// The languages of scripts with this file extension, the likeliest first; empty if unknown.
    /// Bun runs what Node runs. (A manifest may also let Node run TypeScript.)
    pub fn of_file_name(name: &str) -> &'static [Language] {
        let ending = name
            .rsplit_once('.')
            .map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("py") => &[Language::Python],
            Some("js" | "mjs" | "cjs") => &[Language::Nodejs, Language::Bun],
            Some("ts" | "mts" | "cts" | "tsx" | "jsx") => &[Language::Bun],
            Some("wasm" | "wat") => &[Language::Wasm],
            _ => &[],
        }
    }

    /// The file extensions of such scripts, for messages.
    pub fn endings(self) -> &'static str {
        match self {
            Language::Python => ".py",
            Language::Nodejs => ".js, .mjs or .cjs",
            Language::Bun => ".ts, .js and the like",
            Language::Wasm => ".wasm or .wat",
            Language::Bash => ".sh or .bash",
        }
    }
}
