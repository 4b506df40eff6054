//! What is lost on the way: hosts that are killed, connections and queues that go. Each request is
//! answered once, by its own answer, or said to be lost.

use super::{Node, Raw, Served, serving, unique, world};
use crate::prelude::*;
use std::sync::atomic::AtomicBool;

fn kill(mut host: Served) {
    host.signal(Signal::SIGKILL);
    let _ = host.child.wait();
}

pub fn running(playground: &Playground, name: &str) {
    playground.runs(&format!("user_scripts/{name}/main.py"), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn what_a_killed_host_held_is_run_again_only_where_that_changes_nothing() {
    let Some((node, playground, service, host, mut raw)) = serving("killed", |_| ()).await else {
        return;
    };
    let start = || Served::serve(&playground, "one", &node.url(), &service);
    raw.call("w", "write", json!({"seconds": 20})).await;
    running(&playground, "write");
    kill(host);
    let host = start();
    let told = raw.answer("w").await["error"]["message"].to_string();
    assert!(told.contains("is not run again"), "{told}");
    raw.call("r", "echo", json!({"seconds": 2})).await;
    running(&playground, "echo");
    kill(host);
    let host = start();
    assert_eq!(
        raw.answer("r").await["response"],
        "{\"seconds\":2}",
        "{}",
        host.said()
    );
    host.says("it is run again", 1);
    // And no third time.
    raw.call("d", "echo", json!({"seconds": 20, "which": "d"}))
        .await;
    running(&playground, "echo");
    kill(host);
    let host = start();
    running(&playground, "echo");
    kill(host);
    let host = start();
    let told = raw.answer("d").await["error"]["message"].to_string();
    assert!(told.contains("lost twice"), "{told}");
    raw.is_quiet().await;
    // It is moved after its answer was sent.
    let (mut dead, asked) = (None, Instant::now());
    while dead.is_none() && asked.elapsed() < PATIENCE {
        dead = raw.dead().await;
    }
    assert!(
        String::from_utf8(dead.expect("it is kept for a person"))
            .unwrap()
            .contains("which")
    );
    assert_eq!(raw.dead().await, None, "and nothing else is");
    drop(host);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn hosts_share_a_queue_and_what_one_has_begun_it_ends() {
    let Some((node, playground, service, one, mut raw)) = serving("shared", |_| ()).await else {
        return;
    };
    let two = Served::serve(&playground, "two", &node.url(), &service);
    for n in 0..24 {
        raw.call(&format!("n{n}"), "echo", json!({"n": n, "seconds": 0.5}))
            .await;
    }
    one.says("result=\"success\"", 1);
    two.says("result=\"success\"", 1);
    // Told to stop while it has calls, it ends with them answered.
    let said = one.stop();
    let mut answered = BTreeSet::new();
    for _ in 0..24 {
        let (id, body) = raw.reply().await;
        let id = String::from_utf8(id).unwrap();
        let answer: Value =
            serde_json::from_str(body["response"].as_str().unwrap()).expect("an answer");
        assert_eq!(format!("n{}", answer["n"]), id, "somebody else's answer");
        assert!(answered.insert(id), "two answers");
    }
    raw.is_quiet().await;
    let by = |said: &str| said.matches("result=\"success\"").count();
    assert!(
        by(&said) >= 4 && by(&two.said()) >= 4,
        "{} and {}",
        by(&said),
        by(&two.said())
    );
}

/// A way to the broker that can be cut.
pub struct Way {
    pub port: u16,
    open: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    pub fn to(port: u16) -> Way {
        Way::slow(port, Duration::ZERO)
    }

    /// On which each piece takes this time.
    fn slow(port: u16, each: Duration) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Way {
            port: listener.local_addr().unwrap().port(),
            open: Arc::new(AtomicBool::new(true)),
            sockets: Arc::default(),
        };
        let (open, sockets) = (way.open.clone(), way.sockets.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                if !open.load(Ordering::SeqCst) {
                    continue;
                }
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    sockets.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut piece = [0; 16 * 1024];
                        while let Ok(read @ 1..) = from.read(&mut piece) {
                            std::thread::sleep(each);
                            if to.write_all(&piece[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        way
    }

    pub fn cut(&self) {
        self.open.store(false, Ordering::SeqCst);
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// The state of a server as `toolhost status` shows it, and whether it is ready.
pub fn status(playground: &Playground, socket: &str) -> (Value, bool) {
    let ended = playground.cli(&["status", "--http", socket, "--json"]);
    let mut curl = playground.outside("/usr/bin/curl");
    curl.args([
        "-s",
        "--unix-socket",
        &socket[5..],
        "http://localhost/readyz",
    ]);
    (
        ended.out["brokers"][0].clone(),
        finish(curl, b"").text().contains("\"ready\""),
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn a_call_outlives_its_connection_and_has_one_answer() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("cut"));
    let way = Way::to(node.port);
    let socket = format!("unix:{}", playground.path("state/socket").display());
    let url = format!("amqp://127.0.0.1:{}", way.port);
    let host = Served::begin(&playground, "one", &url, &service, &["--http", &socket]);
    host.says("is connected", 1);
    let mut raw = Raw::to(&node.url(), &service).await;
    assert!(status(&playground, &socket).1, "{}", host.said());
    // It may change something, and runs once all the same: this host knows that it has it.
    raw.call("w", "write", json!({"seconds": 3})).await;
    running(&playground, "write");
    way.cut();
    host.says("is away", 1);
    let (told, ready) = status(&playground, &socket);
    assert!(
        !ready && told["connected"] == false && told["open"] == 1 && told["why"].is_string(),
        "{told}"
    );
    wait_for("it has run", || host.said().contains("result=\"success\""));
    way.mend();
    assert_eq!(
        raw.answer("w").await["response"],
        "{\"seconds\":3}",
        "{}",
        host.said()
    );
    wait_for("it is ready", || status(&playground, &socket).1);
    raw.is_quiet().await;
    let told = status(&playground, &socket).0;
    assert!(
        told["connected"] == true && told["open"] == 0 && told["unanswered"] == 0,
        "{told}"
    );
    let wrote = |record: &&Value| {
        record["tool"]
            .as_str()
            .is_some_and(|it| it.contains("write"))
    };
    assert_eq!(playground.records().iter().filter(wrote).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn a_broker_that_answers_slowly_is_served() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("slow"));
    let way = Way::slow(node.port, Duration::from_millis(700));
    let host = Served::begin(
        &playground,
        "one",
        &format!("amqp://127.0.0.1:{}", way.port),
        &service,
        &[],
    );
    host.says("is away: no connection within 15 s", 1);
    host.says("is connected", 1);
    Raw::to(&node.url(), &service).await.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn an_answer_that_the_broker_does_not_take_is_told_and_others_go_on() {
    let Some(node) = Node::start() else { return };
    let (playground, service) = (world(Who::ours()), unique("limited"));
    let host = Served::serve(&playground, "one", &node.url(), &service);
    // A broker that starts again while a host serves is served again.
    node.stop();
    host.says("is away", 1);
    node.limit(100_000);
    node.again();
    host.says("is connected", 2);
    let outages = host.said().matches(" is away").count();
    let mut raw = Raw::to(&node.url(), &service).await;
    raw.call("fits", "echo", json!({"long": 50_000})).await;
    assert_eq!(
        raw.answer("fits").await["response"].as_str().unwrap().len(),
        50_000,
        "the control"
    );
    raw.call("large", "echo", json!({"long": 200_000})).await;
    let body = raw.answer("large").await;
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("larger than a message may be"),
        "{body}"
    );
    raw.is_quiet().await;
    assert!(
        host.said().matches(" is away").count() <= outages + 1,
        "{}",
        host.said()
    );
}
