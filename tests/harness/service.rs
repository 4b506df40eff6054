//! The real service on a playground's folders, in this process.

use super::{Playground, SEARCH_PATH};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use toolhost::executor::method::Methods;
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::sandbox::identity;
use toolhost::service::{Components, Executors, Rules, Service, Settings, audit};
use toolhost::{policy, registry, runtimes};

/// The real service on a playground's folders: real loader, executors and walls, in this process.
pub fn service(playground: &Playground, methods: Methods) -> Arc<Service> {
    let root = &playground.base;
    let registry = registry::Registry::new();
    registry.add_source(Arc::new(registry::Builtin)).unwrap();
    let (tools, scripts) = (vec![root.join("tool-defs")], vec![root.join("user_scripts")]);
    registry.add_source(Arc::new(registry::DirectToolLoader::new(tools.clone(), scripts.clone()))).unwrap();
    let policies = policy::Policies::load(&root.join("sandbox-policies"), root).unwrap();
    let discovered = runtimes::discover(
        SEARCH_PATH.as_ref(),
        &runtimes::OffLimits::new(std::slice::from_ref(root), Default::default()),
    );
    let binary = fs::File::open(env!("CARGO_BIN_EXE_toolhost")).unwrap();
    let launchers = Arc::new(Launchers::new(binary.into(), identity::POOL));
    Service::new(Components {
        packages: toolhost::service::packages::BuildSettings::none("a test without packages"),
        registry: Arc::new(registry),
        rules: Rules {
            policies: Arc::new(policies),
            machine: Arc::new(policy::Machine { runtimes: discovered.runtimes, ..policy::Machine::default() }),
        },
        executors: Executors {
            process: Some(Arc::new(Scripts::new(launchers.clone()))),
            wasm: None,
            remote: None,
            methods: Arc::new(methods),
            extensions: BTreeMap::new(),
        },
        audit: audit::Log::new(root.join("state/audit.jsonl")),
        scripts: [scripts, tools].concat(),
        settings: Settings::default(),
    })
}
