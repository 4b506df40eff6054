//! Which names lead where: patterns, spellings, addresses that are not public, answers that change.

use super::{World, allow, allow_inside, in_both_worlds, in_our_world};
use crate::prelude::*;

/// The targets (host, port), each with how it ends; how the call ended, and who came.
fn connect(
    world: &World,
    asked: &[&str],
    allowed: &str,
    targets: &[(&str, u16, &str)],
) -> (Ended, Vec<String>) {
    world.tool(
        "connect",
        "python",
        include_str!("connects.py"),
        asked,
        allowed,
    );
    let pairs: Vec<_> = targets.iter().map(|(host, port, _)| (host, port)).collect();
    let (mut ended, heard) = world.called("esc:connect", &json!({"targets": pairs}));
    fits("ok", &ended).unwrap_or_else(|e| panic!("{asked:?}: {e}"));
    let out: Vec<String> = serde_json::from_value(ended.out["outputData"].take()).unwrap();
    assert_eq!(out.len(), targets.len(), "{asked:?}");
    for ((host, port, wanted), got) in targets.iter().zip(out) {
        assert_eq!(got, *wanted, "{host:?}:{port} of {asked:?}");
    }
    (ended, heard)
}

fn refused<'a>(ended: &'a Ended, target: &str) -> Vec<&'a Value> {
    let events = ended.out["network"]["events"].as_array().unwrap();
    events
        .iter()
        .filter(|event| event["target"] == target && !event["refused"].is_null())
        .collect()
}

/// The control: a plain program inside the world has an answer.
fn answers(world: &World, url: &str) {
    wait_for(url, || {
        let mut curl = world.inside("/usr/bin/curl");
        curl.args(["-gsf", "--max-time", "5", url]);
        finish(curl, b"").code == Some(0)
    });
}

#[test]
fn a_pattern_stands_for_its_names_and_no_others() {
    in_both_worlds("patterns", |world| {
        let targets = [
            ("a.wild.example", 80, "ok"),
            ("a.b.wild.example", 80, "ok"),
            ("A.WILD.Example", 80, "ok"),
            ("a.wild.example.", 80, "ok"),
            ("wild.example", 80, "no name"),
            ("awild.example", 80, "no name"),
            ("a.wild.example.evil.example.net", 80, "no name"),
            // The C library of the tool itself stops at the NUL; the request with such a Host is
            // refused.
            ("a.wild.example\0.evil.example.net", 80, "ok"),
            ("a.wild.example evil", 80, "no name"),
            ("user@a.wild.example", 80, "no name"),
            ("a.wild.example%00", 80, "no name"),
            ("api.example.com", 80, "no name"),
            ("a.wild.example", 7000, "refused"),
            ("45.20.0.1", 80, "reset"),
            ("0x2d140001", 80, "reset"),
            ("757334017", 80, "reset"),
            ("055.024.0.1", 80, "reset"),
            ("::ffff:45.20.0.1", 80, "reset"),
            ("2a0b::1", 80, "reset"),
            ("127.0.0.1", 80, "reset"),
            ("127.0.0.1", 22, "refused"),
            ("45.10.0.2", 80, "reset"),
            ("169.254.169.254", 80, "reset"),
        ];
        let (ended, heard) = connect(
            world,
            &["*.wild.example"],
            &allow("*.wild.example"),
            &targets,
        );
        assert_eq!(
            heard.iter().filter(|line| !line.starts_with("dns")).count(),
            4,
            "{heard:?}"
        );
        assert!(
            heard
                .iter()
                .all(|line| !line.contains("evil") && !line.contains("corp")),
            "{heard:?}"
        );
        assert_eq!(
            refused(&ended, "45.20.0.1:80")[0]["refused"]["rule"],
            "notGranted"
        );
        world.control("http://45.20.0.1/");
        // Addresses are reached where they are named as such.
        let asked = ["45.20.0.1:7000", "[2a0b::1]:7000"];
        let targets = [
            ("45.20.0.1", 7000, "ok"),
            ("2a0b::1", 7000, "ok"),
            ("45.20.0.2", 7000, "reset"),
            ("api.example.com", 7000, "no name"),
        ];
        let (_, heard) = connect(world, &asked, &asked.map(allow).join(", "), &targets);
        assert_eq!(heard.len(), 2, "{heard:?}");
    });
}

