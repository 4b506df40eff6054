//! Packages: a script in an environment of the store beside the same script in one made by hand,
//! behind the same layers.

use super::board::{Board, Gate};
use super::calls::told;
use super::cases::{Way, in_turn};
use super::house::{House, write_tool};
use super::{Plan, modules};
use anyhow::{Context as _, ensure};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toolhost::manifest::Language;
use toolhost::packages::store::{BuildInfo, Layout, Store};
use toolhost::packages::{DEFAULT, Index};
use toolhost::policy::packages::{Ecosystem, Package};
use toolhost::service::{
    self, Arguments, CallRequest, Caller, Components, Executors, Service, Sink, audit,
};
use toolhost::{executor, policy, registry, runtimes};

/// What a tool with packages may cost beside the same one in an environment made by hand.
const MOST: f64 = 1.02;
/// A package: folders, modules in each, how many of those are imported, and the gate.
type Size = (&'static str, usize, usize, usize, Gate);
/// The large one takes as long to import as numpy does for its number of files; of the other like
/// it almost nothing is used, so that it shows what the look at each file costs.
const SIZES: [Size; 3] = [
    ("small", 2, 10, 2, Gate::AtMost(MOST)),
    ("large", 20, 50, 25, Gate::AtMost(MOST)),
    ("idle", 20, 50, 1, Gate::None),
];
/// Any hash: nothing is fetched here.
const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A host of its own whose policies grant packages, and name an interpreter for the tools made by
/// hand.
struct Shop {
    service: Arc<Service>,
    _folder: tempfile::TempDir,
}

pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let Some(version) = house.version(Language::Python) else {
        board.section("packages");
        board.skip("packages", "no Python on PATH");
        return Ok(());
    };
    board.section(&format!("packages, Python {version}, the whole service"));
    let shop = Shop::new(house)?;
    let call = |service: &Arc<Service>, tool: &str| {
        let service = Arc::clone(service);
        let arguments = Arguments::Value(json!({"message": "hello"}));
        let request = CallRequest::new(Caller::named("bench"), format!("bench:{tool}"), arguments);
        house.task(async move {
            let started = std::time::Instant::now();
            let report = service.call(request, Sink::none()).await;
            report
                .outcome
                .into_fault()
                .map_or(Ok(started.elapsed()), |fault| Err(told(fault)))
        })
    };
    for (size, folders, each, _, gate) in SIZES {
        let by_hand = format!("by-hand-{size}");
        let ways: Vec<(String, Way)> = vec![
            (
                format!("by hand, {size}: {} files", 2 * folders * (each + 1)),
                Box::new(|| call(&shop.service, &by_hand)),
            ),
            (
                format!("of the store, {size}"),
                Box::new(|| call(&shop.service, size)),
            ),
        ];
        let named = ways
            .iter()
            .map(|(name, way)| (name.as_str(), Box::new(way) as Way))
            .collect();
        let series = in_turn(plan.rounds(200), Duration::from_millis(2), named)?;
        board.base(&series[0]);
        board.beside(&series[1], &series[0], gate);
    }
    let ways: Vec<(&str, Way)> = vec![
        (
            "a tool without packages, none granted",
            Box::new(|| call(&house.service, "python")),
        ),
        (
            "the same where a policy grants some",
            Box::new(|| call(&shop.service, "python")),
        ),
    ];
    let series = in_turn(plan.rounds(200), Duration::from_millis(2), ways)?;
    board.base(&series[0]);
    board.beside(&series[1], &series[0], Gate::AtMost(MOST));
    Ok(())
}

