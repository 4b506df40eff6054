//! File asks against rules, by table.

use super::*;

#[test]
fn a_bare_manifest_reads_its_own_folder_and_nothing_else() {
    let decision = decide(&tool("demo:one"), &Policies::built_in());
    let shape = shape(&decision);
    assert_eq!(shape.grants.len(), 1);
    assert_eq!((shape.grants[0].access, &shape.grants[0].opening), (Access::Read, &live("/t/user_scripts/demo")));
    assert_eq!(shape.limits.get(Limit::TimeoutMs), 30_000);
    assert!(shape.env.is_empty() && !shape.require_cgroup && !shape.stderr_is_error);
    assert_eq!(shape.tool, "demo:one@1.0.0");
}

#[test]
fn a_policy_without_read_leaves_the_own_folder_and_an_empty_one_the_script() {
    let text = "name = \"p\"\nwhy = \"w\"\ntools = [\"demo:one\"]\n[limits]\ntimeout_ms = 500\n";
    let decision = decide(&tool("demo:one"), &under(vec![parsed(text)], None));
    let shape = shape(&decision);
    assert_eq!(shape.grants.len(), 1);
    assert!(matches!(&shape.grants[0].opening, Opening::Live { path } if path.ends_with("demo")));
    assert_eq!(shape.limits.get(Limit::TimeoutMs), 500);
    let text = &format!("{text}[files]\nread = []\n");
    let decision = decide(&tool("demo:one"), &under(vec![parsed(text)], None));
    let grants = &self::shape(&decision).grants;
    assert!(matches!(&grants[0].opening, Opening::Snapshot { names, .. } if names == "run.py"));
    // But an explicit ask is refused.
    let decision = decide(&asking(Some(&["./*"]), &[]), &under(vec![parsed(text)], None));
    assert_eq!(refused(&decision).0, Kind::SecurityError);
}

#[test]
fn an_ask_is_no_grant() {
    let decision = decide(&asking(None, &["/data/**"]), &Policies::built_in());
    let (kind, person) = refused(&decision);
    assert_eq!(kind, Kind::SecurityError);
    assert!(person.contains("write /data/**") && person.contains("no entry of [files] write"), "{person}");
    let verdict = decision.verdicts.iter().find(|v| v.asked == "/data/**").unwrap();
    assert!(!verdict.allowed && verdict.effective.is_none() && verdict.reason.is_some());
}

/// ask, rule (both for reading), what is left of it under `narrow`.
#[test]
fn asks_meet_rules_exactly() {
    let home = "/t/user_scripts/demo";
    let table: &[(&str, &str, Option<&str>)] = &[
        ("/data/pub/**", "/data/pub/**", Some("/data/pub/**")),
        ("/data/pub/", "/data/pub/**", Some("/data/pub/**")),
        ("/data/pub/x/**", "/data/pub/**", Some("/data/pub/x/**")),
        ("/data/public/**", "/data/pub/**", None),
        ("/data/public.csv", "/data/pub/**", None),
        ("/data/**", "/data/pub/**", Some("/data/pub/**")),
        ("/data/**", "/data/a.csv", Some("/data/a.csv")),
        ("/data/a.csv", "/data/a.csv", Some("/data/a.csv")),
        ("/data/a.csv", "/data/a.csv.bak", None),
        ("/data/a.csv", "/data/**", Some("/data/a.csv")),
        ("/data/*.csv", "/data/**", Some("/data/*.csv")),
        ("/data/*.csv", "/data/a.csv", Some("/data/a.csv")),
        ("/data/*.csv", "/data/a.txt", None),
        ("/data/*.csv", "/data/sub/**", None),
        ("/data/pub/**", "/data/pub", None),
        ("./*", "./data/**", Some("data/**")),
        ("data/in.csv", "./**", Some("data/in.csv")),
        ("data/in.csv", "./data/in.csv", Some("data/in.csv")),
        ("/t/user_scripts/demo/data/**", "./data/**", Some("data/**")),
        ("/t/user_scripts/other/**", "./**", None),
        ("/", "/data/**", Some("/data/**")),
        ("/proc/**", "/data/**", None),
    ];
    for (ask, rule, left) in table {
        let left = left.map(|l| if l.starts_with('/') { l.to_string() } else { format!("{home}/{l}") });
        let whole = pattern(ask);
        let text = policy_text(&[rule], &[], "mode = \"narrow\"");
        let decision = decide(&asking(Some(&[ask]), &[]), &under(vec![parsed(&text)], None));
        let got: Vec<String> = shape(&decision).grants.iter().map(|g| Area::from_opening(&g.opening).text()).collect();
        assert_eq!(got, left.clone().into_iter().collect::<Vec<_>>(), "{ask} under {rule}");
        let strict = decide(&asking(Some(&[ask]), &[]), &under(vec![parsed(&policy_text(&[rule], &[], ""))], None));
        let verdict = &strict.verdicts[0];
        assert_eq!(strict.shape.is_ok(), verdict.allowed, "{ask} under {rule}");
        assert_eq!(verdict.asked, whole.text);
    }
}

