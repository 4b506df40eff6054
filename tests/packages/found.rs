//! What a script's files ask for, by the real binary: who may have it, what is refused, and what
//! every report says.

use crate::prelude::*;
use crate::requirements::says;
use toolhost::cli::settings::{Flags, Settings};

const SCRIPT: &str = "print('\"ran\"')\n";
const NODE: &str = "console.log('\"ran\"')\n";
const HASH: &str = "--hash=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const MODULE: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 16) "1") (data (i32.const 0) "\10\00\00\00\01\00\00\00")
  (func (export "_start") (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
const OWN: &str = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";

fn allowing(table: &str) -> String {
    format!("{OWN}[packages]\n{table}\n")
}

const PYTHON: &str = "python = { index = \"default\", why = \"w\" }";

/// A tool `esc:NAME` with files beside its script, and a policy for it where a table is given.
fn put(
    playground: &Playground,
    name: &str,
    language: &str,
    files: &[(&str, &str)],
    table: Option<&str>,
) -> PathBuf {
    let script = match language {
        "python" => SCRIPT,
        "wasm" => MODULE,
        _ => NODE,
    };
    let folder = playground.tool(name, language, script, json!({}));
    for (file, text) in files {
        fs::write(folder.join(file), text).unwrap();
    }
    if let Some(table) = table {
        playground.policy(name, &format!("esc:{name}"), &allowing(table));
    }
    playground.settle();
    folder
}

/// What `list` says of `esc:NAME`.
fn listed(playground: &Playground) -> impl Fn(&str) -> Value {
    let all = playground.cli(&["list", "--json"]).out;
    move |name| {
        let found = all
            .as_array()
            .unwrap()
            .iter()
            .find(|tool| tool["toolId"] == format!("esc:{name}"));
        found.unwrap_or_else(|| panic!("{name}: {all}")).clone()
    }
}

fn is_available(playground: &Playground, name: &str) -> bool {
    listed(playground)(name)["available"] == true
}

/// That a call is refused, in these words, and that nothing ran.
fn unavailable(playground: &Playground, name: &str, wanted: &str) -> Ended {
    let ended = playground.expect(&format!("esc:{name}"), "{}", wanted);
    let started = ended.out["layers"]
        .as_array()
        .is_some_and(|layers| !layers.is_empty());
    assert!(!started && !ended.text().contains("ran"), "{ended:?}");
    ended
}

/// What `audit esc:NAME --all` says has these words.
fn audited(playground: &Playground, name: &str, words: &[&str]) {
    says(
        playground,
        &["audit", &format!("esc:{name}"), "--all"],
        words,
    );
}

#[track_caller]
fn runs(playground: &Playground, name: &str) {
    playground.expect(&format!("esc:{name}"), "{}", "ok \"ran\"");
}

/// The head of a script that says what it requires.
fn block() -> String {
    format!("# /// script\n# dependencies = [\"sixer\"]\n# ///\n{SCRIPT}")
}

#[test]
fn packages_are_off_unless_a_policy_says_so_or_somebody_installed_them() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    put(&playground, "bare", "python", &[], None);
    put(
        &playground,
        "loose",
        "python",
        &[("requirements.txt", "sixer\n")],
        None,
    );
    put(
        &playground,
        "empty",
        "python",
        &[("requirements.txt", "# nothing\n")],
        None,
    );
    let folder = put(&playground, "block", "python", &[], None);
    fs::write(folder.join("main.py"), block()).unwrap();
    let listed = listed(&playground);
    // Control: the same tools without files that ask for something.
    for name in ["bare", "empty"] {
        runs(&playground, name);
        assert_eq!(listed(name)["available"], true);
    }
    let sentence = "its python packages (requirements.txt), which no policy allows: write \
                    `[packages]` and, on a line below, `python = { index = \"default\"";
    let loose = format!("CapabilityError: {}", sentence.replace('"', "\\\""));
    for (name, wanted) in [
        ("loose", &*loose),
        ("block", "CapabilityError: its python packages (main.py)"),
    ] {
        unavailable(&playground, name, wanted);
        assert_eq!(listed(name)["available"], false, "{name}");
    }
    let needs = listed("loose")["needs"][0]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(needs.starts_with(sentence), "{needs}");
    // What the sentence says to write is enough.
    let entry = needs
        .split("on a line below, `")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .unwrap();
    playground.policy("loose", "esc:loose", &allowing(entry));
    playground.settle();
    assert!(is_available(&playground, "loose"), "{needs}");
    // Nor do those need one that somebody installed.
    put(
        &playground,
        "python",
        "python",
        &[("requirements.txt", "sixer\n")],
        None,
    );
    unavailable(
        &playground,
        "python",
        "CapabilityError: its python packages",
    );
    let python = fs::canonicalize(crate::harness::PYTHON).unwrap();
    let named = format!(
        "{OWN}[runtimes]\npython = {{ path = \"{}\", why = \"w\" }}\n",
        python.display()
    );
    playground.policy("python", "esc:python", &named);
    let folder = put(
        &playground,
        "node",
        "nodejs",
        &[("package.json", PACKAGE)],
        None,
    );
    unavailable(&playground, "node", "CapabilityError: its node packages");
    fs::create_dir(folder.join("node_modules")).unwrap();
    playground.settle();
    for (name, words) in [
        ("python", "assumes that the interpreter"),
        ("node", "node_modules beside the script is used"),
    ] {
        runs(&playground, name);
        audited(&playground, name, &[words]);
    }
}

const PACKAGE: &str = "{\"dependencies\": {\"left-pad\": \"^1.0.0\"}}";

#[test]
fn what_cannot_be_installed_stops_the_call_and_says_why() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let mut wanted = Vec::new();
    for row in include_str!("found.txt")
        .lines()
        .filter(|row| !row.starts_with('#'))
    {
        let row = row.split('|').collect::<Vec<_>>();
        let [name, language, file, text, table, ends] = row[..] else {
            panic!("{row:?}")
        };
        let (text, table) = (text.replace("\\n", "\n"), table.replace("\\n", "\n"));
        if language != "wasm" || cfg!(feature = "wasi") {
            let usual = if language == "nodejs" {
                ("package.json", PACKAGE)
            } else {
                ("requirements.txt", "sixer\n")
            };
            let more = Some((file, &*text)).filter(|_| !file.is_empty());
            let files: Vec<_> = [usual].into_iter().chain(more).collect();
            put(&playground, name, language, &files, Some(&table));
            wanted.push((name, ends));
        }
    }
    let listed = listed(&playground);
    for (name, ends) in wanted {
        let ended = unavailable(&playground, name, ends);
        let message = ended.error().1;
        assert!(
            !message.contains(playground.base.to_str().unwrap()),
            "an agent reads no host path: {message}"
        );
        assert_eq!(listed(name)["available"], false, "{name}");
    }
    let git = "so it was not started: requirements.txt:2: `x @ git+https://h/x` is a git reference";
    says(&playground, &["check"], &[git, "no [indexes.inner] python"]);
    // A package that the policy denies, with its reason.
    let lock = format!("sixer==1.16.0 {HASH}\n");
    let table = format!(
        "{PYTHON}\ndeny = [{{ name = \"Sixer\", versions = \"<1.17\", why = \"it has a hole\" }}]"
    );
    put(
        &playground,
        "denied",
        "python",
        &[("requirements.txt", &lock)],
        Some(&table),
    );
    unavailable(
        &playground,
        "denied",
        "DependencyError: sixer 1.16.0 is denied: it has a hole",
    );
    fs::write(
        playground.path("user_scripts/denied/requirements.txt"),
        lock.replace("1.16", "1.17"),
    )
    .unwrap();
    assert!(
        is_available(&playground, "denied"),
        "control: a version that is not denied"
    );
}

