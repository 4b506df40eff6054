//! The masker alone: every mixture of encodings, and texts in pieces.

use crate::prelude::*;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use toolhost::base::mask::{Mask, Search, TextStream};

/// Secrets that themselves hold what begins an encoded character, and others.
const SECRETS: [&str; 7] = [
    "s3cret/Value+\"1",
    "a%2Bb&lt;c\\u0041d%",
    "p&amp;q\\/r%%s\\",
    "words with blanks & 'signs'",
    "Zq7-swordfish_4711",
    "käse-😀-größe",
    "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nhunter2+hunter2/hunter2==\n",
];

/// Bytes that may belong to a secret whose base64 is so long.
fn reach(longest: usize) -> usize {
    24 * (longest + 12)
}

fn mask<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Mask {
    let mut mask = Mask::default();
    secrets
        .into_iter()
        .for_each(|secret| mask.add(secret.as_ref()));
    mask
}

/// One character, as some encoder may write it.
fn encoded(c: char, rng: &mut TestRng) -> String {
    let (value, zeros) = (u32::from(c), "0".repeat(rng.random_range(0..3)));
    match rng.random_range(0..16) {
        0 => c
            .to_string()
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect(),
        1 => c
            .to_string()
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect(),
        2 => c
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect(),
        3 => c
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04X}"))
            .collect(),
        4 if c.is_ascii() => format!("\\x{value:02x}"),
        5 => format!("&#{zeros}{value};"),
        6 => format!("&#x{zeros}{value:x};"),
        7 => format!("&#X{zeros}{value:X};"),
        8 => format!("\\u{{{value:x}}}"),
        9 if "\"\\/'".contains(c) => format!("\\{c}"),
        10 if c == '\n' => "\\n".to_owned(),
        11..13 => match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '"' => "&quot;".to_owned(),
            '\'' => "&apos;".to_owned(),
            c => c.to_string(),
        },
        _ => c.to_string(),
    }
}

fn mixture(text: &str, rng: &mut TestRng) -> String {
    let mut all = String::new();
    for c in text.chars() {
        let next = encoded(c, rng);
        // Behind a backslash that stands for itself nothing can begin with one: it is doubled.
        if all.ends_with('\\') && !all.ends_with("\\\\") && next.starts_with('\\') {
            all.push('\\');
        }
        all += &next;
    }
    all
}

/// As several encoders write it, some after another.
fn dressed(secret: &str, rng: &mut TestRng) -> (String, bool) {
    let based = |engine: &dyn Fn(&[u8]) -> String, rng: &mut TestRng| {
        let inside = format!(
            "{}{secret}{}",
            "x".repeat(rng.random_range(0..5)),
            "yz".repeat(rng.random_range(0..2))
        );
        let (width, end) = (
            rng.random_range(4..80),
            ["\n", "\r\n", "\n  "][rng.random_range(0..3)],
        );
        let letters: Vec<char> = engine(inside.as_bytes()).chars().collect();
        letters
            .chunks(width)
            .map(String::from_iter)
            .collect::<Vec<_>>()
            .join(end)
    };
    let text = match rng.random_range(0..4) {
        0 => based(&|bytes| STANDARD.encode(bytes), rng),
        1 => based(&|bytes| URL_SAFE_NO_PAD.encode(bytes), rng),
        _ => secret.to_owned(),
    };
    let based = text != secret;
    let text = match rng.random_range(0..4) {
        0 => text,
        1 => percent_encoding::utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC)
            .to_string(),
        _ => mixture(&text, rng),
    };
    (text, based)
}

fn whole(mask: &Mask, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    mask.finder()
        .unwrap()
        .all(text.as_bytes())
        .into_iter()
        .for_each(|secret| bytes[secret].fill(b'*'));
    bytes
}

/// In pieces of random lengths: what the relay does, and what the output does.
fn in_pieces(mask: &Mask, text: &str, rng: &mut TestRng) -> (Vec<u8>, String) {
    let mut search = Search::new(mask.finder().unwrap(), true);
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rng.random_range(1..=rest.len().min(30)));
        bytes.extend(search.push(piece));
        rest = after;
    }
    bytes.extend(search.finish());
    let (mut held, mut shown, chars) = (
        TextStream::default(),
        String::new(),
        text.chars().collect::<Vec<_>>(),
    );
    let mut rest = chars.as_slice();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rng.random_range(1..=rest.len().min(30)));
        shown += &mask.piece(&mut held, Some(&piece.iter().collect::<String>()));
        rest = after;
    }
    shown += &mask.piece(&mut held, None);
    (bytes, shown)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_mixture_is_found_and_pieces_show_what_the_whole_shows(
        which in 0..SECRETS.len(), before in "[a-z ,:]{0,40}", after in "[ .,;g-z]{0,120}", seed in any::<[u8; 32]>(),
    ) {
        let mut rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
        let secret = SECRETS[which];
        let mask = mask([secret]);
        let (dress, based) = dressed(secret, &mut rng);
        let text = format!("{before} {dress} {after}");
        let shown = whole(&mask, &text);
        prop_assert_eq!(shown.len(), text.len());
        // Of base64 its ends belong to its neighbours, too; and what follows a secret may be read
        // with its last sign.
        let stars = shown.iter().filter(|b| **b == b'*').count();
        let least = if based { secret.len() } else { dress.len().saturating_sub(12) };
        prop_assert!(stars >= least, "{dress}\n{}", String::from_utf8_lossy(&shown));
        prop_assert!(shown.starts_with(before.as_bytes()) && shown.ends_with(after.as_bytes()));
        let (bytes, text_shown) = in_pieces(&mask, &text, &mut rng);
        prop_assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&shown));
        prop_assert_eq!(text_shown, mask.whole(&text));
        // The control: another text of the same shape.
        let other: String = secret.chars().map(|c| if c.is_ascii_alphabetic() { 'q' } else { c }).collect();
        let text = format!("{before} {} {after}", dressed(&other, &mut rng).0);
        prop_assert_eq!(String::from_utf8(whole(&mask, &text)).unwrap(), text);
    }

    #[test]
    fn how_much_is_held_back_does_not_depend_on_what_a_text_says(
        text in "[s3cret/Value+1]{0,900}|(%7[0-9]|&#x0?7[0-9];|\\\\u007[0-9]|\n){0,300}", cut in 1..20usize,
    ) {
        let mut search = Search::new(mask([SECRETS[0]]).finder().unwrap(), true);
        let shown: usize = text.as_bytes().chunks(cut).map(|piece| search.push(piece).len()).sum();
        prop_assert_eq!(text.len() - shown, text.len().min(reach(20)));
    }
}

