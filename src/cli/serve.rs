//! `toolhost serve`: the tools over MCP on standard input and output, over HTTP and over brokers.
//!
//! `--root` is required, because an agent starts this process in a folder of the agent's own.

use super::host::{self, Reload};
use super::refusal::{Exit, Refusal};
use super::settings::{self, Settings};
use super::watch::{Mode, Watch};
use super::{process, sources, words};
use crate::base::files::{self, Folder};
use crate::base::text;
use crate::service::background::{self, Background};
use crate::service::runlog;
use crate::service::source_orders::ObeyedOrders;
use crate::service::{self, Caller, Service};
use crate::transport::announced::{self, Announcements};
use crate::transport::broker::{BrokerSettings, Brokers};
use crate::transport::responses::ModelServer;
use crate::transport::{self, http, mcp};
use crate::{registry, sandbox};
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Speak MCP on standard input and output
    #[arg(long)]
    pub stdio: bool,
    /// The user to call for: recorded as a label; an identity where callers.policy.toml lets you
    /// act as that user
    #[arg(long, value_name = "NAME", requires = "stdio", value_parser = service::user_name)]
    pub user: Option<String>,
    /// Speak HTTP at ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = http::Address::parse)]
    #[arg(num_args = 0..=1, default_missing_value = "127.0.0.1:8787")]
    pub http: Option<http::Address>,
    /// Callers over HTTP present a token whose hash is in this file (`toolhost token NAME` makes
    /// one)
    #[arg(long, value_name = "FILE", requires = "http")]
    pub token_file: Option<PathBuf>,
    /// Certificate chain (PEM) for HTTPS
    #[arg(long, value_name = "FILE", requires_all = ["http", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Allow unencrypted tokens and answers, because something else encrypts
    #[arg(long, requires = "http", conflicts_with = "tls_cert")]
    pub insecure: bool,
    /// List tools over MCP with short descriptions and without the schemas of their outputs
    #[arg(long)]
    pub lean: bool,
    /// List over MCP only core:search-tools and core:call-tool, by which all tools are found and
    /// called
    #[arg(long)]
    pub lazy: bool,
    /// How changes of tools and policies are noticed
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub watch: Mode,
}

impl Args {
    /// What lists over MCP say of tools.
    fn style(&self) -> mcp::ListStyle {
        mcp::ListStyle {
            is_lean: self.lean,
            is_lazy: self.lazy,
        }
    }
}

/// Why no client could call a server with these arguments.
fn unusable(settings: &Settings, args: &Args) -> Option<Refusal> {
    let (exit, words) = if settings.root_is_assumed() {
        let words = "serve needs --root DIR: agents start servers in folders of their own, which \
            must not become a root";
        (Exit::Caller, words)
    } else if !args.stdio && args.http.is_none() && settings.brokers.is_empty() {
        (
            Exit::Caller,
            "serve needs --stdio, --http or a [[broker]] in the config file: without one no client \
            can call",
        )
    } else if args.stdio && sandbox::output_was_closed() {
        (
            Exit::Host,
            "standard output is closed: no client could read an answer",
        )
    } else {
        return None;
    };
    Some(Refusal::new(exit, words))
}

