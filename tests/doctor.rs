//! `doctor` and `audit --probe`, as root and as an ordinary user. Where this machine cannot raise
//! the layers, the tests check that the report says so and how to fix it.

use crate::prelude::*;
use crate::shipped;

/// What is shipped, a secret beside it, and whether this machine confines calls.
fn playground(who: Who) -> (Playground, bool) {
    let playground = shipped::playground(who);
    fs::write(playground.path("home/.a-secret"), "do not tell").unwrap();
    // The first call makes it.
    fs::remove_dir_all(playground.path("user_scripts/report-writer/out")).unwrap();
    playground.settle();
    let confines = playground.cli(&["doctor"]).code == Some(0);
    if !confines {
        skipped(1, &format!("no tier A here as {who:?}"));
    }
    (playground, confines)
}

#[test]
fn the_doctor_says_what_it_tried() {
    for who in Who::both() {
        let (playground, _) = playground(who);
        let ended = playground.cli(&["doctor", "--json"]);
        let (report, text) = (&ended.out, playground.cli(&["doctor", "--all"]));
        assert_eq!(text.code, ended.code, "{text:?}");
        for secret in ["do not tell", &playground.secret] {
            assert!(
                !ended.text().contains(secret) && !text.text().contains(secret),
                "{text:?}"
            );
        }
        assert!(report["facts"]["kernel"].is_string());
        let wasmtime = report["wasm"]["wasmtime"].as_str();
        assert_eq!(
            wasmtime.is_some_and(|version| version.starts_with("48.")),
            cfg!(feature = "wasi"),
            "{wasmtime:?}"
        );
        let list = |name: &str| {
            report[name]
                .as_array()
                .unwrap_or_else(|| panic!("{name}: {report}"))
        };
        assert_eq!(
            list("settings")
                .iter()
                .find(|s| s["name"] == "root")
                .unwrap()["from"],
            "flag"
        );
        assert_eq!(report["auditLog"]["opens"]["ok"], true, "{report}");
        if report["tier"].is_null() {
            assert_eq!(ended.code, Some(4));
            assert!(
                report["refused"]["layer"].is_string() && !list("fixes").is_empty(),
                "{report}"
            );
            continue;
        }
        assert_eq!(
            (ended.code, report["tier"].as_str()),
            (Some(0), Some("A")),
            "{text:?}"
        );
        assert_eq!(list("layers").len(), toolhost::sandbox::LAYERS.len());
        assert!(list("tried").len() >= 16);
        assert!(
            text.text().contains("PASS: blocked") && !text.text().contains("FAIL"),
            "{text:?}"
        );
        let counted = report["facts"]["counted"].as_bool().unwrap();
        let cgroup = list("layers")
            .iter()
            .find(|w| w["name"] == "cgroup")
            .unwrap();
        assert_eq!(cgroup["state"], if counted { "cgroup" } else { "sampled" });
        let raises = list("fixes")
            .iter()
            .any(|m| m["why"].as_str().unwrap().contains("sampled"));
        assert_eq!(raises, !counted, "what raises it is printed: {report}");
        for runtime in list("runtimes") {
            assert_eq!(runtime["ran"]["ok"], true, "found means it ran: {runtime}");
        }
        if !report["facts"]["realRoot"].as_bool().unwrap() {
            assert!(
                report["facts"]["identity"]
                    .as_str()
                    .unwrap()
                    .contains("the only id available"),
                "{report}"
            );
        }
        // Policies that do not load are a failure of their own.
        fs::write(
            playground.path("sandbox-policies/x.policy.toml"),
            "surprise = 1\n",
        )
        .unwrap();
        playground.settle();
        let (ended, text) = (
            playground.cli(&["doctor", "--json"]),
            playground.cli(&["doctor"]).text(),
        );
        let told = (ended.code, &ended.out["policies"]["ok"], &ended.out["tier"]);
        assert_eq!(told, (Some(3), &json!(false), &json!("A")));
        for words in [
            "the policies do not load",
            "toolhost check",
            "x.policy.toml:1:1: /surprise: unknown key",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

#[test]
fn the_probe_proves_a_confinement_and_never_runs_the_script() {
    for who in Who::both().filter(|_| cfg!(feature = "wasi")) {
        let (playground, true) = playground(who) else {
            continue;
        };
        let at = |name: &str| playground.path(name);
        // If the probe ran the script, it would fail.
        let script = at("user_scripts/text-stats-wasi/text_stats.wat");
        fs::write(&script, "not a module").unwrap();
        let ended = playground.cli(&["audit", "text:stats-wasi", "--probe", "--json"]);
        assert_eq!(
            (ended.code, &ended.out["asSaid"]),
            (Some(0), &json!(true)),
            "{who:?} {ended:?}"
        );
        for (action, path, wanted) in [
            ("read", script.clone(), true),
            ("write", script.clone(), false),
            ("read", at("home/.a-secret"), false),
            ("read", at("sandbox-policies/core.policy.toml"), false),
            ("read", at("user_scripts/csv-summary"), false),
            ("read", at("user_scripts/text-stats-wasi-other"), false),
        ] {
            let what = format!("{action} {}", path.display());
            let tried = ended.out["tried"]
                .as_array()
                .unwrap()
                .iter()
                .find(|t| t["what"] == what.as_str());
            assert_eq!(
                tried.unwrap_or_else(|| panic!("{what}: {ended:?}"))["could"],
                wanted,
                "{who:?} {what}"
            );
        }
        // A staged folder takes a file, and nothing of the probe is published.
        let ended = playground.cli(&["audit", "reports:write", "--probe"]);
        let folder = at("user_scripts/report-writer/out");
        if !ended.stderr.contains("needs") && !ended.stderr.contains("python") {
            assert_eq!(ended.code, Some(0), "{who:?} {ended:?}");
            assert!(
                ended
                    .text()
                    .contains(&format!("make a file in {}", folder.display())),
                "{ended:?}"
            );
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        }
        assert_eq!(
            playground
                .cli(&["audit", "core:execute-script", "--probe"])
                .code,
            Some(2)
        );
    }
}

/// An ordinary user's tool is granted a folder that this user cannot list: the probe reports it and
/// fails.
#[test]
fn what_is_not_as_said_is_said_and_fails() {
    if !cfg!(feature = "wasi") || !is_root() {
        return;
    }
    let (playground, true) = playground(Who::User) else {
        return;
    };
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./data/**"]}}});
    let data = playground
        .tool("closed", "wasm", "(module)", asks)
        .join("data");
    fs::create_dir_all(&data).unwrap();
    playground.settle();
    assert_eq!(
        playground.cli(&["audit", "esc:closed", "--probe"]).code,
        Some(0),
        "the control"
    );
    fs::set_permissions(&data, fs::Permissions::from_mode(0o311)).unwrap();
    let ended = playground.cli(&["audit", "esc:closed", "--probe"]);
    let out = ended.text();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(
        out.starts_with("1 of ") && out.contains("attempts were blocked although granted"),
        "{out}"
    );
    let line = out
        .lines()
        .find(|line| line.trim_start().starts_with("FAIL: blocked"))
        .unwrap();
    assert!(
        line.contains("closed/data") && line.contains("EACCES"),
        "{out}"
    );
}

/// What a service manager does: a group of cgroup v2 that belongs to this user, made by root.
struct Delegated(PathBuf);

impl Delegated {
    fn to(uid: u32) -> Delegated {
        let group =
            Path::new("/sys/fs/cgroup").join(format!("toolhost-test-{}", std::process::id()));
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids").unwrap();
        fs::create_dir(&group).unwrap();
        for name in [
            "",
            "cgroup.procs",
            "cgroup.subtree_control",
            "cgroup.threads",
        ] {
            std::os::unix::fs::chown(group.join(name), Some(uid), Some(uid)).unwrap();
        }
        Delegated(group)
    }

    /// `doctor --json` of this user; the shell that joins the group becomes `toolhost`.
    fn doctor(&self, playground: &Playground) -> Value {
        let (uid, group) = (playground.who.uid().unwrap(), self.0.display());
        let become_user = format!("exec setpriv --reuid {uid} --regid {uid} --clear-groups \"$@\"");
        let mut shell = Command::new("/bin/sh");
        shell
            .args([
                "-c",
                &format!("echo 0 > {group}/cgroup.procs && {become_user}"),
                "sh",
            ])
            .current_dir("/");
        shell
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("HOME", playground.path("home"));
        let mut doctor = playground.host_by(shell);
        doctor.args(["doctor", "--json"]);
        finish(doctor, b"").out
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for below in ["toolhost", "toolhost-host", ""] {
            let _ = fs::remove_dir(self.0.join(below));
        }
    }
}

/// A delegated group with the host in it may not hand its controllers down; the host moves itself
/// below, but no other process.
#[test]
fn a_delegated_group_counts_where_the_host_is_alone_in_it() {
    if !is_root() || !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return skipped(1, "delegation needs root, and cgroup v2 alone");
    }
    let playground = shipped::playground(Who::User);
    let group = Delegated::to(playground.who.uid().unwrap());
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(group.0.join("cgroup.procs"), other.id().to_string()).unwrap();
    let beside_another = group.doctor(&playground);
    let stayed = fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(
        beside_another["facts"]["counted"] == false && stayed.trim() == other.id().to_string(),
        "{beside_another}"
    );
    let alone = group.doctor(&playground);
    assert_eq!(
        (&alone["facts"]["counted"], &alone["tier"]),
        (&Value::from(true), &Value::from("A")),
        "{alone}"
    );
    let left = fs::read_dir(group.0.join("toolhost"))
        .unwrap()
        .flatten()
        .filter(|e| e.path().is_dir())
        .count();
    assert_eq!(left, 0, "the groups of its calls are gone");
}

/// Runs a program without one system call, which gets this errno.
const WITHOUT: &str = "
import ctypes, os, struct, sys
call, errno = int(sys.argv[1]), int(sys.argv[2])
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | errno), (0x06, 0, 0, 0x7fff0000)]
steps = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
class Filter(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('steps', ctypes.c_void_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(4, ctypes.addressof(steps))), 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
";
/// openat2(2), and a number that no call has.
const OPENAT2: &str = "437";
const NO_CALL: &str = "4370";
const ENOSYS: &str = "38";
const EPERM: &str = "1";

/// A container's filter may refuse it with either errno. Then no manifest can be loaded.
#[test]
fn a_filter_without_openat2_is_named_with_its_fix() {
    let (playground, true) = playground(Who::ours()) else {
        return;
    };
    let doctor = |call: &str, errno: &str| {
        let mut command = playground.outside(PYTHON);
        command.args(["-I", "-c", WITHOUT, call, errno]);
        let mut command = playground.host_by(command);
        command.args(["doctor", "--json"]);
        finish(command, b"")
    };
    let control = doctor(NO_CALL, ENOSYS);
    assert_eq!(control.code, Some(0), "{control:?}");
    for errno in [ENOSYS, EPERM] {
        let ended = doctor(OPENAT2, errno);
        let report = &ended.out;
        assert_eq!((ended.code, &report["tier"]), (Some(4), &Value::Null));
        assert_eq!(report["refused"]["layer"], "openat2", "{report}");
        let fixes = report["fixes"].to_string();
        assert!(fixes.contains("docker-seccomp.json"), "{fixes}");
    }
}
