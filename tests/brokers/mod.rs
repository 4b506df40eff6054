//! Tools over real brokers: TrustGraph's own clients, and messages as anybody could send them.

mod again;
mod clients;
mod configured;
mod held;
mod messages;
mod node;
#[cfg(feature = "pulsar")]
mod pulsar;
mod raw;
#[cfg(feature = "rabbitmq")]
mod scale;
mod secured;
mod traced;

pub use clients::called;
#[cfg(feature = "pulsar")]
pub use clients::program;
pub use held::Way;
pub use node::Node;
#[cfg(feature = "pulsar")]
pub use pulsar::Pulsar;
pub use raw::Raw;

use crate::harness::{Playground, Who, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

/// What the tools of a world do: echo what they get, after so many seconds.
const ECHO: &str = "import json, sys, time\nread = json.load(sys.stdin)\ntime.sleep(read.get('seconds', 0))\n\
                    print(json.dumps('x' * read['long'] if 'long' in read else read))\n";

/// Answers in parts.
const COUNT: &str = "def go(upto):\n  for n in range(upto):\n    yield f'{n} '\n  yield 'done'\n";

/// Answers in parts, and with a document after them.
const BOTH: &str = "for part in ['one ', 'two']:\n  print('@toolhost {\"chunk\": \"' + part + '\"}', flush=True)\n\
                    print('{\"rows\": 3}')\n";

/// A playground with `esc:echo`, `esc:write`, which may write, and `esc:count` and `esc:both`, which stream.
pub fn world(who: Who) -> Playground {
    let playground = Playground::new(who, "/tmp");
    let open = json!({"parameters": {"type": "object", "additionalProperties": true}});
    let long = json!({"parameters": open["parameters"], "limits": {"outputBytes": 8_000_000}});
    playground.tool("echo", "python", ECHO, long);
    writer(&playground, "write", json!({}));
    playground.tool("both", "python", BOTH, json!({}));
    let upto = json!({"type": "object", "properties": {"upto": {"type": "integer"}}});
    let folder = playground.tool("count", "python", COUNT, json!({"parameters": upto, "output": {"type": "string"}}));
    let file = folder.join("count.tool.json");
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    manifest["handler"]["entryPoint"] = json!("go");
    fs::write(file, manifest.to_string()).unwrap();
    playground.allow("count", "esc:count", &["./**"], &[]);
    playground.policy(
        "echo",
        "esc:echo",
        "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n[limits]\noutput_bytes = 8_000_000\n",
    );
    playground.settle();
    playground
}

/// A tool that may write.
pub fn writer(playground: &Playground, name: &str, more: Value) {
    let mut manifest = json!({"parameters": {"type": "object", "additionalProperties": true}});
    manifest["securityContext"] = json!({"fileAccess": {"allowRead": ["./**"], "allowWrite": ["./out/**"]}});
    manifest.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let folder = playground.tool(name, "python", ECHO, manifest);
    fs::create_dir(folder.join("out")).unwrap();
    playground.allow(name, &format!("esc:{name}"), &["./**"], &["./out/**"]);
}

/// A host that serves these tools as `service`.
pub struct Served {
    pub child: Child,
    said: Arc<Mutex<String>>,
}

impl Served {
    /// `name`: of its config file.
    pub fn start(playground: &Playground, name: &str, url: &str, service: &str) -> Served {
        Served::with(playground, name, url, service, &[])
    }

    pub fn with(playground: &Playground, name: &str, url: &str, service: &str, more: &[&str]) -> Served {
        let served = Served::begin(playground, name, url, service, more);
        served.says("is connected", 1);
        served
    }

    /// And not waited for.
    pub fn begin(playground: &Playground, name: &str, url: &str, service: &str, more: &[&str]) -> Served {
        Served::of(playground, name, &format!("url = \"{url}\"\n"), service, more)
    }

    /// `broker`: lines of its entry that say where the broker is, and as whom it is spoken to.
    pub fn of(playground: &Playground, name: &str, broker: &str, service: &str, more: &[&str]) -> Served {
        let text = format!(
            "[[broker]]\n{broker}service = \"{service}\"\ntools = [\"esc:echo\", \"esc:write\", \"esc:count\", \"esc:both\"]\n\
             caller = \"trustgraph\"\nat_once = 4\n"
        );
        Served::by(playground, name, &text, more)
    }

    /// By this config file.
    pub fn by(playground: &Playground, name: &str, text: &str, more: &[&str]) -> Served {
        let config = playground.path(&format!("{name}.toml"));
        fs::write(&config, text).unwrap();
        playground.settle();
        let mut command = playground.host();
        command.arg("--config").arg(config);
        command.args(["--log", "info", "serve"]).args(more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (err, kept) = (child.stderr.take().unwrap(), said.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        Served { child, said }
    }

    /// Waits until it said this so many times.
    pub fn says(&self, words: &str, times: usize) {
        wait_for(&format!("{times} × {words}"), || self.said().matches(words).count() >= times);
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Told to stop; what it does until it has ended.
    pub fn stop(mut self) -> String {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let mut ended = None;
        wait_for("the host ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        self.said()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::now_v7().simple())
}
