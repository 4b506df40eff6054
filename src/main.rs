//! Front door: this process is the launcher, a role behind the layers, or the command line. Decided
//! before any thread or runtime is started.

use std::process::ExitCode;
#[cfg(feature = "wasi")]
use toolhost::executor::wasm::Role;
use toolhost::{cli, egress, sandbox};

fn main() -> ExitCode {
    sandbox::reenter(&[
        (egress::protocol::ROLE, egress::relay::main),
        #[cfg(feature = "wasi")]
        (Role::Worker.name(), || Role::Worker.enter()),
        #[cfg(feature = "wasi")]
        (Role::Compile.name(), || Role::Compile.enter()),
    ]);
    sandbox::reset_sigchld();
    sandbox::ignore_sigxfsz();
    sandbox::limits::raise_host_limits();
    cli::main()
}
