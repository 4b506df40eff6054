//! `toolhost prompt`: the tools as text for a model's prompt: `list --format prompt`.

use super::list;
use super::settings::Settings;
use crate::transport::export::Format;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only tools of this namespace (the part before ':')
    #[arg(long, value_name = "N")]
    pub namespace: Option<String>,
    /// Only tools with this tag (may be given several times: any of them)
    #[arg(long = "tag", value_name = "T")]
    pub tags: Vec<String>,
}

pub fn run(settings: &Settings, Args { namespace, tags }: Args) -> anyhow::Result<ExitCode> {
    list::run(settings, list::Args { namespace, tags, format: Some(Format::Prompt), ..list::Args::default() })
}
