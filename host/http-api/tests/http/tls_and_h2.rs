//! HTTP/2, and TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellwright_http_api::{Limits, TlsFiles};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::harness::Running;

const INPUT: &str = r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;

fn post(path: &str) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::new(Bytes::from_static(INPUT.as_bytes()))).unwrap()
}

fn generate(path: &str) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::new(Bytes::from_static(br#"{"x":[1]}"#))).unwrap()
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
        let answers: Vec<_> = (0..20).map(|_| sender.clone().send_request(post("/v2/models/echo/infer"))).collect();
        for answer in answers {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("\"data\":[1.0]"));
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
    let server = Running::start();
    server.runtime.block_on(async {
        let mut sender = connect(&server).await;
        let waiting = tokio::spawn(sender.send_request(post("/v2/models/wait/infer")));
        let host = server.host.clone();
        tokio::task::spawn_blocking(move || host.waiting.reaches(1)).await.unwrap();
        waiting.abort();
        let host = server.host.clone();
        tokio::task::spawn_blocking(move || host.cancelled.reaches(1)).await.unwrap();
        assert_eq!(sender.send_request(post("/v2/models/echo/infer")).await.unwrap().status(), 200);
    });
}

#[test]
fn what_the_calls_of_a_connection_hold_counts_until_their_end() {
    let server = Running::with(Limits { bodies_bytes_max: 200_000, ..Limits::default() }, None);
    let padded = |path: &str, length: usize| {
        let input = if path.contains("generate") { r#"{"x":[1]}"# } else { INPUT };
        let body = format!("{input}{}", " ".repeat(length - input.len()));
        Request::post(format!("http://localhost/v2/models/{path}")).body(Full::new(Bytes::from(body))).unwrap()
    };
    server.runtime.block_on(async {
        let mut sender = connect(&server).await;
        for (round, how) in ["infer", "generate", "generate_stream"].into_iter().enumerate() {
            let (path, others) = (format!("wait/{how}"), format!("echo/{how}"));
            let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(sender.send_request(padded(&path, 30_000)))).collect();
            let host = server.host.clone();
            tokio::task::spawn_blocking(move || host.waiting.reaches(3 * (round + 1))).await.unwrap();
            assert_eq!(sender.send_request(padded(&others, 30_000)).await.unwrap().status(), 429);
            server.host.answer_all();
            for answer in waiting {
                assert_eq!(answer.await.unwrap().unwrap().status(), 200);
            }
            assert_eq!(sender.send_request(padded(&others, 90_000)).await.unwrap().status(), 200, "{how}");
        }
    });
}

/// What a request asks for, and the status it gets before its body was read.
const EARLY: [(&str, &str, u16); 6] = [
    ("POST", "/v2/models/none/infer", 404),
    ("POST", "/v2/models/echo/infer", 413),
    ("POST", "/v2/models/.hidden/infer", 400),
    ("POST", "/v2/health/live", 405),
    ("PUT", "/v3", 404),
    ("GET", "/v2/health/live", 200),
];

#[test]
fn an_answer_before_the_body_was_read_keeps_its_status() {
    let server = Running::with(Limits { body_bytes_max: 100_000, ..Limits::default() }, None);
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
    server.runtime.block_on(async {
        let mut sender = connect_without_window(&server).await;
        for path in ["/v2/models/echo/infer", "/v2/models/pause/generate_stream"] {
            let request = if path.contains("stream") { generate(path) } else { post(path) };
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = tokio::time::timeout(Duration::from_secs(10), answer.into_body().collect()).await;
            assert!(body.expect("it is kept for ever").is_err(), "it was sent without a window");
        }
        // The connection goes on.
        assert_eq!(sender.send_request(post("/v2/models/none/infer")).await.unwrap().status(), 404);
    });
    server.host.cancelled.reaches(1);
}

#[test]
fn a_stream_that_is_computed_slowly_is_not_ended() {
    let server = Running::with(Limits { write_timeout: WINDOWLESS, ..Limits::default() }, None);
    let host = server.host.clone();
    let text = server.runtime.block_on(async {
        let answer = connect(&server).await.send_request(generate("/v2/models/pause/generate_stream")).await.unwrap();
        tokio::time::sleep(WINDOWLESS * 4).await;
        host.unblocked.add();
        answer.into_body().collect().await.unwrap().to_bytes()
    });
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("1.0") && text.contains("2.0"), "{text}");
}

#[test]
fn a_long_answer_arrives_whole() {
    let server = Running::start();
    let values: Vec<String> = (0..200_000).map(|value| format!("{value}.0")).collect();
    let input = format!(r#"{{"inputs":[{{"name":"x","shape":[{}],"datatype":"FP32","data":[{}]}}]}}"#, values.len(), values.join(","));
    let request = Request::post("http://localhost/v2/models/echo/infer").body(Full::new(Bytes::from(input))).unwrap();
    let (announced, answer) = server.runtime.block_on(async {
        let answer = connect(&server).await.send_request(request).await.unwrap();
        let announced = answer.headers().get("content-length").cloned();
        (announced, answer.into_body().collect().await.unwrap().to_bytes())
    });
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(&values.join(",")));
    assert_eq!(announced.unwrap().to_str().unwrap(), answer.len().to_string());
}

pub(crate) fn files() -> TlsFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
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
        let answer = sender.send_request(post("/v2/models/echo/infer")).await.unwrap();
        assert_eq!(answer.status(), 200);
    });
}

#[test]
fn a_certificate_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let host = Arc::new(crate::fake::Fake::new(folder.path()));
    let missing = TlsFiles { certificate: folder.path().join("none.pem"), key: files().key };
    let swapped = TlsFiles { certificate: files().key, key: files().key };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (tls, words) in [(missing, "none.pem"), (swapped, "certificate in PEM")] {
        let options =
            cellwright_http_api::ServerOptions { addresses: vec!["127.0.0.1:0".parse().unwrap()], tls: Some(tls), ..Default::default() };
        let error = runtime.block_on(cellwright_http_api::Server::bind(options, host.clone())).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
