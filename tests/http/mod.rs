//! The HTTP server, spoken to byte by byte: it, who may call it, what it answers, what it refuses.

use crate::prelude::*;
mod answers;
mod approvals;
mod batch;
mod callers;
pub mod calls;
pub mod clients;
mod hostile;
pub mod mcp;
mod mcp_bounds;
mod mcp_resume;
mod odd;
mod operate;
mod receiver;
mod refusals;
mod reset;
mod running;
mod soak;
mod tools;
mod uploads;

pub use receiver::Receiver;

use std::os::unix::fs::chown;
use toolhost::base::files;

/// A server on a port of its own.
pub struct Web {
    host: Hosted,
    /// `127.0.0.1:PORT`, or `unix:PATH`.
    pub address: String,
    /// The user as whom requests are made.
    uid: Option<u32>,
}

impl std::ops::Deref for Web {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.host
    }
}

impl std::ops::DerefMut for Web {
    fn deref_mut(&mut self) -> &mut Hosted {
        &mut self.host
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// It has this status, and this error as `Kind: part of the body`, or `none`.
    #[track_caller]
    pub fn is(self, status: u16, wanted: &str) -> Reply {
        let (kind, part) = wanted.split_once(": ").unwrap_or((wanted, ""));
        let own = self.json()["error"]["type"]
            .as_str()
            .unwrap_or("none")
            .to_owned();
        assert!(
            self.status == status && own == kind && self.body.contains(part),
            "{status} {wanted}: {self:?}"
        );
        self
    }

    pub fn of(bytes: &[u8]) -> Option<Reply> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = if chunked {
            unchunked(body)
        } else {
            body.to_owned()
        };
        Some(Reply {
            status,
            head: head.to_owned(),
            body,
        })
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let Ok(length @ 1..) = usize::from_str_radix(length, 16) else {
            break;
        };
        let Some(piece) = rest.get(..length) else {
            break;
        };
        whole += piece;
        body = rest.get(length + 2..).unwrap_or_default();
    }
    whole
}

impl Web {
    /// A server for these names, and the header of each (`tokens`).
    pub fn for_callers<const N: usize>(
        playground: &Playground,
        names: [&str; N],
    ) -> (Web, [String; N]) {
        let (file, headers) = tokens(playground, names);
        (Web::start(playground, &["--token-file", &file]), headers)
    }

    pub fn start(playground: &Playground, more: &[&str]) -> Web {
        Web::at(playground, "127.0.0.1:0", more)
    }

    pub fn at(playground: &Playground, address: &str, more: &[&str]) -> Web {
        let mut command = playground.host();
        command.args(["serve", "--http", address]).args(more);
        let uid = playground.who.uid();
        Web::run(command, uid).unwrap_or_else(|said| panic!("it did not start: {said}"))
    }

    /// `Err`: what it said before it ended.
    pub fn run(command: Command, uid: Option<u32>) -> Result<Web, String> {
        let mut host = Hosted::start(command);
        let (mut address, mut over) = (None, false);
        wait_for("it serves, or ends", || {
            over = host.is_over();
            let said = host.said();
            let serving = said
                .lines()
                .find(|line| line.contains("toolhost: serving") && line.contains(" at "));
            address = serving
                .and_then(|line| line.split_once(" at ")?.1.split(' ').next())
                .map(str::to_owned);
            over || address.is_some()
        });
        match address {
            Some(address) => Ok(Web { host, address, uid }),
            None => Err(host.said()),
        }
    }

    /// A connection, as the user who runs the server.
    pub fn connect(&self) -> TcpStream {
        self.connect_as(self.uid.unwrap_or(0))
    }

