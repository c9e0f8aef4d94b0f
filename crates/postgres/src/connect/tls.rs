//! TLS as libpq means it (PostgreSQL manual, "SSL Support").

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::dial::Dialled;
use super::verifier::{Check, LibpqVerifier, TrustedCertificates};
use crate::url::{ClientCertificate, ConnectConfig, Host, HostAddress, TlsMode, TrustedRoots};

/// `SSLRequest` (PostgreSQL manual, "Message Formats"): length 8, code 80877103.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Name of the protocol in ALPN, from server 17 on.
const ALPN: &[u8] = b"postgresql";

/// Why a connection could not be protected.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The server has no TLS and the URL demands it.
    #[error("the server does not support TLS; set ssl = on there, or sslmode=prefer here")]
    NotOffered,
    /// An error message instead of yes or no, as of a server that can start no process.
    #[error("the server has no answer to the TLS request now, only an error")]
    NotNow,
    /// Something other than yes or no came back.
    #[error("unexpected answer to the TLS request (byte {0:#04x}): is this a PostgreSQL server?")]
    Answer(u8),
    /// Bytes arrived in the clear after the server had agreed to TLS.
    #[error("unencrypted data after the TLS answer, possibly an attack: connection dropped")]
    Injected,
    /// The direct handshake did not agree on PostgreSQL's protocol.
    #[error("the server did not confirm the protocol in a direct TLS handshake (17 or newer does)")]
    Alpn,
    /// `verify-ca` or `verify-full` without a root.
    #[error(
        "no root certificate to verify the server with: give sslrootcert=FILE, or \
         sslrootcert=system for the authorities that this system trusts{}",
        .looked_at.as_ref().map(|path| format!(" ({} does not exist)", path.display()))
            .unwrap_or_default()
    )]
    NoRoot {
        /// libpq's default file.
        looked_at: Option<PathBuf>,
    },
    /// A file could not be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds nothing of use.
    #[error("{path}: {problem}")]
    Content {
        /// The file, or where else it comes from.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The host is not a name that TLS knows.
    #[error("{host:?} is neither a DNS name nor an IP address")]
    HostName {
        /// The host.
        host: String,
    },
    /// rustls does not accept the settings.
    #[error("the TLS settings are not usable")]
    Settings(#[source] rustls::Error),
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
}

impl TlsError {
    /// Whether the connection broke, as opposed to the certificates not being what they should.
    pub(crate) fn is_io(&self) -> bool {
        match self {
            Self::Handshake(error) => error.kind() != io::ErrorKind::InvalidData,
            Self::NotNow => true,
            _ => false,
        }
    }

    /// Whether `prefer` goes on without TLS, as libpq does: the handshake failed, for whatever
    /// reason. Files that cannot be read are a fault of the configuration.
    pub(super) fn is_handshake(&self) -> bool {
        matches!(self, Self::Handshake(_))
    }
}

/// Encrypts `stream` as the URL wants it.
pub(super) async fn secure(
    config: &ConnectConfig,
    host: &Host,
    mut stream: TcpStream,
) -> Result<Dialled, TlsError> {
    let settings = &config.tls;
    let client = client_config(config)?;
    if !settings.direct {
        stream
            .write_all(&SSL_REQUEST)
            .await
            .map_err(TlsError::Handshake)?;
        match stream.read_u8().await.map_err(TlsError::Handshake)? {
            b'S' => {}
            b'N' if settings.mode == TlsMode::Prefer => {
                return Ok(Dialled {
                    stream: Box::new(stream),
                    encrypted: false,
                });
            }
            b'N' => return Err(TlsError::NotOffered),
            // What follows is not encrypted, so it is neither trusted nor shown.
            b'E' => return Err(TlsError::NotNow),
            byte => return Err(TlsError::Answer(byte)),
        }
        // The server speaks next only after our ClientHello; what is there now was injected.
        let mut early = [0_u8; 1];
        match stream.try_read(&mut early) {
            Ok(0) => {
                let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(TlsError::Handshake(eof));
            }
            Ok(_) => return Err(TlsError::Injected),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(TlsError::Handshake(error)),
        }
    }
    let name = server_name(host, &stream, settings.mode)?;
    let stream = TlsConnector::from(Arc::new(client))
        .connect(name, stream)
        .await
        .map_err(TlsError::Handshake)?;
    if settings.direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(TlsError::Alpn);
    }
    Ok(Dialled {
        stream: Box::new(stream),
        encrypted: true,
    })
}

