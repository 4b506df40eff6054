//! The command line: one file per verb, and one match that knows them all.

pub mod act;
pub mod allow;
pub mod approve;
mod attacks;
pub mod audit;
pub mod call;
pub mod check;
pub mod completions;
pub mod deps;
pub mod diff;
pub mod disable;
pub mod doctor;
pub mod export;
mod files;
pub mod host;
pub mod init;
pub mod list;
pub mod log;
pub mod man;
pub mod mcp;
pub mod new;
pub mod operate;
mod parts;
mod process;
pub mod refusal;
pub mod remote;
pub mod schema;
pub mod search;
pub mod serve;
pub mod settings;
pub mod skills;
pub mod sources;
mod terminal;
pub mod test;
pub mod token;
pub mod trustgraph;
pub mod watch;
pub mod words;

use crate::base::text;
use crate::executor::process::settle;
use crate::sandbox::limits;
use crate::service::runlog;
use clap::{CommandFactory, Parser, Subcommand};
use refusal::{Exit, Refusal};
use settings::{Flags, Settings};
use std::process::ExitCode;

/// Drop a script and its manifest into a folder and an agent can call it; the kernel holds it to
/// what you approved.
#[derive(Debug, Parser)]
#[command(name = "toolhost", version, subcommand_value_name = "VERB")]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Call one tool and print its output as JSON
    #[command(alias = "run")]
    Call(call::Args),
    /// Write artifacts that calls left into a folder
    Artifact(files::Args),
    /// Make the call that a model's text asks for in an ACTION block, and print the OBSERVATION
    Act(act::Args),
    /// List the tools
    List(list::Args),
    /// Find the tools that fit a task
    Search(search::Args),
    /// Print the tools as knowledge units for an index elsewhere: a JSON object on each line
    Export(export::Args),
    /// Print the tools as text for a model's prompt
    Prompt(list::PromptArgs),
    /// Check every manifest and policy: problems, locations and fixes
    Check(check::Args),
    /// Show what a tool may touch, without running it
    Audit(audit::Args),
    /// Show past and running calls, or verify the audit log
    Log(log::Args),
    /// Compare two policies, manifests or audits: what becomes possible, and what no longer is
    Diff(diff::Args),
    /// Lock, build, list and clean the packages that tools require
    Deps(deps::Args),
    /// Run the examples of a tool's manifest
    Test(test::Args),
    /// Make a root: folders, the policies that it needs, and a tool
    Init(init::Args),
    /// Write what a tool was refused into its manifest and its policy
    Allow(allow::Args),
    /// Show what tools are and may do, and record that you approve it
    Approve(approve::Args),
    /// Make a tool: its own folder, a script and a manifest that work
    New(new::Args),
    /// Take over the MCP servers that clients have, as confined tools of this host
    Mcp(mcp::Args),
    /// Show the skills of this host, their scripts, and what these need
    Skills(skills::Args),
    /// Serve the tools to agents and programs: MCP, HTTP, message brokers
    Serve(serve::Args),
    /// Show the calls of a running server
    Ps(operate::PsArgs),
    /// End a call of a running server
    Kill(operate::KillArgs),
    /// Disable tools: no call of them begins until they are enabled again; alone, show what is disabled
    Disable(disable::DisableArgs),
    /// Enable tools that were disabled
    Enable(disable::EnableArgs),
    /// Show where tools come from; add a folder to servers that run, or remove it
    Sources(sources::Args),
    /// Show the calls of a running server that wait for a person, and answer them
    Approvals(operate::ApprovalsArgs),
    /// Show the state of a running server
    Status(operate::StatusArgs),
    /// Make a token for a caller of `serve --http`
    Token(token::Args),
    /// Print what TrustGraph needs so that its agents can call a tool of this host
    Trustgraph(trustgraph::Args),
    /// Try each sandbox layer on this machine, and print the command that fixes each one that fails
    Doctor(doctor::Args),
    /// Print the JSON Schema of manifests, policies or callers.policy.toml
    Schema(schema::Args),
    /// Print what a shell sources to complete this command line
    Completions(completions::Args),
    /// Print the manual page, or write one for each verb into a folder
    Man(man::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            if told.use_stderr() {
                // clap repeats the arguments, and a line break in one must not begin a line of
                // ours.
                let given =
                    std::env::args_os().map(|given| text::printable(&given.to_string_lossy()));
                let told = Cli::try_parse_from(given).err().unwrap_or(told);
                words::note(told.render().to_string().trim_end());
                // `call tool --text hello` is what many try first.
                let unknown = told.kind() == clap::error::ErrorKind::UnknownArgument;
                if unknown && std::env::args_os().any(|word| word == "call") {
                    words::note(
                        "The arguments of a tool are NAME=VALUE, or one JSON object after --input.",
                    );
                }
                let verb = std::env::args_os().nth(1).unwrap_or_default();
                if told.kind() == clap::error::ErrorKind::MissingRequiredArgument
                    && (verb == "audit" || verb == "test")
                {
                    words::note("Name a tool, or write --all.");
                }
                return Exit::Caller.into();
            }
            // Help and version go to standard output and are not errors; nor is a closed pipe.
            let _ = told.print();
            return Exit::Ok.into();
        }
    };
    // A program that asked for JSON gets every failure as JSON, also one from before the call.
    let call = match &cli.verb {
        Verb::Call(args) if args.json => Some(args.tool.clone()),
        _ => None,
    };
    let code = run(cli).unwrap_or_else(|error| {
        words::fail(&format!("toolhost: {error:#}"));
        let refusal = error
            .downcast_ref::<Refusal>()
            .cloned()
            .unwrap_or_else(|| Refusal::new(Exit::Host, format!("{error:#}")));
        if let Some(tool) = call {
            words::say_json(&call::not_begun(&tool, refusal.fault()));
        }
        refusal.exit.into()
    });
    // Waits until our processes and control groups are gone.
    settle(process::SHUTDOWN_TIMEOUT);
    runlog::settle(process::SHUTDOWN_TIMEOUT);
    if words::lost() && code == ExitCode::SUCCESS {
        Exit::Host.into()
    } else {
        code
    }
}

