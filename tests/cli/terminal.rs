//! What a terminal shows and a pipe does not: colours, tables of its width, a line of progress.

use crate::prelude::*;

/// Runs a program on a terminal of its own, with so many columns, and prints what it showed as JSON.
const TERMINAL: &str = "
import fcntl, json, os, pty, struct, sys, termios
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, int(sys.argv[1]), 0, 0))
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(theirs, number)
    os.execv(sys.argv[2], sys.argv[2:])
os.close(theirs)
shown = b''
while True:
    try:
        piece = os.read(ours, 65536)
    except OSError:
        break
    if not piece:
        break
    shown += piece
os.waitpid(pid, 0)
print(json.dumps(shown.decode()))
";

fn on_terminal(playground: &Playground, columns: usize, colors: bool, words: &[&str]) -> String {
    let mut command = playground.outside(PYTHON);
    command.env("TERM", "xterm");
    if !colors {
        command.env("NO_COLOR", "1");
    }
    command.args(["-I", "-c", TERMINAL, &columns.to_string()]);
    let mut command = playground.host_by(command);
    command.args(words);
    let ended = finish(command, b"");
    let shown = ended.out.as_str().map(str::to_owned);
    shown.unwrap_or_else(|| panic!("{words:?}: {}", ended.stderr))
}

/// The lines without the codes that this host writes; nothing else that a terminal obeys is there.
fn lines(shown: &str) -> Vec<String> {
    let mut parts = shown.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| c.is_ascii_alphabetic())
            .expect("an end");
        let (code, rest) = part.split_at(end + 1);
        let is_ours = code == "[K" || code.starts_with('[') && code.ends_with('m');
        assert!(is_ours, "{part:?} in {shown:?}");
        plain += rest;
    }
    let odd = plain.find(|c: char| c.is_control() && c != '\n' && c != '\r');
    assert_eq!(odd, None, "{plain:?}");
    let lines = plain.split('\n').map(|line| {
        // What a return goes over is not there any more.
        let line = line.trim_end_matches('\r');
        line.rsplit('\r').next().unwrap_or_default().to_owned()
    });
    lines.collect()
}

#[test]
fn a_terminal_has_colours_and_its_width_and_a_pipe_has_neither() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let example = json!([{"description": "One.", "input": {}, "expectedOutput": 1}]);
    let more = json!({"description": "Says one. ".repeat(20), "examples": example});
    playground.tool("good", "python", "print(1)\n", more);
    let breaks = "import sys\nsys.exit('it \\x1b[31m\\x1b]0;t\\x07 broke \\u202e')\n";
    playground.tool("breaks", "python", breaks, json!({}));
    let id = "text:a-tool-whose-name-is-as-long-as-names-of-tools-ever-are";
    playground.tool_at(id, "python", "long/main.py", "print(1)\n", json!({}));
    playground.settle();
    for tool in ["esc:good", "esc:breaks", id] {
        playground.call(tool, "{}");
    }
    let verbs: [&[&str]; 6] = [
        &["log"],
        &["list"],
        &["sources"],
        &["check"],
        &["audit", "esc:good"],
        &["test", "--all"],
    ];
    for verb in verbs {
        let piped = playground.cli(verb);
        let piped = format!("{}{}", piped.text(), piped.stderr);
        assert!(!piped.contains('\u{1b}'), "{verb:?}: {piped:?}");
        assert!(!piped.contains("[1/1]"), "{verb:?}: {piped:?}");
        let plain = on_terminal(&playground, 100, false, verb);
        assert!(!plain.contains("\u{1b}[3"), "{verb:?}: {plain:?}");
        for columns in [80, 100, 160] {
            let shown = on_terminal(&playground, columns, true, verb);
            // What stands below a row is a line of its own.
            let lines = lines(&shown);
            let rows = lines.iter().filter(|line| !line.starts_with("      "));
            let is_table = ["log", "list", "sources"].contains(&verb[0]);
            let wide = rows.filter(|line| is_table && line.chars().count() > columns);
            assert_eq!(wide.collect::<Vec<_>>(), Vec::<&String>::new(), "{verb:?}");
        }
    }
    let log = on_terminal(&playground, 100, true, &["log"]);
    assert!(log.contains("\u{1b}[32msuccess\u{1b}[0m"), "{log:?}");
    assert!(log.contains("\u{1b}[31mScriptError\u{1b}[0m"), "{log:?}");
    let tested = on_terminal(&playground, 100, true, &["test", "--all"]);
    assert!(tested.contains("[1/1]"), "{tested:?}");
    assert!(tested.contains("\u{1b}[32mok\u{1b}[0m"), "{tested:?}");
    assert!(tested.contains(" ms)"), "{tested:?}");
    // It is gone when the verdict is written.
    let lines = lines(&tested);
    assert!(
        lines.iter().all(|line| !line.contains("[1/1]")),
        "{lines:?}"
    );
}
