//! Bytes and connections of a call are bounded, the relay's memory is flat, and its end is told as what it is.

use super::{World, allow, in_both_worlds, in_our_world};
use crate::prelude::*;

fn run(world: &World, script: &str, input: &Value, limits: &str) -> Ended {
    let entries = format!("{}, {}", allow("api.example.com"), allow("api.example.com:7000"));
    let asked = ["api.example.com", "api.example.com:7000"];
    world.tool_with("bounded", "python", script, &asked, &entries, limits);
    world.call("esc:bounded", input)
}

const DOWNLOAD: &str = "import json,sys,urllib.request as r\n\
    n=0\nwith r.urlopen('http://api.example.com/bytes/%d'%json.load(sys.stdin)['bytes'],timeout=60) as f:\n \
    while b:=f.read(1<<20): n+=len(b)\nprint(n)\n";
const UPLOAD: &str = "import json,socket,sys\nn=json.load(sys.stdin)['bytes']\n\
    s=socket.create_connection(('api.example.com',80),8)\n\
    s.sendall(b'POST /upload HTTP/1.1\\r\\nHost: api.example.com\\r\\nContent-Length: %d\\r\\n\\r\\n'%n)\n\
    b=b'x'*65536\n\
    while n>0: s.sendall(b[:n]); n-=len(b)\ns.settimeout(30)\nprint(json.dumps('200' in s.recv(100).decode()))\n";

#[test]
fn what_is_sent_and_received_is_bounded_and_the_limit_named() {
    in_both_worlds("bytes", |world| {
        let limits = "[limits]\nsent_bytes = 1_000_000\nreceived_bytes = 2_000_000\n";
        fits("ok 1500000", &run(world, DOWNLOAD, &json!({"bytes": 1_500_000}), limits)).unwrap();
        fits("ResourceLimitError: receivedBytes", &run(world, DOWNLOAD, &json!({"bytes": 3_000_000}), limits)).unwrap();
        fits("ok true", &run(world, UPLOAD, &json!({"bytes": 500_000}), limits)).unwrap();
        fits("ResourceLimitError: sentBytes", &run(world, UPLOAD, &json!({"bytes": 3_000_000}), limits)).unwrap();
    });
}

/// What the relay takes for a call counts as the call's, while it runs. The limit lies between what the script took by
/// itself and what both took, so that it is passed by both together alone.
#[test]
fn what_is_passed_on_takes_flat_memory_and_processor_time_of_the_call() {
    in_both_worlds("memory and processor time", |world| {
        const BYTES: u64 = 1 << 29;
        let script = format!("{DOWNLOAD}import os\nprint(sum(os.times()[:2]), file=sys.stderr)\n");
        let input = json!({ "bytes": BYTES });
        let limits = |cpu_ms: u64| format!("[limits]\nreceived_bytes = 2_000_000_000\ncpu_ms = {cpu_ms}\n");
        let ended = run(world, &script, &input, &limits(100_000));
        fits(&format!("ok {BYTES}"), &ended).unwrap();
        assert!(ended.out["network"]["totals"]["receivedBytes"].as_u64().unwrap() > BYTES, "{}", ended.out["network"]);
        let peak = ended.out["usage"]["peakMemoryBytes"].as_u64().unwrap();
        assert!(peak < 200 << 20, "{peak}");
        if ended.counted() != "cgroup" {
            return;
        }
        let own = ended.out["logs"].as_array().unwrap().iter().find_map(|log| log.as_str()?.parse::<f64>().ok());
        let own = (own.unwrap_or_else(|| panic!("{:?}", ended.out["logs"])) * 1000.0) as u64;
        let both = ended.out["usage"]["cpuMs"].as_u64().unwrap();
        assert!(both > own + own / 4, "the relay took none of {both} ms: {own} ms");
        fits("ResourceLimitError: cpuMs", &run(world, &script, &input, &limits((own + both) / 2))).unwrap();
    });
}

#[test]
fn connections_at_one_time_are_bounded() {
    in_our_world(|world| {
        let script = "import json,socket,sys\nn=json.load(sys.stdin)['n']\nkept=[]\nfailed=0\n\
            for i in range(n):\n s=socket.socket()\n s.settimeout(5)\n kept.append(s)\n \
            try:\n  s.connect(('api.example.com',7000)); s.sendall(b'x'); assert s.recv(1)\n \
            except (OSError,AssertionError): failed+=1\nprint(json.dumps([n-failed,failed]))\n";
        let ended = run(world, script, &json!({"n": 100}), "");
        fits("ok [64, 36]", &ended).unwrap();
        let denied = ended.out["denials"]["observed"].as_array().unwrap();
        assert!(denied.iter().any(|d| d["rule"].as_str().unwrap().contains("connections")), "{denied:?}");
        let all = "import concurrent.futures as f,json,socket,sys\nn=json.load(sys.stdin)['n']\ndef one(i):\n \
            try:\n  with socket.create_connection(('api.example.com',7000),20) as s:\n   \
            s.sendall(b'x'); return len(s.recv(1))\n \
            except OSError: return 0\n\
            with f.ThreadPoolExecutor(60) as p: print(json.dumps(sum(p.map(one,range(n)))))\n";
        let limits = "[limits]\nconnections = 1000\nprocesses = 300\n";
        fits("ok 1000", &run(world, all, &json!({"n": 1000}), limits)).unwrap();
    });
}

