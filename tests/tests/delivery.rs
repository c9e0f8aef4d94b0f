//! What is committed arrives: whole, in commit order, byte for byte.

use anyhow::{Context, Result, ensure};
use postrider_tests::{
    Line, Stage, Stored, Table, Versions, Writers, check_order, check_payloads, everyday_or_long,
    for_each_version, read_stream, witness,
};
use serde_json::Value;

/// How much is written.
#[derive(Debug, Clone, Copy)]
struct Volume {
    /// Rows of the one large transaction.
    large_transaction_rows: u64,
    /// Transactions of one row each.
    small_transactions: u64,
}

const FULL: Volume = Volume {
    large_transaction_rows: 100_000,
    small_transactions: 10_000,
};

/// Enough to fill the streamer's window twice.
const SOME: Volume = Volume {
    large_transaction_rows: 20_000,
    small_transactions: 2_000,
};

/// The streamed rows of a line against its table and the witness.
async fn check_all(stage: &Stage, line: &Line) -> Result<Vec<Stored>> {
    line.wait_confirmed(stage).await?;
    let client = stage.client(&line.database).await?;
    let committed = witness::rows(&client, &line.slot, "outbox").await?;
    let stored = read_stream(&stage.jetstream().await?, &line.stream).await?;
    check_order(&committed, &stored, line.writers)?;
    Ok(stored)
}

async fn large_and_small(versions: Versions, writers: Writers, volume: Volume) -> Result<()> {
    let stage = &Stage::start(versions).await?;
    let Volume {
        large_transaction_rows: large_rows,
        small_transactions,
    } = volume;
    let line = Line::ready(stage, "shop", writers).await?;
    let client = stage.client("shop").await?;
    witness::open(&client).await?;
    let _streamer = line.start(stage).await?;
    let large = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
         SELECT 'order', 'a' || n % 997, 'placed', jsonb_build_object('n', n, 'of', 'large') \
         FROM generate_series(1, {large_rows}) AS n"
    );
    client.batch_execute(&large).await?;
    let small = format!(
        "DO $$ BEGIN FOR n IN 1..{small_transactions} LOOP \
         INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
         VALUES ('order', 'a' || n % 997, 'placed', jsonb_build_object('n', n, 'of', 'small')); \
         COMMIT; END LOOP; END $$"
    );
    client.batch_execute(&small).await?;
    let stored = check_all(stage, &line).await?;
    ensure!(stored.len() as u64 == large_rows + small_transactions);
    check_payloads(&Table::read(&client, "outbox").await?, &stored)
}

#[tokio::test]
async fn a_transaction_of_100_000_rows_and_10_000_small_ones_arrive_in_commit_order() -> Result<()>
{
    for_each_version(async |versions| large_and_small(versions, Writers::Exclusive, FULL).await)
        .await
}

#[tokio::test]
async fn a_shared_stream_takes_the_same_with_order_per_aggregate() -> Result<()> {
    for_each_version(async |versions| {
        let volume = everyday_or_long(SOME, FULL);
        large_and_small(versions, Writers::Shared, volume).await
    })
    .await
}

/// Three outboxes, one for each type that a payload may have.
const TYPED_CONFIG: &str = r#"
[[outbox]]
table = "public.outbox_json"
dedup_id = "{table}:{id}"
[[outbox]]
table = "public.outbox_text"
dedup_id = "{table}:{id}"
[[outbox]]
table = "public.outbox_bytea"
dedup_id = "{table}:{id}"
"#;

/// Payloads that a parser would change, one of 200 kB that lies outside its row, and none.
const TYPED_ROWS: &str = r#"
INSERT INTO outbox_json VALUES
 (9223372036854775807, 'o', '1', 't',
  '{"n":12345678901234567890.1234567890123456789,"big":9007199254740993,"e":1e400}'),
 (2, 'o', '1', 't', ' { "b" : 1 , "a" : [ 1.0 , 1.10 ] , "b" : 2 } '),
 (3, 'o', '1', 't', 'null'),
 (4, 'o', '1', 't', NULL),
 (5, 'o', '1', 't', (SELECT json_build_object('long', string_agg(md5(n::text), ''))
                     FROM generate_series(1, 6300) AS n));
