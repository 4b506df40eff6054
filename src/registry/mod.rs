//! The registry: manifests on disk, compiled in, or registered in process → an immutable `Snapshot`
//! of tools, swapped whole, and a report for each file.

mod aliases;
mod code;
mod conflicts;
mod listed;
mod load;
mod open_beneath;
mod owner;
mod reload;
mod remote_source;
mod scan;
pub mod scripts;
mod skills;
mod snapshot;
mod sources;
mod tool;

pub use code::APPROVED;
pub use load::{BUILTIN_FILES, Builtin, DirectToolLoader, locate, position};
pub use open_beneath::read_beneath;
pub use reload::Registry;
pub use remote_source::{Announced, MAX_TOOLS as MAX_ANNOUNCED_TOOLS};
pub use skills::{read_skill_file, skill_digests};
pub use snapshot::{Filter, Snapshot};
pub use tool::{
    CORE, Claim, Described, Discovery, ENDING, ENDINGS, FileReport, Source, Status, Tool,
    is_definition_file, is_manifest_file, list_path,
};
