//! One server, as seen by one key: sends requests over connections that are kept, and tells answers from refusals.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use cellwright_protocol::messages::ErrorBody;
use cellwright_protocol::messages::metadata::ModelMetadata;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::address::{Address, FORM, segment};
use crate::error::{ClientError, causes};
use crate::trust::{self, Trust};

/// How long reaching a server may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A longer answer is refused.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 30;
/// Of a refusal only so much is read.
const REFUSAL_BYTES_MAX: usize = 1 << 20;
/// Says whose models are meant, where a key is good for several tenants.
const TENANT_HEADER: HeaderName = HeaderName::from_static("cellwright-tenant");

pub(crate) type Sent = BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    address: Address,
    authority: HeaderValue,
    key: Option<HeaderValue>,
    tenant: Option<HeaderValue>,
    pool: Pool<HttpsConnector<HttpConnector>, Sent>,
}

/// Who asks, and who says that the server is the right one.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// The key to show.
    pub key: Option<String>,
    /// The tenant whose models are meant; only an operator's key has a choice.
    pub tenant: Option<String>,
    /// Whose certificates are trusted, if the server is spoken to by TLS.
    pub trust: Trust,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A model, and a version of it if not the active one is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRef<'a> {
    /// Its name.
    pub name: &'a str,
    /// The version; none is the one that serves.
    pub version: Option<u64>,
}

impl<'a> From<&'a str> for ModelRef<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, version: None }
    }
}

impl ModelRef<'_> {
    /// Its path under `/v2/models`.
    pub(crate) fn path(self, rest: &str) -> Result<String, ClientError> {
        let name = name_segment(self.name)?;
        Ok(match self.version {
            Some(version) => format!("/v2/models/{name}/versions/{version}{rest}"),
            None => format!("/v2/models/{name}{rest}"),
        })
    }
}

/// A name as a part of a path; `.` and `..` would be other paths.
pub(crate) fn name_segment(name: &str) -> Result<String, ClientError> {
    if matches!(name, "" | "." | "..") { Err(ClientError::Name(name.to_owned())) } else { Ok(segment(name)) }
}

/// What to send.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Sent,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: whole(Bytes::new()) }
    }

    pub(crate) fn json<T: Serialize>(mut self, message: &T) -> Result<Self, ClientError> {
        let text = serde_json::to_vec(message).map_err(|cause| ClientError::Message(cause.to_string()))?;
        self.headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        self.body = whole(text.into());
        Ok(self)
    }
}

