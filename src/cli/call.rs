//! `toolhost call TOOL[@RANGE] [name=value]…`: one call, its output as JSON on standard output.
//!
//! An interrupt ends the tool. A pipe on standard input that stays silent counts as no input.

use super::parts::{self, Files};
use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{files, host, process, terminal, words};
use crate::base::files as open_files;
use crate::base::text::{self, printable};
use crate::executor::{Denial, ToolAnswer};
use crate::fault::{Fault, Kind};
use crate::registry;
use crate::service::{
    self, Answer, Approver, Arguments, Ask, BroughtFile, CallRequest, Caller, Event, LIMIT,
    Question, Report, Reporting, Service, Sink, Verbose,
};
use anyhow::Context;
use futures_util::future::BoxFuture;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::termios::{FlushArg, tcflush};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Largest input that is read, bytes; the tool's own limit is smaller.
const MAX_INPUT_BYTES: u64 = 64 * 1024 * 1024;
/// How long a pipe may be silent before it counts as one without a writer, milliseconds.
const SILENCE_MS: u16 = 1000;
/// The beginning of a word that brings a file.
const BRINGS: &str = "file=@";
/// Most requests that stand before what was refused.
const MAX_LEADING: usize = 5;
/// How often a terminal is shown that a call still runs.
const TICK: Duration = Duration::from_secs(1);
/// Lines of a log that may wait to be shown.
const LINES: usize = 64;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    pub tool: String,
    /// Arguments by name; text is converted to the type the parameter asks for. file=@PATH brings a
    /// file, which lies in /tmp/call/input of the call; NAME=@PATH does, where the manifest says
    /// that the parameter NAME holds a file
    #[arg(value_name = "NAME=VALUE")]
    pub pairs: Vec<String>,
    /// Arguments as one JSON object: the text itself, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub input: Option<String>,
    /// The user to call for: recorded as a label; an identity where callers.policy.toml lets you
    /// act as that user
    #[arg(long, value_name = "NAME", value_parser = service::user_name)]
    pub user: Option<String>,
    /// Time limit of this call, within what policy allows
    #[arg(long, value_name = "N")]
    pub timeout_ms: Option<u64>,
    /// Print the whole outcome as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the pictures, sounds and files of the answer into this folder, as new files
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Write the files that the call leaves in /tmp/call/output into this folder, as new files
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Show what the tool was refused (files, system calls, hosts), and how to request each
    #[arg(long)]
    pub explain: bool,
    /// Also show the command, its input, output and log, what it could touch, and how long each
    /// stage took, on standard error
    #[arg(long)]
    pub verbose: bool,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    host::start_verb(settings);
    let runtime = process::single_threaded_runtime()?;
    let given = runtime.block_on(process::unless_stopped(read_input_apart(args.clone())));
    let given = match given {
        Ok(given) => given?,
        Err(signal) => {
            return Ok(exit_interrupted(
                &args,
                &not_begun(&args.tool, service::output::cancelled()),
                signal,
            ));
        }
    };
    let id = service::new_id();
    let files = brought(&args.pairs)?;
    let request = CallRequest {
        files,
        id: Some(id.clone()),
        label: args.user.clone(),
        timeout_ms: args.timeout_ms,
        reporting: Reporting {
            explain: args.explain,
            verbose: args.verbose,
            ..reporting()
        },
        ..request(&args.tool, given)
    };
    if let Some(folder) = &args.output_dir {
        std::fs::create_dir_all(folder).with_context(|| text::path(folder))?;
    }
    let ended = runtime.block_on(async {
        let mut launchers = host::launchers(settings)?;
        // A launcher, and what else takes time, starts while the host is made.
        launchers.sandbox.begin(
            std::fs::metadata(&settings.root)
                .ok()
                .map(|facts| (facts.uid(), facts.gid())),
        );
        registry::Builtin::begin();
        let service = host::service_of_one_call(settings, launchers, Some(words::note))?;
        let request = match with_own_files(&service, request) {
            Ok(request) => request,
            Err(why) => {
                service.close().await;
                return Err(why);
            }
        };
        let mut signal = None;
        let over = async {
            signal = Some(process::wait_for_stop().await);
            service::output::cancelled()
        };
        let (report, live) = shown_live(&service, request, args.verbose, over).await;
        let folder = args.output_dir.as_ref();
        let written = folder.map(|folder| files::write(&service, &report, folder));
        service.close().await;
        anyhow::Ok((report, live, signal, written))
    });
    runtime.shutdown_timeout(process::SHUTDOWN_TIMEOUT);
    let (report, live, signal, written) = ended?;
    let report = if args.explain {
        report
    } else {
        report.for_agents()
    };
    match signal {
        None => {
            let shown = show(&args, &report, &live)?;
            let Some(Err(e)) = written else {
                return Ok(shown);
            };
            words::note(&format!("The call ran; its files are not all written: {e}"));
            Ok(Exit::Host.into())
        }
        Some(signal) => Ok(exit_interrupted(&args, &report, signal)),
    }
}

