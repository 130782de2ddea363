//! Reading a request's body: never more than allowed, never slower than allowed, and not copied where one piece is all of it.

use std::future::poll_fn;
use std::io::Read;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use cellwright_gate::{LARGE, Limit, LimitReached, RequestShare};
use cellwright_protocol::InferRequest;
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, Sleep};

use crate::app::App;
use crate::auth::Caller;
use crate::limits::Limits;
use crate::refusal::Refusal;

/// Memory set aside on the word of a `Content-Length` alone.
const BELIEVED_MAX: usize = 1 << 20;

/// Holds for a request what its body, which is not needed any more, has become: about as much, or more where its tensors take more.
pub(crate) fn keep_as(share: &mut RequestShare, body: &Bytes, request: &InferRequest) -> Result<(), Refusal> {
    let tensors = request.inputs.iter().map(|input| input.data.len()).sum();
    share.hold(body.len().max(tensors))?;
    Ok(())
}

/// What a body is said to have at least.
pub(crate) fn announced(request: &Request) -> u64 {
    request.body().size_hint().lower()
}

/// The whole body of a message, inflated if it came compressed, with what it holds of the host's memory.
pub(crate) async fn collect_message(app: &App, caller: &Caller, request: Request) -> Result<(Bytes, RequestShare), Refusal> {
    let mut share = app.gate.share(&caller.tenant);
    let bytes = collect_within(app, &mut share, request, Limit::MessageBytes.reached(Limit::MessageBytes.default())).await?;
    Ok((bytes, share))
}

/// The whole body of a request, inflated if it came compressed. `share` holds it.
pub(crate) async fn collect(app: &App, share: &mut RequestShare, request: Request) -> Result<Bytes, Refusal> {
    collect_within(app, share, request, Limit::BodyBytes.reached(app.gate.bounds().body_bytes_max as u64)).await
}

/// The same, of no more bytes than that, as they come and unpacked.
async fn collect_within(app: &App, share: &mut RequestShare, request: Request, bound: LimitReached) -> Result<Bytes, Refusal> {
    let encoding = Encoding::of(request.headers())?;
    if announced(&request) > bound.max {
        return Err(bound.into());
    }
    let body = gather(app, share, &mut request.into_body(), bound).await?;
    match encoding {
        Encoding::Identity => Ok(body),
        encoding => inflate(app, body, (encoding, bound), share).await,
    }
}

async fn gather(app: &App, share: &mut RequestShare, body: &mut Body, bound: LimitReached) -> Result<Bytes, Refusal> {
    let max = usize::try_from(bound.max).unwrap_or(usize::MAX);
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(max);
    let mut pace = Pace::new(&app.limits);
    let Some(first) = pace.next(body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() && first.len() <= max {
        share.hold(first.len())?;
        return Ok(first);
    }
    let mut bytes = Vec::with_capacity(announced.min(BELIEVED_MAX).max(first.len()));
    let mut next = Some(first);
    while let Some(piece) = next {
        if piece.len() > max - bytes.len() {
            return Err(bound.into());
        }
        bytes.extend_from_slice(&piece);
        if share.is_less_than(bytes.len()) {
            // Twice as much each time, so that the budget is asked seldom.
            share.hold(bytes.len().saturating_mul(2).min(max))?;
        }
        next = pace.next(body).await?;
    }
    share.hold(bytes.len())?;
    Ok(bytes.into())
}

/// Watches that a body keeps coming: it may be slow at first, then it must keep up a rate on average. Only waiting for it counts.
pub(crate) struct Pace {
    grace: Duration,
    rate_min: u64,
    received: u64,
    waited: Duration,
    /// Made only when a body makes somebody wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { grace: limits.body_grace, rate_min: limits.body_rate_min.max(1), received: 0, waited: Duration::ZERO, deadline: None }
    }

    /// Asks for that many bytes a second, if that is more.
    pub(crate) fn at_least(mut self, rate: u64) -> Self {
        self.rate_min = self.rate_min.max(rate);
        self
    }

    /// The next piece of a body; none at its end.
    pub(crate) async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, Refusal> {
        loop {
            let mut waits_since = None;
            let frame = poll_fn(|context| {
                if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) {
                    return Poll::Ready(Ok(frame));
                }
                let deadline = match waits_since {
                    Some(_) => self.deadline.as_mut(),
                    None => {
                        let now = *waits_since.insert(Instant::now());
                        let allowed = self.grace + Duration::from_millis(self.received.saturating_mul(1000) / self.rate_min);
                        let until = now + allowed.saturating_sub(self.waited);
                        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                        deadline.as_mut().reset(until);
                        Some(deadline)
                    }
                };
                let Some(deadline) = deadline else { return Poll::Pending };
                deadline.as_mut().poll(context).map(|()| Err(too_slow(self.grace)))
            });
            let frame = frame.await;
            self.waited += waits_since.map_or(Duration::ZERO, |since| since.elapsed());
            let Some(frame) = frame? else { return Ok(None) };
            let frame = frame.map_err(|cause| Refusal::bad_input(format!("the body ended before it was complete: {cause}")))?;
            // Trailers say nothing here.
            if let Ok(piece) = frame.into_data() {
                self.received = self.received.saturating_add(piece.len() as u64);
                return Ok(Some(piece));
            }
        }
    }
}

