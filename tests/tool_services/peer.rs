//! A service that does what it is told, well or badly, on a thread of its own.

use super::queues;
use crate::prelude::*;
use toolhost::broker::{
    Delivery, Link, Subscription, Terms, ToolServiceRequest, ToolServiceResponse, Topic,
};

pub struct Peer {
    pub calls: Arc<AtomicUsize>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Peer {
    /// Reads `request` and answers on the queue of `name`.
    pub fn of(terms: Terms, name: &str, request: &str) -> Peer {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let calls = Arc::<AtomicUsize>::default();
        let (replies, requests) = (
            Topic::parse(&queues(name).1).unwrap(),
            Topic::parse(request).unwrap(),
        );
        let (counted, (ready, is_ready)) = (calls.clone(), std::sync::mpsc::channel());
        runtime.spawn(async move {
            let source = Subscription::Shared {
                topic: requests,
                subscription: "peer".to_owned(),
                at_once: 200,
            };
            let (link, mut came) = Link::open(terms, source, replies);
            let link = Arc::new(link);
            link.connected().await;
            ready.send(()).unwrap();
            while let Some(delivery) = came.recv().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let link = link.clone();
                tokio::spawn(async move {
                    answer(&link, &delivery).await;
                    delivery.done().await.unwrap();
                });
            }
        });
        is_ready
            .recv_timeout(crate::harness::PATIENCE)
            .expect("the peer is connected");
        Peer {
            calls,
            runtime: Some(runtime),
        }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn answer(link: &Link, delivery: &Delivery) {
    let (id, request) = (
        &delivery.id,
        ToolServiceRequest::decode(&delivery.body).unwrap(),
    );
    let arguments: Value = serde_json::from_str(&request.arguments).unwrap();
    let put = async |id: &[u8], body: &[u8]| link.publish(id, body).await.unwrap();
    let say = async |reply: ToolServiceResponse| put(id, &reply.encode().unwrap()).await;
    let whole = async |text: String| say(ToolServiceResponse::whole(text)).await;
    match arguments["what"].as_str().unwrap_or_default() {
        "echo" => {
            let told = json!({"user": request.user, "config": request.config, "arguments": request.arguments});
            whole(told.to_string()).await;
        }
        "trace" => whole(json!([delivery.trace.parent, delivery.trace.state]).to_string()).await,
        "stream" => {
            for part in ["one ", "", "two "] {
                say(ToolServiceResponse::part(part.to_owned())).await;
                put(
                    b"11111111-2222-3333-4444-555555555555",
                    b"of somebody else, and no JSON",
                )
                .await;
            }
            for _ in 0..3 {
                whole("three".to_owned()).await;
            }
        }
        "fail" => {
            put(
                id,
                br#"{"error": {"type": "SecurityError", "message": "no such table \u001b[31m"}}"#,
            )
            .await
        }
        "garbage" => put(id, b"\xff not JSON").await,
        "half" => say(ToolServiceResponse::part("half".to_owned())).await,
        "object" => put(id, br#"{"response": {"a": [1]}, "end_of_stream": true}"#).await,
        "nothing" => put(id, br#"{"end_of_stream": true}"#).await,
        "big" => whole("x".repeat(3_000_000)).await,
        "bigger by parts" => {
            for _ in 0..30 {
                say(ToolServiceResponse::part("x".repeat(100_000))).await;
            }
        }
        "wait" => {
            let n = arguments["n"].as_u64().unwrap();
            tokio::time::sleep(Duration::from_millis(n * 7 % 50)).await;
            whole(format!("answer {n}")).await;
        }
        other => say(ToolServiceResponse::failed(format!("what is {other}?"))).await,
    }
}
