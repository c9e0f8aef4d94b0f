//! Rows that can never be stored: parked with their reason, or halted at.

mod calls;

use anyhow::{Result, ensure};
use calls::{
    Caller, commit, dead_letters, edit_stream, ends_with, ids, insert, newest, stays_unconfirmed,
    wait_end, wait_ids, wait_log,
};
use postrider_tests::{Line, Stage, Writers, for_each_version};
use serde_json::Value;

/// A subject and headers that are too long say how long they are and what would be possible.
async fn check_limits_are_named(stage: &Stage) -> Result<()> {
    let sql = "SELECT string_agg(detail, '|') FROM postrider.dead_letter \
               WHERE reason IN ('subject_too_long', 'headers_too_large')";
    let details = stage.postgres.value("shop", sql).await?.unwrap_or_default();
    for limit in ["40009 bytes, 3800 are", "bytes, 65000 are possible"] {
        ensure!(details.contains(limit), "{limit} is not in {details}");
    }
    Ok(())
}

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
                ('', 'a', '1', 'empty-id', 'x', NULL), \
                ('good-2', 'a', '1', 'b', 'x', NULL), \
                ('no-json', 'a', '1', 'b', 'x', 'not json'), \
                ('no-object', 'a', '1', 'b', 'x', '[1]'), \
                ('reserved', 'a', '1', 'b', 'x', '{\"Nats-Msg-Id\": \"1\"}'), \
                ('bad-name', 'a', '1', 'b', 'x', '{\"a b\": \"1\"}'), \
                ('long-subject', 'a', '1', repeat('x', 40000), 'x', NULL), \
                ('long-headers', 'a', '1', 'b', 'x', \
                 json_build_object('T', repeat('x', 70000))::text), \
                ('many-headers', 'a', '1', 'b', 'x', (SELECT json_object_agg('H' || i, \
                 repeat('x', 100)) FROM generate_series(1, 700) AS i)::text), \
                ('nested', 'a', '1', 'b', 'x', '{\"N\": {\"a\": [1e400, null]}, \"N\": \"2\", \
                 \"L\": \"a\\r\\nb\"}'), \
                ('line-break', 'a', '1', 'b', 'x', '{\"a\\nb\": \"1\"}'), \
                ('good-1', 'a', '1', 'b', 'another row of this id', NULL), \
                ('good-3', 'a', '1', 'b', 'x', NULL)";
            stage.postgres.sql("shop", sql).await?;
            line.ok(&["run", "--until-caught-up"]).await?;
            let flowed = ["good-1", "good-2", "nested", "good-3"];
            ensure!(ids(&stage).await? == flowed, "{:?}", ids(&stage).await?);
            let mut letters = dead_letters(&stage).await?;
            letters.sort();
            let wanted = [
                ("", "no_id"),
                ("", "no_id"),
                ("bad-name", "header_refused"),
                ("good-1", "id_taken"),
                ("large", "too_large"),
                ("line-break", "header_refused"),
                ("long-headers", "headers_too_large"),
                ("long-subject", "subject_too_long"),
                ("many-headers", "headers_too_large"),
                ("no-json", "headers_not_object"),
                ("no-object", "headers_not_object"),
                ("reserved", "header_refused"),
            ];
            let wanted = wanted.map(|(id, reason)| (id.to_owned(), reason.to_owned()));
            ensure!(letters == wanted, "{writers:?}: {letters:?}");
            let sql = "SELECT length(payload) FROM postrider.dead_letter WHERE row_id = 'large'";
            let kept = stage.postgres.value("shop", sql).await?;
            ensure!(kept.as_deref() == Some("110000"), "payload: {kept:?}");
            let status = line.ok(&["status", "--output", "json"]).await?;
            ensure!(status.contains("\"dead_letters\":12"), "{status}");
            for text in ["oldest_dead_letter_seconds", "_reason\":\"id_taken\""] {
                ensure!(status.contains(text), "{status}");
            }
            check_limits_are_named(&stage).await?;
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
        let before = commit(&stage, "shop", sql).await?;
        insert(&stage, "shop", 5).await?;
        let mut since = None;
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
            let told = ended.stderr.matches("not a JSON object").count();
            ensure!(told == 1, "told {told} times:\n{}", ended.stderr);
            ensure!(ids(&stage).await? == ["1", "2", "3", "4"]);
            // While nobody streams, `status` has the row, and since when.
            let status = line.ok(&["status"]).await?;
            let shown = [
                "HALTED",
                "at row 5 of public.outbox (0/",
                "headers_not_object: the",
            ];
            for text in shown {
                ensure!(status.contains(text), "{text} is not in:\n{status}");
            }
            let json = line.ok(&["status", "--output", "json"]).await?;
            let json: Value = serde_json::from_str(&json)?;
            ensure!(
                json.pointer("/halted/row_id") == Some(&Value::from("5")),
                "{json}"
            );
            ensure!(
                json.pointer("/dead_letters") == Some(&Value::from(0)),
                "{json}"
            );
            let now = json.pointer("/halted/since").cloned();
            ensure!(
                now.is_some() && *since.get_or_insert_with(|| now.clone()) == now,
                "{json}"
            );
            stays_unconfirmed(&stage, &line, before).await?;
        }
        line.ok(&["run", "--until-caught-up"]).await?;
        let rest = ["1", "2", "3", "4", "6", "7", "8", "9", "10"];
        ensure!(ids(&stage).await? == rest, "{:?}", ids(&stage).await?);
        let letters = dead_letters(&stage).await?;
        ensure!(
            letters == [("5".to_owned(), "headers_not_object".to_owned())],
            "{letters:?}"
        );
        let status = line.ok(&["status"]).await?;
        ensure!(!status.contains("HALTED"), "{status}");
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

