//! Three nats-servers that are one cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{self, Context as JetStream, stream::ClusterInfo};
use async_nats::{Client, ServerAddr};
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::artifacts::NatsVersion;
use crate::nats::{Nats, PORT_TRIES_MAX, START_LIMIT, found, is_port_taken};
use crate::ports::ReservedPort;
use crate::wait::{Patience, Progress};

/// How many servers: the fewest that go on when one is away.
const NODES: usize = 3;

/// How long an answer of JetStream's API may take; an election takes some seconds.
const API_LIMIT: Duration = Duration::from_secs(5);

/// Three nats-servers on 127.0.0.1 with JetStream, so that streams can have three replicas. Each
/// can be killed, paused, stopped and started again by itself; all are gone when dropped.
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<Nats>,
    /// The ports on which the servers speak to each other.
    _routes: Vec<ReservedPort>,
}

impl NatsCluster {
    /// Finds or fetches the server, starts three of it, and waits until they have a leader and
    /// JetStream answers on each.
    ///
    /// # Errors
    /// When the server can be neither found nor fetched, or one does not start.
    pub async fn start(version: NatsVersion) -> Result<Self> {
        Self::start_with(version, "").await
    }

    /// The same, with text for each server's configuration file.
    ///
    /// # Errors
    /// Those of [`NatsCluster::start`].
    pub async fn start_with(version: NatsVersion, config: &str) -> Result<Self> {
        for _ in 1..PORT_TRIES_MAX {
            match Self::try_start(version, config).await {
                Err(error) if is_port_taken(&error) => {}
                result => return result,
            }
        }
        Self::try_start(version, config).await
    }

    async fn try_start(version: NatsVersion, config: &str) -> Result<Self> {
        let (account, program) = found(version).await?;
        let routes: Vec<ReservedPort> = (0..NODES)
            .map(|_| ReservedPort::pick())
            .collect::<Result<_>>()?;
        let addresses: Vec<String> = routes
            .iter()
            .map(|port| format!("nats://127.0.0.1:{}", port.number()))
            .collect();
        let mut nodes = Vec::with_capacity(NODES);
        for (index, port) in routes.iter().enumerate() {
            let builder = Nats::builder().version(version).config(&format!(
                "server_name: \"{}\"\ncluster {{ name: \"testbed\", listen: \"127.0.0.1:{}\", \
                 routes: [{}] }}\n{config}",
                node_name(index),
                port.number(),
                addresses.join(", "),
            ));
            nodes.push(builder.prepare(account, &program)?);
        }
        // All at once: JetStream answers only where most of them are.
        for node in &mut nodes {
            node.launch()?;
        }
        try_join_all(nodes.iter_mut().map(|node| node.wait_ready(START_LIMIT))).await?;
        Ok(Self {
            nodes,
            _routes: routes,
        })
    }

    /// The URLs of all servers, comma-separated.
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Nats::url).collect();
        urls.join(",")
    }

    /// The servers.
    pub fn nodes(&self) -> &[Nats] {
        &self.nodes
    }

    /// A server, to do something to it; the number counts round.
    ///
    /// # Errors
    /// Never for a cluster that was started.
    pub fn node(&mut self, index: usize) -> Result<&mut Nats> {
        let index = index % NODES;
        self.nodes.get_mut(index).context("no such node")
    }

    /// Connects to whichever server answers first.
    ///
    /// # Errors
    /// When none accepts the connection.
    pub async fn connect(&self) -> Result<Client> {
        let addresses: Vec<ServerAddr> = self
            .nodes
            .iter()
            .map(|node| node.url().parse())
            .collect::<Result<_, _>>()?;
        let options = async_nats::ConnectOptions::new().connection_timeout(API_LIMIT);
        // Boxed: whoever asks the cluster something would carry this large future.
        let connecting = Box::pin(options.connect(addresses));
        connecting
            .await
            .context("no server of the cluster lets us in")
    }

    /// JetStream, over a connection of its own.
    ///
    /// # Errors
    /// When no server accepts the connection.
    pub async fn jetstream(&self) -> Result<JetStream> {
        let mut context = jetstream::new(self.connect().await?);
        context.set_timeout(API_LIMIT);
        Ok(context)
    }

    /// The number of the server that leads a stream, once there is one.
    ///
    /// # Errors
    /// When there is none within `limit`.
    pub async fn leader(&self, stream: &str, limit: Duration) -> Result<usize> {
        let what = format!("a leader of the stream {stream}");
        let mut patience = Patience::new(limit, &what);
        loop {
            let looked = patience.look(async {
                let cluster = self.cluster_info(stream).await?;
                let leader = cluster.leader.as_deref().and_then(node_index);
                Ok(match leader {
                    Some(index) => Progress::Done(index),
                    None => Progress::NotYet(format!("{cluster:?}")),
                })
            });
            if let Some(index) = looked.await? {
                return Ok(index);
            }
        }
    }

    /// Waits until a stream has a leader and all its replicas are there and have all messages.
    ///
    /// # Errors
    /// When it is not so within `limit`.
    pub async fn wait_healthy(&self, stream: &str, limit: Duration) -> Result<()> {
        let what = format!("all replicas of the stream {stream} to be current");
        let mut patience = Patience::new(limit, &what);
        loop {
            let looked = patience.look(async {
                let cluster = self.cluster_info(stream).await?;
                let replicas = &cluster.replicas;
                let whole = cluster.leader.is_some()
                    && replicas.len() + 1 == NODES
                    && replicas.iter().all(|peer| peer.current && !peer.offline);
                Ok(Progress::when(whole, || format!("{cluster:?}")))
            });
            if looked.await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Makes the leader of a stream hand over to another server.
    ///
    /// # Errors
    /// When JetStream does not do it, for instance because there is no leader just now.
    pub async fn step_down(&self, stream: &str) -> Result<()> {
        let jetstream = self.jetstream().await?;
        let subject = format!("STREAM.LEADER.STEPDOWN.{stream}");
        let answer: Value = jetstream
            .request(subject, &())
            .await
            .context("the leader was asked to step down")?;
        let stepped_down = answer.get("success").and_then(Value::as_bool);
        ensure!(stepped_down == Some(true), "step-down: {answer}");
        Ok(())
    }

    /// Stops and starts the servers one after the other, each once the stream is whole again.
    ///
    /// # Errors
    /// When one does not stop or start, or the stream is not whole in time.
    pub async fn rolling_restart(&mut self, stream: &str, limit: Duration) -> Result<()> {
        for index in 0..NODES {
            self.wait_healthy(stream, limit).await?;
            self.node(index)?.restart().await?;
        }
        self.wait_healthy(stream, limit).await
    }

    async fn cluster_info(&self, stream: &str) -> Result<ClusterInfo> {
        let found = self.jetstream().await?.get_stream(stream).await;
        let found = found.with_context(|| format!("cannot look at the stream {stream}"))?;
        let cluster = found.cached_info().cluster.clone();
        cluster.context("the stream is not in a cluster")
    }
}

/// As the servers call themselves.
fn node_name(index: usize) -> String {
    format!("node{index}")
}

fn node_index(name: &str) -> Option<usize> {
    name.strip_prefix("node")?.parse().ok()
}
