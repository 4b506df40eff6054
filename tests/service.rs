//! The pipeline of one call: order, reports, records, envelopes, cancellation.

use crate::harness::fake::{caller, define, request, world, world_with, written};
use crate::prelude::*;
use toolhost::executor::{Call, Context, Ending, Executor, Running, ToolSender, method};
use toolhost::fault::Fault;
use toolhost::fault::Kind::*;
use toolhost::service::{CallRequest, Caller, Sink};

#[tokio::test]
async fn a_success_has_every_field_of_the_outcome_and_its_record_what_it_could_touch() {
    let world = world();
    let report = world.call("fake:echo", json!({"message": "hi"})).await;
    let json = json!(report);
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let expected = "id tool version success outputData logs usage layers denials artifacts digests";
    assert_eq!(keys(&json), expected);
    assert_eq!(
        keys(&json["usage"]),
        "wallMs cpuMs peakMemoryBytes outputBytes"
    );
    assert_eq!(json["outputData"], json!({"received_message": "hi"}));
    assert_eq!(
        (json["tool"].as_str(), json["version"].as_str()),
        (Some("fake:echo"), Some("1.0.0"))
    );
    assert_eq!(json["layers"][0]["state"], "active");
    assert_eq!(
        json["logs"],
        json!(["live line"]),
        "lines that were sent while it ran"
    );
    for digest in ["manifest", "script", "policy", "confinement"] {
        assert_eq!(
            json["digests"][digest].as_str().map(str::len),
            Some(64),
            "{digest}"
        );
    }
    assert_eq!(
        report.observation(),
        "Tool fake:echo executed successfully. Output: {\"received_message\":\"hi\"}"
    );

    let past = toolhost::service::audit::Log::new(world.root().join("state/audit.jsonl"))
        .recall(&report.id)
        .unwrap();
    assert_eq!(past.record["tool"], "fake:echo");
    let shape = past.confinement.unwrap();
    assert_eq!(shape["tool"], "fake:echo@1.0.0");
    assert!(
        shape["script"]
            .as_str()
            .unwrap()
            .ends_with("examples/echo.py")
    );
    let kept = world.root().join("state/confinements");
    let file = fs::read_dir(&kept).unwrap().next().unwrap().unwrap();
    let mode = |facts: fs::Metadata| facts.permissions().mode() & 0o777;
    assert_eq!(
        (
            mode(file.metadata().unwrap()),
            mode(fs::metadata(&kept).unwrap())
        ),
        (0o600, 0o700)
    );
    world.call("fake:echo", json!({"message": 2})).await;
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 1, "once per digest");
}

#[tokio::test]
async fn each_failure_has_its_type_and_leaves_one_record() {
    let world = world();
    let cases = [
        ("fake:nothing", json!({}), ToolNotFoundError, "refused"),
        ("fake:echo@^2", json!({}), VersionMismatchError, "refused"),
        (
            "fake:whole",
            json!({"timeoutMs": 5}),
            ParameterValidationError,
            "refused",
        ),
        (
            "fake:whole",
            json!({"timeoutMsx": 5}),
            ParameterValidationError,
            "refused",
        ),
        ("fake:greedy", json!({}), SecurityError, "refused"),
        ("fake:fails", json!({}), ScriptError, "allowed"),
        ("fake:over", json!({}), ResourceLimitError, "allowed"),
        ("fake:long_running", json!({}), TimeoutError, "allowed"),
        ("fake:wrong", json!({}), OutputValidationError, "allowed"),
        ("fake:panics", json!({}), InternalError, "allowed"),
        (
            "core:execute-nodejs-script",
            json!({"scriptPath": "examples/echo.py"}),
            ParameterValidationError,
            "refused",
        ),
        (
            "core:execute-python-script",
            json!({"scriptPath": "../secret.py"}),
            SecurityError,
            "refused",
        ),
    ];
    for (at, (tool, arguments, kind, decision)) in cases.iter().enumerate() {
        let report = world.call(tool, arguments.clone()).await;
        let error = report
            .outcome
            .fault()
            .unwrap_or_else(|| panic!("{tool} {arguments} should fail"));
        assert_eq!(error.kind, *kind, "{tool} {arguments}: {error:?}");
        assert!(!report.outcome.is_success() && report.output().is_none());
        let json = json!(report);
        assert_eq!(json["error"]["type"], kind.to_string());
        assert!(json["error"]["origin"].is_string() && json["error"]["retryable"].is_boolean());
        assert!(
            !json.to_string().contains(world.root().to_str().unwrap()),
            "no host path: {json}"
        );
        let records = world.records();
        assert_eq!(records.len(), at + 1, "one record each");
        let told = json!({"call": report.id, "outcome": kind.to_string(), "user": "alice", "decision": decision});
        told.as_object()
            .unwrap()
            .iter()
            .for_each(|(name, value)| assert_eq!(&records[at][name], value, "{tool}"));
    }
    assert!(
        world
            .call("fake:echo", json!({"message": 1}))
            .await
            .outcome
            .is_success(),
        "the service lives on"
    );
}

