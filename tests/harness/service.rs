//! The real service on a folder, in this process.

use super::{Playground, SEARCH_PATH};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use toolhost::executor::Executor;
use toolhost::executor::method::Methods;
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::sandbox::identity;
use toolhost::service::{Components, Executors, Rules, Service, Settings, audit};
use toolhost::{policy, registry, runtimes};

/// An executor of scripts, and these methods.
pub fn executors(scripts: Arc<impl Executor + 'static>, methods: Methods) -> Executors {
    Executors {
        ready: None,
        process: Some(scripts),
        wasm: None,
        remote: None,
        methods: Arc::new(methods),
        extensions: BTreeMap::new(),
    }
}

/// A service with the tools, the scripts and the policies of a folder.
pub fn service_on(
    root: &Path,
    machine: policy::Machine,
    executors: Executors,
    settings: Settings,
) -> Arc<Service> {
    let registry = registry::Registry::new();
    registry.add_source(Arc::new(registry::Builtin)).unwrap();
    let (tools, scripts) = (
        vec![root.join("tool-defs")],
        vec![root.join("user_scripts")],
    );
    registry
        .add_source(Arc::new(registry::DirectToolLoader::new(
            tools.clone(),
            scripts.clone(),
        )))
        .unwrap();
    let policies = policy::Policies::load(&root.join("sandbox-policies"), root).unwrap();
    Service::new(Components {
        artifacts: toolhost::service::Artifacts::new(None, Default::default()),
        packages: toolhost::service::packages::BuildSettings::none("a test without packages"),
        registry: Arc::new(registry),
        rules: Rules {
            policies: Arc::new(policies),
            machine: Arc::new(machine),
        },
        executors,
        audit: audit::Log::new(root.join("state/audit.jsonl")),
        scripts: [scripts, tools].concat(),
        settings,
    })
}

/// The real service on a playground's folders: real loader, executors and layers.
pub fn service(playground: &Playground, methods: Methods) -> Arc<Service> {
    let root = &playground.base;
    let off_limits = runtimes::OffLimits::new(std::slice::from_ref(root), Default::default());
    let runtimes = runtimes::discover(SEARCH_PATH.as_ref(), &off_limits).runtimes;
    let machine = policy::Machine {
        runtimes,
        ..policy::Machine::default()
    };
    let binary = fs::File::open(env!("CARGO_BIN_EXE_toolhost")).unwrap();
    let launchers = Arc::new(Launchers::new(binary.into(), identity::POOL));
    service_on(
        root,
        machine,
        executors(Arc::new(Scripts::new(launchers)), methods),
        Settings::default(),
    )
}
