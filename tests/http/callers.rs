//! Who may call: the user who runs the server, or whoever presents a token, and nobody by a mere
//! claim.

use super::{
    Web, adder, bearer, caller, certified, exchanged, private, request, served, token, tokens,
    unserved,
};
use crate::prelude::*;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::os::unix::fs::{FileTypeExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};

/// The response to this user's request for the list of tools.
fn listed(web: &Web, uid: u32) -> String {
    let asked = request("GET", "/v1/tools", &web.address, &[], "");
    String::from_utf8_lossy(&exchanged(web.connect_as(uid), asked.as_bytes())).into_owned()
}

/// The same for a user who is not served, and has one second to ask.
fn refused(web: &Web, uid: u32) -> String {
    let mut told = String::new();
    wait_for("a stranger is told why", || {
        told = listed(web, uid);
        !told.is_empty()
    });
    told
}

#[test]
fn without_tokens_it_is_for_its_own_user_who_is_the_operator() {
    as_everyone("a server without tokens", |who| {
        let playground = Playground::new(who, "/var/tmp");
        adder(&playground);
        let web = Web::start(&playground, &[]);
        let own = web.call("esc:add", &json!({"a": 1, "b": 2}), &[]);
        assert_eq!(own.is(200, "none").json()["outputData"]["sum"], 3);
        assert_eq!(web.get("/v1/tools/esc:add/audit", &[]).status, 200);
        // A body that names another user changes nothing of who called.
        let named = web.call(
            "esc:add",
            &json!({"user": "bob", "arguments": {"a": 1, "b": 2}}),
            &[],
        );
        assert_eq!(named.json()["user"], "bob");
        let login = playground.records()[0]["user"].clone();
        assert!(
            playground
                .records()
                .iter()
                .all(|record| record["user"] == login),
            "{:?}",
            playground.records()
        );
        // A request with a token does not count as the operator's.
        assert_eq!(web.get("/v1/tools", &[&bearer("th_x")]).status, 401);
        // A client that has closed its sending half is still identified.
        for _ in 0..50 {
            let stream = web.send("GET", "/healthz", &[], "");
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let answer = super::rest(stream);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        if !is_root() {
            return skipped(1, "another user's connection needs root");
        }
        let before = playground.records().len();
        for other in [12399, if who == Who::Root { 12345 } else { 0 }] {
            let text = refused(&web, other);
            assert!(
                text.starts_with("HTTP/1.1 403 ") && text.contains("for the user who runs it"),
                "{other}: {text}"
            );
            assert!(!text.contains("esc:add"), "{text}");
        }
        assert_eq!(playground.records().len(), before);
        wait_for("the log says who", || {
            web.said().contains("refused: uid 12399")
        });
    });
}

/// Other users hold no descriptors of the server, and do not fill its log.
#[test]
fn a_crowd_of_other_users_keeps_the_owner_not_out() {
    if !is_root() {
        return skipped(1, "another user's connection needs root");
    }
    let (_playground, web) = served(|_| ());
    let open = || {
        fs::read_dir(format!("/proc/{}/fd", web.child.id()))
            .unwrap()
            .count()
    };
    assert_eq!(web.get("/v1/tools", &[]).status, 200);
    let before = open();
    let asked = request("GET", "/v1/tools", &web.address, &[], "");
    let crowd: Vec<_> = (0..400).map(|_| web.connect_as(12399)).collect();
    let during = open();
    assert!(
        during < before + 100,
        "{before} descriptors became {during}"
    );
    assert_eq!(web.get("/v1/tools", &[]).status, 200);
    let answers: Vec<_> = crowd
        .into_iter()
        .map(|stream| exchanged(stream, asked.as_bytes()))
        .collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.is_empty() || answer.starts_with(b"HTTP/1.1 403 "))
    );
    // One for each minute: a minute may end meanwhile.
    web.says("refused: uid 12399", 1);
    assert!(
        (1..3).contains(&web.said().matches("refused: uid 12399").count()),
        "{}",
        web.said()
    );
    // The control: a single stranger gets the reason, if it asks within its one second.
    wait_for("a stranger is told why", || {
        listed(&web, 12399).starts_with("HTTP/1.1 403 ")
    });
}

