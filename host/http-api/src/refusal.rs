//! Every answer that is not a success: errors become statuses and sentences here and nowhere else.
//!
//! The text of an internal error goes to the log, and the client gets the request id under which it
//! is found. Of every other refusal the log has the status alone, because its sentence may quote
//! the client.

use std::borrow::Cow;
use std::fmt::Display;

use axum::response::{IntoResponse, Response};
use cellwright_gate::{ChangeError, Error, LimitReached, limits};
use cellwright_protocol::messages::ErrorBody;
use cellwright_protocol::{BadRequest, BadResponse, EmbeddingsFault, RequestFault};
use cellwright_registry::{RegistryError, TenantName};
use cellwright_serving::{ErrorKind, InferError};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};

use crate::request_id::ExchangeId;

/// Why a request is not answered with what it asked for.
#[derive(Clone, Debug)]
pub struct Refusal(Box<Contents>);

#[derive(Clone, Debug)]
struct Contents {
    status: StatusCode,
    sentence: Cow<'static, str>,
    /// The id in the request's body, which its sender knows it by.
    request: Option<String>,
    /// What only the log may say.
    detail: Option<String>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// Of a sentence, which may quote what a client sent or what a plugin noted, so many bytes are told, of its beginning and of its end each.
const SENTENCE_SHOWN_MAX: usize = 4 << 10;

/// Of a request's own id, so much stands in a message.
const ID_SHOWN_MAX: usize = 128;

/// What clients hear of a plugin that failed. Its own words are for its model's owner.
const PLUGIN_FAILED: &str = "the model's plugin failed; its owner can look up why under the request's id";
/// And what the log says of it.
const PLUGIN_FAILED_LOG: &str = "a model's plugin failed; `cellwright logs MODEL` says why";

const INTERNAL: &str = "the server failed; its log says more under the request's id";

impl Refusal {
    /// An error of that kind, in its own words.
    ///
    /// What an internal error says goes to the log only.
    #[must_use]
    pub fn new(kind: ErrorKind, sentence: impl Display) -> Self {
        let (status, _, retry_after_s) = limits::status(kind);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut refusal = Self::with_status(status, sentence.to_string());
        match kind {
            ErrorKind::Internal => {
                let detail = std::mem::replace(&mut refusal.0.sentence, INTERNAL.into());
                refusal.0.detail = Some(detail.into_owned());
            }
            ErrorKind::Full => refusal.0.detail = Some(refusal.0.sentence.to_string()),
            _ => {}
        }
        match retry_after_s {
            Some(seconds) => refusal.header(RETRY_AFTER, HeaderValue::from(seconds)),
            None => refusal,
        }
    }

    pub(crate) fn with_status(status: StatusCode, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Contents { status, sentence: sentence.into(), request: None, detail: None, header: None }))
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Tells the log: all of a failure of the server itself; of anything else nothing but the status, because the client has the sentence, which may
    /// quote what it sent, and because nobody is to fill the log from outside.
    pub(crate) fn log(&self, exchange: &ExchangeId, path: &str) {
        let (id, status, tenant) = (exchange.as_str(), self.0.status.as_u16(), exchange.caller().tenant);
        let tenant = tenant.as_ref().map(TenantName::as_str);
        match &self.0.detail {
            Some(detail) => tracing::warn!(id, path, tenant, status, "{detail}"),
            None => tracing::debug!(id, path, tenant, status, "refused"),
        }
    }

