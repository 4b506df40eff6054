//! Policy files: what is wrong, where, and the mend; what is refused on disk.

use crate::prelude::*;
use toolhost::manifest::{Code, Problem, Severity};
use toolhost::policy::{self, FileProblem, Policies};
use toolhost::schemas;

const HEAD: &str = "name = \"p\"\nwhy = \"w\"\ntools = [\"a:b\"]\n";

/// Line (`ok`: it is read), place, and the text after the head, in which ` ; ` ends a line and `{}`
/// is each of the values that follow.
const POLICIES: &str = include_str!("policies.txt");

fn parse(text: &str, host: bool) -> Result<policy::Policy, Vec<Problem>> {
    policy::parse(text, Path::new("x"), host, Path::new("/r"))
}

/// The published schema says the same; `inf` and numbers beyond 64 bits are no JSON.
#[test]
fn bad_policies_are_refused_at_their_place_and_by_the_published_schema_and_plain_ones_are_read() {
    let schema = jsonschema::validator_for(&schemas::POLICY.json).expect("the schema is a schema");
    let mut not_json = 0;
    for row in POLICIES.lines() {
        let columns: Vec<&str> = row.split('|').collect();
        for value in columns.get(3).unwrap_or(&"").split(',') {
            let [line, pointer, text] = [0, 1, 2].map(|at| columns[at].replace("{}", value));
            let whole = format!("{HEAD}{}\n", text.replace(" ; ", "\n"));
            match toml::from_str::<toml::Value>(&whole)
                .map(|value| serde_json::to_value(value).unwrap())
            {
                Ok(value) => assert_eq!(schema.is_valid(&value), line == "ok", "{text}"),
                Err(_) => not_json += 1,
            }
            let read = parse(&whole, false);
            if line == "ok" {
                assert!(read.is_ok(), "{text}: {read:?}");
                continue;
            }
            let problems = read.expect_err(&whole);
            let problem = &problems[0];
            assert_eq!(
                (problem.line.to_string(), &problem.pointer),
                (line, &pointer),
                "{text}: {problems:?}"
            );
            assert_eq!(
                (problem.code, problem.severity),
                (Code::Schema, Severity::Error),
                "{text}"
            );
            assert!(problem.column > 0 && !problem.message.is_empty(), "{text}");
        }
    }
    assert!(not_json <= 3, "{not_json}");
}

/// Line, place and a word of what is wrong, and the whole text, of a policy or of a cap.
#[test]
fn bad_heads_are_refused_and_a_cap_is_for_all_tools() {
    for row in include_str!("heads.txt").lines() {
        let [kind, line, pointer, word, text] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let problems = parse(&text.replace(" ; ", "\n"), kind == "cap").expect_err(row);
        let found = problems
            .iter()
            .find(|p| p.pointer == pointer && p.message.contains(word));
        assert_eq!(
            found.map(|p| p.line.to_string()).as_deref(),
            Some(line),
            "{row}: {problems:?}"
        );
    }
    assert!(parse("name = \"h\"\nwhy = \"w\"\n", true).is_ok());
}

