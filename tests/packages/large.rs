//! Packages that are larger than an environment may be: refused, and nothing of them stays.

use super::IndexedHost;
use crate::prelude::*;

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_unpacks_to_too_much_or_too_many_files_is_refused() {
    let shop = IndexedHost::open(Who::ours(), &json!({"stock": ["bomb", "crowd"]}));
    for (package, words) in [
        ("bomb", ["File too large", "could not be installed"]),
        (
            "crowd",
            [
                "crowd/",
                "more than 100000 files and folders: require fewer",
            ],
        ),
    ] {
        shop.python(package, &[&format!("{package}==1.0")], "print(1)\n");
        // That takes longer than other commands may: pip writes all of it.
        let mut build = shop.host(&["deps", "build", &format!("esc:{package}")]);
        let built = build.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(
            !built.status.success() && words.iter().all(|words| said.contains(words)),
            "{said}"
        );
        assert_eq!(shop.trees(), Vec::<String>::new());
    }
    // The controls: another package of that tool; and it is a good archive of some megabytes, of
    // which more and more comes out.
    shop.put(
        shop.playground.path("user_scripts/crowd/requirements.txt"),
        shop.locked("plain==1.0"),
    );
    shop.expect("crowd", "ok 1");
    let reads = "import io,sys,urllib.request,zipfile\n\
                 text = urllib.request.urlopen(sys.argv[1]).read()\n\
                 archive = zipfile.ZipFile(io.BytesIO(text))\n\
                 entry = archive.getinfo('bomb/zeros.bin')\n\
                 piece = archive.open(entry).read(64 << 20)\n\
                 print(len(text) < 5_000_000, len(piece) == 64 << 20, entry.file_size > 2 << 30)\n";
    let mut outside = shop.playground.outside("/usr/bin/python3");
    outside.args(["-c", reads, &shop.url("files/bomb-1.0-py3-none-any.whl")]);
    let outside = finish(outside, b"");
    assert_eq!(outside.text(), "True True True\n", "{}", outside.stderr);
}
