//! Where a script stands and what it sees from there.

use crate::prelude::*;
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
    let languages: Vec<&str> = ["nodejs", "bun"].into_iter().filter(|language| has(language, 2)).collect();
    for language in &languages {
        let file = format!("{language}/main.js");
        let folder = playground.tool_at(&format!("req:{language}"), language, &file, MODULES, json!({}));
        fs::create_dir_all(folder.join("node_modules/own")).unwrap();
        fs::write(folder.join("node_modules/own/index.js"), "module.exports = 'own'\n").unwrap();
        fs::write(folder.join("beside.js"), "module.exports = 'beside'\n").unwrap();
    }
    for (path, word) in [("neighbour/node_modules/theirs", "theirs"), ("node_modules/shared", "shared")] {
        let folder = playground.path("user_scripts").join(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("index.js"), format!("module.exports = '{word}'\n")).unwrap();
    }
    fs::write(playground.path("user_scripts/neighbour/lib.js"), "module.exports = 'lib'\n").unwrap();
    playground.settle();
    let names = ["own", "./beside.js", "theirs", "../neighbour/node_modules/theirs", "../neighbour/lib.js", "shared"];
    let input = json!({"names": names}).to_string();
    for language in languages {
        let folder = playground.path("user_scripts").join(language);
        let ended = playground.expect(&format!("req:{language}"), &input, "ok");
        let output = &ended.out["outputData"];
        assert_eq!(output["cwd"], json!(folder), "{language}");
        let missing = if language == "nodejs" { "MODULE_NOT_FOUND" } else { "" };
        for (name, wanted) in names.iter().zip(["own", "beside", missing, missing, missing, missing]) {
            let got = output["found"][*name].as_str().unwrap_or_default();
            let good = if wanted.is_empty() { got.contains("NOT_FOUND") } else { got == wanted };
            assert!(good, "{language}: {name} is {got}");
        }
        // The control: without walls the neighbour's are found, and what lies in a folder above.
        let program = if language == "nodejs" { "node" } else { "bun" };
        let mut command = playground.outside(crate::harness::found(program).unwrap().to_str().unwrap());
        command.arg("main.js").current_dir(&folder);
        let outside: Value = serde_json::from_slice(&finish(command, input.as_bytes()).stdout).unwrap();
        for (name, wanted) in names.iter().skip(3).zip(["theirs", "lib", "shared"]) {
            assert_eq!(outside["found"][*name], wanted, "{language}, outside: {name}");
        }
    }
}

