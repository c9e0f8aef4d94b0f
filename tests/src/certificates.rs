//! Certificates for servers and clients, made by the test.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256,
    PKCS_RSA_SHA384, SanType, SignatureAlgorithm, date_time_ymd,
};

/// The host name of [`Leaf::server`].
pub const HOST: &str = "db.example";

/// Key and signature of an authority or a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA with P-256 and SHA-256.
    Ecdsa256,
    /// ECDSA with P-384 and SHA-384.
    Ecdsa384,
    /// RSA of 2048 bits with SHA-256.
    Rsa256,
    /// RSA of 2048 bits with SHA-384.
    Rsa384,
}

impl Algorithm {
    fn key(self, rsa_pem: &str) -> Result<KeyPair> {
        let algorithm: &'static SignatureAlgorithm = match self {
            Self::Ecdsa256 => &PKCS_ECDSA_P256_SHA256,
            Self::Ecdsa384 => &PKCS_ECDSA_P384_SHA384,
            Self::Rsa256 => &PKCS_RSA_SHA256,
            Self::Rsa384 => &PKCS_RSA_SHA384,
        };
        Ok(match self {
            Self::Ecdsa256 | Self::Ecdsa384 => KeyPair::generate_for(algorithm)?,
            Self::Rsa256 | Self::Rsa384 => KeyPair::from_pem_and_sign_algo(rsa_pem, algorithm)?,
        })
    }
}

/// A certificate and its key, both PEM.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// A certificate authority of the test's own.
#[derive(Debug)]
pub struct Authority {
    /// Its certificate, PEM.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What is in a certificate.
#[derive(Debug, Clone)]
pub struct Leaf {
    common_name: String,
    names: Vec<SanType>,
    years: (i32, i32),
    algorithm: Algorithm,
}

impl Leaf {
    /// A server's: [`HOST`], `localhost` and 127.0.0.1 as alternative names.
    ///
    /// # Errors
    /// None that a test could see.
    pub fn server() -> Result<Self> {
        let names = vec![
            SanType::DnsName(HOST.try_into()?),
            SanType::DnsName("localhost".try_into()?),
            SanType::IpAddress("127.0.0.1".parse()?),
        ];
        Ok(Self {
            names,
            ..Self::named("server")
        })
    }

    /// One with a common name and no alternative names.
    #[must_use]
    pub fn named(common_name: &str) -> Self {
        Self {
            common_name: common_name.to_owned(),
            names: Vec::new(),
            years: (2000, 2200),
            algorithm: Algorithm::Ecdsa256,
        }
    }

    /// Valid from the first to the second year.
    #[must_use]
    pub fn years(mut self, from: i32, to: i32) -> Self {
        self.years = (from, to);
        self
    }

    /// Another algorithm for its key.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }
}

impl Authority {
    /// An authority whose signatures are of this kind.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str, algorithm: Algorithm) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = algorithm.key(include_str!("../fixtures/rsa_authority.pem"))?;
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { pem, issuer })
    }

    /// Signs a certificate for a new key.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn sign(&self, leaf: &Leaf) -> Result<Signed> {
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, leaf.common_name.as_str());
        params.subject_alt_names.clone_from(&leaf.names);
        params.not_before = date_time_ymd(leaf.years.0, 1, 1);
        params.not_after = date_time_ymd(leaf.years.1, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = leaf
            .algorithm
            .key(include_str!("../fixtures/rsa_server.pem"))?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Signed {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

/// Writes a file that nobody else may read, and gives back its path.
///
/// # Errors
/// When it cannot be written.
pub fn private_file(folder: &std::path::Path, name: &str, text: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(path.display().to_string())
}
