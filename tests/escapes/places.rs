//! Where granted things are shown: at one place only, each with its own access, and no more than was granted.

use super::Attack;
use crate::prelude::*;

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "what lies beside staged files keeps its own access", wall: "scratch", promises: "P3 P4" },
    Attack { name: "a grant has no second place", wall: "view", promises: "P2 P4" },
    Attack { name: "a pattern opens what the folder's owner has", wall: "identity", promises: "P1 P2" },
];

/// What can be done with each path of the input, and every pipe below /.toolhost. (`w` tells nothing of a pipe: without
/// a reader it is not opened for writing alone.)
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

fn pipe(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

/// As outside, without walls: what the same script finds there.
fn control(playground: &Playground, tool: &str, input: &Value) -> Value {
    let mut command = playground.outside(PYTHON);
    command.args(["-s", "-E", "-B"]).arg(playground.path(&format!("user_scripts/{tool}/main.py")));
    serde_json::from_slice(&finish(command, input.to_string().as_bytes()).stdout).unwrap()
}

#[test]
fn what_lies_beside_staged_files_keeps_its_own_access() {
    let write = json!(["out/*.csv", "out/live/**", "out/sub/inner/**", "out/sub/deep/*.txt"]);
    for (who, below) in Who::all().flat_map(|who| [(who, "/var/tmp"), (who, "/tmp")]) {
        let playground = Playground::new(who, below);
        playground.allow("escapes", "esc:*", &["./**"], &["./out/**"]);
        let few = json!(["self", "out/keep.txt", "out/sub/**"]);
        for (tool, read) in [("few", few), ("all", json!(["./**"]))] {
            let asks = json!({"securityContext": {"fileAccess": {"allowRead": read, "allowWrite": write}}});
            let folder = playground.tool(tool, "python", LOOKER, asks);
            for name in ["out/live", "out/sub/inner", "out/sub/deep"] {
                fs::create_dir_all(folder.join(name)).unwrap();
            }
            for name in ["out/a.csv", "out/keep.txt", "out/other.txt", "out/sub/file", "out/sub/deep/d.txt"] {
                fs::write(folder.join(name), "x").unwrap();
            }
            playground.settle();
            pipe(&folder.join("out/sub/pipe"));
            let at = |name: &str| folder.join("out").join(name).display().to_string();
            let names = ["a.csv", "keep.txt", "other.txt", "sub/file", "sub/pipe", "sub/deep/d.txt"];
            let made = ["live/made", "sub/inner/made", "sub/made"].map(at);
            let input = json!({"look": names.map(at), "make": made});
            let ended = playground.call(&format!("esc:{tool}"), &input.to_string());
            let other = if tool == "all" { "r" } else { "" };
            let wanted = ["rwp", "r", other, "r", "r", "rwp"];
            for (name, wanted) in names.iter().zip(wanted) {
                let got = &ended.out["outputData"][at(name)];
                assert_eq!(got, wanted, "{who:?} {below} {tool} {name}: {:?} {}", ended.error(), ended.stderr);
            }
            for (name, wanted) in [("live/made", true), ("sub/inner/made", true), ("sub/made", false)] {
                assert_eq!(ended.out["outputData"][format!("make {}", at(name))], wanted, "{who:?} {below} {tool}");
                assert_eq!(folder.join("out").join(name).exists(), wanted, "{who:?} {below} {tool} {name}");
            }
            let mut audit = playground.host();
            audit.args(["audit", &format!("esc:{tool}"), "--probe"]);
            let audit = finish(audit, b"");
            let said = String::from_utf8_lossy(&audit.stdout).into_owned();
            assert!(audit.code == Some(0) && said.contains("PASS: "), "{who:?} {below} {tool}: {said}");
            let outside = control(&playground, tool, &json!({"look": names.map(at)}));
            let wanted = names.map(|name| if name == "sub/pipe" { "rp" } else { "rwp" });
            assert_eq!(json!(names.map(|name| outside[at(name)].clone())), json!(wanted));
        }
    }
}

#[test]
fn a_grant_has_no_second_place() {
    for who in Who::all() {
        let playground = Playground::new(who, "/tmp");
        let base = playground.base.display().to_string();
        let grant = format!("{base}/granted/pipes/**");
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", grant]}}});
        playground.tool("looker", "python", LOOKER, asks);
        fs::create_dir_all(playground.path("granted/pipes")).unwrap();
        let grants =
            format!("[files]\nread = [{{ path = \"./**\", why = \"t\" }}, {{ path = \"{grant}\", why = \"t\" }}]\n");
        playground.policy("escapes", "esc:*", &grants);
        playground.settle();
        let path = playground.path("granted/pipes/pipe");
        pipe(&path);
        let input = json!({"look": [path]});
        let ended = playground.call("esc:looker", &input.to_string());
        let wanted = json!({(path.display().to_string()): "r", "pipes": [], "kept": [[]]});
        assert_eq!(ended.out["outputData"], wanted, "{who:?}: {:?} {}", ended.error(), ended.stderr);
        assert_eq!(control(&playground, "looker", &input)[path.display().to_string()], "rp", "{who:?}");
    }
}

/// Only root could give more than its user has.
#[test]
fn a_pattern_opens_what_the_folders_owner_has() {
    if !is_root() {
        return crate::harness::skipped(1, "files of several owners need root");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    let folder = playground.path("granted/many");
    fs::create_dir_all(&folder).unwrap();
    let base = folder.display();
    for (tool, pattern) in [("pattern", "*.csv"), ("named", "theirs.csv")] {
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", format!("{base}/{pattern}")]}}});
        playground.tool(tool, "python", LOOKER, asks);
    }
    playground.allow("escapes", "esc:*", &["./**", &format!("{base}/**")], &[]);
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
        let ended = playground.call(&format!("esc:{tool}"), &input.to_string());
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
