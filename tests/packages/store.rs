//! The store: what is in it is as it was built, or is built again; nothing of a killed build stays.

use super::{IndexedHost, PLAIN, set_mode};
use crate::prelude::*;
use nix::sys::signal::kill;
use nix::unistd::Pid;

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_somebody_changed_is_built_again() {
    as_everyone("a changed entry", |who| {
        let shop = IndexedHost::new(who);
        shop.python("one", &["plain==1.0"], PLAIN);
        shop.expect("one", "ok \"1.0\"");
        let site = |tree: &str| {
            let library = fs::read_dir(shop.store().join(tree).join("lib"))
                .unwrap()
                .next()
                .unwrap()
                .unwrap();
            library.path().join("site-packages")
        };
        let first = shop.trees();
        // A file with another content of the same length, and the same time.
        let module = site(&first[0]).join("plain/__init__.py");
        let text = fs::read_to_string(&module).unwrap().replace("1.0", "6.6");
        let time = fs::metadata(&module).unwrap().modified().unwrap();
        fs::write(&module, text).unwrap();
        fs::File::options()
            .write(true)
            .open(&module)
            .unwrap()
            .set_modified(time)
            .unwrap();
        shop.expect("one", "ok \"1.0\"");
        let second = shop.trees();
        assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
        // A module that was added.
        fs::write(
            site(&second[0]).join("json.py"),
            "raise SystemExit('planted')",
        )
        .unwrap();
        shop.expect("one", "ok \"1.0\"");
        assert!(shop.trees().len() == 1 && shop.trees() != second);
        // The store itself.
        set_mode(shop.store(), 0o777);
        shop.expect("one", "CapabilityError: chmod");
        set_mode(shop.store(), 0o700);
        shop.expect("one", "ok \"1.0\"");
        shop.deps_good(&["clean"]);
        assert_eq!(shop.trees(), Vec::<String>::new());
    });
}

