//! Runs one program to its end.

use super::launcher::{CallInput, Launcher, Layers, Pipes};
use super::sandbox::{Beside, Sandbox};
use crate::account::totals::{Totals, below};
use crate::layers::cgroup;
use crate::protocol::{Exited, Note};
use crate::recorder::MAX_EVENT_BYTES;
use crate::spec::Spec;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use toolhost_base::fault::Fault;
use toolhost_base::files::without_links;
use toolhost_base::quantity::Limit;
use toolhost_base::{messages, millis};

/// A program that runs behind the layers. Dropping it kills the program and all that it started.
pub struct Running {
    pub launcher: Launcher,
    pub pipes: Pipes,
}

/// How a program ended, and what it left.
#[derive(Debug)]
pub struct Outcome {
    pub exited: Exited,
    /// What it wrote to stdout and stderr, up to `outputBytes` and `logBytes`. Behind that its
    /// pipe is closed.
    pub output: Vec<u8>,
    pub log: Vec<u8>,
    pub layers: Layers,
    /// What it was refused, where `Spec::recorded` is set.
    pub denials: Vec<Note>,
    /// The private copy of each of `Spec::stages`; empty if the program was killed.
    pub staged: Vec<OwnedFd>,
}

impl Sandbox {
    /// Starts a program, which is killed after this time.
    pub async fn spawn(&self, spec: Spec, timeout: Duration) -> Result<Running, Fault> {
        cgroup::remove_left();
        let before = size(&spec)?;
        let mut launcher = self.start(spec, Beside::default(), || ()).await?;
        launcher.before = before;
        let pipes = launcher.start(millis(timeout), &CallInput::default())?;
        Ok(Running { launcher, pipes })
    }

    /// Runs a program with this text as its input.
    pub async fn run(&self, spec: Spec, input: &[u8], timeout: Duration) -> Result<Outcome, Fault> {
        let Running { launcher, pipes } = self.spawn(spec, timeout).await?;
        let mut to = pipes.input;
        let feed = async move {
            // A program need not read its input: EPIPE is not a fault.
            let _ = to.write_all(input).await;
        };
        let limits = &launcher.spec.limits;
        let (output, log, ended, ()) = tokio::join!(
            read(pipes.output, limits.get(Limit::OutputBytes)),
            read(pipes.log, limits.get(Limit::LogBytes)),
            launcher.wait(),
            feed,
        );
        let (exited, mut staged) = ended?;
        let recorded = exited.recorder_lost.and_then(|_| staged.pop());
        Ok(Outcome {
            exited,
            output,
            log,
            denials: recorded.map(notes).unwrap_or_default(),
            staged,
            layers: launcher.layers.clone(),
        })
    }
}

/// What lies in the folders that are written live.
fn size(spec: &Spec) -> Result<Totals, Fault> {
    let mut totals = Totals::default();
    for mount in spec.live_folders() {
        let measured = without_links(&mount.path, nix::fcntl::OFlag::O_PATH)
            .map_err(io::Error::from)
            .and_then(|folder| {
                for entry in below(&folder, &mount.path) {
                    totals.add(&entry.and_then(|(_, entry)| entry.metadata())?);
                }
                Ok(())
            });
        measured.map_err(|error| super::launcher::broken("measuring a live folder", &error))?;
    }
    Ok(totals)
}

async fn read(from: Receiver, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error counts.
    let _ = from.take(most).read_to_end(&mut bytes).await;
    bytes
}

/// Reads the output of a recorder. The last line of one that was killed may be a part of a line.
pub fn notes(recorded: OwnedFd) -> Vec<Note> {
    let bytes = messages::read_memory_file(recorded, 2 * MAX_EVENT_BYTES).unwrap_or_default();
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}
