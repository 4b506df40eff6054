//! The readers of Python's files.

use super::{HASH, found, input, python, refused};
use crate::policy::packages::Required;

#[test]
fn requirements_are_written_anew() {
    let text = "# a comment\nFlask_Login >= 1.0, < 2 ; python_version >= \"3.9\" and sys_platform != 'win32'  # why\n\
                requests[security,socks]==2.31.0\n\nsix\n";
    let wanted = python(&[("requirements.txt", text)]).expect("good").expect("some");
    assert!(!wanted.locked && wanted.packages.is_empty());
    assert_eq!(
        input(&wanted, "requirements.txt"),
        "flask-login>=1.0,<2 ; python_version >= '3.9' and sys_platform != 'win32'\nrequests[security,socks]==2.31.0\nsix\n"
    );
    let of = |r: &Required| (r.name.clone(), r.pinned, r.place.clone());
    let all: Vec<_> = wanted.requires.iter().map(of).collect();
    assert_eq!(all[0], ("flask-login".into(), false, "requirements.txt:2".into()));
    assert_eq!(all[1], ("requests".into(), true, "requirements.txt:3".into()));
}

#[test]
fn every_entry_with_a_hash_is_a_lock() {
    let text = format!("six==1.16.0 \\\n    --hash={HASH} \\\n    --hash=sha256:{}\n    # via -r in\n", "f".repeat(64));
    let wanted = python(&[("requirements.txt", &text)]).expect("good").expect("some");
    assert!(wanted.locked);
    assert_eq!((wanted.packages[0].name.as_str(), wanted.packages[0].version.as_str()), ("six", "1.16.0"));
    assert_eq!(
        input(&wanted, "requirements.txt"),
        format!("six==1.16.0 --hash={HASH} --hash=sha256:{}\n", "f".repeat(64))
    );
    let nothing = ["", "\n# only words\n"].map(|text| python(&[("requirements.txt", text)]));
    assert!(nothing.iter().all(|found| *found == Ok(None)), "{nothing:?}");
}

/// one line of requirements.txt, words of the refusal
const LINES: &[(&str, &str)] = &[
    ("git+https://x/y.git", "a git reference"),
    ("x @ git+https://x/y.git", "a git reference"),
    ("x @ https://x/y.whl", "a URL"),
    ("x@file:///etc/passwd", "a file reference"),
    ("https://x/y.whl", "a URL"),
    ("./x", "a file reference"),
    ("x-1.0-py3-none-any.whl", "a file reference"),
    ("-e .", "`-e` installs a folder in place"),
    ("--editable=.", "`--editable` installs"),
    ("-r other.txt", "`-r` reads another file"),
    ("-rother.txt", "reads another file"),
    ("-c c.txt", "`-c` reads another file"),
    ("--index-url https://evil/simple", "`--index-url` says where"),
    ("--index-url=https://evil/simple", "`--index-url` says where"),
    ("-i https://evil/simple", "`-i` says where"),
    ("--extra-index-url https://evil", "`--extra-index-url` says where"),
    ("--find-links /x", "`--find-links` says where"),
    ("-f /x", "`-f` says where"),
    ("--trusted-host evil", "`--trusted-host` says where"),
    ("--no-binary :all:", "`--no-binary` says how"),
    ("--pre", "`--pre` is not read"),
    ("six --global-option=x", "`--global-option` says how"),
    ("six --what", "`--what` is no option"),
    ("six${X}", "variable of the environment"),
    ("six==1 ; extra == 'x'", "`extra` is no name"),
    ("six==1 ; os_name == 'a\\b'", "is no text for a marker"),
    ("six ; python_version", "no operator"),
    ("six==x", "no range of versions"),
    ("six ^1", "no range of versions"),
    ("-", "no option"),
    ("\u{1b}[31m", "no name of a package"),
    ("six==1 --hash=md5:00", "no hash"),
];

