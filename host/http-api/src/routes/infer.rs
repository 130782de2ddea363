//! `infer`: the path that everything else exists for.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use cellwright_cell_graph::Description;
use cellwright_gate::{Call, Input, LARGE, Permit};
use cellwright_protocol::{InferRequest, InferResponse, JSON_LENGTH_HEADER, RequestOptions, Wanted};
use cellwright_registry::TenantName;
use cellwright_serving::{AnswerShare, Delivery};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Target;
use crate::app::App;
use crate::auth::Caller;
use crate::body::{self, only};
use crate::held;
use crate::refusal::Refusal;

const JSON_LENGTH: HeaderName = HeaderName::from_static(JSON_LENGTH_HEADER);

pub(super) async fn infer(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    let mut permit = app.gate.admit(&caller, target.ask(&request))?;
    let json_length = json_length(request.headers())?;
    let bytes = body::collect(&app, permit.share(), request).await?;
    let (model, json_bytes) = (permit.deployed().clone(), json_length.unwrap_or(bytes.len()));
    let read = app.gate.read(&caller.tenant, (&bytes, json_bytes), move |bytes| parse(model.description(), bytes, json_length)).await;
    let (request, options) = read?;
    let id = request.id.clone();
    answer(&app, permit, bytes, (request, options)).await.map_err(|refusal| refusal.of_request(id.as_deref()))
}

async fn answer(
    app: &App,
    mut permit: Permit,
    bytes: Bytes,
    (request, options): (InferRequest, RequestOptions),
) -> Result<Response, Refusal> {
    body::keep_as(permit.share(), &bytes, &request)?;
    drop(bytes);
    let model = permit.deployed().clone();
    let (response, share) = permit.call(&app.gate, input_of(request, &options, Delivery::Whole)).await?.end().await;
    let wanted = options.wanted;
    write((app, model.tenant()), response?, move |response| respond(response, &wanted, share)).await
}

/// What a call's options mean to whoever runs it.
pub(super) fn input_of(request: InferRequest, options: &RequestOptions, delivery: Delivery) -> Input {
    let priority = u32::try_from(options.priority).unwrap_or(u32::MAX);
    Input::One(Call { delivery, timeout: options.timeout, priority, ..Call::new(request) })
}

/// Writes an answer to a tenant where that disturbs nobody: a large one on a thread of its own.
pub(super) async fn write<T: Send + 'static>(
    (app, tenant): (&App, &TenantName),
    response: InferResponse,
    written: impl FnOnce(InferResponse) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let bytes: usize = response.outputs.iter().map(|output| output.data.len()).sum();
    if bytes <= LARGE {
        return written(response);
    }
    app.gate.convert(tenant, move || written(response)).await
}

fn parse(description: &Description, bytes: &[u8], json_length: Option<usize>) -> Result<(InferRequest, RequestOptions), Refusal> {
    let mut request = match json_length {
        Some(0) => InferRequest::from_raw(&description.inputs, description.rows_are_requests, bytes)?,
        length => InferRequest::from_body(bytes, length)?,
    };
    refuse_surplus(description, &request).map_err(|refusal| refusal.of_request(request.id.as_deref()))?;
    let options = request.take_options().and_then(|options| options.wanted.check(&description.outputs).map(|()| options));
    let mut options = options.map_err(|fault| Refusal::from(fault).of_request(request.id.as_deref()))?;
    // Who sends one tensor as raw bytes and names no output has no JSON in which to ask for raw bytes back.
    options.wanted.binary |= json_length == Some(0);
    Ok((request, options))
}

/// Refuses more inputs than the model has. There may be a million, which are dropped where they were read.
fn refuse_surplus(description: &Description, request: &InferRequest) -> Result<(), Refusal> {
    if request.inputs.len() <= description.inputs.len() {
        return Ok(());
    }
    let is_known = |name: &str| description.inputs.iter().any(|spec| spec.name == name);
    let Some(unknown) = request.inputs.iter().find(|input| !is_known(&input.name)) else { return Ok(()) };
    let names = description.inputs.iter().map(|spec| format!("`{}`", spec.name)).collect::<Vec<_>>().join(", ");
    Err(Refusal::bad_input(format!("the model has no input `{}`: it takes {names}", unknown.name)))
}

/// How many bytes of a body are JSON, if its sender says so.
fn json_length(headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let Some(text) = only(headers, &JSON_LENGTH)? else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.parse().ok().filter(|_| digits);
    length.map(Some).ok_or_else(|| Refusal::bad_input("the header Inference-Header-Content-Length must be a number of bytes"))
}

fn respond(response: InferResponse, wanted: &Wanted, share: Option<AnswerShare>) -> Result<Response, Refusal> {
    let body = response.into_body(wanted)?;
    let json_length = body.json_length();
    let mut response = Response::new(Body::from(held::bytes(share, body.into_bytes())));
    let headers = response.headers_mut();
    match json_length {
        None => drop(headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"))),
        Some(length) => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(JSON_LENGTH, HeaderValue::from(length));
        }
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_json_is_a_plain_number() {
        let of = |value: &str| json_length(&HeaderMap::from_iter([(JSON_LENGTH, HeaderValue::from_str(value).unwrap())]));
        assert_eq!(of("12").unwrap(), Some(12));
        assert_eq!(json_length(&HeaderMap::new()).unwrap(), None);
        for bad in ["", "-1", "+1", "1.0", " 1 2", "99999999999999999999999"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
