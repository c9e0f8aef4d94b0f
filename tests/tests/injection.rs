//! What is in a row stays in the place of the message that is meant for it: no value becomes a
//! protocol line, a header, another token of the subject, or a request to the server.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{dead_letters, edit_stream, newest, stored};
use postrider_tests::{Line, Stage, Stored};

/// What an attacker would have the server do.
const ROLLUP: &str = "Nats-Rollup: all";

/// Undoes the percent-encoding of subjects and headers.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after.get(..2).context("a lone %")?;
        bytes.push(u8::from_str_radix(digits, 16)?);
        rest = after.get(2..).context("a lone %")?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(String::from_utf8(bytes)?)
}

/// A line whose table has a `topic`, anything as id, headers and an aggregate.
async fn line(stage: &Stage, toml: &str) -> Result<Line> {
    let line = Line::new(stage, "shop").await?.config(toml)?;
    let sql = "CREATE TABLE outbox (id text, topic text, aggregate_id text, tenant text, \
               headers json, payload bytea)";
    stage.postgres.sql("shop", sql).await?;
    line.ok(&["setup"]).await?;
    edit_stream(stage, |config| {
        config.allow_rollup = true;
        config.allow_direct = true;
    })
    .await?;
    Ok(line)
}

async fn insert(stage: &Stage, values: &[(&str, &str, &str, Option<&str>)]) -> Result<()> {
    let client = stage.client("shop").await?;
    let sql = "INSERT INTO outbox (id, topic, aggregate_id, tenant, headers, payload) \
               VALUES ($1, $2, $3, $3, $4::text::json, $5)";
    for (id, topic, aggregate, headers) in values {
        let payload: &[u8] = b"\0\r\nPUB evil 0\r\n\r\n\xff";
        client
            .execute(sql, &[id, topic, aggregate, headers, &payload])
            .await?;
    }
    Ok(())
}

/// Headers that the broker would act on or that we state, other than by us.
fn check_headers(message: &Stored) -> Result<()> {
    for (name, values) in message.headers.iter() {
        let name = name.to_string();
        let known = [
            "Nats-Msg-Id",
            "Nats-Expected-Stream",
            "Nats-Expected-Last-Sequence",
        ];
        ensure!(
            !name.starts_with("Nats-") || known.contains(&name.as_str()),
            "{name} of {message:?}"
        );
        ensure!(values.len() == 1, "{name} is there {} times", values.len());
    }
    Ok(())
}

#[tokio::test]
async fn no_value_of_a_row_leaves_its_place_in_subject_and_headers() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let toml = "[[outbox]]\ntable = \"outbox\"\nheaders = { \"Tenant\" = \"tenant\" }\n";
    let line = line(&stage, toml).await?;
    let evil = format!("x\r\n{ROLLUP}\r\n\r\nPUB evil 0\r\n");
    let topics = [
        "$JS.API.STREAM.DELETE.OUTBOX",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.reply",
        "*",
        ">",
        "a.>",
        "a b",
        "tab\there",
        "..",
        "",
        "é✓",
        "%2E%0D%0A",
        &evil,
    ];
    let mut rows = Vec::new();
    let ids: Vec<String> = (0..topics.len()).map(|n| format!("{n}{evil}")).collect();
    let headers = serde_json::json!({ "Note": evil.clone(), "Nul": "a\0b" }).to_string();
    for (id, topic) in ids.iter().zip(topics) {
        rows.push((id.as_str(), topic, evil.as_str(), Some(headers.as_str())));
    }
    insert(&stage, &rows).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    let messages = stored(&stage).await?;
    ensure!(messages.len() == topics.len(), "{messages:?}");
    ensure!(dead_letters(&stage).await?.is_empty());
    for ((message, topic), id) in messages.iter().zip(topics).zip(&ids) {
        check_headers(message)?;
        let said = message.subject.strip_prefix("outbox.").context("subject")?;
        ensure!(!said.contains(['*', '>', ' ', '\t', '\r', '\n']), "{said}");
        let tokens: Vec<String> = said
            .split('.')
            .map(|token| {
                if token == "_" {
                    Ok(String::new())
                } else {
                    decoded(token)
                }
            })
            .collect::<Result<_>>()?;
        ensure!(tokens.join(".") == topic, "{topic:?} became {said}");
        let values = [
            ("Nats-Msg-Id", id.as_str()),
            ("Outbox-Aggregate-Id", &evil),
            ("Tenant", &evil),
            ("Note", &evil),
            ("Nul", "a\0b"),
        ];
        for (name, wanted) in values {
            let value = message.header(name).context(name)?;
            ensure!(!value.contains(['\r', '\n', '\0']), "{name}: {value:?}");
            ensure!(decoded(value)? == wanted, "{name}: {value:?}");
        }
        ensure!(message.payload.as_ref() == b"\0\r\nPUB evil 0\r\n\r\n\xff");
    }
    Ok(())
}