#[test]
fn a_unix_socket_is_closed_to_others_and_taken_over_only_from_the_dead() {
    let Some(curl) = found("curl") else {
        return missing(1, "curl");
    };
    as_everyone("a unix socket", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let path = playground.path("state/http.sock");
        let address = format!("unix:{}", path.display());
        let asked = |uid: Option<u32>| {
            let mut command = playground.outside(curl.to_str().unwrap());
            if let Some(uid) = uid {
                std::os::unix::process::CommandExt::uid(&mut command, uid);
            }
            command
                .args(["-sS", "-m", "100", "--unix-socket"])
                .arg(&path)
                .arg("http://localhost/v1/tools");
            finish(command, b"")
        };
        let web = Web::at(&playground, &address, &[]);
        let facts = fs::symlink_metadata(&path).unwrap();
        assert!(
            facts.file_type().is_socket() && facts.permissions().mode() & 0o777 == 0o600,
            "{facts:?}"
        );
        assert!(asked(None).out["tools"].is_array(), "{:?}", asked(None));
        if is_root() {
            assert!(
                asked(Some(12399)).stderr.contains("ermission denied")
                    || asked(Some(12399)).code == Some(7)
            );
            // Also where the mode would let others in, their connections are not served.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            let mut other = asked(Some(12399));
            wait_for("a stranger is told why", || {
                other = asked(Some(12399));
                !other.stdout.is_empty()
            });
            assert_eq!(other.kind(), "AuthorizationError", "{other:?}");
        }
        let theirs = "other users can replace this socket with one of theirs";
        assert!(!web.said().contains(theirs), "control: {}", web.said());
        unserved(
            &playground,
            &[&address],
            4,
            "a server listens there already",
        );
        drop(web);
        assert!(path.exists(), "one that is killed leaves its socket");
        let again = Web::at(&playground, &address, &[]);
        assert!(asked(None).out["tools"].is_array(), "{:?}", asked(None));
        drop(again);
        let open = playground.path("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let warned = Web::at(&playground, &format!("unix:{}/s", open.display()), &[]);
        warned.says(theirs, 1);
        drop(warned);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        unserved(
            &playground,
            &[&address],
            4,
            "something other than a socket lies there",
        );
        let folder = fs::File::open(path.parent().unwrap()).unwrap();
        folder.lock().unwrap();
        let holder = format!("pid {} (", std::process::id());
        unserved(&playground, &[&address], 4, &holder);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    });
}

#[test]
fn a_socket_is_taken_from_no_server_that_lives_and_from_no_other_user() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let path = playground.path("state/http.sock");
    let address = format!("unix:{}", path.display());
    let refused = |wanted: &str| {
        unserved(&playground, &[&address], 4, wanted);
        assert!(path.exists(), "{wanted}");
    };
    // A server that ends leaves a socket that another made meanwhile.
    let mut first = Web::at(&playground, &address, &[]);
    fs::remove_file(&path).unwrap();
    let mut second = Web::at(&playground, &address, &[]);
    for (web, stays) in [(&mut first, true), (&mut second, false)] {
        web.signal(Signal::SIGTERM);
        web.ended(PATIENCE);
        assert_eq!(path.exists(), stays);
    }
    // A busy server still listens: its backlog is full.
    let busy = UnixListener::bind(&path).unwrap();
    nix::sys::socket::listen(&busy, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    chown(&path, playground.who.uid(), playground.who.uid()).unwrap();
    let _waiting = [
        UnixStream::connect(&path).unwrap(),
        UnixStream::connect(&path).unwrap(),
    ];
    refused("a server listens there already");
    drop(busy);
    // A dead server's socket: another user's stays; one's own is replaced (the control).
    if is_root() {
        chown(&path, Some(12399), Some(12399)).unwrap();
        refused("a socket of another user (uid 12399) lies there");
        chown(&path, Some(playground.who.uid().unwrap_or(0)), None).unwrap();
    }
    drop(Web::at(&playground, &address, &[]));
    // Of servers that start at one moment and find a killed server's socket, one listens.
    for round in 0..5 {
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        chown(&path, playground.who.uid(), playground.who.uid()).unwrap();
        let serve = || {
            let mut host = playground.host();
            host.args(["serve", "--http", &address]);
            Web::run(host, playground.who.uid())
        };
        let (serving, refused): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..6).map(|_| scope.spawn(serve)).collect();
            servers
                .into_iter()
                .map(|server| server.join().unwrap())
                .partition(Result::is_ok)
        });
        let refused: Vec<_> = refused.into_iter().filter_map(Result::err).collect();
        assert_eq!(serving.len(), 1, "round {round}: {refused:?}");
        let taken = "a server listens there already";
        assert!(
            refused.iter().all(|said| said.contains(taken)),
            "round {round}: {refused:?}"
        );
        UnixStream::connect(&path).expect("the one that serves is the one that is reached");
    }
}

