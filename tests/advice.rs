//! What a person is advised to do about a refusal: the cause is named, and every command that is
//! printed works as it stands, from any folder.

use crate::prelude::*;

/// Reaches the host of a URL that its arguments name.
const GETS: &str = "import json, sys\nfrom urllib.request import urlopen\n\
    print(len(urlopen(json.load(sys.stdin)['url']).read()))\n";
/// The same with a name alone, of which neither the script nor its failure says that it is a host.
const CONNECTS: &str = "import json, socket, sys\n\
    socket.create_connection((json.load(sys.stdin)['to'], 80), 5)\n";

/// The first command in a text that has these words, as it is printed.
#[track_caller]
fn command(text: &str, words: &str) -> String {
    let mut printed = text.split('`').skip(1).step_by(2);
    let found = printed.find(|part| part.starts_with("toolhost ") && part.contains(words));
    found
        .unwrap_or_else(|| panic!("`toolhost … {words}`: {text}"))
        .to_owned()
}

/// Runs a printed command in a shell, from another folder than that of the host.
fn run(playground: &Playground, command: &str, says: &str) -> Ended {
    let mut shell = playground.outside("/bin/sh");
    let command = command.replacen("toolhost", &binary().display().to_string(), 1);
    shell.args(["-c", &command]).current_dir("/");
    finish(shell, says.as_bytes())
}

#[test]
fn a_host_that_only_an_argument_names_is_granted_by_the_printed_command() {
    for who in Who::both() {
        let playground = Playground::with(who, &[("gets", "python", GETS, json!({}))]);
        let input = json!({"url": "http://example.com/"}).to_string();
        let call = |more: &[&str]| {
            let all = [&["call", "esc:gets", "--input", &input][..], more].concat();
            playground.cli(&all).stderr
        };
        let words = "only an argument of this call names example.com: ";
        for told in [call(&[]), call(&["--explain"])] {
            assert!(told.contains(words), "{who:?}: {told}");
            // What a resolver looks for beside it is no cause, and the script reads its arguments.
            for other in ["--read", "--capability", "standard input", "--explain`"] {
                assert!(!told.contains(other), "{who:?} {other}: {told}");
            }
        }
        // The record names the host, and nothing is written that only a caller named.
        let told = playground.cli(&["allow", "esc:gets"]).stderr;
        assert!(
            told.contains("only an argument of that call names it"),
            "{who:?}: {told}"
        );
        assert!(!told.contains("written"), "{who:?}: {told}");
        let printed = command(&told, "allow esc:gets --host");
        assert_eq!(
            printed.replace('\'', ""),
            command(&call(&[]), "--host").replace('\'', "")
        );
        let allowed = run(&playground, &printed, "y\n");
        assert_eq!(
            allowed.code,
            Some(0),
            "{who:?} {printed}: {}",
            allowed.stderr
        );
        let audit = playground.cli(&["audit", "esc:gets", "--json"]).out;
        assert!(
            audit["refused"].is_null() && audit.to_string().contains("example.com"),
            "{audit}"
        );
        let again = run(&playground, &printed, "");
        assert!(
            again.code == Some(0) && again.stderr.contains("it has that"),
            "{}",
            again.stderr
        );
    }
}

#[test]
fn a_resolver_that_reaches_nobody_is_a_want_of_hosts_whoever_they_are() {
    let listens = "import socket\nsocket.create_server(('127.0.0.1', 0))\n";
    let tools = [
        ("to", "python", CONNECTS, json!({})),
        ("listens", "python", listens, json!({})),
    ];
    let playground = Playground::with(Who::ours(), &tools);
    let input = json!({"to": "example.com"}).to_string();
    for more in [&[][..], &["--explain"]] {
        let call = |tool: &str, input: &str| {
            playground
                .cli(&[&["call", tool, "--input", input][..], more].concat())
                .stderr
        };
        let told = call("esc:to", &input);
        assert!(told.contains("The tool was granted no hosts."), "{told}");
        assert!(told.contains("allow esc:to --host HOST"), "{told}");
        assert!(
            !told.contains("--capability") && !told.contains("--read"),
            "{told}"
        );
        // The control: where a socket of its own is the cause, that is advised.
        let told = call("esc:listens", "{}");
        assert!(told.contains("allow esc:listens --capability"), "{told}");
    }
}

