//! Values that an encoding, a subject or a limit would change: they arrive whole, or are named.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{Caller, dead_letters, insert, newest, stored, wait_ids};
use postrider_tests::{Line, PATIENCE, Stage, Stored, Writers, for_each_version};

/// A database of another encoding with an outbox whose only row has these parts, streamed.
async fn stream_from(stage: &Stage, encoding: &str, id: &str, payload: &str) -> Result<Stored> {
    let name = encoding.to_lowercase();
    let sql = format!(
        "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' \
         LC_COLLATE 'C' LC_CTYPE 'C'"
    );
    stage.postgres.sql("postgres", &sql).await?;
    let sql = "CREATE TABLE outbox (id int, aggregate_type text, aggregate_id text, type text, \
               payload text)";
    stage.postgres.sql(&name, sql).await?;
    let caller = Caller::new(stage, &name).flag("--postgres-slot", &name);
    caller.ok(&["setup"]).await?;
    let sql = format!("INSERT INTO outbox VALUES (1, 'a', {id}, {id}, {payload})");
    stage.postgres.sql(&name, &sql).await?;
    caller.ok(&["run", "--until-caught-up"]).await?;
    let mut found = stored(stage).await?;
    // The next database's stream takes the same subjects.
    stage.jetstream().await?.delete_stream("OUTBOX").await?;
    ensure!(found.len() == 1, "{encoding}: {found:?}");
    found.pop().context("no message")
}

#[tokio::test]
async fn databases_of_other_encodings_keep_their_bytes() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let latin1 = stream_from(&stage, "LATIN1", "'café'", "'größe'").await?;
        ensure!(latin1.payload == "größe".as_bytes(), "{latin1:?}");
        ensure!(latin1.subject == "outbox.a.caf%C3%A9", "{latin1:?}");
        let id = latin1.header("Outbox-Aggregate-Id");
        ensure!(id == Some("café"), "{id:?}");

        // Bytes of no known encoding: the payload as it is, the rest so that it stays text.
        let (id, payload) = ("'caf' || chr(233)", "'gr' || chr(246) || chr(223) || 'e'");
        let ascii = stream_from(&stage, "SQL_ASCII", id, payload).await?;
        ensure!(ascii.payload == b"gr\xF6\xDFe".as_slice(), "{ascii:?}");
        ensure!(ascii.subject == "outbox.a.caf%E9", "{ascii:?}");
        let id = ascii.header("Outbox-Aggregate-Id");
        ensure!(id == Some("caf%E9"), "{id:?}");
        Ok(())
    })
    .await
}

/// The value that a token of a subject stands for.
fn decoded(token: &str) -> Result<String> {
    if token == "_" {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    let mut rest = token.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [*rest.next().context("cut")?, *rest.next().context("cut")?];
                u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?
            }
            _ => byte,
        });
    }
    Ok(String::from_utf8(bytes)?)
}

#[tokio::test]
async fn any_aggregate_id_is_one_token_that_nats_takes_and_can_be_read_back() -> Result<()> {
    const IDS: [&str; 16] = [
        "a b",
        "a.b",
        "*",
        ">",
        "a..b",
        ".",
        "",
        "\r\nPUB outbox.order.forged 0\r\n\r\n",
        "\u{a0}",
        "é✓",
        "%2E",
        "_",
        "%",
        "$SYS",
        "a\tb\u{1}",
        "plain",
    ];
    let stage = Stage::start(newest()?).await?;
    let template = "[[outbox]]\ntable = \"outbox\"\n\
                    subject = \"outbox.{aggregate_type}.{aggregate_id}\"\n";
    let line = Line::new(&stage, "shop").await?.config(template)?;
    line.ok(&["setup", "--create-table"]).await?;
    let client = stage.client("shop").await?;
    for id in IDS {
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type) \
                   VALUES ('order', $1, 't')";
        client.execute(sql, &[&id]).await?;
    }
    line.ok(&["run", "--until-caught-up"]).await?;
    let found = stored(&stage).await?;
    ensure!(found.len() == IDS.len(), "{found:?}");
    for (message, id) in found.iter().zip(IDS) {
        let tokens: Vec<&str> = message.subject.split('.').collect();
        let ["outbox", "order", token] = tokens[..] else {
            anyhow::bail!("{id:?} came as {}", message.subject);
        };
        ensure!(decoded(token)? == id, "{id:?} came as {token}");
    }
    Ok(())
}

#[tokio::test]
async fn a_body_over_the_limit_is_parked_and_a_raised_limit_counts_after_the_reconnect()
-> Result<()> {
    const BODY_BYTES: usize = 2 * 1024 * 1024;
    let stage = Stage::start_with(newest()?, |it| it, |it| it.config("max_payload: 1MB\n"));
    let mut stage = Box::pin(stage).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    // The recommended table refuses such a body itself.
    let drop = "ALTER TABLE outbox DROP CONSTRAINT payload_fits_a_message";
    stage.postgres.sql("shop", drop).await?;
    let mut streamer = line.start(&stage).await?;
    let large = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
         VALUES ('a', 'b', 'c', to_jsonb(repeat('x', {})))",
        // Two quotes make it the whole body.
        BODY_BYTES - 2
    );
    insert(&stage, "shop", 1).await?;
    stage.postgres.sql("shop", &large).await?;
    insert(&stage, "shop", 1).await?;
    wait_ids(&stage, &["1", "3"]).await?;
    line.wait_confirmed(&stage).await?;
    let letters = dead_letters(&stage).await?;
    let [(id, reason)] = &letters[..] else {
        anyhow::bail!("{letters:?}");
    };
    ensure!(id == "2" && reason == "too_large", "{letters:?}");
    let sql = "SELECT detail FROM postrider.dead_letter";
    let detail = stage.postgres.value("shop", sql).await?;
    let detail = detail.context("no detail")?;
    for text in ["headers and payload have 2097", "the limit is 1048576"] {
        ensure!(detail.contains(text), "{text} is not in {detail}");
    }

    stage.nats.set_config("max_payload: 4MB\n")?;
    stage.nats.restart().await?;
    insert(&stage, "shop", 1).await?;
    wait_ids(&stage, &["1", "3", "4"]).await?;
    stage.postgres.sql("shop", &large).await?;
    insert(&stage, "shop", 1).await?;
    wait_ids(&stage, &["1", "3", "4", "5", "6"]).await?;
    let found = stored(&stage).await?;
    let bytes = found.get(3).map(|message| message.payload.len());
    ensure!(bytes == Some(BODY_BYTES), "{bytes:?}");
    ensure!(dead_letters(&stage).await?.len() == 1);
    streamer.stop_within(PATIENCE).await
}
