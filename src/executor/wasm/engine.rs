//! The wasmtime settings of compiler, worker and cache key, and a fingerprint of everything that
//! shapes compiled code.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Raise this when adapting or compiling changes in a way that wasmtime cannot know of, or when the
/// linker offers more, since refusals are kept too.
const OUR_VERSION: u32 = 3;
/// Stack of guest code: interpreters compiled to wasm recurse deeply.
const GUEST_STACK_BYTES: usize = 8 << 20;
/// Stack that guest and host calls share.
const FIBER_STACK_BYTES: usize = 10 << 20;
/// Address space of one memory: with 4 GiB, compiled code needs no bounds checks. Reserved, not
/// used.
const MEMORY_RESERVATION: u64 = 4 << 30;
/// Largest table, elements.
pub const TABLE_ELEMENTS: usize = 65_536;
/// How many instances, memories and tables one component may be made of; a component that holds an
/// interpreter has dozens. Slots cost address space; tables are also counted as data by the kernel.
const CORE_INSTANCES: u32 = 256;
const MEMORIES: u32 = 16;
const TABLES: u32 = 32;
/// Bytes that are zeroed in place after a call instead of being given back to the kernel.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// All settings that shape compiled code.
fn settings() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.wasm_features(
        wasmtime::WasmFeatures::THREADS | wasmtime::WasmFeatures::SHARED_EVERYTHING_THREADS,
        false,
    );
    config.relaxed_simd_deterministic(true);
    config.max_wasm_stack(GUEST_STACK_BYTES);
    config.async_stack_size(FIBER_STACK_BYTES);
    config.memory_reservation(MEMORY_RESERVATION);
    config.wasm_backtrace_max_frames(NonZeroUsize::new(16));
    config
}

/// For the compiler child, and for the fingerprint.
pub fn compiling() -> wasmtime::Result<Engine> {
    Engine::new(&settings())
}

/// For a worker: no compiler, and slots for exactly one call at a time.
pub fn running() -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(1)
        .total_core_instances(CORE_INSTANCES)
        .total_memories(MEMORIES)
        .total_tables(TABLES)
        .total_stacks(2)
        .total_gc_heaps(1)
        .max_memories_per_module(MEMORIES)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_core_instance_size(4 << 20)
        .max_component_instance_size(4 << 20)
        .max_memory_size(usize::try_from(MEMORY_RESERVATION).unwrap_or(usize::MAX))
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto);
    let mut config = settings();
    config.enable_compiler(false);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// Two equal fingerprints may exchange compiled code. (No tool chooses what is hashed, and wasmtime
/// compares again.)
pub fn fingerprint() -> wasmtime::Result<u64> {
    let mut sum = std::hash::DefaultHasher::new();
    OUR_VERSION.hash(&mut sum);
    wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER.hash(&mut sum);
    compiling()?.precompile_compatibility_hash().hash(&mut sum);
    Ok(sum.finish())
}
