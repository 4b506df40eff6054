//! Agent Skills: what a skill says allows nothing, only what a person approved of it runs, and only
//! behind the layers. Each attack has a control in which it succeeds.

use crate::files::{FORM, form};
use crate::http::mcp::Client;
use crate::http::{Web, caller, write_callers};
use crate::prelude::*;
use sha2::{Digest, Sha256};

const TEXT: &str = "---\nname: demo\ndescription: \"Shows what a script gets. Use it for tests.\"\n\
    allowed-tools: Bash(*) Read\nmetadata:\n  author: nobody\n---\n\n# Demo\n\nRun scripts/show.py.\n";

/// Says what it was given, and tries what it must not do.
const SHOW: &str = r#"import json, os, socket, sys
import helper
def tried(what):
    try:
        what()
        return "done"
    except OSError as e:
        return type(e).__name__
def write(name):
    with open(name, "a") as file:
        file.write(" ")
here = os.path.dirname(os.path.abspath(__file__))
port = int(os.environ.get("PORT", sys.argv[-1]))
said = {"argv": sys.argv[1:], "stdin": sys.stdin.read(), "word": helper.WORD,
        "folder": os.path.realpath(os.getcwd()) == os.path.dirname(here)}
said["beside"] = tried(lambda: write(os.path.join(here, "made.py")))
said["own"] = tried(lambda: write(os.path.abspath("SKILL.md")))
said["net"] = tried(lambda: socket.create_connection(("127.0.0.1", port), 5))
said["secret"] = tried(lambda: open(os.path.join(here, "../../../secret/secret.txt")).read())
said["link"] = tried(lambda: open("link.txt").read())
if len(sys.argv) > 1 and sys.argv[1] == "out":
    os.makedirs("output", exist_ok=True)
    with open("output/result.txt", "w") as file:
        file.write("left")
print(json.dumps(said))
"#;
const SHELL: &str = "#!/bin/sh\nprintf '%s|' \"$@\"; cat\n";

/// A host with the skill `demo`, which nobody has approved.
fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let folder = playground.path("skills/demo");
    fs::create_dir_all(folder.join("scripts")).unwrap();
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    put("SKILL.md", TEXT);
    put("scripts/show.py", SHOW);
    put("scripts/helper.py", "WORD = 'good'\n");
    put("scripts/show.sh", SHELL);
    put("scripts/other.rb", "puts 1\n");
    symlink(
        playground.path("secret/secret.txt"),
        folder.join("link.txt"),
    )
    .unwrap();
    playground.settle();
    playground
}

fn approve(playground: &Playground) {
    let words = ["approve", "skill:demo", "--why", "a test", "--yes"];
    let ended = playground.cli(&words);
    assert_eq!(ended.code, Some(0), "{}{}", ended.text(), ended.stderr);
}

const RUN: &str = "core:run-skill-script";

/// A call of `demo` by the tool for all skills.
fn input(script: &str, args: &[&str]) -> String {
    json!({"skill": "demo", "script": script, "args": args, "stdin": "the input"}).to_string()
}

