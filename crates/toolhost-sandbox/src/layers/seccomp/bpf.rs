//! Bpf: from rules to the program that the kernel runs for each call (part of the layer `seccomp`).

use Rule::{Allow, Case, Errno};
use Test::{AnyOf, Between, In};
use nix::libc;

pub const EPERM: u32 = libc::EPERM as u32;
pub const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;
/// The upper half of a 64-bit argument.
pub const HIGH: u32 = 1 << 8;

/// What to do with one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Allow,
    Errno(u32),
    /// The listener decides, whatever the arguments (`recorded`).
    Notify,
    /// The first group with a test that the argument's low word (`| HIGH`: high word) passes
    /// decides, else the last.
    Case(u32, &'static [(&'static [Test], Rule)], &'static Rule),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Test {
    In(&'static [u32]),
    Between(u32, u32),
    AnyOf(u32),
}

/// What the program does with a system call that it denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyAction {
    /// Fails with the error of the rule.
    Errno,
    /// Notifies the listener, which answers with that error. Without a listener the kernel answers
    /// ENOSYS.
    Notify,
}

impl Rule {
    /// The error with which a call of these arguments is refused; `None`: the rule lets it through.
    pub fn refuses(&self, args: &[u64; 6]) -> Option<u32> {
        let (argument, groups, otherwise) = match self {
            Allow | Rule::Notify => return None,
            Errno(errno) => return Some(*errno),
            Case(argument, groups, otherwise) => (*argument, *groups, *otherwise),
        };
        let whole = args[(argument & !HIGH) as usize];
        let value = (if argument & HIGH == 0 {
            whole
        } else {
            whole >> 32
        }) as u32;
        let passed = groups.iter().find(|(tests, _)| {
            tests.iter().any(|test: &Test| match test {
                In(values) => values.contains(&value),
                Between(first, last) => (*first..=*last).contains(&value),
                AnyOf(bits) => value & bits != 0,
            })
        });
        passed.map_or(otherwise, |(_, then)| then).refuses(args)
    }
}

pub type Insn = libc::sock_filter;

pub const RET_ALLOW: u32 = 0x7FFF_0000;
pub const RET_KILL_PROCESS: u32 = 0x8000_0000;
pub const RET_ERRNO: u32 = 0x0005_0000;
pub const RET_USER_NOTIF: u32 = 0x7FC0_0000;
pub const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub const OFFSET_NR: u32 = 0;
pub const OFFSET_ARCH: u32 = 4;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

fn offset(argument: u32) -> u32 {
    16 + 8 * (argument & !HIGH) + if argument & HIGH == 0 { 0 } else { 4 }
}

/// The instructions of one rule. Jumps have 8 bits; the tests would detect a truncated one.
fn block(rule: &Rule, refusal: DenyAction) -> Vec<Insn> {
    let (argument, groups, otherwise) = match rule {
        Allow => return vec![insn(RETURN, 0, 0, RET_ALLOW)],
        // Error 0 is not a refusal: the call is said to have succeeded.
        Errno(1..) if refusal == DenyAction::Notify => {
            return vec![insn(RETURN, 0, 0, RET_USER_NOTIF)];
        }
        Rule::Notify => return vec![insn(RETURN, 0, 0, RET_USER_NOTIF)],
        Errno(errno) => return vec![insn(RETURN, 0, 0, RET_ERRNO | errno)],
        Case(argument, groups, otherwise) => (*argument, *groups, *otherwise),
    };
    let mut out = vec![insn(LOAD, 0, 0, offset(argument))];
    for (tests, then) in groups {
        let then = block(then, refusal);
        let mut left: usize = tests
            .iter()
            .map(|test: &Test| match test {
                In(values) => values.len(),
                Between(..) => 2,
                AnyOf(_) => 1,
            })
            .sum();
        // A value that passes jumps over the remaining comparisons; one that fails goes to the
        // next, or over `then`.
        let mut compare = |code: u16, value: u32| {
            left -= 1;
            insn(
                code,
                left as u8,
                if left == 0 { then.len() as u8 } else { 0 },
                value,
            )
        };
        for test in *tests {
            match test {
                AnyOf(bits) => out.push(compare(IF_ANY_BIT, *bits)),
                In(values) => out.extend(values.iter().map(|value| compare(IF_EQUAL, *value))),
                Between(first, last) => {
                    compare(IF_AT_LEAST, *first);
                    // A value beyond the last fails, so the two jumps are exchanged.
                    let above = compare(IF_AT_LEAST, last + 1);
                    out.push(insn(IF_AT_LEAST, 0, above.jf + 1, *first));
                    out.push(insn(IF_AT_LEAST, above.jf, above.jt, last + 1));
                }
            }
        }
        out.extend(then);
    }
    out.extend(block(otherwise, refusal));
    out
}

