//! What PostgreSQL and the configuration refuse: the exit code, and the words that lead to a cure.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{
    Caller, QUIET, commit, ends_with, ids, insert, newest, stays_unconfirmed, wait_end, wait_ids,
    wait_log,
};
use postrider_tests::{Line, PATIENCE, Stage, Writers, for_each_version};

#[tokio::test]
async fn wrong_password_missing_database_and_missing_rights_end_with_the_cure() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(versions, |it| it.auth("scram-sha-256"), |it| it).await?;
        stage.postgres.create_database("shop").await?;
        let sql = "CREATE ROLE app LOGIN PASSWORD 'right'; \
                   CREATE TABLE outbox (id int, aggregate_type text, type text, payload text); \
                   ALTER TABLE outbox OWNER TO app; GRANT CREATE ON DATABASE shop TO app";
        stage.postgres.sql("shop", sql).await?;
        let call = |password: &str, database: &str| {
            let url = stage.postgres.url_as("app", password, database);
            Caller::at(&url, &stage.nats.url())
        };
        for command in ["setup", "run"] {
            call("wrong-one", "shop")
                .refused(&[command], 3, &["password"])
                .await?;
            call("right", "nowhere")
                .refused(&[command], 3, &["\"nowhere\""])
                .await?;
            let cure = ["may not replicate", "ALTER ROLE \"app\" REPLICATION"];
            call("right", "shop").refused(&[command], 3, &cure).await?;
        }
        let said = call("wrong-one", "shop").finish(&["run"]).await?;
        ensure!(!said.stderr.contains("wrong-one"), "{}", said.stderr);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn everything_that_is_wrong_with_the_server_is_listed_at_once() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(
            versions,
            |it| {
                it.config("wal_level", "replica")
                    .config("max_replication_slots", "1")
            },
            |it| it,
        )
        .await?;
        stage.postgres.create_database("shop").await?;
        let sql = "SELECT pg_create_physical_replication_slot('standby'); CREATE ROLE app LOGIN; \
                   CREATE TABLE outbox (id int, aggregate_type text, type text, payload text)";
        stage.postgres.sql("shop", sql).await?;
        let url = stage.postgres.url_as("app", "unused", "shop");
        let caller = Caller::at(&url, &stage.nats.url());
        let wal_level = "ALTER SYSTEM SET wal_level = 'logical'";
        let all = [
            wal_level,
            "max_replication_slots",
            "ALTER ROLE \"app\" REPLICATION",
        ];
        caller.refused(&["setup"], 3, &all).await?;
        caller
            .refused(&["run"], 3, &["wal_level is replica", wal_level])
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn servers_that_are_not_there_end_a_setup_and_not_a_run() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    // Nothing listens on a port below 10.
    let dead_postgres = "postgres://postgres@127.0.0.1:9/shop";
    let no_postgres = Caller::at(dead_postgres, &stage.nats.url());
    no_postgres
        .refused(&["setup"], 1, &["127.0.0.1:9", "refused"])
        .await?;
    let no_nats = Caller::at(&stage.postgres.url("shop"), "nats://127.0.0.1:9");
    no_nats
        .refused(&["setup"], 1, &["NATS cannot be reached", "127.0.0.1:9"])
        .await?;

    let mut waits = no_postgres.spawn(&["run"])?;
    wait_log(
        &mut waits,
        &["PostgreSQL cannot be reached", "next attempt in"],
    )
    .await?;
    waits.terminate()?;
    wait_end(&mut waits, 0, &[]).await?;
    let mut waits = no_nats.spawn(&["run"])?;
    wait_log(&mut waits, &["NATS cannot be reached", "next attempt in"]).await?;
    ensure!(
        line.holder(&stage.client("shop").await?).await?.is_some(),
        "the slot is free"
    );
    waits.terminate()?;
    wait_end(&mut waits, 0, &[]).await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_slot_publication_or_table_ends_run_with_4() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let run = async |texts: &[&str]| {
            let ended = line.finish(&["run"]).await?;
            ends_with(&ended, 4, texts)
        };
        stage
            .postgres
            .sql("shop", "DROP PUBLICATION postrider")
            .await?;
        run(&["publication", "postrider teardown"]).await?;
        // One that is made beside the slot is younger than the slot, which fails with it for ever
        // up to 17, and from 18 on leaves rows out.
        let refused = line.finish(&["setup"]).await?;
        ends_with(
            &refused,
            4,
            &["younger than the slot", "postrider teardown"],
        )?;
        let count = "SELECT count(*) FROM pg_publication";
        ensure!(stage.postgres.value("shop", count).await?.as_deref() == Some("0"));
        line.ok(&["teardown"]).await?;
        line.ok(&["setup"]).await?;
        let drop_slot = "SELECT pg_drop_replication_slot('postrider')";
        stage.postgres.sql("shop", drop_slot).await?;
        run(&["slot", "postrider setup"]).await?;
        line.ok(&["setup"]).await?;
        stage.postgres.sql("shop", "DROP TABLE outbox").await?;
        run(&["public.outbox", "no such table"]).await
    })
    .await
}