/// Code that a call brings has no manifest that could request more.
#[test]
fn code_is_told_that_it_has_no_network() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    playground.allow_builtin_tools();
    playground.settle();
    let python = "import urllib.request\nurllib.request.urlopen('http://example.com/')";
    let node = "await fetch('http://example.com/')";
    let mut tried = vec![("python", python)];
    tried.extend(has("nodejs", 1).then_some(("nodejs", node)));
    for (language, code) in tried {
        let input = json!({"language": language, "code": code}).to_string();
        for more in [&[][..], &["--explain"]] {
            let words = [&["call", "core:run-code", "--input", &input][..], more].concat();
            let told = playground.cli(&words).stderr;
            assert!(
                told.contains("This code has no network"),
                "{language}: {told}"
            );
            assert!(
                !told.contains("`toolhost") && !told.contains("requiredCapabilities"),
                "{language}: {told}"
            );
        }
    }
    // The control: what it was refused is not known, and only then a command shows more.
    let fails = json!({"language": "python", "code": "1 / 0"}).to_string();
    let told = |more: &[&str]| {
        let words = [&["call", "core:run-code", "--input", &fails][..], more].concat();
        playground.cli(&words).stderr
    };
    let printed = command(&told(&[]), "audit core:run-code");
    assert_eq!(run(&playground, &printed, "").code, Some(0), "{printed}");
    assert!(
        !told(&["--explain"]).contains("`toolhost"),
        "{}",
        told(&["--explain"])
    );
    let refused = playground.cli(&["allow", "core:run-code", "--host", "example.com"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("no network"),
        "{refused:?}"
    );
}

/// A lock that a policy names and nobody wrote is found before a call is.
#[test]
fn a_lock_that_is_missing_is_told_by_check() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let lines = "[packages]\npython = { index = \"default\", lock_file = \"x.pylock.toml\", why = \"w\" }\n";
    let checked = |more: &str| {
        playground.policy("run", "core:run-code", more);
        playground.settle();
        playground.cli(&["check"]).text()
    };
    let told = checked(lines);
    assert!(
        told.contains("every call is refused") && told.contains("1 warning"),
        "{told}"
    );
    let input = json!({"language": "python", "code": "print(1)"}).to_string();
    playground.expect("core:run-code", &input, "DependencyError: does not exist");
    // The control, and a folder without policies beside them is no policy with a wrong name.
    fs::create_dir_all(playground.path("sandbox-policies/presets")).unwrap();
    let told = checked("");
    assert!(
        !told.contains("every call is refused") && !told.contains("presets"),
        "{told}"
    );
    playground.expect("core:run-code", &input, "ok 1");
    fs::write(
        playground.path("sandbox-policies/presets/a.policy.toml"),
        "",
    )
    .unwrap();
    assert!(
        checked("").contains("presets"),
        "what is not in force is told"
    );
}

/// Who raises a limit, by the key that the place has.
#[test]
fn a_limit_is_told_once_with_the_key_of_the_place() {
    let writes = "print('x' * 3_000_000)\n";
    let playground = Playground::with(Who::ours(), &[("writes", "python", writes, json!({}))]);
    playground.allow_builtin_tools();
    playground.settle();
    let code = json!({"language": "python", "code": writes}).to_string();
    for (tool, input) in [("esc:writes", "{}"), ("core:run-code", &code)] {
        let told = playground.cli(&["call", tool, "--input", input]).stderr;
        let line = told.lines().find(|line| line.contains("outputBytes: "));
        let line = line.unwrap_or_else(|| panic!("{tool}: {told}"));
        assert_eq!(
            line.matches("built-in default").count(),
            1,
            "{tool}: {line}"
        );
        assert!(
            line.contains("output_bytes below [limits]"),
            "{tool}: {line}"
        );
        assert!(
            !line.contains("manifest"),
            "{tool}: nothing requests more than the most: {line}"
        );
    }
}

/// That a script reads its arguments from standard input is told where nothing else explains its
/// failure.
#[test]
fn how_arguments_arrive_is_told_only_where_nothing_else_explains_a_failure() {
    let lacks = "import json\njson.loads('{')['url']\n";
    let tools = [
        ("fails", "python", lacks, json!({})),
        (
            "looks",
            "python",
            "import socket\nsocket.getaddrinfo('example.com', 80)\n",
            json!({}),
        ),
    ];
    let playground = Playground::with(Who::ours(), &tools);
    let words = "A script gets its arguments as JSON on standard input";
    for (tool, input, told) in [
        ("esc:fails", "{\"url\": \"x\"}", true),
        ("esc:fails", "{}", false),
        ("esc:looks", "{\"url\": \"x\"}", false),
    ] {
        let said = playground.cli(&["call", tool, "--input", input]).stderr;
        assert_eq!(said.contains(words), told, "{tool} {input}: {said}");
    }
}