INSERT INTO outbox_text VALUES
 (1, 'o', '1', 't', ''), (2, 'o', '1', 't', E'tab\t, quote", \\, \r\n é✓ \x01'),
 (3, 'o', '1', 't', NULL),
 (4, 'o', '1', 't', (SELECT string_agg(md5(n::text), ' ') FROM generate_series(1, 6300) AS n));
INSERT INTO outbox_bytea VALUES
 (1, 'o', '1', 't', '\x00ff0a0d5c78'), (2, 'o', '1', 't', ''), (3, 'o', '1', 't', NULL),
 (4, 'o', '1', 't', (SELECT string_agg(decode(md5(n::text), 'hex'), '')
                     FROM generate_series(1, 12600) AS n));
"#;

/// Every row of a typed outbox has one message, with the same bytes.
async fn check_typed(stage: &Stage, stored: &[Stored], kind: &str) -> Result<()> {
    let bytes = match kind {
        "bytea" => "payload",
        _ => "convert_to(payload::text, 'UTF8')",
    };
    let sql = format!("SELECT id::text, {bytes} FROM outbox_{kind}");
    let client = stage.client("shop").await?;
    let table = format!("public.outbox_{kind}");
    for row in client.query(&sql, &[]).await? {
        let (id, payload): (String, Option<Vec<u8>>) = (row.try_get(0)?, row.try_get(1)?);
        let wanted = format!("{table}:{id}");
        let found = stored.iter().filter(|message| message.id() == wanted);
        let found: Vec<&Stored> = found.collect();
        let [message] = found.as_slice() else {
            anyhow::bail!("{} messages of {wanted}", found.len());
        };
        let is_null = message.header("Outbox-Payload") == Some("null");
        ensure!(is_null == payload.is_none(), "{wanted}: NULL or not");
        ensure!(
            payload.unwrap_or_default() == message.payload,
            "{wanted}: other bytes"
        );
        ensure!(
            message.header("Outbox-Table") == Some(&table),
            "{wanted}: table"
        );
    }
    Ok(())
}

#[tokio::test]
async fn payloads_arrive_byte_for_byte() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::new(&stage, "shop").await?.config(TYPED_CONFIG)?;
        for kind in ["json", "text", "bytea"] {
            let table = format!(
                "CREATE TABLE outbox_{kind} (id bigint PRIMARY KEY, aggregate_type text, \
                 aggregate_id text, type text, payload {kind}); \
                 ALTER TABLE outbox_{kind} ALTER payload SET STORAGE EXTERNAL"
            );
            stage.postgres.sql("shop", &table).await?;
        }
        line.ok(&["setup"]).await?;
        let _streamer = line.start(&stage).await?;
        stage.postgres.sql("shop", TYPED_ROWS).await?;
        line.wait_confirmed(&stage).await?;
        let stored = read_stream(&stage.jetstream().await?, &line.stream).await?;
        ensure!(stored.len() == 13, "{} messages", stored.len());
        for kind in ["json", "text", "bytea"] {
            check_typed(&stage, &stored, kind).await?;
        }
        Ok(())
    })
    .await
}

/// An insert of `count` rows marked with `mark`.
fn rows(mark: &str, count: u32) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', 'a', \
         'placed', jsonb_build_object('mark', '{mark}') FROM generate_series(1, {count});"
    )
}

/// The marks of the messages, those that repeat counted.
fn marks(stored: &[Stored]) -> Result<Vec<(String, usize)>> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for message in stored {
        let payload: Value = serde_json::from_slice(&message.payload)?;
        let mark = payload.get("mark").and_then(Value::as_str);
        let mark = mark.context("no mark")?;
        match all.last_mut() {
            Some((last, count)) if last == mark => *count += 1,
            _ => all.push((mark.to_owned(), 1)),
        }
    }
    Ok(all)
}