/// A call by this process's own user.
pub(super) fn request(tool: &str, arguments: Arguments) -> CallRequest {
    let request = CallRequest::new(Caller::operator(host::login()), tool, arguments);
    CallRequest {
        approver: approver(),
        reporting: reporting(),
        ..request
    }
}

fn reporting() -> Reporting {
    Reporting {
        at_machine: true,
        trace: host::trace(),
        ..Reporting::default()
    }
}

/// Runs one call. `verbose`: shows lines of the tool's log as they are written. Returns those that
/// were shown.
async fn shown_live(
    service: &Service,
    request: CallRequest,
    verbose: bool,
    over: impl Future<Output = Fault>,
) -> (Report, Vec<String>) {
    let terminal = io::stderr().is_terminal();
    if !verbose && !terminal {
        let report = service.call_unless(request, Sink::none(), over).await;
        return (report, Vec::new());
    }
    let (sink, mut events) = Sink::new(LINES);
    let (tool, began) = (request.tool.clone(), Instant::now());
    terminal::begin();
    fn show(name: &str, line: &str) {
        let mut out = String::new();
        words::line(&mut out, name, line);
        words::note(out.trim_end());
    }
    let lines = async {
        let mut live = Vec::new();
        loop {
            let event = match tokio::time::timeout(TICK, events.recv()).await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => {
                    terminal::still(&format!("{tool}: {} s", began.elapsed().as_secs()));
                    continue;
                }
            };
            match event {
                Event::Log(line) if verbose => {
                    show("log", &line);
                    live.push(line);
                }
                Event::Part(part) if verbose => show("chunk", &part),
                Event::Message(level, line) if verbose => {
                    words::note(&format!(
                        "{}: {line}",
                        json!(level).as_str().unwrap_or_default()
                    ));
                    live.push(line);
                }
                Event::Preparing(line) if verbose => words::note(&format!("toolhost: {line}")),
                Event::Preparing(line) => {
                    terminal::progress(&line);
                }
                Event::Progress(told) => {
                    words::note(&format!("toolhost: {}", words::progress(&told)))
                }
                Event::Log(_) | Event::Message(..) | Event::Part(_) | Event::Shown(..) => {}
            }
        }
        live
    };
    let ended = tokio::join!(service.call_unless(request, sink, over), lines);
    terminal::end_progress();
    ended
}

fn exit_interrupted(args: &Args, report: &Report, signal: ExitCode) -> ExitCode {
    words::note("toolhost: interrupted; the call was cancelled");
    if args.json {
        say_report(report);
    }
    signal
}

/// The outcome of a call that never reached the service.
pub fn not_begun(tool: &str, fault: Fault) -> Report {
    let mut report = Report::of_fault(service::new_id(), tool, fault);
    report
        .notes
        .push("no call was begun, so the audit log has no record of this".to_owned());
    report
}

async fn read_input_apart(args: Args) -> anyhow::Result<Arguments> {
    let text = args
        .input
        .as_deref()
        .is_some_and(|input| input != "-" && !input.starts_with('@'));
    if text || args.input.is_none() && !args.pairs.is_empty() {
        return read_arguments(&args);
    }
    process::apart(move || read_arguments(&args)).await
}

fn read_arguments(args: &Args) -> anyhow::Result<Arguments> {
    let pairs = pairs(&args.pairs)?;
    Ok(match (&args.input, pairs.is_empty()) {
        (Some(_), false) => {
            return Err(caller(
                "give the arguments either as name=value or with --input, not both",
            )
            .into());
        }
        (None, false) => Arguments::Strings(pairs),
        (None, true) if !args.pairs.is_empty() => Arguments::Strings(pairs),
        (Some(input), true) => match (input.as_str(), input.strip_prefix('@')) {
            ("-", _) => {
                words::waits_for("the arguments");
                Arguments::Text(text(io::stdin().lock(), "standard input")?)
            }
            (_, Some("")) => {
                return Err(caller("--input @ names no file: write --input @FILE").into());
            }
            (_, Some(file)) => Arguments::Text(file_text(file)?),
            (json, None) if json.trim().is_empty() => {
                return Err(caller("--input is empty; {} is an empty input").into());
            }
            (json, None) => Arguments::Text(json.to_owned()),
        },
        (None, true) => Arguments::Text(read_stdin()?),
    })
}

