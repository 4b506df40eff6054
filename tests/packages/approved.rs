//! The approved list is all that an installer gets: nothing runs while it is made, and nothing else
//! is in the tree.

use super::{FLAT, IndexedHost, PLAIN, set_mode};
use crate::prelude::*;

const ONE: &str = "print(1)\n";

const DENIES: &str =
    "deny = [{ name = \"plain\", why = \"a hole\" }, { name = \"flat\", why = \"a hole\" }]\n";

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn nothing_of_a_package_runs_while_requirements_are_resolved() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("default", "relaxed", false, "");
    for (package, wanted) in [
        (
            "points",
            "DependencyError: can be resolved only by running its code",
        ),
        ("names", "DependencyError: `plain` is required by address"),
        (
            "runs",
            "DependencyError: No matching distribution found for runs",
        ),
    ] {
        shop.requiring(package, &format!("{package}==1.0\n"), ONE);
        shop.expect(package, wanted);
        let lock = shop.deps(&["lock", &format!("esc:{package}")]);
        assert!(
            !lock.stderr.is_empty() && lock.code != Some(0),
            "{package}: {}",
            lock.text()
        );
        let mut kept = fs::read_dir(shop.store())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let resolved = kept.any(|path| path.to_string_lossy().ends_with(".resolved"));
        assert!(!resolved && !shop.was_asked("/ran"), "{package}");
    }
    if has("nodejs", 1) {
        let folder = shop
            .playground
            .tool("tarred", "nodejs", "console.log(1)", json!({}));
        shop.put(
            folder.join("package.json"),
            "{\"dependencies\": {\"points\": \"1.0.0\"}}",
        );
        let ended = shop.expect("tarred", "DependencyError");
        assert!(
            ended.out["error"]["details"].to_string().contains("flat"),
            "{ended:?}"
        );
    }
    // The control: the same pip without layers runs the code of the source archive.
    let mut outside = shop.playground.outside("/usr/bin/python3");
    outside.args([
        "-m",
        "pip",
        "download",
        "--isolated",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
        "--dest",
    ]);
    outside.arg(shop.playground.path("home/got")).args([
        "--index-url",
        &shop.url("simple/"),
        "points==1.0",
    ]);
    let ended = finish(outside, b"");
    assert!(shop.was_asked("/ran"), "{} {}", ended.text(), ended.stderr);
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn the_deny_list_holds_for_whatever_is_installed() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.python("marked", &["plain==1.0"], PLAIN);
    shop.expect("marked", "ok \"1.0\""); // The control.
    let line = shop.locked("plain==1.0");
    shop.policy("default", "required", false, DENIES);
    for marker in [
        "sys_platform === 'LINUX'",
        "platform_system === 'linux'",
        "'linux' in sys_platform",
        "os_name == 'posix'",
    ] {
        for sign in ["==", "==="] {
            let line = line
                .replace("==", sign)
                .replace(" --hash", &format!(" ; {marker} --hash"));
            shop.put(folder.join("requirements.txt"), &line);
            let ended = shop.call("esc:marked");
            assert_ne!(ended.out["outputData"], "1.0", "{line}: {ended:?}");
        }
    }
    // Copies inside another package, and in archives on the path of modules.
    for (name, script, control, place) in [
        ("vends", ONE, "ok 1", "vends/_vendor"),
        ("eggs", PLAIN, "ok \"6.6\"", "plain-6.6.egg"),
        ("zips", PLAIN, "ok \"6.6\"", "zips.zip"),
        ("adds", PLAIN, "ok \"6.6\"", "adds.zip"),
    ] {
        shop.policy("default", "required", false, "");
        shop.python(name, &[&format!("{name}==1.0")], script);
        shop.expect(name, control);
        let audit = shop.cli(&["audit", &format!("esc:{name}"), "--all"]).text();
        assert!(
            audit.contains("name plain, version 6.6") && audit.contains(place),
            "{audit}"
        );
        shop.policy("default", "required", false, DENIES);
        for _ in 0..2 {
            shop.expect(name, "DependencyError: plain 6.6 is denied: a hole");
            shop.deps(&["clean"]);
        }
    }
}

