//! Calls with one answer.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_client::{Client, ClientError, Form, ModelRef};
use cellwright_protocol::messages::admin::{NewKey, NewTenant, Scope, TenantSettings};
use cellwright_protocol::{InferRequest, InferResponse, JSON_LENGTH_HEADER};

use crate::server::{Answer, Asked, Server, answer};

/// Answers a request with its own inputs.
fn echo(asked: &Asked) -> Answer {
    let length = asked.headers.get(JSON_LENGTH_HEADER).map(|value| value.to_str().unwrap().parse().unwrap());
    let mut request = InferRequest::from_body(asked.body.as_ref().unwrap(), length).unwrap();
    let wanted = request.take_options().unwrap().wanted;
    let response = InferResponse { model_name: "m".into(), id: request.id, outputs: request.inputs, ..InferResponse::default() };
    let body = response.into_body(&wanted).unwrap();
    let length = body.json_length();
    let mut answer = answer(200, body.into_bytes());
    answer.headers_mut().extend(length.map(|length| (hyper::header::HeaderName::from_static(JSON_LENGTH_HEADER), length.into())));
    answer
}

#[tokio::test]
async fn tensors_go_and_come_back_in_both_forms() {
    let server = Server::start(echo).await;
    let client = server.client();
    let half = Tensor { name: "h".into(), datatype: Datatype::Fp16, shape: vec![2], data: vec![0, 60, 1, 60] };
    let floats = Tensor::from_f32("x", &[1, 3], &[0.1, f32::MAX, -0.0]);
    let texts = Tensor::from_texts("t", &[2], &["", "é"]);
    let request = |inputs: &[&Tensor]| InferRequest {
        id: Some("r".into()),
        inputs: inputs.iter().copied().cloned().collect(),
        ..InferRequest::default()
    };
    let answer = client.infer("m", request(&[&floats, &texts]), Form::Json).await.unwrap();
    assert_eq!((answer.id.as_deref(), answer.outputs), (Some("r"), vec![floats.clone(), texts.clone()]));
    let model = ModelRef { name: "m", version: Some(3) };
    let answer = client.infer(model, request(&[&half, &floats, &texts]), Form::Binary).await.unwrap();
    assert_eq!(answer.outputs, [half.clone(), floats, texts]);

    let asked = server.asked();
    assert_eq!(
        asked.iter().map(|asked| asked.what.as_str()).collect::<Vec<_>>(),
        ["POST /v2/models/m/infer", "POST /v2/models/m/versions/3/infer"]
    );
    assert_eq!(asked[0].headers["authorization"], "Bearer cw_secret");
    assert_eq!(
        (&asked[0].headers["content-type"], &asked[1].headers["content-type"]),
        (&"application/json".parse().unwrap(), &"application/octet-stream".parse().unwrap())
    );
    assert!(matches!(client.infer("m", request(&[&half]), Form::Json).await, Err(ClientError::Request(_))));
    assert_eq!(server.connections.load(Ordering::Relaxed), 1, "one connection is enough for calls one after another");
}

