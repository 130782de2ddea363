//! Servers that are spoken to by TLS: whom the client believes, and what it says to those it does not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellwright_cell_graph::Tensor;
use cellwright_client::load::{Arrivals, LoadError, Plan, Target, run};
use cellwright_client::{Address, Client, ClientError, ClientOptions, Form, Trust};
use cellwright_protocol::InferRequest;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::server::{Server, answer};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// A server at that address of this machine, with a certificate for `localhost` and 127.0.0.1 that nobody signed but itself.
async fn server(address: &str, certificate: &str, key: &str) -> Server {
    let chain = vec![CertificateDer::from_pem_file(file(certificate)).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file(key)).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
    Server::start_at(address, Some(TlsAcceptor::from(Arc::new(config))), |_| answer(200, "{}")).await
}

async fn honest() -> Server {
    server("127.0.0.1", "certificate.pem", "key.pem").await
}

fn client(url: &str, trusted: &str) -> Result<Client, ClientError> {
    let trust = Trust::File(file(trusted));
    Client::with_options(url, &ClientOptions { key: Some("cw_secret".into()), tenant: Some("acme".into()), trust })
}

/// What the client says of a server that it must not believe, which must not have heard anything.
async fn refused(server: &Server, trusted: &str) -> String {
    let url = format!("https://{}", server.address);
    let sentence = client(&url, trusted).unwrap().is_live().await.unwrap_err().to_string();
    assert!(server.asked().is_empty(), "{:?}", server.asked());
    sentence.strip_prefix(&format!("{url}: ")).unwrap_or_else(|| panic!("`{sentence}` does not begin with the address")).to_owned()
}

#[tokio::test]
async fn a_server_with_a_trusted_certificate_is_asked() {
    let server = honest().await;
    for host in ["127.0.0.1", "localhost"] {
        let client = client(&format!("https://{host}:{}", server.address.port()), "certificate.pem").unwrap();
        assert!(client.is_live().await.unwrap());
    }
    let asked = &server.asked()[1];
    assert_eq!(
        (&asked.headers["authorization"], &asked.headers["cellwright-tenant"]),
        (&"Bearer cw_secret".parse().unwrap(), &"acme".parse().unwrap())
    );
    assert_eq!(asked.headers["host"].to_str().unwrap(), format!("localhost:{}", server.address.port()));
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_hears_nothing() {
    assert_eq!(refused(&honest().await, "expired.pem").await, "its certificate was not issued by a trusted authority");
    let elsewhere = server("127.0.0.2", "certificate.pem", "key.pem").await;
    assert_eq!(refused(&elsewhere, "certificate.pem").await, "its certificate is for another name");
    let late = server("127.0.0.1", "expired.pem", "expired-key.pem").await;
    assert_eq!(refused(&late, "expired.pem").await, "its certificate has expired");
    let authority = server("127.0.0.1", "authority.pem", "authority-key.pem").await;
    let expected = "its certificate is that of an authority; make it with `-addext basicConstraints=critical,CA:FALSE`";
    assert_eq!(refused(&authority, "authority.pem").await, expected);
    let clear = Server::start(|_| answer(200, Bytes::new())).await;
    assert_eq!(refused(&clear, "certificate.pem").await, "it does not answer in TLS; perhaps its address begins with http://");
}

#[test]
fn authorities_that_cannot_be_read_are_named() {
    for (name, what) in [("none.pem", "No such file"), ("key.pem", "the file holds no certificate in PEM")] {
        let sentence = client("https://localhost:1", name).unwrap_err().to_string();
        assert!(sentence.contains(&file(name).display().to_string()) && sentence.contains(what), "{sentence}");
        // Who speaks in clear needs none.
        client("http://localhost:1", name).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_is_offered_by_tls_too() {
    let server = honest().await;
    let address = Address::parse(&format!("https://{}", server.address)).unwrap();
    let request = InferRequest { inputs: vec![Tensor::from_f32("x", &[2], &[1.0, 2.0])], ..InferRequest::default() };
    let target = Target::infer(&address, None, "m", [request], Form::Binary).unwrap();
    let plan = |name| Plan {
        address: address.clone(),
        trust: Trust::File(file(name)),
        targets: vec![target.clone()],
        arrivals: Arrivals::Closed,
        connections: 2,
        threads: 1,
        warm_up: Duration::ZERO,
        measured: Duration::from_millis(200),
        seed: 1,
    };
    let good = plan("certificate.pem");
    let report = tokio::task::spawn_blocking(move || run(&good)).await.unwrap().unwrap();
    assert!(report.total.ok > 0 && report.total.ok == report.total.sent, "{report:?}");
    let asked = server.asked().len();
    let wrong = plan("expired.pem");
    let report = tokio::task::spawn_blocking(move || run(&wrong)).await.unwrap().unwrap();
    assert!(report.total.ok == 0 && report.total.broken > 0 && server.asked().len() == asked, "{report:?}");
    assert!(matches!(run(&plan("none.pem")), Err(LoadError::Trust(_))));
}
