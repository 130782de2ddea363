//! The built server with real models behind it, over real sockets: bad input, clients that leave, full disks, signals. Each case sees the
//! status and the sentence, and that others are served meanwhile.
//!
//! What the HTTP layer does by itself is tested beside it, in `host/http-api`.

mod bad_requests;
mod crashing;
mod deadlines;
mod http2;
mod idle;
mod leaving;
mod logs;
mod recording;
mod slow;
mod stopping;
mod switching;
mod traces;
mod uploads;
