//! The front door of a host: who is calling, what it may use, and the life of its calls.
//!
//! Transports above only parse and write. `serving` below only runs requests. The gate owns
//! admission, limits and their one table, the models that serve and the changes of them, the queue
//! of each tenant, deadlines, and the figures of all that.

pub mod error;
pub mod figures;
pub mod gate;
pub mod limits;
pub mod platform;

mod bounds;
mod budget;
mod caller;
mod calls;
mod catalog;
mod deadlines;
mod handover;
mod limiter;
mod plugin_log;
mod queue;
mod reading;
mod retired;
mod session;
mod shed;
mod version_figures;

pub use budget::{Budget, RequestShare};
pub use caller::{Caller, Credentials};
pub use calls::{Call, Calls};
pub use catalog::Deployed;
pub use error::{ChangeError, Error, LookupError, PlatformError};
pub use gate::{Ask, Gate, Input, Permit, UploadPermit};
pub use handover::let_others_go_on;
pub use limits::{Bounds, Limit, LimitReached};
pub use platform::{Drained, NewUpload, Platform, PlatformOptions, Readiness};
pub use reading::LARGE;
pub use shed::Shed;
