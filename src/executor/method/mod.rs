//! Service methods: tools that are a function of this process, found by service and method name.
//!
//! For: service (as one executor among others) and programs that embed this library and bring
//! their own services. In: a call whose handler is `service-method`. Out: an outcome; an envelope
//! (`{success, outputData?, error?, logs?}`) stays an envelope. Never: starts a process itself; what
//! runs scripts does so through `Runner`, which the service implements (policy, walls and all).

mod scripts;
pub use scripts::{ScriptExecution, language_of};

use crate::manifest::Handler;
use crate::manifest::json::Text;
use crate::{executor, fault, manifest};
use fault::{Fault, Kind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

/// The name of the service that runs scripts.
pub use crate::policy::SCRIPT_SERVICE;

/// How deep service methods may call each other; more counts as a loop.
const MAX_DEPTH: u32 = 8;

pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send + 'a>>;

/// One method of one service. A method that streams sends events on `channel`.
pub trait ServiceMethod: Send + Sync {
    fn call<'a>(&'a self, context: &'a MethodContext, arguments: Value, channel: &'a executor::Events)
    -> Answering<'a>;

    /// True where the method answers with an envelope also when it fails.
    fn speaks_envelope(&self) -> bool {
        false
    }

    /// True where the method runs a script, which ends by the clock of the call; else the service enforces the limit.
    fn keeps_time(&self) -> bool {
        false
    }
}

/// What a method is told about its call.
pub struct MethodContext {
    pub call: executor::Context,
    pub manifest: Arc<manifest::Manifest>,
    pub site: manifest::Site,
    runner: Option<Arc<dyn Runner>>,
    facts: Mutex<Facts>,
}

impl MethodContext {
    /// What runs scripts, or the fault where this host has nothing for that.
    pub fn runner(&self) -> Result<&dyn Runner, Fault> {
        self.runner
            .as_deref()
            .ok_or_else(|| Fault::new(Kind::ServiceError, "This service has no way to run scripts in this host."))
    }

    /// Sets what ran below this call, for its outcome.
    pub fn note(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }
}

/// Walls, usage and results of what a method ran for the call.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub logs: Vec<String>,
    pub usage: Option<executor::Usage>,
    pub walls: executor::Walls,
    pub denials: executor::Denials,
    pub artifacts: Vec<executor::Artifact>,
    /// The `outputData` of the envelope, which then has none itself.
    pub output: Option<Text>,
    /// The refusal, where nothing was started: kept whole for its words for the person.
    pub refused: Option<Fault>,
}

/// One script (or source text) that a method wants run.
#[derive(Clone)]
pub struct Script {
    pub what: What,
    pub input: Value,
    pub timeout_ms: Option<u64>,
    /// Literals for the environment of this run.
    pub env: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub enum What {
    /// A script that `Runner::locate` found.
    File { site: manifest::Site, language: manifest::Language },
    /// Source text that comes with the call: scratch only.
    Source { language: manifest::Language, code: String },
}

/// How one such run ended.
#[derive(Clone, Debug)]
pub struct Ran {
    pub result: Result<Text, Fault>,
    pub facts: Facts,
}

/// Policy and the script executors, which the service lends to methods.
pub trait Runner: Send + Sync {
    /// Checks the path, then resolves it, before anything else about the script is looked at.
    fn locate(&self, script_path: &str) -> Result<manifest::Site, Fault>;

    /// Policy, confinement, run, judgement.
    fn run<'a>(
        &'a self,
        context: &'a MethodContext,
        script: Script,
        channel: &'a executor::Events,
    ) -> Pin<Box<dyn Future<Output = Ran> + Send + 'a>>;
}

type Names = (String, String);

/// The in-process services of this host.
#[derive(Default)]
pub struct Methods {
    methods: RwLock<BTreeMap<Names, Arc<dyn ServiceMethod>>>,
    runner: OnceLock<Weak<dyn Runner>>,
}

