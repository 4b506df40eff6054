//! A header that the relay adds: the host gets it, and the tool never does.

use super::{World, allow, in_both_worlds};
use crate::harness::{Ended, finish, fits, repository};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const KEY: &str = "s3cret/Key+with=signs-0123456789";

/// Sends one request with these headers; answers with the status and the body, as text.
const ASK: &str = "import json,sys,http.client\ng=json.load(sys.stdin)\n\
    kind=http.client.HTTPSConnection if g.get('tls') else http.client.HTTPConnection\n\
    try:\n c=kind('api.example.com',timeout=8)\n c.request(g.get('method','GET'),g['path'],g.get('body'),g.get('headers',{}))\n \
    r=c.getresponse()\n print(json.dumps({'status':r.status,'body':r.read().decode(),'headers':dict(r.getheaders())}))\n\
    except (OSError,http.client.HTTPException) as e: print(json.dumps({'status':0,'body':type(e).__name__+str(getattr(e,'partial',''))}))\n";

/// What the key is good for.
const LIMITS: &str = ", methods = [\"GET\", \"POST\"], paths = [\"/v1/**\", \"/redirect\"], query = [\"page\", \"to\"], \
                      request_headers = [\"api-version\"]";

fn tool(world: &World, value: &str) {
    tool_with(world, value, LIMITS);
}

fn tool_with(world: &World, value: &str, limits: &str) {
    let folder = world.playground.path("sandbox-policies");
    fs::write(folder.join("api.key"), format!("{value}\n")).unwrap();
    let header =
        format!("header = {{ host = \"api.example.com\", name = \"Authorization\", value = \"Bearer {{}}\"{limits} }}");
    let rest =
        format!("[secrets]\ngrant = [{{ name = \"API_KEY\", from = \"file:api.key\", why = \"a test\", {header} }}]\n");
    let more = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com", "other.example.com"]},
        "requiredCapabilities": ["secret:API_KEY"]}});
    let hosts = format!("{}, {}", allow("api.example.com"), allow("other.example.com"));
    world.playground.tool("keyed", "python", ASK, more);
    let rest =
        format!("{rest}\n[files]\nread = [{{ path = \"./**\", why = \"a test\" }}]\n[network]\nhosts = [{hosts}]\n");
    world.playground.policy("keyed", "esc:keyed", &rest);
    world.playground.settle();
    fs::set_permissions(folder.join("api.key"), fs::Permissions::from_mode(0o600)).unwrap();
}

fn ask(world: &World, input: &Value) -> Ended {
    let ended = world.call("esc:keyed", input);
    fits("ok", &ended).unwrap_or_else(|e| panic!("{input}: {e}"));
    let state = walkdir::WalkDir::new(world.playground.path("state")).into_iter().flatten();
    for file in state.filter(|entry| entry.file_type().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(file.path()).unwrap()).into_owned();
        assert!(!text.contains("Key+with"), "{input}: {} holds the secret", file.path().display());
    }
    let said = format!("{} {}", String::from_utf8_lossy(&ended.stdout), ended.stderr);
    assert!(!said.contains("Key+with"), "{input}: {said}");
    ended
}

fn status(ended: &Ended) -> u64 {
    ended.out["outputData"]["status"].as_u64().unwrap()
}

#[test]
fn the_host_gets_the_header_and_the_tool_never_does() {
    in_both_worlds("header secrets", |world| {
        tool(world, KEY);
        let mut ended = None;
        let heard = world.heard(|| ended = Some(ask(world, &json!({"path": "/v1/now"}))));
        let ended = ended.unwrap();
        assert_eq!(status(&ended), 200, "{}", ended.out["outputData"]);
        assert!(heard.iter().any(|line| line.starts_with("https 45.20.0.1 GET /v1/now")), "over TLS: {heard:?}");
        // The host echoes all headers: what came is masked on its way back, at equal length.
        let body: Value = serde_json::from_str(ended.out["outputData"]["body"].as_str().unwrap()).unwrap();
        let came = body["headers"]["authorization"].as_str().unwrap();
        assert_eq!(came, format!("Bearer {}", "*".repeat(KEY.len())));

        let own = ask(world, &json!({"path": "/v1/now", "headers": {"authorization": "Bearer mine"}}));
        let body = own.out["outputData"]["body"].as_str().unwrap();
        assert!(status(&own) == 200 && body.matches("uthorization: ").count() == 1 && !body.contains("mine"), "{body}");

        // Rotated: the next call has the new one.
        tool(world, "another-Key+with-0123");
        let came = ask(world, &json!({"path": "/v1/now"}));
        assert!(came.out["outputData"]["body"].as_str().unwrap().contains(&"*".repeat("another-Key+with-0123".len())));
    });
}