/// Begins `hang` connections to a host that never answers, and answers whether another host is reached in 3 s then.
const HANG: &str = "import json,socket,sys\nn=json.load(sys.stdin)['hang']\nkept=[]\n\
    at=socket.gethostbyname('closed.example.com') if n else None\n\
    for i in range(n):\n s=socket.socket(); s.setblocking(False); s.connect_ex((at,7000)); kept.append(s)\n\
    s=socket.create_connection(('api.example.com',7000),3); s.settimeout(3); s.sendall(b'x')\n\
    try: print(json.dumps({'reached': bool(s.recv(1))}))\nexcept OSError: print(json.dumps({'reached': False}))\n";

#[test]
fn a_host_that_never_answers_delays_the_connections_of_its_tool_alone() {
    in_our_world(|world| {
        let hosts = ["closed.example.com:7000", "api.example.com:7000"];
        let entries = hosts.map(allow).join(", ");
        world.tool("hangs", "python", HANG, &hosts, &entries);
        world.tool("other", "python", HANG, &hosts[1..], &allow(hosts[1]));
        let mut server = Server::of(world.host());
        let reached = |answer: &Value| answer["result"]["structuredContent"]["reached"].clone();
        assert_eq!(reached(&server.called("esc:hangs", json!({"hang": 0}))), json!(true));
        let hanging: Vec<u64> = (0..8).map(|_| server.call("esc:hangs", json!({"hang": 60}))).collect();
        std::thread::sleep(Duration::from_millis(1500));
        let other = server.call("esc:other", json!({"hang": 0}));
        let mut answers = server.answers(&[&hanging[..], &[other]].concat());
        assert_eq!(reached(&answers.remove(&other).unwrap()), json!(true), "{answers:?}");
        // The control: the dials of the tool itself wait.
        let waited = answers.values().filter(|answer| reached(answer) == json!(false)).count();
        assert!(waited >= 4, "{answers:?}");
    });
}

/// Asks the name server by raw messages: odd names, more names than a call may have, more lookups, more connections.
const ASKED: &str = "import json,socket,struct,sys\njson.load(sys.stdin)\nSTUB=('198.18.0.1',53)\n\
    def query(*labels,kind=1):\n \
    return b'\\7\\7\\1\\0\\0\\1'+bytes(6)+b''.join(bytes([len(l)])+l for l in labels)+struct.pack('>BHH',0,kind,1)\n\
    def sent(s,text): s.sendall(struct.pack('>H',len(text))+text)\n\
    def answer(s,text):\n sent(s,text); length=struct.unpack('>H',s.recv(2,socket.MSG_WAITALL))[0]\n \
    return s.recv(length,socket.MSG_WAITALL)\n\
    def ask(s,text): return answer(s,text)[3]&15\n\
    def opened():\n s=socket.create_connection(STUB,8); s.settimeout(8); return s\n\
    def ends(text):\n try:\n  s=opened(); s.sendall(text); return s.recv(1)==b''\n except OSError: return True\n\
    w=[b'wild',b'example']; s=opened()\n\
    odd=[ask(s,query(*l)) for l in ([b'a.wild.example'],[b'x.wild',b'example'],[b'x\\0']+w,[b'*']+w,\
    [b'b\\xc3\\xbc']+w,[b'x\\\\.y']+w,[b'x y']+w,[b'-x']+w,[],[b'localhost'],[b'127',b'0',b'0',b'1'],\
    b'1.0.0.127.in-addr.arpa'.split(b'.'))]\n\
    kinds=[list(answer(s,query(b'n1',*w,kind=k))[3:8:2]) for k in (28,65,64,33,15,16,255,252,5,12)]\n\
    one,other=(answer(s,query(n,*w)) for n in (b'n1',b'N1'))\n\
    same=[one[-4:]==other[-4:]!=bytes(4),[k for k in kinds if k[0]&15 or k[2]]]\n\
    codes=[ask(s,query(b'n%d'%(n%257),*w)) for n in range(10002)]\n\
    more=[opened() for _ in range(7)]\nserved=[ask(m,query(b'n1',*w)) for m in more]\n\
    ninth=ends(b'')\n[m.close() for m in more]; s.close()\n\
    import time; time.sleep(0.2)\nlong=[ends(length+bytes(600)) for length in (b'\\xff\\xff',b'\\2\\1')]\n\
    print(json.dumps([odd,same,[codes[n] for n in (0,255,256,257,9975,9976)],served,ninth,long]))\n";

