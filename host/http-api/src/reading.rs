//! Large messages are read on threads of their own, and no more at a time than memory is meant for.
//!
//! While JSON is read it takes several times its bytes: two of them may be an element. Those of clients' bodies are counted elsewhere
//! ([`crate::budget`]); this is what is beside them, for a moment. Messages wait for one another, the middling only for their like.

use std::sync::Arc;

use bytes::Bytes;
use cellwright_serving::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::LARGE;
use crate::refusal::Refusal;

/// What reading takes, in bytes of the message: for an element nine bytes and room to grow.
const BYTES_EACH: usize = 8;
/// Middling messages have no more bytes.
const MIDDLING: usize = 1 << 20;
/// Middling messages that are read at once.
const MIDDLING_MAX: usize = 32;
/// What reading larger ones may take; one is read whatever it takes.
const MIB_MAX: usize = 512;

/// Who reads.
#[derive(Debug)]
pub(crate) struct Readers {
    middling: Arc<Semaphore>,
    mib: Arc<Semaphore>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { middling: Arc::new(Semaphore::new(MIDDLING_MAX)), mib: Arc::new(Semaphore::new(MIB_MAX)) }
    }
}

impl Readers {
    /// Reads a message of which so many bytes are JSON, where that disturbs nobody.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        bytes: &Bytes,
        json_bytes: usize,
        parse: impl FnOnce(&[u8]) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes.len() <= LARGE {
            return parse(bytes);
        }
        let turn = self.turn(json_bytes).await?;
        let bytes = bytes.clone();
        let read = move || {
            let read = parse(&bytes);
            // Also of one whose client has left meanwhile it ends here, not before.
            drop(turn);
            read
        };
        tokio::task::spawn_blocking(read).await.map_err(Refusal::internal)?
    }

    async fn turn(&self, json_bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let turn = if json_bytes <= LARGE {
            return Ok(None);
        } else if json_bytes <= MIDDLING {
            self.middling.clone().acquire_owned().await
        } else {
            let mib = json_bytes.saturating_mul(BYTES_EACH).div_ceil(1 << 20).min(MIB_MAX);
            self.mib.clone().acquire_many_owned(u32::try_from(mib).unwrap_or(u32::MAX)).await
        };
        turn.map(Some).map_err(|_| Refusal::new(ErrorKind::Unavailable, "the server stops"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_wait_for_the_memory_that_reading_them_takes() {
        let readers = Readers::default();
        let first = readers.turn(40 << 20).await.unwrap();
        let second = readers.turn(24 << 20).await.unwrap();
        for waits in [2 << 20, 64 << 20] {
            let turn = tokio::time::timeout(std::time::Duration::from_millis(20), readers.turn(waits)).await;
            assert!(turn.is_err(), "{waits} bytes more are read");
        }
        let small = readers.turn(LARGE).await.unwrap();
        let mut middling = Vec::new();
        for _ in 0..MIDDLING_MAX {
            middling.push(readers.turn(MIDDLING).await.unwrap());
        }
        assert!(small.is_none() && middling.iter().all(Option::is_some));
        drop((first, second));
        assert!(readers.turn(1 << 40).await.unwrap().is_some(), "however large, it is read at some time");
    }
}
