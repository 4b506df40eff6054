//! Python: the files that say what a script requires (`pyproject.toml`, a block in the script,
//! `requirements.txt`), and the locks that hold it: `pylock.toml` (PEP 751) and a
//! `requirements.txt` of which every entry has a hash.

use super::files::{MAX_PACKAGES, ScriptFolder, ScriptLocation, TextFile, misfit, shown, unfit};
use super::keys;
use crate::manifest::Language;
use crate::policy::packages::{Ecosystem, Package, PackageRequirements, Required};
use crate::policy::{FileProblem, versions};
use pep508_rs::{MarkerEnvironment, MarkerEnvironmentBuilder, MarkerTree, VersionOrUrl};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use toml::{Spanned, Value};

/// The names of all files that count, without those named after the script.
pub(super) const NAMES: [&str; 6] = [
    "requirements.txt",
    "pyproject.toml",
    UV_LOCK,
    LOCK,
    "pip.conf",
    "uv.toml",
];
/// The lock of a folder.
const LOCK: &str = "pylock.toml";
/// A lock that is not parsed here: the installer translates it.
const UV_LOCK: &str = "uv.lock";
/// The text of such a lock, and the name of its project.
type UvLock = (TextFile, Option<String>);

struct RequirementSource {
    file: TextFile,
    requirements: Vec<Requirement>,
}

struct Lock {
    file: TextFile,
    /// The packages for this interpreter.
    packages: Vec<Package>,
}

pub(super) fn find(
    folder: &ScriptFolder<'_>,
    at: &ScriptLocation<'_>,
) -> Result<Option<PackageRequirements>, FileProblem> {
    let environment = Environment::new(at.version);
    let name = at
        .script
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let own = own_lock(name);
    let is_python = at.language == Language::Python;
    let pylock = |name: &str| {
        folder
            .read(name)?
            .map(|file| Lock::read(file, &environment))
            .transpose()
    };
    let mut lists = Vec::new();
    let mut lock = None;
    let mut foreign = None;
    let mut writes = LOCK.to_owned();
    let script = if is_python {
        folder.script(at.script)
    } else {
        None
    };
    let script_lock = format!("{name}.lock");
    let is_locked = !at.ignore_lock && folder.has(&own) || folder.has(&script_lock);
    match script
        .map(|file| block(file, &environment, is_locked))
        .transpose()?
        .flatten()
    {
        // The script lists its own requirements, so those of the folder's project do not count.
        Some(block) => {
            lists.push(block);
            if !at.ignore_lock {
                lock = pylock(&own)?;
            }
            if lock.is_none() {
                foreign = folder.read(&script_lock)?.map(|file| (file, None));
            }
            writes = own;
        }
        None if at.alone => return Ok(None),
        None => {
            if is_python {
                lock = pylock(&own)?;
            }
            if lock.is_none() && !at.ignore_lock {
                lock = pylock(LOCK)?;
            }
            let is_locked = lock.is_some() || folder.has(UV_LOCK);
            if let Some(file) = folder.read("pyproject.toml")?
                && let Some((name, project)) = project(file, &environment, is_locked)?
            {
                lists.push(project);
                if lock.is_none() {
                    foreign = folder.read(UV_LOCK)?.map(|file| (file, Some(name)));
                }
            }
            if let Some(file) = folder.read("requirements.txt")? {
                let (requirements, packages) = entries(&file, &environment)?;
                match packages {
                    Some(packages) => lock = lock.or(Some(Lock { file, packages })),
                    None if requirements.is_empty() => {}
                    None => lists.push(RequirementSource { file, requirements }),
                }
            }
        }
    }
    if lists.is_empty() && lock.is_none() {
        return Ok(None);
    }
    folder.without_settings(&["pip.conf", "uv.toml"])?;
    let Some(lock) = lock else {
        if foreign.is_none() {
            folder.without_locks(&["poetry.lock", "pdm.lock", "Pipfile.lock"])?;
        }
        return Ok(Some(unlocked(&lists, foreign, writes)));
    };
    lists
        .iter()
        .try_for_each(|lists| check_lock(lists, &lock))?;
    from_lock(&lists, &lock, writes).map(Some)
}