/// An old version to which a file was added lately is as young as that file, and so is a copy of
/// it.
#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn an_age_is_that_of_the_youngest_file_that_is_used() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("default", "required", false, "min_age_days = 30\n");
    for (name, wanted) in [
        ("many", "ok 1"), // The controls: both files are old.
        ("copies", "ok 1"),
        ("late", "DependencyError: late 1.0 is 0 days old"),
        ("hides", "DependencyError: late 1.0 is 0 days old"),
        ("packs", "DependencyError: late 1.0 is 0 days old"),
    ] {
        shop.python(name, &[&format!("{name}==1.0")], ONE);
        shop.expect(name, wanted);
    }
    if has("nodejs", 1) {
        shop.node(
            "flat",
            "nodejs",
            &["flat@1.0.0"],
            "console.log(JSON.stringify(require('flat')))",
        );
        shop.expect("flat", "ok \"1.0.0\"");
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_lies_in_the_tree_stands_in_the_lock() {
    let shop = IndexedHost::new(Who::ours());
    shop.python("doubles", &["doubles==1.0"], ONE);
    shop.expect(
        "doubles",
        "DependencyError: `plain 6.6` was installed, and is not in the lock",
    );
    shop.python("good", &["plain==1.0"], ONE);
    shop.expect("good", "ok 1"); // The control.
    // What names itself like one that is approved is another one all the same.
    for (name, why) in [
        ("poses", "its archive brings `plain-1.0.dist-info`"),
        ("again", "is installed twice"),
    ] {
        shop.python(name, &["plain==1.0", &format!("{name}==1.0")], ONE);
        shop.expect(name, &format!("DependencyError: {why}"));
    }
    if !has("nodejs", 1) {
        return;
    }
    let script = |name: &str| format!("console.log(JSON.stringify(require('{name}')))");
    let tool =
        |name: &str, packages: &[&str]| drop(shop.node(name, "nodejs", packages, &script(name)));
    tool("carries", &["carries@1.0.0"]);
    shop.expect(
        "carries",
        "DependencyError: `flat 6.6.6` was installed, and is not in the lock",
    );
    // In the lock it has the hash of the archive around it, and is held to the deny list.
    let locks = |name: &str, entry: Value| {
        let path = shop
            .playground
            .path(&format!("user_scripts/{name}/package-lock.json"));
        let mut lock: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        lock["packages"][format!("node_modules/{name}/node_modules/flat")] = entry;
        shop.put(&path, lock.to_string());
    };
    locks("carries", json!({"version": "6.6.6", "inBundle": true}));
    shop.expect("carries", "ok \"6.6.6\"");
    shop.policy("default", "required", false, DENIES);
    shop.expect("carries", "DependencyError: flat 6.6.6 is denied: a hole");
    shop.policy("default", "required", false, "");
    // What is said to be bundled and is not is fetched without a hash by nobody.
    tool("empty", &["empty@1.0.0"]);
    locks("empty", json!({"version": "1.0.0", "inBundle": true}));
    shop.expect("empty", "ScriptError: Cannot find module 'flat'");
    assert!(!shop.was_asked("/-/flat-1"), "{:?}", shop.log());
    locks(
        "empty",
        json!({"version": "1.0.0", "integrity": shop.hash("flat-1.0.0.tgz")}),
    );
    shop.expect("empty", "ok \"1.0.0\""); // The control.
    assert!(shop.was_asked("/-/flat-1"));
    // A folder of tests that is named like packages is not one of them.
    tool("fixtures", &["fixtures@1.0.0"]);
    shop.expect("fixtures", "ok 1");
    // What names itself like one that is approved is another one.
    tool("poses", &["flat@1.0.0", "poses@1.0.0"]);
    shop.expect(
        "poses",
        "DependencyError: `flat 1.0.0` was installed, and is not in the lock at this place",
    );
    shop.node(
        "honest",
        "nodejs",
        &["empty@1.0.0", "flat@1.0.0"],
        &script("empty"),
    );
    shop.expect("honest", "ok \"1.0.0\""); // The control.
}

/// Each script of a skill is locked beside it: from what `uv lock --script` wrote, or by the index.
/// The locks are files of the skill, so a person approves it after that.
#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn the_scripts_of_a_skill_are_locked_and_run_as_approved() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.playground.path("skills/demo");
    fs::create_dir_all(folder.join("scripts")).unwrap();
    let text = "---\nname: demo\ndescription: Tells versions.\n---\nRun them.\n";
    fs::write(folder.join("SKILL.md"), text).unwrap();
    let script = format!("# /// script\n# dependencies = [\"plain\"]\n# ///\n{PLAIN}");
    for name in ["new", "old"] {
        fs::write(folder.join(format!("scripts/{name}.py")), &script).unwrap();
    }
    fs::write(folder.join("scripts/bare.sh"), "echo 1\n").unwrap();
    let file = shop.url("files/plain-1.0-py3-none-any.whl");
    let hash = shop.hash("plain-1.0-py3-none-any.whl").to_owned();
    let lock = format!(
        "version = 1\n[manifest]\nrequirements = [{{ name = \"plain\" }}]\n[[package]]\nname = \
         \"plain\"\nversion = \"1.0\"\nsource = {{ registry = \"https://x/simple\" }}\nwheels = [{{ url = \
         \"{file}\", hash = \"{hash}\" }}]\n"
    );
    shop.put(folder.join("scripts/old.py.lock"), lock);
    let rules = super::rules("default", "required", false, "");
    shop.playground.policy("skills", "skill:demo", &rules);
    shop.settle();
    let run = |name: &str, wanted: &str| {
        let input = json!({"script": format!("scripts/{name}.py")}).to_string();
        let ended = shop.cli(&["call", "skill:demo", "--json", "--input", &input]);
        fits(wanted, &ended).unwrap_or_else(|why| panic!("{name}: {why}"));
    };
    let approve = || {
        let ended = shop.cli(&["approve", "skill:demo", "--why", "a test", "--yes"]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.text(), ended.stderr);
    };
    approve();
    run(
        "new",
        "DependencyError: `toolhost deps lock skill:demo` writes the lock",
    );
    let said = shop.deps_good(&["lock", "skill:demo"]);
    assert!(said.contains("approve skill:demo`"), "{said}");
    run("new", "SecurityError: changed");
    approve();
    run("new", "ok \"2.0\"");
    run("old", "ok \"1.0\"");
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_lock_of_another_installer_is_translated_and_never_resolved_again() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.playground.tool("uv", "python", PLAIN, json!({}));
    let project = "[project]\nname = \"demo\"\nversion = \"1\"\ndependencies = [\"plain\"]\n";
    fs::write(folder.join("pyproject.toml"), project).unwrap();
    let file = shop.url("files/plain-1.0-py3-none-any.whl");
    let hash = shop.hash("plain-1.0-py3-none-any.whl").to_owned();
    let lock = format!(
        "version = 1\n[[package]]\nname = \"demo\"\nversion = \"1\"\nsource = {{ virtual = \".\" \
         }}\ndependencies = [{{ name = \"plain\" }}]\n[[package]]\nname = \"plain\"\nversion = \
         \"1.0\"\nsource = {{ registry = \"https://x/simple\" }}\nwheels = [{{ url = \"{file}\", \
         hash = \"{hash}\" }}]\n"
    );
    shop.put(folder.join("uv.lock"), &lock);
    shop.expect(
        "uv",
        "DependencyError: `toolhost deps lock esc:uv` writes the lock",
    );
    shop.deps_good(&["lock", "esc:uv"]);
    assert!(
        shop.log().is_empty(),
        "the index, which offers 2.0, is not asked: {:?}",
        shop.log()
    );
    let text = fs::read_to_string(folder.join("pylock.toml")).unwrap();
    assert!(
        text.contains("\"1.0\"") && text.contains(&hash["sha256:".len()..]),
        "{text}"
    );
    shop.expect("uv", "ok \"1.0\"");
    for (change, why) in [
        (
            ("registry = \"https://x/simple\"", "git = \"https://x\""),
            "`plain` comes from `git`",
        ),
        (("\"plain\" }]", "\"gone\" }]"), "does not hold `gone`"),
        (
            ("version = 1\n", "version = 2\n"),
            "version 2 of this format",
        ),
        (("sha256:", "md5:"), "without a sha256 hash"),
    ] {
        shop.put(folder.join("uv.lock"), lock.replacen(change.0, change.1, 1));
        let refused = shop.deps(&["lock", "esc:uv"]);
        assert!(
            refused.code != Some(0) && refused.stderr.contains(why),
            "{why}: {}",
            refused.stderr
        );
    }
    // The control: without uv.lock the newest version is resolved.
    fs::remove_file(folder.join("uv.lock")).unwrap();
    shop.deps_good(&["lock", "esc:uv"]);
    shop.expect("uv", "ok \"2.0\"");
    if !has("nodejs", 1) {
        return;
    }
    let asked = shop.log().len();
    let folder = shop.playground.tool("bun", "nodejs", FLAT, json!({}));
    fs::write(
        folder.join("package.json"),
        "{\"dependencies\": {\"flat\": \"*\"}}",
    )
    .unwrap();
    let hash = shop.hash("flat-1.0.0.tgz");
    let lock = format!(
        "{{\"lockfileVersion\": 1, \"workspaces\": {{\"\": {{\"dependencies\": {{\"flat\": \"*\", \
         }}, }}, }},\n\"packages\": {{\n\"flat\": [\"flat@1.0.0\", \"\", {{ \
         \"optionalDependencies\": {{ \"@s/far\": \"*\" }} }}, \"{hash}\"],\n\"flat/@s/far\": \
         [\"@s/far@1.0.0\", \"\", {{ \"os\": \"darwin\" }}, \"{hash}\"],\n\"dev\": [\"dev@1.0.0\", \
         \"\", {{}}, \"{hash}\"], }} }}"
    );
    for (change, why) in [
        (
            ("flat@1.0.0", "flat@github:x/y#1"),
            "a git or file reference",
        ),
        (
            (
                "\"workspaces\"",
                "\"overrides\": {\"a\": \"1\"}, \"workspaces\"",
            ),
            "`overrides` is not read",
        ),
        (
            ("\"flat\": \"*\"", "\"gone\": \"*\""),
            "does not hold `gone`",
        ),
        (("\", {}, \"", "\", {}, \""), ""),
    ] {
        shop.put(
            folder.join("bun.lock"),
            lock.replacen(change.0, change.1, 1),
        );
        let done = shop.deps(&["lock", "esc:bun"]);
        assert!(
            (done.code == Some(0)) == why.is_empty() && done.stderr.contains(why),
            "{why}: {}",
            done.stderr
        );
    }
    let text = fs::read_to_string(folder.join("package-lock.json")).unwrap();
    assert!(
        text.contains("node_modules/flat/node_modules/@s/far") && !text.contains("dev"),
        "{text}"
    );
    assert_eq!(
        shop.log().len(),
        asked,
        "the index, which offers 2.0.0, is not asked"
    );
    shop.expect("bun", "ok \"1.0.0\"");
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn an_index_gives_what_the_lock_says_or_nothing_and_a_failure_is_remembered() {
    let shop = IndexedHost::new(Who::ours());
    shop.python("one", &["plain==1.0"], ONE);
    shop.policy("shut", "required", false, "");
    let began = Stopwatch::start();
    // An installer knows of a connection that is reset; why is told beside it, the address to the
    // person alone.
    let ended = shop.expect("one", "DependencyError");
    let details = ended.out["error"]["details"].as_str().unwrap_or_default();
    assert!(
        details.starts_with("On the network: connect 127.0.0.1:"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("no `ranges`") || ended.stderr.contains("loopback"),
        "{}",
        ended.stderr
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{ended:?}");
    shop.policy("far", "required", false, "");
    let mut server = Server::of(shop.host(&[]));
    let mut said = || server.called("esc:one", json!({})).to_string();
    let far = said();
    assert!(
        far.contains("DependencyError") && far.contains("could not be fetched"),
        "{far}"
    );
    let asked = shop.log().len();
    assert!(said().contains("could not be fetched"));
    assert_eq!(
        shop.log().len(),
        asked,
        "the index is not asked again so soon"
    );
    shop.policy("default", "required", false, "");
    wait_for("another index is tried at once", || {
        !said().contains("could not be fetched")
    });
    assert!(shop.log().len() > asked);
    shop.python(
        "twin",
        &["twin==1.0"],
        "import twin, json\nprint(json.dumps(twin.whose))\n",
    );
    for (index, wanted) in [
        (
            "other",
            "DependencyError: THESE PACKAGES DO NOT MATCH THE HASHES",
        ),
        // What came has the hash of the lock: how long the index said that it is does not matter.
        ("lies", "ok \"ours\""),
        ("default", "ok \"ours\""),
    ] {
        shop.policy(index, "required", false, "");
        shop.expect("twin", wanted);
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn source_text_has_the_packages_of_the_lock_that_its_policy_names() {
    let shop = IndexedHost::new(Who::ours());
    let input = json!({"language": "python", "code": PLAIN, "inputData": {}}).to_string();
    let call = || shop.cli(&["call", "core:run-code", "--json", "--input", &input]);
    let lock = shop
        .playground
        .path("sandbox-policies/run-code.pylock.toml");
    let entry = |more: &str| {
        let rest =
            format!("[packages]\npython = {{ index = \"default\", {more}why = \"a test\" }}\n");
        shop.playground.policy("run", "core:run-code", &rest);
        shop.settle();
    };
    entry("");
    assert!(
        call().text().contains("No module named"),
        "the control: {:?}",
        call()
    );
    assert_ne!(
        shop.deps(&["lock", "core:run-code", "plain<2"]).code,
        Some(0)
    );
    entry("lock_file = \"run-code.pylock.toml\", ");
    assert_eq!(
        fits(
            "DependencyError: run-code.pylock.toml: does not exist; `toolhost deps lock",
            &call()
        ),
        Ok(())
    );
    shop.deps_good(&["lock", "core:run-code", "plain<2"]);
    assert!(call().text().contains("1.0"), "{:?}", call());
    let asked = shop.log().len();
    assert!(call().text().contains("1.0"), "{:?}", call());
    assert_eq!(shop.log().len(), asked, "it is built once");
    // Who writes the code reads what it may use, and what to ask for.
    let listed = shop.cli(&["list", "--json"]).text();
    assert!(listed.contains("Python packages: plain 1.0."), "{listed}");
    let other = json!({"language": "python", "code": "import sideways"}).to_string();
    let ended = shop.cli(&["call", "core:run-code", "--json", "--input", &other]);
    let advice = "`toolhost deps lock core:run-code plain sideways`";
    assert!(ended.text().contains(advice), "{ended:?}");
    set_mode(&lock, 0o666);
    assert_eq!(
        fits("DependencyError: can be written by others", &call()),
        Ok(())
    );
    set_mode(&lock, 0o644);
    assert!(call().text().contains("1.0"), "the control: {:?}", call());
    let audit = shop.cli(&["audit", "core:run-code", "--all"]).text();
    assert!(audit.contains("run-code.pylock.toml"), "{audit}");
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn code_of_node_has_the_packages_of_a_lock_of_its_own() {
    if !has("nodejs", 1) {
        return;
    }
    let shop = IndexedHost::new(Who::ours());
    let input = json!({"language": "nodejs", "code": FLAT}).to_string();
    let call = || shop.cli(&["call", "core:run-code", "--json", "--input", &input]);
    let policy = |lines: &[&str]| {
        let rest = format!("[packages]\n{}\n", lines.join("\n"));
        shop.playground.policy("run", "core:run-code", &rest);
        shop.settle();
    };
    let node = "node = { index = \"default\", why = \"a test\" }";
    let named = "node = { index = \"default\", lock_file = \"run-code.package-lock.json\", why = \"a test\" }";
    let python =
        "python = { index = \"default\", lock_file = \"run-code.pylock.toml\", why = \"a test\" }";
    // What is missing is said for the language that the policy allows, to be written on two lines.
    policy(&[node]);
    let refused = shop.deps(&["lock", "core:run-code", "flat"]).stderr;
    let line = refused.split('`').find(|part| part.starts_with("node = "));
    policy(&[line.unwrap_or_else(|| panic!("{refused}"))]);
    assert!(call().text().contains("does not exist"), "{:?}", call());
    let checked = shop.cli(&["check"]).text();
    assert!(checked.contains("every call is refused"), "{checked}");
    let made = shop.deps_good(&["lock", "core:run-code", "flat@^1"]);
    assert!(made.contains("run-code.package-lock.json"), "{made}");
    assert_eq!(fits("ok", &call()), Ok(()), "{:?}", call());
    let checked = shop.cli(&["check"]).text();
    assert!(!checked.contains("every call is refused"), "{checked}");
    let listed = shop.cli(&["list", "--json"]).text();
    assert!(listed.contains("Node.js packages: flat "), "{listed}");
    // With a lock for each language a person says which.
    policy(&[named, python]);
    let refused = shop.deps(&["lock", "core:run-code", "flat"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("--language"),
        "{refused:?}"
    );
    let more = ["lock", "core:run-code", "plain<2", "--language", "python"];
    assert!(shop.deps_good(&more).contains("run-code.pylock.toml"));
    for word in ["../x", "flat@git+ssh://x", "flat@npm:other@1"] {
        let refused = shop.deps(&["lock", "core:run-code", word, "--language", "nodejs"]);
        assert_eq!(refused.code, Some(2), "{word}: {}", refused.stderr);
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn builds_that_take_long_keep_no_caller_waiting() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("default", "required", true, "");
    for (tool, package) in [
        ("slow", "sleeps==1.0"),
        ("slower", "dozes==1.0"),
        ("quick", "builds==1.0"),
    ] {
        let folder = shop.playground.tool(
            tool,
            "python",
            ONE,
            json!({"execution": {"timeoutMs": 3000}}),
        );
        shop.put(folder.join("requirements.txt"), shop.locked(package));
    }
    let mut server = Server::of(shop.host(&[]));
    let mut is_built = |tool: &str| {
        let answer = server.called(&format!("esc:{tool}"), json!({}));
        let waits = answer
            .to_string()
            .contains("this tool's packages are still being built; try again");
        assert!(waits || kind(&answer) == "none", "{answer}");
        !waits
    };
    for tool in ["slow", "slower", "quick"] {
        assert!(!is_built(tool), "the control: both places are taken");
    }
    let began = Stopwatch::start();
    wait_for("the quick build goes on", || is_built("quick"));
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    assert!(!is_built("slow"), "the control: it goes on");
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn an_index_of_an_authority_of_its_own_is_trusted_where_the_configuration_says_so() {
    let [ca, host, key] = certificates();
    let certificate = tempfile::NamedTempFile::new().unwrap();
    fs::write(certificate.path(), host + &key).unwrap();
    set_mode(certificate.path(), 0o644);
    let shop = IndexedHost::open(Who::ours(), &json!({"certificate": certificate.path()}));
    shop.python("one", &["plain==1.0"], PLAIN);
    shop.node("flat", "nodejs", &["flat@1.0.0"], FLAT);
    let tools = [("one", "ok \"1.0\""), ("flat", "ok \"1.0.0\"")];
    let tools = &tools[..if has("nodejs", 1) { 2 } else { 1 }];
    tools
        .iter()
        // The control, without `ca`.
        .for_each(|(tool, _)| drop(shop.expect(tool, "DependencyError")));
    let [folder, free] = ["vouches", "free"].map(|name| shop.playground.path(name));
    [&folder, &free]
        .iter()
        .for_each(|folder| fs::create_dir(folder).unwrap());
    let file = folder.join("authority.pem");
    fs::write(&file, ca).unwrap();
    shop.configure(", ca = \"vouches/authority.pem\"");
    set_mode(&file, 0o666);
    assert!(shop.call("esc:one").stderr.contains("others can write it"));
    set_mode(&file, 0o644);
    tools
        .iter()
        .for_each(|(tool, wanted)| drop(shop.expect(tool, wanted)));
    shop.policy("default", "relaxed", false, "");
    shop.requiring("loose", "plain<2\n", ONE);
    shop.expect("loose", "ok 1"); // Resolving.
    shop.writer(
        "writer",
        &folder.join("**"),
        "SecurityError: a file of this host",
    );
    shop.writer("control", &free.join("**"), "ok 1");
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_was_resolved_is_counted_bounded_and_removed_and_a_bad_entry_stops_no_call() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("default", "relaxed", false, "");
    shop.requiring("loose", "plain<2\n", ONE);
    shop.expect("loose", "ok 1");
    let names = |end: &str| {
        let all = fs::read_dir(shop.store())
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        all.filter(|path| path.to_string_lossy().ends_with(end))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(".resolved").len(), 1);
    // What a killed host left: a lock, a file in use, a file that was being written.
    let left = [("", "a", ".lock"), ("", "b", ".use"), (".", "c", ".json.x")];
    let left =
        left.map(|(dot, digit, end)| shop.store().join(format!("{dot}{}{end}", digit.repeat(32))));
    for path in &left {
        fs::File::create(path)
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
    }
    // Longer than any lock that is written: it is as none, and resolved again.
    let lock = names(".resolved").remove(0);
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, "#".repeat(5 << 20)).unwrap();
    fs::write(shop.store().join(&shop.trees()[0]).join("changed"), "").unwrap();
    shop.requiring("other", "plain==2.0\n", ONE);
    shop.expect("other", "ok 1");
    shop.expect("loose", "ok 1");
    assert!(fs::metadata(&lock).unwrap().len() < 4 << 20);
    assert!(left.iter().all(|path| !path.exists()), "{:?}", names(""));
    assert!(names(".lock").is_empty() && names(".resolved").len() == 2);
    // A bad entry stops nobody, and goes.
    let [text, folder] =
        ["a", "b"].map(|digit| shop.store().join(format!("{}.entry", digit.repeat(32))));
    fs::write(&text, "no list").unwrap();
    fs::create_dir(&folder).unwrap();
    shop.expect("loose", "ok 1");
    let listed = shop.deps_good(&["list"]);
    assert!(listed.contains("esc:loose"), "{listed}");
    shop.deps_good(&["clean"]);
    assert!(!text.exists() && !folder.exists() && shop.trees().is_empty());
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn with_an_approval_only_the_packages_that_were_approved_run() {
    let shop = IndexedHost::new(Who::ours());
    let folder = shop.requiring("pinned", "plain<2\n", PLAIN);
    shop.policy(
        "default",
        "required",
        false,
        "[approval]\nrequired = true\n",
    );
    shop.expect("pinned", "SecurityError: not approved");
    assert!(shop.log().is_empty(), "nothing is installed before");
    // The lock is part of what is approved, so it is made first.
    shop.deps_good(&["lock", "esc:pinned"]);
    shop.expect("pinned", "SecurityError: not approved");
    let approved = shop.cli(&["approve", "esc:pinned", "--why", "a test", "--yes"]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    shop.expect("pinned", "ok \"1.0\"");
    let lock = folder.join("pylock.toml");
    let before = fs::read_to_string(&lock).unwrap();
    shop.put(&lock, before.replace("1.0", "2.0"));
    shop.expect("pinned", "SecurityError: changed since approval");
    let shown = shop.cli(&["approve", "esc:pinned"]).text();
    assert!(shown.contains("file changed: ./pylock.toml"), "{shown}");
    shop.put(&lock, before);
    shop.expect("pinned", "ok \"1.0\"");
    assert!(!shop.was_asked("plain-2.0"));
}
