//! Reenter: a program that uses the sandbox is also what runs in it: the launcher, and the roles of
//! its own. argv[0] says which of these a process is.

use crate::child::launcher;
use crate::probe;
use std::ffi::CString;
use std::process::ExitCode;

/// What a process of this program does instead of the program, by its name.
pub type Role = (&'static str, fn() -> ExitCode);

/// argv[0] of a process in this role.
pub fn role_name(role: &str) -> String {
    format!("toolhost-{role}")
}

/// The first line of `main`, before any thread or runtime is started. If this process was started
/// as the launcher or in one of `roles`, it does that and ends.
pub fn reenter(roles: &[Role]) {
    let name = std::env::args_os().next().unwrap_or_default();
    let own: [Role; 2] = [(launcher::ROLE, launcher::main), (probe::ROLE, probe::main)];
    let role = own
        .iter()
        .chain(roles)
        .find(|(role, _)| name.to_str() == Some(&role_name(role)));
    if let Some((role, enter)) = role {
        // What `ps` and `top` show: the kernel's own choice is the number of the descriptor that was run.
        if let Ok(name) = CString::new(role_name(role)) {
            let _ = nix::sys::prctl::set_name(&name);
        }
        std::process::exit(i32::from(enter() != ExitCode::SUCCESS));
    }
}
