//! Secrets: what is asked ∩ what policy and cap list, how each is used, what is refused, and the reports of them.

use super::*;
use proptest::prelude::*;
use toolhost::manifest::{Code, host};
use toolhost::policy::{Narrower, SecretSource};

const HEADER: &str = "header = { host = \"api.x.com\", name = \"Authorization\", value = \"Bearer {}\" }, ";
pub const HEAD: &str = "name = \"p\"\nwhy = \"w\"\ntools = [\"demo:one\"]\n";

/// Entries as `NAME`, a variable, or `NAME+`, a header.
pub fn listing(names: &[impl AsRef<str>]) -> String {
    let entry = |text: &str| {
        let name = text.trim_end_matches('+');
        let header =
            if text.ends_with('+') { HEADER.replace("Authorization", &format!("X-{name}")) } else { String::new() };
        format!("  {{ name = \"{name}\", from = \"file:keys/{name}\", {header}why = \"for {name}\" }},\n")
    };
    format!("[secrets]\ngrant = [\n{}]\n", names.iter().map(|name| entry(name.as_ref())).collect::<String>())
}

pub fn allowing(names: &[impl AsRef<str>], mode: &str) -> Policy {
    let hosts = "[network]\nhosts = [{ host = \"api.x.com\", why = \"w\" }]\n";
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    parsed(&format!("{HEAD}mode = \"{mode}\"\n{hosts}{files}{}", listing(names)))
}

pub fn capping(names: &[impl AsRef<str>]) -> Policy {
    let entry = |name: &str| format!("{{ name = \"secret:{}\", why = \"w\" }}, ", name.trim_end_matches('+'));
    let names: String = names.iter().map(|name| entry(name.as_ref())).collect();
    let hosts = "[network]\nhosts = [{ host = \"*\", why = \"w\" }]\n";
    parsed_host(&format!("name = \"h\"\nwhy = \"w\"\n{hosts}[capabilities]\ngrant = [{names}]\n"))
}

pub fn asks(names: &[impl AsRef<str>], hosts: &[&str]) -> Manifest {
    let mut tool = tool("demo:one");
    tool.asks.capabilities =
        names.iter().map(|name| format!("secret:{}", name.as_ref().trim_end_matches('+'))).collect();
    tool.asks.hosts = hosts.iter().map(|host| host::pattern(host).expect("a pattern")).collect();
    tool
}

/// `NAME` or `NAME+`, as in `listing`.
pub fn granted(decision: &Decision) -> Vec<String> {
    let text = |grant: &policy::SecretGrant| format!("{}{}", grant.name, if grant.header.is_some() { "+" } else { "" });
    decision.secrets.iter().map(text).collect()
}

