//! What this host makes and keeps in folders that somebody else owns: nothing is given away by a
//! name, nothing is followed that somebody planted, and a call that is refused makes nothing.

use super::{files, put, set_mode};
use crate::prelude::*;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::os::unix::fs::{chown, lchown};
use std::sync::atomic::AtomicBool;

/// The owner of folders that root works in.
const SOMEBODY: u32 = 12345;

/// A tool that asks to write these below its folder, which its policy allows.
fn writer(who: Who, write: &[&str]) -> (Playground, PathBuf) {
    let playground = Playground::new(who, "/var/tmp");
    let folder = playground.tool_at(
        "esc:writer",
        "python",
        "writer/main.py",
        "print(1)\n",
        files(&["self"], write),
    );
    playground.allow(
        "writer",
        "esc:writer",
        &["./**"],
        &["./first/**", "./out/**", "./kept/**"],
    );
    playground.settle();
    (playground, folder)
}

/// While `during` runs, the owner of the folder swaps whatever is `out` with the prize, over and
/// over. Gives who owns the prize then; all is put back as it was.
fn swapped(folder: &Path, prize: u64, during: impl FnOnce()) -> u32 {
    let stop = AtomicBool::new(false);
    let (out, other) = (folder.join("out"), folder.join("prize"));
    let swap = || {
        renameat2(
            AT_FDCWD,
            &out,
            AT_FDCWD,
            &other,
            RenameFlags::RENAME_EXCHANGE,
        )
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone (setfsuid(2)): it can do what the owner could.
            nix::unistd::setfsgid(SOMEBODY.into());
            nix::unistd::setfsuid(SOMEBODY.into());
            while !stop.load(Ordering::Relaxed) {
                let _ = swap();
            }
        });
        during();
        stop.store(true, Ordering::Relaxed);
    });
    let owner = |path: &Path| {
        fs::metadata(path)
            .ok()
            .filter(|facts| facts.ino() == prize)
            .map(|facts| facts.uid())
    };
    let now = owner(&out)
        .or_else(|| owner(&other))
        .expect("the prize is there");
    if owner(&out).is_some() {
        swap().unwrap();
    }
    let _ = fs::remove_dir(&out);
    now
}

