//! `new`: makes a script and its manifest, which work, in their own folder.
//!
//! Nothing is overwritten, and which function of a script, or operation of an API, is meant is never
//! guessed.

mod draft;
mod edit;
mod ids;

use super::refusal::{Exit, Refusal};
use super::settings::{FLAG, Settings};
use super::{host, words};
use crate::base::{files, suggest, text};
use crate::manifest::{self, Language};
use crate::registry;
use crate::service::search;
use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// namespace:tool, or only tool (then the namespace is custom)
    pub name: String,
    /// python, nodejs, bun or wasm
    #[arg(long, value_name = "L", conflicts_with = "script")]
    pub language: Option<String>,
    /// An existing script: copy it, and write a manifest for the copy
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// As --script, and write into the manifest what the script says of its arguments: a function's
    /// signature, or the options of argparse or click. The script is read, and never run. Of an API's
    /// document (OpenAPI 3.0 or 3.1, .json): write the script that makes one request
    #[arg(long, value_name = "FILE", conflicts_with_all = ["language", "script", "parameters"])]
    pub from: Option<PathBuf>,
    /// Ask for each field of this tool's manifest, check the answers, and write it when all are given
    #[arg(long, conflicts_with_all = ["language", "script", "from", "entry", "parameters"])]
    pub edit: bool,
    /// The function of that script that is called with the arguments (else it reads them as JSON
    /// from stdin); or the operation of that API: its operationId, or "GET /path"
    #[arg(long, value_name = "FUNCTION", visible_alias = "operation")]
    pub entry: Option<String>,
    /// One argument of the tool: NAME, NAME:integer, … with `?` at the end if it may be left out;
    /// may be given again
    #[arg(long = "parameter", value_name = "NAME[:TYPE][?]")]
    pub parameters: Vec<String>,
}

impl Args {
    /// Whether `--from` is the document of an API.
    fn is_api(&self) -> bool {
        let from = self.from.as_ref();
        from.is_some_and(|file| file.extension() == Some("json".as_ref()))
    }
}

/// Largest script that is copied, bytes.
const MAX_SCRIPT_BYTES: u64 = 16 << 20;

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    // The first folder is the one named, or the usual one, which is made if it is missing.
    let folder = settings.scripts.first().cloned().unwrap_or_default();
    let usual = settings.root.join("user_scripts");
    if usual.is_symlink() && settings.said_by["scripts"] != FLAG {
        let words = format!(
            "{} is a link: name the folder itself (--scripts DIR)",
            text::path(&usual)
        );
        return Err(Refusal::new(Exit::Caller, words).into());
    }
    let mut out = Vec::new();
    fn refuse(error: anyhow::Error) -> Refusal {
        Refusal::new(Exit::Caller, format!("{error:#}"))
    }
    let id = id(&args).map_err(refuse)?;
    let others = ids::tools_with(settings, &id)?;
    if args.edit {
        let tool = others.first();
        let tool = tool.with_context(|| format!("no manifest that loads has the id {id}"));
        let edited = tool.and_then(|tool| edit::run(settings, tool));
        edited.map_err(refuse)?;
        return Ok(Exit::Ok.into());
    }
    ids::check_free(&id, &others).map_err(refuse)?;
    make(settings, &folder, &args, &mut out).map_err(refuse)?;
    words::show(&out);
    // The tool is made: policies that do not load are reported by its first call.
    if let Ok(now) = host::Tools::load(settings) {
        let withheld = super::list::withheld(&now.policies, &now.snapshot, &host::login());
        let has_script = args.script.is_some() || args.from.is_some();
        let hint = has_script.then(|| super::check::network_hint(&now, &id));
        let lines = withheld.into_iter().chain(hint.flatten());
        lines.for_each(|line| words::note(&line));
    }
    Ok(Exit::Ok.into())
}

fn id(args: &Args) -> anyhow::Result<String> {
    let id = if args.name.contains(':') {
        args.name.clone()
    } else {
        format!("custom:{}", args.name)
    };
    match manifest::id_fault(&id) {
        Some(fault) => bail!("{fault}"),
        None => Ok(id),
    }
}

