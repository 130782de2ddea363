//! What the command lines of `cellwright` and `cellwright-lab` share.
//!
//! It owns the options that name workers, policies and caches, the host that these options start,
//! tables and progress for people, logs, and the way a program reports an error. It holds no logic
//! of serving and no verb.

#![expect(unsafe_code, reason = "the environment and a signal are changed before there are threads")]

pub mod completed;
pub mod host;
pub mod logs;
pub mod options;
pub mod policy;
pub mod process;
pub mod progress;
pub mod requests;
pub mod table;
pub mod worker;
