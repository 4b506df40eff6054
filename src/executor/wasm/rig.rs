//! The parts of a worker in this process, behind no walls: for the bench, which measures them one at a time.

use super::frame::{FilePart, Init, ToHost};
use super::worker::Loaded;
use super::{adapt, engine, trusted_code};
use crate::policy::Limits;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wasmtime::component::Component;

/// One loaded module with everything a call needs.
pub struct Rig {
    loaded: Loaded,
    to: ToHost,
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
            code: FilePart { offset: 0, bytes: 0 },
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
        let to = ToHost::new(std::io::sink());
        Ok(Rig { loaded: Loaded::new(&component, init)?, to, compiled_in, loaded_in })
    }

    /// One call as the worker makes it: limits, clock, sinks, opened folders.
    pub fn held(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        let input = input.as_bytes().to_vec();
        let done = self.loaded.call(1, &BTreeMap::new(), input, Duration::from_secs(30), &self.to);
        done.map(|_| start.elapsed()).map_err(|e| format!("{e:#}"))
    }

    /// The same instance and call in a bare store of the same engine: what wasmtime alone costs.
    pub fn bare(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        self.loaded.bare(input).map(|()| start.elapsed()).map_err(|e| format!("{e:#}"))
    }
}