    /// The kernel gives a socket to the user whose file rights its thread has.
    pub fn connect_as(&self, uid: u32) -> TcpStream {
        let stream = files::as_owner((uid, uid), || TcpStream::connect(&self.address)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// These bytes on a connection of their own, and all that comes back.
    pub fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        exchanged(self.connect(), bytes)
    }

    /// A connection on which this was asked.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> TcpStream {
        let mut stream = self.connect();
        stream
            .write_all(request(method, path, &self.address, headers, body).as_bytes())
            .unwrap();
        stream
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let answer = self.raw(request(method, path, &self.address, headers, body).as_bytes());
        Reply::of(&answer).unwrap_or_else(|| panic!("no answer to {method} {path}: {answer:?}"))
    }

    pub fn get(&self, path: &str, headers: &[&str]) -> Reply {
        self.ask("GET", path, headers, "")
    }

    pub fn call(&self, tool: &str, body: &Value, headers: &[&str]) -> Reply {
        self.ask(
            "POST",
            &format!("/v1/tools/{tool}/calls"),
            headers,
            &body.to_string(),
        )
    }

    /// The calls that are shown to a caller.
    pub fn calls(&self, headers: &[&str]) -> Vec<Value> {
        self.get("/v1/calls", headers).json()["calls"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// A verb of the command line, with the token of this header.
    pub fn verb(&self, playground: &Playground, words: &[&str], bearer: &str) -> Ended {
        let mut command = playground.host();
        command
            .args(words)
            .env("TOOLHOST_HTTP", &self.address)
            .env("TOOLHOST_TOKEN", token_of(bearer));
        finish(command, b"")
    }
}

/// A host with these tools, and its server for its own user.
pub fn served<T>(tools: impl FnOnce(&Playground) -> T) -> (Playground, Web) {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground);
    playground.settle();
    let web = Web::start(&playground, &[]);
    (playground, web)
}

/// The same for callers with these names, and the header of each.
pub fn served_to<T, const N: usize>(
    names: [&str; N],
    tools: impl FnOnce(&Playground) -> T,
) -> (Playground, Web, [String; N]) {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground);
    playground.settle();
    let (web, headers) = Web::for_callers(&playground, names);
    (playground, web, headers)
}

/// A file of tokens for these names, and the header of each. A name that ends with `!` is an
/// operator's.
pub fn tokens<const N: usize>(playground: &Playground, names: [&str; N]) -> (String, [String; N]) {
    let made = names.map(|name| match name.strip_suffix('!') {
        Some(operator) => token(playground, operator, &["--operator"]),
        None => token(playground, name, &[]),
    });
    let lines: String = made.iter().map(|(_, line)| format!("{line}\n")).collect();
    (
        private(playground, "state/tokens", &lines),
        made.map(|(token, _)| bearer(&token)),
    )
}

/// `serve` with these flags ends with this code, and says why.
#[track_caller]
pub fn unserved(playground: &Playground, flags: &[&str], code: i32, why: &str) {
    let ended = playground.cli(&[&["serve", "--http"], flags].concat());
    assert!(
        ended.code == Some(code) && ended.stderr.contains(why),
        "{why}: {ended:?}"
    );
}

pub fn exchanged(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // A server that refuses early may close while we still write.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        answer.extend(&piece[..length]);
    }
    answer
}

/// All that comes on a connection until its end.
pub fn rest(stream: TcpStream) -> String {
    String::from_utf8_lossy(&exchanged(stream, b"")).into_owned()
}

/// All that comes on a connection until these words have come.
pub fn heard(stream: &mut TcpStream, words: &str) -> String {
    let (mut all, mut piece) = (String::new(), [0; 4096]);
    while !all.contains(words) {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{all}");
        all += &String::from_utf8_lossy(&piece[..length]);
    }
    all
}

