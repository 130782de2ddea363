//! A running server, and a client that sends exactly the bytes it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellwright_gate::{Bounds, Gate as FrontDoor, NewUpload, Platform, PlatformOptions, let_others_go_on};
use cellwright_http_api::{BindError, Limits, Server, ServerOptions, TlsFiles};
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_serving::ServingOptions;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, infer, model, options, start_on, tenant};
use cellwright_tests::requests;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server that has the summing model as `sums`, and knows that it is quick.
pub(super) struct Running {
    /// Before the device. While it is closed, calls have begun and none ends but those that are cancelled. Dropped first, as [`Self::loading`] is: the rest
    /// waits for whatever waits there.
    pub(super) gate: Gate,
    /// Before making cells ready: while it is closed, no model is loaded whose cells the device does not have.
    pub(super) loading: Gate,
    pub(super) address: SocketAddr,
    pub(super) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<bool>>,
    pub(super) door: Arc<FrontDoor>,
    pub(super) platform: Arc<Platform>,
    _folder: TempDir,
}

/// How calls have fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Calls that were begun and have not ended.
    pub(super) in_flight: u32,
    /// Those that wait to begin.
    pub(super) queued: u32,
    /// Those that were not answered, and of them those whose client left and those whose time was up.
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
}

/// What callers may use of a server.
pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) bounds: Bounds,
    pub(super) slow_begins_max: usize,
    pub(super) part_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let PlatformOptions { slow_begins_max, part_bytes_max, .. } = options();
        Self { limits: Limits::default(), bounds: Bounds::default(), slow_begins_max, part_bytes_max }
    }
}

impl From<Limits> for Settings {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

impl From<Bounds> for Settings {
    fn from(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }
}

/// Binds a server in front of a platform.
///
/// # Errors
/// As [`Server::bind`].
pub(super) async fn bind(options: ServerOptions, platform: &Arc<Platform>) -> Result<Server, BindError> {
    Server::bind(options, FrontDoor::new(platform.clone(), Bounds::default()).unwrap()).await
}

/// A platform without models, whose device stands behind these gates.
pub(super) fn platform(folder: &Path, gate: &Gate, loading: &Gate) -> Arc<Platform> {
    platform_with(folder, (gate, loading), &Settings::default())
}

fn platform_with(folder: &Path, (gate, loading): (&Gate, &Gate), settings: &Settings) -> Arc<Platform> {
    let options = options();
    let &Settings { slow_begins_max, part_bytes_max, .. } = settings;
    // Compiled once for all tests.
    let cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("http-plugins"));
    let runtime = RuntimeOptions { cache_dir, on_long_call, instances_max: 16, ..RuntimeOptions::new(Compiler::InProcess) };
    let options = PlatformOptions { serving: ServingOptions { runtime, ..options.serving }, slow_begins_max, part_bytes_max, ..options };
    start_on(folder, options, vec![gate.before(loading.before_cells(|_| true, worker(&domain(16))))])
}

impl Running {
    pub(super) fn start() -> Self {
        Self::with(Limits::default(), None)
    }

    pub(super) fn with(settings: impl Into<Settings>, tls: Option<TlsFiles>) -> Self {
        Self::on(Builder::new_multi_thread().worker_threads(2), settings.into(), tls)
    }