/// The file name of the lock of one script, by PEP 751: `pylock.NAME.toml`, in which NAME has no
/// dot.
pub(super) fn own_lock(script: &str) -> String {
    let name = script.rsplit_once('.').map_or(script, |(name, _)| name);
    format!("pylock.{}.toml", name.replace('.', "-"))
}

/// Reads a lock of PEP 751 that a policy names.
pub(super) fn read_lock(file: TextFile, python: &str) -> Result<PackageRequirements, FileProblem> {
    let name = file.name();
    from_lock(
        &[],
        &Lock::read(file, &Environment::new(Some(python)))?,
        name,
    )
}

/// Requirements from the command line, for a lock of this name.
pub(super) fn from_command_line(
    lines: &[String],
    lock_file: String,
) -> Result<PackageRequirements, String> {
    let environment = Environment::new(None);
    let requirements = lines
        .iter()
        .map(|line| environment.requirement(line, 0))
        .collect::<Result<_, _>>()?;
    let lists = RequirementSource {
        file: TextFile::new("(the command line)".into(), b""),
        requirements,
    };
    Ok(PackageRequirements {
        sources: Vec::new(),
        ..unlocked(&[lists], None, lock_file)
    })
}

/// Checks that the lock has all that this interpreter requires, at versions that fit.
fn check_lock(lists: &RequirementSource, lock: &Lock) -> Result<(), FileProblem> {
    let locked: BTreeMap<&str, &Package> = lock
        .packages
        .iter()
        .map(|package| (package.name.as_str(), package))
        .collect();
    for required in lists
        .requirements
        .iter()
        .filter(|required| required.applies)
    {
        let locked = locked.get(required.name.as_str()).copied();
        let Some(has) = misfit(Ecosystem::Python, &required.versions, locked) else {
            continue;
        };
        let why = format!(
            "`{}` is required, and {} {has}: lock again",
            required.text,
            lock.file.name()
        );
        return Err(lists.file.problem(required.line, why));
    }
    Ok(())
}

fn list_required(lists: &[RequirementSource]) -> Vec<Required> {
    fn one(file: &TextFile, required: &Requirement) -> Required {
        Required {
            name: required.name.clone(),
            versions: required.versions.clone(),
            pinned: required.pin().is_some(),
            place: format!("{}:{}", file.name(), required.line),
        }
    }
    lists
        .iter()
        .flat_map(|lists| {
            lists
                .requirements
                .iter()
                .map(move |required| one(&lists.file, required))
        })
        .collect()
}

/// Requirements to resolve, or a lock of another format (and its project) to translate.
fn unlocked(
    lists: &[RequirementSource],
    foreign: Option<UvLock>,
    lock_file: String,
) -> PackageRequirements {
    let files = lists
        .iter()
        .map(|lists| &lists.file)
        .chain(foreign.iter().map(|(file, _)| file));
    let sources = files.map(TextFile::source).collect();
    let requires = list_required(lists);
    let mut lines: Vec<String> = lists
        .iter()
        .flat_map(|lists| &lists.requirements)
        .map(|required| required.text.clone() + "\n")
        .collect();
    lines.dedup();
    let mut inputs = vec![("requirements.txt".to_owned(), lines.concat())];
    if let Some((file, project)) = foreign {
        inputs.push((UV_LOCK.to_owned(), file.text));
        inputs.extend(project.map(|project| ("project".to_owned(), project)));
    }
    let ecosystem = Ecosystem::Python;
    let packages = Vec::new();
    PackageRequirements {
        ecosystem,
        sources,
        packages,
        locked: false,
        lock_file,
        inputs,
        requires,
    }
}

