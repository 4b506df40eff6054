//! Traces: the context of a request goes on into the tool, stands in the log and the record, and
//! becomes spans.

use crate::http::{Receiver, Web};
use crate::prelude::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const STATE: &str = "vendor=opaque";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

/// Prints its trace variables.
const SCRIPT: &str = "import json, os\n\
    print(json.dumps([os.environ.get(name) for name in ('TRACEPARENT', 'TRACESTATE')]))\n";

/// The same script, once with these variables declared and once without.
fn tools(playground: &Playground) {
    let declared = json!({"execution": {"env": {"TRACEPARENT": "", "TRACESTATE": ""}}});
    playground.tool("traced", "python", SCRIPT, declared);
    playground.tool("blind", "python", SCRIPT, json!({}));
    playground.settle();
}

/// A collector: keeps what it is sent.
struct Collector {
    address: String,
    receiver: Receiver,
}

impl Collector {
    fn start() -> Collector {
        let receiver = Receiver::new(&["200 OK"]);
        Collector {
            address: format!("http://127.0.0.1:{}/v1/traces", receiver.port),
            receiver,
        }
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Value> {
        let bodies = self
            .receiver
            .heard()
            .into_iter()
            .map(|(_, body)| serde_json::from_str::<Value>(&body).unwrap());
        let list = |of: &Value, name: &str| of[name].as_array().unwrap().clone();
        let scopes = bodies
            .flat_map(|body| list(&body, "resourceSpans"))
            .flat_map(|one| list(&one, "scopeSpans"));
        scopes.flat_map(|scope| list(&scope, "spans")).collect()
    }

    fn named(&self, name: &str) -> Vec<Value> {
        self.spans()
            .into_iter()
            .filter(|span| span["name"] == name)
            .collect()
    }
}

fn attribute<'s>(span: &'s Value, name: &str) -> &'s Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == name);
    found.map_or(&Value::Null, |attribute| &attribute["value"])
}

/// The trace in the record of the last call.
fn recorded(playground: &Playground) -> Value {
    playground.records().pop().unwrap()["trace"].clone()
}

/// `logs.rs` checks the lines of the log.
#[test]
fn the_context_of_each_transport_goes_on_into_tool_and_record() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground);
    let given = json!([parent("01"), STATE]);
    let headers = [
        &*format!("traceparent: {}", parent("01")),
        &*format!("tracestate: {STATE}"),
    ];
    let web = Web::start(&playground, &[]);
    for (tool, headers, wanted, trace) in [
        ("esc:traced", &headers[..], &given, json!(TRACE)),
        // Its manifest declares neither.
        ("esc:blind", &headers, &json!([null, null]), json!(TRACE)),
        // The control: none, an invalid one, and two.
        ("esc:traced", &[], &json!(["", ""]), json!(null)),
        (
            "esc:traced",
            &["traceparent: 00-zz"],
            &json!(["", ""]),
            json!(null),
        ),
        (
            "esc:traced",
            &["traceparent: not one"],
            &json!(["", ""]),
            json!(null),
        ),
        (
            "esc:traced",
            &[headers[0], headers[0]],
            &json!(["", ""]),
            json!(null),
        ),
    ] {
        let outcome = web.call(tool, &json!({}), headers).json();
        assert_eq!(
            (&outcome["outputData"], recorded(&playground)),
            (wanted, trace),
            "{tool} {headers:?}"
        );
    }
    for (path, body) in [
        (
            "/v1/actions",
            json!({"text": "<ACTION><tool>esc:traced</tool><input>{}</input></ACTION>"}),
        ),
        ("/v1/calls", json!({"calls": [{"tool": "esc:traced"}]})),
    ] {
        web.call("esc:traced", &json!({}), &[]);
        web.ask("POST", path, &headers, &body.to_string());
        assert_eq!(recorded(&playground), TRACE, "{path}");
    }
    drop(web);

    let meta = json!({"traceparent": parent("01"), "tracestate": STATE});
    let asked = json!({"name": "esc__traced", "arguments": {}, "_meta": meta});
    let answer = Server::start(&playground).asked("tools/call", asked);
    assert_eq!(
        serde_json::from_str::<Value>(&words(&answer)).unwrap(),
        given,
        "MCP"
    );
    assert_eq!(recorded(&playground), TRACE, "MCP");

    let mut command = playground.host();
    command.args(["--log", "info,json", "call", "esc:traced", "--json"]);
    command
        .env("TRACEPARENT", parent("01"))
        .env("TRACESTATE", STATE);
    let ended = finish(command, b"");
    assert_eq!(
        (&ended.out["outputData"], recorded(&playground)),
        (&given, json!(TRACE)),
        "{ended:?}"
    );
    let lines = ended
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let own: Vec<Value> = lines
        .filter(|line| line["call"] == ended.out["id"])
        .collect();
    assert!(
        !own.is_empty() && own.iter().all(|line| line["trace"] == TRACE),
        "{own:?}"
    );
}

