//! `DirectToolLoader` (source `files`): scans folders for `*.tool.json` and reads each one; a bad file stops nothing.

use super::{Claim, Claimed, DESCRIPTOR, Described, Discovery, ENDING, FileReport, Source, Status, Tool};
use super::{open_beneath, position, scan, scripts, shared};
use crate::base::{files, text};
use crate::fault::Kind;
use crate::manifest::descriptor::{self, Descriptors};
use crate::manifest::{self, Code, Handler, Language, Problem, Severity, Site, schema};
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::fcntl::OFlag;
use scan::Candidate;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SCRIPT: &str = "/handler/scriptPath";
const HOSTS: &str = "/securityContext/networkAccess/allowHosts";
/// How much of a module is looked at, bytes.
const HEAD: u64 = 512;
/// From so many files on, reading them in several threads is faster.
const WORTH_A_THREAD: usize = 64;

/// The source `files`.
pub struct DirectToolLoader {
    tools: Vec<PathBuf>,
    scripts: Vec<PathBuf>,
    /// Manifests elsewhere, each looked at alone.
    files: Vec<PathBuf>,
    stricter: Option<schema::Schema>,
}

/// The result of one file: what it holds, or the scripts that it names though it cannot be loaded.
struct Read {
    report: FileReport,
    found: Result<(Vec<Tool>, Vec<Described>), Claim>,
}

/// The scripts of a manifest that cannot be loaded, as far as its text still tells: the script it names, also if that
/// is not there; if it names none by a path that could be used, any in its folder, and what a text that is no manifest spells.
fn claim(manifest: &Path, bytes: &[u8], bases: &scripts::Bases) -> Claim {
    let folder = manifest.parent().unwrap_or(Path::new("/"));
    let parsed = crate::base::json::parse(bytes, crate::base::json::Dialect::Commented).ok();
    let named = parsed.as_ref().and_then(|document| document.value["handler"]["scriptPath"].as_str());
    let document = !manifest.to_string_lossy().ends_with(ENDING);
    let what = match named {
        // Prompts, resources and tools of services name no scripts.
        _ if document || parsed.as_ref().is_some_and(|document| document.value["type"] == "tool-service") => {
            Claimed::Scripts(Vec::new())
        }
        None => {
            let places = spelt(bytes, "scriptPath").into_iter().filter_map(|named| bases.places(folder, &named));
            Claimed::Scripts(places.flatten().chain([folder.to_path_buf()]).collect())
        }
        Some(named) => match bases.find(Some(folder), named) {
            Ok(found) => Claimed::Scripts(found.site.script.into_iter().collect()),
            Err(_) => {
                bases.places(folder, named).map_or_else(|| Claimed::Beside(folder.to_path_buf()), Claimed::Scripts)
            }
        },
    };
    Claim { manifest: manifest.to_path_buf(), what }
}

/// What follows a field's name in a text, up to sixteen times.
fn spelt(bytes: &[u8], field: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let after = text.split(field).skip(1).take(16);
    let values = after.filter_map(|rest| rest.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':'));
    values.filter_map(|rest| serde_json::Deserializer::from_str(rest).into_iter().next()?.ok()).collect()
}

impl DirectToolLoader {
    /// Both lists are scanned, and both are script bases; scripts are looked up in `scripts` first.
    pub fn new(tools: Vec<PathBuf>, scripts: Vec<PathBuf>) -> DirectToolLoader {
        DirectToolLoader { tools, scripts, files: Vec::new(), stricter: None }
    }

    /// Adds single manifests, wherever they lie: the folder of each is a script base too.
    pub fn and_files(mut self, files: Vec<PathBuf>) -> DirectToolLoader {
        self.files = files;
        self
    }

    /// Also holds every manifest to this JSON Schema, where the operator has one.
    pub fn stricter(mut self, schema: Option<schema::Schema>) -> DirectToolLoader {
        self.stricter = schema;
        self
    }

    /// Script bases, in the order they are searched.
    fn script_bases(&self) -> scripts::Bases {
        let own = self.files.iter().filter_map(|file| file.parent()).map(Path::to_path_buf);
        scripts::Bases::open(&self.scripts.iter().chain(&self.tools).cloned().chain(own).collect::<Vec<_>>())
    }