/// Base folders are configuration; the same manifest finds its script in another one.
#[test]
fn another_base_by_flag_and_by_variable() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool_at("req:where", "python", "where/main.py", "print('\"usual\"')\n", json!({}));
    fs::rename(playground.path("user_scripts/where/req-where.tool.json"), playground.path("tool-defs/where.tool.json"))
        .unwrap();
    for (base, word) in [("elsewhere/scripts", "elsewhere"), ("third", "third")] {
        fs::create_dir_all(playground.path(base).join("where")).unwrap();
        fs::write(playground.path(base).join("where/main.py"), format!("print('\"{word}\"')\n")).unwrap();
    }
    let defs = playground.path("elsewhere/defs");
    fs::create_dir_all(&defs).unwrap();
    let text = fs::read_to_string(playground.path("tool-defs/where.tool.json")).unwrap();
    fs::write(defs.join("there.tool.json"), text.replace("req:where", "req:there")).unwrap();
    playground.settle();
    let path = |name: &str| playground.path(name).display().to_string();
    let (scripts, third, defs) = (path("elsewhere/scripts"), path("third"), path("elsewhere/defs"));
    for (tool, flags, wanted) in [
        ("req:where", vec![], r#"ok "usual""#),
        ("req:where", vec!["--scripts", &third, "--scripts", &scripts], r#"ok "third""#),
        ("req:there", vec!["--tools", &defs, "--scripts", &scripts], r#"ok "elsewhere""#),
        ("req:where", vec!["--tools", &defs], "ToolNotFoundError"),
    ] {
        let ended = playground.call_with(tool, "{}", &flags);
        fits(wanted, &ended).unwrap_or_else(|why| panic!("{tool} {flags:?}: {why}"));
    }
    let mut command = playground.host();
    command.env("TOOLHOST_SCRIPTS", &third).args(["call", "req:where", "--input", "{}"]);
    assert_eq!(finish(command, b"").stdout, b"\"third\"\n");
}

const LOOK_PYTHON: &str = r#"
import json, os
skipped = ['/proc']
seen = []
for folder, folders, files in os.walk('/', followlinks=False):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
    if any(folder == s or folder.startswith(s + '/') for s in json.loads(os.environ['SYSTEM'])):
        folders[:] = []
        continue
    seen += [os.path.join(folder, name) for name in folders + files]
print(json.dumps({'root': sorted(os.listdir('/')), 'seen': seen}))
"#;
const LOOK_NODE: &str = r#"
const fs = require('fs')
const system = JSON.parse(process.env.SYSTEM)
const seen = []
const walk = folder => {
  for (const entry of fs.readdirSync(folder, {withFileTypes: true})) {
    const path = folder === '/' ? '/' + entry.name : folder + '/' + entry.name
    seen.push(path)
    const skip = path === '/proc' || system.some(s => path === s || path.startsWith(s + '/'))
    if (entry.isDirectory() && !skip) walk(path)
  }
}
walk('/')
console.log(JSON.stringify({root: fs.readdirSync('/').sort(), seen}))
"#;

/// What SECURITY.md says that every tool sees besides what `audit` lists. Only our own folder has anything in it.
const DOCUMENTED: [&str; 20] = [
    "/proc",
    "/tmp",
    "/run",
    "/var/tmp",
    "/.toolhost",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/fd",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
    "/dev/shm",
];

/// Every entry of `/`, and of everything below it, is one that `audit` or the documents explain.
#[test]
fn everything_that_is_seen_is_explained() {
    as_everyone("the view", |who| {
        for (language, file, script) in [("python", "main.py", LOOK_PYTHON), ("nodejs", "main.js", LOOK_NODE)] {
            if has(language, 1) {
                view(who, language, file, script);
            }
        }
    });
}

fn view(who: Who, language: &str, file: &str, script: &str) {
    let playground = Playground::new(who, "/var/tmp");
    let env = |system: &[String]| json!({"execution": {"env": {"SYSTEM": json!(system).to_string()}}});
    let look = |system: &[String]| {
        playground.tool_at("req:look", language, &format!("look/{file}"), script, env(system));
        playground.settle();
    };
    look(&[]);
    let audit = playground.cli(&["audit", "req:look", "--json"]).out;
    let paths = |value: &Value| -> Vec<PathBuf> {
        value.as_array().unwrap().iter().map(|path| PathBuf::from(path.as_str().unwrap())).collect()
    };
    let (system, roots) = (paths(&audit["system"]), paths(&audit["runtime"]["roots"]));
    let folder = PathBuf::from(audit["folder"].as_str().unwrap());
    // Not walked inside, because they are shown whole.
    let whole: Vec<String> = system.iter().chain(&roots).map(|path| path.display().to_string()).collect();
    look(&whole);
    let ended = playground.expect("req:look", "{}", "ok");
    let shown: Vec<&PathBuf> = system.iter().chain(&roots).chain([&folder]).collect();
    let explained = |path: &Path| {
        // Itself, what a shown folder holds, or a folder on the way to one.
        shown.iter().any(|shown| path.starts_with(shown) || shown.starts_with(path))
            || DOCUMENTED.iter().any(|known| Path::new(known).starts_with(path))
            || path.starts_with("/.toolhost")
    };
    let output = &ended.out["outputData"];
    let (root, seen) = (paths(&output["root"]), paths(&output["seen"]));
    let strange: Vec<_> =
        root.iter().map(|name| Path::new("/").join(name)).chain(seen.clone()).filter(|path| !explained(path)).collect();
    assert!(strange.is_empty(), "as {}, {language}: {strange:?}", who.name());
    // It did look: its own file is among what it saw, and a folder that leads to it is empty but for that way.
    assert!(seen.contains(&folder.join(file)), "{seen:?}");
    let beside: Vec<_> = seen.iter().filter(|path| path.parent() == Some(&playground.path("user_scripts"))).collect();
    assert_eq!(beside, [&folder], "as {}", who.name());
    for made_up in ["/etc/shadow", "/etc/hostname", "/root", "/dev/sda", "/dev/kmsg", "/dev/tty"] {
        assert!(!seen.contains(&PathBuf::from(made_up)), "{made_up}");
    }
    // The control: without walls there is much that is not explained.
    let program = if language == "python" { PYTHON.into() } else { crate::harness::found("node").unwrap() };
    let mut command = playground.outside(program.to_str().unwrap());
    let list = if language == "python" {
        ["-c", "import json, os; print(json.dumps(os.listdir('/') + os.listdir('/etc')))"]
    } else {
        [
            "-e",
            "const fs = require('fs'); console.log(JSON.stringify(fs.readdirSync('/').concat(fs.readdirSync('/etc'))))",
        ]
    };
    command.args(list);
    let outside: Vec<String> = serde_json::from_slice(&finish(command, b"").stdout).unwrap();
    assert!(outside.iter().any(|name| !explained(&Path::new("/").join(name))), "{outside:?}");
}
