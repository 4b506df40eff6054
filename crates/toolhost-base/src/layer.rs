//! The layers of the sandbox, by name. `sandbox` raises them; verdicts of `policy` name them.

use serde::{Deserialize, Serialize};

/// One enforcement mechanism of the sandbox. `sandbox::LAYERS` says what each stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Network,
    View,
    Scratch,
    Cgroup,
    Namespaces,
    Identity,
    Session,
    Descriptors,
    Environment,
    Limits,
    Privileges,
    Landlock,
    Seccomp,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::Network => "network",
            Layer::View => "view",
            Layer::Scratch => "scratch",
            Layer::Cgroup => "cgroup",
            Layer::Namespaces => "namespaces",
            Layer::Identity => "identity",
            Layer::Session => "session",
            Layer::Descriptors => "descriptors",
            Layer::Environment => "environment",
            Layer::Limits => "limits",
            Layer::Privileges => "privileges",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
        }
    }
}
