//! What a tool needs of packages, and how a shape uses what was built for it.

use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::packages::PackageRequirements;
use crate::policy::packages::{Ecosystem, PackageRules};
use crate::policy::{Built, Decision, Program, Runtime, Shape};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Need {
    /// `id@version`
    pub tool: String,
    pub wanted: Arc<PackageRequirements>,
    pub rules: PackageRules,
    /// The interpreter of the call.
    pub runtime: Runtime,
}

impl Need {
    /// The tool without its version, for people.
    pub fn id(&self) -> String {
        text::printable(self.tool.split('@').next().unwrap_or_default())
    }
}

/// Receives each line an installer prints.
pub(super) type LineSink<'a> = &'a (dyn Fn(&str) + Sync);
/// When files were published, by digest, and what is a copy inside of others, by `name version`:
/// RFC 3339, or empty where a file is used and the index does not say.
pub(super) type Published = BTreeMap<String, String>;

impl Need {
    /// What a decided tool requires; `None`: nothing.
    pub fn from_decision(decision: &Decision) -> Result<Option<Need>, Fault> {
        match (
            &decision.packages.required,
            &decision.grants.packages,
            &decision.shape,
        ) {
            // The files cannot be read, or disagree.
            (None, _, Err(fault)) if fault.kind == Kind::DependencyError => Err(fault.clone()),
            (None, ..) => Ok(None),
            (Some(wanted), Some(grant), Ok(shape)) => Ok(Some(Need {
                tool: decision.identity.tool.clone(),
                wanted: Arc::clone(wanted),
                rules: grant.rules.clone(),
                runtime: shape.runtime.clone(),
            })),
            (.., Err(fault)) => Err(fault.clone()),
            (.., Ok(_)) => Err(Fault::new(
                Kind::SecurityError,
                "no policy lets this tool have packages",
            )),
        }
    }
}

/// The file of an interpreter, with symbolic links resolved.
pub(super) fn program(runtime: &Runtime) -> Result<PathBuf, Fault> {
    let Program::Path(path) = &runtime.program else {
        return Err(Fault::new(
            Kind::InternalError,
            "packages for a tool without an interpreter",
        ));
    };
    path.canonicalize().map_err(|e| {
        let message = "the interpreter of this tool does not exist any more, so nothing was run";
        Fault::new(Kind::DependencyError, message).person(format!("{}: {e}", text::path(path)))
    })
}

pub(super) fn unusable(error: std::io::Error) -> Fault {
    Fault::new(
        Kind::InternalError,
        "this host's store of packages cannot be used, so nothing was run",
    )
    .person(format!(
        "the store of packages: {}",
        text::printable(&error.to_string())
    ))
    .retryable()
}

/// Lets a shape use the tree of an environment.
pub(super) fn use_built(shape: &mut Shape, path: PathBuf, ecosystem: Ecosystem) {
    let link = match ecosystem {
        Ecosystem::Python => {
            shape.runtime.program = Program::Path(path.join("bin/python"));
            None
        }
        // The last folder in which Node and Bun look, so that what lies beside the script comes
        // first.
        Ecosystem::Node => Some(("/node_modules".into(), path.join("node_modules"))),
    };
    shape.built = Some(Built { path, link });
}
