//! Slot, publication or table lost or changed, under the streamer or before it: recognised, named
//! with reason, gap and cure, and never made again in silence.

mod calls;

use std::future::Future;
use std::pin::Pin;

use anyhow::{Context, Result, ensure};
use calls::{Caller, ends_with, ids, insert, wait_end, wait_ids, wait_log};
use futures_util::future::try_join_all;
use postrider_tests::{
    Line, PATIENCE, PgVersion, Progress, Stage, StopMode, Streamer, Writers, for_each_version,
    wait_until,
};

/// A plain outbox table.
const TABLE: &str = "CREATE TABLE outbox (id int, aggregate_id text, type text, payload text)";

/// A partitioned one.
const PARTITIONED: &str = "CREATE TABLE outbox (id int, aggregate_id text, type text, \
                           payload text) PARTITION BY RANGE (id); \
                           CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (10); \
                           CREATE TABLE spare (LIKE outbox)";

/// One of several streamers on one pair of servers: database, slot, publication and stream have
/// the same name.
struct Case {
    line: Line,
    streamer: Streamer,
}

impl Case {
    /// Streams from the table that `before` made in a new database.
    async fn start(stage: &Stage, name: &str, before: &str, publication: &str) -> Result<Self> {
        let line = Line::new(stage, name).await?.slot(name).stream(name);
        let toml = format!("[[outbox]]\ntable = \"outbox\"\nsubject = \"{name}.{{type}}\"\n");
        let line = line.config(&toml)?;
        stage.postgres.sql(name, before).await?;
        stage.postgres.sql(name, publication).await?;
        line.ok(&["setup"]).await?;
        let streamer = line.launch(&["-v"])?;
        let mut case = Self { line, streamer };
        case.line.wait_holds(stage, &mut case.streamer).await?;
        case.look().await?;
        Ok(case)
    }

    /// Waits until publication and tables have been looked at once more.
    async fn look(&mut self) -> Result<()> {
        let looks = |log: &str| {
            log.matches("publication and tables are as they must be")
                .count()
        };
        let before = looks(&self.streamer.stderr_text());
        wait_until(PATIENCE, "a look at publication and tables", async || {
            let now = looks(&self.streamer.stderr_text());
            ensure!(self.streamer.is_running(), "it ended");
            Ok(Progress::when(now > before, || format!("{now} looks")))
        })
        .await
    }

    async fn insert(&self, stage: &Stage, id: u32) -> Result<()> {
        let sql = format!("INSERT INTO outbox VALUES ({id}, 'a', 't', 'p')");
        stage.postgres.sql(&self.line.database, &sql).await
    }
}

/// What is done to publication or table under a streamer, and the words that it then ends with.
struct Harm {
    name: &'static str,
    table: &'static str,
    publication: &'static str,
    sql: &'static str,
    words: &'static [&'static str],
}

const HARMS: [Harm; 12] = [
    harm(
        "gone",
        "DROP PUBLICATION gone",
        &["publication", "gone", "postrider setup"],
    ),
    harm(
        "taken_out",
        "ALTER PUBLICATION taken_out DROP TABLE outbox",
        &[
            "lacks the table public.outbox",
            "ALTER PUBLICATION \"taken_out\" ADD TABLE",
            "all was well at",
            "in the table alone",
        ],
    ),
    harm(
        "no_inserts",
        "ALTER PUBLICATION no_inserts SET (publish = 'update')",
        &["does not publish inserts", "SET (publish = 'insert')"],
    ),
    harm(
        "anew",
        "DROP PUBLICATION anew; CREATE PUBLICATION anew FOR TABLE outbox WITH (publish = 'insert')",
        &[
            "publication anew: it was dropped and made anew",
            "all was well at",
        ],
    ),
    harm(
        "out_and_in",
        "ALTER PUBLICATION out_and_in DROP TABLE outbox; \
         ALTER PUBLICATION out_and_in ADD TABLE outbox",
        &["public.outbox was taken out of it and put in again"],
    ),
    harm(
        "replaced",
        "DROP TABLE outbox; CREATE TABLE outbox (id int, aggregate_id text, type text, \
         payload text); ALTER PUBLICATION replaced ADD TABLE outbox",
        &["public.outbox was replaced by another"],
    ),
    harm(
        "table_dropped",
        "DROP TABLE outbox",
        &["public.outbox was dropped", "all was well at"],
    ),
    harm(
        "made_again",
        "DROP TABLE outbox; CREATE TABLE outbox (id int, aggregate_id text, type text, \
         payload text)",
        &["lacks the table public.outbox"],
    ),
    harm(
        "moved",
        "CREATE SCHEMA archive; ALTER TABLE outbox SET SCHEMA archive",
        &["public.outbox is now named archive.outbox"],
    ),
    harm(
        "renamed",
        "ALTER TABLE outbox RENAME TO events",
        &["public.outbox is now named public.events"],
    ),
    Harm {
        publication: "CREATE PUBLICATION unlogged FOR ALL TABLES WITH (publish = 'insert')",
        ..harm(
            "unlogged",
            "ALTER TABLE outbox SET UNLOGGED",
            &["it is unlogged", "SET LOGGED"],
        )
    },
    Harm {
        table: PARTITIONED,
        ..harm(
            "leaves",
            "ALTER PUBLICATION leaves SET (publish_via_partition_root = false)",
            &["SET (publish_via_partition_root = true)"],
        )
    },
];

