//! `generate` and `generate_stream`: plain JSON in; plain JSON out, at once or as server-sent events while it is computed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use cellwright_cell_graph::Tensor;
use cellwright_protocol::messages::ErrorBody;
use cellwright_protocol::{InferRequest, InferResponse, RequestOptions};
use cellwright_registry::Scope;
use cellwright_serving::Delivery;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use http_body::Frame;

use super::Target;
use super::infer::{call_of, write};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::budget::Share;
use crate::call::{self, Parts, Piece};
use crate::host::Endpoint;
use crate::refusal::Refusal;
use crate::request_id::ExchangeId;

/// Asks proxies not to hold events back.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Asked {
    model: Arc<dyn Endpoint>,
    request: InferRequest,
    options: RequestOptions,
    /// What the request holds of the server's memory.
    share: Share,
}

async fn ask(app: &App, caller: &Caller, target: &Target, request: Request) -> Result<Asked, Refusal> {
    caller.require(Scope::Infer)?;
    let model = caller.find(app, target)?;
    let body = body::collect(app, &caller.tenant, request).await?;
    let reading = model.clone();
    let (request, options) =
        app.readers.read(&caller.tenant, (&body.bytes, body.bytes.len()), move |bytes| parse(&*reading, bytes)).await?;
    let share = body.kept_as(&request).map_err(|refusal| refusal.of_request(request.id.as_deref()))?;
    Ok(Asked { model, request, options, share })
}

fn parse(model: &dyn Endpoint, bytes: &[u8]) -> Result<(InferRequest, RequestOptions), Refusal> {
    let description = model.description();
    let mut request = InferRequest::from_generate(&description.inputs, bytes)?;
    let options = request.take_options().and_then(|mut options| {
        // Events and plain answers are text.
        options.wanted.binary = false;
        options.wanted.check(&description.outputs).map(|()| options)
    });
    let options = options.map_err(|fault| Refusal::from(fault).of_request(request.id.as_deref()))?;
    Ok((request, options))
}

pub(super) async fn whole(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    let asked = ask(&app, &caller, &target, request).await?;
    let id = asked.request.id.clone();
    let answer = call::whole(&app, asked.model, call_of(asked.request, &asked.options, Delivery::Whole), asked.share).await;
    let body = match answer {
        Ok((response, held)) => write(response, |response| Ok(held.body(response.to_generated()?))).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = Response::new(body.map_err(|refusal| refusal.of_request(id.as_deref()))?);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    axum::Extension(exchange): axum::Extension<ExchangeId>,
    caller: Caller,
    target: Target,
    request: Request,
) -> Result<Response, Refusal> {
    let asked = ask(&app, &caller, &target, request).await?;
    let id = asked.request.id.clone();
    let labels = InferResponse {
        model_name: asked.model.name().to_owned(),
        model_version: Some(asked.model.version().to_string()),
        id: id.clone(),
        ..InferResponse::default()
    };
    let of_request = |refusal: Refusal| refusal.of_request(id.as_deref());
    let call = call_of(asked.request, &asked.options, Delivery::Parts);
    let parts = Parts::begin(&app, asked.model, call, asked.share).await.map_err(of_request)?;
    // Until the first event an error is a status.
    let first = match parts.next().await {
        Some(Piece::Part(part)) => Some(event_of_part(&labels, part).map_err(of_request)?),
        Some(Piece::End(result)) => event_of_end(result.map_err(of_request)?).map_err(of_request)?,
        None => None,
    };
    let events = Events { first, parts, labels, exchange, over: false };
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// An answer as server-sent events. The connection drops it when the client goes away, which cancels the request.
struct Events {
    first: Option<Bytes>,
    parts: Parts,
    labels: InferResponse,
    exchange: ExchangeId,
    over: bool,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.over {
            return Poll::Ready(None);
        }
        let Poll::Ready(piece) = self.parts.poll_next(context) else { return Poll::Pending };
        let event = match piece {
            Some(Piece::Part(part)) => event_of_part(&self.labels, part).map(Some),
            Some(Piece::End(result)) => {
                self.over = true;
                result.and_then(event_of_end)
            }
            None => Ok(None),
        };
        let event = event.unwrap_or_else(|refusal| {
            self.over = true;
            Some(self.event_of_refusal(refusal))
        });
        self.over |= event.is_none();
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }
}

impl Events {
    fn event_of_refusal(&self, refusal: Refusal) -> Bytes {
        let refusal = refusal.of_request(self.labels.id.as_deref());
        refusal.log(self.exchange.as_str(), "a stream that had begun");
        let error = refusal.message(self.exchange.as_str(), Some(&self.labels.model_name));
        event(&serde_json::to_vec(&ErrorBody { error }).unwrap_or_default())
    }
}

fn event_of_part(labels: &InferResponse, part: Tensor) -> Result<Bytes, Refusal> {
    let response = InferResponse { outputs: vec![part], ..labels.clone() };
    Ok(event(&response.to_generated()?))
}

/// The outputs that were not streamed, if there are any.
fn event_of_end(response: InferResponse) -> Result<Option<Bytes>, Refusal> {
    if response.outputs.is_empty() { Ok(None) } else { Ok(Some(event(&response.to_generated()?))) }
}

/// JSON has no line breaks of its own, so it is one line of an event.
fn event(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}