pub fn run(mut settings: Settings, args: Args) -> anyhow::Result<ExitCode> {
    if let Some(why) = unusable(&settings, &args) {
        return Err(why.into());
    }
    let style = args.style();
    runlog::init(settings.log_style(LevelFilter::WARN), true);
    let http = &mut settings.config.http;
    for (flag, setting) in [
        (args.token_file, &mut http.token_file),
        (args.tls_cert, &mut http.tls_cert),
        (args.tls_key, &mut http.tls_key),
    ] {
        *setting = flag
            .map(std::path::absolute)
            .transpose()?
            .or(setting.take());
    }
    if args.stdio {
        words::waits_for("an MCP client");
    }
    let client = mcp::Client {
        caller: Caller::operator(host::login()),
        label: args.user,
    };
    let runtime = if args.http.is_none() && settings.brokers.is_empty() {
        process::single_threaded_runtime()?
    } else {
        process::runtime()?
    };
    let ended = runtime.block_on(async {
        // Bind before anything else: an address in use is the most common fault.
        let mut listening = match &args.http {
            Some(address) => Some(listening(&settings, address, args.insecure, style).await?),
            None => None,
        };
        let entries: Vec<BrokerSettings> = settings.brokers.iter().map(|broker| broker.entry.clone()).collect();
        let since = SystemTime::now();
 let hangups = signal(SignalKind::hangup()).ok();
        let service = host::service(&settings, host::launchers(&settings)?, None)?;
        if let Some((listener, options)) = &listening {
            say_where(&service, listener, options)?;
        }
        if args.stdio {
            say_nothing_to_call(&service, &client);
        }
        let ended = async {
            let keeper = service.ready.clone();
            let sessions = service.sessions.clone();
            let catalog = service.catalog.clone();
            let audit = service.audit.clone();
            sessions.open();
            let keeping = tokio::spawn(async move {
                tokio::join!(keeper.run(), sessions.run(), catalog.follow_stops(), audit.watch());
            });
            let watch = Watch::new(args.watch, &settings);
            let stop = CancellationToken::new();
     let kill = CancellationToken::new();
            let (told, answering) = over_brokers(&settings, &entries, &service, &stop, &kill).await?;
            listening.iter_mut().for_each(|(_, options)| (options.brokers, options.announced) = told.clone());
            let background = background(&service, &settings, listening.is_some());
            let mcp = mcp::Mcp::new(service.clone(), background.clone(), style);
            let spoken = over_stdio(args.stdio, mcp, client, stop.clone());
            let served = over_http(listening, background.clone(), stop.clone(), kill.child_token());
            tokio::pin!(spoken, served);
            let signal = tokio::select! {
                ended = &mut spoken => ended.map(|()| None)?,
                ended = &mut served => return ended.map(|()| Exit::Ok.into()),
                signal = process::wait_for_termination() => Some(signal),
                failed = reload_on_change(&settings, service.clone(), watch, since, hangups) => return Err(failed.into()),
            };
            stop.cancel();
            keeping.abort();
            service.ready.close();
            service.sessions.close();
            // After a second signal, running calls are killed.
            let rest = async {
                if signal.is_some() {
                    let _ = spoken.await;
                }
                let (served, _) = tokio::join!(served, answering.join_all());
                served
            };
            let ended = tokio::select! {
                ended = rest => ended,
                never = wait_for_second_stop(&kill) => match never {},
            };
            ended?;
            if let Some(background) = background {
                background.stop().await;
            }
            anyhow::Ok(signal.unwrap_or(Exit::Ok.into()))
        };
        let ended = ended.await;
        service.close().await;
        ended
    });
    // A thread may still wait for standard input; nothing of a call is left.
    runtime.shutdown_background();
    ended
}

/// Kills the running calls at a second signal.
async fn wait_for_second_stop(kill: &CancellationToken) -> Infallible {
    process::wait_for_stop().await;
    kill.cancel();
    std::future::pending().await
}

type OverBrokers = (Arc<Brokers>, Arc<Announcements>);

/// Serves over brokers, announces the served tools, and receives the announcements of others.
/// Returns the tasks.
async fn over_brokers(
    settings: &Settings,
    entries: &[BrokerSettings],
    service: &Arc<Service>,
    stop: &CancellationToken,
    kill: &CancellationToken,
) -> anyhow::Result<(OverBrokers, JoinSet<()>)> {
    let (brokers, mut tasks) = Brokers::open(entries, service, stop, kill);
    say_brokers(service, entries);
    fn refuse(why: String) -> Refusal {
        Refusal::new(Exit::Host, why)
    }
    let own = entries
        .iter()
        .filter_map(|entry| Some(entry.announce.as_ref()?.name.clone()))
        .collect();
    let announced = Announcements::open(&settings.announced(), own, service, stop, &mut tasks)
        .await
        .map_err(refuse)?;
    announced::announce(entries, service, stop, &mut tasks)
        .await
        .map_err(refuse)?;
    Ok(((brokers, announced), tasks))
}

/// Serves MCP until the client closes its end. Without `--stdio`, waits for the stop.
async fn over_stdio(
    wanted: bool,
    mcp: Arc<mcp::Mcp>,
    client: mcp::Client,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if !wanted {
        stop.cancelled().await;
        return Ok(());
    }
    let served = mcp::serve(
        mcp,
        client,
        standard_input(),
        standard_output()?,
        stop,
        || transport::takes_no_more(std::io::stdout().as_fd()),
    );
    served
        .await
        .map_err(|words| Refusal::new(Exit::Host, words).into())
}

/// A pipe is opened once more, to be read without a thread that waits for it: the open file itself
/// may be shared with processes that expect to wait at it.
fn standard_input() -> Box<dyn AsyncRead + Send + Unpin> {
    match pipe::OpenOptions::new().open_receiver("/proc/self/fd/0") {
        Ok(input) => Box::new(input),
        Err(_) => Box::new(tokio::io::stdin()),
    }
}

