//! Tokens: 256 random bits each, of which a file holds the hashes (`NAME sha256:HEX [operator]`). A
//! file that others can read, or with a line that cannot be read, admits no caller.

use crate::base::files::{self, Folder, Stamp};
use crate::base::{lock, text};
use crate::service::{Caller, Proof};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nix::fcntl::OFlag;
use ring::rand::{SecureRandom, SystemRandom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use subtle::ConstantTimeEq;

/// What every token starts with, so that scanners of source code find lost ones.
const PREFIX: &str = "th_";
const RANDOM_BYTES: usize = 32;
const HASH: &str = "sha256:";
/// Largest file, bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const MAX_NAME_BYTES: usize = 64;

/// A new token, and the line of the file that lets it in.
pub fn make(name: &str, operator: bool) -> Result<(String, String), String> {
    check_name(name)?;
    let mut secret = [0; RANDOM_BYTES];
    SystemRandom::new()
        .fill(&mut secret)
        .map_err(|_| "the kernel gives no random bytes".to_owned())?;
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
    let line = format!(
        "{name} {HASH}{}{}",
        hash(&token),
        if operator { " operator" } else { "" }
    );
    Ok((token, line))
}

fn hash(token: &str) -> String {
    crate::base::sha256_hex(token.as_bytes())
}

/// Names hold no ':', which marks callers of other kinds, such as `jwt:SUBJECT`.
fn check_name(name: &str) -> Result<(), String> {
    if !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name
            .chars()
            .all(|c: char| c.is_ascii_alphanumeric() || "._@-".contains(c))
    {
        Ok(())
    } else {
        Err(format!(
            "a name has 1 to {MAX_NAME_BYTES} letters, digits and . _ @ - ('{}')",
            text::printable(name)
        ))
    }
}

#[derive(Debug)]
struct TokenLine {
    caller: Caller,
    hash: String,
}

/// A file of tokens, read again when it changes.
#[derive(Debug)]
pub struct Tokens {
    file: PathBuf,
    /// The last reading: the file's stamp, its lines, and why there are none.
    read: Mutex<(Option<Stamp>, Arc<Vec<TokenLine>>, String)>,
}

impl Tokens {
    /// An error names the file, the place and the fix.
    pub fn open(file: &Path) -> Result<Tokens, String> {
        let file = std::path::absolute(file)
            .map_err(|e| format!("token file {}: {e}", text::path(file)))?;
        let (stamp, lines) = read(&file)?;
        Ok(Tokens {
            file,
            read: Mutex::new((Some(stamp), Arc::new(lines), String::new())),
        })
    }

    /// The caller of a token, as long as the file has its line.
    pub fn caller(self: &Arc<Self>, token: &str) -> Option<Caller> {
        let well_formed = token
            .strip_prefix(PREFIX)
            .and_then(|rest| URL_SAFE_NO_PAD.decode(rest).ok());
        well_formed.filter(|secret| secret.len() == RANDOM_BYTES)?;
        let hash = hash(token);
        let caller = self.of_hash(&hash)?;
        let (tokens, named) = (self.clone(), caller.clone());
        let holds = move || {
            tokens
                .of_hash(&hash)
                .is_some_and(|now| now.user == named.user)
        };
        Some(Caller {
            proof: Proof(Some(Arc::new(holds))),
            ..caller
        })
    }

    fn of_hash(&self, hash: &str) -> Option<Caller> {
        // Every line is compared, so that the time does not reveal which one matches.
        self.lines().iter().fold(None, |found, line| {
            let same = bool::from(line.hash.as_bytes().ct_eq(hash.as_bytes()));
            if same {
                Some(line.caller.clone())
            } else {
                found
            }
        })
    }

    pub fn operators(&self) -> Vec<Caller> {
        self.lines()
            .iter()
            .map(|line| line.caller.clone())
            .filter(|caller| caller.operator)
            .collect()
    }

    /// Whether no caller is admitted now.
    pub fn is_empty(&self) -> bool {
        self.lines().is_empty()
    }

    fn lines(&self) -> Arc<Vec<TokenLine>> {
        let now = Stamp::at(&self.file).ok();
        let mut kept = lock(&self.read);
        if now.is_none() || kept.0 != now {
            *kept = match read(&self.file) {
                Ok((stamp, lines)) => (Some(stamp), Arc::new(lines), String::new()),
                Err(why) => {
                    // Each reason is logged once; without a stamp the next request looks again.
                    if kept.2 != why {
                        tracing::error!(target: "toolhost::http", "no token is accepted: {why}");
                    }
                    (None, Arc::default(), why)
                }
            };
        }
        kept.1.clone()
    }
}

fn read(file: &Path) -> Result<(Stamp, Vec<TokenLine>), String> {
    let at = |why: String| format!("token file {}: {why}", text::path(file));
    let (Some(folder), Some(name)) = (
        file.parent(),
        file.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(at("its file name is not UTF-8 text".to_owned()));
    };
    // Anybody who can change the folder could restore a line that was removed.
    let opened = Folder::open(folder).and_then(|folder| folder.file(name, OFlag::O_NOFOLLOW));
    let opened = opened.map_err(|e| at(e.to_string()))?;
    let stamp = Stamp::from(&opened.metadata().map_err(|e| at(e.to_string()))?);
    let bytes = files::checked(Ok(opened), MAX_FILE_BYTES, files::not_private).map_err(at)?;
    let text = text::decode(&bytes).map_err(at)?;
    let mut lines: Vec<TokenLine> = Vec::new();
    for (number, written) in text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
    {
        if written.is_empty() || written.starts_with('#') {
            continue;
        }
        let line = line(written).map_err(|why| at(format!("line {number}: {why}")))?;
        if lines
            .iter()
            .any(|other| other.caller.user == line.caller.user && other.caller != line.caller)
        {
            return Err(at(format!(
                "line {number}: this name is an operator in one line and none in another"
            )));
        }
        lines.push(line);
    }
    Ok((stamp, lines))
}

/// A line may hold a token by mistake, so nothing of it is shown.
fn line(written: &str) -> Result<TokenLine, String> {
    let mut words = written.split_ascii_whitespace();
    let fix =
        "write `NAME sha256:HEX` or `NAME sha256:HEX operator`, as `toolhost token NAME` prints it";
    let (Some(name), Some(hash), role, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(fix.to_owned());
    };
    check_name(name).map_err(|_| fix.to_owned())?;
    let hash = hash
        .strip_prefix(HASH)
        .filter(|hash: &&str| {
            hash.len() == 64
                && hash
                    .bytes()
                    .all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
        })
        .ok_or(fix)?
        .to_owned();
    let caller = match role {
        None => Caller::named(name),
        Some("operator") => Caller::operator(name),
        Some(_) => return Err(fix.to_owned()),
    };
    Ok(TokenLine { caller, hash })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn put(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn a_token_is_its_line_and_a_bad_line_is_named_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        let ((alice, line), (root, operator)) =
            (make("alice", false).unwrap(), make("ops", true).unwrap());
        put(&file, &format!("# who\n\n{line}\n{operator}\n"));
        let tokens = Arc::new(Tokens::open(&file).unwrap());
        assert_eq!(tokens.caller(&alice), Some(Caller::named("alice")));
        assert_eq!(tokens.caller(&root), Some(Caller::operator("ops")));
        for made_up in [
            "",
            "alice",
            "th_",
            line.split_once(HASH).unwrap().1,
            &format!("{alice}x"),
        ] {
            assert_eq!(tokens.caller(made_up), None, "{made_up}");
        }
        // A file with a fault admits no caller, and the corrected one does again.
        put(&file, &format!("{operator}\nalice {alice}\n"));
        assert_eq!(tokens.caller(&root), None);
        put(&file, &operator);
        assert!(tokens.caller(&root).is_some() && tokens.caller(&alice).is_none());
        let hash = "0".repeat(64);
        for (text, wanted) in [
            (
                "alice th_secret".to_owned(),
                "line 1: write `NAME sha256:HEX`",
            ),
            (format!("# c\nalice sha256:{hash} admin"), "line 2: write"),
            (format!("a:b sha256:{hash}"), "line 1: write"),
            (
                format!("a sha256:{hash}\na sha256:{hash} operator"),
                "line 2: this name is an operator in one line",
            ),
        ] {
            put(&file, &text);
            let why = Tokens::open(&file).unwrap_err();
            assert!(why.contains(wanted) && !why.contains("th_secret"), "{why}");
        }
        assert!(make("jwt:alice", false).is_err());
    }
}
