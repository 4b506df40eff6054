//! Launchers that are lost or never come up, and what an end means. No tool runs here.

use super::*;
use crate::base::messages;
use crate::executor::process::call::Ready;
use crate::executor::process::examine;
use crate::executor::process::launcher::{Launcher, Process, nonblocking};
use crate::policy::Program;
use crate::sandbox::{grants, identity};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

fn shape() -> Shape {
    let runtime = Runtime {
        language: Language::Python,
        program: Program::Path("/usr/bin/python3".into()),
        arguments: Vec::new(),
        roots: Vec::new(),
        version: String::new(),
        found: String::new(),
    };
    examine::bare(runtime)
}

fn fake() -> (Ready, OwnedFd) {
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.expect("a pair");
    nonblocking(&ours).expect("a socket");
    let control = tokio::net::UnixDatagram::from_std(ours.into()).expect("a socket");
    let setup = setup::of(&shape(), grants::Resolved::default(), &RoleNeeds::default(), None);
    (Ready { launcher: Launcher::new(Process::held(control), setup), relay: None }, theirs)
}

async fn lost(ready: &Ready, meanwhile: impl Future<Output = ()>) -> LauncherError {
    let (shape, started) = (shape(), Instant::now());
    let clock = Clock::new(started, 20_000);
    let (brings, events, secrets) = (CallInput::default(), Events::unheard(), BTreeMap::new());
    let traffic = Mutex::default();
    let call = ready.call(&brings, (b"{}", &secrets), &shape.limits, clock, &events, &traffic);
    let (finished, ()) = tokio::join!(call, meanwhile);
    assert!(started.elapsed() < Duration::from_secs(10), "it waited for the call's limit");
    finished.expect_err("lost")
}

#[tokio::test]
async fn a_lost_launcher_is_told_at_once_though_the_pipes_stay_open() {
    let (launcher, theirs) = fake();
    let mut kept = Vec::new();
    let dies = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (start, pipes) = messages::receive::<ToLauncher>(theirs.as_fd()).expect("a message").expect("one");
        assert!(matches!(start, ToLauncher::Start { timeout_ms: 15_000..=20_000, .. }), "{start:?}");
        kept = pipes;
        drop(theirs);
    };
    let lost = lost(&launcher, dies).await;
    assert!(matches!(&lost, LauncherError::Fault(fault) if fault.retryable && fault.message.contains("lost")));
    assert_eq!(kept.len(), 3);
}

#[tokio::test]
async fn a_launcher_that_was_gone_before_the_call_is_another_matter() {
    let (launcher, theirs) = fake();
    assert!(launcher.waits());
    // The start message was still unread when it died.
    let dies = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(theirs);
    };
    assert!(matches!(lost(&launcher, dies).await, LauncherError::Gone));
    let (launcher, theirs) = fake();
    drop(theirs);
    assert!(!launcher.waits());
    assert!(matches!(lost(&launcher, async {}).await, LauncherError::Gone));
}

/// The caller is told in time, and a launcher that does not see the closed socket is killed.
#[tokio::test]
async fn a_launcher_that_does_not_come_up_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("hangs");
    std::fs::write(&script, "#!/bin/sh\nexec sleep 61.73\n").expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("chmod");
    // Inherited, so that the shell can read it.
    let flags = nix::fcntl::OFlag::O_RDONLY;
    let own = nix::fcntl::open(&script, flags, nix::sys::stat::Mode::empty()).expect("open");
    let scripts = Scripts::new(Arc::new(Launchers::new(own, identity::POOL)));
    let per_call = PerCall { timeout_ms: 200, ..PerCall::default() };
    let confinement = Confinement { shape: shape().into(), per_call };
    let events = crate::executor::Events::unheard();
    let started = Instant::now();
    let fault = scripts.run_once(None, &confinement, b"{}", started, &events).await.expect_err("too late");
    assert!(started.elapsed() < Duration::from_millis(1200), "{:?}", started.elapsed());
    assert_eq!((fault.kind, fault.retryable), (Kind::TimeoutError, true));
    assert!(fault.message.contains("walls of the tool are still being raised"), "{}", fault.message);
    let hangs = || {
        let all = std::fs::read_dir("/proc").expect("proc").flatten();
        let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.starts_with(b"sleep\x0061.73")).count()
    };
    while hangs() > 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "it was not killed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