#[test]
fn the_header_goes_where_its_rule_says_and_nowhere_else() {
    in_both_worlds("rules of headers", |world| {
        tool(world, KEY);
        let headers = |name: &str| json!({"path": "/v1/now", "headers": {name: "DELETE"}});
        // (what, request, what the denial names)
        let by_rule = [
            ("another method", json!({"path": "/v1/now", "method": "PUT"}), "PUT /v1/now"),
            ("a field of the query", json!({"path": "/v1/now?page=2&method=DELETE"}), "`method`"),
            ("an encoded field", json!({"path": "/v1/now?%5fmethod=DELETE"}), "`_method`"),
            ("a field after `;`", json!({"path": "/v1/now?page=2;_method=DELETE"}), "`_method`"),
            ("a path in a header", headers("X-Original-Path"), "`x-original-path`"),
            ("a method in a header", headers("X-HTTP-Method-Override"), "`x-http-method-override`"),
            ("a host in a header", headers("X-Forwarded-Host"), "`x-forwarded-host`"),
            ("dots and a space", json!({"path": "/v1/..%20/x"}), "a path to a host"),
            ("encoded twice", json!({"path": "/v1/%252e%252e/x"}), "a path to a host"),
            ("an encoded slash in a name", json!({"path": "/v1/projects/group%2Fname"}), "a path to a host"),
        ];
        for (what, input, named) in &by_rule {
            let mut ended = None;
            let heard = world.heard(|| ended = Some(ask(world, input)));
            let ended = ended.unwrap();
            assert_eq!((status(&ended), heard), (403, Vec::new()), "{what}");
            let denied = &ended.out["denials"]["observed"][0];
            assert!(denied["rule"].as_str().unwrap().contains(named), "{what}: {denied}");
        }
        let good = json!({"path": "/v1/%6eow?page=2&%70age=3", "headers": {"Api-Version": "1", "If-None-Match": "x"}});
        assert_eq!(status(&ask(world, &good)), 200);
        let refused = [
            ("another path", json!({"path": "/v2/now"})),
            ("dots", json!({"path": "/v1/../v2/now"})),
            ("encoded dots", json!({"path": "/v1/%2e%2e/v2/now"})),
            ("encoded slash", json!({"path": "/v1/..%2fv2"})),
            ("backslash", json!({"path": "/v1/..\\v2"})),
            ("two slashes", json!({"path": "//v1/now"})),
            ("TRACE", json!({"path": "/v1/now", "method": "TRACE"})),
            ("upgrade", json!({"path": "/v1/now", "headers": {"Connection": "Upgrade", "Upgrade": "websocket"}})),
            ("its name in Connection", json!({"path": "/v1/now", "headers": {"Connection": "Authorization"}})),
        ];
        for (what, input) in refused {
            let mut ended = None;
            let heard = world.heard(|| ended = Some(ask(world, &input)));
            let ended = ended.unwrap();
            assert!((400..500).contains(&status(&ended)), "{what}: {}", ended.out["outputData"]);
            assert_eq!(heard, Vec::<String>::new(), "{what}");
            assert!(
                !ended.out["denials"]["observed"].as_array().unwrap().is_empty(),
                "{what}: {}",
                ended.out["network"]
            );
        }
        let own = ask(world, &json!({"path": "/v1/now", "tls": true}));
        assert_eq!(status(&own), 0, "its own TLS to that name: {}", own.out["outputData"]);
        assert!(own.out["network"].to_string().contains("http://api.example.com"), "{}", own.out["network"]);
        let away = ask(world, &json!({"path": "/redirect?to=https://other.example.com/"}));
        let to = &away.out["outputData"]["headers"]["location"];
        assert_eq!((status(&away), to), (302, &json!("https://other.example.com/")), "{}", away.out["outputData"]);
        let back = ask(world, &json!({"path": "/redirect?to=https://api.example.com/v1/now"}));
        assert_eq!(back.out["outputData"]["headers"]["location"], "http://api.example.com/v1/now");
        // The control: without methods and paths each of them reaches the host, and without paths each path.
        tool_with(world, KEY, "");
        for (what, input, _) in &by_rule {
            assert_eq!(status(&ask(world, input)), 200, "{what}");
        }
        tool_with(world, KEY, ", methods = [\"GET\"], query = []");
        for (path, answer) in [("group%2Fname", 200), ("..%20/x", 200), ("a%3f_method=DELETE", 403), ("a%253fb", 403)] {
            assert_eq!(status(&ask(world, &json!({"path": format!("/v1/{path}")}))), answer, "{path}");
        }
    });
}

