//! P13, P30: what the caller ignores or blocks reaches neither a tool nor what is said of its end.

use crate::prelude::*;

/// As a careless parent leaves it: children are forgotten, two signals ignored, two blocked.
const CARELESS: &str = "import os, signal, sys\nfor s in ('SIGCHLD', 'SIGUSR1', 'SIGHUP'):\n\
    \x20   signal.signal(getattr(signal, s), signal.SIG_IGN)\n\
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGCHLD, 40])\n\
    os.execv(sys.argv[1], sys.argv[1:])\n";
/// Ignored and blocked signals of this process, without those that Python ignores itself.
const TELLS: &str = "import json\nof = dict(l.split(':\\t') for l in \
    open('/proc/self/status').read().splitlines() if l.startswith('Sig'))\nown = 1 << 12 | 1 << \
    24\nprint(json.dumps([int(of['SigIgn'], 16) & ~own, int(of['SigBlk'], 16)]))\n";

fn careless(playground: &Playground, program: &Command) -> Command {
    let mut command = playground.outside(PYTHON);
    command
        .args(["-I", "-S", "-c", CARELESS])
        .arg(program.get_program())
        .args(program.get_args());
    command
}

#[test]
fn a_caller_that_ignores_and_blocks_signals_changes_nothing() {
    as_everyone("a careless caller", |who| {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("tells", "python", TELLS, json!({}));
        playground.settle();
        let mut call = playground.host();
        call.args(["call", "esc:tells", "--json", "--input", "{}"]);
        fits("ok [0, 0]", &finish(careless(&playground, &call), b"")).unwrap();
        let record = playground.records().pop().unwrap();
        assert_eq!(record["decision"], "allowed", "{record}");
        // The control: any other program of that caller inherits them.
        let mut bare = Command::new(PYTHON);
        bare.args(["-I", "-S", "-c", TELLS]);
        let told: [u64; 2] =
            serde_json::from_slice(&finish(careless(&playground, &bare), b"").stdout).unwrap();
        let careless = [1 | 1 << 9 | 1 << 16, 1 << 13 | 1 << 16 | 1 << 39];
        assert_eq!(
            [told[0] & careless[0], told[1] & careless[1]],
            careless,
            "{who:?}: {told:?}"
        );
    });
}
