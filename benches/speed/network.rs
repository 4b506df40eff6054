//! Named hosts: what the relay adds to a connection and its first round trip, and how much goes
//! through it.

use super::Plan;
use super::board::{Board, Gate, Series};
use super::calls::{run, told};
use super::cases::in_turn;
use super::house::{House, Tool};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use toolhost::executor::Ending;
use toolhost::manifest::{Language, host};
use toolhost::policy::{Confinement, HostGrant, Network, PerCall, Shape};
use toolhost::quantity::Limit;

/// Connections of one call.
const CONNECTIONS: u64 = 20;
/// Bytes of one download.
const BYTES: u64 = 256 << 20;
/// What a relay must carry at least, bytes a second.
const LEAST: f64 = 200e6;
/// What it may add to a connection and a round trip, seconds.
const ADDED: f64 = 0.8e-3;

/// Gives a byte back; to a `d` it answers with `BYTES` bytes.
fn serve(mut peer: TcpStream) -> std::io::Result<()> {
    peer.set_nodelay(true)?;
    let mut byte = [0];
    while peer.read(&mut byte)? > 0 {
        if byte == *b"d" {
            let piece = [0; 1 << 16];
            for _ in 0..BYTES / piece.len() as u64 {
                peer.write_all(&piece)?;
            }
        } else {
            peer.write_all(&byte)?;
        }
    }
    Ok(())
}

fn server() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            std::thread::spawn(move || serve(peer));
        }
    });
    Ok(port)
}

/// The tool, with an address of this machine granted.
fn networked(house: &House, port: u16) -> anyhow::Result<Tool> {
    let mut tool = house.tool("connects")?;
    let pattern = host::parse_pattern(&format!("127.0.0.1:{port}")).map_err(anyhow::Error::msg)?;
    let text = |text: &str| text.to_owned();
    let (asked, rule, why) = (pattern.to_string(), text("bench"), text("bench"));
    let grant = HostGrant {
        pattern,
        ranges: vec!["127.0.0.0/8".parse()?],
        asked,
        rule,
        why,
    };
    let mut shape = Shape {
        network: Network::Hosts(vec![grant]),
        ..(*tool.confinement.shape).clone()
    };
    shape.limits.set(Limit::ReceivedBytes, 2 * BYTES);
    tool.confinement = Confinement {
        shape: Arc::new(shape),
        per_call: PerCall {
            timeout_ms: 60_000,
            ..PerCall::default()
        },
    };
    Ok(tool)
}

/// Microseconds, as the program measured them.
fn held(house: &House, tool: &Tool, input: &Value) -> anyhow::Result<Vec<u64>> {
    let (scripts, tool, input) = (house.scripts.clone(), tool.clone(), input.clone());
    house.task(async move {
        let (_, ended) = run(&*scripts, &tool, &input).await;
        match ended.map_err(told)?.ending {
            Ending::Answered(text) => Ok(serde_json::from_str(text.small().unwrap_or_default())?),
            other => bail!("{other:?}"),
        }
    })
}

fn direct(tool: &Tool, input: &Value) -> anyhow::Result<Vec<u64>> {
    let shape = &tool.confinement.shape;
    let toolhost::policy::Program::Path(python) = &shape.runtime.program else {
        bail!("no Python")
    };
    let mut command = Command::new(python);
    command.args(&shape.runtime.arguments).args(&shape.script);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("stdin")?
        .write_all(input.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&child.wait_with_output()?.stdout)?)
}

pub fn hosts(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("named hosts (Python)");
    if house.version(Language::Python).is_none() {
        board.skip("named hosts", "no Python on PATH");
        return Ok(());
    }
    let port = server()?;
    let tool = networked(house, port)?;
    let input =
        |bytes: u64| json!({"message": "x", "port": port, "n": CONNECTIONS, "bytes": bytes});
    let mut series = [
        Series::new("connect and one round trip, direct"),
        Series::new("the same through the relay"),
    ];
    for _ in 0..plan.rounds(40).min(if plan.quick { 8 } else { 40 }) {
        for (series, times) in series
            .iter_mut()
            .zip([direct(&tool, &input(0))?, held(house, &tool, &input(0))?])
        {
            times
                .into_iter()
                .for_each(|time| series.push(Duration::from_micros(time)));
        }
    }
    board.base(&series[0]);
    board.beside(&series[1], &series[0], Gate::None);
    board.number(
        "added, ms",
        (series[1].p50() - series[0].p50()) * 1e3,
        Gate::AtMost(ADDED * 1e3),
    );
    let mut best = [0.0_f64; 2];
    for _ in 0..if plan.quick { 2 } else { 5 } {
        for (best, times) in best.iter_mut().zip([
            direct(&tool, &input(BYTES))?,
            held(house, &tool, &input(BYTES))?,
        ]) {
            let time = times.last().copied().unwrap_or(u64::MAX) as f64 / 1e6;
            *best = best.max(BYTES as f64 / time);
        }
    }
    board.note(&format!("direct, best: {:.0} MB/s", best[0] / 1e6));
    board.number(
        "through the relay, best, MB/s",
        best[1] / 1e6,
        Gate::AtLeast(LEAST / 1e6),
    );
    let plain = house.tool("python")?;
    let idle = idle(&plain, &tool);
    let message = json!({"message": "hello"});
    let calls = in_turn(
        plan.rounds(60),
        Duration::from_millis(2),
        vec![
            (
                "a call without hosts",
                Box::new(|| house.cold(&plain, &message)),
            ),
            (
                "the same with hosts",
                Box::new(|| house.cold(&idle, &message)),
            ),
        ],
    )?;
    board.base(&calls[0]);
    board.beside(&calls[1], &calls[0], Gate::None);
    Ok(())
}

/// The plain tool with the hosts of the other.
fn idle(plain: &Tool, networked: &Tool) -> Tool {
    let network = networked.confinement.shape.network.clone();
    let shape = Shape {
        network,
        ..(*plain.confinement.shape).clone()
    };
    let confinement = Confinement {
        shape: Arc::new(shape),
        per_call: plain.confinement.per_call.clone(),
    };
    Tool {
        confinement,
        ..plain.clone()
    }
}

/// Connects `n` times for a round trip, or downloads `bytes`; answers with microseconds.
pub const CONNECTS: &str = "import json, socket, sys, time\ngiven = json.load(sys.stdin)\ntimes = \
    []\ndef connected():\n    s = socket.create_connection(('127.0.0.1', given['port']))\n    \
    return s\nif given['bytes']:\n    s = connected(); start = time.perf_counter(); \
    s.sendall(b'd'); left = given['bytes']\n    view = memoryview(bytearray(1 << 20))\n    while \
    left > 0:\n        left -= s.recv_into(view)\n    times.append(int((time.perf_counter() - \
    start) * 1e6))\nelse:\n    for _ in range(given['n']):\n        start = time.perf_counter(); s \
    = connected(); s.sendall(b'e'); s.recv(1)\n        times.append(int((time.perf_counter() - \
    start) * 1e6)); s.close()\nprint(json.dumps(times))\n";