    /// On one thread, with one more for what may block.
    pub(super) fn on_one_thread_that_blocks(settings: impl Into<Settings>) -> Self {
        Self::on(Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1), settings.into(), None)
    }

    /// On so many threads, on which [`LongCalls`] keep long calls of plugins.
    pub(super) fn keeping_long_calls(threads: usize, settings: impl Into<Settings>) -> Self {
        Self::on(Builder::new_multi_thread().worker_threads(threads).thread_name(KEPT), settings.into(), None)
    }

    fn on(threads: &mut Builder, settings: Settings, tls: Option<TlsFiles>) -> Self {
        // A registry makes hundreds of folders, for which some disks take a second.
        let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let (gate, loading) = (Gate::default(), Gate::default());
        let platform = platform_with(folder.path(), (&gate, &loading), &settings);
        let runtime = threads.enable_all().build().unwrap();
        // Nobody comes to the second one.
        let options = ServerOptions { addresses: vec!["127.0.0.1:0".parse().unwrap(); 2], tls, limits: settings.limits, health: None };
        let door = FrontDoor::new(platform.clone(), settings.bounds).unwrap();
        let server = runtime.block_on(Server::bind(options, door.clone())).unwrap();
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(server.serve(async { drop(stopped.await) }));
        let running = Self { gate, door, loading, address, runtime, stop: Some(stop), served: Some(served), platform, _folder: folder };
        running.has("sums", &BundleFolder::summing());
        running.is_quick("sums");
        running
    }

    /// Has it serve another model.
    pub(super) fn has(&self, name: &str, bundle: &BundleFolder) {
        self.platform.upload(&tenant(), &model(name), archive(bundle).as_slice(), NewUpload::default()).unwrap();
    }

    /// Calls a model that sums until it is known that its plugin is quick: until then each of its calls begins on a thread of its own.
    pub(super) fn is_quick(&self, name: &str) {
        let deployed = self.platform.find(&tenant(), name, None).unwrap();
        wait_until("a plugin is known to be quick", || {
            infer(&self.platform, &tenant(), name, requests::sum(1, 1)).unwrap();
            deployed.unfold_usual() < Duration::from_micros(900)
        });
        // A place is given back after the answer.
        self.in_flight(0);
    }

    /// How calls of all models of the default tenant have fared.
    pub(super) fn counts(&self) -> Counts {
        let zero = Counts { in_flight: 0, queued: 0, failed: 0, cancelled: 0, expired: 0 };
        self.platform.figures(Some(&tenant())).models.iter().fold(zero, |sum, model| Counts {
            in_flight: sum.in_flight + model.in_flight,
            queued: sum.queued + model.queued,
            failed: sum.failed + model.calls.failure.count,
            cancelled: sum.cancelled + model.calls.cancelled,
            expired: sum.expired + model.calls.expired,
        })
    }

    /// Waits until so many calls have begun and not ended.
    pub(super) fn in_flight(&self, calls: u32) {
        wait_until("calls have begun", || self.counts().in_flight == calls);
    }

    /// Waits until so many calls were cancelled.
    pub(super) fn cancelled(&self, calls: u64) {
        wait_until("calls are cancelled", || self.counts().cancelled == calls);
    }

    /// Asks the server to stop.
    pub(super) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has; gives whether everything was finished.
    pub(super) fn stopped(&mut self) -> bool {
        self.runtime.block_on(self.served.take().unwrap()).unwrap()
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(super) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(&request(method, path, headers, body)).unwrap();
        Answer::read(&mut stream)
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(super) fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[], body.as_bytes())
    }

    /// Bytes as they are; the answer is all that comes until the server closes.
    pub(super) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        Answer::read(&mut stream)
    }
}

/// A request whose connection is closed by its answer.
pub(super) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    [head.as_bytes(), b"\r\n", body].concat()
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Reads until the server closes.
    pub(super) fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        assert!(read.is_ok() || !bytes.is_empty(), "no answer: {read:?}");
        Self::parse(&bytes)
    }

    pub(super) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap();
        let headers: Vec<_> = lines.map(header).collect();
        let mut answer = Self { status, headers, body: bytes[end + 4..].to_vec() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = dechunked(&answer.body);
        }
        answer
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the sentence of a refusal.
    #[track_caller]
    pub(super) fn refused(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let sentence = self.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(sentence.contains(words), "{sentence}");
        assert!(sentence.contains("(request `") || sentence.contains(", request `"), "{sentence}");
    }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
    whole
}

/// The name of threads on which long calls of plugins are kept.
const KEPT: &str = "keeps-long-calls";

/// The first calls of plugins that take long, of servers that [`Running::keeping_long_calls`] started: they stay until this is dropped. Calls that loop
/// fail then, because their time is up.
pub(super) struct LongCalls {
    _alone: MutexGuard<'static, ()>,
}

struct Kept {
    calls: usize,
    /// No more than these. On a busy machine any call may take long.
    calls_max: usize,
}

static ALONE: Mutex<()> = Mutex::new(());
static LONG_CALLS: Mutex<Kept> = Mutex::new(Kept { calls: 0, calls_max: 0 });
static CHANGED: Condvar = Condvar::new();

fn kept() -> MutexGuard<'static, Kept> {
    LONG_CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LongCalls {
    /// Keeps the first so many from now on.
    pub(super) fn keep(calls_max: usize) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        *kept() = Kept { calls: 0, calls_max };
        Self { _alone: alone }
    }

    /// Waits until so many stay.
    pub(super) fn reach(&self, calls: usize) {
        wait_until("long calls have begun", || kept().calls == calls);
    }
}

impl Drop for LongCalls {
    fn drop(&mut self) {
        kept().calls_max = 0;
        CHANGED.notify_all();
    }
}

/// As production has it, but that calls stay.
fn on_long_call() {
    let_others_go_on();
    if std::thread::current().name() != Some(KEPT) {
        return;
    }
    let mut long = kept();
    if long.calls >= long.calls_max {
        return;
    }
    long.calls += 1;
    while long.calls_max > 0 {
        long = CHANGED.wait_timeout(long, Duration::from_millis(10)).unwrap_or_else(PoisonError::into_inner).0;
        drop(long);
        // A plugin's runtime says it again and again.
        let_others_go_on();
        long = kept();
    }
}
