//! What a client may use of the server before anything is known of it.

use std::time::Duration;

/// Bounds of connections and bodies. All of them hold for every client, whatever its key.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections that may be open at once; more wait to be accepted.
    pub connections_max: usize,
    /// Bytes of a request's body, as it arrives and once it is inflated. Uploads have a bound of their own.
    pub body_bytes_max: usize,
    /// Bytes of requests that may be held at once: of bodies that come, and of calls from then until they have ended; of those of one
    /// tenant half of what others leave.
    pub bodies_bytes_max: usize,
    /// Bytes of an uploaded archive.
    pub upload_bytes_max: u64,
    /// Uploads that may be received and checked at once.
    pub uploads_max: usize,
    /// The same of one tenant; its others wait.
    pub tenant_uploads_max: usize,
    /// Calls of one tenant that plugins which take their time may begin at once; its others wait.
    pub slow_begins_max: usize,
    /// How long a connection may take to say what it wants, and how long it may stay open without asking for anything.
    pub idle_timeout: Duration,
    /// How long a body may stand still, and how long it has before `body_rate_min` counts.
    pub body_grace: Duration,
    /// Bytes a second that a body must bring on average.
    pub body_rate_min: u64,
    /// How long a client may leave an answer unread.
    pub write_timeout: Duration,
    /// Streams that one HTTP/2 connection may have open at once.
    pub streams_max: u32,
    /// Bytes of a streamed answer that may wait to be read; a client that lets more pile up is cut off.
    pub stream_bytes_max: usize,
    /// How long a stopping server waits for what it has begun.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            body_bytes_max: 64 << 20,
            bodies_bytes_max: 1 << 30,
            upload_bytes_max: 16 << 30,
            uploads_max: 8,
            tenant_uploads_max: 2,
            slow_begins_max: std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
            idle_timeout: Duration::from_secs(75),
            body_grace: Duration::from_secs(10),
            body_rate_min: 8 << 10,
            write_timeout: Duration::from_secs(60),
            streams_max: 256,
            stream_bytes_max: 16 << 20,
            drain: Duration::from_secs(30),
        }
    }
}
