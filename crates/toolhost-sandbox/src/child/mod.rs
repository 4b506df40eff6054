//! What runs in the processes of a launcher: the launcher itself, the init of a call, and its id
//! maps.

pub mod idmap;
pub mod init;
pub mod launcher;
