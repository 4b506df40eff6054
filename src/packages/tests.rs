//! What is read from each kind of file, and what is refused.

use super::*;
use crate::manifest::Language;
use std::fs;

const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const SHA512: &str = "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";
const PROJECT: &str =
    "[project]\nname = \"Demo\"\nversion = \"1\"\ndependencies = [\n  \"six>=1\",\n]\n";
const BLOCK: &str = "# /// script\n# dependencies = [\n#   \"six>=1\",\n# ]\n# ///\nimport six\n";
const PACKAGE: &str = "{\n  \"dependencies\": {\n    \"left-pad\": \"^1.0.0\"\n  }\n}\n";

fn found(
    script: &str,
    alone: bool,
    files: &[(&str, &str)],
) -> Result<Option<PackageRequirements>, FileProblem> {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a folder");
    fs::write(root.join(script), "").expect("a script");
    for (name, text) in files {
        fs::write(root.join(name), text).expect("a file");
    }
    let script = root.join(script);
    let language = Language::of_file_name(&script.to_string_lossy())[0];
    let version = Some(if language == Language::Python {
        "3.11.7"
    } else {
        "20.11.1"
    });
    find(&ScriptLocation {
        script: &script,
        own: script.parent().expect("a folder"),
        language,
        version,
        alone,
        ignore_lock: false,
        writer: &|_| None,
    })
}

fn good(script: &str, files: &[(&str, &str)]) -> PackageRequirements {
    found(script, false, files).expect("good").expect("some")
}

/// The words of the problem, after the file's name and line.
fn refused(script: &str, files: &[(&str, &str)]) -> String {
    let FileProblem { path, problem } = found(script, false, files).expect_err("should be refused");
    format!(
        "{}:{}: {}",
        path.file_name().expect("a name").to_string_lossy(),
        problem.line,
        problem.message
    )
}

fn pylock(version: &str, marker: &str) -> String {
    format!(
        "lock-version = \"1.0\"\n\n[[packages]]\nname = \"six\"\nversion = \"{version}\"\nmarker = \
         \"{marker}\"\nwheels = [{{ url = \"https://evil/s.whl\", hashes = {{ sha256 = \"{}\", md5 \
         = \"x\" }} }}]\n",
        &HASH[7..]
    )
}

