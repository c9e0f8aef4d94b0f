//! Who we are, told to the server at every connect.

use std::io::Read;
use std::path::{Path, PathBuf};

use async_nats::Auth as Answer;
use nkeys::KeyPair;

use crate::options::Auth;

/// Largest credentials file that is read; a JWT with long permission lists has some kilobytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Why we cannot say who we are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityFault {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file holds something else.
    #[error("{} holds no {wanted}", path.display())]
    Content { path: PathBuf, wanted: &'static str },
    /// Signing failed.
    #[error("the nkey in {} cannot sign", .0.display())]
    Sign(PathBuf),
}

/// Answers the server's nonce, reading files afresh: a credential rotated on disk is used by the
/// next connect. The files are small and local, so a blocking read does no harm.
pub(crate) fn answer(auth: &Auth, nonce: &[u8]) -> Result<Answer, IdentityFault> {
    let mut answer = Answer::new();
    match auth {
        Auth::None => {}
        Auth::UserPassword(user, password) => {
            answer.username = Some(user.clone());
            answer.password = Some(password.reveal().to_owned());
        }
        Auth::Token(token) => answer.token = Some(token.reveal().to_owned()),
        Auth::TokenFile(path) => {
            let text = read(path)?;
            let token = text.trim();
            if token.is_empty() {
                return Err(no_content(path, "token"));
            }
            answer.token = Some(token.to_owned());
        }
        Auth::CredentialsFile(path) => {
            let text = read(path)?;
            let jwt = block(&text, "USER JWT").ok_or_else(|| no_content(path, "user JWT"))?;
            answer.signature = Some(sign(&text, path, nonce)?.1);
            answer.jwt = Some(jwt.to_owned());
        }
        Auth::NkeyFile(path) => {
            let (public, signature) = sign(&read(path)?, path, nonce)?;
            answer.nkey = Some(public);
            answer.signature = Some(signature);
        }
    }
    Ok(answer)
}

fn no_content(path: &Path, wanted: &'static str) -> IdentityFault {
    let path = path.to_owned();
    IdentityFault::Content { path, wanted }
}

fn read(path: &Path) -> Result<String, IdentityFault> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text))
        .map_err(|source| IdentityFault::Read {
            path: path.to_owned(),
            source,
        })?;
    Ok(text)
}

/// The public key and the signature of the nonce, by the seed that the text holds.
fn sign(text: &str, path: &Path, nonce: &[u8]) -> Result<(String, Vec<u8>), IdentityFault> {
    let seed = block(text, "NKEY SEED")
        .or_else(|| text.lines().map(str::trim).find(|line| is_seed(line)))
        .ok_or_else(|| no_content(path, "nkey seed"))?;
    let pair = KeyPair::from_seed(seed).map_err(|_| no_content(path, "usable nkey seed"))?;
    let signature = pair
        .sign(nonce)
        .map_err(|_| IdentityFault::Sign(path.to_owned()))?;
    Ok((pair.public_key(), signature))
}

/// A user's seed begins with `SU` (ADR-14 of NATS).
fn is_seed(line: &str) -> bool {
    line.starts_with("SU") && line.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The line after a `-----BEGIN ... NAME-----` line.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("---") && line.contains("BEGIN") && line.contains(name))?;
    lines.find(|line| !line.is_empty() && !line.starts_with("---"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credentials_file_gives_jwt_and_signature() {
        let pair = KeyPair::new_user();
        let seed = pair.seed().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.creds");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\r\neyJ0.abc.def\r\n------END NATS USER JWT------\r\n\
             \r\n*** IMPORTANT ***\r\n-----BEGIN USER NKEY SEED-----\r\n{seed}\r\n\
             ------END USER NKEY SEED------\r\n"
        );
        std::fs::write(&path, text).unwrap();
        let found = answer(&Auth::CredentialsFile(path.clone()), b"nonce").unwrap();
        assert_eq!(found.jwt.as_deref(), Some("eyJ0.abc.def"));
        assert_eq!(found.nkey, None);
        pair.verify(b"nonce", &found.signature.unwrap()).unwrap();

        std::fs::write(&path, format!("{seed}\n")).unwrap();
        let found = answer(&Auth::NkeyFile(path.clone()), b"nonce").unwrap();
        assert_eq!(found.nkey, Some(pair.public_key()));

        // Read again: what stands there now counts.
        std::fs::write(&path, " S3CR3T \n").unwrap();
        let found = answer(&Auth::TokenFile(path.clone()), b"").unwrap();
        assert_eq!(found.token.as_deref(), Some("S3CR3T"));
        let fault = answer(&Auth::NkeyFile(path.clone()), b"").err().unwrap();
        assert!(!fault.to_string().contains("S3CR3T"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            answer(&Auth::TokenFile(path), b""),
            Err(IdentityFault::Read { .. })
        ));
    }
}
