//! P2, P3, P29: a grant that is said to be effective works, and one that cannot says the true reason.

use super::files;
use crate::prelude::*;

/// The home that the environment names, also where it leads through a link; the account's, which may be another; and,
/// where the host is root, everybody's.
#[test]
fn no_tool_writes_the_settings_of_a_home() {
    as_everyone("homes", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let (real, link) = (playground.path("people/u"), playground.path("link"));
        fs::create_dir_all(real.join(".config/app")).unwrap();
        fs::create_dir_all(real.join("results")).unwrap();
        symlink(&real, &link).unwrap();
        let mut homes = vec![real.join(".config/app"), real.join(".config"), real.clone(), playground.path("people")];
        if who == Who::Root {
            homes.extend(["/root/.config".into(), "/root/.ssh".into(), "/root".into()]);
            let more = fs::read_dir("/home").into_iter().flatten().flatten();
            homes.extend(more.flat_map(|home| [home.path(), home.path().join(".config")]));
        }
        const WRITES: &str = "import json, sys\nopen(json.load(sys.stdin)['path'], 'w').write('x')\nprint(1)\n";
        let attempt = |folder: &Path, wanted: &str| {
            let pattern = format!("{}/**", folder.display());
            playground.tool("home", "python", WRITES, files(&["self"], &[&pattern]));
            playground.allow("home", "esc:home", &[], &[&pattern]);
            playground.settle();
            let mut command = playground.host();
            command.env("HOME", &link).args(["call", "esc:home", "--json", "--input", "-"]);
            let ended = finish(command, json!({"path": folder.join("planted")}).to_string().as_bytes());
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{who:?}: {}: {why}", folder.display()));
        };
        for folder in homes {
            attempt(&folder, "SecurityError: whose names start with a dot");
            assert!(!folder.join("planted").exists(), "{}", folder.display());
        }
        attempt(&real.join("results"), "ok 1");
        assert!(real.join("results/planted").is_file(), "the control");
    });
}