type Texts = &'static [&'static str];
const NONE: Texts = &["-"];
type Overlap = (Texts, Texts, Texts, Texts, Texts, Option<Narrower>, &'static str);

/// asked, hosts asked, listed, in the cap ("-": none), what is left, who refuses the rest, a word of the reason.
#[rustfmt::skip]
const OVERLAPS: &[Overlap] = &[
    (&[], &[], &["A", "B+"], NONE, &[], None, ""),
    (&["A"], &[], &["A", "B"], NONE, &["A"], None, ""),
    (&["B", "A", "B"], &[], &["A", "B"], NONE, &["A", "B"], None, ""),
    (&["A", "B"], &[], &["B"], NONE, &["B"], Some(Narrower::Policy), "no entry of [secrets] grant in policy `p`"),
    (&["a"], &[], &["A"], NONE, &[], Some(Narrower::Policy), "no entry of [secrets] grant"),
    (&["A"], &[], &["A"], &["A"], &["A"], None, ""),
    (&["A"], &[], &["A"], &[], &[], Some(Narrower::Host), "no entry of [capabilities] grant in policy `h`"),
    (&["A"], &[], &[], &["A"], &[], Some(Narrower::Policy), "no entry of [secrets] grant"),
    (&["A+"], &["api.x.com"], &["A+"], NONE, &["A+"], None, ""),
    (&["A+"], &["api.x.com:80"], &["A+"], &["A"], &["A+"], None, ""),
    (&["A+"], &[], &["A+"], NONE, &[], Some(Narrower::Manifest), "must ask for `api.x.com:80`"),
    (&["A+"], &["api.x.com:443"], &["A+"], NONE, &[], Some(Narrower::Manifest), "must ask for `api.x.com:80`"),
    (&["A+", "B"], &["api.x.com"], &["A+", "B"], &["A"], &["A+"], Some(Narrower::Host), "covers secret:B"),
];

#[test]
fn the_secrets_of_a_call_are_what_is_asked_and_listed() {
    for (asked, hosts, listed, cap, left, narrower, words) in OVERLAPS {
        let cap = || (*cap != NONE).then(|| capping(cap));
        let tool = asks(asked, hosts);
        let narrowed = decide(&tool, &under(vec![allowing(listed, "narrow")], cap()));
        assert_eq!(granted(&narrowed), *left, "{asked:?} of {listed:?}");
        assert_eq!(shape(&narrowed).secrets, narrowed.secrets);
        let denied: Vec<_> = narrowed.denied().collect();
        assert_eq!(denied.first().and_then(|v| v.narrower), *narrower, "{asked:?} of {listed:?}: {denied:?}");
        let rejecting = decide(&tool, &under(vec![allowing(listed, "reject")], cap()));
        match denied.first() {
            None => assert_eq!(shape(&rejecting).secrets, narrowed.secrets),
            Some(verdict) => {
                let (kind, person) = refused(&rejecting);
                assert!(kind == Kind::SecurityError && person.contains(words), "{asked:?}: {person}");
                let said = format!("narrowed: capability {} is not granted", verdict.asked);
                assert!(narrowed.notes.told.iter().any(|n| n.starts_with(&said)), "{:?}", narrowed.notes);
            }
        }
    }
    // A host that the policy does not grant takes its header with it.
    let only = parsed(&format!("{HEAD}{}", listing(&["A+"])));
    let person = refused(&decide(&asks(&["A"], &["api.x.com"]), &under(vec![only], None))).1;
    assert!(person.contains("the policy grant it ([network] hosts)"), "{person}");
}

/// No value is in anything that is decided: the same file with another value is the same decision, to the byte.
#[test]
fn no_value_stands_in_a_shape_or_a_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    let listed =
        format!("{HEAD}[secrets]\ngrant = [{{ name = \"A\", from = \"file:{}\", why = \"w\" }}]\n", file.display());
    let tool = asks(&["A"], &[]);
    let seen = |value: &str| {
        std::fs::write(&file, value).expect("written");
        let decision = decide(&tool, &under(vec![parsed(&listed)], None));
        let (text, json) = (report(&decision), policy::audit::json(&decision, &tool));
        format!("{decision:?} {text} {json} {}", shape(&decision).digest())
    };
    let first = seen("hunter2-hunter2");
    assert!(first == seen("swordfish-swordfish") && !first.contains("hunter2") && first.contains("file:/"), "{first}");
}

#[test]
fn a_secret_is_used_in_one_way_only() {
    let policies = || under(vec![allowing(&["A", "B+"], "reject")], None);
    let mut literal = asks(&["A"], &[]);
    literal.execution.env.insert("A".into(), "x".into());
    let mut both = asks(&["A"], &[]);
    both.asks.capabilities.push("env:A".into());
    let offers =
        Machine { environment: BTreeMap::from([("A".to_owned(), policy::Variable::Host("v".into()))]), ..machine() };
    for tool in [literal, both] {
        let decision = policy::decide(&tool, &site(), &policies(), &offers);
        let person = refused(&decision).1;
        assert!(person.contains("take that out of the manifest") && person.contains("change"), "{person}");
        assert!(!policy::suggest::policy(&tool, &site(), &decision, Path::new("/t")).contains("[secrets]"));
    }
    // What the relay adds is no variable.
    let mut header = asks(&["B"], &["api.x.com"]);
    header.execution.env.insert("B".into(), "x".into());
    assert_eq!(granted(&decide(&header, &policies())), ["B+"]);
}

#[test]
fn a_tool_neither_reads_nor_writes_the_file_of_a_secret() {
    let with = |files: &str, names: &[&str]| {
        let hosts = "[network]\nhosts = [{ host = \"api.x.com\", why = \"w\" }]\n";
        under(vec![parsed(&format!("{HEAD}[files]\n{files}\n{hosts}{}", listing(names)))], None)
    };
    let mut tool = asks(&["A"], &["api.x.com"]);
    tool.asks.read = Some(vec![pattern("/t/p/**")]);
    let reads = "read = [{ path = \"/t/p/**\", why = \"w\" }]";
    let person = refused(&decide(&tool, &with(reads, &["A+"]))).1;
    assert!(person.contains("the tool could read the file where it lies (p: /t/p/**)"), "{person}");
    assert!(decide(&tool, &with(reads, &["A"])).shape.is_ok(), "a variable is the tool's own");
    tool.asks = asking(Some(&[]), &["/t/p/keys/**"]).asks;
    let person = refused(&decide(&tool, &with("write = [{ path = \"/t/p/keys/**\", why = \"w\" }]", &["A"]))).1;
    assert!(person.contains("a file of this host could be written: /t/p/keys/A"), "{person}");
}

