//! The readers of Node's files.

use super::{input, node, refused};

pub(super) const SHA512: &str =
    "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";

pub(super) fn npm_lock(version: &str) -> String {
    serde_json::json!({
        "name": "x", "lockfileVersion": 3, "requires": true,
        "packages": {
            "": { "name": "x", "dependencies": { "left-pad": "^1.0.0" }, "scripts": { "install": "evil" } },
            "node_modules/left-pad": {
                "version": version, "resolved": "https://evil/left-pad.tgz", "integrity": SHA512, "hasInstallScript": true,
                "dependencies": { "b": "npm:real-b@^2.0.0" }, "optionalDependencies": { "fsevents": "*", "absent": "*" }, "peerDependencies": { "gone": "*", "unused": "9" },
                "bin": { "pad": "./bin/pad.js" }, "license": "MIT", "engines": { "node": ">=1" },
            },
            "node_modules/left-pad/node_modules/b": { "name": "real-b", "version": "2.0.0", "integrity": SHA512 },
            "node_modules/fsevents": { "version": "2.3.3", "integrity": SHA512, "os": ["darwin"], "dev": true },
            "node_modules/unused": { "version": "1.0.0", "integrity": SHA512, "dev": true },
            "node_modules/far": { "version": "1.0.0", "integrity": SHA512, "dev": true },
        },
    }).to_string()
}

pub(super) const PACKAGE: &str = "{\n  \"name\": \"x\",\n  \"scripts\": { \"test\": \"evil\" },\n  \"dependencies\": {\n    \"left-pad\": \"^1.0.0\"\n  }\n}\n";

