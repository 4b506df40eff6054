//! Runs pip or npm twice in the sandbox: once with only the index in reach and no package code running, once without a
//! network. An installer gets no file of the tool and no setting of this machine's user.

use super::runs::{Recorder, Run};
use super::{Need, locks, program};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::packages::Index;
use crate::packages::installed::Vendored;
use crate::packages::store::Layout;
use crate::policy::packages::Ecosystem;
use crate::policy::{Access, Grant, Network, Opening, Runtime, Shape};
use crate::quantity::{GIB, Limit, MIB};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longest run, milliseconds.
const LONGEST_MS: u64 = 15 * 60 * 1000;
const PYTHON: &str = include_str!("install.py");
const NODE: &str = include_str!("install.cjs");

pub struct Installer<'a> {
    pub need: &'a Need,
    pub index: &'a Index,
    pub runtime: Runtime,
    pub npm: Option<&'a Path>,
}

pub(super) type Tell<'a> = &'a (dyn Fn(&str) + Sync);

impl Installer<'_> {
    /// Fetches what the lock names. Answers when each was published, as far as that was asked for and is known.
    pub async fn fetch(&self, runs: &Recorder, work: &Path, tell: Tell<'_>) -> Result<BTreeMap<String, String>, Fault> {
        let into = work.join("fetched");
        let answer = self.run("fetch", runs, &into, None, true, json!({}), tell).await?;
        Ok(serde_json::from_value(answer["published"].clone()).unwrap_or_default())
    }

    /// Installs what was fetched into `built`. `place`: where the environment will lie.
    pub async fn install(&self, runs: &Recorder, work: &Path, place: &Path, tell: Tell<'_>) -> Result<(), Fault> {
        let (into, from) = (work.join("built"), work.join("fetched"));
        let shown = match self.need.wanted.ecosystem {
            Ecosystem::Python => place.join(self.site()?),
            Ecosystem::Node => place.to_path_buf(),
        };
        self.run("install", runs, &into, Some(&from), false, json!({"shown": shown}), tell).await.map(drop)
    }

    /// When the copies of packages that lie inside others were published, as far as the index knows.
    pub async fn ages(
        &self,
        runs: &Recorder,
        work: &Path,
        copies: &[Vendored],
        tell: Tell<'_>,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let into = work.join("resolving");
        std::fs::create_dir_all(&into).map_err(|e| super::broken(&e))?;
        let packages: Vec<_> = copies.iter().map(Vendored::package).collect();
        let answer = self.run("ages", runs, &into, None, true, json!({ "packages": packages }), tell).await?;
        Ok(serde_json::from_value(answer["published"].clone()).unwrap_or_default())
    }

    /// Resolves requirements, or translates the lock of another format that lies beside them; the answer is the installer's.
    pub async fn resolve(&self, runs: &Recorder, work: &Path, tell: Tell<'_>) -> Result<Value, Fault> {
        let into = work.join("resolving");
        std::fs::create_dir_all(&into).map_err(|e| super::broken(&e))?;
        let what = if self.need.wanted.inputs.len() > 1 { "translate" } else { "resolve" };
        let before = json!({"before": locks::latest(self.need)});
        self.run(what, runs, &into, None, what == "resolve", before, tell).await
    }

    #[expect(clippy::too_many_arguments, reason = "one run has that many parts")]
    async fn run(
        &self,
        what: &str,
        runs: &Recorder,
        into: &Path,
        from: Option<&Path>,
        network: bool,
        more: Value,
        tell: Tell<'_>,
    ) -> Result<Value, Fault> {
        let wanted = &self.need.wanted;
        let mut order = json!({
            "do": what,
            "inputs": wanted.inputs,
            "packages": wanted.packages,
            "builds": self.need.rules.builds,
            "ages": self.need.rules.min_age_days.is_some(),
            "index": self.index.spoken(),
            "ca": self.index.ca.as_ref().map(|(_, text)| text),
            "into": into,
            "from": from,
            "npm": self.npm,
        });
        if let (Value::Object(order), Value::Object(more)) = (&mut order, more) {
            order.extend(more);
        }
        let source = match wanted.ecosystem {
            Ecosystem::Python => PYTHON,
            Ecosystem::Node => NODE,
        };
        let shape = self.shape(into, from, network);
        let hidden = into.parent().unwrap_or(into);
        let run = Run { hidden, what, tool: &self.need.tool, shape, source, order, timeout_ms: LONGEST_MS };
        runs.run(run, tell).await
    }

    /// What a run may touch: its interpreter, one folder to write, one to read, and the index or nothing.
    fn shape(&self, into: &Path, from: Option<&Path>, network: bool) -> Shape {
        let mut runtime = self.runtime.clone();
        runtime.roots.extend(self.npm.and_then(installation).filter(|_| self.need.wanted.ecosystem == Ecosystem::Node));
        let mut shape = Shape::bare("toolhost:packages@1.0.0", runtime);
        let grant = |access, path: &Path| Grant {
            access,
            opening: Opening::Live { path: path.to_owned() },
            asked: "(packages)".to_owned(),
            rule: "packages".to_owned(),
            why: format!("packages of {}", self.need.tool),
        };
        shape.grants.push(grant(Access::Write, into));
        shape.grants.extend(from.map(|from| grant(Access::Read, from)));
        if network {
            shape.network = Network::Hosts(self.index.hosts.clone());
            shape.secrets = self.index.credential.iter().cloned().collect();
        }
        for (limit, most) in [
            (Limit::TimeoutMs, LONGEST_MS),
            (Limit::CpuMs, 4 * LONGEST_MS),
            (Limit::MemoryBytes, 4 * GIB),
            (Limit::Processes, 256),
            (Limit::OpenFiles, 4096),
            (Limit::FileBytes, 2 * GIB),
            (Limit::WrittenBytes, 8 * GIB),
            (Limit::WrittenFiles, 200_000),
            (Limit::InputBytes, 64 * MIB),
            (Limit::OutputBytes, 64 * MIB),
            (Limit::LogBytes, MIB),
            (Limit::ReceivedBytes, 4 * GIB),
        ] {
            shape.limits.set(limit, most);
        }
        shape
    }

    /// Where the packages lie in an entry.
    fn site(&self) -> Result<String, Fault> {
        match self.need.wanted.ecosystem {
            Ecosystem::Python => Ok(format!("lib/python{}/site-packages", minor(&self.runtime)?)),
            Ecosystem::Node => Ok("node_modules".to_owned()),
        }
    }

    /// What an entry is made of: a virtual environment of which the host makes all but the packages, or a folder.
    pub fn layout(&self) -> Result<Layout, Fault> {
        let site = self.site()?;
        match self.need.wanted.ecosystem {
            Ecosystem::Python => {
                let program = program(&self.runtime)?;
                let home = program.parent().unwrap_or(Path::new("/")).display();
                let version = &self.runtime.version;
                let text = format!("home = {home}\ninclude-system-site-packages = false\nversion = {version}\n");
                let files = vec![("pyvenv.cfg".to_owned(), text)];
                let links = vec![("bin/python".to_owned(), program)];
                Ok(Layout { from: "built/site".into(), site, files, links })
            }
            Ecosystem::Node => {
                let from = PathBuf::from("built/project/node_modules");
                Ok(Layout { from, site, files: Vec::new(), links: Vec::new() })
            }
        }
    }
}

/// `3.11` of `3.11.7`.
fn minor(runtime: &Runtime) -> Result<String, Fault> {
    let mut parts = runtime.version.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("{major}.{minor}")),
        _ => {
            let why = format!("its version is {}", text::printable(&runtime.version));
            Err(Fault::new(Kind::DependencyError, "the interpreter does not tell its version").person(why))
        }
    }
}

/// The folder of npm, from its program in `bin`.
fn installation(npm: &Path) -> Option<PathBuf> {
    npm.parent()?.parent().map(Path::to_path_buf)
}
