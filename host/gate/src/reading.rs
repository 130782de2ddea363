//! Large messages are read on threads of their own, within a bound on the memory that reading
//! takes.
//!
//! While JSON is read it takes several times its bytes, because an element may be two bytes of
//! text. The bytes of bodies are counted by [`crate::budget`]; this bound is for the memory beside
//! them. A tenant reads one large message at a time, so others wait for one of them at most.
//! Messages of medium size wait for their like only. Bytes that are no JSON, compressed bodies and
//! large answers take turns of their own, which bound a tenant's threads.

use std::sync::Arc;

use bytes::Bytes;
use cellwright_registry::TenantName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::limiter::{TenantLimiter, WorkPermit};
use crate::limits::Limit;
use crate::shed::Shed;

/// Reading or writing more than this takes so long that others should not wait meanwhile.
pub const LARGE: usize = 64 << 10;
/// Memory that parsing takes for a byte of JSON: a two-byte element becomes up to nine, vectors
/// double, bare words need a copy.
const BYTES_EACH: usize = 13;
/// Middling messages have no more bytes.
const MIDDLING: usize = 1 << 20;
/// Middling messages that are read at once, and of them a tenant's.
const MIDDLING_MAX: usize = 32;
const MIDDLING_OF_TENANT_MAX: usize = 8;
/// What reading larger ones may take; one is read whatever it takes.
const MIB_MAX: usize = 512;

/// Admits work that takes as long as messages are large to threads that may block.
#[derive(Debug)]
pub(crate) struct Readers {
    middling: ReadQueue,
    large: ReadQueue,
    /// Of all that is no JSON message.
    raw: ReadQueue,
}

#[derive(Debug)]
struct ReadQueue {
    of_tenant: TenantLimiter,
    of_all: Arc<Semaphore>,
}

/// Given back when what was read is there.
#[derive(Debug)]
struct Reading {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: WorkPermit,
}

impl Readers {
    pub(crate) fn new(shed: &Arc<Shed>) -> Self {
        let queue = |of_tenant, of_all| ReadQueue {
            of_tenant: TenantLimiter::new(Limit::TenantReads, of_tenant, shed.clone()),
            of_all: Arc::new(Semaphore::new(of_all)),
        };
        let half = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        // Its memory is counted elsewhere.
        Self { middling: queue(MIDDLING_OF_TENANT_MAX, MIDDLING_MAX), large: queue(1, MIB_MAX), raw: queue(half, 0) }
    }

    /// Reads a tenant's message of which so many bytes are JSON, where that disturbs nobody.
    pub(crate) async fn read<T, E>(
        &self,
        tenant: &TenantName,
        (bytes, json_bytes): (&Bytes, usize),
        parse: impl FnOnce(&[u8]) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        if bytes.len() <= LARGE {
            return parse(bytes);
        }
        let (json_bytes, bytes) = (json_bytes.min(bytes.len()), bytes.clone());
        self.work(tenant, json_bytes, move || parse(&bytes)).await
    }

    /// Does a tenant's work on so many bytes of JSON, in its turn, on a thread that may block.
    pub(crate) async fn work<T, E>(
        &self,
        tenant: &TenantName,
        json_bytes: usize,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let turn = self.turn(tenant, json_bytes).await?;
        let work = move || {
            let done = work();
            // The permit is held until the work ends, even if the client has left.
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(Error::internal)?
    }

    async fn turn(&self, tenant: &TenantName, json_bytes: usize) -> Result<Reading, Error> {
        let (queue, permits) = if json_bytes <= LARGE {
            (&self.raw, 0)
        } else if json_bytes <= MIDDLING {
            (&self.middling, 1)
        } else {
            (&self.large, json_bytes.saturating_mul(BYTES_EACH).div_ceil(1 << 20).min(MIB_MAX))
        };
        let of_tenant = queue.of_tenant.take(tenant).await?;
        let of_all = queue.of_all.clone().acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX)).await;
        Ok(Reading { _of_all: of_all.map_err(Error::internal)?, _of_tenant: of_tenant })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Its turn, if it need not wait.
    fn at_once<T>(turn: impl Future<Output = Result<T, Error>>) -> Option<T> {
        match pin!(turn).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn messages_wait_for_the_memory_that_reading_them_takes_and_for_their_tenants() {
        let readers = Readers::new(&Arc::default());
        let [a, b, c] = ["a", "b", "c"].map(|name| TenantName::parse(name).unwrap());
        let turn = |tenant, bytes| at_once(readers.turn(tenant, bytes));
        let first = turn(&a, 30 << 20);
        assert!(turn(&a, 2 << 20).is_none(), "of a tenant one large message is read at a time");
        assert!(turn(&b, 20 << 20).is_none() && turn(&b, 64 << 20).is_none(), "there is not so much room");
        let second = turn(&b, 9 << 20);
        assert!(first.is_some() && second.is_some() && turn(&c, 2 << 20).is_none());
        let middling: Vec<_> = (0..MIDDLING_OF_TENANT_MAX).map(|_| turn(&a, MIDDLING).unwrap()).collect();
        assert!(turn(&a, MIDDLING).is_none() && turn(&b, MIDDLING).is_some());
        drop((first, second, middling));
        let raw: Vec<_> = std::iter::from_fn(|| turn(&a, 0)).collect();
        let half = std::thread::available_parallelism().unwrap().get().div_ceil(2);
        assert!(raw.len() == half && turn(&b, LARGE).is_some(), "of a tenant few bodies are unpacked at once");
        assert!(turn(&c, 1 << 40).is_some() && turn(&a, MIDDLING).is_some(), "however large, it is read at some time");
    }
}
