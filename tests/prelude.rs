//! What most tests import.

pub use crate::harness::*;
pub use nix::sys::signal::Signal;
pub use serde_json::{Value, json};
pub use std::collections::{BTreeMap, BTreeSet};
pub use std::fs;
pub use std::io::{BufRead, BufReader, Read, Write};
pub use std::net::{TcpListener, TcpStream};
pub use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
pub use std::path::{Path, PathBuf};
pub use std::process::{Child, Command, Stdio};
pub use std::sync::atomic::{AtomicUsize, Ordering};
pub use std::sync::{Arc, Mutex};
pub use std::time::{Duration, Instant};