    /// Reads one file; a panic while it is parsed skips that file and does not end the scan.
    fn read_guarded(&self, candidate: &Candidate, bases: &scripts::Bases) -> Read {
        let read = std::panic::AssertUnwindSafe(|| self.read(candidate, bases));
        std::panic::catch_unwind(read).unwrap_or_else(|_| {
            let message = "this file made the reader fail: a fault in toolhost; please report it";
            let path = candidate.base.path.join(&candidate.relative);
            let claim = claim(&path, b"", bases);
            Read {
                report: FileReport::skipped(path, Problem::new(Severity::Error, Code::Unreadable, "", message)),
                found: Err(claim),
            }
        })
    }

    fn read(&self, candidate: &Candidate, bases: &scripts::Bases) -> Read {
        let path = candidate.base.path.join(&candidate.relative);
        let read = open_beneath::read(&candidate.base.folder, &candidate.relative, MAX_DEFINITION_BYTES);
        let bytes = read.as_deref().unwrap_or_default();
        let unloaded = |tool, problems| {
            let claims = spelt(bytes, "toolId").into_iter().next();
            let report = FileReport { path: path.clone(), status: Status::Skipped, tool, claims, problems };
            Read { report, found: Err(claim(&path, bytes, bases)) }
        };
        let skipped = |problems| unloaded(None, problems);
        if let Err(refusal) = &read {
            let mut read = skipped(vec![Problem::new(Severity::Error, Code::Unreadable, "", refusal.why())]);
            if let open_beneath::OpenError::System(_) = refusal {
                read.found = Err(Claim { manifest: path, what: Claimed::Any });
            }
            return read;
        }
        if path.to_string_lossy().ends_with(DESCRIPTOR) {
            return match descriptor::read(bytes) {
                Ok((found, problems)) => self.described(path, &candidate.base.path, found, problems),
                Err(problems) => skipped(problems),
            };
        }
        let (manifest, mut warnings) = match manifest::read(bytes) {
            Ok(read) => read,
            Err(problems) => return skipped(problems),
        };
        if let Some(stricter) = &self.stricter {
            let mut broken: Vec<_> = stricter.flaws(&manifest.raw).iter().map(house_rule).collect();
            if !broken.is_empty() {
                position::locate_in(&mut broken, bytes);
                return skipped(broken);
            }
        }
        let reference = format!("{}@{}", manifest.id, manifest.version);
        let site = match self.site(&manifest, &path, &candidate.base.path, bases, &mut warnings) {
            Ok(site) => site,
            Err(broken) => {
                let mut problems = vec![broken];
                problems.append(&mut warnings);
                position::locate_in(&mut problems, bytes);
                return unloaded(Some(reference), problems);
            }
        };
        warnings.extend(without_connect(&manifest, &site));
        position::locate_in(&mut warnings, bytes);
        warnings.extend(shared::tool(&site));
        let report = FileReport::loaded(path, Some(reference), warnings);
        let tool = Tool::new(Arc::new(manifest), site, self.id());
        Read { report, found: Ok((vec![tool], Vec::new())) }
    }

    /// A file of descriptors.
    fn described(&self, path: PathBuf, base: &Path, found: Descriptors, problems: Vec<Problem>) -> Read {
        let folder = path.parent().unwrap_or(base).to_path_buf();
        let site = Site { manifest: path.clone(), base: base.to_path_buf(), script: None, folder };
        let problems = problems.into_iter().chain(shared::tool(&site)).collect();
        let service = |descriptor| Described { descriptor: Arc::new(descriptor), file: path.clone() };
        let services = found.services.into_iter().map(service).collect();
        let tools = found.tools.into_iter().map(|tool| Tool::new(Arc::new(tool), site.clone(), self.id())).collect();
        let report = FileReport::loaded(path.clone(), None, problems);
        Read { report, found: Ok((tools, services)) }
    }