/// An account with a limit of its own below the server's, which no client is told.
const ACCOUNT: &str = "accounts { APP { jetstream: enabled, limits { max_payload: 4096 }, \
                       users: [ { user: app, password: app } ] } }\nno_auth_user: app\n";

#[tokio::test]
async fn what_closes_the_connection_is_found_by_being_sent_alone() -> Result<()> {
    let both = [
        (
            ACCOUNT,
            "('a', '1', 'b', to_jsonb(repeat('x', 5000)))",
            ["too_large", "more than the account's max_payload"],
            "headers and payload have 5",
        ),
        (
            "max_control_line: 1024\n",
            "('a', '1', repeat('x', 2000), '{}')",
            [
                "subject_too_long",
                "more than the server's max_control_line",
            ],
            "the subject has 2009 bytes",
        ),
    ];
    for (config, values, names, size) in both {
        let stage = Stage::start_with(newest()?, |it| it, |it| it.config(config)).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 2).await?;
        let columns = "aggregate_type, aggregate_id, type, payload";
        let sql = format!("INSERT INTO outbox ({columns}) VALUES {values}");
        stage.postgres.sql("shop", &sql).await?;
        insert(&stage, "shop", 2).await?;
        let halt = ["run", "--delivery-on-poison", "halt"];
        let told = ["row 3 of public.outbox", names[1], size];
        ends_with(&line.finish(&halt).await?, 5, &told)?;
        ensure!(ids(&stage).await? == ["1", "2"], "{:?}", ids(&stage).await?);
        line.ok(&["run", "--until-caught-up"]).await?;
        ensure!(ids(&stage).await? == ["1", "2", "4", "5"]);
        let letters = dead_letters(&stage).await?;
        ensure!(
            letters == [("3".to_owned(), names[0].to_owned())],
            "{letters:?}"
        );
        // Nothing has changed, so it is refused again by the same name.
        let retried = line.finish(&["dead-letters", "retry"]).await?;
        let again = format!("refused again, {}", names[0]);
        ends_with(&retried, 1, &[&again, size])?;
    }
    Ok(())
}

/// Rows of a table of texts, and what is said of them.
const KINDS: [(&str, &str); 5] = [
    (
        "('large', 'a', '1', 'b', repeat('x', 110000), NULL)",
        "the limit is 102400",
    ),
    ("(NULL, 'a', '1', 'b', 'x', NULL)", "the row has no id"),
    (
        "('s', 'a', '1', repeat('x', 4000), 'x', NULL)",
        "4009 bytes, 3800 are possible",
    ),
    (
        "('h', 'a', '1', 'b', 'x', json_build_object('T', repeat('x', 70000))::text)",
        "65000 are possible",
    ),
    (
        "('good-0', 'a', '1', 'b', 'other', NULL)",
        "already stored at sequence 1",
    ),
];

#[tokio::test]
async fn each_kind_of_poison_halts_by_name_and_flows_or_parks_afterwards() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::new(&stage, "shop").await?;
    let line = line.flag("--nats-max-message-bytes", "100KiB");
    let sql = "CREATE TABLE outbox (id text, aggregate_type text, aggregate_id text, \
               type text, payload text, headers text)";
    stage.postgres.sql("shop", sql).await?;
    line.ok(&["setup"]).await?;
    let mut wanted = vec!["good-0".to_owned()];
    stage
        .postgres
        .sql(
            "shop",
            "INSERT INTO outbox VALUES ('good-0', 'a', '1', 'b', 'x', NULL)",
        )
        .await?;
    for (number, (values, text)) in KINDS.iter().enumerate() {
        let good = format!("good-{}", number + 1);
        let sql =
            format!("INSERT INTO outbox VALUES {values}, ('{good}', 'a', '1', 'b', 'x', NULL)");
        stage.postgres.sql("shop", &sql).await?;
        let ended = line
            .finish(&["run", "--delivery-on-poison", "halt"])
            .await?;
        ends_with(&ended, 5, &["of public.outbox", text])?;
        ensure!(
            ids(&stage).await? == wanted,
            "{text}: {:?}",
            ids(&stage).await?
        );
        let status = line.ok(&["status"]).await?;
        ensure!(
            status.contains("HALTED") && status.contains(text),
            "{status}"
        );
        line.ok(&["run", "--until-caught-up"]).await?;
        wanted.push(good);
        ensure!(
            ids(&stage).await? == wanted,
            "{text}: {:?}",
            ids(&stage).await?
        );
    }
    // With the cause gone a row that was halted at flows as any other, and the note goes.
    let sql = "INSERT INTO outbox VALUES ('cured', 'a', '1', 'b', repeat('x', 500000), NULL)";
    stage.postgres.sql("shop", sql).await?;
    let halt = ["run", "--delivery-on-poison", "halt"];
    ends_with(&line.finish(&halt).await?, 5, &["row cured"])?;
    let roomy = Caller::new(&stage, "shop");
    let words = ["run", "--until-caught-up", "--delivery-on-poison", "halt"];
    roomy.ok(&words).await?;
    wanted.push("cured".to_owned());
    ensure!(ids(&stage).await? == wanted);
    ensure!(dead_letters(&stage).await?.len() == KINDS.len());
    let status = line.ok(&["status"]).await?;
    ensure!(!status.contains("HALTED"), "{status}");
    Ok(())
}