fn make(
    settings: &Settings,
    scripts_folder: &Path,
    args: &Args,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = id(args)?;
    let name = id.split_once(':').map_or(&*id, |(_, name)| name);
    let parameters = Parameter::read(&args.parameters)?;
    let script = args.script.as_ref().or(args.from.as_ref());
    if args.entry.is_some() && script.is_none() {
        bail!("--entry names a function of a script: give that with --script or --from");
    }
    let (file, source, mut document) = match script {
        Some(script) => from_script(&id, name, script, args, &parameters)?,
        None => from_template(
            &id,
            name,
            args.language.as_deref().unwrap_or("python"),
            &parameters,
        )?,
    };
    let mut draft = draft::Draft::default();
    if let Some(from) = &args.from {
        let entry = args.entry.as_deref();
        draft = draft::add(settings, &source, args.is_api(), entry, &mut document)
            .with_context(|| text::path(from))?;
    }
    let source = draft.script.take().map_or(source, String::into_bytes);
    let [made, manifest] = write(scripts_folder, name, &file, &source, &document)?;
    writeln!(
        out,
        "Made {} and {}.",
        text::path(&made),
        text::path(&manifest)
    )?;
    let language = &document["handler"]["language"];
    match (&args.script, &args.entry) {
        (None, _) => {}
        // The exports of a module say how it is run.
        _ if language == Language::Wasm.name() => {}
        (_, Some(entry)) => writeln!(
            out,
            "entryPoint: {entry} is called with the arguments; what it returns is the result."
        )?,
        (_, None) => writeln!(
            out,
            "The script reads its arguments as JSON from stdin and prints one JSON value. To have \
             a function called instead, write \"entryPoint\": \"NAME\" into \"handler\" (`--entry \
             NAME` does)."
        )?,
    }
    if args.script.is_some() && parameters.is_empty() {
        writeln!(
            out,
            "The manifest names no parameters, so any are accepted, and NAME=VALUE arrives as \
             text: `--parameter NAME:integer` (string, number, boolean, array, object) declares \
             one."
        )?;
    }
    if document["description"] == format!("Runs {file}.") || !parameters.is_empty() {
        writeln!(
            out,
            "For a model, write into the manifest what the tool does (`description`, also of each \
             parameter)."
        )?;
    }
    let example = first_example(args, &parameters, &document);
    draft.say(&id, out)?;
    let next = words::command(&format!("call {id} {example}"));
    let audit = words::command(&format!("audit {id}"));
    writeln!(out, "Next: {next}\nWhat it may touch: {audit}")?;
    Ok(())
}

/// The words of a shell for a first try of a tool.
fn first_example(args: &Args, parameters: &[Parameter], document: &Value) -> String {
    let drafted = manifest::read(document.to_string().as_bytes()).ok();
    let drafted = drafted.filter(|_| args.from.is_some());
    if let Some(input) = drafted.and_then(|(manifest, _)| search::sample(&manifest)) {
        format!("--input {}", words::quote(&input.to_string()))
    } else if args.script.is_some() || !parameters.is_empty() {
        example(parameters)
    } else {
        "text='hello world'".to_owned()
    }
}

/// A tool that works at once: it counts the words of a text, or gives back the arguments that are
/// named.
fn from_template(
    id: &str,
    name: &str,
    word: &str,
    parameters: &[Parameter],
) -> anyhow::Result<(String, Vec<u8>, Value)> {
    let Some(language) = Language::from_word(word) else {
        let known: Vec<_> = Language::ALL.into_iter().map(Language::name).collect();
        bail!(
            "'{}' is not a language: choose one of {}",
            text::printable(word),
            known.join(", ")
        );
    };
    let (ending, source, echo) = match language {
        Language::Python => (
            "py",
            include_str!("new/hello.py"),
            "def run(**arguments):\n    return arguments\n",
        ),
        Language::Nodejs => (
            "mjs",
            include_str!("new/hello.mjs"),
            "export function run(input) {\n  return input;\n}\n",
        ),
        Language::Bun => (
            "ts",
            include_str!("new/hello.ts"),
            "export function run(input: object) {\n  return input;\n}\n",
        ),
        // A preview 1 module without a JSON library: it gives back its input.
        Language::Wasm | Language::Bash => (
            "wat",
            include_str!("new/hello.wat"),
            include_str!("new/hello.wat"),
        ),
    };
    let file = format!("{name}.{ending}");
    let is_wasm = language == Language::Wasm;
    let input = json!({ "text": "hello world" });
    let (description, output, answer) = if is_wasm || !parameters.is_empty() {
        (
            "Gives back its input.",
            json!({ "type": "object" }),
            input.clone(),
        )
    } else {
        let integer = json!({ "type": "integer" });
        let output = json!({
            "type": "object",
            "properties": { "characters": integer, "words": integer },
            "required": ["characters", "words"],
        });
        (
            "Counts the characters and words of a text.",
            output,
            json!({ "characters": 11, "words": 2 }),
        )
    };
    let mut document = document(id, name, &file, language);
    if !is_wasm {
        document["handler"]["entryPoint"] = json!("run");
    }
    document["description"] = json!(description);
    document["tags"] = json!([language.name()]);
    document["output"] = output;
    if !parameters.is_empty() {
        document["parameters"] = schema(parameters);
        return Ok((file, echo.into(), document));
    }
    document["parameters"] = json!({
        "type": "object",
        "properties": { "text": { "type": "string", "description": "The text to look at." } },
        "required": ["text"],
    });
    document["examples"] =
        json!([{ "description": "Two words.", "input": input, "expectedOutput": answer }]);
    Ok((file, source.into(), document))
}

