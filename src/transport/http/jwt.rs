//! JSON Web Tokens: the caller `jwt:SUBJECT`, for whom an issuer vouches. Keys, algorithms and
//! addresses are the operator's, never those that a token names; a shared secret is not a key.

use crate::base::text;
use crate::service::{Caller, MAX_NAME_BYTES};
use http::Uri;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::error::Unspecified;
use ring::signature as verified;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What the name of every caller with a JWT starts with, and no other name.
const PREFIX: &str = "jwt:";
/// Longest token that is looked at, bytes.
const MAX_TOKEN_BYTES: usize = 8 * 1024;
/// How far clocks may differ, seconds.
const LEEWAY_SECONDS: u64 = 30;

/// `[http.jwt]` of the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// `iss` is exactly this.
    pub issuer: String,
    /// `aud` is this, or holds it.
    pub audience: String,
    pub algorithms: Vec<String>,
    /// A JSON Web Key Set (RFC 7517).
    pub keys: PathBuf,
    /// Subjects that are operators of this host.
    #[serde(default)]
    pub operators: BTreeSet<String>,
}

pub struct Jwt {
    validation: Validation,
    /// By key id; an id may be missing where there is one key.
    keys: Vec<(Option<String>, Algorithm, DecodingKey)>,
    operators: BTreeSet<String>,
    pub metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Read as one text: of a list, the library would accept any member.
    #[serde(rename = "iss")]
    _iss: String,
}

impl Jwt {
    /// `keys`: the text of the key set. An error says what is wrong and what would be right.
    pub fn new(terms: &Terms, keys: &str) -> Result<Jwt, String> {
        let _ = CryptoProvider::install_default(&BY_RING);
        if terms.issuer.is_empty() || terms.audience.is_empty() {
            return Err("issuer and audience must be named".to_owned());
        }
        let algorithms: Vec<Algorithm> = terms
            .algorithms
            .iter()
            .map(|name| algorithm(name))
            .collect::<Result<_, _>>()?;
        let first = *algorithms.first().ok_or("algorithms: name at least one")?;
        let mut validation = Validation::new(first);
        validation.algorithms.clone_from(&algorithms);
        validation.set_audience(&[&terms.audience]);
        validation.set_issuer(&[&terms.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_SECONDS;
        let set: JwkSet =
            serde_json::from_str(keys).map_err(|e| format!("keys: not a JSON Web Key Set: {e}"))?;
        let keys: Vec<_> = set
            .keys
            .iter()
            .map(|key| pin_algorithm(key, &algorithms))
            .collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > 1 && keys.iter().any(|(id, ..)| id.is_none()) {
            return Err(
                "keys: the set must hold a key, and where it holds several each must have its kid"
                    .to_owned(),
            );
        }
        let metadata = Metadata::new(&terms.issuer, &terms.audience);
        Ok(Jwt {
            validation,
            keys,
            operators: terms.operators.clone(),
            metadata,
        })
    }

    /// The caller of a token. `Err`: why it is refused, for the log.
    pub fn caller(&self, token: &str) -> Result<Caller, String> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(format!("longer than {MAX_TOKEN_BYTES} bytes"));
        }
        let head = decode_header(token).map_err(|e| e.to_string())?;
        // Extensions must be understood (RFC 7515, 4.1.11), and none is known here; unencoded
        // payloads are one.
        if head.crit.is_some() || head.extras.inner().contains_key("b64") {
            return Err("its header has crit or b64, and no extension is known here".to_owned());
        }
        let found = self.keys.iter().find(|(id, algorithm, _)| {
            (head.kid.is_none() && self.keys.len() == 1 || head.kid == *id)
                && *algorithm == head.alg
        });
        let (_, algorithm, key) = found.ok_or("no key of this host has that kid and algorithm")?;
        let validation = Validation {
            algorithms: vec![*algorithm],
            ..self.validation.clone()
        };
        let claims: Claims = decode(token, key, &validation)
            .map_err(|e| e.to_string())?
            .claims;
        let sub = claims.sub;
        let user = format!("{PREFIX}{sub}");
        if sub.is_empty() || user.len() > MAX_NAME_BYTES || !text::is_printable(&sub) {
            return Err("the subject is not a name".to_owned());
        }
        Ok(Caller {
            user,
            operator: self.operators.contains(&sub),
            ..Caller::default()
        })
    }

    pub fn operators(&self) -> Vec<Caller> {
        self.operators
            .iter()
            .map(|sub| Caller::operator(format!("{PREFIX}{sub}")))
            .collect()
    }
}

