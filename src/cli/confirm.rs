//! The question whether a call may run, asked in the terminal that it was typed in.
//!
//! What was typed before the question is not an answer, and silence is not a yes.

use super::{host, words};
use crate::service::{Answer, Approver, Ask, Question};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, tcflush};
use std::future::Future;
use std::io::{self, BufRead, IsTerminal};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the reader looks whether anybody still waits for the answer, milliseconds.
const LOOK_MS: u16 = 200;

/// Whom the command line can ask.
pub fn approver() -> Approver {
    match io::stdin().is_terminal() && io::stderr().is_terminal() {
        true => Approver::Face(Arc::new(Terminal)),
        false => Approver::Nobody,
    }
}

struct Terminal;

impl Ask for Terminal {
    fn ask<'a>(&'a self, question: &'a Question) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        let words = format!("{}\n  y and Enter lets it run, anything else does not:", question.told(true));
        Box::pin(async move {
            let gone = Gone(Arc::new(AtomicBool::new(false)));
            let over = gone.0.clone();
            let said = tokio::task::spawn_blocking(move || {
                // A line that was typed ahead answers another question.
                let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
                words::complain(&words);
                line(&over)
            });
            let by = format!("{} (terminal)", host::login());
            match said.await.ok().flatten() {
                None => Answer::Nobody,
                Some(line) if ["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()) => {
                    Answer::Approved { by }
                }
                Some(_) => Answer::Denied { by },
            }
        })
    }
}

/// Told when the question is over.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One line, as long as somebody waits for it. `None`: the terminal is gone.
fn line(over: &AtomicBool) -> Option<String> {
    let stdin = io::stdin();
    while !over.load(Ordering::Relaxed) {
        let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut watched, PollTimeout::from(LOOK_MS)).ok()? > 0 {
            let mut line = String::new();
            return (stdin.lock().read_line(&mut line).ok()? > 0).then_some(line);
        }
    }
    None
}
