//! `[model]` of a config file: the model server of `POST /v1/responses`.

use super::brokers::one_for_all;
use crate::manifest::host::Host;
use crate::policy::{CallbackUrl, host_range};
use crate::transport::responses::{Bounds, ModelSettings};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelConfig {
    url: String,
    names: Vec<String>,
    key: Option<String>,
    #[serde(default)]
    ranges: Vec<String>,
    steps: Option<u32>,
    seconds: Option<u64>,
    tokens: Option<u64>,
    tokens_per_hour: Option<u64>,
}

/// The settings of the server, and the file of its key: no tool may write it.
pub(super) fn settings(
    given: Option<ModelConfig>,
    folder: &Path,
    proxy: Option<&String>,
) -> Result<Option<(ModelSettings, Vec<PathBuf>)>, String> {
    let read = given.map(|given| one(given, folder, proxy));
    read.transpose().map_err(|why| format!("[model] {why}"))
}

fn one(
    given: ModelConfig,
    folder: &Path,
    proxy: Option<&String>,
) -> Result<(ModelSettings, Vec<PathBuf>), String> {
    let whole = format!("{}/chat/completions", given.url.trim_end_matches('/'));
    let url = CallbackUrl::parse(&whole).map_err(|why| format!("url: {why}"))?;
    if url.query.is_some() {
        return Err("url: write it without a query".to_owned());
    }
    if given.names.is_empty() {
        return Err("names: name the models that a request may name".to_owned());
    }
    let is_local = match &url.host {
        Host::Name(name) => name == "localhost",
        Host::Address(address) => address.is_loopback(),
        Host::Any | Host::Below(_) => false,
    };
    if given.key.is_some() && !url.https && !is_local {
        return Err(
            "key: it would cross the network in the clear; the url must be https://".to_owned(),
        );
    }
    let key = given
        .key
        .map(|from| one_for_all(&from, folder, "a model server has one key"))
        .transpose()
        .map_err(|why| format!("key: {why}"))?;
    let ranges = given.ranges.iter().map(|range| host_range(range));
    let ranges = ranges
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| format!("ranges: {why}"))?;
    let files = key.iter().flat_map(|key| key.named_files());
    let files = files.map(Path::to_path_buf).collect();
    let bounds = Bounds {
        steps: given.steps.unwrap_or(10),
        time: Duration::from_secs(given.seconds.unwrap_or(300)),
        tokens: given.tokens.unwrap_or(200_000),
        tokens_per_hour: given.tokens_per_hour.unwrap_or(1_000_000),
    };
    let settings = ModelSettings {
        url,
        names: given.names,
        key,
        ranges,
        proxy: proxy.cloned().filter(|_| !is_local),
        bounds,
    };
    Ok((settings, files))
}
