//! Which environment variables anybody but the host itself may set or pass on: one rule for
//! manifests, policies and calls.

use crate::base::text;

/// Variables that steer the loader or an interpreter, and our own.
pub const FORBIDDEN_PREFIXES: [&str; 5] = ["LD_", "PYTHON", "NODE_", "BUN_", "TOOLHOST_"];
/// More certificates for Node and Bun, as `SSL_CERT_FILE` names them for others: they are read with
/// the rights of the tool, and change nothing else.
const CERTIFICATES: &str = "NODE_EXTRA_CA_CERTS";
/// Variables that the C library obeys, or that the host sets itself.
pub const FORBIDDEN: [&str; 6] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
];

/// Why this variable may not be set; `None` = it may.
pub fn refusal_reason(name: &str, value: &str) -> Option<String> {
    let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !good {
        return Some(
            "is not a variable name: ASCII letters, digits and '_', not starting with a digit"
                .to_owned(),
        );
    }
    if value.contains('\0') {
        return Some("holds a NUL character, which no environment can carry".to_owned());
    }
    let upper = name.to_ascii_uppercase();
    let ours = FORBIDDEN.contains(&upper.as_str())
        || name != CERTIFICATES && FORBIDDEN_PREFIXES.iter().any(|p| upper.starts_with(p));
    ours.then(|| {
        format!(
            "{} may not be set: it changes how the interpreter starts",
            text::head(name, 60)
        )
    })
}
