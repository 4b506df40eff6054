//! TLS: connections to hosts that the machine's roots vouch for.
//!
//! For: the relay, which adds headers; `wasi:http`. In: a name, a connected stream. Out: the stream, encrypted. Never:
//! speaks to a host whose certificate is not valid for exactly that name; keeps a session for another connection.

use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Who is trusted, and what is spoken.
pub type Trust = Arc<ClientConfig>;

/// The machine's roots as they are now, in the view of this process.
pub fn of_machine() -> Trust {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    trust(roots)
}

/// These roots, for HTTP/1.1.
pub fn trust(roots: RootCertStore) -> Trust {
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// TLS to exactly this name or address.
pub async fn connect<S>(trust: &Trust, name: &str, stream: S) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(trust)).connect(name, stream).await
}
