//! Ordinary code gets the answers that it gets elsewhere: what it prints arrives whole, the machine
//! answers questions about itself, processes of one call work together.

use crate::prelude::*;

/// What a script prints before it ends itself, and how many characters that are.
const PRINTED: [(&str, &str, usize); 4] = [
    ("one", "process.stdout.write('y'.repeat(400000))", 400_000),
    ("large", "process.stdout.write('y'.repeat(1e7))", 10_000_000),
    (
        "many",
        "for (let i = 0; i < 1e5; i++) process.stdout.write('y'.repeat(100))",
        10_000_000,
    ),
    (
        "child",
        "require('child_process').spawnSync(process.execPath, ['-e', \
         \"process.stdout.write('y'.repeat(400000)); process.exit(0)\"], {stdio: 'inherit'})",
        400_000,
    ),
];

#[test]
fn what_a_script_printed_before_it_ended_itself_arrives_whole() {
    let limits = "[limits]\noutput_bytes = 16_000_000\n";
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.policy("printing", "esc:*", limits);
        let more = json!({"execution": {"output": "text"}, "limits": {"outputBytes": 16_000_000}});
        for (name, does, _) in PRINTED {
            for language in ["nodejs", "bun"] {
                let script = format!("{does};\nprocess.exit(0)\n");
                playground.tool(
                    &format!("{language}-{name}"),
                    language,
                    &script,
                    more.clone(),
                );
            }
        }
        playground.tool(
            "cut",
            "nodejs",
            "process.stdout.write('{\"a\": [1')",
            json!({}),
        );
        playground.settle();
        for (name, _, count) in PRINTED {
            for language in ["nodejs", "bun"] {
                let ended = playground.call(&format!("esc:{language}-{name}"), "{}");
                let text = ended.out["outputData"].as_str().unwrap_or_default();
                assert_eq!(
                    text.len(),
                    count,
                    "{who:?} {language} {name}: {}",
                    ended.stderr
                );
            }
        }
        playground.expect("esc:cut", "{}", "ScriptError: after 8 bytes");
        // The control: outside, a reader that is late gets what the pipe holds.
        let mut late = playground.outside("/bin/sh");
        let script = playground.path("user_scripts/nodejs-one/main.js");
        late.args(["-c", "node \"$0\" | (sleep 1; wc -c)"])
            .arg(script);
        let printed = String::from_utf8(late.output().unwrap().stdout).unwrap();
        let count: usize = printed.trim().parse().unwrap();
        assert!(count < 400_000, "the control: {count}");
    }
}

const ASKS: &str = "import json, socket\nname = socket.gethostname()\n\
    socket.getaddrinfo(name, 'https')\nsocket.gethostbyaddr(socket.gethostbyname(name))\n\
    print(json.dumps([n for _, n in socket.if_nameindex()]))\n";
const ASKS_IN_NODE: &str = "const os = require('os');\nos.networkInterfaces(); os.userInfo(); \
    os.cpus(); os.uptime();\n\
    require('dns').lookup(os.hostname(), (e, at) => console.log(JSON.stringify(at)))\n";

#[test]
fn the_machine_answers_questions_about_itself() {
    for who in Who::both() {
        let none = json!({});
        let tools = [
            ("python", "python", ASKS, none.clone()),
            ("node", "nodejs", ASKS_IN_NODE, none.clone()),
            ("bun", "bun", ASKS_IN_NODE, none),
        ];
        let playground = Playground::with(who, &tools);
        for (tool, answer) in [
            ("python", json!(["lo"])),
            ("node", json!("127.0.0.1")),
            ("bun", json!("127.0.0.1")),
        ] {
            let ended = playground.call(&format!("esc:{tool}"), "{}");
            assert_eq!(
                ended.out["outputData"], answer,
                "{who:?} {tool}: {}",
                ended.out
            );
        }
    }
}

#[test]
fn a_script_that_a_core_tool_runs_answers_with_any_value() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    for (number, text) in ["[1, 2]", "3", "\"x\"", "true"].iter().enumerate() {
        let path = format!("user_scripts/own/{number}.py");
        fs::create_dir_all(playground.path("user_scripts/own")).unwrap();
        fs::write(playground.path(&path), format!("print('{text}')\n")).unwrap();
        playground.settle();
        let input = json!({"scriptPath": format!("own/{number}.py"), "language": "python"});
        for tool in ["core:execute-script", "core:execute-python-script"] {
            let mut input = input.clone();
            if tool.contains("python") {
                input.as_object_mut().unwrap().remove("language");
            }
            let ended = playground.call(tool, &input.to_string());
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(ended.out["outputData"], value, "{tool} {}", ended.out);
        }
    }
}

