//! A header that the relay adds: the host gets it, and the tool never does.

use super::{World, allow, in_both_worlds, in_our_world};
use crate::http::private;
use crate::prelude::*;

const KEY: &str = "s3cret/Key+with=signs-0123456789";

const SCRIPT: &str = include_str!("secrets.py");
/// What the key is good for.
const LIMITS: &str = ", methods = [\"GET\", \"POST\"], paths = [\"/v1/**\", \"/redirect\"], \
                      query = [\"page\", \"to\"], request_headers = [\"api-version\"]";

fn tool(world: &World, limits: &str) {
    tool_of(world, SCRIPT, limits);
}

fn tool_of(world: &World, script: &str, limits: &str) {
    let header = format!(
        "header = {{ host = \"api.example.com\", name = \"Authorization\", value = \"Bearer \
        {{}}\"{limits} }}"
    );
    let secrets = format!(
        "[secrets]\ngrant = [{{ name = \"API_KEY\", from = \"file:api.key\", why = \"a test\", \
        {header} }}]"
    );
    let hosts = ["api.example.com", "other.example.com"];
    let more = json!({"securityContext": {"networkAccess": {"allowHosts": hosts},
        "requiredCapabilities": ["secret:API_KEY"]}});
    world.playground.tool("keyed", "python", script, more);
    let files = "[limits]\ntimeout_ms = 110_000\n\
        [files]\nread = [{ path = \"./**\", why = \"a test\" }]";
    let policy = format!(
        "{secrets}\n{files}\n[network]\nhosts = [{}]\n",
        hosts.map(allow).join(", ")
    );
    world.playground.policy("keyed", "esc:keyed", &policy);
    world.playground.settle();
    key(world, KEY);
}

/// The file of the secret, which nobody else reads.
fn key(world: &World, value: &str) {
    private(
        &world.playground,
        "sandbox-policies/api.key",
        &format!("{value}\n"),
    );
}

/// The answers to requests; the secret is in nothing that is printed or kept.
fn ask_all(world: &World, requests: &[Value]) -> (Vec<Value>, Ended) {
    let ended = world.call("esc:keyed", &json!({ "requests": requests }));
    fits("ok", &ended).unwrap_or_else(|e| panic!("{requests:?}: {e}"));
    holds_no_secret(world, &ended);
    (ended.out["outputData"].as_array().unwrap().clone(), ended)
}

/// Neither what a call printed nor what is kept of it.
fn holds_no_secret(world: &World, ended: &Ended) {
    let state = walkdir::WalkDir::new(world.playground.path("state"))
        .into_iter()
        .flatten();
    for file in state.filter(|entry| entry.file_type().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(file.path()).unwrap()).into_owned();
        assert!(
            !text.contains("Key+with"),
            "{} holds the secret",
            file.path().display()
        );
    }
    let said = format!(
        "{} {}",
        String::from_utf8_lossy(&ended.stdout),
        ended.stderr
    );
    assert!(!said.contains("Key+with"), "{said}");
}

fn ask(world: &World, request: Value) -> Value {
    ask_all(world, &[request]).0.remove(0)
}

fn now() -> Value {
    json!({"path": "/v1/now"})
}

#[test]
fn the_host_gets_the_header_and_the_tool_never_does() {
    in_both_worlds("header secrets", |world| {
        tool(world, LIMITS);
        let (answer, heard) = world.watched(|| ask(world, now()));
        assert_eq!(answer["status"], 200, "{answer}");
        assert!(
            heard
                .iter()
                .any(|line| line.starts_with("https 45.20.0.1 GET /v1/now")),
            "over TLS: {heard:?}"
        );
        // The host echoes all headers: what came is masked on its way back, at equal length.
        let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
        assert_eq!(
            body["headers"]["authorization"],
            format!("Bearer {}", "*".repeat(KEY.len()))
        );

        let own = ask(
            world,
            json!({"path": "/v1/now", "headers": {"authorization": "Bearer mine"}}),
        );
        let body = own["body"].as_str().unwrap();
        assert!(
            own["status"] == 200
                && body.matches("uthorization: ").count() == 1
                && !body.contains("mine"),
            "{own}"
        );

        // Rotated: the next call has the new one.
        key(world, "another-Key+with-0123");
        let came = ask(world, now());
        assert!(
            came["body"]
                .as_str()
                .unwrap()
                .contains(&"*".repeat("another-Key+with-0123".len()))
        );

        // A secret that cannot be read refuses the call.
        let file = world.playground.path("sandbox-policies/api.key");
        let refused =
            |why: &str| fits(why, &world.call("esc:keyed", &json!({"requests": []}))).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        refused("CapabilityError: chmod 600");
        fs::remove_file(&file).unwrap();
        refused("CapabilityError: API_KEY");
    });
}

