//! Secrets: what is asked ∩ what policy and cap list, how each is used, what is refused, and the
//! reports of them.

use super::*;
use proptest::prelude::*;
use toolhost::manifest::{Code, host};
use toolhost::policy::{Narrower, SecretSource};

const HEADER: &str =
    "header = { host = \"api.x.com\", name = \"Authorization\", value = \"Bearer {}\" }, ";
const HOST: &str = "[network]\nhosts = [{ host = \"api.x.com\", why = \"w\" }]\n";

/// Entries as `NAME`, a variable, or `NAME+`, a header.
pub fn listing(names: &[impl AsRef<str>]) -> String {
    let entry = |text: &str| {
        let name = text.trim_end_matches('+');
        let header = if text.ends_with('+') {
            HEADER.replace("Authorization", &format!("X-{name}"))
        } else {
            String::new()
        };
        format!(
            "  {{ name = \"{name}\", from = \"file:keys/{name}\", {header}why = \"for {name}\" \
            }},\n"
        )
    };
    format!(
        "[secrets]\ngrant = [\n{}]\n",
        names
            .iter()
            .map(|name| entry(name.as_ref()))
            .collect::<String>()
    )
}

pub fn allowing(names: &[impl AsRef<str>], mode: &str) -> Policy {
    parsed(&format!(
        "{HEAD}mode = \"{mode}\"\n{HOST}{}",
        listing(names)
    ))
}

pub fn capping(names: &[impl AsRef<str>]) -> Policy {
    let entry = |name: &str| {
        format!(
            "{{ name = \"secret:{}\", why = \"w\" }}, ",
            name.trim_end_matches('+')
        )
    };
    let names: String = names.iter().map(|name| entry(name.as_ref())).collect();
    let hosts = "[network]\nhosts = [{ host = \"*\", why = \"w\" }]\n";
    parsed_host(&format!(
        "name = \"h\"\nwhy = \"w\"\n{hosts}[capabilities]\ngrant = [{names}]\n"
    ))
}

pub fn asks(names: &[impl AsRef<str>], hosts: &[&str]) -> Manifest {
    let mut tool = tool("demo:one");
    let words = names
        .iter()
        .map(|name| format!("secret:{}", name.as_ref().trim_end_matches('+')));
    tool.requested.capabilities = words.collect();
    tool.requested.hosts = hosts
        .iter()
        .map(|host| host::parse_pattern(host).expect("a pattern"))
        .collect();
    tool
}

/// `NAME` or `NAME+`, as in `listing`.
pub fn granted(decision: &Decision) -> Vec<String> {
    let text = |grant: &policy::SecretGrant| {
        format!(
            "{}{}",
            grant.name,
            if grant.header.is_some() { "+" } else { "" }
        )
    };
    decision.grants.secrets.iter().map(text).collect()
}

type Texts = &'static [&'static str];
const NONE: Texts = &["-"];
const POLICY: Option<Narrower> = Some(Narrower::Policy);
const HOST_ITSELF: Option<Narrower> = Some(Narrower::Host);
const MANIFEST: Option<Narrower> = Some(Narrower::Manifest);

