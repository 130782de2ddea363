//! Every limit on what callers may use, in one table.
//!
//! A refusal names its row. The row gives the status for every transport, the sentence, and whether
//! the caller may try again. Some limits are counted by crates below: their errors map to rows
//! here.

use std::fmt;

use cellwright_engine::{RequestFailure, SubmitError};
use cellwright_protocol::counted;
use cellwright_serving::{ErrorKind, InferError};

/// A row of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table says what each limits")]
pub enum Limit {
    Connections,
    AddressConnections,
    BodyBytes,
    MessageBytes,
    RequestBytes,
    TenantRequestBytes,
    TenantReads,
    UploadBytes,
    TenantUploads,
    TenantChanges,
    TenantLists,
    TenantSlowBegins,
    TenantInFlight,
    ModelInFlight,
    TenantQueued,
    ModelQueued,
    TenantQueuedBytes,
    TenantDeviceShare,
    ModelDeviceShare,
    RequestSeconds,
    PluginInstances,
    PluginCalls,
    Handles,
    WaitingRequests,
    AnswerBytes,
    TenantAnswerBytes,
    PartBytes,
    TenantSessions,
    TenantSessionBytes,
}

/// What a limit bounds together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Scope {
    Server,
    Address,
    Tenant,
    Model,
    Call,
    Upload,
    Request,
}

/// What is said of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which limit.
    pub limit: Limit,
    /// Its name: that of its setting, if it has one.
    pub name: &'static str,
    /// What it bounds together.
    pub scope: Scope,
    /// Its value where nobody sets another.
    pub default: Value,
    /// What is counted.
    pub counts: &'static str,
    /// How a request beyond it ends; none: it waits.
    pub refused: Option<ErrorKind>,
    /// What its sender reads. `{max}` is the bound.
    pub sentence: &'static str,
}

/// A default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value {
    Count(u64),
    Bytes(u64),
    /// So many at once (0: half of the cores), and so many that wait.
    AtOnce(u64, u64),
    /// So many that wait.
    Waiting(u64),
    Seconds(u64),
    Text(&'static str),
}