/// The packages of a lock. The installer gets lines without markers, so it has nothing to decide.
fn from_lock(
    lists: &[RequirementSource],
    lock: &Lock,
    lock_file: String,
) -> Result<PackageRequirements, FileProblem> {
    let mut packages: BTreeMap<&str, &Package> = BTreeMap::new();
    for package in &lock.packages {
        let name = &package.name;
        let version = &package.version;
        if let Some(other) = packages
            .insert(name, package)
            .filter(|other| other.version != *version)
        {
            let why = format!(
                "`{name}` is locked at {} and {version} for one interpreter: lock again",
                other.version
            );
            return Err(lock.file.problem(0, why));
        }
    }
    let packages: Vec<Package> = packages.into_values().cloned().collect();
    let inputs = vec![(
        "requirements.txt".to_owned(),
        packages
            .iter()
            .map(|package: &Package| {
                let hashes: String = package
                    .hashes
                    .iter()
                    .map(|hash| format!(" --hash={hash}"))
                    .collect();
                format!("{}=={}{hashes}\n", package.name, package.version)
            })
            .collect(),
    )];
    let mut requires = list_required(lists);
    if requires.is_empty() {
        requires.extend(packages.iter().map(|package| Required {
            name: package.name.clone(),
            versions: format!("=={}", package.version),
            pinned: true,
            place: lock.file.name(),
        }));
    }
    let sources = lists
        .iter()
        .map(|lists| &lists.file)
        .chain([&lock.file])
        .map(TextFile::source)
        .collect();
    let ecosystem = Ecosystem::Python;
    Ok(PackageRequirements {
        ecosystem,
        sources,
        packages,
        locked: true,
        lock_file,
        inputs,
        requires,
    })
}

fn package(name: &str, version: Option<&str>, mut hashes: Vec<String>) -> Result<Package, String> {
    let name =
        versions::name(Ecosystem::Python, name).ok_or("this is not the name of a package")?;
    let version = version.and_then(|text| versions::version(Ecosystem::Python, text));
    let version = version.ok_or("it has no version that can be read")?;
    if hashes.is_empty() {
        return Err("it has no hash (sha256, sha384 or sha512)".to_owned());
    }
    hashes.sort();
    hashes.dedup();
    Ok(Package {
        name,
        version,
        hashes,
    })
}

/// Checks a hash: `sha256:` and 64 hex digits, or the like.
fn hash(text: &str) -> Result<String, String> {
    let is_good = text.split_once(':').is_some_and(|(name, hex)| {
        [("sha256", 64), ("sha384", 96), ("sha512", 128)].contains(&(name, hex.len()))
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    });
    is_good.then(|| text.to_ascii_lowercase()).ok_or_else(|| {
        format!(
            "`{}`: unsupported hash; use sha512, sha384 or sha256",
            shown(text)
        )
    })
}

#[derive(Deserialize)]
struct Pylock {
    #[serde(rename = "lock-version")]
    version: String,
    #[serde(rename = "requires-python")]
    python: Option<String>,
    #[serde(default)]
    environments: Vec<String>,
    #[serde(default)]
    packages: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    #[serde(rename = "requires-python")]
    python: Option<String>,
    vcs: Option<IgnoredAny>,
    directory: Option<IgnoredAny>,
    archive: Option<IgnoredAny>,
    sdist: Option<Hashed>,
    #[serde(default)]
    wheels: Vec<Hashed>,
}

