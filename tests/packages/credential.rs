//! An index that asks for a credential, over TLS: it gets it with each request, and nobody else ever does.

use super::{FLAT, Index, rules};
use crate::network::{World, in_both_worlds};
use crate::prelude::*;

const KEY: &str = "s3cret/Key+with=signs-0123456789";
/// The host of the world that serves the index, and where.
const HOST: &str = "api.example.com:8444";

/// The index, in the world outside, which shows this certificate of it.
fn index_of(world: &World, certificate: &str) -> Index {
    let certificate = world.playground.path("world").join(certificate);
    let options = json!({"address": "45.20.0.1", "port": 8444, "certificate": certificate});
    Index::start(&world.playground, world.outside("/usr/bin/python3"), &options)
}

/// Looks for the key in everything that a process can read, and asks the index by itself.
const SEARCHES: &str = r#"
import json, os, plain, urllib.request
found = []
if "s3cret" in json.dumps(dict(os.environ)): found.append("environment")
files = ["/proc/%s/%s" % (process, name) for process in ["self", 1] for name in ["environ", "cmdline"]]
for base in [os.path.dirname(plain.__file__), "/tmp", HOME]:
    files += [os.path.join(folder, name) for folder, _, names in os.walk(base) for name in names]
for file in files:
    try:
        if b"Key+with" in open(file, "rb").read(1 << 20): found.append(file)
    except OSError: pass
try:
    urllib.request.urlopen("http://api.example.com/simple/plain/", timeout=5)
    found.append("the index")
except OSError: pass
print(json.dumps([plain.version, found]))
"#;

/// Gives one file to the host: the store keeps the modes that the host gave it.
fn settle_file(world: &World, name: &str) {
    std::os::unix::fs::chown(world.playground.path(name), world.playground.who.uid(), None).unwrap();
}

fn host(world: &World, arguments: &[&str]) -> Ended {
    let mut command = world.host();
    command.arg("--config").arg(world.playground.path("config.toml")).args(arguments);
    finish(command, b"")
}

fn policy(world: &World, builds: bool) {
    world.playground.policy("default", "*", &rules("default", "required", builds, ""));
}

