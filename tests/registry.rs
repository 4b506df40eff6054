//! The registry on real folders: hostile files, names, versions, refresh, scripts, and the verbs
//! over it.

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
    /// `tool-defs/NAME.tool.json`, a tool without a script.
    fn method(&self, name: &str, id: &str, version: &str) -> PathBuf {
        self.file(
            &format!("tool-defs/{name}.tool.json"),
            manifest(id, version, json!({ "type": "x-test" })),
        )
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
        DirectToolLoader::new(
            vec![self.path("tool-defs")],
            vec![self.path("user_scripts")],
        )
    }
    fn registry(&self) -> Registry {
        let registry = Registry::new();
        registry.add_source(Arc::new(registry::Builtin)).unwrap();
        registry.add_source(Arc::new(self.loader())).unwrap();
        registry
    }
}

fn manifest(id: &str, version: &str, handler: Value) -> String {
    crate::harness::manifest(id, handler, json!({ "version": version })).to_string()
}

fn ids(registry: &Registry) -> Vec<String> {
    let filter = Filter {
        source: Some("files".to_owned()),
        ..Filter::default()
    };
    registry
        .snapshot()
        .list(&filter)
        .iter()
        .map(|tool| tool.reference())
        .collect()
}

fn report(registry: &Registry, path: &Path) -> registry::FileReport {
    let reports = registry.snapshot().reports.clone();
    reports
        .into_iter()
        .find(|report| report.path == path)
        .unwrap_or_else(|| panic!("no report for {path:?}"))
}

#[test]
fn both_ways_of_dropping_in_work() {
    let world = World::new();
    world.file("user_scripts/sum/sum.py", "print(1)");
    world.script("user_scripts/sum/sum.tool.json", "custom:sum", "sum.py");
    world.file("user_scripts/loose/two.py", "print(2)");
    world.script(
        "tool-defs/deep/er/two.tool.json",
        "custom:two",
        "loose/two.py",
    );
    world.file("tool-defs/other.json", "{}");
    for skipped in [
        ".hidden/a",
        "node_modules/a",
        "venv/a",
        "__pycache__/a",
        ".b",
    ] {
        world.file(&format!("tool-defs/{skipped}.tool.json"), "nonsense");
    }
    let registry = world.registry();
    assert_eq!(ids(&registry), ["custom:sum@1.0.0", "custom:two@1.0.0"]);
    let snapshot = registry.snapshot();
    assert_eq!(
        (snapshot.reports.len(), snapshot.files.len()),
        (2, 4),
        "{:#?}",
        snapshot.reports
    );
    let site = &snapshot.find("custom:sum").expect("found").site;
    assert_eq!(site.script, Some(world.path("user_scripts/sum/sum.py")));
    assert_eq!(
        (&site.base, &site.folder),
        (&world.path("user_scripts"), &world.path("user_scripts/sum"))
    );
    let problems = report(&registry, &site.manifest).problems;
    assert!(
        problems
            .iter()
            .any(|p| p.severity == Severity::Note && p.message.contains("sum/sum.py"))
    );
    // A folder given twice, or inside another, gives each file once.
    let folders = ["tool-defs", "tool-defs/deep", "tool-defs/./"].map(|folder| world.path(folder));
    let twice = Registry::new();
    twice
        .add_source(Arc::new(DirectToolLoader::new(
            folders.into(),
            vec![world.path("user_scripts")],
        )))
        .unwrap();
    assert_eq!(ids(&twice).len(), 2);
}

