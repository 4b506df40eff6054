//! Files that calls bring and leave, judged from outside: as a hostile tool, a hostile caller and a
//! neighbour.

use crate::http::Web;
use crate::prelude::*;

/// Tries what a tool may not do with its files, and leaves what no store may take.
const HOSTILE: &str = "import json, os
def tried(*what):
    found = []
    for one in what:
        try:
            one()
            found.append('done')
        except OSError as e:
            found.append(e.errno)
    return found
here = '/tmp/call/input/'
refused = tried(lambda: open(here + 'a.csv', 'w'), lambda: open(here + 'new', 'w'),
    lambda: os.remove(here + 'a.csv'), lambda: os.chmod(here + 'a.csv', 0o666),
    lambda: os.rename('/tmp/call/input', '/tmp/call/x'), lambda: os.link(here + 'a.csv', '/tmp/l'))
out = os.environ['TOOL_OUTPUT'] + '/'
read = open(json.loads(os.environ['TOOL_FILES'])[0]).read()
open(out + 'copy.csv', 'w').write(read * 2)
open(out + 'page.png', 'w').write('<html><script>alert(1)</script></html>')
open(out + 'picture.svg', 'w').write('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')
open(out + 'dot.txt', 'wb').write(bytes.fromhex('89504e470d0a1a0a0000000d49484452'))
open(out + 'a\\nb', 'w').write('x')
os.symlink('/etc/passwd', out + 'link')
os.mkfifo(out + 'pipe')
os.mkdir(out + 'folder')
open(out + 'one', 'w').write('x')
os.link(out + 'one', out + 'two')
print(json.dumps([len(set(refused) & {'done'}), read, sorted(os.listdir('/tmp/call'))]))
";

/// A tool that runs this script, and the path of a file that a call brings.
fn playground(who: Who, script: &str, more: Value) -> (Playground, String) {
    let playground = Playground::with(who, &[("files", "python", script, more)]);
    let file = playground.path("home/a.csv");
    fs::write(&file, "a,b\n").unwrap();
    playground.settle();
    (playground, format!("file=@{}", file.display()))
}

fn call(playground: &Playground, more: &[&str]) -> Ended {
    let mut all = vec!["call", "esc:files", "--json"];
    all.extend(more);
    playground.cli(&all)
}

fn artifact<'a>(out: &'a Value, name: &str) -> &'a Value {
    let all = out["artifacts"].as_array().unwrap();
    let path = format!("output/{name}");
    all.iter()
        .find(|one| one["path"] == *path)
        .unwrap_or_else(|| panic!("{name}: {out}"))
}

#[test]
fn files_are_read_only_and_only_plain_results_are_stored() {
    as_everyone("files of a call", |who| {
        let (playground, file) = playground(who, HOSTILE, json!({}));
        let folder = playground.path("home/results");
        let ended = call(
            &playground,
            &[&file, "--output-dir", &folder.display().to_string()],
        );
        fits("ok [0, \"a,b\\n\", [\"input\", \"output\"]]", &ended).unwrap();
        for (name, media_type) in [
            ("copy.csv", "text/plain"),
            ("page.png", "text/html"),
            ("dot.txt", "image/png"),
        ] {
            let stored = artifact(&ended.out, name);
            assert_eq!(stored["mediaType"], media_type, "{stored}");
            assert_eq!(stored["name"], name);
            assert_eq!(stored["sha256"].as_str().unwrap().len(), 64);
        }
        let svg = artifact(&ended.out, "picture.svg");
        assert!(!svg["mediaType"].as_str().unwrap().starts_with("image/"));
        for (name, why) in [
            ("link", "symbolic link"),
            ("pipe", "not a regular file"),
            ("folder", "not a regular file"),
            ("one", "hard link"),
            ("two", "hard link"),
            ("a\\nb", "do not print"),
        ] {
            let dropped = artifact(&ended.out, name);
            assert_eq!(dropped["published"], false, "{dropped}");
            let words = dropped["droppedBecause"].as_str().unwrap();
            assert!(words.contains(why), "{dropped}");
        }
        let text = fs::read_to_string(folder.join("copy.csv")).unwrap();
        assert_eq!(text, "a,b\na,b\n");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
    });
}

