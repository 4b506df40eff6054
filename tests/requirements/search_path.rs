//! P3, P10: what a tool leaves where programs are looked for is never run on the host, and never another tool's
//! interpreter.

use crate::prelude::*;
/// Leaves a launcher that tells it was run, and a native `node`.
const MAKER: &str = "import os, shutil, sys\nfrom pathlib import Path\npile = Path(__file__).parents[2] / 'pile'\n\
    (pile / 'bin').mkdir(exist_ok=True)\nshutil.copy('/bin/true', pile / 'bin/node')\n\
    (pile / 'bin/python3').write_text(f'#!/bin/sh\\necho >> {pile.parent}/state/RUN\\nexec /usr/bin/python3 \"$@\"\\n')\n\
    for name in ('node', 'python3'):\n    os.chmod(pile / 'bin' / name, 0o755)\nprint(1)\n";

struct World(Playground);

impl World {
    fn new() -> World {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        let pile = playground.path("pile");
        fs::create_dir(&pile).unwrap();
        let pattern = format!("{}/**", pile.display());
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": [&pattern]}}});
        playground.tool_at("esc:maker", "python", "maker/main.py", MAKER, asks);
        playground.tool_at("esc:node", "nodejs", "node/main.js", "console.log(process.execPath.length)\n", json!({}));
        playground.allow("maker", "esc:maker", &["./**"], &[&pattern]);
        playground.settle();
        World(playground)
    }

    /// A verb of the host, with these folders before the usual ones in its PATH.
    fn run(&self, first: &[&Path], arguments: &[&str]) -> Ended {
        let usual = std::env::split_paths(SEARCH_PATH).collect::<Vec<_>>();
        let all = first.iter().map(|path| path.to_path_buf()).chain(usual);
        let mut command = self.0.host();
        command.env("PATH", std::env::join_paths(all).unwrap()).args(arguments);
        finish(command, b"")
    }

    fn call(&self, first: &[&Path], tool: &str) -> Ended {
        self.run(first, &["call", tool, "--json", "--input", "{}"])
    }

    /// Nothing of what was planted is run by these verbs, nor taken for an interpreter.
    fn is_passed_over(&self, first: &[&Path], when: &str) {
        for arguments in [&["list"][..], &["check"], &["doctor", "--json"], &["call", "esc:node", "--input", "{}"]] {
            let ended = self.run(first, arguments);
            assert!(!self.0.path("state/RUN").exists(), "{when}: {arguments:?} ran what was planted: {ended:?}");
            if arguments[0] == "doctor" {
                let (taken, over) = (ended.out["runtimes"].to_string(), ended.out["passedOver"].to_string());
                assert!(!taken.contains(&self.0.path("pile").display().to_string()), "{when}: {taken}");
                assert!(over.contains("could write in an earlier call"), "{when}: {over}");
            }
        }
    }
}

#[test]
fn a_folder_where_programs_are_looked_for_is_not_written() {
    let world = World::new();
    let base = &world.0.base;
    fs::create_dir_all(base.join("pile/there")).unwrap();
    symlink(base.join("pile/there"), base.join("link")).unwrap();
    fs::create_dir_all(base.join("links")).unwrap();
    symlink(base.join("pile/later/python3"), base.join("links/python3")).unwrap();
    world.0.settle();
    for (place, why) in [
        ("links", "links/python3 leads there"),
        ("pile/there", "is in PATH"),
        ("pile/not/yet/.bin", "is in PATH"),
        ("link", "is in PATH"),
        ("pile", "is in PATH"),
    ] {
        let ended = world.call(&[&base.join(place)], "esc:maker");
        fits(&format!("SecurityError: {why}"), &ended).unwrap_or_else(|why| panic!("{place:?}: {why}"));
    }
    assert_eq!(fs::read_dir(base.join("pile")).unwrap().count(), 1, "nothing was made");
    // A policy of another tool names an interpreter by a way that leads through it.
    let named =
        format!("[runtimes]\npython = {{ path = \"{}\", why = \"t\" }}\n", base.join("pile/there/python3").display());
    world.0.policy("other", "esc:other", &named);
    fits("SecurityError: tools or this host run it", &world.call(&[], "esc:maker")).unwrap();
    fs::remove_file(base.join("sandbox-policies/other.policy.toml")).unwrap();
    // The control: where PATH names nothing of it, the same grant is one.
    fits("ok 1", &world.call(&[], "esc:maker")).unwrap();
}

#[test]
fn what_a_tool_could_write_is_never_run_on_the_host() {
    let world = World::new();
    let base = world.0.base.clone();
    fits("ok 1", &world.call(&[], "esc:maker")).unwrap();
    let bin = base.join("pile/bin");
    assert!(fs::metadata(bin.join("python3")).unwrap().permissions().mode() & 0o111 != 0, "it can be run");
    fs::create_dir(base.join("links")).unwrap();
    symlink(bin.join("python3"), base.join("links/python3")).unwrap();
    symlink(bin.join("node"), base.join("links/node")).unwrap();
    symlink(&bin, base.join("folder")).unwrap();
    world.is_passed_over(&[&bin], "its folder in PATH");
    world.is_passed_over(&[&base.join("folder")], "through a link in PATH");
    world.is_passed_over(&[&base.join("links")], "through links to the files");
    for gone in ["sandbox-policies/maker.policy.toml", "user_scripts/maker/esc-maker.tool.json"] {
        fs::remove_file(base.join(gone)).unwrap();
    }
    world.is_passed_over(&[&bin], "after the tool and its policy are gone");
    // Where it is not known what tools could write, nothing is run to find out.
    let ledger = base.join("state/written.jsonl");
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o666)).unwrap();
    let told = world.run(&[&bin], &["doctor", "--json"]).out;
    assert!(told["passedOver"].to_string().contains("is not known") && told["runtimes"] == json!([]), "{told}");
    assert!(!base.join("state/RUN").exists());
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o600)).unwrap();
    // The control: the same launcher, where a person put it, is asked.
    let own = base.join("own/bin");
    fs::create_dir_all(&own).unwrap();
    copy_program(bin.join("python3"), own.join("python3"));
    world.0.settle();
    fs::set_permissions(own.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
    world.run(&[&own], &["list"]);
    assert!(base.join("state/RUN").exists(), "a launcher is run, so the test would see it");
}

/// A launcher obeys what lies in a home, so it is given none that somebody else can change.
#[test]
fn a_launcher_gets_no_home_of_somebody_else() {
    let world = World::new();
    let base = world.0.base.clone();
    let own = base.join("own/bin");
    for folder in [&own, &base.join("open")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(own.join("python3"), format!("#!/bin/sh\necho \"$HOME $PATH $PWD\" >> {}/state/RUN\n", base.display()))
        .unwrap();
    world.0.settle();
    fs::set_permissions(own.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    for (home, wanted) in [("open", Path::new("/").to_owned()), ("home", base.join("home"))] {
        let path = std::env::join_paths([own.clone(), base.join("open"), "/usr/bin".into()]);
        let mut command = world.0.host();
        command.env("PATH", path.unwrap()).env("HOME", base.join(home)).arg("list");
        finish(command, b"");
        let told = fs::read_to_string(base.join("state/RUN")).unwrap();
        // Nor does it find programs where others can put them, or start where it was called.
        let all = format!("{} {}:/usr/bin /", wanted.display(), own.display());
        assert_eq!(told.lines().next_back(), Some(all.as_str()), "{home}");
    }
}