#[test]
fn a_function_without_an_answer_learns_what_to_write_and_its_draft_has_it() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "def run(\n    a: int = 1,\n) -> None:\n    print(a)\n";
    let folder = playground.tool("nothing", "python", script, json!({}));
    let path = folder.join("nothing.tool.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["handler"]["entryPoint"] = json!("run");
    fs::write(&path, manifest.to_string()).unwrap();
    playground.settle();
    let advised = "\"output\": {\"type\": \"null\"}";
    playground.expect(
        "esc:nothing",
        "{}",
        &format!("OutputValidationError: {advised}"),
    );
    let file = folder.join("main.py").display().to_string();
    let made = playground.cli(&["new", "draft:quiet", "--script", &file, "--entry", "run"]);
    assert!(made.stderr.is_empty(), "{}", made.stderr);
    playground.expect("draft:quiet", "{}", "ok");
}

#[test]
fn a_policy_names_bun_for_node_and_learns_why_not_uv() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "console.log(JSON.stringify(Boolean(process.versions.bun)))\n";
    playground.tool("bun", "nodejs", script, json!({}));
    playground.tool("uv", "python", "print(1)\n", json!({}));
    let bun = which("bun");
    let named = format!("[runtimes]\nnodejs = {{ path = \"{bun}\", why = \"a test\" }}\n");
    playground.policy("bun", "esc:bun", &named);
    let uv = "[runtimes]\npython = { path = \"/usr/bin/env\", why = \"a test\" }\n";
    playground.policy("uv", "esc:uv", uv);
    playground.settle();
    let ended = playground.call("esc:bun", "{}");
    assert_eq!(ended.out["outputData"], true, "{}", ended.out);
    let mut check = playground.host();
    let said = check.args(["audit", "esc:uv"]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("uv python find"), "{said}");
}

fn which(program: &str) -> String {
    SEARCH_PATH
        .split(':')
        .map(|folder| Path::new(folder).join(program))
        .find_map(|path| path.canonicalize().ok())
        .expect("it is on the search path")
        .display()
        .to_string()
}

const SPAWNS: &str = "import multiprocessing\nfrom multiprocessing import shared_memory\n\
def square(x):\n    return x * x\n\
def put(queue, lock, n):\n    with lock:\n        queue.put(n)\n\
def run():\n    c = multiprocessing.get_context('spawn')\n    print('to the log')\n\
\x20   with c.Pool(2) as pool:\n        squares = pool.map(square, range(3))\n\
\x20   queue, lock = c.Queue(), c.Lock()\n\
\x20   all = [c.Process(target=put, args=(queue, lock, n)) for n in range(3)]\n\
\x20   [p.start() for p in all]\n    sent = sorted(queue.get(timeout=20) for _ in all)\n\
\x20   [p.join() for p in all]\n\
\x20   shared = shared_memory.SharedMemory(create=True, size=9)\n    shared.buf[0] = 7\n\
\x20   return [squares, sent, shared.buf[0]]\n";

/// Also of a script that has the name of a module of Python, which others import.
#[test]
fn processes_that_a_function_spawned_have_its_functions_and_locks() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        for name in ["squares", "wave"] {
            let file = format!("{name}/{name}.py");
            let folder =
                playground.tool_at(&format!("esc:{name}"), "python", &file, SPAWNS, json!({}));
            let path = folder.join(format!("esc-{name}.tool.json"));
            let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            manifest["handler"]["entryPoint"] = json!("run");
            fs::write(&path, manifest.to_string()).unwrap();
        }
        playground.settle();
        for name in ["squares", "wave"] {
            let ended = playground.call(&format!("esc:{name}"), "{}");
            let answer = json!([[0, 1, 4], [0, 1, 2], 7]);
            assert_eq!(
                ended.out["outputData"], answer,
                "{who:?} {name}: {}",
                ended.out
            );
        }
    }
}

const LOCKS: &str = "import json, multiprocessing, os, sys\n\
def answer(run):\n    try:\n        run()\n        return 'ok'\n\
\x20   except OSError as e:\n        return errno.errorcode[e.errno]\nimport errno\n\
multiprocessing.Lock()\nopen('/dev/shm/a', 'w').close()\nopen('out/a', 'w').close()\n\
print(json.dumps([answer(lambda: os.link(a, b)) for a, b in [\
('/dev/shm/a', '/dev/shm/b'), ('/dev/shm/a', 'out/b'), ('out/a', 'out/b'), \
('out/a', '/dev/shm/c'), ('/dev/shm/../../dev/shm/a', '/dev/shm/d')]]))\n";

