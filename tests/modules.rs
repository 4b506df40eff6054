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

/// How many compilers descend from the hosts of this playground.
fn compilers(playground: &Playground) -> usize {
    let hosts: Vec<u32> = playground
        .processes()
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let parent = |pid: &u32| parent_of(*pid).filter(|parent| *parent > 1);
    let all = processes_of("toolhost-wasm-compile").into_iter();
    all.filter(|(pid, _)| std::iter::successors(Some(*pid), parent).any(|pid| hosts.contains(&pid)))
        .count()
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
    wait_for("a compiler runs", || compilers(&playground) > 0);
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
    wait_for("compilers run", || compilers(&playground) >= 2);
    assert_eq!(answer_of(&mut server, "good"), "1");
    assert!(compilers(&playground) >= 2, "control: others still compile");
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
    for (name, loops) in [("slow", 70), ("other", 71)] {
        playground.tool(
            name,
            "wasm",
            &costly(300, loops),
            json!({"execution": {"timeoutMs": 300}}),
        );
    }
    playground.settle();
    // Once it answered in its short time: whether it waited for the compiler.
    let call = || {
        let mut waited = false;
        wait_for("it answers", || {
            let ended = playground.cli(&["call", "esc:slow", "--json", "--input", "{}"]);
            waited |= ended.stderr.contains("compiling the tool's module");
            let (kind, message) = ended.error();
            let is_late = kind == "TimeoutError" && !message.contains("being compiled");
            if !is_late {
                fits("ok 1", &ended).unwrap();
            }
            !is_late
        });
        waited
    };
    let most = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(call)).collect();
        let mut most = 0;
        while !calls.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            most = most.max(compilers(&playground));
            std::thread::sleep(Duration::from_millis(5));
        }
        for waited in calls.into_iter().map(|call| call.join().unwrap()) {
            assert!(waited, "and said so");
        }
        most
    });
    assert_eq!(most, 1, "three processes, one compiler");
    assert!(!call());

    let mut server = Server::start(&playground);
    let calls: Vec<u64> = (0..3).map(|n| server.call_n("other", n)).collect();
    for (_, answer) in server.answers(&calls) {
        assert!(
            words(&answer).contains("the tool is still being compiled; try again"),
            "{answer}"
        );
    }
    assert_eq!(compilers(&playground), 1, "it goes on without its callers");
    wait_for("it ends", || compilers(&playground) == 0);
    wait_for("it is called", || {
        let answer = answer_of(&mut server, "other");
        assert_eq!(compilers(&playground), 0, "it is compiled again: {answer}");
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
