//! Files that are swapped between the look and the use never lead out. A live server is called again and again
//! while another process puts a link in the place of a script, of its folder, or of a folder that it reads.

use crate::prelude::*;
use std::sync::atomic::AtomicBool;

/// Rounds of each race, and calls of a round.
const ROUNDS: usize = 40;
const AT_ONCE: usize = 4;

const READER: &str = "import json\nfrom pathlib import Path\n\
                      print(json.dumps({'said': (Path(__file__).parent / 'data' / 'text.txt').read_text()}))\n";

/// (what is swapped, below user_scripts/swap).
const RACES: &[(&str, &str)] = &[("the script", "main.py"), ("a folder it reads", "data"), ("its own folder", "")];

/// One race: `place` is by turns the real thing and a link to what lies outside.
struct Race {
    place: PathBuf,
    outside: PathBuf,
    playground: Playground,
}

fn race(who: Who, inside: &str) -> Race {
    let playground = Playground::new(who, "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/**"]}}});
    let folder = playground.tool_at("req:swap", "python", "swap/main.py", READER, asks);
    let secret = playground.secret.clone();
    let put = |folder: &Path, said: &str, script: &str| {
        fs::create_dir_all(folder.join("data")).unwrap();
        fs::write(folder.join("main.py"), script).unwrap();
        fs::write(folder.join("data/text.txt"), said).unwrap();
    };
    put(&folder, "inside", READER);
    let outside = playground.path("secret/outside");
    put(&outside, &secret, &format!("print('{{\"said\": \"{secret}\"}}')\n"));
    // The manifest is not part of what is swapped.
    fs::rename(folder.join("req-swap.tool.json"), playground.path("tool-defs/swap.tool.json")).unwrap();
    playground.without_breaker();
    playground.settle();
    let (place, outside) = match inside {
        "" => (folder, outside),
        name => (folder.join(name), outside.join(name)),
    };
    Race { place, outside, playground }
}

impl Race {
    /// Swaps until told to stop. A rename never leaves the place empty where the kernel can help it.
    fn swap(&self, stop: &AtomicBool, swaps: &AtomicUsize) {
        let (link, real) = (self.place.with_file_name("swap.link"), self.place.with_file_name("swap.real"));
        while !stop.load(Ordering::Relaxed) {
            symlink(&self.outside, &link).unwrap();
            fs::rename(&self.place, &real).unwrap();
            fs::rename(&link, &self.place).unwrap();
            // Both states last a moment, each another one.
            std::thread::sleep(std::time::Duration::from_micros(200 + swaps.load(Ordering::Relaxed) as u64 % 7 * 300));
            fs::remove_file(&self.place).unwrap();
            fs::rename(&real, &self.place).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(swaps.load(Ordering::Relaxed) as u64 % 11 * 400));
            swaps.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn said(&self, answer: &Value) -> Option<String> {
        answer["result"]["structuredContent"]["said"].as_str().map(str::to_owned)
    }
}

fn never_leads_out(who: Who, what: &str, inside: &str) {
    let race = race(who, inside);
    // A server that sees by itself that a script went would take the tool along: no race.
    let mut host = race.playground.host();
    host.args(["serve", "--stdio", "--watch", "off"]);
    let mut server = Server::with(host);
    // The control: undisturbed, it answers.
    assert_eq!(race.said(&server.called("req:swap", json!({}))).as_deref(), Some("inside"), "{who:?}: {what}");
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut good, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| race.swap(&stop, &swaps));
        for _ in 0..ROUNDS {
            let ids: Vec<u64> = (0..AT_ONCE).map(|_| server.call("req:swap", json!({}))).collect();
            for answer in server.answers(&ids).into_values() {
                match race.said(&answer).as_deref() {
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
    assert!(!server.said.contains(&race.playground.secret), "{who:?}: {what}: the outside text came out");
    let swaps = swaps.into_inner();
    assert!(swaps > ROUNDS, "{who:?}: {what}: only {swaps} swaps");
    assert!(good > 0 && refused > 0, "{who:?}: {what}: {good} answered, {refused} met the link: no race was run");
    // Afterwards, as before.
    assert_eq!(race.said(&server.called("req:swap", json!({}))).as_deref(), Some("inside"), "{who:?}: {what}");
    // A link that stays is refused every time.
    let real = race.place.with_file_name("swap.real");
    fs::rename(&race.place, &real).unwrap();
    symlink(&race.outside, &race.place).unwrap();
    assert_eq!(race.said(&server.called("req:swap", json!({}))), None, "{who:?}: {what}");
    assert!(!server.said.contains(&race.playground.secret), "{who:?}: {what}");
    // The control: without walls that link gives the secret away.
    let mut command = race.playground.outside(PYTHON);
    command.args(["-s", "-E", "-B"]).arg(race.playground.path("user_scripts/swap/main.py"));
    let outside = finish(command, b"{}");
    let said: Value = serde_json::from_slice(&outside.stdout).unwrap();
    assert_eq!(said["said"], race.playground.secret, "{what}: {}", outside.stderr);
}

#[test]
fn a_swapped_link_never_wins() {
    for (what, inside) in RACES {
        never_leads_out(Who::ours(), what, inside);
    }
    // As an ordinary user, whose own file system rights are the tool's: what a policy grants.
    never_leads_out(Who::User, RACES[1].0, RACES[1].1);
}
