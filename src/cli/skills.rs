//! `toolhost skills`: the skills of this host, what is doubtful about them, and what their scripts
//! would need.

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, words};
use crate::base::text;
use crate::manifest::SKILL_FILE;
use crate::registry::{FileReport, Tool};
use crate::service::requirements;
use crate::service::script::SkillScript;
use serde_json::{Value, json};
use std::process::ExitCode;

const TABLES: [words::Table; 2] = [
    (
        "skills",
        &["skill", "approval", "policy"],
        &["description", "why", "flaws", "allowedTools", "scripts"],
    ),
    ("broken", &["path"], &["flaws"]),
];
/// Most characters that are shown of a description.
const MAX_DESCRIPTION: usize = 160;
const NONE: &str = "No skill: put folders of skills into `skills` below the root, or name one with \
    --skills.";

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Verb {
    /// Show each skill, whether a person approved it, its flaws, and what its scripts need; exit
    /// status 3 if one cannot be loaded
    #[command(alias = "list")]
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(settings: &Settings, args: &Args) -> anyhow::Result<ExitCode> {
    let Verb::Check { json } = args.verb;
    let known = host::Tools::load(settings)?;
    let tools = known.tools();
    let skills: Vec<Value> = tools.iter().filter_map(|tool| row(&known, tool)).collect();
    let reports = known.snapshot.reports.iter();
    let broken = reports.filter(|it| it.has_errors() && it.path.ends_with(SKILL_FILE));
    let broken: Vec<Value> = broken
        .map(|it| json!({ "path": it.path, "flaws": flaws(it) }))
        .collect();
    if skills.is_empty() && broken.is_empty() {
        words::note(NONE);
    }
    let exit = if broken.is_empty() {
        Exit::Ok
    } else {
        Exit::Policy
    };
    let report = json!({ "skills": skills, "broken": broken });
    words::answer(&report, json, || words::render(&report, &TABLES));
    Ok(exit.into())
}

/// `None`: the tool is not a skill.
fn row(known: &host::Tools, tool: &Tool) -> Option<Value> {
    let skill = tool.manifest.skill()?;
    let decision = known.decide(tool);
    let approval = decision.approval.as_ref();
    let scripts = skill.scripts().map(|(path, language)| SkillScript {
        path: path.clone(),
        language,
    });
    let mut reports = known.snapshot.reports.iter();
    let report = reports.find(|it| it.path == tool.site.manifest);
    Some(json!({
        "skill": tool.manifest.id,
        "description": text::head(&tool.manifest.description, MAX_DESCRIPTION),
        "approval": approval.map_or("not required", |it| it.state.name()),
        // Of one that is not as it was approved, or cannot be.
        "why": approval.filter(|it| !it.is_met()).map(|it| it.state.words()),
        "policy": decision.governing.policy,
        // Shown, and never obeyed.
        "allowedTools": skill.front.get("allowed-tools"),
        "flaws": report.map(flaws),
        "scripts": scripts.map(|it| needs(known, tool, &it)).collect::<Vec<_>>(),
    }))
}

fn flaws(report: &FileReport) -> Vec<&str> {
    let problems = report.problems.iter();
    problems.map(|it| it.message.as_str()).collect()
}

/// A script, with what it would need.
fn needs(known: &host::Tools, tool: &Tool, script: &SkillScript) -> String {
    let host::Tools {
        snapshot,
        policies,
        machine,
        ..
    } = known;
    let decision = requirements::of_skill_script(tool, script, snapshot, policies, machine);
    let packages = decision.packages.required.iter();
    let packages = packages.flat_map(|it| &it.requires);
    let packages = packages.map(|it| format!("{} {}", it.name, it.versions).trim_end().to_owned());
    let required = decision.packages.required.as_ref();
    let lock = required.filter(|it| !it.locked);
    let lock = lock.map(|_| "a lock beside it (`toolhost deps lock` makes one)".to_owned());
    let needs = decision.lacks.iter().map(|it| it.words.clone());
    let needs: Vec<String> = needs.chain(packages).chain(lock).collect();
    let mut words = format!("{} ({})", script.path, script.language.name());
    if !needs.is_empty() {
        words += &format!(", needs {}", needs.join(", "));
    }
    let is_approved = decision.approval.as_ref().is_none_or(|it| it.is_met());
    match &decision.shape {
        Err(fault) if is_approved => {
            let why = fault.person.as_deref().unwrap_or(&fault.message);
            format!("{words}; refused: {why}")
        }
        _ => words,
    }
}
