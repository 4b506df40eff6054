//! `toolhost doctor`: tries every layer on this machine, and prints the command that fixes each one
//! that fails.
//!
//! The exit code is 4 if a layer does not work, else 3 if the policies do not load, else 4 if the
//! audit log does not open, else 0.

use super::refusal::Exit;
use super::settings::Settings;
use super::{attacks, audit, host, process, words};
use crate::base::files;
use crate::executor::process::{LauncherError, Launchers, examine, settle};
#[cfg(feature = "wasi")]
use crate::executor::wasm;
use crate::fault::Fault;
use crate::packages::Index;
use crate::policy::packages::Ecosystem;
use crate::sandbox::probe::OwnStatus;
use crate::sandbox::{Problem, identity};
use crate::service::alerts::AlertSettings;
use crate::{policy, sandbox};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The lists of the report that are tables.
const TABLES: [words::Table; 6] = [
    audit::ATTEMPTS,
    audit::LAYERS,
    ("fixes", &["why"], &["command"]),
    (
        "runtimes",
        &[
            "language",
            "version",
            "program",
            "found=found by",
            "ran=starts as",
        ],
        &[],
    ),
    ("settings", &["name", "value", "from"], &[]),
    (
        "indexes",
        &["ecosystem", "name", "missing", "leadsTo=address"],
        &[],
    ),
];

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show every layer, attempt and setting, too; with `--attacks` every probe
    #[arg(long)]
    pub all: bool,
    /// Try the shipped probes on this machine, each with its control, and show which were held
    #[arg(long)]
    pub attacks: bool,
}

/// What is shown without `--all`, where every layer works.
const SHORT: [&str; 6] = [
    "refused", "fixes", "runtimes", "indexes", "auditLog", "policies",
];

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    if args.attacks {
        let shown = attacks::Shown {
            json: args.json,
            all: args.all,
        };
        return attacks::run(settings, shown);
    }
    let launchers = Arc::new(host::launchers(settings)?);
    let runtime = process::runtime()?;
    let (report, exit) = runtime.block_on(report(settings, &launchers));
    drop(runtime);
    launchers.close();
    settle(process::SHUTDOWN_TIMEOUT);
    let head = if report["tier"].is_null() {
        "Nothing runs on this machine until this is fixed."
    } else {
        "Every sandbox layer is active."
    };
    words::answer(&report, args.json, || {
        let mut shown = audit::with_results(&report);
        let is_short = !args.all && !report["tier"].is_null();
        if let Some(fields) = shown.as_object_mut().filter(|_| is_short) {
            fields.retain(|name, value| SHORT.contains(&name.as_str()) && !words::is_empty(value));
        }
        format!("{head}\n{}", words::render(&shown, &TABLES))
    });
    Ok(exit.into())
}

/// `{"ok": true, "is": …}` or `{"ok": false, "why": …}`.
fn outcome(result: &Result<String, String>) -> Value {
    match result {
        Ok(is) => json!({ "ok": true, "is": is }),
        Err(why) => json!({ "ok": false, "why": why }),
    }
}