#[tokio::test]
async fn a_renamed_table_ends_the_streamer_with_4_and_no_row_is_lost() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1"]).await?;
        let sql = "ALTER TABLE outbox RENAME TO events; \
                   INSERT INTO events (aggregate_type, aggregate_id, type, payload) \
                   VALUES ('order', '1', 'placed', '{}')";
        let before = commit(&stage, "shop", sql).await?;
        wait_end(&mut streamer, 4, &["public.outbox", "public.events"]).await?;
        stays_unconfirmed(&stage, &line, before).await?;
        ensure!(ids(&stage).await? == ["1"]);
        // As the message says.
        let named = line.config("[[outbox]]\ntable = \"events\"\n")?;
        insert_into(&stage, "events").await?;
        named.ok(&["run", "--until-caught-up"]).await?;
        ensure!(
            ids(&stage).await? == ["1", "2", "3"],
            "{:?}",
            ids(&stage).await?
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_written_under_another_name_are_not_skipped_when_the_table_is_renamed_back()
-> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 1).await?;
        line.wait_confirmed(&stage).await?;
        let rename = "ALTER TABLE outbox RENAME TO events";
        stage.postgres.sql("shop", rename).await?;
        insert_into(&stage, "events").await?;
        wait_end(&mut streamer, 4, &["public.outbox", "public.events"]).await?;
        let back = "ALTER TABLE events RENAME TO outbox";
        stage.postgres.sql("shop", back).await?;
        insert(&stage, "shop", 1).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let found = ids(&stage).await?;
        ensure!(found == ["1", "2", "3"], "{found:?}");
        Ok(())
    })
    .await
}

async fn insert_into(stage: &Stage, table: &str) -> Result<()> {
    let sql = format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, type, payload) \
         VALUES ('order', '1', 'placed', '{{}}')"
    );
    stage.postgres.sql("shop", &sql).await
}

#[tokio::test]
async fn a_needed_column_that_vanishes_ends_the_streamer_with_4() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1"]).await?;
        // What is not needed may come and go.
        stage
            .postgres
            .sql("shop", "ALTER TABLE outbox DROP COLUMN headers")
            .await?;
        stage
            .postgres
            .sql("shop", "ALTER TABLE outbox ADD COLUMN note text")
            .await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1", "2"]).await?;
        line.wait_confirmed(&stage).await?;
        let sql = "ALTER TABLE outbox RENAME COLUMN payload TO content; \
                   INSERT INTO outbox (aggregate_type, aggregate_id, type, content) \
                   VALUES ('order', '1', 'placed', '{}')";
        let before = commit(&stage, "shop", sql).await?;
        wait_end(&mut streamer, 4, &["public.outbox", "payload"]).await?;
        stays_unconfirmed(&stage, &line, before).await?;
        let named = line.config("[[outbox]]\ntable = \"outbox\"\npayload = \"content\"\n")?;
        named.ok(&["run", "--until-caught-up"]).await?;
        wait_ids(&stage, &["1", "2", "3"]).await
    })
    .await
}