#[test]
fn a_policy_is_suggested_for_where_policies_are_read() {
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    let playground = Playground::with(Who::ours(), &[("asks", "python", "print(1)\n", asks)]);
    let file = playground.path("sandbox-policies/default.policy.toml");
    let file = file.to_str().unwrap();
    let one = playground.cli(&["audit", "esc:asks", "--suggest-policy", "--policies", file]);
    let text = one.text();
    assert!(
        text.contains("reads one file of policies") && !text.contains(".toml/"),
        "{text}"
    );
    // The control: a folder of policies gets a file, by a command that names the same folder.
    let folder = playground.path("sandbox-policies");
    let folder = folder.to_str().unwrap();
    let text = playground
        .cli(&[
            "audit",
            "esc:asks",
            "--suggest-policy",
            "--policies",
            folder,
        ])
        .text();
    let printed = command(&text, "--suggest-policy --out");
    assert!(
        printed.contains(&format!("--policies {folder}")),
        "{printed}"
    );
    assert_eq!(run(&playground, &printed, "").code, Some(0), "{printed}");
    // A refusal names the command that does it in one step.
    fs::remove_file(folder.to_owned() + "/esc-asks.policy.toml").unwrap();
    let refused = playground
        .cli(&["call", "esc:asks", "--input", "{}"])
        .stderr;
    let printed = command(&refused, "allow esc:asks");
    let allowed = run(&playground, &printed, "y\n");
    assert_eq!(allowed.code, Some(0), "{printed}: {}", allowed.stderr);
    playground.expect("esc:asks", "{}", "ok");
}

/// The grant that helps is that of what a temporary file lies beside: its name is another each time.
#[test]
fn a_temporary_file_is_granted_by_what_it_lies_beside() {
    let makes = "import json, os, sys, tempfile\nwhere = json.load(sys.stdin).get('where')\n\
        folder = os.path.dirname(where) if where else '.'\nfd, t = tempfile.mkstemp(dir=folder, suffix='.tmp')\n\
        os.write(fd, b'1')\nos.close(fd)\nos.replace(t, where or 'state.json')\nprint(1)\n";
    let playground = Playground::with(Who::ours(), &[("atom", "python", makes, json!({}))]);
    let beside = playground.path("beside");
    fs::create_dir(&beside).unwrap();
    playground.settle();
    let elsewhere = json!({"where": beside.join("out.json")}).to_string();
    let mut reads = playground.host();
    reads.args([
        "allow",
        "esc:atom",
        "--read",
        &format!("{}/", beside.display()),
    ]);
    assert_eq!(finish(reads, b"y\n").code, Some(0));
    for (input, grant) in [("{}", "state.json"), (&elsewhere, "beside/")] {
        for more in [&[][..], &["--explain"]] {
            let words = [&["call", "esc:atom", "--input", input][..], more].concat();
            let told = playground.cli(&words).stderr;
            let printed = command(&told, "allow esc:atom --write");
            assert!(
                printed.contains(grant) && !printed.contains(".tmp"),
                "{printed}: {told}"
            );
        }
        let told = playground
            .cli(&["call", "esc:atom", "--input", input])
            .stderr;
        let printed = command(&told, "allow esc:atom --write");
        let allowed = run(&playground, &printed, "y\n");
        assert_eq!(allowed.code, Some(0), "{printed}: {}", allowed.stderr);
        playground.expect("esc:atom", input, "ok 1");
    }
    // The control: a file that the arguments name is granted alone.
    let writes = "import json, sys\nopen(json.load(sys.stdin)['where'], 'w')\n";
    playground.tool("plain", "python", writes, json!({}));
    playground.settle();
    let told = playground.cli(&["call", "esc:plain", "--input", &elsewhere, "--explain"]);
    let printed = command(&told.stderr, "allow esc:plain --write");
    assert!(printed.contains("beside/out.json"), "{printed}");
}

#[test]
fn the_commonest_first_mistakes_are_told_their_fix() {
    let python = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let tools = [
        python("key", "import os\nos.environ['API_KEY']\n"),
        python("text", "print('hello you')\n"),
        python("syntax", "def (:\n"),
        python("nan", "print('{\"a\": NaN}')\n"),
        python("files", "all = [open('/dev/null') for n in range(99999)]\n"),
    ];
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, text) in &tools {
        playground.tool(name, "python", text, json!({}));
    }
    playground.settle();
    for (name, wanted) in [
        ("key", "\"secret:API_KEY\""),
        ("text", "\"execution\": {\"output\": \"text\"}"),
        ("syntax", "SyntaxError"),
        ("nan", "NaN and Infinity are none: write null"),
        ("files", "openFiles: "),
    ] {
        let told = playground.cli(&["call", &format!("esc:{name}")]).stderr;
        assert!(told.contains(wanted), "{name}: {told}");
        assert!(
            name != "syntax" || !told.contains("--explain"),
            "no refusal is its cause: {told}"
        );
    }
}
