//! Server-sent events: what `generate_stream` answers.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::client::Client;
use crate::error::ClientError;
use crate::infer::Generated;

/// A longer event is refused.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// Answers as they come.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    body: Incoming,
    lines: Lines,
    over: bool,
}

impl EventStream {
    pub(crate) fn new(client: Client, body: Incoming) -> Self {
        Self { client, body, lines: Lines::default(), over: false }
    }

    /// The next answer; none once the model has said everything. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<Generated, ClientError>> {
        if self.over {
            return None;
        }
        let next = self.read().await.transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }

    async fn read(&mut self) -> Result<Option<Generated>, ClientError> {
        loop {
            if let Some(event) = self.lines.event() {
                return message(&event).map(Some);
            }
            if self.lines.len() > EVENT_BYTES_MAX {
                return Err(ClientError::Answer(format!("an event is longer than {EVENT_BYTES_MAX} bytes")));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.lines.add(&bytes);
                    }
                }
                Some(Err(cause)) => return Err(self.client.broken(&cause)),
            }
        }
    }
}

/// What an event's data says; an object with nothing but `error` is the end.
fn message(data: &[u8]) -> Result<Generated, ClientError> {
    let message: Generated = serde_json::from_slice(data).map_err(|cause| ClientError::Answer(cause.to_string()))?;
    match message.get("error").and_then(serde_json::Value::as_str) {
        Some(sentence) if message.len() == 1 => Err(ClientError::Event(sentence.to_owned())),
        _ => Ok(message),
    }
}

/// Bytes that have arrived, taken apart into lines and events.
#[derive(Debug, Default)]
struct Lines {
    /// The next line begins at `at`, and has no end before `seen`.
    bytes: Vec<u8>,
    at: usize,
    seen: usize,
    /// The data of the event that is being read.
    data: Vec<u8>,
    has_data: bool,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.seen = self.seen.saturating_sub(self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        self.bytes.len() + self.data.len()
    }

    /// The data of the next event that is complete.
    fn event(&mut self) -> Option<Vec<u8>> {
        loop {
            let from = self.seen.max(self.at);
            self.seen = self.bytes.len();
            let end = from + self.bytes.get(from..)?.iter().position(|byte| *byte == b'\n')?;
            self.seen = end;
            let line = self.bytes.get(self.at..end)?;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let is_end = line.is_empty();
            if let Some(data) = line.strip_prefix(b"data:") {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
                self.has_data = true;
            }
            // Comments (keep-alives), names and ids of events say nothing here.
            self.at = end + 1;
            if is_end && std::mem::take(&mut self.has_data) {
                return Some(std::mem::take(&mut self.data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_they_are_cut() {
        let text = b": hello\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:{\ndata: \"b\":2}\nid: 4\n\n\ndata: {}";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut events = Vec::new();
            for piece in text.chunks(size) {
                lines.add(piece);
                while let Some(event) = lines.event() {
                    events.push(String::from_utf8(event).unwrap());
                }
            }
            assert_eq!(events, ["{\"a\":1}", "{\n\"b\":2}"], "in pieces of {size}");
        }
    }

    #[test]
    fn a_long_event_is_looked_through_once() {
        const PIECES: usize = 1 << 16;
        let piece = [b'x'; 64];
        let mut lines = Lines::default();
        lines.add(b"data: ");
        for _ in 0..PIECES {
            lines.add(&piece);
            assert!(lines.event().is_none());
            assert_eq!(lines.seen, lines.bytes.len(), "the next search begins where this one ended");
        }
        lines.add(b"\n\n");
        assert_eq!(lines.event().unwrap().len(), PIECES * piece.len());
    }

    #[test]
    fn an_error_ends_the_stream() {
        assert!(matches!(message(br#"{"error":"no"}"#), Err(ClientError::Event(sentence)) if sentence == "no"));
        assert!(message(br#"{"error":"a model's own output","text":"x"}"#).is_ok());
        assert!(message(b"[]").is_err());
    }
}
