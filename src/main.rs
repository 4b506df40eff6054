//! Front door: argv[0] says whether this process is the launcher, a role behind the layers, or the
//! command line. Decided before any thread or runtime is started.

use std::process::ExitCode;
#[cfg(feature = "wasi")]
use toolhost::executor::wasm;
use toolhost::{cli, egress, sandbox};

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match name.to_str() {
        Some(sandbox::launcher::NAME) => sandbox::launcher::main(),
        #[cfg(feature = "wasi")]
        Some("toolhost-wasm-worker") => {
            sandbox::ignore_sigxfsz();
            wasm::Role::Worker.enter()
        }
        #[cfg(feature = "wasi")]
        Some("toolhost-wasm-compile") => wasm::Role::Compile.enter(),
        Some("toolhost-probe") => sandbox::probe::main(),
        Some("toolhost-relay") => egress::relay::main(),
        _ => {
            sandbox::reset_sigchld();
            sandbox::ignore_sigxfsz();
            sandbox::limits::raise_host_limits();
            cli::main()
        }
    }
}