#[test]
fn many_secrets_beside_many_cuts_take_little_time() {
    let text = "key-000-swordfish […] […\n… cut …]\n".repeat(20_000);
    for count in [256, 20_000] {
        let mask = mask((0..count).map(|n| format!("key-{n:03}-swordfish")));
        let began = processor_time();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let shown = [mask.text(&text), mask.lines(&lines).concat()].concat();
        assert!(
            !shown.contains("swordfish") && shown.contains("***"),
            "{count}"
        );
        let took = processor_time() - began;
        assert!(took < Duration::from_secs(10), "{count}: {took:?}");
    }
}

#[test]
fn beside_a_cut_as_much_is_hidden_as_a_secret_may_have_whatever_stands_there() {
    let secret = "Zq7-swordfish_4711";
    let (mask, reach) = (mask([secret]), reach(24));
    let encoded: String = secret
        .bytes()
        .map(|byte| format!("&#x{byte:04x};"))
        .collect();
    for guess in [
        &secret[..8],
        "xxxxxxxx",
        &encoded[..40],
        &encoded[..encoded.len() - 9],
    ] {
        let (before, after) = ("a".repeat(reach), "b".repeat(reach));
        let start = format!("{}***", &before[..guess.len()]);
        let end = format!("***{}", &after[reach - guess.len()..]);
        assert_eq!(mask.text(&format!("{before}{guess}…")), format!("{start}…"));
        assert_eq!(
            mask.text(&format!("{before}{guess}[…] so")),
            format!("{start}[…] so")
        );
        assert_eq!(mask.text(&format!("…{guess}{after}")), format!("…{end}"));
        let lines = [
            format!("{before}{guess}"),
            "[… 7 bytes cut …]".to_owned(),
            format!("{guess}{after}"),
        ];
        // A line break stands beside each cut.
        assert_eq!(
            mask.lines(&lines),
            [start.replacen("***", "a***", 1), lines[1].clone(), end],
            "{guess}"
        );
    }
    let plain = "[network] hosts = [{ why = \"…\" }] and … more";
    assert_eq!(mask.text(plain), plain);
}

/// Letters beyond ASCII, as encoders write them that know of bytes or of code points alone.
#[test]
fn letters_of_every_script_and_case_are_found() {
    for (secret, forms) in [
        (
            "größe-straße",
            &[
                "gr%F6%DFe-stra%DFe",
                r"gr\xf6\xdfe-stra\xdfe",
                "GRÖẞE-STRAẞE",
                "gr%C3%B6ße-stra&#xDF;e",
            ][..],
        ),
        (
            "ß§ß§ß§ß§",
            &[
                "%DF%A7%DF%A7%DF%A7%DF%A7",
                r"\xc3\x9f\xc2\xa7ß§ß§ß§",
                "ẞ§ẞ§ß§ß§",
            ],
        ),
        ("Ã¤Ã¤Ã¤Ã¤", &[r"\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"]),
        (
            "λόγος-пароль",
            &[
                "ΛΌΓΟΣ-ПАРОЛЬ",
                r"\u03bb\u03cc\u03b3\u03bf\u03c2-ПАРОЛЬ",
                "λόγοσ-пароль",
            ],
        ),
        ("kelvin-secret", &["\u{212a}elvin-\u{17f}ecret"]),
        (
            "ä€ä€ä€ä€",
            &[
                r"\xe4\u20ac\xe4\u20ac\xe4\u20ac\xe4\u20ac",
                "%E4€%C3%A4€Ä€ä€",
            ],
        ),
    ] {
        let mask = mask([secret]);
        for form in forms {
            assert_eq!(
                mask.whole(&format!("<{form}>")),
                "<***>",
                "{secret}: {form}"
            );
            let json = json!([1, {"a": form}]).to_string();
            assert_eq!(
                mask.answer(&json, &Mask::default(), false).as_deref(),
                Some(r#"[1,{"a":"***"}]"#),
                "{form}"
            );
            // The control: another letter.
            let other = form.replacen(['g', 'G', '%', '\\', 'ẞ', 'Λ', 'λ', '\u{212a}'], "q", 1);
            assert_eq!(mask.whole(&other), other, "{secret}");
        }
    }
    let latin: Vec<u8> = "größe-straße".chars().map(|c| c as u8).collect();
    let found = mask(["größe-straße"]).finder().unwrap().all(&latin);
    assert_eq!(
        (found.len(), found[0].clone()),
        (1, 0..12),
        "bytes that are not UTF-8"
    );
}
