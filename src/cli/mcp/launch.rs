//! How a client starts a server, read and never run: which package or which script that is.

use super::entries::{Command, Entry, variable};
use super::target::at;
use crate::base::files;
use crate::base::json::{self, Dialect};
use crate::base::mask::MIN_SECRET_BYTES;
use crate::base::text::printable;
use crate::cli::settings;
use crate::manifest::Language;
use crate::packages::{self, PackageRequirements};
use crate::policy::packages::Ecosystem;
use nix::fcntl::OFlag;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Longest file that is looked at to find out what a program is.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// As much of a program as can say what runs it.
const HEAD_BYTES: u64 = 256;
/// How words end that name a secret: those of an option, or before a `=`.
const SECRET_WORDS: &str = "auth authorization bearer cookie credential header key pass passwd \
                            password pat pwd secret token";
/// How keys begin that show what they are.
const KEYS: &str = "AKIA AIza eyJ fc- gho_ ghp_ github_pat_ glpat- hf_ npm_ ntn_ pypi- sk- sk_ xox";
const MIN_KEY_BYTES: usize = 16;

pub struct Launch {
    pub program: Program,
    pub arguments: Vec<String>,
}

pub enum Program {
    Package(Package),
    Script { file: PathBuf, language: Language },
}

/// A package of an index that has a server, and how that starts.
pub struct Package {
    /// The package itself comes first.
    pub required: PackageRequirements,
    /// Empty: that of the package's name, or its only one.
    pub program: String,
    /// Runs in place of a program, if it is not empty.
    pub module: String,
}

/// A program that fetches and starts packages, and how it reads its options.
struct Runner {
    /// The words with which it begins.
    starts: &'static [&'static str],
    ecosystem: Ecosystem,
    ignored: &'static [&'static str],
    /// What follows is ignored: which interpreter runs is a matter of this host.
    ignored_with_value: &'static [&'static str],
    package: &'static [&'static str],
    beside: &'static [&'static str],
}

const NPX: Runner = Runner {
    starts: &[
        "npx", "npm exec", "npm x", "pnpm dlx", "yarn dlx", "bunx", "bun x",
    ],
    ecosystem: Ecosystem::Node,
    ignored: &["-y", "--yes", "-q", "--quiet", "--"],
    ignored_with_value: &[],
    package: &["-p", "--package"],
    beside: &[],
};
const UVX: Runner = Runner {
    starts: &["uvx", "uv tool run", "pipx run"],
    ecosystem: Ecosystem::Python,
    ignored: &["-q", "--quiet", "--refresh", "--isolated"],
    ignored_with_value: &["-p", "--python"],
    package: &["--from", "--spec"],
    beside: &["--with"],
};

impl Runner {
    /// The words behind those with which it begins.
    fn rest<'w>(&self, name: &str, words: &'w [String]) -> Option<&'w [String]> {
        self.starts.iter().find_map(|start| {
            let (own, rest) = words.split_at_checked(start.matches(' ').count())?;
            let own = own
                .iter()
                .fold(name.to_owned(), |all, word| all + " " + word);
            (own == *start).then_some(rest)
        })
    }

    fn read(&self, words: &[String]) -> Result<Launch, String> {
        let missing = "it names no package";
        let mut named = Vec::new();
        let mut beside = Vec::new();
        let mut words = words.iter().map(String::as_str);
        let command = loop {
            let word = words.next().ok_or(missing)?;
            if !word.starts_with('-') {
                break word;
            }
            if self.ignored.contains(&word) {
                continue;
            }
            let (option, value) = word.split_once('=').unwrap_or((word, ""));
            let value = match value {
                "" => words.next().ok_or(missing)?,
                value => value,
            };
            if self.package.contains(&option) {
                named.push(value);
            } else if self.beside.contains(&option) {
                beside.push(value);
            } else if !self.ignored_with_value.contains(&option) {
                return Err(unread(option));
            }
        };
        // Where an option names the package, the word is a program of it.
        let program = if named.is_empty() { "" } else { command };
        if named.is_empty() {
            named.push(command);
        }
        named.extend(beside);
        Ok(Launch {
            program: Program::Package(Package::new(self.ecosystem, &named, program)?),
            arguments: words.map(str::to_owned).collect(),
        })
    }
}

