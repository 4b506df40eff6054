//! A Pulsar of this machine's own, and tools over it: TrustGraph's clients call them, and what is
//! lost on the way comes back.

use super::clients::{called, served};
use super::secured::{self, private};
use super::{Served, unique, world};
use crate::prelude::*;
use crate::tool_services::{self, Peer};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use std::os::unix::process::CommandExt;
use std::sync::Weak;

/// A JVM takes its time on a busy machine.
const START: Duration = Duration::from_secs(120);

pub struct Pulsar {
    pub port: u16,
    admin: u16,
    /// Where it asks for one.
    token: Option<String>,
    program: PathBuf,
    folder: tempfile::TempDir,
    child: Mutex<Child>,
}

static SHARED: Mutex<Weak<Pulsar>> = Mutex::new(Weak::new());

impl Pulsar {
    /// One for all tests that run now, with TrustGraph's namespaces.
    pub fn shared() -> Option<Arc<Pulsar>> {
        super::shared(&SHARED, || Pulsar::start().inspect(Pulsar::namespaces))
    }

    /// One of the test's own, in which there is nothing. None where there is no Pulsar: no
    /// distribution has it.
    pub fn start() -> Option<Pulsar> {
        Pulsar::with(Vec::new(), None)
    }

    /// And with these settings, asked with this token.
    pub fn with(more: Vec<(&str, String)>, token: Option<String>) -> Option<Pulsar> {
        let Some(program) = std::env::var_os("TOOLHOST_TEST_PULSAR").map(PathBuf::from) else {
            skipped(1, "TOOLHOST_TEST_PULSAR names no Pulsar");
            return None;
        };
        if !program.join("bin/pulsar").exists() {
            missing(
                1,
                &format!("a Pulsar in {} (TOOLHOST_TEST_PULSAR)", program.display()),
            );
            return None;
        }
        let folder = tempfile::Builder::new()
            .prefix("pulsar-of-tests-")
            .tempdir()
            .unwrap();
        let (port, admin) = (free_port(), free_port());
        let own = [
            ("bindAddress", "127.0.0.1".to_owned()),
            ("advertisedAddress", "127.0.0.1".to_owned()),
            // Else its store listens on every address.
            ("listeningInterface", "lo".to_owned()),
            ("brokerServicePort", port.to_string()),
            ("webServicePort", admin.to_string()),
        ];
        let settings: Vec<_> = own.into_iter().chain(more).collect();
        let shipped = fs::read_to_string(program.join("conf/standalone.conf")).unwrap();
        let kept = |line: &&str| {
            !settings
                .iter()
                .any(|(key, _)| line.starts_with(&format!("{key}=")))
        };
        let mut text = shipped.lines().filter(kept).collect::<Vec<_>>().join("\n");
        settings
            .iter()
            .for_each(|(key, value)| text += &format!("\n{key}={value}"));
        fs::write(folder.path().join("standalone.conf"), text + "\n").unwrap();
        let child = Mutex::new(run(&program, folder.path()));
        let pulsar = Pulsar {
            port,
            admin,
            token,
            program,
            folder,
            child,
        };
        pulsar.is_up();
        Some(pulsar)
    }

    pub fn url(&self) -> String {
        format!("pulsar://127.0.0.1:{}", self.port)
    }

    /// Its port answers before it knows its own cluster.
    fn is_up(&self) {
        within(START, "Pulsar is up", || {
            self.asked(&["/admin/v2/clusters"]).contains("standalone")
        });
    }

