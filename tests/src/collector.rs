//! A collector of traces: takes what a server posts as OTLP over HTTP, and keeps it for a test to look at.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// The most that one request may have.
const BODY_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
struct Taken {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    resource: Vec<KeyValue>,
}

/// A collector on a free port of this machine; it lasts as long as the process.
#[derive(Clone, Debug)]
pub struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
}

impl Collector {
    /// Starts it.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let collector = Self { address: listener.local_addr().expect("it listens"), taken: Arc::default() };
        let taking = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let collector = taking.clone();
                // A client that breaks off leaves what it has sent.
                std::thread::spawn(move || collector.serve(&stream));
            }
        });
        collector
    }

    /// Its address, as a server is told it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every span that has come.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.taken().spans.clone()
    }

    /// What the sender of the last spans says it is.
    #[must_use]
    pub fn resource(&self) -> Vec<KeyValue> {
        self.taken().resource.clone()
    }

    /// Whether these bytes came in any request.
    #[must_use]
    pub fn has_seen(&self, bytes: &[u8]) -> bool {
        self.taken().bytes.windows(bytes.len()).any(|window| window == bytes)
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        while let Some((first, length)) = head(&mut reader)? {
            let mut body = vec![0; length.min(BODY_BYTES_MAX)];
            reader.read_exact(&mut body)?;
            let is_taken = first == "POST /v1/traces HTTP/1.1" && self.take(&body);
            let status = if is_taken { "200 OK" } else { "400 Bad Request" };
            write!(writer, "HTTP/1.1 {status}\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    }

    fn take(&self, body: &[u8]) -> bool {
        let Ok(request) = ExportTraceServiceRequest::decode(body) else { return false };
        let mut taken = self.taken();
        taken.bytes.extend_from_slice(body);
        for of_resource in request.resource_spans {
            taken.resource = of_resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            taken.spans.extend(of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans));
        }
        true
    }
}

/// A request's first line and the length of its body; none if the connection closes.
fn head(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<(String, usize)>> {
    let (mut first, mut length) = (String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    Ok(Some((first.trim_end().to_owned(), length)))
}

/// An attribute as text, whatever its type.
#[must_use]
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = &attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value;
    Some(match value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}
