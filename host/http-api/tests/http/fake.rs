//! A host whose models are named after what they do.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cellwright_cell_graph::{Datatype, Description, Tensor, TensorSpec};
use cellwright_http_api::figures::{CellFigures, DomainFigures, Figures, ModelFigures, TableFigures, Total, WorkerFigures};
use cellwright_http_api::{Answering, Endpoint, Host, IndexEntry, Refusal};
use cellwright_protocol::InferResponse;
use cellwright_protocol::messages::admin::{Activated, Uploaded};
use cellwright_protocol::messages::repository::ModelState;
use cellwright_registry::{ModelName, Registry, Tenant, TenantName, TenantSettings};
use cellwright_serving::{Call, Client, ErrorKind, InferError, NewUpload, Readiness};

/// Models that the tenant `default` has, each named after what it does with a request.
pub(crate) const MODELS: [&str; 12] =
    ["echo", "slow", "surprise", "rows", "half", "wait", "stream", "pause", "flood", "crumbs", "break", "late"];

/// How many there are of something, and a way to wait for more.
#[derive(Default)]
pub(crate) struct Counter {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Counter {
    pub(crate) fn now(&self) -> usize {
        *self.count.lock().unwrap()
    }

    pub(crate) fn add(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits until there are so many.
    pub(crate) fn reaches(&self, count: usize) {
        let reached = self.changed.wait_timeout_while(self.count.lock().unwrap(), Duration::from_secs(10), |seen| *seen < count).unwrap();
        assert!(!reached.1.timed_out(), "{} instead of {count}", *reached.0);
    }
}

/// Timeout and priority of the last request.
type LastCall = Arc<Mutex<Option<(Option<Duration>, u32)>>>;

/// What the answering thread is to do.
type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Fake {
    /// Answers, one after the other, as an engine's thread would.
    jobs: SyncSender<Job>,
    registry: Registry,
    /// Requests that began to wait, and those of them that were cancelled.
    pub(crate) waiting: Arc<Counter>,
    pub(crate) cancelled: Arc<Counter>,
    /// Until there is one, the models `slow` and `surprise` keep the thread that calls them; of the second nobody knows that before.
    pub(crate) unblocked: Arc<Counter>,
    /// What requests asked for beside their tensors.
    pub(crate) last_call: LastCall,
    /// How requests ended that were not handed over, and how many there were.
    pub(crate) ended_before: Arc<(Mutex<Vec<ErrorKind>>, Counter)>,
    /// Clients of the model `wait`, so that a test can answer them.
    pub(crate) held: Arc<Mutex<Vec<Box<dyn Client>>>>,
    pub(crate) uploaded_bytes: AtomicUsize,
    pub(crate) upload_broke_off: AtomicBool,
    pub(crate) draining: Arc<AtomicBool>,
    /// Whether its index of the tenant `default` takes until something is unblocked.
    pub(crate) slow_index: AtomicBool,
}

impl Fake {
    pub(crate) fn new(folder: &Path) -> Self {
        let (jobs, work) = sync_channel::<Job>(1024);
        std::thread::spawn(move || work.into_iter().for_each(|job| job()));
        Self {
            jobs,
            registry: Registry::open(folder).unwrap(),
            waiting: Arc::default(),
            cancelled: Arc::default(),
            unblocked: Arc::default(),
            last_call: Arc::default(),
            ended_before: Arc::default(),
            held: Arc::default(),
            uploaded_bytes: AtomicUsize::new(0),
            upload_broke_off: AtomicBool::new(false),
            draining: Arc::default(),
            slow_index: AtomicBool::new(false),
        }
    }

    /// Answers everyone who waits.
    pub(crate) fn answer_all(&self) {
        for client in self.held.lock().unwrap().drain(..) {
            client.end(Ok(InferResponse { model_name: "wait".to_owned(), outputs: vec![tensor("y", &[1.0])], ..Default::default() }));
        }
    }
}

pub(crate) fn tensor(name: &str, values: &[f32]) -> Tensor {
    Tensor::from_f32(name, &[values.len()], values)
}

fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn description(model: &str) -> Description {
    let half = model == "half";
    let shape: &[i64] = if model == "rows" { &[-1, 2] } else { &[-1] };
    Description {
        inputs: vec![spec("x", if half { Datatype::Fp16 } else { Datatype::Fp32 }, shape)],
        outputs: vec![spec("y", if half { Datatype::Fp16 } else { Datatype::Fp32 }, shape)],
        cells: Vec::new(),
        rows_are_requests: model == "rows",
        live_max: None,
    }
}

struct FakeEndpoint {
    tenant: TenantName,
    jobs: SyncSender<Job>,
    name: String,
    description: Description,
    waiting: Arc<Counter>,
    cancelled: Arc<Counter>,
    unblocked: Arc<Counter>,
    last_call: LastCall,
    ended_before: Arc<(Mutex<Vec<ErrorKind>>, Counter)>,
    held: Arc<Mutex<Vec<Box<dyn Client>>>>,
    draining: Arc<AtomicBool>,
}

impl Endpoint for FakeEndpoint {
    fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u64 {
        3
    }

