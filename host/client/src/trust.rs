//! TLS: who says that a server is the one it claims to be, and in a sentence what is wrong where nobody does.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

use crate::address::{Address, FORM};
use crate::error::ClientError;

/// The system's clock. rustls's own panics before 1970.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// Whose word is taken for it that a server is the one it claims to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The authorities that this system trusts.
    #[default]
    System,
    /// The authorities whose certificates are in a file (PEM), and no others.
    File(PathBuf),
}

impl Trust {
    /// How to speak TLS to a server. If it is spoken to in clear nobody is trusted, and nothing is read.
    pub(crate) fn config(&self, address: &Address) -> Result<ClientConfig, ClientError> {
        let roots = if address.is_tls() { self.roots(address)? } else { RootCertStore::empty() };
        let builder = ClientConfig::builder_with_details(Arc::new(rustls::crypto::ring::default_provider()), Arc::new(Clock));
        let builder = builder.with_safe_default_protocol_versions().map_err(|cause| self.refuse(address, &cause.to_string()))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }

    fn roots(&self, address: &Address) -> Result<RootCertStore, ClientError> {
        let mut roots = RootCertStore::empty();
        match self {
            Self::System => {
                let found = rustls_native_certs::load_native_certs();
                // A certificate that cannot be read is nobody's that anything could be traced to.
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let why =
                        found.errors.first().map_or_else(|| "it has none; name a file with certificates".to_owned(), ToString::to_string);
                    return Err(self.refuse(address, &why));
                }
            }
            Self::File(file) => {
                let read = |cause: rustls_pki_types::pem::Error| self.refuse(address, &cause.to_string());
                for certificate in CertificateDer::pem_file_iter(file).map_err(read)? {
                    roots.add(certificate.map_err(read)?).map_err(|cause| self.refuse(address, &cause.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(self.refuse(address, "the file holds no certificate in PEM"));
                }
            }
        }
        Ok(roots)
    }

    fn refuse(&self, address: &Address, what: &str) -> ClientError {
        let from = match self {
            Self::System => "this system".to_owned(),
            Self::File(file) => file.display().to_string(),
        };
        ClientError::Authorities { address: address.to_string(), from, what: what.to_owned() }
    }
}

/// What a connection of the load generator needs to speak TLS.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

impl Tls {
    /// None if the server is spoken to in clear.
    pub(crate) fn of(address: &Address, trust: &Trust) -> Result<Option<Self>, ClientError> {
        if !address.is_tls() {
            return Ok(None);
        }
        let refuse = |_| ClientError::Address { address: address.to_string(), what: FORM };
        let name = ServerName::try_from(address.bare_host().to_owned()).map_err(refuse)?;
        Ok(Some(Self { connector: TlsConnector::from(Arc::new(trust.config(address)?)), name }))
    }
}

/// What was wrong with TLS, if that is what an error comes of.
pub(crate) fn fault(error: &(dyn Error + 'static)) -> Option<String> {
    /// Longer chains are cut.
    const DEPTH_MAX: usize = 16;
    let mut next = Some(error);
    for _ in 0..DEPTH_MAX {
        let error = next?;
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(sentence(error));
        }
        // What an I/O error was made of is its content, not its source.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(content) => Some(content),
            None => error.source(),
        };
    }
    None
}

fn sentence(error: &rustls::Error) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext, UnknownIssuer,
        UnsupportedSignatureAlgorithmForPublicKeyContext,
    };
    match error {
        rustls::Error::InvalidCertificate(what) => match what {
            // An authority of that name is trusted, and did not sign this.
            UnknownIssuer | BadSignature | UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                "its certificate was not issued by a trusted authority".to_owned()
            }
            NotValidForName | NotValidForNameContext { .. } => "its certificate is for another name".to_owned(),
            Expired | ExpiredContext { .. } => "its certificate has expired".to_owned(),
            NotValidYet | NotValidYetContext { .. } => "its certificate is not valid yet".to_owned(),
            // What `openssl req -x509` makes if nobody says otherwise. The error has no name of its own.
            other if other.to_string().contains("CaUsedAsEndEntity") => {
                "its certificate is that of an authority; make it with `-addext basicConstraints=critical,CA:FALSE`".to_owned()
            }
            other => format!("its certificate is not valid: {other}"),
        },
        rustls::Error::InvalidMessage(_) => "it does not answer in TLS; perhaps its address begins with http://".to_owned(),
        other => format!("TLS failed: {other}"),
    }
}