#[test]
fn entries_are_read_with_their_sources_and_rules() {
    let read = |entry: &str| {
        let text = format!("{HEAD}[secrets]\ngrant = [{{ name = \"A\", why = \"w\", {entry} }}]\n");
        parsed(&text).secrets.into_iter().next().expect("one")
    };
    for (from, source) in [
        ("file:a.key", SecretSource::File("/t/p/a.key".into())),
        ("file:./keys/a b.key", SecretSource::File("/t/p/keys/a b.key".into())),
        ("file:/etc/a.key", SecretSource::File("/etc/a.key".into())),
        ("file:keys/k-{caller}.key", SecretSource::CallerFile("/t/p/keys/k-{caller}.key".into())),
        ("file:./{caller}", SecretSource::CallerFile("/t/p/{caller}".into())),
        ("env:A_KEY", SecretSource::Env("A_KEY".into())),
        (
            "command:/usr/bin/pass  show a",
            SecretSource::Command(["/usr/bin/pass", "show", "a"].map(str::to_owned).to_vec()),
        ),
    ] {
        assert_eq!(read(&format!("from = \"{from}\"")).grant.from, source);
    }
    let with = |more: &str| read(&format!("from = \"env:A\", header = {{ {more} }}")).grant.header.expect("a header");
    let header = with("host = \"API.X.com.\", name = \"X-Key\"");
    assert_eq!(
        (header.host.as_str(), header.port, header.name.as_str(), header.value.as_str()),
        ("api.x.com", 443, "x-key", "{}")
    );
    assert!(header.methods.is_empty() && header.paths.is_empty());
    let header = with(
        "host = \"x.com:8443\", name = \"k\", methods = [\"GET\", \"PUT\"], \
         paths = [\"/v1/**\", \"/a;b\", \"/**\", \"/\", \"/...\"], query = [\"a[]\"], request_headers = [\"X-Api\"]",
    );
    assert_eq!((header.port, header.methods.len(), header.paths.len()), (8443, 2, 5));
    assert_eq!((header.query, header.request_headers), (vec!["a[]".to_owned()], vec!["x-api".to_owned()]));
}

