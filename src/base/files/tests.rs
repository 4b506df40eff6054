use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

const SOMEBODY: u32 = 12345;

fn base() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("a path");
    (folder, path)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn why(path: &Path) -> String {
    Folder::make(path).expect_err("refused").to_string()
}

#[test]
fn what_others_can_change_is_not_gone_through() {
    let (_kept, base) = base();
    let inner = base.join("open/inner");
    fs::create_dir_all(&inner).expect("made");
    Folder::open(&inner).expect("the control: ours alone");
    for (bits, good) in [(0o777, false), (0o1777, true), (0o755, true)] {
        mode(&base.join("open"), bits);
        assert_eq!(Folder::open(&inner).is_ok(), good, "{bits:o}");
        assert_eq!(Folder::open(&base.join("open")).is_ok(), good, "{bits:o}");
    }
    mode(&base.join("open"), 0o777);
    assert!(why(&inner.join("new")).contains("others may write"), "{}", why(&inner.join("new")));
    assert!(!inner.join("new").exists(), "nothing is made behind it");
    if geteuid().is_root() {
        mode(&base.join("open"), 0o755);
        chown(base.join("open"), Some(SOMEBODY), None).expect("chown");
        assert!(why(&inner).contains("belongs to another user (uid 12345)"), "{}", why(&inner));
    }
}

#[test]
fn links_are_followed_only_where_nobody_else_could_make_them() {
    let (_kept, base) = base();
    fs::create_dir(base.join("real")).expect("made");
    for (name, target) in [("near", "real"), ("up", "../real"), ("chain", "near")] {
        let place = if name == "up" { base.join("real/up") } else { base.join(name) };
        symlink(target, &place).expect("linked");
        fs::write(base.join("real/x"), name).expect("written");
        let mut text = String::new();
        let folder = Folder::open(&place).expect("ours");
        io::Read::read_to_string(&mut folder.file("x", OFlag::O_RDONLY).expect("there"), &mut text).expect("text");
        assert_eq!(text, name);
    }
    symlink(base.join("loop"), base.join("loop")).expect("linked");
    assert!(Folder::open(&base.join("loop")).is_err());
    if geteuid().is_root() {
        nix::unistd::fchownat(
            AT_FDCWD,
            &base.join("near"),
            Some(Uid::from_raw(SOMEBODY)),
            None,
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .expect("chown");
        assert!(why(&base.join("near/new")).contains("near belongs to another user"));
        assert!(why(&base.join("chain")).contains("near belongs to another user"), "a link to that link");
    }
}

#[test]
fn a_folder_and_its_files_are_no_links() {
    let (_kept, base) = base();
    let folder = Folder::make(&base.join("a/b")).expect("made");
    assert_eq!(fs::metadata(base.join("a")).expect("there").mode() & 0o777, 0o700);
    fs::create_dir(base.join("elsewhere")).expect("made");
    symlink(base.join("elsewhere"), base.join("a/b/inner")).expect("linked");
    symlink(base.join("elsewhere/x"), base.join("a/b/file")).expect("linked");
    assert!(folder.below("inner").expect_err("a link").to_string().contains("inner is not a folder"));
    assert!(folder.file("file", OFlag::O_WRONLY | OFlag::O_CREAT).is_err());
    folder.put("file", b"new").expect("the link is replaced, not followed");
    assert_eq!(fs::read(base.join("a/b/file")).expect("there"), b"new");
    assert_eq!(fs::read_dir(base.join("elsewhere")).expect("there").count(), 0);
    fs::remove_file(base.join("a/b/inner")).expect("removed");
    let inner = folder.below("inner").expect("made");
    assert!(inner.is_private() && folder.below("inner").is_ok());
    folder.put("other", b"2").expect("written");
    assert!(folder.rename_new("other", "file").is_err() && folder.rename_new("other", "third").is_ok());
    mode(&base.join("a/b/file"), 0o666);
    assert!(folder.trusted("file", OFlag::O_RDONLY).is_err() && folder.trusted("third", OFlag::O_RDONLY).is_ok());
}

#[test]
fn a_lock_has_one_holder_and_leaves_nothing() {
    let (_kept, base) = base();
    let folder = Folder::make(&base).expect("ours");
    let held = folder.lock("x.lock").expect("a lock").expect("free");
    assert!(folder.lock("x.lock").expect("no error").is_none());
    drop(held);
    assert!(folder.stat("x.lock").is_none());
    assert!(folder.lock("x.lock").expect("a lock").is_some());
}

#[test]
fn what_is_made_as_an_owner_is_his_and_no_more_than_he_could() {
    if !geteuid().is_root() || every_id_is_mapped() != Some(true) {
        return println!("SKIPPED acting as another: needs real root");
    }
    let (_kept, base) = base();
    mode(&base, 0o755);
    let (his, ours) = (base.join("his"), base.join("ours"));
    fs::create_dir(&his).expect("made");
    fs::create_dir(&ours).expect("made");
    chown(&his, Some(SOMEBODY), Some(SOMEBODY)).expect("chown");
    as_owner((SOMEBODY, SOMEBODY), || fs::create_dir(his.join("new"))).expect("his own folder");
    let facts = fs::metadata(his.join("new")).expect("there");
    assert_eq!((facts.uid(), facts.gid()), (SOMEBODY, SOMEBODY));
    as_owner((SOMEBODY, SOMEBODY), || fs::create_dir(ours.join("new"))).expect_err("not his");
    fs::create_dir(ours.join("new")).expect("the control: ourselves again");
}