/// Standard input, if it is neither a terminal nor an open pipe that stays silent.
fn read_stdin() -> anyhow::Result<String> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(String::new());
    }
    let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut watched, PollTimeout::from(SILENCE_MS));
    match (ready, watched[0].revents()) {
        (Ok(0), _) => {
            let what = "standard input is an open pipe, and nothing came for a second";
            words::note(&format!(
                "toolhost: {what}: called with {{}} (--input - waits)"
            ));
            Ok(String::new())
        }
        (Ok(_), Some(events)) if events.intersects(PollFlags::POLLNVAL | PollFlags::POLLERR) => {
            Ok(String::new())
        }
        _ => text(stdin.lock(), "standard input"),
    }
}

pub(super) fn file_text(file: &str) -> anyhow::Result<String> {
    let shown = printable(file);
    text(
        std::fs::File::open(file).map_err(|e| caller(format!("{shown}: {e}")))?,
        &shown,
    )
}

pub(super) fn text(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_INPUT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| caller(format!("{name}: {e}")))?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(caller(format!("{name}: more than {MAX_INPUT_BYTES} bytes")).into());
    }
    let text = text::decode(&bytes).map_err(|why| caller(format!("{name}: {why}")))?;
    Ok(text.to_owned())
}

/// The files that the command line brings: this process opens them, and no other path of a request.
fn brought(words: &[String]) -> anyhow::Result<Vec<BroughtFile>> {
    let paths = words.iter().filter_map(|word| word.strip_prefix(BRINGS));
    paths.map(|path| bring("file", path)).collect()
}

fn bring(parameter: &str, path: &str) -> anyhow::Result<BroughtFile> {
    let failed = |e: io::Error| caller(format!("{}: {e}", printable(path)));
    let file = crate::base::files::open(Path::new(path), OFlag::empty()).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(caller(format!("{}: it is not a regular file", printable(path))).into());
    }
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default().to_owned();
    Ok(BroughtFile::from_file(parameter, name, file, facts.len()))
}

/// The files in `name=@path`, where the tool's own parameter of this name holds one.
fn with_own_files(service: &Service, mut request: CallRequest) -> anyhow::Result<CallRequest> {
    let Arguments::Strings(given) = &mut request.arguments else {
        return Ok(request);
    };
    let tool = service.catalog.registry.snapshot().find(&request.tool);
    // The call says why the tool is unknown.
    for (name, _) in tool.iter().flat_map(|tool| tool.manifest.file_parameters()) {
        if let Some(path) = given.get(name).and_then(|text| text.strip_prefix('@')) {
            request.files.push(bring(name, path)?);
            given.remove(name);
        }
    }
    for (name, text) in given {
        let path = text.strip_prefix('@').unwrap_or_default();
        if Path::new(path).is_file() {
            words::note(&format!(
                "toolhost: '{}' does not hold a file, so it is the text '@{}' (--input @FILE reads all \
                 arguments from a file, as JSON)",
                printable(name),
                printable(path)
            ));
        }
    }
    Ok(request)
}

fn pairs(words: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut pairs = BTreeMap::new();
    for word in words.iter().filter(|word| !word.starts_with(BRINGS)) {
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(caller(format!(
                "'{}' is not name=value (JSON is given as --input JSON)",
                printable(word)
            ))
            .into());
        };
        if pairs.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(caller(format!("'{}' is given twice", printable(name))).into());
        }
    }
    Ok(pairs)
}

fn caller(words: impl Into<String>) -> Refusal {
    Refusal::from_fault(&Fault::new(Kind::ParameterValidationError, words))
}

fn say_report(report: &Report) {
    let mut report = report.clone();
    let answer = report.take_answer();
    words::say_with_answer(&report, answer.as_ref());
}

/// Shows the report: data on standard output, everything for the person on standard error.
fn show(args: &Args, report: &Report, live: &[String]) -> anyhow::Result<ExitCode> {
    if args.verbose {
        words::note(&background(report, live));
    }
    if !args.json && !report.notes.is_empty() {
        words::note(&format!("{}: {}", report.tool, report.notes.join("; ")));
    }
    if args.json {
        say_report(report);
    }
    if let Some(answer) = report.outcome.answer()
        && let Err(why) = show_answer(args, report, answer)
    {
        // The call is not made again for what could not be saved.
        if !args.json {
            say_report(report);
        }
        return Err(why);
    }
    if let (Some((_, asked)), Some(version)) = (args.tool.split_once('@'), &report.version)
        && asked.trim() != version
    {
        words::note(&format!("{}: version {version} ran", printable(&args.tool)));
    }
    if args.output_dir.is_none() && !args.json {
        files::list(report);
    }
    if !args.json && leaves_input(report) {
        words::note(
            "toolhost: standard input has text that nobody read: give it as the parameter that \
             `execution.stdin` names (--input - reads all arguments from it, as JSON)",
        );
    }
    // There is nothing to explain about a call that was refused before it ran.
    if args.explain && !args.json && report.digests.confinement.is_some() {
        let said = report
            .outcome
            .fault()
            .and_then(|fault| fault.person.as_deref())
            .unwrap_or_default();
        words::note(&explain(report, said));
    }
    Ok(ended(report, args.explain))
}