/// Where a comparison of numbers leads: to another comparison, or to the block of a rule.
#[derive(Clone, Copy)]
enum To {
    Comparison(usize),
    Block(usize),
}

/// A search tree over `runs`: comparisons, each before those it leads to, and the blocks of
/// different rules, in the order in which they are needed. The kernel checks and translates every
/// instruction when the filter is loaded, and runs it for every number, which is once a call; so
/// blocks are shared.
fn tree(runs: &[(u32, Rule)], comparisons: &mut Vec<(u32, To, To)>, blocks: &mut Vec<Rule>) -> To {
    if let [(_, rule)] = runs {
        let known = blocks.iter().position(|other| other == rule);
        return To::Block(known.unwrap_or_else(|| {
            blocks.push(*rule);
            blocks.len() - 1
        }));
    }
    // The split with about as many numbers on both sides.
    let from = runs[0].0;
    let to = runs[runs.len() - 1].0 + 1;
    let half = runs.partition_point(|(first, _)| *first <= from.midpoint(to));
    let (low, high) = runs.split_at(half.clamp(1, runs.len() - 1));
    let own = comparisons.len();
    comparisons.push((high[0].0, To::Block(0), To::Block(0)));
    let below = tree(low, comparisons, blocks);
    comparisons[own].1 = tree(high, comparisons, blocks);
    comparisons[own].2 = below;
    To::Comparison(own)
}

/// The whole filter. A call of another architecture kills the process.
pub fn compile(runs: &[(u32, Rule)], refusal: DenyAction) -> Vec<Insn> {
    let mut out = vec![
        insn(LOAD, 0, 0, OFFSET_ARCH),
        insn(IF_EQUAL, 1, 0, AUDIT_ARCH_X86_64),
        insn(RETURN, 0, 0, RET_KILL_PROCESS),
        insn(LOAD, 0, 0, OFFSET_NR),
    ];
    let mut comparisons = Vec::new();
    let mut blocks = Vec::new();
    tree(runs, &mut comparisons, &mut blocks);
    let mut places = Vec::with_capacity(blocks.len());
    // Comparisons jump over at most 255 instructions, so the first one that leads to a block says
    // how far off it begins. A block that would push the beginning of another too far is put behind
    // all, and a jump of any length in its place.
    fn leads(to: &To, number: usize) -> bool {
        matches!(to, To::Block(at) if *at == number)
    }
    let farthest: Vec<usize> = (0..blocks.len())
        .map(|number| {
            comparisons
                .iter()
                .position(|(_, yes, no)| leads(yes, number) || leads(no, number))
                .unwrap_or(0)
                + 256
        })
        .collect();
    let mut code = Vec::new();
    let mut far = Vec::new();
    for (number, rule) in blocks.iter().enumerate() {
        let place = comparisons.len() + code.len();
        let whole = block(rule, refusal);
        let next = place + whole.len();
        places.push(place);
        if farthest[number + 1..]
            .iter()
            .enumerate()
            .all(|(more, farthest)| next + more <= *farthest)
        {
            code.extend(whole);
        } else {
            far.push((code.len(), whole));
            code.push(insn(JUMP, 0, 0, 0));
        }
    }
    for (at, whole) in far {
        code[at].k = (code.len() - at - 1) as u32;
        code.extend(whole);
    }
    for (own, (number, at_least, less)) in comparisons.iter().enumerate() {
        let jump = |to: &To| match to {
            To::Comparison(at) => at - own - 1,
            To::Block(at) => places[*at] - own - 1,
        };
        out.push(insn(
            IF_AT_LEAST,
            jump(at_least) as u8,
            jump(less) as u8,
            *number,
        ));
    }
    out.extend(code);
    out
}
