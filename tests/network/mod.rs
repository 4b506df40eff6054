//! Named hosts, judged from outside: a small internet in network namespaces writes down whoever
//! comes.

use crate::prelude::*;
mod attacks;
mod clients;
mod limits;
mod names;
mod roads;
mod secrets;
#[cfg(feature = "wasi")]
mod wasi;

/// What the name server of every world knows.
fn names() -> Value {
    json!({
        "api.example.com": ["45.20.0.1"],
        "other.example.com": ["45.20.0.2"],
        "a.wild.example": ["45.20.0.1"],
        "a.b.wild.example": ["45.20.0.1"],
        "wild.example": ["45.20.0.1"],
        "six.example.com": ["2a0b::1"],
        "both.example.com": ["2a0b::1", "45.20.0.1"],
        "unrouted.example.com": ["45.40.0.1"],
        "later.example.com": ["45.40.0.1", "45.40.0.2", "45.40.0.3", "45.40.0.4", "45.40.0.5", "2a0b::1"],
        "alias.example.com": "chain.example.com",
        "chain.example.com": "api.example.com",
        "inside.example.com": ["10.1.0.5"],
        "inner-alias.example.com": "inside.example.com",
        "metadata.example.com": ["169.254.169.254"],
        "loopback.example.com": ["127.0.0.1", "::1"],
        "mapped.example.com": ["::ffff:10.1.0.5"],
        "own.example.com": ["45.10.0.2"],
        "routed.example.com": ["45.30.0.7", "2a0c::7"],
        "broadcast.example.com": ["45.10.0.255"],
        "mixed.example.com": ["10.1.0.5", "45.20.0.1"],
        "turns.example.com": [["45.20.0.1"], ["10.1.0.5"]],
        "silent.example.com": "silent",
        "empty.example.com": [],
        "closed.example.com": ["45.20.0.3"],
        "evil.example.net": ["45.20.0.2"],
        "xn--bcher-kva.example": ["45.20.0.1"],
        "api.example.com.corp.example": ["45.20.0.2"],
        "missing.example.com.corp.example": ["45.20.0.2"],
    })
}

/// A host behind whose network lies a world of its own.
pub struct World {
    pub playground: Playground,
    who: Who,
    folder: PathBuf,
    outside: Child,
    inside: String,
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.outside.stdin.take());
        let _ = self.outside.wait();
    }
}

/// The world of root, and that of an ordinary user without any right over the network.
pub fn in_both_worlds(what: &str, test: impl Fn(&World)) {
    if found("ip").or_else(|| found("../../usr/sbin/ip")).is_none() {
        return crate::harness::missing(1, "ip");
    }
    if !crate::harness::is_root() {
        skipped(1, &format!("{what} as root needs root"));
    }
    Who::both().for_each(|who| test(&World::new(who)));
}

/// The world of whoever runs the tests: where the relay or the name server decides, whoever runs
/// it.
fn in_our_world(test: impl Fn(&World)) {
    match found("ip").or_else(|| found("../../usr/sbin/ip")) {
        Some(_) => test(&World::new(Who::ours())),
        None => crate::harness::missing(1, "ip"),
    }
}

