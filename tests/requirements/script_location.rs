//! Where a script stands, what it sees from there, and which interpreter runs it.

use super::put;
use crate::prelude::*;

/// The program of a language, run outside with these arguments.
fn outside(playground: &Playground, language: &str, arguments: &[&str], input: &str) -> Value {
    let program = if language == "bun" { "bun" } else { "node" };
    let program = if language == "python" {
        PYTHON.into()
    } else {
        found(program).unwrap()
    };
    let mut command = playground.outside(program.to_str().unwrap());
    command.args(arguments);
    finish(command, input.as_bytes()).out
}

const MODULES: &str = r#"
const found = {}
for (const name of JSON.parse(require('fs').readFileSync(0, 'utf8')).names) {
  try { found[name] = require(name) } catch (e) { found[name] = e.code }
}
console.log(JSON.stringify({cwd: process.cwd(), found}))
"#;

/// Node and Bun stand in the script's folder; its modules resolve, those of other folders do not.
#[test]
fn modules_are_those_of_the_tool() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let languages: Vec<&str> = ["nodejs", "bun"]
        .into_iter()
        .filter(|language| has(language, 2))
        .collect();
    let module = |path: &str, word: &str| {
        put(
            &playground,
            format!("user_scripts/{path}.js"),
            format!("module.exports = '{word}'\n"),
        );
    };
    for language in &languages {
        playground.tool_at(
            &format!("req:{language}"),
            language,
            &format!("{language}/main.js"),
            MODULES,
            json!({}),
        );
        module(&format!("{language}/node_modules/own/index"), "own");
        module(&format!("{language}/beside"), "beside");
    }
    module("neighbour/node_modules/theirs/index", "theirs");
    module("neighbour/lib", "lib");
    module("node_modules/shared/index", "shared");
    playground.settle();
    let names = [
        "own",
        "./beside.js",
        "theirs",
        "../neighbour/node_modules/theirs",
        "../neighbour/lib.js",
        "shared",
    ];
    let input = json!({"names": names}).to_string();
    for language in languages {
        let folder = playground.path("user_scripts").join(language);
        let ended = playground.expect(&format!("req:{language}"), &input, "ok");
        let output = &ended.out["outputData"];
        assert_eq!(output["cwd"], json!(folder), "{language}");
        let missing = "MODULE_NOT_FOUND";
        for (name, wanted) in names
            .iter()
            .zip(["own", "beside", missing, missing, missing, missing])
        {
            let got = output["found"][*name].as_str().unwrap_or_default();
            let good = got == wanted
                || language == "bun" && wanted == missing && got.contains("NOT_FOUND");
            assert!(good, "{language}: {name} is {got}");
        }
        // The control: without layers the neighbour's are found, and what lies in a folder above.
        let script = folder.join("main.js");
        let outside = outside(&playground, language, &[script.to_str().unwrap()], &input);
        for (name, wanted) in names.iter().skip(3).zip(["theirs", "lib", "shared"]) {
            assert_eq!(
                outside["found"][*name], wanted,
                "{language}, outside: {name}"
            );
        }
    }
}

/// Base folders are configuration; the same manifest finds its script in another one.
#[test]
fn another_base_by_flag_and_by_variable() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (base, word) in [
        ("user_scripts", "usual"),
        ("elsewhere/scripts", "elsewhere"),
        ("third", "third"),
    ] {
        put(
            &playground,
            format!("{base}/where/main.py"),
            format!("print('\"{word}\"')\n"),
        );
    }
    for (folder, id) in [("tool-defs", "req:where"), ("elsewhere/defs", "req:there")] {
        let text = manifest(id, script("where/main.py", "python"), json!({})).to_string();
        put(&playground, format!("{folder}/where.tool.json"), text);
    }
    playground.settle();
    let path = |name: &str| playground.path(name).display().to_string();
    let (scripts, third, defs) = (
        path("elsewhere/scripts"),
        path("third"),
        path("elsewhere/defs"),
    );
    for (tool, flags, wanted) in [
        ("req:where", vec![], r#"ok "usual""#),
        (
            "req:where",
            vec!["--scripts", &third, "--scripts", &scripts],
            r#"ok "third""#,
        ),
        (
            "req:there",
            vec!["--tools", &defs, "--scripts", &scripts],
            r#"ok "elsewhere""#,
        ),
        ("req:where", vec!["--tools", &defs], "ToolNotFoundError"),
    ] {
        let ended = playground.call_with(tool, "{}", &flags);
        fits(wanted, &ended).unwrap_or_else(|why| panic!("{tool} {flags:?}: {why}"));
    }
    let mut command = playground.host();
    command
        .env("TOOLHOST_SCRIPTS", &third)
        .args(["call", "req:where", "--input", "{}"]);
    assert_eq!(finish(command, b"").stdout, b"\"third\"\n");
}

/// What SECURITY.md says that every tool sees besides what `audit` lists. Only our own folder and
/// that of the call have anything in them.
const DOCUMENTED: &str = "/proc /tmp /run /var/tmp /.toolhost /etc/passwd /etc/group \
    /etc/nsswitch.conf /etc/hosts /etc/resolv.conf /dev/null /dev/zero /dev/full /dev/random \
    /dev/urandom /dev/fd /dev/stdin /dev/stdout /dev/stderr /dev/shm \
    /tmp/call/input /tmp/call/output";