impl Package {
    fn new(ecosystem: Ecosystem, words: &[&str], program: &str) -> Result<Package, String> {
        let words = words.iter().map(|word| {
            let word = word.strip_suffix("@latest").unwrap_or(word);
            match ecosystem {
                Ecosystem::Node => word.to_owned(),
                Ecosystem::Python => word.replacen('@', "==", 1),
            }
        });
        let words: Vec<String> = words.collect();
        Ok(Package {
            required: packages::from_command_line(ecosystem, &words, String::new())?,
            program: program.to_owned(),
            module: String::new(),
        })
    }

    pub fn name(&self) -> &str {
        self.required.requires.first().map_or("", |it| &it.name)
    }

    /// The program or module, where the client names one.
    pub fn starts(&self) -> &str {
        match self.module.is_empty() {
            true => &self.program,
            false => &self.module,
        }
    }

    /// Whether nothing is required beside it.
    pub fn is_alone(&self) -> bool {
        self.required.requires.len() == 1
    }

    /// As a template names it.
    pub fn key(&self) -> String {
        match self.required.ecosystem {
            Ecosystem::Node => format!("npm:{}", self.name()),
            Ecosystem::Python => format!("pypi:{}", self.name()),
        }
    }
}

impl Launch {
    pub fn package(&self) -> Option<&Package> {
        match &self.program {
            Program::Package(package) => Some(package),
            Program::Script { .. } => None,
        }
    }

    pub fn language(&self) -> Language {
        match &self.program {
            Program::Script { language, .. } => *language,
            Program::Package(package) => match package.required.ecosystem {
                Ecosystem::Node => Language::Nodejs,
                Ecosystem::Python => Language::Python,
            },
        }
    }
}

fn unread(option: &str) -> String {
    format!("its option {} is not read here", printable(option))
}

/// What an entry starts. The error says why it is not taken.
pub fn read(entry: &Entry, command: &Command) -> Result<Launch, String> {
    let (program, words) = command.words.split_first().ok_or("it has no command")?;
    let name = program.rsplit('/').next().unwrap_or(program);
    let runners = [&NPX, &UVX];
    let mut run = runners
        .iter()
        .filter_map(|it| Some(it.read(it.rest(name, words)?)));
    let launch = run
        .next()
        .unwrap_or_else(|| other(program, name, words, entry))?;
    match has_secret(&launch.arguments) {
        true => Err(
            "an argument looks like a secret, and everybody may read those: give it to the \
                     server as a variable"
                .to_owned(),
        ),
        false => Ok(launch),
    }
}

/// A program that starts no packages.
fn other(program: &str, name: &str, words: &[String], entry: &Entry) -> Result<Launch, String> {
    match name {
        "npm" | "pnpm" | "yarn" | "corepack" | "deno" | "uv" | "pipx" => Err(format!(
            "{name} fetches or starts packages: `npx` or `uvx` with the package is read here"
        )),
        "docker" | "podman" => {
            Err("a container: toolhost confines processes of its own".to_owned())
        }
        "node" | "bun" => script(words, entry),
        _ if is_python(name) => {
            // It says how output is buffered, and nothing of what runs.
            let words = match words {
                [option, rest @ ..] if option == "-u" => rest,
                _ => words,
            };
            match words {
                [option, module, rest @ ..] if option == "-m" => {
                    module_of(program, module, rest, entry)
                }
                _ => script(words, entry),
            }
        }
        _ => plain(program, words, entry),
    }
}

