//! The house: a root folder with tools, and a host as the command line builds it, from the library.
//!
//! The launcher is the real binary. Nothing is switched off.

use super::modules;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::executor::wasm::{Cache, Wasm};
use toolhost::manifest::{self, Language};
use toolhost::sandbox::identity;
use toolhost::service::{self, Components, Executors, Service, audit};
use toolhost::{executor, policy, registry, runtimes};

pub const BINARY: &str = env!("CARGO_BIN_EXE_toolhost");

pub struct House {
    pub root: PathBuf,
    pub runtime: tokio::runtime::Runtime,
    /// Of the clients of a server: in its own runtime their tasks would be in the way of its tasks.
    pub clients: tokio::runtime::Runtime,
    pub launchers: Arc<Launchers>,
    pub scripts: Arc<Scripts>,
    pub wasm: Arc<Wasm>,
    pub service: Arc<Service>,
    pub machine: Arc<policy::Machine>,
    snapshot: Arc<registry::Snapshot>,
    policies: Arc<policy::Policies>,
    _folder: tempfile::TempDir,
}

/// What an executor is given.
#[derive(Clone)]
pub struct Tool {
    pub manifest: Arc<manifest::Manifest>,
    pub site: manifest::ToolPaths,
    pub confinement: policy::Confinement,
}

/// Two files: a script and its manifest.
pub fn write_tool(
    base: &Path,
    name: &str,
    language: &str,
    script: &str,
    content: &[u8],
) -> anyhow::Result<()> {
    let folder = base.join(name);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(script), content)?;
    let manifest = json!({
        "toolId": format!("bench:{name}"), "displayName": name, "description": "Gives its input \
            back.",
        "version": "1.0.0",
        "handler": {"type": "external-script", "scriptPath": format!("{name}/{script}"), "language": language},
        "parameters": {"type": "object", "required": ["message"],
            "properties": {"message": {"type": "string", "description": "Any text."}}},
        "output": {"type": "object", "required": ["message"]},
    });
    fs::write(
        folder.join(format!("{name}.tool.json")),
        serde_json::to_vec_pretty(&manifest)?,
    )?;
    Ok(())
}

