//! Limits and their units, in one place. Values of a policy or a manifest pass through
//! `policy::confine`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;
pub const GIB: u64 = 1024 * MIB;

/// Shortest time limit that a manifest, a policy or a call may ask for, milliseconds.
pub const MIN_TIMEOUT_MS: u64 = 100;
/// How long after a call's time limit the host stops waiting for launcher and worker.
pub const OVERDUE: std::time::Duration = std::time::Duration::from_millis(900);
/// Largest manifest or policy file that is read, bytes.
pub const MAX_DEFINITION_BYTES: u64 = MIB;
/// Most memory that arguments, or an answer, may take as a tree, bytes. An answer becomes a tree
/// only where a schema checks it; otherwise it stays text.
pub const MAX_TREE_BYTES: usize = 32 * MIB as usize;
/// Largest answer that is sent to a client, bytes; `outputBytes` is at most this.
pub const MAX_RESPONSE_BYTES: u64 = 32 * MIB;
/// A text longer than this is handled apart from other calls, bytes.
pub const LARGE_TEXT_BYTES: usize = 64 * KIB as usize;
/// Deepest nesting of any JSON document we parse.
pub const MAX_JSON_DEPTH: usize = 128;
/// Most parts of one JSON Schema; what a reference leads to counts for each reference.
pub const MAX_SCHEMA_NODES: usize = 2_000;
/// Deepest nesting of one JSON Schema, references followed.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Most regular expressions in one JSON Schema, and what all of them may take compiled, bytes.
pub const MAX_SCHEMA_REGEXES: usize = 32;
pub const MAX_REGEX_BYTES: usize = 512 * KIB as usize;
/// Largest cache of matching states of one regular expression, for each direction, bytes.
pub const MAX_REGEX_CACHE_BYTES: usize = 256 * KIB as usize;
/// Longest text that may pass as `"format": "regex"`, bytes.
pub const MAX_FORMAT_BYTES: usize = 4 * KIB as usize;
/// Most steps that checking one value against a JSON Schema may take: some seconds at the very
/// worst.
pub const MAX_CHECK_STEPS: usize = 100_000_000;
/// A check that is estimated to take more steps than this runs apart from other calls.
pub const LONG_CHECK_STEPS: usize = 1_000_000;
/// Most defaults filled into the arguments of one call; a long one counts once more for each 128
/// bytes.
pub const MAX_FILLED_DEFAULTS: usize = 10_000;
/// Most faults reported about one call's arguments or output.
pub const MAX_FAULTS_TOLD: usize = 20;
/// Deepest folder a scan for manifests enters, and the most entries it looks at.
pub const MAX_SCAN_DEPTH: usize = 32;
pub const MAX_SCAN_ENTRIES: usize = 500_000;
/// Most files that a grant like `data/*.csv` may expand to; for more, `data/**` is to be asked for.
pub const MAX_SCRIPT_BYTES: u64 = 64 * MIB;
pub const MAX_SNAPSHOT_FILES: usize = 200;
/// Most entries of a writable tree that are inspected before a call; more refuses the call.
pub const MAX_WRITABLE_ENTRIES: usize = 100_000;
/// Most hosts that a manifest may ask for, and ports among them, each of which is a listening
/// socket.
pub const MAX_HOSTS: usize = 200;
pub const MAX_PORTS: usize = 25;
/// The least that a file of a call is charged, bytes: it takes a descriptor, too.
pub const MIN_FILE_BYTES: u64 = 64 * KIB;
/// Longest interval between two looks at memory and CPU where no cgroup counts, milliseconds.
pub const SAMPLE_MS: u64 = 20;
/// Most files that a call may bring, whatever its limit: each is a descriptor beside one message.
pub const MAX_FILES: u64 = 128;
/// Longest text of one environment literal, bytes.
pub const MAX_ENV_BYTES: usize = 32 * 1024;

