//! Bytes and connections of a call are bounded, the relay's memory is flat, and its end is told as
//! what it is.

use super::{World, allow, in_both_worlds, in_our_world};
use crate::prelude::*;

const SCRIPT: &str = include_str!("limits.py");

fn run(world: &World, does: &str, n: u64, limits: &str) -> Ended {
    let asked = ["api.example.com", "api.example.com:7000"];
    world.tool_with(
        "bounded",
        "python",
        SCRIPT,
        &asked,
        &asked.map(allow).join(", "),
        &format!("[limits]\n{limits}"),
    );
    world.call("esc:bounded", &json!({"do": does, "n": n}))
}

#[test]
fn bytes_and_requests_that_wait_are_bounded_and_the_limit_named() {
    in_both_worlds("bytes", |world| {
        let limits = "sent_bytes = 1_000_000\nreceived_bytes = 2_000_000\n";
        for (does, n, limits, wanted) in [
            ("download", 1_500_000, limits, "ok 1500000"),
            (
                "download",
                3_000_000,
                limits,
                "ResourceLimitError: receivedBytes",
            ),
            ("upload", 500_000, limits, "ok true"),
            ("upload", 3_000_000, limits, "ResourceLimitError: sentBytes"),
            // A client that leaves its request leaves its connection.
            ("leave", 64, "", "ok \"HTTP/1.1 200\""),
            ("stay", 64, "", "ok \"reset\""),
        ] {
            fits(wanted, &run(world, does, n, limits))
                .unwrap_or_else(|why| panic!("{does} {n}: {why}"));
        }
        let silent = world
            .log()
            .iter()
            .filter(|line| line.contains("GET /silent"))
            .count();
        assert!(silent >= 128, "{silent} requests reached the host");
    });
}

/// What the relay takes for a call counts as the call's, while it runs. The script stops at 800 ms of
/// its own, so that only both together pass the limit.
#[test]
fn what_is_passed_on_takes_flat_memory_and_processor_time_of_the_call() {
    in_both_worlds("memory and processor time", |world| {
        const BYTES: u64 = 1 << 29;
        let limits = |cpu_ms: u64| {
            format!("received_bytes = 1_000_000_000_000\ncpu_ms = {cpu_ms}\ntimeout_ms = 110_000\n")
        };
        let ended = run(world, "download", BYTES, &limits(100_000));
        fits(&format!("ok {BYTES}"), &ended).unwrap();
        assert!(
            ended.out["network"]["totals"]["receivedBytes"]
                .as_u64()
                .unwrap()
                > BYTES,
            "{}",
            ended.out["network"]
        );
        let peak = ended.out["usage"]["peakMemoryBytes"].as_u64().unwrap();
        assert!(peak < 200 << 20, "{peak}");
        if ended.counted() != "cgroup" {
            return;
        }
        for (does, cpu_ms, wanted) in [
            ("spin", 1000, "ok 800"),
            ("spend", 100_000, "ok 800"),
            ("spend", 1000, "ResourceLimitError: cpuMs"),
        ] {
            let ended = run(world, does, 800, &limits(cpu_ms));
            fits(wanted, &ended).unwrap_or_else(|why| panic!("{does} of {cpu_ms} ms: {why}"));
        }
    });
}

