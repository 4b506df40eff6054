//! Python: virtual environments, conda, uv and the distribution's Python, told apart by their
//! files.

use super::binary::{Binary, Roots, small_text};
use super::trust;
use crate::manifest::Language;
use crate::policy;
use std::path::{Path, PathBuf};

/// No user site, no `PYTHON*` variables, no `.pyc` written; sibling imports and the environment's
/// packages work.
const ARGUMENTS: [&str; 3] = ["-s", "-E", "-B"];

pub(super) fn runtime(binary: &Binary, found: &str) -> Result<policy::Runtime, String> {
    let mut roots = Roots::default();
    let environment = environment_of(&binary.path);
    let base = match &environment {
        Some(environment) => base_of(environment)?,
        None => binary.real.clone(),
    };
    trust::path(&base)?;
    let base = base
        .canonicalize()
        .map_err(|e| format!("{}: {e}", base.display()))?;
    let prefix = prefix_of(&base)?;
    let minor = minor_of(&base, &prefix)?;
    if !minor.starts_with("3.") {
        return Err(format!("it is Python {minor}; Python 3 is needed"));
    }
    let program = match &environment {
        Some(environment) => {
            for part in ["pyvenv.cfg", "bin", "lib", "lib64", "share", "etc"] {
                roots.add(environment.folder.join(part));
            }
            roots.chain(&binary.path);
            // Python looks for its standard library beside `home`, by that very path.
            roots.links(&environment.home);
            binary.path.clone()
        }
        None => binary.real.clone(),
    };
    base_roots(&mut roots, &base, &prefix, &minor);
    let version = version_of(&prefix, &minor);
    Ok(policy::Runtime {
        language: Language::Python,
        program: policy::Program::Path(program),
        arguments: ARGUMENTS.map(str::to_owned).to_vec(),
        roots: roots.finish(),
        version,
        found: found.to_owned(),
        environment: None,
    })
}

/// Adds the files of the base interpreter: itself, its standard library, its shared libraries.
fn base_roots(roots: &mut Roots, base: &Path, prefix: &Path, minor: &str) {
    roots.add(base);
    roots.store(base);
    if prefix == Path::new("/usr") {
        // Debian's folder for packages that an administrator installs with pip.
        roots.add(format!("/usr/local/lib/python{minor}"));
        return;
    }
    if prefix.join("conda-meta").is_dir() {
        // A conda environment is one tree of packages that refer to each other.
        roots.add(prefix);
        return;
    }
    for lib in ["lib", "lib64"] {
        roots.add(prefix.join(lib).join(format!("python{minor}")));
    }
    roots.libraries(prefix);
    // An interpreter in /usr/local finds its own library through this index.
    roots.add("/etc/ld.so.cache");
}

/// A virtual environment: its folder, and the `bin` of the interpreter it was made from.
struct Environment {
    folder: PathBuf,
    home: PathBuf,
    version: Option<String>,
}

/// The virtual environment that `path` is started in: Python looks for `pyvenv.cfg` one folder
/// above its own.
fn environment_of(path: &Path) -> Option<Environment> {
    let folder = path.parent()?.parent()?;
    let text = small_text(&folder.join("pyvenv.cfg"))?;
    fn value(key: &str, text: &str) -> Option<String> {
        let line = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(name, _)| name.trim() == key)?;
        Some(line.1.trim().to_owned())
    }
    let home = PathBuf::from(value("home", &text)?);
    let version = value("version_info", &text).or_else(|| value("version", &text));
    Some(Environment {
        folder: folder.to_owned(),
        home,
        version,
    })
}

/// The interpreter a virtual environment was made from.
fn base_of(environment: &Environment) -> Result<PathBuf, String> {
    if !environment.home.is_absolute() {
        return Err(format!(
            "{}: `home` is not absolute",
            environment.folder.join("pyvenv.cfg").display()
        ));
    }
    let minor = environment.version.as_deref().and_then(first_two);
    let names = minor
        .iter()
        .map(|minor| format!("python{minor}"))
        .chain(["python3".to_owned(), "python".to_owned()]);
    let mut names = names.map(|name| environment.home.join(name));
    names.find(|path| path.is_file()).ok_or_else(|| {
        format!(
            "{}: its base interpreter is gone; make a new environment",
            environment.folder.display()
        )
    })
}

fn prefix_of(base: &Path) -> Result<PathBuf, String> {
    let prefix = base.parent().and_then(Path::parent);
    prefix
        .map(Path::to_owned)
        .ok_or_else(|| format!("{} is in no bin folder", base.display()))
}

/// `3.11`, from the file's name or from the one standard library beside it.
fn minor_of(base: &Path, prefix: &Path) -> Result<String, String> {
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    if let Some(minor) = name.strip_prefix("python").and_then(first_two) {
        return Ok(minor);
    }
    let library = prefix.join("lib");
    let minors: Vec<String> = library
        .read_dir()
        .map_err(|e| format!("{}: {e}", library.display()))?
        .filter_map(|entry| first_two(entry.ok()?.file_name().to_str()?.strip_prefix("python")?))
        .filter(|minor| library.join(format!("python{minor}/os.py")).is_file())
        .collect();
    match minors.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(format!(
            "{} does not tell which Python it is",
            base.display()
        )),
    }
}

/// `3.11.7` from the header if it is installed, else `3.11`.
fn version_of(prefix: &Path, minor: &str) -> String {
    let header =
        small_text(&prefix.join(format!("include/python{minor}/patchlevel.h"))).unwrap_or_default();
    let line = header
        .lines()
        .find_map(|line| line.trim().strip_prefix("#define PY_VERSION"));
    let quoted = line
        .and_then(|rest| rest.split('"').nth(1))
        .filter(|version| version.starts_with(minor));
    quoted.unwrap_or(minor).to_owned()
}

/// `3.11` of `3.11.7` and of `3.11`.
fn first_two(version: &str) -> Option<String> {
    let mut parts = version.split('.');
    let major = parts.next()?;
    let minor = parts.next()?;
    fn digits(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
    }
    (digits(major) && digits(minor)).then(|| format!("{major}.{minor}"))
}
