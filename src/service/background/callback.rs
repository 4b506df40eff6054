//! Callbacks report the end of a call to the caller's receiver, at least once, signed as in
//! Standard Webhooks.
//!
//! Each attempt goes only where the file of callers allows at that moment, follows no redirect, and
//! has the same id as the first. The number of attempts is bounded.

use super::calls::Background;
use super::jobs::{Callback, CallbackState, Delivery, Job};
use super::store::Change;
use crate::base::semaphore::FairSemaphore;
use crate::base::{lock, text};
use crate::egress::{self, Dialler, PostError};
use crate::fault::{Fault, Kind};
use crate::manifest::host::HostPattern;
use crate::policy::{CallbackUrl, HostGrant, SecretGrant};
use crate::service::request::Caller;
use crate::service::{ledger, secrets};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::{SignedDuration, Timestamp};
use ring::hmac;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Waits between attempts, seconds. If the attempt after the last one fails, the callback has
/// failed.
const RETRY_DELAYS: [i64; 7] = [1, 5, 30, 120, 600, 3600, 6 * 3600];
/// Longest attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most attempts at once; of one caller.
const MAX_ATTEMPTS_AT_ONCE: (usize, usize) = (8, 2);
/// Longest message, bytes. A longer result is left out; the receiver can fetch it by the call's id.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;
/// Shortest key, bytes.
const MIN_KEY_BYTES: usize = 16;
/// How often expired results are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