const fn harm(name: &'static str, sql: &'static str, words: &'static [&'static str]) -> Harm {
    Harm {
        name,
        table: TABLE,
        publication: "SELECT",
        sql,
        words,
    }
}

#[tokio::test]
async fn whatever_is_taken_from_under_the_streamer_ends_it_with_4_by_name() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let stage = &stage;
        let cases = HARMS
            .iter()
            .map(|harm| -> Pin<Box<dyn Future<Output = _>>> {
                Box::pin(async move { suffer(stage, harm).await.context(harm.name) })
            });
        try_join_all(cases).await.map(drop)
    })
    .await
}

async fn suffer(stage: &Stage, harm: &Harm) -> Result<()> {
    let mut case = Case::start(stage, harm.name, harm.table, harm.publication).await?;
    case.insert(stage, 1).await?;
    case.line.wait_confirmed(stage).await?;
    stage.postgres.sql(harm.name, harm.sql).await?;
    wait_end(&mut case.streamer, 4, harm.words).await?;
    Ok(())
}

#[tokio::test]
async fn what_harms_no_row_leaves_the_streamer_alone() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let mut parted = Case::start(&stage, "parted", PARTITIONED, "SELECT").await?;
        let everything = "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert')";
        let mut all = Case::start(&stage, "everything", TABLE, everything).await?;
        parted.insert(&stage, 1).await?;
        all.insert(&stage, 1).await?;
        let sql = "CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (10) TO (20); \
                   ALTER TABLE outbox ATTACH PARTITION spare FOR VALUES FROM (20) TO (30); \
                   ALTER TABLE outbox DETACH PARTITION outbox_1; \
                   ALTER TABLE outbox ADD COLUMN note text; TRUNCATE outbox; VACUUM";
        for statement in sql.split("; ") {
            stage.postgres.sql("parted", statement).await?;
        }
        let anew = format!("DROP TABLE outbox; {TABLE}");
        stage.postgres.sql("everything", &anew).await?;
        parted.look().await?;
        all.look().await?;
        parted.insert(&stage, 11).await?;
        parted.insert(&stage, 21).await?;
        all.insert(&stage, 2).await?;
        for (case, wanted) in [(&mut parted, "1 11 21"), (&mut all, "1 2")] {
            case.line.wait_confirmed(&stage).await?;
            let jetstream = stage.jetstream().await?;
            let found = postrider_tests::read_stream(&jetstream, &case.line.stream).await?;
            let found: Vec<&str> = found.iter().map(postrider_tests::Stored::id).collect();
            ensure!(found.join(" ") == wanted, "{found:?}");
            case.streamer.stop_within(PATIENCE).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_filter_set_under_the_streamer_is_told_and_the_publication_is_looked_at_at_a_start()
-> Result<()> {
    for_each_version(async |versions| {
        if versions.postgres == PgVersion::V14 {
            return Ok(());
        }
        let stage = Stage::start(versions).await?;
        let mut case = Case::start(&stage, "filtered", TABLE, "SELECT").await?;
        let sql = "ALTER PUBLICATION filtered SET TABLE outbox WHERE (id > 5)";
        stage.postgres.sql("filtered", sql).await?;
        let words = ["row filter were changed", "(id > 5)"];
        wait_end(&mut case.streamer, 4, &words).await?;
        let mut again = case.line.launch(&[])?;
        wait_log(&mut again, &["it sends only rows of", "(id > 5)"]).await?;
        again.stop_within(PATIENCE).await?;
        let sql = "ALTER PUBLICATION filtered SET TABLE outbox (id, type)";
        stage.postgres.sql("filtered", sql).await?;
        let mut again = case.line.launch(&[])?;
        wait_log(
            &mut again,
            &["payload", "its next row will stop the streamer"],
        )
        .await?;
        case.insert(&stage, 1).await?;
        wait_end(&mut again, 4, &["public.outbox", "payload"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_dropped_under_the_streamer_ends_it_with_4_and_is_not_made_again() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        let drop_it = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots; \
                       SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
        wait_until(PATIENCE, "the slot to be dropped", async || {
            Ok(match stage.postgres.sql("shop", drop_it).await {
                Ok(()) => Progress::Done(()),
                // The streamer was faster.
                Err(error) => Progress::NotYet(format!("{error:#}")),
            })
        })
        .await?;
        let words = [
            "slot",
            "does not exist",
            "postrider setup",
            "in the table alone",
        ];
        wait_end(&mut streamer, 4, &words).await?;
        let slots = "SELECT count(*) FROM pg_replication_slots";
        ensure!(stage.postgres.value("shop", slots).await?.as_deref() == Some("0"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_that_the_server_gives_up_under_the_streamer_is_named_with_its_gap() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(
            versions,
            |it| {
                it.config("max_slot_wal_keep_size", "1MB")
                    .config("min_wal_size", "32MB")
                    .config("max_wal_size", "48MB")
            },
            |it| it,
        )
        .await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1"]).await?;
        line.wait_confirmed(&stage).await?;
        streamer.pause()?;
        let client = stage.client("shop").await?;
        wait_until(PATIENCE, "the slot to be lost", async || {
            client
                .batch_execute("SELECT pg_switch_wal(); SELECT txid_current(); CHECKPOINT")
                .await?;
            let sql = "SELECT wal_status FROM pg_replication_slots";
            let status: Option<String> = client.query_one(sql, &[]).await?.try_get(0)?;
            Ok(Progress::when(status.as_deref() == Some("lost"), || {
                format!("{status:?}")
            }))
        })
        .await?;
        streamer.resume()?;
        let words = [
            "the slot is lost",
            "max_slot_wal_keep_size",
            "rows committed after",
            "postrider setup --recreate-slot",
        ];
        wait_end(&mut streamer, 4, &words).await?;
        ensure!(ids(&stage).await? == ["1"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_given_up_because_nobody_used_it_is_named_so() -> Result<()> {
    for_each_version(async |versions| {
        // The setting is new in 18.
        if versions.postgres < PgVersion::V18 {
            return Ok(());
        }
        let stage = Stage::start_with(
            versions,
            |it| it.config("idle_replication_slot_timeout", "1s"),
            |it| it,
        )
        .await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 1).await?;
        let client = stage.client("shop").await?;
        wait_until(PATIENCE, "the slot to be given up", async || {
            client.batch_execute("CHECKPOINT").await?;
            let sql = "SELECT invalidation_reason FROM pg_replication_slots";
            let reason: Option<String> = client.query_one(sql, &[]).await?.try_get(0)?;
            Ok(Progress::when(reason.is_some(), || format!("{reason:?}")))
        })
        .await?;
        for command in ["run", "setup"] {
            let ended = line.finish(&[command]).await?;
            let words = ["idle_replication_slot_timeout", "--recreate-slot"];
            ends_with(&ended, 4, &words)?;
        }
        ends_with(&line.finish(&["status"]).await?, 2, &["idle_timeout"])
    })
    .await
}

#[tokio::test]
async fn slots_of_another_kind_are_refused_by_name() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        Line::ready(&stage, "shop", Writers::Exclusive).await?;
        stage.postgres.create_database("bank").await?;
        let sql = "SELECT pg_create_physical_replication_slot('physical'); \
                   SELECT pg_create_logical_replication_slot('plugin', 'test_decoding'); \
                   SELECT pg_create_logical_replication_slot('prepares', 'pgoutput', false, true)";
        stage.postgres.sql("shop", sql).await?;
        let elsewhere = "SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')";
        stage.postgres.sql("bank", elsewhere).await?;
        let keeper = stage.client("shop").await?;
        let fleeting = "SELECT pg_create_logical_replication_slot('fleeting', 'pgoutput', true)";
        keeper.batch_execute(fleeting).await?;
        for (slot, word) in [
            ("physical", "physical slot"),
            ("plugin", "test_decoding"),
            ("prepares", "two_phase"),
            ("elsewhere", "another database (\"bank\")"),
            ("fleeting", "temporary"),
        ] {
            let caller = Caller::new(&stage, "shop")
                .flag("--postgres-slot", slot)
                .flag("--nats-stream", &slot.to_uppercase());
            let toml = tempfile::NamedTempFile::new()?;
            let subject = format!("[[outbox]]\ntable = \"outbox\"\nsubject = \"{slot}.{{type}}\"");
            std::fs::write(toml.path(), subject)?;
            let caller = caller.flag("--config", &toml.path().display().to_string());
            let words = [slot, word, "another slot name"];
            caller.refused(&["setup"], 3, &words).await.context(slot)?;
            caller.refused(&["run"], 4, &words).await.context(slot)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_that_a_promotion_left_behind_is_missing_with_that_reason() -> Result<()> {
    for_each_version(async |versions| {
        let mut stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        // What the standby of an unsynchronised slot looks like once it is promoted.
        let drop_it = "SELECT pg_drop_replication_slot('postrider')";
        stage.postgres.sql("shop", drop_it).await?;
        stage.postgres.stop(StopMode::Fast).await?;
        std::fs::write(stage.postgres.data_dir().join("standby.signal"), "")?;
        stage.postgres.start_again().await?;
        let ended = line.finish(&["setup"]).await?;
        ends_with(&ended, 3, &["it is a standby", "connect to the primary"])?;
        // A streamer waits for the promotion.
        let mut streamer = line.launch(&[])?;
        wait_log(&mut streamer, &["is a standby", "next attempt in"]).await?;
        stage
            .postgres
            .sql("postgres", "SELECT pg_promote()")
            .await?;
        let words = [
            "not there",
            "timeline 2",
            "failover slot",
            "postrider setup",
        ];
        wait_end(&mut streamer, 4, &words).await.map(drop)
    })
    .await
}