#[derive(Deserialize)]
struct Hashed {
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

impl Lock {
    /// Reads a lock of PEP 751. Packages for other interpreters are checked, too, and then left
    /// out.
    fn read(file: TextFile, environment: &Environment) -> Result<Lock, FileProblem> {
        let lock: Pylock = file.toml(&file.text, 0)?;
        if !lock.version.starts_with("1.") {
            return Err(file.problem(
                0,
                format!(
                    "lock-version `{}` is not supported: use 1.0",
                    shown(&lock.version)
                ),
            ));
        }
        if lock.packages.len() > MAX_PACKAGES {
            return Err(file.problem(0, format!("more than {MAX_PACKAGES} packages")));
        }
        environment
            .runs(lock.python.as_deref())
            .and_then(|()| environment.is_one_of(&lock.environments))
            .map_err(|why| file.problem(0, why))?;
        let mut packages = Vec::new();
        for Locked {
            name,
            version,
            marker,
            python,
            vcs,
            directory,
            archive,
            sdist,
            wheels,
        } in &lock.packages
        {
            let bad = |why: String| file.problem(0, format!("`{}`: {why}", shown(name)));
            let is_here = environment.marker(marker.as_deref()).map_err(bad)?;
            if vcs.is_some() || directory.is_some() || archive.is_some() {
                let what = "a `vcs`, a `directory` or an `archive`";
                return Err(bad(format!(
                    "it is {what}, and packages come from the policy's index alone"
                )));
            }
            let all = sdist.iter().chain(wheels).flat_map(|file| &file.hashes);
            let known =
                all.filter(|(kind, _)| ["sha256", "sha384", "sha512"].contains(&kind.as_str()));
            let hashes = known
                .map(|(kind, digits)| hash(&format!("{kind}:{digits}")))
                .collect::<Result<_, _>>();
            let package = package(name, version.as_deref(), hashes.map_err(bad)?).map_err(bad)?;
            if is_here {
                environment.runs(python.as_deref()).map_err(bad)?;
                packages.push(package);
            }
        }
        Ok(Lock { file, packages })
    }
}

/// `requirements.txt`: its requirements, or its packages if entries have hashes; then every entry
/// needs one.
fn entries(
    file: &TextFile,
    env: &Environment,
) -> Result<(Vec<Requirement>, Option<Vec<Package>>), FileProblem> {
    let mut entries = Vec::new();
    let mut needs_hashes = false;
    for (line, text) in logical_lines(&file.text) {
        let text = text.trim();
        needs_hashes |= text == "--require-hashes";
        if !text.is_empty() && text != "--require-hashes" {
            entries.push(entry(text, line, env).map_err(|why| file.problem(line, why))?);
        }
        if entries.len() > MAX_PACKAGES {
            return Err(file.problem(line, format!("more than {MAX_PACKAGES} requirements")));
        }
    }
    if !needs_hashes && entries.iter().all(|(_, hashes)| hashes.is_empty()) {
        return Ok((
            entries
                .into_iter()
                .map(|(requirement, _)| requirement)
                .collect(),
            None,
        ));
    }
    let mut packages = Vec::new();
    for (requirement, hashes) in entries {
        let bad = |why: &str| {
            let others = "and the file asks for hashes: `uv pip compile --generate-hashes` writes \
                all of them";
            file.problem(
                requirement.line,
                format!("`{}` {why}, {others}", requirement.name),
            )
        };
        let version = requirement
            .pin()
            .ok_or_else(|| bad("is not pinned (`==`)"))?;
        let package =
            package(&requirement.name, Some(&version), hashes).map_err(|_| bad("has no hash"))?;
        packages.extend(requirement.applies.then_some(package));
    }
    Ok((Vec::new(), Some(packages)))
}

/// Lines without comments, with `\` continuations joined; each with its first line number.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut open): (Vec<(usize, String)>, bool) = Default::default();
    for (number, line) in text.lines().enumerate() {
        let plain = if line.trim_start().starts_with('#') {
            ""
        } else {
            line.split(" #")
                .next()
                .and_then(|line| line.split("\t#").next())
                .unwrap_or_default()
                .trim_end()
        };
        let continues = plain.ends_with('\\');
        let plain = plain.strip_suffix('\\').unwrap_or(plain).trim();
        match lines.last_mut().filter(|_| open) {
            Some((_, last)) => last.extend([" ", plain]),
            None => lines.push((number + 1, plain.to_owned())),
        }
        open = continues;
    }
    lines
}

/// A requirement, and its hashes; of all options only `--hash` counts.
fn entry(
    line: &str,
    number: usize,
    environment: &Environment,
) -> Result<(Requirement, Vec<String>), String> {
    if line.contains("${") {
        return Err(
            "environment variables are not supported here: write the value itself".to_owned(),
        );
    }
    let at = if line.starts_with('-') {
        0
    } else {
        line.find(" -").unwrap_or(line.len())
    };
    let mut hashes = Vec::new();
    let mut words = line[at..].split_whitespace();
    while let Some(word) = words.next() {
        let text = match word.strip_prefix("--hash") {
            Some("") => words.next().unwrap_or_default(),
            Some(joined) if joined.starts_with('=') => &joined[1..],
            _ => {
                let option = shown(word.split('=').next().unwrap_or_default());
                return Err(format!(
                    "`{option}` is not read: only names, versions and hashes count here; remove it"
                ));
            }
        };
        hashes.push(hash(text)?);
    }
    Ok((environment.requirement(&line[..at], number)?, hashes))
}

/// What is read of a pyproject.toml, or of a block in a script (PEP 723).
#[derive(Deserialize)]
struct ProjectTables {
    project: Option<Project>,
    /// Of a block in a script.
    dependencies: Option<Vec<Spanned<String>>>,
    #[serde(rename = "requires-python")]
    python: Option<String>,
    #[serde(default)]
    tool: ToolTables,
}

/// The `[tool]` tables of the installers.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ToolTables {
    uv: ToolTable,
    poetry: ToolTable,
    pdm: ToolTable,
}

