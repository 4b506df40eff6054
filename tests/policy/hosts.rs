//! Hosts: what is asked ∩ what policy and cap name, ranges, risks, and the reports of them.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;
use toolhost::manifest::Code;
use toolhost::manifest::host::{self, Host, HostPattern};
use toolhost::policy::Network;

/// Entries as `host` or `host in range range`.
fn network(hosts: &[impl AsRef<str>]) -> String {
    let entry = |text: &str| {
        let (host, ranges) = text.split_once(" in ").unwrap_or((text, ""));
        let ranges: Vec<String> = ranges
            .split_whitespace()
            .map(|range| format!("\"{range}\""))
            .collect();
        format!(
            "  {{ host = \"{host}\", ranges = [{}], why = \"for {host}\" }},\n",
            ranges.join(", ")
        )
    };
    format!(
        "[network]\nhosts = [\n{}]\n",
        hosts.iter().map(|h| entry(h.as_ref())).collect::<String>()
    )
}

fn allowing(hosts: &[impl AsRef<str>], mode: &str) -> Policy {
    parsed(&format!("{HEAD}mode = \"{mode}\"\n{}", network(hosts)))
}

fn capping(hosts: &[impl AsRef<str>]) -> Policy {
    parsed_host(&format!("name = \"h\"\nwhy = \"w\"\n{}", network(hosts)))
}

fn asks(hosts: &[impl AsRef<str>]) -> Manifest {
    let mut tool = tool("demo:one");
    tool.requested.hosts = hosts
        .iter()
        .map(|h| host::parse_pattern(h.as_ref()).expect("a pattern"))
        .collect();
    tool
}

/// A tool that asks for what these entries name.
fn asking_for(entries: &[&str]) -> Manifest {
    asks(
        &entries
            .iter()
            .map(|entry| entry.split(' ').next().unwrap())
            .collect::<Vec<_>>(),
    )
}

/// What is granted, as `pattern` or `pattern in range range`.
fn granted(decision: &Decision) -> Vec<String> {
    let text = |grant: &policy::HostGrant| {
        let ranges: String = grant
            .ranges
            .iter()
            .map(|range| format!(" {range}"))
            .collect();
        if ranges.is_empty() {
            grant.pattern.to_string()
        } else {
            format!("{} in{ranges}", grant.pattern)
        }
    };
    decision.grants.hosts.iter().map(text).collect()
}

type Texts = &'static [&'static str];