/// Reads on for a while what will not be used, so that a client that is still sending gets to read why.
pub(crate) async fn discard(body: &mut (impl http_body::Body<Data = Bytes> + Unpin)) {
    let discarding = async {
        let mut left = DISCARDED_MAX;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARDING_MAX, discarding).await;
}

const DISCARDED_MAX: usize = 128 << 20;
const DISCARDING_MAX: Duration = Duration::from_secs(3);

fn too_slow(grace: Duration) -> Refusal {
    let sentence = format!("the body came too slowly: less than the minimum rate after {} seconds", grace.as_secs());
    Refusal::with_status(StatusCode::REQUEST_TIMEOUT, sentence)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let Some(value) = only(headers, &CONTENT_ENCODING)? else { return Ok(Self::Identity) };
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "deflate" => Ok(Self::Deflate),
            other => {
                let sentence = format!("Content-Encoding `{}` is not supported: use gzip or deflate", other.escape_debug());
                Err(Refusal::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence))
            }
        }
    }
}

/// A bundle's archive is read as it comes: no other encoding of it is undone.
pub(crate) fn only_as_it_is(headers: &HeaderMap) -> Result<(), Refusal> {
    if only(headers, &CONTENT_ENCODING)?.is_none_or(|value| value.trim().eq_ignore_ascii_case("identity")) {
        return Ok(());
    }
    let sentence = "an upload must have no Content-Encoding: send the .tar or .tar.zst as it is";
    Err(Refusal::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence))
}

/// A header's value as text; one that is there twice is refused, because two readers would choose differently.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::bad_input(format!("the header {name} is given more than once")));
    }
    value.to_str().map(Some).map_err(|_| Refusal::bad_input(format!("the header {name} is not plain text")))
}

async fn inflate(app: &App, body: Bytes, (encoding, bound): (Encoding, LimitReached), share: &mut RequestShare) -> Result<Bytes, Refusal> {
    let (tenant, taken) = (share.tenant().clone(), share.take());
    let inflated = app.gate.convert(&tenant, move || {
        let mut inflated = Inflated { bytes: Vec::new(), bound, beside: body.len(), share: taken };
        match encoding {
            Encoding::Identity => return Ok((body, inflated.share)),
            Encoding::Gzip => inflated.gunzip(&body)?,
            Encoding::Deflate => inflated.unzlib(&body)?,
        }
        let Inflated { bytes, mut share, .. } = inflated;
        share.hold(bytes.len())?;
        Ok::<_, Refusal>((bytes.into(), share))
    });
    let (bytes, taken) = inflated.await?;
    *share = taken;
    Ok(bytes)
}

/// A member costs some microseconds, however short it is. Tools that write many put 64 KiB into each.
const MEMBERS_MAX: usize = 16_384;

/// What a compressed body has come to so far. How much it will be nobody knows before, so it takes of the budget as it grows.
struct Inflated {
    bytes: Vec<u8>,
    bound: LimitReached,
    /// Bytes of what is inflated, which are held as well until all of it is.
    beside: usize,
    share: RequestShare,
}

impl Inflated {
    /// One member after the other (RFC 1952, section 2.2), until nothing is left.
    fn gunzip(&mut self, mut compressed: &[u8]) -> Result<(), Refusal> {
        const MAGIC: &[u8] = &[0x1f, 0x8b];
        for _ in 0..MEMBERS_MAX {
            let mut member = GzDecoder::new(compressed);
            self.read(&mut member)?;
            compressed = member.into_inner();
            if compressed.is_empty() {
                return Ok(());
            }
            if !compressed.starts_with(MAGIC) {
                return Err(left_behind(compressed));
            }
        }
        Err(Refusal::bad_input(format!("the compressed body has more than {MEMBERS_MAX} members")))
    }