type ToolTable = BTreeMap<String, Spanned<Value>>;

#[derive(Deserialize, Default)]
struct Project {
    name: Option<String>,
    dependencies: Option<Vec<Spanned<String>>>,
    #[serde(rename = "requires-python")]
    python: Option<Spanned<String>>,
    #[serde(default)]
    dynamic: Vec<String>,
}

/// The project name of a pyproject.toml and its requirements; `None`: it has none.
fn project(
    file: TextFile,
    environment: &Environment,
    is_locked: bool,
) -> Result<Option<(String, RequirementSource)>, FileProblem> {
    let ProjectTables { project, tool, .. } = file.toml(&file.text, 0)?;
    let Project {
        name,
        dependencies,
        python,
        dynamic,
    } = project.unwrap_or_default();
    if let Some(word) = dynamic
        .iter()
        .find(|word| ["dependencies", "requires-python"].contains(&word.as_str()))
    {
        let why = "is dynamic, so a build would say what is required: write it into [project]";
        return Err(file.problem(0, format!("`{word}` {why}")));
    }
    if let Some(python) = &python {
        let is_good = environment.runs(Some(python.get_ref()));
        is_good.map_err(|why| file.problem(file.line(python.span().start), why))?;
    }
    let listed = dependencies.unwrap_or_default();
    if listed.is_empty() {
        let why = "[tool.poetry] is not read: list the requirements in [project] dependencies";
        let refused = tool
            .poetry
            .get("dependencies")
            .map(|at| Err(file.problem(file.line(at.span().start), why)));
        return refused.unwrap_or(Ok(None));
    }
    let name = name
        .and_then(|name| versions::name(Ecosystem::Python, &name))
        .unwrap_or_default();
    fn line(file: &TextFile, offset: usize) -> usize {
        file.line(offset)
    }
    check_tools(&file, &tool, is_locked, line)?;
    let requirements = parse_requirements(&file, &listed, line, environment)?;
    Ok(Some((name, RequirementSource { file, requirements })))
}

/// Refuses settings of installers that change what is installed and are not honoured here.
fn check_tools(
    file: &TextFile,
    tool: &ToolTables,
    is_locked: bool,
    line: impl Fn(&TextFile, usize) -> usize,
) -> Result<(), FileProblem> {
    let empty = [
        false.into(),
        Vec::<Value>::new().into(),
        Value::Table(toml::Table::new()),
    ];
    for (name, table) in [
        ("uv", &tool.uv),
        ("poetry", &tool.poetry),
        ("pdm", &tool.pdm),
    ] {
        for (key, value) in table.iter().filter(|(_, it)| !empty.contains(it.get_ref())) {
            if let Some(why) = keys::refusal(&format!("tool.{name}"), key, is_locked) {
                let words = format!("[tool.{name}] `{}` {why}", shown(key));
                return Err(file.problem(line(file, value.span().start), words));
            }
        }
    }
    Ok(())
}

fn parse_requirements(
    file: &TextFile,
    listed: &[Spanned<String>],
    line: impl Fn(&TextFile, usize) -> usize,
    environment: &Environment,
) -> Result<Vec<Requirement>, FileProblem> {
    if listed.len() > MAX_PACKAGES {
        return Err(file.problem(0, format!("more than {MAX_PACKAGES} requirements")));
    }
    listed
        .iter()
        .map(|written: &Spanned<String>| {
            let line = line(file, written.span().start);
            environment
                .requirement(written.get_ref(), line)
                .map_err(|why| file.problem(line, why))
        })
        .collect()
}

