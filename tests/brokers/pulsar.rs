//! A Pulsar of this machine's own, and TrustGraph's clients over it.

use super::clients::{called, served};
use super::{Served, unique, world};
use crate::harness::{Who, skipped, within};
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A JVM takes its time on a busy machine.
const START: Duration = Duration::from_secs(180);

struct Pulsar {
    port: u16,
    admin: u16,
    program: PathBuf,
    folder: tempfile::TempDir,
    child: Child,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Pulsar {
    /// None where there is none: it is not part of any distribution.
    fn start() -> Option<Pulsar> {
        let Some(program) = std::env::var_os("TOOLHOST_TEST_PULSAR").map(PathBuf::from) else {
            skipped(1, "TOOLHOST_TEST_PULSAR names no Pulsar");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("toolhost-pulsar-").tempdir().unwrap();
        let (port, admin) = (free_port(), free_port());
        let settings = [
            ("bindAddress", "127.0.0.1".to_owned()),
            ("advertisedAddress", "127.0.0.1".to_owned()),
            ("listeningInterface", "lo".to_owned()),
            ("brokerServicePort", port.to_string()),
            ("webServicePort", admin.to_string()),
        ];
        let shipped = fs::read_to_string(program.join("conf/standalone.conf")).unwrap();
        let kept = |line: &&str| !settings.iter().any(|(key, _)| line.starts_with(&format!("{key}=")));
        let mut text = shipped.lines().filter(kept).collect::<Vec<_>>().join("\n");
        settings.iter().for_each(|(key, value)| text += &format!("\n{key}={value}"));
        fs::write(folder.path().join("standalone.conf"), text + "\n").unwrap();
        let child = run(&program, folder.path());
        let pulsar = Pulsar { port, admin, program, folder, child };
        pulsar.is_up();
        Some(pulsar)
    }

    fn is_up(&self) {
        within(START, "Pulsar is up", || self.asked(&["/admin/v2/clusters"]).contains("standalone"));
    }

    fn asked(&self, path: &[&str]) -> String {
        let (path, more) = path.split_last().unwrap();
        let url = format!("http://127.0.0.1:{}{path}", self.admin);
        let asked =
            Command::new("curl").args(["-s", "-H", "Content-Type: application/json"]).args(more).arg(url).output();
        String::from_utf8_lossy(&asked.unwrap().stdout).into_owned()
    }

    /// As TrustGraph's own start makes them.
    fn namespaces(&self) {
        let tenant = "{\"adminRoles\": [], \"allowedClusters\": [\"standalone\"]}";
        self.asked(&["-X", "PUT", "-d", tenant, "/admin/v2/tenants/tg"]);
        for name in ["request", "response"] {
            self.asked(&["-X", "PUT", "-d", "{}", &format!("/admin/v2/namespaces/tg/{name}")]);
        }
        within(START, "its namespaces are there", || {
            let there = self.asked(&["/admin/v2/namespaces/tg"]);
            there.contains("tg/request") && there.contains("tg/response")
        });
    }

    fn again(&mut self) {
        self.stop();
        self.child = run(&self.program, self.folder.path());
        self.is_up();
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &PathBuf, folder: &std::path::Path) -> Child {
    let mut command = Command::new(program.join("bin/pulsar"));
    command.current_dir(program).args(["standalone", "--no-functions-worker", "--no-stream-storage"]);
    command.args(["--advertised-address", "127.0.0.1"]);
    command.arg("--metadata-dir").arg(folder.join("meta")).arg("--bookkeeper-dir").arg(folder.join("bk"));
    command.env("PULSAR_STANDALONE_CONF", folder.join("standalone.conf")).env("PULSAR_LOG_DIR", folder.join("logs"));
    // As shipped it takes six gigabytes.
    command.env("PULSAR_MEM", "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m").env("PULSAR_GC", "-XX:+UseSerialGC");
    command.env("PULSAR_GC_LOG", " ");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Pulsar {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn clients_of_trustgraph_call_tools_over_pulsar() {
    let Some(mut pulsar) = Pulsar::start() else { return };
    let (playground, service) = (world(Who::ours()), unique("pulsar"));
    let url = format!("pulsar://127.0.0.1:{}", pulsar.port);
    // Before there is anything to subscribe to.
    let host = Served::begin(&playground, "one", &url, &service, &[]);
    host.says("is away", 1);
    pulsar.namespaces();
    within(START, "it is served", || host.said().contains("is connected"));
    served(&playground, &format!("pulsar:{}", pulsar.port), &service);
    // More than may run at once, each of which takes a while: none is dropped.
    let call = |n: u32| json!({"config": {"tool": "esc:echo"}, "arguments": {"n": n, "seconds": 0.3}});
    let calls = json!((0..24).map(call).collect::<Vec<_>>());
    let broker = format!("pulsar:{}", pulsar.port);
    let Some(told) = called(&playground, "2.11.1", &broker, &service, "client", &calls) else { return };
    assert!(told.iter().all(|told| told["answer"].is_string()), "{told:?}");
    let before = host.said().matches("is connected").count();
    pulsar.again();
    within(START, "it is served again", || host.said().matches("is connected").count() > before);
    let one = json!([call(1)]);
    let Some(told) = called(&playground, "2.7.13", &broker, &service, "client", &one) else { return };
    assert!(told[0]["answer"].is_string(), "{told:?}");
}