#[test]
fn root_gives_no_folder_away_that_its_owner_swapped() {
    const ROUNDS: usize = 60;
    if !Who::Root.possible() {
        return skipped(1, "giving a folder away needs root");
    }
    let (playground, folder) = writer(Who::Root, &["out/**"]);
    let (out, prize) = (folder.join("out"), folder.join("prize"));
    chown(&folder, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::create_dir(&prize).unwrap();
    set_mode(&prize, 0o700);

    // Undisturbed, the folder is made, and its owner is the owner of the tool's.
    playground.expect("esc:writer", "{}", "ok 1");
    assert_eq!(fs::metadata(&out).unwrap().uid(), SOMEBODY);
    fs::remove_dir(&out).unwrap();

    let number = fs::metadata(&prize).unwrap().ino();
    // The control: making it and then giving it away by its name gives the prize away.
    let naive = || {
        fs::create_dir(&out).unwrap();
        // Time for a swap, also on a busy machine.
        std::thread::sleep(Duration::from_millis(1));
        chown(&out, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    };
    let won = (0..2000).any(|_| swapped(&folder, number, naive) == SOMEBODY);
    assert!(won, "the swap never won, so that nothing is shown");
    chown(&prize, Some(0), Some(0)).unwrap();
    let mut server = Server::start(&playground);
    for round in 0..ROUNDS {
        let owner = swapped(&folder, number, || {
            drop(server.called("esc:writer", json!({})))
        });
        assert_eq!(owner, 0, "round {round}: the prize was given away");
    }
}

/// Nor does the ledger of what tools could write get places that a refused call never got.
#[test]
fn a_refused_call_makes_no_folder_and_leaves_nothing_in_the_ledger() {
    as_everyone("a refused call", |who| {
        let (playground, folder) = writer(who, &["first/deep/**", "out/*.txt", "kept/**"]);
        put(&playground, folder.join("kept/a"), "a");
        // The locks of the ids that tools get are not granted either.
        let locks = "/run/toolhost/**";
        playground.tool("locks", "python", "print(1)\n", files(&["self"], &[locks]));
        playground.allow("locks", "esc:locks", &[], &[locks]);
        let bad = playground.path("bad");
        let tree = format!("{}/**", bad.display());
        fs::create_dir_all(bad.join("node_modules")).unwrap();
        playground.tool("bad", "python", "print(1)\n", files(&["self"], &[&tree]));
        playground.allow("bad", "esc:bad", &[], &[&tree]);
        playground.settle();
        playground.expect("esc:locks", "{}", "SecurityError: /run/toolhost/ids");
        playground.expect(
            "esc:bad",
            "{}",
            "SecurityError: a writable folder holds packages",
        );
        fs::create_dir(folder.join("kept/node_modules")).unwrap();
        playground.expect(
            "esc:writer",
            "{}",
            "SecurityError: a writable folder holds packages",
        );
        let made = |name: &str| folder.join(name).exists();
        let ledger =
            || fs::read_to_string(playground.path("state/written.jsonl")).unwrap_or_default();
        let kept = folder.join("kept").display().to_string();
        assert!(
            !made("first") && !made("out"),
            "{who:?}: a refused call made a folder"
        );
        assert!(!ledger().contains(&kept), "{who:?}: {}", ledger());
        fs::remove_dir(folder.join("kept/node_modules")).unwrap();
        playground.expect("esc:writer", "{}", "ok 1");
        assert!(
            made("first/deep") && made("out"),
            "{who:?}: the control: a call that runs makes them"
        );
        assert!(
            ledger().contains(&kept),
            "the control: {who:?}: {}",
            ledger()
        );
        assert!(
            !ledger().contains(&bad.display().to_string()),
            "{who:?}: {}",
            ledger()
        );
    });
}

/// The log of a host that is root lies in a folder of somebody, who plants beside it what the host
/// would follow.
#[test]
fn root_keeps_no_log_where_somebody_else_can_plant() {
    if !Who::Root.possible() {
        return skipped(1, "somebody else's folder needs root");
    }
    let (playground, _) = writer(Who::Root, &[]);
    let (theirs, prize) = (playground.path("theirs"), playground.path("prize"));
    for name in ["begun", "confinements"] {
        put(
            &playground,
            format!("prize/{name}/audit.jsonl.planted"),
            "{\"call\":\"x\"}\n",
        );
    }
    let with_log = |log: &str, wanted: &str| {
        let log = theirs.join(log).display().to_string();
        fits(
            wanted,
            &playground.call_with("esc:writer", "{}", &["--audit-log", &log]),
        )
        .unwrap();
    };
    fs::create_dir(&theirs).unwrap();
    // The control: in a folder of root's own nothing is in the way.
    with_log("audit.jsonl", "ok 1");
    fs::remove_dir_all(&theirs).unwrap();
    fs::create_dir(&theirs).unwrap();
    for name in ["begun", "confinements"] {
        symlink(prize.join(name), theirs.join(name)).unwrap();
    }
    let before = playground.state_below(&prize, &[]);
    let refused = |log: &str, why: &str| {
        with_log(log, &format!("InternalError: {why}"));
        assert_eq!(
            playground.state_below(&prize, &[]),
            before,
            "what lies elsewhere was followed and changed"
        );
    };
    // Planted while it was still root's: the links are no folders.
    refused("audit.jsonl", "begun: begun is not a folder");
    fs::remove_file(theirs.join("begun")).unwrap();
    refused("audit.jsonl", "confinements is not a folder");
    chown(&theirs, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    refused(
        "audit.jsonl",
        "belongs to another user (uid 12345), who could replace what lies in it",
    );
    // A folder of root's behind a link of somebody's.
    symlink(&prize, theirs.join("link")).unwrap();
    chown(&theirs, Some(0), Some(0)).unwrap();
    lchown(theirs.join("link"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    refused("link/audit.jsonl", "link belongs to another user");
}

/// An ordinary user's log in a folder that everybody may write, and in a sticky one.
#[test]
fn a_log_lies_where_only_its_user_can_replace_it() {
    as_everyone("an open folder", |who| {
        let (playground, _) = writer(who, &[]);
        let open = playground.path("open");
        fs::create_dir(&open).unwrap();
        playground.settle();
        let log = open.join("audit.jsonl").display().to_string();
        for (mode, wanted) in [
            (0o777, "InternalError: others may write"),
            (0o1777, "ok 1"),
            (0o755, "ok 1"),
        ] {
            set_mode(&open, mode);
            let ended = playground.call_with("esc:writer", "{}", &["--audit-log", &log]);
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?} {mode:o}: {why}"));
        }
        let checked = playground.cli(&["check", "--audit-log", &log]);
        assert_eq!(checked.code, Some(0), "{who:?}: {}", checked.stderr);
    });
}
