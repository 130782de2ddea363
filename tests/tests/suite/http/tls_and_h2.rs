//! HTTP/2, and TLS.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cellwright_gate::Bounds;
use cellwright_http_api::{Limits, ServerOptions, TlsFiles};
use cellwright_tests::devices::Gate;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::harness::{Running, bind, platform};
use super::models::{GENERATE, INFER, WIDTH, parts, streamed, wide, wide_rows};

fn post(path: &str) -> Request<Full<Bytes>> {
    with(path, INFER)
}

fn with(path: &str, body: impl ToString) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// Waits for something on a thread that may block.
async fn wait(server: &Arc<Running>, until: impl FnOnce(&Running) + Send + 'static) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || until(&server)).await.unwrap();
}

async fn connect(server: &Running) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn http2_without_tls_is_spoken_and_many_requests_share_a_connection() {
    let server = Running::start();
    server.runtime.block_on(async {
        let sender = connect(&server).await;
        let answers: Vec<_> = (0..20).map(|_| sender.clone().send_request(post("/v2/models/sums/infer"))).collect();
        for answer in answers {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("\"data\":[2.0,4.0,6.0,8.0]"));
        }
    });
}

#[test]
fn one_host_beside_the_authority_is_fine_and_two_are_not() {
    let server = Running::start();
    server.runtime.block_on(async {
        let mut sender = connect(&server).await;
        for (hosts, status) in [(1, 200), (2, 400)] {
            let mut live = Request::get("http://localhost/v2/health/live").body(Full::default()).unwrap();
            for _ in 0..hosts {
                live.headers_mut().append(http::header::HOST, "localhost".parse().unwrap());
            }
            assert_eq!(sender.send_request(live).await.unwrap().status(), status);
        }
    });
}

#[test]
fn a_stream_that_is_reset_cancels_its_request_and_no_other() {
    let server = Arc::new(Running::start());
    server.gate.close();
    server.runtime.block_on(async {
        let mut sender = connect(&server).await;
        let stays = tokio::spawn(sender.send_request(post("/v2/models/sums/infer")));
        let leaves = tokio::spawn(sender.send_request(post("/v2/models/sums/infer")));
        wait(&server, |server| server.in_flight(2)).await;
        leaves.abort();
        wait(&server, |server| server.cancelled(1)).await;
        server.gate.open();
        assert_eq!(stays.await.unwrap().unwrap().status(), 200);
    });
}

#[test]
fn what_the_calls_of_a_connection_hold_counts_until_their_end() {
    let server = Arc::new(Running::with(Bounds { bodies_bytes_max: 200_000, ..Bounds::default() }, None));
    let padded = |how: &str, length: usize| {
        let input = if how.contains("generate") { GENERATE } else { INFER };
        with(&format!("/v2/models/sums/{how}"), format!("{input}{}", " ".repeat(length - input.len())))
    };
    server.runtime.block_on(async {
        let mut sender = connect(&server).await;
        for how in ["infer", "generate", "generate_stream"] {
            server.gate.close();
            let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(sender.send_request(padded(how, 30_000)))).collect();
            wait(&server, |server| server.in_flight(3)).await;
            assert_eq!(sender.send_request(padded(how, 30_000)).await.unwrap().status(), 429);
            server.gate.open();
            for answer in waiting {
                assert_eq!(answer.await.unwrap().unwrap().status(), 200);
            }
            assert_eq!(sender.send_request(padded(how, 90_000)).await.unwrap().status(), 200, "{how}");
            wait(&server, |server| server.in_flight(0)).await;
        }
    });
}

/// What a request asks for, and the status it gets before its body was read.
const EARLY: [(&str, &str, u16); 6] = [
    ("POST", "/v2/models/none/infer", 404),
    ("POST", "/v2/models/sums/infer", 413),
    ("POST", "/v2/models/.hidden/infer", 400),
    ("POST", "/v2/health/live", 405),
    ("PUT", "/v3", 404),
    ("GET", "/v2/health/live", 200),
];

#[test]
fn an_answer_before_the_body_was_read_keeps_its_status() {
    let server = Running::with(Bounds { body_bytes_max: 100_000, ..Bounds::default() }, None);
    let body = Bytes::from(vec![b' '; 8 << 20]);
    let over_http2 = |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(format!("http://localhost{path}")).body(Full::new(body.clone())).unwrap();
        let answer = server.runtime.block_on(async {
            let answer = connect(&server).await.send_request(request).await.unwrap();
            (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes())
        });
        assert!(answer.0 == 200 || String::from_utf8_lossy(&answer.1).contains("(request `") || path.contains("models"), "{answer:?}");
        answer.0
    };
    let over_http1 = |method: &str, path: &str| server.send(method, path, &[], &body).status;
    for (method, path, status) in EARLY {
        assert_eq!(over_http1(method, path), status, "{method} {path} over HTTP/1.1");
        assert_eq!(over_http2(method, path), status, "{method} {path} over HTTP/2");
    }
    assert_eq!(server.post("/v1/keys", r#"{"tenant":"operator","scopes":["admin"],"label":"first"}"#).status, 201);
    assert_eq!(over_http1("PUT", "/v1/models/m"), 401);
    assert_eq!(over_http2("PUT", "/v1/models/m"), 401);
}

/// A body that never ends, as a stream of gRPC may.
struct Endless {
    sent: bool,
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.sent, true) { Poll::Pending } else { Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" "))))) }
    }
}

