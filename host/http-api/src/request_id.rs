//! The name under which one exchange is found again: in its answer, in errors and in the log; and whose it is, for the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_registry::{KeyId, TenantName};
use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// What a client may call an exchange; longer names are replaced.
const LENGTH_MAX: usize = 128;

/// The client's `x-request-id`, or one made here.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeId {
    text: Arc<str>,
    caller: Arc<Mutex<LoggedCaller>>,
}

/// What the log says of a caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoggedCaller {
    /// The tenant that the exchange is about. An operator's may be about anybody's.
    pub(crate) tenant: Option<TenantName>,
    /// The key that was used.
    pub(crate) key: Option<KeyId>,
}

impl ExchangeId {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn text(&self) -> Arc<str> {
        self.text.clone()
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.text).ok()
    }

    /// The caller, as far as it is known.
    pub(crate) fn caller(&self) -> LoggedCaller {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_caller(&self, caller: LoggedCaller) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = caller;
    }
}

impl From<&str> for ExchangeId {
    fn from(text: &str) -> Self {
        Self { text: text.into(), caller: Arc::default() }
    }
}

/// Makes ids that no other run of the server makes.
#[derive(Debug)]
pub(crate) struct IdSource {
    run: u64,
    next: AtomicU64,
}

impl IdSource {
    pub(crate) fn new() -> Self {
        let mut run = [0; 8];
        // Without randomness ids repeat from run to run, which only makes logs harder to read.
        let run = getrandom::fill(&mut run).map_or(0, |()| u64::from_le_bytes(run));
        Self { run, next: AtomicU64::new(0) }
    }

    /// The client's own id if it can be echoed and logged as it is, else a new one.
    pub(crate) fn id_of(&self, headers: &HeaderMap) -> ExchangeId {
        let own = headers.get(HEADER).map(HeaderValue::as_bytes).and_then(|bytes| std::str::from_utf8(bytes).ok());
        match own.filter(|id| !id.is_empty() && id.len() <= LENGTH_MAX && id.bytes().all(|byte| byte.is_ascii_graphic())) {
            Some(own) => own.into(),
            None => self.make(),
        }
    }

    pub(crate) fn make(&self) -> ExchangeId {
        let number = self.run.wrapping_add(self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(ODD));
        let mut digits = [0; 16];
        for (position, digit) in digits.iter_mut().enumerate() {
            let nibble = (number >> (60 - 4 * position)) & 0xf;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        std::str::from_utf8(&digits).unwrap_or_default().into()
    }
}

/// Spreads consecutive numbers over all digits; odd, so that none repeats.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_a_clients_own_is_kept() {
        let source = IdSource::new();
        let mut headers = HeaderMap::new();
        let (first, second) = (source.id_of(&headers), source.id_of(&headers));
        assert_ne!(first.as_str(), second.as_str());
        assert_eq!(first.as_str().len(), 16);
        headers.insert(HEADER, HeaderValue::from_static("abc-1"));
        assert_eq!(source.id_of(&headers).as_str(), "abc-1");
        for bad in ["", "a b", "\u{e9}", &"x".repeat(129)] {
            headers.insert(HEADER, HeaderValue::from_bytes(bad.as_bytes()).unwrap());
            assert_ne!(source.id_of(&headers).as_str(), bad);
        }
    }
}
