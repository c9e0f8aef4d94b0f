#!/bin/sh
# Records the golden messages of one server:
#
#     PGHOST=127.0.0.1 PGPORT=5432 PGUSER=postgres sh record.sh > pg15.txt
#
# The server must be a fresh one (it gets two databases, golden and golden_ascii) with
#
#     wal_level = logical
#     max_prepared_transactions = 10
#     logical_decoding_work_mem = 64kB
#
# and be otherwise idle. This needs psql and Python 3.
#
# Every file in sql/ is a scenario. Comments in its head say the options of its slot; it is run,
# then the slot's messages are printed. `record.sh read` prints those there are so far: a scenario
# calls it from inside a transaction, while that is in progress.
#
# Lines of the output, where names are in hex so that any bytes can be in them:
#     scenario NAME              the file sql/NAME.sql
#     proto VERSION
#     oid OID HEX                schema.name of a table or type
#     from LSN MICROS            log position and server clock (since 1970) before the scenario
#     message LSN XID HEX        one row of pg_logical_slot_get_binary_changes; or what a walsender
#                                sent, with XID 0
#     to LSN MICROS              as `from`, after
#
# pg_logical_slot_get_binary_changes forgets between two calls what it has streamed. Hence scenarios
# with a rollback after the first block say "session walsender", and walsender.py reads along.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
export GOLDEN="$here/record.sh"

run() {
    psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

# The commit of a row in a foreign table flushes the log, so that all before it is decoded.
flush() {
    run -c "INSERT INTO unpublished VALUES ('flush')"
}

print_messages() {
    flush
    run -c "
        SELECT concat_ws(' ', 'message', lsn, xid, encode(data, 'hex'))
        FROM pg_logical_slot_get_binary_changes('golden', NULL, NULL, $GOLDEN_OPTIONS)"
}

# Sends the text $1 through the log and waits until the walsender has sent it on.
await_mark() {
    run -o /dev/null -c "SELECT pg_logical_emit_message(false, 'golden', '$1')"
    flush
    tries=0
    until grep -q "^$1\$" "$GOLDEN_OUTPUT"; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "the walsender is mute" >&2; exit 1; }
        sleep 0.1
    done
}

now() {
    run -c "SELECT concat_ws(' ', '$1', pg_current_wal_insert_lsn(),
        floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
}

print_oids() {
    run -c "
        SELECT concat_ws(' ', 'oid', x.oid, encode(textsend(nspname || '.' || x.name), 'hex'))
        FROM (SELECT oid, relname::text AS name, relnamespace AS space FROM pg_class
              WHERE relkind = 'r'
              UNION ALL
              SELECT oid, typname::text, typnamespace FROM pg_type
              WHERE typtype IN ('e', 'd') OR typname = 'Größe') x
        JOIN pg_namespace n ON n.oid = space
        WHERE x.oid >= 16384 ORDER BY 1"
}

# Value of the word $1 in the head of scenario $2, or else $3.
head_word() {
    value=$(sed -n "s/^-- $1 //p" "$2")
    echo "${value:-$3}"
}

record() {
    server=$(run -d postgres -c "SELECT current_setting('server_version_num')::int / 10000")
    [ "$server" -ge "$(head_word server "$1" 14)" ] || return 0
    PGDATABASE=$(head_word database "$1" golden)
    GOLDEN_OPTIONS="'publication_names', 'golden'"
    walsender_options="publication_names 'golden'"
    for option in proto_version binary messages streaming two_phase; do
        value=$(head_word "$option" "$1" "")
        [ -n "$value" ] || continue
        GOLDEN_OPTIONS="$GOLDEN_OPTIONS, '$option', '$value'"
        walsender_options="$walsender_options, $option '$value'"
    done
    two_phase=false
    [ "$(head_word slot "$1" plain)" = plain ] || two_phase=true
    PGCLIENTENCODING=$(head_word encoding "$1" UTF8)
    export PGDATABASE GOLDEN_OPTIONS PGCLIENTENCODING

    echo
    echo "scenario $(basename "$1" .sql)"
    echo "proto $(head_word proto_version "$1" 1)"
    print_oids
    now from
    run -o /dev/null \
        -c "SELECT pg_create_logical_replication_slot('golden', 'pgoutput', false, $two_phase)"
    if [ "$(head_word session "$1" sql)" = walsender ]; then
        GOLDEN_OUTPUT=$(mktemp)
        export GOLDEN_OUTPUT
        python3 "$here/walsender.py" "$walsender_options" > "$GOLDEN_OUTPUT" &
        run -o /dev/null -f "$1"
        await_mark end
        wait
        sed -n '/^message /p' "$GOLDEN_OUTPUT"
        rm "$GOLDEN_OUTPUT"
    else
        unset GOLDEN_OUTPUT
        run -o /dev/null -f "$1"
        print_messages
    fi
    now to
    run -o /dev/null -c "SELECT pg_drop_replication_slot('golden')"
}

if [ "${1:-}" = read ]; then
    if [ -n "${GOLDEN_OUTPUT:-}" ]; then
        await_mark "mark $(date +%s%N)"
    else
        print_messages
    fi
    exit
fi

run -d postgres -o /dev/null -c "CREATE DATABASE golden TEMPLATE template0 ENCODING UTF8" \
    -c "CREATE DATABASE golden_ascii TEMPLATE template0 ENCODING SQL_ASCII
        LC_COLLATE 'C' LC_CTYPE 'C'"
PGCLIENTENCODING=UTF8 run -d golden -f "$here/setup.sql"
PGCLIENTENCODING=SQL_ASCII run -d golden_ascii -f "$here/setup_ascii.sql"
echo "# Recorded by record.sh off PostgreSQL $(run -d postgres -c 'SHOW server_version')."
for scenario in "$here"/sql/*.sql; do
    record "$scenario"
done