#[test]
fn names_lookups_and_connections_of_the_name_server_are_bounded() {
    in_our_world(|world| {
        world.tool("asks", "python", ASKED, &["*.wild.example"], &allow("*.wild.example"));
        let ended = world.call("esc:asks", &json!({}));
        fits("ok", &ended).unwrap();
        // NXDOMAIN for odd names; no answer of another type, and one address for two spellings; REFUSED for the 257th
        // name, and after 10,000 lookups, of which these were 24.
        let wanted = json!([vec![3; 12], [true, []], [0, 0, 5, 0, 0, 5], [5, 5, 5, 5, 5, 5, 5], true, [true, true]]);
        assert_eq!(ended.out["outputData"], wanted);
        let totals = &ended.out["network"]["totals"];
        assert_eq!((&totals["lookups"], &totals["lookupsRefused"]), (&json!(10_033), &json!(12 + 38 + 33)), "{totals}");
        // 25 of those served, and the refusals that differ: twelve odd names, a name and a lookup too many.
        assert_eq!(ended.out["network"]["events"].as_array().unwrap().len(), 25 + 12 + 2);
    });
}

#[test]
fn a_half_closed_stream_still_carries_the_answer() {
    in_our_world(|world| {
        let script = "import json,socket,sys\njson.load(sys.stdin)\n\
            s=socket.create_connection(('api.example.com',7000),5)\ns.sendall(b'hello '); s.shutdown(socket.SHUT_WR)\n\
            b=b''\nwhile d:=s.recv(100): b+=d\nprint(json.dumps(b.decode()))\n";
        fits("ok \"hello bye\"", &run(world, script, &json!({}), "")).unwrap();
    });
}

/// Makes 64 requests that a host never answers, leaves those connections or keeps them, and makes one more.
const LEAVES: &str = "import json,socket,sys,time\nkeep=json.load(sys.stdin)['keep']\n\
    def ask(path):\n s=socket.create_connection(('api.example.com',80),5); s.settimeout(5)\n \
    s.sendall(f'GET {path} HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n'.encode()); return s\n\
    kept=[ask('/silent') for _ in range(64)]\ntime.sleep(1)\nkeep or [s.close() for s in kept]\ntime.sleep(1)\n\
    try: print(json.dumps(ask('/x').recv(12).decode()))\nexcept OSError: print('\"reset\"')\n";

#[test]
fn a_client_that_leaves_its_request_leaves_its_connection() {
    in_both_worlds("requests without a client", |world| {
        fits("ok \"HTTP/1.1 200\"", &run(world, LEAVES, &json!({"keep": false}), "")).unwrap();
        fits("ok \"reset\"", &run(world, LEAVES, &json!({"keep": true}), "")).unwrap();
        let silent = world.log().iter().filter(|line| line.contains("GET /silent")).count();
        assert!(silent >= 128, "{silent} requests reached the host");
    });
}

#[test]
fn a_slow_host_holds_up_its_call_alone() {
    in_our_world(|world| {
        let script = "import json,sys,urllib.request as r\njson.load(sys.stdin)\n\
            print(len(r.urlopen('http://api.example.com/slow').read()))\n";
        let ended = run(world, script, &json!({}), "[limits]\ntimeout_ms = 1_500\n");
        assert_eq!(ended.kind(), "TimeoutError", "{ended:?}");
        assert!(ended.took < Duration::from_secs(8), "{:?}", ended.took);
    });
}

#[test]
fn a_relay_that_dies_ends_its_connections_and_is_named() {
    in_both_worlds("a killed relay", |world| {
        let script = "import json,socket,sys\njson.load(sys.stdin)\n\
            s=socket.create_connection(('api.example.com',7000),5)\ns.settimeout(20)\n\
            try:\n    s.sendall(b'x')\n    while s.recv(1): pass\n    print('\"closed\"')\n\
            except OSError: print('\"reset\"')\n";
        let entries = allow("api.example.com:7000");
        world.tool("dying", "python", script, &["api.example.com:7000"], &entries);
        let mut host = world.host();
        host.args(["call", "esc:dying", "--json", "--input", "{}"]);
        let child = host.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        within(Duration::from_secs(10), "the tool is connected", || {
            world.log().iter().any(|line| line.starts_with("tcp"))
        });
        let relays = processes_of("toolhost-relay").into_iter().map(|(pid, _)| pid);
        let own: Vec<u32> = relays.filter(|pid| is_below(*pid, child.id())).collect();
        assert!(!own.is_empty(), "the relay of this host");
        own.into_iter().for_each(|pid| {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGKILL);
        });
        let out = child.wait_with_output().unwrap();
        let out: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(["closed", "reset"].contains(&out["outputData"].as_str().unwrap_or("none")), "{out}");
        let events = out["network"]["events"].as_array().unwrap();
        assert!(events.iter().any(|event| event["refused"]["rule"] == "relayEnded"), "{events:?}");
    });
}

/// Whether a process descends from another one.
fn is_below(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    std::iter::successors(Some(pid), |pid| parent(*pid)).take_while(|pid| *pid > 1).any(|pid| pid == ancestor)
}
