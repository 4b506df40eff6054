//! Log: what a tool writes to stderr. Its beginning and its end are kept, and each line is sent on as it comes.
//!
//! For: process and wasm executors. In: bytes as they arrive. Out: log lines as events; in the end, the kept lines.
//! Never: waits for whoever hears the lines, or holds more than twice the limit.

use super::{Events, answer, told};
use std::collections::VecDeque;

pub struct Log<'a> {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    /// Bytes between head and tail that were not kept.
    cut: u64,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// Bytes that may still be sent on: all lines together are held to the limit of the log.
    left: usize,
    events: &'a Events,
}

impl<'a> Log<'a> {
    /// `most`: how many bytes are kept.
    pub fn new(most: u64, events: &'a Events) -> Log<'a> {
        let left = usize::try_from(most).unwrap_or(usize::MAX);
        let (head, tail, line) = (Vec::new(), VecDeque::new(), Vec::new());
        Log { head, tail, half: left / 2, cut: 0, line, left, events }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let skipped = rest.len().saturating_sub(self.half);
        self.tail.extend(&rest[skipped..]);
        let beyond = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..beyond);
        self.cut += (skipped + beyond) as u64;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if piece.len() > self.left {
                (self.left, self.line) = (0, Vec::new());
                return;
            }
            self.left -= piece.len();
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.send_line();
            }
        }
    }

    fn send_line(&mut self) {
        answer::lines(&self.line).into_iter().for_each(|line| match told::read(&line) {
            Some(told) => self.events.tell(told),
            None => self.events.log(line),
        });
        self.line.clear();
    }

    /// The kept lines, not yet escaped.
    pub fn finish(mut self) -> Vec<String> {
        self.send_line();
        let mut kept = self.head;
        if self.cut > 0 {
            kept.extend_from_slice(format!("\n[… {} bytes cut …]\n", self.cut).as_bytes());
        }
        kept.extend(self.tail);
        answer::lines(&kept).into_iter().filter_map(told::kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Event;

    #[test]
    fn what_is_told_is_sent_on_and_not_kept_as_it_came() {
        let (events, mut heard) = crate::executor::events();
        let mut log = Log::new(1000, &events);
        log.push(b"@toolhost {\"progress\": 1}\nplain\n@toolhost {\"log\": \"info\", \"message\": \"hi\"}\n");
        let progress = crate::executor::Progress { progress: 1.0, total: None, message: None };
        assert_eq!(heard.sent(), Some(Event::Told(told::Told::Progress(progress))));
        assert_eq!(heard.sent(), Some(Event::Log("plain".into())));
        assert_eq!(heard.sent(), Some(Event::Told(told::Told::Message(told::Level::Info, "hi".into()))));
        assert_eq!(log.finish(), ["plain", "hi"]);
    }

    #[test]
    fn a_flooded_log_keeps_both_ends() {
        let events = Events::unheard();
        let mut log = Log::new(16, &events);
        for _ in 0..100 {
            log.push(b"abcdefg");
        }
        log.push(b"the end");
        assert_eq!(log.finish(), ["abcdefga", "[… 691 bytes cut …]", "gthe end"]);
    }

    #[test]
    fn whole_lines_are_sent_on_until_the_limit() {
        let (events, mut heard) = crate::executor::events();
        let mut next = || heard.sent();
        let line = |text: &str| Some(Event::Log(text.to_owned()));
        let mut log = Log::new(20, &events);
        log.push(b"one\n\ntw");
        assert_eq!([next(), next(), next()], [line("one"), line(""), None]);
        log.push(b"o\r\nthree\nfour");
        assert_eq!([next(), next(), next()], [line("two"), line("three"), None]);
        log.push(b" is too long\nfive\n");
        assert_eq!(next(), None, "the limit is reached");
        assert_eq!(log.finish().last().map(String::as_str), Some("five"));
        assert_eq!(next(), None);

        let mut log = Log::new(20, &events);
        log.push(b"no line break");
        assert_eq!(log.finish(), ["no line break"]);
        assert_eq!(next(), line("no line break"));
    }
}