impl Shop {
    fn new(house: &House) -> anyhow::Result<Shop> {
        let folder = tempfile::tempdir_in(&house.root)?;
        let root = folder.path().canonicalize()?;
        let base = root.join("user_scripts");
        write_tool(
            &base,
            "python",
            "python",
            "main.py",
            modules::PYTHON.as_bytes(),
        )?;
        let mut environments = Vec::new();
        for (size, folders, each, used, _) in SIZES {
            let site = root.join("sites").join(size);
            write_package(&site.join(size), folders, each, used)?;
            let script = format!("import {size}\n{}", modules::PYTHON);
            for name in [size.to_owned(), format!("by-hand-{size}")] {
                write_tool(&base, &name, "python", "main.py", script.as_bytes())?;
            }
            fs::write(
                base.join(size).join("requirements.txt"),
                format!("{size}==1 --hash={HASH}\n"),
            )?;
            environments.push((size, site));
        }
        let real = house
            .machine
            .runtimes
            .get(&Language::Python)
            .context("Python")?;
        let policy::Program::Path(python) = &real.program else {
            anyhow::bail!("no program of its own")
        };
        let python = python.canonicalize()?;
        let short: String = real
            .version
            .split('.')
            .take(2)
            .collect::<Vec<_>>()
            .join(".");
        let layout = |site: PathBuf| Layout {
            from: site,
            site: format!("lib/python{short}/site-packages"),
            environment: Some((venv(&python), python.clone())),
        };
        write_policies(&root, &environments)?;
        for (size, site) in &environments {
            make_by_hand(
                &root.join("by-hand").join(size),
                site,
                &layout(PathBuf::new()),
                &python,
            )?;
        }
        let service = service(house, &root, base)?;
        for (size, site) in environments {
            put_into_store(
                &service,
                size,
                &site,
                layout(PathBuf::from("built/site")),
                &python,
            )?;
        }
        Ok(Shop {
            service,
            _folder: folder,
        })
    }
}

/// Modules of the length that those of real packages have.
fn write_package(place: &Path, folders: usize, each: usize, used: usize) -> anyhow::Result<()> {
    let body: String = (0..40)
        .map(|n| {
            format!(
                "def function_{n}(first, second=None):\n    \"\"\"Says what it \
            does.\"\"\"\n    return [first, second, {n}]\n\n\n"
            )
        })
        .collect();
    let mut all = String::new();
    for folder in 0..folders {
        let below = place.join(format!("part_{folder}"));
        fs::create_dir_all(&below)?;
        fs::write(below.join("__init__.py"), "")?;
        for module in 0..each {
            fs::write(below.join(format!("module_{module}.py")), &body)?;
        }
        let imported = (0..used).map(|module| {
            format!(
                "from {}.part_{folder} import module_{module}\n",
                place.file_name().unwrap_or_default().display()
            )
        });
        all.extend(imported);
    }
    fs::write(place.join("__init__.py"), all)?;
    Ok(())
}

fn venv(python: &Path) -> String {
    let home = python.parent().unwrap_or(Path::new("/")).display();
    format!("home = {home}\ninclude-system-site-packages = false\n")
}

/// As `python -m venv` and pip leave it: compiled files that are compared with the time of their
/// source.
fn make_by_hand(place: &Path, site: &Path, layout: &Layout, python: &Path) -> anyhow::Result<()> {
    let into = place.join(&layout.site);
    copy(site, &into)?;
    if let Some((settings, program)) = &layout.environment {
        fs::write(place.join("pyvenv.cfg"), settings)?;
        fs::create_dir_all(place.join("bin"))?;
        std::os::unix::fs::symlink(program, place.join("bin/python"))?;
    }
    compile(python, &into, "timestamp", &into)
}

/// `shown`: where the modules will lie. Compiled for another place, each would be mended as it is
/// loaded.
fn compile(python: &Path, folder: &Path, mode: &str, shown: &Path) -> anyhow::Result<()> {
    let mut command = std::process::Command::new(python);
    command
        .args(["-m", "compileall", "-qq", "--invalidation-mode", mode, "-s"])
        .arg(folder)
        .arg("-p")
        .arg(shown)
        .arg(folder);
    ensure!(command.status()?.success(), "compileall failed");
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &place)?,
            false => drop(fs::copy(entry.path(), place)?),
        }
    }
    Ok(())
}