/// Whether something in the arguments looks like a secret: by the word before it, by its beginning,
/// or as a password in an address. Nobody can know all: what is written is shown, too.
fn has_secret(arguments: &[String]) -> bool {
    let pieces = arguments
        .iter()
        .flat_map(|word| word.split(['=', ':', ';', '&', '?', ' ', ',']));
    let pieces: Vec<&str> = pieces.filter(|piece| !piece.is_empty()).collect();
    let mut addresses = arguments.iter().filter_map(|word| word.split_once("://"));
    pieces.windows(2).any(|pair| names_secret(pair[0], pair[1]))
        || pieces.iter().any(|piece| {
            piece.len() >= MIN_KEY_BYTES && KEYS.split(' ').any(|key| piece.starts_with(key))
        })
        || addresses.any(|(_, rest)| rest.split('/').next().is_some_and(|it| it.contains('@')))
}

/// Whether a name says that this value is secret. Short numbers are limits and counts.
fn names_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name
        .split(['-', '_'])
        .map(|word| word.strip_suffix('s').unwrap_or(word));
    let is_harmless = value.starts_with('-')
        || ["true", "false"].contains(&value)
        || value.len() < MIN_SECRET_BYTES && value.parse::<f64>().is_ok();
    !is_harmless
        && !name.contains('/')
        && words.any(|word| SECRET_WORDS.split(' ').any(|end| word.ends_with(end)))
}

fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python");
    version.is_some_and(|it| it.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// The file or folder that a word names, with links resolved.
pub fn place_of(word: &str, entry: &Entry) -> Result<PathBuf, String> {
    let home = settings::home(&variable).filter(|_| word == "~" || word.starts_with("~/"));
    let folder = home.clone().or_else(|| entry.folder.clone());
    let below = home.map_or(word, |_| word.trim_start_matches(['~', '/']));
    let path = folder.unwrap_or_default().join(below);
    if !path.is_absolute() {
        let word = printable(word);
        return Err(format!(
            "`{word}` is relative to a folder that its client does not say: write the absolute path"
        ));
    }
    path.canonicalize().map_err(|why| at(&path, &why))
}

fn file_of(word: &str, entry: &Entry) -> Result<PathBuf, String> {
    let file = place_of(word, entry)?;
    match file.is_file() {
        true => Ok(file),
        false => Err(at(&file, &io::Error::other("is not a regular file"))),
    }
}

fn script(words: &[String], entry: &Entry) -> Result<Launch, String> {
    match words {
        [option, ..] if option.starts_with('-') => Err(unread(option)),
        [file, arguments @ ..] => of_file(file_of(file, entry)?, arguments),
        [] => Err("it names no script".to_owned()),
    }
}

fn of_file(file: PathBuf, arguments: &[String]) -> Result<Launch, String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let language = Language::of_file_name(&name).first().copied();
    let program = match (node_module(&file), language) {
        (Some(package), _) => Program::Package(package),
        (None, Some(language)) if language != Language::Wasm => Program::Script { language, file },
        _ => {
            return Err(format!(
                "the ending of {} shows no language",
                printable(&name)
            ));
        }
    };
    Ok(Launch {
        program,
        arguments: arguments.to_vec(),
    })
}

/// The package that an installed file is a program of.
fn node_module(file: &Path) -> Option<Package> {
    let mut above = file.ancestors();
    let folder = above.find(|folder| folder.join("package.json").is_file())?;
    if !above.take(2).any(|folder| folder.ends_with("node_modules")) {
        return None;
    }
    let bytes = settings::regular_file(&folder.join("package.json"), MAX_FILE_BYTES).ok()?;
    let said = json::parse(&bytes, Dialect::Strict).ok()?.value;
    let word = format!("{}@{}", said["name"].as_str()?, said["version"].as_str()?);
    let mut programs = said["bin"].as_object().into_iter().flatten();
    let program = programs.find(|(_, path)| {
        let path = folder.join(path.as_str().unwrap_or_default());
        path.canonicalize().is_ok_and(|path| path == file)
    });
    let program = program.map_or("", |(name, _)| name);
    let is_one = said["bin"].is_string() || !program.is_empty();
    is_one.then(|| Package::new(Ecosystem::Node, &[&word], program).ok())?
}

