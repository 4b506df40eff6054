//! Where granted things are shown: at one place only, each with its own access, and no more than
//! was granted.

use super::unlayered;
use crate::prelude::*;

const LOOKER: &str = include_str!("looker.py");

fn pipe(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

/// `audit --probe` finds each grant of the tool as it should be.
fn assert_passes(playground: &Playground, tool: &str) {
    let audit = playground.cli(&["audit", &format!("esc:{tool}"), "--probe"]);
    assert!(
        audit.code == Some(0) && audit.text().contains("PASS: "),
        "{:?} {tool}: {audit:?}",
        playground.who
    );
}

#[test]
fn what_is_granted_has_one_place_and_keeps_its_own_access() {
    let write = json!([
        "out/*.csv",
        "out/live/**",
        "out/sub/inner/**",
        "out/sub/deep/*.txt"
    ]);
    for (who, below) in Who::all().flat_map(|who| [(who, "/var/tmp"), (who, "/tmp")]) {
        let playground = Playground::new(who, below);
        let grant = format!("{}/granted/pipes/**", playground.base.display());
        playground.allow("escapes", "esc:*", &["./**", &grant], &["./out/**"]);
        let few = json!(["self", "out/keep.txt", "out/sub/**"]);
        for (tool, read) in [("few", few), ("all", json!(["./**"]))] {
            let asks = json!({"securityContext": {"fileAccess": {"allowRead": read, "allowWrite": write}}});
            let folder = playground.tool(tool, "python", LOOKER, asks);
            for name in ["out/live", "out/sub/inner", "out/sub/deep"] {
                fs::create_dir_all(folder.join(name)).unwrap();
            }
            for name in [
                "out/a.csv",
                "out/keep.txt",
                "out/other.txt",
                "out/sub/file",
                "out/sub/deep/d.txt",
            ] {
                fs::write(folder.join(name), "x").unwrap();
            }
            playground.settle();
            pipe(&folder.join("out/sub/pipe"));
            let at = |name: &str| folder.join("out").join(name).display().to_string();
            let names = [
                "a.csv",
                "keep.txt",
                "other.txt",
                "sub/file",
                "sub/pipe",
                "sub/deep/d.txt",
            ];
            let made = ["live/made", "sub/inner/made", "sub/made"].map(at);
            let input = json!({"look": names.map(at), "make": made});
            let out = playground
                .expect(&format!("esc:{tool}"), &input.to_string(), "ok")
                .out["outputData"]
                .take();
            let other = if tool == "all" { "r" } else { "" };
            for (name, wanted) in names.iter().zip(["rwp", "r", other, "r", "r", "rwp"]) {
                assert_eq!(out[at(name)], wanted, "{who:?} {below} {tool} {name}");
            }
            for (name, wanted) in [
                ("live/made", true),
                ("sub/inner/made", true),
                ("sub/made", false),
            ] {
                assert_eq!(
                    out[format!("make {}", at(name))],
                    wanted,
                    "{who:?} {below} {tool}"
                );
                assert_eq!(
                    folder.join("out").join(name).exists(),
                    wanted,
                    "{who:?} {below} {tool} {name}"
                );
            }
            assert_passes(&playground, tool);
            let outside = unlayered(
                &playground,
                tool,
                &json!({"look": names.map(at)}).to_string(),
            )
            .out;
            let wanted = names.map(|name| if name == "sub/pipe" { "rp" } else { "rwp" });
            assert_eq!(
                json!(names.map(|name| outside[at(name)].clone())),
                json!(wanted)
            );
        }

        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", grant]}}});
        playground.tool("looker", "python", LOOKER, asks);
        fs::create_dir_all(playground.path("granted/pipes")).unwrap();
        playground.settle();
        let path = playground.path("granted/pipes/pipe").display().to_string();
        pipe(path.as_ref());
        let input = json!({"look": [path]}).to_string();
        let wanted = json!({(path.clone()): "r", "pipes": [], "kept": [[]]});
        playground.expect("esc:looker", &input, &format!("ok {wanted}"));
        assert_eq!(
            unlayered(&playground, "looker", &input).out[path],
            "rp",
            "{who:?}"
        );
    }
}

/// Only root could give more than its user has.
#[test]
fn a_pattern_opens_what_the_folders_owner_has() {
    if !is_root() {
        return skipped(1, "files of several owners need root");
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
    let names = ["own.csv", "theirs.csv", "open.csv"];
    names
        .iter()
        .for_each(|name| fs::write(folder.join(name), "x").unwrap());
    playground.settle();
    let owners = [
        ("", 70_001, 0o755),
        (names[0], 70_001, 0o600),
        (names[1], 70_002, 0o600),
        (names[2], 70_002, 0o644),
    ];
    for (name, owner, mode) in owners {
        let path = if name.is_empty() {
            folder.clone()
        } else {
            folder.join(name)
        };
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let at = |name: &str| folder.join(name).display().to_string();
    let input = json!({"look": names.map(at)}).to_string();
    for (tool, wanted) in [("pattern", ["r", "", "r"]), ("named", ["", "r", ""])] {
        let out = playground.expect(&format!("esc:{tool}"), &input, "ok").out["outputData"].take();
        assert_eq!(
            json!(names.map(|name| out[at(name)].clone())),
            json!(wanted),
            "{tool}"
        );
        assert_passes(&playground, tool);
    }
    let outside = unlayered(&playground, "pattern", &input).out;
    assert!(
        names.iter().all(|name| outside[at(name)] == "rwp"),
        "root reads all: {outside}"
    );
}