/// what is wrong in an entry, the place that is complained of.
#[rustfmt::skip]
const BAD: &[(&str, &str)] = &[
    ("from = \"\"", "from"),
    ("from = \"a.key\"", "from"),
    ("from = \"fil:a\"", "from"),
    ("from = \"file:\"", "from"),
    ("from = \"file:../a\"", "from"),
    ("from = \"file:~/a\"", "from"),
    ("from = \"file:a\\u0000\"", "from"),
    ("from = \"file:{caller}/key\"", "from"),
    ("from = \"file:a/{caller}-{caller}\"", "from"),
    ("from = \"file:/{caller}\"", "from"),
    ("from = \"file:../{caller}\"", "from"),
    ("from = \"file:{user}.key\"", "from"),
    ("from = \"env:{caller}\"", "from"),
    ("from = \"command:/usr/bin/pass {caller}\"", "from"),
    ("from = \"env:\"", "from"),
    ("from = \"env:A=B\"", "from"),
    ("from = \"env:A B\"", "from"),
    ("from = \"command:\"", "from"),
    ("from = \"command:pass show\"", "from"),
    ("from = \"command:./pass\"", "from"),
    ("from = \"command:/usr/../pass\"", "from"),
    ("from = \"command:/bin/x \\u001b\"", "from"),
    ("header = { host = \"*.x.com\", name = \"k\" }", "header/host"),
    ("header = { host = \"*\", name = \"k\" }", "header/host"),
    ("header = { host = \"8.8.8.8\", name = \"k\" }", "header/host"),
    ("header = { host = \"[::1]:443\", name = \"k\" }", "header/host"),
    ("header = { name = \"k\" }", "header"),
    ("header = { host = \"x.com\" }", "header"),
    ("header = { host = \"x.com\", name = \"a b\" }", "header/name"),
    ("header = { host = \"x.com\", name = \":path\" }", "header/name"),
    ("header = { host = \"x.com\", name = \"k\\r\\nx\" }", "header/name"),
    ("header = { host = \"x.com\", name = \"k\", value = \"Bearer\" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", value = \"{} {}\" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", value = \"{}\\r\\nHost: y\" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", value = \"{}\\t\" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", value = \"ü{}\" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", value = \"{} \" }", "header/value"),
    ("header = { host = \"x.com\", name = \"k\", methods = [\"TRACE\"] }", "header/methods/0"),
    ("header = { host = \"x.com\", name = \"k\", methods = [\"GET\", \"CONNECT\"] }", "header/methods/1"),
    ("header = { host = \"x.com\", name = \"k\", methods = [\"get\"] }", "header/methods/0"),
    ("header = { host = \"x.com\", name = \"k\", methods = [\"\"] }", "header/methods/0"),
    ("header = { host = \"x.com\", name = \"k\", methods = [\"GET\\n\"] }", "header/methods/0"),
    ("header = { host = \"x.com\", name = \"k\", methods = [] }", "header/methods"),
    ("header = { host = \"x.com\", name = \"k\", paths = [] }", "header/paths"),
    ("header = { host = \"x.com\", name = \"k\", port = 1 }", "header/port"),
    ("header = { host = \"x.com\", name = \"k\", query = [\"a\"] }", "header"),
    ("header = { host = \"x.com\", name = \"k\", paths = [\"/a\"], query = [\"a&b\"] }", "header/query/0"),
    ("header = { host = \"x.com\", name = \"k\", paths = [\"/a\"], request_headers = [\"Host\"] }",
     "header/request_headers/0"),
    ("header = \"Authorization\"", "header"),
];
const PATHS: [&str; 20] = [
    "", "v1", "*", "**", "/*", "/a*", "/a/**/b", "/a/**/**", "//", "//**", "/a//b", "/a//**", "/..", "/../**", "/./**",
    "/a%2e", "/a?b", "/a b", "/a\\\\b", "/a\\n",
];
const FRAMING: [&str; 8] = [
    "Host",
    "Connection",
    "content-length",
    "Transfer-Encoding",
    "TE",
    "Upgrade",
    "Proxy-Authorization",
    "Accept-Encoding",
];

fn problems(entries: &str) -> Vec<(String, Code, String)> {
    let text = format!("{HEAD}[secrets]\ngrant = [{entries}]\n");
    let found = policy::parse(&text, Path::new("/t/x"), false, Path::new("/")).expect_err(&text);
    found.into_iter().map(|p| (p.pointer, p.code, p.message)).collect()
}

#[test]
fn an_entry_that_is_wrong_is_refused_with_its_place_and_the_mend() {
    let mut table: Vec<(String, String)> = BAD.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let header = |more: String| format!("header = {{ host = \"x.com\", {more} }}");
    table.extend(PATHS.map(|path| (header(format!("name = \"k\", paths = [\"{path}\"]")), "header/paths/0".into())));
    table.extend(FRAMING.map(|name| (header(format!("name = \"{name}\"")), "header/name".into())));
    for (wrong, place) in table {
        let from = if wrong.starts_with("from") { "" } else { "from = \"env:A\", " };
        let found = problems(&format!("{{ name = \"A\", why = \"w\", {from}{wrong} }}"));
        assert_eq!(
            (found.len(), &found[0].0, found[0].1),
            (1, &format!("/secrets/grant/0/{place}"), Code::Schema),
            "{wrong}: {found:?}"
        );
    }
    for name in ["LD_PRELOAD", "path", "A-B", "1A", "A B", "TOOLHOST_X"] {
        let (pointer, ..) = problems(&format!("{{ name = \"{name}\", from = \"env:A\", why = \"w\" }}")).remove(0);
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
        (("A", "x.com", "k"), ("A", "y.com", "k"), "name", "`A` is named twice"),
        (("A", "x.com", "k"), ("B", "X.com.", "K"), "header", "keep one header"),
        (("A", "x.com", "k"), ("B", "x.com:8443", "l"), "header", "one port"),
    ] {
        let text = [first, second].map(|(name, host, header)| entry(name, host, header)).concat();
        let (pointer, code, message) = problems(&text).remove(0);
        assert_eq!((pointer, code), (format!("/secrets/grant/1/{place}"), Code::Conflict));
        assert!(message.contains(words), "{message}");
    }
    let fine = [entry("A", "x.com", "k"), entry("B", "x.com", "l"), entry("C", "y.com:8443", "k")].concat();
    assert_eq!(parsed(&format!("{HEAD}[secrets]\ngrant = [{fine}]\n")).secrets.len(), 3);
    assert!(parsed(&format!("{HEAD}[secrets]\ngrant = [{fine}]\n")).is_wider_than_default());
    let many: String = (0..65).map(|n| format!("{{ name = \"A{n}\", from = \"env:A\", why = \"w\" }}, ")).collect();
    assert_eq!(problems(&many)[0].2, "more than 64 entries");
}

