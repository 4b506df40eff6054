//! What is known of files that calls brought and left: records, lists, forms of answers, and a store
//! that several processes use.

use crate::files::{FORM, form};
use crate::http::Web;
use crate::prelude::*;
use toolhost::base::sha256_hex;

const COPIES: &str = "import json, os, shutil
for name in os.listdir('/tmp/call/input'):
    shutil.copy('/tmp/call/input/' + name, '/tmp/call/output/' + name)
print(json.dumps({'files': len(os.listdir('/tmp/call/output'))}))
";
/// Leaves as many files as its argument says.
const LEAVES: &str = "import json, sys
count = json.load(sys.stdin)['n']
for n in range(count):
    open('/tmp/call/output/%d.txt' % n, 'w').write('left %d' % n)
print(count)
";

fn numbers() -> Value {
    json!({"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "limits": {"artifactFiles": 128}})
}

fn playground(tools: &[(&str, &str, Value)]) -> Playground {
    let tools: Vec<_> = tools
        .iter()
        .map(|(name, script, more)| (*name, "python", *script, more.clone()))
        .collect();
    Playground::with(Who::ours(), &tools)
}

#[test]
fn records_and_reports_name_the_files_of_a_call() {
    let more = json!({"limits": {"artifactFiles": 64}});
    let playground = playground(&[("copies", COPIES, more)]);
    playground.policy(
        "more",
        "esc:copies",
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\nartifact_files = 64\n",
    );
    let files: Vec<String> = (0..40)
        .map(|n| {
            let path = playground.path(&format!("home/{n}.csv"));
            fs::write(&path, format!("never in a record {n}")).unwrap();
            format!("file=@{}", path.display())
        })
        .collect();
    playground.settle();
    let record = |count: usize| {
        let mut words = vec!["call", "esc:copies", "--json"];
        words.extend(files[..count].iter().map(String::as_str));
        let ended = playground.cli(&words);
        assert_eq!(ended.out["outputData"]["files"], count, "{ended:?}");
        let record = playground.records().pop().unwrap();
        assert!(!record.to_string().contains("never in a record"));
        (ended.out, record)
    };
    let (out, one) = record(1);
    let digest = sha256_hex(b"never in a record 0");
    let known = json!([{"name": "0.csv", "bytes": 19, "sha256": digest}]);
    assert_eq!((&one["files"], &one["artifacts"]), (&known, &known));
    assert_eq!(out["artifacts"][0]["sha256"], digest);
    let (_, many) = record(40);
    for list in ["files", "artifacts"] {
        let list = many[list].as_array().unwrap();
        assert_eq!((list.len(), &list[32]["count"]), (33, &json!(8)));
        assert_eq!(list[32]["sha256"].as_str().map(str::len), Some(64));
    }
    let (_, none) = record(0);
    assert!(none["files"].is_null() && none["artifacts"].is_null());
    let report = |tool: &str| playground.cli(&["audit", tool]).text();
    for folder in ["/tmp/call/input", "/tmp/call/output"] {
        assert!(report("esc:copies").contains(folder), "{folder}");
        assert!(!report("core:task-status").contains(folder), "{folder}");
    }
}

#[test]
fn mcp_lists_artifacts_as_resources_page_by_page() {
    let playground = playground(&[("leaves", LEAVES, numbers())]);
    let limits =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\nartifact_files = 128\n";
    playground.policy("more", "esc:leaves", limits);
    playground.settle();
    let mut server = Server::start(&playground);
    let mut page = |cursor: Option<&Value>| {
        let asked = server.asked("resources/list", json!({ "cursor": cursor }));
        let listed = asked["result"]["resources"].as_array().cloned();
        (listed.unwrap_or_default(), asked)
    };
    assert_eq!(page(None).0.len(), 0);
    for _ in 0..2 {
        server.called("esc__leaves", json!({"n": 120}));
    }
    let mut page = |cursor: Option<&Value>| {
        let asked = server.asked("resources/list", json!({ "cursor": cursor }));
        let listed = asked["result"]["resources"].as_array().cloned();
        (listed.unwrap_or_default(), asked)
    };
    let (first, asked) = page(None);
    let (second, last) = page(Some(&asked["result"]["nextCursor"]));
    assert_eq!((first.len(), second.len()), (200, 40), "{last}");
    assert!(last["result"]["nextCursor"].is_null());
    let addresses = first.iter().chain(&second).map(|it| it["uri"].as_str());
    let addresses: Vec<_> = addresses.map(Option::unwrap).collect();
    assert!(addresses.is_sorted_by(|a, b| a > b), "the newest first");
    assert!(first[0]["size"].as_u64().unwrap() > 0);
    let bad = json!("01932d5b4f3c7d2e8a9b0c1d2e3f4a5b.00000000");
    assert!(page(Some(&bad)).1["error"].is_object());
    let oldest = json!({"uri": addresses[239]});
    let read = server.asked("resources/read", oldest);
    assert!(read.to_string().contains("left 0"), "{read}");
}

#[test]
fn http_lists_artifacts_of_a_caller_and_of_whom_it_acts_as() {
    let playground = playground(&[("leaves", LEAVES, numbers())]);
    let rules = "[[caller]]\nname = \"ann\"\nwhy = \"w\"\ntools = [\"*\"]\nact_as = [\"carl\"]\n\
        [[caller]]\nname = \"bob\"\nwhy = \"w\"\ntools = [\"*\"]\nact_as = [\"carl\"]\n\
        [[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"*\"]\n";
    let file = playground.path("sandbox-policies/callers.policy.toml");
    fs::write(file, rules).unwrap();
    playground.settle();
    let (web, [ann, bob]) = Web::for_callers(&playground, ["ann", "bob"]);
    for user in ["ann", "carl"] {
        let body = json!({"arguments": {"n": 1}, "user": user});
        web.call("esc:leaves", &body, &[&ann]).is(200, "none");
    }
    let listed = |path: &str, who: &str| {
        let all = web.get(path, &[who]).is(200, "none").json();
        let ids = all["artifacts"].as_array().unwrap().iter();
        ids.map(|it| it["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let own = listed("/v1/artifacts", &ann);
    let carls = listed("/v1/artifacts?as=carl", &ann);
    assert_eq!((own.len(), carls.len()), (1, 1));
    assert_ne!(own, carls);
    assert_eq!(own, listed("/v1/artifacts?as=ann", &ann));
    assert!(listed("/v1/artifacts", &bob).is_empty());
    for path in ["/v1/artifacts", &format!("/v1/artifacts/{}", carls[0])] {
        for (other, who) in [("bob", &ann), ("ann", &bob)] {
            let path = format!("{path}?as={other}");
            web.get(&path, &[who]).is(403, "AuthorizationError: act as");
        }
    }
    let one = format!("/v1/artifacts/{}", carls[0]);
    assert_eq!(web.get(&format!("{one}?as=carl"), &[&ann]).body, "left 0");
    for who in [&ann, &bob] {
        web.get(&one, &[who]).is(404, "ParameterValidationError");
    }
    // The same name through another principal is another owner.
    assert!(listed("/v1/artifacts?as=carl", &bob).is_empty());
    web.get(&format!("{one}?as=carl"), &[&bob])
        .is(404, "ParameterValidationError");
}

#[test]
fn what_a_model_reads_of_files_is_text_and_structured() {
    let answers = |shown: &str| {
        format!("open('/tmp/call/output/a.txt', 'w').write('left')\nprint('{shown}')\n")
    };
    let object = answers("{\"a\": 1}");
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let mut closed = open.clone();
    closed["additionalProperties"] = json!(false);
    let playground = playground(&[
        ("plain", &object, json!({})),
        ("open", &object, json!({ "output": open })),
        ("closed", &object, json!({ "output": closed })),
        ("own", &answers("{\"artifacts\": 1}"), json!({})),
        ("empty", &answers("{}"), json!({})),
        (
            "number",
            &answers("1"),
            json!({"output": {"type": "integer"}}),
        ),
    ]);
    playground.allow_builtin_tools();
    playground.settle();
    let mut server = Server::start(&playground);
    let mut called = |name: &str, arguments: Value| {
        let answer = server.called(name, arguments);
        let content = answer["result"]["content"].to_string();
        assert!(content.contains("a.txt (text/plain, 4 bytes)"), "{answer}");
        let mut structured = answer["result"]["structuredContent"].clone();
        let files = structured["artifacts"].take();
        if files.is_array() {
            assert_eq!(
                (&files[0]["name"], &files[0]["bytes"]),
                (&json!("a.txt"), &json!(4))
            );
        }
        (structured, files.is_array())
    };
    for (name, wanted, has_files) in [
        ("plain", json!({"artifacts": null, "a": 1}), true),
        ("open", json!({"artifacts": null, "a": 1}), true),
        ("closed", json!({"artifacts": null, "a": 1}), false),
        ("own", json!({"artifacts": null}), false),
        ("empty", json!({"artifacts": null}), true),
        ("number", json!({"artifacts": null, "result": 1}), true),
    ] {
        let found = called(&format!("esc__{name}"), json!({}));
        assert_eq!(found, (wanted, has_files), "{name}");
    }
    let code = json!({"language": "python", "code": object});
    let (envelope, has_files) = called("core__run-code", code);
    assert!(has_files && envelope["outputData"]["a"] == 1, "{envelope}");
}

#[test]
fn a_word_of_the_command_line_brings_the_file_of_a_parameter() {
    let script = "import json, sys
asked = json.load(sys.stdin)
print(json.dumps([open(asked['doc']).read(), asked['handle'], [open(one).read() for one in asked['more']]]))
";
    let parameters = json!({"type": "object", "required": ["doc"], "properties": {
        "doc": {"type": "string", "format": "file"}, "handle": {"type": "string"},
        "more": {"type": "array", "items": {"type": "string", "format": "file"}}}});
    let playground = playground(&[("reads", script, json!({ "parameters": parameters }))]);
    let [one, two] = ["one", "two"].map(|name| {
        let path = playground.path(&format!("home/{name}"));
        fs::write(&path, name).unwrap();
        format!("@{}", path.display())
    });
    playground.settle();
    let call = |words: &[String]| {
        let mut all = vec!["call", "esc:reads", "--json"];
        all.extend(words.iter().map(String::as_str));
        playground.cli(&all)
    };
    let words = [
        format!("doc={one}"),
        "handle=@ann".into(),
        format!("more={two}"),
    ];
    let ended = call(&words);
    let wanted = json!(["one", "@ann", ["two"]]);
    assert_eq!(ended.out["outputData"], wanted, "{ended:?}");
    let missing = call(&["doc=@/nowhere".into(), "handle=x".into()]);
    assert!(missing.stderr.contains("/nowhere"), "{missing:?}");
    assert_eq!(missing.code, Some(2), "{missing:?}");
    let shared = json!({"doc": "@/etc/passwd", "handle": "x", "more": []});
    let ended = playground.call("esc:reads", &shared.to_string());
    fits("ParameterValidationError: must hold a file", &ended).unwrap();
}

#[test]
fn a_file_for_a_parameter_that_holds_none_is_refused() {
    let script = "import json, sys
asked = json.load(sys.stdin)
print(json.dumps([asked['file'], open(asked['doc']).read() if 'doc' in asked else None]))
";
    let parameters = json!({"type": "object", "properties": {
        "file": {"type": "string", "default": "sales.csv"},
        "doc": {"type": "string", "format": "file"}}});
    let playground = playground(&[("sums", script, json!({ "parameters": parameters }))]);
    playground.allow_builtin_tools();
    let path = playground.path("home/other.csv");
    fs::write(&path, "a,b").unwrap();
    let path = path.display();
    playground.settle();
    let call = |tool: &str, words: &[&str]| {
        let mut all = vec!["call", tool, "--json"];
        all.extend(words);
        playground.cli(&all)
    };
    let sums = |word: &str| call("esc:sums", &[word]);
    assert_eq!(sums("file=own.csv").out["outputData"][0], "own.csv");
    let refused = sums(&format!("file=@{path}"));
    fits(
        "ParameterValidationError: 'file' does not hold a file",
        &refused,
    )
    .unwrap();
    assert_eq!(
        sums(&format!("doc=@{path}")).out["outputData"],
        json!(["sales.csv", "a,b"])
    );
    let named = sums("doc=other.csv");
    assert!(named.stderr.contains("doc=@PATH"), "{named:?}");
    // The same in a form; a part that is named like no parameter is a file of the call.
    let web = Web::start(&playground, &[]);
    let post = |part: &str| {
        let parts = [("request", "", "{}"), (part, "other.csv", "a,b")];
        web.ask("POST", "/v1/tools/esc:sums/calls", &[FORM], &form(&parts))
    };
    post("file").is(422, "ParameterValidationError: 'file' does not hold a file");
    assert_eq!(
        post("other").is(200, "none").json()["outputData"][0],
        "sales.csv"
    );
    // Source text has a list of files, and code that is text.
    let files = format!("files=@{path}");
    let code = "code=print(open('input/other.csv').read())";
    let ended = call("core:run-code", &["language=python", code, &files]);
    assert_eq!(ended.out["outputData"], "a,b", "{ended:?}");
    let code = format!("code=@{path}");
    let ended = call("core:run-code", &["language=python", &code]);
    assert!(
        ended.stderr.contains("'code' does not hold a file"),
        "{ended:?}"
    );
}

#[test]
fn results_in_the_wrong_folder_are_named_and_stored_ones_can_be_fetched_later() {
    let playground = playground(&[]);
    playground.allow_builtin_tools();
    playground.settle();
    let run = |code: &str, more: &[&str]| {
        let code = format!("code={code}");
        let mut all = vec!["call", "core:run-code", "language=python", &code];
        all.extend(more);
        playground.cli(&all)
    };
    let lost = |code: &str| run(code, &["--json"]).out["artifacts"].to_string();
    let left = "it lies outside /tmp/call/output; write results there";
    let one = "import sys\nsys.stderr.write('hm')\nopen('plot.png', 'w').write('x')";
    assert!(lost(one).contains(left), "{}", lost(one));
    let shown = run(one, &[]).stderr;
    let line = format!("not published: plot.png: {left}");
    assert!(shown.contains(&line), "{shown}");
    assert_eq!(run(one, &["--json"]).out["logs"], json!(["hm"]));
    let many = "for n in range(5):\n    open(f'{n}.csv', 'w').write('x')";
    assert_eq!(lost(many).matches(left).count(), 5, "{}", lost(many));
    // Results, what lies elsewhere, and a folder that the code put in the place of another.
    for code in [
        "open('output/plot.png', 'w').write('x')",
        "open('/tmp/plot.png', 'w').write('x')",
        "import os\nos.rename('output', 'old')\nopen('plot.png', 'w').write('x')",
        "open('plot.png', 'w').write('x')\nimport os\nos.remove('plot.png')",
    ] {
        assert!(!lost(code).contains(left), "{code}");
    }
    // Of what the answer names elsewhere in its scratch, the caller would look for the file.
    let named = "open('/tmp/a.txt', 'w').write('x')\nprint('/tmp/a.txt, /tmp/none.txt')";
    let gone = "not published: /tmp/a.txt: it lies in the scratch of its call, which is gone";
    let told = run(named, &[]).stderr;
    assert!(told.contains(gone) && !told.contains("none.txt"), "{told}");
    let out = run(
        "import os\nos.rename('/tmp/call', '/tmp/x')\nprint('/tmp/../etc/passwd /tmp/x/input')",
        &[],
    );
    assert!(!out.stderr.contains("not published"), "{out:?}");
    let ended = run("open('output/a.csv', 'w').write('a,b')", &[]);
    let line = ended.stderr.lines().find(|line| line.contains("a.csv"));
    let id = line.and_then(|line| line.split_whitespace().next_back());
    let id = id.unwrap_or_else(|| panic!("{ended:?}"));
    assert!(ended.stderr.contains(" artifact "), "{ended:?}");
    let folder = playground.path("home/later");
    let fetch = |id: &str| {
        let folder = folder.display().to_string();
        playground.cli(&["artifact", id, "--output-dir", &folder])
    };
    assert_eq!(fetch(id).code, Some(0));
    assert_eq!(fs::read_to_string(folder.join("a.csv")).unwrap(), "a,b");
    let other = fetch("01932d5b4f3c7d2e8a9b0c1d2e3f4a5b.00000000");
    assert_eq!(other.code, Some(2), "{other:?}");
}

/// Two servers and calls of their own use one store at once: nothing is lost, nothing is corrupt, and
/// what is kept is bounded for all of them together.
#[test]
fn several_processes_share_one_store() {
    let playground = playground(&[("leaves", LEAVES, numbers())]);
    let config = playground.path("state/config.toml");
    fs::write(&config, "").unwrap();
    playground.settle();
    let flags = |command: &mut Command| {
        command.arg("--config").arg(&config);
    };
    let server = || {
        let mut command = playground.host();
        flags(&mut command);
        command.args(["serve", "--http", "127.0.0.1:0"]);
        Web::run(command, playground.who.uid()).unwrap()
    };
    let ids = |report: &Value| -> BTreeSet<String> {
        let all = report["artifacts"].as_array().unwrap().iter();
        all.map(|it| it["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let storm = |webs: &[Web; 2]| -> BTreeSet<String> {
        std::thread::scope(|scope| {
            let through_servers = webs.iter().map(|web| {
                scope.spawn(|| {
                    let body = json!({"arguments": {"n": 5}});
                    let reports =
                        (0..4).map(|_| web.call("esc:leaves", &body, &[]).is(200, "none"));
                    reports.flat_map(|it| ids(&it.json())).collect()
                })
            });
            let alone = scope.spawn(|| {
                let ended = (0..4).map(|_| {
                    let mut command = playground.host();
                    flags(&mut command);
                    command.args(["call", "esc:leaves", "--json", "n=5"]);
                    finish(command, b"")
                });
                ended.flat_map(|it| ids(&it.out)).collect()
            });
            let all: Vec<_> = through_servers.chain([alone]).collect();
            let all = all.into_iter().map(|one| one.join().unwrap());
            all.flat_map(|one: BTreeSet<String>| one).collect()
        })
    };
    let listed = |web: &Web| ids(&web.get("/v1/artifacts", &[]).is(200, "none").json());
    let webs = [server(), server()];
    let made = storm(&webs);
    assert_eq!(made.len(), 60);
    for web in &webs {
        assert_eq!(listed(web), made);
        for id in &made {
            let content = web.get(&format!("/v1/artifacts/{id}"), &[]);
            assert!(content.body.starts_with("left "), "{content:?}");
        }
    }
    drop(webs);
    // 6 bytes each: seven of them fit.
    fs::write(&config, "[artifacts]\nbytes_per_caller = 45\nhours = 1\n").unwrap();
    let webs = [server(), server()];
    let made = storm(&webs);
    let kept = listed(&webs[0]);
    assert_eq!(kept.len(), 7, "{kept:?}");
    assert_eq!(kept, listed(&webs[1]));
    let newest: BTreeSet<_> = made.iter().rev().take(7).cloned().collect();
    assert_eq!(kept, newest, "the oldest go first");
    for id in &made {
        let content = webs[1].get(&format!("/v1/artifacts/{id}"), &[]);
        let is_whole = content.status == 200 && content.body.starts_with("left ");
        assert_eq!(is_whole, kept.contains(id), "{content:?}");
    }
    let files = fs::read_dir(playground.path("state/artifacts")).unwrap();
    assert_eq!(files.count(), 14, "nothing is left behind");
}

/// What is kept is bounded for each principal, under whatever names it acts, and for nobody else.
#[test]
fn the_bytes_of_artifacts_are_counted_for_each_principal() {
    let playground = playground(&[("leaves", LEAVES, numbers())]);
    let config = playground.path("state/config.toml");
    // 6 bytes each: two fit.
    fs::write(&config, "[artifacts]\nbytes_per_caller = 13\n").unwrap();
    let rules = "[[caller]]\nname = \"ann\"\nwhy = \"w\"\ntools = [\"*\"]\nact_as = [\"carl\"]\n\
        [[caller]]\nname = \"*\"\nwhy = \"w\"\ntools = [\"*\"]\n";
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        rules,
    )
    .unwrap();
    playground.settle();
    let (tokens, [ann, bob]) = crate::http::tokens(&playground, ["ann", "bob"]);
    let mut command = playground.host();
    command.arg("--config").arg(&config);
    command.args(["serve", "--http", "127.0.0.1:0", "--token-file", &tokens]);
    let web = Web::run(command, playground.who.uid()).unwrap();
    let store = |user: &str, who: &str| {
        let body = json!({"arguments": {"n": 1}, "user": user});
        let out = web.call("esc:leaves", &body, &[who]).is(200, "none").json();
        format!(
            "/v1/artifacts/{}",
            out["artifacts"][0]["id"].as_str().unwrap()
        )
    };
    let is_there = |path: &str, who: &str| web.get(path, &[who]).status == 200;
    let anns = store("ann", &ann);
    let bobs = store("bob", &bob);
    let first = store("carl", &ann) + "?as=carl";
    for (path, who) in [(&anns, &ann), (&first, &ann), (&bobs, &bob)] {
        assert!(is_there(path, who), "the control: {path}");
    }
    let second = store("carl", &ann) + "?as=carl";
    assert!(!is_there(&anns, &ann), "the oldest of the principal");
    assert!(is_there(&first, &ann) && is_there(&second, &ann));
    assert!(is_there(&bobs, &bob), "of another principal");
}

/// Each call of a batch has a copy of what all of them get, and is charged for it.
#[test]
fn files_of_a_batch_are_charged_for_each_copy() {
    let script =
        "import os, time\ntime.sleep(8)\nprint(os.path.getsize('/tmp/call/input/large'))\n";
    let playground = playground(&[("waits", script, json!({}))]);
    let limits =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 110_000\n";
    playground.policy("slow", "esc:waits", limits);
    playground.settle();
    let (web, [ann, bob]) = Web::for_callers(&playground, ["ann", "bob"]);
    // A principal has 256 MiB: the form, and the copies.
    let large = "x".repeat(60 << 20);
    let send = |count: usize, who: &str| {
        let calls = vec![json!({"tool": "esc:waits"}); count];
        let request = json!({ "calls": calls }).to_string();
        let parts = [("request", "", request.as_str()), ("_all", "large", &large)];
        let body = form(&parts);
        let reply = web.ask("POST", "/v1/calls", &[who, FORM], &body).body;
        let done = reply.matches("\"outputData\":62914560").count();
        let full = reply.matches("take the memory of this principal").count();
        (done, full > 0)
    };
    let (done, is_full) = send(5, &ann);
    assert!(is_full && (1..=3).contains(&done), "{done}");
    assert_eq!(send(2, &bob), (2, false), "the control");
    assert_eq!(send(2, &ann), (2, false), "nothing stays charged");
}

/// Each file takes a descriptor, and counts for that even if it is empty: a principal that never ends
/// its forms gets no more of them, and takes nothing from others.
#[test]
fn descriptors_of_files_are_charged_to_their_principal() {
    let playground = playground(&[("copies", COPIES, json!({}))]);
    playground.settle();
    let (web, [ann, bob]) = Web::for_callers(&playground, ["ann", "bob"]);
    let names: Vec<String> = (0..32).map(|n| n.to_string()).collect();
    let files = names.iter().map(|name| ("x", name.as_str(), ""));
    let parts: Vec<_> = [("request", "", "{}")].into_iter().chain(files).collect();
    let whole = form(&parts);
    let calls = "/v1/tools/esc:copies/calls";
    let held = || {
        let all = fs::read_dir(format!("/proc/{}/fd", web.child.id())).unwrap();
        let places = all.filter_map(|it| fs::read_link(it.ok()?.path()).ok());
        places
            .filter(|it| it.to_string_lossy().starts_with("/memfd:"))
            .count()
    };
    let before = held();
    let length = format!("Content-Length: {}", whole.len() + 1000);
    // Without its last boundary, a form goes on.
    let open: Vec<TcpStream> = (0..150)
        .map(|_| {
            web.send(
                "POST",
                calls,
                &[&ann, FORM, &length],
                &whole[..whole.len() - 8],
            )
        })
        .collect();
    // A refusal may be lost, where its connection is closed before all was read.
    let is_refused = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let answer = stream.peek(&mut [0; 12]);
        answer.map_or_else(|e| e.kind() != std::io::ErrorKind::WouldBlock, |_| true)
    };
    let refused = || open.iter().filter(is_refused).count();
    wait_for("some are refused", || refused() >= 20);
    std::thread::sleep(Duration::from_secs(1));
    // 33 parts of 64 KiB or more each, of 256 MiB.
    assert!(refused() < 150, "{} of 150", refused());
    assert!(held() < before + 33 * 125, "{} descriptors", held());
    assert!(held() > before + 33, "the control: {}", held());
    let others = web.ask("POST", calls, &[&bob, FORM], &whole);
    assert_eq!(others.is(200, "none").json()["outputData"]["files"], 32);
    drop(open);
    wait_for("nothing is kept", || held() <= before);
    web.ask("POST", calls, &[&ann, FORM], &whole)
        .is(200, "none");
}

/// What can hold a script is shown as no picture, whatever its name says, and is always saved.
#[test]
fn a_picture_that_is_a_page_is_not_shown() {
    let script = "here = '/tmp/call/output/'
png = bytes.fromhex('89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de')
svg = b'<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>'
pages = {'a.png': b'<html><script>alert(1)</script>', 'b.png': svg, 'c.png': b'<?xml version=\"1.0\"?>' + svg,
    'd.png': b'\\n ' + svg, 'e.gif': b'<!-- GIF89a -->' + svg, 'f.jpg': b'\\xef\\xbb\\xbf<html>'}
for name, content in pages.items() | {'g.txt': png}.items():
    open(here + name, 'wb').write(content)
print(1)
";
    let playground = playground(&[("shows", script, json!({}))]);
    let mut server = Server::start(&playground);
    let answer = server.called("esc__shows", json!({}));
    let content = answer["result"]["content"].as_array().unwrap();
    let of_type = |name: &str| content.iter().filter(|it| it["type"] == name).count();
    assert_eq!(of_type("image"), 1, "the control: {answer}");
    assert_eq!(of_type("resource_link"), 7, "{answer}");
    let web = Web::start(&playground, &[]);
    let all = web.get("/v1/artifacts", &[]).json();
    for artifact in all["artifacts"].as_array().unwrap() {
        let path = format!("/v1/artifacts/{}", artifact["id"].as_str().unwrap());
        let reply = web.get(&path, &[]);
        let has = |name: &str, part: &str| reply.header(name).is_some_and(|it| it.contains(part));
        assert!(has("content-disposition", "attachment"), "{reply:?}");
        assert!(has("x-content-type-options", "nosniff"), "{reply:?}");
        assert!(has("content-security-policy", "sandbox"), "{reply:?}");
        let is_picture = artifact["name"] == "g.txt";
        assert_eq!(has("content-type", "image/"), is_picture, "{reply:?}");
    }
}

/// Only what runs as a process of ours has a folder for files, and a refusal says so.
#[test]
fn tools_without_a_folder_for_files_refuse_them_by_type() {
    let playground = playground(&[("reads", COPIES, json!({}))]);
    let wasm = "(module (memory (export \"memory\") 1) (func (export \"_start\")))";
    playground.tool("module", "wasm", wasm, json!({}));
    playground.allow_builtin_tools();
    playground.settle();
    let web = Web::start(&playground, &[]);
    let call = |tool: &str, request: &str| {
        let body = form(&[("request", "", request), ("x", "a.csv", "a")]);
        web.ask("POST", &format!("/v1/tools/{tool}/calls"), &[FORM], &body)
    };
    call("esc:reads", "{}").is(200, "none");
    for (tool, request) in [
        ("esc:module", "{}"),
        ("core:task-status", "{\"id\": \"x\"}"),
    ] {
        let wanted =
            "ParameterValidationError: takes no files: only scripts of Python, Node and Bun";
        call(tool, request).is(422, wanted);
    }
}

/// A batch says which artifacts its tools get, by tool or by file.
#[test]
fn a_batch_gives_its_tools_their_files_in_either_form() {
    let script = "import json, os\nprint(json.dumps(sorted(open('/tmp/call/input/' + name).read() for name in \
        os.listdir('/tmp/call/input'))))\n";
    let playground = playground(&[
        ("leaves", LEAVES, numbers()),
        ("one", script, json!({})),
        ("two", script, json!({})),
    ]);
    let web = Web::start(&playground, &[]);
    let left = web.call("esc:leaves", &json!({"arguments": {"n": 3}}), &[]);
    let left = left.is(200, "none").json();
    let id = |name: &str| {
        let mut all = left["artifacts"].as_array().unwrap().iter();
        all.find(|it| it["name"] == name).unwrap()["id"].clone()
    };
    let [zero, one, two] = ["0.txt", "1.txt", "2.txt"].map(id);
    let by_tool = json!({"tool_resources": {"esc:one": {"file_ids": [zero]},
        "esc:two": {"file_ids": [one]}, "_all": {"file_ids": [two]}}});
    let by_file = json!({"files": [{"file_id": zero, "tools": [{"type": "esc:one"}]},
        {"file_id": one, "tools": [{"type": "esc:two"}]}, {"file_id": two}]});
    for mut batch in [by_tool, by_file] {
        batch["calls"] = json!([{"tool": "esc:one"}, {"tool": "esc:two", "files": [two]}]);
        let reply = web.ask("POST", "/v1/calls", &[], &batch.to_string());
        for wanted in ["[\"left 0\",\"left 2\"]", "[\"left 1\",\"left 2\"]"] {
            let wanted = format!("\"outputData\":{wanted}");
            assert!(reply.body.contains(&wanted), "{reply:?}");
        }
    }
    let wrong = json!({"calls": [{"tool": "esc:one"}], "files": ["x"]});
    let reply = web.ask("POST", "/v1/calls", &[], &wrong.to_string());
    assert_eq!(reply.status, 400, "{reply:?}");
}

/// A picture is a link that resolves where files are stored, and stands in the answer where none are.
#[test]
fn pictures_are_links_or_stand_in_the_answer() {
    let script =
        "png = bytes.fromhex('89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de')
open('/tmp/call/output/plot.png', 'wb').write(png)
open('/tmp/call/output/page.png', 'w').write('<html><script>x</script>')
print(1)
";
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1Pe";
    let playground = playground(&[("shows", script, json!({}))]);
    let configs = [(1 << 20, true), (0, false)].map(|(bytes, is_stored)| {
        let config = playground.path(&format!("state/{bytes}.toml"));
        let text = format!("[artifacts]\nbytes_per_caller = {bytes}\n");
        fs::write(&config, text).unwrap();
        (config, is_stored)
    });
    playground.settle();
    for (config, is_stored) in configs {
        let with_config = |words: &[&str]| {
            let mut command = playground.host();
            command.arg("--config").arg(&config).args(words);
            command
        };
        let serve = with_config(&["serve", "--http", "127.0.0.1:0"]);
        let web = Web::run(serve, playground.who.uid()).unwrap();
        let answer = web.call("esc:shows", &json!({"arguments": {}}), &[]);
        let answer = answer.is(200, "none").json();
        let of = |name: &str| {
            let path = format!("output/{name}");
            let mut all = answer["artifacts"].as_array().unwrap().iter();
            all.find(|it| it["path"] == *path).unwrap().clone()
        };
        let (plot, page) = (of("plot.png"), of("page.png"));
        let kept = (plot["published"].clone(), page["published"].clone());
        assert_eq!(kept, (json!(is_stored), json!(is_stored)), "{answer}");
        assert!(page["b64"].is_null(), "{answer}");
        let listed = web.get("/v1/artifacts", &[]).json();
        let listed = listed["artifacts"].as_array().unwrap().len();
        if is_stored {
            assert!(plot["b64"].is_null(), "{answer}");
            let id = plot["id"].as_str().unwrap();
            let link = web.get(&format!("/v1/artifacts/{id}"), &[]);
            assert_eq!(link.header("content-type"), Some("image/png"));
            assert_eq!(listed, 2);
        } else {
            assert_eq!((&plot["b64"], listed), (&json!(png), 0), "{answer}");
            assert_eq!(plot["mediaType"], "image/png");
        }
        let mut server = Server::of(with_config(&[]));
        let shown = server.called("esc__shows", json!({}));
        let content = shown["result"]["content"].as_array().unwrap();
        let pictures = content.iter().filter(|it| it["type"] == "image");
        let pictures: Vec<_> = pictures.map(|it| it["data"].clone()).collect();
        assert_eq!(pictures, [png], "{shown}");
        let links = content.iter().filter(|it| it["type"] == "resource_link");
        assert_eq!(links.count(), if is_stored { 2 } else { 0 }, "{shown}");
    }
    let left = fs::read_dir(playground.path("state/artifacts")).unwrap();
    assert_eq!(left.count(), 0, "what was stored before is gone, too");
}
