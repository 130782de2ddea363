//! The built server with real models behind it, over real sockets: bad input, clients that leave, full disks, signals. Each case sees the
//! status and the sentence, and that others are served meanwhile.
//!
//! What the HTTP layer does by itself is tested in `http`, in this process.

mod bad_requests;
mod balanced;
mod crashing;
mod deadlines;
mod http2;
mod idle;
mod leaving;
mod limited;
mod logs;
mod recording;
mod slow;
mod stopping;
mod switching;
mod traces;
mod uploads;
