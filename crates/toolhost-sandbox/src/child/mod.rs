//! What runs in the processes of a launcher: the launcher itself, its clock, the init of a call,
//! its id maps, and links that the launcher makes for it.

mod clock;
pub mod idmap;
pub mod init;
pub mod launcher;
pub mod listener;
pub mod paused;