#[tokio::test]
async fn a_call_that_cannot_be_recorded_is_refused() {
    let world = world();
    fs::create_dir_all(world.root().join("state/audit.jsonl")).unwrap();
    let report = world.call("fake:echo", json!({"message": 1})).await;
    let error = report.outcome.into_fault().unwrap();
    assert_eq!(error.kind, InternalError);
    assert!(error.person.unwrap().contains("--audit-log"));
    assert!(
        !world
            .call("fake:echo", json!({"message": 1}))
            .await
            .outcome
            .is_success()
    );
    let unread = Fault::new(ParameterValidationError, "not a call");
    assert!(
        world
            .service
            .refusals
            .record(&caller(), "POST /", unread.clone())
            .is_err()
    );
    assert_eq!(world.runs(), 0);
    // What has no record is counted in one as soon as it can be written.
    fs::remove_dir(world.root().join("state/audit.jsonl")).unwrap();
    world.service.refusals.write_counts();
    let record = world.records().pop().unwrap();
    assert_eq!(
        record["notes"],
        json!(["2 such refusals before this one have no record"])
    );
    assert!(
        world
            .service
            .refusals
            .record(&caller(), "POST /", unread)
            .is_ok()
            && world.records().len() == 2,
        "the control"
    );
}

#[tokio::test]
async fn secrets_and_control_characters_stay_out_of_records_and_details() {
    let world = world();
    let report = world
        .call("fake:fails", json!({"token": "hunter2-very-secret"}))
        .await;
    let json = json!(report).to_string();
    let details = report.outcome.into_fault().unwrap().details.unwrap();
    assert!(
        !json.contains("hunter2") && details.contains("bad token ***"),
        "{details}"
    );
    assert!(
        !details.contains('\u{1b}') && details.contains("Traceback"),
        "{details}"
    );
    let text = fs::read_to_string(world.root().join("state/audit.jsonl")).unwrap();
    assert!(text.contains("***") && !text.contains("hunter2") && text.is_ascii());
    let nasty = CallRequest {
        caller: Caller::named("eve\n{\"call\":\"forged\"}\u{202e}"),
        ..request("no\nsuch\u{1b}[2J", json!({}))
    };
    let report = world.service.call(nasty, Sink::none()).await;
    assert!(!report.tool.contains('\u{1b}'));
    assert_eq!(world.records().len(), 2, "a name cannot add a line");
    // Neither arguments nor variables show in a debug line.
    let variable = toolhost::policy::Variable::Host("hunter22".to_owned());
    let shown = format!(
        "{:?} {variable:?}",
        request("app:x", json!({"token": "hunter22"}))
    );
    assert!(!shown.contains("hunter22"), "{shown}");
}

