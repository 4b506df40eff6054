//! A RabbitMQ of this run's own, on loopback: started once, ended with the tests.

use super::PATIENCE;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use toolhost::broker::Terms;

const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

pub struct RabbitMq {
    pub port: u16,
    _cleaner: Child,
}

/// `None` where it is not installed.
pub fn rabbitmq() -> Option<&'static RabbitMq> {
    static SHARED: LazyLock<Option<RabbitMq>> = LazyLock::new(|| {
        let there = Path::new(PROGRAMS).join("rabbitmq-server").exists();
        if !there {
            super::skipped(1, "a broker needs rabbitmq-server");
        }
        there.then(RabbitMq::start)
    });
    SHARED.as_ref()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl RabbitMq {
    fn start() -> RabbitMq {
        let folder = tempfile::Builder::new().prefix("toolhost-test-mq-").tempdir_in("/var/tmp").unwrap().keep();
        let (port, apart, epmd) = (free_port(), free_port(), free_port());
        for name in ["home", "log", "mnesia"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        let conf = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\nlog.console = false\n\
             vm_memory_high_watermark.absolute = 512MiB\ndisk_free_limit.absolute = 50MB\n"
        );
        fs::write(folder.join("rabbitmq.conf"), conf).unwrap();
        fs::write(folder.join("enabled_plugins"), "[].").unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            let at = |name: &str| folder.join(name);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            command.env("HOME", at("home")).env("RABBITMQ_NODENAME", format!("t{port}@localhost"));
            command.env("RABBITMQ_MNESIA_BASE", at("mnesia")).env("RABBITMQ_LOG_BASE", at("log"));
            command.env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")).env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
            command.env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins")).env("RABBITMQ_PID_FILE", at("pid"));
            command.env("RABBITMQ_DIST_PORT", apart.to_string()).env("ERL_EPMD_PORT", epmd.to_string());
            let additional = "-kernel inet_dist_use_interface {127,0,0,1}";
            command.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", additional);
            command
        };
        let names = run("epmd", &["-address", "127.0.0.1", "-port", &epmd.to_string()]).spawn().unwrap();
        let server = run(&format!("{PROGRAMS}/rabbitmq-server"), &[]).spawn().unwrap();
        // What is static is never dropped: a shell that waits for the end of this process ends both.
        let mut cleaner = Command::new("/bin/sh");
        let end = "read -r _; kill -9 -\"$1\" -\"$2\"; sleep 0.2; rm -rf \"$3\"";
        cleaner.args(["-c", end, "sh", &server.id().to_string(), &names.id().to_string()]).arg(&folder);
        let cleaner = cleaner.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let cleaner = cleaner.spawn().unwrap();
        let pid = folder.join("pid").display().to_string();
        let patience = (2 * PATIENCE.as_secs()).to_string();
        let ready = run(&format!("{PROGRAMS}/rabbitmqctl"), &["wait", "--timeout", &patience, &pid]).status().unwrap();
        assert!(ready.success(), "RabbitMQ did not start: see {}", folder.display());
        RabbitMq { port, _cleaner: cleaner }
    }

    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }

    pub fn terms(&self) -> Terms {
        Terms::new(&self.url(), None, None, false).unwrap()
    }
}