/// asked, allowed, cap ("-": none), what is left, and whether that is all.
#[rustfmt::skip]
const OVERLAPS: &[(&str, Texts, Texts, Texts, bool)] = &[
    ("api.x.com", &["api.x.com"], &["-"], &["api.x.com"], true),
    ("API.X.com.", &["api.X.COM"], &["-"], &["api.x.com"], true),
    ("api.x.com", &[], &["-"], &[], false),
    ("api.x.com", &["x.com", "xapi.x.com"], &["-"], &[], false),
    ("a.b.x.com", &["*.x.com"], &["-"], &["a.b.x.com"], true),
    ("x.com", &["*.x.com"], &["-"], &[], false),
    ("evilx.com", &["*.x.com"], &["-"], &[], false),
    ("x.com.evil.com", &["*.x.com", "x.com"], &["-"], &[], false),
    ("*.x.com", &["*.com"], &["-"], &["*.x.com"], true),
    ("*.x.com", &["a.x.com", "b.x.com:443", "c.y.com"], &["-"], &["a.x.com", "b.x.com:443"], false),
    ("*.x.com", &["*.b.x.com"], &["-"], &["*.b.x.com"], false),
    ("*", &["*.com"], &["-"], &["*.com"], false),
    ("8.8.8.8", &["*"], &["-"], &[], false),
    ("*", &["8.8.8.8"], &["-"], &[], false),
    ("::ffff:8.8.8.8", &["8.8.8.8"], &["-"], &["8.8.8.8"], true),
    ("127.0.0.1:8080", &["127.0.0.1:8080 in 127.0.0.0/8 10.0.0.0/8"], &["-"], &["127.0.0.1:8080 in \
        127.0.0.0/8"], true),
    ("[fd00::1]:54", &["[fd00::1]:54 in fd00::/8"], &["-"], &["[fd00::1]:54 in fd00::/8"], true),
    // Ports: none stands for 80 and 443.
    ("x.com", &["x.com:443"], &["-"], &["x.com:443"], false),
    ("x.com", &["x.com:443", "x.com:80"], &["-"], &["x.com:443", "x.com:80"], true),
    ("x.com:443", &["x.com"], &["-"], &["x.com:443"], true),
    ("x.com:8443", &["x.com"], &["-"], &[], false),
    // Ranges belong to their own entry.
    ("db.x.com", &["db.x.com in 10.1.0.0/16", "*.x.com"], &["-"], &["db.x.com in 10.1.0.0/16"], true),
    ("*.x.com", &["db.x.com in 10.1.0.0/16", "*.x.com"], &["-"], &["db.x.com in 10.1.0.0/16", "*.x.com"], true),
    // The cap takes away hosts, ports, ranges.
    ("api.x.com", &["api.x.com"], &[], &[], false),
    ("api.x.com", &["api.x.com"], &["api.x.com:443"], &["api.x.com:443"], false),
    ("a.x.com", &["a.x.com"], &["*.x.com:80", "*:443"], &["a.x.com:80", "a.x.com:443"], true),
    ("a.x.com", &["a.x.com in 10.0.0.0/8"], &["*"], &["a.x.com"], true),
    ("a.x.com", &["a.x.com in 10.0.0.0/8"], &["* in 10.1.0.0/16 192.168.0.0/16"], &["a.x.com in \
        10.1.0.0/16"], true),
    ("a.x.com", &["a.x.com"], &["* in 10.1.0.0/16"], &["a.x.com"], true),
    ("10.1.2.3:5432", &["10.1.2.3:5432 in 10.0.0.0/8"], &["*"], &[], false),
];

#[test]
fn the_hosts_of_a_call_are_what_is_asked_and_allowed() {
    for (asked, allowed, cap, left, whole) in OVERLAPS {
        let cap = (*cap != ["-"]).then(|| capping(cap));
        let tool = asks(&[asked]);
        let by = |mode: &str, cap| decide(&tool, &under(vec![allowing(allowed, mode)], cap));
        let narrowed = by("narrow", cap.clone());
        assert_eq!(granted(&narrowed), *left, "{asked} in {allowed:?}");
        let network = &shape(&narrowed).network;
        assert_eq!(network.hosts(), narrowed.grants.hosts, "{asked}");
        let audit = policy::audit::json(&narrowed, &tool);
        assert_eq!(
            audit["network"],
            serde_json::to_value(network).unwrap(),
            "{asked}: audit has the same value"
        );
        assert_eq!(*network == Network::None, left.is_empty(), "{asked}");
        let verdict = narrowed
            .verdicts
            .iter()
            .find(|v| v.what == policy::RequestKind::Host)
            .expect("a verdict");
        assert_eq!(
            (verdict.allowed, verdict.effective.is_none()),
            (*whole, left.is_empty()),
            "{asked} in {allowed:?}"
        );
        assert_eq!(
            narrowed.notes.for_caller.is_empty(),
            *whole,
            "{asked}: {:?}",
            narrowed.notes
        );
        let rejecting = by("reject", cap.clone());
        if *whole {
            assert_eq!(granted(&rejecting), *left);
            assert_eq!(shape(&rejecting).network, *network);
            continue;
        }
        let capped = cap.is_some() && by("narrow", None).denied().next().is_none();
        let narrower = if capped {
            policy::Narrower::Host
        } else {
            policy::Narrower::Policy
        };
        assert_eq!(verdict.narrower, Some(narrower), "{asked} in {allowed:?}");
        let (kind, person) = refused(&rejecting);
        assert_eq!(kind, Kind::SecurityError, "{asked}");
        assert!(
            person.contains("no entry of [network] hosts in policy"),
            "{person}"
        );
    }
    // Nobody asks.
    assert_eq!(
        shape(&decide(
            &asks(&[""; 0]),
            &under(vec![allowing(&["*"], "reject")], None)
        ))
        .network,
        Network::None
    );
}

