//! What operators see and order over HTTP beside calls: every tool, the log, orders to disable tools, approvals of code; and
//! the page, whose files are open to all and say nothing.

use super::{Web, served_to};
use crate::prelude::*;

const WHY: &str = "{\"why\": \"it misbehaves\"}";

fn three_tools(playground: &Playground) {
    playground.tool("good", "python", "print('1')\n", json!({}));
    playground.tool("bad", "python", "raise SystemExit(3)\n", json!({}));
    let wants = json!({"securityContext": {"fileAccess": {"allowRead": ["/srv/none/x"]}}});
    playground.tool("wants", "python", "print('1')\n", wants);
}

fn entry(web: &Web, tool: &str, headers: &[&str]) -> Value {
    let all = web.get("/v1/inventory", headers).json();
    let mut tools = all["tools"].as_array().unwrap().iter();
    tools.find(|it| it["tool"] == tool).unwrap().clone()
}

fn post(web: &Web, path: &str, header: &str, body: &str) -> super::Reply {
    web.ask("POST", path, &[header], body)
}

#[test]
fn an_operator_sees_every_tool_and_call_and_disables_and_enables() {
    let (playground, web, [ops, agent]) = served_to(["ops!", "agent"], three_tools);
    // Nobody else does.
    for (method, path) in [
        ("GET", "/v1/inventory"),
        ("GET", "/v1/log"),
        ("GET", "/v1/log/none"),
        ("GET", "/v1/tools/esc:good/approval"),
        ("POST", "/v1/tools/esc:good/disable"),
        ("POST", "/v1/tools/esc:good/enable"),
    ] {
        web.ask(method, path, &[&agent], WHY)
            .is(403, "AuthorizationError: operators");
    }
    assert_eq!(entry(&web, "esc:good@1.0.0", &[&ops])["state"], "ready");
    let wants = entry(&web, "esc:wants@1.0.0", &[&ops]);
    assert_eq!(
        (&wants["state"], &wants["asks"]["read"]),
        (&json!("unavailable"), &json!([1, 0])),
        "{wants}"
    );

    let call = |tool: &str| web.call(tool, &json!({}), &[&agent]);
    assert_eq!(call("esc:good").json()["success"], true);
    assert_eq!(call("esc:bad").json()["success"], false);
    assert_eq!(call("esc:wants").status, 403);
    let listed = |query: &str| {
        let log = web.get(&format!("/v1/log{query}"), &[&ops]).json();
        let calls = log["calls"].as_array().unwrap().iter();
        let calls = calls.map(|it| it["tool"].as_str().unwrap().to_owned());
        calls.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        listed("?caller=agent&tool=esc:*"),
        "esc:good esc:bad esc:wants"
    );
    assert_eq!(listed("?failed=true&limit=1"), "esc:bad");
    assert_eq!(listed("?refused=true&tool=esc:wants"), "esc:wants");
    assert_eq!(listed("?caller=nobody"), "");
    // Who looks again gets what came since, and all of a log that does not reach so far.
    let all = web.get("/v1/log?tool=esc:*", &[&ops]).json();
    let last = all["last"].as_u64().unwrap();
    let since = |after: u64, more: &str| listed(&format!("?tool=esc:*&after={after}{more}"));
    assert_eq!(all["calls"][2]["chain"]["n"], last);
    assert_eq!(since(last, ""), "");
    assert_eq!(since(last - 2, ""), "esc:bad esc:wants");
    assert_eq!(since(last - 2, "&failed=true"), "esc:bad");
    assert_eq!(since(last + 1, ""), "esc:good esc:bad esc:wants");
    assert_eq!(since(0, "&refused=true&failed=true"), "esc:bad esc:wants");
    for query in [
        "limit=0",
        "limit=101",
        "failed=1",
        "tool=a*",
        "who=x",
        "after=x",
        "after=-1",
    ] {
        web.get(&format!("/v1/log?{query}"), &[&ops])
            .is(400, "ParameterValidationError");
    }
    let record = playground.records().pop().unwrap();
    let id = record["call"].as_str().unwrap();
    assert_eq!(web.get(&format!("/v1/log/{id}"), &[&ops]).json(), record);
    let audit = web.get("/v1/tools/esc:wants/audit", &[&ops]).json();
    let fix = format!("{} allow esc:wants", playground.program());
    assert_eq!(audit["fix"], fix);

    // Disabled: no call begins, and the record says who ordered it and why.
    for body in ["", "{}", "{\"why\": 1}", "{\"why\": \"x\", \"then\": 1}"] {
        let status = post(&web, "/v1/tools/esc:good/disable", &ops, body).status;
        assert_eq!(status, 400, "{body}");
    }
    post(&web, "/v1/tools/good/disable", &ops, WHY).is(422, "ParameterValidationError: ns:name");
    post(&web, "/v1/tools/esc:good/disable", &ops, "{\"why\": \" \"}")
        .is(422, "ParameterValidationError: why");
    assert_eq!(call("esc:good").json()["success"], true);
    let order = post(&web, "/v1/tools/esc:good/disable", &ops, WHY).json();
    assert_eq!(order["covers"], json!(["esc:good@1.0.0"]));
    call("esc:good").is(403, "AuthorizationError: The operator disabled");
    let state = entry(&web, "esc:good@1.0.0", &[&ops]);
    assert_eq!(state["disabled"][0]["why"], "it misbehaves", "{state}");
    assert!(
        playground
            .cli(&["disable"])
            .text()
            .contains("by ops: it misbehaves")
    );
    post(&web, "/v1/tools/esc:*/enable", &ops, "").is(404, "ToolNotFoundError: not disabled");
    call("esc:good").is(403, "AuthorizationError");
    post(&web, "/v1/tools/esc:good/enable", &ops, "").is(200, "none");
    assert_eq!(call("esc:good").json()["success"], true);
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    for order in [
        "\"disabled\":{\"tools\":\"esc:good\",\"by\":\"ops\"",
        "\"enabled\":\"esc:good\",\"user\":\"ops\"",
    ] {
        assert!(log.contains(order), "{order}: {log}");
    }
}