#[tokio::test]
async fn services_of_an_embedding_program_are_called_by_name_and_offered_once_they_are_there() {
    let who =
        json!({"type": "object", "properties": {"who": {"type": "string", "description": "d"}}});
    let mut methods = None;
    let world = world_with(|root, executors| {
        for (id, method) in [
            ("app:greet", "greet"),
            ("app:bad", "broken"),
            ("app:none", "nowhere"),
            ("app:boom", "boom"),
        ] {
            let handler = json!({"type": "service-method", "serviceName": "Greeter", "methodName": method,
                                 "parameterMap": {"who": "name"}});
            define(root, id, handler, json!({ "parameters": who }));
        }
        executors
            .methods
            .register_sync("Greeter", "greet", |input| {
                Ok(json!({"hello": input["name"]}))
            });
        executors.methods.register_sync("Greeter", "broken", |_| {
            Ok(
                json!({"success": false, "error": {"type": "DependencyError", "message": "no \
                database"}}),
            )
        });
        executors
            .methods
            .register_sync("Greeter", "boom", |_| panic!("a bug in a service"));
        methods = Some(executors.methods.clone());
    });
    let report = world.call("app:greet", json!({"who": "alice"})).await;
    assert_eq!(
        report.output(),
        Some(json!({"hello": "alice"})),
        "{:?}",
        report.outcome.into_fault()
    );
    for (tool, kind) in [
        ("app:bad", DependencyError),
        ("app:none", ServiceError),
        ("app:boom", InternalError),
    ] {
        assert_eq!(
            world
                .call(tool, json!({}))
                .await
                .outcome
                .into_fault()
                .unwrap()
                .kind,
            kind,
            "{tool}"
        );
    }
    // A method may be registered at any time: until then the tool fails, and is not offered.
    let tool = world
        .service
        .catalog
        .registry
        .snapshot()
        .find("app:none")
        .unwrap();
    assert!(!world.service.catalog.can_call(&caller(), &tool));
    methods.unwrap().register_sync("Greeter", "nowhere", Ok);
    assert!(
        world.service.catalog.can_call(&caller(), &tool)
            && world.call("app:none", json!({})).await.outcome.is_success()
    );
    assert_eq!(world.runs(), 0, "no process");
}

/// A new kind of tool through the public interface: answers what it is given, waits, or tells how
/// long its call's clock has run, in microseconds.
struct XEcho;

impl Executor for XEcho {
    fn run<'a>(&'a self, context: &'a Context, call: Call, _: &'a ToolSender) -> Running<'a> {
        Box::pin(async move {
            let answer = match call.input {
                input if input["wait"] == true => std::future::pending().await,
                input if input["words"].is_array() => {
                    json!(context.deadline.began.elapsed().as_micros() as u64)
                }
                input => input,
            };
            Ok(crate::harness::fake::outcome(
                Ending::answer(&answer),
                Vec::new(),
            ))
        })
    }
}