/// Two requests, one after the other, over one connection where that is possible: the first with a body.
const SMUGGLE: &str = "import json,socket,ssl,sys\ng=json.load(sys.stdin)\n\
    def to():\n s=socket.create_connection(('api.example.com',g['port']),8)\n \
    if g['port']==443: s=ssl.create_default_context().wrap_socket(s,server_hostname='api.example.com')\n s.settimeout(8)\n return s\n\
    out=[]\ns=to()\nfor text in g['requests']:\n \
    for turn in (1,2):\n  try:\n   s.sendall(text.encode()); b=s.recv(65536)\n   if b: break\n  except OSError: pass\n  s=to()\n \
    out.append(b.decode('latin1')[:12])\nprint(json.dumps(out))\n";

#[test]
fn a_body_that_a_host_overlooks_is_no_request_with_the_secret() {
    in_both_worlds("smuggled requests", |world| {
        tool(world, KEY);
        let more = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]},
            "requiredCapabilities": ["secret:API_KEY"]}});
        let policy = world.playground.path("sandbox-policies/keyed.policy.toml");
        let text = fs::read_to_string(&policy).unwrap().replace("\"esc:keyed\"", "\"esc:keyed\", \"esc:smuggle\"");
        fs::write(&policy, text).unwrap();
        world.playground.tool("smuggle", "python", SMUGGLE, more);
        world.playground.settle();
        fs::set_permissions(world.playground.path("sandbox-policies/api.key"), fs::Permissions::from_mode(0o600))
            .unwrap();
        let hidden = "GET /admin HTTP/1.1\r\nX: ";
        let request = |method: &str, key: &str| {
            let head = format!("{method} /v1/overlooks HTTP/1.1\r\nHost: api.example.com\r\n{key}");
            format!("{head}Content-Length: {}\r\n\r\n{hidden}", hidden.len())
        };
        let next = |key: &str| format!("GET /v1/now HTTP/1.1\r\nHost: api.example.com\r\n{key}\r\n");
        let admin =
            |heard: &[String]| heard.iter().filter(|line| line.contains(" GET /admin")).cloned().collect::<Vec<_>>();
        for (method, first) in [("GET", "HTTP/1.1 400"), ("DELETE", "HTTP/1.1 400"), ("POST", "HTTP/1.1 200")] {
            let mut ended = None;
            let input = json!({"port": 80, "requests": [request(method, ""), next("")]});
            let heard = world.heard(|| ended = Some(world.call("esc:smuggle", &input)));
            let ended = ended.unwrap();
            fits("ok", &ended).unwrap();
            assert_eq!(ended.out["outputData"], json!([first, "HTTP/1.1 200"]), "{method}: {heard:?}");
            assert!(admin(&heard).iter().all(|line| !line.contains("the key")), "{method}: {heard:?}");
            if method != "POST" {
                assert_eq!(admin(&heard), Vec::<String>::new(), "{method}");
                let denied = ended.out["denials"].to_string();
                assert!(denied.contains(&format!("{method} with a body is refused")), "{denied}");
            }
        }
        // The control: over one connection the host takes the body and the next request for one with the key.
        let key = format!("Authorization: Bearer {KEY}\r\n");
        let input = json!({"port": 443, "requests": [request("GET", &key), next(&key)]});
        let mut python = world.inside("/usr/bin/python3");
        python.args(["-c", SMUGGLE]);
        let heard = world.heard(|| assert_eq!(finish(python, input.to_string().as_bytes()).code, Some(0)));
        assert!(admin(&heard).iter().any(|line| line.contains("with the key")), "{heard:?}");
    });
}