fn from_script(
    id: &str,
    name: &str,
    script: &Path,
    args: &Args,
    parameters: &[Parameter],
) -> anyhow::Result<(String, Vec<u8>, Value)> {
    let shown = text::path(script);
    // What a link leads to may be meant for nobody else's eyes.
    let source = files::open(script, OFlag::O_NOFOLLOW);
    let source = files::checked(source, MAX_SCRIPT_BYTES, |_| None);
    let source = source.map_err(|why| match script.read_link() {
        Ok(target) => {
            let target = text::path(&target);
            anyhow!("{shown} is a link to {target}: name that file itself")
        }
        Err(_) => anyhow!("{shown}: {why}"),
    })?;
    let own = format!("{name}.py");
    let file = script.file_name().and_then(|file| file.to_str());
    let file = file.filter(|file| text::is_printable(file));
    let file = if args.is_api() { Some(&*own) } else { file };
    let file = file.with_context(|| format!("{shown} has no usable file name"))?;
    let language = Language::of_file_name(file)
        .first()
        .copied()
        .with_context(|| {
            format!(
                "{shown}: the ending must show the language: .py, .js, .mjs, .cjs, .ts, .wasm or \
            .wat (.json of an API with --from); a skill runs scripts of bash"
            )
        })?;
    let entry = args.entry.as_deref();
    if language == Language::Wasm && entry.is_some() {
        bail!("{shown} is a WASI module, whose exports say how it is run: leave --entry out");
    }
    let mut document = document(id, name, file, language);
    document["description"] = json!(format!("Runs {file}."));
    document["parameters"] = schema(parameters);
    if let Some(entry) = entry {
        document["handler"]["entryPoint"] = json!(entry);
        if returns_nothing(&String::from_utf8_lossy(&source), entry) {
            document["output"] = json!({ "type": "null" });
        }
    }
    Ok((file.to_owned(), source, document))
}

/// Whether the function is annotated as one that returns no value.
fn returns_nothing(source: &str, entry: &str) -> bool {
    ["def ", "function "]
        .iter()
        .filter_map(|word| source.split_once(&format!("{word}{entry}(")))
        .filter_map(|(_, rest)| {
            rest.lines()
                .find(|line| line.trim_end().ends_with([':', '{']))
        })
        .any(|line| {
            ["-> None:", ": void {", ": Promise<void> {"]
                .iter()
                .any(|end| line.trim_end().ends_with(end))
        })
}

/// What every manifest has, in the order in which a person reads it.
fn document(id: &str, name: &str, file: &str, language: Language) -> Value {
    json!({
        "toolId": id,
        "displayName": name,
        "description": "",
        "version": "0.1.0",
        "handler": { "type": "external-script", "scriptPath": format!("{name}/{file}"), "language": language.name() },
    })
}