#[tokio::test]
async fn a_new_handler_type_needs_no_change_here_and_comes_and_goes_with_its_tool() {
    let world = world_with(|root, executors| {
        define(root, "app:x", json!({"type": "x-echo"}), json!({}));
        define(root, "app:y", json!({"type": "x-unknown"}), json!({}));
        executors
            .extensions
            .insert("x-echo".into(), Arc::new(XEcho));
    });
    assert_eq!(
        world.call("app:x", json!({"a": 1})).await.output(),
        Some(json!({"a": 1}))
    );
    assert_eq!(
        world
            .call("app:y", json!({}))
            .await
            .outcome
            .into_fault()
            .unwrap()
            .kind,
        CapabilityError
    );
    let started = Stopwatch::start();
    let waits = CallRequest {
        timeout_ms: Some(150),
        ..request("app:x", json!({"wait": true}))
    };
    let error = world
        .service
        .call(waits, Sink::none())
        .await
        .outcome
        .into_fault()
        .unwrap();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (TimeoutError, "Script execution timed out.")
    );
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "the service holds the clock"
    );

    let definition = |name: &str| json!({"toolId": name, "description": "Echoes.", "parameters": {"type": "object"}});
    let gone = async || {
        world
            .call("app:late", json!({}))
            .await
            .outcome
            .into_fault()
            .is_some_and(|fault| fault.kind == ToolNotFoundError)
    };
    assert!(gone().await, "the control");
    world
        .service
        .catalog
        .register(definition("app:late"), "x-late", Arc::new(XEcho))
        .unwrap();
    assert_eq!(
        world.call("app:late", json!({"a": 1})).await.output(),
        Some(json!({"a": 1}))
    );
    let fault = world
        .service
        .catalog
        .register(definition("app:other"), "x-late", Arc::new(XEcho))
        .unwrap_err();
    assert!(
        fault
            .message
            .contains("type 'x-late' is already registered"),
        "{}",
        fault.message
    );
    assert!(
        world
            .service
            .catalog
            .register(definition("nonamespace"), "x-none", Arc::new(XEcho))
            .is_err()
    );
    assert!(
        !world.service.catalog.unregister("fake:echo"),
        "what a file defines stays"
    );
    assert!(
        world.service.catalog.unregister("app:late")
            && !world.service.catalog.unregister("app:late")
    );
    assert!(gone().await);
    world
        .service
        .catalog
        .register(definition("app:other"), "x-late", Arc::new(XEcho))
        .expect("its handler is gone as well");
    // A call has its time once: a long check of its arguments is taken from it.
    let mut definition = definition("app:clock");
    let words = json!({"type": "array", "description": "d", "items": {"type": "string", "pattern": "^(ab|cd)*e?$"}});
    definition["parameters"]["properties"] = json!({ "words": words });
    world
        .service
        .catalog
        .register(definition, "x-clock", Arc::new(XEcho))
        .unwrap();
    let mut seen: Vec<(u128, u128)> = Vec::new();
    while seen.last().is_none_or(|(ran, all)| ran * 4 <= *all) {
        assert!(seen.len() < 5, "{seen:?} us");
        let began = Instant::now();
        let report = world
            .call("app:clock", json!({"words": vec!["abcdabcd"; 50_000]}))
            .await;
        let all = began.elapsed().as_micros();
        let ran = report.output().and_then(|ran| ran.as_u64());
        let ran = ran.unwrap_or_else(|| panic!("{:?}", report.outcome.into_fault()));
        seen.push((u128::from(ran), all));
    }
}

#[tokio::test]
async fn a_hundred_calls_at_once_each_get_their_own_answer() {
    let world = world();
    let start = |n| {
        let arguments = json!({"n": n, "delay": (n * 7) % 50});
        world
            .start(written(&format!("user-{n}"), "fake:user", &arguments))
            .1
    };
    let waiting: Vec<_> = (0..100).map(start).collect();
    for (n, mut call) in waiting.into_iter().enumerate() {
        let report = call.join_next().await.unwrap().unwrap();
        assert_eq!(
            report.output(),
            Some(json!({"user": format!("user-{n}"), "n": n}))
        );
    }
    assert_eq!(world.records().len(), 100);
}

#[tokio::test]
async fn a_tool_that_hangs_keeps_no_other_from_its_turn() {
    let world = world_with(|root, _| {
        let file = root.join("tool-defs/long_running.tool.json");
        fs::write(
            &file,
            fs::read_to_string(&file).unwrap().replace("1500", "20000"),
        )
        .unwrap();
    });
    let began = Instant::now();
    // More than may run, and more than may wait: 64 and 1024.
    let ask = |_| world.start(request("fake:long_running", json!({}))).1;
    let mut hanging: Vec<_> = (0..1100).map(ask).collect();
    until("48 run", || world.runs() >= 48).await;
    for n in 0..20 {
        assert!(
            world
                .call("fake:echo", json!({"message": n}))
                .await
                .outcome
                .is_success()
        );
    }
    assert_eq!(
        world.runs(),
        48 + 20,
        "48 of one tool run at once, and those of another beside them"
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "control: none of those that hang has ended"
    );
    let report = hanging.pop().unwrap().join_next().await.unwrap().unwrap();
    assert_eq!(
        report.outcome.into_fault().unwrap().kind,
        RateLimitError,
        "the last one found no room"
    );
}

/// A policy that narrows, and a manifest that asks for more than it gives.
fn narrowing(root: &Path) {
    let files = json!({"allowRead": ["self"], "allowWrite": ["out/**"]});
    let asks =
        json!({"securityContext": {"fileAccess": files}, "execution": {"timeoutMs": 20_000}});
    define(root, "u:eager", script("eager/echo.py", "python"), asks);
    fs::create_dir_all(root.join("user_scripts/eager")).unwrap();
    fs::write(root.join("user_scripts/eager/echo.py"), "").unwrap();
    let policy = "name = \"narrow\"\nwhy = \"w\"\ntools = [\"u:eager\"]\nmode = \
        \"narrow\"\n[limits]\ntimeout_ms = 5_000\n";
    fs::write(root.join("sandbox-policies/narrow.policy.toml"), policy).unwrap();
}