    fn digest(&self) -> String {
        "00".repeat(32)
    }

    fn rows_max(&self) -> usize {
        if self.description.rows_are_requests { 16 } else { 0 }
    }

    fn description(&self) -> &Description {
        &self.description
    }

    fn is_slow_to_begin(&self) -> bool {
        self.name == "slow"
    }

    fn ended_before(&self, kind: ErrorKind, _: Instant) {
        self.ended_before.0.lock().unwrap().push(kind);
        self.ended_before.1.add();
    }

    fn infer(self: Arc<Self>, call: Call, mut client: Box<dyn Client>) -> Result<Answering, InferError> {
        *self.last_call.lock().unwrap() = Some((call.timeout, call.priority));
        let refusal = call.request.parameters.iter().find(|parameter| parameter.name == "refuse");
        if refusal.is_some() || self.draining.load(Ordering::Acquire) {
            return Err(InferError::Draining);
        }
        let cancelled = self.cancelled.clone();
        let answering = Answering::new(move || cancelled.add());
        let mut response = InferResponse {
            model_name: self.name.clone(),
            model_version: Some("3".to_owned()),
            id: call.request.id.clone(),
            outputs: vec![Tensor { name: "y".to_owned(), ..call.request.inputs[0].clone() }],
            ..Default::default()
        };
        match self.name.as_str() {
            "slow" | "surprise" => {
                self.waiting.add();
                // As a plugin's runtime does.
                while self.name == "surprise" && self.unblocked.now() == 0 {
                    cellwright_http_api::let_others_go_on();
                    std::thread::sleep(Duration::from_millis(10));
                }
                self.unblocked.reaches(1);
                client.end(Ok(response));
            }
            "wait" => {
                self.held.lock().unwrap().push(client);
                self.waiting.add();
            }
            "late" => client.end(Err(InferError::Late)),
            "stream" => drop(std::thread::spawn(move || {
                (0..3_u8).for_each(|step| client.part(tensor("y", &[f32::from(step)])));
                response.outputs = vec![tensor("length", &[3.0])];
                client.end(Ok(response));
            })),
            "pause" => drop(std::thread::spawn({
                let (waiting, unblocked) = (self.waiting.clone(), self.unblocked.clone());
                move || {
                    client.part(tensor("y", &[1.0]));
                    waiting.add();
                    unblocked.reaches(1);
                    client.part(tensor("y", &[2.0]));
                    response.outputs.clear();
                    client.end(Ok(response));
                }
            })),
            "crumbs" => drop(std::thread::spawn(move || {
                (0..400_000).for_each(|_| client.part(tensor("y", &[])));
                client.end(Ok(response));
            })),
            "break" => drop(std::thread::spawn(move || {
                client.part(tensor("y", &[0.0]));
                client.end(Err(InferError::Invalid("it broke".to_owned())));
            })),
            "flood" => drop(std::thread::spawn(move || {
                self.waiting.add();
                (0..64).for_each(|_| client.part(tensor("y", &vec![0.5; 1 << 18])));
                client.end(Ok(response));
            })),
            _ => self.jobs.send(Box::new(move || client.end(Ok(response)))).unwrap(),
        }
        Ok(answering)
    }
}

impl Host for Fake {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn readiness(&self) -> Readiness {
        if self.draining.load(Ordering::Acquire) { Readiness::Draining } else { Readiness::Ready }
    }

    fn find(&self, tenant: &TenantName, model: &str, version: Option<&str>) -> Result<Arc<dyn Endpoint>, Refusal> {
        if *tenant != TenantName::default_tenant() || !MODELS.contains(&model) {
            return Err(Refusal::new(ErrorKind::NotFound, format_args!("there is no model `{model}`")));
        }
        if version.is_some_and(|version| version != "3") {
            return Err(Refusal::new(ErrorKind::NotFound, "that version does not serve; version 3 does"));
        }
        Ok(Arc::new(FakeEndpoint {
            tenant: tenant.clone(),
            jobs: self.jobs.clone(),
            name: model.to_owned(),
            description: description(model),
            waiting: self.waiting.clone(),
            cancelled: self.cancelled.clone(),
            unblocked: self.unblocked.clone(),
            last_call: self.last_call.clone(),
            ended_before: self.ended_before.clone(),
            held: self.held.clone(),
            draining: self.draining.clone(),
        }))
    }