#[test]
fn a_lock_of_python_becomes_lines_without_markers() {
    let line = format!("six==1.16.0 --hash={HASH}\n");
    let marked = format!(
        "six===1.16.0 ; python_version < '4' --hash={HASH}\nwin==1 ; sys_platform == 'win32' \
        --hash={HASH}\n"
    );
    for (name, text) in [
        ("requirements.txt", &marked),
        ("pylock.toml", &pylock("1.16.0", "python_version < '4'")),
    ] {
        let wanted = good("run.py", &[(name, text)]);
        assert!(wanted.locked && wanted.packages.len() == 1);
        assert_eq!(
            wanted.inputs,
            [("requirements.txt".to_owned(), line.clone())]
        );
    }
    // The installer gets no markers, so it cannot read one differently from this host.
    for marker in ["'linux' == sys_platform", "'win' not in sys_platform"] {
        let wanted = good("run.py", &[("pylock.toml", &pylock("1.16.0", marker))]);
        assert!(!wanted.inputs[0].1.contains(';'), "{marker}");
        assert_eq!(
            wanted.inputs[0].1.is_empty(),
            wanted.packages.is_empty(),
            "{marker}"
        );
    }
    let twice = format!("six==1 --hash={HASH}\nsix==2 --hash={HASH}\n");
    for (name, text, words) in [
        ("requirements.txt", twice, "`six` is locked at 1 and 2"),
        (
            "requirements.txt",
            format!("six==1 --hash={HASH}\nother==1\n"),
            "requirements.txt:2: `other` has no hash",
        ),
        (
            "pylock.toml",
            pylock("1", "x").replace("sha256", "md4"),
            "marker",
        ),
        (
            "pylock.toml",
            pylock("1", "os_name == 'posix'").replace("sha256", "md4"),
            "it has no hash",
        ),
        (
            "pylock.toml",
            pylock("1", "os_name == 'posix'").replace("wheels", "vcs = {}\nwheels"),
            "it is a `vcs`",
        ),
        (
            "pylock.toml",
            pylock("1", "sys_platform === 'LINUX'"),
            "`===`",
        ),
        (
            "pylock.toml",
            pylock("1", &"'a' in os_name or ".repeat(9)),
            "marker too long or not ASCII",
        ),
    ] {
        let said = refused("run.py", &[(name, &text)]);
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_is_required_is_read_by_name_and_range_alone() {
    let text = "# why\nFlask_Login >= 1.0, < 2 ; python_version >= \"3.9\"  # \
        why\nrequests[security]==2.31.0\nsix\n";
    let wanted = good(
        "run.py",
        &[("requirements.txt", text), ("pyproject.toml", PROJECT)],
    );
    assert!(!wanted.locked && wanted.lock_file == "pylock.toml");
    let lines = "six>=1\nflask-login>=1.0,<2 ; python_full_version >= \
        '3.9'\nrequests[security]==2.31.0\nsix\n";
    assert_eq!(
        (
            wanted.inputs[0].1.as_str(),
            wanted.requires[1].place.as_str()
        ),
        (lines, "requirements.txt:2")
    );
    for line in [
        "x @ https://x/y.whl",
        "x@file:///etc/passwd",
        "./x",
        "x-1.0-py3-none-any.whl",
        "-e .",
        "--pre",
        "six --what",
        "six${X}",
        "six ; python_version",
        "six==x",
        "\u{1b}[31m",
        "six==1 --hash=md5:00",
    ] {
        let said = refused("run.py", &[("requirements.txt", &format!("six\n{line}\n"))]);
        assert!(
            said.starts_with("requirements.txt:2: ") && !said.contains('\u{1b}'),
            "{line}: {said}"
        );
    }
    let stale = refused(
        "run.py",
        &[
            ("pyproject.toml", PROJECT),
            ("pylock.toml", &pylock("0.9", "os_name != 'nt'")),
        ],
    );
    assert!(
        stale.contains(
            "pyproject.toml:5: `six>=1` is required, and pylock.toml holds 0.9: lock again"
        ),
        "{stale}"
    );
    let overridden = format!("{PROJECT}[tool.uv]\noverride-dependencies = [\"six==1\"]\n");
    assert!(
        refused("run.py", &[("pyproject.toml", &overridden)]).contains("`override-dependencies`")
    );
    assert_eq!(found("run.py", false, &[("pip.conf", "")]), Ok(None));
}

fn npm(entry: &str) -> String {
    format!(
        "{{\"lockfileVersion\": 3, \"packages\": {{\"\": {{}}, \"node_modules/left-pad\": \
         {{\"version\": \"1.3.0\", \"resolved\": \"https://evil/l.tgz\", \"integrity\": \
         \"{SHA512}\", \"dependencies\": {{\"b\": \"npm:c@^2\"}}}}, {entry}}}}}"
    )
}

#[test]
fn a_lock_of_npm_is_a_list_of_places_with_hashes() {
    fn look(entry: &str) -> Result<Option<PackageRequirements>, FileProblem> {
        found(
            "run.mjs",
            false,
            &[
                ("package.json", PACKAGE),
                ("package-lock.json", &npm(entry)),
            ],
        )
    }
    let below = format!(
        "\"node_modules/left-pad/node_modules/b\": \
         {{\"name\": \"c\", \"version\": \"2.0.0\", \"integrity\": \"{SHA512}\"}}"
    );
    let dev = below
        .replace("left-pad/node_modules/b", "dev")
        .replace("\"version\"", "\"dev\": true, \"version\"");
    let wanted = look(&format!("{below}, {dev}"))
        .expect("good")
        .expect("some");
    let names: Vec<String> = wanted
        .packages
        .iter()
        .map(|p| format!("{} {}", p.name, p.version))
        .collect();
    assert_eq!(names, ["c 2.0.0", "left-pad 1.3.0"]);
    assert!(!wanted.inputs[0].1.contains("evil") && wanted.inputs[0].1.contains(SHA512));
    // A bundled package has the hash of the archive that contains it, and is not fetched.
    let bundled = below.replace("\"integrity\"", "\"inBundle\": true, \"none\"");
    let wanted = look(&bundled).expect("good").expect("some");
    assert!(
        wanted
            .packages
            .iter()
            .all(|package| !package.hashes.is_empty())
    );
    for (entry, words) in [
        (
            below.replace("\"integrity\"", "\"none\""),
            "it has no `integrity`",
        ),
        (
            bundled.replace("left-pad/node_modules/b", "b"),
            "it has no `integrity`",
        ),
        (
            bundled.replace("left-pad", "gone"),
            "the package that bundles it is missing",
        ),
        (below.replace(SHA512, "sha1-AAAA"), "unsupported hash"),
        (
            below.replace("\"version\"", "\"link\": true, \"version\""),
            "it is a link to a folder",
        ),
        (
            below.replace("\"version\"", "\"resolved\": \"git+ssh://x\", \"version\""),
            "a git or file reference",
        ),
        (
            below.replace(
                "\"version\"",
                "\"dependencies\": {\"x\": \"https://x/y.tgz\"}, \"version\"",
            ),
            "requires `x`",
        ),
        (below.replace("2.0.0", "^2"), "`^2` is"),
        (
            below.replace("node_modules/left-pad/node_modules/b", "packages/b"),
            "(workspaces) are not supported",
        ),
        (
            below.replace("left-pad/node_modules/b", "left-pad/node_modules/.."),
            "outside node_modules",
        ),
    ] {
        let said = look(&entry).expect_err(words).problem.message;
        assert!(said.contains(words), "{words}: {said}");
    }
    for range in [
        "file:../x",
        "github:x/y",
        "https://x/y.tgz",
        "latest",
        "../x",
    ] {
        let said = refused(
            "run.mjs",
            &[("package.json", &PACKAGE.replace("^1.0.0", range))],
        );
        assert!(
            said.starts_with("package.json:3: `left-pad`"),
            "{range}: {said}"
        );
    }
}

#[test]
fn only_plain_files_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a folder");
    let script = root.join("run.py");
    let file = root.join("requirements.txt");
    fs::write(&script, "").expect("a script");
    let look = |writer: &dyn Fn(&Path) -> Option<String>| {
        let script = script.as_path();
        let language = Language::Python;
        find(&ScriptLocation {
            script,
            own: script.parent().expect("a folder"),
            language,
            version: None,
            alone: false,
            ignore_lock: false,
            writer,
        })
    };
    let cases: [(&str, &dyn Fn()); 3] = [
        ("symbolic link", &|| {
            std::os::unix::fs::symlink("/etc/hostname", &file).expect("a link")
        }),
        ("not a regular file", &|| {
            nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe")
        }),
        ("larger than", &|| {
            fs::File::create(&file)
                .and_then(|f| f.set_len(9 << 20))
                .expect("a large file")
        }),
    ];
    for (words, make) in cases {
        make();
        let why = look(&|_| None).expect_err(words).problem.message;
        assert!(why.contains(words), "{why}");
        fs::remove_file(&file).expect("gone");
    }
    fs::write(&file, "six\n").expect("a file");
    let why = look(&|_| Some("demo:other may write".to_owned()))
        .expect_err("a writer")
        .problem
        .message;
    assert!(why.contains("cannot choose packages"), "{why}");
    assert!(look(&|_| None,).expect("the control").is_some());
}

/// The files of a script with one key of a table in them; the lock holds what is required.
fn with_key(table: &str, key: &str) -> (&'static str, Vec<(&'static str, String)>) {
    match table {
        "block" => (
            "run.py",
            vec![(
                "run.py",
                format!("# /// script\n# {key} = 1\n# dependencies = [\"six\"]\n# ///\n"),
            )],
        ),
        "package.json" | "package.json scripts" => {
            let member = if table == "package.json" {
                format!("\"{key}\": \"x\"")
            } else {
                format!("\"scripts\": {{\"{key}\": \"x\"}}")
            };
            let text = PACKAGE.replacen('{', &format!("{{{member},"), 1);
            ("run.mjs", vec![("package.json", text)])
        }
        _ => (
            "run.py",
            vec![(
                "pyproject.toml",
                format!("{PROJECT}[{table}]\n{key} = \"x\"\n"),
            )],
        ),
    }
}

