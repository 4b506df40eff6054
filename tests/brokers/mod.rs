//! Tools over real brokers: TrustGraph's own clients, and messages as anybody could send them.

use crate::prelude::*;
use std::sync::Weak;

mod again;
mod clients;
mod configured;
mod held;
mod messages;
mod node;
#[cfg(feature = "pulsar")]
mod pulsar;
mod raw;
mod scale;
mod secured;

pub use clients::called;
#[cfg(feature = "pulsar")]
pub use clients::program;
pub use held::Way;
pub use node::Node;
#[cfg(feature = "pulsar")]
pub use pulsar::Pulsar;
pub use raw::Raw;

/// What the tools of a world do: echo what they get, after so many seconds.
const ECHO: &str = "import json, sys, time\nread = \
                    json.load(sys.stdin)\ntime.sleep(read.get('seconds', 0))\nprint(json.dumps('x' \
                    * read['long'] if 'long' in read else read))\n";

/// Answers in parts.
const COUNT: &str = "def go(upto):\n  for n in range(upto):\n    yield f'{n} '\n  yield 'done'\n";

/// Answers in parts, and with a document after them.
const BOTH: &str = "for part in ['one ', 'two']:\n  print('@toolhost \
                    {\"chunk\": \"' + part + '\"}', flush=True)\nprint('{\"rows\": 3}')\n";

/// A playground with `esc:echo`, `esc:write`, which may write, and `esc:count` and `esc:both`,
/// which stream.
pub fn world(who: Who) -> Playground {
    let playground = Playground::new(who, "/tmp");
    let open = json!({"parameters": {"type": "object", "additionalProperties": true}});
    let long = json!({"parameters": open["parameters"], "limits": {"outputBytes": 8_000_000}});
    playground.tool("echo", "python", ECHO, long);
    writer(&playground, "write", json!({}));
    playground.tool("both", "python", BOTH, json!({}));
    let upto = json!({"type": "object", "properties": {"upto": {"type": "integer"}}});
    let count =
        json!({"handler": {"entryPoint": "go"}, "parameters": upto, "output": {"type": "string"}});
    playground.tool("count", "python", COUNT, count);
    playground.allow("count", "esc:count", &["./**"], &[]);
    playground.policy("echo", "esc:echo", "[limits]\noutput_bytes = 8_000_000\n");
    playground.settle();
    playground
}

/// A tool that may write.
pub fn writer(playground: &Playground, name: &str, more: Value) {
    let mut manifest = json!({"parameters": {"type": "object", "additionalProperties": true}});
    manifest["securityContext"] =
        json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["./out/**"]}});
    manifest
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    fs::create_dir(playground.tool(name, "python", ECHO, manifest).join("out")).unwrap();
    playground.allow(name, &format!("esc:{name}"), &["./**"], &["./out/**"]);
}

/// A host that serves these tools as `service`.
pub type Served = Hosted;

impl Served {
    /// `name`: of its config file.
    pub fn serve(playground: &Playground, name: &str, url: &str, service: &str) -> Served {
        let served = Served::begin(playground, name, url, service, &[]);
        served.says("is connected", 1);
        served
    }

    /// And not waited for.
    pub fn begin(
        playground: &Playground,
        name: &str,
        url: &str,
        service: &str,
        more: &[&str],
    ) -> Served {
        Served::of(
            playground,
            name,
            &format!("url = \"{url}\"\n"),
            service,
            more,
        )
    }

    /// `broker`: lines of its entry that say where the broker is, and as whom it is spoken to.
    pub fn of(
        playground: &Playground,
        name: &str,
        broker: &str,
        service: &str,
        more: &[&str],
    ) -> Served {
        let text = format!(
            "[[broker]]\n{broker}service = \"{service}\"\ntools = [\"esc:echo\", \"esc:write\", \
             \"esc:count\", \"esc:both\"]\ncaller = \"trustgraph\"\nat_once = 4\n"
        );
        Served::by(playground, name, &text, more)
    }

    /// By this config file.
    pub fn by(playground: &Playground, name: &str, text: &str, more: &[&str]) -> Served {
        let config = playground.path(&format!("{name}.toml"));
        fs::write(&config, text).unwrap();
        playground.settle();
        let mut command = playground.host();
        command
            .arg("--config")
            .arg(config)
            .args(["--log", "info", "serve"])
            .args(more);
        Hosted::start(command)
    }

    /// Told to stop; what it does until it has ended.
    pub fn stop(mut self) -> String {
        self.signal(Signal::SIGTERM);
        self.ended(PATIENCE);
        self.said()
    }
}

/// A host that serves the world over the broker that is shared, once `more` is done to it, and a
/// client of it.
pub async fn serving(
    what: &str,
    more: impl FnOnce(&Playground),
) -> Option<(Arc<Node>, Playground, String, Served, Raw)> {
    let (node, playground, service) = (Node::shared()?, world(Who::ours()), unique(what));
    more(&playground);
    let host = Served::serve(&playground, "one", &node.url(), &service);
    let raw = Raw::to(&node.url(), &service).await;
    Some((node, playground, service, host, raw))
}

/// One of these for all tests that run now.
pub fn shared<T>(place: &Mutex<Weak<T>>, start: impl FnOnce() -> Option<T>) -> Option<Arc<T>> {
    let mut shared = place
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = shared.upgrade().or_else(|| start().map(Arc::new))?;
    *shared = Arc::downgrade(&found);
    Some(found)
}

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::now_v7().simple())
}
