//! Known vulnerabilities: OSV records on disk, compared with what locks hold.

use crate::prelude::*;

const HASH: &str = "--hash=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// A terminal obeys the first, a reader is deceived by the second.
const HOSTILE: &str = "leaks \u{1b}[31mheaders\u{202e}\r\n\tto a proxy";

fn record(id: &str, ecosystem: &str, name: &str, events: Value) -> Value {
    json!({
        "schema_version": "1.6.0", "id": id, "modified": "2026-01-01T00:00:00Z", "aliases": ["CVE-2026-1"],
        "summary": HOSTILE, "details": "long",
        "affected": [{
            "package": { "ecosystem": ecosystem, "name": name, "purl": "pkg:x/y" },
            "ranges": [{ "type": if ecosystem == "npm" { "SEMVER" } else { "ECOSYSTEM" }, "events": events }],
            "database_specific": {},
        }],
    })
}

/// A host whose policy names `osv`, with tools that hold what is known, the version after it, and
/// something else.
fn known(more: &str) -> Host {
    let host = host();
    for (name, lock) in [
        ("old", "Re_Quests==2.19.0"),
        ("new", "re-quests==2.20.0"),
        ("other", "six==2.19.0"),
    ] {
        host.tool(&format!("t:{name}"), json!({}));
        let file = format!("user_scripts/{name}/requirements.txt");
        host.put(&file, format!("{lock} {HASH}\n"));
    }
    allow(&host, more);
    let events = json!([{ "introduced": "0" }, { "fixed": "2.20.0" }]);
    let record = record("GHSA-aaaa", "PyPI", "re.quests", events);
    host.put(
        "sandbox-policies/osv/PyPI/GHSA-aaaa.json",
        format!("{record:#}"),
    );
    host
}

fn allow(host: &Host, more: &str) {
    host.policy(&format!(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"t:*\"]\n[packages]\nadvisories = \"osv\"\n{more}\n\
         python = {{ index = \"default\", why = \"w\" }}\nnode = {{ index = \"default\", why = \"w\" }}\n"
    ));
}

fn messages(host: &Host, file: &str) -> Vec<String> {
    let problems = host.problems()(file);
    let message = |problem: &Value| format!("{}: {}", problem["severity"], problem["message"]);
    problems.iter().map(message).collect()
}

fn is_available(host: &Host, id: &str) -> bool {
    let all = host.json(&["list"]);
    let found = all
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["toolId"] == id);
    found.unwrap_or_else(|| panic!("{id}: {all}"))["available"] == true
}

/// Text for a terminal, whatever an advisory or a file name says.
fn plain(text: &str) {
    let hidden = text
        .chars()
        .find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
    assert_eq!(hidden, None, "{text:?}");
}

const SENTENCE: &str = "2.19.0 is vulnerable (GHSA-aaaa, CVE-2026-1), fixed in 2.20.0: leaks";