#[test]
fn what_schema_prints_is_what_is_read() {
    let schema = &*schemas::POLICY.json;
    let compiled = jsonschema::validator_for(schema).expect("the schema is a schema");
    let mut text = policy::DEFAULT_POLICY.to_owned();
    text.push_str("write = []\n[limits]\n");
    for limit in toolhost::quantity::Limit::ALL {
        let published = &schema["properties"]["limits"]["properties"][limit.policy_name()];
        assert_eq!(published["default"], limit.built_in_default());
        text.push_str(&format!(
            "{} = {}\n",
            limit.policy_name(),
            published["default"]
        ));
    }
    let read = parse(&text, false).unwrap_or_else(|p| panic!("{p:?}\n{text}"));
    assert!(
        !read.is_wider_than_default(),
        "every default, written out, gives what the default gives"
    );
    let value = serde_json::to_value(toml::from_str::<toml::Value>(&text).unwrap()).unwrap();
    assert!(
        compiled.is_valid(&value),
        "{:?}",
        compiled
            .iter_errors(&value)
            .map(|e| e.to_string())
            .collect::<Vec<_>>()
    );
    let default = policy::Policy::built_in();
    assert_eq!(
        (
            default.files.read.len(),
            default.files.read[0].text.as_str()
        ),
        (1, "./**")
    );
    assert_eq!((default.files.write.len(), default.limits.len()), (0, 0));
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn put(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
    mode(&folder.join(name), 0o644);
}

/// A folder with these policies: file, name, tools.
fn holding(policies: &[(&str, &str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    mode(folder.path(), 0o755);
    policies
        .iter()
        .for_each(|(file, name, tools)| put(folder.path(), file, &named(name, tools)));
    folder
}

fn named(name: &str, tools: &str) -> String {
    format!("name = \"{name}\"\nwhy = \"w\"\ntools = [{tools}]\n")
}

fn faults(path: &Path) -> Vec<FileProblem> {
    Policies::load(path, path).expect_err("should refuse to start")
}

#[test]
fn a_folder_loads_in_order_with_the_default_and_the_cap_and_ignores_other_files() {
    let folder = holding(&[("b.policy.toml", "b", "\"x:*\"")]);
    let root = folder.path().canonicalize().unwrap();
    put(
        &root,
        "a.policy.toml",
        &(named("a", "\"x:y\"") + "folders = [\"tool-defs/x/\"]\n"),
    );
    put(&root, "README.md", "hello");
    put(&root, "c.toml", "not even toml");
    let names = |policies: &Policies| {
        policies
            .all()
            .map(|policy| policy.name.clone())
            .collect::<Vec<_>>()
    };
    let policies = Policies::load(&root, &root).unwrap();
    assert_eq!(names(&policies), ["a", "b", "built-in default"]);
    let notes: Vec<_> = policies
        .notes()
        .iter()
        .map(|n| n.path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(notes, ["README.md", "c.toml"]);
    let [inside, beside] =
        ["tool-defs/x/y.tool.json", "tool-defs/xx/y.tool.json"].map(|name| root.join(name));
    for (tool, manifest, policy) in [
        ("x:y", &inside, "a"),
        ("x:y", &beside, "b"),
        ("x:z", &inside, "b"),
        ("z:z", &inside, "built-in default"),
    ] {
        assert_eq!(
            policies.governing(tool, manifest).0.name,
            policy,
            "{tool} {manifest:?}"
        );
        assert_eq!(
            policies.names_exactly(tool, manifest),
            policy == "a",
            "{tool} {manifest:?}"
        );
    }
    let one = Policies::load(&root.join("a.policy.toml"), &root).unwrap();
    assert_eq!(one.all().count(), 2, "one file alone");
    put(&root, "default.policy.toml", &named("mine", "\"*\""));
    put(&root, "host.policy.toml", "name = \"cap\"\nwhy = \"w\"\n");
    let policies = Policies::load(&root, &root).unwrap();
    assert_eq!(names(&policies), ["a", "b", "mine", "cap"]);
    let reads: Vec<usize> = policies
        .all()
        .map(|policy| policy.files.read.len())
        .collect();
    assert_eq!(reads, [1; 4], "the own folder, where none says otherwise");
}

#[test]
fn two_policies_of_one_width_or_name_refuse_to_start_naming_both() {
    for (other, first, second, line) in [
        ("b", "\"x:y\"", "\"q:q\", \"x:y\"", 3),
        ("b", "\"x:*\"", "\"x:*\"", 3),
        ("b", "\"*\"", "\"*\"", 3),
        ("a", "\"x:y\"", "\"x:z\"", 1),
    ] {
        let found = faults(
            holding(&[
                ("a.policy.toml", "a", first),
                ("b.policy.toml", other, second),
            ])
            .path(),
        );
        assert_eq!(
            (found.len(), found[0].problem.code, found[0].problem.line),
            (1, Code::Conflict, line),
            "{found:?}"
        );
        assert!(
            found[0].path.ends_with("b.policy.toml")
                && found[0].problem.message.contains("a.policy.toml")
        );
    }
}

#[test]
fn what_others_can_write_is_refused_with_the_command() {
    for (name, bits) in [
        ("a.policy.toml", 0o664),
        ("a.policy.toml", 0o646),
        ("a.policy.toml", 0o666),
        ("", 0o777),
    ] {
        let folder = holding(&[("a.policy.toml", "a", "\"x:y\"")]);
        let path = folder.path().join(name);
        // A group of others: only root can give a file to one.
        if bits == 0o664 && std::os::unix::fs::chown(&path, None, Some(54321)).is_err() {
            continue;
        }
        mode(&path, bits);
        let found = &faults(folder.path())[0];
        assert!(
            found.problem.code == Code::Security && found.problem.message.contains("chmod go-w"),
            "{found}"
        );
    }
}

#[test]
fn a_private_group_may_write_policies() {
    let folder = holding(&[("a.policy.toml", "a", "\"x:y\"")]);
    let id = nix::unistd::geteuid().as_raw();
    for (name, bits) in [("a.policy.toml", 0o664), ("", 0o775)] {
        let path = folder.path().join(name);
        // Its number is that of its one member.
        if std::os::unix::fs::chown(&path, None, Some(id)).is_ok() {
            mode(&path, bits);
        }
    }
    Policies::load(folder.path(), folder.path()).expect("nobody else may write them");
}

#[test]
fn links_fifos_folders_giants_and_other_bytes_are_refused_without_waiting() {
    let folder = holding(&[("real.txt", "a", "\"x:y\"")]);
    let inside = |name: &str| folder.path().join(name);
    symlink(inside("real.txt"), inside("link.policy.toml")).unwrap();
    symlink(inside("loop.policy.toml"), inside("loop.policy.toml")).unwrap();
    nix::unistd::mkfifo(
        &inside("fifo.policy.toml"),
        nix::sys::stat::Mode::from_bits_truncate(0o600),
    )
    .unwrap();
    fs::create_dir(inside("dir.policy.toml")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(inside("sock.policy.toml")).unwrap();
    put(
        folder.path(),
        "big.policy.toml",
        &" ".repeat(1024 * 1024 + 1),
    );
    fs::write(inside("bytes.policy.toml"), b"name = \"\xff\"\n").unwrap();
    let found = faults(folder.path());
    let names = found.iter().map(|p| {
        p.path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_end_matches(".policy.toml")
    });
    let names: BTreeSet<&str> = names.collect();
    assert_eq!(
        names,
        ["big", "bytes", "dir", "fifo", "link", "loop", "sock"].into(),
        "{found:?}"
    );
    let link = tempfile::tempdir().unwrap();
    symlink(folder.path(), link.path().join("policies")).unwrap();
    assert_eq!(
        faults(&link.path().join("policies"))[0].problem.code,
        Code::Security
    );
    assert_eq!(faults(&inside("absent"))[0].problem.code, Code::Unreadable);
}

#[test]
fn deep_long_and_crowded_files_answer_quickly() {
    let began = processor_time();
    for text in [
        "[".repeat(1_000_000),
        format!("a = {}", "[".repeat(1_000_000)),
        format!("a{}", ".a".repeat(500_000)),
        (0..60_000).map(|i| format!("k{i} = 1\n")).collect(),
        format!("{HEAD}folders = [{}]", "\"a\", ".repeat(200_000)),
    ] {
        assert!(parse(&text, false).map_or_else(|problems| problems.len(), |_| 0) <= 100);
    }
    let took = processor_time() - began;
    assert!(took.as_secs() < 20, "{took:?}");
}