    /// The last word is the path, what goes before are words for curl.
    fn asked(&self, words: &[&str]) -> String {
        let (path, more) = words.split_last().unwrap();
        let url = format!("http://127.0.0.1:{}{path}", self.admin);
        let token = format!(
            "Authorization: Bearer {}",
            self.token.as_deref().unwrap_or("none")
        );
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-m",
            "20",
            "-H",
            "Content-Type: application/json",
            "-H",
            &token,
        ])
        .args(more)
        .arg(url);
        finish(curl, b"").text()
    }

    /// Those that TrustGraph's own start makes.
    pub fn namespaces(&self) {
        within(START, "its namespaces are there", || {
            self.asked(&[
                "-X",
                "PUT",
                "-d",
                "{\"allowedClusters\": [\"standalone\"]}",
                "/admin/v2/tenants/tg",
            ]);
            for name in ["flow", "notify", "request", "response"] {
                self.asked(&[
                    "-X",
                    "PUT",
                    "-d",
                    "{}",
                    &format!("/admin/v2/namespaces/tg/{name}"),
                ]);
            }
            self.asked(&["/admin/v2/namespaces/tg"])
                .matches("tg/")
                .count()
                == 4
        });
    }

    /// Whether somebody reads these requests.
    pub fn is_read(&self, service: &str, subscription: &str) -> bool {
        let told = self.asked(&[&format!(
            "/admin/v2/non-persistent/tg/request/{service}/stats"
        )]);
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        told["subscriptions"][subscription]["consumers"]
            .as_array()
            .is_some_and(|them| !them.is_empty())
    }

    pub fn stop(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }

    pub fn again(&self) {
        *self.child.lock().unwrap() = run(&self.program, self.folder.path());
        self.is_up();
    }
}