#[test]
fn reject_refuses_and_narrow_runs_with_less_and_says_so() {
    let tool = asking(Some(&["./*"]), &["out/**", "/data/**"]);
    let strict = policy_text(&["./**"], &["./out/**"], "");
    assert_eq!(refused(&decide(&tool, &under(vec![parsed(&strict)], None))).0, Kind::SecurityError);
    let narrow = policy_text(&["./**"], &["./out/**"], "mode = \"narrow\"");
    let decision = decide(&tool, &under(vec![parsed(&narrow)], None));
    let writes: Vec<&Grant> = shape(&decision).grants.iter().filter(|g| g.access == Access::Write).collect();
    assert_eq!(writes.iter().map(|g| &g.opening).collect::<Vec<_>>(), [&live("/t/user_scripts/demo/out")]);
    assert!(decision.notes.all.iter().any(|n| n.contains("/data/**")), "{:?}", decision.notes);
    assert!(report(&decision).contains("narrowed: write /data/**"));
}

#[test]
fn write_implies_read_and_staging_is_for_names() {
    let rules = policy_text(&["./**"], &["./out/**", "./.cache/**"], "");
    let tool = asking(Some(&["self", ".cache/**", "out/*.csv"]), &[".cache/**", "out/*.csv", "out/one.txt"]);
    let decision = decide(&tool, &under(vec![parsed(&rules)], None));
    let home = PathBuf::from("/t/user_scripts/demo");
    let staged = |names: &str| Opening::Staged { folder: home.join("out"), names: names.into() };
    let openings: BTreeSet<Opening> = shape(&decision).grants.iter().map(|g| g.opening.clone()).collect();
    let expected = BTreeSet::from([
        Opening::Snapshot { folder: home.clone(), names: "run.py".into() },
        live("/t/user_scripts/demo/.cache"),
        staged("*.csv"),
        staged("one.txt"),
    ]);
    assert_eq!(openings, expected, "reads inside a write are not given twice");
    assert!(decision.verdicts.iter().all(|v| v.allowed));
}

#[test]
fn tmp_is_always_the_calls_own() {
    let decision = decide(&asking(Some(&[]), &["/tmp/**", "/tmp/"]), &Policies::built_in());
    assert!(shape(&decision).grants.is_empty());
    let rules = policy_text(&[], &["/tmp/**"], "");
    let decision = decide(&asking(Some(&[]), &["/tmp/**"]), &under(vec![parsed(&rules)], None));
    assert!(shape(&decision).grants.is_empty(), "the host's /tmp is not bound over scratch");
}

