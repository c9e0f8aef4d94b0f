//! The two servers.

use anyhow::{Context, Result};
use testbed::{Nats, NatsVersion, PgVersion, Postgres};

/// A bound on the WAL that a slot may retain, as every server with a slot should have one.
const WAL_KEPT_AT_MOST: &str = "1GB";

/// PostgreSQL 18 and the newest nats-server, gone when dropped.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) postgres: Postgres,
    pub(super) nats: Nats,
}

impl Servers {
    /// Finds or fetches both, and starts them.
    ///
    /// # Errors
    /// When one can be neither found nor fetched, or does not start.
    pub(super) async fn start() -> Result<Self> {
        println!("  starting PostgreSQL 18 and the newest nats-server (fetched once if need be)");
        let (postgres, nats) = tokio::try_join!(
            Postgres::builder()
                .version(PgVersion::V18)
                .config("max_slot_wal_keep_size", WAL_KEPT_AT_MOST)
                .start(),
            Nats::builder().version(NatsVersion::Newest).start(),
        )?;
        let servers = Self { postgres, nats };
        let shown = servers
            .postgres
            .value("postgres", "SHOW server_version")
            .await?
            .context("the server has no version")?;
        let broker = servers.nats.connect().await?.server_info().version;
        println!(
            "  PostgreSQL {shown} on port {}, nats-server {broker} on port {}, both on 127.0.0.1",
            servers.postgres.port(),
            servers.nats.port()
        );
        Ok(servers)
    }
}
