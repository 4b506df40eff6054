//! `DirectToolLoader` (source `files`): scans folders for `*.tool.json` and reads each one; a bad
//! file stops nothing. And the tools compiled into this binary (source `builtin`).

use super::open_beneath::{self, Base, OpenError};
use super::scan::{self, Candidate};
use super::scripts;
use super::skills;
use super::tool::{
    self, Claim, DESCRIPTOR, Described, Discovery, ENDING, FileReport, Source, Status, Tool,
    nowhere, panicked,
};
use crate::base::{files, json, sha256_hex, text};
use crate::fault::Kind;
use crate::manifest::descriptor::{self, Descriptors};
use crate::manifest::{
    self, Code, Handler, Language, Manifest, Problem, Severity, ToolPaths, schema,
};
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::fcntl::OFlag;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

const SCRIPT: &str = "/handler/scriptPath";
const HOSTS: &str = "/securityContext/networkAccess/allowHosts";
/// How much of a WASI file is read to tell a module from a component, bytes.
const HEAD: u64 = 512;
/// From so many files on, reading them in several threads is faster.
const PARALLEL_FROM: usize = 64;
/// The source of the tools in this binary.
pub(super) const BUILTIN: &str = "builtin";

/// File name and text of every builtin manifest. A new one is one line here.
/// The source of tools that are files.
pub(super) const FILES: &str = "files";
pub const BUILTIN_FILES: &[(&str, &str)] = &[
    (
        "call-tool.tool.json",
        include_str!("../../tool-defs/core/call-tool.tool.json"),
    ),
    (
        "execute-nodejs-script.tool.json",
        include_str!("../../tool-defs/core/execute-nodejs-script.tool.json"),
    ),
    (
        "execute-python-script.tool.json",
        include_str!("../../tool-defs/core/execute-python-script.tool.json"),
    ),
    (
        "execute-script.tool.json",
        include_str!("../../tool-defs/core/execute-script.tool.json"),
    ),
    (
        "run-code.tool.json",
        include_str!("../../tool-defs/core/run-code.tool.json"),
    ),
    (
        "search-tools.tool.json",
        include_str!("../../tool-defs/core/search-tools.tool.json"),
    ),
    (
        "list-skills.tool.json",
        include_str!("../../tool-defs/core/list-skills.tool.json"),
    ),
    (
        "read-skill.tool.json",
        include_str!("../../tool-defs/core/read-skill.tool.json"),
    ),
    (
        "run-skill-script.tool.json",
        include_str!("../../tool-defs/core/run-skill-script.tool.json"),
    ),
    (
        "task-status.tool.json",
        include_str!("../../tool-defs/core/task-status.tool.json"),
    ),
];

static BUILTIN_MANIFESTS: LazyLock<Vec<Arc<Manifest>>> = LazyLock::new(|| {
    BUILTIN_FILES
        .iter()
        .map(
            |(name, text): &(&str, &str)| match manifest::read(text.as_bytes()) {
                Ok((manifest, _)) => Arc::new(manifest),
                Err(problems) => panic!("the builtin manifest {name}: {problems:?}"),
            },
        )
        .collect()
});

/// The source of the core tools.
#[derive(Debug, Default)]
pub struct Builtin;

impl Builtin {
    /// Reads the manifests in a thread of its own, for a host that starts and needs them soon.
    pub fn begin() {
        // Without a thread they are read once they are needed.
        let _ = std::thread::Builder::new().spawn(|| LazyLock::force(&BUILTIN_MANIFESTS));
    }
}

impl Source for Builtin {
    fn id(&self) -> &str {
        BUILTIN
    }

    fn discover(&self) -> Result<Discovery, String> {
        let tools = BUILTIN_MANIFESTS
            .iter()
            .map(|manifest| Tool::new(manifest.clone(), nowhere(), BUILTIN))
            .collect();
        Ok(Discovery {
            tools,
            ..Discovery::default()
        })
    }
}