/// A number with commas between thousands.
fn counted_out(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => f.write_str(&counted_out(count)),
            Self::Bytes(bytes) if bytes % (1 << 30) == 0 => write!(f, "{} GiB", bytes >> 30),
            Self::Bytes(bytes) if bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            Self::Bytes(bytes) => write!(f, "{} KiB", bytes >> 10),
            Self::AtOnce(0, waiting) => write!(f, "half of the cores, rounded up; {} waiting", counted_out(waiting)),
            Self::AtOnce(at_once, waiting) => write!(f, "{at_once}; {} waiting", counted_out(waiting)),
            Self::Seconds(seconds) => write!(f, "{seconds} s"),
            Self::Waiting(waiting) => write!(f, "{} waiting", counted_out(waiting)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

use ErrorKind::{Busy, Deadline, TooLarge, Unavailable};
use Scope::{Address, Call, Model, Request, Server, Tenant, Upload};
use Value::{AtOnce, Bytes, Count, Seconds, Text, Waiting};

const fn row(
    limit: Limit,
    (name, scope, default): (&'static str, Scope, Value),
    counts: &'static str,
    refused: Option<ErrorKind>,
    sentence: &'static str,
) -> Row {
    Row { limit, name, scope, default, counts, refused, sentence }
}

/// All limits, in the order of [`Limit`]. `host/README.md` prints this table.
pub const TABLE: &[Row] = &[
    row(
        Limit::Connections,
        ("--connections-max", Server, Count(16_384)),
        "Open connections. They are also bounded by open files (`ulimit -n` less 512).",
        None,
        "the limit of open connections (`connections-max`) is reached: new ones wait until one closes",
    ),
    row(
        Limit::AddressConnections,
        ("--address-connections-max", Address, Text("half of `--connections-max`")),
        "Open connections of clients with one address, or one IPv6 network (/64): no more than are left, or 1/16 of all. 0: no bound, as behind a proxy.",
        None,
        "an address has as many open connections as it may (`address-connections-max`): more are closed",
    ),
    row(
        Limit::BodyBytes,
        ("--body-bytes-max", Request, Bytes(64 << 20)),
        "Bytes of a body as it comes, and unpacked.",
        Some(TooLarge),
        "the body has more than {max} bytes, the limit of this server",
    ),
    row(
        Limit::MessageBytes,
        ("", Request, Bytes(64 << 10)),
        "The same, of messages that are no inference: the repository's index, keys, tenants, models.",
        Some(TooLarge),
        "the body has more than {max} bytes, the limit of messages to this path",
    ),
    row(
        Limit::RequestBytes,
        ("", Server, Bytes(1 << 30)),
        "Bytes of requests, from their arrival to the end of their calls, and of lists, pages of metrics and events until they are sent. Up to 4 KiB do not count.",
        Some(Unavailable),
        "the server holds as many bytes of requests as it may: try again later",
    ),
    row(
        Limit::TenantRequestBytes,
        ("", Tenant, Text("half of what other tenants leave of that")),
        "The same. A tenant's only request may take all that is left.",
        Some(Busy),
        "the tenant's requests hold as many bytes as they may: try again when some have ended",
    ),
    row(
        Limit::TenantReads,
        ("", Tenant, Waiting(16_384)),
        "Large JSON bodies. One above 1 MiB is read at a time, and eight from 64 KiB to 1 MiB. Half of the cores, rounded up, read other bodies, unpack some or write answers above 64 KiB.",
        Some(Busy),
        "too many large requests of this tenant wait to be read: try again later",
    ),
    row(
        Limit::UploadBytes,
        ("--upload-bytes-max", Upload, Bytes(16 << 30)),
        "Bytes of the archive, and of its files.",
        Some(TooLarge),
        "the body has more than {max} bytes, the limit of this server",
    ),
    row(
        Limit::TenantUploads,
        ("", Tenant, AtOnce(2, 64)),
        "Uploads at once.",
        Some(Busy),
        "too many uploads of this tenant wait for their turn: try again later",
    ),
    row(
        Limit::TenantChanges,
        ("", Tenant, AtOnce(4, 64)),
        "Changes of models and keys at once: activate, roll back, load, unload, create, delete.",
        Some(Busy),
        "too many changes of this tenant wait for their turn: try again later",
    ),
    row(
        Limit::TenantLists,
        ("", Tenant, AtOnce(2, 256)),
        "Lists of models, keys or tenants at once.",
        Some(Busy),
        "too many lists for this tenant wait for their turn: try again later",
    ),
    row(
        Limit::TenantSlowBegins,
        ("", Tenant, AtOnce(0, 16_384)),
        "Calls whose plugin usually unfolds for more than 1 ms, or that bring more than 64 KiB.",
        Some(Busy),
        "too many calls of this tenant wait for slow plugins: try again later",
    ),
    row(
        Limit::TenantInFlight,
        ("tenants set --in-flight-max", Tenant, Count(4096)),
        "Calls that run, and parts of sessions that run.",
        Some(Busy),
        "{max calls} of this tenant {are} in flight, which is its limit: try again later",
    ),
    row(
        Limit::ModelInFlight,
        ("[limits] in_flight_max", Model, Text("`--in-flight-max`")),
        "Calls that run, and parts of sessions that run.",
        Some(Busy),
        "{max calls} of this model {are} in flight, which is its limit: try again later",
    ),
    row(
        Limit::TenantQueued,
        ("tenants set --queued-max", Tenant, Count(4096)),
        "Calls that wait.",
        Some(Busy),
        "{max calls} of this tenant {wait} to begin, which is its limit: try again later",
    ),
    row(
        Limit::ModelQueued,
        ("[limits] queued_max", Model, Text("none: the tenant's holds")),
        "Calls that wait.",
        Some(Busy),
        "{max calls} of this model {wait} to begin, which is its limit: try again later",
    ),
    row(
        Limit::TenantQueuedBytes,
        ("", Tenant, Bytes(256 << 20)),
        "Bytes of inputs of calls that wait.",
        Some(Busy),
        "the calls of this tenant that wait to begin would hold more than {max} bytes of inputs, which is the limit: try again later",
    ),
    row(
        Limit::TenantDeviceShare,
        ("tenants set --device-share", Tenant, Text("none")),
        "Device time and plugins' processor time, as a fraction of all devices' time; 0.1 s may be used ahead.",
        Some(Busy),
        "this tenant has used its share of device time, {max} %: try again later",
    ),
    row(
        Limit::ModelDeviceShare,
        ("[limits] device_share", Model, Text("none")),
        "The same.",
        Some(Busy),
        "this model has used its share of device time, {max} %: try again later",
    ),
    row(
        Limit::RequestSeconds,
        ("--request-seconds-max", Request, Seconds(600)),
        "Time from a request's begin to its last value, and that of each part of a session.",
        Some(Deadline),
        "the request took longer than {max} s, the limit of this server",
    ),
    row(
        Limit::PluginInstances,
        ("--plugin-address-bytes", Server, Count(256)),
        "Instances of plugins; see [below](#address-space). Half of them, with a sixteenth of the memory, may be idle.",
        Some(Busy),
        "plugin `{plugin}` could not be called: all instances are in use",
    ),
    row(
        Limit::PluginCalls,
        ("", Model, Text("2 × `--in-flight-max`")),
        "Plugin calls that wait for one of four plugin threads. A model has two at once, a tenant three.",
        Some(Busy),
        "too many calls of plugin `{plugin}` wait for a thread: try again later",
    ),
    row(
        Limit::Handles,
        ("--in-flight-max", Server, Count(16_384)),
        "Requests in the engine, of all tenants. Each row counts where rows are requests. Half of them are divided by tenants' weights.",
        Some(Busy),
        "as many requests as allowed are in flight: try again later",
    ),
    row(
        Limit::WaitingRequests,
        ("", Request, Count(64)),
        "Growths that wait for device memory.",
        Some(Busy),
        "too many requests wait for memory on the device: try again later",
    ),
    row(
        Limit::AnswerBytes,
        ("[limits] answer_mb", Call, Bytes(512 << 20)),
        "Memory of the answer and of watched outputs.",
        Some(TooLarge),
        "plugin `{plugin}` returned a graph whose outputs would take more than {max} bytes of the host's memory, which is the limit for one answer: send a shorter request",
    ),
    row(
        Limit::TenantAnswerBytes,
        ("", Tenant, Text("a quarter of the memory, less others' parts")),
        "Graphs and answers on their way, until they are sent. Half of that quarter is divided among tenants with loaded models by their weights.",
        Some(Busy),
        "the graphs and answers of this tenant that are in flight would take more than {max} bytes of memory, which is the limit: try again later",
    ),
    row(
        Limit::PartBytes,
        ("", Call, Bytes(16 << 20)),
        "Parts of a streamed answer that wait for the client.",
        Some(TooLarge),
        "more than {max} bytes of this answer's parts wait for the client, which reads them too slowly",
    ),
    row(
        Limit::TenantSessions,
        ("", Tenant, Count(1024)),
        "Open sessions, idle or not.",
        Some(Busy),
        "{max sessions} of this tenant {are} open, which is its limit: close one, or try again later",
    ),
    row(
        Limit::TenantSessionBytes,
        ("", Tenant, Bytes(256 << 20)),
        "Bytes of inputs that the plugins of open sessions keep.",
        Some(Busy),
        "the open sessions of this tenant would hold more than {max} bytes of inputs, which is the limit: close one, or try again later",
    ),
];

impl Limit {
    /// What is said of it.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its default, where that is a number.
    #[must_use]
    pub const fn default(self) -> u64 {
        match self.row().default {
            Value::Count(number) | Value::Bytes(number) | Value::Seconds(number) | Value::AtOnce(number, _) | Value::Waiting(number) => {
                number
            }
            Value::Text(_) => u64::MAX,
        }
    }

    /// How many may wait, where that is bounded.
    pub(crate) const fn waiting_max(self) -> usize {
        match self.row().default {
            Value::AtOnce(_, waiting) | Value::Waiting(waiting) => waiting as usize,
            _ => 0,
        }
    }

    /// A request went beyond it: more than `max`.
    #[must_use]
    pub const fn reached(self, max: u64) -> LimitReached {
        LimitReached { limit: self, max }
    }

    /// The limit that an error of a request is about, if it is about one.
    #[must_use]
    pub const fn of(error: &InferError) -> Option<Self> {
        Some(match error {
            InferError::AnswerTooLarge { .. } => Self::AnswerBytes,
            InferError::AnswersTooLarge { .. } => Self::TenantAnswerBytes,
            InferError::PartsWait { .. } => Self::PartBytes,
            InferError::Plugin(cellwright_serving::CallError::Busy { .. }) => Self::PluginInstances,
            InferError::PluginCalls { .. } => Self::PluginCalls,
            InferError::Submit(SubmitError::Full) => Self::Handles,
            InferError::Engine(RequestFailure::Overloaded) => Self::WaitingRequests,
            InferError::Engine(RequestFailure::Overdue { .. }) => Self::RequestSeconds,
            _ => return None,
        })
    }
}

/// A request went beyond a limit. Nothing of it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// Which limit.
    pub limit: Limit,
    /// Its bound.
    pub max: u64,
}

impl std::error::Error for LimitReached {}

impl LimitReached {
    /// How the request ends.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.limit.row().refused.unwrap_or(Unavailable)
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sentence, one) = (self.limit.row().sentence, self.max == 1);
        let sentence = sentence.replace("{max}", &self.max.to_string());
        let sentence = sentence.replace("{max calls}", &counted(self.max, "call")).replace("{max sessions}", &counted(self.max, "session"));
        f.write_str(&sentence.replace("{are}", if one { "is" } else { "are" }).replace("{wait}", if one { "waits" } else { "wait" }))
    }
}

