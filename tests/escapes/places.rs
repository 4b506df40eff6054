//! Where granted things are shown: at one place only, each with its own access, and no more than was granted.

use super::playground::{PYTHON, Playground, Who, finish, is_root};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// (name, wall, promises) of the tests below.
pub const NAMES: &[(&str, &str, &str)] = &[("a pattern opens what the folder's owner has", "identity", "P1 P2")];

/// What can be done with each path of the input, and every pipe below /.toolhost. (`w` tells nothing of a pipe: without a
/// reader it is not opened for writing alone.)
const LOOKER: &str = "import json, os, stat, sys\n\
    def tried(flags, path):\n    try:\n        os.close(os.open(path, flags | os.O_NONBLOCK))\n        return True\n    \
    except OSError:\n        return False\n\
    given = json.load(sys.stdin)\n\
    out = {p: 'r' * tried(os.O_RDONLY, p) + 'w' * tried(os.O_WRONLY, p) + 'p' * tried(os.O_RDWR, p) for p in given['look']}\n\
    for path in given.get('make', []):\n    out['make ' + path] = tried(os.O_WRONLY | os.O_CREAT | os.O_EXCL, path)\n\
    inside = [os.path.join(d, f) for d, _, fs in os.walk('/.toolhost') for f in fs]\n\
    out['pipes'] = [p for p in inside if stat.S_ISFIFO(os.stat(p).st_mode)]\n\
    out['kept'] = [os.listdir(d) for d, _, _ in os.walk('/.toolhost/kept')]\n\
    print(json.dumps(out))\n";

/// As outside, without walls: what the same script finds there.
fn control(playground: &Playground, tool: &str, input: &Value) -> Value {
    let mut command = playground.outside(PYTHON);
    command.args(["-s", "-E", "-B"]).arg(playground.path(&format!("user_scripts/{tool}/main.py")));
    serde_json::from_slice(&finish(command, input.to_string().as_bytes()).stdout).unwrap()
}

/// Only root could give more than its user has.
#[test]
fn a_pattern_opens_what_the_folders_owner_has() {
    if !is_root() {
        return super::skipped(1, "files of several owners need root");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    let folder = playground.path("granted/many");
    fs::create_dir_all(&folder).unwrap();
    let base = folder.display();
    for (tool, pattern) in [("pattern", "*.csv"), ("named", "theirs.csv")] {
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", format!("{base}/{pattern}")]}}});
        playground.tool(tool, "python", LOOKER, asks);
    }
    let grants =
        format!("[files]\nread = [{{ path = \"./**\", why = \"t\" }}, {{ path = \"{base}/**\", why = \"t\" }}]\n");
    playground.policy("escapes", "esc:*", &grants);
    for name in ["own.csv", "theirs.csv", "open.csv"] {
        fs::write(folder.join(name), "x").unwrap();
    }
    playground.settle();
    for (name, owner, mode) in
        [("", 70_001, 0o755), ("own.csv", 70_001, 0o600), ("theirs.csv", 70_002, 0o600), ("open.csv", 70_002, 0o644)]
    {
        let path = if name.is_empty() { folder.clone() } else { folder.join(name) };
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let names = ["own.csv", "theirs.csv", "open.csv"];
    let at = |name: &str| folder.join(name).display().to_string();
    let input = json!({"look": names.map(at)});
    for (tool, wanted) in [("pattern", ["r", "", "r"]), ("named", ["", "r", ""])] {
        let ended = playground.call(&format!("esc:{tool}"), &input.to_string(), &[]);
        let got = names.map(|name| ended.out["outputData"][at(name)].clone());
        assert_eq!(json!(got), json!(wanted), "{tool}: {:?} {}", ended.error(), ended.stderr);
        let mut audit = playground.host();
        audit.args(["audit", &format!("esc:{tool}"), "--probe"]);
        let audit = finish(audit, b"");
        assert_eq!(audit.code, Some(0), "{tool}: {}", String::from_utf8_lossy(&audit.stdout));
    }
    let outside = control(&playground, "pattern", &input);
    assert!(names.iter().all(|name| outside[at(name)] == "rwp"), "root reads all: {outside}");
}
