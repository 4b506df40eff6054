//! Rig: the parts of a worker, in this process, one at a time, so that the bench can measure them.
//!
//! For: `cargo bench`. In: a module that the bench itself wrote. Out: times. Never: used for a real call; nothing here
//! is behind walls.

use super::frame::Init;
use super::guest::Loaded;
use super::{adapt, engine, trusted_code};
use crate::policy::Limits;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wasmtime::component::Component;

/// One loaded module with everything a call needs.
pub struct Rig {
    loaded: Loaded,
    runtime: tokio::runtime::Runtime,
    init: Init,
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
            code_descriptor: -1,
            code_offset: 0,
            code_bytes: 0,
            entry_point: None,
            limits: Limits::house().0,
            openings: Vec::new(),
            env: Default::default(),
            program: "bench".into(),
            scratch,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| e.to_string())?;
        let loaded = Loaded::new(&component, &init)?;
        Ok(Rig { loaded, runtime, init, compiled_in, loaded_in })
    }

    /// One call as the worker makes it: limits, clock, sinks, opened folders.
    pub fn held(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        let (input, limit) = (input.as_bytes().to_vec(), Duration::from_secs(30));
        let done = self.loaded.call(&self.runtime, &self.init, &BTreeMap::new(), input, limit);
        done.map(|_| start.elapsed()).map_err(|e| format!("{e:#}"))
    }

    /// The same instance and call in a bare store of the same engine: what wasmtime alone costs.
    pub fn bare(&self, input: &str) -> Result<Duration, String> {
        let start = Instant::now();
        self.loaded.bare(&self.runtime, input).map(|()| start.elapsed()).map_err(|e| format!("{e:#}"))
    }
}