#[test]
fn a_token_is_a_name_and_nothing_else_is() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let (alice, line) = token(&playground, "alice", &[]);
    let (ops, operator) = token(&playground, "ops", &["--operator"]);
    let file = private(
        &playground,
        "state/tokens",
        &format!("{line}\n{operator}\n"),
    );
    let web = Web::start(&playground, &["--token-file", &file]);
    let list = |token: &str| web.get("/v1/tools", &[&bearer(token)]).status;
    let sum = json!({"a": 1, "b": 2});
    let absent = web.call("esc:add", &sum, &[]);
    assert_eq!(
        (absent.status, absent.header("www-authenticate")),
        (401, Some("Bearer realm=\"toolhost\""))
    );
    for (what, header) in [
        ("wrong", bearer(&format!("th_{}", "A".repeat(43)))),
        ("cut", bearer(&alice[..40])),
        ("its hash", bearer(line.split(' ').nth(1).unwrap())),
        ("basic", format!("Authorization: Basic {alice}")),
        ("bare", format!("Authorization: {alice}")),
        ("two", format!("{}\r\n{}", bearer(&alice), bearer(&ops))),
        ("another header", format!("X-Api-Key: {alice}")),
        ("a cookie", format!("Cookie: token={alice}")),
        (
            "for a proxy",
            format!("Proxy-Authorization: Bearer {alice}"),
        ),
    ] {
        assert_eq!(web.call("esc:add", &sum, &[&header]).status, 401, "{what}");
    }
    for (path, status) in [
        ("?access_token=", 400),
        ("?format=", 401),
        ("/esc:add/", 401),
    ] {
        assert_eq!(
            web.get(&format!("/v1/tools{path}{alice}"), &[]).status,
            status,
            "{path}"
        );
    }
    let behind = web.ask(
        "POST",
        &format!("/v1/tools/esc:add/calls/{alice}"),
        &[],
        &sum.to_string(),
    );
    assert_eq!(behind.status, 401, "behind the path");
    let inside = json!({"a": 1, "b": 2, "token": alice, "authorization": bearer(&alice)});
    assert_eq!(web.call("esc:add", &inside, &[]).status, 401, "in the body");
    assert!(
        playground.records().is_empty(),
        "{:?}",
        playground.records()
    );
    let seen = web
        .call(
            "esc:add",
            &json!({"user": "ops", "arguments": sum}),
            &[&bearer(&alice)],
        )
        .is(200, "none")
        .body;
    assert_eq!(playground.records()[0]["user"], "alice");
    // What only an operator reads.
    let audit =
        [&alice, &ops].map(|token| web.get("/v1/tools/esc:add/audit", &[&bearer(token)]).status);
    assert_eq!((audit, list(&alice)), ([403, 200], 200));
    let own = web.call("esc:add", &sum, &[&bearer(&ops)]).body;
    let base = playground.base.display().to_string();
    assert!(
        !seen.contains(&base) && !seen.contains("\"layers\"") && own.contains("\"layers\""),
        "{seen}"
    );
    // A removed line counts at once, and a file that cannot be trusted lets nobody in.
    private(&playground, "state/tokens", &operator);
    assert_eq!([&alice, &ops].map(|token| list(token)), [401, 200]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(list(&ops), 401);
    wait_for("the log says why", || {
        web.said().contains("no token is accepted") && web.said().contains("chmod 600")
    });
    unserved(
        &playground,
        &["127.0.0.1:0", "--token-file", &file],
        4,
        "others may read it",
    );
    assert!(
        ![&alice, &ops]
            .iter()
            .any(|token| web.said().contains(token.as_str())),
        "a token is in the log"
    );
}

