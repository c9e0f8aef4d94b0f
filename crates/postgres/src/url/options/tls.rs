//! The options of TLS.

use std::path::{Path, PathBuf};

use super::Reader;
use crate::url::{ClientCertificate, TlsMode, TlsSettings, TrustedRoots};

impl Reader<'_> {
    /// Everything whose name begins with `ssl`.
    pub(super) fn tls(&mut self, home: Option<&Path>) -> TlsSettings {
        let own_file = |name: &str| home.map(|home| home.join(".postgresql").join(name));
        let roots = match self.get("sslrootcert") {
            None => TrustedRoots::DefaultFile(own_file("root.crt")),
            Some("system") => TrustedRoots::System,
            Some(path) => TrustedRoots::File(path.into()),
        };
        let mode = self.tls_mode(roots == TrustedRoots::System);
        let direct = match self.get("sslnegotiation") {
            None | Some("postgres") => false,
            Some("direct") => true,
            Some(_) => {
                self.fail("sslnegotiation", "postgres or direct");
                false
            }
        };
        if direct && mode < TlsMode::Require {
            self.fail(
                "sslmode",
                "require, verify-ca or verify-full with sslnegotiation=direct",
            );
        }
        let certificate = self.get("sslcert").map(PathBuf::from);
        let explicit = certificate.is_some() || self.get("sslkey").is_some();
        let certificate = certificate.or_else(|| own_file("postgresql.crt"));
        let key = self
            .get("sslkey")
            .map(PathBuf::from)
            .or_else(|| own_file("postgresql.key"));
        let client = certificate
            .zip(key)
            .map(|(certificate, key)| ClientCertificate {
                certificate,
                key,
                explicit,
            })
            .filter(|_| self.get("sslcertmode") != Some("disable"));
        if explicit && client.is_none() && self.get("sslcertmode") != Some("disable") {
            self.fail("sslkey", "given together with sslcert");
        }
        self.only(
            "sslcertmode",
            &["allow", "disable"],
            "whether the server asks is not checked",
        );
        self.only(
            "sslcompression",
            &["0"],
            "TLS compression is unsafe and not built in",
        );
        let only_tls13 = match self.get("ssl_min_protocol_version") {
            None | Some("TLSv1" | "TLSv1.1" | "TLSv1.2") => false,
            Some("TLSv1.3") => true,
            Some(_) => {
                self.fail("ssl_min_protocol_version", "TLSv1.2 or TLSv1.3");
                false
            }
        };
        let sni = self.flag("sslsni");
        TlsSettings {
            mode,
            roots,
            client,
            direct,
            sni,
            only_tls13,
        }
    }

    /// As in libpq, `sslrootcert=system` means verify-full and refuses anything weaker.
    fn tls_mode(&mut self, system_roots: bool) -> TlsMode {
        let mode = match self.get("sslmode") {
            None if system_roots => TlsMode::VerifyFull,
            None | Some("prefer") => TlsMode::Prefer,
            Some("disable") => TlsMode::Disable,
            Some("require") => TlsMode::Require,
            Some("verify-ca") => TlsMode::VerifyCa,
            Some("verify-full") => TlsMode::VerifyFull,
            Some("allow") => {
                self.refuse(
                    "sslmode=allow",
                    "it prefers the unprotected way; write prefer",
                );
                return TlsMode::Prefer;
            }
            Some(_) => {
                self.fail(
                    "sslmode",
                    "disable, prefer, require, verify-ca or verify-full",
                );
                return TlsMode::Prefer;
            }
        };
        if system_roots && mode != TlsMode::VerifyFull {
            self.fail("sslmode", "verify-full with sslrootcert=system");
        }
        mode
    }
}
