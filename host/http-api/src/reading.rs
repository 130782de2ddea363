//! Large messages are read on threads of their own, and no more at a time than memory is meant for.
//!
//! While JSON is read it takes several times its bytes: two of them may be an element. Those of clients' bodies are counted elsewhere
//! ([`crate::budget`]); this is what is beside them, for a moment. Messages wait for one another, the middling only for their like.

use std::sync::Arc;

use bytes::Bytes;
use cellwright_registry::TenantName;
use cellwright_serving::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::LARGE;
use crate::refusal::Refusal;
use crate::turns::{Turn, Turns};

/// What reading takes, in bytes of the message: for an element, of two bytes, nine and room to grow, and what comes of it.
const BYTES_EACH: usize = 12;
/// Middling messages have no more bytes.
const MIDDLING: usize = 1 << 20;
/// Middling messages that are read at once, and of them a tenant's.
const MIDDLING_MAX: usize = 32;
const MIDDLING_OF_TENANT_MAX: usize = 8;
/// What reading larger ones may take; one is read whatever it takes.
const MIB_MAX: usize = 512;
/// Messages of one tenant that may wait. What they hold has a bound of its own.
const WAITING_MAX: usize = 16_384;

/// Who reads. Of each tenant one large message is read at a time, so that others wait for one of them at most.
#[derive(Debug)]
pub(crate) struct Readers {
    middling: Line,
    large: Line,
}

#[derive(Debug)]
struct Line {
    of_tenant: Turns,
    of_all: Arc<Semaphore>,
}

/// Given back when what was read is there.
#[derive(Debug)]
struct Reading {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: Turn,
}

impl Default for Readers {
    fn default() -> Self {
        let line = |of_tenant, of_all| Line { of_tenant: Turns::new(of_tenant, WAITING_MAX), of_all: Arc::new(Semaphore::new(of_all)) };
        Self { middling: line(MIDDLING_OF_TENANT_MAX, MIDDLING_MAX), large: line(1, MIB_MAX) }
    }
}

impl Readers {
    /// Reads a tenant's message of which so many bytes are JSON, where that disturbs nobody.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        tenant: &TenantName,
        (bytes, json_bytes): (&Bytes, usize),
        parse: impl FnOnce(&[u8]) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes.len() <= LARGE {
            return parse(bytes);
        }
        let turn = self.turn(tenant, json_bytes.min(bytes.len())).await?;
        let bytes = bytes.clone();
        let read = move || {
            let read = parse(&bytes);
            // Also of one whose client has left meanwhile it ends here, not before.
            drop(turn);
            read
        };
        tokio::task::spawn_blocking(read).await.map_err(Refusal::internal)?
    }

    async fn turn(&self, tenant: &TenantName, json_bytes: usize) -> Result<Option<Reading>, Refusal> {
        let (line, permits) = if json_bytes <= LARGE {
            return Ok(None);
        } else if json_bytes <= MIDDLING {
            (&self.middling, 1)
        } else {
            (&self.large, json_bytes.saturating_mul(BYTES_EACH).div_ceil(1 << 20).min(MIB_MAX))
        };
        let many = || Refusal::new(ErrorKind::Busy, "too many large requests of this tenant wait to be read: try again later");
        let of_tenant = line.of_tenant.take(tenant).await.ok_or_else(many)?;
        let of_all = line.of_all.clone().acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX)).await;
        Ok(Some(Reading { _of_all: of_all.map_err(Refusal::internal)?, _of_tenant: of_tenant }))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Its turn, if it need not wait.
    fn at_once<T>(turn: impl Future<Output = Result<T, Refusal>>) -> Option<T> {
        match pin!(turn).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn messages_wait_for_the_memory_that_reading_them_takes_and_for_their_tenants() {
        let readers = Readers::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| TenantName::parse(name).unwrap());
        let turn = |tenant, bytes| at_once(readers.turn(tenant, bytes));
        let first = turn(&a, 30 << 20).unwrap();
        assert!(turn(&a, 2 << 20).is_none(), "of a tenant one large message is read at a time");
        assert!(turn(&b, 20 << 20).is_none() && turn(&b, 64 << 20).is_none(), "there is not so much room");
        let second = turn(&b, 12 << 20).unwrap();
        assert!(turn(&c, 2 << 20).is_none() && turn(&c, LARGE).unwrap().is_none());
        let middling: Vec<_> = (0..MIDDLING_OF_TENANT_MAX).map(|_| turn(&a, MIDDLING).unwrap()).collect();
        assert!(turn(&a, MIDDLING).is_none() && turn(&b, MIDDLING).is_some());
        drop((first, second, middling));
        assert!(turn(&c, 1 << 40).is_some() && turn(&a, MIDDLING).is_some(), "however large, it is read at some time");
    }
}
