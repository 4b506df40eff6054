//! Service methods: tools that are a function of this process, found by service and method name.
//!
//! A program that embeds this library registers its own. The two methods that name a script
//! (`ScriptMethod`) are not run here: the service makes the script the target of the call.

use crate::manifest::{self, Handler};
use crate::{executor, fault};
use fault::{Fault, Kind};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// The name of the service that runs scripts.
pub use crate::policy::SCRIPT_SERVICE;
/// The service and method that report on calls in the background. Only servers that keep such calls
/// have it.
pub const CALL_STATUS: (&str, &str) = ("BackgroundCallService", "status");

/// The service and method by which a model looks for tools.
pub const SEARCH_TOOLS: (&str, &str) = ("ToolRegistryService", "searchTools");
/// The service of the tools for skills. A call of `run` is taken for one of the skill's own tool.
pub const SKILL_SERVICE: &str = "SkillService";
/// Those of a call that names its tool, which the service takes for a call of that tool.
const CALL_TOOL: (&str, &str) = ("ToolRegistryService", "callTool");

pub type Answering<'a> = BoxFuture<'a, Result<Value, Fault>>;

/// One method of one service. A method that streams sends parts of its answer as events.
pub trait ServiceMethod: Send + Sync {
    fn call<'a>(
        &'a self,
        call: &'a MethodCall,
        arguments: Value,
        events: &'a executor::ToolSender,
    ) -> Answering<'a>;
}

/// What a method knows about its call.
pub struct MethodCall {
    pub context: executor::Context,
    pub manifest: Arc<manifest::Manifest>,
    pub site: manifest::ToolPaths,
}

/// The two methods of `ExternalScriptExecutionService`. Their calls lead to a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptMethod {
    /// `executeScript {toolId?, scriptPath, language?, inputData?, timeoutMs?, env?}`
    Execute,
    /// `runCode {toolId?, language, code, inputData?, timeoutMs?}`
    RunCode,
}

/// What a service method is.
#[derive(Clone)]
pub enum Method {
    /// A function of this process.
    Function(Arc<dyn ServiceMethod>),
    /// An executor of this process, whose answer is JSON text already.
    Executor(Arc<dyn executor::Executor>),
    /// A script that the arguments name or contain.
    Script(ScriptMethod),
}

/// The names of a service and of its method.
type MethodName = (String, String);

/// The services of this host.
#[derive(Default)]
pub struct Methods {
    methods: RwLock<BTreeMap<MethodName, Method>>,
}

impl Methods {
    /// The services this host ships: those that run scripts, and those that look for tools.
    pub fn new() -> Methods {
        let methods = Methods::default();
        methods.insert(
            SCRIPT_SERVICE,
            "executeScript",
            Method::Script(ScriptMethod::Execute),
        );
        methods.insert(
            SCRIPT_SERVICE,
            "runCode",
            Method::Script(ScriptMethod::RunCode),
        );
        methods.register_sync(SEARCH_TOOLS.0, SEARCH_TOOLS.1, |_| {
            let message = "This process has no index of its tools.";
            Err(Fault::new(Kind::ServiceError, message))
        });
        for name in ["list", "read", "run"] {
            methods.register_sync(SKILL_SERVICE, name, |_| {
                let message = "This process does not serve skills by an alias.";
                Err(Fault::new(Kind::CapabilityError, message))
            });
        }
        methods.register_sync(CALL_TOOL.0, CALL_TOOL.1, |_| {
            let message = "Call the tool by its own id: core:call-tool is for MCP clients alone.";
            Err(Fault::new(Kind::CapabilityError, message))
        });
        methods
    }

    /// Adds or replaces a method. Services may register at any time.
    pub fn register(&self, service: &str, method: &str, body: Arc<dyn ServiceMethod>) {
        self.insert(service, method, Method::Function(body));
    }

    /// Adds a plain function. It runs on a thread of its own, so it may block.
    pub fn register_sync(
        &self,
        service: &str,
        method: &str,
        body: impl Fn(Value) -> Result<Value, Fault> + Send + Sync + 'static,
    ) {
        self.register(service, method, Arc::new(Plain(Arc::new(body))));
    }

    /// Adds a method that answers with JSON text. (A value would take several times the memory.)
    pub fn register_executor(
        &self,
        service: &str,
        method: &str,
        body: Arc<dyn executor::Executor>,
    ) {
        self.insert(service, method, Method::Executor(body));
    }

    fn insert(&self, service: &str, method: &str, body: Method) {
        let mut methods = self.methods.write().unwrap_or_else(PoisonError::into_inner);
        methods.insert((service.to_owned(), method.to_owned()), body);
    }

