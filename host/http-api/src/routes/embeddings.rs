//! `/v1/embeddings` in OpenAI's form, for models whose `model.toml` says that they answer it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use cellwright_gate::Ask;
use cellwright_protocol::{EmbeddingsRequest, RequestOptions};
use cellwright_serving::Delivery;
use http::HeaderValue;
use http::header::CONTENT_TYPE;

use super::infer::{input_of, write};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::held;
use crate::refusal::Refusal;

pub(super) async fn embeddings(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    // The model's name is in the body, which is held for its tenant until then.
    let mut share = app.gate.share(&caller.tenant);
    let bytes = body::collect(&app, &mut share, request).await?;
    let read = app.gate.read(&caller.tenant, (&bytes, bytes.len()), |bytes| Ok::<_, Refusal>(EmbeddingsRequest::from_json(bytes)?)).await;
    let asked = read?;
    let mut permit = app.gate.admit(&caller, Ask { model: &asked.model, version: None, bytes: 0 })?;
    let names = permit.deployed().served().embeddings().cloned().ok_or_else(|| {
        let model = permit.deployed().name();
        Refusal::bad_input(format!("model `{model}` gives no embeddings: its model.toml has no table [embeddings]"))
    })?;
    let (infer, form) = asked.into_infer(&names)?;
    body::keep_as(permit.share(), &bytes, &infer)?;
    drop((bytes, share));
    let call = input_of(infer, &RequestOptions::default(), Delivery::Whole);
    let (response, held) = permit.call(&app.gate, call).await?.end().await;
    let body = write((&app, &caller.tenant), response?, move |response| Ok(Body::from(held::bytes(held, form.write(&response, &names)?))));
    let mut response = Response::new(body.await?);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