#[test]
fn what_is_run_or_obeyed_is_never_written() {
    let everything = ["./**", "/t/**", "/usr/**", "/srv/**", "/opt/venv/**", "/p/policies/**"];
    let mut policies = under(vec![parsed(&policy_text(&[], &everything, ""))], None);
    policies.protect([PathBuf::from("/p/policies"), PathBuf::from("/srv/other/tool.py")]);
    let mut machine = machine();
    machine.named_runtimes.insert("/opt/venv/bin/python".into(), Ok(python("/opt/venv/bin/python")));
    let own = "./* run.py *.py r* * x.p? helper.py lib* out/a.py node_modules/** .venv/** lib/__pycache__/** self";
    let definitions = "/t/** /t/tool-defs/demo/** /t/tool-defs/demo/*.json /t/tool-defs/demo/demo.tool.json \
                       out/x.tool.json out/*.tool.json out/*.policy.toml /p/policies/** /p/policies/sub/x.txt";
    let others = "/usr/lib/** /usr/** /opt/venv/** /opt/venv/lib/** /srv/** /srv/other/* /srv/other/tool.py \
                  /proc/** /sys/x /dev/** /";
    for ask in [own, definitions, others].into_iter().flat_map(str::split_whitespace) {
        let decision = policy::decide(&asking(Some(&[]), &[ask]), &site(), &policies, &machine);
        assert_eq!(refused(&decision).0, Kind::SecurityError, "{ask}");
        assert!(decision.grants.is_empty(), "{ask}: {:?}", decision.grants);
    }
    for ask in ["out/**", ".cache/**", "*.csv", "out/*", "result.json", "/srv/data/**", "/srv/other/data/**"] {
        let decision = policy::decide(&asking(Some(&[]), &[ask]), &site(), &policies, &machine);
        assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape);
    }
    let decision = policy::decide(&asking(Some(&[]), &["out/*.json"]), &site(), &policies, &machine);
    let written = policy::WritablePaths::of_tools([(decision.tool.as_str(), decision.grants.as_slice())]);
    assert!(written.by(Path::new("/t/user_scripts/demo/out/x.tool.json")).is_some(), "and so it is never loaded");
    assert!(written.by(Path::new("/t/user_scripts/demo/x.tool.json")).is_none());
}

#[test]
fn a_script_directly_in_a_base_folder_reads_itself_and_does_not_open_the_base() {
    let lies = Site { folder: site().base.clone(), script: Some(site().base.join("one.py")), ..site() };
    let ruled = |asked: &Manifest, policies: &Policies| policy::decide(asked, &lies, policies, &machine());
    let alone = ruled(&tool("demo:one"), &Policies::built_in());
    let only = Opening::Snapshot { folder: "/t/user_scripts".into(), names: "one.py".into() };
    assert_eq!(shape(&alone).grants.iter().map(|g| &g.opening).collect::<Vec<_>>(), [&only]);
    let all =
        |rule: &str| ruled(&asking(Some(&["./*"]), &[]), &under(vec![parsed(&policy_text(&[rule], &[], ""))], None));
    let (kind, person) = refused(&all("./**"));
    assert!(kind == Kind::SecurityError && person.contains("give the tool a folder of its own"), "{person}");
    assert!(all(&format!("{}/**", lies.base.display())).shape.is_ok(), "named by its absolute path, it is meant");
}

/// Programs, libraries and settings of the machine are written by no tool, whatever a policy says; beside them it may.
#[test]
fn system_folders_and_what_the_host_runs_are_never_written() {
    let relied_on = ["/opt/tools/bin", "/opt/later/bin", "/opt/pyenv"].map(|place| (place.into(), "is in PATH".into()));
    let runtime = python("/opt/py/bin/python3");
    let machine = Machine {
        runtimes: BTreeMap::from([(Language::Python, Runtime { roots: vec!["/opt/py/lib".into()], ..runtime })]),
        relied_on: relied_on.into(),
        homes: ["/home/u", "/data/home"].map(PathBuf::from).into(),
        ..Machine::default()
    };
    let table: &[(&str, Option<&str>)] = &[
        ("/usr/lib/python3.11/**", Some("/usr holds programs")),
        ("/usr/share/**", Some("/usr holds programs")),
        ("/usr/**", Some("/usr holds programs")),
        ("/usr/local/lib/x/*.so", Some("/usr holds programs")),
        ("/etc/ssl/certs/**", Some("/etc holds")),
        ("/etc/ssl/certs/a.pem", Some("/etc holds")),
        ("/lib64/**", Some("/lib64 holds")),
        ("/boot/x", Some("/boot holds")),
        ("/report.csv", Some("/ holds")),
        ("/opt/tools/**", Some("is in PATH")),
        ("/opt/tools/bin/sub/**", Some("is in PATH")),
        ("/opt/later/bin/*.csv", Some("is in PATH")),
        ("/opt/pyenv/version", Some("is in PATH")),
        ("/opt/py/pyvenv.cfg", Some("files of an interpreter")),
        ("/opt/py/bin/**", Some("files of an interpreter")),
        ("/opt/py/*.csv", Some("files of an interpreter")),
        ("/home/u/.config/x/**", Some("names start with a dot")),
        ("/home/u/.bashrc", Some("names start with a dot")),
        ("/home/u/**", Some("names start with a dot")),
        ("/data/home/.ssh/**", Some("names start with a dot (/data/home/.config")),
        ("/data/**", Some("names start with a dot (/data/home/.config")),
        ("/home/u/out/**", None),
        ("/home/u/*.csv", None),
        ("/opt/py/out/*.csv", None),
        ("/opt/tools/out/**", None),
        ("/user/lib/**", None),
    ];
    for (ask, wanted) in table {
        // As wide as a policy can say it, and exactly what is asked; a cap makes nothing acceptable.
        let area = ask.replace("/*.csv", "/**").replace("/*.so", "/**");
        let policies = under(vec![parsed(&policy_text(&[], &[&area], ""))], None);
        let decision = policy::decide(&asking(Some(&["self"]), &[ask]), &site(), &policies, &machine);
        match wanted {
            None => assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape),
            Some(why) => {
                let (kind, person) = refused(&decision);
                assert!(kind == Kind::SecurityError && person.contains(why), "{ask}: {person}");
            }
        }
    }
}