#[test]
fn only_an_approved_skill_runs_and_only_behind_the_layers() {
    if !has("python", 1) {
        return;
    }
    as_everyone("skills", |who| {
        let playground = playground(who);
        let (port, _) = playground.listeners.ports();
        let words = [
            "; touch x",
            "$(id) `id` a\nb",
            "--flag=\"'",
            "",
            &port.to_string(),
        ];
        let call = input("scripts/show.py", &words);
        let refused = playground.expect(RUN, &call, "SecurityError: not approved");
        assert!(
            refused.stderr.contains("approve skill:demo"),
            "{}",
            refused.stderr
        );
        approve(&playground);

        let before = playground.state(&[]);
        playground.listeners.heard();
        let ran = playground.expect(RUN, &call, "ok");
        let said = &ran.out["outputData"];
        assert_eq!(said["argv"], json!(words));
        assert_eq!(
            (&said["stdin"], &said["word"]),
            (&json!("the input"), &json!("good"))
        );
        assert_eq!(said["folder"], true);
        for attack in ["beside", "own", "net", "secret", "link"] {
            assert_ne!(said[attack], "done", "{attack}: {said}");
        }
        // Seen from outside, too.
        assert_eq!(playground.state(&[]), before);
        assert_eq!(playground.listeners.heard(), 0);
        assert_eq!(ran.out["tool"], "skill:demo", "{}", ran.out);
        let record = playground.records().pop().unwrap().to_string();
        assert!(
            record.contains("\"skill:demo\"") && record.contains("scripts/show.py"),
            "{record}"
        );

        // A shell script gets its words as they are.
        let shell = playground.expect(RUN, &input("./scripts/show.sh", &words), "ok");
        let wanted = words.map(|word| format!("{word}|")).concat() + "the input";
        assert_eq!(shell.out["outputData"], wanted);

        // What it writes to output/ is an artifact, and nothing else is left.
        let out = playground.expect(RUN, &input("scripts/show.py", &["out", "1"]), "ok");
        assert_eq!(out.out["artifacts"][0]["name"], "result.txt", "{}", out.out);
        assert_eq!(out.out["artifacts"][0]["bytes"], 4);
        assert_eq!(playground.state(&[]), before);

        for (script, wanted) in [
            (
                "scripts/other.rb",
                "'scripts/other.rb' is not a script that runs here",
            ),
            ("scripts/gone.py", "no file 'scripts/gone.py'"),
            ("../../secret/secret.txt", "no file"),
            ("link.txt", "no file"),
        ] {
            let wanted = format!("ParameterValidationError: {wanted}");
            playground.expect(RUN, &input(script, &[]), &wanted);
        }
        playground.expect("skill:demo", &call, "ok");
        let unknown = call.replace("demo", "../demo");
        playground.expect(RUN, &unknown, "ToolNotFoundError");
        let words = json!({"skill": "demo", "script": "scripts/show.py", "args": ["a\0b"]});
        playground.expect(RUN, &words.to_string(), "ParameterValidationError");

        // One byte of another file is a change, and the approval names the folder as it was.
        let helper = playground.path("skills/demo/scripts/helper.py");
        fs::write(&helper, "WORD = 'evil'\n").unwrap();
        playground.expect(RUN, &call, "SecurityError: changed since approval");
        fs::write(&helper, "WORD = 'good'\n").unwrap();
        playground.expect(RUN, &call, "ok");
        let added = playground.path("skills/demo/scripts/json.py");
        fs::write(&added, "raise SystemExit(7)\n").unwrap();
        playground.expect(RUN, &call, "SecurityError: changed since approval");
        fs::remove_file(added).unwrap();

        // The control: without the layers every attack succeeds.
        let mut outside = playground.outside(PYTHON);
        outside
            .current_dir(playground.path("skills/demo"))
            .arg(playground.path("skills/demo/scripts/show.py"))
            .arg(port.to_string());
        let free = finish(outside, b"").out;
        for attack in ["beside", "own", "net", "secret", "link"] {
            assert_eq!(free[attack], "done", "{attack}: {free}");
        }
    });
}

