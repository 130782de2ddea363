//! Where traces go: the collector's address, and the requests that carry them there.
//!
//! Everything here runs on the thread that exports, with a runtime of its own: the threads that serve connections do nothing for it, and a
//! collector that does not answer holds up nobody else.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use serde::Deserialize;
use tokio::runtime::Runtime;

const TRACES_PATH: &str = "/v1/traces";

/// The address of a collector that speaks OTLP over HTTP, as its user writes it: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CollectorUrl(String);

impl CollectorUrl {
    /// Where spans are posted.
    pub(crate) fn for_traces(&self) -> String {
        let base = self.0.trim_end_matches('/');
        if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") }
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(format!(
                "`{text}` does not begin with http://; for a collector behind TLS, run another one on this machine that forwards traces"
            ));
        };
        let host = rest.split('/').next().unwrap_or_default();
        // What is written here is shown in logs.
        if host.is_empty() || rest.contains(['@', '?', '#', ' ']) {
            return Err(format!("`{text}` is not the address of a collector; write http://HOST:PORT"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for CollectorUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Why a request to the collector failed last.
#[derive(Clone, Debug, Default)]
pub(super) struct Cause(Arc<Mutex<String>>);

impl Cause {
    fn keep(&self, cause: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = cause;
    }

    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Sends requests from a thread that has no runtime.
#[derive(Debug)]
pub(super) struct Sender {
    client: HyperClient,
    runtime: Runtime,
    cause: Cause,
}

impl Sender {
    pub(super) fn new(timeout: Duration, cause: Cause) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime that sends traces")?;
        Ok(Self { client: HyperClient::with_default_connector(timeout, None), runtime, cause })
    }
}

#[async_trait]
impl HttpClient for Sender {
    /// Blocks its thread, which is the exporter's own.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.runtime.block_on(self.client.send_bytes(request));
        match &result {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.cause.keep(format!("the collector answered with {}", response.status())),
            Err(error) => self.cause.keep(innermost(&**error)),
        }
        result
    }
}

/// What lies at the bottom of an error: layers above it say no more than that there is one.
fn innermost(mut error: &(dyn Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_other_text() {
        for (text, traces) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://collector/otlp", "http://collector/otlp/v1/traces"),
            ("http://collector/v1/traces", "http://collector/v1/traces"),
        ] {
            let url: CollectorUrl = text.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.for_traces().as_str()), (text, traces));
        }
        for bad in ["", "localhost:4318", "https://collector", "http://", "http:///v1", "http://user:secret@collector", "http://a b"] {
            assert!(bad.parse::<CollectorUrl>().is_err(), "{bad}");
        }
    }
}
