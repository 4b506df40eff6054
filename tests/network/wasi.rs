//! WASI guests reach what scripts reach: the same relay decides.

use super::{World, allow, in_our_world};
use crate::harness::components::request;
use crate::prelude::*;

fn answered(world: &World, script: &str, asked: &[&str], allowed: &str) -> (String, Vec<String>) {
    world.tool("guest", "wasm", script, asked, allowed);
    let (ended, heard) = world.called("esc:guest", &json!({}));
    fits("ok", &ended).unwrap();
    (ended.out["outputData"].to_string(), heard)
}

#[test]
fn wasi_http_reaches_the_granted_host_and_no_other() {
    in_our_world(|world| {
        let api = allow("api.example.com");
        let (out, heard) = answered(
            world,
            &request("api.example.com"),
            &["api.example.com"],
            &api,
        );
        assert!(out.starts_with("100"), "a response: {out}, {heard:?}");
        assert!(
            heard.iter().any(|line| line.starts_with("https 45.20.0.1")),
            "{heard:?}"
        );
        for refused in ["other.example.com", "45.20.0.2", "127.0.0.1:22"] {
            let (out, heard) = answered(world, &request(refused), &["api.example.com"], &api);
            assert!(out.starts_with("101"), "{refused}: an error: {out}");
            assert_eq!(heard, Vec::<String>::new(), "{refused}");
        }
    });
}

#[test]
fn a_preview_1_module_that_asks_for_hosts_is_told_that_it_cannot_connect() {
    let world = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"networkAccess": {"allowHosts": ["api.example.com"]}}});
    let module = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    world.tool("old", "wasm", module, asks.clone());
    world.tool("new", "wasm", &request("api.example.com"), asks);
    world.settle();
    let said = world.cli(&["check"]);
    let lines = lines_of_check(std::str::from_utf8(&said.stdout).unwrap());
    let told: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("preview 1 module cannot connect"))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("old.tool.json:"),
        "{lines:?}"
    );
}
