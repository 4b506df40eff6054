//! A soak: good, slow, hostile, cancelled and broken calls of several clients at once, over HTTP
//! and MCP; afterwards nothing is left. `TOOLHOST_TEST_SOAK=10000` makes so many calls, and says
//! what it saw.

use super::mcp::Client;
use super::{Web, caller, heard, request, rest, write_callers};
use crate::lifecycle::{Before, TOOLS, assert_no_script_runs};
use crate::prelude::*;

const CALLS: usize = 144;
const CLIENTS: usize = 6;

/// Those of `lifecycle::TOOLS` are there, too: (name, script, what else its manifest says, the
/// errors that end it).
fn tools() -> [(&'static str, &'static str, Value, &'static str); 3] {
    let limits = json!({"limits": {"scratchBytes": 4_194_304}, "execution": {"timeoutMs": 5000}});
    let files = "n = 0\nwhile True:\n    open('/tmp/%d' % n, 'w').write('x' * 4096)\n    n += 1\n";
    [
        (
            "slow",
            "import time\ntime.sleep(0.2)\nprint('{\"n\": 0}')\n",
            json!({}),
            "none",
        ),
        (
            "sleep",
            "import time\ntime.sleep(60)\n",
            json!({}),
            "CancelledError",
        ),
        (
            "files",
            files,
            limits,
            "ScriptError ResourceLimitError TimeoutError",
        ),
    ]
}

/// What is done with a call, in turn; `good` is the commonest.
const TURNS: [&str; 24] = [
    "good", "sleeper", "good", "cancel", "mcp", "good", "leave", "slow", "good", "memory",
    "broken", "good", "unknown", "good", "flood", "half", "good", "files", "cancel", "mcp", "good",
    "leave", "smuggled", "bomb",
];

/// One call of this kind, which ends as it must.
fn call(web: &Web, what: &str, n: usize) {
    let asked = |tool: &str| web.call(&format!("esc:{tool}"), &json!({ "n": n }), &[]);
    let posted = |headers: &[&str], body: &str| {
        web.ask("POST", "/v1/tools/esc:good/calls", headers, body)
            .status
    };
    let begun = |accept: &str| web.send("POST", "/v1/tools/esc:sleep/calls", &[accept], "{}");
    match what {
        "good" => assert_eq!(asked("good").json()["outputData"]["n"], n),
        "mcp" => {
            let answer = Client::new(web, true, &[])
                .call("esc__good", json!({ "n": n }))
                .0;
            assert_eq!(
                answer["result"]["structuredContent"],
                json!({ "n": n }),
                "{answer}"
            );
        }
        "cancel" => {
            let mut stream = begun("Accept: text/event-stream");
            let start = heard(&mut stream, "\n\n");
            let id = start
                .split("\"id\":\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .expect("a start");
            assert_eq!(
                web.ask("DELETE", &format!("/v1/calls/{id}"), &[], "")
                    .status,
                202
            );
            let told = rest(stream);
            assert!(told.contains("CancelledError"), "{told}");
        }
        "leave" => {
            let _stream = begun("Accept: application/json");
            std::thread::sleep(Duration::from_millis((n % 7 * 30) as u64));
        }
        "broken" => assert_eq!(posted(&[], "{\"n\": 1, \"n\": 2}"), 400),
        "unknown" => assert_eq!(asked("none").status, 404),
        "half" => {
            let whole = request(
                "POST",
                "/v1/tools/esc:good/calls",
                &web.address,
                &[],
                &"x".repeat(1000),
            );
            let mut stream = web.connect();
            stream
                .write_all(&whole.as_bytes()[..whole.len() / 2])
                .unwrap();
            // Whose connection it is can be seen until it is closed.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            rest(stream);
        }
        "smuggled" => {
            let headers = ["Transfer-Encoding: chunked", "Connection: keep-alive"];
            assert_eq!(posted(&headers, "0\r\n\r\n"), 411);
        }
        tool => {
            let own = tools().map(|(name, .., wanted)| (name, wanted));
            let mut all = TOOLS
                .iter()
                .map(|(name, _, wanted)| (*name, *wanted))
                .chain(own);
            let (_, wanted) = all.find(|(name, _)| *name == tool).unwrap();
            let answer = asked(tool).json();
            let kind = answer["error"]["type"].as_str().unwrap_or("none");
            assert!(
                wanted.split(' ').any(|wanted| wanted == kind),
                "{tool}: {answer}"
            );
        }
    }
}

/// All clients at once, until so many calls are made.
fn soak(web: &Web, calls: usize) {
    let next = AtomicUsize::new(0);
    let client = || {
        let turns = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        turns
            .take_while(|n| *n < calls)
            .for_each(|n| call(web, TURNS[n % TURNS.len()], n));
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
}

/// The memory of a host.
pub fn resident_kib(host: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{host}/status")).unwrap();
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .unwrap()
}

/// Descriptors that the server holds for each launcher that it keeps.
fn each_launcher(web: &Web) -> usize {
    for at_once in 2..8 {
        let (before, few) = holds_at_rest(web.child.id());
        std::thread::scope(|scope| {
            (0..at_once).for_each(|n| drop(scope.spawn(move || call(web, "slow", n))))
        });
        let (after, more) = holds_at_rest(web.child.id());
        if more > few {
            return (after - before) / (more - few);
        }
    }
    panic!("calls at once leave no launcher");
}

/// Files of the state folder, but for the segments of the audit log, which are bounded by
/// themselves.
fn state(playground: &Playground) -> BTreeSet<String> {
    let all = walkdir::WalkDir::new(playground.path("state")).into_iter();
    all.map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| !path.contains("/audit.jsonl"))
        .collect()
}

#[test]
#[ignore = "second stage (.ci/full): needs a soak"]
fn after_many_calls_of_all_kinds_nothing_is_left() {
    let calls = std::env::var("TOOLHOST_TEST_SOAK")
        .ok()
        .map(|calls| calls.parse().expect("a number"));
    let playground = crate::lifecycle::playground(Who::ours());
    for (name, script, more, _) in tools() {
        playground.tool(name, "python", script, more);
    }
    fs::create_dir(playground.path("state/tmp")).unwrap();
    let breaker = "[breaker]\nfailures = 1_000_000\nwhy = \"a test of failures\"\n";
    write_callers(
        &playground,
        &(caller("*", "role = \"operator\"\n") + breaker),
    );
    let before = Before::of(&playground);
    let mut host = playground.host();
    host.args(["serve", "--http", "127.0.0.1:0"])
        .env("TMPDIR", playground.path("state/tmp"));
    let mut web = Web::run(host, playground.who.uid()).unwrap();
    let id = web.child.id();
    // Whatever the server opens once is open after one round.
    soak(&web, TURNS.len());
    let at_rest = || {
        wait_for("no call runs", || {
            let status = web.get("/v1/status", &[]).json();
            (&status["running"], &status["waiting"]) == (&json!(0), &json!(0))
        });
        holds_at_rest(id)
    };
    at_rest();
    let each = each_launcher(&web);
    let ((descriptors, launchers), files, memory) =
        (at_rest(), state(&playground), resident_kib(id));
    let began = Instant::now();
    soak(&web, calls.unwrap_or(CALLS));
    let took = began.elapsed();
    let ((now, _), after) = (at_rest(), resident_kib(id));
    if calls.is_some() {
        let words = format!(
            "{calls:?} calls in {took:?}; {memory} KiB became {after}; {descriptors} files became \
            {now}\n"
        );
        let _ = std::io::stderr().write_all(words.as_bytes());
    }
    // A launcher that ends is gone before its descriptors are.
    wait_for("no descriptor is left", || {
        let (now, kept) = at_rest();
        now + launchers * each <= descriptors + kept * each
    });
    assert_no_script_runs(&playground);
    assert_eq!(state(&playground), files);
    assert!(
        after < memory + 64 * 1024,
        "{memory} KiB became {after} KiB"
    );
    web.signal(Signal::SIGTERM);
    web.ended(PATIENCE);
    before.assert_unchanged(&playground);
    // One record for each request.
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for record in playground.records() {
        *ends
            .entry(record["tool"].as_str().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    let turns = |words: &[&str]| {
        let of = |calls: usize| {
            (0..calls)
                .filter(|n| words.contains(&TURNS[n % TURNS.len()]))
                .count()
        };
        of(TURNS.len()) + of(calls.unwrap_or(CALLS))
    };
    for (tool, words) in [
        ("sleeper", "sleeper"),
        ("bomb", "bomb"),
        ("memory", "memory"),
        ("none", "unknown"),
    ] {
        assert_eq!(
            ends[&format!("esc:{tool}")],
            turns(&[words]),
            "{tool}: {ends:?}"
        );
    }
    // Of many that cannot be read some are counted in the record of another.
    let counted = |record: &Value| {
        let words = record["notes"][0].as_str().unwrap_or_default();
        words
            .strip_suffix(" such refusals before this one have no record")
            .map_or(0, |n| n.parse().unwrap())
    };
    let unrecorded: usize = playground.records().iter().map(counted).sum();
    let good = ends["esc:good"] + unrecorded + ends.get("").copied().unwrap_or_default();
    assert_eq!(
        good,
        turns(&["good", "mcp", "broken", "smuggled", "half"]),
        "{ends:?}"
    );
}