#[test]
fn the_header_goes_where_its_rule_says_and_nowhere_else() {
    let headers = |name: &str| json!({"path": "/v1/now", "headers": {name: "DELETE"}});
    let path = |path: &str| json!({ "path": path });
    let websocket =
        json!({"path": "/v1/now", "headers": {"Connection": "Upgrade", "Upgrade": "websocket"}});
    // What is asked, and what the denial names. Without methods and paths the first ten reach the
    // host.
    let by_rule = [
        (
            "another method",
            json!({"path": "/v1/now", "method": "PUT"}),
            "PUT /v1/now",
        ),
        (
            "a field of the query",
            path("/v1/now?page=2&method=DELETE"),
            "`method`",
        ),
        (
            "an encoded field",
            path("/v1/now?%5fmethod=DELETE"),
            "`_method`",
        ),
        (
            "a field after `;`",
            path("/v1/now?page=2;_method=DELETE"),
            "`_method`",
        ),
        (
            "a path in a header",
            headers("X-Original-Path"),
            "`x-original-path`",
        ),
        (
            "a method in a header",
            headers("X-HTTP-Method-Override"),
            "`x-http-method-override`",
        ),
        (
            "a host in a header",
            headers("X-Forwarded-Host"),
            "`x-forwarded-host`",
        ),
        (
            "dots and a space",
            path("/v1/..%20/x"),
            "limits this secret by `paths`",
        ),
        (
            "encoded twice",
            path("/v1/%252e%252e/x"),
            "limits this secret by `paths`",
        ),
        (
            "an encoded slash in a name",
            path("/v1/projects/group%2Fname"),
            "limits this secret by `paths`",
        ),
        ("another path", path("/v2/now"), "GET /v2/now is not among"),
        (
            "dots",
            path("/v1/../v2/now"),
            "limits this secret by `paths`",
        ),
        (
            "encoded dots",
            path("/v1/%2e%2e/v2/now"),
            "limits this secret by `paths`",
        ),
        (
            "encoded slash",
            path("/v1/..%2fv2"),
            "limits this secret by `paths`",
        ),
        (
            "backslash",
            path("/v1/..\\v2"),
            "limits this secret by `paths`",
        ),
        (
            "two slashes",
            path("//v1/now"),
            "limits this secret by `paths`",
        ),
        (
            "TRACE",
            json!({"path": "/v1/now", "method": "TRACE"}),
            "TRACE is refused",
        ),
        ("upgrade", websocket, "switches to no other protocol"),
        (
            "its name in Connection",
            json!({"path": "/v1/now", "headers": {"Connection": "Authorization"}}),
            "the Connection header names",
        ),
    ];
    in_both_worlds("rules of headers", |world| {
        tool(world, LIMITS);
        let requests = by_rule.each_ref().map(|row| row.1.clone());
        let ((answers, ended), heard) = world.watched(|| ask_all(world, &requests));
        assert_eq!(heard, Vec::<String>::new());
        assert_eq!(answers.len(), by_rule.len());
        for ((what, _, named), answer) in by_rule.iter().zip(answers) {
            assert_eq!(answer["status"], 403, "{what}: {answer}");
            assert!(
                answer["body"].as_str().unwrap().contains(named),
                "{what}: {answer}"
            );
        }
        let totals = &ended.out["network"]["totals"];
        assert_eq!(
            totals["requestsRefused"],
            by_rule.len(),
            "each is reported: {totals}"
        );
        let denied = ended.out["denials"]["observed"].to_string();
        assert!(
            by_rule[..10].iter().all(|row| denied.contains(row.2)),
            "{denied}"
        );

        let good = json!({"path": "/v1/%6eow?page=2&%70age=3", "headers": {"Api-Version": "1", "If-None-Match": "x"}});
        let own_tls = json!({"path": "/v1/now", "tls": true});
        let to = |host: &str| json!({"path": format!("/redirect?to=https://{host}/v1/now")});
        let (answers, ended) = ask_all(
            world,
            &[
                good,
                own_tls,
                to("other.example.com"),
                to("api.example.com"),
            ],
        );
        let statuses = [200, 0, 302, 302].map(|status| json!(status));
        assert_eq!(
            answers
                .iter()
                .map(|answer| answer["status"].clone())
                .collect::<Vec<_>>(),
            statuses
        );
        assert!(
            ended.out["network"]
                .to_string()
                .contains("http://api.example.com"),
            "{}",
            ended.out["network"]
        );
        let location = |answer: &Value| answer["headers"]["location"].clone();
        assert_eq!(location(&answers[2]), "https://other.example.com/v1/now");
        assert_eq!(
            location(&answers[3]),
            "http://api.example.com/v1/now",
            "back through the relay"
        );
        // The control: without methods and paths each of them reaches the host.
        tool(world, "");
        let (answers, _) = ask_all(world, &requests[..10]);
        assert!(
            answers.iter().all(|answer| answer["status"] == 200),
            "{answers:?}"
        );
        // Without paths each path does, and a query stays a query.
        tool(world, ", methods = [\"GET\"], query = []");
        let paths = ["group%2Fname", "..%20/x", "a%3f_method=DELETE", "a%253fb"]
            .map(|path| json!({"path": format!("/v1/{path}")}));
        let statuses = ask_all(world, &paths)
            .0
            .iter()
            .map(|answer| answer["status"].clone())
            .collect::<Vec<_>>();
        assert_eq!(statuses, [200, 200, 403, 403].map(|status| json!(status)));
    });
}