/// Longest text in which an action is looked for, bytes; its block may be as long as a tool's input
/// is by default.
pub const MAX_ACTION_TEXT_BYTES: usize = 4 * MIB as usize;
/// Deepest nesting of an action block, most elements in it, and most inputs.
pub const MAX_ACTION_DEPTH: usize = 32;
pub const MAX_ACTION_ELEMENTS: usize = 1024;
pub const MAX_ACTION_INPUTS: usize = 256;
/// Longest tag of an action block, bytes.
pub const MAX_ACTION_TAG_BYTES: usize = 4 * KIB as usize;
/// Longest sentence in an observation, bytes; the rest is cut, and the cut is said.
pub const MAX_OBSERVATION_BYTES: usize = MIB as usize;

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
    Connections,
    SentBytes,
    ReceivedBytes,
    /// Files that a call brings, and files that it leaves for its caller.
    ArtifactFiles,
    ArtifactBytes,
    NestedCalls,
}

impl Limit {
    pub const ALL: [Limit; 18] = [
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
        Limit::Connections,
        Limit::SentBytes,
        Limit::ReceivedBytes,
        Limit::ArtifactFiles,
        Limit::ArtifactBytes,
        Limit::NestedCalls,
    ];

    /// The name in a manifest and in every report (`memoryBytes`).
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The name in a policy file (`memory_bytes`).
    pub fn policy_name(self) -> &'static str {
        self.facts().1
    }

    /// The default, where neither policy nor manifest says otherwise.
    pub fn built_in_default(self) -> u64 {
        self.facts().2
    }

    /// The largest value that has an effect; a larger one is clamped where it is read.
    pub fn most(self) -> u64 {
        match self {
            Limit::OutputBytes => MAX_RESPONSE_BYTES,
            Limit::ArtifactFiles => MAX_FILES,
            _ => u64::MAX,
        }
    }

    /// Its name in a manifest, its name in a policy, and its default.
    fn facts(self) -> (&'static str, &'static str, u64) {
        match self {
            Limit::TimeoutMs => ("timeoutMs", "timeout_ms", 30_000),
            // As much CPU as two busy cores use in the default time.
            Limit::CpuMs => ("cpuMs", "cpu_ms", 60_000),
            Limit::MemoryBytes => ("memoryBytes", "memory_bytes", GIB),
            // Enough for numpy on a big machine.
            Limit::Processes => ("processes", "processes", 128),
            Limit::OpenFiles => ("openFiles", "open_files", 1024),
            Limit::ScratchBytes => ("scratchBytes", "scratch_bytes", 256 * MIB),
            Limit::FileBytes => ("fileBytes", "file_bytes", 256 * MIB),
            Limit::WrittenBytes => ("writtenBytes", "written_bytes", 512 * MIB),
            Limit::WrittenFiles => ("writtenFiles", "written_files", 10_000),
            Limit::InputBytes => ("inputBytes", "input_bytes", MIB),
            Limit::OutputBytes => ("outputBytes", "output_bytes", MIB),
            Limit::LogBytes => ("logBytes", "log_bytes", 64 * KIB),
            Limit::Connections => ("connections", "connections", 64),
            Limit::SentBytes => ("sentBytes", "sent_bytes", 64 * MIB),
            Limit::ReceivedBytes => ("receivedBytes", "received_bytes", 256 * MIB),
            Limit::ArtifactFiles => ("artifactFiles", "artifact_files", 32),
            Limit::ArtifactBytes => ("artifactBytes", "artifact_bytes", 64 * MIB),
            Limit::NestedCalls => ("nestedCalls", "nested_calls", 100),
        }
    }
}

/// A value for each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Limits(pub BTreeMap<Limit, u64>);

impl Limits {
    pub fn built_in() -> Limits {
        Limits(
            Limit::ALL
                .into_iter()
                .map(|l| (l, l.built_in_default()))
                .collect(),
        )
    }
    pub fn get(&self, limit: Limit) -> u64 {
        self.0
            .get(&limit)
            .copied()
            .unwrap_or_else(|| limit.built_in_default())
    }
    pub fn set(&mut self, limit: Limit, value: u64) {
        self.0.insert(limit, value);
    }
}