#[test]
fn the_secrets_of_a_call_are_what_is_asked_and_listed() {
    let api: Texts = &["api.x.com"];
    // asked, hosts asked, listed, in the cap ("-": none), what is left, who refuses the rest, a
    // word of the reason.
    type Row = (
        Texts,
        Texts,
        Texts,
        Texts,
        Texts,
        Option<Narrower>,
        &'static str,
    );
    let rows: [Row; 13] = [
        (&[], &[], &["A", "B+"], NONE, &[], None, ""),
        (&["A"], &[], &["A", "B"], NONE, &["A"], None, ""),
        (
            &["B", "A", "B"],
            &[],
            &["A", "B"],
            NONE,
            &["A", "B"],
            None,
            "",
        ),
        (
            &["A", "B"],
            &[],
            &["B"],
            NONE,
            &["B"],
            POLICY,
            "no entry of [secrets] grant in policy `p`",
        ),
        (
            &["a"],
            &[],
            &["A"],
            NONE,
            &[],
            POLICY,
            "no entry of [secrets] grant",
        ),
        (&["A"], &[], &["A"], &["A"], &["A"], None, ""),
        (
            &["A"],
            &[],
            &["A"],
            &[],
            &[],
            HOST_ITSELF,
            "no entry of [capabilities] grant in policy `h`",
        ),
        (
            &["A"],
            &[],
            &[],
            &["A"],
            &[],
            POLICY,
            "no entry of [secrets] grant",
        ),
        (&["A+"], api, &["A+"], NONE, &["A+"], None, ""),
        (
            &["A+"],
            &["api.x.com:80"],
            &["A+"],
            &["A"],
            &["A+"],
            None,
            "",
        ),
        (
            &["A+"],
            &[],
            &["A+"],
            NONE,
            &[],
            MANIFEST,
            "must ask for `api.x.com:80`",
        ),
        (
            &["A+"],
            &["api.x.com:443"],
            &["A+"],
            NONE,
            &[],
            MANIFEST,
            "must ask for `api.x.com:80`",
        ),
        (
            &["A+", "B"],
            api,
            &["A+", "B"],
            &["A"],
            &["A+"],
            HOST_ITSELF,
            "covers secret:B",
        ),
    ];
    for (asked, hosts, listed, cap, left, narrower, words) in rows {
        let tool = asks(asked, hosts);
        let by = |mode: &str| {
            decide(
                &tool,
                &under(
                    vec![allowing(listed, mode)],
                    (cap != NONE).then(|| capping(cap)),
                ),
            )
        };
        let (narrowed, rejecting) = (by("narrow"), by("reject"));
        assert_eq!(granted(&narrowed), left, "{asked:?} of {listed:?}");
        assert_eq!(shape(&narrowed).secrets, narrowed.grants.secrets);
        let denied = narrowed.denied().next();
        assert_eq!(
            denied.and_then(|v| v.narrower),
            narrower,
            "{asked:?} of {listed:?}: {denied:?}"
        );
        let Some(verdict) = denied else {
            assert_eq!(shape(&rejecting).secrets, narrowed.grants.secrets);
            continue;
        };
        let (kind, person) = refused(&rejecting);
        assert!(
            kind == Kind::SecurityError && person.contains(words),
            "{asked:?}: {person}"
        );
        let said = format!("narrowed: capability {} is not granted", verdict.asked);
        assert!(
            narrowed
                .notes
                .for_caller
                .iter()
                .any(|n| n.starts_with(&said)),
            "{:?}",
            narrowed.notes
        );
    }
    // A host that the policy does not grant takes its header with it.
    let person = refused(&decide(
        &asks(&["A"], api),
        &ruled(&format!("{HEAD}{}", listing(&["A+"]))),
    ))
    .1;
    assert!(
        person.contains("the policy grant it ([network] hosts)"),
        "{person}"
    );
}

#[test]
fn no_value_stands_in_a_shape_or_a_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    let from = format!("file:{}", file.display());
    let listed =
        format!("{HEAD}[secrets]\ngrant = [{{ name = \"A\", from = \"{from}\", why = \"w\" }}]\n");
    let tool = asks(&["A"], &[]);
    let seen = |value: &str| {
        fs::write(&file, value).expect("written");
        let decision = decide(&tool, &ruled(&listed));
        let audit = policy::audit::json(&decision, &tool);
        format!(
            "{decision:?} {} {audit} {}",
            report(&decision),
            shape(&decision).digest()
        )
    };
    let first = seen("hunter2-hunter2");
    assert!(
        first == seen("swordfish-swordfish")
            && !first.contains("hunter2")
            && first.contains("file:/"),
        "{first}"
    );
}

