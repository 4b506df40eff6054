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
    try:\n c=kind('api.example.com',timeout=8)\n c.request(g.get('method','GET'),g['path'],headers=g.get('headers',{}))\n \
    r=c.getresponse()\n print(json.dumps({'status':r.status,'body':r.read().decode(),'headers':dict(r.getheaders())}))\n\
    except OSError as e: print(json.dumps({'status':0,'body':type(e).__name__}))\n";

fn tool(world: &World, value: &str) {
    let folder = world.playground.path("sandbox-policies");
    fs::write(folder.join("api.key"), format!("{value}\n")).unwrap();
    let header = "header = { host = \"api.example.com\", name = \"Authorization\", value = \"Bearer {}\", \
                  methods = [\"GET\"], paths = [\"/v1/**\", \"/redirect\"] }";
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
        let refused = [
            ("another method", json!({"path": "/v1/now", "method": "POST"})),
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
        let away = ask(world, &json!({"path": "/redirect?https://other.example.com/"}));
        let to = &away.out["outputData"]["headers"]["location"];
        assert_eq!((status(&away), to), (302, &json!("https://other.example.com/")), "{}", away.out["outputData"]);
        let back = ask(world, &json!({"path": "/redirect?https://api.example.com/v1/now"}));
        assert_eq!(back.out["outputData"]["headers"]["location"], "http://api.example.com/v1/now");
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
