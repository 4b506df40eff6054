//! Whatever the calls of a turn do, and however they end, the stream keeps the rules.

use super::check;
use proptest::prelude::*;
use serde_json::json;
use toolhost::executor::{ImageStage, Showing, ToolAnswer};
use toolhost::fault::{Fault, Kind};
use toolhost::service::{CallResult, Report};
use toolhost::transport::responses::{
    Ended, ResponseStatus, Step, Stream, Telling, ToolCall, head,
};

#[derive(Clone, Debug)]
struct Act {
    steps: Vec<Step>,
    is_success: bool,
    is_final: bool,
    is_code: bool,
    is_hidden: bool,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let shown = prop_oneof![
        Just(Showing::Image(ImageStage::Generating)),
        Just(Showing::Image(ImageStage::Partial("aGk=".to_owned()))),
        Just(Showing::Search(vec!["a".to_owned()])),
        Just(Showing::Custom(json!({"n": 1}))),
    ];
    let step = prop_oneof![
        3 => "[a-z ]{0,6}".prop_map(Step::Part),
        1 => Just(Step::Untold),
        2 => shown.prop_map(Step::Shown),
    ];
    let act = (
        prop::collection::vec(step, 0..8),
        any::<[bool; 3]>(),
        prop::bool::weighted(0.2),
    );
    let act = act.prop_map(|(steps, [is_success, is_final, is_code], is_hidden)| Act {
        steps,
        is_success,
        is_final,
        is_code,
        is_hidden,
    });
    prop::collection::vec(act, 0..9)
}

async fn ended(act: &Act) -> Ended {
    let fault = Fault::new(Kind::ScriptError, "failed");
    let mut report = Report::of_fault("id".to_owned(), "t:x", fault);
    if act.is_success {
        report.outcome = CallResult::Output(ToolAnswer::from(&json!({"sum": 6})));
    }
    Ended::of(report).await
}

/// The calls in another order than their own.
async fn run(acts: &[Act]) -> Stream {
    let calls = acts.iter().enumerate().map(|(at, act)| ToolCall {
        id: format!("id-{at}"),
        call_id: "the same".to_owned(),
        tool: "t:x".to_owned(),
        arguments: "{}".to_owned(),
        code: act.is_code.then(|| "print(1)".to_owned()),
        is_final: act.is_final,
        ..ToolCall::default()
    });
    let calls: Vec<ToolCall> = calls.collect();
    let mut stream = Stream::new(head("m"));
    let mut telling = Telling::new(calls.clone());
    for (call, act) in calls.iter().zip(acts).rev() {
        let shown = [Step::Begins].into_iter().chain(act.steps.clone());
        let shown = shown.filter(|_| !act.is_hidden);
        for step in shown.chain([Step::Ended(ended(act).await)]) {
            telling.step(&call.id, step, &mut stream);
        }
    }
    assert_eq!(telling.finish(&mut stream).len(), calls.len(), "each ends");
    stream.end(ResponseStatus::Completed, json!({}));
    stream
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_item_is_open_at_a_time_and_all_are_in_the_output(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut stream = runtime.block_on(run(&acts));
        let told = stream.take_events();
        let told = told.into_iter().map(|event| (event.name, event.data)).collect();
        let response = check(&told);
        let shown = acts.iter().filter(|act| !act.is_hidden).count();
        prop_assert_eq!(response["output"].as_array().unwrap().len(), shown);
    }
}