/// The report and the exit code. `tier` is `A` if every layer works. If one does not, no tool runs
/// until one of the fixes is applied.
async fn report(settings: &Settings, launchers: &Arc<Launchers>) -> (Value, Exit) {
    let facts = Facts::of_this_machine(launchers.sandbox.counted(), launchers.sandbox.ids());
    let around = examine::Surroundings {
        policies: settings.policies.clone(),
        home: super::settings::home(&|name| std::env::var_os(name)),
        ..examine::Surroundings::default()
    };
    let examined = examine::run(launchers, &examine::bare(examine::ourselves()), &around).await;
    let (layers, tried, mut refused) = match examined {
        Ok(examined) => (examined.layers, examined.tried, None),
        Err(error) => (Vec::new(), Vec::new(), Some(render_refusal(error))),
    };
    // Whoever cannot open files like this loads no manifest and shows no tool its files.
    if let Err(errno) = files::without_links(Path::new("/"), OFlag::O_PATH) {
        let errno = format!("{errno:?}: {}", errno.desc());
        let what = "open a path without following links";
        refused = Some(json!({ "layer": OPENAT2, "what": what, "errno": errno }));
    }
    let stands = refused.is_none()
        && !tried.is_empty()
        && tried
            .iter()
            .all(sandbox::probe::ProbeResult::is_as_expected);
    let mut fixes = hints(
        &facts,
        refused
            .as_ref()
            .and_then(|refused| refused["layer"].as_str()),
    );
    let loaded = host::policies(settings);
    if loaded.is_err() {
        fixes.push(hint(
            "the policies do not load, so nothing runs (see below)",
            "toolhost check",
        ));
    }
    let alerts = settings.config.alerts.iter();
    let faults = alerts.filter_map(AlertSettings::fault);
    fixes.extend(faults.map(|why| hint(&why, "toolhost check")));
    let audit_log = host::audit_log(settings).map_err(|why| why.to_string());
    let audit_log = audit_log.and_then(|log| {
        log.open()
            .map_err(|fault| fault.person.unwrap_or(fault.message))
    });
    if audit_log.is_err() {
        let why = "the audit log cannot be opened, so every call is refused (see below)";
        fixes.push(hint(why, "toolhost --audit-log FILE …"));
    }
    let exit = match (stands, &loaded, &audit_log) {
        (false, ..) => Exit::Host,
        (_, Err(_), _) => Exit::Policy,
        // A call that cannot be recorded is refused.
        (.., Err(_)) => Exit::Host,
        (.., Ok(_)) => Exit::Ok,
    };
    let (runtimes, passed_over) = interpreters(
        settings,
        loaded.as_deref().ok(),
        launchers,
        refused.is_none(),
    )
    .await;
    let is_loaded = if settings.policies.is_none() {
        "the built-in ones"
    } else {
        "loaded"
    };
    let indexes = indexes(settings, loaded.as_deref().ok());
    let report = json!({
        "tier": stands.then_some('A'),
        "version": env!("CARGO_PKG_VERSION"),
        "layers": layers,
        "refused": refused,
        "tried": tried,
        "fixes": fixes,
        "facts": facts,
        "runtimes": runtimes,
        "passedOver": passed_over,
        "wasm": wasm_state(),
        "settings": where_from(settings),
        "indexes": indexes,
        "auditLog": {
            "path": settings.audit_log.as_ref().map(|path| path.display().to_string()),
            "opens": outcome(&audit_log.map(|_| "yes".to_owned())),
        },
        "policies": outcome(&loaded.map(|_| is_loaded.to_owned()).map_err(|why| why.to_string())),
    });
    (report, exit)
}

/// The layer that could not be raised.
fn render_refusal(error: LauncherError) -> Value {
    match error {
        LauncherError::Layer(Problem {
            layer, what, errno, ..
        }) => {
            let errno = Errno::from_raw(errno);
            json!({ "layer": layer, "what": what, "errno": format!("{errno:?}: {}", errno.desc()) })
        }
        other => {
            let fault = Fault::from(other);
            json!({ "layer": "launcher", "what": fault.person.unwrap_or(fault.message), "errno": "none" })
        }
    }
}

/// The interpreters, each started behind the layers if those stand, and why others were passed over.
async fn interpreters(
    settings: &Settings,
    policies: Option<&policy::Policies>,
    launchers: &Arc<Launchers>,
    layers_stand: bool,
) -> (Vec<Value>, Vec<String>) {
    let found = host::discovered(settings);
    let mut notes = found.notes;
    let mut all: Vec<policy::Runtime> = found.runtimes.into_values().collect();
    for (path, named) in policies
        .map(|policies| host::named_runtimes(settings, policies))
        .into_iter()
        .flatten()
    {
        match named {
            Ok(runtime) => all.push(runtime),
            Err(why) => notes.push(format!(
                "{}: named by a policy, cannot be used: {why}",
                path.display()
            )),
        }
    }
    let mut shown = Vec::new();
    for runtime in all {
        let ran = if layers_stand {
            examine::starts(launchers, &runtime).await
        } else {
            Err("not tried: some layers do not work here".to_owned())
        };
        let program = match &runtime.program {
            policy::Program::Path(path) => path.display().to_string(),
            policy::Program::Ourselves { .. } => "this binary".to_owned(),
        };
        let policy::Runtime {
            language,
            version,
            found,
            ..
        } = runtime;
        // `ran`: the version that the interpreter printed inside the layers, or why it did not
        // start.
        let ran = outcome(&ran);
        shown.push(json!({
            "language": language, "program": program, "version": version, "found": found, "ran": ran,
        }));
    }
    (shown, notes)
}

