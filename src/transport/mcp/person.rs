//! Asks the person at an MCP client whether a call may run (docs/POLICY.md, "Confirm"): an older client while its request
//! waits, a newer one by a result that asks. An answer counts once, for one caller, tool and set of arguments.

use super::asking::{self, PERSON, PersonAnswer};
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::service::{self, Answer, Ask, Caller, Limiter, Question, Reservation, Resource};
use jiff::Timestamp;
use rmcp::model::{InputRequest, InputRequests, RequestId};
use rmcp::service::{Peer, RequestContext, RoleServer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

/// A person, by the way its client is asked.
pub struct Person {
    /// The caller sees what is for operators.
    operator: bool,
    way: Way,
}

enum Way {
    /// A client of the older era, while its request waits.
    Now(Peer<RoleServer>, RequestId),
    /// One of the newer era, which makes the call again with the answer.
    Again(Box<Again>),
}

/// A question that a client is sent away with, and what it brought back of an earlier one.
struct Again {
    open: Arc<OpenQuestions>,
    given: Mutex<Option<PersonAnswer>>,
    asked: Mutex<Option<Question>>,
}

/// The questions that are open, by the call that was asked about: until when they are.
pub struct OpenQuestions {
    known: Mutex<HashMap<String, (Timestamp, Reservation)>>,
    limiter: Arc<Limiter>,
}

impl OpenQuestions {
    pub fn new(limiter: Arc<Limiter>) -> OpenQuestions {
        OpenQuestions { known: Mutex::default(), limiter }
    }

    fn begin(&self, question: &Question) -> bool {
        let (mut known, now) = (lock(&self.known), Timestamp::now());
        known.retain(|_, (until, _)| *until > now);
        let through = question.through.as_ref().unwrap_or(&question.caller);
        let kept = self.limiter.take(Resource::Questions, through, 1);
        let Some((kept, until)) = kept.zip(question.until.parse().ok()) else { return false };
        known.insert(question.call.clone(), (until, kept));
        true
    }

    /// True once for each question, in its time.
    fn end(&self, call: &str) -> bool {
        lock(&self.known).remove(call).is_some_and(|(until, _)| until > Timestamp::now())
    }
}

impl Person {
    /// At the client that made this request. `given`: what it said to one of the open questions.
    pub fn new(
        context: &RequestContext<RoleServer>,
        caller: Caller,
        (open, given): (&Arc<OpenQuestions>, Option<PersonAnswer>),
    ) -> Person {
        let again = Again { open: open.clone(), given: Mutex::new(given), asked: Mutex::default() };
        let way = match context.meta.protocol_version() {
            None => Way::Now(context.peer.clone(), context.id.clone()),
            Some(_) => Way::Again(Box::new(again)),
        };
        Person { operator: caller.operator, way }
    }

    /// The question that the client is sent away with: the call it is about, its digest, and itself.
    pub fn take_question(&self) -> Option<(PersonAnswer, InputRequests)> {
        let Way::Again(again) = &self.way else { return None };
        let question = lock(&again.asked).take()?;
        let form = form(&question, self.operator)?;
        let given = PersonAnswer { call: question.call, digest: question.digest, answer: Value::Null };
        Some((given, [(PERSON.to_owned(), form)].into_iter().collect()))
    }
}

impl Again {
    fn ask(&self, question: &Question, by: String) -> Answer {
        let Some(given) = lock(&self.given).take() else {
            if !self.open.begin(question) {
                let message = "Too many calls wait for a person's answer.";
                return Answer::Refused(Fault::new(Kind::RateLimitError, message).retryable());
            }
            *lock(&self.asked) = Some(question.clone());
            return Answer::InputRequired;
        };
        if !self.open.end(&given.call) {
            let message = "A person's answer counts once, and in its time: make the call anew, without it.";
            return Answer::Refused(Fault::new(Kind::AuthorizationError, message).retryable());
        }
        if given.digest != question.digest {
            return Answer::Refused(service::changed_meanwhile());
        }
        judge(&given.answer, by)
    }
}

impl Ask for Person {
    fn ask<'a>(&'a self, question: &'a Question) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        let by = format!("{} (as the MCP client says)", question.caller);
        Box::pin(async move {
            match &self.way {
                Way::Again(again) => again.ask(question, by),
                Way::Now(peer, origin) => {
                    let answer = match form(question, self.operator) {
                        Some(form) => asking::elicit(peer, origin, form).await.unwrap_or_default(),
                        None => Value::Null,
                    };
                    judge(&answer, by)
                }
            }
        })
    }
}

/// The answer of a form that a client brings back. Only what was ticked is a yes.
fn judge(answer: &Value, by: String) -> Answer {
    match answer["action"].as_str() {
        Some("accept") if answer["content"]["approve"] == true => Answer::Approved { by },
        Some("accept" | "decline") => Answer::Denied { by },
        Some("cancel") => Answer::Dismissed { by },
        _ => {
            let message = "The client was to ask its person about this call, and did not.";
            Answer::Refused(Fault::new(Kind::AuthorizationError, message))
        }
    }
}

/// The question as a form. What a call may touch names paths of this host, which are for operators.
fn form(question: &Question, operator: bool) -> Option<InputRequest> {
    let tick = json!({"type": "boolean", "title": "Let this call run"});
    let schema = json!({"type": "object", "properties": {"approve": tick}, "required": ["approve"]});
    let params = json!({"message": question.told(operator), "requestedSchema": schema});
    serde_json::from_value(json!({"method": "elicitation/create", "params": params})).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(call: usize, caller: &str, seconds: i64) -> Question {
        let (now, text) = (Timestamp::now(), String::new);
        Question {
            call: call.to_string(),
            tool: text(),
            caller: caller.to_owned(),
            through: None,
            label: None,
            why: Vec::new(),
            arguments: text(),
            not_shown: 0,
            touches: Vec::new(),
            digest: text(),
            asked: now.to_string(),
            until: (now + jiff::SignedDuration::from_secs(seconds)).to_string(),
        }
    }

    #[test]
    fn a_question_is_open_for_its_time_and_answered_once() {
        let open = OpenQuestions::new(Arc::new(Limiter::new(1, 1)));
        assert!(open.begin(&question(1, "a", 60)) && open.end("1") && !open.end("1"));
        assert!(open.begin(&question(2, "a", -1)) && !open.end("2"), "too late");
        assert_eq!((3..50).filter(|call| open.begin(&question(*call, "a", 60))).count(), 32);
        assert!(open.begin(&question(50, "b", 60)), "others have room");
        assert!(open.end("3") && open.begin(&question(51, "a", 60)));
    }

    #[test]
    fn only_what_a_person_ticked_is_a_yes() {
        let of = |answer: Value| judge(&answer, "a".to_owned());
        let by = || "a".to_owned();
        assert_eq!(of(json!({"action": "accept", "content": {"approve": true}})), Answer::Approved { by: by() });
        for no in [json!({}), json!({"approve": false}), json!({"approve": "true"}), json!(null)] {
            assert_eq!(of(json!({"action": "accept", "content": no})), Answer::Denied { by: by() });
        }
        assert_eq!(of(json!({"action": "decline", "content": {"approve": true}})), Answer::Denied { by: by() });
        assert_eq!(of(json!({"action": "cancel"})), Answer::Dismissed { by: by() });
        for none in [json!(null), json!({}), json!({"approve": true}), json!("accept")] {
            assert!(matches!(of(none), Answer::Refused(_)));
        }
    }
}
