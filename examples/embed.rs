//! toolhost inside a program: a tool that is a function of this program, and scripts behind the
//! layers. `cargo run --example embed -- ROOT TOOL ARGUMENTS`; docs/RECIPES.md goes through it.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use toolhost::executor::method::Methods;
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::fault::{Fault, Kind};
use toolhost::registry::{Builtin, DirectToolLoader, Registry};
use toolhost::service::{Arguments, CallRequest, Caller, Components, Executors, Rules, Service};
use toolhost::service::{Artifacts, Settings, Sink, audit, packages::BuildSettings};
use toolhost::{egress, policy, runtimes, sandbox};

/// The tool: arguments that fit its manifest come in, a JSON value or a typed fault goes out.
fn count_words(arguments: Value) -> Result<Value, Fault> {
    let text = arguments["text"].as_str().unwrap_or_default();
    match text.split_whitespace().count() {
        0 => Err(Fault::new(Kind::ScriptError, "The text has no words.")),
        words => Ok(json!({ "words": words })),
    }
}

fn service(root: &Path) -> Result<Arc<Service>, Box<dyn Error>> {
    let methods = Methods::new();
    methods.register_sync("Words", "count", count_words);
    let registry = Registry::new();
    registry.add_source(Arc::new(Builtin))?;
    let folders = [root.join("tool-defs"), root.join("user_scripts")];
    let [tools, scripts] = folders.clone().map(|folder| vec![folder]);
    registry.add_source(Arc::new(DirectToolLoader::new(tools, scripts)))?;
    let off_limits = runtimes::OffLimits::new(&folders, Default::default());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let machine = policy::Machine {
        runtimes: runtimes::discover(&path, &off_limits).runtimes,
        ..policy::Machine::default()
    };
    let policies = policy::Policies::load(&root.join("sandbox-policies"), root)
        .map_err(|problems| format!("{problems:?}"))?;
    let program = File::open("/proc/self/exe")?;
    let launchers = Launchers::new(program.into(), sandbox::identity::POOL);
    Ok(Service::new(Components {
        registry: Arc::new(registry),
        rules: Rules {
            policies: Arc::new(policies),
            machine: Arc::new(machine),
        },
        executors: Executors {
            process: Some(Arc::new(Scripts::new(Arc::new(launchers)))),
            methods: Arc::new(methods),
            ready: None,
            wasm: None,
            remote: None,
            extensions: BTreeMap::new(),
        },
        audit: audit::Log::new(root.join("audit.jsonl")),
        artifacts: Artifacts::new(None, Default::default()),
        packages: BuildSettings::none("this program builds no packages"),
        scripts: folders.into(),
        settings: Settings::default(),
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before any thread: this program is also what starts its tools behind the layers.
    sandbox::reenter(&[(egress::protocol::ROLE, egress::relay::main)]);
    sandbox::reset_sigchld();
    sandbox::ignore_sigxfsz();
    sandbox::limits::raise_host_limits();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, tool, arguments] = &arguments[..] else {
        return Err("usage: embed ROOT TOOL ARGUMENTS".into());
    };
    let root = std::fs::canonicalize(root)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(8 << 20)
        .build()?;
    runtime.block_on(async {
        let service = service(&root)?;
        let caller = Caller::named("me");
        let request = CallRequest::new(caller, tool, Arguments::Text(arguments.clone()));
        let report = service.call(request, Sink::none()).await;
        println!("{}", serde_json::to_string(&report)?);
        drop(report);
        service.close().await;
        Ok(())
    })
}