impl Methods {
    /// No services at all.
    pub fn empty() -> Methods {
        Methods::default()
    }

    /// The services this host ships: `ExternalScriptExecutionService`.
    pub fn new() -> Methods {
        let methods = Methods::default();
        methods.register(SCRIPT_SERVICE, "executeScript", Arc::new(ScriptExecution::Execute));
        methods.register(SCRIPT_SERVICE, "runCode", Arc::new(ScriptExecution::RunCode));
        methods
    }

    /// Adds or replaces a method. Services may register at any time.
    pub fn register(&self, service: &str, method: &str, body: Arc<dyn ServiceMethod>) {
        let mut methods = self.methods.write().unwrap_or_else(PoisonError::into_inner);
        methods.insert((service.to_owned(), method.to_owned()), body);
    }

    /// Adds a plain function. It runs on a thread of its own, so it may block.
    pub fn register_sync<F>(&self, service: &str, method: &str, body: F)
    where
        F: Fn(Value) -> Result<Value, Fault> + Send + Sync + 'static,
    {
        self.register(service, method, Arc::new(Plain(Arc::new(body))));
    }

    /// Lends the runner of scripts to methods; the service does this once.
    pub fn bind(&self, runner: Weak<dyn Runner>) {
        let _ = self.runner.set(runner);
    }

    /// The method behind a handler, if it is registered.
    pub fn find(&self, handler: &Handler) -> Option<Arc<dyn ServiceMethod>> {
        let Handler::ServiceMethod { service, method, .. } = handler else { return None };
        let methods = self.methods.read().unwrap_or_else(PoisonError::into_inner);
        methods.get(&(service.clone(), method.clone())).cloned()
    }

    /// The fault of a call where nothing is registered for this handler.
    pub fn knows(&self, handler: &Handler) -> Result<(), Fault> {
        self.required(handler).map(drop)
    }

    fn required(&self, handler: &Handler) -> Result<Arc<dyn ServiceMethod>, Fault> {
        if let Some(found) = self.find(handler) {
            return Ok(found);
        }
        let Handler::ServiceMethod { service, method, .. } = handler else {
            return Err(Fault::new(Kind::InternalError, "This tool is not a service method."));
        };
        let methods = self.methods.read().unwrap_or_else(PoisonError::into_inner);
        let siblings: Vec<&str> =
            methods.keys().filter(|(name, _)| name == service).map(|(_, method)| method.as_str()).collect();
        let fault = if siblings.is_empty() {
            Fault::new(Kind::ServiceError, format!("Service '{service}' is not registered in this host."))
        } else {
            Fault::new(Kind::ServiceError, format!("Service '{service}' has no method '{method}'."))
                .details(format!("It has: {}.", siblings.join(", ")))
        };
        Err(fault)
    }
}

impl executor::Executor for Methods {
    fn run<'a>(
        &'a self,
        context: &'a executor::Context,
        call: executor::Call,
        events: &'a executor::Events,
    ) -> executor::Running<'a> {
        Box::pin(async move {
            let body = self.required(&call.manifest.handler)?;
            if context.depth >= MAX_DEPTH {
                return Err(Fault::new(Kind::ServiceError, "Service methods call each other in a loop."));
            }
            let handler = call.manifest.handler.clone();
            let arguments = renamed(&handler, call.input);
            let mut below = context.clone();
            below.depth += 1;
            let started = std::time::Instant::now();
            let method = MethodContext {
                call: below,
                manifest: call.manifest,
                site: call.site,
                runner: self.runner.get().and_then(Weak::upgrade),
                facts: Mutex::default(),
            };
            let answer = body.call(&method, arguments, events).await;
            let mut value = answer.map_err(|fault| renamed_back(&handler, fault))?;
            let facts = method.facts.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(refused) = facts.refused {
                return Err(renamed_back(&handler, refused));
            }
            let ending = if is_envelope(&value) {
                let own = value.as_object_mut().and_then(|fields| fields.shift_remove("outputData"));
                executor::Ending::Envelope {
                    told: value,
                    output: facts.output.or_else(|| own.as_ref().map(Text::from)),
                }
            } else {
                executor::Ending::answer(&value)
            };
            Ok(executor::Outcome {
                ending,
                logs: facts.logs,
                printed: Vec::new(),
                usage: facts.usage.unwrap_or_else(|| executor::Usage {
                    wall_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    ..executor::Usage::default()
                }),
                walls: facts.walls,
                denials: facts.denials,
                artifacts: facts.artifacts,
            })
        })
    }
}

