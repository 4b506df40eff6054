//! Requests to a host that gets a secret in a header.

use super::*;
use std::sync::OnceLock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

const SECRET: &str = "s3cret/Value+1";
/// Where `a.test` speaks TLS.
const PORT: u16 = 8443;
const GOOD: &str = "GET /v1/x HTTP/1.1\r\nHost: a.test\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A root that the relay trusts, with the certificates of `a.test` and of `b.test`.
struct World {
    trust: tls::TlsConfig,
    a: TlsAcceptor,
    b: TlsAcceptor,
}

fn world() -> &'static World {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let key = KeyPair::generate().expect("a key");
        let mut root = CertificateParams::new(Vec::new()).expect("a root");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let mut roots = RootCertStore::empty();
        roots
            .add(root.self_signed(&key).expect("a root").der().clone())
            .expect("a root");
        let issuer = Issuer::new(root, key);
        let acceptor = |name: &str| {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec![name.to_owned()]).expect("a host");
            let certificate = params
                .signed_by(&key, &issuer)
                .expect("a certificate")
                .der()
                .clone();
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let config = ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key);
            let mut config = config.expect("a configuration");
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            TlsAcceptor::from(Arc::new(config))
        };
        World {
            trust: tls::trust(roots),
            a: acceptor("a.test"),
            b: acceptor("b.test"),
        }
    })
}

fn rule(name: &str, value: &str, methods: &[&str], paths: &[&str]) -> (String, HeaderRule) {
    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }
    let methods = texts(methods);
    let paths = texts(paths);
    let name = name.to_owned();
    let value = value.to_owned();
    (
        "KEY".to_owned(),
        HeaderRule {
            host: "a.test".to_owned(),
            port: PORT,
            name,
            value,
            methods,
            paths,
            query: vec!["q".to_owned(), "x".to_owned()],
            request_headers: Vec::new(),
            ca: None,
        },
    )
}

fn begin(rig: &Rig, values: &str) {
    let file = messages::memory_file(values.as_bytes()).expect("a file");
    messages::send(rig.socket.as_fd(), &ToRelay::Begin, &[file.as_fd()]).expect("sent");
}

/// A relay that adds these headers, in a call with the secret.
fn guarded(rules: Vec<(String, HeaderRule)>) -> Rig {
    let rig = rig(
        &["a.test", "b.test", "a.test:8443"],
        rules,
        Some(Arc::clone(&world().trust)),
    );
    begin(&rig, &format!("{{\"KEY\": \"{SECRET}\"}}"));
    rig
}

fn bearer() -> Vec<(String, HeaderRule)> {
    vec![rule("authorization", "Bearer {}", &[], &[])]
}

/// The number of headers with the secret.
fn added(got: &str) -> usize {
    let line = format!("\r\nauthorization: bearer {SECRET}\r\n").to_ascii_lowercase();
    assert_eq!(
        got.matches(SECRET).count(),
        got.to_ascii_lowercase().matches(&line).count(),
        "{got}"
    );
    got.matches(SECRET).count()
}

impl Rig {
    async fn encrypted<F: Future<Output = ()> + Send + 'static>(
        &self,
        acceptor: &TlsAcceptor,
        serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + Sync + 'static,
    ) {
        let acceptor = acceptor.clone();
        self.upstream(PORT, move |stream| {
            let acceptor = acceptor.clone();
            let serve = serve.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
                    serve(stream).await;
                }
            }
        })
        .await;
    }

    /// A host that stores what it receives, and sends `answer` to each head.
    async fn secure(&self, acceptor: &TlsAcceptor, answer: &str) -> Arc<Mutex<Vec<u8>>> {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let own = Arc::clone(&kept);
        let answer = answer.to_owned();
        self.encrypted(acceptor, move |stream| {
            let answer = answer.clone();
            keep(stream, Arc::clone(&own), move |bytes| {
                Some(answers(bytes, &answer))
            })
        })
        .await;
        kept
    }
}

fn last(request: &str) -> String {
    request.replacen("\r\n", "\r\nConnection: close\r\n", 1)
}

