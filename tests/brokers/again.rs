//! Requests that come again because a host was lost: which are known, and which run once more.

use super::held::running;
use super::{Node, Raw, Served, serving, unique, world, writer};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn what_was_answered_is_known_by_its_id_and_its_body_and_a_queue_that_is_deleted_is_made_again()
 {
    let Some((_node, playground, _, host, mut raw)) = serving("known", |_| ()).await else {
        return;
    };
    raw.call("same", "echo", json!({"n": 1})).await;
    assert_eq!(raw.answer("same").await["response"], "{\"n\":1}");
    // Another request under its id, which another host was lost with.
    raw.lost("same", "echo", json!({"n": 2})).await;
    assert_eq!(
        raw.answer("same").await["response"],
        "{\"n\":2}",
        "{}",
        host.said()
    );
    // While one runs, too.
    raw.call("run", "echo", json!({"seconds": 4})).await;
    running(&playground, "echo");
    raw.lost("run", "echo", json!({"n": 3})).await;
    for answer in ["{\"n\":3}", "{\"seconds\":4}"] {
        assert_eq!(
            raw.answer("run").await["response"],
            answer,
            "{}",
            host.said()
        );
    }
    // The control: what has its answer gets no second one.
    assert!(!host.said().contains("it was answered"), "{}", host.said());
    raw.lost("same", "echo", json!({"n": 2})).await;
    host.says("request same comes again; it was answered", 1);
    raw.is_quiet().await;
    // A queue that is deleted is made again.
    raw.delete_queue().await;
    host.says("is connected", 2);
    raw.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "second stage (.ci/full): needs a message broker"]
async fn a_tool_that_may_write_runs_again_where_its_author_and_the_operator_say_so() {
    let Some(node) = Node::shared() else { return };
    let (playground, service) = (world(Who::ours()), unique("idempotent"));
    for name in ["both-say", "author-says"] {
        writer(&playground, name, json!({"idempotent": true}));
    }
    playground.settle();
    let entry = format!(
        "[[broker]]\nurl = \"{}\"\nservice = \"{service}\"\ncaller = \"trustgraph\"\n\
         tools = [\"esc:echo\", \"esc:write\", \"esc:both-say@1\", \"esc:author-says\"]\n\
         idempotent = [\"esc:write\", \"esc:both-say\"]\n",
        node.url()
    );
    let host = Served::by(&playground, "one", &entry, &[]);
    host.says("is connected", 1);
    let told = "esc:write is idempotent in [[broker]] and not in its manifest";
    assert!(
        host.said().contains(told) && !host.said().contains("esc:both-say is idempotent"),
        "{}",
        host.said()
    );
    let mut raw = Raw::to(&node.url(), &service).await;
    for name in ["write", "author-says"] {
        raw.lost(name, name, json!({"n": 1})).await;
        let told = raw.answer(name).await["error"]["message"].to_string();
        assert!(told.contains("is not run again"), "{name}: {told}");
    }
    raw.lost("both", "both-say", json!({"n": 1})).await;
    assert_eq!(
        raw.answer("both").await["response"],
        "{\"n\":1}",
        "{}",
        host.said()
    );
    assert_eq!(
        host.said().matches("it is run again").count(),
        1,
        "{}",
        host.said()
    );
    raw.is_quiet().await;
}
