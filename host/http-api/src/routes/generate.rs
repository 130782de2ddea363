//! `generate` and `generate_stream`: plain JSON in; plain JSON out, at once or as server-sent events while it is computed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use cellwright_cell_graph::Description;
use cellwright_gate::{Permit, RequestShare};
use cellwright_protocol::messages::ErrorBody;
use cellwright_protocol::{InferRequest, InferResponse, RequestOptions};
use cellwright_registry::TenantName;
use cellwright_serving::{Answer, Delivery, Item};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use http_body::Frame;

use super::Target;
use super::infer::{input_of, write};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::held;
use crate::refusal::Refusal;
use crate::request_id::ExchangeId;

/// Asks proxies not to hold events back.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Asked {
    permit: Permit,
    request: InferRequest,
    options: RequestOptions,
}

async fn ask(app: &App, caller: &Caller, target: &Target, request: Request) -> Result<Asked, Refusal> {
    let mut permit = app.gate.admit(caller, target.ask(&request))?;
    let bytes = body::collect(app, permit.share(), request).await?;
    let model = permit.deployed().clone();
    let read = app.gate.read(&caller.tenant, (&bytes, bytes.len()), move |bytes| parse(model.description(), bytes)).await;
    let (request, options) = read?;
    body::keep_as(permit.share(), &bytes, &request).map_err(|refusal| refusal.of_request(request.id.as_deref()))?;
    Ok(Asked { permit, request, options })
}

fn parse(description: &Description, bytes: &[u8]) -> Result<(InferRequest, RequestOptions), Refusal> {
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
    let answered = async {
        let call = input_of(asked.request, &asked.options, Delivery::Whole);
        let (response, share) = asked.permit.call(&app.gate, call).await?.end().await;
        write((&app, &caller.tenant), response?, |response| Ok(Body::from(held::bytes(share, response.to_generated()?)))).await
    };
    let body = answered.await.map_err(|refusal: Refusal| refusal.of_request(id.as_deref()))?;
    let mut response = Response::new(body);
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
    let model = asked.permit.deployed();
    let labels = InferResponse {
        model_name: model.name().to_owned(),
        model_version: Some(model.version_text().to_owned()),
        id: id.clone(),
        ..InferResponse::default()
    };
    let call = input_of(asked.request, &asked.options, Delivery::Parts);
    let began = async {
        let answer = asked.permit.call(&app.gate, call).await?;
        // Until the first event an error is a status.
        let first = match answer.next().await {
            Some(item) => event_of(app.clone(), labels.clone(), item, app.gate.share(&caller.tenant)).await?,
            None => None,
        };
        Ok((answer, first))
    };
    let (answer, first) = began.await.map_err(|refusal: Refusal| refusal.of_request(id.as_deref()))?;
    let events = Events { app, tenant: caller.tenant.clone(), first, answer, making: None, labels, exchange, over: false };
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

type Making = Pin<Box<dyn Future<Output = Result<Option<Bytes>, Refusal>> + Send>>;

/// An answer as server-sent events. The connection drops it when the client goes away, which cancels the request.
struct Events {
    app: Arc<App>,
    tenant: TenantName,
    first: Option<Bytes>,
    answer: Answer,
    /// The next event while it is written.
    making: Option<Making>,
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
        if self.making.is_none() {
            if self.over {
                return Poll::Ready(None);
            }
            let Poll::Ready(item) = self.answer.poll_next(context) else { return Poll::Pending };
            let Some(item) = item else {
                self.over = true;
                return Poll::Ready(None);
            };
            self.over |= matches!(item, Item::End(..));
            self.making = Some(Box::pin(event_of(self.app.clone(), self.labels.clone(), item, self.app.gate.share(&self.tenant))));
        }
        let Some(Poll::Ready(event)) = self.making.as_mut().map(|making| making.as_mut().poll(context)) else { return Poll::Pending };
        self.making = None;
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
        refusal.log(&self.exchange, "a stream that had begun");
        let error = refusal.message(self.exchange.as_str(), Some(&self.labels.model_name));
        event(&serde_json::to_vec(&ErrorBody { error }).unwrap_or_default())
    }
}

/// The event of an item, which `share` holds until it has been sent; none at an end without outputs that were not streamed.
async fn event_of(app: Arc<App>, labels: InferResponse, item: Item, mut share: RequestShare) -> Result<Option<Bytes>, Refusal> {
    let (response, answer) = match item {
        Item::Part(part) => (InferResponse { outputs: vec![part], ..labels }, None),
        Item::End(result, share) => (result?, share),
    };
    if response.outputs.is_empty() {
        return Ok(None);
    }
    let tenant = share.tenant().clone();
    let written = write((&app, &tenant), response, |response| {
        let event = event(&response.to_generated()?);
        share.hold(event.len())?;
        Ok(held::bytes((share, answer), event))
    });
    written.await.map(Some)
}

/// JSON has no line breaks of its own, so it is one line of an event.
fn event(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}
