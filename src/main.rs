//! The front door: re-entered as the launcher → be the launcher; else the cli.
//! Before any thread or runtime is started.
fn main() -> std::process::ExitCode {
    toolhost::cli::main()
}