/// entries, the place that is complained of, code, a word.
#[test]
fn entries_that_open_nothing_or_stand_twice_are_refused_with_the_mend() {
    let none = Path::new("/");
    let parse =
        |entries: &[&str]| policy::parse(&format!("{HEAD}{}", network(entries)), none, false, none);
    for (entries, place, code, word) in [
        (
            &["x.com", "X.com."][..],
            "1/host",
            Code::Conflict,
            "named twice",
        ),
        (
            &["x.com in 10.0.0.0/8 10.0.0.0/8"],
            "0/ranges/1",
            Code::Conflict,
            "named twice",
        ),
        (
            &["x.com in 8.8.8.0/24"],
            "0/ranges/0",
            Code::Schema,
            "is public already",
        ),
        (
            &["x.com in 2606:4700::/32"],
            "0/ranges/0",
            Code::Schema,
            "is public already",
        ),
        (
            &["x.com in 10.1.2.3/16"],
            "0/ranges/0",
            Code::Schema,
            "write `10.1.0.0/16`",
        ),
        (&["x.com in 010.0.0.0/8"], "0/ranges/0", Code::Schema, ""),
        (
            &["x.com in ::ffff:10.0.0.0/104"],
            "0/ranges/0",
            Code::Schema,
            "write `10.0.0.0/8`",
        ),
        (
            &["127.0.0.1:8080"],
            "0/host",
            Code::Schema,
            "add ranges = [\"127.0.0.1/32\"]",
        ),
        (
            &["[::1]:8080"],
            "0/host",
            Code::Schema,
            "add ranges = [\"::1/128\"]",
        ),
        (
            &["10.1.2.3 in 10.2.0.0/16"],
            "0/host",
            Code::Schema,
            "is not public (private",
        ),
    ] {
        let problems = parse(entries).expect_err(place);
        let (first, place) = (&problems[0], format!("/network/hosts/{place}"));
        assert_eq!(
            (&first.pointer, first.code, problems.len()),
            (&place, code, 1),
            "{problems:?}"
        );
        assert!(first.message.contains(word) && first.line > 4, "{first:?}");
    }
    let hosts: Vec<String> = (0..201).map(|n| format!("h{n}.com")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    assert!(parse(&hosts[1..]).is_ok());
    assert!(
        parse(&hosts).unwrap_err()[0]
            .message
            .contains("more than 200 entries")
    );
}

#[test]
fn high_risks_are_named_by_check_and_audit() {
    for (words, entries) in [
        ("every public name", &["*", "*:443"][..]),
        ("a whole top-level domain", &["*.com"]),
        (
            "whoever answers for a name below it",
            &["*.x.com in 10.1.0.0/16"],
        ),
        (
            "holds this machine",
            &[
                "x.com in 0.0.0.0/0",
                "x.com in 127.0.0.0/30",
                "x.com in ::/0",
            ],
        ),
        (
            "metadata service",
            &["169.254.169.254 in 169.254.169.254/32", "x.com in fd00::/8"],
        ),
        ("", &["x.com", "*.x.com", "x.com in 10.1.0.0/16 fc00::/8"]),
    ] {
        for entry in entries {
            let cap = capping(&["* in 0.0.0.0/0 ::/0", "169.254.169.254 in 0.0.0.0/0"]);
            let policies = under(vec![allowing(&[entry], "reject")], Some(cap));
            let told = policies.notes().iter().map(|note| &note.problem.message);
            let told: Vec<&String> = told
                .filter(|message| message.starts_with("high risk"))
                .collect();
            let tool = asking_for(&[entry]);
            let decision = decide(&tool, &policies);
            let (text, json) = (report(&decision), policy::audit::json(&decision, &tool));
            if words.is_empty() {
                assert!(
                    told.is_empty() && !text.contains("high risk"),
                    "{told:?} {text}"
                );
                assert_eq!(json["highRisks"], json!([]));
            } else {
                assert!(
                    told.len() == 1 && told[0].contains(words),
                    "{entry}: {told:?}"
                );
                assert!(
                    text.contains("high risk: `") && text.contains(words),
                    "{text}"
                );
                assert!(json["highRisks"].to_string().contains(words), "{json}");
            }
        }
    }
}

#[test]
fn who_can_reach_a_name_an_address_a_port() {
    let entries = [
        "*.x.com",
        "db.y.com:5432 in 10.1.0.0/16",
        "10.9.9.9:22 in 10.0.0.0/8",
        "8.8.8.8:54",
    ];
    let decisions = [decide(
        &asking_for(&entries),
        &under(vec![allowing(&entries, "reject")], None),
    )];
    let leads = "if a name that it reaches has this address";
    for (questions, answers) in [
        (
            "a.x.com A.X.com.:443 *.x.com",
            &[("*.x.com", "all of it")][..],
        ),
        (
            "*.com",
            &[
                ("*.x.com", "a part of it"),
                ("db.y.com:5432", "a part of it"),
            ],
        ),
        ("db.y.com", &[("db.y.com:5432", "all of it")]),
        ("10.1.2.3 ::ffff:10.1.2.3", &[("db.y.com:5432", leads)]),
        ("10.9.9.9", &[("10.9.9.9:22", "all of it")]),
        (
            "8.8.8.8",
            &[
                ("*.x.com", leads),
                ("db.y.com:5432", leads),
                ("8.8.8.8:54", "all of it"),
            ],
        ),
        (
            "a.x.com:8443 x.com db.y.com:80 10.1.2.3:80 10.9.9.8 127.0.0.1",
            &[],
        ),
    ] {
        for question in questions.split(' ') {
            let asked = policy::who_can::question(&format!("reach:{question}")).unwrap();
            let found = policy::who_can::answer(&decisions, &asked, &[]);
            let found: Vec<String> = found
                .iter()
                .map(|answer| format!("{}: {}", answer.rule, answer.how))
                .collect();
            let wanted: Vec<String> = answers
                .iter()
                .map(|(rule, how)| format!("p: {rule}: {how}"))
                .collect();
            assert_eq!(found, wanted, "{question}");
        }
    }
    for bad in [
        "reach:",
        "reach:https://x.com",
        "reach:bücher.de",
        "reach:127.1",
        "reach:x.com:0",
    ] {
        assert!(policy::who_can::question(bad).is_err(), "{bad}");
    }
    let nobody = policy::who_can::question("reach:z.com").unwrap();
    assert_eq!(
        policy::who_can::text(&nobody, &[]),
        "No tool can reach z.com.\n"
    );
}

#[test]
fn a_diff_reads_hosts_ports_and_ranges() {
    let x = "reach x.com at ports 80, 443";
    let wide = &format!("{x}, also where its address lies in 10.0.0.0/8");
    for (old, new, more, fewer) in [
        (&["x.com"][..], &["x.com"][..], "", ""),
        (&["x.com"], &["x.com:80", "x.com:443"], "", ""),
        (&[], &["x.com"], x, ""),
        (&["x.com:80"], &["x.com"], x, ""),
        (
            &["a.x.com"],
            &["*.x.com"],
            "reach *.x.com at ports 80, 443",
            "",
        ),
        (
            &["x.com in 10.1.0.0/16"],
            &["x.com in 10.0.0.0/8"],
            wide,
            "",
        ),
        (
            &["x.com in 10.0.0.0/8"],
            &["x.com in 10.1.0.0/16"],
            "",
            wide,
        ),
        (&["x.com"], &["y.com"], "reach y.com at ports 80, 443", x),
    ] {
        let of = |hosts: &[&str]| {
            powers(
                &asking_for(hosts),
                &under(vec![allowing(hosts, "reject")], None),
            )
        };
        let wanted = [more, fewer].map(|line| {
            if line.is_empty() {
                vec![]
            } else {
                vec![line.to_owned()]
            }
        });
        assert_eq!(changes(of(old), of(new)), wanted, "{old:?} {new:?}");
    }
}

/// That it reaches exactly what both may is a property below.
#[test]
fn what_a_script_run_by_core_does_not_reach_is_said_and_source_text_reaches_nothing() {
    let mut core = execute();
    core.requested.hosts = asks(&["*.x.com", "y.com"]).requested.hosts;
    let ours = parsed(&format!(
        "{CORE}{}",
        network(&["*.x.com in 10.0.0.0/8", "y.com"])
    ));
    let policies = under(
        vec![
            ours,
            allowing(
                &["*.x.com in 10.1.0.0/16 192.168.0.0/16", "z.com"],
                "reject",
            ),
        ],
        None,
    );
    let alone = run_by(&core, vec![], &policies, &machine());
    assert_eq!(granted(&alone), ["*.x.com in 10.0.0.0/8", "y.com"]);
    let met = run_by(
        &core,
        vec![asks(&["a.x.com", "z.com"])],
        &policies,
        &machine(),
    );
    assert_eq!(granted(&met), ["a.x.com in 10.1.0.0/16"]);
    assert!(
        met.notes
            .for_caller
            .iter()
            .any(|n| n.starts_with("narrowed: reach y.com: demo:one@1.0.0 names this script"))
    );
    let verdict = met.verdicts.iter().find(|v| v.asked == "y.com").unwrap();
    assert_eq!(
        (verdict.allowed, &verdict.effective, verdict.narrower),
        (false, &None, Some(policy::Narrower::Owner))
    );
    assert_eq!(shape(&run_code(core, &policies)).network, Network::None);
}

const HOSTS: [&str; 9] = [
    "*",
    "*.com",
    "*.x.com",
    "x.com",
    "a.x.com",
    "a.b.x.com",
    "8.8.8.8",
    "10.1.2.3",
    "[fd00::1]",
];
const RANGES: [&str; 5] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3/32",
    "fd00::/8",
    "0.0.0.0/0",
];