/// Every entry of `/`, and of everything below it, is one that `audit` or the documents explain.
#[test]
fn everything_that_is_seen_is_explained() {
    let look = [
        "import json, os; print(json.dumps(os.listdir('/') + os.listdir('/etc')))",
        "const fs = require('fs'); \
        console.log(JSON.stringify(fs.readdirSync('/').concat(fs.readdirSync('/etc'))))",
    ];
    as_everyone("the view", |who| {
        for (language, file, script, control) in [
            (
                "python",
                "main.py",
                include_str!("script_location.py"),
                ["-c", look[0]],
            ),
            (
                "nodejs",
                "main.js",
                include_str!("script_location.js"),
                ["-e", look[1]],
            ),
        ] {
            if has(language, 1) {
                view(who, language, file, script, control);
            }
        }
    });
}

fn view(who: Who, language: &str, file: &str, script: &str, control: [&str; 2]) {
    let playground = Playground::new(who, "/var/tmp");
    let look = |system: &[&PathBuf]| {
        let more = json!({"execution": {"env": {"SYSTEM": json!(system).to_string()}}});
        playground.tool_at("req:look", language, &format!("look/{file}"), script, more);
        playground.settle();
    };
    look(&[]);
    let audit = playground.cli(&["audit", "req:look", "--json"]).out;
    let paths = |value: &Value| serde_json::from_value::<Vec<PathBuf>>(value.clone()).unwrap();
    let shown = [paths(&audit["system"]), paths(&audit["runtime"]["roots"])].concat();
    let folder = PathBuf::from(audit["folder"].as_str().unwrap());
    // Not walked inside, because they are shown whole.
    look(&shown.iter().collect::<Vec<_>>());
    let output = playground.expect("req:look", "{}", "ok").out["outputData"].clone();
    let explained = |path: &Path| {
        // Itself, what a shown folder holds, or a folder on the way to one.
        shown
            .iter()
            .chain([&folder])
            .any(|shown| path.starts_with(shown) || shown.starts_with(path))
            || DOCUMENTED
                .split(' ')
                .any(|known| Path::new(known).starts_with(path))
            || path.starts_with("/.toolhost")
    };
    let (root, seen) = (paths(&output["root"]), paths(&output["seen"]));
    let root = root.iter().map(|name| Path::new("/").join(name));
    let strange: Vec<_> = root
        .chain(seen.clone())
        .filter(|path| !explained(path))
        .collect();
    assert!(strange.is_empty(), "as {who:?}, {language}: {strange:?}");
    // It did look: its own file is among what it saw, and a folder that leads to it is empty but
    // for that way.
    assert!(seen.contains(&folder.join(file)), "{seen:?}");
    let beside: Vec<_> = seen
        .iter()
        .filter(|path| path.parent() == Some(&playground.path("user_scripts")))
        .collect();
    assert_eq!(beside, [&folder], "as {who:?}");
    for hidden in [
        "/etc/shadow",
        "/etc/hostname",
        "/root",
        "/dev/sda",
        "/dev/kmsg",
        "/dev/tty",
    ] {
        assert!(!seen.contains(&PathBuf::from(hidden)), "{hidden}");
    }
    // The control: without layers there is much that is not explained.
    let outside = paths(&outside(&playground, language, &control, ""));
    assert!(
        outside
            .iter()
            .any(|name| !explained(&Path::new("/").join(name))),
        "{outside:?}"
    );
}

const PYTHON_TELLS: &str = "import json, sys\ntry:\n    import only_here\n    package = \
    only_here.WORD\nexcept ImportError:\n    package = \
    None\nprint(json.dumps({'runs': sys.executable, 'prefix': sys.prefix, 'package': package}))\n";

/// A virtual environment with one package of its own.
#[test]
fn python_is_the_one_that_policy_names() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for name in ["usual", "named"] {
        playground.tool(name, "python", PYTHON_TELLS, json!({}));
    }
    let venv = playground.path("venv");
    let policy = |python: &Path| {
        let rest = format!(
            "[runtimes]\npython = {{ path = \"{}\", why = \"a test\" }}\n",
            python.display()
        );
        playground.policy("named", "esc:named", &rest);
    };
    let mut make = playground.outside(PYTHON);
    make.args(["-I", "-m", "venv", "--without-pip"]).arg(&venv);
    playground.settle();
    let made = finish(make, b"");
    if made.code != Some(0) {
        assert!(
            std::env::var_os("TOOLHOST_CI").is_none(),
            "CI must have the venv module: {}",
            made.stderr
        );
        return skipped(2, "this Python cannot make virtual environments");
    }
    let lib = fs::read_dir(venv.join("lib"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(
        lib.join("site-packages/only_here.py"),
        "WORD = 'from the environment'\n",
    )
    .unwrap();
    policy(&venv.join("bin/python"));
    playground.settle();
    let wanted =
        json!({"runs": venv.join("bin/python"), "prefix": venv, "package": "from the environment"});
    playground.expect("esc:named", "{}", &format!("ok {wanted}"));
    // The control: the tool that no policy gives an interpreter has the machine's.
    let usual = playground.expect("esc:usual", "{}", "ok").out["outputData"].clone();
    assert_eq!(usual["package"], json!(null));
    assert!(
        !usual["runs"]
            .as_str()
            .unwrap()
            .starts_with(venv.to_str().unwrap())
    );
    // A name that leads nowhere runs nothing, and no other interpreter steps in.
    policy(&venv.join("bin/nowhere"));
    let gone = playground.call("esc:named", "{}").out;
    assert!(
        gone["success"] != true && gone["layers"] == json!([]),
        "nothing was started: {gone}"
    );
}
