//! The front door: re-entered as the launcher → be the launcher; else the cli.
//! Before any thread or runtime is started.

use std::process::ExitCode;
use toolhost::executor::wasm;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match name.to_str() {
        Some("toolhost-wasm-worker") => wasm::Role::Worker.enter(),
        Some("toolhost-wasm-compile") => wasm::Role::Compile.enter(),
        _ => toolhost::cli::main(),
    }
}