#[test]
fn a_collector_is_told_of_the_call_and_its_stages_and_of_nothing_secret() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground);
    let collector = Collector::start();
    let config = playground.path("state/config.toml");
    fs::write(
        &config,
        format!("[traces]\nendpoint = \"{}\"\n", collector.address),
    )
    .unwrap();
    playground.settle();
    let mut web = Web::start(&playground, &["--config", &config.display().to_string()]);
    let header = format!("traceparent: {}", parent("01"));
    let told = web
        .call("esc:traced", &json!({"word": "an-argument"}), &[&header])
        .json();
    let own = told["outputData"][0]
        .as_str()
        .unwrap_or_else(|| panic!("{told}"))
        .to_owned();
    let parts: Vec<&str> = own.split('-').collect();
    assert!(
        parts[1] == TRACE && parts[2] != SPAN && parts[3] == "01",
        "a span of its own: {own}"
    );
    web.call(
        "esc:traced",
        &json!({}),
        &[&format!("traceparent: {}", parent("00"))],
    );
    assert_eq!(recorded(&playground), TRACE);
    web.call("no:such", &json!({}), &[]);
    wait_for("the spans come", || {
        collector.named("execute_tool").len() == 1
    });
    let of_call = collector.named("execute_tool esc:traced");
    assert_eq!(of_call.len(), 1, "the caller did not sample the second");
    let span = &of_call[0];
    assert_eq!(
        (&span["traceId"], &span["spanId"]),
        (&json!(TRACE), &json!(parts[2]))
    );
    assert_eq!(span["parentSpanId"], SPAN);
    for (name, wanted) in [
        ("gen_ai.tool.name", json!("esc:traced")),
        ("toolhost.tool.version", json!("1.0.0")),
        ("toolhost.outcome", json!("success")),
        ("toolhost.policy", json!("default")),
        ("gen_ai.tool.call.id", told["id"].clone()),
    ] {
        assert_eq!(
            attribute(span, name)["stringValue"],
            wanted,
            "{name}: {span}"
        );
    }
    assert!(
        attribute(span, "toolhost.caller")["stringValue"].is_string(),
        "{span}"
    );
    let mut stages = collector.spans();
    stages.retain(|stage| stage["parentSpanId"] == span["spanId"]);
    let mut names: Vec<&str> = stages
        .iter()
        .map(|stage| stage["name"].as_str().unwrap())
        .collect();
    // On a busy machine the decision is too old once the tool may start, and is taken again.
    if names.get(4..6) == Some(&["decide", "run"]) {
        names.drain(4..6);
    }
    assert_eq!(names, ["turn", "decide", "prepare", "run", "answer"]);
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    for stage in &stages {
        let [began, start, end] = [(span, "start"), (stage, "start"), (stage, "end")]
            .map(|(span, which)| time(span, &format!("{which}TimeUnixNano")));
        assert!(
            stage["traceId"] == TRACE && began <= start && start <= end,
            "{stage}"
        );
    }
    let unknown = &collector.named("execute_tool")[0];
    assert_ne!(unknown["traceId"], TRACE);
    assert_eq!(
        attribute(unknown, "error.type")["stringValue"],
        "ToolNotFoundError"
    );
    // Queued spans are sent at shutdown.
    web.call("esc:blind", &json!({}), &[]);
    web.signal(Signal::SIGTERM);
    web.ended(Duration::from_secs(30));
    wait_for("its span is read", || {
        collector.named("execute_tool esc:blind").len() == 1
    });
    let all = format!("{:?}", collector.receiver.heard());
    assert!(
        all.contains("toolhost") && !all.contains("an-argument") && !all.contains("user_scripts"),
        "{all}"
    );
    assert!(
        !all.contains(&playground.base.display().to_string()),
        "{all}"
    );

    // By the standard variables: one call from the command line sends its spans before it ends.
    let collector = Collector::start();
    let mut command = playground.host();
    command.args(["call", "esc:traced", "--json"]);
    command.env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        collector.address.trim_end_matches("/v1/traces"),
    );
    command
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
        .env("OTEL_SERVICE_NAME", "ours");
    let ended = finish(command, b"");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut span = Vec::new();
    wait_for("its span is read", || {
        span = collector.named("execute_tool esc:traced");
        span.len() == 1
    });
    assert_eq!(recorded(&playground), span[0]["traceId"]);
    let heard = collector.receiver.heard();
    assert!(
        heard[0].0.contains("authorization: Bearer abc") && heard[0].1.contains("\"ours\""),
        "{heard:?}"
    );
}

#[test]
fn a_dead_or_slow_collector_holds_up_no_call_and_what_is_lost_is_counted() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    tools(&playground);
    // Takes connections, and never answers.
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let free: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
    let judge = |address: std::net::SocketAddr, what: &str| {
        let mut command = playground.host();
        command.args(["serve", "--http", "127.0.0.1:0"]);
        command.env(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            format!("http://{address}/v1/traces"),
        );
        let mut web = Web::run(command, playground.who.uid()).unwrap();
        for _ in 0..3 {
            assert_eq!(
                web.call("esc:traced", &json!({}), &[]).json()["success"],
                true,
                "{what}"
            );
        }
        let lost = || {
            let text = web.get("/metrics", &[]).body;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("toolhost_trace_spans_lost_total "))
                .unwrap();
            line.parse::<u64>().unwrap()
        };
        within(Duration::from_secs(40), "the loss is counted", || {
            lost() >= 18
        });
        web.says("the collector takes no spans", 1);
        web.call("esc:traced", &json!({}), &[]);
        web.signal(Signal::SIGTERM);
        assert_eq!(web.ended(Duration::from_secs(30)), Some(143), "{what}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| judge(free, "dead"));
        scope.spawn(|| judge(slow.local_addr().unwrap(), "slow"));
    });
}