fn module_of(
    python: &str,
    module: &str,
    arguments: &[String],
    entry: &Entry,
) -> Result<Launch, String> {
    let path = module.replace('.', "/");
    // Its links stay: the folder of an environment is that of its own link to the interpreter.
    let python = match python.contains('/') {
        true => entry.folder.clone().unwrap_or_default().join(python),
        false => on_path(python)?,
    };
    let found = distribution(
        &python,
        "RECORD",
        [&format!("{path}/__init__.py,"), &format!("{path}.py,")],
    )?;
    let package = found.ok_or_else(|| {
        format!(
            "no environment of its interpreter says which package has the module {}: write `uvx --from \
             PACKAGE PROGRAM`",
            printable(module)
        )
    })?;
    let module = module.to_owned();
    Ok(Launch {
        program: Program::Package(Package { module, ..package }),
        arguments: arguments.to_vec(),
    })
}

/// The package in an interpreter's environment of which this file has a line that begins so.
fn distribution(python: &Path, file: &str, begins: [&str; 2]) -> Result<Option<Package>, String> {
    let lib = python.ancestors().nth(2).map(|folder| folder.join("lib"));
    let versions = lib.iter().flat_map(|lib| folders(lib));
    for info in versions.flat_map(|version| folders(&version.join("site-packages"))) {
        let name = info.file_name().unwrap_or_default().to_string_lossy();
        let named = name.strip_suffix(".dist-info");
        let Some((name, version)) = named.and_then(|it| it.split_once('-')) else {
            continue;
        };
        let text = settings::regular_file(&info.join(file), MAX_FILE_BYTES).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        if !lines.any(|line| begins.iter().any(|begin| line.starts_with(begin))) {
            continue;
        }
        if info.join("direct_url.json").exists() {
            let name = printable(name);
            return Err(format!("{name} was installed from elsewhere than an index"));
        }
        let word = format!("{name}=={version}");
        return Package::new(Ecosystem::Python, &[&word], "").map(Some);
    }
    Ok(None)
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The program that a name means.
fn on_path(name: &str) -> Result<PathBuf, String> {
    let search = variable("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&search).filter(|folder| folder.is_absolute());
    let mut places = folders.map(|folder| folder.join(name));
    let found = places.find(|path| is_program(path));
    found.ok_or_else(|| format!("PATH has no program {}", printable(name)))
}

fn is_program(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// How a program begins: no more is needed of one that may be large.
fn head(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let opened = files::open(file, OFlag::empty())?;
    opened.take(HEAD_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A program that is started by its name or path: what its first line says runs it.
fn plain(command: &str, words: &[String], entry: &Entry) -> Result<Launch, String> {
    let named = match command.contains('/') {
        true => command.to_owned(),
        false => on_path(command)?.to_string_lossy().into_owned(),
    };
    let file = file_of(&named, entry)?;
    if std::env::current_exe().is_ok_and(|own| own == file) {
        return Err("it is this host".to_owned());
    }
    let head = head(&file).map_err(|why| at(&file, &why))?;
    let line = head.strip_prefix("#!").and_then(|rest| rest.lines().next());
    let mut runs = line.unwrap_or_default().split_whitespace();
    let interpreter = runs.find(|word| !word.ends_with("/env") && !word.starts_with('-'));
    let interpreter = interpreter.unwrap_or_default();
    let name = interpreter.rsplit('/').next().unwrap_or_default();
    if is_python(name) {
        let program = file.file_name().unwrap_or_default().to_string_lossy();
        let begins = [&*format!("{program} ="), &*format!("{program}=")];
        if let Some(package) = distribution(Path::new(interpreter), "entry_points.txt", begins)? {
            let program = program.into_owned();
            return Ok(Launch {
                program: Program::Package(Package { program, ..package }),
                arguments: words.to_vec(),
            });
        }
    } else if !["node", "bun"].contains(&name) {
        let why =
            "neither Node nor Python runs it, and toolhost starts no other program of a client";
        return Err(why.to_owned());
    }
    of_file(file, words)
}