/// The status of an error over HTTP and over gRPC, and after how many seconds its sender may try
/// again.
///
/// 499 is nginx's number for a client that has left.
#[must_use]
pub const fn status(kind: ErrorKind) -> (u16, &'static str, Option<u32>) {
    match kind {
        ErrorKind::BadInput => (400, "INVALID_ARGUMENT", None),
        ErrorKind::Unsupported => (501, "UNIMPLEMENTED", None),
        ErrorKind::NotFound => (404, "NOT_FOUND", None),
        ErrorKind::TooLarge => (413, "RESOURCE_EXHAUSTED", None),
        ErrorKind::Conflict => (409, "FAILED_PRECONDITION", None),
        ErrorKind::PluginFault => (502, "INTERNAL", None),
        ErrorKind::Busy => (429, "RESOURCE_EXHAUSTED", Some(1)),
        ErrorKind::Cancelled => (499, "CANCELLED", None),
        ErrorKind::Deadline => (504, "DEADLINE_EXCEEDED", None),
        ErrorKind::Unavailable | ErrorKind::Draining | ErrorKind::Full => (503, "UNAVAILABLE", Some(5)),
        ErrorKind::Internal => (500, "INTERNAL", None),
    }
}

/// Bounds of the front door that an operator may set. They hold for every caller, whatever its key.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// [`Limit::BodyBytes`].
    pub body_bytes_max: usize,
    /// [`Limit::RequestBytes`].
    pub bodies_bytes_max: usize,
    /// [`Limit::UploadBytes`].
    pub upload_bytes_max: u64,
    /// Uploads of one tenant that are received and checked; its others wait.
    pub tenant_uploads_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let number = |limit: Limit| usize::try_from(limit.default()).unwrap_or(usize::MAX);
        Self {
            body_bytes_max: number(Limit::BodyBytes),
            bodies_bytes_max: number(Limit::RequestBytes),
            upload_bytes_max: Limit::UploadBytes.default(),
            tenant_uploads_max: number(Limit::TenantUploads),
        }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_engine::EngineOptions;
    use cellwright_registry::TenantSettings;

    use super::*;

    const KINDS: [ErrorKind; 13] = [
        ErrorKind::BadInput,
        ErrorKind::Unsupported,
        ErrorKind::NotFound,
        ErrorKind::TooLarge,
        ErrorKind::Conflict,
        ErrorKind::PluginFault,
        ErrorKind::Busy,
        ErrorKind::Cancelled,
        ErrorKind::Deadline,
        ErrorKind::Unavailable,
        ErrorKind::Draining,
        ErrorKind::Full,
        ErrorKind::Internal,
    ];

    #[test]
    fn each_limit_stands_at_its_place() {
        for (position, row) in TABLE.iter().enumerate() {
            assert_eq!(row.limit as usize, position, "{:?}", row.limit);
        }
    }

    #[test]
    fn the_table_tells_the_defaults_that_other_crates_have() {
        let tenant = TenantSettings::default();
        assert_eq!(Limit::TenantInFlight.default(), u64::from(tenant.in_flight_max));
        assert_eq!(Limit::TenantQueued.default(), u64::from(tenant.queued_max));
        assert_eq!(Limit::Handles.default(), u64::from(EngineOptions::default().in_flight_max));
    }

    /// The guide has a line for each limit, with the status of what it refuses.
    #[test]
    fn the_operators_guide_prints_the_table() {
        let guide = include_str!("../../README.md");
        for row in TABLE {
            let name = if row.name.is_empty() { "fixed".to_owned() } else { format!("`{}`", row.name) };
            let scope = format!("{:?}", row.scope).to_lowercase();
            let begins = format!("| {name} | {scope} | {} | {} | ", row.default, row.counts);
            let found = guide.lines().any(|line| {
                let status = row.refused.is_none_or(|kind| line.contains(&status(kind).0.to_string()));
                line.starts_with(&begins) && status
            });
            assert!(found, "host/README.md has no line `{begins}` with its status");
        }
        for kind in KINDS {
            let (http, grpc, _) = status(kind);
            assert!(guide.contains(&format!("| {http} | `{grpc}` |")), "host/README.md has no line for {kind:?}");
        }
    }

    #[test]
    fn one_call_is_not_several() {
        for (limit, max, sentence) in [
            (Limit::TenantInFlight, 1, "1 call of this tenant is in"),
            (Limit::TenantInFlight, 2, "2 calls of this tenant are in"),
            (Limit::ModelQueued, 1, "1 call of this model waits to"),
            (Limit::ModelQueued, 2, "2 calls of this model wait to"),
            (Limit::TenantSessions, 1, "1 session of this tenant is open"),
        ] {
            assert!(limit.reached(max).to_string().starts_with(sentence), "{}", limit.reached(max));
        }
    }
}
