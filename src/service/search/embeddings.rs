//! Texts as vectors, by the embedding server that the operator names, or a model on this machine. It
//! gets the names and descriptions of tools, and questions; of calls nothing. A server is not trusted:
//! its answer is bounded in bytes and time, and shows in the order of hits alone.

use super::static_model::StaticModel;
use crate::base::{lock, text};
use crate::registry::Tool;
use crate::service::endpoint::Endpoint;
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

/// How long the answers to one search may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long a server that failed is not asked.
const PAUSE: Duration = Duration::from_secs(30);
/// Most texts of one request, and characters of each.
const MAX_TEXTS: usize = 64;
const MAX_TEXT_CHARS: usize = 1_000;
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// Most numbers of a vector, and vectors of tools that are kept.
const MAX_NUMBERS: usize = 8_192;
const MAX_VECTORS: usize = 10_000;

#[derive(Clone, Debug)]
pub enum EmbeddingSettings {
    Server(EmbeddingServer),
    /// The folder of a static model.
    Model(PathBuf),
}

#[derive(Clone, Debug)]
pub struct EmbeddingServer {
    pub endpoint: Endpoint,
    /// The model that the server is asked for.
    pub model: String,
}

enum Source {
    Server(EmbeddingServer),
    Model(StaticModel),
}

pub struct Embedder {
    source: Source,
    /// Runs the requests of threads that may wait.
    runtime: Handle,
    state: Mutex<Vectors>,
}

#[derive(Default)]
struct Vectors {
    /// Of the texts of tools.
    known: HashMap<String, Vector>,
    /// When the server may be asked again.
    failed: Option<Instant>,
}

/// Why the server gave no vectors.
enum Failure {
    /// What it sent until then is good.
    TooLong,
    /// In words. Its model may have changed.
    Other(String),
}

impl From<&str> for Failure {
    fn from(words: &str) -> Failure {
        Failure::Other(words.to_owned())
    }
}

/// Its length is one.
type Vector = Arc<[f32]>;

#[derive(Deserialize)]
struct Answer {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vec<f32>,
}

impl Embedder {
    /// Reads the model where there is one.
    pub fn new(settings: EmbeddingSettings, runtime: Handle) -> Result<Embedder, String> {
        let source = match settings {
            EmbeddingSettings::Server(server) => Source::Server(server),
            EmbeddingSettings::Model(folder) => Source::Model(StaticModel::read(&folder)?),
        };
        Ok(Embedder {
            source,
            runtime,
            state: Mutex::default(),
        })
    }

    /// The cosines of a question and these tools, in their order. Blocks. `None`: there are none.
    pub fn cosines(
        &self,
        principal: &str,
        tools: &[Arc<Tool>],
        question: &str,
    ) -> Option<Vec<f64>> {
        let failed = lock(&self.state).failed;
        if failed.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let failure = match self.compare(principal, tools, question) {
            Ok(found) => return Some(found),
            Err(failure) => failure,
        };
        let state = &mut *lock(&self.state);
        // A model fails at one question, and not at the next.
        let is_server = matches!(self.source, Source::Server(_));
        state.failed = is_server.then(|| Instant::now() + PAUSE);
        let why = match failure {
            Failure::TooLong => "it takes too long".to_owned(),
            Failure::Other(why) => {
                state.known.clear();
                why
            }
        };
        tracing::warn!(target: "toolhost::search", "embeddings: {why}");
        None
    }

