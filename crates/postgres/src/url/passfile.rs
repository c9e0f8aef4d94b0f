//! The password file, `~/.pgpass` (PostgreSQL manual, "The Password File").

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Host, HostAddress, Password};

/// A password file has a few lines; anything larger is another file.
const MAX_PASSFILE_BYTES: u64 = 1024 * 1024;

/// The first line of `path` that fits; `None` also if the file is missing, too open or no file.
/// Like libpq, a file that others may read is ignored with a warning.
pub(super) fn look_up(path: &Path, host: &Host, database: &str, user: &str) -> Option<Password> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() {
        tracing::warn!(path = %path.display(), "password file is not a plain file, ignored");
        return None;
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            "password file may be read by others, ignored; run chmod 0600 on it"
        );
        return None;
    }
    if metadata.len() > MAX_PASSFILE_BYTES {
        tracing::warn!(path = %path.display(), "password file is over 1 MiB, ignored");
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    find(&text, host, database, user)
}

/// Matches `host:port:database:user:password` lines, first match first.
pub(super) fn find(text: &str, host: &Host, database: &str, user: &str) -> Option<Password> {
    let name = match &host.address {
        HostAddress::Tcp { name, .. } => name.clone(),
        HostAddress::Unix { directory } if super::options::is_default_socket(directory) => {
            "localhost".to_owned()
        }
        HostAddress::Unix { directory } => directory.to_string_lossy().into_owned(),
    };
    let port = host.port.to_string();
    let wanted = [name.as_str(), port.as_str(), database, user];
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line;
            for value in wanted {
                let (field, after) = field(rest)?;
                if field != "*" && unescape(field) != value {
                    return None;
                }
                rest = after;
            }
            let password = unescape(rest.split_at(password_end(rest)).0);
            (!password.is_empty()).then(|| Password::new(password))
        })
}

/// The next field, still escaped, and what follows its `:`.
fn field(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b':' => return Some((text.get(..index)?, text.get(index + 1..)?)),
            _ => {}
        }
    }
    None
}

/// The password ends at an unescaped `:` or at the end of the line.
fn password_end(text: &str) -> usize {
    field(text).map_or(text.len(), |(password, _)| password.len())
}

fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            _ => plain.push(character),
        }
    }
    plain
}