#[test]
fn a_secret_is_used_in_one_way_only() {
    let policies = under(vec![allowing(&["TOKEN", "B+"], "reject")], None);
    let mut literal = requiring(&["secret:TOKEN"]);
    literal.execution.env.insert("TOKEN".into(), "x".into());
    for tool in [literal, requiring(&["secret:TOKEN", "env:TOKEN"])] {
        let decision = policy::decide(&tool, &site(), &policies, &offering("v"));
        let person = refused(&decision).1;
        assert!(
            person.contains("take that out of the manifest") && person.contains("change"),
            "{person}"
        );
        assert!(
            !policy::suggest::policy(&tool, &site(), &decision, &places()).contains("[secrets]")
        );
    }
    // What the relay adds is no variable.
    let mut header = asks(&["B"], &["api.x.com"]);
    header.execution.env.insert("B".into(), "x".into());
    assert_eq!(granted(&decide(&header, &policies)), ["B+"]);
}

#[test]
fn a_tool_neither_reads_nor_writes_the_file_of_a_secret() {
    let decided = |files: &str, names: &[&str], read: &[&str], write: &[&str]| {
        let mut tool = asking(Some(read), write);
        let asks = asks(&["A"], &["api.x.com"]).requested;
        (tool.requested.capabilities, tool.requested.hosts) = (asks.capabilities, asks.hosts);
        decide(
            &tool,
            &ruled(&format!("{HEAD}[files]\n{files}\n{HOST}{}", listing(names))),
        )
    };
    let reads = "read = [{ path = \"/t/p/**\", why = \"w\" }]";
    let person = refused(&decided(reads, &["A+"], &["/t/p/**"], &[])).1;
    assert!(
        person.contains("the tool could read its file (p: /t/p/**)"),
        "{person}"
    );
    assert!(
        decided(reads, &["A"], &["/t/p/**"], &[]).shape.is_ok(),
        "a variable is the tool's own"
    );
    let writes = "write = [{ path = \"/t/p/keys/**\", why = \"w\" }]";
    // Also a tool that could write it and asks for no secret.
    let text = format!("{HEAD}[files]\n{writes}\n{HOST}{}", listing(&["A"]));
    let other = decide(&asking(Some(&[]), &["/t/p/keys/**"]), &ruled(&text));
    for decision in [other, decided(writes, &["A"], &[], &["/t/p/keys/**"])] {
        let person = refused(&decision).1;
        assert!(
            person.contains("a file of this host could be written: /t/p/keys/A"),
            "{person}"
        );
    }
}

#[test]
fn entries_are_read_with_their_sources_and_rules() {
    let read = |entry: &str| {
        let text = format!("{HEAD}[secrets]\ngrant = [{{ name = \"A\", why = \"w\", {entry} }}]\n");
        parsed(&text).secrets.into_iter().next().expect("one")
    };
    let words = ["/usr/bin/pass", "show", "a"];
    for (from, source) in [
        ("file:a.key", SecretSource::File("/t/p/a.key".into())),
        (
            "file:./keys/a b.key",
            SecretSource::File("/t/p/keys/a b.key".into()),
        ),
        ("file:/etc/a.key", SecretSource::File("/etc/a.key".into())),
        (
            "file:keys/k-{caller}.key",
            SecretSource::CallerFile("/t/p/keys/k-{caller}.key".into()),
        ),
        (
            "file:./{caller}",
            SecretSource::CallerFile("/t/p/{caller}".into()),
        ),
        ("env:A_KEY", SecretSource::Env("A_KEY".into())),
        (
            "command:/usr/bin/pass  show a",
            SecretSource::Command(words.map(str::to_owned).to_vec()),
        ),
    ] {
        assert_eq!(read(&format!("from = \"{from}\"")).grant.from, source);
    }
    let with = |more: &str| {
        read(&format!("from = \"env:A\", header = {{ {more} }}"))
            .grant
            .header
            .expect("a header")
    };
    let header = with("host = \"API.X.com.\", name = \"X-Key\"");
    assert_eq!(
        [&header.host, &header.name, &header.value],
        ["api.x.com", "x-key", "{}"]
    );
    assert!(header.port == 443 && header.methods.is_empty() && header.paths.is_empty());
    let header = with(
        "host = \"x.com:8443\", name = \"k\", methods = [\"GET\", \"PUT\"], paths = [\"/v1/**\", \
         \"/a;b\", \"/**\", \"/\", \"/...\"], query = [\"a[]\"], request_headers = [\"X-Api\"]",
    );
    assert_eq!(
        (header.port, header.methods.len(), header.paths.len()),
        (8443, 2, 5)
    );
    assert_eq!(
        (header.query, header.request_headers),
        (vec!["a[]".to_owned()], vec!["x-api".to_owned()])
    );
}