    fn compare(
        &self,
        principal: &str,
        tools: &[Arc<Tool>],
        question: &str,
    ) -> Result<Vec<f64>, Failure> {
        let texts: Vec<String> = tools.iter().map(|tool| text_of(tool)).collect();
        // The question is asked for first, and never kept.
        let mut missing = vec![text::head(question, MAX_TEXT_CHARS)];
        let unknown = |text: &&String| !lock(&self.state).known.contains_key(*text);
        missing.extend(texts.iter().filter(unknown).cloned());
        let until = Instant::now() + PATIENCE;
        let mut asked = None;
        for texts in missing.chunks(MAX_TEXTS) {
            let asking = async { timeout_at(until, self.vectors(principal, texts)).await };
            let new = self.runtime.block_on(asking);
            let mut new = texts
                .iter()
                .cloned()
                .zip(new.map_err(|_| Failure::TooLong)??);
            if asked.is_none() {
                asked = new.next();
            }
            // Where time runs out, the next search goes on from here.
            lock(&self.state).known.extend(new);
        }
        let (_, asked) = asked.ok_or("it sent no vector")?;
        if asked.iter().all(|number| *number == 0.0) {
            return Err("the model knows no word of the question".into());
        }
        let known = &mut lock(&self.state).known;
        if texts
            .iter()
            .any(|text| known.get(text).is_none_or(|it| it.len() != asked.len()))
        {
            return Err("the vectors differ in length".into());
        }
        if known.len() > MAX_VECTORS {
            known.retain(|text, _| texts.contains(text));
        }
        let cosines = texts.iter().map(|text| {
            let pairs = known[text].iter().zip(&*asked);
            let sum: f64 = pairs.map(|(a, b)| f64::from(a * b)).sum();
            sum.clamp(-1.0, 1.0)
        });
        Ok(cosines.collect())
    }

    async fn vectors(&self, principal: &str, texts: &[String]) -> Result<Vec<Vector>, Failure> {
        match &self.source {
            Source::Server(server) => server.ask(principal, texts).await,
            Source::Model(model) => {
                let vectors = model.encode(texts).into_iter();
                let vectors = vectors.map(|vector| unit(&vector).unwrap_or_else(|| vector.into()));
                Ok(vectors.collect())
            }
        }
    }
}

impl EmbeddingServer {
    async fn ask(&self, principal: &str, texts: &[String]) -> Result<Vec<Vector>, Failure> {
        let body = json!({"model": self.model, "input": texts});
        let endpoint = &self.endpoint;
        let asked = endpoint.post(principal, "search", body.to_string()).await;
        // The connection ends with it, so it is held until the body was read.
        let asked = asked.map_err(|error| Failure::Other(error.words()));
        let mut posted = asked?.posted;
        let status = posted.answer.status();
        if !status.is_success() {
            let words = format!("it answered {}", status.as_u16());
            return Err(Failure::Other(words));
        }
        let body = Limited::new(posted.answer.body_mut(), MAX_ANSWER_BYTES).collect();
        let body = body
            .await
            .map_err(|_| "its answer breaks off, or is too long")?;
        // Its own words go nowhere.
        let answer = serde_json::from_slice::<Answer>(&body.to_bytes());
        let mut data = answer.map_err(|_| "its answer has no embeddings")?.data;
        data.sort_by_key(|one| one.index);
        let is_whole = data.iter().map(|one| one.index).eq(0..texts.len());
        let vectors = data.into_iter().map(|one| unit(&one.embedding));
        let vectors: Option<Vec<Vector>> = vectors.collect();
        let vectors = vectors.filter(|_| is_whole);
        vectors.ok_or("its answer is not one vector for each text".into())
    }
}

/// The vector with the length one. `None`: it has no direction, or too many numbers.
fn unit(vector: &[f32]) -> Option<Vector> {
    let square: f64 = vector.iter().map(|it| f64::from(*it).powi(2)).sum();
    let length = square.sqrt();
    let is_good = length.is_normal() && vector.len() <= MAX_NUMBERS;
    is_good.then(|| {
        let scaled = vector.iter().map(|it| (f64::from(*it) / length) as f32);
        scaled.collect()
    })
}

/// What stands for a tool.
fn text_of(tool: &Tool) -> String {
    let manifest = &tool.manifest;
    let whole = format!(
        "{} ({}): {}",
        manifest.display_name, manifest.id, manifest.description
    );
    text::head(&whole, MAX_TEXT_CHARS)
}