/// Writes the script and the manifest. Returns their paths.
fn write(
    scripts: &Path,
    name: &str,
    file: &str,
    source: &[u8],
    document: &Value,
) -> anyhow::Result<[PathBuf; 2]> {
    // The manifest that is about to be written must load.
    let text = format!("{document:#}\n");
    if let Err(problems) = manifest::read(text.as_bytes()) {
        bail!(
            "no manifest for {name} can be written: {}",
            problems.first().map_or("", |problem| &problem.message)
        );
    }
    let folder = scripts.join(name);
    let shown = text::path(&folder);
    std::fs::create_dir_all(scripts)
        .with_context(|| format!("{} cannot be made", text::path(scripts)))?;
    let base = files::open(scripts, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW);
    let base = base.with_context(|| {
        format!(
            "{} cannot be opened (links are not followed)",
            text::path(scripts)
        )
    })?;
    match mkdirat(&base, name, Mode::from_bits_truncate(0o777)) {
        Err(Errno::EEXIST) => {
            bail!(
                "{shown} is already there, and nothing is overwritten: choose another name or move \
                it away"
            )
        }
        made => made.with_context(|| format!("{shown} cannot be made"))?,
    }
    let made = files::open_at(&base, name, OFlag::O_DIRECTORY)
        .with_context(|| format!("{shown} cannot be opened"))?;
    let manifest = format!("{name}{}", registry::ENDING);
    let written = put(&made, file, source).and_then(|()| put(&made, &manifest, text.as_bytes()));
    if let Err(error) = written {
        // Remove the files: half a tool would block its name. A folder with other files in it
        // stays.
        let _ = unlinkat(&made, file, UnlinkatFlags::NoRemoveDir);
        let _ = unlinkat(&made, manifest.as_str(), UnlinkatFlags::NoRemoveDir);
        let _ = unlinkat(&base, name, UnlinkatFlags::RemoveDir);
        return Err(error);
    }
    Ok([folder.join(file), folder.join(manifest)])
}

/// Makes a file in an open folder; a link of that name is refused.
fn put(folder: &OwnedFd, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let file = openat(folder, name, flags, Mode::from_bits_truncate(0o666));
    let mut file = std::fs::File::from(file.with_context(|| format!("{name} cannot be made"))?);
    file.write_all(bytes)
        .with_context(|| format!("{name} cannot be written"))
}

const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];

/// An argument of a script as the person names it: `text`, `n:integer`, `on:boolean?`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    name: String,
    kind: &'static str,
    required: bool,
}

impl Parameter {
    fn read(words: &[String]) -> anyhow::Result<Vec<Parameter>> {
        let mut found: Vec<Parameter> = Vec::new();
        for word in words {
            let shown = text::printable(&text::head(word, 80));
            let (rest, required) = word
                .strip_suffix('?')
                .map_or((word.as_str(), true), |rest| (rest, false));
            let (name, kind) = rest.split_once(':').unwrap_or((rest, "string"));
            let Some(kind) = TYPES.into_iter().find(|known| *known == kind) else {
                let near = suggest::hint(kind, TYPES);
                let kind = text::printable(kind);
                bail!(
                    "--parameter {shown}: '{kind}' is not a type{near}; known: {}",
                    TYPES.join(", ")
                );
            };
            if name.is_empty() || name.contains(['=', '?']) || !text::is_printable(name) {
                bail!("--parameter {shown}: write NAME, NAME:integer or NAME:integer?");
            }
            if found.iter().any(|known| known.name == name) {
                bail!("--parameter {shown}: that name is given twice");
            }
            found.push(Parameter {
                name: name.to_owned(),
                kind,
                required,
            });
        }
        Ok(found)
    }

    /// An argument for a first try, as a word of a shell.
    fn example(&self) -> String {
        let value = match self.kind {
            "integer" | "number" => "1",
            "boolean" => "true",
            "array" => "[]",
            "object" => "{}",
            _ => "text",
        };
        words::quote(&format!("{}={value}", self.name))
    }
}

/// The schema of the arguments. Without parameters it accepts any.
fn schema(parameters: &[Parameter]) -> Value {
    if parameters.is_empty() {
        return json!({ "type": "object", "properties": {}, "additionalProperties": true });
    }
    let required: Vec<&String> = parameters
        .iter()
        .filter(|p| p.required)
        .map(|p| &p.name)
        .collect();
    let properties: Map<String, Value> = parameters
        .iter()
        .map(|p: &Parameter| (p.name.clone(), json!({ "type": p.kind })))
        .collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Words of a shell for a first try: an argument for each required parameter.
fn example(parameters: &[Parameter]) -> String {
    let pairs: Vec<String> = parameters
        .iter()
        .filter(|p| p.required)
        .map(Parameter::example)
        .collect();
    if pairs.is_empty() {
        "--input '{}'".to_owned()
    } else {
        pairs.join(" ")
    }
}