#[test]
fn a_body_that_a_host_overlooks_is_no_request_with_the_secret() {
    in_both_worlds("smuggled requests", |world| {
        tool(world, LIMITS);
        let hidden = "GET /admin HTTP/1.1\r\nX: ";
        let request = |method: &str, key: &str| {
            let head = format!("{method} /v1/overlooks HTTP/1.1\r\nHost: api.example.com\r\n{key}");
            format!("{head}Content-Length: {}\r\n\r\n{hidden}", hidden.len())
        };
        let next =
            |key: &str| format!("GET /v1/now HTTP/1.1\r\nHost: api.example.com\r\n{key}\r\n");
        let admin = |heard: &[String]| {
            heard
                .iter()
                .filter(|line| line.contains(" GET /admin"))
                .cloned()
                .collect::<Vec<_>>()
        };
        for (method, first) in [
            ("GET", "HTTP/1.1 400"),
            ("DELETE", "HTTP/1.1 400"),
            ("POST", "HTTP/1.1 200"),
        ] {
            let input = json!({"port": 80, "pair": [request(method, ""), next("")]});
            let (ended, heard) = world.called("esc:keyed", &input);
            fits("ok", &ended).unwrap();
            assert_eq!(
                ended.out["outputData"],
                json!([first, "HTTP/1.1 200"]),
                "{method}: {heard:?}"
            );
            assert!(
                admin(&heard).iter().all(|line| !line.contains("the key")),
                "{method}: {heard:?}"
            );
            if method != "POST" {
                assert_eq!(admin(&heard), Vec::<String>::new(), "{method}");
                let denied = ended.out["denials"].to_string();
                assert!(
                    denied.contains(&format!("{method} with a body is refused")),
                    "{denied}"
                );
            }
        }
        // The control: over one connection the host takes the body and the next request for one
        // with the key.
        let key = format!("Authorization: Bearer {KEY}\r\n");
        let input = json!({"port": 443, "pair": [request("GET", &key), next(&key)]});
        let mut python = world.inside("/usr/bin/python3");
        python.args(["-c", SCRIPT]);
        let heard =
            world.heard(|| assert_eq!(finish(python, input.to_string().as_bytes()).code, Some(0)));
        assert!(
            admin(&heard)
                .iter()
                .any(|line| line.contains("with the key")),
            "{heard:?}"
        );
    });
}