/// The C library makes a semaphore by a link in /dev/shm. Every other link stays refused where a
/// folder is written live, also with refusals recorded.
#[test]
fn locks_work_beside_a_folder_that_is_written() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let writes = json!({"securityContext": {"fileAccess": {"allowWrite": ["out/**"]}}});
        let folder = playground.tool("locks", "python", LOCKS, writes);
        fs::create_dir(folder.join("out")).unwrap();
        playground.allow("locks", "esc:locks", &["./**"], &["./out/**"]);
        playground.settle();
        for more in [&[][..], &["--explain"]] {
            let ended = playground.call_with("esc:locks", "{}", more);
            let answers = json!(["ok", "EPERM", "EPERM", "EPERM", "EPERM"]);
            assert_eq!(
                ended.out["outputData"], answers,
                "{who:?} {more:?}: {}",
                ended.stderr
            );
        }
        // The control: the same links, outside.
        let mut outside = playground.outside(PYTHON);
        let script = LOCKS.replace("/dev/shm", &playground.path("home").display().to_string());
        outside.args(["-c", &script]).current_dir(&folder);
        let ended = finish(outside, b"");
        assert_eq!(ended.out[1], "ok", "{}", ended.stderr);
    }
}

const LOCAL: &str = include_str!("ordinary/local.py");
const GRANT: &str = "[capabilities]\ngrant = [{ name = \"local-sockets\", why = \"a test\" }]\n";

fn requires_sockets(hosts: &[&str], read: &[&str]) -> Value {
    let read = [&["./*"], read].concat();
    json!({"securityContext": {
        "requiredCapabilities": ["local-sockets"],
        "networkAccess": {"allowHosts": hosts},
        "fileAccess": {"allowRead": read, "allowWrite": ["out/**"]},
    }})
}

const FILES: &str = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                     write = [{ path = \"./out/**\", why = \"a test\" }]\n";

/// Sockets of its own: they work within the call, and reach nothing else.
#[test]
fn sockets_of_its_own_reach_nothing_but_the_call() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let host = "api.example.com:40000";
        let network = format!("[network]\nhosts = [{{ host = \"{host}\", why = \"a test\" }}]\n");
        for (name, hosts, rest) in [("own", &[][..], String::new()), ("named", &[host], network)] {
            let folder = playground.tool(name, "python", LOCAL, requires_sockets(hosts, &[]));
            fs::create_dir(folder.join("out")).unwrap();
            let rest = format!("{GRANT}{FILES}{rest}");
            playground.policy(name, &format!("esc:{name}"), &rest);
        }
        let none = json!({});
        playground.tool("none", "python", LOCAL, none);
        playground.settle();
        let (tcp, _) = playground.listeners.ports();
        let name = &playground.listeners.abstract_name;
        let input = json!({"tcp": tcp, "abstract": name, "relay": 40_000}).to_string();
        playground.listeners.heard();
        for tool in ["esc:own", "esc:named"] {
            let ended = playground.call(tool, &input);
            let said = &ended.out["outputData"];
            for works in ["forkserver", "manager", "server", "server by IPv6", "file"] {
                assert_eq!(said[works], "ok", "{who:?} {tool} {works}: {}", ended.out);
            }
            for attack in [
                "host",
                "host abstract",
                "in a write tree",
                "relay",
                "relay elsewhere",
            ] {
                assert_ne!(said[attack], "ok", "{who:?} {tool} {attack}: {}", ended.out);
            }
        }
        assert_eq!(
            playground.listeners.heard(),
            0,
            "nobody outside hears anything"
        );
        // The controls: what is refused without it, and what is reached outside.
        let ended = playground.call_with("esc:none", &input, &["--explain"]);
        assert_eq!(ended.out["outputData"]["server"], "EPERM", "{}", ended.out);
        let mut outside = playground.outside(PYTHON);
        outside
            .args(["-c", LOCAL])
            .current_dir(playground.path("home"));
        fs::create_dir(playground.path("home/out")).unwrap();
        playground.settle();
        let ended = finish(outside, input.as_bytes());
        for attack in ["host", "host abstract", "in a write tree"] {
            assert_eq!(
                ended.out[attack], "ok",
                "outside {attack}: {}",
                ended.stderr
            );
        }
    }
}

/// A socket file at which somebody outside listens: no mount and no Landlock rule stops connect(2).
#[test]
fn sockets_of_its_own_are_refused_beside_socket_files_of_others() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let granted = playground.path("granted/ro").display().to_string();
    let outside = format!("{granted}/**");
    let prints = "print(1)\n";
    let own = playground.tool("own", "python", prints, requires_sockets(&[], &[]));
    fs::create_dir(own.join("out")).unwrap();
    playground.tool("wide", "python", prints, requires_sockets(&[], &[&outside]));
    playground.policy("own", "esc:own", &format!("{GRANT}{FILES}"));
    let read = FILES.replace(
        "read = [",
        &format!("read = [{{ path = \"{outside}\", why = \"w\" }}, "),
    );
    playground.policy("wide", "esc:wide", &format!("{GRANT}{read}"));
    playground.settle();
    playground.expect("esc:own", "{}", "ok");
    playground.expect("esc:wide", "{}", "SecurityError: ");
    let socket = std::os::unix::net::UnixListener::bind(own.join("out/others.sock")).unwrap();
    playground.expect("esc:own", "{}", "SecurityError: socket file");
    drop(socket);
    fs::remove_file(own.join("out/others.sock")).unwrap();
    playground.expect("esc:own", "{}", "ok");
}

