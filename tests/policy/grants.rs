//! File asks against rules, by table.

use super::*;

#[test]
fn what_is_granted_is_what_is_asked_and_allowed_with_the_own_folder_where_none_says_otherwise() {
    let home = PathBuf::from("/t/user_scripts/demo");
    let script = Opening::Snapshot {
        folder: home.clone(),
        names: "run.py".into(),
    };
    let staged = |names: &str| Opening::Staged {
        folder: home.join("out"),
        names: names.into(),
    };
    let (own, cache) = (
        live("/t/user_scripts/demo"),
        live("/t/user_scripts/demo/.cache"),
    );
    let silent = format!("{HEAD}[limits]\ntimeout_ms = 500\n");
    let empty = format!("{silent}[files]\nread = []\n");
    let more = policy_text(&["./**"], &["./out/**", "./.cache/**"], "");
    // Reads inside a write are not given twice; the host's /tmp is not bound over scratch.
    let asked = (
        Some(&["self", ".cache/**", "out/*.csv"][..]),
        &[".cache/**", "out/*.csv", "out/one.txt"][..],
    );
    for ((read, write), policies, granted) in [
        ((None, &[][..]), Policies::built_in(), vec![own.clone()]),
        ((None, &[]), ruled(&silent), vec![own]),
        ((None, &[]), ruled(&empty), vec![script.clone()]),
        (
            asked,
            ruled(&more),
            vec![script, cache, staged("*.csv"), staged("one.txt")],
        ),
        (
            (Some(&[]), &["/tmp/**", "/tmp/"]),
            Policies::built_in(),
            vec![],
        ),
        (
            (Some(&[]), &["/tmp/**"]),
            ruled(&policy_text(&[], &["/tmp/**"], "")),
            vec![],
        ),
    ] {
        let decision = decide(&asking(read, write), &policies);
        let openings: BTreeSet<_> = shape(&decision)
            .grants
            .iter()
            .map(|grant| grant.opening())
            .collect();
        assert_eq!(
            openings,
            granted.into_iter().collect(),
            "{read:?} {write:?}"
        );
        assert!(decision.verdicts.iter().all(|v| v.allowed));
    }
    let decision = decide(&tool("demo:one"), &Policies::built_in());
    let bare = shape(&decision);
    let got = (
        bare.grants.len(),
        bare.grants[0].access,
        bare.limits.get(Limit::TimeoutMs),
    );
    assert_eq!(got, (1, Access::Read, 30_000));
    assert!(bare.env.is_empty() && !bare.require_cgroup && !bare.stderr_is_error);
    assert_eq!(bare.tool, "demo:one@1.0.0");
    let quiet = decide(&tool("demo:one"), &ruled(&silent));
    assert_eq!(
        (
            shape(&quiet).grants.len(),
            shape(&quiet).limits.get(Limit::TimeoutMs)
        ),
        (1, 500)
    );
    // Where the policy reads nothing, an explicit ask is refused.
    assert_eq!(
        refused(&decide(&asking(Some(&["./*"]), &[]), &ruled(&empty))).0,
        Kind::SecurityError
    );
}

/// A rule for reading, what it leaves whole, what it narrows to itself, and what it takes away.
#[test]
fn asks_meet_rules_exactly() {
    for (rule, whole, narrowed, gone) in [
        (
            "/data/pub/**",
            "/data/pub/** /data/pub/x/**",
            "/data/pub/ /data/**",
            "/data/public/** /data/public.csv",
        ),
        ("/data/a.csv", "/data/a.csv", "/data/** /data/*.csv", ""),
        ("/data/a.csv.bak", "", "", "/data/a.csv"),
        ("/data/**", "/data/a.csv /data/*.csv", "/", "/proc/**"),
        ("/data/a.txt", "", "", "/data/*.csv"),
        ("/data/sub/**", "", "", "/data/*.csv"),
        ("/data/pub", "", "", "/data/pub/**"),
        ("./data/**", "/t/user_scripts/demo/data/**", "./*", ""),
        ("./**", "data/in.csv", "", "/t/user_scripts/other/**"),
        ("./data/in.csv", "data/in.csv", "", ""),
    ] {
        let whole = whole.split_whitespace().map(|ask| (ask, Some(ask)));
        let narrowed = narrowed.split_whitespace().map(|ask| (ask, Some(rule)));
        for (ask, left) in whole
            .chain(narrowed)
            .chain(gone.split_whitespace().map(|ask| (ask, None)))
        {
            let left = left
                .map(|left| Path::new("/t/user_scripts/demo").join(left.trim_start_matches("./")));
            let tool = asking(Some(&[ask]), &[]);
            let decision = decide(
                &tool,
                &ruled(&policy_text(&[rule], &[], "mode = \"narrow\"")),
            );
            let got: Vec<PathBuf> = areas(&decision).into_iter().map(PathBuf::from).collect();
            assert_eq!(got, Vec::from_iter(left), "{ask} under {rule}");
            let strict = decide(&tool, &ruled(&policy_text(&[rule], &[], "")));
            let verdict = &strict.verdicts[0];
            assert_eq!(strict.shape.is_ok(), verdict.allowed, "{ask} under {rule}");
            assert_eq!(verdict.asked, pattern(ask).text);
        }
    }
}

