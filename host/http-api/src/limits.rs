//! Bounds of connections, whoever has them.

use std::time::Duration;

use cellwright_gate::Limit;

/// Bounds of connections. They hold for every client, whatever its key.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections that may be open at once; more wait to be accepted.
    pub connections_max: usize,
    /// Of those, how many of one address; more are closed at once. `usize::MAX`: no bound.
    pub address_connections_max: usize,
    /// How long a connection may stay open without asking for anything.
    pub idle_timeout: Duration,
    /// How long the head of an HTTP/1 request may take from its first byte to its last. In HTTP/2 `idle_timeout` bounds it.
    pub header_timeout: Duration,
    /// How long a body may stand still, and how long it has before `body_rate_min` counts.
    pub body_grace: Duration,
    /// Bytes a second that a body must bring on average.
    pub body_rate_min: u64,
    /// How long a client may leave an answer unread.
    pub write_timeout: Duration,
    /// Streams that one HTTP/2 connection may have open at once.
    pub streams_max: u32,
    /// How long a server that was told to stop goes on serving while it says that it is not ready.
    pub drain_delay: Duration,
    /// How long a stopping server then waits for what it has begun.
    pub drain: Duration,
}

impl Limits {
    /// Allows only so many connections. An address may still have no more than half of them, unless it has no bound.
    pub(crate) fn lower_connections(&mut self, possible: usize) {
        self.connections_max = possible;
        if self.address_connections_max != usize::MAX {
            self.address_connections_max = self.address_connections_max.min(possible.div_ceil(2));
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: usize::try_from(Limit::Connections.default()).unwrap_or(usize::MAX),
            address_connections_max: usize::MAX,
            idle_timeout: Duration::from_secs(75),
            header_timeout: Duration::from_secs(75),
            body_grace: Duration::from_secs(10),
            body_rate_min: 8 << 10,
            write_timeout: Duration::from_secs(60),
            streams_max: 256,
            drain_delay: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_fewer_connections_are_possible_an_address_has_at_most_half_of_them() {
        for (of_address, kept) in [(8192, 1792), (1000, 1000), (usize::MAX, usize::MAX)] {
            let mut limits = Limits { address_connections_max: of_address, ..Limits::default() };
            limits.lower_connections(3584);
            assert_eq!((limits.connections_max, limits.address_connections_max), (3584, kept));
        }
    }
}
