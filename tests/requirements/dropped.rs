//! What a tool gets depends on its manifest, its own folder and the operator's files: random files
//! that somebody else drops beside random tools change nothing of it.

use crate::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

const WORLDS: u64 = 30;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// What the tools ask for, and what those ask for that are dropped.
const READS: [&[&str]; 6] = [
    &["./**"],
    &["data/*.csv"],
    &["base:a/data/**"],
    &["base:b/**"],
    &["./**", "base:c/main.py"],
    &["base:shared/**", "lib/"],
];
const WRITES: [&[&str]; 5] = [
    &[],
    &["out/**"],
    &["data/*.csv"],
    &[".cache/**", "out/*.txt"],
    &["lib/**"],
];
const POLICY: &str = "name = \"x\"\nwhy = \"w\"\ntools = [\"t:*\", \"x:*\"]\n[files]\n\
    read = [{ path = \"./**\", why = \"w\" }, { path = \"ROOT/user_scripts/**\", why = \"w\" }]\n\
    write = [{ path = \"./**\", why = \"w\" }, { path = \"ROOT/user_scripts/**\", why = \"w\" }]\n";

fn pick<'a, T: ?Sized>(rng: &mut TestRng, of: &[&'a T]) -> &'a T {
    of[rng.random_range(0..of.len())]
}

fn asks(rng: &mut TestRng) -> Value {
    let (read, write) = (pick(rng, &READS), pick(rng, &WRITES));
    json!({"securityContext": {"fileAccess": {"allowRead": read, "allowWrite": write}}})
}

/// What each of the tools gets.
fn gets(host: &Host) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for mut entry in host.json(&["audit", "--all"])["tools"]
        .as_array()
        .unwrap()
        .clone()
    {
        let tool = entry["tool"].as_str().unwrap().to_owned();
        // Notes may say what else is there.
        entry.as_object_mut().unwrap().remove("notes");
        if tool.starts_with("t:") {
            found.insert(tool, entry);
        }
    }
    found
}

/// Drops one file of somebody else; what was done.
fn drop_one(host: &Host, rng: &mut TestRng, number: usize) -> String {
    let victim = pick(rng, &NAMES);
    let (folder, id) = (format!("user_scripts/x{number}"), format!("x:n{number}"));
    let more = asks(rng);
    let put = |at: String, path: String, more: Value| {
        let mut text = manifest(&id, script(path, "python"), json!({}));
        text.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        host.put(&at, text.to_string());
        at
    };
    let kind = rng.random_range(0..9);
    let own = host.path(&folder);
    fs::create_dir_all(&own).unwrap();
    let script = host.path(&format!("user_scripts/{victim}/main.py"));
    let at = match kind {
        0 => put(
            format!("{folder}/x.tool.json"),
            format!("{victim}/main.py"),
            more,
        ),
        1 => put(
            format!("tool-defs/x{number}.tool.json"),
            format!("{victim}/main.py"),
            more,
        ),
        2 => {
            fs::hard_link(&script, own.join("main.py")).unwrap();
            put(
                format!("{folder}/x.tool.json"),
                format!("x{number}/main.py"),
                more,
            )
        }
        3 => {
            symlink(&script, own.join("main.py")).unwrap();
            put(
                format!("{folder}/x.tool.json"),
                format!("x{number}/main.py"),
                more,
            )
        }
        4 => {
            host.put(&format!("{folder}/main.py"), "print(1)\n");
            let at = put(
                format!("{folder}/x.tool.json"),
                format!("x{number}/main.py"),
                more,
            );
            // Older than everything.
            let file = fs::File::open(host.path(&at)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            at
        }
        5 => put(
            format!("{folder}/t.tool.json"),
            format!("{victim}/lib/deep.py"),
            more,
        ),
        6 => {
            symlink(script.parent().unwrap(), own.join("link")).unwrap();
            put(
                format!("{folder}/x.tool.json"),
                format!("x{number}/link/main.py"),
                more,
            )
        }
        7 => host.put(
            &format!(
                "{folder}/{}",
                pick(rng, &["requirements.txt", "package.json", "x.policy.toml"])
            ),
            "{}",
        ),
        _ => host.put(&format!("{folder}/x.tool.json"), "{\"toolId\": \"t:a\""),
    };
    format!("{kind}: {at} ({victim})")
}

#[test]
fn a_dropped_file_takes_rights_from_itself_alone() {
    let mut granted = 0;
    for seed in 0..WORLDS {
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed as u8; 32]);
        let host = host();
        host.policy(
            &POLICY.replace(
                "ROOT",
                &host
                    .folder
                    .path()
                    .canonicalize()
                    .unwrap()
                    .display()
                    .to_string(),
            ),
        );
        for name in NAMES {
            host.tool(&format!("t:{name}"), asks(&mut rng));
            for made in ["data/x.csv", "out/x.txt", "lib/deep.py", ".cache/x"] {
                host.put(&format!("user_scripts/{name}/{made}"), "print(1)\n");
            }
        }
        host.put("user_scripts/shared/x", "x");
        let before = gets(&host);
        assert_eq!(before.len(), NAMES.len(), "{before:?}");
        granted += before
            .values()
            .map(|entry| entry["grants"].as_array().unwrap().len())
            .sum::<usize>();
        let mut dropped = Vec::new();
        for number in 0..rng.random_range(1..4) {
            dropped.push(drop_one(&host, &mut rng, number));
        }
        let after = gets(&host);
        for (tool, entry) in &before {
            assert_eq!(
                after.get(tool),
                Some(entry),
                "world {seed}, {tool}: {dropped:?}"
            );
        }
    }
    assert!(
        granted > WORLDS as usize,
        "the control: tools get something"
    );
}