fn write_policies(root: &Path, environments: &[(&str, PathBuf)]) -> anyhow::Result<()> {
    let folder = root.join("sandbox-policies");
    fs::create_dir_all(&folder)?;
    let write = |name: &str, tools: &str, rest: &str| {
        let files = "[files]\nread = [{ path = \"./**\", why = \"a bench\" }]\n";
        let text =
            format!("name = \"{name}\"\nwhy = \"a bench\"\ntools = [\"{tools}\"]\n{files}{rest}\n");
        fs::write(folder.join(format!("{name}.policy.toml")), text)
    };
    write(
        "default",
        "*",
        "[packages]\npython = { index = \"default\", why = \"a bench\" }",
    )?;
    for (size, _) in environments {
        let path = root.join("by-hand").join(size).join("bin/python");
        let named = format!(
            "[runtimes]\npython = {{ path = \"{}\", why = \"a bench\" }}",
            path.display()
        );
        write(
            &format!("by-hand-{size}"),
            &format!("bench:by-hand-{size}"),
            &named,
        )?;
    }
    Ok(())
}

fn service(house: &House, root: &Path, base: PathBuf) -> anyhow::Result<Arc<Service>> {
    let (policies, problems) = policy::Policies::look(&root.join("sandbox-policies"), root);
    ensure!(problems.is_empty(), "the policies: {problems:?}");
    let off_limits = runtimes::OffLimits::new(std::slice::from_ref(&base), Default::default());
    let named = policies
        .named_runtimes()
        .into_iter()
        .map(|(language, path)| {
            let runtime = runtimes::named(language, &path, &off_limits);
            (path, runtime)
        });
    let index = Index::built_in(Ecosystem::Python);
    let machine = policy::Machine {
        named_runtimes: named.collect(),
        indexes: [((Ecosystem::Python, DEFAULT.to_owned()), index.describe())].into(),
        ..(*house.machine).clone()
    };
    let registry = registry::Registry::new();
    let loader = registry::DirectToolLoader::new(Vec::new(), vec![base.clone()]);
    registry
        .add_source(Arc::new(loader))
        .map_err(anyhow::Error::msg)?;
    Ok(Service::new(Components {
        artifacts: toolhost::service::Artifacts::new(None, Default::default()),
        packages: service::packages::BuildSettings {
            store: Ok(root.join("state/packages")),
            indexes: vec![index],
            npm: Arc::new(|| Err("a bench without npm".to_owned())),
            waits: true,
        },
        registry: Arc::new(registry),
        rules: service::Rules {
            policies: Arc::new(policies),
            machine: Arc::new(machine),
        },
        executors: Executors {
            ready: None,
            process: Some(house.scripts.clone()),
            wasm: None,
            remote: None,
            methods: Arc::new(executor::method::Methods::new()),
            extensions: Default::default(),
        },
        audit: audit::Log::new(root.join("state/audit.jsonl")),
        scripts: vec![base],
        settings: service::Settings::default(),
    }))
}

/// Ahead of calls, in place of an installer: compiled as a build compiles.
fn put_into_store(
    service: &Service,
    size: &str,
    site: &Path,
    layout: Layout,
    python: &Path,
) -> anyhow::Result<()> {
    let tool = format!("bench:{size}");
    let needs = toolhost::service::packages::needs(&service.catalog, &tool).map_err(told)?;
    let need = needs.first().context("it requires something")?;
    let packages = &service.packages;
    let (store, key) = (
        packages.store().map_err(told)?,
        packages.key(need).map_err(told)?,
    );
    let work = store.begin(&key)?;
    let into = work.path.join(&layout.from);
    copy(site, &into)?;
    compile(
        python,
        &into,
        "unchecked-hash",
        &store.path().join(&work.tree).join(&layout.site),
    )?;
    let package = Package {
        name: size.to_owned(),
        version: "1".to_owned(),
        hashes: vec![HASH.to_owned()],
    };
    let places = [(size.to_owned(), package.clone())].into();
    let about = BuildInfo {
        ecosystem: Ecosystem::Python,
        tool: need.tool.clone(),
        index: DEFAULT.to_owned(),
        runtime: python.display().to_string(),
        builds: false,
        packages: vec![package],
        vendored: Vec::new(),
        published: Default::default(),
        made: String::new(),
    };
    let wrong = |wrong| anyhow::anyhow!("{wrong:?}");
    let examined = Store::examine(work, layout, Ecosystem::Python, &places).map_err(wrong)?;
    store.keep(&key, about, examined).map_err(wrong)
}
