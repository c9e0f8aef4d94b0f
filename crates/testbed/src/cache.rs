//! Where fetched servers are kept, and how processes share that place.
//!
//! `downloads/` holds the files as fetched, `installs/` what was unpacked from them, `templates/`
//! fresh database clusters to copy. A folder appears under its final name only when it is
//! complete (it is made beside it and renamed), and one process at a time makes it (a lock file),
//! so concurrent tests neither race nor fetch twice.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::account::{Account, is_writable};

/// The folders in which servers are looked for, the preferred first.
pub(crate) fn roots(account: Account) -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut roots = Vec::new();
    if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
        roots.push(workspace.join(target).join("testbed"));
    }
    roots.push(workspace.join("target/testbed"));
    if let Ok(temporary) = account.temporary_root() {
        roots.push(temporary.join(format!("postrider-testbed-{}", account.own_uid)));
    }
    roots
}

/// The first root that we can write to and the servers can read, made if need be.
///
/// # Errors
/// When there is none.
pub(crate) fn writable_root(account: Account) -> Result<PathBuf> {
    let mut tried = Vec::new();
    for root in roots(account) {
        match make_root(&root, account) {
            Ok(()) => return Ok(root.canonicalize()?),
            Err(error) => tried.push(format!("{}: {error:#}", root.display())),
        }
    }
    bail!(
        "no folder to keep the test servers in; tried {}",
        tried.join("; ")
    );
}

fn make_root(root: &Path, account: Account) -> Result<()> {
    fs::create_dir_all(root).context("cannot be made")?;
    let meta = fs::metadata(root)?;
    if meta.uid() == account.own_uid {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    } else if std::env::temp_dir()
        .canonicalize()
        .is_ok_and(|tmp| root.starts_with(tmp))
    {
        // Anyone can make a folder of this name in /tmp and put a program of theirs into it.
        bail!("belongs to uid {}, not to us", meta.uid());
    }
    if !is_writable(root) {
        bail!("is not writable");
    }
    if !account.can_reach(root) {
        bail!(
            "cannot be entered by uid {}, as which the servers run",
            account.server_uid()
        );
    }
    Ok(())
}

/// Makes `root/kind/name` by `fill`, unless it is there already; gives back its path.
///
/// `fill` gets an empty folder of mode 755 beside the final one.
///
/// # Errors
/// Those of `fill`, and when the folders cannot be made.
pub(crate) fn make_once(
    root: &Path,
    kind: &str,
    name: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let parent = root.join(kind);
    let wanted = parent.join(name);
    if wanted.exists() {
        return Ok(wanted);
    }
    make_open_folder(&parent)?;
    let lock_path = parent.join(format!(".{name}.lock"));
    let lock =
        File::create(&lock_path).with_context(|| format!("cannot make {}", lock_path.display()))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    if wanted.exists() {
        return Ok(wanted);
    }
    let staging = tempfile::Builder::new()
        .prefix(&format!(".{name}-"))
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    let content = staging.path().join("content");
    fs::set_permissions(staging.path(), fs::Permissions::from_mode(0o755))?;
    make_open_folder(&content)?;
    fill(&content)?;
    fs::rename(&content, &wanted)
        .with_context(|| format!("cannot move the new folder to {}", wanted.display()))?;
    Ok(wanted)
}

/// Makes a folder that everyone may enter, whatever our umask.
pub(crate) fn make_open_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    if fs::metadata(path)?.permissions().mode() & 0o777 != 0o755 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot open {} to others", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn concurrent_callers_fill_a_folder_once() {
        let root = tempfile::tempdir().unwrap();
        let fills = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let made = make_once(root.path(), "installs", "thing", |folder| {
                        fills.fetch_add(1, Ordering::SeqCst);
                        Ok(fs::write(folder.join("file"), "whole")?)
                    });
                    let text = fs::read_to_string(made.unwrap().join("file")).unwrap();
                    assert_eq!(text, "whole");
                });
            }
        });
        assert_eq!(fills.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failed_fill_leaves_nothing_and_the_next_one_succeeds() {
        let root = tempfile::tempdir().unwrap();
        let failed = make_once(root.path(), "installs", "thing", |folder| {
            fs::write(folder.join("half"), "")?;
            bail!("broken off")
        });
        assert!(failed.is_err());
        assert!(!root.path().join("installs/thing").exists());
        let made = make_once(root.path(), "installs", "thing", |_| Ok(())).unwrap();
        assert!(!made.join("half").exists());
    }
}
