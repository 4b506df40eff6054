//! `new`: a script and its manifest that work at once.
//!
//! For: the command line. In: a name, a language or a script with what is called in it. Out: two files in a folder of
//! their own, and the next command to type. Never: overwrites, writes outside the scripts folder, or guesses from the
//! text of a script which function is meant.

mod parameter;

use super::refusal::{Exit, Refusal};
use super::settings::{Origin, Settings};
use super::{host, words};
use crate::manifest::{self, Language};
use crate::{policy, registry};
use anyhow::{Context, bail};
use parameter::Parameter;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// namespace:tool, or only tool (then the namespace is custom)
    pub name: String,
    /// python, nodejs, bun or wasm
    #[arg(long, value_name = "L", conflicts_with = "script")]
    pub language: Option<String>,
    /// An existing script: a copy is taken and a manifest written for it
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// The function of that script that is called with the arguments (else it reads them as JSON from stdin)
    #[arg(long, value_name = "FUNCTION", requires = "script")]
    pub entry: Option<String>,
    /// One argument of the script: NAME, NAME:integer, … with `?` at the end if it may be left out; may be given again
    #[arg(long = "parameter", value_name = "NAME[:TYPE][?]", requires = "script")]
    pub parameters: Vec<String>,
}

/// Largest script that is copied, bytes.
const MAX_SCRIPT_BYTES: u64 = 16 << 20;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub id: String,
    pub manifest: PathBuf,
    pub script: PathBuf,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    host::say_root(settings);
    // The first folder is the one named, or the usual one, which is made if it is missing.
    let folder = settings.scripts.first().cloned().unwrap_or_default();
    let mut out = Vec::new();
    let refuse = |error: anyhow::Error| Refusal::new(Exit::Caller, format!("{error:#}"));
    unclaimed(settings, &id(&args).map_err(refuse)?)?;
    make(&folder, &args, &again(settings), &mut out).map_err(refuse)?;
    words::show(&out);
    Ok(Exit::Ok.into())
}

fn id(args: &Args) -> anyhow::Result<String> {
    let id = if args.name.contains(':') { args.name.clone() } else { format!("custom:{}", args.name) };
    match manifest::id_fault(&id) {
        Some(fault) => bail!("{fault}"),
        None => Ok(id),
    }
}

/// A second file with the same id would disable both.
fn unclaimed(settings: &Settings, id: &str) -> anyhow::Result<()> {
    let files = registry::DirectToolLoader::new(settings.tools.clone(), settings.scripts.clone());
    let found =
        registry::Source::discover(&files, &policy::Written::default()).map_err(|why| Refusal::new(Exit::Host, why))?;
    match found.tools.iter().find(|tool| tool.manifest.id.eq_ignore_ascii_case(id)) {
        None => Ok(()),
        Some(tool) => {
            let place = manifest::text::printable(&tool.site.manifest.to_string_lossy());
            let message = format!("{place} has the id {} already: choose another name", tool.manifest.id);
            Err(Refusal::new(Exit::Caller, message).into())
        }
    }
}

/// The words before the verb that lead to the same folders from wherever the person is.
fn again(settings: &Settings) -> String {
    let mut words = "toolhost".to_owned();
    let mut add = |flag: &str, path: &Path| words.push_str(&format!(" {flag} {}", quoted(&path.to_string_lossy())));
    if settings.origins.get("root") == Some(&Origin::Flag) {
        add("--root", &settings.root);
    }
    for (name, flag, paths) in [("tools", "--tools", &settings.tools), ("scripts", "--scripts", &settings.scripts)] {
        if settings.origins.get(name) == Some(&Origin::Flag) {
            paths.iter().for_each(|path| add(flag, path));
        }
    }
    if settings.origins.get("policies") == Some(&Origin::Flag) {
        settings.policies.iter().for_each(|path| add("--policies", path));
    }
    words
}