fn ask() -> impl Strategy<Value = String> {
    (
        prop::sample::select(HOSTS.to_vec()),
        prop::sample::select(vec!["", "", ":80", ":443", ":5432"]),
    )
        .prop_map(|(host, port)| format!("{host}{port}"))
}

fn entries() -> impl Strategy<Value = Vec<String>> {
    let entry = (
        ask(),
        prop::collection::btree_set(prop::sample::select(RANGES.to_vec()), 0..3),
    )
        .prop_map(|(host, mut ranges)| {
            // An address that is not public does not load without a range.
            ranges.extend(host.starts_with("10.").then_some("10.1.2.3/32"));
            ranges.extend(host.starts_with("[fd").then_some("fd00::/8"));
            (host, ranges.into_iter().collect::<Vec<_>>().join(" "))
        });
    prop::collection::btree_map(ask(), entry, 0..5).prop_map(|found| {
        let distinct: BTreeMap<String, String> = found.into_values().collect();
        distinct
            .into_iter()
            .map(|(host, ranges)| {
                if ranges.is_empty() {
                    host
                } else {
                    format!("{host} in {ranges}")
                }
            })
            .collect()
    })
}

/// A host, a port, and the address it has.
type Point = (Host, u16, IpAddr);

fn world() -> Vec<Point> {
    let host = |text: &str| host::parse_pattern(text).unwrap().host;
    let addresses =
        ["1.1.1.1", "10.1.2.3", "10.9.9.9", "127.0.0.1", "fd00::1"].map(|a| a.parse().unwrap());
    let names = [
        "x.com",
        "a.x.com",
        "b.x.com",
        "a.b.x.com",
        "y.com",
        "x.org",
        "ax.com",
    ]
    .map(host);
    let named = names.into_iter().flat_map(|name| {
        addresses
            .iter()
            .map(move |address| (name.clone(), *address))
    });
    let literal = ["8.8.8.8", "10.1.2.3", "10.9.9.9", "[fd00::1]"]
        .map(host)
        .into_iter()
        .map(|host| match host {
            Host::Address(address) => (host, address),
            _ => unreachable!(),
        });
    let all: Vec<(Host, IpAddr)> = named.chain(literal).collect();
    let ports = [80, 443, 5432, 8080];
    all.into_iter()
        .flat_map(|(host, address)| ports.map(|port| (host.clone(), port, address)))
        .collect()
}

