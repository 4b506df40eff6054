//! How a client starts a server, read and never run: which package or which script that is.

use super::entries::{Entry, variable};
use crate::base::json::{self, Dialect};
use crate::base::text::printable;
use crate::cli::settings;
use crate::manifest::Language;
use crate::policy::packages::Ecosystem;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest file that is looked at to find out what a program is.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Words in the name of an option whose value is secret.
const SECRET_WORDS: [&str; 9] = [
    "auth",
    "authorization",
    "credential",
    "credentials",
    "header",
    "key",
    "password",
    "secret",
    "token",
];

#[derive(Debug)]
pub struct Launch {
    pub program: Program,
    pub arguments: Vec<String>,
}

#[derive(Debug)]
pub enum Program {
    Package(Package),
    Script { file: PathBuf, language: Language },
}

/// A package of an index that has a server, and how that starts.
#[derive(Debug)]
pub struct Package {
    pub ecosystem: Ecosystem,
    /// The package itself, then what is installed beside it.
    pub required: Vec<Required>,
    pub start: Start,
}

#[derive(Debug)]
pub struct Required {
    /// With extras, where it has some: `name[extra]`.
    pub name: String,
    /// As the index writes versions: `2026.7.4`, `^1`, `==1.2`. Empty: any.
    pub versions: String,
}

impl Required {
    /// As a package.json has it.
    pub fn range(&self) -> &str {
        match self.versions.as_str() {
            "" => "*",
            versions => versions,
        }
    }
}

#[derive(Debug)]
pub enum Start {
    /// The program with the name of the package, or its only one.
    Usual,
    Program(String),
    Module(String),
}

impl Launch {
    pub fn package(&self) -> Option<&Package> {
        match &self.program {
            Program::Package(package) => Some(package),
            Program::Script { .. } => None,
        }
    }

    pub fn language(&self) -> Language {
        match (&self.program, self.ecosystem()) {
            (Program::Script { language, .. }, _) => *language,
            (_, Ecosystem::Node) => Language::Nodejs,
            (_, Ecosystem::Python) => Language::Python,
        }
    }

    pub fn ecosystem(&self) -> Ecosystem {
        match &self.program {
            Program::Package(package) => package.ecosystem,
            Program::Script { language, .. } => {
                Ecosystem::for_language(*language).unwrap_or(Ecosystem::Node)
            }
        }
    }
}

impl Package {
    /// Without extras.
    pub fn name(&self) -> &str {
        let name = self.required.first().map_or("", |it| it.name.as_str());
        name.split('[').next().unwrap_or_default()
    }

    pub fn key(&self) -> String {
        package_key(self.ecosystem, self.name())
    }
}

/// A package as a template names it.
pub fn package_key(ecosystem: Ecosystem, name: &str) -> String {
    match ecosystem {
        Ecosystem::Node => format!("npm:{name}"),
        // PyPI compares names so.
        Ecosystem::Python => format!(
            "pypi:{}",
            name.to_ascii_lowercase().replace(['_', '.'], "-")
        ),
    }
}

/// What an entry starts. The error says why it is not taken.
pub fn read(entry: &Entry) -> Result<Launch, String> {
    let words = entry.words.as_ref().map_err(Clone::clone)?;
    let (command, words) = words.split_first().ok_or("it has no command")?;
    let name = command.rsplit('/').next().unwrap_or(command);
    let launch = match name {
        "npx" | "bunx" => npx(words),
        "uvx" => uvx(words),
        "uv" if words.starts_with(&["tool".to_owned(), "run".to_owned()]) => uvx(&words[2..]),
        "docker" | "podman" => {
            Err("a container: toolhost confines processes, not images".to_owned())
        }
        "node" | "bun" => script(words, entry),
        _ if is_python(name) => python(command, words, entry),
        _ => plain(command, words, entry),
    }?;
    match launch.arguments.iter().find(|word| is_secret(word)) {
        Some(_) => Err(
            "an argument looks like a secret, and arguments are part of the manifest: \
                        give it to the server as a variable"
                .to_owned(),
        ),
        None => Ok(launch),
    }
}