#[tokio::test]
async fn a_call_that_gets_less_says_so_in_its_report_and_its_record() {
    let world = world_with(|root, _| narrowing(root));
    let report = world.call("u:eager", json!({"message": 1})).await;
    let told = [
        "narrowed: write out/** is not granted in full",
        "clamped: timeoutMs asked 20000, gets 5000",
    ];
    assert!(report.outcome.is_success(), "{report:?}");
    assert_eq!(json!(report)["notes"], json!(told));
    assert!(
        !json!(report).to_string().contains("policy.toml"),
        "no place for a caller"
    );
    let record = &world.records()[0];
    assert_eq!(record["notes"][0], told[0]);
    let clamp = record["notes"][1].as_str().unwrap();
    assert!(
        clamp.starts_with(told[1]) && clamp.contains("narrow.policy.toml:"),
        "{clamp}"
    );

    // The same script by the builtin's road, with a call that asks for still more.
    let arguments =
        json!({"scriptPath": "eager/echo.py", "inputData": {"message": 1}, "timeoutMs": 25_000});
    let report = world.call("core:execute-python-script", arguments).await;
    assert!(
        report.outcome.is_success()
            && report
                .notes
                .contains(&"clamped: timeoutMs asked 25000, gets 5000".into()),
        "{report:?}"
    );
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("u:eager@1.0.0 names this script")),
        "{:?}",
        report.notes
    );
    assert_eq!(
        world.records()[1]["notes"].as_array().unwrap().len(),
        report.notes.len()
    );
    let plain = json!(world.call("fake:echo", json!({"message": 1})).await);
    assert!(plain.get("notes").is_none(), "nothing to say, nothing said");
}

/// A tool of its own over executeScript.
fn over_scripts(root: &Path, id: &str, map: Value, mut parameters: Value) {
    let handler = json!({"type": "service-method", "serviceName": method::SCRIPT_SERVICE,
                         "methodName": "executeScript", "parameterMap": map});
    parameters["scriptPath"] = json!({"type": "string", "description": "d"});
    let read = json!({"fileAccess": {"allowRead": ["self"]}});
    let parameters = json!({"type": "object", "properties": parameters});
    define(
        root,
        id,
        handler,
        json!({"parameters": parameters, "securityContext": read}),
    );
}