const ASKS_PYTHON: &str = "import json, sys, urllib.request\n\
    at = json.load(sys.stdin)['at']\nprint(urllib.request.urlopen(at).status)\n";
const ASKS_NODE: &str = "const { at } = JSON.parse(require('fs').readFileSync(0, 'utf8'));\n\
    fetch(at).then(({ status }) => console.log(status))\n";
const SERVES: &str = "import http.server, ssl, sys\nclass Yes(http.server.BaseHTTPRequestHandler):\n\
\x20 def do_GET(self):\n\x20   self.send_response(200); self.end_headers()\n\
s = http.server.HTTPServer(('127.0.0.1', 0), Yes)\n\
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain(sys.argv[1], sys.argv[2])\n\
s.socket = c.wrap_socket(s.socket, server_side=True)\n\
print(s.server_port, flush=True); s.serve_forever()\n";

/// By one key of the policy, whatever the language.
#[test]
fn tools_trust_the_authority_that_a_policy_names_for_their_host() {
    let [authority, own, key] = certificates();
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, text) in [("ca.pem", &authority), ("own.pem", &own), ("key.pem", &key)] {
        fs::write(playground.path("sandbox-policies").join(name), text).unwrap();
    }
    playground.settle();
    let mut server = playground.outside(PYTHON);
    let folder = playground.path("sandbox-policies");
    server
        .args(["-c", SERVES])
        .arg(folder.join("own.pem"))
        .arg(folder.join("key.pem"));
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut port)
        .unwrap();
    let host = format!("127.0.0.1:{}", port.trim());
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": [host]}}});
    for (with, ca) in [("with", "ca = \"ca.pem\", "), ("without", "")] {
        for (language, script) in [
            ("python", ASKS_PYTHON),
            ("nodejs", ASKS_NODE),
            ("bun", ASKS_NODE),
        ] {
            playground.tool(
                &format!("{with}-{language}"),
                language,
                script,
                asks.clone(),
            );
        }
        let entry =
            format!("{{ host = \"{host}\", ranges = [\"127.0.0.0/8\"], {ca}why = \"a test\" }}");
        let tools = ["python", "nodejs", "bun"].map(|language| format!("esc:{with}-{language}"));
        playground.policy(
            with,
            &tools.join("\", \""),
            &format!("[network]\nhosts = [{entry}]\n"),
        );
    }
    playground.settle();
    let input = json!({"at": format!("https://{host}/")}).to_string();
    for language in ["python", "nodejs", "bun"] {
        let ended = playground.call(&format!("esc:with-{language}"), &input);
        assert_eq!(ended.out["outputData"], 200, "{language}: {}", ended.out);
        let ended = playground.call(&format!("esc:without-{language}"), &input);
        assert_eq!(
            ended.out["success"], false,
            "the control, {language}: {}",
            ended.out
        );
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// 128 is the limit: so many threads start, and one more names it, also where nothing counts.
#[test]
fn the_limit_of_threads_is_what_it_says_and_is_named() {
    let script = "import json, sys, threading, time\n\
        all = [threading.Thread(target=time.sleep, args=(0.3,)) for _ in range(json.load(sys.stdin)['n'])]\n\
        [t.start() for t in all]\n[t.join() for t in all]\nprint(len(all))\n";
    for who in Who::both() {
        let playground = Playground::with(who, &[("threads", "python", script, json!({}))]);
        playground.expect("esc:threads", "{\"n\": 120}", "ok");
        playground.expect(
            "esc:threads",
            "{\"n\": 200}",
            "ResourceLimitError: processes",
        );
        let ended = playground.call_with("esc:threads", "{\"n\": 200}", &["--explain"]);
        fits("ResourceLimitError: processes", &ended).unwrap();
    }
}

#[test]
fn a_byte_order_mark_is_read_and_utf_16_is_named() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("marked", "python", "\u{feff}print(1)\n", json!({}));
    let required = folder.join("requirements.txt");
    fs::write(&required, "\u{feff}# nothing\r\n").unwrap();
    playground.settle();
    playground.expect("esc:marked", "{}", "ok");
    fs::write(&required, b"\xff\xfeh\0u\0m\0").unwrap();
    let ended = playground.cli(&["call", "esc:marked"]);
    assert!(
        ended.stderr.contains("UTF-16: save it as UTF-8"),
        "{}",
        ended.stderr
    );
}