/// Whether a file has exactly the text of a builtin manifest: such a copy on disk is not a rival.
pub(super) fn is_builtin_copy(tool: &Tool) -> bool {
    BUILTIN_FILES
        .iter()
        .any(|(_, text)| sha256_hex(text.as_bytes()) == tool.manifest.digest)
}

/// The source `files`.
pub struct DirectToolLoader {
    tools: Vec<PathBuf>,
    scripts: Vec<PathBuf>,
    /// Manifests elsewhere, each looked at alone.
    files: Vec<PathBuf>,
    stricter: Option<schema::Schema>,
    /// Folders of skills.
    skills: Vec<PathBuf>,
}

/// The result of one file: what it holds, or, if it cannot be loaded, the scripts that it names.
struct Read {
    report: FileReport,
    /// The report of the list beside it, if it is of an MCP server that has one.
    list: Option<FileReport>,
    found: Result<(Vec<Tool>, Vec<Described>), Claim>,
}

impl DirectToolLoader {
    /// Both lists are scanned, and both are script bases; scripts are looked up in `scripts` first.
    pub fn new(tools: Vec<PathBuf>, scripts: Vec<PathBuf>) -> DirectToolLoader {
        DirectToolLoader {
            tools,
            scripts,
            files: Vec::new(),
            stricter: None,
            skills: Vec::new(),
        }
    }

    /// Adds single manifests from any place; the folder of each is a script base, too.
    pub fn and_files(mut self, files: Vec<PathBuf>) -> DirectToolLoader {
        self.files = files;
        self
    }

    /// Adds folders in which skills are looked for.
    pub fn and_skills(mut self, folders: Vec<PathBuf>) -> DirectToolLoader {
        self.skills = folders;
        self
    }

    /// Also checks every manifest against this JSON Schema, if the operator has one.
    pub fn stricter(mut self, schema: Option<schema::Schema>) -> DirectToolLoader {
        self.stricter = schema;
        self
    }

    /// Script bases, in the order they are searched.
    fn script_bases(&self) -> scripts::Bases {
        let own = self
            .files
            .iter()
            .filter_map(|file| file.parent())
            .map(Path::to_path_buf);
        scripts::Bases::open(
            &self
                .scripts
                .iter()
                .chain(&self.tools)
                .cloned()
                .chain(own)
                .collect::<Vec<_>>(),
        )
    }

    /// Reads one file; a panic while it is parsed skips that file and does not end the scan.
    fn read_guarded(&self, candidate: &Candidate, bases: &scripts::Bases) -> Read {
        let read = std::panic::AssertUnwindSafe(|| self.read(candidate, bases));
        std::panic::catch_unwind(read).unwrap_or_else(|_| {
            let path = candidate.base.path.join(&candidate.relative);
            let found = Err(claim(&path, b"", bases));
            Read {
                report: FileReport::skipped(path, panicked()),
                list: None,
                found,
            }
        })
    }