/// The place that is complained of, and what is wrong in an entry, in which `VALUE` is each of the
/// values that follow (`∅` is nothing, `·` a space).
const BAD: &str = include_str!("bad_secrets.txt");

fn problems(entries: &str) -> Vec<(String, Code, String)> {
    let text = format!("{HEAD}[secrets]\ngrant = [{entries}]\n");
    let found = policy::parse(&text, Path::new("/t/x"), false, Path::new("/")).expect_err(&text);
    found
        .into_iter()
        .map(|p| (p.pointer, p.code, p.message))
        .collect()
}

#[test]
fn an_entry_that_is_wrong_is_refused_with_its_place_and_the_mend() {
    for row in BAD.lines() {
        let [place, entry, values] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        for value in values.split(" , ") {
            let from = if entry.starts_with("from") {
                ""
            } else {
                "from = \"env:A\", "
            };
            let wrong = entry.replace("VALUE", &value.replace('∅', "").replace('·', " "));
            let found = problems(&format!("{{ name = \"A\", why = \"w\", {from}{wrong} }}"));
            assert_eq!(
                (found.len(), found[0].1),
                (1, Code::Schema),
                "{wrong}: {found:?}"
            );
            assert_eq!(found[0].0, format!("/secrets/grant/0/{place}"), "{wrong}");
        }
    }
    for name in ["LD_PRELOAD", "path", "A-B", "1A", "A B", "TOOLHOST_X"] {
        let (pointer, ..) = problems(&format!(
            "{{ name = \"{name}\", from = \"env:A\", why = \"w\" }}"
        ))
        .remove(0);
        assert!(pointer.ends_with("/0/name"), "{name}: {pointer}");
    }
}

#[test]
fn two_entries_never_meet_in_one_request_or_name() {
    let entry = |name: &str, host: &str, header: &str| {
        let header = format!("{{ host = \"{host}\", name = \"{header}\" }}");
        format!("{{ name = \"{name}\", from = \"env:A\", why = \"w\", header = {header} }}, ")
    };
    for (first, second, place, words) in [
        (
            ("A", "x.com", "k"),
            ("A", "y.com", "k"),
            "name",
            "`A` is named twice",
        ),
        (
            ("A", "x.com", "k"),
            ("B", "X.com.", "K"),
            "header",
            "keep one header",
        ),
        (
            ("A", "x.com", "k"),
            ("B", "x.com:8443", "l"),
            "header",
            "one port",
        ),
    ] {
        let text = [first, second]
            .map(|(name, host, header)| entry(name, host, header))
            .concat();
        let (pointer, code, message) = problems(&text).remove(0);
        assert_eq!(
            (pointer, code),
            (format!("/secrets/grant/1/{place}"), Code::Conflict)
        );
        assert!(message.contains(words), "{message}");
    }
    let fine = [
        entry("A", "x.com", "k"),
        entry("B", "x.com", "l"),
        entry("C", "y.com:8443", "k"),
    ]
    .concat();
    let fine = parsed(&format!("{HEAD}[secrets]\ngrant = [{fine}]\n"));
    assert!(fine.secrets.len() == 3 && fine.is_wider_than_default());
    let many: String = (0..65)
        .map(|n| format!("{{ name = \"A{n}\", from = \"env:A\", why = \"w\" }}, "))
        .collect();
    assert_eq!(problems(&many)[0].2, "more than 64 entries");
}