/// As `standard_input`. Else a file: `tokio::io::Stdout` hands a line to another thread once to
/// write it and once more to flush it.
fn standard_output() -> std::io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
    if let Ok(output) = pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
        return Ok(Box::new(output));
    }
    let output = std::io::stdout().as_fd().try_clone_to_owned()?;
    Ok(Box::new(tokio::fs::File::from_std(output.into())))
}

/// The calls in the background: those of a server over HTTP outlive it. Others keep them as long as
/// they run, where a tool has such calls.
fn background(
    service: &Arc<Service>,
    settings: &Settings,
    is_http: bool,
) -> Option<Arc<Background>> {
    if is_http {
        let proxy = settings.config.proxy.clone();
        return Some(background::stored(service.clone(), proxy));
    }
    let tools = service.catalog.registry.snapshot();
    let mut tools = tools.list(&registry::Filter::default()).into_iter();
    if !tools.any(|tool| tool.manifest.execution.asynchronous) {
        return None;
    }
    background::in_memory(service.clone())
        .inspect_err(|why| refuse_background(why))
        .ok()
}

fn refuse_background(why: &str) {
    let why = text::printable(why);
    words::fail(&format!(
        "toolhost: calls in the background are refused until this is corrected: {why}"
    ));
}

async fn over_http(
    listening: Option<(http::Listener, http::Options)>,
    background: Option<Arc<Background>>,
    stop: CancellationToken,
    kill: CancellationToken,
) -> anyhow::Result<()> {
    let (Some((listener, options)), Some(background)) = (listening, background) else {
        stop.cancelled().await;
        return Ok(());
    };
    if let Err(why) = background.open_store().await {
        refuse_background(&why);
    }
    Ok(http::serve(listener, options, background, stop, kill).await?)
}

/// Binds the socket, loads its callers.
async fn listening(
    settings: &Settings,
    address: &http::Address,
    insecure: bool,
    style: mcp::ListStyle,
) -> anyhow::Result<(http::Listener, http::Options)> {
    fn refuse(why: String) -> Refusal {
        Refusal::new(Exit::Host, why)
    }
    let told = &settings.config.http;
    let tokens = told
        .token_file
        .as_deref()
        .map(http::Tokens::open)
        .transpose()
        .map_err(refuse)?
        .map(Arc::new);
    let jwt = told.jwt.as_ref().map(|terms| {
        let at = |why: String| format!("[http.jwt] {}: {why}", terms.keys.display());
        let keys = settings::guarded_text(&terms.keys).map_err(at)?;
        http::Jwt::new(terms, &keys).map_err(at)
    });
    let jwt = jwt.transpose().map_err(refuse)?;
    let callers = match (tokens, jwt) {
        (None, None) if !files::is_me(nix::unistd::geteuid().as_raw()) => {
            let why = "this user has no id of its own in this user namespace, so connections of \
                       others look like its own: add --token-file FILE (`toolhost token NAME` \
                       makes one), or map the id of this user";
            return Err(refuse(why.to_owned()).into());
        }
        (None, None) => http::Callers::Own(host::login()),
        (tokens, jwt) => http::Callers::Presented {
            tokens,
            jwt: jwt.map(Box::new),
        },
    };
    let tls = match (&told.tls_cert, &told.tls_key) {
        (Some(certificate), Some(key)) => Some(http::tls(certificate, key).map_err(refuse)?),
        (None, None) => None,
        _ => {
            return Err(
                refuse("[http] names one of tls_cert and tls_key: name both".to_owned()).into(),
            );
        }
    };
    http::check_exposure(address, &callers, tls.is_some() || insecure)
        .map_err(|why| Refusal::new(Exit::Caller, why))?;
    let listener = http::Listener::bind(address).await.map_err(refuse)?;
    let names = http::ServerNames {
        hosts: told.hosts.clone(),
        origins: told.origins.clone(),
    };
    let uploads = settings.scripts.first().cloned();
    Ok((
        listener,
        http::Options {
            callers,
            names,
            tls,
            brokers: Arc::default(),
            announced: Arc::default(),
            model: settings
                .servers
                .model
                .clone()
                .map(|(model, _)| Arc::new(ModelServer::new(model))),
            style,
            uploads: uploads.unwrap_or_else(|| settings.root.join("user_scripts")),
            page: told.page.unwrap_or(true),
        },
    ))
}