#[test]
fn a_locked_version_that_is_known_to_be_vulnerable_is_a_warning() {
    let host = known("");
    let found = messages(&host, "old.tool.json");
    assert!(
        found.len() == 1 && found[0].starts_with("\"warning\""),
        "{found:?}"
    );
    assert!(found[0].contains(SENTENCE), "{found:?}");
    for control in ["new.tool.json", "other.tool.json"] {
        assert_eq!(messages(&host, control), Vec::<String>::new(), "{control}");
    }
    assert!(is_available(&host, "t:old"), "a warning refuses nothing");
    for arguments in [
        &["check"][..],
        &["audit", "t:old", "--all"],
        &["deps", "audit"],
    ] {
        let (_, out, err) = host.run(arguments);
        plain(&format!("{out}{err}"));
        assert!(out.contains(SENTENCE), "{arguments:?}: {out}{err}");
    }
    let (code, out, err) = host.run(&["deps", "audit", "--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    plain(&out);
    assert_eq!((code, &found["unread"]), (1, &json!([])), "{out}{err}");
    let [hit] = &found["hits"].as_array().unwrap()[..] else {
        panic!("{found}")
    };
    let known = json!({
        "package": "re-quests", "version": "2.19.0", "id": "GHSA-aaaa", "aliases": ["CVE-2026-1"],
        "summary": HOSTILE, "fixed": "2.20.0",
    });
    assert_eq!(hit["known"], known, "{hit}");
    assert!(hit["tool"].as_str().unwrap().starts_with("t:old@"), "{hit}");
    // One tool alone, and one that holds nothing known.
    assert_eq!(host.run(&["deps", "audit", "t:old"]).0, 1);
    let (code, out, err) = host.run(&["deps", "audit", "t:new"]);
    assert_eq!((code, &*out), (0, "0 known vulnerabilities\n"), "{err}");
}

#[test]
fn a_policy_that_says_so_refuses_the_vulnerable_tool_alone() {
    let host = known("advisories_refuse = true");
    let (code, out, err) = host.run(&["call", "t:old", "--input", "{}"]);
    let said = format!("{out}{err}");
    plain(&said);
    assert!(
        code != 0 && said.contains("DependencyError") && said.contains(SENTENCE),
        "{said}"
    );
    assert!(!is_available(&host, "t:old"));
    for control in ["t:new", "t:other"] {
        assert!(is_available(&host, control), "{control}");
    }
    let (code, out, _) = host.run(&["deps", "audit"]);
    assert!(
        code == 1 && out.contains(SENTENCE),
        "a refused lock is compared, too: {out}"
    );
    // The policy only warns, and the host's cap refuses.
    allow(&host, "");
    assert!(is_available(&host, "t:old"), "the control");
    let cap = "name = \"cap\"\nwhy = \"w\"\n[packages]\npython = { index = \"default\", why = \"w\" }\n\
               advisories = \"osv\"\nadvisories_refuse = true\n";
    let cap = host.put("sandbox-policies/host.policy.toml", cap);
    assert!(!is_available(&host, "t:old") && is_available(&host, "t:new"));
    fs::remove_file(cap).unwrap();
    allow(&host, "advisories_refuse = true");
    assert!(!is_available(&host, "t:old"));
    // Withdrawn: it does not count any more.
    let events = json!([{ "introduced": "0" }]);
    let mut withdrawn = record("GHSA-aaaa", "PyPI", "re.quests", events);
    withdrawn["withdrawn"] = json!("2026-02-01T00:00:00Z");
    let other = record_of_another();
    host.put(
        "sandbox-policies/osv/PyPI/GHSA-aaaa.json",
        withdrawn.to_string(),
    );
    host.put(
        "sandbox-policies/osv/PyPI/GHSA-bbbb.json",
        other.to_string(),
    );
    assert!(is_available(&host, "t:old"));
    assert_eq!(host.run(&["deps", "audit"]).0, 0);
    // Without the line before it, the policy has a fault.
    host.policy(
        "name = \"x\"\nwhy = \"w\"\ntools = [\"t:*\"]\n[packages]\nadvisories_refuse = true\n",
    );
    assert_eq!(host.run(&["check"]).0, 2);
}

#[test]
fn what_cannot_be_read_is_named_and_counted_and_refuses_where_hits_do() {
    let events = json!([{ "introduced": "0" }]);
    let good = record("GHSA-good", "PyPI", "elsewhere", events).to_string();
    // (file below the export, its text, its mode, what is said of it)
    let cases: [(&str, &str, u32, &str); 7] = [
        ("bad.json", "{\"id\": 1}", 0o644, "invalid type"),
        ("cut.json", "{\"id\": \"x\", \"affected\": [", 0o644, "EOF"),
        (
            "other.json",
            "{\"id\": \"x\", \"affected\": [{\"ranges\": [{\"type\": \"SEMVER\", \"events\": [{\"new\": \"1\"}]}]}]}",
            0o644,
            "unknown variant",
        ),
        (
            "lines.jsonl",
            &format!("{good}\n\n{{]\n{good}\n"),
            0o644,
            "lines.jsonl:3: ",
        ),
        ("all.zip", "PK\u{3}\u{4}", 0o644, "all.zip: "),
        ("shared.json", &good, 0o666, "can be written by others"),
        ("h\u{1b}[31m.json", "x", 0o644, "h\\u{1b}[31m.json"),
    ];
    for (file, text, mode, words) in cases {
        let host = known("");
        let place = host.put(&format!("sandbox-policies/osv/{file}"), text);
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        host.put(
            "user_scripts/old/requirements.txt",
            format!("six==1.0.0 {HASH}\n"),
        );
        let (code, out, err) = host.run(&["deps", "audit"]);
        assert!(
            code == 2 && err.contains("1 of the advisories in"),
            "{file}: {out}{err}"
        );
        assert!(err.contains(words), "{file}: {err}");
        plain(&format!("{out}{err}"));
        let warned = messages(&host, "new.tool.json").concat();
        assert!(warned.contains("cannot be read"), "{file}: {warned}");
        assert!(is_available(&host, "t:new"), "{file}: a warning");
        allow(&host, "advisories_refuse = true");
        let (code, out, err) = host.run(&["call", "t:new", "--input", "{}"]);
        let said = format!("{out}{err}");
        assert!(
            code != 0 && said.contains("cannot be looked up"),
            "{file}: {said}"
        );
        fs::remove_file(place).unwrap();
        assert!(is_available(&host, "t:new"), "{file}: the control");
    }
}

#[test]
fn an_export_is_a_folder_or_a_file_that_a_person_or_a_policy_names() {
    let host = known("");
    let hit = |version: &str| {
        let events = json!([{ "introduced": "2.0.0" }, { "last_affected": version }]);
        record("GHSA-cccc", "PyPI", "re-quests", events).to_string()
    };
    let audit = |path: &str| host.run(&["deps", "audit", "--advisories", path]);
    let one = host.put("one.json", hit("2.19.0"));
    let (code, out, err) = audit(&one);
    assert!(
        code == 1 && out.contains("(GHSA-cccc, CVE-2026-1), no fix is named"),
        "{out}{err}"
    );
    assert!(
        !out.contains("GHSA-aaaa") && !out.contains("t:new"),
        "the control: {out}"
    );
    let lines = host.put(
        "lines.jsonl",
        format!("{}\n{}\n", hit("2.18.9"), hit("2.20.0")),
    );
    let (code, out, err) = audit(&lines);
    assert!(
        code == 1 && out.contains("2 known vulnerabilities"),
        "{out}{err}"
    );
    symlink(&one, host.path("link.json")).unwrap();
    host.put("empty/note.json", "");
    fs::create_dir(host.path("nothing")).unwrap();
    for (path, words) in [
        ("link.json", "symbolic link"),
        ("absent", "absent"),
        ("empty", "note.json: EOF"),
        ("nothing", "it holds no records of PyPI or npm"),
    ] {
        let (code, out, err) = audit(host.path(path).to_str().unwrap());
        assert!(code == 2 && err.contains(words), "{path}: {out}{err}");
    }
    // Without a policy that names one, nothing is compared, and that is said.
    host.policy("name = \"x\"\nwhy = \"w\"\ntools = [\"t:*\"]\n[packages]\npython = { index = \"default\", why = \"w\" }\n");
    let (code, out, _) = host.run(&["deps", "audit"]);
    assert!(
        code == 2 && out.contains("not compared: no policy names advisories"),
        "{out}"
    );
}

#[test]
fn no_tool_writes_advisories_that_a_policy_names() {
    let host = known("");
    let folders = ["sandbox-policies/osv/PyPI", "out"].map(|name| host.path(name));
    fs::create_dir_all(&folders[1]).unwrap();
    for (name, folder) in ["known", "else"].into_iter().zip(&folders) {
        let pattern = format!("{}/**", folder.display());
        let writes = json!({"fileAccess": {"allowWrite": [pattern]}});
        host.tool(&format!("w:{name}"), json!({"securityContext": writes}));
        host.put(
            &format!("sandbox-policies/{name}.policy.toml"),
            format!(
                "name = \"{name}\"\nwhy = \"w\"\ntools = [\"w:{name}\"]\n[files]\n\
                 write = [{{ path = \"{pattern}\", why = \"w\" }}]\n"
            ),
        );
    }
    assert!(!is_available(&host, "w:known"));
    assert!(is_available(&host, "w:else"), "the control");
}

#[test]
fn a_server_reads_them_again_once_it_is_told_to() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, lock) in [("old", "sixer==1.0.0"), ("new", "sixer==1.1.0")] {
        let folder = playground.tool(name, "python", "print(1)\n", json!({}));
        fs::write(folder.join("requirements.txt"), format!("{lock} {HASH}\n")).unwrap();
    }
    let rules = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[packages]\n\
                 python = { index = \"default\", why = \"w\" }\nadvisories = \"osv\"\n\
                 advisories_refuse = true\n";
    playground.policy("all", "esc:*", rules);
    let export = playground.path("sandbox-policies/osv");
    fs::create_dir(&export).unwrap();
    let put = |withdrawn: &str| {
        let events = json!([{ "introduced": "0" }, { "fixed": "1.1.0" }]);
        let mut record = record("GHSA-aaaa", "PyPI", "sixer", events);
        record["withdrawn"] = serde_json::from_str(withdrawn).unwrap();
        let other = record_of_another();
        for (name, record) in [("a.json", &record), ("b.json", &other)] {
            fs::write(export.join(name), record.to_string()).unwrap();
        }
        playground.settle();
    };
    put("null");
    let mut server = Server::start(&playground);
    let names = |server: &mut Server| server.names().join(" ");
    let before = names(&mut server);
    assert!(
        before.contains("new") && !before.contains("old"),
        "{before}"
    );
    put("\"2026-02-01T00:00:00Z\"");
    server.reload("the withdrawn record", |server| {
        names(server).contains("old")
    });
}

fn record_of_another() -> Value {
    record(
        "GHSA-bbbb",
        "PyPI",
        "elsewhere",
        json!([{ "introduced": "0" }]),
    )
}

#[test]
fn packages_of_node_are_compared_as_well() {
    let host = known("");
    for (name, version) in [("node", "1.2.0-rc.1"), ("fixed", "1.2.0")] {
        host.tool(&format!("t:{name}"), json!({}));
        let script = json!({"type": "external-script", "language": "nodejs", "scriptPath": format!("{name}/main.js")});
        let manifest = host.path(&format!("user_scripts/{name}/{name}.tool.json"));
        let mut value: Value =
            serde_json::from_str(&fs::read_to_string(&manifest).unwrap()).unwrap();
        value["handler"] = script;
        fs::write(manifest, value.to_string()).unwrap();
        host.put(&format!("user_scripts/{name}/main.js"), "console.log(1)\n");
        host.put(
            &format!("user_scripts/{name}/package.json"),
            json!({"dependencies": {"@s/flat": version}}).to_string(),
        );
        let lock = json!({
            "name": name, "lockfileVersion": 3, "packages": {
                "": {"dependencies": {"@s/flat": version}},
                "node_modules/@s/flat": {
                    "version": version, "resolved": "https://registry.npmjs.org/@s/flat/-/flat.tgz",
                    "integrity": format!("sha512-{}==", "A".repeat(86)),
                },
            },
        });
        host.put(
            &format!("user_scripts/{name}/package-lock.json"),
            lock.to_string(),
        );
    }
    let events = json!([{ "introduced": "0" }, { "fixed": "1.2.0" }]);
    let npm = record("GHSA-dddd", "npm", "@s/flat", events);
    host.put("sandbox-policies/osv/npm.json", npm.to_string());
    let found = messages(&host, "node.tool.json").concat();
    let sentence = "@s/flat 1.2.0-rc.1 is vulnerable (GHSA-dddd, CVE-2026-1), fixed in 1.2.0";
    assert!(found.contains(sentence), "{found}");
    let found = messages(&host, "fixed.tool.json").concat();
    assert!(!found.contains("vulnerable"), "the control: {found}");
}
