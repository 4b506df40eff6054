//! What a module costs the host before it runs: read once, compiled once, within limits, and
//! remembered.

pub use crate::harness::PRINTS_ONE as GOOD;
use crate::prelude::*;

/// More time than a call has without a policy: these compile for long on a busy machine.
const LONG: &str = "[limits]\ntimeout_ms = 110_000\n";

/// `GOOD`, and a function that is never called: changing `variables` in `loops` nested loops costs
/// the compiler their product.
fn costly(variables: usize, loops: usize) -> String {
    let mut text = GOOD[..GOOD.rfind("(func").unwrap()].to_owned();
    text += &format!("(func (local{})", " i32".repeat(variables));
    text += &" loop".repeat(loops);
    for n in 0..variables {
        text += &format!(" local.get {n} i32.const 1 i32.add local.set {n}");
    }
    text += &" i32.const 1 br_if 0 end".repeat(loops);
    text + ")" + &GOOD[GOOD.rfind("(func").unwrap()..]
}

/// The compilers that descend from the hosts of this playground.
fn compilers(playground: &Playground) -> Vec<u32> {
    let hosts: Vec<u32> = playground
        .processes()
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let parent = |pid: &u32| parent_of(*pid).filter(|parent| *parent > 1);
    let all = processes_of("toolhost-wasm-compile").into_iter();
    let all = all.map(|(pid, _)| pid);
    all.filter(|pid| std::iter::successors(Some(*pid), parent).any(|pid| hosts.contains(&pid)))
        .collect()
}

fn peak_mib(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// The answer to a call of this tool.
fn answer_of(server: &mut Server, name: &str) -> String {
    let id = server.call_n(name, 0);
    words(&server.answers(&[id])[&id])
}

#[test]
fn a_bomb_ends_at_its_own_limit_is_remembered_and_holds_up_nobody() {
    // Without a cgroup, which only root has here, memory is sampled.
    let playground = Playground::new(Who::User, "/var/tmp");
    // 50 KB of text that take the compiler gigabytes.
    let bomb = costly(1000, 1000);
    for (name, text) in [
        ("bomb", bomb.as_str()),
        ("again", bomb.as_str()),
        ("good", GOOD),
    ] {
        playground.tool(
            name,
            "wasm",
            text,
            json!({"execution": {"timeoutMs": 110_000}}),
        );
    }
    playground.policy("long", "esc:*", LONG);
    playground.settle();
    let mut server = Server::start(&playground);
    let bombs: Vec<u64> = (0..3).map(|n| server.call_n("bomb", n)).collect();
    wait_for("a compiler runs", || !compilers(&playground).is_empty());
    let good = server.call_n("good", 0);
    let answers = server.answers(&[bombs.as_slice(), &[good]].concat());
    assert_eq!(words(&answers[&good]), "1", "{answers:?}");
    for id in &bombs {
        let said = words(&answers[id]);
        assert!(kind(&answers[id]).contains("ResourceLimitError"), "{said}");
        assert!(
            said.contains("takes more than 257 MiB, the limit for its size"),
            "{said}"
        );
    }
    let began = Stopwatch::start();
    let said = answer_of(&mut server, "again");
    assert!(
        said.contains("compiling the module takes more than"),
        "{said}"
    );
    // Another host knows it as well.
    let ended = playground.expect(
        "esc:again",
        "{}",
        "ResourceLimitError: compiling the module takes more than",
    );
    assert!(
        ended
            .error()
            .1
            .contains("compiling the module takes more than"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("not tried again for an hour"),
        "{}",
        ended.stderr
    );
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it was not remembered: {:?}",
        began.elapsed()
    );
}

/// Forty functions that each take the compiler most of a second, and more time than a module of
/// their size may.
fn slow(first: usize) -> String {
    let one = costly(300, 300);
    let body = &one[GOOD.rfind("(func").unwrap()..one.rfind("(func").unwrap()];
    let all: String = (0..40)
        .map(|n| {
            body.replace(
                "i32.const 1 i32.add",
                &format!("i32.const {} i32.add", first + n),
            )
        })
        .collect();
    one.replacen(body, &all, 1)
}

#[test]
fn modules_that_compile_for_long_hold_up_no_other() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let bombs = ["bomb", "again", "third", "fourth", "fifth"];
    for (name, text) in bombs
        .iter()
        .zip(1..)
        .map(|(name, n)| (*name, slow(n)))
        .chain([("good", GOOD.to_owned())])
    {
        playground.tool(
            name,
            "wasm",
            &text,
            json!({"execution": {"timeoutMs": 110_000}}),
        );
    }
    playground.policy("long", "esc:*", LONG);
    playground.settle();
    let mut server = Server::start(&playground);
    for name in bombs {
        server.call_n(name, 0);
    }
    wait_for("compilers run", || compilers(&playground).len() >= 2);
    assert_eq!(answer_of(&mut server, "good"), "1");
    assert!(
        compilers(&playground).len() >= 2,
        "control: others still compile"
    );
}