#[test]
fn a_host_with_a_private_authority_is_trusted_by_its_certificate_alone() {
    in_both_worlds("private authorities", |world| {
        let policies = world.playground.path("sandbox-policies");
        let private = fs::read_to_string(world.playground.path("world/private-ca.pem")).unwrap();
        // The policy with `ca` beside the host, and the host's port.
        let put = |port: u16, ca: &str, mode: u32| {
            tool(world, KEY);
            fs::write(policies.join("corp.pem"), &private).unwrap();
            let file = policies.join("keyed.policy.toml");
            let text = fs::read_to_string(&file).unwrap();
            let text = text.replace(
                "header = { host = \"api.example.com\"",
                &format!("header = {{ host = \"api.example.com:{port}\""),
            );
            let plain = allow("api.example.com");
            fs::write(&file, text.replace(&plain, &plain.replace(", why", &format!("{ca}, why")))).unwrap();
            world.playground.settle();
            fs::set_permissions(policies.join("api.key"), fs::Permissions::from_mode(0o600)).unwrap();
            fs::set_permissions(policies.join("corp.pem"), fs::Permissions::from_mode(mode)).unwrap();
        };
        let call = || world.call("esc:keyed", &json!({"path": "/v1/now"}));
        let ca = ", ca = \"corp.pem\"";
        put(9443, "", 0o644);
        let without = call();
        assert_eq!(status(&without), 502, "{}", without.out["outputData"]);
        assert!(
            without.out["network"].to_string().contains("no TLS with api.example.com"),
            "{}",
            without.out["network"]
        );
        // A host that does not speak TLS at that port never sees the key; the control sends it there in the clear.
        put(7080, "", 0o644);
        let heard = world.heard(|| assert_ne!(status(&call()), 200));
        assert!(heard.iter().all(|line| line.starts_with("dns ")), "{heard:?}");
        let mut curl = world.inside("/usr/bin/curl");
        curl.args(["-sS", "-H", &format!("Authorization: {KEY}"), "http://api.example.com:7080/v1/now"]);
        let heard = world.heard(|| assert_eq!(finish(curl, b"").code, Some(0)));
        assert!(heard.iter().any(|line| line.ends_with("with the key")), "{heard:?}");
        put(9443, ca, 0o644);
        assert_eq!(status(&ask(world, &json!({"path": "/v1/now"}))), 200);
        let audit = world.playground.cli(&["audit", "esc:keyed"]);
        assert!(audit.text().contains("corp.pem alone"), "{}", audit.text());
        // The machine's own authorities do not count beside it.
        put(443, ca, 0o644);
        assert_eq!(status(&call()), 502);
        put(443, "", 0o644);
        assert_eq!(status(&call()), 200);
        // Whoever may write the file says who is trusted.
        put(9443, ca, 0o666);
        fits("CapabilityError: chmod go-w", &call()).unwrap();
        put(9443, ", ca = \"api.key\"", 0o644);
        fits("CapabilityError: no certificate in PEM", &call()).unwrap();
        put(9443, ", ca = \"none.pem\"", 0o644);
        fits("CapabilityError: none.pem", &call()).unwrap();
        // An entry whose TLS is the tool's own has no use for one.
        tool_with(world, KEY, "");
        let file = policies.join("keyed.policy.toml");
        let text = fs::read_to_string(&file).unwrap();
        let other = allow("other.example.com");
        fs::write(&file, text.replace(&other, &other.replace(", why", ", ca = \"corp.pem\", why"))).unwrap();
        let check = world.playground.cli(&["check"]);
        assert!(check.text().contains("no [secrets] header goes to it"), "{}", check.text());
    });
}

#[test]
fn a_secret_that_cannot_be_had_refuses_the_call() {
    in_both_worlds("secrets that are not there", |world| {
        tool(world, KEY);
        let key = world.playground.path("sandbox-policies/api.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let ended = world.call("esc:keyed", &json!({"path": "/v1/now"}));
        fits("CapabilityError: chmod 600", &ended).unwrap();
        fs::remove_file(&key).unwrap();
        fits("CapabilityError: API_KEY", &world.call("esc:keyed", &json!({"path": "/v1/now"}))).unwrap();
    });
}

/// The blocks of a document, each with its kind.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect()
}

