//! MCP over standard input and output and over HTTP, with or without an `initialize` handshake.
//! Only this folder names `rmcp`.

mod asking;
mod frontend;
mod http;
mod listed;
mod message;
mod request;
mod results;
mod sessions;
mod skills;
mod stdio;
mod tasks;

pub use frontend::Mcp;
pub use http::{ReplyBody, Sender, StreamableHttp};
pub use listed::ListStyle;
pub use message::Message;
pub use stdio::{Client, serve};
