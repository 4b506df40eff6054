//! JSON Web Tokens: the caller `jwt:SUBJECT`, for whom an issuer vouches. Keys, algorithms and addresses are the operator's,
//! never those that a token names; a shared secret is not a key.

use super::metadata::Metadata;
use crate::base::text;
use crate::service::Caller;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::signature as verified;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What every caller of a JWT is named with: the names of other callers do not start so.
const NAMED: &str = "jwt:";
/// Longest token that is looked at, bytes.
const LONGEST: usize = 8 * 1024;
/// Longest subject.
const LONGEST_NAME: usize = 256;
/// How far clocks may differ, seconds.
const LEEWAY: u64 = 30;

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
    /// One text: the library compares each of a list.
    #[serde(rename = "iss")]
    _iss: String,
}

impl Jwt {
    /// `keys`: the text of the key set. An error says what is wrong and what would be right.
    pub fn of(terms: &Terms, keys: &str) -> Result<Jwt, String> {
        let _ = CryptoProvider::install_default(&BY_RING);
        if terms.issuer.is_empty() || terms.audience.is_empty() {
            return Err("issuer and audience must be named".to_owned());
        }
        let algorithms: Vec<Algorithm> =
            terms.algorithms.iter().map(|name| algorithm(name)).collect::<Result<_, _>>()?;
        let first = *algorithms.first().ok_or("algorithms: name at least one")?;
        let mut validation = Validation::new(first);
        validation.algorithms.clone_from(&algorithms);
        validation.set_audience(&[&terms.audience]);
        validation.set_issuer(&[&terms.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY;
        let set: JwkSet = serde_json::from_str(keys).map_err(|e| format!("keys: not a JSON Web Key Set: {e}"))?;
        let keys: Vec<_> = set.keys.iter().map(|key| pinned(key, &algorithms)).collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > 1 && keys.iter().any(|(id, ..)| id.is_none()) {
            return Err("keys: the set must hold a key, and where it holds several each must have its kid".to_owned());
        }
        let metadata = Metadata::of(&terms.issuer, &terms.audience);
        Ok(Jwt { validation, keys, operators: terms.operators.clone(), metadata })
    }

    /// Whose token this is; else why it is not taken, for the log.
    pub fn caller(&self, token: &str) -> Result<Caller, String> {
        if token.len() > LONGEST {
            return Err(format!("longer than {LONGEST} bytes"));
        }
        let head = decode_header(token).map_err(|e| e.to_string())?;
        // What must be understood is (RFC 7515, 4.1.11), and nothing of it is; unencoded payloads are such a thing.
        if head.crit.is_some() || head.extras.inner().contains_key("b64") {
            return Err("its header has crit or b64, and no extension is known here".to_owned());
        }
        let named = |id: &Option<String>| head.kid.is_none() && self.keys.len() == 1 || head.kid == *id;
        let found = self.keys.iter().find(|(id, algorithm, _)| named(id) && *algorithm == head.alg);
        let (_, algorithm, key) = found.ok_or("no key of this host has that kid and algorithm")?;
        let validation = Validation { algorithms: vec![*algorithm], ..self.validation.clone() };
        let claims: Claims = decode(token, key, &validation).map_err(|e| e.to_string())?.claims;
        let sub = claims.sub;
        if sub.is_empty() || sub.len() > LONGEST_NAME || !text::is_printable(&sub) {
            return Err("the subject is no name".to_owned());
        }
        let operator = self.operators.contains(&sub);
        Ok(Caller { operator, ..Caller::named(format!("{NAMED}{sub}")) })
    }

    pub fn operators(&self) -> Vec<Caller> {
        self.operators.iter().map(|sub| Caller::operator(format!("{NAMED}{sub}"))).collect()
    }
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    match name {
        "RS256" => Ok(Algorithm::RS256),
        "PS256" => Ok(Algorithm::PS256),
        "ES256" => Ok(Algorithm::ES256),
        "ES384" => Ok(Algorithm::ES384),
        "EdDSA" => Ok(Algorithm::EdDSA),
        _ => Err(format!("algorithms: '{}' is none of RS256, PS256, ES256, ES384, EdDSA", text::printable(name))),
    }
}

/// A key and the one algorithm it is used with.
fn pinned(key: &Jwk, allowed: &[Algorithm]) -> Result<(Option<String>, Algorithm, DecodingKey), String> {
    let id = key.common.key_id.clone();
    let shown = text::printable(id.as_deref().unwrap_or("without a kid"));
    let said = key.common.key_algorithm.map(|said| said.to_string());
    let said = said.ok_or_else(|| format!("keys: key {shown} has no alg"))?;
    let algorithm = algorithm(&said).map_err(|why| format!("keys: key {shown}: {why}"))?;
    if !allowed.contains(&algorithm) {
        return Err(format!("keys: key {shown}: its alg {said} is not among the algorithms"));
    }
    let verifies = key.common.public_key_use.as_ref().is_none_or(|it| *it == PublicKeyUse::Signature)
        && key.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    if !verifies {
        return Err(format!("keys: key {shown}: its use or key_ops is not to verify signatures: take it out"));
    }
    let key = DecodingKey::from_jwk(key).map_err(|e| format!("keys: key {shown}: {e}"))?;
    if key.family() != algorithm.family() {
        return Err(format!("keys: key {shown}: it is no key for {said}"));
    }
    Ok((id, algorithm, key))
}

/// Signatures checked by ring, which TLS uses here too.
static BY_RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::InvalidAlgorithm)),
    verifier_factory: |algorithm, key| Ok(Box::new(Ring { algorithm: *algorithm, key: key.clone() })),
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
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), jsonwebtoken::signature::Error> {
        let rsa: Option<&verified::RsaParameters> = match self.algorithm {
            Algorithm::RS256 => Some(&verified::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::PS256 => Some(&verified::RSA_PSS_2048_8192_SHA256),
            _ => None,
        };
        let other: Option<&dyn verified::VerificationAlgorithm> = match self.algorithm {
            Algorithm::ES256 => Some(&verified::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Some(&verified::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Some(&verified::ED25519),
            _ => None,
        };
        let good = match (self.key.kind(), rsa, other) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some(rsa), None) => {
                verified::RsaPublicKeyComponents { n, e }.verify(rsa, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(key), None, Some(other)) => {
                verified::UnparsedPublicKey::new(other, key).verify(message, signature)
            }
            _ => return Err(jsonwebtoken::signature::Error::new()),
        };
        good.map_err(|_| jsonwebtoken::signature::Error::new())
    }
}