#[test]
fn code_works_in_the_folder_of_its_call_and_reads_its_files_again_by_id() {
    let (playground, file) = playground(Who::ours(), "print(1)", json!({}));
    playground.allow_builtin_tools();
    playground.settle();
    let code = "import os; open('output/b.csv', 'w').write(open('input/' + \
        os.listdir('input')[0]).read() + '1,2\\n'); print(os.getcwd())";
    let run = |more: &str| {
        let code = format!("code={code}");
        playground.cli(&[
            "call",
            "core:run-code",
            "--json",
            "language=python",
            &code,
            more,
        ])
    };
    let first = run(&file);
    assert_eq!(first.out["outputData"], "/tmp/call", "{first:?}");
    let id = artifact(&first.out, "b.csv")["id"].as_str().unwrap();
    let second = run(&format!("files=[\"{id}\"]"));
    assert_eq!(artifact(&second.out, "b.csv")["bytes"], 12, "{second:?}");
    let uri = run("files=[\"data:text/csv;name=x.csv;base64,YSxiCg==\"]");
    assert_eq!(artifact(&uri.out, "b.csv")["bytes"], 8, "{uri:?}");
    for (files, why) in [
        (
            "data:text/csv;name=..%2Fx;base64,YQ==",
            "cannot name a file",
        ),
        ("data:text/csv;name=a%0Ab;base64,YQ==", "cannot name a file"),
        ("data:text/csv;name=..;base64,YQ==", "cannot name a file"),
        ("data:text/csv;name=x;base64,=", "must hold a file"),
        ("/etc/passwd", "must hold a file"),
        ("01932d5b4f3c7d2e8a9b0c1d2e3f4a5b", "no such artifact"),
    ] {
        let ended = run(&format!("files=[\"{files}\"]"));
        fits(&format!("ParameterValidationError: {why}"), &ended).unwrap();
    }
    let twice = run("files=[\"data:,a\", \"data:;name=files-1,b\"]");
    fits("ParameterValidationError: Two files", &twice).unwrap();
}