/// The owner of a file's folder can restore an older file, which has a line that was removed since.
#[test]
fn a_file_of_tokens_lies_where_no_other_can_replace_it() {
    if !is_root() {
        return skipped(1, "a folder of another user needs root");
    }
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let (alice, line) = token(&playground, "alice", &[]);
        fs::create_dir(playground.path("apart")).unwrap();
        playground.settle();
        let file = private(&playground, "apart/tokens", &line);
        let folder = playground.path("apart");
        let web = Web::start(&playground, &["--token-file", &file]);
        let list = || web.get("/v1/tools", &[&bearer(&alice)]).status;
        assert_eq!(list(), 200, "{who:?}: the control");
        let own = who.uid().unwrap_or(0);
        for (owner, mode, words) in [
            (12399, 0o755, "uid 12399"),
            (own, 0o777, "others may write"),
        ] {
            chown(&folder, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            // The file as it was, with another time.
            private(&playground, "apart/tokens", &line);
            assert_eq!(list(), 401, "{who:?}: {words}");
            unserved(
                &playground,
                &["127.0.0.1:0", "--token-file", &file],
                4,
                words,
            );
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        private(&playground, "apart/tokens", &line);
        assert_eq!(list(), 200, "{who:?}: once its folder is as it was");
    }
}

#[test]
fn files_that_flags_name_are_kept_from_tools_of_that_server() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let kept = playground.path("kept");
    fs::create_dir(&kept).unwrap();
    let tree = format!("{}/**", kept.display());
    let writes = json!({"securityContext": {"fileAccess": {"allowWrite": [tree]}}});
    playground.tool("writer", "python", "print(1)\n", writes);
    playground.allow("writer", "esc:writer", &["./**"], &[&tree]);
    playground.settle();
    let (ops, line) = token(&playground, "ops", &["--operator"]);
    let file = private(&playground, "kept/tokens", &line);
    let web = Web::start(&playground, &["--token-file", &file]);
    web.call("esc:writer", &json!({}), &[&bearer(&ops)])
        .is(403, "SecurityError: a file of this host could be written");
    // The control: a host that does not know the file. A host whose configuration names it does.
    assert_eq!(playground.call("esc:writer", "{}").out["success"], true);
    let config = private(
        &playground,
        "state/config.toml",
        &format!("[http]\ntoken_file = \"{file}\"\n"),
    );
    let ended = playground.cli(&[
        "--config",
        &config,
        "call",
        "esc:writer",
        "--json",
        "--input",
        "{}",
    ]);
    assert_eq!(ended.kind(), "SecurityError", "{ended:?}");
}

