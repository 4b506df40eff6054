//! Line and column of a value in a manifest's file, for messages to a person. An unknown position is (0, 0).

use crate::base::{files, json};
use crate::manifest::Problem;
use crate::quantity::MAX_DEFINITION_BYTES;
use nix::fcntl::OFlag;
use std::path::Path;

/// Line and column of a value in the file as it is now; (0, 0) = not there.
pub fn position(manifest: &Path, pointer: &str) -> (usize, usize) {
    json::parse(&text(manifest), json::Dialect::Commented).map_or((0, 0), |document| document.place(pointer))
}

/// Adds line and column to the problems that have only a pointer, from the file as it is now.
pub fn locate(problems: &mut [Problem], manifest: &Path) {
    if problems.iter().any(is_lost) {
        locate_in(problems, &text(manifest));
    }
}

/// The same, from the text that the problems are about.
pub(super) fn locate_in(problems: &mut [Problem], text: &[u8]) {
    if !problems.iter().any(is_lost) {
        return;
    }
    if let Ok(document) = json::parse(text, json::Dialect::Commented) {
        let lost = problems.iter_mut().filter(|problem| is_lost(problem));
        lost.for_each(|problem| (problem.line, problem.column) = document.place(&problem.pointer));
    }
}

fn is_lost(problem: &Problem) -> bool {
    problem.line == 0 && !problem.pointer.is_empty()
}

fn text(manifest: &Path) -> Vec<u8> {
    let read = files::open(manifest, OFlag::O_NOFOLLOW).and_then(|file| files::whole(file, MAX_DEFINITION_BYTES));
    read.ok().flatten().unwrap_or_default()
}