fn write_tools(base: &Path) -> anyhow::Result<()> {
    write_tool(
        base,
        "python",
        "python",
        "main.py",
        modules::PYTHON.as_bytes(),
    )?;
    write_tool(
        base,
        "python-spins",
        "python",
        "main.py",
        modules::PYTHON_SPINS.as_bytes(),
    )?;
    write_tool(
        base,
        "python-sleeps",
        "python",
        "main.py",
        modules::PYTHON_SLEEPS.as_bytes(),
    )?;
    write_tool(
        base,
        "streams",
        "python",
        "main.py",
        super::speakers::STREAMS.as_bytes(),
    )?;
    write_tool(
        base,
        "connects",
        "python",
        "main.py",
        super::network::CONNECTS.as_bytes(),
    )?;
    write_tool(
        base,
        "code",
        "python",
        "main.py",
        super::code::LOOKS_UP.as_bytes(),
    )?;
    let file = base.join("code/code.tool.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file)?)?;
    manifest["calls"] = json!(["bench:python"]);
    manifest["parameters"]["properties"]["n"] =
        json!({"type": "integer", "description": "How many look-ups."});
    fs::write(file, serde_json::to_vec_pretty(&manifest)?)?;
    write_tool(base, "node", "nodejs", "main.js", modules::NODE.as_bytes())?;
    write_tool(base, "bun", "bun", "main.js", modules::BUN.as_bytes())?;
    write_tool(base, "typed", "wasm", "main.wat", modules::TYPED.as_bytes())?;
    write_tool(
        base,
        "preview1",
        "wasm",
        "main.wat",
        modules::echo().as_bytes(),
    )?;
    write_tool(
        base,
        "component",
        "wasm",
        "main.wasm",
        &modules::component()?,
    )?;
    for (grants, reads) in [("self", json!(["self"])), ("nothing", json!([]))] {
        write_tool(
            base,
            &format!("preview1-{grants}"),
            "wasm",
            "main.wat",
            modules::echo().as_bytes(),
        )?;
        write_tool(
            base,
            &format!("component-{grants}"),
            "wasm",
            "main.wasm",
            &modules::component()?,
        )?;
        for shape in ["preview1", "component"] {
            let file = base.join(format!("{shape}-{grants}/{shape}-{grants}.tool.json"));
            let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
            manifest["securityContext"] = json!({"fileAccess": {"allowRead": reads}});
            fs::write(file, serde_json::to_vec_pretty(&manifest)?)?;
        }
    }
    write_tool(
        base,
        "wasm-spins",
        "wasm",
        "main.wat",
        modules::spins().as_bytes(),
    )?;
    write_tool(
        base,
        "wasm-sleeps",
        "wasm",
        "main.wat",
        modules::sleeps().as_bytes(),
    )
}

impl House {
    /// Not below /tmp, where no tool of a real host lies.
    pub fn new() -> anyhow::Result<House> {
        House::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn below(base: &Path) -> anyhow::Result<House> {
        let folder = tempfile::tempdir_in(base)?;
        let root = folder.path().canonicalize()?;
        write_tools(&root.join("user_scripts"))?;
        // Files that changed within a second are read again by each call; a host that serves has
        // older ones.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let found = runtimes::discover(
            &std::env::var_os("PATH").unwrap_or_default(),
            &runtimes::OffLimits::new(std::slice::from_ref(&root), Default::default()),
        );
        let machine = Arc::new(policy::Machine {
            runtimes: found.runtimes,
            ..policy::Machine::default()
        });
        let policies = Arc::new(policy::Policies::built_in());
        let launchers = Arc::new(Launchers::new(
            fs::File::open(BINARY)?.into(),
            identity::POOL,
        ));
        let scripts = Arc::new(Scripts::new(launchers.clone()));
        let cache = Cache::temporary().map_err(anyhow::Error::msg)?;
        let wasm = Arc::new(Wasm::new(launchers.clone(), cache));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let clients = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let rules = service::Rules {
            policies: policies.clone(),
            machine: machine.clone(),
        };
        let service = made(
            &root,
            "state",
            rules,
            (&scripts, &wasm),
            service::Settings::default(),
        )?;
        let snapshot = service.catalog.registry.snapshot();
        Ok(House {
            root,
            runtime,
            clients,
            launchers,
            scripts,
            wasm,
            service,
            machine,
            snapshot,
            policies,
            _folder: folder,
        })
    }

    /// One more, on the same executors, with bounds and a state folder of its own.
    pub fn another_service(&self, settings: service::Settings) -> anyhow::Result<Arc<Service>> {
        let state = tempfile::tempdir_in(&self.root)?.keep();
        let rules = service::Rules {
            policies: self.policies.clone(),
            machine: self.machine.clone(),
        };
        made(
            &self.root,
            &state.to_string_lossy(),
            rules,
            (&self.scripts, &self.wasm),
            settings,
        )
    }

    /// One more, whose tools have this policy.
    pub fn service_with(&self, rules: &str) -> anyhow::Result<Arc<Service>> {
        let state = tempfile::tempdir_in(&self.root)?.keep();
        fs::write(state.join("bench.policy.toml"), rules)?;
        let policies = policy::Policies::load(&state, &self.root);
        let policies = policies.map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
        let rules = service::Rules {
            policies: Arc::new(policies),
            machine: self.machine.clone(),
        };
        let executors = (&self.scripts, &self.wasm);
        let settings = service::Settings::default();
        made(
            &self.root,
            &state.to_string_lossy(),
            rules,
            executors,
            settings,
        )
    }

    /// The command line, with a state folder of its own.
    pub fn server(&self) -> anyhow::Result<Command> {
        let state = tempfile::tempdir_in(&self.root)?.keep();
        let mut command = Command::new(BINARY);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &state);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--audit-log")
            .arg(state.join("audit.jsonl"));
        Ok(command)
    }

    pub fn version(&self, language: Language) -> Option<&str> {
        self.machine
            .runtimes
            .get(&language)
            .map(|runtime| runtime.version.as_str())
    }

    /// A tool by its name, confined as the house's policy has it.
    pub fn tool(&self, name: &str) -> anyhow::Result<Tool> {
        let tool = self.snapshot.find(&format!("bench:{name}"))?;
        let decision = policy::decide(&tool.manifest, &tool.site, &self.policies, &self.machine);
        let confinement = policy::confine(&decision, None, None)?;
        Ok(Tool {
            manifest: tool.manifest.clone(),
            site: tool.site.clone(),
            confinement,
        })
    }

    /// A static program as a tool: no manifest speaks of those, so its shape is made by hand.
    pub fn static_tool(&self, name: &str, source: &str) -> anyhow::Result<Tool> {
        let folder = self.root.join("static");
        let program = folder.join(name);
        if !program.exists() {
            compile(&folder, &program, source)?;
        }
        let like = self.snapshot.find("bench:preview1")?;
        let runtime = policy::Runtime {
            language: Language::Python,
            program: policy::Program::Path(program),
            roots: vec![folder],
            found: "bench".to_owned(),
            ..policy::Runtime::ourselves("")
        };
        let shape = policy::Shape::bare(&format!("bench:{name}@1.0.0"), runtime);
        let per_call = policy::PerCall {
            timeout_ms: 30_000,
            ..Default::default()
        };
        let confinement = policy::Confinement {
            shape: Arc::new(shape),
            per_call,
        };
        Ok(Tool {
            manifest: like.manifest.clone(),
            site: like.site.clone(),
            confinement,
        })
    }
}

