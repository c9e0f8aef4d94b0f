//! The servers of a test.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::{ServerAddr, jetstream};
use futures_util::{StreamExt, TryStreamExt, stream};
use testbed::{
    Nats, NatsBuilder, NatsCluster, NatsVersion, PgVersion, Postgres, PostgresBuilder, Proxy,
    versions_under_test,
};
use tokio_postgres::Client;

/// How many pairs of servers one test uses at a time.
const VERSIONS_AT_A_TIME: usize = 2;

/// The versions of one pair of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// That of PostgreSQL.
    pub postgres: PgVersion,
    /// That of nats-server.
    pub nats: NatsVersion,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL {}, nats-server {}", self.postgres, self.nats)
    }
}

/// Every PostgreSQL with the last NATS of the list, every other NATS with the last PostgreSQL.
fn pairs() -> Result<Vec<Versions>> {
    let under_test = versions_under_test()?;
    let (Some(&last_postgres), Some(&last_nats)) =
        (under_test.postgres.last(), under_test.nats.last())
    else {
        return Ok(Vec::new());
    };
    let mut pairs: Vec<Versions> = Vec::new();
    for postgres in under_test.postgres {
        pairs.push(Versions {
            postgres,
            nats: last_nats,
        });
    }
    for nats in under_test.nats {
        let pair = Versions {
            postgres: last_postgres,
            nats,
        };
        if nats != last_nats {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}

/// Runs a test for each pair of versions under test.
///
/// # Errors
/// The first error of the test, with the versions that it failed on.
pub async fn for_each_version(test: impl AsyncFn(Versions) -> Result<()>) -> Result<()> {
    let test = &test;
    let runs = pairs()?.into_iter().map(|versions| {
        Box::pin(async move {
            let result = test(versions).await;
            result.with_context(|| format!("on {versions}"))
        })
    });
    stream::iter(runs)
        .buffer_unordered(VERSIONS_AT_A_TIME)
        .try_collect()
        .await
}

/// The servers of a line, whatever else stands around them.
pub trait Servers: Sync {
    /// The database server that takes writes.
    fn postgres(&self) -> &Postgres;

    /// The URL of the broker, or of its servers, comma-separated.
    fn nats_url(&self) -> String;
}

/// A connection to a database, as superuser.
///
/// # Errors
/// When the server does not accept it.
pub async fn client(servers: &impl Servers, database: &str) -> Result<Client> {
    servers.postgres().connect(database).await
}

/// How long an answer of JetStream may take: an election takes some seconds, and the machine may be
/// busy.
const API_LIMIT: Duration = Duration::from_secs(20);

/// JetStream, over a connection of its own to whichever server answers first.
///
/// # Errors
/// When none accepts it.
pub async fn jetstream(servers: &impl Servers) -> Result<jetstream::Context> {
    let url = servers.nats_url();
    let addresses: Vec<ServerAddr> = url.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let connecting = async_nats::connect(addresses).await;
    let client = connecting.with_context(|| format!("cannot connect to {url}"))?;
    let mut context = jetstream::new(client);
    context.set_timeout(API_LIMIT);
    Ok(context)
}

/// Both servers, running.
#[derive(Debug)]
pub struct Stage {
    /// The database server.
    pub postgres: Postgres,
    /// The broker.
    pub nats: Nats,
    /// Their versions.
    pub versions: Versions,
}

impl Stage {
    /// Starts both.
    ///
    /// # Errors
    /// When one can be neither found nor fetched, or does not start.
    pub async fn start(versions: Versions) -> Result<Self> {
        Self::start_with(versions, |postgres| postgres, |nats| nats).await
    }

    /// Starts both, configured further.
    ///
    /// # Errors
    /// When one can be neither found nor fetched, or does not start.
    pub async fn start_with(
        versions: Versions,
        postgres: impl FnOnce(PostgresBuilder) -> PostgresBuilder,
        nats: impl FnOnce(NatsBuilder) -> NatsBuilder,
    ) -> Result<Self> {
        // Boxed, or each test's future would be as large as both starts together.
        let (postgres, nats) = tokio::try_join!(
            Box::pin(postgres(Postgres::builder().version(versions.postgres)).start()),
            Box::pin(nats(Nats::builder().version(versions.nats)).start()),
        )?;
        Ok(Self {
            postgres,
            nats,
            versions,
        })
    }

    /// A connection to a database, as superuser.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub async fn client(&self, database: &str) -> Result<Client> {
        client(self, database).await
    }

    /// JetStream, over a connection of its own.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub async fn jetstream(&self) -> Result<jetstream::Context> {
        jetstream(self).await
    }
}

impl Servers for Stage {
    fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    fn nats_url(&self) -> String {
        self.nats.url()
    }
}

/// A PostgreSQL and three nats-servers that are one cluster.
#[derive(Debug)]
pub struct ClusterStage {
    /// The database server.
    pub postgres: Postgres,
    /// The brokers.
    pub cluster: NatsCluster,
}

impl ClusterStage {
    /// Starts all.
    ///
    /// # Errors
    /// When one can be neither found nor fetched, or does not start.
    pub async fn start(versions: Versions) -> Result<Self> {
        let (postgres, cluster) = tokio::try_join!(
            Box::pin(Postgres::builder().version(versions.postgres).start()),
            Box::pin(NatsCluster::start(versions.nats)),
        )?;
        Ok(Self { postgres, cluster })
    }
}

impl Servers for ClusterStage {
    fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    fn nats_url(&self) -> String {
        self.cluster.url()
    }
}

/// A proxy before each server, for the streamer alone: tests go past them.
#[derive(Debug)]
pub struct Proxies {
    /// Before PostgreSQL.
    pub postgres: Proxy,
    /// Before NATS.
    pub nats: Proxy,
}

impl Proxies {
    /// Starts both.
    ///
    /// # Errors
    /// When there are no ports for them.
    pub async fn before(stage: &Stage) -> Result<Self> {
        Ok(Self {
            postgres: Proxy::start(stage.postgres.port()).await?,
            nats: Proxy::start(stage.nats.port()).await?,
        })
    }

    /// The libpq URL of a database through the proxy.
    #[must_use]
    pub fn postgres_url(&self, database: &str) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/{database}",
            self.postgres.port()
        )
    }

    /// The URL of the broker through the proxy.
    #[must_use]
    pub fn nats_url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.nats.port())
    }
}
