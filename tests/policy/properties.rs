//! Effective is within manifest, policy and cap, and monotone.

use super::*;
use proptest::prelude::*;

const PLACES: [&str; 6] = [
    "/data",
    "/data/pub",
    "/data/public",
    "/data/pub/x",
    "/srv",
    "/t/user_scripts/demo",
];

fn path() -> impl Strategy<Value = String> {
    let place = prop::sample::select(PLACES.to_vec());
    (
        place,
        prop::sample::select(vec!["/**", "/a.csv", "/out/**", "/out/b.csv"]),
    )
        .prop_map(|(p, e)| format!("{p}{e}"))
}

fn ask() -> impl Strategy<Value = String> {
    let names = prop::sample::select(PLACES.to_vec()).prop_map(|p| format!("{p}/out/*.csv"));
    prop_oneof![3 => path(), 1 => names, 1 => Just("out/**".to_string()), 1 => Just("./*".to_string())]
}

fn rule_lists() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    (
        prop::collection::vec(path(), 0..4),
        prop::collection::vec(path(), 0..3),
    )
}

fn text_of(read: &[String], write: &[String], timeout: u64, host: bool) -> String {
    let list = |p: &[String]| {
        p.iter()
            .map(|p| format!("{{ path = \"{p}\", why = \"w\" }}, "))
            .collect::<String>()
    };
    let head = if host {
        "name = \"h\"\nwhy = \"w\"\n"
    } else {
        &format!("{HEAD}mode = \"narrow\"\n")
    };
    format!(
        "{head}[files]\nread = [{}]\nwrite = [{}]\n[limits]\ntimeout_ms = {timeout}\n",
        list(read),
        list(write)
    )
}

/// Every path of a small world that a decision lets the tool read or write: the meaning, not the
/// form.
fn reach(decision: &Decision, access: Access) -> BTreeSet<PathBuf> {
    let mut world = BTreeSet::new();
    for place in PLACES.iter().chain(&["/t", "/t/user_scripts", "/other"]) {
        for end in [
            "a.csv",
            "b.csv",
            "out/b.csv",
            "out/c.csv",
            "out/c.txt",
            "out/deep/d.csv",
            "run.py",
            "z",
        ] {
            world.insert(Path::new(place).join(end));
        }
    }
    let grants: Vec<_> = decision
        .grants
        .files
        .iter()
        .filter(|grant| grant.access >= access)
        .collect();
    world.retain(|path| grants.iter().any(|grant| grant.area.holds(path)));
    world
}

fn holds_any(texts: &[String], access_texts: &[String], path: &Path) -> bool {
    texts
        .iter()
        .chain(access_texts)
        .any(|t| match t.strip_suffix("/**") {
            Some(tree) => path.starts_with(tree) && path != Path::new(tree),
            None => Path::new(t) == path,
        })
}

fn asked_holds(asks: &[String], path: &Path) -> bool {
    let home = Path::new("/t/user_scripts/demo");
    asks.iter().any(
        |a| match (a.strip_suffix("/**"), a.strip_suffix("/*.csv")) {
            _ if a == "./*" => path.starts_with(home),
            (Some(tree), _) => path.starts_with(home.join(tree)),
            (None, Some(folder)) => {
                path.parent() == Some(Path::new(folder))
                    && path.extension().is_some_and(|e| e == "csv")
            }
            _ => home.join(a) == path,
        },
    )
}

