use super::*;
use crate::error::SqlState;

fn fault(code: &str, message: &str) -> Fault {
    PgError::from(ServerError {
        code: SqlState::new(code),
        severity: "ERROR".to_owned(),
        message: message.to_owned(),
        detail: None,
        hint: None,
        routine: None,
    })
    .fault()
}

/// Asserts that each code and text stands for its situation.
fn assert_faults<const N: usize>(cases: [(&str, &str, Fault); N]) {
    for (code, message, wanted) in cases {
        assert_eq!(fault(code, message), wanted, "{code} {message}");
    }
}

#[test]
fn texts_of_servers_14_to_18_are_told_apart() {
    assert_faults([
        (
            "57P03",
            "the database system is starting up",
            Fault::ServerStarting,
        ),
        ("57P01", "terminating connection", Fault::ServerShuttingDown),
        (
            "53300",
            "sorry, too many clients already",
            Fault::TooManyConnections,
        ),
        (
            "55006",
            "replication slot \"s1\" is active for PID 4711",
            Fault::SlotActive { pid: Some(4711) },
        ),
        (
            "42704",
            "replication slot \"s\" does not exist",
            Fault::SlotMissing,
        ),
        (
            "42704",
            "publication \"p\" does not exist",
            Fault::PublicationMissing,
        ),
        (
            "55000",
            "cannot read from logical replication slot \"s\"",
            Fault::SlotLost,
        ),
        (
            "55000",
            "can no longer get changes from replication slot \"s\"",
            Fault::SlotLost,
        ),
        (
            "55000",
            "can no longer access replication slot \"s\"",
            Fault::SlotLost,
        ),
    ]);
}

#[test]
fn texts_about_prerequisites_rights_and_poolers_are_told_apart() {
    assert_faults([
        (
            "26000",
            "prepared statement \"s0\" does not exist",
            Fault::Pooler,
        ),
        (
            "55000",
            "logical decoding on standby requires \"wal_level\" >= \"logical\" on the primary",
            Fault::WalLevel,
        ),
        (
            "55000",
            "logical decoding requires wal_level >= logical",
            Fault::WalLevel,
        ),
        (
            "55000",
            "cannot use replication slot \"s\" for logical decoding: it is being synchronized \
             from the primary server",
            Fault::SlotOnStandby,
        ),
        (
            "55000",
            "skipped loading publication \"p\"",
            Fault::PublicationMissing,
        ),
        (
            "28P01",
            "password authentication failed for user \"u\"",
            Fault::AuthFailed,
        ),
        (
            "3D000",
            "database \"d\" does not exist",
            Fault::DatabaseMissing,
        ),
        (
            "42501",
            "must be superuser or replication role",
            Fault::PermissionDenied,
        ),
        (
            "53400",
            "all replication slots are in use",
            Fault::TooManySlots,
        ),
        (
            "08P01",
            "unsupported startup parameter: replication",
            Fault::Pooler,
        ),
        ("08006", "connection lost", Fault::Unreachable),
        (
            "XX000",
            "unrecognized pgoutput option: messages",
            Fault::Other,
        ),
    ]);
}

#[test]
fn names_in_a_message_decide_nothing() {
    assert_faults([
        (
            "55000",
            "can no longer access replication slot \"x_standby\"",
            Fault::SlotLost,
        ),
        (
            "55000",
            "can no longer access replication slot \"wal_level\"",
            Fault::SlotLost,
        ),
        (
            "42704",
            "replication slot \"publication_1\" does not exist",
            Fault::SlotMissing,
        ),
        (
            "42704",
            "publication \"replication slot\" does not exist",
            Fault::PublicationMissing,
        ),
    ]);
}

#[test]
fn an_error_response_is_read_field_by_field() {
    let payload = b"SFEHLER\0VERROR\0C42704\0Mweg\0Dd\0Hh\0RReplicationSlotAcquire\0\0";
    let error = ServerError::parse(payload);
    assert_eq!(
        error.to_string(),
        "weg (SQLSTATE 42704); detail: d; hint: h"
    );
    assert_eq!(error.severity, "ERROR");
    // In another language the function that raised it still tells.
    assert_eq!(PgError::from(error).fault(), Fault::SlotMissing);
}

#[test]
fn every_truncation_of_an_error_response_is_survived() {
    let payload = b"SERROR\0VERROR\0C42704\0Mmessage\0\0";
    for length in 0..payload.len() {
        let error = ServerError::parse(&payload[..length]);
        assert_eq!(error.code.as_str().len(), 5);
    }
}

#[test]
fn only_waiting_faults_are_transient_and_all_others_but_one_have_a_cure() {
    let starting = fault("57P03", "starting up");
    assert!(starting.is_transient() && starting.cure().is_none());
    for fault in [
        Fault::SlotMissing,
        Fault::SlotLost,
        Fault::WalLevel,
        Fault::PublicationMissing,
        Fault::AuthFailed,
        Fault::DatabaseMissing,
        Fault::PermissionDenied,
        Fault::TooManySlots,
        Fault::Pooler,
    ] {
        assert!(!fault.is_transient() && fault.cure().is_some(), "{fault:?}");
    }
}