/// One log and one list of stops serve all roots of a user.
#[test]
fn an_operator_has_the_records_and_orders_of_one_root() {
    let (playground, web, [ops]) = served_to(["ops!"], three_tools);
    let other_root = playground.path("other");
    let good = "user_scripts/good";
    fs::create_dir_all(other_root.join(good)).unwrap();
    for name in ["main.py", "good.tool.json"] {
        let from = playground.path(good).join(name);
        fs::copy(from, other_root.join(good).join(name)).unwrap();
    }
    let other = |words: &[&str]| {
        let mut command = playground.outside(binary().to_str().unwrap());
        let log = playground.path("state/audit.jsonl");
        command.arg("--root").arg(&other_root).arg("--audit-log");
        command.arg(log).args(words);
        let ended = finish(command, b"");
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    };
    let call = || web.call("esc:good", &json!({}), &[&ops]);
    let order = |what: &str, body: &str| {
        let path = format!("/v1/tools/esc:good/{what}");
        post(&web, &path, &ops, body)
    };
    other(&["call", "esc:good"]);
    let record = playground.records().pop().unwrap();
    let root = other_root.canonicalize().unwrap();
    assert_eq!(record["root"], root.to_str().unwrap(), "{record}");
    let hidden = format!("/v1/log/{}", record["call"].as_str().unwrap());
    web.get(&hidden, &[&ops])
        .is(404, "ParameterValidationError: No such call");
    assert_eq!(call().json()["success"], true);
    let log = web.get("/v1/log", &[&ops]).json();
    assert_eq!(log["calls"].as_array().unwrap().len(), 1, "{log}");

    // What the command line ordered holds everywhere, and nobody else takes it back.
    other(&["disable", "esc:good", "--why", "w"]);
    call().is(403, "AuthorizationError: The operator disabled");
    order("enable", "").is(404, "ToolNotFoundError: not disabled");
    call().is(403, "AuthorizationError");
    other(&["enable", "esc:good"]);
    assert_eq!(call().json()["success"], true);
    // What this operator orders holds here alone.
    order("disable", WHY).is(200, "none");
    call().is(403, "AuthorizationError");
    other(&["call", "esc:good"]);
    order("enable", "").is(200, "none");
    assert_eq!(call().json()["success"], true);
}

#[test]
fn the_difference_from_what_was_approved_is_shown_and_approved_elsewhere() {
    let (playground, web, [ops]) = served_to(["ops!"], |playground| {
        playground.tool("code", "python", "print('1')\n", json!({}));
        let rest =
            "[files]\nread = [{ path = \"./**\", why = \"w\" }]\n[approval]\nrequired = true\n";
        playground.policy("code", "esc:code", rest);
    });
    let told = || web.get("/v1/tools/esc:code/approval", &[&ops]).json();
    assert_eq!(
        (&told()["state"], &told()["change"]["state"]),
        (&json!("not approved"), &json!("noRecord"))
    );
    let approve = format!("{} approve esc:code --why TEXT", playground.program());
    assert_eq!(told()["fix"], approve);
    let agreed = playground.cli(&["approve", "esc:code", "--why", "read it", "--yes"]);
    assert_eq!(agreed.code, Some(0), "{agreed:?}");
    wait_for("it is approved", || told()["state"] == "approved");
    // What is written in place is seen at the next look.
    let script = playground.path("user_scripts/code/main.py");
    fs::write(&script, "print('2')\n").unwrap();
    assert_eq!(
        (&told()["state"], &told()["change"]["state"]),
        (&json!("changed since approval"), &json!("changed"))
    );
    fs::write(&script, "print('1')\n").unwrap();
    assert_eq!(told()["state"], "approved");
    fs::write(playground.path("user_scripts/code/new.py"), "x = 1\n").unwrap();
    wait_for("it has changed", || told()["change"]["state"] == "changed");
    let change = told()["change"].clone();
    assert_eq!(change["parts"], json!(["code"]), "{change}");
    assert_eq!(
        change["between"]["parts"],
        json!(["new file: ./new.py"]),
        "{change}"
    );
}

#[test]
fn the_page_is_open_to_all_under_a_strict_policy_and_to_no_other_host() {
    let (playground, web, [_ops]) = served_to(["ops!"], three_tools);
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
    ] {
        let reply = web.get(path, &[]);
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.header("content-type").unwrap().starts_with(kind));
        let policy = reply.header("content-security-policy").unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "connect-src 'self'",
        ] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        assert!(!reply.body.contains("http://") || reply.body.contains("www.w3.org/2000/svg"));
        // A name that somebody has lead here, and pages of other sites, get nothing.
        let port = web.address.rsplit(':').next().unwrap();
        let other = format!("GET {path} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n");
        let refused = String::from_utf8_lossy(&web.raw(other.as_bytes())).into_owned();
        assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
        let framed = web.get(path, &["Sec-Fetch-Site: cross-site"]);
        assert_eq!(framed.status, 403);
        assert_eq!(web.ask("POST", path, &[], "{}").status, 405);
    }
    drop(web);
    let config = playground.path("page.toml");
    fs::write(&config, "[http]\npage = false\n").unwrap();
    let (file, _) = super::tokens(&playground, ["ops!"]);
    let config = config.to_str().unwrap();
    let web = Web::start(&playground, &["--token-file", &file, "--config", config]);
    assert_eq!(web.get("/", &[]).status, 401, "as every other path");
}
