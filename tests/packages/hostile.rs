//! Packages and indexes that mean harm. Each has its control: the same code where nothing holds it.

use super::IndexedHost;
use crate::prelude::*;

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn code_that_starts_early_runs_inside_the_call_alone_and_a_build_step_sees_nothing() {
    as_everyone("packages that start early", |who| {
        let shop = IndexedHost::new(who);
        let script = "import json, os\nprint(json.dumps([os.environ.get('STARTED'), \
            os.environ.get('CUSTOMISED')]))\n";
        shop.python("early", &["starts==1.0"], script);
        shop.expect("early", "ok [\"nothing\", \"yes\"]");
        assert_eq!(shop.marks(), 0);
        for listed in [
            &["deps", "list"][..],
            &["deps", "list", "esc:early"],
            &["audit", "esc:early", "--all"],
        ] {
            let listed = shop.cli(listed).text();
            assert!(
                listed.contains("starts.pth") && listed.contains("sitecustomize.py"),
                "{listed}"
            );
        }
        // The control: the same package without layers.
        let mut outside = shop.playground.outside("/usr/bin/env");
        let tree = shop.store().join(&shop.trees()[0]);
        outside
            .arg(tree.join("bin/python"))
            .args(["-c", "import os; print(os.environ['STARTED'])"]);
        let outside = finish(outside, b"");
        assert!(
            outside.text().starts_with("write,read,connect"),
            "{} {}",
            outside.text(),
            outside.stderr
        );
        assert_eq!(shop.marks(), 1);
        shop.python(
            "build",
            &["builds==1.0"],
            "import builds, json\nprint(json.dumps(builds.could))\n",
        );
        // No wheel, and no leave to build one.
        shop.expect(
            "build",
            "DependencyError: No matching distribution found for builds",
        );
        // `deps lock` says so too, and locks it where it may be built.
        let script = "import builds, json\nprint(json.dumps(builds.could))\n";
        shop.requiring("sourced", "builds\n", script);
        let refused = shop.deps(&["lock", "esc:sourced"]).stderr;
        assert!(
            refused.contains("only a source archive; allow `builds`"),
            "{refused}"
        );
        shop.policy("default", "required", true, "");
        shop.expect("build", "ok []");
        shop.deps_good(&["lock", "esc:sourced"]);
        shop.expect("sourced", "ok []");
        let script = "const files = require('hooks');\nconst fs = require('fs');\nconst could = \
                      '/node_modules/hooks/could.json';\nconsole.log(fs.existsSync(could) ? \
                      fs.readFileSync(could, 'utf8') : '\"did not run\"')\n";
        shop.node("hooked", "nodejs", &["hooks@1.0.0"], script);
        shop.expect("hooked", "ok []");
        shop.policy("default", "required", false, "");
        shop.expect("hooked", "ok \"did not run\"");
        assert_eq!(shop.marks(), 1);
        // The control: the same hook without layers.
        let mut hooks = shop
            .trees()
            .into_iter()
            .map(|tree| shop.store().join(tree).join("node_modules/hooks/hook.js"));
        let work = shop.playground.path("home");
        let mut outside = shop.playground.outside("/usr/bin/node");
        outside
            .arg(hooks.find(|hook| hook.is_file()).unwrap())
            .current_dir(&work);
        assert_eq!(finish(outside, b"").code, Some(0));
        assert_eq!(
            fs::read_to_string(work.join("could.json")).unwrap(),
            "[\"write\",\"read\",\"connect\"]"
        );
    });
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn a_package_reaches_no_place_outside_its_tree() {
    let shop = IndexedHost::new(Who::ours());
    let script = |module: &str| {
        format!(
            "import {module}, os, json\nprint(json.dumps(os.path.islink({module}.__path__[0] + \
            '/out')))\n"
        )
    };
    for (package, wanted) in [
        (
            "climbs",
            "DependencyError: trying to install outside the target directory",
        ),
        (
            "absolute",
            "DependencyError: trying to install outside the target directory",
        ),
        // pip writes the text of a link as a file.
        ("links", "ok false"),
        ("folds", "DependencyError: two names differ in case alone"),
        (
            "controls",
            "DependencyError: is a name with characters that no package needs",
        ),
    ] {
        shop.python(package, &[&format!("{package}==1.0")], &script(package));
        shop.expect(package, wanted);
    }
    // npm leaves out what climbs, and links, and puts what is absolute below the package.
    let linked =
        "console.log(JSON.stringify(require('fs').existsSync('/node_modules/climber/out')))";
    shop.node("climber", "nodejs", &["climber@1.0.0"], linked);
    shop.expect("climber", "ok false");
    shop.node("folded", "nodejs", &["folded@1.0.0"], "");
    shop.expect("folded", "DependencyError: two names differ in case alone");
    assert_eq!(shop.marks(), 0);
    // The control: the same archives in the hands of who believes their names.
    for (file, out) in [
        ("climbs-1.0-py3-none-any.whl", "climbed.txt"),
        ("absolute-1.0-py3-none-any.whl", "absolute.txt"),
        ("links-1.0-py3-none-any.whl", "links/out ->"),
        ("folds-1.0-py3-none-any.whl", "folds/ONE.py folds/one.py"),
        ("climber-1.0.0.tgz", "absolute.js climbed.js out ->"),
        ("folded-1.0.0.tgz", "ONE.js one.js"),
    ] {
        let mut outside = shop.playground.outside("/usr/bin/python3");
        outside.args([
            "-c",
            include_str!("careless.py"),
            &shop.url(&format!("files/{file}")),
        ]);
        outside.arg(shop.playground.path("home/careless"));
        let done = finish(outside, b"");
        assert_eq!(done.text().trim(), out, "{file}: {}", done.stderr);
    }
    assert_eq!(shop.marks(), 2);
    assert!(
        !shop.store().join("climbed.txt").exists()
            && !shop.playground.path("state/climbed.txt").exists()
    );
    assert_eq!(
        shop.trees().len(),
        2,
        "nothing is left of what was refused: {:?}",
        shop.trees()
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a package index"]
fn what_a_build_leaves_beside_its_package_is_refused() {
    let shop = IndexedHost::new(Who::ours());
    shop.policy("default", "required", true, "");
    for (package, wanted) in [
        ("pipes", "Operation not permitted|Permission denied"),
        ("linked", "Operation not permitted|Permission denied"),
        ("symbolic", "Permission denied"),
        (
            "setid",
            "Operation not permitted|Permission denied|has a set-id mode",
        ),
        ("deep", "lies deeper than 64 folders"),
    ] {
        shop.python(package, &[&format!("{package}==1.0")], "print(1)\n");
        let ended = shop.expect(package, "DependencyError");
        assert!(
            wanted
                .split('|')
                .any(|part| fits(&format!("DependencyError: {part}"), &ended).is_ok()),
            "{ended:?}"
        );
        assert_eq!(
            shop.trees(),
            Vec::<String>::new(),
            "{package} left something"
        );
    }
    // The control: a build that leaves nothing else.
    shop.python("builds", &["builds==1.0"], "print(1)\n");
    shop.expect("builds", "ok 1");
}