#[cfg(not(feature = "wasi"))]
fn wasm_state() -> Value {
    let why = "built without the cargo feature `wasi`: WASI tools are unavailable".to_owned();
    json!({ "wasmtime": null, "cache": outcome(&Err(why)) })
}

/// The version of wasmtime, and the folder that caches compiled code, or why there is none.
#[cfg(feature = "wasi")]
fn wasm_state() -> Value {
    fn variable(name: &str) -> Option<std::ffi::OsString> {
        std::env::var_os(name)
    }
    let folder = wasm::Cache::usual_folder(variable)
        .unwrap_or_default()
        .display()
        .to_string();
    let cache = wasm::Cache::usual(variable).and_then(|(_, note)| note.map_or(Ok(folder), Err));
    json!({ "wasmtime": wasmtime_version(), "cache": outcome(&cache) })
}

/// The version of wasmtime in the Cargo.lock of this build.
#[cfg(feature = "wasi")]
fn wasmtime_version() -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let entry = lock
        .split("[[package]]")
        .find(|entry| entry.trim_start().starts_with("name = \"wasmtime\"\n"));
    let line = entry.and_then(|entry| {
        entry
            .lines()
            .find_map(|line| line.strip_prefix("version = "))
    });
    line.map_or("unknown", |version| version.trim_matches('"'))
}

fn where_from(settings: &Settings) -> Vec<Value> {
    fn shown(path: &Path) -> String {
        format!(
            "{}{}",
            path.display(),
            if path.is_dir() { "" } else { " (not made yet)" }
        )
    }
    let list = |paths: &[PathBuf]| {
        paths
            .iter()
            .map(|path| shown(path))
            .collect::<Vec<_>>()
            .join(", ")
    };
    fn one(path: &Option<PathBuf>, none: &str) -> String {
        path.as_ref()
            .map_or_else(|| none.to_owned(), |path| path.display().to_string())
    }
    let log = settings
        .log
        .map(|(level, json)| format!("{level}{}", if json { ",json" } else { "" }));
    let values = [
        ("root", settings.root.display().to_string()),
        ("tools", list(&settings.tools)),
        ("scripts", list(&settings.scripts)),
        ("skills", list(&settings.skills)),
        ("policies", one(&settings.policies, "the built-in ones")),
        ("audit-log", one(&settings.audit_log, "none")),
        ("log", log.unwrap_or_else(|| "usual".to_owned())),
    ];
    fn from(name: &str, settings: &Settings) -> String {
        match name {
            "root" if settings.root_is_assumed() => {
                "the current folder, since none was named".to_owned()
            }
            _ => settings.said_by[name].clone(),
        }
    }
    values
        .into_iter()
        .map(|(name, value)| json!({ "name": name, "value": value, "from": from(name, settings) }))
        .collect()
}

/// A row for each package index: those of the configuration, and those that only policies name.
fn indexes(settings: &Settings, policies: Option<&policy::Policies>) -> Vec<Value> {
    fn row(name: &str, ecosystem: Ecosystem, leads_to: String, missing: bool) -> Value {
        let ecosystem = ecosystem.name();
        json!({ "name": name, "ecosystem": ecosystem, "leadsTo": leads_to, "missing": missing })
    }
    let known = settings
        .indexes
        .iter()
        .map(|index| row(&index.name, index.ecosystem, index.describe(), false));
    let named = policies
        .into_iter()
        .flat_map(policy::Policies::all)
        .flat_map(|policy| &policy.packages);
    let named = named.map(|(of, entry)| (*of, &entry.grant.rules.index));
    let missing = named.filter(|(of, index)| Index::find(&settings.indexes, *of, index).is_none());
    let missing: BTreeSet<_> = missing.collect();
    let missing = missing.into_iter().map(|(ecosystem, name)| {
        let fix = format!(
            "write [indexes.{name}] {} into the configuration",
            ecosystem.name()
        );
        row(name, ecosystem, fix, true)
    });
    known.chain(missing).collect()
}

