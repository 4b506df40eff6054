//! Layer: environment. It starts empty: the tool sees no variable of the host that was not passed on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use toolhost_base::mask::Hidden;

/// Set to the CPUs that this process may use: libraries that start a thread for each CPU of the
/// machine would run into the limit `processes`.
const THREAD_COUNTS: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
];

/// `NAME=value` lines that every tool gets. The folder of `program` comes first in its PATH.
pub fn usual_lines(program: Option<&Path>) -> Vec<String> {
    let mut path = "/usr/bin:/bin".to_owned();
    if let Some(folder) = program.and_then(Path::parent).and_then(Path::to_str)
        && !["/usr/bin", "/bin"].contains(&folder)
    {
        path = format!("{folder}:{path}");
    }
    let mut out = vec![
        format!("PATH={path}"),
        "HOME=/tmp".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        "LANG=C.UTF-8".to_owned(),
    ];
    // Cached, because each query reads files of the cgroup.
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    out.extend(THREAD_COUNTS.iter().map(|name| format!("{name}={cpus}")));
    out
}

/// The lines of one call: its own variables replace those with the same names.
pub fn call_lines(lines: &[String], own: &BTreeMap<String, String>) -> Hidden<Vec<String>> {
    let kept = lines.iter().filter(|line| {
        line.split_once('=')
            .is_none_or(|(name, _)| !own.contains_key(name))
    });
    Hidden(
        kept.cloned()
            .chain(own.iter().map(|(name, value)| format!("{name}={value}")))
            .collect(),
    )
}