/// A service; `state` is relative to the root.
fn made(
    root: &Path,
    state: &str,
    rules: service::Rules,
    (scripts, wasm): (&Arc<Scripts>, &Arc<Wasm>),
    settings: service::Settings,
) -> anyhow::Result<Arc<Service>> {
    let base = root.join("user_scripts");
    let registry = registry::Registry::new();
    let loader = registry::DirectToolLoader::new(Vec::new(), vec![base.clone()]);
    registry
        .add_source(Arc::new(loader))
        .map_err(anyhow::Error::msg)?;
    Ok(Service::new(Components {
        artifacts: toolhost::service::Artifacts::new(None, Default::default()),
        packages: toolhost::service::packages::BuildSettings::none("a bench without packages"),
        registry: Arc::new(registry),
        rules,
        executors: Executors {
            ready: None,
            process: Some(scripts.clone()),
            wasm: Some(wasm.clone()),
            remote: None,
            methods: Arc::new(executor::method::Methods::new()),
            extensions: Default::default(),
        },
        audit: audit::Log::new(root.join(state).join("audit.jsonl")),
        scripts: vec![base],
        settings,
    }))
}

fn compile(folder: &Path, program: &Path, source: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let text = program.with_extension("c");
    fs::write(&text, source)?;
    let compiler = Command::new("gcc")
        .args(["-O2", "-static", "-o"])
        .args([program, &text])
        .output()
        .context("gcc does not start")?;
    ensure!(
        compiler.status.success(),
        "gcc -static: {}",
        String::from_utf8_lossy(&compiler.stderr).trim()
    );
    Ok(())
}

impl Tool {
    pub fn with_timeout(mut self, timeout: Duration) -> Tool {
        self.confinement.per_call.timeout_ms = timeout.as_millis() as u64;
        self
    }

    pub fn call(&self, input: &Value) -> executor::Call {
        executor::Call {
            manifest: self.manifest.clone(),
            site: self.site.clone(),
            input: input.clone(),
            confinement: Some(self.confinement.clone()),
            service: None,
            output_bytes: u64::MAX,
            session: None,
            environment: None,
        }
    }
}