#[test]
fn a_wide_address_needs_tokens_and_tls() {
    let Some(curl) = found("curl") else {
        return missing(1, "curl");
    };
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (file, [alice]) = tokens(&playground, ["alice"]);
    for (flags, wanted) in [
        (&["0.0.0.0:0"][..], "callers must present a token"),
        (&["0.0.0.0:0", "--insecure"], "callers must present a token"),
        (
            &["0.0.0.0:0", "--token-file", &file],
            "--tls-cert FILE --tls-key FILE, or --insecure",
        ),
    ] {
        unserved(&playground, flags, 2, wanted);
    }
    let [certificate, key] = certified(&playground);
    let flags = [
        "--token-file",
        &file,
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    let web = Web::at(&playground, "0.0.0.0:0", &flags);
    let port = web.address.rsplit(':').next().unwrap().to_owned();
    let asked = |more: &[&str]| {
        let mut command = Command::new(&curl);
        command
            .args(["-sS", "-m", "100", "--cacert", &certificate])
            .args(more);
        command.arg(format!("https://localhost:{port}/v1/tools"));
        finish(command, b"")
    };
    assert!(asked(&["-4", "-H", &alice]).out["tools"].is_array());
    assert_eq!(asked(&["-4"]).kind(), "AuthorizationError");
    assert!(asked(&["-4", "--tls-max", "1.1"]).code != Some(0));
    // Without TLS there is no answer.
    let clear = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    let answer = exchanged(clear, b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    unserved(
        &playground,
        &[&["0.0.0.0:0"], &flags[..]].concat(),
        4,
        "others may read it",
    );
}

#[test]
fn a_jwt_is_taken_on_the_operators_terms_alone() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    copy(
        &repository("user_scripts/csv-summary"),
        &playground.path("user_scripts/csv-summary"),
    );
    playground.settle();
    let key = |seed: u8| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    let (ours, theirs) = (key(1), key(2));
    let public = URL_SAFE_NO_PAD.encode(ours.public_key().as_ref());
    let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "one", "alg": "EdDSA", "x": public}]});
    private(&playground, "state/keys.json", &set.to_string());
    let terms = "[http.jwt]\nissuer = \"https://issuer\"\naudience = \"https://tools\"\nalgorithms \
                 = [\"EdDSA\"]\nkeys = \"keys.json\"\noperators = [\"ops\"]\n";
    let config = private(&playground, "state/config.toml", terms);
    let web = Web::start(&playground, &["--config", &config]);
    let now = jiff::Timestamp::now().as_second();
    let with = |mut whole: Value, more: Value| {
        whole
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        whole
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        whole
    };
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    // A token with these header fields and claims, signed by this key.
    let signed = |key: &Ed25519KeyPair, head: Value, claims: Value| {
        let head = with(json!({"alg": "EdDSA", "kid": "one"}), head);
        let good = json!({"iss": "https://issuer", "aud": "https://tools", "sub": "alice", "exp": now + 600});
        let text = format!("{}.{}", part(head), part(with(good, claims)));
        let signature = URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes()));
        format!("{text}.{signature}")
    };
    let status = |token: &str| {
        web.get("/v1/tools/data:csv-summary", &[&bearer(token)])
            .status
    };
    let none = || json!({});
    for (what, wanted, key, head, claims) in [
        ("a good one", 200, &ours, none(), none()),
        (
            "the control of crit",
            200,
            &ours,
            json!({"made-up": 1}),
            none(),
        ),
        (
            "two audiences",
            200,
            &ours,
            none(),
            json!({"aud": ["x", "https://tools"]}),
        ),
        ("another key", 401, &theirs, none(), none()),
        (
            "another issuer",
            401,
            &ours,
            none(),
            json!({"iss": "https://other"}),
        ),
        (
            "a list of issuers",
            401,
            &ours,
            none(),
            json!({"iss": ["https://issuer", "https://other"]}),
        ),
        (
            "another audience",
            401,
            &ours,
            none(),
            json!({"aud": "https://other"}),
        ),
        ("no audience", 401, &ours, none(), json!({"aud": null})),
        ("expired", 401, &ours, none(), json!({"exp": now - 60})),
        ("no expiry", 401, &ours, none(), json!({"exp": null})),
        ("not yet", 401, &ours, none(), json!({"nbf": now + 600})),
        ("no subject", 401, &ours, none(), json!({"sub": null})),
        ("an empty subject", 401, &ours, none(), json!({"sub": ""})),
        (
            "a hidden subject",
            401,
            &ours,
            none(),
            json!({"sub": "a\u{202e}b"}),
        ),
        (
            "unknown crit",
            401,
            &ours,
            json!({"crit": ["made-up"], "made-up": 1}),
            none(),
        ),
        ("empty crit", 401, &ours, json!({"crit": []}), none()),
        ("unencoded", 401, &ours, json!({"b64": false}), none()),
        ("another kid", 401, &ours, json!({"kid": "two"}), none()),
        ("no algorithm", 401, &ours, json!({"alg": "none"}), none()),
        (
            "a shared secret",
            401,
            &ours,
            json!({"alg": "HS256"}),
            none(),
        ),
        (
            "a key of its own",
            401,
            &theirs,
            json!({"kid": null, "jwk": set["keys"][0]}),
            none(),
        ),
    ] {
        assert_eq!(status(&signed(key, head, claims)), wanted, "{what}");
    }
    let unsigned = signed(&ours, none(), none());
    assert_eq!(
        status(&unsigned[..=unsigned.rfind('.').unwrap()]),
        401,
        "no signature"
    );
    // The issuer is shown without a token.
    let at = "/.well-known/oauth-protected-resource";
    let told = web.get(at, &[]).json();
    assert_eq!(
        [&told["resource"], &told["authorization_servers"][0]],
        ["https://tools", "https://issuer"]
    );
    let challenge = web.get("/v1/tools", &[]);
    let challenge = challenge.header("www-authenticate").unwrap();
    assert!(
        challenge.contains(&format!("resource_metadata=\"https://tools{at}\"")),
        "{challenge}"
    );
    let audit = ["alice", "ops"].map(|who| {
        let token = signed(&ours, none(), json!({ "sub": who }));
        web.get("/v1/tools/data:csv-summary/audit", &[&bearer(&token)])
            .status
    });
    assert_eq!(audit, [403, 200]);
    web.call(
        "data:nothing",
        &json!({}),
        &[&bearer(&signed(&ours, none(), none()))],
    );
    assert_eq!(playground.records()[0]["user"], "jwt:alice");
    let refused = |config: &str, why: &str| {
        unserved(&playground, &["127.0.0.1:0", "--config", config], 4, why)
    };
    for (bad, wanted) in [
        (terms.replace("\"EdDSA\"", "\"HS256\""), "not one of RS256"),
        (
            terms.replace("\"EdDSA\"", "\"RS256\""),
            "not among the algorithms",
        ),
        (
            terms.replace("https://tools", ""),
            "issuer and audience must be named",
        ),
        (terms.replace("audience", "audiences"), "unknown field"),
    ] {
        refused(&private(&playground, "state/bad.toml", &bad), wanted);
    }
    let keyed = |more: Value| {
        let key = with(set["keys"][0].clone(), more);
        private(
            &playground,
            "state/keys.json",
            &json!({"keys": [key]}).to_string(),
        );
    };
    for more in [
        json!({"use": "enc"}),
        json!({"key_ops": ["encrypt"]}),
        json!({"use": "sig", "key_ops": ["sign"]}),
    ] {
        keyed(more);
        refused(
            &config,
            "key one: its use or key_ops is not to verify signatures",
        );
    }
    keyed(json!({"use": "sig", "key_ops": ["verify"]}));
    drop(Web::start(&playground, &["--config", &config]));
}

