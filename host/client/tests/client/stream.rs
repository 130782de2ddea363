//! Answers that come as events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cellwright_client::{ClientError, Generated};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use crate::server::{Server, answer};

/// A body that comes piece by piece, as the test sends them.
struct Pieces(mpsc::Receiver<&'static str>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))))
    }
}

/// A server that streams what is sent to it here.
async fn streaming() -> (Server, mpsc::Sender<&'static str>) {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let server = Server::start(move |asked| match receiver.lock().unwrap().take() {
        Some(pieces) if asked.what.ends_with("/generate_stream") => Response::new(Pieces(pieces).boxed()),
        _ => answer(400, r#"{"error":"input `text` is missing"}"#),
    })
    .await;
    (server, sender)
}

fn text(event: Option<Result<Generated, ClientError>>) -> Option<String> {
    event.map(|event| event.unwrap()["text"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn events_arrive_while_the_answer_goes_on() {
    let (server, pieces) = streaming().await;
    let mut events = server.client().generate_stream("m", &Generated::new()).await.unwrap();
    pieces.send("data: {\"text\":\"a\"}\n\ndata: {\"te").await.unwrap();
    assert_eq!(text(events.next().await).as_deref(), Some("a"));
    pieces.send("xt\":\"b\"}\n\n").await.unwrap();
    assert_eq!(text(events.next().await).as_deref(), Some("b"));
    drop(pieces);
    assert_eq!(text(events.next().await), None);
    let refused = server.client().generate_stream("m", &Generated::new()).await.unwrap_err();
    assert_eq!(refused.to_string(), "input `text` is missing (status 400)");
}

#[tokio::test]
async fn an_error_event_is_the_end() {
    let (server, pieces) = streaming().await;
    let mut events = server.client().generate_stream("m", &Generated::new()).await.unwrap();
    pieces.send("data: {\"error\":\"the plugin trapped\"}\n\ndata: {}\n\n").await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap_err().to_string(), "the plugin trapped");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn dropping_the_stream_tells_the_server() {
    let (server, pieces) = streaming().await;
    let events = server.client().generate_stream("m", &Generated::new()).await.unwrap();
    drop(events);
    let told = tokio::time::timeout(Duration::from_secs(10), pieces.closed()).await;
    assert!(told.is_ok(), "the server went on with a stream that nobody reads");
}
