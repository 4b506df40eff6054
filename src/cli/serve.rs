//! `toolhost serve --stdio`: the tools for an agent, over MCP.
//!
//! For: an agent that starts us. In: MCP on standard input. Out: MCP on standard output, the run log on
//! standard error. Never: serves whatever folder it happens to be started in: the root must be named.

use super::host;
use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use crate::service::Service;
use crate::service::runlog::Level;
use crate::transport::mcp;
use crate::{registry, sandbox};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Speak MCP on standard input and output
    #[arg(long, required = true)]
    pub stdio: bool,
    /// On whose behalf (else your login name)
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    if settings.root_is_assumed() {
        let words =
            "serve needs --root DIR: agents start servers in folders of their own, which must not become a root";
        return Err(Refusal::new(Exit::Caller, words).into());
    }
    if sandbox::output_was_closed() {
        return Err(Refusal::new(Exit::Host, "standard output is closed: no client could hear an answer").into());
    }
    host::start_log(settings, Level::Warn);
    let user = args.user.unwrap_or_else(host::login);
    let runtime = host::runtime()?;
    let ended = runtime.block_on(async {
        let service = host::service(settings, &host::launchers(settings)?, None)?;
        let stop = CancellationToken::new();
        let serving = mcp::serve(service.clone(), user, tokio::io::stdin(), tokio::io::stdout(), stop.clone(), hung_up);
        tokio::pin!(serving);
        tokio::select! {
            ended = &mut serving => ended.map(|()| Exit::Ok.into()).map_err(|words| Refusal::new(Exit::Host, words).into()),
            signal = host::told_to_stop() => {
                stop.cancel();
                let _ = serving.await;
                anyhow::Ok(signal)
            }
            failed = kept_up(settings, service) => Err(failed.into()),
        }
    });
    // A thread may still wait for standard input; nothing of a call is left.
    runtime.shutdown_background();
    ended
}

/// Which of our ends the client has closed: poll(2) says so of pipes and sockets, also while unread bytes wait.
fn hung_up() -> mcp::HungUp {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let shut = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
    let mut ends = [PollFd::new(input.as_fd(), shut), PollFd::new(output.as_fd(), PollFlags::empty())];
    if poll(&mut ends, PollTimeout::ZERO).is_err() {
        return mcp::HungUp::default();
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    // nix has no flag POLLRDHUP: `revents` is `None` where the kernel sets it.
    let is_gone = |end: &PollFd| end.revents().is_none_or(|seen| seen.intersects(gone));
    mcp::HungUp { input: is_gone(&ends[0]), output: is_gone(&ends[1]) }
}

/// Prepares what tools need ahead of their calls, and reads tools and policies anew at each HUP. Returns only if a
/// reload panics: which rules hold is then unknown, and the server ends.
async fn kept_up(settings: &Settings, service: Arc<Service>) -> Refusal {
    // A HUP that comes during a reload is not lost: it causes one more.
    let mut hangups = signal(SignalKind::hangup()).ok();
    loop {
        let ahead = service.clone();
        let preparing = tokio::spawn(async move {
            for tool in ahead.registry().snapshot().list(&registry::Filter::default()) {
                ahead.prepare(&tool.reference()).await;
            }
        });
        match &mut hangups {
            Some(hangups) => hangups.recv().await,
            None => std::future::pending().await,
        };
        preparing.abort();
        let (settings, service) = (settings.clone(), service.clone());
        if let Err(why) = tokio::task::spawn_blocking(move || host::reload(&settings, &service)).await {
            return Refusal::new(Exit::Host, format!("the reload failed in toolhost itself; please report it: {why}"));
        }
    }
}
