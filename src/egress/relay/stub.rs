//! The name server of a call (RFC 1035). It knows only the granted names, and forwards no query.

use super::call::{Call, NAMES, RETRY_DELAY};
use super::stream::MeteredStream;
use crate::egress::protocol::{RefusalReason, TrafficKind};
use crate::manifest::host::{self, Host};
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;

/// Longest query, bytes.
const QUERY: usize = 512;
/// Most lookups of one call.
const LOOKUPS: u64 = 10_000;
/// Most connections over TCP at one time, and how long one may wait for its next query.
const CONNECTIONS: usize = 8;
const IDLE: Duration = Duration::from_secs(5);
/// Time to live of an answer, seconds.
const TTL: u32 = 30;

pub async fn serve_udp(call: Arc<Call>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; QUERY + 1];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) if length <= QUERY => {
                if let Some(answer) = answer(&call, &buffer[..length]).await {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}

pub async fn serve_tcp(call: Arc<Call>, listener: Arc<TcpListener>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        let Ok(tool) = MeteredStream::new(socket, None) else {
            continue;
        };
        if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            let own = Arc::clone(&call);
            call.spawn(async move {
                queries(&own, tool).await;
                drop(slot);
            });
        }
    }
}

/// Answers queries, each with its length before it, until one does not come in time.
async fn queries(call: &Call, mut tool: MeteredStream) {
    while let Ok(Some(query)) = tokio::time::timeout(IDLE, query(&mut tool)).await {
        let Some(answer) = answer(call, &query).await else {
            return;
        };
        let Ok(length) = u16::try_from(answer.len()) else {
            return;
        };
        let answer = [&length.to_be_bytes()[..], &answer].concat();
        if !matches!(
            tokio::time::timeout(IDLE, tool.write_all(&answer)).await,
            Ok(Ok(()))
        ) {
            return;
        }
    }
    let _ = tool.shutdown().await;
}

async fn query(tool: &mut MeteredStream) -> Option<Vec<u8>> {
    let length = usize::from(tool.read_u16().await.ok()?);
    let mut query = vec![0; length.min(QUERY)];
    tool.read_exact(&mut query).await.ok()?;
    (length <= QUERY).then_some(query)
}

/// The answer to one message; `None`: no answer is sent.
async fn answer(call: &Call, bytes: &[u8]) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]);
    let flags = *bytes.get(2)?;
    let is_response = flags & 0x80 != 0;
    let query = match Message::from_vec(bytes) {
        _ if is_response => return None,
        Ok(query) => query,
        Err(_) => {
            return Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)
                .to_vec()
                .ok();
        }
    };
    let mut response = Message::new(id, MessageType::Response, query.op_code);
    response.metadata = Metadata::response_from_request(&query.metadata);
    response.metadata.recursion_available = true;
    response.edns = query.edns.as_ref().map(|_| Edns::new());
    let (code, address) = match &query.queries[..] {
        _ if query.op_code != OpCode::Query => (ResponseCode::NotImp, None),
        [question] => {
            response.add_query(question.clone());
            match question.query_class() {
                DNSClass::IN => lookup(call, question.name(), question.query_type()).await,
                _ => (ResponseCode::Refused, None),
            }
        }
        _ => (ResponseCode::FormErr, None),
    };
    response.metadata.response_code = code;
    if let (Some(address), Some(question)) = (address, query.queries.first()) {
        response.add_answer(Record::from_rdata(
            question.name().clone(),
            TTL,
            RData::A(A(address)),
        ));
    }
    response
        .to_vec()
        .ok()
        .filter(|answer| answer.len() <= QUERY)
}

async fn lookup(call: &Call, name: &Name, kind: RecordType) -> (ResponseCode, Option<Ipv4Addr>) {
    let lookups = {
        let totals = &mut call.state().totals;
        totals.lookups += 1;
        totals.lookups
    };
    let (code, address, refused) = match canonical(name) {
        _ if lookups > LOOKUPS => {
            let why = format!("a call may look up {LOOKUPS} names");
            (
                ResponseCode::Refused,
                None,
                Some(RefusalReason::Bound { why }),
            )
        }
        Some(name) if call.granted(&Host::Name(name.clone()), None) => {
            match call.state().names.address(&name) {
                Some(address) => {
                    let address = (kind == RecordType::A).then_some(address);
                    (ResponseCode::NoError, address, None)
                }
                None => {
                    let why = format!("a call may reach {NAMES} names");
                    (
                        ResponseCode::Refused,
                        None,
                        Some(RefusalReason::Bound { why }),
                    )
                }
            }
        }
        _ => (
            ResponseCode::NXDomain,
            None,
            Some(RefusalReason::NotGranted),
        ),
    };
    match lookups.cmp(&(LOOKUPS + 1)) {
        // Report only the first lookup over the limit.
        std::cmp::Ordering::Greater => call.state().totals.lookups_refused += 1,
        _ => {
            call.report(TrafficKind::Lookup, &to_text(name), refused)
                .await
        }
    }
    (code, address)
}

/// The name as policies write it. Each label is checked: a label with a dot inside is not a host
/// name.
fn canonical(name: &Name) -> Option<String> {
    name.iter()
        .all(|label: &[u8]| {
            label
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        })
        .then(|| host::canonical_name(&to_text(name)))
        .flatten()
}

/// The name as it was queried, not escaped.
fn to_text(name: &Name) -> String {
    name.iter()
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join(".")
}
