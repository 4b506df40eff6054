//! What a call used: memory and CPU where no cgroup counts, descriptors, and files that were
//! written live.
//!
//! With a cgroup memory, processes and CPU are exact. Without one, and for what no cgroup charges,
//! this module looks every 20 ms:
//!
//! - Between two looks a call can write what fits in that time; where the kernel reports such a
//!   peak afterwards, the call ends as over its limit. Children that end between two looks and are
//!   never waited for cost CPU that is not counted; wall time still ends the call.
//! - Counted: pages, swap, page tables, mappings (256 bytes each, and 64 for each process; looked
//!   at only where the addresses in use leave room for so many that the limit could be passed),
//!   threads (32 KiB), files of the scratch (1 KiB beside their bytes), each entry of an epoll and
//!   each file lock (256 bytes), and descriptors for what they can hold at most: 65 KiB a pipe; one
//!   and a half times `net.core.wmem_default` and 2 KiB (288 KiB at least) an end of a socket pair
//!   or a connection, whose buffers are 64 KiB each; a file of /proc 1 MiB, or, where that is more,
//!   2 KiB for each file in scratch or what its locks count; 1 KiB any other.
//! - Not seen: timers and queued signals (at most 1024), names that the kernel remembers not to
//!   exist. Locks, epoll entries and descriptors on their way in a socket (each counts as a full
//!   socket) are looked for again after 200 ms of CPU time.
//! - Refused under sampling, so that memory lies nowhere else: shared anonymous memory (Python:
//!   `mmap.mmap(-1, n)`; files in /tmp and /dev/shm can be shared), `memfd_create`, `sendfile`,
//!   /dev/zero, larger pipes and sockets, transparent huge pages.
//! - Shared pages are counted once, which takes the kernel some 10 to 20 ms for each GiB of each
//!   process (`sampler`). The call is stopped meanwhile (SIGSTOP, SIGCONT), on its own time.
//!   Processes that the tool had stopped itself stay stopped; handlers of SIGCONT run, and a parent
//!   that waits for stopped children is notified. A call that wakes itself again and again is
//!   ended: the sum counts only for a moment in which all were stopped.
//! - Looks at what a tool made have threads of their own (`walk`), so that the clock and the
//!   kernel's counts are looked at every 20 ms. A longer look stops the call until it is done;
//!   after a second of CPU time, or five seconds, what it has not seen counts as over the limit. A
//!   process that is ending counts as it showed last. CPU time of the launcher beyond a tenth of
//!   the call's time is the call's.
//! - File locks are charged to no cgroup and are counted beside it: a call may hold as much in
//!   locks as in memory, and some megabytes more between two looks. A kernel that does not charge
//!   its own memory to groups (`cgroup.memory=nokmem`) counts as having none.
//! - CPU is shared by groups where a cgroup with CPU control can be had (v1: `cpu`; v2: where `cpu`
//!   is on for the delegated group): principals have equal shares, and each one's calls divide its
//!   share. Without, the kernel shares it between sessions (`kernel.sched_autogroup_enabled`); a
//!   call that holds more than 64 ends as over `processes`.
//!
//! Processes that map much memory take the kernel long to remove: a hundred that each map a GiB are
//! gone a second or more after the call was answered.

pub mod held;
pub mod processes;
pub mod sampler;
pub mod totals;
pub mod walk;
pub mod written;