/// Whether an argument is, or is followed by, a secret: by the name of an option, or a password in
/// an address.
fn is_secret(word: &str) -> bool {
    let option = word.split('=').next().unwrap_or_default();
    let mut parts = option.split(|c: char| !c.is_alphanumeric());
    let is_named = option.starts_with('-')
        && parts.any(|part| SECRET_WORDS.contains(&part.to_ascii_lowercase().as_str()));
    let address = word.split_once("://").map(|(_, rest)| rest);
    is_named || address.is_some_and(|rest| rest.contains('@'))
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python")
        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

fn unknown(option: &str) -> String {
    format!("the option {} is not read here", printable(option))
}

fn npx(words: &[String]) -> Result<Launch, String> {
    let mut named = Vec::new();
    let mut words = words.iter();
    let command = loop {
        let word = words.next().ok_or("no package is named")?;
        match word.as_str() {
            "-y" | "--yes" | "-q" | "--quiet" | "--" => {}
            "-p" | "--package" => named.push(words.next().ok_or("no package is named")?.as_str()),
            option if option.starts_with("--package=") => named.push(&option[10..]),
            option if option.starts_with('-') => return Err(unknown(option)),
            command => break command,
        }
    };
    let start = match named.is_empty() {
        true => Start::Usual,
        false => Start::Program(command.to_owned()),
    };
    if named.is_empty() {
        named.push(command);
    }
    let required: Result<Vec<Required>, String> = named.into_iter().map(node_package).collect();
    Ok(Launch {
        program: Program::Package(Package {
            ecosystem: Ecosystem::Node,
            required: required?,
            start,
        }),
        arguments: words.cloned().collect(),
    })
}

/// `@scope/name@1.2`
fn node_package(word: &str) -> Result<Required, String> {
    let at = word.rfind('@').filter(|at| *at > 0).unwrap_or(word.len());
    let (name, version) = word.split_at(at);
    let bare = name.strip_prefix('@').map_or(Some(name), |scoped| {
        let (scope, name) = scoped.split_once('/')?;
        is_name(scope).then_some(name)
    });
    if !bare.is_some_and(is_name) {
        return Err(not_a_package(word));
    }
    Ok(Required {
        name: name.to_owned(),
        versions: versions(version.trim_start_matches('@'))?,
    })
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() < 128
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn not_a_package(word: &str) -> String {
    format!(
        "`{}` is not the name of a package of an index",
        printable(word)
    )
}

fn versions(text: &str) -> Result<String, String> {
    let is_plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-+<>=~^!,*| ".contains(&b));
    match text {
        "" | "latest" => Ok(String::new()),
        _ if is_plain && !text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Ok(text.to_owned())
        }
        _ => Err(format!("`{}` is not a version: write one", printable(text))),
    }
}

fn uvx(words: &[String]) -> Result<Launch, String> {
    let mut from = None;
    let mut beside = Vec::new();
    let mut words = words.iter();
    let command = loop {
        let word = words.next().ok_or("no package is named")?;
        match word.as_str() {
            "-q" | "--quiet" | "--refresh" | "--isolated" => {}
            "--from" => from = words.next(),
            "--with" => beside.push(python_package(words.next().ok_or("no package is named")?)?),
            // Which interpreter runs is a matter of this host.
            "-p" | "--python" => _ = words.next(),
            option if option.starts_with('-') => return Err(unknown(option)),
            command => break command,
        }
    };
    let start = match from {
        None => Start::Usual,
        Some(_) if !is_name(command) => return Err(not_a_package(command)),
        Some(_) => Start::Program(command.to_owned()),
    };
    let mut required = vec![python_package(from.map_or(command, String::as_str))?];
    required.extend(beside);
    Ok(Launch {
        program: Program::Package(Package {
            ecosystem: Ecosystem::Python,
            required,
            start,
        }),
        arguments: words.cloned().collect(),
    })
}

/// `name@1.2`, `name[extra]==1.2`, `name>=1`
fn python_package(word: &str) -> Result<Required, String> {
    let at = word
        .find(['@', '=', '<', '>', '!', '~'])
        .unwrap_or(word.len());
    let (name, rest) = word.split_at(at);
    let name = name.trim();
    let (bare, extras) = name.split_once('[').unwrap_or((name, "]"));
    let mut extras = extras.strip_suffix(']').unwrap_or("/").split(',');
    if !is_name(bare) || !extras.all(|extra| extra.is_empty() || is_name(extra)) {
        return Err(not_a_package(word));
    }
    let versions = match rest.strip_prefix('@').map(versions).transpose()? {
        Some(exact) if exact.is_empty() => exact,
        Some(exact) => format!("=={exact}"),
        None => versions(rest)?,
    };
    Ok(Required {
        name: name.to_owned(),
        versions,
    })
}

/// The path of a word that names a file, without links.
fn file_of(word: &str, entry: &Entry) -> Result<PathBuf, String> {
    let path = match (Path::new(word).is_absolute(), &entry.folder) {
        (true, _) => PathBuf::from(word),
        (false, Some(folder)) => folder.join(word),
        (false, None) => {
            return Err(format!(
                "`{}` is relative, and its client says to which folder nowhere: write the whole path",
                printable(word)
            ));
        }
    };
    let real = path.canonicalize();
    real.map_err(|why| format!("{}: {why}", printable(&path.to_string_lossy())))
}

fn script(words: &[String], entry: &Entry) -> Result<Launch, String> {
    let (file, arguments) = words.split_first().ok_or("no script is named")?;
    if file.starts_with('-') {
        return Err(unknown(file));
    }
    let file = file_of(file, entry)?;
    let program = match node_module(&file) {
        Some(package) => Program::Package(package),
        None => of_script(file)?,
    };
    Ok(Launch {
        program,
        arguments: arguments.to_vec(),
    })
}

fn of_script(file: PathBuf) -> Result<Program, String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    match Language::of_file_name(&name).first() {
        Some(language) if *language != Language::Wasm => Ok(Program::Script {
            language: *language,
            file,
        }),
        _ => Err(format!(
            "the ending of {} does not show its language",
            printable(&name)
        )),
    }
}