    pub(crate) fn bad_input(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::BAD_REQUEST, sentence)
    }

    pub(crate) fn not_found(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::NOT_FOUND, sentence)
    }

    /// Something here did not do what it must; the client can do nothing about it.
    pub(crate) fn internal(detail: impl Display) -> Self {
        Self::new(ErrorKind::Internal, detail)
    }

    pub(crate) fn of_request(mut self, id: Option<&str>) -> Self {
        self.0.request = id.map(str::to_owned);
        self
    }

    fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    /// What the client reads: the sentence, and which request and model it is about.
    pub(crate) fn message(&self, exchange: &str, model: Option<&str>) -> String {
        let Contents { sentence, request, .. } = &*self.0;
        let sentence: Cow<'_, str> = if sentence.len() > 2 * SENTENCE_SHOWN_MAX {
            let begin = &sentence[..sentence.floor_char_boundary(SENTENCE_SHOWN_MAX)];
            format!("{begin} … {}", &sentence[sentence.ceil_char_boundary(sentence.len() - SENTENCE_SHOWN_MAX)..]).into()
        } else {
            sentence.as_ref().into()
        };
        let request: Cow<'_, str> = match request {
            Some(id) if id.len() > ID_SHOWN_MAX => id.chars().take(ID_SHOWN_MAX).chain(['…']).collect::<String>().into(),
            Some(id) => id.into(),
            None => exchange.into(),
        };
        match model {
            Some(model) => format!("{sentence} (model `{model}`, request `{request}`)"),
            None => format!("{sentence} (request `{request}`)"),
        }
    }

    /// As it goes over the wire: a sentence, or an object with one where clients of OpenAI's API look for it.
    pub(crate) fn render(&self, exchange: &str, model: Option<&str>, is_object: bool) -> Response {
        let error = self.message(exchange, model);
        let json = if is_object {
            let kind = if self.0.status.is_server_error() { "server_error" } else { "invalid_request_error" };
            serde_json::to_vec(&serde_json::json!({ "error": { "message": error, "type": kind, "param": null, "code": null } }))
        } else {
            serde_json::to_vec(&ErrorBody { error })
        };
        let json = json.unwrap_or_default();
        let mut response = (self.0.status, [(CONTENT_TYPE, "application/json")], json).into_response();
        if let Some((name, value)) = &self.0.header {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match &error {
            Error::Unauthenticated(sentence) => {
                Self::with_status(StatusCode::UNAUTHORIZED, *sentence).header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Error::Forbidden(sentence) => Self::with_status(StatusCode::FORBIDDEN, sentence.clone()),
            // What the system or the database said of it is for the log.
            Error::Registry(cause) if error.kind() == ErrorKind::Full => {
                let mut refusal = Self::new(ErrorKind::Full, cause);
                refusal.0.detail = Some(error.to_string());
                refusal
            }
            Error::Infer(failed) if failed.kind() == ErrorKind::PluginFault => {
                let mut refusal = Self::new(ErrorKind::PluginFault, PLUGIN_FAILED);
                refusal.0.detail = Some(PLUGIN_FAILED_LOG.to_owned());
                refusal
            }
            _ => Self::new(error.kind(), error),
        }
    }
}

impl From<LimitReached> for Refusal {
    fn from(reached: LimitReached) -> Self {
        Error::from(reached).into()
    }
}

impl From<InferError> for Refusal {
    fn from(error: InferError) -> Self {
        Error::from(error).into()
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        Error::from(error).into()
    }
}

impl From<RegistryError> for Refusal {
    fn from(error: RegistryError) -> Self {
        Error::from(error).into()
    }
}

impl From<RequestFault> for Refusal {
    fn from(fault: RequestFault) -> Self {
        let kind = if fault.is_unsupported() { ErrorKind::Unsupported } else { ErrorKind::BadInput };
        Self::new(kind, fault)
    }
}

impl From<EmbeddingsFault> for Refusal {
    fn from(fault: EmbeddingsFault) -> Self {
        Self::new(ErrorKind::BadInput, fault)
    }
}

impl From<BadRequest> for Refusal {
    fn from(bad: BadRequest) -> Self {
        Self::from(bad.fault).of_request(bad.id.as_deref())
    }
}

impl From<BadResponse> for Refusal {
    fn from(bad: BadResponse) -> Self {
        let kind = if bad.is_clients_fault() { ErrorKind::BadInput } else { ErrorKind::Internal };
        Self::new(kind, bad)
    }
}

/// The exchange renders it, because only there everything is known that the message names.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.0.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_status() {
        let statuses = [
            (ErrorKind::BadInput, 400),
            (ErrorKind::Unsupported, 501),
            (ErrorKind::NotFound, 404),
            (ErrorKind::TooLarge, 413),
            (ErrorKind::Conflict, 409),
            (ErrorKind::PluginFault, 502),
            (ErrorKind::Busy, 429),
            (ErrorKind::Cancelled, 499),
            (ErrorKind::Deadline, 504),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::Draining, 503),
            (ErrorKind::Full, 503),
            (ErrorKind::Internal, 500),
        ];
        for (kind, status) in statuses {
            let response = Refusal::new(kind, "words").render("x1", Some("m"), false);
            assert_eq!(response.status(), status, "{kind:?}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), matches!(status, 429 | 503), "{kind:?}");
            let own = matches!(kind, ErrorKind::Internal | ErrorKind::Full);
            assert_eq!(Refusal::new(kind, "words").0.detail.is_some(), own, "{kind:?}");
        }
    }

    #[test]
    fn an_internal_error_tells_the_client_nothing() {
        let refusal = Refusal::internal("the table is gone");
        assert_eq!(refusal.message("x1", None), format!("{INTERNAL} (request `x1`)"));
    }

    #[test]
    fn the_log_hears_of_failures_and_not_of_what_clients_sent() {
        assert!(logged(&Refusal::internal("the table is gone")).contains("the table is gone"));
        let quoting = Refusal::bad_input("element 0 is \"SECRET\", which is no FP32");
        let faulty = Refusal::new(ErrorKind::PluginFault, "plugin `p`: SECRET");
        for (refusal, status) in [(quoting, "400"), (faulty, "502")] {
            let log = logged(&refusal);
            assert!(!log.contains("SECRET") && !log.contains("WARN"), "{log}");
            assert!(log.contains(status) && log.contains("x1") && log.contains("/v2/models/m/infer"), "{log}");
        }
    }

    #[test]
    fn a_plugins_words_reach_neither_its_clients_nor_the_log() {
        let refusal = Refusal::from(InferError::Waits { plugin: "SECRET".to_owned() });
        assert_eq!(refusal.message("x1", Some("m")), format!("{PLUGIN_FAILED} (model `m`, request `x1`)"));
        let log = logged(&refusal);
        assert!(log.lines().count() == 1 && log.contains("WARN") && log.contains("x1") && !log.contains("SECRET"), "{log}");
    }

    fn logged(refusal: &Refusal) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = std::sync::Mutex::new(file.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(log).finish();
        tracing::subscriber::with_default(subscriber, || refusal.log(&"x1".into(), "/v2/models/m/infer"));
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn a_message_prefers_the_id_that_the_sender_chose() {
        let refusal = Refusal::bad_input("no").of_request(Some("mine"));
        assert_eq!(refusal.message("x1", Some("m")), "no (model `m`, request `mine`)");
    }

    #[test]
    fn a_message_quotes_no_more_than_can_be_read() {
        let refusal = Refusal::bad_input(format!("`{}` is unknown", "é".repeat(5_000)));
        let (begin, end) = ("é".repeat(2_047), "é".repeat(2_042));
        assert_eq!(refusal.message("x1", None), format!("`{begin} … {end}` is unknown (request `x1`)"));
    }
}