/// Prints where the server listens and for whom, and which callers are not operators although a
/// token, JWT or login says so.
fn say_where(
    service: &Service,
    listener: &http::Listener,
    options: &http::Options,
) -> anyhow::Result<()> {
    for caller in options
        .callers
        .operators()
        .into_iter()
        .filter(|caller: &Caller| !service.catalog.who(caller, None).operator)
    {
        let words = "callers.policy.toml alone says who is one, not a token, JWT or login";
        words::note(&format!(
            "toolhost: {} is not an operator: {words}",
            text::printable(&caller.user)
        ));
    }
    let address = listener.address()?;
    if let http::Address::Unix(socket) = &address
        && let Some(Err(why)) = std::path::absolute(socket)?.parent().map(Folder::open)
    {
        let why = text::printable(&why.to_string());
        words::note(&format!(
            "toolhost: other users can replace this socket with one of theirs: {why}"
        ));
    }
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    words::note(&format!(
        "toolhost: serving {scheme} at {address} {}",
        options.callers.describe()
    ));
    Ok(())
}

/// Warns where the client on standard input has no tool to call.
fn say_nothing_to_call(service: &Service, client: &mcp::Client) {
    let who = service.catalog.who(&client.caller, client.label.as_deref());
    if service.tools(&who).is_ok_and(|tools| tools.is_empty()) {
        let words =
            "the caller on standard input, may call no tool: callers.policy.toml grants none";
        words::note(&format!(
            "toolhost: {}, {words}",
            text::printable(&who.user)
        ));
    }
}

/// Prints what is served over brokers, and what cannot be called.
fn say_brokers(service: &Service, entries: &[BrokerSettings]) {
    for entry in entries {
        let caller = Caller::named(entry.caller.clone());
        for tool in &entry.tools {
            let found = service
                .catalog
                .find(&caller, tool)
                .ok()
                .filter(|tool| service.catalog.can_call(&caller, tool));
            let shown = text::printable(tool);
            let caller = text::printable(&caller.user);
            match found {
                None => words::fail(&format!(
                    "toolhost: {shown} cannot be called now by {caller}, whom [[broker]] names"
                )),
                Some(tool)
                    if entry.idempotent.contains(&tool.manifest.id)
                        && !tool.manifest.idempotent =>
                {
                    let words = "is idempotent in [[broker]] and not in its manifest: it is not \
                        run again after a loss";
                    words::fail(&format!("toolhost: {shown} {words}"));
                }
                Some(_) => {}
            }
        }
        words::note(&format!(
            "toolhost: serving {} at {}",
            entry.request, entry.terms
        ));
    }
}

/// Prepares what tools need ahead of their calls, and reads tools and policies again when they
/// change, when an operator orders it and at each HUP. `since`: when they were read first. `hangups`: SIGHUPs since then; one
/// during a reload causes one more. Returns only if a reload panics: which rules hold is then
/// unknown, and the server ends.
async fn reload_on_change(
    settings: &Settings,
    service: Arc<Service>,
    mut watch: Watch,
    mut since: SystemTime,
    mut hangups: Option<Signal>,
) -> Refusal {
    let mut orders = ObeyedOrders::begin(service.audit.path());
    let mut with_added = settings.clone();
    loop {
        let ahead = service.clone();
        let preparing = tokio::spawn(async move {
            for tool in ahead
                .catalog
                .registry
                .snapshot()
                .list(&registry::Filter::default())
            {
                ahead.catalog.prepare(&tool.reference()).await;
            }
        });
        let again = with_added.clone();
        let snapshot = service.catalog.registry.snapshot();
        let looking = tokio::task::spawn_blocking(move || {
            let missed = watch.follow(&again, snapshot, since);
            tracing::info!("{}", watch.describe());
            (watch, missed)
        });
        let missed;
        (watch, missed) = match looking.await {
            Ok(watching) => watching,
            Err(why) => return failed(&why),
        };
        let hung_up = async {
            match &mut hangups {
                Some(hangups) => hangups.recv().await,
                None => std::future::pending().await,
            }
        };
        let because = tokio::select! {
            biased;
            _ = hung_up => Reload::Requested,
            () = watch.changed(), if !missed => Reload::FileChanged,
            () = orders.changed() => Reload::FileChanged,
            () = std::future::ready(()), if missed => Reload::FileChanged,
        };
        preparing.abort();
        since = SystemTime::now();
        with_added = sources::with_added(settings, &orders);
        let settings = with_added.clone();
        let service = service.clone();
        if let Err(why) =
            tokio::task::spawn_blocking(move || host::reload(&settings, &service, because)).await
        {
            return failed(&why);
        }
    }
}

fn failed(why: &tokio::task::JoinError) -> Refusal {
    Refusal::new(
        Exit::Host,
        format!("the reload failed in toolhost itself; please report it: {why}"),
    )
}
