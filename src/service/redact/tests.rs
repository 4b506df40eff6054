//! What is hidden, where, and what it may cost.

use super::*;
use serde_json::json;

#[test]
fn secrets_are_hidden_where_they_are_and_where_they_are_echoed() {
    let schema = json!({
        "properties": {
            "token": {"type": "string", "writeOnly": true},
            "login": {"$ref": "#/$defs/login"},
            "keys": {"type": "array", "items": {"x-secret": true}},
            "plain": {"type": "string"},
        },
        "$defs": {"login": {"properties": {"password": {"x-secret": true}}}},
    });
    let arguments = json!({
        "token": "hunter2", "login": {"user": "alice", "password": "swordfish\nsecond line"},
        "keys": ["key-one", 123_456], "plain": "visible",
    });
    let (mask, shown) = Mask::of(Some(&schema), &arguments);
    let expected = json!({
        "token": "***", "login": {"user": "alice", "password": "***"}, "keys": ["***", "***"], "plain": "visible",
    });
    assert_eq!(shown, expected);
    assert_eq!(mask.text("hunter2 and swordfish, key-one, 123456, visible"), "*** and ***, ***, ***, visible");
    assert_eq!(mask.text("log: second line"), "log: ***");
}

#[test]
fn no_word_of_a_schema_hides_a_secret_from_us() {
    let secret = || json!({"writeOnly": true});
    let arguments = json!({"x_key": "hunter2", "list": ["swordfish"]});
    for schema in [
        json!({"patternProperties": {"^x_": secret()}}),
        json!({"unevaluatedProperties": secret()}),
        json!({"if": {}, "then": {"properties": {"x_key": secret()}}}),
        json!({"if": {}, "else": {"properties": {"x_key": secret()}}}),
        json!({"dependentSchemas": {"list": {"properties": {"x_key": secret()}}}}),
    ] {
        assert_eq!(Mask::of(Some(&schema), &arguments).1["x_key"], "***", "{schema}");
    }
    for word in ["items", "contains", "unevaluatedItems"] {
        let schema = json!({"properties": {"list": {word: secret()}}});
        assert_eq!(Mask::of(Some(&schema), &arguments).1["list"], json!(["***"]), "{schema}");
    }
    let schema = json!({"properties": {"list": {"prefixItems": [secret()]}}});
    assert_eq!(Mask::of(Some(&schema), &arguments).1["list"], json!(["***"]));
}

#[test]
fn an_entangled_schema_costs_little_and_hides_all() {
    let branch = || json!({"required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}});
    let schema = json!({
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [branch(), branch(), branch()]}, "s": {"writeOnly": true}},
    });
    let mut arguments = json!({"secret": "hunter2"});
    for _ in 0..100 {
        arguments = json!({"x": arguments});
    }
    assert_eq!(Mask::of(Some(&schema), &arguments).1, arguments, "each schema is looked at once a value");
    let many: Vec<Value> = (0..200).map(|n| json!({"properties": {"x": {"$ref": "#"}}, "title": n})).collect();
    let (mask, shown) = Mask::of(Some(&json!({"anyOf": many})), &arguments);
    assert_eq!(shown, "***");
    assert_eq!(mask.text("it was hunter2"), "it was ***");
}

#[test]
fn an_answer_stays_one_document() {
    let schema = json!({"properties": {"t": {"x-secret": true}, "n": {"writeOnly": true}, "q": {"x-secret": true}}});
    let (mask, _) = Mask::of(Some(&schema), &json!({"t": "n123secret", "n": 123_456, "q": "a\"b\\c"}));
    for (answer, shown) in [
        (json!({"got": "n123secret", "n": 123_456, "m": 1_234_567}), json!({"got": "***", "n": "***", "m": 1_234_567})),
        // The escape of a line break ends with the letter that the secret begins with.
        (json!(["\nn123secret", "x\u{1}n123secret", "in a\"b\\c text"]), json!(["\n***", "x\u{1}***", "in *** text"])),
        (json!({"n123secret": 1, "n123secret!": 2}), json!({"***": 1, "***! (2)": 2})),
        (json!("n123secret"), json!("***")),
    ] {
        let found: Value = serde_json::from_str(&mask.answer(&answer.to_string()).unwrap()).unwrap();
        assert_eq!(found, shown);
    }
    for plain in [json!({"got": "n123", "n": 12_345}), json!("begins like n123secre"), json!(null)] {
        assert_eq!(mask.answer(&plain.to_string()), None, "{plain}");
    }
}