#[test]
fn each_file_lists_secrets_in_its_own_way() {
    let granting = format!("{HEAD}[capabilities]\ngrant = [{{ name = \"secret:A\", why = \"w\" }}]\n");
    let words = &policy::parse(&granting, Path::new("/t/x"), false, Path::new("/")).unwrap_err()[0].message;
    assert!(words.contains("granted by an entry of [secrets] grant in the tool's policy"), "{words}");
    let cap = format!("name = \"h\"\nwhy = \"w\"\n{}", listing(&["A"]));
    let found = policy::parse(&cap, Path::new("/t/host.policy.toml"), true, Path::new("/")).unwrap_err();
    assert!(found.len() == 1 && found[0].message.contains("[capabilities] grant"), "{found:?}");
    assert!(policy::grantable("secret:A").is_err(), "a config offers none");
    for word in ["secret:", "secret:LD_PRELOAD", "secret:A-B"] {
        let mut tool = tool("demo:one");
        tool.asks.capabilities = vec![word.into()];
        assert_eq!(refused(&decide(&tool, &Policies::built_in())).0, Kind::CapabilityError, "{word}");
    }
}

#[test]
fn a_script_run_by_core_uses_what_all_who_name_it_may() {
    let core_policy =
        |listed: &str| parsed(&format!("{CORE}[network]\nhosts = [{{ host = \"*\", why = \"w\" }}]\n{listed}"));
    let mut core = execute();
    (core.asks.hosts, core.asks.capabilities) = {
        let asks = asks(&["A", "B", "C"], &["*"]).asks;
        (asks.hosts, asks.capabilities)
    };
    let namer = |names: &[&str]| vec![(Arc::new(asks(names, &["api.x.com"])), site())];
    let run = |ours: &[&str], theirs: &[&str], asked: &[&str]| {
        let policies = under(vec![core_policy(&listing(ours)), allowing(theirs, "narrow")], None);
        policy::decide_run(&target(), &core, &namer(asked), &policies, &machine())
    };
    for (ours, theirs, asked, left) in [
        (&["A", "B+", "C"][..], &["A", "B+", "C"][..], &["A", "B"][..], &["A", "B+"][..]),
        (&["A"], &["A", "B"], &["A", "B"], &["A"]),
        (&["A"], &["B"], &["A", "B"], &[]),
        // One adds it, the other gives it to the tool: neither is what both allow.
        (&["A"], &["A+"], &["A"], &[]),
        (&["A+"], &["A"], &["A"], &[]),
    ] {
        let met = run(ours, theirs, asked);
        assert_eq!((granted(&met), &shape(&met).secrets), (left.iter().map(|l| l.to_string()).collect(), &met.secrets));
    }
    let met = run(&["A", "B"], &["A", "B"], &["A"]);
    let verdict = met.verdicts.iter().find(|v| v.asked == "secret:B").expect("a verdict");
    assert_eq!((verdict.allowed, verdict.narrower), (false, Some(Narrower::Owner)));
    assert!(met.notes.told.iter().any(|n| n.starts_with("narrowed: secret:B: demo:one@1.0.0 names this script")));
    // Source text reaches no host, so no header is added for it.
    core.id = policy::RUN_CODE.into();
    let source = RunTarget { site: Site { script: None, ..target().site }, ..target() };
    let code =
        policy::decide_run(&source, &core, &[], &under(vec![core_policy(&listing(&["A", "B+"]))], None), &machine());
    assert_eq!(granted(&code), ["A"]);
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_map(prop::sample::select(vec!["A", "B", "C", "D"]), any::<bool>(), 0..4).prop_map(|found| {
        found.into_iter().map(|(name, header)| format!("{name}{}", if header { "+" } else { "" })).collect()
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