/// Only signatures by a private key: a shared secret is not one.
fn algorithm(name: &str) -> Result<Algorithm, String> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, RS256};
    let known = [RS256, PS256, ES256, ES384, EdDSA];
    let found = name
        .parse()
        .ok()
        .filter(|algorithm| known.contains(algorithm));
    found.ok_or_else(|| {
        format!(
            "algorithms: '{}' is not one of RS256, PS256, ES256, ES384, EdDSA",
            text::printable(name)
        )
    })
}

/// A key and the one algorithm it is used with.
fn pin_algorithm(
    key: &Jwk,
    allowed: &[Algorithm],
) -> Result<(Option<String>, Algorithm, DecodingKey), String> {
    let id = key.common.key_id.clone();
    let shown = text::printable(id.as_deref().unwrap_or("without a kid"));
    let said = key.common.key_algorithm.map(|said| said.to_string());
    let said = said.ok_or_else(|| format!("keys: key {shown} has no alg"))?;
    let algorithm = algorithm(&said).map_err(|why| format!("keys: key {shown}: {why}"))?;
    if !allowed.contains(&algorithm) {
        return Err(format!(
            "keys: key {shown}: its alg {said} is not among the algorithms"
        ));
    }
    let verifies = key
        .common
        .public_key_use
        .as_ref()
        .is_none_or(|it| *it == PublicKeyUse::Signature)
        && key
            .common
            .key_operations
            .as_ref()
            .is_none_or(|all| all.contains(&KeyOperations::Verify));
    if !verifies {
        return Err(format!(
            "keys: key {shown}: its use or key_ops is not to verify signatures: remove it"
        ));
    }
    let key = DecodingKey::from_jwk(key).map_err(|e| format!("keys: key {shown}: {e}"))?;
    if key.family() != algorithm.family() {
        return Err(format!("keys: key {shown}: it is not a key for {said}"));
    }
    Ok((id, algorithm, key))
}

/// Signatures checked by ring, which TLS uses here too.
static BY_RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::InvalidAlgorithm)),
    verifier_factory: |algorithm, key| {
        Ok(Box::new(Ring {
            algorithm: *algorithm,
            key: key.clone(),
        }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct Ring {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for Ring {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl jsonwebtoken::signature::Verifier<Vec<u8>> for Ring {
    fn verify(
        &self,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> Result<(), jsonwebtoken::signature::Error> {
        let rsa = |parameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                verified::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(Unspecified),
        };
        let curve = |algorithm: &'static dyn verified::VerificationAlgorithm| match self.key.kind()
        {
            DecodingKeyKind::SecretOrDer(key) => {
                verified::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Unspecified),
        };
        let good = match self.algorithm {
            Algorithm::RS256 => rsa(&verified::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::PS256 => rsa(&verified::RSA_PSS_2048_8192_SHA256),
            Algorithm::ES256 => curve(&verified::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => curve(&verified::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => curve(&verified::ED25519),
            _ => Err(Unspecified),
        };
        good.map_err(|_| jsonwebtoken::signature::Error::new())
    }
}

/// Where the metadata of a protected resource lies (RFC 9728), for the server and for a path of it.
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// Who issues the tokens that this server takes, for programs.
#[derive(Debug)]
pub struct Metadata {
    pub document: Value,
    pub address: String,
}

impl Metadata {
    /// `None`: the audience is not an address.
    fn new(issuer: &str, audience: &str) -> Option<Metadata> {
        let uri: Uri = audience.parse().ok()?;
        let scheme = uri
            .scheme_str()
            .filter(|scheme| ["http", "https"].contains(scheme))?;
        let path = uri.path().trim_end_matches('/');
        let address = format!("{scheme}://{}{METADATA_PATH}{path}", uri.authority()?);
        let document = json!({
            "resource": audience,
            "authorization_servers": [issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "toolhost",
        });
        Some(Metadata { document, address })
    }
}

/// Whether a path leads to the metadata, which are answered without a token.
pub fn is_metadata(path: &str) -> bool {
    path.strip_prefix(METADATA_PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_metadata_is_the_audiences() {
        let address = |audience| {
            Metadata::new("https://login.example", audience).map(|metadata| metadata.address)
        };
        let root = format!("https://t.example{METADATA_PATH}");
        assert_eq!(
            address("https://t.example/mcp"),
            Some(format!("{root}/mcp"))
        );
        assert_eq!(
            (address("https://t.example"), address("toolhost")),
            (Some(root), None)
        );
        assert!(
            is_metadata(&format!("{METADATA_PATH}/mcp"))
                && !is_metadata(&format!("{METADATA_PATH}s"))
        );
    }
}
