//! What this repository ships: tests look at a copy of it, since a clone also holds what its user made in it.

use crate::prelude::*;
/// Every file below `tool-defs`, `user_scripts` and `sandbox-policies` that is ours.
const FILES: [&str; 30] = [
    "sandbox-policies/core.policy.toml",
    "sandbox-policies/default.policy.toml",
    "sandbox-policies/github.policy.toml",
    "sandbox-policies/reports.policy.toml",
    "sandbox-policies/weather.policy.toml",
    "tool-defs/core/execute-nodejs-script.tool.json",
    "tool-defs/core/execute-python-script.tool.json",
    "tool-defs/core/execute-script.tool.json",
    "tool-defs/core/run-code.tool.json",
    "tool-defs/core/task-status.tool.json",
    "tool-defs/examples/echo.tool.json",
    "tool-defs/examples/long-running.tool.json",
    "user_scripts/csv-summary/csv-summary.tool.json",
    "user_scripts/csv-summary/csv_summary.py",
    "user_scripts/csv-summary/data/sales.csv",
    "user_scripts/examples/echo.py",
    "user_scripts/examples/long_running.py",
    "user_scripts/github-issues/github-issues.tool.json",
    "user_scripts/github-issues/github_issues.py",
    "user_scripts/report-writer/out/.gitignore",
    "user_scripts/report-writer/report-writer.tool.json",
    "user_scripts/report-writer/report_writer.py",
    "user_scripts/text-stats-node/text-stats-node.tool.json",
    "user_scripts/text-stats-node/text_stats.mjs",
    "user_scripts/text-stats-wasi/build.sh",
    "user_scripts/text-stats-wasi/text-stats-wasi.tool.json",
    "user_scripts/text-stats-wasi/text_stats.c",
    "user_scripts/text-stats-wasi/text_stats.wat",
    "user_scripts/weather/weather.py",
    "user_scripts/weather/weather.tool.json",
];

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap()
}

/// Copies what is shipped into this folder.
pub fn copy_to(folder: &Path) {
    for file in FILES {
        let target = folder.join(file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(repository().join(file), &target).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

/// A host of its own with what is shipped.
pub fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    for name in ["tool-defs", "user_scripts", "sandbox-policies"] {
        fs::remove_dir_all(playground.path(name)).unwrap();
    }
    copy_to(&playground.base);
    playground.settle();
    playground
}

/// A new file that is shipped is in the list. (An archive has no index to ask.)
#[test]
fn the_list_is_what_the_repository_has() {
    let folders = ["tool-defs", "user_scripts", "sandbox-policies"];
    let mut git = std::process::Command::new("git");
    let listed = git.arg("ls-files").args(folders).current_dir(repository()).output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success() && !listed.stdout.is_empty()) else {
        return;
    };
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut tracked: Vec<&str> = text.lines().collect();
    tracked.sort_unstable();
    assert_eq!(tracked, FILES);
}

/// What users copy from is right as it stands.
#[test]
fn check_finds_no_fault_in_what_is_shipped() {
    let checked = playground(Who::ours()).cli(&["check", "--json"]);
    let files = checked.out.as_array().unwrap();
    let severe = |problem: &serde_json::Value| problem["severity"] != "note";
    let faults = files.iter().flat_map(|file| file["problems"].as_array().unwrap()).filter(|problem| severe(problem));
    assert_eq!(faults.count(), 0, "{}", checked.text());
}