#[test]
fn limits_of_files_hold_in_both_directions_and_nothing_is_stored() {
    let script = "import json, os, sys
asked = {name: int(text) for name, text in json.load(sys.stdin).items()}
for n in range(asked.get('count', 0)):
    open('/tmp/call/output/%d' % n, 'wb').truncate(asked['bytes'])
if asked.get('fails'):
    sys.exit(3)
print(len(os.listdir('/tmp/call/input')))
";
    let limits = json!({"limits": {"artifactFiles": 2, "artifactBytes": 1000}});
    let (playground, file) = playground(Who::ours(), script, limits);
    let big = playground.path("home/big");
    fs::write(&big, vec![0; 1001]).unwrap();
    let big = format!("file=@{}", big.display());
    for (words, wanted) in [
        (vec![file.as_str()], "ok 1"),
        (vec![&file, &file], "ParameterValidationError: Two files"),
        (
            vec![&big],
            "ParameterValidationError: artifactBytes allows 1000",
        ),
        (
            vec![&file, &file, &file],
            "ParameterValidationError: artifactFiles allows 2",
        ),
        (vec!["count=2", "bytes=500"], "ok 0"),
        (
            vec!["count=3", "bytes=1"],
            "ResourceLimitError: artifactFiles",
        ),
        (
            vec!["count=2", "bytes=501"],
            "ResourceLimitError: artifactBytes",
        ),
        (vec!["count=1", "bytes=1", "fails=1"], "ScriptError"),
    ] {
        let ended = call(&playground, &words);
        fits(wanted, &ended).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    }
    let stored = fs::read_dir(playground.path("state/artifacts")).unwrap();
    // The two of the call that ended well: content and owner of each.
    let names: Vec<_> = stored.map(|one| one.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn the_oldest_artifacts_of_a_principal_go_first() {
    let script = "open('/tmp/call/output/x', 'wb').write(b'x' * 600)\nprint(1)\n";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let config = playground.path("state/config.toml");
    fs::write(&config, "[artifacts]\nbytes_per_caller = 1500\nhours = 1\n").unwrap();
    playground.settle();
    let config = config.display().to_string();
    let store = |user: &str| {
        let ended = playground.cli(&[
            "--config",
            &config,
            "call",
            "esc:files",
            "--json",
            "--user",
            user,
        ]);
        artifact(&ended.out, "x")["id"].as_str().unwrap().to_owned()
    };
    let ids = ["ann", "bob", "ann"].map(store);
    let is_there = |id: &str| playground.path("state/artifacts").join(id).exists();
    let there: Vec<bool> = ids.iter().map(|id| is_there(id)).collect();
    assert_eq!(there, [false, true, true]);
}

#[test]
fn a_script_is_told_of_its_call_only_if_its_manifest_requests_that() {
    let script = "import os; print(os.environ.get('TOOL_CONTEXT', 'null'))";
    for (context, is_told) in [(true, true), (false, false)] {
        let more = json!({"execution": {"context": context}});
        let (playground, file) = playground(Who::ours(), script, more);
        let ended = call(&playground, &[&file, "--user", "ann"]);
        let told = &ended.out["outputData"];
        assert_eq!(told.is_object(), is_told, "{ended:?}");
        if is_told {
            assert_eq!(told["callId"], ended.out["id"]);
            assert_eq!(told["user"], "ann");
            assert_eq!(told["files"], json!([{"name": "a.csv", "bytes": 4}]));
        }
    }
}

/// A hundred calls at once: each sees its own id, user and file, and nothing of another.
#[test]
fn calls_at_once_see_only_their_own_context_and_files() {
    let script = "import json, os
context = json.loads(os.environ['TOOL_CONTEXT'])
files = {name: open('/tmp/call/input/' + name).read() for name in os.listdir('/tmp/call/input')}
print(json.dumps([context['callId'], context['user'], context['files'], files, os.environ.get('TRACEPARENT')]))
";
    let more =
        json!({"execution": {"context": true, "timeoutMs": 120_000, "env": {"TRACEPARENT": ""}}});
    let (playground, _) = playground(Who::ours(), script, more);
    let limits =
        "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[limits]\ntimeout_ms = 120_000\n";
    playground.policy("slow", "esc:files", limits);
    playground.settle();
    let web = Web::start(&playground, &[]);
    std::thread::scope(|scope| {
        let web = &web;
        for n in 0..100 {
            scope.spawn(move || {
                let (user, name, text) = (format!("u{n}"), format!("{n}.csv"), format!("of {n}"));
                let trace = format!("{n:032x}", n = n + 1);
                let header = format!("traceparent: 00-{trace}-00000000000000aa-01");
                let request = json!({"arguments": {}, "user": user}).to_string();
                let body = form(&[("request", "", &request), ("x", &name, &text)]);
                let calls = "/v1/tools/esc:files/calls";
                let reply = web.ask("POST", calls, &[FORM, &header], &body);
                let reply = reply.is(200, "none").json();
                let own = &reply["outputData"];
                assert_eq!((&own[0], &own[1]), (&reply["id"], &json!(user)), "{reply}");
                let listed = json!([{"name": name, "bytes": text.len()}]);
                assert_eq!(
                    (&own[2], &own[3]),
                    (&listed, &json!({ &*name: text })),
                    "{reply}"
                );
                assert!(own[4].as_str().unwrap().contains(&trace), "{reply}");
            });
        }
    });
}

/// A form with these parts: name, file name, content.
pub fn form(parts: &[(&str, &str, &str)]) -> String {
    let mut body = String::new();
    for (name, file, content) in parts {
        let file = match *file {
            "" => String::new(),
            file => format!("; filename=\"{file}\""),
        };
        body += &format!(
            "--xYx\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{content}\r\n"
        );
    }
    body + "--xYx--\r\n"
}

pub const FORM: &str = "Content-Type: multipart/form-data; boundary=xYx";

#[test]
fn http_takes_forms_and_gives_files_to_their_owner_alone() {
    let script = "import os
for name in os.listdir('/tmp/call/input'):
    text = open('/tmp/call/input/' + name).read()
    open('/tmp/call/output/' + name, 'w').write(text)
print(len(os.listdir('/tmp/call/input')))
";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let (web, [ann, bob]) = Web::for_callers(&playground, ["ann", "bob"]);
    let post = |path: &str, parts: &[(&str, &str, &str)]| {
        web.ask("POST", path, &[&ann, FORM], &form(parts))
    };
    let calls = "/v1/tools/esc:files/calls";
    let page = "<html><script>alert(1)</script>";
    let reply = post(calls, &[("request", "", "{}"), ("x", "page.html", page)]);
    let reply = reply.is(200, "none").json();
    let stored = artifact(&reply, "page.html");
    assert_eq!(stored["mediaType"], "text/html");
    let path = format!("/v1/artifacts/{}", stored["id"].as_str().unwrap());
    let own = web.get(&path, &[&ann]);
    assert_eq!((own.status, own.body.as_str()), (200, page));
    assert_eq!(own.header("x-content-type-options"), Some("nosniff"));
    let disposition = own.header("content-disposition").unwrap();
    assert!(disposition.starts_with("attachment;"), "{disposition}");
    assert!(
        disposition.contains("; filename=\"page.html\"; filename*="),
        "{disposition}"
    );
    // The request is the request, also when a client sends it as a file.
    let request = json!({"arguments": {}, "files": [stored["id"]]}).to_string();
    let reply = post(calls, &[("request", "rq.json", &request), ("x", "a", "1")]);
    assert_eq!(reply.is(200, "none").json()["outputData"], 2);
    // A name that ASCII cannot show, and those of files that other programs obey.
    for (name, plain, whole) in [
        ("\u{fc}.csv", "_.csv", "%C3%BC%2Ecsv"),
        (".profile", "_profile", "%5Fprofile"),
        ("package.json", "_package.json", "%5Fpackage%2Ejson"),
    ] {
        let reply = post(calls, &[("x", name, "1")]);
        let stored = artifact(&reply.is(200, "none").json(), name).clone();
        let path = format!("/v1/artifacts/{}", stored["id"].as_str().unwrap());
        let own = web.get(&path, &[&ann]);
        let disposition = own.header("content-disposition").unwrap();
        assert!(
            disposition.ends_with(&format!("; filename=\"{plain}\"; filename*=UTF-8''{whole}")),
            "{disposition}"
        );
    }
    assert_eq!(web.get(&path, &[&bob]).status, 404);
    assert_eq!(
        web.get("/v1/artifacts/..%2Faudit.jsonl", &[&ann]).status,
        404
    );
    // By its id: for its owner, and for nobody else.
    let again = json!({"arguments": {}, "files": [stored["id"]]});
    let reused = web.call("esc:files", &again, &[&ann]);
    assert_eq!(reused.is(200, "none").json()["outputData"], 1);
    web.call("esc:files", &again, &[&bob])
        .is(422, "ParameterValidationError: no such artifact");
    let long = "x".repeat(256);
    for name in ["../x", "a/b", "..", &long] {
        post(calls, &[("x", name, "1")]).is(422, "ParameterValidationError: cannot name");
    }
    post(calls, &[("x", "a", "1"), ("y", "a", "2")]).is(422, "ParameterValidationError: Two files");
    post(calls, &[("other", "", "1")]).is(400, "ParameterValidationError: one part named request");
    // One file for a tool of a batch, one for another, one for all.
    let batch = json!({"calls": [{"tool": "esc:files"}]}).to_string();
    let parts = [
        ("request", "", batch.as_str()),
        ("esc:files", "one", "1"),
        ("esc:other", "two", "2"),
        ("_all", "three", "3"),
    ];
    let reply = post("/v1/calls", &parts);
    assert!(reply.body.contains("\"outputData\":2"), "{reply:?}");
    assert!(!reply.body.contains("output/two"), "{reply:?}");
}

#[test]
fn mcp_takes_files_in_arguments_and_shows_pictures() {
    let script = "import json, os, sys
png = bytes.fromhex('89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de')
open('/tmp/call/output/plot.png', 'wb').write(png)
open('/tmp/call/output/page.png', 'w').write('<html><script>x</script>')
print(json.dumps(open(json.load(sys.stdin)['data']).read()))
";
    let parameters = json!({"type": "object", "properties": {
        "data": {"type": "string", "format": "file"}}});
    let (playground, _) = playground(Who::ours(), script, json!({"parameters": parameters}));
    let mut server = Server::start(&playground);
    let hello = server.hello();
    server.answers(&[hello]);
    for data in ["YSxiCg==", "data:text/csv;name=x.csv;base64,YSxiCg=="] {
        let answer = server.called("esc__files", json!({"data": data}));
        let content = answer["result"]["content"].as_array().unwrap().clone();
        assert!(
            content[0]["text"].as_str().unwrap().contains("a,b"),
            "{answer}"
        );
        let pictures = content.iter().filter(|block| block["type"] == "image");
        assert_eq!(pictures.count(), 1, "{answer}");
        let words = answer["result"].to_string();
        assert!(words.contains("page.png (text/html, 24 bytes)"), "{answer}");
        let link = content.iter().find(|block| block["name"] == "page.png");
        let uri = link.unwrap()["uri"].clone();
        let read = server.asked("resources/read", json!({ "uri": uri }));
        assert!(read["result"].to_string().contains("<script>"), "{read}");
    }
    let missing = json!({"uri": "artifact://01932d5b4f3c7d2e8a9b0c1d2e3f4a5b"});
    let read = server.asked("resources/read", missing);
    assert!(read["error"].is_object(), "{read}");
}

#[test]
fn a_full_disk_loses_no_earlier_artifact() {
    if !is_root() {
        return skipped(1, "a small file system needs root");
    }
    let script = "open('/tmp/call/output/x', 'wb').write(b'x' * 700_000)\nprint(1)\n";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let disk = playground.path("state");
    let run = |program: &str, arguments: &[&str]| {
        let ran = Command::new(program).args(arguments).arg(&disk).status();
        assert!(ran.unwrap().success(), "{program}");
    };
    run("mount", &["-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs"]);
    playground.settle();
    let ended = [(); 3].map(|()| call(&playground, &[]));
    let ids: Vec<_> = fs::read_dir(disk.join("artifacts"))
        .unwrap()
        .map(|one| one.unwrap().file_name().into_string().unwrap())
        .collect();
    run("umount", &[]);
    for stored in &ended[..2] {
        let id = artifact(&stored.out, "x")["id"].as_str().unwrap();
        assert!(ids.iter().any(|name| name == id), "{ids:?}");
    }
    fits("InternalError: could not store it", &ended[2]).unwrap();
    assert_eq!(ids.len(), 4, "{ids:?}");
}

/// Whatever a form is made of, it takes no more than the files that a call may bring.
#[test]
fn forms_hold_no_more_than_their_files() {
    let script = "import os; print(len(os.listdir('/tmp/call/input')))\n";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let web = Web::start(&playground, &[]);
    let calls = "/v1/tools/esc:files/calls";
    let names: Vec<String> = (0..2000).map(|n| n.to_string()).collect();
    let files = |count: usize| {
        let empty = names[..count].iter().map(|name| ("x", name.as_str(), ""));
        form(
            &[("request", "", "{}")]
                .into_iter()
                .chain(empty)
                .collect::<Vec<_>>(),
        )
    };
    let most = web.ask("POST", calls, &[FORM], &files(32));
    assert_eq!(most.is(200, "none").json()["outputData"], 32, "the control");
    let held = || fs::read_dir(format!("/proc/{}/fd", web.child.id())).map_or(0, Iterator::count);
    let before = held();
    let list =
        json!({"arguments": {"language": "python", "code": "1", "files": vec!["YQ=="; 100_000]}});
    let numbers = format!("[{}1]", "0,".repeat(3 << 20));
    let text =
        json!({"arguments": {"language": "python", "code": "1", "files": numbers}}).to_string();
    let long = "x".repeat(20 << 20);
    for (what, path, headers, body) in [
        ("files", calls, &[FORM][..], files(2000)),
        ("a preamble", calls, &[FORM], long.clone() + &files(1)),
        (
            "a head",
            calls,
            &[FORM],
            form(&[("request", "", "{}"), (&long, "a", "1")]),
        ),
        (
            "a list",
            "/v1/tools/core:run-code/calls",
            &[],
            list.to_string(),
        ),
        ("a text", "/v1/tools/core:run-code/calls", &[], text),
    ] {
        let sent = std::thread::scope(|scope| {
            let asking = scope.spawn(|| web.ask("POST", path, headers, &body));
            let mut most = 0;
            while !asking.is_finished() {
                most = most.max(held());
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(
                most < before + 200,
                "{what}: {most} descriptors, {before} before"
            );
            asking.join().unwrap()
        });
        assert!((400..500).contains(&sent.status), "{what}: {sent:?}");
    }
    wait_for("nothing is kept", || held() <= before);
    let after = web.ask("POST", calls, &[FORM], &files(32));
    assert_eq!(after.is(200, "none").json()["outputData"], 32);
}

/// A form that never ends holds its files, which are descriptors of the host.
#[test]
fn slow_forms_leave_descriptors_for_calls() {
    let (playground, _) = playground(Who::ours(), "print(1)\n", json!({}));
    let mut few = playground.outside("/usr/bin/prlimit");
    few.arg("--nofile=1024:1024");
    let mut host = playground.host_by(few);
    host.args(["serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(host, None).unwrap();
    let part = "--xYx\r\nContent-Disposition: form-data; name=\"x\"; filename=";
    let parts: String = (0..100)
        .map(|n| format!("{part}\"{n}\"\r\n\r\n1\r\n"))
        .collect();
    let half = format!(
        "POST /v1/tools/esc:files/calls HTTP/1.1\r\nHost: localhost\r\n{FORM}\r\nContent-Length: 100000\r\n\r\n{parts}"
    );
    let slow: Vec<_> = (0..30)
        .map(|_| {
            let mut stream = web.connect();
            // A form without room is answered, and its connection closed.
            let _ = stream.write_all(half.as_bytes());
            stream
        })
        .collect();
    let held = || fs::read_dir(format!("/proc/{}/fd", web.child.id())).map_or(0, Iterator::count);
    wait_for("forms wait", || held() > 100);
    std::thread::sleep(Duration::from_secs(1));
    assert!(held() < 600, "{}", held());
    let answer = web.call("esc:files", &json!({}), &[]);
    assert_eq!(answer.is(200, "none").json()["outputData"], 1);
    drop(slow);
}

#[test]
fn what_a_call_leaves_becomes_no_definition_and_no_hidden_file_of_its_caller() {
    let script = "for name in ['plain.txt', '.bashrc', 'x.tool.json', 'x.policy.toml', 'package.json']:\n    \
        open('/tmp/call/output/' + name, 'w').write('x')\nprint(1)\n";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let folder = playground.path("home/results");
    let ended = call(
        &playground,
        &["--output-dir", &folder.display().to_string()],
    );
    assert_eq!(
        artifact(&ended.out, ".bashrc")["published"],
        true,
        "the control"
    );
    let written: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    assert_eq!(written, ["plain.txt"], "{ended:?}");
}

/// The person who is asked reads which files the call brings, and these are what it runs with.
#[test]
fn files_wait_with_their_call_for_a_person() {
    let script = "print(open('/tmp/call/input/a.csv').read())\n";
    let (playground, _) = playground(Who::ours(), script, json!({}));
    let rest = "confirm = \"it is a test\"\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    playground.policy("asks", "esc:files", rest);
    playground.settle();
    let (web, [ann, ops]) = Web::for_callers(&playground, ["ann", "ops!"]);
    let body = form(&[("request", "", "{}"), ("x", "a.csv", "7")]);
    let reply = std::thread::scope(|scope| {
        let calls = "/v1/tools/esc:files/calls";
        let calling = scope.spawn(|| web.ask("POST", calls, &[&ann, FORM], &body));
        let asked = || web.get("/v1/approvals", &[&ops]).json()["approvals"].clone();
        wait_for("somebody is asked", || {
            asked().as_array().is_some_and(|all| all.len() == 1)
        });
        let question = asked()[0].clone();
        let touches = question["touches"].to_string();
        assert!(
            touches.contains("a.csv") && touches.contains("1 bytes"),
            "{touches}"
        );
        let path = format!("/v1/approvals/{}", question["call"].as_str().unwrap());
        web.ask("POST", &path, &[&ops], "{\"approve\": true}")
            .is(200, "none");
        calling.join().unwrap()
    });
    assert_eq!(reply.is(200, "none").json()["outputData"], 7);
}
