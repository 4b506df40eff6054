//! The roles in which this binary runs behind the layers for WASI tools.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs calls. Reserves 70 GiB of address space (so no RLIMIT_AS). `memfd_create` must work or
    /// fail with ENOSYS. It counts time and CPU of each call itself, so the layers set no limit over
    /// its life; the host ends it when a call's time is over.
    Worker,
    /// Compiles one module. Needs as many threads as there are CPUs.
    Compile,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Role::Worker => "wasm-worker",
            Role::Compile => "wasm-compile",
        }
    }
}
