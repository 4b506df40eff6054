//! Calls as the Responses API shows them: one outcome as an item and as what the model reads; and the
//! stream of events by the rules of Open Responses.
//!
//! All of it is pure but `model`, which asks the operator's model server.

mod call;
mod chat;
mod conversation;
mod ended;
mod items;
mod model;
mod stream;
mod told;
mod turn;

pub use call::ToolCall;
pub use chat::{Finish, ModelCall, ModelTurn, Usage};
pub use conversation::{Conversation, SubmittedOutput, submitted};
pub use ended::{Ended, Media};
pub use items::{Kind, function_output, item};
pub use model::{Answering, Bounds, ModelServer, ModelSettings};
pub use stream::{ResponseStatus, Stream, StreamEvent, head};
pub use told::{Message, Told};
pub use turn::{Step, Telling};