/// The credential, in a file that only the host's user reads.
fn key(world: &World) -> PathBuf {
    let key = world.playground.path("home/index.key");
    fs::write(&key, format!("{KEY}\n")).unwrap();
    world.playground.settle();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    key
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn an_index_gets_its_credential_over_tls_and_nobody_else_does() {
    in_both_worlds("an index with a credential", |world| {
        let (index, key) = (index_of(world, "host.pem"), key(world));
        let entry = |name: &str, path: &str| {
            let from = format!("credential = {{ from = \"file:{}\" }}", key.display());
            format!("{name} = {{ url = \"https://{HOST}/{path}\", {from} }}\n")
        };
        let config = format!("[indexes.default]\n{}{}", entry("python", "simple/"), entry("node", "npm/"));
        fs::write(world.playground.path("config.toml"), config).unwrap();
        settle_file(world, "config.toml");
        policy(world, false);
        let home = json!(world.playground.path("home")).to_string();
        let folder = world.playground.tool("keyed", "python", &SEARCHES.replace("HOME", &home), json!({}));
        fs::write(folder.join("requirements.txt"), "plain<2\n").unwrap();
        super::settle(&world.playground);
        let call = |tool: &str| host(world, &["call", tool, "--json", "--input", "{}"]);

        let before = world.log().len();
        let locked = host(world, &["deps", "lock", "esc:keyed"]);
        assert_eq!(locked.code, Some(0), "{} {}", locked.text(), locked.stderr);
        let lock = fs::read_to_string(folder.join("pylock.toml")).unwrap();
        assert!(lock.contains(&format!("\"https://{HOST}/files/plain-1.0")) && !lock.contains("http://"), "{lock}");
        assert_eq!(fits("ok [\"1.0\", []]", &call("esc:keyed")), Ok(()));

        // A build step, which may run code: nothing is in reach of it.
        policy(world, true);
        let built = world.playground.tool(
            "built",
            "python",
            "import builds, json\nprint(json.dumps(builds.could))\n",
            json!({}),
        );
        fs::write(built.join("requirements.txt"), super::locked(&index.hashes, "builds==1.0")).unwrap();
        super::settle(&world.playground);
        assert_eq!(fits("ok []", &call("esc:built")), Ok(()));
        if has("nodejs", 1) {
            // This index names its files by https:// addresses, and npm asks for them by the host that it was given.
            let flat = world.playground.tool("flat", "nodejs", FLAT, json!({}));
            fs::write(flat.join("package.json"), json!({"dependencies": {"flat": "1.0.0"}}).to_string()).unwrap();
            super::settle(&world.playground);
            let locked = host(world, &["deps", "lock", "esc:flat"]);
            assert_eq!(locked.code, Some(0), "{} {}", locked.text(), locked.stderr);
            let lock = fs::read_to_string(flat.join("package-lock.json")).unwrap();
            assert!(lock.contains(&format!("\"https://{HOST}/npm/-/flat")) && !lock.contains("http://"), "{lock}");
            assert_eq!(fits("ok \"1.0.0\"", &call("esc:flat")), Ok(()));
        }

        let log = index.log();
        assert!(log.iter().any(|line| line.contains("/files/plain-1.0")), "{log:?}");
        let without: Vec<_> = log.iter().filter(|line| !line.ends_with(&format!(" Bearer {KEY}"))).collect();
        assert!(without.is_empty(), "the index was asked without it: {without:?}");
        // Everything else that the outside heard was a question for the name: no word in clear text.
        let heard = world.log().split_off(before);
        assert!(heard.iter().all(|line| line.starts_with("dns api.example.com")), "{heard:?}");
        let kept = walkdir::WalkDir::new(world.playground.path("state")).into_iter().flatten();
        for file in kept.filter(|entry| entry.file_type().is_file()) {
            let text = fs::read(file.path()).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains("Key+with"), "{}", file.path().display());
        }
        // The control: without walls the key is found.
        let outside = world.playground.outside("/usr/bin/env").arg("cat").arg(&key).output().unwrap();
        assert!(String::from_utf8_lossy(&outside.stdout).contains("Key+with"));
        // Without a credential the same index would have been asked without one.
        world.control(&format!("https://{HOST}/simple/plain/"));
        assert_eq!(index.log().last().map(String::as_str), Some("/simple/plain/"));
    });
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn an_authority_of_its_own_vouches_for_an_index_with_a_credential() {
    in_both_worlds("an index with a credential and an authority", |world| {
        let index = index_of(world, "private.pem");
        let authority = world.playground.path("home/authority.pem");
        fs::copy(world.playground.path("world/private-ca.pem"), &authority).unwrap();
        let folder = world.playground.tool("one", "python", "import plain\nprint(1)\n", json!({}));
        fs::write(folder.join("requirements.txt"), super::locked(&index.hashes, "plain==1.0")).unwrap();
        policy(world, false);
        let key = key(world);
        let call = |ca: &str| {
            let credential = format!("credential = {{ from = \"file:{}\" }}{ca}", key.display());
            let config = format!("[indexes.default]\npython = {{ url = \"https://{HOST}/simple/\", {credential} }}\n");
            fs::write(world.playground.path("config.toml"), config).unwrap();
            settle_file(world, "config.toml");
            host(world, &["call", "esc:one", "--json", "--input", "{}"])
        };
        let refused = call("");
        assert_eq!(refused.kind(), "DependencyError", "the control: the machine does not trust it: {refused:?}");
        assert!(index.log().is_empty(), "{:?}", index.log());
        assert_eq!(fits("ok 1", &call(&format!(", ca = \"{}\"", authority.display()))), Ok(()));
        assert!(index.log().iter().all(|line| line.ends_with(&format!(" Bearer {KEY}"))), "{:?}", index.log());
    });
}
