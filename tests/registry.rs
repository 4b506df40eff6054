//! The registry on real folders: hostile files, names, versions, refresh, scripts, and the verbs over it.

use crate::prelude::*;
use toolhost::fault::Kind;
use toolhost::manifest::{Code, Handler, Severity};
use toolhost::registry::{self, DirectToolLoader, Filter, Registry, Status};

struct World {
    root: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let root = tempfile::tempdir().unwrap();
        for folder in ["tool-defs", "user_scripts"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        World { root }
    }
    fn path(&self, relative: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(relative)
    }
    fn file(&self, relative: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
    fn method(&self, relative: &str, id: &str, version: &str) -> PathBuf {
        self.file(relative, manifest(id, version, json!({ "type": "x-test" })))
    }
    /// A manifest with its script.
    fn script(&self, relative: &str, id: &str, path: &str) -> PathBuf {
        self.file(relative, manifest(id, "1.0.0", script(path, "python")))
    }
    fn refreshed(&self, registry: &Registry) -> Vec<String> {
        registry.refresh_source("files").unwrap();
        ids(registry)
    }
    fn loader(&self) -> DirectToolLoader {
        DirectToolLoader::new(vec![self.path("tool-defs")], vec![self.path("user_scripts")])
    }
    fn registry(&self) -> Registry {
        let registry = Registry::new();
        registry.add_source(Arc::new(registry::Builtin)).unwrap();
        registry.add_source(Arc::new(self.loader())).unwrap();
        registry
    }
}

fn manifest(id: &str, version: &str, handler: serde_json::Value) -> String {
    json!({ "toolId": id, "displayName": "d", "description": "d", "version": version, "handler": handler }).to_string()
}

fn ids(registry: &Registry) -> Vec<String> {
    let filter = Filter { source: Some("files".to_owned()), ..Filter::default() };
    registry.snapshot().list(&filter).iter().map(|tool| tool.reference()).collect()
}

fn report(registry: &Registry, path: &Path) -> registry::FileReport {
    let snapshot = registry.snapshot();
    snapshot
        .reports
        .iter()
        .find(|r| r.path == path)
        .unwrap_or_else(|| panic!("no report for {path:?}: {:#?}", snapshot.reports))
        .clone()
}

#[test]
fn both_ways_of_dropping_in_work() {
    let world = World::new();
    world.file("user_scripts/sum/sum.py", "print(1)");
    world.script("user_scripts/sum/sum.tool.json", "custom:sum", "sum.py");
    world.file("user_scripts/loose/two.py", "print(2)");
    world.script("tool-defs/deep/er/two.tool.json", "custom:two", "loose/two.py");
    world.file("tool-defs/other.json", "{}");
    for skipped in [".hidden/a", "node_modules/a", "venv/a", "__pycache__/a", ".b"] {
        world.file(&format!("tool-defs/{skipped}.tool.json"), "nonsense");
    }
    let registry = world.registry();
    assert_eq!(ids(&registry), ["custom:sum@1.0.0", "custom:two@1.0.0"]);
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.reports.len(), 2, "{:#?}", snapshot.reports);
    let tool = snapshot.find("custom:sum").expect("found");
    assert_eq!(tool.site.script, Some(world.path("user_scripts/sum/sum.py")));
    assert_eq!((&tool.site.base, &tool.site.folder), (&world.path("user_scripts"), &world.path("user_scripts/sum")));
    let report = snapshot.reports.iter().find(|report| report.path == tool.site.manifest).expect("a report");
    assert!(report.problems.iter().any(|p| p.severity == Severity::Note && p.message.contains("sum/sum.py")));
    assert_eq!(snapshot.files.len(), 4);
    // A folder given twice, or inside another, gives each file once.
    let loader = DirectToolLoader::new(
        vec![world.path("tool-defs"), world.path("tool-defs/deep"), world.path("tool-defs/./")],
        vec![world.path("user_scripts")],
    );
    let twice = Registry::new();
    twice.add_source(Arc::new(loader)).unwrap();
    assert_eq!(ids(&twice).len(), 2);
}