#[tokio::test]
async fn a_refusal_has_the_servers_sentence() {
    let server = Server::start(|asked| match asked.what.as_str() {
        "POST /v2/models/busy/generate" => {
            let mut answer = answer(429, r#"{"error":"model `busy` has its bound of 4 requests in flight"}"#);
            answer.headers_mut().insert("retry-after", "2".parse().unwrap());
            answer
        }
        _ => answer(502, "<html>no JSON</html>"),
    })
    .await;
    let refused = server.client().generate("busy", &serde_json::Map::new()).await.unwrap_err();
    assert_eq!(refused.to_string(), "model `busy` has its bound of 4 requests in flight (status 429)");
    assert!(matches!(refused, ClientError::Status { retry_after_s: Some(2), .. }), "{refused:?}");
    let refused = server.client().generate("other", &serde_json::Map::new()).await.unwrap_err();
    assert_eq!((refused.to_string().as_str(), refused.status()), ("bad gateway (status 502)", Some(502)));
}

#[tokio::test]
async fn an_answer_that_is_no_message_is_said() {
    let server = Server::start(|_| answer(200, "{}")).await;
    let message = server.client().model_metadata("m").await.unwrap_err().to_string();
    assert!(message.contains("the server's answer cannot be read: missing field `name`"), "{message}");
    let request = InferRequest { inputs: vec![Tensor::from_i64("x", &[1], &[1])], ..InferRequest::default() };
    let message = server.client().infer("m", request, Form::Json).await.unwrap_err().to_string();
    assert!(message.contains("missing field `outputs`"), "{message}");
}

#[tokio::test]
async fn health_is_a_status() {
    let server = Server::start(|asked| match asked.what.as_str() {
        "GET /v2/health/live" => answer(200, Bytes::new()),
        "GET /v2/health/ready" => answer(503, r#"{"error":"starting"}"#),
        "GET /v2/models/a%2Fb/ready" => answer(404, Bytes::new()),
        _ => answer(401, r#"{"error":"no key"}"#),
    })
    .await;
    let client = server.client();
    assert!(client.is_live().await.unwrap());
    assert!(!client.is_ready().await.unwrap());
    assert!(!client.is_model_ready("a/b").await.unwrap());
    assert_eq!(client.is_model_ready("secret").await.unwrap_err().status(), Some(401));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let message = Client::new(&address, None).unwrap().is_live().await.unwrap_err().to_string();
    assert!(message.starts_with(&format!("no server listens at {address}: ")), "{message}");
    assert!(matches!(Client::new(&address, Some("a\nb".into())), Err(ClientError::Key)));
    assert!(!format!("{:?}", Client::new(&address, Some("cw_hidden".into())).unwrap()).contains("hidden"));
}

#[tokio::test]
async fn every_call_has_its_verb_and_path() {
    let server = Server::start(|asked| match asked.what.as_str() {
        "POST /v1/models/m/versions/2/activate" => answer(200, r#"{"model":"m","active":2,"previous":1}"#),
        "POST /v1/models/m/rollback" => answer(200, r#"{"model":"m","active":1,"new_field":0}"#),
        "GET /v1/models" => answer(200, r#"{"models":[]}"#),
        "GET /v1/tenants" => answer(200, r#"{"tenants":[]}"#),
        "GET /v1/keys?tenant=t" => answer(200, r#"{"keys":[]}"#),
        "POST /v1/keys" => answer(200, r#"{"key":{"id":"k","tenant":"t","scopes":["infer"],"label":"","created_ms":1},"secret":"cw_k_x"}"#),
        "PUT /v1/tenants/t" | "POST /v1/tenants" => answer(200, r#"{"name":"t","settings":{"weight":2},"created_ms":1}"#),
        "POST /v2/repository/index" => answer(200, r#"[{"name":"m","version":"1","state":"READY","reason":""}]"#),
        "GET /v2/models/stats" => answer(200, r#"{"model_stats":[]}"#),
        what if what.starts_with("DELETE") || what.starts_with("POST /v2/repository/models/m/") => answer(204, Bytes::new()),
        what => answer(404, format!(r#"{{"error":"{what}"}}"#)),
    })
    .await;
    let client = server.client();
    assert_eq!(client.activate("m", 2).await.unwrap().previous, Some(1));
    assert_eq!(client.roll_back("m").await.unwrap().active, 1);
    assert!(client.models().await.unwrap().is_empty() && client.tenants().await.unwrap().is_empty());
    assert!(client.keys(Some("t")).await.unwrap().is_empty());
    let new = NewKey { tenant: Some("t".into()), scopes: vec![Scope::Infer], label: String::new() };
    assert_eq!(client.create_key(&new).await.unwrap().secret, "cw_k_x");
    let settings = TenantSettings { weight: Some(2), ..TenantSettings::default() };
    assert_eq!(client.set_tenant("t", &settings).await.unwrap().settings, settings);
    client.create_tenant(&NewTenant { name: "t".into(), settings }).await.unwrap();
    assert_eq!(client.repository_index(true).await.unwrap()[0].name, "m");
    client.load("m").await.unwrap();
    client.unload("m").await.unwrap();
    client.delete_version("m", 1).await.unwrap();
    client.delete_model("m").await.unwrap();
    client.delete_tenant("t").await.unwrap();
    client.revoke_key("k").await.unwrap();
    assert!(client.statistics(None).await.unwrap().model_stats.is_empty());
    assert_eq!(client.model_config("m").await.unwrap_err().to_string(), "GET /v2/models/m/config (status 404)");
    for name in ["", ".", ".."] {
        assert!(matches!(client.delete_model(name).await, Err(ClientError::Name(_))));
    }
}