/// What writers do to an outbox beside plain inserts, and beside it.
async fn write_with_noise(stage: &Stage) -> Result<()> {
    let client = stage.client("shop").await?;
    client
        .batch_execute("CREATE TABLE other (id int PRIMARY KEY, t text)")
        .await?;
    let savepoint = format!(
        "BEGIN; {} SAVEPOINT s; {} ROLLBACK TO s; {} COMMIT",
        rows("before", 500),
        rows("undone", 500),
        rows("after", 5)
    );
    client.batch_execute(&savepoint).await?;
    let undone = format!("BEGIN; {} ROLLBACK", rows("rolled back", 100));
    client.batch_execute(&undone).await?;

    // A begins and inserts first, B commits first.
    let (a, b) = (stage.client("shop").await?, stage.client("shop").await?);
    a.batch_execute(&format!("BEGIN; {}", rows("A", 3))).await?;
    b.batch_execute(&format!("BEGIN; {}", rows("B", 2))).await?;
    b.batch_execute("COMMIT").await?;
    a.batch_execute(&format!("{} COMMIT", rows("A", 1))).await?;

    let deleted = format!(
        "BEGIN; {} UPDATE outbox SET type = 'moved' WHERE payload->>'mark' = 'deleted'; \
         DELETE FROM outbox WHERE payload->>'mark' = 'deleted'; COMMIT",
        rows("deleted", 1)
    );
    client.batch_execute(&deleted).await?;
    let updated = "UPDATE outbox SET payload = '{\"mark\": \"updated\"}' WHERE type = 'placed'; \
                   INSERT INTO outbox (id, aggregate_type, aggregate_id, type, payload) \
                   OVERRIDING SYSTEM VALUE \
                   SELECT max(id), 'o', 'a', 't', '{\"mark\": \"conflict\"}' \
                   FROM outbox ON CONFLICT (id) DO UPDATE SET type = 'conflict'";
    client.batch_execute(updated).await?;
    let others = format!(
        "BEGIN; INSERT INTO other SELECT n, md5(n::text) FROM generate_series(1, 1000) AS n; {} \
         UPDATE other SET t = ''; TRUNCATE other; COMMIT; \
         SELECT pg_logical_emit_message(true, 'foreign', repeat('x', 1048576)); \
         SELECT pg_logical_emit_message(false, 'foreign', 'y')",
        rows("beside others", 1)
    );
    client.batch_execute(&others).await?;
    let copied: Vec<u8> = (0..50)
        .flat_map(|_| b"order\ta\tplaced\t{\"mark\": \"copied\"}\n".to_vec())
        .collect();
    copy(&client, copied).await?;
    client.batch_execute("TRUNCATE outbox").await?;
    client.batch_execute(&rows("last", 1)).await?;
    Ok(())
}

async fn copy(client: &tokio_postgres::Client, lines: Vec<u8>) -> Result<()> {
    use futures_util::SinkExt;
    let sql = "COPY outbox (aggregate_type, aggregate_id, type, payload) FROM STDIN";
    let sink = client.copy_in::<_, bytes::Bytes>(sql).await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(lines.into()).await?;
    sink.as_mut().finish().await?;
    Ok(())
}

#[tokio::test]
async fn only_committed_inserts_arrive_whatever_else_happens() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let client = stage.client("shop").await?;
        witness::open(&client).await?;
        let _streamer = line.start(&stage).await?;
        write_with_noise(&stage).await?;
        let stored = check_all(&stage, &line).await?;
        let found = marks(&stored)?;
        let found: Vec<(&str, usize)> = found.iter().map(|(m, n)| (m.as_str(), *n)).collect();
        let wanted = [
            ("before", 500),
            ("after", 5),
            ("B", 2),
            ("A", 4),
            ("deleted", 1),
            ("beside others", 1),
            ("copied", 50),
            ("last", 1),
        ];
        ensure!(found == wanted, "{found:?}");
        // Confirmed is the end of a commit or a place with nothing of ours before it.
        let committed = witness::rows(&client, &line.slot, "outbox").await?;
        let last = committed.last().context("no rows")?.end_lsn;
        ensure!(line.confirmed(&client).await? >= last);
        Ok(())
    })
    .await
}

