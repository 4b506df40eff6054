//! `[model]` of a config file: the model server of `POST /v1/responses`. `[search]`: an embedding
//! server or model.

use super::brokers::one_for_all;
use crate::manifest::host::Host;
use crate::policy::{CallbackUrl, host_range};
use crate::service::endpoint::Endpoint;
use crate::service::search::{EmbeddingServer, EmbeddingSettings, static_model};
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

/// `[search]`: an embedding server, or a model on this machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchConfig {
    /// The folder of a static model.
    model: Option<PathBuf>,
    url: Option<String>,
    /// The model that the server is asked for.
    name: Option<String>,
    key: Option<String>,
    #[serde(default)]
    ranges: Vec<String>,
}

/// A server, and the file of its key: no tool may write it.
pub type WithKeyFile<S> = (S, Vec<PathBuf>);

/// The servers that this host asks.
#[derive(Clone, Debug)]
pub struct Servers {
    pub model: Option<WithKeyFile<ModelSettings>>,
    pub embeddings: Option<WithKeyFile<EmbeddingSettings>>,
}

pub(super) fn servers(
    model: Option<ModelConfig>,
    search: Option<SearchConfig>,
    folder: &Path,
    proxy: Option<&String>,
) -> Result<Servers, String> {
    let model = model.map(|given| one(given, folder, proxy)).transpose();
    let embeddings = search.map(|it| embeddings(it, folder, proxy)).transpose();
    Ok(Servers {
        model: model.map_err(|why| format!("[model] {why}"))?,
        embeddings: embeddings.map_err(|why| format!("[search] {why}"))?,
    })
}

fn embeddings(
    given: SearchConfig,
    folder: &Path,
    proxy: Option<&String>,
) -> Result<WithKeyFile<EmbeddingSettings>, String> {
    let is_alone = given.key.is_none() && given.ranges.is_empty();
    match (given.model, given.url, given.name) {
        (Some(model), None, None) if is_alone => {
            let model = folder.join(model);
            let files = static_model::files(&model).collect();
            Ok((EmbeddingSettings::Model(model), files))
        }
        (None, Some(url), Some(model)) => {
            let url = format!("{}/embeddings", url.trim_end_matches('/'));
            let (endpoint, files) = endpoint(&url, given.key, &given.ranges, folder, proxy)?;
            let server = EmbeddingServer { endpoint, model };
            Ok((EmbeddingSettings::Server(server), files))
        }
        _ => Err("write `url` and `name` of a server, or the folder `model` alone".to_owned()),
    }
}

fn endpoint(
    url: &str,
    key: Option<String>,
    ranges: &[String],
    folder: &Path,
    proxy: Option<&String>,
) -> Result<WithKeyFile<Endpoint>, String> {
    let url = CallbackUrl::parse(url).map_err(|why| format!("url: {why}"))?;
    if url.query.is_some() {
        return Err("url: write it without a query".to_owned());
    }
    let is_local = match &url.host {
        Host::Name(name) => name == "localhost",
        Host::Address(address) => address.is_loopback(),
        Host::Any | Host::Below(_) => false,
    };
    if key.is_some() && !url.https && !is_local {
        return Err(
            "key: it would cross the network in the clear; the url must be https://".to_owned(),
        );
    }
    let key = key
        .map(|from| one_for_all(&from, folder, "a server has one key"))
        .transpose()
        .map_err(|why| format!("key: {why}"))?;
    let ranges = ranges.iter().map(|range| host_range(range));
    let ranges = ranges
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| format!("ranges: {why}"))?;
    let files = key.iter().flat_map(|key| key.named_files());
    let files = files.map(Path::to_path_buf).collect();
    let endpoint = Endpoint {
        url,
        key,
        ranges,
        proxy: proxy.cloned().filter(|_| !is_local),
    };
    Ok((endpoint, files))
}

fn one(
    given: ModelConfig,
    folder: &Path,
    proxy: Option<&String>,
) -> Result<WithKeyFile<ModelSettings>, String> {
    if given.names.is_empty() {
        return Err("names: name the models that a request may name".to_owned());
    }
    let url = format!("{}/chat/completions", given.url.trim_end_matches('/'));
    let (endpoint, files) = endpoint(&url, given.key, &given.ranges, folder, proxy)?;
    let bounds = Bounds {
        steps: given.steps.unwrap_or(10),
        time: Duration::from_secs(given.seconds.unwrap_or(300)),
        tokens: given.tokens.unwrap_or(200_000),
        tokens_per_hour: given.tokens_per_hour.unwrap_or(1_000_000),
    };
    let settings = ModelSettings {
        endpoint,
        names: given.names,
        bounds,
    };
    Ok((settings, files))
}
