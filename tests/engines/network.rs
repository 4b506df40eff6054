//! Network: which hosts are reached, in a world of its own; what changes outside is who came to its
//! hosts.

use super::{CASE, Case, Control, ENGINES, Host, Row, Verdict};
use crate::http::Web;
use crate::network::in_both_worlds;
use Verdict::{Denied, Ends, Says};

const API: &str =
    r#"{"securityContext":{"networkAccess":{"allowHosts":["api.example.com:7000"]}}}"#;
const BOTH: &str = r#"{"securityContext":{"networkAccess":{"allowHosts":["api.example.com:7000","other.example.com:7000"]}}}"#;
const PORTS: &str = r#"{"securityContext":{"networkAccess":{"allowHosts":["api.example.com:7000","api.example.com:22"]}}}"#;
const ADDRESS: &str = r#"{"securityContext":{"networkAccess":{"allowHosts":["45.20.0.1:7000"]}}}"#;
const ADDRESSES: &str =
    r#"{"securityContext":{"networkAccess":{"allowHosts":["45.20.0.1:7000","45.20.0.2:7000"]}}}"#;
const INSIDE: &str =
    r#"{"securityContext":{"networkAccess":{"allowHosts":["inside.example.com:7000"]}}}"#;

const ALLOW_API: &str = "[network]\nhosts = [{ host = \"api.example.com:7000\", why = \"t\" }]\n";
const ALLOW_BOTH: &str = "[network]\nhosts = [{ host = \"*.example.com:7000\", why = \"t\" }]\n";
const ALLOW_PORTS: &str = "[network]\nhosts = [{ host = \"api.example.com:7000\", why = \"t\" }, \
    { host = \"api.example.com:22\", why = \"t\" }]\n";
const ALLOW_ADDRESSES: &str = "[network]\nhosts = [{ host = \"45.20.0.1:7000\", why = \"t\" }, \
    { host = \"45.20.0.2:7000\", why = \"t\" }]\n";
const ALLOW_INSIDE: &str = "[network]\nhosts = \
    [{ host = \"inside.example.com:7000\", ranges = [\"10.1.0.0/16\"], why = \"t\" }]\n";
const LESS: &str =
    "mode = \"narrow\"\n[network]\nhosts = [{ host = \"api.example.com:7000\", why = \"t\" }]\n";

const fn reached(
    manifest: &'static str,
    policy: &'static str,
    by: &'static [&'static str],
) -> Control {
    Control::Granted {
        manifest,
        policy,
        ends: Says("ok"),
        changes: by,
    }
}

/// The same of the script and of the module.
const fn both(denial: &'static str) -> (&'static str, &'static str) {
    (denial, denial)
}

const NOT_GRANTED: &str = "On the network: resolve other.example.com: not granted.";
const HELD: Case = Case {
    layer: "network",
    promises: "P6",
    manifest: API,
    policy: ALLOW_API,
    ..CASE
};

