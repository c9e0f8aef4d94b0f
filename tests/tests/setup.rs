//! `setup`, `teardown` and `run --setup`: what is made, what is found, what is refused.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{Caller, ends_with, ids, insert, stored, wait_end, wait_ids};
use postrider_tests::{Line, PgVersion, Progress, Stage, Writers, for_each_version, wait_until};

/// A plain outbox table as an application would make it.
const TABLE: &str = "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text, \
                     aggregate_id text, type text, payload jsonb)";

/// One row for it.
const ROW: &str = "(aggregate_type, aggregate_id, type, payload) \
                   VALUES ('order', '1', 'placed', '{}')";

#[tokio::test]
async fn setup_makes_what_is_missing_and_a_second_one_finds_it() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let first = line.ok(&["setup", "--create-table"]).await?;
        let second = line.ok(&["setup", "--create-table"]).await?;
        let things = [
            "public.outbox",
            "dead_letter",
            "publication",
            "slot",
            "OUTBOX",
        ];
        for thing in things {
            let said = |text: &str, word: &str| {
                let mut lines = text.lines();
                lines.any(|line| line.starts_with(word) && line.contains(thing))
            };
            ensure!(said(&first, "made"), "{thing} is not made:\n{first}");
            ensure!(said(&second, "found"), "{thing} is not found:\n{second}");
        }
        ensure!(!second.contains("\nmade"), "made again:\n{second}");
        ensure!(second.contains("postrider run"), "no next step:\n{second}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_from_before_setup_are_counted_and_not_streamed() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let sql = format!(
            "CREATE TABLE outbox {TABLE}; \
             INSERT INTO outbox {ROW}, ('order', '2', 'placed', '{{}}')"
        );
        stage.postgres.sql("shop", &sql).await?;
        for words in ["2 rows were there before the slot", "2 rows are there now"] {
            let said = line.ok(&["setup"]).await?;
            ensure!(said.contains(words), "{said}");
        }
        insert(&stage, "shop", 1).await?;
        let told = line.finish(&["run", "--until-caught-up"]).await?;
        let older = "public.outbox: 2 rows are older than the slot";
        ends_with(&told, 0, &[older, "insert them anew"])?;
        ensure!(ids(&stage).await? == ["3"], "{:?}", ids(&stage).await?);
        // Told at the beginning, not at each start.
        let told = line.finish(&["run", "--until-caught-up"]).await?;
        ensure!(
            !told.stderr.contains("older than the slot"),
            "{}",
            told.stderr
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn run_with_setup_needs_no_other_command() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let sql = format!("CREATE TABLE outbox {TABLE}");
        stage.postgres.sql("shop", &sql).await?;
        let mut streamer = line.launch(&["--setup"])?;
        line.wait_holds_made(&stage, &mut streamer).await?;
        insert(&stage, "shop", 2).await?;
        wait_ids(&stage, &["1", "2"]).await?;
        streamer.stop_within(postrider_tests::PATIENCE).await
    })
    .await
}

/// Waiting for a slot that is yet to be made.
trait WaitHoldsMade {
    async fn wait_holds_made(
        &self,
        stage: &Stage,
        streamer: &mut postrider_tests::Streamer,
    ) -> Result<()>;
}

impl WaitHoldsMade for Line {
    async fn wait_holds_made(
        &self,
        stage: &Stage,
        streamer: &mut postrider_tests::Streamer,
    ) -> Result<()> {
        let client = stage.client(&self.database).await?;
        wait_until(
            postrider_tests::PATIENCE,
            "the slot to be held",
            async || {
                ensure!(streamer.is_running(), "it ended");
                let sql = "SELECT count(*) FROM pg_replication_slots WHERE active";
                let held: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
                Ok(Progress::when(held == 1, || format!("{held} held")))
            },
        )
        .await
    }
}