fn private(address: &IpAddr) -> bool {
    !["1.1.1.1", "8.8.8.8"].contains(&address.to_string().as_str())
}

/// What stands in a file, read anew: does one of these entries allow the point?
fn allows(entries: &[String], (name, port, address): &Point, ranges_count: bool) -> bool {
    entries.iter().any(|entry| {
        let (host, ranges) = entry.split_once(" in ").unwrap_or((entry, ""));
        let pattern: HostPattern = host::parse_pattern(host).unwrap();
        let listed = ranges
            .split_whitespace()
            .any(|r| r.parse::<ipnet::IpNet>().unwrap().contains(address));
        pattern.host.covers(name)
            && pattern.ports().contains(port)
            && (!ranges_count || !private(address) || listed)
    })
}

fn reach(decision: &Decision) -> BTreeSet<String> {
    let reaches = |(host, port, address): &Point| {
        let grants = shape(decision).network.hosts();
        let near = grants.iter().filter(|grant| grant.reaches(host, *port));
        near.into_iter().any(|grant| {
            !private(address) || grant.ranges.iter().any(|range| range.contains(address))
        })
    };
    world()
        .iter()
        .filter(|point| reaches(point))
        .map(|point| format!("{point:?}"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reached_is_exactly_what_manifest_policy_and_cap_allow(
        asked in prop::collection::vec(ask(), 0..4), allowed in entries(), most in entries(), capped: bool,
    ) {
        let cap = capped.then(|| capping(&most));
        let decision = decide(&asks(&asked), &under(vec![allowing(&allowed, "narrow")], cap));
        let reached = reach(&decision);
        for point in world() {
            let within = allows(&asked, &point, false)
                && allows(&allowed, &point, true)
                && (!capped || allows(&most, &point, true));
            prop_assert_eq!(reached.contains(&format!("{point:?}")), within, "{:?}", point);
        }
        let asked: BTreeSet<u16> = asks(&asked).requested.hosts.iter().flat_map(HostPattern::ports).collect();
        prop_assert!(decision.grants.network().ports().iter().all(|port| asked.contains(port)));
    }

    #[test]
    fn a_script_run_by_core_reaches_no_more_than_either(
        ours in entries(), asked in prop::collection::vec(ask(), 1..4), theirs in entries(),
    ) {
        let mut core = execute();
        core.requested.hosts = asks(&["*", "*:5432", "8.8.8.8", "10.1.2.3"]).requested.hosts;
        let policies = under(vec![parsed(&format!("{CORE}{}", network(&ours))), allowing(&theirs, "narrow")], None);
        let tool = asks(&asked);
        let (own, alone) = (decide(&tool, &policies), run_by(&core, vec![], &policies, &machine()));
        let wanted: BTreeSet<String> = reach(&own).intersection(&reach(&alone)).cloned().collect();
        prop_assert_eq!(reach(&run_by(&core, vec![tool], &policies, &machine())), wanted);
    }
}
