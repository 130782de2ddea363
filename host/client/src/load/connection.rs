//! One kept HTTP/1.1 connection, in clear or by TLS, with one request on it at a time.
//!
//! It does only what a load generator needs: send bytes, read a status, and pass over a body, whose beginning is kept if the status is no success.
//! That is less than half of what a general client costs for each request (`benches/load.rs` compares them), and on a small machine the server needs the
//! rest.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::trust::Tls;

/// A longer head, or line of a chunked body, is refused.
const BUFFER_BYTES: usize = 64 << 10;
/// Of the body of a refusal, so much is kept.
const KEPT_BYTES: usize = 512;
/// More interim answers (status 1xx) before one answer are refused.
const INTERIM_MAX: usize = 8;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    /// What has arrived and was not looked at.
    begin: usize,
    end: usize,
}

#[derive(Debug)]
enum Stream {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Clear(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.read(buffer).await,
            Self::Tls(stream) => stream.read(buffer).await,
        }
    }
}

/// How a request was answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Whether the connection can be used again.
    pub(crate) keep: bool,
    /// The beginning of the body, if it is no success.
    pub(crate) said: Vec<u8>,
}

/// What a head says.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    keep: bool,
    length: Length,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunked,
    UntilClose,
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Connection {
    pub(crate) async fn open(server: SocketAddr, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let stream = match tls {
            None => Stream::Clear(stream),
            Some(tls) => Stream::Tls(Box::new(tls.connector.connect(tls.name.clone(), stream).await?)),
        };
        Ok(Self { stream, buffer: vec![0; BUFFER_BYTES], begin: 0, end: 0 })
    }

    /// Sends a request and reads its answer to the end. After an error the connection is of no use.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.send(request).await?;
        let mut head = self.head().await?;
        for _ in 0..INTERIM_MAX {
            if head.status >= 200 {
                break;
            }
            head = self.head().await?;
        }
        let keeps = if (200..300).contains(&head.status) { 0 } else { KEPT_BYTES };
        let mut body = Body { said: Vec::new(), room: keeps };
        let keep = match head.length {
            Length::Bytes(bytes) => self.pass(bytes, &mut body).await.map(|()| head.keep)?,
            Length::Chunked => self.pass_chunks(&mut body).await.map(|()| head.keep)?,
            Length::UntilClose => self.pass_all(&mut body).await.map(|()| false)?,
        };
        // More than the answer: whatever that is, the next answer would begin with it.
        Ok(Answer { status: head.status, keep: keep && self.begin == self.end, said: body.said })
    }

    async fn head(&mut self) -> io::Result<Head> {
        let mut searched = 0;
        loop {
            let window = &self.buffer[self.begin..self.end];
            let from = searched.min(window.len());
            if let Some(at) = window[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                let head = parse(&window[..from + at])?;
                self.begin += from + at + 4;
                return Ok(head);
            }
            searched = window.len().saturating_sub(3);
            self.more().await?;
        }
    }

    /// Reads what has arrived, and waits for it if nothing has.
    async fn more(&mut self) -> io::Result<()> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.begin.., 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.end == self.buffer.len() {
            return Err(bad("the answer's head, or a line of it, is too long"));
        }
        let read = self.stream.read(&mut self.buffer[self.end..]).await?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection before it had answered"));
        }
        self.end += read;
        Ok(())
    }

    /// Passes over so many bytes.
    async fn pass(&mut self, mut bytes: u64, body: &mut Body) -> io::Result<()> {
        loop {
            let arrived = self.end - self.begin;
            let taken = usize::try_from(bytes).unwrap_or(usize::MAX).min(arrived);
            body.keep(&self.buffer[self.begin..self.begin + taken]);
            self.begin += taken;
            bytes -= taken as u64;
            if bytes == 0 {
                return Ok(());
            }
            self.more().await?;
        }
    }

    async fn pass_chunks(&mut self, body: &mut Body) -> io::Result<()> {
        loop {
            let size = self.line(|line| {
                let digits = line.split(|byte| matches!(byte, b';' | b' ')).next().unwrap_or_default();
                let text = std::str::from_utf8(digits).map_err(|_| bad("a chunk's size is no number"))?;
                u64::from_str_radix(text, 16).map_err(|_| bad("a chunk's size is no number"))
            });
            let size = size.await?;
            if size == 0 {
                // What may follow are fields, then an empty line.
                while !self.line(|line| Ok(line.is_empty())).await? {}
                return Ok(());
            }
            self.pass(size, body).await?;
            if !self.line(|line| Ok(line.is_empty())).await? {
                return Err(bad("a chunk is longer than it says"));
            }
        }
    }

    async fn pass_all(&mut self, body: &mut Body) -> io::Result<()> {
        loop {
            match self.pass((self.end - self.begin) as u64 + 1, body).await {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Reads the next line, without its end.
    async fn line<T>(&mut self, read: impl Fn(&[u8]) -> io::Result<T>) -> io::Result<T> {
        loop {
            let window = &self.buffer[self.begin..self.end];
            if let Some(end) = window.iter().position(|byte| *byte == b'\n') {
                let line = &window[..end];
                let value = read(line.strip_suffix(b"\r").unwrap_or(line))?;
                self.begin += end + 1;
                return Ok(value);
            }
            self.more().await?;
        }
    }
}

/// What is kept of a body.
struct Body {
    said: Vec<u8>,
    room: usize,
}

impl Body {
    fn keep(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(self.room);
        self.said.extend_from_slice(&bytes[..taken]);
        self.room -= taken;
    }
}

/// Reads a head without the empty line at its end.
fn parse(head: &[u8]) -> io::Result<Head> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let digits = first.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)).ok_or_else(|| bad("the answer is not HTTP/1"))?;
    let status = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or_else(|| bad("the status is no number"))?;
    let mut parsed = Head { status, keep: first.get(7) == Some(&b'1'), length: Length::UntilClose };
    if status < 200 || matches!(status, 204 | 304) {
        parsed.length = Length::Bytes(0);
    }
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Err(bad("a header has no colon")) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") && parsed.length != Length::Chunked {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            parsed.length = Length::Bytes(length.ok_or_else(|| bad("the body's length is no number"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") && value.eq_ignore_ascii_case(b"chunked") {
            parsed.length = Length::Chunked;
        } else if name.eq_ignore_ascii_case(b"connection") {
            parsed.keep = !value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// What a connection makes of answers that arrive in pieces of that size.
    async fn answered(answers: &'static [u8], size: usize) -> Vec<io::Result<Answer>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let sending = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            stream.read_exact(&mut [0; 3]).await.unwrap();
            for piece in answers.chunks(size) {
                // The reader may have had enough.
                if stream.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut connection = Connection::open(server, None).await.unwrap();
        let first = connection.ask(b"ask").await;
        let second = connection.ask(b"").await;
        sending.await.unwrap();
        vec![first, second]
    }

    #[tokio::test]
    async fn answers_are_read_however_they_are_cut() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\nx: y\r\n\r\nhelloHTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nful\r\n2;a=b\r\nl!\r\n0\r\nt: u\r\n\r\n";
        for size in [1, 2, 3, 7, 64, text.len()] {
            let answers = answered(text, size).await;
            let [Ok(first), Ok(second)] = answers.as_slice() else { panic!("{size}: {answers:?}") };
            assert_eq!((first.status, first.said.as_slice()), (200, &b""[..]), "in pieces of {size}");
            assert_eq!((second.status, second.said.as_slice(), second.keep), (503, &b"full!"[..], true), "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_not_used_again() {
        let answers = answered(b"HTTP/1.1 404 No\r\n\r\nuntil the end", 5).await;
        let expected = Answer { status: 404, keep: false, said: b"until the end".to_vec() };
        assert_eq!(answers[0].as_ref().unwrap(), &expected);
        assert!(answers[1].is_err());
        let answers = answered(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 100).await;
        assert_eq!(answers[0].as_ref().unwrap(), &Answer { status: 200, keep: false, said: vec![] });
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_error() {
        let cases: [&'static [u8]; 6] = [
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        ];
        for text in cases {
            let answers = answered(text, 1000).await;
            assert!(answers[0].is_err(), "{}", String::from_utf8_lossy(text));
        }
    }
}