#[test]
fn hostile_files_are_one_report_each_and_quick() {
    let world = World::new();
    let secret = world.file("secret.txt", "hunter2-secret");
    let folder = world.path("tool-defs");
    let at = |name: &str| folder.join(format!("{name}.tool.json"));
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink(&secret, at("link")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    symlink("/dev/zero", at("device")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::File::create(at("huge")).and_then(|f| f.set_len(100 << 20)).unwrap();
    world.file("tool-defs/latin.tool.json", b"{\"toolId\": \"\xe9\"}");
    world.file("tool-defs/empty.tool.json", "");
    world.file("tool-defs/half.tool.json", "{\"toolId\": \"custom:ha");
    world.file("tool-defs/deep.tool.json", "[".repeat(500_000));
    world.method("tool-defs/good.tool.json", "custom:good", "1.0.0");
    if nix::unistd::geteuid().is_root() {
        let null = nix::sys::stat::makedev(1, 3);
        // Not every container lets root make one; the link above covers the rest.
        let _ = nix::sys::stat::mknod(&at("null"), nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, null);
    }
    let started = Instant::now();
    let registry = world.registry();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(ids(&registry), ["custom:good@1.0.0"]);
    let unreadable =
        ["fifo", "socket", "link", "loop", "device", "folder", "huge"].map(|name| (name, Code::Unreadable));
    let unread = [("latin", Code::Encoding), ("empty", Code::Syntax), ("half", Code::Syntax), ("deep", Code::Syntax)];
    for (name, code) in unreadable.into_iter().chain(unread) {
        let report = report(&registry, &at(name));
        assert_eq!(report.status, Status::Skipped);
        assert_eq!(report.problems.iter().map(|p| p.code).collect::<Vec<_>>(), [code], "{name}: {report:#?}");
        assert!(!format!("{report:?}").contains("hunter2"), "{name} shows a file outside");
    }
    assert_eq!(registry.snapshot().reports.iter().filter(|r| r.path == at("link")).count(), 1);
}

#[test]
fn names_are_not_taken_over() {
    let world = World::new();
    let a = world.method("tool-defs/a/x.tool.json", "custom:x", "1.0.0");
    let registry = world.registry();
    // A twin dropped later is refused; the loaded tool keeps its file.
    let b = world.method("tool-defs/b/x.tool.json", "Custom:X", "9.0.0");
    assert_eq!(world.refreshed(&registry), ["custom:x@1.0.0"]);
    let newcomer = report(&registry, &b);
    assert_eq!((newcomer.status, newcomer.problems[0].code), (Status::Skipped, Code::Conflict));
    assert!(newcomer.problems[0].message.contains(a.to_str().unwrap()));
    // At a new start none is first: both are disabled, and both say so.
    let fresh = world.registry();
    assert_eq!(ids(&fresh), [""; 0]);
    for (file, other) in [(&a, &b), (&b, &a)] {
        assert!(report(&fresh, file).problems[0].message.contains(other.to_str().unwrap()));
    }
    let fault = fresh.snapshot().find("custom:x").expect_err("disabled");
    assert_eq!(fault.kind, Kind::ToolNotFoundError);
    assert!(fault.message.contains("disabled") && !fault.message.contains("tool-defs"), "{}", fault.message);
    // Gone again: the other one loads.
    fs::remove_file(&b).unwrap();
    assert_eq!(world.refreshed(&fresh), ["custom:x@1.0.0"]);
}

#[test]
fn core_is_compiled_in() {
    let world = World::new();
    let claim = world.method("tool-defs/c.tool.json", "core:execute-python-script", "99.0.0");
    let folded = world.method("tool-defs/d.tool.json", "CORE:run", "1.0.0");
    let copy = world.file("tool-defs/core/execute-python-script.tool.json", registry::BUILTIN_FILES[0].1);
    let registry = world.registry();
    assert_eq!(registry.snapshot().find("core:execute-python-script").unwrap().source, "builtin");
    assert_eq!(ids(&registry), [""; 0]);
    for file in [claim, folded] {
        let problem = &report(&registry, &file).problems[0];
        assert_eq!((problem.code, problem.severity), (Code::Conflict, Severity::Error));
    }
    assert_eq!(report(&registry, &copy).problems[0].severity, Severity::Note);
}

#[test]
fn versions_live_side_by_side_in_one_folder() {
    let world = World::new();
    for version in ["1.0.0", "1.2.0", "2.0.0-beta.1"] {
        world.method(&format!("tool-defs/v/{version}.tool.json"), "custom:v", version);
    }
    let registry = world.registry();
    let snapshot = registry.snapshot();
    let find = |reference: &str| {
        snapshot.find(reference).map(|tool| tool.manifest.version.to_string()).map_err(|f| (f.kind, f.message))
    };
    assert_eq!(find("custom:v").as_deref(), Ok("1.2.0"));
    assert_eq!(find("custom:v@1.0.0").as_deref(), Ok("1.0.0"));
    assert_eq!(find("custom:v@^1").as_deref(), Ok("1.2.0"));
    assert_eq!(find("custom:v@>=1, <1.1").as_deref(), Ok("1.0.0"));
    assert_eq!(find("custom:v@2.0.0-beta.1").as_deref(), Ok("2.0.0-beta.1"));
    for missing in ["custom:v@^2", "custom:v@3.0.0", "custom:v@banana", "custom:v@"] {
        let (kind, message) = find(missing).expect_err(missing);
        assert_eq!(kind, Kind::VersionMismatchError);
        assert!(message.contains("2.0.0-beta.1, 1.2.0, 1.0.0"), "{message}");
    }
    let (kind, message) = find("custom:w").expect_err("unknown");
    assert_eq!(kind, Kind::ToolNotFoundError);
    assert!(message.contains("'custom:v'"), "{message}");
    assert!(find("v").expect_err("no namespace").1.contains("'custom:v'"));
    assert!(find("custom__v").expect_err("other dialect").1.contains("'custom:v'"));
    // The same version twice, in one folder, disables both of it and no other.
    world.method("tool-defs/v/again.tool.json", "custom:v", "1.2.0+build");
    assert_eq!(ids(&world.registry()), ["custom:v@1.0.0", "custom:v@2.0.0-beta.1"]);
    // A loaded one keeps its file.
    assert_eq!(world.refreshed(&registry), ["custom:v@1.0.0", "custom:v@1.2.0", "custom:v@2.0.0-beta.1"]);
}

#[test]
fn refresh_replaces_or_keeps_everything() {
    let world = World::new();
    world.method("tool-defs/a.tool.json", "custom:a", "1.0.0");
    world.method("tool-defs/b.tool.json", "custom:b", "1.0.0");
    let registry = world.registry();
    let before = registry.snapshot();
    world.method("tool-defs/a.tool.json", "custom:a", "1.1.0");
    fs::remove_file(world.path("tool-defs/b.tool.json")).unwrap();
    world.method("tool-defs/c.tool.json", "custom:c", "1.0.0");
    assert_eq!(world.refreshed(&registry), ["custom:a@1.1.0", "custom:c@1.0.0"]);
    assert!(before.find("custom:b").is_ok(), "who holds an old snapshot keeps it");
    assert_eq!(registry.refresh_source("unknown"), Ok(()));
    for folder in ["user_scripts", "tool-defs"] {
        fs::rename(world.path(folder), world.path("away")).unwrap();
        assert!(registry.refresh_source("files").is_err());
        assert_eq!(ids(&registry), ["custom:a@1.1.0", "custom:c@1.0.0"]);
        assert!(registry.snapshot().warnings[0].contains("old tools stay"));
        fs::rename(world.path("away"), world.path(folder)).unwrap();
    }
    registry.refresh_source("files").unwrap();
    assert_eq!(registry.snapshot().warnings, [""; 0]);
    let sources = [("builtin".to_owned(), registry::BUILTIN_FILES.len()), ("files".to_owned(), 2)];
    assert_eq!(registry.snapshot().sources, sources);
}

/// A manifest in the middle of an edit leaves its tool as it was; one that was never good, or went, has none.
#[test]
fn a_manifest_that_breaks_keeps_its_old_definition() {
    let world = World::new();
    world.method("tool-defs/a.tool.json", "custom:a", "1.0.0");
    world.file("tool-defs/b.tool.json", "{");
    let registry = world.registry();
    assert_eq!((ids(&registry), registry.snapshot().warnings.len()), (vec!["custom:a@1.0.0".to_owned()], 0));
    for broken in ["{", "", "\u{0}", "{\"toolId\": \"custom:a\", \"toolId\": \"custom:b\"}"] {
        world.file("tool-defs/a.tool.json", broken);
        for _ in 0..2 {
            assert_eq!(world.refreshed(&registry), ["custom:a@1.0.0"], "{broken}");
            let warnings = &registry.snapshot().warnings;
            assert!(warnings.len() == 1 && warnings[0].contains("a.tool.json is broken"), "{warnings:?}");
            assert_eq!(registry.snapshot().skipped(), 2);
        }
    }
    // A link in its place is no edit.
    fs::remove_file(world.path("tool-defs/a.tool.json")).unwrap();
    symlink("b.tool.json", world.path("tool-defs/a.tool.json")).unwrap();
    assert!(world.refreshed(&registry).is_empty() && registry.snapshot().warnings.is_empty());
    fs::remove_file(world.path("tool-defs/a.tool.json")).unwrap();
    world.method("tool-defs/a.tool.json", "custom:a", "1.2.0");
    assert_eq!(world.refreshed(&registry), ["custom:a@1.2.0"]);
}

/// A source that offers the tools of a folder without being one.
struct Elsewhere(DirectToolLoader);

impl registry::Source for Elsewhere {
    fn id(&self) -> &str {
        "elsewhere"
    }
    fn discover(&self) -> Result<registry::Discovery, String> {
        let mut found = self.0.discover()?;
        found.tools.iter_mut().for_each(|tool| tool.source = "elsewhere".to_owned());
        Ok(found)
    }
}

#[test]
fn other_sources_take_nothing_over() {
    let (world, other) = (World::new(), World::new());
    world.method("tool-defs/a.tool.json", "custom:a", "1.0.0");
    other.method("tool-defs/a.tool.json", "custom:a", "2.0.0");
    other.method("tool-defs/b.tool.json", "custom:b", "1.0.0");
    let registry = world.registry();
    registry.add_source(Arc::new(Elsewhere(other.loader()))).unwrap();
    assert!(registry.add_source(Arc::new(Elsewhere(other.loader()))).is_err(), "the id is taken");
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.find("custom:a").expect("kept").manifest.version.to_string(), "1.0.0");
    assert_eq!(snapshot.find("custom:b").unwrap().source, "elsewhere");
}

#[test]
fn in_process_tools() {
    let registry = World::new().registry();
    let whole = json!({"toolId": "app:echo", "description": "Echoes.", "parameters": {"type": "object"}});
    let missing = [
        ("toolId", json!(""), "a name"),
        ("description", json!(" "), "a description"),
        ("parameters", json!(null), "an inputSchema"),
        ("toolId", json!("core:echo"), "taken"),
        ("toolId", json!("echo"), "namespace:tool-name"),
    ];
    for (field, value, piece) in missing {
        let mut definition = whole.clone();
        definition[field] = value;
        let fault = registry.register(definition, "x-echo").expect_err(piece);
        assert!(fault.message.contains(piece), "{}", fault.message);
    }
    let tool = registry.register(whole.clone(), "x-echo").expect("registered");
    assert!(matches!(&tool.manifest.handler, Handler::Extension { kind, .. } if kind == "x-echo"));
    assert!(registry.register(whole, "x-echo").is_err(), "twice");
    assert!(registry.snapshot().find("app:echo").is_ok());
    assert!(registry.unregister("app:echo") && !registry.unregister("app:echo"));
    assert_eq!(registry.snapshot().find("app:echo").expect_err("gone").kind, Kind::ToolNotFoundError);
}

#[test]
fn requirements_are_settled_without_hanging() {
    let world = World::new();
    let tool = |name: &str, requires: serde_json::Value| {
        let text =
            crate::harness::manifest(format!("r:{name}"), json!({ "type": "x-t" }), json!({"requires": requires}));
        world.file(&format!("tool-defs/{name}.tool.json"), text.to_string());
    };
    tool("base", json!({}));
    tool("good", json!({ "r:base": "^1" }));
    tool("old", json!({ "r:base": "^2" }));
    tool("missing", json!({ "r:nothing": "*" }));
    tool("behind", json!({ "r:missing": "*" }));
    tool("ring-a", json!({ "r:ring-b": "*" }));
    tool("ring-b", json!({ "r:ring-a": "*" }));
    tool("by-ring", json!({ "r:ring-a": "*" }));
    let registry = world.registry();
    for (name, piece) in [
        ("base", ""),
        ("good", ""),
        ("old", "loaded: 1.0.0"),
        ("missing", "not loaded"),
        ("behind", "itself unavailable"),
        ("ring-a", "circle"),
        ("ring-b", "circle"),
        ("by-ring", "itself unavailable"),
    ] {
        let needs = registry.snapshot().find(&format!("r:{name}")).expect(name).needs.join("; ");
        assert!(needs.contains(piece) && needs.is_empty() == piece.is_empty(), "{name}: {needs}");
    }
    tool("nothing", json!({}));
    registry.refresh_source("files").unwrap();
    assert!(registry.snapshot().find("r:behind").is_ok_and(|tool| tool.needs.is_empty()));
}

#[test]
fn script_paths() {
    let world = World::new();
    world.file("user_scripts/a/b.py", "1");
    world.file("user_scripts/a/%2e%2e.py", "1");
    world.file("user_scripts/examples/echo.py", "1");
    world.file("tool-defs/own/beside.py", "1");
    world.file("outside/x.py", "1");
    world.file("user_scripts2/x.py", "1");
    fs::create_dir_all(world.path("user_scripts/folder.py")).unwrap();
    symlink(world.path("outside/x.py"), world.path("user_scripts/link.py")).unwrap();
    symlink(world.path("outside"), world.path("user_scripts/linked")).unwrap();
    symlink("b.py", world.path("user_scripts/a/inner.py")).unwrap();
    nix::unistd::mkfifo(&world.path("user_scripts/fifo.py"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let bases = [world.path("user_scripts"), world.path("tool-defs")];
    let own = world.path("tool-defs/own");
    let resolve = |path: &str| registry::scripts::resolve(&bases, Some(&own), path);
    for (written, path) in [
        ("a/b.py", "user_scripts/a/b.py"),
        ("a/./b.py", "user_scripts/a/b.py"),
        ("./a//b.py", "user_scripts/a/b.py"),
        ("a/%2e%2e.py", "user_scripts/a/%2e%2e.py"),
        ("user_scripts/examples/echo.py", "user_scripts/examples/echo.py"),
        ("own/beside.py", "tool-defs/own/beside.py"),
        ("beside.py", "tool-defs/own/beside.py"),
    ] {
        assert_eq!(resolve(written).map(|site| site.script), Ok(Some(world.path(path))), "{written}");
    }
    let absolute = world.path("user_scripts/a/b.py");
    let refused = [
        "../outside/x.py",
        "a/../../outside/x.py",
        "a/../b.py",
        "a\\..\\..\\x.py",
        "..",
        "../user_scripts2/x.py",
        absolute.to_str().unwrap(),
        "/etc/passwd",
        "C:\\x.py",
        "C:/x.py",
        "~/x.py",
        "~root/x.py",
        "\\\\server\\x.py",
        "//server/x.py",
        "file:///etc/passwd",
        "FILE:x.py",
        "http://h/x.py",
        "a\0b.py",
        "a/b.py\n",
        "\u{202e}yp.x",
        "",
        ".",
        "a/",
        "link.py",
        "linked/x.py",
        "a/inner.py",
        "fifo.py",
        "folder.py",
    ];
    for written in refused {
        let fault = resolve(written).expect_err(written);
        assert_eq!(fault.kind, Kind::SecurityError, "{written:?}: {fault:?}");
        let shows = fault.message.contains(world.root.path().to_str().unwrap());
        assert!(!shows || written == absolute.to_str().unwrap(), "{}", fault.message);
    }
    for written in ["none.py", "a/%2e%2e/b.py", "a/b.py/c", "user_scripts", &"x".repeat(300)] {
        assert_eq!(resolve(written).expect_err(written).kind, Kind::ParameterValidationError, "{written}");
    }
    // The manifest's folder helps only inside a base.
    assert!(registry::scripts::resolve(&bases, Some(&world.path("outside")), "x.py").is_err());
    // A link that is swapped in between a look and its use: tests/requirements/swapped_files.rs, against a live server.
}

#[test]
fn scripts_that_are_missing_or_forbidden_are_told_at_load() {
    let world = World::new();
    let missing = world.script("tool-defs/missing.tool.json", "s:missing", "no/such.py");
    let upwards = world.script("tool-defs/upwards.tool.json", "s:upwards", "../x.py");
    let registry = world.registry();
    assert_eq!(ids(&registry), [""; 0]);
    for (file, code, piece) in
        [(missing, Code::Dependency, "user_scripts/no/such.py"), (upwards, Code::Security, "'..'")]
    {
        let problem = &report(&registry, &file).problems[0];
        assert_eq!((problem.code, problem.pointer.as_str()), (code, "/handler/scriptPath"));
        assert!(problem.message.contains(piece), "{problem:?}");
    }
}

#[test]
fn places_that_everybody_may_write_are_told_and_still_load() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    let script = world.file("user_scripts/a/main.py", "pass\n");
    let file = world.script("user_scripts/a/a.tool.json", "t:a", "a/main.py");
    let (base, root) = (world.path("user_scripts"), world.path(""));
    // Where it is told, and of what.
    let told = || {
        let registry = world.registry();
        assert_eq!((ids(&registry), registry.snapshot().skipped()), (vec!["t:a@1.0.0".to_owned()], 0));
        let reports = registry.snapshot().reports.clone();
        let problems = reports.into_iter().flat_map(|r| r.problems.into_iter().map(move |p| (r.path.clone(), p)));
        let found = problems.filter(|(_, p)| p.code == Code::Security && p.severity == Severity::Warning);
        let about =
            |words: &str| PathBuf::from(words.split("chmod o-w '").nth(1).expect("a fix").split('\'').next().unwrap());
        found.map(|(path, problem)| (path, about(&problem.message))).collect::<Vec<_>>()
    };
    let usual = |path: &Path| path.metadata().expect("there").permissions().mode();
    assert_eq!(told(), [], "the control: no other user may write");
    for (place, at) in
        [(&file, &file), (&script, &file), (&world.path("user_scripts/a"), &file), (&base, &base), (&root, &base)]
    {
        let before = usual(place);
        mode(place, before | 0o002);
        let told = told();
        assert!(told.contains(&(at.clone(), place.components().collect())), "{place:?}: {told:?}");
        mode(place, before);
    }
    mode(&base, 0o1777);
    assert_eq!(told(), [], "sticky: others replace nothing that is there");
    // Whoever owns a place can change what runs there.
    for place in [&file, &script, &world.path("user_scripts/a"), &world.path("tool-defs")] {
        if !nix::unistd::geteuid().is_root() {
            break;
        }
        std::os::unix::fs::chown(place, Some(54_321), None).unwrap();
        let shown = place.display();
        let wanted = format!("{shown} belongs to another user (uid 54321)");
        let told = format!("{:?}", world.registry().snapshot().reports);
        assert!(told.contains(&wanted) && told.contains(&format!("`chown 0 '{shown}'`")), "{told}");
        std::os::unix::fs::chown(place, Some(0), None).unwrap();
        assert!(!format!("{:?}", world.registry().snapshot().reports).contains(&wanted), "the control");
    }
}

/// Whose a script is, by where the manifests lie that name it. `id@version place script`; `-` = not loaded.
#[test]
fn a_script_belongs_to_the_nearest_manifests() {
    const LAYOUTS: &[(&str, &[&str])] = &[
        ("two of one folder", &["a u/a/a a/m.py", "b u/a/b a/m.py"]),
        ("two scripts of one folder", &["a u/a/a a/m.py", "b u/a/b a/n.py", "-x u/x/x a/m.py", "-y t/y a/n.py"]),
        ("versions", &["a@1.0.0 u/a/a1 a/m.py", "a@2.0.0 u/a/a2 a/m.py", "-x t/x a/m.py"]),
        ("what no manifest names in the folder of a tool", &["a u/a/a a/m.py", "-x u/x/x a/h.py", "-y t/y a/lib/h.py"]),
        ("from the folder above", &["a u/a/a a/sub/m.py", "-x t/x a/sub/m.py", "-y u/a2/y a/sub/h.py"]),
        ("the nearer folder", &["-a u/a/a a/sub/m.py", "b u/a/sub/b a/sub/m.py"]),
        ("a tool below a tool", &["a u/a/a a/m.py", "b u/a/sub/b a/sub/m.py", "-c u/a/c a/sub/h.py"]),
        ("a name is not a prefix", &["a u/a/a a/m.py", "b u/ab/b ab/m.py", "-c u/ab/c a/m.py"]),
        ("a folder of no tool", &["a t/a loose/m.py", "b t/more/b loose/m.py", "c u/other/c loose/m.py"]),
        ("a folder of no tool, from a base", &["a u/a loose/m.py", "b t/b loose/m.py"]),
        ("directly in a base", &["a u/a m.py", "b u/b n.py", "-x t/x m.py", "y t/y o.py"]),
        ("from the base into a tool's folder", &["a u/a/a a/m.py", "-x u/x a/m.py", "-y u/y a/h.py"]),
        ("the other base", &["a t/a/a a/only.py", "-x u/x/x a/only.py"]),
        ("the same id", &["a u/a/a a/m.py", "-a t/a a/m.py", "-a u/x/a a/h.py"]),
        ("conflicts are among owners", &["-a u/a/a a/m.py", "-a u/b/a b/m.py", "-x t/x a/m.py"]),
    ];
    for (what, layout) in LAYOUTS {
        let world = World::new();
        for folder in ["a", "a/sub", "a/lib", "ab", "b", "loose", "."] {
            for name in ["m", "n", "o", "h"] {
                world.file(&format!("user_scripts/{folder}/{name}.py"), "pass");
            }
        }
        world.file("tool-defs/a/only.py", "pass");
        let mut expected = Vec::new();
        for line in *layout {
            let (loads, line) = line.strip_prefix('-').map_or((true, *line), |line| (false, line));
            let [id, place, script] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let (id, version) = id.split_once('@').unwrap_or((id, "1.0.0"));
            let place = place.replacen("t/", "tool-defs/", 1).replacen("u/", "user_scripts/", 1);
            let text = manifest(&format!("x:{id}"), version, crate::harness::script(script, "python"));
            world.file(&format!("{place}.tool.json"), text);
            if loads {
                expected.push(format!("x:{id}@{version}"));
            }
        }
        expected.sort();
        let registry = world.registry();
        assert_eq!(ids(&registry), expected, "{what}");
        // At a reload nothing changes.
        assert_eq!(registry.refresh(), Vec::<String>::new());
        assert_eq!(ids(&registry), expected, "{what}, again");
        let snapshot = registry.snapshot();
        let refused = snapshot.reports.iter().filter(|report| report.status == Status::Skipped).count();
        assert_eq!(refused, layout.iter().filter(|line| line.starts_with('-')).count(), "{what}");
    }
}