#[test]
fn each_file_lists_secrets_in_its_own_way() {
    let granting =
        format!("{HEAD}[capabilities]\ngrant = [{{ name = \"secret:A\", why = \"w\" }}]\n");
    let words =
        &policy::parse(&granting, Path::new("/t/x"), false, Path::new("/")).unwrap_err()[0].message;
    assert!(
        words.contains("granted by an entry of [secrets] grant in the tool's policy"),
        "{words}"
    );
    let cap = format!("name = \"h\"\nwhy = \"w\"\n{}", listing(&["A"]));
    let found =
        policy::parse(&cap, Path::new("/t/host.policy.toml"), true, Path::new("/")).unwrap_err();
    assert!(
        found.len() == 1 && found[0].message.contains("[capabilities] grant"),
        "{found:?}"
    );
    assert!(
        policy::grantable("secret:A").is_err(),
        "a config offers none"
    );
    for word in ["secret:", "secret:LD_PRELOAD", "secret:A-B"] {
        assert_eq!(
            refused(&decide(&requiring(&[word]), &Policies::built_in())).0,
            Kind::CapabilityError,
            "{word}"
        );
    }
}

#[test]
fn a_script_run_by_core_uses_what_all_who_name_it_may() {
    let mut core = execute();
    let wide = asks(&["A", "B", "C"], &["*"]).requested;
    (core.requested.hosts, core.requested.capabilities) = (wide.hosts, wide.capabilities);
    let ours = |names: &[&str]| {
        parsed(&format!(
            "{CORE}[network]\nhosts = [{{ host = \"*\", why = \"w\" }}]\n{}",
            listing(names)
        ))
    };
    let run = |names: &[&str], theirs: &[&str], asked: &[&str]| {
        let policies = under(vec![ours(names), allowing(theirs, "narrow")], None);
        run_by(
            &core,
            vec![asks(asked, &["api.x.com"])],
            &policies,
            &machine(),
        )
    };
    for (ours, theirs, asked, left) in [
        (
            &["A", "B+", "C"][..],
            &["A", "B+", "C"][..],
            &["A", "B"][..],
            &["A", "B+"][..],
        ),
        (&["A"], &["A", "B"], &["A", "B"], &["A"]),
        (&["A"], &["B"], &["A", "B"], &[]),
        // One adds it, the other gives it to the tool: neither is what both allow.
        (&["A"], &["A+"], &["A"], &[]),
        (&["A+"], &["A"], &["A"], &[]),
    ] {
        let met = run(ours, theirs, asked);
        assert_eq!(
            (granted(&met).iter().eq(left), &shape(&met).secrets),
            (true, &met.grants.secrets),
            "{ours:?} {theirs:?}"
        );
    }
    let met = run(&["A", "B"], &["A", "B"], &["A"]);
    let verdict = met
        .verdicts
        .iter()
        .find(|v| v.asked == "secret:B")
        .expect("a verdict");
    assert_eq!(
        (verdict.allowed, verdict.narrower),
        (false, Some(Narrower::Owner))
    );
    assert!(
        met.notes
            .for_caller
            .iter()
            .any(|n| n.starts_with("narrowed: secret:B: demo:one@1.0.0 names this script"))
    );
    // Source text reaches no host, so no header is added for it.
    assert_eq!(
        granted(&run_code(
            core.clone(),
            &under(vec![ours(&["A", "B+"])], None)
        )),
        ["A"]
    );
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_map(
        prop::sample::select(vec!["A", "B", "C", "D"]),
        any::<bool>(),
        0..4,
    )
    .prop_map(|found| {
        found
            .into_iter()
            .map(|(name, header)| format!("{name}{}", if header { "+" } else { "" }))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn used_is_exactly_what_manifest_policy_and_cap_allow(
        asked in names(), listed in names(), most in names(), capped: bool, reaches: bool,
    ) {
        let hosts: &[&str] = if reaches { &["api.x.com"] } else { &[] };
        let policies = under(vec![allowing(&listed, "narrow")], capped.then(|| capping(&most)));
        let decision = decide(&asks(&asked, hosts), &policies);
        let name = |entry: &str| entry.trim_end_matches('+').to_owned();
        let has = |list: &[String], entry: &str| list.iter().any(|other| name(other) == name(entry));
        let capped_out = |entry: &str| capped && !has(&most, entry);
        let within = |entry: &&String| has(&asked, entry) && !capped_out(entry) && (reaches || !entry.ends_with('+'));
        prop_assert_eq!(granted(&decision), listed.iter().filter(within).cloned().collect::<Vec<_>>());
    }
}