/// `callers.policy.toml` overrides the role that a token's line gives.
#[test]
fn who_is_no_operator_reads_no_path_and_no_policy() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    adder(&playground);
    let asked = |role: &str| {
        super::write_callers(
            &playground,
            &caller("ops", role).replace("[\"*\"]", "[\"a:*\"]"),
        );
        let (file, [header]) = tokens(&playground, ["ops!"]);
        let web = Web::start(&playground, &["--token-file", &file]);
        let tool = web
            .get("/v1/tools/esc:add", &[&header])
            .is(404, "ToolNotFoundError");
        let call = web
            .call("esc:add", &json!({"a": 1, "b": 2}), &[&header])
            .is(404, "ToolNotFoundError");
        let said = web
            .said()
            .contains("ops is not an operator: callers.policy.toml alone says who is one");
        (
            tool.body,
            call.body,
            web.get("/metrics", &[&header]).status,
            said,
        )
    };
    let (tool, call, metrics, said) = asked("");
    assert_eq!((metrics, said), (403, true));
    let seen = tool + &call;
    assert!(
        !seen.contains("policy.toml") && !seen.contains("/var/tmp"),
        "{seen}"
    );
    let own = Web::start(&playground, &[]);
    assert!(
        own.said().contains(" is not an operator: ") && !own.said().contains("who is its operator"),
        "{}",
        own.said()
    );
    let shown = own
        .get("/v1/tools/esc:add", &[])
        .is(404, "ToolNotFoundError");
    assert!(
        own.get("/metrics", &[]).status == 403 && !shown.body.contains("policy.toml"),
        "{shown:?}"
    );
    let (tool, call, metrics, said) = asked("role = \"operator\"\n");
    assert_eq!((metrics, said), (200, false), "control");
    assert!(
        [&tool, &call]
            .iter()
            .all(|seen| seen.contains("callers.policy.toml")),
        "control: {tool} {call}"
    );
}