#[test]
fn the_files_of_others_say_nothing_of_a_script() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    // Directly in a base folder lie the scripts of all.
    playground.tool_at("esc:flat", "python", "flat.py", SCRIPT, json!({}));
    fs::write(playground.path("user_scripts/requirements.txt"), "sixer\n").unwrap();
    // A folder above says nothing of a script below.
    playground.tool_at("esc:deep", "python", "top/below/main.py", SCRIPT, json!({}));
    fs::write(
        playground.path("user_scripts/top/requirements.txt"),
        "sixer\n",
    )
    .unwrap();
    // Nor do files among the scripts of tools that lie elsewhere: each of these is a guest there.
    for name in ["guest", "second"] {
        let folder = playground.tool_at(
            &format!("esc:{name}"),
            "python",
            &format!("shared/{name}.py"),
            SCRIPT,
            json!({}),
        );
        fs::create_dir(playground.path("tool-defs").join(name)).unwrap();
        let manifest = format!("tool-defs/{name}/{name}.tool.json");
        fs::rename(
            folder.join(format!("esc-{name}.tool.json")),
            playground.path(&manifest),
        )
        .unwrap();
    }
    fs::write(
        playground.path("user_scripts/shared/requirements.txt"),
        "sixer\n",
    )
    .unwrap();
    // The files of another language neither.
    put(
        &playground,
        "mixed",
        "python",
        &[("package.json", PACKAGE)],
        None,
    );
    playground.settle();
    ["flat", "deep", "guest", "second", "mixed"]
        .iter()
        .for_each(|name| runs(&playground, name));
    fs::write(
        playground.path("user_scripts/top/below/requirements.txt"),
        "sixer\n",
    )
    .unwrap();
    unavailable(&playground, "deep", "CapabilityError: its python packages");
    // Control: where its manifest lies in the folder of the same path it is no guest, and the file
    // is its own.
    fs::rename(
        playground.path("tool-defs/guest"),
        playground.path("tool-defs/shared"),
    )
    .unwrap();
    unavailable(&playground, "guest", "CapabilityError: its python packages");
    // A script that a builtin tool runs answers to its own policy and to the builtin tool's.
    put(
        &playground,
        "both",
        "python",
        &[("requirements.txt", "sixer\n")],
        Some(PYTHON),
    );
    playground.policy("core", "core:execute-python-script", OWN);
    playground.settle();
    let input = json!({"scriptPath": "both/main.py", "inputData": {}}).to_string();
    let refused = "CapabilityError: its python packages (requirements.txt), which no policy allows";
    playground.expect("core:execute-python-script", &input, refused);
    playground.policy("core", "core:execute-python-script", &allowing(PYTHON));
    playground.settle();
    // A path is judged before anything is read beside it.
    let climbing = json!({"scriptPath": "both/../../both/main.py", "inputData": {}}).to_string();
    playground.expect("core:execute-python-script", &climbing, "SecurityError");
    playground.expect("core:execute-python-script", &input, "DependencyError");
    let audit = playground
        .cli(&["audit", "core:execute-python-script", "--json"])
        .out;
    assert_eq!(
        audit["packages"]["allowed"]["python"]["index"], "default",
        "{audit}"
    );
}