#[test]
fn a_quoted_secret_is_hidden_too() {
    let schema = json!({"properties": {"token": {"x-secret": true}}});
    let (mask, _) = Mask::of(Some(&schema), &json!({"token": "a\"b\\c"}));
    assert_eq!(mask.text(&json!({"t": "a\"b\\c"}).to_string()), r#"{"t":"***"}"#);
}

#[test]
fn secrets_that_overlap_are_hidden_as_one() {
    let schema = json!({"properties": {"keys": {"x-secret": true}}});
    let (mask, _) = Mask::of(Some(&schema), &json!({"keys": ["abcdef", "defghi", "bcde", "ghij klm"]}));
    for (text, shown) in [
        ("x abcdefghij klm y", "x *** y"),
        ("xbcdey bcde", "x***y ***"),
        ("abcdefabcdef", "******"),
        ("xcdey", "xcdey"),
    ] {
        assert_eq!(mask.text(text), shown, "{text}");
    }
    assert_eq!(mask.answer(r#"{"abcdefghi":"xabcdefghi"}"#).as_deref(), Some(r#"{"***":"x***"}"#));
}

#[test]
fn a_short_secret_is_hidden_only_where_it_is_a_parameter() {
    let schema = json!({"properties": {"pin": {"writeOnly": true}}});
    let (mask, shown) = Mask::of(Some(&schema), &json!({"pin": "1"}));
    assert_eq!(shown, json!({"pin": "***"}));
    assert_eq!(mask.text("exit 1"), "exit 1");
}

#[test]
fn a_secret_is_found_wherever_a_schema_can_say_so() {
    let secret = json!({"x-secret": true});
    let cases = [
        (json!({"if": {}, "then": {"properties": {"a": secret}}}), json!({"a": "hunter2"})),
        (json!({"else": {"properties": {"a": secret}}}), json!({"a": "hunter2"})),
        (json!({"patternProperties": {"^a": secret}}), json!({"a": "hunter2"})),
        (json!({"properties": {"a": {"prefixItems": [{}, secret]}}}), json!({"a": ["plain", "hunter2"]})),
        (json!({"properties": {"a": {"prefixItems": [{}], "items": secret}}}), json!({"a": ["plain", "hunter2"]})),
        (json!({"properties": {"a": {"contains": secret}}}), json!({"a": ["hunter2"]})),
        (json!({"dependentSchemas": {"b": {"properties": {"a": secret}}}}), json!({"a": "hunter2", "b": 1})),
        (json!({"unevaluatedProperties": secret}), json!({"a": "hunter2"})),
        (json!({"additionalProperties": secret}), json!({"a": "hunter2"})),
    ];
    for (schema, arguments) in cases {
        let (mask, shown) = Mask::of(Some(&schema), &arguments);
        assert!(!shown.to_string().contains("hunter2"), "{schema}: {shown}");
        assert_eq!(mask.text("the hunter2"), "the ***", "{schema}");
    }
    let first = json!({"properties": {"a": {"prefixItems": [secret], "items": {}}}});
    assert_eq!(Mask::of(Some(&first), &json!({"a": ["hunter2", "plain"]})).1, json!({"a": ["***", "plain"]}));
}

#[test]
fn a_secret_is_found_as_json_escapes_it_and_where_a_cut_left_a_part() {
    let schema = json!({"properties": {"key": {"writeOnly": true}}});
    let (mask, _) = Mask::of(Some(&schema), &json!({"key": "quo\"te\nnäxt"}));
    assert_eq!(mask.text(&json!({"echo": "quo\"te\nnäxt"}).to_string()), r#"{"echo":"***"}"#);
    assert_eq!(mask.text(r#"{"echo": "quo\"te\nn\u00e4xt"}"#), r#"{"echo": "***"}"#);
    let (mask, _) = Mask::of(Some(&schema), &json!({"key": "swordfish"}));
    assert_eq!(mask.text("stdout began with: the swordf… and so on"), "stdout began with: the ***… and so on");
    assert_eq!(mask.text("stderr: …dfish is wrong"), "stderr: …*** is wrong");
    assert_eq!(mask.text("the last line: sword"), "the last line: ***");
    assert_eq!(mask.text("the swo… is too little to hide"), "the swo… is too little to hide");
}

#[test]
fn more_secrets_than_can_be_looked_for_hide_the_whole_text() {
    let schema = json!({"properties": {"keys": {"x-secret": true}}});
    let mask = |count: usize| {
        let keys: Vec<String> = (0..count).map(|n| format!("key-{n:06}-very-secret")).collect();
        Mask::of(Some(&schema), &json!({"keys": keys})).0
    };
    let started = std::time::Instant::now();
    let (few, many) = (mask(50), mask(100_000));
    for line in 0..1000 {
        let text = format!("line {line}: key-000049-very-secret and the start of one: key-0000");
        assert_eq!(few.text(&text), format!("line {line}: *** and the start of one: ***"));
        assert!(!many.text(&text).contains("key-0"));
    }
    assert_eq!(many.text("anything"), "***");
    // What is long to compare counts as well: a start that is nearly there, again and again.
    let key = format!("{}b", "a".repeat(4096));
    let long = Mask::of(Some(&schema), &json!({"keys": [key]})).0;
    let text = format!("{}c…", "a".repeat(3000));
    (0..1000).for_each(|_| drop(long.text(&text)));
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn what_may_be_a_secrets_name_misspelt_is_hidden() {
    let text = r#"{"toolId":"t:x","displayName":"x","description":"d","version":"1.0.0",
            "handler":{"type":"external-script","scriptPath":"x.py","language":"python"},
            "parameters":{"type":"object","properties":{"pass":{"type":"string","writeOnly":true},"n":{"type":"integer"}}}}"#;
    let manifest = crate::manifest::read(text.as_bytes()).expect("a manifest").0;
    let (mask, shown) = of_arguments(&manifest, &json!({"pas": "hunter22", "n": 3}));
    assert!(shown == Shown::Tree(json!({"pas": "***", "n": 3})), "{shown}");
    assert_eq!(mask.text("unknown hunter22"), "unknown ***");
}

/// However a text is cut, its pieces together are the text with its secrets hidden.
#[test]
fn a_text_in_pieces_shows_what_the_whole_shows() {
    let mut mask = Mask::default();
    mask.add(["abcd", "cdef", "aaaa", "xyzxyz", "ößäü"].map(str::to_owned));
    let mut seed = 7_u32;
    let mut next = |most: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % most
    };
    let words = ["abcd", "cdef", "ab", "abc", "aaa", "a", "xyz", "öß", "äü", "q", "def"];
    for case in 0..4000 {
        let text: String = (0..next(9)).map(|_| words[next(words.len())]).collect();
        let (mut held, mut shown, mut pieces) = (Held::default(), String::new(), Vec::new());
        let chars: Vec<char> = text.chars().collect();
        let mut rest = chars.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + next(rest.len()));
            let piece: String = piece.iter().collect();
            shown += &mask.piece(&mut held, &piece);
            pieces.push(piece);
            rest = after;
        }
        shown += &mask.rest(&mut held);
        let whole = mask.whole(&text).expect("few");
        assert_eq!((&shown, held.hid), (&whole, whole != text), "{pieces:?}");
        let list = mask.list(&json!(pieces).to_string());
        let listed = list.map(|list| serde_json::from_str::<Vec<String>>(&list).expect("a list").concat());
        assert_eq!(listed, (whole != text).then_some(whole), "{case}: {pieces:?}");
    }
}

#[test]
fn how_much_stays_back_of_a_secret_to_guess_depends_on_its_length_alone() {
    let mut mask = Mask::default();
    mask.also_unknown(std::iter::once("s3cret-key"));
    let told = |pieces: &[&str]| {
        let mut held = Held::default();
        let lengths: Vec<usize> = pieces.iter().map(|piece| mask.piece(&mut held, piece).len()).collect();
        (lengths, mask.rest(&mut held))
    };
    let filler = "x".repeat(200);
    let (right, _) = told(&[&filler, "s3cret-", "ke"]);
    let (wrong, _) = told(&[&filler, "S3cret_", "Ke"]);
    assert!(right == wrong && right[0] > 100, "{right:?} {wrong:?}");
    assert_eq!(told(&["s3cret", "-key"]).1, "***");
    // Of more than can be looked for at once nothing stays back, and nothing is told that was not there.
    let mut many = Mask::default();
    many.add((0..60_000).map(|n| format!("key-{n:07}")));
    let mut held = Held::default();
    assert_eq!([many.piece(&mut held, "key-00"), many.piece(&mut held, "x key-0000001")], ["key-00", "x ***"]);
    assert_eq!(many.rest(&mut held), "");
    // The control: what the caller gave itself stays back where it begins, and not else.
    let mut own = Mask::default();
    own.add(["s3cret-key".to_owned()]);
    let mut held = Held::default();
    assert_eq!(
        [own.piece(&mut held, "x s3c"), own.piece(&mut held, "x"), own.piece(&mut held, "yz")],
        ["x ", "s3cx", "yz"]
    );
}