    fn read(&self, candidate: &Candidate, bases: &scripts::Bases) -> Read {
        let own = Some(&candidate.base).filter(|base| !base.links.is_empty());
        let own = own.map(scripts::Bases::of_linked);
        let bases = own.as_ref().unwrap_or(bases);
        let path = candidate.base.path.join(&candidate.relative);
        let bytes = match open_beneath::read(
            &candidate.base.folder,
            &candidate.relative,
            MAX_DEFINITION_BYTES,
        ) {
            Ok(bytes) => bytes,
            Err(error) => {
                let problem = Problem::new(Severity::Error, Code::Unreadable, "", error.why());
                let found = Err(match error {
                    OpenError::System(_) => Claim {
                        manifest: path.clone(),
                        scripts: None,
                    },
                    _ => claim(&path, b"", bases),
                });
                return Read {
                    report: FileReport::skipped(path, problem),
                    list: None,
                    found,
                };
            }
        };
        let skipped = |tool, mut problems: Vec<Problem>| {
            locate_in(&mut problems, || &bytes);
            let claims = spelt(&bytes, "toolId").into_iter().next();
            let report = FileReport {
                path: path.clone(),
                status: Status::Skipped,
                tool,
                claims,
                problems,
            };
            Read {
                report,
                list: None,
                found: Err(claim(&path, &bytes, bases)),
            }
        };
        if path.to_string_lossy().ends_with(DESCRIPTOR) {
            return match descriptor::read(&bytes) {
                Ok((found, problems)) => self.describe(path, &candidate.base, found, problems),
                Err(problems) => skipped(None, problems),
            };
        }
        let (mut manifest, mut problems) = match manifest::read(&bytes) {
            Ok(read) => read,
            Err(problems) => return skipped(None, problems),
        };
        let flaws = self
            .stricter
            .iter()
            .flat_map(|stricter| stricter.flaws(&manifest.raw));
        let broken: Vec<_> = flaws.map(|flaw| house_rule(&flaw)).collect();
        if !broken.is_empty() {
            return skipped(None, broken);
        }
        let reference = Some(format!("{}@{}", manifest.id, manifest.version));
        let site = match site(&manifest, &path, &candidate.base, bases, &mut problems) {
            Ok(site) => site,
            Err(broken) => {
                problems.insert(0, broken);
                return skipped(reference, problems);
            }
        };
        problems.extend(without_connect(&manifest, &site));
        locate_in(&mut problems, || &bytes);
        problems.extend(scan::writable_by_others(&site));
        let list = take_list(&mut manifest, &path, candidate);
        let tool = Tool::new(Arc::new(manifest), site, self.id());
        Read {
            report: FileReport::loaded(path, reference, problems),
            list,
            found: Ok((vec![tool], Vec::new())),
        }
    }

    /// A file of descriptors.
    fn describe(
        &self,
        path: PathBuf,
        base: &Base,
        found: Descriptors,
        mut problems: Vec<Problem>,
    ) -> Read {
        let site = without_script(&path, base);
        problems.extend(scan::writable_by_others(&site));
        let services = found
            .services
            .into_iter()
            .map(|descriptor| Described {
                descriptor: Arc::new(descriptor),
                file: path.clone(),
            })
            .collect();
        let tools = found
            .tools
            .into_iter()
            .map(|tool| Tool::new(Arc::new(tool), site.clone(), self.id()))
            .collect();
        Read {
            report: FileReport::loaded(path, None, problems),
            list: None,
            found: Ok((tools, services)),
        }
    }
}

/// Gives an MCP server the list of its tools. `None`: there is none, or the tool has no list.
fn take_list(manifest: &mut Manifest, path: &Path, candidate: &Candidate) -> Option<FileReport> {
    let namespace = manifest.namespace().to_owned();
    let Handler::McpServer(server) = &mut manifest.handler else {
        return None;
    };
    let path = tool::list_path(path)?;
    let relative = tool::list_path(&candidate.relative)?;
    let read = open_beneath::read(&candidate.base.folder, &relative, MAX_DEFINITION_BYTES);
    let problems = match read {
        Ok(bytes) => {
            let digests = format!("{}{}", manifest.digest, sha256_hex(&bytes));
            manifest.digest = sha256_hex(digests.as_bytes());
            server.take_list(&bytes, &namespace)
        }
        Err(OpenError::Missing) => return None,
        Err(error) => vec![Problem::new(
            Severity::Error,
            Code::Unreadable,
            "",
            error.why(),
        )],
    };
    let mut report = FileReport::loaded(path, None, problems);
    if report.has_errors() {
        report.status = Status::Skipped;
    }
    Some(report)
}

