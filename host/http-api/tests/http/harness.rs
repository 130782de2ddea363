//! A running server, and a client that sends exactly the bytes it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use cellwright_http_api::{Limits, Server, ServerOptions, TlsFiles};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake::Fake;

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) host: Arc<Fake>,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<bool>>,
    _folder: TempDir,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with(Limits::default(), None)
    }

    pub(crate) fn with(limits: Limits, tls: Option<TlsFiles>) -> Self {
        Self::on_threads(2, limits, tls)
    }

    /// On so many threads.
    pub(crate) fn on_threads(threads: usize, limits: Limits, tls: Option<TlsFiles>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Arc::new(Fake::new(folder.path()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        // Nobody comes to the second one.
        let options = ServerOptions { addresses: vec!["127.0.0.1:0".parse().unwrap(); 2], tls, limits };
        let server = runtime.block_on(Server::bind(options, host.clone())).unwrap();
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(server.serve(async { drop(stopped.await) }));
        Self { address, host, runtime, stop: Some(stop), served: Some(served), _folder: folder }
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has; gives whether everything was finished.
    pub(crate) fn stopped(&mut self) -> bool {
        self.runtime.block_on(self.served.take().unwrap()).unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(&request(method, path, headers, body)).unwrap();
        Answer::read(&mut stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[], body.as_bytes())
    }

    /// Bytes as they are; the answer is all that comes until the server closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        Answer::read(&mut stream)
    }
}

/// A request whose connection is closed by its answer.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    [head.as_bytes(), b"\r\n", body].concat()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads until the server closes.
    pub(crate) fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        assert!(read.is_ok() || !bytes.is_empty(), "no answer: {read:?}");
        Self::parse(&bytes)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap();
        let headers: Vec<_> = lines.map(header).collect();
        let mut answer = Self { status, headers, body: bytes[end + 4..].to_vec() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = dechunked(&answer.body);
        }
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the sentence of a refusal.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let sentence = self.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(sentence.contains(words), "{sentence}");
        assert!(sentence.contains("(request `") || sentence.contains(", request `"), "{sentence}");
    }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
    whole
}