fn made(read: &[String], write: &[String]) -> Manifest {
    let [read, write] =
        [read, write].map(|paths| paths.iter().map(String::as_str).collect::<Vec<_>>());
    asking(Some(&read), &write)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn effective_is_within_manifest_policy_and_cap(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(), (hr, hw) in rule_lists(), capped: bool,
        asked in prop::option::of(100u64..90_000), ceiling in 100u64..90_000, cap in 100u64..90_000,
    ) {
        let mut tool = made(&read, &write);
        tool.execution.timeout_ms = asked;
        let host = capped.then(|| parsed_host(&text_of(&hr, &hw, cap, true)));
        let decision = decide(&tool, &under(vec![parsed(&text_of(&pr, &pw, ceiling, false))], host));
        for path in reach(&decision, Access::Read) {
            prop_assert!(asked_holds(&read, &path) || asked_holds(&write, &path), "read {path:?} \
                was not asked");
            prop_assert!(holds_any(&pr, &pw, &path), "read {path:?} is not in the policy");
            prop_assert!(!capped || holds_any(&hr, &hw, &path), "read {path:?} is not in the cap");
        }
        for path in reach(&decision, Access::Write) {
            prop_assert!(asked_holds(&write, &path), "write {path:?} was not asked");
            prop_assert!(holds_any(&pw, &[], &path), "write {path:?} is not in the policy");
            prop_assert!(!capped || holds_any(&hw, &[], &path), "write {path:?} is not in the cap");
            prop_assert!(path != Path::new("/t/user_scripts/demo/run.py"), "its own script");
        }
        let time = decision.limit(Limit::TimeoutMs).unwrap();
        prop_assert!(time.effective <= ceiling && time.ceiling <= ceiling);
        prop_assert!(!capped || time.ceiling <= cap);
        prop_assert!(asked.is_none_or(|a| time.effective <= a));
        for limit in &decision.limits {
            prop_assert!(limit.effective <= limit.ceiling);
            prop_assert!(limit.limit == Limit::TimeoutMs || limit.ceiling <= limit.limit.built_in_default());
        }
    }

    #[test]
    fn more_text_never_shrinks_and_a_narrower_cap_never_widens(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(), (more_read, more_write) in rule_lists(),
        (hr, hw) in rule_lists(), drop_from in 0usize..4, ceiling in 100u64..50_000, more in 0u64..50_000,
    ) {
        let tool = made(&read, &write);
        let run = |r: &[String], w: &[String], ms: u64, host: Option<Policy>| {
            decide(&tool, &under(vec![parsed(&text_of(r, w, ms, false))], host))
        };
        let small = run(&pr, &pw, ceiling, None);
        let big = run(&[pr.clone(), more_read].concat(), &[pw.clone(), more_write].concat(), ceiling + more, None);
        for access in [Access::Read, Access::Write] {
            prop_assert!(reach(&small, access).is_subset(&reach(&big, access)), "adding a rule \
                took something away");
        }
        let time = |d: &Decision| d.limit(Limit::TimeoutMs).unwrap().effective;
        prop_assert!(time(&small) <= time(&big));
        let cap = |n: usize, ms| parsed_host(&text_of(&hr[..n.min(hr.len())], &hw[..n.min(hw.len())], ms, true));
        let wide = run(&pr, &pw, ceiling, Some(cap(9, ceiling + more)));
        let narrow = run(&pr, &pw, ceiling, Some(cap(drop_from, ceiling)));
        for access in [Access::Read, Access::Write] {
            prop_assert!(reach(&narrow, access).is_subset(&reach(&wide, access)), "narrowing the \
                cap widened");
            prop_assert!(reach(&wide, access).is_subset(&reach(&small, access)), "a cap widened");
        }
        prop_assert!(time(&narrow) <= time(&wide) && time(&wide) <= time(&small));
    }

    #[test]
    fn a_script_run_by_core_never_gets_more_than_either(
        read in prop::collection::vec(ask(), 0..3), write in prop::collection::vec(ask(), 0..3),
        (pr, pw) in rule_lists(),
    ) {
        let tool = made(&read, &write);
        let policies = under(vec![parsed(CORE), parsed(&text_of(&pr, &pw, 5_000, false))], None);
        let own = decide(&tool, &policies);
        let alone = run_by(&execute(), vec![], &policies, &machine());
        let both = run_by(&execute(), vec![tool], &policies, &machine());
        let script = PathBuf::from("/t/user_scripts/demo/run.py");
        for access in [Access::Read, Access::Write] {
            let mut got = reach(&both, access);
            got.remove(&script);
            prop_assert!(got.is_subset(&reach(&own, access)));
            prop_assert!(got.is_subset(&reach(&alone, access)));
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(
        text in "\\PC{0,200}", noise in prop::collection::vec(any::<u8>(), 0..80), path in "[/.*%?a]{0,20}|\\PC{0,20}",
        host in "\\PC{0,60}", range in "[0-9a-f:./]{0,30}|\\PC{0,30}", from in "(file|env|command)?:?\\PC{0,40}",
        name in "\\PC{0,20}",
    ) {
        let read = |text: &str, host| drop(policy::parse(text, Path::new("x"), host, Path::new("/")));
        read(&text, false);
        read(&String::from_utf8_lossy(&noise), true);
        let [text, path, host, range, from, name] = [text, path, host, range, from, name].map(toml::Value::String);
        let header = format!("{{ host = \"x.com\", name = {name}, value = {text}, paths = [{path}] \
            }}");
        for table in [
            format!("[files]\nread = [{{ path = {text}, why = \"w\" }}]"),
            format!("[network]\nhosts = [{{ host = {host}, ranges = [{range}], why = \"w\" }}]"),
            format!("[secrets]\ngrant = [{{ name = {name}, from = {from}, header = {header}, why = \
                \"w\" }}]"),
        ] {
            read(&format!("name = \"n\"\nwhy = \"w\"\ntools = [\"a:b\"]\n{table}"), false);
        }
    }
}