#[test]
fn a_host_with_a_private_authority_is_trusted_by_its_certificate_alone() {
    in_our_world(|world| {
        let policies = world.playground.path("sandbox-policies");
        let corp = fs::read_to_string(world.playground.path("world/private-ca.pem")).unwrap();
        // The policy with `ca` beside the host, and the host's port.
        let put = |port: u16, ca: &str| {
            tool(world, LIMITS);
            let file = policies.join("keyed.policy.toml");
            let header = "header = { host = \"api.example.com";
            let text = fs::read_to_string(&file)
                .unwrap()
                .replace(header, &format!("{header}:{port}"));
            let plain = allow("api.example.com");
            fs::write(
                &file,
                text.replace(&plain, &plain.replace(", why", &format!("{ca}, why"))),
            )
            .unwrap();
            private(&world.playground, "sandbox-policies/corp.pem", &corp);
        };
        let call = || world.call("esc:keyed", &json!({"requests": [now()]}));
        let status = |ended: &Ended| ended.out["outputData"][0]["status"].clone();
        let ca = ", ca = \"corp.pem\"";
        put(9443, "");
        let without = call();
        assert_eq!(status(&without), 502, "{without:?}");
        assert!(
            without.out["network"]
                .to_string()
                .contains("no TLS with api.example.com"),
            "{without:?}"
        );
        // A host that does not speak TLS at that port never sees the key; the control sends it
        // there in the clear.
        put(7080, "");
        let (ended, heard) = world.watched(call);
        assert_ne!(status(&ended), 200);
        assert!(
            heard.iter().all(|line| line.starts_with("dns ")),
            "{heard:?}"
        );
        let mut curl = world.inside("/usr/bin/curl");
        curl.args([
            "-sS",
            "-H",
            &format!("Authorization: {KEY}"),
            "http://api.example.com:7080/v1/now",
        ]);
        let (ended, heard) = world.watched(|| finish(curl, b""));
        assert!(
            ended.code == Some(0) && heard.iter().any(|line| line.ends_with("with the key")),
            "{heard:?}"
        );
        put(9443, ca);
        assert_eq!(ask(world, now())["status"], 200);
        let audit = world.playground.cli(&["audit", "esc:keyed"]);
        assert!(audit.text().contains("corp.pem alone"), "{}", audit.text());
        // Whoever may write the file says who is trusted.
        fs::set_permissions(policies.join("corp.pem"), fs::Permissions::from_mode(0o666)).unwrap();
        fits("CapabilityError: chmod go-w", &call()).unwrap();
        // The machine's own authorities do not count beside it.
        put(443, ca);
        assert_eq!(status(&call()), 502);
        put(443, "");
        assert_eq!(status(&call()), 200);
        for (file, why) in [
            ("api.key", "no certificate in PEM"),
            ("none.pem", "none.pem"),
        ] {
            put(9443, &format!(", ca = \"{file}\""));
            fits(&format!("CapabilityError: {why}"), &call()).unwrap();
        }
    });
}

/// The blocks of a document, each with its kind.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    text.split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.split_once('\n'))
        .collect()
}

#[test]
fn the_page_about_keys_can_be_followed() {
    in_our_world(|world| {
        let page = section_of("docs/RECIPES.md", "A tool that calls an API with a key");
        let mut shell = world.playground.outside("/bin/sh");
        let commands = blocks(&page)
            .into_iter()
            .find(|(kind, _)| *kind == "sh")
            .unwrap()
            .1;
        shell.args(["-euc", commands]);
        let ended = finish(shell, b"");
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let files = [
            ("python", "rates.py"),
            ("json", "rates.tool.json"),
            ("toml", "rates.policy.toml"),
        ];
        for (kind, name) in files {
            let text = blocks(&page)
                .into_iter()
                .find(|block| block.0 == kind)
                .unwrap()
                .1;
            let folder = if kind == "toml" {
                "sandbox-policies"
            } else {
                "user_scripts/rates"
            };
            fs::write(world.playground.path(folder).join(name), text).unwrap();
        }
        world.playground.settle();
        let key = world.playground.path("sandbox-policies/rates.key");
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        let check = world.playground.cli(&["check"]);
        assert!(
            check.text().contains("0 error(s)") && !check.text().contains("warning["),
            "{}",
            check.text()
        );
        let audit = world.playground.cli(&["audit", "shop:rates"]);
        assert!(
            audit.text().contains("RATES_KEY: header authorization"),
            "{}",
            audit.text()
        );
        let who = world
            .playground
            .cli(&["audit", "--who-can", "secret:RATES_KEY"]);
        assert!(who.text().contains("shop:rates"), "{}", who.text());
        let ended = world.call("shop:rates", &json!({"currency": "NOK"}));
        fits("ok", &ended).unwrap();
        let came = &ended.out["outputData"]["headers"]["authorization"];
        assert_eq!(
            *came,
            format!("Bearer {}", "*".repeat("paste-the-key-here".len())),
            "{}",
            ended.out["outputData"]
        );
    });
}

