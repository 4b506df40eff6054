//! What each file says, and what of it is refused.

use super::*;
use crate::policy::packages::Required;
use proptest::prelude::*;
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

const PROJECT: &str = "[project]\nname = \"Demo\"\nversion = \"1\"\ndependencies = [\n  \"six>=1\",\n]\n";

fn uv_lock(version: &str) -> String {
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

const BLOCK: &str = "#!/usr/bin/env python3\n# /// script\n# requires-python = \">=3.9\"\n# dependencies = [\n#   \"six>=1\",\n# ]\n# ///\nimport six\n";

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

fn pylock(version: &str) -> String {
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

const SHA512: &str = "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";

fn npm_lock(version: &str) -> String {
    serde_json::json!({
        "name": "x", "lockfileVersion": 3, "requires": true,
        "packages": {
            "": { "name": "x", "dependencies": { "left-pad": "^1.0.0" }, "scripts": { "install": "evil" } },
            "node_modules/left-pad": {
                "version": version, "resolved": "https://evil/left-pad.tgz", "integrity": SHA512, "hasInstallScript": true,
                "dependencies": { "b": "npm:real-b@^2.0.0" }, "optionalDependencies": { "fsevents": "*", "absent": "*" }, "peerDependencies": { "gone": "*", "unused": "9" },
                "bin": { "pad": "./bin/pad.js" }, "license": "MIT", "engines": { "node": ">=1" },
            },
            "node_modules/left-pad/node_modules/b": { "name": "real-b", "version": "2.0.0", "integrity": SHA512 },
            "node_modules/fsevents": { "version": "2.3.3", "integrity": SHA512, "os": ["darwin"], "dev": true },
            "node_modules/unused": { "version": "1.0.0", "integrity": SHA512, "dev": true },
            "node_modules/far": { "version": "1.0.0", "integrity": SHA512, "dev": true },
        },
    }).to_string()
}

const PACKAGE: &str = "{\n  \"name\": \"x\",\n  \"scripts\": { \"test\": \"evil\" },\n  \"dependencies\": {\n    \"left-pad\": \"^1.0.0\"\n  }\n}\n";

#[test]
fn a_lock_of_npm_is_written_anew_without_addresses() {
    for name in ["package-lock.json", "npm-shrinkwrap.json"] {
        let wanted = node(&[("package.json", PACKAGE), (name, &npm_lock("1.3.0"))]).expect("good").expect("some");
        assert!(wanted.locked);
        let names: Vec<&str> = wanted.packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["fsevents", "left-pad", "real-b", "unused"]);
        let lock: serde_json::Value = serde_json::from_str(input(&wanted, "package-lock.json")).expect("JSON");
        assert_eq!(lock["packages"]["node_modules/left-pad"]["integrity"], SHA512);
        assert_eq!(lock["packages"]["node_modules/left-pad/node_modules/b"]["name"], "real-b");
        assert_eq!(lock["packages"]["node_modules/fsevents"]["optional"], true);
        assert_eq!(lock["packages"]["node_modules/left-pad"]["bin"]["pad"], "bin/pad.js");
        // What a package can do without, npm would miss in a lock.
        assert_eq!(
            lock["packages"]["node_modules/left-pad"]["optionalDependencies"],
            serde_json::json!({"fsevents": "*"})
        );
        assert!(lock["packages"]["node_modules/left-pad"].get("peerDependencies").is_none());
        assert!(lock["packages"].get("node_modules/far").is_none());
        for (_, text) in &wanted.inputs {
            assert!(!text.contains("evil") && !text.contains("resolved") && !text.contains("scripts"), "{text}");
        }
    }
    let loose = node(&[("package.json", PACKAGE)]).expect("good").expect("some");
    assert!(!loose.locked && loose.inputs.len() == 1);
    assert_eq!(loose.requires[0].place, "package.json:5");
    assert_eq!(
        node(&[("package.json", "{\"name\": \"x\", \"type\": \"module\"}"), ("package-lock.json", "{}")]),
        Ok(None)
    );
    for (change, words) in [
        (
            ("\"1.3.0\"", "\"2.0.0\""),
            "package.json:5: `left-pad ^1.0.0` is required, and package-lock.json holds 2.0.0",
        ),
        (("https://evil/left-pad.tgz", "git+ssh://evil"), "a git reference"),
        (("https://evil/left-pad.tgz", "file:../x"), "a file reference"),
        (("\"hasInstallScript\":true", "\"link\":true"), "it is a link to a folder"),
        ((SHA512, "sha1-AAAA"), "no hash that counts"),
        (("\"integrity\"", "\"none\""), "it has no `integrity`"),
        (("node_modules/unused", "../unused"), "packages lie below node_modules alone"),
        (("node_modules/unused", "node_modules/../../x"), "packages lie below node_modules alone"),
        (("./bin/pad.js", "../../bin/pad.js"), "no path inside of the package"),
        (("npm:real-b@^2.0.0", "github:x/y"), "it requires `b`: `github:x/y` is a git reference"),
        (
            ("node_modules/left-pad/node_modules/b", "node_modules/left-pad/node_modules/c"),
            "requires `b`, which the lock does not hold",
        ),
        (("\"lockfileVersion\":3", "\"lockfileVersion\":1"), "a lock of version 1"),
        (("\"name\":\"x\",\"lockfileVersion\"", "\"name\":\"x\",\"name\":\"y\",\"lockfileVersion\""), "cannot be read"),
    ] {
        let said = refused(node(&[
            ("package.json", PACKAGE),
            ("package-lock.json", &npm_lock("1.3.0").replacen(change.0, change.1, 1)),
        ]));
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn package_json_says_names_and_versions_alone() {
    for (range, words) in [
        ("npm:evil@1", "an alias of another package"),
        ("file:../x", "a file reference"),
        ("link:../x", "a link to a folder"),
        ("workspace:*", "a folder of a workspace"),
        ("git+ssh://git@x/y.git", "a git reference"),
        ("github:x/y", "a git reference"),
        ("x/y", "a git reference"),
        ("https://x/y.tgz", "a URL"),
        ("latest", "no range of versions"),
        ("../x", "a file reference"),
    ] {
        let said = refused(node(&[("package.json", &PACKAGE.replace("^1.0.0", range))]));
        assert!(said.starts_with("package.json:5: `left-pad`") && said.contains(words), "{range}: {said}");
    }
    for (field, value) in [
        ("overrides", "{\"a\": \"1\"}"),
        ("resolutions", "{\"a\": \"1\"}"),
        ("workspaces", "[\"x\"]"),
        ("bundleDependencies", "[\"x\"]"),
        ("trustedDependencies", "[\"x\"]"),
    ] {
        let text = PACKAGE.replace("\"name\": \"x\"", &format!("\"{field}\": {value}"));
        let said = refused(node(&[("package.json", &text)]));
        assert!(said.starts_with(&format!("package.json:2: `{field}`")), "{said}");
    }
    let hook = PACKAGE.replace("\"test\"", "\"postinstall\"");
    assert!(refused(node(&[("package.json", &hook)])).contains("the script `postinstall`"));
    for name in [".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml"] {
        assert!(refused(node(&[("package.json", PACKAGE), (name, "")])).starts_with(name));
    }
    assert!(refused(node(&[("package.json", PACKAGE), ("bun.lockb", "\u{1}")])).contains("bun.lockb, is no text"));
    assert!(refused(node(&[("package.json", &PACKAGE.replace("left-pad", "../x"))])).contains("no name of a package"));
}

fn bun_lock(version: &str) -> String {
    format!(
        "{{\n  \"lockfileVersion\": 1,\n  \"workspaces\": {{ \"\": {{ \"name\": \"x\", \"dependencies\": {{ \"left-pad\": \"^1.0.0\", }}, }}, }},\n\
         \"packages\": {{\n    \"left-pad\": [\"left-pad@{version}\", \"https://evil/\", {{ \"dependencies\": {{ \"@s/b\": \"^2.0.0\" }}, \"optionalDependencies\": {{ \"c\": \"*\" }}, \"bin\": \"pad.js\" }}, \"{SHA512}\"],\n\
         \"left-pad/@s/b\": [\"@s/b@2.0.0\", \"\", {{}}, \"{SHA512}\"],\n    \"c\": [\"c@1.0.0\", \"\", {{ \"os\": \"darwin\" }}, \"{SHA512}\"],\n    \"dev\": [\"dev@1.0.0\", \"\", {{}}, \"{SHA512}\"],\n  }}\n}}\n"
    )
}

#[test]
fn a_lock_of_bun_becomes_the_same_tree() {
    let wanted = node(&[("package.json", PACKAGE), ("bun.lock", &bun_lock("1.3.0"))]).expect("good").expect("some");
    let lock: serde_json::Value = serde_json::from_str(input(&wanted, "package-lock.json")).expect("JSON");
    let places: Vec<&String> = lock["packages"].as_object().expect("places").keys().collect();
    assert_eq!(places, ["", "node_modules/c", "node_modules/left-pad", "node_modules/left-pad/node_modules/@s/b"]);
    assert_eq!(
        lock["packages"]["node_modules/c"],
        serde_json::json!({"version": "1.0.0", "integrity": SHA512, "optional": true, "os": ["darwin"]})
    );
    assert_eq!(lock["packages"]["node_modules/left-pad"]["bin"]["left-pad"], "pad.js");
    for (change, words) in [
        (("left-pad@1.3.0", "left-pad@github:x/y#1"), "a git reference"),
        (("left-pad@1.3.0", "left-pad@file:x"), "a file reference"),
        (("left-pad@1.3.0", "left-pad@workspace:x"), "a folder of a workspace"),
        (("\"workspaces\"", "\"overrides\": {\"a\": \"1\"}, \"workspaces\""), "`overrides` is not read"),
        (("\"lockfileVersion\": 1", "\"lockfileVersion\": 9"), "lockfileVersion 1 and 2 are"),
        (("\"left-pad/@s/b\"", "\"left-pad/../b\""), "no place of a package"),
    ] {
        let said = refused(node(&[
            ("package.json", PACKAGE),
            ("bun.lock", &bun_lock("1.3.0").replacen(change.0, change.1, 1)),
        ]));
        assert!(said.contains(words), "{words}: {said}");
    }
    let both =
        node(&[("package.json", PACKAGE), ("package-lock.json", &npm_lock("1.3.0")), ("bun.lock", &bun_lock("1.2.0"))]);
    assert!(
        refused(both)
            .contains("package-lock.json:0: it and bun.lock disagree about `left-pad`: 1.3.0 here, 1.2.0 there")
    );
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
