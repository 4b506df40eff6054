//! What this host makes and keeps in folders that somebody else owns: nothing is given away by a name, nothing is
//! followed that somebody planted, and a call that is refused makes nothing.

use crate::prelude::*;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::os::unix::fs::chown;
use std::sync::atomic::AtomicBool;

/// The owner of folders that root works in.
const SOMEBODY: u32 = 12345;
/// While `during` runs, the owner of the folder swaps whatever is `out` with the prize, over and over. Gives who owns
/// the prize then; all is put back as it was.
fn swapped(folder: &Path, prize: u64, during: impl FnOnce()) -> u32 {
    let stop = AtomicBool::new(false);
    let (out, other) = (folder.join("out"), folder.join("prize"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone (setfsuid(2)): it can do what the owner could.
            nix::unistd::setfsgid(SOMEBODY.into());
            nix::unistd::setfsuid(SOMEBODY.into());
            while !stop.load(Ordering::Relaxed) {
                let _ = renameat2(AT_FDCWD, &out, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE);
            }
        });
        during();
        stop.store(true, Ordering::Relaxed);
    });
    let owner = |path: &Path| fs::metadata(path).ok().filter(|facts| facts.ino() == prize).map(|facts| facts.uid());
    let now = owner(&out).or_else(|| owner(&other)).expect("the prize is there");
    if owner(&out).is_some() {
        renameat2(AT_FDCWD, &out, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
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
    let playground = Playground::new(Who::Root, "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/**"]}}});
    let folder = playground.tool_at("esc:writer", "python", "writer/main.py", "print(1)\n", asks);
    playground.allow("writer", "esc:writer", &["./**"], &["./out/**"]);
    playground.settle();
    chown(&folder, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::create_dir(folder.join("prize")).unwrap();
    fs::set_permissions(folder.join("prize"), fs::Permissions::from_mode(0o700)).unwrap();

    // Undisturbed, the folder is made, and its owner is the owner of the tool's.
    playground.expect("esc:writer", "{}", "ok 1");
    assert_eq!(fs::metadata(folder.join("out")).unwrap().uid(), SOMEBODY);
    fs::remove_dir(folder.join("out")).unwrap();

    let prize = fs::metadata(folder.join("prize")).unwrap().ino();
    // The control: making it and then giving it away by its name gives the prize away.
    let naive = || {
        fs::create_dir(folder.join("out")).unwrap();
        // Time for a swap, also on a busy machine.
        std::thread::sleep(std::time::Duration::from_millis(1));
        chown(folder.join("out"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    };
    let mut rounds = 0..2000;
    assert!(rounds.any(|_| swapped(&folder, prize, naive) == SOMEBODY), "the swap never won, so that nothing is shown");
    chown(folder.join("prize"), Some(0), Some(0)).unwrap();
    let mut server = crate::harness::Server::start(&playground);
    for round in 0..ROUNDS {
        let owner = swapped(&folder, prize, || drop(server.called("esc:writer", json!({}))));
        assert_eq!(owner, 0, "round {round}: the prize was given away");
    }
}

#[test]
fn a_refused_call_makes_no_folder() {
    as_everyone("a refused call", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let writes = ["first/deep/**", "out/*.txt", "kept/**"];
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": writes}}});
        let folder = playground.tool_at("esc:writer", "python", "writer/main.py", "print(1)\n", asks);
        playground.allow("writer", "esc:writer", &["./**"], &["./first/**", "./out/**", "./kept/**"]);
        fs::create_dir(folder.join("kept")).unwrap();
        fs::write(folder.join("kept/a"), "a").unwrap();
        playground.settle();
        fs::hard_link(folder.join("kept/a"), folder.join("linked")).unwrap();
        playground.expect("esc:writer", "{}", "SecurityError: a writable folder holds a hard-linked file");
        let made = |name: &str| folder.join(name).exists();
        assert!(!made("first") && !made("out"), "{who:?}: a refused call made a folder");
        fs::remove_file(folder.join("linked")).unwrap();
        playground.expect("esc:writer", "{}", "ok 1");
        assert!(made("first/deep") && made("out"), "{who:?}: the control: a call that runs makes them");
    });
}

/// The log of a host that is root lies in a folder of somebody, who plants beside it what the host would follow.
#[test]
fn root_keeps_no_log_where_somebody_else_can_plant() {
    if !Who::Root.possible() {
        return skipped(1, "somebody else's folder needs root");
    }
    let playground = Playground::new(Who::Root, "/var/tmp");
    playground.tool_at("esc:good", "python", "good/main.py", "print(1)\n", json!({}));
    playground.settle();
    let (theirs, prize) = (playground.path("theirs"), playground.path("prize"));
    for name in ["begun", "confinements"] {
        fs::create_dir_all(prize.join(name)).unwrap();
        fs::write(prize.join(name).join("audit.jsonl.planted"), "{\"call\":\"x\"}\n").unwrap();
    }
    fs::create_dir(&theirs).unwrap();
    let log = theirs.join("audit.jsonl").display().to_string();
    let with_log = || playground.call_with("esc:good", "{}", &["--audit-log", &log]);
    // The control: in a folder of root's own nothing is in the way.
    fits("ok 1", &with_log()).unwrap();
    fs::remove_dir_all(&theirs).unwrap();
    fs::create_dir(&theirs).unwrap();
    for name in ["begun", "confinements"] {
        symlink(prize.join(name), theirs.join(name)).unwrap();
    }
    let before = playground.state_below(&prize, &[]);
    let refused = |why: &str| {
        fits(&format!("InternalError: {why}"), &with_log()).unwrap();
        assert_eq!(playground.state_below(&prize, &[]), before, "what lies elsewhere was followed and changed");
    };
    // Planted while it was still root's: the links are no folders.
    refused("begun: begun is not a folder");
    fs::remove_file(theirs.join("begun")).unwrap();
    refused("confinements is not a folder");
    chown(&theirs, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    refused("belongs to another user (uid 12345), who could replace what lies in it");
    // A folder of root's behind a link of somebody's.
    symlink(&prize, theirs.join("link")).unwrap();
    chown(&theirs, Some(0), Some(0)).unwrap();
    std::os::unix::fs::lchown(theirs.join("link"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let through = theirs.join("link/audit.jsonl").display().to_string();
    let ended = playground.call_with("esc:good", "{}", &["--audit-log", &through]);
    fits("InternalError: link belongs to another user", &ended).unwrap();
    assert_eq!(playground.state_below(&prize, &[]), before);
}

/// An ordinary user's log in a folder that everybody may write, and in a sticky one.
#[test]
fn a_log_lies_where_only_its_user_can_replace_it() {
    as_everyone("an open folder", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool_at("esc:good", "python", "good/main.py", "print(1)\n", json!({}));
        fs::create_dir(playground.path("open")).unwrap();
        playground.settle();
        let log = playground.path("open/audit.jsonl").display().to_string();
        for (mode, wanted) in [(0o777, "InternalError: others may write"), (0o1777, "ok 1"), (0o755, "ok 1")] {
            fs::set_permissions(playground.path("open"), fs::Permissions::from_mode(mode)).unwrap();
            let ended = playground.call_with("esc:good", "{}", &["--audit-log", &log]);
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?} {mode:o}: {why}"));
        }
        let checked = playground.cli(&["check", "--audit-log", &log]);
        assert_eq!(checked.code, Some(0), "{who:?}: {}", checked.stderr);
    });
}