    fn index(&self, tenant: Option<&TenantName>) -> Vec<IndexEntry> {
        let own = tenant.is_none_or(|tenant| *tenant == TenantName::default_tenant());
        if own && self.slow_index.load(Ordering::Acquire) {
            self.waiting.add();
            self.unblocked.reaches(1);
        }
        let entry = |name: &&str| IndexEntry {
            tenant: TenantName::default_tenant(),
            name: (*name).to_owned(),
            version: Some(3),
            state: ModelState::Ready,
            reason: String::new(),
        };
        MODELS.iter().filter(|_| own).map(entry).collect()
    }

    fn figures(&self, tenant: Option<&TenantName>) -> Figures {
        if tenant.is_some_and(|tenant| *tenant != TenantName::default_tenant()) {
            return Figures::default();
        }
        let total = |count| Total { count, ns: count * 1_000_000 };
        let cell = CellFigures {
            name: "lstm".to_owned(),
            key: "k".to_owned(),
            batch_max: 64,
            tasks: 30,
            rows: 50,
            busy_ns: 30_000,
            batches: vec![(Some(1), 10), (Some(2), 20), (None, 0)],
            table: Some(TableFigures { bytes: 4096, tokens: 8, filled: 3 }),
        };
        let model = ModelFigures {
            tenant: TenantName::default_tenant(),
            name: "echo".to_owned(),
            version: 3,
            in_flight: 1,
            queued: 2,
            success: total(4),
            failure: total(2),
            queue: total(5),
            unfold: total(6),
            compute: total(5),
            requests: 5,
            replayed: 1,
            faults: 0,
            shed: 1,
            cancelled: 1,
            expired: 0,
            last_ms: 7,
            latency: vec![(Some(125_000), 1), (Some(250_000), 3), (None, 0)],
            device_ns: 3000,
            batches: vec![(Some(1), 1), (Some(2), 2), (None, 0)],
            cells: vec![cell],
        };
        Figures {
            models: vec![model],
            waiting: 2,
            domains: vec![DomainFigures { name: "host".to_owned(), slots_used: 1, slots: 8 }],
            workers: vec![WorkerFigures { up: true, outstanding: 0 }],
        }
    }

    fn upload(&self, _: &TenantName, model: &ModelName, archive: &mut dyn Read, upload: NewUpload) -> Result<Uploaded, Refusal> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match archive.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => drop(self.uploaded_bytes.fetch_add(read, Ordering::AcqRel)),
                Err(cause) => {
                    self.upload_broke_off.store(true, Ordering::Release);
                    self.cancelled.add();
                    return Err(Refusal::new(ErrorKind::BadInput, cause));
                }
            }
            if buffer.starts_with(b"bad") {
                return Err(Refusal::new(ErrorKind::BadInput, "this is no archive"));
            }
        }
        let model = model.as_str().to_owned();
        if model == "long" {
            self.waiting.add();
            while !upload.abandoned.is_so() {
                std::thread::yield_now();
            }
            self.cancelled.add();
            self.unblocked.reaches(1);
        }
        Ok(Uploaded { model, version: 4, digest: "00".repeat(32), samples: Vec::new(), existed: false, activated: upload.activate })
    }

    fn activate(&self, _: &TenantName, model: &ModelName, version: u64) -> Result<Activated, Refusal> {
        if model.as_str() == "long" {
            self.waiting.add();
            self.unblocked.reaches(1);
        }
        Ok(Activated { model: model.as_str().to_owned(), active: version, previous: Some(3) })
    }

    fn roll_back(&self, _: &TenantName, _: &ModelName) -> Result<Activated, Refusal> {
        Err(Refusal::new(ErrorKind::Conflict, "there is no earlier version"))
    }

    fn load(&self, _: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        if MODELS.contains(&model.as_str()) { Ok(()) } else { Err(Refusal::new(ErrorKind::NotFound, "there is no such model")) }
    }

    fn unload(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        self.load(tenant, model)
    }

    fn delete_version(&self, _: &TenantName, _: &ModelName, _: u64) -> Result<(), Refusal> {
        Ok(())
    }

    fn delete_model(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        self.load(tenant, model)
    }

    fn set_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant, Refusal> {
        self.registry.set_tenant(name, settings).map_err(|error| Refusal::new(ErrorKind::BadInput, error))
    }

    fn delete_tenant(&self, name: &TenantName) -> Result<(), Refusal> {
        self.registry.delete_tenant(name).map_err(|error| Refusal::new(ErrorKind::Conflict, error))
    }

    fn drain(&self, _: Duration) {
        self.draining.store(true, Ordering::Release);
    }
}
