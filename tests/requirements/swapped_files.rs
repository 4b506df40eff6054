//! Files that are swapped between the look and the use never lead out. A live server is called
//! again and again while another process puts a link in the place of a script, of its folder, or of
//! a folder that it reads.

use super::{files, put};
use crate::prelude::*;
use std::sync::atomic::AtomicBool;

/// Rounds of each race, and calls of a round.
const ROUNDS: usize = 40;
const AT_ONCE: usize = 4;

const READER: &str = "import json\nfrom pathlib import \
                      Path\nprint(json.dumps({'said': (Path(__file__).parent / 'data' / 'text.txt').read_text()}))\n";

/// What the tool answered, if it ran.
fn said(answer: &Value) -> Option<&str> {
    answer["result"]["structuredContent"]["said"].as_str()
}

/// `place` is by turns the real thing and a link to what lies outside, until it stops. A rename
/// never leaves the place empty where the kernel can help it.
fn swap(place: &Path, outside: &Path, stop: &AtomicBool, swaps: &AtomicUsize) {
    let (link, real) = (
        place.with_file_name("swap.link"),
        place.with_file_name("swap.real"),
    );
    // Both states last a moment, each another one.
    let moment = |least, most, step| {
        std::thread::sleep(Duration::from_micros(
            least + swaps.load(Ordering::Relaxed) as u64 % most * step,
        ));
    };
    while !stop.load(Ordering::Relaxed) {
        symlink(outside, &link).unwrap();
        fs::rename(place, &real).unwrap();
        fs::rename(&link, place).unwrap();
        moment(200, 7, 300);
        fs::remove_file(place).unwrap();
        fs::rename(&real, place).unwrap();
        moment(0, 11, 400);
        swaps.fetch_add(1, Ordering::Relaxed);
    }
}

/// `name`: what is swapped, below user_scripts/swap.
fn never_leads_out(who: Who, what: &str, name: &str) {
    let playground = Playground::new(who, "/var/tmp");
    let folder = playground.tool_at(
        "req:swap",
        "python",
        "swap/main.py",
        READER,
        files(&["self", "data/**"], &[]),
    );
    let secret = playground.secret.clone();
    let outside = playground.path("secret/outside");
    put(&playground, folder.join("data/text.txt"), "inside");
    put(&playground, outside.join("data/text.txt"), &secret);
    put(
        &playground,
        outside.join("main.py"),
        format!("print('{{\"said\": \"{secret}\"}}')\n"),
    );
    // The manifest is not part of what is swapped.
    fs::create_dir_all(playground.path("tool-defs/swap")).unwrap();
    fs::rename(
        folder.join("req-swap.tool.json"),
        playground.path("tool-defs/swap/swap.tool.json"),
    )
    .unwrap();
    playground.without_breaker();
    playground.settle();
    let (place, outside) = if name.is_empty() {
        (folder, outside)
    } else {
        (folder.join(name), outside.join(name))
    };
    // A server that sees by itself that a script went would take the tool along: no race.
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--watch", "off"]);
    let mut server = Server::with(host);
    // The control: undisturbed, it answers.
    assert_eq!(
        said(&server.called("req:swap", json!({}))),
        Some("inside"),
        "{who:?}: {what}"
    );
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut good, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&place, &outside, &stop, &swaps));
        for _ in 0..ROUNDS {
            let ids: Vec<u64> = (0..AT_ONCE)
                .map(|_| server.call("req:swap", json!({})))
                .collect();
            for answer in server.answers(&ids).into_values() {
                match said(&answer) {
                    Some("inside") => good += 1,
                    None => refused += 1,
                    Some(said) => {
                        stop.store(true, Ordering::Relaxed);
                        panic!("{who:?}: {what}: it said {said}");
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let swaps = swaps.into_inner();
    assert!(swaps > ROUNDS, "{who:?}: {what}: only {swaps} swaps");
    assert!(
        good > 0 && refused > 0,
        "{who:?}: {what}: {good} answered, {refused} met the link: no race was run"
    );
    // Afterwards, as before.
    assert_eq!(
        said(&server.called("req:swap", json!({}))),
        Some("inside"),
        "{who:?}: {what}"
    );
    // A link that stays is refused every time.
    fs::rename(&place, place.with_file_name("swap.real")).unwrap();
    symlink(&outside, &place).unwrap();
    assert_eq!(
        said(&server.called("req:swap", json!({}))),
        None,
        "{who:?}: {what}"
    );
    assert!(
        !server.said.contains(&secret),
        "{who:?}: {what}: the outside text came out"
    );
    // The control: without layers that link gives the secret away.
    let mut command = playground.outside(PYTHON);
    command
        .args(["-s", "-E", "-B"])
        .arg(playground.path("user_scripts/swap/main.py"));
    let outside = finish(command, b"{}");
    assert_eq!(outside.out["said"], secret, "{what}: {}", outside.stderr);
}

#[test]
fn a_swapped_link_never_wins() {
    for (what, name) in [
        ("the script", "main.py"),
        ("a folder it reads", "data"),
        ("its own folder", ""),
    ] {
        never_leads_out(Who::ours(), what, name);
    }
    // As an ordinary user, whose own file system rights are the tool's: what a policy grants.
    never_leads_out(Who::User, "a folder it reads", "data");
}
