//! Setup and teardown.

use std::time::{Duration, Instant};

use postrider_postgres::{
    ConnectConfig, Control, Fault, Outcome, ReplicationSession, RowCount, SetupPlan, SetupReport,
    SlotWait, TableName, check, setup, teardown,
};
use testbed::{Postgres, versions_under_test};

use crate::support::{PATIENCE, parse, receive, relay, server, superuser};

fn plan(slot: &str, publication: &str, tables: &[(&str, &str)]) -> SetupPlan {
    SetupPlan {
        slot: slot.to_owned(),
        publication: publication.to_owned(),
        tables: tables
            .iter()
            .map(|(schema, name)| TableName {
                schema: (*schema).to_owned(),
                name: (*name).to_owned(),
            })
            .collect(),
        create_tables: true,
        dead_letters: true,
        slot_timeout: PATIENCE,
    }
}

fn outcomes(report: &SetupReport) -> Vec<Outcome> {
    let told = report
        .findings
        .iter()
        .filter(|finding| finding.outcome != Outcome::Warning);
    told.map(|finding| finding.outcome).collect()
}

fn texts(report: &SetupReport) -> String {
    report
        .findings
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect()
}

/// All is there, and looking at it counts no rows.
async fn look_again(config: &ConnectConfig, plan: &SetupPlan) {
    let control = Control::connect(config).await.unwrap();
    let looked = check(&control, plan).await.unwrap();
    assert_eq!(outcomes(&looked), [Outcome::Found; 5]);
    assert!(looked.row_counts.is_empty(), "a check counts no rows");
}

#[tokio::test]
async fn names_of_any_kind_go_the_full_cycle_twice() {
    use Outcome::{Dropped, Found, Made};

    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        let sql = "CREATE SCHEMA audit; CREATE SCHEMA \"Sales-Dept\"; CREATE SCHEMA \"select\";";
        postgres.sql("shop", sql).await.unwrap();
        for (number, (publication, schema, table)) in [
            ("pub", "audit", "outbox"),
            ("My Pub", "Sales-Dept", "Out\"Box"),
            ("it's, \"the\" one", "select", "order"),
            ("Ärger", "public", "outbox"),
        ]
        .into_iter()
        .enumerate()
        {
            let slot = format!("slot_{number}");
            let plan = plan(&slot, publication, &[(schema, table)]);
            let dead_letters = if number == 0 { Made } else { Found };
            let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
            assert_eq!(
                outcomes(&report),
                [Found, Made, Made, dead_letters, Made],
                "{report:?}"
            );
            assert!(report.slot_made && report.is_ready());
            assert_eq!(report.row_counts[0], RowCount::Exactly(0));

            let name = plan.tables[0].to_sql();
            let insert = format!(
                "INSERT INTO {name} (aggregate_type, aggregate_id, type, payload) \
                 VALUES ('a', '1', 't', '{{}}'), ('a', '2', 't', NULL)"
            );
            postgres.sql("shop", &insert).await.unwrap();
            let session = ReplicationSession::connect(&config).await.unwrap();
            let publications = [publication.to_owned()];
            let mut stream = session.start(&slot, &publications).await.unwrap();
            let (rows, end) = receive(&mut stream, 1).await.unwrap();
            assert_eq!(rows, 2, "{publication}");
            stream.send_status(end, 0, false).await.unwrap();
            stream.finish(PATIENCE).await.unwrap();

            let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
            assert_eq!(outcomes(&report), [Found; 5], "{report:?}");
            assert!(!report.slot_made);
            assert_eq!(report.row_counts[0], RowCount::Exactly(2));
            look_again(&config, &plan).await;

            for expected in [[Dropped, Dropped], [Found, Found]] {
                let findings = teardown(&config, &slot, publication, false).await.unwrap();
                let outcomes: Vec<_> = findings.iter().map(|finding| finding.outcome).collect();
                assert_eq!(outcomes, expected);
            }
            let count = format!("SELECT count(*) FROM {name}");
            assert_eq!(
                postgres.value("shop", &count).await.unwrap().as_deref(),
                Some("2")
            );
        }
        // `audit.outbox` and `public.outbox` were two tables.
        let count = "SELECT count(*) FROM pg_class WHERE relname = 'outbox'";
        assert_eq!(
            postgres.value("shop", count).await.unwrap().as_deref(),
            Some("2")
        );
    }
}

