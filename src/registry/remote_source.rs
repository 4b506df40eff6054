//! The tools that a host elsewhere announces (one source for each announcer), as long as it does.
//!
//! They get the namespace that the operator gave the announcer, and never an id or a name that a
//! file here has.

use super::tool::{Described, Discovery, Source, Tool, nowhere};
use crate::base::{lock, text};
use crate::manifest::{Manifest, Severity, descriptor};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How the ids of these sources begin.
const PREFIX: &str = "announced:";
/// Most services of one announcer.
const MAX_SERVICES: usize = 16;
pub const MAX_TOOLS: usize = 64;
/// Least time between two changes: each settles the whole registry again.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);

pub struct Announced {
    id: String,
    namespace: String,
    present: Mutex<Announcement>,
}

#[derive(Default)]
struct Announcement {
    /// When the announcement last changed to one that is not empty.
    since: Option<Instant>,
    text: String,
    found: Discovery,
}

impl Announced {
    pub fn new(announcer: &str, namespace: &str) -> Announced {
        let id = format!("{PREFIX}{announcer}");
        Announced {
            id,
            namespace: namespace.to_owned(),
            present: Mutex::default(),
        }
    }

    /// Replaces what is announced. False: nothing changed. An error leaves the previous
    /// announcement.
    pub fn update(&self, descriptors: &Map<String, Value>) -> Result<bool, String> {
        let mut present = lock(&self.present);
        let mut own = Map::new();
        let mut tools = 0;
        for (key, value) in descriptors {
            let mut value = value.clone();
            let (key, named) = match key.strip_prefix(descriptor::SERVICE_KEY) {
                Some(id) => (
                    format!("{}{}.{id}", descriptor::SERVICE_KEY, self.namespace),
                    "id",
                ),
                None => {
                    tools += 1;
                    (key.clone(), "service")
                }
            };
            if let Some(Value::String(id)) = value.get_mut(named) {
                *id = format!("{}.{id}", self.namespace);
            }
            own.insert(key, value);
        }
        if tools > MAX_TOOLS || own.len() - tools > MAX_SERVICES {
            return Err(format!(
                "it has more than {MAX_SERVICES} services or {MAX_TOOLS} tools"
            ));
        }
        let text = Value::Object(own).to_string();
        if text == present.text || descriptors.is_empty() && present.text.is_empty() {
            return Ok(false);
        }
        *present = match descriptors.is_empty() {
            // A withdrawal does not start the pause: a host that restarts may announce again at
            // once.
            true => Announcement {
                since: present.since,
                ..Announcement::default()
            },
            false
                if present
                    .since
                    .is_some_and(|since| since.elapsed() < MIN_CHANGE_INTERVAL) =>
            {
                return Err("it changed a moment ago, and may change once a second".to_owned());
            }
            false => Announcement {
                since: Some(Instant::now()),
                found: self.read(&text)?,
                text,
            },
        };
        Ok(true)
    }

    fn read(&self, text: &str) -> Result<Discovery, String> {
        let (found, _) = descriptor::read(text.as_bytes()).map_err(|problems| {
            let first = problems
                .iter()
                .find(|problem| problem.severity == Severity::Error);
            let first = first.map_or_else(String::new, |first| {
                format!("{}: {}", first.pointer, first.message)
            });
            text::printable(&text::head(&first, 300))
        })?;
        let known = |service: &str| found.services.iter().any(|it| it.id == service);
        let services = found
            .services
            .iter()
            .map(|it: &_| Described {
                descriptor: Arc::new(Clone::clone(it)),
                file: PathBuf::new(),
            })
            .collect();
        let tools = found
            .tools
            .into_iter()
            .map(|mut manifest: Manifest| {
                if manifest
                    .remote()
                    .is_some_and(|remote| !known(&remote.service))
                {
                    return Err(format!(
                        "it does not describe the service of {}",
                        manifest.id
                    ));
                }
                manifest.model_name = None;
                Ok(Tool::new(Arc::new(manifest), nowhere(), &self.id))
            })
            .collect::<Result<_, _>>()?;
        Ok(Discovery {
            tools,
            services,
            ..Discovery::default()
        })
    }

    /// The policy entries that would allow calls of these tools, one for each service.
    pub fn grants(&self) -> Vec<String> {
        lock(&self.present)
            .found
            .services
            .iter()
            .map(|it: &Described| {
                let it = &it.descriptor;
                let id = json!(it.id);
                let request = json!(it.requests);
                let response = json!(it.response);
                format!(
                    "{{ service = {id}, request = {request}, response = {response}, why = \"…\" }}"
                )
            })
            .collect()
    }

    /// The ids of its tools.
    pub fn tools(&self) -> Vec<String> {
        lock(&self.present)
            .found
            .tools
            .iter()
            .map(|tool| tool.manifest.id.clone())
            .collect()
    }
}

impl Source for Announced {
    fn id(&self) -> &str {
        &self.id
    }

    fn discover(&self) -> Result<Discovery, String> {
        Ok(lock(&self.present).found.clone())
    }
}

/// Removes what was announced with a namespace that something here has: an announcement can neither
/// replace a file nor disable one.
pub(super) fn drop_taken(tools: &mut Vec<Tool>, services: &mut Vec<Described>) {
    fn is_announced(tool: &Tool) -> bool {
        tool.source.starts_with(PREFIX)
    }
    let own = tools
        .iter()
        .filter(|tool| !is_announced(tool))
        .map(|tool| tool.manifest.namespace());
    let described = services
        .iter()
        .filter(|it| !it.file.as_os_str().is_empty())
        .map(|it| it.descriptor.id.as_str());
    let taken: BTreeSet<String> = own.chain(described).map(str::to_ascii_lowercase).collect();
    let is_taken = |name: &str| taken.contains(&name.to_ascii_lowercase());
    tools.retain(|tool| !is_announced(tool) || !is_taken(tool.manifest.namespace()));
    services.retain(|it| !it.file.as_os_str().is_empty() || !is_taken(&it.descriptor.id));
}