#[test]
fn every_key_has_the_effect_that_the_table_says() {
    let documented = include_str!("../../docs/reference/PACKAGES.md");
    for row in keys::rows() {
        let words = row.keys.split(' ').map(|key| match key {
            "*" => "every other".to_owned(),
            key => format!("`{key}`"),
        });
        let words = words.collect::<Vec<_>>().join(", ");
        let line = format!("| {words} | {} | {} |", row.effect, row.why);
        assert!(
            documented.contains(&line),
            "docs/reference/PACKAGES.md lacks {line}"
        );
        for key in row.keys.split(' ').filter(|_| row.effect != "honoured") {
            let key = if key == "*" { "x-other" } else { key };
            let (script, mut files) = with_key(row.table, key);
            let look = |files: &[(&'static str, String)]| {
                let files: Vec<(&str, &str)> =
                    files.iter().map(|(name, text)| (*name, &**text)).collect();
                found(script, false, &files).map_err(|bad| bad.problem.message)
            };
            let is_refused = |files: &[(&'static str, String)]| {
                look(files).is_err_and(|why| why.contains(&format!("`{key}`")))
            };
            assert_eq!(
                is_refused(&files),
                row.effect != "nothing",
                "{} {key}: {:?}",
                row.table,
                look(&files)
            );
            if row.effect == "lock" {
                let lock = match script {
                    "run.py" => ("pylock.toml", pylock("1.16.0", "os_name == 'posix'")),
                    _ => (
                        "package-lock.json",
                        npm(&format!(
                            "\"node_modules/b\": {{\"version\": \"1.0.0\", \"integrity\": \"{SHA512}\"}}"
                        )),
                    ),
                };
                files.push(lock);
                assert!(
                    look(&files).is_ok_and(|it| it.is_some_and(|it| it.locked)),
                    "{key}: {:?}",
                    look(&files)
                );
            }
        }
    }
}

#[test]
fn an_interpreter_or_a_machine_that_a_file_excludes_is_refused() {
    let block = |python: &str| format!("# /// script\n# requires-python = \"{python}\"\n# ///\n");
    let project =
        |python: &str| format!("[project]\nname = \"x\"\nrequires-python = \"{python}\"\n");
    let lock = |python: &str| {
        format!(
            "requires-python = \"{python}\"\n{}",
            pylock("1", "os_name == 'posix'")
        )
    };
    let package = |python: &str| {
        pylock("1", "os_name == 'posix'")
            .replace("wheels", &format!("requires-python = \"{python}\"\nwheels"))
    };
    type Written<'a> = &'a dyn Fn(&str) -> String;
    let texts: [(&str, Written); 4] = [
        ("run.py", &block),
        ("pyproject.toml", &project),
        ("pylock.toml", &lock),
        ("pylock.toml", &package),
    ];
    for (name, text) in texts {
        for (range, is_good) in [
            (">=3.11", true),
            ("==3.11.*", true),
            ("", true),
            (">=3.99", false),
            ("<3.11", false),
            ("^3", false),
        ] {
            let looked = found("run.py", false, &[(name, &text(range))]);
            assert_eq!(looked.is_ok(), is_good, "{name} {range}: {looked:?}");
        }
    }
    let dynamic = "[project]\nname = \"x\"\ndynamic = [\"requires-python\"]\n";
    assert!(
        refused("run.py", &[("pyproject.toml", dynamic)]).contains("`requires-python` is dynamic")
    );
    for (marker, is_good) in [
        ("sys_platform == 'linux'", true),
        ("sys_platform == 'win32'", false),
    ] {
        let text = format!(
            "environments = [\"{marker}\"]\n{}",
            pylock("1", "os_name == 'posix'")
        );
        assert_eq!(
            found("run.py", false, &[("pylock.toml", &text)]).is_ok(),
            is_good,
            "{marker}"
        );
    }
    for (member, is_good) in [
        (r#""engines": {"node": ">=18 <21"}"#, true),
        (r#""engines": {"node": ">=99", "npm": "1"}"#, false),
        (r#""engines": {"node": "newest"}"#, false),
        (r#""engines": {"bun": ">=99"}"#, true),
        (r#""os": ["linux", "darwin"]"#, true),
        (r#""os": ["!win32"]"#, true),
        (r#""os": ["!linux"]"#, false),
        (r#""os": "darwin""#, false),
        (r#""cpu": ["mips"]"#, false),
    ] {
        let looked = found(
            "run.mjs",
            false,
            &[("package.json", &format!("{{{member}}}"))],
        );
        assert_eq!(looked.is_ok(), is_good, "{member}: {looked:?}");
    }
}

#[test]
fn the_last_number_of_an_interpreter_need_not_be_known() {
    for (range, version, is_good) in [
        (">=3.11.4", "3.11", true),
        ("<3.11.4", "3.11", true),
        (">=3.12", "3.11", false),
        (">=3.11.4", "3.11.2", false),
    ] {
        let why = files::unfit(crate::policy::packages::Ecosystem::Python, range, version);
        assert_eq!(why.is_none(), is_good, "{range} {version}");
    }
}

#[test]
fn peers_and_hashes_that_a_file_asks_for_are_required() {
    let peers = r#"{"peerDependencies": {"left-pad": "^1", "other": "*"}, "peerDependenciesMeta": {"other": {"optional": true}}}"#;
    let wanted = good("run.mjs", &[("package.json", peers)]);
    let names: Vec<&str> = wanted.requires.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["left-pad"]);
    let hashes = refused(
        "run.py",
        &[("requirements.txt", "--require-hashes\nsix==1\n")],
    );
    assert!(
        hashes.starts_with("requirements.txt:2: `six` has no hash"),
        "{hashes}"
    );
    for (script, file, lock) in [
        ("run.py", ("pyproject.toml", PROJECT), "poetry.lock"),
        ("run.mjs", ("package.json", PACKAGE), "yarn.lock"),
    ] {
        assert!(
            refused(script, &[file, (lock, "")]).contains("is not read"),
            "{lock}"
        );
    }
}

#[test]
fn a_name_that_ends_with_a_sign_is_refused() {
    let requires = |text: &str| found("run.py", false, &[("requirements.txt", text)]);
    assert!(requires("six[a]>=1").is_ok(), "the control");
    for text in [
        "s.>=1",
        "s-",
        "six[a-]",
        "six[a.]==1",
        "s. ; os_name == 'posix'",
        "s_(>1)",
    ] {
        assert!(requires(text).is_err(), "{text}");
    }
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    /// A file of each kind that is read, of which parts are replaced.
    fn sample(which: usize) -> (&'static str, &'static str, String) {
        let entry =
            format!("\"node_modules/b\": {{\"version\": \"1.0.0\", \"integrity\": \"{SHA512}\"}}");
        match which {
            0 => ("run.py", "run.py", BLOCK.to_owned()),
            1 => ("run.py", "pyproject.toml", PROJECT.to_owned()),
            2 => (
                "run.py",
                "pylock.toml",
                pylock("1.16.0", "os_name == 'posix'"),
            ),
            3 => (
                "run.py",
                "requirements.txt",
                format!("six[a]==1.16.0 ; python_version < '4' --hash={HASH}\n"),
            ),
            4 => ("run.mjs", "package.json", PACKAGE.to_owned()),
            _ => ("run.mjs", "package-lock.json", npm(&entry)),
        }
    }

    const CUT: &str = "\\PC{0,6}|[\"'{}\\[\\],:@=/.\\\\;#\n -]{1,3}|[0-9]{1,30}";

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_lies_beside_a_script_is_read_or_refused_and_every_entry_has_a_hash(
            which in 0..6_usize,
            cuts in prop::collection::vec((0..1000_usize, 0..12_usize, CUT), 0..4),
            repeats in 1..3_usize,
        ) {
            let (script, name, mut text) = sample(which);
            for (at, length, new) in cuts {
                let chars: Vec<char> = text.chars().collect();
                let at = at * chars.len() / 1000;
                let end = (at + length).min(chars.len());
                text = chars[..at].iter().collect::<String>() + &new + &chars[end..].iter().collect::<String>();
            }
            let beside = if which == 5 { ("package.json", PACKAGE) } else { ("unread.txt", "") };
            if let Ok(Some(wanted)) = found(script, false, &[(name, &text.repeat(repeats)), beside])
                && wanted.locked
            {
                prop_assert!(wanted.packages.iter().all(|package| !package.hashes.is_empty()), "{wanted:?}");
                let places: std::collections::BTreeSet<_> = wanted.places().into_values().collect();
                prop_assert_eq!(places.len(), wanted.packages.len());
            }
        }
    }
}
