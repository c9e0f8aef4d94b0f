//! Who we are, and as whom the servers run.
//!
//! PostgreSQL refuses to run as root. Under root the servers therefore run as an account that
//! exists in any Linux system: `postgres` when there is one, else `nobody`. A bare number without
//! an entry in the password file will not do, because initdb looks its own name up.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// Accounts that a server may run as when we are root, the best first.
const PREFERRED_ACCOUNTS: [&str; 4] = ["postgres", "nobody", "daemon", "bin"];

/// Folders for short-lived files, tried in this order after the one that `TMPDIR` names.
const TEMPORARY_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The longest temporary folder that leaves room for a socket's name: a Unix socket path is at
/// most 107 bytes on Linux and 103 on macOS.
const TEMPORARY_PATH_MAX_BYTES: usize = 64;

/// The account that the servers run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// The user id of this process.
    pub(crate) own_uid: u32,
    /// The ids to change to; `None` when the servers run as we do.
    drop_to: Option<(u32, u32)>,
}

impl Account {
    /// Finds out who we are; under root picks the account that the servers run as.
    ///
    /// # Errors
    /// When the user id cannot be found, or we are root and no other account exists.
    pub(crate) fn current() -> Result<Self> {
        static FOUND: OnceLock<Account> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(*found);
        }
        let own_uid = own_uid()?;
        let drop_to = if own_uid == 0 {
            let passwd = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
            let Some(ids) = unprivileged_account(&passwd) else {
                bail!(
                    "PostgreSQL refuses to run as root and /etc/passwd has no other account; \
                     make one (useradd --system postgres) or run this as an ordinary user"
                );
            };
            Some(ids)
        } else {
            None
        };
        Ok(*FOUND.get_or_init(|| Self { own_uid, drop_to }))
    }

    /// The user id that the servers have.
    pub(crate) fn server_uid(self) -> u32 {
        self.drop_to.map_or(self.own_uid, |(uid, _)| uid)
    }

    /// Makes `command` run as this account (supplementary groups are given up as well).
    pub(crate) fn apply(self, command: &mut Command) {
        if let Some((uid, gid)) = self.drop_to {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives `path` (not what is in it) to this account.
    pub(crate) fn give(self, path: &Path) -> Result<()> {
        if let Some((uid, gid)) = self.drop_to {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .with_context(|| format!("cannot give {} to uid {uid}", path.display()))?;
        }
        Ok(())
    }

    /// Whether the servers can reach `path` and read it: every folder above it lets others in.
    ///
    /// Conservative: group rights and access lists are not looked at.
    pub(crate) fn can_reach(self, path: &Path) -> bool {
        let Ok(real) = path.canonicalize() else {
            return false;
        };
        if self.drop_to.is_none() {
            return true;
        }
        real.ancestors().all(|folder| {
            fs::metadata(folder).is_ok_and(|meta| {
                let wanted = if meta.is_dir() { 0o001 } else { 0o005 };
                meta.permissions().mode() & wanted == wanted
            })
        })
    }

    /// The folder under which each server gets its own: short enough for a socket's path, and
    /// open to the servers' account.
    ///
    /// # Errors
    /// When no temporary folder fits.
    pub(crate) fn temporary_root(self) -> Result<PathBuf> {
        let named = std::env::temp_dir();
        let others = TEMPORARY_FOLDERS.into_iter().map(PathBuf::from);
        for folder in std::iter::once(named).chain(others) {
            let fits = folder.as_os_str().len() <= TEMPORARY_PATH_MAX_BYTES;
            if fits && self.can_reach(&folder) && is_writable(&folder) {
                return Ok(folder);
            }
        }
        bail!(
            "no temporary folder that the servers' account (uid {}) can enter and whose path has \
             at most {TEMPORARY_PATH_MAX_BYTES} bytes; set TMPDIR to one",
            self.server_uid()
        );
    }
}

/// Whether we can make files in `folder`.
pub(crate) fn is_writable(folder: &Path) -> bool {
    tempfile::Builder::new()
        .prefix(".postrider-probe-")
        .tempfile_in(folder)
        .is_ok()
}

fn own_uid() -> Result<u32> {
    if let Ok(meta) = fs::metadata("/proc/self") {
        return Ok(meta.uid());
    }
    let output = Command::new("id")
        .arg("-u")
        .output()
        .context("cannot run `id -u`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .with_context(|| format!("`id -u` printed {text:?}, not a number"))
}

/// Picks `(uid, gid)` from the text of a password file.
fn unprivileged_account(passwd: &str) -> Option<(u32, u32)> {
    let accounts: Vec<(&str, u32, u32)> = passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then_some((name, uid, gid))
        })
        .collect();
    PREFERRED_ACCOUNTS
        .iter()
        .find_map(|wanted| accounts.iter().find(|(name, ..)| name == wanted))
        .or_else(|| accounts.first())
        .map(|(_, uid, gid)| (*uid, *gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefers_postgres_then_nobody_then_anyone_but_root() {
        let root = "root:x:0:0:root:/root:/bin/sh\n";
        let nobody = "nobody:x:65534:65534::/:/bin/false\n";
        let postgres = "postgres:x:101:104::/:/bin/sh\n";
        let ann = "ann:x:1000:1001::/:/bin/sh\n";
        let all = format!("{root}{nobody}{postgres}");
        assert_eq!(unprivileged_account(&all), Some((101, 104)));
        assert_eq!(
            unprivileged_account(&format!("{root}{ann}{nobody}")),
            Some((65534, 65534))
        );
        assert_eq!(
            unprivileged_account(&format!("{root}{ann}")),
            Some((1000, 1001))
        );
        assert_eq!(unprivileged_account(root), None);
        assert_eq!(unprivileged_account("broken\n::\n"), None);
    }

    #[test]
    fn a_closed_folder_cannot_be_reached() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
        let root = Account {
            own_uid: 0,
            drop_to: Some((65534, 65534)),
        };
        let ordinary = Account {
            own_uid: 1000,
            drop_to: None,
        };
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!root.can_reach(&inner));
        assert!(ordinary.can_reach(&inner));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(root.can_reach(&inner));
        assert!(!root.can_reach(&folder.path().join("absent")));
        assert!(!ordinary.can_reach(&folder.path().join("absent")));
    }
}