/// Tells backwards what it heard, so that no mask but the relay's finds anything in it.
const HEARS: &str = "\nimport http.client\nc = http.client.HTTPConnection('api.example.com', \
    timeout=8)\nc.request('GET', '/v1/dressed')\nr = c.getresponse()\nbody = \
    r.read().decode().split('\\0')\nheads = [[n, t[::-1]] for n, t in r.getheaders() if \
    n.startswith('X-O')]\nothers = \
    {n: t[::-1] for n, t in dressed(another('KEY')).items()}\nprint(json.dumps({'body': [t[::-1] \
    for t in body], 'heads': heads, 'others': others,\n  'lengths': \
    {n: len(t) for n, t in dressed('KEY').items()}}))\n";

#[test]
fn no_dress_of_the_secret_comes_back_from_the_host() {
    in_both_worlds("dressed secrets of a host", |world| {
        let script = format!(
            "{}{}",
            include_str!("dressed.py"),
            HEARS.replace("KEY", KEY)
        );
        tool_of(world, &script, LIMITS);
        let ended = world.call("esc:keyed", &json!({}));
        fits("ok", &ended).unwrap();
        holds_no_secret(world, &ended);
        let told = &ended.out["outputData"];
        let forward = |text: &Value| text.as_str().unwrap().chars().rev().collect::<String>();
        let body: Vec<String> = told["body"]
            .as_array()
            .unwrap()
            .iter()
            .map(forward)
            .collect();
        assert!(body.len() > 40, "{body:?}");
        for form in body.chunks(3) {
            let [name, own, other] = form else {
                panic!("{form:?}")
            };
            assert_eq!(
                *other,
                forward(&told["others"][name]),
                "the control: {name}"
            );
            // Of base64 what belongs to the text around the secret stays.
            let stars = own.matches('*').count();
            assert!(
                stars
                    >= if name.contains("base64") {
                        KEY.len()
                    } else {
                        own.len()
                    },
                "{name}: {own}"
            );
            assert_eq!(told["lengths"][name], own.len(), "{name}: {own}");
        }
        for head in told["heads"].as_array().unwrap() {
            let (name, text) = (head[0].as_str().unwrap(), forward(&head[1]));
            assert_eq!(
                text.matches('*').count() >= KEY.len(),
                name.starts_with("X-Own"),
                "{name}: {text}"
            );
        }
    });
}