/// Whether a pipe still has text that a command line outside of this host would read.
fn leaves_input(report: &Report) -> bool {
    let manifest = report.delivery.manifest.as_ref();
    let is_line = manifest.is_some_and(|it| it.execution.command_line.is_some());
    let stdin = io::stdin();
    let facts = fstat(stdin.as_fd());
    let is_pipe = facts.is_ok_and(|it| open_files::is(it.st_mode, SFlag::S_IFIFO));
    let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    is_line
        && is_pipe
        && poll(&mut watched, PollTimeout::ZERO).is_ok()
        && (watched[0].revents()).is_some_and(|events| events.contains(PollFlags::POLLIN))
}

/// The answer as text. With `--json` it is printed already, and its parts are only saved.
fn show_answer(args: &Args, report: &Report, answer: &ToolAnswer) -> anyhow::Result<()> {
    let Some(places) = &answer.content else {
        if !args.json {
            words::say_with_answer(&ToolAnswer::mark(), Some(answer));
        }
        return Ok(());
    };
    let text = String::from_utf8(
        answer
            .part_of(0..answer.bytes())
            .pieces()
            .flatten()
            .collect(),
    )?;
    let unsaved = |e: io::Error| {
        let words = format!("the parts of the answer are not saved (--save): {e}");
        Refusal::new(Exit::Host, words)
    };
    let folder = args.save.as_deref();
    let files = folder.map(|folder| Files::new(folder, &report.tool));
    let files = files.transpose().map_err(unsaved)?;
    for block in service::output::blocks(&text, places) {
        let line = parts::line(block, files.as_ref()).map_err(unsaved)?;
        if !args.json {
            words::say(&line);
        }
    }
    if let Some(beside) = places.1.clone().filter(|_| !args.json) {
        words::say_json(&serde_json::from_str::<&RawValue>(&text[beside])?);
    }
    Ok(())
}

/// The exit code. Prints why the call failed. `explained`: the denials are printed already.
pub(super) fn ended(report: &Report, explained: bool) -> ExitCode {
    let observed = &report.observed.denials.observed;
    let Some(fault) = report.outcome.fault() else {
        // A script that goes on without its host may answer what looks right.
        let of_network =
            |denial: &&Denial| ["connect", "resolve", "request"].contains(&&*denial.operation);
        for denial in observed.iter().filter(of_network).filter(|_| !explained) {
            let ask = denial.ask.as_deref().unwrap_or_default();
            let line = format!(
                "refused: {}\n{}",
                render_denial(denial),
                indented("  ", ask)
            );
            words::note(line.trim_end());
        }
        return Exit::Ok.into();
    };
    let mut lines = vec![format!(
        "{}: {}: {}",
        report.tool,
        fault.kind,
        Refusal::from_fault(fault)
    )];
    if !explained {
        // The error itself names the limit.
        let denials = observed.iter().filter(|denial| denial.operation != LIMIT);
        lines.extend(denials.map(|denial| format!("  denied: {}", render_denial(denial))));
    }
    lines.push(format!("  call {}", report.id));
    words::note(&lines.join("\n"));
    Exit::for_origin(fault.origin).into()
}

fn render_denial(denial: &Denial) -> String {
    format!(
        "{} {} ({}; {})",
        denial.operation, denial.target, denial.rule, denial.narrower
    )
}

