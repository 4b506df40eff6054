//! The tools compiled into this binary (source `builtin`). Their manifests are kept in `tool-defs/core/`.

use super::{Discovery, Source, Tool, nowhere};
use crate::manifest;
use std::sync::{Arc, LazyLock};

/// File name and text of every builtin manifest. A new one is one line here.
pub const BUILTIN_FILES: &[(&str, &str)] = &[
    ("execute-nodejs-script.tool.json", include_str!("../../tool-defs/core/execute-nodejs-script.tool.json")),
    ("execute-python-script.tool.json", include_str!("../../tool-defs/core/execute-python-script.tool.json")),
    ("execute-script.tool.json", include_str!("../../tool-defs/core/execute-script.tool.json")),
    ("run-code.tool.json", include_str!("../../tool-defs/core/run-code.tool.json")),
    ("task-status.tool.json", include_str!("../../tool-defs/core/task-status.tool.json")),
];

/// The source of the core tools.
#[derive(Debug, Default)]
pub struct Builtin;

impl Source for Builtin {
    fn id(&self) -> &str {
        "builtin"
    }

    fn discover(&self) -> Result<Discovery, String> {
        let tools = READ.iter().map(|manifest| Tool::new(manifest.clone(), nowhere(), self.id())).collect();
        Ok(Discovery { tools, ..Discovery::default() })
    }
}

static READ: LazyLock<Vec<Arc<manifest::Manifest>>> = LazyLock::new(|| {
    let read = |(name, text): &(&str, &str)| match manifest::read(text.as_bytes()) {
        Ok((manifest, _)) => Arc::new(manifest),
        Err(problems) => panic!("the builtin manifest {name}: {problems:?}"),
    };
    BUILTIN_FILES.iter().map(read).collect()
});

impl Builtin {
    /// Reads the manifests in a thread of its own, for a host that starts and needs them soon.
    pub fn begin() {
        // Without a thread they are read once they are needed.
        let _ = std::thread::Builder::new().spawn(|| LazyLock::force(&READ));
    }
}

/// Whether a file has exactly the text of a builtin manifest: such a copy on disk is no rival.
pub(super) fn same_as_builtin(tool: &Tool) -> bool {
    BUILTIN_FILES.iter().any(|(_, text)| crate::base::sha256_hex(text.as_bytes()) == tool.manifest.digest)
}
