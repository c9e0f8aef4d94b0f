//! A role with REPLICATION and nothing else: enough to stream. What it cannot look at, and what it
//! cannot write, is said at the start.

mod calls;

use anyhow::{Result, ensure};
use calls::{Caller, dead_letters, ids, wait_end, wait_ids, wait_log};
use postrider_tests::{PATIENCE, Progress, Stage, for_each_version, wait_until};

/// A table that is nobody's business, in a schema that is nobody's either.
const APPLICATION: &str = "CREATE ROLE application; CREATE SCHEMA app AUTHORIZATION application; \
     CREATE TABLE app.outbox (id int, aggregate_id text, type text, headers json, payload text); \
     ALTER TABLE app.outbox OWNER TO application; \
     REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE TEMPORARY ON DATABASE shop FROM PUBLIC; \
     CREATE ROLE bare LOGIN REPLICATION PASSWORD 'S3CR3T@x'";

#[tokio::test]
async fn a_role_with_replication_and_no_other_right_streams_and_says_what_it_cannot() -> Result<()>
{
    for_each_version(async |versions| {
        let stage = Stage::start_with(
            versions,
            |it| {
                // Commits of the test itself wait for no standby.
                it.auth("scram-sha-256")
                    .config("synchronous_commit", "local")
            },
            |it| it,
        )
        .await?;
        stage.postgres.create_database("shop").await?;
        stage.postgres.sql("shop", APPLICATION).await?;
        let toml = tempfile::NamedTempFile::new()?;
        let text = "[[outbox]]\ntable = \"app.outbox\"\nsubject = \"outbox.{type}\"\n";
        std::fs::write(toml.path(), text)?;
        let config = toml.path().display().to_string();
        let socket = format!(
            "postgres://postgres@/shop?host={}&port={}",
            stage.postgres.socket_dir().display(),
            stage.postgres.port()
        );
        let owner = Caller::at(&socket, &stage.nats.url()).flag("--config", &config);
        owner.ok(&["setup"]).await?;
        let url = stage.postgres.url_as("bare", "S3CR3T@x", "shop");
        let bare = Caller::at(&url, &stage.nats.url()).flag("--config", &config);

        // Somebody else is a synchronous standby for now.
        set_standby_names(&stage, "elsewhere").await?;
        let mut streamer = bare.spawn(&["run"])?;
        let said = [
            "may not write postrider.dead_letter",
            "synchronous_standby_names is \"elsewhere\"",
            "GRANT pg_monitor",
        ];
        wait_log(&mut streamer, &said).await?;
        let row = |id: u32, headers: &str| {
            format!("INSERT INTO app.outbox VALUES ({id}, 'a', 't', '{headers}', 'p')")
        };
        stage.postgres.sql("shop", &row(1, "{}")).await?;
        stage.postgres.sql("shop", &row(2, "{}")).await?;
        wait_ids(&stage, &["1", "2"]).await?;
        bare.ok(&["status"]).await?;
        streamer.terminate()?;
        wait_end(&mut streamer, 0, &[]).await?;
        bare.ok(&["run", "--until-caught-up"]).await?;
        set_standby_names(&stage, "").await?;

        // What it said at the start comes true: it cannot park.
        stage.postgres.sql("shop", &row(3, "[]")).await?;
        stage.postgres.sql("shop", &row(4, "{}")).await?;
        let mut streamer = bare.spawn(&["run"])?;
        wait_end(&mut streamer, 5, &["postrider.dead_letter"]).await?;
        ensure!(ids(&stage).await? == ["1", "2"]);
        // The one grant that was missing for it.
        let grant = "GRANT USAGE ON SCHEMA postrider TO bare; \
                     GRANT SELECT, INSERT ON postrider.dead_letter TO bare";
        stage.postgres.sql("shop", grant).await?;
        bare.ok(&["run", "--until-caught-up"]).await?;
        wait_ids(&stage, &["1", "2", "4"]).await?;
        ensure!(dead_letters(&stage).await?.len() == 1);
        // Dropping what another owns is not its right, and is said so.
        let words = ["this role may not drop it", "DROP PUBLICATION"];
        bare.refused(&["teardown"], 3, &words).await.map(drop)
    })
    .await
}

async fn set_standby_names(stage: &Stage, names: &str) -> Result<()> {
    let client = stage.client("shop").await?;
    let sql = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
    client.batch_execute(&sql).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    wait_until(PATIENCE, "the setting to hold", async || {
        let sql = "SHOW synchronous_standby_names";
        let now = stage.postgres.value("shop", sql).await?;
        Ok(Progress::when(now.as_deref() == Some(names), || {
            format!("{now:?}")
        }))
    })
    .await
}
