//! `audit --probe` fails only where something differs from what `audit` says: not for what every call has of its own,
//! nor for a file whose own mode closes it.

use crate::harness::{Playground, Who};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// (name, allowRead, home of the host, what is made in the tool's folder with its mode)
type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a [(&'a str, u32)]);

const CASES: [Case; 15] = [
    // The working folder stands there, empty, where nothing of it is granted.
    ("nothing", &[], "", &[]),
    ("elsewhere", &["/usr/share/**"], "", &[]),
    // The folder of a near name stands there, empty, above a grant.
    ("near", &["self", "$ROOT/user_scripts/near-other/deep/**"], "", &[]),
    ("home-proc", &["self"], "/proc", &[]),
    ("home-root", &["self"], "/", &[]),
    ("home-dev", &["self"], "/dev", &[]),
    ("home-etc", &["self"], "/etc", &[]),
    ("home-usr", &["self"], "/usr", &[]),
    ("home-var", &["self"], "/var", &[]),
    ("home-run", &["self"], "/run", &[]),
    ("home-in-grant", &["./**"], "$ROOT/user_scripts/home-in-grant/h", &[("h/.bashrc", 0o644)]),
    ("shadow", &["/etc/shadow"], "", &[]),
    ("closed-file", &["data/a.csv"], "", &[("data/a.csv", 0o000)]),
    ("closed-pattern", &["data/*.csv"], "", &[("data/a.csv", 0o200), ("data/b.csv", 0o644)]),
    ("closed-folder", &["data/**"], "", &[("data/", 0o300)]),
];

fn probed(playground: &Playground, tool: &str, home: &str) -> Value {
    let mut command = playground.host();
    if !home.is_empty() {
        command.env("HOME", home);
    }
    let output = command.args(["audit", &format!("esc:{tool}"), "--probe", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{tool}: {e}: {output:?}"))
}

#[test]
fn nothing_is_cried_that_is_as_said() {
    for who in Who::both() {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let root = playground.base.display().to_string();
            let at = |text: &str| text.replace("$ROOT", &root);
            fs::create_dir_all(playground.path("user_scripts/near-other/deep")).unwrap();
            for (name, read, _, made) in CASES {
                let read: Vec<String> = read.iter().map(|path| at(path)).collect();
                let asks = json!({ "securityContext": { "fileAccess": { "allowRead": read } } });
                let folder = playground.tool(name, "python", "print(1)\n", asks);
                made.iter().for_each(|(file, _)| make(&folder.join(file), file.ends_with('/')));
            }
            let all = "{ path = \"./**\", why = \"w\" }, { path = \"/usr/share/**\", why = \"w\" }, \
                       { path = \"/etc/shadow\", why = \"w\" }";
            let deep = format!("{{ path = \"{root}/user_scripts/near-other/deep/**\", why = \"w\" }}");
            playground.policy("esc", "esc:*", &format!("[files]\nread = [{all}, {deep}]\n"));
            playground.settle();
            for (name, _, home, made) in CASES {
                for (file, mode) in made {
                    let path = playground.path(&format!("user_scripts/{name}/{file}"));
                    fs::set_permissions(path, fs::Permissions::from_mode(*mode)).unwrap();
                }
                let found = probed(&playground, name, &at(home));
                let tried = found["tried"].as_array().unwrap();
                let wrong: Vec<&Value> = tried.iter().filter(|t| t["asSaid"] == false).collect();
                // A path that is closed by its owner and mode is reported with that reason: no wall failed.
                let cried = wrong.iter().any(|t| !t["closed"].as_str().is_some_and(|why| why.starts_with("mode 0")));
                assert!(!cried, "{name} as {who:?} below {below}: {wrong:?}");
                let closed = name.starts_with("closed-") || (name == "shadow" && who == Who::User);
                assert_eq!(!wrong.is_empty(), closed, "{name} as {who:?} below {below}: {wrong:?}");
                if closed {
                    let mut command = playground.host();
                    let output = command.args(["audit", &format!("esc:{name}"), "--probe"]).output().unwrap();
                    let text = String::from_utf8(output.stdout).unwrap();
                    assert!(text.contains("blocked although granted") && !text.contains("do not run"), "{text}");
                }
            }
        }
    }
}

fn make(path: &Path, folder: bool) {
    fs::create_dir_all(if folder { path } else { path.parent().unwrap() }).unwrap();
    if !folder {
        fs::write(path, "x").unwrap();
    }
}