/// The script that starts it becomes the JVM.
fn run(program: &Path, folder: &Path) -> Child {
    let mut command = Command::new(program.join("bin/pulsar"));
    command.current_dir(program).args([
        "standalone",
        "--no-functions-worker",
        "--no-stream-storage",
    ]);
    command.args(["--advertised-address", "127.0.0.1"]);
    command
        .arg("--metadata-dir")
        .arg(folder.join("meta"))
        .arg("--bookkeeper-dir")
        .arg(folder.join("bk"));
    command
        .env("PULSAR_STANDALONE_CONF", folder.join("standalone.conf"))
        .env("PULSAR_LOG_DIR", folder.join("logs"));
    // As shipped it takes six gigabytes.
    command
        .env(
            "PULSAR_MEM",
            "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m",
        )
        .env("PULSAR_GC", "-XX:+UseSerialGC");
    command.env("PULSAR_GC_LOG", " ").process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Pulsar {
    fn drop(&mut self) {
        self.stop();
    }
}

fn echo(arguments: Value) -> Value {
    json!({"config": {"tool": "esc:echo"}, "arguments": arguments})
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn clients_of_trustgraph_call_tools_over_pulsar() {
    let Some(pulsar) = Pulsar::shared() else {
        return;
    };
    let (playground, service) = (world(Who::ours()), unique("clients"));
    let host = Served::serve(&playground, "one", &pulsar.url(), &service);
    let broker = format!("pulsar:{}", pulsar.port);
    served(&playground, &broker, &service);
    let calls = json!(
        (0..60)
            .map(|n| echo(json!({"n": n, "seconds": 0.1})))
            .collect::<Vec<_>>()
    );
    for release in ["2.7.13", "2.11.1"] {
        // Both spellings are one topic.
        let (uri, one) = (format!("uri:{service}"), json!([echo(json!({"n": 1}))]));
        let Some(told) = called(&playground, release, &broker, &uri, "client", &one) else {
            return;
        };
        assert_eq!(told[0]["answer"], "{\"n\":1}", "{release}: {}", told[0]);
        // More than may run at once, each of which takes a while: none is dropped or mixed up.
        let Some(told) = called(&playground, release, &broker, &service, "client", &calls) else {
            return;
        };
        for (n, told) in told.iter().enumerate() {
            assert_eq!(
                told["answer"],
                format!("{{\"n\":{n},\"seconds\":0.1}}"),
                "{release}: {told}"
            );
        }
    }
    drop(host);
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn what_is_missing_or_goes_away_is_served_once_it_is_there() {
    let Some(pulsar) = Pulsar::start() else {
        return;
    };
    let (playground, service) = (world(Who::ours()), unique("away"));
    let host = Served::begin(&playground, "one", &pulsar.url(), &service, &[]);
    host.says("is away: ", 1);
    within(START, "the reason is told", || {
        host.said().contains("Namespace not found")
    });
    pulsar.namespaces();
    let connected = |times| {
        within(START, "it is served", || {
            host.said().matches("is connected").count() >= times
        })
    };
    connected(1);
    let broker = format!("pulsar:{}", pulsar.port);
    let answers = |release: &str| {
        let told = called(
            &playground,
            release,
            &broker,
            &service,
            "client",
            &json!([echo(json!({"n": 1}))]),
        )?;
        assert_eq!(
            told[0]["answer"],
            "{\"n\":1}",
            "{}\n{}",
            told[0],
            host.said()
        );
        Some(())
    };
    let Some(()) = answers("2.7.13") else { return };
    // And a host that calls a service over it.
    let name = unique("called");
    let caller = tool_services::playground(Who::ours(), &name, &pulsar.url());
    let _peer = Peer::of(
        tool_services::terms(&pulsar.url()),
        &name,
        &format!("request:tg:{name}"),
    );
    let mut server = Server::of(tool_services::host(&caller));
    let told =
        |server: &mut Server| server.called("ask", json!({"what": "stream"}))["result"].clone();
    assert_eq!(told(&mut server)["content"][0]["text"], "one two three");
    pulsar.stop();
    host.says("is away: ", 2);
    let away = told(&mut server);
    assert!(
        away["isError"] == true && away.to_string().contains("No instances available"),
        "{away}"
    );
    pulsar.again();
    connected(2);
    answers("2.11.1");
    within(START, "the service is back", || {
        pulsar.is_read(&name, "peer")
    });
    assert_eq!(told(&mut server)["content"][0]["text"], "one two three");
}

/// A token that Pulsar takes, by the key that it has (RFC 7519, HS256).
fn token(key: &[u8]) -> String {
    let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(r#"{"sub":"agent"}"#));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[test]
#[ignore = "second stage (.ci/full): needs a message broker"]
fn tls_and_a_token_are_used_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let [authority, certificate, key] = certificates();
    let at = |name: &str, text: &str| private(folder.path(), Who::ours(), name, text);
    let (secret, port) = ([7; 32], free_port());
    let good = token(&secret);
    let plugin = |name: &str| format!("org.apache.pulsar.{name}");
    let settings = vec![
        ("brokerServicePortTls", port.to_string()),
        (
            "tlsCertificateFilePath",
            at("certificate.pem", &certificate),
        ),
        ("tlsKeyFilePath", at("key.pem", &key)),
        ("authenticationEnabled", "true".to_owned()),
        (
            "authenticationProviders",
            plugin("broker.authentication.AuthenticationProviderToken"),
        ),
        (
            "tokenSecretKey",
            format!("data:;base64,{}", STANDARD.encode(secret)),
        ),
        (
            "brokerClientAuthenticationPlugin",
            plugin("client.impl.auth.AuthenticationToken"),
        ),
        (
            "brokerClientAuthenticationParameters",
            format!("token:{good}"),
        ),
    ];
    let Some(pulsar) = Pulsar::with(settings, Some(good.clone())) else {
        return;
    };
    pulsar.namespaces();
    let playground = world(Who::ours());
    let own = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| private(own.path(), Who::ours(), name, text);
    let (good_token, other_token) = (put("token", &good), put("other-token", &token(&[8; 32])));
    let (ca, other_ca) = (
        put("ca.pem", &authority),
        put("other-ca.pem", &certificates()[0]),
    );
    let entry = |token: &str, ca: &str| {
        format!(
            "url = \"pulsar+ssl://127.0.0.1:{port}\"\ncredentials = \"file:{token}\"\nca = \
            \"{ca}\"\n"
        )
    };
    let service = unique("secured");
    // One tool, so that a call need not name it.
    let rest = format!("service = \"{service}\"\ntools = [\"esc:echo\"]\ncaller = \"a\"\n");
    let host = Served::by(
        &playground,
        "one",
        &format!("[[broker]]\n{}{rest}", entry(&good_token, &ca)),
        &[],
    );
    within(START, "it is connected", || {
        assert!(!host.said().contains("is away: "), "{}", host.said());
        host.said().contains("is connected")
    });
    // One host serves over it, another one calls.
    let entries = [
        (entry(&good_token, &ca), None),
        (
            entry(&other_token, &ca),
            Some("it refuses the token (`credentials`)"),
        ),
        (
            entry(&good_token, &other_ca),
            Some("its certificate is not trusted (`ca`)"),
        ),
    ];
    secured::called(Who::ours(), &service, "{\"what\":\"stream\"}", &entries);
    for (entry, reason) in entries
        .into_iter()
        .filter_map(|(entry, reason)| Some((entry, reason?)))
    {
        let host = Served::of(&playground, "one", &entry, &unique("secured"), &[]);
        within(START, reason, || host.said().contains("is away: "));
        assert!(
            host.said().contains(reason) && !host.said().contains(&good),
            "{reason}: {}",
            host.said()
        );
    }
}