#[test]
fn a_large_file_without_content_takes_no_memory_of_the_host() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let folder = playground.tool("sparse", "wasm", "", json!({}));
    playground.tool("good", "wasm", GOOD, json!({}));
    playground.policy("long", "esc:*", LONG);
    let mut file = fs::File::create(folder.join("main.wat")).unwrap();
    file.write_all(b"\0asm\x01\0\0\0").unwrap();
    file.set_len(255 << 20).unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    assert_eq!(answer_of(&mut server, "good"), "1");
    let before = peak_mib(&server);
    let calls: Vec<u64> = (0..20).map(|n| server.call_n("sparse", n)).collect();
    let good = server.call_n("good", 0);
    assert_eq!(
        words(&server.answers(&[good])[&good]),
        "1",
        "it waits for no reader"
    );
    let answers = server.answers(&calls);
    // Control: it is read, and is not a module.
    assert!(
        answers
            .values()
            .all(|answer| words(answer).contains("not a module this host can run")),
        "{answers:?}"
    );
    let more = peak_mib(&server) - before;
    assert!(more < 64, "the host took {more} MiB");
}

/// Compiling takes longer than a call may: a server goes on with it, a single call waits for it.
#[test]
fn a_module_that_compiles_longer_than_its_calls_may_last_is_compiled_once_and_called() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, loops) in [("slow", 120), ("other", 121)] {
        playground.tool(
            name,
            "wasm",
            &costly(300, loops),
            json!({"execution": {"timeoutMs": 300}}),
        );
    }
    playground.settle();
    let logs = [(); 3].map(|()| tempfile::NamedTempFile::new().unwrap());
    let hosts = logs.each_ref().map(|log| {
        let mut host = playground.host();
        host.args(["call", "esc:slow", "--json", "--input", "{}"]);
        host.stdin(Stdio::null()).stdout(Stdio::piped());
        host.stderr(log.reopen().unwrap()).spawn().unwrap()
    });
    let mut most = 0;
    wait_for("each says that it waits for a compiler", || {
        let running = compilers(&playground);
        // It goes on once all wait.
        signal_all(&running, Signal::SIGSTOP);
        most = most.max(running.len());
        let text = |log: &tempfile::NamedTempFile| fs::read_to_string(log.path()).unwrap();
        let is_told = |log| text(log).contains("compiling the tool's module");
        logs.iter().all(is_told)
    });
    assert_eq!(most, 1, "three processes, one compiler");
    signal_all(&compilers(&playground), Signal::SIGCONT);
    // Once it has waited, its own 300 ms may pass.
    let is_late =
        |kind: &str, message: &str| kind == "TimeoutError" && !message.contains("being compiled");
    for host in hosts {
        let done = host.wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
        let text = |name: &str| answer["error"][name].as_str().unwrap_or_default();
        let is_good = answer["outputData"] == 1 || is_late(text("type"), text("message"));
        assert!(is_good, "{answer}");
    }
    wait_for("it answers, and does not wait", || {
        let ended = playground.cli(&["call", "esc:slow", "--json", "--input", "{}"]);
        assert!(!ended.stderr.contains("compiling the tool's module"));
        let (kind, message) = ended.error();
        let is_late = is_late(kind, message);
        if !is_late {
            fits("ok 1", &ended).unwrap();
        }
        !is_late
    });

    let mut server = Server::start(&playground);
    let calls: Vec<u64> = (0..3).map(|n| server.call_n("other", n)).collect();
    wait_for("it is being compiled", || {
        let running = compilers(&playground);
        signal_all(&running, Signal::SIGSTOP);
        !running.is_empty()
    });
    for (_, answer) in server.answers(&calls) {
        assert!(
            words(&answer).contains("the tool is still being compiled; try again"),
            "{answer}"
        );
    }
    let running = compilers(&playground);
    assert_eq!(running.len(), 1, "it goes on without its callers");
    signal_all(&running, Signal::SIGCONT);
    wait_for("it ends", || compilers(&playground).is_empty());
    wait_for("it is called", || {
        let answer = answer_of(&mut server, "other");
        assert!(
            compilers(&playground).is_empty(),
            "it is compiled again: {answer}"
        );
        answer == "1"
    });

    // A limit of address space is reported.
    let mut shell = playground.outside("/bin/bash");
    shell.args(["-c", "ulimit -v 8000000; exec \"$@\"", "-"]);
    let mut shell = playground.host_by(shell);
    shell.args(["call", "esc:slow", "--input", "{}"]);
    let ended = finish(shell, b"");
    assert!(
        ended.stderr.contains("`ulimit -v`") && !ended.stderr.contains("not a module"),
        "{ended:?}"
    );
}