/// A table as people have it, a row for it, and where that row arrives.
struct Guide {
    name: &'static str,
    table: &'static str,
    row: &'static str,
    subject: &'static str,
    headers: &'static [(&'static str, &'static str)],
}

const GUIDES: [Guide; 3] = [
    Guide {
        name: "outbox_by_topic",
        table: "CREATE TABLE outbox_by_topic (id bigserial PRIMARY KEY, topic text NOT NULL, \
                payload jsonb NOT NULL, sent_at timestamptz)",
        row: "INSERT INTO outbox_by_topic (topic, payload) VALUES ('orders.created', '{\"a\": 1}')",
        subject: "outbox.orders.created",
        headers: &[("Nats-Msg-Id", "1")],
    },
    Guide {
        name: "outbox",
        table: "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                aggregate_id text NOT NULL, type text NOT NULL, payload jsonb NOT NULL, \
                created_at timestamptz NOT NULL, published_at timestamptz); \
                CREATE INDEX ON outbox (id) WHERE published_at IS NULL",
        row: "INSERT INTO outbox (aggregate_id, type, payload, created_at) VALUES \
              ('order-7', 'OrderPlaced', '{\"a\": 1}', '2026-01-02 03:04:05.678Z')",
        subject: "outbox.OrderPlaced",
        headers: &[
            ("Nats-Msg-Id", "1"),
            ("Outbox-Aggregate-Id", "order-7"),
            ("Outbox-Type", "OrderPlaced"),
            ("Outbox-Created-At", "2026-01-02T03:04:05.678Z"),
        ],
    },
    Guide {
        name: "outboxevent",
        table: "CREATE TABLE outboxevent (id uuid PRIMARY KEY, \
                aggregatetype varchar(255) NOT NULL, \
                aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)",
        row: "INSERT INTO outboxevent VALUES ('406c07f3-26f0-4eea-a50c-109940064b8f', 'Order', \
              '1', 'OrderCreated', '{\"a\": 1}')",
        subject: "outbox.Order.OrderCreated",
        headers: &[
            ("Nats-Msg-Id", "406c07f3-26f0-4eea-a50c-109940064b8f"),
            ("Outbox-Aggregate-Type", "Order"),
            ("Outbox-Aggregate-Id", "1"),
            ("Outbox-Type", "OrderCreated"),
        ],
    },
];

#[tokio::test]
async fn tables_of_the_common_guides_work_by_their_name_alone() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        for guide in GUIDES {
            let config = format!("[[outbox]]\ntable = \"public.{}\"\n", guide.name);
            let slot = format!("slot_{}", guide.name);
            let line = Line::new(&stage, guide.name).await?.slot(&slot);
            let line = line.config(&config)?;
            stage.postgres.sql(guide.name, guide.table).await?;
            line.ok(&["setup"]).await?;
            stage.postgres.sql(guide.name, guide.row).await?;
            line.ok(&["run", "--until-caught-up"]).await?;
            let jetstream = stage.jetstream().await?;
            let stored = read_stream(&jetstream, &line.stream).await?;
            let [message] = stored.as_slice() else {
                anyhow::bail!("{}: {} messages", guide.name, stored.len());
            };
            ensure!(
                message.subject == guide.subject,
                "{}: {}",
                guide.name,
                message.subject
            );
            ensure!(message.payload == "{\"a\": 1}", "{}", guide.name);
            for (name, value) in guide.headers {
                let found = message.header(name);
                ensure!(found == Some(value), "{}: {name} {found:?}", guide.name);
            }
            // The next one's stream takes the same subjects.
            jetstream.delete_stream(&line.stream).await?;
        }
        Ok(())
    })
    .await
}
