//! A RabbitMQ of this machine's own, on loopback, as long as a test needs it.

use crate::prelude::*;
use std::sync::Weak;

const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Erlang takes its time on a busy machine.
const START: Duration = Duration::from_secs(120);

pub struct Node {
    pub port: u16,
    folder: tempfile::TempDir,
    epmd: (Child, u16),
    server: Mutex<Child>,
}

static SHARED: Mutex<Weak<Node>> = Mutex::new(Weak::new());

impl Node {
    /// One for all tests that run now; none where RabbitMQ is not installed.
    pub fn shared() -> Option<Arc<Node>> {
        super::shared(&SHARED, Node::start)
    }

    /// One of the test's own.
    pub fn start() -> Option<Node> {
        Node::with("")
    }

    /// And with these settings.
    pub fn with(more: &str) -> Option<Node> {
        if fs::metadata(SERVER).is_err() {
            missing(1, "rabbitmq-server");
            return None;
        }
        let folder = tempfile::Builder::new()
            .prefix("rabbitmq-of-tests-")
            .tempdir()
            .unwrap();
        let (port, names) = (free_port(), free_port());
        let settings = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\nvm_memory_high_watermark.absolute = 512MiB\n\
             disk_free_limit.absolute = 50MB\nlog.console = false\n{more}"
        );
        fs::write(folder.path().join("rabbitmq.conf"), settings).unwrap();
        fs::write(folder.path().join("plugins"), "[].").unwrap();
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &names.to_string()]);
        let epmd = epmd
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Mutex::new(run(folder.path(), port, names));
        let node = Node {
            port,
            folder,
            epmd: (epmd, names),
            server,
        };
        node.is_up();
        Some(node)
    }

    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }

    fn is_up(&self) {
        within(START, "RabbitMQ is up", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub fn stop(&self) {
        let mut server = self.server.lock().unwrap();
        self.signal(Signal::SIGKILL);
        let _ = server.wait();
    }

    /// To the runtime's own process: the script that started it waits for it.
    pub fn signal(&self, signal: Signal) {
        let pid = fs::read_to_string(self.folder.path().join("pid")).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Takes no larger messages, once it is started again.
    pub fn limit(&self, bytes: usize) {
        let settings = self.folder.path().join("rabbitmq.conf");
        let text = fs::read_to_string(&settings).unwrap();
        fs::write(settings, format!("{text}max_message_size = {bytes}\n")).unwrap();
    }

    pub fn again(&self) {
        *self.server.lock().unwrap() = run(self.folder.path(), self.port, self.epmd.1);
        self.is_up();
    }
}

fn run(folder: &Path, port: u16, names: u16) -> Child {
    let at = |name: &str| folder.join(name);
    let mut command = Command::new(SERVER);
    command
        .env("HOME", folder)
        .env("RABBITMQ_NODENAME", format!("t{port}@localhost"));
    for (variable, name) in [
        ("RABBITMQ_MNESIA_BASE", "mnesia"),
        ("RABBITMQ_LOG_BASE", "log"),
        ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
        ("RABBITMQ_PID_FILE", "pid"),
    ] {
        command.env(variable, at(name));
    }
    command
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .env("RABBITMQ_DIST_PORT", free_port().to_string());
    command
        .env("ERL_EPMD_PORT", names.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1");
    command.env(
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
        "-kernel inet_dist_use_interface {127,0,0,1}",
    );
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        let _ = self.epmd.0.kill();
        let _ = self.epmd.0.wait();
    }
}
