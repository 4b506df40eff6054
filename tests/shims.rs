//! The `entryPoint` shims, run by the real interpreters outside the layers: answers, and messages
//! that name the fix. An entry point is something that the script itself defines.

use crate::prelude::*;
use std::ffi::OsString;
use toolhost::manifest::Language;
use toolhost::policy::{Program, Runtime};
use toolhost::runtimes;

/// What lies beside each script.
const HELPERS: [(&str, &str); 3] = [
    ("helper.py", include_str!("shims/helper.py")),
    ("helper.mjs", include_str!("shims/helper.mjs")),
    ("helper.cjs", include_str!("shims/helper.cjs")),
];

/// Runs `entry` of a script called `name` with that text: exit code, answer and standard error.
fn run(
    runtime: &Runtime,
    name: &str,
    text: &str,
    entry: &str,
    input: &str,
) -> (Option<i32>, String, String) {
    let (folder, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut shape = toolhost::policy::Shape::bare("test:shim@1.0.0", runtime.clone());
    shape.entry_point = Some(entry.to_owned());
    let (guest, shim_text) = runtimes::shim(&shape).expect("a shim");
    let shim = own
        .path()
        .join(Path::new(guest).file_name().expect("a name"));
    fs::write(&shim, shim_text).unwrap();
    for (name, text) in HELPERS.into_iter().chain([(name, text)]) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let Program::Path(program) = &runtime.program else {
        panic!("{runtime:?}")
    };
    let mut command = Command::new(program);
    command
        .args(&runtime.arguments)
        .args([&shim, &folder.path().join(name)])
        .arg(entry);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir(folder.path());
    let ended = finish(command, input.as_bytes());
    (ended.code, ended.text(), ended.stderr)
}

/// The rows of `shims/rows.txt` for this language, of which there are at least so many.
fn rows(language: Language, word: &str, least: usize) {
    // In CI a missing interpreter fails.
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found = runtimes::discover(&path, &runtimes::OffLimits::default())
        .runtimes
        .remove(&language);
    let Some(runtime) = found else {
        return missing(least, word);
    };
    let (mut extension, mut count) = (None, 0);
    for row in include_str!("shims/rows.txt")
        .lines()
        .filter(|row| !row.starts_with('#'))
    {
        if let Some(head) = row.strip_prefix("@ ") {
            let words: Vec<&str> = head.split(' ').collect();
            extension = words
                .contains(&word)
                .then(|| words.last().copied().unwrap());
            continue;
        }
        let Some(extension) = extension else { continue };
        let [entry, input, script, wanted] =
            row.split(" ¦ ").collect::<Vec<_>>().try_into().unwrap();
        let script = script.replace('⏎', "\n");
        let (code, out, err) = run(
            &runtime,
            &format!("analyzer.{extension}"),
            &script,
            entry,
            input,
        );
        count += 1;
        if let Some(answer) = wanted.strip_prefix("= ") {
            assert_eq!(
                (code, out),
                (Some(0), format!("{answer}\n")),
                "{row}\n{err}"
            );
            continue;
        }
        // The last line of stderr is the fix.
        let fix = err
            .lines()
            .next_back()
            .and_then(|line| line.strip_prefix("toolhost: "));
        assert!(
            fix.is_some_and(|fix| fix.contains(&wanted[2..])),
            "{row}\n{err}"
        );
        assert!(
            code.is_some_and(|code| code != 0) && out.is_empty(),
            "{row}: {code:?} {out}"
        );
        assert!(
            !err.contains("entry.py\"") && !err.contains("entry.mjs:"),
            "shim frames: {err}"
        );
    }
    assert!(count >= least, "{count}");
    if language == Language::Python {
        // A script that is named like a library takes nothing from it.
        let (_, out, err) = run(
            &runtime,
            "json.py",
            "def f():\n  import asyncio\n  return __name__",
            "f",
            "{}",
        );
        assert_eq!(out, "\"script_json\"\n", "{err}");
    }
}

#[test]
fn python_calls_only_what_the_script_defines_and_names_the_fix() {
    rows(Language::Python, "python", 50);
}

#[test]
fn node_calls_only_what_the_script_defines_and_names_the_fix() {
    rows(Language::Nodejs, "nodejs", 50);
}

#[test]
fn bun_calls_only_what_the_script_defines_and_names_the_fix() {
    rows(Language::Bun, "bun", 50);
}

#[test]
fn the_reason_is_the_last_marked_line() {
    let logs = ["toolhost: forged", "x", "toolhost: the fix", ""];
    assert_eq!(runtimes::shim_reason(logs.into_iter()), Some("the fix"));
    assert_eq!(runtimes::shim_reason(["x"].into_iter()), None);
}