/// The site of the tool. Its script must exist now.
fn site(
    manifest: &Manifest,
    path: &Path,
    base: &Base,
    bases: &scripts::Bases,
    problems: &mut Vec<Problem>,
) -> Result<ToolPaths, Problem> {
    let ending = manifest
        .document()
        .map_or(ENDING, |document| document.ending());
    if !path.to_string_lossy().ends_with(ending) {
        let message = format!("a file with a handler of this type is named *{ending}");
        return Err(Problem::new(
            Severity::Error,
            Code::Schema,
            "/handler/type",
            message,
        ));
    }
    let Some(script) = manifest.handler.script() else {
        return Ok(without_script(path, base));
    };
    let (site, note) = bases.find(path.parent(), &script.path).map_err(|fault| {
        let code = if fault.kind == Kind::SecurityError {
            Code::Security
        } else {
            Code::Dependency
        };
        Problem::new(
            Severity::Error,
            code,
            SCRIPT,
            fault.person.unwrap_or(fault.message),
        )
    })?;
    problems.extend(
        note.map(|(severity, words)| Problem::new(severity, Code::Dependency, SCRIPT, words)),
    );
    Ok(ToolPaths {
        manifest: path.to_path_buf(),
        ..site
    })
}

fn without_script(manifest: &Path, base: &Base) -> ToolPaths {
    ToolPaths {
        manifest: manifest.to_path_buf(),
        base: base.top().to_path_buf(),
        script: None,
        folder: manifest.parent().unwrap_or(&base.path).to_path_buf(),
        links: base.links.clone(),
    }
}

/// The scripts that a manifest claims although it cannot be loaded: the one that it names, even if
/// that does not exist. If it names none by a usable path: any script in its folder, and those that
/// its broken text spells.
fn claim(manifest: &Path, bytes: &[u8], bases: &scripts::Bases) -> Claim {
    let folder = manifest.parent().unwrap_or(Path::new("/"));
    let parsed = json::parse(bytes, json::Dialect::Commented).ok();
    let value = parsed.map(|document| document.value).unwrap_or_default();
    let scripts = match value["handler"]["scriptPath"].as_str() {
        // Prompts, resources and tools of services name no scripts.
        _ if !manifest.to_string_lossy().ends_with(ENDING) || value["type"] == "tool-service" => {
            Vec::new()
        }
        Some(named) => match bases.find(Some(folder), named) {
            Ok((site, _)) => site.script.into_iter().collect(),
            Err(_) => bases
                .places(folder, named)
                .unwrap_or_else(|| vec![folder.to_path_buf()]),
        },
        None => {
            let spelt = spelt(bytes, "scriptPath")
                .into_iter()
                .filter_map(|named| bases.places(folder, &named));
            spelt.flatten().chain([folder.to_path_buf()]).collect()
        }
    };
    Claim {
        manifest: manifest.to_path_buf(),
        scripts: Some(scripts),
    }
}

/// The strings that follow a field's name in a text that may not be JSON, for its first sixteen
/// occurrences.
fn spelt(bytes: &[u8], field: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let after = text.split(field).skip(1).take(16);
    let values = after.filter_map(|rest| {
        rest.trim_start_matches(['"', '\''])
            .trim_start()
            .strip_prefix(':')
    });
    values
        .filter_map(|rest| {
            serde_json::Deserializer::from_str(rest)
                .into_iter()
                .next()?
                .ok()
        })
        .collect()
}

/// WASI preview 1 has no call that connects: a module of it never reaches the hosts that its
/// manifest asks for.
fn without_connect(manifest: &Manifest, site: &ToolPaths) -> Option<Problem> {
    let is_module = manifest.handler.language() == Some(Language::Wasm);
    let script = site
        .script
        .as_ref()
        .filter(|_| is_module && !manifest.requested.hosts.is_empty())?;
    let file = files::open(script, OFlag::O_NOFOLLOW).ok()?;
    let mut beginning = Vec::new();
    file.take(HEAD).read_to_end(&mut beginning).ok()?;
    // The first bytes of a module and of a component differ in the layer (Component Model,
    // Binary.md).
    let module = beginning.starts_with(b"\0asm\x01\0\0\0")
        || beginning.trim_ascii_start().starts_with(b"(module");
    let message = "a WASI preview 1 module cannot connect, so it reaches none of these hosts: \
        build a component (WASI 0.2)";
    module.then(|| Problem::new(Severity::Warning, Code::Dependency, HOSTS, message))
}