/// The name to send and to check. A host name that TLS does not know matters only to verify-full.
fn server_name(
    host: &Host,
    stream: &TcpStream,
    mode: TlsMode,
) -> Result<ServerName<'static>, TlsError> {
    let HostAddress::Tcp { name, .. } = &host.address else {
        return Err(TlsError::HostName {
            host: host.to_string(),
        });
    };
    match ServerName::try_from(name.clone()) {
        Ok(name) => Ok(name),
        Err(_) if mode < TlsMode::VerifyFull => {
            let address = stream.peer_addr().map_err(TlsError::Handshake)?;
            Ok(ServerName::IpAddress(address.ip().into()))
        }
        Err(_) => Err(TlsError::HostName { host: name.clone() }),
    }
}

/// Files are read at each connection, because certificates are renewed under running programs.
fn client_config(config: &ConnectConfig) -> Result<ClientConfig, TlsError> {
    let settings = &config.tls;
    // Named here instead of taken from the process: with two providers compiled in, rustls's own
    // choice is a panic.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: &[&rustls::SupportedProtocolVersion] = if settings.only_tls13 {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let verifier = LibpqVerifier {
        check: check(settings.mode, &settings.roots)?,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(TlsError::Settings)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut client = match settings.client.as_ref().filter(|files| is_wanted(files)) {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = certificates(&files.certificate)?;
            builder
                .with_client_auth_cert(chain, key(&files.key)?)
                .map_err(TlsError::Settings)?
        }
    };
    client.enable_sni = settings.sni;
    if settings.direct {
        client.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(client)
}

fn is_wanted(files: &ClientCertificate) -> bool {
    files.explicit || files.certificate.exists()
}

/// As in libpq, a root certificate that is there is used by every mode; without one, `prefer` and
/// `require` take any certificate.
fn check(mode: TlsMode, roots: &TrustedRoots) -> Result<Check, TlsError> {
    let trusted = match roots {
        TrustedRoots::System => Some(system_roots()?),
        TrustedRoots::File(path) => Some(file_roots(path)?),
        TrustedRoots::DefaultFile(Some(path)) if path.exists() => Some(file_roots(path)?),
        TrustedRoots::DefaultFile(_) => None,
    };
    match (mode, trusted) {
        (TlsMode::VerifyFull, Some(trusted)) => Ok(Check::ChainAndName(trusted)),
        (_, Some(trusted)) => Ok(Check::Chain(trusted)),
        (TlsMode::VerifyCa | TlsMode::VerifyFull, None) => {
            let TrustedRoots::DefaultFile(looked_at) = roots else {
                return Err(TlsError::NoRoot { looked_at: None });
            };
            Err(TlsError::NoRoot {
                looked_at: looked_at.clone(),
            })
        }
        (_, None) => Ok(Check::Nothing),
    }
}

fn file_roots(path: &Path) -> Result<TrustedCertificates, TlsError> {
    let certificates = certificates(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| TlsError::Content {
                path: path.display().to_string(),
                problem: format!("not usable as a root certificate: {error}"),
            })?;
    }
    Ok(TrustedCertificates {
        roots,
        certificates,
    })
}

fn system_roots() -> Result<TrustedCertificates, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        return Err(TlsError::Content {
            path: "sslrootcert=system".to_owned(),
            problem: "this system has no trusted certificates (install ca-certificates)".to_owned(),
        });
    }
    Ok(TrustedCertificates {
        roots,
        certificates: Vec::new(),
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::File {
        path: path.display().to_string(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(TlsError::Content {
            path: path.display().to_string(),
            problem: "no PEM certificate in this file".to_owned(),
        });
    }
    Ok(certificates)
}

/// Reads a private key, refusing like libpq one that others may read.
fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    use std::os::unix::fs::MetadataExt;

    if let Ok(metadata) = std::fs::metadata(path) {
        // A key of root's may be readable by a group, so that a service in it can use it.
        let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
        if metadata.mode() & forbidden != 0 {
            return Err(TlsError::Content {
                path: path.display().to_string(),
                problem: "others may read this key; run chmod 0600 on it".to_owned(),
            });
        }
    }
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        path: path.display().to_string(),
        source,
    })
}
