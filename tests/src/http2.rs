//! A client that speaks HTTP/2 in clear from its first byte on.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::server::{Answer, Server};

/// The most that an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub struct Http2 {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

/// A request that is on its way, and then its answer's head.
#[derive(Debug)]
pub struct Asked(JoinHandle<hyper::Result<Response<Incoming>>>);

impl Http2 {
    /// Connects to a server.
    ///
    /// # Panics
    /// If it does not speak HTTP/2.
    #[must_use]
    pub fn connect(server: &Server) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(server.address()).await.expect("the server accepts");
            let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("the server speaks HTTP/2");
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    /// Sends a request, and does not wait.
    ///
    /// # Panics
    /// If it cannot be one.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Asked {
        let request = Request::builder().method(method).uri(format!("http://localhost{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::new(body.into())).expect("a request");
        Asked(self.runtime.spawn(self.sender.clone().send_request(request)))
    }

    /// The head of an answer, whose body nobody reads yet.
    ///
    /// # Panics
    /// If there is no answer.
    #[must_use]
    pub fn head(&self, asked: Asked) -> Response<Incoming> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, asked.0).await });
        answer.expect("it is answered in time").expect("a request does not panic").expect("it is answered")
    }

    /// The whole of an answer.
    ///
    /// # Panics
    /// If it breaks off.
    #[must_use]
    pub fn whole(&self, head: Response<Incoming>) -> Answer {
        let (head, body) = head.into_parts();
        let body = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, body.collect()).await });
        let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect(),
            body: body.expect("it ends in time").expect("it is whole").to_bytes().to_vec(),
        }
    }

    /// One request and its answer.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.whole(self.head(self.ask(method, path, headers, body)))
    }
}
