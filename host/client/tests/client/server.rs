//! A server that notes what it is asked and answers as the test says.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cellwright_client::Client;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What the server was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Verb and path.
    pub(crate) what: String,
    pub(crate) headers: HeaderMap,
    /// None if it broke off.
    pub(crate) body: Option<Bytes>,
}

pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// A server on a port of its own; it ends with the test's runtime.
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1", None, answer).await
    }

    /// A server at that address, which speaks TLS if it is told how.
    pub(crate) async fn start_at(
        address: &str,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let server = Self { address, connections: Arc::default(), asked: Arc::default() };
        let (mine, answer) = (server.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                mine.connections.fetch_add(1, Ordering::Relaxed);
                let (mine, answer, tls) = (mine.clone(), Arc::clone(&answer), tls.clone());
                let service = service_fn(move |request| {
                    let (mine, answer) = (mine.clone(), Arc::clone(&answer));
                    async move { Ok::<_, Infallible>(answer(&mine.note(request).await)) }
                });
                tokio::spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    // Clients that do not trust this server, or leave, are what some tests are about.
                    match tls {
                        None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                drop(http.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
        server
    }

    async fn note(&self, request: Request<Incoming>) -> Asked {
        let (head, body) = request.into_parts();
        let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
        let asked = Asked { what: format!("{} {}", head.method, head.uri), headers: head.headers, body };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
        asked
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.address), Some("cw_secret".to_owned())).expect("the address is one")
    }

    /// Everything it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    Response::builder().status(status).body(Full::new(body.into()).boxed()).expect("the status is one")
}
