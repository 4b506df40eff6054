//! `doctor` and `audit --probe`: by doing it, as root and as an ordinary user.
//! Where this machine cannot raise the walls, what is checked is that it says so and how it is mended.

use crate::harness::{binary, manifest, script};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of all that is shipped, in a folder anybody can read.
struct Copy {
    folder: tempfile::TempDir,
    /// Run as this uid, when we are root.
    uid: Option<u32>,
}

fn copy(uid: Option<u32>) -> Copy {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().canonicalize().unwrap();
    fs::create_dir(at.join("home")).unwrap();
    fs::write(at.join("home/.a-secret"), "do not tell").unwrap();
    crate::shipped::copy_to(&at);
    // The first call makes it.
    let _ = fs::remove_dir_all(at.join("user_scripts/report-writer/out"));
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&at));
    if let Some(uid) = uid {
        run(Command::new("chown").args(["-R", &format!("{uid}:{uid}")]).arg(&at));
    }
    Copy { folder, uid }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

impl Copy {
    fn at(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn toolhost(&self, arguments: &[&str]) -> (i32, String, String) {
        let at = self.at();
        let mut command = match self.uid {
            None => Command::new(binary()),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--clear-groups"]);
                command.arg(binary());
                command
            }
        };
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", at.join("home"));
        command.env("SECRET_OF_THE_HOST", "do not tell");
        command.arg("--root").arg(&at).args(arguments).current_dir("/");
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

/// Every user this test can be.
fn users() -> Vec<Option<u32>> {
    if nix::unistd::geteuid().is_root() { vec![None, Some(12345)] } else { vec![None] }
}

#[test]
fn the_doctor_says_what_it_tried() {
    for uid in users() {
        let copy = copy(uid);
        let (code, out, err) = copy.toolhost(&["doctor", "--json"]);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{uid:?} {e}: {out}{err}"));
        let (text_code, text, _) = copy.toolhost(&["doctor"]);
        assert_eq!(text_code, code, "{text}");
        assert!(!out.contains("do not tell") && !text.contains("do not tell"), "{text}");
        assert!(report["facts"]["kernel"].is_string());
        let wasmtime = report["wasm"]["wasmtime"].as_str();
        assert_eq!(wasmtime.is_some_and(|version| version.starts_with("48.")), cfg!(feature = "wasi"), "{wasmtime:?}");
        let from = |name: &str| report["settings"].as_array().unwrap().iter().find(|s| s["name"] == name).cloned();
        assert_eq!(from("root").unwrap()["from"], "flag");
        assert_eq!(report["auditLog"]["opens"]["ok"], true, "{report}");
        if report["tier"].is_null() {
            assert_eq!(code, 4);
            assert!(report["refused"]["wall"].is_string(), "{report}");
            assert!(!report["mends"].as_array().unwrap().is_empty(), "{report}");
            eprintln!("no tier A here as {uid:?}: {}", report["refused"]);
            continue;
        }
        assert_eq!((code, report["tier"].as_str()), (0, Some("A")), "{text}");
        assert_eq!(report["walls"].as_array().unwrap().len(), toolhost::sandbox::WALLS.len());
        assert!(report["tried"].as_array().unwrap().len() >= 16);
        let counted = report["facts"]["counted"].as_bool().unwrap();
        let cgroup = report["walls"].as_array().unwrap().iter().find(|w| w["name"] == "cgroup").unwrap();
        assert_eq!(cgroup["state"], if counted { "cgroup" } else { "sampled" });
        let raises = report["mends"].as_array().unwrap().iter().any(|m| m["why"].as_str().unwrap().contains("sampled"));
        assert_eq!(raises, !counted, "what raises it is printed: {report}");
        for runtime in report["runtimes"].as_array().unwrap() {
            assert_eq!(runtime["ran"]["ok"], true, "found means it ran: {runtime}");
        }
        if !report["facts"]["realRoot"].as_bool().unwrap() {
            assert!(report["facts"]["identity"].as_str().unwrap().contains("the one id there is"), "{report}");
        }
    }
}

#[test]
fn the_probe_proves_a_confinement_and_never_runs_the_script() {
    if !cfg!(feature = "wasi") {
        return;
    }
    for uid in users() {
        let copy = copy(uid);
        let at = copy.at();
        // Would leave a mark in its private copy, and fail.
        fs::write(at.join("user_scripts/text-stats-wasi/text_stats.wat"), "not a module").unwrap();
        if copy.toolhost(&["doctor"]).0 != 0 {
            eprintln!("no tier A here as {uid:?}");
            continue;
        }
        let (code, out, err) = copy.toolhost(&["audit", "text:stats-wasi", "--probe", "--json"]);
        assert_eq!(code, 0, "{uid:?} {out}{err}");
        let proof: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(proof["asSaid"], true);
        let came = |what: String| {
            let tried = proof["tried"].as_array().unwrap().iter().find(|t| t["what"] == what.as_str());
            tried.unwrap_or_else(|| panic!("{what}: {out}"))["could"].as_bool().unwrap()
        };
        let script = at.join("user_scripts/text-stats-wasi/text_stats.wat");
        assert!(came(format!("read {}", script.display())), "the control");
        assert!(!came(format!("write {}", script.display())));
        assert!(!came(format!("read {}", at.join("home/.a-secret").display())));
        assert!(!came(format!("read {}", at.join("sandbox-policies/core.policy.toml").display())));
        assert!(!came(format!("read {}", at.join("user_scripts/csv-summary").display())));
        assert!(!came(format!("read {}-other", script.parent().unwrap().display())));

        // A staged folder takes a file, and nothing of the probe is published.
        let (code, out, err) = copy.toolhost(&["audit", "reports:write", "--probe"]);
        let folder = at.join("user_scripts/report-writer/out");
        if !err.contains("needs") && !err.contains("python") {
            assert_eq!(code, 0, "{uid:?} {out}{err}");
            assert!(out.contains(&format!("make a file in {}", folder.display())), "{out}");
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        }
        let (code, _, err) = copy.toolhost(&["audit", "core:execute-script", "--probe"]);
        assert_eq!(code, 2, "{err}");
    }
}

#[test]
fn what_is_not_as_said_is_said_and_fails() {
    if !cfg!(feature = "wasi") || !nix::unistd::geteuid().is_root() {
        return;
    }
    // An ordinary user's tool is granted a folder that this user cannot list: granted, and yet it could not.
    let copy = copy(Some(12345));
    let data = copy.at().join("user_scripts/closed/data");
    fs::create_dir_all(&data).unwrap();
    let tool = copy.at().join("user_scripts/closed");
    fs::write(tool.join("closed.wat"), "(module)").unwrap();
    let manifest = manifest(
        "test:closed",
        script("closed.wat", "wasm"),
        json!({"securityContext": {"fileAccess": {"allowRead": ["./data/**"]}}}),
    );
    fs::write(tool.join("closed.tool.json"), manifest.to_string()).unwrap();
    if copy.toolhost(&["doctor"]).0 != 0 {
        return;
    }
    assert_eq!(copy.toolhost(&["audit", "test:closed", "--probe"]).0, 0, "the control");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o311)).unwrap();
    let (code, out, err) = copy.toolhost(&["audit", "test:closed", "--probe"]);
    assert_eq!(code, 4, "{out}{err}");
    assert!(out.starts_with("1 of ") && out.contains("attempts were blocked although granted"), "{out}");
    let line = out.lines().find(|line| line.trim_start().starts_with("FAIL: blocked")).unwrap();
    assert!(line.contains("closed/data") && line.contains("EACCES"), "{out}");
}

