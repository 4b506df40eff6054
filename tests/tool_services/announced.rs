//! Tools that other hosts announce: there as long as their announcer says so, and nothing that it
//! says of another.

use super::{host, queues, terms};
use crate::brokers::{Node, Served, Way, unique, world};
use crate::http::{Web, private};
use crate::prelude::*;
use serde_json::Map;
use toolhost::broker::{Announcement, AnnouncerKey, Link, Secret, Subscription, Topic};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A host that hears announcer `b`, whose namespace is `far`.
fn listener(who: Who, url: &str, topic: &str) -> (Playground, Web) {
    let playground = Playground::new(who, "/var/tmp");
    playground.settle();
    private(&playground, "b.key", KEY);
    let config = format!(
        "[[tool_services]]\nurl = \"{url}\"\n[tool_services.announced]\ntopic = \"{topic}\"\n\
         from = [{{ announcer = \"b\", namespace = \"far\", key = \"file:b.key\" }}]\n"
    );
    private(&playground, "config.toml", &config);
    let mut command = host(&playground);
    command.args(["--log", "info", "serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(command, playground.who.uid()).unwrap();
    (playground, web)
}

/// What `status` shows of the announcer.
fn status(web: &Web) -> Value {
    web.get("/v1/status", &[]).json()["announced"][0].clone()
}

/// What a call ends with: its answer, or the type of its error.
fn call(web: &Web, tool: &str) -> String {
    let reply = web.call(tool, &json!({"n": 7}), &[]).json();
    let found = [&reply["error"]["type"], &reply["outputData"]]
        .into_iter()
        .find_map(Value::as_str);
    found.unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn a_host_that_announces_itself_is_there_until_it_goes() {
    let Some(mq) = Node::shared() else { return };
    let (topic, name) = (format!("notify:tg:{}", unique("announced")), unique("far"));
    let (own, web) = listener(Who::ours(), &mq.url(), &topic);
    web.says("is connected", 1);
    let (other, tool) = (world(Who::ours()), format!("far.{name}:esc-echo"));
    let serves = |announce: &str| {
        let tools = "tools = [\"esc:echo\", \"esc:none\"]\ncaller = \"a\"\n";
        let text = format!(
            "[[broker]]\nurl = \"{}\"\nservice = \"{name}\"\n{tools}{announce}",
            mq.url()
        );
        Served::by(&other, "b", &text, &[])
    };
    let announces = |ttl: u64| {
        let key = format!("key = \"command:/bin/echo {KEY}\"");
        serves(&format!(
            "announce = {{ announcer = \"b\", {key}, topic = \"{topic}\", ttl = {ttl} }}\n"
        ))
    };
    // The control: it serves, and announces nothing.
    let silent = serves("");
    silent.says("is connected", 1);
    assert_eq!(
        (call(&web, &tool).as_str(), &status(&web)["tools"]),
        ("ToolNotFoundError", &json!([]))
    );
    drop(silent);
    let host = announces(3);
    web.says(&format!("b announces {tool};"), 1);
    let told = status(&web);
    assert_eq!(
        (&told["announcer"], &told["tools"], &told["connected"]),
        (&json!("b"), &json!([tool]), &json!(true))
    );
    wait_for("it is announced again", || {
        status(&web)["until"].as_str() > told["until"].as_str()
    });
    // No right comes with it.
    assert_eq!(
        (call(&web, &tool).as_str(), other.records().len()),
        ("SecurityError", 0)
    );
    let said = web.said();
    let grant = said
        .split_once("call = [{ ")
        .and_then(|(_, rest)| rest.split_once(" }]"))
        .unwrap()
        .0;
    let other_queue = grant.replace("response:tg:", "response:tg:other-");
    for (grant, wanted) in [
        (other_queue.as_str(), "SecurityError"),
        (grant, "{\"n\":7}"),
    ] {
        own.policy(
            "far",
            &format!("far.{name}:*"),
            &format!("[services]\ncall = [{{ {grant} }}]\n"),
        );
        own.settle();
        let reloads = web.said().matches("reloaded:").count();
        web.signal(Signal::SIGHUP);
        web.says("reloaded:", reloads + 1);
        wait_for(&format!("it ends with {wanted}"), || {
            call(&web, &tool) == wanted
        });
    }
    let found = web.get(&format!("/v1/tools/{tool}"), &[]).json();
    assert_eq!(found["source"], "announced:b", "{found}");
    // What only the server hears is audited by asking it.
    let place = format!("far.{name} at request:tg:{name} of {}", mq.url());
    let audited = own.cli(&["audit", &tool, "--http", &web.address]);
    assert!(
        audited.code == Some(0) && audited.text().contains(&place),
        "{audited:?}"
    );
    let audited = own.cli(&["audit", &tool, "--http", &web.address, "--json"]);
    assert_eq!(
        audited.out,
        web.get(&format!("/v1/tools/{tool}/audit"), &[]).json()
    );
    let none = own.cli(&["audit", "far.none:x@^1", "--http", &web.address]);
    assert!(
        none.code == Some(2) && none.stderr.contains("Unknown tool 'far.none:x'"),
        "{none:?}"
    );
    // Killed, it says nothing any more.
    drop(host);
    web.says("b announces nothing any more", 1);
    assert_eq!(
        (call(&web, &tool).as_str(), &status(&web)["until"]),
        ("ToolNotFoundError", &Value::Null)
    );
    // Stopped, it says so: this is long before its time.
    let host = announces(300);
    web.says(&format!("b announces {tool};"), 2);
    assert_eq!(
        call(&web, &tool),
        "{\"n\":7}",
        "the policy was there before it"
    );
    host.stop();
    web.says("b announces nothing any more", 2);
    assert_eq!(call(&web, &tool), "ToolNotFoundError");
}

/// An announcer that says anything.
struct Voice {
    runtime: tokio::runtime::Runtime,
    link: Link,
}

impl Voice {
    fn at(url: &str, topic: &str) -> Voice {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let topic = Topic::parse(topic).unwrap();
        let guard = runtime.enter();
        let (link, mut came) = Link::open(
            terms(url),
            Subscription::All {
                topic: topic.clone(),
            },
            topic,
        );
        drop(guard);
        runtime.spawn(async move { while came.recv().await.is_some() {} });
        Voice { runtime, link }
    }

    fn send(&self, body: &[u8]) {
        self.runtime.block_on(self.link.publish(b"", body)).unwrap();
    }

    fn signed(&self, name: &str, key: &str, (ago, ttl): (i64, i64), descriptors: Value) -> Vec<u8> {
        let key = key.to_owned();
        let secret = Secret::new(move || Box::pin(std::future::ready(Ok(key.clone()))));
        let key = self.runtime.block_on(AnnouncerKey::read(&secret)).unwrap();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let time = i64::try_from(now.as_millis()).unwrap() - ago * 1000;
        let descriptors: Map<String, Value> = serde_json::from_value(descriptors).unwrap();
        Announcement {
            time,
            ttl,
            descriptors,
        }
        .sign(name, &key)
        .unwrap()
    }
}

/// A service and its tools.
fn described(id: &str, tools: usize) -> Value {
    let (request, response) = queues(id);
    let service = json!({"id": id, "request-queue": request, "response-queue": response});
    let mut found = json!({ format!("tool-service/{id}"): service });
    for name in (0..tools).map(|n| format!("t{n}")) {
        let tool = json!({"type": "tool-service", "name": name, "description": "d", "service": id, "arguments": []});
        found[format!("tool/{name}")] = tool;
    }
    found
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn what_is_not_listed_or_signed_is_refused_with_its_reason() {
    let Some(mq) = Node::shared() else { return };
    let topic = format!("notify:tg:{}", unique("refused"));
    let (own, web) = listener(Who::ours(), &mq.url(), &topic);
    web.says("is connected", 1);
    let voice = Voice::at(&mq.url(), &topic);
    let good = (0, 200);
    // One a second is logged: it is said until it is.
    let refused = |words: &str, body: &mut dyn FnMut() -> Vec<u8>| {
        wait_for(&format!("{words}: {}", web.said()), || {
            voice.send(&body());
            std::thread::sleep(Duration::from_millis(300));
            web.said().contains(words)
        });
    };
    let by_b = |when, descriptors| voice.signed("b", KEY, when, descriptors);
    refused("it is not a JSON object", &mut || b"[1]".to_vec());
    refused("'c' is not an announcer", &mut || {
        voice.signed("c", KEY, good, described("x", 1))
    });
    refused("its signature is not valid", &mut || {
        voice.signed("b", &KEY.replace('0', "1"), good, described("x", 1))
    });
    refused("its ttl is not from 1 to 300", &mut || {
        by_b((0, 301), described("x", 1))
    });
    refused("its ttl has passed", &mut || {
        by_b((60, 50), described("x", 1))
    });
    refused("dated in the future", &mut || {
        by_b((-60, 50), described("x", 1))
    });
    refused("more than 16 services or 64 tools", &mut || {
        by_b(good, described("x", 65))
    });
    let mut without = described("x", 1);
    without["tool/t0"]
        .as_object_mut()
        .unwrap()
        .remove("description");
    refused("`description` is missing", &mut || {
        by_b(good, without.clone())
    });
    let mut foreign = described("x", 1);
    foreign["tool/t0"]["service"] = json!("y");
    refused("it does not describe the service of far.y:t0", &mut || {
        by_b(good, foreign.clone())
    });
    assert_eq!(
        (&status(&web)["tools"], call(&web, "far.x:t0").as_str()),
        (&json!([]), "ToolNotFoundError")
    );
    // The control, also of its namespace: its own words do not decide that.
    let heard = by_b(good, described("esc", 1));
    voice.send(&heard);
    web.says("b announces far.esc:t0;", 1);
    assert_eq!(
        [call(&web, "far.esc:t0"), call(&web, "esc:t0")],
        ["SecurityError", "ToolNotFoundError"]
    );
    refused("it, or a later one, was received before", &mut || {
        heard.clone()
    });
    refused("'d' is not an announcer", &mut || {
        voice.signed("d", KEY, good, json!({}))
    });
    let mut names = 0..;
    refused("changed a moment ago", &mut || {
        by_b(good, described(&format!("n{}", names.next().unwrap()), 1))
    });
    assert_eq!(
        status(&web)["tools"].as_array().unwrap().len(),
        1,
        "the earlier one stays"
    );
    // A file of this host goes before, also one that comes later.
    let file = own.path("tool-defs/far.tool-service.json");
    let text = described("own", 1).to_string().replace("own", "far.own");
    std::thread::sleep(Duration::from_secs(1));
    voice.send(&by_b(good, described("own", 1)));
    web.says("b announces far.own:t0;", 1);
    let source = || web.get("/v1/tools/far.own:t0", &[]).json()["source"].clone();
    assert_eq!(source(), "announced:b");
    fs::write(&file, text).unwrap();
    own.settle();
    web.signal(Signal::SIGHUP);
    wait_for("the file's is there", || source() == "files");
    voice.send(&by_b(good, json!({})));
    web.says("b announces nothing any more", 1);
    assert_eq!(source(), "files");
    // Gone is gone, though somebody repeats what was said.
    voice.send(&heard);
    refused("'e' is not an announcer", &mut || {
        voice.signed("e", KEY, good, json!({}))
    });
    assert_eq!(
        (&status(&web)["tools"], call(&web, "far.esc:t0").as_str()),
        (&json!([]), "ToolNotFoundError")
    );
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn a_link_that_is_cut_takes_nothing_away_before_its_time() {
    let Some(mq) = Node::shared() else { return };
    let (way, topic) = (Way::to(mq.port), format!("notify:tg:{}", unique("cut")));
    let (own, web) = listener(
        Who::ours(),
        &format!("amqp://127.0.0.1:{}", way.port),
        &topic,
    );
    web.says("is connected", 1);
    let voice = Voice::at(&mq.url(), &topic);
    let announces = |ttl: i64| voice.send(&voice.signed("b", KEY, (0, ttl), described("x", 1)));
    announces(8);
    web.says("b announces far.x:t0;", 1);
    way.cut();
    wait_for("the cut is seen", || status(&web)["connected"] == false);
    assert_eq!(
        (call(&web, "far.x:t0").as_str(), &status(&web)["tools"]),
        ("SecurityError", &json!(["far.x:t0"]))
    );
    announces(200);
    web.says("b announces nothing any more", 1);
    assert_eq!(
        call(&web, "far.x:t0"),
        "ToolNotFoundError",
        "what it did not hear keeps nothing"
    );
    way.mend();
    wait_for("it is connected again", || {
        status(&web)["connected"] == true
    });
    wait_for("it is heard again", || {
        announces(200);
        std::thread::sleep(Duration::from_millis(300));
        call(&web, "far.x:t0") == "SecurityError"
    });
    // Verbs without a server hear nothing, and say so.
    let words = "This command does not know far.*: only a running server receives what other hosts \
        announce";
    for (verb, code) in [
        (&["list"][..], 0),
        (&["audit", "--all"], 0),
        (&["audit", "far.x:t0"], 2),
    ] {
        let mut command = host(&own);
        command.args(verb);
        let ended = finish(command, b"");
        assert!(
            ended.code == Some(code) && ended.stderr.contains(words),
            "{verb:?}: {ended:?}"
        );
    }
}

#[test]
fn what_is_wrong_with_an_entry_is_said_with_its_fix() {
    let own = Playground::new(Who::ours(), "/var/tmp");
    private(&own, "b.key", KEY);
    private(&own, "short.key", "short");
    let of = |from: &str| {
        format!(
            "[[tool_services]]\nurl = \"amqp://localhost\"\nannounced = {{ from = [{from}] }}\n"
        )
    };
    let b = "{ announcer = \"b\", namespace = \"far\", key = \"file:b.key\" }";
    for (config, words) in [
        (
            of("").replace("url", "services = [\"x\"]\nurl"),
            "`from` lists no announcer",
        ),
        (
            of(&b.replace("far", "a.b")),
            "small letters, digits and `-`",
        ),
        (
            of(&format!("{b}, {b}")),
            "another one has this name or this namespace",
        ),
        (
            of(b) + &of(&b.replace("far", "near")),
            "the announcer 'b' is listed already",
        ),
        (
            of(b) + &of(&b.replace("\"b\"", "\"c\"")),
            "the service 'far.*' is called over another broker already",
        ),
        (
            of(&b.replace("file:b.key", "0123")),
            "key: a secret lies in",
        ),
        (
            of(&b.replace("b.key", "short.key")),
            "the key of announcer b: it has fewer than 32 bytes",
        ),
        (
            "[[tool_services]]\nurl = \"amqp://localhost\"\n".to_owned(),
            "`services` names none",
        ),
    ] {
        private(&own, "config.toml", &config);
        let mut command = host(&own);
        command.args(["serve", "--http", "127.0.0.1:0"]);
        let ended = finish(command, b"");
        assert!(
            ended.code == Some(4) && ended.stderr.contains(words),
            "{words}: {}",
            ended.stderr
        );
    }
}
