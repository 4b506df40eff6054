//! Secrets in other dresses: what a tool prints, logs and fails with shows none of them, and
//! another text stays.

use crate::http::private;
use crate::prelude::*;

const KEY: &str = "s3cret/Key+with=signs-0123456789&<'\"";
const DRESSED: &str = include_str!("network/dressed.py");

/// Tells its key and another in each dress: as answer, in its log, and where it fails.
const TELLS: &str = "\nimport os, sys\ngiven = json.load(sys.stdin)\nkey = os.environ.get('KEY') \
    or given['key']\nown, other = dressed(key), dressed(another(key))\nfor name in own: \
    print(name, own[name], other[name], file=sys.stderr)\nif given.get('fails'): \
    sys.exit(own['mixed'] + ' ' + other['mixed'])\nprint(json.dumps({'own': own, 'other': other, \
    'backwards': {n: t[::-1] for n, t in own.items()},\n  'others': \
    {n: t[::-1] for n, t in other.items()}, 'names': {key: 1, key + '!': 2}}))\n";

fn tool(playground: &Playground, name: &str, mut more: Value) {
    more["parameters"] = json!({"type": "object", "properties": {
        "key": {"type": "string", "writeOnly": true, "description": "d"},
        "fails": {"type": "boolean", "description": "d"},
        "login": {"type": "object", "description": "d", "properties": {"pin": {"type": "string", "x-secret": true}}},
    }});
    playground.tool(name, "python", &format!("{DRESSED}{TELLS}"), more);
}

/// A secret of the host, which `esc:keyed` may have as the variable `KEY`.
pub fn keyed(playground: &Playground, secret: &str) {
    fs::create_dir_all(playground.path("sandbox-policies/keys")).unwrap();
    let grant = "[limits]\ntimeout_ms = 120_000\n[files]\n\
                 read = [{ path = \"./**\", why = \"w\" }]\n[secrets]\n\
                 grant = [{ name = \"KEY\", from = \"file:keys/KEY\", why = \"w\" }]\n";
    playground.policy("keyed", "esc:keyed", grant);
    playground.settle();
    private(playground, "sandbox-policies/keys/KEY", secret);
}

fn backwards(text: &Value) -> String {
    text.as_str().unwrap().chars().rev().collect()
}

/// All that is kept of calls.
fn kept(playground: &Playground) -> String {
    let state = walkdir::WalkDir::new(playground.path("state"))
        .into_iter()
        .flatten();
    let files = state
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| fs::read(entry.path()).unwrap());
    files
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect()
}

/// No form of the key is in what was printed or kept, and each form of the other text is.
fn holds_none(playground: &Playground, ended: &Ended, answer: &Value) {
    let (own, others) = (
        answer["backwards"].as_object().unwrap(),
        answer["others"].as_object().unwrap(),
    );
    for (name, text) in own {
        let shown = answer["own"][name].as_str().unwrap();
        assert!(
            shown.contains("***") && !shown.contains(&backwards(text)),
            "{name}: {shown}"
        );
        assert_eq!(
            answer["other"][name],
            backwards(&others[name]),
            "the control: {name}"
        );
    }
    let places = [kept(playground), ended.text(), ended.stderr.clone()];
    for (name, text) in own
        .iter()
        .filter(|(name, _)| !name.starts_with("base64 in lines"))
    {
        let form = backwards(text);
        assert!(
            places.iter().all(|place| !place.contains(&form)),
            "{name}: {form} in {places:#?}"
        );
    }
    assert!(
        places
            .iter()
            .any(|place| place.contains(&backwards(&others["percent"]))),
        "the control: {places:#?}"
    );
}

#[test]
fn no_dress_of_a_secret_is_printed_or_kept() {
    as_everyone("dressed secrets", |who| {
        let playground = Playground::new(who, "/var/tmp");
        tool(
            &playground,
            "keyed",
            json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}}),
        );
        tool(&playground, "given", json!({}));
        keyed(&playground, KEY);
        let names = [
            json!({"***": 1, "***! (2)": 2}),
            json!({KEY: 1, format!("{KEY}!"): 2}),
        ];
        for (id, arguments, names) in [
            ("esc:keyed", json!({}), &names[0]),
            ("esc:given", json!({"key": KEY}), &names[1]),
        ] {
            let ended =
                playground.call_with(id, &arguments.to_string(), &["--verbose", "--log", "debug"]);
            let answer = ended.out["outputData"].clone();
            assert_eq!(&answer["names"], names, "{who:?} {id}: {ended:?}");
            let logs = ended.out["logs"].to_string();
            assert!(
                logs.contains("***") && !logs.contains("s3cret"),
                "{who:?}: {logs}"
            );
            if id == "esc:keyed" {
                holds_none(&playground, &ended, &answer);
            }
            let mut failing = arguments.clone();
            failing["fails"] = json!(true);
            let failed = playground.call_with(id, &failing.to_string(), &[]);
            let error = failed.out["error"].to_string();
            assert_eq!(failed.kind(), "ScriptError", "{who:?}: {failed:?}");
            assert!(
                error.contains("***") && !error.contains("s%33"),
                "{who:?}: {error}"
            );
        }
        // An argument is hidden where it stands, also in a list where an object is expected, and
        // however short: the sign occurs in no digest and no time.
        let wrong = json!({"key": KEY, "login": [{"pin": "~q~Z"}]}).to_string();
        let refused = playground.call_with("esc:given", &wrong, &["--log", "debug"]);
        assert_eq!(refused.kind(), "ParameterValidationError", "{refused:?}");
        let kept = kept(&playground);
        assert!(kept.contains("pin"), "the control: {kept}");
        assert!(
            !kept.contains("~q~Z") && !refused.stderr.contains("~q~Z"),
            "{kept}\n{refused:?}"
        );
    });
}

#[test]
fn a_secret_is_read_for_each_call_and_one_too_short_to_be_hidden_refuses() {
    as_everyone("short secrets", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let backwards = "import json, os\nprint(json.dumps(os.environ['KEY'][::-1]))\n";
        let asks = json!({"securityContext": {"requiredCapabilities": ["secret:KEY"]}});
        playground.tool("keyed", "python", backwards, asks);
        for (value, shown) in [
            ("1234567", Value::Null),
            ("12345678", json!("87654321")),
            ("abcdefgh", json!("hgfedcba")),
        ] {
            keyed(&playground, value);
            let ended = playground.call_with("esc:keyed", "{}", &[]);
            assert_eq!(ended.out["outputData"], shown, "{who:?}: {ended:?}");
            let short = shown.is_null();
            assert_eq!(
                ended.stderr.contains("fewer than 8 bytes"),
                short,
                "{who:?}: {ended:?}"
            );
            let check = playground.cli(&["check"]).text();
            assert_eq!(
                check.contains("fewer than 8 bytes"),
                short,
                "{who:?}: {check}"
            );
        }
    });
}