fn house_rule(flaw: &schema::Flaw) -> Problem {
    let what = match &flaw.what {
        schema::Breach::Missing(name) => format!("'{name}' is missing"),
        schema::Breach::Unknown(names) => format!("not allowed here: {}", names.join(", ")),
        schema::Breach::Must(must) => must.clone(),
    };
    let message = format!(
        "{} (this host's own manifest rules)",
        text::printable(&what)
    );
    Problem::new(Severity::Error, Code::Schema, &*flaw.pointer, message)
}

impl Source for DirectToolLoader {
    fn id(&self) -> &str {
        FILES
    }

    fn discover(&self) -> Result<Discovery, String> {
        let mut discovery = Discovery::default();
        let mut candidates = scan::scan(self.tools.iter().chain(&self.scripts), &mut discovery);
        candidates.retain(|candidate| !candidate.is_skill());
        candidates.extend(self.files.iter().filter_map(|file| scan::single(file)));
        let bases = self.script_bases();
        for Read {
            report,
            list,
            found,
        } in read_all(&candidates, |candidate| {
            self.read_guarded(candidate, &bases)
        }) {
            discovery.reports.push(report);
            discovery.reports.extend(list);
            match found {
                Ok((tools, services)) => {
                    discovery.tools.extend(tools);
                    discovery.services.extend(services);
                }
                Err(claim) => discovery.claims.push(claim),
            }
        }
        skills::discover(&self.skills, &mut discovery);
        // The scan's own reports are in the order of the disk.
        discovery.reports.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(discovery)
    }
}

/// The results in order; the work is done in several threads where that is faster.
fn read_all(candidates: &[Candidate], read: impl Fn(&Candidate) -> Read + Sync) -> Vec<Read> {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    let threads = if candidates.len() < PARALLEL_FROM {
        1
    } else {
        threads
    };
    let work = |chunk: &[Candidate]| chunk.iter().map(&read).collect::<Vec<_>>();
    let work = &work;
    std::thread::scope(|scope| {
        let (first, rest) = candidates.split_at(candidates.len().div_ceil(threads));
        let spawn = |chunk| {
            std::thread::Builder::new()
                .spawn_scoped(scope, move || work(chunk))
                .ok()
        };
        let threads: Vec<_> = rest
            .chunks(first.len().max(1))
            .map(|chunk| (chunk, spawn(chunk)))
            .collect();
        let mut done = work(first);
        for (chunk, thread) in threads {
            // The machine gave no thread: the work is done in this one.
            done.extend(
                thread
                    .and_then(|thread| thread.join().ok())
                    .unwrap_or_else(|| work(chunk)),
            );
        }
        done
    })
}

/// Line and column of a value in a manifest's file as it is now; (0, 0) = not known.
pub fn position(manifest: &Path, pointer: &str) -> (usize, usize) {
    json::parse(&manifest_text(manifest), json::Dialect::Commented)
        .map_or((0, 0), |document| document.place(pointer))
}

/// Adds line and column to the problems that have only a pointer, from the file as it is now.
pub fn locate(problems: &mut [Problem], manifest: &Path) {
    locate_in(problems, || manifest_text(manifest));
}

/// Like `locate`, from the text of the manifest.
fn locate_in<T: AsRef<[u8]>>(problems: &mut [Problem], text: impl FnOnce() -> T) {
    let mut lost: Vec<&mut Problem> = problems
        .iter_mut()
        .filter(|problem| problem.line == 0 && !problem.pointer.is_empty())
        .collect();
    if !lost.is_empty()
        && let Ok(document) = json::parse(text().as_ref(), json::Dialect::Commented)
    {
        let places = document.places(lost.iter().map(|problem| problem.pointer.as_str()));
        for (problem, place) in lost.iter_mut().zip(places) {
            (problem.line, problem.column) = place;
        }
    }
}

fn manifest_text(manifest: &Path) -> Vec<u8> {
    let read = files::open(manifest, OFlag::O_NOFOLLOW)
        .and_then(|file| files::whole(file, MAX_DEFINITION_BYTES));
    read.ok().flatten().unwrap_or_default()
}
