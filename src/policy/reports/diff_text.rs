//! Diff text: a `Diff` for a person.
//!
//! For: `diff`. In: what differs. Out: text. Never: outside text unescaped; more of one tool than a person reads.

use super::diff::Diff;
use crate::base::text::{head, json as visible, printable};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most differences of one tool in a text, and the longest value in one.
const MOST_SHOWN: usize = 50;
const WIDEST: usize = 120;

pub fn text(diff: &Diff) -> String {
    let newly = diff.newly.iter().map(|c| (c.subject.as_str(), c.kind, c.now.clone(), c.before.clone()));
    let mut out = part("What could newly be done:", ('+', "before"), newly);
    let lost = diff.no_longer.iter().map(|l| (l.subject.as_str(), l.kind, l.before.clone(), l.now.clone()));
    let lost = part("What can no longer be done:", ('-', "now"), lost);
    let shown =
        |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), |v| head(&visible(v, false), WIDEST));
    let mut count = BTreeMap::<&str, usize>::new();
    let different = diff.different.iter().filter_map(|d| {
        let count = count.entry(&d.subject).or_default();
        *count += 1;
        match *count {
            ..=MOST_SHOWN => {
                Some((d.subject.as_str(), "", format!("{} {}", d.place, shown(&d.now)), Some(shown(&d.before))))
            }
            n if n == MOST_SHOWN + 1 => {
                Some((d.subject.as_str(), "", "and more: --json has all of it".to_owned(), None))
            }
            _ => None,
        }
    });
    let different = part("What else is different, and may allow more or less:", ('~', "before"), different);
    if out.is_empty() {
        out.push_str(if different.is_empty() {
            "Nothing new can be done.\n"
        } else {
            "No grant, limit or capability is new.\n"
        });
    }
    out + &lost + &different
}

type Line<'a> = (&'a str, &'a str, String, Option<String>);

/// One part of the report; empty if there is nothing in it.
fn part<'a>(head: &str, (sign, other): (char, &str), lines: impl Iterator<Item = Line<'a>>) -> String {
    let mut out = String::new();
    let mut last = "";
    for (subject, kind, what, else_what) in lines {
        if out.is_empty() {
            out.push_str(&format!("{head}\n"));
        }
        if subject != last {
            last = subject;
            out.push_str(&format!("  {}\n", printable(subject)));
        }
        let beside = else_what.map(|words| format!("   ({other}: {})", printable(&words))).unwrap_or_default();
        let kind = if kind.is_empty() { String::new() } else { format!("{kind:<10} ") };
        out.push_str(&format!("    {sign} {kind}{}{beside}\n", printable(&what)));
    }
    out
}
