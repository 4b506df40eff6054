//! Tests: the program answers as the lists say, for every number and every value that counts.

use super::bpf::*;
use super::*;

const NEWEST: u32 = 500;

fn variants() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0))
}

/// Runs the program on one call, as the kernel would.
fn verdict(program: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
    let (mut at, mut acc) = (0, 0u32);
    loop {
        let i = program[at];
        let take = |yes: bool| at + 1 + usize::from(if yes { i.jt } else { i.jf });
        at = match i.code {
            RETURN => return i.k,
            LOAD => {
                acc = match i.k {
                    OFFSET_NR => nr,
                    OFFSET_ARCH => arch,
                    offset => (args[((offset - 16) / 8) as usize] >> (8 * (offset % 8))) as u32,
                };
                at + 1
            }
            JUMP => at + 1 + i.k as usize,
            IF_EQUAL => take(acc == i.k),
            IF_AT_LEAST => take(acc >= i.k),
            IF_ANY_BIT => take(acc & i.k != 0),
            other => panic!("unknown instruction {other}"),
        };
    }
}

/// What a rule answers, without a program.
fn said(rule: &Rule, args: [u64; 6]) -> u32 {
    rule.refuses(&args).map_or(RET_ALLOW, |errno| RET_ERRNO | errno)
}

/// Every value at which the answer of a rule could change.
fn edges(rule: &Rule, into: &mut Vec<u64>) {
    let Case(_, tests, otherwise) = rule else { return };
    for (group, then) in *tests {
        group.iter().for_each(|test| match test {
            In(values) => into.extend(values.iter().flat_map(|v| [u64::from(*v), u64::from(*v) + 1])),
            Between(first, last) => {
                into.extend([first.wrapping_sub(1), *first, *last, last + 1].map(u64::from));
            }
            AnyOf(bits) => into.extend((0..32).map(|n| 1 << n).chain([u64::from(*bits), u64::from(!bits)])),
        });
        edges(then, into);
    }
    edges(otherwise, into);
}

#[test]
fn the_program_says_what_the_lists_say_for_every_number() {
    for (sampled, live, networked) in variants() {
        // (A jump that is cut off leads elsewhere.)
        let (program, rules) = (program(sampled, live, networked), rules(sampled, live, networked));
        let recorded = recorded::Recorded::new(sampled, live, networked);
        let listened = recorded.program();
        for nr in 0..=NEWEST {
            let rule = &rule_of(&rules, nr);
            let mut values = vec![0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
            edges(rule, &mut values);
            for first in &values {
                for second in [0, 1, u64::MAX, *first] {
                    // Of two arguments that count, each takes all values.
                    for args in [[*first, *first, second, second, 0, 0], [second, second, *first, *first, 9, 9]] {
                        let got = verdict(&program, AUDIT_ARCH_X86_64, nr, args);
                        assert_eq!(got, said(rule, args), "{nr} {args:?} sampled {sampled}");
                        // The listener hears all that is refused and all that names a file, and nothing else.
                        let told = verdict(&listened, AUDIT_ARCH_X86_64, nr, args);
                        let refused = recorded.refuses(nr, &args).is_some_and(|errno| errno > 0);
                        let heard = refused || !recorded::named(nr).is_empty();
                        assert_eq!(told, if heard { RET_USER_NOTIF } else { got }, "{nr} {args:?}");
                        assert_eq!(refused, got != RET_ALLOW && got != RET_ERRNO, "{nr} {args:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_call_stands_in_one_list() {
    let mut all: Vec<i64> = ALLOWED.iter().chain(FORBIDDEN).chain(MISSING).copied().collect();
    all.extend(RULES.iter().map(|(number, _)| *number));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    let sockets: Vec<i64> = networked::RULES.iter().map(|(number, _)| *number).filter(|n| !all.contains(n)).collect();
    let known = [libc::SYS_socket, libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg];
    assert_eq!(sockets, known, "all that granted hosts add");
    let numbers: Vec<i64> = SAMPLED.iter().map(|(number, _)| *number).collect();
    assert!(numbers.iter().all(|number| all.contains(number)), "sampling only narrows: {numbers:?}");
}