pub const NETWORK: &[Case] = &[
    Case {
        name: "a granted host",
        probe: r#"{"do":"connect","path":"api.example.com","n":7000}"#,
        changes: &["tcp 45.20.0.1 7000"],
        control: Control::None("it is allowed"),
        ..HELD
    },
    Case {
        name: "a host that was not granted",
        promises: "P6 P7",
        probe: r#"{"do":"connect","path":"other.example.com","n":7000}"#,
        held: Denied("no name", "name-unresolvable"),
        denials: both("resolve other.example.com: not granted; manifest"),
        control: reached(BOTH, ALLOW_BOTH, &["tcp 45.20.0.2 7000"]),
        ..HELD
    },
    Case {
        name: "a host that was asked for and not allowed",
        promises: "P5 P6",
        manifest: BOTH,
        policy: LESS,
        probe: r#"{"do":"connect","path":"other.example.com","n":7000}"#,
        held: Denied("no name", "name-unresolvable"),
        denials: both("resolve other.example.com: not granted; policy"),
        control: reached(BOTH, ALLOW_BOTH, &["tcp 45.20.0.2 7000"]),
        ..HELD
    },
    Case {
        name: "a failed call speaks of the host that was not granted",
        promises: "P6",
        probe: r#"{"do":"connect","path":"other.example.com","n":7000,"exit":1}"#,
        held: Ends("ScriptError", NOT_GRANTED, NOT_GRANTED),
        denials: both("resolve other.example.com: not granted; manifest"),
        control: Control::None("the rows above"),
        ..HELD
    },
    // No relay listens at such a port, and the kernel answers for it: the launcher, or the worker,
    // notes it.
    Case {
        name: "a port that was not granted",
        probe: r#"{"do":"connect","path":"api.example.com","n":22}"#,
        held: Denied("EACCES", "access-denied"),
        denials: both("connect api.example.com:22: not granted; manifest"),
        control: reached(PORTS, ALLOW_PORTS, &["tcp 45.20.0.1 22"]),
        ..HELD
    },
    Case {
        name: "a port of this machine",
        promises: "P6 P7",
        probe: r#"{"do":"connect","path":"127.0.0.1","n":22}"#,
        held: Denied("EACCES", "access-denied"),
        denials: both("connect 127.0.0.1:22: not granted; manifest"),
        control: Control::None("network::roads has it"),
        ..HELD
    },
    Case {
        name: "an address that was not granted",
        manifest: ADDRESS,
        policy: ALLOW_ADDRESSES,
        probe: r#"{"do":"connect","path":"45.20.0.2","n":7000}"#,
        held: Denied("ECONNRESET", "connection-reset"),
        denials: both("connect 45.20.0.2:7000: not granted; manifest"),
        control: reached(ADDRESSES, ALLOW_ADDRESSES, &["tcp 45.20.0.2 7000"]),
        ..HELD
    },
    Case {
        name: "a granted host with private addresses",
        promises: "P7 P8",
        manifest: INSIDE,
        policy: ALLOW_BOTH,
        probe: r#"{"do":"connect","path":"inside.example.com","n":7000}"#,
        held: Denied("ECONNRESET", "connection-reset"),
        denials: both(
            "connect inside.example.com:7000: it resolves only to addresses that are not public or \
            of this machine; policy",
        ),
        control: reached(INSIDE, ALLOW_INSIDE, &["tcp 10.1.0.5 7000"]),
        ..HELD
    },
    // A script has UDP, for the stub alone, and the kernel answers for the rest, which nobody
    // keeps. A module has none: names are looked up for it.
    Case {
        name: "a datagram",
        probe: r#"{"do":"datagram","path":"45.20.0.1","n":9}"#,
        held: Denied("ENETUNREACH", "access-denied"),
        denials: (
            "",
            "connect by a UDP socket: no tool has UDP, but for names; built-in",
        ),
        control: Control::None("no policy can grant it; network::roads has the control"),
        ..HELD
    },
    // The filter of system calls refuses a script, and tells only where that is asked for.
    Case {
        name: "a listener",
        probe: r#"{"do":"listen","n":8000}"#,
        held: Denied("EPERM", "access-denied"),
        denials: (
            "",
            "listen 0.0.0.0:8000: no tool takes connections; built-in",
        ),
        control: Control::None("no policy can grant it; network::roads has the control"),
        ..HELD
    },
    // Without hosts there is no stub and no relay to tell of a script; the host functions tell of a
    // module.
    Case {
        name: "a host, where none is granted",
        manifest: "{}",
        policy: "",
        probe: r#"{"do":"connect","path":"api.example.com","n":7000}"#,
        held: Denied("no name", "permanent-resolver-failure"),
        denials: ("", "resolve api.example.com: not granted; manifest"),
        control: reached(API, ALLOW_API, &["tcp 45.20.0.1 7000"]),
        ..HELD
    },
    Case {
        name: "an address, where no host is granted",
        manifest: "{}",
        policy: "",
        probe: r#"{"do":"connect","path":"45.20.0.1","n":7000}"#,
        held: Denied("EPERM", "access-denied"),
        denials: ("", "connect by a TCP socket: not granted; manifest"),
        control: reached(ADDRESS, ALLOW_ADDRESSES, &["tcp 45.20.0.1 7000"]),
        ..HELD
    },
    Case {
        name: "a host that policy does not allow",
        promises: "P5 P6",
        manifest: BOTH,
        probe: r#"{"do":"connect","path":"api.example.com","n":7000}"#,
        held: Verdict::Refused(
            "SecurityError",
            "reach other.example.com:7000: no entry of [network] hosts",
        ),
        control: reached(BOTH, ALLOW_BOTH, &["tcp 45.20.0.1 7000"]),
        ..HELD
    },
];

#[test]
fn one_verdict_on_both_engines_in_a_network() {
    in_both_worlds("the table", |world| {
        let playground = &world.playground;
        let engines = 0..ENGINES.len();
        let row = |(engine, (number, case))| Row {
            case,
            playground,
            engine,
            number,
            counted: false,
            problems: String::new(),
        };
        let rows =
            engines.flat_map(|engine| NETWORK.iter().enumerate().map(move |case| (engine, case)));
        let rows: Vec<Row> = rows.map(row).collect();
        rows.iter().for_each(Row::prepare);
        playground.settle();
        let socket = playground.path("state/host.sock").display().to_string();
        let mut serve = world.host();
        serve.args(["serve", "--http", &format!("unix:{socket}")]);
        let _server =
            Web::run(serve, None).unwrap_or_else(|said| panic!("it did not start: {said}"));
        let host = Host::World(world, &socket);
        let wrong: Vec<String> = rows.iter().flat_map(|row| row.run(host)).collect();
        assert!(
            wrong.is_empty(),
            "{} rows, as {}:\n{}",
            wrong.len(),
            playground.who.name(),
            wrong.join("\n")
        );
    });
}