#[tokio::test]
async fn all_that_is_missing_is_listed_in_one_run() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = Postgres::builder()
            .version(version)
            .config("wal_level", "replica")
            .config("max_replication_slots", "0")
            .start()
            .await
            .unwrap();
        postgres.create_database("shop").await.unwrap();
        postgres
            .sql("shop", "CREATE ROLE poor LOGIN")
            .await
            .unwrap();
        let config = parse(&format!(
            "postgres://poor@127.0.0.1:{}/shop",
            postgres.port()
        ));
        let plan = plan("Bad-Slot", "pub", &[("public", "outbox")]);
        let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        let texts = texts(&report);
        for part in [
            "wal_level is replica",
            "wal_level = 'logical'",
            "all 0 replication slots are in use",
            "may not replicate",
            "ALTER ROLE \"poor\" REPLICATION",
            "a slot name has",
        ] {
            assert!(texts.contains(part), "{part} is missing in {texts}");
        }
        assert_eq!(report.faults().count(), 4, "{texts}");
    }
}

#[tokio::test]
async fn a_role_without_superuser_is_enough() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let plan = plan("s", "pub", &[("public", "outbox")]);
        let report = setup(&relay(&postgres), &plan, &mut |_: &SlotWait| {})
            .await
            .unwrap();
        assert!(report.is_ready() && report.slot_made, "{}", texts(&report));
    }
}

#[tokio::test]
async fn what_was_made_by_hand_is_checked_and_left_alone() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        postgres
            .sql(
                "shop",
                "CREATE TABLE outbox (id bigint); CREATE TABLE other (id bigint); \
                 CREATE UNLOGGED TABLE volatile (id bigint); CREATE VIEW seen AS SELECT 1; \
                 CREATE TABLE parts (id bigint) PARTITION BY HASH (id); \
                 CREATE TABLE part PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0); \
                 CREATE PUBLICATION pub FOR TABLE other WITH (publish = 'update'); \
                 CREATE PUBLICATION leaf FOR TABLE parts WITH (publish = 'insert'); \
                 CREATE PUBLICATION everything FOR ALL TABLES; \
                 INSERT INTO outbox SELECT generate_series(1, 7);",
            )
            .await
            .unwrap();
        let mut plan = plan("s", "pub", &[("public", "outbox")]);
        plan.create_tables = false;
        let run = async |plan: &SetupPlan| {
            let report = setup(&config, plan, &mut |_: &SlotWait| {}).await.unwrap();
            (report.is_ready(), texts(&report), report)
        };
        let (ready, text, report) = run(&plan).await;
        assert!(!ready && !report.slot_made);
        assert_eq!(report.row_counts[0], RowCount::Exactly(7));
        for part in [
            "does not publish inserts",
            "lacks the table",
            "1 other tables",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        for (table, part) in [
            ("volatile", "unlogged"),
            ("seen", "no table but a view"),
            ("OUTBOX", "there is public.outbox"),
            ("nothing", "no such table in this database"),
        ] {
            plan.tables[0].name = table.to_owned();
            let (ready, text, _) = run(&plan).await;
            assert!(!ready && text.contains(part), "{table}: {text}");
        }
        plan.tables[0].name = "parts".to_owned();
        plan.publication = "leaf".to_owned();
        let (ready, text, _) = run(&plan).await;
        assert!(
            !ready && text.contains("publish_via_partition_root = true"),
            "{text}"
        );

        plan.tables[0].name = "outbox".to_owned();
        plan.publication = "everything".to_owned();
        let (ready, text, report) = run(&plan).await;
        assert!(
            ready && report.slot_made && text.contains("for all tables"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_slot_of_another_plugin_or_database_is_not_ours() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        let mut plan = plan("s", "pub", &[("public", "outbox")]);
        let sql = "SELECT pg_create_logical_replication_slot('foreign', 'test_decoding'); \
                   SELECT pg_create_physical_replication_slot('physical');";
        postgres.sql("shop", sql).await.unwrap();
        let elsewhere = "SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')";
        postgres.sql("postgres", elsewhere).await.unwrap();
        for (slot, part) in [
            ("foreign", "test_decoding"),
            ("physical", "physical slot"),
            ("elsewhere", "another database"),
        ] {
            plan.slot = slot.to_owned();
            let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
            let (ready, text) = (report.is_ready(), texts(&report));
            assert!(!ready && text.contains(part), "{slot}: {text}");
        }
    }
}

#[tokio::test]
async fn a_blocked_slot_names_its_blocker_and_leaves_nothing_behind() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        let blocker = postgres.connect("postgres").await.unwrap();
        blocker
            .batch_execute("BEGIN; CREATE TABLE held (id int)")
            .await
            .unwrap();
        let pid: i32 = blocker
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);

        let mut plan = plan("s", "pub", &[("public", "outbox")]);
        // Its first look at who blocks comes after one second.
        plan.slot_timeout = Duration::from_secs(4);
        let begun = Instant::now();
        let mut waits: Vec<(Duration, SlotWait)> = Vec::new();
        let report = setup(&config, &plan, &mut |wait: &SlotWait| {
            waits.push((begun.elapsed(), wait.clone()));
        })
        .await
        .unwrap();
        assert!(!report.is_ready() && !report.slot_made);
        let (_, first) = waits.first().expect("a wait is explained");
        assert!(first.waited < plan.slot_timeout, "{first:?}");
        assert_eq!(first.transaction.pid, Some(pid));
        assert!(first.transaction.age.is_some());
        assert_eq!(first.application_name.as_deref(), Some("testbed"));
        assert_eq!(first.state.as_deref(), Some("idle in transaction"));
        assert!(
            texts(&report).contains(&format!("pid {pid}")),
            "{}",
            texts(&report)
        );
        let slots = "SELECT count(*) FROM pg_replication_slots";
        assert_eq!(
            postgres.value("shop", slots).await.unwrap().as_deref(),
            Some("0")
        );

        // The blocker ends while the slot waits.
        plan.slot_timeout = PATIENCE;
        let mut waited = false;
        let (notify, waiting) = tokio::sync::oneshot::channel::<()>();
        let mut notify = Some(notify);
        let mut on_wait = |_: &SlotWait| {
            waited = true;
            if let Some(notify) = notify.take() {
                notify.send(()).unwrap();
            }
        };
        let (report, ()) = tokio::join!(setup(&config, &plan, &mut on_wait), async {
            waiting.await.unwrap();
            blocker.batch_execute("ROLLBACK").await.unwrap();
        });
        let report = report.unwrap();
        assert!(report.slot_made && waited, "{}", texts(&report));
    }
}

