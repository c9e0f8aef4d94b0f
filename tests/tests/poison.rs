//! Rows that can never be stored: parked with their reason, or halted at.

mod calls;

use anyhow::{Result, ensure};
use calls::{
    dead_letters, edit_stream, ends_with, ids, insert, newest, positions, wait_end, wait_ids,
    wait_log,
};
use postrider_tests::{Line, Stage, Writers, for_each_version};

#[tokio::test]
async fn poison_rows_are_parked_with_their_reason_and_their_neighbours_flow() -> Result<()> {
    for_each_version(async |versions| {
        let shared_too = versions == newest()?;
        let all = [Writers::Exclusive, Writers::Shared];
        for writers in all.into_iter().take(if shared_too { 2 } else { 1 }) {
            let stage = Stage::start(versions).await?;
            let line = Line::new(&stage, "shop").await?.writers(writers);
            let line = line.flag("--nats-max-message-bytes", "100KiB");
            let sql = "CREATE TABLE outbox (id text, aggregate_type text, aggregate_id text, \
                       type text, payload text, headers text)";
            stage.postgres.sql("shop", sql).await?;
            line.ok(&["setup"]).await?;
            let sql = "INSERT INTO outbox VALUES \
                ('good-1', 'a', '1', 'b', 'x', '{\"Tenant\": \"t\"}'), \
                ('large', 'a', '1', 'b', repeat('x', 110000), NULL), \
                (NULL, 'a', '1', 'b', 'x', NULL), \
                ('good-2', 'a', '1', 'b', 'x', NULL), \
                ('no-json', 'a', '1', 'b', 'x', 'not json'), \
                ('no-object', 'a', '1', 'b', 'x', '[1]'), \
                ('reserved', 'a', '1', 'b', 'x', '{\"Nats-Msg-Id\": \"1\"}'), \
                ('bad-name', 'a', '1', 'b', 'x', '{\"a b\": \"1\"}'), \
                ('long-subject', 'a', '1', repeat('x', 40000), 'x', NULL), \
                ('long-headers', 'a', '1', 'b', 'x', \
                 json_build_object('T', repeat('x', 70000))::text), \
                ('good-1', 'a', '1', 'b', 'another row of this id', NULL), \
                ('good-3', 'a', '1', 'b', 'x', NULL)";
            stage.postgres.sql("shop", sql).await?;
            line.ok(&["run", "--until-caught-up"]).await?;
            ensure!(ids(&stage).await? == ["good-1", "good-2", "good-3"]);
            let mut letters = dead_letters(&stage).await?;
            letters.sort();
            let wanted = [
                ("", "no_id"),
                ("bad-name", "header_refused"),
                ("good-1", "id_taken"),
                ("large", "too_large"),
                ("long-headers", "headers_too_large"),
                ("long-subject", "subject_too_long"),
                ("no-json", "headers_not_object"),
                ("no-object", "headers_not_object"),
                ("reserved", "header_refused"),
            ];
            let wanted = wanted.map(|(id, reason)| (id.to_owned(), reason.to_owned()));
            ensure!(letters == wanted, "{writers:?}: {letters:?}");
            let sql = "SELECT length(payload) FROM postrider.dead_letter WHERE row_id = 'large'";
            let kept = stage.postgres.value("shop", sql).await?;
            ensure!(
                kept.as_deref() == Some("110000"),
                "the payload is not kept: {kept:?}"
            );
            let status = line.ok(&["status", "--output", "json"]).await?;
            ensure!(status.contains("\"dead_letters\":9"), "{status}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_over_the_limits_of_server_or_stream_are_parked_by_name() -> Result<()> {
    let stage =
        Stage::start_with(newest()?, |it| it, |it| it.config("max_payload: 65536\n")).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let row = async |bytes: u32| {
        let sql = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
             VALUES ('a', 'b', 'c', to_jsonb(repeat('x', {bytes})))"
        );
        stage.postgres.sql("shop", &sql).await
    };
    row(60_000).await?;
    row(70_000).await?;
    row(10).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    ensure!(ids(&stage).await? == ["1", "3"]);
    edit_stream(&stage, |config| config.max_message_size = 8192).await?;
    row(7_000).await?;
    row(9_000).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    ensure!(ids(&stage).await? == ["1", "3", "4"]);
    let sql = "SELECT row_id, reason, detail FROM postrider.dead_letter ORDER BY id";
    let letters = format!("{:?}", stage.postgres.rows("shop", sql).await?);
    for text in [
        "\"2\"",
        "\"5\"",
        "too_large",
        "headers and payload have 70",
        "the limit is 65536",
        "headers and payload have 9",
        "the limit is 8192",
    ] {
        ensure!(letters.contains(text), "{text} is not in {letters}");
    }
    Ok(())
}

#[tokio::test]
async fn halt_stops_at_the_poison_row_and_park_goes_on_from_there() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 4).await?;
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, headers) \
                   VALUES ('a', 'b', 'c', '[]')";
        stage.postgres.sql("shop", sql).await?;
        let (_, before) = positions(&stage, &line).await?;
        insert(&stage, "shop", 5).await?;
        for _ in 0..2 {
            let ended = line
                .finish(&["run", "--delivery-on-poison", "halt"])
                .await?;
            let names = [
                "row 5 of public.outbox",
                "not a JSON object",
                "on_poison = \"park\"",
            ];
            ends_with(&ended, 5, &names)?;
            ensure!(ids(&stage).await? == ["1", "2", "3", "4"]);
            let (confirmed, _) = positions(&stage, &line).await?;
            ensure!(
                confirmed < before,
                "confirmed {confirmed}, the row is before {before}"
            );
        }
        line.ok(&["run", "--until-caught-up"]).await?;
        let rest = ["1", "2", "3", "4", "6", "7", "8", "9", "10"];
        ensure!(ids(&stage).await? == rest, "{:?}", ids(&stage).await?);
        let letters = dead_letters(&stage).await?;
        ensure!(
            letters == [("5".to_owned(), "headers_not_object".to_owned())],
            "{letters:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn without_a_dead_letter_table_park_halts_and_says_so_at_the_start() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        stage
            .postgres
            .sql("shop", "DROP SCHEMA postrider CASCADE")
            .await?;
        let mut streamer = line.launch(&[])?;
        let told = "there is no table postrider.dead_letter";
        wait_log(&mut streamer, &[told, "publishing"]).await?;
        insert(&stage, "shop", 1).await?;
        wait_ids(&stage, &["1"]).await?;
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, headers) \
                   VALUES ('a', 'b', 'c', '[]')";
        stage.postgres.sql("shop", sql).await?;
        wait_end(&mut streamer, 5, &["row 2 of public.outbox"]).await?;
        // As the warning says.
        line.ok(&["setup"]).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        ensure!(dead_letters(&stage).await?.len() == 1);
        Ok(())
    })
    .await
}
