//! What libpq checks of a server's certificate, for rustls.
//!
//! rustls has no "trusted, whatever its name" (verify-ca) and no "any certificate" (require without
//! a root). Both are assembled here from rustls's own steps; the handshake signature, which proves
//! that the peer holds the certificate's key, is always checked.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate;

/// How much of the certificate is checked.
#[derive(Debug)]
pub(super) enum Check {
    /// Nothing but the handshake signature.
    Nothing,
    /// The chain up to a trusted root.
    Chain(TrustedCertificates),
    /// The chain and the host name.
    ChainAndName(TrustedCertificates),
}

/// The roots, and the same certificates as they were read.
#[derive(Debug)]
pub(super) struct TrustedCertificates {
    pub(super) roots: RootCertStore,
    /// A server's self-signed certificate may be its own root: PostgreSQL's manual shows how to
    /// make one, OpenSSL accepts it, and the path building of rustls does not.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
pub(super) struct LibpqVerifier {
    pub(super) check: Check,
    pub(super) provider: Arc<CryptoProvider>,
}

impl LibpqVerifier {
    fn chain(
        &self,
        trusted: &TrustedCertificates,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let roots = &trusted.roots;
        match verify_server_cert_signed_by_trust_anchor(
            &parsed,
            roots,
            intermediates,
            now,
            algorithms,
        ) {
            Err(Error::InvalidCertificate(CertificateError::Other(reason)))
                // The validity period has been checked before this error arises, so that what
                // is left to establish is that this very certificate is trusted.
                if reason.to_string() == "CaUsedAsEndEntity"
                    && trusted.certificates.iter().any(|root| root == certificate) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

/// Whether the certificate names the host: in its subject alternative names, or, as in libpq, in
/// the common name where it has no alternative name of the host's kind.
fn check_name(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> Result<(), Error> {
    let error = match verify_server_name(&ParsedCertificate::try_from(certificate)?, host) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) =
        &error
    else {
        return Err(error);
    };
    let kind = match host {
        ServerName::IpAddress(_) => "IpAddress(",
        _ => "DnsName(",
    };
    let decided = presented.iter().any(|name| name.starts_with(kind));
    if !decided && certificate::common_name_is(certificate, &host.to_str()) {
        return Ok(());
    }
    Err(error)
}

/// A certificate of version 1 cannot be verified, and that is said in words.
fn explained(error: Error) -> Error {
    if certificate::is_version_one(&error) {
        return Error::General(certificate::VERSION_ONE.to_owned());
    }
    error
}

impl ServerCertVerifier for LibpqVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.check {
            Check::Nothing => {}
            Check::Chain(trusted) => self
                .chain(trusted, end_entity, intermediates, now)
                .map_err(explained)?,
            Check::ChainAndName(trusted) => {
                self.chain(trusted, end_entity, intermediates, now)
                    .map_err(explained)?;
                check_name(end_entity, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match verify_tls13_signature(message, cert, dss, algorithms) {
            // Where nothing is verified but that the peer has the key, its certificate's version
            // does not matter. Elsewhere the chain was refused before this.
            Err(error) if certificate::is_version_one(&error) => {
                let key = certificate::public_key(cert).ok_or(error)?;
                verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
            }
            result => result,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
