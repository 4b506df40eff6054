//! Pieces: a long text made while it is sent, because whole it would be several times as large as the answer in it.
//!
//! For: faces. In: what a serializer writes, in a thread that may wait. Out: pieces, one at a time. Never: more than a
//! piece ahead of its reader.

use std::io;
use tokio::sync::mpsc;

/// Bytes of one piece: few enough that the count of written bytes shows a slow reader's progress.
pub const PIECE: usize = 16 * 1024;

/// To be wrapped in a `BufWriter` of `PIECE` bytes.
pub struct Pieces(pub mpsc::Sender<Vec<u8>>);

impl io::Write for Pieces {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(piece.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
