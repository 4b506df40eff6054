//! Unmodified programs reach the hosts that they were granted, and no other.

use super::{allow, in_our_world};
use crate::prelude::*;

/// What speaks, in which language, and whether it speaks TLS with the machine's roots.
const CLIENTS: [(&str, &str, bool); 9] = [
    ("urllib", "python", true),
    ("asyncio", "python", true),
    ("socket", "python", true),
    ("curl", "python", true),
    ("http", "nodejs", true),
    ("fetch", "nodejs", false),
    ("dns", "nodejs", false),
    ("keepalive", "nodejs", false),
    ("bun", "bun", true),
];

#[test]
fn unmodified_programs_reach_what_was_granted_and_nothing_else() {
    in_our_world(|world| {
        let granted = ["api.example.com"];
        world.tool(
            "python",
            "python",
            include_str!("clients.py"),
            &granted,
            &allow(granted[0]),
        );
        for language in ["nodejs", "bun"] {
            world.tool(
                language,
                language,
                include_str!("clients.js"),
                &granted,
                &allow(granted[0]),
            );
        }
        for (name, language, tls) in CLIENTS
            .into_iter()
            .filter(|(_, language, _)| has(language, 1))
        {
            let tool = format!("esc:{language}");
            for scheme in if tls {
                &["http", "https"][..]
            } else {
                &["http"]
            } {
                let url = format!("{scheme}://api.example.com/x");
                let ended = world.call(&tool, &json!({"client": name, "url": url}));
                fits("ok \"45.20.0.1\"", &ended).unwrap_or_else(|e| panic!("{name} {url}: {e}"));
                assert!(
                    ended.out["network"]["totals"]["connections"].as_u64() > Some(0),
                    "{name}"
                );
            }
            let (ended, heard) = world.called(
                &tool,
                &json!({"client": name, "url": "http://other.example.com/x"}),
            );
            assert_eq!(ended.kind(), "ScriptError", "{name}");
            assert_eq!(
                heard,
                Vec::<String>::new(),
                "{name}: no connection, and no lookup of the name"
            );
            let denied = &ended.out["denials"]["observed"][0];
            let told = [&denied["operation"], &denied["target"], &denied["narrower"]];
            assert_eq!(
                told,
                ["resolve", "other.example.com", "manifest"],
                "{name}: {}",
                ended.out["denials"]
            );
        }
        world.control("http://other.example.com/x");
    });
}
