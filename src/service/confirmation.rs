//! Confirmation: a person agrees to one call, before anything of it runs, where a policy says
//! `confirm`.
//!
//! One answer is for one call and one decision: the pipeline decides again afterwards, and refuses
//! if anything changed. A question has a time limit, and blocks no other call. Where callers can be
//! distinguished, a caller cannot approve its own call, unless every policy that requires approval
//! allows that.
//!
//! A client may answer for its person only if every policy with `confirm` says `confirm_by_client`.
//! Such an answer counts once, for this caller, tool and arguments, within five minutes. Only the
//! client can know whether a person saw the form.

use super::callers::Rights;
use super::calls::{Calls, OpenQuestion};
use super::parent::{AGREED_CALLS, Agreement, AskingCode};
use super::quota::Limiter;
use super::record::CallRecord;
use super::request::{Answer, Approver, CallRequest, Caller, Event, EventStream, Question};
use super::target::Decided;
use crate::base::sha256_hex;
use crate::base::text::{self, printable};
use crate::fault::{Fault, Kind};
use crate::policy::{self, Confirm};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest text of arguments that is shown, characters.
const SHOWN: usize = 16 * 1024;

/// The questions that persons and clients have not answered yet.
pub struct Confirmations {
    calls: Arc<Calls>,
    limiter: Arc<Limiter>,
    timeout: Duration,
    /// Cloned for each.
    open: Arc<()>,
    /// Cancelled: no further one is asked.
    stop: CancellationToken,
}