/// Facts about this machine, all of them read. They hold no values of variables and no credentials.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    kernel: String,
    architecture: &'static str,
    /// The version of Landlock; below 1 there is none.
    landlock_abi: i32,
    /// The kernel's list of security modules, where it can be read.
    security_modules: Option<String>,
    seccomp_filters: bool,
    /// This process was started under a seccomp filter.
    already_filtered: bool,
    /// The container runtime around this process, recognized by a file that it leaves.
    container: Option<&'static str>,
    apparmor_restricts_userns: bool,
    unprivileged_userns_off: bool,
    max_user_namespaces: Option<u64>,
    real_root: bool,
    /// The user that tools run as, in words.
    identity: String,
    /// True: a cgroup counts the limits. False: they are sampled.
    counted: bool,
    /// systemd can delegate a cgroup: the user is not root, and only cgroup v2 is mounted.
    delegable: bool,
    /// Which control groups are mounted.
    cgroup_v1: bool,
    cgroup_v2: bool,
    /// Why limits are counted, or why not.
    counting: String,
}

impl Facts {
    fn of_this_machine(counted: bool, pool: std::ops::Range<u32>) -> Facts {
        let names = nix::sys::utsname::uname();
        let kernel = names
            .as_ref()
            .map(|n| n.release().to_string_lossy().into_owned())
            .unwrap_or_default();
        let status = OwnStatus::read();
        let real_root = identity::real_root();
        let groups = status.field("Groups:").split_whitespace().count();
        Facts {
            kernel,
            architecture: std::env::consts::ARCH,
            landlock_abi: sandbox::landlock_abi(),
            security_modules: text("/sys/kernel/security/lsm"),
            seccomp_filters: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
            already_filtered: status.field("Seccomp:") == "2",
            container: container(),
            apparmor_restricts_userns: text(
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            )
            .as_deref()
                == Some("1"),
            unprivileged_userns_off: text("/proc/sys/kernel/unprivileged_userns_clone").as_deref()
                == Some("0"),
            max_user_namespaces: text("/proc/sys/user/max_user_namespaces")
                .and_then(|n| n.parse().ok()),
            real_root,
            identity: whom(real_root, groups, pool),
            counted,
            delegable: !real_root && is_mounted("cgroup2") && !is_mounted("cgroup"),
            cgroup_v1: is_mounted("cgroup"),
            cgroup_v2: is_mounted("cgroup2"),
            counting: if counted {
                "counted exactly by a control group".to_owned()
            } else {
                why_sampled()
            },
        }
    }
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn container() -> Option<&'static str> {
    let marks = [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("/run/secrets/kubernetes.io", "Kubernetes"),
    ];
    marks
        .into_iter()
        .find_map(|(mark, name)| Path::new(mark).exists().then_some(name))
}

fn whom(real_root: bool, groups: usize, pool: std::ops::Range<u32>) -> String {
    if real_root {
        return format!(
            "real root: each tool gets one id of {}-{}, no supplementary groups",
            pool.start,
            pool.end - 1
        );
    }
    let id = nix::unistd::geteuid();
    let mapped = if id.is_root() {
        "root of a user namespace (not of the machine)"
    } else {
        "an ordinary user"
    };
    let rest = match groups {
        0 => String::new(),
        n => format!(
            "; {n} supplementary group(s) remain with tools, since only real root may drop them"
        ),
    };
    format!("{mapped}: tools run as the same user, uid {id}, which is the only id available{rest}")
}

fn is_mounted(kind: &str) -> bool {
    text("/proc/self/mounts")
        .is_some_and(|all| all.lines().any(|line| line.split(' ').nth(2) == Some(kind)))
}