#[test]
fn only_public_addresses_are_dialled_unless_that_entry_lists_the_range() {
    in_both_worlds("addresses", |world| {
        let targets = [
            ("api.example.com", 80, "ok"),
            ("alias.example.com", 80, "ok"),
            ("both.example.com", 80, "ok"),
            ("six.example.com", 80, "ok"),
            ("later.example.com", 80, "ok"),
            // Without a route to the address the connection is reset as well; the event tells the
            // cause.
            ("unrouted.example.com", 80, "reset"),
            ("filed.example.com", 80, "ok"),
            ("mixed.example.com", 80, "ok"),
            ("inside.example.com", 80, "reset"),
            ("inner-alias.example.com", 80, "reset"),
            ("metadata.example.com", 80, "reset"),
            ("loopback.example.com", 80, "reset"),
            ("mapped.example.com", 80, "reset"),
            ("own.example.com", 80, "reset"),
            ("routed.example.com", 80, "reset"),
            ("broadcast.example.com", 80, "reset"),
            ("empty.example.com", 80, "reset"),
            ("missing.example.com", 80, "reset"),
            ("turns.example.com", 80, "ok"),
            ("turns.example.com", 80, "reset"),
        ];
        let (ended, heard) = connect(world, &["*.example.com"], &allow("*.example.com"), &targets);
        assert!(
            heard
                .iter()
                .all(|line| !line.contains("10.1.0.5") && !line.contains("169.254")),
            "{heard:?}"
        );
        assert!(
            heard.iter().all(|line| !line.contains("corp.example")),
            "no search list: {heard:?}"
        );
        let rule = |host: &str| {
            refused(&ended, &format!("{host}.example.com:80"))[0]["refused"]["rule"].clone()
        };
        for host in [
            "inside",
            "inner-alias",
            "metadata",
            "loopback",
            "mapped",
            "own",
            "routed",
            "broadcast",
            "turns",
        ] {
            assert_eq!(rule(host), "address", "{host}");
        }
        for (host, why) in [
            ("missing", "unresolved"),
            ("unrouted", "unreached"),
            ("empty", "unresolved"),
        ] {
            assert_eq!(rule(host), why, "{host}");
        }
        world.control("http://inside.example.com/");
        // Whoever listens on this machine answers at an address that is only routed to it.
        world.with_server(8099, || {
            answers(world, "http://routed.example.com:8099/log.txt")
        });
        world.control("http://metadata.example.com/");

        let (api, inside) = (
            allow("api.example.com"),
            allow_inside("inside.example.com:7000", "10.1.0.0/16"),
        );
        let targets = [
            ("inside.example.com", 7000, "ok"),
            ("inside.example.com", 80, "reset"),
            ("api.example.com", 80, "ok"),
        ];
        connect(
            world,
            &["inside.example.com:7000", "api.example.com"],
            &format!("{api}, {inside}"),
            &targets,
        );
        // A range is for its own entry alone.
        let entries = format!(
            "{}, {}",
            allow("*.example.com"),
            allow_inside("db.example.com:80", "10.1.0.0/16")
        );
        connect(world, &["*.example.com"], &entries, &targets[1..2]);
    });
}

#[test]
fn localhost_with_its_range_is_reached_by_that_name() {
    let (host, url) = ("localhost:8098", "http://localhost:8098/");
    // Each asks for `url` and answers with the status.
    let urllib = "import json,sys,urllib.request as \
        r\nprint(r.urlopen(json.load(sys.stdin)['url'],timeout=20).status)\n";
    let curl = "import json,subprocess,sys\n\
        curl=['curl','-sSo','/dev/null','-w','%{http_code}',json.load(sys.stdin)['url']]\n\
        print(subprocess.run(curl,capture_output=True,check=True).stdout.decode())\n";
    let node = "const \
        {url}=JSON.parse(require('fs').readFileSync(0));fetch(url).then(r=>console.log(r.status));\n";
    let scripts = [
        ("urllib", "python", urllib),
        ("curl", "python", curl),
        ("node", "nodejs", node),
    ];
    let reached = |world: &World| {
        answers(world, url);
        for (name, language, script) in scripts
            .into_iter()
            .filter(|(_, language, _)| has(language, 1))
        {
            let call = |allowed: &str| {
                world.tool(name, language, script, &[host], allowed);
                world.call(&format!("esc:{name}"), &json!({"url": url}))
            };
            fits("ok 200", &call(&allow_inside(host, "127.0.0.0/8")))
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            fits(
                "ScriptError: ranges = [\"127.0.0.1/32\"",
                &call(&allow(host)),
            )
            .unwrap();
        }
    };
    in_our_world(|world| world.with_server(8098, || reached(world)));
}

/// At ports 80 and 8097 of three loopback addresses, says at which it was reached.
const LOOPBACK: &str = "import socket,threading\ndef serve(s):\n while True:\n  c,_=s.accept(); \
    c.recv(4096); b=s.getsockname()[0].encode()\n  c.sendall(b'HTTP/1.1 200 \
    OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s'%(len(b),b)); c.close()\nfor at in \
    ('127.0.0.1','127.0.0.2','::1'):\n for port in (80,8097):\n  s=socket.socket(socket.AF_INET6 \
    if ':' in at else socket.AF_INET); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n  \
    s.bind((at,port)); s.listen(); threading.Thread(target=serve,args=(s,)).start()\n";