#[test]
fn an_ask_is_no_grant_and_narrow_runs_with_less_and_says_so() {
    let tool = asking(Some(&["./*"]), &["out/**", "/data/**"]);
    let by = |mode: &str| decide(&tool, &ruled(&policy_text(&["./**"], &["./out/**"], mode)));
    for refusal in [
        by(""),
        decide(&asking(None, &["/data/**"]), &Policies::built_in()),
    ] {
        let (kind, person) = refused(&refusal);
        assert_eq!(kind, Kind::SecurityError);
        assert!(
            person.contains("write /data/**") && person.contains("no entry of [files] write"),
            "{person}"
        );
        let verdict = refusal
            .verdicts
            .iter()
            .find(|v| v.asked == "/data/**")
            .unwrap();
        assert!(!verdict.allowed && verdict.effective.is_none() && verdict.reason.is_some());
    }
    let decision = by("mode = \"narrow\"");
    let writes = shape(&decision)
        .grants
        .iter()
        .filter(|g| g.access == Access::Write)
        .map(|g| g.opening());
    assert_eq!(
        writes.collect::<Vec<_>>(),
        [live("/t/user_scripts/demo/out")]
    );
    assert!(
        decision.notes.all.iter().any(|n| n.contains("/data/**")),
        "{:?}",
        decision.notes
    );
    assert!(report(&decision).contains("narrowed: write /data/**"));
}

#[test]
fn what_is_run_or_obeyed_is_never_written() {
    let everything = [
        "./**",
        "/t/**",
        "/usr/**",
        "/srv/**",
        "/opt/venv/**",
        "/p/policies/**",
    ];
    let mut policies = ruled(&policy_text(&[], &everything, ""));
    policies.protect([
        PathBuf::from("/p/policies"),
        PathBuf::from("/srv/other/tool.py"),
    ]);
    let mut machine = machine();
    machine.named_runtimes.insert(
        "/opt/venv/bin/python".into(),
        Ok(python("/opt/venv/bin/python")),
    );
    let own = "./* run.py *.py r* * node_modules/** .venv/** lib/__pycache__/** package.json self";
    let definitions = "/t/** /t/tool-defs/demo/** /t/tool-defs/demo/*.json \
                       /t/tool-defs/demo/demo.tool.json out/x.tool.json out/*.tool.json \
                       out/*.policy.toml /p/policies/** /p/policies/sub/x.txt";
    let others = "/usr/lib/** /usr/** /opt/venv/** /opt/venv/lib/** /srv/** /srv/other/* \
                  /srv/other/tool.py /proc/** /sys/x /dev/** /";
    let writing =
        |ask: &str| policy::decide(&asking(Some(&[]), &[ask]), &site(), &policies, &machine);
    for ask in [own, definitions, others]
        .into_iter()
        .flat_map(str::split_whitespace)
    {
        let decision = writing(ask);
        assert_eq!(refused(&decision).0, Kind::SecurityError, "{ask}");
        assert!(
            decision.grants.files.is_empty(),
            "{ask}: {:?}",
            decision.grants.files
        );
    }
    let data = "out/** .cache/** *.csv out/* result.json /srv/data/** /srv/other/data/** x.p? \
        helper.py lib* out/a.py";
    for ask in data.split_whitespace() {
        let decision = writing(ask);
        assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape);
    }
    let decision = writing("out/*.json");
    let written = policy::WritablePaths::of_tools([(
        decision.identity.tool.as_str(),
        decision.grants.files.as_slice(),
    )]);
    assert!(
        written
            .by(Path::new("/t/user_scripts/demo/out/x.json"))
            .is_some(),
        "and so it is never loaded"
    );
    for never in ["out/x.tool.json", "out/package.json", "x.json"] {
        let path = Path::new("/t/user_scripts/demo").join(never);
        assert!(written.by(&path).is_none(), "{never} is not published");
    }
}