#[tokio::test]
async fn headers_that_steer_the_broker_or_are_ours_park_their_row() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = line(&stage, "[[outbox]]\ntable = \"outbox\"\n").await?;
    let names = [
        "Nats-Rollup",
        "nats-rollup",
        "Nats-Msg-Id",
        "Nats-Expected-Last-Sequence",
        "Nats-Expected-Stream",
        "Nats-Schedule",
        "Nats-Batch-Id",
        "Nats-Marker-Reason",
        "Outbox-Position",
        "outbox-source",
        "Outbox-Settled",
        " Nats-Rollup",
        "Nats-Rollup ",
        "Nats-Rollup:",
        "A\r\nNats-Rollup",
        "A: x\r\nNats-Rollup",
        "A\0B",
        "É",
        "",
    ];
    let mut rows = vec![("first", "t", "a", None)];
    let ids: Vec<String> = (0..names.len()).map(|n| format!("bad-{n}")).collect();
    let headers: Vec<String> = names
        .iter()
        .map(|name| serde_json::json!({ *name: "all" }).to_string())
        .collect();
    for (id, headers) in ids.iter().zip(&headers) {
        rows.push((id.as_str(), "t", "a", Some(headers.as_str())));
    }
    rows.push((
        "last",
        "t",
        "a",
        Some("{\"Nats\":\"no prefix\",\"Natsy\":\"x\"}"),
    ));
    insert(&stage, &rows).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    let messages = stored(&stage).await?;
    // A rollup would have taken the first one away.
    let found: Vec<&str> = messages.iter().map(Stored::id).collect();
    ensure!(found == ["first", "last"], "{found:?}");
    messages.iter().try_for_each(check_headers)?;
    let letters: Vec<String> = dead_letters(&stage)
        .await?
        .into_iter()
        .map(|it| it.0)
        .collect();
    ensure!(letters == ids, "{letters:?}");
    Ok(())
}

#[tokio::test]
async fn a_value_is_one_token_and_a_subject_that_gets_too_long_parks_its_row() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::new(&stage, "shop")
        .await?
        .config("[[outbox]]\ntable = \"outbox\"\nsubject = \"outbox.{tenant}.order.{kind}\"\n")?;
    let sql = "CREATE TABLE outbox (id int, tenant text, kind text, payload text)";
    stage.postgres.sql("shop", sql).await?;
    line.ok(&["setup"]).await?;
    let sql = "INSERT INTO outbox VALUES (1, '$JS.API', 'STREAM.DELETE', ''), \
               (2, '*.>', '>', ''), (3, repeat('x', 5000), 'a', ''), (4, repeat('.', 1300), 'a', \
               ''), (5, '', '$SYS', '')";
    stage.postgres.sql("shop", sql).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    let messages = stored(&stage).await?;
    let found: Vec<&str> = messages.iter().map(|it| it.subject.as_str()).collect();
    let wanted = [
        "outbox.$JS%2EAPI.order.STREAM%2EDELETE",
        "outbox.%2A%2E%3E.order.%3E",
        "outbox._.order.$SYS",
    ];
    ensure!(found == wanted, "{found:?}");
    let letters = dead_letters(&stage).await?;
    let reason = ["3", "4"].map(|id| (id.to_owned(), "subject_too_long".to_owned()));
    ensure!(letters == reason, "{letters:?}");
    Ok(())
}