#[tokio::test]
async fn the_environment_of_a_call_answers_to_the_one_rule_and_reaches_no_record() {
    let secret = json!({"type": "string", "writeOnly": true});
    let env = json!({"type": "object", "description": "d", "additionalProperties": secret});
    let world = world_with(|root, _| over_scripts(root, "u:env", json!({}), json!({ "env": env })));
    let call = |script: &str, name: &str, text: &str| {
        world.call(
            "u:env",
            json!({"scriptPath": format!("{script}/echo.py"), "env": {name: text}}),
        )
    };
    // The variables that child programs obey are too many to list: a call sets only those that the
    // manifest declares.
    let obeyed = "BASH_ENV ENV PERL5OPT GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 OPENSSL_CONF RUBYOPT \
                  JAVA_TOOL_OPTIONS SSLKEYLOGFILE GCONV_PATH MODE";
    for name in crate::policy::calls::REFUSED_NAMES
        .iter()
        .copied()
        .chain(obeyed.split(' '))
    {
        let report = call("examples", name, "some text").await;
        let error = report
            .outcome
            .fault()
            .unwrap_or_else(|| panic!("{name}: {report:?}"));
        let told = format!(
            "{} {}",
            error.message,
            error.details.as_deref().unwrap_or_default()
        );
        assert_eq!(error.kind, SecurityError, "{name}: {report:?}");
        assert!(
            told.contains("the script's own manifest does not declare it: add it to execution.env"),
            "{told}"
        );
    }
    // For a script that no manifest names a call may set no variable.
    assert!(
        !call("free", "GREETING", "some text")
            .await
            .outcome
            .is_success()
    );
    assert_eq!(world.runs(), 0);
    assert!(
        call("examples", "GREETING", "some text")
            .await
            .outcome
            .is_success(),
        "the control"
    );

    let mut digests = Vec::new();
    for text in ["hunter2-very-secret", "swordfish-very-secret"] {
        let report = call("examples", "TOKEN", text).await;
        assert!(report.outcome.is_success(), "{report:?}");
        digests.push(report.digests.confinement);
        let seen = world.fake.seen.lock().unwrap();
        let seen = seen.last().unwrap();
        assert_eq!(seen.per_call.env["TOKEN"], text);
        assert!(
            seen.shape.env.is_empty() && !format!("{seen:?}").contains(text),
            "{seen:?}"
        );
        assert_eq!(
            world.records().pop().unwrap()["notes"],
            json!(["environment: set by the call: TOKEN"])
        );
    }
    assert!(
        world
            .call("u:env", json!({"scriptPath": "examples/echo.py"}))
            .await
            .outcome
            .is_success()
    );
    let seen = world.fake.seen.lock().unwrap();
    assert!(
        seen[3].per_call.env.is_empty() && seen[3].shape == seen[2].shape,
        "it ends with its call"
    );
    assert_eq!(digests[0], digests[1], "the digest is no oracle for it");
    for entry in walkdir::WalkDir::new(world.root().join("state"))
        .into_iter()
        .flatten()
    {
        let kept = fs::read_to_string(entry.path()).unwrap_or_default();
        assert!(
            !kept.contains("very-secret"),
            "{}: {kept}",
            entry.path().display()
        );
    }
}

/// A service with the script service's name that never looks for the script.
struct Stuck;

impl method::ServiceMethod for Stuck {
    fn call<'a>(
        &'a self,
        _: &'a method::MethodCall,
        _: Value,
        _: &'a ToolSender,
    ) -> method::Answering<'a> {
        Box::pin(std::future::pending())
    }
}

/// A tool of its own over executeScript, which says nothing of secrets.
fn runner(root: &Path) {
    let any = json!({"type": "object", "description": "d", "additionalProperties": true});
    over_scripts(
        root,
        "u:run",
        json!({"data": "inputData"}),
        json!({"data": any, "env": any}),
    );
}

fn run_of(script: &str) -> Value {
    json!({
        "scriptPath": script, "data": {"token": "hunter2-secret", "open": "plain words"},
        "env": {"KEY": "swordfish-secret"},
    })
}

