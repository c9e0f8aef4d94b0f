use std::os::unix::fs::PermissionsExt;

use super::*;

fn environment() -> Environment {
    Environment {
        user: Some("osuser".to_owned()),
        ..Environment::default()
    }
}

fn parse(url: &str) -> ConnectConfig {
    ConnectConfig::parse_in(url, &environment()).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn faults(url: &str) -> Vec<UrlError> {
    ConnectConfig::parse_in(url, &environment())
        .expect_err(url)
        .0
}

fn secret(config: &ConnectConfig) -> Option<&str> {
    config.password.as_ref().map(Password::expose)
}

#[test]
fn urls_mean_what_libpq_reads() {
    for (url, shown) in [
        ("postgres://u:p@h:1/d", "u@h:1/d"),
        ("postgresql://u@h/d", "u@h:5432/d"),
        ("postgres://h", "osuser@h:5432/osuser"),
        ("postgres://u@h", "u@h:5432/u"),
        ("postgres://u@h/", "u@h:5432/u"),
        ("postgres://u@[::1]:5433/d", "u@[::1]:5433/d"),
        ("postgres://u@[::1]/d", "u@[::1]:5432/d"),
        ("postgres://u@a:1,b,[::2]:3/d", "u@a:1,b:5432,[::2]:3/d"),
        ("postgres://u@%2Fvar%2Frun/d", "u@/var/run/.s.PGSQL.5432/d"),
        ("postgres://u@%2Ftmp:6000/d", "u@/tmp/.s.PGSQL.6000/d"),
        (
            "postgres://u@/d?host=/tmp&port=6000",
            "u@/tmp/.s.PGSQL.6000/d",
        ),
        (
            "postgres:///d?host=/tmp&user=u%40x",
            "u@x@/tmp/.s.PGSQL.5432/d",
        ),
        ("postgres://u@h/d?host=a,b&port=1,2", "u@a:1,b:2/d"),
        ("postgres://u@h/d?host=a,b&port=7", "u@a:7,b:7/d"),
        ("postgres://us%65r@h/My%20Db", "user@h:5432/My Db"),
        ("postgres://u@h/d?dbname=other", "u@h:5432/other"),
        ("postgres://u@h?sslmode=disable", "u@h:5432/u"),
        ("postgres://u@/d?hostaddr=10.0.0.1", "u@10.0.0.1:5432/d"),
    ] {
        assert_eq!(parse(url).to_string(), shown, "{url}");
    }
}

#[test]
fn passwords_with_any_character_work_percent_encoded() {
    for (raw, password) in [
        ("a%40b", "a@b"),
        ("a%2Fb", "a/b"),
        ("a:b", "a:b"),
        ("a%3Ab", "a:b"),
        ("a#b", "a#b"),
        ("a%23b", "a#b"),
        ("a%25b", "a%b"),
        ("%7B%5C%20%7D", "{\\ }"),
        ("{\\ }", "{\\ }"),
        ("a+b", "a+b"),
        ("%EF%AC%81%E2%91%A0x", "\u{fb01}\u{2460}x"),
        ("%3F%26%3D%27%22", "?&='\""),
    ] {
        let config = parse(&format!("postgres://u:{raw}@h/d"));
        assert_eq!(secret(&config), Some(password), "{raw}");
        assert_eq!(config.to_string(), "u@h:5432/d");
        let debug = format!("{config:?}");
        assert!(
            !debug.contains(password) && debug.contains("***"),
            "{debug}"
        );
    }
    assert_eq!(
        secret(&parse("postgres://h/d?password=x%26y&user=u")),
        Some("x&y")
    );
    assert_eq!(secret(&parse("postgres://u:@h/d")), None);
}

#[test]
fn all_faults_of_a_url_are_reported_together() {
    let found = faults(
        "postgres://u@h:0/d?sslmode=maybe&service=x&nonsense=1&connect_timeout=0&\
         target_session_attrs=standby&channel_binding=require",
    );
    let text = UrlErrors(found.clone()).to_string();
    for part in [
        "port must be",
        "sslmode must be",
        "service cannot be honoured",
        "unknown option \"nonsense\"",
        "connect_timeout must be",
        "target_session_attrs cannot be honoured",
        "channel_binding cannot be honoured",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert_eq!(found.len(), 7, "{text}");
}

#[test]
fn each_fault_is_named() {
    for (url, part) in [
        ("mysql://h", "must begin with postgres://"),
        ("", "must begin with postgres://"),
        ("postgres://u:a%zz@h/d", "percent-encoding in the password"),
        ("postgres://u:a%@h/d", "percent-encoding in the password"),
        ("postgres://u:a%00@h/d", "percent-encoding in the password"),
        ("postgres://u:%FF@h/d", "percent-encoding in the password"),
        ("postgres://u@%4/d", "percent-encoding in the host"),
        ("postgres://u@[::1/d", "brackets"),
        ("postgres://u@[::1]x/d", "brackets"),
        ("postgres://u@[]/d", "brackets"),
        ("postgres://u@h/d?sslmode", "name=value"),
        ("postgres://u@h/d?a=b=c", "name=value"),
        ("postgres://u@h:65536/d", "port must be"),
        ("postgres://u@h:-1/d", "port must be"),
        (
            "postgres://u@h/d?port=1,2",
            "port has 2 entries for 1 hosts",
        ),
        (
            "postgres://u@a,b/d?hostaddr=1.1.1.1",
            "hostaddr has 1 entries for 2 hosts",
        ),
        ("postgres://u@h/d?hostaddr=name", "hostaddr must be"),
        (
            "postgres://u@h/d?sslmode=allow",
            "sslmode=allow cannot be honoured",
        ),
        (
            "postgres://u@h/d?sslmode=require&sslrootcert=system",
            "sslmode must be verify-full",
        ),
        (
            "postgres://u@h/d?sslnegotiation=direct",
            "sslmode must be require",
        ),
        (
            "postgres://u@h/d?gssencmode=require",
            "gssencmode cannot be honoured",
        ),
        (
            "postgres://u@h/d?require_auth=none",
            "require_auth cannot be honoured",
        ),
        (
            "postgres://u@h/d?replication=database",
            "replication cannot be honoured",
        ),
        (
            "postgres://u@h/d?client_encoding=LATIN1",
            "client_encoding cannot be honoured",
        ),
        (
            "postgres://u@h/d?keepalives=yes",
            "keepalives must be 0 or 1",
        ),
        ("postgres://u@h/d?sslcrl=x", "sslcrl cannot be honoured"),
        ("postgres://u@%40abstract/d", "abstract sockets"),
    ] {
        let text = UrlErrors(faults(url)).to_string();
        assert!(text.contains(part), "{url}: {text}");
    }
    let nobody = ConnectConfig::parse_in("postgres://h/d", &Environment::default());
    assert_eq!(nobody.unwrap_err().0, [UrlError::NoUser]);
}

#[test]
fn a_password_that_is_not_encoded_is_refused_without_being_shown() {
    for url in [
        "postgres://u:S3CR3T@x@h/d",
        "postgres://u:S3CR3T/x@h/d",
        "postgres://u:x/S3CR3T@h/d",
        "postgres://u:12/S3CR3T@h/d",
        "postgres://u:x?S3CR3T@h/d",
        "postgres://u:x?S3CR3T=1@h/d",
        "postgres://u:S3CR3T%@h/d",
        "postgres://u:x@S3CR3T:x@h/d",
    ] {
        let text = UrlErrors(faults(url)).to_string();
        assert!(!text.contains("S3CR3T"), "{url}: {text}");
    }
}

#[test]
fn tls_modes_are_libpqs() {
    let mode = |query: &str| parse(&format!("postgres://u@h/d?{query}")).tls.mode;
    assert_eq!(mode(""), TlsMode::Prefer);
    assert_eq!(mode("sslmode=disable"), TlsMode::Disable);
    assert_eq!(mode("sslmode=require"), TlsMode::Require);
    assert_eq!(mode("sslmode=verify-ca"), TlsMode::VerifyCa);
    assert_eq!(mode("sslmode=verify-full"), TlsMode::VerifyFull);
    assert_eq!(mode("sslrootcert=system"), TlsMode::VerifyFull);
    assert_eq!(mode("ssl=true"), TlsMode::Require);
    let config =
        parse("postgres://u@h/d?sslmode=require&sslrootcert=/ca.crt&sslnegotiation=direct");
    assert_eq!(config.tls.roots, TrustedRoots::File("/ca.crt".into()));
    assert!(config.tls.direct);
}

#[test]
fn other_options_reach_their_place() {
    let config = parse(
        "postgres://u@a,b/d?connect_timeout=3&application_name=mine&options=-c%20geqo%3Doff\
         &keepalives_idle=30&keepalives_interval=5&keepalives_count=4&tcp_user_timeout=60000",
    )
    .for_slot("s");
    assert_eq!(config.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.application_name(), "mine");
    assert_eq!(config.options.as_deref(), Some("-c geqo=off"));
    assert_eq!(config.target, SessionTarget::ReadWrite);
    assert_eq!(config.keepalive.idle, Some(Duration::from_secs(30)));
    assert_eq!(config.keepalive.count, Some(4));
    assert_eq!(config.keepalive.user_timeout, Some(Duration::from_secs(60)));
    assert_eq!(
        parse("postgres://u@a/d").for_slot("s").application_name(),
        "postrider/s"
    );
    assert_eq!(parse("postgres://u@a/d").target, SessionTarget::Any);
    let pinned = crate::connect::pinned_options(&config, "-c x=y");
    assert!(pinned.starts_with("-c geqo=off -c TimeZone=UTC ") && pinned.ends_with(" -c x=y"));
}

#[test]
fn passwords_come_from_the_url_then_the_environment_then_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pgpass");
    std::fs::write(&path, "h:5432:d:u:from-file\n").unwrap();
    let permit = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(0o600);
    let mut environment = Environment {
        passfile: Some(path.clone()),
        ..environment()
    };
    let found = |url: &str, environment: &Environment| {
        let config = ConnectConfig::parse_in(url, environment).unwrap();
        config
            .password_for(&config.hosts[0])
            .map(|password| password.expose().to_owned())
    };
    assert_eq!(
        found("postgres://u@h/d", &environment).as_deref(),
        Some("from-file")
    );
    assert_eq!(found("postgres://u@h/other", &environment), None);
    permit(0o644);
    assert_eq!(
        found("postgres://u@h/d", &environment),
        None,
        "readable by others"
    );
    permit(0o600);
    environment.password = Some(Password::new("from-environment".to_owned()));
    assert_eq!(
        found("postgres://u@h/d", &environment).as_deref(),
        Some("from-environment")
    );
    assert_eq!(
        found("postgres://u:own@h/d", &environment).as_deref(),
        Some("own")
    );
}

#[test]
fn password_file_lines_match_as_in_libpq() {
    let tcp = |name: &str| Host {
        address: HostAddress::Tcp {
            name: name.to_owned(),
            addr: None,
        },
        port: 5432,
    };
    let socket = |path: &str| Host {
        address: HostAddress::Unix {
            directory: path.into(),
        },
        port: 5432,
    };
    let find = |text: &str, host: &Host| {
        passfile::find(text, host, "d", "u").map(|password| password.expose().to_owned())
    };
    let file = "# comment\nshort:line\nother:5432:d:u:no\n*:*:*:u:p\\:q\\\\r\n*:*:*:*:late\n";
    assert_eq!(find(file, &tcp("h")).as_deref(), Some("p:q\\r"));
    assert_eq!(find("h:5433:d:u:x", &tcp("h")), None);
    assert_eq!(
        find("\\:\\:1:*:*:*:six", &tcp("::1")).as_deref(),
        Some("six")
    );
    assert_eq!(
        find("localhost:*:*:*:x", &socket("/var/run/postgresql")).as_deref(),
        Some("x")
    );
    assert_eq!(
        find("/run/pg:*:*:*:x", &socket("/run/pg")).as_deref(),
        Some("x")
    );
    assert_eq!(find("h:5432:d:u:", &tcp("h")), None);
}

#[test]
fn pieces_of_a_password_are_never_taken_for_the_name_of_an_option() {
    for url in [
        "postgres://u:p@w?S3CR=x@h/d",
        "postgres://u:p?S3CR=x@h/d",
        "postgres://u:p/w?S3CR=x@h/d",
    ] {
        let text = UrlErrors(faults(url)).to_string();
        assert!(!text.contains("S3CR"), "{url}: {text}");
    }
    let known = UrlErrors(faults("postgres://u:p@h/d?nonsense=1")).to_string();
    assert!(known.contains("nonsense"), "{known}");
}

#[test]
fn what_the_environment_says_of_tls_is_honoured_or_refused() {
    let with = |variables: &[(&'static str, &str)]| Environment {
        tls: variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
        ..environment()
    };
    let environment = with(&[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", "/ca.crt")]);
    let config = ConnectConfig::parse_in("postgres://u@h/d", &environment).unwrap();
    assert_eq!(config.tls.mode, TlsMode::VerifyFull);
    assert_eq!(config.tls.roots, TrustedRoots::File("/ca.crt".into()));
    // The URL has the last word.
    let url = "postgres://u@h/d?sslmode=disable";
    let config = ConnectConfig::parse_in(url, &environment).unwrap();
    assert_eq!(config.tls.mode, TlsMode::Disable);
    for (name, value) in [("PGSSLCRL", "/crl"), ("PGREQUIREAUTH", "scram-sha-256")] {
        let environment = with(&[(name, value)]);
        let faults = ConnectConfig::parse_in("postgres://u@h/d", &environment).unwrap_err();
        assert!(faults.to_string().contains(name), "{faults}");
    }
}

#[test]
fn a_host_that_worked_comes_first_and_the_others_keep_their_order() {
    let config = parse("postgres://u@a,b,c/d");
    let last = config.hosts[2].clone();
    let config = config.beginning_with(&last);
    assert_eq!(config.to_string(), "u@c:5432,a:5432,b:5432/d");
    assert_eq!(config.only_at(&last).to_string(), "u@c:5432/d");
}
