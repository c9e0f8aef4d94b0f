//! Where fetched servers are kept, and how processes share that place.
//!
//! `downloads/` holds the files as fetched, `installs/` what was unpacked from them, `templates/`
//! fresh database clusters to copy. A folder appears under its final name only when it is
//! complete (it is made beside it and renamed), and one process at a time makes it (a lock file),
//! so concurrent tests neither race nor fetch twice.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::account::{Account, is_writable};

/// How long another process may take to make a folder that this one waits for: longer than all that
/// making one may take (`install.rs`).
const MADE_ELSEWHERE_LIMIT: Duration = Duration::from_secs(25 * 60);

/// How often it is looked whether the other process is done.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

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
    if let Some(parent) = root.parent() {
        fs::create_dir_all(parent).context("cannot be made")?;
    }
    match DirBuilder::new().mode(0o755).create(root) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.context("cannot be made")?,
    }
    check_owner(root, account)?;
    if fs::symlink_metadata(root)?.uid() == account.own_uid {
        // A umask may have taken rights that the servers' account needs.
        fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
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

/// Whether nobody but us (and root, who can do anything) can have put something into this root.
///
/// Programs in it are run as we are, also as root, and anyone can make a folder of its name in
/// /tmp.
///
/// # Errors
/// Says whose it is, or who may write to it; when there is no such folder.
pub(crate) fn check_owner(root: &Path, account: Account) -> Result<()> {
    // Not `metadata`: a link can lead to a folder of ours today, and elsewhere tomorrow.
    let meta = fs::symlink_metadata(root)?;
    if !meta.is_dir() {
        bail!("is not a folder");
    }
    is_trusted(meta.uid(), meta.permissions().mode(), account.own_uid)
}

fn is_trusted(owner_uid: u32, mode: u32, own_uid: u32) -> Result<()> {
    if owner_uid != own_uid && owner_uid != 0 {
        bail!("belongs to uid {owner_uid}, not to us");
    }
    if mode & 0o022 != 0 {
        bail!("can be written to by others (mode {:o})", mode & 0o777);
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
    lock_within(&lock, MADE_ELSEWHERE_LIMIT)
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

/// Locks a file; another process may hold it so long.
fn lock_within(file: &File, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error.into()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                bail!("another process has held it for {limit:?}");
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL_INTERVAL),
        }
    }
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
    fn a_lock_that_is_held_is_not_awaited_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::create(folder.path().join("lock")).unwrap();
        let (first, second) = (open(), open());
        lock_within(&first, Duration::ZERO).unwrap();
        let error = lock_within(&second, Duration::from_millis(60)).unwrap_err();
        assert!(error.to_string().contains("60ms"), "{error}");
        first.unlock().unwrap();
        lock_within(&second, Duration::ZERO).unwrap();
    }

    #[test]
    fn only_folders_of_ours_that_nobody_else_can_write_to_are_trusted() {
        let said = |owner, mode| is_trusted(owner, mode, 1000).err().map(|e| e.to_string());
        assert_eq!(said(1000, 0o40_755), None);
        assert_eq!(said(0, 0o40_755), None);
        assert!(said(1001, 0o40_755).unwrap().contains("uid 1001"));
        assert!(said(1000, 0o40_775).unwrap().contains("775"));
        assert!(said(0, 0o40_757).unwrap().contains("757"));
        assert!(is_trusted(1000, 0o40_755, 0).is_err(), "root trusts itself");
    }

    #[test]
    fn a_root_that_others_can_write_to_or_replace_is_neither_read_nor_written() {
        let account = Account::current().unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = folder.path().join("testbed");
        assert!(check_owner(&root, account).is_err(), "there is none yet");
        make_root(&root, account).unwrap();
        check_owner(&root, account).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_owner(&root, account).is_err());
        assert!(make_root(&root, account).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(check_owner(&link, account).is_err());
        assert!(make_root(&link, account).is_err());
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