#[test]
fn an_answer_over_http2_does_not_wait_for_a_body_that_nobody_reads() {
    let server = Running::start();
    server.runtime.block_on(async {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for (method, path, status) in EARLY.into_iter().filter(|(.., status)| *status != 413) {
            let request = Request::builder().method(method).uri(format!("http://localhost{path}")).body(Endless { sent: false }).unwrap();
            let answer = tokio::time::timeout(Duration::from_secs(2), async {
                let answer = sender.send_request(request).await.unwrap();
                (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes())
            });
            let (found, body) = answer.await.unwrap_or_else(|_| panic!("{method} {path} waits"));
            assert!(found == status && !body.is_empty(), "{method} {path}: {found} {body:?}");
        }
    });
}

#[test]
fn who_asks_first_whether_to_send_a_body_is_not_waited_for() {
    let server = Running::start();
    let head = "POST /v2/models/none/infer HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    let answer = server.raw(head.as_bytes());
    assert_eq!(answer.status, 404, "{}", answer.text());
}

const WINDOWLESS: Duration = Duration::from_millis(300);

async fn connect_without_window(server: &Running) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn a_stream_whose_answer_is_not_read_is_ended_and_no_other() {
    let server = Running::with(Limits { write_timeout: WINDOWLESS, ..Limits::default() }, None);
    server.has("parts", &parts());
    server.runtime.block_on(async {
        let mut sender = connect_without_window(&server).await;
        let mut is_left_unread = async |request| {
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = tokio::time::timeout(Duration::from_secs(10), answer.into_body().collect()).await;
            assert!(body.expect("it is kept for ever").is_err(), "it was sent without a window");
        };
        is_left_unread(post("/v2/models/sums/infer")).await;
        server.gate.close_after(1);
        is_left_unread(with("/v2/models/parts/generate_stream", streamed(1000))).await;
        // The connection goes on.
        assert_eq!(sender.send_request(post("/v2/models/none/infer")).await.unwrap().status(), 404);
    });
    server.cancelled(1);
}

#[test]
fn a_stream_that_is_computed_slowly_is_not_ended() {
    let server = Running::with(Limits { write_timeout: WINDOWLESS, ..Limits::default() }, None);
    server.has("parts", &parts());
    server.gate.close_after(1);
    let text = server.runtime.block_on(async {
        let answer = connect(&server).await.send_request(with("/v2/models/parts/generate_stream", streamed(1000))).await.unwrap();
        tokio::time::sleep(WINDOWLESS * 4).await;
        server.gate.open();
        answer.into_body().collect().await.unwrap().to_bytes()
    });
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(r#""sums":[[2.0,3.0,4.0,5.0]]"#) && text.contains(r#""sum":["#), "{text}");
}

#[test]
fn a_long_answer_arrives_whole() {
    let server = Running::start();
    server.has("wide", &wide());
    let (announced, answer) = server.runtime.block_on(async {
        let answer = connect(&server).await.send_request(with("/v2/models/wide/infer", wide_rows(3))).await.unwrap();
        let announced = answer.headers().get("content-length").cloned();
        (announced, answer.into_body().collect().await.unwrap().to_bytes())
    });
    let row: Vec<String> = (0..WIDTH).map(|value| format!("{value}.0")).collect();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(&vec![row.join(","); 3].join(",")));
    assert_eq!(announced.unwrap().to_str().unwrap(), answer.len().to_string());
}

pub(super) fn files() -> TlsFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/http/tls");
    TlsFiles { certificate: folder.join("certificate.pem"), key: folder.join("key.pem") }
}

#[test]
fn tls_is_spoken_when_there_is_a_certificate() {
    let server = Running::with(Limits::default(), Some(files()));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files().certificate).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    server.runtime.block_on(async {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(post("/v2/models/sums/infer")).await.unwrap();
        assert_eq!(answer.status(), 200);
    });
}

#[test]
fn a_certificate_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let platform = platform(folder.path(), &Gate::default(), &Gate::default());
    let missing = TlsFiles { certificate: folder.path().join("none.pem"), key: files().key };
    let swapped = TlsFiles { certificate: files().key, key: files().key };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (tls, words) in [(missing, "none.pem"), (swapped, "certificate in PEM")] {
        let options = ServerOptions { addresses: vec!["127.0.0.1:0".parse().unwrap()], tls: Some(tls), ..ServerOptions::default() };
        let error = runtime.block_on(bind(options, &platform)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
