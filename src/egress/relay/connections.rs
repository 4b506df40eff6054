//! Each connection of a tool, from its acceptance to its end: to the granted host that the tool
//! named, or a reset.

use super::call::{Call, Connection, RETRY_DELAY, synthetic};
use super::stream::{BUFFER, MeteredStream, target};
use super::{hello, http, secrets};
use crate::egress::protocol::{RefusalReason, TrafficKind};
use crate::manifest::host::{Host, HostPattern};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};

/// How long a tool may take for its ClientHello.
const HELLO: Duration = Duration::from_secs(10);

/// Accepts all connections at one port.
pub async fn accept(call: Arc<Call>, listener: Arc<TcpListener>, port: u16) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => serve_connection(&call, socket, port).await,
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}

async fn serve_connection(call: &Arc<Call>, socket: TcpStream, port: u16) {
    call.state().totals.connections += 1;
    let Ok(tool) = MeteredStream::new(socket, None) else {
        return;
    };
    let Ok(address) = tool.local_address() else {
        return;
    };
    match admit(call, address, port) {
        Ok(connection) => call.spawn(serve(connection, tool)),
        Err((target, refusal)) => {
            drop(tool);
            call.report(TrafficKind::Connection, &target, Some(refusal))
                .await;
        }
    }
}

/// Admits a connection to the host behind an address. `Err`: the target as the tool named it, and
/// the reason.
fn admit(
    call: &Arc<Call>,
    address: IpAddr,
    port: u16,
) -> Result<Connection, (String, RefusalReason)> {
    let mut hosts = match call.state().names.name(address) {
        Some(name) => vec![Host::Name(name.to_owned())],
        None if synthetic(address) => {
            return Err((
                SocketAddr::new(address, port).to_string(),
                RefusalReason::NoName,
            ));
        }
        // The tool's own hosts file calls it localhost.
        None if address.is_loopback() => {
            vec![Host::Address(address), Host::Name("localhost".to_owned())]
        }
        None => vec![Host::Address(address)],
    };
    let named = target(&hosts[0], port);
    hosts.retain(|host| call.granted(host, Some(port)));
    if hosts.is_empty() {
        return Err((named, RefusalReason::NotGranted));
    }
    match call.slot() {
        Ok(slot) => Ok(Connection {
            call: Arc::clone(call),
            hosts,
            port,
            slot,
        }),
        Err(limit) => Err((target(&hosts[0], port), RefusalReason::Limit { limit })),
    }
}

async fn serve(connection: Connection, mut tool: MeteredStream) {
    match connection.port {
        80 => http::serve(connection, tool).await,
        port => {
            let mut hosts = connection.hosts.iter();
            if let Some(host) =
                hosts.find(|host| secrets::is_relay_only(&connection.call.lease, host, port))
            {
                return refuse_tls(&connection, host, tool).await;
            }
            if port == 443 {
                return tls(connection, tool).await;
            }
            if let Some(mut upstream) = connection.dial().await {
                copy(&mut tool, &mut upstream).await;
            }
        }
    }
}

/// TLS of the tool itself, whose ClientHello names the host.
async fn tls(connection: Connection, mut tool: MeteredStream) {
    let read = tokio::time::timeout(HELLO, hello::read(&mut tool, &connection.hosts)).await;
    let hello =
        match read.unwrap_or_else(|_| Err("its ClientHello did not come in time".to_owned())) {
            Ok(hello) => hello,
            Err(why) => {
                drop(tool);
                return connection
                    .refuse(
                        TrafficKind::Connection,
                        connection.host(),
                        hello::content(why),
                    )
                    .await;
            }
        };
    let Some(mut upstream) = connection.dial().await else {
        return;
    };
    if upstream.write_all(&hello).await.is_err() {
        return;
    }
    match hello::watch(&mut tool, &mut upstream, &connection.hosts).await {
        Ok(()) => copy(&mut tool, &mut upstream).await,
        Err(refusal) => {
            if matches!(refusal, RefusalReason::Tls { .. }) {
                // An alert of the host still arrives.
                let _ = tool.shutdown().await;
            }
            drop((tool, upstream));
            connection
                .refuse(TrafficKind::Connection, connection.host(), refusal)
                .await;
        }
    }
}

/// TLS of the tool to a host that gets a secret: no secret could be added to its encrypted
/// requests.
async fn refuse_tls(connection: &Connection, host: &Host, tool: MeteredStream) {
    drop(tool);
    let name = HostPattern {
        host: host.clone(),
        port: None,
    };
    let why = format!("use http://{name}: a secret is added to its requests");
    connection
        .refuse(TrafficKind::Connection, host, RefusalReason::Secret { why })
        .await;
}

async fn copy(tool: &mut MeteredStream, upstream: &mut MeteredStream) {
    let _ = copy_bidirectional_with_sizes(tool, upstream, BUFFER, BUFFER).await;
}
