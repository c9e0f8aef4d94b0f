//! Precedence, all faults at once, and secrets that do not show.

use ::outbox::{OutboxSpec, Role, Writers};

use super::*;

const FILE: &str = "/etc/postrider/p.toml";

fn input(flags: &[(&'static str, &str)]) -> ConfigInput {
    let flags = flags
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    ConfigInput { file: None, flags }
}

fn with_file(text: &str) -> MemoryEnvironment {
    MemoryEnvironment::with_variables([(k::CONFIG_VARIABLE, FILE)]).file(FILE, text)
}

fn ok(environment: &MemoryEnvironment) -> Settings {
    load(&ConfigInput::default(), environment, vec![])
        .map(|loaded| loaded.settings)
        .unwrap()
}

fn faults(environment: &MemoryEnvironment) -> Vec<String> {
    let faults = load(&ConfigInput::default(), environment, vec![]).unwrap_err();
    faults.list().iter().map(ToString::to_string).collect()
}

fn set(mut environment: MemoryEnvironment, name: &str, value: &str) -> MemoryEnvironment {
    environment
        .variables
        .insert(name.to_owned(), value.to_owned());
    environment
}

#[test]
fn two_urls_are_enough() {
    let settings = ok(&MemoryEnvironment::with_variables([
        ("DATABASE_URL", "postgres://postrider@localhost/shop"),
        ("NATS_URL", "nats://broker:4222"),
    ]));
    assert_eq!(settings.postgres.slot, "postrider");
    assert_eq!(settings.postgres.publication, "postrider");
    assert_eq!(settings.nats.url.expose(), "nats://broker:4222");
    assert_eq!(settings.nats.stream, "OUTBOX");
    assert_eq!(settings.nats.writers, None);
    assert_eq!(settings.outboxes.len(), 1);
    assert_eq!(settings.outboxes[0], OutboxSpec::new("public", "outbox"));
    assert_eq!(settings.delivery.on_poison, OnPoison::Park);
    assert_eq!(settings.delivery.on_unroutable, OnUnroutable::Wait);
    assert_eq!(settings.delivery.confirm_delay, std::time::Duration::ZERO);
    assert_eq!(settings.delivery.max_in_flight_bytes, 16 << 20);
}

#[test]
fn flag_before_variable_before_file_before_shared_url() {
    let shared = MemoryEnvironment::with_variables([
        ("DATABASE_URL", "postgres://u@shared/d"),
        ("NATS_URL", "nats://shared"),
    ]);
    assert_eq!(ok(&shared).postgres.url.expose(), "postgres://u@shared/d");
    let file = set(shared, k::CONFIG_VARIABLE, FILE).file(
        FILE,
        "[postgres]\nurl = \"postgres://u@file/d\"\nslot = \"file\"\n",
    );
    let settings = ok(&file);
    assert_eq!(settings.postgres.url.expose(), "postgres://u@file/d");
    assert_eq!(settings.nats.url.expose(), "nats://shared");
    assert_eq!(settings.postgres.slot, "file");
    let variable = set(file, "POSTRIDER_POSTGRES_URL", "postgres://u@variable/d");
    let variable = set(variable, "POSTRIDER_POSTGRES_SLOT", "variable");
    let settings = ok(&variable);
    assert_eq!(settings.postgres.url.expose(), "postgres://u@variable/d");
    assert_eq!(settings.postgres.slot, "variable");
    let flags = input(&[
        ("postgres.url", "postgres://u@flag/d"),
        ("postgres.slot", "flag"),
    ]);
    let settings = load(&flags, &variable, vec![]).unwrap().settings;
    assert_eq!(settings.postgres.url.expose(), "postgres://u@flag/d");
    assert_eq!(settings.postgres.slot, "flag");
}

#[test]
fn an_empty_variable_is_none_and_a_flag_names_the_file() {
    let environment = MemoryEnvironment::with_variables([
        ("DATABASE_URL", "postgres://u@h/d"),
        ("POSTRIDER_POSTGRES_SLOT", ""),
        ("POSTRIDER_CONFIG", "/other.toml"),
    ])
    .file(FILE, "[nats]\nstream = \"FILE\"\n");
    let input = ConfigInput {
        file: Some(FILE.into()),
        ..ConfigInput::default()
    };
    let settings = load(&input, &environment, vec![]).unwrap().settings;
    assert_eq!(
        (
            settings.postgres.slot.as_str(),
            settings.nats.stream.as_str()
        ),
        ("postrider", "FILE")
    );
    assert_eq!(settings.nats.url.expose(), "nats://localhost:4222");
    let missing = faults(&environment);
    assert_eq!(
        missing,
        ["POSTRIDER_CONFIG: cannot read /other.toml: no such file"]
    );
}

#[test]
fn every_key_works_in_the_file() {
    let text = "[postgres]\nurl_file = \"url\"\npassword_file = \"pw\"\nslot = \"s\"\n\
                publication = \"P x\"\n\
                [nats]\nurl = \"tls://a, tls://b\"\nuser = \"u\"\npassword = \"p\"\n\
                tls_ca = \"ca.pem\"\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\n\
                tls_first = true\nstream = \"S\"\nwriters = \"shared\"\n\
                max_message_bytes = \"1MiB\"\nreplicas = 3\n\
                [delivery]\non_poison = \"halt\"\non_unroutable = \"park\"\n\
                confirm_delay = \"5m\"\nmax_in_flight_bytes = 65536\ntransactions = \"stream\"\n\
                [[outbox]]\ntable = '\"My Schema\".\"Out-Box\"'\nsubject = \"a.{type}\"\n\
                stream = \"S\"\nid = \"i\"\npayload = \"b\"\naggregate_type = \"at\"\n\
                aggregate_id = \"ai\"\ntype = \"ty\"\ntopic = \"to\"\nheaders_column = \"h\"\n\
                headers = { \"Tenant\" = \"tenant_id\", \"Nats-TTL\" = \"ttl\" }\n\
                created_at = \"c\"\ntraceparent = \"tp\"\ntracestate = \"ts\"\n\
                ordering_key = \"{ai}\"\ndedup_id = \"{table}/{i}\"\n[[outbox]]\n";
    let folder = |name: &str| format!("/etc/postrider/{name}");
    let mut environment = with_file(text).file(&folder("url"), "postgres://u@h/d\n");
    for name in ["pw", "ca.pem", "c.pem", "k.pem"] {
        environment = environment.file(&folder(name), "content\n");
    }
    let settings = ok(&environment);
    assert_eq!(settings.postgres.url.expose(), "postgres://u@h/d");
    let password = settings.postgres.password.as_ref().unwrap();
    assert_eq!(password.at_start().expose(), "content");
    assert_eq!(settings.postgres.publication, "P x");
    assert!(matches!(&settings.nats.auth, NatsAuth::User { user, .. } if user == "u"));
    assert_eq!(settings.nats.tls.ca, Some(folder("ca.pem").into()));
    assert!(settings.nats.tls.first);
    assert_eq!(settings.nats.writers, Some(Writers::Shared));
    assert_eq!(
        (settings.nats.max_message_bytes, settings.nats.replicas),
        (Some(1 << 20), Some(3))
    );
    assert_eq!(settings.delivery.on_poison, OnPoison::Halt);
    assert_eq!(settings.delivery.on_unroutable, OnUnroutable::Park);
    assert_eq!(settings.delivery.confirm_delay.as_secs(), 300);
    assert_eq!(settings.delivery.max_in_flight_bytes, 65536);
    let outbox = &settings.outboxes[0];
    assert_eq!(
        (outbox.schema.as_str(), outbox.table.as_str()),
        ("My Schema", "Out-Box")
    );
    for (role, column) in [
        (Role::Type, "ty"),
        (Role::Headers, "h"),
        (Role::TraceState, "ts"),
    ] {
        assert!(
            outbox.columns.contains(&(role, column.to_owned())),
            "{:?}",
            outbox.columns
        );
    }
    assert_eq!(outbox.columns.len(), Role::ALL.len());
    assert_eq!(outbox.headers.len(), 2);
    let places: Vec<_> = outbox.dedup_id.as_ref().unwrap().places().collect();
    assert_eq!(places, ["table", "i"]);
    assert!(outbox.subject.is_some() && outbox.ordering_key.is_some());
    assert_eq!(settings.outboxes[1], OutboxSpec::new("public", "outbox"));
    assert_eq!(
        settings.postgres.connect_config().unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn every_key_works_as_a_variable() {
    // A value that no kind takes is refused in the variable's name.
    for key in k::KEYS {
        let environment = set(
            MemoryEnvironment::with_variables([("DATABASE_URL", "postgres://u@h/d")]),
            &key.variable(),
            "\0 -",
        );
        let all = faults(&environment);
        assert!(
            all.iter().any(|fault| fault.starts_with(&key.variable())),
            "{}: {all:?}",
            key.name
        );
    }
}

#[test]
fn all_faults_at_once() {
    let text = "[postgres]\nslot = \"My Slot\"\n[nats]\nstream = \"a.b\"\nstreem = \"x\"\n\
                replicas = -1\nmax_message_bytes = \"99999999999GiB\"\n\
                [delivery]\nmax_in_flight_bytes = nan\nconfirm_delay = \"-5s\"\n\
                transactions = \"atomic\"\non_poison = true\n\
                [[outbox]]\ntable = \"audit.outbox\"\nheaders = { \"Bad Name\" = \"c\" }\n\
                [[outbox]]\ntable = \"Audit.Outbox\"\nsubject = \"a..b\"\n";
    let environment = set(
        with_file(text),
        "POSTRIDER_DELIVERY_ON_UNROUTABLE",
        "explode",
    );
    let environment = set(environment, "POSTRIDER_POSTGRES_SLOTT", "a");
    let flags = input(&[("nats.writers", "both")]);
    let faults = load(&flags, &environment, vec![]).unwrap_err();
    let shown = faults.to_string();
    for (line, part) in [
        ("--nats-writers: ", "\"both\" is not one of"),
        (
            "POSTRIDER_DELIVERY_ON_UNROUTABLE: ",
            "\"explode\" is not one of",
        ),
        ("POSTRIDER_POSTGRES_SLOTT: ", "unknown variable"),
        ("p.toml:2: postgres.slot: ", "lower-case letters"),
        ("p.toml:4: nats.stream: ", "has '.' in it"),
        ("p.toml:5: nats.streem: ", "unknown key"),
        ("p.toml:6: nats.replicas: ", "not a whole number"),
        ("p.toml:7: nats.max_message_bytes: ", "too large"),
        (
            "p.toml:9: delivery.max_in_flight_bytes: ",
            "\"nan\" is not a size",
        ),
        ("p.toml:10: delivery.confirm_delay: ", "negative"),
        ("p.toml:11: delivery.transactions: ", "does not have atomic"),
        ("p.toml:12: delivery.on_poison: ", "the value is a boolean"),
        ("p.toml:15: outbox[1].headers: ", "has ' ' in it"),
        (
            "p.toml:17: outbox[2].table: ",
            "two outboxes have the table \"audit.outbox\"",
        ),
        ("p.toml:18: outbox[2].subject: ", "empty token"),
        ("  postgres.url: ", "no database is given"),
    ] {
        let found = shown
            .lines()
            .any(|text| text.contains(line) && text.contains(part));
        assert!(found, "{line}{part}\n{shown}");
    }
    assert_eq!(faults.list().len(), 16, "{shown}");
    assert!(shown.starts_with("16 faults in the configuration; nothing was started\n"));
}

#[test]
fn a_secret_shows_nowhere() {
    let secret = "S3CR3T";
    let text = format!(
        "[postgres]\nurl = \"mysql://u:{secret}@h/d\"\npassword = [\"{secret}\"]\n\
         [nats]\nurl = \"nats://u:{secret}@h:x\"\ntoken = {{ a = \"{secret}\" }}\n\
         password = \"{secret}\\u0000\"\n"
    );
    let environment = set(with_file(&text), "POSTRIDER_NATS_URL_FILE", "/secret");
    let environment = environment.file("/secret", &format!("http://{secret}@h"));
    let all = faults(&environment);
    assert!(all.len() >= 4, "{all:?}");
    assert!(!format!("{all:?}").contains(secret), "{all:?}");

    let good = MemoryEnvironment::with_variables([
        ("DATABASE_URL", "postgres://u:S3CR3T%40x@h/d"),
        ("NATS_URL", "nats://0th3r@h"),
    ]);
    let loaded = load(&ConfigInput::default(), &good, vec![]).unwrap();
    let dump = format!("{loaded:?} {:#?}", loaded.settings);
    assert!(!dump.contains(secret) && !dump.contains("0th3r"), "{dump}");
    assert!(dump.contains("slot: \"postrider\""), "{dump}");
    let line = "got S3CR3T@x, S3CR3T%40x and 0th3r";
    assert_eq!(loaded.redactor.clean(line), "got ***, *** and ***");
}

#[test]
fn secrets_of_one_layer_exclude_each_other() {
    let text = "[postgres]\nurl = \"postgres://u:a@h/d\"\npassword = \"b\"\n\
                [nats]\ntoken = \"t\"\ntoken_file = \"t\"\n";
    let shown = faults(&with_file(text)).join("\n");
    assert!(
        shown.contains("p.toml:3: postgres.password: the URL has a password"),
        "{shown}"
    );
    assert!(
        shown.contains("p.toml:6: nats.token_file: nats.token and nats.token_file"),
        "{shown}"
    );
    // A password of a higher layer cannot be told from a mistake either.
    let text = "[postgres]\nurl = \"postgres://u:a@h/d\"\n[nats]\ntoken = \"t\"\n";
    let environment = set(with_file(text), "POSTRIDER_POSTGRES_PASSWORD", "b");
    let environment = set(environment, "NATS_URL", "nats://u:p@h");
    let shown = faults(&environment).join("\n");
    assert!(
        shown.contains("POSTRIDER_POSTGRES_PASSWORD: the URL has a password"),
        "{shown}"
    );
    // A URL or login of a higher layer brings what belongs to it.
    let flags = input(&[("postgres.url", "postgres://u@h/d")]);
    let settings = load(&flags, &environment, vec![]).unwrap().settings;
    assert_eq!(settings.postgres.password.unwrap().at_start().expose(), "b");
    assert!(matches!(settings.nats.auth, NatsAuth::Token(_)));
    let flags = input(&[
        ("nats.url", "nats://u:p@h"),
        ("postgres.url", "postgres://u:c@h/d"),
    ]);
    let settings = load(&flags, &environment, vec![]).unwrap().settings;
    assert_eq!(
        (settings.nats.auth, settings.postgres.password),
        (NatsAuth::InUrl, None)
    );
}

#[test]
fn logins_to_nats() {
    let base = || MemoryEnvironment::with_variables([("DATABASE_URL", "postgres://u@h/d")]);
    let environment = set(base(), "POSTRIDER_NATS_CREDENTIALS_FILE", "/app.creds").file(
        "/app.creds",
        "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJKV1QifQ.abc\n",
    );
    let loaded = load(&ConfigInput::default(), &environment, vec![]).unwrap();
    let wanted = NatsAuth::CredentialsFile("/app.creds".into());
    assert_eq!(loaded.settings.nats.auth, wanted);
    assert_eq!(loaded.redactor.clean("x eyJ0eXAiOiJKV1QifQ.abc"), "x ***");
    let two = set(environment, "POSTRIDER_NATS_TOKEN", "t");
    assert!(faults(&two)[0].contains("two ways to log in: nats.token and nats.credentials_file"));
    let user = set(base(), "POSTRIDER_NATS_USER", "u");
    assert!(faults(&user)[0].contains("a user without a password"));
    assert!(matches!(
        ok(&set(user, "POSTRIDER_NATS_PASSWORD", "p")).nats.auth,
        NatsAuth::User { .. }
    ));
    let password = set(base(), "POSTRIDER_NATS_PASSWORD", "p");
    assert!(faults(&password)[0].contains("a password without a user"));
    let cert = set(base(), "POSTRIDER_NATS_TLS_CERT", "/c").file("/c", "x");
    assert!(faults(&cert)[0].contains("nats.tls_cert without nats.tls_key"));
    let nkey = set(base(), "POSTRIDER_NATS_NKEY_FILE", "/gone");
    assert!(faults(&nkey)[0].contains("POSTRIDER_NATS_NKEY_FILE: cannot read /gone"));
}

#[test]
fn outbox_faults() {
    let one = |text: &str| {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n[[outbox]]\n{text}\n");
        let all = faults(&with_file(&text));
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    };
    assert!(one("stream = \"OTHER\"").contains("is not nats.stream (\"OUTBOX\")"));
    assert!(one("table = \"a.b.c\"").contains("more than two parts"));
    assert!(one("table = 5").contains("wants text in quotes, and the value is a integer"));
    assert!(one("headers = \"h\"").contains("headers_column"));
    assert!(one("headers = { \"Nats-Msg-Id\" = \"c\" }").contains("only Nats-TTL may be set"));
    assert!(one("headers = { \"outbox-type\" = \"c\" }").contains("written by Postrider"));
    assert!(one("headers = { a = \"c\", A = \"d\" }").contains("is mapped twice"));
    assert!(one("headers = { a = 1 }").contains("name of a column"));
    assert!(one("dedup_id = \"{table}\"").contains("the same for every row"));
    assert!(one("id = \"\"").contains("the column is empty"));
    assert!(one("[[outbox]]").contains("two outboxes have the table \"public.outbox\""));
}

#[test]
fn variables_of_others_are_left_alone() {
    let mut environment = MemoryEnvironment::with_variables([
        ("DATABASE_URL", "postgres://u@h/d"),
        ("POSTRIDER_SERVICE_HOST", "10.0.0.1"),
        ("POSTRIDER_PORT", "tcp://10.0.0.1:9464"),
        ("POSTRIDER_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("POSTRIDER_NATS_SERVICE_PORT_CLIENT", "4222"),
        ("POSTRIDER_NATS_PORT_4222_TCP", "tcp://10.0.0.1:4222"),
        ("POSTRIDER_SOMETHING_ELSE", "x"),
        ("PATH", "/bin"),
    ]);
    assert_eq!(ok(&environment).postgres.slot, "postrider");
    for (name, help) in [
        ("POSTRIDER_CONFG", "did you mean POSTRIDER_CONFIG?"),
        (
            "POSTRIDER_NATS_STREEM",
            "did you mean POSTRIDER_NATS_STREAM?",
        ),
        ("POSTRIDER_DELIVERY_WHATEVER", "unknown variable"),
    ] {
        environment
            .variables
            .insert(name.to_owned(), "x".to_owned());
        assert!(
            faults(&environment)[0].contains(help),
            "{:?}",
            faults(&environment)
        );
        environment.variables.remove(name);
    }
}

#[test]
fn broken_syntax_still_lists_the_other_layers() {
    let environment = with_file("[nats\nstream = \"a.b\"\n");
    let environment = set(environment, "POSTRIDER_POSTGRES_SLOT", "A");
    let all = faults(&environment);
    assert!(all[0].starts_with("POSTRIDER_POSTGRES_SLOT: "), "{all:?}");
    assert!(all[1].starts_with(&format!("{FILE}:1: ")), "{all:?}");
    // What the file would have said is not known, so nothing is said to be missing.
    assert!(!all.join("\n").contains("no database is given"), "{all:?}");
}

#[test]
fn what_libpq_reads_about_tls_is_read_here_too() {
    let variables = [
        ("DATABASE_URL", "postgres://u@h/d"),
        ("PGSSLMODE", "disable"),
    ];
    let settings = ok(&MemoryEnvironment::with_variables(variables));
    assert_eq!(
        settings
            .postgres
            .libpq
            .tls
            .get("PGSSLMODE")
            .map(String::as_str),
        Some("disable")
    );
}
