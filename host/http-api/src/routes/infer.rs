//! `infer`: the path that everything else exists for.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use cellwright_protocol::{InferRequest, InferResponse, JSON_LENGTH_HEADER, RequestOptions, Wanted};
use cellwright_registry::Scope;
use cellwright_serving::{Call, Delivery};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Target;
use crate::app::App;
use crate::auth::Caller;
use crate::body::{self, LARGE, only};
use crate::budget::Share;
use crate::call::{self, Held};
use crate::host::Endpoint;
use crate::refusal::Refusal;

const JSON_LENGTH: HeaderName = HeaderName::from_static(JSON_LENGTH_HEADER);

pub(super) async fn infer(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Infer)?;
    let model = caller.find(&app, &target)?;
    let json_length = json_length(request.headers())?;
    let body = body::collect(&app, &caller.tenant, request).await?;
    let reading = model.clone();
    let json_bytes = json_length.unwrap_or(body.bytes.len());
    let (request, options) =
        app.readers.read(&caller.tenant, (&body.bytes, json_bytes), move |bytes| parse(&*reading, bytes, json_length)).await?;
    let id = request.id.clone();
    let of_request = |refusal: Refusal| refusal.of_request(id.as_deref());
    let share = body.kept_as(&request).map_err(of_request)?;
    let answer = answer(&app, model, (request, options), share).await;
    answer.map_err(of_request)
}

async fn answer(
    app: &App,
    model: Arc<dyn Endpoint>,
    (request, options): (InferRequest, RequestOptions),
    share: Share,
) -> Result<Response, Refusal> {
    let (response, held) = call::whole(app, model, call_of(request, &options, Delivery::Whole), share).await?;
    let wanted = options.wanted;
    write(response, move |response| respond(response, &wanted, held)).await
}

/// What a call's options mean to whoever runs it.
pub(super) fn call_of(request: InferRequest, options: &RequestOptions, delivery: Delivery) -> Call {
    let priority = u32::try_from(options.priority).unwrap_or(u32::MAX);
    Call { request, delivery, since: Instant::now(), timeout: options.timeout, priority }
}

/// Writes an answer where that disturbs nobody: a large one on a thread of its own.
pub(super) async fn write<T: Send + 'static>(
    response: InferResponse,
    written: impl FnOnce(InferResponse) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let bytes: usize = response.outputs.iter().map(|output| output.data.len()).sum();
    if bytes <= LARGE {
        return written(response);
    }
    tokio::task::spawn_blocking(move || written(response)).await.map_err(Refusal::internal)?
}

fn parse(model: &dyn Endpoint, bytes: &[u8], json_length: Option<usize>) -> Result<(InferRequest, RequestOptions), Refusal> {
    let description = model.description();
    let mut request = match json_length {
        Some(0) => InferRequest::from_raw(&description.inputs, description.rows_are_requests, bytes)?,
        length => InferRequest::from_body(bytes, length)?,
    };
    let options = request.take_options().and_then(|options| options.wanted.check(&description.outputs).map(|()| options));
    let mut options = options.map_err(|fault| Refusal::from(fault).of_request(request.id.as_deref()))?;
    // Who sends one tensor as raw bytes and names no output has no JSON in which to ask for raw bytes back.
    options.wanted.binary |= json_length == Some(0);
    Ok((request, options))
}

/// How many bytes of a body are JSON, if its sender says so.
fn json_length(headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let Some(text) = only(headers, &JSON_LENGTH)? else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.parse().ok().filter(|_| digits);
    length.map(Some).ok_or_else(|| Refusal::bad_input("the header Inference-Header-Content-Length must be a number of bytes"))
}

fn respond(response: InferResponse, wanted: &Wanted, held: Held) -> Result<Response, Refusal> {
    let body = response.into_body(wanted)?;
    let json_length = body.json_length();
    let mut response = Response::new(held.body(body.into_bytes()));
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
