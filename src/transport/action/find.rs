//! Finds the action in a model's text, and what stands around it, in one pass. A name in a code span is not a block.

use std::ops::Range;

/// The tag that begins a block.
const NAME: &str = "ACTION";

/// Where the first block begins, and whether a tag in a code span was passed over.
pub fn first(text: &str) -> (Option<usize>, bool) {
    let (mut above, mut passed) = (0, false);
    for line in text.split_inclusive('\n') {
        let mut spans = code_spans(line).into_iter().peekable();
        let mut skip = 0;
        for (at, _) in line.match_indices('<').filter(|(at, _)| begins(&line[*at..])) {
            if at < skip {
                continue;
            }
            while spans.next_if(|span| span.end <= at).is_some() {}
            match spans.peek().filter(|span| span.start <= at && only_named(&line[at..span.end])) {
                Some(span) => (skip, passed) = (span.end, true),
                None => return (Some(above + at), passed),
            }
        }
        above += line.len();
    }
    (None, passed)
}

/// The text before a block, without the mark of a fence that is opened for it.
pub fn lead(before: &str) -> &str {
    let shown = before.trim_end();
    let is_fence = |line: &str| ["```", "~~~"].iter().any(|mark| line.trim_start().starts_with(mark));
    let last = shown.lines().last().unwrap_or_default();
    let opened = is_fence(last) && shown.lines().filter(|line| is_fence(line)).count() % 2 == 1;
    if opened { shown[..shown.len() - last.len()].trim_end() } else { shown }
}

/// How many blocks end in what follows the first one, and whether it holds anything but the mark that closes a fence.
pub fn after(tail: &str) -> (usize, bool) {
    let said = tail.trim().trim_matches(['`', '~']).trim();
    (ends(tail).count(), !said.is_empty())
}

/// Whether a block ends anywhere in this text.
pub fn is_closed(text: &str) -> bool {
    ends(text).next().is_some()
}

fn ends(text: &str) -> impl Iterator<Item = usize> {
    let name = |at: &usize| named(&text[at + 2..]).is_some_and(|rest| rest.trim_start().starts_with('>'));
    text.match_indices("</").map(|(at, _)| at).filter(name)
}

/// What follows the tag's name, in any case.
fn named(text: &str) -> Option<&str> {
    let (name, rest) = text.split_at_checked(NAME.len())?;
    name.eq_ignore_ascii_case(NAME).then_some(rest)
}

/// Whether this is the first tag of a block. In another case than the protocol's it must be bare, since other languages
/// have an `<action …>` too.
fn begins(text: &str) -> bool {
    let Some(rest) = named(&text[1..]) else { return false };
    let bare = |rest: &str| rest.is_empty() || rest.starts_with(['>', '/']);
    bare(rest.trim_start()) || text[1..].starts_with(NAME) && rest.starts_with([' ', '\t', '\n', '\r'])
}

/// Whether a code span, from the tag to its end, only speaks of a block: a span that ends amid one is a stray backtick.
fn only_named(span: &str) -> bool {
    let inside = span.split_once('>').map_or("", |(_, inside)| inside.trim_start());
    !inside.starts_with('<') || inside.starts_with("</") || is_closed(inside)
}

/// The code spans of one line: from a run of one or two backticks to the next run of that length. Longer runs are the
/// marks of fences.
fn code_spans(line: &str) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in line.match_indices('`') {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += 1,
            None => runs.push(at..at + 1),
        }
    }
    runs.retain(|run| run.len() <= 2);
    let (mut spans, mut next) = (Vec::new(), 0);
    while let Some(open) = runs.get(next) {
        next += 1;
        // Of each length at most one run is left without its end.
        if let Some(n) = runs[next..].iter().position(|run| run.len() == open.len()) {
            spans.push(open.end..runs[next + n].start);
            next += n + 1;
        }
    }
    spans
}
