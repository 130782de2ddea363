//! HTTP/2, and TLS.

use std::path::Path;
use std::sync::Arc;

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

fn files() -> TlsFiles {
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