/// Why no cgroup can be made: the first reason that is found.
fn why_sampled() -> String {
    let why = match (is_mounted("cgroup2"), is_mounted("cgroup")) {
        (false, false) => "no control groups are mounted",
        (true, false) => {
            "this process may not make a group with memory and pids below its own (not delegated, \
            or not empty)"
        }
        (_, true) => "this process may not make groups in the memory, pids and cpuacct hierarchies",
    };
    format!(
        "{why}: memory and CPU are summed every {} ms",
        crate::quantity::SAMPLE_MS
    )
}

/// A cause, and the command that removes it.
fn hint(why: &str, command: &str) -> Value {
    json!({ "why": why, "command": command })
}

const APPARMOR: &str = "sudo install -o root -g root -m 0644 docs/setup/apparmor-toolhost \
                        /etc/apparmor.d/toolhost && sudo apparmor_parser -r \
                        /etc/apparmor.d/toolhost";
/// Stands in place of a layer's name where the kernel or a filter refuses openat2(2).
const OPENAT2: &str = "openat2";
const DOCKER: &str = "docker run --security-opt seccomp=docs/setup/docker-seccomp.json \
                      --security-opt apparmor=unconfined --security-opt systempaths=unconfined …";

/// Hints for the layer that could not be set up (`refused`), and for limits that are only sampled.
/// No command weakens the machine for other programs where a narrower one exists.
fn hints(facts: &Facts, refused: Option<&str>) -> Vec<Value> {
    let mut hints = match refused {
        Some("namespaces" | "identity" | "network" | "view" | "scratch") => namespaces(facts),
        Some("landlock") => vec![landlock(facts)],
        Some(OPENAT2) if facts.already_filtered => {
            let why = "the seccomp filter of a container or service manager refuses openat2(2)";
            vec![hint(why, DOCKER)]
        }
        Some(OPENAT2) => {
            let why = "this kernel has no openat2(2)";
            vec![hint(why, "use Linux 5.13 or later")]
        }
        Some("seccomp") if facts.architecture != "x86_64" => {
            vec![hint(
                "the filter is made for x86_64",
                "run toolhost on an x86_64 machine",
            )]
        }
        Some("seccomp") => {
            vec![hint(
                "this kernel has no seccomp filters",
                "use a kernel with CONFIG_SECCOMP_FILTER=y",
            )]
        }
        None | Some(_) => Vec::new(),
    };
    if !facts.counted {
        let (why, command) = exact(facts);
        hints.push(hint(&format!("limits are sampled; {why}"), command));
    }
    hints
}

/// How to have memory and CPU counted exactly where they are sampled. In a container the command
/// depends on its manager.
fn exact(facts: &Facts) -> (&'static str, &'static str) {
    if facts.container.is_some() {
        let fix = "run toolhost outside of the container, or give the container a writable cgroup \
                   v2 of its own (docs/SETUP.md)";
        ("this container has no control group to use", fix)
    } else if facts.delegable {
        (
            "a delegated control group makes them exact",
            "systemd-run --user --scope -p Delegate=yes toolhost …",
        )
    } else if facts.cgroup_v1 && !facts.real_root {
        let fix = "add `systemd.unified_cgroup_hierarchy=1` to the kernel's command line, restart \
                   the machine, then systemd-run --user --scope -p Delegate=yes toolhost …";
        (
            "only root may use control groups of version 1; cgroup v2 can be delegated",
            fix,
        )
    } else if facts.cgroup_v1 {
        let why = "toolhost may not make groups where memory, pids and cpuacct are mounted";
        (
            why,
            "mount them writable for root, or use cgroup v2 (docs/SETUP.md)",
        )
    } else if facts.cgroup_v2 {
        let fix = "sudo systemd-run --scope -p Delegate=yes toolhost …";
        ("toolhost may not make groups below its own", fix)
    } else {
        let fix = "sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup (and run toolhost as root, or in \
            its user's own group)";
        ("no control groups are mounted", fix)
    }
}

