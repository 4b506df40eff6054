//! What fails for no fault of the tool names its cause: a removed file, a limit of this process,
//! another user's folder.

use crate::http::Web;
use crate::prelude::*;

#[test]
fn a_path_that_went_is_no_policy_and_no_missing_layer() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let data = playground.path("data");
    fs::create_dir_all(&data).unwrap();
    let tree = format!("{}/**", data.display());
    let reads = json!({ "securityContext": { "fileAccess": { "allowRead": [tree] } } });
    playground.tool("data", "python", "print(1)\n", reads);
    let script = playground
        .tool("script", "python", "print(1)\n", json!({}))
        .join("main.py");
    playground.tool("interpreter", "python", "print(1)\n", json!({}));
    let module = playground
        .tool("module", "wasm", PRINTS_ONE, json!({}))
        .join("main.wat");
    // An interpreter of its own, so that it can go.
    let venv = playground.path("venv");
    let made = Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--copies", "--without-pip"])
        .arg(&venv)
        .output();
    assert!(made.unwrap().status.success());
    let python = venv.join("bin/python");
    playground.allow("data", "esc:data", &["./**", &tree], &[]);
    let named = format!(
        "[runtimes]\npython = {{ path = \"{}\", why = \"w\" }}\n",
        python.display()
    );
    playground.policy("interpreter", "esc:interpreter", &named);
    playground.settle();
    for program in fs::read_dir(venv.join("bin")).unwrap() {
        fs::set_permissions(program.unwrap().path(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    // It does not look by itself, so that it meets what went at the call.
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--watch", "off"]);
    let mut server = Server::with(host);
    let mut tools = vec![
        ("esc:data", "a granted path does not exist"),
        ("esc:script", "the tool's script no longer exists"),
        ("esc:module", "the tool's script no longer exists"),
        (
            "esc:interpreter",
            "the interpreter of this tool no longer exists",
        ),
    ];
    tools.retain(|(tool, _)| cfg!(feature = "wasi") || *tool != "esc:module");
    for (tool, _) in &tools {
        assert_eq!(
            words(&server.called(tool, json!({}))),
            "1",
            "{tool}: the control"
        );
    }
    fs::remove_dir_all(&data).unwrap();
    [&script, &module, &python]
        .iter()
        .for_each(|file| fs::remove_file(file).unwrap());
    let mut fails = |tool: &str, why: &str| {
        let told = words(&server.called(tool, json!({})));
        assert!(
            told.contains("DependencyError") && told.contains(why),
            "{tool}: {told}"
        );
        assert!(
            !told.contains("layer") && !told.contains("policy"),
            "{tool}: {told}"
        );
    };
    tools.into_iter().for_each(|(tool, why)| fails(tool, why));
    fs::create_dir(&script).unwrap();
    fails("esc:script", "not a regular file any more");
}

/// Scripts may lie where this host may not write, also directly in a base folder: it runs without a
/// folder for results.
#[test]
fn a_script_that_lies_where_this_host_may_not_write_runs_without_its_cache() {
    if !is_root() {
        return;
    }
    let playground = Playground::new(Who::User, "/var/tmp");
    playground.allow_builtin_tools();
    for script in ["user_scripts/plain.py", "user_scripts/other/plain.py"] {
        fs::write(playground.path(script), "print('{\"a\": 1}')\n").unwrap();
    }
    playground.settle();
    let run = |script: &str| {
        let input = json!({ "scriptPath": script }).to_string();
        playground
            .expect("core:execute-python-script", &input, "ok {\"a\": 1}")
            .out["notes"]
            .to_string()
    };
    for script in ["plain.py", "other/plain.py"] {
        run(script);
        let cache = playground
            .path("user_scripts")
            .join(script)
            .with_file_name(".cache");
        assert!(
            fs::remove_dir(cache).is_ok(),
            "the control: it is made where it can be"
        );
    }
    for folder in ["user_scripts", "user_scripts/other"] {
        std::os::unix::fs::chown(playground.path(folder), Some(0), Some(0)).unwrap();
    }
    for script in ["plain.py", "other/plain.py"] {
        let notes = run(script);
        assert!(
            notes.contains("write .cache/**: it does not exist, and cannot be made"),
            "{notes}"
        );
    }
}

/// With some calls at a time it has descriptors enough, with many not: whatever lacks them says so.
#[test]
fn a_host_with_few_descriptors_blames_no_path_and_no_layer() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.without_breaker();
    playground.tool(
        "slow",
        "python",
        "import time\ntime.sleep(0.5)\nprint(1)\n",
        json!({}),
    );
    playground.policy("slow", "esc:slow", "[limits]\ntimeout_ms = 120_000\n");
    playground.settle();
    let mut few = playground.outside("/usr/bin/prlimit");
    few.arg("--nofile=100:100");
    let mut server = Server::of(playground.host_by(few));
    let (mut answered, mut refused) = (0, 0);
    // How many meet, nobody enforces.
    for round in 0..20 {
        if round >= 3 && answered > 0 && refused > 0 {
            break;
        }
        let calls: Vec<u64> = (0..40)
            .map(|_| server.call("esc:slow", json!({})))
            .collect();
        for answer in server.answers(&calls).values() {
            let told = answer.to_string();
            match kind(answer).as_str() {
                "none" => answered += 1,
                _ if told.contains("descriptors") || told.contains("Too many open files") => {
                    refused += 1
                }
                // There was none for its record.
                "InternalError" if told.contains("recorded in the audit log") => refused += 1,
                other => panic!("{other}: {told}"),
            }
        }
    }
    assert!(
        answered > 0 && refused > 0,
        "{answered} answered, {refused} refused"
    );
}

/// The kernel counts ticks, and kills without a word: what ends a call is the host's exact count.
#[test]
fn the_kernels_count_of_processor_time_ends_no_call_before_the_hosts() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU)[0])\n";
    let more = json!({"limits": {"cpuMs": 9500}});
    playground.tool("asks", "python", script, more);
    playground.settle();
    playground.expect("esc:asks", "{}", "ok 21");
}