#[test]
fn a_script_directly_in_a_base_folder_reads_itself_and_does_not_open_the_base() {
    let lies = ToolPaths {
        folder: site().base.clone(),
        script: Some(site().base.join("one.py")),
        ..site()
    };
    let decided =
        |asked: &Manifest, policies: &Policies| policy::decide(asked, &lies, policies, &machine());
    let alone = decided(&tool("demo:one"), &Policies::built_in());
    let only = Opening::Snapshot {
        folder: "/t/user_scripts".into(),
        names: "one.py".into(),
    };
    assert_eq!(
        shape(&alone)
            .grants
            .iter()
            .map(|g| g.opening())
            .collect::<Vec<_>>(),
        [only]
    );
    let all = |rule: &str| {
        decided(
            &asking(Some(&["./*"]), &[]),
            &ruled(&policy_text(&[rule], &[], "")),
        )
    };
    let (kind, person) = refused(&all("./**"));
    assert!(
        kind == Kind::SecurityError && person.contains("give the tool a folder of its own"),
        "{person}"
    );
    assert!(
        all(&format!("{}/**", lies.base.display())).shape.is_ok(),
        "named by its absolute path, it is meant"
    );
}

/// Programs, libraries and settings of the machine are written by no tool, whatever a policy says;
/// beside them it may.
#[test]
fn system_folders_and_what_the_host_runs_are_never_written() {
    let relied_on = ["/opt/tools/bin", "/opt/later/bin", "/opt/pyenv"]
        .map(|place| (place.into(), "is in PATH".into()));
    let runtime = python("/opt/py/bin/python3");
    let machine = Machine {
        runtimes: BTreeMap::from([(
            Language::Python,
            Runtime {
                roots: vec!["/opt/py/lib".into()],
                ..runtime
            },
        )]),
        relied_on: relied_on.into(),
        homes: ["/home/u", "/data/home"].map(PathBuf::from).into(),
        ..Machine::default()
    };
    for (asked, why) in [
        (
            "/usr/lib/python3.11/** /usr/share/** /usr/** /usr/local/lib/x/*.so",
            "holds programs or settings of the machine",
        ),
        ("/etc/ssl/certs/** /etc/ssl/certs/a.pem", "/etc holds"),
        ("/lib64/**", "/lib64 holds"),
        ("/boot/x", "/boot holds"),
        ("/report.csv", "/ holds"),
        (
            "/opt/tools/** /opt/tools/bin/sub/** /opt/later/bin/*.csv /opt/pyenv/version",
            "is in PATH",
        ),
        (
            "/opt/py/pyvenv.cfg /opt/py/bin/** /opt/py/*.csv",
            "files of an interpreter",
        ),
        (
            "/home/u/.config/x/** /home/u/.bashrc /home/u/**",
            "names start with a dot",
        ),
        (
            "/data/home/.ssh/** /data/**",
            "names start with a dot (/data/home/.config",
        ),
        (
            "/home/u/out/** /home/u/*.csv /opt/py/out/*.csv /opt/tools/out/** /user/lib/**",
            "",
        ),
    ] {
        for ask in asked.split(' ') {
            // As wide as a policy can say it, and exactly what is asked; a cap makes nothing
            // acceptable.
            let policies = ruled(&policy_text(
                &[],
                &[&ask.replace("/*.csv", "/**").replace("/*.so", "/**")],
                "",
            ));
            answers(
                ask,
                why,
                &policy::decide(
                    &asking(Some(&["self"]), &[ask]),
                    &site(),
                    &policies,
                    &machine,
                ),
            );
        }
    }
}

