//! Layer: environment. It starts empty: the tool sees a variable of the host only if `env:NAME` is
//! granted.

use crate::base::mask::Hidden;
use crate::policy::{Program, Shape};
use std::collections::BTreeMap;
use std::sync::OnceLock;

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

/// `NAME=value` lines of every call: what all tools get, then literals of the shape and granted
/// host variables.
pub fn shape_lines(shape: &Shape) -> Vec<String> {
    let mut path = "/usr/bin:/bin".to_owned();
    if let Program::Path(program) = &shape.runtime.program
        && let Some(folder) = program.parent().and_then(|f| f.to_str())
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
    // A WASI module gets its variables in a message: its worker is our own program and must not
    // obey them.
    let tool = matches!(shape.runtime.program, Program::Path(_));
    out.extend(
        shape
            .env
            .iter()
            .filter(|_| tool)
            .map(|(name, value)| format!("{name}={}", value.text())),
    );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::process::examine;
    use crate::policy::Variable;

    #[test]
    fn our_own_programs_obey_no_variable_of_a_manifest() {
        let mut shape = examine::bare(examine::ourselves());
        shape
            .env
            .insert("RUST_MIN_STACK".into(), Variable::Literal("1".into()));
        let set = |shape: &Shape| shape_lines(shape).contains(&"RUST_MIN_STACK=1".to_owned());
        assert!(!set(&shape));
        shape.runtime.program = Program::Path("/usr/bin/python3".into());
        assert!(set(&shape), "the control");
    }
}
