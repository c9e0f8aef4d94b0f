//! The servers of a round, with a proxy before each, and the streamer between them.

use anyhow::{Context, Result};
use postrider_tests::{Line, LoadPlan, Servers, Streamer, client, witness};
use testbed::{Nats, NatsCluster, Postgres, Proxy};

use super::round::Round;

/// The database.
pub(super) const DATABASE: &str = "shop";

/// One broker or three.
#[derive(Debug)]
pub(super) enum Brokers {
    One(Box<Nats>),
    Three(NatsCluster),
}

impl Brokers {
    pub(super) fn nodes(&self) -> &[Nats] {
        match self {
            Self::One(nats) => std::slice::from_ref(&**nats),
            Self::Three(cluster) => cluster.nodes(),
        }
    }

    pub(super) fn node(&mut self, index: usize) -> Result<&mut Nats> {
        match self {
            Self::One(nats) => Ok(nats),
            Self::Three(cluster) => cluster.node(index),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::One(nats) => nats.url(),
            Self::Three(cluster) => cluster.url(),
        }
    }
}

/// Everything that can fail.
#[derive(Debug)]
pub(super) struct World {
    pub(super) postgres: Postgres,
    pub(super) brokers: Brokers,
    pub(super) postgres_proxy: Proxy,
    /// One for each broker.
    pub(super) nats_proxies: Vec<Proxy>,
    pub(super) line: Line,
    pub(super) streamer: Streamer,
}

/// The servers alone.
struct Bare {
    postgres: Postgres,
    brokers: Brokers,
}

impl Servers for Bare {
    fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    fn nats_url(&self) -> String {
        self.brokers.url()
    }
}

impl Servers for World {
    fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    fn nats_url(&self) -> String {
        self.brokers.url()
    }
}

impl World {
    /// Starts the servers, sets everything up and lets the streamer run.
    ///
    /// # Errors
    /// When something does not start.
    pub(super) async fn start(round: &Round, program: &std::path::Path) -> Result<Self> {
        let postgres = Postgres::builder().version(round.versions.postgres);
        let postgres = Box::pin(postgres.start()).await?;
        let brokers = if round.cluster {
            Brokers::Three(Box::pin(NatsCluster::start(round.versions.nats)).await?)
        } else {
            let nats = Nats::builder().version(round.versions.nats);
            Brokers::One(Box::new(Box::pin(nats.start()).await?))
        };
        let bare = Bare { postgres, brokers };
        let line = Line::with_program(&bare, DATABASE, program.to_path_buf()).await?;
        let line = line.writers(round.writers);
        line.ok(&["setup", "--create-table"]).await?;
        witness::open(&client(&bare, DATABASE).await?).await?;
        let postgres_proxy = Proxy::start(bare.postgres.port()).await?;
        let mut nats_proxies = Vec::new();
        for node in bare.brokers.nodes() {
            nats_proxies.push(Proxy::start(node.port()).await?);
        }
        let urls: Vec<String> = nats_proxies
            .iter()
            .map(|proxy| format!("nats://127.0.0.1:{}", proxy.port()))
            .collect();
        let postgres_url = format!(
            "postgres://postgres@127.0.0.1:{}/{DATABASE}",
            postgres_proxy.port()
        );
        let line = line.postgres_url(&postgres_url).nats_url(&urls.join(","));
        let mut streamer = line.start(&bare).await.context("the streamer")?;
        // Where its words are wanted, they are kept whole.
        streamer.keep_quiet();
        Ok(Self {
            postgres: bare.postgres,
            brokers: bare.brokers,
            postgres_proxy,
            nats_proxies,
            line,
            streamer,
        })
    }

    /// What the writers do: as much as two cores carry beside all the servers.
    pub(super) fn load(&self) -> LoadPlan {
        let pause_max_ms = match self.brokers {
            Brokers::One(_) => 20,
            Brokers::Three(_) => 60,
        };
        LoadPlan {
            pause_max_ms,
            ..LoadPlan::default()
        }
    }
}
