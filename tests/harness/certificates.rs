//! Certificates of hosts on loopback.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority's certificate (each is called the same), a certificate of 127.0.0.1 by it, and the
/// key of that.
pub fn certificates() -> [String; 3] {
    let key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.distinguished_name
        .push(DnType::CommonName, "an authority of the tests");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = root.self_signed(&key).unwrap().pem();
    let own = KeyPair::generate().unwrap();
    let host = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let host = host.signed_by(&own, &Issuer::new(root, key)).unwrap();
    [authority, host.pem(), own.serialize_pem()]
}