/// What `--explain` adds: first the lines that would request what the tool itself names, then
/// everything that was refused, and what was not observed. `said`: what the failure says already.
fn explain(report: &Report, said: &str) -> String {
    let all = report.observed.denials.observed.len();
    let denied_words = if all == 1 {
        "access was denied"
    } else {
        "accesses were denied"
    };
    let mut lines = vec![format!("{}: {all} {denied_words}", report.tool)];
    let (absent, told): (Vec<_>, Vec<_>) = report
        .observed
        .denials
        .observed
        .iter()
        .partition(|denial| denial.absent && !denial.named);
    let asks = told.iter().filter(|denial| denial.named);
    let asks = asks.filter_map(|denial| denial.ask.as_deref());
    let mut leading: Vec<&str> = Vec::new();
    for ask in asks.filter(|ask| !said.contains(ask)) {
        if leading.len() < MAX_LEADING && !leading.contains(&ask) {
            leading.push(ask);
        }
    }
    lines.extend(leading.iter().map(|ask| indented("  ", ask)));
    for denial in told {
        lines.push(format!("  refused: {}", render_denial(denial)));
        let ask = denial.ask.iter();
        let ask =
            ask.filter(|ask| !said.contains(ask.as_str()) && !leading.contains(&ask.as_str()));
        lines.extend(ask.map(|ask| indented("    ", ask)));
    }
    if let Some(first) = absent.first() {
        let all = absent.len();
        lines.push(format!(
            "  and {all} that this machine does not have, {} for one (--json lists them)",
            first.target
        ));
    }
    lines.extend(
        report
            .observed
            .denials
            .not_observed
            .iter()
            .map(|what| format!("  not seen: {what}")),
    );
    lines.join("\n")
}

/// A text of several lines, each moved to the right.
fn indented(space: &str, text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("{space}{line}")).collect();
    lines.join("\n")
}

/// What `--verbose` adds. `live`: the lines of the log that were shown already. If these were not
/// all, the log is repeated.
pub(super) fn background(report: &Report, live: &[String]) -> String {
    let mut out = String::new();
    if let Some(verbose) = &report.verbose {
        render_verbose(verbose, &mut out);
    }
    let known = json!({
        "log": if live == report.logs { &[] } else { &report.logs[..] },
        "layers": report.observed.layers,
        "files": report.observed.artifacts,
        "usage": report.observed.usage,
        "digests": report.digests,
        "call": report.id,
    });
    out.push_str(&words::render(&known, &[super::audit::LAYERS]));
    out.trim_end().to_owned()
}

/// What was run, with what, and how long each stage took.
fn render_verbose(verbose: &Verbose, out: &mut String) {
    words::line(out, "command", &verbose.command);
    for (name, text) in [("stdin", &verbose.stdin), ("stdout", &verbose.stdout)] {
        let lines = text.lines().chain(text.is_empty().then_some("nothing"));
        lines
            .enumerate()
            .for_each(|(at, line)| words::line(out, if at == 0 { name } else { "" }, line));
    }
    words::field("grants", &json!(verbose.grants), out);
    let timing: Vec<String> = verbose
        .timing
        .iter()
        .map(|(stage, ms)| format!("{stage} {ms} ms"))
        .collect();
    words::line(out, "timing", &timing.join(", "));
    out.push('\n');
}

/// How often the reader checks that anybody still waits for the answer, milliseconds.
const LOOK_MS: u16 = 200;

/// The person at the terminal, if there is one, approves calls.
fn approver() -> Approver {
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        Approver::Transport(Arc::new(Terminal))
    } else {
        Approver::Nobody
    }
}

struct Terminal;

impl Ask for Terminal {
    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Answer> {
        let words = format!(
            "{}\n  Press y and Enter to let it run; anything else refuses it:",
            question.text(true)
        );
        Box::pin(async move {
            let over = CancellationToken::new();
            let _gone = over.clone().drop_guard();
            let said = tokio::task::spawn_blocking(move || {
                // A line that was typed ahead answers another question.
                let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
                words::note(&words);
                line(&over)
            });
            let by = format!("{} (terminal)", host::login());
            match said.await.ok().flatten() {
                None => Answer::Nobody,
                Some(line) if ["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()) => {
                    Answer::Approved { by }
                }
                Some(_) => Answer::Denied { by },
            }
        })
    }
}

/// One line, as long as somebody waits for it. `None`: the terminal is gone.
fn line(over: &CancellationToken) -> Option<String> {
    let stdin = io::stdin();
    while !over.is_cancelled() {
        let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut watched, PollTimeout::from(LOOK_MS)).ok()? > 0 {
            let mut line = String::new();
            return (stdin.lock().read_line(&mut line).ok()? > 0).then_some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_taken_apart_once() {
        let good = pairs(&["a=1".into(), "b=x=y".into(), "c=".into()]).unwrap();
        assert_eq!(good["a"], "1");
        assert_eq!(good["b"], "x=y");
        assert_eq!(good["c"], "");
        for bad in [&["a"][..], &["=1"], &["a=1", "a=2"]] {
            let words: Vec<String> = bad.iter().map(|word| (*word).to_owned()).collect();
            assert!(pairs(&words).is_err(), "{bad:?}");
        }
    }
}