#[test]
fn connections_lookups_and_waiting_are_bounded_for_each_tool() {
    in_our_world(|world| {
        let ended = run(world, "keep", 100, "");
        fits("ok [64, 36]", &ended).unwrap();
        let denied = ended.out["denials"]["observed"].as_array().unwrap();
        assert!(
            denied
                .iter()
                .any(|d| d["rule"].as_str().unwrap().contains("connections")),
            "{denied:?}"
        );
        fits(
            "ok 1000",
            &run(world, "use", 1000, "connections = 1000\nprocesses = 300\n"),
        )
        .unwrap();
        // A half-closed stream still carries the answer.
        fits("ok \"hello bye\"", &run(world, "half_close", 0, "")).unwrap();
        let ended = run(world, "slow", 0, "timeout_ms = 1_500\n");
        fits("TimeoutError", &ended).unwrap();
        assert!(ended.took < Duration::from_secs(8), "{:?}", ended.took);

        world.tool_with(
            "asks",
            "python",
            include_str!("lookups.py"),
            &["*.wild.example"],
            &allow("*.wild.example"),
            "[limits]\ntimeout_ms = 110_000\n",
        );
        // NXDOMAIN for odd names; no answer of another type, and one address for two spellings;
        // REFUSED for the 257th name, and after 10,000 lookups, of which these were 24.
        let wanted = json!([
            vec![3; 12],
            [true, []],
            [0, 0, 5, 0, 0, 5],
            [5, 5, 5, 5, 5, 5, 5],
            true,
            [true, true]
        ]);
        let ended = world.call("esc:asks", &json!({}));
        fits(&format!("ok {wanted}"), &ended).unwrap();
        let totals = &ended.out["network"]["totals"];
        assert_eq!(
            (&totals["lookups"], &totals["lookupsRefused"]),
            (&json!(10_033), &json!(12 + 38 + 33)),
            "{totals}"
        );
        // 25 of those served, and the refusals that differ: twelve odd names, a name and a lookup
        // too many.
        assert_eq!(
            ended.out["network"]["events"].as_array().unwrap().len(),
            25 + 12 + 2
        );

        // A host that never answers delays the connections of its tool alone.
        let hosts = ["closed.example.com:7000", "api.example.com:7000"];
        world.tool(
            "hangs",
            "python",
            SCRIPT,
            &hosts,
            &hosts.map(allow).join(", "),
        );
        world.tool("other", "python", SCRIPT, &hosts[1..], &allow(hosts[1]));
        let mut server = Server::of(world.host());
        let reached = |answer: &Value| answer["result"]["structuredContent"]["reached"] == true;
        assert!(reached(&server.called("esc:hangs", json!({"do": "hang"}))));
        let waited = |answer: &&Value| answer["result"]["structuredContent"]["reached"] == false;
        // Each waits for 3 s, in which the machine may stand still: then all are called again.
        let mut all = Vec::new();
        let alone = (0..4).any(|_| {
            let hanging =
                [(); 8].map(|()| server.call("esc:hangs", json!({"do": "hang", "n": 60})));
            std::thread::sleep(Duration::from_millis(1500));
            let other = server.call("esc:other", json!({"do": "hang"}));
            let mut answers = server.answers(&[&hanging[..], &[other]].concat());
            let is_reached = reached(&answers.remove(&other).unwrap());
            // The control: the dials of the tool itself wait.
            let waited = answers.values().filter(waited).count();
            all.push((is_reached, answers));
            is_reached && waited >= 4
        });
        assert!(alone, "{all:?}");
    });
}

#[test]
fn a_relay_that_dies_ends_its_connections_and_is_named() {
    in_both_worlds("a killed relay", |world| {
        let entries = allow("api.example.com:7000");
        world.tool(
            "dying",
            "python",
            SCRIPT,
            &["api.example.com:7000"],
            &entries,
        );
        let mut host = world.host();
        host.args([
            "call",
            "esc:dying",
            "--json",
            "--input",
            r#"{"do": "wait"}"#,
        ]);
        let child = host
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the tool is connected", || {
            world.log().iter().any(|line| line.starts_with("tcp"))
        });
        let relays = processes_of("toolhost-relay")
            .into_iter()
            .map(|(pid, _)| pid);
        let own: Vec<u32> = relays.filter(|pid| is_below(*pid, child.id())).collect();
        assert!(!own.is_empty(), "the relay of this host");
        own.into_iter().for_each(|pid| {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL);
        });
        let out: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
        assert!(
            ["closed", "reset"].contains(&out["outputData"].as_str().unwrap_or("none")),
            "{out}"
        );
        let events = out["network"]["events"].as_array().unwrap();
        assert!(
            events
                .iter()
                .any(|event| event["refused"]["rule"] == "relayEnded"),
            "{events:?}"
        );
    });
}

/// Whether a process descends from another one.
fn is_below(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    std::iter::successors(Some(pid), |pid| parent(*pid))
        .take_while(|pid| *pid > 1)
        .any(|pid| pid == ancestor)
}