pub fn request(method: &str, path: &str, host: &str, headers: &[&str], body: &str) -> String {
    let mut lines = vec![format!("{method} {path} HTTP/1.1")];
    let own = [
        ("host:", format!("Host: {host}")),
        ("connection:", "Connection: close".into()),
        ("content-type:", "Content-Type: application/json".into()),
        ("content-length:", format!("Content-Length: {}", body.len())),
    ];
    let given = |name: &str| {
        headers
            .iter()
            .any(|line| line.to_ascii_lowercase().starts_with(name))
    };
    let own = own
        .into_iter()
        .take(if ["POST", "PUT"].contains(&method) {
            4
        } else {
            2
        })
        .filter(|(name, _)| !given(name));
    lines.extend(
        own.map(|(_, line)| line)
            .chain(headers.iter().map(|line| (*line).to_owned())),
    );
    lines.join("\r\n") + "\r\n\r\n" + body
}

/// A file that only who runs the host reads.
pub fn private(playground: &Playground, name: &str, text: &str) -> String {
    let path = playground.path(name);
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&new, playground.who.uid(), playground.who.uid()).unwrap();
    fs::rename(&new, &path).unwrap();
    path.display().to_string()
}

/// The files of a certificate for localhost and of its key.
pub fn certified(playground: &Playground) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = private(
        playground,
        "state/key.pem",
        &made.signing_key.serialize_pem(),
    );
    [private(playground, "state/cert.pem", &made.cert.pem()), key]
}

/// A new token, and its line.
pub fn token(playground: &Playground, name: &str, more: &[&str]) -> (String, String) {
    let made = playground.cli(&[&["token", name], more].concat());
    let text = made.text();
    let (token, line) = text
        .trim()
        .split_once('\n')
        .unwrap_or_else(|| panic!("{made:?}"));
    (token.to_owned(), line.to_owned())
}

pub fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

/// The token of a header.
pub fn token_of(bearer: &str) -> &str {
    bearer.rsplit(' ').next().unwrap()
}

/// An entry of the file of callers, who may call every tool.
pub fn caller(name: &str, more: &str) -> String {
    format!("[[caller]]\nname = \"{name}\"\nwhy = \"a test\"\ntools = [\"*\"]\n{more}")
}

pub fn write_callers(playground: &Playground, text: &str) {
    fs::write(
        playground.path("sandbox-policies/callers.policy.toml"),
        text,
    )
    .unwrap();
    playground.settle();
}

/// Adds two numbers.
pub fn adder(playground: &Playground) {
    let script = "import json, sys\ngiven = \
        json.load(sys.stdin)\nprint(json.dumps({'sum': given['a'] + given['b']}))\n";
    let number = json!({"type": "integer"});
    let parameters =
        json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]});
    playground.tool("add", "python", script, json!({"parameters": parameters}));
    playground.settle();
}

/// The limit of tools that run until somebody lets them go on, or ends them.
const LONG: &str =
    "[limits]\ntimeout_ms = 120_000\n[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";

/// Writes a line, and sleeps.
pub fn sleeper(playground: &Playground) {
    let script = "import sys, time\nprint('asleep', file=sys.stderr, \
        flush=True)\ntime.sleep(110)\nprint(1)\n";
    playground.tool("sleep", "python", script, json!({}));
    playground.policy("sleep", "esc:sleep", LONG);
}

/// A tool `esc:gate`: answers once the file that its call names lies in its folder.
pub fn gated(playground: &Playground) {
    let script = "import json, os, sys, time\nfile = os.path.dirname(__file__) + '/' + \
                  json.load(sys.stdin)['file']\nwhile not os.path.exists(file):\n    \
                  time.sleep(0.01)\nprint('\"through\"')\n";
    let file = json!({"type": "object", "properties": {"file": {"type": "string"}}});
    playground.tool("gate", "python", script, json!({"parameters": file}));
    playground.policy("gate", "esc:gate", LONG);
}

pub const GATE: &str = "user_scripts/gate/main.py";

/// Lets the calls go on that name this file.
pub fn open_gate(playground: &Playground, file: &str) {
    fs::write(playground.path(&format!("user_scripts/gate/{file}")), "").unwrap();
}
