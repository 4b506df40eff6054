//! Sends spans to a collector, by OTLP over HTTP with JSON and the connections of egress. No
//! message is sent twice.

use crate::base::lock;
use crate::egress::{self, Dialler, PostError};
use crate::manifest::host::HostPattern;
use crate::policy::{CallbackUrl, HostGrant};
use http::{Request, Response};
use ipnet::IpNet;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Most spans in a message.
const BATCH: usize = 512;
/// How long spans wait for others to go with them.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Longest time for a message, from the connection to the answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Collector {
    exporter: SpanExporter,
    /// Why the last message was not sent.
    problem: Arc<Mutex<Option<String>>>,
}

impl Collector {
    /// `address`: where messages are sent, such as `http://127.0.0.1:4318/v1/traces`. More is read
    /// from the standard variables (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES`).
    pub fn at(address: &str) -> Result<Collector, String> {
        if address.contains('@') {
            let why = "an address must not hold a user or password, because logs show it: use \
                OTEL_EXPORTER_OTLP_HEADERS";
            return Err(why.to_owned());
        }
        let problem: Arc<Mutex<Option<String>>> = Arc::default();
        let client = CollectorClient {
            url: CallbackUrl::parse(address)?,
            problem: problem.clone(),
        };
        // A message is not tried again: the library would hold up a thread until then.
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(address)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|e| e.to_string())?;
        let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
            Some(_) => Resource::builder(),
            None => Resource::builder().with_service_name("toolhost"),
        };
        exporter.set_resource(&resource.build());
        Ok(Collector { exporter, problem })
    }

    /// Sends all spans, until the channel is closed.
    pub(super) async fn send_all(self, mut spans: mpsc::Receiver<SpanData>, lost: Arc<AtomicU64>) {
        let mut batch = Vec::new();
        let mut is_failing = false;
        while spans.recv_many(&mut batch, BATCH).await > 0 {
            let gathered = sleep(BATCH_DELAY);
            tokio::pin!(gathered);
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                tokio::select! {
                    more = spans.recv_many(&mut batch, room) => if more == 0 { break },
                    () = &mut gathered => break,
                }
            }
            let many = batch.len();
            let problem = match timeout(
                SEND_TIMEOUT,
                self.exporter.export(std::mem::take(&mut batch)),
            )
            .await
            {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(lock(&self.problem).take().unwrap_or_else(|| e.to_string())),
                Err(_) => Some(format!("no answer in {} s", SEND_TIMEOUT.as_secs())),
            };
            if problem.is_some() {
                lost.fetch_add(many as u64, Ordering::Relaxed);
            }
            // Only changes are logged: metrics count the rest.
            match (
                std::mem::replace(&mut is_failing, problem.is_some()),
                problem,
            ) {
                (false, Some(why)) => {
                    let why = crate::base::text::printable(&why);
                    tracing::warn!(target: "toolhost::traces", lost = many, "the collector takes \
                        no spans: {why}");
                }
                (true, None) => {
                    tracing::info!(target: "toolhost::traces", "the collector takes spans again")
                }
                _ => {}
            }
        }
    }
}

/// Lets the library send traces over this host's own connections.
#[derive(Debug)]
struct CollectorClient {
    url: CallbackUrl,
    problem: Arc<Mutex<Option<String>>>,
}

impl HttpClient for CollectorClient {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let sent = self.post(request).await;
            *lock(&self.problem) = match &sent {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("it answered {}", answer.status())),
                Err(why) => Some(why.clone()),
            };
            sent.map_err(HttpError::from)
        })
    }
}

impl CollectorClient {
    /// No policy is asked, since the address is the operator's own.
    async fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let pattern = HostPattern {
            host: self.url.host.clone(),
            port: Some(self.url.port),
        };
        let ranges = [
            IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        ];
        let rule = "the operator's collector".to_owned();
        let grant = HostGrant {
            pattern,
            ranges: ranges.into(),
            asked: String::new(),
            why: rule.clone(),
            rule,
        };
        let payer = ["", "collector"].map(str::to_owned);
        let dialler = Dialler {
            payer,
            grants: vec![grant],
            headers: Vec::new(),
            proxy: None,
        };
        let (head, body) = request.into_parts();
        let posted = egress::post(&dialler, &self.url, head.headers, body)
            .await
            .map_err(|unsent| match unsent {
                PostError::Refused(refusal) => refusal
                    .detail()
                    .map_or_else(|| refusal.to_string(), str::to_owned),
                PostError::Broken(why) => why,
            })?;
        // Only the status of its answer is looked at.
        let mut answer = Response::new(Bytes::new());
        *answer.status_mut() = posted.answer.status();
        Ok(answer)
    }
}
