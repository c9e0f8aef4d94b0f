//! The promotion of a standby that was behind: the stream then holds rows that the new primary
//! never had, and the new primary writes other rows at the same positions and under the same ids.
//! Every one of its rows is published, and the orphans are named.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use pgoutput::Lsn;
use postrider_tests::{
    Line, Nats, PATIENCE, PgVersion, Postgres, Progress, Servers, StopMode, Stored, Streamer,
    Table, Versions, Writers, check_once, client, for_each_version, jetstream, read_stream,
    wait_until,
};

/// Rows that both servers have.
const COMMON: u64 = 10;
/// Rows that are published and that the standby never receives. They must take more log than all
/// that the promoted server writes before its own rows.
const ORPHANS: u64 = 3000;
/// Rows of the promoted server: more than identities jump ahead at a promotion (32), so that ids
/// are handed out twice.
const NEW: u64 = 200;

/// A primary, its standby, and the broker.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    promoted: bool,
    nats: Nats,
}

impl Servers for Pair {
    fn postgres(&self) -> &Postgres {
        if self.promoted {
            &self.standby
        } else {
            &self.primary
        }
    }

    fn nats_url(&self) -> String {
        self.nats.url()
    }
}

impl Pair {
    async fn start(versions: Versions) -> Result<Self> {
        let primary = Postgres::builder()
            .version(versions.postgres)
            .start()
            .await?;
        let standby = primary.start_standby("standby").await?;
        Ok(Self {
            primary,
            standby,
            promoted: false,
            nats: Box::pin(Nats::builder().version(versions.nats).start()).await?,
        })
    }

    /// As an application is told of both.
    fn url(&self, database: &str) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}\
             ?target_session_attrs=read-write",
            self.primary.port(),
            self.standby.port()
        )
    }

    /// The standby is not there while rows are written and published; then the primary is lost.
    async fn lose_the_primary(&mut self, line: &Line) -> Result<()> {
        self.standby.wait_replayed(&self.primary, PATIENCE).await?;
        self.standby.stop(StopMode::Fast).await?;
        insert(self, "orphan", ORPHANS).await?;
        line.wait_stored(self, COMMON + ORPHANS).await?;
        line.wait_confirmed(self).await?;
        self.primary.kill9().await?;
        self.standby.start_again().await?;
        self.standby.promote().await?;
        self.promoted = true;
        Ok(())
    }
}

async fn insert(pair: &Pair, mark: &str, rows: u64) -> Result<()> {
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', \
         'a' || n % 7, 'placed', jsonb_build_object('mark', '{mark}', 'n', n) \
         FROM generate_series(1, {rows}) AS n"
    );
    pair.postgres().sql("shop", &sql).await
}

async fn position(pair: &Pair) -> Result<Lsn> {
    let query = "SELECT pg_current_wal_insert_lsn()";
    let text = pair.postgres().value("shop", query).await?;
    Ok(text.context("no position")?.parse()?)
}

/// The streamer on the promoted server. Where slots are not copied to standbys there is none, which
/// `run` says by its exit code; `setup` makes one.
async fn go_on(pair: &Pair, line: &Line, mut streamer: Streamer) -> Result<Streamer> {
    if pair.primary.version() >= PgVersion::V17 {
        line.wait_holds(pair, &mut streamer).await?;
        return Ok(streamer);
    }
    let code = streamer.wait_exit(PATIENCE).await?;
    ensure!(code == Some(4), "run ended with {code:?} without a slot");
    line.ok(&["setup"]).await?;
    line.start(pair).await
}

async fn publishes_all(versions: Versions, writers: Writers) -> Result<()> {
    let mut pair = Box::pin(Pair::start(versions)).await?;
    let line = Line::ready(&pair, "shop", writers).await?;
    let line = line.postgres_url(&pair.url("shop"));
    let streamer = line.start(&pair).await?;
    insert(&pair, "common", COMMON).await?;
    line.wait_confirmed(&pair).await?;
    if versions.postgres >= PgVersion::V17 {
        pair.standby.wait_slot_synced(&line.slot, PATIENCE).await?;
    }
    pair.lose_the_primary(&line).await?;

    let mut streamer = go_on(&pair, &line, streamer).await?;
    insert(&pair, "new", NEW).await?;
    let written = position(&pair).await?;
    line.wait_confirmed(&pair).await?;
    let stored = read_stream(&jetstream(&pair).await?, &line.stream).await?;
    let seen = stored.iter().filter(|message| is(message, "orphan"));
    let seen = seen.filter_map(commit_lsn).max().context("no orphan")?;
    ensure!(
        written < seen,
        "the new rows lie behind the orphans: {written}, {seen}"
    );
    check(&pair, &stored).await?;

    wait_until(PATIENCE, "the orphans to be named", async || {
        let log = streamer.stderr_text();
        let named =
            log.contains("the stream holds orphans") && log.contains("messages of timeline 1");
        Ok(Progress::when(named, || log))
    })
    .await?;
    ensure!(streamer.is_running(), "the streamer has ended");
    streamer.stop_within(PATIENCE).await
}

fn is(message: &Stored, mark: &str) -> bool {
    let wanted = format!("\"mark\": \"{mark}\"");
    String::from_utf8_lossy(&message.payload).contains(&wanted)
}

fn commit_lsn(message: &Stored) -> Option<Lsn> {
    let position = message.header("Outbox-Position")?;
    position.rsplit_once('/')?.0.parse().ok()
}

/// Each row of the promoted server is in the stream, once, and with it what else was published.
async fn check(pair: &Pair, stored: &[Stored]) -> Result<()> {
    check_once(stored)?;
    let count = |mark| stored.iter().filter(|message| is(message, mark)).count() as u64;
    let counts = (count("common"), count("orphan"), count("new"));
    let (wanted, all) = ((COMMON, ORPHANS, NEW), stored.len());
    ensure!(counts == wanted, "{counts:?} of {wanted:?}, {all} in all");
    let table = Table::read(&client(pair, "shop").await?, "outbox").await?;
    let payloads: HashMap<&[u8], &str> = stored
        .iter()
        .map(|message| (&message.payload[..], message.id()))
        .collect();
    let mut renamed = 0;
    for (id, payload) in &table.rows {
        let payload = payload.as_deref().context("no payload")?;
        let found = payloads.get(payload.as_bytes());
        let found = *found.with_context(|| format!("row {id} is not in the stream"))?;
        ensure!(
            found == id || found == format!("{id}@2"),
            "row {id} is stored as {found}"
        );
        renamed += u64::from(found != id);
    }
    println!("{renamed} of {NEW} rows have ids that orphans hold");
    ensure!(renamed > 0, "no id was handed out twice");
    Ok(())
}

#[tokio::test]
async fn a_standby_that_was_behind_is_promoted_and_all_its_rows_are_published() -> Result<()> {
    for_each_version(async |versions| publishes_all(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn a_standby_that_was_behind_is_promoted_and_all_its_rows_are_shared() -> Result<()> {
    for_each_version(async |versions| publishes_all(versions, Writers::Shared).await).await
}