#[tokio::test]
async fn what_could_be_another_request_is_refused() {
    let rules = vec![rule(
        "authorization",
        "Bearer {}",
        &["GET", "POST"],
        &["/v1/**", "/exact"],
    )];
    let rig = guarded(rules);
    let kept = rig.secure(&world().a, OK).await;
    let line = |line: &str| format!("{line} HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let mut bad: Vec<String> = [
        "CONNECT a.test:80",
        "get /v1/x",
        "GET /",
        "GET /v1",
        "GET /v2/x",
        "GET /exact/",
        "GET /exact/x",
        "GET /v1/..%5cadmin",
        "GET /v1/..;/admin",
        "GET /v1/x?q=1&%71%20=2",
        "GET /v1/x?Q=1",
        "GET http://a.test/v2",
    ]
    .map(line)
    .into();
    bad.extend(
        [
            "Connection: close, authorization",
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x",
            "HTTP2-Settings: x",
            "Expect: secrets",
            "X_Forwarded_Host: evil.test",
            "Connection: X-Odd\r\nX-Odd: 1",
            "Content-Length: 3\r\n\r\nabc",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ]
        .map(|header: &str| GOOD.replace("\r\n\r\n", &format!("\r\n{header}\r\n\r\n"))),
    );
    bad.push(GOOD.replace("HTTP/1.1", "HTTP/1.0"));
    for request in &bad {
        let answer = rig.http(&format!("{request}{GOOD}")).await;
        let code: Vec<&str> = answer.split(' ').take(2).collect();
        assert!(
            ["400", "403", "417", "505"].contains(&code[1]),
            "{request}{answer}"
        );
        assert_eq!(answer.matches("\r\n\r\n").count(), 1, "{request}{answer}");
        assert_eq!(take(&kept), "", "{request}");
    }
    let totals = rig.end().await;
    assert_eq!(
        (totals.requests, totals.requests_refused),
        (bad.len() as u64, bad.len() as u64)
    );
    assert!(lock(&rig.heard).dialled.is_empty());
    begin(&rig, &format!("{{\"KEY\": \"{SECRET}\"}}"));
    for good in [
        "GET /v1/x/..a?q=../..//%2f&%71=2",
        "POST /v1/",
        "GET /%65xact?x",
    ]
    .map(line)
    {
        assert!(rig.http(&last(&good)).await.ends_with("ok"), "{good}");
        assert_eq!(added(&take(&kept)), 1);
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_host_with_another_certificate() {
    let rig = guarded(bearer());
    let kept = rig.secure(&world().b, OK).await;
    let answer = rig.http(GOOD).await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ")
            && answer.contains("\r\n\r\ntoolhost: no TLS with a.test: "),
        "{answer}"
    );
    let (target, refusal) = rig.refusal(TrafficKind::Connection).await;
    assert!(
        target == "a.test:8443" && matches!(refusal, RefusalReason::Tls { .. }),
        "{target} {refusal:?}"
    );
    assert_eq!(take(&kept), "");
}

#[tokio::test]
async fn values_end_with_their_call() {
    let rig = guarded(bearer());
    let kept = rig.secure(&world().a, OK).await;
    assert!(rig.http(&last(GOOD)).await.ends_with("ok"), "the control");
    assert_eq!(added(&take(&kept)), 1);
    rig.end().await;
    rig.say(&ToRelay::Begin);
    let answer = rig.http(GOOD).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("the secret KEY has no value"),
        "{answer}"
    );
    assert_eq!(take(&kept), "");
    rig.end().await;
    begin(&rig, "{\"KEY\": \"abc\"}");
    assert!(rig.http(GOOD).await.starts_with("HTTP/1.1 502 "));
    assert_eq!(take(&kept), "");
}

#[test]
fn whatever_a_tool_sends_each_request_has_one_header() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let own = Arc::clone(&seen);
    let rules = vec![rule(
        "authorization",
        "Bearer {}",
        &["GET", "POST"],
        &["/v1/**"],
    )];
    let rig = runtime.block_on(async move {
        let rig = guarded(rules);
        rig.encrypted(&world().a, move |stream| note(stream, Arc::clone(&own)))
            .await;
        rig
    });
    let lines = [
        "GET /v1/x",
        "POST /v1/x",
        "GET http://a.test/v1/",
        "GET /v1/../x",
        "GET /v2/x",
        "PUT /v1/x",
    ];
    let lines = lines.map(|line| format!("{line} HTTP/1.1\r\nHost: a.test\r\n"));
    let headers = [
        "Host: a.test\r\n",
        "Authorization: mine\r\n",
        "authorization:\r\n",
        "Connection: authorization\r\n",
        "Connection: keep-alive, X\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Trailer: authorization\r\n",
        "Expect: 100-continue\r\n",
        "Upgrade: h2c\r\n",
        " folded\r\n",
        "\r\n",
    ];
    let bodies = [
        "",
        "abcde",
        "0\r\n\r\n",
        "5\r\nabcde\r\n0\r\nAuthorization: mine\r\n\r\n",
    ];
    fuzz(
        &runtime,
        &rig,
        &seen,
        [&lines.each_ref().map(String::as_str), &headers, &bodies],
        |line| {
            let (request, header) = line.split_once(" a.test:8443 ").unwrap_or_default();
            ["GET /v1/", "POST /v1/"]
                .iter()
                .any(|good| request.starts_with(good))
                && header == format!("Bearer {SECRET}")
        },
    );
}
