//! TLS to hosts whose certificate is valid for exactly their name.

use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Most TLS sessions of one call that are kept.
const SESSIONS: usize = 64;

/// A TLS configuration: the trusted roots, and the protocol inside.
pub type TlsConfig = Arc<ClientConfig>;

/// The machine's roots as they are now, in the view of this process.
pub fn machine_roots() -> TlsConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    trust(roots)
}

/// Trusts only the certificates of a PEM text.
pub fn authority_roots(pem: &str) -> TlsConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).flatten());
    trust(roots)
}

/// These roots, for HTTP/1.1.
pub fn trust(roots: RootCertStore) -> TlsConfig {
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// The same trust, with sessions that later connections of one call may resume.
pub fn with_resumption(trust: &TlsConfig) -> TlsConfig {
    let mut config = ClientConfig::clone(trust);
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Arc::new(config)
}

/// TLS to exactly this name or address.
pub async fn connect<S>(trust: &TlsConfig, name: &str, stream: S) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(trust))
        .connect(name, stream)
        .await
}