#[tokio::test]
async fn the_printed_sql_makes_a_working_system() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        stage
            .postgres
            .sql("shop", "CREATE ROLE relay LOGIN")
            .await?;
        let caller = Caller::at(
            &stage.postgres.url_as("relay", "unused", "shop"),
            &stage.nats.url(),
        );
        let sql = caller
            .ok(&["setup", "--print-sql", "--create-table"])
            .await?;
        let slots = "SELECT count(*) FROM pg_replication_slots";
        ensure!(stage.postgres.value("shop", slots).await?.as_deref() == Some("0"));
        run_statements(&stage, &sql).await?;
        // The role existed, so the DBA gives it the attribute that CREATE ROLE would have.
        stage
            .postgres
            .sql("shop", "ALTER ROLE relay REPLICATION")
            .await?;
        let said = caller.ok(&["setup"]).await?;
        let made: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("made"))
            .collect();
        ensure!(made.iter().all(|line| line.contains("stream")), "{said}");
        insert(&stage, "shop", 2).await?;
        caller.ok(&["run", "--until-caught-up"]).await?;
        ensure!(ids(&stage).await? == ["1", "2"]);
        Ok(())
    })
    .await
}

/// Runs statements one by one, as psql does; a role that exists already is left out.
async fn run_statements(stage: &Stage, sql: &str) -> Result<()> {
    let client = stage.client("shop").await?;
    let code: Vec<&str> = sql
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    for statement in code.join("\n").split_inclusive(";\n") {
        match client.batch_execute(statement).await {
            Err(error) if error.code().is_some_and(|code| code.code() == "42710") => {
                ensure!(statement.contains("CREATE ROLE"), "{statement}: {error}");
            }
            result => result.with_context(|| statement.to_owned())?,
        }
    }
    Ok(())
}

#[tokio::test]
async fn names_with_capitals_hyphens_quotes_and_reserved_words_work() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "My \"Shop\"-é").await?;
        let database = line.database.clone();
        let line = line
            .flag("--postgres-publication", "Select-\"All\"")
            .config(
                "[[outbox]]\ntable = '\"Select\".\"Or-\"\"der\"\"\"'\n\
             dedup_id = \"{table}:{id}\"\n\
             [[outbox]]\ntable = '\"Select\".\"table\"'\ndedup_id = \"{table}:{id}\"\n",
            )?;
        stage
            .postgres
            .sql(&database, "CREATE SCHEMA \"Select\"")
            .await?;
        line.ok(&["setup", "--create-table"]).await?;
        line.ok(&["setup"]).await?;
        let sql = format!(
            "INSERT INTO \"Select\".\"Or-\"\"der\"\"\" {ROW}; \
             INSERT INTO \"Select\".\"table\" {ROW}"
        );
        stage.postgres.sql(&database, &sql).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        line.ok(&["status"]).await?;
        let found = stored(&stage).await?;
        let tables: Vec<_> = found
            .iter()
            .filter_map(|it| it.header("Outbox-Table"))
            .collect();
        ensure!(
            tables == ["Select.Or-\"der\"", "Select.table"],
            "{tables:?}"
        );
        line.ok(&["teardown"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_table_of_the_same_name_in_another_schema_is_another_table() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop")
            .await?
            .config("[[outbox]]\ntable = \"audit.outbox\"\n")?;
        let sql = format!(
            "CREATE SCHEMA audit; CREATE TABLE audit.outbox {TABLE}; CREATE TABLE outbox {TABLE}"
        );
        stage.postgres.sql("shop", &sql).await?;
        line.ok(&["setup"]).await?;
        // Even published, its rows are not ours.
        let sql = "ALTER PUBLICATION postrider ADD TABLE public.outbox";
        stage.postgres.sql("shop", sql).await?;
        let said = line.ok(&["setup"]).await?;
        ensure!(said.contains("holds 1 other tables"), "{said}");
        let sql = format!(
            "INSERT INTO public.outbox {ROW}, ('a', 'b', 'c', '1'); INSERT INTO audit.outbox {ROW}"
        );
        stage.postgres.sql("shop", &sql).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let found = stored(&stage).await?;
        let tables: Vec<_> = found
            .iter()
            .filter_map(|it| it.header("Outbox-Table"))
            .collect();
        ensure!(tables == ["audit.outbox"], "{tables:?}");
        Ok(())
    })
    .await
}