#[test]
fn what_says_where_from_is_refused_by_name() {
    for (line, words) in LINES {
        let said = refused(python(&[("requirements.txt", &format!("six\n{line}\n"))]));
        assert!(said.starts_with("requirements.txt:2: ") && said.contains(words), "{line}: {said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    for (files, words) in [
        (vec![("requirements.txt", "six\n"), ("pip.conf", "")], "pip.conf:0: the settings of an installer"),
        (vec![("requirements.txt", "six\n"), ("uv.toml", "")], "uv.toml:0: the settings of an installer"),
    ] {
        assert!(refused(python(&files)).starts_with(words));
    }
    // Control: without requirements nobody would obey them either.
    assert_eq!(python(&[("pip.conf", "")]), Ok(None));
    let half = format!("six==1.16.0 --hash={HASH}\nother==1\n");
    assert!(refused(python(&[("requirements.txt", &half)])).contains("requirements.txt:2: `other` has no hash"));
}

pub(super) const PROJECT: &str = "[project]\nname = \"Demo\"\nversion = \"1\"\ndependencies = [\n  \"six>=1\",\n]\n";

pub(super) fn uv_lock(version: &str) -> String {
    format!(
        "version = 1\nrevision = 3\nrequires-python = \">=3.9\"\n\n[[package]]\nname = \"demo\"\nversion = \"1\"\nsource = {{ virtual = \".\" }}\n\
         dependencies = [{{ name = \"six\" }}]\n\n[[package]]\nname = \"colorama\"\nversion = \"0.4.6\"\nsource = {{ registry = \"https://evil/simple\" }}\n\
         wheels = [{{ url = \"https://evil/c.whl\", hash = \"{HASH}\" }}]\n\n[[package]]\nname = \"six\"\nversion = \"{version}\"\n\
         source = {{ registry = \"https://evil/simple\" }}\ndependencies = [{{ name = \"colorama\", marker = \"sys_platform == 'win32'\" }}, {{ name = \"colorama\", marker = \"os_name == 'nt'\" }}]\n\
         sdist = {{ url = \"https://evil/six.tar.gz\", hash = \"{HASH}\", size = 1 }}\n\n[[package]]\nname = \"unused\"\nversion = \"1\"\nsource = {{ registry = \"x\" }}\n"
    )
}

#[test]
fn a_lock_of_uv_is_walked_with_its_markers() {
    let wanted = python(&[("pyproject.toml", PROJECT), ("uv.lock", &uv_lock("1.16.0"))]).expect("good").expect("some");
    assert_eq!(
        input(&wanted, "requirements.txt"),
        format!(
            "colorama==0.4.6 ; os_name == 'nt' or sys_platform == 'win32' --hash={HASH}\nsix==1.16.0 --hash={HASH}\n"
        )
    );
    assert_eq!(wanted.sources.len(), 2);
    for (change, words) in [
        (("virtual = \".\"", "virtual = \"..\""), ""),
        (("registry = \"x\"", "git = \"https://x\""), "`unused` comes from `git`"),
        (("name = \"unused\"", "name = \"colorama\""), "`colorama`: it has no hash"),
        (("\"1.16.0\"", "\"0.9\""), "pyproject.toml:5: `six>=1` is required, and uv.lock holds 0.9: lock anew"),
        (("dependencies = [{ name = \"six\" }]", "dependencies = []"), "uv.lock does not hold it"),
        (("{ name = \"six\" }]", "{ name = \"gone\" }]"), "it requires `gone` and does not hold it"),
        (("version = 1\n", "version = 2\n"), "version 2 is not known"),
        (("name = \"demo\"", "name = \"other\""), "`other` comes from `virtual`"),
    ] {
        let text = uv_lock("1.16.0").replacen(change.0, change.1, 1);
        let found = python(&[("pyproject.toml", PROJECT), ("uv.lock", &text)]);
        match words {
            "" => assert!(found.is_ok(), "{found:?}"),
            _ => assert!(refused(found).contains(words), "{words}"),
        }
    }
}

#[test]
fn a_project_says_what_it_requires_and_nothing_else() {
    for (more, words) in [
        ("[tool.uv.sources]\nsix = { git = \"https://x\" }\n", "pyproject.toml:7: [tool.uv] `sources` says where"),
        ("[[tool.uv.index]]\nurl = \"https://x\"\n", "[tool.uv] `index` says where"),
        ("[tool.uv]\nextra-index-url = [\"https://x\"]\n", "`extra-index-url` says where"),
        ("[tool.uv]\noverride-dependencies = [\"six==1\"]\n", "`override-dependencies`"),
        ("[tool.uv]\npackage = false\n", ""),
        ("[tool.ruff]\nline-length = 100\n", ""),
    ] {
        let found = python(&[("pyproject.toml", &format!("{PROJECT}{more}"))]);
        match words {
            "" => assert!(found.as_ref().is_ok_and(Option::is_some), "{found:?}"),
            _ => assert!(refused(found).contains(words), "{words}"),
        }
    }
    assert!(
        refused(python(&[("pyproject.toml", "[project]\nname = \"x\"\ndynamic = [\"dependencies\"]\n")]))
            .contains("dynamic")
    );
    assert!(
        refused(python(&[("pyproject.toml", "[tool.poetry.dependencies]\nsix = \"1\"\n")]))
            .contains("[tool.poetry] is not read")
    );
    assert!(
        refused(python(&[("pyproject.toml", &PROJECT.replace("six>=1", "six @ https://x"))]))
            .contains("pyproject.toml:5: ")
    );
    assert_eq!(python(&[("pyproject.toml", "[tool.ruff]\n")]), Ok(None));
    assert!(refused(python(&[("pyproject.toml", "[project\n")])).contains("cannot be read"));
}

pub(super) const BLOCK: &str = "#!/usr/bin/env python3\n# /// script\n# requires-python = \">=3.9\"\n# dependencies = [\n#   \"six>=1\",\n# ]\n# ///\nimport six\n";

#[test]
fn a_block_in_the_script_speaks_for_the_script_alone() {
    for alone in [true, false] {
        let wanted =
            found("run.py", alone, &[("run.py", BLOCK), ("requirements.txt", "other\n")]).expect("good").expect("some");
        assert_eq!(input(&wanted, "requirements.txt"), "six>=1\n", "{alone}");
    }
    // Without a block, what lies beside a script in a base folder says nothing of it.
    assert_eq!(found("run.py", true, &[("requirements.txt", "other\n")]), Ok(None));
    let lock = uv_lock("1.16.0").replace("[[package]]\nname = \"demo\"\nversion = \"1\"\nsource = { virtual = \".\" }\ndependencies = [{ name = \"six\" }]", "[manifest]\nrequirements = [{ name = \"six\", specifier = \">=1\" }]");
    let wanted = found("run.py", true, &[("run.py", BLOCK), ("run.py.lock", &lock)]).expect("good").expect("some");
    // Of what is for other machines the installer sees the marker; nothing is fetched of it.
    assert!(wanted.locked && wanted.packages.len() == 1 && input(&wanted, "requirements.txt").lines().count() == 2);
    // A lock of the script's own name is its own; one of the folder is for the folder's project.
    let (ours, theirs) = (pylock("1.16.0"), pylock("1.17.0"));
    let files = [("run.py", BLOCK), ("pylock.run.toml", &*ours), ("pylock.toml", &*theirs), ("pylock.other.toml", "x")];
    for alone in [true, false] {
        let wanted = found("run.py", alone, &files).expect("good").expect("some");
        assert!(wanted.locked && wanted.lock_file == "pylock.run.toml");
        assert_eq!(wanted.packages[0].version, "1.16.0", "{alone}");
    }
    let said =
        refused(found("run.py", true, &[("run.py", BLOCK), ("pylock.run.toml", &theirs), ("run.py.lock", &lock)]));
    assert!(said.contains("pylock.run.toml:0: it and run.py.lock disagree about `six`"), "{said}");
    let said = refused(found("a.b.py", true, &[("a.b.py", BLOCK), ("pylock.a-b.toml", "lock-version = \"9\"")]));
    assert!(said.starts_with("pylock.a-b.toml:0: lock-version `9`"), "{said}");
    for (change, words) in [
        (("# ///\n", "# //\n"), "run.py:2: the block `# /// script` has no end"),
        (("import six", "\n# /// script\n# dependencies = []\n# ///"), "run.py:9: a second block"),
        (("# ]\n", "# ]\n# [tool.uv.sources]\n# six = { git = \"https://x\" }\n"), "[tool.uv] `sources`"),
        (("six>=1", "six @ https://x"), "run.py:2: `six @ https://x` is a URL"),
        (("# ]\n", "#\n"), "cannot be read"),
    ] {
        let said = refused(found("run.py", true, &[("run.py", &BLOCK.replacen(change.0, change.1, 1))]));
        assert!(said.contains(words), "{words}: {said}");
    }
}

pub(super) fn pylock(version: &str) -> String {
    format!(
        "lock-version = \"1.0\"\ncreated-by = \"uv\"\n\n[[packages]]\nname = \"six\"\nversion = \"{version}\"\nindex = \"https://evil/simple\"\n\
         marker = \"python_version < '4'\"\nwheels = [{{ name = \"s.whl\", url = \"https://evil/s.whl\", hashes = {{ sha256 = \"{}\", md5 = \"x\" }} }}]\n",
        &HASH[7..]
    )
}

#[test]
fn a_lock_of_any_installer_is_read() {
    let wanted = python(&[("pylock.toml", &pylock("1.16.0"))]).expect("good").expect("some");
    assert!(wanted.locked);
    assert_eq!(input(&wanted, "requirements.txt"), format!("six==1.16.0 ; python_version < '4' --hash={HASH}\n"));
    for (change, words) in [
        (("index = \"https://evil/simple\"", "vcs = { type = \"git\" }"), "pylock.toml:4: `six`: it is a `vcs`"),
        (("sha256", "md4"), "it has no hash"),
        (("version = \"1.16.0\"", "dependencies = []"), "it has no version"),
        (("\"1.0\"", "\"2.0\""), "lock-version `2.0`"),
        (("name = \"six\"", "name = \"-six\""), "no name of a package"),
        (("python_version < '4'", "'x' in extras"), "`extras` is no name"),
    ] {
        let said = refused(python(&[("pylock.toml", &pylock("1.16.0").replacen(change.0, change.1, 1))]));
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn files_that_disagree_are_refused_and_named() {
    let hashed = |version: &str| format!("six=={version} --hash={HASH}\n");
    for (files, words) in [
        (
            vec![("requirements.txt", hashed("1.15.0")), ("pylock.toml", pylock("1.16.0"))],
            "pylock.toml:0: it and requirements.txt disagree about `six`: 1.16.0 here, 1.15.0 there",
        ),
        (
            vec![("pylock.run.toml", pylock("1.15.0")), ("pylock.toml", pylock("1.16.0"))],
            "pylock.run.toml:0: it and pylock.toml disagree about `six`: 1.15.0 here, 1.16.0 there",
        ),
        (
            vec![("requirements.txt", "six<1.16\n".to_owned()), ("pylock.toml", pylock("1.16.0"))],
            "requirements.txt:1: `six<1.16` is required, and pylock.toml holds 1.16.0",
        ),
        (
            vec![("requirements.txt", "flask\n".to_owned()), ("pylock.toml", pylock("1.16.0"))],
            "`flask` is required, and pylock.toml does not hold it",
        ),
        (
            vec![("requirements.txt", "six==0.5\n".to_owned()), ("pyproject.toml", PROJECT.to_owned())],
            "requirements.txt:1: it and pyproject.toml:5 disagree about `six`: 0.5 here, >=1 there",
        ),
        // Control.
        (vec![("requirements.txt", hashed("1.16.0")), ("pylock.toml", pylock("1.16.0"))], ""),
        (
            vec![
                ("requirements.txt", "six\nflask ; sys_platform == 'win32'\n".to_owned()),
                ("pylock.toml", pylock("1.16.0")),
            ],
            "",
        ),
        (vec![("requirements.txt", "six==1.5\n".to_owned()), ("pyproject.toml", PROJECT.to_owned())], ""),
    ] {
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        match words {
            "" => assert!(python(&files).is_ok_and(|found| found.is_some()), "{files:?}"),
            _ => assert!(refused(python(&files)).contains(words), "{words}"),
        }
    }
}

/// A lock of one project, `root`, that requires these.
fn long_lock(root: &str, packages: impl Iterator<Item = (String, usize, String)>) -> String {
    let head = format!(
        "version = 1\n[[package]]\nname = \"demo\"\nversion = \"1\"\nsource = {{ virtual = \".\" }}\ndependencies = [{root}]\n"
    );
    let one = |(name, version, edges): (String, usize, String)| {
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = {{ registry = \"x\" }}\ndependencies = [{edges}]\nsdist = {{ hash = \"{HASH}\" }}\n"
        )
    };
    head + &packages.map(one).collect::<String>()
}

#[test]
fn a_long_lock_of_uv_is_read_or_refused_soon() {
    let look = |lock: &str| {
        let began = std::time::Instant::now();
        let project = "[project]\nname = \"demo\"\nversion = \"1\"\ndependencies = [\"p0\"]\n";
        let found = python(&[("pyproject.toml", project), ("uv.lock", lock)]);
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
        found
    };
    let edge = |name: &str, marker: &str| format!("{{ name = \"{name}\"{marker} }}, ");
    // Each requires the next: a long way.
    let chain = (0..2000)
        .map(|n| (format!("p{n}"), 1, if n < 1999 { edge(&format!("p{}", n + 1), "") } else { String::new() }));
    let wanted = look(&long_lock(&edge("p0", ""), chain)).expect("good").expect("some");
    assert_eq!(wanted.packages.len(), 2000);
    // All of one name, and each requires all of them many times.
    let crowd = (0..2500).map(|n| ("p0".to_owned(), n, edge("p0", "").repeat(20)));
    let said = refused(look(&long_lock(&edge("p0", ""), crowd)));
    assert!(said.contains("too intricate"), "{said}");
    // Every way through forty pairs, each under a marker of its own.
    let pairs = (0..80).map(|n| {
        let marker = format!(", marker = \"python_version >= '3.{n}'\"");
        (
            format!("p{n}"),
            1,
            [0, 1].map(|other| edge(&format!("p{}", (n / 2 * 2 + 2 + other).min(79)), &marker)).concat(),
        )
    });
    let said = refused(look(&long_lock(&(edge("p0", "") + &edge("p1", "")), pairs)));
    assert!(said.contains("ways: lock for fewer") || said.contains("too intricate"), "{said}");
}