#[test]
fn an_answer_is_searched_whole_or_event_by_event_or_refused() {
    in_both_worlds("answers that hold the secret", |world| {
        tool(world, LIMITS);
        let hex = |answer: &str| {
            answer
                .bytes()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
        };
        let says = |answer: &String| json!({"path": format!("/v1/says?page={}", hex(answer))});
        let answers =
            |answers: &[String]| ask_all(world, &answers.iter().map(says).collect::<Vec<_>>()).0;
        let stars = "*".repeat(KEY.len());
        let head = "X-Echo: Bearer {KEY}\r\nX-s3cret%2Fkey%2bwith%3dsigns-0123456789: 2\r\n\
                    Content-Encoding: Identity\r\nContent-Type: text/html;charset=\"iso-8859-1\"";
        let body = format!("<{KEY}> end");
        let chunks: String = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
        let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        let whole = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        for got in answers(
            &[chunked, whole].map(|rest| format!("HTTP/1.1 200 {{KEY}}\r\n{head}\r\n{rest}")),
        ) {
            assert_eq!(got["body"], format!("<{stars}> end"), "{got}");
            assert_eq!(got["headers"]["x-echo"], format!("Bearer {stars}"), "{got}");
            assert!(!got["headers"].to_string().contains("s3cret"), "{got}");
        }
        // Links to the host lead back through the relay, and no others.
        let two = |scheme: &str| {
            format!("<{scheme}://api.example.com/2>; rel=next, <{scheme}://api.example.com/3>")
        };
        let links = [
            (two("https"), two("http")),
            (
                "https://api.example.com/x?y#z".into(),
                "http://api.example.com/x?y#z".into(),
            ),
        ];
        let others = [
            "api.example.com.evil.example/",
            "api.example.com@evil.example/",
            "b.example/?to=https://api.example.com/",
        ];
        let others = others.map(|rest| (format!("https://{rest}"), format!("https://{rest}")));
        let links = [&links[..], &others].concat();
        let linking = |link: &String| {
            format!("HTTP/1.1 200 OK\r\nLink: {link}\r\nKeep-Alive: x\r\nContent-Length: 0\r\n\r\n")
        };
        let got = answers(
            &links
                .iter()
                .map(|(link, _)| linking(link))
                .collect::<Vec<_>>(),
        );
        for ((_, shown), got) in links.iter().zip(got) {
            let headers = &got["headers"];
            assert_eq!(
                (&headers["link"], &headers["keep-alive"]),
                (&json!(shown), &Value::Null),
                "{got}"
            );
        }
        // An answer that ends too early shows no part of the secret.
        let long = "HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n{LONG}".to_owned();
        let early = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
            &KEY[..12]
        );
        let got = answers(&[long, early]);
        assert_eq!(
            got[0]["body"].as_str().unwrap(),
            "0123456789".repeat(40_000),
            "passes whole"
        );
        assert!(
            got[1]["status"] == 0 && !got[1].to_string().contains("s3"),
            "{}",
            got[1]
        );
        let length = "Content-Length: 2\r\n\r\nok";
        let refused = [
            ("200 OK\r\nContent-Encoding: gzip", length, "compressed"),
            (
                "200 OK\r\nTransfer-Encoding: gzip, chunked",
                "X: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                "compressed",
            ),
            (
                "200 OK\r\nContent-Type: text/html; charset = utf-16",
                length,
                "encoding without",
            ),
            (
                "200 OK\r\nContent-Type: multipart/byteranges; boundary=x",
                length,
                "a part",
            ),
            (
                "206 Partial Content\r\nContent-Range: bytes 0-1/9",
                length,
                "a part",
            ),
            (
                "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket",
                length,
                "a switched",
            ),
        ];
        let got = answers(&refused.map(|(head, rest, _)| format!("HTTP/1.1 {head}\r\n{rest}")));
        for ((head, _, why), got) in refused.iter().zip(got) {
            assert!(
                got["status"] == 502 && got["body"].as_str().unwrap().contains(why),
                "{head}: {got}"
            );
        }
        // An event comes before the next.
        let got = |body: &str| {
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body}");
            let ended = world.call(
                "esc:keyed",
                &json!({"listens": format!("/v1/waits?page={}", hex(&answer))}),
            );
            ended.out["outputData"]["got"]
                .as_str()
                .unwrap()
                .chars()
                .rev()
                .collect::<String>()
        };
        tool_of(world, &SCRIPT.replace("timeout=3", "timeout=60"), LIMITS);
        for event in [
            "event: a\ndata: {KEY} and.\n\n",
            "data: {KEY}\r\n\r\ndata: {KEY}\r\n.\n\n",
        ] {
            assert_eq!(got(event), event.replace("{KEY}", &stars));
        }
        // The control: without an empty line what is read last stays back.
        tool(world, LIMITS);
        assert_eq!(got("event: a\ndata: {KEY} and.\n"), "");
    });
}

/// `new --from` of an API with a key: what it prints for the operator is the grant that keeps the key
/// from the script.
#[test]
fn a_drafted_request_has_its_key_from_the_printed_grant() {
    in_our_world(|world| {
        let playground = &world.playground;
        let document = include_str!("../cli/petstore.json").replace("pets.", "api.");
        fs::write(playground.path("pets.json"), document).unwrap();
        playground.settle();
        let file = playground.path("pets.json").display().to_string();
        let made = ["new", "pet", "--from", &file, "--operation", "showPet"];
        let made = playground.cli(&made).text();
        playground.settle();
        let (_, grant) = made.split_once("has the key: ").expect(&made);
        let grant = grant.lines().next().unwrap();
        let suggested = playground.cli(&["audit", "custom:pet", "--suggest-policy"]);
        let suggested = suggested.text();
        let (before, _) = suggested.split_once("[secrets]").unwrap();
        let policy = format!("{before}[secrets]\ngrant = [{grant}]\n");
        fs::write(playground.path("sandbox-policies/pet.policy.toml"), policy).unwrap();
        playground.settle();
        private(playground, "sandbox-policies/KEY_TOKEN.key", KEY);
        let (ended, heard) = world.called("custom:pet", &json!({"petId": "7"}));
        fits("ok", &ended).unwrap();
        holds_no_secret(world, &ended);
        assert!(
            heard
                .iter()
                .any(|line| line.starts_with("https 45.20.0.1 GET /v1/pets/7")),
            "{heard:?}"
        );
        let key = &ended.out["outputData"]["headers"]["authorization"];
        assert_eq!(
            *key,
            format!("Bearer {}", "*".repeat(KEY.len())),
            "{ended:?}"
        );
    });
}
