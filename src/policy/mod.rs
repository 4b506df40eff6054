//! Policies: what the operator *allows* at most, and the intersection with what a tool asks.
//!
//! For: service and cli. In: policy files, a manifest, its site, facts of the machine.
//! Out: a `Confinement`, or the reasons why not. Never: widens anything; opens a granted path.

mod confinement;
pub use confinement::*;

use crate::manifest::Language;
use std::collections::{BTreeMap, BTreeSet};

/// Plain facts of this machine, found by `runtimes` and `sandbox::probe`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub runtimes: BTreeMap<Language, Runtime>,
    /// What `requiredCapabilities` can be met here: `subprocess`, `gpu`, … (Q9).
    pub capabilities: BTreeSet<String>,
    /// True where memory, CPU and processes are counted by a cgroup.
    pub cgroup: bool,
}