pub(crate) fn whole(bytes: Bytes) -> Sent {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

impl Client {
    /// A client of the server at an address such as `http://127.0.0.1:8000`; nothing is sent yet.
    ///
    /// # Errors
    /// If the address or the key cannot be one, or there is nobody to trust.
    pub fn new(base_url: &str, key: Option<String>) -> Result<Self, ClientError> {
        Self::with_options(base_url, &ClientOptions { key, ..ClientOptions::default() })
    }

    /// As [`Self::new`], with everything that can be chosen.
    ///
    /// # Errors
    /// If the address, the key or the tenant cannot be one, or there is nobody to trust.
    pub fn with_options(base_url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let address = Address::parse(base_url)?;
        let refuse = |_| ClientError::Address { address: base_url.to_owned(), what: FORM };
        let authority = HeaderValue::from_str(&address.authority()).map_err(refuse)?;
        let key = options.key.as_deref().map(authorization).transpose()?;
        let tenant = options.tenant.as_deref().map(|name| HeaderValue::from_str(name).map_err(|_| ClientError::Tenant(name.to_owned())));
        let tenant = tenant.transpose()?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_MAX));
        let tls = HttpsConnectorBuilder::new().with_tls_config(options.trust.config(&address)?);
        // Nothing that is meant for TLS, a key above all, is ever sent without it.
        let either = if address.is_tls() { tls.https_only() } else { tls.https_or_http() };
        let pool = Pool::builder(TokioExecutor::new()).build(either.enable_http1().wrap_connector(connector));
        Ok(Self { address, authority, key, tenant, pool })
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether the server runs.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub async fn is_live(&self) -> Result<bool, ClientError> {
        self.says_yes("/v2/health/live".to_owned()).await
    }

    /// Whether the server takes requests.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub async fn is_ready(&self) -> Result<bool, ClientError> {
        self.says_yes("/v2/health/ready".to_owned()).await
    }

    /// Whether a model takes requests.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn is_model_ready(&self, model: impl Into<ModelRef<'_>>) -> Result<bool, ClientError> {
        self.says_yes(model.into().path("/ready")?).await
    }

    /// What a model says of itself.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn model_metadata(&self, model: impl Into<ModelRef<'_>>) -> Result<ModelMetadata, ClientError> {
        self.get(model.into().path("")?).await
    }

    async fn says_yes(&self, path: String) -> Result<bool, ClientError> {
        let answer = self.send(Call::new(Method::GET, path)).await?;
        match answer.status().as_u16() {
            200..300 => Ok(true),
            // No or a wrong key is not an answer to the question.
            401 | 403 => Err(self.refusal(answer).await),
            _ => Ok(false),
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, ClientError> {
        self.answer(Call::new(Method::GET, path)).await
    }

    /// Sends and reads an answer that is a message.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let answer = self.success(call).await?;
        let bytes = self.read(answer).await?;
        serde_json::from_slice(&bytes).map_err(|cause| ClientError::Answer(cause.to_string()))
    }

    /// Sends, and has no use for the answer but that it is a success.
    pub(crate) async fn done(&self, call: Call) -> Result<(), ClientError> {
        let answer = self.success(call).await?;
        // A body read to its end leaves the connection for the next call.
        self.read(answer).await.map(drop)
    }

    /// Sends; what is no success is an error.
    pub(crate) async fn success(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        let answer = self.send(call).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(self.refusal(answer).await) }
    }

    pub(crate) async fn read(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
        body.collect().await.map(http_body_util::Collected::to_bytes).map_err(|cause| self.broken(cause.as_ref()))
    }

    async fn send(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        let uri = format!("{}://{}{}", self.address.scheme(), self.address.authority(), self.address.path_of(&call.path));
        let mut request = Request::builder().method(call.method).uri(uri).header(hyper::header::HOST, &self.authority);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header(TENANT_HEADER, tenant);
        }
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        let request = request.body(call.body).map_err(|cause| self.broken(&cause))?;
        self.pool.request(request).await.map_err(|cause| self.broken(&cause))
    }

    pub(crate) fn broken(&self, cause: &(dyn std::error::Error + 'static)) -> ClientError {
        let address = self.address.to_string();
        let mut all = std::iter::successors(Some(cause), |cause| cause.source());
        if all.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|fault| fault.kind() == io::ErrorKind::ConnectionRefused)) {
            return ClientError::Nobody { address };
        }
        let mut all = std::iter::successors(Some(cause), |cause| cause.source());
        let no_http = all.any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse));
        let what = match trust::fault(cause) {
            Some(fault) => fault,
            None if no_http && !self.address.is_tls() => "it does not answer in HTTP; perhaps its address begins with https://".to_owned(),
            None => causes(cause),
        };
        match cause.downcast_ref::<hyper_util::client::legacy::Error>() {
            Some(cause) if cause.is_connect() => ClientError::Connection { address, what },
            _ => ClientError::Broken { address, what },
        }
    }

    /// What a refusal says. How a key is sent is this client's business, not its user's.
    async fn refusal(&self, answer: Response<Incoming>) -> ClientError {
        let status = answer.status();
        let retry_after_s = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let told = body.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body.to_bytes()).ok()).map(|body| body.error);
        let sentence = match told {
            _ if status == StatusCode::UNAUTHORIZED && self.key.is_none() => "this server requires a key".to_owned(),
            Some(told) => told,
            None => status.canonical_reason().unwrap_or("the server gave no reason").to_lowercase(),
        };
        ClientError::Status { status: status.as_u16(), sentence, retry_after_s }
    }
}

/// A key as the `Authorization` header has it, marked so that it is not printed.
pub(crate) fn authorization(key: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_message_that_cannot_be_written_was_not_sent() {
        let message = BTreeMap::from([([1, 2], 3)]);
        let error = Call::new(Method::POST, "/").json(&message).map(drop).unwrap_err();
        assert!(!error.is_undecided());
        assert_eq!(error.to_string(), "the message cannot be written as JSON: key must be a string");
    }
}