/// The block of a script, `# /// script` to `# ///`; `None`: it has none.
fn block(
    script: TextFile,
    environment: &Environment,
    is_locked: bool,
) -> Result<Option<RequirementSource>, FileProblem> {
    let mut lines = script.text.lines().enumerate();
    let mut found = None;
    while let Some((at, _)) = lines.find(|(_, line)| line.trim_end() == "# /// script") {
        let rest = lines.clone().map(|(_, line)| line);
        let body: Vec<&str> = rest
            .take_while(|line| *line == "#" || line.starts_with("# "))
            .collect();
        // The last closing line of the comment counts (PEP 723).
        let Some(end) = body.iter().rposition(|line| line.trim_end() == "# ///") else {
            return Err(script.problem(
                at + 1,
                "the block `# /// script` has no end: close it with a line `# ///`",
            ));
        };
        if found.is_some() {
            return Err(script.problem(at + 1, "a second block `# /// script`: keep one"));
        }
        let text: Vec<&str> = body[..end]
            .iter()
            .map(|line| line.strip_prefix("# ").unwrap_or_default())
            .collect();
        found = Some((at + 1, text.join("\n")));
        lines.nth(end);
    }
    let Some((line, text)) = found else {
        return Ok(None);
    };
    let all: BTreeMap<String, IgnoredAny> = script.toml(&text, line)?;
    let unknown = all
        .keys()
        .find_map(|key| Some((key, keys::refusal("block", key, is_locked)?)));
    if let Some((key, why)) = unknown {
        return Err(script.problem(line, format!("`{}` {why}", shown(key))));
    }
    let document: ProjectTables = script.toml(&text, line)?;
    environment
        .runs(document.python.as_deref())
        .map_err(|why| script.problem(line, why))?;
    let Some(listed) = document.dependencies.filter(|listed| !listed.is_empty()) else {
        return Ok(None);
    };
    check_tools(&script, &document.tool, is_locked, |_, _| line)?;
    let requirements = parse_requirements(&script, &listed, |_, _| line, environment)?;
    Ok(Some(RequirementSource {
        file: script,
        requirements,
    }))
}

/// Longest requirement or marker, bytes. Most comparisons in one marker, and with `in` among them.
/// Most markers in one file, because the library keeps a decision diagram of each for good.
const MAX_MARKER_BYTES: usize = 4000;
const MAX_COMPARISONS: usize = 16;
const MAX_IN: usize = 4;
const MAX_MARKERS: usize = 200;

#[derive(Clone, Debug)]
struct Requirement {
    pub name: String,
    /// Empty: any version.
    pub versions: String,
    /// The requirement as the resolver gets it.
    pub text: String,
    /// False where its marker does not hold for the interpreter.
    pub applies: bool,
    /// Its line in the file.
    pub line: usize,
}

impl Requirement {
    /// The one version that fits.
    pub fn pin(&self) -> Option<String> {
        let only = self.versions.strip_prefix("==")?.trim_start_matches('=');
        versions::version(Ecosystem::Python, only)
    }
}

/// The interpreter for which markers are evaluated.
struct Environment {
    interpreter: Option<MarkerEnvironment>,
    /// The markers that were read.
    markers: RefCell<HashSet<String>>,
}

impl Environment {
    /// `version`: the interpreter's; without it every marker counts as true.
    pub fn new(version: Option<&str>) -> Environment {
        let version = version.and_then(|version| version.split_whitespace().next());
        Environment {
            interpreter: version.and_then(marker_environment),
            markers: RefCell::default(),
        }
    }

    /// Whether a marker holds. An absent marker does.
    pub fn marker(&self, text: Option<&str>) -> Result<bool, String> {
        let Some(text) = text else { return Ok(true) };
        self.bounded(text)?;
        let marker = MarkerTree::from_str(text)
            .map_err(|error| format!("its marker: {}", shown(&error.message.to_string())))?;
        Ok(self.holds(&marker))
    }

    /// Whether a file whose `requires-python` this is runs on the interpreter.
    fn runs(&self, range: Option<&str>) -> Result<(), String> {
        let version = self
            .interpreter
            .as_ref()
            .map(MarkerEnvironment::python_full_version);
        let why = range.zip(version).and_then(|(range, version)| {
            unfit(Ecosystem::Python, range, &version.version.to_string())
        });
        why.map_or(Ok(()), |why| Err(format!("requires-python: {why}")))
    }

    /// Whether a lock that is for these environments is for this one.
    fn is_one_of(&self, environments: &[String]) -> Result<(), String> {
        let mut is_here = environments.is_empty();
        for marker in environments {
            is_here |= self.marker(Some(marker))?;
        }
        let why = "it was made for other machines or interpreters (`environments`): lock again";
        is_here.then_some(()).ok_or_else(|| why.to_owned())
    }

    fn holds(&self, marker: &MarkerTree) -> bool {
        self.interpreter
            .as_ref()
            .is_none_or(|environment| marker.evaluate(environment, &[]))
    }