/// A folder of tools in a home has its own fences; where the base of the scripts is a home, or holds one, the home has.
#[test]
fn a_home_is_fenced_also_where_scripts_lie_in_it() {
    let machine = Machine { homes: ["/h/u"].map(PathBuf::from).into(), ..machine() };
    for (base, ask, good) in [
        ("/h/u/.local/tools", "/h/u/.local/tools/a/out/**", true),
        ("/h/u/tools", "/h/u/tools/a/.state/**", true),
        ("/h/u/tools", "/h/u/.config/**", false),
        ("/h/u", "/h/u/.config/**", false),
        ("/h/u", "/h/u/.bashrc", false),
        ("/h/u", "/h/u/a/out/**", true),
        ("/h", "/h/u/.config/**", false),
        ("/h", "/h/u/**", false),
        ("/h", "/h/other/out/**", true),
    ] {
        let folder = Path::new(base).join("a");
        let lies = Site { base: base.into(), script: Some(folder.join("run.py")), folder, ..site() };
        let policies = under(vec![parsed(&policy_text(&[], &[ask], ""))], None);
        let decision = policy::decide(&asking(Some(&["self"]), &[ask]), &lies, &policies, &machine);
        assert_eq!(decision.shape.is_ok(), good, "{base}: {ask}: {:?}", decision.shape);
        assert!(good || refused(&decision).1.contains("names start with a dot"), "{:?}", decision.shape);
    }
}

/// What every call has of its own cannot be shown in its place.
#[test]
fn what_a_view_makes_up_and_trees_of_the_kernel_are_never_read() {
    for ask in ["/", "/proc/**", "/proc/self/environ", "/sys/**", "/dev/**", "/dev/mem"] {
        let decision = decide(&asking(Some(&[ask]), &[]), &Policies::built_in());
        assert_eq!(refused(&decision).0, Kind::SecurityError, "{ask}");
    }
    for (ask, rule, wanted) in [
        ("/etc/passwd", "/etc/passwd", Some("every call has its own /etc/passwd")),
        ("/etc/hosts", "/etc/**", Some("every call has its own /etc/hosts")),
        ("/etc/**", "/etc/**", Some("every call has its own /etc/")),
        ("/etc/*.conf", "/etc/**", Some("every call has its own /etc/")),
        ("/.toolhost/**", "/.toolhost/**", Some("every call has its own /.toolhost")),
        ("/etc/app/**", "/etc/**", None),
        ("/etc/hostname", "/etc/hostname", None),
    ] {
        let policies = under(vec![parsed(&policy_text(&[rule], &[], ""))], None);
        let decision = decide(&asking(Some(&["self", ask]), &[]), &policies);
        match wanted {
            None => assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape),
            Some(why) => assert!(refused(&decision).1.contains(why), "{ask}: {}", refused(&decision).1),
        }
    }
}