#[tokio::test]
async fn teardown_refuses_while_a_streamer_is_active_and_ends_only_it_by_force() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres).for_slot("s");
        let plan = plan("s", "pub", &[("public", "outbox")]);
        setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        let bystander = Control::connect(&config).await.unwrap();
        let session = ReplicationSession::connect(&config).await.unwrap();
        let mut stream = session.start("s", &["pub".to_owned()]).await.unwrap();

        let findings = teardown(&config, "s", "pub", false).await.unwrap();
        assert_eq!(findings.len(), 1);
        let text = findings[0].to_string();
        let holder = format!("pid {} (postrider/s)", stream.backend_pid());
        assert!(
            findings[0].outcome == Outcome::Wrong && text.contains(&holder),
            "{text}"
        );
        assert!(bystander.publication("pub", &[]).await.unwrap().is_some());
        assert!(
            bystander
                .read_lag("s")
                .await
                .unwrap()
                .unwrap()
                .holder
                .is_some()
        );

        let reader = tokio::spawn(async move { while stream.next_frame().await.is_ok() {} });
        let findings = teardown(&config, "s", "pub", true).await.unwrap();
        let outcomes: Vec<_> = findings.iter().map(|finding| finding.outcome).collect();
        assert_eq!(outcomes, [Outcome::Dropped, Outcome::Dropped]);
        reader.await.unwrap();
        bystander.client().batch_execute("SELECT 1").await.unwrap();
    }
}

#[tokio::test]
async fn a_locked_table_bounds_the_wait_and_its_holder_is_named() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        let holder = postgres.connect("shop").await.unwrap();
        for sql in [
            "CREATE TABLE outbox (id int)",
            "BEGIN; LOCK TABLE outbox IN SHARE MODE",
        ] {
            holder.batch_execute(sql).await.unwrap();
        }
        let pid: i32 = holder
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let mut plan = plan("s", "pub", &[("public", "outbox")]);
        plan.slot_timeout = Duration::from_secs(1);
        let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        let text = texts(&report);
        assert!(!report.is_ready() && !report.slot_made, "{text}");
        let named = format!("pid {pid} (testbed, idle in transaction) holds a lock");
        assert!(text.contains(&named), "{text}");
        holder.batch_execute("ROLLBACK").await.unwrap();
        let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        assert!(report.slot_made, "{}", texts(&report));
    }
}

#[tokio::test]
async fn a_slot_that_is_there_gets_no_younger_publication() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = superuser(&postgres);
        let plan = plan("s", "pub", &[("public", "outbox")]);
        setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        postgres.sql("shop", "DROP PUBLICATION pub").await.unwrap();
        let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        let fault = report.faults().next().unwrap();
        assert_eq!(fault.fault, Some(Fault::PublicationMissing));
        let control = Control::connect(&config).await.unwrap();
        assert_eq!(control.publication("pub", &[]).await.unwrap(), None);
        teardown(&config, "s", "pub", false).await.unwrap();
        let report = setup(&config, &plan, &mut |_: &SlotWait| {}).await.unwrap();
        assert!(report.is_ready(), "{}", texts(&report));
    }
}