    pub fn requirement(&self, text: &str, line: usize) -> Result<Requirement, String> {
        let (text, whole) = (text.trim(), shown(text.trim()));
        let (wanted, marker) = text.split_once(';').unwrap_or((text, ""));
        let is_path = wanted.starts_with(['.', '/', '~'])
            || [".whl", ".tar.gz", ".zip"]
                .iter()
                .any(|end: &&str| wanted.trim_end().ends_with(end));
        // The library would read a path with dashes as a name; a version holds none of these signs.
        if wanted.contains(['@', ':']) || wanted.starts_with("git+") || is_path {
            let what = if wanted.contains("git+") {
                "a git reference"
            } else {
                "a URL or a path"
            };
            let index =
                "packages come from the policy's index alone: write a name and versions of it";
            return Err(format!("`{whole}` is {what}, and {index}"));
        }
        self.bounded(marker)
            .map_err(|why| format!("`{whole}`: {why}"))?;
        if text.len() > MAX_MARKER_BYTES {
            return Err(format!("`{whole}` is longer than {MAX_MARKER_BYTES} bytes"));
        }
        fn bad(why: &str, whole: &str) -> String {
            format!("`{whole}` is not a requirement ({why}): write for example `name>=1.2,<2`")
        }
        // The library panics where a name or an extra ends with a sign and something follows.
        let names = wanted.split(['<', '>', '=', '!', '~', '(']).next();
        let mut names = names
            .unwrap_or_default()
            .split(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c));
        if names.any(|name| name.ends_with(['.', '-', '_'])) {
            return Err(bad("a name ends with a letter or a digit", &whole));
        }
        let read = pep508_rs::Requirement::<pep508_rs::VerbatimUrl>::from_str(text)
            .map_err(|error| bad(&shown(&error.message.to_string()), &whole))?;
        let name = read.name.to_string();
        let versions = match &read.version_or_url {
            Some(VersionOrUrl::VersionSpecifier(range)) => {
                range.iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            Some(VersionOrUrl::Url(_)) => return Err(bad("it is a URL", &whole)),
            None => Vec::new(),
        };
        let versions = versions.join(",");
        let extras: Vec<&str> = read.extras.iter().map(AsRef::as_ref).collect();
        let extras = if extras.is_empty() {
            String::new()
        } else {
            format!("[{}]", extras.join(","))
        };
        let marker = read
            .marker
            .try_to_string()
            .map_or_else(String::new, |marker| format!(" ; {marker}"));
        let text = format!("{name}{extras}{versions}{marker}");
        Ok(Requirement {
            name,
            versions,
            text,
            applies: self.holds(&read.marker),
            line,
        })
    }

    fn bounded(&self, marker: &str) -> Result<(), String> {
        let texts = marker.matches(['"', '\'']).count() / 2;
        let inside = marker
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| *word == "in")
            .count();
        let is_plain = marker.bytes().all(|b| (b' '..=b'~').contains(&b));
        if marker.len() > MAX_MARKER_BYTES
            || texts > MAX_COMPARISONS
            || inside > MAX_IN
            || !is_plain
        {
            return Err(format!(
                "marker too long or not ASCII: max {MAX_COMPARISONS} comparisons, {MAX_IN} with \
                `in`"
            ));
        }
        let mut markers = self.markers.borrow_mut();
        markers.insert(marker.to_owned());
        if markers.len() <= MAX_MARKERS {
            Ok(())
        } else {
            Err(format!(
                "more than {MAX_MARKERS} different markers: lock for fewer environments"
            ))
        }
    }
}

/// An interpreter of this version on this machine.
fn marker_environment(version: &str) -> Option<MarkerEnvironment> {
    let uname = nix::sys::utsname::uname().ok()?;
    let environment = MarkerEnvironmentBuilder {
        implementation_name: "cpython",
        implementation_version: version,
        os_name: "posix",
        platform_machine: std::env::consts::ARCH,
        platform_python_implementation: "CPython",
        platform_release: &uname.release().to_string_lossy(),
        platform_system: "Linux",
        platform_version: &uname.version().to_string_lossy(),
        python_full_version: version,
        python_version: &version.split('.').take(2).collect::<Vec<_>>().join("."),
        sys_platform: "linux",
    };
    MarkerEnvironment::try_from(environment).ok()
}
