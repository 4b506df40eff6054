//! The parts of a worker in this process, one at a time, so that the bench can measure them. Nothing here is behind walls.

use super::call::Loaded;
use super::frame::{FilePart, Init};
use super::{adapt, engine, trusted_code};
use crate::policy::Limits;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wasmtime::component::Component;

/// One loaded module with everything a call needs.
pub struct Rig {
    loaded: Loaded,
    /// How long adapting and compiling took, and how long loading the compiled code.
    pub compiled_in: Duration,
    pub loaded_in: Duration,
}

impl Rig {
    pub fn new(module: &[u8], scratch: PathBuf) -> Result<Rig, String> {
        let said = |e: wasmtime::Error| format!("{e:#}");
        let compiler = engine::compiling().map_err(said)?;
        let start = Instant::now();
        let component = adapt::component(module)?;
        let compiled = Component::from_binary(&compiler, &component).and_then(|c| c.serialize()).map_err(said)?;
        let compiled_in = start.elapsed();
        let runner = engine::running().map_err(said)?;
        let start = Instant::now();
        let component = trusted_code::load(&runner, &compiled).map_err(said)?;
        let loaded_in = start.elapsed();
        let init = Init {
            code: FilePart { descriptor: -1, offset: 0, bytes: 0 },
            entry_point: None,
            limits: Limits::house(),
            openings: Vec::new(),
            env: Default::default(),
            program: "bench".into(),
            scratch,
            folder: PathBuf::new(),
            granted: Vec::new(),
            networked: false,
        };
        Ok(Rig { loaded: Loaded::new(&component, init)?, compiled_in, loaded_in })
    }

    /// One call as the worker makes it: limits, clock, sinks, opened folders.
    pub fn held(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        let done =
            self.loaded.call(1, &BTreeMap::new(), input.as_bytes().to_vec(), Duration::from_secs(30), std::io::sink());
        done.map(|_| start.elapsed()).map_err(|e| format!("{e:#}"))
    }

    /// The same instance and call in a bare store of the same engine: what wasmtime alone costs.
    pub fn bare(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        self.loaded.bare(input).map(|()| start.elapsed()).map_err(|e| format!("{e:#}"))
    }
}
