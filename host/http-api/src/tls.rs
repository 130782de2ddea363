//! TLS, when the server is given a certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::{self, ServerConfig};

/// Where a certificate and its key are, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that lead from it to a known authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or has nothing of the kind in it.
    #[error("cannot read a {what} in PEM from {}: {cause}", file.display())]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        file: PathBuf,
        /// Why not.
        cause: rustls_pki_types::pem::Error,
    },
    /// Certificate and key do not fit.
    #[error("the certificate in {} and the key in {} cannot be used: {cause}", certificate.display(), key.display())]
    Unfit {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        cause: rustls::Error,
    },
}

impl TlsFiles {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let unreadable = |what, file: &Path, cause| TlsError::File { what, file: file.to_owned(), cause };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(|cause| unreadable("certificate", &self.certificate, cause))?;
        if chain.is_empty() {
            return Err(unreadable("certificate", &self.certificate, rustls_pki_types::pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|cause| unreadable("private key", &self.key, cause))?;
        let unfit = |cause| TlsError::Unfit { certificate: self.certificate.clone(), key: self.key.clone(), cause };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_details(provider, Arc::new(Clock)).with_safe_default_protocol_versions().map_err(unfit)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unfit)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The system's clock. rustls's own panics before 1970.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}