fn namespaces(facts: &Facts) -> Vec<Value> {
    let mut hints = Vec::new();
    if facts.max_user_namespaces == Some(0) {
        hints.push(hint(
            "user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000",
        ));
    }
    if facts.unprivileged_userns_off && !facts.real_root {
        let fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1";
        hints.push(hint("kernel.unprivileged_userns_clone is 0", fix));
    }
    if facts.apparmor_restricts_userns && !facts.real_root {
        let why = "AppArmor lets only programs with a profile make user namespaces; ours names \
            /usr/local/bin/toolhost";
        hints.push(hint(why, APPARMOR));
    }
    if facts.already_filtered || (facts.container.is_some() && hints.is_empty()) {
        let name = facts.container.unwrap_or("a container or service manager");
        let why = format!("{name} filters the system calls that set up the layers, or masks /proc");
        hints.push(hint(&why, DOCKER));
    }
    if hints.is_empty() {
        let fix =
            "see docs/SETUP.md; Linux 5.13 or later with user, mount, pid and network namespaces";
        hints.push(hint(
            "the kernel refused for a reason that toolhost cannot read",
            fix,
        ));
    }
    hints
}

fn landlock(facts: &Facts) -> Value {
    let order = facts
        .security_modules
        .as_deref()
        .filter(|list| !list.is_empty())
        .unwrap_or("capability");
    let why = "Landlock is off, missing (Linux < 5.13), or filtered by a container";
    hint(
        why,
        &format!("add `lsm=landlock,{order}` to the kernel's command line and restart the machine"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_command() {
        let facts = |change: fn(&mut Facts)| {
            let mut facts = Facts {
                counted: true,
                architecture: "x86_64",
                ..Facts::default()
            };
            change(&mut facts);
            facts
        };
        let sampled = |change: fn(&mut Facts)| Facts {
            counted: false,
            ..facts(change)
        };
        let cases: [(Facts, Option<&str>, &str); 14] = [
            (
                facts(|f| f.already_filtered = true),
                Some("openat2"),
                "docker-seccomp.json",
            ),
            (facts(|_| ()), Some("openat2"), "Linux 5.13"),
            (
                facts(|f| f.apparmor_restricts_userns = true),
                Some("namespaces"),
                "apparmor_parser",
            ),
            (
                facts(|f| f.unprivileged_userns_off = true),
                Some("namespaces"),
                "unprivileged_userns_clone=1",
            ),
            (
                facts(|f| f.max_user_namespaces = Some(0)),
                Some("namespaces"),
                "max_user_namespaces=15000",
            ),
            (
                facts(|f| f.container = Some("Docker")),
                Some("view"),
                "docker-seccomp.json",
            ),
            (
                facts(|f| f.already_filtered = true),
                Some("identity"),
                "docker-seccomp.json",
            ),
            (
                facts(|f| f.security_modules = Some("capability,yama".into())),
                Some("landlock"),
                "lsm=landlock,capability,yama",
            ),
            (sampled(|f| f.delegable = true), None, "Delegate=yes"),
            (
                sampled(|f| f.cgroup_v1 = true),
                None,
                "systemd.unified_cgroup_hierarchy=1",
            ),
            (
                sampled(|f| (f.cgroup_v1, f.real_root) = (true, true)),
                None,
                "cgroup v2",
            ),
            (
                sampled(|f| (f.cgroup_v2, f.real_root) = (true, true)),
                None,
                "systemd-run --scope",
            ),
            (
                sampled(|f| (f.container, f.cgroup_v1) = (Some("Docker"), true)),
                None,
                "outside of the container",
            ),
            (sampled(|_| ()), None, "mount -t cgroup2"),
        ];
        for (facts, layer, command) in cases {
            let fixes = hints(&facts, layer);
            assert_eq!(fixes.len(), 1, "{fixes:?}");
            assert!(
                fixes[0]["command"].as_str().unwrap().contains(command),
                "{fixes:?}"
            );
        }
        assert!(hints(&facts(|_| ()), None).is_empty());
        // AppArmor's restriction does not apply to real root.
        let root = facts(|f| (f.real_root, f.apparmor_restricts_userns) = (true, true));
        assert!(
            !hints(&root, Some("namespaces"))[0]
                .to_string()
                .contains("apparmor")
        );
    }
}