#[tokio::test]
async fn a_held_slot_makes_a_standby_that_names_the_holder_and_takes_over() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut first = line.start(&stage).await?;
        let client = stage.client("shop").await?;
        let holder = line.holder(&client).await?.context("not held")?;
        let mut second = line.launch(&[])?;
        let names = format!("standing by: backend {holder} (postrider");
        wait_log(&mut second, &[&names]).await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1"]).await?;
        first.kill9().await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1", "2"]).await?;
        ensure!(second.is_running());
        second.stop_within(PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn all_faults_of_the_configuration_are_listed_before_any_connection() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("postrider.toml");
    std::fs::write(
        &file,
        "[postgres]\nslott = \"x\"\n[delivery]\nmax_in_flight_bytes = \"NaN\"\n\
         confirm_delay = \"-1s\"\n[nats]\nreplicas = 99999999999\n\
         [[outbox]]\ntable = \"outbox\"\nheaders = { \"bad name\" = \"a\" }\n\
         [[outbox]]\ntable = \"public.outbox\"\n",
    )?;
    let postgres = format!("postgres://a@127.0.0.1:{port}/shop");
    let caller = Caller::at(&postgres, &format!("nats://127.0.0.1:{port}"))
        .flag("--config", &file.display().to_string())
        .flag("--nats-stream", "a.b")
        .flag("--postgres-slot", "Big-Slot")
        .env("POSTRIDER_DELIVERY_ON_POISON", "explode");
    let faults = [
        "slott",
        "postgres.slot",
        "NaN",
        "-1s",
        "99999999999",
        "bad name",
        "public.outbox",
        "a.b",
        "Big-Slot",
        "explode",
    ];
    for command in ["setup", "run", "teardown"] {
        caller.refused(&[command], 2, &faults).await?;
    }
    caller.refused(&["status"], 3, &faults).await?;
    let flags = ["run", "--no-such-flag"];
    Caller::at(&postgres, "nats://x")
        .refused(&flags, 2, &["--no-such-flag"])
        .await?;
    let accepted = tokio::time::timeout(QUIET, listener.accept()).await;
    ensure!(accepted.is_err(), "a server was connected to");
    Ok(())
}

/// A plain outbox table with integer ids.
const TABLE: &str = "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text, \
                     aggregate_id text, type text, payload jsonb)";

#[tokio::test]
async fn integer_ids_that_could_collide_are_told_by_setup_and_run_alike() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        let sql = format!(
            "CREATE TABLE outbox {TABLE}; CREATE TABLE other {TABLE}; CREATE SCHEMA sales; \
             CREATE TABLE sales.outbox (id uuid, aggregate_type text, type text, payload json)"
        );
        stage.postgres.sql("shop", &sql).await?;
        let file = tempfile::NamedTempFile::new()?;
        let tables = "[[outbox]]\ntable = \"outbox\"\n[[outbox]]\ntable = \"other\"\n\
                      [[outbox]]\ntable = \"sales.outbox\"\n";
        std::fs::write(file.path(), tables)?;
        let path = file.path().display().to_string();
        let several = Caller::new(&stage, "shop").flag("--config", &path);
        let both = [
            "table public.outbox are integers",
            "table public.other are integers",
            "\"{table}:{id}\"",
        ];
        let ended = several.refused(&["setup"], 2, &both).await?;
        ensure!(!ended.stderr.contains("sales"), "{}", ended.stderr);
        let slots = "SELECT count(*) FROM pg_replication_slots";
        ensure!(stage.postgres.value("shop", slots).await?.as_deref() == Some("0"));
        // One of them alone is set up; `run` with all three says the same.
        let one = Caller::new(&stage, "shop");
        one.ok(&["setup"]).await?;
        let ended = several.refused(&["run"], 2, &both).await?;
        let told = ended
            .stderr
            .matches("table public.other are integers")
            .count();
        ensure!(told == 1, "told {told} times:\n{}", ended.stderr);
        // Alone it is fine in an exclusive stream, and warned of at the start in a shared one.
        let warning = "ids of public.outbox are integers, unique only in that table";
        let shared = one.clone().flag("--nats-writers", "shared");
        shared.refused(&["setup"], 0, &[warning]).await?;
        shared
            .refused(&["run", "--until-caught-up"], 0, &[warning])
            .await?;
        let exclusive = one.flag("--nats-writers", "exclusive");
        let ended = exclusive.finish(&["run", "--until-caught-up"]).await?;
        ends_with(&ended, 0, &[])?;
        ensure!(!ended.stderr.contains(warning), "{}", ended.stderr);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn replicas_without_a_cluster_are_refused_with_the_cure() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    stage.postgres.create_database("shop").await?;
    let caller = Caller::new(&stage, "shop").flag("--nats-replicas", "3");
    let cure = [
        "3 replicas need a cluster of 3 servers",
        "set nats.replicas",
    ];
    caller
        .refused(&["setup", "--create-table"], 3, &cure)
        .await?;
    Ok(())
}
