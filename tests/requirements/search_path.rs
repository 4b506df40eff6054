//! P2, P3, P10: what a tool leaves where programs are looked for, or set up, is never run or obeyed
//! on the host, and is never another tool's interpreter.

use super::{files, set_mode};
use crate::prelude::*;

/// Leaves a launcher that tells it was run, and a native `node`.
const MAKER: &str = "import os, shutil, sys\nfrom pathlib import Path\npile = \
    Path(__file__).parents[2] / 'pile'\n(pile / \
    'bin').mkdir(exist_ok=True)\nshutil.copy('/bin/true', pile / 'bin/node')\n(pile / \
    'bin/python3').write_text(f'#!/bin/sh\\necho >> {pile.parent}/state/RUN\\nexec \
    /usr/bin/python3 \"$@\"\\n')\nfor name in ('node', 'python3'):\n    os.chmod(pile / 'bin' / \
    name, 0o755)\nprint(1)\n";

fn world() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let pile = playground.path("pile");
    fs::create_dir(&pile).unwrap();
    let pattern = format!("{}/**", pile.display());
    playground.tool_at(
        "esc:maker",
        "python",
        "maker/main.py",
        MAKER,
        files(&["self"], &[&pattern]),
    );
    playground.tool_at(
        "esc:node",
        "nodejs",
        "node/main.js",
        "console.log(process.execPath.length)\n",
        json!({}),
    );
    playground.allow("maker", "esc:maker", &["./**"], &[&pattern]);
    playground.settle();
    playground
}

/// A verb of the host, with this folder before the usual ones in its PATH.
fn run(playground: &Playground, first: &Path, arguments: &[&str]) -> Ended {
    let mut command = playground.host();
    command
        .env("PATH", format!("{}:{SEARCH_PATH}", first.display()))
        .args(arguments);
    finish(command, b"")
}

const MAKE: [&str; 5] = ["call", "esc:maker", "--json", "--input", "{}"];

/// Nothing of what was planted is run by these verbs, nor taken for an interpreter.
fn is_passed_over(playground: &Playground, first: &Path, when: &str) {
    for arguments in [
        &["list"][..],
        &["check"],
        &["doctor", "--json"],
        &["call", "esc:node", "--input", "{}"],
    ] {
        let ended = run(playground, first, arguments);
        assert!(
            !playground.path("state/RUN").exists(),
            "{when}: {arguments:?} ran what was planted: {ended:?}"
        );
        if arguments[0] == "doctor" {
            let (taken, over) = (
                ended.out["runtimes"].to_string(),
                ended.out["passedOver"].to_string(),
            );
            assert!(
                !taken.contains(playground.path("pile").to_str().unwrap()),
                "{when}: {taken}"
            );
            assert!(
                over.contains("could write in an earlier call"),
                "{when}: {over}"
            );
        }
    }
}

#[test]
fn a_folder_where_programs_are_looked_for_is_not_written() {
    let world = world();
    let base = &world.base;
    for folder in ["pile/there", "links"] {
        fs::create_dir_all(base.join(folder)).unwrap();
    }
    symlink(base.join("pile/there"), base.join("link")).unwrap();
    symlink(base.join("pile/later/python3"), base.join("links/python3")).unwrap();
    world.settle();
    for (place, why) in [
        ("links", "links/python3 leads there"),
        ("pile/there", "is in PATH"),
        ("pile/not/yet/.bin", "is in PATH"),
        ("link", "is in PATH"),
        ("pile", "is in PATH"),
    ] {
        let ended = run(&world, &base.join(place), &MAKE);
        fits(&format!("SecurityError: {why}"), &ended)
            .unwrap_or_else(|why| panic!("{place:?}: {why}"));
    }
    assert_eq!(
        fs::read_dir(base.join("pile")).unwrap().count(),
        1,
        "nothing was made"
    );
    // A policy of another tool names an interpreter by a way that leads through it.
    let path = base.join("pile/there/python3");
    let named = format!(
        "[runtimes]\npython = {{ path = \"{}\", why = \"t\" }}\n",
        path.display()
    );
    world.policy("other", "esc:other", &named);
    world.expect(
        "esc:maker",
        "{}",
        "SecurityError: tools or this host run it",
    );
    fs::remove_file(base.join("sandbox-policies/other.policy.toml")).unwrap();
    // The control: where PATH names nothing of it, the same grant is one.
    world.expect("esc:maker", "{}", "ok 1");
}