#[test]
fn hostile_files_are_one_report_each_and_quick() {
    let world = World::new();
    let secret = world.file("secret.txt", "hunter2-secret");
    let at = |name: &str| world.path(&format!("tool-defs/{name}.tool.json"));
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink(&secret, at("link")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    symlink("/dev/zero", at("device")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::File::create(at("huge"))
        .and_then(|f| f.set_len(100 << 20))
        .unwrap();
    fs::write(at("latin"), b"{\"toolId\": \"\xe9\"}").unwrap();
    for (name, text) in [
        ("empty", ""),
        ("half", "{\"toolId\": \"custom:ha"),
        ("deep", &"[".repeat(500_000)),
    ] {
        fs::write(at(name), text).unwrap();
    }
    world.method("good", "custom:good", "1.0.0");
    if is_root() {
        let null = nix::sys::stat::makedev(1, 3);
        // Not every container lets root make one; the link above covers the rest.
        let _ = nix::sys::stat::mknod(
            &at("null"),
            nix::sys::stat::SFlag::S_IFCHR,
            nix::sys::stat::Mode::S_IRWXU,
            null,
        );
    }
    let started = Stopwatch::start();
    let registry = world.registry();
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(ids(&registry), ["custom:good@1.0.0"]);
    let names = ["fifo", "socket", "link", "loop", "device", "folder", "huge"];
    let unreadable = names.map(|name| (name, Code::Unreadable));
    let unread = [
        ("latin", Code::Encoding),
        ("empty", Code::Syntax),
        ("half", Code::Syntax),
        ("deep", Code::Syntax),
    ];
    for (name, code) in unreadable.into_iter().chain(unread) {
        let report = report(&registry, &at(name));
        assert_eq!(report.status, Status::Skipped);
        assert_eq!(
            report.problems.iter().map(|p| p.code).collect::<Vec<_>>(),
            [code],
            "{name}: {report:#?}"
        );
        assert!(
            !format!("{report:?}").contains("hunter2"),
            "{name} shows a file outside"
        );
    }
    assert_eq!(
        registry
            .snapshot()
            .reports
            .iter()
            .filter(|r| r.path == at("link"))
            .count(),
        1
    );
}

#[test]
fn names_are_not_taken_over() {
    let world = World::new();
    let a = world.method("a/x", "custom:x", "1.0.0");
    let registry = world.registry();
    // A twin in another folder: both are disabled, and both say so, at once and at a new start.
    let b = world.method("b/x", "Custom:X", "9.0.0");
    assert_eq!(world.refreshed(&registry), [""; 0]);
    let newcomer = report(&registry, &b);
    assert_eq!(
        (newcomer.status, newcomer.problems[0].code),
        (Status::Skipped, Code::Conflict)
    );
    assert!(newcomer.problems[0].message.contains(a.to_str().unwrap()));
    let fresh = world.registry();
    assert_eq!(ids(&fresh), [""; 0]);
    for (file, other) in [(&a, &b), (&b, &a)] {
        assert!(
            report(&fresh, file).problems[0]
                .message
                .contains(other.to_str().unwrap())
        );
    }
    let fault = fresh.snapshot().find("custom:x").expect_err("disabled");
    assert_eq!(fault.kind, Kind::ToolNotFoundError);
    assert!(
        fault.message.contains("disabled") && !fault.message.contains("tool-defs"),
        "{}",
        fault.message
    );
    // Gone again: the other one loads.
    fs::remove_file(&b).unwrap();
    assert_eq!(world.refreshed(&fresh), ["custom:x@1.0.0"]);
}

#[test]
fn core_is_compiled_in() {
    let world = World::new();
    let claim = world.method("c", "core:execute-python-script", "99.0.0");
    let folded = world.method("d", "CORE:run", "1.0.0");
    let copy = world.file(
        "tool-defs/core/execute-python-script.tool.json",
        registry::BUILTIN_FILES[0].1,
    );
    let registry = world.registry();
    assert_eq!(
        registry
            .snapshot()
            .find("core:execute-python-script")
            .unwrap()
            .source,
        "builtin"
    );
    assert_eq!(ids(&registry), [""; 0]);
    for file in [claim, folded] {
        let problem = &report(&registry, &file).problems[0];
        assert_eq!(
            (problem.code, problem.severity),
            (Code::Conflict, Severity::Error)
        );
    }
    assert!(report(&registry, &copy).problems.is_empty());
}

#[test]
fn versions_live_side_by_side_in_one_folder() {
    let world = World::new();
    for version in ["1.0.0", "1.2.0", "2.0.0-beta.1"] {
        world.method(&format!("v/{version}"), "custom:v", version);
    }
    let registry = world.registry();
    let snapshot = registry.snapshot();
    for (range, wanted) in [
        ("", "1.2.0"),
        ("@1.0.0", "1.0.0"),
        ("@^1", "1.2.0"),
        ("@>=1, <1.1", "1.0.0"),
        ("@2.0.0-beta.1", "2.0.0-beta.1"),
    ] {
        let tool = snapshot.find(&format!("custom:v{range}")).expect(range);
        assert_eq!(tool.manifest.version.to_string(), wanted, "{range}");
    }
    let (mismatch, all) = (Kind::VersionMismatchError, "2.0.0-beta.1, 1.2.0, 1.0.0");
    let missing = [
        "custom:v@^2",
        "custom:v@3.0.0",
        "custom:v@banana",
        "custom:v@",
    ]
    .map(|name| (name, mismatch, all));
    // Another name, no namespace, and another dialect.
    let unknown =
        ["custom:w", "v", "custom__v"].map(|name| (name, Kind::ToolNotFoundError, "'custom:v'"));
    for (reference, kind, piece) in missing.into_iter().chain(unknown) {
        let fault = snapshot.find(reference).expect_err(reference);
        assert!(
            fault.kind == kind && fault.message.contains(piece),
            "{reference}: {fault:?}"
        );
    }
    // The same version twice, in one folder, disables both of it and no other.
    world.method("v/again", "custom:v", "1.2.0+build");
    assert_eq!(
        ids(&world.registry()),
        ["custom:v@1.0.0", "custom:v@2.0.0-beta.1"]
    );
    assert_eq!(
        world.refreshed(&registry),
        ["custom:v@1.0.0", "custom:v@2.0.0-beta.1"]
    );
}

#[test]
fn refresh_replaces_or_keeps_everything() {
    let world = World::new();
    world.method("a", "custom:a", "1.0.0");
    world.method("b", "custom:b", "1.0.0");
    let registry = world.registry();
    let before = registry.snapshot();
    world.method("a", "custom:a", "1.1.0");
    fs::remove_file(world.path("tool-defs/b.tool.json")).unwrap();
    world.method("c", "custom:c", "1.0.0");
    assert_eq!(
        world.refreshed(&registry),
        ["custom:a@1.1.0", "custom:c@1.0.0"]
    );
    assert!(
        before.find("custom:b").is_ok(),
        "who holds an old snapshot keeps it"
    );
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
    let counted = |id: String, kind: &str, tools: usize| json!({"id": id, "kind": kind, "tools": tools, "skipped": 0});
    let folder = |name: &str| world.path(name).display().to_string();
    let sources = [
        counted(folder("tool-defs"), "folder", 2),
        counted(folder("user_scripts"), "folder", 0),
        counted("builtin".into(), "program", registry::BUILTIN_FILES.len()),
    ];
    assert_eq!(registry.snapshot().sources(), sources);
}

/// A manifest in the middle of an edit leaves its tool as it was; one that was never good, or went,
/// has none.
#[test]
fn a_manifest_that_breaks_keeps_its_old_definition() {
    let world = World::new();
    world.method("a", "custom:a", "1.0.0");
    world.file("tool-defs/b.tool.json", "{");
    let registry = world.registry();
    assert_eq!(
        (ids(&registry), registry.snapshot().warnings.len()),
        (vec!["custom:a@1.0.0".to_owned()], 0)
    );
    for broken in [
        "{",
        "",
        "\u{0}",
        "{\"toolId\": \"custom:a\", \"toolId\": \"custom:b\"}",
    ] {
        world.file("tool-defs/a.tool.json", broken);
        for _ in 0..2 {
            assert_eq!(world.refreshed(&registry), ["custom:a@1.0.0"], "{broken}");
            let warnings = &registry.snapshot().warnings;
            assert!(
                warnings.len() == 1 && warnings[0].contains("a.tool.json is broken"),
                "{warnings:?}"
            );
            assert_eq!(registry.snapshot().skipped(), 2);
        }
    }
    // A link in its place is no edit.
    fs::remove_file(world.path("tool-defs/a.tool.json")).unwrap();
    symlink("b.tool.json", world.path("tool-defs/a.tool.json")).unwrap();
    assert!(world.refreshed(&registry).is_empty() && registry.snapshot().warnings.is_empty());
    fs::remove_file(world.path("tool-defs/a.tool.json")).unwrap();
    world.method("a", "custom:a", "1.2.0");
    assert_eq!(world.refreshed(&registry), ["custom:a@1.2.0"]);
}

/// A source that offers the tools of a folder without being one.
pub struct Elsewhere(pub DirectToolLoader);

impl registry::Source for Elsewhere {
    fn id(&self) -> &str {
        "elsewhere"
    }
    fn discover(&self) -> Result<registry::Discovery, String> {
        let mut found = self.0.discover()?;
        found
            .tools
            .iter_mut()
            .for_each(|tool| tool.source = "elsewhere".to_owned());
        Ok(found)
    }
}

#[test]
fn other_sources_and_tools_in_this_process_take_nothing_over() {
    let (world, other) = (World::new(), World::new());
    world.method("a", "custom:a", "1.0.0");
    other.method("a", "custom:a", "2.0.0");
    other.method("b", "custom:b", "1.0.0");
    let registry = world.registry();
    registry
        .add_source(Arc::new(Elsewhere(other.loader())))
        .unwrap();
    assert!(
        registry
            .add_source(Arc::new(Elsewhere(other.loader())))
            .is_err(),
        "the id is taken"
    );
    let snapshot = registry.snapshot();
    assert_eq!(
        snapshot
            .find("custom:a")
            .expect("kept")
            .manifest
            .version
            .to_string(),
        "1.0.0"
    );
    assert_eq!(snapshot.find("custom:b").unwrap().source, "elsewhere");

    let whole =
        json!({"toolId": "app:echo", "description": "Echoes.", "parameters": {"type": "object"}});
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
    let tool = registry
        .register(whole.clone(), "x-echo")
        .expect("registered");
    assert!(matches!(&tool.manifest.handler, Handler::Extension { kind, .. } if kind == "x-echo"));
    assert!(registry.register(whole, "x-echo").is_err(), "twice");
    assert!(registry.snapshot().find("app:echo").is_ok());
    assert!(registry.unregister("app:echo") && !registry.unregister("app:echo"));
    assert_eq!(
        registry.snapshot().find("app:echo").expect_err("gone").kind,
        Kind::ToolNotFoundError
    );
}

#[test]
fn requirements_are_settled_without_hanging() {
    let world = World::new();
    let tool = |name: &str, requires: Value| {
        let requires = json!({ "requires": requires });
        let text =
            crate::harness::manifest(format!("r:{name}"), json!({ "type": "x-t" }), requires);
        world.file(&format!("tool-defs/{name}.tool.json"), text.to_string());
    };
    let tools = [
        ("base", json!({}), ""),
        ("good", json!({ "r:base": "^1" }), ""),
        ("old", json!({ "r:base": "^2" }), "loaded: 1.0.0"),
        ("missing", json!({ "r:nothing": "*" }), "not loaded"),
        ("behind", json!({ "r:missing": "*" }), "itself unavailable"),
        ("ring-a", json!({ "r:ring-b": "*" }), "circular"),
        ("ring-b", json!({ "r:ring-a": "*" }), "circular"),
        ("by-ring", json!({ "r:ring-a": "*" }), "itself unavailable"),
    ];
    tools
        .iter()
        .for_each(|(name, requires, _)| tool(name, requires.clone()));
    let registry = world.registry();
    for (name, _, piece) in tools {
        let needs = registry
            .snapshot()
            .find(&format!("r:{name}"))
            .expect(name)
            .needs
            .join("; ");
        assert!(
            needs.contains(piece) && needs.is_empty() == piece.is_empty(),
            "{name}: {needs}"
        );
    }
    tool("nothing", json!({}));
    registry.refresh_source("files").unwrap();
    assert!(
        registry
            .snapshot()
            .find("r:behind")
            .is_ok_and(|tool| tool.needs.is_empty())
    );
}

#[test]
fn a_script_path_leads_to_one_file_below_a_base_and_anything_else_is_refused() {
    let world = World::new();
    for file in "user_scripts/a/b.py user_scripts/a/%2e%2e.py user_scripts/examples/echo.py \
                 tool-defs/own/beside.py outside/x.py user_scripts2/x.py"
        .split(' ')
    {
        world.file(file, "1");
    }
    fs::create_dir_all(world.path("user_scripts/folder.py")).unwrap();
    symlink(
        world.path("outside/x.py"),
        world.path("user_scripts/link.py"),
    )
    .unwrap();
    symlink(world.path("outside"), world.path("user_scripts/linked")).unwrap();
    symlink("b.py", world.path("user_scripts/a/inner.py")).unwrap();
    nix::unistd::mkfifo(
        &world.path("user_scripts/fifo.py"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let bases = [world.path("user_scripts"), world.path("tool-defs")];
    let own = world.path("tool-defs/own");
    let resolve = |path: &str| registry::scripts::resolve(&bases, Some(&own), path);
    for (written, path) in [
        ("a/b.py", "user_scripts/a/b.py"),
        ("a/./b.py", "user_scripts/a/b.py"),
        ("./a//b.py", "user_scripts/a/b.py"),
        ("a/%2e%2e.py", "user_scripts/a/%2e%2e.py"),
        (
            "user_scripts/examples/echo.py",
            "user_scripts/examples/echo.py",
        ),
        ("own/beside.py", "tool-defs/own/beside.py"),
        ("beside.py", "tool-defs/own/beside.py"),
    ] {
        assert_eq!(
            resolve(written).map(|site| site.script),
            Ok(Some(world.path(path))),
            "{written}"
        );
    }
    let absolute = world.path("user_scripts/a/b.py");
    let refused = "../outside/x.py a/../../outside/x.py a/../b.py a\\..\\..\\x.py .. \
        ../user_scripts2/x.py /etc/passwd C:\\x.py C:/x.py ~/x.py ~root/x.py \\\\server\\x.py \
        //server/x.py file:///etc/passwd FILE:x.py http://h/x.py a\0b.py a/b.py\n \u{202e}yp.x . \
        a/ link.py linked/x.py a/inner.py fifo.py folder.py";
    for written in refused.split(' ').chain(["", absolute.to_str().unwrap()]) {
        let fault = resolve(written).expect_err(written);
        assert_eq!(fault.kind, Kind::SecurityError, "{written:?}: {fault:?}");
        let shows = fault.message.contains(world.root.path().to_str().unwrap());
        assert!(
            !shows || written == absolute.to_str().unwrap(),
            "{}",
            fault.message
        );
    }
    for written in [
        "none.py",
        "a/%2e%2e/b.py",
        "a/b.py/c",
        "user_scripts",
        &"x".repeat(300),
    ] {
        assert_eq!(
            resolve(written).expect_err(written).kind,
            Kind::ParameterValidationError,
            "{written}"
        );
    }
    // The manifest's folder helps only inside a base.
    assert!(registry::scripts::resolve(&bases, Some(&world.path("outside")), "x.py").is_err());
    // A link that is swapped in between a look and its use: tests/requirements/swapped_files.rs,
    // against a live server. A manifest with such a path is told at load.
    let missing = world.script("tool-defs/missing.tool.json", "s:missing", "no/such.py");
    let upwards = world.script("tool-defs/upwards.tool.json", "s:upwards", "../x.py");
    let registry = world.registry();
    assert_eq!(ids(&registry), [""; 0]);
    for (file, code, piece) in [
        (missing, Code::Dependency, "user_scripts/no/such.py"),
        (upwards, Code::Security, "'..'"),
    ] {
        let problem = &report(&registry, &file).problems[0];
        assert_eq!(
            (problem.code, problem.pointer.as_str()),
            (code, "/handler/scriptPath")
        );
        assert!(problem.message.contains(piece), "{problem:?}");
    }
}

#[test]
fn places_that_everybody_may_write_are_told_and_still_load() {
    let world = World::new();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode")
    };
    let script = world.file("user_scripts/a/main.py", "pass\n");
    let file = world.script("user_scripts/a/a.tool.json", "t:a", "a/main.py");
    let (base, root) = (world.path("user_scripts"), world.path(""));
    // Where it is told, and of what.
    let told = || {
        let registry = world.registry();
        assert_eq!(
            (ids(&registry), registry.snapshot().skipped()),
            (vec!["t:a@1.0.0".to_owned()], 0)
        );
        let reports = registry.snapshot().reports.clone();
        let problems = reports
            .into_iter()
            .flat_map(|r| r.problems.into_iter().map(move |p| (r.path.clone(), p)));
        let found =
            problems.filter(|(_, p)| p.code == Code::Security && p.severity == Severity::Warning);
        let about = |words: &str| {
            PathBuf::from(
                words
                    .split("chmod o-w '")
                    .nth(1)
                    .expect("a fix")
                    .split('\'')
                    .next()
                    .unwrap(),
            )
        };
        found
            .map(|(path, problem)| (path, about(&problem.message)))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(), [], "the control: no other user may write");
    for (place, at) in [
        (&file, &file),
        (&script, &file),
        (&world.path("user_scripts/a"), &file),
        (&base, &base),
        (&root, &base),
    ] {
        let before = place.metadata().expect("there").permissions().mode();
        mode(place, before | 0o002);
        let told = told();
        assert!(
            told.contains(&(at.clone(), place.components().collect())),
            "{place:?}: {told:?}"
        );
        mode(place, before);
    }
    mode(&base, 0o1777);
    assert_eq!(told(), [], "sticky: others replace nothing that is there");
    // Whoever owns a place can change what runs there.
    for place in [
        &file,
        &script,
        &world.path("user_scripts/a"),
        &world.path("tool-defs"),
    ] {
        if !is_root() {
            break;
        }
        std::os::unix::fs::chown(place, Some(54_321), None).unwrap();
        let (shown, told) = (place.display(), || {
            format!("{:?}", world.registry().snapshot().reports)
        });
        let wanted = format!("{shown} belongs to another user (uid 54321)");
        assert!(
            told().contains(&wanted) && told().contains(&format!("`chown 0 '{shown}'`")),
            "{}",
            told()
        );
        std::os::unix::fs::chown(place, Some(0), None).unwrap();
        assert!(!told().contains(&wanted), "the control");
    }
}

#[test]
fn a_script_belongs_to_the_nearest_manifests() {
    for row in include_str!("registry/layouts.txt")
        .lines()
        .filter(|row| !row.starts_with('#'))
    {
        let (what, layout) = row.split_once(": ").unwrap();
        let layout: Vec<&str> = layout.split("; ").collect();
        let world = World::new();
        for folder in ["a", "a/sub", "a/lib", "ab", "b", "loose", "."] {
            for name in ["m", "n", "o", "h"] {
                world.file(&format!("user_scripts/{folder}/{name}.py"), "pass");
            }
        }
        world.file("tool-defs/a/only.py", "pass");
        let mut expected = Vec::new();
        for line in &layout {
            let (loads, line) = line
                .strip_prefix('-')
                .map_or((true, *line), |line| (false, line));
            let [id, place, script] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let (id, version) = id.split_once('@').unwrap_or((id, "1.0.0"));
            let place = place
                .replacen("t/", "tool-defs/", 1)
                .replacen("u/", "user_scripts/", 1);
            let text = manifest(
                &format!("x:{id}"),
                version,
                crate::harness::script(script, "python"),
            );
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
        let refused = snapshot
            .reports
            .iter()
            .filter(|report| report.status == Status::Skipped)
            .count();
        assert_eq!(
            refused,
            layout.iter().filter(|line| line.starts_with('-')).count(),
            "{what}"
        );
    }
}
