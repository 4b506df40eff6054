//! `toolhost act [--text FILE|-]`: makes the call in a model's text, and prints the observation for
//! the model.
//!
//! Standard output holds only the observation, so that a text cannot bring one of its own.

use super::refusal::{Exit, Refusal};
use super::remote::{Server, ServerAddress};
use super::settings::Settings;
use super::{call, host, process, words};
use crate::fault::Origin;
use crate::service::{self, Arguments, CallRequest};
use crate::transport::action::{self, ActionResult};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model's text: a file, or - for standard input
    #[arg(
        long,
        value_name = "FILE|-",
        default_value = "-",
        allow_hyphen_values = true
    )]
    pub text: String,
    /// The user to call for: recorded as a label; an identity where callers.policy.toml lets you
    /// act as that user
    #[arg(long, value_name = "NAME", value_parser = service::user_name)]
    pub user: Option<String>,
    /// Have this running server make the call. A tool whose calls run in the background is answered
    /// with a receipt
    #[arg(long, value_name = "ADDRESS", value_parser = ServerAddress::parse)]
    pub http: Option<ServerAddress>,
    /// Print the observations of calls that ended in the background of that server, each once
    #[arg(long)]
    pub pending: bool,
    /// Print the whole answer as JSON: lead, observation, warnings, outcome
    #[arg(long)]
    pub json: bool,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    host::start_verb(settings);
    let usual = args.pending.then(ServerAddress::usual).transpose();
    let usual = usual.map_err(|why| Refusal::new(Exit::Caller, why))?;
    if let Some(http) = args.http.clone().or(usual) {
        let patience = Duration::MAX;
        return run_at(&Server { http, patience }, &args);
    }
    let runtime = process::runtime()?;
    let from = args.text.clone();
    let acted = runtime.block_on(process::unless_stopped(async {
        let text = process::apart(move || read(&from)).await?;
        perform(settings, &args, &text).await
    }));
    runtime.shutdown_timeout(process::SHUTDOWN_TIMEOUT);
    Ok(match acted {
        Ok(answer) => show(&args, answer?),
        Err(signal) => {
            words::note("toolhost: interrupted; a call that was begun is cancelled");
            signal
        }
    })
}

fn run_at(server: &Server, args: &Args) -> anyhow::Result<ExitCode> {
    if args.pending {
        let ended = server.ask(Method::POST, "/v1/observations", None, "observations")?;
        if args.json {
            words::say_json(&ended);
        }
        let more = ended["more"].as_u64().filter(|more| *more > 0);
        if let Some(more) = more {
            words::note(&format!("{more} more wait: ask again"));
        }
        let ended = ended["observations"].as_array().filter(|_| !args.json);
        for ended in ended.into_iter().flatten() {
            words::say(ended["observation"].as_str().unwrap_or_default());
        }
        return Ok(Exit::Ok.into());
    }
    let body = json!({"text": read(&args.text)?, "user": args.user});
    let answer = server.ask(Method::POST, "/v1/actions", Some(&body), "observation")?;
    if args.json {
        words::say_json(&answer);
    } else {
        let warnings = answer["warnings"].as_array().into_iter().flatten();
        let lines = [&answer["lead"]].into_iter().chain(warnings);
        let lines = lines
            .filter_map(Value::as_str)
            .filter(|line| !line.is_empty());
        lines.for_each(words::note);
        if let Some(observation) = answer["observation"].as_str() {
            words::say(observation);
        }
    }
    let origin = Origin::deserialize(&answer["outcome"]["error"]["origin"]);
    Ok(origin.map_or(Exit::Ok, Exit::for_origin).into())
}

async fn perform(settings: &Settings, args: &Args, text: &str) -> anyhow::Result<ActionResult> {
    let made = host::launchers(settings)
        .and_then(|launchers| host::service_of_one_call(settings, launchers, Some(words::note)));
    let service = match made {
        Ok(service) => service,
        // The model gets the error, too, in words for an agent.
        Err(error) => {
            words::note(&format!("toolhost: {error:#}"));
            let fault = error
                .downcast_ref::<Refusal>()
                .map(Refusal::fault)
                .ok_or(error)?;
            let reading = action::read(text);
            let report = call::not_begun(reading.tool(), fault);
            return Ok(reading.answered(report).await);
        }
    };
    let empty = call::request("", Arguments::Text(String::new()));
    let from = CallRequest {
        label: args.user.clone(),
        ..empty
    };
    let answer = action::act(&service, &[], from, action::read(text)).await;
    service.close().await;
    Ok(answer)
}

fn read(from: &str) -> anyhow::Result<String> {
    if from == "-" {
        words::waits_for("a model's text");
        return call::text(std::io::stdin().lock(), "standard input");
    }
    call::file_text(from)
}

fn show(args: &Args, answer: ActionResult) -> ExitCode {
    let mut answer = ActionResult {
        outcome: answer.outcome.map(|report| report.for_agents()),
        ..answer
    };
    if args.json {
        let output = answer
            .outcome
            .as_mut()
            .and_then(|report| report.take_answer());
        words::say_with_answer(&answer, output.as_ref());
    } else {
        let warnings = answer
            .warnings
            .iter()
            .map(|warning| format!("toolhost: {warning}"));
        let lines: Vec<String> = std::iter::once(answer.lead.clone())
            .filter(|lead| !lead.is_empty())
            .chain(warnings)
            .collect();
        if !lines.is_empty() {
            words::note(&lines.join("\n"));
        }
        answer
            .observation
            .iter()
            .for_each(|observation| words::say(observation));
    }
    answer
        .outcome
        .as_ref()
        .map_or(Exit::Ok.into(), |report| call::ended(report, false))
}