/// The statements of `sql/roles.sql`, for a role named `postrider`.
fn roles_sql() -> Result<String> {
    let file = include_str!("../../sql/roles.sql");
    let sections = file.split("-- section: ").skip(1);
    let sections = sections.map(|section| section.split_once("-- end section"));
    let sections: Option<String> = sections
        .map(|section| Some(section?.0.split_once('\n')?.1))
        .collect();
    let sections = sections.context("a section without an end")?;
    let values = [
        ("role", "postrider"),
        ("schema", "public"),
        ("table", "outbox"),
    ];
    let rendered = values.iter().fold(sections, |text, (name, value)| {
        text.replace(&format!(":\"{name}\""), &format!("\"{value}\""))
    });
    ensure!(!rendered.contains(":\""), "a variable is left: {rendered}");
    Ok(rendered)
}

#[tokio::test]
async fn the_role_of_the_roles_file_can_stream_park_and_show_status() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(versions, |it| it.auth("scram-sha-256"), |it| it).await?;
        let database = "shop";
        stage.postgres.create_database(database).await?;
        // The superuser has no password over TCP, so it comes over the socket.
        let socket = format!(
            "postgres://postgres@/{database}?host={}&port={}",
            stage.postgres.socket_dir().display(),
            stage.postgres.port()
        );
        let owner = Caller::at(&socket, &stage.nats.url());
        owner.ok(&["setup", "--create-table"]).await?;
        stage.postgres.sql(database, &roles_sql()?).await?;
        let sql = "ALTER ROLE postrider PASSWORD 'p@ss/word'";
        stage.postgres.sql(database, sql).await?;
        let role = "SELECT rolsuper FROM pg_roles WHERE rolname = 'postrider'";
        ensure!(stage.postgres.value(database, role).await?.as_deref() == Some("f"));
        let url = stage.postgres.url_as("postrider", "p@ss/word", database);
        let streamer = Caller::at(&url, &stage.nats.url());
        insert(&stage, database, 1).await?;
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, headers) \
                   VALUES ('a', 'b', 'c', '[]')";
        stage.postgres.sql(database, sql).await?;
        insert(&stage, database, 1).await?;
        streamer.ok(&["run", "--until-caught-up"]).await?;
        ensure!(ids(&stage).await? == ["1", "3"]);
        let status = streamer.ok(&["status", "--output", "json"]).await?;
        ensure!(status.contains("\"dead_letters\":1"), "{status}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_that_has_to_wait_names_who_is_in_the_way_and_gives_up_in_time() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let blocker = stage.client("shop").await?;
        blocker
            .batch_execute("SET application_name = 'nightly-report'; BEGIN; SELECT txid_current()")
            .await?;
        let pid: i32 = blocker
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        let ended = line
            .finish(&["setup", "--create-table", "--timeout", "3s"])
            .await?;
        let waits = format!("backend {pid} (nightly-report), open for");
        let oldest = format!("pid {pid}, open for");
        ends_with(&ended, 3, &[&waits, &oldest, "within 3 s", "--timeout"])?;
        let slots = "SELECT count(*) FROM pg_replication_slots";
        let left = stage.postgres.value("shop", slots).await?;
        ensure!(left.as_deref() == Some("0"), "a slot was left behind");
        let makers = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE \
                      'postrider%'";
        wait_until(
            postrider_tests::PATIENCE,
            "no session to be left",
            async || {
                let count = stage.postgres.value("shop", makers).await?;
                Ok(Progress::when(count.as_deref() == Some("0"), || {
                    format!("{count:?}")
                }))
            },
        )
        .await?;
        blocker.batch_execute("COMMIT").await?;
        line.ok(&["setup"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_publication_made_by_hand_is_refused_or_warned_about() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        let sql = format!(
            "CREATE TABLE outbox {TABLE}; CREATE TABLE other (id int); \
             CREATE PUBLICATION lacks FOR TABLE other; \
             CREATE PUBLICATION updates FOR TABLE outbox WITH (publish = 'update')"
        );
        stage.postgres.sql("shop", &sql).await?;
        let with = |name: &str| Caller::new(&stage, "shop").flag("--postgres-publication", name);
        let lacks = [
            "lacks the table public.outbox",
            "ALTER PUBLICATION \"lacks\" ADD TABLE",
        ];
        with("lacks").refused(&["setup"], 3, &lacks).await?;
        let inserts = ["ALTER PUBLICATION \"updates\" SET (publish = 'insert')"];
        with("updates").refused(&["setup"], 3, &inserts).await?;
        Caller::new(&stage, "shop").ok(&["setup"]).await?;
        with("lacks").refused(&["run"], 4, &lacks).await?;
        with("updates").refused(&["run"], 4, &inserts).await?;
        if versions.postgres == PgVersion::V14 {
            return Ok(());
        }
        let sql = "CREATE PUBLICATION hides FOR TABLE outbox (id, type) \
                   WITH (publish = 'insert'); \
                   CREATE PUBLICATION filters FOR TABLE outbox WHERE (id > 5) \
                   WITH (publish = 'insert')";
        stage.postgres.sql("shop", sql).await?;
        let hidden = [
            "publication hides leaves out columns",
            "payload",
            "ADD TABLE",
        ];
        with("hides").refused(&["setup"], 3, &hidden).await?;
        let said = with("filters").ok(&["setup"]).await?;
        ensure!(
            said.contains("only rows of public.outbox with (id > 5)"),
            "{said}"
        );
        // What is hidden and needed stops the streamer before anything is confirmed.
        insert(&stage, "shop", 1).await?;
        let slot = "SELECT pg_create_logical_replication_slot('two', 'pgoutput')";
        stage.postgres.sql("shop", slot).await?;
        insert(&stage, "shop", 1).await?;
        let mut hides = with("hides")
            .flag("--postgres-slot", "two")
            .spawn(&["run"])?;
        wait_end(&mut hides, 4, &["public.outbox", "payload"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_unlogged_table_a_view_and_a_missing_table_are_refused() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        let caller = Caller::new(&stage, "shop");
        let cure = ["there is no such table", "--create-table"];
        caller.refused(&["setup"], 3, &cure).await?;
        let sql = format!("CREATE UNLOGGED TABLE outbox {TABLE}");
        stage.postgres.sql("shop", &sql).await?;
        let unlogged = ["unlogged", "ALTER TABLE \"public\".\"outbox\" SET LOGGED"];
        caller.refused(&["setup"], 3, &unlogged).await?;
        let sql = "DROP TABLE outbox; CREATE VIEW outbox AS SELECT 1 AS id";
        stage.postgres.sql("shop", sql).await?;
        caller
            .refused(&["setup"], 3, &["public.outbox", "view"])
            .await?;
        let sql = format!("DROP VIEW outbox; CREATE TABLE \"Outbox\" {TABLE}");
        stage.postgres.sql("shop", &sql).await?;
        caller
            .refused(&["setup"], 3, &["there is public.\"Outbox\""])
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_run_would_refuse_is_refused_before_a_slot_is_made() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        let sql = format!("CREATE TABLE outbox {TABLE}; CREATE TABLE bare (id int, payload json)");
        stage.postgres.sql("shop", &sql).await?;
        let first = Caller::new(&stage, "shop");
        first.ok(&["setup"]).await?;
        let other = Caller::new(&stage, "shop").flag("--postgres-slot", "other");
        let owner = ["stream OUTBOX", "belongs to", "setup --adopt"];
        other.refused(&["setup"], 3, &owner).await?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "[[outbox]]\ntable = \"bare\"\n")?;
        let path = file.path().display().to_string();
        let bare = other.flag("--nats-stream", "BARE").flag("--config", &path);
        let subject = ["public.bare", "give a `subject`"];
        bare.refused(&["setup"], 3, &subject).await?;
        let sql = "SELECT string_agg(slot_name, ',') FROM pg_replication_slots";
        let slots = stage.postgres.value("shop", sql).await?;
        ensure!(slots.as_deref() == Some("postrider"), "{slots:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_of_partitions_come_under_the_name_of_the_partitioned_table() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let sql = "CREATE TABLE outbox (id int, aggregate_type text, aggregate_id text, \
                   type text, payload jsonb) PARTITION BY RANGE (id); \
                   CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (10); \
                   CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (10) TO (20)";
        stage.postgres.sql("shop", sql).await?;
        line.ok(&["setup"]).await?;
        let mut streamer = line.start(&stage).await?;
        let row = |id: u32| format!("INSERT INTO outbox VALUES ({id}, 'a', 'b', 'c', '{{}}');");
        let later = "CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM (20) TO (30);";
        let sql = format!("{}{}{later}{}", row(1), row(11), row(21));
        stage.postgres.sql("shop", &sql).await?;
        wait_ids(&stage, &["1", "11", "21"]).await?;
        let found = stored(&stage).await?;
        let root =
            |it: &postrider_tests::Stored| it.header("Outbox-Table") == Some("public.outbox");
        ensure!(found.iter().all(root), "{found:?}");
        streamer.stop_within(postrider_tests::PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn a_table_without_primary_key_can_still_be_updated_and_deleted_from() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?;
        let sql = "CREATE TABLE outbox (id int, aggregate_type text, aggregate_id text, \
                   type text, payload jsonb, sent boolean)";
        stage.postgres.sql("shop", sql).await?;
        line.ok(&["setup"]).await?;
        let sql = "INSERT INTO outbox VALUES (1, 'a', 'b', 'c', '{}'), (2, 'a', 'b', 'c', '{}'); \
                   UPDATE outbox SET sent = true; DELETE FROM outbox WHERE id = 1; \
                   BEGIN; INSERT INTO outbox VALUES (3, 'a', 'b', 'c', '{}'); \
                   DELETE FROM outbox WHERE id = 3; COMMIT";
        stage.postgres.sql("shop", sql).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        ensure!(ids(&stage).await? == ["1", "2", "3"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn teardown_refuses_beside_a_streamer_and_force_ends_only_ours() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let ours = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let other = Line::new(&stage, "bank")
            .await?
            .slot("other")
            .stream("OTHER");
        let other = other.config("[[outbox]]\ntable = \"outbox\"\nsubject = \"bank.{type}\"\n")?;
        other
            .ok(&["setup", "--create-table"])
            .await
            .context("the other one")?;
        let mut our_streamer = ours.start(&stage).await?;
        let mut other_streamer = other.start(&stage).await?;
        let client = stage.client("postgres").await?;
        let pid = ours.holder(&client).await?.context("not held")?;
        let other_pid = other.holder(&client).await?;

        let refused = ours.finish(&["teardown"]).await?;
        ends_with(
            &refused,
            3,
            &[&format!("pid {pid}"), "nothing was dropped", "--force"],
        )?;
        ensure!(
            ours.holder(&client).await? == Some(pid),
            "our slot was let go"
        );
        ours.ok(&["setup"]).await.context("something was dropped")?;

        ours.ok(&["teardown", "--force"]).await?;
        wait_end(&mut our_streamer, 4, &["postrider"]).await?;
        ensure!(
            other.holder(&client).await? == other_pid,
            "another's session was ended"
        );
        ensure!(other_streamer.is_running());
        for _ in 0..2 {
            let said = ours.ok(&["teardown"]).await?;
            ensure!(said.contains("nothing to drop"), "{said}");
        }
        let tables = "SELECT count(*) FROM outbox";
        ensure!(stage.postgres.value("shop", tables).await?.as_deref() == Some("0"));
        ours.ok(&["setup"]).await?;
        other_streamer.stop_within(postrider_tests::PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn a_slot_made_anew_under_the_same_name_alone_decides_where_to_begin() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 3).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let sql = "SELECT pg_drop_replication_slot('postrider')";
        stage.postgres.sql("shop", sql).await?;
        insert(&stage, "shop", 2).await?;
        let sql = "SELECT pg_create_logical_replication_slot('postrider', 'pgoutput')";
        stage.postgres.sql("shop", sql).await?;
        insert(&stage, "shop", 2).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let found = ids(&stage).await?;
        ensure!(found == ["1", "2", "3", "6", "7"], "{found:?}");
        Ok(())
    })
    .await
}
