//! Packages that are larger than an environment may be: refused, and nothing of them stays.

use super::Shop;
use crate::prelude::*;

/// What a build of this tool says when it fails. That takes longer than other commands may: pip writes all of it.
fn refused(shop: &Shop, tool: &str) -> String {
    let built = shop.host(&["deps", "build", &format!("esc:{tool}")]).stdin(Stdio::null()).output().unwrap();
    assert!(!built.status.success());
    String::from_utf8_lossy(&built.stderr).into_owned()
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_unpacks_to_too_much_is_refused() {
    let shop = Shop::stocked(Who::ours(), &["bomb"]);
    shop.python("bomb", &["bomb==1.0"], "print(1)\n");
    let said = refused(&shop, "bomb");
    assert!(said.contains("File too large") && said.contains("could not be installed"), "{said}");
    assert_eq!(shop.trees(), Vec::<String>::new());
    // The control: it is a good archive of some megabytes, of which more and more comes out.
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

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_unpacks_to_too_many_files_is_refused() {
    let shop = Shop::stocked(Who::ours(), &["crowd"]);
    let folder = shop.python("crowd", &["crowd==1.0"], "print(1)\n");
    let said = refused(&shop, "crowd");
    assert!(said.contains("crowd/") && said.contains("more than 100000 files and folders: require fewer"), "{said}");
    assert_eq!(shop.trees(), Vec::<String>::new());
    shop.put(folder.join("requirements.txt"), shop.locked("plain==1.0"));
    shop.expect("crowd", "ok 1"); // The control.
}
