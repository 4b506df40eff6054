//! The audit text of every shipped tool, as a person reads it, against `tests/golden/audit/`.
//! `UPDATE_GOLDEN=1` writes the files again; read what changed before it is committed.

use crate::prelude::*;
use toolhost::cli::audit;
use toolhost::manifest::Language;
use toolhost::{policy, registry};

/// A machine that is the same everywhere, so that the text is.
fn machine() -> policy::Machine {
    let runtimes = [
        (Language::Python, "/usr/bin/python3", "-s -E -B"),
        (Language::Nodejs, "/usr/bin/node", ""),
        (Language::Bun, "/usr/bin/bun", ""),
    ];
    let runtimes = runtimes.map(|(language, program, arguments)| {
        let runtime = policy::Runtime {
            language,
            program: policy::Program::Path(program.into()),
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            roots: vec![program.into()],
            version: "1.2.3".into(),
            found: "PATH".into(),
            environment: None,
        };
        (language, runtime)
    });
    policy::Machine {
        runtimes: runtimes.into(),
        cgroup: true,
        ..policy::Machine::default()
    }
}

/// Paths of this clone and the widths they cause, taken out.
fn plain(text: &str, root: &Path) -> String {
    let text = text.replace(root.to_str().unwrap(), "[root]");
    let lines = text.lines().map(|line| {
        let words = line.trim_start();
        let lead = " ".repeat(line.len() - words.len());
        let cells: Vec<&str> = words
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        format!("{lead}{}\n", cells.join("  "))
    });
    lines.collect()
}

#[test]
fn every_shipped_tool_is_audited_as_its_golden_text_says() {
    let copy = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = copy.path().canonicalize().unwrap();
    crate::shipped::copy_to(&root);
    let registry = registry::Registry::new();
    registry.add_source(Arc::new(registry::Builtin)).unwrap();
    let files = registry::DirectToolLoader::new(
        vec![root.join("tool-defs")],
        vec![root.join("user_scripts")],
    );
    registry.add_source(Arc::new(files)).unwrap();
    let policies = policy::Policies::load(&root.join("sandbox-policies"), &root).unwrap();
    let (snapshot, machine) = (registry.snapshot(), machine());
    let policies = snapshot.protect(&policies);
    let shipped = snapshot.list(&registry::Filter::default());
    assert!(shipped.len() >= 10, "{}", shipped.len());

    let folder = crate::shipped::repository().join("tests/golden/audit");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut known: Vec<PathBuf> = Vec::new();
    let mut wrong = Vec::new();
    for tool in &shipped {
        let decision = policy::decide(&tool.manifest, &tool.site, &policies, &machine);
        let text = plain(&audit::one(&decision, &tool.manifest, false), &root);
        let file = folder.join(format!("{}.txt", tool.manifest.id.replace(':', "__")));
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &text).unwrap();
        } else if (cfg!(feature = "wasi") || tool.manifest.id != "text:stats-wasi")
            && fs::read_to_string(&file).unwrap_or_default() != text
        {
            wrong.push(format!("{}\n{text}", file.display()));
        }
        known.push(file);
    }
    assert!(
        wrong.is_empty(),
        "not as the golden text (UPDATE_GOLDEN=1 writes it again):\n{}",
        wrong.join("\n")
    );
    let mut stale = fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| !known.contains(p));
    assert_eq!(stale.next(), None, "a golden text of no shipped tool");
}