/// In a user namespace the overflow id stands for every unmapped user, so it identifies nobody.
#[test]
fn an_id_that_stands_for_everybody_is_no_users_own() {
    if !is_root() {
        return skipped(1, "files and connections of other users need root");
    }
    let Some(unshare) = found("unshare") else {
        return missing(1, "unshare");
    };
    let playground = Playground::new(Who::User, "/var/tmp");
    adder(&playground);
    let inside = |map: &[&str], arguments: &[&str]| {
        let mut command = playground.outside(&unshare.display().to_string());
        command.arg("--user").args(map);
        let mut command = playground.host_by(command);
        command.args(arguments);
        command
    };
    let mapped = ["--map-user=1000", "--map-group=1000"];
    let serve = |map: &[&str]| {
        Web::run(
            inside(map, &["serve", "--http", "127.0.0.1:0"]),
            playground.who.uid(),
        )
    };
    // The server's own id is the overflow id: because it has none, or because that one was given to
    // it.
    for map in [&[][..], &["--map-user=65534"]] {
        let said = serve(map)
            .err()
            .unwrap_or_else(|| panic!("{map:?}: it serves"));
        assert!(
            said.contains("stands for everybody") || said.contains("no id of its own"),
            "{map:?}: {said}"
        );
    }
    let web = serve(&mapped).expect("the control: an id of its own");
    assert!(
        listed(&web, 12345).starts_with("HTTP/1.1 200 "),
        "the control: its user is served"
    );
    assert!(
        refused(&web, 12399).starts_with("HTTP/1.1 403 "),
        "and nobody else"
    );
    // The client's check: the same message as for another user's server.
    let told = finish(inside(&[], &["status", "--http", &web.address]), b"").stderr;
    assert!(told.contains("another user (uid 65534"), "{told}");
    assert_eq!(
        playground.cli(&["status", "--http", &web.address]).code,
        Some(0),
        "the control: the client outside"
    );
    drop(web);
    // Files: a policy of another user.
    let call = || {
        finish(
            inside(
                &mapped,
                &["call", "esc:add", "--json", "--input", "{\"a\":1,\"b\":2}"],
            ),
            b"",
        )
    };
    assert_eq!(
        call().out["outputData"]["sum"],
        3,
        "the control: its own policy"
    );
    let policy = playground.path("sandbox-policies/default.policy.toml");
    chown(&policy, Some(12399), Some(12399)).unwrap();
    let refused = call();
    assert!(
        refused.out["success"] != true && refused.stderr.contains("stands for everybody"),
        "{refused:?}"
    );
}
