//! The page for operators in a real browser (chromium without a window, over its own protocol: tests/page/).

use crate::http::{Web, token_of, tokens};
use crate::prelude::*;

const BROWSER: &str = "chromium";

/// Tools that work, want too much, are denied something, wait for a person, and wait for an approval.
fn tools(playground: &Playground, words: &str) {
    let shown = json!({"displayName": words, "description": words, "tags": [words]});
    playground.tool("good", "python", "print('1')\n", json!({}));
    let wants = json!({"securityContext": {"fileAccess": {"allowRead": ["./**", "/srv/none/x"]}}});
    playground.tool("wants", "python", "print('1')\n", wants);
    let tried = if words.is_empty() {
        "/srv/none/tried".to_owned()
    } else {
        format!("/srv/none/{}", words.replace('/', "|"))
    };
    // JSON's text of a string is Python's, too.
    let (tried, said) = (json!(tried), json!(words));
    let tries = format!("try:\n    open({tried})\nexcept OSError:\n    print('1')\n");
    playground.tool("tries", "python", &tries, json!({}));
    let own = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n";
    playground.policy("tries", "esc:tries", &format!("observe = true\n{own}"));
    let echo = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
    let to = json!({"parameters": {"type": "object", "properties": {"to": {"type": "string"}}}});
    playground.tool("pay", "python", echo, to);
    let confirm = format!("confirm = \"it spends money\"\n{own}");
    playground.policy("pay", "esc:pay", &confirm);
    playground.tool("new", "python", echo, json!({}));
    playground.policy(
        "new",
        "esc:new",
        &format!("{own}[approval]\nrequired = true\n"),
    );
    if !words.is_empty() {
        let evil =
            format!("import sys\nprint({said}, file=sys.stderr)\nraise SystemExit({said})\n");
        playground.tool("evil", "python", &evil, shown);
    }
    playground.allow_builtin_tools();
    playground.settle();
}

/// Drives the browser; returns what the driver printed.
fn drive(mode: &str, facts: &Value) -> String {
    let driver = repository("tests/page/drive.py");
    let mut command = Command::new(PYTHON);
    command.arg(driver).arg(mode).arg(facts.to_string());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(said.ends_with("fine\n"), "{mode}: {said}{why}");
    said
}

fn has_browser() -> bool {
    let is_there = found(BROWSER).is_some();
    if !is_there {
        missing(1, BROWSER);
    }
    is_there
}

/// A server for an operator and an agent, and what the driver must know of it.
fn served(playground: &Playground) -> (Web, Value) {
    let (file, headers) = tokens(playground, ["ops!", "alice"]);
    let web = Web::start(playground, &["--token-file", &file]);
    let [ops, alice] = headers.each_ref().map(|header| token_of(header));
    let mut facts = json!({"url": format!("http://{}", web.address), "ops": ops, "alice": alice});
    facts["program"] = json!(playground.program());
    (web, facts)
}

#[test]
fn an_operator_watches_stops_answers_and_runs_code() {
    if has_browser() {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        tools(&playground, "");
        let (_web, facts) = served(&playground);
        drive("ordinary", &facts);
    }
}

#[test]
fn who_has_no_token_or_is_no_operator_is_told_so() {
    if has_browser() {
        let playground = Playground::new(Who::ours(), "/var/tmp");
        tools(&playground, "");
        let (_web, mut facts) = served(&playground);
        let own = Web::start(&playground, &[]);
        facts["own"] = json!(format!("http://{}", own.address));
        drive("strangers", &facts);
    }
}

/// Answers `/bare` with a page that has this text in it as it is, everything else with nothing, and notes what is requested.
struct Listener {
    address: String,
    requested: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    fn open(text: impl FnOnce(&str) -> String) -> (Listener, String) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", socket.local_addr().unwrap());
        let text = text(&address);
        let requested = Arc::<Mutex<Vec<String>>>::default();
        let (notes, bare) = (requested.clone(), format!("<!doctype html>{text}"));
        std::thread::spawn(move || {
            for stream in socket.incoming().map_while(Result::ok) {
                let mut line = String::new();
                let _ = BufReader::new(&stream).read_line(&mut line);
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                let body = if path == "/bare" { &*bare } else { "" };
                notes.lock().unwrap().push(path);
                let length = body.len();
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close";
                let _ = write!(&stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}");
            }
        });
        (Listener { address, requested }, text)
    }

    fn requested(&self) -> Vec<String> {
        self.requested.lock().unwrap().clone()
    }
}

#[test]
fn what_tools_and_callers_say_is_text_and_a_bare_page_runs_it() {
    if !has_browser() {
        return;
    }
    let (listener, payload) = Listener::open(|address| {
        format!(
            "<script>hit=1;fetch('{address}/s')</script>\u{202e}gnp.exe<img src='{address}/i' onerror=\"hit=1\">\
             <svg onload=\"hit=1\"></svg><a href=\"javascript:hit=1\">j</a><iframe srcdoc=\"<script>parent.hit=1</script>\"></iframe>"
        )
    });
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground, &payload);
    let (web, mut facts) = served(&playground);
    facts["listener"] = json!(listener.address);
    facts["payload"] = json!(payload);
    // The page shows what the host shows: one line of `text::printable` has no line and no tab as they are.
    let unseen = ('\0'..=char::MAX).filter(|c| !matches!(c, '\t' | '\n'));
    let unseen = unseen.filter(|c| !toolhost::base::text::is_printable(&c.to_string()));
    facts["unseen"] = unseen.map(u32::from).collect();
    facts["label"] = json!(payload.chars().take(60).collect::<String>());
    let reason = json!({"why": payload.chars().take(200).collect::<String>()}).to_string();
    let ops = format!("Authorization: Bearer {}", facts["ops"].as_str().unwrap());
    let path = "/v1/tools/esc:wants/disable";
    web.ask("POST", path, &[&ops], &reason).is(200, "none");
    drive("hostile", &facts);
    let requested = listener.requested();
    let bare = requested.iter().position(|path| path == "/bare");
    // Nothing came before the control, in which the same text makes requests.
    assert_eq!(bare, Some(0), "{requested:?}");
    for path in ["/s", "/i"] {
        wait_for("the control asks", || {
            listener.requested().iter().any(|it| it == path)
        });
    }
}