#[test]
fn a_policy_that_names_skills_allows_and_one_for_all_tools_does_not() {
    let playground = playground(Who::ours());
    let hosts = |rules: &str, tools: &str| {
        playground.policy("skills", tools, rules);
        playground.settle();
        let audit = playground.cli(&["audit", "skill:demo", "--json"]);
        audit.out["grants"]["hosts"].to_string() + &audit.text()
    };
    let rules = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n\
                 [network]\nhosts = [{ host = \"api.example.com\", why = \"w\" }]\n";
    let named = hosts(rules, "skill:*");
    assert!(named.contains("api.example.com"), "{named}");
    fs::remove_file(playground.path("sandbox-policies/default.policy.toml")).unwrap();
    let wide = hosts(rules, "*");
    assert!(!wide.contains("api.example.com:"), "{wide}");
}

/// What a skill writes is data: it stays a skill, and nothing that it wrote runs.
#[test]
fn a_skill_that_writes_scripts_goes_on_and_does_not_run_them() {
    if !has("python", 1) {
        return;
    }
    let playground = playground(Who::ours());
    let folder = playground.path("skills/demo");
    fs::create_dir(folder.join("data")).unwrap();
    let writes = "open('data/x.py', 'w').write('print(1)')\nprint('wrote')\n";
    fs::write(folder.join("scripts/w.py"), writes).unwrap();
    // It is no part of the skill, and keeps nobody from approving that.
    fs::write(folder.join("output"), "a file").unwrap();
    playground.allow("skills", "skill:*", &["./**"], &["./data/**"]);
    playground.settle();
    approve(&playground);
    playground.expect(RUN, &input("scripts/w.py", &[]), "ok");
    assert!(folder.join("data/x.py").exists());
    playground.expect(RUN, &input("scripts/w.py", &[]), "ok");
    let ended = playground.call(RUN, &input("data/x.py", &[]));
    assert!(ended.stderr.contains("SecurityError"), "{ended:?}");

    let disable = ["disable", RUN, "--why", "a test"];
    assert_eq!(playground.cli(&disable).code, Some(0));
    let ended = playground.call(RUN, &input("scripts/w.py", &[]));
    assert!(ended.stderr.contains("disabled core:run"), "{ended:?}");
    assert_eq!(playground.cli(&["enable", RUN]).code, Some(0));

    let grant = ["allow", "skill:demo", "--host", "api.example.com", "--yes"];
    let ended = playground.cli(&grant);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let audit = playground.cli(&["audit", "skill:demo"]).text();
    assert!(audit.contains("api.example.com"), "{audit}");
    let checked = playground.cli(&["check"]).text();
    assert!(!checked.contains("names no loaded tool"), "{checked}");
}

/// A right to a skill is the right to write its calls as those of `core:run-skill-script`, in every
/// way. A right to that tool alone gives nothing.
#[test]
fn a_right_to_a_skill_is_one_to_run_its_scripts_in_every_way() {
    let playground = playground(Who::ours());
    let only =
        |name: &str, tool: &str| caller(name, "").replace("[\"*\"]", &format!("[\"{tool}\"]"));
    let callers = only("bob", "skill:demo") + &only("eve", RUN);
    write_callers(&playground, &callers);
    approve(&playground);
    let (web, [bob, eve]) = Web::for_callers(&playground, ["bob", "eve"]);
    let arguments = json!({"skill": "demo", "script": "scripts/show.sh", "args": ["ran"]});
    let envelope = |mode: &str| json!({"arguments": arguments, "mode": mode});
    let one = |tool: &str| format!("/v1/tools/{tool}/calls");
    let ways = |header: &str| -> Vec<String> {
        let post = |path: &str, more: &[&str], body: &str| {
            let headers = [&[header], more].concat();
            web.ask("POST", path, &headers, body).body
        };
        // The tool of such a body is looked for before it is read.
        let mut long = arguments.clone();
        long["args"] = json!([vec!["ran".to_owned()], vec!["x".repeat(8000); 9]].concat());
        let batch = json!({"calls": [{"tool": RUN, "arguments": arguments}]});
        let parts = form(&[
            ("request", "", &envelope("sync").to_string()),
            ("x", "a", "1"),
        ]);
        let mut client = Client::new(&web, true, &[header]);
        let called = client.call("core__run-skill-script", arguments.clone()).0;
        vec![
            post(&one(RUN), &[], &long.to_string()),
            post(&one("core__run-skill-script"), &[], &arguments.to_string()),
            post(&one(RUN), &[FORM], &parts),
            post("/v1/calls", &[], &batch.to_string()),
            called.to_string(),
        ]
    };
    let is_listed = |header: &str| {
        let over_http = web.get("/v1/tools", &[header]).body;
        let listed = Client::new(&web, true, &[header]).asked("tools/list", json!({}));
        let both = [over_http, listed.to_string()];
        both.map(|list| list.contains("run-skill-script"))
    };
    for way in ways(&bob) {
        assert!(way.contains("ran|"), "{way}");
    }
    for way in ways(&eve) {
        let is_unknown = way.contains("ToolNotFoundError") || way.contains("-32602");
        assert!(is_unknown && !way.contains("ran|"), "{way}");
    }
    assert_eq!([is_listed(&bob), is_listed(&eve)], [[true; 2], [false; 2]]);
    let later = |header: &str| web.call(RUN, &envelope("async"), &[header]);
    let receipt = later(&bob).is(202, "none").json();
    assert_eq!(receipt["tool"], "skill:demo@1.0.0", "{receipt}");
    later(&eve).is(404, "ToolNotFoundError");
    let listed = playground.cli(&["list", "--caller", "bob"]).text();
    assert!(listed.contains(RUN), "{listed}");
}

/// What another user puts in the place of a skill's folder is not read through a link.
#[test]
fn a_file_of_a_skill_is_read_where_it_was_listed_or_not_at_all() {
    let playground = playground(Who::ours());
    let folder = playground.path("skills/demo");
    let other = playground.path("other");
    let away = playground.path("away");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("SKILL.md"), TEXT.replace("Shows", "Taken")).unwrap();
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--watch", "off"]);
    let mut server = Server::with(host);
    assert!(server.names().contains(&"core__read-skill".to_owned()));
    let mut read = || {
        let answer = server.called("core:read-skill", json!({"skill": "demo"}));
        words(&answer).to_owned()
    };
    fs::rename(&folder, &away).unwrap();
    symlink(&other, &folder).unwrap();
    let linked = read();
    assert!(linked.contains("cannot be read"), "{linked}");
    // The control: the same files, without a link.
    fs::remove_file(&folder).unwrap();
    fs::rename(&other, &folder).unwrap();
    let moved = read();
    assert!(moved.contains("Taken"), "{moved}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_hides_no_other_one() {
    let playground = playground(Who::User);
    let closed = playground.path("skills/demo/scripts/helper.py");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let unlocked = "# /// script\n# dependencies = [\"requests\"]\n# ///\n";
    fs::write(playground.path("skills/demo/scripts/get.py"), unlocked).unwrap();
    let checked = playground.cli(&["skills", "check"]);
    let said = checked.text();
    // Why it cannot be approved, and what a script needs.
    let shown = playground.cli(&["skills", "check", "--json"]).out;
    let why = shown["skills"][0]["why"].as_str().unwrap();
    assert!(why.contains("helper.py: "), "{why}");
    assert!(said.contains("requests, a lock beside it"), "{said}");
    assert!(
        checked.code == Some(0) && said.contains("helper.py"),
        "{said}"
    );
    assert!(said.contains("may not be read by this user"), "{said}");
    let mut server = Server::start(&playground);
    let hello = server.hello();
    server.answers(&[hello]);
    let listed = server.asked("skills/list", json!({}))["result"].take();
    let files = listed["skills"][0]["resources"].to_string();
    assert!(
        files.contains("show.py") && !files.contains("helper.py"),
        "{listed}"
    );
    let read = server.called("core:read-skill", json!({"skill": "demo"}));
    assert!(words(&read).contains("Run scripts/show.py."), "{read}");
}

/// The ids of skills are theirs alone, in whatever case.
#[test]
fn no_manifest_takes_the_place_of_a_skill() {
    let playground = playground(Who::ours());
    for id in ["skill:demo", "Skill:demo", "skill:other"] {
        playground.tool_at(id, "python", "other/main.py", "print(7)\n", json!({}));
        playground.settle();
        let checked = playground.cli(&["check"]).text();
        assert!(checked.contains("the namespace 'skill'"), "{id}: {checked}");
        let ended = playground.call(RUN, &input("scripts/show.sh", &[]));
        assert!(ended.stderr.contains("approv"), "{id}: {ended:?}");
    }
}

/// Beside scripts that calls name, a skill would run without an approval.
#[test]
fn a_folder_of_skills_lies_in_no_folder_of_scripts() {
    let playground = playground(Who::ours());
    let scripts = playground.path("user_scripts/skills");
    fs::create_dir_all(&scripts).unwrap();
    for (skills, is_refused) in [
        (scripts, true),
        (playground.path("tool-defs"), true),
        (playground.path("."), true),
        (playground.path("skills"), false),
    ] {
        let skills = skills.to_str().unwrap();
        let ended = playground.cli(&["--skills", skills, "skills", "check"]);
        let told = ended.stderr.contains("neither may lie in the other");
        assert_eq!(told, is_refused, "{skills}: {ended:?}");
    }
}

#[test]
fn what_a_folder_of_skills_holds_is_hostile() {
    let host = host();
    let put = |name: &str, text: &str| drop(host.put(&format!("skills/{name}/SKILL.md"), text));
    let with = |fields: &str| format!("---\nname: a\n{fields}\n---\ntext\n");
    put(
        "good",
        "---\nname: good\ndescription: Use it when: a test runs\n---\n",
    );
    put("other-folder", &with("description: d"));
    put(
        "control",
        "---\nname: control\ndescription: \"x\\e[31m\\u202e\"\n---\n",
    );
    put("none", &with("license: MIT"));
    put(
        "deep",
        &with(&format!("description: d\nx: {}", "[".repeat(300))),
    );
    put("bomb", &with("description: d\nx: &a [1]\ny: *a"));
    put(
        "huge",
        &with(&format!("description: {}", "x".repeat(20_000))),
    );
    put(
        "large",
        &with(&format!("description: d\nx: {}", "y".repeat(2 << 20))),
    );
    put("bytes", "no front\n");
    put("list", &with("description: [a, b]"));
    put(
        "text-below",
        "---\nname: text-below\ndescription: d\n# Title\n- [text\n",
    );
    put("unended", "---\nname: unended\ndescription: d\n");
    let long = |chars: usize| {
        format!(
            "---\nname: w{chars}\ndescription: {}\n---\n",
            "é".repeat(chars)
        )
    };
    put("w1024", &long(1024));
    put("w1025", &long(1025));
    symlink(host.path("skills/good/SKILL.md"), {
        fs::create_dir(host.path("skills/linked")).unwrap();
        host.path("skills/linked/SKILL.md")
    })
    .unwrap();
    symlink(host.path("skills/good"), host.path("skills/folder-link")).unwrap();
    host.put(
        "skills/many/SKILL.md",
        "---\nname: many\ndescription: d\n---\n",
    );
    (0..513).for_each(|n| drop(host.put(&format!("skills/many/{n}"), "")));

    let (code, out, _) = host.run(&["skills", "check", "--json"]);
    let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}"));
    assert_eq!(code, 3, "{out}");
    let skills = shown["skills"].as_array().unwrap();
    let ids: Vec<&str> = skills
        .iter()
        .map(|it| it["skill"].as_str().unwrap())
        .collect();
    let wanted = ["a", "control", "good", "unended", "w1024", "w1025"];
    assert_eq!(ids, wanted.map(|name| format!("skill:{name}")), "{out}");
    let flaws = |at: usize| skills[at]["flaws"].to_string();
    assert!(flaws(3).contains("second line `---`"), "{}", flaws(3));
    assert_eq!(skills[4]["flaws"], json!([]), "{out}");
    assert!(flaws(5).contains("more than 1024"), "{}", flaws(5));
    assert!(
        flaws(0).contains("is not that of its folder"),
        "{}",
        flaws(0)
    );
    assert!(flaws(2).contains("quote it"), "{}", flaws(2));
    let broken = shown["broken"].to_string();
    for (name, why) in [
        ("none", "no `description`"),
        ("list", "`description` is not a text"),
        ("text-below", "second line `---`"),
        ("deep", "more than 8 levels"),
        ("bomb", "anchor (&)"),
        ("huge", "bytes stand before"),
        ("large", "larger than"),
        ("bytes", "first line"),
        ("linked", "symbolic link"),
        ("many", "512 files"),
    ] {
        assert!(
            broken.contains(&format!("skills/{name}/")) && broken.contains(why),
            "{name}: {broken}"
        );
    }
    let (_, text, _) = host.run(&["skills", "list"]);
    assert!(
        text.contains("not approved") && !text.contains(['\u{1b}', '\u{202e}']),
        "{text}"
    );
}

#[test]
fn mcp_clients_get_skills_as_the_extension_says() {
    let playground = playground(Who::ours());
    let mut server = Server::start(&playground);
    let hello = server.hello();
    let hello = server.answers(&[hello]).remove(&hello).unwrap();
    let extension =
        &hello["result"]["capabilities"]["extensions"]["io.modelcontextprotocol/skills"];
    assert_eq!(*extension, json!({"directoryRead": true}), "{hello}");
    let listed = server.asked("skills/list", json!({}))["result"].take();
    let entry = &listed["skills"][0];
    assert_eq!(entry["uri"], "skill://demo/SKILL.md", "{listed}");
    assert_eq!(entry["frontmatter"]["metadata"]["author"], "nobody");
    let files = entry["resources"].as_array().unwrap();
    assert_eq!(files.len(), 5, "the link is none of them: {listed}");
    for file in files {
        let read = server.asked("resources/read", json!({"uri": file["uri"]}));
        let text = read["result"]["contents"][0]["text"].as_str().unwrap();
        let digest: String = Sha256::digest(text)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(file["digest"], format!("sha256:{digest}"), "{read}");
        assert_eq!(file["size"], text.len());
    }
    let one = server.asked("skills/get", json!({"uri": "skill://demo/SKILL.md"}));
    assert_eq!(one["result"]["skill"], *entry, "{one}");
    let folder = server.asked("resources/directory/read", json!({"uri": "skill://demo"}));
    let names = folder["result"]["resources"].as_array().unwrap();
    let names: Vec<&str> = names
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["SKILL.md", "scripts"], "{folder}");
    for (method, uri) in [
        ("skills/get", "skill://gone/SKILL.md"),
        ("resources/directory/read", "skill://demo/gone"),
        ("resources/read", "skill://demo/link.txt"),
        (
            "resources/read",
            "skill://demo/scripts/../../../secret/secret.txt",
        ),
        (
            "resources/read",
            "skill://demo/%2e%2e/%2e%2e/secret/secret.txt",
        ),
    ] {
        let refused = server.asked(method, json!({ "uri": uri }));
        let code = refused["error"]["code"].as_i64();
        assert!(matches!(code, Some(-32602 | -32002)), "{uri}: {refused}");
    }
    // Who has the wrong parameter is told the right one.
    let wrong = server.asked("skills/get", json!({"name": "demo"}));
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    assert!(wrong["error"]["message"].to_string().contains("params.uri"));
    // Others have tools for it.
    let names = server.names();
    assert!(names.contains(&"core__list-skills".to_owned()), "{names:?}");
    let list = server.called("core:list-skills", json!({}));
    assert!(words(&list).contains("\"runs\":false"), "{list}");
    let read = server.called("core:read-skill", json!({"skill": "demo"}));
    assert!(words(&read).contains("Run scripts/show.py."), "{read}");
    // A file that changed is not what was listed.
    fs::write(
        playground.path("skills/demo/scripts/show.sh"),
        "echo changed\n",
    )
    .unwrap();
    let run = server.called(RUN, json!({"skill": "demo", "script": "scripts/show.py"}));
    assert_eq!(kind(&run), "SecurityError", "{run}");
}
