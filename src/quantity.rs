//! Quantities: limits and their units, in one place.
//!
//! For: every room. In: nothing. Out: constants and `Limit`.
//! Never: a value from a policy or manifest; those pass through `policy::confine`.

use serde::{Deserialize, Serialize};

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;
pub const GIB: u64 = 1024 * MIB;

/// Shortest time limit that a manifest, a policy or a call may ask for, milliseconds.
pub const MIN_TIMEOUT_MS: u64 = 100;
/// How long after a call's time limit the host stops waiting for launcher and worker (P15).
pub const OVERDUE: std::time::Duration = std::time::Duration::from_millis(900);
/// Largest manifest or policy file that is read, bytes (P19).
pub const MAX_DEFINITION_BYTES: u64 = MIB;
/// Most memory that arguments, or an answer, may take as a tree, bytes. An answer becomes a tree only where a schema
/// checks it; otherwise it stays text (P17).
pub const MAX_TREE_BYTES: usize = 32 * MIB as usize;
/// A text longer than this is handled apart from other calls, and in pieces, bytes.
pub const LARGE_TEXT_BYTES: usize = 64 * KIB as usize;
/// Deepest nesting of any JSON document we parse.
pub const MAX_JSON_DEPTH: usize = 128;
/// Most nodes in one JSON Schema (P21).
pub const MAX_SCHEMA_NODES: usize = 20_000;
/// Deepest nesting of one JSON Schema (P21).
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Most regular expressions in one JSON Schema, and the compiled size of each, bytes (P21).
pub const MAX_SCHEMA_REGEXES: usize = 100;
pub const MAX_REGEX_BYTES: usize = 2 * MIB as usize;
/// Most that the regular expressions of one manifest may weigh together, roughly bytes of compiled automata: some 70 ms
/// and 4 MiB for each manifest at worst. Fifty patterns of everyday length weigh a quarter of this.
pub const MAX_REGEX_WEIGHT: usize = 4 * MIB as usize;
/// Largest cache of matching states of one regular expression, for each direction, bytes.
pub const MAX_REGEX_CACHE_BYTES: usize = 256 * KIB as usize;
/// Most parts that are compiled for one JSON Schema: each `default` is held to a schema of its own.
pub const MAX_SCHEMA_COMPILED: usize = 500_000;
/// Most different `$ref` targets in one JSON Schema (P21).
pub const MAX_SCHEMA_REFERENCES: usize = 256;
/// Most steps that checking one value against a JSON Schema may take: half a second, about.
pub const MAX_CHECK_STEPS: usize = 20_000_000;
/// A check that is estimated to take more steps than this runs apart from other calls.
pub const LONG_CHECK_STEPS: usize = 1_000_000;
/// Most defaults filled into the arguments of one call.
pub const MAX_FILLED_DEFAULTS: usize = 10_000;
/// Most faults reported about one call's arguments or output.
pub const MAX_FAULTS_TOLD: usize = 20;
/// Deepest folder a scan for manifests enters, and the most entries it looks at.
pub const MAX_SCAN_DEPTH: usize = 32;
pub const MAX_SCAN_ENTRIES: usize = 500_000;
/// Most files that a grant like `data/*.csv` may expand to; for more, `data/**` is to be asked for.
pub const MAX_SNAPSHOT_FILES: usize = 200;
/// Most entries of a writable tree that are inspected before a call; more refuses the call.
pub const MAX_WRITABLE_ENTRIES: usize = 100_000;
/// Longest interval between two looks at memory and CPU where no cgroup counts, milliseconds.
pub const SAMPLE_MS: u64 = 20;
/// Longest text of one environment literal, bytes.
pub const MAX_ENV_BYTES: usize = 32 * 1024;

/// The limits of one call, each by the name a manifest, a policy, an audit and a
/// `ResourceLimitError` use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    TimeoutMs,
    CpuMs,
    MemoryBytes,
    Processes,
    OpenFiles,
    ScratchBytes,
    FileBytes,
    WrittenBytes,
    WrittenFiles,
    InputBytes,
    OutputBytes,
    LogBytes,
}

impl Limit {
    pub const ALL: [Limit; 12] = [
        Limit::TimeoutMs,
        Limit::CpuMs,
        Limit::MemoryBytes,
        Limit::Processes,
        Limit::OpenFiles,
        Limit::ScratchBytes,
        Limit::FileBytes,
        Limit::WrittenBytes,
        Limit::WrittenFiles,
        Limit::InputBytes,
        Limit::OutputBytes,
        Limit::LogBytes,
    ];

    /// The name in a manifest and in every report (`memoryBytes`).
    pub fn name(self) -> &'static str {
        match self {
            Limit::TimeoutMs => "timeoutMs",
            Limit::CpuMs => "cpuMs",
            Limit::MemoryBytes => "memoryBytes",
            Limit::Processes => "processes",
            Limit::OpenFiles => "openFiles",
            Limit::ScratchBytes => "scratchBytes",
            Limit::FileBytes => "fileBytes",
            Limit::WrittenBytes => "writtenBytes",
            Limit::WrittenFiles => "writtenFiles",
            Limit::InputBytes => "inputBytes",
            Limit::OutputBytes => "outputBytes",
            Limit::LogBytes => "logBytes",
        }
    }

    /// The name in a policy file (`memory_bytes`).
    pub fn policy_name(self) -> &'static str {
        match self {
            Limit::TimeoutMs => "timeout_ms",
            Limit::CpuMs => "cpu_ms",
            Limit::MemoryBytes => "memory_bytes",
            Limit::Processes => "processes",
            Limit::OpenFiles => "open_files",
            Limit::ScratchBytes => "scratch_bytes",
            Limit::FileBytes => "file_bytes",
            Limit::WrittenBytes => "written_bytes",
            Limit::WrittenFiles => "written_files",
            Limit::InputBytes => "input_bytes",
            Limit::OutputBytes => "output_bytes",
            Limit::LogBytes => "log_bytes",
        }
    }

    /// The default, where neither policy nor manifest says otherwise.
    pub fn house_default(self) -> u64 {
        match self {
            Limit::TimeoutMs => 30_000,
            // As much CPU as two busy cores use in the default time.
            Limit::CpuMs => 60_000,
            Limit::MemoryBytes => GIB,
            // Processes and threads; enough for numpy on a big machine.
            Limit::Processes => 128,
            Limit::OpenFiles => 1024,
            Limit::ScratchBytes => 256 * MIB,
            Limit::FileBytes => 256 * MIB,
            // What a call adds to the folders that it may write live.
            Limit::WrittenBytes => 512 * MIB,
            Limit::WrittenFiles => 10_000,
            Limit::InputBytes => MIB,
            Limit::OutputBytes => MIB,
            Limit::LogBytes => 64 * KIB,
        }
    }

    /// The smallest value that still lets a tool start; a smaller one is refused in the file that names it.
    pub fn floor(self) -> u64 {
        match self {
            Limit::TimeoutMs | Limit::CpuMs => MIN_TIMEOUT_MS,
            Limit::MemoryBytes => 16 * MIB,
            Limit::Processes | Limit::WrittenFiles => 1,
            Limit::OpenFiles => 16,
            Limit::ScratchBytes => 64 * KIB,
            Limit::FileBytes | Limit::WrittenBytes => 4 * KIB,
            Limit::InputBytes | Limit::OutputBytes | Limit::LogBytes => 256,
        }
    }
}
