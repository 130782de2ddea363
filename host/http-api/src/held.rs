//! Bytes of an answer that hold, until they have been sent, what the answer holds of the host's
//! memory.

use bytes::Bytes;

struct Owned<T, S> {
    bytes: T,
    _share: S,
}

impl<T: AsRef<[u8]>, S> AsRef<[u8]> for Owned<T, S> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Bytes that hold the share.
pub(crate) fn bytes(share: impl Send + 'static, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
    Bytes::from_owner(Owned { bytes, _share: share })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cellwright_serving::AnswerShare;

    use super::*;

    #[test]
    fn an_answer_holds_its_share_until_it_has_been_sent() {
        let room = Arc::new("room");
        let sent = bytes(Some(AnswerShare::new(room.clone())), vec![0; 9]);
        assert_eq!(Arc::strong_count(&room), 2);
        drop(sent);
        assert_eq!(Arc::strong_count(&room), 1);
    }
}
