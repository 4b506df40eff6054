//! A secret of each caller: `from = "file:secrets/{caller}.key"`.

use super::{entry, labelled, put};
use crate::prelude::*;
use nix::sys::stat::Mode;
use nix::unistd::{chown, mkfifo};

const TELLS: &str = "import json, os\nprint(json.dumps({'key': os.environ['KEY'][::-1]}))\n";
const SECRET: &str =
    "[secrets]\ngrant = [{ name = \"KEY\", from = \"file:secrets/{caller}.key\", why = \"w\" }]\n";
const FILES: &str = "[files]\nread = [{ path = \"./**\", why = \"w\" }";

const KEYS: [(&str, &str); 4] = [
    ("alice", "alices-own-key"),
    ("bob", "bobs-own-key"),
    ("jwt:x@y", "a-subjects-key"),
    ("", "nobodys-key"),
];

fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.tool(
        "tells",
        "python",
        TELLS,
        json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}}),
    );
    playground.policy("tells", "esc:tells", &format!("{FILES}]\n{SECRET}"));
    put(
        &playground,
        &(entry("ME", "\"*\"", "act_as = [\"*\"]\n") + &entry("*", "\"*\"", "")),
    );
    let folder = playground.path("sandbox-policies/secrets");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        playground.path("sandbox-policies/outside.key"),
        "what-lies-outside",
    )
    .unwrap();
    symlink("alice.key", folder.join("link.key")).unwrap();
    fs::create_dir(folder.join("sub")).unwrap();
    mkfifo(&folder.join("pipe.key"), Mode::S_IRWXU).unwrap();
    settle(&playground);
    playground
}

fn key(playground: &Playground, name: &str, value: &str, mode: u32) {
    let path = playground.path(&format!("sandbox-policies/secrets/{name}.key"));
    fs::write(&path, value).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    chown(
        &path,
        playground.who.uid().map(nix::unistd::Uid::from_raw),
        None,
    )
    .unwrap();
}

/// As `Playground::settle`, with keys that nobody else reads.
fn settle(playground: &Playground) {
    playground.settle();
    KEYS.iter()
        .for_each(|(name, value)| key(playground, name, value, 0o600));
    key(playground, "open", "an-open-key", 0o644);
}

fn of(playground: &Playground, caller: &str) -> Ended {
    playground.call_with("esc:tells", "{}", &["--user", caller])
}

#[test]
fn each_caller_has_the_secret_of_its_own_file() {
    as_everyone("secrets of callers", |who| {
        let playground = playground(who);
        for (caller, backwards) in [
            ("alice", "yek-nwo-secila"),
            ("bob", "yek-nwo-sbob"),
            ("jwt:x@y", "yek-stcejbus-a"),
        ] {
            let ended = of(&playground, caller);
            assert_eq!(
                ended.out["outputData"]["key"], backwards,
                "{caller}: {ended:?}"
            );
        }
        // The callers of one server do not meet.
        let mut server = Server::start(&playground);
        for round in 0..6 {
            let (user, value) = [
                ("alice", "yek-nwo-secila"),
                ("bob", "yek-nwo-sbob"),
                ("carol", ""),
            ][round % 3];
            let text = words(&labelled(&mut server, user, "esc:tells", json!({})));
            match value {
                "" => assert!(
                    text.contains("cannot be read for you") && !text.contains("/var/tmp"),
                    "{text}"
                ),
                value => assert!(text.contains(value), "{user}: {text}"),
            }
        }
        // A name that is no name of a file, or leads elsewhere, has none; nor has one whose file is
        // not its own alone.
        let strange = [
            "../outside",
            "../secrets/alice",
            "sub/../alice",
            "..",
            ".",
            ".hidden",
        ];
        for caller in strange
            .into_iter()
            .chain(["sub", "link", "pipe", "open", "carol"])
        {
            let ended = of(&playground, caller);
            fits(
                "CapabilityError: the secret KEY cannot be read for you on this host, so nothing \
                was run",
                &ended,
            )
            .unwrap_or_else(|why| panic!("{caller}: {why}"));
            let said = ended.out["error"].to_string();
            assert!(
                !said.contains("sandbox-policies") && !said.contains("carol.key"),
                "{said}"
            );
            assert!(
                ended.stderr.contains("secrets/{caller}.key"),
                "the operator reads where: {ended:?}"
            );
        }
        assert!(of(&playground, "open").stderr.contains("chmod 600"));
        // Reports show the pattern.
        for (words, shown) in [
            (
                &["audit", "esc:tells"][..],
                "/sandbox-policies/secrets/{caller}.key",
            ),
            (
                &["audit", "--who-can", "secret:KEY"],
                "secrets/{caller}.key",
            ),
        ] {
            let told = playground.cli(words).text();
            assert!(told.contains(shown), "{told}");
        }
        let folder = playground.path("sandbox-policies/secrets");
        for (mode, told) in [(0o755, false), (0o700, false), (0o777, true)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let check = playground.cli(&["check"]).text();
            assert_eq!(
                check.contains("others may write there"),
                told,
                "{mode:o}: {check}"
            );
        }
        assert_eq!(
            of(&playground, "alice").kind(),
            "CapabilityError",
            "nor is it read from there"
        );
    });
}

#[test]
fn no_tool_reads_or_writes_the_folder_of_them() {
    let playground = playground(Who::ours());
    let folder = playground.path("sandbox-policies/secrets");
    let keys = playground.path("keys");
    fs::create_dir_all(&keys).unwrap();
    fs::write(keys.join("alice.key"), "alices-own-key").unwrap();
    let put = |from: &Path, files: &str, access: Value| {
        let asks = json!({"securityContext": {"requiredCapabilities": ["secret:KEY"], "fileAccess": access}});
        playground.tool("other", "python", TELLS, asks);
        let secret = SECRET.replace("file:secrets/", &format!("file:{}/", from.display()));
        playground.policy("other", "esc:other", &format!("{FILES}{files}]\n{secret}"));
        settle(&playground);
        fs::set_permissions(keys.join("alice.key"), fs::Permissions::from_mode(0o600)).unwrap();
        playground.call_with("esc:other", "{}", &["--user", "alice"])
    };
    for (asked, granted) in [("**", "**"), ("*.key", "**"), ("bob.key", "bob.key")] {
        let [asked, granted] = [asked, granted].map(|path| format!("{}/{path}", keys.display()));
        let rule = format!(", {{ path = \"{granted}\", why = \"w\" }}");
        let ended = put(&keys, &rule, json!({"allowRead": [asked, "self"]}));
        fits("SecurityError: the tool could read its file", &ended).unwrap();
    }
    let path = folder.join("new.key").display().to_string();
    let rule = format!("]\nwrite = [{{ path = \"{path}\", why = \"w\" }}");
    let ended = put(&folder, &rule, json!({"allowWrite": [path]}));
    fits(
        "SecurityError: a policy, a manifest, a script or a file of this host",
        &ended,
    )
    .unwrap();
    let ended = put(&keys, "", json!({}));
    assert_eq!(
        ended.out["outputData"]["key"], "yek-nwo-secila",
        "control: {ended:?}"
    );
}