#[test]
fn a_lock_of_npm_is_written_anew_without_addresses() {
    for name in ["package-lock.json", "npm-shrinkwrap.json"] {
        let wanted = node(&[("package.json", PACKAGE), (name, &npm_lock("1.3.0"))]).expect("good").expect("some");
        assert!(wanted.locked);
        let names: Vec<&str> = wanted.packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["fsevents", "left-pad", "real-b", "unused"]);
        let lock: serde_json::Value = serde_json::from_str(input(&wanted, "package-lock.json")).expect("JSON");
        assert_eq!(lock["packages"]["node_modules/left-pad"]["integrity"], SHA512);
        assert_eq!(lock["packages"]["node_modules/left-pad/node_modules/b"]["name"], "real-b");
        assert_eq!(lock["packages"]["node_modules/fsevents"]["optional"], true);
        assert_eq!(lock["packages"]["node_modules/left-pad"]["bin"]["pad"], "bin/pad.js");
        // What a package can do without, npm would miss in a lock.
        assert_eq!(
            lock["packages"]["node_modules/left-pad"]["optionalDependencies"],
            serde_json::json!({"fsevents": "*"})
        );
        assert!(lock["packages"]["node_modules/left-pad"].get("peerDependencies").is_none());
        assert!(lock["packages"].get("node_modules/far").is_none());
        for (_, text) in &wanted.inputs {
            assert!(!text.contains("evil") && !text.contains("resolved") && !text.contains("scripts"), "{text}");
        }
    }
    let loose = node(&[("package.json", PACKAGE)]).expect("good").expect("some");
    assert!(!loose.locked && loose.inputs.len() == 1);
    assert_eq!(loose.requires[0].place, "package.json:5");
    assert_eq!(
        node(&[("package.json", "{\"name\": \"x\", \"type\": \"module\"}"), ("package-lock.json", "{}")]),
        Ok(None)
    );
    for (change, words) in [
        (
            ("\"1.3.0\"", "\"2.0.0\""),
            "package.json:5: `left-pad ^1.0.0` is required, and package-lock.json holds 2.0.0",
        ),
        (("https://evil/left-pad.tgz", "git+ssh://evil"), "a git reference"),
        (("https://evil/left-pad.tgz", "file:../x"), "a file reference"),
        (("\"hasInstallScript\":true", "\"link\":true"), "it is a link to a folder"),
        ((SHA512, "sha1-AAAA"), "no hash that counts"),
        (("\"integrity\"", "\"none\""), "it has no `integrity`"),
        (("node_modules/unused", "../unused"), "packages lie below node_modules alone"),
        (("node_modules/unused", "node_modules/../../x"), "packages lie below node_modules alone"),
        (("./bin/pad.js", "../../bin/pad.js"), "no path inside of the package"),
        (("npm:real-b@^2.0.0", "github:x/y"), "it requires `b`: `github:x/y` is a git reference"),
        (
            ("node_modules/left-pad/node_modules/b", "node_modules/left-pad/node_modules/c"),
            "requires `b`, which the lock does not hold",
        ),
        (("\"lockfileVersion\":3", "\"lockfileVersion\":1"), "a lock of version 1"),
        (("\"name\":\"x\",\"lockfileVersion\"", "\"name\":\"x\",\"name\":\"y\",\"lockfileVersion\""), "cannot be read"),
    ] {
        let said = refused(node(&[
            ("package.json", PACKAGE),
            ("package-lock.json", &npm_lock("1.3.0").replacen(change.0, change.1, 1)),
        ]));
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn package_json_says_names_and_versions_alone() {
    for (range, words) in [
        ("npm:evil@1", "an alias of another package"),
        ("file:../x", "a file reference"),
        ("link:../x", "a link to a folder"),
        ("workspace:*", "a folder of a workspace"),
        ("git+ssh://git@x/y.git", "a git reference"),
        ("github:x/y", "a git reference"),
        ("x/y", "a git reference"),
        ("https://x/y.tgz", "a URL"),
        ("latest", "no range of versions"),
        ("../x", "a file reference"),
    ] {
        let said = refused(node(&[("package.json", &PACKAGE.replace("^1.0.0", range))]));
        assert!(said.starts_with("package.json:5: `left-pad`") && said.contains(words), "{range}: {said}");
    }
    for (field, value) in [
        ("overrides", "{\"a\": \"1\"}"),
        ("resolutions", "{\"a\": \"1\"}"),
        ("workspaces", "[\"x\"]"),
        ("bundleDependencies", "[\"x\"]"),
        ("trustedDependencies", "[\"x\"]"),
    ] {
        let text = PACKAGE.replace("\"name\": \"x\"", &format!("\"{field}\": {value}"));
        let said = refused(node(&[("package.json", &text)]));
        assert!(said.starts_with(&format!("package.json:2: `{field}`")), "{said}");
    }
    let hook = PACKAGE.replace("\"test\"", "\"postinstall\"");
    assert!(refused(node(&[("package.json", &hook)])).contains("the script `postinstall`"));
    for name in [".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml"] {
        assert!(refused(node(&[("package.json", PACKAGE), (name, "")])).starts_with(name));
    }
    assert!(refused(node(&[("package.json", PACKAGE), ("bun.lockb", "\u{1}")])).contains("bun.lockb, is no text"));
    assert!(refused(node(&[("package.json", &PACKAGE.replace("left-pad", "../x"))])).contains("no name of a package"));
}

pub(super) fn bun_lock(version: &str) -> String {
    format!(
        "{{\n  \"lockfileVersion\": 1,\n  \"workspaces\": {{ \"\": {{ \"name\": \"x\", \"dependencies\": {{ \"left-pad\": \"^1.0.0\", }}, }}, }},\n\
         \"packages\": {{\n    \"left-pad\": [\"left-pad@{version}\", \"https://evil/\", {{ \"dependencies\": {{ \"@s/b\": \"^2.0.0\" }}, \"optionalDependencies\": {{ \"c\": \"*\" }}, \"bin\": \"pad.js\" }}, \"{SHA512}\"],\n\
         \"left-pad/@s/b\": [\"@s/b@2.0.0\", \"\", {{}}, \"{SHA512}\"],\n    \"c\": [\"c@1.0.0\", \"\", {{ \"os\": \"darwin\" }}, \"{SHA512}\"],\n    \"dev\": [\"dev@1.0.0\", \"\", {{}}, \"{SHA512}\"],\n  }}\n}}\n"
    )
}

#[test]
fn a_lock_of_bun_becomes_the_same_tree() {
    let wanted = node(&[("package.json", PACKAGE), ("bun.lock", &bun_lock("1.3.0"))]).expect("good").expect("some");
    let lock: serde_json::Value = serde_json::from_str(input(&wanted, "package-lock.json")).expect("JSON");
    let places: Vec<&String> = lock["packages"].as_object().expect("places").keys().collect();
    assert_eq!(places, ["", "node_modules/c", "node_modules/left-pad", "node_modules/left-pad/node_modules/@s/b"]);
    assert_eq!(
        lock["packages"]["node_modules/c"],
        serde_json::json!({"version": "1.0.0", "integrity": SHA512, "optional": true, "os": ["darwin"]})
    );
    assert_eq!(lock["packages"]["node_modules/left-pad"]["bin"]["left-pad"], "pad.js");
    for (change, words) in [
        (("left-pad@1.3.0", "left-pad@github:x/y#1"), "a git reference"),
        (("left-pad@1.3.0", "left-pad@file:x"), "a file reference"),
        (("left-pad@1.3.0", "left-pad@workspace:x"), "a folder of a workspace"),
        (("\"workspaces\"", "\"overrides\": {\"a\": \"1\"}, \"workspaces\""), "`overrides` is not read"),
        (("\"lockfileVersion\": 1", "\"lockfileVersion\": 9"), "lockfileVersion 1 and 2 are"),
        (("\"left-pad/@s/b\"", "\"left-pad/../b\""), "no place of a package"),
    ] {
        let said = refused(node(&[
            ("package.json", PACKAGE),
            ("bun.lock", &bun_lock("1.3.0").replacen(change.0, change.1, 1)),
        ]));
        assert!(said.contains(words), "{words}: {said}");
    }
    let both =
        node(&[("package.json", PACKAGE), ("package-lock.json", &npm_lock("1.3.0")), ("bun.lock", &bun_lock("1.2.0"))]);
    assert!(
        refused(both)
            .contains("package-lock.json:0: it and bun.lock disagree about `left-pad`: 1.3.0 here, 1.2.0 there")
    );
}
