//! A line of a script's log is heard while the script runs. (The same of a module: tests/wasm/endings.rs.)

use crate::harness::skipped;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::executor::{Call, Context, Ending, Event, Executor};
use toolhost::manifest::Language;
use toolhost::policy::{Access, Confinement, Grant, Opening, PerCall, Runtime, Shape};
use toolhost::sandbox::identity;
use toolhost::{registry, runtimes};

/// Runs until there is a file, which nobody makes before its line was heard.
const SCRIPT: &str = "import os, sys, time\nprint('started', file=sys.stderr)\nsys.stderr.flush()\n\
    while not os.path.exists(os.path.join(os.path.dirname(__file__), 'go')):\n    time.sleep(0.01)\n\
    print('ended', file=sys.stderr)\nprint(1)\n";

fn shape(folder: &Path, runtime: Runtime) -> Shape {
    let opening = Opening::Live { path: folder.to_owned() };
    let (asked, rule, why) = (String::new(), String::new(), String::new());
    let grants = vec![Grant { access: Access::Read, opening, asked, rule, why }];
    let script = Some(folder.join("main.py"));
    Shape { script, folder: folder.to_owned(), grants, ..Shape::bare("t:live@1.0.0", runtime) }
}

#[tokio::test]
async fn a_line_is_heard_while_the_script_runs() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let folder = folder.path().canonicalize().expect("a path");
    fs::write(folder.join("main.py"), SCRIPT).expect("a script");
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found =
        runtimes::discover(&search, &runtimes::OffLimits::new(std::slice::from_ref(&folder), Default::default()));
    let Some(runtime) = found.runtimes.get(&Language::Python) else { return skipped(1, "needs python") };

    let binary = fs::File::open(env!("CARGO_BIN_EXE_toolhost")).expect("the binary");
    let scripts = Scripts::new(Arc::new(Launchers::new(binary.into(), identity::POOL)));
    let registry = registry::Registry::new();
    registry.add_source(Arc::new(registry::Builtin)).expect("the built-in tools");
    let any = registry.snapshot().find("core:execute-script").expect("a manifest");
    let confinement = Confinement {
        shape: shape(&folder, runtime.clone()).into(),
        per_call: PerCall { timeout_ms: 20_000, ..PerCall::default() },
    };
    let call = Call {
        manifest: any.manifest.clone(),
        site: any.site.clone(),
        input: serde_json::json!({}),
        confinement: Some(confinement),
        service: None,
        output_bytes: u64::MAX,
    };
    let context = Context {
        id: "call".into(),
        user: "tester".into(),
        cancel: tokio_util::sync::CancellationToken::new(),
        came: Instant::now(),
        ran: Arc::default(),
        traffic: Arc::default(),
        trace: toolhost::broker::Trace::default(),
        ledger: None,
        gate: toolhost::executor::Gate::default(),
    };
    let (events, mut heard) = toolhost::executor::events();
    let listening = async {
        let first = tokio::time::timeout(Duration::from_secs(15), heard.next()).await;
        fs::write(folder.join("go"), "").expect("the file");
        (first.ok().flatten(), heard.next().await)
    };
    let (outcome, lines) = tokio::join!(scripts.run(&context, call, &events), listening);
    let line = |text: &str| Some(Event::Log(text.to_owned()));
    assert_eq!(lines, (line("started"), line("ended")));
    let outcome = outcome.expect("an outcome");
    assert_eq!(outcome.ending, Ending::answer(&serde_json::json!(1)), "{:?}", outcome.logs);
    assert_eq!(outcome.logs, ["started", "ended"]);
}