#[tokio::test]
async fn a_script_run_by_path_keeps_the_secrets_of_the_manifests_that_name_it() {
    let world = world_with(|root, _| runner(root));
    // It fails, and the words of its failure hold its token.
    let report = world.call("u:run", run_of("examples/fails.py")).await;
    let told = json!(report).to_string();
    assert!(
        told.contains("bad token ***") && !told.contains("-secret"),
        "{told}"
    );
    // A script that no manifest names has no secret but its environment; of one that is not there
    // nothing is shown.
    for (script, shown) in [
        (
            "examples/fails.py",
            json!({"token": "***", "open": "plain words"}),
        ),
        (
            "free/echo.py",
            json!({"token": "hunter2-secret", "open": "plain words"}),
        ),
        ("free/missing.py", json!("***")),
    ] {
        world.call("u:run", run_of(script)).await;
        let record = world.records().pop().unwrap();
        let arguments: Value = serde_json::from_str(record["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&arguments["data"], &arguments["env"]),
            (&shown, &json!({"KEY": "***"})),
            "{script}"
        );
        assert_eq!(arguments["scriptPath"], script);
        assert!(!record.to_string().contains("swordfish"), "{record}");
    }
}

#[tokio::test]
async fn what_a_killed_host_would_leave_holds_no_secret_before_the_script_is_found() {
    let world = world_with(|root, executors| {
        runner(root);
        executors
            .methods
            .register(method::SCRIPT_SERVICE, "executeScript", Arc::new(Stuck));
    });
    let _call = world.start(request("u:run", run_of("examples/fails.py")));
    let begun = || {
        let files = fs::read_dir(world.root().join("state/begun"))
            .into_iter()
            .flatten()
            .flatten();
        files
            .map(|file| fs::read_to_string(file.path()).unwrap())
            .collect::<String>()
    };
    until("the call begins", || begun().contains("scriptPath")).await;
    assert!(
        begun().contains("examples/fails.py") && !begun().contains("-secret"),
        "{}",
        begun()
    );
}

/// Two tools whose lists may hold one of so many numbers: one takes such a list, one answers it.
fn choosy(root: &Path, choices: usize) {
    let choices: Vec<Value> = (0..choices).map(|n| json!({"const": n})).collect();
    let list = json!({"type": "object", "properties": {
        "a": {"type": "array", "description": "d", "items": {"anyOf": choices}}}});
    let free =
        json!({"type": "object", "properties": {"a": {"type": "array", "description": "d"}}});
    for (name, parameters, output) in [("takes", &list, &free), ("gives", &free, &list)] {
        let more = json!({"parameters": parameters, "output": output});
        define(
            root,
            &format!("c:{name}"),
            script("examples/whole.py", "python"),
            more,
        );
    }
}

#[tokio::test]
async fn a_check_that_would_take_long_is_refused_and_recorded() {
    let world = world_with(|root, _| choosy(root, 900));
    let list = |count: usize| json!({"a": vec![json!(899); count]});
    for (tool, kind) in [
        ("c:takes", ParameterValidationError),
        ("c:gives", OutputValidationError),
    ] {
        let started = Stopwatch::start();
        let error = world
            .call(tool, list(150_000))
            .await
            .outcome
            .into_fault()
            .unwrap();
        assert_eq!(error.kind, kind);
        assert!(
            error.message.contains("must be smaller"),
            "{}",
            error.message
        );
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{tool}: {:?}",
            started.elapsed()
        );
        assert_eq!(world.records().pop().unwrap()["outcome"], kind.to_string());
        // The same schema for a list of everyday length, and a wrong one.
        let report = world.call(tool, list(200)).await;
        assert!(report.outcome.is_success(), "{report:?}");
        assert_eq!(
            world
                .call(tool, json!({"a": [900]}))
                .await
                .outcome
                .into_fault()
                .unwrap()
                .kind,
            kind
        );
    }
}

#[test]
fn a_long_check_ends_by_the_clock_and_stands_in_nobodys_way() {
    // With one thread: long work on it would keep other calls waiting.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    in_time_once(|| runtime.block_on(checks_for_long()));
}

async fn checks_for_long() -> Result<(), String> {
    let world = world_with(|root, _| choosy(root, 100));
    let list = json!({"a": vec![json!(99); 60_000]});
    assert!(
        world
            .call("c:takes", list.clone())
            .await
            .outcome
            .is_success(),
        "long, but not too long"
    );
    let long = |timeout_ms| {
        world
            .start(CallRequest {
                timeout_ms,
                ..request("c:takes", list.clone())
            })
            .1
    };
    let calls: Vec<_> = (0..4).map(|_| long(None)).collect();
    let mut late = long(Some(100));
    tokio::task::yield_now().await;
    let started = Instant::now();
    let idle = Stopwatch::start();
    assert!(
        world
            .call("fake:echo", json!({"message": 1}))
            .await
            .outcome
            .is_success()
    );
    let quick = idle.elapsed();
    let late = late.join_next().await.unwrap().unwrap();
    let ended = idle.elapsed();
    assert_eq!(late.outcome.into_fault().unwrap().kind, TimeoutError);
    for mut call in calls {
        assert!(
            call.join_next()
                .await
                .unwrap()
                .unwrap()
                .outcome
                .is_success()
        );
    }
    let all = started.elapsed();
    let records = world.records();
    assert_eq!(
        records
            .iter()
            .filter(|record| record["outcome"] == "TimeoutError")
            .count(),
        1
    );
    assert_eq!(records.len(), 7);
    let is_in_time = quick < all / 4 && ended < Duration::from_millis(1100);
    is_in_time
        .then_some(())
        .ok_or_else(|| format!("{quick:?} and {ended:?} of {all:?}"))
}