/// Sends the callbacks that are due, and removes expired results, until the host stops.
pub(super) async fn keep(background: Weak<Background>, mut changed: watch::Receiver<()>) {
    let semaphore = FairSemaphore::new(MAX_ATTEMPTS_AT_ONCE.0, MAX_ATTEMPTS_AT_ONCE.1);
    let mut sending = JoinSet::new();
    let mut under_way = HashSet::new();
    while let Some(me) = background.upgrade() {
        let now = Timestamp::now();
        changed.mark_unchanged();
        me.forget(now).await;
        let mut wait = SWEEP_INTERVAL;
        for job in me.untold() {
            if under_way.contains(&job.id) {
                continue;
            }
            let due = job.callback.as_ref().map_or(now, |callback| callback.next);
            if due > now {
                wait = wait.min(Duration::try_from(due.duration_since(now)).unwrap_or_default());
            } else {
                under_way.insert(job.id.clone());
                let me = me.clone();
                let semaphore = semaphore.clone();
                sending.spawn(async move {
                    // Principals take turns: many slow receivers delay only their own principal.
                    let _permit = semaphore.enter(job.through()).await;
                    let id = job.id.clone();
                    me.tell(job).await;
                    id
                });
            }
        }
        let stopped = me.kill.clone();
        drop(me);
        tokio::select! {
            () = stopped.cancelled() => return,
            Some(sent) = sending.join_next() => {
                // One that panicked is not tried again before the next start.
                sent.into_iter().for_each(|id| _ = under_way.remove(&id));
            }
            _ = changed.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The fault of a failed attempt. (An AuthorizationError is final.)
fn delivery_fault(words: impl Into<String>, person: impl Into<String>) -> Fault {
    Fault::new(Kind::ServiceError, words).person(person)
}

impl Background {
    fn untold(&self) -> Vec<Job> {
        lock(&self.kept)
            .jobs()
            .filter(|open| open.job.has_pending_callback())
            .map(|open| open.job.clone())
            .collect()
    }

    /// Ends what waited too long, and removes what is kept no longer.
    pub(super) async fn forget(&self, now: Timestamp) {
        let gone = lock(&self.kept).expire(now);
        self.forget_kept(gone).await;
    }

    /// Removes what is kept no longer from the disk.
    pub(super) async fn forget_kept(&self, gone: Vec<String>) {
        if !gone.is_empty() {
            // What this leaves on the disk is removed at the next opening.
            let _ = self
                .write(Change {
                    gone,
                    ..Change::default()
                })
                .await;
        }
    }

    /// Makes one attempt, and stores how it went.
    async fn tell(&self, mut job: Job) {
        let Some(Callback {
            shown: mut callback,
            mut next,
        }) = job.callback.take()
        else {
            return;
        };
        callback.attempts += 1;
        let tried = tokio::time::timeout(ATTEMPT_TIMEOUT, self.send(&job, &callback)).await;
        let id = &job.id;
        let event = &callback.event;
        let trace = job.trace.as_deref();
        let wait = usize::try_from(callback.attempts - 1)
            .ok()
            .and_then(|at| RETRY_DELAYS.get(at));
        match tried
            .unwrap_or_else(|_| Err(delivery_fault("the receiver did not answer in time", "")))
        {
            Ok(()) => {
                tracing::info!(target: "toolhost::callback", call = id, trace, event, "the \
                    callback was delivered");
                (callback.state, callback.error) = (Delivery::Delivered, None);
            }
            Err(fault) => {
                let words = fault.message;
                let person = text::printable(&fault.person.unwrap_or_default());
                match wait.filter(|_| fault.kind != Kind::AuthorizationError) {
                    Some(seconds) => {
                        let words = format!("the callback failed: {words}; again in {seconds} s");
                        tracing::warn!(target: "toolhost::callback", call = id, trace, event, person, "{words}");
                        next = Timestamp::now() + SignedDuration::from_secs(*seconds);
                    }
                    None => {
                        let words = format!("the callback failed for good: {words}");
                        tracing::error!(target: "toolhost::callback", call = id, trace, event, person, "{words}");
                        callback.state = Delivery::Failed;
                    }
                }
                callback.error = Some(words);
            }
        }
        let id = job.id.clone();
        let trace = job.trace.clone();
        job.callback = Some(Callback {
            shown: callback,
            next,
        });
        lock(&self.kept).change(&job.id, |open| open.job = job.clone());
        if let Err(why) = self
            .write(Change {
                put: vec![job],
                ..Change::default()
            })
            .await
        {
            // After a restart it is sent again, under the same id.
            tracing::error!(target: "toolhost::callback", call = id, trace, "not stored; may be \
                sent again: {why}");
        }
    }

    async fn send(&self, job: &Job, callback: &CallbackState) -> Result<(), Fault> {
        let url = CallbackUrl::parse(&callback.url)
            .map_err(|why| delivery_fault("its URL cannot be used", why))?;
        let (dialler, key) = {
            let decisions = self.service.catalog.decisions()?;
            let rights = decisions.rights(&Caller::named(&job.caller), None);
            let (rule, from) = rights.callback(&url)?;
            let pattern = HostPattern {
                host: url.host.clone(),
                port: Some(url.port),
            };
            let ledger = &self.service.ledger;
            ledger::check_unwritten(from.named_files(), ledger, &decisions.snapshot.written)?;
            let ranges = rule.ranges.clone();
            let why = rule.why.clone();
            let named = rights.name();
            let grant = HostGrant {
                pattern,
                ranges,
                asked: String::new(),
                rule: named.clone(),
                why: why.clone(),
            };
            let payer = [job.through().to_owned(), "callback".to_owned()];
            let dialler = Dialler {
                payer,
                grants: vec![grant],
                headers: Vec::new(),
                proxy: self.proxy.clone(),
            };
            let name = "callback_secret".to_owned();
            (
                dialler,
                SecretGrant {
                    name,
                    from: from.clone(),
                    header: None,
                    rule: named,
                    why,
                },
            )
        };
        let values =
            secrets::read_all(std::slice::from_ref(&key), &job.caller, ATTEMPT_TIMEOUT).await;
        fn unsigned(person: String) -> Fault {
            delivery_fault("this host cannot sign now", person)
        }
        let values = values.map_err(|fault| unsigned(fault.person.unwrap_or_default()))?;
        let key = signing_key(values.first().map_or("", String::as_str)).map_err(unsigned)?;
        let who = Caller::named(&job.caller);
        // A result that is too long to be sent is not read.
        let result = if job.bytes > MAX_MESSAGE_BYTES {
            None
        } else {
            self.result(&who, &job.id).await?
        };
        let body = message(job, result.as_deref());
        let headers = sign(&key, &callback.event, Timestamp::now().as_second(), &body)
            .map_err(|e| delivery_fault("its message cannot be made", e.to_string()))?;
        let posted = egress::post(&dialler, &url, headers, body.into()).await;
        match posted.map(|posted| posted.answer.status()) {
            Ok(status) if status.is_success() => Ok(()),
            Ok(status) => {
                let also = if status.is_redirection() {
                    ": redirects are not followed"
                } else {
                    ""
                };
                Err(delivery_fault(
                    format!("the receiver answered {}{also}", status.as_u16()),
                    "",
                ))
            }
            Err(PostError::Refused(refusal)) => Err(delivery_fault(
                refusal.to_string(),
                refusal.detail().unwrap_or_default(),
            )),
            Err(PostError::Broken(why)) => {
                Err(delivery_fault("the receiver's answer is not HTTP", why))
            }
        }
    }
}

/// The body of the message: the same bytes at each attempt.
fn message(job: &Job, result: Option<&str>) -> String {
    let ended = job
        .ended
        .map_or_else(String::new, |ended| ended.to_string());
    let data = json!({"id": job.id, "tool": job.tool, "outcome": job.outcome.as_deref().unwrap_or_default()});
    let head = json!({"type": "call.ended", "timestamp": ended});
    let whole =
        |name, json: &str| text::with_field(&head, "data", &text::with_field(&data, name, json));
    let told = result
        .map(|result| whole("result", result))
        .filter(|whole| whole.len() <= MAX_MESSAGE_BYTES);
    told.unwrap_or_else(|| whole("resultLeftOut", "true"))
}

/// The key of a secret: base64 after `whsec_`, as in Standard Webhooks, or else the text itself.
fn signing_key(secret: &str) -> Result<hmac::Key, String> {
    let bytes = match secret.strip_prefix("whsec_") {
        Some(text) => STANDARD
            .decode(text)
            .map_err(|e| format!("callback_secret: the text after whsec_ is not base64: {e}"))?,
        None => secret.as_bytes().to_vec(),
    };
    if bytes.len() < MIN_KEY_BYTES {
        Err(format!(
            "callback_secret has fewer than {MIN_KEY_BYTES} bytes: anybody could guess it"
        ))
    } else {
        Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }
}

fn sign(key: &hmac::Key, event: &str, seconds: i64, body: &str) -> Result<HeaderMap, http::Error> {
    let tag = hmac::sign(key, format!("{event}.{seconds}.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(tag));
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("webhook-id", event),
        ("webhook-timestamp", &seconds.to_string()),
        ("webhook-signature", &signature),
        (
            "user-agent",
            concat!("toolhost/", env!("CARGO_PKG_VERSION")),
        ),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    }
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        // Made with another implementation (Python's hmac module).
        let key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let headers = sign(
            &key,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        )
        .expect("plain");
        assert_eq!(
            headers["webhook-signature"],
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(
            (&headers["webhook-id"], &headers["webhook-timestamp"]),
            (
                &HeaderValue::from_static("msg_p5jXN8AQM9LWM0D4loKWxJek"),
                &HeaderValue::from_static("1614265330")
            )
        );
        assert!(signing_key("short").is_err() && signing_key("whsec_*").is_err());
        assert!(signing_key("0123456789abcdef").is_ok());
    }

    #[test]
    fn a_message_is_json_and_bounded() {
        let job = Job {
            id: "1".to_owned(),
            outcome: Some("success".to_owned()),
            ..Job::default()
        };
        let read = |result: Option<&str>| {
            serde_json::from_str::<serde_json::Value>(&message(&job, result)).expect("JSON")
        };
        assert_eq!(read(Some("{\"a\":1}"))["data"]["result"]["a"], 1);
        let long = format!("\"{}\"", "x".repeat(MAX_MESSAGE_BYTES));
        assert_eq!(read(Some(&long))["data"]["resultLeftOut"], true);
        assert!(message(&job, Some(&long)).len() < 1000);
    }
}