    fn unzlib(&mut self, compressed: &[u8]) -> Result<(), Refusal> {
        let mut stream = ZlibDecoder::new(compressed);
        self.read(&mut stream)?;
        match stream.into_inner() {
            [] => Ok(()),
            rest => Err(left_behind(rest)),
        }
    }

    /// Reads on to the end, where the bytes are within the bound in all.
    fn read(&mut self, mut reader: impl Read) -> Result<(), Refusal> {
        let max = usize::try_from(self.bound.max).unwrap_or(usize::MAX);
        loop {
            // As much again as there is, which is how its memory grows. One byte more than may be shows that there are more.
            let step = self.bytes.len().max(LARGE).min((max - self.bytes.len()).saturating_add(1));
            let holds = self.beside + self.bytes.len() + step;
            if self.share.is_less_than(holds) {
                self.share.hold(holds)?;
            }
            let read = reader.by_ref().take(step as u64).read_to_end(&mut self.bytes);
            let read = read.map_err(|cause| Refusal::bad_input(format!("the compressed body cannot be inflated: {cause}")))?;
            if self.bytes.len() > max {
                return Err(self.bound.into());
            }
            if read < step {
                return Ok(());
            }
        }
    }
}

fn left_behind(rest: &[u8]) -> Refusal {
    Refusal::bad_input(format!("the compressed body is followed by {} bytes that are not compressed data", rest.len()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use cellwright_gate::Budget;
    use cellwright_registry::TenantName;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn budget(bytes: usize) -> Arc<Budget> {
        Budget::new(bytes, Arc::default())
    }

    fn gunzip(compressed: &[u8], max: usize, budget: &Arc<Budget>) -> Result<Vec<u8>, StatusCode> {
        let share = budget.share(&TenantName::parse("a").unwrap());
        let bound = Limit::BodyBytes.reached(max as u64);
        let mut inflated = Inflated { bytes: Vec::new(), bound, beside: compressed.len(), share };
        inflated.gunzip(compressed).map(|()| inflated.bytes).map_err(|refusal| refusal.status())
    }

    #[test]
    fn a_bomb_is_inflated_no_further_than_allowed() {
        let (bomb, room) = (gzip(&vec![0; 1 << 20]), budget(8 << 20));
        assert_eq!(gunzip(&bomb, 1 << 20, &room).unwrap().len(), 1 << 20);
        assert_eq!(gunzip(&bomb, (1 << 20) - 1, &room), Err(StatusCode::PAYLOAD_TOO_LARGE));
        assert_eq!(gunzip(&bomb[..20], 1 << 20, &room), Err(StatusCode::BAD_REQUEST));
        assert_eq!(gunzip(&bomb, 1 << 20, &budget(1 << 20)), Err(StatusCode::SERVICE_UNAVAILABLE), "it and what it was");
    }

    #[test]
    fn what_is_inflated_takes_of_the_budget_what_it_has_come_to() {
        let body: Vec<u8> = (0..300_u32 << 10).map(|place| (place.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
        let room = budget(2 << 20);
        let mut held = room.share(&TenantName::parse("b").unwrap());
        held.hold(1 << 20).unwrap();
        assert_eq!(gunzip(&gzip(&body), 64 << 20, &room), Ok(body), "not what it might have come to");
    }

    #[test]
    fn members_are_bounded() {
        let (empty, one, room) = (gzip(b""), gzip(b"1"), budget(8 << 20));
        let most = [empty.repeat(MEMBERS_MAX - 1), one].concat();
        assert_eq!(gunzip(&most, 1, &room).unwrap(), b"1");
        assert_eq!(gunzip(&[most, empty].concat(), 1, &room), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn encodings_are_told_apart() {
        let of = |value: &'static str| Encoding::of(&HeaderMap::from_iter([(CONTENT_ENCODING, http::HeaderValue::from_static(value))]));
        assert_eq!(of("GZIP").unwrap(), Encoding::Gzip);
        assert_eq!(of("deflate").unwrap(), Encoding::Deflate);
        assert_eq!(of("br").unwrap_err().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let mut twice = HeaderMap::new();
        twice.append(CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        twice.append(CONTENT_ENCODING, http::HeaderValue::from_static("identity"));
        assert_eq!(Encoding::of(&twice).unwrap_err().status(), StatusCode::BAD_REQUEST);
    }
}