/// A word of a shell command.
fn quoted(word: &str) -> String {
    let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+:@%=".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

pub fn make(scripts_folder: &Path, args: &Args, again: &str, out: &mut dyn Write) -> anyhow::Result<Made> {
    let id = id(args)?;
    let (namespace, name) = id.split_once(':').unwrap_or(("custom", &id));
    if namespace.eq_ignore_ascii_case(crate::registry::CORE) {
        bail!("the namespace 'core' is compiled into toolhost: choose another, for example custom:{name}");
    }
    let parameters = Parameter::read(&args.parameters)?;
    let made = match &args.script {
        Some(script) => from_script(scripts_folder, &id, name, script, args.entry.as_deref(), &parameters)?,
        None => from_template(scripts_folder, &id, name, args.language.as_deref().unwrap_or("python"))?,
    };
    let shown = |path: &Path| manifest::text::printable(&path.to_string_lossy());
    writeln!(out, "Made {} and {}.", shown(&made.script), shown(&made.manifest))?;
    let example = match &args.script {
        Some(_) => parameter::example(&parameters),
        None => "text='hello world'".to_owned(),
    };
    // A module says by its shape how it is run.
    let module = made.script.extension().is_some_and(|ending| ending == "wasm" || ending == "wat");
    if args.script.is_some() && !module {
        writeln!(out, "{}", how_it_is_run(args.entry.as_deref()))?;
    }
    if args.script.is_some() && parameters.is_empty() {
        let untyped = "No parameters are written into the manifest, so any are taken, and NAME=VALUE arrives as text";
        writeln!(
            out,
            "{untyped}: `--parameter NAME:integer` (string, number, boolean, array, object) says what one is."
        )?;
    }
    let again = manifest::text::printable(again);
    writeln!(out, "Next: {again} call {id} {example}")?;
    writeln!(out, "What it may touch: {again} audit {id}")?;
    Ok(made)
}

/// Which way of running was chosen, and how to have the other one.
fn how_it_is_run(entry: Option<&str>) -> String {
    let stdin = "the script reads its arguments as JSON from stdin and prints one JSON value";
    match entry {
        Some(entry) => format!(
            "entryPoint: {entry} is called with the arguments, and what it returns is the result. Without the line \"entryPoint\" {stdin}."
        ),
        None => format!(
            "No entryPoint: {stdin}. To have a function called instead, write \"entryPoint\": \"NAME\" into \"handler\" (`--entry NAME` does)."
        ),
    }
}

fn from_template(scripts_folder: &Path, id: &str, name: &str, word: &str) -> anyhow::Result<Made> {
    let Some(language) = Language::from_word(word) else {
        let known: Vec<_> = Language::ALL.into_iter().map(Language::name).collect();
        bail!("'{}' is not a language: choose one of {}", manifest::text::printable(word), known.join(", "));
    };
    let (ending, source) = match language {
        Language::Python => ("py", PYTHON),
        Language::Nodejs => ("mjs", JAVASCRIPT),
        Language::Bun => ("ts", TYPESCRIPT),
        Language::Wasm => ("wat", WAT),
    };
    let file = format!("{name}.{ending}");
    let document = match language {
        // A preview 1 module without a JSON library: it gives back what it got.
        Language::Wasm => {
            template(id, name, &file, language, "Gives back its input.", &json!({ "text": "hello world" }))
        }
        _ => template(
            id,
            name,
            &file,
            language,
            "Counts the characters and words of a text.",
            &json!({ "characters": 11, "words": 2 }),
        ),
    };
    write(scripts_folder, id, name, &file, source.as_bytes(), &document)
}

fn from_script(
    scripts_folder: &Path,
    id: &str,
    name: &str,
    script: &Path,
    entry: Option<&str>,
    parameters: &[Parameter],
) -> anyhow::Result<Made> {
    let shown = manifest::text::printable(&script.to_string_lossy());
    let file = script
        .file_name()
        .and_then(|file| file.to_str())
        .with_context(|| format!("{shown} has no usable file name"))?;
    let language = Language::of_file_name(file).first().copied().with_context(|| {
        format!(
            "{shown}: its language must show in its name; rename it to end in .py, .js, .mjs, .cjs, .ts, .wasm or .wat"
        )
    })?;
    let metadata = std::fs::metadata(script).with_context(|| format!("{shown} cannot be read"))?;
    if !metadata.is_file() || metadata.len() > MAX_SCRIPT_BYTES {
        bail!("{shown} is not a regular file of at most {MAX_SCRIPT_BYTES} bytes");
    }
    let source = std::fs::read(script).with_context(|| format!("{shown} cannot be read"))?;
    if language == Language::Wasm && entry.is_some() {
        bail!("{shown} is a WASI module, which says by its own shape how it is run: leave --entry out");
    }
    let mut document = json!({
        "toolId": id,
        "displayName": name,
        "description": format!("Runs {file}. Say here, for a model, what it does and what goes in and out."),
        "version": "0.1.0",
        "handler": { "type": "external-script", "scriptPath": format!("{name}/{file}"), "language": language.name() },
        "parameters": parameter::schema(parameters),
    });
    if let Some(entry) = entry {
        document["handler"]["entryPoint"] = json!(entry);
    }
    write(scripts_folder, id, name, file, &source, &document)
}

fn template(id: &str, name: &str, file: &str, language: Language, description: &str, output: &Value) -> Value {
    let mut members: serde_json::Map<String, Value> = serde_json::Map::new();
    for (key, value) in output.as_object().into_iter().flatten() {
        members.insert(key.clone(), json!({ "type": if value.is_string() { "string" } else { "integer" } }));
    }
    let mut handler =
        json!({ "type": "external-script", "scriptPath": format!("{name}/{file}"), "language": language.name() });
    if language != Language::Wasm {
        handler["entryPoint"] = json!("run");
    }
    json!({
        "toolId": id,
        "displayName": name,
        "description": description,
        "version": "0.1.0",
        "handler": handler,
        "parameters": {
            "type": "object",
            "properties": { "text": { "type": "string", "description": "The text to look at." } },
            "required": ["text"]
        },
        "output": { "type": "object", "properties": members, "required": output.as_object().map(|m| m.keys().collect::<Vec<_>>()) },
        "examples": [{ "description": "Two words.", "input": { "text": "hello world" }, "expectedOutput": output }],
        "tags": [language.name()]
    })
}

fn write(
    scripts_folder: &Path,
    id: &str,
    name: &str,
    file: &str,
    source: &[u8],
    document: &Value,
) -> anyhow::Result<Made> {
    // The manifest that is about to be written must load.
    let text = format!("{document:#}\n");
    if let Err(problems) = manifest::read(text.as_bytes()) {
        bail!("no manifest for {id} can be written: {}", problems.first().map_or("", |problem| &problem.message));
    }
    let folder = scripts_folder.join(name);
    let shown = manifest::text::printable(&folder.to_string_lossy());
    std::fs::create_dir_all(scripts_folder)
        .with_context(|| format!("{} cannot be made", manifest::text::path(scripts_folder)))?;
    match std::fs::create_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown} is already there, and nothing is overwritten: choose another name or move it away")
        }
        made => made.with_context(|| format!("{shown} cannot be made"))?,
    }
    let script = folder.join(file);
    let manifest = folder.join(format!("{name}{}", crate::registry::ENDING));
    let written = put(&script, source).and_then(|()| put(&manifest, text.as_bytes()));
    if let Err(error) = written {
        // Half a tool would keep its name taken. A folder with other files in it stays.
        let _ = std::fs::remove_file(&script);
        let _ = std::fs::remove_file(&manifest);
        let _ = std::fs::remove_dir(&folder);
        return Err(error);
    }
    Ok(Made { id: id.to_owned(), manifest, script })
}

fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file =
        std::fs::File::create_new(path).with_context(|| format!("{} cannot be made", manifest::text::path(path)))?;
    file.write_all(bytes).with_context(|| format!("{} cannot be written", manifest::text::path(path)))
}

const PYTHON: &str = r#""""Counts the characters and words of a text.

toolhost calls run() with the arguments; what it returns is the result, what it prints goes to the log.
"""


def run(text):
    return {"characters": len(text), "words": len(text.split())}
"#;

const JAVASCRIPT: &str = r#"// Counts the characters and words of a text.
// toolhost calls run() with the arguments as one object; what it returns is the result,
// what it prints goes to the log.

export function run({ text }) {
  return { characters: [...text].length, words: text.split(/\s+/).filter(Boolean).length };
}
"#;

const TYPESCRIPT: &str = r#"// Counts the characters and words of a text.
// toolhost calls run() with the arguments as one object; what it returns is the result,
// what it prints goes to the log.

export function run({ text }: { text: string }) {
  return { characters: [...text].length, words: text.split(/\s+/).filter(Boolean).length };
}
"#;

/// Reads all of stdin into memory, then writes it to stdout.
const WAT: &str = r#";; Gives back its input: JSON on stdin, JSON on stdout (WASI preview 1).
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  ;; 0: address and length for the call, 8: how much it did, 1024 and up: the text
  (func (export "_start") (local $end i32) (local $at i32)
    (local.set $end (i32.const 1024))
    (block $read_all
      (loop $more
        ;; keep room for 32 KiB beyond the end
        (if (i32.gt_u (i32.add (local.get $end) (i32.const 32768)) (i32.mul (memory.size) (i32.const 65536)))
          (then (br_if $read_all (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))))
        (i32.store (i32.const 0) (local.get $end))
        (i32.store (i32.const 4) (i32.const 32768))
        (br_if $read_all (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (br_if $read_all (i32.eqz (i32.load (i32.const 8))))
        (local.set $end (i32.add (local.get $end) (i32.load (i32.const 8))))
        (br $more)))
    (local.set $at (i32.const 1024))
    (block $written_all
      (loop $more
        (br_if $written_all (i32.ge_u (local.get $at) (local.get $end)))
        (i32.store (i32.const 0) (local.get $at))
        (i32.store (i32.const 4) (i32.sub (local.get $end) (local.get $at)))
        (br_if $written_all (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (local.set $at (i32.add (local.get $at) (i32.load (i32.const 8))))
        (br $more)))))
"#;
