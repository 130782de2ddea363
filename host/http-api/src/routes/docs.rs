//! The description of this API, for programs and for people.

use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};

use crate::openapi;

pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document_text()).into_response()
}

pub(super) async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy)], openapi::page()).into_response()
}