fn python(command: &str, words: &[String], entry: &Entry) -> Result<Launch, String> {
    let words = match words.first() {
        Some(option) if option == "-u" => &words[1..],
        _ => words,
    };
    let (Some("-m"), Some(module)) = (words.first().map(String::as_str), words.get(1)) else {
        return script(words, entry);
    };
    let path = module.replace('.', "/");
    let has = [format!("{path}/__init__.py,"), format!("{path}.py,")];
    let package = distribution(Path::new(command), "RECORD", &has)?;
    let package = package.ok_or_else(|| {
        format!(
            "no virtual environment of its interpreter says which package has the module {}: write \
             `uvx --from PACKAGE PROGRAM`",
            printable(module)
        )
    })?;
    Ok(Launch {
        program: Program::Package(Package {
            start: Start::Module(module.clone()),
            ..package
        }),
        arguments: words[2..].to_vec(),
    })
}

/// The package of an interpreter's environment of which a file has a line that begins so.
fn distribution(python: &Path, file: &str, begins: &[String]) -> Result<Option<Package>, String> {
    let Some(lib) = python.ancestors().nth(2).map(|folder| folder.join("lib")) else {
        return Ok(None);
    };
    for info in folders(&lib).flat_map(|version| folders(&version.join("site-packages"))) {
        let name = info.file_name().unwrap_or_default().to_string_lossy();
        let Some((name, version)) = name
            .strip_suffix(".dist-info")
            .and_then(|it| it.split_once('-'))
        else {
            continue;
        };
        let text = settings::regular_file(&info.join(file), MAX_FILE_BYTES).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        if !text
            .lines()
            .any(|line| begins.iter().any(|begin| line.starts_with(begin)))
        {
            continue;
        }
        if info.join("direct_url.json").exists() {
            return Err(format!(
                "{} was not installed from an index",
                printable(name)
            ));
        }
        return Ok(Some(Package {
            ecosystem: Ecosystem::Python,
            required: vec![python_package(&format!("{name}=={version}"))?],
            start: Start::Usual,
        }));
    }
    Ok(None)
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The package that an installed file is a program of.
fn node_module(file: &Path) -> Option<Package> {
    let folder = file.ancestors().find(|folder| {
        let mut above = folder.ancestors().skip(1).take(2);
        folder.join("package.json").is_file() && above.any(|it| it.ends_with("node_modules"))
    })?;
    let bytes = settings::regular_file(&folder.join("package.json"), MAX_FILE_BYTES).ok()?;
    let said = json::parse(&bytes, Dialect::Strict).ok()?.value;
    let spec = format!("{}@{}", said["name"].as_str()?, said["version"].as_str()?);
    let start = match &said["bin"] {
        Value::Object(programs) => programs.iter().find_map(|(name, path)| {
            let path = folder.join(path.as_str()?).canonicalize().ok()?;
            (path == file).then(|| Start::Program(name.clone()))
        })?,
        _ => Start::Usual,
    };
    Some(Package {
        ecosystem: Ecosystem::Node,
        required: vec![node_package(&spec).ok()?],
        start,
    })
}

/// A program that is started by its name or path: what its first line says runs it.
fn plain(command: &str, words: &[String], entry: &Entry) -> Result<Launch, String> {
    let file = if command.contains('/') {
        file_of(command, entry)?
    } else {
        let search = variable("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&search).map(|folder| folder.join(command));
        let found = places.find_map(|path| path.canonicalize().ok());
        found.ok_or_else(|| format!("no program {} is on PATH", printable(command)))?
    };
    let mut head = Vec::new();
    let opened = std::fs::File::open(&file).map(|file| file.take(256).read_to_end(&mut head));
    opened
        .map_err(|why| format!("{}: {why}", printable(command)))?
        .ok();
    let head = String::from_utf8_lossy(&head);
    let line = head.strip_prefix("#!").and_then(|rest| rest.lines().next());
    let mut runs = line.unwrap_or_default().split_whitespace();
    let interpreter = runs.find(|word| !word.ends_with("/env") && !word.starts_with('-'));
    let interpreter = interpreter.unwrap_or_default();
    let name = interpreter.rsplit('/').next().unwrap_or_default();
    let program = match name {
        "node" | "bun" => node_module(&file).map(Program::Package),
        _ if is_python(name) => {
            let script = file.file_name().unwrap_or_default().to_string_lossy();
            let begins = [format!("{script} ="), format!("{script}=")];
            let found = distribution(Path::new(interpreter), "entry_points.txt", &begins)?;
            found.map(|package| {
                let start = Start::Program(script.into_owned());
                Program::Package(Package { start, ..package })
            })
        }
        _ => {
            return Err(
                "neither Node nor Python runs it: toolhost starts no other program of a \
                        client"
                    .to_owned(),
            );
        }
    };
    Ok(Launch {
        program: match program {
            Some(program) => program,
            None => of_script(file)?,
        },
        arguments: words.to_vec(),
    })
}