#[test]
fn a_tool_cannot_write_what_is_installed_for_a_script() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, pattern, file) in [
        ("names", "requirements.txt", "requirements.txt"),
        ("ending", "*.txt", "requirements.txt"),
        ("lock", "pylock.toml", "pylock.toml"),
        ("below", "out/*.txt", "out/requirements.txt"),
    ] {
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./*"], "allowWrite": [pattern]}}});
        let folder = playground.tool(name, "python", SCRIPT, asks);
        fs::create_dir_all(folder.join("out")).unwrap();
        playground.allow(name, &format!("esc:{name}"), &["./**"], &["./**"]);
        playground.settle();
        let call = || playground.call(&format!("esc:{name}"), "{}");
        assert_eq!(call().code, Some(0), "{name}");
        // What lies there is data, and installs nothing.
        fs::write(folder.join(file), "evil==1.0\n").unwrap();
        playground.settle();
        let ended = call();
        let refused = ended.code != Some(0) && ended.stderr.contains(&format!("esc:{name}@1.0.0"));
        assert_eq!(refused, name != "below", "{name}: {ended:?}");
    }
    // What another tool may write is no requirement.
    let asks =
        json!({"securityContext": {"fileAccess": {"allowWrite": ["../victim/requirements.txt"]}}});
    playground.tool("writer", "python", SCRIPT, asks);
    put(&playground, "victim", "python", &[], None);
    runs(&playground, "victim");
}

#[test]
fn a_server_sees_at_once_what_changes_beside_a_script() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = put(&playground, "live", "python", &[], None);
    let file = folder.join("requirements.txt");
    let mut server = Server::start(&playground);
    let mut says = |words: &str| {
        let said = server.called("esc:live", json!({})).to_string();
        assert!(said.contains(words), "{words}: {said}");
    };
    says("ran");
    // So that nothing is young any more, and the answer that is kept counts.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    says("ran");
    says("ran");
    fs::write(&file, "sixer\n").unwrap();
    says("its python packages (requirements.txt)");
    fs::write(&file, "git+x\n").unwrap();
    says("a git reference");
    fs::remove_file(&file).unwrap();
    says("ran");
    fs::write(folder.join("main.py"), block()).unwrap();
    says("its python packages (main.py)");
}

#[test]
fn every_report_says_what_decides() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let lock = format!("sixer==1.16.0 {HASH}\n");
    put(
        &playground,
        "locked",
        "python",
        &[("requirements.txt", &lock)],
        Some(PYTHON),
    );
    let relaxed =
        "python = { index = \"default\", lock = \"relaxed\", builds = true, why = \"w\" }";
    put(
        &playground,
        "loose",
        "python",
        &[("requirements.txt", "sixer>=1\n")],
        Some(relaxed),
    );
    put(
        &playground,
        "bare",
        "python",
        &[("requirements.txt", "sixer>=1\n")],
        None,
    );
    let digest = toolhost::base::sha256_hex(lock.as_bytes());
    let words = [
        "lock required, no builds",
        &digest,
        "sixer 1.16.0",
        "https://pypi.org/simple/",
    ];
    audited(&playground, "locked", &words);
    audited(
        &playground,
        "loose",
        &["warning: not pinned", "builds allowed"],
    );
    let pinned = "not pinned, so another day may bring another version: sixer (requirements.txt:1)";
    says(&playground, &["check"], &[pinned]);
    let can = playground
        .cli(&["audit", "--who-can", "package:sixer@1.16.0"])
        .text();
    assert!(can.contains("esc:locked@1.0.0: locked at 1.16.0"), "{can}");
    assert!(
        can.contains("esc:loose@1.0.0: it asks for sixer >=1, not locked")
            && !can.contains("esc:bare"),
        "{can}"
    );
    let suggested = playground
        .cli(&["audit", "esc:bare", "--suggest-policy"])
        .text();
    let line = "\npython = { index = \"default\", lock = \"required\"";
    assert!(
        suggested.contains("[packages]\n") && suggested.contains(line),
        "{suggested}"
    );
    // Filled in, it is enough.
    let filled = suggested.replace("why = \"\"", "why = \"w\"");
    fs::write(
        playground.path("sandbox-policies/esc-bare.policy.toml"),
        filled,
    )
    .unwrap();
    playground.settle();
    assert!(is_available(&playground, "bare"), "{suggested}");
    // But for its lock.
    says(
        &playground,
        &["audit", "esc:bare"],
        &["a call is refused: DependencyError", "are not locked"],
    );
    says(&playground, &["audit", "esc:locked"], &["can be called"]);
    let words = [
        "every call is refused: its packages are not locked; `toolhost ",
        "deps lock esc:bare` writes the lock",
    ];
    says(&playground, &["check"], &words);

    let saved = playground.path("home/before.json");
    fs::write(
        &saved,
        playground.cli(&["audit", "esc:locked", "--json"]).text(),
    )
    .unwrap();
    playground.policy("locked", "esc:locked", &allowing(relaxed));
    fs::write(
        playground.path("user_scripts/locked/requirements.txt"),
        lock.replace("1.16.0", "1.17.0"),
    )
    .unwrap();
    playground.settle();
    let words = [
        "python from the index `default`; lock relaxed, builds allowed",
        "/packages/holds/sixer",
    ];
    says(
        &playground,
        &["diff", saved.to_str().unwrap(), "esc:locked"],
        &words,
    );
    let probed = playground.cli(&["audit", "esc:locked", "--probe"]);
    assert_eq!(probed.code, Some(0), "{probed:?}");
}

#[test]
fn a_file_that_a_tool_could_write_is_no_credential_of_an_index() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let lock = format!("sixer==1.16.0 {HASH}\n");
    let inner = "python = { index = \"inner\", why = \"w\" }";
    put(
        &playground,
        "keyed",
        "python",
        &[("requirements.txt", &lock)],
        Some(inner),
    );
    let key = playground.path("keys/k");
    fs::create_dir_all(key.parent().unwrap()).unwrap();
    fs::write(&key, "a secret of 8 bytes").unwrap();
    let tree = format!("{}/**", key.parent().unwrap().display());
    let writes = json!({"securityContext": {"fileAccess": {"allowWrite": [tree]}}});
    playground.tool(
        "writer",
        "python",
        &format!(
            "open('{}', 'w').write('planted key')\nprint(1)\n",
            key.display()
        ),
        writes,
    );
    playground.allow("writer", "esc:writer", &["./**"], &[&tree]);
    playground.settle();
    let config = playground.path("home/.config/toolhost/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let configure = || {
        let url = "https://pypi.example/simple";
        let text = format!("credential = {{ from = \"file:{}\" }}", key.display());
        fs::write(
            &config,
            format!("[indexes.inner]\npython = {{ url = \"{url}\", {text} }}\n"),
        )
        .unwrap();
        super::settle(&playground);
        std::os::unix::fs::chown(&key, playground.who.uid(), playground.who.uid()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    };
    configure();
    // The control: the credential is read, and there is no such index.
    unavailable(
        &playground,
        "keyed",
        "DependencyError: could not be fetched",
    );
    fs::remove_file(&config).unwrap();
    super::settle(&playground);
    playground.expect("esc:writer", "{}", "ok 1");
    fs::remove_file(playground.path("sandbox-policies/writer.policy.toml")).unwrap();
    configure();
    unavailable(
        &playground,
        "keyed",
        "SecurityError: comes from a file that a tool could write",
    );
}

#[test]
fn the_configuration_says_what_an_index_is() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let inner = "python = { index = \"inner\", why = \"w\" }";
    put(
        &playground,
        "tool",
        "python",
        &[("requirements.txt", "sixer\n")],
        Some(inner),
    );
    let path = playground.path("home/.config/toolhost/config.toml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let put = |text: &str| {
        fs::write(&path, text).unwrap();
        playground.settle();
    };
    let words =
        "no [indexes.inner] python, so tools that require packages are unavailable; known: default";
    says(&playground, &["check"], &[words]);
    put(
        "[indexes.inner]\npython = { url = \"https://pypi.example/simple\", hosts = \
         [\"files.example\"], ranges = [\"10.0.0.0/8\"], credential = { from = \"env:TOKEN\" } }\n",
    );
    assert!(is_available(&playground, "tool"));
    let words = "`inner` (https://pypi.example/simple/, with a credential that toolhost adds)";
    audited(&playground, "tool", &[words]);
    says(
        &playground,
        &["doctor"],
        &["inner", "https://pypi.example/simple/"],
    );
    for (python, words) in [
        (
            "{ url = \"https://u:p@x/\" }",
            "it holds a user or password",
        ),
        (
            "{ url = \"ftp://x/\" }",
            "it must begin with https:// or http://",
        ),
        ("{ url = \"https://x/?a=b\" }", "a path of plain characters"),
        ("{ url = \"https://*.x/\" }", "url `https://*.x/`"),
        ("{ url = \"https://x/\", hosts = [\"*\"] }", "every host"),
        (
            "{ url = \"http://x/\", credential = { from = \"env:T\" } }",
            "https:// with a host name",
        ),
        ("\"somewhere\"", "\"machine\" or { url"),
        (
            "{ url = \"https://x/\", hots = [] }",
            "unknown field `hots`",
        ),
        (
            "\"machine\"\n[indexes.\"a b\"]\npython = \"machine\"",
            "not the name of an index",
        ),
        ("\"machine\"\nruby = \"machine\"", "unknown field `ruby`"),
    ] {
        put(&format!("[indexes.inner]\npython = {python}\n"));
        let flags = Flags {
            config: Some(path.clone()),
            root: Some(playground.base.clone()),
            ..Flags::default()
        };
        let why = Settings::from(&flags, &|_| None)
            .expect_err(python)
            .to_string();
        assert!(
            why.contains(words) && !why.contains("u:p@"),
            "{python}: {why}"
        );
    }
    put("[indexes.inner]\npython = { url = \"https://u:p@x/\" }\n");
    let ended = playground.cli(&["list"]);
    assert!(
        ended.code == Some(4) && !ended.stderr.contains("u:p@"),
        "{ended:?}"
    );
    // As pip of this machine is set up.
    put("[indexes.inner]\npython = \"machine\"\n");
    fs::create_dir_all(playground.path("home/.config/pip")).unwrap();
    let pip = "[global]\nindex-url = https://mirror.example/simple\n";
    fs::write(playground.path("home/.config/pip/pip.conf"), pip).unwrap();
    playground.settle();
    audited(&playground, "tool", &["https://mirror.example/simple/"]);
}