#[test]
fn the_page_about_keys_can_be_followed() {
    in_both_worlds("docs/API-KEY.md", |world| {
        let page = fs::read_to_string(repository("docs/API-KEY.md")).unwrap();
        let mut shell = world.playground.outside("/bin/sh");
        let commands = blocks(&page).into_iter().find(|(kind, _)| *kind == "sh").unwrap().1;
        shell.args(["-euc", commands]);
        let ended = finish(shell, b"");
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let files = [("python", "rates.py"), ("json", "rates.tool.json"), ("toml", "rates.policy.toml")];
        for (kind, name) in files {
            let text = blocks(&page).into_iter().find(|block| block.0 == kind).unwrap().1;
            let folder = if kind == "toml" { "sandbox-policies" } else { "user_scripts/rates" };
            fs::write(world.playground.path(folder).join(name), text).unwrap();
        }
        world.playground.settle();
        let key = world.playground.path("sandbox-policies/rates.key");
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        let check = world.playground.cli(&["check"]);
        assert!(check.text().contains("0 error(s)") && !check.text().contains("warning["), "{}", check.text());
        let audit = world.playground.cli(&["audit", "shop:rates"]);
        assert!(audit.text().contains("RATES_KEY: header authorization"), "{}", audit.text());
        let who = world.playground.cli(&["audit", "--who-can", "secret:RATES_KEY"]);
        assert!(who.text().contains("shop:rates"), "{}", who.text());
        let ended = world.call("shop:rates", &json!({"currency": "NOK"}));
        fits("ok", &ended).unwrap();
        let came = &ended.out["outputData"]["headers"]["authorization"];
        assert_eq!(*came, format!("Bearer {}", "*".repeat("paste-the-key-here".len())), "{}", ended.out["outputData"]);
    });
}

/// Tells backwards what it heard, so that no mask but the relay's finds anything in it.
const HEARS: &str = "\nimport http.client\nc = http.client.HTTPConnection('api.example.com', timeout=8)\n\
    c.request('GET', '/v1/dressed')\nr = c.getresponse()\nbody = r.read().decode().split('\\0')\n\
    heads = [[n, t[::-1]] for n, t in r.getheaders() if n.startswith('X-O')]\n\
    others = dressed(another('KEY'))\n\
    print(json.dumps({'body': [t[::-1] for t in body], 'heads': heads, 'others': {n: t[::-1] for n, t in others.items()},\n  \
    'lengths': {n: len(t) for n, t in dressed('KEY').items()}}))\n";

#[test]
fn no_dress_of_the_secret_comes_back_from_the_host() {
    in_both_worlds("dressed secrets of a host", |world| {
        tool(world, KEY);
        let script = format!("{}{}", include_str!("dressed.py"), HEARS.replace("KEY", KEY));
        fs::write(world.playground.path("user_scripts/keyed/main.py"), script).unwrap();
        world.playground.settle();
        fs::set_permissions(world.playground.path("sandbox-policies/api.key"), fs::Permissions::from_mode(0o600))
            .unwrap();
        let ended = ask(world, &json!({}));
        let told = &ended.out["outputData"];
        let forward = |text: &Value| text.as_str().unwrap().chars().rev().collect::<String>();
        let body: Vec<String> = told["body"].as_array().unwrap().iter().map(forward).collect();
        assert!(body.len() > 40, "{body:?}");
        for form in body.chunks(3) {
            let [name, own, other] = form else { panic!("{form:?}") };
            assert_eq!(*other, forward(&told["others"][name]), "the control: {name}");
            // Of base64 what belongs to the text around the secret stays.
            let stars = own.matches('*').count();
            assert!(stars >= if name.contains("base64") { KEY.len() } else { own.len() }, "{name}: {own}");
            assert_eq!(told["lengths"][name], own.len(), "{name}: {own}");
        }
        for head in told["heads"].as_array().unwrap() {
            let (name, text) = (head[0].as_str().unwrap(), forward(&head[1]));
            assert_eq!(text.matches('*').count() >= KEY.len(), name.starts_with("X-Own"), "{name}: {text}");
        }
    });
}

/// Reads until an event has come, for 3 s at most; tells it backwards.
const LISTENS: &str = "import json,sys,http.client\nc=http.client.HTTPConnection('api.example.com',timeout=3)\n\
    c.request('GET',json.load(sys.stdin)['path'])\nr=c.getresponse(); b=b''\n\
    try:\n while not b.endswith(b'.\\n\\n') and (d:=r.read1(4096)): b+=d\nexcept OSError: pass\n\
    print(json.dumps({'got': b.decode()[::-1]}))\n";