fn run(mut cli: Cli) -> anyhow::Result<ExitCode> {
    // Before anything that opens files: with too few, what fails first would be a thread of the
    // runtime, in panic.
    let (least, now) = limits::open_files();
    if now < least {
        let words = format!(
            "this host may open {now} files, and needs at least {least}: raise `ulimit -n`"
        );
        return Err(Refusal::new(Exit::Host, words).into());
    }
    if let (Verb::New(_), Some(root)) = (&cli.verb, &cli.flags.root) {
        std::fs::create_dir_all(root)
            .map_err(|why| Refusal::new(Exit::Caller, format!("{}: {why}", text::path(root))))?;
    }
    if let Verb::Init(args) = &cli.verb {
        init::make(&mut cli.flags, args)?;
    }
    words::keep_settings(&cli.flags);
    let settings = Settings::resolve(&cli.flags)?;
    match cli.verb {
        Verb::Init(_) => init::example(&settings),
        Verb::Allow(args) => allow::run(&settings, args),
        Verb::Approve(args) => approve::run(&settings, &args),
        Verb::Call(args) => call::run(&settings, args),
        Verb::Artifact(args) => files::run(&settings, &args),
        Verb::Act(args) => act::run(&settings, args),
        Verb::List(args) => list::run(&settings, args),
        Verb::Search(args) => search::run(&settings, &args),
        Verb::Export(args) => export::run(&settings, &args),
        Verb::Prompt(args) => list::prompt(&settings, args),
        Verb::Check(args) => check::run(&settings, args),
        Verb::Audit(audit::Args {
            diff: Some(sides),
            json,
            ..
        }) => {
            let mut sides = sides.into_iter();
            let mut side = || sides.next().unwrap_or_default();
            diff::run(
                &settings,
                diff::Args {
                    old: side(),
                    new: side(),
                    json,
                },
            )
        }
        Verb::Audit(args) => audit::run(&settings, args),
        Verb::Log(args) => log::run(&settings, args),
        Verb::Diff(args) => diff::run(&settings, args),
        Verb::Deps(args) => deps::run(&settings, args),
        Verb::Test(args) => test::run(&settings, args),
        Verb::New(args) => new::run(&settings, args),
        Verb::Mcp(args) => mcp::run(&settings, &args),
        Verb::Skills(args) => skills::run(&settings, &args),
        Verb::Serve(args) => serve::run(settings, args),
        Verb::Ps(args) => operate::ps(&args),
        Verb::Kill(args) => operate::kill(&args),
        Verb::Disable(args) => disable::disable(&settings, args),
        Verb::Enable(args) => disable::enable(&settings, &args),
        Verb::Sources(args) => sources::run(&settings, &args),
        Verb::Approvals(args) => operate::approvals(&args),
        Verb::Status(args) => operate::status(&args),
        Verb::Token(args) => token::run(&args),
        Verb::Trustgraph(args) => trustgraph::run(&settings, args),
        Verb::Doctor(args) => doctor::run(&settings, &args),
        Verb::Schema(args) => schema::run(args),
        Verb::Completions(args) => completions::run(Cli::command(), &args),
        Verb::Man(args) => man::run(Cli::command(), &args),
    }
}