#[test]
fn policies_that_do_not_load_are_a_failure_of_their_own() {
    let copy = copy(None);
    if copy.toolhost(&["doctor"]).0 != 0 {
        return;
    }
    fs::write(copy.at().join("sandbox-policies/x.policy.toml"), "surprise = 1\n").unwrap();
    let (code, out, err) = copy.toolhost(&["doctor"]);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("the policies do not load") && out.contains("toolhost check"), "{out}");
    assert!(out.contains("x.policy.toml:1:1: /surprise: unknown key"), "{out}");
    let (code, out, _) = copy.toolhost(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["policies"]["ok"], &report["tier"]), (3, &Value::from(false), &Value::from("A")));
}

/// What a service manager does: a group of cgroup v2 that belongs to this user, made by root.
struct Delegated(PathBuf);

impl Delegated {
    fn to(uid: u32) -> Delegated {
        let group = Path::new("/sys/fs/cgroup").join(format!("toolhost-test-{}", std::process::id()));
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids").unwrap();
        fs::create_dir(&group).unwrap();
        for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            std::os::unix::fs::chown(group.join(name), Some(uid), Some(uid)).unwrap();
        }
        Delegated(group)
    }

    /// `doctor --json` of this copy, as its user; the shell that joins the group becomes `toolhost`.
    fn doctor(&self, copy: &Copy) -> Value {
        let (at, uid) = (copy.at(), copy.uid.unwrap());
        let script = format!(
            "echo 0 > {}/cgroup.procs && exec setpriv --reuid {uid} --regid {uid} --clear-groups {} --root {} doctor --json",
            self.0.display(),
            binary().display(),
            at.display()
        );
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).current_dir("/").env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", at.join("home"));
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for below in ["toolhost", "toolhost-host", ""] {
            let _ = fs::remove_dir(self.0.join(below));
        }
    }
}

/// A delegated group with the host in it may not hand its controllers down; the host steps aside for that,
/// but moves nobody else.
#[test]
fn a_delegated_group_counts_where_the_host_is_alone_in_it() {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    if !nix::unistd::geteuid().is_root() || !unified {
        println!("SKIPPED delegation: it needs root, and cgroup v2 alone");
        return;
    }
    let copy = copy(Some(12345));
    let group = Delegated::to(12345);
    let shared = |pid: u32| fs::write(group.0.join("cgroup.procs"), pid.to_string()).unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    shared(other.id());
    let beside_another = group.doctor(&copy);
    let stayed = fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(beside_another["facts"]["counted"], false, "{beside_another}");
    assert_eq!(stayed.trim(), other.id().to_string());
    let alone = group.doctor(&copy);
    assert_eq!((&alone["facts"]["counted"], &alone["tier"]), (&Value::from(true), &Value::from("A")), "{alone}");
    let left = fs::read_dir(group.0.join("toolhost")).unwrap().flatten().filter(|e| e.path().is_dir()).count();
    assert_eq!(left, 0, "the groups of its calls are gone");
}
