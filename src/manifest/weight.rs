//! Weight: what a regular expression costs to compile and to keep, estimated before anything compiles it (P21).
//!
//! For: `bounds`. In: one pattern as written. Out: about how many bytes its automata take; compiling them takes some
//! 15 ns a byte. Never: expands a repetition or a Unicode class to find out; underestimates by much.

use crate::quantity::MAX_REGEX_WEIGHT;
use regex_syntax::ast::{Ast, ClassSet, ClassSetItem, Flag, FlagsItemKind, Repetition, RepetitionKind};
use regex_syntax::ast::{ClassSetRange, RepetitionRange, parse::Parser};

/// The bytes of every pattern, however short.
const PATTERN: usize = 4096;
/// One character, or one step of an automaton.
pub(super) const STEP: usize = 64;
/// `.`, `[^…]` and their like: all characters except some.
const ANY: usize = 1024;
/// A class of hundreds of ranges: `\pL`.
const UNICODE: usize = 64 * 1024;
/// Finding the other case of one character; the most characters of a range that have one.
const FOLD: usize = 16;
const MOST_FOLDED: u32 = 16 * 1024;

/// About the bytes of the compiled pattern, forwards and backwards.
pub(super) fn weight(pattern: &str) -> usize {
    let text = PATTERN + pattern.len() * STEP;
    if text > MAX_REGEX_WEIGHT {
        return text;
    }
    match Parser::new().parse(pattern) {
        Ok(ast) => text.saturating_add(of(&ast, folds(&ast))),
        // Not Rust's syntax (`\cA`): the checker translates it, perhaps in a pass for each odd character, or refuses.
        Err(_) => text.saturating_add(pattern.len().saturating_mul(pattern.len()).saturating_mul(STEP)),
    }
}

fn of(ast: &Ast, folded: bool) -> usize {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => STEP,
        Ast::Literal(_) => {
            if folded {
                4 * STEP
            } else {
                STEP
            }
        }
        Ast::Dot(_) | Ast::ClassPerl(_) => ANY,
        Ast::ClassUnicode(_) => {
            if folded {
                2 * UNICODE
            } else {
                UNICODE
            }
        }
        Ast::ClassBracketed(class) => of_set(&class.kind, folded) + if class.negated { ANY } else { STEP },
        Ast::Repetition(repetition) => {
            of(&repetition.ast, folded).saturating_add(STEP).saturating_mul(times(repetition))
        }
        Ast::Group(group) => of(&group.ast, folded).saturating_add(STEP),
        Ast::Alternation(all) => sum(&all.asts, folded),
        Ast::Concat(all) => sum(&all.asts, folded),
    }
}

fn sum(all: &[Ast], folded: bool) -> usize {
    all.iter().fold(STEP, |sum, ast| sum.saturating_add(of(ast, folded)))
}

/// How many copies of the repeated part are compiled.
fn times(repetition: &Repetition) -> usize {
    let most = match &repetition.op.kind {
        RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
        RepetitionKind::Range(RepetitionRange::Exactly(most) | RepetitionRange::Bounded(_, most)) => *most,
        RepetitionKind::Range(RepetitionRange::AtLeast(least)) => least.saturating_add(1),
    };
    usize::try_from(most.max(1)).unwrap_or(usize::MAX)
}

fn of_set(set: &ClassSet, folded: bool) -> usize {
    match set {
        ClassSet::Item(item) => of_item(item, folded),
        ClassSet::BinaryOp(both) => of_set(&both.lhs, folded).saturating_add(of_set(&both.rhs, folded)),
    }
}

fn of_item(item: &ClassSetItem, folded: bool) -> usize {
    match item {
        ClassSetItem::Empty(_) | ClassSetItem::Literal(_) | ClassSetItem::Ascii(_) => STEP,
        ClassSetItem::Range(range) => of_range(range, folded),
        ClassSetItem::Perl(_) => ANY,
        ClassSetItem::Unicode(_) => {
            if folded {
                2 * UNICODE
            } else {
                UNICODE
            }
        }
        ClassSetItem::Bracketed(class) => of_set(&class.kind, folded) + if class.negated { ANY } else { STEP },
        ClassSetItem::Union(all) => all.items.iter().fold(STEP, |sum, item| sum.saturating_add(of_item(item, folded))),
    }
}

fn of_range(range: &ClassSetRange, folded: bool) -> usize {
    if range.end.c.is_ascii() {
        return 2 * STEP;
    }
    let long = u32::from(range.end.c).saturating_sub(u32::from(range.start.c)).min(MOST_FOLDED);
    ANY + if folded { long as usize * FOLD } else { 0 }
}

/// Whether any part ignores case: then all parts are counted as if they did.
fn folds(ast: &Ast) -> bool {
    let on = |flags: &regex_syntax::ast::Flags| {
        flags.items.iter().any(|item| item.kind == FlagsItemKind::Flag(Flag::CaseInsensitive))
    };
    match ast {
        Ast::Flags(set) => on(&set.flags),
        Ast::Group(group) => group.flags().is_some_and(on) || folds(&group.ast),
        Ast::Repetition(repetition) => folds(&repetition.ast),
        Ast::Alternation(all) => all.asts.iter().any(folds),
        Ast::Concat(all) => all.asts.iter().any(folds),
        _ => false,
    }
}
