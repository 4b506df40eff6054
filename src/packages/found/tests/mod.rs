//! What each file says, and what of it is refused: here what holds for all of them.

mod node;
mod python;

use super::*;
use node::{PACKAGE, SHA512, bun_lock, npm_lock};
use proptest::prelude::*;
use python::{BLOCK, PROJECT, pylock, uv_lock};
use std::fs;

const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn found(script: &str, alone: bool, files: &[(&str, &str)]) -> Result<Option<Wanted>, FileProblem> {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a folder");
    for (name, text) in files {
        fs::write(root.join(name), text).expect("a file");
    }
    let script = root.join(script);
    if !script.exists() {
        fs::write(&script, "").expect("a script");
    }
    let language = Language::of_file_name(&script.to_string_lossy())[0];
    find(&Place { script: &script, language, alone, anew: false, writer: &|_| None })
}

fn python(files: &[(&str, &str)]) -> Result<Option<Wanted>, FileProblem> {
    found("run.py", false, files)
}

fn node(files: &[(&str, &str)]) -> Result<Option<Wanted>, FileProblem> {
    found("run.mjs", false, files)
}

fn input<'w>(wanted: &'w Wanted, name: &str) -> &'w str {
    &wanted.inputs.iter().find(|(input, _)| input == name).expect("an input").1
}

/// The words of the problem, after the file's name and line.
fn refused(found: Result<Option<Wanted>, FileProblem>) -> String {
    let FileProblem { path, problem } = found.expect_err("should be refused");
    format!("{}:{}: {}", path.file_name().expect("a name").to_string_lossy(), problem.line, problem.message)
}

#[test]
fn only_plain_files_are_read() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a folder");
    let (script, file) = (root.join("run.py"), root.join("requirements.txt"));
    fs::write(&script, "").expect("a script");
    let look = |writer: &dyn Fn(&Path) -> Option<String>| {
        find(&Place { script: &script, language: Language::Python, alone: false, anew: false, writer })
    };
    let nobody = |_: &Path| None;
    symlink("/etc/hostname", &file).expect("a link");
    assert!(refused(look(&nobody)).contains("symbolic link"));
    fs::remove_file(&file).expect("gone");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(refused(look(&nobody)).contains("no regular file"));
    fs::remove_file(&file).expect("gone");
    fs::File::create(&file).and_then(|f| f.set_len(9 << 20)).expect("a large file");
    assert!(refused(look(&nobody)).contains("larger than"));
    fs::write(&file, b"six\xff").expect("a file");
    assert!(refused(look(&nobody)).contains("not UTF-8"));
    fs::write(&file, "six\n").expect("a file");
    assert!(
        refused(look(&|_| Some("demo:other may write".to_owned())))
            .contains("demo:other may write here, and a tool cannot choose packages")
    );
    assert!(look(&nobody).is_ok_and(|found| found.is_some()), "control");
}

#[test]
fn a_module_has_no_packages_but_says_what_lies_beside_it() {
    for files in [[("requirements.txt", "six\n"), ("x", "")], [("package.json", PACKAGE), ("x", "")]] {
        assert!(found("run.wasm", false, &files).expect("good").is_some());
        assert_eq!(found("run.wasm", true, &files), Ok(None));
    }
}

/// Nothing reaches an installer but these characters.
fn plain(wanted: &Wanted) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=<>!~,[]; '()*+@/:\"{}^| \n".contains(c);
    wanted.inputs.iter().all(|(_, text)| text.chars().all(allowed) && !text.lines().any(|line| line.starts_with('-')))
}

/// Pieces of real files, so that many texts come near to a good one.
fn pieces() -> impl Strategy<Value = String> {
    let real = prop::sample::select(vec![
        "six",
        "==",
        "1.16.0",
        ">=1",
        " ",
        "\n",
        "\\\n",
        " --hash=",
        HASH,
        ";",
        "python_version",
        "'3'",
        "\"",
        "'",
        "and",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "=",
        ",",
        ":",
        "#",
        "@",
        "git+",
        "-e",
        "-r x",
        "\u{0}",
        "\u{1b}",
        "é",
        "name",
        "version",
        "dependencies",
        "packages",
        "[[package]]",
        "[project]",
        "node_modules/",
        "../",
        "integrity",
        SHA512,
        "left-pad",
        "\"^1.0.0\"",
        "null",
        "true",
        "1",
    ]);
    prop::collection::vec(prop_oneof![4 => real.prop_map(str::to_owned), 1 => ".{0,3}"], 0..40)
        .prop_map(|parts| parts.concat())
}

/// A good file with one part of it changed.
fn changed(good: String) -> impl Strategy<Value = String> {
    (0..=good.len(), 0usize..20, pieces()).prop_map(move |(at, length, piece)| {
        let from = good.floor_char_boundary(at);
        let to = good.floor_char_boundary((from + length).min(good.len()));
        format!("{}{}{}", &good[..from], piece, &good[to..])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_text_makes_the_readers_fail_or_reaches_an_installer(
        text in pieces(),
        requirements in changed(format!("flask>=1 ; python_version >= '3.9'\nsix==1.16.0 --hash={HASH}\n")),
        uv in changed(uv_lock("1.16.0")),
        lock in changed(pylock("1.16.0")),
        npm in changed(npm_lock("1.3.0")),
        bun in changed(bun_lock("1.3.0")),
        package in changed(PACKAGE.to_owned()),
        project in changed(PROJECT.to_owned()),
        block in changed(BLOCK.to_owned()),
    ) {
        let all = [
            python(&[("requirements.txt", &text)]),
            python(&[("requirements.txt", &requirements)]),
            python(&[("pyproject.toml", &project)]),
            python(&[("pyproject.toml", PROJECT), ("uv.lock", &uv)]),
            python(&[("pylock.toml", &lock)]),
            python(&[("run.py", &block)]),
            node(&[("package.json", &package)]),
            node(&[("package.json", PACKAGE), ("package-lock.json", &npm)]),
            node(&[("package.json", PACKAGE), ("bun.lock", &bun)]),
        ];
        for wanted in all.iter().flatten().flatten() {
            prop_assert!(plain(wanted), "{:?}", wanted.inputs);
            let hashed = wanted.packages.iter().all(|package| !package.hashes.is_empty());
            prop_assert!(!wanted.locked || hashed, "{:?}", wanted.packages);
        }
        for problem in all.iter().filter_map(|found| found.as_ref().err()) {
            prop_assert!(crate::base::text::is_printable(&problem.problem.message), "{}", problem.problem.message);
        }
    }
}

#[test]
fn many_entries_are_refused_before_they_are_compared() {
    let same = "a==1\n".repeat(5000);
    let asked = "\"a>=1\",".repeat(5000);
    let project = format!("[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [{asked}]\n");
    let said = refused(python(&[("requirements.txt", &same), ("pyproject.toml", &project)]));
    assert!(said.contains("too many entries for one package"), "{said}");
    let crowd: Vec<String> = (0..6000).map(|n| format!("\"p{n}\": \"1\"")).collect();
    let said = refused(node(&[("package.json", &format!("{{\"dependencies\": {{{}}}}}", crowd.join(",")))]));
    assert!(said.contains("more than 5000 packages"), "{said}");
}
