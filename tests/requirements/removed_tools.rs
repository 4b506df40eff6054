//! A tool that is removed while it runs finishes its call; the next call finds nothing. The real service, in this
//! process, because nobody outside can tell it to look again.

use crate::harness::fake::request;
use crate::harness::{Playground, Who, has, service, until};
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use toolhost::executor::method::Methods;
use toolhost::fault::Kind;
use toolhost::service::{Service, Sink};

/// Says that it runs, waits, and says which version it is.
const WAITS: &str = "import json, os, time\nopen('out/runs', 'w').write('1')\ntime.sleep(1.5)\nprint(json.dumps({'version': VERSION}))\n";

fn playground() -> Playground {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}}});
    playground.tool_at("req:waits", "python", "waits/main.py", &WAITS.replace("VERSION", "1"), asks);
    playground.allow("waits", "req:waits", &["./**"], &["./out/**"]);
    playground.settle();
    playground
}

async fn started(
    playground: &Playground,
    service: &Arc<Service>,
) -> tokio::task::JoinHandle<toolhost::service::Report> {
    let runs = playground.path("user_scripts/waits/out/runs");
    let _ = fs::remove_file(&runs);
    let service = service.clone();
    let call = tokio::spawn(async move { service.call(request("req:waits", json!({})), Sink::none()).await });
    until("it starts", || runs.exists() || call.is_finished()).await;
    assert!(!call.is_finished(), "it does not start");
    call
}

async fn kind(service: &Arc<Service>, tool: &str) -> Option<Kind> {
    service.call(request(tool, json!({})), Sink::none()).await.error.map(|fault| fault.kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_call_ends_when_its_tool_is_removed() {
    if !has("python", 3) {
        return;
    }
    let playground = playground();
    let service = service(&playground, Methods::new());
    let manifest = playground.path("user_scripts/waits/req-waits.tool.json");
    let text = fs::read_to_string(&manifest).unwrap();
    // The manifest goes; the script goes; another version comes.
    let call = started(&playground, &service).await;
    fs::remove_file(&manifest).unwrap();
    service.registry().refresh_source("files").unwrap();
    assert!(!call.is_finished(), "it still runs when its tool is gone");
    assert_eq!(kind(&service, "req:waits").await, Some(Kind::ToolNotFoundError));
    let report = call.await.unwrap();
    assert_eq!(report.output(), Some(json!({"version": 1})), "{report:?}");

    fs::write(&manifest, &text).unwrap();
    service.registry().refresh_source("files").unwrap();
    let call = started(&playground, &service).await;
    let script = playground.path("user_scripts/waits/main.py");
    fs::write(&script, WAITS.replace("VERSION", "2").replace("time.sleep(1.5)", "")).unwrap();
    fs::write(&manifest, text.replace("1.0.0", "2.0.0")).unwrap();
    service.registry().refresh_source("files").unwrap();
    let next = service.call(request("req:waits", json!({})), Sink::none()).await;
    assert_eq!((next.version.as_deref(), next.output()), (Some("2.0.0"), Some(json!({"version": 2}))));
    let report = call.await.unwrap();
    assert_eq!((report.version.as_deref(), report.output()), (Some("1.0.0"), Some(json!({"version": 1}))));

    fs::remove_dir_all(playground.path("user_scripts/waits")).unwrap();
    service.registry().refresh_source("files").unwrap();
    assert_eq!(kind(&service, "req:waits").await, Some(Kind::ToolNotFoundError));
    assert_eq!(kind(&service, "core:run-code").await, Some(Kind::ParameterValidationError), "other sources stay");
    let records = playground.records();
    let ended: Vec<&Value> = records.iter().map(|record| &record["outcome"]).collect();
    assert_eq!(records.len(), 6, "{ended:?}");
}

#[tokio::test]
async fn what_is_unregistered_is_not_found() {
    let playground = playground();
    let service = service(&playground, Methods::new());
    let definition =
        || json!({"toolId": "app:own", "description": "Of this process.", "parameters": {"type": "object"}});
    assert_eq!(kind(&service, "app:own").await, Some(Kind::ToolNotFoundError));
    service.registry().register(definition(), "x-own").unwrap();
    // Registered, but nobody brought an executor for its type.
    assert_eq!(kind(&service, "app:own").await, Some(Kind::CapabilityError));
    assert!(service.registry().unregister("app:own"));
    assert!(service.registry().snapshot().versions("app:own").is_empty());
    assert_eq!(kind(&service, "app:own").await, Some(Kind::ToolNotFoundError));
    assert!(!service.registry().unregister("app:own"), "only once");
    service.registry().register(definition(), "x-own").unwrap();
    assert_eq!(kind(&service, "app:own").await, Some(Kind::CapabilityError), "and it may come back");
}