impl World {
    pub fn new(who: Who) -> World {
        let playground = Playground::new(who, "/var/tmp");
        let folder = playground.path("world");
        fs::create_dir_all(&folder).unwrap();
        let addresses = [
            "45.20.0.1",
            "45.20.0.2",
            "10.1.0.5",
            "169.254.169.254",
            "2a0b::1",
        ];
        let world = json!({"addresses": addresses, "names": names(), "hosts": "45.20.0.1 \
            filed.example.com\n"});
        fs::write(folder.join("world.json"), world.to_string()).unwrap();
        fs::write(folder.join("log.txt"), "").unwrap();
        fs::write(folder.join("world.py"), include_str!("world.py")).unwrap();
        fs::write(folder.join("dressed.py"), include_str!("dressed.py")).unwrap();
        certificates(&folder);
        playground.settle();
        let mut outside = playground.outside("/usr/bin/unshare");
        outside.env(
            "PATH",
            "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        );
        if who != Who::Root {
            outside.arg("-Ur");
        }
        outside
            .args(["-n", "-m", "/usr/bin/python3"])
            .arg(folder.join("world.py"))
            .arg(&folder);
        let mut outside = outside
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut inside = String::new();
        BufReader::new(outside.stdout.take().unwrap())
            .read_line(&mut inside)
            .unwrap();
        let inside = inside.trim().to_owned();
        assert!(!inside.is_empty(), "the world did not start");
        World {
            playground,
            who,
            folder,
            outside,
            inside,
        }
    }

    /// A program outside, where the hosts are.
    pub fn outside(&self, program: &str) -> Command {
        let mut command = self.playground.outside("/usr/bin/nsenter");
        command.args(["-t", &self.outside.id().to_string(), "-n", "-m"]);
        if self.who != Who::Root {
            command.args(["-U", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// A program inside, as who runs the host.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = self.playground.outside("/usr/bin/nsenter");
        command.args(["-t", &self.inside, "-n", "-m"]);
        if self.who != Who::Root {
            // Its own id again, and no right over the namespaces.
            let uid = nix::unistd::getuid().as_raw();
            let uid = self.who.uid().unwrap_or(uid).to_string();
            command.args([
                "-U",
                "--preserve-credentials",
                "--",
                "/usr/bin/unshare",
                "-U",
            ]);
            command.args([format!("--map-user={uid}"), format!("--map-group={uid}")]);
        }
        command.arg("--").arg(program);
        command
    }

    pub fn host(&self) -> Command {
        let mut command = self.inside("/usr/bin/env");
        command.arg("--");
        self.playground.host_by(command)
    }

    pub fn call(&self, tool: &str, input: &Value) -> Ended {
        self.call_with(tool, input, &[])
    }

    pub fn call_with(&self, tool: &str, input: &Value, more: &[&str]) -> Ended {
        let mut command = self.host();
        command
            .args(["call", tool, "--json", "--input", "-"])
            .args(more);
        finish(command, input.to_string().as_bytes())
    }

    /// A tool that asks for these hosts, under a policy that allows `allowed`, entries of TOML.
    pub fn tool(&self, name: &str, language: &str, script: &str, asked: &[&str], allowed: &str) {
        self.tool_with(name, language, script, asked, allowed, "");
    }

    pub fn tool_with(
        &self,
        name: &str,
        language: &str,
        script: &str,
        asked: &[&str],
        allowed: &str,
        rest: &str,
    ) {
        let more = json!({"securityContext": {"networkAccess": {"allowHosts": asked}}});
        self.playground.tool(name, language, script, more);
        let rest = format!(
            "{rest}\n[files]\nread = [{{ path = \"./**\", why = \"a test\" }}]\n[network]\nhosts = \
            [{allowed}]\n"
        );
        self.playground.policy(name, &format!("esc:{name}"), &rest);
        self.playground.settle();
    }

    /// Who came, in lines.
    pub fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("log.txt")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Who came while `what` was done.
    pub fn heard(&self, what: impl FnOnce()) -> Vec<String> {
        self.watched(what).1
    }

    /// What `what` gives, and who came meanwhile.
    fn watched<T>(&self, what: impl FnOnce() -> T) -> (T, Vec<String>) {
        let before = self.log().len();
        let given = what();
        // Whoever came last is written down a little later.
        std::thread::sleep(Duration::from_millis(50));
        (given, self.log().split_off(before))
    }

    /// How a call ends, and who came meanwhile.
    fn called(&self, tool: &str, input: &Value) -> (Ended, Vec<String>) {
        self.watched(|| self.call(tool, input))
    }

    /// A server of files inside, which ends with `used`.
    fn with_server(&self, port: u16, used: impl FnOnce()) {
        let mut server = self.inside("/usr/bin/python3");
        server
            .args(["-m", "http.server", &port.to_string(), "--directory"])
            .arg(&self.folder);
        let mut server = server
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        used();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// The control: a plain program inside the world reaches the target.
    pub fn control(&self, url: &str) {
        let mut command = self.inside("/usr/bin/curl");
        command.args(["-gsS", "--max-time", "60", url]);
        let before = self.log().len();
        let ended = finish(command, b"");
        within(
            Duration::from_secs(20),
            &format!("control {url}: {ended:?}"),
            || self.log().len() > before,
        );
    }
}

/// An entry of a policy's `hosts`.
pub fn allow(host: &str) -> String {
    format!("{{ host = \"{host}\", why = \"a test\" }}")
}

pub fn allow_inside(host: &str, ranges: &str) -> String {
    format!("{{ host = \"{host}\", ranges = [\"{ranges}\"], why = \"a test\" }}")
}

/// A root that the world trusts and one that it does not, and from each a certificate of all its
/// hosts.
fn certificates(folder: &std::path::Path) {
    certificate(folder, "ca.pem", "host.pem");
    certificate(folder, "private-ca.pem", "private.pem");
}

fn certificate(folder: &std::path::Path, ca: &str, of_hosts: &str) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.distinguished_name
        .push(DnType::CommonName, format!("{ca} of the tests"));
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = root.self_signed(&key).unwrap();
    fs::write(folder.join(ca), certificate.pem()).unwrap();
    let issuer = Issuer::new(root, key);
    let own = KeyPair::generate().unwrap();
    let hosts = [
        "*.example.com",
        "*.wild.example",
        "*.b.wild.example",
        "evil.example.net",
        "45.20.0.1",
    ];
    let host = CertificateParams::new(hosts.map(str::to_owned).to_vec())
        .unwrap()
        .signed_by(&own, &issuer)
        .unwrap();
    fs::write(folder.join(of_hosts), host.pem() + &own.serialize_pem()).unwrap();
}
