//! The service: it places orders and says so, once in the wrong way and then in the right one.

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, Transaction};

use super::stage::Servers;

/// The service's own table. The outbox beside it is made by `postrider setup --create-table`.
const ORDERS_TABLE: &str = "CREATE TABLE orders (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item text NOT NULL
)";
const INSERT_ORDER: &str = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
const INSERT_EVENT: &str = "
    INSERT INTO outbox (aggregate_type, aggregate_id, type, payload)
    VALUES ('order', $1::bigint::text, 'placed',
            jsonb_build_object('order_id', $1::bigint, 'item', $2::text))";
const COUNTS: &str = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox)";

/// The subject of the naive way; the same that the outbox leads to.
const DUAL_WRITE_SUBJECT: &str = "outbox.order.placed";

/// A row of the outbox, as the table holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) payload: String,
}

/// What is seen of orders and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) orders: i64,
    pub(super) events: i64,
}

/// A service with its database connection.
#[derive(Debug)]
pub(super) struct Shop {
    client: Client,
    /// For each placed order the WAL position that PostgreSQL told right after its commit.
    commits: Vec<String>,
}

impl Shop {
    /// Makes the database and the table of orders in it.
    ///
    /// # Errors
    /// Those of the server.
    pub(super) async fn open(servers: &Servers, database: &str) -> Result<Self> {
        servers.postgres.create_database(database).await?;
        servers.postgres.sql(database, ORDERS_TABLE).await?;
        Ok(Self {
            client: servers.postgres.connect(database).await?,
            commits: Vec::new(),
        })
    }

    /// WAL positions at which the placed orders were committed, in order.
    pub(super) fn commits(&self) -> &[String] {
        &self.commits
    }

    /// The position of the newest commit.
    pub(super) fn last_commit(&self) -> Result<&str> {
        let last = self.commits.last().context("no order was placed")?;
        Ok(last)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The wrong way: commits the order, then publishes its event. Gives back the publish error.
    ///
    /// # Errors
    /// When the publish succeeds, and those of PostgreSQL.
    pub(super) async fn dual_write(&self, servers: &Servers, item: &str) -> Result<String> {
        let row = self.client.query_one(INSERT_ORDER, &[&item]).await?;
        let order: i64 = row.try_get(0)?;
        match publish(servers, order).await {
            Ok(()) => bail!("the event of the dual write was published although NATS is down"),
            Err(error) => Ok(error.root_cause().to_string()),
        }
    }

    /// An order and its event in a transaction whose next statement fails. Gives back what the
    /// transaction itself saw before that, and the error.
    ///
    /// # Errors
    /// When the failing statement succeeds, and those of PostgreSQL.
    pub(super) async fn fail_after_both(&mut self, item: &str) -> Result<(Counts, String)> {
        let transaction = self.client.transaction().await?;
        insert_both(&transaction, item).await?;
        let row = transaction.query_one(COUNTS, &[]).await?;
        let counts = counts_of(&row)?;
        let failing = "INSERT INTO orders (item) VALUES (NULL)";
        let Err(error) = transaction.execute(failing, &[]).await else {
            bail!("an order without an item was accepted");
        };
        transaction.rollback().await?;
        let reason = error.as_db_error().map(|error| error.message().to_owned());
        Ok((counts, reason.unwrap_or_else(|| error.to_string())))
    }

    /// The right way: the order and its event in one transaction.
    ///
    /// # Errors
    /// Those of PostgreSQL.
    pub(super) async fn place(&mut self, item: &str) -> Result<()> {
        let transaction = self.client.transaction().await?;
        insert_both(&transaction, item).await?;
        transaction.commit().await?;
        let row = self
            .client
            .query_one("SELECT pg_current_wal_lsn()::text", &[])
            .await?;
        self.commits.push(row.try_get(0)?);
        Ok(())
    }

    /// How many rows both tables hold.
    ///
    /// # Errors
    /// Those of PostgreSQL.
    pub(super) async fn counts(&self) -> Result<Counts> {
        counts_of(&self.client.query_one(COUNTS, &[]).await?)
    }

    /// The outbox in the order of its ids, which here is the order of the commits.
    ///
    /// # Errors
    /// Those of PostgreSQL.
    pub(super) async fn events(&self) -> Result<Vec<Event>> {
        let query = "SELECT id::text, payload::text FROM outbox ORDER BY outbox.id";
        let rows = self.client.query(query, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(Event {
                    id: row.try_get(0)?,
                    payload: row.try_get(1)?,
                })
            })
            .collect()
    }
}

async fn insert_both(transaction: &Transaction<'_>, item: &str) -> Result<()> {
    let row = transaction.query_one(INSERT_ORDER, &[&item]).await?;
    let order: i64 = row.try_get(0)?;
    transaction.execute(INSERT_EVENT, &[&order, &item]).await?;
    Ok(())
}

fn counts_of(row: &tokio_postgres::Row) -> Result<Counts> {
    Ok(Counts {
        orders: row.try_get(0)?,
        events: row.try_get(1)?,
    })
}

/// Publishes an event straight to the stream and waits for its ack.
async fn publish(servers: &Servers, order: i64) -> Result<()> {
    let client = servers.nats.connect().await?;
    let jetstream = async_nats::jetstream::new(client);
    let payload = format!("{{\"order_id\": {order}}}");
    jetstream
        .publish(DUAL_WRITE_SUBJECT, payload.into())
        .await?
        .await?;
    Ok(())
}