    /// The method behind a handler, or the fault of each call to it.
    pub fn find(&self, handler: &Handler) -> Result<Method, Fault> {
        let Handler::ServiceMethod {
            service, method, ..
        } = handler
        else {
            return Err(Fault::new(
                Kind::InternalError,
                "This tool is not a service method.",
            ));
        };
        let methods = self.methods.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = methods.get(&(service.clone(), method.clone())) {
            return Ok(found.clone());
        }
        let siblings: Vec<&str> = methods
            .keys()
            .filter(|(name, _)| name == service)
            .map(|(_, method)| method.as_str())
            .collect();
        Err(if is_call_status(handler) && siblings.is_empty() {
            Fault::new(
                Kind::ServiceError,
                "This process keeps no calls in the background.",
            )
            .details("Ask the server that gave the receipt: `toolhost serve --http` keeps them.")
        } else if siblings.is_empty() {
            Fault::new(
                Kind::ServiceError,
                format!("Service '{service}' is not registered in this host."),
            )
        } else {
            Fault::new(
                Kind::ServiceError,
                format!("Service '{service}' has no method '{method}'."),
            )
            .details(format!("It has: {}.", siblings.join(", ")))
        })
    }
}

impl executor::Executor for Methods {
    fn run<'a>(
        &'a self,
        context: &'a executor::Context,
        call: executor::Call,
        events: &'a executor::ToolSender,
    ) -> executor::Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let manifest = call.manifest.clone();
            let mut call = call;
            call.input = rename_inputs(&manifest.handler, std::mem::take(&mut call.input));
            let back = |fault| restore_names(&manifest.handler, fault);
            let body = match self.find(&manifest.handler)? {
                Method::Function(body) => body,
                Method::Executor(body) => {
                    return body.run(context, call, events).await.map_err(back);
                }
                Method::Script(_) => {
                    return Err(Fault::new(
                        Kind::InternalError,
                        "This call runs a script, not a method.",
                    ));
                }
            };
            let method = MethodCall {
                context: context.clone(),
                manifest: manifest.clone(),
                site: call.site,
            };
            let mut value = body.call(&method, call.input, events).await.map_err(back)?;
            let ending = if is_envelope(&value) {
                let own = value
                    .as_object_mut()
                    .and_then(|fields| fields.shift_remove("outputData"));
                executor::Ending::Envelope {
                    told: value,
                    output: own.as_ref().map(executor::ToolAnswer::from),
                }
            } else {
                executor::Ending::answer(&value)
            };
            Ok(executor::Outcome::new(
                ending,
                crate::base::millis(started.elapsed()),
            ))
        })
    }
}

/// Whether a handler is the method that reports on calls in the background.
pub fn is_call_status(handler: &Handler) -> bool {
    let Handler::ServiceMethod {
        service, method, ..
    } = handler
    else {
        return false;
    };
    (service.as_str(), method.as_str()) == CALL_STATUS
}

/// A plain function as a method.
struct Plain(Arc<dyn Fn(Value) -> Result<Value, Fault> + Send + Sync>);

impl ServiceMethod for Plain {
    fn call<'a>(
        &'a self,
        _: &'a MethodCall,
        arguments: Value,
        _: &'a executor::ToolSender,
    ) -> Answering<'a> {
        let body = self.0.clone();
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || body(arguments)).await;
            answer.unwrap_or_else(|_| {
                Err(Fault::new(
                    Kind::InternalError,
                    "The service method failed unexpectedly.",
                ))
            })
        })
    }
}

/// Renames the inputs to the names that the method uses (`parameter_map`).
pub(crate) fn rename_inputs(handler: &Handler, input: Value) -> Value {
    let Handler::ServiceMethod { parameter_map, .. } = handler else {
        return input;
    };
    match input {
        Value::Object(fields) if !parameter_map.is_empty() => fields
            .into_iter()
            .map(|(name, value)| (parameter_map.get(&name).cloned().unwrap_or(name), value))
            .collect::<Map<_, _>>()
            .into(),
        other => other,
    }
}

/// Replaces the method's parameter names in a fault by the tool's, which the caller knows.
pub(crate) fn restore_names(handler: &Handler, fault: Fault) -> Fault {
    let Handler::ServiceMethod { parameter_map, .. } = handler else {
        return fault;
    };
    let own = |words: String| {
        let mut parts = words.split_inclusive("parameter '");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |out, part| {
            let name = part.split('\'').next().unwrap_or_default();
            let tools = parameter_map
                .iter()
                .find(|(_, methods)| *methods == name)
                .map_or(name, |(tools, _)| tools);
            out + tools + &part[name.len()..]
        })
    };
    let flaws = fault.flaws.into_iter().map(own).collect();
    Fault {
        message: own(fault.message),
        details: fault.details.map(own),
        flaws,
        ..fault
    }
}

/// Whether a value is an envelope: `success`, an error exactly when that is false, and no field
/// beside its four.
pub fn is_envelope(value: &Value) -> bool {
    let Value::Object(fields) = value else {
        return false;
    };
    let known = fields
        .keys()
        .all(|key| matches!(key.as_str(), "success" | "outputData" | "error" | "logs"));
    let error = fields.get("error").filter(|error| !error.is_null());
    known
        && match fields.get("success") {
            Some(Value::Bool(true)) => error.is_none(),
            Some(Value::Bool(false)) => error.is_some_and(|error| {
                error["type"].is_string() && error.get("message").is_some_and(Value::is_string)
            }),
            _ => false,
        }
}