#[test]
fn what_a_tool_could_write_is_never_run_and_a_launcher_gets_no_home_of_somebody_else() {
    let world = world();
    let base = &world.base;
    world.expect("esc:maker", "{}", "ok 1");
    let (bin, links) = (base.join("pile/bin"), base.join("links"));
    assert!(
        fs::metadata(bin.join("python3"))
            .unwrap()
            .permissions()
            .mode()
            & 0o111
            != 0,
        "it can be run"
    );
    fs::create_dir(&links).unwrap();
    for name in ["python3", "node"] {
        symlink(bin.join(name), links.join(name)).unwrap();
    }
    symlink(&bin, base.join("folder")).unwrap();
    is_passed_over(&world, &bin, "its folder in PATH");
    is_passed_over(&world, &base.join("folder"), "through a link in PATH");
    is_passed_over(&world, &links, "through links to the files");
    for gone in [
        "sandbox-policies/maker.policy.toml",
        "user_scripts/maker/esc-maker.tool.json",
    ] {
        fs::remove_file(base.join(gone)).unwrap();
    }
    is_passed_over(&world, &bin, "after the tool and its policy are gone");
    // Where it is not known what tools could write, nothing is run to find out.
    let ledger = base.join("state/written.jsonl");
    set_mode(&ledger, 0o666);
    let told = run(&world, &bin, &["doctor", "--json"]).out;
    assert!(
        told["passedOver"].to_string().contains("is not known") && told["runtimes"] == json!([]),
        "{told}"
    );
    assert!(!base.join("state/RUN").exists());
    set_mode(&ledger, 0o600);
    // The control: the same launcher, where a person put it, is asked.
    let (own, open, told) = (
        base.join("own/bin"),
        base.join("open"),
        base.join("state/RUN"),
    );
    [&own, &open]
        .iter()
        .for_each(|folder| fs::create_dir_all(folder).unwrap());
    let launcher = own.join("python3");
    copy_program(bin.join("python3"), &launcher);
    world.settle();
    set_mode(&launcher, 0o755);
    run(&world, &own, &["list"]);
    assert!(told.exists(), "a launcher is run, so the test would see it");
    // It obeys what lies in a home, so it is given none that somebody else can change.
    fs::write(
        &launcher,
        format!(
            "#!/bin/sh\necho \"$HOME $PATH $PWD\" >> {}\n",
            told.display()
        ),
    )
    .unwrap();
    set_mode(&open, 0o777);
    for (home, wanted) in [
        (&open, Path::new("/")),
        (&base.join("home"), &base.join("home")),
    ] {
        let mut command = world.host();
        command
            .env(
                "PATH",
                format!("{}:{}:/usr/bin", own.display(), open.display()),
            )
            .env("HOME", home)
            .arg("list");
        finish(command, b"");
        // Nor does it find programs where others can put them, or start where it was called.
        let all = format!("{} {}:/usr/bin /", wanted.display(), own.display());
        assert_eq!(
            fs::read_to_string(&told).unwrap().lines().next_back(),
            Some(all.as_str()),
            "{home:?}"
        );
    }
}

/// The home that the environment names, also where it leads through a link; the account's, which
/// may be another; and, where the host is root, everybody's.
#[test]
fn no_tool_writes_the_settings_of_a_home() {
    as_everyone("homes", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let (real, link) = (playground.path("people/u"), playground.path("link"));
        fs::create_dir_all(real.join(".config/app")).unwrap();
        fs::create_dir_all(real.join("results")).unwrap();
        symlink(&real, &link).unwrap();
        let mut homes = vec![
            real.join(".config/app"),
            real.join(".config"),
            real.clone(),
            playground.path("people"),
        ];
        if who == Who::Root {
            homes.extend(["/root/.config".into(), "/root/.ssh".into(), "/root".into()]);
            let more = fs::read_dir("/home").into_iter().flatten().flatten();
            homes.extend(more.flat_map(|home| [home.path(), home.path().join(".config")]));
        }
        const WRITES: &str =
            "import json, sys\nopen(json.load(sys.stdin)['path'], 'w').write('x')\nprint(1)\n";
        let attempt = |folder: &Path, wanted: &str| {
            let pattern = format!("{}/**", folder.display());
            playground.tool("home", "python", WRITES, files(&["self"], &[&pattern]));
            playground.allow("home", "esc:home", &[], &[&pattern]);
            playground.settle();
            let mut command = playground.host();
            command
                .env("HOME", &link)
                .args(["call", "esc:home", "--json", "--input", "-"]);
            let ended = finish(
                command,
                json!({"path": folder.join("planted")})
                    .to_string()
                    .as_bytes(),
            );
            fits(wanted, &ended)
                .unwrap_or_else(|why| panic!("{who:?}: {}: {why}", folder.display()));
        };
        for folder in homes {
            attempt(&folder, "SecurityError: whose names start with a dot");
            assert!(!folder.join("planted").exists(), "{}", folder.display());
        }
        attempt(&real.join("results"), "ok 1");
        assert!(real.join("results/planted").is_file(), "the control");
    });
}