/// Connects to each target (address, port) and names this Host; answers with what is said, or with
/// the status.
const REACHES: &str = "import json,socket,sys\nout=[]\nfor at,port,host in \
    json.load(sys.stdin)['targets']:\n b=b''\n try:\n  s=socket.create_connection((at,port),20); \
    s.settimeout(20)\n  s.sendall(f'GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())\n  \
    while d:=s.recv(4096): b+=d\n except OSError: pass\n b=b.decode(); \
    out.append(b.split('\\r\\n\\r\\n')[1] if ' 200 ' in b else b[9:12])\nprint(json.dumps(out))\n";

#[test]
fn a_granted_loopback_address_is_that_address_and_any_other_is_localhost() {
    in_both_worlds("loopback addresses", |world| {
        let mut server = world
            .inside("/usr/bin/python3")
            .args(["-c", LOOPBACK])
            .spawn()
            .unwrap();
        answers(world, "http://[::1]:8097/");
        let reached = |hosts: &[&str], targets: Value| {
            let range = |host: &&str| {
                allow_inside(
                    host,
                    if host.starts_with('[') {
                        "::1/128"
                    } else {
                        "127.0.0.0/8"
                    },
                )
            };
            world.tool(
                "reaches",
                "python",
                REACHES,
                hosts,
                &hosts.iter().map(range).collect::<Vec<_>>().join(", "),
            );
            let ended = world.call("esc:reaches", &json!({"targets": targets}));
            fits("ok", &ended).unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
            ended.out["outputData"].clone()
        };
        let all =
            json!(["127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"].map(|at| json!([at, 8097, "x"])));
        let own = reached(
            &["localhost:8097", "127.0.0.2:8097", "[::1]:8097"],
            all.clone(),
        );
        assert_eq!(own, json!(["127.0.0.1", "127.0.0.2", "127.0.0.1", "::1"]));
        // The control: none of them is granted itself.
        assert_eq!(
            reached(&["localhost:8097"], all),
            json!(vec!["127.0.0.1"; 4])
        );
        let hosts = json!(["127.0.0.1", "localhost", "127.0.0.2"].map(|host| json!([
            "127.0.0.1",
            80,
            host
        ])));
        let both = ["localhost:80", "127.0.0.1:80"];
        assert_eq!(
            reached(&both, hosts.clone()),
            json!(["127.0.0.1", "127.0.0.1", "421"])
        );
        assert_eq!(
            reached(&both[..1], hosts.clone()),
            json!(["421", "127.0.0.1", "421"])
        );
        assert_eq!(
            reached(&both[1..], hosts),
            json!(["127.0.0.1", "421", "421"])
        );
        server.kill().unwrap();
        server.wait().unwrap();
    });
}

#[test]
fn a_long_hosts_file_is_read_once_for_many_connections() {
    in_our_world(|world| {
        let lines: String = (0..100_000)
            .map(|n| format!("45.20.{}.{} n{n}.far.example\n", n / 250 % 250, n % 250))
            .collect();
        let hosts = world.playground.path("world/hosts");
        let text = fs::read_to_string(&hosts).unwrap() + &lines + "45.20.0.1 last.example.com\n";
        fs::write(&hosts, text).unwrap();
        let script = "import concurrent.futures as f,json,socket,sys\njson.load(sys.stdin)\ndef \
            one(i):\n s=socket.create_connection(('last.example.com',7000),60); s.sendall(b'x'); \
            return len(s.recv(1))\nwith f.ThreadPoolExecutor(50) as p: \
            print(sum(p.map(one,range(50))))\n";
        world.tool_with(
            "many",
            "python",
            script,
            &["last.example.com:7000"],
            &allow("last.example.com:7000"),
            "[limits]\ntimeout_ms = 110_000\n",
        );
        // Runs a program and says how much memory it had at most, KiB.
        let measured = "import \
            resource,subprocess,sys\ncode=subprocess.run(sys.argv[1:]).returncode\nprint('peak', \
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, \
            file=sys.stderr)\nsys.exit(code)\n";
        let mut command = world.inside("/usr/bin/python3");
        command.args(["-c", measured]);
        let mut command = world.playground.host_by(command);
        command.args(["call", "esc:many", "--json", "--input", "{}"]);
        let ended = finish(command, b"");
        fits("ok 50", &ended).unwrap();
        let peak = ended
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("peak ")?.parse::<u64>().ok())
            .unwrap();
        assert!(peak < 500 << 10, "{peak} KiB");
    });
}