impl Confirmations {
    pub(super) fn new(
        calls: Arc<Calls>,
        limiter: Arc<Limiter>,
        timeout: Duration,
    ) -> Confirmations {
        Confirmations {
            calls,
            limiter,
            timeout,
            open: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Counts a question until the value is dropped, unless the host stops.
    pub fn begin(&self) -> Result<Arc<()>, Fault> {
        if self.stop.is_cancelled() {
            return Err(Fault::new(
                Kind::ServiceError,
                "The server is being stopped, so nobody is asked.",
            )
            .retryable());
        }
        Ok(self.open.clone())
    }

    /// Refuses further questions, because the host stops.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether nothing but questions is open. `begun`: requests whose answers are not delivered,
    /// questions included.
    pub fn is_only_asking(&self, begun: usize) -> bool {
        begun < Arc::strong_count(&self.open) && self.calls.are_only_asking()
    }

    /// The calls that wait for an operator's answer, for operators; the oldest first.
    pub fn list(&self) -> Vec<Question> {
        let mut open = self.calls.questions();
        open.sort_by(|a, b| (&a.asked, &a.call).cmp(&(&b.asked, &b.call)));
        open
    }

    /// Answers a question as an operator. `None`: the call no longer waits for an answer.
    pub fn answer(
        &self,
        operator: &Caller,
        call: &str,
        approve: bool,
    ) -> Option<Result<(), Fault>> {
        let by = operator.user.clone();
        let answer = if approve {
            Answer::Approved { by }
        } else {
            Answer::Denied { by }
        };
        let answered = self.calls.change(call, |call| {
            let own = [&call.state.caller, &call.state.principal].contains(&&operator.user);
            if own && call.question.as_ref()?.not_own {
                let message = "This is a call of your own: another operator must answer.";
                return Some(Err(Fault::new(Kind::AuthorizationError, message)));
            }
            // The call may have been cancelled a moment ago.
            call.question.take()?.answer.send(answer).ok().map(Ok)
        });
        answered.flatten()
    }

    async fn ask_operators(&self, question: &Question, not_own: bool) -> Result<Answer, Fault> {
        let principal = question.through.as_ref().unwrap_or(&question.caller);
        let reserved = self
            .limiter
            .questions
            .try_enter(principal, 1)
            .ok_or_else(|| {
                Fault::new(
                    Kind::RateLimitError,
                    "Too many calls wait for a person's answer.",
                )
                .retryable()
            })?;
        let (answer, answered) = oneshot::channel();
        let open = OpenQuestion {
            question: question.clone(),
            not_own,
            answer,
            _reserved: reserved,
        };
        self.calls
            .change(&question.call, |call| call.question = Some(open));
        Ok(answered.await.unwrap_or(Answer::Nobody))
    }

    /// Asks a person to approve the call, which has no slot while it waits. `Ok`: somebody approved
    /// it. Of a call from code an earlier answer counts, too.
    pub(super) async fn ask(
        &self,
        target: &Decided,
        request: &CallRequest,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<(), Fault> {
        let approver = request.approver.clone();
        let Some(parent) = &request.parent else {
            let by = self
                .ask_about(target, approver, None, stream, record)
                .await?;
            record.approved(&by);
            return Ok(());
        };
        let mut agreements = parent.agreements.lock().await;
        let about = target.digest_without_times();
        match agreements.get_mut(&about) {
            Some(Agreement::Agreed {
                by,
                left: left @ 1..,
            }) => {
                *left -= 1;
                record.approved(by);
                return Ok(());
            }
            Some(Agreement::Refused(fault)) => {
                record.denied_by = Some("confirm: not agreed before".to_owned());
                return Err(fault.clone());
            }
            _ => {}
        }
        let _standing = parent.stand_still();
        let code = Some(parent.code.clone());
        let asked = self.ask_about(target, approver, code, stream, record).await;
        match &asked {
            Ok(by) => {
                record.approved(by);
                let agreed = Agreement::Agreed {
                    by: by.clone(),
                    left: AGREED_CALLS - 1,
                };
                agreements.insert(about, agreed);
            }
            // Another reason may be gone the next time.
            Err(fault) if fault.kind == Kind::AuthorizationError => {
                agreements.insert(about, Agreement::Refused(fault.clone()));
            }
            Err(_) => {}
        }
        asked.map(drop)
    }

    /// Asks one question. Returns who approved the call.
    async fn ask_about(
        &self,
        target: &Decided,
        approver: Approver,
        code: Option<AskingCode>,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<String, Fault> {
        let call = &target.found.call;
        if target.redaction.hides_unmarked {
            let message =
                "A person must agree to this call, and would not see all of its arguments.";
            let details =
                "Send only members that the parameters of the tool declare, and fewer values.";
            return Err(Fault::new(Kind::ParameterValidationError, message).details(details));
        }
        let question = Question {
            code,
            ..self.question(target)
        };
        let _open = self.begin()?;
        self.calls.change(call, |call| call.is_asking = true);
        let by_client = question.why.iter().all(|rule| rule.by_client.is_some());
        let approver = match approver {
            Approver::Client { or, .. } if !by_client => *or,
            other => other,
        };
        let asked = async {
            match approver {
                Approver::Operators { not_own } => self.ask_operators(&question, not_own).await,
                Approver::Transport(transport) => Ok(transport.ask(&question).await),
                Approver::Client { transport, .. } if by_client => {
                    Ok(transport.ask(&question).await)
                }
                Approver::Nobody | Approver::Client { .. } => Ok(Answer::Nobody),
            }
        };
        stream.push(Event::Preparing(
            "a person is asked before this tool runs".to_owned(),
        ));
        let answer = {
            let asked = tokio::time::timeout(self.timeout, asked);
            tokio::pin!(asked);
            loop {
                tokio::select! {
                    biased;
                    answer = &mut asked => break answer,
                    () = stream.hand_on() => {}
                }
            }
        };
        self.calls
            .change(call, |call| (call.question, call.is_asking) = (None, false));
        fn not_agreed(rest: &str) -> Fault {
            Fault::new(
                Kind::AuthorizationError,
                format!("A person was asked about this call{rest}"),
            )
        }
        let (rule, fault) = match answer.unwrap_or_else(|_| {
            Err(not_agreed(&format!(
                ", and did not answer within {} s.",
                self.timeout.as_secs()
            ))
            .retryable())
        })? {
            Answer::Approved { by } => return Ok(by),
            Answer::Denied { by } => (
                format!("denied by {by}"),
                not_agreed(" and did not agree.").person(format!("{by} did not agree")),
            ),
            Answer::Dismissed { by } => {
                let fault = not_agreed(" and closed the question without an answer.");
                (
                    format!("dismissed by {by}"),
                    fault.person(format!("{by} closed it")),
                )
            }
            Answer::InputRequired => {
                let message = "A person must agree before this tool runs: make the call again with \
                    the answer.";
                (
                    "asked".to_owned(),
                    Fault::new(Kind::CancelledError, message).retryable(),
                )
            }
            Answer::Refused(fault) => ("no answer that counts".to_owned(), fault),
            Answer::Nobody => (
                "nobody to ask".to_owned(),
                nobody(&target.decided.decision.conditions.confirm),
            ),
        };
        record.denied_by = Some(format!("confirm: {rule}"));
        Err(fault)
    }

    fn question(&self, target: &Decided) -> Question {
        let decision = &target.decided.decision;
        let found = &target.found;
        let Rights {
            caller, principal, ..
        } = &found.rights;
        let whole = target.redaction.arguments();
        let code = &target.code;
        let files = &target.files;
        let mut about = json!([
            target.digest(),
            target.input,
            code.source,
            code.env,
            files.records
        ]);
        about.sort_all_objects();
        let now = jiff::Timestamp::now();
        let mut touches = policy::audit::touches(decision);
        touches.extend(files.all.iter().map(|file| {
            let name = json!(file.name);
            format!(
                "read the file {name} ({} bytes), which the call brings",
                file.bytes
            )
        }));
        Question {
            call: found.call.clone(),
            tool: found.tool.reference(),
            caller: caller.user.clone(),
            through: Some(principal.clone()).filter(|principal| *principal != caller.user),
            label: found.label.clone(),
            why: decision.conditions.confirm.clone(),
            code: None,
            not_shown: whole.chars().count().saturating_sub(SHOWN),
            arguments: printable(&text::head(&whole, SHOWN)),
            touches,
            digest: sha256_hex(about.to_string().as_bytes()),
            asked: now.to_string(),
            until: now.checked_add(self.timeout).unwrap_or(now).to_string(),
        }
    }
}

pub fn changed() -> Fault {
    let message =
        "The tool or its policy changed while a person was asked, so nothing was run; try again.";
    Fault::new(Kind::ServiceError, message).retryable()
}

fn nobody(why: &[Confirm]) -> Fault {
    let message = "This tool runs only once a person has agreed, and no person can be asked where \
        this call comes from.";
    let rules: Vec<String> = why
        .iter()
        .map(|rule| format!("policy {}: {}", rule.policy, rule.why))
        .collect();
    let fix = "call it with `toolhost call` in a terminal, or over `serve --http`, where operators \
               answer (`toolhost approvals`); an MCP client that can show forms may ask its person \
               where these policies say `confirm_by_client`";
    Fault::new(Kind::AuthorizationError, message)
        .person(printable(&format!("{} ({fix})", rules.join("; "))))
}