    /// Where the tool lies; its script must be there now.
    fn site(
        &self,
        manifest: &manifest::Manifest,
        path: &Path,
        base: &Path,
        bases: &scripts::Bases,
        warnings: &mut Vec<Problem>,
    ) -> Result<Site, Problem> {
        let folder = path.parent().unwrap_or(base).to_path_buf();
        let ending = manifest.document().map_or(ENDING, |document| document.ending());
        if !path.to_string_lossy().ends_with(ending) {
            let message = format!("a file with a handler of this type is named *{ending}");
            return Err(Problem::new(Severity::Error, Code::Schema, "/handler/type", message));
        }
        let Handler::Script { script_path, .. } = &manifest.handler else {
            return Ok(Site { manifest: path.to_path_buf(), base: base.to_path_buf(), script: None, folder });
        };
        match bases.find(Some(&folder), script_path) {
            Ok(found) => {
                if let Some(note) = found.note {
                    let severity = if note.doubtful { Severity::Warning } else { Severity::Note };
                    warnings.push(Problem::new(severity, Code::Dependency, SCRIPT, note.words));
                }
                Ok(Site { manifest: path.to_path_buf(), ..found.site })
            }
            Err(fault) => {
                let code = if fault.kind == Kind::SecurityError { Code::Security } else { Code::Dependency };
                Err(Problem::new(Severity::Error, code, SCRIPT, fault.person.unwrap_or(fault.message)))
            }
        }
    }
}

/// WASI preview 1 has no call that connects: a module of it never reaches the hosts that its manifest asks for.
fn without_connect(manifest: &manifest::Manifest, site: &Site) -> Option<Problem> {
    let Handler::Script { language: Language::Wasm, .. } = manifest.handler else { return None };
    let script = site.script.as_ref().filter(|_| !manifest.asks.hosts.is_empty())?;
    let file = files::open(script, OFlag::O_NOFOLLOW).ok()?;
    let mut beginning = Vec::new();
    file.take(HEAD).read_to_end(&mut beginning).ok()?;
    let text = String::from_utf8_lossy(&beginning);
    // The first bytes of a module and of a component differ in the layer (Component Model, Binary.md).
    let module = beginning.starts_with(b"\0asm\x01\0\0\0") || text.trim_start().starts_with("(module");
    let message =
        "a WASI preview 1 module cannot connect, so it reaches none of these hosts: build a component (WASI 0.2)";
    module.then(|| Problem::new(Severity::Warning, Code::Dependency, HOSTS, message))
}

fn house_rule(flaw: &schema::Flaw) -> Problem {
    let what = match &flaw.what {
        schema::Breach::Missing(name) => format!("'{name}' is missing"),
        schema::Breach::Unknown(names) => format!("not allowed here: {}", names.join(", ")),
        schema::Breach::Must(must) => must.clone(),
    };
    let message = format!("{} (this host's own manifest rules)", text::printable(&what));
    Problem::new(Severity::Error, Code::Schema, &*flaw.pointer, message)
}

impl Source for DirectToolLoader {
    fn id(&self) -> &str {
        "files"
    }

    fn discover(&self) -> Result<Discovery, String> {
        let mut discovery = Discovery::default();
        let mut candidates = scan::all(self.tools.iter().chain(&self.scripts), &mut discovery);
        candidates.extend(self.files.iter().filter_map(|file| scan::one(file)));
        let bases = self.script_bases();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        let share =
            if candidates.len() < WORTH_A_THREAD { candidates.len() } else { candidates.len().div_ceil(threads) };
        let work = |chunk: &[Candidate]| chunk.iter().map(|c| self.read_guarded(c, &bases)).collect::<Vec<_>>();
        let work = &work;
        let read: Vec<_> = std::thread::scope(|scope| {
            let (first, rest) = candidates.split_at(share.min(candidates.len()));
            let spawn = |chunk| std::thread::Builder::new().spawn_scoped(scope, move || work(chunk)).ok();
            let threads: Vec<_> = rest.chunks(share.max(1)).map(|chunk| (chunk, spawn(chunk))).collect();
            let mut done = work(first);
            for (chunk, thread) in threads {
                // The machine gave no thread: the work is done in this one.
                done.extend(thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| work(chunk)));
            }
            done
        });
        for Read { report, found } in read {
            discovery.reports.push(report);
            match found {
                Ok((tools, services)) => {
                    discovery.tools.extend(tools);
                    discovery.services.extend(services);
                }
                Err(claim) => discovery.claims.push(claim),
            }
        }
        // The scan's own reports are in the order of the disk.
        discovery.reports.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(discovery)
    }
}