#[test]
fn an_event_comes_before_the_next_and_holds_no_secret() {
    in_both_worlds("events of a host", |world| {
        tool(world, KEY);
        fs::write(world.playground.path("user_scripts/keyed/main.py"), LISTENS).unwrap();
        world.playground.settle();
        fs::set_permissions(world.playground.path("sandbox-policies/api.key"), fs::Permissions::from_mode(0o600))
            .unwrap();
        let got = |body: &str| {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body}");
            let hex: String = answer.bytes().map(|b| format!("{b:02x}")).collect();
            let got = ask(world, &json!({"path": format!("/v1/waits?page={hex}")})).out["outputData"]["got"].clone();
            got.as_str().unwrap().chars().rev().collect::<String>()
        };
        let stars = "*".repeat(KEY.len());
        for event in ["event: a\ndata: {KEY} and.\n\n", "data: {KEY}\r\n\r\ndata: {KEY}\r\n.\n\n"] {
            assert_eq!(got(event), event.replace("{KEY}", &stars));
        }
        // The control: without an empty line what is read last stays back.
        assert_eq!(got("event: a\ndata: {KEY} and.\n"), "");
    });
}

#[test]
fn an_answer_is_searched_whole_or_refused() {
    in_both_worlds("answers that hold the secret", |world| {
        tool(world, KEY);
        let said = |answer: &str| {
            let hex: String = answer.bytes().map(|b| format!("{b:02x}")).collect();
            ask(world, &json!({"path": format!("/v1/says?page={hex}")})).out["outputData"].clone()
        };
        let stars = "*".repeat(KEY.len());
        let head = "X-Echo: Bearer {KEY}\r\nX-s3cret%2Fkey%2bwith%3dsigns-0123456789: 2\r\nContent-Encoding: Identity\r\nContent-Type: text/html;charset=\"iso-8859-1\"";
        let body = format!("<{KEY}> end");
        let chunks: String = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
        let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        let whole = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        for rest in [chunked, whole] {
            let got = said(&format!("HTTP/1.1 200 {{KEY}}\r\n{head}\r\n{rest}"));
            assert_eq!(got["body"], format!("<{stars}> end"), "{got}");
            assert_eq!(got["headers"]["x-echo"], format!("Bearer {stars}"), "{got}");
            assert!(!got["headers"].to_string().contains("s3cret"), "{got}");
        }
        // Links to the host lead back through the relay, and no others.
        let two = |scheme: &str| format!("<{scheme}://api.example.com/2>; rel=next, <{scheme}://api.example.com/3>");
        for (link, shown) in [
            (two("https"), two("http")),
            ("https://api.example.com/x?y#z".into(), "http://api.example.com/x?y#z".into()),
            ("https://api.example.com.evil.example/".into(), "https://api.example.com.evil.example/".into()),
            ("https://api.example.com@evil.example/".into(), "https://api.example.com@evil.example/".into()),
            (
                "https://b.example/?to=https://api.example.com/".into(),
                "https://b.example/?to=https://api.example.com/".into(),
            ),
        ] {
            let got = said(&format!("HTTP/1.1 200 OK\r\nLink: {link}\r\nKeep-Alive: x\r\nContent-Length: 0\r\n\r\n"));
            assert_eq!(
                (&got["headers"]["link"], &got["headers"]["keep-alive"]),
                (&json!(shown), &Value::Null),
                "{got}"
            );
        }
        let got = said("HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n{LONG}");
        assert_eq!(got["body"].as_str().unwrap(), "0123456789".repeat(40_000), "passes whole");
        // An answer that ends too early shows no part of the secret.
        let got = said(&format!("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", &KEY[..12]));
        assert!(got["status"] == 0 && !got.to_string().contains("s3"), "{got}");
        for (answer, why) in [
            ("200 OK\r\nContent-Encoding: gzip", "compressed"),
            ("200 OK\r\nTransfer-Encoding: gzip, chunked", "compressed"),
            ("200 OK\r\nContent-Type: text/html; charset = utf-16", "encoding without"),
            ("200 OK\r\nContent-Type: multipart/byteranges; boundary=x", "a part"),
            ("206 Partial Content\r\nContent-Range: bytes 0-1/9", "a part"),
            ("101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket", "a switched"),
        ] {
            let length = if answer.contains("chunked") {
                "X: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n"
            } else {
                "Content-Length: 2\r\n\r\nok"
            };
            let got = said(&format!("HTTP/1.1 {answer}\r\n{length}"));
            assert!(got["status"] == 502 && got["body"].as_str().unwrap().contains(why), "{answer}: {got}");
        }
    });
}
