//! Every road but the stub and the listening sockets: what the layers of a networked call refuse,
//! with the answer outside.

use super::{allow, in_both_worlds};
use crate::prelude::*;

const SCRIPT: &str = include_str!("roads.py");
const SETTINGS: [&str; 4] = [
    "tcp_rmem",
    "tcp_wmem",
    "tcp_fastopen",
    "ip_local_reserved_ports",
];

/// What is tried, the answer inside, and the answer outside where it can be had there: by
/// everybody, or by root.
const REFUSED: [(&str, &[&str], Option<bool>); 36] = [
    ("host tcp", &["EACCES", "ENETUNREACH"], Some(true)),
    ("host tcp mapped", &["EACCES", "ENETUNREACH"], Some(true)),
    ("host udp", &["ENETUNREACH"], Some(true)),
    ("udp elsewhere", &["ENETUNREACH"], Some(true)),
    ("udp out", &["ENETUNREACH"], Some(true)),
    ("udp to another resolver", &["ENETUNREACH"], Some(true)),
    ("udp out by IPv6", &["ENETUNREACH", "EACCES"], Some(true)),
    ("own datagrams", &["ENETUNREACH"], Some(true)),
    ("icmp datagram", &["EPROTONOSUPPORT"], None),
    ("raw", &["EPERM"], Some(false)),
    ("packet", &["EPERM"], Some(false)),
    ("netlink", &["EPERM"], Some(true)),
    ("vsock", &["EPERM"], None),
    ("unix", &["EPERM"], Some(true)),
    ("mptcp", &["EPROTONOSUPPORT"], None),
    // A pair is connected for good.
    ("pair to abstract", &["ECONNREFUSED", "EISCONN"], None),
    ("bind tcp", &["EPERM"], Some(true)),
    ("bind udp", &["EPERM"], Some(true)),
    ("listen", &["EPERM"], Some(true)),
    (
        "data with the first packet",
        &["ENOTSUP", "EOPNOTSUPP"],
        None,
    ),
    (
        "many with the first packet",
        &["ENOTSUP", "EOPNOTSUPP"],
        None,
    ),
    ("to a device", &["ENOPROTOOPT"], None),
    ("filter", &["ENOPROTOOPT"], None),
    ("congestion", &["ENOPROTOOPT"], Some(true)),
    ("options of packets", &["ENOPROTOOPT"], Some(true)),
    ("multicast", &["ENOPROTOOPT"], Some(true)),
    ("receive buffer", &["65536 stays"], Some(true)),
    // Response code and number of answers: an address, nothing, and no such name.
    ("dns granted 1", &["0 1"], None),
    ("dns granted 28", &["0 0"], None),
    ("dns granted 16", &["0 0"], None),
    ("dns granted 65", &["0 0"], None),
    ("dns granted 33", &["0 0"], None),
    ("dns granted 255", &["0 0", "0 1"], None),
    ("dns refused", &["3 0"], None),
    ("dns longer", &["3 0"], None),
    ("dns data", &["3 0"], None),
];

#[test]
fn there_is_no_other_road_out() {
    in_both_worlds("roads", |world| {
        let ports = [80, 40_000].map(|port| format!("api.example.com:{port}"));
        let asked: Vec<&str> = ports.iter().map(String::as_str).collect();
        world.tool(
            "roads",
            "python",
            SCRIPT,
            &asked,
            &ports.each_ref().map(|port| allow(port)).join(", "),
        );
        let listeners = Listeners::open(&world.playground.path("world"));
        let (tcp, udp) = listeners.ports();
        let mut input = json!({"outside": false, "tcp": tcp, "udp": udp, "abstract": listeners.abstract_name,
            "settings": SETTINGS});
        let (ended, heard) = world.called("esc:roads", &input);
        fits("ok", &ended).unwrap();
        let said = &ended.out["outputData"];
        for (what, inside, _) in REFUSED {
            assert!(
                inside.iter().any(|answer| said[what] == *answer),
                "{what}: {}",
                said[what]
            );
        }
        assert_eq!(said["tcp_rmem"], json!(["4096", "65536", "65536"]));
        assert_eq!(said["tcp_wmem"], json!(["4096", "65536", "65536"]));
        assert_eq!(
            (&said["tcp_fastopen"], &said["ip_local_reserved_ports"]),
            (&json!(["0"]), &json!(["80,40000"]))
        );
        assert_eq!(
            said["resolv"],
            "nameserver 198.18.0.1\noptions ndots:1 timeout:2 attempts:2\n"
        );
        assert_eq!(
            (heard, listeners.heard()),
            (Vec::<String>::new(), 0),
            "nobody outside hears anything"
        );

        // The control: outside, by the same user. The listeners are those of the machine itself, so
        // the rest is tried there.
        (input["outside"], input["settings"]) = (json!(true), json!([]));
        let mut python = world.playground.outside(PYTHON);
        python.args(["-c", SCRIPT]);
        let ended = finish(python, input.to_string().as_bytes());
        for (what, _, outside) in REFUSED
            .into_iter()
            .filter(|(what, ..)| !what.contains("out"))
        {
            if outside.is_some_and(|everybody| everybody || world.playground.who == Who::Root) {
                assert_eq!(ended.out[what], "done", "outside, {what}: {}", ended.stderr);
            }
        }
        assert!(listeners.heard() >= 3, "the listeners hear");
    });
}

#[test]
fn full_buffers_of_connections_are_held() {
    const MEMORY: u64 = 32 << 20;
    in_both_worlds("full buffers", |world| {
        let fill = |memory: u64, seconds: f64| {
            let limits = format!("[limits]\nmemory_bytes = {memory}\nopen_files = 1200\n");
            let limits = limits + "connections = 1000\nsent_bytes = 2_000_000_000\n";
            let limits = limits + "timeout_ms = 110_000\n";
            let hosts = ["api.example.com:9001"];
            world.tool_with(
                "fills",
                "python",
                include_str!("fills.py"),
                &hosts,
                &allow(hosts[0]),
                &limits,
            );
            world.call("esc:fills", &json!({"enough": MEMORY, "seconds": seconds}))
        };
        let began = Instant::now();
        let control = fill(1 << 30, 60.0);
        let took = began.elapsed().as_secs_f64();
        let waits = |ended: &Ended| ended.out["outputData"].as_u64().unwrap_or_default();
        assert!(waits(&control) > MEMORY, "control: {control:?}");
        let mut ended = fill(MEMORY, took + 2.0);
        // What is looked at may be slower than its control was.
        if (ended.kind(), ended.counted()) == ("none", "sampled") {
            ended = fill(MEMORY, 60.0);
        }
        match (ended.kind(), ended.counted()) {
            ("ResourceLimitError", _) => fits("ResourceLimitError: memoryBytes", &ended).unwrap(),
            ("none", "cgroup") => assert!(waits(&ended) < MEMORY, "{ended:?}"),
            _ => panic!("{ended:?}"),
        }
    });
}