/// Refused for this reason, or granted where there is none.
fn answers(ask: &str, why: &str, decision: &Decision) {
    if why.is_empty() {
        assert!(decision.shape.is_ok(), "{ask}: {:?}", decision.shape);
    } else {
        let (kind, person) = refused(decision);
        assert!(
            kind == Kind::SecurityError && person.contains(why),
            "{ask}: {person}"
        );
    }
}

#[test]
fn a_home_is_fenced_also_where_scripts_lie_in_it() {
    let machine = Machine {
        homes: ["/h/u"].map(PathBuf::from).into(),
        ..machine()
    };
    for (base, fenced, good) in [
        ("/h/u/.local/tools", "", "/h/u/.local/tools/a/out/**"),
        ("/h/u/tools", "/h/u/.config/**", "/h/u/tools/a/.state/**"),
        ("/h/u", "/h/u/.config/** /h/u/.bashrc", "/h/u/a/out/**"),
        ("/h", "/h/u/.config/** /h/u/**", "/h/other/out/**"),
    ] {
        let folder = Path::new(base).join("a");
        let lies = ToolPaths {
            base: base.into(),
            script: Some(folder.join("run.py")),
            folder,
            ..site()
        };
        let fenced = fenced
            .split_whitespace()
            .map(|ask| (ask, "names start with a dot"));
        for (ask, why) in fenced.chain([(good, "")]) {
            let policies = ruled(&policy_text(&[], &[ask], ""));
            answers(
                ask,
                why,
                &policy::decide(&asking(Some(&["self"]), &[ask]), &lies, &policies, &machine),
            );
        }
    }
}

#[test]
fn what_a_view_makes_up_and_trees_of_the_kernel_are_never_read() {
    for ask in [
        "/",
        "/proc/**",
        "/proc/self/environ",
        "/sys/**",
        "/dev/**",
        "/dev/mem",
    ] {
        assert_eq!(
            refused(&decide(&asking(Some(&[ask]), &[]), &Policies::built_in())).0,
            Kind::SecurityError,
            "{ask}"
        );
    }
    for (ask, rule, why) in [
        (
            "/etc/passwd",
            "/etc/passwd",
            "every call has its own /etc/passwd",
        ),
        ("/etc/hosts", "/etc/**", "every call has its own /etc/hosts"),
        ("/etc/**", "/etc/**", "every call has its own /etc/"),
        ("/etc/*.conf", "/etc/**", "every call has its own /etc/"),
        (
            "/.toolhost/**",
            "/.toolhost/**",
            "every call has its own /.toolhost",
        ),
        ("/etc/app/**", "/etc/**", ""),
        ("/etc/hostname", "/etc/hostname", ""),
    ] {
        answers(
            ask,
            why,
            &decide(
                &asking(Some(&["self", ask]), &[]),
                &ruled(&policy_text(&[rule], &[], "")),
            ),
        );
    }
}

/// Eight times the text takes no more than about eight times the work: comparing each with each
/// would take 64 times.
#[test]
fn a_decision_costs_what_its_manifest_is_long() {
    let policies = ruled(&policy_text(&["./**"], &["./out/**"], ""));
    let cost = |count: usize| {
        let deep = "deep-folder-of-results/".repeat(50);
        let asks = |root: &str| {
            (0..count)
                .map(|n| format!("{root}/{deep}{n}/**"))
                .collect::<Vec<_>>()
        };
        let (read, write) = (asks("in"), asks("out"));
        let texts = |asks: &[String]| {
            asks.iter()
                .map(|ask| ask.clone().leak() as &str)
                .collect::<Vec<_>>()
        };
        let tool = asking(Some(&texts(&read)), &texts(&write));
        let time = || {
            let began = std::time::Instant::now();
            assert_eq!(decide(&tool, &policies).grants.files.len(), 2 * count);
            began.elapsed()
        };
        (0..5).map(|_| time()).min().unwrap()
    };
    let (few, many) = (cost(32), cost(256));
    assert!(many < few * 24, "{few:?} {many:?}");
}
