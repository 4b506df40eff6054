//! A tool service in Rust: `cargo run --example joke -- amqp://localhost`.
//! docs/reference/TOOL-SERVICES.md has its descriptors.
use serde_json::{Map, Value, json};
use toolhost::broker::{ReplyStream, ServiceRequest, Terms, ToolService, Topic, serve};

pub struct Joke;

impl ToolService for Joke {
    async fn invoke(&self, asked: ServiceRequest, _: &ReplyStream) -> Result<Value, String> {
        let text = |of: &Map<String, Value>, name: &str| {
            of.get(name).and_then(Value::as_str).map(str::to_owned)
        };
        let style = text(&asked.config, "style").unwrap_or_else(|| "pun".to_owned());
        let joke = match text(&asked.arguments, "topic").as_deref() {
            Some("llama") => "Why do llamas never lose? They always have a spit take.".to_owned(),
            Some(topic) => format!("I knew one about {topic}. It has not come back."),
            None => "Tell me about what, and I laugh first.".to_owned(),
        };
        let hey = if asked.user.is_empty() {
            String::new()
        } else {
            format!("Hey {}! ", asked.user)
        };
        Ok(json!(format!("{hey}Here's a {style} for you:\n\n{joke}")))
    }
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "amqp://localhost".to_owned());
    let (requests, replies) = Topic::of_service("joke")?;
    serve(
        Terms::new(&url, None, None, false)?,
        requests,
        replies,
        "joke-service",
        8,
        Joke,
    )
    .await;
    Ok(())
}