/// A copy (a backup, the image of a container) has other inodes and times. A changed copy is built again.
#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_copy_of_the_store_counts_and_a_changed_one_does_not() {
    let shop = IndexedHost::new(Who::ours());
    shop.python("one", &["plain==1.0"], PLAIN);
    shop.expect("one", "ok \"1.0\"");
    let first = shop.trees();
    let copy = |change: &str| {
        let mut shell = shop.playground.outside("/bin/sh");
        let script =
            format!("cd \"$0\"; cp -a packages copy; rm -r packages; mv copy packages; {change}");
        shell
            .args(["-ec", &script])
            .arg(shop.playground.path("state"));
        assert_eq!(finish(shell, b"").code, Some(0));
        let asked = shop.log().len();
        shop.expect("one", "ok \"1.0\"");
        shop.log().len() > asked
    };
    assert!(!copy(""), "nothing is fetched again");
    assert_eq!(shop.trees(), first);
    let changes = [
        "echo x >> plain/__init__.py",
        "touch json.py",
        "chmod 777 plain",
        "ln -sf /bin/true ../../../bin/python",
    ];
    for change in changes {
        let before = shop.trees();
        let within = format!("cd packages/*/lib/*/site-packages; {change}");
        assert!(copy(&within), "{change}");
        assert_ne!(shop.trees(), before, "{change}");
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_tree_stays_as_long_as_a_call_uses_it() {
    let shop = IndexedHost::new(Who::ours());
    // Imports late: what a call uses must be there to its end.
    let late = "import json, os, time\nopen('out/began', 'w').close()\n\
                while not os.path.exists('go'): time.sleep(0.01)\n\
                import plain\nprint(json.dumps(plain.version))\n";
    let writes = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}}});
    let folder = shop.playground.tool("late", "python", late, writes);
    fs::create_dir_all(folder.join("out")).unwrap();
    fs::write(folder.join("requirements.txt"), shop.locked("plain==1.0")).unwrap();
    let write = "[limits]\ntimeout_ms = 120_000\n[files]\n\
                 read = [{ path = \"./**\", why = \"w\" }]\nwrite = \
                 [{ path = \"out/**\", why = \"w\" }]\n[packages]\npython = \
                 { index = \"default\", why = \"w\" }\n";
    shop.playground.policy("late", "esc:late", write);
    shop.python("other", &["plain==1.0"], PLAIN);
    shop.python("third", &["plain==2.0"], PLAIN);
    shop.expect("other", "ok \"1.0\"");
    let first = shop.trees().remove(0);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| shop.call("esc:late"));
        wait_for("the call", || folder.join("out/began").exists());
        let cleaned = shop.deps(&["clean"]);
        assert!(
            cleaned.text().contains("a call uses it"),
            "{} {}",
            cleaned.text(),
            cleaned.stderr
        );
        // Somebody changes it: others get a new one, and what tidies up leaves the old one to the
        // call.
        fs::write(shop.store().join(&first).join("bin/more"), "").unwrap();
        shop.expect("other", "ok \"1.0\"");
        shop.expect("third", "ok \"2.0\"");
        let during = shop.trees();
        assert!(
            during.contains(&first) && during.len() == 3,
            "{first}: {during:?}"
        );
        fs::write(folder.join("go"), "").unwrap();
        assert_eq!(fits("ok \"1.0\"", &call.join().unwrap()), Ok(()));
    });
    // The control: nobody uses it any more.
    shop.deps_good(&["clean"]);
    assert_eq!(shop.trees(), Vec::<String>::new());
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_killed_build_leaves_nothing_and_no_tool_writes_the_store() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("hang", "required", false, "");
    shop.python("one", &["plain==1.0"], PLAIN);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let asked = shop.log().len();
        let mut host = shop.host(&["deps", "build", "esc:one"]);
        let mut host = host
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the index is asked", || shop.log().len() > asked);
        kill(Pid::from_raw(host.id().try_into().unwrap()), signal).unwrap();
        host.wait().unwrap();
        let index = format!(
            "{} {}",
            shop.index.folder.join("index.py").display(),
            shop.index.folder.display()
        );
        within(
            Duration::from_secs(20),
            "nothing of a build is left",
            || {
                shop.playground
                    .processes()
                    .iter()
                    .all(|(_, line)| line.contains(&index))
            },
        );
    }
    shop.policy("default", "required", false, "");
    shop.expect("one", "ok \"1.0\"");
    assert_eq!(shop.trees().len(), 1, "{:?}", shop.trees());
    // Nothing in the store may be written by a tool.
    let files = shop.store().join(&shop.trees()[0]).join("lib/**");
    shop.writer(
        "writer",
        &files,
        "SecurityError: a policy, a manifest, a script or a file of this host",
    );
    // A store in a folder of tools is none.
    let state = shop.playground.path("tool-defs/state");
    fs::create_dir_all(&state).unwrap();
    shop.settle();
    let mut inside = shop.host(&[]);
    inside
        .arg("--audit-log")
        .arg(state.join("audit.jsonl"))
        .args(["call", "esc:one", "--json"]);
    let ended = finish(inside, b"");
    assert!(
        ended.stderr.contains("lies in the tool folder") || ended.code == Some(2),
        "{}",
        ended.stderr
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_full_disk_is_said_and_nothing_is_left() {
    let shop = IndexedHost::new(Who::ours());
    if !is_root() {
        return skipped(1, "a small file system needs root");
    }
    shop.python("one", &["plain==1.0"], PLAIN);
    fs::create_dir_all(shop.store()).unwrap();
    set_mode(shop.store(), 0o700);
    let mut small = shop.playground.outside("/bin/mount");
    small
        .args(["-t", "tmpfs", "-o", "size=16k,mode=0700", "tmpfs"])
        .arg(shop.store());
    assert_eq!(finish(small, b"").code, Some(0));
    let ended = shop.call("esc:one");
    let left = shop.trees();
    let mut off = shop.playground.outside("/bin/umount");
    off.arg(shop.store());
    assert_eq!(finish(off, b"").code, Some(0));
    let why = [
        "DependencyError: No space left on device",
        "InternalError: No space left on device",
    ];
    assert!(why.iter().any(|why| fits(why, &ended).is_ok()), "{ended:?}");
    assert_eq!(left, Vec::<String>::new());
    shop.expect("one", "ok \"1.0\""); // The control.
}