/// What a script that has a secret printed is shown, without the secret.
#[test]
fn what_was_printed_is_shown_beside_a_secret() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, sys\nprint(json.load(sys.stdin)['key'], 'was wrong', 'x' * 400)\n";
    let key = json!({"type": "string", "description": "d", "x-secret": true});
    let more = json!({"parameters": {"type": "object", "properties": {"key": key}}});
    playground.tool("prints", "python", script, more);
    playground.settle();
    let ended = playground.call("esc:prints", r#"{"key": "hunter2-hunter2"}"#);
    let text = ended.text();
    assert!(text.contains("it began with: *** was wrong xxx"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

/// A host whose tools have launchers of their own, so that each needs new processes; `program`
/// starts it.
fn host_of_many_tools(who: Who, program: impl FnOnce(&Playground) -> Command) -> (Playground, Web) {
    let playground = Playground::new(who, "/var/tmp");
    (0..12).for_each(|n| _ = playground.tool(&format!("t{n}"), "python", "print(1)\n", json!({})));
    playground.settle();
    let mut host = playground.host_by(program(&playground));
    host.args(["serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(host, who.uid()).unwrap();
    (playground, web)
}

/// Whether the call of this tool succeeds. If not, that is because no process could be made, for
/// this reason.
fn has_processes(web: &Web, tool: usize, why: &str) -> bool {
    let reply = web.call(&format!("esc:t{tool}"), &json!({}), &[]);
    if reply.status == 200 {
        return true;
    }
    let reply = reply.is(
        500,
        "InternalError: this host may start no more processes, so nothing was run",
    );
    let error = reply.json()["error"].take();
    assert!(
        error["retryable"] == true && error["person"].as_str().unwrap_or_default().contains(why),
        "{error}"
    );
    false
}

/// A process that cannot be made (EAGAIN of clone(2)) is named, with the limit of the user.
#[test]
fn a_host_that_may_start_no_more_processes_names_the_limit() {
    let (playground, web) =
        host_of_many_tools(Who::User, |playground| playground.outside("/usr/bin/env"));
    let limits = format!("/proc/{}/limits", web.child.id());
    let text = fs::read_to_string(limits).unwrap();
    let usual = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("Max processes")?
                .split_whitespace()
                .next()
        })
        .unwrap();
    // The soft limit alone, which the host can raise again.
    for (tool, most) in [usual, "1", usual].iter().enumerate() {
        let mut limit = playground.outside("/usr/bin/prlimit");
        limit.args([
            "--pid",
            &web.child.id().to_string(),
            &format!("--nproc={most}:"),
        ]);
        assert_eq!(finish(limit, b"").code, Some(0));
        assert_eq!(
            has_processes(&web, tool, "(RLIMIT_NPROC): raise `ulimit -u`"),
            tool != 1,
            "{tool}"
        );
    }
}

/// The same, whichever process meets the limit of a control group: the host, a launcher, or one of
/// the call's own.
#[test]
fn a_host_in_a_full_control_group_names_it() {
    let folder = PathBuf::from(format!(
        "/sys/fs/cgroup/pids/toolhost-test-{}",
        std::process::id()
    ));
    if !Who::Root.possible() || fs::create_dir(&folder).is_err() {
        return skipped(1, "a full control group: it needs root, and cgroup v1");
    }
    let (_playground, web) = host_of_many_tools(Who::Root, |playground| {
        let mut shell = playground.outside("/bin/sh");
        shell
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&folder);
        shell
    });
    assert!(has_processes(&web, 0, ""), "the control");
    let there: usize = fs::read_to_string(folder.join("pids.current"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    for tool in 1..12 {
        // Threads that are idle end by themselves, which makes room.
        let most = if tool == 1 { 1 } else { there + tool - 1 };
        fs::write(folder.join("pids.max"), most.to_string()).unwrap();
        let is_enough = has_processes(&web, tool, "pids.max of the control group");
        assert!(tool > 1 || !is_enough, "the group was full");
    }
    fs::write(folder.join("pids.max"), "max").unwrap();
    assert!(has_processes(&web, 11, ""), "the control");
    drop(web);
    wait_for("its groups go", || {
        let inner = walkdir::WalkDir::new(&folder)
            .contents_first(true)
            .into_iter()
            .filter_map(Result::ok);
        inner
            .filter(|entry| entry.file_type().is_dir())
            .all(|entry| fs::remove_dir(entry.path()).is_ok())
    });
}

/// With fewer than it needs at all it says so, whatever it is asked.
#[test]
fn a_host_with_almost_no_descriptors_names_the_limit() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for verb in [
        &["list"][..],
        &["doctor"],
        &["call", "esc:none", "--json"],
        &["serve", "--http", "127.0.0.1:0"],
    ] {
        for (files, is_enough) in [(8, false), (20, false), (1024, true)] {
            let mut few = playground.outside("/usr/bin/prlimit");
            few.arg(format!("--nofile={files}:{files}"));
            let mut host = playground.host_by(few);
            host.args(verb).stdin(Stdio::null());
            if is_enough && verb[0] == "serve" {
                continue;
            }
            let ended = finish(host, b"");
            assert_eq!(
                ended.stderr.contains("raise `ulimit -n`"),
                !is_enough,
                "{verb:?} {files}: {ended:?}"
            );
            assert!(
                is_enough || ended.code == Some(4) && !ended.stderr.contains("panicked"),
                "{verb:?}: {ended:?}"
            );
        }
    }
}

/// A tool gives way to its host, however nice that one is itself.
#[test]
fn tools_are_nicer_than_their_host() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.tool(
        "nice",
        "python",
        "import os\nprint(os.getpriority(os.PRIO_PROCESS, 0))\n",
        json!({}),
    );
    playground.settle();
    for (host, wanted) in [(0, 10), (5, 15), (11, 19)] {
        let mut nice = playground.outside("/usr/bin/nice");
        nice.args(["-n", &host.to_string()]);
        let mut call = playground.host_by(nice);
        call.args(["call", "esc:nice", "--json"]);
        let ended = finish(call, b"");
        assert_eq!(
            ended.out["outputData"],
            json!(wanted),
            "host {host}: {ended:?}"
        );
    }
}

/// A link that leads nowhere is not the same as no policies.
#[test]
fn a_dangling_link_in_the_place_of_the_policies_refuses() {
    let host = host();
    host.tool("t:one", json!({}));
    let (_, audit, _) = host.run(&["audit", "t:one"]);
    assert!(audit.contains("built-in default"), "the control: {audit}");
    symlink("/nowhere", host.path("sandbox-policies")).unwrap();
    let (code, _, err) = host.run(&["call", "t:one"]);
    assert!(
        code == 3 && err.contains("sandbox-policies: is a symbolic link"),
        "{code} {err}"
    );
}

/// The control is the other tool's file, which is there.
#[test]
fn nothing_says_whether_a_file_that_was_not_granted_exists() {
    let playground = Playground::new(Who::ours(), "/tmp");
    fs::write(playground.path("home/real.txt"), "x").unwrap();
    playground.tool(
        "opens",
        "python",
        "import json, sys\nopen(json.load(sys.stdin)['path'])\n",
        json!({}),
    );
    playground.settle();
    let heard = ["real", "none"].map(|name| {
        let input = json!({"path": playground.path(&format!("home/{name}.txt"))}).to_string();
        let person = playground.cli(&["call", "esc:opens", "--input", &input]);
        assert!(
            person.code == Some(1)
                && person
                    .stderr
                    .contains("with --explain shows what it is refused"),
            "{person:?}"
        );
        let outcome = playground.call("esc:opens", &input);
        assert!(
            !outcome.out["error"].to_string().contains("--explain"),
            "an agent reads: {outcome:?}"
        );
        outcome.out["error"]["details"]
            .to_string()
            .replace(name, "NAME")
    });
    assert_eq!(heard[0], heard[1], "no hint whether the file exists");
    // What is true of every tool is said, and to a person what would grant the file, if it is one.
    let own = "A tool has a /tmp of its own";
    assert!(heard[0].contains(own), "{heard:?}");
    let input = json!({"path": playground.path("home/real.txt")}).to_string();
    let told = playground.cli(&["call", "esc:opens", "--input", &input, "--explain"]);
    let granted = "allow esc:opens --read '";
    assert!(told.stderr.contains(granted), "{told:?}");
}

#[test]
fn a_script_that_has_the_name_of_its_package_is_told_so() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for module in ["main", "absent"] {
        let script = format!("import {module}.cli\n");
        playground.tool(module, "python", &script, json!({}));
    }
    playground.settle();
    let said = |id: &str| playground.call(id, "{}").out.to_string();
    let hides = "The file main.py beside the script stands before the package";
    assert!(said("esc:main").contains(hides), "{}", said("esc:main"));
    let absent = said("esc:absent");
    assert!(
        absent.contains("No package here has the module 'absent'"),
        "control: {absent}"
    );
}