/// A plain function as a method.
struct Plain<F>(Arc<F>);

impl<F> ServiceMethod for Plain<F>
where
    F: Fn(Value) -> Result<Value, Fault> + Send + Sync + 'static,
{
    fn call<'a>(&'a self, _: &'a MethodContext, arguments: Value, _: &'a executor::Events) -> Answering<'a> {
        let body = self.0.clone();
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || body(arguments)).await;
            answer.unwrap_or_else(|_| Err(Fault::new(Kind::InternalError, "The service method failed unexpectedly.")))
        })
    }
}

/// Inputs under the names that the method uses (`parameter_map`).
fn renamed(handler: &Handler, input: Value) -> Value {
    let Handler::ServiceMethod { parameter_map, .. } = handler else { return input };
    match input {
        Value::Object(fields) if !parameter_map.is_empty() => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| (parameter_map.get(&name).cloned().unwrap_or(name), value))
                .collect::<Map<_, _>>(),
        ),
        other => other,
    }
}

/// Replaces the method's parameter names in a fault by the tool's, which the caller knows.
fn renamed_back(handler: &Handler, fault: Fault) -> Fault {
    let Handler::ServiceMethod { parameter_map, .. } = handler else { return fault };
    let own = |words: String| {
        let mut parts = words.split_inclusive("parameter '");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |out, part| {
            let name = part.split('\'').next().unwrap_or_default();
            let tools = parameter_map.iter().find(|(_, methods)| *methods == name).map_or(name, |(tools, _)| tools);
            out + tools + &part[name.len()..]
        })
    };
    Fault { message: own(fault.message), details: fault.details.map(own), ..fault }
}

/// Whether a value is an envelope: `success`, an error exactly when that is false, and no field beside its four.
pub fn is_envelope(value: &Value) -> bool {
    let Value::Object(fields) = value else { return false };
    let known = fields.keys().all(|key| matches!(key.as_str(), "success" | "outputData" | "error" | "logs"));
    let error = fields.get("error").filter(|error| !error.is_null());
    known
        && match fields.get("success") {
            Some(Value::Bool(true)) => error.is_none(),
            Some(Value::Bool(false)) => error
                .is_some_and(|error| error["type"].is_string() && error.get("message").is_some_and(Value::is_string)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_envelope_is_told_from_a_plain_value() {
        assert!(is_envelope(&json!({"success": true, "outputData": 1})));
        assert!(is_envelope(&json!({"success": false, "error": {"type": "ScriptError", "message": "m"}})));
        for plain in [
            json!({"success": true, "rows": 3}),
            json!({"success": false}),
            json!({"success": true, "error": {"type": "ScriptError", "message": "m"}}),
            json!({"success": "yes"}),
            json!([true]),
        ] {
            assert!(!is_envelope(&plain), "{plain}");
        }
    }

    #[test]
    fn a_mapped_name_reaches_the_method_under_its_new_name() {
        let handler = Handler::ServiceMethod {
            service: "s".into(),
            method: "m".into(),
            language: None,
            parameter_map: BTreeMap::from([("path".into(), "scriptPath".into())]),
        };
        assert_eq!(renamed(&handler, json!({"path": "a", "b": 1})), json!({"scriptPath": "a", "b": 1}));
    }
}
