//! Ordinary code gets the answers that it gets elsewhere: what it prints arrives whole, the machine
//! answers questions about itself, processes of one call work together.

mod uses;

use crate::prelude::*;
use std::io::IoSlice;
use std::os::fd::AsRawFd;

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
    let limits = "[limits]\noutput_bytes = 16_000_000\ntimeout_ms = 110_000\n";
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

/// For what starts many processes.
const LONG: &str =
    "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n[limits]\ntimeout_ms = 110_000\n";
const SPAWNS: &str = "import multiprocessing\nfrom multiprocessing import shared_memory\n\
def square(x):\n    return x * x\n\
def put(queue, lock, n):\n    with lock:\n        queue.put(n)\n\
def run():\n    c = multiprocessing.get_context('spawn')\n    print('to the log')\n\
\x20   with c.Pool(2) as pool:\n        squares = pool.map(square, range(3))\n\
\x20   queue, lock = c.Queue(), c.Lock()\n\
\x20   all = [c.Process(target=put, args=(queue, lock, n)) for n in range(3)]\n\
\x20   [p.start() for p in all]\n    sent = sorted(queue.get(timeout=100) for _ in all)\n\
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
        playground.policy("spawns", "esc:*", LONG);
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

/// The abstract name at which whoever connects gets a descriptor of `folder` (SCM_RIGHTS).
fn descriptors_of(folder: &Path) -> String {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let name = format!("{}-descriptors", folder.display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let folder = fs::File::open(folder).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folders, byte) = ([folder.as_raw_fd()], [IoSlice::new(b"x")]);
            let rights = [ControlMessage::ScmRights(&folders)];
            sendmsg::<()>(stream.as_raw_fd(), &byte, &rights, MsgFlags::empty(), None).unwrap();
        }
    });
    name
}

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
            let rest = format!("{GRANT}{FILES}{rest}[limits]\ntimeout_ms = 110_000\n");
            playground.policy(name, &format!("esc:{name}"), &rest);
        }
        let none = json!({});
        playground.tool("none", "python", LOCAL, none);
        playground.settle();
        let (tcp, _) = playground.listeners.ports();
        let name = &playground.listeners.abstract_name;
        let descriptors = descriptors_of(&playground.path("home"));
        let input = json!({"tcp": tcp, "abstract": name, "relay": 40_000,
                           "descriptors": descriptors})
        .to_string();
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
                "descriptor",
                "another name",
                "another name by TCP",
                "names elsewhere",
                "relay",
                "relay elsewhere",
            ] {
                assert_ne!(said[attack], "ok", "{who:?} {tool} {attack}: {}", ended.out);
            }
            for name in ["name", "name by TCP"] {
                let granted = said[name] == "ok";
                assert_eq!(
                    granted,
                    tool == "esc:named",
                    "{who:?} {tool}: {}",
                    ended.out
                );
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
        for attack in ["host", "host abstract", "in a write tree", "descriptor"] {
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
    for (with, ca) in [("with", "ca = \"ca.pem\", "), ("without", ""), ("own", "")] {
        for (language, script) in [
            ("python", ASKS_PYTHON),
            ("nodejs", ASKS_NODE),
            ("bun", ASKS_NODE),
        ] {
            let name = format!("{with}-{language}");
            let mut asks = asks.clone();
            if with == "own" {
                // The author's: a file of its folder, which its manifest names.
                let variable = if language == "python" {
                    "SSL_CERT_FILE"
                } else {
                    "NODE_EXTRA_CA_CERTS"
                };
                let file = playground.path(&format!("user_scripts/{name}/ca.pem"));
                asks["execution"] = json!({"env": {variable: file}});
            }
            let folder = playground.tool(&name, language, script, asks);
            fs::write(folder.join("ca.pem"), &authority).unwrap();
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
        for with in ["with", "own"] {
            let ended = playground.call(&format!("esc:{with}-{language}"), &input);
            assert_eq!(
                ended.out["outputData"], 200,
                "{with} {language}: {}",
                ended.out
            );
        }
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
    let script = "import json, sys, threading, time\nover = threading.Event()\n\
        all = [threading.Thread(target=over.wait) for _ in range(json.load(sys.stdin)['n'])]\n\
        try:\n    [t.start() for t in all]\nfinally:\n    time.sleep(0.3)\n    over.set()\n\
        [t.join() for t in all]\nprint(len(all))\n";
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

/// A distribution that the machine's Python has, and its version.
fn installed() -> Option<(String, String)> {
    let lists = "import importlib.metadata as m, re\nprint('\\n'.join(d.metadata['Name'] + ' ' + d.version \
        for d in m.distributions() if 'packages' in str(d.locate_file('')) and re.fullmatch('[0-9.]+', d.version)))";
    let listed = Command::new(crate::harness::PYTHON)
        .args(["-I", "-c", lists])
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let (name, version) = text.lines().next()?.split_once(' ')?;
    Some((name.to_owned(), version.to_owned()))
}

#[test]
fn requirements_that_the_interpreter_meets_need_no_policy() {
    let Some((name, version)) = installed() else {
        return skipped(1, "the machine's Python has no packages");
    };
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("has", "python", "print(1)\n", json!({}));
    for (required, wanted) in [
        (format!("{name}=={version}\n"), "ok 1"),
        // The controls: another version, and a package that it lacks.
        (
            format!("{name}>{version}\n"),
            "CapabilityError: its python packages",
        ),
        (
            format!("{name}=={version}\nno-such-thing\n"),
            "CapabilityError: its python packages",
        ),
    ] {
        fs::write(folder.join("requirements.txt"), &required).unwrap();
        playground.settle();
        playground.expect("esc:has", "{}", wanted);
    }
    fs::write(folder.join("requirements.txt"), name).unwrap();
    crate::requirements::says(
        &playground,
        &["audit", "esc:has", "--all"],
        &["the interpreter of this machine has them (not checked)"],
    );
}

const MANY: &str = "import json, os\ntexts = {n: open('data/' + n).read() for n in os.listdir('data') \
    if os.path.isfile('data/' + n)}\nprint(json.dumps([sum(map(len, texts.values())), \
    os.path.exists('data/below/deep.csv')]))\n";

#[test]
fn more_files_than_are_shown_one_by_one_are_shown_as_a_folder_without_the_others() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let asks =
            json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/*.csv"]}}});
        let folder = playground.tool("many", "python", MANY, asks);
        fs::create_dir_all(folder.join("data/below")).unwrap();
        fs::write(folder.join("data/below/deep.csv"), "secret").unwrap();
        for name in ["secret.txt", ".hidden.csv"] {
            fs::write(folder.join("data").join(name), "secret").unwrap();
        }
        let put = |count: usize| {
            for number in 0..count {
                fs::write(folder.join(format!("data/{number}.csv")), "x").unwrap();
            }
            playground.settle();
        };
        put(200);
        playground.expect("esc:many", "{}", "ok [200,false]");
        put(450);
        playground.expect("esc:many", "{}", "ok [450,false]");
        // A name that cannot be covered, and more others than are.
        let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"odd-\xff.csv");
        let odd = folder.join("data").join(odd);
        fs::write(&odd, "secret").unwrap();
        playground.expect("esc:many", "{}", "SecurityError: request the folder");
        fs::remove_file(odd).unwrap();
        for number in 0..200 {
            fs::write(folder.join(format!("data/{number}.txt")), "secret").unwrap();
        }
        playground.settle();
        playground.expect("esc:many", "{}", "SecurityError: request the folder");
    }
}

#[test]
fn a_closed_folder_of_somebody_else_is_left_alone() {
    if !is_root() {
        return skipped(1, "a folder of another user needs root");
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/**"]}}});
    let script = "import json, os\nopen('out/new', 'w').close()\ntry:\n    os.listdir('out/theirs')\n\
        except OSError as e:\n    print(json.dumps(e.strerror))\n";
    let folder = playground.tool("shares", "python", script, asks);
    playground.allow("shares", "esc:shares", &["./**"], &["./out/**"]);
    let theirs = folder.join("out/theirs");
    fs::create_dir_all(&theirs).unwrap();
    playground.settle();
    let close = |mode: u32| {
        std::os::unix::fs::chown(&theirs, Some(54321), Some(54321)).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).unwrap();
    };
    close(0o700);
    playground.expect("esc:shares", "{}", "ok \"Permission denied\"");
    // One that can be entered could hold anything.
    close(0o711);
    playground.expect("esc:shares", "{}", "SecurityError: make it readable");
}

const AROUND: &str = "import json, os\ncould = []\n\
    def tried(name, work):\n    try:\n        work()\n        could.append(name)\n    except OSError:\n        pass\n\
    here = os.getcwd()\n\
    tried('scratch', lambda: open('/tmp/a', 'w').close())\n\
    tried('link', lambda: os.symlink('a', '/tmp/link'))\n\
    tried('pipe', lambda: os.mkfifo('/tmp/pipe'))\n\
    tried('beside', lambda: open('beside', 'w').close())\n\
    tried('above', lambda: open('../above', 'w').close())\n\
    tried('root', lambda: open('../../root', 'w').close())\n\
    tried('read', lambda: open('data.txt').close())\n\
    print(json.dumps(could))\n";

#[test]
fn a_root_below_tmp_gets_the_answers_that_it_gets_elsewhere() {
    for who in Who::both() {
        for below in ["/var/tmp", "/tmp"] {
            let playground = Playground::new(who, below);
            let folder = playground.tool("around", "python", AROUND, json!({}));
            fs::write(folder.join("data.txt"), "").unwrap();
            let staged = json!({"securityContext": {"fileAccess": {"allowWrite": ["out/*.csv"]}}});
            let script = AROUND.replace("data.txt", "/tmp/a") + "open('out/a.csv', 'w').close()\n";
            playground.tool("staged", "python", &script, staged);
            playground.allow("staged", "esc:staged", &["./**"], &["./out/**"]);
            playground.settle();
            playground.expect("esc:around", "{}", r#"ok ["scratch","link","pipe","read"]"#);
            // Landlock cannot tell such a folder from the scratch around it: `check` says so, and
            // the refusal does.
            let wanted = if below == "/tmp" {
                r#"ok ["scratch","read"]"#
            } else {
                r#"ok ["scratch","link","pipe","read"]"#
            };
            playground.expect("esc:staged", "{}", wanted);
            let fails = "import os\nos.symlink('a', '/tmp/link')\nopen('no such file')\n";
            fs::write(playground.path("user_scripts/staged/main.py"), fails).unwrap();
            for verb in [&["check"][..], &["call", "esc:staged", "--input", "{}"]] {
                let ended = playground.cli(verb);
                let said = ended.text() + &ended.stderr;
                assert_eq!(
                    said.contains("links, pipes and sockets"),
                    below == "/tmp",
                    "{said}"
                );
            }
        }
    }
}

#[test]
fn a_module_in_src_is_named_before_its_import_fails() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json\nfrom demo.core import answer\nprint(json.dumps(answer))\n";
    let folder = playground.tool("layout", "python", script, json!({}));
    fs::create_dir_all(folder.join("src/demo")).unwrap();
    fs::write(folder.join("src/demo/core.py"), "answer = 42\n").unwrap();
    playground.settle();
    let said = || playground.cli(&["check"]).text();
    playground.expect("esc:layout", "{}", "ScriptError: demo");
    assert!(
        said().contains("main.py:2: `demo.core` lies in src/"),
        "{}",
        said()
    );
    // What it advises.
    let path = "import sys\nsys.path.insert(0, 'src')\n";
    fs::write(folder.join("main.py"), format!("{path}{script}")).unwrap();
    playground.settle();
    playground.expect("esc:layout", "{}", "ok 42");
    assert!(!said().contains("lies in src/"), "{}", said());
}
