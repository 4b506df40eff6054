//! Calls in the background: their states, their store, and callbacks at their ends.

mod callback;
mod calls;
mod jobs;
mod open;
mod response;
mod responses;
mod run;
mod runs;
mod store;
mod table;
mod task;

pub use calls::{Background, EndReport, JobCounts, Receipt};
pub use jobs::{CallbackState, Delivery};
pub use open::{in_memory, stored};
pub use response::{ResponseHead, StoredResponse};
pub use responses::{EventTexts, NewEvents};
pub use run::{Run, RunStatus, RunStep, StepEnd, ToolOutput};
pub use runs::RunningRun;
pub use store::FILE;
